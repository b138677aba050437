//! Everything there is, behind one lock: what a request sees and changes.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use serde_json::Value;

use super::{
    admission::Admission,
    audit::{Call, Target, Verb},
    catalogue::{Catalogue, Resource, Role},
    controllers::Controllers,
    faults::Faults,
    request::{Ask, Payload},
    rng::Rng,
    shape::Shape,
    status::Refusal,
    storage::{Storage, key},
    verbs::watch::WatchSpec,
};

/// 2026-01-01T00:00:00Z: when every cluster begins.
const EPOCH: i64 = 1_767_225_600;

/// The answer to a request that was granted.
#[derive(Clone, Debug)]
pub(super) enum Reply {
    Object { code: u16, object: Arc<Value> },
    Status(Value),
    List(ListReply),
    Watch(WatchSpec),
}

/// A page of a list.
#[derive(Clone, Debug, Default)]
pub(super) struct ListReply {
    pub(super) items: Vec<Arc<Value>>,
    pub(super) version: u64,
    pub(super) continue_token: String,
    pub(super) remaining: Option<usize>,
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) storage: Storage,
    pub(super) catalogue: Catalogue,
    pub(super) admission: Admission,
    pub(super) controllers: Controllers,
    pub(super) faults: Faults,
    pub(super) rng: Rng,
    /// Since the cluster was made.
    pub(super) elapsed: Duration,
    pub(super) calls: Vec<Call>,
    pub(super) call_count: u64,
    pub(super) keeps_calls: bool,
    /// How many watches were opened.
    pub(super) watches: u64,
    /// Watches opened up to this number have been closed by a fault.
    pub(super) closed_watches: u64,
}

impl World {
    pub(super) fn new(seed: u64, history: usize) -> Self {
        let mut world = Self {
            storage: Storage::new(history),
            catalogue: Catalogue::new(),
            admission: Admission::default(),
            controllers: Controllers::default(),
            faults: Faults::default(),
            rng: Rng::new(seed),
            elapsed: Duration::ZERO,
            calls: Vec::new(),
            call_count: 0,
            keeps_calls: true,
            watches: 0,
            closed_watches: 0,
        };
        for name in ["default", "kube-node-lease", "kube-public", "kube-system"] {
            world.make_namespace(name);
        }
        world.controllers.start(&mut world.catalogue, &world.storage);
        world
    }

    fn make_namespace(&mut self, name: &str) {
        let Some(namespaces) = self.catalogue.by_role(Role::Namespace).cloned() else { return };
        let mut ask = Ask::by("system:apiserver", Verb::Create, &namespaces, "", "");
        let namespace = serde_json::json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        ask.payload = Payload::Object(namespace);
        // Nothing is there yet that could refuse it.
        let _ = self.dispatch(&ask);
    }

    /// The time, as objects carry it.
    pub(super) fn now(&self) -> String {
        let seconds = EPOCH.saturating_add(i64::try_from(self.elapsed.as_secs()).unwrap_or(i64::MAX));
        Timestamp::from_second(seconds).map(|time| time.to_string()).unwrap_or_default()
    }

    /// Answers a request, and puts it on record.
    pub(super) fn ask(&mut self, ask: &Ask) -> Result<Reply, Refusal> {
        self.ask_with(ask, None)
    }

    /// [`World::ask`], on record with the name of a fault.
    pub(super) fn ask_with(&mut self, ask: &Ask, fault: Option<&'static str>) -> Result<Reply, Refusal> {
        let before = self.storage.version();
        let result = match self.admission.authorize(ask) {
            Ok(()) => self.dispatch(ask),
            Err(refusal) => Err(refusal),
        };
        let effective = self.storage.version() != before;
        let outcome = result.as_ref().map(Reply::code).map_err(Clone::clone);
        self.record(ask, outcome, effective, fault);
        if effective && ask.resource.role == Role::Definition {
            self.establish();
        }
        result
    }

    fn dispatch(&mut self, ask: &Ask) -> Result<Reply, Refusal> {
        match ask.verb {
            Verb::Get => self.get(ask),
            Verb::List => self.list(ask),
            Verb::Watch => self.watch(ask),
            Verb::Create => self.create(ask),
            Verb::Update => self.update(ask),
            Verb::Patch => self.patch(ask),
            Verb::Delete => self.delete(ask),
            Verb::DeleteCollection => self.delete_collection(ask),
            Verb::NonResource => Err(Refusal::NotServed),
        }
    }

    pub(super) fn record(
        &mut self,
        ask: &Ask,
        outcome: Result<u16, Refusal>,
        effective: bool,
        fault: Option<&'static str>,
    ) {
        let body = ask.body().filter(|_| self.keeps_calls).cloned();
        self.note(&ask.user, ask.verb, ask.target(), (ask.content_type.clone(), body), outcome, (effective, fault));
    }

    pub(super) fn note(
        &mut self,
        user: &Arc<str>,
        verb: Verb,
        target: Target,
        (content_type, body): (String, Option<Value>),
        outcome: Result<u16, Refusal>,
        (effective, fault): (bool, Option<&'static str>),
    ) {
        self.call_count += 1;
        if !self.keeps_calls {
            return;
        }
        let (code, reason, message) = match &outcome {
            Ok(code) => (*code, String::new(), String::new()),
            Err(refusal) => (refusal.code(), refusal.reason().to_owned(), refusal.message().to_owned()),
        };
        self.calls.push(Call {
            number: self.call_count,
            at: self.elapsed,
            user: Arc::clone(user),
            verb,
            target,
            content_type,
            body: body.map(Arc::new),
            code,
            reason,
            message,
            effective,
            fault,
        });
    }

    /// The stored object that a request names.
    pub(super) fn stored(&self, ask: &Ask) -> Option<Arc<Value>> {
        self.storage.get(ask.resource.id, &key(&ask.namespace, &ask.name)).cloned()
    }

    /// A Namespace by name.
    pub(super) fn namespace(&self, name: &str) -> Option<&Arc<Value>> {
        let namespaces = self.catalogue.by_role(Role::Namespace)?;
        self.storage.get(namespaces.id, name)
    }
}

impl Reply {
    pub(super) fn code(&self) -> u16 {
        match self {
            Self::Object { code, .. } => *code,
            _ => 200,
        }
    }
}

/// How the objects of a kind merge, in one version.
pub(super) fn shape_of<'a>(resource: &'a Resource, version: &str) -> Shape<'a> {
    let schema = resource.version(version).and_then(|version| version.schema.as_deref());
    Shape::root(schema.map(super::schema::Schema::root), resource.is_custom())
}
