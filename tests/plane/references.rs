//! Owner references of children, spoilt by others or by time.

use control_plane::{Plane, fixtures};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client, ResourceExt,
    api::{DynamicObject, Patch, PatchParams},
};
use kube_custody::{
    custodian::{Custodian, Desired, Phase},
    ownership::{OwnershipPolicy, proxy::ProxyOwners},
};
use serde_json::json;

use crate::world::*;

/// The references of the live object as `apiVersion kind uid`.
async fn references(client: &Client, object: &DynamicObject) -> Vec<String> {
    let live = live(client, object).await.unwrap();
    live.owner_references().iter().map(|r| format!("{} {} {}", r.api_version, r.kind, r.uid)).collect()
}

#[tokio::test]
async fn c03_a_reference_with_the_right_uid_and_a_wrong_kind_is_replaced_not_added_to() {
    let admin = client().await;
    let home = new_namespace(&admin, "c03").await;
    let custodian = builder(admin.clone()).build().unwrap();
    let track = parent(&admin, &home, "track").await;
    let desired = [config_map(&home, "x", &[])];
    settle(&custodian, &admin, &track, &desired).await;
    let good = references(&admin, &desired[0]).await;
    assert_eq!(good.len(), 1);

    // A client's pointer type printed into `kind`: unresolvable, so never collected.
    let owner = &live(&admin, &desired[0]).await.unwrap().owner_references()[0].clone();
    let bad =
        json!({"apiVersion": owner.api_version, "kind": "*v1.GitTrackOwner", "name": owner.name, "uid": owner.uid});
    patch(&admin, &desired[0], json!({"metadata": {"ownerReferences": [bad]}})).await;
    let outcome = fixtures::eventually_ok("the reference is repaired", async || {
        let outcome = reconcile(&custodian, &reload(&admin, &track).await.unwrap(), &desired).await;
        let now = references(&admin, &desired[0]).await;
        if now == good { Ok(outcome) } else { Err(format!("{now:?}: {:?}", outcome.unapplied)) }
    })
    .await;
    assert_eq!(outcome.phase, Phase::Applied);
    delete(&admin, &track).await;
    settle_deleted(&custodian, &admin, &track, &desired).await;
}

#[tokio::test]
async fn a_reference_that_somebody_else_repeats_goes_when_the_child_gains_a_dependent() {
    let admin = client().await;
    let home = new_namespace(&admin, "repeated").await;
    let custodian = builder(admin.clone()).build().unwrap();
    let track = parent(&admin, &home, "track").await;
    let mut desired = vec![config_map(&home, "base", &[])];
    settle(&custodian, &admin, &track, &desired).await;
    // A backup tool, say, that applies what it saw: an apply without the reference leaves the share of the other.
    let mut copy = config_map(&home, "base", &[]);
    copy.metadata.owner_references = live(&admin, &desired[0]).await.unwrap().metadata.owner_references;
    api_of(&admin, &copy).patch("base", &PatchParams::apply("copycat"), &Patch::Apply(&copy)).await.unwrap();

    desired.push(config_map(&home, "leaf", &[&format!("/namespaces/{home}/ConfigMap/base")]));
    assert_eq!(settle(&custodian, &admin, &track, &desired).await.phase, Phase::Applied);
    assert!(references(&admin, &desired[0]).await.is_empty(), "a cascade would take it before its dependent");
    assert_eq!(references(&admin, &desired[1]).await.len(), 1);
    delete(&admin, &track).await;
    settle_deleted(&custodian, &admin, &track, &desired).await;
}

mod before {
    kube_custody::proxy_owners! {
        group: "c04.example.com", version: "v1",
        namespaced: pub(super) TrackOwner / "trackowners",
        cluster: pub(super) ClusterTrackOwner / "clustertrackowners"
    }
}

mod after {
    kube_custody::proxy_owners! {
        group: "c04.example.com", version: "v2",
        namespaced: pub(super) TrackOwner / "trackowners",
        cluster: pub(super) ClusterTrackOwner / "clustertrackowners"
    }
}

/// The definitions with these versions, each with whether it is served; the last one is stored.
async fn serve(client: &Client, versions: &[(&str, bool)]) {
    for crd in <(before::TrackOwner, before::ClusterTrackOwner)>::crds() {
        let mut manifest = serde_json::to_value(&crd).unwrap();
        let version = manifest["spec"]["versions"][0].clone();
        let all = versions.iter().enumerate().map(|(i, (name, served))| {
            let mut version = version.clone();
            (version["name"], version["served"]) = (json!(name), json!(served));
            version["storage"] = json!(i + 1 == versions.len());
            version
        });
        manifest["spec"]["versions"] = all.collect();
        (manifest["apiVersion"], manifest["kind"]) =
            (json!("apiextensions.k8s.io/v1"), json!("CustomResourceDefinition"));
        let api = Api::<CustomResourceDefinition>::all(client.clone());
        let params = PatchParams::apply("test").force();
        api.patch(&crd.name_any(), &params, &Patch::Apply(&manifest)).await.unwrap();
        for (name, served) in versions {
            let path = format!("/apis/c04.example.com/{name}/{}", crd.spec.names.plural);
            fixtures::eventually(format!("{path} is served: {served}"), async || {
                let request = http::Request::get(&path).body(Vec::new()).unwrap();
                (client.request_text(request).await.is_ok() == *served).then_some(())
            })
            .await;
        }
    }
}

