//! Rules about who acts with which rights.

use super::{
    Edges, Manifest, ManifestSet, Rule,
    rbac::{account_of, role_of},
};
use crate::object::ObjectId;

/// A binding depends on its role and on the ServiceAccounts that it names; an aggregated ClusterRole depends on those
/// whose rules it takes over.
///
/// A binding without either grants nothing, and the API server never lets `roleRef` be changed.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Binds;

impl Rule for Binds {
    fn name(&self) -> &'static str {
        "binds"
    }

    fn rank(&self) -> u16 {
        800
    }

    fn infer(&self, set: &ManifestSet<'_>, edges: &mut Edges<'_>) {
        let bindings = ["ClusterRoleBinding", "RoleBinding"].map(|kind| set.of_kind("rbac.authorization.k8s.io", kind));
        for binding in bindings.into_iter().flatten() {
            if let Some(role) = role_of(binding) {
                edges.prefer_within(binding.id, &role, "it binds this role");
            }
            let accounts = binding.list("/subjects").filter_map(|subject| account_of(binding, subject));
            for (namespace, name) in accounts {
                let Ok(account) = ObjectId::new("", "ServiceAccount", Some(namespace), name) else { continue };
                edges.prefer_within(binding.id, &account, "it binds this account");
            }
        }
        for (role, parts) in set.rbac().aggregated() {
            for part in parts {
                edges.prefer_within(role, part, "it aggregates this role");
            }
        }
    }
}

/// A workload depends on what gives its ServiceAccount its rights: bindings, and the roles that they bind.
///
/// Bindings count that name the account, as ServiceAccount, user or member of a group of ServiceAccounts.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct AccountRights;

impl Rule for AccountRights {
    fn name(&self) -> &'static str {
        "account-rights"
    }

    fn rank(&self) -> u16 {
        700
    }

    fn infer(&self, set: &ManifestSet<'_>, edges: &mut Edges<'_>) {
        for workload in set.workloads() {
            let from = workload.id();
            if let Some(namespace) = from.namespace() {
                rights(from, (namespace, workload.account()), set, edges);
            }
        }
    }
}

/// `from` depends on the bindings and roles of an account.
fn rights(from: &ObjectId, (namespace, name): (&str, &str), set: &ManifestSet<'_>, edges: &mut Edges<'_>) {
    for (_, binding) in set.rbac().bindings_of((namespace, name)) {
        let evidence = format!("it gives ServiceAccount {namespace}/{name} its rights");
        edges.prefer_within(from, &binding.role, evidence.clone());
        edges.prefer(from, binding.id, evidence);
    }
}

/// A custom resource that names a ServiceAccount at `spec.serviceAccountName` depends on it and on its rights.
///
/// Whoever serves such a resource impersonates the account, to clean up as well: Flux, kapp-controller and others. Only
/// an account in the resource's own namespace is looked for, because that is what such fields mean.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Impersonates;

impl Impersonates {
    fn account<'a>(resource: Manifest<'a>) -> Option<(&'a str, &'a str)> {
        Some((resource.id.namespace()?, resource.text("/spec/serviceAccountName")?))
    }
}

impl Rule for Impersonates {
    fn name(&self) -> &'static str {
        "impersonates"
    }

    fn rank(&self) -> u16 {
        650
    }

    fn infer(&self, set: &ManifestSet<'_>, edges: &mut Edges<'_>) {
        for resource in set.custom() {
            let Some((namespace, name)) = Self::account(resource) else { continue };
            let Some(account) = set.named("", "ServiceAccount", Some(namespace), name) else { continue };
            edges.prefer(resource.id, account.id, "it names it at spec.serviceAccountName");
            rights(resource.id, (namespace, name), set, edges);
        }
    }
}
