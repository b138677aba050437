//! What somebody who may write his own objects, and the record in his own namespace, can make the operator do to
//! others; and parents that are children.

use control_plane::{
    audit::{CutMode, Verb},
    fixtures,
};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, ResourceExt,
    api::{DynamicObject, ListParams},
};
use kube_custody::{
    custodian::{Adoption, Hold, Phase, Problem, Watch},
    inventory::{ClusterId, DeletionPolicy, Edge, Entry, EntryState, Inventory, Requirement, Role},
    object::{ParentRef, ResourceKind, Scope, Uid},
    ownership::OwnershipPolicy,
    teardown::Reason,
};
use serde_json::json;

use crate::world::*;

fn uid_of(object: &DynamicObject) -> Uid {
    Uid::new(object.metadata.uid.as_deref().unwrap()).unwrap()
}

fn git_track(namespace: &str, name: &str, path: &str) -> DynamicObject {
    object(json!({
        "apiVersion": "faros.pusher.com/v1alpha1", "kind": "GitTrack",
        "metadata": {"name": name, "namespace": namespace}, "spec": {"path": path},
    }))
}

#[tokio::test]
async fn a_parent_that_is_a_child_keeps_the_finalizers_that_its_own_children_need() {
    let scene = Scene::new("nested").await;
    let inner = git_track(&scene.ns, "inner", "/1");
    scene.apply(std::slice::from_ref(&inner)).await;
    let track: GitTrack =
        serde_json::from_value(serde_json::to_value(live(&scene.admin, &inner).await.unwrap()).unwrap()).unwrap();
    let grandchild = scene.map("grandchild", &[]);
    let outcome = settle(&scene.custodian, &scene.admin, &track, std::slice::from_ref(&grandchild)).await;
    assert_eq!(outcome.phase, Phase::Applied, "{outcome:#?}");
    let before = live(&scene.admin, &inner).await.unwrap();
    assert_eq!(before.finalizers().len(), 2);

    let changed = git_track(&scene.ns, "inner", "/2");
    scene.apply(std::slice::from_ref(&changed)).await;
    let after = live(&scene.admin, &inner).await.unwrap();
    assert_eq!(after.data["spec"]["path"], "/2");
    assert_eq!(after.finalizers(), before.finalizers());
    assert_eq!(after.annotations(), before.annotations());

    // And so it goes in order: the inner one waits for its own child.
    scene.delete().await;
    fixtures::eventually("both parents are gone", async || {
        for one in [&scene.track, &track] {
            if let Some(live) = reload(&scene.admin, one).await {
                let wanted = if one.name_any() == "inner" { vec![grandchild.clone()] } else { vec![] };
                reconcile(&scene.custodian, &live, &wanted).await;
            }
        }
        (reload(&scene.admin, &scene.track).await.is_none()).then_some(())
    })
    .await;
    assert!(!exists(&scene.admin, &grandchild).await);
    assert!(!exists(&scene.admin, &inner).await);
}

#[tokio::test]
async fn what_is_kept_survives_a_proxy_whose_uid_never_came_onto_record() {
    let mut scene = Scene::new("kept-crash").await;
    let kept = scene.map("kept", &[]);
    // The proxy and the child are there; the record knows neither UID.
    scene.log.before_call({
        let log = scene.log.clone();
        move |head| {
            if head.verb == Verb::Create && head.name() == Some("kept") {
                log.cut_at(1, CutMode::Before);
            }
            async {}
        }
    });
    let pass = async {
        let live = reload(&scene.admin, &scene.track).await.unwrap();
        tokio::select! {
            _ = reconcile(&scene.custodian, &live, std::slice::from_ref(&kept)) => {}
            () = scene.log.cut_off() => {}
        }
    };
    pass.await;
    fixtures::eventually("the child is there", async || exists(&scene.admin, &kept).await.then_some(())).await;
    let proxy = scene.inventory().await.entries().find(|e| e.role == Role::Proxy).unwrap().clone();
    assert_eq!(proxy.uid, None, "the crash came too late for this scenario");

    let plane = control_plane::Plane::shared().await;
    let (operator, log) = plane.audited("admin");
    (scene.operator, scene.log) = (operator, log);
    scene.restart(|b| b.children_on_delete(DeletionPolicy::Keep));
    scene.tear_down().await;
    plane.gc_quiet().await.unwrap();
    let left = live(&scene.admin, &kept).await.expect("what is to be kept was collected with its proxy");
    assert!(left.metadata.owner_references.is_none(), "{left:#?}");
}

