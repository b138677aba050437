//! The crate's own custodian against the sim.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::{
    Api, Client, CustomResource, CustomResourceExt, ResourceExt,
    api::{DeleteParams, DynamicObject, PostParams},
};
use kube_custody::{
    custodian::{Custodian, Desired, Outcome, Phase},
    ownership::{
        OwnershipPolicy,
        proxy::{ClusterGitTrackOwner, GitTrackOwner, ProxyOwners},
    },
    sim::{Cluster, Fault, Trouble, Verb},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

const MANAGER: &str = "gittrack.example.com";

#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[kube(group = "faros.pusher.com", version = "v1alpha1", kind = "GitTrack", namespaced)]
struct GitTrackSpec {
    path: String,
}

struct World {
    cluster: Cluster,
    custodian: Custodian<GitTrack>,
    tracks: Api<GitTrack>,
}

impl World {
    async fn new(seed: u64) -> Self {
        let cluster = Cluster::builder().seed(seed).build();
        cluster.install(&GitTrack::crd()).unwrap();
        for crd in <(GitTrackOwner, ClusterGitTrackOwner)>::crds() {
            cluster.install(&crd).unwrap();
        }
        let namespaces = Api::<Namespace>::all(cluster.client());
        for name in ["home", "far"] {
            let namespace = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
            namespaces.create(&PostParams::default(), &namespace).await.unwrap();
        }
        let tracks = Api::namespaced(cluster.client(), "home");
        tracks
            .create(&PostParams::default(), &GitTrack::new("track", GitTrackSpec { path: "/".into() }))
            .await
            .unwrap();
        let custodian = custodian(cluster.client_as("operator"));
        Self { cluster, custodian, tracks }
    }

    async fn reconcile(&self, desired: &[DynamicObject]) -> Option<Outcome> {
        let track = self.tracks.get_opt("track").await.unwrap()?;
        let desired = Desired::from(desired.to_vec());
        Some(self.custodian.reconcile(&track, async |_: Arc<GitTrack>| Ok::<_, std::io::Error>(desired)).await)
    }

    /// Reconciles, with the controllers at work in between, until the outcome is final or the parent is gone.
    async fn settle(&self, desired: &[DynamicObject]) -> Option<Outcome> {
        let mut last = None;
        for _ in 0..100 {
            let Some(outcome) = self.reconcile(desired).await else { return last };
            self.cluster.settle().await.unwrap();
            if matches!(outcome.phase, Phase::Applied | Phase::Released | Phase::Gone | Phase::Held(_)) {
                return Some(outcome);
            }
            last = Some(outcome);
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
        panic!("not settled: {last:#?}\n{}", self.cluster.audit().by("operator"));
    }
}

fn custodian(client: Client) -> Custodian<GitTrack> {
    Custodian::<GitTrack>::builder(client, MANAGER)
        .proxies::<GitTrackOwner, ClusterGitTrackOwner>()
        .ownership(OwnershipPolicy::ClusterWide)
        .build()
        .unwrap()
}

fn object(value: Value) -> DynamicObject {
    serde_json::from_value(value).unwrap()
}

fn map(namespace: &str, name: &str, data: &str) -> DynamicObject {
    object(json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": namespace, "name": name}, "data": {"a": data},
    }))
}

fn role(name: &str, depends_on: &str) -> DynamicObject {
    object(json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": name, "annotations": {"config.kubernetes.io/depends-on": depends_on}}, "rules": [],
    }))
}

/// What the operator deleted with effect, in order.
fn deletions(cluster: &Cluster) -> Vec<String> {
    let deletes = cluster.audit().by("operator").effective().only(|call| call.verb == Verb::Delete);
    deletes.calls().iter().map(|call| call.target.to_string()).collect()
}

