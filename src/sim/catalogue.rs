//! Which kinds exist and in which versions they are served.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::Value;

use super::{builtin, schema::Schema};

/// Names the storage of one kind. A CustomResourceDefinition that is created again gets a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ResourceId(pub(super) u32);

/// A version in which a kind is served.
#[derive(Clone, Debug)]
pub(super) struct Version {
    pub(super) name: String,
    /// Whether it has the subresource `status`.
    pub(super) status: bool,
    /// Custom resources have one.
    pub(super) schema: Option<Arc<Schema>>,
}

/// What is peculiar to a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Nothing.
    Plain,
    /// Deleted with a period of grace.
    Pod,
    /// Deleted by its controller.
    Namespace,
    /// Makes other kinds.
    Definition,
    /// Never has GC finalizers.
    Event,
    /// Made by a CustomResourceDefinition.
    Custom,
}

/// One kind.
#[derive(Clone, Debug)]
pub(super) struct Resource {
    pub(super) id: ResourceId,
    pub(super) group: String,
    pub(super) plural: String,
    pub(super) singular: String,
    pub(super) kind: String,
    pub(super) list_kind: String,
    pub(super) namespaced: bool,
    pub(super) short_names: Vec<String>,
    pub(super) categories: Vec<String>,
    /// Those served, the preferred one first.
    pub(super) versions: Vec<Version>,
    pub(super) storage_version: String,
    pub(super) role: Role,
    /// Counts changes of its spec.
    pub(super) generation: bool,
    pub(super) returns_object: bool,
    pub(super) orphans_by_default: bool,
    /// Names only have to fit into a path.
    pub(super) path_name: bool,
    /// Its CustomResourceDefinition is being deleted: nothing can be created.
    pub(super) terminating: bool,
}

pub(super) const VERBS: [&str; 8] = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

impl Resource {
    pub(super) fn is_custom(&self) -> bool {
        self.role == Role::Custom
    }

    pub(super) fn version(&self, name: &str) -> Option<&Version> {
        self.versions.iter().find(|version| version.name == name)
    }

    pub(super) fn preferred(&self) -> &str {
        self.versions.first().map(|version| version.name.as_str()).unwrap_or_default()
    }

    pub(super) fn api_version(&self, version: &str) -> String {
        if self.group.is_empty() { version.to_owned() } else { format!("{}/{version}", self.group) }
    }

    /// The verbs that discovery shows.
    pub(super) fn verbs(&self) -> Vec<&'static str> {
        match self.role {
            Role::Namespace => VERBS.into_iter().filter(|verb| *verb != "deletecollection").collect(),
            Role::Custom if self.terminating => vec!["delete", "deletecollection", "get", "list", "watch"],
            Role::Custom => vec!["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"],
            _ => VERBS.to_vec(),
        }
    }

    pub(super) fn allows(&self, verb: &str) -> bool {
        self.role != Role::Namespace || verb != "deletecollection"
    }
}

/// All kinds.
#[derive(Debug)]
pub(super) struct Catalogue {
    resources: BTreeMap<ResourceId, Arc<Resource>>,
    routes: BTreeMap<(String, String), BTreeMap<String, ResourceId>>,
    next: u32,
    /// Counts changes, so that a cache of it can see that it is stale.
    edition: u64,
    /// Groups that discovery leaves out for now.
    hidden: Vec<String>,
}

impl Catalogue {
    pub(super) fn new() -> Self {
        let mut catalogue =
            Self { resources: BTreeMap::new(), routes: BTreeMap::new(), next: 1, edition: 0, hidden: Vec::new() };
        for row in builtin::ROWS {
            let resource = from_row(row, catalogue.reserve());
            catalogue.insert(resource);
        }
        catalogue
    }

    pub(super) fn reserve(&mut self) -> ResourceId {
        self.next += 1;
        ResourceId(self.next)
    }

    /// Adds a kind, or replaces what is known of it.
    pub(super) fn insert(&mut self, resource: Resource) -> Arc<Resource> {
        self.unroute(resource.id);
        let resource = Arc::new(resource);
        for version in &resource.versions {
            let route = (resource.group.clone(), version.name.clone());
            self.routes.entry(route).or_default().insert(resource.plural.clone(), resource.id);
        }
        self.resources.insert(resource.id, Arc::clone(&resource));
        self.edition += 1;
        resource
    }

