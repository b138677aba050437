//! An operator that is cut off at any call of a parent's life, and another one that finishes it.

use std::{
    collections::BTreeSet,
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use base64::Engine as _;
use control_plane::{
    Plane,
    audit::{AuditLog, CutMode, Outcome as CallOutcome, Verb},
    fixtures,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams},
};
use kube_custody::{
    custodian::{Builder, Custodian, Outcome, Phase},
    inventory::{ConfigMapStore, InventoryStore, Loaded},
    manager::Manager,
    object::ParentRef,
    ownership::proxy::{ClusterGitTrackOwner, GitTrackOwner},
};
use serde_json::{Value, json};

use crate::{
    laws::{
        checker::{self, Law, Parent},
        history::{self, Id, What},
    },
    recorder::Recorder,
    world::*,
};

/// What the parent asks for at one time of its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Create,
    Change,
    Prune,
    Delete,
}

impl Stage {
    pub const ALL: [Self; 4] = [Self::Create, Self::Change, Self::Prune, Self::Delete];
}

/// One parent with children in three scopes, among them a namespace, a kind and an object of that kind.
pub struct Life {
    admin: Client,
    home: String,
    name: String,
    parent: GitTrack,
    recorder: Recorder,
}

/// A process that takes care of the parent.
pub struct Operator {
    pub custodian: Custodian<GitTrack>,
    pub log: AuditLog,
    number: usize,
}

impl Life {
    pub async fn new(admin: &Client, home: &str, prefix: &str) -> Self {
        let name = fixtures::ns(prefix);
        let parent = parent(admin, home, &name).await;
        Self { admin: admin.clone(), home: home.into(), name, parent, recorder: Recorder::new() }
    }

    pub async fn operator(&self, options: impl FnOnce(Builder<GitTrack>) -> Builder<GitTrack>) -> Operator {
        let (client, log) = Plane::shared().await.audited("admin");
        let number = self.recorder.operator(&log);
        let store = self.recorder.store(number, Arc::new(store(&client)));
        let builder = options(builder(client).slice(Duration::from_millis(300)).store(store));
        Operator { custodian: builder.build().unwrap(), log, number }
    }

    fn group(&self) -> String {
        format!("{}.example.com", self.name)
    }

    fn secret(&self) -> String {
        format!("hush-{}", self.name)
    }

    fn widgets(&self) -> ApiResource {
        ApiResource {
            group: self.group(),
            version: "v1".into(),
            api_version: format!("{}/v1", self.group()),
            kind: "Widget".into(),
            plural: "widgets".into(),
        }
    }

    fn map(&self, namespace: &str, name: &str, data: &str, needs: &[&str]) -> DynamicObject {
        let mut map = config_map(namespace, &format!("{}-{name}", self.name), needs);
        map.data["data"] = json!({"a": data});
        map
    }

