//! Parents that depend on each other, and an operator that serves them.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use control_plane::{Plane, audit::AuditLog, fixtures};
use futures::StreamExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{
    Api, Client, CustomResource, CustomResourceExt, Resource, ResourceExt,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
    runtime::{Controller, controller::Action, watcher},
};
use kube_custody::{
    custodian::{Builder, Custodian, Desired, Error, Phase},
    force::Allowed,
    gate::{Dependency, Gate, ParentKind},
    object::GroupKind,
    ownership::OwnershipPolicy,
    status,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::json;
use tokio::task::JoinHandle;

use crate::world::{new_namespace, reload_of};

pub const MANAGER: &str = "kustomization.example.com";

/// Whom a parent depends on.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
pub struct Reference {
    pub kind: Option<String>,
    pub namespace: Option<String>,
    pub name: String,
}

#[derive(CustomResource, Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[kube(group = "kustomize.example.com", version = "v1", kind = "Kustomization", namespaced, status = "ParentStatus")]
#[serde(rename_all = "camelCase")]
pub struct KustomizationSpec {
    #[serde(default)]
    pub depends_on: Vec<Reference>,
}

/// Another kind, whose parents can be named by the first one's.
#[derive(CustomResource, Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[kube(group = "kustomize.example.com", version = "v1", kind = "Bundle", namespaced, status = "ParentStatus")]
#[serde(rename_all = "camelCase")]
pub struct BundleSpec {
    #[serde(default)]
    pub depends_on: Vec<Reference>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
pub struct ParentStatus {
    #[serde(default)]
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
}

fn conditions(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({"type": "array", "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}})
}

/// What the kinds have in common.
pub trait Parent:
    Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
    + Clone
    + DeserializeOwned
    + Serialize
    + std::fmt::Debug
    + Send
    + Sync
    + 'static
{
    fn new(name: &str, depends_on: Vec<Reference>) -> Self;
    fn depends_on(&self) -> &[Reference];
    fn conditions(&self) -> Vec<Condition>;
}

impl Parent for Kustomization {
    fn new(name: &str, depends_on: Vec<Reference>) -> Self {
        Self::new(name, KustomizationSpec { depends_on })
    }
    fn depends_on(&self) -> &[Reference] {
        &self.spec.depends_on
    }
    fn conditions(&self) -> Vec<Condition> {
        self.status.as_ref().map(|s| s.conditions.clone()).unwrap_or_default()
    }
}

impl Parent for Bundle {
    fn new(name: &str, depends_on: Vec<Reference>) -> Self {
        Self::new(name, BundleSpec { depends_on })
    }
    fn depends_on(&self) -> &[Reference] {
        &self.spec.depends_on
    }
    fn conditions(&self) -> Vec<Condition> {
        self.status.as_ref().map(|s| s.conditions.clone()).unwrap_or_default()
    }
}

pub fn kind(name: &str) -> GroupKind {
    GroupKind::new("kustomize.example.com", name).unwrap()
}

fn dependencies<K: Parent>(parent: &K) -> Vec<Dependency> {
    let here = || parent.namespace();
    let read = |r: &Reference| {
        Dependency::new(
            kind(r.kind.as_deref().unwrap_or(&K::kind(&()))),
            r.namespace.clone().or_else(here),
            r.name.as_str(),
        )
    };
    parent.depends_on().iter().map(read).collect()
}

/// The gate of both kinds.
pub fn gate(client: Client) -> kube_custody::gate::Builder {
    Gate::builder(client, MANAGER)
        .kind(ParentKind::new(dependencies::<Kustomization>))
        .kind(ParentKind::new(dependencies::<Bundle>))
        .force(Allowed::nothing().dependents(kind("Kustomization")))
}

pub async fn install(client: &Client) {
    for crd in [Kustomization::crd(), Bundle::crd()] {
        fixtures::apply_crd(client, &crd).await;
    }
}

/// What parents are to have: by namespace and name.
type Sets = Arc<Mutex<BTreeMap<(String, String), Vec<DynamicObject>>>>;

/// Parents of one test and what they are to have, served by an operator whose calls are recorded.
pub struct Stage {
    pub admin: Client,
    pub operator: Client,
    pub log: AuditLog,
    /// The first namespace.
    pub ns: String,
    sets: Sets,
    running: Vec<JoinHandle<()>>,
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.stop();
    }
}

struct Context<K> {
    custodian: Custodian<K>,
    client: Client,
    sets: Sets,
}

impl Stage {
    pub async fn new(prefix: &str) -> Self {
        Self::on(Plane::shared().await, prefix).await
    }

    pub async fn on(plane: &Plane, prefix: &str) -> Self {
        let admin = plane.client();
        install(&admin).await;
        let ns = new_namespace(&admin, prefix).await;
        let (operator, log) = plane.audited("admin");
        Self { admin, operator, log, ns, sets: Sets::default(), running: Vec::new() }
    }

    /// Starts an operator for this test's parents, with this gate if any.
    pub fn run(&mut self, gate: Option<kube_custody::gate::Builder>) {
        let gate = gate.map(|gate| gate.build().unwrap());
        self.serve::<Kustomization>(gate.clone());
        self.serve::<Bundle>(gate);
    }

    fn serve<K: Parent>(&mut self, gate: Option<Gate>) {
        let builder: Builder<K> =
            Custodian::builder(self.operator.clone(), MANAGER).ownership(OwnershipPolicy::ClusterWide);
        let custodian = match gate {
            Some(gate) => builder.gate(gate),
            None => builder,
        }
        .build()
        .unwrap();
        let wakeups = custodian.wakeups().filter_map(|w| async move { w.is_for::<K>().then(|| w.object_ref::<K>()) });
        let ours = watcher::Config::default().labels(&format!("stage={}", self.ns));
        let context = Arc::new(Context { custodian, client: self.admin.clone(), sets: Arc::clone(&self.sets) });
        let controller = Controller::new(Api::<K>::all(self.admin.clone()), ours).reconcile_on(wakeups).run(
            reconcile,
            |_, _, _| Action::requeue(std::time::Duration::from_millis(500)),
            context,
        );
        self.running.push(tokio::spawn(controller.for_each(|_| async {})));
    }

    /// Ends the operator.
    pub fn stop(&mut self) {
        self.running.drain(..).for_each(|task| task.abort());
    }

    pub fn api<K: Parent>(&self, namespace: &str) -> Api<K> {
        Api::namespaced(self.admin.clone(), namespace)
    }

    /// A parent of kind `Kustomization` in the first namespace.
    pub async fn parent(&self, name: &str, depends_on: &[&str], set: &[DynamicObject]) -> Kustomization {
        let named = depends_on.iter().map(|name| Reference { name: (*name).into(), ..Reference::default() });
        self.parent_in(&self.ns, name, named.collect(), set).await
    }

    pub async fn parent_in<K: Parent>(
        &self,
        namespace: &str,
        name: &str,
        depends_on: Vec<Reference>,
        set: &[DynamicObject],
    ) -> K {
        let parent = self.planned(namespace, name, depends_on, set);
        self.api::<K>(namespace).create(&PostParams::default(), &parent).await.unwrap()
    }

    /// A parent, for somebody else to create.
    pub fn planned<K: Parent>(
        &self,
        namespace: &str,
        name: &str,
        depends_on: Vec<Reference>,
        set: &[DynamicObject],
    ) -> K {
        self.sets.lock().unwrap().insert((namespace.into(), name.into()), set.to_vec());
        let mut parent = K::new(name, depends_on);
        parent.labels_mut().insert("stage".into(), self.ns.clone());
        parent
    }

    pub async fn delete<K: Parent>(&self, parent: &K) {
        let api = self.api::<K>(&parent.namespace().unwrap());
        api.delete(&parent.name_any(), &DeleteParams::default()).await.unwrap();
    }

    pub async fn gone<K: Parent>(&self, parent: &K) {
        fixtures::gone(self.api::<K>(&parent.namespace().unwrap()), &parent.name_any()).await;
    }

    /// Waits until condition `Ready` satisfies `wanted`; returns its reason and message.
    #[track_caller]
    pub fn ready_is<'a, K: Parent>(
        &'a self,
        parent: &'a K,
        wanted: impl Fn(&Condition) -> bool + 'a,
    ) -> impl Future<Output = Condition> + 'a {
        fixtures::eventually_ok(format!("the condition of {}", parent.name_any()), async move || {
            let Some(live) = reload_of(&self.admin, parent).await else { return Err("it is gone".to_owned()) };
            let ready = live.conditions().into_iter().find(|c| c.type_ == status::READY);
            ready.filter(&wanted).ok_or_else(|| format!("{:?}", live.conditions()))
        })
    }

    pub async fn applied<K: Parent>(&self, parent: &K) {
        self.ready_is(parent, |ready| ready.status == "True").await;
    }

    /// Annotates a parent.
    pub async fn annotate<K: Parent>(&self, parent: &K, key: &str, value: &str) {
        let patch = json!({"metadata": {"annotations": {key: value}}});
        let api = self.api::<K>(&parent.namespace().unwrap());
        api.patch(&parent.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }
}

/// As an operator's, but that it does not look again on its own while it waits for other parents: it has to be woken.
async fn reconcile<K: Parent>(parent: Arc<K>, context: Arc<Context<K>>) -> Result<Action, Error> {
    let key = (parent.namespace().unwrap(), parent.name_any());
    let set = context.sets.lock().unwrap().get(&key).cloned().unwrap_or_default();
    let outcome =
        context.custodian.reconcile(&*parent, async |_: Arc<K>| Ok::<_, std::io::Error>(Desired::from(set))).await;
    let now = Time(k8s_openapi::jiff::Timestamp::now());
    if let Some(conditions) = status::conditions(&outcome, &parent.conditions(), parent.meta().generation, &now) {
        let patch = json!({"metadata": {"uid": parent.uid()}, "status": {"conditions": conditions}});
        let api = Api::<K>::namespaced(context.client.clone(), &key.0);
        // It may be gone by now.
        let _ = api.patch_status(&key.1, &PatchParams::default(), &Patch::Merge(patch)).await;
    }
    if matches!(outcome.phase, Phase::Blocked(_) | Phase::Waiting { .. }) {
        return Ok(Action::await_change());
    }
    outcome.into_action()
}