#[tokio::test]
async fn c04_references_are_rewritten_to_a_served_version_of_the_proxies() {
    let plane = Plane::shared().await;
    let admin = client().await;
    let [home, other] = [new_namespace(&admin, "c04").await, new_namespace(&admin, "c04-other").await];
    let custodian =
        |client: Client| Custodian::<GitTrack>::builder(client, MANAGER).ownership(OwnershipPolicy::ClusterWide);
    let desired = [config_map(&other, "x", &[]), cluster_role(&format!("{other}-x"), &[])];
    let track = parent(&admin, &home, "track").await;

    serve(&admin, &[("v1", true)]).await;
    let old = custodian(admin.clone()).proxies::<before::TrackOwner, before::ClusterTrackOwner>().build().unwrap();
    assert_eq!(settle(&old, &admin, &track, &desired).await.phase, Phase::Applied);
    let first = [references(&admin, &desired[0]).await, references(&admin, &desired[1]).await];
    assert!(first.iter().all(|r| r.len() == 1 && r[0].starts_with("c04.example.com/v1 ")), "{first:?}");

    serve(&admin, &[("v1", true), ("v2", true)]).await;
    serve(&admin, &[("v1", false), ("v2", true)]).await;
    plane.gc_quiet().await.unwrap();
    let (operator, log) = plane.audited("admin");
    let new = custodian(operator).proxies::<after::TrackOwner, after::ClusterTrackOwner>().build().unwrap();
    let outcome = settle(&new, &admin, &track, &desired).await;
    assert_eq!(outcome.phase, Phase::Applied, "{outcome:#?}");
    for (child, before) in desired.iter().zip(&first) {
        let wanted = before[0].replace("c04.example.com/v1 ", "c04.example.com/v2 ");
        assert_eq!(references(&admin, child).await, [wanted], "one reference, to the same proxy: {log}");
    }
    delete(&admin, &track).await;
    settle_deleted(&new, &admin, &track, &desired).await;
    for child in &desired {
        assert!(!exists(&admin, child).await);
    }
}

#[tokio::test]
async fn c06_what_is_kept_loses_its_reference_before_the_proxy_goes_in_both_scopes() {
    let admin = client().await;
    let [home, other] = [new_namespace(&admin, "c06").await, new_namespace(&admin, "c06-other").await];
    let (operator, log) = Plane::shared().await.audited("admin");
    let custodian = builder(operator).build().unwrap();
    let set =
        [config_map(&other, "kept", &[]), cluster_role(&format!("{other}-kept"), &[]), config_map(&other, "goes", &[])];
    let track = parent(&admin, &home, "track").await;
    let keeping = || {
        let mut desired = Desired::from(set.to_vec());
        desired.keep(id(&format!("ConfigMap {other}/kept")));
        desired.keep(id(&format!("ClusterRole.rbac.authorization.k8s.io {other}-kept")));
        desired
    };
    fixtures::eventually("applied", async || {
        let track = reload(&admin, &track).await.unwrap();
        let outcome = custodian.reconcile(&track, async |_| Ok::<_, std::io::Error>(keeping())).await;
        (outcome.phase == Phase::Applied).then_some(())
    })
    .await;
    for child in &set {
        assert_eq!(references(&admin, child).await.len(), 1);
    }
    // A reference of somebody else's stays.
    let foreign = create(&admin, &config_map(&other, "foreign", &[])).await;
    let reference = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "foreign", "uid": foreign.uid().unwrap()});
    let append = json!([{"op": "add", "path": "/metadata/ownerReferences/-", "value": reference}]);
    let append: json_patch::Patch = serde_json::from_value(append).unwrap();
    api_of(&admin, &set[0]).patch("kept", &PatchParams::default(), &Patch::<()>::Json(append)).await.unwrap();

    delete(&admin, &track).await;
    settle_deleted(&custodian, &admin, &track, &set).await;
    Plane::shared().await.gc_quiet().await.unwrap();
    assert_eq!(references(&admin, &set[0]).await, [format!("v1 ConfigMap {}", foreign.uid().unwrap())], "{log}");
    assert!(references(&admin, &set[1]).await.is_empty());
    assert!(!exists(&admin, &set[2]).await);
}
