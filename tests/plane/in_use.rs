//! Namespaces and definitions that something else still uses when their turn to be deleted has come.

use std::time::Duration;

use control_plane::{
    Plane,
    audit::Verb,
    fixtures::{self, Subject, rule},
};
use kube::{Client, ResourceExt, api::DynamicObject};
use kube_custody::{
    custodian::{Custodian, Desired, DesiredError, Error, Outcome, Phase, Watch},
    graph::Rules,
    inventory::{DeletionPolicy, InUsePolicy, Origin},
    object::{LiveRef, ObjectId, Uid},
    teardown::{self, Reason, Slice, Teardown},
};
use serde_json::json;

use crate::world::*;

/// What uses `name`, by a report.
fn users(outcome: &Outcome, name: &str) -> Option<Vec<String>> {
    match &blocker(outcome, name)?.reason {
        Reason::InUse { by, count } => {
            assert!(*count >= by.len());
            Some(by.iter().map(ToString::to_string).collect())
        }
        _ => None,
    }
}

fn pod(namespace: &str, name: &str) -> DynamicObject {
    object(json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace},
        "spec": {"containers": [{"name": "main", "image": "example.com/none"}]},
    }))
}

fn claim(namespace: &str, name: &str) -> DynamicObject {
    object(json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name, "namespace": namespace},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }))
}

/// A definition with one object of it in a namespace, and somebody else's object of the kind in the scene's.
struct Kinds {
    other: String,
    crd: DynamicObject,
    set: [DynamicObject; 3],
    foreign: DynamicObject,
}

impl Kinds {
    fn new(scene: &Scene, prefix: &str) -> Self {
        let other = fixtures::ns(prefix);
        let crd = definition(&other, &[("v1", true)]);
        let set = [namespace(&other), crd.clone(), custom(&other, "v1", "ours")];
        let mut foreign = custom(&other, "v1", "theirs");
        foreign.metadata.namespace = Some(scene.ns.clone());
        Self { other, crd, set, foreign }
    }
}

#[tokio::test]
async fn c15_a_custom_resource_from_outside_the_set_holds_its_definition_on_prune_and_teardown() {
    let scene = Scene::with("in-use-crd", |b| b.prune_guard(kube_custody::custodian::PruneGuard::off())).await;
    let kinds = Kinds::new(&scene, "in-use-crd-other");
    let name = kinds.crd.name_any();
    scene.apply(&kinds.set).await;
    create(&scene.admin, &kinds.foreign).await;
    // Prune: what is in the set goes, the definition is held.
    let outcome = scene.until("the definition is held", &[], |o| users(o, &name).is_some()).await;
    assert_eq!(users(&outcome, &name).unwrap(), [ObjectId::of(&kinds.foreign).unwrap().to_string()], "{outcome:#?}");
    assert!(blocker(&outcome, &name).unwrap().since.is_some());
    // So does the teardown, and the status says so.
    scene.delete().await;
    let outcome = scene.until("nothing else is left", &[], |o| o.removal.unfinished() == 1).await;
    assert_eq!((outcome.phase.clone(), users(&outcome, &name).unwrap().len()), (Phase::Deleting, 1), "{outcome:#?}");
    let now = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::now());
    let conditions = kube_custody::status::conditions(&outcome, &[], None, &now).unwrap();
    assert!(conditions.iter().all(|c| c.reason == "InUse" && c.message.contains("Widget")), "{conditions:#?}");
    assert!(!scene.attempted().contains(&name), "no DELETE is sent while somebody else uses it");
    assert!(exists(&scene.admin, &kinds.foreign).await);
    assert_eq!(scene.present(&kinds.set).await, [false, true, false]);
    remove(&scene.admin, &kinds.foreign).await;
    assert_eq!(scene.settle(&[]).await.phase, Phase::Released);
    assert!(!exists(&scene.admin, &kinds.crd).await);
}

