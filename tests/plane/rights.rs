//! The generated rights suffice, and are the least: the whole life of a parent under exactly them, and under all but one.

use std::{collections::BTreeSet, time::Duration};

use control_plane::{
    Plane,
    audit::{AuditLog, Verb},
    fixtures::{self, Grant, Subject},
};
use futures::StreamExt;
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::{Client, ResourceExt, api::DynamicObject};
use kube_custody::{
    custodian::{Custodian, Outcome, Phase, Watch, uninstall::Uninstall},
    object::{ResourceKind, Scope},
    ownership::{
        OwnershipPolicy,
        proxy::{ClusterGitTrackOwner, GitTrackOwner},
    },
    rbac::{Need, Right, Rights, Setup},
};
use serde_json::json;

use crate::world::*;

/// Lives that run at once.
const AT_ONCE: usize = 8;

fn setup(namespace: &str) -> Setup {
    let tracks = ResourceKind::new("faros.pusher.com", "v1alpha1", "GitTrack", "gittracks", Scope::Namespaced);
    // Not ConfigMaps, which inventories are.
    let widgets = ResourceKind::new(&format!("{namespace}.example.com"), "v1", "Widget", "widgets", Scope::Namespaced);
    // No reconciler is around the custodian here.
    let setup = Setup::new(tracks).children([widgets]).controller(false).status(false);
    setup.proxies::<GitTrackOwner, ClusterGitTrackOwner>().unwrap()
}

fn everywhere(namespace: &str) -> Setup {
    let group = "rbac.authorization.k8s.io";
    setup(namespace).children([ResourceKind::new(group, "v1", "ClusterRole", "clusterroles", Scope::Cluster)])
}

/// A custom resource of the namespace's own kind.
fn widget(namespace: &str, name: &str, depends_on: Option<&str>) -> DynamicObject {
    let mut widget = custom(namespace, "v1", name);
    let depends_on = depends_on.map(|on| [("config.kubernetes.io/depends-on".to_owned(), on.to_owned())].into());
    widget.metadata.annotations = depends_on;
    widget
}

/// A namespace with a kind of its own in it.
async fn new_place(admin: &Client) -> String {
    let namespace = new_namespace(admin, "rights").await;
    let definition = serde_json::to_value(definition(&namespace, &[("v1", true)])).unwrap();
    fixtures::apply_crd(admin, &serde_json::from_value(definition).unwrap()).await;
    namespace
}

/// One parent, and an operator with certain rights.
struct Life {
    admin: Client,
    log: AuditLog,
    custodian: Custodian<GitTrack>,
    track: GitTrack,
    set: Vec<DynamicObject>,
    grants: Vec<Grant>,
}

/// What became of a life.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// It went to its end. What was noted on the way.
    Whole(String),
    /// Something went no further, in these words.
    Stopped(String),
}

impl Life {
    async fn new(namespace: &str, rights: &Rights, cluster: bool) -> Self {
        let admin = client().await;
        let name = fixtures::ns("operator");
        let (operator, log) = fixtures::audited_service_account(Plane::shared().await, namespace, &name).await;
        let subject = Subject::service_account(namespace, &name);
        let mut grants = Vec::new();
        for role in rights.roles() {
            let rules: Vec<PolicyRule> = role.rules.into_iter().map(|(rule, _)| rule).collect();
            grants.push(fixtures::grant(&admin, &subject, role.namespace.as_deref(), rules).await);
        }
        let track = parent(&admin, namespace, &fixtures::ns("track")).await;
        let (child, role) = (fixtures::ns("child"), fixtures::ns("role"));
        let mut set = vec![widget(namespace, &format!("{child}-c"), None)];
        let below = if cluster {
            set.push(cluster_role(&role, &[]));
            format!("rbac.authorization.k8s.io/ClusterRole/{role}")
        } else {
            set.push(widget(namespace, &role, None));
            format!("{namespace}.example.com/namespaces/{namespace}/Widget/{role}")
        };
        set.push(widget(namespace, &child, Some(&below)));
        let policy = if cluster { OwnershipPolicy::ClusterWide } else { OwnershipPolicy::SameNamespace };
        let watch = if cluster { Watch::Auto } else { Watch::Namespaces };
        let custodian = builder(operator).ownership(policy).watch(watch).build().unwrap();
        Self { admin, log, custodian, track, set, grants }
    }

