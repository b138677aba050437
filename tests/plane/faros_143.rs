//! faros #143: every object that every GitTrack managed was deleted when the controller manager restarted, because a
//! GitTrack owned objects in other namespaces.
//!
//! The garbage collector looks for the owner of a namespaced object in the object's own namespace. Proxy owners are
//! where it looks.

use std::collections::BTreeMap;

use control_plane::{Part, Plane, audit::AuditLog, fixtures};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, DynamicObject, PropagationPolicy},
};
use kube_custody::{
    custodian::{Custodian, Phase},
    ownership::proxy::{ClusterGitTrackOwner, GitTrackOwner},
};
use serde_json::json;

use crate::world::*;

/// A GitTrack in `a` with children in `a`, `b`, `c` and cluster scope, some of which depend on others.
struct Scenario {
    admin: Client,
    log: AuditLog,
    custodian: Custodian<GitTrack>,
    home: String,
    track: GitTrack,
    desired: Vec<DynamicObject>,
}

impl Scenario {
    async fn applied(plane: &Plane) -> Self {
        let admin = plane.client();
        install(&admin).await;
        let mut namespaces = Vec::new();
        for prefix in ["faros-a", "faros-b", "faros-c"] {
            namespaces.push(new_namespace(&admin, prefix).await);
        }
        let [a, b, c] = namespaces.as_slice() else { unreachable!() };
        let (operator, log) = plane.audited("admin");
        let custodian = builder(operator).build().unwrap();
        let map = |namespace: &str, name: &str| format!("/namespaces/{namespace}/ConfigMap/{name}");
        let role = |name: &str| format!("rbac.authorization.k8s.io/ClusterRole/{a}-{name}");
        let desired = vec![
            config_map(a, "settings", &[]),
            config_map(b, "web", &[&map(a, "settings")]),
            config_map(b, "leaf", &[&map(b, "web")]),
            cluster_role(&format!("{a}-base"), &[&map(b, "web")]),
            config_map(c, "worker", &[&role("base")]),
            cluster_role(&format!("{a}-leaf"), &[&map(c, "worker")]),
        ];
        let track = parent(&admin, a, "track").await;
        let outcome = settle(&custodian, &admin, &track, &desired).await;
        assert_eq!(outcome.phase, Phase::Applied, "{outcome:#?}");
        let home = a.clone();
        Self { admin, log, custodian, home, track, desired }
    }

    /// Identity and UID of all children that exist.
    async fn uids(&self) -> BTreeMap<String, String> {
        uids(&self.admin, &self.desired).await
    }

    /// Deletes the parent, and checks that everything went in order, proxies last.
    async fn tear_down(&self, propagation: PropagationPolicy) {
        self.log.clear();
        let params = DeleteParams { propagation_policy: Some(propagation), ..DeleteParams::default() };
        let api = Api::<GitTrack>::namespaced(self.admin.clone(), &self.home);
        api.delete(&self.track.name_any(), &params).await.unwrap();
        settle_deleted(&self.custodian, &self.admin, &self.track, &self.desired).await;
        assert!(self.uids().await.is_empty());
        assert_eq!(proxies(&self.admin, &self.track).await, Vec::<String>::new());

        let order = deletions(&self.log);
        let at = |name: &str| {
            order.iter().position(|d| d.ends_with(name)).unwrap_or_else(|| panic!("{name} not deleted: {order:?}"))
        };
        let chain = ["/leaf", "/web", "/settings"].map(at);
        assert!(chain.is_sorted(), "{order:?}");
        let [leaf, base] = [format!("{}-leaf", self.home), format!("{}-base", self.home)];
        let chain = [leaf.as_str(), "/worker", base.as_str(), "/web", "/settings"].map(at);
        assert!(chain.is_sorted(), "{order:?}");
        // A proxy goes after every child in its place.
        for (proxy, position) in order.iter().enumerate().filter(|(_, d)| d.contains("owners/")).map(|(i, d)| (d, i)) {
            let place = proxy.rsplit_once('/').map(|(place, _)| place.replace("clustergittrackowners", "clusterroles"));
            let place = place.unwrap().replace("gittrackowners", "configmaps");
            let later: Vec<_> = order.iter().skip(position).filter(|d| d.starts_with(&place)).collect();
            assert!(later.is_empty(), "{later:?} after {proxy}: {order:?}");
        }
        assert_eq!(order.iter().filter(|d| d.contains("owners/")).count(), 4, "{order:?}");
    }
}

