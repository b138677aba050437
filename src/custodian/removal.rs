//! The removal of a parent's objects, of all or of some: what the record and the watches say of them goes into a course, and
//! what the course comes to goes back into the record.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use super::{
    Inner,
    fields::Fingerprints,
    intent::removal_graph,
    site::Site,
    unite::{Found, lacking},
};
use crate::{
    graph::Node,
    inventory::{DeletionPolicy, Edge, EntryState, Inventory, Role},
    object::{LiveRef, ObjectId, ParentRef, Uid},
    ownership::OwnershipPolicy,
    teardown::{
        Agenda, Authority, Block, Case, Course, Executor, Happened, Live, Progress, Reason, Report, Settled, Subject,
        Wakes, policy,
    },
};

/// A removal under way. Disposable: a new one asks the cluster again.
#[derive(Debug)]
pub(super) struct Removal {
    executor: Executor,
    course: Course,
    agenda: Agenda,
    wakes: Wakes,
}

impl Removal {
    /// A removal of the entries in `only`, or of all; `successors` says which are handed over, and to whom.
    pub(super) async fn new(
        inner: &Inner,
        site: &Site,
        parent: &ParentRef,
        inventory: &Inventory,
        only: Option<&BTreeSet<ObjectId>>,
        successors: &BTreeMap<ObjectId, LiveRef>,
    ) -> Self {
        let chosen = |id: &ObjectId| only.is_none_or(|only| only.contains(id));
        // Subscribe before looking, so that nothing that happens in between is lost.
        let changes = site.hub.subscribe(&parent.uid);
        let mut watched = BTreeSet::new();
        let mut served = BTreeMap::new();
        for (kind, namespaces) in inventory.places(|entry| chosen(&entry.id)) {
            let Some(resource) = site.served(&kind).await else { continue };
            if site.hub.ensure(&resource, &namespaces).await {
                watched.insert(kind.clone());
            }
            served.insert(kind, resource);
        }
        let seen = site.hub.live(&parent.uid);

        let graph = removal_graph(inventory, only);
        let keep_all = inventory.decision.as_ref().is_some_and(|d| d.children == DeletionPolicy::Keep);
        let authority = Arc::new(Authority::Marks { manager: inner.manager.clone(), parent: parent.clone() });
        let mut cases = BTreeMap::new();
        for node in graph.nodes() {
            let Some(entry) = inventory.get(graph.id(node)).filter(|e| chosen(&e.id)) else { continue };
            let resource = served.get(&entry.id.group_kind()).cloned().unwrap_or_else(|| entry.resource());
            let mut subject = Subject::new(entry.id.clone(), resource);
            subject.defined_by_crd = entry.defined_by_crd;
            subject.uid.clone_from(&entry.uid);
            subject.state = entry.state;
            subject.role = entry.role;
            subject.recreations = entry.recreations;
            subject.keep = entry.role == Role::Child && (keep_all || entry.deletion == DeletionPolicy::Keep);
            subject.yield_to = successors.get(&entry.id).cloned();
            subject.in_use = inner.in_use_of(parent, entry);
            subject.strip = inner.to_strip(entry);
            // Other parents may wait for this one as a whole.
            let waited_for = inner.gate.is_some() || !graph.dependencies(node).is_empty();
            subject.propagation = policy::propagation(&entry.id, waited_for);
            let live = seen.get(&entry.id).cloned();
            cases.insert(node, Case::new(subject, Arc::clone(&authority), live));
        }
        let mut course = Course::new(graph, cases);
        let policy = (inner.policy)(parent);
        // What is given up or left in the cluster is not managed by that.
        let children = inventory.entries().filter(|e| chosen(&e.id) && e.role == Role::Child && !e.is_let_go());
        for entry in children {
            if let (Some(node), Err(refused)) = (course.graph().node(&entry.id), policy.decide(parent, &entry.id))
                && course.case(node).is_some_and(|case| !case.is_kept())
            {
                course.hold(node, Block::said(Reason::NotManaged, refused.reason.to_string()));
            }
        }
        let insight = Arc::new(inner.insight(site, parent, inventory, &seen, chosen));
        let executor = Executor {
            insight,
            client: site.client.clone(),
            resolver: site.resolver.clone(),
            authority,
            concurrency: inner.concurrency,
        };
        let wakes = Wakes::Shared { changes, kinds: watched, ended: BTreeSet::new(), parent: parent.uid.clone() };
        Self { executor, course, agenda: Agenda::within(site.crowd.clone()), wakes }
    }

    /// Holds back what an unreadable part of the record may depend on: entries that recorded more dependents than can
    /// be found.
    pub(super) fn hold_damaged(&mut self, inventory: &Inventory) {
        for id in lacking(inventory) {
            if let Some(node) = self.course.graph().node(&id) {
                self.course.hold(node, Block::new(Reason::Damaged));
            }
        }
    }

