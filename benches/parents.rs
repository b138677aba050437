//! 1,000 parents of 20 children each, deleted at once, and an operator that comes back to find them so.
//!
//! `cargo bench --bench parents`, 100 parents with `-- --quick`, any number with `-- --parents N`.
//!
//! One process creates everything through a custodian and deletes the parents. Another, started fresh, is the operator
//! that is measured: the watches that it opens, its calls by verb, its peak memory (with the controller's cache of parents),
//! and the time from its start until the last parent is let go. Then the same process deletes as many objects like the
//! children by nothing but concurrent DELETEs: the floor. Children are ConfigMaps, Secrets and Roles in the parents'
//! namespaces, ServiceAccounts in another one, and ClusterRoles.

use std::{
    collections::{BTreeMap, HashSet},
    path::Path,
    process::Command,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use control_plane::{Plane, fixtures};
use futures::{StreamExt, TryStreamExt, stream};
use kube::{
    Api, Client, Config, CustomResource, CustomResourceExt, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, PostParams},
    client::ClientBuilder,
    config::{KubeConfigOptions, Kubeconfig},
    core::GroupVersionKind,
    runtime::{Controller, controller, controller::Action, watcher},
};
use kube_custody::{
    custodian::{Custodian, Desired, Error, Phase},
    ownership::OwnershipPolicy,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tower::util::MapRequestLayer;

const MANAGER: &str = "parents.bench.example.com";
const CHILDREN: usize = 20;
/// Parents reconciled at once, and DELETEs of the floor in flight.
const CONCURRENCY: usize = 32;
/// Namespaces that the parents live in.
const NAMESPACES: usize = 10;

#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[kube(group = "parents.bench.example.com", version = "v1", kind = "Tenant", namespaced)]
struct TenantSpec {}

/// Where everything is, for both processes.
#[derive(Clone)]
struct Places {
    /// The namespace of the ServiceAccounts; the parents' are this with a number.
    base: String,
    parents: usize,
}

impl Places {
    fn of(&self, parent: usize) -> String {
        format!("{}-{}", self.base, parent % NAMESPACES)
    }

    /// The manifests of one parent's children.
    fn children(&self, namespace: &str, parent: &str) -> Vec<DynamicObject> {
        let (core, rbac) = ("v1", "rbac.authorization.k8s.io/v1");
        (0..CHILDREN)
            .map(|n| {
                let name = format!("{}-{parent}-{n}", self.base);
                let (version, kind, place) = match n {
                    0 => (rbac, "ClusterRole", None),
                    1 | 2 => (core, "ServiceAccount", Some(self.base.as_str())),
                    3..6 => (core, "Secret", Some(namespace)),
                    6..8 => (rbac, "Role", Some(namespace)),
                    _ => (core, "ConfigMap", Some(namespace)),
                };
                let mut object =
                    json!({"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": place}});
                match kind {
                    "ConfigMap" => object["data"] = json!({"key": "value"}),
                    "Secret" => object["stringData"] = json!({"key": "value"}),
                    _ => {}
                }
                fixtures::from(object)
            })
            .collect()
    }
}

struct Context {
    custodian: Custodian<Tenant>,
    places: Places,
    reached: Mutex<HashSet<String>>,
    phase: Phase,
}

async fn reconcile(tenant: Arc<Tenant>, context: Arc<Context>) -> Result<Action, Error> {
    let children = context.places.children(&tenant.namespace().unwrap_or_default(), &tenant.name_any());
    let desired = Desired::from(children);
    let outcome = context.custodian.reconcile(&*tenant, async |_| Ok::<_, std::io::Error>(desired)).await;
    if outcome.phase == context.phase {
        context.reached.lock().expect("no panic").insert(tenant.uid().unwrap_or_default());
    }
    outcome.into_action()
}