    pub(super) fn remove(&mut self, id: ResourceId) {
        self.unroute(id);
        self.resources.remove(&id);
        self.edition += 1;
    }

    fn unroute(&mut self, id: ResourceId) {
        for plurals in self.routes.values_mut() {
            plurals.retain(|_, known| *known != id);
        }
        self.routes.retain(|_, plurals| !plurals.is_empty());
    }

    pub(super) fn edition(&self) -> u64 {
        self.edition
    }

    pub(super) fn get(&self, id: ResourceId) -> Option<&Arc<Resource>> {
        self.resources.get(&id)
    }

    /// All kinds, in the order in which they came.
    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.resources.values()
    }

    /// Whether any kind of this group is served in this version.
    pub(super) fn serves(&self, group: &str, version: &str) -> bool {
        self.routes.contains_key(&(group.to_owned(), version.to_owned()))
    }

    pub(super) fn find(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Resource>> {
        let id = self.routes.get(&(group.to_owned(), version.to_owned()))?.get(plural)?;
        self.resources.get(id)
    }

    /// The kind whatever its version.
    pub(super) fn by_plural(&self, group: &str, plural: &str) -> Option<&Arc<Resource>> {
        self.resources.values().find(|resource| resource.group == group && resource.plural == plural)
    }

    /// The built-in kind of this role.
    pub(super) fn by_role(&self, role: Role) -> Option<&Arc<Resource>> {
        self.resources.values().find(|resource| resource.role == role)
    }

    /// What a REST mapper makes of an `apiVersion` and a kind.
    pub(super) fn map(&self, api_version: &str, kind: &str) -> Option<&Arc<Resource>> {
        let (group, version) = split(api_version);
        let plurals = self.routes.get(&(group.to_owned(), version.to_owned()))?;
        plurals.values().filter_map(|id| self.resources.get(id)).find(|resource| resource.kind == kind)
    }

    /// Leaves a group out of discovery, or shows it again. Its requests are answered all the same.
    pub(super) fn hide(&mut self, group: &str, hidden: bool) {
        self.hidden.retain(|known| known != group);
        if hidden {
            self.hidden.push(group.to_owned());
        }
        self.edition += 1;
    }

    pub(super) fn is_hidden(&self, group: &str) -> bool {
        self.hidden.iter().any(|known| known == group)
    }

    /// Groups with their versions, the preferred one first, in the order of discovery.
    pub(super) fn groups(&self) -> Vec<(&str, Vec<&str>)> {
        let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
        for resource in self.resources.values() {
            let versions = resource.versions.iter().map(|version| version.name.as_str());
            match groups.iter_mut().find(|(group, _)| *group == resource.group) {
                Some((_, known)) => {
                    for version in versions {
                        if !known.contains(&version) {
                            known.push(version);
                        }
                    }
                }
                None => groups.push((&resource.group, versions.collect())),
            }
        }
        for (_, versions) in &mut groups {
            versions.sort_by_key(|version| rank(version));
        }
        groups.retain(|(group, versions)| !self.is_hidden(group) && !versions.is_empty());
        groups
    }
}

/// Group and version of an `apiVersion`.
pub(super) fn split(api_version: &str) -> (&str, &str) {
    api_version.split_once('/').unwrap_or(("", api_version))
}

/// Sorts versions as discovery does: `v2`, `v1`, `v1beta2`, `v1alpha1`, then others by name.
pub(super) fn rank(version: &str) -> (u8, std::cmp::Reverse<u64>, std::cmp::Reverse<u64>, String) {
    let parse = || {
        let rest = version.strip_prefix('v')?;
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (major, rest) = rest.split_at(digits);
        let major: u64 = major.parse().ok()?;
        for (class, stage) in [(1, "beta"), (2, "alpha")] {
            if let Some(minor) = rest.strip_prefix(stage) {
                return Some((class, major, minor.parse().ok()?));
            }
        }
        rest.is_empty().then_some((0, major, 0))
    };
    match parse() {
        Some((class, major, minor)) => (class, std::cmp::Reverse(major), std::cmp::Reverse(minor), String::new()),
        None => (3, std::cmp::Reverse(0), std::cmp::Reverse(0), version.to_owned()),
    }
}

