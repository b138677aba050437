//! Inventories in memory: the reference semantics of [`InventoryStore`].

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard},
};

use async_trait::async_trait;

use super::{
    Damage, Error, Inventory, InventoryStore, Loaded, SaveOptions, Snapshot, Version,
    dependents::{self, Counts},
};
use crate::{
    lock::lock,
    object::{ObjectId, ParentRef},
};

/// A store in memory, for tests and as the yardstick for other stores.
///
/// Deterministic; clones share their content. It can play the misfortunes of a real store: see
/// [`damage`](Self::damage), [`terminate`](Self::terminate), [`refuse_creation`](Self::refuse_creation) and
/// [`vanish`](Self::vanish).
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    records: BTreeMap<ObjectId, Record>,
    writes: u64,
    refusing: bool,
}

#[derive(Debug)]
struct Record {
    inventory: Inventory,
    version: u64,
    unreadable: BTreeMap<ObjectId, Damage>,
    hidden: Counts,
    terminating: bool,
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere cannot leave a record half changed: every change is one assignment.
        lock(&self.state)
    }

    /// Makes the entry of `id` unreadable, as a flipped byte would; `false` if there is none.
    pub fn damage(&self, parent: &ObjectId, id: &ObjectId) -> bool {
        let mut state = self.state();
        let Some(record) = state.records.get_mut(parent) else { return false };
        let recorded = dependents::to_record(&record.inventory, &record.hidden);
        if record.inventory.remove(id).is_none() {
            return false;
        }
        record.hidden = dependents::hidden(&recorded, &record.inventory.count_dependents());
        let mut damage = Damage::new("memory", "made unreadable by a test");
        damage.id = Some(id.clone());
        damage.stable_id = Some(id.stable_id());
        record.unreadable.insert(id.clone(), damage);
        true
    }

    /// Has the record deleted by somebody, with only the store's guard to keep it; `false` if there is none.
    pub fn terminate(&self, parent: &ObjectId) -> bool {
        self.state().records.get_mut(parent).map(|record| record.terminating = true).is_some()
    }

    /// Takes the record away by force; `false` if there is none.
    pub fn vanish(&self, parent: &ObjectId) -> bool {
        self.state().records.remove(parent).is_some()
    }

    /// Refuses to create anything from now on, as in a namespace that is being terminated, or no longer.
    pub fn refuse_creation(&self, refuse: bool) {
        self.state().refusing = refuse;
    }

    /// How many saves and deletes have changed something.
    #[must_use]
    pub fn writes(&self) -> u64 {
        self.state().writes
    }
}

impl fmt::Display for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("memory")
    }
}

fn token(version: u64) -> Version {
    Version::new(version.to_string())
}

#[async_trait]
impl InventoryStore for MemoryStore {
    async fn load(&self, parent: &ParentRef) -> Result<Loaded, Error> {
        let state = self.state();
        let Some(record) = state.records.get(&parent.id) else { return Ok(Loaded::Missing) };
        let mut snapshot = Snapshot::new(record.inventory.clone(), token(record.version));
        snapshot.terminating = record.terminating;
        dependents::report(&mut snapshot.inventory, &record.hidden);
        Ok(Loaded::of(parent, snapshot, record.unreadable.values().cloned().collect()))
    }

    async fn save(&self, inventory: &Inventory, options: SaveOptions) -> Result<Version, Error> {
        let parent = &inventory.parent;
        let state = &mut *self.state();
        let refusing = state.refusing;
        let current = state.records.get_mut(&parent.id);
        let conflict = || Error::Conflict { parent: parent.id.clone(), place: "memory".into() };
        let record = match (current, &options.expected) {
            (Some(_), None) => return Err(Error::AlreadyExists { parent: parent.id.clone() }),
            (Some(record), Some(expected)) if token(record.version) == *expected => record,
            (_, Some(_)) => return Err(conflict()),
            (None, None) if refusing => {
                let namespace = parent.id.namespace().unwrap_or("").to_owned();
                return Err(Error::NamespaceTerminating { parent: parent.id.clone(), namespace });
            }
            (None, None) => {
                state.writes += 1;
                let record = Record {
                    inventory: inventory.clone(),
                    version: state.writes,
                    unreadable: BTreeMap::new(),
                    hidden: Counts::new(),
                    terminating: false,
                };
                state.records.insert(parent.id.clone(), record);
                return Ok(token(state.writes));
            }
        };
        record.unreadable.retain(|id, _| !options.heal && inventory.get(id).is_none());
        if record.unreadable.is_empty() {
            record.hidden.clear();
        }
        record.inventory = inventory.clone();
        record.terminating &= !options.renew || refusing;
        state.writes += 1;
        record.version = state.writes;
        Ok(token(state.writes))
    }

