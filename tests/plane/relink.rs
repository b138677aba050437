//! A parent that is made again under its name, and linked to the record and the children of the former one.

use control_plane::{
    Plane,
    audit::{CutMode, Verb},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, DynamicObject, Patch, PatchParams},
};
use kube_custody::custodian::{Hold, Outcome, Phase, Problem};
use serde_json::json;

use crate::world::*;

/// A scene with children in three scopes, whose parent was taken away by force and made again.
async fn made_again(prefix: &str) -> (Scene, Vec<DynamicObject>) {
    let mut scene = Scene::new(prefix).await;
    let other = new_namespace(&scene.admin, prefix).await;
    let set = vec![
        scene.map("home", &[]),
        config_map(&other, "away", &[]),
        cluster_role(&other, &[&format!("/namespaces/{other}/ConfigMap/away")]),
    ];
    scene.apply(&set).await;
    take_away(&scene).await;
    scene.track = parent(&scene.admin, &scene.ns, "track").await;
    let outcome = scene.pass(&set).await;
    assert!(matches!(outcome.phase, Phase::Held(Hold::Restored { .. })), "{outcome:#?}");
    (scene, set)
}

/// Removes the parent, and none of its children.
async fn take_away(scene: &Scene) {
    let tracks = Api::<GitTrack>::namespaced(scene.admin.clone(), &scene.ns);
    let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    tracks.patch("track", &PatchParams::default(), &patch).await.unwrap();
    delete(&scene.admin, &scene.track).await;
}

async fn uids(scene: &Scene, set: &[DynamicObject]) -> Vec<String> {
    let mut uids = Vec::new();
    for object in set {
        uids.push(live(&scene.admin, object).await.unwrap().uid().unwrap());
    }
    uids
}

#[tokio::test]
async fn c05_children_follow_their_parent_once_it_is_linked() {
    let (scene, set) = made_again("relink").await;
    let before = uids(&scene, &set).await;
    let relinked = scene.custodian.relink(&scene.track).await.unwrap();
    // The children, and the three proxies.
    assert!(relinked.is_complete() && relinked.linked.len() == 6, "{relinked:#?}");
    scene.apply(&set).await;
    assert_eq!(uids(&scene, &set).await, before, "nothing was made again");
    let (spaced, cluster) = live_proxies(&scene.admin, &scene.track).await;
    let named = spaced.iter().map(|p| &p.spec.parent.uid).chain(cluster.iter().map(|p| &p.spec.parent.uid));
    let uid = scene.track.uid().unwrap();
    assert!(spaced.len() == 2 && cluster.len() == 1 && named.into_iter().all(|named| named.as_str() == uid));
    for object in &set {
        let owners = live(&scene.admin, object).await.unwrap().owner_references().to_vec();
        let proxies = spaced.iter().map(ResourceExt::uid).chain(cluster.iter().map(ResourceExt::uid)).flatten();
        let proxies: Vec<_> = proxies.collect();
        assert!(owners.iter().all(|o| proxies.contains(&o.uid)), "{owners:#?}");
    }
    scene.tear_down().await;
    assert_eq!(scene.present(&set).await, [false, false, false]);
}

#[tokio::test]
async fn c05_children_that_were_restored_are_linked_and_copies_and_foreign_ones_are_not() {
    let (scene, set) = made_again("relink-mixed").await;
    let [home, away, role] = [&set[0], &set[1], &set[2]];
    // Restored: another incarnation with the marks of the former one.
    let mut saved = live(&scene.admin, home).await.unwrap();
    remove(&scene.admin, home).await;
    saved.metadata.uid = None;
    saved.metadata.resource_version = None;
    saved.metadata.owner_references = None;
    saved.metadata.managed_fields = None;
    create(&scene.admin, &saved).await;
    // Somebody else's by now: his own object under the name, with marks that were copied from another.
    let mut copy = saved.clone();
    copy.metadata.name = away.metadata.name.clone();
    copy.metadata.namespace = away.metadata.namespace.clone();
    let api = api_of(&scene.admin, away);
    api.delete("away", &DeleteParams::default()).await.unwrap();
    let copy = create(&scene.admin, &copy).await;

    let relinked = scene.custodian.relink(&scene.track).await.unwrap();
    let foreign: Vec<_> = relinked.foreign.iter().map(|f| f.id.name()).collect();
    assert!(relinked.is_complete() && foreign == ["away"], "{relinked:#?}");
    let outcome = scene.until("what can be is applied", &set, |o| o.unapplied.len() == 2).await;
    assert!(matches!(problem(&outcome, "away"), Some(Problem::Exists { .. })), "{outcome:#?}");
    let untouched = live(&scene.admin, &copy).await.unwrap();
    assert_eq!(untouched.resource_version(), copy.resource_version());
    // What is the parent's goes; what is not is named, and stays.
    scene.delete().await;
    let only_away = |o: &Outcome| o.removal.blockers.iter().map(|b| b.id.name()).eq(["away"]);
    scene.until("the rest is gone", &[], only_away).await;
    assert_eq!(scene.present(&[home.clone(), role.clone(), copy.clone()]).await, [false, false, true]);
    let away = id(&format!("ConfigMap {}/away", away.namespace().unwrap()));
    scene.custodian.abandon(&scene.track, &away).await.unwrap();
    assert_eq!(scene.settle(&[]).await.phase, Phase::Released);
    let untouched = live(&scene.admin, &copy).await.unwrap();
    assert_eq!(untouched.resource_version(), copy.resource_version());
}

#[tokio::test]
async fn c05_a_link_that_is_cut_off_anywhere_goes_on() {
    let plane = Plane::shared().await;
    let mut k = 2;
    loop {
        let (mut scene, set) = made_again("relink-cut").await;
        let before = uids(&scene, &set).await;
        let (operator, log) = plane.audited("admin");
        let cut = builder(operator).build().unwrap();
        log.cut_at(k, if k % 2 == 0 { CutMode::After } else { CutMode::Before });
        let cut_off = cut.relink(&scene.track).await.map_or(true, |relinked| !relinked.is_complete());
        scene.restart(|b| b);
        let relinked = scene.custodian.relink(&scene.track).await.unwrap();
        assert!(relinked.is_complete() && relinked.foreign.is_empty(), "{k}: {relinked:#?}");
        scene.apply(&set).await;
        assert_eq!(uids(&scene, &set).await, before, "{k}");
        scene.tear_down().await;
        let deletes = scene.log.calls_where(|c| c.head.verb == Verb::Delete && c.effective);
        assert!(!deletes.is_empty());
        if !cut_off {
            break;
        }
        k += 5;
    }
    assert!(k > 10, "the calls are too few to mean something: {k}");
}
