//! What happens to objects that are no longer desired while their parent lives.

use std::sync::Arc;

use control_plane::fixtures;
use kube::{ResourceExt, api::DynamicObject};
use kube_custody::{
    custodian::{Desired, Hold, Outcome, Phase, Problem, PruneGuard},
    inventory::DeletionPolicy,
    teardown::Reason,
};
use serde_json::json;

use crate::world::*;

/// Puts an annotation on a manifest.
fn annotated(mut object: DynamicObject, key: &str, value: &str) -> DynamicObject {
    object.metadata.annotations.get_or_insert_default().insert(key.to_owned(), value.to_owned());
    object
}

#[tokio::test]
async fn dropped_objects_go_in_reverse_order_across_namespaces_and_scopes() {
    let scene = Scene::new("prune").await;
    let other = fixtures::ns("prune-other");
    let role = format!("prune-{}", scene.ns);
    let stays = scene.map("stays", &[]);
    let set = [
        stays.clone(),
        scene.map("base", &[]),
        namespace(&other),
        config_map(&other, "middle", &[&format!("/namespaces/{}/ConfigMap/base", scene.ns)]),
        cluster_role(&role, &[&format!("/namespaces/{other}/ConfigMap/middle")]),
        config_map(&other, "top", &[&format!("rbac.authorization.k8s.io/ClusterRole/{role}")]),
    ];
    scene.apply(&set).await;
    scene.log.clear();
    // The other namespace occurs in the desired set no longer (c46).
    let outcome = scene.apply(&set[..1]).await;
    let deleted = scene.deleted();
    for pair in [["top", role.as_str()], [&role, "middle"], ["middle", "base"], ["middle", &other], ["top", &other]] {
        assert_before(&deleted, pair[0], pair[1]);
    }
    assert_eq!(scene.present(&set).await, [true, false, false, false, false, false], "{outcome:#?}");
    assert_eq!(scene.recorded().await, ["stays"]);
    let proxies = scene.inventory().await.entries().filter(|e| e.role == kube_custody::inventory::Role::Proxy).count();
    assert_eq!(proxies, 1, "proxies of places without children go too");
    scene.tear_down().await;
    assert!(!exists(&scene.admin, &stays).await);
}

#[tokio::test]
async fn c09_a_child_whose_delete_is_refused_stays_on_record_and_is_named_and_goes_later() {
    let scene = Scene::new("c09").await;
    let key = format!("{}.example.com/protected", scene.ns);
    fixtures::deny_delete_policy(&scene.admin, &scene.ns, &key).await;
    let set = [
        scene.map("stays", &[]),
        scene.map("base", &[]),
        annotated(scene.map("denied", &["base"]), &key, ""),
        scene.map("top", &["denied"]),
        scene.map("free", &[]),
    ];
    scene.apply(&set).await;
    // A slow answer is unknown until it is in.
    let named = |outcome: &Outcome| blocker(outcome, "denied").is_some_and(|b| b.reason == Reason::Refused);
    let outcome = scene.until("the refusal is named", &set[..1], named).await;
    assert_eq!(outcome.phase, Phase::Progressing);
    let denied = blocker(&outcome, "denied").unwrap();
    assert!(denied.words.contains("protected against admin"), "{denied}");
    assert!(denied.since.is_some());
    let base = blocker(&outcome, "base").unwrap();
    assert_eq!((&base.reason, base.dependents.as_slice()), (&Reason::Dependents, [scene.id("denied")].as_slice()));
    assert_eq!(scene.present(&set).await, [true, true, true, false, false], "what can go goes");
    assert_eq!(scene.recorded().await, ["base", "denied", "stays"]);
    // Again and again: nothing is lost.
    for _ in 0..3 {
        scene.pass(&set[..1]).await;
    }
    assert_eq!(scene.recorded().await, ["base", "denied", "stays"]);

    scene.log.clear();
    fixtures::remove_deny_delete_policy(&scene.admin, &scene.ns, &key).await;
    scene.apply(&set[..1]).await;
    assert_before(&scene.deleted(), "denied", "base");
    assert_eq!(scene.recorded().await, ["stays"]);
    scene.tear_down().await;
}