#[tokio::test]
async fn a_mark_to_keep_on_a_proxy_keeps_nothing() {
    let scene = Scene::new("keep-proxy").await;
    let map = scene.map("x", &[]);
    scene.apply(std::slice::from_ref(&map)).await;
    let (proxies, _) = live_proxies(&scene.admin, &scene.track).await;
    let proxy = object(serde_json::to_value(&proxies[0]).unwrap());
    patch(&scene.admin, &proxy, json!({"metadata": {"annotations": {"helm.sh/resource-policy": "keep"}}})).await;
    scene.tear_down().await;
    assert!(!exists(&scene.admin, &map).await);
    assert!(!exists(&scene.admin, &proxy).await, "{:#?}", live(&scene.admin, &proxy).await);
}

/// An object of somebody else, owned by something of theirs.
async fn owned_elsewhere(scene: &Scene, namespace: &str) -> (DynamicObject, Uid) {
    let owner = create(&scene.admin, &config_map(namespace, "owner", &[])).await;
    let mut owned = config_map(namespace, "owned", &[]);
    owned.metadata.owner_references = Some(vec![
        serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner.uid().unwrap(),
        }))
        .unwrap(),
    ]);
    (create(&scene.admin, &owned).await, uid_of(&owner))
}

fn forged(namespace: &str, owner: &Uid, state: EntryState) -> [Entry; 2] {
    let maps = ResourceKind::new("", "v1", "ConfigMap", "configmaps", Scope::Namespaced);
    let mut proxy = Entry::intended(id(&format!("ConfigMap {namespace}/owner")), &maps);
    proxy.role = Role::Proxy;
    proxy.uid = Some(owner.clone());
    proxy.state = EntryState::Recorded;
    let mut entry = Entry::intended(id(&format!("ConfigMap {namespace}/owned")), &maps);
    entry.state = state;
    let requirement = Requirement::Required { declared_by: "proxy".into() };
    entry.edges.insert(Edge::new(proxy.id.stable_id(), requirement));
    [proxy, entry]
}

#[tokio::test]
async fn a_forged_record_takes_no_reference_off_a_foreign_object() {
    for state in [EntryState::Abandoned, EntryState::Detaching, EntryState::Intended] {
        let scene = Scene::new("forged").await;
        let theirs = new_namespace(&scene.admin, "theirs").await;
        let (owned, owner) = owned_elsewhere(&scene, &theirs).await;
        let map = scene.map("x", &[]);
        scene.apply(std::slice::from_ref(&map)).await;
        scene
            .meddle(|inventory| forged(&theirs, &owner, state).into_iter().for_each(|e| drop(inventory.insert(e))))
            .await;
        for _ in 0..3 {
            scene.pass(std::slice::from_ref(&map)).await;
        }
        scene.delete().await;
        for _ in 0..3 {
            if reload(&scene.admin, &scene.track).await.is_some() {
                scene.pass(&[]).await;
            }
        }
        let now = live(&scene.admin, &owned).await.unwrap();
        assert_eq!(now.metadata.resource_version, owned.metadata.resource_version, "{state:?}: {now:#?}");
    }
}

