//! Proxies that are lost while their parent lives.

use std::collections::BTreeSet;

use control_plane::{
    Part, Plane,
    audit::{AuditLog, Call, Verb},
    fixtures,
};
use k8s_openapi::{
    api::core::v1::Namespace, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, CustomResourceExt, ResourceExt,
    api::{DeleteParams, DynamicObject, PropagationPolicy},
};
use kube_custody::{
    custodian::{Custodian, Outcome, Phase, Problem, Watch},
    ownership::proxy::{ClusterGitTrackOwner, GitTrackOwner, ProxyOwners, References},
};
use serde_json::json;

use crate::world::*;

const POLICIES: [PropagationPolicy; 3] =
    [PropagationPolicy::Background, PropagationPolicy::Foreground, PropagationPolicy::Orphan];

/// A parent in a namespace with two children in another one, the second of which refers to the proxy there.
struct Scene {
    admin: Client,
    log: AuditLog,
    custodian: Custodian<GitTrack>,
    other: String,
    track: GitTrack,
    desired: Vec<DynamicObject>,
}

impl Scene {
    async fn applied(plane: &Plane, options: impl FnOnce(Build) -> Build) -> Self {
        let admin = plane.client();
        install(&admin).await;
        let [home, other] = [new_namespace(&admin, "proxies").await, new_namespace(&admin, "proxies-other").await];
        let (operator, log) = plane.audited("admin");
        let custodian = options(builder(operator)).build().unwrap();
        let desired = vec![
            config_map(&home, "near", &[]),
            config_map(&other, "base", &[]),
            config_map(&other, "leaf", &[&format!("/namespaces/{other}/ConfigMap/base")]),
        ];
        let track = parent(&admin, &home, "track").await;
        let scene = Self { admin, log, custodian, other, track, desired };
        let outcome = scene.settle().await;
        assert_eq!(outcome.phase, Phase::Applied, "{outcome:#?}");
        scene
    }

    async fn settle(&self) -> Outcome {
        settle(&self.custodian, &self.admin, &self.track, &self.desired).await
    }

    async fn reconcile(&self) -> Outcome {
        reconcile(&self.custodian, &reload(&self.admin, &self.track).await.unwrap(), &self.desired).await
    }

    fn proxies(&self) -> Api<GitTrackOwner> {
        Api::namespaced(self.admin.clone(), &self.other)
    }

    /// The only proxy in the other namespace.
    async fn proxy(&self) -> GitTrackOwner {
        let (spaced, _) = live_proxies(&self.admin, &self.track).await;
        let mut here: Vec<_> = spaced.into_iter().filter(|p| p.namespace().as_ref() == Some(&self.other)).collect();
        assert_eq!(here.len(), 1, "{here:#?}");
        here.pop().unwrap()
    }

    async fn lose(&self, proxy: &GitTrackOwner, policy: &PropagationPolicy) {
        let params = DeleteParams { propagation_policy: Some(policy.clone()), ..DeleteParams::default() };
        self.proxies().delete(&proxy.name_any(), &params).await.unwrap();
    }

    /// UIDs that the leaf refers to.
    async fn owners(&self) -> Vec<String> {
        let leaf = live(&self.admin, self.desired.last().unwrap()).await.unwrap();
        leaf.owner_references().iter().map(|r| r.uid.clone()).collect()
    }

    /// Everything is as it should be, and the proxy is another one than `lost`.
    async fn assert_replaced(&self, lost: &GitTrackOwner) -> GitTrackOwner {
        let proxy = self.proxy().await;
        assert_ne!(proxy.uid(), lost.uid());
        assert!(proxy.metadata.deletion_timestamp.is_none());
        assert_eq!(self.owners().await, [proxy.uid().unwrap()]);
        for child in &self.desired {
            let child = live(&self.admin, child).await.unwrap();
            assert!(child.metadata.deletion_timestamp.is_none());
        }
        proxy
    }