#[tokio::test]
async fn c09_a_child_that_a_finalizer_keeps_stays_on_record_however_often_it_is_pruned() {
    let scene = Scene::new("c09-fin").await;
    let set = [scene.map("stays", &[]), scene.map("base", &[]), scene.map("held", &["base"])];
    scene.apply(&set).await;
    patch(&scene.admin, &set[2], json!({"metadata": {"finalizers": ["x.example.com/hold"]}})).await;
    scene.log.clear();
    for _ in 0..3 {
        let outcome = scene.pass(&set[..1]).await;
        let held = blocker(&outcome, "held").unwrap_or_else(|| panic!("{outcome:#?}"));
        assert_eq!(
            (&held.reason, held.finalizers.as_slice()),
            (&Reason::Terminating, ["x.example.com/hold".into()].as_slice())
        );
        assert!(held.since.is_some() && outcome.phase == Phase::Progressing);
        assert_eq!(scene.recorded().await, ["base", "held", "stays"]);
    }
    assert_eq!(scene.deleted(), ["held"], "one effective DELETE");
    patch(&scene.admin, &set[2], json!({"metadata": {"finalizers": null}})).await;
    scene.apply(&set[..1]).await;
    assert_eq!(scene.recorded().await, ["stays"]);
    assert_eq!(scene.present(&set).await, [true, false, false]);
}

#[tokio::test]
async fn c10_what_was_created_before_a_failure_is_on_record() {
    let scene = Scene::new("c10").await;
    let other = fixtures::ns("c10-other");
    let invalid = config_map(&other, "Invalid", &[&format!("/namespaces/{other}/ConfigMap/cm")]);
    let set = [namespace(&other), config_map(&other, "cm", &[]), invalid];
    scene.until("the third manifest fails", &set, |o| problem(o, "Invalid").is_some() && o.applied.len() >= 2).await;
    // Dropped while the set still fails: nothing is pruned, because nobody knows what the failing one will need.
    let outcome = scene.pass(&[set[0].clone(), set[2].clone()]).await;
    assert_eq!(outcome.phase, Phase::Progressing, "{outcome:#?}");
    assert!(exists(&scene.admin, &set[1]).await);
    // The failing one is corrected: what was dropped goes.
    scene.apply(&set[..1]).await;
    assert_eq!(scene.present(&set[..2]).await, [true, false]);
    scene.until("it fails again", &set, |o| problem(o, "Invalid").is_some() && o.applied.len() >= 2).await;
    scene.tear_down().await;
    assert_eq!(scene.present(&set[..2]).await, [false, false]);
}

#[tokio::test]
async fn c11_a_rename_takes_the_old_objects_along() {
    let scene = Scene::new("c11").await;
    let release = |name: &str| [scene.map(&format!("{name}-config"), &[]), scene.map(&format!("{name}-app"), &[])];
    scene.apply(&release("a")).await;
    scene.apply(&release("b")).await;
    assert_eq!(scene.present(&release("a")).await, [false, false]);
    assert_eq!(scene.present(&release("b")).await, [true, true]);
    // Renamed, and deleted before anybody reconciled.
    scene.tear_down().await;
    assert_eq!(scene.present(&release("b")).await, [false, false]);
}