async fn uids(client: &Client, objects: &[DynamicObject]) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for object in objects {
        if let Some(live) = live(client, object).await {
            let name = format!("{}/{}", live.namespace().unwrap_or_default(), live.name_any());
            found.insert(name, live.uid().unwrap());
        }
    }
    found
}

/// The parent's proxies, sorted.
async fn proxies(client: &Client, track: &GitTrack) -> Vec<String> {
    let (spaced, cluster) = live_proxies(client, track).await;
    spaced.iter().map(ResourceExt::name_any).chain(cluster.iter().map(ResourceExt::name_any)).collect()
}

#[tokio::test]
async fn restarts_of_the_garbage_collector_delete_nothing_and_with_direct_references_they_do() {
    let plane = Plane::builder().start().await.unwrap();
    let scenario = Scenario::applied(&plane).await;
    let before = scenario.uids().await;
    assert_eq!(before.len(), scenario.desired.len());
    let kept = proxies(&scenario.admin, &scenario.track).await;
    assert_eq!(kept.len(), 4, "one a namespace, one for cluster scope");

    // The control: the same set, owned by the GitTrack directly, as Faros did it.
    let direct = parent(&scenario.admin, &scenario.home, "direct").await;
    let owned: Vec<_> = scenario.desired.iter().map(|child| directly_owned(child, &direct)).collect();
    plane.kill(Part::Controllers).await.unwrap();
    for child in &owned {
        create(&scenario.admin, child).await;
    }
    assert_eq!(uids(&scenario.admin, &owned).await.len(), owned.len());

    for _ in 0..5 {
        plane.restart_garbage_collector().await.unwrap();
        plane.gc_quiet().await.unwrap();
        assert_eq!(scenario.uids().await, before);
        assert_eq!(proxies(&scenario.admin, &scenario.track).await, kept);
    }

    let elsewhere = |child: &&DynamicObject| child.namespace().is_some_and(|n| n != scenario.home);
    let lost: Vec<_> = owned.iter().filter(elsewhere).cloned().collect();
    fixtures::eventually("direct references in other namespaces lose their children", async || {
        uids(&scenario.admin, &lost).await.is_empty().then_some(())
    })
    .await;
    // In its own namespace the reference is legal; on a cluster-scoped object it is never resolved.
    let survivors: Vec<_> = owned.iter().filter(|child| !elsewhere(child)).cloned().collect();
    assert_eq!(uids(&scenario.admin, &survivors).await.len(), survivors.len());
    delete(&scenario.admin, &direct).await;
    let (legal, leaked): (Vec<_>, Vec<_>) = survivors.into_iter().partition(|c| c.namespace().is_some());
    fixtures::eventually("the child in the owner's namespace is collected", async || {
        uids(&scenario.admin, &legal).await.is_empty().then_some(())
    })
    .await;
    plane.restart_garbage_collector().await.unwrap();
    plane.gc_quiet().await.unwrap();
    assert_eq!(uids(&scenario.admin, &leaked).await.len(), leaked.len(), "cluster-scoped children are never collected");

    scenario.tear_down(PropagationPolicy::Background).await;
    plane.shutdown().await.unwrap();
}

/// The child under another name, with an owner reference to the parent, legal or not.
fn directly_owned(child: &DynamicObject, owner: &GitTrack) -> DynamicObject {
    let mut copy = child.clone();
    copy.metadata.name = Some(format!("{}-direct", child.name_any()));
    copy.metadata.owner_references = Some(vec![fixtures::from(json!({
        "apiVersion": "faros.pusher.com/v1alpha1", "kind": "GitTrack", "name": owner.name_any(), "uid": owner.uid(),
    }))]);
    copy
}

#[tokio::test]
async fn everything_goes_in_order_when_the_parent_is_deleted_in_the_background() {
    Scenario::applied(Plane::shared().await).await.tear_down(PropagationPolicy::Background).await;
}

#[tokio::test]
async fn a_foreground_cascade_of_the_parent_does_not_pass_the_order() {
    Scenario::applied(Plane::shared().await).await.tear_down(PropagationPolicy::Foreground).await;
}

#[tokio::test]
async fn an_orphaning_delete_of_the_parent_keeps_nothing_by_itself() {
    Scenario::applied(Plane::shared().await).await.tear_down(PropagationPolicy::Orphan).await;
}

