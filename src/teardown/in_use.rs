//! Containers: Namespaces and definitions of kinds, whose deletion takes along what is in them.
//!
//! Decides what the content of a container means for its deletion. It reads nothing: what is in a container comes in as an
//! [`Inside`], read directly before the DELETE and again before each further one; and it knows no order: a container is
//! looked into when everything of the set that depends on it is settled.
//!
//! Content counts as follows:
//! - An object of the set that goes as well is no obstacle. If it asks to be kept, or is kept or given up, the container is
//!   kept for its sake, whatever the policy: nothing of what stays is overridden by deleting what it lives in.
//! - An object of the set that is still wanted holds the container, or keeps it by policy [`InUsePolicy::Keep`].
//! - Anything else is foreign, and the policy decides: [`InUsePolicy::Hold`] waits until it is gone, `Keep` leaves the container
//!   in the cluster, `Delete` deletes it all the same, unless a foreign mark on the content asks for it to be kept.
//! - What could not be read is no proof that there is nothing: it blocks, except under `Delete`.

use super::{
    live::Live,
    proof::{Block, Reason},
};
use crate::{inventory::InUsePolicy, object::ObjectId};

/// Most objects that a report names of what uses a container.
const NAMED: usize = 10;

/// What an object may contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Container<'a> {
    /// The objects in a Namespace.
    Namespace(&'a str),
    /// The objects of a kind that a CustomResourceDefinition defines.
    Definition,
}

impl<'a> Container<'a> {
    /// What kind of container the object is, if it is one.
    pub(crate) fn of(id: &'a ObjectId) -> Option<Self> {
        if id.is("", "Namespace") {
            Some(Self::Namespace(id.name()))
        } else {
            id.is("apiextensions.k8s.io", "CustomResourceDefinition").then_some(Self::Definition)
        }
    }
}

/// What was read of the content of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inside {
    /// Objects in it, each as it was read. There may be more: reading ends when foreign content is found.
    pub found: Vec<(ObjectId, Live)>,
    /// What could not be read, in words that name the missing rule.
    pub unread: Option<String>,
}

impl Inside {
    /// Adds what was read elsewhere of the same container.
    pub(crate) fn extend(&mut self, other: Self) {
        self.found.extend(other.found);
        self.unread = match (self.unread.take(), other.unread) {
            (Some(one), Some(two)) if !one.contains(&two) => Some(format!("{one}; {two}")),
            (one, two) => one.or(two),
        };
    }
}

/// How an object in a container stands to the removal under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stance {
    /// It goes as well.
    Goes,
    /// It is left in the cluster by policy, mark or decision, or must outlive the container.
    Kept,
    /// It is ours and still wanted.
    Wanted,
    /// It is not of the set.
    Foreign,
}

/// What the content means for the deletion of its container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing speaks against it.
    Free,
    /// It is kept, for the sake of this object.
    Keep(ObjectId),
    /// It is held.
    Hold(Block),
}

