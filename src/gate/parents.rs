//! Parents and what they name in `dependsOn`: who blocks whom.
//!
//! Decides on the state of one moment, and knows neither how it was read nor how old it is. What an answer is worth is
//! [`opening`](super::opening)'s to say.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt,
};

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

use super::BlockPolicy;
use crate::object::{LiveRef, ObjectId};

/// What a parent names in `dependsOn`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Names {
    /// These. A name that breaks the API server's rules names nothing, and is left out.
    Read(BTreeSet<ObjectId>),
    /// It cannot be told: the object does not fit its type. It may name anything.
    Unreadable,
}

/// A parent as a gate sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Parent {
    pub(super) this: LiveRef,
    pub(super) names: Names,
    /// Since when it is being deleted.
    pub(super) deleting: Option<Timestamp>,
    /// Whether it carries the mark without which it has created nothing.
    pub(super) marked: bool,
    /// Whether it says that it is ready.
    pub(super) ready: bool,
}

impl Parent {
    /// What it is known to name.
    pub(super) fn named(&self) -> impl Iterator<Item = &ObjectId> {
        let names = match &self.names {
            Names::Read(names) => Some(names),
            Names::Unreadable => None,
        };
        names.into_iter().flatten()
    }

    /// Whether both say the same about who blocks whom.
    pub(super) fn stands_as(&self, other: &Self) -> bool {
        self.this == other.this
            && self.names == other.names
            && self.deleting.is_some() == other.deleting.is_some()
            && self.marked == other.marked
    }
}

/// A parent that another one waits for before it is torn down.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Dependent {
    /// Which parent.
    pub parent: LiveRef,
    /// Since when it is being deleted; `None` while it lives.
    pub deleting_since: Option<Time>,
    /// Whether what it names in `dependsOn` could be read. If not, it may name anything, and blocks what it is allowed to.
    pub readable: bool,
}

impl From<&Parent> for Dependent {
    fn from(parent: &Parent) -> Self {
        Self {
            parent: parent.this.clone(),
            deleting_since: parent.deleting.map(Time),
            readable: !matches!(parent.names, Names::Unreadable),
        }
    }
}

impl fmt::Display for Dependent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { parent, deleting_since, readable } = self;
        match deleting_since {
            Some(since) => write!(f, "{parent}, being deleted since {}", since.0)?,
            None => write!(f, "{parent}, which is not being deleted")?,
        }
        if *readable { Ok(()) } else { f.write_str(" and whose dependsOn cannot be read") }
    }
}

/// Who asks, and what does not hold it up.
#[derive(Clone, Copy, Debug)]
pub(super) struct View<'a> {
    pub(super) parent: &'a LiveRef,
    pub(super) policy: &'a BlockPolicy,
    /// Dependents that do not block it: its own children, those that contain it, and those it no longer waits for.
    pub(super) passed: &'a BTreeSet<LiveRef>,
}

/// All parents of the kinds that a gate knows, in one state.
#[derive(Clone, Debug, Default)]
pub(super) struct Parents {
    all: BTreeMap<ObjectId, Parent>,
    /// Who names an identity.
    by: BTreeMap<ObjectId, BTreeSet<ObjectId>>,
    unreadable: BTreeSet<ObjectId>,
}

impl Parents {
    pub(super) fn get(&self, id: &ObjectId) -> Option<&Parent> {
        self.all.get(id)
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = &ObjectId> {
        self.all.keys()
    }

    /// Adds or replaces a parent; returns the one replaced.
    pub(super) fn put(&mut self, parent: Parent) -> Option<Parent> {
        let id = parent.this.id.clone();
        let before = self.take(&id);
        for name in parent.named() {
            self.by.entry(name.clone()).or_default().insert(id.clone());
        }
        if parent.names == Names::Unreadable {
            self.unreadable.insert(id.clone());
        }
        self.all.insert(id, parent);
        before
    }

    pub(super) fn take(&mut self, id: &ObjectId) -> Option<Parent> {
        let parent = self.all.remove(id)?;
        self.unreadable.remove(id);
        for name in parent.named() {
            if let Some(by) = self.by.get_mut(name) {
                by.remove(id);
                if by.is_empty() {
                    self.by.remove(name);
                }
            }
        }
        Some(parent)
    }

    /// Who names `id`, or may.
    pub(super) fn naming<'a, 'b>(&'a self, id: &'b ObjectId) -> impl Iterator<Item = &'a Parent> + use<'a, 'b> {
        let named = self.by.get(id).into_iter().flatten();
        named.chain(&self.unreadable).filter(move |n| *n != id).filter_map(|n| self.all.get(n))
    }

