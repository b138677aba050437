//! Parents, then the operator, then the definitions: each only when nothing is left of what comes before it.

use std::{collections::BTreeMap, fmt, time::Duration};

use futures::{FutureExt, StreamExt, stream};
use kube_client::api::{DynamicObject, ListParams};
use kube_core::Resource;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::{
    AT_ONCE, Breadth, Left, Run, Stage, Uninstalled,
    drain::waits_for,
    parents::{Subject, is_held, other_custodians},
    release::Stuck,
};
use crate::{
    answer::Answer,
    api::{api, delete, find_metadata, metadata_api},
    custodian::{Error, Phase},
    discovery::{Crd, Resolution},
    graph::Rules,
    object::{LiveRef, ObjectId, ParentRef, ResourceKind, Scope, Uid},
    teardown::{self, Teardown, policy},
};

/// How soon the parents are looked at again at the latest.
const AGAIN: Duration = Duration::from_secs(1);

impl<K> Run<'_, K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + fmt::Debug + Send + Sync + 'static,
{
    pub(super) async fn tear_down(&self) -> Result<Uninstalled, Error> {
        let mut done = Uninstalled::default();
        let clean = self.tear_parents_down(&mut done).await?;
        if clean && self.remove_operator(&mut done).await && self.options.definitions {
            self.remove_definitions(&mut done).await;
        }
        let roster = self.inner.roster(&self.kind).await?;
        done.unseen.extend(roster.unlisted());
        let scan = self.inner.scan(&self.kind, Breadth::Everything).await;
        let mut known = self.known(&roster, &scan);
        // Nothing is done with as long as its parent or its record is there.
        let there = roster.subjects.iter().map(|t| &t.parent).chain(&roster.free);
        known.staying = there.map(|parent| (parent.uid.clone(), parent.id.clone())).collect();
        known.done.retain(|uid, _| !known.staying.contains_key(uid));
        self.clear_all(&known, &scan, &mut done).await;
        self.free_records(&known, &scan, &mut done).await;
        self.look_again(&known, &mut done).await;
        Ok(done)
    }

    /// Deletes the parents and does what their finalizers wait for, until none is left or the time is over. Returns
    /// whether none is left.
    async fn tear_parents_down(&self, done: &mut Uninstalled) -> Result<bool, Error> {
        let mut seen: BTreeMap<ParentRef, String> = BTreeMap::new();
        loop {
            let roster = self.inner.roster(&self.kind).await?;
            let mut subjects = roster.subjects;
            if self.options.unclaimed {
                subjects.extend(roster.free.into_iter().map(|parent| Subject { parent, meta: None }));
            }
            let steps =
                subjects.iter().map(|subject| async move { (subject, self.tear_one_down(subject).await) }.boxed());
            let steps: Vec<_> = steps.collect();
            let mut ended = stream::iter(steps).buffer_unordered(AT_ONCE);
            let (mut left, mut again) = (BTreeMap::new(), false);
            while let Some((subject, end)) = ended.next().await {
                match end {
                    Ok(End::Gone) => {}
                    Ok(End::Later(words)) => {
                        again = true;
                        left.insert(subject.parent.clone(), words);
                    }
                    Ok(End::Stays(words)) | Err(words) => drop(left.insert(subject.parent.clone(), words)),
                }
            }
            drop(ended);
            let gone = seen.keys().filter(|parent| !left.contains_key(*parent)).cloned();
            done.parents.extend(gone);
            done.parents.extend(subjects.iter().map(|t| &t.parent).filter(|p| !left.contains_key(*p)).cloned());
            if !again || Instant::now() >= self.deadline {
                done.parents.sort();
                done.parents.dedup();
                let clean = left.is_empty();
                done.left.extend(left.into_iter().map(|(parent, words)| Left::new(Stage::Parents, &parent.id, words)));
                return Ok(clean);
            }
            seen = left;
            tokio::time::sleep_until(self.deadline.min(Instant::now() + AGAIN)).await;
        }
    }

    async fn tear_one_down(&self, subject: &Subject) -> Result<End, String> {
        let (inner, parent) = (self.inner, &subject.parent);
        let resource = parent.resource();
        let words = |refusal: crate::answer::Refusal| refusal.words_for(&parent.id);
        let found = inner.find_parent(parent).await.map_err(words)?;
        let Some(meta) = found else {
            return match self.has_record(parent).await? {
                false => Ok(End::Gone),
                true => Ok(End::Stays(
                    "it is gone, and its record is not: somebody took its finalizers off by force, and its children are \
                     left; a release takes the marks off them, and the record away"
                        .into(),
                )),
            };
        };
        if meta.deletion_timestamp.is_none() {
            let others: Vec<_> = other_custodians(&inner.manager, &meta).collect();
            if !others.is_empty() {
                let others = others.join(", ");
                return Ok(End::Stays(format!(
                    "another manager has custody of it too ({others}), and would tear its own children down: release it instead"
                )));
            }
            match delete(&inner.home.client, &resource, &parent.id, &meta).await {
                Ok(()) => {}
                Err(refusal) => match refusal.answer() {
                    Answer::NotFound { .. } | Answer::UidMismatch | Answer::VersionMismatch => {
                        return Ok(End::Later("somebody else is writing to it".into()));
                    }
                    _ => return Err(words(refusal)),
                },
            }
        } else if !is_held(&inner.manager, &meta) {
            let finalizers = meta.finalizers.unwrap_or_default().join(", ");
            return Ok(End::Later(format!("it is kept by finalizers of others: {finalizers}")));
        }
        let typed = self.custodian.typed(parent).await.map_err(|Stuck(words)| words)?;
        let Some(typed) = typed else { return Ok(End::Later("it has just gone".into())) };
        let outcome = self.custodian.finalize(&typed, parent).await;
        Ok(match outcome.phase {
            // Whether it is gone as well shows the next look.
            Phase::Released | Phase::Gone => End::Later("it is let go of".into()),
            Phase::Held(hold) => End::Stays(hold.to_string()),
            Phase::Failed => End::Later(outcome.error.map(|e| e.to_string()).unwrap_or_default()),
            _ => End::Later(waits_for(&outcome)),
        })
    }

