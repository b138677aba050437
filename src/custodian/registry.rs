//! What is shared by parents with the same key, for as long as one of them uses it.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use crate::object::Uid;

/// After how long without a reconcile a parent is taken for one that does not come back: somebody took its finalizers
/// off. Longer than anything that a parent is told to wait.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(3 * super::LOOK_AGAIN.as_secs());

/// Shared things by key, each with a generation and with the parents that use it.
#[derive(Debug)]
pub(super) struct Registry<K, S>(BTreeMap<K, Slot<S>>);

#[derive(Debug)]
struct Slot<S> {
    generation: Vec<u8>,
    shared: Arc<S>,
    users: BTreeMap<Uid, Instant>,
}

impl<K, S> Default for Registry<K, S> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord, S> Registry<K, S> {
    /// What `parent` uses from now on: what is there under `key` in this generation, or what `make` makes.
    pub(super) fn enter(
        &mut self,
        key: K,
        generation: Vec<u8>,
        parent: &Uid,
        now: Instant,
        make: impl FnOnce() -> S,
    ) -> Arc<S> {
        self.0.retain(|other, slot| {
            slot.users.retain(|user, since| {
                (user != parent || *other == key) && now.saturating_duration_since(*since) < FORGOTTEN_AFTER
            });
            *other == key || !slot.users.is_empty()
        });
        match self.0.entry(key) {
            Entry::Vacant(vacant) => {
                let users = BTreeMap::from([(parent.clone(), now)]);
                Arc::clone(&vacant.insert(Slot { generation, shared: Arc::new(make()), users }).shared)
            }
            Entry::Occupied(mut occupied) => {
                let slot = occupied.get_mut();
                slot.users.insert(parent.clone(), now);
                if slot.generation != generation {
                    slot.generation = generation;
                    slot.shared = Arc::new(make());
                }
                Arc::clone(&slot.shared)
            }
        }
    }

    /// The parent uses nothing any more.
    pub(super) fn leave(&mut self, parent: &Uid) {
        self.0.retain(|_, slot| {
            slot.users.remove(parent);
            !slot.users.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ownership::testing::uid;

    fn enter(
        registry: &mut Registry<&'static str, u8>,
        key: &'static str,
        generation: &str,
        parent: &str,
        value: u8,
        now: Instant,
    ) -> u8 {
        *registry.enter(key, generation.into(), &uid(parent), now, || value)
    }

    #[test]
    fn what_is_called_alike_is_shared_and_replaced_by_another_generation() {
        let (mut all, now) = (Registry::default(), Instant::now());
        assert_eq!(enter(&mut all, "a", "1", "p", 1, now), 1);
        assert_eq!(enter(&mut all, "a", "1", "q", 2, now), 1, "shared");
        assert_eq!(enter(&mut all, "b", "1", "r", 3, now), 3, "another name");
        assert_eq!(enter(&mut all, "a", "2", "p", 4, now), 4, "rotated");
        assert_eq!(enter(&mut all, "a", "2", "q", 5, now), 4, "for everybody");
    }

    #[test]
    fn nothing_is_kept_that_nobody_uses() {
        let (mut all, now) = (Registry::default(), Instant::now());
        let shared = all.enter("a", vec![], &uid("p"), now, || 1);
        all.enter("a", vec![], &uid("q"), now, || 1);
        all.leave(&uid("p"));
        assert_eq!(all.0.len(), 1, "q uses it");
        all.leave(&uid("q"));
        assert!(all.0.is_empty());
        assert_eq!(Arc::strong_count(&shared), 1, "whoever is in the middle of something keeps it until then");
        // A parent that moves on to another target leaves the first.
        all.enter("a", vec![], &uid("p"), now, || 1);
        all.enter("b", vec![], &uid("p"), now, || 1);
        assert_eq!(all.0.keys().collect::<Vec<_>>(), [&"b"]);
    }

    #[test]
    fn parents_that_do_not_come_back_are_forgotten() {
        let (mut all, now) = (Registry::default(), Instant::now());
        enter(&mut all, "a", "", "p", 1, now);
        enter(&mut all, "b", "", "q", 2, now + FORGOTTEN_AFTER / 2);
        enter(&mut all, "c", "", "r", 3, now + FORGOTTEN_AFTER);
        assert_eq!(all.0.keys().collect::<Vec<_>>(), [&"b", &"c"]);
        // Its own next reconcile is no reason to forget what it uses.
        assert_eq!(enter(&mut all, "b", "", "q", 4, now + FORGOTTEN_AFTER * 3), 2);
    }
}
