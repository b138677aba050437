//! Planning beside petgraph: building the graph and finding the orders, against `Graph` and `toposort` on the same input.
//!
//! Prints, for each shape and size, the time of both and their ratio: medians of runs that alternate. Two kinds of input:
//!
//! - `index`: objects in the order of their identities, as an inventory holds them, and edges as pairs of indices.
//!   petgraph gets the pairs alone and knows no identities.
//! - `id`: objects in random order, and edges as pairs of identities; petgraph has a map from identity to index beside it.
//!
//! `cargo bench --bench planning`, or with the largest number of objects: `cargo bench --bench planning -- 100000`.

use std::{
    collections::HashMap,
    hint::black_box,
    time::{Duration, Instant},
};

use kube_custody::{
    graph::{DependencyGraph, GraphBuilder},
    inventory::Requirement,
    object::ObjectId,
};
use petgraph::{algo::toposort, graph::DiGraph};

const RUNS: usize = 5;

type Pairs = Vec<(u32, u32)>;

/// A small generator with a fixed seed (SplitMix64), so that every run sees the same graphs.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % u64::from(limit)) as u32
    }

    fn shuffled(&mut self, count: u32) -> Vec<u32> {
        let mut all: Vec<u32> = (0..count).collect();
        for i in (1..count).rev() {
            all.swap(i as usize, self.below(i + 1) as usize);
        }
        all
    }
}

fn chain(nodes: u32) -> Pairs {
    (1..nodes).map(|n| (n, n - 1)).collect()
}

fn star(nodes: u32) -> Pairs {
    (1..nodes).map(|n| (n, 0)).collect()
}

/// Three edges a node, each to some node before it in a random order.
fn dag(nodes: u32) -> Pairs {
    let mut random = Random(7);
    let order = random.shuffled(nodes);
    let mut pairs = Vec::with_capacity(3 * nodes as usize);
    for place in 1..nodes {
        for _ in 0..3 {
            pairs.push((order[place as usize], order[random.below(place) as usize]));
        }
    }
    pairs
}

fn ids(nodes: u32) -> Vec<ObjectId> {
    (0..nodes)
        .map(|n| {
            let (kind, namespace) = (["ConfigMap", "Secret", "Service"][(n * 3 / nodes) as usize], n / 1000);
            ObjectId::new("", kind, Some(&format!("ns-{namespace:04}")), &format!("object-{n:07}"))
                .expect("a legal name")
        })
        .collect()
}

fn required() -> Requirement {
    Requirement::Required { declared_by: "api".into() }
}

fn ours_by_index(ids: &[ObjectId], pairs: &Pairs) -> usize {
    let mut builder = GraphBuilder::with_capacity(ids.len(), pairs.len());
    let slots: Vec<_> = ids.iter().map(|id| builder.add(id.clone()).expect("no duplicate")).collect();
    let reason = builder.reason(required());
    for (from, to) in pairs {
        builder.depend_because(slots[*from as usize], slots[*to as usize], reason);
    }
    orders(&builder.build().expect("no cycle"))
}

fn orders(graph: &DependencyGraph) -> usize {
    black_box(graph.apply_order()).len() + black_box(graph.deletion_order()).len()
}

fn petgraph_by_index(ids: &[ObjectId], pairs: &Pairs) -> usize {
    let mut graph = DiGraph::<(), (), u32>::with_capacity(ids.len(), pairs.len());
    let nodes: Vec<_> = ids.iter().map(|_| graph.add_node(())).collect();
    for (from, to) in pairs {
        graph.add_edge(nodes[*from as usize], nodes[*to as usize], ());
    }
    2 * black_box(toposort(&graph, None).expect("no cycle")).len()
}

fn ours_by_id(ids: &[ObjectId], edges: &[(ObjectId, ObjectId)]) -> usize {
    let mut builder = GraphBuilder::with_capacity(ids.len(), edges.len());
    for id in ids {
        builder.add(id.clone()).expect("no duplicate");
    }
    let reason = builder.reason(required());
    for (from, to) in edges {
        let from = builder.slot(from).expect("it was added");
        builder.depend_on_id_because(from, to, reason);
    }
    orders(&builder.build().expect("no cycle"))
}

fn petgraph_by_id(ids: &[ObjectId], edges: &[(ObjectId, ObjectId)]) -> usize {
    let mut graph = DiGraph::<ObjectId, (), u32>::with_capacity(ids.len(), edges.len());
    let mut nodes = HashMap::with_capacity(ids.len());
    for id in ids {
        nodes.insert(id.clone(), graph.add_node(id.clone()));
    }
    for (from, to) in edges {
        graph.add_edge(nodes[from], nodes[to], ());
    }
    2 * black_box(toposort(&graph, None).expect("no cycle")).len()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// The medians of both, measured in turn.
fn compare(expected: usize, ours: impl Fn() -> usize, theirs: impl Fn() -> usize) -> (Duration, Duration) {
    let time = |f: &dyn Fn() -> usize| {
        let start = Instant::now();
        let result = black_box(f());
        let elapsed = start.elapsed();
        assert_eq!(result, expected, "not every object is in the orders");
        elapsed
    };
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        a.push(time(&ours));
        b.push(time(&theirs));
    }
    (median(a), median(b))
}

fn main() {
    let largest = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(1_000_000_u32);
    println!("{:>9} {:>6} {:>6} {:>11} {:>11} {:>7}", "objects", "shape", "input", "ours", "petgraph", "ratio");
    for nodes in [1_000, 100_000, 1_000_000].into_iter().filter(|n| *n <= largest) {
        let ids = ids(nodes);
        let shuffled: Vec<_> = Random(3).shuffled(nodes).into_iter().map(|n| ids[n as usize].clone()).collect();
        for (shape, make) in [("chain", chain as fn(u32) -> Pairs), ("star", star), ("dag", dag)] {
            let pairs = make(nodes);
            let edges: Vec<_> =
                pairs.iter().map(|(from, to)| (ids[*from as usize].clone(), ids[*to as usize].clone())).collect();
            let expected = 2 * ids.len();
            let by_index = compare(expected, || ours_by_index(&ids, &pairs), || petgraph_by_index(&ids, &pairs));
            let by_id = compare(expected, || ours_by_id(&shuffled, &edges), || petgraph_by_id(&shuffled, &edges));
            for (input, (ours, theirs)) in [("index", by_index), ("id", by_id)] {
                let milliseconds = |time: Duration| format!("{:.2} ms", time.as_secs_f64() * 1000.0);
                let ratio = ours.as_secs_f64() / theirs.as_secs_f64();
                println!(
                    "{nodes:>9} {shape:>6} {input:>6} {:>11} {:>11} {ratio:>6.2}x",
                    milliseconds(ours),
                    milliseconds(theirs)
                );
            }
        }
    }
}
