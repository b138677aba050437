//! The helpers for tests.

use std::time::Duration;

use control_plane::{
    Plane,
    audit::Verb,
    fixtures::{self, Subject, rule},
};
use k8s_openapi::{
    api::core::v1::{ConfigMap, Namespace, Secret},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, DynamicObject, ListParams, PostParams},
    core::{ApiResource, GroupVersionKind},
};
use serde_json::json;

fn is_forbidden<T>(result: &Result<T, kube::Error>) -> bool {
    matches!(result, Err(kube::Error::Api(status)) if status.code == 403)
}

#[test]
fn names_are_valid_and_unique() {
    let names: std::collections::HashSet<_> = (0..100).map(|_| fixtures::ns("faros")).collect();
    assert!(names.len() > 95, "{names:?}"); // six hexadecimal digits
    for name in names {
        let (prefix, suffix) = name.split_once('-').unwrap();
        assert_eq!((prefix, suffix.len()), ("faros", 6));
        assert!(suffix.chars().all(|c| c.is_ascii_hexdigit() && !c.is_ascii_uppercase()));
    }
}

#[tokio::test]
async fn rights_of_a_user_in_one_namespace() {
    let plane = Plane::shared().await;
    let admin = plane.client();
    let (here, there) = (fixtures::namespace(&admin, "here").await, fixtures::namespace(&admin, "there").await);
    let user = fixtures::ns("user"); // not declared: impersonated
    let list = ListParams::default();
    let maps = |namespace: &str| Api::<ConfigMap>::namespaced(plane.client_as(&user), namespace);
    assert!(is_forbidden(&maps(&here).list(&list).await));

    let rules = vec![rule("", &["configmaps"], &["list", "create"])];
    let grant = fixtures::grant(&admin, &Subject::user(&user), Some(&here), rules).await;
    maps(&here).list(&list).await.unwrap();
    assert!(is_forbidden(&maps(&there).list(&list).await));
    assert!(is_forbidden(&maps(&here).get("x").await));

    grant.revoke(&admin).await;
    assert!(is_forbidden(&maps(&here).list(&list).await));
}

#[tokio::test]
async fn rights_of_a_service_account_everywhere() {
    let plane = Plane::shared().await;
    let admin = plane.client();
    let namespace = fixtures::namespace(&admin, "account").await;
    let (client, log) = fixtures::audited_service_account(plane, &namespace, "operator").await;
    let secrets: Api<Secret> = Api::all(client);
    let refused = secrets.list(&ListParams::default()).await;
    assert!(is_forbidden(&refused));
    let user = format!("system:serviceaccount:{namespace}:operator");
    assert!(refused.unwrap_err().to_string().contains(&user));

    let account = Subject::service_account(&namespace, "operator");
    let grant = fixtures::grant(&admin, &account, None, vec![rule("", &["secrets"], &["list"])]).await;
    secrets.list(&ListParams::default()).await.unwrap();
    assert_eq!(log.count(Verb::List), 2);
    // A second token for the same account.
    let again = fixtures::service_account_client(plane, &namespace, "operator").await;
    Api::<Secret>::all(again).list(&ListParams::default()).await.unwrap();
    grant.revoke(&admin).await;
}

#[tokio::test]
async fn a_crd_serves_as_soon_as_it_is_applied() {
    let plane = Plane::shared().await;
    let admin = plane.client();
    let group = format!("{}.example.com", fixtures::ns("crd"));
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let crd: CustomResourceDefinition = fixtures::from(json!({
        "metadata": {"name": format!("foos.{group}")},
        "spec": {
            "group": group,
            "names": {"kind": "Foo", "plural": "foos"},
            "scope": "Namespaced",
            "versions": [
                {"name": "v1", "served": true, "storage": true, "schema": schema},
                {"name": "v2", "served": true, "storage": false, "schema": schema},
                {"name": "v3", "served": false, "storage": false, "schema": schema},
            ],
        },
    }));
    fixtures::apply_crd(&admin, &crd).await;
    fixtures::apply_crd(&admin, &crd).await; // again: nothing to do
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(&group, "v2", "Foo"));
    let foos = Api::<DynamicObject>::namespaced_with(admin.clone(), "default", &resource);
    let foo = DynamicObject::new("a", &resource);
    let made = foos.create(&PostParams::default(), &foo).await.unwrap();
    // The garbage collector learns of the new type within its sync period.
    let uid = made.uid().unwrap();
    let child = json!({"metadata": {"name": fixtures::ns("child"), "ownerReferences": [
        {"apiVersion": format!("{group}/v2"), "kind": "Foo", "name": "a", "uid": uid},
    ]}});
    let maps: Api<ConfigMap> = Api::namespaced(admin.clone(), "default");
    let child = fixtures::create(&maps, child).await.name_any();
    foos.delete("a", &DeleteParams::background()).await.unwrap();
    fixtures::gone(maps, &child).await;
    fixtures::delete(&Api::<CustomResourceDefinition>::all(admin), &format!("foos.{group}")).await;
}

#[tokio::test]
async fn a_policy_denies_and_stops_denying() {
    let plane = Plane::shared().await;
    let admin = plane.client();
    let key = format!("{}.example.com/keep", fixtures::ns("deny"));
    let name = fixtures::ns("deny");
    fixtures::deny_delete_policy(&admin, &name, &key).await;
    let maps: Api<ConfigMap> = Api::namespaced(admin.clone(), "default");
    let kept = fixtures::ns("kept");
    fixtures::create(&maps, json!({"metadata": {"name": kept, "annotations": {key.as_str(): ""}}})).await;
    let denied = maps.delete(&kept, &DeleteParams::default()).await.unwrap_err();
    assert!(denied.to_string().contains("protected against admin"), "{denied}");
    // What has no such annotation, or none at all, goes.
    let other = fixtures::ns("other");
    fixtures::create(&maps, json!({"metadata": {"name": other}})).await;
    maps.delete(&other, &DeleteParams::default()).await.unwrap();

    fixtures::remove_deny_delete_policy(&admin, &name, &key).await;
    maps.delete(&kept, &DeleteParams::default()).await.unwrap();
}

#[tokio::test]
async fn waiting_ends_with_the_first_value() {
    let mut polls = 0;
    let value = fixtures::eventually("the third poll", async || {
        polls += 1;
        (polls == 3).then_some("there")
    })
    .await;
    assert_eq!((value, polls), ("there", 3));
    // It can be moved to another task.
    let spawned = tokio::spawn(async { fixtures::eventually("at once", async || Some(1)).await });
    assert_eq!(spawned.await.unwrap(), 1);
}

#[tokio::test]
async fn a_namespace_goes_with_its_content() {
    let plane = Plane::shared().await;
    let admin = plane.client();
    let name = fixtures::namespace(&admin, "end").await;
    let maps: Api<ConfigMap> = Api::namespaced(admin.clone(), &name);
    maps.create(&PostParams::default(), &fixtures::config_map(&name, "a")).await.unwrap();
    let namespaces: Api<Namespace> = Api::all(admin);
    let begin = std::time::Instant::now();
    fixtures::delete(&namespaces, &name).await;
    fixtures::gone(namespaces, &name).await;
    assert!(begin.elapsed() < Duration::from_secs(30));
}