#[tokio::test]
async fn what_is_in_use_is_kept_or_deleted_if_the_author_says_so() {
    let scene = Scene::with("in-use-policy", |b| b.in_use(InUsePolicy::Delete)).await;
    let kept = Kinds::new(&scene, "in-use-kept");
    let deleted = Kinds::new(&scene, "in-use-deleted");
    let mut set: Vec<_> = kept.set.iter().chain(&deleted.set).cloned().collect();
    // The manifest says less than the author's code, and wins; it is not applied.
    set[1].annotations_mut().insert(format!("{MANAGER}/in-use"), "keep".into());
    scene.apply(&set).await;
    assert!(live(&scene.admin, &kept.crd).await.unwrap().annotations().keys().all(|k| !k.ends_with("/in-use")));
    create(&scene.admin, &kept.foreign).await;
    create(&scene.admin, &deleted.foreign).await;
    let outcome = scene.tear_down().await;
    assert_eq!(scene.present(&[kept.crd.clone(), kept.foreign.clone()]).await, [true, true], "{outcome:#?}");
    assert_eq!(scene.present(&[deleted.crd, deleted.foreign]).await, [false, false], "{outcome:#?}");
    let row = outcome.removal.kept.iter().find(|k| k.id.name() == kept.crd.name_any()).unwrap();
    assert_eq!(row.needed_by, Some(ObjectId::of(&kept.foreign).unwrap()));
    assert!(live(&scene.admin, &kept.crd).await.unwrap().annotations().keys().all(|k| !k.starts_with(MANAGER)));
    remove(&scene.admin, &kept.foreign).await;
    remove(&scene.admin, &kept.crd).await;
}

#[tokio::test]
async fn a_manifest_cannot_ask_that_something_in_use_is_deleted() {
    let scene = Scene::new("in-use-manifest").await;
    let mut set = [namespace(&fixtures::ns("in-use-manifest-other"))];
    set[0].annotations_mut().insert(format!("{MANAGER}/in-use"), "delete".into());
    let outcome = scene.pass(&set).await;
    assert!(
        matches!(&outcome.error, Some(Error::Desired { source: DesiredError::InUse { value, .. } }) if value == "delete"),
        "{outcome:#?}"
    );
    assert!(!exists(&scene.admin, &set[0]).await);
}

#[tokio::test]
async fn c29_a_namespace_with_another_parents_children_waits_for_the_last_of_them() {
    let scene = Scene::new("c29").await;
    let shared = fixtures::ns("c29-shared");
    let first = [namespace(&shared), config_map(&shared, "first", &[])];
    let second = [config_map(&shared, "second", &[])];
    scene.apply(&first).await;
    let other = parent(&scene.admin, &scene.ns, "other").await;
    // The second claim on the namespace is refused and reported; what is in it is the second parent's own.
    let both = [second[0].clone(), first[0].clone()];
    let outcome = reconcile(&scene.custodian, &reload(&scene.admin, &other).await.unwrap(), &both).await;
    assert!(problem(&outcome, &shared).is_some_and(|p| p.to_string().contains("managed for")), "{outcome:#?}");
    assert_eq!(settle(&scene.custodian, &scene.admin, &other, &second).await.phase, Phase::Applied);

    // The first goes while the second has something in there.
    scene.delete().await;
    let outcome = scene.until("the namespace is held", &[], |o| users(o, &shared).is_some()).await;
    let users = users(&outcome, &shared).unwrap();
    assert!(users.contains(&format!("ConfigMap {shared}/second")), "{users:?}");
    assert!(!scene.attempted().contains(&shared));
    assert!(!exists(&scene.admin, &first[1]).await && exists(&scene.admin, &second[0]).await);
    delete(&scene.admin, &other).await;
    settle_deleted(&scene.custodian, &scene.admin, &other, &[]).await;
    assert_eq!(scene.settle(&[]).await.phase, Phase::Released);
    assert!(!exists(&scene.admin, &first[0]).await);
}