#[tokio::test]
async fn everything_goes_in_order_with_the_garbage_collector_dead() {
    let plane = Plane::builder().start().await.unwrap();
    let scenario = Scenario::applied(&plane).await;
    plane.kill(Part::Controllers).await.unwrap();
    scenario.tear_down(PropagationPolicy::Background).await;
    plane.shutdown().await.unwrap();
}

#[tokio::test]
async fn c01_no_child_refers_to_the_parent_and_no_reference_leaves_its_scope() {
    let scenario = Scenario::applied(Plane::shared().await).await;
    let (spaced, cluster) = live_proxies(&scenario.admin, &scenario.track).await;
    let mut homes: BTreeMap<String, Option<String>> = BTreeMap::new();
    homes.extend(spaced.iter().map(|p: &GitTrackOwner| (p.uid().unwrap(), p.namespace())));
    homes.extend(cluster.iter().map(|p: &ClusterGitTrackOwner| (p.uid().unwrap(), None)));
    let mut referring = 0;
    for child in &scenario.desired {
        let child = live(&scenario.admin, child).await.unwrap();
        for reference in child.owner_references() {
            assert_eq!(homes.get(&reference.uid), Some(&child.namespace()), "{reference:?}");
            referring += 1;
        }
    }
    assert_eq!(referring, 2, "those that nothing depends on");
    for owners in spaced.iter().map(|p| p.owner_references()).chain(cluster.iter().map(|p| p.owner_references())) {
        assert!(owners.is_empty(), "{owners:?}");
    }
    scenario.tear_down(PropagationPolicy::Background).await;
}

#[tokio::test]
async fn c02_the_collector_takes_exactly_what_carries_the_proxy() {
    // With references on all children, those of another parent in the same namespace are not touched.
    let admin = client().await;
    let [infra, backend] = [new_namespace(&admin, "c02-infra").await, new_namespace(&admin, "c02-backend").await];
    let custodian = builder(admin.clone()).references(kube_custody::ownership::proxy::References::All).build().unwrap();
    let topics: Vec<_> = (0..20).map(|n| config_map(&backend, &format!("topic-{n}"), &[])).collect();
    let (mine, theirs) = topics.split_at(10);
    let [first, second] = [parent(&admin, &infra, "one").await, parent(&admin, &infra, "two").await];
    settle(&custodian, &admin, &first, mine).await;
    settle(&custodian, &admin, &second, theirs).await;
    let kept = uids(&admin, theirs).await;
    delete(&admin, &first).await;
    settle_deleted(&custodian, &admin, &first, mine).await;
    Plane::shared().await.gc_quiet().await.unwrap();
    assert!(uids(&admin, mine).await.is_empty());
    assert_eq!(uids(&admin, theirs).await, kept);
    delete(&admin, &second).await;
    settle_deleted(&custodian, &admin, &second, theirs).await;
}

#[tokio::test]
async fn c07_a_proxy_waits_for_a_child_that_somebody_holds() {
    for policy in [PropagationPolicy::Background, PropagationPolicy::Foreground, PropagationPolicy::Orphan] {
        let admin = client().await;
        let [home, other] = [new_namespace(&admin, "c07").await, new_namespace(&admin, "c07-other").await];
        let custodian = builder(admin.clone()).build().unwrap();
        let desired = [config_map(&other, "held", &[])];
        let track = parent(&admin, &home, "track").await;
        settle(&custodian, &admin, &track, &desired).await;
        let hold = json!({"metadata": {"finalizers": ["somebody.example.com/holds"]}});
        patch(&admin, &desired[0], hold).await;
        let params = DeleteParams { propagation_policy: Some(policy.clone()), ..DeleteParams::default() };
        Api::<GitTrack>::namespaced(admin.clone(), &home).delete("track", &params).await.unwrap();
        for _ in 0..3 {
            let outcome = reconcile(&custodian, &reload(&admin, &track).await.unwrap(), &desired).await;
            assert_eq!(outcome.phase, Phase::Deleting, "{outcome:#?}");
            let blocker = &outcome.removal.blockers[0];
            assert_eq!(blocker.id, id(&format!("ConfigMap {other}/held")));
            assert_eq!(blocker.finalizers, ["somebody.example.com/holds"]);
        }
        assert_eq!(proxies(&admin, &track).await.len(), 1, "{policy:?}: the proxy outlives its child");
        patch(&admin, &desired[0], json!({"metadata": {"finalizers": null}})).await;
        settle_deleted(&custodian, &admin, &track, &desired).await;
        assert!(proxies(&admin, &track).await.is_empty());
    }
}
