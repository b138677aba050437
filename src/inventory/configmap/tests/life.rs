//! The ordinary life of a record: what is stored, with how many calls.

use super::*;
use crate::{
    inventory::{
        Error,
        testing::{any_inventory, empty, entry, id, inventory, parent},
    },
    object::{ObjectId, ResourceKind, Scope, Uid},
};
use proptest::prelude::*;

#[tokio::test]
async fn conforms() {
    let model = Model::default();
    for limits in [Limits::KUBERNETES, Limits { readable: 3000, target: 30_000, half: 60_000, hard: 90_000 }] {
        crate::inventory::conformance::all(&store(&model, limits), &|name| parent(name, "1")).await;
        assert_eq!(model.names(), NONE);
    }
}

#[tokio::test]
async fn a_small_record_is_one_readable_object_and_one_write() {
    let (model, parent) = (Model::default(), parent("a", "1"));
    let store = store(&model, Limits::KUBERNETES);
    let mut inventory = inventory(&parent, 3);
    let version = create(&store, &inventory).await;
    let name = root_name(&parent, Slot::A);
    assert_eq!(model.names(), std::slice::from_ref(&name));
    let object = model.object(&name).unwrap();
    assert!(object.binary_data.is_none());
    assert_eq!(object.metadata.finalizers.clone().unwrap(), [manager().inventory_finalizer()]);
    assert_eq!(object.metadata.labels.clone().unwrap()[&manager().parent_label()], "1");
    assert_eq!(
        object.metadata.annotations.clone().unwrap()[&manager().inventory_annotation()],
        "GitTrack.example.com home/a"
    );
    let key = format!("entry.{}", id("n1").stable_id());
    assert!(
        object.data.clone().unwrap()[&key].starts_with(r#"{"kind":"ConfigMap","namespace":"elsewhere","name":"n1","#)
    );

    model.take_calls();
    inventory.get_mut(&id("n1")).unwrap().uid = Some(Uid::new("u").unwrap());
    let version = store.save(&inventory, replace(&version)).await.unwrap();
    assert_eq!(model.take_calls(), [format!("PATCH {name}")]);
    // Nothing changed, nothing written.
    let version = store.save(&inventory, replace(&version)).await.unwrap();
    assert_eq!(model.take_calls(), NONE);

    assert_eq!(found(&store, &parent).await.inventory, counted(&inventory));
    assert_eq!(model.take_calls().len(), 2);
    store.delete(&parent, &version).await.unwrap();
    assert_eq!(model.names(), NONE);
    assert_eq!(model.take_calls().len(), 3);
}

#[tokio::test]
async fn s16_c26_large_records_are_spread_with_headroom_and_one_change_is_one_write() {
    for length in [5_000, 20_000] {
        let (model, parent) = (Model::default(), parent("a", "1"));
        let store = store(&model, Limits::KUBERNETES);
        let mut inventory = inventory(&parent, length);
        for entry in inventory.entries_mut() {
            // What compresses badly: a random UID each.
            entry.uid = Some(Uid::new(entry.id.stable_id().to_string()).unwrap());
        }
        let version = create(&store, &inventory).await;
        assert!(model.names().len() > 2);
        for name in model.names() {
            let object = model.object(&name).unwrap();
            let size = serde_json::to_vec(&object.data).unwrap().len()
                + object.binary_data.iter().flatten().map(|(_, bytes)| bytes.0.len()).sum::<usize>();
            assert!(size < 512 << 10, "{name} takes {size}");
        }
        model.take_writes();
        inventory.get_mut(&id("n7")).unwrap().recreations += 1;
        let version = store.save(&inventory, replace(&version)).await.unwrap();
        assert_eq!(model.take_writes().len(), 1);
        let preview = store.format.preview(&inventory, &replace(&version)).unwrap();
        assert_eq!(preview, NONE);
        assert_eq!(found(&store, &parent).await.inventory, counted(&inventory));
        // Shrinking stays in place, and the record can be removed whatever its size was.
        inventory.entries_mut().for_each(|entry| entry.edges.clear());
        (1..length).for_each(|n| {
            inventory.remove(&id(&format!("n{n}")));
        });
        model.take_calls();
        let version = store.save(&inventory, replace(&version)).await.unwrap();
        assert!(model.take_calls().iter().all(|call| call.starts_with("PATCH")));
        assert_eq!(found(&store, &parent).await.inventory, counted(&inventory));
        store.delete(&parent, &version).await.unwrap();
        assert_eq!(model.names(), NONE);
    }
}

#[tokio::test]
async fn c26_what_does_not_fit_is_refused_before_anything_is_sent() {
    let (model, parent) = (Model::default(), parent("a", "1"));
    let store = store(&model, TINY);
    let mut inventory = inventory(&parent, 1);
    let version = create(&store, &inventory).await;
    let mut large = entry("large");
    large.version = (0..4000).map(|n| id(&n.to_string()).stable_id().to_string()).collect();
    inventory.insert(large);
    model.take_calls();
    for options in [replace(&version), replace(&version).renew(true)] {
        let error = store.save(&inventory, options).await.unwrap_err();
        assert!(matches!(error, Error::Unstorable { .. }), "{error}");
    }
    assert_eq!(model.take_writes().len(), 1);
    assert_eq!(found(&store, &parent).await.inventory.len(), 1);
}

#[tokio::test]
async fn a_record_grows_with_renew_and_never_without() {
    for limits in [TINY, TINY_PLAIN] {
        let (model, parent) = (Model::default(), parent("a", "1"));
        let store = store(&model, limits);
        let mut version = create(&store, &inventory(&parent, 1)).await;
        for length in [2, 5, 10, 20, 40, 80] {
            model.take_calls();
            version = store.save(&inventory(&parent, length), replace(&version).renew(true)).await.unwrap();
            assert_eq!(found(&store, &parent).await.inventory, counted(&inventory(&parent, length)));
        }
        let objects = model.names().len();
        assert!(objects > 2);
        model.take_calls();
        store.save(&inventory(&parent, 120), replace(&version)).await.unwrap();
        assert!(model.take_calls().iter().all(|call| call.starts_with("PATCH")));
        assert_eq!(model.names().len(), objects);
    }
}

#[tokio::test]
async fn s10_long_and_odd_names_and_cluster_scoped_parents_are_stored() {
    let model = Model::default();
    let resource = ResourceKind::new("example.com", "v1", "Cluster", "clusters", Scope::Cluster);
    let long = "x".repeat(253);
    let parent = ParentRef::new(
        ObjectId::new("example.com", "Cluster", None, &long).unwrap(),
        Uid::new("1").unwrap(),
        &resource,
    );
    let mut inventory = empty(&parent);
    for name in ["system:node_x", "a__b", "A.b:c", "ü", &long] {
        let role = ResourceKind::new("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles", Scope::Cluster);
        let id = ObjectId::new(&role.group, &role.kind, None, name).unwrap();
        inventory.insert(crate::inventory::Entry::intended(id, &role));
    }
    let mut store = store(&model, Limits::KUBERNETES);
    let error = store.save(&inventory, SaveOptions::create()).await.unwrap_err();
    assert!(error.to_string().contains("ConfigMapStore::namespace"), "{error}");
    assert!(store.clone().namespace("Not/A/Label").is_err());
    store = store.namespace("operator").unwrap();
    create(&store, &inventory).await;
    assert_eq!(found(&store, &parent).await.inventory, inventory);
    // Another parent's record is neither found nor in the way.
    assert!(matches!(store.load(&crate::inventory::testing::parent("x", "1")).await.unwrap(), Loaded::Missing));
}

#[tokio::test]
async fn a_restored_parent_is_told_apart_and_can_be_linked_again() {
    for limits in [Limits::KUBERNETES, TINY] {
        let (model, old, new) = (Model::default(), parent("a", "1"), parent("a", "2"));
        let store = store(&model, limits);
        create(&store, &inventory(&old, 30)).await;
        let Loaded::Restored { snapshot, recorded, damage } = store.load(&new).await.unwrap() else { panic!() };
        assert!(recorded == old.uid && damage.is_empty() && snapshot.inventory.parent == old);
        store.save(&inventory(&new, 30), replace(&snapshot.version)).await.unwrap();
        assert_eq!(found(&store, &new).await.inventory, counted(&inventory(&new, 30)));
        for name in model.names() {
            assert_eq!(model.object(&name).unwrap().metadata.labels.unwrap()[&manager().parent_label()], "2");
        }
    }
}

#[tokio::test]
async fn c28_nothing_but_identities_is_stored() {
    // The types hold no manifest; what is free text in them is written by rules and authors.
    let (model, parent) = (Model::default(), parent("a", "1"));
    create(&store(&model, Limits::KUBERNETES), &inventory(&parent, 1)).await;
    let object = model.object(&root_name(&parent, Slot::A)).unwrap();
    let data = object.data.unwrap();
    let text = data.iter().find(|(key, _)| key.starts_with("entry.")).unwrap().1;
    let value: serde_json::Value = serde_json::from_str(text).unwrap();
    let keys: Vec<_> = value.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(keys, ["check", "kind", "name", "namespace", "plural", "state", "version"]);
}

#[tokio::test]
async fn foreign_marks_survive_saves() {
    let (model, parent) = (Model::default(), parent("a", "1"));
    let store = store(&model, Limits::KUBERNETES);
    create(&store, &inventory(&parent, 2)).await;
    let name = root_name(&parent, Slot::A);
    model.tamper(&name, |object| {
        object.metadata.labels.as_mut().unwrap().insert("theirs".into(), "x".into());
        object.metadata.annotations.as_mut().unwrap().insert("theirs".into(), "x".into());
        object.data.as_mut().unwrap().insert("theirs".into(), "x".into());
        object.metadata.finalizers = Some(vec!["theirs.example.com/x".into()]);
    });
    let snapshot = found(&store, &parent).await;
    let version = store.save(&inventory(&parent, 1), replace(&snapshot.version)).await.unwrap();
    let object = model.object(&name).unwrap();
    assert_eq!(object.metadata.labels.unwrap()["theirs"], "x");
    assert_eq!(object.metadata.annotations.unwrap()["theirs"], "x");
    assert_eq!(object.data.unwrap()["theirs"], "x");
    // Our guard, which they had taken off, is back beside theirs.
    let guard = manager().inventory_finalizer();
    assert_eq!(object.metadata.finalizers.unwrap(), ["theirs.example.com/x", &guard]);
    // Removing the record lets go of it; theirs holds the object, and it is no record any more.
    store.delete(&parent, &version).await.unwrap();
    assert_eq!(model.object(&name).unwrap().metadata.finalizers.unwrap(), ["theirs.example.com/x"]);
    assert!(matches!(store.load(&parent).await.unwrap(), Loaded::Missing));
    create(&store, &inventory(&parent, 2)).await;
    assert_eq!(model.names(), [name, root_name(&parent, Slot::B)]);
    assert_eq!(found(&store, &parent).await.inventory.len(), 2);
}

#[tokio::test]
async fn c08_a_record_deleted_by_hand_is_written_afresh_before_it_is_let_go() {
    for limits in [Limits::KUBERNETES, TINY, TINY_PLAIN] {
        for victim in 0..3 {
            let (model, parent) = (Model::default(), parent("a", "1"));
            let store = store(&model, limits);
            create(&store, &inventory(&parent, 12)).await;
            let names = model.names();
            model.delete_by_hand(names.get(victim).unwrap_or(&names[0]));
            let snapshot = found(&store, &parent).await;
            assert!(snapshot.terminating);
            // Teardown writes into what is there.
            model.take_calls();
            let version = store.save(&inventory(&parent, 11), replace(&snapshot.version)).await.unwrap();
            assert!(model.take_calls().iter().all(|call| call.starts_with("PATCH")));
            store.save(&inventory(&parent, 12), replace(&version).renew(true)).await.unwrap();
            let calls = model.take_calls();
            let fresh = calls.iter().position(|call| *call == format!("POST {}", root_name(&parent, Slot::B)));
            let letting_go = calls.iter().position(|call| call.starts_with("DELETE"));
            assert!(letting_go.is_none_or(|at| fresh.unwrap() < at), "{calls:?}");
            let snapshot = found(&store, &parent).await;
            assert!(!snapshot.terminating && snapshot.inventory == counted(&inventory(&parent, 12)));
            assert!(names.iter().all(|old| !model.names().contains(old)));
            // The other name is used in turn.
            model.delete_by_hand(&root_name(&parent, Slot::B));
            let snapshot = found(&store, &parent).await;
            let version = store.save(&inventory(&parent, 12), replace(&snapshot.version).renew(true)).await.unwrap();
            assert!(model.names().contains(&root_name(&parent, Slot::A)));
            store.delete(&parent, &version).await.unwrap();
            assert_eq!(model.names(), NONE);
        }
    }
}

#[tokio::test]
async fn c08_in_a_terminating_namespace_the_record_is_kept_and_updated() {
    for limits in [Limits::KUBERNETES, TINY] {
        let (model, parent) = (Model::default(), parent("a", "1"));
        let store = store(&model, limits);
        create(&store, &inventory(&parent, 12)).await;
        let names = model.names();
        model.terminate_namespace();
        let snapshot = found(&store, &parent).await;
        model.take_calls();
        let version = store.save(&inventory(&parent, 12), replace(&snapshot.version).renew(true)).await.unwrap();
        // Nothing to write: asking whether anything can be created must not change anything either, or a reconcile
        // that watches its inventory would never end.
        assert_eq!(model.take_writes().len(), names.len());
        let version = store.save(&inventory(&parent, 9), replace(&version).renew(true)).await.unwrap();
        assert_eq!(model.names(), names);
        let snapshot = found(&store, &parent).await;
        assert!(snapshot.terminating && snapshot.inventory.len() == 9);
        let other = crate::inventory::testing::parent("b", "1");
        let error = store.save(&inventory(&other, 1), SaveOptions::create()).await.unwrap_err();
        assert!(matches!(error, Error::NamespaceTerminating { ref namespace, .. } if namespace == "home"), "{error}");
        store.delete(&parent, &version).await.unwrap();
        assert_eq!(model.names(), NONE);
    }
}

#[tokio::test]
async fn tokens_work_without_what_the_store_attached() {
    let (model, parent) = (Model::default(), parent("a", "1"));
    let store = store(&model, TINY);
    let first = Version::new(create(&store, &inventory(&parent, 12)).await.as_str());
    let second = store.save(&inventory(&parent, 13), replace(&first)).await.unwrap();
    let error = store.save(&inventory(&parent, 14), replace(&first)).await.unwrap_err();
    assert!(matches!(error, Error::Conflict { .. }), "{error}");
    assert!(matches!(store.delete(&parent, &first).await, Err(Error::Conflict { .. })));
    assert!(model.names().len() > 2);
    store.delete(&parent, &Version::new(second.as_str())).await.unwrap();
    store.delete(&parent, &second).await.unwrap();
    store.delete(&parent, &Version::new("never")).await.unwrap();
    assert_eq!(model.names(), NONE);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_inventory_reads_back_after_any_other(a in any_inventory(), b in any_inventory(), renew in any::<bool>(), tiny in any::<bool>()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let model = Model::default();
            let store = store(&model, if tiny { TINY } else { TINY_PLAIN });
            let version = create(&store, &a).await;
            assert_eq!(found(&store, &a.parent).await.inventory, counted(&a));
            let version = store.save(&b, replace(&version).renew(renew)).await.unwrap();
            let snapshot = found(&store, &a.parent).await;
            assert_eq!(snapshot.inventory, counted(&b));
            assert_eq!(&snapshot.version, &version);
            let format = &store.format;
            let objects = model.names().into_iter().map(|name| model.object(&name).unwrap());
            let Loaded::Found(offline) = format.decode(&b.parent, objects).unwrap() else { panic!() };
            assert_eq!(offline.inventory, snapshot.inventory);
            store.delete(&a.parent, &version).await.unwrap();
            assert!(model.names().is_empty());
        });
    }
}
