//! The parents and children that the scenarios are about.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use control_plane::{
    Plane,
    audit::{AuditLog, CallHead, Verb},
    fixtures,
};
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client, CustomResource, CustomResourceExt, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
    core::GroupVersionKind,
};
use kube_custody::{
    custodian::{Builder, Custodian, Desired, Outcome, Phase, Problem},
    inventory::{ConfigMapStore, Inventory, InventoryStore, Loaded, Role, SaveOptions},
    manager::Manager,
    object::{ObjectId, ParentRef},
    ownership::{
        OwnershipPolicy,
        proxy::{ClusterGitTrackOwner, GitTrackOwner, ProxyOwners},
    },
    teardown::Blocker,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub const MANAGER: &str = "gittrack.example.com";

/// A parent that lives in a namespace.
#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[kube(group = "faros.pusher.com", version = "v1alpha1", kind = "GitTrack", namespaced)]
pub struct GitTrackSpec {
    pub path: String,
}

/// Installs the kinds that every scenario uses. Applying them again changes nothing.
pub async fn install(client: &Client) {
    fixtures::apply_crd(client, &GitTrack::crd()).await;
    for crd in <(GitTrackOwner, ClusterGitTrackOwner)>::crds() {
        fixtures::apply_crd(client, &crd).await;
    }
}

/// A client of the shared plane, with the kinds installed.
pub async fn client() -> Client {
    let client = Plane::shared().await.client();
    install(&client).await;
    client
}

/// A custodian that may do everything, with proxies.
pub fn builder(client: Client) -> Builder<GitTrack> {
    Custodian::<GitTrack>::builder(client, MANAGER)
        .proxies::<GitTrackOwner, ClusterGitTrackOwner>()
        .ownership(OwnershipPolicy::ClusterWide)
}

/// A parent, created.
pub async fn parent(client: &Client, namespace: &str, name: &str) -> GitTrack {
    let api = Api::<GitTrack>::namespaced(client.clone(), namespace);
    api.create(&PostParams::default(), &GitTrack::new(name, GitTrackSpec { path: "/".into() })).await.unwrap()
}

/// The parent as it lives now.
pub async fn reload(client: &Client, parent: &GitTrack) -> Option<GitTrack> {
    let api = Api::<GitTrack>::namespaced(client.clone(), &parent.namespace().unwrap());
    api.get_opt(&parent.name_any()).await.unwrap()
}

/// Any object of a namespaced kind as it lives now.
pub async fn reload_of<K>(client: &Client, object: &K) -> Option<K>
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + serde::de::DeserializeOwned
        + std::fmt::Debug,
{
    Api::<K>::namespaced(client.clone(), &object.namespace().unwrap()).get_opt(&object.name_any()).await.unwrap()
}

/// Deletes the parent with default propagation.
pub async fn delete(client: &Client, parent: &GitTrack) {
    let api = Api::<GitTrack>::namespaced(client.clone(), &parent.namespace().unwrap());
    api.delete(&parent.name_any(), &DeleteParams::default()).await.unwrap();
}

pub fn object(value: Value) -> DynamicObject {
    serde_json::from_value(value).unwrap()
}

pub fn config_map(namespace: &str, name: &str, depends_on: &[&str]) -> DynamicObject {
    let mut value = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}, "data": {"a": "1"},
    });
    if !depends_on.is_empty() {
        value["metadata"]["annotations"] = json!({"config.kubernetes.io/depends-on": depends_on.join(",")});
    }
    object(value)
}

pub fn cluster_role(name: &str, depends_on: &[&str]) -> DynamicObject {
    let mut value = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": [],
    });
    if !depends_on.is_empty() {
        value["metadata"]["annotations"] = json!({"config.kubernetes.io/depends-on": depends_on.join(",")});
    }
    object(value)
}

pub fn namespace(name: &str) -> DynamicObject {
    object(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}))
}

pub fn id(text: &str) -> ObjectId {
    text.parse().unwrap()
}

