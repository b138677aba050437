//! Operators that may do less than they would like: watches fall back and come back, and what is missing is named.

use control_plane::{
    Plane,
    audit::{AuditLog, Verb},
    fixtures::{self, Grant, Subject, rule},
};
use k8s_openapi::api::{
    core::v1::Namespace,
    rbac::v1::{PolicyRule, RoleBinding},
};
use kube::{
    Api, Client,
    api::{DynamicObject, ListParams},
};
use kube_custody::{
    custodian::{Builder, Custodian, KindWatch, Outcome, Phase, PlaceWatch, Watch},
    ownership::OwnershipPolicy,
    teardown::Reason,
};
use serde_json::json;

use crate::world::*;

const ALL: [&str; 6] = ["get", "create", "patch", "delete", "list", "watch"];
const NO_WATCH: [&str; 5] = ["get", "create", "patch", "delete", "list"];
const BLIND: [&str; 4] = ["get", "create", "patch", "delete"];
const FINALIZER: &str = "other.example.com/hold";

/// An operator with a ServiceAccount, one parent, and children in two namespaces.
struct Limited {
    admin: Client,
    log: AuditLog,
    subject: Subject,
    custodian: Custodian<GitTrack>,
    track: GitTrack,
    home: String,
    other: String,
    set: Vec<DynamicObject>,
    /// Of rights in the whole cluster; others go with their namespace.
    grants: Vec<Grant>,
}

impl Limited {
    /// Rights on children and proxies by `verbs` in the two namespaces, and nothing else that could be done without.
    async fn new(prefix: &str, verbs: &[&str], options: impl FnOnce(Builder<GitTrack>) -> Builder<GitTrack>) -> Self {
        let admin = client().await;
        let (home, other) = (new_namespace(&admin, prefix).await, new_namespace(&admin, prefix).await);
        let system = new_namespace(&admin, prefix).await;
        let (operator, log) = fixtures::audited_service_account(Plane::shared().await, &system, "operator").await;
        let subject = Subject::service_account(&system, "operator");
        let custodian = custodian(&operator, &home, &other, options);
        let base = format!("/namespaces/{other}/ConfigMap/base");
        let set =
            vec![config_map(&other, "base", &[]), config_map(&home, "top", &[&base]), config_map(&home, "b", &[])];
        let track = parent(&admin, &home, "track").await;
        let grants = Vec::new();
        let mut this = Self { admin, log, subject, custodian, track, home, other, set, grants };
        let kube_system =
            PolicyRule { resource_names: Some(vec!["kube-system".into()]), ..rule("", &["namespaces"], &["get"]) };
        this.grant(None, vec![kube_system]).await;
        let home = this.home.clone();
        this.grant(Some(&home), vec![rule("faros.pusher.com", &["gittracks"], &["get", "patch"])]).await;
        // Records.
        this.grant(Some(&home), vec![rule("", &["configmaps"], &["list"])]).await;
        for namespace in [this.home.clone(), this.other.clone()] {
            this.grant(Some(&namespace), children(verbs)).await;
        }
        this
    }

    async fn grant(&mut self, namespace: Option<&str>, rules: Vec<PolicyRule>) {
        let grant = fixtures::grant(&self.admin, &self.subject, namespace, rules).await;
        if namespace.is_none() {
            self.grants.push(grant);
        }
    }

    async fn pass(&self) -> Outcome {
        reconcile(&self.custodian, &reload(&self.admin, &self.track).await.unwrap(), &self.set).await
    }

    async fn apply(&self) -> Outcome {
        let outcome = settle(&self.custodian, &self.admin, &self.track, &self.set).await;
        assert_eq!(outcome.phase, Phase::Applied, "{outcome:#?}");
        outcome
    }