#[tokio::test]
async fn c27_there_and_back_again_prunes_nothing() {
    let scene = Scene::new("c27").await;
    let (a, b) = ([scene.map("shared", &[]), scene.map("a", &[])], [scene.map("shared", &[]), scene.map("b", &[])]);
    scene.apply(&a).await;
    let uid = live(&scene.admin, &a[0]).await.unwrap().metadata.uid;
    scene.log.clear();
    // Set to B and back to A before anybody reconciled: desired equals actual.
    patch(&scene.admin, &as_object(&scene), json!({"spec": {"path": "/b"}})).await;
    patch(&scene.admin, &as_object(&scene), json!({"spec": {"path": "/"}})).await;
    scene.apply(&a).await;
    assert!(scene.deleted().is_empty());
    // And with a reconcile in between.
    scene.apply(&b).await;
    scene.apply(&a).await;
    assert_eq!(scene.deleted(), ["a", "b"]);
    assert_eq!(live(&scene.admin, &a[0]).await.unwrap().metadata.uid, uid);
}

fn as_object(scene: &Scene) -> DynamicObject {
    object(json!({
        "apiVersion": "faros.pusher.com/v1alpha1", "kind": "GitTrack",
        "metadata": {"name": "track", "namespace": scene.ns},
    }))
}

#[tokio::test]
async fn c33_an_object_that_moves_to_another_api_group_is_not_deleted() {
    let scene = Scene::new("c33").await;
    let event = |api_version: &str| {
        let core = api_version == "v1";
        let (about, from) =
            if core { ("involvedObject", "reportingComponent") } else { ("regarding", "reportingController") };
        object(json!({
            "apiVersion": api_version, "kind": "Event", "metadata": {"name": "x", "namespace": scene.ns},
            about: {"apiVersion": "v1", "kind": "ConfigMap", "namespace": scene.ns, "name": "y"},
            from: "example.com/tests", "reportingInstance": "one", "action": "Testing", "reason": "Tested",
            "type": "Normal", "eventTime": "2026-01-01T00:00:00.000000Z",
        }))
    };
    let (old, new) = (event("v1"), event("events.k8s.io/v1"));
    scene.apply(std::slice::from_ref(&old)).await;
    let uid = live(&scene.admin, &old).await.unwrap().metadata.uid;
    scene.log.clear();
    scene.apply(std::slice::from_ref(&new)).await;
    assert!(scene.deleted().is_empty());
    let now = live(&scene.admin, &new).await.unwrap();
    assert_eq!(now.metadata.uid, uid);
    let inventory = scene.inventory().await;
    let ids: Vec<_> = inventory.entries().filter(|e| e.id.kind() == "Event").map(|e| e.id.to_string()).collect();
    assert_eq!(ids, [format!("Event.events.k8s.io {}/x", scene.ns)]);
    scene.tear_down().await;
    assert!(!exists(&scene.admin, &new).await);
}

#[tokio::test]
async fn c49_the_new_exists_before_the_old_goes() {
    let scene = Scene::new("c49").await;
    let (old, fails, new) = (scene.map("old", &[]), scene.map("New", &[]), scene.map("new", &[]));
    scene.apply(std::slice::from_ref(&old)).await;
    for _ in 0..3 {
        let outcome = scene.pass(std::slice::from_ref(&fails)).await;
        assert!(matches!(problem(&outcome, "New"), Some(Problem::Refused { .. })), "{outcome:#?}");
        assert!(outcome.notes.iter().any(|n| n.contains("1 objects are pruned once everything desired is applied")));
        assert!(exists(&scene.admin, &old).await);
    }
    scene.log.clear();
    scene.apply(std::slice::from_ref(&new)).await;
    let calls = scene.log.calls_where(|c| c.effective && matches!(c.head.name(), Some("old" | "new")));
    let names: Vec<_> = calls.iter().map(|c| (c.head.verb, c.head.name().unwrap())).collect();
    use control_plane::audit::Verb;
    assert_eq!(names, [(Verb::Create, "new"), (Verb::Delete, "old")]);
}

