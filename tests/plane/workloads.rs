//! Workloads that something waits for: gone includes their pods.

use std::collections::BTreeSet;

use control_plane::{Part, Plane, fixtures};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt,
    api::{DynamicObject, ListParams, Patch, PatchParams},
};
use kube_custody::{custodian::Phase, teardown::Reason};
use serde_json::{Value, json};

use crate::world::*;

const HELD: &str = "test.example.com/held";

fn template(app: &str, restart: &str) -> Value {
    json!({
        "metadata": {"labels": {"app": app}},
        "spec": {
            "serviceAccountName": "worker", "restartPolicy": restart,
            "containers": [{"name": "main", "image": "example.com/none"}],
        },
    })
}

fn workloads(ns: &str) -> [DynamicObject; 4] {
    let meta = |name: &str| json!({"name": name, "namespace": ns});
    let selector = |app: &str| json!({"matchLabels": {"app": app}});
    [
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta("worker")}),
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta("web"),
               "spec": {"selector": selector("web"), "template": template("web", "Always")}}),
        json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": meta("bare"),
               "spec": {"selector": selector("bare"), "template": template("bare", "Always")}}),
        json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": meta("job"),
               "spec": {"template": template("job", "Never")}}),
    ]
    .map(object)
}

async fn pods(plane: &Plane, ns: &str) -> Vec<Pod> {
    Api::<Pod>::namespaced(plane.client(), ns).list(&ListParams::default()).await.unwrap().items
}

/// The scenario on a plane of its own: it kills the garbage collector.
#[tokio::test]
async fn c13_an_account_outlives_the_pods_of_every_workload_and_a_dead_collector_is_named() {
    let controllers = ["deployment-controller", "replicaset-controller", "job-controller"];
    let plane = Plane::builder().stock_controllers(&controllers).start().await.unwrap();
    let scene = Scene::on(&plane, "workloads", |b| b).await;
    let ns = fixtures::ns("workloads-other");
    let set: Vec<_> = std::iter::once(namespace(&ns)).chain(workloads(&ns)).collect();
    scene.apply(&set).await;
    let all = fixtures::eventually("every workload has its pod", async || {
        let pods = pods(&plane, &ns).await;
        (pods.len() == 3).then_some(pods)
    })
    .await;
    let api = Api::<Pod>::namespaced(plane.client(), &ns);
    for pod in &all {
        let mut finalizers = pod.finalizers().to_vec();
        finalizers.push(HELD.into());
        let held = json!({"metadata": {"finalizers": finalizers}});
        api.patch(&pod.name_any(), &PatchParams::default(), &Patch::Merge(held)).await.unwrap();
    }

    scene.delete().await;
    let names = ["web", "bare", "job"];
    let waits = |o: &kube_custody::custodian::Outcome| {
        names.iter().all(|name| {
            blocker(o, name).is_some_and(|b| {
                b.reason == Reason::Terminating && b.finalizers.iter().any(|f| f == "foregroundDeletion")
            })
        })
    };
    let outcome = scene.until("every workload waits for its pods", &[], waits).await;
    let words = blocker(&outcome, "web").unwrap().to_string();
    assert!(words.contains("garbage collector"), "{words}");
    let account = blocker(&outcome, "worker").unwrap();
    let dependents: BTreeSet<_> = account.dependents.iter().map(|id| id.name()).collect();
    assert_eq!(dependents, names.into(), "{outcome:#?}");
    fixtures::eventually("the collector deletes every pod", async || {
        let pods = pods(&plane, &ns).await;
        pods.iter().all(|pod| pod.metadata.deletion_timestamp.is_some()).then_some(())
    })
    .await;

    // The collector dies, the pods end: what it would have to take off stays, and is what the report names.
    plane.kill(Part::Controllers).await.unwrap();
    for pod in pods(&plane, &ns).await {
        let none = json!({"metadata": {"finalizers": null}});
        api.patch(&pod.name_any(), &PatchParams::default(), &Patch::Merge(none)).await.unwrap();
    }
    fixtures::eventually("the pods are gone", async || pods(&plane, &ns).await.is_empty().then_some(())).await;
    let outcome = scene.until("the workloads still wait", &[], waits).await;
    assert!(blocker(&outcome, "web").unwrap().to_string().contains("garbage collector"));
    assert!(exists(&scene.admin, &set[1]).await, "the account stays as long as that is not proven");

    plane.start_part(Part::Controllers).await.unwrap();
    assert_eq!(scene.settle(&[]).await.phase, Phase::Released);
    assert!(scene.present(&set).await.iter().all(|present| !present));
    plane.shutdown().await.unwrap();
}
