//! Random programs of requests, on the sim and on a real control plane, compared call by call.
//!
//! `SIM_PROGRAMS=2000 cargo test --all-features --test sim differential` plays more of them, `SIM_SEED` others.

use std::collections::BTreeMap;

use control_plane::fixtures;
use serde_json::{Map, Value, json};

use crate::both::{Answer, Dice, JSON, MERGE, Stage, number};

/// One request. `NS` stands for the namespace; `UID:name` and `RV:name` for what is known of an object.
#[derive(Clone, Debug)]
struct Op {
    method: &'static str,
    path: String,
    content_type: &'static str,
    body: Option<Value>,
}

const MAPS: &str = "/api/v1/namespaces/NS/configmaps";
const THINGS: &str = "/apis/both.example.com/v1/namespaces/NS/things";
const APPLY: &str = "application/apply-patch+yaml";
const NAMES: [&str; 3] = ["a", "b", "c"];

fn type_of(base: &str) -> (&'static str, &'static str) {
    if base == MAPS { ("v1", "ConfigMap") } else { ("both.example.com/v1", "Thing") }
}

fn finalizers(dice: &mut Dice) -> Value {
    dice.of(&[
        json!(["x.io/a"]),
        json!(["x.io/a", "x.io/b"]),
        json!(["x.io/b"]),
        json!([]),
        Value::Null,
        json!(["bad name"]),
        json!(["plain"]),
    ])
}

fn labels(dice: &mut Dice) -> Value {
    dice.of(&[json!({"x": "1"}), json!({"x": "2", "y": "1"}), json!({"x": null}), json!({"a b": "c d"}), Value::Null])
}

fn content(dice: &mut Dice, base: &str) -> (&'static str, Value) {
    if base == MAPS {
        let data = [json!({"k": "1"}), json!({"k": "2", "l": "1"}), json!({"l": "3"}), json!({}), json!({"k": null})];
        return ("data", dice.of(&data));
    }
    let specs = [
        json!({"a": "1"}),
        json!({"a": "2", "n": 5}),
        json!({"l": [{"name": "p", "v": "1"}, {"name": "q"}]}),
        json!({"l": [{"name": "q", "v": "2"}], "s": ["u", "v"]}),
        json!({"s": ["v", "w"], "free": {"deep": {"er": [1, 2]}}}),
        json!({"n": "wrong"}),
        json!({"unknown": 1}),
        json!({}),
    ];
    ("spec", dice.of(&specs))
}

/// The object or a part of it.
fn object(dice: &mut Dice, base: &str, name: &str) -> Value {
    let (api_version, kind) = type_of(base);
    let mut metadata = Map::new();
    metadata.insert("name".into(), json!(name));
    if dice.one_in(3) {
        metadata.insert("labels".into(), labels(dice));
    }
    if dice.one_in(3) {
        metadata.insert("finalizers".into(), finalizers(dice));
    }
    let (field, value) = content(dice, base);
    json!({"apiVersion": api_version, "kind": kind, "metadata": metadata, field: value})
}

