//! The target is out of reach: for a while, for good, or because of its credentials.

use control_plane::{Part, fixtures};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::DeleteParams;
use kube_custody::{force::Allowed, inventory::Inventory, status};

use super::*;

/// The scenario's core, and cluster-api #8209: everything at home is deleted at the same moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c14_credentials_are_held_until_the_children_behind_them_are_proven_gone() {
    let plane = remote().await;
    let mut vc = Vcluster::applied("vc-held", plane).await;
    let home = vc.scene.admin.clone();
    assert_eq!(vc.present(plane).await, [true; 3]);
    assert_eq!(vc.scene.present(&vc.set).await, [false; 3], "nothing of it is at home");
    assert_eq!(vc.scene.inventory().await.cluster, id_of(plane).await);
    let hold = vc.secrets().get(SECRET).await.unwrap().finalizers().to_vec();
    assert!(hold.iter().any(|f| f.starts_with(&format!("{MANAGER}/hold-"))), "{hold:?}");

    // Something at the remote cluster takes its time.
    let leaf = vc.set[2].clone();
    patch(&plane.client(), &leaf, json!({"metadata": {"finalizers": ["x.example.com/slow"]}})).await;
    vc.scene.delete().await;
    vc.secrets().delete(SECRET, &DeleteParams::default()).await.unwrap();
    let namespaces = Api::<Namespace>::all(home.clone());
    namespaces.delete(&vc.scene.ns, &DeleteParams::default()).await.unwrap();

    let waits = vc.scene.until("the leaf is waited for", &vc.set, |o| blocker(o, "leaf").is_some()).await;
    assert_eq!(waits.phase, Phase::Deleting);
    vc.restart();
    // The namespace controller has deleted what it can by now.
    fixtures::eventually("the namespace's content is being deleted", async || {
        let namespace = namespaces.get(&vc.scene.ns).await.unwrap();
        let conditions = namespace.status?.conditions?;
        conditions.iter().any(|c| c.type_ == "NamespaceFinalizersRemaining" && c.status == "True").then_some(())
    })
    .await;
    assert!(vc.secrets().get(SECRET).await.unwrap().metadata.deletion_timestamp.is_some());
    assert_eq!(vc.pass().await.phase, Phase::Deleting);
    assert_eq!(vc.present(plane).await, [true, true, true]);

    patch(&plane.client(), &leaf, json!({"metadata": {"finalizers": null}})).await;
    vc.finish().await;
    assert_eq!(vc.present(plane).await[1..], [false; 2]);
    fixtures::gone(vc.secrets(), SECRET).await;
    fixtures::gone(namespaces, &vc.scene.ns).await;
    let order = deletions(&vc.log);
    assert_eq!(order.len(), 3, "each once: {order:?}");
    assert_before(
        &order,
        &format!("configmaps/{}-there/leaf", vc.scene.ns),
        &format!("clusterroles/base-{}", vc.scene.ns),
    );
}

/// The API server of the target stops in the middle of a teardown.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_of_the_target_is_waited_for() {
    let plane = Plane::builder().start().await.unwrap();
    let mut vc = Vcluster::applied("vc-outage", &plane).await;
    let leaf = vc.set[2].clone();
    patch(&plane.client(), &leaf, json!({"metadata": {"finalizers": ["x.example.com/slow"]}})).await;

    plane.kill(Part::Apiserver).await.unwrap();
    // While the parent lives, too.
    assert!(matches!(vc.held().await, Hold::TargetUnavailable { .. }));
    plane.start_part(Part::Apiserver).await.unwrap();
    vc.scene.until("the target is back", &vc.set, |o| o.phase == Phase::Applied).await;

    vc.scene.delete().await;
    vc.scene.until("the leaf is waited for", &vc.set, |o| blocker(o, "leaf").is_some()).await;
    plane.kill(Part::Apiserver).await.unwrap();
    for round in 0..3 {
        let outcome = vc.pass().await;
        assert!(matches!(outcome.phase, Phase::Held(Hold::TargetUnavailable { .. })), "{outcome:#?}");
        let now = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH);
        let conditions = status::conditions(&outcome, &[], None, &now).unwrap();
        let said = |kind: &str| conditions.iter().find(|c| c.type_ == kind).map(|c| c.status.as_str()).unwrap();
        assert_eq!((said(status::RECONCILING), said(status::STALLED)), ("True", "False"));
        assert!(conditions.iter().all(|c| c.reason == "TargetUnavailable"), "{conditions:#?}");
        assert!(!vc.parent_is_gone().await);
        assert_eq!(vc.scene.recorded().await.len(), 3, "nothing is forgotten");
        if round == 1 {
            vc.restart();
        }
    }
    plane.start_part(Part::Apiserver).await.unwrap();
    vc.scene.until("the target is back", &vc.set, |o| o.phase == Phase::Deleting).await;
    patch(&plane.client(), &leaf, json!({"metadata": {"finalizers": null}})).await;
    vc.finish().await;
    assert_eq!(vc.present(&plane).await[1..], [false; 2]);
}

