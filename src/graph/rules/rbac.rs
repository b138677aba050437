//! RBAC of a set, read as the API server's authorizer reads it.
//!
//! Decides who is allowed to write which resource, and whether a role says so by name. Knows nothing of edges.
//! Roles come from the set and its context, bindings from the set alone: which bindings of a cluster name an account can
//! only be found by reading them all.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{api::rbac::v1::PolicyRule, apimachinery::pkg::apis::meta::v1::LabelSelector};
use serde::Deserialize;
use serde_json::Value;

use super::{
    Manifest, ManifestSet,
    selector::matches,
    set::{list, text},
};
use crate::object::ObjectId;

const GROUP: &str = "rbac.authorization.k8s.io";

/// A ServiceAccount: namespace and name.
pub(super) type Account<'a> = (&'a str, &'a str);

/// The ServiceAccount that a subject of `binding` is. One without a namespace is in that of the RoleBinding; in a
/// ClusterRoleBinding it is nobody.
pub(super) fn account_of<'a>(binding: Manifest<'a>, subject: &'a Value) -> Option<Account<'a>> {
    (text(subject, "/kind")? == "ServiceAccount").then_some(())?;
    let namespace = text(subject, "/namespace").filter(|namespace| !namespace.is_empty());
    Some((namespace.or_else(|| binding.id.namespace())?, text(subject, "/name")?))
}

/// A binding whose role is known.
#[derive(Debug)]
pub(super) struct Binding<'a> {
    pub(super) id: &'a ObjectId,
    /// The role that it refers to.
    pub(super) role: ObjectId,
    /// Positions in `roles` of that role and of those that are aggregated into it.
    roles: Vec<usize>,
}

/// How a binding names an account, the most exact first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Naming {
    /// As a ServiceAccount, or as the group of those of its namespace.
    Exact,
    /// As one of all ServiceAccounts, or of all users.
    Anybody,
}

/// How a role allows to write a resource, the most exact first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Allows {
    /// It names the resource.
    ByName,
    /// It names all resources, of the group or of all groups.
    ByWildcard,
}

/// What a rule is about: group and resource, each perhaps `*`, and the name of the one object that it allows, if not all.
type Scope = (String, String, Option<String>);

/// Who may do what.
#[derive(Debug, Default)]
pub(super) struct Rbac<'a> {
    /// The rules of each role.
    roles: Vec<Vec<PolicyRule>>,
    bindings: Vec<Binding<'a>>,
    /// Aggregated ClusterRoles, with those that give them their rules.
    aggregated: Vec<(&'a ObjectId, Vec<&'a ObjectId>)>,
    by_account: BTreeMap<Account<'a>, BTreeSet<usize>>,
    /// Bindings that name the group of a namespace's ServiceAccounts.
    by_namespace: BTreeMap<&'a str, BTreeSet<usize>>,
    /// Bindings that name all ServiceAccounts, or all users.
    of_anybody: BTreeSet<usize>,
    /// Bindings that let their subjects write.
    writers: BTreeMap<Scope, BTreeSet<usize>>,
}

impl<'a> Rbac<'a> {
    pub(super) fn read(set: &ManifestSet<'a>) -> Self {
        let mut this = Self::default();
        let position = this.read_roles(set);
        for kind in ["ClusterRoleBinding", "RoleBinding"] {
            for binding in set.of_kind(GROUP, kind) {
                let Some(role) = role_of(binding) else { continue };
                let mut roles: Vec<usize> = position.get(&role).copied().into_iter().collect();
                roles.extend(this.aggregated_into(&role).filter_map(|id| position.get(id).copied()));
                let index = this.bindings.len();
                this.bindings.push(Binding { id: binding.id, role, roles });
                this.read_subjects(binding, index);
            }
        }
        this.index_writers();
        this
    }