    /// Reconciles until `phase` is reached, or words about a missing right stop it.
    async fn until(&self, phase: &Phase, stop: &str, noted: &mut String) -> Option<String> {
        fixtures::eventually_ok(format!("{phase:?}, or {stop:?}"), async || {
            let Some(live) = reload(&self.admin, &self.track).await else { return Ok(None) };
            let outcome = reconcile(&self.custodian, &live, &self.set).await;
            let stopped = stopped_by(&outcome);
            if stopped.contains(stop) {
                return Ok(Some(stopped));
            }
            let watches: Vec<_> = self.custodian.watches().iter().map(ToString::to_string).collect();
            noted.push_str(&outcome.notes.join("\n"));
            noted.push_str(&watches.join("\n"));
            if outcome.phase == *phase { Ok(None) } else { Err(format!("{outcome:#?}")) }
        })
        .await
    }

    /// Create, change, prune, delete.
    async fn live(&mut self, stop: &str) -> End {
        let mut noted = String::new();
        if let Some(words) = self.until(&Phase::Applied, stop, &mut noted).await {
            return End::Stopped(words);
        }
        self.set.last_mut().unwrap().data["spec"]["a"] = json!(2);
        self.set[1].metadata.labels = Some([("changed".to_owned(), "yes".to_owned())].into());
        if let Some(words) = self.until(&Phase::Applied, stop, &mut noted).await {
            return End::Stopped(words);
        }
        self.set.remove(0);
        if let Some(words) = self.until(&Phase::Applied, stop, &mut noted).await {
            return End::Stopped(words);
        }
        delete(&self.admin, &self.track).await;
        if let Some(words) = self.until(&Phase::Released, stop, &mut noted).await {
            return End::Stopped(words);
        }
        assert!(reload(&self.admin, &self.track).await.is_none());
        for object in &self.set {
            assert!(!exists(&self.admin, object).await, "{}", object.name_any());
        }
        End::Whole(noted)
    }

    async fn end(self) {
        drop(self.custodian);
        for grant in self.grants {
            grant.revoke(&self.admin).await;
        }
    }
}

/// What keeps an outcome from being a good one.
fn stopped_by(outcome: &Outcome) -> String {
    let error = outcome.error.iter().flat_map(|error| {
        let causes = std::iter::successors(Some(error as &dyn std::error::Error), |cause| cause.source());
        causes.map(ToString::to_string).collect::<Vec<_>>()
    });
    let unapplied = outcome.unapplied.iter().map(ToString::to_string);
    let blockers = outcome.removal.blockers.iter().map(|b| b.words.clone());
    let held = matches!(outcome.phase, Phase::Held(_)).then(|| format!("{:?}", outcome.phase));
    error.chain(unapplied).chain(blockers).chain(held).collect::<Vec<_>>().join("\n")
}

/// What was asked of the API server, as rights.
fn asked(log: &AuditLog) -> BTreeSet<(String, String, String)> {
    let calls = log.calls_where(|c| c.head.verb != Verb::NonResource && !c.head.target.plural.is_empty());
    calls
        .into_iter()
        .map(|c| (c.head.target.group.clone(), c.head.target.plural.clone(), c.head.verb.to_string()))
        .collect()
}

fn granted(rights: &Rights) -> BTreeSet<(String, String, String)> {
    let one = |r: &Right| (r.resource.group.clone(), r.resource.plural.clone(), r.verb.to_string());
    rights.iter().map(one).collect()
}

#[tokio::test]
async fn a_life_asks_for_exactly_what_is_listed_everywhere_and_in_a_namespace() {
    let admin = client().await;
    for cluster in [true, false] {
        let namespace = new_place(&admin).await;
        let setup = if cluster {
            everywhere(&namespace)
        } else {
            setup(&namespace).namespaces([namespace.as_str()]).watch(Watch::Namespaces)
        };
        let rights = setup.rights();
        let mut life = Life::new(&namespace, &rights, cluster).await;
        let ended = life.live("forbidden").await;
        assert!(matches!(ended, End::Whole(_)), "{ended:?}");
        let refused = life.log.calls_where(|c| c.code == Some(403));
        assert!(refused.is_empty(), "{refused:#?}");
        assert_eq!(asked(&life.log), granted(&rights));
        life.end().await;
    }
}

