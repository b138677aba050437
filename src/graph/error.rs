//! Why a set of objects has no order.

use std::fmt;

use crate::object::ObjectId;

/// Why no graph could be built. Nothing was written anywhere.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// One identity was added twice.
    #[error("{id} is in the set twice: leave one of them out (a version is no part of an object's identity)")]
    Duplicate {
        /// Which.
        id: ObjectId,
    },
    /// An edge was declared for an object that was not added.
    #[error(
        "{from} is declared to depend on {to}, but {from} is not in the set: add it, or declare the edge where it is added"
    )]
    UnknownObject {
        /// What is said to depend.
        from: ObjectId,
        /// What it is said to depend on.
        to: ObjectId,
    },
    /// Objects need each other, so no order satisfies what was declared.
    #[error("{}: remove one of the declared dependencies of each cycle", Listing(.0))]
    Cycles(
        /// One cycle of each knot, shortest through the knot's least identity, in order of identity; never empty.
        Vec<Cycle>,
    ),
    /// More objects than nodes can be numbered.
    #[error("a graph holds at most 4294967295 objects: split the set")]
    TooLarge,
}

/// Required dependencies that lead from an object back to itself.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cycle {
    /// The whole way round; the last hop ends where the first begins. One hop is an object that depends on itself.
    pub path: Vec<Hop>,
}

impl Cycle {
    /// Longest path that is displayed whole; of a longer one the middle is counted.
    const SHOWN: usize = 64;

    /// Whether one object depends on itself.
    #[must_use]
    pub fn is_self_dependency(&self) -> bool {
        self.path.len() == 1
    }
}

/// One step of a cycle: `from` depends on `to`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Hop {
    /// What depends.
    pub from: ObjectId,
    /// What it depends on.
    pub to: ObjectId,
    /// Who declared it: an annotation key, or `api`.
    pub declared_by: String,
}

impl fmt::Display for Cycle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (head, tail) = match self.path.len().checked_sub(Self::SHOWN) {
            None | Some(0) => (self.path.as_slice(), [].as_slice()),
            Some(hidden) => {
                let (head, rest) = self.path.split_at(Self::SHOWN / 2);
                (head, &rest[hidden..])
            }
        };
        if let Some(hop) = head.first() {
            write!(f, "{}", hop.from)?;
        }
        let hop = |f: &mut fmt::Formatter<'_>, hop: &Hop| {
            write!(f, " -> {} (declared by {})", hop.to, super::render::printable(&hop.declared_by))
        };
        head.iter().try_for_each(|h| hop(f, h))?;
        if let Some(first) = tail.first() {
            write!(f, " -> … {} more … -> {}", self.path.len() - head.len() - tail.len(), first.from)?;
        }
        tail.iter().try_for_each(|h| hop(f, h))
    }
}

struct Listing<'a>(&'a [Cycle]);

impl fmt::Display for Listing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, cycle) in self.0.iter().enumerate() {
            let join = if i == 0 { "" } else { "; " };
            let what = if cycle.is_self_dependency() { "object depends on itself" } else { "dependency cycle" };
            write!(f, "{join}{what}: {cycle}")?;
        }
        Ok(())
    }
}
