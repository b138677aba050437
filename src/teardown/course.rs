//! A whole teardown or prune as a state machine: order from the [`Sequencer`], judgement from each [`Case`].
//!
//! Without IO and without a clock: [`next_request`](Course::next_request) says what to ask the API server,
//! [`answer`](Course::answer) is told what it said. Everything the executor does and everything the report says comes
//! from here, so that the plan shown is the plan executed.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use super::{
    live::Live,
    policy,
    proof::{Block, Case, Event, Settled, Step},
    sequencer::Sequencer,
    webhooks::{self, Ended, Webhooks},
};
use crate::{
    answer::Answer,
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

/// What a hint from a watch came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Hint {
    /// Nothing that matters now.
    Nothing,
    /// It was taken in; a request may follow.
    Taken,
    /// The object is blocked, and what blocks it may have changed: ask again soon, but not at the pace of whoever writes.
    AskSoon,
}

/// One object that is to go.
#[derive(Debug)]
struct Slot {
    case: Case,
    progress: Progress,
    /// For whose sake it is kept, if not by a policy of its own.
    kept_for: Option<ObjectId>,
    /// Held back by the caller: nothing but the caller changes that.
    held: bool,
    /// A watch reported something while a request was outstanding, whose answer may be older.
    overtaken: bool,
}

/// Every object of a graph that is to go, and how far each has come.
///
/// Nodes without a case are taken to exist and to stay: they hold back what they depend on. A prune is the course of
/// the entries that are no longer desired, within the graph of all entries.
///
/// # Guarantees
/// - A DELETE for an object is handed out only when every object that depends on it is settled.
/// - At most one request about an object is outstanding.
/// - An object that is kept spreads: what it requires, its Namespace and its kind's definition are kept as well, unless the
///   object proves to be gone.
/// - Where a webhook of the plan cannot be called, preferred edges to its configuration [end](Self::ended), so that it goes
///   first; required edges hold.
/// - The same answers in the same order lead to the same requests in the same order.
#[derive(Debug)]
pub struct Course {
    sequencer: Sequencer,
    slots: BTreeMap<Node, Slot>,
    outbox: VecDeque<(Node, Step)>,
    /// What is in each container that is to go, of the objects that are to go.
    content: BTreeMap<Node, Vec<Node>>,
    /// Handed out by `next_request` and not answered.
    outstanding: BTreeSet<Node>,
    unsettled: usize,
    /// Whether anything is kept for the sake of something else.
    has_spread: bool,
    webhooks: Webhooks,
}

impl Course {
    /// A course over `graph`, with a case for each object that is to go.
    #[must_use]
    pub fn new(graph: Arc<DependencyGraph>, cases: BTreeMap<Node, Case>) -> Self {
        let slot = |case| Slot { case, progress: Progress::Idle, kept_for: None, held: false, overtaken: false };
        let mut this = Self {
            sequencer: Sequencer::deletion(graph),
            unsettled: cases.len(),
            slots: cases.into_iter().map(|(node, case)| (node, slot(case))).collect(),
            outbox: VecDeque::new(),
            content: BTreeMap::new(),
            outstanding: BTreeSet::new(),
            has_spread: false,
            webhooks: Webhooks::default(),
        };
        this.content = this.sort_into_containers();
        let kept: Vec<_> = this.slots.iter().filter(|(_, slot)| slot.case.is_kept()).map(|(node, _)| *node).collect();
        this.spread(kept);
        this
    }

    /// Holds an object back for a reason of the caller's, such as an unreadable part of the inventory. Nothing is asked
    /// about it, and what it depends on waits for it, for the rest of this course.
    pub fn hold(&mut self, node: Node, block: Block) {
        if let Some(slot) = self.slots.get_mut(&node).filter(|s| s.progress == Progress::Idle) {
            slot.progress = Progress::Blocked(block);
            slot.held = true;
        }
    }

    /// Keeps what the kept objects `from` need to live, and what that needs in turn.
    fn spread(&mut self, mut from: Vec<Node>) {
        let graph = Arc::clone(self.sequencer.graph());
        while let Some(node) = from.pop() {
            let subject = |n| self.slots.get(&n).map(|slot| slot.case.subject());
            for needed in policy::needed_by_kept(&graph, node, subject) {
                let Some(slot) = self.slots.get_mut(&needed) else { continue };
                if !slot.case.subject().keep {
                    slot.case.keep();
                    slot.kept_for = Some(graph.id(node).clone());
                    self.has_spread = true;
                    from.push(needed);
                    self.take_back(needed);
                }
            }
        }
    }

