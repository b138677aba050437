//! An operator that ends together with its parents, and proxies that nobody lets go of.

use std::time::Duration;

use control_plane::{Plane, fixtures};
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
};
use kube_custody::{
    custodian::uninstall::{Behind, Drain, Service},
    object::{LiveRef, Uid},
};
use serde_json::json;

use crate::world::*;

async fn gone(scene: &Scene) {
    let namespaces = Api::<Namespace>::all(scene.admin.clone());
    fixtures::eventually("the namespace is gone", async || {
        namespaces.get_opt(&scene.ns).await.unwrap().is_none().then_some(())
    })
    .await;
}

/// The namespace takes its pods first, so the operator in it ends before its parents are deleted.
#[tokio::test]
async fn c17_an_operator_that_ends_with_its_namespace_finishes_its_parents_beside_another() {
    let scene = Scene::new("drain").await;
    let away = new_namespace(&scene.admin, "drain-away").await;
    let set = vec![scene.map("home", &[]), config_map(&away, "away", &[]), cluster_role(&away, &[])];
    scene.apply(&set).await;
    let bystander = parent(&scene.admin, &away, "bystander").await;
    settle(&scene.custodian, &scene.admin, &bystander, &[config_map(&away, "stays", &[])]).await;

    // A parent whose operator is told to stop while nothing is going on is left as it is.
    let options = Drain::within(Duration::from_secs(30)).namespace(&scene.ns);
    let nothing = scene.custodian.drain(&options).await.unwrap();
    assert!(nothing.finished.is_empty() && nothing.left.is_empty(), "{nothing:#?}");

    Api::<Namespace>::all(scene.admin.clone()).delete(&scene.ns, &DeleteParams::default()).await.unwrap();
    let second = builder(Plane::shared().await.client()).slice(Duration::from_millis(200)).build().unwrap();
    let beside = async {
        while let Some(live) = reload(&scene.admin, &scene.track).await {
            reconcile(&second, &live, &set).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let (drained, ()) = tokio::join!(scene.custodian.drain(&options), beside);
    let drained = drained.unwrap();
    assert!(drained.left.is_empty() && drained.released.is_empty(), "{drained:#?}");
    // Nobody is left that could do anything, and nothing is left to do.
    gone(&scene).await;
    assert_eq!(scene.present(&set).await, [false, false, false]);
    assert!(exists(&scene.admin, &config_map(&away, "stays", &[])).await);
    delete(&scene.admin, &bystander).await;
    settle_deleted(&scene.custodian, &scene.admin, &bystander, &[]).await;
}

#[tokio::test]
async fn c17_what_nobody_serves_is_named_and_can_be_released() {
    let scene = Scene::new("drain-release").await;
    let set = vec![scene.map("held", &[]), cluster_role(&scene.ns, &[])];
    scene.apply(&set).await;
    patch(&scene.admin, &set[0], json!({"metadata": {"finalizers": ["elsewhere.example.com/held"]}})).await;
    scene.delete().await;
    let found = scene.custodian.terminating(Some(&scene.ns)).await.unwrap();
    assert!(found.len() == 1 && found[0].service == Service::NotBegun, "{found:#?}");
    assert_eq!(found[0].finalizers.len(), 2);

    let options = Drain::within(Duration::from_secs(4)).namespace(&scene.ns);
    let drained = scene.custodian.drain(&options).await.unwrap();
    assert!(drained.left.len() == 1 && drained.left[0].1.contains("elsewhere.example.com/held"), "{drained:#?}");
    let found = scene.custodian.terminating(Some(&scene.ns)).await.unwrap();
    assert!(matches!(found[0].service, Service::Begun { .. }), "{found:#?}");

    let drained = scene
        .custodian
        .drain(&Drain::within(Duration::from_secs(20)).namespace(&scene.ns).release_rest(true))
        .await
        .unwrap();
    assert_eq!(drained.released.len(), 1, "{drained:#?}");
    assert!(reload(&scene.admin, &scene.track).await.is_none());
    let left = live(&scene.admin, &set[0]).await.unwrap();
    assert!(left.labels().is_empty() && left.annotations().is_empty() && left.owner_references().is_empty());
    assert_eq!(left.finalizers(), ["elsewhere.example.com/held"]);
    patch(&scene.admin, &set[0], json!({"metadata": {"finalizers": null}})).await;
}

#[tokio::test]
async fn leftover_proxies_are_reported_and_deleted_only_by_name_and_when_their_parent_is_proven_gone() {
    let scene = Scene::new("leftover").await;
    let set = vec![scene.map("child", &[])];
    scene.apply(&set).await;
    let mine = async || {
        let left = scene.custodian.leftover_proxies().await.unwrap();
        left.into_iter().filter(|p| p.proxy.id.namespace() == Some(&scene.ns)).collect::<Vec<_>>()
    };
    let (spaced, _) = live_proxies(&scene.admin, &scene.track).await;
    let proxy = id(&format!("GitTrackOwner.faros.pusher.com {}/{}", scene.ns, spaced[0].name_any()));
    let proxy = LiveRef::new(proxy, Uid::new(spaced[0].uid().unwrap()).unwrap());
    assert!(mine().await.is_empty());
    let refused = scene.custodian.delete_proxies([proxy.clone()]).await.unwrap();
    assert!(refused.len() == 1 && refused[0].words.contains("lives"), "{refused:#?}");

    // Parent and record are taken away by force, and the proxy is left.
    let force = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    let tracks = Api::<GitTrack>::namespaced(scene.admin.clone(), &scene.ns);
    tracks.patch("track", &PatchParams::default(), &force).await.unwrap();
    scene.delete().await;
    let found = mine().await;
    assert!(found.len() == 1 && found[0].behind == Behind::Gone, "{found:#?}");
    let refused = scene.custodian.delete_proxies([proxy.clone()]).await.unwrap();
    assert!(refused.len() == 1 && refused[0].words.contains("record"), "what is on record goes in order: {refused:#?}");
    let maps = Api::<k8s_openapi::api::core::v1::ConfigMap>::namespaced(scene.admin.clone(), &scene.ns);
    for record in maps.list(&Default::default()).await.unwrap() {
        if record.finalizers().iter().any(|f| f.ends_with("/inventory")) {
            maps.patch(&record.name_any(), &PatchParams::default(), &force).await.unwrap();
            maps.delete(&record.name_any(), &DeleteParams::default()).await.unwrap();
        }
    }
    let left = scene.custodian.delete_proxies([proxy]).await.unwrap();
    assert!(left.is_empty(), "{left:#?}");
    assert!(live_proxies(&scene.admin, &scene.track).await.0.is_empty() && mine().await.is_empty());
    let collected = async || (!exists(&scene.admin, &set[0]).await).then_some(());
    fixtures::eventually("the garbage collector takes what referred to it", collected).await;
}
