//! Requests to force on the side of the teardown: what is admitted, and nothing else.

use kube::{ResourceExt, api::DynamicObject};
use kube_custody::{
    custodian::{Outcome, Phase},
    force::Allowed,
    object::ObjectId,
    teardown::Reason,
};
use serde_json::{Value, json};

use control_plane::fixtures;

use crate::world::*;

const DEAD: &str = "dead.example.com/x";
const OTHER: &str = "dead.example.com/other";

fn finalizer(name: &str) -> Value {
    json!({"metadata": {"finalizers": [name]}})
}

async fn named(scene: &Scene, object: &DynamicObject) -> Value {
    json!({"object": ObjectId::of(object).unwrap().to_string(), "uid": live(&scene.admin, object).await.unwrap().uid().unwrap()})
}

async fn strip(scene: &Scene, object: &DynamicObject, finalizer: &str) -> Value {
    let mut wish = named(scene, object).await;
    wish["finalizer"] = finalizer.into();
    wish
}

/// Writes a request onto the parent, as its owner would.
async fn ask(scene: &Scene, request: &Value) {
    let track = object(serde_json::to_value(&scene.track).unwrap());
    let annotations = json!({format!("{MANAGER}/force"): request.to_string()});
    patch(&scene.admin, &track, json!({"metadata": {"annotations": annotations}})).await;
}

fn terminating(outcome: &Outcome, name: &str) -> bool {
    blocker(outcome, name).is_some_and(|b| b.reason == Reason::Terminating)
}

async fn finalizers(scene: &Scene, object: &DynamicObject) -> Vec<String> {
    live(&scene.admin, object).await.map(|o| o.finalizers().to_vec()).unwrap_or_default()
}

fn config_maps() -> Allowed {
    Allowed::nothing().finalizer(DEAD, "ConfigMap".parse().unwrap()).abandon("ConfigMap".parse().unwrap())
}

#[tokio::test]
async fn c38_force_strips_exactly_what_is_named_and_allowed_and_says_so() {
    let scene = Scene::with("c38", |b| b.force(config_maps())).await;
    let set =
        [scene.map("base", &[]), scene.map("stuck", &["base"]), scene.map("beside", &[]), scene.map("other", &[])];
    scene.apply(&set).await;
    for (object, name) in [(&set[1], DEAD), (&set[2], DEAD), (&set[3], OTHER)] {
        patch(&scene.admin, object, finalizer(name)).await;
    }
    scene.delete().await;
    // By default nothing is stripped.
    scene.until("they are stuck", &[], |o| ["stuck", "beside", "other"].iter().all(|n| terminating(o, n))).await;
    let request = json!({
        "uid": scene.track.uid().unwrap(), "reason": "its controller is gone",
        "finalizers": [strip(&scene, &set[1], DEAD).await, strip(&scene, &set[3], OTHER).await],
    });
    ask(&scene, &request).await;
    let outcome = scene.until("it is forced", &[], |o| !o.forced.is_empty()).await;
    assert_eq!(outcome.forced.len(), 1, "{outcome:#?}");
    assert!(outcome.forced[0].to_string().contains("its controller is gone"), "{outcome:#?}");
    let gone = |o: &Outcome| ["base", "stuck"].iter().all(|n| blocker(o, n).is_none());
    let outcome = scene.until("what waited is gone", &[], gone).await;
    assert_eq!(scene.present(&set).await, [false, false, true, true]);
    assert!(outcome.notes.iter().any(|n| n.contains(OTHER) && n.contains("does not allow")), "{:?}", outcome.notes);
    assert_eq!(finalizers(&scene, &set[2]).await, [DEAD], "not named");
    assert_eq!(finalizers(&scene, &set[3]).await, [OTHER], "not allowed");
    for object in &set[2..] {
        patch(&scene.admin, object, json!({"metadata": {"finalizers": null}})).await;
    }
    assert_eq!(scene.settle(&[]).await.phase, Phase::Released);
}

#[tokio::test]
async fn c38_without_an_allow_list_a_request_does_nothing() {
    let scene = Scene::new("c38-none").await;
    let set = [scene.map("stuck", &[])];
    scene.apply(&set).await;
    patch(&scene.admin, &set[0], finalizer(DEAD)).await;
    let uid = scene.track.uid().unwrap();
    ask(
        &scene,
        &json!({
            "uid": uid, "finalizers": [strip(&scene, &set[0], DEAD).await], "abandon": [named(&scene, &set[0]).await],
        }),
    )
    .await;
    scene.delete().await;
    let outcome = scene.until("it is stuck", &[], |o| terminating(o, "stuck")).await;
    assert_eq!((outcome.forced.len(), outcome.notes.len()), (0, 2), "{outcome:#?}");
    // A request that cannot be read is reported, and nothing of it is done.
    ask(&scene, &json!({"uid": uid, "everything": true})).await;
    scene.until("it is reported", &[], |o| o.notes.iter().any(|n| n.contains("cannot be read"))).await;
    assert_eq!(finalizers(&scene, &set[0]).await, [DEAD]);
    patch(&scene.admin, &set[0], json!({"metadata": {"finalizers": null}})).await;
    assert_eq!(scene.settle(&[]).await.phase, Phase::Released);
}

