//! The teardown of a parent that is being deleted, slice by slice, until it is let go.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use tokio::time::Instant;

use super::{
    Inner, LOOK_AGAIN,
    forcing::{Forcing, recorded},
    outcome::{Hold, Outcome, Phase},
    reconcile::{carries, of_another_cluster, unreadable},
    removal::Removal,
    site::{Destination, Nowhere},
};
use crate::{
    finalizer::Released,
    gate::Forced,
    inventory::{self, Damage, Decision, EntryState, Inventory, Loaded, SaveOptions, Snapshot, Version},
    lock::lock,
    object::ParentRef,
};

/// After how long a parent is looked at again whose record has just learned something.
const SOON: Duration = Duration::from_millis(100);

/// A removal that is kept from one slice to the next, with the state of the record it was made for.
#[derive(Debug)]
pub(super) struct Session {
    removal: Removal,
    version: Version,
    /// Whether the whole record was known when the removal was made.
    completed: bool,
}

impl Inner {
    /// The parent as it lives, if there is something to tear down: it is being deleted, and held by us.
    pub(super) async fn being_deleted(&self, parent: &ParentRef) -> Result<Option<ObjectMeta>, super::Error> {
        let meta = self.find_parent(parent).await.map_err(|refusal| unreadable(parent, &refusal))?;
        let ours = [self.manager.finalizer(), self.manager.applied_finalizer()];
        Ok(meta.filter(|meta| meta.deletion_timestamp.is_some() && ours.iter().any(|f| carries(meta, f))))
    }

    /// One slice of the teardown of a parent that is being deleted.
    pub(super) async fn finalize(
        &self,
        at: Result<Destination, Nowhere>,
        parent: &ParentRef,
        meta: &ObjectMeta,
    ) -> Outcome {
        match self.teardown(at, parent, meta).await {
            Ok(outcome) => outcome,
            Err(error) => Outcome::failed(Some(parent.clone()), error),
        }
    }

    async fn teardown(
        &self,
        at: Result<Destination, Nowhere>,
        parent: &ParentRef,
        meta: &ObjectMeta,
    ) -> Result<Outcome, super::Error> {
        let loaded = self.store.load(parent).await?;
        let at = match at {
            Ok(at) => at,
            Err(nowhere) => return self.without_target(nowhere, parent, meta, loaded).await,
        };
        let mut notes = Vec::new();
        let loaded = match loaded {
            Loaded::Restored { snapshot, damage, .. } if snapshot.inventory.is_empty() && damage.is_empty() => {
                // Of an earlier incarnation, which is gone: the name has another UID. Of this one it says nothing.
                notes.extend(self.finish(&snapshot.inventory.parent, &snapshot.inventory, &snapshot.version).await?);
                Loaded::Missing
            }
            loaded => loaded,
        };
        let (mut inventory, version, damage) = match loaded {
            Loaded::Found(snapshot) => (snapshot.inventory, Some(snapshot.version), Unread::nothing()),
            Loaded::Damaged { snapshot, damage } => {
                if let Some(hold) = of_another_cluster(&snapshot.inventory, &at.cluster) {
                    return Ok(Outcome { damage, ..Outcome::held(parent.clone(), hold) });
                }
                let (inventory, version, unread) = self.mend(&at, parent, meta, snapshot, damage, &mut notes).await?;
                (inventory, Some(version), unread)
            }
            Loaded::Restored { recorded, .. } => return Ok(Outcome::held(parent.clone(), Hold::Restored { recorded })),
            Loaded::Missing => {
                let mut inventory = Inventory::new(parent.clone(), at.cluster.clone());
                if carries(meta, &self.manager.applied_finalizer()) {
                    match self.rediscover(&at, parent, meta, &mut inventory).await {
                        Ok(more) => notes.extend(more),
                        Err(words) => return Ok(Outcome::held(parent.clone(), Hold::InventoryMissing { words })),
                    }
                }
                if inventory.is_empty() {
                    let mut released = Outcome::new(Some(parent.clone()), Phase::Released);
                    released.notes = notes;
                    return self.let_go(parent, inventory, None, released).await;
                }
                match self.restore(parent, &mut inventory, &mut notes).await? {
                    Restored::ParentGone => return Ok(Outcome::new(Some(parent.clone()), Phase::Gone)),
                    Restored::Stored(version) => {
                        (inventory, Some(version), Unread { searched: true, ..Unread::nothing() })
                    }
                    Restored::InMemory => (inventory, None, Unread { searched: true, ..Unread::nothing() }),
                }
            }
        };
        if inventory.is_empty() {
            // It speaks of nothing. Where children would be, the parent says.
            inventory.cluster.clone_from(&at.cluster);
        }
        if let Some(hold) = of_another_cluster(&inventory, &at.cluster) {
            let held = Outcome::held(parent.clone(), hold);
            return match version {
                Some(version) => self.unless_settled(held, parent, meta, Snapshot::new(inventory, version)).await,
                None => Ok(held),
            };
        }
        let released = match self.released_by_gate(parent, meta, &inventory).await {
            Ok(released) => released,
            Err(mut blocked) => {
                blocked.notes.splice(0..0, notes);
                blocked.damage = damage.damage;
                return Ok(*blocked);
            }
        };
        let mut version = self.decide(&mut inventory, version, released).await?;
        let Forcing { forced, notes: more } = self.force(parent, meta, &mut inventory, |_| true);
        notes.extend(more);
        if let Some(before) = version.take_if(|_| !forced.is_empty()) {
            version = Some(self.store.save(&inventory, SaveOptions::replace(before)).await?);
        }
        notes.extend(recorded(&inventory));
        let mut outcome = self.slice_of(&at, parent, meta, inventory, version, damage).await?;
        outcome.forced = forced;
        outcome.notes.splice(0..0, notes);
        Ok(outcome)
    }

