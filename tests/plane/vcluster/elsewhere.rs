//! Another cluster answers where the children are expected.

use std::sync::atomic::{AtomicBool, Ordering};

use control_plane::audit::Verb;
use kube_custody::{custodian::Watch, manager::Manager};
use tower::service_fn;

use super::*;

/// Puts objects into a cluster that look like the children in every respect that can be copied.
async fn plant(vc: &Vcluster, from: &Plane, into: &Plane) {
    for object in &vc.set {
        let mut copy = live(&from.client(), object).await.unwrap();
        copy.metadata.managed_fields = None;
        copy.metadata.resource_version = None;
        copy.metadata.uid = None;
        copy.data.as_object_mut().unwrap().remove("status");
        create(&into.client(), &copy).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kubeconfig_that_leads_to_a_third_cluster_deletes_and_forgets_nothing() {
    let (plane, other) = (remote().await, third().await);
    let mut vc = Vcluster::applied("vc-third", plane).await;
    plant(&vc, plane, other).await;

    vc.point_to(&kubeconfig(other)).await;
    assert!(matches!(vc.held().await, Hold::OtherCluster { .. }), "while the parent lives");
    vc.scene.delete().await;
    for _ in 0..2 {
        let Hold::OtherCluster { words } = vc.held().await else { panic!() };
        assert!(words.contains(&id_of(plane).await.to_string()) && words.contains(&id_of(other).await.to_string()));
        vc.restart();
    }
    assert_eq!(vc.scene.recorded().await.len(), 3);
    assert_eq!(vc.present(plane).await, [true; 3]);

    // The record is lost, too: only the parent still says which cluster it was.
    let store = Manager::new(MANAGER).unwrap().inventory_label();
    let maps = Api::<k8s_openapi::api::core::v1::ConfigMap>::namespaced(vc.scene.admin.clone(), &vc.scene.ns);
    for map in maps.list(&kube::api::ListParams::default().labels(&store)).await.unwrap() {
        let bare = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        maps.patch(&map.name_any(), &PatchParams::default(), &bare).await.unwrap();
        maps.delete(&map.name_any(), &Default::default()).await.unwrap();
    }
    let Hold::InventoryMissing { words } = vc.held().await else { panic!() };
    assert!(words.contains(&id_of(plane).await.to_string()), "{words}");

    vc.point_to(&kubeconfig(plane)).await;
    vc.finish().await;
    assert_eq!(vc.present(plane).await[1..], [false; 2]);
    assert_eq!(vc.present(other).await, [true; 3], "not ours, however they look");
}

/// The address leads to a new, empty cluster from one request to the next: everything is NotFound there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_cluster_at_the_same_address_proves_nothing() {
    let (plane, other) = (remote().await, third().await);
    let elsewhere = Arc::new(AtomicBool::new(false));
    let log = AuditLog::new();
    let (first, second) = (log.client(plane.config()).unwrap(), other.client());
    let switch = Arc::clone(&elsewhere);
    let client = Client::new(
        service_fn(move |request| {
            let client = if switch.load(Ordering::SeqCst) { second.clone() } else { first.clone() };
            async move { client.send(request).await }
        }),
        "default",
    );
    let hook = move |_| std::future::ready(Ok(Target::remote("one", client.clone())));
    let scene = Scene::with("vc-flip", |b| b.target(hook).watch(Watch::Off)).await;
    let set = children(&scene.ns);
    scene.apply(&set).await;

    // Right after the cluster was identified at the beginning of a slice.
    scene.delete().await;
    let turn = Arc::clone(&elsewhere);
    log.before_call(move |head| {
        if head.target.plural == "configmaps" && head.verb == Verb::Get {
            turn.store(true, Ordering::SeqCst);
        }
        std::future::ready(())
    });
    let outcome = scene.pass(&set).await;
    assert!(elsewhere.load(Ordering::SeqCst), "the scenario did not happen: {outcome:#?}");
    assert!(matches!(outcome.phase, Phase::Held(Hold::OtherCluster { .. })), "{outcome:#?}");
    assert_eq!(scene.recorded().await.len(), 3, "what was not found is not gone");
    assert!(reload(&scene.admin, &scene.track).await.is_some());

    log.heal();
    elsewhere.store(false, Ordering::SeqCst);
    settle_deleted(&scene.custodian, &scene.admin, &scene.track, &set).await;
    for object in &set[1..] {
        assert!(!exists(&plane.client(), object).await);
    }
}
