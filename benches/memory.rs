//! Peak memory of a process that tears many objects down and did nothing before.
//!
//! `cargo bench --bench memory`, shorter with `-- --quick`. Creates the objects, starts itself again, and has that process
//! remove them: by a [`Teardown`] of records, or by a custodian whose parent is being deleted. Prints the peak of that
//! process's resident set (VmHWM), and the same of one that only connects, beside it.

use std::process::Command;

use control_plane::{Plane, fixtures};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client, CustomResource, CustomResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, PostParams},
};
use kube_custody::{
    custodian::{Custodian, Desired, Phase},
    object::{LiveRef, ObjectId, Uid},
    ownership::{
        OwnershipPolicy,
        proxy::{ClusterGitTrackOwner, GitTrackOwner, ProxyOwners},
    },
    teardown::Teardown,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// Most that a process may take at 5,000 objects, in MB.
const TARGET: f64 = 40.0;

/// A parent of the objects that a custodian removes.
#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[kube(group = "memory.example.com", version = "v1", kind = "Parent", namespaced)]
struct ParentSpec {}

fn custodian(client: &Client) -> Custodian<Parent> {
    Custodian::builder(client.clone(), "memory.example.com")
        .proxies::<GitTrackOwner, ClusterGitTrackOwner>()
        .ownership(OwnershipPolicy::ClusterWide)
        .build()
        .expect("a custodian")
}

fn maps(namespace: &str, objects: usize) -> impl Iterator<Item = serde_json::Value> {
    (0..objects).map(move |n| {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "data": {"key": "value"},
            "metadata": {"name": format!("object-{n:05}"), "namespace": namespace, "labels": {"bench": "memory"}},
        })
    })
}

/// Peak of the resident set of this process, in MB.
fn peak() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kb| kb.parse::<f64>().ok()).unwrap_or(f64::NAN) / 1024.0
}

/// The measured process. `what` is one of `nothing`, `plan` and `custodian`.
async fn remove(what: &str, namespace: &str) {
    let client = Client::try_default().await.expect("KUBECONFIG is set");
    match what {
        "nothing" => drop(client.apiserver_version().await.expect("it answers")),
        "plan" => {
            let plan = Teardown::new(records(&client, namespace).await).selector("bench=memory").plan();
            plan.expect("no cycle").run(&client).await.expect("everything goes");
        }
        "custodian" => {
            let custodian = custodian(&client);
            let parents: Api<Parent> = Api::namespaced(client, namespace);
            loop {
                let Some(parent) = parents.get_opt("parent").await.expect("an answer") else { break };
                let outcome = custodian.reconcile(&parent, async |_| Ok::<_, std::io::Error>(Desired::new())).await;
                assert!(matches!(outcome.phase, Phase::Deleting | Phase::Released), "{outcome:?}");
                tokio::time::sleep(outcome.requeue.unwrap_or_default()).await;
            }
        }
        other => panic!("no such measurement: {other}"),
    }
    println!("{}", peak());
}

/// The caller's records, as they were kept somewhere: read page by page, so that the list itself takes little.
async fn records(client: &Client, namespace: &str) -> Vec<LiveRef> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let mut params = ListParams::default().labels("bench=memory").limit(200);
    let mut records = Vec::new();
    loop {
        let page = api.list_metadata(&params).await.expect("a list");
        records.extend(page.items.iter().map(|map| {
            let name = map.metadata.name.as_deref().unwrap_or_default();
            let id = ObjectId::new("", "ConfigMap", Some(namespace), name).expect("it has a name");
            LiveRef::new(id, Uid::of(&map.metadata).expect("it was created"))
        }));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return records,
        }
    }
}

async fn prepare(what: &str, client: &Client, namespace: &str, objects: usize) {
    match what {
        "plan" => {
            let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
            let creates = maps(namespace, objects).map(|map| {
                let api = api.clone();
                let map: ConfigMap = serde_json::from_value(map).expect("a ConfigMap");
                async move { api.create(&PostParams::default(), &map).await.map(drop) }
            });
            let created: Result<(), _> = stream::iter(creates).buffer_unordered(32).try_collect().await;
            created.expect("objects can be created");
        }
        "custodian" => {
            let parents: Api<Parent> = Api::namespaced(client.clone(), namespace);
            let parent = Parent::new("parent", ParentSpec {});
            let mut parent = parents.create(&PostParams::default(), &parent).await.expect("a parent");
            let custodian = custodian(client);
            let set: Vec<DynamicObject> =
                maps(namespace, objects).map(|map| serde_json::from_value(map).expect("a manifest")).collect();
            loop {
                let desired = Desired::from(set.clone());
                let outcome = custodian.reconcile(&parent, async |_| Ok::<_, std::io::Error>(desired)).await;
                if outcome.phase == Phase::Applied {
                    break;
                }
                assert!(outcome.phase == Phase::Progressing, "{outcome:?}");
                parent = parents.get("parent").await.expect("it lives");
            }
            parents.delete("parent", &DeleteParams::default()).await.expect("it can be deleted");
        }
        _ => {}
    }
}

async fn measure(plane: &Plane, what: &str, objects: usize) -> f64 {
    let client = plane.client();
    let namespace = fixtures::namespace(&client, "memory").await;
    prepare(what, &client, &namespace, objects).await;
    let mut command = Command::new(std::env::current_exe().expect("a path"));
    command.env("KUBECONFIG", plane.kubeconfig()).args(["measured", what, &namespace]);
    let output = tokio::task::spawn_blocking(move || command.output()).await.expect("no panic").expect("it starts");
    let words = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}{words}", String::from_utf8_lossy(&output.stderr));
    let api: Api<ConfigMap> = Api::namespaced(client, &namespace);
    let left = api.list_metadata(&ListParams::default().labels("bench=memory")).await.expect("a list");
    assert!(left.items.is_empty(), "everything is gone");
    words.trim().parse().expect("a number")
}

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [role, what, namespace] = arguments.as_slice()
        && role == "measured"
    {
        return remove(what, namespace).await;
    }
    let sizes: &[usize] = if arguments.iter().any(|a| a == "--quick") { &[1000] } else { &[1000, 5000] };
    let plane = Plane::shared().await;
    let client = plane.client();
    fixtures::apply_crd(&client, &Parent::crd()).await;
    for crd in <(GitTrackOwner, ClusterGitTrackOwner)>::crds() {
        fixtures::apply_crd(&client, &crd).await;
    }
    println!("a process that only connects        peak {:.1} MB", measure(plane, "nothing", 0).await);
    for what in ["plan", "custodian"] {
        for objects in sizes {
            let peak = measure(plane, what, *objects).await;
            println!("{what:<12} {objects:>6} objects         peak {peak:.1} MB (target {TARGET:.0} MB at 5,000)");
        }
    }
}