#[tokio::test]
async fn a_forged_record_puts_no_hold_on_a_foreign_object() {
    let scene = Scene::new("forged-hold").await;
    let theirs = new_namespace(&scene.admin, "theirs").await;
    let target = create(&scene.admin, &config_map(&theirs, "target", &[])).await;
    let map = scene.map("x", &[]);
    scene.apply(std::slice::from_ref(&map)).await;
    scene
        .meddle(|inventory| {
            inventory.held.insert(id(&format!("ConfigMap {theirs}/target")));
        })
        .await;
    scene.pass(std::slice::from_ref(&map)).await;
    let now = live(&scene.admin, &target).await.unwrap();
    assert_eq!(now.metadata.resource_version, target.metadata.resource_version, "{now:#?}");
    scene.tear_down().await;
}

#[tokio::test]
async fn a_forged_record_takes_no_hold_of_another_parent_off() {
    let other = new_namespace(&client().await, "held").await;
    let held = id(&format!("ConfigMap {other}/credentials"));
    let scene = Scene::with("victim", {
        let held = held.clone();
        move |b| b.hold(move |_| vec![held.clone()])
    })
    .await;
    let credentials = create(&scene.admin, &config_map(&other, "credentials", &[])).await;
    scene.apply(&[scene.map("x", &[])]).await;
    let before = live(&scene.admin, &credentials).await.unwrap();
    assert_eq!(before.finalizers().len(), 1);

    // A record of nobody in another namespace, that says it was the victim's.
    let elsewhere = Scene::new("attacker").await;
    let mut forged = kube_custody::inventory::Inventory::new(
        ParentRef::of(&elsewhere.track).unwrap(),
        scene.inventory().await.cluster,
    );
    forged.parent.uid = Uid::new(scene.track.uid().unwrap()).unwrap();
    forged.held.insert(held);
    let options = kube_custody::inventory::SaveOptions::create();
    kube_custody::inventory::InventoryStore::save(&elsewhere.store, &forged, options).await.unwrap();
    elsewhere.pass(&[elsewhere.map("y", &[])]).await;
    let now = live(&scene.admin, &credentials).await.unwrap();
    assert_eq!(now.finalizers(), before.finalizers());
    scene.tear_down().await;
    elsewhere.tear_down().await;
}

#[tokio::test]
async fn an_object_outside_of_a_narrowed_policy_can_be_abandoned() {
    let mut scene = Scene::new("narrowed").await;
    let other = new_namespace(&scene.admin, "outside").await;
    let set = [scene.map("x", &[]), config_map(&other, "y", &[])];
    scene.apply(&set).await;
    scene.restart(|b| b.ownership(OwnershipPolicy::SameNamespace));
    scene.delete().await;
    let outcome = scene.until("it is held", &[], |o| blocker(o, "y").is_some()).await;
    assert_eq!(blocker(&outcome, "y").unwrap().reason, Reason::NotManaged);
    scene.custodian.abandon(&scene.track, &id(&format!("ConfigMap {other}/y"))).await.unwrap();
    let outcome = scene.settle(&[]).await;
    assert_eq!(outcome.phase, Phase::Released, "{outcome:#?}");
    assert!(exists(&scene.admin, &set[1]).await);
    remove(&scene.admin, &set[1]).await;
}

#[tokio::test]
async fn somebody_elses_object_with_copied_marks_outside_of_the_policy_holds_nobody() {
    let scene = Scene::with("marked", |b| b.ownership(OwnershipPolicy::SameNamespace)).await;
    let other = new_namespace(&scene.admin, "attacker").await;
    let map = scene.map("x", &[]);
    scene.apply(std::slice::from_ref(&map)).await;
    let itself = id(&format!("ConfigMap {other}/bait"));
    let parent = ParentRef::of(&scene.track).unwrap();
    let mut bait = config_map(&other, "bait", &[]);
    let manager = kube_custody::manager::Manager::new(MANAGER).unwrap();
    kube_custody::ownership::mark(
        &manager,
        &kube_custody::ownership::BackPointer::new(&parent, &itself),
        &mut bait.metadata,
    )
    .unwrap();
    bait.metadata.finalizers = Some(vec!["x.example.com/hold".into()]);
    create(&scene.admin, &bait).await;
    // So that the watches have seen it.
    fixtures::eventually("seen", async || {
        let outcome = scene.pass(std::slice::from_ref(&map)).await;
        (outcome.phase == Phase::Applied).then_some(())
    })
    .await;
    scene.tear_down().await;
    assert!(exists(&scene.admin, &bait).await);
    patch(&scene.admin, &bait, json!({"metadata": {"finalizers": null}})).await;
}

