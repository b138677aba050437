use std::collections::{BTreeMap, BTreeSet};

use json_patch::{AddOperation, Patch, PatchOperation, RemoveOperation, TestOperation, jsonptr::PointerBuf};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use super::{BackPointer, Error, KeyPlace};
use crate::{
    manager::Manager,
    object::{ObjectId, ParentRef, Uid},
};

/// Writes the back-pointer, and the label with its parent's UID, into the metadata of the object that it is for; nothing
/// else changes.
///
/// # Errors
/// [`Error::UidNotALabel`] if the parent's UID cannot be a label's value.
pub fn mark(manager: &Manager, pointer: &BackPointer, meta: &mut ObjectMeta) -> Result<(), Error> {
    let uid = pointer.parent().uid.as_str();
    if !is_label_value(uid) {
        return Err(Error::UidNotALabel { parent: pointer.parent().clone() });
    }
    meta.labels.get_or_insert_default().insert(manager.parent_label(), uid.to_owned());
    meta.annotations.get_or_insert_default().insert(manager.back_pointer_annotation(), pointer.encode());
    Ok(())
}

fn is_label_value(text: &str) -> bool {
    let ends = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    bytes.len() <= 63
        && ends(bytes.first())
        && ends(bytes.last())
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

/// Refuses a desired manifest that carries a label, annotation or finalizer under the manager's domain.
///
/// Such a manifest was dumped from a cluster, or claims to be what only the operator can say. Keys of other
/// tools pass: they are the manifest author's business.
///
/// # Errors
/// [`Error::ReservedKey`] with the first such key.
pub fn check_unmarked(manager: &Manager, object: &ObjectId, meta: &ObjectMeta) -> Result<(), Error> {
    let labels = meta.labels.iter().flat_map(|m| m.keys()).map(|key| (KeyPlace::Label, key));
    let annotations = meta.annotations.iter().flat_map(|m| m.keys()).map(|key| (KeyPlace::Annotation, key));
    let finalizers = meta.finalizers.iter().flatten().map(|key| (KeyPlace::Finalizer, key));
    match labels.chain(annotations).chain(finalizers).find(|(_, key)| manager.owns_key(key)) {
        Some((place, key)) => Err(Error::ReservedKey { object: object.clone(), place, key: key.clone() }),
        None => Ok(()),
    }
}

/// The JSON patch that takes the references to `owners` off the object that `live` was read from.
///
/// Every operation names one item and is preceded by a test of it, and the patch tests the object's UID: a change by
/// somebody else in between fails it (422) as a whole. Read again then, and ask again. An empty patch means that
/// there is nothing to take off; do not send it.
///
/// # Errors
/// [`Error::NotLive`] if `live` has no UID.
pub fn strip_patch(object: &ObjectId, live: &ObjectMeta, owners: &BTreeSet<Uid>) -> Result<Patch, Error> {
    Removal::default().references(live, |uid| owners.iter().any(|owner| owner.as_str() == uid)).guarded(object, live)
}

/// The JSON patch that lets go of an object: it takes off everything that names this parent, and leaves the rest.
///
/// Goes: references to `owners` (the UIDs of the parent's proxies, past and present) and to the parent itself, the
/// label with the parent's UID, the back-pointer to the parent's incarnation, and the parent's hold finalizer. Stays:
/// what others wrote, and marks that name another parent or cannot be read. Once it has been applied, neither
/// the deletion of a proxy nor of the parent reaches the object. The patch is guarded as [`strip_patch`] is.
///
/// # Errors
/// [`Error::NotLive`] if `live` has no UID.
pub fn detach_patch(
    manager: &Manager,
    parent: &ParentRef,
    owners: &BTreeSet<Uid>,
    object: &ObjectId,
    live: &ObjectMeta,
) -> Result<Patch, Error> {
    let is_ours = |uid: &str| uid == parent.uid.as_str() || owners.iter().any(|owner| owner.as_str() == uid);
    let hold = manager.hold_finalizer(&parent.id, &parent.uid);
    let mut removal = Removal::default().references(live, is_ours).finalizers(live, |name| name == hold);

    let label = manager.parent_label();
    if let Some(value) = live.labels.as_ref().and_then(|all| all.get(&label))
        && value == parent.uid.as_str()
    {
        removal.value("labels", &label, value);
    }
    let annotation = manager.back_pointer_annotation();
    if let Some(text) = live.annotations.as_ref().and_then(|all| all.get(&annotation))
        && BackPointer::decode(text).is_ok_and(|pointer| pointer.parent().uid == parent.uid)
    {
        removal.value("annotations", &annotation, text);
        for key in [manager.retain_annotation(), manager.waive_annotation(), manager.wanted_annotation()] {
            if let Some(value) = live.annotations.as_ref().and_then(|all| all.get(&key)) {
                removal.value("annotations", &key, value);
            }
        }
    }
    removal.guarded(object, live)
}

/// The JSON patch that takes every key that the crate writes under `manager`'s domain off an object, whatever parent it
/// names, and the references to `owners`. For the end of a manager.
///
/// Only keys that `picks` picks go. What others wrote stays, and so do keys under the domain that the operator's author
/// added. The patch is guarded as [`strip_patch`] is.
///
/// # Errors
/// [`Error::NotLive`] if `live` has no UID.
pub fn clear_patch(
    manager: &Manager,
    owners: &BTreeSet<Uid>,
    picks: impl Fn(&str) -> bool,
    object: &ObjectId,
    live: &ObjectMeta,
) -> Result<Patch, Error> {
    let goes = |key: &str| manager.writes_key(key) && picks(key);
    let mut removal = Removal::default()
        .references(live, |uid| owners.iter().any(|owner| owner.as_str() == uid))
        .finalizers(live, goes);
    for (map, entries) in [("labels", &live.labels), ("annotations", &live.annotations)] {
        for (key, value) in entries.iter().flatten().filter(|(key, _)| goes(key)) {
            removal.value(map, key, value);
        }
    }
    removal.guarded(object, live)
}

/// Operations that each remove one item after testing that it is still the one that was read.
#[derive(Default)]
pub(super) struct Removal(Vec<PatchOperation>);

impl Removal {
    fn item(&mut self, remove: PointerBuf, test: PointerBuf, value: &str) {
        self.0.push(PatchOperation::Test(TestOperation { path: test, value: Value::String(value.to_owned()) }));
        self.0.push(PatchOperation::Remove(RemoveOperation { path: remove }));
    }

    /// Demands that a text still is as it was read.
    pub(super) fn test(&mut self, map: &str, key: &str, value: &str) {
        let path = PointerBuf::from_tokens(["metadata", map, key]);
        self.0.push(PatchOperation::Test(TestOperation { path, value: Value::String(value.to_owned()) }));
    }

    /// Puts another text in place of the one that was read, or where there is none.
    pub(super) fn replace(&mut self, map: &str, all: Option<&BTreeMap<String, String>>, key: &str, value: &str) {
        let path = PointerBuf::from_tokens(["metadata", map, key]);
        match all.and_then(|all| all.get(key)) {
            Some(before) => self.test(map, key, before),
            None if all.is_none() => {
                let (path, value) = (PointerBuf::from_tokens(["metadata", map]), Value::Object(serde_json::Map::new()));
                self.0.push(PatchOperation::Add(AddOperation { path, value }));
            }
            None => {}
        }
        self.0.push(PatchOperation::Add(AddOperation { path, value: Value::String(value.to_owned()) }));
    }

    pub(super) fn value(&mut self, map: &str, key: &str, value: &str) {
        let path = PointerBuf::from_tokens(["metadata", map, key]);
        self.item(path.clone(), path, value);
    }

    // Lists from the end, so that no removal moves an item that is still to be removed.

    pub(super) fn references(mut self, live: &ObjectMeta, ours: impl Fn(&str) -> bool) -> Self {
        for (index, reference) in live.owner_references.as_deref().unwrap_or_default().iter().enumerate().rev() {
            if ours(&reference.uid) {
                let index = index.to_string();
                let item = ["metadata", "ownerReferences", &index];
                let test = PointerBuf::from_tokens(item.into_iter().chain(["uid"]));
                self.item(PointerBuf::from_tokens(item), test, &reference.uid);
            }
        }
        self
    }

    pub(super) fn finalizers(mut self, live: &ObjectMeta, ours: impl Fn(&str) -> bool) -> Self {
        for (index, finalizer) in live.finalizers.as_deref().unwrap_or_default().iter().enumerate().rev() {
            if ours(finalizer) {
                let path = PointerBuf::from_tokens(["metadata", "finalizers", &index.to_string()]);
                self.item(path.clone(), path, finalizer);
            }
        }
        self
    }

    pub(super) fn guarded(self, object: &ObjectId, live: &ObjectMeta) -> Result<Patch, Error> {
        let uid = Uid::of(live).ok_or_else(|| Error::NotLive { object: object.clone() })?;
        if self.0.is_empty() {
            return Ok(Patch(Vec::new()));
        }
        let path = PointerBuf::from_tokens(["metadata", "uid"]);
        let guard = PatchOperation::Test(TestOperation { path, value: Value::String(uid.as_str().to_owned()) });
        Ok(Patch([guard].into_iter().chain(self.0).collect()))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
    use proptest::prelude::*;

    use super::*;
    use crate::ownership::{
        Claim, judge,
        testing::{id, manager, parent, uid},
    };

    fn apply(meta: &ObjectMeta, patch: &Patch) -> Result<ObjectMeta, json_patch::PatchError> {
        let mut object = serde_json::json!({ "metadata": meta });
        json_patch::patch(&mut object, patch)?;
        Ok(serde_json::from_value(object["metadata"].take()).unwrap())
    }

    fn references(uids: &[&str]) -> Vec<OwnerReference> {
        uids.iter().map(|uid| OwnerReference { uid: (*uid).into(), ..OwnerReference::default() }).collect()
    }

    #[test]
    fn c23_c31_manifests_with_our_keys_are_refused_and_foreign_ones_pass() {
        let object = id("ConfigMap b/x");
        let map = |key: String| Some(BTreeMap::from([(key, String::new())]));
        let label = ObjectMeta { labels: map(manager().parent_label()), ..ObjectMeta::default() };
        let annotation = ObjectMeta { annotations: map(manager().back_pointer_annotation()), ..ObjectMeta::default() };
        let finalizer = ObjectMeta { finalizers: Some(vec![manager().finalizer()]), ..ObjectMeta::default() };
        for (meta, wanted) in
            [(label, KeyPlace::Label), (annotation, KeyPlace::Annotation), (finalizer, KeyPlace::Finalizer)]
        {
            match check_unmarked(&manager(), &object, &meta) {
                Err(Error::ReservedKey { place, .. }) => assert_eq!(place, wanted),
                other => panic!("{other:?}"),
            }
        }
        let foreign = ObjectMeta {
            labels: map("app.kubernetes.io/instance".into()),
            annotations: map("argocd.argoproj.io/tracking-id".into()),
            ..ObjectMeta::default()
        };
        assert_eq!(check_unmarked(&manager(), &object, &foreign), Ok(()));
    }

    #[test]
    fn a_uid_that_is_no_label_value_is_refused_and_nothing_written() {
        for bad in ["-x", "a b", &"x".repeat(64)] {
            let parent = ParentRef { uid: uid(bad), ..parent() };
            let mut meta = ObjectMeta::default();
            let refused = mark(&manager(), &BackPointer::new(&parent, &id("ConfigMap b/x")), &mut meta);
            assert_eq!(refused, Err(Error::UidNotALabel { parent: parent.live() }));
            assert_eq!(meta, ObjectMeta::default());
        }
    }

    #[test]
    fn c51_every_key_of_the_manager_goes_and_nothing_else() {
        let object = id("ConfigMap b/x");
        let (manager, other) = (manager(), Manager::new("other.example.com").unwrap());
        let foreign = ObjectMeta {
            uid: Some("u".into()),
            labels: Some(BTreeMap::from([("app".into(), "x".into()), (other.parent_label(), "p-1".into())])),
            annotations: Some(BTreeMap::from([(format!("{manager}/authors-own"), "1".into())])),
            finalizers: Some(vec!["elsewhere.example.com/held".into(), format!("{manager}/authors-own")]),
            owner_references: Some(references(&["theirs"])),
            ..ObjectMeta::default()
        };
        let mut live = foreign.clone();
        mark(
            &manager,
            &BackPointer::new(&ParentRef { uid: uid("p-2"), ..parent() }, &id("ConfigMap b/copied-from")),
            &mut live,
        )
        .unwrap();
        for key in [manager.retain_annotation(), manager.group_kinds_annotation(), manager.inventory_annotation()] {
            live.annotations.as_mut().unwrap().insert(key, "1".into());
        }
        live.labels.as_mut().unwrap().insert(manager.inventory_label(), "1".into());
        let held = manager.hold_finalizer(&parent().id, &uid("p-3"));
        live.finalizers.as_mut().unwrap().extend([held.clone(), manager.applied_finalizer()]);
        live.owner_references.as_mut().unwrap().extend(references(&["proxy"]));
        let owners = BTreeSet::from([uid("proxy")]);

        let patch = clear_patch(&manager, &owners, |_| true, &object, &live).unwrap();
        assert_eq!(apply(&live, &patch).unwrap(), foreign);
        assert!(clear_patch(&manager, &owners, |_| true, &object, &foreign).unwrap().0.is_empty());
        let patch = clear_patch(&manager, &owners, |f| f == held, &object, &live).unwrap();
        assert_eq!(
            apply(&live, &patch).unwrap(),
            ObjectMeta {
                finalizers: live.finalizers.as_ref().map(|all| all.iter().filter(|f| **f != held).cloned().collect()),
                owner_references: foreign.owner_references,
                ..live.clone()
            },
            "only what was picked"
        );
    }

    #[test]
    fn c06_keeping_an_object_takes_off_every_tie_to_the_parent() {
        let object = id("ConfigMap b/x");
        let hold = manager().hold_finalizer(&parent().id, &parent().uid);
        let mut live = ObjectMeta {
            uid: Some("u".into()),
            owner_references: Some(references(&["proxy", "foreign", "p-1", "proxy"])),
            finalizers: Some(vec![hold.clone(), "other/x".into(), hold]),
            labels: Some(BTreeMap::from([("app".into(), "web".into())])),
            ..ObjectMeta::default()
        };
        mark(&manager(), &BackPointer::new(&parent(), &object), &mut live).unwrap();
        let owners = BTreeSet::from([uid("proxy")]);
        let patch = detach_patch(&manager(), &parent(), &owners, &object, &live).unwrap();
        let after = apply(&live, &patch).unwrap();
        assert_eq!(
            after,
            ObjectMeta {
                uid: Some("u".into()),
                owner_references: Some(references(&["foreign"])),
                finalizers: Some(vec!["other/x".into()]),
                labels: Some(BTreeMap::from([("app".into(), "web".into())])),
                annotations: Some(BTreeMap::new()),
                ..ObjectMeta::default()
            }
        );
        assert_eq!(judge(&manager(), &parent(), &object, &after), Claim::Unmarked { labelled: false });
        assert!(detach_patch(&manager(), &parent(), &owners, &object, &after).unwrap().0.is_empty());
    }

    #[test]
    fn marks_of_another_parent_and_unreadable_ones_stay() {
        let object = id("ConfigMap b/x");
        let other = ParentRef { uid: uid("p-2"), ..parent() };
        let mut live = ObjectMeta { uid: Some("u".into()), ..ObjectMeta::default() };
        mark(&manager(), &BackPointer::new(&other, &object), &mut live).unwrap();
        assert!(detach_patch(&manager(), &parent(), &BTreeSet::new(), &object, &live).unwrap().0.is_empty());
        live.annotations.as_mut().unwrap().insert(manager().back_pointer_annotation(), "?".into());
        assert!(detach_patch(&manager(), &other, &BTreeSet::new(), &object, &live).unwrap().0.len() == 3);
    }

    #[test]
    fn metadata_that_was_not_read_live_is_refused() {
        let refused = strip_patch(&id("ConfigMap b/x"), &ObjectMeta::default(), &BTreeSet::new());
        assert!(matches!(refused, Err(Error::NotLive { .. })));
    }

    proptest! {
        #[test]
        fn c22_a_change_in_between_fails_the_patch_or_costs_nobody_anything(
            read in proptest::collection::vec("[a-e]", 0..6),
            written in proptest::collection::vec("[a-e]", 0..6),
            ours in proptest::collection::btree_set("[a-e]", 0..3),
        ) {
            let meta = |list: &[String]| ObjectMeta {
                uid: Some("u".into()),
                owner_references: Some(references(&list.iter().map(String::as_str).collect::<Vec<_>>())),
                ..ObjectMeta::default()
            };
            let owners = ours.iter().map(|text| uid(text)).collect();
            let patch = strip_patch(&id("ConfigMap b/x"), &meta(&read), &owners).unwrap();
            let rest = |list: &[String]| list.iter().filter(|u| !ours.contains(*u)).cloned().collect::<Vec<_>>();
            let uids = |meta: ObjectMeta| {
                meta.owner_references.unwrap_or_default().into_iter().map(|r| r.uid).collect::<Vec<_>>()
            };
            prop_assert_eq!(uids(apply(&meta(&read), &patch).unwrap()), rest(&read));
            if let Ok(after) = apply(&meta(&written), &patch) {
                let after = uids(after);
                prop_assert_eq!(rest(&after), rest(&written));
            }
            let recreated = ObjectMeta { uid: Some("v".into()), ..meta(&read) };
            prop_assert!(patch.0.is_empty() || apply(&recreated, &patch).is_err());
        }
    }
}