    /// What can be done for a parent whose target cannot be had: let it go if its record, in full, says that there is
    /// nothing to go there for.
    async fn without_target(
        &self,
        nowhere: Nowhere,
        parent: &ParentRef,
        meta: &ObjectMeta,
        loaded: Loaded,
    ) -> Result<Outcome, super::Error> {
        match (nowhere, loaded) {
            (Nowhere::Target(_), Loaded::Missing) if !carries(meta, &self.manager.applied_finalizer()) => {
                // Nothing was created, so it does not matter where.
                let empty = Inventory::new(parent.clone(), self.home.cluster_id().await?);
                self.let_go(parent, empty, None, Outcome::new(Some(parent.clone()), Phase::Released)).await
            }
            (nowhere @ Nowhere::Target(_), Loaded::Found(snapshot)) => {
                self.unless_settled(nowhere.into_outcome(parent), parent, meta, snapshot).await
            }
            (nowhere, _) => Ok(nowhere.into_outcome(parent)),
        }
    }

    /// Lets the parent go if everything on record is given up, by requests on the parent included; else it is `held`.
    async fn unless_settled(
        &self,
        mut held: Outcome,
        parent: &ParentRef,
        meta: &ObjectMeta,
        snapshot: Snapshot,
    ) -> Result<Outcome, super::Error> {
        let (mut inventory, mut version) = (snapshot.inventory, snapshot.version);
        let Forcing { forced, mut notes } = self.force(parent, meta, &mut inventory, |_| true);
        if !forced.is_empty() {
            version = self.store.save(&inventory, SaveOptions::replace(version)).await?;
        }
        notes.extend(recorded(&inventory));
        // Somebody may have emptied it; children that are there could not be found from here.
        let emptied = inventory.is_empty() && carries(meta, &self.manager.applied_finalizer());
        if emptied {
            notes.push(format!(
                "nothing is on record, but the parent carries {:?}, as after an apply: take that finalizer off if nothing \
                 is left where its children were",
                self.manager.applied_finalizer()
            ));
        }
        if is_settled(&inventory) && !emptied {
            match self.released_by_gate(parent, meta, &inventory).await {
                Ok(_) => {
                    let mut released = Outcome::new(Some(parent.clone()), Phase::Released);
                    (released.forced, released.notes) = (forced, notes);
                    return self.let_go(parent, inventory, Some(version), released).await;
                }
                Err(blocked) => held = *blocked,
            }
        }
        held.notes.extend(notes);
        held.forced = forced;
        Ok(held)
    }

    /// Completes a damaged record by what is found in the cluster, as far as that goes.
    async fn mend(
        &self,
        at: &Destination,
        parent: &ParentRef,
        meta: &ObjectMeta,
        snapshot: Snapshot,
        damage: Vec<Damage>,
        notes: &mut Vec<String>,
    ) -> Result<(Inventory, Version, Unread), inventory::Error> {
        let (mut inventory, mut version) = (snapshot.inventory.clone(), snapshot.version);
        let completed = self.complete(at, parent, meta, &mut inventory, &damage).await;
        let mut unread = Unread { damage, completed: completed.is_ok(), stored: true, searched: true };
        match completed {
            Ok(more) => notes.extend(more),
            Err(words) => notes.push(format!("the inventory is damaged, and cannot be completed: {words}")),
        }
        if inventory != snapshot.inventory {
            // As for a missing record: the one thing that a teardown creates, and where it cannot be, the record is
            // completed again by every pass.
            match self.store.save(&inventory, SaveOptions::replace(version.clone()).heal(true)).await {
                Ok(saved) => version = saved,
                Err(error @ inventory::Error::Unstorable { .. }) => {
                    notes.push(format!("what was rediscovered is removed without being stored: {error}"));
                    unread.stored = false;
                }
                Err(error) => return Err(error),
            }
        }
        Ok((inventory, version, unread))
    }