/// What the content means.
pub(super) fn judge(policy: InUsePolicy, inside: &Inside, stance: impl Fn(&ObjectId, &Live) -> Stance) -> Verdict {
    let asks = |live: &Live| live.markers.iter().any(|marker| marker.verdict.keeps());
    let mut by = Vec::new();
    for (id, live) in &inside.found {
        match stance(id, live) {
            Stance::Kept => return Verdict::Keep(id.clone()),
            Stance::Goes if asks(live) => return Verdict::Keep(id.clone()),
            Stance::Goes => {}
            Stance::Foreign if policy == InUsePolicy::Delete && !asks(live) => {}
            Stance::Foreign | Stance::Wanted => by.push(id),
        }
    }
    by.sort();
    by.dedup();
    match (by.first(), policy) {
        (Some(first), InUsePolicy::Keep) => Verdict::Keep((*first).clone()),
        (Some(_), _) => {
            let named = by.iter().take(NAMED).map(|id| (*id).clone()).collect();
            Verdict::Hold(Block::new(Reason::InUse { by: named, count: by.len() }))
        }
        (None, InUsePolicy::Delete) => Verdict::Free,
        (None, _) => match &inside.unread {
            Some(words) => Verdict::Hold(Block::said(Reason::UseUnknown, words.as_str())),
            None => Verdict::Free,
        },
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
    use proptest::prelude::*;

    use super::*;

    fn id(n: usize) -> ObjectId {
        ObjectId::new("", "ConfigMap", Some("a"), &format!("n{n:02}")).unwrap()
    }

    fn live(asks: bool) -> Live {
        let mark = ("helm.sh/resource-policy".to_owned(), "keep".to_owned());
        let annotations = asks.then(|| [mark].into_iter().collect());
        let meta = ObjectMeta { uid: Some("u".into()), annotations, ..ObjectMeta::default() };
        Live::of(&meta, None).unwrap()
    }

    fn inside(objects: &[(Stance, bool)]) -> Inside {
        let found = objects.iter().enumerate().map(|(n, (_, asks))| (id(n), live(*asks))).collect();
        Inside { found, unread: None }
    }

    fn verdict(policy: InUsePolicy, objects: &[(Stance, bool)], unread: Option<&str>) -> Verdict {
        let inside = Inside { unread: unread.map(ToOwned::to_owned), ..inside(objects) };
        judge(policy, &inside, |found, _| objects[(0..objects.len()).find(|n| id(*n) == *found).unwrap()].0)
    }

    #[test]
    fn what_was_not_read_is_not_nothing() {
        let hold = verdict(InUsePolicy::Hold, &[], Some("no rule list widgets.example.com"));
        assert!(
            matches!(&hold, Verdict::Hold(b) if b.reason == Reason::UseUnknown && b.words.contains("list widgets"))
        );
        assert!(matches!(verdict(InUsePolicy::Keep, &[], Some("x")), Verdict::Hold(_)));
        assert_eq!(verdict(InUsePolicy::Delete, &[], Some("x")), Verdict::Free);
        assert_eq!(verdict(InUsePolicy::Hold, &[(Stance::Goes, false)], None), Verdict::Free);
    }

    #[test]
    fn what_uses_it_is_named_and_counted_within_bounds() {
        let many: Vec<_> = (0..50).map(|_| (Stance::Foreign, false)).collect();
        let Verdict::Hold(block) = verdict(InUsePolicy::Hold, &many, None) else { panic!() };
        let Reason::InUse { by, count } = &block.reason else { panic!("{block}") };
        assert_eq!((by.len(), *count), (NAMED, 50));
        assert!(block.to_string().contains("ConfigMap a/n00") && block.to_string().contains("40"), "{block}");
    }

    fn any_stance() -> impl Strategy<Value = Stance> {
        prop_oneof![Just(Stance::Goes), Just(Stance::Kept), Just(Stance::Wanted), Just(Stance::Foreign)]
    }

    fn any_policy() -> impl Strategy<Value = InUsePolicy> {
        prop_oneof![Just(InUsePolicy::Hold), Just(InUsePolicy::Keep), Just(InUsePolicy::Delete)]
    }

    proptest! {
        #[test]
        fn nothing_that_is_to_stay_is_taken_along(
            policy in any_policy(),
            objects in proptest::collection::vec((any_stance(), any::<bool>()), 0..8),
            unread in any::<bool>(),
        ) {
            let verdict = verdict(policy, &objects, unread.then_some("x"));
            let any = |wanted: fn(&(Stance, bool)) -> bool| objects.iter().any(wanted);
            let ours_stays = any(|(s, asks)| *s == Stance::Kept || *s == Stance::Goes && *asks);
            let foreign = any(|(s, _)| *s == Stance::Foreign);
            if verdict == Verdict::Free {
                prop_assert!(!ours_stays && !any(|(s, _)| *s == Stance::Wanted));
                prop_assert!(!any(|(s, asks)| *s == Stance::Foreign && *asks), "a mark that asks to keep is heeded");
                prop_assert!(policy == InUsePolicy::Delete || !foreign && !unread);
            }
            prop_assert_eq!(ours_stays && !matches!(verdict, Verdict::Keep(_)), false);
        }
    }
}
