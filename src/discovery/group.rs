//! What one API group serves, read from discovery documents. Pure: no requests, no clock.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{APIGroup, APIResourceList};

use super::{Resolution, ServedVersions};
use crate::object::{GroupKind, ResourceKind, Scope, is_dns_subdomain};

/// The answer to one look-up of a group.
#[derive(Debug)]
pub(super) enum Lookup {
    /// The group is there.
    Found(Group),
    /// The server says that there is no such group.
    NoSuchGroup,
    /// Nothing can be said.
    Unavailable(String),
}

impl Lookup {
    pub(super) fn resolve(&self, kind: &GroupKind) -> Resolution {
        match self {
            Self::Found(group) => group.resolve(kind),
            Self::NoSuchGroup => Resolution::NotServed,
            Self::Unavailable(reason) => Resolution::Unavailable { reason: reason.clone() },
        }
    }

    pub(super) fn served_versions(&self, kind: &GroupKind) -> ServedVersions {
        match self {
            Self::Found(group) => {
                ServedVersions { known: group.of_kind(kind).cloned().collect(), unavailable: group.unavailable() }
            }
            Self::NoSuchGroup => ServedVersions { known: Vec::new(), unavailable: None },
            Self::Unavailable(reason) => ServedVersions { known: Vec::new(), unavailable: Some(reason.clone()) },
        }
    }
}

/// One resource of a version.
#[derive(Debug)]
pub(super) struct Served {
    pub(super) resource: ResourceKind,
    /// Whether its objects can be listed.
    pub(super) lists: bool,
}

/// One version of a group.
#[derive(Debug)]
pub(super) enum Listing {
    /// The resources of the version, subresources left out, deletable ones first.
    Resources(Vec<Served>),
    /// The version is served by something that does not answer.
    Unavailable(String),
}

/// A group with its versions, the preferred one first.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) versions: Vec<Listing>,
}

impl Group {
    /// The kind as every version spells it that serves it.
    fn of_kind<'a>(&'a self, kind: &'a GroupKind) -> impl Iterator<Item = &'a ResourceKind> + 'a {
        let of_kind = |served: &'a Served| (served.resource.kind == kind.kind).then_some(&served.resource);
        self.listed().filter_map(move |resources| resources.iter().find_map(of_kind))
    }

    /// Every kind whose objects can be listed, as the first version spells it that serves it so.
    pub(super) fn listable(&self) -> Vec<ResourceKind> {
        let mut kinds: Vec<ResourceKind> = Vec::new();
        for served in self.listed().flatten().filter(|served| served.lists) {
            if kinds.iter().all(|known| known.plural != served.resource.plural) {
                kinds.push(served.resource.clone());
            }
        }
        kinds
    }

    fn listed(&self) -> impl Iterator<Item = &Vec<Served>> + '_ {
        self.versions.iter().filter_map(|listing| match listing {
            Listing::Resources(resources) => Some(resources),
            Listing::Unavailable(_) => None,
        })
    }

    /// Why the listing is incomplete, if it is.
    pub(super) fn unavailable(&self) -> Option<String> {
        self.versions.iter().find_map(|listing| match listing {
            Listing::Resources(_) => None,
            Listing::Unavailable(reason) => Some(reason.clone()),
        })
    }

    /// Whether any readable version has a resource of this name.
    pub(super) fn serves_plural(&self, plural: &str) -> bool {
        self.listed().flatten().any(|served| served.resource.plural == plural)
    }

    pub(super) fn resolve(&self, kind: &GroupKind) -> Resolution {
        match (self.of_kind(kind).next(), self.unavailable()) {
            (Some(resource), _) => Resolution::Served(resource.clone()),
            (None, Some(reason)) => Resolution::Unavailable { reason },
            (None, None) => Resolution::NotServed,
        }
    }
}

/// The versions named by the document of group `name`, the preferred one first.
pub(super) fn versions(name: &str, document: &APIGroup) -> Result<Vec<String>, String> {
    if document.name != name {
        return Err(format!("asked for API group {name:?}, got a document about {:?}", document.name));
    }
    let preferred = document.preferred_version.as_ref().map(|v| v.version.as_str());
    ordered(document.versions.iter().map(|v| v.version.as_str()), preferred)
}

/// Checks version names, which become path segments, and puts the preferred one first.
pub(super) fn ordered<'a>(all: impl Iterator<Item = &'a str>, preferred: Option<&str>) -> Result<Vec<String>, String> {
    let mut versions = Vec::new();
    for version in all {
        if !is_dns_subdomain(version) {
            return Err(format!("discovery names an impossible version {version:?}"));
        }
        versions.push(version.to_owned());
    }
    versions.sort_by_key(|v| Some(v.as_str()) != preferred);
    Ok(versions)
}

