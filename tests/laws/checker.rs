//! What the laws demand of each event.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

use serde_json::Value;

use super::history::{Entry, Event, History, Id, Record, Request, Verb, What};

/// The laws that calls can break.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Law {
    OnlyOurs = 1,
    Order = 2,
    Proof = 3,
    WriteAhead = 4,
    NoForgetting = 5,
    LegalReferences = 6,
    ClosedDoor = 7,
    Once = 9,
    HandsOff = 11,
    Discretion = 12,
}

/// A broken law, and the events that show it.
#[derive(Clone, Debug)]
pub struct Violation {
    pub law: Law,
    pub words: String,
    pub event: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "law {} ({:?}): {}\n    {}", self.law as u8, self.law, self.words, self.event)
    }
}

/// The one parent that a history is about.
#[derive(Clone, Debug)]
pub struct Parent {
    pub manager: String,
    pub id: Id,
    pub kind: String,
    pub uid: String,
    /// Edges `(A, B)`, A depends on B, that hold whenever both are on record; beside those that references, namespaces and
    /// definitions make.
    pub edges: Vec<(Id, Id)>,
    /// Kinds (group, plural) that a definition in the cluster defines.
    pub defined: BTreeSet<(String, String)>,
    /// Texts that stand in Secrets and must appear nowhere else.
    pub secrets: Vec<String>,
}

/// Marks by which others ask for an object to be kept.
const KEEPS: [(&str, &str); 2] = [("cli-utils.sigs.k8s.io/on-remove", "keep"), ("helm.sh/resource-policy", "keep")];

/// After how many lost rounds a DELETE may name the UID alone.
const ROUNDS: u32 = 3;

/// One incarnation at one moment, as an operator was shown it.
#[derive(Clone, Debug)]
struct Sight {
    uid: String,
    resource_version: String,
    version: String,
    kind: String,
    /// Carries the back-pointer of this parent and of itself.
    ours: bool,
    terminating: bool,
    finalizers: Vec<String>,
    /// Carries somebody's mark that it is to be kept.
    keeps: bool,
    /// Shown by a watch, which nobody waits for.
    watched: bool,
}

#[derive(Default)]
struct Operator {
    /// The record as this operator last read or stored it.
    record: Option<Record>,
    /// The latest sight of each object; a watch may run behind.
    latest: BTreeMap<Id, Sight>,
    /// All sights by UID and resource version.
    sights: BTreeMap<(String, String), (Id, Sight)>,
    /// The incarnation of each object that was seen to be ours last.
    ours: BTreeMap<Id, String>,
    /// What each UID was told to be.
    uids: BTreeMap<String, Id>,
    /// Proven not to exist.
    absent: BTreeSet<Id>,
    /// POSTs that were answered: the name is taken.
    taken: BTreeSet<Id>,
    /// Lost DELETE rounds.
    rounds: BTreeMap<String, u32>,
    last_store: Option<Duration>,
    /// When the last read was made that showed the parent alive.
    parent_alive: Option<Duration>,
    door_closed: bool,
}

/// A save under way.
struct Pending {
    record: Option<Record>,
    /// What it leaves out and was done with when it was sent.
    done: BTreeSet<Id>,
}

/// Judges a history.
pub fn check(parent: &Parent, history: &History) -> Vec<Violation> {
    let mut checker = Checker {
        parent,
        operators: BTreeMap::new(),
        stored: None,
        pending: BTreeMap::new(),
        robbed: BTreeSet::new(),
        changed: Duration::ZERO,
        deleted: BTreeMap::new(),
        released: BTreeSet::new(),
        owners: BTreeMap::new(),
        kinds: BTreeMap::new(),
        event: String::new(),
        found: Vec::new(),
    };
    for event in history.events() {
        checker.event = event.to_string();
        checker.take(event);
    }
    checker.found
}