    /// Create, change, prune, delete.
    async fn live_and_die(&mut self) {
        self.apply().await;
        self.set[1].data["data"]["a"] = json!("2");
        self.apply().await;
        assert_eq!(live(&self.admin, &self.set[1]).await.unwrap().data["data"]["a"], "2");
        let dropped = self.set.pop().unwrap();
        self.apply().await;
        assert!(!exists(&self.admin, &dropped).await);
        delete(&self.admin, &self.track).await;
        settle_deleted(&self.custodian, &self.admin, &self.track, &self.set).await;
        for object in &self.set {
            assert!(!exists(&self.admin, object).await);
        }
        assert_before(&deletions(&self.log), &self.path(1), &self.path(0));
    }

    fn path(&self, index: usize) -> String {
        let object = &self.set[index];
        format!("configmaps/{}/{}", object.metadata.namespace.as_ref().unwrap(), object.metadata.name.as_ref().unwrap())
    }

    fn watch_of(&self, kind: &str) -> KindWatch {
        let all = self.custodian.watches();
        all.iter().find(|w| w.kind.kind == kind).unwrap_or_else(|| panic!("{kind}: {all:?}")).clone()
    }

    /// Requests to list or watch children that were refused.
    fn refused(&self) -> usize {
        self.log.calls_where(|c| c.code == Some(403) && matches!(c.head.verb, Verb::List | Verb::Watch)).len()
    }

    async fn end(self) {
        drop(self.custodian);
        for grant in self.grants {
            grant.revoke(&self.admin).await;
        }
    }
}

fn children(verbs: &[&str]) -> Vec<PolicyRule> {
    vec![rule("", &["configmaps"], verbs), rule("faros.pusher.com", &["gittrackowners"], verbs)]
}

fn custodian(
    operator: &Client,
    home: &str,
    other: &str,
    options: impl FnOnce(Builder<GitTrack>) -> Builder<GitTrack>,
) -> Custodian<GitTrack> {
    let policy = OwnershipPolicy::namespaces([home, other]);
    options(builder(operator.clone()).ownership(policy)).build().unwrap()
}

fn is_polled(place: &PlaceWatch, verb: &str) -> bool {
    matches!(place, PlaceWatch::Polled { why } if why.message().contains(&format!("cannot {verb} resource")))
}

#[tokio::test]
async fn s36_rights_in_namespaces_only_cost_one_refusal_a_kind() {
    let mut limited = Limited::new("lim-ns", &ALL, |b| b).await;
    limited.apply().await;
    limited.log.clear();
    for _ in 0..20 {
        let outcome = limited.pass().await;
        assert_eq!(outcome.phase, Phase::Applied);
        // Watched, if not everywhere: nothing to say but that definitions cannot be read.
        assert!(outcome.notes.iter().all(|n| n.contains("could not be proven gone")), "{:?}", outcome.notes);
    }
    let maps = limited.watch_of("ConfigMap");
    assert!(maps.everywhere.as_ref().is_some_and(|w| is_polled(w, "list")), "{maps}");
    assert_eq!(maps.namespaces.len(), 2, "{maps}");
    assert!(maps.is_complete(), "{maps}");
    // No child is asked for; proxies, the parent and its record are.
    let gets = limited
        .log
        .calls_where(|c| c.head.verb == Verb::Get && ["base", "top", "b"].contains(&c.head.name().unwrap_or_default()));
    assert!(gets.is_empty(), "{gets:?}");
    limited.live_and_die().await;
    assert!(limited.refused() <= 8, "{}", limited.log);
    limited.end().await;
}

#[tokio::test]
async fn told_so_an_operator_with_rights_in_namespaces_asks_for_no_more() {
    let mut limited = Limited::new("lim-told", &ALL, |b| b.watch(Watch::Namespaces)).await;
    limited.live_and_die().await;
    assert_eq!(limited.refused(), 0, "{}", limited.log);
    limited.end().await;
}