#[tokio::test(start_paused = true)]
async fn children_in_three_scopes_live_and_go() {
    let world = World::new(1).await;
    let mut desired =
        vec![map("home", "near", "1"), map("far", "far", "1"), role("wide", "/namespaces/far/ConfigMap/far")];
    let outcome = world.settle(&desired).await.unwrap();
    assert_eq!(outcome.phase, Phase::Applied, "{outcome:#?}");
    let live = |resource: &str, namespace: &str, name: &str| world.cluster.object(resource, namespace, name);
    assert!(live("clusterroles.rbac.authorization.k8s.io", "", "wide").is_some());
    assert_eq!(live("configmaps", "far", "far").unwrap()["data"]["a"], "1");

    desired[1] = map("far", "far", "2");
    desired.remove(0);
    assert_eq!(world.settle(&desired).await.unwrap().phase, Phase::Applied);
    assert!(live("configmaps", "home", "near").is_none(), "pruned");
    assert_eq!(live("configmaps", "far", "far").unwrap()["data"]["a"], "2");

    world.cluster.clear_audit();
    world.tracks.delete("track", &DeleteParams::default()).await.unwrap();
    let outcome = world.settle(&desired).await.unwrap();
    assert_eq!(outcome.phase, Phase::Released, "{outcome:#?}");
    assert!(world.tracks.get_opt("track").await.unwrap().is_none());
    for resource in ["configmaps", "clusterroles.rbac.authorization.k8s.io", "gittrackowners.faros.pusher.com"] {
        assert_eq!(world.cluster.objects(resource), [], "{resource}");
    }
    let deleted = deletions(&world.cluster);
    let place =
        |name: &str| deleted.iter().position(|line| line.contains(name)).unwrap_or_else(|| panic!("{deleted:?}"));
    assert!(place("/wide") < place("/far/far"), "{deleted:?}");
}

#[tokio::test(start_paused = true)]
async fn a_namespace_deleted_under_the_parent_takes_nothing_along_unproven() {
    let world = World::new(2).await;
    let desired = vec![map("far", "far", "1"), role("wide", "/namespaces/far/ConfigMap/far")];
    world.settle(&desired).await.unwrap();
    Api::<Namespace>::all(world.cluster.client()).delete("home", &DeleteParams::default()).await.unwrap();
    // After five seconds its content is deleted, the parent and the inventory among it.
    world.cluster.run_controllers();
    let outcome = world.settle(&desired).await.unwrap();
    assert_eq!(outcome.phase, Phase::Released, "{outcome:#?}");
    assert!(world.cluster.object("namespaces", "", "home").is_none(), "{}", world.cluster.audit());
    assert_eq!(world.cluster.objects("configmaps"), []);
    assert!(world.cluster.objects("clusterroles.rbac.authorization.k8s.io").is_empty());
}

/// A life with a change in it, from the first apply to the parent's end.
async fn live(world: &World) {
    let mut desired =
        vec![map("home", "near", "1"), map("far", "far", "1"), role("wide", "/namespaces/far/ConfigMap/far")];
    world.settle(&desired).await;
    desired[1] = map("far", "far", "2");
    desired.remove(0);
    world.settle(&desired).await;
    let _ = world.tracks.delete("track", &DeleteParams::default()).await;
    world.settle(&desired).await;
}

