//! Rules about who serves custom resources, so that an operator outlives them.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Edges, ManifestSet, Rule,
    pods::Workload,
    rbac::{Allows, Binding, Naming},
};
use crate::object::ObjectId;

/// A custom resource depends on the workload that serves it: one whose ServiceAccount is bound to a role that *names*
/// the resource with `update` or `patch` on it, its status or its finalizers.
///
/// Only an operator that still runs takes its finalizer off. A role that allows everything names nothing: an
/// administrator's workload is nobody's server as long as somebody is; see [`ServedByWildcard`].
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct ServedBy;

/// A custom resource that no role names depends on the workloads whose ServiceAccounts may write it all the same: by a
/// wildcard for resources, or because everybody may.
///
/// A guess, and the first to be given up. Without it, an operator that was installed as administrator would go before
/// its custom resources.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct ServedByWildcard;

impl Rule for ServedBy {
    fn name(&self) -> &'static str {
        "served-by"
    }

    fn rank(&self) -> u16 {
        600
    }

    fn context(&self, set: &ManifestSet<'_>) -> BTreeSet<ObjectId> {
        roles_outside(set)
    }

    fn infer(&self, set: &ManifestSet<'_>, edges: &mut Edges<'_>) {
        let servers = Servers::of(set);
        for resource in set.custom() {
            for (server, binding) in servers.of_resource(resource.id, true) {
                edges.prefer(
                    resource.id,
                    server,
                    format!("{} lets it write resources of this kind by name", binding.role),
                );
            }
        }
    }
}

impl Rule for ServedByWildcard {
    fn name(&self) -> &'static str {
        "served-by-wildcard"
    }

    fn rank(&self) -> u16 {
        100
    }

    fn context(&self, set: &ManifestSet<'_>) -> BTreeSet<ObjectId> {
        roles_outside(set)
    }

    fn infer(&self, set: &ManifestSet<'_>, edges: &mut Edges<'_>) {
        let servers = Servers::of(set);
        for resource in set.custom() {
            if !servers.of_resource(resource.id, true).is_empty() {
                continue;
            }
            for (server, binding) in servers.of_resource(resource.id, false) {
                edges.prefer(resource.id, server, format!("nothing serves it by name, and {} allows it", binding.role));
            }
        }
    }
}

/// Roles outside of the set that bindings of the set give to its workloads. Without custom resources nobody asks.
fn roles_outside(set: &ManifestSet<'_>) -> BTreeSet<ObjectId> {
    if set.custom().next().is_none() {
        return BTreeSet::new();
    }
    let accounts = set.workloads().iter().filter_map(account);
    let bindings = accounts.flat_map(|account| set.rbac().bindings_of(account));
    let roles = bindings.map(|(_, binding)| &binding.role).filter(|role| set.get(role).is_none());
    roles.cloned().collect()
}

fn account<'a>(workload: &Workload<'a>) -> Option<(&'a str, &'a str)> {
    Some((workload.id().namespace()?, workload.account()))
}

/// The workloads that each binding gives rights to.
struct Servers<'s, 'a> {
    set: &'s ManifestSet<'a>,
    exact: BTreeMap<&'a ObjectId, Vec<&'a ObjectId>>,
    anybody: BTreeMap<&'a ObjectId, Vec<&'a ObjectId>>,
}

impl<'s, 'a> Servers<'s, 'a> {
    fn of(set: &'s ManifestSet<'a>) -> Self {
        let (mut exact, mut anybody) = (BTreeMap::new(), BTreeMap::new());
        for workload in set.workloads() {
            for (naming, binding) in account(workload).into_iter().flat_map(|account| set.rbac().bindings_of(account)) {
                let servers: &mut BTreeMap<_, Vec<_>> = if naming == Naming::Exact { &mut exact } else { &mut anybody };
                servers.entry(binding.id).or_default().push(workload.id());
            }
        }
        Self { set, exact, anybody }
    }

    /// Workloads that may write `resource`, each with a binding that lets it: those that are bound and allowed by name,
    /// or the others.
    fn of_resource(&self, resource: &ObjectId, by_name: bool) -> BTreeMap<&'a ObjectId, &'s Binding<'a>> {
        let mut found: BTreeMap<&'a ObjectId, &'s Binding<'a>> = BTreeMap::new();
        for (allows, binding) in self.set.rbac().writers_of(resource, &self.set.plural(resource)) {
            let allowed_by_name = allows == Allows::ByName;
            for (bound_by_name, servers) in [(true, &self.exact), (false, &self.anybody)] {
                if by_name == (allowed_by_name && bound_by_name) {
                    for server in servers.get(binding.id).into_iter().flatten() {
                        found.entry(*server).or_insert(binding);
                    }
                }
            }
        }
        found.remove(resource);
        found
    }
}