#[tokio::test]
async fn an_upgrade_that_reverses_an_edge_while_both_stay() {
    let scene = Scene::new("reverse").await;
    scene.apply(&[scene.map("a", &["b"]), scene.map("b", &[])]).await;
    scene.apply(&[scene.map("a", &[]), scene.map("b", &["a"])]).await;
    scene.log.clear();
    scene.tear_down().await;
    let children: Vec<_> = scene.deleted().into_iter().filter(|n| n == "a" || n == "b").collect();
    assert_eq!(children, ["b", "a"], "by the edges of the new set");
}

#[tokio::test]
async fn an_upgrade_that_reverses_an_edge_while_one_is_dropped() {
    // a -> b -> c becomes c -> a, and b goes with its old edge: b before c by it, and c stays.
    let scene = Scene::new("reverse-drop").await;
    let old = [scene.map("a", &["b"]), scene.map("b", &["c"]), scene.map("c", &[])];
    scene.apply(&old).await;
    let new = [scene.map("a", &[]), scene.map("c", &["a"])];
    scene.apply(&new).await;
    assert_eq!(scene.present(&old).await, [true, false, true]);
    scene.log.clear();
    scene.tear_down().await;
    assert_eq!(scene.deleted().into_iter().filter(|n| n.len() == 1).collect::<Vec<_>>(), ["c", "a"]);

    // a -> b becomes b -> a, and a, which b needs now, is dropped: b is served first, so a stays until b goes.
    let scene = Scene::new("reverse-needed").await;
    let old = [scene.map("a", &["b"]), scene.map("b", &[])];
    scene.apply(&old).await;
    let new = [scene.map("b", &["a"])];
    let outcome = scene.until("a waits for b", &new, |o| blocker(o, "a").is_some()).await;
    assert_eq!(blocker(&outcome, "a").unwrap().dependents, [scene.id("b")], "{outcome:#?}");
    assert_eq!(scene.present(&old).await, [true, true]);
    scene.log.clear();
    scene.tear_down().await;
    assert_eq!(scene.deleted().into_iter().filter(|n| n.len() == 1).collect::<Vec<_>>().len(), 2, "as one group");
    assert_eq!(scene.present(&old).await, [false, false]);
}

/// Their deletion would take along what is still desired.
#[tokio::test]
async fn a_namespace_and_a_definition_that_are_dropped_stay_as_long_as_something_desired_is_in_them() {
    let scene = Scene::new("dropped-container").await;
    let other = fixtures::ns("dropped-ns");
    let crd = definition(&other, &[("v1", true)]);
    let set = [custom(&other, "v1", "x"), config_map(&other, "y", &[]), namespace(&other), crd.clone()];
    scene.apply(&set).await;
    let waits = |outcome: &Outcome| {
        let held = |name: &str| outcome.removal.waiting.iter().any(|w| w.id.name() == name && !w.dependents.is_empty());
        held(&other) && held(&crd.name_any())
    };
    let outcome = scene.until("both wait for what is in them", &set[..2], waits).await;
    assert_eq!(
        outcome.applied.iter().filter(|live| set[..2].iter().any(|o| o.name_any() == live.id.name())).count(),
        2
    );
    assert_eq!(scene.present(&set).await, [true; 4]);
    assert!(scene.attempted().is_empty(), "{:?}", scene.attempted());
    // They go with what is in them, in order.
    scene.apply(&[scene.map("other", &[])]).await;
    assert_eq!(scene.present(&set).await, [false; 4]);
}

#[tokio::test]
async fn c35_an_empty_set_prunes_nothing_unless_it_is_allowed() {
    let mut scene = Scene::new("c35-empty").await;
    let set: Vec<_> = (0..5).map(|i| scene.map(&format!("x{i}"), &[])).collect();
    scene.apply(&set).await;
    scene.log.clear();
    let outcome = scene.settle(&[]).await;
    assert_eq!(outcome.phase, Phase::Held(Hold::Guarded { pruned: 5, of: 5 }));
    assert!(scene.deleted().is_empty());
    scene.restart(|b| b.prune_guard(PruneGuard::default().allow_empty(true)));
    scene.apply(&[]).await;
    assert_eq!(scene.present(&set).await, [false; 5]);
}

