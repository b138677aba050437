//! Every refusal that the real API server can be brought to, read by the crate.

use std::fmt::Debug;

use control_plane::{
    Plane,
    fixtures::{self, eventually_ok, ns},
};
use k8s_openapi::{
    api::core::v1::{ConfigMap, Namespace},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
    core::DynamicObject,
};
use kube_custody::{
    answer::{Answer, Refusal, classify},
    object::{ResourceKind, Scope},
};
use serde_json::{Value, json};

fn refused<T: Debug>(result: Result<T, kube::Error>) -> Answer {
    classify(&result.unwrap_err())
}

fn config_maps() -> ResourceKind {
    ResourceKind::new("", "v1", "ConfigMap", "configmaps", Scope::Namespaced)
}

async fn home(client: &Client) -> (String, Api<ConfigMap>) {
    let namespace = fixtures::namespace(client, "answer").await;
    let api = Api::namespaced(client.clone(), &namespace);
    (namespace, api)
}

async fn create(api: &Api<ConfigMap>, namespace: &str, name: &str) -> Result<ConfigMap, kube::Error> {
    api.create(&PostParams::default(), &fixtures::config_map(namespace, name)).await
}

fn preconditions(uid: Option<&str>, version: Option<&str>) -> DeleteParams {
    let own = |text: Option<&str>| text.map(ToOwned::to_owned);
    DeleteParams::background().preconditions(Preconditions { uid: own(uid), resource_version: own(version) })
}

#[tokio::test]
async fn what_is_not_there() {
    let plane = Plane::shared().await;
    let client = plane.client();
    let (_, api) = home(&client).await;
    assert!(refused(api.get("g").await).names(&config_maps(), "g"));
    assert!(refused(api.delete("g", &preconditions(Some("u"), None)).await).names(&config_maps(), "g"));

    let nowhere = ns("nowhere");
    let answer = refused(create(&Api::namespaced(client.clone(), &nowhere), &nowhere, "g").await);
    assert!(matches!(&answer, Answer::NotFound { resource, name, .. } if resource == "namespaces" && *name == nowhere));
    assert!(!answer.names(&config_maps(), "g"));

    for resource in [
        ResourceKind::new("nobody.example.com", "v1", "Widget", "widgets", Scope::Namespaced),
        ResourceKind::new("apps", "v1", "Widget", "widgets", Scope::Namespaced),
        ResourceKind::new("apps", "v9", "Deployment", "deployments", Scope::Namespaced),
    ] {
        let api = Api::<DynamicObject>::namespaced_with(client.clone(), "default", &resource.api_resource());
        assert_eq!(refused(api.get("g").await), Answer::NoRoute, "{resource:?}");
        assert_eq!(refused(api.delete("g", &DeleteParams::background()).await), Answer::NoRoute, "{resource:?}");
    }
}

#[tokio::test]
async fn conflicts() {
    let plane = Plane::shared().await;
    let client = plane.client();
    let (namespace, api) = home(&client).await;
    let live = create(&api, &namespace, "g").await.unwrap();
    let uid = live.metadata.uid.clone().unwrap();
    let plain = PatchParams::default();

    assert_eq!(refused(create(&api, &namespace, "g").await), Answer::AlreadyExists { terminating: false });
    assert_eq!(refused(api.delete("g", &preconditions(Some("other"), None)).await), Answer::UidMismatch);
    assert_eq!(refused(api.delete("g", &preconditions(Some(&uid), Some("1"))).await), Answer::VersionMismatch);
    let stale = json!({"metadata": {"resourceVersion": "1", "labels": {"a": "b"}}});
    assert_eq!(refused(api.patch("g", &plain, &Patch::Merge(stale)).await), Answer::VersionMismatch);
    let other = json!({"metadata": {"uid": "other", "labels": {"a": "b"}}});
    assert_eq!(refused(api.patch("g", &plain, &Patch::Merge(other)).await), Answer::UidMismatch);
    let mut replaced = live.clone();
    replaced.metadata.uid = Some("other".into());
    assert_eq!(refused(api.replace("g", &PostParams::default(), &replaced).await), Answer::UidMismatch);

    let apply = |name: &str, uid: &str| {
        Patch::Apply(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "uid": uid},
            "data": {"key": "changed"}}))
    };
    let manager = PatchParams::apply("ours.example.com");
    assert_eq!(refused(api.patch("missing", &manager, &apply("missing", "u")).await), Answer::NothingToApply);
    assert_eq!(refused(api.patch("g", &manager, &apply("g", &uid)).await), Answer::FieldConflict);
}