/// The resources of one version.
pub(super) fn resources(group: &str, version: &str, list: &APIResourceList) -> Result<Vec<Served>, String> {
    let expected = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    if list.group_version != expected {
        return Err(format!("asked for {expected}, got a document about {:?}", list.group_version));
    }
    let mut found: Vec<(bool, Served)> = list
        .resources
        .iter()
        .filter(|r| !r.name.is_empty() && !r.name.contains('/'))
        .filter(|r| r.group.as_deref().is_none_or(|g| g.is_empty() || g == group))
        .filter(|r| GroupKind::new(group, r.kind.as_str()).is_ok())
        .map(|r| {
            let scope = if r.namespaced { Scope::Namespaced } else { Scope::Cluster };
            let can = |verb: &str| r.verbs.iter().any(|v| v == verb);
            let resource = ResourceKind::new(group, version, &r.kind, &r.name, scope);
            (can("delete"), Served { resource, lists: can("list") })
        })
        .collect();
    found.sort_by_key(|(deletable, _)| !deletable);
    Ok(found.into_iter().map(|(_, served)| served).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{from_value, json};

    fn kind(name: &str) -> GroupKind {
        GroupKind::new("x.example.com", name).unwrap()
    }

    fn widget(version: &str) -> ResourceKind {
        ResourceKind::new("x.example.com", version, "Widget", "widgets", Scope::Namespaced)
    }

    #[test]
    fn the_preferred_version_comes_first_and_impossible_ones_are_refused() {
        let document = |version: &str| -> APIGroup {
            from_value(json!({"kind": "APIGroup", "apiVersion": "v1", "name": "x.example.com",
                "versions": [{"groupVersion": "x.example.com/v2beta1", "version": version},
                             {"groupVersion": "x.example.com/v1", "version": "v1"}],
                "preferredVersion": {"groupVersion": "x.example.com/v1", "version": "v1"}}))
            .unwrap()
        };
        assert_eq!(versions("x.example.com", &document("v2beta1")).unwrap(), ["v1", "v2beta1"]);
        assert!(versions("y.example.com", &document("v2beta1")).is_err(), "a document about something else");
        assert!(versions("x.example.com", &document("../v1")).is_err());
    }

    #[test]
    fn subresources_foreign_groups_and_malformed_kinds_are_left_out() {
        let list: APIResourceList = from_value(json!({"kind": "APIResourceList", "apiVersion": "v1",
            "groupVersion": "x.example.com/v1", "resources": [
                {"name": "widgetreviews", "singularName": "", "namespaced": true, "kind": "Widget", "verbs": ["create"]},
                {"name": "widgets", "singularName": "", "namespaced": true, "kind": "Widget", "verbs": ["get", "delete"]},
                {"name": "widgets/status", "singularName": "", "namespaced": true, "kind": "Widget", "verbs": ["get"]},
                {"name": "scales", "group": "autoscaling", "singularName": "", "namespaced": true, "kind": "Scale",
                 "verbs": ["get"]},
                {"name": "bad", "singularName": "", "namespaced": false, "kind": "../x", "verbs": ["get"]},
                {"name": "hubs", "singularName": "", "namespaced": false, "kind": "Hub", "verbs": ["get"]}]}))
        .unwrap();
        let found = resources("x.example.com", "v1", &list).unwrap();
        let names: Vec<_> = found.iter().map(|s| (s.resource.plural.as_str(), s.resource.scope)).collect();
        assert_eq!(
            names,
            [("widgets", Scope::Namespaced), ("widgetreviews", Scope::Namespaced), ("hubs", Scope::Cluster)]
        );
        assert!(resources("x.example.com", "v2", &list).is_err(), "a document about another version");
    }

    fn serves(version: &str) -> Vec<Served> {
        vec![Served { resource: widget(version), lists: version == "v1" }]
    }

    #[test]
    fn a_kind_is_listed_in_the_first_version_that_can() {
        let versions = ["v2", "v1", "v1"].map(|v| Listing::Resources(serves(v))).into();
        assert_eq!(Group { versions }.listable(), [widget("v1")]);
        assert_eq!(Group { versions: vec![Listing::Resources(serves("v2"))] }.listable(), []);
    }

    #[test]
    fn a_broken_version_condemns_only_what_may_be_in_it() {
        let broken = || Listing::Unavailable("503 ServiceUnavailable".into());
        let group = Group { versions: vec![broken(), Listing::Resources(serves("v1"))] };
        assert_eq!(group.resolve(&kind("Widget")), Resolution::Served(widget("v1")));
        assert!(matches!(group.resolve(&kind("Gadget")), Resolution::Unavailable { .. }));
        let versions = Lookup::Found(group).served_versions(&kind("Widget"));
        assert_eq!(versions.known, [widget("v1")]);
        assert!(versions.unavailable.is_some());

        let whole = Group { versions: vec![Listing::Resources(serves("v2")), Listing::Resources(Vec::new())] };
        assert_eq!(whole.resolve(&kind("Gadget")), Resolution::NotServed);
        assert!(whole.serves_plural("widgets") && !whole.serves_plural("gadgets"));
    }
}