fn op(dice: &mut Dice) -> Op {
    let base = dice.of(&[MAPS, THINGS]);
    let name = dice.of(&NAMES);
    let one = format!("{base}/{name}");
    let known = format!("{}-{name}", if base == MAPS { "m" } else { "t" });
    let make = |method, path, content_type, body| Op { method, path, content_type, body };
    match dice.below(20) {
        0..=4 => make("POST", base.to_owned(), JSON, Some(object(dice, base, name))),
        5 => make("GET", one, JSON, None),
        6 => {
            let selector =
                dice.of(&["", "?labelSelector=x%3D1", "?labelSelector=x,y!%3D1", "?labelSelector=!x", "?limit=1"]);
            make("GET", format!("{base}{selector}"), JSON, None)
        }
        7 | 8 => {
            let mut new = object(dice, base, name);
            match dice.below(5) {
                0 => {}
                1 => new["metadata"]["resourceVersion"] = json!("1"),
                2 => new["metadata"]["uid"] = json!("other"),
                _ => new["metadata"]["resourceVersion"] = json!(format!("RV:{known}")),
            }
            make("PUT", one, JSON, Some(new))
        }
        9..=11 => {
            let mut metadata = Map::new();
            match dice.below(6) {
                0 => drop(metadata.insert("labels".into(), labels(dice))),
                1 | 2 => drop(metadata.insert("finalizers".into(), finalizers(dice))),
                3 => drop(
                    metadata.insert("resourceVersion".into(), dice.of(&[json!("1"), json!(format!("RV:{known}"))])),
                ),
                4 => drop(metadata.insert("uid".into(), dice.of(&[json!("1"), json!(format!("UID:{known}"))]))),
                _ => {}
            }
            let (field, value) = content(dice, base);
            let patch = if dice.one_in(2) {
                json!({"metadata": metadata})
            } else {
                json!({"metadata": metadata, field: value})
            };
            make("PATCH", one, MERGE, Some(patch))
        }
        12 => {
            let patch = dice.of(&[
                json!([{"op": "test", "path": "/metadata/finalizers", "value": null}, {"op": "add", "path": "/metadata/finalizers", "value": ["x.io/j"]}]),
                json!([{"op": "add", "path": "/metadata/labels", "value": {"x": "j"}}]),
                json!([{"op": "remove", "path": "/metadata/finalizers/0"}]),
                json!([{"op": "test", "path": "/metadata/uid", "value": format!("UID:{known}")}, {"op": "add", "path": "/metadata/annotations", "value": {"j": "1"}}]),
                json!([{"op": "replace", "path": "/metadata/labels/x", "value": "r"}]),
            ]);
            make("PATCH", one, "application/json-patch+json", Some(patch))
        }
        13..=15 => {
            let manager = dice.of(&["m1", "m2", "m3"]);
            let force = dice.of(&["", "&force=true"]);
            let mut applied = object(dice, base, name);
            if base == THINGS {
                // A null in the metadata of an applied custom resource is stored as such, and the next patch, whatever it
                // is about, writes the object anew without it. The sim never stores it.
                drop_nulls(&mut applied["metadata"]);
            }
            make("PATCH", format!("{one}?fieldManager={manager}{force}"), APPLY, Some(applied))
        }
        16 if base == THINGS => {
            let patch =
                json!({"status": {"m": dice.of(&["1", "2"])}, "spec": {"a": "no"}, "metadata": {"labels": {"s": "t"}}});
            make("PATCH", format!("{one}/status"), MERGE, Some(patch))
        }
        16 => {
            let patch = json!({"metadata": {"finalizers": ["x.io/s"], "labels": {"s": "1"}}, "data": {"k": null}});
            make("PATCH", one, "application/strategic-merge-patch+json", Some(patch))
        }
        17 | 18 => {
            let body = dice.of(&[
                None,
                Some(json!({"propagationPolicy": "Background"})),
                Some(json!({"preconditions": {"uid": format!("UID:{known}")}})),
                Some(json!({"preconditions": {"uid": "other"}})),
                Some(json!({"preconditions": {"resourceVersion": "1"}})),
                Some(json!({"propagationPolicy": "Never"})),
                Some(json!({"dryRun": ["All"]})),
            ]);
            make("DELETE", one, JSON, body)
        }
        _ => make("DELETE", format!("{base}{}", dice.of(&["", "?labelSelector=x%3D1"])), JSON, None),
    }
}

fn drop_nulls(value: &mut Value) {
    if let Value::Object(map) = value {
        map.retain(|_, value| !value.is_null());
        map.values_mut().for_each(drop_nulls);
    }
}

fn program(seed: u64) -> Vec<Op> {
    let mut dice = Dice(seed);
    (0..20).map(|_| op(&mut dice)).collect()
}

/// A stage and what has been learned of it.
struct Player<'a> {
    stage: &'a Stage,
    namespace: String,
    /// UIDs in the order in which they appeared.
    uids: Vec<String>,
    /// UID and version by kind and name.
    known: Known,
}

type Known = BTreeMap<String, (String, String)>;

impl<'a> Player<'a> {
    async fn new(stage: &'a Stage, namespace: &str) -> Self {
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        stage.create("/api/v1/namespaces", object).await;
        Self { stage, namespace: namespace.to_owned(), uids: Vec::new(), known: BTreeMap::new() }
    }

    fn fill(&self, body: &Value) -> Value {
        match body {
            Value::String(text) => {
                let of = |name: &str| self.known.get(name).cloned().unwrap_or_else(|| ("none".into(), "7".into()));
                match text.split_once(':') {
                    Some(("UID", name)) => json!(of(name).0),
                    Some(("RV", name)) => json!(of(name).1),
                    _ => body.clone(),
                }
            }
            Value::Array(items) => items.iter().map(|item| self.fill(item)).collect(),
            Value::Object(map) => map.iter().map(|(name, value)| (name.clone(), self.fill(value))).collect(),
            other => other.clone(),
        }
    }

    async fn play(&mut self, op: &Op) -> Answer {
        let path = op.path.replace("NS", &self.namespace);
        let body = op.body.as_ref().map(|body| self.fill(body));
        let mut answer = self.stage.send(op.method, &path, op.content_type, body.as_ref()).await;
        self.learn(&answer.body);
        answer.body = self.normal(answer.body);
        answer
    }

    fn learn(&mut self, body: &Value) {
        let kind = body["kind"].as_str().unwrap_or_default();
        let text = |pointer: &str| body.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (name, uid) = (text("/metadata/name"), text("/metadata/uid"));
        if !uid.is_empty() && !self.uids.contains(&uid) {
            self.uids.push(uid.clone());
        }
        let prefix = if kind == "ConfigMap" { "m" } else { "t" };
        if !uid.is_empty() {
            self.known.insert(format!("{prefix}-{name}"), (uid, text("/metadata/resourceVersion")));
        }
    }