#[tokio::test]
async fn c50_a_namespace_waits_for_pods_and_claims_of_others_but_not_for_what_the_cluster_derived() {
    let scene = Scene::new("in-use-pods").await;
    let ns = fixtures::ns("in-use-pods-other");
    let set = [namespace(&ns), config_map(&ns, "ours", &[])];
    scene.apply(&set).await;
    let strangers = [pod(&ns, "stray"), claim(&ns, "data")];
    for stranger in &strangers {
        create(&scene.admin, stranger).await;
    }
    // As a controller of the cluster would derive it from ours.
    create(&scene.admin, &config_map(&ns, "derived", &[])).await;
    scene.delete().await;
    let outcome = scene.until("the namespace is held", &[], |o| users(o, &ns).is_some()).await;
    assert_eq!(
        users(&outcome, &ns).unwrap(),
        [format!("PersistentVolumeClaim {ns}/data"), format!("Pod {ns}/stray")],
        "{outcome:#?}"
    );
    assert!(!scene.attempted().contains(&ns));
    for stranger in &strangers {
        remove(&scene.admin, stranger).await;
        // No controller takes the finalizer for pods that use the claim off.
        if exists(&scene.admin, stranger).await {
            patch(&scene.admin, stranger, json!({"metadata": {"finalizers": null}})).await;
        }
    }
    assert_eq!(scene.settle(&[]).await.phase, Phase::Released);
    assert!(!exists(&scene.admin, &set[0]).await);
}

#[tokio::test]
async fn further_kinds_hold_a_namespace_if_the_author_asks() {
    let scene = Scene::with("in-use-scan", |b| b.in_use_scan(["ConfigMap".parse().unwrap()])).await;
    let ns = fixtures::ns("in-use-scan-other");
    let set = [namespace(&ns), config_map(&ns, "ours", &[])];
    scene.apply(&set).await;
    let foreign = create(&scene.admin, &config_map(&ns, "foreign", &[])).await;
    scene.delete().await;
    let outcome = scene.until("the namespace is held", &[], |o| users(o, &ns).is_some()).await;
    assert_eq!(users(&outcome, &ns).unwrap(), [format!("ConfigMap {ns}/foreign")]);
    remove(&scene.admin, &foreign).await;
    assert_eq!(scene.settle(&[]).await.phase, Phase::Released);
}

#[tokio::test]
async fn what_asks_to_be_kept_keeps_its_namespace_without_watches_and_rules() {
    let bare = |b: kube_custody::custodian::Builder<GitTrack>| {
        b.watch(Watch::Off).rules(Rules::default()).in_use(InUsePolicy::Delete)
    };
    let scene = Scene::with("keep-inside", bare).await;
    let ns = fixtures::ns("keep-inside-other");
    let set = [namespace(&ns), config_map(&ns, "kept", &[]), config_map(&ns, "goes", &[])];
    create(&scene.admin, &set[0]).await;
    remove(&scene.admin, &set[0]).await;
    fixtures::eventually("the namespace is gone", async || (!exists(&scene.admin, &set[0]).await).then_some(())).await;
    scene.apply(&set).await;
    // Somebody else asks on the live object; no watch shows it, and no edge makes the namespace wait.
    patch(&scene.admin, &set[1], json!({"metadata": {"annotations": {"helm.sh/resource-policy": "keep"}}})).await;
    let outcome = scene.tear_down().await;
    assert_eq!(scene.present(&set).await, [true, true, false], "{outcome:#?}");
    assert!(!scene.attempted().contains(&ns));
    let row = outcome.removal.kept.iter().find(|k| k.id.name() == ns).unwrap();
    assert_eq!(row.needed_by.as_ref().map(ObjectId::name), Some("kept"));
}

#[tokio::test]
async fn what_was_given_up_keeps_its_namespace() {
    let scene = Scene::new("abandon-inside").await;
    let ns = fixtures::ns("abandon-inside-other");
    let set = [namespace(&ns), config_map(&ns, "lost", &[]), config_map(&ns, "goes", &[])];
    scene.apply(&set).await;
    scene.custodian.abandon(&scene.track, &ObjectId::of(&set[1]).unwrap()).await.unwrap();
    let outcome = scene.tear_down().await;
    assert_eq!(scene.present(&set).await, [true, true, false], "{outcome:#?}");
    assert!(!scene.attempted().contains(&ns));
}

