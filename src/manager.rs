//! The manager's domain and every key derived from it.
//!
//! All finalizers, labels and annotations that the crate writes live under the domain that the operator's author
//! passes in, so two operators never meet on one key. Keys are only *names*: whether an object is ours is
//! decided by its back-pointer and the inventory, never by the presence of a key.

use std::fmt;

use sha2::{Digest, Sha256};

use crate::object::{GroupKind, ObjectId, Uid, is_dns_subdomain};

/// Why a manager domain was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid manager {name:?}: use a domain that you control, such as \"gittrack.example.com\" (a DNS subdomain with a dot, \
     at most {} characters; Kubernetes reserves kubernetes.io and k8s.io)",
    Manager::MAX_LENGTH
)]
#[non_exhaustive]
pub struct InvalidManager {
    /// The refused name, cut to a readable length.
    pub name: String,
}

const BACK_POINTER: &str = "back-pointer";

/// The domain under which one operator's keys live, such as `gittrack.example.com`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Manager(String);

impl Manager {
    /// Longest domain: the API server's limit for a field manager, which the domain is used as.
    pub const MAX_LENGTH: usize = 128;

    /// A manager, checked.
    ///
    /// # Errors
    /// [`InvalidManager`] unless `name` is a DNS subdomain with at least one dot, outside of
    /// `kubernetes.io` and `k8s.io`.
    pub fn new(name: impl AsRef<str>) -> Result<Self, InvalidManager> {
        let name = name.as_ref();
        let reserved = ["kubernetes.io", "k8s.io"].iter().any(|r| name == *r || name.ends_with(&format!(".{r}")));
        if name.len() > Self::MAX_LENGTH || !name.contains('.') || !is_dns_subdomain(name) || reserved {
            return Err(InvalidManager { name: name.chars().take(80).collect() });
        }
        Ok(Self(name.to_owned()))
    }

    /// The domain.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.0)
    }

    /// Label on every child, proxy and inventory object; its value is the parent's UID.
    #[must_use]
    pub fn parent_label(&self) -> String {
        self.key("parent-uid")
    }

    /// Annotation on every child and proxy: the back-pointer.
    #[must_use]
    pub fn back_pointer_annotation(&self) -> String {
        self.key(BACK_POINTER)
    }

    /// Whether an annotation's key is that of a back-pointer, of this or of any other manager.
    pub(crate) fn is_back_pointer(key: &str) -> bool {
        key.split_once('/').is_some_and(|(_, name)| name == BACK_POINTER)
    }

    /// Annotation on objects that stay in the cluster at the end, `adopted` or `kept`: so that this is known when their
    /// record is gone. The record decides as long as there is one.
    #[must_use]
    pub fn retain_annotation(&self) -> String {
        self.key("retain")
    }

    /// Annotation on a child by which another parent of the manager asks for it: the back-pointer that it would carry. A wish
    /// and no claim; it stays on the object when that was handed over.
    #[must_use]
    pub fn wanted_annotation(&self) -> String {
        self.key("wanted-by")
    }

    /// Annotation on the parent: a [request to force](crate::force), which is a wish and no order.
    #[must_use]
    pub fn force_annotation(&self) -> String {
        self.key("force")
    }

    /// Annotation in manifests of Namespaces and CustomResourceDefinitions: `hold` or `keep`, what happens at the end while something
    /// else uses the object. Never on live objects.
    #[must_use]
    pub fn in_use_annotation(&self) -> String {
        self.key("in-use")
    }

    /// Annotation that an author puts into a manifest, preferred edges of the object that
    /// shall not hold. See [`graph::waivers`](crate::graph::waivers::read) for its form. It is applied, so that it is known when
    /// the record is gone.
    #[must_use]
    pub fn waive_annotation(&self) -> String {
        self.key("waive")
    }

    /// First finalizer on the parent: nothing may be created before it is there.
    #[must_use]
    pub fn finalizer(&self) -> String {
        self.key("custody")
    }

    /// Second finalizer on the parent: children may exist. The API server refuses to add it to a parent that is
    /// being deleted, which closes the door on late creates.
    #[must_use]
    pub fn applied_finalizer(&self) -> String {
        self.key("applied")
    }

    /// Annotation on the parent: every group-kind ever applied for it, in display form, comma separated; only grows.
    #[must_use]
    pub fn group_kinds_annotation(&self) -> String {
        self.key("group-kinds")
    }

    /// Annotation on the parent: the id of the cluster its children live in, where that is not the parent's own. Without
    /// it, nobody could tell after the loss of the record whether a search looks in the right place.
    #[must_use]
    pub fn cluster_annotation(&self) -> String {
        self.key("cluster")
    }

    /// Guard finalizer on inventory objects, so that namespace deletion cannot take the record first.
    #[must_use]
    pub fn inventory_finalizer(&self) -> String {
        self.key("inventory")
    }

    /// Label on inventory objects; its value is a hash of the parent's identity, which is in their names as well.
    #[must_use]
    pub fn inventory_label(&self) -> String {
        self.key("inventory")
    }

    /// Annotation on inventory objects that names the parent, for people.
    #[must_use]
    pub fn inventory_annotation(&self) -> String {
        self.key("inventory-of")
    }

    /// Finalizer on proxy owners, held until the children they own are gone.
    #[must_use]
    pub fn proxy_finalizer(&self) -> String {
        self.key("proxy")
    }

    /// Hold finalizer that one incarnation of a parent puts on objects its cleanup needs: short hashes of the parent's kind,
    /// and of its identity and UID.
    ///
    /// The identity is in it because a record, which may be forged, is found by identity: so it can speak of holds of the
    /// parent in whose name it is stored, and of no other's.
    #[must_use]
    pub fn hold_finalizer(&self, parent: &ObjectId, uid: &Uid) -> String {
        let hash = short(&[parent.stable_id().as_bytes(), uid.as_str().as_bytes()], 10);
        format!("{}{hash}", self.hold_prefix(&parent.group_kind()))
    }

    /// What the hold finalizers of all parents of one kind start with.
    pub(crate) fn hold_prefix(&self, kind: &GroupKind) -> String {
        self.key(&format!("hold-{}-", short(&[kind.to_string().as_bytes()], 4)))
    }

    /// Field manager of what is created and applied.
    ///
    /// Use another one for writes of the operator's own: what was written to a child by an update under this one is taken
    /// for a part of what was applied, and goes where the manifest does not name it. Finalizers, which a child that is
    /// itself a parent carries, are written under their own names.
    #[must_use]
    pub fn field_manager(&self) -> &str {
        &self.0
    }

    /// Whether the crate itself writes `key`, as a label, annotation or finalizer. The operator's author may use others under
    /// the domain, whose meaning only the author knows.
    pub(crate) fn writes_key(&self, key: &str) -> bool {
        let written = [
            self.parent_label(),
            self.back_pointer_annotation(),
            self.retain_annotation(),
            self.waive_annotation(),
            self.wanted_annotation(),
            self.finalizer(),
            self.applied_finalizer(),
            self.group_kinds_annotation(),
            self.force_annotation(),
            self.inventory_finalizer(),
            self.inventory_annotation(),
            self.proxy_finalizer(),
        ];
        written.iter().any(|k| k == key) || self.is_hold(key)
    }

    /// Whether `key` is a hold finalizer, for a parent of any kind.
    pub(crate) fn is_hold(&self, key: &str) -> bool {
        key.starts_with(&self.key("hold-"))
    }

    /// Whether `key` makes an object a parent, or speaks of it as one.
    pub(crate) fn is_parents_key(&self, key: &str) -> bool {
        [self.finalizer(), self.applied_finalizer(), self.group_kinds_annotation(), self.force_annotation()]
            .iter()
            .any(|k| k == key)
    }

    /// Whether `key` (a label, annotation or finalizer) belongs to this manager.
    #[must_use]
    pub fn owns_key(&self, key: &str) -> bool {
        key.split_once('/').is_some_and(|(prefix, _)| prefix == self.0)
    }
}

