//! Writes a history: from the audit logs of operators, and from a store that tells what it was asked to do.

use std::{
    fmt,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use control_plane::audit::{self, AuditLog, Outcome};
use kube_custody::{
    inventory::{EntryState, Error, Inventory, InventoryStore, Loaded, SaveOptions, Version},
    object::{ObjectId, ParentRef},
};
use serde_json::json;

use super::history::{Entry, Event, History, Id, Record, Request, Verb, What};

/// What the operators of one parent do. Clones share it.
#[derive(Clone)]
pub struct Recorder {
    began: Instant,
    logs: Arc<Mutex<Vec<AuditLog>>>,
    events: Arc<Mutex<Vec<Event>>>,
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").finish_non_exhaustive()
    }
}

impl Recorder {
    pub fn new() -> Self {
        Self { began: Instant::now(), logs: Arc::default(), events: Arc::default() }
    }

    /// Records one more operator, which works with `log`'s client; its number.
    pub fn operator(&self, log: &AuditLog) -> usize {
        log.keep_events(true);
        let mut logs = self.logs.lock().unwrap();
        logs.push(log.clone());
        logs.len() - 1
    }

    /// The store as `operator` has it.
    pub fn store(&self, operator: usize, inner: Arc<dyn InventoryStore>) -> Arc<dyn InventoryStore> {
        let log = self.logs.lock().unwrap()[operator].clone();
        Arc::new(RecordingStore { recorder: self.clone(), operator, log, inner })
    }

    /// Says that an operator begins to reconcile.
    pub fn pass(&self, operator: usize) {
        self.note(operator, What::Pass);
    }

    fn note(&self, operator: usize, what: What) {
        let mut events = self.events.lock().unwrap();
        events.push(Event { at: self.began.elapsed(), operator, what });
    }

    /// Everything so far.
    pub fn history(&self) -> History {
        let mut history = History::default();
        history.extend(self.events.lock().unwrap().iter().cloned());
        for (operator, log) in self.logs.lock().unwrap().iter().enumerate() {
            let since = log.began().saturating_duration_since(self.began);
            history.extend(log.calls().iter().flat_map(|call| events_of(operator, since, call)));
        }
        history
    }
}

fn events_of(operator: usize, since: Duration, call: &audit::Call) -> Vec<Event> {
    let Some(request) = request_of(call) else { return Vec::new() };
    let request = Arc::new(request);
    let event = |at: Duration, what| Event { at: since + at, operator, what };
    let mut events = vec![event(call.made, What::Made(Arc::clone(&request)))];
    let answer = call.answer.clone().unwrap_or_default();
    if let Some(at) = call.answered.filter(|_| call.effective) {
        events.push(event(at, What::Accepted(Arc::clone(&request), answer.clone())));
    }
    if let (Outcome::Answered, Some(at), Some(code)) = (&call.outcome, call.told, call.code) {
        let made = since + call.made;
        events.push(event(at, What::Told { request: Arc::clone(&request), code, answer, made }));
    }
    events.extend(call.events.iter().filter_map(|watched| {
        // A DELETED event shows the last state, which is no more.
        let kind = watched.event.get("type")?.as_str()?;
        let object = watched.event.get("object")?.clone();
        matches!(kind, "ADDED" | "MODIFIED")
            .then(|| event(watched.at, What::Watched { request: Arc::clone(&request), object }))
    }));
    events
}

fn request_of(call: &audit::Call) -> Option<Request> {
    let verb = match call.verb {
        audit::Verb::Get => Verb::Get,
        audit::Verb::List => Verb::List,
        audit::Verb::Watch => Verb::Watch,
        audit::Verb::Create => Verb::Create,
        audit::Verb::Update => Verb::Update,
        audit::Verb::Patch => Verb::Patch,
        audit::Verb::Delete => Verb::Delete,
        audit::Verb::DeleteCollection => Verb::DeleteCollection,
        _ => return None,
    };
    Some(Request {
        verb,
        group: call.target.group.clone(),
        version: call.target.version.clone(),
        plural: call.target.plural.clone(),
        namespace: call.target.namespace.clone(),
        name: call.name().map(ToOwned::to_owned),
        subresource: call.target.subresource.clone(),
        content_type: call.content_type.clone(),
        dry_run: call.is_dry_run(),
        body: call.body.clone(),
        text: call.head.to_string(),
    })
}