#[tokio::test]
async fn a_parent_never_deletes_the_namespace_that_it_lives_in() {
    let scene = Scene::with("own-namespace", |b| b.in_use(InUsePolicy::Delete)).await;
    let set = [scene.map("x", &[])];
    scene.apply(&set).await;
    // As if it had been created for the parent.
    let (admin, own) = (scene.admin.clone(), namespace(&scene.ns));
    let uid = live(&admin, &own).await.unwrap().uid().unwrap();
    let (id, ns) = (ObjectId::of(&own).unwrap(), scene.ns.clone());
    let track = kube_custody::object::ParentRef::of(&scene.track).unwrap();
    let pointer = kube_custody::ownership::BackPointer::new(&track, &id);
    patch(
        &admin,
        &own,
        json!({"metadata": {
            "labels": {format!("{MANAGER}/parent-uid"): track.uid.as_str()},
            "annotations": {format!("{MANAGER}/back-pointer"): pointer.encode()},
        }}),
    )
    .await;
    scene
        .meddle(|inventory| {
            let resource = kube_custody::object::ResourceKind::new(
                "",
                "v1",
                "Namespace",
                "namespaces",
                kube_custody::object::Scope::Cluster,
            );
            let mut entry = kube_custody::inventory::Entry::intended(id, &resource);
            entry.uid = Some(Uid::new(uid).unwrap());
            entry.state = kube_custody::inventory::EntryState::Recorded;
            (entry.deletion, entry.origin) = (DeletionPolicy::Delete, Origin::Created);
            inventory.insert(entry);
        })
        .await;
    let outcome = scene.tear_down().await;
    assert!(exists(&admin, &own).await && !scene.attempted().contains(&ns), "{outcome:#?}");
}

/// An operator that may do everything to Widgets of one group and ConfigMaps, but not list the former.
async fn limited(scene: &Scene, group: &str) -> (Client, fixtures::Grant) {
    let plane = Plane::shared().await;
    let client = fixtures::service_account_client(plane, &scene.ns, "limited").await;
    let all = &["get", "create", "patch", "delete"];
    let rules = vec![
        rule("faros.pusher.com", &["*"], &["*"]),
        rule("", &["configmaps"], &["*"]),
        rule("", &["namespaces"], all),
        rule("apiextensions.k8s.io", &["customresourcedefinitions"], &["*"]),
        rule(group, &["widgets"], all),
    ];
    let grant = fixtures::grant(&scene.admin, &Subject::service_account(&scene.ns, "limited"), None, rules).await;
    (client, grant)
}

#[tokio::test]
async fn a_missing_right_to_look_holds_and_is_named() {
    let mut scene = Scene::new("in-use-rbac").await;
    let kinds = Kinds::new(&scene, "in-use-rbac-other");
    let group = format!("{}.example.com", kinds.other);
    let (client, grant) = limited(&scene, &group).await;
    scene.custodian = builder(client).build().unwrap();
    let (name, account) = (kinds.crd.name_any(), Subject::service_account(&scene.ns, "limited"));
    scene.apply(&kinds.set).await;
    scene.delete().await;
    let held = |o: &Outcome, name: &str, words: &str| {
        blocker(o, name).is_some_and(|b| b.reason == Reason::UseUnknown && b.words.contains(words))
    };
    let list = format!("list widgets.{group}");
    let outcome = scene
        .until("both are held", &[], |o| held(o, &name, &format!("`{list}`")) && held(o, &kinds.other, "`list pods`"))
        .await;
    assert!(held(&outcome, &kinds.other, "`list persistentvolumeclaims`"), "{outcome:#?}");
    assert_eq!(scene.present(&kinds.set).await, [true, true, false]);
    let more =
        vec![rule(&group, &["widgets"], &["list"]), rule("", &["pods", "persistentvolumeclaims"], &["list", "get"])];
    let second = fixtures::grant(&scene.admin, &account, None, more).await;
    assert_eq!(scene.settle(&[]).await.phase, Phase::Released);
    assert_eq!(scene.present(&kinds.set).await, [false, false, false]);
    grant.revoke(&scene.admin).await;
    second.revoke(&scene.admin).await;
}

async fn reference(client: &Client, object: &DynamicObject) -> LiveRef {
    let uid = live(client, object).await.unwrap().uid().unwrap();
    LiveRef::new(ObjectId::of(object).unwrap(), Uid::new(uid).unwrap())
}

