//! Collecting objects and edges.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap, hash_map},
    sync::{Arc, OnceLock},
};

use super::{
    Declared, DependencyGraph, Error, External, GiveUpReason, GivenUp, ManifestSet, Node, Rules, Waiver,
    cycles::Draft,
    rows::{self, Rows},
    rules::Edges,
};
use crate::{
    inventory::{Inventory, Requirement},
    object::{ObjectId, StableId},
};

/// An object of a graph under construction, to be used with the [`GraphBuilder`] that gave it out.
///
/// The finished graph numbers its nodes anew: ask [`DependencyGraph::node`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slot(u32);

/// A requirement that a [`GraphBuilder`] keeps once for many edges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reason(u32);

/// `from` depends on `to`, for a reason.
#[derive(Clone, Copy)]
struct Raw<T> {
    from: u32,
    to: T,
    reason: u32,
}

/// Collects objects and the edges between them, in any order.
///
/// A [`Slot`] or [`Reason`] of another builder that is out of range here panics, as an index into a slice does.
#[derive(Clone, Default)]
pub struct GraphBuilder {
    ids: Vec<ObjectId>,
    unordered: bool,
    // Made when it is first needed: objects that arrive in the order of their identities, as those of an
    // inventory do, can be told apart without it.
    index: OnceLock<HashMap<ObjectId, u32>>,
    reasons: Vec<Arc<Requirement>>,
    reason_of: HashMap<Arc<Requirement>, u32>,
    edges: Vec<Raw<u32>>,
    by_id: Vec<Raw<ObjectId>>,
    by_stable: Vec<Raw<StableId>>,
    // By the object they are bound to; `None` is all objects.
    waivers: BTreeMap<Option<u32>, Vec<(Waiver, String)>>,
}

impl GraphBuilder {
    /// Nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Nothing yet, with room for so many objects and edges between them.
    #[must_use]
    pub fn with_capacity(objects: usize, edges: usize) -> Self {
        Self { ids: Vec::with_capacity(objects), edges: Vec::with_capacity(edges), ..Self::default() }
    }

    /// Adds an object.
    ///
    /// # Errors
    /// [`Error::Duplicate`] if the identity was added before, [`Error::TooLarge`] after 2³²−1 objects.
    pub fn add(&mut self, id: ObjectId) -> Result<Slot, Error> {
        let slot = u32::try_from(self.ids.len()).ok().filter(|n| *n < u32::MAX).ok_or(Error::TooLarge)?;
        if self.ids.last().is_some_and(|last| *last >= id) {
            self.index();
            self.unordered = true;
        }
        if let Some(index) = self.index.get_mut() {
            match index.entry(id.clone()) {
                hash_map::Entry::Occupied(_) => return Err(Error::Duplicate { id }),
                hash_map::Entry::Vacant(free) => free.insert(slot),
            };
        }
        self.ids.push(id);
        Ok(Slot(slot))
    }

    fn index(&self) -> &HashMap<ObjectId, u32> {
        self.index.get_or_init(|| {
            let mut index = HashMap::with_capacity(self.ids.capacity());
            index.extend(self.ids.iter().cloned().zip(0..));
            index
        })
    }

    /// The slot of an identity that was added.
    #[must_use]
    pub fn slot(&self, id: &ObjectId) -> Option<Slot> {
        self.index().get(id).map(|slot| Slot(*slot))
    }

    /// Keeps a requirement for use by many edges; equal ones are kept once.
    #[must_use]
    pub fn reason(&mut self, requirement: Requirement) -> Reason {
        self.intern(Cow::Owned(requirement))
    }

    fn intern(&mut self, requirement: Cow<'_, Requirement>) -> Reason {
        if let Some(reason) = self.reason_of.get(requirement.as_ref()) {
            return Reason(*reason);
        }
        let reason = Node::at(self.reasons.len()).0;
        let requirement = Arc::new(requirement.into_owned());
        self.reasons.push(Arc::clone(&requirement));
        self.reason_of.insert(requirement, reason);
        Reason(reason)
    }

    /// Adds "`from` depends on `to`". Adding an edge twice is the same as once.
    pub fn depend(&mut self, from: Slot, to: Slot, requirement: Requirement) {
        let reason = self.reason(requirement);
        self.depend_because(from, to, reason);
    }

    /// [`depend`](Self::depend) for many edges with one requirement.
    pub fn depend_because(&mut self, from: Slot, to: Slot, reason: Reason) {
        self.check(from, reason);
        self.check(to, reason);
        self.edges.push(Raw { from: from.0, to: to.0, reason: reason.0 });
    }

    /// Adds "`from` depends on the object `to`", which is external if it is not in the set when the graph is built.
    pub fn depend_on_id(&mut self, from: Slot, to: &ObjectId, requirement: Requirement) {
        let reason = self.reason(requirement);
        self.depend_on_id_because(from, to, reason);
    }

    /// [`depend_on_id`](Self::depend_on_id) for many edges with one requirement.
    pub fn depend_on_id_because(&mut self, from: Slot, to: &ObjectId, reason: Reason) {
        self.check(from, reason);
        self.by_id.push(Raw { from: from.0, to: to.clone(), reason: reason.0 });
    }

