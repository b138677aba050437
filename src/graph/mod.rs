//! What depends on what, and the orders that follow.
//!
//! An edge *A → B* reads "A depends on B": B is applied before A and deleted after A. [`GraphBuilder`] collects objects
//! and edges; [`DependencyGraph`] is the finished, immutable result. The module decides which edges hold and in which
//! orders objects may be applied and deleted. It knows nothing of a cluster, of what exists, or of time.
//!
//! ```
//! use kube_custody::graph::{Declared, GraphBuilder};
//!
//! let mut builder = GraphBuilder::new();
//! for object in ["ConfigMap shop/settings", "Deployment.apps shop/web", "Namespace shop"] {
//!     builder.add(object.parse()?)?;
//! }
//! for (from, to) in [
//!     ("Deployment.apps shop/web", "ConfigMap shop/settings"),
//!     ("ConfigMap shop/settings", "Namespace shop"),
//! ] {
//!     builder.declare(&Declared::by_api(from.parse()?, to.parse()?))?;
//! }
//! let graph = builder.build()?;
//! assert_eq!(
//!     graph.tree().to_string(),
//!     "Namespace shop\n\
//!      └── ConfigMap shop/settings  (api)\n    \
//!          └── Deployment.apps shop/web  (api)\n"
//! );
//! assert_eq!(graph.id(graph.deletion_order()[0]).kind(), "Deployment");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Guarantees
//! - **Required** edges (declared by the author, in code or by annotation) always hold. Where they form a cycle,
//!   [`GraphBuilder::build`] is an error that shows the whole cycle. A record that is already stored must still be torn
//!   down: [`GraphBuilder::build_stored`] makes each such cycle one [`Group`].
//! - **Preferred** edges (inferred by [rules](Rule)) hold unless they would close a cycle or were waived. What was given up
//!   is listed with the reason in [`DependencyGraph::given_up`].
//! - An object outside of the set is [external](External): apply waits for it, deletion does not.
//! - The result depends on the set of objects and edges only, not on the order in which they were added. Nodes are
//!   numbered in the order of their identities, and all ties are settled by it.
//! - Building is linear in nodes and edges, apart from sorting the identities. Preferred edges on cycles are the
//!   exception: each costs a search among the objects on its cycles. Nothing recurses, so a chain of a million objects
//!   needs no more stack than a short one.

pub mod annotations;
mod builder;
mod cycles;
mod error;
mod render;
mod rows;
pub mod rules;
#[cfg(test)]
mod tests;
pub mod waivers;

use std::{
    collections::BTreeSet,
    sync::{Arc, OnceLock},
};

use self::rows::Rows;
pub use self::{
    annotations::Declared,
    builder::{GraphBuilder, Reason, Slot},
    error::{Cycle, Error, Hop},
    render::{Dot, Mermaid, Tree},
    rules::{Edges, Manifest, ManifestSet, Rule, Rules},
    waivers::Waiver,
};
use crate::{
    inventory::{Edge, Requirement},
    object::{ObjectId, StableId},
};

/// An object of one graph.
///
/// Nodes are numbered in the order of [`ObjectId`], so comparing nodes compares identities. A node is an index: it
/// means something to the graph it came from only, and another, smaller graph panics on it as a slice does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node(u32);

impl Node {
    fn at(index: usize) -> Self {
        // The builder refuses more nodes than fit.
        Self(u32::try_from(index).unwrap_or(u32::MAX))
    }

    /// The position in the order of identities, below [`DependencyGraph::len`].
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Objects that go together: one node, or all nodes of a stored cycle of required edges.
///
/// Groups are numbered in the order of their least members. Like a [`Node`], a group belongs to one graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Group(u32);

impl Group {
    fn at(index: usize) -> Self {
        Self(Node::at(index).0)
    }

    /// The position among the groups, below [`DependencyGraph::groups`].
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// One reason why a node depends on another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EdgeRef<'a> {
    /// What is depended on.
    pub to: Node,
    /// How strong, and why.
    pub requirement: &'a Requirement,
}

/// A dependency on an object outside of the set: apply waits for the object, deletion does not.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct External {
    /// The object's identity, where the edge named it; an edge from a stored record knows the hash only.
    pub id: Option<ObjectId>,
    /// The hash of its identity.
    pub stable: StableId,
    /// What depends on it.
    pub needed_by: Node,
    /// How strong, and why.
    pub requirement: Requirement,
    /// Who waived it, where somebody did: nothing waits for it then.
    pub waived_by: Option<String>,
}

