//! From edges to an order: what has to be given up, and what has to go together.

use std::{
    cmp::Reverse,
    sync::{Arc, OnceLock},
};

use petgraph::{algo::kosaraju_scc, graph::DiGraph};

use super::{
    Cycle, DependencyGraph, External, GiveUpReason, GivenUp, Group, Groups, Hop, Node,
    rows::{self, Rows},
};
use crate::{
    inventory::Requirement,
    object::{ObjectId, StableId},
};

/// Objects and edges in canonical order, of which some edges may form cycles.
pub(super) struct Draft {
    pub(super) ids: Vec<ObjectId>,
    pub(super) stable: OnceLock<Vec<StableId>>,
    pub(super) reasons: Vec<Arc<Requirement>>,
    // By `from`, sorted by `to` and requirement, without edges from an object to itself.
    pub(super) edges: Rows<(Node, u32)>,
    pub(super) declared_selves: Vec<(Node, String)>,
    pub(super) externals: Vec<External>,
    pub(super) given_up: Vec<GivenUp>,
}

/// The result of a first walk: neighbours, and the nodes that it could not reach because of cycles.
pub(super) struct Core {
    dependencies: Rows<Node>,
    dependents: Rows<Node>,
    singles: Vec<Node>,
    heights: Vec<u32>,
    // Everything on a cycle and everything that depends on such, in order; empty without cycles.
    nodes: Vec<Node>,
}

impl Draft {
    fn requirement(&self, reason: u32) -> &Requirement {
        &self.reasons[reason as usize]
    }

