//! A request on a parent no longer to wait for dependents that it names, as far as the author admits it.

use std::{collections::BTreeSet, fmt};

use crate::{
    force::{self, Allowed, Refused, Request},
    manager::Manager,
    object::LiveRef,
};

/// What of a request was followed: dependents that are not waited for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Forced {
    /// Exactly these incarnations. They may still exist.
    pub dependents: BTreeSet<LiveRef>,
    /// Why, in the words of whoever asked.
    pub reason: Option<String>,
}

/// What of a request is not followed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unfollowed {
    /// It cannot be read.
    Unreadable(force::Error),
    /// It was written for another parent, or the author does not admit it.
    Refused(Vec<Refused>),
}

impl fmt::Display for Unfollowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(error) => error.fmt(f),
            Self::Refused(refused) => {
                f.write_str(&refused.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
            }
        }
    }
}

/// What the annotation of `parent` comes to.
pub(super) fn judge(
    manager: &Manager,
    allowed: &Allowed,
    parent: &LiveRef,
    annotation: Option<&str>,
) -> (Forced, Option<Unfollowed>) {
    let request = match annotation.map(Request::parse) {
        None => return (Forced::default(), None),
        Some(Err(error)) => return (Forced::default(), Some(Unfollowed::Unreadable(error))),
        Some(Ok(request)) => request,
    };
    let admitted = allowed.admit(manager, &parent.uid, &request);
    let dependents = admitted.dependents.into_iter().map(|named| LiveRef::new(named.object, named.uid)).collect();
    // What else is asked for is for others to judge.
    let concern = |refused: &Refused| matches!(refused, Refused::OtherParent { .. } | Refused::Dependent { .. });
    let refused: Vec<_> = admitted.refused.into_iter().filter(concern).collect();
    let unfollowed = (!refused.is_empty()).then_some(Unfollowed::Refused(refused));
    (Forced { dependents, reason: admitted.reason }, unfollowed)
}
