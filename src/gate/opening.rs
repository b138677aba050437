//! How one parent that is being deleted comes to know that nothing depends on it any more.
//!
//! A pure state machine. It asks for lists and for single objects, and what it is told has to have been read in time:
//!
//! 1. A list that began after the parent was seen being deleted names everybody it has to wait for. Nobody can join
//!    later: a dependent has the mark before it reads what it depends on, and creates only if that is not being deleted.
//!    So whoever is missing from that list, or is in it without the mark, will read the parent being deleted.
//! 2. Each of them has to be proven gone, or without the mark again, by a read of its own or by another list.
//!
//! Watches may say "still there", and thereby spare reads. They never say "gone": what they show as gone is read.

use std::collections::BTreeMap;

use super::parents::{Parent, Parents, View};
use crate::object::ObjectId;

/// Up to this many dependents are asked for one by one; more are listed.
const FEW: usize = 4;

/// What is known of one parent's way: who was in it when last read. `None` until a list of the right age was made.
#[derive(Clone, Debug, Default)]
pub(super) struct Opening(Option<BTreeMap<ObjectId, Parent>>);

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    /// Tell [`Opening::listed`] what a list shows that began after the parent was seen being deleted.
    List,
    /// The same, of a list that begins now.
    ListNow,
    /// Tell [`Opening::read`] how this object lives.
    Read(ObjectId),
    /// These are in the way; nobody, if there are none.
    Done(Vec<Parent>),
}

/// What reading a dependent came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// It is not in the way any more: ask for the next step.
    Away,
    /// It is in the way as before, so the parent is blocked.
    There,
    /// It changed, and who is affected by that, only a list shows.
    Changed,
}

impl Opening {
    /// Nobody is in the way, and nobody will be.
    pub(super) fn clear() -> Self {
        Self(Some(BTreeMap::new()))
    }

    /// The next step. `hint` is what the watches show, if they can be heard.
    pub(super) fn next(&self, view: &View<'_>, hint: Option<&Parents>) -> Ask {
        let hinted = hint.map(|hint| hint.blockers(view)).unwrap_or_default();
        let seen = || hinted.iter().map(|p| (*p).clone()).collect();
        if self.0.is_none() {
            return if hinted.is_empty() { Ask::List } else { Ask::Done(seen()) };
        }
        let waiting = self.left(view);
        let Some(first) = waiting.first() else { return Ask::Done(Vec::new()) };
        if hinted.iter().any(|h| waiting.iter().any(|w| w.this == h.this)) {
            return Ask::Done(seen());
        }
        // They are said not to be in the way any more. Those that are there all the same are seen through or changed.
        let there = |w: &Parent| {
            let shown = hint.and_then(|hint| hint.get(&w.this.id));
            shown.is_some_and(|h| h.this == w.this && h.marked)
        };
        if waiting.len() > FEW || waiting.iter().any(there) { Ask::ListNow } else { Ask::Read(first.this.id.clone()) }
    }

    /// What a list showed, as asked for.
    pub(super) fn listed(&mut self, view: &View<'_>, parents: &Parents) {
        let found = parents.blockers(view).into_iter().cloned();
        self.0 = Some(found.map(|p| (p.this.id.clone(), p)).collect());
    }

    /// How the object asked for lives; `None` if it is proven gone.
    pub(super) fn read(&mut self, id: &ObjectId, found: Option<&Parent>) -> Reading {
        let Some(waiting) = &mut self.0 else { return Reading::Changed };
        let Some(expected) = waiting.get(id) else { return Reading::Away };
        match found.filter(|found| found.this == expected.this && found.marked) {
            None => {
                waiting.remove(id);
                Reading::Away
            }
            Some(found) if found.stands_as(expected) => Reading::There,
            Some(_) => Reading::Changed,
        }
    }

    /// Everybody who was in the way when last read.
    pub(super) fn left(&self, view: &View<'_>) -> Vec<Parent> {
        let waiting = self.0.iter().flat_map(BTreeMap::values);
        waiting.filter(|p| !view.passed.contains(&p.this)).cloned().collect()
    }
}