    /// Adds "`from` depends on the object with the hash `to`", as stored edges name it; external if it is not in the
    /// set when the graph is built.
    pub fn depend_on_stable(&mut self, from: Slot, to: StableId, requirement: Requirement) {
        let reason = self.reason(requirement);
        self.depend_on_stable_because(from, to, reason);
    }

    fn depend_on_stable_because(&mut self, from: Slot, to: StableId, reason: Reason) {
        self.check(from, reason);
        self.by_stable.push(Raw { from: from.0, to, reason: reason.0 });
    }

    // A dropped edge would be a wrong order, so a foreign slot must not pass.
    fn check(&self, slot: Slot, reason: Reason) {
        assert!(
            (slot.0 as usize) < self.ids.len() && (reason.0 as usize) < self.reasons.len(),
            "a slot or reason of another graph builder"
        );
    }

    /// Adds a declared edge.
    ///
    /// # Errors
    /// [`Error::UnknownObject`] if its `from` was not added; its `to` may be external.
    pub fn declare(&mut self, edge: &Declared) -> Result<(), Error> {
        let from = self
            .slot(&edge.from)
            .ok_or_else(|| Error::UnknownObject { from: edge.from.clone(), to: edge.to.clone() })?;
        self.depend_on_id(from, &edge.to, Requirement::Required { declared_by: edge.declared_by.clone() });
        Ok(())
    }

    /// Adds the preferred edges that `rules` find between the objects of `set`, and what they waive.
    pub fn infer(&mut self, rules: &Rules, set: &ManifestSet<'_>) {
        for rule in rules.iter() {
            rule.infer(set, &mut Edges::new(self, rule));
        }
        for (rule, by) in rules.waived() {
            self.waive_rule(rule, by);
        }
    }

    /// No preferred edge of the rule named `rule` holds. `by` says who decided so, in words for a person.
    pub fn waive_rule(&mut self, rule: impl Into<String>, by: impl Into<String>) {
        self.waivers.entry(None).or_default().push((Waiver::Rule(rule.into()), by.into()));
    }

    /// Preferred edges from `from` do not hold. `by` says who decided so, such as an annotation key.
    pub fn waive_from(&mut self, from: Slot, waiver: Waiver, by: impl Into<String>) {
        self.waivers.entry(Some(from.0)).or_default().push((waiver, by.into()));
    }

    /// The entries of a stored record with their edges.
    pub(crate) fn of_inventory(inventory: &Inventory) -> Self {
        let mut this = Self::with_capacity(inventory.len(), 0);
        for entry in inventory.entries() {
            // An identity met twice (a caller of `get_mut` may have changed one) gets the edges of both entries.
            let Ok(slot) = this.add(entry.id.clone()).or_else(|e| this.slot(&entry.id).ok_or(e)) else { continue };
            for edge in &entry.edges {
                let reason = this.intern(Cow::Borrowed(&edge.requirement));
                this.depend_on_stable_because(slot, edge.to, reason);
            }
        }
        this
    }

    /// The graph of a set that is about to be applied.
    ///
    /// # Errors
    /// [`Error::Cycles`] if required edges form cycles, an object that depends on itself included.
    pub fn build(self) -> Result<DependencyGraph, Error> {
        let draft = self.draft();
        let core = draft.cyclic_core();
        let knots = draft.knots(&core);
        match draft.cycles(&knots) {
            cycles if cycles.is_empty() => Ok(draft.finish(core, &knots)),
            cycles => Err(Error::Cycles(cycles)),
        }
    }

    /// The graph of a record that is stored already, for teardown: like [`build`](Self::build), but the members of each
    /// cycle of required edges form one [`Group`](super::Group), and an object's dependency on itself means nothing.
    #[must_use]
    pub fn build_stored(self) -> DependencyGraph {
        let draft = self.draft();
        let core = draft.cyclic_core();
        let knots = draft.knots(&core);
        draft.finish(core, &knots)
    }

