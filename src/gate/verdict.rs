//! What a gate answers.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{
    Dependency,
    parents::{Cycle, Dependent},
    request::{Forced, Unfollowed},
};

/// Whether a parent may begin to create, as far as what it depends on goes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "it may, or it waits for something")]
pub enum MayCreate {
    /// Everything that it names was read live a moment ago: there, and not being deleted.
    Yes,
    /// It has to wait.
    Waits(Vec<Unmet>),
}

/// A dependency that a parent has to wait for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unmet {
    /// What it names.
    pub dependency: Dependency,
    /// What is wrong with that.
    pub why: Why,
}

/// Why a dependency is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// It does not exist.
    Missing,
    /// It is being deleted.
    Deleting {
        /// Since when.
        since: Time,
    },
    /// It does not say that it is ready, and the gate was asked to wait for that.
    NotReady,
    /// It may not be held up by this dependent, so nothing would keep it while it is needed.
    NotAllowed,
    /// The gate does not know its kind, so nothing would keep it while it is needed.
    KindNotGated,
    /// Nothing can have that name.
    Invalid {
        /// The rule that it breaks.
        words: String,
    },
    /// It could not be read.
    Unknown {
        /// The API server's words.
        words: String,
    },
}

impl Why {
    /// Whether time alone is likely to solve it.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Missing | Self::Deleting { .. } | Self::NotReady | Self::Unknown { .. })
    }
}

impl fmt::Display for Unmet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { dependency, why } = self;
        match why {
            Why::Missing => write!(f, "{dependency} does not exist"),
            Why::Deleting { since } => write!(f, "{dependency} is being deleted since {}", since.0),
            Why::NotReady => write!(f, "{dependency} is not ready"),
            Why::NotAllowed => {
                write!(f, "{dependency} may not be held up by this parent: name dependencies in its own namespace only")
            }
            Why::KindNotGated => write!(f, "{dependency} is of a kind that cannot be depended on here"),
            Why::Invalid { words } => write!(f, "{dependency} cannot exist: {words}"),
            Why::Unknown { words } => write!(f, "{dependency} could not be read: {words}"),
        }
    }
}

/// Whether a parent that is being deleted may be torn down.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "it may, or it is blocked")]
pub enum MayDelete {
    /// Nothing depends on it, and nothing will.
    Yes(Cleared),
    /// Something depends on it, or may.
    Blocked(Blocked),
}

/// On what ground a parent may be torn down.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cleared {
    /// What was asked for and followed, if anything was.
    pub forced: Option<Forced>,
}

/// Why a parent may not be torn down yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Blocked {
    /// Who depends on it, in order of identity.
    pub by: Vec<Dependent>,
    /// The cycle of `dependsOn` that it is on.
    pub cycle: Option<Cycle>,
    /// Why it cannot be told who depends on it, in words.
    pub unknown: Option<String>,
    /// Why a request to proceed is not followed.
    pub unfollowed: Option<Unfollowed>,
}

impl Blocked {
    /// Whether somebody has to do something: a dependent lives, or a request is not followed.
    #[must_use]
    pub fn needs_somebody(&self) -> bool {
        self.unfollowed.is_some() || self.by.iter().any(|d| d.deleting_since.is_none())
    }
}

impl fmt::Display for Blocked {
    /// All of it; a status names some of the dependents and counts the rest.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = self.by.iter().map(|d| format!("waits for {d}"));
        let unknown = self.unknown.iter().map(|words| format!("cannot tell who depends on it: {words}"));
        let cycle = self.cycle.iter().map(ToString::to_string);
        let unfollowed = self.unfollowed.iter().map(ToString::to_string);
        let all: Vec<_> = by.chain(unknown).chain(cycle).chain(unfollowed).collect();
        f.write_str(&all.join("; "))
    }
}
