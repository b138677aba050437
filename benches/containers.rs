//! A definition and namespaces, each with a ConfigMap and a custom resource, deleted with their parent, beside a bare loop that
//! deletes the custom resources, then the definition and the namespaces.
//!
//! `cargo bench --bench containers`, with other numbers by `-- --namespaces N --rounds N`.
//!
//! Both end when the last namespace is gone, for which the namespace controller sets the floor. Measured in turn: the median
//! time of each, their ratio, and the time until the last DELETE was sent; of ours also the API calls by verb, and the lists
//! that look into what is to be deleted.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use control_plane::{
    Plane,
    audit::{AuditLog, Verb},
    fixtures,
};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::{
    api::core::v1::Namespace, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, CustomResource, CustomResourceExt, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, PostParams},
    core::GroupVersionKind,
};
use kube_custody::{
    custodian::{Custodian, Desired, Phase},
    ownership::OwnershipPolicy,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

const MANAGER: &str = "containers.bench.example.com";
const CONCURRENCY: usize = 32;

#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[kube(group = "containers.bench.example.com", version = "v1", kind = "Parent", namespaced)]
struct ParentSpec {}

/// A definition, and namespaces with one ConfigMap and one custom resource each.
struct Set {
    /// Part of every name, and a label of the namespaces.
    unique: String,
    namespaces: usize,
}

impl Set {
    fn new(namespaces: usize) -> Self {
        Self { unique: fixtures::ns("boxes"), namespaces }
    }

    fn group(&self) -> String {
        format!("{}.example.com", self.unique)
    }

    fn definition(&self) -> String {
        format!("widgets.{}", self.group())
    }

    fn namespace(&self, n: usize) -> String {
        format!("{}-{n}", self.unique)
    }

    fn manifests(&self) -> Vec<DynamicObject> {
        let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        let mut manifests = vec![json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": self.definition()},
            "spec": {
                "group": self.group(), "scope": "Namespaced",
                "names": {"plural": "widgets", "singular": "widget", "kind": "Widget"},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": open}}],
            },
        })];
        for n in 0..self.namespaces {
            let meta = |kind: &str| json!({"name": kind, "namespace": self.namespace(n)});
            manifests.extend([
                json!({
                    "apiVersion": "v1", "kind": "Namespace",
                    "metadata": {"name": self.namespace(n), "labels": {"bench": self.unique}},
                }),
                json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta("map"), "data": {"key": "value"}}),
                json!({"apiVersion": format!("{}/v1", self.group()), "kind": "Widget", "metadata": meta("widget")}),
            ]);
        }
        let object = |manifest: Value| serde_json::from_value(manifest).expect("a manifest");
        manifests.into_iter().map(object).collect()
    }

    /// Waits until the definition and the last namespace are gone.
    async fn gone(&self, client: &Client) {
        let ours = ListParams::default().labels(&format!("bench={}", self.unique));
        let namespaces = Api::<Namespace>::all(client.clone());
        while !namespaces.list_metadata(&ours).await.expect("a list").items.is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        fixtures::gone(Api::<CustomResourceDefinition>::all(client.clone()), &self.definition()).await;
    }
}

struct Measured {
    /// Until everything was gone.
    seconds: f64,
    /// Until the last DELETE was answered.
    sent: f64,
    calls: String,
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

async fn each<K>(apis: Vec<(Api<K>, String)>)
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let deletes = apis
        .into_iter()
        .map(|(api, name)| async move { api.delete(&name, &DeleteParams::background()).await.map(drop) });
    let deletes: Vec<_> = deletes.collect();
    let deleted: Result<Vec<()>, _> = stream::iter(deletes).buffer_unordered(CONCURRENCY).try_collect().await;
    deleted.expect("objects can be deleted");
}

async fn reconcile(custodian: &Custodian<Parent>, parent: &Parent, manifests: &[DynamicObject]) -> (Phase, Duration) {
    let desired = Desired::from(manifests.to_vec());
    let outcome = custodian.reconcile(parent, async |_: Arc<Parent>| Ok::<_, std::io::Error>(desired)).await;
    assert!(outcome.error.is_none(), "{:?}", outcome.error);
    (outcome.phase, outcome.requeue.unwrap_or_default())
}

/// A parent with everything applied.
async fn applied(plane: &Plane, home: &str, set: &Set, client: Client) -> (Custodian<Parent>, Parent) {
    let custodian = Custodian::<Parent>::builder(client, MANAGER).ownership(OwnershipPolicy::ClusterWide).build();
    let custodian = custodian.expect("a custodian");
    let parents = Api::<Parent>::namespaced(plane.client(), home);
    let mut parent = parents.create(&PostParams::default(), &Parent::new(&set.unique, ParentSpec {})).await.unwrap();
    let manifests = set.manifests();
    loop {
        let (phase, requeue) = reconcile(&custodian, &parent, &manifests).await;
        if phase == Phase::Applied {
            return (custodian, parent);
        }
        tokio::time::sleep(requeue.min(Duration::from_millis(200))).await;
        parent = parents.get(&set.unique).await.expect("it lives");
    }
}

