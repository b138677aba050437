//! The tests of the store (staging/src/k8s.io/apiserver/pkg/registry/generic/registry/store_test.go and rest/delete_test.go)
//! on both stages, asked through the API.
//!
//! `TestRetryDeleteValidation` can't be played: it changes an object inside of one DELETE. `TestMarkAsDeleting` with a mark
//! in the future is the pod whose period of grace is shortened.

use serde_json::{Value, json};

use crate::{
    both::{JSON, Stage, both},
    objects::{core, map, maps, pod, pods, rc, rcs, release, state, thing, things},
};

/// The store's answer to a DELETE with these options: the finalizers that are left, or that the object is gone.
async fn left(stage: &Stage, base: &str, mut object: Value, finalizers: &[&str], options: &Value) -> Value {
    object["metadata"]["finalizers"] = json!(finalizers);
    let path = format!("{base}/{}", object["metadata"]["name"].as_str().unwrap());
    stage.create(base, object).await;
    let answer = stage.send("DELETE", &path, JSON, Some(options)).await;
    let status = answer.body["kind"] == "Status";
    let code = if !status && options["orphanDependents"] == false { 202 } else { 200 };
    assert_eq!(answer.code, code, "{finalizers:?} {options}: {answer:?}");
    if status {
        assert_eq!(state(stage, path).await, "gone");
        return json!("gone");
    }
    assert!(answer.body["metadata"]["deletionTimestamp"].is_string(), "{answer:?}");
    stage.patch(&path, release()).await;
    answer.body["metadata"]["finalizers"].clone()
}

const HOLD: &str = "foo.com/x";