/// Whatever is wrong with the credentials, the parent waits, and nothing of them is quoted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credentials_that_do_not_work_are_named_and_waited_for() {
    let plane = remote().await;
    let vc = Vcluster::applied("vc-creds", plane).await;
    let good = kubeconfig(plane);
    let text = String::from_utf8(good.clone()).unwrap();
    let unauthorized = text.replace("token: ", "token: hunter2");
    let run = format!("{text}- name: x\n  user: {{exec: {{command: /bin/hunter2}}}}\n");
    let nowhere = text.replace(&plane.server().replace("https://", ""), "127.0.0.1:1");
    for deleting in [false, true] {
        if deleting {
            vc.scene.delete().await;
        }
        for (content, said) in [
            (unauthorized.as_str(), "401"),
            (run.as_str(), "uses exec"),
            ("hunter2", "is not a kubeconfig"),
            (nowhere.as_str(), "no answer"),
        ] {
            assert_ne!(content, text);
            vc.point_to(content.as_bytes()).await;
            let Hold::TargetUnavailable { words } = vc.held().await else { panic!("{said}") };
            assert!(words.contains(said) && !words.contains("hunter2"), "{said}: {words}");
        }
        let lost = json!({"data": null});
        vc.secrets().patch(SECRET, &PatchParams::default(), &Patch::Merge(lost)).await.unwrap();
        assert!(matches!(vc.held().await, Hold::TargetUnavailable { words } if words.contains("no key \"value\"")));
        // By force: the hold is taken off.
        let home = vc.scene.admin.clone();
        let secret = object(
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET, "namespace": vc.scene.ns}}),
        );
        patch(&home, &secret, json!({"metadata": {"finalizers": null}})).await;
        remove(&home, &secret).await;
        assert!(matches!(vc.held().await, Hold::TargetUnavailable { words } if words.contains("404 NotFound")));
        assert_eq!(vc.present(plane).await, [true; 3]);
        create(&home, &secret).await;
        vc.point_to(&good).await;
        if !deleting {
            vc.scene.apply(&vc.set).await;
        }
    }
    vc.finish().await;
    assert_eq!(vc.present(plane).await[1..], [false; 2]);
}

/// A parent that has nothing in the cluster that cannot be reached does not wait for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parent_that_never_had_children_needs_no_target_to_go() {
    let vc = Vcluster::new("vc-never", remote().await).await;
    vc.point_to(b"none").await;
    assert!(matches!(vc.held().await, Hold::TargetUnavailable { .. }));
    // A crash after the first step of a first reconcile.
    let finalizers = json!({"metadata": {"finalizers": [format!("{MANAGER}/custody")]}});
    let track = Api::<GitTrack>::namespaced(vc.scene.admin.clone(), &vc.scene.ns);
    track.patch("track", &PatchParams::default(), &Patch::Merge(finalizers)).await.unwrap();
    vc.scene.delete().await;
    vc.finish().await;
}

