//! test/e2e/apimachinery/namespace.go, test/integration/namespace, and the tests of the storage of namespaces
//! (pkg/registry/core/namespace/storage/storage_test.go), on both stages.
//!
//! The storage is asked through its API. A finalizer of the namespace's spec that is not `kubernetes` keeps the namespace
//! controller from letting go of what a scenario looks at.

use futures::future::join_all;
use serde_json::{Value, json};

use crate::{
    both::{JSON, Stage, both},
    objects::{NAMESPACES, core, gone, items, map, maps, pod, pods, release, state, workload},
};

const HOLD: &str = "x.io/hold";

fn path_of(namespace: &str) -> String {
    format!("{NAMESPACES}/{namespace}")
}

/// Writes the finalizers of a namespace's spec.
async fn finalize(stage: &Stage, path: &str, finalizers: &[&str]) -> Value {
    let mut live = stage.get(path).await.unwrap();
    live["spec"]["finalizers"] = json!(finalizers);
    // Without a version, so that it does not matter who else writes.
    live["metadata"]["resourceVersion"].take();
    let answer = stage.send("PUT", &format!("{path}/finalize"), JSON, Some(&live)).await;
    assert_eq!(answer.code, 200, "{answer:?}");
    answer.body
}

/// A namespace that only the scenario itself lets go of.
async fn held(stage: &Stage) -> String {
    let path = path_of(&stage.namespace("ns").await);
    let answer = finalize(stage, &path, &["kubernetes", HOLD]).await;
    assert_eq!(answer["spec"]["finalizers"], json!(["kubernetes", HOLD]));
    path
}