#[tokio::test]
async fn the_record_of_another_parent_is_nothing_to_adopt() {
    for adoption in [Adoption::IfUnowned, Adoption::Always] {
        let scene = Scene::with("record", |b| b.adoption(adoption)).await;
        scene.apply(&[scene.map("x", &[])]).await;
        let maps = Api::<ConfigMap>::namespaced(scene.admin.clone(), &scene.ns);
        let all = maps.list(&ListParams::default()).await.unwrap().items;
        let record = all.iter().find(|map| map.name_any().starts_with("inventory-")).unwrap();

        let other = parent(&scene.admin, &scene.ns, "other").await;
        let wanted = scene.map(&record.name_any(), &[]);
        let outcome = eventually_unapplied(&scene.custodian, &scene.admin, &other, std::slice::from_ref(&wanted)).await;
        assert!(
            matches!(problem(&outcome, &record.name_any()), Some(Problem::Exists { .. })),
            "{adoption:?}: {outcome:#?}"
        );
        let now = maps.get(&record.name_any()).await.unwrap();
        assert_eq!(now.metadata.resource_version, record.metadata.resource_version, "{now:#?}");
        delete(&scene.admin, &other).await;
        settle_deleted(&scene.custodian, &scene.admin, &other, &[]).await;
        scene.tear_down().await;
    }
}

#[tokio::test]
async fn a_note_of_thousands_of_kinds_is_not_searched_through() {
    let scene = Scene::new("noted").await;
    let set = [scene.map("x", &[])];
    scene.apply(&set).await;
    let maps = Api::<ConfigMap>::namespaced(scene.admin.clone(), &scene.ns);
    for record in maps.list(&ListParams::default()).await.unwrap().items {
        if record.name_any().starts_with("inventory-") {
            let record = config_map(&scene.ns, &record.name_any(), &[]);
            patch(&scene.admin, &record, json!({"metadata": {"finalizers": null}})).await;
            remove(&scene.admin, &record).await;
        }
    }
    let track = git_track(&scene.ns, "track", "/");
    let key = format!("{MANAGER}/group-kinds");
    let noted = live(&scene.admin, &track).await.unwrap().annotations()[&key].clone();
    let many = (0..2000).map(|n| format!("Kind{n}.group{n}.example.com")).collect::<Vec<_>>().join(",");
    patch(&scene.admin, &track, json!({"metadata": {"annotations": {&key: many}}})).await;
    let before = scene.log.len();
    let outcome = scene.pass(&set).await;
    assert!(
        matches!(&outcome.phase, Phase::Held(Hold::InventoryMissing { words }) if words.contains("2000")),
        "{outcome:#?}"
    );
    assert!(scene.log.len() - before < 20, "{} calls", scene.log.len() - before);

    patch(&scene.admin, &track, json!({"metadata": {"annotations": {&key: noted}}})).await;
    scene.apply(&set).await;
    scene.tear_down().await;
}

