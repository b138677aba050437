//! Stored inventories: time and size, beside plain `serde_json` and gzip of the same entries.
//!
//! Prints, for each size, the time to encode and to decode and the ratio of each to that of the plain form (medians of
//! runs that alternate; ratios count, times don't); the number of stored objects, the largest of them, the bytes of an
//! entry and their ratio to the plain form's; and what a save of one changed entry writes. Every entry has a UID and
//! depends on up to three others, one of them by a rule with evidence of its own.
//!
//! `cargo bench --bench inventory`, or with the largest number of entries: `cargo bench --bench inventory -- 10000`.

use std::{
    hint::black_box,
    io::{Read, Write},
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::ConfigMap;
use kube_custody::{
    inventory::{ClusterId, Edge, Entry, EntryState, Inventory, Loaded, Requirement, SaveOptions, configmap},
    manager::Manager,
    object::{ObjectId, ParentRef, ResourceKind, Scope, Uid},
};

const RUNS: usize = 5;

/// What a stored object may hold: half of what the API server takes.
const MOST: usize = 512 << 10;

fn id(number: usize) -> ObjectId {
    let kind = ["ConfigMap", "Secret", "Service"][number % 3];
    let namespace = format!("team-{:04}", number / 100);
    ObjectId::new("", kind, Some(&namespace), &format!("component-{number:06}")).expect("a legal name")
}

/// As random as a UID, and the same in every run.
fn uid(number: usize) -> Uid {
    let hex = id(number).stable_id().to_string();
    let (a, b) = hex.split_at(8);
    Uid::new(format!("{a}-{}-4{}-a{}-{}", &b[..4], &b[5..8], &b[9..12], &b[12..])).expect("a legal UID")
}

fn inventory(entries: usize) -> Inventory {
    let resource = ResourceKind::new("example.com", "v1", "GitTrack", "gittracks", Scope::Namespaced);
    let parent = ObjectId::new("example.com", "GitTrack", Some("home"), "parent").expect("a legal name");
    let mut inventory = Inventory::new(ParentRef::new(parent, uid(0), &resource), ClusterId(uid(1)));
    for number in 0..entries {
        let plural = ["configmaps", "secrets", "services"][number % 3];
        let kind = ResourceKind::new("", "v1", id(number).kind(), plural, Scope::Namespaced);
        let mut entry = Entry::intended(id(number), &kind);
        entry.uid = Some(uid(number));
        entry.state = EntryState::Recorded;
        let required = |by: &str| Requirement::Required { declared_by: by.into() };
        let ruled = |to: usize| Requirement::Preferred {
            rule: "pod-template".into(),
            rank: 20,
            evidence: format!("the pod template names {}", id(to)),
        };
        for (step, number) in [1, 7, 100].into_iter().filter_map(|step| Some((step, number.checked_sub(step)?))) {
            let why = match step {
                1 => required("config.kubernetes.io/depends-on"),
                7 => ruled(number),
                _ => required("api"),
            };
            entry.edges.insert(Edge::new(id(number).stable_id(), why));
        }
        inventory.insert(entry);
    }
    let counts = inventory.count_dependents();
    for entry in inventory.entries_mut() {
        entry.dependents = counts.get(&entry.id.stable_id()).copied().unwrap_or(0);
    }
    inventory
}

fn plain_encode(inventory: &Inventory) -> Vec<u8> {
    let entries: Vec<&Entry> = inventory.entries().collect();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(&serde_json::to_vec(&entries).expect("entries serialise")).expect("memory does not fail");
    gzip.finish().expect("memory does not fail")
}

fn plain_decode(packed: &[u8]) -> Vec<Entry> {
    let mut text = Vec::new();
    flate2::read::GzDecoder::new(packed).read_to_end(&mut text).expect("it was packed");
    serde_json::from_slice(&text).expect("it was written")
}

fn size(object: &ConfigMap) -> usize {
    let texts: usize = object.data.iter().flatten().map(|(_, text)| text.len()).sum();
    texts + object.binary_data.iter().flatten().map(|(_, bytes)| bytes.0.len()).sum::<usize>()
}

fn time<T>(f: impl FnOnce() -> T) -> (Duration, T) {
    let start = Instant::now();
    let result = black_box(f());
    (start.elapsed(), result)
}

/// The medians of both, measured in turn.
fn compare<A, B>(ours: impl Fn() -> A, plain: impl Fn() -> B) -> (Duration, Duration) {
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        a.push(time(&ours).0);
        b.push(time(&plain).0);
    }
    let median = |mut times: Vec<Duration>| {
        times.sort_unstable();
        times[times.len() / 2]
    };
    (median(a), median(b))
}

fn main() {
    let largest = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(100_000_usize);
    let format = configmap::ConfigMapFormat::new(Manager::new("bench.example.com").expect("a legal domain"));
    for entries in [1_000, 10_000, 100_000].into_iter().filter(|n| *n <= largest) {
        let inventory = inventory(entries);
        let objects = format.encode(&inventory).expect("it fits");
        let plain = plain_encode(&inventory);
        let decode = || match format.decode(&inventory.parent, objects.iter().cloned()) {
            Ok(Loaded::Found(snapshot)) => snapshot,
            other => panic!("{other:?}"),
        };
        let snapshot = decode();
        assert_eq!(snapshot.inventory, inventory, "it reads back");
        assert_eq!(plain_decode(&plain).len(), entries);

        let encoding = compare(|| format.encode(&inventory), || plain_encode(&inventory));
        let decoding = compare(decode, || plain_decode(&plain));
        for (what, (ours, plain)) in [("encode", encoding), ("decode", decoding)] {
            let ratio = ours.as_secs_f64() / plain.as_secs_f64();
            println!("{entries:>7} entries  {what}  {ours:>10.2?}  plain {plain:>10.2?}  {ratio:.2}x");
        }
        let sizes: Vec<_> = objects.iter().map(size).collect();
        let (all, most) = (sizes.iter().sum::<usize>(), sizes.iter().max().copied().unwrap_or(0));
        assert!(most <= MOST, "an object of {most} bytes");
        let mut changed = inventory.clone();
        changed.get_mut(&id(entries / 2)).expect("it is there").recreations += 1;
        let options = SaveOptions::replace(snapshot.version.clone());
        let (planning, writes) = time(|| format.preview(&changed, &options).expect("it fits"));
        println!(
            "{entries:>7} entries  {} objects, the largest of {} KiB; {} bytes an entry, plain {} ({:.2}x); \
             one changed entry: {} write, planned in {planning:.2?}",
            objects.len(),
            most >> 10,
            all / entries,
            plain.len() / entries,
            all as f64 / plain.len() as f64,
            writes.len(),
        );
        assert_eq!(writes.len(), 1, "{writes:?}");
    }
}
