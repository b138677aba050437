//! fluxcd/kustomize-controller#301: parents that depend on each other, deleted by one command.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use control_plane::{
    Plane,
    audit::{CallHead, Verb},
    fixtures::{self, Subject, rule},
};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
};
use kube_custody::{
    gate::BlockPolicy,
    inventory::{ConfigMapStore, Decision, DeletionPolicy, InventoryStore, Loaded, SaveOptions},
    manager::Manager,
    object::{LiveRef, ObjectId, ParentRef, Uid},
    status,
};
use serde_json::json;

use crate::{
    kustomization::{self, Bundle, Kustomization, Parent, Reference, Stage, gate},
    world::*,
};

const HOLD: &str = "somebody.example.com/hold";

fn names(names: &[&str]) -> Vec<Reference> {
    names.iter().map(|name| Reference { name: (*name).into(), ..Reference::default() }).collect()
}

fn elsewhere(namespace: &str, name: &str) -> Vec<Reference> {
    vec![Reference { kind: None, namespace: Some(namespace.into()), name: name.into() }]
}

/// Somebody else has a finalizer on an object from now on.
async fn hold(client: &Client, object: &DynamicObject) {
    patch(client, object, json!({"metadata": {"finalizers": [HOLD]}})).await;
}

async fn release(client: &Client, object: &DynamicObject) {
    patch(client, object, json!({"metadata": {"finalizers": null}})).await;
}

fn blocked(ready: &k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition) -> bool {
    ready.status == "False" && ready.reason == "DependentsExist"
}

fn deployment(namespace: &str, name: &str, account: &str) -> DynamicObject {
    object(json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "replicas": 2, "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"serviceAccountName": account, "containers": [{"name": "c", "image": "example.com/image"}]},
            },
        },
    }))
}

