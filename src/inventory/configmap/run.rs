//! Carries plans out, call by call.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::json;

use super::{
    head::{Head, RootHead, ShardHead},
    names::{Naming, Slot},
    objects::{Fault, Objects},
    piece::{self, Change, Piece, Seen},
    plan::{Act, Plan, Target},
    record::{self, Foreign, Found, Name, Record, Shard, Survey, Tree},
};
use crate::object::ParentRef;

/// How many shards are read at once.
const CONCURRENCY: usize = 16;
/// How often something that others keep changing is tried again.
const ROUNDS: usize = 5;

/// Why a plan came to an end before its time.
#[derive(Debug)]
pub(super) enum Failure {
    /// An object is not as it was seen last.
    Conflict(String),
    /// A name is taken.
    Taken(String),
    NamespaceTerminating,
    Foreign(Foreign),
    Other(Box<dyn std::error::Error + Send + Sync>),
}

fn failure(place: &str) -> impl FnOnce(Fault) -> Failure {
    let place = place.to_owned();
    move |fault| match fault {
        // What a patch is conditional on has been taken away.
        Fault::Conflict | Fault::NotFound => Failure::Conflict(place),
        Fault::AlreadyExists => Failure::Taken(place),
        Fault::NamespaceTerminating => Failure::NamespaceTerminating,
        Fault::Other(e) => Failure::Other(e),
    }
}

/// UIDs and resource versions of what is under the names of roots.
type Versions = [serde_json::Value; 2];

/// Objects that a plan has created.
#[derive(Debug, Default)]
struct Fresh {
    root: Option<Arc<Piece<RootHead>>>,
    shards: Vec<Shard>,
}

impl Fresh {
    fn tree(self, slot: Slot) -> Option<Tree> {
        Some(Tree { slot, root: self.root?, shards: self.shards })
    }
}

/// The objects of one parent.
#[derive(Debug)]
pub(super) struct Runner<'a> {
    pub(super) objects: &'a dyn Objects,
    pub(super) namespace: &'a str,
    pub(super) naming: &'a Naming,
    pub(super) parent: &'a ParentRef,
}

