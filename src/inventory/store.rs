//! What every inventory store promises.

use std::{any::Any, fmt, hash, sync::Arc};

use async_trait::async_trait;

use super::Inventory;
use crate::object::{ObjectId, ParentRef, StableId, Uid};

/// A store's token for the state that was loaded or saved; opaque, compared by its text only.
///
/// A store may attach what it knows of that state, so that a save need not read it again. Keep the token only as long
/// as a save may follow.
#[derive(Clone)]
pub struct Version {
    token: Arc<str>,
    state: Option<Arc<dyn Any + Send + Sync>>,
}

impl Version {
    /// A token; called by stores.
    #[must_use]
    pub fn new(token: impl AsRef<str>) -> Self {
        Self { token: token.as_ref().into(), state: None }
    }

    /// A token with what the store knows of the state; called by stores.
    #[must_use]
    pub fn with_state<T: Any + Send + Sync>(token: impl AsRef<str>, state: Arc<T>) -> Self {
        Self { token: token.as_ref().into(), state: Some(state) }
    }

    /// The token as text; read by the store that made it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.token
    }

    /// What the store attached, if it is a `T`; a store must also work without.
    #[must_use]
    pub fn state<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        Arc::clone(self.state.as_ref()?).downcast().ok()
    }
}

impl PartialEq for Version {
    fn eq(&self, other: &Self) -> bool {
        self.token == other.token
    }
}

impl Eq for Version {}

impl hash::Hash for Version {
    fn hash<H: hash::Hasher>(&self, state: &mut H) {
        self.token.hash(state);
    }
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Version").field(&self.token).finish()
    }
}

/// An inventory as it was stored at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// The record.
    pub inventory: Inventory,
    /// The token that makes the next save conditional on nothing having changed.
    pub version: Version,
    /// Whether somebody is deleting the stored objects (only the store's guard keeps them): a save with
    /// [`SaveOptions::renew`] writes a fresh record first and then lets the old one go.
    pub terminating: bool,
}

impl Snapshot {
    /// A record with its token.
    #[must_use]
    pub fn new(inventory: Inventory, version: Version) -> Self {
        Self { inventory, version, terminating: false }
    }
}

/// A part of a stored inventory that could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Damage {
    /// Where: the name of the stored object, and the entry within it where that is known.
    pub place: String,
    /// What is wrong.
    pub problem: String,
    /// The identity of the unreadable entry, where that much could be read.
    pub id: Option<ObjectId>,
    /// The hash of that identity, where that much could be read.
    pub stable_id: Option<StableId>,
}

impl Damage {
    /// Damage at `place`.
    #[must_use]
    pub fn new(place: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { place: place.into(), problem: problem.into(), id: None, stable_id: None }
    }
}

/// What was found for a parent. Only `Found` is the whole truth; no other answer may be read as "nothing to do".
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Loaded {
    /// No record under the parent's identity. This proves nothing about children.
    Missing,
    /// The whole record.
    Found(Snapshot),
    /// A record of which some parts are unreadable. Readable entries are in the snapshot; a save leaves the
    /// unreadable parts as they are, and neither a save nor a later load loses them.
    Damaged {
        /// What can be read.
        snapshot: Snapshot,
        /// What cannot; never empty.
        damage: Vec<Damage>,
    },
    /// A record of another incarnation of the parent: its UID differs, as after a restore from a backup.
    Restored {
        /// The record as stored, with the UID it was written for.
        snapshot: Snapshot,
        /// The UID it was written for.
        recorded: Uid,
        /// What cannot be read, if anything.
        damage: Vec<Damage>,
    },
}

impl Loaded {
    /// What a store found: decides between found, damaged and restored.
    #[must_use]
    pub fn of(asked: &ParentRef, snapshot: Snapshot, damage: Vec<Damage>) -> Self {
        let recorded = &snapshot.inventory.parent.uid;
        if *recorded != asked.uid {
            let recorded = recorded.clone();
            return Self::Restored { snapshot, recorded, damage };
        }
        if damage.is_empty() { Self::Found(snapshot) } else { Self::Damaged { snapshot, damage } }
    }

    /// What could be read, unless the record is missing.
    #[must_use]
    pub fn snapshot(&self) -> Option<&Snapshot> {
        match self {
            Self::Missing => None,
            Self::Found(snapshot) | Self::Damaged { snapshot, .. } | Self::Restored { snapshot, .. } => Some(snapshot),
        }
    }
}

/// Options of [`InventoryStore::save`].
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct SaveOptions {
    /// The state the save builds on: `None` creates the record and fails where one exists.
    pub expected: Option<Version>,
    /// Create stored objects where that is needed: fresh ones in place of those that are being deleted, and more of them for a
    /// record that has outgrown those it has. Where that is refused because the namespace is
    /// being terminated, the save goes into the old ones, which stay. Off by default, for teardown never creates.
    pub renew: bool,
    /// What is saved is the whole record: what is unreadable in the stored one is given up. Only for a caller that has
    /// found out by other means what it may have said. A store that cannot do it now leaves the damage as it is. Off by
    /// default.
    pub heal: bool,
}

