//! Which object may be acted on next.
//!
//! A state machine without IO: counters over a [`DependencyGraph`], no waves and no barriers. It decides *order*
//! only. What is done to an object, and what proves that it is done, is the caller's business; until the caller says
//! [`settle`](Sequencer::settle), everything that waits for the object keeps waiting.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, BinaryHeap},
    sync::Arc,
};

use crate::graph::{DependencyGraph, Group, Node};

/// Which way the graph is walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    /// Dependents first.
    Deletion,
    /// Dependencies first.
    Application,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Something before it is not settled.
    Waiting,
    /// Free, and not handed out.
    Ready,
    /// Handed out by `ready`.
    Taken,
    /// Done with.
    Settled,
}

/// Hands out the nodes of a graph in dependency order, each once, as soon as nothing before it is left.
///
/// # Guarantees
/// - For deletion, [`ready`](Self::ready) never yields a node while a node that depends on it is unsettled; for
///   application, never while a node it depends on is. Members of one group (a stored cycle) are the exception: they
///   wait for what is outside of the group only, and become ready together.
/// - Among the nodes that are ready, the one at the head of the longest remaining path comes first; ties go to the
///   smaller node, so that the order depends on the graph and the calls alone.
/// - Building takes time linear in nodes and edges, each `settle` linear in the node's edges (with a logarithm for
///   the queue).
#[derive(Clone, Debug)]
pub struct Sequencer {
    graph: Arc<DependencyGraph>,
    direction: Direction,
    state: Vec<State>,
    /// Per group: edges from nodes of unsettled groups that hold it back.
    held_by: Vec<u32>,
    /// Per group: members that are not settled. What waits for one waits for all, as each member needs what any needs.
    open_members: Vec<u32>,
    /// Per node: the longest path that still lies behind it.
    path: Vec<u32>,
    queue: BinaryHeap<(u32, Reverse<Node>)>,
    unsettled: usize,
    /// Pairs of which the second does not wait for the first any more.
    waived: BTreeSet<(Node, Node)>,
}

impl Sequencer {
    /// Dependents first: for teardown and prune.
    #[must_use]
    pub fn deletion(graph: Arc<DependencyGraph>) -> Self {
        Self::new(graph, Direction::Deletion)
    }

    /// Dependencies first: for apply.
    #[must_use]
    pub fn application(graph: Arc<DependencyGraph>) -> Self {
        Self::new(graph, Direction::Application)
    }

    fn new(graph: Arc<DependencyGraph>, direction: Direction) -> Self {
        let mut held_by = vec![0; graph.groups()];
        let mut free = Vec::new();
        for node in graph.nodes() {
            let group = graph.group(node);
            let outside = before(&graph, direction, node).iter().filter(|n| graph.group(**n) != group).count();
            held_by[group.index()] += u32::try_from(outside).unwrap_or(u32::MAX);
        }
        for node in graph.nodes() {
            if held_by[graph.group(node).index()] == 0 {
                free.push(node);
            }
        }
        let mut open_members = vec![0; graph.groups()];
        for node in graph.nodes() {
            open_members[graph.group(node).index()] += 1;
        }
        let path = remaining_paths(&graph, direction);
        let mut this = Self {
            direction,
            state: vec![State::Waiting; graph.len()],
            held_by,
            open_members,
            path,
            queue: BinaryHeap::new(),
            unsettled: graph.len(),
            waived: BTreeSet::new(),
            graph,
        };
        for node in free {
            this.enqueue(node);
        }
        this
    }

    /// The graph being walked.
    #[must_use]
    pub fn graph(&self) -> &Arc<DependencyGraph> {
        &self.graph
    }

    fn enqueue(&mut self, node: Node) {
        if self.state[node.index()] == State::Waiting {
            self.state[node.index()] = State::Ready;
            self.queue.push((self.path[node.index()], Reverse(node)));
        }
    }

    /// The next node that may be acted on, or `None` while all that is left waits.
    pub fn ready(&mut self) -> Option<Node> {
        while let Some((_, Reverse(node))) = self.queue.pop() {
            if self.state[node.index()] == State::Ready {
                self.state[node.index()] = State::Taken;
                return Some(node);
            }
        }
        None
    }

    /// Whether [`ready`](Self::ready) would yield a node.
    #[must_use]
    pub fn has_ready(&self) -> bool {
        self.queue.iter().any(|(_, Reverse(node))| self.state[node.index()] == State::Ready)
    }

