//! What it costs to find the order of a set by rules, beside reading its manifests once.
//!
//! The set is that of many teams: in each namespace operators with accounts, roles, bindings, webhooks and Services, custom
//! resources that they serve, workloads with ConfigMaps, Secrets and claims, policies and quotas; and in the whole cluster
//! an administrator's workload and a webhook that covers everything.
//!
//! Prints, for each size, the median times of finding all edges and building the graph, of building a graph of the same
//! objects and edges that are known beforehand, and of reading every manifest once from JSON; the ratios of the first to the
//! other two (ratios count, times don't), and the time an object takes, which shows whether growth is linear.
//!
//! `cargo bench --bench rules`, or with the largest number of objects: `cargo bench --bench rules -- 10000`.

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use kube_core::DynamicObject;
use kube_custody::{
    graph::{DependencyGraph, GraphBuilder, ManifestSet, Rules},
    inventory::Requirement,
    object::ObjectId,
};
use serde_json::{Value, json};

const RUNS: usize = 5;

fn object(api_version: &str, kind: &str, namespace: Option<&str>, name: &str, more: Value) -> Value {
    let mut value =
        json!({"apiVersion": api_version, "kind": kind, "metadata": {"namespace": namespace, "name": name}});
    if let (Some(value), Value::Object(more)) = (value.as_object_mut(), more) {
        value.extend(more);
    }
    value
}

fn workload(namespace: &str, name: &str, account: &str) -> Value {
    let labels = json!({"app": name});
    let container = json!({"name": "main", "image": "registry.example.com/team/main:1", "envFrom": [{"secretRef": {"name": name}}]});
    let volumes = json!([{"name": "c", "configMap": {"name": name}}, {"name": "d", "persistentVolumeClaim": {"claimName": name}}]);
    let pod = json!({"serviceAccountName": account, "containers": [container], "volumes": volumes});
    let template = json!({"metadata": {"labels": labels}, "spec": pod});
    let spec = json!({"replicas": 2, "selector": {"matchLabels": labels}, "template": template});
    object("apps/v1", "Deployment", Some(namespace), name, json!({"spec": spec}))
}

fn bound(namespace: &str, account: &str, role: &str) -> Value {
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role});
    let subjects = json!([{"kind": "ServiceAccount", "namespace": namespace, "name": account}]);
    let name = format!("{namespace}-{account}");
    let more = json!({"roleRef": role, "subjects": subjects});
    object("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", None, &name, more)
}

fn webhook(name: &str, namespace: &str, group: &str) -> Value {
    let rules = json!([{"apiGroups": [group], "apiVersions": ["*"], "resources": ["*"], "operations": ["*"]}]);
    let client = json!({"service": {"namespace": namespace, "name": "hook"}});
    let hook = json!({"name": "check.example.com", "rules": rules, "clientConfig": client});
    let (api, kind) = ("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration");
    object(api, kind, None, name, json!({"webhooks": [hook]}))
}

/// One team: 50 objects.
fn team(number: usize) -> Vec<Value> {
    let namespace = format!("team-{number:05}");
    let (ns, group) = (namespace.as_str(), format!("g{number}.example.com"));
    let plain = |kind: &str, name: &str| object("v1", kind, Some(ns), name, json!({}));
    let rules = json!([{"apiGroups": [group], "resources": ["things", "things/status"], "verbs": ["get", "update"]}]);
    let names = json!({"kind": "Thing", "plural": "things"});
    let mut set = vec![
        object("v1", "Namespace", None, ns, json!({})),
        plain("ServiceAccount", "operator"),
        object("rbac.authorization.k8s.io/v1", "ClusterRole", None, ns, json!({"rules": rules})),
        bound(ns, "operator", ns),
        workload(ns, "operator", "operator"),
        object("v1", "Service", Some(ns), "hook", json!({"spec": {"selector": {"app": "operator"}}})),
        webhook(ns, ns, &group),
        object(
            "apiextensions.k8s.io/v1",
            "CustomResourceDefinition",
            None,
            &format!("things.{group}"),
            json!({
                "spec": {"group": group, "names": names},
            }),
        ),
        object("v1", "ResourceQuota", Some(ns), "quota", json!({})),
        object("networking.k8s.io/v1", "NetworkPolicy", Some(ns), "policy", json!({"spec": {"podSelector": {}}})),
    ];
    for n in 0..8 {
        let name = format!("web-{n}");
        set.push(workload(ns, &name, "default"));
        set.extend(["ConfigMap", "Secret", "PersistentVolumeClaim"].map(|kind| plain(kind, &name)));
    }
    let things = (0..8).map(|n| object(&format!("{group}/v1"), "Thing", Some(ns), &format!("t{n}"), json!({})));
    set.extend(things);
    set
}