#[tokio::test]
async fn c35_no_more_than_the_allowed_share_goes_at_once() {
    let mut scene = Scene::with("c35-share", |b| b.prune_guard(PruneGuard::default().max_share(0.4))).await;
    let set: Vec<_> = (0..5).map(|i| scene.map(&format!("x{i}"), &[])).collect();
    scene.apply(&set).await;
    assert_eq!(scene.settle(&set[..2]).await.phase, Phase::Held(Hold::Guarded { pruned: 3, of: 5 }));
    assert_eq!(scene.present(&set).await, [true; 5]);
    scene.apply(&set[..3]).await;
    assert_eq!(scene.present(&set).await, [true, true, true, false, false]);
    // The deletion of the parent is meant: no guard.
    scene.restart(|b| b.prune_guard(PruneGuard::default().max_share(0.0)));
    scene.tear_down().await;
    assert_eq!(scene.present(&set).await, [false; 5]);
}

#[tokio::test]
async fn c36_prune_and_deletion_of_the_parent_are_two_switches() {
    let mut scene = Scene::with("c36", |b| b.children_on_delete(DeletionPolicy::Keep)).await;
    let set = [scene.map("dropped", &[]), scene.map("kept", &["base"]), scene.map("base", &[])];
    scene.apply(&set).await;
    scene.apply(&set[1..]).await;
    assert_eq!(scene.present(&set).await, [false, true, true]);
    let before = live(&scene.admin, &set[1]).await.unwrap().metadata.uid;
    // The teardown begins and is cut off; the operator comes back with another policy. The one it began with counts.
    scene.delete().await;
    scene.log.cut_at(8, control_plane::audit::CutMode::After);
    for _ in 0..3 {
        scene.pass(&[]).await;
    }
    assert!(scene.log.is_cut(), "{}", scene.log);
    scene.log.heal();
    scene.restart(|b| b.children_on_delete(DeletionPolicy::Delete));
    let outcome = scene.settle(&[]).await;
    assert_eq!(outcome.phase, Phase::Released, "{outcome:#?}");
    let kept = live(&scene.admin, &set[1]).await.unwrap();
    assert_eq!(kept.metadata.uid, before);
    assert_unmarked(&kept);
    assert_unmarked(&live(&scene.admin, &set[2]).await.unwrap());
}

#[tokio::test]
async fn c36_a_deletion_that_began_stays_one() {
    let mut scene = Scene::new("c36-delete").await;
    let set = [scene.map("base", &[]), scene.map("held", &["base"])];
    scene.apply(&set).await;
    patch(&scene.admin, &set[1], json!({"metadata": {"finalizers": ["x.example.com/hold"]}})).await;
    scene.delete().await;
    scene.until("the teardown has begun", &[], |o| blocker(o, "held").is_some()).await;
    scene.restart(|b| b.children_on_delete(DeletionPolicy::Keep));
    patch(&scene.admin, &set[1], json!({"metadata": {"finalizers": null}})).await;
    assert_eq!(scene.settle(&[]).await.phase, Phase::Released);
    assert_eq!(scene.present(&set).await, [false, false]);
}

/// Nothing of ours is left on an object.
fn assert_unmarked(object: &DynamicObject) {
    let meta = &object.metadata;
    let keys = [&meta.labels, &meta.annotations].into_iter().flatten().flat_map(|m| m.keys());
    assert!(keys.clone().all(|k| !k.starts_with(MANAGER)), "{meta:?}");
    assert!(meta.owner_references.as_ref().is_none_or(Vec::is_empty), "{meta:?}");
    assert!(meta.finalizers.iter().flatten().all(|f| !f.starts_with(MANAGER)), "{meta:?}");
}