#[tokio::test]
async fn a_forged_record_passes_no_foreign_content_of_a_namespace_off_as_its_own() {
    let scene = Scene::new("forged-member").await;
    let ns = fixtures::ns("forged-member-other");
    let set = [namespace(&ns), config_map(&ns, "ours", &[])];
    scene.apply(&set).await;
    let stray = object(json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "stray", "namespace": ns},
        "spec": {"containers": [{"name": "main", "image": "example.com/none"}]},
    }));
    let stray = create(&scene.admin, &stray).await;
    let maps = ResourceKind::new("", "v1", "ConfigMap", "configmaps", Scope::Namespaced);
    scene
        .meddle(|inventory| {
            // Of nothing that exists, and with the UID of what is somebody else's.
            let mut entry = Entry::intended(id(&format!("ConfigMap {}/none", scene.ns)), &maps);
            entry.uid = Some(uid_of(&stray));
            entry.state = EntryState::Recorded;
            inventory.insert(entry);
        })
        .await;
    scene.delete().await;
    let held = |o: &kube_custody::custodian::Outcome| {
        let reason = blocker(o, &ns).map(|b| &b.reason);
        matches!(reason, Some(Reason::InUse { by, .. }) if by.iter().any(|user| user.name() == "stray"))
    };
    scene.until("the namespace is held", &[], held).await;
    assert!(exists(&scene.admin, &set[0]).await && !scene.attempted().contains(&ns));
    remove(&scene.admin, &stray).await;
    assert_eq!(scene.settle(&[]).await.phase, Phase::Released);
}

#[tokio::test]
async fn an_emptied_record_of_an_earlier_incarnation_lets_no_parent_go_that_has_created() {
    for restarts in [false, true] {
        let mut scene = Scene::new("emptied").await;
        let set = [scene.map("x", &[])];
        scene.apply(&set).await;
        scene
            .meddle(|inventory| {
                inventory.parent.uid = Uid::new("00000000-0000-4000-8000-000000000000").unwrap();
                let all: Vec<_> = inventory.entries().map(|e| e.id.clone()).collect();
                all.iter().for_each(|id| drop(inventory.remove(id)));
            })
            .await;
        if restarts {
            scene.restart(|b| b);
        }
        let outcome = scene.tear_down().await;
        assert_eq!(scene.present(&set).await, [false], "{outcome:#?}");
    }
}

/// How somebody changes a record.
type Forgery = fn(&mut Inventory);

fn forgeries() -> [(&'static str, Forgery); 3] {
    fn empty(inventory: &mut Inventory) {
        let all: Vec<_> = inventory.entries().map(|e| e.id.clone()).collect();
        all.iter().for_each(|id| drop(inventory.remove(id)));
    }
    fn of_another_cluster(inventory: &mut Inventory) {
        empty(inventory);
        inventory.cluster = ClusterId(Uid::new("00000000-0000-4000-8000-000000000000").unwrap());
    }
    fn without_a_kind(inventory: &mut Inventory) {
        let maps = inventory.entries().filter(|e| e.id.kind() == "ConfigMap").map(|e| e.id.clone());
        maps.collect::<Vec<_>>().iter().for_each(|id| drop(inventory.remove(id)));
    }
    [("emptied", empty), ("another cluster", of_another_cluster), ("without a kind", without_a_kind)]
}

#[tokio::test]
async fn what_is_taken_out_of_the_record_is_found_before_the_parent_goes() {
    let (watched, polled) = (forgeries().map(|f| (f, Watch::Auto)), forgeries().map(|f| (f, Watch::Off)));
    // Without watches, a record is believed unless it is empty.
    for ((what, forge), watch) in watched.into_iter().chain(polled.into_iter().take(2)) {
        let mut scene = Scene::new("forged").await;
        let account = object(json!({
            "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "a", "namespace": scene.ns},
        }));
        let set = [scene.map("below", &[]), scene.map("above", &["below"]), account];
        scene.apply(&set).await;
        scene.meddle(forge).await;
        // Nothing is remembered of before, and no watch was ever asked for what is missing.
        scene.restart(|b| b.watch(watch));
        scene.log.clear();
        let outcome = scene.tear_down().await;
        assert_eq!(scene.present(&set).await, [false; 3], "{what}, {watch:?}: {outcome:#?}");
        let order: Vec<_> = deletions(&scene.log).into_iter().filter(|d| d.starts_with("configmaps/")).collect();
        assert_before(&order, &format!("configmaps/{}/above", scene.ns), &format!("configmaps/{}/below", scene.ns));
    }
}
