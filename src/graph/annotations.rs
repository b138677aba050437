//! Edges that objects declare in annotations.
//!
//! Two annotations of the Kubernetes configuration tools are read, each reference in them being a required edge:
//! `config.kubernetes.io/depends-on` and the sources of `config.kubernetes.io/apply-time-mutation`. A version in a
//! reference is no part of it. What cannot be read is an error, never "no dependency": an edge that is lost silently
//! shows as an outage at deletion.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use crate::object::{self, GroupKind, ObjectId, Scope, group_of};

/// Comma-separated list of objects to be applied before and deleted after the annotated one.
pub const DEPENDS_ON: &str = "config.kubernetes.io/depends-on";

/// YAML list of substitutions; each takes a value from another object, which therefore has to be there first.
pub const APPLY_TIME_MUTATION: &str = "config.kubernetes.io/apply-time-mutation";

/// What [`Declared::by_api`] puts as `declared_by`.
pub const API: &str = "api";

/// "`from` depends on `to`", declared by the author.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct Declared {
    /// What depends: applied later, deleted first.
    pub from: ObjectId,
    /// What it depends on; it need not be in the set.
    pub to: ObjectId,
    /// Who declared it: an annotation key, or [`API`].
    pub declared_by: String,
}

impl Declared {
    /// An edge declared in code.
    #[must_use]
    pub fn by_api(from: ObjectId, to: ObjectId) -> Self {
        Self { from, to, declared_by: API.to_owned() }
    }
}

/// Why an annotation cannot be read. The object's edges are unknown then, so the set must not be applied.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An entry of `depends-on` is not a reference.
    #[error(
        "{object}: annotation {DEPENDS_ON}: entry {entry:?} is neither \"<group>/<kind>/<name>\" nor \
         \"<group>/namespaces/<namespace>/<kind>/<name>\" (the group of core kinds is empty: \"/namespaces/a/ConfigMap/b\")"
    )]
    Entry {
        /// The annotated object.
        object: ObjectId,
        /// The entry, cut to a readable length.
        entry: String,
    },
    /// A reference holds something that no object can be called.
    #[error("{object}: annotation {annotation}: reference {reference:?} names no object")]
    Reference {
        /// The annotated object.
        object: ObjectId,
        /// The annotation's key.
        annotation: &'static str,
        /// The reference, cut to a readable length.
        reference: String,
        /// The rule it breaks.
        #[source]
        source: Box<object::Error>,
    },
    /// A substitution says two groups.
    #[error(
        "{object}: annotation {APPLY_TIME_MUTATION}: reference {reference:?} has group {group:?} but apiVersion \
         {api_version:?}: leave one of them out"
    )]
    TwoGroups {
        /// The annotated object.
        object: ObjectId,
        /// The reference, cut to a readable length.
        reference: String,
        /// Its `group`.
        group: String,
        /// Its `apiVersion`.
        api_version: String,
    },
    /// A substitution names no namespace, and it is not known whether its kind has one.
    #[error(
        "{object}: annotation {APPLY_TIME_MUTATION}: reference {reference:?} has no namespace, and the scope of {kind} is \
         not known: set sourceRef.namespace"
    )]
    UnknownScope {
        /// The annotated object.
        object: ObjectId,
        /// The reference, cut to a readable length.
        reference: String,
        /// Its kind.
        kind: GroupKind,
    },
    /// An item of a waiver is neither a rule nor an object.
    #[error(
        "{object}: annotation {annotation}: item {item:?} is neither the name of a rule nor \"*\" nor an object in the form \
         of a {DEPENDS_ON} reference"
    )]
    Waiver {
        /// The annotated object.
        object: ObjectId,
        /// The annotation's key.
        annotation: String,
        /// The item, cut to a readable length.
        item: String,
    },
    /// The list of substitutions is not one.
    #[error(
        "{object}: annotation {APPLY_TIME_MUTATION} is not a list of substitutions with a sourceRef of kind and name \
         (line {line}, column {column}){}",
        hint()
    )]
    Substitutions {
        /// The annotated object.
        object: ObjectId,
        /// Where reading stopped, from 1; 0 if that is not known.
        line: u64,
        /// Where reading stopped, from 1; 0 if that is not known.
        column: u64,
    },
}