    async fn has_record(&self, parent: &ParentRef) -> Result<bool, String> {
        let loaded = self.inner.store.load(parent).await.map_err(|error| error.to_string())?;
        let Some(snapshot) = loaded.snapshot() else { return Ok(false) };
        if snapshot.inventory.parent.uid != parent.uid || !snapshot.inventory.is_empty() {
            return Ok(true);
        }
        // A crash left it between the last steps.
        let left = self.inner.finish(parent, &snapshot.inventory, &snapshot.version).await;
        Ok(!left.map_err(|error| error.to_string())?.is_empty())
    }

    /// Deletes the objects that were named, as they are found. Returns whether none is left.
    async fn remove_operator(&self, done: &mut Uninstalled) -> bool {
        let site = &self.inner.home;
        let (mut objects, mut manifests) = (Vec::new(), Vec::new());
        let before = done.left.len();
        for id in &self.options.operator {
            let Some(resource) = site.served(&id.group_kind()).await else {
                done.left.push(Left::new(Stage::Operator, id, "its kind is not served"));
                continue;
            };
            match find_metadata(&site.client, &resource, id).await {
                Ok(None) => {}
                Ok(Some(meta)) => {
                    objects.extend(Uid::of(&meta).map(|uid| LiveRef::new(id.clone(), uid)));
                    // For the rules, which need no Secret's content.
                    if !id.is("", "Secret") {
                        let read = api::<DynamicObject>(&site.client, &resource, id.namespace()).get(id.name()).await;
                        manifests.extend(read.ok());
                    }
                }
                Err(refusal) => done.left.push(Left::new(Stage::Operator, id, refusal.words_for(id))),
            }
        }
        let plan = Teardown::new(objects).rules(Rules::standard()).manifests(manifests).plan();
        let rest = self.deadline.saturating_duration_since(Instant::now()).max(AGAIN);
        let report = match plan {
            Ok(plan) => match plan.run(&site.client).timeout(rest).await {
                Ok(report) => report,
                Err(teardown::Error::Incomplete { report }) => *report,
                Err(error) => return self.no_plan(&error, done),
            },
            Err(error) => return self.no_plan(&error, done),
        };
        done.deleted.extend(report.gone.into_iter().map(|(id, _)| id));
        let kept = report.kept.iter().map(|k| (&k.id, format!("it is kept: {}", k.markers.join(", "))));
        let open = report.blockers.iter().chain(&report.waiting).map(|b| (&b.id, b.to_string()));
        done.left.extend(kept.chain(open).map(|(id, words)| Left::new(Stage::Operator, id, words)));
        done.left.len() == before
    }

    fn no_plan(&self, error: &teardown::Error, done: &mut Uninstalled) -> bool {
        let words = error.to_string();
        done.left.extend(self.options.operator.iter().map(|id| Left::new(Stage::Operator, id, words.clone())));
        false
    }

    /// Deletes the definitions of which no object is left.
    async fn remove_definitions(&self, done: &mut Uninstalled) {
        let proxies = self.inner.rulebook.proxies.iter().flat_map(|p| [p.cluster(), p.namespaced()]);
        for kind in [&self.kind].into_iter().chain(proxies) {
            let Some(id) = policy::definition_of(&kind.plural, &kind.group) else { continue };
            match self.remove_definition(kind, &id).await {
                Ok(true) => done.deleted.push(id),
                Ok(false) => {}
                Err(words) => done.left.push(Left::new(Stage::Definitions, &id, words)),
            }
        }
    }

    /// Whether the definition was deleted; `false` if there was none.
    async fn remove_definition(&self, kind: &ResourceKind, id: &ObjectId) -> Result<bool, String> {
        let site = &self.inner.home;
        let definitions = ResourceKind::new(id.group(), "v1", id.kind(), "customresourcedefinitions", Scope::Cluster);
        let meta = match site.resolver.crd_of(kind).await {
            Crd::NotFound => return Ok(false),
            Crd::Unknown { reason } | Crd::Forbidden { reason } => return Err(reason),
            Crd::Present(meta) => meta,
        };
        if meta.deletion_timestamp.is_none() {
            let Resolution::Served(kind) = site.resolver.refresh(&kind.group_kind()).await else {
                return Err("whether anything of its kind is left cannot be told: it is not served".into());
            };
            let one = metadata_api(&site.client, &kind, None).list_metadata(&ListParams::default().limit(1)).await;
            let one = one.map_err(|error| format!("whether anything of its kind is left cannot be told: {error}"))?;
            if let Some(first) =
                one.items.first().and_then(|o| ObjectId::from_meta(&kind.group_kind(), &o.metadata).ok())
            {
                return Err(format!("it is in use: {first} is left, for one"));
            }
            let deleted = delete(&site.client, &definitions, id, &meta).await;
            deleted.map_err(|refusal| refusal.words_for(id))?;
        }
        while Instant::now() < self.deadline {
            match site.resolver.crd_of(kind).await {
                Crd::NotFound => return Ok(true),
                _ => tokio::time::sleep(AGAIN / 5).await,
            }
        }
        Err("it is being deleted".into())
    }
}

/// How one parent stands.
enum End {
    Gone,
    /// Time may help.
    Later(String),
    /// Somebody has to decide.
    Stays(String),
}
