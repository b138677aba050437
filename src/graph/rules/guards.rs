//! Which objects guard workloads.

use std::collections::BTreeMap;

use super::{Edges, ManifestSet, Rule, pods::PodIndex, selector};

/// A workload depends on what guards its pods: NetworkPolicies and PodDisruptionBudgets that select them, ResourceQuotas and
/// LimitRanges of their namespace.
///
/// They are there before the first pod and until the last has ended: a pod that outlives its NetworkPolicy is open to
/// everybody while it shuts down.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct GuardedBy;

impl Rule for GuardedBy {
    fn name(&self) -> &'static str {
        "guarded-by"
    }

    fn rank(&self) -> u16 {
        350
    }

    fn infer(&self, set: &ManifestSet<'_>, edges: &mut Edges<'_>) {
        let index = PodIndex::of(set);
        for kind in ["LimitRange", "ResourceQuota"] {
            for limit in set.of_kind("", kind) {
                let limited = index.with_labels(limit.id.namespace(), &BTreeMap::new());
                edges.prefer_all(limited.map(|w| w.id()), limit.id, "it limits pods in this namespace");
            }
        }
        let policies = set.of_kind("networking.k8s.io", "NetworkPolicy").map(|m| (m, "/spec/podSelector"));
        let budgets = set.of_kind("policy", "PodDisruptionBudget").map(|m| (m, "/spec/selector"));
        for (guard, pointer) in policies.chain(budgets) {
            // Without a selector a budget selects no pods, and a policy is refused.
            let Some(selector) = selector::read(&guard.object.data, pointer) else { continue };
            let equal = selector.match_labels.iter().flatten().map(|(k, v)| (k.as_str(), v.as_str())).collect();
            let candidates = index.with_labels(guard.id.namespace(), &equal);
            let guarded = candidates.filter(|workload| selector::matches(&selector, &workload.pod_labels()));
            edges.prefer_all(guarded.map(|w| w.id()), guard.id, "it selects its pods");
        }
    }
}
