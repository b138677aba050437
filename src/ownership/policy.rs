use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use serde::{Serialize, Serializer};

use crate::object::{ObjectId, ParentRef};

/// Which objects a parent may manage, by where they live. Multi-tenant operators choose one per parent.
///
/// It holds for applying *and* for deleting: an object that a parent may not manage is not touched on its behalf,
/// even if an inventory names it. Proxy owners are the operator's own and not subject to it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OwnershipPolicy {
    /// The parent's own scope only: a namespaced parent manages objects in its namespace, a cluster-scoped parent
    /// cluster-scoped objects. These are the children that no proxy owner would be needed for.
    SameNamespace,
    /// Namespaced objects in exactly these namespaces; a namespaced parent's own one counts only if it is in the set.
    /// No cluster-scoped objects, not even the Namespace objects of that name: deleting one deletes all in it.
    Namespaces(BTreeSet<String>),
    /// Everything.
    ClusterWide,
}

impl OwnershipPolicy {
    /// The policy for a set of namespaces.
    #[must_use]
    pub fn namespaces<N: Into<String>>(names: impl IntoIterator<Item = N>) -> Self {
        Self::Namespaces(names.into_iter().map(Into::into).collect())
    }

    /// Whether `parent` may manage `child`.
    ///
    /// # Errors
    /// [`Ignored`], with the reason in words for the parent's status.
    pub fn decide(&self, parent: &ParentRef, child: &ObjectId) -> Result<(), Ignored> {
        let allowed = match self {
            Self::ClusterWide => true,
            Self::SameNamespace => parent.id.namespace() == child.namespace(),
            Self::Namespaces(names) => child.namespace().is_some_and(|namespace| names.contains(namespace)),
        };
        if allowed {
            return Ok(());
        }
        let parent_kind = parent.id.kind().to_owned();
        let reason = match child.namespace() {
            Some(namespace) => IgnoredReason::NamespaceNotManaged { namespace: namespace.to_owned(), parent_kind },
            None => IgnoredReason::ClusterScoped { parent_kind },
        };
        Err(Ignored { object: child.clone(), reason })
    }

    /// The namespaces that the children of `parent` are confined to; `None` if they may be anywhere.
    pub(crate) fn confines(&self, parent: &ParentRef) -> Option<BTreeSet<String>> {
        match self {
            Self::ClusterWide => None,
            Self::SameNamespace => Some(parent.id.namespace().map(ToOwned::to_owned).into_iter().collect()),
            Self::Namespaces(names) => Some(names.clone()),
        }
    }

    /// Those of `children` that `parent` may not manage, each once, in order of identity.
    #[must_use]
    pub fn ignored<'a>(&self, parent: &ParentRef, children: impl IntoIterator<Item = &'a ObjectId>) -> Vec<Ignored> {
        let refused = children.into_iter().filter_map(|child| self.decide(parent, child).err());
        refused.map(|ignored| (ignored.object.clone(), ignored)).collect::<BTreeMap<_, _>>().into_values().collect()
    }
}

/// An object that a parent asked for and may not manage.
///
/// Displays as `object: reason`; serialises as `object` and `reason`, for a status.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[non_exhaustive]
pub struct Ignored {
    /// The object.
    pub object: ObjectId,
    /// Why it is ignored.
    pub reason: IgnoredReason,
}

impl fmt::Display for Ignored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.object, self.reason)
    }
}

/// Why an object is ignored. Displays, and serialises, as a sentence.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum IgnoredReason {
    /// The object is in a namespace that the parent does not manage.
    NamespaceNotManaged {
        /// The namespace.
        namespace: String,
        /// The parent's kind.
        parent_kind: String,
    },
    /// The object is cluster-scoped.
    ClusterScoped {
        /// The parent's kind.
        parent_kind: String,
    },
}

impl fmt::Display for IgnoredReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NamespaceNotManaged { namespace, parent_kind } => {
                write!(f, "namespace `{namespace}` is not managed by this {parent_kind}")
            }
            Self::ClusterScoped { parent_kind } => {
                let article = if parent_kind.starts_with(['A', 'E', 'I', 'O', 'U']) { "an" } else { "a" };
                write!(f, "{article} {parent_kind} cannot manage a cluster-scoped resource")
            }
        }
    }
}

impl Serialize for IgnoredReason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        object::{ResourceKind, Scope},
        ownership::testing::{id, parent, uid},
    };

    fn refused(policy: &OwnershipPolicy, parent: &ParentRef, child: &str) -> Option<String> {
        policy.decide(parent, &id(child)).err().map(|ignored| ignored.reason.to_string())
    }

    #[test]
    fn faros_a_namespaced_parent_ignores_other_namespaces_and_cluster_scope() {
        let policy = OwnershipPolicy::SameNamespace;
        assert_eq!(refused(&policy, &parent(), "ConfigMap a/x"), None);
        assert_eq!(
            refused(&policy, &parent(), "ConfigMap x/x").unwrap(),
            "namespace `x` is not managed by this GitTrack"
        );
        assert_eq!(
            refused(&policy, &parent(), "Namespace a").unwrap(),
            "a GitTrack cannot manage a cluster-scoped resource"
        );
    }

    #[test]
    fn a_cluster_scoped_parents_own_scope_is_cluster_scope() {
        let resource = ResourceKind::new("example.com", "v1", "Application", "applications", Scope::Cluster);
        let parent = ParentRef::new(id("Application.example.com x"), uid("1"), &resource);
        let policy = OwnershipPolicy::SameNamespace;
        assert_eq!(refused(&policy, &parent, "Namespace a"), None);
        assert_eq!(
            refused(&policy, &parent, "ConfigMap a/x").unwrap(),
            "namespace `a` is not managed by this Application"
        );
        assert_eq!(
            refused(&OwnershipPolicy::namespaces(["a"]), &parent, "Namespace a").unwrap(),
            "an Application cannot manage a cluster-scoped resource"
        );
    }

    #[test]
    fn a_set_of_namespaces_is_exact() {
        let policy = OwnershipPolicy::namespaces(["b", "c"]);
        assert_eq!(refused(&policy, &parent(), "ConfigMap b/x"), None);
        assert!(refused(&policy, &parent(), "ConfigMap a/x").is_some());
        assert!(refused(&policy, &parent(), "Namespace b").is_some());
        assert_eq!(refused(&OwnershipPolicy::ClusterWide, &parent(), "Namespace b"), None);
    }

    #[test]
    fn the_ignored_list_is_ordered_free_of_duplicates_and_fit_for_a_status() {
        let children = ["ConfigMap z/x", "Namespace b", "ConfigMap a/x", "ConfigMap z/x"].map(id);
        let ignored = OwnershipPolicy::SameNamespace.ignored(&parent(), &children);
        let lines: Vec<_> = ignored.iter().map(ToString::to_string).collect();
        assert_eq!(
            lines,
            [
                "ConfigMap z/x: namespace `z` is not managed by this GitTrack",
                "Namespace b: a GitTrack cannot manage a cluster-scoped resource"
            ]
        );
        assert_eq!(
            serde_json::to_value(&ignored[1]).unwrap(),
            serde_json::json!({
                "object": {"kind": "Namespace", "name": "b"},
                "reason": "a GitTrack cannot manage a cluster-scoped resource"
            })
        );
    }
}