#[tokio::test]
async fn terminating_objects() {
    let plane = Plane::shared().await;
    let client = plane.client();
    let (namespace, api) = home(&client).await;
    let plain = PatchParams::default();
    let mut object = fixtures::config_map(&namespace, "t");
    object.metadata.finalizers = Some(vec!["x.example.com/a".into()]);
    api.create(&PostParams::default(), &object).await.unwrap();
    api.delete("t", &DeleteParams::background()).await.unwrap();

    assert_eq!(refused(create(&api, &namespace, "t").await), Answer::AlreadyExists { terminating: true });
    let more = json!({"metadata": {"finalizers": ["x.example.com/a", "x.example.com/b"]}});
    assert_eq!(refused(api.patch("t", &plain, &Patch::Merge(more)).await), Answer::FinalizersClosed);
    let test: json_patch::Patch = serde_json::from_value(json!([
        {"op": "test", "path": "/metadata/finalizers", "value": ["y.example.com/a"]},
        {"op": "remove", "path": "/metadata/finalizers"}]))
    .unwrap();
    assert_eq!(refused(api.patch("t", &plain, &Patch::Json::<()>(test)).await), Answer::PatchRejected);
    let invalid = json!({"metadata": {"labels": {"a": "not a label value"}}});
    assert_eq!(refused(api.patch("t", &plain, &Patch::Merge(invalid)).await), Answer::Invalid);
    let none: Value = json!({"metadata": {"finalizers": null}});
    api.patch("t", &plain, &Patch::Merge(none)).await.unwrap();
}

#[tokio::test]
async fn places_where_nothing_can_be_created() {
    let plane = Plane::shared().await;
    let client = plane.client();
    let (namespace, api) = home(&client).await;
    let namespaces = Api::<Namespace>::all(client.clone());
    namespaces.delete(&namespace, &DeleteParams::background()).await.unwrap();
    assert_eq!(refused(create(&api, &namespace, "new").await), Answer::NamespaceTerminating);
    assert_eq!(refused(namespaces.delete("default", &DeleteParams::background()).await), Answer::Denied { by: None });

    let group = format!("{}.example.com", ns("answer"));
    let crd: CustomResourceDefinition = fixtures::from(json!({"metadata": {"name": format!("hubs.{group}")}, "spec": {
        "group": group, "scope": "Cluster", "names": {"kind": "Hub", "plural": "hubs"},
        "versions": [{"name": "v1", "served": true, "storage": true,
            "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}}));
    fixtures::apply_crd(&client, &crd).await;
    let hubs = ResourceKind::new(&group, "v1", "Hub", "hubs", Scope::Cluster);
    let api = Api::<DynamicObject>::all_with(client.clone(), &hubs.api_resource());
    let hub = |name: &str, finalizers: Value| -> DynamicObject {
        fixtures::from(json!({"apiVersion": format!("{group}/v1"), "kind": "Hub",
            "metadata": {"name": name, "finalizers": finalizers}}))
    };
    let (held, new) = (hub("held", json!(["x.example.com/a"])), hub("new", Value::Null));
    api.create(&PostParams::default(), &held).await.unwrap();
    let definitions = Api::<CustomResourceDefinition>::all(client.clone());
    definitions.delete(&format!("hubs.{group}"), &DeleteParams::background()).await.unwrap();
    eventually_ok("the API server notices that the definition is terminating", async || {
        match api.create(&PostParams { dry_run: true, ..PostParams::default() }, &new).await {
            Err(error) if classify(&error) == Answer::KindTerminating => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    let none = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    api.patch("held", &PatchParams::default(), &none).await.unwrap();
}

#[tokio::test]
async fn people_and_policies_that_say_no() {
    let plane = Plane::shared().await;
    let client = plane.client();
    let (namespace, api) = home(&client).await;
    let nobody = fixtures::service_account_client(plane, &namespace, "nobody").await;
    let limited = Api::<ConfigMap>::namespaced(nobody, &namespace);
    assert_eq!(refused(limited.get("g").await), Answer::Forbidden);
    let stranger = Client::try_from(plane.config_with_token("wrong".into())).unwrap();
    assert_eq!(refused(Api::<ConfigMap>::namespaced(stranger, &namespace).get("g").await), Answer::Unauthorized);

    let (policy, key) = (ns("guard"), format!("{}.example.com/protected", ns("guard")));
    fixtures::deny_delete_policy(&client, &policy, &key).await;
    let mut object = fixtures::config_map(&namespace, "p");
    object.metadata.annotations = Some([(key.clone(), "yes".to_owned())].into());
    api.create(&PostParams::default(), &object).await.unwrap();
    let error = api.delete("p", &DeleteParams::background()).await.unwrap_err();
    assert_eq!(classify(&error), Answer::Denied { by: Some(format!("ValidatingAdmissionPolicy {policy}")) });
    let words = Refusal::of(&error).to_string();
    assert!(words.starts_with("422 Invalid: ") && words.contains("protected against admin"), "{words}");
    fixtures::remove_deny_delete_policy(&client, &policy, &key).await;
}
