//! The record of everything a parent has, or may have, in the cluster.
//!
//! This module defines what is recorded and what a store has to promise. It does no IO and makes no
//! decision about deletion. The rule behind it: whatever may exist in the cluster on a parent's behalf is
//! in its inventory *before* it is created, and stays there until it is proven gone, detached by policy or
//! abandoned by an explicit decision. A missing inventory proves nothing.

mod codec;
pub mod configmap;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod dependents;
mod memory;
mod shards;
mod store;
#[cfg(test)]
pub(crate) mod testing;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use serde::{Deserialize, Serialize};

pub use self::configmap::ConfigMapStore;
pub use self::memory::MemoryStore;
pub use self::store::{Damage, Error, InventoryStore, Loaded, SaveOptions, Snapshot, Version};
use crate::object::{GroupKind, LiveRef, ObjectId, ParentRef, ResourceKind, Scope, StableId, Uid};

/// What is known of an entry's object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum EntryState {
    /// About to be created; it may or may not exist. Only a live back-pointer makes it ours.
    #[default]
    Intended,
    /// Seen live with our back-pointer; the UID is known.
    Recorded,
    /// Left in the cluster, or about to be: our marks are being, or were, taken off. On record as long as something that
    /// it needs, such as its Namespace, is on record as well, so that this is left too.
    Detaching,
    /// Given up by an explicit decision: neither deleted nor waited for. On record as long as the parent, so that nothing
    /// takes it up again.
    Abandoned,
}

/// What happens to an object when it is dropped from the desired set or its parent goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum DeletionPolicy {
    /// Deleted, in order.
    #[default]
    Delete,
    /// Left in the cluster without our marks. Spreads to what the object needs to live.
    Keep,
}

/// What happens to a Namespace or a CustomResourceDefinition whose turn to be deleted has come while something that is not of
/// the set still uses it: content of a Namespace, objects of the defined kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum InUsePolicy {
    /// It waits until nothing else uses it, and the report says what does.
    #[default]
    Hold,
    /// It is left in the cluster without our marks.
    Keep,
    /// It is deleted all the same, and what uses it goes with it. Only the operator's author may say so, never what
    /// stands in the cluster.
    Delete,
}

/// How an object came into the inventory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Origin {
    /// We created it.
    #[default]
    Created,
    /// It existed and was adopted; kept at the end unless the author says otherwise.
    Adopted,
}

/// What an entry is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Role {
    /// Part of the desired set.
    #[default]
    Child,
    /// A proxy owner, which stands in for the parent in one namespace or in cluster scope.
    Proxy,
}

/// How strong a dependency is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Requirement {
    /// Declared: never given up.
    Required {
        /// Who declared it: an annotation key, or `api`.
        declared_by: String,
    },
    /// Inferred by a rule: given up where it would close a cycle or deadlock, always on record.
    Preferred {
        /// The rule's name.
        rule: String,
        /// The rule's rank: lower ranks are given up first.
        rank: u16,
        /// What the rule saw, in words for a person.
        evidence: String,
    },
}

/// "This entry depends on `to`": applied after it, deleted before it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Edge {
    /// The identity depended on, by hash; it need not be in the inventory (then it is external).
    pub to: StableId,
    /// How strong, and why.
    pub requirement: Requirement,
}

impl Edge {
    /// An edge to `to`.
    #[must_use]
    pub fn new(to: StableId, requirement: Requirement) -> Self {
        Self { to, requirement }
    }
}

/// What an admitted [request to force](crate::force) asks for on one object, with the words of whoever asked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForcedBy {
    /// Finalizers to strip of the recorded incarnation once it is being deleted, each with the reason given.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    finalizers: BTreeMap<String, String>,
    /// Why it was given up, if it was by request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    abandoned: Option<String>,
}

impl ForcedBy {
    /// Whether this finalizer is to be stripped.
    #[must_use]
    pub fn strips(&self, finalizer: &str) -> bool {
        self.finalizers.contains_key(finalizer)
    }