    async fn delete(&self, parent: &ParentRef, expected: &Version) -> Result<(), Error> {
        let state = &mut *self.state();
        match state.records.get(&parent.id) {
            None => Ok(()),
            Some(record) if token(record.version) == *expected => {
                state.records.remove(&parent.id);
                state.writes += 1;
                Ok(())
            }
            Some(_) => Err(Error::Conflict { parent: parent.id.clone(), place: "memory".into() }),
        }
    }

    async fn parents(&self, namespace: Option<&str>) -> Result<Vec<ParentRef>, Error> {
        let state = self.state();
        let there = |record: &&Record| namespace.is_none_or(|n| record.inventory.parent.id.namespace() == Some(n));
        Ok(state.records.values().filter(there).map(|record| record.inventory.parent.clone()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::testing::{id, inventory, parent};

    async fn created(length: usize) -> (MemoryStore, ParentRef, Version) {
        let (store, parent) = (MemoryStore::new(), parent("a", "1"));
        let version = store.save(&inventory(&parent, length), SaveOptions::create()).await.unwrap();
        (store, parent, version)
    }

    #[tokio::test]
    async fn conforms() {
        crate::inventory::conformance::all(&MemoryStore::new(), &|name| parent(name, "1")).await;
    }

    #[tokio::test]
    async fn s09_an_unreadable_entry_is_named_and_what_it_needs_shows_it() {
        let (store, parent, version) = created(3).await;
        assert!(store.damage(&parent.id, &id("n2")));
        let Loaded::Damaged { snapshot, damage } = store.load(&parent).await.unwrap() else { panic!() };
        assert_eq!(damage[0].id, Some(id("n2")));
        assert_eq!(snapshot.inventory.len(), 2);
        assert_eq!(snapshot.inventory.get(&id("n1")).unwrap().dependents, 1);
        // A save of what was read forgets neither, and an entry saved again takes the place of the unreadable one.
        let version = store.save(&snapshot.inventory, SaveOptions::replace(version)).await.unwrap();
        assert!(matches!(store.load(&parent).await.unwrap(), Loaded::Damaged { .. }));
        store.save(&inventory(&parent, 3), SaveOptions::replace(version)).await.unwrap();
        assert!(matches!(store.load(&parent).await.unwrap(), Loaded::Found(_)));
    }

    #[tokio::test]
    async fn s09_a_record_that_was_completed_by_other_means_is_whole_again() {
        let (store, parent, version) = created(3).await;
        store.damage(&parent.id, &id("n2"));
        store.save(&inventory(&parent, 2), SaveOptions::replace(version).heal(true)).await.unwrap();
        let Loaded::Found(snapshot) = store.load(&parent).await.unwrap() else { panic!() };
        assert_eq!(snapshot.inventory.get(&id("n1")).unwrap().dependents, 0);
        assert_eq!(store.parents(parent.id.namespace()).await.unwrap(), store.parents(None).await.unwrap());
        assert_eq!(store.parents(None).await.unwrap(), [parent]);
        assert_eq!(store.parents(Some("elsewhere")).await.unwrap(), []);
    }

    #[tokio::test]
    async fn c08_a_terminating_record_is_renewed_unless_creation_is_refused() {
        let (store, parent, version) = created(1).await;
        store.terminate(&parent.id);
        store.refuse_creation(true);
        let renew = |version| SaveOptions::replace(version).renew(true);
        let version = store.save(&inventory(&parent, 2), renew(version)).await.unwrap();
        let Loaded::Found(snapshot) = store.load(&parent).await.unwrap() else { panic!() };
        assert!(snapshot.terminating && snapshot.inventory.len() == 2);
        store.refuse_creation(false);
        store.save(&inventory(&parent, 2), renew(version)).await.unwrap();
        let Loaded::Found(snapshot) = store.load(&parent).await.unwrap() else { panic!() };
        assert!(!snapshot.terminating);
    }
}