    /// What the parent asks for: in `Prune` and later, `role` and `middle` no more.
    pub fn desired(&self, stage: Stage) -> Vec<DynamicObject> {
        let (home, other, group) = (&self.home, &self.name, self.group());
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("widgets.{group}")},
            "spec": {
                "group": group, "scope": "Namespaced",
                "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
                "versions": [{
                    "name": "v1", "served": true, "storage": true,
                    "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
                }],
            },
        });
        let widget = json!({
            "apiVersion": format!("{group}/v1"), "kind": "Widget", "metadata": {"name": "widget", "namespace": other},
            "spec": {"size": if stage == Stage::Create { 1 } else { 2 }},
        });
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": format!("{}-secret", self.name), "namespace": home},
            "stringData": {"password": self.secret()},
        });
        let base = format!("/namespaces/{home}/ConfigMap/{}-base", self.name);
        let middle = format!("/namespaces/{other}/ConfigMap/{}-middle", self.name);
        let data = if stage == Stage::Create { "1" } else { "2" };
        let mut desired = vec![
            namespace(other),
            object(definition),
            object(widget),
            object(secret),
            self.map(home, "base", data, &[]),
        ];
        if matches!(stage, Stage::Create | Stage::Change) {
            desired.push(self.map(other, "middle", data, &[&base]));
            desired.push(cluster_role(&self.name, &[&middle]));
        }
        if stage != Stage::Create {
            desired.push(self.map(other, "added", data, &[&base]));
        }
        desired
    }

    /// What the checker has to know.
    fn laws(&self) -> Parent {
        let map =
            |namespace: &str, name: &str| Id::new("", "configmaps", Some(namespace), &format!("{}-{name}", self.name));
        let role = Id::new("rbac.authorization.k8s.io", "clusterroles", None, &self.name);
        let (base, middle) = (map(&self.home, "base"), map(&self.name, "middle"));
        let secret = self.secret();
        let defined = |group: &str, plural: &str| (group.to_owned(), plural.to_owned());
        Parent {
            manager: MANAGER.into(),
            id: Id::new(&GitTrack::group(&()), &GitTrack::plural(&()), Some(&self.home), &self.name),
            kind: "GitTrack".into(),
            uid: self.parent.uid().unwrap(),
            edges: vec![
                (role, middle.clone()),
                (middle, base.clone()),
                (map(&self.name, "added"), base),
                (
                    Id::new(&self.group(), "widgets", Some(&self.name), "widget"),
                    Id::definition(&self.group(), "widgets"),
                ),
            ],
            defined: BTreeSet::from([
                defined(&self.group(), "widgets"),
                defined(&GitTrackOwner::group(&()), &GitTrackOwner::plural(&())),
                defined(&ClusterGitTrackOwner::group(&()), &ClusterGitTrackOwner::plural(&())),
            ]),
            secrets: vec![base64::engine::general_purpose::STANDARD.encode(&secret), secret],
        }
    }

    /// Brings a stage about from outside.
    pub async fn enter(&self, stage: Stage) {
        if stage == Stage::Change {
            self.hold_widget(json!(["elsewhere.example.com/held"])).await;
        }
        if stage == Stage::Delete {
            delete(&self.admin, &self.parent).await;
        }
    }

    async fn hold_widget(&self, finalizers: Value) {
        let api = Api::<DynamicObject>::namespaced_with(self.admin.clone(), &self.name, &self.widgets());
        let patch = json!({"metadata": {"finalizers": finalizers}});
        // Not there yet, or gone already: nothing to hold.
        let _ = api.patch("widget", &PatchParams::default(), &Patch::Merge(&patch)).await;
    }

    /// Somebody else holds the widget, and lets go some time after it was deleted.
    async fn release_widget(&self) {
        let api = Api::<DynamicObject>::namespaced_with(self.admin.clone(), &self.name, &self.widgets());
        loop {
            tokio::time::sleep(Duration::from_millis(40)).await;
            if api.get_metadata("widget").await.is_ok_and(|w| w.metadata.deletion_timestamp.is_some()) {
                return self.hold_widget(Value::Null).await;
            }
        }
    }

    /// Reconciles until the parent stands where `stage` wants it, or the operator is cut off.
    pub async fn settle(&self, operator: &Operator, stage: Stage) -> Result<(), String> {
        let desired = self.desired(stage);
        let rounds = async {
            let mut last = None;
            for _ in 0..400 {
                let Some(live) = reload(&self.admin, &self.parent).await.filter(|p| p.uid() == self.parent.uid())
                else {
                    return Ok(());
                };
                self.recorder.pass(operator.number);
                let pass = reconcile(&operator.custodian, &live, &desired);
                let Some(outcome) = until_cut(&operator.log, pass).await else { return Ok(()) };
                if format!("{outcome:?}").contains(&self.secret()) {
                    return Err(format!("the outcome tells a secret: {outcome:?}"));
                }
                match (&outcome.phase, stage) {
                    (Phase::Applied, Stage::Create | Stage::Change | Stage::Prune) => return Ok(()),
                    (Phase::Released | Phase::Gone, Stage::Delete) => return Ok(()),
                    (Phase::Held(_) | Phase::Released | Phase::Gone, _) => return Err(format!("{outcome:#?}")),
                    _ => {}
                }
                last = Some(outcome);
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            Err(format!("{stage:?} is not reached: {last:#?}"))
        };
        let help = async {
            if stage == Stage::Delete {
                self.release_widget().await;
            }
            std::future::pending().await
        };
        tokio::select! {
            result = rounds => result,
            () = help => Ok(()),
        }
    }

    /// One reconcile, whatever comes of it.
    pub async fn once(&self, operator: &Operator, stage: Stage) {
        if let Some(live) = reload(&self.admin, &self.parent).await {
            self.recorder.pass(operator.number);
            reconcile(&operator.custodian, &live, &self.desired(stage)).await;
        }
    }

    /// Whether no object was created twice: in a life without re-creation every identity has one accepted POST.
    pub fn created_once(&self) -> Result<(), String> {
        let mut created = BTreeSet::new();
        for event in self.recorder.history().events() {
            let What::Accepted(request, _) = &event.what else { continue };
            if request.verb == history::Verb::Create && !created.insert(request.id()) {
                return Err(format!("{} was created twice", request.id()));
            }
        }
        Ok(())
    }

    /// Whether every object is there, and nothing that is not wanted any more.
    pub async fn stands(&self, stage: Stage) -> Result<(), String> {
        let desired = self.desired(stage);
        for object in &desired {
            let Some(live) = live(&self.admin, object).await else {
                return Err(format!("{stage:?}: {} is missing", object.name_any()));
            };
            if let Some(data) = object.data.get("data").filter(|data| live.data.get("data") != Some(data)) {
                return Err(format!("{stage:?}: {} is not {data}", object.name_any()));
            }
        }
        for object in self.desired(Stage::Create) {
            let wanted = desired.iter().any(|d| d.name_any() == object.name_any() && d.types == object.types);
            if !wanted && exists(&self.admin, &object).await {
                return Err(format!("{stage:?}: {} was not pruned", object.name_any()));
            }
        }
        Ok(())
    }

    /// Whether nothing is left: no parent, no child, no proxy, no record.
    pub async fn is_over(&self) -> Result<(), String> {
        if reload(&self.admin, &self.parent).await.is_some() {
            return Err("the parent is left".into());
        }
        for object in self.desired(Stage::Create).iter().chain(&self.desired(Stage::Delete)) {
            if exists(&self.admin, object).await {
                return Err(format!("{} is left", object.name_any()));
            }
        }
        let ours = format!("{MANAGER}/parent-uid={}", self.parent.uid().unwrap());
        let ours = ListParams::default().labels(&ours);
        let proxies = Api::<GitTrackOwner>::all(self.admin.clone()).list_metadata(&ours).await.unwrap().items;
        let cluster = Api::<ClusterGitTrackOwner>::all(self.admin.clone()).list_metadata(&ours).await.unwrap().items;
        if let Some(left) = proxies.iter().map(|p| &p.metadata).chain(cluster.iter().map(|p| &p.metadata)).next() {
            return Err(format!("proxy {:?} is left", left.name));
        }
        let reference = ParentRef::of(&self.parent).unwrap();
        match store(&self.admin).load(&reference).await {
            Ok(Loaded::Missing) => Ok(()),
            other => Err(format!("the record is left: {other:?}")),
        }
    }

    /// The broken laws, in words.
    pub fn judge(&self) -> Result<(), String> {
        let broken = checker::check(&self.laws(), &self.recorder.history());
        if broken.is_empty() {
            return Ok(());
        }
        Err(broken.iter().map(|violation| format!("{violation}\n")).collect::<String>())
    }

    /// Whether the checker would have seen a broken law in this life: it breaks those of another world.
    fn assert_judged(&self) {
        let laws = |change: &dyn Fn(&mut Parent)| {
            let mut parent = self.laws();
            change(&mut parent);
            checker::check(&parent, &self.recorder.history())
                .iter()
                .map(|violation| violation.law)
                .collect::<BTreeSet<_>>()
        };
        let reversed = laws(&|p| p.edges = p.edges.iter().cloned().map(|(from, to)| (to, from)).collect());
        assert_eq!(reversed, BTreeSet::from([Law::Order]));
        assert_eq!(laws(&|p| p.uid = "another".into()), BTreeSet::from([Law::OnlyOurs, Law::ClosedDoor]));
        assert_eq!(laws(&|p| p.secrets = vec![self.group()]), BTreeSet::from([Law::Discretion]));
    }

    pub fn history(&self) -> String {
        self.recorder.history().to_string()
    }
}