fn hint() -> &'static str {
    if cfg!(feature = "yaml") { "" } else { "; it is read as JSON only, because the crate's feature `yaml` is off" }
}

pub(super) fn cut(text: &str) -> String {
    text.chars().take(120).collect()
}

/// The edges that the annotations of `object` declare, in order, each once.
///
/// `scope` says where objects of a kind live, as discovery knows it, or `None` for a kind that it does not know. It
/// catches references in the wrong form and places substitutions that name no namespace: in the annotated object's own,
/// if their kind is namespaced.
///
/// # Errors
/// [`enum@Error`] for the first entry that cannot be read.
pub fn declared(
    object: &ObjectId,
    annotations: &BTreeMap<String, String>,
    scope: &dyn Fn(&GroupKind) -> Option<Scope>,
) -> Result<Vec<Declared>, Error> {
    let mut edges = BTreeSet::new();
    if let Some(value) = annotations.get(DEPENDS_ON) {
        for entry in value.split(',') {
            let to = depends_on_entry(object, entry.trim(), scope)?;
            edges.insert(Declared { from: object.clone(), to, declared_by: DEPENDS_ON.to_owned() });
        }
    }
    // Nothing at all is an empty list in YAML.
    if let Some(value) = annotations.get(APPLY_TIME_MUTATION).filter(|value| !value.trim().is_empty()) {
        for substitution in substitutions(object, value)? {
            let to = substitution.source_ref.resolve(object, scope)?;
            edges.insert(Declared { from: object.clone(), to, declared_by: APPLY_TIME_MUTATION.to_owned() });
        }
    }
    Ok(edges.into_iter().collect())
}

fn depends_on_entry(
    object: &ObjectId,
    entry: &str,
    scope: &dyn Fn(&GroupKind) -> Option<Scope>,
) -> Result<ObjectId, Error> {
    let (group, kind, namespace, name) =
        fields(entry).ok_or_else(|| Error::Entry { object: object.clone(), entry: cut(entry) })?;
    checked(group, kind, namespace, name, scope).map_err(|source| Error::Reference {
        object: object.clone(),
        annotation: DEPENDS_ON,
        reference: cut(entry),
        source: Box::new(source),
    })
}

/// Group, kind, namespace and name of a reference.
fn fields(reference: &str) -> Option<(&str, &str, Option<&str>, &str)> {
    let fields: Vec<&str> = reference.split('/').collect();
    match fields.as_slice() {
        [group, kind, name] => Some((group, kind, None, name)),
        [group, "namespaces", namespace, kind, name] => Some((group, kind, Some(namespace), name)),
        _ => None,
    }
}

/// The object that a reference in the form of [`DEPENDS_ON`] names.
pub(super) fn reference(text: &str, scope: &dyn Fn(&GroupKind) -> Option<Scope>) -> Option<ObjectId> {
    let (group, kind, namespace, name) = fields(text)?;
    checked(group, kind, namespace, name, scope).ok()
}

fn checked(
    group: &str,
    kind: &str,
    namespace: Option<&str>,
    name: &str,
    scope: &dyn Fn(&GroupKind) -> Option<Scope>,
) -> Result<ObjectId, object::Error> {
    let id = ObjectId::new(group, kind, namespace, name)?;
    scope(&id.group_kind()).map_or(Ok(()), |scope| id.check_scope(scope))?;
    Ok(id)
}

#[derive(Deserialize)]
struct Substitution {
    #[serde(rename = "sourceRef")]
    source_ref: SourceRef,
}

#[derive(Deserialize)]
struct SourceRef {
    kind: String,
    #[serde(default, rename = "apiVersion")]
    api_version: Option<String>,
    #[serde(default)]
    group: Option<String>,
    name: String,
    #[serde(default)]
    namespace: Option<String>,
}