impl Runner<'_> {
    async fn get(&self, name: &str) -> Result<Option<ConfigMap>, Failure> {
        self.objects.get(self.namespace, name).await.map_err(failure(name))
    }

    async fn roots(&self) -> Result<[Option<ConfigMap>; 2], Failure> {
        let [a, b] = Slot::BOTH.map(|slot| self.naming.root(slot));
        let (a, b) = futures::try_join!(self.get(&a), self.get(&b))?;
        Ok([a, b])
    }

    /// What is under the names of roots.
    ///
    /// Two reads are two moments, and a record that moves in between is seen at neither name, or only where it was. So
    /// what looks as if a record were missing is read until it looks the same twice.
    pub(super) async fn survey(&self) -> Result<(Survey, Versions), Failure> {
        let mut last = None;
        for _ in 0..ROUNDS {
            let roots = self.roots().await?;
            let versions = versions(&roots);
            let survey = record::survey(self.naming, roots).map_err(Failure::Foreign)?;
            if survey.is_whole() || last.as_ref() == Some(&versions) {
                return Ok((survey, versions));
            }
            last = Some(versions);
        }
        Err(Failure::Conflict(self.naming.root(Slot::A)))
    }

    /// Reads the whole record.
    pub(super) async fn load(&self) -> Result<Option<Found>, Failure> {
        for _ in 0..ROUNDS {
            let (survey, before) = self.survey().await?;
            let names = survey.shards(self.naming);
            let expected = names.len();
            let get = async |name: String| self.get(&name).await.map(|object| object.map(|object| (name, object)));
            let shards: BTreeMap<_, _> = stream::iter(names)
                .map(get)
                .buffer_unordered(CONCURRENCY)
                .try_filter_map(|found| futures::future::ready(Ok(found)))
                .try_collect()
                .await?;
            // Another writer may have moved the record while its shards were being read.
            if shards.len() == expected || versions(&self.roots().await?) == before {
                return Ok(record::assemble(survey, shards, self.naming));
            }
        }
        Err(Failure::Conflict(self.naming.root(Slot::A)))
    }

    /// Carries out a plan for a new record.
    pub(super) async fn create_record(&self, plan: Plan) -> Result<Record, Failure> {
        let place = self.naming.root(Slot::A);
        let fresh = self.carry_out(plan.acts, None).await?;
        let tree = plan.new_root.and_then(|slot| fresh.tree(slot));
        tree.map(Record::new).ok_or(Failure::Conflict(place))
    }

    /// Carries out a plan that builds on `record`, which is kept up to date even if that fails.
    pub(super) async fn change_record(&self, plan: Plan, record: &mut Record) -> Result<(), Failure> {
        for name in &plan.first {
            self.expel(name).await?;
        }
        let fresh = self.carry_out(plan.acts, Some(record)).await?;
        if let Some(tree) = plan.new_root.and_then(|slot| fresh.tree(slot)) {
            let (damaged, hidden) = (record.damaged, std::mem::take(&mut record.hidden));
            *record = match plan.heals {
                true => Record::new(tree),
                false => Record { damaged, hidden, ..Record::new(tree) },
            };
        }
        self.retire(plan.retire, record).await;
        Ok(())
    }

    async fn carry_out(&self, acts: Vec<Act>, mut record: Option<&mut Record>) -> Result<Fresh, Failure> {
        let mut fresh = Fresh::default();
        for act in acts {
            match act {
                Act::Probe(object) => {
                    let name = object.metadata.name.clone().unwrap_or_default();
                    self.objects.create(self.namespace, &object, true).await.map_err(failure(&name))?;
                }
                Act::Create(Target::NewShard(_), object) => {
                    let piece = self.read::<ShardHead>(&self.create(object).await?)?;
                    fresh.shards.push(Shard { name: piece.seen.name.clone(), piece: Some(piece) });
                }
                Act::Create(_, object) => fresh.root = Some(self.read::<RootHead>(&self.create(object).await?)?),
                Act::Patch(target, change) => {
                    if let Some(record) = record.as_deref_mut() {
                        self.patch(target, &change, record).await?;
                    }
                }
            }
        }
        Ok(fresh)
    }

    async fn create(&self, object: ConfigMap) -> Result<ConfigMap, Failure> {
        let name = object.metadata.name.clone().unwrap_or_default();
        match self.objects.create(self.namespace, &object, false).await {
            Err(Fault::AlreadyExists) => match self.get(&name).await? {
                // The answer to our own request was lost.
                Some(stored) if piece::same_content(&stored, &object) => Ok(stored),
                _ => Err(Failure::Taken(name)),
            },
            answer => answer.map_err(failure(&name)),
        }
    }

    async fn patch(&self, target: Target, change: &Change, record: &mut Record) -> Result<(), Failure> {
        let send = async |seen: &Seen| {
            let patch = change.patch(self.naming.patch_metadata(seen, self.parent));
            self.objects.patch(self.namespace, &seen.name, &patch).await.map_err(failure(&seen.name))
        };
        match target {
            Target::Shard(index) => {
                let piece = record.tree.shards.get_mut(index).and_then(|shard| shard.piece.as_mut());
                if let Some(piece) = piece {
                    *piece = self.read(&send(&piece.seen).await?)?;
                }
            }
            Target::Rival => {
                if let Some(rival) = &mut record.rival {
                    rival.tree.root = self.read(&send(&rival.tree.root.seen).await?)?;
                }
            }
            _ => record.tree.root = self.read(&send(&record.tree.root.seen).await?)?,
        }
        Ok(())
    }

    /// What the API server says that it stored; a mutating webhook may have had a say.
    fn read<H: Head>(&self, stored: &ConfigMap) -> Result<Arc<Piece<H>>, Failure> {
        let head = H::read(stored.data.as_ref().unwrap_or(&BTreeMap::new()), &self.naming.sealer);
        let head = head.map_err(|_| Failure::Conflict(stored.metadata.name.clone().unwrap_or_default()))?;
        Ok(Arc::new(piece::read(stored, head, None, self.naming).piece))
    }

    /// Removes what a save left behind. What can't be removed now is found again by the next load.
    async fn retire(&self, names: Vec<String>, record: &mut Record) {
        let superseded = record.rival.as_ref().is_some_and(|rival| rival.tree.root.head.superseded_by.is_some());
        if superseded {
            record.rival = None;
        }
        record.spent.clear();
        for name in names {
            if let Err(failure) = self.expel(&name).await {
                tracing::debug!(%name, ?failure, "a replaced inventory object could not be removed yet");
                record.spent.push(name);
            }
        }
        if record.rival.is_none() && record.other != Name::Taken || superseded {
            record.other = if record.spent.is_empty() { Name::Free } else { Name::Spent };
        }
    }

    /// Removes an object that is no longer needed, if it still is what it was.
    async fn expel(&self, name: &str) -> Result<(), Failure> {
        for _ in 0..ROUNDS {
            let Some(object) = self.get(name).await? else { return Ok(()) };
            if !self.naming.marks(&object.metadata) || !self.is_spent(name, &object) {
                return Ok(());
            }
            let seen = Seen::of(&object.metadata, self.naming);
            let outcome = async {
                match self.condemn(&seen).await? {
                    Some(seen) => self.release(&seen, None).await,
                    None => Ok(()),
                }
            };
            match outcome.await {
                Err(Failure::Conflict(_)) => {}
                outcome => return outcome,
            }
        }
        Err(Failure::Conflict(name.to_owned()))
    }

    /// Names of roots are used again, so a root says itself that it is no longer needed.
    fn is_spent(&self, name: &str, object: &ConfigMap) -> bool {
        if Slot::BOTH.iter().all(|slot| self.naming.root(*slot) != name) {
            return true;
        }
        let head = RootHead::read(object.data.as_ref().unwrap_or(&BTreeMap::new()), &self.naming.sealer);
        head.is_ok_and(|head| head.superseded_by.is_some())
    }

    /// Deletes an object that our guard keeps; `None` if nothing kept it.
    async fn condemn(&self, seen: &Seen) -> Result<Option<Seen>, Failure> {
        if seen.terminating {
            return Ok(Some(seen.clone()));
        }
        match self.objects.delete(self.namespace, seen).await {
            Ok(object) => Ok(object.map(|object| Seen::of(&object.metadata, self.naming))),
            Err(Fault::NotFound) => Ok(None),
            Err(fault) => Err(failure(&seen.name)(fault)),
        }
    }

    /// Takes our guard off, and writes `last` into an object that others may still hold.
    async fn release(&self, seen: &Seen, last: Option<Change>) -> Result<(), Failure> {
        if !self.naming.guards(&seen.finalizers) {
            return Ok(());
        }
        let patch = last.unwrap_or_default().patch(self.naming.release_metadata(seen));
        match self.objects.patch(self.namespace, &seen.name, &patch).await {
            Ok(_) | Err(Fault::NotFound) => Ok(()),
            Err(fault) => Err(failure(&seen.name)(fault)),
        }
    }

    /// Removes a whole record.
    ///
    /// First everything is deleted while our guards keep it, under the locks of what was read: from then on no other
    /// writer's save can succeed, and until then nothing is lost if one did. Only then the guards are taken off, the
    /// root's last, whose head says since the beginning that this is under way.
    pub(super) async fn remove(&self, mut record: Record) -> Result<(), Failure> {
        let head_change =
            |head: &RootHead| Change::head(head, &self.naming.sealer).map_err(|e| Failure::Other(Box::new(e)));
        let rival = record.rival.iter().map(|rival| &rival.tree);
        let trees = rival.chain([&record.tree]);
        let shards = trees.clone().flat_map(|tree| &tree.shards).filter_map(|shard| Some(&shard.piece.as_ref()?.held));
        let held = shards.chain(trees.map(|tree| &tree.root.held));
        let entries = held.map(|held| held.checks.len()).sum::<usize>().max(usize::from(record.damaged));
        let root = record.tree.root.head.clone();
        let deleting = RootHead { deleting: Some(root.deleting.unwrap_or(entries)), ..root.clone() };
        if deleting != root && (!record.tree.shards.is_empty() || record.rival.is_some()) {
            let change = head_change(&deleting)?;
            let patch = change.patch(self.naming.patch_metadata(&record.tree.root.seen, self.parent));
            match self.objects.patch(self.namespace, &record.tree.root.seen.name, &patch).await {
                Ok(stored) => record.tree.root = self.read(&stored)?,
                // The root goes last.
                Err(Fault::NotFound) => return Ok(()),
                Err(fault) => return Err(failure(&record.tree.root.seen.name)(fault)),
            }
        }
        let mut condemned = Vec::new();
        for seen in record.seen() {
            condemned.extend(self.condemn(seen).await?);
        }
        for name in &record.spent {
            self.expel(name).await?;
        }
        let known: BTreeSet<_> = record.seen().map(|seen| seen.name.clone()).collect();
        // Shards that crashed saves have left: no root names them.
        let debris = self.objects.list(Some(self.namespace), &self.naming.selector()).await.map_err(failure("list"))?;
        for name in debris.into_iter().filter_map(|meta| meta.name) {
            if name.starts_with(&self.naming.prefix()) && !known.contains(&name) {
                self.expel(&name).await?;
            }
        }
        let roots = [&record.tree].into_iter().chain(record.rival.as_ref().map(|rival| &rival.tree));
        let heads: BTreeMap<_, _> = roots.map(|tree| (tree.root.seen.name.clone(), &tree.root.head)).collect();
        for seen in condemned {
            let last = heads.get(&seen.name).map(|head| RootHead { deleting: deleting.deleting, ..(*head).clone() });
            let last = last.map(|head| head_change(&head)).transpose()?;
            self.release(&seen, last).await?;
        }
        Ok(())
    }
}

fn versions(roots: &[Option<ConfigMap>; 2]) -> Versions {
    [0, 1].map(|index: usize| {
        let meta = roots.get(index).and_then(|root| root.as_ref()).map(|root| &root.metadata);
        json!(meta.map(|meta| (&meta.uid, &meta.resource_version)))
    })
}