both! {
    async fn ensure_that_all_pods_are_removed_when_a_namespace_is_deleted(stage: &Stage) {
        let namespace = stage.namespace("ns").await;
        stage.create(&pods(&namespace), pod("test-pod", &[], &[])).await;
        removed_and_empty_when_made_again(stage, &namespace, "pods").await;
    }

    async fn ensure_that_all_services_are_removed_when_a_namespace_is_deleted(stage: &Stage) {
        let namespace = stage.namespace("ns").await;
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "test-service"},
            "spec": {"ports": [{"port": 80, "targetPort": 80}]},
        });
        stage.create(&core(&namespace, "services"), service).await;
        removed_and_empty_when_made_again(stage, &namespace, "services").await;
    }

    /// Upstream: 90 of 100 within 150 seconds.
    async fn delete_fast_enough(stage: &Stage) {
        let made = join_all((0..20).map(async |_| stage.namespace("ns").await)).await;
        let paths: Vec<_> = made.iter().map(|namespace| path_of(namespace)).collect();
        join_all(made.iter().map(async |namespace| stage.create(&maps(namespace), map("a", &[], &[])).await)).await;
        join_all(paths.iter().map(async |path| stage.delete(path, "Background").await)).await;
        gone(stage, &paths).await;
    }

    async fn patch_update_and_status(stage: &Stage) {
        let path = path_of(&stage.namespace("ns").await);
        let patched = stage.patch(&path, json!({"metadata": {"labels": {"testLabel": "testValue"}}})).await;
        assert_eq!((patched.code, &patched.body["metadata"]["labels"]["testLabel"]), (200, &json!("testValue")));
        let condition = |kind: &str| json!({"type": kind, "status": "True", "reason": "E2E", "message": "Set by a test"});
        let status = json!({"status": {"conditions": [condition("StatusPatch")]}});
        let patched = stage.patch(&format!("{path}/status"), status).await;
        assert_eq!((patched.code, &patched.body["status"]["conditions"][0]["type"]), (200, &json!("StatusPatch")));
        let mut live = stage.get(&path).await.unwrap();
        live["status"]["conditions"] = json!([condition("StatusPatch"), condition("StatusUpdate")]);
        let updated = stage.send("PUT", &format!("{path}/status"), JSON, Some(&live)).await;
        assert_eq!(updated.body["status"]["conditions"].as_array().unwrap().len(), 2);
        // Neither part writes the other.
        live = stage.get(&path).await.unwrap();
        live["metadata"]["labels"]["updated"] = json!("yes");
        live["status"]["conditions"] = json!([]);
        let updated = stage.send("PUT", &path, JSON, Some(&live)).await;
        assert_eq!(updated.body["metadata"]["labels"]["updated"], "yes");
        assert_eq!(updated.body["status"]["conditions"].as_array().unwrap().len(), 2);
    }

    async fn apply_a_finalizer_to_a_namespace(stage: &Stage) {
        let path = held(stage).await;
        stage.delete(&path, "Background").await;
        stage
            .until("the controller leaves it", async || {
                stage.get(&path).await.unwrap()["spec"]["finalizers"] == json!([HOLD])
            })
            .await;
        assert_eq!(state(stage, path.clone()).await, "terminating");
        finalize(stage, &path, &[]).await;
        gone(stage, &[path]).await;
    }

    async fn ordered_namespace_deletion(stage: &Stage) {
        let namespace = stage.namespace("ns").await;
        let path = path_of(&namespace);
        stage.create(&pods(&namespace), pod("held", &[], &[HOLD])).await;
        stage.create(&maps(&namespace), map("untouched", &[], &[])).await;
        stage.delete(&path, "Background").await;
        let pod = format!("{}/held", pods(&namespace));
        stage.until("the pod is told", async || state(stage, pod.clone()).await == "terminating").await;
        let written = async || condition(stage, &path, "NamespaceContentRemaining").await.is_some();
        stage.until("its conditions are written", written).await;
        // The known defect: with only pods left they say that nothing is.
        for (kind, message) in [
            ("NamespaceContentRemaining", "All content successfully removed"),
            ("NamespaceFinalizersRemaining", "All content-preserving finalizers finished"),
        ] {
            assert_eq!(condition(stage, &path, kind).await, Some((json!("False"), json!(message))));
        }
        assert_eq!(state(stage, format!("{}/untouched", maps(&namespace))).await, "there");
        stage.patch(&pod, release()).await;
        gone(stage, &[path]).await;
    }

    async fn namespace_condition(stage: &Stage) {
        let namespace = stage.namespace("ns").await;
        let path = path_of(&namespace);
        let deployments = format!("/apis/apps/v1/namespaces/{namespace}/deployments");
        stage.create(&deployments, workload("apps/v1", "Deployment", "d", &[], &["custom.io/finalizer"])).await;
        stage.delete(&path, "Background").await;
        let written = async || condition(stage, &path, "NamespaceContentRemaining").await.is_some();
        stage.until("its conditions are written", written).await;
        for (kind, status, message) in [
            ("NamespaceDeletionDiscoveryFailure", "False", "All resources successfully discovered"),
            ("NamespaceDeletionGroupVersionParsingFailure", "False", "All legacy kube types successfully parsed"),
            (
                "NamespaceDeletionContentFailure",
                "False",
                "All content successfully deleted, may be waiting on finalization",
            ),
            (
                "NamespaceContentRemaining",
                "True",
                "Some resources are remaining: deployments.apps has 1 resource instances",
            ),
            (
                "NamespaceFinalizersRemaining",
                "True",
                "Some content in the namespace has finalizers remaining: custom.io/finalizer in 1 resource instances",
            ),
        ] {
            assert_eq!(condition(stage, &path, kind).await, Some((json!(status), json!(message))), "{kind}");
        }
        stage.patch(&format!("{deployments}/d"), release()).await;
        gone(stage, &[path]).await;
    }

    async fn delete_namespace_with_incomplete_finalizers(stage: &Stage) {
        let path = held(stage).await;
        for _ in 0..2 {
            let answer = stage.delete(&path, "Background").await;
            assert_eq!((answer.code, &answer.body["status"]["phase"]), (200, &json!("Terminating")));
            assert!(answer.body["metadata"]["deletionTimestamp"].is_string());
        }
        finalize(stage, &path, &[]).await;
        assert_eq!(state(stage, path).await, "gone");
    }

    async fn update_deleting_namespace_with_incomplete_metadata_finalizers(stage: &Stage) {
        let path = held(stage).await;
        stage.patch(&path, json!({"metadata": {"finalizers": ["example.com/foo"]}})).await;
        stage.delete(&path, "Background").await;
        let labelled = stage.patch(&path, json!({"metadata": {"labels": {"a": "b"}}})).await;
        assert_eq!(labelled.code, 200);
        // The finalizers of its spec are done, that of its metadata is not.
        finalize(stage, &path, &[]).await;
        assert_eq!(state(stage, path.clone()).await, "terminating");
        assert_eq!(stage.patch(&path, release()).await.code, 200);
        assert_eq!(state(stage, path).await, "gone");
    }

    async fn update_deleting_namespace_with_incomplete_spec_finalizers(stage: &Stage) {
        let path = held(stage).await;
        stage.patch(&path, json!({"metadata": {"finalizers": ["example.com/foo"]}})).await;
        stage.delete(&path, "Background").await;
        assert_eq!(stage.patch(&path, release()).await.code, 200);
        assert_eq!(state(stage, path.clone()).await, "terminating");
        finalize(stage, &path, &[]).await;
        assert_eq!(state(stage, path).await, "gone");
    }

    async fn delete_with_gc_finalizers(stage: &Stage) {
        // Finalizers before, options, finalizers after.
        let cases = [
            (json!(["orphan"]), json!({"orphanDependents": true}), json!(["orphan"])),
            (json!([]), json!({"orphanDependents": true}), json!(["orphan"])),
            (json!(["orphan"]), json!({"orphanDependents": false}), json!(["foregroundDeletion"])),
            (json!([]), json!({"orphanDependents": false}), json!(["foregroundDeletion"])),
            (json!(["foregroundDeletion"]), json!({"propagationPolicy": "Foreground"}), json!(["foregroundDeletion"])),
            (json!(["orphan"]), json!({"propagationPolicy": "Foreground"}), json!(["foregroundDeletion"])),
            (json!(["foregroundDeletion"]), json!({"propagationPolicy": "Background"}), json!(null)),
            (json!([]), json!({"propagationPolicy": "Orphan"}), json!(["orphan"])),
            (json!(["orphan"]), json!({}), json!(["orphan"])),
            (json!(["foregroundDeletion"]), json!({}), json!(["foregroundDeletion"])),
            (json!([]), json!({}), json!(null)),
        ];
        for (before, options, after) in cases {
            let path = held(stage).await;
            stage.patch(&path, json!({"metadata": {"finalizers": before}})).await;
            let answer = stage.send("DELETE", &path, JSON, Some(&options)).await;
            assert_eq!(answer.code, if options["orphanDependents"] == false { 202 } else { 200 }, "{answer:?}");
            assert_eq!(answer.body["metadata"]["finalizers"], after, "{before} {options}");
            stage.patch(&path, release()).await;
            finalize(stage, &path, &[]).await;
            gone(stage, &[path]).await;
        }
    }
}

/// Status and message of a namespace's condition.
async fn condition(stage: &Stage, path: &str, kind: &str) -> Option<(Value, Value)> {
    let live = stage.get(path).await.unwrap();
    let conditions = live["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.iter().find(|c| c["type"] == kind).map(|c| (c["status"].clone(), c["message"].clone()))
}

async fn removed_and_empty_when_made_again(stage: &Stage, namespace: &str, plural: &str) {
    stage.delete(&path_of(namespace), "Background").await;
    gone(stage, &[path_of(namespace)]).await;
    let again = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
    stage.create(NAMESPACES, again).await;
    assert_eq!(items(stage, &core(namespace, plural)).await, [json!(null); 0]);
}