impl SourceRef {
    fn resolve(&self, object: &ObjectId, scope: &dyn Fn(&GroupKind) -> Option<Scope>) -> Result<ObjectId, Error> {
        let namespace = self.namespace.as_deref().filter(|n| !n.is_empty());
        let reference = || {
            let place = namespace.map_or_else(String::new, |n| format!("{n}/"));
            cut(&format!("{} {place}{}", self.kind, self.name))
        };
        let invalid = |source| Error::Reference {
            object: object.clone(),
            annotation: APPLY_TIME_MUTATION,
            reference: reference(),
            source: Box::new(source),
        };
        let of_version = self.api_version.as_deref().filter(|v| !v.is_empty()).map(group_of);
        let named = self.group.as_deref().filter(|g| !g.is_empty());
        let group = match (of_version, named) {
            (Some(of_version), Some(named)) if of_version != named => {
                return Err(Error::TwoGroups {
                    object: object.clone(),
                    reference: reference(),
                    group: cut(named),
                    api_version: cut(self.api_version.as_deref().unwrap_or_default()),
                });
            }
            (Some(group), _) | (None, Some(group)) => group,
            (None, None) => "",
        };
        let kind = GroupKind::new(group, self.kind.as_str()).map_err(invalid)?;
        let namespace = match (namespace, scope(&kind)) {
            (Some(namespace), _) => Some(namespace),
            (None, Some(Scope::Cluster)) => None,
            (None, Some(Scope::Namespaced)) => object.namespace(),
            (None, None) => {
                return Err(Error::UnknownScope { object: object.clone(), reference: reference(), kind });
            }
        };
        checked(group, &self.kind, namespace, &self.name, scope).map_err(invalid)
    }
}

#[cfg(feature = "yaml")]
fn substitutions(object: &ObjectId, value: &str) -> Result<Vec<Substitution>, Error> {
    serde_saphyr::from_str(value).map_err(|e| {
        // The position only: the message would quote the manifest.
        let at = e.location();
        Error::Substitutions {
            object: object.clone(),
            line: at.map_or(0, |at| at.line()),
            column: at.map_or(0, |at| at.column()),
        }
    })
}