/// Reconciles until the parent stands at `phase`, at most for a minute.
pub async fn settle(
    custodian: &Custodian<GitTrack>,
    client: &Client,
    parent: &GitTrack,
    desired: &[DynamicObject],
) -> Outcome {
    let mut last = None;
    for _ in 0..240 {
        let Some(live) = reload(client, parent).await else {
            return last.expect("the parent was gone before the first reconcile");
        };
        let outcome = reconcile(custodian, &live, desired).await;
        if matches!(outcome.phase, Phase::Applied | Phase::Released | Phase::Gone | Phase::Held(_)) {
            return outcome;
        }
        last = Some(outcome);
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    panic!("not settled: {last:#?}");
}

/// One reconcile.
pub async fn reconcile(custodian: &Custodian<GitTrack>, parent: &GitTrack, desired: &[DynamicObject]) -> Outcome {
    let desired = Desired::from(desired.to_vec());
    custodian.reconcile(parent, async |_: Arc<GitTrack>| Ok::<_, std::io::Error>(desired)).await
}

/// Whether an object of this kind exists.
pub async fn exists(client: &Client, object: &DynamicObject) -> bool {
    live(client, object).await.is_some()
}

/// The object as it lives.
pub async fn live(client: &Client, object: &DynamicObject) -> Option<DynamicObject> {
    match api_of(client, object).get(&object.name_any()).await {
        Ok(live) => Some(live),
        // The object or its whole kind.
        Err(kube::Error::Api(status)) if status.code == 404 => None,
        Err(error) => panic!("{error}"),
    }
}

/// The parent's proxies, in namespaces and in cluster scope.
pub async fn live_proxies(client: &Client, parent: &GitTrack) -> (Vec<GitTrackOwner>, Vec<ClusterGitTrackOwner>) {
    let label = format!("{MANAGER}/parent-uid={}", parent.uid().unwrap());
    let selector = ListParams::default().labels(&label);
    let spaced = Api::all(client.clone()).list(&selector).await.unwrap().items;
    (spaced, Api::all(client.clone()).list(&selector).await.unwrap().items)
}

/// Reconciles until the parent, whose deletion was asked for, is gone.
pub async fn settle_deleted(
    custodian: &Custodian<GitTrack>,
    client: &Client,
    parent: &GitTrack,
    desired: &[DynamicObject],
) {
    let outcome = settle(custodian, client, parent, desired).await;
    assert_eq!(outcome.phase, Phase::Released, "{outcome:#?}");
    fixtures::eventually("the parent is gone", async || reload(client, parent).await.is_none().then_some(())).await;
}

/// What was deleted with effect, in order: `plural/namespace/name`, or `plural/name` in cluster scope. Inventories are
/// left out.
pub fn deletions(log: &AuditLog) -> Vec<String> {
    let deletes = log.calls_where(|c| c.verb == Verb::Delete && c.effective);
    let paths = deletes.iter().map(|c| {
        let parts = [Some(c.target.plural.clone()), c.target.namespace.clone(), c.target.name.clone()];
        parts.into_iter().flatten().collect::<Vec<_>>().join("/")
    });
    paths.filter(|path| !path.contains("inventory") && !path.contains("kube-custody")).collect()
}

/// A namespace with a random suffix, created.
pub async fn new_namespace(client: &Client, prefix: &str) -> String {
    let name = fixtures::namespace(client, prefix).await;
    Api::<Namespace>::all(client.clone()).get(&name).await.unwrap();
    name
}

/// Creates an object as somebody else would.
pub async fn create(client: &Client, object: &DynamicObject) -> DynamicObject {
    api_of(client, object).create(&PostParams::default(), object).await.unwrap()
}

/// Merges a patch into an object, as somebody else would.
pub async fn patch(client: &Client, object: &DynamicObject, patch: Value) -> DynamicObject {
    let api = api_of(client, object);
    api.patch(&object.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await.unwrap()
}

/// Deletes an object, as somebody else would; it may be gone already.
pub async fn remove(client: &Client, object: &DynamicObject) {
    fixtures::delete(&api_of(client, object), &object.name_any()).await;
}

/// The API of an object's kind, where it lives.
pub fn api_of(client: &Client, object: &DynamicObject) -> Api<DynamicObject> {
    let types = object.types.as_ref().unwrap();
    let (group, version) = types.api_version.rsplit_once('/').unwrap_or(("", &types.api_version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &types.kind));
    match object.namespace() {
        Some(namespace) => Api::namespaced_with(client.clone(), &namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

/// The definition of a kind `Widget` in a group that no other test uses, in several versions, served or not.
pub fn definition(unique: &str, versions: &[(&str, bool)]) -> DynamicObject {
    let group = group_of(unique);
    let versions: Vec<_> = versions
        .iter()
        .enumerate()
        .map(|(i, (name, served))| {
            json!({
                "name": name, "served": served, "storage": i == 0,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
            })
        })
        .collect();
    object(json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("widgets.{group}")},
        "spec": {
            "group": group, "scope": "Namespaced", "versions": versions,
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget"},
        },
    }))
}

fn group_of(unique: &str) -> String {
    format!("{unique}.example.com")
}

/// A `Widget` of the group of [`definition`], in the namespace called `unique`.
pub fn custom(unique: &str, version: &str, name: &str) -> DynamicObject {
    object(json!({
        "apiVersion": format!("{}/{version}", group_of(unique)), "kind": "Widget",
        "metadata": {"name": name, "namespace": unique}, "spec": {"a": 1},
    }))
}

/// Reconciles until everything that can be applied is, and something cannot.
pub async fn eventually_unapplied(
    custodian: &Custodian<GitTrack>,
    client: &Client,
    parent: &GitTrack,
    desired: &[DynamicObject],
) -> Outcome {
    fixtures::eventually("something cannot be applied", async || {
        let outcome = reconcile(custodian, &reload(client, parent).await?, desired).await;
        let known = outcome.applied.len() + outcome.unapplied.len() >= desired.len();
        (known && outcome.unapplied.len() == 1 || outcome.error.is_some()).then_some(outcome)
    })
    .await
}

/// One parent, with a custodian whose calls are recorded.
pub struct Scene {
    pub admin: Client,
    pub operator: Client,
    pub log: AuditLog,
    /// The record, for whoever else reads and writes it.
    pub store: ConfigMapStore,
    pub custodian: Custodian<GitTrack>,
    pub track: GitTrack,
    /// The parent's namespace.
    pub ns: String,
}

impl Scene {
    pub async fn new(prefix: &str) -> Self {
        Self::with(prefix, |b| b).await
    }

    /// A scene on the shared plane, with more options for the custodian.
    pub async fn with(prefix: &str, options: impl FnOnce(Builder<GitTrack>) -> Builder<GitTrack>) -> Self {
        Self::on(Plane::shared().await, prefix, options).await
    }

    pub async fn on(plane: &Plane, prefix: &str, options: impl FnOnce(Builder<GitTrack>) -> Builder<GitTrack>) -> Self {
        let admin = plane.client();
        install(&admin).await;
        let ns = new_namespace(&admin, prefix).await;
        let (operator, log) = plane.audited("admin");
        let store = ConfigMapStore::new(admin.clone(), Manager::new(MANAGER).unwrap());
        let custodian = options(builder(operator.clone())).build().unwrap();
        let track = parent(&admin, &ns, "track").await;
        Self { admin, operator, log, store, custodian, track, ns }
    }

    /// Another custodian for the same parent, as after a restart of the operator.
    pub fn restart(&mut self, options: impl FnOnce(Builder<GitTrack>) -> Builder<GitTrack>) {
        self.custodian = options(builder(self.operator.clone())).build().unwrap();
    }

    /// A ConfigMap in the parent's namespace that depends on others there.
    pub fn map(&self, name: &str, depends_on: &[&str]) -> DynamicObject {
        let paths: Vec<_> = depends_on.iter().map(|n| format!("/namespaces/{}/ConfigMap/{n}", self.ns)).collect();
        config_map(&self.ns, name, &paths.iter().map(String::as_str).collect::<Vec<_>>())
    }

    pub fn id(&self, name: &str) -> ObjectId {
        id(&format!("ConfigMap {}/{name}", self.ns))
    }

    pub async fn settle(&self, desired: &[DynamicObject]) -> Outcome {
        settle(&self.custodian, &self.admin, &self.track, desired).await
    }

    /// Reconciles until everything is applied.
    pub async fn apply(&self, desired: &[DynamicObject]) -> Outcome {
        let outcome = self.settle(desired).await;
        assert_eq!(outcome.phase, Phase::Applied, "{outcome:#?}");
        outcome
    }

    /// Reconciles until the outcome satisfies a condition.
    #[track_caller]
    pub fn until<'a>(
        &'a self,
        what: &'a str,
        desired: &'a [DynamicObject],
        mut satisfied: impl FnMut(&Outcome) -> bool + 'a,
    ) -> impl Future<Output = Outcome> + 'a {
        let mut last = None;
        fixtures::eventually_ok(what, async move || {
            let Some(live) = reload(&self.admin, &self.track).await else {
                return Err(format!("the parent is gone; before that: {last:#?}"));
            };
            let outcome = reconcile(&self.custodian, &live, desired).await;
            if satisfied(&outcome) {
                return Ok(outcome);
            }
            last = Some(format!("{outcome:#?}"));
            Err(format!("{outcome:#?}"))
        })
    }

    /// One reconcile of the parent as it lives now.
    pub async fn pass(&self, desired: &[DynamicObject]) -> Outcome {
        reconcile(&self.custodian, &reload(&self.admin, &self.track).await.unwrap(), desired).await
    }

    /// Deletes the parent, without reconciling it.
    pub async fn delete(&self) {
        delete(&self.admin, &self.track).await;
    }

    /// Deletes the parent and reconciles until it is let go.
    pub async fn tear_down(&self) -> Outcome {
        self.delete().await;
        let outcome = self.settle(&[]).await;
        assert_eq!(outcome.phase, Phase::Released, "{outcome:#?}");
        assert!(reload(&self.admin, &self.track).await.is_none());
        outcome
    }

    /// What is on record.
    pub async fn inventory(&self) -> Inventory {
        match self.store.load(&ParentRef::of(&self.track).unwrap()).await.unwrap() {
            Loaded::Found(snapshot) => snapshot.inventory,
            other => panic!("{other:?}"),
        }
    }

    /// Changes the record, as another writer would.
    pub async fn meddle(&self, change: impl FnOnce(&mut Inventory)) {
        match self.store.load(&ParentRef::of(&self.track).unwrap()).await.unwrap() {
            Loaded::Found(snapshot) => {
                let mut inventory = snapshot.inventory;
                change(&mut inventory);
                self.store.save(&inventory, SaveOptions::replace(snapshot.version)).await.unwrap();
            }
            other => panic!("{other:?}"),
        }
    }

    /// Has somebody else act right before each call that satisfies a condition. Returns how often that was.
    pub fn before<F, R>(
        &self,
        condition: impl Fn(&CallHead) -> bool + Send + Sync + 'static,
        act: F,
    ) -> Arc<AtomicUsize>
    where
        F: Fn(Client) -> R + Send + Sync + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        let times = Arc::new(AtomicUsize::new(0));
        let (counter, admin) = (Arc::clone(&times), self.admin.clone());
        self.log.before_call(move |head| {
            let acting = condition(&head).then(|| {
                counter.fetch_add(1, Ordering::SeqCst);
                act(admin.clone())
            });
            async move {
                if let Some(acting) = acting {
                    acting.await;
                }
            }
        });
        times
    }

    /// Names of the children on record.
    pub async fn recorded(&self) -> Vec<String> {
        let inventory = self.inventory().await;
        let children = inventory.entries().filter(|e| e.role == Role::Child);
        children.map(|e| e.id.name().to_owned()).collect()
    }

    /// Names of objects that were deleted, in order.
    pub fn deleted(&self) -> Vec<String> {
        let deletes = self.log.calls_where(|c| c.head.verb == Verb::Delete && c.effective);
        deletes.iter().filter_map(|c| c.head.target.name.clone()).collect()
    }

    /// Names of objects that a DELETE was sent for.
    pub fn attempted(&self) -> Vec<String> {
        let deletes = self.log.calls_where(|c| c.head.verb == Verb::Delete);
        deletes.iter().filter_map(|c| c.head.target.name.clone()).collect()
    }

    /// Calls that were to change the object of this name.
    pub fn writes_to(&self, name: &str) -> Vec<String> {
        let writes = self.log.calls_where(|c| c.head.verb.writes() && c.head.name() == Some(name));
        writes.iter().map(ToString::to_string).collect()
    }

    /// Whether the objects of a set exist, in its order.
    pub async fn present(&self, set: &[DynamicObject]) -> Vec<bool> {
        let mut present = Vec::new();
        for object in set {
            present.push(exists(&self.admin, object).await);
        }
        present
    }
}

/// Where `first` and then `second` stand in a list.
pub fn assert_before(list: &[String], first: &str, second: &str) {
    let position = |name: &str| list.iter().position(|n| n == name).unwrap_or_else(|| panic!("no {name}: {list:?}"));
    assert!(position(first) < position(second), "{first} before {second}: {list:?}");
}

/// What blocks `name`, by a report.
pub fn blocker<'a>(outcome: &'a Outcome, name: &str) -> Option<&'a Blocker> {
    outcome.removal.blockers.iter().chain(&outcome.removal.waiting).find(|b| b.id.name() == name)
}

/// Why `name` is not applied.
pub fn problem<'a>(outcome: &'a Outcome, name: &str) -> Option<&'a Problem> {
    outcome.unapplied.iter().find(|u| u.id.name() == name).map(|u| &u.problem)
}
