//! pkg/controller/garbagecollector/garbagecollector_test.go, on the sim alone: a real collector can't be taken step by
//! step.
//!
//! A [`story`] names the steps of the garbage collector in their order, and the calls of each; a seed is looked for in
//! which they come in this order, as upstream's tables feed the events in theirs. The node of what is only referred to
//! shows in what is judged next, the cache of absent owners in the calls that are not made.
//!
//! Not here: what others do inside of one step of the sim, between the collector's GET and its DELETE (its own patch in
//! between is in [`unblock_owner_reference`]); informers and discovery clients (`TestGetDeletableResources`, most of
//! `TestGarbageCollectorSync`). `TestGetAlternateOwnerIdentity` is next to the graph.

use std::slice::from_ref;

use kube_custody::sim::{Cluster, Controller, Verb};
use serde_json::{Value, json};

use crate::{
    both::Stage,
    objects::{CRDS, NAMESPACES, core, definition, map, owner, pod, workload},
};

const COLLECTOR: &str = "system:serviceaccount:kube-system:generic-garbage-collector";
/// More than enough for steps of which each is one of three.
const SEEDS: u64 = 3000;

/// A cluster with the namespaces `ns1` and `ns2`, whose collector has seen all there is and is paused.
async fn scene(seed: u64) -> (Stage, Cluster) {
    let stage = Stage::sim(seed);
    let Stage::Sim(cluster) = &stage else { unreachable!("it is the sim") };
    let cluster = cluster.clone();
    for name in ["ns1", "ns2"] {
        stage.create(NAMESPACES, json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})).await;
    }
    cluster.run_controllers();
    cluster.pause(Controller::GarbageCollector);
    (stage, cluster)
}

/// Takes these steps, with these calls, after which nothing is left to do. Returns the cluster, and how many nodes the
/// graph has more than at first.
async fn story(setup: impl AsyncFn(&Stage), steps: &[(&str, &[&str])]) -> (Cluster, usize) {
    let mut nearest = Vec::new();
    for seed in 0..SEEDS {
        let (stage, cluster) = scene(seed).await;
        let nodes = cluster.gc_nodes();
        setup(&stage).await;
        cluster.resume(Controller::GarbageCollector);
        let mut taken = Vec::new();
        let told = steps.iter().all(|(step, calls)| {
            cluster.clear_audit();
            let about = cluster.step().map(|step| step.about);
            taken.push(about.clone().unwrap_or_default());
            let as_told = about.as_deref() == Some(*step);
            if as_told {
                assert_eq!(calls_of(&cluster), *calls, "{step} after {taken:?}");
            }
            as_told
        });
        if told {
            let more = cluster.run_controllers();
            assert!(more.is_empty(), "{more:?}");
            return (cluster.clone(), cluster.gc_nodes() - nodes);
        }
        if taken.len() > nearest.len() {
            nearest = taken;
        }
    }
    panic!("it never happens; the nearest is {nearest:#?}");
}

/// The collector's calls; events have names that chance gives.
fn calls_of(cluster: &Cluster) -> Vec<String> {
    let lines = cluster.audit().by(COLLECTOR).lines().into_iter();
    lines
        .map(|line| if line.starts_with("create events") { line.rsplit_once('/').unwrap().0.to_owned() } else { line })
        .collect()
}

/// The messages of events.
fn events(cluster: &Cluster) -> Vec<String> {
    let of = |event: &Value| format!("{} {}", event["involvedObject"]["kind"], event["message"]).replace('"', "");
    cluster.objects("events").iter().map(|event| of(event)).collect()
}

async fn node(stage: &Stage, owners: &[Value]) -> Value {
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node", "ownerReferences": owners}});
    stage.create("/api/v1/nodes", node).await
}

async fn child(stage: &Stage, name: &str, owner: Value) -> Value {
    stage.create(&core("ns1", "pods"), pod(name, &[owner], &[])).await
}

async fn deployment(stage: &Stage) -> Value {
    let deployment = workload("apps/v1", "Deployment", "owner", &[], &[]);
    stage.create("/apis/apps/v1/namespaces/ns1/deployments", deployment).await
}

/// A reference with other coordinates.
fn bent(mut reference: Value, api_version: &str, kind: &str, name: &str) -> Value {
    reference["apiVersion"] = json!(api_version);
    reference["kind"] = json!(kind);
    reference["name"] = json!(name);
    reference
}

/// To an object that never was.
fn missing(api_version: &str, kind: &str) -> Value {
    json!({"apiVersion": api_version, "kind": kind, "name": "owner", "uid": "never"})
}