#[cfg(not(feature = "yaml"))]
fn substitutions(object: &ObjectId, value: &str) -> Result<Vec<Substitution>, Error> {
    serde_json::from_str(value).map_err(|e| Error::Substitutions {
        object: object.clone(),
        line: e.line() as u64,
        column: e.column() as u64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(kind: &GroupKind) -> Option<Scope> {
        match kind.kind.as_str() {
            "Unknown" => None,
            "Namespace" | "ClusterRole" => Some(Scope::Cluster),
            _ => Some(Scope::Namespaced),
        }
    }

    fn read(key: &str, value: &str) -> Result<Vec<String>, Error> {
        let object = ObjectId::new("apps", "Deployment", Some("a"), "web").unwrap();
        let annotations = BTreeMap::from([(key.to_owned(), value.to_owned())]);
        let edges = declared(&object, &annotations, &scope)?;
        for edge in &edges {
            assert_eq!((&edge.from, edge.declared_by.as_str()), (&object, key));
        }
        Ok(edges.into_iter().map(|edge| edge.to.to_string()).collect())
    }

    #[test]
    fn references_have_three_or_five_fields() {
        let value = " /namespaces/default/ConfigMap/cm1 ,rbac.authorization.k8s.io/ClusterRole/system:x_y,\
                     /Namespace/a , /Namespace/a";
        assert_eq!(
            read(DEPENDS_ON, value).unwrap(),
            ["ConfigMap default/cm1", "Namespace a", "ClusterRole.rbac.authorization.k8s.io system:x_y"]
        );
    }

    #[test]
    fn s28_a_reference_that_cannot_be_read_is_an_error_that_shows_it() {
        for bad in [
            "",
            "ConfigMap/cm1",
            "/Namespace/a,",
            "/v1/namespaces/a/ConfigMap/cm1",
            "/namespace/a/ConfigMap/cm1",
            "/Namespace/a;/Namespace/b",
        ] {
            let error = read(DEPENDS_ON, bad).unwrap_err();
            let last = bad.split(',').find(|entry| !matches!(entry.split('/').count(), 3 | 5)).unwrap_or(bad);
            assert!(matches!(&error, Error::Entry { .. }), "{bad}: {error}");
            assert!(error.to_string().contains(&format!("{last:?}")), "{bad}: {error}");
        }
        for bad in ["/ConfigMap/", "//x", "/namespaces//ConfigMap/cm1", "/namespaces/a//cm1", "Bad Group/Kind/x"] {
            assert!(matches!(read(DEPENDS_ON, bad), Err(Error::Reference { .. })), "{bad}");
        }
        // The right number of fields, but the scope says otherwise: it would be waited for for ever.
        for bad in ["/ConfigMap/cm1", "/namespaces/a/Namespace/b"] {
            assert!(matches!(read(DEPENDS_ON, bad), Err(Error::Reference { .. })), "{bad}");
        }
        assert_eq!(read(DEPENDS_ON, "x.io/Unknown/n").unwrap(), ["Unknown.x.io n"]);
    }

    #[test]
    fn each_source_of_a_substitution_is_a_reference() {
        let value = r#"[
            {"sourceRef": {"kind": "ConfigMap", "name": "own", "apiVersion": "v1"}, "sourcePath": "$.data.x"},
            {"sourceRef": {"kind": "Role", "name": "r", "namespace": "b", "group": "rbac.authorization.k8s.io"}},
            {"sourceRef": {"kind": "Ingress", "name": "i", "namespace": "", "apiVersion": "networking.k8s.io/v1"}},
            {"sourceRef": {"kind": "Namespace", "name": "b"}, "token": "${x}"}
        ]"#;
        assert_eq!(
            read(APPLY_TIME_MUTATION, value).unwrap(),
            ["ConfigMap a/own", "Namespace b", "Ingress.networking.k8s.io a/i", "Role.rbac.authorization.k8s.io b/r"]
        );
        for nothing in ["[]", "", " "] {
            assert!(read(APPLY_TIME_MUTATION, nothing).unwrap().is_empty(), "{nothing}");
        }
    }

    #[test]
    fn a_substitution_that_cannot_be_read_is_an_error() {
        for bad in ["null", "{}", "[{}]", r#"[{"sourceRef": {"kind": "ConfigMap"}}]"#, "[", "[1]"] {
            let error = read(APPLY_TIME_MUTATION, bad).unwrap_err();
            assert!(matches!(error, Error::Substitutions { .. }), "{bad}: {error}");
        }
        let error = read(APPLY_TIME_MUTATION, r#"[{"sourceRef": {"kind": "Unknown", "name": "x"}}]"#).unwrap_err();
        assert!(matches!(error, Error::UnknownScope { .. }), "{error}");
        let two = r#"[{"sourceRef": {"kind": "X", "name": "x", "group": "a.io", "apiVersion": "b.io/v1"}}]"#;
        assert!(matches!(read(APPLY_TIME_MUTATION, two), Err(Error::TwoGroups { .. })));
        let empty = r#"[{"sourceRef": {"kind": "X", "name": ""}}]"#;
        assert!(matches!(read(APPLY_TIME_MUTATION, empty), Err(Error::Reference { .. })));
    }

    #[test]
    fn errors_quote_no_more_of_a_manifest_than_references() {
        let error = read(APPLY_TIME_MUTATION, "[{\"sourceRef\": \"hunter2\"}]").unwrap_err();
        let mut text = error.to_string();
        let mut cause = std::error::Error::source(&error);
        while let Some(inner) = cause {
            text.push_str(&inner.to_string());
            cause = inner.source();
        }
        assert!(!text.contains("hunter2") && text.contains("line 1"), "{text}");
    }

    const YAML: &str = "- sourceRef:\n    kind: ConfigMap\n    name: x\n  sourcePath: $.data.x\n";

    #[cfg(feature = "yaml")]
    #[test]
    fn yaml_is_read() {
        assert_eq!(read(APPLY_TIME_MUTATION, YAML).unwrap(), ["ConfigMap a/x"]);
    }

    #[cfg(not(feature = "yaml"))]
    #[test]
    fn without_the_feature_yaml_is_refused_and_never_passed_over() {
        let error = read(APPLY_TIME_MUTATION, YAML).unwrap_err();
        assert!(matches!(error, Error::Substitutions { .. }));
        assert!(error.to_string().contains("feature `yaml`"), "{error}");
    }
}