    /// Says that `node` is done with: for deletion, proven gone (or detached, or abandoned); for application,
    /// applied. Frees what waited for it alone. Settling twice does nothing.
    ///
    /// A node may be settled before it was handed out, such as one that was gone to begin with; its place in the order
    /// is then empty, but what waits for *its* predecessors still waits for them.
    pub fn settle(&mut self, node: Node) {
        if std::mem::replace(&mut self.state[node.index()], State::Settled) == State::Settled {
            return;
        }
        self.unsettled -= 1;
        let graph = Arc::clone(&self.graph);
        let group = graph.group(node);
        let open = &mut self.open_members[group.index()];
        *open -= 1;
        if *open > 0 {
            return;
        }
        let direction = self.direction;
        for member in graph.members(group) {
            for next in after(&graph, direction, *member) {
                if graph.group(*next) != group && !self.waived.contains(&(*member, *next)) {
                    self.let_go(graph.group(*next));
                }
            }
        }
    }

    /// One node less holds a group back.
    fn let_go(&mut self, group: Group) {
        let held = &mut self.held_by[group.index()];
        *held -= 1;
        if *held == 0 {
            for member in Arc::clone(&self.graph).members(group) {
                self.enqueue(*member);
            }
        }
    }

    /// Lets `node` go without waiting for `first`, which would have had to be settled before it. Returns whether it was
    /// waiting for it; members of one group do not wait for each other. What makes that right is the caller's business.
    pub fn waive(&mut self, first: Node, node: Node) -> bool {
        let (held_by, held) = (self.graph.group(first), self.graph.group(node));
        let waits = held_by != held
            && self.open_members[held_by.index()] > 0
            && before(&self.graph, self.direction, node).binary_search(&first).is_ok();
        if !waits || !self.waived.insert((first, node)) {
            return false;
        }
        self.let_go(held);
        true
    }

    /// Whether `node` is settled.
    #[must_use]
    pub fn is_settled(&self, node: Node) -> bool {
        self.state[node.index()] == State::Settled
    }

    /// Whether `node` was handed out or could be: nothing before it is left.
    #[must_use]
    pub fn is_free(&self, node: Node) -> bool {
        self.held_by[self.graph.group(node).index()] == 0
    }

    /// The unsettled nodes that hold `node` back directly, a group as a whole.
    pub fn waits_for(&self, node: Node) -> impl Iterator<Item = Node> + '_ {
        let group = self.graph.group(node);
        let groups: BTreeSet<_> = before(&self.graph, self.direction, node)
            .iter()
            .filter(|first| !self.waived.contains(&(**first, node)))
            .map(|n| self.graph.group(*n))
            .filter(|g| *g != group)
            .collect();
        groups.into_iter().flat_map(|g| self.graph.members(g)).copied().filter(|n| !self.is_settled(*n))
    }

    /// Number of nodes that are not settled.
    #[must_use]
    pub fn unsettled(&self) -> usize {
        self.unsettled
    }
}

/// What must be settled before `node`.
fn before(graph: &DependencyGraph, direction: Direction, node: Node) -> &[Node] {
    match direction {
        Direction::Deletion => graph.dependents(node),
        Direction::Application => graph.dependencies(node),
    }
}

/// What waits for `node`.
fn after(graph: &DependencyGraph, direction: Direction, node: Node) -> &[Node] {
    match direction {
        Direction::Deletion => graph.dependencies(node),
        Direction::Application => graph.dependents(node),
    }
}

