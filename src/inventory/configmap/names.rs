//! What the stored objects of one parent are called and how they are marked.

use std::collections::BTreeMap;

use k8s_openapi::{api::core::v1::ConfigMap, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{
    head::{Head as _, RootHead, Shards},
    piece::Seen,
};
use crate::{
    inventory::codec::Sealer,
    manager::Manager,
    object::{ObjectId, ParentRef},
};

/// One of the two names that a root can have. They are used in turn, because the name of an object that is being
/// deleted can't be used again before it is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Slot {
    A,
    B,
}

impl Slot {
    pub(super) const BOTH: [Self; 2] = [Self::A, Self::B];

    pub(super) fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }
}

/// Names and marks, derived from the manager and the parent's identity.
///
/// Names are hashes, so that any parent has one within the limits. They are only how objects are found: whose they are
/// is read from their content.
#[derive(Clone, Debug)]
pub(super) struct Naming {
    pub(super) manager: Manager,
    pub(super) sealer: Sealer,
    parent: ObjectId,
    hash: String,
}

impl Naming {
    pub(super) fn new(manager: &Manager, parent: &ObjectId) -> Self {
        let digest = Sha256::new()
            .chain_update(manager.as_str())
            .chain_update([0])
            .chain_update(parent.stable_id().as_bytes())
            .finalize();
        let hash = digest.iter().take(10).map(|byte| format!("{byte:02x}")).collect();
        Self { manager: manager.clone(), sealer: Sealer::new(parent), parent: parent.clone(), hash }
    }

    /// Reads the head of a root. It has to name the parent under whose name it is stored: checksums are no signatures, and
    /// whoever may write ConfigMaps in one namespace must not speak for a parent in another.
    pub(super) fn read_root(&self, object: &ConfigMap) -> Result<RootHead, String> {
        let head = RootHead::read(object.data.as_ref().unwrap_or(&BTreeMap::new()), &self.sealer)?;
        match head.parent.id == self.parent {
            true => Ok(head),
            false => Err(format!("it says that it is the record of {}", head.parent.id)),
        }
    }

    /// What all names start with.
    pub(super) fn prefix(&self) -> String {
        format!("inventory-{}-", self.hash)
    }

    pub(super) fn root(&self, slot: Slot) -> String {
        let slot = match slot {
            Slot::A => "a",
            Slot::B => "b",
        };
        format!("{}{slot}", self.prefix())
    }

    pub(super) fn shard(&self, shards: &Shards, index: usize) -> String {
        format!("{}{}-{}-{index}", self.prefix(), shards.epoch, shards.tag)
    }

    /// Names of all shards of a root.
    pub(super) fn shards(&self, head: &RootHead) -> Vec<String> {
        let shards = head.shards.as_ref();
        shards.map_or_else(Vec::new, |shards| (0..shards.count).map(|index| self.shard(shards, index)).collect())
    }

    /// Selects all stored objects of the parent, whatever they are called.
    pub(super) fn selector(&self) -> String {
        format!("{}={}", self.manager.inventory_label(), self.hash)
    }

    /// Whether an object under one of our names carries our marks.
    pub(super) fn marks(&self, meta: &ObjectMeta) -> bool {
        let label = meta.labels.as_ref().and_then(|labels| labels.get(&self.manager.inventory_label()));
        label == Some(&self.hash) || self.guards(meta.finalizers.as_deref().unwrap_or_default())
    }

    pub(super) fn guards(&self, finalizers: &[String]) -> bool {
        finalizers.contains(&self.manager.inventory_finalizer())
    }

    /// Metadata of an object to be created; the guard is there from the first moment.
    pub(super) fn metadata(&self, name: String, parent: &ParentRef) -> ObjectMeta {
        ObjectMeta {
            name: Some(name),
            labels: Some(self.labels(parent)),
            annotations: Some(BTreeMap::from([(self.manager.inventory_annotation(), parent.id.to_string())])),
            finalizers: Some(vec![self.manager.inventory_finalizer()]),
            ..ObjectMeta::default()
        }
    }

    fn labels(&self, parent: &ParentRef) -> BTreeMap<String, String> {
        BTreeMap::from([
            (self.manager.parent_label(), parent.uid.as_str().to_owned()),
            (self.manager.inventory_label(), self.hash.clone()),
        ])
    }

    /// Metadata of a patch: conditional on what was seen, with our marks put back where they were taken off.
    pub(super) fn patch_metadata(&self, seen: &Seen, parent: &ParentRef) -> Value {
        let mut metadata = json!({
            "uid": seen.uid,
            "resourceVersion": seen.resource_version,
            "labels": self.labels(parent),
            "annotations": { self.manager.inventory_annotation(): parent.id.to_string() },
        });
        // The whole list, under the lock of the resource version. A terminating object takes no finalizers.
        if !seen.terminating && !self.guards(&seen.finalizers) {
            let guard = self.manager.inventory_finalizer();
            metadata["finalizers"] = seen.finalizers.iter().cloned().chain([guard]).collect();
        }
        metadata
    }

    /// Metadata of the patch that lets an object go.
    pub(super) fn release_metadata(&self, seen: &Seen) -> Value {
        let guard = self.manager.inventory_finalizer();
        let others: Vec<_> = seen.finalizers.iter().filter(|finalizer| **finalizer != guard).collect();
        json!({ "uid": seen.uid, "resourceVersion": seen.resource_version, "finalizers": others })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::is_dns_subdomain;

    #[test]
    fn s10_names_fit_for_every_parent_and_tell_parents_and_managers_apart() {
        let manager = |name| Manager::new(name).unwrap();
        let parent = |name: &str| ObjectId::new("example.com", "GitTrack", Some("a"), name).unwrap();
        let long = "x".repeat(253);
        let shards = Shards { epoch: 999_999_999, count: 100_000, tag: "f".repeat(12) };
        let mut seen = std::collections::BTreeSet::new();
        for (by, of) in [("a.example", "x"), ("a.example", "y:Z"), ("b.example", "x"), ("b.example", &long)] {
            let naming = Naming::new(&manager(by), &parent(of));
            for name in [naming.root(Slot::A), naming.root(Slot::B), naming.shard(&shards, 99_999)] {
                assert!(is_dns_subdomain(&name), "{name}");
                assert!(seen.insert(name));
            }
        }
    }
}