/// The bare loop. The same set, applied in the same way, but nobody looks after it any more.
async fn bare(plane: &Plane, home: &str, set: &Set) -> Measured {
    let client = plane.client();
    let (custodian, parent) = applied(plane, home, set, client.clone()).await;
    drop(custodian);
    let widgets = ApiResource::from_gvk(&GroupVersionKind::gvk(&set.group(), "v1", "Widget"));
    let widget = |n| Api::<DynamicObject>::namespaced_with(client.clone(), &set.namespace(n), &widgets);
    let begin = Instant::now();
    each((0..set.namespaces).map(|n| (widget(n), "widget".to_owned())).collect()).await;
    each(vec![(Api::<CustomResourceDefinition>::all(client.clone()), set.definition())]).await;
    let namespaces = Api::<Namespace>::all(client.clone());
    each((0..set.namespaces).map(|n| (namespaces.clone(), set.namespace(n))).collect()).await;
    let sent = begin.elapsed().as_secs_f64();
    set.gone(&client).await;
    let measured = Measured { seconds: begin.elapsed().as_secs_f64(), sent, calls: String::new() };
    // Its parent goes untimed.
    let parents = Api::<Parent>::namespaced(client.clone(), home);
    parents.delete(&parent.name_any(), &DeleteParams::default()).await.expect("the parent can be deleted");
    teardown(plane, home, set, client).await;
    measured
}

/// Reconciles a parent that is being deleted until it is let go.
async fn teardown(plane: &Plane, home: &str, set: &Set, client: Client) {
    let custodian = Custodian::<Parent>::builder(client, MANAGER).ownership(OwnershipPolicy::ClusterWide).build();
    finish(&custodian.expect("a custodian"), plane, home, set).await;
}

async fn finish(custodian: &Custodian<Parent>, plane: &Plane, home: &str, set: &Set) {
    let parents = Api::<Parent>::namespaced(plane.client(), home);
    let mut wakeups = custodian.wakeups().boxed();
    while let Some(parent) = parents.get_opt(&set.unique).await.expect("an answer") {
        let (phase, requeue) = reconcile(custodian, &parent, &[]).await;
        match phase {
            Phase::Released | Phase::Gone => return,
            Phase::Deleting => drop(tokio::time::timeout(requeue, wakeups.next()).await),
            phase => panic!("{phase:?}"),
        }
    }
}

async fn ours(plane: &Plane, home: &str, set: &Set) -> Measured {
    let log = AuditLog::new();
    log.keep_bodies(false);
    let client = log.client(plane.config()).expect("a client");
    let (custodian, parent) = applied(plane, home, set, client).await;
    log.clear();
    let parents = Api::<Parent>::namespaced(plane.client(), home);
    let begin = Instant::now();
    let began = log.began().elapsed();
    parents.delete(&parent.name_any(), &DeleteParams::default()).await.expect("the parent can be deleted");
    finish(&custodian, plane, home, set).await;
    let seconds = begin.elapsed().as_secs_f64();
    set.gone(&plane.client()).await;
    let containers = ["namespaces", "customresourcedefinitions"];
    let deletes = log.calls_where(|c| c.head.verb == Verb::Delete && containers.contains(&&*c.head.target.plural));
    let sent =
        deletes.iter().map(|c| c.answered.unwrap_or_default().saturating_sub(began).as_secs_f64()).fold(0.0, f64::max);
    Measured { seconds, sent, calls: calls(&log) }
}

fn calls(log: &AuditLog) -> String {
    let (mut verbs, mut lists) = (BTreeMap::<String, usize>::new(), BTreeMap::<String, usize>::new());
    for call in log.calls() {
        *verbs.entry(call.verb.to_string()).or_default() += 1;
        if call.verb == Verb::List {
            *lists.entry(call.target.plural.clone()).or_default() += 1;
        }
    }
    let words = |counts: &BTreeMap<String, usize>| {
        counts.iter().map(|(what, n)| format!("{n} {what}")).collect::<Vec<_>>().join(", ")
    };
    format!("{}; lists of {}", words(&verbs), words(&lists))
}

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |key: &str, default: usize| {
        let value = arguments.iter().position(|a| a == key).and_then(|at| arguments.get(at + 1));
        value.and_then(|n| n.parse().ok()).unwrap_or(default)
    };
    let (namespaces, rounds) = (number("--namespaces", 100), number("--rounds", 3));
    let plane = Plane::shared().await;
    let admin = plane.client();
    fixtures::apply_crd(&admin, &Parent::crd()).await;
    let home = fixtures::namespace(&admin, "containers").await;
    let (mut floors, mut runs) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        floors.push(bare(plane, &home, &Set::new(namespaces)).await);
        runs.push(ours(plane, &home, &Set::new(namespaces)).await);
    }
    let of = |all: &[Measured], what: fn(&Measured) -> f64| median(all.iter().map(what));
    let (floor, ours) = (of(&floors, |m| m.seconds), of(&runs, |m| m.seconds));
    println!(
        "{namespaces} namespaces: floor {floor:.2} s (last DELETE after {:.2} s), ours {ours:.2} s ({:.2} s): {:.2}x; {}",
        of(&floors, |m| m.sent),
        of(&runs, |m| m.sent),
        ours / floor,
        runs.last().map(|m| m.calls.as_str()).unwrap_or_default(),
    );
}
