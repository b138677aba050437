//! Several parents, several targets.

use control_plane::fixtures;
use kube_custody::{
    custodian::uninstall::{Breadth, Uninstall},
    object::ParentRef,
    ownership::proxy::{ClusterGitTrackOwner, GitTrackOwner, ProxyOwners},
};

use super::*;

/// Children of the same names in two clusters, and one parent at home: each is torn down where it lives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_parents_with_two_targets_do_not_meet() {
    let (plane, other) = (remote().await, third().await);
    let (mut a, b) = (Vcluster::new("vc-two", plane).await, Vcluster::new("vc-two", other).await);
    a.set = children("vc-two-same");
    let set = a.set.clone();
    // One custodian for both.
    tokio::join!(settle(&a.scene.custodian, &a.scene.admin, &a.scene.track, &set), async {
        settle(&a.scene.custodian, &a.scene.admin, &b.scene.track, &set).await
    });
    for plane in [plane, other] {
        assert_eq!(a.present(plane).await, [true; 3]);
    }
    delete(&a.scene.admin, &b.scene.track).await;
    settle_deleted(&a.scene.custodian, &a.scene.admin, &b.scene.track, &set).await;
    assert_eq!(a.present(other).await[1..], [false; 2]);
    assert_eq!(a.present(plane).await, [true; 3]);
    a.scene.delete().await;
    a.finish().await;
    assert_eq!(a.present(plane).await[1..], [false; 2]);
}

/// Parents with the same target share its watches, also after its credentials were rotated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parents_with_one_target_share_watches_and_new_credentials() {
    let plane = remote().await;
    let vc = Vcluster::applied("vc-share", plane).await;
    let watches = vc.log.open_watches();
    assert!(watches > 0);
    let second = parent(&vc.scene.admin, &vc.scene.ns, "second").await;
    let more = [config_map("default", &format!("more-{}", vc.scene.ns), &[])];
    let outcome = settle(&vc.scene.custodian, &vc.scene.admin, &second, &more).await;
    assert_eq!(outcome.phase, Phase::Applied, "{outcome:#?}");
    assert_eq!(vc.log.open_watches(), watches);

    // The new credentials may do nothing but say which cluster it is.
    let config = fixtures::service_account_config(plane, "default", "weak").await;
    let grant = fixtures::grant(
        &plane.client(),
        &fixtures::Subject::service_account("default", "weak"),
        None,
        vec![fixtures::rule("", &["namespaces"], &["get"])],
    )
    .await;
    let token = secrecy_of(&config);
    let text = String::from_utf8(kubeconfig(plane)).unwrap();
    let at = text.find("token: ").unwrap() + "token: ".len();
    let end = at + text[at..].find('\n').unwrap();
    let rotated = format!("{}{token}{}", &text[..at], &text[end..]);
    vc.point_to(rotated.as_bytes()).await;
    delete(&vc.scene.admin, &second).await;
    let outcome = fixtures::eventually("the new credentials are refused", async || {
        let live = reload(&vc.scene.admin, &second).await?;
        let outcome = reconcile(&vc.scene.custodian, &live, &more).await;
        (!outcome.removal.blockers.is_empty()).then_some(outcome)
    })
    .await;
    assert!(
        outcome.removal.blockers.iter().all(|b| b.reason == kube_custody::teardown::Reason::Forbidden),
        "{outcome:#?}"
    );
    fixtures::eventually("the watches of the old credentials end", async || (vc.log.open_watches() == 0).then_some(()))
        .await;

    grant.revoke(&plane.client()).await;
    vc.point_to(text.as_bytes()).await;
    settle_deleted(&vc.scene.custodian, &vc.scene.admin, &second, &more).await;
    vc.scene.delete().await;
    vc.finish().await;
    fixtures::eventually("nobody uses the target any more", async || (vc.log.open_watches() == 0).then_some(())).await;
}

fn secrecy_of(config: &kube::Config) -> String {
    let info = serde_json::to_value(&config.auth_info).unwrap();
    info["token"].as_str().unwrap().to_owned()
}

/// A change over there wakes the parent at home, by a stream that is older than the target.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn children_elsewhere_wake_their_parent() {
    use futures::StreamExt;

    let plane = remote().await;
    let vc = Vcluster::new("vc-wake", plane).await;
    let mut wakeups = Box::pin(vc.scene.custodian.wakeups());
    vc.scene.apply(&vc.set).await;
    patch(&plane.client(), &vc.set[2], json!({"data": {"a": "2"}})).await;
    let uid = ParentRef::of(&vc.scene.track).unwrap().uid;
    let woken = tokio::time::timeout(fixtures::PATIENCE, async { while wakeups.next().await.unwrap().uid != uid {} });
    woken.await.unwrap();
    vc.scene.delete().await;
    vc.finish().await;
}

/// Proxies in another cluster name the parent together with its cluster, and refer to nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proxies_elsewhere_name_the_home_cluster() {
    let plane = remote().await;
    for crd in <(GitTrackOwner, ClusterGitTrackOwner)>::crds() {
        fixtures::apply_crd(&plane.client(), &crd).await;
    }
    let client = plane.client();
    let hook = move |_| std::future::ready(Ok(Target::remote("proxied", client.clone()).proxies(true)));
    let scene = Scene::with("vc-proxy", |b| b.target(hook)).await;
    let set = children(&scene.ns);
    scene.apply(&set).await;
    let (spaced, wide) = live_proxies(&plane.client(), &scene.track).await;
    assert_eq!((spaced.len(), wide.len()), (1, 1));
    let home = id_of(Plane::shared().await).await;
    assert_eq!((&spaced[0].spec.parent.cluster, &wide[0].spec.parent.cluster), (&home, &home));
    assert!(spaced[0].metadata.owner_references.is_none() && wide[0].metadata.owner_references.is_none());
    assert_eq!(live_proxies(&scene.admin, &scene.track).await, (vec![], vec![]), "none at home");
    scene.tear_down().await;
    assert_eq!(live_proxies(&plane.client(), &scene.track).await, (vec![], vec![]));
}

/// The target is the home of another installation of the same operator, which is uninstalled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c51_an_uninstall_in_the_target_leaves_what_belongs_to_another_home() {
    let plane = remote().await;
    let vc = Vcluster::applied("vc-uninstall", plane).await;
    let there = plane.client();
    install(&there).await;
    let resident = builder(there.clone()).build().unwrap();
    let before = vc.set.iter().map(async |object| live(&there, object).await.unwrap().metadata.resource_version);
    let before = futures::future::join_all(before).await;
    let done = resident.uninstall(&Uninstall::release()).await.unwrap();
    assert!(!done.left.iter().any(|left| vc.set.iter().any(|o| o.name_any() == left.id.name())), "{done:#?}");
    let after = vc.set.iter().map(async |object| live(&there, object).await.unwrap().metadata.resource_version);
    assert_eq!(futures::future::join_all(after).await, before);
    let found = resident.scan(Breadth::Labelled).await.findings;
    let away = found.iter().find(|f| f.object.id.name() == vc.set[0].name_any()).unwrap();
    assert_eq!(away.home, Some(id_of(Plane::shared().await).await), "{away}");
    vc.scene.delete().await;
    vc.finish().await;
    assert_eq!(vc.present(plane).await[1..], [false; 2]);
}