/// The longest path behind each node. Members of a group share the group's.
fn remaining_paths(graph: &DependencyGraph, direction: Direction) -> Vec<u32> {
    // Kahn's walk from the far end: a group is done once everything behind it is.
    let mut open = vec![0_u32; graph.groups()];
    let mut longest = vec![0_u32; graph.groups()];
    for node in graph.nodes() {
        let group = graph.group(node);
        let outside = after(graph, direction, node).iter().filter(|n| graph.group(**n) != group).count();
        open[group.index()] += u32::try_from(outside).unwrap_or(u32::MAX);
    }
    let mut seen = BTreeSet::new();
    let mut stack: Vec<_> = graph
        .nodes()
        .map(|n| graph.group(n))
        .filter(|g| open[g.index()] == 0 && (graph.members(*g).len() == 1 || seen.insert(*g)))
        .collect();
    while let Some(group) = stack.pop() {
        let next = longest[group.index()] + 1;
        for member in graph.members(group) {
            for node in before(graph, direction, *member) {
                let other = graph.group(*node);
                if other == group {
                    continue;
                }
                longest[other.index()] = longest[other.index()].max(next);
                open[other.index()] -= 1;
                if open[other.index()] == 0 {
                    stack.push(other);
                }
            }
        }
    }
    graph.nodes().map(|n| longest[graph.group(n).index()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{graph::GraphBuilder, inventory::Requirement, object::ObjectId};
    use proptest::prelude::*;

    fn graph(nodes: usize, edges: &[(usize, usize)]) -> Arc<DependencyGraph> {
        let mut builder = GraphBuilder::new();
        let nodes: Vec<_> = (0..nodes)
            .map(|n| builder.add(ObjectId::new("", "ConfigMap", Some("a"), &format!("n{n:03}")).unwrap()).unwrap())
            .collect();
        for (from, to) in edges {
            if from != to {
                builder.depend(nodes[*from], nodes[*to], Requirement::Required { declared_by: "api".into() });
            }
        }
        Arc::new(builder.build_stored())
    }

    fn name(sequencer: &Sequencer, node: Node) -> usize {
        sequencer.graph().id(node).name()[1..].parse().unwrap()
    }

    #[test]
    fn s21_an_unrelated_slow_branch_delays_nothing_else() {
        // 0 -> 1 is slow, 2 -> 3 -> 4 is not.
        let mut sequencer = Sequencer::deletion(graph(5, &[(0, 1), (2, 3), (3, 4)]));
        let first = sequencer.ready().unwrap();
        assert_eq!(name(&sequencer, first), 2, "longest remaining path first");
        let slow = sequencer.ready().unwrap();
        assert_eq!(name(&sequencer, slow), 0);
        let mut done = Vec::new();
        let mut next = Some(first);
        while let Some(node) = next {
            done.push(name(&sequencer, node));
            sequencer.settle(node);
            next = sequencer.ready();
        }
        assert_eq!(done, [2, 3, 4]);
        assert_eq!(
            sequencer
                .waits_for(sequencer.graph().node(&ObjectId::new("", "ConfigMap", Some("a"), "n001").unwrap()).unwrap())
                .count(),
            1
        );
    }

    #[test]
    fn c24_a_stored_cycle_goes_as_one_group() {
        // 0 depends on the cycle 1 <-> 2, which depends on 3.
        let mut sequencer = Sequencer::deletion(graph(4, &[(0, 1), (1, 2), (2, 1), (2, 3)]));
        let first = sequencer.ready().unwrap();
        assert_eq!(name(&sequencer, first), 0);
        assert!(sequencer.ready().is_none());
        sequencer.settle(first);
        let pair = [sequencer.ready().unwrap(), sequencer.ready().unwrap()];
        assert_eq!(pair.map(|n| name(&sequencer, n)), [1, 2]);
        sequencer.settle(pair[1]);
        assert!(sequencer.ready().is_none(), "3 waits for the whole group");
        sequencer.settle(pair[0]);
        let last = sequencer.ready().unwrap();
        assert_eq!(name(&sequencer, last), 3);
        sequencer.settle(last);
        assert_eq!(sequencer.unsettled(), 0);
    }

    #[test]
    fn a_long_chain_needs_no_stack() {
        let edges: Vec<_> = (1..20_000).map(|n| (n - 1, n)).collect();
        let mut sequencer = Sequencer::deletion(graph(20_000, &edges));
        let mut count = 0;
        while let Some(node) = sequencer.ready() {
            sequencer.settle(node);
            count += 1;
        }
        assert_eq!(count, 20_000);
    }

    proptest! {
        #[test]
        fn order_holds_whatever_settles_when(
            edges in proptest::collection::vec((0_usize..12, 0_usize..12), 0..40),
            picks in proptest::collection::vec(0_usize..12, 0..200),
            application in any::<bool>(),
            waivers in proptest::collection::vec((0_usize..12, 0_usize..12), 0..6),
        ) {
            let graph = graph(12, &edges);
            let mut sequencer = if application {
                Sequencer::application(Arc::clone(&graph))
            } else {
                Sequencer::deletion(Arc::clone(&graph))
            };
            let direction = sequencer.direction;
            let mut taken: Vec<Node> = Vec::new();
            let mut handed_out = BTreeSet::new();
            let mut picks = picks.into_iter();
            let nodes: Vec<Node> = graph.nodes().collect();
            let (mut waivers, mut waived) = (waivers.into_iter(), BTreeSet::new());
            loop {
                // At any time somebody may decide that something need not be waited for.
                if let Some((first, node)) = waivers.next().map(|(a, b)| (nodes[a], nodes[b]))
                    && sequencer.waive(first, node)
                {
                    prop_assert!(before(&graph, direction, node).contains(&first) && !sequencer.is_settled(node));
                    prop_assert!(!sequencer.waive(first, node), "once");
                    waived.insert((first, node));
                }
                while let Some(node) = sequencer.ready() {
                    prop_assert!(handed_out.insert(node), "handed out twice");
                    let group = graph.members(graph.group(node));
                    let pairs = group.iter().flat_map(|n| before(&graph, direction, *n).iter().map(move |first| (*first, *n)));
                    for (first, node) in pairs.filter(|pair| !waived.contains(pair)) {
                        let earlier = graph.group(first);
                        let settled = graph.members(earlier).iter().all(|n| sequencer.is_settled(*n));
                        prop_assert!(settled || earlier == graph.group(node));
                    }
                    taken.push(node);
                }
                if taken.is_empty() {
                    break;
                }
                let node = taken.swap_remove(picks.next().unwrap_or(0) % taken.len());
                sequencer.settle(node);
            }
            prop_assert_eq!(handed_out.len(), graph.len());
            prop_assert_eq!(sequencer.unsettled(), 0);
        }
    }
}