both! {
    /// Also `TestStoreDeleteWithOrphanDependents` and `TestStoreDeletionPropagation`.
    async fn deletion_finalizers_for_garbage_collection(stage: &Stage) {
        let namespace = stage.namespace("store").await;
        let (plain, orphan) = (json!({}), json!({"orphanDependents": true}));
        let delete = json!({"orphanDependents": false});
        let policy = |policy: &str| json!({"propagationPolicy": policy});
        let (background, foreground, orphaning) = (policy("Background"), policy("Foreground"), policy("Orphan"));
        let kinds = [
            (maps(&namespace), map("a", &[], &[]), false),
            (things(&namespace), thing("a", &[], &[]), false),
            (rcs(&namespace), rc("a", &[]), true),
        ];
        for (base, object, orphans) in kinds {
            for held in [&[][..], &[HOLD][..]] {
                let with = |finalizer: &'static str| [held, &[finalizer]].concat();
                let (as_orphan, as_foreground) = (json!(with("orphan")), json!(with("foregroundDeletion")));
                let without = if held.is_empty() { json!("gone") } else { json!(held) };
                let by_default = if orphans { &as_orphan } else { &without };
                for (before, options, after) in [
                    (held.to_vec(), &plain, by_default),
                    (held.to_vec(), &orphan, &as_orphan),
                    (held.to_vec(), &delete, &without),
                    (held.to_vec(), &background, &without),
                    (held.to_vec(), &foreground, &as_foreground),
                    (held.to_vec(), &orphaning, &as_orphan),
                    (with("orphan"), &plain, &as_orphan),
                    (with("orphan"), &orphan, &as_orphan),
                    (with("orphan"), &delete, &without),
                    (with("orphan"), &background, &without),
                    (with("orphan"), &foreground, &as_foreground),
                    (with("orphan"), &orphaning, &as_orphan),
                    (with("foregroundDeletion"), &plain, &as_foreground),
                    (with("foregroundDeletion"), &orphan, &as_orphan),
                    (with("foregroundDeletion"), &delete, &without),
                    (with("foregroundDeletion"), &background, &without),
                    (with("foregroundDeletion"), &foreground, &as_foreground),
                    (with("foregroundDeletion"), &orphaning, &as_orphan),
                ] {
                    let found = left(stage, &base, object.clone(), &before, options).await;
                    assert_eq!(found, *after, "{base} {before:?} {options}");
                    stage.until("its name is free", async || state(stage, format!("{base}/a")).await == "gone").await;
                }
            }
        }
        let both = json!({"orphanDependents": true, "propagationPolicy": "Orphan"});
        let refused = stage.send("DELETE", &format!("{}/a", maps(&namespace)), JSON, Some(&both)).await;
        assert_eq!(refused.code, 422);
    }

    async fn non_graceful_store_handle_finalizers(stage: &Stage) {
        let at = maps(&stage.namespace("store").await);
        let path = format!("{at}/a");
        stage.create(&at, map("a", &[], &[HOLD])).await;
        // An update that empties the finalizers of what is not being deleted.
        assert_eq!(stage.patch(&path, release()).await.code, 200);
        assert_eq!(state(stage, path.clone()).await, "there");
        stage.patch(&path, json!({"metadata": {"finalizers": [HOLD]}})).await;
        let first = stage.delete(&path, "Background").await.body;
        assert_eq!(first["metadata"]["deletionGracePeriodSeconds"], 0);
        // The mark stays as it is, and an update that keeps the finalizer takes nothing away.
        assert_eq!(stage.delete(&path, "Background").await.body, first);
        let patched = stage.patch(&path, json!({"metadata": {"annotations": {"foo": "bar"}}})).await;
        assert_eq!(patched.body["metadata"]["deletionTimestamp"], first["metadata"]["deletionTimestamp"]);
        let last = stage.patch(&path, json!({"metadata": {"finalizers": null, "annotations": {"foo": "last"}}})).await;
        assert_eq!((last.code, &last.body["metadata"]["annotations"]["foo"]), (200, &json!("last")));
        assert_eq!(state(stage, path).await, "gone");
    }

    async fn graceful_store_handle_finalizers(stage: &Stage) {
        let at = pods(&stage.namespace("store").await);
        for (name, finalizers) in [("plain", &[][..]), ("held", &[HOLD][..])] {
            let path = format!("{at}/{name}");
            stage.create(&at, scheduled(name, finalizers)).await;
            let marked = stage.delete(&path, "Background").await.body;
            assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 30);
            assert_eq!(state(stage, path.clone()).await, "terminating");
            // Its last finalizer does not end the period of grace.
            assert_eq!(stage.patch(&path, release()).await.code, 200);
            assert_eq!(state(stage, path.clone()).await, "terminating");
            stage.send("DELETE", &path, JSON, Some(&json!({"gracePeriodSeconds": 0}))).await;
            assert_eq!(state(stage, path).await, "gone");
        }
        let path = format!("{at}/held");
        stage.create(&at, scheduled("held", &[HOLD])).await;
        let now = stage.send("DELETE", &path, JSON, Some(&json!({"gracePeriodSeconds": 0}))).await;
        assert_eq!(now.body["metadata"]["deletionGracePeriodSeconds"], 0);
        assert_eq!(state(stage, path.clone()).await, "terminating");
        stage.patch(&path, release()).await;
        assert_eq!(state(stage, path).await, "gone");
    }

    /// Also `TestMarkAsDeleting`.
    async fn before_delete(stage: &Stage) {
        let at = pods(&stage.namespace("store").await);
        // The periods that are asked for one after the other, and what is pending then.
        let cases: [&[(Option<i64>, i64)]; 5] = [
            &[(None, 30), (None, 30), (Some(60), 30), (Some(30), 30)],
            &[(Some(60), 60), (None, 60), (Some(20), 20), (None, 20), (Some(25), 20), (Some(5), 5)],
            &[(Some(10), 10), (Some(0), 0)],
            &[(Some(-1), 1), (Some(7), 1)],
            &[(Some(0), 0), (None, 0)],
        ];
        for (case, periods) in cases.into_iter().enumerate() {
            let path = format!("{at}/pod-{case}");
            let mut generation = stage.create(&at, scheduled(&format!("pod-{case}"), &[HOLD])).await["metadata"]["generation"]
                .as_i64()
                .unwrap();
            let mut begun = None;
            for (step, (asked, pending)) in periods.iter().enumerate() {
                let options = asked.map_or_else(|| json!({}), |period| json!({"gracePeriodSeconds": period}));
                let answer = stage.send("DELETE", &path, JSON, Some(&options)).await;
                let metadata = &answer.body["metadata"];
                assert_eq!(metadata["deletionGracePeriodSeconds"], *pending, "{case} {step}: {answer:?}");
                // The mark is that many seconds after the first DELETE, whose second may be one of two.
                let mark: jiff::Timestamp = metadata["deletionTimestamp"].as_str().unwrap().parse().unwrap();
                let begin = mark.as_second() - pending;
                assert!((begin - *begun.get_or_insert(begin)).abs() <= 1, "{case} {step}: {answer:?}");
                if step == 0 {
                    generation += 1;
                }
                assert_eq!(metadata["generation"], generation, "{case} {step}");
            }
            // While a period is pending, not even the finalizers of the garbage collector change.
            let last = stage.delete(&path, "Orphan").await.body;
            let pending = last["metadata"]["deletionGracePeriodSeconds"] != 0;
            assert_eq!(last["metadata"]["finalizers"] == json!([HOLD]), pending, "{case}: {last}");
            stage.send("DELETE", &path, JSON, Some(&json!({"gracePeriodSeconds": 0}))).await;
            stage.patch(&path, release()).await;
            assert_eq!(state(stage, path).await, "gone");
        }
        // Without a node, or when it is over, nothing has to be waited for.
        stage.create(&at, pod("nowhere", &[], &[HOLD])).await;
        stage.create(&at, scheduled("over", &[HOLD])).await;
        stage.patch(&format!("{at}/over/status"), json!({"status": {"phase": "Succeeded"}})).await;
        for name in ["nowhere", "over"] {
            let path = format!("{at}/{name}");
            let answer = stage.delete(&path, "Background").await;
            assert_eq!(answer.body["metadata"]["deletionGracePeriodSeconds"], 0, "{name}");
            // Another DELETE may change the finalizers of the garbage collector then.
            assert_eq!(stage.delete(&path, "Orphan").await.body["metadata"]["finalizers"], json!([HOLD, "orphan"]));
            stage.patch(&format!("{at}/{name}"), release()).await;
            assert_eq!(state(stage, format!("{at}/{name}")).await, "gone");
        }
    }

    async fn deletion_preconditions(stage: &Stage) {
        let namespace = stage.namespace("store").await;
        let path = format!("{}/a", core(&namespace, "secrets"));
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}});
        let made = stage.create(&core(&namespace, "secrets"), secret).await;
        let delete = async |preconditions: Value| {
            stage.send("DELETE", &path, JSON, Some(&json!({"preconditions": preconditions}))).await.code
        };
        let (uid, version) = (&made["metadata"]["uid"], &made["metadata"]["resourceVersion"]);
        assert_eq!(delete(json!({"uid": "other"})).await, 409);
        assert_eq!(delete(json!({"uid": uid, "resourceVersion": "1"})).await, 409);
        assert_eq!(delete(json!({"uid": uid, "resourceVersion": version})).await, 200);
    }
}

/// A pod on a node, which has a period of grace.
fn scheduled(name: &str, finalizers: &[&str]) -> Value {
    let mut pod = pod(name, &[], finalizers);
    pod["spec"]["nodeName"] = json!("node");
    pod["spec"]["terminationGracePeriodSeconds"] = json!(30);
    pod
}