    /// Numbers the objects in the order of their identities and sorts the edges into rows.
    fn draft(mut self) -> Draft {
        if !self.by_id.is_empty() {
            self.index();
        }
        // Where each slot ends up; `None` if it keeps its number.
        let node_of = self.sort();
        let node = |slot: u32| node_of.as_ref().map_or(Node(slot), |n| n[slot as usize]);
        let waivers: BTreeMap<Option<Node>, Vec<(Waiver, String)>> =
            std::mem::take(&mut self.waivers).into_iter().map(|(from, w)| (from.map(node), w)).collect();
        let waived = |from: Node, to: Option<&ObjectId>, requirement: &Requirement| {
            let Requirement::Preferred { rule, .. } = requirement else { return None };
            let mut candidates = [Some(from), None].into_iter().filter_map(|key| waivers.get(&key)).flatten();
            let applies = |waiver: &Waiver| match waiver {
                Waiver::All => true,
                Waiver::Rule(name) => name == rule,
                Waiver::To(id) => to == Some(id),
            };
            candidates.find(|(waiver, _)| applies(waiver)).map(|(_, by)| by.clone())
        };

        let mut outside = Vec::new();
        for edge in std::mem::take(&mut self.by_id) {
            match self.index().get(&edge.to) {
                Some(to) => self.edges.push(Raw { from: edge.from, to: *to, reason: edge.reason }),
                None => {
                    outside.push(Raw { from: edge.from, to: (edge.to.stable_id(), Some(edge.to)), reason: edge.reason })
                }
            }
        }
        let mut inside: Vec<(Node, Node, u32)> =
            std::mem::take(&mut self.edges).into_iter().map(|e| (node(e.from), node(e.to), e.reason)).collect();

        let stable = OnceLock::new();
        if !self.by_stable.is_empty() {
            let hashes: &Vec<_> = stable.get_or_init(|| self.ids.iter().map(ObjectId::stable_id).collect());
            let nodes: HashMap<_, _> = hashes.iter().copied().zip((0..).map(Node)).collect();
            for edge in &self.by_stable {
                match nodes.get(&edge.to) {
                    Some(to) => inside.push((node(edge.from), *to, edge.reason)),
                    None => outside.push(Raw { from: edge.from, to: (edge.to, None), reason: edge.reason }),
                }
            }
        }

        let mut externals: Vec<_> = outside
            .into_iter()
            .map(|e| External {
                waived_by: waived(node(e.from), e.to.1.as_ref(), &self.reasons[e.reason as usize]),
                stable: e.to.0,
                id: e.to.1,
                needed_by: node(e.from),
                requirement: Requirement::clone(&self.reasons[e.reason as usize]),
            })
            .collect();
        // The same edge by hash and by identity is one; the identity says more.
        externals.sort_by(|a, b| {
            let key = |e: &External| (e.needed_by, e.stable, e.id.is_none());
            key(a).cmp(&key(b)).then_with(|| a.requirement.cmp(&b.requirement))
        });
        let mut known: Option<(Node, StableId, Option<ObjectId>)> = None;
        for external in &mut externals {
            match &known {
                Some((node, stable, id)) if (*node, *stable) == (external.needed_by, external.stable) => {
                    external.id.clone_from(id);
                }
                _ => known = Some((external.needed_by, external.stable, external.id.clone())),
            }
        }
        externals.sort_by(|a, b| {
            let key = |e: &'_ External| (e.needed_by, e.id.clone(), e.stable);
            key(a).cmp(&key(b)).then_with(|| a.requirement.cmp(&b.requirement))
        });
        externals.dedup();

        let mut given_up = Vec::new();
        if !waivers.is_empty() {
            inside.retain(|&(from, to, reason)| {
                let requirement = self.reasons[reason as usize].as_ref();
                let Some(by) = waived(from, Some(&self.ids[to.index()]), requirement) else { return true };
                let reason = GiveUpReason::Waived { by };
                given_up.push(GivenUp { from, to, requirement: requirement.clone(), reason });
                false
            });
        }

        // An object's dependency on itself is no edge: an error if declared, given up if preferred.
        let mut declared_selves = Vec::new();
        inside.retain(|&(from, to, reason)| {
            if from != to {
                return true;
            }
            match self.reasons[reason as usize].as_ref() {
                Requirement::Required { declared_by } => declared_selves.push((from, declared_by.clone())),
                preferred @ Requirement::Preferred { .. } => given_up.push(GivenUp {
                    from,
                    to,
                    requirement: preferred.clone(),
                    reason: GiveUpReason::ClosesCycle { back: vec![from] },
                }),
            }
            false
        });
        declared_selves.sort();
        declared_selves.dedup_by_key(|(node, _)| *node);

        let mut edges = Rows::scatter(self.ids.len(), inside.iter().copied(), |(from, ..)| from.index())
            .map(|&(_, to, reason)| (to, reason));
        drop(inside);
        let reasons = self.reasons;
        edges.shrink(|_, row| {
            row.sort_unstable_by(|a, b| a.0.cmp(&b.0).then_with(|| reasons[a.1 as usize].cmp(&reasons[b.1 as usize])));
            rows::dedup(row)
        });
        Draft { ids: self.ids, stable, reasons, edges, declared_selves, externals, given_up }
    }

    /// Sorts the identities; says where each slot went, or `None` if they were in order already.
    fn sort(&mut self) -> Option<Vec<Node>> {
        if !self.unordered {
            return None;
        }
        let mut order: Vec<(ObjectId, u32)> = std::mem::take(&mut self.ids).into_iter().zip(0..).collect();
        order.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        let mut node_of = vec![Node(0); order.len()];
        for (node, (_, slot)) in order.iter().enumerate() {
            node_of[*slot as usize] = Node::at(node);
        }
        self.ids = order.into_iter().map(|(id, _)| id).collect();
        Some(node_of)
    }
}

impl std::fmt::Debug for GraphBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GraphBuilder")
            .field("objects", &self.ids.len())
            .field("edges", &(self.edges.len() + self.by_id.len() + self.by_stable.len()))
            .finish_non_exhaustive()
    }
}