    /// Stores a record that was rediscovered while its parent is being deleted, so that nothing is deleted that is not on
    /// record. It is the one thing that a teardown creates; where the namespace admits nothing new any more, the record
    /// is kept in memory, and made again by every pass from what is left.
    pub(super) async fn restore(
        &self,
        parent: &ParentRef,
        inventory: &mut Inventory,
        notes: &mut Vec<String>,
    ) -> Result<Restored, super::Error> {
        inventory.creator.clone_from(&self.creator);
        let version = match self.store.save(inventory, SaveOptions::create()).await {
            Ok(version) => version,
            Err(inventory::Error::NamespaceTerminating { namespace, .. }) => {
                notes.push(format!(
                    "the inventory was missing and cannot be stored again, because namespace {namespace:?} is being \
                     terminated: what was rediscovered is removed without"
                ));
                return Ok(Restored::InMemory);
            }
            Err(error) => return Err(error.into()),
        };
        // Another process may have found everything gone in the meantime, and let the parent go.
        if self.find_parent(parent).await.map_err(|refusal| unreadable(parent, &refusal))?.is_none() {
            self.store.delete(parent, &version).await?;
            return Ok(Restored::ParentGone);
        }
        notes.push(format!("the inventory was missing: {} objects were found by their marks", inventory.len()));
        Ok(Restored::Stored(version))
    }

    /// Records what happens to the children, once, when the teardown starts; and dependents that are not waited for.
    async fn decide(
        &self,
        inventory: &mut Inventory,
        version: Option<Version>,
        forced: Option<Forced>,
    ) -> Result<Option<Version>, inventory::Error> {
        match (&mut inventory.decision, forced) {
            (Some(_), None) => return Ok(version),
            (Some(decision), Some(forced)) if forced.dependents.is_subset(&decision.without) => return Ok(version),
            (Some(decision), Some(forced)) => decision.without.extend(forced.dependents),
            (decision, forced) => {
                let new = Decision::new(self.children_on_delete, "the operator's policy when the teardown began");
                *decision = Some(match forced {
                    Some(forced) => new.without(forced.dependents, forced.reason.as_deref()),
                    None => new,
                });
            }
        }
        match version {
            Some(version) => Ok(Some(self.store.save(inventory, SaveOptions::replace(version)).await?)),
            // Rediscovered: there is no record to write to, and none is made while the parent is being deleted.
            None => Ok(None),
        }
    }

    async fn slice_of(
        &self,
        at: &Destination,
        parent: &ParentRef,
        meta: &ObjectMeta,
        mut inventory: Inventory,
        version: Option<Version>,
        Unread { damage, completed, stored, searched }: Unread,
    ) -> Result<Outcome, super::Error> {
        let mut outcome = Outcome::new(Some(parent.clone()), Phase::Deleting);
        let session = lock(&at.sessions).remove(&parent.uid);
        let mut removal = match session {
            Some(session) if Some(&session.version) == version.as_ref() && session.completed == completed => {
                session.removal
            }
            _ => {
                let mut removal = Removal::new(self, at, parent, &inventory, None, &BTreeMap::new()).await;
                if let Some(version) = version.clone().filter(|_| !searched) {
                    let known = inventory.len();
                    let more = self.search_behind_the_record(at, meta, &mut removal, &mut inventory).await;
                    match more {
                        Ok(notes) => outcome.notes.extend(notes),
                        // Somebody may have emptied it.
                        Err(words) if known == 0 => {
                            return Ok(Outcome::held(parent.clone(), Hold::InventoryMissing { words }));
                        }
                        Err(words) => outcome.notes.push(words),
                    }
                    if inventory.len() > known {
                        return self.found_again(&inventory, version, inventory.len() - known, outcome).await;
                    }
                }
                if !completed {
                    removal.hold_damaged(&inventory);
                }
                removal
            }
        };
        removal.run(Some(Instant::now() + self.slice)).await;

        outcome.set_removal(removal.report());
        outcome.notes.extend(at.does_without(&inventory));
        outcome.damage = damage;
        if let Err(hold) = at.confirm().await {
            // What was seen proves nothing: the removal starts over when the cluster is back.
            let held = Outcome::held(parent.clone(), hold);
            return Ok(Outcome { removal: outcome.removal, damage: outcome.damage, ..held });
        }
        if removal.is_over() && completed {
            if let Some(version) = version.clone() {
                let strays = removal.strays(parent, &(self.policy)(parent), at.hub.live(&parent.uid));
                removal.record(&mut inventory, &at.fingerprints);
                let open = self.put_on_record(at, &mut inventory, strays).await;
                if open > 0 {
                    return self.found_again(&inventory, version, open, outcome).await;
                }
            }
            return self.let_go(parent, inventory, version, outcome).await;
        }
        outcome.requeue = Some(removal.next_look());
        if removal.is_over() {
            outcome.requeue = Some(LOOK_AGAIN);
            outcome.notes.push(
                "everything that can be read is gone; the unreadable part of the inventory holds the parent".into(),
            );
        }
        if let Some(mut version) = version.filter(|_| stored) {
            // What is gone leaves the record when there is nothing else to do: an entry that stays too long costs a question
            // after a crash, a write in every slice costs all the shards.
            if !removal.is_cut_short() && removal.record(&mut inventory, &at.fingerprints) {
                version = self.store.save(&inventory, SaveOptions::replace(version)).await?;
            }
            if !removal.is_cut_short() && removal.recorded() {
                outcome.requeue = Some(SOON);
            }
            let session = Session { removal, version, completed };
            lock(&at.sessions).insert(parent.uid.clone(), session);
        }
        Ok(outcome)
    }