#[tokio::test]
async fn without_rights_to_watch_everything_works_by_asking() {
    for (verbs, missing) in [(&BLIND[..], "list"), (&NO_WATCH[..], "watch")] {
        let mut limited = Limited::new("lim-blind", verbs, |b| b).await;
        let outcome = limited.apply().await;
        // In the parent's own namespace the store's right to list is there.
        let note = outcome.notes.iter().find(|n| n.starts_with("GitTrackOwner.faros.pusher.com is not watched"));
        assert!(note.is_some_and(|n| n.contains(&format!("cannot {missing} resource"))), "{:?}", outcome.notes);
        let maps = limited.watch_of("ConfigMap");
        assert!(is_polled(&maps.namespaces[&limited.other], missing), "{maps}");
        assert!(is_polled(&maps.namespaces[&limited.home], "watch"), "{maps}");
        for _ in 0..10 {
            assert_eq!(limited.pass().await.phase, Phase::Applied);
        }
        // Asked, and not guessed from what a list showed once.
        remove(&limited.admin, &limited.set[0]).await;
        let outcome = limited.apply().await;
        assert!(outcome.notes.iter().any(|n| n.contains("has been created again")), "{:?}", outcome.notes);
        limited.live_and_die().await;
        // Two kinds, each everywhere and in two namespaces, asked for again a few times; not once a pass.
        assert!(limited.refused() <= 30, "{}: {}", limited.refused(), limited.log);
        limited.end().await;
    }
}

#[tokio::test]
async fn with_watches_off_nothing_is_listed_or_watched() {
    let mut limited = Limited::new("lim-off", &BLIND, |b| b.watch(Watch::Off)).await;
    limited.live_and_die().await;
    assert!(limited.custodian.watches().is_empty());
    let lists = limited.log.calls_where(|c| matches!(c.head.verb, Verb::List | Verb::Watch));
    let of_records =
        |c: &control_plane::audit::Call| c.head.parameter("labelSelector").is_some_and(|l| l.contains("inventory"));
    assert!(lists.iter().all(of_records), "{lists:?}");
    limited.end().await;
}

#[tokio::test]
async fn rights_that_come_later_bring_the_watches_back() {
    let mut limited = Limited::new("lim-late", &BLIND, |b| b.watch(Watch::Auto)).await;
    limited.apply().await;
    assert!(!limited.watch_of("ConfigMap").is_complete());
    let other = limited.other.clone();
    limited.grant(Some(&other), children(&["list", "watch"])).await;
    fixtures::eventually("the namespace is watched", async || {
        (limited.watch_of("ConfigMap").namespaces[&other] == PlaceWatch::Watched).then_some(())
    })
    .await;
    limited.grant(None, children(&["list", "watch"])).await;
    fixtures::eventually("all namespaces are watched at once", async || {
        limited.pass().await;
        let maps = limited.watch_of("ConfigMap");
        (maps.everywhere == Some(PlaceWatch::Watched) && maps.namespaces.is_empty()).then_some(())
    })
    .await;
    limited.live_and_die().await;
    limited.end().await;
}

#[tokio::test]
async fn watches_that_are_refused_midway_are_replaced_by_asking() {
    let limited = Limited::new("lim-midway", &BLIND, |b| b.watch(Watch::Namespaces)).await;
    let mut watching = Vec::new();
    for namespace in [limited.home.clone(), limited.other.clone()] {
        watching.push(
            fixtures::grant(&limited.admin, &limited.subject, Some(&namespace), children(&["watch", "list"])).await,
        );
    }
    limited.apply().await;
    assert!(limited.watch_of("ConfigMap").is_complete());
    patch(&limited.admin, &limited.set[1], json!({"metadata": {"finalizers": [FINALIZER]}})).await;
    delete(&limited.admin, &limited.track).await;
    fixtures::eventually("the teardown waits for the held child", async || {
        let outcome = limited.pass().await;
        (blocker(&outcome, "top")?.reason == Reason::Terminating).then_some(())
    })
    .await;
    for grant in watching {
        grant.revoke(&limited.admin).await;
    }
    // Open watches go on as long as the API server lets them.
    limited.log.close_watches();
    fixtures::eventually("the watch is refused", async || {
        let maps = limited.watch_of("ConfigMap");
        is_polled(&maps.namespaces[&limited.home], "watch").then_some(())
    })
    .await;
    let outcome = limited.pass().await;
    assert!(outcome.notes.iter().any(|n| n.contains("ConfigMap is not watched")), "{:?}", outcome.notes);
    let begin = std::time::Instant::now();
    patch(&limited.admin, &limited.set[1], json!({"metadata": {"finalizers": null}})).await;
    settle_deleted(&limited.custodian, &limited.admin, &limited.track, &limited.set).await;
    // A watched object would be looked at after 30 s.
    assert!(begin.elapsed().as_secs() < 25, "{:?}", begin.elapsed());
    limited.end().await;
}