/// Goes through a life once for each of its calls, with trouble at that call.
async fn with_trouble_at_each_call(trouble: Trouble) {
    for at in 1.. {
        let mut world = World::new(3).await;
        world.cluster.inject(Fault::new(trouble).user("operator").nth(at));
        if tokio::time::timeout(Duration::from_secs(3600), live(&world)).await.is_err() {
            // A new process goes on.
            world.custodian = custodian(world.cluster.client_as("operator"));
            live(&world).await;
        }
        let calls = world.cluster.audit().by("operator");
        let place = || format!("{trouble:?} at call {at}: {calls}");
        assert!(world.tracks.get_opt("track").await.unwrap().is_none(), "{}", place());
        for resource in ["configmaps", "clusterroles.rbac.authorization.k8s.io", "gittrackowners.faros.pusher.com"] {
            assert_eq!(world.cluster.objects(resource), [], "{}", place());
        }
        let deleted = deletions(&world.cluster);
        let position = |name: &str| deleted.iter().position(|line| line.contains(name));
        assert!(position("/wide") < position("/far/far"), "{}", place());
        if at > calls.calls().len() {
            assert!(at > 30, "every call of a life met trouble: {at}");
            return;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_crash_before_any_call_loses_nothing() {
    with_trouble_at_each_call(Trouble::CrashBefore).await;
}

#[tokio::test(start_paused = true)]
async fn a_crash_after_any_call_loses_nothing() {
    with_trouble_at_each_call(Trouble::CrashAfter).await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_lost_at_any_call_loses_nothing() {
    with_trouble_at_each_call(Trouble::AnswerLost).await;
}

#[tokio::test(start_paused = true)]
async fn any_call_may_be_refused_once() {
    for code in [403, 409, 429, 500, 503, 504] {
        with_trouble_at_each_call(Trouble::Refused(code)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn any_call_may_fail_to_arrive_or_arrive_twice() {
    with_trouble_at_each_call(Trouble::Unsent).await;
    with_trouble_at_each_call(Trouble::Repeated).await;
    with_trouble_at_each_call(Trouble::TimedOut(Duration::from_secs(30))).await;
}

/// kustomize-controller#338: an object changes hands, and either operator may die at any call.
#[tokio::test(start_paused = true)]
async fn c32_a_crash_at_any_call_of_a_hand_over_deletes_nothing() {
    for trouble in [Trouble::CrashBefore, Trouble::CrashAfter] {
        for at in 1.. {
            let mut world = World::new(5).await;
            let taker = GitTrack::new("taker", GitTrackSpec { path: "/".into() });
            world.tracks.create(&PostParams::default(), &taker).await.unwrap();
            let (x, y) = (map("home", "x", "1"), map("home", "y", "1"));
            world.settle(&[x.clone(), y.clone()]).await;
            let uid = world.cluster.object("configmaps", "home", "x").unwrap()["metadata"]["uid"].clone();
            world.cluster.clear_audit();
            world.cluster.inject(Fault::new(trouble).user("operator").nth(at));
            let (sets, mut crashed) = ([x, y], false);
            for _ in 0..2 {
                let moving = async {
                    for _ in 0..20 {
                        let taker = world.tracks.get("taker").await.unwrap();
                        let set = Desired::from(sets[..1].to_vec());
                        let taken =
                            world.custodian.reconcile(&taker, async |_: Arc<GitTrack>| Ok::<_, std::io::Error>(set));
                        let taken = taken.await.phase == Phase::Applied;
                        let given = world.reconcile(&sets[1..]).await.unwrap().phase == Phase::Applied;
                        world.cluster.settle().await.unwrap();
                        if taken && given {
                            return;
                        }
                        tokio::time::sleep(Duration::from_secs(1)).await;
                    }
                    panic!("{trouble:?} at {at}: {}", world.cluster.audit().by("operator"));
                };
                if tokio::time::timeout(Duration::from_secs(3600), moving).await.is_ok() {
                    break;
                }
                crashed = true;
                world.custodian = custodian(world.cluster.client_as("operator"));
            }
            let calls = world.cluster.audit().by("operator");
            let now = world.cluster.object("configmaps", "home", "x").unwrap();
            let taker = world.tracks.get("taker").await.unwrap();
            assert_eq!(now["metadata"]["uid"], uid, "{trouble:?} at {at}: {calls}");
            let label = &now["metadata"]["labels"][format!("{MANAGER}/parent-uid")];
            assert_eq!(*label, json!(taker.metadata.uid), "{trouble:?} at {at}: {calls}");
            assert!(!deletions(&world.cluster).iter().any(|line| line.contains("/x")), "{trouble:?} at {at}: {calls}");
            if !crashed {
                assert!(at > 10, "{at}");
                break;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn foreign_objects_survive() {
    let world = World::new(4).await;
    let theirs: Api<ConfigMap> = Api::namespaced(world.cluster.client(), "far");
    let foreign = serde_json::from_value(json!({"metadata": {"name": "far"}})).unwrap();
    theirs.create(&PostParams::default(), &foreign).await.unwrap();
    let outcome = world.reconcile(&[map("far", "far", "1")]).await.unwrap();
    assert_eq!(outcome.unapplied.len(), 1, "{outcome:#?}");
    world.tracks.delete("track", &DeleteParams::default()).await.unwrap();
    world.settle(&[]).await;
    assert!(world.tracks.get_opt("track").await.unwrap().is_none());
    assert_eq!(theirs.get("far").await.unwrap().labels().len(), 0);
}
