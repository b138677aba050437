//! test/e2e/apimachinery/garbage_collector.go, on both stages.
//!
//! Neither stage has controllers of workloads. What a ReplicationController, a Deployment, or a CronJob would have made
//! is written by the scenarios; nobody makes it anew when it goes, as nobody does once its owner is terminating.

use serde_json::{Value, json};

use crate::{
    both::{JSON, Stage, both},
    objects::{
        gone, items, known, map, maps, owner, owners, pod, pods, rc, rcs, release, state, thing, things, workload,
    },
};

/// The owner at `path`, made, and three pods of it.
async fn with_pods(stage: &Stage, base: &str, object: Value, at: &str, finalizers: &[&str]) -> Value {
    let owning = stage.create(base, object).await;
    for n in 0..3 {
        stage.create(at, pod(&format!("pod-{n}"), &[owner(&owning, true)], finalizers)).await;
    }
    known(stage, &[&owning]).await;
    stage.quiet().await;
    owning
}

/// A Deployment, its ReplicaSet, and the pods of that, as the controllers write them.
async fn deployment(stage: &Stage, namespace: &str) -> [String; 3] {
    let group = |plural: &str| format!("/apis/apps/v1/namespaces/{namespace}/{plural}");
    let deploying = stage.create(&group("deployments"), workload("apps/v1", "Deployment", "d", &[], &[])).await;
    let set = workload("apps/v1", "ReplicaSet", "d-1", &[owner(&deploying, true)], &[]);
    with_pods(stage, &group("replicasets"), set, &pods(namespace), &[]).await;
    [format!("{}/d", group("deployments")), format!("{}/d-1", group("replicasets")), pods(namespace)]
}

/// Three pods are there, and have no owner.
async fn assert_orphans(stage: &Stage, at: &str) {
    let left = items(stage, at).await;
    assert_eq!(left.len(), 3);
    assert!(left.iter().all(|pod| pod["metadata"]["ownerReferences"].is_null()), "{left:?}");
}