    fn required(&self, node: Node) -> impl Iterator<Item = (Node, &str)> + '_ {
        self.edges.row(node.index()).iter().filter_map(|(to, reason)| match self.requirement(*reason) {
            Requirement::Required { declared_by } => Some((*to, declared_by.as_str())),
            Requirement::Preferred { .. } => None,
        })
    }

    fn neighbours(&self) -> (Rows<Node>, Rows<Node>) {
        let mut dependencies = self.edges.map(|(to, _)| *to);
        dependencies.shrink(|_, row| rows::dedup(row));
        let dependents = dependencies.transpose(|node| node.index(), Node::at);
        (dependencies, dependents)
    }

    pub(super) fn cyclic_core(&self) -> Core {
        let (dependencies, dependents) = self.neighbours();
        let singles: Vec<Node> = (0..self.ids.len()).map(Node::at).collect();
        let walk = Walk { of: Node::index, members: |g| &singles[g..=g], groups: singles.len() };
        let (heights, nodes) = walk.run(&dependencies, &dependents);
        Core { dependencies, dependents, singles, heights, nodes }
    }

    /// The sets of nodes that need each other by required edges.
    pub(super) fn knots(&self, core: &Core) -> Vec<Vec<Node>> {
        knots_among(&core.nodes, |node| self.required(node).map(|(to, _)| to))
    }

    /// One cycle of each knot, and every object that depends on itself.
    pub(super) fn cycles(&self, knots: &[Vec<Node>]) -> Vec<Cycle> {
        let hop = |from: Node, to: Node, declared_by: &str| Hop {
            from: self.ids[from.index()].clone(),
            to: self.ids[to.index()].clone(),
            declared_by: declared_by.to_owned(),
        };
        let selves = self.declared_selves.iter().map(|(node, by)| (*node, vec![hop(*node, *node, by)]));
        let rounds = knots.iter().filter_map(|knot| {
            let first = *knot.first()?;
            let path = self.round_trip(first, knot);
            Some((first, path.into_iter().map(|(from, to, by)| hop(from, to, by)).collect()))
        });
        let mut cycles: Vec<_> = selves.chain(rounds).collect();
        cycles.sort_by_key(|(node, path): &(Node, Vec<Hop>)| (*node, path.len()));
        cycles.into_iter().map(|(_, path)| Cycle { path }).collect()
    }

    /// The shortest way from `start` along required edges back to it, within `knot`.
    fn round_trip(&self, start: Node, knot: &[Node]) -> Vec<(Node, Node, &str)> {
        let mut came_by: Vec<Option<(Node, &str)>> = vec![None; knot.len()];
        let mut queue = std::collections::VecDeque::from([start]);
        let place = |node: Node| knot.binary_search(&node).ok();
        'search: while let Some(from) = queue.pop_front() {
            for (to, by) in self.required(from) {
                let Some(to_place) = place(to) else { continue };
                if came_by[to_place].is_none() {
                    came_by[to_place] = Some((from, by));
                    queue.push_back(to);
                }
                if to == start {
                    break 'search;
                }
            }
        }
        let mut path = Vec::new();
        let mut to = start;
        while let Some((from, by)) = place(to).and_then(|p| came_by[p]) {
            path.push((from, to, by));
            to = from;
            if to == start {
                break;
            }
        }
        path.reverse();
        path
    }

    pub(super) fn finish(mut self, core: Core, knots: &[Vec<Node>]) -> DependencyGraph {
        let Core { mut dependencies, mut dependents, singles, mut heights, nodes } = core;
        let groups = if nodes.is_empty() {
            Groups::Single(singles)
        } else {
            let rejected = self.give_up(&nodes);
            if !rejected.is_empty() {
                self.drop_edges(rejected);
                (dependencies, dependents) = self.neighbours();
            }
            let groups = group(self.ids.len(), singles, knots);
            heights = match &groups {
                Groups::Single(nodes) => {
                    let walk = Walk { of: Node::index, members: |g| &nodes[g..=g], groups: nodes.len() };
                    walk.run(&dependencies, &dependents).0
                }
                Groups::Knotted { of, members } => {
                    let of = |node: Node| of[node.index()].index();
                    let walk = Walk { of, members: |g| members.row(g), groups: members.len() };
                    walk.run(&dependencies, &dependents).0
                }
            };
            groups
        };
        self.given_up
            .sort_by(|a, b| (a.from, a.to).cmp(&(b.from, b.to)).then_with(|| a.requirement.cmp(&b.requirement)));
        self.given_up.dedup();
        DependencyGraph {
            ids: self.ids,
            stable: self.stable,
            reasons: self.reasons,
            edges: self.edges,
            dependencies,
            dependents,
            externals: self.externals,
            given_up: self.given_up,
            groups,
            heights,
        }
    }

    /// The preferred edges that cannot hold, each with the way back that it would close to a cycle.
    ///
    /// Edges are accepted in order of preference: higher rank first, then lesser identities. One is rejected exactly
    /// if the required edges and those accepted before lead back from its end, so what is rejected is necessary, and
    /// the lowest rank with the greatest identities gives way. Only edges inside of a knot of all edges are tried.
    fn give_up(&self, core: &[Node]) -> Vec<(Node, Node, u32, Vec<Node>)> {
        let mut rejected = Vec::new();
        for knot in knots_among(core, |node| self.edges.row(node.index()).iter().map(|(to, _)| *to)) {
            let place = |node: Node| knot.binary_search(&node).ok();
            let mut reach = Reach::new(knot.len());
            let mut preferred = Vec::new();
            for (from, node) in knot.iter().enumerate() {
                for (to, reason) in self.edges.row(node.index()) {
                    let Some(to) = place(*to) else { continue };
                    match self.requirement(*reason) {
                        Requirement::Required { .. } => reach.connect(from, to),
                        Requirement::Preferred { rank, .. } => preferred.push((Reverse(*rank), from, to, *reason)),
                    }
                }
            }
            preferred.sort_by(|a, b| {
                (a.0, a.1, a.2).cmp(&(b.0, b.1, b.2)).then_with(|| self.requirement(a.3).cmp(self.requirement(b.3)))
            });
            for (_, from, to, reason) in preferred {
                match reach.path(to, from) {
                    None => reach.connect(from, to),
                    Some(back) => {
                        let back = back.into_iter().map(|n| knot[n]).collect();
                        rejected.push((knot[from], knot[to], reason, back));
                    }
                }
            }
        }
        rejected.sort_unstable_by_key(|(from, to, reason, _)| (*from, *to, *reason));
        rejected
    }

    fn drop_edges(&mut self, rejected: Vec<(Node, Node, u32, Vec<Node>)>) {
        self.edges.shrink(|from, row| {
            let mut kept = 0;
            for i in 0..row.len() {
                let (to, reason) = row[i];
                let key = (Node::at(from), to, reason);
                if rejected.binary_search_by_key(&key, |(from, to, reason, _)| (*from, *to, *reason)).is_err() {
                    row[kept] = row[i];
                    kept += 1;
                }
            }
            kept
        });
        for (from, to, reason, back) in rejected {
            let requirement = self.requirement(reason).clone();
            self.given_up.push(GivenUp { from, to, requirement, reason: GiveUpReason::ClosesCycle { back } });
        }
    }
}

