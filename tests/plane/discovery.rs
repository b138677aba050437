//! The resolver against real discovery: kinds that come, change and go, and a group that is broken.

use std::time::Duration;

use control_plane::{
    Controllers, Plane,
    fixtures::{self, Subject, eventually_ok, ns},
};
use k8s_openapi::{
    api::rbac::v1::PolicyRule, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    kube_aggregator::pkg::apis::apiregistration::v1::APIService,
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use kube_custody::{
    discovery::{Crd, Error, Resolution, Resolver, cluster_id},
    object::{GroupKind, ResourceKind, Scope},
};
use serde_json::{Value, json};

fn kind(group: &str, kind: &str) -> GroupKind {
    GroupKind::new(group, kind).unwrap()
}

fn widgets(group: &str, version: &str) -> ResourceKind {
    ResourceKind::new(group, version, "Widget", "widgets", Scope::Namespaced)
}

fn crd(group: &str, v1_served: bool) -> CustomResourceDefinition {
    let version = |name: &str, served: bool, storage: bool| {
        json!({"name": name, "served": served, "storage": storage,
            "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}})
    };
    fixtures::from(json!({"metadata": {"name": format!("widgets.{group}")}, "spec": {
        "group": group, "scope": "Namespaced", "names": {"kind": "Widget", "plural": "widgets"},
        "versions": [version("v1", v1_served, false), version("v1beta1", true, true)]}}))
}

#[tokio::test]
async fn a_kind_that_comes_changes_and_goes() {
    let plane = Plane::shared().await;
    let client = plane.client();
    let group = format!("{}.example.com", ns("discovery"));
    let (resolver, widget) = (Resolver::new(client.clone()), kind(&group, "Widget"));
    assert_eq!(resolver.resolve(&widget).await, Resolution::NotServed);
    assert_eq!(resolver.crd_of(&widgets(&group, "v1")).await, Crd::NotFound);

    fixtures::apply_crd(&client, &crd(&group, true)).await;
    let served = |version: &str| Resolution::Served(widgets(&group, version));
    eventually_ok("the new kind is found although it was missed before", async || {
        let found = resolver.resolve(&widget).await;
        if found == served("v1") { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await;
    assert!(matches!(resolver.crd_of(&widgets(&group, "v1")).await, Crd::Present(_)));
    let versions = resolver.served_versions(&widget).await;
    assert!(versions.contains("v1") && versions.contains("v1beta1") && versions.unavailable.is_none(), "{versions:?}");

    fixtures::apply_crd(&client, &crd(&group, false)).await;
    eventually_ok("the version that was switched off is given up", async || {
        let found = resolver.refresh(&widget).await;
        if found == served("v1beta1") { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await;

    // Held by somebody, the definition is terminating: present.
    let definitions = Api::<CustomResourceDefinition>::all(client.clone());
    let name = format!("widgets.{group}");
    let hold = |finalizers: Value| Patch::Merge(json!({"metadata": {"finalizers": finalizers}}));
    definitions.patch(&name, &PatchParams::default(), &hold(json!(["x.example.com/hold"]))).await.unwrap();
    definitions.delete(&name, &DeleteParams::background()).await.unwrap();
    let Crd::Present(meta) = resolver.crd_of(&widgets(&group, "v1")).await else { panic!("held") };
    assert!(meta.deletion_timestamp.is_some());
    definitions.patch(&name, &PatchParams::default(), &hold(json!(null))).await.unwrap();
    eventually_ok("the kind is proven gone", async || match resolver.crd_of(&widgets(&group, "v1")).await {
        Crd::NotFound => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    assert_eq!(resolver.refresh(&widget).await, Resolution::NotServed);
}

#[tokio::test]
async fn built_in_kinds_are_found_and_never_proven_gone() {
    let plane = Plane::shared().await;
    let resolver = Resolver::new(plane.client());
    for (group, name, version, plural, scope) in [
        ("", "ConfigMap", "v1", "configmaps", Scope::Namespaced),
        ("", "Namespace", "v1", "namespaces", Scope::Cluster),
        ("apps", "Deployment", "v1", "deployments", Scope::Namespaced),
        ("autoscaling", "HorizontalPodAutoscaler", "v2", "horizontalpodautoscalers", Scope::Namespaced),
        ("rbac.authorization.k8s.io", "ClusterRole", "v1", "clusterroles", Scope::Cluster),
    ] {
        let expected = ResourceKind::new(group, version, name, plural, scope);
        assert_eq!(resolver.resolve(&kind(group, name)).await, Resolution::Served(expected.clone()));
        assert!(matches!(resolver.crd_of(&expected).await, Crd::Unknown { .. }));
    }
    assert_eq!(resolver.resolve(&kind("", "Deployment")).await, Resolution::NotServed);
}

#[tokio::test]
async fn c19_s37_a_broken_aggregated_group_neither_hides_nor_condemns_others() {
    // A plane of its own: a broken group stops every namespace deletion.
    let plane = Plane::builder().controllers(Controllers::None).start().await.unwrap();
    let client = plane.client();
    let service = json!({"metadata": {"name": "v1.broken.example.com"}, "spec": {
        "group": "broken.example.com", "version": "v1", "groupPriorityMinimum": 1000, "versionPriority": 10,
        "insecureSkipTLSVerify": true, "service": {"namespace": "default", "name": "missing"}}});
    fixtures::create(&Api::<APIService>::all(client.clone()), service).await;
    let broken = widgets("broken.example.com", "v1");
    // This client does not retry, so the server's own answer is seen.
    let resolver = Resolver::new(plane.audited("admin").0);
    eventually_ok("the group is there and broken", async || match resolver.resolve(&broken.group_kind()).await {
        Resolution::Unavailable { reason } if reason.contains("503") => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    // This one does, for longer than anybody would wait.
    let patient = Resolver::new(client).timeout(Duration::from_secs(1));
    let unavailable = patient.resolve(&broken.group_kind()).await;
    assert!(
        matches!(&unavailable, Resolution::Unavailable { reason } if reason.contains("within 1s")),
        "{unavailable:?}"
    );
    assert!(matches!(resolver.resolve(&kind("apps", "Deployment")).await, Resolution::Served(_)));
    assert!(matches!(resolver.crd_of(&broken).await, Crd::Unknown { .. }), "no definition, yet not proven gone");
    plane.shutdown().await.unwrap();
}

#[tokio::test]
async fn the_cluster_id_needs_one_permission_and_says_which() {
    let plane = Plane::shared().await;
    let admin = plane.client();
    let id = cluster_id(&admin).await.unwrap();
    let namespace = fixtures::namespace(&admin, "cluster-id").await;
    let client = fixtures::service_account_client(plane, &namespace, "operator").await;
    let error = cluster_id(&client).await.unwrap_err();
    assert!(matches!(error, Error::ClusterIdForbidden { .. }), "{error}");
    let rule = PolicyRule {
        api_groups: Some(vec![String::new()]),
        resources: Some(vec!["namespaces".into()]),
        resource_names: Some(vec!["kube-system".into()]),
        verbs: vec!["get".into()],
        ..PolicyRule::default()
    };
    let grant = fixtures::grant(&admin, &Subject::service_account(&namespace, "operator"), None, vec![rule]).await;
    assert_eq!(cluster_id(&client).await.unwrap(), id);
    // Discovery is open to every authenticated account.
    let found = Resolver::new(client.clone()).resolve(&kind("", "ConfigMap")).await;
    assert!(matches!(found, Resolution::Served(_)));
    let crd = Resolver::new(client).crd_of(&widgets("nobody.example.com", "v1")).await;
    assert!(matches!(&crd, Crd::Forbidden { reason } if reason.contains("403")), "{crd:?}");
    grant.revoke(&admin).await;
}
