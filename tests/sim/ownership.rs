//! Random ownership on the sim and on a real control plane, compared whenever both have come to rest.
//!
//! `SIM_WORLDS=500 cargo test --all-features --test sim ownership` plays more worlds, `SIM_SEED` others.

use std::{collections::BTreeMap, time::Duration};

use futures::{StreamExt, stream};
use serde_json::{Value, json};

use crate::both::{Dice, Stage, number};

/// One thing that is done to a world.
#[derive(Clone, Debug)]
enum Act {
    Create { object: usize, owners: Vec<(usize, Bend, bool)>, held: bool },
    Delete { object: usize, policy: &'static str },
    Release { object: usize },
    Disown { object: usize },
}

/// What is wrong with a reference.
#[derive(Clone, Copy, Debug)]
enum Bend {
    No,
    Name,
    Kind,
    Unknown,
    Uid,
}

/// Objects: ConfigMaps and Things in two namespaces, and two of cluster scope.
const OBJECTS: usize = 10;

fn program(seed: u64) -> Vec<Act> {
    let mut dice = Dice(seed);
    let mut acts = Vec::new();
    for object in 0..OBJECTS {
        let mut owners = Vec::new();
        while object > 0 && owners.len() < 3 && !dice.one_in(2) {
            let bend =
                dice.of(&[Bend::No, Bend::No, Bend::No, Bend::No, Bend::Name, Bend::Kind, Bend::Unknown, Bend::Uid]);
            let of = dice.below(object);
            // Two references with one UID are another matter.
            if owners.iter().all(|(known, _, _)| *known != of) {
                owners.push((of, bend, dice.one_in(2)));
            }
        }
        acts.push(Act::Create { object, owners, held: dice.one_in(4) });
    }
    for _ in 0..5 {
        let object = dice.below(OBJECTS);
        acts.push(match dice.below(8) {
            0 | 1 => Act::Release { object },
            2 => Act::Disown { object },
            _ => Act::Delete { object, policy: dice.of(&["Background", "Foreground", "Foreground", "Orphan"]) },
        });
    }
    acts
}

struct Player<'a> {
    stage: &'a Stage,
    namespaces: [String; 2],
    created: BTreeMap<usize, Value>,
}

impl Player<'_> {
    fn base(&self, object: usize) -> (String, &'static str, &'static str) {
        let namespace = &self.namespaces[object % 2];
        match object % 5 {
            0..=2 => (format!("/api/v1/namespaces/{namespace}/configmaps"), "v1", "ConfigMap"),
            3 => (format!("/apis/both.example.com/v1/namespaces/{namespace}/things"), "both.example.com/v1", "Thing"),
            _ => ("/apis/both.example.com/v1/bigs".to_owned(), "both.example.com/v1", "Big"),
        }
    }

    fn name(&self, object: usize) -> String {
        // Objects of cluster scope need names of their own.
        format!("{}-{object}", self.namespaces[0])
    }

    fn path(&self, object: usize) -> String {
        format!("{}/{}", self.base(object).0, self.name(object))
    }

    async fn act(&mut self, act: &Act) {
        match act {
            Act::Create { object, owners, held } => {
                let (base, api_version, kind) = self.base(*object);
                let references: Vec<Value> = owners
                    .iter()
                    .filter_map(|(owner, bend, blocks)| {
                        let known = self.created.get(owner)?;
                        let mut reference = json!({
                            "apiVersion": known["apiVersion"], "kind": known["kind"],
                            "name": known["metadata"]["name"], "uid": known["metadata"]["uid"],
                            "blockOwnerDeletion": blocks,
                        });
                        match bend {
                            Bend::No => {}
                            Bend::Name => reference["name"] = json!("misspelt"),
                            Bend::Kind => {
                                reference["apiVersion"] = json!("v1");
                                reference["kind"] = json!("Secret");
                            }
                            Bend::Unknown => reference["apiVersion"] = json!("no.such/v1"),
                            Bend::Uid => reference["uid"] = json!(format!("never-{object}-{owner}")),
                        }
                        Some(reference)
                    })
                    .collect();
                let finalizers = if *held { json!(["x.io/hold"]) } else { json!([]) };
                let metadata =
                    json!({"name": self.name(*object), "ownerReferences": references, "finalizers": finalizers});
                let sent = json!({"apiVersion": api_version, "kind": kind, "metadata": metadata});
                let made = self.stage.create(&base, sent).await;
                self.created.insert(*object, made);
            }
            Act::Delete { object, policy } => drop(self.stage.delete(&self.path(*object), policy).await),
            Act::Release { object } => {
                let remove = json!([
                    {"op": "test", "path": "/metadata/finalizers/0", "value": "x.io/hold"},
                    {"op": "remove", "path": "/metadata/finalizers/0"},
                ]);
                self.stage.send("PATCH", &self.path(*object), "application/json-patch+json", Some(&remove)).await;
            }
            Act::Disown { object } => {
                drop(self.stage.patch(&self.path(*object), json!({"metadata": {"ownerReferences": null}})).await);
            }
        }
    }

    /// What there is: of each object whether it is terminating, its finalizers, its owners.
    async fn look(&self) -> BTreeMap<usize, String> {
        let mut seen = BTreeMap::new();
        for object in self.created.keys() {
            let Some(live) = self.stage.get(&self.path(*object)).await else { continue };
            let metadata = &live["metadata"];
            let mut owners: Vec<String> = Vec::new();
            for owner in metadata["ownerReferences"].as_array().into_iter().flatten() {
                let of = self.created.iter().find(|(_, known)| known["metadata"]["uid"] == owner["uid"]);
                owners.push(format!("{:?} {} {}", of.map(|(of, _)| of), owner["kind"], owner["blockOwnerDeletion"]));
            }
            let deleting = !metadata["deletionTimestamp"].is_null();
            seen.insert(*object, format!("deleting {deleting} {} {owners:?}", metadata["finalizers"]));
        }
        seen
    }
}

async fn difference(seed: u64, plane: &Stage) -> Option<String> {
    let sim = Stage::sim(seed);
    let namespaces = [plane.namespace("own").await, plane.namespace("own").await];
    for name in &namespaces {
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        sim.create("/api/v1/namespaces", object).await;
    }
    let player = |stage| Player { stage, namespaces: namespaces.clone(), created: BTreeMap::new() };
    let (mut ours, mut theirs) = (player(&sim), player(plane));
    let program = program(seed);
    for (place, act) in program.iter().enumerate() {
        ours.act(act).await;
        theirs.act(act).await;
        // All objects are made before it is looked for rest.
        if place + 1 < OBJECTS {
            continue;
        }
        sim.quiet().await;
        let expected = ours.look().await;
        let mut found = BTreeMap::new();
        for _ in 0..40 {
            plane.quiet().await;
            found = theirs.look().await;
            if found == expected {
                break;
            }
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
        if found != expected {
            return Some(format!(
                "seed {seed}\n{:#?}\nafter act {place}\nsim:   {expected:#?}\nplane: {found:#?}\n",
                &program[..=place]
            ));
        }
    }
    None
}

#[tokio::test]
async fn rest_is_that_of_the_plane() {
    let (worlds, first) = (number("SIM_WORLDS", 8), number("SIM_SEED", 1));
    let plane = Stage::plane().await;
    let differences = stream::iter(first..first + worlds).map(|seed| difference(seed, &plane)).buffer_unordered(4);
    let failures: Vec<String> = differences.filter_map(async |found| found).take(3).collect().await;
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
