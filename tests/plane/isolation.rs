//! Children that cannot go each for a reason of its own, and all others.

use control_plane::{
    Plane,
    fixtures::{self, Subject, rule},
};
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::{Api, ResourceExt, api::DynamicObject};
use kube_custody::{
    inventory::{Entry, EntryState},
    object::{ObjectId, ResourceKind, Scope, Uid},
    teardown::{Proof, Reason},
};
use serde_json::json;

use crate::world::*;

fn account(namespace: &str, name: &str) -> DynamicObject {
    object(json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": namespace}}))
}

#[tokio::test]
async fn c19_c40_every_child_that_cannot_go_is_named_with_its_reason_and_all_others_go() {
    // A plane of its own: a broken group stops every namespace deletion.
    let plane = Plane::builder().start().await.unwrap();
    let mut scene = Scene::on(&plane, "isolation", |b| b).await;
    let (unique, subject) = (fixtures::ns("isolation"), Subject::service_account(&scene.ns, "operator"));
    let crd = definition(&unique, &[("v1", true)]);
    create(&scene.admin, &crd).await;
    let mut widget = custom(&unique, "v1", "defined-no-more");
    widget.metadata.namespace = Some(scene.ns.clone());
    let everything = &["get", "list", "watch", "create", "patch", "delete"];
    let rules = vec![
        rule("", &["configmaps"], &["*"]),
        rule("", &["serviceaccounts"], &["get", "list", "watch", "create", "patch"]),
        rule("", &["namespaces"], &["get"]),
        rule("apiextensions.k8s.io", &["customresourcedefinitions"], &["get", "list"]),
        rule("faros.pusher.com", &["*"], &["*"]),
        rule(&format!("{unique}.example.com"), &["widgets"], everything),
        rule("broken.example.com", &["*"], everything),
    ];
    let grant = fixtures::grant(&scene.admin, &subject, None, rules).await;
    let (operator, log) = fixtures::audited_service_account(&plane, &scene.ns, "operator").await;
    (scene.operator, scene.log) = (operator, log);
    scene.restart(|b| b);

    let set = [
        scene.map("base", &[]),
        scene.map("above", &["base"]),
        scene.map("under-held", &[]),
        scene.map("held", &["under-held"]),
        scene.map("gone", &["base"]),
        account(&scene.ns, "forbidden"),
        widget.clone(),
    ];
    scene.apply(&set).await;
    patch(&scene.admin, &set[3], json!({"metadata": {"finalizers": ["other.example.com/held"]}})).await;
    remove(&scene.admin, &set[4]).await;
    remove(&scene.admin, &crd).await;
    fixtures::eventually("the definition is gone", async || (!exists(&scene.admin, &crd).await).then_some(())).await;
    let service = json!({"metadata": {"name": "v1.broken.example.com"}, "spec": {
        "group": "broken.example.com", "version": "v1", "groupPriorityMinimum": 1000, "versionPriority": 10,
        "insecureSkipTLSVerify": true, "service": {"namespace": "default", "name": "missing"}}});
    fixtures::create(&Api::<APIService>::all(scene.admin.clone()), service).await;
    // As if it had been created before the group broke.
    let broken = ObjectId::new("broken.example.com", "Thing", Some(&scene.ns), "unreachable").unwrap();
    let entry = {
        let kind = ResourceKind::new("broken.example.com", "v1", "Thing", "things", Scope::Namespaced);
        let mut entry = Entry::intended(broken.clone(), &kind);
        (entry.uid, entry.state) = (Some(Uid::new("7").unwrap()), EntryState::Recorded);
        entry
    };
    scene.meddle(|inventory| drop(inventory.insert(entry))).await;

    scene.delete().await;
    let expected = ["forbidden", "held", "unreachable"];
    let outcome = scene
        .until("all others are gone", &[], |o| {
            let mut names: Vec<_> = o.removal.blockers.iter().map(|b| b.id.name()).collect();
            names.sort_unstable();
            names == expected
        })
        .await;
    let reason = |name: &str| blocker(&outcome, name).unwrap();
    let held = reason("held");
    assert_eq!((&held.reason, &*held.finalizers), (&Reason::Terminating, &["other.example.com/held".to_owned()][..]));
    assert_eq!(reason("under-held").dependents, [scene.id("held")]);
    let forbidden = reason("forbidden");
    assert!(forbidden.reason == Reason::Forbidden && forbidden.words.contains("cannot delete resource"), "{forbidden}");
    let unreachable = reason("unreachable");
    assert!(unreachable.reason == Reason::Unknown && unreachable.words.contains("503"), "{unreachable}");
    assert!(expected.iter().all(|name| reason(name).since.is_some()), "{outcome:#?}");
    // Everything else was proven gone, the object without a definition by the definition's absence.
    assert_eq!(scene.present(&set).await, [false, false, true, true, false, true, false]);
    let proof = |name: &str| outcome.removal.gone.iter().find(|(id, _)| id.name() == name).map(|(_, proof)| proof);
    if let Some(proof) = proof("defined-no-more") {
        // Discovery may still know the kind.
        assert!(matches!(proof, Proof::KindGone | Proof::NotFound), "{proof:?}");
    }
    let mut left = scene.recorded().await;
    left.sort();
    assert_eq!(left, ["forbidden", "held", "under-held", "unreachable"]);
    // No finalizer was let go: neither the parent's, nor anybody else's.
    let track = reload(&scene.admin, &scene.track).await.unwrap();
    let finalizers = track.finalizers().to_vec();
    assert!([format!("{MANAGER}/custody"), format!("{MANAGER}/applied")].iter().all(|f| finalizers.contains(f)));
    assert_eq!(live(&scene.admin, &set[3]).await.unwrap().finalizers(), ["other.example.com/held"]);

    // Each obstacle out of the way, the rest goes.
    patch(&scene.admin, &set[3], json!({"metadata": {"finalizers": null}})).await;
    let more = fixtures::grant(&scene.admin, &subject, None, vec![rule("", &["serviceaccounts"], &["delete"])]).await;
    // The broken API is taken out of the cluster, and what it may have kept is given up.
    fixtures::delete(&Api::<APIService>::all(scene.admin.clone()), "v1.broken.example.com").await;
    scene.custodian.abandon(&scene.track, &broken).await.unwrap();
    assert_eq!(scene.settle(&[]).await.phase, kube_custody::custodian::Phase::Released);
    assert!(scene.present(&set).await.iter().all(|present| !present));
    grant.revoke(&scene.admin).await;
    more.revoke(&scene.admin).await;
    plane.shutdown().await.unwrap();
}
