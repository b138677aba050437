//! Webhooks that cannot be called, and the configurations of the plan that name them.
//!
//! Decides when a webhook counts as dead and which configuration then goes first. A dead webhook refuses every DELETE
//! that it covers, so whoever waits for what it covers would wait for ever. Its configuration can always be deleted:
//! admission does not ask webhooks about webhooks.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use crate::{
    graph::{DependencyGraph, Node},
    inventory::Requirement,
    object::ObjectId,
};

/// After this many refusals of requests about one object a webhook counts as dead. One may be a blip, such as a restart of
/// its pod; and what the webhook guards is guarded no more once its configuration is gone.
const REFUSALS: u32 = 3;

/// A preferred edge that ended during a teardown, because what is depended on has to go first.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ended {
    /// What depended.
    pub from: ObjectId,
    /// The webhook configuration that it depended on.
    pub to: ObjectId,
    /// The rule and what it saw.
    pub requirement: Requirement,
    /// The webhook that could not be called.
    pub webhook: String,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} goes before {}, because webhook {:?} cannot be called", self.to, self.from, self.webhook)?;
        match &self.requirement {
            Requirement::Preferred { rule, evidence, .. } => write!(f, " (against rule {rule}: {evidence})"),
            Requirement::Required { .. } => Ok(()),
        }
    }
}

/// Whether an object is a configuration of admission webhooks.
pub(super) fn is_configuration(id: &ObjectId) -> bool {
    let kinds = ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"];
    kinds.into_iter().any(|kind| id.is("admissionregistration.k8s.io", kind))
}

/// What is known of the webhooks that refuse.
#[derive(Debug, Default)]
pub(super) struct Webhooks {
    /// By which webhook each object was refused last, and how often.
    refusals: BTreeMap<Node, (String, u32)>,
    dead: BTreeSet<String>,
    /// The webhooks of each configuration, as it was read.
    names: BTreeMap<Node, BTreeSet<String>>,
    /// Configurations that are being read.
    asked: BTreeSet<Node>,
    ended: Vec<Ended>,
}

impl Webhooks {
    /// A request about `node` was refused because `webhook` cannot be called. Returns whether it counts as dead.
    pub(super) fn refused(&mut self, node: Node, webhook: &str) -> bool {
        let (last, times) = self.refusals.entry(node).or_insert_with(|| (webhook.to_owned(), 0));
        if last != webhook {
            (*last, *times) = (webhook.to_owned(), 0);
        }
        *times += 1;
        if *times >= REFUSALS {
            self.dead.insert(webhook.to_owned());
        }
        self.dead.contains(webhook)
    }

    /// Whether the configuration has to be read, to learn which webhooks it names. It is then taken to be asked for.
    pub(super) fn ask(&mut self, configuration: Node) -> bool {
        !self.names.contains_key(&configuration) && self.asked.insert(configuration)
    }

    /// The configuration names these webhooks; `None` if it could not be read.
    pub(super) fn read(&mut self, configuration: Node, names: Option<BTreeSet<String>>) {
        self.asked.remove(&configuration);
        self.names.extend(names.map(|names| (configuration, names)));
    }

    /// Every question that was not answered is lost.
    pub(super) fn forget_questions(&mut self) {
        self.asked.clear();
    }

    /// Configurations that name a dead webhook, each with it.
    pub(super) fn dead(&self) -> Vec<(Node, String)> {
        let dead = |names: &BTreeSet<String>| names.intersection(&self.dead).next().cloned();
        self.names.iter().filter_map(|(node, names)| Some((*node, dead(names)?))).collect()
    }

    /// Notes that `from` does not wait any more to be gone before `to` goes.
    pub(super) fn end(&mut self, graph: &DependencyGraph, from: Node, to: Node, webhook: &str) {
        let requirements = graph.requirements(from, to).map(|requirement| Ended {
            from: graph.id(from).clone(),
            to: graph.id(to).clone(),
            requirement: requirement.clone(),
            webhook: webhook.to_owned(),
        });
        self.ended.extend(requirements);
    }

    /// Edges that ended, in the order in which they did.
    pub(super) fn ended(&self) -> &[Ended] {
        &self.ended
    }

    /// Objects that were refused by a webhook of this configuration.
    pub(super) fn refused_by(&self, configuration: Node) -> Vec<Node> {
        let Some(names) = self.names.get(&configuration) else { return Vec::new() };
        self.refusals.iter().filter(|(_, (webhook, _))| names.contains(webhook)).map(|(node, _)| *node).collect()
    }
}

#[cfg(test)]
mod tests;