#[tokio::test]
async fn without_any_one_of_them_the_outcome_names_it() {
    let admin = client().await;
    let namespace = new_place(&admin).await;
    let all = everywhere(&namespace).rights();
    let lives = all.iter().map(|missing| {
        let rights = all.only(|right| right != missing);
        let namespace = namespace.clone();
        async move {
            let mut life = Life::new(&namespace, &rights, true).await;
            let words = format!("cannot {} resource \"{}\"", missing.verb, missing.resource.plural);
            let ended = life.live(&words).await;
            life.end().await;
            let as_listed = match (&missing.need, &ended) {
                (Need::Required, End::Stopped(_)) => true,
                (Need::Optional { .. }, End::Whole(noted)) => noted.contains(&words),
                _ => false,
            };
            (!as_listed).then(|| format!("without {missing:?}: {ended:?}"))
        }
    });
    let wrong: Vec<_> = futures::stream::iter(lives).buffer_unordered(AT_ONCE).filter_map(async |w| w).collect().await;
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// A Namespace is looked into before it is deleted: what may not be read holds it.
#[tokio::test]
async fn without_the_right_to_look_into_a_namespace_it_is_held_and_the_right_is_named() {
    let admin = client().await;
    let namespace = new_place(&admin).await;
    let spaces = ResourceKind::new("", "v1", "Namespace", "namespaces", Scope::Cluster);
    let all = everywhere(&namespace).children([spaces]).rights();
    let looks = all.iter().filter(|r| r.need == Need::Required && r.reasons.iter().any(|r| r.contains("is in use")));
    let looks: Vec<_> = looks.map(Some).chain([None]).collect();
    assert!(looks.len() >= 5, "{looks:?}");
    let lives = looks.into_iter().map(|missing| {
        let rights = all.only(|right| Some(right) != missing);
        let namespace = namespace.clone();
        async move {
            let mut life = Life::new(&namespace, &rights, true).await;
            life.set.insert(2, crate::world::namespace(&fixtures::ns("inner")));
            let words = match missing {
                Some(right) => format!("cannot list resource \"{}\"", right.resource.plural),
                None => "forbidden".to_owned(),
            };
            let ended = life.live(&words).await;
            life.end().await;
            let right = matches!((missing, &ended), (Some(_), End::Stopped(_)) | (None, End::Whole(_)));
            (!right).then(|| format!("without {missing:?}: {ended:?}"))
        }
    });
    let wrong: Vec<_> = futures::stream::iter(lives).buffer_unordered(AT_ONCE).filter_map(async |w| w).collect().await;
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// What an administrator is granted for the end of a manager suffices, and without the look at everything it is not proven
/// that nothing is left.
#[tokio::test]
async fn an_uninstall_needs_what_is_listed_for_it() {
    let plane = Plane::builder().start().await.unwrap();
    let admin = plane.client();
    install(&admin).await;
    for lists in [false, true] {
        let namespace = new_namespace(&admin, "uninstall").await;
        let track = parent(&admin, &namespace, "track").await;
        let set = [config_map(&namespace, "x", &[])];
        let applied = settle(&builder(admin.clone()).build().unwrap(), &admin, &track, &set).await;
        assert_eq!(applied.phase, Phase::Applied, "{applied:#?}");

        let tracks = ResourceKind::new("faros.pusher.com", "v1alpha1", "GitTrack", "gittracks", Scope::Namespaced);
        let maps = ResourceKind::new("", "v1", "ConfigMap", "configmaps", Scope::Namespaced);
        let setup = Setup::new(tracks).children([maps]).proxies::<GitTrackOwner, ClusterGitTrackOwner>().unwrap();
        let rights = setup.rights_to_uninstall();
        let rights =
            rights.only(|right| lists || right.resource.plural != "*" || right.verb != kube_custody::rbac::Verb::List);
        let (client, log) = fixtures::audited_service_account(&plane, &namespace, "administrator").await;
        let subject = Subject::service_account(&namespace, "administrator");
        for role in rights.roles() {
            let rules: Vec<PolicyRule> = role.rules.into_iter().map(|(rule, _)| rule).collect();
            drop(fixtures::grant(&admin, &subject, role.namespace.as_deref(), rules).await);
        }
        let custodian = builder(client).build().unwrap();
        let done = custodian.uninstall(&Uninstall::release().within(Duration::from_secs(60))).await.unwrap();
        assert_eq!(done.is_proven(), lists, "{done:#?}");
        let refused = log.calls_where(|c| c.code == Some(403));
        assert_eq!(refused.is_empty(), lists, "{refused:#?}");
        if lists {
            assert!(live(&admin, &set[0]).await.unwrap().metadata.labels.is_none());
            assert!(reload(&admin, &track).await.unwrap().finalizers().is_empty());
        }
    }
}