/// A preferred edge that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GivenUp {
    /// What would have depended.
    pub from: Node,
    /// What it would have depended on.
    pub to: Node,
    /// The rule and what it saw.
    pub requirement: Requirement,
    /// Why the edge does not hold.
    pub reason: GiveUpReason,
}

/// Why a preferred edge does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GiveUpReason {
    /// It would have closed a cycle with edges that are required or were preferred more.
    ClosesCycle {
        /// The way back: from the edge's `to`, dependency by dependency, to its `from`.
        back: Vec<Node>,
    },
    /// The author or an annotation said so.
    Waived {
        /// Who.
        by: String,
    },
}

/// Which nodes form groups.
#[derive(Clone, Debug)]
enum Groups {
    /// Every node is its own.
    Single(Vec<Node>),
    /// Some nodes depend on each other.
    Knotted { of: Vec<Group>, members: Rows<Node> },
}

/// Objects and the edges that hold between them, with the orders that follow.
///
/// Methods that take a [`Node`] or [`Group`] panic on one that another graph gave out and that is out of range here.
#[derive(Clone, Debug)]
pub struct DependencyGraph {
    ids: Vec<ObjectId>,
    stable: OnceLock<Vec<StableId>>,
    reasons: Vec<Arc<Requirement>>,
    // Every edge that holds, parallel ones included, as (to, index in `reasons`).
    edges: Rows<(Node, u32)>,
    dependencies: Rows<Node>,
    dependents: Rows<Node>,
    externals: Vec<External>,
    given_up: Vec<GivenUp>,
    groups: Groups,
    // Per group.
    heights: Vec<u32>,
}

impl DependencyGraph {
    /// The graph of a stored record, for teardown: [`GraphBuilder::build_stored`] over the entries' edges.
    #[must_use]
    pub fn of_inventory(inventory: &crate::inventory::Inventory) -> Self {
        GraphBuilder::of_inventory(inventory).build_stored()
    }

    /// Number of nodes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether there is no node.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// The identity of a node.
    #[must_use]
    pub fn id(&self, node: Node) -> &ObjectId {
        &self.ids[node.index()]
    }

    /// The node of an identity, by binary search.
    #[must_use]
    pub fn node(&self, id: &ObjectId) -> Option<Node> {
        self.ids.binary_search(id).ok().map(Node::at)
    }

    /// The hash of a node's identity, as edges are stored. Computed for all nodes on first use, once.
    #[must_use]
    pub fn stable_id(&self, node: Node) -> StableId {
        self.stable.get_or_init(|| self.ids.iter().map(ObjectId::stable_id).collect())[node.index()]
    }

