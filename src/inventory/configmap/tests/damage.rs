//! Records that somebody or something has spoilt.

use k8s_openapi::{ByteString, api::core::v1::ConfigMap};
use proptest::prelude::*;

use super::{super::head::Head as _, *};
use crate::inventory::{
    Damage, Error,
    configmap::RootHead,
    testing::{entry, id, inventory, parent},
};

async fn damaged(store: &ConfigMapStore, parent: &ParentRef) -> (Snapshot, Vec<Damage>) {
    match store.load(parent).await.unwrap() {
        Loaded::Damaged { snapshot, damage } if !damage.is_empty() => (snapshot, damage),
        other => panic!("{other:?}"),
    }
}

fn entry_key(name: &str) -> String {
    format!("entry.{}", id(name).stable_id())
}

#[tokio::test]
async fn s09_one_bad_entry_is_named_and_kept_and_the_rest_is_read() {
    let (model, parent) = (Model::default(), parent("a", "1"));
    let store = store(&model, Limits::KUBERNETES);
    create(&store, &inventory(&parent, 3)).await;
    let (name, key) = (root_name(&parent, Slot::A), entry_key("n2"));
    let edit = |object: &mut ConfigMap| {
        let text = object.data.as_mut().unwrap().get_mut(&key).unwrap();
        *text = text.replace("intended", "recorded");
    };
    model.tamper(&name, edit);
    let (snapshot, damage) = damaged(&store, &parent).await;
    assert_eq!(damage.len(), 1);
    assert_eq!(damage[0].place, format!("{name}/{key}"));
    assert_eq!((&damage[0].id, damage[0].stable_id), (&Some(id("n2")), Some(id("n2").stable_id())));
    assert_eq!(snapshot.inventory.len(), 2);
    // What hides depends on n1, and n1 says so.
    assert_eq!(snapshot.inventory.get(&id("n1")).unwrap().dependents, 1);
    assert_eq!(snapshot.inventory.get(&id("n0")).unwrap().dependents, 1);
    // A save keeps it as it was, whatever else it changes.
    let raw = model.object(&name).unwrap().data.unwrap()[&key].clone();
    let mut changed = snapshot.inventory.clone();
    changed.insert(entry("new"));
    changed.remove(&id("n0"));
    let version = store.save(&changed, replace(&snapshot.version)).await.unwrap();
    assert_eq!(model.object(&name).unwrap().data.unwrap()[&key], raw);
    let (snapshot, damage) = damaged(&store, &parent).await;
    assert_eq!(damage[0].id, Some(id("n2")));
    assert_eq!(snapshot.inventory.get(&id("n1")).unwrap().dependents, 1);
    // An entry written under its identity takes its place.
    store.save(&inventory(&parent, 3), replace(&version)).await.unwrap();
    assert_eq!(found(&store, &parent).await.inventory, counted(&inventory(&parent, 3)));
}

