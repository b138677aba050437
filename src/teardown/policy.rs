//! Decisions that depend on the kind of an object, on policies and on how often something was tried.

use std::time::Duration;

use super::proof::{Propagation, Reason, Subject};
use crate::{
    graph::{DependencyGraph, Node},
    inventory::{Requirement, Role},
    object::ObjectId,
};

/// Workloads whose deletion takes pods with it: their own absence does not mean that the pods are gone.
const WORKLOADS: [(&str, &str); 7] = [
    ("", "ReplicationController"),
    ("apps", "DaemonSet"),
    ("apps", "Deployment"),
    ("apps", "ReplicaSet"),
    ("apps", "StatefulSet"),
    ("batch", "CronJob"),
    ("batch", "Job"),
];

/// About how many questions a second all objects together cost that are waited for and not watched.
pub const QUESTIONS_A_SECOND: u32 = 200;
/// However many wait, each is asked about after this long.
const LONGEST: Duration = Duration::from_secs(300);

/// The propagation policy of a DELETE: Foreground for a workload that something else waits for, so that gone includes its
/// pods; Background otherwise. Always stated, because defaults differ (Jobs orphan their pods).
#[must_use]
pub fn propagation(id: &ObjectId, is_waited_for: bool) -> Propagation {
    if is_waited_for && WORKLOADS.iter().any(|(group, kind)| id.is(group, kind)) {
        return Propagation::Foreground;
    }
    Propagation::Background
}

/// What a kept object needs to live: what it requires, its Namespace, and the definition of its kind. One that was given up
/// may live on, and its needs with it.
pub(super) fn needed_by_kept<'a>(
    graph: &DependencyGraph,
    kept: Node,
    subject: impl Fn(Node) -> Option<&'a Subject>,
) -> Vec<Node> {
    let required = graph.edges(kept).filter(|e| matches!(e.requirement, Requirement::Required { .. })).map(|e| e.to);
    let containers = containers(graph, kept, subject(kept));
    // Proxy owners are no part of what was wanted: they go when the parent does, and references to them are taken off.
    let is_proxy = |needed: &Node| subject(*needed).is_some_and(|s| s.role == Role::Proxy);
    required.chain(containers).filter(|needed| *needed != kept && !is_proxy(needed)).collect()
}

/// What an object is in, of what is in the graph: its Namespace, and the definition of its kind.
pub(super) fn containers(graph: &DependencyGraph, node: Node, subject: Option<&Subject>) -> Vec<Node> {
    let plural = subject.map(|subject| subject.resource.plural.as_str());
    containers_of(graph.id(node), plural).filter_map(|id| graph.node(&id)).collect()
}

/// What an object is in: its Namespace, and the definition of its kind if the plural is known and there can be one.
pub(crate) fn containers_of(id: &ObjectId, plural: Option<&str>) -> impl Iterator<Item = ObjectId> + use<> {
    let namespace = id.namespace().and_then(|name| ObjectId::new("", "Namespace", None, name).ok());
    namespace.into_iter().chain(plural.and_then(|plural| definition_of(plural, id.group())))
}

/// The CustomResourceDefinition that defines `plural` in `group`, if the group can be one of custom resources.
#[must_use]
pub fn definition_of(plural: &str, group: &str) -> Option<ObjectId> {
    if group.is_empty() {
        return None;
    }
    ObjectId::new("apiextensions.k8s.io", "CustomResourceDefinition", None, &format!("{plural}.{group}")).ok()
}

/// After how long a blocked or waiting object is asked about again, although nothing woke it.
///
/// `attempt` counts from 0; `watched` says that a watch reports changes of the object, so that time is the second
/// way only; `crowd` counts the objects that are waited for in all: the more there are, the more rarely each is asked
/// about, so that all together cost the API server no more than [`QUESTIONS_A_SECOND`].
#[must_use]
pub fn pace(reason: &Reason, attempt: u32, watched: bool, crowd: usize) -> Duration {
    let (first, longest) = match reason {
        Reason::Throttled { after } => return *after,
        Reason::Terminating if watched => (30_000, 300_000),
        Reason::Terminating => (50, 5_000),
        Reason::Unknown => (250, 30_000),
        Reason::Refused | Reason::Forbidden => (1_000, 60_000),
        Reason::InUse { .. } | Reason::UseUnknown => (1_000, 30_000),
        Reason::Unproven | Reason::Disowned | Reason::Recreated { .. } => (30_000, 300_000),
        Reason::Dependents | Reason::NotManaged | Reason::Damaged => (300_000, 300_000),
    };
    let doubled = u64::saturating_mul(first, 1_u64.checked_shl(attempt).unwrap_or(u64::MAX));
    let fair = Duration::from_secs(1).saturating_mul(u32::try_from(crowd).unwrap_or(u32::MAX)) / QUESTIONS_A_SECOND;
    Duration::from_millis(doubled.min(longest)).max(fair.min(LONGEST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_grows_and_ends_growing() {
        let at = |attempt| pace(&Reason::Unknown, attempt, false, 1).as_millis();
        assert_eq!([at(0), at(1), at(2), at(40), at(200)], [250, 500, 1_000, 30_000, 30_000]);
        assert_eq!(pace(&Reason::Throttled { after: Duration::from_secs(7) }, 9, true, 1).as_secs(), 7);
    }

    #[test]
    fn many_objects_together_are_asked_about_no_more_often_than_some() {
        for crowd in [10, 1_000, 20_000] {
            let each = pace(&Reason::Terminating, 0, false, crowd).as_secs_f64();
            assert!(crowd as f64 / each <= f64::from(QUESTIONS_A_SECOND) + 1e-6, "{crowd}: every {each} s");
        }
        assert_eq!(pace(&Reason::Terminating, 0, false, 10_000_000), LONGEST);
    }

    #[test]
    fn only_workloads_that_something_waits_for_go_in_the_foreground() {
        let id = |group: &str, kind: &str| ObjectId::new(group, kind, Some("a"), "x").unwrap();
        assert_eq!(propagation(&id("apps", "Deployment"), true), Propagation::Foreground);
        assert_eq!(propagation(&id("apps", "Deployment"), false), Propagation::Background);
        assert_eq!(propagation(&id("", "ConfigMap"), true), Propagation::Background);
    }
}