const CHILD: &str = "get pods/ns1/child";

#[tokio::test(start_paused = true)]
async fn good_child_of_a_cluster_scoped_owner() {
    let setup = async |stage: &Stage| {
        let node = node(stage, &[]).await;
        child(stage, "child", owner(&node, false)).await;
    };
    let (_, nodes) = story(
        setup,
        &[
            ("take in Pod ns1/child", &[]),
            // It is believed to be in the child's namespace.
            ("judge Node ns1/node", &["get nodes/node"]),
            ("take in Node /node", &[]),
        ],
    )
    .await;
    assert_eq!(nodes, 2);
}

#[tokio::test(start_paused = true)]
async fn bad_child_of_an_owner_in_another_namespace() {
    let setup = async |stage: &Stage| {
        let away = stage.create(&core("ns2", "configmaps"), map("owner", &[], &[])).await;
        child(stage, "child", owner(&away, false)).await;
    };
    let event = "Pod ownerRef [v1/ConfigMap, namespace: ns1, name: owner";
    let judged = ("judge Pod ns1/child", &[CHILD, "get configmaps/ns1/owner", "delete pods/ns1/child"][..]);
    let child_first =
        [("take in Pod ns1/child", &[][..]), ("take in ConfigMap ns2/owner", &["create events/ns1"][..]), judged];
    let owner_first =
        [("take in ConfigMap ns2/owner", &[][..]), ("take in Pod ns1/child", &["create events/ns1"][..]), judged];
    for steps in [child_first, owner_first] {
        let (cluster, nodes) = story(setup, &[&steps[..], &[("take in Pod ns1/child", &[])]].concat()).await;
        assert_eq!(nodes, 1, "the owner");
        let events = events(&cluster);
        assert!(matches!(&events[..], [only] if only.starts_with(event)), "{events:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn bad_cluster_scoped_child_of_a_namespaced_owner() {
    let setup = async |stage: &Stage| {
        let inside = stage.create(&core("ns1", "configmaps"), map("owner", &[], &[])).await;
        node(stage, &[owner(&inside, false)]).await;
    };
    let child_first = &[
        ("take in Node /node", &[][..]),
        // Without a namespace it can't be asked for, and is not asked for again.
        ("judge ConfigMap /owner", &[]),
        ("take in ConfigMap ns1/owner", &["create events/default"]),
        ("judge Node /node", &["get nodes/node"]),
    ][..];
    let owner_first = &[
        ("take in ConfigMap ns1/owner", &[][..]),
        ("take in Node /node", &["create events/default"]),
        ("judge Node /node", &["get nodes/node"]),
    ][..];
    for steps in [child_first, owner_first] {
        let (cluster, nodes) = story(setup, steps).await;
        assert_eq!(nodes, 2);
        let events = events(&cluster);
        let event = "Node ownerRef [v1/ConfigMap, namespace: , name: owner";
        assert!(matches!(&events[..], [only] if only.starts_with(event)), "{events:?}");
        assert_eq!(cluster.objects("nodes").len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn good_child_of_an_owner_by_a_version_that_is_not_preferred() {
    let setup = async |stage: &Stage| {
        let base = "/apis/rbac.example.com/v1/namespaces/ns1/roles";
        let mut crd = definition("rbac.example.com", "roles", "Role");
        let mut old = crd["spec"]["versions"][0].clone();
        old["name"] = json!("v1beta1");
        old["storage"] = json!(false);
        crd["spec"]["versions"].as_array_mut().unwrap().push(old);
        let Stage::Sim(cluster) = stage else { unreachable!("it is the sim") };
        cluster.install(&serde_json::from_value(crd).unwrap()).unwrap();
        // It is taken in before the story begins.
        while cluster.step_of(Controller::GarbageCollector).is_some() {}
        let role = json!({"apiVersion": "rbac.example.com/v1", "kind": "Role", "metadata": {"name": "owner"}});
        let role = stage.create(base, role).await;
        child(stage, "child", bent(owner(&role, false), "rbac.example.com/v1beta1", "Role", "owner")).await;
    };
    let steps = [
        ("take in Pod ns1/child", &[][..]),
        ("judge Role ns1/owner", &["get roles.rbac.example.com/ns1/owner"]),
        // Once seen it is not asked for any more, but the child is looked at, which gives another version.
        ("take in Role ns1/owner", &[]),
        ("judge Pod ns1/child", &[CHILD, "get roles.rbac.example.com/ns1/owner"]),
    ];
    let (cluster, _) = story(setup, &steps).await;
    assert_eq!(cluster.objects("pods").len(), 1);
    cluster.clear_audit();
    let roles = Stage::Sim(cluster.clone());
    roles.delete("/apis/rbac.example.com/v1/namespaces/ns1/roles/owner", "Background").await;
    cluster.run_controllers();
    assert!(cluster.objects("pods").is_empty());
    // Its absence is known by one version, and has to be asked for by the other.
    assert_eq!(
        cluster.audit().by(COLLECTOR).lines(),
        [CHILD, "get roles.rbac.example.com/ns1/owner", "delete pods/ns1/child"]
    );
}

#[tokio::test(start_paused = true)]
async fn child_of_an_existing_owner_by_a_version_that_is_not_served() {
    let setup = async |stage: &Stage| {
        let owning = deployment(stage).await;
        child(stage, "child", bent(owner(&owning, false), "extensions/v1beta1", "Deployment", "owner")).await;
    };
    let unresolved = "judge Pod ns1/child: no matches for kind Deployment in extensions/v1beta1";
    let child_first = &[
        ("take in Pod ns1/child", &[][..]),
        ("judge Deployment ns1/owner: extensions/v1beta1 Deployment is not served", &[]),
        ("take in Deployment ns1/owner", &[]),
        (unresolved, &[CHILD]),
    ][..];
    let owner_first =
        &[("take in Deployment ns1/owner", &[][..]), ("take in Pod ns1/child", &[]), (unresolved, &[CHILD])][..];
    for steps in [child_first, owner_first] {
        let (cluster, nodes) = story(setup, steps).await;
        assert_eq!(nodes, 2);
        // That the owner goes under another version proves nothing.
        let stage = Stage::Sim(cluster.clone());
        stage.delete("/apis/apps/v1/namespaces/ns1/deployments/owner", "Background").await;
        cluster.run_controllers();
        assert_eq!(cluster.objects("pods").len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn children_of_a_missing_owner_by_versions_of_which_one_is_not_served() {
    let setup = async |stage: &Stage| {
        child(stage, "child", missing("extensions/v1beta1", "Deployment")).await;
        child(stage, "other", missing("apps/v1", "Deployment")).await;
    };
    let unserved = "judge Deployment ns1/owner: extensions/v1beta1 Deployment is not served";
    let get_owner = "get deployments.apps/ns1/owner";
    let (cluster, nodes) = story(
        setup,
        &[
            ("take in Pod ns1/child", &[]),
            ("take in Pod ns1/other", &[]),
            (unserved, &[]),
            ("judge Pod ns1/other", &["get pods/ns1/other", get_owner, "delete pods/ns1/other"]),
            ("take in Pod ns1/other", &[]),
            // And again and again.
            (unserved, &[]),
        ],
    )
    .await;
    assert_eq!((cluster.objects("pods").len(), nodes), (1, 2));
    let other_first = async |stage: &Stage| {
        child(stage, "other", missing("apps/v1", "Deployment")).await;
        child(stage, "child", missing("extensions/v1beta1", "Deployment")).await;
    };
    let unresolved = "judge Pod ns1/child: no matches for kind Deployment in extensions/v1beta1";
    let (cluster, nodes) = story(
        other_first,
        &[
            ("take in Pod ns1/other", &[]),
            ("take in Pod ns1/child", &[]),
            ("judge Deployment ns1/owner", &[get_owner]),
            (unresolved, &["get pods/ns1/child"]),
            // The node takes the identity that the other child believes in.
            ("note that Deployment owner does not exist", &[]),
            ("judge Pod ns1/other", &["get pods/ns1/other", "delete pods/ns1/other"]),
            ("take in Pod ns1/other", &[]),
            (unresolved, &["get pods/ns1/child"]),
            (unserved, &[]),
        ],
    )
    .await;
    assert_eq!((cluster.objects("pods").len(), nodes), (1, 2));
}

/// A bad child of a Secret that never was, with the UID of a Deployment, and a good one.
async fn good_and_bad(stage: &Stage, order: [&str; 2]) {
    let right = owner(&deployment(stage).await, false);
    for name in order {
        let reference = if name == "bad" { bent(right.clone(), "v1", "Secret", "secret") } else { right.clone() };
        child(stage, name, reference).await;
    }
}

#[tokio::test(start_paused = true)]
async fn bad_child_by_the_wrong_kind_with_the_right_uid() {
    let get_owner = "get deployments.apps/ns1/owner";
    let bad_first = async |stage: &Stage| good_and_bad(stage, ["bad", "good"]).await;
    let begin = [
        ("take in Pod ns1/bad", &[][..]),
        ("take in Pod ns1/good", &[]),
        ("judge Secret ns1/secret", &["get secrets/ns1/secret"]),
        ("judge Pod ns1/good", &["get pods/ns1/good", get_owner]),
    ];
    let note = ("note that Secret secret does not exist", &[][..]);
    let seen = ("take in Deployment ns1/owner", &[][..]);
    // That the Secret does not exist is remembered. Once the owner is seen where it was believed, it is judged once more.
    let gone = [("judge Pod ns1/bad", &["get pods/ns1/bad", "delete pods/ns1/bad"][..]), ("take in Pod ns1/bad", &[])];
    let good_first = async |stage: &Stage| good_and_bad(stage, ["good", "bad"]).await;
    let of_good_first = [
        ("take in Pod ns1/good", &[][..]),
        ("take in Pod ns1/bad", &[]),
        ("judge Deployment ns1/owner", &[get_owner]),
        ("judge Pod ns1/bad", &["get pods/ns1/bad", "get secrets/ns1/secret", "delete pods/ns1/bad"]),
        ("take in Deployment ns1/owner", &[]),
        ("take in Pod ns1/bad", &[]),
        ("judge Deployment ns1/owner", &[get_owner]),
    ];
    let stories = [
        story(bad_first, &[&begin[..], &[note], &gone[..1], &[seen], &gone[1..], &of_good_first[6..]].concat()).await,
        story(bad_first, &[&begin[..], &[seen, note], &gone].concat()).await,
        story(good_first, &of_good_first).await,
    ];
    for (cluster, nodes) in stories {
        let left: Vec<_> = cluster.objects("pods").iter().map(|pod| pod["metadata"]["name"].clone()).collect();
        assert_eq!((left, nodes), (vec![json!("good")], 2), "{}", cluster.audit());
    }
}

#[tokio::test(start_paused = true)]
async fn cluster_scoped_bad_child_and_namespaced_good_child() {
    let reference = missing("v1", "ConfigMap");
    let both = async |stage: &Stage| {
        node(stage, from_ref(&reference)).await;
        child(stage, "child", reference.clone()).await;
    };
    let get_owner = "get configmaps/ns1/owner";
    let bad_first = [
        ("take in Node /node", &[][..]),
        ("take in Pod ns1/child", &[]),
        ("judge ConfigMap /owner", &[]),
        ("judge Pod ns1/child", &[CHILD, get_owner, "delete pods/ns1/child"]),
        ("take in Pod ns1/child", &[]),
    ];
    let good_first = [
        ("take in Pod ns1/child", &[][..]),
        ("take in Node /node", &[]),
        ("judge ConfigMap ns1/owner", &[get_owner]),
        ("judge Node /node", &["get nodes/node"]),
        ("note that ConfigMap owner does not exist", &[]),
        ("judge Pod ns1/child", &[CHILD, "delete pods/ns1/child"]),
        ("take in Pod ns1/child", &[]),
        ("judge ConfigMap /owner", &[]),
    ];
    for steps in [&bad_first[..], &good_first] {
        let (cluster, nodes) = story(both, steps).await;
        assert_eq!((cluster.objects("pods").len(), cluster.objects("nodes").len(), nodes), (0, 1, 2));
    }
    // The owner exists, and is seen late.
    let late = async |stage: &Stage| {
        let inside = stage.create(&core("ns1", "configmaps"), map("owner", &[], &[])).await;
        node(stage, &[owner(&inside, false)]).await;
        child(stage, "child", owner(&inside, false)).await;
    };
    let (cluster, nodes) = story(
        late,
        &[
            ("take in Node /node", &[]),
            ("take in Pod ns1/child", &[]),
            ("judge ConfigMap /owner", &[]),
            ("judge Pod ns1/child", &[CHILD, get_owner]),
            ("take in ConfigMap ns1/owner", &["create events/default"]),
            ("judge Node /node", &["get nodes/node"]),
        ],
    )
    .await;
    assert_eq!((cluster.objects("pods").len(), nodes), (1, 3));
}

#[tokio::test(start_paused = true)]
async fn attempt_to_delete_item() {
    let (stage, cluster) = scene(1).await;
    let item = child(&stage, "child", missing("v1", "ReplicationController")).await;
    cluster.resume(Controller::GarbageCollector);
    cluster.clear_audit();
    cluster.run_controllers();
    let audit = cluster.audit().by(COLLECTOR);
    assert_eq!(audit.lines(), ["get replicationcontrollers/ns1/owner", CHILD, "delete pods/ns1/child"]);
    let (uid, version) = (&item["metadata"]["uid"], &item["metadata"]["resourceVersion"]);
    assert_eq!(
        **audit.calls()[2].body.as_ref().unwrap(),
        json!({"propagationPolicy": "Background", "preconditions": {"uid": uid, "resourceVersion": version}})
    );
}

#[tokio::test(start_paused = true)]
async fn absent_owner_cache() {
    let (stage, cluster) = scene(1).await;
    for name in ["a", "b", "c"] {
        child(&stage, name, missing("v1", "ReplicationController")).await;
    }
    cluster.resume(Controller::GarbageCollector);
    cluster.clear_audit();
    cluster.run_controllers();
    let asked = cluster.audit().by(COLLECTOR).only(|call| call.target.plural == "replicationcontrollers");
    assert_eq!(asked.lines(), ["get replicationcontrollers/ns1/owner"], "once for all of them");
    assert!(cluster.objects("pods").is_empty());
}

#[tokio::test(start_paused = true)]
async fn orphan_dependents_failure() {
    let (stage, cluster) = scene(1).await;
    let owning = deployment(&stage).await;
    child(&stage, "child", owner(&owning, true)).await;
    cluster.resume(Controller::GarbageCollector);
    cluster.run_controllers();
    cluster.deny("keep", |review| (review.user == COLLECTOR && review.plural == "pods").then(|| "no".to_owned()));
    stage.delete("/apis/apps/v1/namespaces/ns1/deployments/owner", "Orphan").await;
    cluster.run_controllers();
    let held = cluster.object("deployments.apps", "ns1", "owner").unwrap();
    assert_eq!(held["metadata"]["finalizers"], json!(["orphan"]));
    cluster.lift("keep");
    cluster.run_controllers();
    assert!(cluster.object("deployments.apps", "ns1", "owner").is_none());
    assert!(cluster.object("pods", "ns1", "child").unwrap()["metadata"].get("ownerReferences").is_none());
}

#[tokio::test(start_paused = true)]
async fn unblock_owner_reference() {
    let (stage, cluster) = scene(1).await;
    let at = core("ns1", "configmaps");
    let one = stage.create(&at, map("one", &[], &[])).await;
    let two = stage.create(&at, map("two", &[owner(&one, true)], &["x.io/hold"])).await;
    stage.patch(&format!("{at}/one"), json!({"metadata": {"ownerReferences": [owner(&two, true)]}})).await;
    cluster.resume(Controller::GarbageCollector);
    cluster.run_controllers();
    cluster.clear_audit();
    stage.delete(&format!("{at}/one"), "Foreground").await;
    cluster.run_controllers();
    let patches = cluster.audit().by(COLLECTOR).only(|call| call.verb == Verb::Patch && call.target.name == "two");
    let first = &patches.calls()[0];
    assert_eq!(first.content_type, "application/strategic-merge-patch+json");
    assert_eq!(
        **first.body.as_ref().unwrap(),
        json!({"metadata": {"ownerReferences": [owner(&one, false)], "uid": two["metadata"]["uid"]}})
    );
    assert!(cluster.object("configmaps", "ns1", "one").is_none(), "what is held does not hold it");
    // The patch makes a new version, with other references than those that were judged: there is a conflict at first.
    let deletes = cluster.audit().by(COLLECTOR).only(|call| call.verb == Verb::Delete && call.target.name == "two");
    assert_eq!(deletes.calls().iter().map(|call| call.code).collect::<Vec<_>>(), [409, 200], "{}", cluster.audit());
}

/// Of `TestGarbageCollectorSync`: a group that fails does not end its monitors.
#[tokio::test(start_paused = true)]
async fn a_group_that_fails_is_still_watched() {
    let (stage, cluster) = scene(1).await;
    stage.create(CRDS, definition("part.example.com", "parts", "Part")).await;
    cluster.resume(Controller::GarbageCollector);
    cluster.run_controllers();
    cluster.hide_group("part.example.com");
    cluster.refresh_discovery();
    let part = json!({"apiVersion": "part.example.com/v1", "kind": "Part", "metadata": {"name": "owner"}});
    let part = stage.create("/apis/part.example.com/v1/namespaces/ns1/parts", part).await;
    child(&stage, "child", owner(&part, false)).await;
    cluster.run_controllers();
    assert!(cluster.gc_has_seen(part["metadata"]["uid"].as_str().unwrap()));
    stage.delete("/apis/part.example.com/v1/namespaces/ns1/parts/owner", "Background").await;
    cluster.run_controllers();
    // Its absence was seen, so that nobody has to ask a group that does not answer.
    assert!(cluster.objects("pods").is_empty());
}
