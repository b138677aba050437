//! plugin/pkg/admission/gc/gc_admission_test.go, on both stages: who may set owner references where
//! OwnerReferencesPermissionEnforcement is on.
//!
//! The garbage collector is down meanwhile, so that objects whose owners don't exist stay. A mapper that hangs can't be
//! played.

use std::slice::from_ref;

use control_plane::fixtures::rule;
use kube::Client;
use serde_json::{Value, json};

use crate::{
    both::{Answer, JSON, MERGE, Stage, both_alone},
    objects::{core, pod, pods, rc, rcs},
};

fn reference(api_version: &str, kind: &str, name: &str, blocks: bool) -> Value {
    json!({"apiVersion": api_version, "kind": kind, "name": name, "uid": name, "blockOwnerDeletion": blocks})
}

fn secret(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}})
}

fn with(mut object: Value, owners: &[Value]) -> Value {
    object["metadata"]["ownerReferences"] = json!(owners);
    object
}

/// Sets the owner references of the object at `path`.
async fn set(client: &Client, path: &str, owners: &[Value]) -> Answer {
    let patch = json!({"metadata": {"ownerReferences": owners}});
    Stage::send_by(client.clone(), "PATCH", path, MERGE, Some(&patch)).await
}

fn assert_refused(answer: &Answer, path: &str, why: &str) {
    let mut place = path.rsplit('/');
    let (name, plural) = (place.next().unwrap(), place.next().unwrap());
    assert_eq!((answer.code, &answer.body["reason"]), (403, &json!("Forbidden")), "{path}: {answer:?}");
    assert_eq!(answer.body["message"], format!("{plural} \"{name}\" is forbidden: {why}"));
}

