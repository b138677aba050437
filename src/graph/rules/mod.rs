//! Rules that infer preferred edges from manifests.
//!
//! A [`Rule`] looks at the whole set of manifests at once and says which object depends on which, with its evidence in
//! words. What it finds is *preferred*: it holds unless it would close a cycle or was waived, and then the lowest rank
//! gives way first. A rule decides from manifests, and from live objects that they name and the caller has read; it knows
//! nothing of a cluster.
//!
//! The rules of this crate, by rank; the [manual](crate::manual::order) says why they are ranked so.
//!
//! | rank | rule | A depends on B |
//! |---|---|---|
//! | 1000 | [`InNamespace`] | object → its Namespace |
//! | 900 | [`OfDefinition`] | custom resource → its definition |
//! | 850 | [`OfApiService`] | object of an aggregated API → its APIService |
//! | 800 | [`Binds`] | binding → role and accounts; aggregated role → its parts |
//! | 750 | [`PodTemplate`] | workload → what its pods refer to |
//! | 700 | [`AccountRights`] | workload → bindings and roles of its account |
//! | 650 | [`Impersonates`] | custom resource → account that it names, and its rights |
//! | 600 | [`ServedBy`] | custom resource → workload that serves it |
//! | 550 | [`AnsweredBy`] | webhook configuration, APIService, definition → Service → workload |
//! | 500 | [`StoredOn`] | claim → StorageClass, volume |
//! | 450 | [`Scales`] | autoscaler → what it scales |
//! | 400 | [`RoutesTo`] | Ingress → backends, TLS Secrets, class |
//! | 350 | [`GuardedBy`] | workload → NetworkPolicy, budget, quota, limits |
//! | 300 | [`CoveredByWebhook`] | object → webhook configuration that covers it |
//! | 100 | [`ServedByWildcard`] | custom resource that nothing else serves → workload that may write everything |

mod accounts;
mod calls;
mod containers;
mod edges;
mod guards;
mod pods;
mod rbac;
mod selector;
mod served;
mod set;
mod targets;
#[cfg(test)]
mod tests;
mod webhooks;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    sync::Arc,
};

pub use self::{
    accounts::{AccountRights, Binds, Impersonates},
    calls::{AnsweredBy, OfApiService},
    containers::{InNamespace, OfDefinition},
    edges::Edges,
    guards::GuardedBy,
    pods::PodTemplate,
    served::{ServedBy, ServedByWildcard},
    set::{Manifest, ManifestSet},
    targets::{RoutesTo, Scales, StoredOn},
    webhooks::CoveredByWebhook,
};
use crate::object::ObjectId;