    /// What is to be removed beside what was on record is on record first.
    async fn found_again(
        &self,
        inventory: &Inventory,
        version: Version,
        found: usize,
        mut outcome: Outcome,
    ) -> Result<Outcome, super::Error> {
        self.store.save(inventory, SaveOptions::replace(version)).await?;
        outcome.notes.push(format!("{found} objects with the parent's marks are put on record again"));
        outcome.requeue = Some(SOON);
        Ok(outcome)
    }

    /// Everything is accounted for: the record goes, then the parent.
    ///
    /// `applied` leaves first. Were the record to go first, a crash in between would leave a parent that says it has
    /// children and no record of them; were both finalizers to go first, the record would be left behind.
    ///
    /// Where objects are held, the parent is let go before record and holds, because the rights to let it go may hang on
    /// what is held. The record, empty but for the holds, remembers them until a [`sweep`](super::Custodian::sweep)
    /// should there be a crash in between.
    pub(super) async fn let_go(
        &self,
        parent: &ParentRef,
        mut inventory: Inventory,
        version: Option<Version>,
        mut outcome: Outcome,
    ) -> Result<Outcome, super::Error> {
        let target = parent.live();
        let (resource, client) = (parent.resource(), &self.home.client);
        let mut last = None;
        match version {
            Some(version) if inventory.held.is_empty() => {
                self.applied.release(client, &resource, &target).await?;
                self.store.delete(parent, &version).await?;
            }
            Some(version) => {
                let settled: Vec<_> = inventory.entries().map(|e| e.id.clone()).collect();
                settled.iter().for_each(|id| drop(inventory.remove(id)));
                last = Some(self.store.save(&inventory, SaveOptions::replace(version)).await?);
            }
            None => {}
        }
        outcome.phase = match self.both.release(client, &resource, &target).await? {
            Released::Off(_) | Released::Gone => Phase::Released,
            Released::Recreated(_) => Phase::Gone,
        };
        let left = match last {
            Some(version) => self.finish(parent, &inventory, &version).await?,
            None => self.release_holds(parent, &inventory).await,
        };
        outcome.notes.extend(left.into_iter().map(|words| format!("still held: {words}")));
        outcome.requeue = None;
        self.gate.iter().for_each(|gate| gate.forget(&target));
        Ok(outcome)
    }
}

/// Whether nothing on record has to be looked at any more.
fn is_settled(inventory: &Inventory) -> bool {
    inventory.entries().all(|e| e.state == EntryState::Abandoned)
}

/// What a record says that cannot be read.
struct Unread {
    damage: Vec<Damage>,
    /// Whether what it may have said was found out by other means.
    completed: bool,
    /// Whether what was found out is on record.
    stored: bool,
    /// Whether the cluster was searched for the parent's children, in this pass.
    searched: bool,
}

impl Unread {
    fn nothing() -> Self {
        Self { damage: Vec::new(), completed: true, stored: true, searched: false }
    }
}

/// What became of a rediscovered record.
pub(super) enum Restored {
    Stored(Version),
    InMemory,
    ParentGone,
}
