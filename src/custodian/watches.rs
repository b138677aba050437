//! How children are watched: what the author asks for, and what the cluster allows. No IO.

use std::{collections::BTreeMap, fmt};

use crate::{answer::Refusal, object::GroupKind};

/// Where a custodian watches children. One watch serves all parents.
///
/// A watch only tells when to look: whatever is not watched is asked for instead, and everything still works. What is
/// watched in fact, and why not, is told by [`Custodian::watches`](super::Custodian::watches).
///
/// # Cost
/// Watched: a list for each kind and place at the start, and no call for an object that stays as it is; a wakeup when a
/// child changes. Not watched: a GET for each child in every reconcile, and while one is waited for, GETs at growing
/// intervals of at most 5 s, of all objects together no more than about
/// [200 a second](crate::teardown::policy::QUESTIONS_A_SECOND); what changes wakes no parent, so drift is noticed at the
/// next reconcile, five minutes later at most. A right that is missing is asked for again after 2 s, then ever more
/// rarely, up to every five minutes, whatever the number of parents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Watch {
    /// Each kind everywhere at once; where that is refused, in each namespace that holds children; where that is refused
    /// too, not at all.
    #[default]
    Auto,
    /// Each kind everywhere at once, or not at all.
    Everywhere,
    /// Namespaced kinds in each namespace that holds children, or not at all there: for operators whose rights come from
    /// Roles, which spares the attempt that would be refused. Cluster-scoped kinds as with [`Auto`](Self::Auto).
    Namespaces,
    /// Nothing is watched: for operators without the rights to `list` and `watch`. An entry that somebody took out of a
    /// parent's inventory is then not missed when the parent is deleted, unless nothing is left on record.
    Off,
}

/// How objects of one kind are followed in one place.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlaceWatch {
    /// The first list is under way.
    Starting,
    /// By a watch.
    Watched,
    /// By asking, at the pace that [`Watch`] states; the watch is tried again by itself.
    Polled {
        /// Why it is not watched, in the API server's words.
        why: Refusal,
    },
}

impl fmt::Display for PlaceWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Starting => f.write_str("being listed"),
            Self::Watched => f.write_str("watched"),
            Self::Polled { why } => write!(f, "not watched ({why})"),
        }
    }
}

/// How one kind is followed.
///
/// Displays as one line, such as `ConfigMap: not watched (403 Forbidden: ...) everywhere, watched in a, b`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KindWatch {
    /// Which kind.
    pub kind: GroupKind,
    /// In the whole cluster, if that was tried.
    pub everywhere: Option<PlaceWatch>,
    /// In single namespaces, where it is not watched in the whole cluster.
    pub namespaces: BTreeMap<String, PlaceWatch>,
}

impl KindWatch {
    pub(super) fn new(kind: GroupKind) -> Self {
        Self { kind, everywhere: None, namespaces: BTreeMap::new() }
    }

    pub(super) fn add(&mut self, namespace: Option<String>, here: PlaceWatch) {
        match namespace {
            Some(namespace) => drop(self.namespaces.insert(namespace, here)),
            None => self.everywhere = Some(here),
        }
    }

    /// Whether every place in use is watched, so that nothing is polled.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        let watched = |place: &PlaceWatch| *place == PlaceWatch::Watched;
        self.everywhere.as_ref().is_some_and(watched)
            || (!self.namespaces.is_empty() && self.namespaces.values().all(watched))
    }

    /// What a parent with objects of the kind in `namespaces` should know: why they are polled because rights are missing.
    pub(super) fn note(&self, mut namespaces: impl Iterator<Item = String>) -> Option<String> {
        let missing = |place: &PlaceWatch| match place {
            PlaceWatch::Polled { why } if super::follow::is_refusal(why.answer()) => Some(why.clone()),
            _ => None,
        };
        if self.everywhere == Some(PlaceWatch::Watched) {
            return None;
        }
        let here = namespaces.find_map(|namespace| missing(self.namespaces.get(&namespace)?));
        let wide = || self.everywhere.as_ref().filter(|_| self.namespaces.is_empty()).and_then(missing);
        let why = here.or_else(wide)?;
        Some(format!("{} is not watched, so changes of its objects are noticed by asking only: {why}", self.kind))
    }
}

impl fmt::Display for KindWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ways: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for (namespace, place) in &self.namespaces {
            ways.entry(place.to_string()).or_default().push(namespace);
        }
        let wide = self.everywhere.iter().map(|place| format!("{place} everywhere"));
        let narrow = ways.iter().map(|(how, namespaces)| format!("{how} in {}", namespaces.join(", ")));
        let all: Vec<_> = wide.chain(narrow).collect();
        write!(f, "{}: {}", self.kind, all.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused() -> PlaceWatch {
        let status = serde_json::from_value::<kube_core::Status>(serde_json::json!({
            "status": "Failure", "code": 403, "reason": "Forbidden",
            "message": "configmaps is forbidden: User \"u\" cannot list resource \"configmaps\"",
        }));
        let error = kube_client::Error::Api(status.unwrap().boxed());
        PlaceWatch::Polled { why: Refusal::of(&error) }
    }

    fn maps(everywhere: Option<PlaceWatch>, namespaces: &[(&str, PlaceWatch)]) -> KindWatch {
        let mut kind = KindWatch::new(GroupKind::new("", "ConfigMap").unwrap());
        everywhere.into_iter().for_each(|place| kind.add(None, place));
        namespaces.iter().for_each(|(namespace, place)| kind.add(Some((*namespace).into()), place.clone()));
        kind
    }

    fn note(kind: &KindWatch, namespace: &str) -> Option<String> {
        kind.note([namespace.to_owned()].into_iter())
    }

    #[test]
    fn a_parent_hears_of_the_places_that_it_uses_only() {
        let kind = maps(Some(refused()), &[("a", PlaceWatch::Watched), ("b", refused())]);
        assert_eq!(note(&kind, "a"), None);
        assert!(note(&kind, "b").unwrap().contains("cannot list resource"));
        assert!(!kind.is_complete());
        assert!(kind.to_string().ends_with("in b, watched in a"), "{kind}");
        assert!(note(&maps(Some(refused()), &[]), "a").is_some(), "cluster scope, or nowhere else tried");
        assert!(maps(Some(refused()), &[("a", PlaceWatch::Watched)]).is_complete());
        assert_eq!(note(&maps(Some(PlaceWatch::Watched), &[("a", refused())]), "a"), None);
    }
}
