//! The objects that scenarios are about, and looks at them.

use serde_json::{Value, json};

use crate::both::{JSON, Stage};

pub const BIGS: &str = "/apis/both.example.com/v1/bigs";
pub const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
pub const NAMESPACES: &str = "/api/v1/namespaces";

/// Where the objects of a kind of the core group are.
pub fn core(namespace: &str, plural: &str) -> String {
    format!("{NAMESPACES}/{namespace}/{plural}")
}

pub fn maps(namespace: &str) -> String {
    core(namespace, "configmaps")
}

pub fn pods(namespace: &str) -> String {
    core(namespace, "pods")
}

pub fn rcs(namespace: &str) -> String {
    core(namespace, "replicationcontrollers")
}

pub fn things(namespace: &str) -> String {
    format!("/apis/both.example.com/v1/namespaces/{namespace}/things")
}

/// A reference to an object, blocking or not.
pub fn owner(object: &Value, blocks: bool) -> Value {
    json!({
        "apiVersion": object["apiVersion"], "kind": object["kind"], "name": object["metadata"]["name"],
        "uid": object["metadata"]["uid"], "blockOwnerDeletion": blocks,
    })
}

fn object(api_version: &str, kind: &str, name: &str, owners: &[Value], finalizers: &[&str]) -> Value {
    let metadata = json!({"name": name, "ownerReferences": owners, "finalizers": finalizers});
    json!({"apiVersion": api_version, "kind": kind, "metadata": metadata})
}

pub fn map(name: &str, owners: &[Value], finalizers: &[&str]) -> Value {
    object("v1", "ConfigMap", name, owners, finalizers)
}

pub fn thing(name: &str, owners: &[Value], finalizers: &[&str]) -> Value {
    let mut thing = object("both.example.com/v1", "Thing", name, owners, finalizers);
    thing["spec"] = json!({"a": "1"});
    thing
}

pub fn big(name: &str, owners: &[Value]) -> Value {
    object("both.example.com/v1", "Big", name, owners, &[])
}

fn containers() -> Value {
    json!({"containers": [{"name": "c", "image": "i"}]})
}

/// No kubelet runs it, so that nothing holds its deletion but its finalizers.
pub fn pod(name: &str, owners: &[Value], finalizers: &[&str]) -> Value {
    let mut pod = object("v1", "Pod", name, owners, finalizers);
    pod["spec"] = containers();
    pod
}

/// A ReplicationController, of which a DELETE without a policy orphans the pods.
pub fn rc(name: &str, finalizers: &[&str]) -> Value {
    workload("v1", "ReplicationController", name, &[], finalizers)
}

/// A kind with a template of pods. No controller makes any: a scenario writes those itself.
pub fn workload(api_version: &str, kind: &str, name: &str, owners: &[Value], finalizers: &[&str]) -> Value {
    let labels = json!({"app": name});
    let selector = if kind == "ReplicationController" { labels.clone() } else { json!({"matchLabels": labels}) };
    let mut workload = object(api_version, kind, name, owners, finalizers);
    let template = json!({"metadata": {"labels": labels}, "spec": containers()});
    workload["spec"] = json!({"replicas": 0, "selector": selector, "template": template});
    workload
}

/// A namespaced kind with one version and any content. `plural` is in lower case.
pub fn definition(group: &str, plural: &str, kind: &str) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}")},
        "spec": {
            "group": group, "scope": "Namespaced",
            "names": {"plural": plural, "kind": kind, "singular": kind.to_lowercase(), "listKind": format!("{kind}List")},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
            }],
        },
    })
}

pub fn release() -> Value {
    json!({"metadata": {"finalizers": null}})
}

/// Whether an object is gone, terminating, or simply there.
pub async fn state(stage: &Stage, path: String) -> &'static str {
    match stage.get(&path).await {
        None => "gone",
        Some(object) if object["metadata"]["deletionTimestamp"].is_null() => "there",
        Some(_) => "terminating",
    }
}

/// Waits until all of these are gone.
pub async fn gone(stage: &Stage, paths: &[String]) {
    for path in paths {
        stage.until(&format!("{path} is gone"), async || state(stage, path.clone()).await == "gone").await;
    }
}

/// The names of an object's owners.
pub async fn owners(stage: &Stage, path: String) -> Vec<String> {
    let object = stage.get(&path).await.unwrap();
    let list = object["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
    list.iter().map(|owner| owner["name"].as_str().unwrap().to_owned()).collect()
}

/// The objects of a kind in a namespace.
pub async fn items(stage: &Stage, base: &str) -> Vec<Value> {
    stage.get(base).await.unwrap()["items"].as_array().cloned().unwrap()
}

/// Waits until the garbage collector knows these.
pub async fn known(stage: &Stage, objects: &[&Value]) {
    for object in objects {
        let uid = object["metadata"]["uid"].as_str().unwrap();
        stage.until("the garbage collector knows it", async || stage.knows(uid).await).await;
    }
}

/// Creates a definition and waits until its kind, whose objects are at `base`, is served.
pub async fn define(stage: &Stage, definition: Value, base: &str) {
    stage.create(CRDS, definition).await;
    stage.until("its kind is served", async || stage.send("GET", base, JSON, None).await.code == 200).await;
}