/// The record as the checker reads it. Edges are stored as hashes of identities, which only the crate can make.
fn record_of(inventory: &Inventory) -> Record {
    let ids: Vec<(&ObjectId, Id)> =
        inventory.entries().map(|e| (&e.id, Id::new(e.id.group(), &e.plural, e.id.namespace(), e.id.name()))).collect();
    let entries = inventory.entries().zip(&ids).map(|(entry, (_, id))| {
        let needs = entry.edges.iter().filter_map(|edge| {
            let found = ids.iter().find(|(to, _)| to.stable_id() == edge.to);
            found.map(|(_, id)| id.clone())
        });
        let known = Entry {
            kind: entry.id.kind().into(),
            uid: entry.uid.as_ref().map(ToString::to_string),
            let_go: matches!(entry.state, EntryState::Detaching | EntryState::Abandoned)
                || entry.deletion == kube_custody::inventory::DeletionPolicy::Keep,
            needs: needs.collect(),
        };
        (id.clone(), known)
    });
    let text = json!({
        "parent": inventory.parent, "cluster": inventory.cluster, "creator": inventory.creator,
        "decision": inventory.decision, "held": inventory.held, "entries": inventory.entries().collect::<Vec<_>>(),
    });
    Record { entries: entries.collect(), text: text.to_string() }
}

/// A store that notes what is stored, and that is out of reach once its operator is cut off.
#[derive(Debug)]
struct RecordingStore {
    recorder: Recorder,
    operator: usize,
    log: AuditLog,
    inner: Arc<dyn InventoryStore>,
}

impl RecordingStore {
    fn reach(&self, operation: &'static str, parent: &ParentRef) -> Result<(), Error> {
        if !self.log.is_cut() {
            return Ok(());
        }
        Err(Error::Backend {
            store: self.to_string(),
            operation,
            parent: parent.id.clone(),
            source: "connection cut by the test".into(),
        })
    }

    fn end(&self, error: Option<&Error>) {
        let what = match error {
            None => What::Stored,
            Some(Error::Conflict { .. } | Error::AlreadyExists { .. } | Error::NamespaceTerminating { .. }) => {
                What::NotStored
            }
            // It may be stored all the same.
            Some(_) => return,
        };
        self.recorder.note(self.operator, what);
    }
}

impl fmt::Display for RecordingStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "recorded {}", self.inner)
    }
}

#[async_trait]
impl InventoryStore for RecordingStore {
    async fn load(&self, parent: &ParentRef) -> Result<Loaded, Error> {
        self.reach("load", parent)?;
        let began = self.recorder.began.elapsed();
        let loaded = self.inner.load(parent).await?;
        let record = loaded.snapshot().map(|snapshot| record_of(&snapshot.inventory));
        self.recorder.note(self.operator, What::Loaded { record, began });
        Ok(loaded)
    }

    async fn save(&self, inventory: &Inventory, options: SaveOptions) -> Result<Version, Error> {
        self.reach("save", &inventory.parent)?;
        self.recorder.note(self.operator, What::Storing(Some(record_of(inventory))));
        let saved = self.inner.save(inventory, options).await;
        self.end(saved.as_ref().err());
        saved
    }

    async fn delete(&self, parent: &ParentRef, expected: &Version) -> Result<(), Error> {
        self.reach("delete", parent)?;
        self.recorder.note(self.operator, What::Storing(None));
        let deleted = self.inner.delete(parent, expected).await;
        self.end(deleted.as_ref().err());
        deleted
    }
}
