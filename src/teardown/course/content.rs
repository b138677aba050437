//! Which objects of a course are in which of its containers, and what follows from what is read in a container.

use std::collections::{BTreeMap, BTreeSet};

use super::{Course, Progress, Slot};
use crate::{
    graph::Node,
    object::{ObjectId, ResourceKind, Uid},
    teardown::{
        in_use::{self, Container, Inside, Stance, Verdict},
        live::{Authority, Live},
        policy,
        proof::{Settled, Step},
    },
};

impl Course {
    /// Which containers the objects are in.
    pub(super) fn sort_into_containers(&self) -> BTreeMap<Node, Vec<Node>> {
        let graph = self.sequencer.graph();
        let is_container = |node: &Node| Container::of(graph.id(*node)).is_some();
        let mut content: BTreeMap<_, _> =
            self.slots.keys().filter(|node| is_container(node)).map(|node| (*node, Vec::new())).collect();
        if content.is_empty() {
            return content;
        }
        for (node, slot) in &self.slots {
            for container in policy::containers(graph, *node, Some(slot.case.subject())) {
                content.entry(container).or_default().push(*node);
            }
        }
        content
    }

    /// Objects of the set that are expected in the container of `node`, and of which nothing is known yet: those that no
    /// edge made it wait for.
    pub(in crate::teardown) fn unseen_in(&self, node: Node) -> Vec<(ObjectId, ResourceKind)> {
        let content = self.content.get(&node).into_iter().flatten().filter_map(|n| self.slots.get(n));
        let unseen = content.filter(|slot| !matches!(slot.progress, Progress::Settled(_)));
        unseen.map(|slot| (slot.case.subject().id.clone(), slot.case.subject().resource.clone())).collect()
    }

    /// Incarnations that were seen with the marks of the set, gone or not. What is only on record is not among them:
    /// whoever may write the record could pass anything off as the set's own by its UID.
    pub(in crate::teardown) fn seen_members(&self) -> BTreeSet<Uid> {
        let seen = self.slots.values().filter_map(|slot| slot.case.live().filter(|live| slot.case.may_delete(live)));
        seen.map(|live| live.uid.clone()).collect()
    }

    /// What follows from what is in the container of `node`.
    pub(super) fn inspected(&mut self, node: Node, inside: &Inside) -> Step {
        let Some(slot) = self.slots.get(&node) else { return Step::Get };
        let verdict = in_use::judge(slot.case.subject().in_use, inside, |id, live| self.stance(node, id, live));
        let Some(slot) = self.slots.get_mut(&node) else { return Step::Get };
        let newly_kept = match &verdict {
            Verdict::Keep(by) if !slot.case.is_kept() => {
                slot.kept_for = Some(by.clone());
                true
            }
            _ => false,
        };
        let step = slot.case.inspected(verdict);
        if newly_kept {
            self.spread(vec![node]);
        }
        step
    }

    /// How an object in the container of `node` stands to this course.
    fn stance(&self, node: Node, id: &ObjectId, live: &Live) -> Stance {
        let lives_in_it = |slot: &Slot| match slot.case.authority() {
            Authority::Marks { parent, .. } => parent.id == *id && parent.uid == live.uid,
            Authority::Caller => false,
        };
        // The parent outlives everything of its own, so it must not be in anything that goes.
        if self.slots.get(&node).is_some_and(lives_in_it) {
            return Stance::Kept;
        }
        let Some(found) = self.graph().node(id) else { return Stance::Foreign };
        match self.slots.get(&found) {
            None => Stance::Wanted,
            Some(Slot { progress: Progress::Settled(Settled::Gone(_)), .. }) => Stance::Foreign,
            Some(Slot { progress: Progress::Settled(_), .. }) => Stance::Kept,
            Some(slot) if slot.case.is_kept() || slot.case.is_given_up() => Stance::Kept,
            Some(slot) if slot.case.may_delete(live) => Stance::Goes,
            Some(_) => Stance::Foreign,
        }
    }
}