both_alone! {
    async fn gc_admission(stage: &Stage) {
        stage.enforce_owner_references();
        stage.stop_collector().await;
        let namespace = stage.namespace("gc").await;
        let writes = ["get", "create", "update", "patch"];
        let all = ["pods", "pods/status", "secrets", "replicationcontrollers", "replicationcontrollers/status"];
        let non_deleter = vec![rule("", &all, &writes)];
        // Of what is changed by its status, the right to delete the status is asked for.
        let non_pod_deleter = vec![rule("", &all, &writes), rule("", &all[2..], &["delete"])];
        // Who asks, and whether references of pods and of others may be changed.
        let users = [
            (stage.client(), true, true),
            (stage.user("non-deleter", non_deleter).await, false, false),
            (stage.user("non-pod-deleter", non_pod_deleter).await, false, true),
        ];
        let (first, second) = (reference("v1", "Pod", "first", false), reference("v1", "Pod", "second", false));
        let refusal = "cannot set an ownerRef on a resource you can't delete: , <nil>";
        for (number, (client, pods_too, others)) in users.iter().enumerate() {
            let name = format!("of-{number}");
            let kinds = [
                (pods(&namespace), pod(&name, &[], &[]), *pods_too),
                (core(&namespace, "secrets"), secret(&name), *others),
                (rcs(&namespace), rc(&name, &[]), *others),
            ];
            for (base, object, may) in kinds {
                let path = format!("{base}/{name}");
                // What is new may have any references.
                let new = with(object, from_ref(&first));
                let made = Stage::send_by(client.clone(), "POST", &base, JSON, Some(&new)).await;
                assert_eq!(made.code, 201, "{path}: {made:?}");
                assert_eq!(set(client, &path, from_ref(&first)).await.code, 200, "nothing changes");
                let label = json!({"metadata": {"labels": {"a": "b"}}});
                assert_eq!(Stage::send_by(client.clone(), "PATCH", &path, MERGE, Some(&label)).await.code, 200);
                for after in [&[][..], from_ref(&second), &[first.clone(), second.clone()]] {
                    let changed = set(client, &path, after).await;
                    if may {
                        assert_eq!(changed.code, 200, "{path}: {changed:?}");
                    } else {
                        assert_refused(&changed, &path, refusal);
                    }
                }
            }
            // The status of a pod can't bring references along, so nobody has to be asked; that of others can.
            let owners = [second.clone()];
            let of_pod = set(client, &format!("{}/{name}/status", pods(&namespace)), &owners).await;
            assert_eq!(of_pod.code, 200, "{of_pod:?}");
            let of_rc = set(client, &format!("{}/{name}/status", rcs(&namespace)), &owners).await;
            assert_eq!(of_rc.code, if *others { 200 } else { 403 }, "{of_rc:?}");
        }
        stage.restart_collector().await;
    }

    async fn block_owner_deletion_admission(stage: &Stage) {
        stage.enforce_owner_references();
        stage.stop_collector().await;
        let at = pods(&stage.namespace("gc").await);
        let verbs = ["get", "create", "update", "patch", "delete"];
        let (on_pods, finalizers) = (rule("", &["pods"], &verbs), |resource: &str| rule("", &[resource], &["update"]));
        let no_rc = vec![on_pods.clone(), finalizers("nodes/finalizers")];
        let no_node = vec![on_pods.clone(), finalizers("replicationcontrollers/finalizers")];
        let neither = vec![on_pods.clone()];
        let all = vec![on_pods, rule("*", &["*/finalizers"], &["update"])];
        // Who asks, and of which kinds of owners the finalizers may be set.
        let users = [
            (stage.client(), "rc node unknown"),
            (stage.user("non-rc", no_rc).await, "node"),
            (stage.user("non-node", no_node).await, "rc"),
            (stage.user("neither", neither).await, ""),
        ];
        let rc = |blocks| reference("v1", "ReplicationController", "rc", blocks);
        let node = |blocks| reference("v1", "Node", "node", blocks);
        let unknown = |blocks| reference("no.such/v1", "Unknown", "unknown", blocks);
        // References before and after, and the kind that must be allowed.
        let cases = [
            (vec![], vec![rc(false), node(false), unknown(false)], ""),
            (vec![], vec![rc(true)], "rc"),
            (vec![], vec![node(true)], "node"),
            (vec![], vec![unknown(true)], "unknown"),
            (vec![rc(false)], vec![rc(true)], "rc"),
            (vec![rc(true)], vec![rc(true), node(false)], ""),
            (vec![rc(true)], vec![rc(true), node(true)], "node"),
            (vec![rc(true), node(true)], vec![rc(true), node(false)], ""),
            (vec![rc(true), node(true)], vec![node(true)], ""),
            (vec![rc(true), node(true)], vec![], ""),
        ];
        for (number, (client, may)) in users.iter().enumerate() {
            for (case, (before, after, needed)) in cases.iter().enumerate() {
                let name = format!("pod-{number}-{case}");
                let path = format!("{at}/{name}");
                let new = with(pod(&name, &[], &[]), after);
                let mut answers = Vec::new();
                if before.is_empty() {
                    answers.push(Stage::send_by(client.clone(), "POST", &at, JSON, Some(&new)).await);
                    stage.delete(&path, "Background").await;
                }
                stage.create(&at, with(new, before)).await;
                answers.push(set(client, &path, after).await);
                for answer in answers {
                    let allowed = needed.is_empty() || may.split(' ').any(|kind| kind == *needed);
                    match *needed {
                        _ if allowed => assert!(answer.code < 300, "{number} {case}: {answer:?}"),
                        "unknown" => assert_refused(
                            &answer,
                            &path,
                            "cannot set blockOwnerDeletion in this case because cannot find RESTMapping for APIVersion \
                             no.such/v1 Kind Unknown: no matches for kind \"Unknown\" in version \"no.such/v1\"",
                        ),
                        _ => assert_refused(
                            &answer,
                            &path,
                            "cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set \
                             finalizers on: , <nil>",
                        ),
                    }
                }
            }
        }
        // Who may set all finalizers need not say of what.
        let client = stage.user("all-finalizers", all).await;
        let new = with(pod("any", &[], &[]), &[rc(true), node(true), unknown(true)]);
        let made = Stage::send_by(client, "POST", &at, JSON, Some(&new)).await;
        assert_eq!(made.code, 201, "{made:?}");
        stage.restart_collector().await;
    }
}