/// The strongly connected components of more than one node, members in order, by least member. `nodes` is sorted;
/// edges that leave it are passed over.
fn knots_among<I: Iterator<Item = Node>>(nodes: &[Node], edges: impl Fn(Node) -> I) -> Vec<Vec<Node>> {
    if nodes.is_empty() {
        return Vec::new();
    }
    // Kosaraju's algorithm, because petgraph's is iterative; its Tarjan recurses and overflows the stack on long chains.
    let mut graph = DiGraph::<(), (), u32>::with_capacity(nodes.len(), nodes.len());
    let indices: Vec<_> = nodes.iter().map(|_| graph.add_node(())).collect();
    for (from, node) in indices.iter().zip(nodes) {
        for to in edges(*node) {
            if let Ok(to) = nodes.binary_search(&to) {
                graph.add_edge(*from, indices[to], ());
            }
        }
    }
    let components = kosaraju_scc(&graph).into_iter().filter(|component| component.len() > 1);
    let mut knots: Vec<Vec<Node>> =
        components.map(|component| component.into_iter().map(|n| nodes[n.index()]).collect()).collect();
    knots.iter_mut().for_each(|knot: &mut Vec<Node>| knot.sort_unstable());
    knots.sort_unstable();
    knots
}

/// One group a knot, one a remaining node, numbered by least member.
fn group(nodes: usize, singles: Vec<Node>, knots: &[Vec<Node>]) -> Groups {
    if knots.is_empty() {
        return Groups::Single(singles);
    }
    let mut least: Vec<Node> = singles;
    for knot in knots {
        for member in knot {
            least[member.index()] = knot[0];
        }
    }
    let mut of: Vec<Group> = Vec::with_capacity(nodes);
    let mut groups = 0;
    for (node, least) in least.iter().enumerate() {
        if least.index() == node {
            of.push(Group::at(groups));
            groups += 1;
        } else {
            of.push(of[least.index()]);
        }
    }
    let members = Rows::scatter(groups, (0..nodes).map(Node::at), |node| of[node.index()].index());
    Groups::Knotted { of, members }
}

/// Kahn's walk from the nodes without dependencies upwards, group by group.
struct Walk<O, M> {
    of: O,
    members: M,
    groups: usize,
}