    /// The finalizers to strip, each with the reason given.
    pub fn stripped(&self) -> impl Iterator<Item = (&str, &str)> + '_ {
        self.finalizers.iter().map(|(finalizer, reason)| (finalizer.as_str(), reason.as_str()))
    }

    /// Adds a finalizer to strip.
    pub fn strip(&mut self, finalizer: impl Into<String>, reason: Option<&str>) {
        self.finalizers.insert(finalizer.into(), reason.unwrap_or_default().to_owned());
    }

    /// Says why the object is given up.
    pub fn abandon(&mut self, reason: Option<&str>) {
        self.abandoned = Some(reason.unwrap_or_default().to_owned());
    }

    /// Why the object was given up, if that was by request.
    #[must_use]
    pub fn abandoned(&self) -> Option<&str> {
        self.abandoned.as_deref()
    }
}

/// One object in the inventory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Entry {
    /// Which object.
    pub id: ObjectId,
    /// A version of its kind that was served when the entry was written; a hint.
    pub version: String,
    /// The resource name of its kind.
    pub plural: String,
    /// Whether a CustomResourceDefinition was seen to define the kind. Only then does the absence of that definition
    /// prove the object gone: kinds that are built in or served by an aggregated API have none to begin with.
    pub defined_by_crd: bool,
    /// Which incarnation, once seen live with our back-pointer.
    pub uid: Option<Uid>,
    /// What is known of it.
    pub state: EntryState,
    /// What happens at the end.
    pub deletion: DeletionPolicy,
    /// What its manifest says should happen at the end while something else uses it; of Namespaces and
    /// CustomResourceDefinitions only. That it is deleted all the same is never taken from here.
    pub in_use: Option<InUsePolicy>,
    /// What is forced on it.
    pub forced: ForcedBy,
    /// How it came.
    pub origin: Origin,
    /// What it is for.
    pub role: Role,
    /// What it depends on.
    pub edges: BTreeSet<Edge>,
    /// How many entries depend on it, as last stored: raised before such an entry is stored, lowered after it
    /// is gone. More than can be found means that part of the record is unreadable.
    pub dependents: u32,
    /// How often an incarnation with our back-pointer and a new UID was met.
    pub recreations: u32,
}

impl Entry {
    /// An entry for an object about to be created.
    #[must_use]
    pub fn intended(id: ObjectId, resource: &ResourceKind) -> Self {
        Self {
            id,
            version: resource.version.clone(),
            plural: resource.plural.clone(),
            defined_by_crd: false,
            uid: None,
            state: EntryState::Intended,
            deletion: DeletionPolicy::Delete,
            in_use: None,
            forced: ForcedBy::default(),
            origin: Origin::Created,
            role: Role::Child,
            edges: BTreeSet::new(),
            dependents: 0,
            recreations: 0,
        }
    }

    /// How requests for the object were spelled when the entry was written.
    #[must_use]
    pub fn resource(&self) -> ResourceKind {
        ResourceKind::new(self.id.group(), &self.version, self.id.kind(), &self.plural, self.id.scope())
    }

    /// Whether the object was given up or left in the cluster: it is not the parent's any more.
    #[must_use]
    pub fn is_let_go(&self) -> bool {
        matches!(self.state, EntryState::Detaching | EntryState::Abandoned)
    }

    /// Where the object lives.
    #[must_use]
    pub fn scope(&self) -> Scope {
        self.id.scope()
    }
}

/// The id of a cluster: the UID of its namespace `kube-system`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[allow(clippy::exhaustive_structs, reason = "a UID, and nothing else ever")]
pub struct ClusterId(pub Uid);

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// What to do with the children of a parent that is being deleted; recorded when the teardown starts, so that a
/// later change of configuration does not change a deletion under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Decision {
    /// `Keep` leaves all children in the cluster, without our marks.
    pub children: DeletionPolicy,
    /// Why, in words for a person.
    pub reason: String,
    /// Parents that depended on this one, and that were not waited for because a request said so. They may have been left
    /// without what they need.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub without: BTreeSet<LiveRef>,
}

