//! What a request told us about one object, cut down to what judging it needs.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};

use crate::{
    manager::Manager,
    markers::{self, Marker},
    object::{LiveRef, ObjectId, ParentRef, Uid},
    ownership::{self, Claim},
};

/// By whose word an object may be deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Authority {
    /// The caller vouches for each object by its UID; no marks are looked for.
    Caller,
    /// An object is the parent's if its live back-pointer names the parent's UID and the object itself.
    Marks {
        /// Under whose keys.
        manager: Manager,
        /// Whose children.
        parent: ParentRef,
    },
}

/// One incarnation of an object, as an answer of the API server showed it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Live {
    /// Which incarnation.
    pub uid: Uid,
    /// The state that was judged: sent as a precondition of the DELETE.
    pub resource_version: String,
    /// When its deletion was accepted, if it is terminating.
    pub deleting_since: Option<Time>,
    /// All finalizers, in the object's order.
    pub finalizers: Vec<String>,
    /// UIDs in its owner references.
    pub owners: Vec<Uid>,
    /// Foreign marks that ask for the object to be kept, or announce a refusal.
    pub markers: Vec<Marker>,
    /// The manager's label, if there is one: a parent's UID.
    pub label: Option<String>,
    /// The manager's back-pointer annotation, if there is one.
    pub back_pointer: Option<String>,
    /// By which other parent of the manager it is asked for, if it is.
    pub wanted_by: Option<Box<LiveRef>>,
}

impl Live {
    /// Reads the metadata of a live object; `None` if it carries no UID, so was never stored.
    #[must_use]
    pub fn of(meta: &ObjectMeta, manager: Option<&Manager>) -> Option<Self> {
        let none = std::collections::BTreeMap::new();
        let mark =
            |map: &Option<std::collections::BTreeMap<String, String>>, key: String| map.as_ref()?.get(&key).cloned();
        Some(Self {
            uid: Uid::of(meta)?,
            resource_version: meta.resource_version.clone().unwrap_or_default(),
            deleting_since: meta.deletion_timestamp.clone(),
            finalizers: meta.finalizers.clone().unwrap_or_default(),
            owners: meta.owner_references.iter().flatten().filter_map(|r| Uid::new(&r.uid).ok()).collect(),
            markers: markers::read(meta.labels.as_ref().unwrap_or(&none), meta.annotations.as_ref().unwrap_or(&none)),
            label: manager.and_then(|m| mark(&meta.labels, m.parent_label())),
            back_pointer: manager.and_then(|m| mark(&meta.annotations, m.back_pointer_annotation())),
            wanted_by: manager.and_then(|m| ownership::wanted_by(m, meta)).map(Box::new),
        })
    }

    /// Whether its deletion was accepted and something still keeps it.
    #[must_use]
    pub fn is_terminating(&self) -> bool {
        self.deleting_since.is_some()
    }

    /// Whose the object is, judged by its marks.
    #[must_use]
    pub fn claim(&self, parent: &ParentRef, id: &ObjectId) -> Claim {
        ownership::judge_marks(parent, id, self.label.as_deref(), self.back_pointer.as_deref())
    }

    /// Whether the object may be deleted under `authority`.
    #[must_use]
    pub fn is_ours(&self, authority: &Authority, id: &ObjectId) -> bool {
        match authority {
            Authority::Caller => true,
            Authority::Marks { parent, .. } => self.claim(parent, id).is_ours(),
        }
    }
}
