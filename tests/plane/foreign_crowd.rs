//! A cluster full of objects that are nothing to us.

use std::collections::BTreeSet;

use control_plane::{
    Plane,
    audit::{Call, Verb},
    fixtures,
};
use futures::{StreamExt, future::join_all, stream};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::DynamicObject;
use serde_json::{Value, json};

use crate::world::*;

/// Plurals of the children's kinds.
const KINDS: [&str; 5] = ["clusterroles", "configmaps", "roles", "secrets", "serviceaccounts"];
const OF_EACH_KIND: usize = 20;

/// `each` objects of each of the five kinds.
fn set(namespace: &str, prefix: &str, each: usize) -> Vec<DynamicObject> {
    let kinds = [
        ("v1", "ConfigMap"),
        ("v1", "Secret"),
        ("v1", "ServiceAccount"),
        ("rbac.authorization.k8s.io/v1", "Role"),
        ("rbac.authorization.k8s.io/v1", "ClusterRole"),
    ];
    let one = |version: &str, kind: &str, n: usize| {
        let namespace = (kind != "ClusterRole").then_some(namespace);
        let meta = json!({"name": format!("{prefix}-{n}"), "namespace": namespace});
        object(json!({"apiVersion": version, "kind": kind, "metadata": meta}))
    };
    kinds.iter().flat_map(|(version, kind)| (0..each).map(move |n| one(version, kind, n))).collect()
}

/// The calls of an operator that starts after its parent of 100 children was deleted.
async fn deletion(plane: &Plane, crowded: Option<usize>) -> Vec<Call> {
    let mut scene = Scene::on(plane, "crowd", |b| b).await;
    let children = set(&scene.ns, &scene.ns, OF_EACH_KIND);
    if let Some(each) = crowded {
        // Of the children's kinds, in their namespace, and with a label like theirs.
        let mut foreign = set(&scene.ns, "foreign", each);
        let label = |o: &mut DynamicObject| {
            o.metadata.labels = Some([("other.example.com/parent-uid".into(), "1".into())].into());
        };
        foreign.iter_mut().for_each(label);
        stream::iter(&foreign).for_each_concurrent(16, async |o| drop(create(&scene.admin, o).await)).await;
    }
    scene.apply(&children).await;
    scene.delete().await;
    scene.restart(|b| b);
    scene.log.clear();
    scene.log.keep_events(true);
    scene.settle(&[]).await;
    assert_eq!(scene.present(&children).await, vec![false; children.len()]);
    if let Some(each) = crowded {
        assert_eq!(scene.present(&set(&scene.ns, "foreign", each)).await, vec![true; 5 * each], "hands off");
    }
    scene.log.calls()
}

/// What the API server sent for a call.
fn told(call: &Call) -> Vec<&Value> {
    call.answer.iter().chain(call.events.iter().filter_map(|e| e.event.get("object"))).collect()
}

fn bytes(calls: &[Call]) -> usize {
    calls.iter().flat_map(told).map(|value| value.to_string().len()).sum()
}

#[tokio::test]
async fn c34_what_a_deletion_costs_depends_on_the_children_and_not_on_the_cluster() {
    let plane = Plane::builder().start().await.unwrap();
    let alone = deletion(&plane, None).await;
    let definitions: Vec<CustomResourceDefinition> = (0..20)
        .map(|n| fixtures::from(serde_json::to_value(definition(&format!("foreign-{n}"), &[("v1", true)])).unwrap()))
        .collect();
    let admin = plane.client();
    join_all(definitions.iter().map(|crd| fixtures::apply_crd(&admin, crd))).await;
    let crowded = deletion(&plane, Some(100)).await;

    let children = KINDS.len() * OF_EACH_KIND;
    let of_children = |call: &&Call| KINDS.contains(&call.target.plural.as_str());
    let is_record = |call: &&Call| call.target.name.as_ref().is_some_and(|name| name.contains("inventory"));
    let about: Vec<_> = crowded.iter().filter(of_children).filter(|call| !is_record(call)).collect();
    let deletes = about.iter().filter(|call| call.verb == Verb::Delete && call.effective).count();
    assert_eq!(deletes, children);
    let others = about.iter().filter(|call| !matches!(call.verb, Verb::Delete | Verb::List | Verb::Watch)).count();
    assert_eq!(others, 0, "nothing that goes at once is asked about");

    // Lists and watches: one a kind, of what carries our label, metadata only.
    let label = format!("{MANAGER}/parent-uid");
    // The record's own objects have a label of their own.
    let of_record = |call: &&Call| {
        let records = format!("{MANAGER}/inventory=");
        call.parameter("labelSelector").is_some_and(|selector| selector.starts_with(&records))
    };
    let followed = crowded.iter().filter(|call| matches!(call.verb, Verb::List | Verb::Watch) && !of_record(call));
    for call in followed.clone() {
        assert_eq!(call.parameter("labelSelector"), Some(label.as_str()), "{call}");
        for kind in told(call).iter().filter_map(|value| value["kind"].as_str()) {
            assert!(matches!(kind, "PartialObjectMetadataList" | "PartialObjectMetadata" | "Status"), "{call}: {kind}");
        }
    }
    let lists = followed.filter(|call| call.verb == Verb::List);
    let listed: usize = lists.clone().filter_map(|call| call.answer.as_ref()?["items"].as_array()).map(Vec::len).sum();
    assert!(lists.count() <= KINDS.len() + 2, "the children's kinds and the proxies'");
    assert!((children..=children + 3).contains(&listed), "{listed} objects listed: ours, the proxies, the record");

    // Nothing else is touched.
    let mut allowed = BTreeSet::from(KINDS);
    allowed.extend(["gittracks", "gittrackowners", "clustergittrackowners", "customresourcedefinitions", "namespaces"]);
    for call in &crowded {
        let touched = call.target.plural.as_str();
        assert!(call.verb == Verb::NonResource || allowed.contains(touched), "{call}");
        assert!(!call.path.contains("foreign"), "{call}");
    }
    assert!(crowded.len() <= children + 60, "{} calls", crowded.len());
    assert!(crowded.len() <= alone.len() + 15, "{} calls, {} in an empty cluster", crowded.len(), alone.len());
    let (crowded, alone) = (bytes(&crowded), bytes(&alone));
    assert!(crowded <= alone + alone / 4, "{crowded} bytes read, {alone} in an empty cluster");
}