both! {
    async fn delete_pods_created_by_rc_when_not_orphaning(stage: &Stage) {
        let namespace = stage.namespace("e2e").await;
        with_pods(stage, &rcs(&namespace), rc("rc", &[]), &pods(&namespace), &[]).await;
        stage.delete(&format!("{}/rc", rcs(&namespace)), "Background").await;
        assert_eq!(state(stage, format!("{}/rc", rcs(&namespace))).await, "gone", "at once");
        stage.until("its pods go", async || items(stage, &pods(&namespace)).await.is_empty()).await;
    }

    async fn orphan_pods_created_by_rc_if_delete_options_say_so(stage: &Stage) {
        let namespace = stage.namespace("e2e").await;
        with_pods(stage, &rcs(&namespace), rc("rc", &[]), &pods(&namespace), &[]).await;
        stage.delete(&format!("{}/rc", rcs(&namespace)), "Orphan").await;
        gone(stage, &[format!("{}/rc", rcs(&namespace))]).await;
        stage.quiet().await;
        assert_orphans(stage, &pods(&namespace)).await;
    }

    async fn orphan_pods_created_by_rc_if_orphan_dependents_is_nil(stage: &Stage) {
        let namespace = stage.namespace("e2e").await;
        with_pods(stage, &rcs(&namespace), rc("rc", &[]), &pods(&namespace), &[]).await;
        stage.send("DELETE", &format!("{}/rc", rcs(&namespace)), JSON, None).await;
        gone(stage, &[format!("{}/rc", rcs(&namespace))]).await;
        stage.quiet().await;
        assert_orphans(stage, &pods(&namespace)).await;
    }

    async fn delete_rs_created_by_deployment_when_not_orphaning(stage: &Stage) {
        let [deployment, set, pods] = deployment(stage, &stage.namespace("e2e").await).await;
        stage.delete(&deployment, "Background").await;
        gone(stage, &[deployment, set]).await;
        stage.until("the pods go", async || items(stage, &pods).await.is_empty()).await;
    }

    async fn orphan_rs_created_by_deployment_when_policy_is_orphan(stage: &Stage) {
        let [deployment, set, pods] = deployment(stage, &stage.namespace("e2e").await).await;
        stage.delete(&deployment, "Orphan").await;
        gone(stage, &[deployment]).await;
        stage.quiet().await;
        assert_eq!(state(stage, set.clone()).await, "there");
        assert_eq!(owners(stage, set).await, [""; 0]);
        for pod in items(stage, &pods).await {
            assert_eq!(pod["metadata"]["ownerReferences"][0]["name"], "d-1", "only the reference to the deployment goes");
        }
    }

    async fn keep_the_rc_around_until_all_its_pods_are_deleted(stage: &Stage) {
        let namespace = stage.namespace("e2e").await;
        let (path, at) = (format!("{}/rc", rcs(&namespace)), pods(&namespace));
        with_pods(stage, &rcs(&namespace), rc("rc", &[]), &at, &["x.io/hold"]).await;
        stage.delete(&path, "Foreground").await;
        for n in 0..3 {
            let pod = format!("{at}/pod-{n}");
            stage.until("it is told", async || state(stage, pod.clone()).await == "terminating").await;
        }
        for n in 0..3 {
            stage.quiet().await;
            assert_eq!(state(stage, path.clone()).await, "terminating");
            stage.patch(&format!("{at}/pod-{n}"), release()).await;
        }
        gone(stage, &[path]).await;
        assert_eq!(items(stage, &at).await, [json!(null); 0]);
    }

    async fn keep_dependents_with_a_valid_owner_and_one_that_waits(stage: &Stage) {
        let namespace = stage.namespace("e2e").await;
        let (owning, at) = (rcs(&namespace), pods(&namespace));
        let going = stage.create(&owning, rc("to-be-deleted", &[])).await;
        let staying = stage.create(&owning, rc("to-stay", &[])).await;
        for n in 0..6 {
            // Half of the pods have both owners. One of the others holds the owner that goes.
            let both = [owner(&going, true), owner(&staying, false)];
            let holds: &[&str] = if n == 0 { &["x.io/hold"] } else { &[] };
            stage.create(&at, pod(&format!("pod-{n}"), &both[..=n % 2], holds)).await;
        }
        known(stage, &[&going, &staying]).await;
        stage.quiet().await;
        stage.delete(&format!("{owning}/to-be-deleted"), "Foreground").await;
        gone(stage, &[format!("{at}/pod-2"), format!("{at}/pod-4")]).await;
        stage.quiet().await;
        assert_eq!(state(stage, format!("{owning}/to-be-deleted")).await, "terminating");
        stage.patch(&format!("{at}/pod-0"), release()).await;
        gone(stage, &[format!("{owning}/to-be-deleted")]).await;
        stage.quiet().await;
        for n in [1, 3, 5] {
            assert_eq!(state(stage, format!("{at}/pod-{n}")).await, "there");
            assert_eq!(owners(stage, format!("{at}/pod-{n}")).await, ["to-stay"]);
        }
    }

    async fn not_be_blocked_by_dependency_circle(stage: &Stage) {
        let at = pods(&stage.namespace("e2e").await);
        let names = ["pod-0", "pod-1", "pod-2"];
        let mut made = Vec::new();
        for name in names {
            made.push(stage.create(&at, pod(name, &[], &[])).await);
        }
        for (place, name) in names.iter().enumerate() {
            let references = json!({"metadata": {"ownerReferences": [owner(&made[(place + 2) % 3], true)]}});
            stage.patch(&format!("{at}/{name}"), references).await;
        }
        stage.quiet().await;
        stage.delete(&format!("{at}/pod-0"), "Foreground").await;
        gone(stage, &names.map(|name| format!("{at}/{name}"))).await;
    }

    async fn support_cascading_deletion_of_custom_resources(stage: &Stage) {
        let at = things(&stage.namespace("e2e").await);
        let parent = stage.create(&at, thing("owner", &[], &[])).await;
        stage.create(&at, thing("dependent", &[owner(&parent, true)], &[])).await;
        stage.create(&at, thing("canary", &[], &[])).await;
        stage.quiet().await;
        stage.delete(&format!("{at}/owner"), "Background").await;
        gone(stage, &[format!("{at}/owner"), format!("{at}/dependent")]).await;
        stage.quiet().await;
        assert_eq!(state(stage, format!("{at}/canary")).await, "there");
    }

    async fn support_orphan_deletion_of_custom_resources(stage: &Stage) {
        let at = things(&stage.namespace("e2e").await);
        let parent = stage.create(&at, thing("owner", &[], &[])).await;
        stage.create(&at, thing("dependent", &[owner(&parent, true)], &[])).await;
        known(stage, &[&parent]).await;
        stage.quiet().await;
        stage.delete(&format!("{at}/owner"), "Orphan").await;
        gone(stage, &[format!("{at}/owner")]).await;
        stage.quiet().await;
        assert_eq!(state(stage, format!("{at}/dependent")).await, "there");
        assert_eq!(owners(stage, format!("{at}/dependent")).await, [""; 0]);
    }

    async fn delete_jobs_and_pods_created_by_cronjob(stage: &Stage) {
        let namespace = stage.namespace("e2e").await;
        let batch = |plural: &str| format!("/apis/batch/v1/namespaces/{namespace}/{plural}");
        let template = json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}});
        let cron = json!({
            "apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "cron"},
            "spec": {"schedule": "*/1 * * * ?", "jobTemplate": {"spec": {"template": template}}},
        });
        let cron = stage.create(&batch("cronjobs"), cron).await;
        let job = json!({
            "apiVersion": "batch/v1", "kind": "Job",
            "metadata": {"name": "job", "ownerReferences": [owner(&cron, true)]}, "spec": {"template": template},
        });
        with_pods(stage, &batch("jobs"), job, &pods(&namespace), &[]).await;
        stage.create(&maps(&namespace), map("canary", &[], &[])).await;
        stage.delete(&format!("{}/cron", batch("cronjobs")), "Background").await;
        gone(stage, &[format!("{}/cron", batch("cronjobs")), format!("{}/job", batch("jobs"))]).await;
        stage.until("the pods go", async || items(stage, &pods(&namespace)).await.is_empty()).await;
        assert_eq!(state(stage, format!("{}/canary", maps(&namespace))).await, "there");
    }
}