/// Infers preferred edges.
///
/// # Assumptions
/// A rule is deterministic, and costs no more than the manifests it reads and the edges it finds: look targets up in the
/// [`ManifestSet`] instead of comparing all pairs.
///
/// # Example
/// Backups of an imaginary database name it at `spec.database`; it has to be there until its backups are gone.
///
/// ```
/// use kube_custody::graph::{Edges, GraphBuilder, ManifestSet, Rule, Rules};
/// use kube_custody::object::ObjectId;
///
/// #[derive(Debug)]
/// struct BackupOf;
///
/// impl Rule for BackupOf {
///     fn name(&self) -> &str {
///         "backup-of"
///     }
///
///     fn rank(&self) -> u16 {
///         625 // above `served-by`: a backup needs its database even more than an operator
///     }
///
///     fn infer(&self, set: &ManifestSet<'_>, edges: &mut Edges<'_>) {
///         for backup in set.of_kind("db.example.com", "Backup") {
///             let Some(name) = backup.text("/spec/database") else { continue };
///             // Only a database of the set: nothing should wait for one that somebody else may bring.
///             if let Some(database) = set.named("db.example.com", "Database", backup.id.namespace(), name) {
///                 edges.prefer(backup.id, database.id, "spec.database names it");
///             }
///         }
///     }
/// }
///
/// let manifest = |value| serde_json::from_value::<kube_core::DynamicObject>(value);
/// let objects = [
///     manifest(serde_json::json!({
///         "apiVersion": "db.example.com/v1", "kind": "Backup", "metadata": {"name": "nightly", "namespace": "shop"},
///         "spec": {"database": "orders"},
///     }))?,
///     manifest(serde_json::json!({
///         "apiVersion": "db.example.com/v1", "kind": "Database", "metadata": {"name": "orders", "namespace": "shop"},
///     }))?,
/// ];
/// let ids = objects.iter().map(ObjectId::of).collect::<Result<Vec<_>, _>>()?;
///
/// let mut builder = GraphBuilder::new();
/// for id in &ids {
///     builder.add(id.clone())?;
/// }
/// builder.infer(&Rules::standard().with(BackupOf), &ManifestSet::new(ids.iter().zip(&objects)));
/// let graph = builder.build()?;
/// assert_eq!(graph.id(graph.deletion_order()[0]).kind(), "Backup");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Rule: Debug + Send + Sync {
    /// What edges of this rule are called in plans, records and waivers: short, stable, unique among the rules in use, without
    /// commas and slashes.
    fn name(&self) -> &str;

    /// How much the rule is worth when edges of several rules form a cycle: the lowest gives way. The rules of this
    /// crate have ranks from 100 to 1000.
    fn rank(&self) -> u16;

    /// Roles outside of the set that the rule would read if it could: ClusterRoles and Roles that objects of the set
    /// name. A caller with a cluster reads them, each once, and adds them as [context](ManifestSet::context); other kinds
    /// are not read. None unless said.
    fn context(&self, set: &ManifestSet<'_>) -> BTreeSet<ObjectId> {
        let _ = set;
        BTreeSet::new()
    }

    /// Adds the edges that the rule finds in `set`.
    fn infer(&self, set: &ManifestSet<'_>, edges: &mut Edges<'_>);
}

/// Rules in use, by name.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    rules: BTreeMap<String, Arc<dyn Rule>>,
    waived: BTreeMap<String, String>,
}

impl Rules {
    /// No rule: only declared edges hold.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// The rules of this crate.
    #[must_use]
    pub fn standard() -> Self {
        Self::none()
            .with(InNamespace)
            .with(OfDefinition)
            .with(OfApiService)
            .with(Binds)
            .with(PodTemplate)
            .with(AccountRights)
            .with(Impersonates)
            .with(ServedBy)
            .with(AnsweredBy)
            .with(StoredOn)
            .with(Scales)
            .with(RoutesTo)
            .with(GuardedBy)
            .with(CoveredByWebhook)
            .with(ServedByWildcard)
    }

    /// Adds a rule; replaces one of the same name.
    #[must_use]
    pub fn with(mut self, rule: impl Rule + 'static) -> Self {
        self.rules.insert(rule.name().to_owned(), Arc::new(rule));
        self
    }

    /// Leaves a rule out. Its edges are then not looked for; to have them recorded as given up, use
    /// [`waive`](Self::waive).
    #[must_use]
    pub fn without(mut self, name: &str) -> Self {
        self.rules.remove(name);
        self
    }

    /// Lets no edge of a rule hold. They are looked for all the same, and listed as given up. `by` says who decided so, in
    /// words for a person.
    #[must_use]
    pub fn waive(mut self, name: impl Into<String>, by: impl Into<String>) -> Self {
        self.waived.insert(name.into(), by.into());
        self
    }

    /// The rules, in order of name.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &dyn Rule> + '_ {
        self.rules.values().map(AsRef::as_ref)
    }

    /// The names of rules whose edges do not hold, each with who decided so.
    pub fn waived(&self) -> impl ExactSizeIterator<Item = (&str, &str)> + '_ {
        self.waived.iter().map(|(name, by)| (name.as_str(), by.as_str()))
    }

    /// Roles outside of `set` that rules would read if they could. See [`Rule::context`].
    #[must_use]
    pub fn context(&self, set: &ManifestSet<'_>) -> BTreeSet<ObjectId> {
        let wanted = self.iter().flat_map(|rule| rule.context(set));
        let is_role = |id: &ObjectId| {
            let kinds = ["ClusterRole", "Role"];
            kinds.into_iter().any(|kind| id.is("rbac.authorization.k8s.io", kind)) && set.get(id).is_none()
        };
        wanted.filter(is_role).collect()
    }
}
