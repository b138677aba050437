//! Inventories in ConfigMaps of the real API server, under the rights that their documentation asks for.

use control_plane::{
    Plane,
    audit::{CutMode, Verb},
    fixtures::{self, eventually, gone},
};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, ListParams},
};
use kube_custody::{
    inventory::{
        ClusterId, ConfigMapStore, Edge, Entry, Error, Inventory, InventoryStore, Loaded, Requirement, SaveOptions,
        Snapshot,
    },
    manager::Manager,
    object::{ObjectId, ParentRef, ResourceKind, Scope, Uid},
};

const UID: &str = "0cbd8f1e-5a4b-4f5e-9d0e-3f1f5e6f0001";

fn store(client: Client) -> ConfigMapStore {
    ConfigMapStore::new(client, Manager::new("inventory.example.com").unwrap())
}

fn parent(namespace: &str, name: &str) -> ParentRef {
    let kind = ResourceKind::new("example.com", "v1", "GitTrack", "gittracks", Scope::Namespaced);
    let id = ObjectId::new("example.com", "GitTrack", Some(namespace), name).unwrap();
    ParentRef::new(id, Uid::new(UID).unwrap(), &kind)
}

fn id(number: usize) -> ObjectId {
    ObjectId::new("", "ConfigMap", Some("elsewhere"), &format!("child-{number}")).unwrap()
}

/// A chain: every entry but the first depends on the one before it.
fn inventory(parent: &ParentRef, length: usize) -> Inventory {
    let mut inventory = Inventory::new(parent.clone(), ClusterId(Uid::new("cluster").unwrap()));
    let kind = ResourceKind::new("", "v1", "ConfigMap", "configmaps", Scope::Namespaced);
    for number in 0..length {
        let mut entry = Entry::intended(id(number), &kind);
        // Compresses as badly as a UID does.
        entry.uid = Some(Uid::new(id(number).stable_id().to_string()).unwrap());
        entry.dependents = u32::from(number + 1 < length);
        if let Some(before) = number.checked_sub(1) {
            let requirement = Requirement::Required { declared_by: "config.kubernetes.io/depends-on".into() };
            entry.edges = [Edge::new(id(before).stable_id(), requirement)].into();
        }
        inventory.insert(entry);
    }
    inventory
}

async fn found(store: &ConfigMapStore, parent: &ParentRef) -> Snapshot {
    match store.load(parent).await.unwrap() {
        Loaded::Found(snapshot) => snapshot,
        other => panic!("{other:?}"),
    }
}

async fn names(api: &Api<ConfigMap>) -> Vec<String> {
    let labelled = ListParams::default().labels("inventory.example.com/inventory");
    api.list(&labelled).await.unwrap().items.into_iter().filter_map(|object| object.metadata.name).collect()
}

/// Somebody deletes an object; our guard keeps it.
async fn delete_by_hand(api: &Api<ConfigMap>, name: &str) {
    api.delete(name, &DeleteParams::background()).await.unwrap();
    assert!(api.get(name).await.unwrap().meta().deletion_timestamp.is_some());
}