    fn read_roles(&mut self, set: &ManifestSet<'a>) -> BTreeMap<&'a ObjectId, usize> {
        let cluster = || set.of_kind(GROUP, "ClusterRole").chain(set.context_of_kind(GROUP, "ClusterRole"));
        let aggregating: Vec<_> = cluster().filter_map(|role| Some((role.id, aggregation(role)?))).collect();
        for (id, selectors) in &aggregating {
            // An aggregated role may be selected by another.
            let mut parts: BTreeSet<&ObjectId> = BTreeSet::new();
            let mut open = vec![selectors];
            while let Some(selectors) = open.pop() {
                for part in cluster().filter(|part| part.id != *id) {
                    let selected = selectors.iter().any(|selector| matches(selector, part.labels()));
                    if selected && parts.insert(part.id) {
                        open.extend(aggregating.iter().filter(|(other, _)| *other == part.id).map(|(_, s)| s));
                    }
                }
            }
            self.aggregated.push((id, parts.into_iter().collect()));
        }
        let local = set.of_kind(GROUP, "Role").chain(set.context_of_kind(GROUP, "Role"));
        let mut position = BTreeMap::new();
        for role in local.chain(cluster()) {
            // The rules in the manifest of an aggregated role are replaced by a controller; a live one has them already.
            let replaced = set.get(role.id).is_some() && aggregating.iter().any(|(id, _)| *id == role.id);
            let rules = role.list("/rules").filter(|_| !replaced);
            // What cannot be read is refused by the API server, and grants nothing.
            let rules = rules.filter_map(|rule| PolicyRule::deserialize(rule).ok()).collect();
            position.insert(role.id, self.roles.len());
            self.roles.push(rules);
        }
        position
    }

    fn read_subjects(&mut self, binding: Manifest<'a>, index: usize) {
        for subject in binding.list("/subjects") {
            let (Some(kind), Some(name)) = (text(subject, "/kind"), text(subject, "/name")) else { continue };
            match kind {
                "ServiceAccount" => {
                    let Some(account) = account_of(binding, subject) else { continue };
                    self.by_account.entry(account).or_default().insert(index);
                }
                "User" => {
                    let account = name.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':'));
                    if let Some(account) = account {
                        self.by_account.entry(account).or_default().insert(index);
                    }
                }
                "Group" => match name.strip_prefix("system:serviceaccounts:") {
                    Some(namespace) => {
                        self.by_namespace.entry(namespace).or_default().insert(index);
                    }
                    None if matches!(name, "system:serviceaccounts" | "system:authenticated") => {
                        self.of_anybody.insert(index);
                    }
                    None => {}
                },
                _ => {}
            }
        }
    }

    /// Notes each resource that a bound role allows to update or patch: itself, its status or its finalizers.
    fn index_writers(&mut self) {
        let mut writers: BTreeMap<Scope, BTreeSet<usize>> = BTreeMap::new();
        for (index, binding) in self.bindings.iter().enumerate() {
            for rule in binding.roles.iter().flat_map(|role| &self.roles[*role]) {
                if !rule.verbs.iter().any(|verb| matches!(verb.as_str(), "update" | "patch" | "*")) {
                    continue;
                }
                let names = rule.resource_names.iter().flatten().cloned().map(Some).collect::<Vec<_>>();
                let names = if names.is_empty() { vec![None] } else { names };
                for resource in rule.resources.iter().flatten().filter_map(|resource| written(resource)) {
                    for group in rule.api_groups.iter().flatten() {
                        for name in &names {
                            let scope = (group.clone(), resource.to_owned(), name.clone());
                            writers.entry(scope).or_default().insert(index);
                        }
                    }
                }
            }
        }
        self.writers = writers;
    }

    /// Bindings that give `account` its rights, each with how it names it.
    pub(super) fn bindings_of(&self, account: Account<'_>) -> impl Iterator<Item = (Naming, &Binding<'a>)> + '_ {
        let direct = self.by_account.get(&account).into_iter().flatten();
        let of_namespace = self.by_namespace.get(account.0).into_iter().flatten();
        let exact: BTreeSet<usize> = direct.chain(of_namespace).copied().collect();
        let others = self.of_anybody.iter().filter(|index| !exact.contains(*index)).copied().collect::<Vec<_>>();
        let exact = exact.into_iter().map(|index| (Naming::Exact, index));
        exact.chain(others.into_iter().map(|index| (Naming::Anybody, index))).map(|(how, i)| (how, &self.bindings[i]))
    }

    /// Bindings that allow whom they name to write `object`, whose kind is called `resource`.
    pub(super) fn writers_of(&self, object: &ObjectId, resource: &str) -> Vec<(Allows, &Binding<'a>)> {
        let mut found = Vec::new();
        for (allows, resource) in [(Allows::ByName, resource), (Allows::ByWildcard, "*")] {
            for group in [object.group(), "*"] {
                for name in [None, Some(object.name())] {
                    let scope = (group.to_owned(), resource.to_owned(), name.map(ToOwned::to_owned));
                    let bindings = self.writers.get(&scope).into_iter().flatten().map(|index| &self.bindings[*index]);
                    // A RoleBinding grants in its own namespace, also what a ClusterRole says.
                    let reaches = |binding: &&Binding<'_>| {
                        binding.id.kind() == "ClusterRoleBinding" || binding.id.namespace() == object.namespace()
                    };
                    found.extend(bindings.filter(reaches).map(|binding| (allows, binding)));
                }
            }
        }
        found
    }

    /// ClusterRoles whose rules become those of `role`.
    pub(super) fn aggregated_into(&self, role: &ObjectId) -> impl Iterator<Item = &'a ObjectId> + '_ {
        let parts = self.aggregated.iter().find(|(id, _)| *id == role);
        parts.into_iter().flat_map(|(_, parts)| parts).copied()
    }

    /// All aggregated ClusterRoles, with those that give them their rules.
    pub(super) fn aggregated(&self) -> impl Iterator<Item = (&'a ObjectId, &[&'a ObjectId])> + '_ {
        self.aggregated.iter().map(|(id, parts)| (*id, parts.as_slice()))
    }
}

/// The role that a binding refers to.
pub(super) fn role_of(binding: Manifest<'_>) -> Option<ObjectId> {
    let (kind, name) = (binding.text("/roleRef/kind")?, binding.text("/roleRef/name")?);
    match kind {
        "ClusterRole" => ObjectId::new(GROUP, kind, None, name).ok(),
        "Role" => ObjectId::new(GROUP, kind, Some(binding.id.namespace()?), name).ok(),
        _ => None,
    }
}

/// What an aggregated role selects.
fn aggregation(role: Manifest<'_>) -> Option<Vec<LabelSelector>> {
    let rule = role.object.data.get("aggregationRule").filter(|rule| !rule.is_null())?;
    Some(list(rule, "/clusterRoleSelectors").filter_map(|selector| LabelSelector::deserialize(selector).ok()).collect())
}

/// The resource that an item of a rule's `resources` lets one write, by itself or by its status or finalizers.
///
/// `*` is every resource with all its subresources, `*/status` the status of each; `foos/*` is a literal, which no
/// request ever matches.
fn written(resource: &str) -> Option<&str> {
    match resource.split_once('/') {
        None => Some(resource),
        Some((resource, "status" | "finalizers")) => Some(resource),
        Some(_) => None,
    }
}
