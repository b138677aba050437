//! The rights that an operator needs, for a given configuration: what, where, why, and what can be done without.
//!
//! [`Setup`] says how the operator is built; [`Setup::rights`] lists the least rights for it. Displayed they are a table,
//! and [`Rights::roles`] makes Roles and ClusterRoles of them. Pure: it asks no cluster, so it can run where manifests are
//! made, and knows nothing of what is granted.
//!
//! ```
//! use kube_custody::{
//!     object::{ResourceKind, Scope},
//!     ownership::proxy::{ClusterGitTrackOwner, GitTrackOwner},
//!     rbac::{Account, Setup},
//! };
//!
//! let tracks = ResourceKind::new("example.com", "v1", "GitTrack", "gittracks", Scope::Namespaced);
//! let maps = ResourceKind::new("", "v1", "ConfigMap", "configmaps", Scope::Namespaced);
//! let rights = Setup::new(tracks).children([maps]).proxies::<GitTrackOwner, ClusterGitTrackOwner>()?.rights();
//! println!("{rights}");
//! println!("{}", rights.yaml(&Account::new("gittrack-system", "gittrack")));
//! # Ok::<_, kube_custody::ownership::Error>(())
//! ```

mod render;
mod setup;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

pub use self::{
    render::{Account, Role},
    setup::Setup,
};

/// What may be done with a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Verb {
    /// Read one object.
    Get,
    /// Read many.
    List,
    /// Hear of changes.
    Watch,
    /// Make one.
    Create,
    /// Change one; server-side apply is a patch.
    Patch,
    /// Delete one.
    Delete,
}

impl Verb {
    /// As a rule spells it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Patch => "patch",
            Self::Delete => "delete",
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Where a right is needed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Place {
    /// In cluster scope and in every namespace: by a ClusterRole and a ClusterRoleBinding.
    Everywhere,
    /// In these namespaces: by a Role and a RoleBinding in each.
    Namespaces(BTreeSet<String>),
}

/// Whether an operator works without a right.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Need {
    /// It does not: the outcome names the right that is missing.
    Required,
    /// It does.
    Optional {
        /// What is lost.
        cost: String,
    },
}

/// A resource as a rule names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Resource {
    /// API group; empty for the core group.
    pub group: String,
    /// Plural, with a subresource after a slash.
    pub plural: String,
    /// Only objects of these names; none for all.
    pub names: BTreeSet<String>,
}

impl Resource {
    /// All objects of a resource.
    #[must_use]
    pub fn new(group: impl Into<String>, plural: impl Into<String>) -> Self {
        Self { group: group.into(), plural: plural.into(), names: BTreeSet::new() }
    }

    /// Only objects of these names. `list`, `watch` and `create` cannot be narrowed so.
    #[must_use]
    pub fn named<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.names.extend(names.into_iter().map(Into::into));
        self
    }
}

/// One right: a verb on a resource, with its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Right {
    /// On what.
    pub resource: Resource,
    /// To do what.
    pub verb: Verb,
    /// Where.
    pub place: Place,
    /// What for, in words.
    pub reasons: BTreeSet<String>,
    /// Whether it can be done without.
    pub need: Need,
}

impl Right {
    /// A right without which the operator does not work.
    #[must_use]
    pub fn required(resource: Resource, verb: Verb, place: Place, reason: impl Into<String>) -> Self {
        Self { resource, verb, place, reasons: BTreeSet::from([reason.into()]), need: Need::Required }
    }

    /// A right whose lack has a cost.
    #[must_use]
    pub fn optional(
        resource: Resource,
        verb: Verb,
        place: Place,
        reason: impl Into<String>,
        cost: impl Into<String>,
    ) -> Self {
        Self { need: Need::Optional { cost: cost.into() }, ..Self::required(resource, verb, place, reason) }
    }
}

/// A set of rights, each once. Displays as a table in Markdown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rights(BTreeMap<(Resource, Place, Verb), Right>);

impl Rights {
    /// Every right, in order of resource, place and verb.
    pub fn iter(&self) -> impl Iterator<Item = &Right> {
        self.0.values()
    }

    /// Those without which the operator does not work.
    #[must_use]
    pub fn required(&self) -> Self {
        self.only(|right| right.need == Need::Required)
    }

    /// Those that a condition admits.
    #[must_use]
    pub fn only(&self, admits: impl Fn(&Right) -> bool) -> Self {
        self.iter().filter(|right| admits(right)).cloned().collect()
    }
}

impl Extend<Right> for Rights {
    /// Adds rights. What is needed for two reasons is listed once, with both, and is required if either requires it.
    fn extend<T: IntoIterator<Item = Right>>(&mut self, rights: T) {
        for mut right in rights {
            let key = (right.resource.clone(), right.place.clone(), right.verb);
            if let Some(before) = self.0.remove(&key) {
                right.reasons.extend(before.reasons);
                right.need = right.need.min(before.need);
            }
            self.0.insert(key, right);
        }
    }
}

impl FromIterator<Right> for Rights {
    fn from_iter<T: IntoIterator<Item = Right>>(rights: T) -> Self {
        let mut all = Self::default();
        all.extend(rights);
        all
    }
}
