//! Teardown on a real control plane, beside raw concurrent DELETEs of as many objects by the same client.
//!
//! `cargo bench --bench teardown`, shorter with `-- --quick`, only some workloads with a part of their name.
//!
//! For each workload: the median time of ours and of the floor, measured in turn, and their ratio; the edges of which the
//! dependency was deleted first, judged by an independent watch (names are scrambled, so that no order by name helps);
//! API calls by verb; growth of the process's peak memory, and its CPU time in user mode.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use control_plane::{Plane, audit::AuditLog, fixtures};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client, CustomResource, CustomResourceExt, ResourceExt,
    api::{
        DeleteParams, DynamicObject, ListParams, PartialObjectMeta, Patch, PatchParams, PostParams, WatchEvent,
        WatchParams,
    },
};
use kube_custody::{
    custodian::{Custodian, Desired, Phase},
    object::{LiveRef, ObjectId, Uid},
    ownership::{
        OwnershipPolicy,
        proxy::{ClusterGitTrackOwner, GitTrackOwner, ProxyOwners},
    },
    teardown::{Happened, Teardown},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

const CONCURRENCY: usize = 32;
const FINALIZER: &str = "bench.example.com/hold";

/// A parent of the custodian's workloads.
#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[kube(group = "bench.example.com", version = "v1", kind = "Parent", namespaced)]
struct ParentSpec {}

/// Objects, edges between them (dependent, dependency), and which of them somebody holds for a while.
struct Workload {
    name: &'static str,
    objects: usize,
    edges: Vec<(usize, usize)>,
    held: HashSet<usize>,
    hold: Duration,
    /// Requests of the floor in flight.
    concurrency: usize,
    target: f64,
}

impl Workload {
    fn new(name: &'static str, objects: usize, edges: Vec<(usize, usize)>, target: f64) -> Self {
        Self { name, objects, edges, held: HashSet::new(), hold: Duration::ZERO, concurrency: CONCURRENCY, target }
    }

    /// What depends on nothing that is held: all but what is held and the dependencies below it.
    fn unrelated(&self) -> HashSet<usize> {
        let mut below: HashMap<usize, Vec<usize>> = HashMap::new();
        self.edges.iter().for_each(|(from, to)| below.entry(*from).or_default().push(*to));
        let mut tied = HashSet::new();
        let mut next: Vec<usize> = self.held.iter().copied().collect();
        while let Some(n) = next.pop() {
            if tied.insert(n) {
                next.extend(below.get(&n).into_iter().flatten());
            }
        }
        (0..self.objects).filter(|n| !tied.contains(n)).collect()
    }
}

/// 100 chains of 10: object 10 c + l of chain c depends on the next of its chain.
fn chains() -> Vec<(usize, usize)> {
    (0..1000).filter(|n| n % 10 != 9).map(|n| (n, n + 1)).collect()
}

fn workloads() -> Vec<Workload> {
    let mut chain = Workload::new("one chain of 200", 200, (1..200).map(|n| (n - 1, n)).collect(), 1.2);
    chain.concurrency = 1;
    vec![
        Workload::new("1,000 in 100 chains of 10", 1000, chains(), 1.3),
        chain,
        Workload::new("hub with 1,000 dependents", 1001, (1..1001).map(|n| (n, 0)).collect(), 1.4),
        Workload::new("object with 1,000 dependencies", 1001, (1..1001).map(|n| (0, n)).collect(), 1.4),
        Workload::new("5,000 independent", 5000, Vec::new(), 1.3),
    ]
}

fn held_workloads() -> [Workload; 2] {
    let mut ten = Workload::new("ten of 1,000 held 5 s", 1000, chains(), 1.1);
    // The heads of ten chains: 900 objects are unrelated.
    (ten.held, ten.hold) = ((0..100).map(|n| n * 10).take(10).collect(), Duration::from_secs(5));
    let mut level = Workload::new("one a level held 2 s", 1000, chains(), 1.1);
    // In ten different chains, so that the holds overlap.
    (level.held, level.hold) = ((0..10).map(|l| l * 10 + l).collect(), Duration::from_secs(2));
    [ten, level]
}

/// A name that says nothing about the index (SplitMix64).
fn name(n: usize) -> String {
    let mut z = (n as u64).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    format!("x{:016x}", z ^ (z >> 31))
}

struct Bench {
    plane: &'static Plane,
    /// Prepares and holds; another than the one measured.
    admin: Client,
    namespace: String,
    rounds: usize,
}

/// What one run came to.
#[derive(Default)]
struct Measured {
    seconds: f64,
    /// Until the last unrelated object was gone.
    unrelated: f64,
    cpu: f64,
    /// Growth of the peak of the resident set, and the peak, in MB. The allocator reuses what the preparation freed, so
    /// the growth alone may look too good.
    memory: f64,
    peak: f64,
}

fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// User CPU time of this process in seconds, in ticks of 10 ms.
fn user_cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    after_name.split_whitespace().nth(11).and_then(|t| t.parse::<f64>().ok()).unwrap_or(f64::NAN) / 100.0
}

