//! Who may hold up whose deletion.

use std::{fmt, sync::Arc};

use crate::object::ObjectId;

type Admits = Arc<dyn Fn(&ObjectId, &ObjectId) -> bool + Send + Sync>;

/// Which dependents may hold up the deletion of a parent that they name.
///
/// Whoever may write a dependent decides with it when the parent can go, so this is a right over the parent's
/// namespace. It holds in both directions: a dependent that may not block a parent has no guarantee that the parent's
/// objects stay as long as its own do, so it creates nothing on that ground and says why.
#[derive(Clone, Default)]
pub struct BlockPolicy(Rule);

#[derive(Clone, Default)]
enum Rule {
    #[default]
    SameNamespace,
    Anyone,
    When(Admits),
}

impl BlockPolicy {
    /// Dependents in the parent's own namespace; cluster-scoped dependents for a cluster-scoped parent. The default.
    #[must_use]
    pub fn same_namespace() -> Self {
        Self(Rule::SameNamespace)
    }

    /// Every dependent. For clusters in which all parents are the administrator's.
    #[must_use]
    pub fn anyone() -> Self {
        Self(Rule::Anyone)
    }

    /// Dependents for which `admits(dependent, parent)` is true.
    ///
    /// It has to give the same answer for the same two at all times: a dependent that was admitted when it began to create
    /// is relied on to block later.
    #[must_use]
    pub fn when(admits: impl Fn(&ObjectId, &ObjectId) -> bool + Send + Sync + 'static) -> Self {
        Self(Rule::When(Arc::new(admits)))
    }

    /// Whether `dependent` may hold up the deletion of `parent`.
    #[must_use]
    pub fn admits(&self, dependent: &ObjectId, parent: &ObjectId) -> bool {
        match &self.0 {
            Rule::SameNamespace => dependent.namespace() == parent.namespace(),
            Rule::Anyone => true,
            Rule::When(admits) => admits(dependent, parent),
        }
    }

    /// Whether all that may block a parent are where the parent is.
    pub(super) fn is_local(&self) -> bool {
        matches!(self.0, Rule::SameNamespace)
    }
}

impl fmt::Debug for BlockPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Rule::SameNamespace => "BlockPolicy(same namespace)",
            Rule::Anyone => "BlockPolicy(anyone)",
            Rule::When(_) => "BlockPolicy(when)",
        })
    }
}