/// A set in which one object is kept.
async fn apply_keeping(scene: &Scene, set: &[DynamicObject], keep: &[&str]) {
    fixtures::eventually_ok("the set is applied", async || {
        let mut desired = Desired::from(set.to_vec());
        for name in keep {
            desired.keep(scene.id(name));
        }
        let live = reload(&scene.admin, &scene.track).await.unwrap();
        let outcome = scene.custodian.reconcile(&live, async |_: Arc<GitTrack>| Ok::<_, std::io::Error>(desired)).await;
        if outcome.phase == Phase::Applied { Ok(()) } else { Err(format!("{outcome:#?}")) }
    })
    .await;
}

#[tokio::test]
async fn kept_objects_stay_with_what_they_need_on_prune() {
    let scene = Scene::new("keep-prune").await;
    let set = [
        scene.map("stays", &[]),
        scene.map("base", &[]),
        scene.map("kept", &["base"]),
        scene.map("above", &["kept"]),
        scene.map("free", &[]),
    ];
    apply_keeping(&scene, &set, &["kept"]).await;
    scene.log.clear();
    let outcome = scene.apply(&set[..1]).await;
    assert_eq!(scene.present(&set).await, [true, true, true, false, false]);
    let kept: Vec<_> =
        outcome.removal.kept.iter().map(|k| (k.id.name(), k.needed_by.as_ref().map(|n| n.name()))).collect();
    assert_eq!(kept, [("base", Some("kept")), ("kept", None)], "{outcome:#?}");
    for object in &set[1..3] {
        assert_unmarked(&live(&scene.admin, object).await.unwrap());
    }
    assert_eq!(scene.recorded().await, ["stays"]);
    scene.tear_down().await;
    assert_eq!(scene.present(&set).await, [false, true, true, false, false]);
}

#[tokio::test]
async fn what_a_kept_object_needs_is_left_also_when_it_is_dropped_later() {
    let scene = Scene::new("keep-later").await;
    let set = [scene.map("stays", &[]), scene.map("base", &[]), scene.map("kept", &["base"])];
    apply_keeping(&scene, &set, &["kept"]).await;
    scene.apply(&set[..2]).await;
    assert_unmarked(&live(&scene.admin, &set[2]).await.unwrap());
    // Nothing happens about it while what it needs is desired.
    scene.log.clear();
    scene.apply(&set[..2]).await;
    assert!(scene.writes_to("kept").is_empty());
    let outcome = scene.apply(&set[..1]).await;
    assert_eq!(scene.present(&set).await, [true, true, true], "{outcome:#?}");
    assert_unmarked(&live(&scene.admin, &set[1]).await.unwrap());
    assert_eq!(scene.recorded().await, ["stays"]);
}

#[tokio::test]
async fn keep_spreads_to_the_namespace_and_the_definition_on_teardown_and_proxies_go_all_the_same() {
    let scene = Scene::new("keep-all").await;
    let other = fixtures::ns("keep-other");
    let crd = definition(&other, &[("v1", true)]);
    let keep = "helm.sh/resource-policy";
    let set = [
        namespace(&other),
        crd.clone(),
        annotated(custom(&other, "v1", "kept"), keep, "keep"),
        custom(&other, "v1", "goes"),
        config_map(&other, "goes", &[]),
        scene.map("goes-too", &[]),
    ];
    scene.apply(&set).await;
    let outcome = scene.tear_down().await;
    assert_eq!(scene.present(&set).await, [true, true, true, false, false, false], "{outcome:#?}");
    for object in &set[..3] {
        assert_unmarked(&live(&scene.admin, object).await.unwrap());
    }
    let kept: Vec<_> = outcome.removal.kept.iter().map(|k| k.id.name().to_owned()).collect();
    assert_eq!(kept.len(), 3, "{kept:?}");
    let selector = kube::api::ListParams::default().labels(&format!("{MANAGER}/parent-uid"));
    use kube_custody::ownership::proxy::GitTrackOwner;
    let left = kube::Api::<GitTrackOwner>::namespaced(scene.admin.clone(), &other).list(&selector).await.unwrap();
    assert!(left.items.is_empty(), "proxies of a kept namespace go");
}