/// A line of /proc/self/status, in MB.
fn memory(key: &str) -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(key)).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kb| kb.parse::<f64>().ok()).unwrap_or(f64::NAN) / 1024.0
}

fn reset_peak() {
    // 5 resets the peak of the resident set.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

impl Bench {
    fn maps(&self, client: &Client) -> Api<ConfigMap> {
        Api::namespaced(client.clone(), &self.namespace)
    }

    fn selector(label: &str) -> String {
        format!("bench={label}")
    }

    /// Creates the objects of a workload; returns them as a caller's records would have them.
    async fn create(&self, workload: &Workload, label: &str) -> Vec<LiveRef> {
        let api = self.maps(&self.admin);
        let creates: Vec<_> = (0..workload.objects)
            .map(|n| {
                let api = api.clone();
                let finalizers = workload.held.contains(&n).then(|| vec![FINALIZER]);
                let map = json!({
                    "metadata": {"name": name(n), "labels": {"bench": label}, "finalizers": finalizers},
                    "data": {"key": "value"},
                });
                let map: ConfigMap = serde_json::from_value(map).expect("a ConfigMap");
                async move { api.create(&PostParams::default(), &map).await }
            })
            .collect();
        let created: Vec<ConfigMap> =
            stream::iter(creates).buffered(CONCURRENCY).try_collect().await.expect("objects can be created");
        let reference = |map: &ConfigMap| {
            let uid = Uid::of(&map.metadata).expect("it was created");
            LiveRef::new(ObjectId::of_resource(map).expect("it has a name"), uid)
        };
        created.iter().map(reference).collect()
    }

    async fn floor(&self, client: &Client, workload: &Workload) -> f64 {
        let label = fixtures::ns("floor");
        self.create(&Workload::new("", workload.objects, Vec::new(), 0.0), &label).await;
        let api = self.maps(client);
        let begin = Instant::now();
        let deletes: Vec<_> = (0..workload.objects)
            .map(|n| {
                let api = api.clone();
                async move { api.delete(&name(n), &DeleteParams::default()).await.map(drop) }
            })
            .collect();
        let deleted: Result<Vec<()>, _> =
            stream::iter(deletes).buffer_unordered(workload.concurrency).try_collect().await;
        deleted.expect("objects can be deleted");
        begin.elapsed().as_secs_f64()
    }

    fn edges(workload: &Workload, objects: &[LiveRef]) -> Vec<(ObjectId, ObjectId)> {
        workload.edges.iter().map(|(from, to)| (objects[*from].id.clone(), objects[*to].id.clone())).collect()
    }

    /// Releases what is held, each object so long after its deletion was accepted.
    fn holder(&self, label: &str, hold: Duration) -> tokio::task::JoinHandle<()> {
        let (api, selector) = (self.maps(&self.admin), Self::selector(label));
        tokio::spawn(async move {
            let list = api.list(&ListParams::default().labels(&selector)).await.expect("a list");
            let version = list.metadata.resource_version.unwrap_or_default();
            let events = api.watch(&WatchParams::default().labels(&selector), &version).await.expect("a watch");
            let mut events = events.boxed();
            let mut released = HashSet::new();
            while let Some(Ok(event)) = events.next().await {
                let WatchEvent::Modified(map) = event else { continue };
                if map.metadata.deletion_timestamp.is_none() || !released.insert(map.name_any()) {
                    continue;
                }
                let api = api.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(hold).await;
                    let off = json!({"metadata": {"finalizers": null}});
                    let _ = api.patch(&map.name_any(), &PatchParams::default(), &Patch::Merge(off)).await;
                });
            }
        })
    }

    async fn ours(&self, client: &Client, workload: &Workload) -> Measured {
        let label = fixtures::ns("ours");
        let objects = self.create(workload, &label).await;
        let holder = (!workload.held.is_empty()).then(|| self.holder(&label, workload.hold));
        if holder.is_some() {
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        let unrelated: HashSet<ObjectId> = workload.unrelated().iter().map(|n| objects[*n].id.clone()).collect();
        let edges = Self::edges(workload, &objects);
        reset_peak();
        let (cpu, rss, begin) = (user_cpu(), memory("VmRSS"), Instant::now());
        let mut last_unrelated = begin;
        let plan = Teardown::new(objects).edges(edges).selector(Self::selector(&label)).plan().expect("no cycle");
        let seen = |happened| {
            if let Happened::Settled(id, _) = happened
                && unrelated.contains(&id)
            {
                last_unrelated = Instant::now();
            }
        };
        let report = plan.run(client).concurrency(CONCURRENCY).progress(seen).await.expect("everything goes");
        let seconds = begin.elapsed().as_secs_f64();
        let measured = Measured {
            seconds,
            unrelated: (last_unrelated - begin).as_secs_f64(),
            cpu: user_cpu() - cpu,
            memory: memory("VmHWM") - rss,
            peak: memory("VmHWM"),
        };
        assert_eq!(report.gone.len(), workload.objects);
        holder.iter().for_each(|task| task.abort());
        measured
    }

    /// Watches deletions of objects with the label from now on: the order in which they went.
    async fn witness(&self, selector: &str) -> (Arc<Mutex<HashMap<String, u64>>>, tokio::task::JoinHandle<()>) {
        let client = self.plane.client();
        let api: Api<PartialObjectMeta<ConfigMap>> = Api::namespaced(client, &self.namespace);
        let list = api.list(&ListParams::default().labels(selector).limit(1)).await.expect("a list");
        let version = list.metadata.resource_version.unwrap_or_default();
        let events = api.watch(&WatchParams::default().labels(selector), &version).await.expect("a watch");
        let seen = Arc::new(Mutex::new(HashMap::new()));
        let record = Arc::clone(&seen);
        let task = tokio::spawn(async move {
            let mut events = events.boxed();
            while let Some(Ok(event)) = events.next().await {
                if let WatchEvent::Deleted(map) = event {
                    let version = map.metadata.resource_version.as_deref().and_then(|v| v.parse().ok()).unwrap_or(0);
                    record.lock().expect("no panic").insert(map.metadata.name.unwrap_or_default(), version);
                }
            }
        });
        (seen, task)
    }

    /// Edges whose dependency went no later than the dependent, once all deletions were seen.
    async fn violated(workload: &Workload, seen: &Mutex<HashMap<String, u64>>) -> usize {
        fixtures::eventually("all deletions are seen", async || {
            let all = (0..workload.objects).all(|n| seen.lock().expect("no panic").contains_key(&name(n)));
            all.then_some(())
        })
        .await;
        let seen = seen.lock().expect("no panic");
        workload.edges.iter().filter(|(from, to)| seen[&name(*from)] >= seen[&name(*to)]).count()
    }

    /// One run with recorded calls, beside an independent watch.
    async fn checked(&self, workload: &Workload) -> (usize, String) {
        let log = AuditLog::new();
        log.keep_bodies(false);
        let client = log.client(self.plane.config()).expect("a client");
        let label = fixtures::ns("checked");
        let objects = self.create(workload, &label).await;
        let (seen, task) = self.witness(&Self::selector(&label)).await;
        let edges = Self::edges(workload, &objects);
        let holder = (!workload.held.is_empty()).then(|| self.holder(&label, workload.hold));
        let plan = Teardown::new(objects).edges(edges).selector(Self::selector(&label)).plan().expect("no cycle");
        plan.run(&client).await.expect("everything goes");
        let violated = Self::violated(workload, &seen).await;
        task.abort();
        holder.iter().for_each(|task| task.abort());
        (violated, calls(&log, workload.objects))
    }

    async fn standalone(&self, workload: &Workload) -> Measured {
        let client = self.plane.client();
        let (mut floors, mut runs) = (Vec::new(), Vec::new());
        for _ in 0..self.rounds {
            floors.push(self.floor(&client, workload).await);
            runs.push(self.ours(&client, workload).await);
        }
        let (violated, calls) = self.checked(workload).await;
        let measured = Measured {
            seconds: median(runs.iter().map(|r| r.seconds)),
            unrelated: median(runs.iter().map(|r| r.unrelated)),
            cpu: median(runs.iter().map(|r| r.cpu)),
            memory: runs.iter().map(|r| r.memory).fold(0.0, f64::max),
            peak: runs.iter().map(|r| r.peak).fold(0.0, f64::max),
        };
        let floor = median(floors);
        row("plan", workload, floor, &measured, violated, &calls);
        measured
    }

    async fn held(&self, workload: &Workload, undisturbed: f64) {
        let client = self.plane.client();
        let mut runs = Vec::new();
        for _ in 0..self.rounds {
            runs.push(self.ours(&client, workload).await);
        }
        let (violated, calls) = self.checked(workload).await;
        let all = median(runs.iter().map(|r| r.seconds));
        let unrelated = median(runs.iter().map(|r| r.unrelated));
        println!(
            "{:<12} {:<31} unrelated {} gone after {unrelated:.2} s, all after {all:.2} s; undisturbed {undisturbed:.2} s \
             (unrelated {:.2}x; beyond the hold {:.2}x; target {:.1}x)  {violated}/{} violated  {calls}",
            "plan",
            workload.name,
            workload.unrelated().len(),
            unrelated / undisturbed,
            (all - workload.hold.as_secs_f64()) / undisturbed,
            workload.target,
            workload.edges.len(),
        );
    }

    // ---- the custodian's own removal --------------------------------------------------------------------------------

    fn manifests(&self, workload: &Workload) -> Vec<DynamicObject> {
        let mut needs: BTreeMap<usize, Vec<String>> = BTreeMap::new();
        for (from, to) in &workload.edges {
            needs.entry(*from).or_default().push(format!("/namespaces/{}/ConfigMap/{}", self.namespace, name(*to)));
        }
        let manifest = |n: usize| {
            let mut annotations = BTreeMap::from([("index.example.org/n", n.to_string())]);
            if let Some(needs) = needs.get(&n) {
                annotations.insert("config.kubernetes.io/depends-on", needs.join(","));
            }
            serde_json::from_value(json!({
                "apiVersion": "v1", "kind": "ConfigMap", "data": {"key": "value"},
                "metadata": {"name": name(n), "namespace": self.namespace, "annotations": annotations},
            }))
            .expect("a manifest")
        };
        (0..workload.objects).map(manifest).collect()
    }

    /// A parent with everything applied is deleted, and reconciled until it is let go.
    async fn life(&self, client: &Client, workload: &Workload, log: Option<&AuditLog>) -> (Measured, Option<usize>) {
        let custodian = Custodian::<Parent>::builder(client.clone(), "bench.example.com")
            .proxies::<GitTrackOwner, ClusterGitTrackOwner>()
            .ownership(OwnershipPolicy::ClusterWide)
            .build()
            .expect("a custodian");
        let parents: Api<Parent> = Api::namespaced(self.admin.clone(), &self.namespace);
        let parent_name = fixtures::ns("parent");
        let parent = Parent::new(&parent_name, ParentSpec {});
        let mut parent = parents.create(&PostParams::default(), &parent).await.expect("a parent");
        let manifests = self.manifests(workload);
        let reconcile = async |parent: &Parent| {
            let desired = Desired::from(manifests.clone());
            custodian.reconcile(parent, async |_: Arc<Parent>| Ok::<_, std::io::Error>(desired)).await
        };
        loop {
            let outcome = reconcile(&parent).await;
            if outcome.phase == Phase::Applied {
                break;
            }
            assert!(outcome.phase == Phase::Progressing, "{:?}: {:?}", outcome.phase, outcome.error);
            parent = parents.get(&parent_name).await.expect("it lives");
        }
        let label = format!("bench.example.com/parent-uid={}", parent.uid().unwrap_or_default());
        let witness = match log {
            Some(_) => Some(self.witness(&label).await),
            None => None,
        };
        // Watches of the custodian have seen everything by then.
        tokio::time::sleep(Duration::from_millis(300)).await;
        parents.delete(&parent_name, &DeleteParams::default()).await.expect("the parent can be deleted");
        let parent = parents.get(&parent_name).await.expect("it has finalizers");
        log.iter().for_each(|log| log.clear());
        reset_peak();
        let (cpu, rss, begin) = (user_cpu(), memory("VmRSS"), Instant::now());
        let passes = AtomicUsize::new(0);
        loop {
            passes.fetch_add(1, Ordering::Relaxed);
            let outcome = reconcile(&parent).await;
            match outcome.phase {
                Phase::Released | Phase::Gone => break,
                Phase::Deleting => tokio::time::sleep(outcome.requeue.unwrap_or_default()).await,
                phase => panic!("{phase:?}: {:?}", outcome.error),
            }
        }
        let measured = Measured {
            seconds: begin.elapsed().as_secs_f64(),
            unrelated: 0.0,
            cpu: user_cpu() - cpu,
            memory: memory("VmHWM") - rss,
            peak: memory("VmHWM"),
        };
        let violated = match witness {
            Some((seen, task)) => {
                let violated = Self::violated(workload, &seen).await;
                task.abort();
                Some(violated)
            }
            None => None,
        };
        (measured, violated)
    }

    async fn custodian(&self, workload: &Workload) {
        let client = self.plane.client();
        let (mut floors, mut runs) = (Vec::new(), Vec::new());
        for _ in 0..self.rounds {
            floors.push(self.floor(&client, workload).await);
            runs.push(self.life(&client, workload, None).await.0);
        }
        let log = AuditLog::new();
        log.keep_bodies(false);
        let audited = log.client(self.plane.config()).expect("a client");
        let (_, violated) = self.life(&audited, workload, Some(&log)).await;
        let measured = Measured {
            seconds: median(runs.iter().map(|r| r.seconds)),
            unrelated: 0.0,
            cpu: median(runs.iter().map(|r| r.cpu)),
            memory: runs.iter().map(|r| r.memory).fold(0.0, f64::max),
            peak: runs.iter().map(|r| r.peak).fold(0.0, f64::max),
        };
        let calls = calls(&log, workload.objects);
        row("custodian", workload, median(floors), &measured, violated.unwrap_or_default(), &calls);
    }
}

