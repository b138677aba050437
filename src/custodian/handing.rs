//! Objects that change hands between two parents of one manager, without a moment in between.
//!
//! The parent that desires an object which another one has asks for it, on the object, and keeps it on its own record as
//! about to be created. The other one, once it does not desire it any more, marks it for the one that asks, if that one's
//! record agrees. Who may ask whom is the author's decision ([`HandOver`](crate::ownership::HandOver)). What is decided about
//! one object is `teardown::proof`'s to say.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_client::api::{DynamicObject, Patch};

use super::{
    Inner,
    apply::Pass,
    intent::{Intent, Manifest},
    site::Site,
};
use crate::{
    api::{api, find_metadata, patch_metadata, patched_by},
    inventory::{Inventory, Loaded, Role},
    object::{GroupKind, LiveRef, ObjectId, ParentRef, ResourceKind},
    ownership::{self, Claim, HandOver},
    teardown::Live,
};

impl Pass<'_> {
    /// Asks for an object that another parent of this manager has. Whether it is asked for by this one.
    pub(super) async fn asks_for(&self, id: &ObjectId, manifest: &Manifest, claim: &Claim, meta: &ObjectMeta) -> bool {
        let Claim::OtherParent { parent: holder, restored: false } = claim else { return false };
        let (inner, parent) = (self.inner, self.parent);
        let admitted = manifest.role == Role::Child && inner.hand_over.admits(&holder.id, &parent.id);
        if !admitted || meta.deletion_timestamp.is_some() {
            return false;
        }
        let pointer = self.site.back_pointer(parent, id);
        let Ok(patch) = ownership::ask_patch(&inner.manager, &pointer, holder, meta) else { return false };
        if patch.0.is_empty() {
            return ownership::wanted_by(&inner.manager, meta).as_ref() == Some(&parent.live());
        }
        let (resource, patch) = (&manifest.resource, Patch::Json(patch));
        patch_metadata(&self.site.client, resource, id, &patch, &patched_by(None)).await.is_ok()
    }
}

impl Inner {
    /// Which of the objects that are to go are asked for by another parent, whose record says so too.
    pub(super) async fn successors(
        &self,
        site: &Site,
        inventory: &Inventory,
        going: &BTreeSet<ObjectId>,
        mut seen: BTreeMap<ObjectId, Live>,
    ) -> BTreeMap<ObjectId, LiveRef> {
        let (parent, mut found) = (&inventory.parent, BTreeMap::new());
        if self.hand_over == HandOver::Never {
            return found;
        }
        let children = inventory.entries().filter(|e| going.contains(&e.id) && e.role == Role::Child && !e.is_let_go());
        for entry in children {
            let live = match seen.remove(&entry.id) {
                Some(live) => Some(live),
                // What was just handed over is not among the parent's own any more.
                None => match find_metadata(&site.client, &entry.resource(), &entry.id).await {
                    Ok(meta) => meta.and_then(|meta| Live::of(&meta, Some(&self.manager))),
                    Err(_) => None,
                },
            };
            // What this parent once asked by, and was given, still stands there.
            let asks = live.and_then(|live| live.wanted_by).filter(|asks| asks.id != parent.id);
            let Some(successor) = asks.map(|successor| *successor) else { continue };
            if self.hand_over.admits(&parent.id, &successor.id) && self.expects(parent, &successor, &entry.id).await {
                found.insert(entry.id.clone(), successor);
            }
        }
        found
    }

    /// Whether another parent has an object on record, as one of its own or one that it is about to have. What the object
    /// says is anybody's claim.
    async fn expects(&self, parent: &ParentRef, other: &LiveRef, id: &ObjectId) -> bool {
        let Some(resource) = self.parent_resource(parent, &other.id.group_kind()) else { return false };
        let owner = ParentRef::new(other.id.clone(), other.uid.clone(), &resource);
        match self.store.load(&owner).await {
            Ok(Loaded::Found(snapshot)) => {
                let inventory = snapshot.inventory;
                inventory.decision.is_none() && inventory.get(id).is_some_and(|entry| !entry.is_let_go())
            }
            _ => false,
        }
    }

    /// How parents of a kind are served: of the kind of `parent`, or of one that the gate knows.
    fn parent_resource(&self, parent: &ParentRef, kind: &GroupKind) -> Option<ResourceKind> {
        if parent.id.group_kind() == *kind {
            return Some(parent.resource());
        }
        self.gate.as_ref()?.resource(kind).cloned()
    }

    /// A parent among the desired objects that has not looked yet at what it was last told, and may be about to ask for
    /// what is not desired here any more.
    pub(super) async fn unaware(&self, site: &Site, parent: &ParentRef, intent: &Intent) -> Option<ObjectId> {
        if self.hand_over == HandOver::Never {
            return None;
        }
        for (id, manifest) in &intent.manifests {
            let is_parent = self.parent_resource(parent, &id.group_kind()).is_some();
            if !is_parent || !self.hand_over.admits(&parent.id, id) {
                continue;
            }
            let read = api::<DynamicObject>(&site.client, &manifest.resource, id.namespace()).get(id.name()).await;
            if read.is_ok_and(|object| observed(&object).zip(object.metadata.generation).is_some_and(|(o, g)| o < g)) {
                return Some(id.clone());
            }
        }
        None
    }
}

/// The generation that an object says its operator looked at last.
fn observed(object: &DynamicObject) -> Option<i64> {
    let status = object.data.get("status")?;
    let of = |value: &serde_json::Value| value.get("observedGeneration").and_then(serde_json::Value::as_i64);
    let conditions = status.get("conditions").and_then(|c| c.as_array()).into_iter().flatten();
    of(status).or_else(|| conditions.filter_map(of).max())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_was_observed_is_read_where_operators_say_it() {
        let of =
            |status| observed(&serde_json::from_value(json!({"metadata": {"name": "x"}, "status": status})).unwrap());
        assert_eq!(of(json!({"observedGeneration": 3, "conditions": [{"observedGeneration": 4}]})), Some(3));
        assert_eq!(of(json!({"conditions": [{"observedGeneration": 1}, {"observedGeneration": 2}, {}]})), Some(2));
        assert_eq!(of(json!({"phase": "Ready"})), None);
    }
}
