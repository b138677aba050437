//! 1,000 parents in a `dependsOn` tree, deleted at once, beside as many that depend on nothing.
//!
//! `cargo bench --bench gate`, fewer parents with `-- --parents N`.
//!
//! For each of both: the time from the first DELETE until the last parent is gone, and the operator's calls by verb. Of the
//! tree also: how many lists of parents the gate made and how many bytes they had, and how many parents went before one
//! that depends on them. The order alone costs time, since a tree has as many levels; the ratio includes that.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use control_plane::{
    Plane,
    audit::{AuditLog, Verb},
    fixtures,
};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, CustomResource, CustomResourceExt, ResourceExt,
    api::{DeleteParams, ListParams, PostParams, WatchEvent, WatchParams},
    runtime::{Controller, controller::Action, controller::Config, watcher},
};
use kube_custody::{
    custodian::{Custodian, Desired, Error, Phase},
    gate::{Dependency, Gate, ParentKind},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

const MANAGER: &str = "gate.bench.example.com";
const CONCURRENCY: usize = 32;
/// Dependents of one parent.
const BRANCHES: usize = 4;

#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[kube(group = "gate.bench.example.com", version = "v1", kind = "Layer", namespaced)]
#[serde(rename_all = "camelCase")]
struct LayerSpec {
    #[serde(default)]
    depends_on: Vec<String>,
}

struct Context {
    custodian: Custodian<Layer>,
    applied: Mutex<std::collections::HashSet<String>>,
}

async fn reconcile(layer: Arc<Layer>, context: Arc<Context>) -> Result<Action, Error> {
    let map: ConfigMap = fixtures::from(json!({
        "metadata": {"name": format!("of-{}", layer.name_any()), "namespace": layer.namespace()}, "data": {"key": "value"},
    }));
    let desired = async |_: Arc<Layer>| {
        let mut desired = Desired::new();
        desired.push(&map)?;
        Ok::<_, kube_custody::custodian::DesiredError>(desired)
    };
    let outcome = context.custodian.reconcile(&*layer, desired).await;
    if outcome.phase == Phase::Applied {
        context.applied.lock().expect("no panic").insert(layer.name_any());
    }
    outcome.into_action()
}

struct Measured {
    seconds: f64,
    violated: usize,
    calls: String,
    per_parent: f64,
    lists: usize,
    bytes: usize,
}

fn name(n: usize) -> String {
    format!("layer-{n}")
}

/// The layer that `n` depends on, in a tree.
fn below(n: usize) -> Option<usize> {
    n.checked_sub(1).map(|n| n / BRANCHES)
}

async fn run(plane: &Plane, parents: usize, tree: bool) -> Measured {
    let admin = plane.client();
    let namespace = fixtures::namespace(&admin, "gate").await;
    let log = AuditLog::new();
    let client = log.client(plane.config()).expect("a client");
    let here = |layer: &Layer| layer.namespace();
    let gate = Gate::builder(client.clone(), MANAGER)
        .kind(ParentKind::new(move |layer: &Layer| {
            layer.spec.depends_on.iter().map(|name| Dependency::on::<Layer>(here(layer), name)).collect()
        }))
        .build()
        .expect("a gate");
    let custodian = Custodian::<Layer>::builder(client.clone(), MANAGER).gate(gate).build().expect("a custodian");
    let wakeups = custodian.wakeups().map(|wakeup| wakeup.object_ref::<Layer>());
    let layers = Api::<Layer>::namespaced(admin.clone(), &namespace);
    let context = Arc::new(Context { custodian, applied: Mutex::default() });
    let controller = Controller::new(Api::<Layer>::namespaced(client, &namespace), watcher::Config::default())
        .with_config(Config::default().concurrency(u16::try_from(CONCURRENCY).expect("few")))
        .reconcile_on(wakeups)
        .run(reconcile, |_, _, _| Action::requeue(Duration::from_secs(1)), Arc::clone(&context));
    let running = tokio::spawn(controller.for_each(|_| async {}));

    let creates = (0..parents).map(|n| {
        let depends_on = below(n).filter(|_| tree).map(name).into_iter().collect();
        let (layer, api) = (Layer::new(&name(n), LayerSpec { depends_on }), layers.clone());
        async move { api.create(&PostParams::default(), &layer).await.map(drop) }
    });
    let creates: Vec<_> = creates.collect();
    let created: Result<Vec<()>, _> = stream::iter(creates).buffered(CONCURRENCY).try_collect().await;
    created.expect("parents can be created");
    while context.applied.lock().expect("no panic").len() < parents {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }

    log.clear();
    let (gone, witness) = witness(&layers).await;
    let begin = Instant::now();
    // The root first: the worst order.
    let deletes: Vec<_> = (0..parents)
        .map(|n| {
            let api = layers.clone();
            async move { api.delete(&name(n), &DeleteParams::default()).await.map(drop) }
        })
        .collect();
    let deleted: Result<Vec<()>, _> = stream::iter(deletes).buffered(CONCURRENCY).try_collect().await;
    deleted.expect("parents can be deleted");
    while gone.lock().expect("no panic").len() < parents {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let seconds = begin.elapsed().as_secs_f64();
    running.abort();
    witness.abort();
    let gone = gone.lock().expect("no panic");
    let early = |n: &usize| below(*n).is_some_and(|m| tree && gone[&name(m)] <= gone[&name(*n)]);
    let mut verbs: BTreeMap<String, usize> = BTreeMap::new();
    let calls = log.calls_where(|c| c.head.verb != Verb::Watch);
    calls.iter().for_each(|c| *verbs.entry(format!("{:?}", c.head.verb)).or_default() += 1);
    let lists = log.calls_where(|c| c.head.verb == Verb::List && c.head.target.plural == "layers");
    let bytes = |answer: &serde_json::Value| answer.to_string().len();
    #[allow(clippy::cast_precision_loss, reason = "a ratio")]
    let per_parent = calls.len() as f64 / parents as f64;
    Measured {
        seconds,
        violated: (0..parents).filter(early).count(),
        calls: verbs.iter().map(|(verb, n)| format!("{n} {verb}")).collect::<Vec<_>>().join(", "),
        per_parent,
        lists: lists.len(),
        bytes: lists.iter().filter_map(|c| c.answer.as_ref()).map(bytes).sum(),
    }
}

/// When each parent went, by resource version.
async fn witness(layers: &Api<Layer>) -> (Arc<Mutex<HashMap<String, u64>>>, tokio::task::JoinHandle<()>) {
    let list = layers.list(&ListParams::default().limit(1)).await.expect("a list");
    let mut version = list.metadata.resource_version.unwrap_or_default();
    let (seen, api) = (Arc::new(Mutex::new(HashMap::new())), layers.clone());
    let record = Arc::clone(&seen);
    let task = tokio::spawn(async move {
        loop {
            let Ok(events) = api.watch(&WatchParams::default(), &version).await else { continue };
            let mut events = events.boxed();
            while let Some(Ok(event)) = events.next().await {
                if let WatchEvent::Added(layer) | WatchEvent::Modified(layer) | WatchEvent::Deleted(layer) = &event {
                    version = layer.resource_version().unwrap_or_default();
                }
                if let WatchEvent::Deleted(layer) = event {
                    let at = version.parse().unwrap_or(0);
                    record.lock().expect("no panic").insert(layer.name_any(), at);
                }
            }
        }
    });
    (seen, task)
}

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = arguments.iter().position(|a| a == "--parents").and_then(|at| arguments.get(at + 1));
    let parents = number.and_then(|n| n.parse().ok()).unwrap_or(1000);
    let plane = Plane::shared().await;
    fixtures::apply_crd(&plane.client(), &Layer::crd()).await;
    run(plane, 50, false).await;
    let alone = run(plane, parents, false).await;
    let tree = run(plane, parents, true).await;
    for (what, m) in [("independent", &alone), ("a tree", &tree)] {
        println!(
            "{parents} parents, {what}: {:.2} s; {:.1} calls a parent ({}); {} lists of parents, {} kB; {} violated",
            m.seconds,
            m.per_parent,
            m.calls,
            m.lists,
            m.bytes / 1024,
            m.violated
        );
    }
    println!("the tree takes {:.2} times as long", tree.seconds / alone.seconds);
    assert_eq!(tree.violated, 0, "the order was kept");
}