impl SaveOptions {
    /// A save that creates the record.
    #[must_use]
    pub fn create() -> Self {
        Self::default()
    }

    /// A save on top of `version`.
    #[must_use]
    pub fn replace(version: Version) -> Self {
        Self { expected: Some(version), ..Self::default() }
    }

    /// Sets [`renew`](Self::renew).
    #[must_use]
    pub fn renew(mut self, renew: bool) -> Self {
        self.renew = renew;
        self
    }

    /// Sets [`heal`](Self::heal).
    #[must_use]
    pub fn heal(mut self, heal: bool) -> Self {
        self.heal = heal;
        self
    }
}

/// Why a store operation failed. Nothing that was stored before is lost by any of them.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A record exists where none was expected.
    #[error("the inventory of {parent} exists already: load it and save on top of its version")]
    AlreadyExists {
        /// Whose.
        parent: ObjectId,
    },
    /// Somebody else changed what the save would have overwritten.
    #[error("the inventory of {parent} was changed by another writer at {place}: load it again and redo the change")]
    Conflict {
        /// Whose.
        parent: ObjectId,
        /// Which stored object.
        place: String,
    },
    /// Creating the record was refused because the namespace it would live in is being terminated.
    #[error("the inventory of {parent} cannot be created: namespace {namespace:?} is being terminated")]
    NamespaceTerminating {
        /// Whose.
        parent: ObjectId,
        /// The namespace.
        namespace: String,
    },
    /// Something is stored under the parent's names that is not a readable record of this parent. It is left alone.
    #[error(
        "the inventory of {parent} cannot be read at {place}: {problem}; nothing was changed: restore the object from a \
         backup, or remove it (with its finalizers) to have the children searched for"
    )]
    Unreadable {
        /// Whose.
        parent: ObjectId,
        /// Which stored object.
        place: String,
        /// What was found instead of a record.
        problem: String,
    },
    /// The record cannot be written in the store's format.
    #[error("the inventory of {parent} cannot be stored: {problem}")]
    Unstorable {
        /// Whose.
        parent: ObjectId,
        /// What does not fit, and what to do.
        problem: String,
    },
    /// The store has no way to find records without knowing whose they are.
    #[error("inventory store {store} cannot list its records: name the parents instead")]
    NotEnumerable {
        /// The store's display form.
        store: String,
    },
    /// The store could not be reached, or refused to list its records.
    #[error("inventory store {store}: cannot list its records")]
    Enumeration {
        /// The store's display form.
        store: String,
        /// The store's own error.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The store could not be reached or refused the request.
    #[error("inventory store {store}: cannot {operation} the inventory of {parent}")]
    Backend {
        /// The store's display form.
        store: String,
        /// What was being done.
        operation: &'static str,
        /// Whose.
        parent: ObjectId,
        /// The store's own error.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Where inventories are kept, with conditional writes.
///
/// # Guarantees that implementers give
/// - `load` after a successful `save` sees that save or a later one (no stale reads).
/// - `save` is conditional: it fails with [`Error::Conflict`] if anything that it would overwrite was changed since
///   the state named by `expected`, and then stores nothing of its own over the other writer's change. Stores that
///   keep a record in several objects may detect conflicts per object.
/// - A crash between any two steps of `save` leaves a record that loads, in which every entry of the old state
///   that the new state keeps is present, and every entry of the new state is either present or absent, never half
///   written.
/// - `save` never shortens the record because of something it cannot read.
/// - `delete` is conditional too, and deleting a missing record is success.
///
/// The public conformance suite (feature `conformance`) checks all of this on any store.
#[async_trait]
pub trait InventoryStore: fmt::Debug + fmt::Display + Send + Sync + 'static {
    /// What is stored for `parent`, found by the parent's identity; its UID is compared with the content.
    async fn load(&self, parent: &ParentRef) -> Result<Loaded, Error>;

    /// Stores `inventory`, if the state is still the expected one; returns the new state's token.
    ///
    /// The recorded [`dependents`](super::Entry::dependents) are brought up to date by the store, raised before and
    /// lowered after the entries that cause the change; what the caller has in that field does not matter. A load
    /// that finds the whole record returns the number of entries that do depend on an entry; where something is
    /// unreadable, the recorded number if that is greater, so that the difference shows what hides.
    ///
    /// An entry saved under the identity of an unreadable one takes its place.
    async fn save(&self, inventory: &Inventory, options: SaveOptions) -> Result<Version, Error>;

    /// Removes the record of `parent`, if the state is still `expected`.
    async fn delete(&self, parent: &ParentRef, expected: &Version) -> Result<(), Error>;

    /// The parents that the store has a record of, as written in the records, in order: of parents in `namespace`, or of
    /// all. A record that cannot be read may be left out.
    ///
    /// # Errors
    /// [`Error::NotEnumerable`] unless the store implements it.
    async fn parents(&self, namespace: Option<&str>) -> Result<Vec<ParentRef>, Error> {
        let _ = namespace;
        Err(Error::NotEnumerable { store: self.to_string() })
    }
}