    pub(super) async fn run(&mut self, deadline: Option<Instant>) {
        let mut log = |happened: Happened| tracing::debug!(?happened, "removal");
        self.executor.drive(&mut self.course, &mut self.agenda, &mut self.wakes, deadline, &mut log).await;
    }

    pub(super) fn report(&self) -> Report {
        self.agenda.report(&self.course)
    }

    pub(super) fn is_over(&self) -> bool {
        self.course.is_over()
    }

    /// Writes what was learned into the record: what is done with leaves it. Returns whether anything changed.
    pub(super) fn record(&self, inventory: &mut Inventory, fingerprints: &Fingerprints) -> bool {
        let mut changed = false;
        for ended in self.course.ended() {
            let Some(entry) = inventory.get_mut(&ended.from) else { continue };
            changed |= entry.edges.remove(&Edge::new(ended.to.stable_id(), ended.requirement.clone()));
        }
        for (node, case, progress) in self.course.progress() {
            let subject = case.subject();
            match progress {
                // Left in the cluster, and remembered as long as something that it needs is ours to delete.
                Progress::Settled(Settled::Detached) if self.needs_ours(node, inventory) => {
                    let Some(entry) = inventory.get_mut(&subject.id) else { continue };
                    changed |= entry.state != EntryState::Detaching;
                    entry.state = EntryState::Detaching;
                }
                // Its marks may still be there: only the record tells it from a child that was lost sight of.
                Progress::Settled(Settled::Abandoned) => {}
                Progress::Settled(Settled::Gone(_) | Settled::Detached) => {
                    subject.uid.iter().for_each(|uid| fingerprints.forget(uid));
                    changed |= inventory.remove(&subject.id).is_some();
                }
                _ => {
                    let Some(entry) = inventory.get_mut(&subject.id) else { continue };
                    if entry.uid != subject.uid || entry.recreations != subject.recreations {
                        entry.uid.clone_from(&subject.uid);
                        entry.recreations = subject.recreations;
                        if entry.state == EntryState::Intended {
                            entry.state = EntryState::Recorded;
                        }
                        changed = true;
                    }
                }
            }
        }
        changed
    }

    /// Objects that the watches show with the parent's marks, and that nothing speaks of: another incarnation of an object
    /// that was proven gone, or one whose entry somebody took out of the record. What the parent may not manage is not
    /// one of them: somebody there may have put the marks on something of his own, to hold the parent.
    pub(super) fn strays(
        &self,
        parent: &ParentRef,
        policy: &OwnershipPolicy,
        seen: BTreeMap<ObjectId, Live>,
    ) -> Vec<(ObjectId, Uid, u32)> {
        let strays = seen.into_iter().filter(|(id, live)| live.claim(parent, id).is_ours());
        let strays = strays.filter(|(id, _)| policy.decide(parent, id).is_ok());
        strays.filter_map(|(id, live)| self.unspoken(&id, &live.uid).map(|times| (id, live.uid, times))).collect()
    }

    /// Leaves those of `found` that nothing speaks of; see [`strays`](Self::strays).
    pub(super) fn leave_strays(&self, parent: &ParentRef, policy: &OwnershipPolicy, found: &mut Found) {
        found.entries.retain(|id, entry| {
            let times = entry.uid.as_ref().and_then(|uid| self.unspoken(id, uid));
            entry.recreations = times.unwrap_or_default();
            times.is_some() && policy.decide(parent, id).is_ok()
        });
    }

    /// How often the object was made anew so far, if this incarnation of it is one that nothing speaks of.
    fn unspoken(&self, id: &ObjectId, uid: &Uid) -> Option<u32> {
        let Some(node) = self.course.graph().node(id) else { return Some(0) };
        let gone = matches!(self.course.progress_of(node), Some(Progress::Settled(Settled::Gone(_))));
        let subject = self.course.case(node)?.subject();
        // Who shows it may be behind: then it is the incarnation that is gone.
        (gone && subject.uid.as_ref() != Some(uid)).then_some(subject.recreations + 1)
    }

    /// Whether something that the object of `node` needs to live is on record, and not done with.
    fn needs_ours(&self, node: Node, inventory: &Inventory) -> bool {
        let graph = self.course.graph();
        let ours = |n: &Node| inventory.get(graph.id(*n)).is_some_and(|e| e.role == Role::Child);
        let open = |n: &Node| !matches!(self.course.progress_of(*n), Some(Progress::Settled(_)));
        self.course.needed_by(node).iter().any(|n| ours(n) && open(n))
    }

    /// When to look again if nothing changes before.
    pub(super) fn next_look(&self) -> Duration {
        self.agenda.next_look(&self.course)
    }

    /// What was learned of other incarnations is on record by now: go on with them. Returns whether there are any.
    pub(super) fn recorded(&mut self) -> bool {
        self.course.recorded()
    }

    /// Whether the deadline cut it short.
    pub(super) fn is_cut_short(&self) -> bool {
        self.course.has_requests()
    }
}
