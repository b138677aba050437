//! Legal ownership: which owner references Kubernetes honours, which marks make an object ours, and what stands in
//! for a parent where it may not own its children itself.
//!
//! An owner reference may not cross namespaces, nor point from a cluster-scoped object to a namespaced one. The API
//! server stores such a reference all the same, and the garbage collector then deletes the child, or never collects
//! it. So nothing in this module writes a reference that [`check_reference`] refuses or whose owner was not read
//! live ([`LiveOwner`]); children that the parent cannot own are owned by a [`proxy`] in their own scope.
//!
//! References are a net, not proof: an object is ours only if its [`BackPointer`] says so ([`judge`]). Ownership works
//! without proxies too, by back-pointer, inventory and finalizer alone: then no child carries a reference
//! ([`proxy::Placement::without_proxies`]), and what a stalled process creates after the end is collected by nobody.
//!
//! Everything here is a pure function of what was read. It must not know of clients, clocks, or what the
//! inventory holds; the caller reads, asks, and writes.

mod back_pointer;
mod claim;
mod error;
mod hand_over;
mod legality;
mod marks;
mod policy;
pub mod proxy;
mod reference;

pub use self::{
    back_pointer::{BackPointer, Unreadable},
    claim::{Claim, judge, judge_marks},
    error::{Error, KeyPlace},
    hand_over::{HandOver, ask_patch, hand_over_patch, wanted_by, withdraw_patch},
    legality::{Illegal, check_reference},
    marks::{check_unmarked, clear_patch, detach_patch, mark, strip_patch},
    policy::{Ignored, IgnoredReason, OwnershipPolicy},
    reference::{LiveOwner, ReferenceChange, ReferenceOptions, refers_to, set_owner, strip_owner},
};

/// What the tests of this module share.
#[cfg(test)]
pub(crate) mod testing {
    use proptest::prelude::*;

    use crate::{
        manager::Manager,
        object::{ObjectId, ParentRef, ResourceKind, Scope, Uid},
    };

    pub(crate) fn id(text: &str) -> ObjectId {
        text.parse().unwrap()
    }

    pub(crate) fn uid(text: &str) -> Uid {
        Uid::new(text).unwrap()
    }

    pub(crate) fn manager() -> Manager {
        Manager::new("gittrack.example.com").unwrap()
    }

    /// GitTrack a/track, UID `p-1`.
    pub(crate) fn parent() -> ParentRef {
        let resource = ResourceKind::new("faros.pusher.com", "v1alpha1", "GitTrack", "gittracks", Scope::Namespaced);
        ParentRef::new(id("GitTrack.faros.pusher.com a/track"), uid("p-1"), &resource)
    }

    /// Any identity that the API server could hold, up to its limits.
    pub(crate) fn any_id() -> impl Strategy<Value = ObjectId> {
        let name = prop_oneof!["[a-zA-Z0-9:_.-]{1,12}", "[a-z0-9:_-]{253}", "\\PC{1,12}"];
        let namespace = proptest::option::of("[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?");
        ("([a-z]{1,5}(\\.[a-z]{1,5})?)?", "[A-Z][a-zA-Z]{0,62}", namespace, name)
            .prop_filter_map("legal", |(g, k, ns, n)| ObjectId::new(&g, &k, ns.as_deref(), &n).ok())
    }

    /// A parent of any identity.
    pub(crate) fn any_parent() -> impl Strategy<Value = ParentRef> {
        (any_id(), "[a-z0-9]([a-z0-9-]{0,34}[a-z0-9])?").prop_map(|(id, u)| {
            let resource = ResourceKind::new(id.group(), "v1", id.kind(), "things", id.scope());
            ParentRef::new(id, uid(&u), &resource)
        })
    }
}