/// A Deployment with a ReplicaSet and a Pod as its controllers would make them.
async fn workload(client: &Client, ns: &str) -> [DynamicObject; 3] {
    let template = json!({
        "metadata": {"labels": {"app": "x"}},
        "spec": {"containers": [{"name": "main", "image": "example.com/none"}]},
    });
    let selector = json!({"matchLabels": {"app": "x"}});
    let controlled = |kind: &str, by: &DynamicObject| {
        json!({
            "apiVersion": "apps/v1", "kind": kind, "name": by.name_any(), "uid": by.uid().unwrap(), "controller": true,
        })
    };
    let deployment = create(
        client,
        &object(json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "x", "namespace": ns, "finalizers": ["test.example.com/held"]},
            "spec": {"selector": selector, "template": template},
        })),
    )
    .await;
    let set = create(
        client,
        &object(json!({
            "apiVersion": "apps/v1", "kind": "ReplicaSet",
            "metadata": {"name": "x-1", "namespace": ns, "ownerReferences": [controlled("Deployment", &deployment)]},
            "spec": {"selector": selector, "template": template},
        })),
    )
    .await;
    let mut pod = pod(ns, "x-1-a");
    pod.metadata.owner_references = Some(vec![serde_json::from_value(controlled("ReplicaSet", &set)).unwrap()]);
    let pod = create(client, &pod).await;
    [deployment, set, pod]
}

#[tokio::test]
async fn the_sequencer_alone_looks_inside_too_and_traces_pods_to_what_controls_them() {
    let plane = Plane::shared().await;
    let (client, log) = plane.audited("admin");
    let ns = new_namespace(&client, "in-use-alone").await;
    let [deployment, ..] = workload(&client, &ns).await;
    let stray = create(&client, &pod(&ns, "stray")).await;
    let objects = [reference(&client, &namespace(&ns)).await, reference(&client, &deployment).await];
    // Without an edge between the two, the namespace's turn comes while the pods are there.
    let plan = || Teardown::new(objects.clone()).plan().unwrap();
    let Slice::Pending { report, .. } = plan().slice(&client, Duration::from_millis(500)).await else { panic!() };
    let held = report.blockers.iter().find(|b| b.id.name() == ns).unwrap();
    assert!(matches!(&held.reason, Reason::InUse { by, count: 1 } if by[0].name() == "stray"), "{report:#?}");
    assert!(log.calls_where(|c| c.head.verb == Verb::Delete && c.head.name() == Some(&ns)).is_empty());

    remove(&client, &stray).await;
    patch(&client, &deployment, json!({"metadata": {"finalizers": null}})).await;
    let report = plan().run(&client).timeout(Duration::from_secs(60)).await.unwrap();
    assert_eq!(report.gone.len(), 2);
}

#[tokio::test]
async fn the_sequencer_alone_holds_a_definition_and_takes_it_if_told() {
    let client = client().await;
    let unique = new_namespace(&client, "in-use-alone-crd").await;
    let crd = definition(&unique, &[("v1", true)]);
    create(&client, &crd).await;
    fixtures::eventually("the definition serves", async || {
        api_of(&client, &custom(&unique, "v1", "x")).list(&Default::default()).await.ok()
    })
    .await;
    create(&client, &custom(&unique, "v1", "x")).await;
    let teardown = Teardown::new([reference(&client, &crd).await]);
    let run = teardown.clone().plan().unwrap().run(&client).timeout(Duration::from_millis(300)).await;
    let Err(teardown::Error::Incomplete { report }) = run else { panic!("{run:?}") };
    assert!(matches!(&report.blockers[0].reason, Reason::InUse { by, .. } if by[0].name() == "x"), "{report:#?}");
    let id = ObjectId::of(&crd).unwrap();
    let plan = teardown.in_use_of(id, InUsePolicy::Delete).plan().unwrap();
    assert_eq!(plan.run(&client).timeout(Duration::from_secs(60)).await.unwrap().gone.len(), 1);
}

#[tokio::test]
async fn what_is_said_of_an_object_that_is_not_in_the_set_is_an_error() {
    let client = client().await;
    let custodian: Custodian<GitTrack> = builder(client.clone()).build().unwrap();
    let ns = new_namespace(&client, "in-use-nothing").await;
    let track = parent(&client, &ns, "track").await;
    let mut desired = Desired::new();
    desired.in_use(id("Namespace elsewhere"), InUsePolicy::Keep);
    let desired = async |_: std::sync::Arc<GitTrack>| Ok::<_, std::io::Error>(desired);
    let outcome = custodian.reconcile(&track, desired).await;
    assert!(matches!(outcome.error, Some(Error::Desired { source: DesiredError::NotInSet(_) })), "{outcome:#?}");
}
