//! The garbage collector: a model of the upstream one, with its graph, its virtual nodes, its cache of absent owners
//! and its stale view of which kinds exist.
//!
//! A step is one event taken in, one object judged, or one refresh of discovery. Judging an object reads and writes
//! within one step, so that nobody comes between its GET and its DELETE.

mod graph;
mod judge;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use serde_json::Value;

use self::graph::{Consequences, Graph, Identity};
use super::Stamp;
use crate::sim::{
    catalogue::{Catalogue, Resource, ResourceId, Role},
    storage::Storage,
    value::{name, namespace, uid},
    world::World,
};

pub(in crate::sim) const USER: &str = "system:serviceaccount:kube-system:generic-garbage-collector";
/// How often the real one asks which kinds exist.
const DISCOVERY: Duration = Duration::from_secs(30);
/// How many absent owners are remembered.
const ABSENT: usize = 500;

/// The events of one kind.
#[derive(Clone, Debug)]
struct Monitor {
    resource: Arc<Resource>,
    api_version: String,
    /// What existed at the beginning and has not been taken in yet.
    initial: VecDeque<Arc<Value>>,
    cursor: u64,
}

/// Work on one object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Task {
    Delete(String),
    Orphan(String),
}

/// A failed attempt, to be repeated.
#[derive(Clone, Debug)]
struct Retry {
    due: Duration,
    /// The state of things in which it failed; in the same state it fails again.
    seen: Option<Stamp>,
}

#[derive(Debug, Default)]
pub(in crate::sim) struct Gc {
    graph: Graph,
    monitors: BTreeMap<ResourceId, Monitor>,
    /// What the REST mapper knows: `apiVersion` and kind.
    mapper: BTreeMap<(String, String), Arc<Resource>>,
    /// The edition of the catalogue that monitors and mapper are of.
    edition: u64,
    refreshed: Duration,
    /// Objects that a read has found absent.
    vanished: VecDeque<Identity>,
    queue: VecDeque<Task>,
    queued: BTreeSet<Task>,
    retries: BTreeMap<Task, Retry>,
    failures: BTreeMap<Task, u32>,
    absent: VecDeque<Identity>,
    /// Events that have been written, to write each once.
    reported: Vec<String>,
}

impl Gc {
    pub(in crate::sim) fn started(catalogue: &Catalogue, storage: &Storage) -> Self {
        let mut gc = Self::default();
        gc.refresh(catalogue, storage);
        gc
    }

    /// Asks which kinds exist.
    fn refresh(&mut self, catalogue: &Catalogue, storage: &Storage) {
        self.edition = catalogue.edition();
        self.mapper.clear();
        let mut monitored: Vec<ResourceId> = Vec::new();
        for resource in catalogue.all().filter(|resource| !resource.versions.is_empty()) {
            let hidden = catalogue.is_hidden(&resource.group);
            if !hidden {
                for version in &resource.versions {
                    let key = (resource.api_version(&version.name), resource.kind.clone());
                    self.mapper.insert(key, Arc::clone(resource));
                }
            }
            if resource.role == Role::Event || (hidden && !self.monitors.contains_key(&resource.id)) {
                continue;
            }
            monitored.push(resource.id);
            self.monitors.entry(resource.id).or_insert_with(|| Monitor {
                resource: Arc::clone(resource),
                api_version: resource.api_version(resource.preferred()),
                initial: storage
                    .find(resource.id)
                    .map(|table| table.list(None, None).map(|(_, object)| Arc::clone(object)).collect())
                    .unwrap_or_default(),
                cursor: storage.version(),
            });
        }
        // What is no longer monitored stays in the graph: no event says that it is gone.
        self.monitors.retain(|id, _| monitored.contains(id));
    }

    fn add(&mut self, task: Task) {
        self.retries.remove(&task);
        if self.queued.insert(task.clone()) {
            self.queue.push_back(task);
        }
    }

    /// Takes a task out of the queue.
    fn take(&mut self, place: usize) -> Option<Task> {
        let task = self.queue.remove(place)?;
        self.queued.remove(&task);
        Some(task)
    }

    /// Puts a failed task back. The pause doubles from 5 ms to 1000 s.
    fn retry(&mut self, task: Task, now: Duration, seen: Option<Stamp>) {
        let failures = self.failures.entry(task.clone()).or_default();
        let pause = Duration::from_millis(5).saturating_mul(1_u32 << (*failures).min(18));
        *failures += 1;
        if !self.queued.contains(&task) {
            self.retries.insert(task, Retry { due: now + pause.min(Duration::from_secs(1000)), seen });
        }
    }

    fn forget(&mut self, task: &Task) {
        self.failures.remove(task);
    }

    /// Gives up what is to be done with an object.
    fn drop_task(&mut self, task: &Task) {
        self.forget(task);
        self.retries.remove(task);
        if self.queued.remove(task) {
            self.queue.retain(|known| known != task);
        }
    }

    fn is_absent(&self, identity: &Identity) -> bool {
        self.absent.contains(identity)
    }

    fn remember_absent(&mut self, identity: Identity) {
        self.absent.retain(|known| *known != identity);
        self.absent.push_back(identity);
        if self.absent.len() > ABSENT {
            self.absent.pop_front();
        }
    }

    /// How many objects are in the graph, those only referred to included.
    pub(in crate::sim) fn nodes(&self) -> usize {
        self.graph.len()
    }

    /// Whether an object of this UID is in the graph and has been seen.
    pub(in crate::sim) fn has_seen(&self, uid: &str) -> bool {
        self.graph.get(uid).is_some_and(|node| !node.is_virtual)
    }
}

