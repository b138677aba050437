//! The upstream scenarios of garbage collection, namespaces and definitions, on the sim and on a real control plane.
//!
//! On the sim each is played with twenty seeds, which differ in the order in which the controllers work.

use serde_json::{Value, json};

use crate::both::{Stage, both};

fn maps(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/configmaps")
}

fn things(namespace: &str) -> String {
    format!("/apis/both.example.com/v1/namespaces/{namespace}/things")
}

const BIGS: &str = "/apis/both.example.com/v1/bigs";

/// A reference to an object, blocking or not.
fn owner(object: &Value, blocks: bool) -> Value {
    json!({
        "apiVersion": object["apiVersion"], "kind": object["kind"], "name": object["metadata"]["name"],
        "uid": object["metadata"]["uid"], "blockOwnerDeletion": blocks,
    })
}

fn map(name: &str, owners: &[Value], finalizers: &[&str]) -> Value {
    let metadata = json!({"name": name, "ownerReferences": owners, "finalizers": finalizers});
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
}

fn thing(name: &str, owners: &[Value], finalizers: &[&str]) -> Value {
    let metadata = json!({"name": name, "ownerReferences": owners, "finalizers": finalizers});
    json!({"apiVersion": "both.example.com/v1", "kind": "Thing", "metadata": metadata, "spec": {"a": "1"}})
}

fn big(name: &str, owners: &[Value]) -> Value {
    let metadata = json!({"name": name, "ownerReferences": owners});
    json!({"apiVersion": "both.example.com/v1", "kind": "Big", "metadata": metadata})
}

fn release() -> Value {
    json!({"metadata": {"finalizers": null}})
}

/// Whether an object is gone, terminating, or simply there.
async fn state(stage: &Stage, path: String) -> &'static str {
    match stage.get(&path).await {
        None => "gone",
        Some(object) if object["metadata"]["deletionTimestamp"].is_null() => "there",
        Some(_) => "terminating",
    }
}