#[tokio::test]
async fn a_request_for_another_parent_or_incarnation_forces_nothing_and_a_living_object_is_not_touched() {
    let scene = Scene::with("force-bound", |b| b.force(config_maps())).await;
    let set = [scene.map("stuck", &[]), scene.map("wanted", &[])];
    scene.apply(&set).await;
    for object in &set {
        patch(&scene.admin, object, finalizer(DEAD)).await;
    }
    let (uid, wish) = (scene.track.uid().unwrap(), strip(&scene, &set[0], DEAD).await);
    ask(&scene, &json!({"uid": "another", "finalizers": [wish]})).await;
    let outcome = scene.until("the pruned object is stuck", &set[1..], |o| terminating(o, "stuck")).await;
    assert!(outcome.notes.iter().any(|n| n.contains("not this one's")), "{outcome:#?}");
    let mut other = wish.clone();
    other["uid"] = "another".into();
    ask(&scene, &json!({"uid": uid, "finalizers": [other, strip(&scene, &set[1], DEAD).await]})).await;
    let outcome =
        scene.until("it is reported", &set[1..], |o| o.notes.iter().any(|n| n.contains("another incarnation"))).await;
    assert!(outcome.forced.is_empty(), "{outcome:#?}");
    assert_eq!(
        (finalizers(&scene, &set[0]).await, finalizers(&scene, &set[1]).await),
        (vec![DEAD.into()], vec![DEAD.into()])
    );
    // Rightly named, the pruned object goes while the parent lives, and the wanted one keeps what is on it.
    ask(&scene, &json!({"uid": uid, "finalizers": [wish, strip(&scene, &set[1], DEAD).await]})).await;
    scene.apply(&set[1..]).await;
    assert_eq!(scene.present(&set).await, [false, true]);
    assert_eq!(finalizers(&scene, &set[1]).await, [DEAD]);
    // In the teardown that wish is about an object that goes.
    assert_eq!(scene.tear_down().await.phase, Phase::Released);
}

#[tokio::test]
async fn an_object_is_given_up_by_request_and_left_as_it_is() {
    let scene = Scene::with("force-abandon", |b| b.force(config_maps())).await;
    let set = [scene.map("base", &[]), scene.map("stuck", &["base"])];
    scene.apply(&set).await;
    patch(&scene.admin, &set[1], finalizer(OTHER)).await;
    let wish = named(&scene, &set[1]).await;
    ask(&scene, &json!({"uid": scene.track.uid().unwrap(), "reason": "ours now", "abandon": [wish]})).await;
    let outcome = scene.tear_down().await;
    assert_eq!(scene.present(&set).await, [true, true], "what it needs is left to it");
    assert_eq!(outcome.removal.abandoned, [scene.id("stuck")]);
    assert!(outcome.notes.iter().any(|n| n.contains("left by request (ours now)")), "{outcome:#?}");
    assert_eq!(finalizers(&scene, &set[1]).await, [OTHER]);
    patch(&scene.admin, &set[1], json!({"metadata": {"finalizers": null}})).await;
}

#[tokio::test]
async fn c18_the_definitions_own_finalizer_stays_and_instances_are_cleared_by_name() {
    let unique = fixtures::ns("c18");
    let crd = definition(&unique, &[("v1", true)]);
    let set = [namespace(&unique), crd.clone(), custom(&unique, "v1", "zombie")];
    let kind = ObjectId::of(&set[2]).unwrap().group_kind();
    let definitions = ObjectId::of(&crd).unwrap().group_kind();
    let cleanup = "customresourcecleanup.apiextensions.k8s.io";
    let allowed = Allowed::nothing().finalizer(DEAD, kind).finalizer(cleanup, definitions);
    let scene = Scene::with("c18", |b| b.force(allowed)).await;
    scene.apply(&set).await;
    patch(&scene.admin, &set[2], finalizer(DEAD)).await;
    // Somebody deletes the definition by hand: it waits for its instance.
    remove_soon(&scene, &crd).await;
    scene.delete().await;
    let uid = scene.track.uid().unwrap();
    ask(&scene, &json!({"uid": uid, "finalizers": [strip(&scene, &crd, cleanup).await]})).await;
    let outcome = scene.until("the instance is named", &[], |o| terminating(o, "zombie")).await;
    assert!(outcome.notes.iter().any(|n| n.contains(cleanup) && n.contains("never stripped")), "{outcome:#?}");
    assert!(finalizers(&scene, &crd).await.contains(&cleanup.to_owned()));
    ask(&scene, &json!({"uid": uid, "finalizers": [strip(&scene, &set[2], DEAD).await]})).await;
    assert_eq!(scene.settle(&[]).await.phase, Phase::Released);
    // Made again, the definition brings nothing back.
    create(&scene.admin, &crd).await;
    let items = fixtures::eventually("the definition serves", async || {
        api_of(&scene.admin, &set[2]).list(&Default::default()).await.ok()
    })
    .await;
    assert!(items.items.is_empty());
    remove(&scene.admin, &crd).await;
}

/// Asks for the deletion of an object that will take its time.
async fn remove_soon(scene: &Scene, object: &DynamicObject) {
    api_of(&scene.admin, object).delete(&object.name_any(), &Default::default()).await.unwrap();
}
