//! What the custodian knows of the Namespaces and definitions that are to go, for the look into them before their DELETE.

use std::collections::BTreeMap;

use super::{Inner, site::Site, target::Reach};
use crate::{
    inventory::{Entry, InUsePolicy, Inventory},
    object::{ObjectId, ParentRef, Scope},
    teardown::{Insight, Live},
};

impl Inner {
    /// What happens to a container in use. The record can be edited by others: that something in use is deleted is not for it to
    /// say.
    pub(super) fn in_use_of(&self, parent: &ParentRef, entry: &Entry) -> InUsePolicy {
        match entry.in_use {
            Some(said @ (InUsePolicy::Hold | InUsePolicy::Keep)) => said,
            _ => (self.in_use)(parent, &entry.id),
        }
    }

    /// Where to look inside Namespaces and definitions that are to go.
    pub(super) fn insight(
        &self,
        site: &Site,
        parent: &ParentRef,
        inventory: &Inventory,
        seen: &BTreeMap<ObjectId, Live>,
        chosen: impl Fn(&ObjectId) -> bool,
    ) -> Insight {
        let namespace = |e: &Entry| e.id.is("", "Namespace") && chosen(&e.id);
        if !inventory.entries().any(namespace) {
            return Insight::default();
        }
        let recorded = inventory.entries().map(|e| (e.id.group_kind(), e.resource()));
        let kinds: BTreeMap<_, _> = recorded.chain(site.hub.kinds()).collect();
        let ours = seen.iter().filter(|(id, live)| live.claim(parent, id).is_ours());
        Insight {
            kinds: kinds.into_values().filter(|kind| kind.scope == Scope::Namespaced).collect(),
            parents: (site.reach != Reach::Remote).then(|| parent.resource()),
            scan: self.scan.clone(),
            // By their marks: a UID on record can be anybody's.
            members: ours.map(|(_, live)| live.uid.clone()).collect(),
        }
    }
}