    /// What was kept for the sake of `gone` alone is not kept any more, and neither is what was kept for its sake.
    fn spread_no_more(&mut self, gone: Node) {
        let graph = Arc::clone(self.sequencer.graph());
        let mut from = vec![gone];
        while let Some(node) = from.pop() {
            for needed in self.needed_by(node) {
                let Some(slot) = self.slots.get(&needed).filter(|slot| slot.progress == Progress::Idle) else {
                    continue;
                };
                if slot.kept_for.as_ref() != Some(graph.id(node)) {
                    continue;
                }
                let stays = |slot: &Slot| !matches!(slot.progress, Progress::Settled(Settled::Gone(_)));
                let others = self.slots.iter().filter(|(by, slot)| **by != node && slot.case.is_kept() && stays(slot));
                let other = others.map(|(by, _)| *by).find(|by| *by != needed && self.needed_by(*by).contains(&needed));
                let Some(slot) = self.slots.get_mut(&needed) else { continue };
                slot.kept_for = other.map(|by| graph.id(by).clone());
                if other.is_none() {
                    slot.case.keep_no_more();
                    if !slot.case.is_kept() {
                        from.push(needed);
                    }
                }
            }
        }
    }

    /// A DELETE that is not handed out yet, as of a member of the same group, is not sent any more.
    fn take_back(&mut self, node: Node) {
        let before = self.outbox.len();
        self.outbox.retain(|(other, step)| *other != node || !matches!(step, Step::Delete { .. }));
        if self.outbox.len() < before {
            self.answer(node, Event::Changed);
        }
    }

    /// The next request to send, or `None` until an answer or a change comes in. The steps handed out are `Get`,
    /// `Inspect`, `Delete`, `Unguard`, `Strip`, `Detach`, `Unreference`, `Resolve`, `ReadDefinition` and `ReadWebhooks`.
    pub fn next_request(&mut self) -> Option<(Node, Step)> {
        loop {
            if let Some(next) = self.next_begun() {
                return Some(next);
            }
            let node = self.sequencer.ready()?;
            if let Some(slot) = self.slots.get_mut(&node).filter(|s| s.progress == Progress::Idle) {
                let step = slot.case.start();
                self.take(node, step);
            }
        }
    }

    /// The next request about an object that was asked about before: like [`next_request`](Self::next_request), but begins
    /// with no other object.
    pub fn next_begun(&mut self) -> Option<(Node, Step)> {
        let next = self.outbox.pop_front()?;
        // A configuration is read before it is its turn; that is not about its deletion.
        if next.1 != Step::ReadWebhooks {
            self.outstanding.insert(next.0);
        }
        Some(next)
    }

    /// Whether there may be a request to send without anything else happening first.
    #[must_use]
    pub fn has_requests(&self) -> bool {
        !self.outbox.is_empty() || self.sequencer.has_ready()
    }

    /// What was learned of other incarnations is on record by now: go on with them. Returns whether there are any.
    pub fn recorded(&mut self) -> bool {
        let unrecorded = self.slots.iter().filter(|(_, slot)| slot.case.is_unrecorded());
        let nodes: Vec<_> = unrecorded.map(|(node, _)| *node).collect();
        let any = !nodes.is_empty();
        nodes.into_iter().for_each(|node| self.answer(node, Event::Recorded));
        any
    }

    /// What happened to the object of `node`.
    pub fn answer(&mut self, node: Node, event: Event) {
        if let Event::Webhooks(names) = event {
            self.webhooks.read(node, names);
            return self.free_dead_webhooks();
        }
        self.outstanding.remove(&node);
        let Some(slot) = self.slots.get_mut(&node) else { return };
        if matches!(slot.progress, Progress::Idle | Progress::Settled(_)) || slot.held {
            return;
        }
        let refused_by = match &event {
            Event::Refused(refusal) => match refusal.answer() {
                Answer::WebhookUnavailable { webhook } => Some(webhook.clone()),
                _ => None,
            },
            _ => None,
        };
        let overtaken = std::mem::take(&mut slot.overtaken);
        let mut step = match event {
            Event::Inside(inside) => self.inspected(node, &inside),
            event => slot.case.on(event),
        };
        let Some(slot) = self.slots.get_mut(&node) else { return };
        if overtaken && step == Step::Wait {
            step = slot.case.on(Event::Changed);
        }
        self.take(node, step);
        if refused_by.is_some_and(|webhook| self.webhooks.refused(node, &webhook)) {
            self.look_for_webhooks();
        }
    }

    /// A webhook cannot be called: asks the configurations that are to go, and have not begun to, whose it is.
    fn look_for_webhooks(&mut self) {
        let graph = Arc::clone(self.sequencer.graph());
        for (node, slot) in &self.slots {
            let waits = slot.progress == Progress::Idle && !slot.case.is_kept();
            if waits && webhooks::is_configuration(graph.id(*node)) && self.webhooks.ask(*node) {
                self.outbox.push_back((*node, Step::ReadWebhooks));
            }
        }
        self.free_dead_webhooks();
    }

