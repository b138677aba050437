//! Finishes what a crash left of parents that are gone: empty records, and holds.
//!
//! The last steps of a teardown come after the parent itself, so no reconcile leads to them any more. Nothing is
//! finished unless its parent is proven gone; whatever else is found is reported and left alone.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use kube_core::Resource;
use serde::de::DeserializeOwned;

use super::{Custodian, Error, Inner};
use crate::{
    answer::Answer,
    api::{find_metadata, list_metadata},
    inventory::{self, Inventory, Loaded, Version},
    object::{GroupKind, LiveRef, ObjectId, ParentRef, ResourceKind, Scope, Uid},
};

/// A record that names a parent that is gone, or may be, and was left alone.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeftRecord {
    /// Whose record.
    pub parent: ParentRef,
    /// Why it was left, in words.
    pub words: String,
}

impl fmt::Display for LeftRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.parent, self.words)
    }
}

/// What a sweep came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sweep {
    /// Parents whose records were empty and are gone now, with the holds they remembered.
    pub finished: Vec<ParentRef>,
    /// Records that were left alone although their parent is, or may be, gone.
    pub left: Vec<LeftRecord>,
    /// Objects that a hold of a parent that is gone was taken off.
    pub released: Vec<ObjectId>,
    /// Objects that it could not be taken off, in words.
    pub held: Vec<String>,
}

impl<K> Custodian<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + fmt::Debug + Send + Sync + 'static,
{
    /// Finishes what a crash left of parents of kind `K` in `namespace`, or anywhere.
    ///
    /// Call it when the operator starts, and now and then, if it uses [`Builder::hold`](super::Builder::hold): a crash
    /// between the last steps of a teardown leaves an empty record, or a hold, of a parent that no reconcile is about any
    /// more, and either keeps its namespace. `held` are the objects to look at for such holds.
    ///
    /// # Guarantees
    /// A record is removed only if its parent is proven gone (NotFound by name, or another UID has the name) and it is
    /// empty but for holds. A hold is taken off only if no parent of the kind, in a list made after the look at the
    /// object, and no record has the UID it was made for. With `namespace`, parents elsewhere are not looked at where
    /// listing them all is forbidden: name only objects that no parent elsewhere holds.
    ///
    /// # Errors
    /// [`Error`] if the records or the parents could not be listed.
    pub async fn sweep(
        &self,
        namespace: Option<&str>,
        held: impl IntoIterator<Item = ObjectId>,
    ) -> Result<Sweep, Error> {
        let mut sweep = Sweep::default();
        let records = self.inner.store.parents(namespace).await?;
        let records: Vec<_> = records.into_iter().filter(|p| p.id.is(&K::group(&()), &K::kind(&()))).collect();
        for parent in &records {
            match self.inner.sweep_record(parent).await {
                Ok(true) => sweep.finished.push(parent.clone()),
                Ok(false) => {}
                Err(words) => sweep.left.push(LeftRecord { parent: parent.clone(), words }),
            }
        }
        let left = records.iter().filter(|p| !sweep.finished.contains(p));
        let left = left.map(ParentRef::live).collect();
        self.sweep_holds(namespace, held.into_iter().collect(), left, &mut sweep).await?;
        Ok(sweep)
    }