fn calls(log: &AuditLog, objects: usize) -> String {
    let mut by_verb: BTreeMap<String, usize> = BTreeMap::new();
    log.calls().iter().for_each(|call| *by_verb.entry(call.verb.to_string()).or_default() += 1);
    let all: usize = by_verb.values().sum();
    let verbs: Vec<_> = by_verb.iter().map(|(verb, count)| format!("{verb} {count}")).collect();
    #[allow(clippy::cast_precision_loss, reason = "a ratio")]
    let share = all as f64 / objects as f64;
    format!("{share:.3} calls an object ({})", verbs.join(", "))
}

fn row(what: &str, workload: &Workload, floor: f64, measured: &Measured, violated: usize, calls: &str) {
    println!(
        "{what:<12} {:<31} floor {floor:.3} s  ours {:.3} s  {:.2}x (target {:.1}x)  {violated}/{} violated  \
         peak {:.1} MB ({:+.1})  user {:.2} s  {calls}",
        workload.name,
        measured.seconds,
        measured.seconds / floor,
        workload.target,
        workload.edges.len(),
        measured.peak,
        measured.memory,
        measured.cpu,
    );
}

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let quick = arguments.iter().any(|a| a == "--quick");
    let wanted: Vec<&String> = arguments.iter().filter(|a| !a.starts_with("--")).collect();
    let chosen = |what: &str, name: &str| {
        let full = format!("{what} {name}");
        wanted.is_empty() || wanted.iter().any(|w| full.contains(w.as_str()))
    };
    let plane = Plane::shared().await;
    let admin = plane.client();
    let namespace = fixtures::namespace(&admin, "bench").await;
    let bench = Bench { plane, admin, namespace, rounds: if quick { 1 } else { 3 } };
    fixtures::apply_crd(&bench.admin, &Parent::crd()).await;
    for crd in <(GitTrackOwner, ClusterGitTrackOwner)>::crds() {
        fixtures::apply_crd(&bench.admin, &crd).await;
    }
    // The API server's caches and this process's connections.
    let warm = Workload::new("warm-up", 300, Vec::new(), 0.0);
    bench.floor(&plane.client(), &warm).await;
    bench.ours(&plane.client(), &warm).await;

    let (mut undisturbed, mut cpu_1000, mut cpu_5000) = (None, None, None);
    for workload in workloads().iter().filter(|w| chosen("plan", w.name)) {
        let measured = bench.standalone(workload).await;
        match workload.name {
            "1,000 in 100 chains of 10" => (undisturbed, cpu_1000) = (Some(measured.seconds), Some(measured.cpu)),
            "5,000 independent" => cpu_5000 = Some(measured.cpu),
            _ => {}
        }
    }
    if let (Some(small), Some(large)) = (cpu_1000, cpu_5000) {
        println!("user CPU 5,000 : 1,000 = {:.1} : 1 (target 6 : 1)", large / small);
    }
    for workload in held_workloads().iter().filter(|w| chosen("plan", w.name)) {
        let undisturbed = match undisturbed {
            Some(time) => time,
            None => bench.ours(&plane.client(), &workloads()[0]).await.seconds,
        };
        bench.held(workload, undisturbed).await;
    }
    for workload in workloads().iter().filter(|w| chosen("custodian", w.name)) {
        bench.custodian(workload).await;
    }
}