fn account(namespace: &str, name: &str) -> DynamicObject {
    object(json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": namespace}}))
}

/// An application, the operator of its custom resources, and their definition, in one namespace.
struct Three {
    app: (Kustomization, Vec<DynamicObject>),
    operator: (Kustomization, Vec<DynamicObject>),
    crds: (Kustomization, Vec<DynamicObject>),
    widget: DynamicObject,
}

impl Three {
    async fn new(stage: &Stage) -> Self {
        let ns = &stage.ns;
        let widget = custom(ns, "v1", "w");
        let app_set = vec![widget.clone(), config_map(ns, "settings", &[]), deployment(ns, "web", "default")];
        let operator_set = vec![account(ns, "operator"), deployment(ns, "operator", "operator")];
        let crds_set = vec![definition(ns, &[("v1", true)])];
        // The dependents come first: they have to wait.
        let app = stage.parent("app", &["operator"], &app_set).await;
        let operator = stage.parent("operator", &["crds"], &operator_set).await;
        let crds = stage.parent("crds", &[], &crds_set).await;
        Self { app: (app, app_set), operator: (operator, operator_set), crds: (crds, crds_set), widget }
    }

    fn parents(&self) -> [&Kustomization; 3] {
        // In the order that does the most harm.
        [&self.crds.0, &self.operator.0, &self.app.0]
    }
}

async fn plane_with_workloads() -> Plane {
    Plane::builder().stock_controllers(&["deployment-controller", "replicaset-controller"]).start().await.unwrap()
}

async fn pods(client: &Client, namespace: &str, app: &str) -> Vec<String> {
    let api = Api::<Pod>::namespaced(client.clone(), namespace);
    let pods = api.list(&ListParams::default().labels(&format!("app={app}"))).await.unwrap();
    pods.items.iter().map(ResourceExt::name_any).collect()
}

#[tokio::test]
async fn c12_parents_deleted_by_one_command_go_in_reverse_order() {
    let plane = plane_with_workloads().await;
    let mut stage = Stage::on(&plane, "k301").await;
    stage.run(Some(gate(stage.operator.clone()).until_ready(true)));
    let three = Three::new(&stage).await;
    for parent in three.parents() {
        stage.applied(parent).await;
    }
    hold(&stage.admin, &three.widget).await;
    for app in ["web", "operator"] {
        fixtures::eventually(format!("pods of {app}"), async || {
            (pods(&stage.admin, &stage.ns, app).await.len() == 2).then_some(())
        })
        .await;
    }
    let creates = stage.log.calls_where(|c| c.head.verb == Verb::Create && c.effective);
    let created: Vec<_> = creates.iter().filter_map(|c| c.head.name().map(ToOwned::to_owned)).collect();
    let crd = three.crds.1[0].name_any();
    assert_before(&created, &crd, "operator");
    assert_before(&created, "operator", "w");

    // Pods of the application at the moment when the operator's Deployment is told to go.
    let seen = Arc::new(Mutex::new(None));
    let (memory, admin, ns) = (Arc::clone(&seen), stage.admin.clone(), stage.ns.clone());
    stage.log.before_call(move |head| {
        let now = head.verb == Verb::Delete && head.target.plural == "deployments" && head.name() == Some("operator");
        let (memory, admin, ns) = (Arc::clone(&memory), admin.clone(), ns.clone());
        async move {
            if now {
                let left = pods(&admin, &ns, "web").await;
                memory.lock().unwrap().get_or_insert(left);
            }
        }
    });
    stage.log.clear();
    for parent in three.parents() {
        stage.delete(parent).await;
    }
    let of_crds = stage.ready_is(&three.crds.0, |c| blocked(c) && c.message.contains("being deleted since")).await;
    assert!(of_crds.message.contains(&format!("Kustomization.kustomize.example.com {}/operator", stage.ns)));
    assert!(!of_crds.message.contains("/app"), "waits for its own dependents only: {}", of_crds.message);
    let of_operator = stage.ready_is(&three.operator.0, |c| blocked(c) && c.message.contains("/app")).await;
    assert_eq!(of_operator.reason, "DependentsExist");
    fixtures::eventually("all of the application but what is held", async || {
        let [_, settings, web] = &*three.app.1 else { unreachable!() };
        (!exists(&stage.admin, settings).await && !exists(&stage.admin, web).await).then_some(())
    })
    .await;
    for object in three.operator.1.iter().chain(&three.crds.1) {
        let live = live(&stage.admin, object).await.expect("it is needed");
        assert!(live.metadata.deletion_timestamp.is_none());
    }
    release(&stage.admin, &three.widget).await;
    for parent in three.parents() {
        stage.gone(parent).await;
    }
    let deleted: Vec<_> =
        deletions(&stage.log).iter().map(|path| path.rsplit('/').next().unwrap().to_owned()).collect();
    for first in ["w", "settings", "web"] {
        assert_before(&deleted, first, "operator");
    }
    assert!(deletions(&stage.log).last().unwrap().ends_with(&crd), "{deleted:?}");
    assert_eq!(*seen.lock().unwrap(), Some(Vec::new()), "the application's pods were gone before its operator went");
    plane.shutdown().await.unwrap();
}

#[tokio::test]
async fn without_a_gate_the_operator_goes_before_its_custom_resources() {
    let plane = plane_with_workloads().await;
    let mut stage = Stage::on(&plane, "naive").await;
    stage.run(None);
    let three = Three::new(&stage).await;
    for parent in three.parents() {
        stage.applied(parent).await;
    }
    hold(&stage.admin, &three.widget).await;
    for parent in three.parents() {
        stage.delete(parent).await;
    }
    // The control: with the custom resource still there, its operator is taken away, and nobody would ever serve it again.
    stage.gone(&three.operator.0).await;
    assert!(exists(&stage.admin, &three.widget).await);
    assert!(!exists(&stage.admin, &three.operator.1[1]).await);
    // Its definition is held by what is in use and not of its own set, and says so.
    stage.ready_is(&three.crds.0, |c| c.status == "False" && c.message.contains("/w")).await;
    assert!(live(&stage.admin, &three.crds.1[0]).await.unwrap().metadata.deletion_timestamp.is_none());
    release(&stage.admin, &three.widget).await;
    stage.gone(&three.crds.0).await;
    plane.shutdown().await.unwrap();
}

#[tokio::test]
async fn c45_force_releases_exactly_what_it_names_and_is_on_record() {
    let mut stage = Stage::new("force").await;
    stage.run(Some(gate(stage.operator.clone())));
    let map = |name: &str| config_map(&stage.ns, name, &[]);
    let base = stage.parent("base", &[], &[map("base")]).await;
    let one = stage.parent("one", &["base"], &[map("one")]).await;
    let two = stage.parent("two", &["base"], &[map("two")]).await;
    for parent in [&base, &one, &two] {
        stage.applied(parent).await;
    }
    hold(&stage.admin, &map("base")).await;
    stage.delete(&base).await;
    let both = |c: &_| blocked(c) && c.message.contains("/one") && c.message.contains("/two");
    let condition = stage.ready_is(&base, both).await;
    assert!(condition.message.contains("which is not being deleted"), "{}", condition.message);

    let live_ref = |p: &Kustomization| {
        let id = ObjectId::of_resource(p).unwrap();
        LiveRef::new(id, Uid::new(p.uid().unwrap()).unwrap())
    };
    let request = |uid: &str, of: &[&Kustomization]| {
        let all: Vec<_> =
            of.iter().map(|p| live_ref(p)).map(|l| json!({"object": l.id.to_string(), "uid": l.uid})).collect();
        json!({"uid": uid, "dependents": all, "reason": "their cluster is lost"}).to_string()
    };
    let (key, uid) = (Manager::new(kustomization::MANAGER).unwrap().force_annotation(), base.uid().unwrap());
    stage.annotate(&base, &key, &request("of another time", &[&one, &two])).await;
    stage.ready_is(&base, |c| both(c) && c.message.contains("nothing is forced")).await;
    stage.annotate(&base, &key, &request(&uid, &[&one])).await;
    stage.ready_is(&base, |c| blocked(c) && !c.message.contains("/one") && c.message.contains("/two")).await;
    assert!(!deletions(&stage.log).iter().any(|d| d.contains("base")), "{:?}", deletions(&stage.log));
    stage.annotate(&base, &key, &request(&uid, &[&one, &two])).await;
    fixtures::eventually("the teardown", async || live(&stage.admin, &map("base")).await?.metadata.deletion_timestamp)
        .await;
    let store = ConfigMapStore::new(stage.admin.clone(), Manager::new(kustomization::MANAGER).unwrap());
    let Loaded::Found(record) = store.load(&ParentRef::of(&base).unwrap()).await.unwrap() else { panic!() };
    let decision = record.inventory.decision.unwrap();
    assert_eq!(decision.without, [live_ref(&one), live_ref(&two)].into());
    assert!(decision.reason.contains("their cluster is lost"), "{decision:?}");
    // Those that were left keep what they have, and say what is missing.
    release(&stage.admin, &map("base")).await;
    stage.gone(&base).await;
    stage.ready_is(&one, |c| c.reason == "DependenciesNotMet" && c.message.contains("base does not exist")).await;
    assert!(exists(&stage.admin, &map("one")).await && exists(&stage.admin, &map("two")).await);
    for parent in [&one, &two] {
        stage.delete(parent).await;
        stage.gone(parent).await;
    }
}

/// Whoever may write the record in his own namespace cannot say there that dependents were asked about.
#[tokio::test]
async fn c45_a_forged_decision_opens_no_gate() {
    let mut stage = Stage::new("forged-gate").await;
    stage.run(Some(gate(stage.operator.clone()).force(kube_custody::force::Allowed::nothing())));
    let map = |name: &str| config_map(&stage.ns, name, &[]);
    let base = stage.parent("base", &[], &[map("base")]).await;
    let app = stage.parent("app", &["base"], &[map("app")]).await;
    for parent in [&base, &app] {
        stage.applied(parent).await;
    }
    let store = ConfigMapStore::new(stage.admin.clone(), Manager::new(kustomization::MANAGER).unwrap());
    let Loaded::Found(record) = store.load(&ParentRef::of(&base).unwrap()).await.unwrap() else { panic!() };
    let mut inventory = record.inventory;
    let app_ref = LiveRef::new(ObjectId::of_resource(&app).unwrap(), Uid::new(app.uid().unwrap()).unwrap());
    let decision = Decision::new(DeletionPolicy::Delete, "so it seems").without([app_ref].into(), None);
    inventory.decision = Some(decision);
    store.save(&inventory, SaveOptions::replace(record.version)).await.unwrap();
    stage.delete(&base).await;
    stage.ready_is(&base, blocked).await;
    assert!(!deletions(&stage.log).iter().any(|d| d.contains("base")), "{:?}", deletions(&stage.log));
    assert!(exists(&stage.admin, &map("base")).await);
    stage.delete(&app).await;
    stage.gone(&base).await;
}

#[tokio::test]
async fn c45_without_the_authors_consent_a_request_changes_nothing() {
    let mut stage = Stage::new("noforce").await;
    stage.run(Some(gate(stage.operator.clone()).force(kube_custody::force::Allowed::nothing())));
    let base = stage.parent("base", &[], &[config_map(&stage.ns, "base", &[])]).await;
    let app = stage.parent("app", &["base"], &[config_map(&stage.ns, "app", &[])]).await;
    for parent in [&base, &app] {
        stage.applied(parent).await;
    }
    let object = ObjectId::of_resource(&app).unwrap().to_string();
    let request = json!({"uid": base.uid(), "dependents": [{"object": object, "uid": app.uid()}]});
    stage
        .annotate(&base, &Manager::new(kustomization::MANAGER).unwrap().force_annotation(), &request.to_string())
        .await;
    stage.delete(&base).await;
    stage.ready_is(&base, |c| blocked(c) && c.message.contains("app is waited for all the same")).await;
    assert!(exists(&stage.admin, &config_map(&stage.ns, "base", &[])).await);
    stage.delete(&app).await;
    stage.gone(&base).await;
}

#[tokio::test]
async fn nobody_blocks_another_tenants_deletion_unless_allowed() {
    let plane = Plane::shared().await;
    let mut stage = Stage::on(plane, "owner").await;
    let (owner, tenant) = (stage.ns.clone(), new_namespace(&stage.admin, "tenant").await);
    stage.run(Some(gate(stage.operator.clone())));
    let base = stage.parent("base", &[], &[config_map(&owner, "base", &[])]).await;
    stage.applied(&base).await;
    // A tenant who may write in its own namespace only.
    let client = fixtures::service_account_client(plane, &tenant, "tenant").await;
    let rights = rule("kustomize.example.com", &["kustomizations"], &["create", "get", "delete"]);
    let subject = Subject::service_account(&tenant, "tenant");
    let grant = fixtures::grant(&stage.admin, &subject, Some(&tenant), vec![rights]).await;
    let theirs: Kustomization =
        stage.planned(&tenant, "app", elsewhere(&owner, "base"), &[config_map(&tenant, "app", &[])]);
    let api = Api::<Kustomization>::namespaced(client, &tenant);
    let theirs = api.create(&PostParams::default(), &theirs).await.unwrap();
    stage.ready_is(&theirs, |c| c.message.contains("may not be held up by this parent")).await;
    stage.delete(&base).await;
    stage.gone(&base).await;
    assert!(!exists(&stage.admin, &config_map(&tenant, "app", &[])).await, "nothing was built on what nobody keeps");
    api.delete("app", &DeleteParams::default()).await.unwrap();
    stage.gone(&theirs).await;
    grant.revoke(&stage.admin).await;
}

#[tokio::test]
async fn c12_three_tenants_in_three_namespaces_go_in_order_where_allowed() {
    let plane = Plane::shared().await;
    let mut stage = Stage::on(plane, "crds").await;
    let crds_ns = stage.ns.clone();
    let (operator_ns, app_ns) = (new_namespace(&stage.admin, "op").await, new_namespace(&stage.admin, "app").await);
    let order: BTreeMap<String, usize> =
        [(app_ns.clone(), 0), (operator_ns.clone(), 1), (crds_ns.clone(), 2)].into_iter().collect();
    // The author lets each level hold up those below it.
    let level = move |id: &ObjectId| id.namespace().and_then(|n| order.get(n).copied());
    let policy = BlockPolicy::when(move |by, of| matches!((level(by), level(of)), (Some(b), Some(o)) if b <= o));
    stage.run(Some(gate(stage.operator.clone()).may_block(policy)));
    let map = |ns: &str| config_map(ns, "child", &[]);
    let mut tenants = Vec::new();
    for (ns, set, on) in [
        (&crds_ns, map(&crds_ns), Vec::new()),
        (&operator_ns, map(&operator_ns), elsewhere(&crds_ns, "parent")),
        (&app_ns, map(&app_ns), elsewhere(&operator_ns, "parent")),
    ] {
        let client = fixtures::service_account_client(plane, ns, "tenant").await;
        let rights = rule("kustomize.example.com", &["kustomizations"], &["create", "get", "delete"]);
        let subject = Subject::service_account(ns, "tenant");
        let _ = fixtures::grant(&stage.admin, &subject, Some(ns), vec![rights]).await;
        let parent: Kustomization = stage.planned(ns, "parent", on, &[set]);
        let api = Api::<Kustomization>::namespaced(client, ns);
        let parent = api.create(&PostParams::default(), &parent).await.unwrap();
        stage.applied(&parent).await;
        tenants.push((api, parent));
    }
    hold(&stage.admin, &map(&app_ns)).await;
    stage.log.clear();
    for (api, _) in &tenants {
        api.delete("parent", &DeleteParams::default()).await.unwrap();
    }
    stage.ready_is(&tenants[0].1, |c| blocked(c) && c.message.contains(&operator_ns)).await;
    stage.ready_is(&tenants[1].1, |c| blocked(c) && c.message.contains(&app_ns)).await;
    fixtures::eventually("the application's teardown", async || {
        live(&stage.admin, &map(&app_ns)).await?.metadata.deletion_timestamp
    })
    .await;
    assert!(exists(&stage.admin, &map(&operator_ns)).await && exists(&stage.admin, &map(&crds_ns)).await);
    release(&stage.admin, &map(&app_ns)).await;
    for (_, parent) in &tenants {
        stage.gone(parent).await;
    }
    let expected: Vec<_> = [&app_ns, &operator_ns, &crds_ns].map(|ns| format!("configmaps/{ns}/child")).to_vec();
    assert_eq!(deletions(&stage.log), expected);
}

#[tokio::test]
async fn c24_a_cycle_is_named_while_it_lives_and_goes_as_one() {
    let mut stage = Stage::new("cycle").await;
    stage.run(Some(gate(stage.operator.clone()).until_ready(true)));
    let map = |name: &str| config_map(&stage.ns, name, &[]);
    let a = stage.parent("a", &["b"], &[map("a")]).await;
    let b = stage.parent("b", &["a"], &[map("b")]).await;
    let user = stage.parent("user", &["b"], &[map("user")]).await;
    for parent in [&a, &b, &user] {
        stage.applied(parent).await;
    }
    hold(&stage.admin, &map("user")).await;
    stage.annotate(&a, "touched", "now that the cycle is complete").await;
    let condition = stage.ready_is(&a, |c| c.message.contains("dependsOn leads back to itself")).await;
    assert!(condition.message.contains(&format!("{0}/a -> Kustomization.kustomize.example.com {0}/b", stage.ns)));
    stage.delete(&a).await;
    stage.ready_is(&a, |c| blocked(c) && c.message.contains("/b")).await;
    stage.delete(&b).await;
    // The group waits for who needs any of it.
    stage.ready_is(&a, |c| blocked(c) && c.message.contains("/user")).await;
    stage.ready_is(&b, |c| blocked(c) && c.message.contains("/user")).await;
    assert!(exists(&stage.admin, &map("a")).await && exists(&stage.admin, &map("b")).await);
    stage.delete(&user).await;
    release(&stage.admin, &map("user")).await;
    for parent in [&user, &a, &b] {
        stage.gone(parent).await;
    }
}

#[tokio::test]
async fn who_comes_during_the_teardown_creates_nothing_and_stops_nothing() {
    let mut stage = Stage::new("late").await;
    stage.run(Some(gate(stage.operator.clone())));
    let ns = stage.ns.clone();
    let map = |name: &str| config_map(&ns, name, &[]);
    let base = stage.parent("base", &[], &[map("base")]).await;
    stage.applied(&base).await;
    hold(&stage.admin, &map("base")).await;
    stage.delete(&base).await;
    fixtures::eventually("the teardown", async || live(&stage.admin, &map("base")).await?.metadata.deletion_timestamp)
        .await;
    let late = stage.parent("late", &["base"], &[map("late")]).await;
    stage.ready_is(&late, |c| c.reason == "DependenciesNotMet" && c.message.contains("is being deleted since")).await;
    // Neither does it after a restart of the operator.
    stage.stop();
    stage.run(Some(gate(stage.operator.clone())));
    release(&stage.admin, &map("base")).await;
    stage.gone(&base).await;
    assert!(!exists(&stage.admin, &map("late")).await);
    stage.ready_is(&late, |c| c.message.contains("base does not exist")).await;
    // A new incarnation is what it waits for.
    let base = stage.parent("base", &[], &[map("base")]).await;
    stage.applied(&late).await;
    assert!(exists(&stage.admin, &map("late")).await);
    for parent in [&base, &late] {
        stage.delete(parent).await;
    }
    for parent in [&late, &base] {
        stage.gone(parent).await;
    }
}

#[tokio::test]
async fn c24_who_marks_itself_just_as_its_dependency_is_deleted_is_not_waited_for() {
    let mut stage = Stage::new("between").await;
    let ns = stage.ns.clone();
    let map = |name: &str| config_map(&ns, name, &[]);
    stage.run(Some(gate(stage.operator.clone())));
    let base = stage.parent("base", &[], &[map("base")]).await;
    stage.applied(&base).await;
    let marks = |head: &CallHead| {
        let body = head.body.as_ref().map(ToString::to_string).unwrap_or_default();
        head.verb == Verb::Patch && head.name() == Some("late") && body.contains("kustomization.example.com/applied")
    };
    let parents = Api::<Kustomization>::namespaced(stage.admin.clone(), &ns);
    let (log, deleted) = (stage.log.clone(), Arc::new(AtomicBool::new(false)));
    stage.log.before_call(move |head| {
        let (marking, listing) = (marks(&head), head.verb == Verb::List && head.target.plural == "kustomizations");
        let (parents, log, deleted) = (parents.clone(), log.clone(), Arc::clone(&deleted));
        async move {
            if marking && !deleted.load(Ordering::SeqCst) {
                parents.delete("base", &DeleteParams::default()).await.unwrap();
                deleted.store(true, Ordering::SeqCst);
            }
            // Who is in its way is asked once the mark is there.
            while listing && deleted.load(Ordering::SeqCst) && log.calls_where(|c| marks(c) && c.effective).is_empty() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    });
    let late = stage.parent("late", &["base"], &[map("late")]).await;
    stage.gone(&base).await;
    assert!(!exists(&stage.admin, &map("base")).await);
    stage.ready_is(&late, |c| c.message.contains("base does not exist")).await;
    assert!(!exists(&stage.admin, &map("late")).await);
    // And it begins with the next one.
    let base = stage.parent("base", &[], &[map("base")]).await;
    stage.applied(&late).await;
    for parent in [&late, &base] {
        stage.delete(parent).await;
        stage.gone(parent).await;
    }
}

#[tokio::test]
async fn parents_of_different_kinds_wait_for_each_other() {
    let mut stage = Stage::new("kinds").await;
    stage.run(Some(gate(stage.operator.clone())));
    let ns = stage.ns.clone();
    let map = |name: &str| config_map(&ns, name, &[]);
    let of = |kind: &str, name: &str| vec![Reference { kind: Some(kind.into()), namespace: None, name: name.into() }];
    let base = stage.parent("base", &[], &[map("base")]).await;
    let middle: Bundle = stage.parent_in(&ns, "middle", of("Kustomization", "base"), &[map("middle")]).await;
    let top: Kustomization = stage.parent_in(&ns, "top", of("Bundle", "middle"), &[map("top")]).await;
    stage.applied(&base).await;
    stage.applied(&middle).await;
    stage.applied(&top).await;
    hold(&stage.admin, &map("top")).await;
    stage.log.clear();
    stage.delete(&base).await;
    stage.delete(&middle).await;
    stage.delete(&top).await;
    stage.ready_is(&base, |c| blocked(c) && c.message.contains("Bundle.kustomize.example.com")).await;
    stage.ready_is(&middle, |c| blocked(c) && c.message.contains("/top")).await;
    release(&stage.admin, &map("top")).await;
    stage.gone(&base).await;
    assert_eq!(deletions(&stage.log), ["top", "middle", "base"].map(|n| format!("configmaps/{ns}/{n}")));
    let unknown: Kustomization = stage.parent_in(&ns, "odd", of("Secret", "x"), &[map("odd")]).await;
    let condition = stage.ready_is(&unknown, |c| c.reason == "DependenciesNotMet").await;
    assert!(condition.message.contains("of a kind that cannot be depended on here"), "{}", condition.message);
    stage.delete(&unknown).await;
    stage.gone(&unknown).await;
}

/// A parent as a child of another one.
fn inner(stage: &Stage, name: &str, depends_on: &[&str]) -> DynamicObject {
    let names: Vec<_> = depends_on.iter().map(|n| json!({"name": n})).collect();
    object(json!({
        "apiVersion": "kustomize.example.com/v1", "kind": "Kustomization",
        "metadata": {"name": name, "namespace": stage.ns, "labels": {"stage": stage.ns}},
        "spec": {"dependsOn": names},
    }))
}

#[tokio::test]
async fn c16_containment_and_use_between_the_same_two_parents_do_not_deadlock() {
    let mut stage = Stage::new("contain").await;
    stage.run(Some(gate(stage.operator.clone())));
    let map = |name: &str| config_map(&stage.ns, name, &[]);
    // `used` is in the set of `outer`, which depends on it from the moment that it is there; `user` depends on `outer`,
    // whose child it is.
    let (used, user) = (inner(&stage, "used", &[]), inner(&stage, "user", &["outer"]));
    let outer = stage.parent("outer", &[], &[used.clone(), user.clone(), map("outer")]).await;
    stage.applied(&outer).await;
    let depends = json!({"spec": {"dependsOn": [{"name": "used"}]}});
    stage
        .api::<Kustomization>(&stage.ns)
        .patch("outer", &PatchParams::default(), &Patch::Merge(depends))
        .await
        .unwrap();
    fixtures::eventually("both are applied", async || {
        let inside = [reload_dynamic(&stage, "used").await?, reload_dynamic(&stage, "user").await?];
        inside
            .iter()
            .all(|p| p.conditions().iter().any(|c| c.type_ == status::READY && c.status == "True"))
            .then_some(())
    })
    .await;
    stage.delete(&outer).await;
    stage.gone(&outer).await;
    assert!(!exists(&stage.admin, &used).await && !exists(&stage.admin, &user).await);
}

/// kustomize-controller#338: an object moves from a parent's set into its child's, and the parent is the first to know.
#[tokio::test]
async fn c32_what_moves_into_a_child_parents_set_lives_on() {
    let mut stage = Stage::new("move").await;
    stage.run(Some(gate(stage.operator.clone())));
    let ns = stage.ns.clone();
    let x = config_map(&ns, "x", &[]);
    let base = stage.parent("base", &[], &[config_map(&ns, "base", &[])]).await;
    let before = inner(&stage, "inner", &[]);
    let outer = stage.parent("outer", &[], &[before, x.clone()]).await;
    stage.applied(&base).await;
    stage.applied(&outer).await;
    fixtures::eventually("the child is applied", async || {
        let inner = reload_dynamic(&stage, "inner").await?;
        inner.conditions().iter().any(|c| c.type_ == status::READY && c.status == "True").then_some(())
    })
    .await;
    let uid = live(&stage.admin, &x).await.unwrap().metadata.uid;
    stage.log.clear();

    let after = inner(&stage, "inner", &["base"]);
    stage.planned::<Kustomization>(&ns, "inner", names(&["base"]), std::slice::from_ref(&x));
    stage.planned::<Kustomization>(&ns, "outer", names(&[]), &[after]);
    stage.annotate(&outer, "moved", "x").await;
    let taker = fixtures::eventually("it has changed hands", async || {
        let inner = reload_dynamic(&stage, "inner").await?;
        let label = live(&stage.admin, &x).await?.labels().get("kustomization.example.com/parent-uid").cloned();
        (label == inner.metadata.uid).then_some(inner)
    })
    .await;
    stage.applied(&taker).await;
    assert_eq!(live(&stage.admin, &x).await.unwrap().metadata.uid, uid);
    assert_eq!(deletions(&stage.log), Vec::<String>::new());
    stage.delete(&outer).await;
    stage.gone(&outer).await;
    assert!(!exists(&stage.admin, &x).await);
}

async fn reload_dynamic(stage: &Stage, name: &str) -> Option<Kustomization> {
    stage.api::<Kustomization>(&stage.ns).get_opt(name).await.unwrap()
}

#[tokio::test]
async fn c16_a_dependent_that_takes_its_time_keeps_its_edge() {
    let mut stage = Stage::new("edge").await;
    stage.run(Some(gate(stage.operator.clone())));
    let ns = stage.ns.clone();
    let map = |name: &str| config_map(&ns, name, &[]);
    let two = stage.parent("two", &[], &[map("two")]).await;
    // The edge is part of the dependent, and the dependent stays until it is done.
    let three = stage.parent("three", &["two"], &[map("three")]).await;
    for parent in [&two, &three] {
        stage.applied(parent).await;
    }
    hold(&stage.admin, &map("three")).await;
    for parent in [&two, &three] {
        stage.delete(parent).await;
    }
    stage.ready_is(&two, blocked).await;
    for restart in ["once", "twice"] {
        stage.stop();
        stage.run(Some(gate(stage.operator.clone())));
        stage.annotate(&two, "touched", restart).await;
        stage.ready_is(&two, blocked).await;
    }
    assert!(exists(&stage.admin, &map("two")).await);
    release(&stage.admin, &map("three")).await;
    stage.gone(&two).await;
}

#[tokio::test]
async fn c52_what_a_child_parent_needs_to_go_stays_until_it_is_gone() {
    let mut stage = Stage::new("project").await;
    stage.run(Some(gate(stage.operator.clone())));
    let ns = stage.ns.clone();
    let map = |name: &str| config_map(&ns, name, &[]);
    let mut child = inner(&stage, "child", &[]);
    let project = format!("/namespaces/{ns}/ConfigMap/project");
    child.annotations_mut().insert("config.kubernetes.io/depends-on".into(), project);
    stage.planned::<Kustomization>(&ns, "child", names(&[]), &[map("of-the-child")]);
    let outer = stage.parent("outer", &[], &[child.clone(), map("project")]).await;
    stage.applied(&outer).await;
    fixtures::eventually("the child's child", async || live(&stage.admin, &map("of-the-child")).await).await;
    hold(&stage.admin, &map("of-the-child")).await;
    stage.log.clear();
    stage.delete(&outer).await;
    fixtures::eventually("the child's teardown", async || {
        live(&stage.admin, &map("of-the-child")).await?.metadata.deletion_timestamp
    })
    .await;
    assert!(live(&stage.admin, &map("project")).await.unwrap().metadata.deletion_timestamp.is_none());
    release(&stage.admin, &map("of-the-child")).await;
    stage.gone(&outer).await;
    let order: Vec<_> = deletions(&stage.log).iter().map(|d| d.rsplit('/').next().unwrap().to_owned()).collect();
    assert_eq!(order, ["child", "of-the-child", "project"]);
}

#[tokio::test]
async fn a_gate_that_may_not_list_blocks_and_says_which_right_is_missing() {
    let plane = Plane::shared().await;
    let mut stage = Stage::on(plane, "nolist").await;
    let (limited, _) = fixtures::audited_service_account(plane, &stage.ns, "gate").await;
    let subject = Subject::service_account(&stage.ns, "gate");
    let _ = fixtures::grant(
        &stage.admin,
        &subject,
        Some(&stage.ns),
        vec![rule("kustomize.example.com", &["kustomizations", "bundles"], &["get"])],
    )
    .await;
    stage.run(Some(gate(limited)));
    let base = stage.parent("base", &[], &[config_map(&stage.ns, "base", &[])]).await;
    stage.applied(&base).await;
    stage.delete(&base).await;
    let condition = stage.ready_is(&base, blocked).await;
    assert!(condition.message.contains("cannot tell who depends on it"), "{}", condition.message);
    assert!(condition.message.contains("grant list on"), "{}", condition.message);
    let _ = fixtures::grant(
        &stage.admin,
        &subject,
        Some(&stage.ns),
        vec![rule("kustomize.example.com", &["kustomizations", "bundles"], &["list"])],
    )
    .await;
    // Nobody wakes it: no watch is allowed.
    fixtures::eventually_ok("the end", async || {
        let Some(live) = reload_of(&stage.admin, &base).await else { return Ok(()) };
        let patch = json!({"metadata": {"annotations": {"touched": live.resource_version()}}});
        let _ =
            stage.api::<Kustomization>(&stage.ns).patch("base", &PatchParams::default(), &Patch::Merge(patch)).await;
        Err(format!("{live:?}"))
    })
    .await;
}