    async fn sweep_holds(
        &self,
        namespace: Option<&str>,
        ids: BTreeSet<ObjectId>,
        mut known: BTreeSet<LiveRef>,
        sweep: &mut Sweep,
    ) -> Result<(), Error> {
        let prefix = self.inner.manager.hold_prefix(&GroupKind::of::<K>());
        let mut holds: BTreeMap<ObjectId, Vec<String>> = BTreeMap::new();
        for id in ids {
            let Some(resource) = self.inner.home.served(&id.group_kind()).await else { continue };
            match find_metadata(&self.inner.home.client, &resource, &id).await {
                Ok(Some(meta)) => {
                    let ours: Vec<_> =
                        meta.finalizers.into_iter().flatten().filter(|f| f.starts_with(&prefix)).collect();
                    if !ours.is_empty() {
                        holds.insert(id, ours);
                    }
                }
                Ok(None) => {}
                Err(refusal) => sweep.held.push(format!("{id}: {}", refusal.words_for(&id))),
            }
        }
        if holds.is_empty() {
            return Ok(());
        }
        known.extend(self.parents_alive(namespace).await?);
        let needed: BTreeSet<_> = known.iter().map(|p| self.inner.manager.hold_finalizer(&p.id, &p.uid)).collect();
        for (id, finalizers) in holds {
            for finalizer in finalizers.iter().filter(|f| !needed.contains(*f)) {
                match self.inner.unhold(&id, finalizer, false).await {
                    Ok(()) => sweep.released.push(id.clone()),
                    Err(words) => sweep.held.push(words),
                }
            }
        }
        sweep.released.dedup();
        Ok(())
    }

    /// All parents of the kind: everywhere, or where that is forbidden in `namespace`.
    async fn parents_alive(&self, namespace: Option<&str>) -> Result<Vec<LiveRef>, Error> {
        // Only for the spelling of requests, in which the scope does not show.
        let resource =
            ResourceKind::new(&K::group(&()), &K::version(&()), &K::kind(&()), &K::plural(&()), Scope::Namespaced);
        let client = &self.inner.home.client;
        let listed = match (list_metadata(client, &resource, None, None).await, namespace) {
            (Err(refusal), Some(_)) if *refusal.answer() == Answer::Forbidden => {
                list_metadata(client, &resource, namespace, None).await
            }
            (listed, _) => listed,
        };
        let listed = listed.map_err(|refusal| Error::ParentUnreadable { words: refusal.to_string() })?;
        let kind = GroupKind::of::<K>();
        let parents =
            listed.iter().filter_map(|p| Some(LiveRef::new(ObjectId::from_meta(&kind, p).ok()?, Uid::of(p)?)));
        Ok(parents.collect())
    }
}

impl Inner {
    /// Finishes the record of a parent that is gone; `false` if the parent is there. An error says why it was left.
    async fn sweep_record(&self, parent: &ParentRef) -> Result<bool, String> {
        let found = self.find_parent(parent).await;
        if found.map_err(|refusal| format!("whether the parent exists is not known: {refusal}"))?.is_some() {
            return Ok(false);
        }
        match self.store.load(parent).await.map_err(|e| e.to_string())? {
            Loaded::Missing => Ok(false),
            Loaded::Found(found) if found.inventory.is_empty() => {
                let left = self.finish(parent, &found.inventory, &found.version).await.map_err(|e| e.to_string())?;
                if left.is_empty() { Ok(true) } else { Err(left.join("; ")) }
            }
            Loaded::Found(found) => {
                let first = found.inventory.entries().next().map(|e| e.id.to_string()).unwrap_or_default();
                Err(format!("its parent is gone, and {} objects are on record ({first}, ...)", found.inventory.len()))
            }
            Loaded::Damaged { .. } => Err("its parent is gone, and part of it is unreadable".into()),
            Loaded::Restored { .. } => Err("it was written anew meanwhile".into()),
        }
    }

    /// The last steps for a parent that is gone: its empty record goes, then the holds. Returns what is still held.
    ///
    /// In this order because the rights to the record may hang on what is held, as a Role does; the right to take holds off
    /// must not. Tried out before, so that the record stays, and remembers the holds, as long as they cannot be taken off.
    pub(super) async fn finish(
        &self,
        parent: &ParentRef,
        record: &Inventory,
        version: &Version,
    ) -> Result<Vec<String>, inventory::Error> {
        let left = self.rehearse_release(parent, record).await;
        if !left.is_empty() {
            return Ok(left);
        }
        self.store.delete(parent, version).await?;
        Ok(self.release_holds(parent, record).await)
    }
}