    /// All nodes, in order of identity.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = Node> + DoubleEndedIterator + Clone + use<> {
        (0..Node::at(self.len()).0).map(Node)
    }

    /// What `node` depends on within the set: each node once, in order of identity, never `node` itself. Members of
    /// its own group may be among them.
    #[must_use]
    pub fn dependencies(&self, node: Node) -> &[Node] {
        self.dependencies.row(node.index())
    }

    /// What depends on `node` within the set: each node once, in order of identity, never `node` itself. Members of
    /// its own group may be among them.
    #[must_use]
    pub fn dependents(&self, node: Node) -> &[Node] {
        self.dependents.row(node.index())
    }

    /// Why `node` depends on what it depends on within the set: every requirement that holds, in order of `to`.
    pub fn edges(&self, node: Node) -> impl ExactSizeIterator<Item = EdgeRef<'_>> + Clone + '_ {
        let row = self.edges.row(node.index()).iter();
        row.map(|&(to, reason)| EdgeRef { to, requirement: &self.reasons[reason as usize] })
    }

    /// Why `from` depends on `to`; empty if it does not, or not directly.
    pub fn requirements(&self, from: Node, to: Node) -> impl Iterator<Item = &Requirement> + '_ {
        let row = self.edges.row(from.index());
        let first = row.partition_point(|(node, _)| *node < to);
        let edges = row[first..].iter().take_while(move |(node, _)| *node == to);
        edges.map(|(_, reason)| self.reasons[*reason as usize].as_ref())
    }

    /// Whether `from` depends on `to` by a required edge.
    #[must_use]
    pub fn requires(&self, from: Node, to: Node) -> bool {
        self.requirements(from, to).any(|r| matches!(r, Requirement::Required { .. }))
    }

    /// What is stored in the entry of `node`: all edges that hold, those to external objects included.
    #[must_use]
    pub fn inventory_edges(&self, node: Node) -> BTreeSet<Edge> {
        let inside = self.edges(node).map(|edge| Edge::new(self.stable_id(edge.to), edge.requirement.clone()));
        let outside = self.external(node).iter().filter(|e| e.waived_by.is_none());
        inside.chain(outside.map(|e| Edge::new(e.stable, e.requirement.clone()))).collect()
    }

    /// What `node` depends on outside of the set.
    #[must_use]
    pub fn external(&self, node: Node) -> &[External] {
        let first = self.externals.partition_point(|e| e.needed_by < node);
        let count = self.externals[first..].partition_point(|e| e.needed_by == node);
        &self.externals[first..first + count]
    }

    /// All dependencies on objects outside of the set, in order of `needed_by`.
    #[must_use]
    pub fn externals(&self) -> &[External] {
        &self.externals
    }

    /// The preferred edges that do not hold, in order of `from` and `to`.
    #[must_use]
    pub fn given_up(&self) -> &[GivenUp] {
        &self.given_up
    }

    /// What a preferred edge said and why it does not hold, in words for a person.
    #[must_use]
    pub fn words_for(&self, given_up: &GivenUp) -> String {
        let (from, to) = (self.id(given_up.from), self.id(given_up.to));
        let rule = match &given_up.requirement {
            Requirement::Preferred { rule, evidence, .. } => format!("rule {rule}: {evidence}"),
            Requirement::Required { declared_by } => format!("declared by {declared_by}"),
        };
        match &given_up.reason {
            GiveUpReason::ClosesCycle { back } => {
                let way: Vec<_> = back.iter().skip(1).map(|node| self.id(*node).to_string()).collect();
                format!("{from} does not wait for {to} ({rule}), which depends on it by way of {}", way.join(", "))
            }
            GiveUpReason::Waived { by } => format!("{from} does not wait for {to} ({rule}), as {by} says"),
        }
    }

    /// The group of a node.
    #[must_use]
    pub fn group(&self, node: Node) -> Group {
        match &self.groups {
            Groups::Single(nodes) => Group(nodes[node.index()].0),
            Groups::Knotted { of, .. } => of[node.index()],
        }
    }

    /// The nodes of a group, in order of identity; never empty.
    #[must_use]
    pub fn members(&self, group: Group) -> &[Node] {
        match &self.groups {
            Groups::Single(nodes) => std::slice::from_ref(&nodes[group.index()]),
            Groups::Knotted { members, .. } => members.row(group.index()),
        }
    }

    /// Number of groups.
    #[must_use]
    pub fn groups(&self) -> usize {
        self.heights.len()
    }

    /// The number of edges on the longest chain of dependencies below `node`; a group counts as one object.
    #[must_use]
    pub fn height(&self, node: Node) -> u32 {
        self.heights[self.group(node).index()]
    }

    /// All nodes, dependencies first; of nodes that could go at once, those with the shorter chains below them come
    /// first, then the lesser identity.
    #[must_use]
    pub fn apply_order(&self) -> Vec<Node> {
        self.by_height(|height, _| height)
    }

    /// All nodes, dependents first; of nodes that could go at once, those with the longer chains below them come
    /// first, then the lesser identity.
    #[must_use]
    pub fn deletion_order(&self) -> Vec<Node> {
        self.by_height(|height, highest| highest - height)
    }

    // An edge between groups always leads to a lesser height, so sorting by height is a topological order.
    fn by_height(&self, row_of: impl Fn(u32, u32) -> u32) -> Vec<Node> {
        let highest = self.heights.iter().copied().max().unwrap_or(0);
        let rows = if self.is_empty() { 0 } else { highest as usize + 1 };
        Rows::scatter(rows, self.nodes(), |n| row_of(self.height(*n), highest) as usize).into_items()
    }
}