/// The first bytes of a hash over `parts`, as hexadecimal digits.
fn short(parts: &[&[u8]], bytes: usize) -> String {
    let digest = parts.iter().fold(Sha256::new(), |hash, part| hash.chain_update(part)).finalize();
    digest.iter().take(bytes).map(|byte| format!("{byte:02x}")).collect()
}

impl fmt::Display for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c23_unqualified_and_reserved_names_are_refused_at_construction() {
        for bad in ["", "gittrack", "x/y.z", "UPPER.example.com", "k8s.io", "apps.kubernetes.io", ".a.b", "a..b"] {
            assert!(Manager::new(bad).is_err(), "{bad}");
        }
        assert!(Manager::new(format!("{}.example.com", "x".repeat(120))).is_err());
        let manager = Manager::new("gittrack.example.com").unwrap();
        assert_eq!(manager.finalizer(), "gittrack.example.com/custody");
        assert!(manager.owns_key(&manager.parent_label()) && !manager.owns_key("other.example.com/parent-uid"));
        assert!(manager.writes_key(&manager.retain_annotation()) && manager.writes_key(&manager.inventory_label()));
        assert!(
            manager.writes_key(&manager.hold_finalizer(&"GitTrack.x.io a/b".parse().unwrap(), &Uid::new("u").unwrap()))
        );
        assert!(manager.owns_key("gittrack.example.com/own") && !manager.writes_key("gittrack.example.com/own"));
    }

    #[test]
    fn holds_differ_by_kind_identity_and_incarnation_and_are_valid_finalizers() {
        let manager = Manager::new(format!("{}.example.com", "x".repeat(63))).unwrap();
        let id = |text: &str| text.parse::<ObjectId>().unwrap();
        let uid = |text: &str| Uid::new(text).unwrap();
        let all = [
            manager.hold_finalizer(&id("GitTrack.faros.pusher.com a/x"), &uid("1")),
            manager.hold_finalizer(&id("GitTrack.faros.pusher.com a/x"), &uid("2")),
            manager.hold_finalizer(&id("GitTrack.faros.pusher.com b/x"), &uid("1")),
            manager.hold_finalizer(&id("ClusterGitTrack.faros.pusher.com x"), &uid("1")),
        ];
        assert_eq!(all.iter().collect::<std::collections::BTreeSet<_>>().len(), 4, "{all:?}");
        assert!(all.iter().all(|name| crate::finalizer::FinalizerName::new(name).is_ok()), "{all:?}");
        let tracks = manager.hold_prefix(&GroupKind::new("faros.pusher.com", "GitTrack").unwrap());
        assert_eq!(all.map(|name| name.starts_with(&tracks)), [true, true, true, false]);
    }
}