    /// Ends the preferred edges to configurations of webhooks that cannot be called, so that these go first. Required
    /// edges hold.
    fn free_dead_webhooks(&mut self) {
        let graph = Arc::clone(self.sequencer.graph());
        for (configuration, webhook) in self.webhooks.dead() {
            for dependent in graph.dependents(configuration) {
                if !graph.requires(*dependent, configuration) && self.sequencer.waive(*dependent, configuration) {
                    self.webhooks.end(&graph, *dependent, configuration, &webhook);
                }
            }
        }
    }

    /// Preferred edges that ended because a webhook cannot be called.
    #[must_use]
    pub fn ended(&self) -> &[Ended] {
        self.webhooks.ended()
    }

    /// Every request that was handed out and not answered is lost, because whoever sent it was cancelled: ask again.
    pub fn recall(&mut self) {
        self.webhooks.forget_questions();
        for node in std::mem::take(&mut self.outstanding) {
            self.answer(node, Event::Changed);
        }
    }

    /// Something about the object may have changed, or enough time has passed: ask again, if it is waited for.
    /// Returns whether that leads to a request.
    pub fn wake(&mut self, node: Node) -> bool {
        let Some(slot) = self.slots.get_mut(&node).filter(|s| !s.held) else { return false };
        match slot.progress {
            Progress::Waiting | Progress::Blocked(_) => {
                self.answer(node, Event::Changed);
                true
            }
            Progress::Asked => {
                slot.overtaken = true;
                false
            }
            Progress::Idle | Progress::Settled(_) => false,
        }
    }

    /// A watch showed the object. That is a hint, which may be older than the last answer: it never leads to a DELETE
    /// without a question first.
    pub fn seen(&mut self, node: Node, live: Live) -> Hint {
        let Some(slot) = self.slots.get_mut(&node).filter(|s| !s.held) else { return Hint::Nothing };
        let same = slot.case.live().is_some_and(|known| known.uid == live.uid);
        match &slot.progress {
            // An event from before the DELETE.
            Progress::Waiting if same && !live.is_terminating() => Hint::Nothing,
            Progress::Waiting if same => {
                self.answer(node, Event::Live(live));
                Hint::Taken
            }
            Progress::Waiting => {
                self.answer(node, Event::Changed);
                Hint::Taken
            }
            Progress::Asked if !same => {
                slot.overtaken = true;
                Hint::Nothing
            }
            Progress::Blocked(_) => Hint::AskSoon,
            _ => Hint::Nothing,
        }
    }

    fn take(&mut self, node: Node, step: Step) {
        let Some(slot) = self.slots.get_mut(&node) else { return };
        slot.progress = match step {
            Step::Wait => Progress::Waiting,
            Step::Block(block) => Progress::Blocked(block),
            Step::Settle(settled) => {
                slot.progress = Progress::Settled(settled.clone());
                // What was given up may be there still: what it needs stays, unless it is known to be gone.
                let stays = settled == Settled::Abandoned && !slot.case.is_absent();
                if settled == Settled::Detached || stays {
                    self.spread(vec![node]);
                } else if self.has_spread {
                    self.spread_no_more(node);
                }
                self.unsettled -= 1;
                self.sequencer.settle(node);
                // What its webhooks refused may be tried again.
                for refused in self.webhooks.refused_by(node) {
                    self.wake(refused);
                }
                return;
            }
            step => {
                self.outbox.push_back((node, step));
                Progress::Asked
            }
        };
    }

    /// The graph.
    #[must_use]
    pub fn graph(&self) -> &Arc<DependencyGraph> {
        self.sequencer.graph()
    }

    /// The case of a node, if it is to go.
    #[must_use]
    pub fn case(&self, node: Node) -> Option<&Case> {
        self.slots.get(&node).map(|slot| &slot.case)
    }

    /// All objects that are to go, with how far each has come, in order of identity.
    pub fn progress(&self) -> impl Iterator<Item = (Node, &Case, &Progress)> + '_ {
        self.slots.iter().map(|(node, slot)| (*node, &slot.case, &slot.progress))
    }

    /// How far one object has come.
    #[must_use]
    pub fn progress_of(&self, node: Node) -> Option<&Progress> {
        self.slots.get(&node).map(|slot| &slot.progress)
    }

    /// For whose sake an object is kept, if not by a policy of its own.
    #[must_use]
    pub fn kept_for(&self, node: Node) -> Option<&ObjectId> {
        self.slots.get(&node)?.kept_for.as_ref()
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

mod content;
#[cfg(test)]
mod tests;