fn store(client: &Client) -> ConfigMapStore {
    ConfigMapStore::new(client.clone(), Manager::new(MANAGER).unwrap())
}

/// What `future` comes to, unless its process is cut off before. The calls under way then end first, as they do on a server
/// that does not know that its client has died.
async fn until_cut(log: &AuditLog, future: impl Future<Output = Outcome>) -> Option<Outcome> {
    let mut future = pin!(future);
    let outcome = tokio::select! {
        outcome = &mut future => Some(outcome),
        () = log.cut_off() => None,
    };
    if !log.is_cut() {
        return outcome;
    }
    let under_way = || !log.calls_where(|c| c.outcome == CallOutcome::Pending && c.verb != Verb::Watch).is_empty();
    while outcome.is_none() && under_way() {
        tokio::select! {
            _ = &mut future => break,
            () = tokio::time::sleep(Duration::from_millis(1)) => {}
        }
    }
    None
}

/// A life whose first operator dies at its `k`-th call; whether that call was a write, or `None` if it never came.
async fn live_through(admin: &Client, home: &str, k: u64, mode: CutMode) -> Result<Option<bool>, String> {
    let life = Life::new(admin, home, "crash").await;
    let mut operator = life.operator(|builder| builder).await;
    operator.log.cut_at(k, mode);
    let mut cut = None;
    let run = async {
        for stage in Stage::ALL {
            life.enter(stage).await;
            life.settle(&operator, stage).await?;
            if operator.log.is_cut() {
                let last = operator.log.calls_where(|c| {
                    matches!(c.outcome, CallOutcome::Dropped | CallOutcome::Lost) && c.verb != Verb::Watch
                });
                cut = Some(last.first().is_some_and(|c| c.verb.writes()));
                operator = life.operator(|builder| builder).await;
                life.settle(&operator, stage).await?;
            }
            match stage {
                Stage::Delete => life.is_over().await?,
                stage => life.stands(stage).await?,
            }
        }
        life.judge()
    };
    let limit = Duration::from_secs(60);
    let result = tokio::time::timeout(limit, run).await.unwrap_or_else(|_| Err("it takes for ever".into()));
    result.map(|()| cut).map_err(|words| format!("cut {mode:?} call {k}: {words}\n{}", life.history()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_uncut_life_breaks_no_law() {
    let admin = client().await;
    let home = new_namespace(&admin, "uncut").await;
    let life = Life::new(&admin, &home, "uncut").await;
    let operator = life.operator(|builder| builder).await;
    for stage in Stage::ALL {
        life.enter(stage).await;
        life.settle(&operator, stage).await.unwrap();
        if stage != Stage::Delete {
            life.stands(stage).await.unwrap();
        }
    }
    life.is_over().await.unwrap();
    life.judge().unwrap();
    life.assert_judged();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_call_is_the_last_another_operator_finishes() {
    // A life mostly waits: a namespace takes five seconds to go, whatever is in it.
    const AT_ONCE: usize = 20;
    let admin = client().await;
    let home = new_namespace(&admin, "crash").await;
    let (next, end) = (AtomicU64::new(1), AtomicU64::new(u64::MAX));
    let sweep = async || {
        let mut failures = Vec::new();
        loop {
            let k = next.fetch_add(1, Ordering::SeqCst);
            if k > end.load(Ordering::SeqCst) {
                return failures;
            }
            match live_through(&admin, &home, k, CutMode::Before).await {
                Ok(None) => drop(end.fetch_min(k, Ordering::SeqCst)),
                // A read has no effect that its answer could be lost of.
                Ok(Some(false)) => {}
                Ok(Some(true)) => failures.extend(live_through(&admin, &home, k, CutMode::After).await.err()),
                Err(failure) => {
                    failures.push(failure);
                    failures.extend(live_through(&admin, &home, k, CutMode::After).await.err());
                }
            }
        }
    };
    let began = std::time::Instant::now();
    let failures: Vec<String> =
        futures::future::join_all((0..AT_ONCE).map(|_| sweep())).await.into_iter().flatten().collect();
    println!("{} calls a life, {:?}", end.load(Ordering::SeqCst) - 1, began.elapsed());
    assert!(failures.is_empty(), "{} lives failed:\n{}", failures.len(), failures.join("\n\n"));
    assert!(end.load(Ordering::SeqCst) > 60, "the lives are too short to mean something");
}