fn from_row(row: &builtin::Row, id: ResourceId) -> Resource {
    let (group, version, plural, kind, flags, short_names, categories) = *row;
    let has = |flag: u8| flags & flag != 0;
    let words = |text: &str| text.split(',').filter(|word| !word.is_empty()).map(ToOwned::to_owned).collect();
    let role = match (group, plural) {
        ("", "pods") => Role::Pod,
        ("", "namespaces") => Role::Namespace,
        ("" | "events.k8s.io", "events") => Role::Event,
        ("apiextensions.k8s.io", _) => Role::Definition,
        _ => Role::Plain,
    };
    Resource {
        id,
        group: group.to_owned(),
        plural: plural.to_owned(),
        singular: kind.to_ascii_lowercase(),
        kind: kind.to_owned(),
        list_kind: format!("{kind}List"),
        namespaced: has(builtin::NAMESPACED),
        short_names: words(short_names),
        categories: words(categories),
        versions: vec![Version { name: version.to_owned(), status: has(builtin::STATUS), schema: None }],
        storage_version: version.to_owned(),
        role,
        generation: has(builtin::GENERATION),
        returns_object: has(builtin::RETURNS_OBJECT),
        orphans_by_default: has(builtin::ORPHANS),
        path_name: has(builtin::PATH_NAME),
        terminating: false,
    }
}

/// The kind that a CustomResourceDefinition describes; `None` if it is too broken to serve anything.
pub(super) fn from_definition(crd: &Value, id: ResourceId, terminating: bool) -> Option<Resource> {
    let spec = crd.get("spec")?;
    let text = |value: &Value, field: &str| value.get(field).and_then(Value::as_str).map(ToOwned::to_owned);
    let texts = |value: &Value, field: &str| -> Vec<String> {
        let list = value.get(field).and_then(Value::as_array).into_iter().flatten();
        list.filter_map(Value::as_str).map(ToOwned::to_owned).collect()
    };
    let names = spec.get("names")?;
    let kind = text(names, "kind")?;
    let mut versions = Vec::new();
    let mut storage_version = None;
    for version in spec.get("versions")?.as_array()? {
        let name = text(version, "name")?;
        if version.get("storage").and_then(Value::as_bool).unwrap_or(false) {
            storage_version = Some(name.clone());
        }
        if version.get("served").and_then(Value::as_bool).unwrap_or(false) {
            let schema = version.pointer("/schema/openAPIV3Schema").map(|schema| Arc::new(Schema::new(schema.clone())));
            versions.push(Version { name, status: version.pointer("/subresources/status").is_some(), schema });
        }
    }
    versions.sort_by_key(|version| rank(&version.name));
    Some(Resource {
        id,
        group: text(spec, "group")?,
        plural: text(names, "plural")?,
        singular: text(names, "singular").unwrap_or_else(|| kind.to_ascii_lowercase()),
        list_kind: text(names, "listKind").unwrap_or_else(|| format!("{kind}List")),
        kind,
        namespaced: spec.get("scope").and_then(Value::as_str) != Some("Cluster"),
        short_names: texts(names, "shortNames"),
        categories: texts(names, "categories"),
        versions,
        storage_version: storage_version?,
        role: Role::Custom,
        generation: true,
        returns_object: false,
        orphans_by_default: false,
        path_name: false,
        terminating,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sorts_versions_as_discovery_does() {
        let mut versions = vec!["foo1", "v1alpha1", "v3beta1", "v2", "v12alpha1", "v10", "v1", "v11beta2"];
        versions.sort_by_key(|version| rank(version));
        assert_eq!(versions, ["v10", "v2", "v1", "v11beta2", "v3beta1", "v12alpha1", "v1alpha1", "foo1"]);
    }

    #[test]
    fn knows_the_built_in_kinds() {
        let catalogue = Catalogue::new();
        let deployments = catalogue.find("apps", "v1", "deployments").unwrap();
        assert!(deployments.namespaced && deployments.generation && deployments.versions[0].status);
        assert_eq!(catalogue.map("v1", "ConfigMap").unwrap().plural, "configmaps");
        assert!(catalogue.map("v2", "ConfigMap").is_none());
        assert_eq!(catalogue.groups()[0], ("", vec!["v1"]));
    }
}