#[tokio::test]
async fn what_was_seen_before_the_rights_went_is_not_believed() {
    let mut limited = Limited::new("lim-stale", &BLIND, |b| b.watch(Watch::Namespaces)).await;
    let other = limited.other.clone();
    let watching = fixtures::grant(&limited.admin, &limited.subject, Some(&other), children(&["watch", "list"])).await;
    limited.apply().await;
    fixtures::eventually("a pass asks for nothing there", async || {
        limited.log.clear();
        limited.pass().await;
        limited.log.calls_where(|c| c.head.name() == Some("base")).is_empty().then_some(())
    })
    .await;
    watching.revoke(&limited.admin).await;
    limited.log.clear();
    limited.log.close_watches();
    fixtures::eventually("the watch is refused", async || {
        is_polled(&limited.watch_of("ConfigMap").namespaces[&other], "watch").then_some(())
    })
    .await;
    assert_eq!(limited.log.count(Verb::List), 0, "a watch that ends goes on where it was: {}", limited.log);
    remove(&limited.admin, &limited.set[0]).await;
    let outcome = limited.apply().await;
    assert!(outcome.notes.iter().any(|n| n.contains("has been created again")), "{:?}", outcome.notes);
    limited.live_and_die().await;
    limited.end().await;
}

#[tokio::test]
async fn rights_that_vanish_with_a_namespace_of_children_are_named_and_can_be_given_back() {
    // With a finalizer on the proxy there, nobody is left who may take it off; without, the namespace goes.
    for guard in [true, false] {
        let mut limited =
            Limited::new("lim-gone", &ALL, |b| b.watch(Watch::Namespaces).guard_proxies_elsewhere(guard)).await;
        limited.apply().await;
        let spaces = Api::<Namespace>::all(limited.admin.clone());
        remove(&limited.admin, &namespace(&limited.other)).await;
        fixtures::eventually("the rights are gone", async || {
            let bindings = Api::<RoleBinding>::namespaced(limited.admin.clone(), &limited.other);
            bindings.list(&ListParams::default()).await.unwrap().items.is_empty().then_some(())
        })
        .await;
        if !guard {
            fixtures::gone(spaces.clone(), &limited.other).await;
        }
        delete(&limited.admin, &limited.track).await;
        // Whether the child there is gone cannot be asked: that is no proof, and everything else goes on.
        fixtures::eventually_ok("the right is named", async || {
            let outcome = limited.pass().await;
            match blocker(&outcome, "base") {
                Some(b) if b.words.contains("cannot get resource \"configmaps\"") => Ok(()),
                _ => Err(format!("{outcome:#?}")),
            }
        })
        .await;
        assert!(!exists(&limited.admin, &limited.set[1]).await && !exists(&limited.admin, &limited.set[2]).await);
        assert!(reload(&limited.admin, &limited.track).await.is_some());
        assert_eq!(spaces.get_opt(&limited.other).await.unwrap().is_some(), guard);
        // Rights in a namespace can't be given back without the namespace, nor while it goes; in all of them they can.
        limited.grant(None, children(&["get", "patch", "delete"])).await;
        settle_deleted(&limited.custodian, &limited.admin, &limited.track, &limited.set).await;
        fixtures::gone(spaces, &limited.other).await;
        limited.end().await;
    }
}
