//! Rules about what deletes or defines others: Namespaces and definitions.

use std::collections::BTreeMap;

use super::{Edges, ManifestSet, Rule};
use crate::object::ObjectId;

/// A namespaced object depends on its Namespace, if that is in the set.
///
/// Deleting a Namespace deletes its content in no particular order, and nothing can be created in it before it exists.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct InNamespace;

impl Rule for InNamespace {
    fn name(&self) -> &'static str {
        "in-namespace"
    }

    fn rank(&self) -> u16 {
        1000
    }

    fn infer(&self, set: &ManifestSet<'_>, edges: &mut Edges<'_>) {
        for namespace in set.of_kind("", "Namespace") {
            let name = namespace.id.name();
            let content = set.in_namespace(name).map(|m| m.id);
            edges.prefer_all(content, namespace.id, format!("metadata.namespace is {name:?}"));
        }
    }
}

/// A custom resource depends on its CustomResourceDefinition, if that is in the set.
///
/// Deleting a definition deletes every resource of the kind at once, and none can be created before it is served.
/// Matched by `spec.group` and `spec.names.kind`, in any version; a definition of which the identity alone is known, by its
/// name, which is the plural and the group.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct OfDefinition;

impl Rule for OfDefinition {
    fn name(&self) -> &'static str {
        "of-definition"
    }

    fn rank(&self) -> u16 {
        900
    }

    fn infer(&self, set: &ManifestSet<'_>, edges: &mut Edges<'_>) {
        let mut by_name: BTreeMap<&str, BTreeMap<&str, &ObjectId>> = BTreeMap::new();
        for definition in set.of_kind("apiextensions.k8s.io", "CustomResourceDefinition") {
            if let (Some(group), Some(kind)) = (definition.text("/spec/group"), definition.text("/spec/names/kind")) {
                let resources = set.of_kind(group, kind).map(|m| m.id);
                edges.prefer_all(resources, definition.id, format!("it defines kind {kind:?} of group {group:?}"));
            } else if let Some((plural, group)) = definition.id.name().split_once('.') {
                by_name.entry(group).or_default().insert(plural, definition.id);
            }
        }
        for (group, definitions) in by_name {
            for resource in set.of_group(group) {
                // Without a plural, it may be any of the group's.
                let plural = set.known_plural(resource.id);
                let may_define = definitions.iter().filter(|(name, _)| plural.is_none_or(|plural| plural == **name));
                for (_, definition) in may_define {
                    edges.prefer(resource.id, definition, "its name ends in the group, and it may define the kind");
                }
            }
        }
    }
}
