//! Parents that wait for other parents, in a reconcile.
//!
//! What the gate says decides whether a pass goes on. A parent is released by it once, and the gate remembers. The decision
//! that is on record is no warrant, since others may write it: another process asks again.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_core::Resource;

use super::{
    Inner,
    outcome::{Outcome, Phase},
    reconcile::{carries, unreadable},
    site::Destination,
};
use crate::{
    gate::{Cleared, Dependency, Dependent, Forced, MayCreate, MayDelete},
    inventory::{DeletionPolicy, Inventory, Loaded, Role, Snapshot},
    object::{LiveRef, ParentRef},
    ownership::BackPointer,
};

/// What a parent depends on.
#[derive(Debug, Default)]
pub(super) struct Needs {
    dependencies: Vec<Dependency>,
    /// Whether the parent was read with the finalizer that others see it by.
    pub(super) marked: bool,
}

impl Inner {
    /// What `parent` depends on, as it was read.
    pub(super) fn needs<K>(&self, parent: &K) -> Result<Needs, super::Error>
    where
        K: Resource<DynamicType = ()> + 'static,
    {
        let dependencies = self.gate.as_ref().map(|gate| gate.dependencies(parent)).transpose()?.unwrap_or_default();
        let marked = dependencies.is_empty() || carries(parent.meta(), &self.manager.applied_finalizer());
        Ok(Needs { dependencies, marked })
    }

    /// The outcome of a pass that has to wait for what the parent depends on.
    pub(super) async fn unmet(&self, parent: &ParentRef, needs: &Needs) -> Option<Outcome> {
        let gate = self.gate.as_ref().filter(|_| !needs.dependencies.is_empty())?;
        let MayCreate::Waits(on) = gate.admits(&parent.id, &needs.dependencies).await else { return None };
        let mut outcome = Outcome::new(Some(parent.clone()), Phase::Waiting { on });
        outcome.requeue = Some(gate.pace());
        Some(self.with_cycle(outcome))
    }

    /// Takes the mark off a parent that waits for what is being deleted, and has created nothing: the other one would wait for
    /// it as well. So it is where the deletion came just between a first pass's two looks, or where a crash did.
    ///
    /// That nothing was created is proven by a record without entries and a search for children in its place; and by that
    /// record going away in the state in which it was read: whoever is about to create wrote there first, and whoever reads
    /// it later asks the gate afterwards.
    pub(super) async fn step_back(&self, at: &Destination, parent: &ParentRef) -> Result<(), super::Error> {
        let meta = self.find_parent(parent).await.map_err(|refusal| unreadable(parent, &refusal))?;
        let applied = self.manager.applied_finalizer();
        let Some(meta) = meta.filter(|meta| meta.deletion_timestamp.is_none() && carries(meta, &applied)) else {
            return Ok(());
        };
        let version = match self.store.load(parent).await? {
            Loaded::Found(Snapshot { inventory, version, .. })
                if inventory.is_empty() && inventory.held.is_empty() && inventory.decision.is_none() =>
            {
                Some(version)
            }
            Loaded::Missing => None,
            _ => return Ok(()),
        };
        let mut found = Inventory::new(parent.clone(), at.cluster.clone());
        if self.rediscover(at, parent, &meta, &mut found).await.is_err() || !found.is_empty() {
            return Ok(());
        }
        if let Some(version) = version {
            self.store.delete(parent, &version).await?;
        }
        self.applied.release(&self.home.client, &parent.resource(), &parent.live()).await?;
        Ok(())
    }

    /// Notes that the parent depends on itself, by way of others.
    pub(super) fn with_cycle(&self, mut outcome: Outcome) -> Outcome {
        let cycle = self.gate.as_ref().zip(outcome.parent.as_ref()).and_then(|(gate, parent)| gate.cycle(&parent.id));
        outcome.notes.extend(cycle.map(|cycle| format!("{cycle}; these are torn down together")));
        outcome
    }

    /// Whether the teardown may begin; the outcome of the pass if it may not.
    pub(super) async fn released_by_gate(
        &self,
        parent: &ParentRef,
        meta: &ObjectMeta,
        inventory: &Inventory,
    ) -> Result<Option<Forced>, Box<Outcome>> {
        // Where children are kept by a decision on record, as in a release, nobody loses what he depends on.
        let deletes = inventory.decision.as_ref().is_none_or(|d| d.children == DeletionPolicy::Delete);
        let Some(gate) = self.gate.as_ref().filter(|_| deletes) else { return Ok(None) };
        let this = parent.live();
        let mut passed = own(inventory);
        passed.extend(inventory.decision.iter().flat_map(|decision| gate.admitted(&decision.without)).cloned());
        let mut answer = gate.releases(&this, meta, passed.clone()).await;
        if let MayDelete::Blocked(blocked) = &answer
            && let Some(container) = self.container(parent, meta, &blocked.by).await
        {
            passed.insert(container);
            answer = gate.releases(&this, meta, passed).await;
        }
        match answer {
            MayDelete::Yes(Cleared { forced, .. }) => {
                gate.opened(&this);
                Ok(forced)
            }
            MayDelete::Blocked(blocked) => {
                let mut outcome = Outcome::new(Some(parent.clone()), Phase::Blocked(blocked));
                outcome.requeue = Some(gate.pace());
                Err(Box::new(outcome))
            }
        }
    }

    /// The one of `dependents` that contains the parent: it is on its record, as the parent's back-pointer says. The order
    /// among its objects is its own; were the parent to wait for it, they would wait for each other.
    async fn container(&self, parent: &ParentRef, meta: &ObjectMeta, dependents: &[Dependent]) -> Option<LiveRef> {
        let text = meta.annotations.as_ref()?.get(&self.manager.back_pointer_annotation())?;
        let pointer = BackPointer::decode(text).ok().filter(|pointer| *pointer.object() == parent.id)?;
        let this = pointer.parent().clone();
        dependents.iter().find(|dependent| dependent.parent == this)?;
        let resource = self.gate.as_ref()?.resource(&this.id.group_kind())?;
        let owner = ParentRef::new(this.id.clone(), this.uid.clone(), resource);
        // What the parent says of itself is anybody's claim; the record is not.
        match self.store.load(&owner).await.ok()? {
            Loaded::Found(snapshot) => {
                let entry = snapshot.inventory.get(&parent.id)?;
                (entry.uid.as_ref() == Some(&parent.uid) && !entry.is_let_go()).then_some(this)
            }
            _ => None,
        }
    }
}

/// Objects of the parent itself: that they name it means nothing to its deletion, which is theirs.
fn own(inventory: &Inventory) -> BTreeSet<LiveRef> {
    let children = inventory.entries().filter(|entry| entry.role == Role::Child && !entry.is_let_go());
    children.filter_map(|entry| Some(LiveRef::new(entry.id.clone(), entry.uid.clone()?))).collect()
}