    /// Without what may differ: UIDs, versions, times, the order of managers.
    fn normal(&self, value: Value) -> Value {
        match value {
            Value::Object(map) => {
                let mut made = Map::new();
                for (name, value) in map {
                    let value = match name.as_str() {
                        "resourceVersion" | "creationTimestamp" | "deletionTimestamp" | "time" | "continue" => {
                            json!("-")
                        }
                        "managedFields" => {
                            let Value::Array(mut entries) = self.normal(value) else { continue };
                            entries.sort_by_key(|entry| entry.to_string());
                            Value::Array(entries)
                        }
                        // The server repeats some causes, as often as it checks.
                        "causes" => {
                            let Value::Array(mut causes) = self.normal(value) else { continue };
                            let mut seen = Vec::new();
                            causes.retain(|cause| {
                                !seen.contains(cause) && {
                                    seen.push(cause.clone());
                                    true
                                }
                            });
                            Value::Array(causes)
                        }
                        _ => self.normal(value),
                    };
                    made.insert(name, value);
                }
                // Empty in some answers, missing in others.
                made.retain(|name, value| {
                    let empty =
                        if name == "continue" { value == "-" } else { name == "metadata" && value == &json!({}) };
                    !empty
                });
                Value::Object(made)
            }
            Value::Array(items) => items.into_iter().map(|item| self.normal(item)).collect(),
            Value::String(mut text) => {
                for (number, uid) in self.uids.iter().enumerate() {
                    text = text.replace(uid, &format!("uid-{number}"));
                }
                if let Some((_, version)) = text.clone().split_once("ResourceVersion in record (")
                    && let Some((version, _)) = version.split_once(')')
                {
                    text = text.replace(&format!("({version})"), "(-)");
                }
                Value::String(text)
            }
            other => other,
        }
    }
}

/// The first call that is answered differently.
async fn difference(sim: &Stage, plane: &Stage, program: &[Op]) -> Option<String> {
    let namespace = fixtures::ns("diff");
    let (mut ours, mut theirs) = (Player::new(sim, &namespace).await, Player::new(plane, &namespace).await);
    for (place, op) in program.iter().enumerate() {
        let before = [ours.known.clone(), theirs.known.clone()];
        let (our, their) = (ours.play(op).await, theirs.play(op).await);
        // A call that writes on one side writes on the other.
        for (name, (_, version)) in &theirs.known {
            let stays = |player: &Player<'_>, before: &Known| player.known.get(name) == before.get(name);
            let (ours, theirs) = (stays(&ours, &before[0]), stays(&theirs, &before[1]));
            if ours != theirs {
                return Some(format!(
                    "call {place}: {} {} {}\n{name} stays: {ours}, on the plane: {theirs} ({version})\nsim:   {}\nplane: {}",
                    op.method,
                    op.path,
                    op.body.as_ref().map(ToString::to_string).unwrap_or_default(),
                    our.body,
                    their.body
                ));
            }
        }
        if our != their {
            return Some(format!(
                "call {place}: {} {} {}\nsim:   {} {}\nplane: {} {}",
                op.method,
                op.path,
                op.body.as_ref().map(ToString::to_string).unwrap_or_default(),
                our.code,
                our.body,
                their.code,
                their.body
            ));
        }
    }
    None
}

/// The shortest program found that still differs.
async fn shrink(sim: &Stage, plane: &Stage, mut program: Vec<Op>, mut found: String) -> (Vec<Op>, String) {
    let mut place = 0;
    while place < program.len() {
        let mut shorter = program.clone();
        shorter.remove(place);
        match difference(sim, plane, &shorter).await {
            Some(difference) => (program, found) = (shorter, difference),
            None => place += 1,
        }
    }
    (program, found)
}

#[tokio::test]
async fn answers_are_those_of_the_plane() {
    let (programs, first) = (number("SIM_PROGRAMS", 40), number("SIM_SEED", 1));
    let plane = Stage::plane().await;
    let mut failures = Vec::new();
    for seed in first..first + programs {
        let sim = Stage::sim(seed);
        let program = program(seed);
        if let Some(found) = difference(&sim, &plane, &program).await {
            let (program, found) = shrink(&sim, &plane, program, found).await;
            let lines: Vec<String> = program
                .iter()
                .map(|op| {
                    format!(
                        "  {} {} {}",
                        op.method,
                        op.path,
                        op.body.as_ref().map(ToString::to_string).unwrap_or_default()
                    )
                })
                .collect();
            failures.push(format!("seed {seed}\n{}\n{found}\n", lines.join("\n")));
            if failures.len() == 12 {
                break;
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