#[tokio::test]
async fn a_record_speaks_for_no_parent_but_the_one_it_is_stored_for() {
    let (model, parent, victim) = (Model::default(), parent("a", "1"), parent("victim", "2"));
    let store = store(&model, Limits::KUBERNETES);
    create(&store, &inventory(&parent, 3)).await;
    // Checksums are no signatures: whoever may write ConfigMaps can make one that fits.
    let naming = ConfigMapFormat::new(manager()).naming(&parent);
    let head = RootHead::new(&Inventory { parent: victim, ..inventory(&parent, 0) }, 1);
    let texts = head.texts(&naming.sealer).unwrap();
    model.tamper(&naming.root(Slot::A), |object| object.data = Some(texts.clone()));
    match store.load(&parent).await {
        Err(Error::Unreadable { problem, .. }) => assert!(problem.contains("victim"), "{problem}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn s09_an_unreadable_reason_concerns_the_entries_that_need_it() {
    let (model, parent) = (Model::default(), parent("a", "1"));
    let store = store(&model, Limits::KUBERNETES);
    create(&store, &inventory(&parent, 3)).await;
    model.tamper(&root_name(&parent, Slot::A), |object| {
        let texts = object.data.as_mut().unwrap();
        let reason = texts.iter_mut().find(|(key, _)| key.starts_with("requirement.")).unwrap().1;
        *reason = reason.replace("depends-on", "depends-by");
    });
    let (snapshot, damage) = damaged(&store, &parent).await;
    assert_eq!(snapshot.inventory.entries().map(|e| &e.id).collect::<Vec<_>>(), [&id("n0")]);
    assert_eq!(damage.iter().map(|d| d.id.clone().unwrap()).collect::<Vec<_>>().len(), 2);
    assert_eq!(snapshot.inventory.get(&id("n0")).unwrap().dependents, 1);
}

#[tokio::test]
async fn s09_a_removed_entry_is_missed_by_this_and_every_later_load() {
    for limits in [Limits::KUBERNETES, TINY_PLAIN] {
        let (model, parent) = (Model::default(), parent("a", "1"));
        let store = store(&model, limits);
        create(&store, &inventory(&parent, 10)).await;
        let holder = model
            .names()
            .into_iter()
            .find(|name| model.object(name).unwrap().data.unwrap().contains_key(&entry_key("n5")));
        model.tamper(&holder.unwrap(), |object| {
            object.data.as_mut().unwrap().remove(&entry_key("n5")).unwrap();
        });
        let (snapshot, damage) = damaged(&store, &parent).await;
        assert!(damage[0].problem.starts_with("1 of"), "{damage:?}");
        assert_eq!(snapshot.inventory.get(&id("n4")).unwrap().dependents, 1);
        let mut changed = snapshot.inventory.clone();
        changed.entries_mut().for_each(|entry| entry.recreations = 1);
        let version = store.save(&changed, replace(&snapshot.version)).await.unwrap();
        assert_eq!(damaged(&store, &parent).await.1, damage);
        let (snapshot, _) = damaged(&store, &parent).await;
        assert_eq!(snapshot.inventory.get(&id("n4")).unwrap().dependents, 1);
        store.delete(&parent, &version).await.unwrap();
        assert_eq!(model.names(), NONE);
    }
}

#[tokio::test]
async fn an_older_text_of_an_entry_is_noticed() {
    let (model, parent) = (Model::default(), parent("a", "1"));
    let store = store(&model, Limits::KUBERNETES);
    let version = create(&store, &inventory(&parent, 2)).await;
    let (name, key) = (root_name(&parent, Slot::A), entry_key("n1"));
    let old = model.object(&name).unwrap().data.unwrap()[&key].clone();
    let mut changed = inventory(&parent, 2);
    changed.get_mut(&id("n1")).unwrap().recreations = 1;
    store.save(&changed, replace(&version)).await.unwrap();
    model.tamper(&name, |object| {
        object.data.as_mut().unwrap().insert(key, old);
    });
    let (_, damage) = damaged(&store, &parent).await;
    assert!(damage[0].problem.contains("are not the"), "{damage:?}");
}

#[tokio::test]
async fn a_missing_shard_is_damage_and_is_never_forgotten() {
    let (model, parent) = (Model::default(), parent("a", "1"));
    let store = store(&model, TINY);
    create(&store, &inventory(&parent, 20)).await;
    let shard = model.names().into_iter().find(|name| !name.ends_with("-a")).unwrap();
    model.vanish(&shard);
    let (snapshot, damage) = damaged(&store, &parent).await;
    assert_eq!(damage[0].place, shard);
    let lost = 20 - snapshot.inventory.len();
    assert!(lost > 0);
    let hidden = |inventory: &Inventory| {
        let counts = inventory.count_dependents();
        inventory.entries().filter(|e| e.dependents > counts.get(&e.id.stable_id()).copied().unwrap_or(0)).count()
    };
    let hiding = hidden(&snapshot.inventory);
    assert!(hiding > 0);
    // Without leave to create, nothing can be put into it; with it, the record moves, and still knows.
    let error = store.save(&inventory(&parent, 20), replace(&snapshot.version)).await.unwrap_err();
    assert!(matches!(error, Error::Unstorable { .. }), "{error}");
    let version = store.save(&snapshot.inventory, replace(&snapshot.version).renew(true)).await.unwrap();
    let (snapshot, damage) = damaged(&store, &parent).await;
    assert!(damage[0].problem.contains("was missing"), "{damage:?}");
    assert_eq!(hidden(&snapshot.inventory), hiding);
    store.delete(&parent, &version).await.unwrap();
    assert_eq!(model.names(), NONE);
}

#[tokio::test]
async fn s09_a_record_that_was_completed_by_other_means_is_written_afresh() {
    for limits in [Limits::KUBERNETES, TINY, TINY_PLAIN] {
        let (model, parent) = (Model::default(), parent("a", "1"));
        let store = store(&model, limits);
        create(&store, &inventory(&parent, 20)).await;
        let root = root_name(&parent, Slot::A);
        match model.names().into_iter().find(|name| *name != root) {
            Some(shard) => model.vanish(&shard),
            None => model.tamper(&root, |object| {
                let plain = object.data.as_mut().unwrap().remove(&entry_key("n5"));
                for ByteString(packed) in object.binary_data.iter_mut().flat_map(|data| data.values_mut()) {
                    packed.truncate(packed.len() / 2);
                }
                assert!(plain.is_some() || object.binary_data.is_some(), "{limits:?}: {object:?}");
            }),
        }
        let (snapshot, _) = damaged(&store, &parent).await;
        // Not by a save that only renews.
        store.save(&snapshot.inventory, replace(&snapshot.version).renew(true)).await.unwrap();
        damaged(&store, &parent).await;
        let whole = inventory(&parent, 18);
        // Where nothing can be created, the damage stays, and nothing is lost.
        model.terminate_namespace();
        let (snapshot, _) = damaged(&store, &parent).await;
        store.save(&whole, replace(&snapshot.version).heal(true)).await.unwrap();
        let (snapshot, _) = damaged(&store, &parent).await;
        assert_eq!(snapshot.inventory.len(), 18);
        // The same objects where something can be created.
        let elsewhere = Model::default();
        model.names().into_iter().for_each(|name| elsewhere.put(model.object(&name).unwrap()));
        let store = self::store(&elsewhere, limits);
        let (snapshot, _) = damaged(&store, &parent).await;
        let version = store.save(&whole, replace(&snapshot.version).heal(true)).await.unwrap();
        assert_eq!(found(&store, &parent).await.inventory, counted(&whole));
        store.save(&inventory(&parent, 3), replace(&version)).await.unwrap();
        assert_eq!(found(&store, &parent).await.inventory, counted(&inventory(&parent, 3)));
        assert_eq!(store.parents(None).await.unwrap(), [parent]);
    }
}

#[tokio::test]
async fn unreadable_compressed_entries_are_set_aside_and_moved_along() {
    let (model, parent) = (Model::default(), parent("a", "1"));
    let store = store(&model, Limits { readable: 1000, target: 4000, half: 6000, hard: 20_000 });
    create(&store, &inventory(&parent, 200)).await;
    let shard = model.names().into_iter().find(|name| model.object(name).unwrap().binary_data.is_some()).unwrap();
    let mut spoilt = Vec::new();
    model.tamper(&shard, |object| {
        let ByteString(bytes) = object.binary_data.as_mut().unwrap().get_mut("entries.gz").unwrap();
        bytes.truncate(bytes.len() / 2);
        spoilt.clone_from(bytes);
    });
    let (snapshot, _) = damaged(&store, &parent).await;
    let others = model.names().len() - 2;
    assert!(others > 0 && snapshot.inventory.len() < 200 && snapshot.inventory.len() > 200 * others / (others + 1));
    let kept = |model: &Model| {
        let objects = model.names().into_iter().filter_map(|name| model.object(&name));
        let mut blobs = objects.flat_map(|object| object.binary_data.unwrap_or_default());
        blobs.any(|(key, bytes)| key.starts_with("quarantine.") && bytes.0 == spoilt)
    };
    let mut changed = snapshot.inventory.clone();
    changed.entries_mut().for_each(|entry| entry.recreations = 1);
    store.save(&changed, replace(&snapshot.version)).await.unwrap();
    assert!(kept(&model));
    let (snapshot, damage) = damaged(&store, &parent).await;
    assert_eq!(snapshot.inventory.len(), changed.len());
    assert!(damage[0].place.contains("quarantine."), "{damage:?}");
    model.delete_by_hand(&root_name(&parent, Slot::A));
    let (snapshot, _) = damaged(&store, &parent).await;
    store.save(&snapshot.inventory, replace(&snapshot.version).renew(true)).await.unwrap();
    assert!(kept(&model) && !model.names().contains(&shard));
    assert!(!damaged(&store, &parent).await.0.terminating);
}

#[tokio::test]
async fn s12_what_is_not_a_record_of_this_parent_is_left_alone() {
    let (model, a, b) = (Model::default(), parent("a", "1"), parent("b", "1"));
    let store = store(&model, Limits::KUBERNETES);
    create(&store, &inventory(&b, 2)).await;
    let of_b = model.object(&root_name(&b, Slot::A)).unwrap();
    let mut future = of_b.clone();
    future.data.as_mut().unwrap().values_mut().for_each(|text| *text = text.replace("\"v1\"", "\"v9\""));
    let foreign = |data| ConfigMap { data, ..ConfigMap::default() };
    for (object, says) in [
        (foreign(None), "holds no inventory"),
        (foreign(Some(std::collections::BTreeMap::from([("inventory".into(), "{}".into())]))), "checksum"),
        (of_b, "checksum"),
        (future, "\"v9\" is not known"),
    ] {
        let mut object = object;
        object.metadata.name = Some(root_name(&a, Slot::A));
        model.put(object.clone());
        let before = model.object(&root_name(&a, Slot::A));
        let error = store.load(&a).await.unwrap_err();
        assert!(matches!(&error, Error::Unreadable { problem, .. } if problem.contains(says)), "{error}");
        assert!(matches!(store.save(&inventory(&a, 1), SaveOptions::create()).await, Err(Error::Unreadable { .. })));
        assert_eq!(model.object(&root_name(&a, Slot::A)), before);
    }
}

#[tokio::test]
async fn entries_of_a_root_that_comes_back_are_united_in() {
    let (model, parent) = (Model::default(), parent("a", "1"));
    let store = store(&model, Limits::KUBERNETES);
    create(&store, &inventory(&parent, 5)).await;
    let (a, b) = (root_name(&parent, Slot::A), root_name(&parent, Slot::B));
    let old = model.object(&a).unwrap();
    model.delete_by_hand(&a);
    let mut newer = inventory(&parent, 4);
    newer.get_mut(&id("n1")).unwrap().recreations = 1;
    let version = found(&store, &parent).await.version;
    store.save(&newer, replace(&version).renew(true)).await.unwrap();
    // A backup brings the first root back beside the second: nothing of either is forgotten, the newer one is right.
    model.put(old);
    let snapshot = found(&store, &parent).await;
    newer.insert(inventory(&parent, 5).get(&id("n4")).unwrap().clone());
    assert_eq!(snapshot.inventory, counted(&newer));
    store.save(&newer, replace(&snapshot.version)).await.unwrap();
    assert_eq!(model.names(), [b]);
    assert_eq!(found(&store, &parent).await.inventory, counted(&newer));
}

#[tokio::test]
async fn a_replaced_root_whose_successor_is_gone_is_not_the_whole_truth() {
    let (model, parent) = (Model::default(), parent("a", "1"));
    let store = store(&model, Limits::KUBERNETES);
    create(&store, &inventory(&parent, 2)).await;
    let a = root_name(&parent, Slot::A);
    model.delete_by_hand(&a);
    let version = found(&store, &parent).await.version;
    // Cut off after the old root is superseded, before it is let go.
    model.cut(3, true);
    let _cut = store.save(&inventory(&parent, 3), replace(&version).renew(true)).await;
    model.heal();
    model.vanish(&root_name(&parent, Slot::B));
    let (snapshot, damage) = damaged(&store, &parent).await;
    assert!(damage[0].problem.contains("was replaced"), "{damage:?}");
    let version = store.save(&snapshot.inventory, replace(&snapshot.version)).await.unwrap();
    assert!(damaged(&store, &parent).await.1[0].problem.contains("was replaced"));
    store.delete(&parent, &version).await.unwrap();
    assert_eq!(model.names(), NONE);
}

#[tokio::test]
async fn a_foreign_object_under_the_other_name_does_not_hide_the_record() {
    let (model, parent) = (Model::default(), parent("a", "1"));
    let store = store(&model, Limits::KUBERNETES);
    create(&store, &inventory(&parent, 2)).await;
    let mut foreign = ConfigMap::default();
    foreign.metadata.name = Some(root_name(&parent, Slot::B));
    model.put(foreign);
    let (snapshot, damage) = damaged(&store, &parent).await;
    assert_eq!((snapshot.inventory.len(), damage[0].place.as_str()), (2, root_name(&parent, Slot::B).as_str()));
}

fn spoil(object: &mut ConfigMap, pick: &prop::sample::Index, at: &prop::sample::Index, byte: u8, cut: bool) {
    let texts = object.data.as_mut().unwrap();
    let binaries = object.binary_data.get_or_insert_default();
    let index = pick.index(texts.len() + binaries.len());
    let mutate = |bytes: &mut Vec<u8>| {
        if bytes.is_empty() {
            return;
        }
        let at = at.index(bytes.len());
        if cut { bytes.truncate(at) } else { bytes[at] = byte }
    };
    if let Some(text) = texts.values_mut().nth(index) {
        let mut bytes = text.clone().into_bytes();
        mutate(&mut bytes);
        *text = String::from_utf8_lossy(&bytes).into_owned();
    } else {
        let count = texts.len();
        mutate(&mut binaries.values_mut().nth(index - count).unwrap().0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn whatever_is_spoilt_nothing_is_made_up_and_nothing_goes_unnoticed(
        length in 0..25usize,
        limits in prop::sample::select(vec![0, 1, 2]),
        spoils in prop::collection::vec(any::<(prop::sample::Index, prop::sample::Index, prop::sample::Index, u8, bool)>(), 1..4),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (model, parent) = (Model::default(), parent("a", "1"));
            let store = store(&model, [Limits::KUBERNETES, TINY, TINY_PLAIN][limits]);
            let whole = counted(&inventory(&parent, length));
            create(&store, &whole).await;
            for (which, pick, at, byte, cut) in &spoils {
                let names = model.names();
                let name = &names[which.index(names.len())];
                model.tamper(name, |object| spoil(object, pick, at, *byte, *cut));
            }
            match store.load(&parent).await {
                Ok(Loaded::Found(snapshot)) => assert_eq!(snapshot.inventory, whole),
                Ok(Loaded::Damaged { snapshot, .. }) => {
                    let read = snapshot.inventory;
                    for entry in read.entries() {
                        assert_eq!(Some(entry), whole.get(&entry.id));
                    }
                    // What it takes to see that something hides: whoever lost a dependent says so.
                    let counts = read.count_dependents();
                    for entry in read.entries() {
                        let all = whole.get(&entry.id).unwrap().dependents;
                        assert!(entry.dependents == all && counts.get(&entry.id.stable_id()).copied().unwrap_or(0) <= all);
                    }
                    // And a save of what was read neither fails nor makes it look whole.
                    store.save(&read, replace(&snapshot.version)).await.unwrap();
                    let again = store.load(&parent).await.unwrap();
                    assert!(matches!(again, Loaded::Damaged { ref snapshot, .. } if snapshot.inventory == read));
                }
                Err(Error::Unreadable { .. }) => {}
                other => panic!("{other:?}"),
            }
        });
    }
}