fn set(objects: usize) -> Vec<Value> {
    let everything = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]);
    let mut set = vec![
        object("rbac.authorization.k8s.io/v1", "ClusterRole", None, "admin", json!({"rules": everything})),
        bound("team-00000", "admin", "admin"),
        workload("team-00000", "admin", "admin"),
        webhook("everything", "team-00000", "*"),
    ];
    set.extend((0..).flat_map(team).take(objects - set.len()));
    set
}

fn infer(manifests: &[(ObjectId, DynamicObject)], rules: &Rules) -> DependencyGraph {
    let mut builder = GraphBuilder::with_capacity(manifests.len(), manifests.len());
    for (id, _) in manifests {
        builder.add(id.clone()).expect("no duplicate");
    }
    builder.infer(rules, &ManifestSet::new(manifests.iter().map(|(id, object)| (id, object))));
    builder.build().expect("nothing is declared")
}

type Edges = Vec<(ObjectId, ObjectId, Requirement)>;

/// Every edge, given up or not, as somebody would declare it who knows it already.
fn edges(graph: &DependencyGraph) -> Edges {
    let held = graph.nodes().flat_map(|from| graph.edges(from).map(move |edge| (from, edge.to, edge.requirement)));
    let given_up = graph.given_up().iter().map(|g| (g.from, g.to, &g.requirement));
    held.chain(given_up).map(|(a, b, r)| (graph.id(a).clone(), graph.id(b).clone(), r.clone())).collect()
}

fn known(manifests: &[(ObjectId, DynamicObject)], edges: &Edges) -> DependencyGraph {
    let mut builder = GraphBuilder::with_capacity(manifests.len(), edges.len());
    for (id, _) in manifests {
        builder.add(id.clone()).expect("no duplicate");
    }
    for (from, to, requirement) in edges {
        let from = builder.slot(from).expect("it was added");
        builder.depend_on_id(from, to, requirement.clone());
    }
    builder.build().expect("nothing is declared")
}

fn read(texts: &[String]) -> usize {
    texts.iter().filter(|text| black_box(serde_json::from_str::<DynamicObject>(text)).is_ok()).count()
}

fn timed<T>(run: impl FnOnce() -> T) -> Duration {
    let start = Instant::now();
    black_box(run());
    start.elapsed()
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1000.0
}

fn main() {
    let largest = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(40_000);
    let columns = ["objects", "edges", "given up", "rules ms", "graph ms", "ratio", "read ms", "ratio", "µs/object"];
    println!("{}", columns.map(|column| format!("{column:>10}")).join(""));
    for objects in [1_000, 2_500, 10_000, 40_000].into_iter().filter(|n| *n <= largest) {
        let values = set(objects);
        let texts: Vec<_> = values.iter().map(Value::to_string).collect();
        let mut manifests: Vec<_> = values
            .into_iter()
            .map(|value| serde_json::from_value::<DynamicObject>(value).expect("a manifest"))
            .map(|object| (ObjectId::of(&object).expect("an identity"), object))
            .collect();
        manifests.sort_by(|a, b| a.0.cmp(&b.0));
        let rules = Rules::standard();
        let graph = infer(&manifests, &rules);
        let all = edges(&graph);
        let (mut by_rules, mut by_edges, mut reading) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..RUNS {
            by_rules.push(timed(|| infer(&manifests, &rules)));
            by_edges.push(timed(|| known(&manifests, &all)));
            reading.push(timed(|| read(&texts)));
        }
        let [rules, graphs, reads] = [by_rules, by_edges, reading].map(median);
        #[allow(clippy::cast_precision_loss, reason = "a count for people")]
        let each = rules * 1000.0 / objects as f64;
        println!(
            "{objects:>10}{:>10}{:>10}{rules:>10.1}{graphs:>10.1}{:>10.2}{reads:>10.1}{:>10.2}{each:>10.2}",
            all.len(),
            graph.given_up().len(),
            rules / graphs,
            rules / reads,
        );
    }
}
