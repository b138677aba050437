use std::collections::BTreeSet;

use json_patch::Patch;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{BackPointer, Error, marks::Removal};
use crate::{
    manager::Manager,
    object::{LiveRef, ObjectId, ParentRef, Uid},
};

/// Between which parents of one manager an object may change hands.
///
/// A parent that desires an object which another parent has asks for it, by an annotation on the object. Nothing follows
/// from that until the other parent does not desire it any more: then it marks the object for the one that asks, where it
/// would have deleted it. So the object lives on, and at no time is it nobody's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum HandOver {
    /// None: what is not desired any more is deleted.
    Never,
    /// Those in one namespace, and cluster-scoped ones among each other.
    #[default]
    SameNamespace,
    /// All. For clusters in which all parents are the administrator's: whoever may write one could otherwise keep what
    /// others give up.
    Anywhere,
}

impl HandOver {
    /// Whether an object of `from` may become one of `to`.
    #[must_use]
    pub fn admits(self, from: &ObjectId, to: &ObjectId) -> bool {
        match self {
            Self::Never => false,
            Self::SameNamespace => from.namespace() == to.namespace(),
            Self::Anywhere => true,
        }
    }
}

/// The parent that asks for the object with this metadata, if one does.
#[must_use]
pub fn wanted_by(manager: &Manager, meta: &ObjectMeta) -> Option<LiveRef> {
    let pointer = request(manager, meta)?;
    let object = pointer.object();
    let named = meta.name.as_deref() == Some(object.name()) && meta.namespace.as_deref() == object.namespace();
    named.then(|| pointer.parent().clone())
}

fn request(manager: &Manager, meta: &ObjectMeta) -> Option<BackPointer> {
    BackPointer::decode(meta.annotations.as_ref()?.get(&manager.wanted_annotation())?).ok()
}

/// The JSON patch by which the parent that `pointer` names asks for an object that `holder` has. Empty if it does so already,
/// or if another one asked first. The patch is guarded as [`strip_patch`](super::strip_patch) is.
///
/// # Errors
/// [`Error::NotLive`] if `live` has no UID.
pub fn ask_patch(
    manager: &Manager,
    pointer: &BackPointer,
    holder: &LiveRef,
    live: &ObjectMeta,
) -> Result<Patch, Error> {
    let mut change = Removal::default();
    let asks = request(manager, live);
    // What the holder once asked by is answered.
    if asks.as_ref().is_none_or(|asks| asks.object() != pointer.object() || asks.parent() == holder) {
        change.replace("annotations", live.annotations.as_ref(), &manager.wanted_annotation(), &pointer.encode());
    }
    change.guarded(pointer.object(), live)
}

/// The JSON patch that marks an object of `parent` for the parent that asks for it.
///
/// The label and the back-pointer change; references to `owners` (the UIDs of the parent's proxies) and to the parent itself,
/// and what the parent said of the object go. The patch is guarded as [`strip_patch`](super::strip_patch) is: of two
/// parents, one has the object before it, and the other one after.
///
/// # Errors
/// [`Error::NotWanted`] if no other parent asks for it, [`Error::NotLive`] if `live` has no UID.
pub fn hand_over_patch(
    manager: &Manager,
    parent: &ParentRef,
    owners: &BTreeSet<Uid>,
    object: &ObjectId,
    live: &ObjectMeta,
) -> Result<Patch, Error> {
    let asks = request(manager, live).filter(|asks| asks.object() == object && asks.parent().id != parent.id);
    let asks = asks.ok_or_else(|| Error::NotWanted { object: object.clone() })?;
    let hold = manager.hold_finalizer(&parent.id, &parent.uid);
    let is_ours = |uid: &str| uid == parent.uid.as_str() || owners.iter().any(|owner| owner.as_str() == uid);
    let mut change = Removal::default().references(live, is_ours).finalizers(live, |name| name == hold);
    for key in [manager.retain_annotation(), manager.waive_annotation()] {
        if let Some(value) = live.annotations.as_ref().and_then(|all| all.get(&key)) {
            change.value("annotations", &key, value);
        }
    }
    change.replace("labels", live.labels.as_ref(), &manager.parent_label(), asks.parent().uid.as_str());
    change.replace("annotations", live.annotations.as_ref(), &manager.back_pointer_annotation(), &asks.encode());
    change.guarded(object, live)
}

