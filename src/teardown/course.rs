//! A whole teardown or prune as a state machine: order from the [`Sequencer`], judgement from each [`Case`].
//!
//! Without IO and without a clock: [`next`](Course::next) says what to ask the API server,
//! [`answer`](Course::answer) is told what it said. Everything the executor does and everything the report says comes
//! from here, so that the plan shown is the plan executed.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use super::{
    policy,
    proof::{Block, Case, Event, Reason, Settled, Step},
    sequencer::Sequencer,
};
use crate::{
    graph::{DependencyGraph, Node},
    object::ObjectId,
};

/// How far one object has come.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Progress {
    /// Not begun: its dependents are not settled.
    Idle,
    /// A request about it is to be sent or was sent.
    Asked,
    /// Terminating; nothing to send until something changes.
    Waiting,
    /// Nothing can be done about it now.
    Blocked(Block),
    /// Done with.
    Settled(Settled),
}

/// Every object of a graph that is to go, and how far each has come.
///
/// Nodes without a case are taken to exist and to stay: they hold back what they depend on. A prune is the course of
/// the entries that are no longer desired, within the graph of all entries.
///
/// # Guarantees
/// - A DELETE for an object is handed out only when every object that depends on it is settled.
/// - At most one request about an object is outstanding.
/// - An object that is kept spreads: what it requires, its Namespace and its kind's definition are kept as well.
#[derive(Debug)]
pub struct Course {
    sequencer: Sequencer,
    cases: BTreeMap<Node, Case>,
    progress: BTreeMap<Node, Progress>,
    kept_for: BTreeMap<Node, ObjectId>,
    outbox: VecDeque<(Node, Step)>,
    unsettled: usize,
}

impl Course {
    /// A course over `graph`, with a case for each object that is to go.
    #[must_use]
    pub fn new(graph: Arc<DependencyGraph>, cases: BTreeMap<Node, Case>) -> Self {
        let mut this = Self {
            sequencer: Sequencer::deletion(graph),
            progress: cases.keys().map(|n| (*n, Progress::Idle)).collect(),
            kept_for: BTreeMap::new(),
            outbox: VecDeque::new(),
            unsettled: cases.len(),
            cases,
        };
        let kept: Vec<_> = this.cases.iter().filter(|(_, case)| case.is_kept()).map(|(node, _)| *node).collect();
        this.spread(kept);
        this
    }

    /// Holds an object back for a reason of the caller's, such as an unreadable part of the inventory.
    pub fn hold(&mut self, node: Node, block: Block) {
        if let Some(progress) = self.progress.get_mut(&node).filter(|p| **p == Progress::Idle) {
            *progress = Progress::Blocked(block);
        }
    }

    /// Keeps what the kept objects `from` need to live, and what that needs in turn.
    fn spread(&mut self, mut from: Vec<Node>) {
        let graph = Arc::clone(self.sequencer.graph());
        while let Some(node) = from.pop() {
            for needed in policy::needed_by_kept(&graph, node, |n| self.cases.get(&n).map(Case::subject)) {
                let Some(case) = self.cases.get_mut(&needed) else { continue };
                if !case.subject().keep {
                    case.keep();
                    self.kept_for.insert(needed, graph.id(node).clone());
                    from.push(needed);
                }
            }
        }
    }

    /// The next request to send, or `None` until an answer or a change comes in. The steps handed out are `Get`,
    /// `Delete`, `Unguard`, `Detach`, `Resolve` and `ReadDefinition`.
    pub fn next(&mut self) -> Option<(Node, Step)> {
        loop {
            if let Some(next) = self.outbox.pop_front() {
                return Some(next);
            }
            let node = self.sequencer.ready()?;
            let held = !matches!(self.progress.get(&node), Some(Progress::Idle));
            if let Some(case) = self.cases.get_mut(&node).filter(|_| !held) {
                let step = case.start();
                self.take(node, step);
            }
        }
    }

    /// What happened to the object of `node`.
    pub fn answer(&mut self, node: Node, event: Event) {
        if matches!(self.progress.get(&node), None | Some(Progress::Settled(_))) {
            return;
        }
        if let Some(case) = self.cases.get_mut(&node) {
            let step = case.on(event);
            self.take(node, step);
        }
    }

    /// Something about the object may have changed, or enough time has passed: ask again, if it is waited for.
    /// Returns whether that leads to a request.
    pub fn wake(&mut self, node: Node) -> bool {
        let waited_for = match self.progress.get(&node) {
            Some(Progress::Waiting) => true,
            Some(Progress::Blocked(block)) => !matches!(block.reason, Reason::Damaged | Reason::NotManaged),
            _ => false,
        };
        if waited_for {
            self.answer(node, Event::Changed);
        }
        waited_for
    }

    fn take(&mut self, node: Node, step: Step) {
        let progress = match step {
            Step::Wait => Progress::Waiting,
            Step::Block(block) => Progress::Blocked(block),
            Step::Settle(settled) => {
                if settled == Settled::Detached {
                    self.spread(vec![node]);
                }
                self.unsettled -= 1;
                self.sequencer.settle(node);
                Progress::Settled(settled)
            }
            step => {
                self.outbox.push_back((node, step));
                Progress::Asked
            }
        };
        self.progress.insert(node, progress);
    }

    /// The graph.
    #[must_use]
    pub fn graph(&self) -> &Arc<DependencyGraph> {
        self.sequencer.graph()
    }

    /// The case of a node, if it is to go.
    #[must_use]
    pub fn case(&self, node: Node) -> Option<&Case> {
        self.cases.get(&node)
    }

    /// All objects that are to go, with how far each has come.
    pub fn progress(&self) -> impl Iterator<Item = (Node, &Case, &Progress)> + '_ {
        self.cases.iter().zip(self.progress.values()).map(|((node, case), progress)| (*node, case, progress))
    }

    /// How far one object has come.
    #[must_use]
    pub fn progress_of(&self, node: Node) -> Option<&Progress> {
        self.progress.get(&node)
    }

    /// For whose sake an object is kept, if not by a policy of its own.
    #[must_use]
    pub fn kept_for(&self, node: Node) -> Option<&ObjectId> {
        self.kept_for.get(&node)
    }

    /// What `node` waits for directly.
    pub fn waits_for(&self, node: Node) -> impl Iterator<Item = Node> + '_ {
        self.sequencer.waits_for(node)
    }

    /// Whether every object is done with.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.unsettled == 0
    }

    /// What `node` would need to live if it stays: what it requires, its Namespace, the definition of its kind.
    pub(crate) fn needed_by(&self, node: Node) -> Vec<Node> {
        policy::needed_by_kept(self.sequencer.graph(), node, |n| self.case(n).map(Case::subject))
    }

    /// Number of objects that are not done with.
    #[must_use]
    pub fn unsettled(&self) -> usize {
        self.unsettled
    }
}