    /// Whom the parent that asks has to wait for.
    ///
    /// Parents on a cycle of `dependsOn` that are all being deleted do not wait for each other: they are torn down as one
    /// group, which waits for everybody outside of it who depends on any of them. A parent without the mark has created
    /// nothing, and can create nothing while what it depends on is being deleted: it is in nobody's way.
    pub(super) fn blockers(&self, view: &View<'_>) -> Vec<&Parent> {
        let group = self.group(view);
        let mut found: BTreeMap<&ObjectId, &Parent> = BTreeMap::new();
        for member in &group {
            for dependent in self.naming(member) {
                let id = &dependent.this.id;
                if dependent.marked
                    && !view.passed.contains(&dependent.this)
                    && !group.contains(id)
                    && view.policy.admits(id, member)
                {
                    found.insert(id, dependent);
                }
            }
        }
        found.into_values().collect()
    }

    /// The parents that go together with the one that asks: those being deleted that it depends on, by whatever way, and
    /// that depend on it.
    fn group(&self, view: &View<'_>) -> BTreeSet<ObjectId> {
        let parent = &view.parent.id;
        let alone = BTreeSet::from([parent.clone()]);
        let counts = |p: &Parent| p.marked && p.deleting.is_some();
        if !self.get(parent).is_some_and(counts) {
            return alone;
        }
        let edge = |from: &ObjectId, to: &ObjectId| view.policy.admits(from, to);
        let below = walk(parent, |id| {
            let named = self.get(id).into_iter().flat_map(Parent::named);
            named.filter(|to| edge(id, to) && self.get(to).is_some_and(counts)).cloned().collect()
        });
        if below.len() == 1 {
            return alone;
        }
        walk(parent, |id| {
            let naming = self.by.get(id).into_iter().flatten();
            naming.filter(|from| below.contains(*from) && edge(from, id)).cloned().collect()
        })
    }

    /// Those that are torn down together with `parent`, itself included, as far as `policy` admits their edges.
    pub(super) fn together(&self, parent: &LiveRef, policy: &BlockPolicy) -> BTreeSet<ObjectId> {
        self.group(&View { parent, policy, passed: &BTreeSet::new() })
    }

    /// Whether `dependsOn` leads from one parent to another, by whatever way.
    pub(super) fn leads(&self, from: &ObjectId, to: &ObjectId, policy: &BlockPolicy) -> bool {
        let next = |id: &ObjectId| {
            let named = self.get(id).into_iter().flat_map(Parent::named);
            named.filter(|to| policy.admits(id, to)).cloned().collect()
        };
        walk(from, next).contains(to)
    }

    /// The shortest cycle of `dependsOn` that leads through `id`, from it back to it; `None` if there is none.
    pub(super) fn cycle(&self, id: &ObjectId, policy: &BlockPolicy) -> Option<Cycle> {
        let mut from: BTreeMap<&ObjectId, &ObjectId> = BTreeMap::new();
        let mut next = VecDeque::from([self.get(id)?]);
        while let Some(parent) = next.pop_front() {
            for named in parent.named().filter(|to| policy.admits(&parent.this.id, to)) {
                if named == id {
                    let mut path = vec![id.clone()];
                    let mut at = &parent.this.id;
                    while at != id {
                        path.push(at.clone());
                        at = from.get(at)?;
                    }
                    path.push(id.clone());
                    path.reverse();
                    return Some(Cycle { path });
                }
                let Some(found) = self.get(named).filter(|_| !from.contains_key(named)) else { continue };
                from.insert(&found.this.id, &parent.this.id);
                next.push_back(found);
            }
        }
        None
    }
}

/// Everything that `next` leads to from `start`, and `start`.
fn walk(start: &ObjectId, next: impl Fn(&ObjectId) -> Vec<ObjectId>) -> BTreeSet<ObjectId> {
    let mut seen = BTreeSet::from([start.clone()]);
    let mut open = vec![start.clone()];
    while let Some(id) = open.pop() {
        open.extend(next(&id).into_iter().filter(|id| seen.insert(id.clone())));
    }
    seen
}

/// Parents that depend on each other in a circle.
///
/// They are applied in no order, and torn down together.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cycle {
    /// Each depends on the next; the first is the last as well.
    pub path: Vec<ObjectId>,
}

/// Steps of a cycle that are shown; what is between is counted.
const SHOWN: usize = 10;

impl fmt::Display for Cycle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hidden = self.path.len().saturating_sub(SHOWN + 1);
        f.write_str("dependsOn leads back to itself: ")?;
        for (n, id) in self.path.iter().enumerate() {
            let last = n + 1 == self.path.len();
            if n < SHOWN || last {
                write!(f, "{}{id}", if n == 0 { "" } else { " -> " })?;
            } else if n == SHOWN {
                write!(f, " -> ({hidden} more)")?;
            }
        }
        Ok(())
    }
}
