//! Letting go of one parent and of everything that is its own, without deleting a child.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_client::api::{DynamicObject, Patch};
use kube_core::Resource;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::parents::Subject;
use crate::{
    answer::{Answer, Refusal, with_causes},
    api::{api, find_metadata, patch_metadata, patched_by},
    custodian::{
        Custodian, Error, Inner,
        finalize::Restored,
        outcome::{Outcome, Phase},
        reconcile::{carries, of_another_cluster},
        removal::Removal,
        site::{Destination, Nowhere, Site},
        target::Target,
    },
    inventory::{self, Decision, DeletionPolicy, Inventory, Loaded, Role, SaveOptions, Version},
    object::{ObjectId, ParentRef, ResourceKind, Uid},
    ownership,
};

/// How often a step starts over because somebody else wrote in between.
const ROUNDS: usize = 5;
/// How long a step of a parent goes on without getting anything done.
const PATIENCE: Duration = Duration::from_secs(5);

/// What of a parent is let go of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// The children lose their marks.
    Children,
    /// The proxies are gone as well.
    Everything,
}

/// How far a parent was let go of.
#[derive(Debug)]
pub(super) struct Loosened {
    /// What is on record of it still.
    inventory: Inventory,
    version: Option<Version>,
    /// Why the record does not say everything, if it does not.
    pub(super) unproven: Option<String>,
}

/// Why a parent is not let go of.
#[derive(Debug)]
pub(super) struct Stuck(pub(super) String);

impl From<Error> for Stuck {
    fn from(error: Error) -> Self {
        Self(with_causes(&error))
    }
}

impl<K> Custodian<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + fmt::Debug + Send + Sync + 'static,
{
    /// A parent as it lives; `None` if it is gone, or another incarnation has its name.
    pub(super) async fn typed(&self, parent: &ParentRef) -> Result<Option<K>, Stuck> {
        let (resource, id) = (parent.resource(), &parent.id);
        let api = api::<DynamicObject>(&self.inner.home.client, &resource, id.namespace());
        let object = match api.get(id.name()).await {
            Ok(object) if Uid::of(&object.metadata).as_ref() == Some(&parent.uid) => object,
            Ok(_) => return Ok(None),
            Err(error) => {
                let refusal = Refusal::about(id, &error);
                let gone = refusal.answer().names(&resource, id.name());
                return if gone { Ok(None) } else { Err(Stuck(refusal.words_for(id))) };
            }
        };
        let typed = serde_json::to_value(object).and_then(serde_json::from_value);
        typed.map(Some).map_err(|error| Stuck(format!("it is not what the operator takes it for: {error}")))
    }

    /// Where the children of a parent live; those of one that is gone are looked for at home.
    pub(super) async fn whereabouts(&self, subject: &Subject) -> Result<Destination, Stuck> {
        let parent = &subject.parent;
        let typed = match &subject.meta {
            Some(_) => self.typed(parent).await?,
            None => None,
        };
        let at = match typed {
            Some(typed) => self.destination(&typed, parent).await,
            None => self.inner.reach(parent, Target::home()).await,
        };
        at.map_err(Nowhere::into_error).map_err(Stuck::from)
    }
}

impl From<inventory::Error> for Stuck {
    fn from(error: inventory::Error) -> Self {
        Error::from(error).into()
    }
}

impl Inner {
    /// Records that the children of `subject` stay, and takes the marks off them; with `extent` everything, removes the
    /// proxies too.
    pub(super) async fn loosen_parent(
        &self,
        at: &Destination,
        subject: &Subject,
        reason: &str,
        extent: Extent,
        deadline: Instant,
    ) -> Result<Loosened, Stuck> {
        for _ in 0..ROUNDS {
            match self.loosen_once(at, subject, reason, extent, deadline).await {
                Err(Error::Inventory(inventory::Error::Conflict { .. })) => {}
                Err(error) => return Err(error.into()),
                Ok(loosened) => return loosened,
            }
        }
        Err(Stuck("its inventory is being changed by somebody else: stop the operator, and call again".into()))
    }