#[tokio::test]
async fn every_foreign_mark_that_asks_to_keep_is_heeded_on_the_live_object() {
    let scene = Scene::new("markers").await;
    let marks = [
        ("annotations", "client.lifecycle.config.k8s.io/deletion", "detach"),
        ("annotations", "cli-utils.sigs.k8s.io/on-remove", "keep"),
        ("annotations", "helm.sh/resource-policy", "keep"),
        ("annotations", "helm.sh/resource-policy", "some value of the future"),
        ("labels", "kustomize.toolkit.fluxcd.io/prune", "disabled"),
        ("annotations", "argocd.argoproj.io/sync-options", "Validate=false,Delete=false"),
        ("annotations", "kapp.k14s.io/delete-strategy", "orphan"),
        ("labels", "objectset.rio.cattle.io/prune", "false"),
        ("labels", "protection.fn.crossplane.io/block-deletion", "true"),
        ("labels", "policy.kruise.io/delete-protection", "Always"),
    ];
    let set: Vec<_> = (0..=marks.len()).map(|i| scene.map(&format!("x{i}"), &[])).collect();
    scene.apply(&set).await;
    // Somebody else marks the live objects; the manifests know nothing of it.
    for (object, (place, key, value)) in set.iter().zip(marks) {
        patch(&scene.admin, object, json!({"metadata": {place: {key: value}}})).await;
    }
    let outcome = scene.tear_down().await;
    let present = scene.present(&set).await;
    assert!(present[..marks.len()].iter().all(|p| *p) && !present[marks.len()], "{present:?} {outcome:#?}");
    for (i, (place, key, value)) in marks.into_iter().enumerate() {
        let live = live(&scene.admin, &set[i]).await.unwrap();
        assert_unmarked(&live);
        let map = if place == "labels" { live.metadata.labels } else { live.metadata.annotations };
        assert_eq!(map.unwrap()[key], value, "other parties' marks stay");
        let kept = outcome.removal.kept.iter().find(|k| k.id == scene.id(&format!("x{i}"))).unwrap();
        assert!(kept.markers.iter().any(|m| m.contains(key)), "{kept:?}");
    }
}

#[tokio::test]
async fn c39_the_report_names_exactly_what_was_done() {
    let scene = Scene::new("c39").await;
    let set = [
        scene.map("stays", &[]),
        scene.map("plain", &[]),
        annotated(scene.map("protected", &[]), "cli-utils.sigs.k8s.io/on-remove", "keep"),
    ];
    scene.apply(&set).await;
    scene.log.clear();
    let outcome =
        scene.until("the prune is done", &set[..1], |o| o.removal.is_complete() && !o.removal.gone.is_empty()).await;
    let gone: Vec<_> = outcome.removal.gone.iter().map(|(id, _)| id.name().to_owned()).collect();
    assert_eq!((scene.deleted(), gone), (vec!["plain".to_owned()], vec!["plain".to_owned()]));
    let kept: Vec<_> = outcome.removal.kept.iter().map(|k| k.id.name()).collect();
    assert_eq!(kept, ["protected"]);
}

#[tokio::test]
async fn with_pruning_off_nothing_goes_until_the_parent_does() {
    let scene = Scene::with("prune-off", |b| b.prune(false)).await;
    let set = [scene.map("stays", &[]), scene.map("dropped", &[])];
    scene.apply(&set).await;
    scene.log.clear();
    let outcome = scene.settle(&set[..1]).await;
    assert!(outcome.notes.iter().any(|n| n.contains("pruning is off")), "{outcome:#?}");
    assert!(scene.deleted().is_empty());
    assert_eq!(scene.recorded().await, ["dropped", "stays"]);
    scene.tear_down().await;
    assert_eq!(scene.present(&set).await, [false, false]);
}