/// A record that somebody emptied is no reason to forget what is in a cluster that cannot be reached.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emptied_record_does_not_spare_the_way_to_the_target() {
    let plane = remote().await;
    let mut vc = Vcluster::applied("vc-emptied", plane).await;
    let all = |inventory: &mut Inventory| {
        let all: Vec<_> = inventory.entries().map(|e| e.id.clone()).collect();
        all.iter().for_each(|id| drop(inventory.remove(id)));
    };
    vc.scene.meddle(all).await;
    vc.point_to(b"none").await;
    vc.restart();
    vc.scene.delete().await;
    assert!(matches!(vc.held().await, Hold::TargetUnavailable { .. }));
    assert!(vc.pass().await.notes.iter().any(|note| note.contains("nothing is on record")));
    assert!(!vc.parent_is_gone().await);
    vc.point_to(&kubeconfig(plane)).await;
    vc.finish().await;
    assert_eq!(vc.present(plane).await, [false; 3]);
}

/// argo-cd #19571: the target cluster is gone for good, and somebody decides so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c47_a_cluster_that_is_gone_for_good_is_given_up_with_all_finalizers_together() {
    let plane = remote().await;
    let vc = Vcluster::applied("vc-gone", plane).await;
    let text = String::from_utf8(kubeconfig(plane)).unwrap();
    vc.point_to(text.replace(&plane.server().replace("https://", ""), "127.0.0.1:1").as_bytes()).await;
    vc.scene.delete().await;
    assert!(matches!(vc.held().await, Hold::TargetUnavailable { .. }));
    assert!(!vc.parent_is_gone().await);

    assert_eq!(vc.scene.custodian.abandon_all(&vc.scene.track).await.unwrap(), 3);
    assert_eq!(vc.scene.custodian.abandon_all(&vc.scene.track).await.unwrap(), 0, "decided already");
    vc.log.clear();
    vc.finish().await;
    assert_eq!(vc.writes(), Vec::<String>::new());
    let secret = vc.secrets().get(SECRET).await.unwrap();
    assert_eq!(secret.finalizers(), Vec::<String>::new(), "nothing holds it any more");
    assert_eq!(vc.present(plane).await, [true; 3], "given up is not deleted");
}

/// The same decision as a request on the parent, as far as the author admits it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c47_a_request_gives_up_what_cannot_be_reached() {
    let plane = remote().await;
    let kinds = ["Namespace", "ClusterRole.rbac.authorization.k8s.io", "ConfigMap"];
    let allowed = || kinds.iter().fold(Allowed::nothing(), |all, kind| all.abandon(kind.parse().unwrap()));
    let vc = Vcluster::with("vc-force", plane, |b| b.force(allowed())).await;
    vc.scene.apply(&vc.set).await;
    vc.point_to(b"none").await;
    vc.scene.delete().await;
    assert!(matches!(vc.held().await, Hold::TargetUnavailable { .. }));

    let inventory = vc.scene.inventory().await;
    let named: Vec<_> = inventory.entries().map(|e| json!({"object": e.id.to_string(), "uid": e.uid})).collect();
    let tracks = Api::<GitTrack>::namespaced(vc.scene.admin.clone(), &vc.scene.ns);
    let request = async |abandon: &[serde_json::Value]| {
        let uid = vc.scene.track.metadata.uid.clone();
        let text = json!({"uid": uid, "reason": "the cluster burnt down", "abandon": abandon}).to_string();
        let patch = json!({"metadata": {"annotations": {format!("{MANAGER}/force"): text}}});
        tracks.patch("track", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    };
    request(&named[1..]).await;
    let outcome = vc.pass().await;
    assert_eq!(outcome.forced.len(), 2, "{outcome:#?}");
    assert!(matches!(vc.held().await, Hold::TargetUnavailable { .. }), "one is left");
    request(&named).await;
    let outcome = vc.pass().await;
    assert_eq!((&outcome.phase, outcome.forced.len()), (&Phase::Released, 1), "{outcome:#?}");
    assert!(vc.parent_is_gone().await);
    assert_eq!(vc.present(plane).await, [true; 3]);
}