    async fn loosen_once(
        &self,
        at: &Destination,
        subject: &Subject,
        reason: &str,
        extent: Extent,
        deadline: Instant,
    ) -> Result<Result<Loosened, Stuck>, Error> {
        let mut loosened = match self.record_of(at, subject).await? {
            Ok(loosened) => loosened,
            Err(stuck) => return Ok(Err(stuck)),
        };
        let Loosened { inventory, version, .. } = &mut loosened;
        if let Some(hold) = of_another_cluster(inventory, &at.cluster) {
            return Ok(Err(Stuck(hold.to_string())));
        }
        if inventory.decision.as_ref().is_none_or(|d| d.children != DeletionPolicy::Keep) {
            inventory.decision = Some(Decision::new(DeletionPolicy::Keep, reason));
            self.save(inventory, version).await?;
        }
        let chosen = |role| extent == Extent::Everything || role == Role::Child;
        let only: BTreeSet<ObjectId> = inventory.entries().filter(|e| chosen(e.role)).map(|e| e.id.clone()).collect();
        if only.is_empty() {
            return Ok(Ok(loosened));
        }
        let owner = inventory.parent.clone();
        let mut removal = Removal::new(self, at, &owner, inventory, Some(&only), &BTreeMap::new()).await;
        let mut unfinished = usize::MAX;
        let (mut report, mut since) = (removal.report(), Instant::now());
        while !removal.is_over() && Instant::now() < deadline {
            removal.run(Some(deadline.min(Instant::now() + self.slice))).await;
            report = removal.report();
            if report.unfinished() < unfinished {
                (unfinished, since) = (report.unfinished(), Instant::now());
            } else if since.elapsed() > PATIENCE {
                break;
            }
        }
        // What is gone was asked of the cluster on record.
        if let Err(hold) = at.confirm().await {
            return Ok(Err(Stuck(hold.to_string())));
        }
        if removal.record(inventory, &at.fingerprints) {
            self.save(inventory, version).await?;
        }
        let first = report.blockers.iter().chain(&report.waiting).next();
        Ok(match first {
            Some(first) => Err(Stuck(format!("{} objects are not let go of: {first}", report.unfinished()))),
            None if removal.is_over() => Ok(loosened),
            None => Err(Stuck("there was no time to let go of all its objects: call again".into())),
        })
    }

    /// Saves what is on record; where there is no record, there is nothing to save to.
    async fn save(&self, inventory: &Inventory, version: &mut Option<Version>) -> Result<(), inventory::Error> {
        if let Some(before) = version.take() {
            *version = Some(self.store.save(inventory, SaveOptions::replace(before)).await?);
        }
        Ok(())
    }

    /// What is on record for a parent, found again in the cluster as far as it is missing or damaged.
    async fn record_of(&self, at: &Destination, subject: &Subject) -> Result<Result<Loosened, Stuck>, Error> {
        let parent = &subject.parent;
        let known = |inventory, version, unproven| Ok(Ok(Loosened { inventory, version, unproven }));
        match (self.store.load(parent).await?, &subject.meta) {
            (Loaded::Found(snapshot), _) => known(snapshot.inventory, Some(snapshot.version), None),
            (Loaded::Damaged { snapshot, .. }, None) => {
                let words = "its record is damaged, and the parent, which would tell where to look, is gone";
                known(snapshot.inventory, Some(snapshot.version), Some(words.into()))
            }
            (Loaded::Damaged { snapshot, damage }, Some(meta)) => {
                let mut inventory = snapshot.inventory;
                let completed = self.complete(at, parent, meta, &mut inventory, &damage).await;
                known(inventory, Some(snapshot.version), completed.err())
            }
            (Loaded::Restored { snapshot, damage, .. }, _) => {
                let unproven = (!damage.is_empty()).then(|| "its record is damaged".to_owned());
                known(snapshot.inventory, Some(snapshot.version), unproven)
            }
            (Loaded::Missing, None) => known(Inventory::new(parent.clone(), at.cluster.clone()), None, None),
            (Loaded::Missing, Some(meta)) => {
                let mut inventory = Inventory::new(parent.clone(), at.cluster.clone());
                if !carries(meta, &self.manager.applied_finalizer()) {
                    return known(inventory, None, None);
                }
                if let Err(words) = self.rediscover(at, parent, meta, &mut inventory).await {
                    return known(inventory, None, Some(format!("its record is missing: {words}")));
                }
                match self.restore(parent, &mut inventory, &mut Vec::new()).await? {
                    Restored::Stored(version) => known(inventory, Some(version), None),
                    Restored::InMemory => known(inventory, None, None),
                    Restored::ParentGone => Ok(Err(Stuck("it has just gone".into()))),
                }
            }
        }
    }