    async fn end(self) {
        delete(&self.admin, &self.track).await;
        settle_deleted(&self.custodian, &self.admin, &self.track, &self.desired).await;
        assert!(live_proxies(&self.admin, &self.track).await.0.is_empty());
    }
}

type Build = kube_custody::custodian::Builder<GitTrack>;

fn plain(builder: Build) -> Build {
    builder
}

fn without_watches(builder: Build) -> Build {
    builder.watch(Watch::Off)
}

/// Reconciles once more after the proxy was lost, and checks the order of what is sent.
async fn replaced_under_another_name(options: fn(Build) -> Build) {
    let mut scene = Scene::applied(Plane::shared().await, options).await;
    for policy in POLICIES {
        let lost = scene.proxy().await;
        let base = live(&scene.admin, &scene.desired[1]).await.unwrap().uid();
        let leaf = live(&scene.admin, &scene.desired[2]).await.unwrap().uid();
        scene.log.clear();
        // Else the cascade may run before the garbage collector has seen the child's new reference.
        let plane = Plane::shared().await;
        let (owned, owner) = (leaf.clone().unwrap(), lost.uid().unwrap());
        fixtures::eventually("the garbage collector knows the reference", async || {
            plane.graph_links(&owned, &owner).await.unwrap().then_some(())
        })
        .await;
        plane.gc_quiet().await.unwrap();
        scene.lose(&lost, &policy).await;
        if policy == PropagationPolicy::Foreground {
            let leaf = scene.desired[2].clone();
            fixtures::eventually("the cascade takes the child", async || {
                (!exists(&scene.admin, &leaf).await).then_some(())
            })
            .await;
        }
        Plane::shared().await.gc_quiet().await.unwrap();
        let mut notes = Vec::new();
        let outcome = loop {
            let outcome = scene.reconcile().await;
            notes.extend(outcome.notes.clone());
            if outcome.phase == Phase::Applied {
                break outcome;
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        };
        assert!(outcome.unapplied.is_empty());
        let fresh = scene.assert_replaced(&lost).await;
        assert_ne!(fresh.name_any(), lost.name_any());
        assert!(notes.iter().any(|n| n.contains(&lost.name_any()) && n.contains("is being deleted")), "{notes:#?}");

        let now = live(&scene.admin, &scene.desired[2]).await.unwrap().uid();
        let recreated = notes.iter().any(|n| n.contains("leaf was gone and has been created again"));
        assert_eq!(recreated, policy == PropagationPolicy::Foreground, "{notes:#?}");
        assert_eq!(now != leaf, recreated, "{policy:?}");
        assert_eq!(live(&scene.admin, &scene.desired[1]).await.unwrap().uid(), base, "{policy:?}");

        // Released only after the child refers to the new one.
        let calls = scene.log.calls_where(|c| c.effective && c.code.is_some());
        let of = |name: &str, verbs: &[Verb]| {
            calls
                .iter()
                .position(|c| verbs.contains(&c.verb) && c.name() == Some(name))
                .unwrap_or_else(|| panic!("{name}"))
        };
        let replaced = of(&fresh.name_any(), &[Verb::Create]);
        let reparented = of("leaf", &[Verb::Patch, Verb::Create]);
        let released = of(&lost.name_any(), &[Verb::Patch]);
        assert!(replaced < reparented && reparented < released, "{policy:?}: {}", scene.log);
    }
    scene.desired.truncate(2);
    assert_eq!(scene.settle().await.phase, Phase::Applied);
    assert!(scene.owners().await.len() == 1, "the base became a leaf");
    scene.end().await;
}

#[tokio::test]
async fn a_proxy_deleted_by_hand_is_replaced_and_its_children_re_parented() {
    replaced_under_another_name(plain).await;
}

#[tokio::test]
async fn a_lost_proxy_is_noticed_without_watches() {
    replaced_under_another_name(without_watches).await;
}

#[tokio::test]
async fn a_lost_proxy_is_not_released_while_a_child_refers_to_it() {
    // With references on all children, an early release would let the garbage collector break the order.
    let scene = Scene::applied(Plane::shared().await, |b| b.references(References::All)).await;
    let lost = scene.proxy().await;
    // Nothing may be written to the child for a while, so it cannot be re-parented.
    scene.log.on_call(|call| match (call.verb, call.name()) {
        (Verb::Patch, Some("base")) => {
            control_plane::audit::Fault::Fail(control_plane::audit::Refusal::status(500, "InternalError", "no"))
        }
        _ => control_plane::audit::Fault::Pass,
    });
    scene.lose(&lost, &PropagationPolicy::Background).await;
    for _ in 0..3 {
        let outcome = scene.reconcile().await;
        assert_eq!(outcome.phase, Phase::Progressing, "{outcome:#?}");
        let held = scene.proxies().get(&lost.name_any()).await.unwrap();
        assert!(held.finalizers().iter().any(|f| f.contains(MANAGER)), "{held:#?}");
    }
    // Nor when the parent goes in this state: the base goes before the proxy that it refers to.
    delete(&scene.admin, &scene.track).await;
    let Scene { custodian, admin, track, desired, .. } = &scene;
    settle_deleted(custodian, admin, track, desired).await;
    let order = deletions(&scene.log);
    let at = |name: &str| order.iter().position(|d| d.ends_with(name)).unwrap_or_else(|| panic!("{name}: {order:?}"));
    assert!(at("/leaf") < at("/base"), "{order:?}");
    let first = |verb: Verb, name: &str| {
        let there = |call: &Call| call.target.namespace.as_ref() == Some(&scene.other) && call.name() == Some(name);
        scene.log.calls_where(|c| c.effective && c.verb == verb && there(c))[0].seq
    };
    assert!(first(Verb::Delete, "base") < first(Verb::Patch, &lost.name_any()), "{}", scene.log);
}

#[tokio::test]
async fn a_child_that_stays_although_it_is_not_desired_does_not_hold_a_lost_proxy() {
    let mut scene = Scene::applied(Plane::shared().await, |b| b.prune(false)).await;
    let lost = scene.proxy().await;
    let dropped = scene.desired.pop().unwrap();
    let outcome = scene.settle().await;
    assert_eq!(outcome.phase, Phase::Applied, "{outcome:#?}");
    scene.lose(&lost, &PropagationPolicy::Background).await;
    fixtures::eventually("the lost proxy is released", async || {
        scene.reconcile().await;
        scene.proxies().get_opt(&lost.name_any()).await.unwrap().is_none().then_some(())
    })
    .await;
    Plane::shared().await.gc_quiet().await.unwrap();
    let kept = live(&scene.admin, &dropped).await.expect("not collected");
    assert!(kept.owner_references().is_empty());
    scene.end().await;
    assert!(!exists(&client().await, &dropped).await);
}

#[tokio::test]
async fn an_unguarded_proxy_goes_at_once_and_comes_back() {
    let scene = Scene::applied(Plane::shared().await, |b| b.guard_proxies_elsewhere(false)).await;
    let (all, _) = live_proxies(&scene.admin, &scene.track).await;
    for proxy in all {
        assert_eq!(proxy.finalizers().is_empty(), proxy.namespace().as_ref() == Some(&scene.other), "{proxy:#?}");
    }
    for policy in POLICIES {
        let lost = scene.proxy().await;
        scene.lose(&lost, &policy).await;
        Plane::shared().await.gc_quiet().await.unwrap();
        let outcome = scene.settle().await;
        assert_eq!(outcome.phase, Phase::Applied, "{outcome:#?}");
        scene.assert_replaced(&lost).await;
    }
    scene.end().await;
}

#[tokio::test]
async fn a_childs_namespace_may_go_while_the_parent_lives() {
    namespace_goes(plain, true).await;
}

#[tokio::test]
async fn a_childs_namespace_may_go_without_watches_and_pruning() {
    namespace_goes(|b| b.watch(Watch::Off).prune(false), true).await;
}

#[tokio::test]
async fn a_childs_namespace_may_go_with_unguarded_proxies() {
    namespace_goes(|b| b.guard_proxies_elsewhere(false), false).await;
}

async fn namespace_goes(options: fn(Build) -> Build, guarded: bool) {
    let mut scene = Scene::applied(Plane::shared().await, options).await;
    let namespaces = Api::<Namespace>::all(scene.admin.clone());
    if guarded {
        // A child that somebody holds: the proxy waits for it.
        let hold = json!({"metadata": {"finalizers": ["somebody.example.com/holds"]}});
        patch(&scene.admin, &scene.desired[1], hold).await;
    }
    namespaces.delete(&scene.other, &DeleteParams::default()).await.unwrap();
    let late = config_map(&scene.track.namespace().unwrap(), "late", &[]);
    scene.desired.push(late.clone());
    let closing = |outcome: &Outcome| {
        let there = |u: &&kube_custody::custodian::Unapplied| u.problem == Problem::NamespaceTerminating;
        outcome.unapplied.iter().filter(there).map(|u| u.id.clone()).collect::<BTreeSet<_>>()
    };
    if guarded {
        fixtures::eventually("the namespace controller reaches the proxy", async || {
            let outcome = scene.reconcile().await;
            let missing = closing(&outcome).contains(&id(&format!("ConfigMap {}/leaf", scene.other)));
            let proxies = scene.proxies().list(&Default::default()).await.unwrap().items;
            let terminating = proxies.iter().any(|p| p.metadata.deletion_timestamp.is_some());
            (missing && terminating).then_some(())
        })
        .await;
        for _ in 0..2 {
            let outcome = scene.reconcile().await;
            let proxies = scene.proxies().list(&Default::default()).await.unwrap().items;
            assert_eq!(proxies.len(), 1, "held while an entry lives: {outcome:#?}");
            assert!(outcome.unapplied.iter().all(|u| u.problem == Problem::NamespaceTerminating), "{outcome:#?}");
        }
        patch(&scene.admin, &scene.desired[1], json!({"metadata": {"finalizers": null}})).await;
    }
    fixtures::eventually("the namespace goes although the parent lives", async || {
        scene.reconcile().await;
        namespaces.get_opt(&scene.other).await.unwrap().is_none().then_some(())
    })
    .await;
    assert!(exists(&scene.admin, &late).await, "the rest goes on");

    // It comes back: everything in it does, too.
    create(&scene.admin, &namespace(&scene.other)).await;
    let outcome = fixtures::eventually("everything is back", async || {
        let outcome = scene.reconcile().await;
        (outcome.phase == Phase::Applied).then_some(outcome)
    })
    .await;
    assert!(outcome.unapplied.is_empty());
    for child in &scene.desired {
        assert!(exists(&scene.admin, child).await);
    }
    let proxy = scene.proxy().await;
    let leaf = live(&scene.admin, &scene.desired[2]).await.unwrap();
    assert_eq!(leaf.owner_references()[0].uid, proxy.uid().unwrap());
    scene.end().await;
}

#[tokio::test]
async fn a_namespace_of_the_set_may_be_deleted_by_hand() {
    let mut scene = Scene::applied(Plane::shared().await, plain).await;
    let name = fixtures::ns("proxies-own");
    scene.desired.extend([namespace(&name), config_map(&name, "inside", &[])]);
    assert_eq!(scene.settle().await.phase, Phase::Applied);
    let namespaces = Api::<Namespace>::all(scene.admin.clone());
    let before = namespaces.get(&name).await.unwrap().uid();
    namespaces.delete(&name, &DeleteParams::default()).await.unwrap();
    fixtures::eventually("it goes and comes back with what is in it", async || {
        let outcome = scene.reconcile().await;
        let now = namespaces.get_opt(&name).await.unwrap().and_then(|n| n.uid());
        (outcome.phase == Phase::Applied && now.is_some() && now != before).then_some(())
    })
    .await;
    assert!(exists(&scene.admin, scene.desired.last().unwrap()).await);
    scene.end().await;
}

#[tokio::test]
async fn while_the_proxies_definition_is_gone_work_goes_on_without_proxies() {
    let plane = Plane::builder().start().await.unwrap();
    for options in [plain, without_watches] {
        let mut scene = Scene::applied(&plane, options).await;
        let uid = live(&scene.admin, &scene.desired[2]).await.unwrap().uid();
        let definitions = Api::<CustomResourceDefinition>::all(scene.admin.clone());
        definitions.delete(GitTrackOwner::crd_name(), &DeleteParams::default()).await.unwrap();
        scene.desired.push(config_map(&scene.other, "late", &[]));
        let said = |outcome: &Outcome| outcome.notes.iter().any(|n| n.contains("definition of the namespaced proxies"));
        fixtures::eventually("everything is applied without proxies", async || {
            let outcome = scene.reconcile().await;
            (outcome.phase == Phase::Applied && said(&outcome)).then_some(())
        })
        .await;
        fixtures::eventually("the definition goes", async || {
            scene.reconcile().await;
            definitions.get_opt(GitTrackOwner::crd_name()).await.unwrap().is_none().then_some(())
        })
        .await;
        plane.gc_quiet().await.unwrap();
        for child in &scene.desired {
            let child = live(&scene.admin, child).await.unwrap();
            assert!(child.owner_references().is_empty(), "{child:#?}");
        }
        assert_eq!(live(&scene.admin, &scene.desired[2]).await.unwrap().uid(), uid);
        let outcome = scene.settle().await;
        assert!(outcome.phase == Phase::Applied && said(&outcome), "{outcome:#?}");

        // Another operator process, that has seen nothing of it, comes to the same.
        let (operator, _) = plane.audited("admin");
        let restarted = options(builder(operator)).build().unwrap();
        let outcome = settle(&restarted, &scene.admin, &scene.track, &scene.desired).await;
        assert!(outcome.phase == Phase::Applied && said(&outcome), "{outcome:#?}");

        install(&scene.admin).await;
        let outcome = fixtures::eventually("proxies return", async || {
            let outcome = scene.reconcile().await;
            (outcome.phase == Phase::Applied && !said(&outcome)).then_some(outcome)
        })
        .await;
        assert!(outcome.unapplied.is_empty());
        let proxy = scene.proxy().await;
        for leaf in &scene.desired[2..] {
            let leaf = live(&scene.admin, leaf).await.unwrap();
            assert_eq!(leaf.owner_references()[0].uid, proxy.uid().unwrap());
        }
        scene.end().await;
    }
    plane.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_parent_goes_while_the_proxies_definitions_are_being_deleted() {
    let plane = Plane::builder().start().await.unwrap();
    let scene = Scene::applied(&plane, plain).await;
    let definitions = Api::<CustomResourceDefinition>::all(scene.admin.clone());
    for name in [GitTrackOwner::crd_name(), ClusterGitTrackOwner::crd_name()] {
        definitions.delete(name, &DeleteParams::default()).await.unwrap();
    }
    delete(&scene.admin, &scene.track).await;
    settle_deleted(&scene.custodian, &scene.admin, &scene.track, &scene.desired).await;
    for child in &scene.desired {
        assert!(!exists(&scene.admin, child).await);
    }
    plane.shutdown().await.unwrap();
}

#[tokio::test]
async fn with_the_garbage_collector_dead_a_lost_proxy_is_named_until_it_is_back() {
    let plane = Plane::builder().start().await.unwrap();
    let scene = Scene::applied(&plane, plain).await;
    plane.kill(Part::Controllers).await.unwrap();
    for policy in [PropagationPolicy::Foreground, PropagationPolicy::Orphan] {
        let lost = scene.proxy().await;
        scene.lose(&lost, &policy).await;
        let outcome = fixtures::eventually("replaced", async || {
            let outcome = scene.reconcile().await;
            let done = outcome.unapplied.is_empty() && !outcome.removal.blockers.is_empty();
            done.then_some(outcome)
        })
        .await;
        let blocker = &outcome.removal.blockers[0];
        assert_eq!(blocker.id.name(), lost.name_any());
        assert!(blocker.finalizers.iter().all(|f| !f.contains('/')), "only Kubernetes' own are left: {blocker:#?}");
        plane.start_part(Part::Controllers).await.unwrap();
        scene.settle().await;
        scene.assert_replaced(&lost).await;
        plane.kill(Part::Controllers).await.unwrap();
    }
    plane.start_part(Part::Controllers).await.unwrap();
    scene.end().await;
    plane.shutdown().await.unwrap();
}

mod guarded {
    kube_custody::proxy_owners! {
        group: "guarded.example.com", version: "v1",
        namespaced: pub(super) FooOwner / "fooowners",
        cluster: pub(super) ClusterFooOwner / "clusterfooowners"
    }
}

type Guarded = (guarded::FooOwner, guarded::ClusterFooOwner);

#[tokio::test]
async fn the_shipped_policy_admits_only_background_deletion_of_proxies() {
    let admin = client().await;
    for crd in Guarded::crds() {
        fixtures::apply_crd(&admin, &crd).await;
    }
    for manifest in Guarded::deletion_guard() {
        create(&admin, &object(manifest)).await;
    }
    let namespace = new_namespace(&admin, "guarded").await;
    let delete = async |proxy: &DynamicObject, policy: Option<PropagationPolicy>| {
        let params = DeleteParams { propagation_policy: policy, ..DeleteParams::default() };
        api_of(&admin, proxy).delete(&proxy.name_any(), &params).await.map(drop)
    };
    let denied = |answer: &Result<(), kube::Error>| match answer {
        Ok(()) => false,
        Err(kube::Error::Api(status)) if status.message.contains("Background only") => true,
        Err(error) => panic!("{error}"),
    };
    let refused = [PropagationPolicy::Foreground, PropagationPolicy::Orphan];
    let probe = create(&admin, &proxy_of("FooOwner", Some(&namespace), "probe")).await;
    fixtures::eventually("the policy is enforced", async || {
        let params = DeleteParams {
            propagation_policy: Some(PropagationPolicy::Orphan),
            dry_run: true,
            ..DeleteParams::default()
        };
        denied(&api_of(&admin, &probe).delete("probe", &params).await.map(drop)).then_some(())
    })
    .await;
    for (kind, place) in [("FooOwner", Some(namespace.as_str())), ("ClusterFooOwner", None)] {
        for (admitted, name) in [(Some(PropagationPolicy::Background), "stated"), (None, "silent")] {
            let proxy = create(&admin, &proxy_of(kind, place, &format!("{namespace}-{name}"))).await;
            for policy in &refused {
                assert!(denied(&delete(&proxy, Some(policy.clone())).await), "{kind} fresh {policy:?}");
            }
            assert!(live(&admin, &proxy).await.unwrap().metadata.deletion_timestamp.is_none());
            assert!(!denied(&delete(&proxy, admitted.clone()).await), "{kind} fresh {admitted:?}");
            // It is terminating now, held by its finalizer.
            for policy in &refused {
                assert!(denied(&delete(&proxy, Some(policy.clone())).await), "{kind} terminating {policy:?}");
            }
            for policy in [Some(PropagationPolicy::Background), None] {
                assert!(!denied(&delete(&proxy, policy.clone()).await), "{kind} terminating {policy:?}");
            }
            let after = live(&admin, &proxy).await.unwrap();
            assert_eq!(after.finalizers(), ["guarded.example.com/proxy"]);
            patch(&admin, &proxy, json!({"metadata": {"finalizers": null}})).await;
            assert!(!exists(&admin, &proxy).await);
        }
    }
}

fn proxy_of(kind: &str, namespace: Option<&str>, name: &str) -> DynamicObject {
    object(json!({
        "apiVersion": "guarded.example.com/v1", "kind": kind,
        "metadata": {"name": name, "namespace": namespace, "finalizers": ["guarded.example.com/proxy"]},
        "spec": {
            "manager": "guarded.example.com",
            "parent": {"apiVersion": "v1", "kind": "Foo", "name": "x", "namespace": "n", "uid": "u", "cluster": "c"},
        },
    }))
}