impl World {
    /// Kinds with events that have not been taken in.
    fn gc_pending(&self) -> Vec<ResourceId> {
        let has = |(id, monitor): (&ResourceId, &Monitor)| {
            let changed = || self.storage.find(*id).is_some_and(|table| !table.is_current(monitor.cursor));
            (!monitor.initial.is_empty() || changed()).then_some(*id)
        };
        self.controllers.gc.monitors.iter().filter_map(has).collect()
    }

    fn gc_is_stale(&self) -> bool {
        self.controllers.gc.edition != self.catalogue.edition()
    }

    fn gc_retries(&self) -> impl Iterator<Item = (&Task, Duration)> {
        let stamp = self.stamp();
        let repeatable = move |retry: &Retry| retry.seen.is_none_or(|seen| seen != stamp);
        let retries = self.controllers.gc.retries.iter();
        retries.filter(move |(_, retry)| repeatable(retry)).map(|(task, retry)| (task, retry.due))
    }

    pub(super) fn gc_ready(&self) -> usize {
        let gc = &self.controllers.gc;
        let stale = self.gc_is_stale() && self.elapsed >= gc.refreshed + DISCOVERY;
        let retries = self.gc_retries().filter(|(_, due)| *due <= self.elapsed).count();
        self.gc_pending().len() + gc.vanished.len() + gc.queue.len() + retries + usize::from(stale)
    }

    pub(super) fn gc_due(&self) -> Option<Duration> {
        let stale = self.gc_is_stale().then(|| self.controllers.gc.refreshed + DISCOVERY);
        stale.into_iter().chain(self.gc_retries().map(|(_, due)| due)).min()
    }

    pub(super) fn gc_step(&mut self, mut choice: usize) -> String {
        let pending = self.gc_pending();
        if let Some(id) = pending.get(choice) {
            return self.gc_take_in(*id);
        }
        choice -= pending.len();
        let workers = self.controllers.workers;
        let gc = &mut self.controllers.gc;
        if choice < gc.vanished.len() {
            let Some(identity) = gc.vanished.pop_front() else { return String::new() };
            let todo = gc.graph.delete_virtually(&identity);
            self.gc_follow(todo);
            return format!("note that {} {} does not exist", identity.kind, identity.name);
        }
        choice -= gc.vanished.len();
        if choice < gc.queue.len() {
            // First come, first served, except that one of several workers may be slow.
            let Some(task) = gc.take(choice % workers.min(gc.queue.len())) else { return String::new() };
            return self.gc_do(task);
        }
        choice -= gc.queue.len();
        let now = self.elapsed;
        let ready = self.gc_retries().filter(|(_, due)| *due <= now).nth(choice).map(|(task, _)| task.clone());
        match ready {
            Some(task) => {
                self.controllers.gc.retries.remove(&task);
                self.gc_do(task)
            }
            None => {
                self.gc_refresh();
                "ask which kinds exist".to_owned()
            }
        }
    }

    pub(in crate::sim) fn gc_refresh(&mut self) {
        // A watch tells of the last objects of a kind long before anybody asks which kinds exist.
        let gone = |world: &Self| world.gc_pending().into_iter().find(|id| world.catalogue.get(*id).is_none());
        while let Some(id) = gone(self) {
            self.gc_take_in(id);
        }
        self.controllers.gc.refreshed = self.elapsed;
        self.controllers.gc.refresh(&self.catalogue, &self.storage);
    }

    /// Takes in the next event of a kind.
    fn gc_take_in(&mut self, id: ResourceId) -> String {
        let cursor = self.controllers.gc.monitors.get(&id).map(|monitor| monitor.cursor).unwrap_or_default();
        if self.storage.find(id).is_some_and(|table| !table.remembers(cursor)) {
            // It lags so far behind that changes are lost: it begins anew, as a real one lists anew.
            self.restart(super::Controller::GarbageCollector);
            return "begin anew".to_owned();
        }
        let gc = &mut self.controllers.gc;
        let Some(monitor) = gc.monitors.get_mut(&id) else { return String::new() };
        let kind = monitor.resource.kind.clone();
        let (old, new, gone) = match monitor.initial.pop_front() {
            Some(object) => (None, Some(object), None),
            None => {
                let change = self.storage.find(id).and_then(|table| table.changes_after(monitor.cursor).next());
                let Some(change) = change else { return String::new() };
                monitor.cursor = change.version;
                match (&change.before, &change.after) {
                    (before, Some(after)) => (before.clone(), Some(Arc::clone(after)), None),
                    (before, None) => (None, None, before.clone()),
                }
            }
        };
        let (about, todo) = match (&new, &gone) {
            (Some(new), _) => {
                let identity = Identity::of(new, &monitor.api_version, &kind);
                // The same name with another UID: the old object went between two events.
                (name(new).to_owned(), gc.graph.upsert(old.as_deref(), new, identity))
            }
            (None, Some(gone)) => (name(gone).to_owned(), gc.graph.delete(uid(gone))),
            (None, None) => (String::new(), Consequences::default()),
        };
        let place = new.as_ref().or(gone.as_ref()).map(|object| namespace(object).to_owned()).unwrap_or_default();
        self.gc_follow(todo);
        format!("take in {kind} {place}/{about}")
    }

    fn gc_follow(&mut self, todo: Consequences) {
        let now = self.elapsed;
        let gc = &mut self.controllers.gc;
        for identity in todo.absent {
            gc.remember_absent(identity);
        }
        for uid in todo.seen {
            gc.drop_task(&Task::Delete(uid));
        }
        for uid in todo.delete {
            gc.add(Task::Delete(uid));
        }
        for uid in todo.delete_later {
            gc.retry(Task::Delete(uid), now, None);
        }
        for uid in todo.orphan {
            gc.add(Task::Orphan(uid));
        }
        for (dependent, reference) in todo.invalid {
            self.gc_report(&dependent, &reference);
        }
    }
}
