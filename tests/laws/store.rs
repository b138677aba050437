//! A store that tells what it was asked to do.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use kube_custody::{
    inventory::{EntryState, Error, Inventory, InventoryStore, Loaded, SaveOptions, Version},
    object::{ObjectId, ParentRef},
};
use serde_json::json;

use super::history::{Entry, Id, Record, What};

/// The record as the checker reads it. Edges are stored as hashes of identities, which only the crate can make.
fn record_of(inventory: &Inventory) -> Record {
    let ids: Vec<(&ObjectId, Id)> =
        inventory.entries().map(|e| (&e.id, Id::new(e.id.group(), &e.plural, e.id.namespace(), e.id.name()))).collect();
    let entries = inventory.entries().zip(&ids).map(|(entry, (_, id))| {
        let needs = entry.edges.iter().filter_map(|edge| {
            let found = ids.iter().find(|(to, _)| to.stable_id() == edge.to);
            found.map(|(_, id)| id.clone())
        });
        let known = Entry {
            kind: entry.id.kind().into(),
            uid: entry.uid.as_ref().map(ToString::to_string),
            let_go: matches!(entry.state, EntryState::Detaching | EntryState::Abandoned)
                || entry.deletion == kube_custody::inventory::DeletionPolicy::Keep,
            needs: needs.collect(),
        };
        (id.clone(), known)
    });
    let text = json!({
        "parent": inventory.parent, "cluster": inventory.cluster, "creator": inventory.creator,
        "decision": inventory.decision, "held": inventory.held, "entries": inventory.entries().collect::<Vec<_>>(),
    });
    Record { entries: entries.collect(), text: text.to_string() }
}

/// Where a store says what it is asked to do.
pub trait Tape: fmt::Debug + Send + Sync + 'static {
    /// What the clock of the record shows.
    fn now(&self) -> Duration;

    /// Puts something about a parent's record on record.
    fn note(&self, parent: &ParentRef, what: What);

    /// Whether the operator is cut off from the cluster.
    fn is_cut(&self) -> bool;
}

/// A store that notes what is stored, and that is out of reach once its operator is cut off.
#[derive(Debug)]
pub struct RecordingStore<T> {
    pub tape: T,
    pub inner: Arc<dyn InventoryStore>,
}

impl<T: Tape> RecordingStore<T> {
    fn reach(&self, operation: &'static str, parent: &ParentRef) -> Result<(), Error> {
        if !self.tape.is_cut() {
            return Ok(());
        }
        Err(Error::Backend {
            store: self.to_string(),
            operation,
            parent: parent.id.clone(),
            source: "connection cut by the test".into(),
        })
    }

    fn end(&self, parent: &ParentRef, error: Option<&Error>) {
        let what = match error {
            None => What::Stored,
            Some(Error::Conflict { .. } | Error::AlreadyExists { .. }) => What::NotStored,
            Some(Error::NamespaceTerminating { .. }) => What::NoRoom,
            // It may be stored all the same.
            Some(_) => return,
        };
        self.tape.note(parent, what);
    }
}

impl<T> fmt::Display for RecordingStore<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "recorded {}", self.inner)
    }
}

#[async_trait]
impl<T: Tape> InventoryStore for RecordingStore<T> {
    async fn load(&self, parent: &ParentRef) -> Result<Loaded, Error> {
        self.reach("load", parent)?;
        let began = self.tape.now();
        let loaded = self.inner.load(parent).await?;
        let record = loaded.snapshot().map(|snapshot| record_of(&snapshot.inventory));
        self.tape.note(parent, What::Loaded { record, began });
        Ok(loaded)
    }

    async fn save(&self, inventory: &Inventory, options: SaveOptions) -> Result<Version, Error> {
        self.reach("save", &inventory.parent)?;
        self.tape.note(&inventory.parent, What::Storing(Some(record_of(inventory))));
        let saved = self.inner.save(inventory, options).await;
        self.end(&inventory.parent, saved.as_ref().err());
        saved
    }

    async fn delete(&self, parent: &ParentRef, expected: &Version) -> Result<(), Error> {
        self.reach("delete", parent)?;
        self.tape.note(parent, What::Storing(None));
        let deleted = self.inner.delete(parent, expected).await;
        self.end(parent, deleted.as_ref().err());
        deleted
    }
}
