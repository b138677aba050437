use crate::object::ObjectId;

/// Why an owner reference would not do what it says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Illegal {
    /// Owner and child are in different namespaces. The garbage collector looks for the owner in the child's
    /// namespace, does not find it, and deletes the child: at once, or after its next restart.
    #[error(
        "{child} (namespace {child_namespace:?}) cannot be owned by {owner} (namespace {owner_namespace:?}): owner \
         references do not cross namespaces, and the garbage collector would delete the child; use a proxy owner in \
         namespace {child_namespace:?}"
    )]
    CrossNamespace {
        /// The owner.
        owner: ObjectId,
        /// The owner's namespace.
        owner_namespace: String,
        /// The child.
        child: ObjectId,
        /// The child's namespace.
        child_namespace: String,
    },
    /// The child is cluster-scoped and the owner is not. The garbage collector never collects the child, and the
    /// reference keeps it from judging the child's other references.
    #[error(
        "{child} (cluster-scoped) cannot be owned by {owner} (namespace {owner_namespace:?}): a cluster-scoped object has \
         cluster-scoped owners only, and the garbage collector would never collect it; use a cluster-scoped proxy owner"
    )]
    NamespacedOwner {
        /// The owner.
        owner: ObjectId,
        /// The owner's namespace.
        owner_namespace: String,
        /// The child.
        child: ObjectId,
    },
    /// The owner is a `v1 Event`, which the API server refuses.
    #[error("{child} cannot be owned by {owner}: Kubernetes does not accept events as owners; use a lasting object")]
    EventOwner {
        /// The owner.
        owner: ObjectId,
        /// The child.
        child: ObjectId,
    },
    /// An object would own itself. The API server does not object, and a foreground deletion then never ends.
    #[error("{child} cannot own itself: leave the reference out")]
    OwnChild {
        /// The object.
        child: ObjectId,
    },
}

/// Whether `owner` may be named in an owner reference of `child`.
///
/// Both identities have to carry the scope of their kinds (see [`ObjectId::check_scope`]): a namespaced object
/// given without its namespace would be taken for a cluster-scoped one.
///
/// A cluster-scoped owner may own anything, a namespaced one only what is in its own namespace. That the owner
/// exists, is served in the named version and is not being deleted, is for [`LiveOwner`](super::LiveOwner) to say.
///
/// # Errors
/// [`Illegal`], naming both objects, both scopes and the way out.
pub fn check_reference(owner: &ObjectId, child: &ObjectId) -> Result<(), Illegal> {
    let (owner_id, child_id) = (|| owner.clone(), || child.clone());
    if owner == child {
        return Err(Illegal::OwnChild { child: child_id() });
    }
    if owner.is("", "Event") {
        return Err(Illegal::EventOwner { owner: owner_id(), child: child_id() });
    }
    match (owner.namespace(), child.namespace()) {
        (None, _) => Ok(()),
        (Some(theirs), Some(ours)) if theirs == ours => Ok(()),
        (Some(theirs), Some(ours)) => Err(Illegal::CrossNamespace {
            owner: owner_id(),
            owner_namespace: theirs.to_owned(),
            child: child_id(),
            child_namespace: ours.to_owned(),
        }),
        (Some(theirs), None) => {
            Err(Illegal::NamespacedOwner { owner: owner_id(), owner_namespace: theirs.to_owned(), child: child_id() })
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ownership::testing::{any_id, id};

    #[test]
    fn c01_c02_references_across_namespaces_and_out_of_cluster_scope_are_refused_with_both_scopes() {
        let owner = id("GitTrack.faros.pusher.com a/track");
        let across = check_reference(&owner, &id("ConfigMap b/child")).unwrap_err();
        assert!(matches!(across, Illegal::CrossNamespace { .. }));
        let text = across.to_string();
        for part in ["ConfigMap b/child", "GitTrack.faros.pusher.com a/track", "\"a\"", "\"b\"", "proxy owner"] {
            assert!(text.contains(part), "{text}");
        }
        let up = check_reference(&owner, &id("ClusterRole.rbac.authorization.k8s.io child")).unwrap_err();
        assert!(matches!(up, Illegal::NamespacedOwner { .. }));
        assert!(up.to_string().contains("cluster-scoped proxy owner") && up.to_string().contains("\"a\""), "{up}");
    }

    #[test]
    fn events_and_the_object_itself_own_nothing() {
        let child = id("ConfigMap a/child");
        assert!(matches!(check_reference(&id("Event a/e"), &child), Err(Illegal::EventOwner { .. })));
        assert!(matches!(check_reference(&child, &child), Err(Illegal::OwnChild { .. })));
        // only the core group's kind is refused by the API server
        assert_eq!(check_reference(&id("Event.events.k8s.io a/e"), &child), Ok(()));
    }

    proptest! {
        #[test]
        fn legal_is_what_kubernetes_honours(owner in any_id(), child in any_id()) {
            prop_assume!(owner != child && !owner.is("", "Event"));
            let legal = owner.namespace().is_none() || owner.namespace() == child.namespace();
            prop_assert_eq!(check_reference(&owner, &child).is_ok(), legal);
        }
    }
}
