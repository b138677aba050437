//! Where a rule puts the edges that it finds.

use super::Rule;
use crate::{
    graph::{GraphBuilder, Reason},
    inventory::Requirement,
    object::ObjectId,
};

/// Takes the edges that one rule finds.
#[derive(Debug)]
pub struct Edges<'b> {
    builder: &'b mut GraphBuilder,
    rule: &'b dyn Rule,
}

impl<'b> Edges<'b> {
    pub(in crate::graph) fn new(builder: &'b mut GraphBuilder, rule: &'b dyn Rule) -> Self {
        Self { builder, rule }
    }

    /// `from` depends on `to`; `evidence` says what shows it, in words for a person, without content of a Secret. `to`
    /// may be outside of the set, and then an apply waits until it exists. A `from` that is not in the set has no
    /// place in an order and is passed over; nothing depends on itself.
    pub fn prefer(&mut self, from: &ObjectId, to: &ObjectId, evidence: impl Into<String>) {
        self.prefer_all([from], to, evidence);
    }

    /// [`prefer`](Self::prefer) if both are in the set. For everything that may be somebody else's to bring, or be made by
    /// what is applied: nothing waits for it.
    pub fn prefer_within(&mut self, from: &ObjectId, to: &ObjectId, evidence: impl Into<String>) {
        if self.builder.slot(to).is_some() {
            self.prefer(from, to, evidence);
        }
    }

    /// [`prefer`](Self::prefer) for many objects that depend on one for the same reason.
    pub fn prefer_all<'i>(
        &mut self,
        from: impl IntoIterator<Item = &'i ObjectId>,
        to: &ObjectId,
        evidence: impl Into<String>,
    ) {
        let mut from = from.into_iter().filter(|from| *from != to).peekable();
        if from.peek().is_none() {
            return;
        }
        let reason = self.reason(evidence.into());
        let to_slot = self.builder.slot(to);
        for from in from {
            let Some(from) = self.builder.slot(from) else { continue };
            match to_slot {
                Some(to) => self.builder.depend_because(from, to, reason),
                None => self.builder.depend_on_id_because(from, to, reason),
            }
        }
    }

    fn reason(&mut self, evidence: String) -> Reason {
        let rule = self.rule.name().to_owned();
        self.builder.reason(Requirement::Preferred { rule, rank: self.rule.rank(), evidence })
    }
}
