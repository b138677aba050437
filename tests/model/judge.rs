//! What the world has to look like in the end.

use std::{collections::BTreeMap, fmt};

use kube::{
    Client, ResourceExt,
    api::{DynamicObject, ListParams},
};
use kube_custody::{
    custodian::{Hold, Outcome, Phase},
    teardown::Reason,
};
use serde_json::Value;

use super::{
    scenario::{Kind, Scenario},
    stage::Stagehand,
    things::{self, Address, GitTrack, MANAGER},
};

/// How the life of a parent ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    pub gone: bool,
    /// What keeps the parent, object by object, or why nothing was done.
    pub reasons: Vec<(String, String)>,
    words: String,
}

impl End {
    pub fn of(gone: bool, outcome: Option<&Outcome>) -> Self {
        let mut reasons = Vec::new();
        let mut words = String::new();
        if let Some(outcome) = outcome.filter(|_| !gone) {
            words = format!("{:?} {:?}", outcome.phase, outcome.error.as_ref().map(ToString::to_string));
            reasons.extend(outcome.removal.blockers.iter().map(|b| (b.id.to_string(), name_of(&b.reason).to_owned())));
            if let Phase::Held(hold) = &outcome.phase {
                reasons.push((String::new(), name_of_hold(hold).to_owned()));
            }
        }
        Self { gone, reasons, words }
    }

    /// How it ended, for counting.
    pub fn name(&self) -> &'static str {
        if self.gone {
            return "end: all gone";
        }
        match self.reasons.first().map(|(_, reason)| reason.as_str()) {
            None => "end: unnamed",
            Some("Terminating") => "end: held by a foreign finalizer",
            Some("InUse") => "end: in use",
            Some("Unproven") => "end: unproven",
            Some("Disowned") => "end: disowned",
            Some("Recreated") => "end: recreated",
            Some("InventoryMissing") => "end: inventory missing",
            Some(_) => "end: other",
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.gone { f.write_str("gone") } else { write!(f, "{} {:?}", self.words, self.reasons) }
    }
}

fn name_of(reason: &Reason) -> &'static str {
    match reason {
        Reason::Terminating => "Terminating",
        Reason::Unproven => "Unproven",
        Reason::Disowned => "Disowned",
        Reason::Recreated { .. } => "Recreated",
        Reason::Refused => "Refused",
        Reason::Forbidden => "Forbidden",
        Reason::InUse { .. } => "InUse",
        Reason::UseUnknown => "UseUnknown",
        Reason::Damaged => "Damaged",
        Reason::Unknown => "Unknown",
        Reason::NotManaged => "NotManaged",
        Reason::Throttled { .. } => "Throttled",
        _ => "other",
    }
}

fn name_of_hold(hold: &Hold) -> &'static str {
    match hold {
        Hold::InventoryMissing { .. } => "InventoryMissing",
        Hold::Restored { .. } => "Restored",
        Hold::Guarded { .. } => "Guarded",
        Hold::OtherCluster { .. } => "OtherCluster",
        _ => "other hold",
    }
}

/// Everything that exists, by plural.
#[derive(Debug, Default)]
pub struct World {
    objects: BTreeMap<&'static str, Vec<DynamicObject>>,
}

impl World {
    pub async fn read(client: &Client) -> Self {
        let mut world = Self::default();
        for of in things::ALL {
            // A kind that is not there any more has no objects.
            let listed = Address::new(of, None, "").api(client).list(&ListParams::default()).await;
            world.objects.insert(of.3, listed.map(|list| list.items).unwrap_or_default());
        }
        world
    }

    fn all(&self) -> impl Iterator<Item = (&'static str, &DynamicObject)> {
        self.objects.iter().flat_map(|(plural, objects)| objects.iter().map(move |object| (*plural, object)))
    }

    fn find(&self, address: &Address) -> Option<&DynamicObject> {
        let same = |live: &&DynamicObject| live.name_any() == address.name && live.namespace() == address.namespace;
        self.objects.get(address.plural)?.iter().find(same)
    }

    /// What is being deleted in the end, for people.
    pub fn terminating(&self) -> Vec<String> {
        let going = self.all().filter(|(_, live)| live.metadata.deletion_timestamp.is_some());
        let lines = going.map(|(plural, live)| {
            let conditions = live.data.pointer("/status/conditions").map(Value::to_string).unwrap_or_default();
            format!("{} finalizers {:?} {conditions}", shown(plural, live), live.finalizers())
        });
        lines.collect()
    }

    fn has_uid(&self, uid: &str) -> bool {
        self.all().any(|(_, live)| live.uid().as_deref() == Some(uid))
    }
}

fn shown(plural: &str, live: &DynamicObject) -> String {
    format!("{plural} {}/{}", live.namespace().unwrap_or_default(), live.name_any())
}

/// The back-pointer's parent UID, if it names the object that carries it.
fn claimed_by(live: &DynamicObject) -> Option<String> {
    let pointer: Value = serde_json::from_str(live.annotations().get(&format!("{MANAGER}/back-pointer"))?).ok()?;
    let same = pointer.pointer("/self/name").and_then(Value::as_str) == Some(live.name_any().as_str());
    let uid = pointer.pointer("/parent/uid").and_then(Value::as_str)?;
    same.then(|| uid.to_owned())
}