/// The JSON patch that takes what `parent` left on an object that is not its own: references to `owners`, and its request
/// for it. The patch is guarded as [`strip_patch`](super::strip_patch) is, and a request is taken off only while the object
/// is whose it was: one that was handed over in between fails it.
///
/// # Errors
/// [`Error::NotLive`] if `live` has no UID.
pub fn withdraw_patch(
    manager: &Manager,
    parent: &ParentRef,
    owners: &BTreeSet<Uid>,
    object: &ObjectId,
    live: &ObjectMeta,
) -> Result<Patch, Error> {
    let mut change = Removal::default().references(live, |uid| owners.iter().any(|owner| owner.as_str() == uid));
    let key = manager.wanted_annotation();
    if request(manager, live).is_some_and(|asks| *asks.parent() == parent.live())
        && let Some(text) = live.annotations.as_ref().and_then(|all| all.get(&key))
    {
        let pointer = manager.back_pointer_annotation();
        if let Some(held) = live.annotations.as_ref().and_then(|all| all.get(&pointer)) {
            change.test("annotations", &pointer, held);
        }
        change.value("annotations", &key, text);
    }
    change.guarded(object, live)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::ownership::{
        Claim, judge, mark,
        testing::{id, manager, parent, uid},
    };

    fn apply(meta: &ObjectMeta, patch: &Patch) -> ObjectMeta {
        let mut object = serde_json::json!({ "metadata": meta });
        json_patch::patch(&mut object, patch).unwrap();
        serde_json::from_value(object["metadata"].take()).unwrap()
    }

    fn other(name: &str) -> ParentRef {
        let id = ObjectId::new("faros.pusher.com", "GitTrack", Some("a"), name).unwrap();
        ParentRef { id, uid: uid(name), ..parent() }
    }

    fn child() -> (ObjectId, ObjectMeta) {
        let object = id("ConfigMap b/x");
        let mut meta = ObjectMeta {
            name: Some("x".into()),
            namespace: Some("b".into()),
            uid: Some("u".into()),
            ..ObjectMeta::default()
        };
        mark(&manager(), &BackPointer::new(&parent(), &object), &mut meta).unwrap();
        (object, meta)
    }

    #[test]
    fn c32_an_object_goes_from_one_parent_to_the_other_in_one_step() {
        let (object, mut meta) = child();
        meta.annotations.get_or_insert_default().insert("example.com/note".into(), "stays".into());
        let (manager, taker) = (manager(), other("taker"));
        let pointer = BackPointer::new(&taker, &object);
        let asked = apply(&meta, &ask_patch(&manager, &pointer, &parent().live(), &meta).unwrap());
        assert_eq!(wanted_by(&manager, &asked), Some(taker.live()));
        assert!(judge(&manager, &parent(), &object, &asked).is_ours(), "a wish changes nothing");
        assert!(ask_patch(&manager, &pointer, &parent().live(), &asked).unwrap().0.is_empty());

        let handed = hand_over_patch(&manager, &parent(), &BTreeSet::new(), &object, &asked).unwrap();
        let handed = apply(&asked, &handed);
        assert_eq!(judge(&manager, &taker, &object, &handed), Claim::Ours { label_missing: false });
        assert!(!judge(&manager, &parent(), &object, &handed).is_ours());
        assert_eq!(handed.annotations.as_ref().unwrap()["example.com/note"], "stays");
        // The next one asks in place of the one that has it now.
        let next = BackPointer::new(&other("next"), &object);
        let again = apply(&handed, &ask_patch(&manager, &next, &taker.live(), &handed).unwrap());
        assert_eq!(wanted_by(&manager, &again), Some(other("next").live()));
    }

    #[test]
    fn who_asks_first_is_asked_for_and_may_withdraw() {
        let (object, meta) = child();
        let (manager, first, second) = (manager(), other("first"), other("second"));
        let ask = |by: &ParentRef, meta: &ObjectMeta| {
            ask_patch(&manager, &BackPointer::new(by, &object), &parent().live(), meta).unwrap()
        };
        let asked = apply(&meta, &ask(&first, &meta));
        assert!(ask(&second, &asked).0.is_empty());
        let nothing = BTreeSet::new();
        assert!(withdraw_patch(&manager, &second, &nothing, &object, &asked).unwrap().0.is_empty());
        let withdrawn = apply(&asked, &withdraw_patch(&manager, &first, &nothing, &object, &asked).unwrap());
        assert_eq!(withdrawn, meta);
        // It is theirs already when they withdraw: they have to look again.
        let withdraw = withdraw_patch(&manager, &first, &nothing, &object, &asked).unwrap();
        let handed = hand_over_patch(&manager, &parent(), &nothing, &object, &asked).unwrap();
        let mut handed = serde_json::json!({ "metadata": apply(&asked, &handed) });
        assert!(json_patch::patch(&mut handed, &withdraw).is_err());
        assert!(hand_over_patch(&manager, &parent(), &nothing, &object, &meta).is_err());
    }

    #[test]
    fn a_request_that_was_copied_asks_for_nothing() {
        let (object, meta) = child();
        let pointer = BackPointer::new(&other("taker"), &id("ConfigMap b/y"));
        let copied = BTreeMap::from([(manager().wanted_annotation(), pointer.encode())]);
        let meta = ObjectMeta { annotations: Some(copied), ..meta };
        assert_eq!(wanted_by(&manager(), &meta), None);
        assert!(hand_over_patch(&manager(), &parent(), &BTreeSet::new(), &object, &meta).is_err());
    }

    #[test]
    fn between_whom_is_the_authors_word() {
        let (a, b, cluster) = (id("ConfigMap a/x"), id("ConfigMap b/x"), id("Namespace n"));
        assert!(HandOver::SameNamespace.admits(&a, &a) && HandOver::SameNamespace.admits(&cluster, &cluster));
        assert!(!HandOver::SameNamespace.admits(&a, &b) && !HandOver::SameNamespace.admits(&a, &cluster));
        assert!(HandOver::Anywhere.admits(&a, &b) && !HandOver::Never.admits(&a, &a));
    }
}
