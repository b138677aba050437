//! Writes a history: from the audit logs of operators, and from a store that tells what it was asked to do.

use std::{
    fmt,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use control_plane::audit::{self, AuditLog, Outcome};
use kube_custody::{inventory::InventoryStore, object::ParentRef};

use crate::laws::{
    history::{Event, History, Request, Verb, What},
    store::{RecordingStore, Tape},
};

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
        Arc::new(RecordingStore { tape: OperatorTape { recorder: self.clone(), operator, log }, inner })
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

/// What one operator puts on record.
#[derive(Debug)]
struct OperatorTape {
    recorder: Recorder,
    operator: usize,
    log: AuditLog,
}

impl Tape for OperatorTape {
    fn now(&self) -> Duration {
        self.recorder.began.elapsed()
    }

    fn note(&self, _: &ParentRef, what: What) {
        self.recorder.note(self.operator, what);
    }

    fn is_cut(&self) -> bool {
        self.log.is_cut()
    }
}