impl Decision {
    /// A decision with its reason.
    #[must_use]
    pub fn new(children: DeletionPolicy, reason: impl Into<String>) -> Self {
        Self { children, reason: reason.into(), without: BTreeSet::new() }
    }

    /// The decision not to wait for `dependents`, as was asked for because of `reason`.
    #[must_use]
    pub fn without(mut self, dependents: BTreeSet<LiveRef>, reason: Option<&str>) -> Self {
        self.without = dependents;
        self.reason.push_str("; not waiting for dependents was asked for");
        self.reason.extend(reason.into_iter().flat_map(|reason| [": ", reason]));
        self
    }
}

/// Everything one parent has, or may have, in one cluster.
///
/// Entries are unique by identity and iterate in the order of [`ObjectId`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Inventory {
    /// Whose inventory. The UID is content: a parent restored from a backup has another.
    pub parent: ParentRef,
    /// The cluster the entries live in.
    pub cluster: ClusterId,
    /// The identity (ServiceAccount or user) that created the children, where known.
    pub creator: Option<String>,
    /// The teardown decision, once made.
    pub decision: Option<Decision>,
    /// Foreign objects that carry this parent's hold finalizer because cleanup needs them.
    pub held: BTreeSet<ObjectId>,
    entries: BTreeMap<ObjectId, Entry>,
}

impl Inventory {
    /// An empty inventory.
    #[must_use]
    pub fn new(parent: ParentRef, cluster: ClusterId) -> Self {
        Self { parent, cluster, creator: None, decision: None, held: BTreeSet::new(), entries: BTreeMap::new() }
    }

    /// The entry of `id`.
    #[must_use]
    pub fn get(&self, id: &ObjectId) -> Option<&Entry> {
        self.entries.get(id)
    }

    /// The entry of `id`, to change. Its identity must stay.
    pub fn get_mut(&mut self, id: &ObjectId) -> Option<&mut Entry> {
        self.entries.get_mut(id)
    }

    /// Adds or replaces an entry; returns the one replaced.
    pub fn insert(&mut self, entry: Entry) -> Option<Entry> {
        self.entries.insert(entry.id.clone(), entry)
    }

    /// Takes an entry out. Call it only for what is proven gone, detached or abandoned.
    pub fn remove(&mut self, id: &ObjectId) -> Option<Entry> {
        self.entries.remove(id)
    }

    /// All entries, in order of identity.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = &Entry> + '_ {
        self.entries.values()
    }

    /// All entries, in order of identity, to change. Identities must stay.
    pub fn entries_mut(&mut self) -> impl ExactSizeIterator<Item = &mut Entry> + '_ {
        self.entries.values_mut()
    }

    /// Where the chosen entries are: the namespaces of each kind, none of them for a cluster-scoped kind.
    pub(crate) fn places(&self, chosen: impl Fn(&Entry) -> bool) -> BTreeMap<GroupKind, BTreeSet<String>> {
        let mut places: BTreeMap<GroupKind, BTreeSet<String>> = BTreeMap::new();
        for entry in self.entries().filter(|e| chosen(e)) {
            let namespaces = places.entry(entry.id.group_kind()).or_default();
            namespaces.extend(entry.id.namespace().map(ToOwned::to_owned));
        }
        places
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// How many entries depend on each identity, by the edges in this record.
    #[must_use]
    pub fn count_dependents(&self) -> BTreeMap<StableId, u32> {
        let mut counts = BTreeMap::new();
        for edge in self.entries.values().flat_map(|e| &e.edges) {
            *counts.entry(edge.to).or_insert(0) += 1;
        }
        counts
    }
}