/// Judges the end of a history against the world.
pub fn judge(scenario: &Scenario, hand: &Stagehand, parents: &[GitTrack], ends: &[End], world: &World) -> Vec<String> {
    let mut broken = Vec::new();
    for (parent, end) in parents.iter().zip(ends) {
        let uid = parent.uid().unwrap_or_default();
        if end.gone {
            // With the record and the label of an object gone, nothing leads to it any more.
            let lost = hand.foreign(|foreign| foreign.record_deleted && foreign.meddled);
            broken.extend(left_behind(&uid, world).into_iter().filter(|_| !lost));
        } else {
            broken.extend(unjustified(scenario, hand, &uid, end, world));
        }
    }
    broken.extend(lost(scenario, hand, world));
    broken.extend(kept(scenario, hand, parents, world));
    broken
}

/// What is left of a parent that is gone.
fn left_behind(uid: &str, world: &World) -> Vec<String> {
    let mut broken = Vec::new();
    for (plural, live) in world.all() {
        let label = live.labels().get(&format!("{MANAGER}/parent-uid")).map(String::as_str) == Some(uid);
        let ours = claimed_by(live).as_deref() == Some(uid);
        let proxy = plural.ends_with("gittrackowners") && live.data.pointer("/spec/parent/uid") == Some(&uid.into());
        let record = plural == "configmaps" && live.name_any().starts_with("inventory-") && label;
        if ours || proxy || record {
            broken.push(format!("left behind: {} although its parent is gone", shown(plural, live)));
        }
    }
    broken
}

/// Reasons that the world does not show.
fn unjustified(scenario: &Scenario, hand: &Stagehand, uid: &str, end: &End, world: &World) -> Vec<String> {
    let mut broken = Vec::new();
    let parents = scenario.setup.parents;
    let wrong = |words: String| format!("progress: {words}: {end}");
    if end.reasons.is_empty() {
        broken.push(wrong("the parent stays and no reason is named".into()));
    }
    for (id, reason) in &end.reasons {
        let child = scenario.children.iter().find(|child| names(&child.address(), id));
        let live = child.and_then(|child| world.find(&child.address()));
        let held = |live: &DynamicObject| live.finalizers().iter().any(|name| !name.starts_with(MANAGER));
        let (ok, words) = hand.foreign(|foreign| match reason.as_str() {
            // Whatever contains what is held, is held by it.
            "Terminating" => (
                foreign.held && world.all().any(|(_, live)| live.metadata.deletion_timestamp.is_some() && held(live)),
                "nothing of others' holds what is said to be terminating",
            ),
            "InUse" => (
                child.is_some_and(|child| matches!(child.kind, Kind::Team | Kind::Definition)),
                "only containers are in use",
            ),
            // Nothing of it is ours unless others took part, or the other parent of it left it behind.
            "Unproven" | "Disowned" => (
                (foreign.meddled || parents > 1) && live.is_some_and(|live| claimed_by(live).as_deref() != Some(uid)),
                "what is said to be somebody's is ours",
            ),
            "Recreated" => {
                (child.is_some_and(|child| foreign.recreated.contains_key(&child.number)), "nobody recreated it")
            }
            "InventoryMissing" => {
                (foreign.record_deleted || !foreign.containers.is_empty(), "nobody deleted the record")
            }
            _ => (false, "no such end is allowed"),
        });
        if !ok {
            broken.push(wrong(format!("{words} ({reason})")));
        }
    }
    broken
}

fn names(address: &Address, id: &str) -> bool {
    let kind =
        if address.group.is_empty() { address.kind.to_owned() } else { format!("{}.{}", address.kind, address.group) };
    let place = address.namespace.as_ref().map(|namespace| format!("{namespace}/")).unwrap_or_default();
    id == format!("{kind} {place}{}", address.name)
}

/// Objects of others that are not there any more.
fn lost(scenario: &Scenario, hand: &Stagehand, world: &World) -> Vec<String> {
    let gone = hand.foreign(|foreign| {
        let theirs = foreign.theirs.iter().filter(|(uid, address)| {
            let container = match address.kind {
                "Widget" => Some("widgets.model.example.com".to_owned()),
                _ => None,
            };
            let excused = foreign.taken_away.contains(*uid)
                || address.namespace.iter().chain(&container).any(|name| foreign.containers.contains(name));
            // What refers to nothing but what is gone is the garbage collector's.
            !excused && !world.has_uid(uid)
        });
        theirs.map(|(_, address)| address.clone()).collect::<Vec<_>>()
    });
    // A container of ours that is not in use by what counts takes along what others have put into it.
    let into = |address: &Address| {
        scenario.children.iter().any(|child| match child.kind {
            Kind::Team => address.namespace.as_deref() == Some("team"),
            Kind::Definition => address.kind == "Widget",
            _ => false,
        })
    };
    let gone = gone.iter().filter(|address| !into(address));
    gone.map(|address| format!("only ours: {} of somebody else's is gone", address.id())).collect()
}

/// What was to be kept and is not.
fn kept(scenario: &Scenario, hand: &Stagehand, parents: &[GitTrack], world: &World) -> Vec<String> {
    let _ = (scenario, hand, parents, world);
    Vec::new()
}