impl<'a, O: Fn(Node) -> usize, M: Fn(usize) -> &'a [Node]> Walk<O, M> {
    /// The height of each group, and the nodes of groups that were not reached because they wait for themselves.
    fn run(&self, dependencies: &Rows<Node>, dependents: &Rows<Node>) -> (Vec<u32>, Vec<Node>) {
        // (dependencies outside of the group that are not done, height so far), side by side: they are read together.
        let mut state = vec![(0_u32, 0_u32); self.groups];
        for node in 0..dependencies.len() {
            let group = (self.of)(Node::at(node));
            let outside = dependencies.row(node).iter().filter(|d| (self.of)(**d) != group).count();
            state[group].0 += Node::at(outside).0;
        }
        let mut done: Vec<usize> = (0..self.groups).filter(|g| state[*g].0 == 0).collect();
        let mut next = 0;
        while let Some(group) = done.get(next).copied() {
            next += 1;
            let height = state[group].1 + 1;
            for member in (self.members)(group) {
                for dependent in dependents.row(member.index()) {
                    let other = (self.of)(*dependent);
                    if other == group {
                        continue;
                    }
                    let (open, reached) = &mut state[other];
                    *reached = height.max(*reached);
                    *open -= 1;
                    if *open == 0 {
                        done.push(other);
                    }
                }
            }
        }
        let stuck = if done.len() == self.groups {
            Vec::new()
        } else {
            (0..dependencies.len()).map(Node::at).filter(|n| state[(self.of)(*n)].0 > 0).collect()
        };
        (state.into_iter().map(|(_, height)| height).collect(), stuck)
    }
}

/// A growing graph that is asked whether one node leads to another.
///
/// The search goes forward from the start and backward from the goal, always on the side that has cost less, so that it
/// is cheap whenever either side has little to look at, as in a hub with many spokes.
struct Reach {
    sides: [Side; 2],
    round: usize,
}

struct Side {
    neighbours: Vec<Vec<usize>>,
    // The round in which a node was met, and from where.
    met: Vec<(usize, usize)>,
    queue: Vec<usize>,
    next: usize,
    cost: usize,
}

impl Side {
    fn begin(&mut self, node: usize, round: usize) {
        self.queue.clear();
        self.queue.push(node);
        self.met[node] = (round, node);
        self.next = 0;
        self.cost = 0;
    }

    /// What going on would bring the cost to, or `None` if everything was seen.
    fn price(&self) -> Option<usize> {
        self.queue.get(self.next).map(|node| self.cost + self.neighbours[*node].len() + 1)
    }

    /// From `node` back to where the side began.
    fn trail(&self, mut node: usize) -> Vec<usize> {
        let mut trail = vec![node];
        while self.met[node].1 != node {
            node = self.met[node].1;
            trail.push(node);
        }
        trail
    }
}

impl Reach {
    fn new(nodes: usize) -> Self {
        let side = || Side {
            neighbours: vec![Vec::new(); nodes],
            met: vec![(0, 0); nodes],
            queue: Vec::new(),
            next: 0,
            cost: 0,
        };
        Self { sides: [side(), side()], round: 0 }
    }

    fn connect(&mut self, from: usize, to: usize) {
        self.sides[0].neighbours[from].push(to);
        self.sides[1].neighbours[to].push(from);
    }

    /// A way from `start` to `goal`, both included.
    fn path(&mut self, start: usize, goal: usize) -> Option<Vec<usize>> {
        self.round += 1;
        let round = self.round;
        let [forward, backward] = &mut self.sides;
        forward.begin(start, round);
        backward.begin(goal, round);
        loop {
            let is_forward = forward.price()? <= backward.price()?;
            let (side, other) = if is_forward { (&mut *forward, &*backward) } else { (&mut *backward, &*forward) };
            let node = side.queue[side.next];
            side.cost += side.neighbours[node].len() + 1;
            side.next += 1;
            for i in 0..side.neighbours[node].len() {
                let neighbour = side.neighbours[node][i];
                if side.met[neighbour].0 == round {
                    continue;
                }
                side.met[neighbour] = (round, node);
                side.queue.push(neighbour);
                if other.met[neighbour].0 == round {
                    let mut path = forward.trail(neighbour);
                    path.reverse();
                    path.extend_from_slice(&backward.trail(neighbour)[1..]);
                    return Some(path);
                }
            }
        }
    }
}