/// The names of an object's owners.
async fn owners(stage: &Stage, path: String) -> Vec<String> {
    let object = stage.get(&path).await.unwrap();
    let list = object["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
    list.iter().map(|owner| owner["name"].as_str().unwrap().to_owned()).collect()
}

both! {
    async fn cascading_deletion(stage: &Stage) {
        let at = maps(&stage.namespace("gc").await);
        let one = stage.create(&at, map("one", &[], &[])).await;
        let two = stage.create(&at, map("two", &[], &[])).await;
        stage.create(&at, map("ofone", &[owner(&one, false)], &[])).await;
        stage.create(&at, map("ofboth", &[owner(&one, false), owner(&two, false)], &[])).await;
        stage.create(&at, map("free", &[], &[])).await;
        stage.quiet().await;
        stage.delete(&format!("{at}/one"), "Background").await;
        stage.until("ofone is gone", async || state(stage, format!("{at}/ofone")).await == "gone").await;
        stage.until("the reference is dropped", async || owners(stage, format!("{at}/ofboth")).await == ["two"]).await;
        stage.quiet().await;
        assert_eq!(state(stage, format!("{at}/ofboth")).await, "there");
        assert_eq!(state(stage, format!("{at}/free")).await, "there");
    }

    async fn create_with_non_existent_owner(stage: &Stage) {
        let at = maps(&stage.namespace("gc").await);
        let never = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "never", "uid": "doesn't matter"});
        stage.create(&at, map("child", &[never], &[])).await;
        stage.until("it is collected", async || state(stage, format!("{at}/child")).await == "gone").await;
    }

    async fn orphaning(stage: &Stage) {
        let namespace = stage.namespace("gc").await;
        let (at, custom) = (maps(&namespace), things(&namespace));
        let parent = stage.create(&custom, thing("parent", &[], &[])).await;
        stage.create(&at, map("child", &[owner(&parent, true)], &[])).await;
        stage.create(&custom, thing("child", &[owner(&parent, false)], &[])).await;
        stage.quiet().await;
        stage.delete(&format!("{custom}/parent"), "Orphan").await;
        stage.until("the parent goes", async || state(stage, format!("{custom}/parent")).await == "gone").await;
        stage.quiet().await;
        for child in [format!("{at}/child"), format!("{custom}/child")] {
            assert_eq!(state(stage, child.clone()).await, "there");
            assert_eq!(owners(stage, child).await, [""; 0]);
        }
    }

    async fn solid_owner_does_not_block_waiting_owner(stage: &Stage) {
        let at = maps(&stage.namespace("gc").await);
        let waiting = stage.create(&at, map("waiting", &[], &[])).await;
        let solid = stage.create(&at, map("solid", &[], &[])).await;
        stage.create(&at, map("child", &[owner(&waiting, true), owner(&solid, false)], &[])).await;
        stage.quiet().await;
        stage.delete(&format!("{at}/waiting"), "Foreground").await;
        stage.until("it goes", async || state(stage, format!("{at}/waiting")).await == "gone").await;
        stage.quiet().await;
        assert_eq!(owners(stage, format!("{at}/child")).await, ["solid"]);
    }

    async fn non_blocking_reference_does_not_block(stage: &Stage) {
        let at = maps(&stage.namespace("gc").await);
        let parent = stage.create(&at, map("parent", &[], &[])).await;
        stage.create(&at, map("child", &[owner(&parent, false)], &["x.io/hold"])).await;
        stage.quiet().await;
        stage.delete(&format!("{at}/parent"), "Foreground").await;
        stage.until("the parent goes", async || state(stage, format!("{at}/parent")).await == "gone").await;
        stage.quiet().await;
        assert_eq!(state(stage, format!("{at}/child")).await, "terminating");
        stage.patch(&format!("{at}/child"), release()).await;
        assert_eq!(state(stage, format!("{at}/child")).await, "gone");
    }

    async fn blocking_reference_does_block(stage: &Stage) {
        let at = maps(&stage.namespace("gc").await);
        let parent = stage.create(&at, map("parent", &[], &[])).await;
        stage.create(&at, map("child", &[owner(&parent, true)], &["x.io/hold"])).await;
        stage.quiet().await;
        stage.delete(&format!("{at}/parent"), "Foreground").await;
        stage.until("the child is told", async || state(stage, format!("{at}/child")).await == "terminating").await;
        stage.quiet().await;
        assert_eq!(state(stage, format!("{at}/parent")).await, "terminating");
        stage.restart_collector();
        stage.quiet().await;
        assert_eq!(state(stage, format!("{at}/parent")).await, "terminating");
        stage.patch(&format!("{at}/child"), release()).await;
        stage.until("the parent goes", async || state(stage, format!("{at}/parent")).await == "gone").await;
    }

    async fn double_deletion_with_finalizer(stage: &Stage) {
        let at = maps(&stage.namespace("gc").await);
        stage.create(&at, map("a", &[], &["x/y"])).await;
        for _ in 0..2 {
            stage.delete(&format!("{at}/a"), "Foreground").await;
            stage.until("only the other finalizer is left", async || {
                stage.get(&format!("{at}/a")).await.unwrap()["metadata"]["finalizers"] == json!(["x/y"])
            })
            .await;
        }
        stage.patch(&format!("{at}/a"), release()).await;
        assert_eq!(state(stage, format!("{at}/a")).await, "gone");
    }

    async fn owner_held_by_another_finalizer_keeps_its_dependents_in_the_background(stage: &Stage) {
        let at = maps(&stage.namespace("gc").await);
        let parent = stage.create(&at, map("parent", &[], &["x.io/hold"])).await;
        stage.create(&at, map("child", &[owner(&parent, true)], &[])).await;
        stage.quiet().await;
        stage.delete(&format!("{at}/parent"), "Background").await;
        stage.quiet().await;
        assert_eq!(state(stage, format!("{at}/child")).await, "there");
        stage.patch(&format!("{at}/parent"), release()).await;
        stage.until("the child follows", async || state(stage, format!("{at}/child")).await == "gone").await;
    }

    async fn cross_namespace_references(stage: &Stage) {
        let (home, away) = (maps(&stage.namespace("gc").await), maps(&stage.namespace("gc").await));
        let parent = stage.create(&home, map("parent", &[], &[])).await;
        let other = stage.create(&away, map("other", &[], &[])).await;
        stage.create(&home, map("good", &[owner(&parent, true)], &[])).await;
        stage.quiet().await;
        stage.create(&away, map("bad", &[owner(&parent, true)], &[])).await;
        stage.create(&away, map("half", &[owner(&parent, true), owner(&other, false)], &[])).await;
        stage.until("bad is collected", async || state(stage, format!("{away}/bad")).await == "gone").await;
        stage.until("half loses it", async || owners(stage, format!("{away}/half")).await == ["other"]).await;
        stage.restart_collector();
        stage.quiet().await;
        for path in [format!("{home}/parent"), format!("{home}/good"), format!("{away}/half")] {
            assert_eq!(state(stage, path).await, "there");
        }
        let events = stage.get(&away.replace("configmaps", "events")).await.unwrap();
        let reasons: Vec<_> = events["items"].as_array().unwrap().iter().map(|event| event["reason"].clone()).collect();
        assert!(reasons.contains(&json!("OwnerRefInvalidNamespace")), "{reasons:?}");
    }

    async fn wrong_coordinates_with_the_right_uid(stage: &Stage) {
        let at = maps(&stage.namespace("gc").await);
        let parent = stage.create(&at, map("parent", &[], &[])).await;
        stage.create(&at, map("good", &[owner(&parent, true)], &[])).await;
        stage.quiet().await;
        let mut wrong = owner(&parent, true);
        wrong["name"] = json!("misspelt");
        stage.create(&at, map("name", &[wrong.clone()], &[])).await;
        wrong["kind"] = json!("Secret");
        stage.create(&at, map("kind", &[wrong.clone()], &[])).await;
        // A kind that can't be resolved is retried for ever, and nothing happens.
        wrong["apiVersion"] = json!("no.such/v1");
        stage.create(&at, map("unknown", &[wrong], &[])).await;
        for name in ["name", "kind"] {
            stage.until("it is collected", async || state(stage, format!("{at}/{name}")).await == "gone").await;
        }
        stage.quiet().await;
        for name in ["parent", "good", "unknown"] {
            assert_eq!(state(stage, format!("{at}/{name}")).await, "there");
        }
    }

    async fn cluster_scoped_owners_and_dependents(stage: &Stage) {
        let namespaces = [stage.namespace("gc").await, stage.namespace("gc").await];
        let (parent, child) = (namespaces[0].clone(), namespaces[1].clone());
        let owning = stage.create(BIGS, big(&parent, &[])).await;
        for namespace in &namespaces {
            stage.create(&maps(namespace), map("child", &[owner(&owning, true)], &[])).await;
        }
        let inside = stage.create(&maps(&parent), map("inside", &[], &[])).await;
        stage.create(BIGS, big(&child, &[owner(&inside, false)])).await;
        stage.quiet().await;
        stage.delete(&format!("{BIGS}/{parent}"), "Background").await;
        for namespace in &namespaces {
            let path = format!("{}/child", maps(namespace));
            stage.until("both children go", async || state(stage, path.clone()).await == "gone").await;
        }
        // What is in cluster scope is never collected for an owner in a namespace.
        stage.delete(&format!("{}/inside", maps(&parent)), "Background").await;
        stage.quiet().await;
        assert_eq!(state(stage, format!("{BIGS}/{child}")).await, "there");
        stage.restart_collector();
        stage.quiet().await;
        assert_eq!(owners(stage, format!("{BIGS}/{child}")).await, ["inside"]);
        stage.delete(&format!("{BIGS}/{child}"), "Background").await;
    }

    async fn circle_of_owners(stage: &Stage) {
        let at = maps(&stage.namespace("gc").await);
        let mut objects = Vec::new();
        for name in ["a", "b", "c"] {
            objects.push(stage.create(&at, map(name, &[], &[])).await);
        }
        for (place, name) in ["a", "b", "c"].iter().enumerate() {
            let references = json!({"metadata": {"ownerReferences": [owner(&objects[(place + 2) % 3], true)]}});
            stage.patch(&format!("{at}/{name}"), references).await;
        }
        stage.quiet().await;
        stage.delete(&format!("{at}/a"), "Foreground").await;
        for name in ["a", "b", "c"] {
            stage.until("all go", async || state(stage, format!("{at}/{name}")).await == "gone").await;
        }
    }

    async fn recreated_owner(stage: &Stage) {
        let at = maps(&stage.namespace("gc").await);
        let old = stage.create(&at, map("parent", &[], &[])).await;
        stage.delete(&format!("{at}/parent"), "Background").await;
        stage.create(&at, map("parent", &[], &[])).await;
        stage.create(&at, map("child", &[owner(&old, true)], &[])).await;
        stage.until("the reference is to another", async || state(stage, format!("{at}/child")).await == "gone").await;
        assert_eq!(state(stage, format!("{at}/parent")).await, "there");
    }

    async fn mixed_relationships(stage: &Stage) {
        let namespace = stage.namespace("gc").await;
        let (at, custom) = (maps(&namespace), things(&namespace));
        let parent = stage.create(&custom, thing("parent", &[], &[])).await;
        stage.create(&at, map("child", &[owner(&parent, true)], &[])).await;
        let other = stage.create(&at, map("parent", &[], &[])).await;
        stage.create(&custom, thing("child", &[owner(&other, true)], &[])).await;
        stage.quiet().await;
        stage.delete(&format!("{custom}/parent"), "Foreground").await;
        stage.delete(&format!("{at}/parent"), "Foreground").await;
        for path in [format!("{custom}/parent"), format!("{at}/child"), format!("{at}/parent"), format!("{custom}/child")] {
            stage.until("all go", async || state(stage, path.clone()).await == "gone").await;
        }
    }

    async fn pods_hold_a_namespace_before_anything_else(stage: &Stage) {
        let namespace = stage.namespace("gc").await;
        let pods = format!("/api/v1/namespaces/{namespace}/pods");
        let at = maps(&namespace);
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "held", "finalizers": ["x.io/hold"]},
            "spec": {"containers": [{"name": "c", "image": "i"}]},
        });
        stage.create(&pods, pod).await;
        stage.create(&at, map("untouched", &[], &[])).await;
        stage.delete(&format!("/api/v1/namespaces/{namespace}"), "Background").await;
        stage.until("the pod is told", async || state(stage, format!("{pods}/held")).await == "terminating").await;
        let path = format!("/api/v1/namespaces/{namespace}");
        let condition = async |kind: &str| {
            let live = stage.get(&path).await.unwrap();
            let conditions = live["status"]["conditions"].as_array().cloned().unwrap_or_default();
            conditions.iter().find(|c| c["type"] == kind).map(|c| (c["status"].clone(), c["message"].clone()))
        };
        stage.until("its conditions are written", async || condition("NamespaceContentRemaining").await.is_some()).await;
        // The known defect: with only pods left they say that nothing is.
        for (kind, message) in [
            ("NamespaceContentRemaining", "All content successfully removed"),
            ("NamespaceFinalizersRemaining", "All content-preserving finalizers finished"),
        ] {
            assert_eq!(condition(kind).await, Some((json!("False"), json!(message))));
        }
        assert_eq!(state(stage, format!("{at}/untouched")).await, "there");
        stage.patch(&format!("{pods}/held"), release()).await;
        stage.until("the rest goes", async || state(stage, path.clone()).await == "gone").await;
    }
}
