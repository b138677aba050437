use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{BackPointer, Unreadable};
use crate::{
    manager::Manager,
    object::{LiveRef, ObjectId, ParentRef},
};

/// Whose an object is, by its marks. Only [`Claim::Ours`] allows a write or a DELETE, and the inventory has to agree.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Claim {
    /// The back-pointer names this parent's incarnation and this object.
    Ours {
        /// The label is missing or names another parent: watches do not see the object. Mark it again.
        label_missing: bool,
    },
    /// The back-pointer names this object and another parent of the same manager.
    OtherParent {
        /// That parent.
        parent: LiveRef,
        /// It is this parent by identity and another incarnation by UID, as after a restore from a backup. Explicit
        /// relinking can make the object ours.
        restored: bool,
    },
    /// The back-pointer names another object: it was copied here, and claims nothing.
    Copied {
        /// The object it was written for.
        names: ObjectId,
    },
    /// There is no back-pointer.
    Unmarked {
        /// The label with this parent's UID is there all the same: copied, or the annotation was stripped.
        labelled: bool,
    },
    /// There is a back-pointer that cannot be read. Not ours, and not anybody's to take either.
    Unreadable(Unreadable),
}

/// Whose the object is, for a person.
impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ours { .. } => f.write_str("ours"),
            Self::OtherParent { parent, .. } => write!(f, "managed for {parent}"),
            Self::Copied { names } => write!(f, "not ours (it carries a copy of the marks of {names})"),
            Self::Unmarked { .. } => f.write_str("not ours"),
            Self::Unreadable(reason) => write!(f, "of unknown ownership ({reason})"),
        }
    }
}

impl Claim {
    /// Whether the object is this parent's.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        matches!(self, Self::Ours { .. })
    }
}

/// Whose the object `id` with the live metadata `meta` is, as seen by `parent`.
///
/// Only the annotation counts: a label is a selector for watches, and owner references are a net. Versions and
/// plurals are hints and not compared. `id` has to be the identity under which the object is recorded: an object
/// that was marked under one API group and is now read under another is judged by the former.
#[must_use]
pub fn judge(manager: &Manager, parent: &ParentRef, id: &ObjectId, meta: &ObjectMeta) -> Claim {
    let label = meta.labels.as_ref().and_then(|labels| labels.get(&manager.parent_label()));
    let annotation = meta.annotations.as_ref().and_then(|all| all.get(&manager.back_pointer_annotation()));
    judge_marks(parent, id, label.map(String::as_str), annotation.map(String::as_str))
}

/// [`judge`] for a caller that kept only the two marks: the manager's label and its back-pointer annotation.
#[must_use]
pub fn judge_marks(parent: &ParentRef, id: &ObjectId, label: Option<&str>, annotation: Option<&str>) -> Claim {
    let labelled = label.is_some_and(|value| value == parent.uid.as_str());
    let Some(text) = annotation else { return Claim::Unmarked { labelled } };
    match BackPointer::decode(text) {
        Err(reason) => Claim::Unreadable(reason),
        Ok(pointer) if pointer.object() != id => Claim::Copied { names: pointer.object().clone() },
        Ok(pointer) => {
            let same_identity = pointer.parent().id == parent.id;
            if same_identity && pointer.parent().uid == parent.uid {
                Claim::Ours { label_missing: !labelled }
            } else {
                Claim::OtherParent { parent: pointer.parent().clone(), restored: same_identity }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ownership::{
        mark,
        testing::{any_id, any_parent, id, manager, parent, uid},
    };

    fn marked(parent: &ParentRef, object: &ObjectId) -> ObjectMeta {
        let mut meta = ObjectMeta::default();
        mark(&manager(), &BackPointer::new(parent, object), &mut meta).unwrap();
        meta
    }

    #[test]
    fn c31_s15_copied_marks_are_no_claim() {
        let original = id("ConfigMap b/original");
        let meta = marked(&parent(), &original);
        assert_eq!(judge(&manager(), &parent(), &original, &meta), Claim::Ours { label_missing: false });
        for copy in ["ConfigMap b/copy", "ConfigMap c/original", "Secret b/original"] {
            let claim = judge(&manager(), &parent(), &id(copy), &meta);
            assert_eq!(claim, Claim::Copied { names: original.clone() });
        }
        let label_only = ObjectMeta { annotations: None, ..meta };
        assert_eq!(judge(&manager(), &parent(), &original, &label_only), Claim::Unmarked { labelled: true });
        assert_eq!(
            judge(&manager(), &parent(), &original, &ObjectMeta::default()),
            Claim::Unmarked { labelled: false }
        );
    }

    #[test]
    fn s14_a_stripped_label_does_not_hide_ownership_and_a_changed_annotation_ends_it() {
        let object = id("ConfigMap b/x");
        let mut meta = marked(&parent(), &object);
        meta.labels = None;
        assert_eq!(judge(&manager(), &parent(), &object, &meta), Claim::Ours { label_missing: true });
        meta.annotations.as_mut().unwrap().insert(manager().back_pointer_annotation(), "{".into());
        assert!(matches!(judge(&manager(), &parent(), &object, &meta), Claim::Unreadable(_)));
    }

    #[test]
    fn c05_a_restored_parent_is_told_from_another_one() {
        let object = id("ConfigMap b/x");
        let (mut restored, mut other) = (parent(), parent());
        restored.uid = uid("p-2");
        other.id = id("GitTrack.faros.pusher.com a/other");
        let meta = marked(&parent(), &object);
        for (now, restored) in [(restored, true), (other, false)] {
            let claim = judge(&manager(), &now, &object, &meta);
            let found = LiveRef::new(parent().id, parent().uid);
            assert_eq!(claim, Claim::OtherParent { parent: found, restored });
        }
    }

    #[test]
    fn another_managers_marks_are_not_read() {
        let object = id("ConfigMap b/x");
        let theirs = Manager::new("other.example.com").unwrap();
        let claim = judge(&theirs, &parent(), &object, &marked(&parent(), &object));
        assert_eq!(claim, Claim::Unmarked { labelled: false });
    }

    proptest! {
        #[test]
        fn ours_means_that_every_part_agrees(
            written_parent in any_parent(), asking_parent in any_parent(),
            written in any_id(), live in any_id(),
            same_parent: bool, same_uid: bool, same_object: bool,
        ) {
            let mut asking = if same_parent { written_parent.clone() } else { asking_parent.clone() };
            if !same_uid { asking.uid = asking_parent.uid; }
            let live = if same_object { written.clone() } else { live };
            let claim = judge(&manager(), &asking, &live, &marked(&written_parent, &written));
            let agree = asking.id == written_parent.id && asking.uid == written_parent.uid && live == written;
            prop_assert_eq!(claim.is_ours(), agree);
            prop_assert_eq!(matches!(claim, Claim::Copied { .. }), live != written);
        }
    }
}