struct Checker<'a> {
    parent: &'a Parent,
    operators: BTreeMap<usize, Operator>,
    stored: Option<Record>,
    /// Saves, by operator, whose outcome nobody knows yet, or ever.
    pending: BTreeMap<usize, Pending>,
    /// Operators that were storing a record when somebody else removed it.
    robbed: BTreeSet<usize>,
    /// When the record was changed last.
    changed: Duration,
    deleted: BTreeMap<String, String>,
    /// Marked for another parent by this one, or left with no mark of it when there was reason to.
    released: BTreeSet<Id>,
    /// UIDs of owners by what refers to them.
    owners: BTreeMap<Id, BTreeSet<String>>,
    /// Plurals of kinds.
    kinds: BTreeMap<(String, String), String>,
    event: String,
    found: Vec<Violation>,
}

impl Checker<'_> {
    fn breaks(&mut self, law: Law, words: impl Into<String>) {
        self.found.push(Violation { law, words: words.into(), event: self.event.clone() });
    }

    fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.parent.manager)
    }

    fn operator(&mut self, number: usize) -> &mut Operator {
        self.operators.entry(number).or_default()
    }

    fn take(&mut self, event: &Event) {
        let number = event.operator;
        match &event.what {
            What::Pass => self.operator(number).parent_alive = None,
            What::Made(request) => {
                self.judge(number, request);
                if request.verb == Verb::Create {
                    // From here on it may exist, whatever was proven before.
                    let id = request.id();
                    self.operator(number).absent.remove(&id);
                }
            }
            What::Accepted(request, answer) => self.accepted(number, request, answer),
            What::Told { request, code, answer, made } => self.told(number, request, *code, answer, *made),
            What::Watched { request, object } => self.watched(number, request, object),
            What::Storing(record) => {
                self.discreet(record.as_ref());
                let left_out = |id: &&Id| record.as_ref().is_none_or(|r| !r.entries.contains_key(id));
                let known = self.record(number).into_iter().flat_map(|r| r.entries.keys()).filter(left_out);
                let done =
                    known.filter(|id| self.settled(number, id) || self.never_ours(number, id)).cloned().collect();
                self.pending.insert(number, Pending { record: record.clone(), done });
            }
            // What was found is all that there is to go by.
            What::NoRoom => {
                let found = self.pending.remove(&number).and_then(|pending| pending.record);
                if self.stored.is_none() {
                    self.learn(found.as_ref());
                    self.operator(number).record = found;
                }
            }
            What::Robbed => {
                self.changed = event.at;
                self.stored = None;
                // What is being stored may be gone before the operator hears that it was.
                self.robbed.extend(self.pending.keys());
            }
            // What was sent twice on the way may have been stored by the first one all the same.
            What::NotStored => drop(self.robbed.remove(&number)),
            What::Stored => {
                let Some(Pending { record, done }) = self.pending.remove(&number) else { return };
                self.changed = event.at;
                self.operator(number).last_store = Some(event.at);
                if self.robbed.remove(&number) {
                    self.learn(record.as_ref());
                } else {
                    self.store(&done, record.clone());
                }
                self.operator(number).record = record;
            }
            What::Loaded { record, began } => {
                self.learn(record.as_ref());
                // What another writer stored meanwhile was too late to be seen.
                if self.changed <= *began {
                    self.loaded(record.clone());
                }
                self.operator(number).record.clone_from(record);
            }
        }
    }

    // ---- what is stored ---------------------------------------------------

    /// What is on record, as far as the operator has been told.
    fn on_record(&self, number: usize, id: &Id) -> Option<&Entry> {
        self.record(number)?.entries.get(id)
    }

    fn record(&self, number: usize) -> Option<&Record> {
        self.operators.get(&number)?.record.as_ref()
    }

    fn learn(&mut self, record: Option<&Record>) {
        for (id, entry) in record.iter().flat_map(|r| &r.entries) {
            self.kinds.insert((id.group.clone(), entry.kind.clone()), id.plural.clone());
        }
    }

    fn discreet(&mut self, record: Option<&Record>) {
        if record.is_some_and(|r| self.parent.secrets.iter().any(|secret| r.text.contains(secret))) {
            self.breaks(Law::Discretion, "the record holds what stands in a Secret");
        }
    }

    /// What was on record and is not in `record`.
    fn missing_in(&self, record: Option<&Record>) -> Vec<Id> {
        let before = self.stored.iter().flat_map(|r| r.entries.keys());
        before.filter(|id| record.is_none_or(|r| !r.entries.contains_key(id))).cloned().collect()
    }

    fn store(&mut self, done: &BTreeSet<Id>, record: Option<Record>) {
        for id in self.missing_in(record.as_ref()) {
            if !done.contains(&id) {
                self.breaks(Law::NoForgetting, format!("{id} leaves the record, and nothing proved it gone"));
            }
        }
        self.learn(record.as_ref());
        self.stored = record;
    }

    /// Reading must show what was stored, or what a save of unknown outcome may have left.
    fn loaded(&mut self, record: Option<Record>) {
        for id in self.missing_in(record.as_ref()) {
            let without = |saved: &&Pending| saved.record.as_ref().is_none_or(|r| !r.entries.contains_key(&id));
            let mut taken_by = self.pending.values().filter(without).peekable();
            if taken_by.peek().is_none() {
                self.breaks(Law::NoForgetting, format!("{id} was stored and is on record no more"));
            } else if !taken_by.any(|saved| saved.done.contains(&id)) {
                self.breaks(Law::NoForgetting, format!("{id} left the record, and nothing had proved it gone"));
            }
        }
        self.learn(record.as_ref());
        self.stored = record;
    }

    // ---- what a request may be ----------------------------------------------

    fn judge(&mut self, number: usize, request: &Request) {
        let secret_kind = request.group.is_empty() && request.plural == "secrets";
        if !secret_kind && let Some(body) = &request.body {
            let text = body.to_string();
            if self.parent.secrets.iter().any(|secret| text.contains(secret)) {
                self.breaks(Law::Discretion, "a request about something else holds what stands in a Secret");
            }
        }
        if request.dry_run {
            return;
        }
        self.hands_off(request);
        if request.id() == self.parent.id {
            self.parent_request(number, request);
            return;
        }
        self.references(number, request);
        if is_record(request) {
            return;
        }
        match request.verb {
            Verb::Create => self.create(number, request),
            Verb::Delete => self.delete(number, request),
            Verb::DeleteCollection => self.breaks(Law::OnlyOurs, "a whole collection is deleted"),
            Verb::Patch if request.is_apply() => self.apply(number, request),
            _ => {}
        }
    }

    fn create(&mut self, number: usize, request: &Request) {
        let id = request.id();
        if self.on_record(number, &id).is_none() {
            self.breaks(Law::WriteAhead, format!("{id} is created before it is on record"));
        }
        let operator = self.operator(number);
        let fresh = operator.parent_alive.is_some_and(|read| operator.last_store.is_none_or(|stored| stored < read));
        let closed = operator.door_closed;
        if closed {
            self.breaks(Law::ClosedDoor, format!("{id} is created although the parent was seen going"));
        } else if !fresh {
            self.breaks(Law::ClosedDoor, format!("{id} is created, and the parent was not read since the record was"));
        }
    }

    fn apply(&mut self, number: usize, request: &Request) {
        let id = request.id();
        if request.body_text("/metadata/uid").is_none() {
            self.breaks(Law::WriteAhead, format!("{id} is applied without its UID, which can create it or adopt"));
        }
        if self.operator(number).door_closed {
            self.breaks(Law::ClosedDoor, format!("{id} is applied although the parent was seen going"));
        }
    }

    fn delete(&mut self, number: usize, request: &Request) {
        let id = request.id();
        let Some(uid) = request.body_text("/preconditions/uid").map(ToOwned::to_owned) else {
            self.breaks(Law::OnlyOurs, format!("{id} is deleted by name, whatever has it"));
            return;
        };
        let version = request.body_text("/preconditions/resourceVersion").map(ToOwned::to_owned);
        match self.on_record(number, &id) {
            None => self.breaks(Law::OnlyOurs, format!("{id} is deleted and not on record")),
            Some(entry) if entry.uid.as_ref().is_some_and(|recorded| *recorded != uid) => {
                self.breaks(Law::OnlyOurs, format!("{id} is deleted as {uid}, which is not the incarnation on record"));
            }
            Some(_) => {}
        }
        let operator = self.operator(number);
        let rounds = operator.rounds.get(&uid).copied().unwrap_or(0);
        let judged = match &version {
            Some(version) => {
                let seen = operator.sights.get(&(uid.clone(), version.clone()));
                seen.filter(|(seen, _)| *seen == id).map(|(_, sight)| sight.clone())
            }
            None => operator.latest.get(&id).filter(|sight| sight.uid == uid).cloned(),
        };
        if version.is_none() && rounds < ROUNDS {
            self.breaks(Law::OnlyOurs, format!("{id} is deleted whatever its state, after {rounds} lost rounds"));
        }
        match judged {
            None => {
                self.breaks(Law::OnlyOurs, format!("{id} is deleted as {uid} at {version:?}, which was never seen"))
            }
            Some(sight) if !sight.ours => {
                self.breaks(
                    Law::OnlyOurs,
                    format!("{id} is deleted, and its back-pointer does not say that it is ours"),
                );
            }
            Some(sight) if sight.keeps => {
                self.breaks(Law::OnlyOurs, format!("{id} is deleted, and it carries a mark that it is to be kept"));
            }
            Some(sight) if sight.terminating => {
                self.breaks(Law::Once, format!("{id} is deleted although it was seen terminating"));
            }
            Some(_) => {}
        }
        for dependent in self.dependents(number, &id) {
            if !self.settled(number, &dependent) {
                self.breaks(Law::Order, format!("{id} is deleted while {dependent}, which needs it, may exist"));
            }
        }
    }

    /// What is on record and needs `id`, directly.
    fn dependents(&self, number: usize, id: &Id) -> BTreeSet<Id> {
        let namespace = |other: &Id| {
            id.group.is_empty() && id.plural == "namespaces" && other.namespace.as_deref() == Some(id.name.as_str())
        };
        let uids: BTreeSet<&String> = self
            .operators
            .values()
            .flat_map(|o| &o.uids)
            .filter(|(_, known)| *known == id)
            .map(|(uid, _)| uid)
            .collect();
        let needs = |other: &Id, entry: &Entry| {
            entry.needs.contains(id)
                || namespace(other)
                || Id::definition(&other.group, &other.plural) == *id
                || self.parent.edges.iter().any(|(from, to)| from == other && to == id)
                || self.owners.get(other).is_some_and(|owners| owners.iter().any(|uid| uids.contains(uid)))
        };
        let entries = self.record(number).into_iter().flat_map(|r| &r.entries);
        entries.filter(|(other, entry)| *other != id && needs(other, entry)).map(|(other, _)| other.clone()).collect()
    }

    /// Whether the operator may take the object to be gone, or let go of.
    fn settled(&self, number: usize, id: &Id) -> bool {
        let entry = self.on_record(number, id);
        let Some(operator) = self.operators.get(&number) else { return false };
        let defined = self.parent.defined.contains(&(id.group.clone(), id.plural.clone()));
        if operator.absent.contains(id) || (defined && operator.absent.contains(&Id::definition(&id.group, &id.plural)))
        {
            return true;
        }
        let Some(sight) = operator.latest.get(id) else { return false };
        let known = entry.and_then(|e| e.uid.as_ref()).or_else(|| operator.ours.get(id));
        let replaced = known.is_some_and(|uid| *uid != sight.uid);
        !sight.ours && (replaced || self.is_kept(number, id, &mut BTreeSet::new()))
    }

    /// Whether it is left in the cluster: by a decision on record, because another parent has it now or somebody's mark on it
    /// says so, or for the sake of something that needs it.
    fn is_kept(&self, number: usize, id: &Id, seen: &mut BTreeSet<Id>) -> bool {
        let marked = || self.operators.get(&number).and_then(|o| o.latest.get(id)).is_some_and(|sight| sight.keeps);
        seen.insert(id.clone())
            && (self.on_record(number, id).is_some_and(|e| e.let_go)
                || self.released.contains(id)
                || marked()
                || self.dependents(number, id).iter().any(|dependent| self.is_kept(number, dependent, seen)))
    }

    /// Whether the operator may take it that nothing was ever created under the name.
    fn never_ours(&self, number: usize, id: &Id) -> bool {
        let unknown = self.on_record(number, id).is_some_and(|e| e.uid.is_none());
        let Some(operator) = self.operators.get(&number) else { return false };
        unknown && operator.taken.contains(id) && operator.latest.get(id).is_some_and(|sight| !sight.ours)
    }

    fn references(&mut self, number: usize, request: &Request) {
        if !matches!(request.verb, Verb::Create | Verb::Patch | Verb::Update) {
            return;
        }
        let id = request.id();
        let listed = request.body_at("/metadata/ownerReferences").and_then(Value::as_array).cloned();
        for reference in listed.unwrap_or_default() {
            let text = |name: &str| reference.get(name).and_then(Value::as_str).unwrap_or("").to_owned();
            let uid = text("uid");
            self.owners.entry(id.clone()).or_default().insert(uid.clone());
            let operator = self.operator(number);
            let owner = operator.uids.get(&uid).cloned();
            let sight = owner.as_ref().and_then(|owner| operator.latest.get(owner)).filter(|s| s.uid == uid).cloned();
            let (Some(owner), Some(sight)) = (owner, sight) else {
                self.breaks(Law::LegalReferences, format!("{id} refers to {uid}, which was not read live"));
                continue;
            };
            if owner.namespace.is_some() && owner.namespace != id.namespace {
                self.breaks(Law::LegalReferences, format!("{id} refers to {owner}, across namespaces or scopes"));
            }
            let served = match owner.group.as_str() {
                "" => sight.version.clone(),
                group => format!("{group}/{}", sight.version),
            };
            if text("apiVersion") != served || text("kind") != sight.kind || text("name") != owner.name {
                self.breaks(
                    Law::LegalReferences,
                    format!("{id} refers to {owner} under a wrong version, kind or name"),
                );
            }
            if sight.terminating && !sight.watched {
                self.breaks(Law::LegalReferences, format!("{id} refers to {owner}, which is terminating"));
            }
        }
    }

    fn hands_off(&mut self, request: &Request) {
        let id = request.id();
        let lists = ["finalizers", "ownerReferences"];
        match (request.verb, &request.body) {
            (Verb::Update, Some(body)) if body.pointer("/metadata/resourceVersion").is_none() => {
                self.breaks(Law::HandsOff, format!("{id} is replaced whatever its state"));
            }
            (Verb::Patch, Some(Value::Array(operations))) => {
                let at = |op: &Value, name: &str| op.get(name).and_then(Value::as_str).unwrap_or("").to_owned();
                let tested: BTreeSet<String> =
                    operations.iter().filter(|op| at(op, "op") == "test").map(|op| at(op, "path")).collect();
                let locked = tested.contains("/metadata/resourceVersion");
                for operation in operations.iter().filter(|op| at(op, "op") != "test") {
                    let path = at(operation, "path");
                    let Some(list) = lists.iter().find(|l| path.starts_with(&format!("/metadata/{l}"))) else {
                        continue;
                    };
                    let whole = path == format!("/metadata/{list}");
                    let guarded = if whole {
                        tested.contains(&path)
                    } else {
                        at(operation, "op") == "add" || tested.iter().any(|test| test.starts_with(&path))
                    };
                    if !locked && !guarded {
                        self.breaks(Law::HandsOff, format!("{list} of {id} are written without a look at them"));
                    }
                }
            }
            (Verb::Patch, Some(body)) if !request.is_apply() => {
                let writes = lists.iter().any(|list| body.pointer(&format!("/metadata/{list}")).is_some());
                if writes && body.pointer("/metadata/resourceVersion").is_none() {
                    self.breaks(Law::HandsOff, format!("lists of {id} are written whole, whatever its state"));
                }
            }
            _ => {}
        }
    }

    /// The manager's finalizers leave the parent only when all is settled.
    fn parent_request(&mut self, number: usize, request: &Request) {
        let Some(body) = request.body.clone().filter(|_| request.verb != Verb::Delete) else { return };
        let whole = |value: &Value| -> Vec<String> {
            value.as_array().into_iter().flatten().filter_map(Value::as_str).map(ToOwned::to_owned).collect()
        };
        let left: Option<Vec<String>> = match &body {
            Value::Array(operations) => operations
                .iter()
                .filter(|op| op.get("path").is_some_and(|path| path == "/metadata/finalizers"))
                .find_map(|op| match op.get("op").and_then(Value::as_str)? {
                    "remove" => Some(Vec::new()),
                    "add" | "replace" => op.get("value").map(whole),
                    _ => None,
                }),
            body => body.pointer("/metadata/finalizers").map(whole),
        };
        let prefix = self.key("");
        let Some(left) = left else { return };
        let seen = self.operators.get(&number).and_then(|o| o.latest.get(&self.parent.id));
        let seen = seen.map(|sight| sight.finalizers.clone()).unwrap_or_default();
        let goes: Vec<String> = seen.into_iter().filter(|f| f.starts_with(&prefix) && !left.contains(f)).collect();
        if goes.is_empty() {
            return;
        }
        let entries: Vec<Id> = self.record(number).into_iter().flat_map(|r| r.entries.keys()).cloned().collect();
        for id in entries {
            if !self.settled(number, &id) {
                self.breaks(Law::Proof, format!("{} leave the parent, and {id} may exist", goes.join(", ")));
            }
        }
    }

    // ---- what was told --------------------------------------------------------

    fn accepted(&mut self, number: usize, request: &Request, answer: &Value) {
        if request.verb == Verb::Patch && !request.dry_run {
            let id = request.id();
            let references = answer.pointer("/metadata/ownerReferences").and_then(Value::as_array);
            let owners = references.into_iter().flatten().filter_map(|reference| reference.get("uid")?.as_str());
            self.owners.insert(id.clone(), owners.map(ToOwned::to_owned).collect());
            let ours = self.sight(request, answer).is_some_and(|(_, sight)| sight.ours);
            if self.is_handed(answer) || !ours && self.is_kept(number, &id, &mut BTreeSet::new()) {
                self.released.insert(id);
            }
        }
        if request.verb != Verb::Delete || is_record(request) || request.dry_run {
            return;
        }
        let status = answer.get("kind").is_some_and(|kind| kind == "Status");
        let uid = answer.pointer(if status { "/details/uid" } else { "/metadata/uid" });
        let Some(uid) = uid.and_then(Value::as_str).map(ToOwned::to_owned) else { return };
        if let Some(first) = self.deleted.insert(uid, request.text.clone()) {
            self.breaks(Law::Once, format!("{} is deleted again, after {first}", request.id()));
        }
    }

    fn sight(&self, request: &Request, object: &Value) -> Option<(Id, Sight)> {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
        let id = Id::new(&request.group, &request.plural, text("/metadata/namespace"), text("/metadata/name")?);
        let pointer = object.pointer("/metadata/annotations").and_then(|a| a.get(self.key("back-pointer")));
        let ours = pointer.and_then(Value::as_str).is_some_and(|text| self.names(text, &id));
        let finalizers = object.pointer("/metadata/finalizers").and_then(Value::as_array);
        // Metadata alone does not tell the kind; what was recorded does.
        let by_plural = self
            .kinds
            .iter()
            .find(|((group, _), plural)| *group == id.group && **plural == id.plural)
            .map(|((_, k), _)| k);
        let kind = by_plural.cloned().or_else(|| text("/kind").map(ToOwned::to_owned)).unwrap_or_default();
        let sight = Sight {
            uid: text("/metadata/uid")?.into(),
            resource_version: text("/metadata/resourceVersion").unwrap_or("").into(),
            version: request.version.clone(),
            kind,
            ours,
            terminating: text("/metadata/deletionTimestamp").is_some(),
            finalizers: finalizers.into_iter().flatten().filter_map(Value::as_str).map(ToOwned::to_owned).collect(),
            keeps: KEEPS.iter().any(|(key, value)| {
                let annotations = object.pointer("/metadata/annotations");
                annotations.and_then(|all| all.get(key)).is_some_and(|found| found == value)
            }),
            watched: request.verb == Verb::Watch,
        };
        Some((id, sight))
    }

    /// Whether the answer to a change shows that the object is another parent's of the manager now.
    fn is_handed(&self, answer: &Value) -> bool {
        let pointer = answer.pointer("/metadata/annotations").and_then(|all| all.get(self.key("back-pointer")));
        let pointer = pointer.and_then(Value::as_str).and_then(|text| serde_json::from_str::<Value>(text).ok());
        let parent = pointer.as_ref().and_then(|pointer| pointer.pointer("/parent/uid")).and_then(Value::as_str);
        parent.is_some_and(|uid| uid != self.parent.uid)
    }

    /// Whether a back-pointer names the parent and `id`.
    fn names(&self, pointer: &str, id: &Id) -> bool {
        let Ok(pointer) = serde_json::from_str::<Value>(pointer) else { return false };
        let text = |path: &str| pointer.pointer(path).and_then(Value::as_str);
        let namespace = |path: &str| text(path).map(ToOwned::to_owned);
        let kind = (text("/self/group").unwrap_or("").to_owned(), text("/self/kind").unwrap_or("").to_owned());
        text("/parent/uid") == Some(self.parent.uid.as_str())
            && text("/parent/name") == Some(self.parent.id.name.as_str())
            && text("/parent/kind") == Some(self.parent.kind.as_str())
            && namespace("/parent/namespace") == self.parent.id.namespace
            && kind.0 == id.group
            && self.kinds.get(&kind) == Some(&id.plural)
            && text("/self/name") == Some(id.name.as_str())
            && namespace("/self/namespace") == id.namespace
    }

    fn see(&mut self, number: usize, id: Id, sight: Sight, certain: bool) {
        let number_of = |s: &Sight| s.resource_version.parse::<u64>().unwrap_or(0);
        let operator = self.operator(number);
        operator.sights.insert((sight.uid.clone(), sight.resource_version.clone()), (id.clone(), sight.clone()));
        operator.uids.insert(sight.uid.clone(), id.clone());
        if sight.ours {
            operator.ours.insert(id.clone(), sight.uid.clone());
        }
        let newer = operator.latest.get(&id).is_none_or(|known| number_of(known) <= number_of(&sight));
        if certain {
            operator.absent.remove(&id);
        }
        if certain || newer {
            operator.latest.insert(id, sight);
        }
    }

    fn watched(&mut self, number: usize, request: &Request, object: &Value) {
        if let Some((id, sight)) = self.sight(request, object) {
            self.see(number, id, sight, false);
        }
    }

    fn told(&mut self, number: usize, request: &Request, code: u16, answer: &Value, made: Duration) {
        let id = request.id();
        let text = |pointer: &str| answer.pointer(pointer).and_then(Value::as_str);
        let status = text("/kind") == Some("Status");
        let not_found = status
            && code == 404
            && text("/reason") == Some("NotFound")
            && text("/details/name") == request.name.as_deref()
            && text("/details/kind") == Some(request.plural.as_str())
            && text("/details/group").unwrap_or("") == request.group;
        if id == self.parent.id {
            self.parent_told(number, request, code, answer, not_found, made);
        }
        if not_found && matches!(request.verb, Verb::Get | Verb::Delete) && request.subresource.is_none() {
            self.is_absent(number, id);
            return;
        }
        if code == 409 {
            match request.verb {
                Verb::Create if text("/reason") == Some("AlreadyExists") => {
                    self.operator(number).taken.insert(id);
                }
                Verb::Delete => {
                    let uid = request.body_text("/preconditions/uid").unwrap_or("").to_owned();
                    *self.operator(number).rounds.entry(uid).or_default() += 1;
                }
                _ => {}
            }
            return;
        }
        if !(200..300).contains(&code) {
            return;
        }
        match request.verb {
            Verb::List => {
                let items = answer.get("items").and_then(Value::as_array).cloned().unwrap_or_default();
                for item in &items {
                    if let Some((id, sight)) = self.sight(request, item) {
                        self.see(number, id, sight, false);
                    }
                }
            }
            Verb::Delete if request.dry_run => {}
            Verb::Delete if status => {
                let asked = request.body_text("/preconditions/uid");
                if text("/status") == Some("Success") && text("/details/uid").is_some() && text("/details/uid") == asked
                {
                    self.operator(number).absent.insert(id);
                }
            }
            Verb::Delete => {
                let lives_on = request.group.is_empty() && matches!(request.plural.as_str(), "pods" | "namespaces");
                let Some((id, sight)) = self.sight(request, answer) else { return };
                if sight.terminating {
                    self.see(number, id, sight, true);
                } else if !lives_on && sight.finalizers.is_empty() {
                    self.operator(number).absent.insert(id);
                }
            }
            _ => {
                if let Some((id, sight)) = self.sight(request, answer) {
                    self.see(number, id, sight, true);
                }
            }
        }
    }

    /// An object is proven gone, and with a definition all objects of its kind.
    fn is_absent(&mut self, number: usize, id: Id) {
        let of_kind = |other: &&Id| {
            Id::definition(&other.group, &other.plural) == id
                && self.parent.defined.contains(&(other.group.clone(), other.plural.clone()))
        };
        let entries = self.record(number).into_iter().flat_map(|record| record.entries.keys());
        let gone: Vec<Id> = entries.filter(of_kind).cloned().chain([id.clone()]).collect();
        self.operator(number).absent.extend(gone);
    }

    fn parent_told(
        &mut self,
        number: usize,
        request: &Request,
        code: u16,
        answer: &Value,
        not_found: bool,
        made: Duration,
    ) {
        let text = |pointer: &str| answer.pointer(pointer).and_then(Value::as_str);
        let same = text("/metadata/uid") == Some(self.parent.uid.as_str());
        let going = not_found || (code == 200 && (!same || text("/metadata/deletionTimestamp").is_some()));
        let operator = self.operator(number);
        operator.door_closed |= going;
        if request.verb == Verb::Get && code == 200 && !going {
            operator.parent_alive = Some(made);
        }
    }
}

/// Whether a request is about the store's own objects.
fn is_record(request: &Request) -> bool {
    let name = request.name.as_deref().unwrap_or("");
    request.group.is_empty() && request.plural == "configmaps" && name.starts_with("inventory-")
}