    /// The last steps for a parent of which nothing is left: its record, holds, finalizers and annotation.
    pub(super) async fn part_with(&self, subject: &Subject, loosened: Loosened) -> Result<Vec<String>, Stuck> {
        let Loosened { inventory, version, .. } = loosened;
        let parent = &subject.parent;
        let mut left = Vec::new();
        let own = inventory.parent.uid == parent.uid && subject.meta.is_some();
        let (inventory, version) = match version {
            Some(version) if !own => {
                // Of an incarnation that is gone.
                let owner = inventory.parent.clone();
                left.extend(self.finish(&owner, &inventory, &version).await?);
                (Inventory::new(parent.clone(), inventory.cluster), None)
            }
            version => (inventory, version),
        };
        if subject.meta.is_none() {
            return Ok(left);
        }
        let released = Outcome::new(Some(parent.clone()), Phase::Released);
        let outcome = self.let_go(parent, inventory, version, released).await?;
        left.extend(outcome.notes);
        // Means nothing without the record. The finalizers are off, or on again because somebody took it up.
        let (resource, nothing) = (parent.resource(), BTreeSet::new());
        let noted = [self.manager.group_kinds_annotation(), self.manager.force_annotation()];
        let cleared = self
            .clear(&self.home, &resource, &parent.id, &parent.uid, &nothing, |key| noted.iter().any(|n| n == key))
            .await;
        left.extend(cleared.err());
        Ok(left)
    }

    /// Takes the keys of the manager that `picks` picks off one incarnation of an object, and the references to `owners`.
    /// Nothing to take off, and nothing there, is success.
    pub(super) async fn clear(
        &self,
        site: &Site,
        resource: &ResourceKind,
        id: &ObjectId,
        uid: &Uid,
        owners: &BTreeSet<Uid>,
        picks: impl Fn(&str) -> bool,
    ) -> Result<(), String> {
        let words = |refusal: Refusal| format!("{id}: {}", refusal.words_for(id));
        for _ in 0..ROUNDS {
            let found = find_metadata(&site.client, resource, id).await.map_err(words)?;
            let Some(meta) = found.filter(|meta: &ObjectMeta| Uid::of(meta).as_ref() == Some(uid)) else {
                return Ok(());
            };
            let patch = ownership::clear_patch(&self.manager, owners, &picks, id, &meta);
            let patch = patch.map_err(|error| error.to_string())?;
            if patch.0.is_empty() {
                return Ok(());
            }
            match patch_metadata(&site.client, resource, id, &Patch::Json(patch), &patched_by(None)).await {
                Ok(_) => return Ok(()),
                Err(refusal) => match refusal.answer() {
                    Answer::PatchRejected | Answer::VersionMismatch | Answer::UidMismatch | Answer::NotFound { .. } => {
                    }
                    _ => return Err(words(refusal)),
                },
            }
        }
        Err(format!("{id}: somebody else keeps writing to it"))
    }
}