#[cfg(feature = "conformance")]
#[tokio::test]
async fn the_store_conforms_under_the_rights_that_it_documents() {
    let plane = Plane::shared().await;
    let admin = plane.client();
    let namespace = fixtures::namespace(&admin, "inventory").await;
    let rights = fixtures::rule("", &["configmaps"], &["get", "create", "patch", "delete", "list"]);
    let _grant = fixtures::grant(&admin, &fixtures::Subject::user("alice"), Some(&namespace), vec![rights]).await;
    kube_custody::inventory::conformance::all(&store(plane.client_as("alice")), &|name| parent(&namespace, name)).await;
    assert_eq!(names(&Api::namespaced(admin, &namespace)).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_refusal_names_the_parent_and_keeps_the_reason() {
    let plane = Plane::shared().await;
    let namespace = fixtures::namespace(&plane.client(), "inventory").await;
    let parent = parent(&namespace, "p");
    let error = store(plane.client_as("bob")).load(&parent).await.unwrap_err();
    assert!(
        error.to_string().contains(&format!("load the inventory of GitTrack.example.com {namespace}/p")),
        "{error}"
    );
    let reason = std::error::Error::source(&error).unwrap().to_string();
    assert!(reason.contains("cannot get resource"), "{reason}");
    // A missing namespace is no proof of anything: the error is the server's.
    let nowhere = self::parent("no-such-namespace", "p");
    let error = store(plane.client()).save(&inventory(&nowhere, 1), SaveOptions::create()).await.unwrap_err();
    assert!(matches!(error, Error::Backend { .. }), "{error}");
}

#[tokio::test]
async fn a_small_record_is_one_write_and_a_large_one_one_shard() {
    let plane = Plane::shared().await;
    let (client, log) = plane.audited("admin");
    let namespace = fixtures::namespace(&plane.client(), "inventory").await;
    let api: Api<ConfigMap> = Api::namespaced(plane.client(), &namespace);
    let store = store(client);
    for (length, most) in [(50, 1), (20_000, 20)] {
        let parent = parent(&namespace, &format!("p{length}"));
        let mut inventory = inventory(&parent, length);
        let version = store.save(&inventory, SaveOptions::create()).await.unwrap();
        let objects = api.list(&ListParams::default()).await.unwrap().items;
        let ours: Vec<_> = objects.iter().filter(|object| names_parent(object, &parent)).collect();
        assert!((most.min(2)..=most).contains(&ours.len()), "{} objects", ours.len());
        for object in &ours {
            let size = serde_json::to_vec(object).unwrap().len() * 3 / 4;
            assert!(size < 512 << 10, "{size} bytes");
        }
        log.clear();
        inventory.get_mut(&id(7)).unwrap().recreations += 1;
        let version = store.save(&inventory, SaveOptions::replace(version)).await.unwrap();
        assert_eq!((log.len(), log.count(Verb::Patch)), (1, 1));
        let snapshot = found(&store, &parent).await;
        assert_eq!(log.count(Verb::Get), if ours.len() == 1 { 2 } else { ours.len() + 1 });
        assert_eq!((&snapshot.inventory, &snapshot.version), (&inventory, &version));
        store.delete(&parent, &version).await.unwrap();
        assert!(matches!(store.load(&parent).await.unwrap(), Loaded::Missing));
    }
    assert_eq!(names(&api).await, Vec::<String>::new());
}

fn names_parent(object: &ConfigMap, parent: &ParentRef) -> bool {
    let annotation = object.metadata.annotations.as_ref().and_then(|a| a.get("inventory.example.com/inventory-of"));
    annotation == Some(&parent.id.to_string())
}

#[tokio::test]
async fn c08_a_record_deleted_by_hand_is_written_afresh_before_it_is_let_go() {
    let plane = Plane::shared().await;
    let (client, log) = plane.audited("admin");
    let namespace = fixtures::namespace(&plane.client(), "inventory").await;
    let api: Api<ConfigMap> = Api::namespaced(plane.client(), &namespace);
    let store = store(client);
    for length in [5, 12_000] {
        let parent = parent(&namespace, &format!("p{length}"));
        store.save(&inventory(&parent, length), SaveOptions::create()).await.unwrap();
        let old = names(&api).await;
        for name in &old {
            delete_by_hand(&api, name).await;
        }
        let snapshot = found(&store, &parent).await;
        assert!(snapshot.terminating);
        // Teardown updates what is there.
        log.clear();
        let mut shorter = inventory(&parent, length - 1);
        let version = store.save(&shorter, SaveOptions::replace(snapshot.version)).await.unwrap();
        assert_eq!(log.count(Verb::Create), 0);
        shorter.get_mut(&id(0)).unwrap().recreations = 1;
        let version = store.save(&shorter, SaveOptions::replace(version).renew(true)).await.unwrap();
        let snapshot = found(&store, &parent).await;
        assert_eq!((&snapshot.inventory, &snapshot.version), (&shorter, &version));
        assert!(!snapshot.terminating);
        let new = names(&api).await;
        assert!(old.iter().all(|name| !new.contains(name)), "{old:?} {new:?}");
        let calls = log.calls();
        let created = calls.iter().rposition(|call| call.head.verb == Verb::Create);
        let let_go = calls.iter().position(|call| {
            let body = call.head.body.as_ref().map(ToString::to_string);
            body.is_some_and(|body| body.contains("\"finalizers\":[]"))
        });
        assert!(created < let_go, "{created:?} {let_go:?}");
        store.delete(&parent, &version).await.unwrap();
    }
    assert_eq!(names(&api).await, Vec::<String>::new());
}

#[tokio::test]
async fn c08_a_deleted_namespace_cannot_take_the_record_before_it_is_let_go() {
    let plane = Plane::shared().await;
    let (client, log) = plane.audited("admin");
    let namespace = fixtures::namespace(&plane.client(), "inventory").await;
    let namespaces: Api<Namespace> = Api::all(plane.client());
    let api: Api<ConfigMap> = Api::namespaced(plane.client(), &namespace);
    let store = store(client);
    let (small, large) = (parent(&namespace, "small"), parent(&namespace, "large"));
    let mut versions = Vec::new();
    for (parent, length) in [(&small, 5), (&large, 8_000)] {
        versions.push(store.save(&inventory(parent, length), SaveOptions::create()).await.unwrap());
    }
    let before = names(&api).await;
    namespaces.delete(&namespace, &DeleteParams::background()).await.unwrap();
    // Updates that would renew what is being deleted find that they can't, and change nothing but what they should.
    for (parent, version) in [&small, &large].into_iter().zip(versions) {
        let version = store.save(&inventory(parent, 4), SaveOptions::replace(version).renew(true)).await.unwrap();
        assert_eq!(found(&store, parent).await.version, version);
    }
    eventually("every object is being deleted", || async {
        let objects = api.list(&ListParams::default().labels("inventory.example.com/inventory")).await.unwrap().items;
        objects.iter().all(|object| object.metadata.deletion_timestamp.is_some()).then_some(())
    })
    .await;
    assert_eq!(names(&api).await, before);
    for parent in [&small, &large] {
        let snapshot = found(&store, parent).await;
        assert!(snapshot.terminating && snapshot.inventory == inventory(parent, 4));
        log.clear();
        let options = SaveOptions::replace(snapshot.version.clone()).renew(true);
        let version = store.save(&snapshot.inventory, options).await.unwrap();
        let written = log.calls_where(|call| call.head.verb.writes() && !call.head.is_dry_run());
        assert!(written.is_empty(), "{written:?}");
        assert_eq!(version, snapshot.version);
    }
    let late = parent(&namespace, "late");
    let error = store.save(&inventory(&late, 1), SaveOptions::create()).await.unwrap_err();
    assert!(matches!(&error, Error::NamespaceTerminating { namespace: n, .. } if *n == namespace), "{error}");
    for parent in [&small, &large] {
        let version = found(&store, parent).await.version;
        store.delete(parent, &version).await.unwrap();
        assert!(matches!(store.load(parent).await.unwrap(), Loaded::Missing));
    }
    gone(namespaces, &namespace).await;
}

#[tokio::test]
async fn s02_whatever_call_is_the_last_one_the_record_loads_and_goes() {
    let plane = Plane::shared().await;
    let namespace = fixtures::namespace(&plane.client(), "inventory").await;
    let api: Api<ConfigMap> = Api::namespaced(plane.client(), &namespace);
    let parent = parent(&namespace, "p");
    for mode in [CutMode::Before, CutMode::After] {
        for k in 1.. {
            let (client, log) = plane.audited("admin");
            let (cut, whole) = (store(client), store(plane.client()));
            log.cut_at(k, mode);
            let life = async {
                let version = cut.save(&inventory(&parent, 3), SaveOptions::create()).await?;
                delete_by_hand(&api, &names(&api).await[0]).await;
                drop(version);
                let Loaded::Found(snapshot) = cut.load(&parent).await? else { panic!("not found") };
                let options = SaveOptions::replace(snapshot.version).renew(true);
                let version = cut.save(&inventory(&parent, 4), options).await?;
                let version = cut.save(&inventory(&parent, 0), SaveOptions::replace(version)).await?;
                cut.delete(&parent, &version).await
            };
            let outcome = life.await;
            match whole.load(&parent).await.unwrap() {
                Loaded::Missing => {}
                Loaded::Found(snapshot) => {
                    let read = snapshot.inventory;
                    assert!(
                        [0, 3, 4].iter().any(|length| read == inventory(&parent, *length)),
                        "at call {k}: {read:?}"
                    );
                    let options = SaveOptions::replace(snapshot.version).renew(true);
                    let version = whole.save(&inventory(&parent, 2), options).await.unwrap();
                    assert_eq!(found(&whole, &parent).await.inventory, inventory(&parent, 2), "at call {k}");
                    whole.delete(&parent, &version).await.unwrap();
                }
                other => panic!("at call {k}: {other:?}"),
            }
            assert_eq!(names(&api).await, Vec::<String>::new(), "at call {k}");
            if outcome.is_ok() {
                assert!(k > 10, "the whole life took {k} calls");
                break;
            }
        }
    }
}