/// Runs the operator until it has seen every parent in `phase`.
async fn operate(client: &Client, places: &Places, phase: Phase) -> Arc<Context> {
    let custodian = Custodian::<Tenant>::builder(client.clone(), MANAGER).ownership(OwnershipPolicy::ClusterWide);
    let custodian = custodian.build().expect("a custodian");
    let wakeups = custodian.wakeups().map(|wakeup| wakeup.object_ref::<Tenant>());
    let context = Arc::new(Context { custodian, places: places.clone(), reached: Mutex::default(), phase });
    let limit = u16::try_from(CONCURRENCY).expect("few");
    let controller = Controller::new(Api::<Tenant>::all(client.clone()), watcher::Config::default())
        .with_config(controller::Config::default().concurrency(limit))
        .reconcile_on(wakeups)
        .run(reconcile, |_, _, _| Action::requeue(Duration::from_secs(1)), Arc::clone(&context));
    let running = tokio::spawn(controller.for_each(|_| async {}));
    while context.reached.lock().expect("no panic").len() < places.parents {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    running.abort();
    context
}

/// Does something with many objects, so many at once.
async fn each<T, Fut>(work: impl IntoIterator<Item = T>, act: impl Fn(T) -> Fut)
where
    Fut: Future<Output = kube::Result<()>>,
{
    let calls: Vec<_> = work.into_iter().map(act).collect();
    let done: Result<Vec<()>, _> = stream::iter(calls).buffer_unordered(CONCURRENCY).try_collect().await;
    done.expect("the API server does it");
}

fn api_of(client: &Client, object: &DynamicObject) -> Api<DynamicObject> {
    let types = object.types.clone().unwrap_or_default();
    let (group, version) = types.api_version.rsplit_once('/').unwrap_or(("", &types.api_version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &types.kind));
    match object.namespace() {
        Some(namespace) => Api::namespaced_with(client.clone(), &namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

/// A line of /proc/self/status, in MB.
fn memory(key: &str) -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(key)).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kb| kb.parse::<f64>().ok()).unwrap_or(f64::NAN) / 1024.0
}

/// Calls by what they do, the resource, and for watches the place. Keeps no more than counts: the memory is measured, too.
#[derive(Clone, Default)]
struct Calls(Arc<Mutex<BTreeMap<(String, String), usize>>>);

impl Calls {
    fn client(&self, config: Config) -> Client {
        let calls = self.clone();
        let count = move |request: http::Request<kube::client::Body>| {
            calls.count(&request);
            request
        };
        ClientBuilder::try_from(config).expect("a client").with_layer(&MapRequestLayer::new(count)).build()
    }

    fn count(&self, request: &http::Request<kube::client::Body>) {
        let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let mut rest = parts.get(if parts.first() == Some(&"apis") { 3 } else { 2 }..).unwrap_or_default();
        if rest.len() > 2 && rest[0] == "namespaces" {
            rest = &rest[2..];
        }
        let resource = (*rest.first().unwrap_or(&"discovery")).to_owned();
        let key = match (request.method().as_str(), rest.len()) {
            ("GET", _) if query.contains("watch=true") => ("watch".to_owned(), path.to_owned()),
            ("GET", 0) => ("get".to_owned(), resource),
            ("GET", 1) => ("list".to_owned(), resource),
            (method, _) => (method.to_ascii_lowercase(), resource),
        };
        *self.0.lock().expect("no panic").entry(key).or_default() += 1;
    }

    fn take(&self) -> BTreeMap<(String, String), usize> {
        std::mem::take(&mut *self.0.lock().expect("no panic"))
    }
}

/// The operator that is measured, and then the floor, in a process of its own.
async fn measure(config: Config, places: &Places) {
    const KINDS: [&str; 5] = ["configmaps", "secrets", "roles", "serviceaccounts", "clusterroles"];
    let calls = Calls::default();
    let client = calls.client(config);
    let (start, begin) = (memory("VmRSS"), Instant::now());
    let context = operate(&client, places, Phase::Released).await;
    let (ours, peak) = (begin.elapsed().as_secs_f64(), memory("VmHWM"));
    let places_watched = context.custodian.watches();
    let made = calls.take();
    let (watches, others): (Vec<_>, Vec<_>) = made.iter().partition(|((verb, _), _)| verb == "watch");
    drop(context);

    // The same objects, without anybody's marks.
    let objects: Vec<DynamicObject> =
        (0..places.parents).flat_map(|n| places.children(&places.of(n), &format!("tenant-{n}"))).collect();
    each(&objects, async |object| api_of(&client, object).create(&PostParams::default(), object).await.map(drop)).await;
    let begin = Instant::now();
    each(&objects, async |object| {
        api_of(&client, object).delete(&object.name_any(), &DeleteParams::default()).await.map(drop)
    })
    .await;
    let floor = begin.elapsed().as_secs_f64();

    let (parents, children) = (places.parents, places.parents * CHILDREN);
    // Inventories are ConfigMaps, too, one a parent.
    println!("{parents} parents x {CHILDREN} children: {ours:.2} s, floor {floor:.2} s, {:.2}x", ours / floor);
    println!("memory: {start:.1} MB at the start, peak {peak:.1} MB");
    println!("custodian watches: {}", places_watched.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "));
    let opened: Vec<_> = watches.iter().map(|((_, path), n)| format!("{path} {n}")).collect();
    println!("watches: {} places, the parents' included ({})", watches.len(), opened.join(", "));
    #[allow(clippy::cast_precision_loss, reason = "a ratio")]
    let share = |n: usize, of: usize| n as f64 / of as f64;
    let mut total = 0;
    for ((verb, resource), n) in others {
        total += n;
        println!(
            "  {verb:<6} {resource:<18} {n:>6}  {:.3} a child  {:.2} a parent",
            share(*n, children),
            share(*n, parents)
        );
    }
    println!("  all    {total:>25}  {:.3} a child  {:.2} a parent", share(total, children), share(total, parents));
    assert!(watches.len() <= KINDS.len() + 1, "watches are bounded by kinds: {opened:?}");
}

async fn config(kubeconfig: &Path) -> Config {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).expect("the plane wrote it");
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.expect("it is usable")
}

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value = |flag: &str| arguments.iter().position(|a| a == flag).and_then(|at| arguments.get(at + 1));
    let default = if arguments.iter().any(|a| a == "--quick") { 100 } else { 1000 };
    let parents = value("--parents").and_then(|n| n.parse().ok()).unwrap_or(default);
    if let (Some(kubeconfig), Some(base)) = (value("--measure"), value("--base")) {
        measure(config(Path::new(kubeconfig)).await, &Places { base: base.clone(), parents }).await;
        return;
    }

    let plane = Plane::shared().await;
    let admin = plane.client();
    fixtures::apply_crd(&admin, &Tenant::crd()).await;
    let places = Places { base: fixtures::namespace(&admin, "parents").await, parents };
    let namespaces = Api::all(admin.clone());
    for n in 0..NAMESPACES {
        let _: k8s_openapi::api::core::v1::Namespace =
            fixtures::create(&namespaces, json!({"metadata": {"name": places.of(n)}})).await;
    }
    let tenants = |n: usize| Api::<Tenant>::namespaced(admin.clone(), &places.of(n));
    each(0..parents, |n| {
        let (api, tenant) = (tenants(n), Tenant::new(&format!("tenant-{n}"), TenantSpec {}));
        async move { api.create(&PostParams::default(), &tenant).await.map(drop) }
    })
    .await;
    operate(&admin, &places, Phase::Applied).await;
    each(0..parents, |n| {
        let api = tenants(n);
        async move { api.delete(&format!("tenant-{n}"), &DeleteParams::default()).await.map(drop) }
    })
    .await;

    let mut measured = Command::new(std::env::current_exe().expect("this program"));
    measured.arg("--measure").arg(plane.kubeconfig()).args(["--base", &places.base, "--parents", &parents.to_string()]);
    let status = tokio::task::spawn_blocking(move || measured.status()).await.expect("no panic").expect("it starts");
    assert!(status.success(), "{status}");
}
