//! Brings the desired objects into the cluster, dependencies first.
//!
//! Creation is always POST: an apply cannot tell a create from an adoption. What exists is judged by its back-pointer
//! before it is touched, and written by server-side apply with its UID, which can neither create nor hit another
//! incarnation.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::{StreamExt, stream::FuturesUnordered};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube_client::{
    Api,
    api::{DynamicObject, Patch, PatchParams, PostParams},
};
use tokio::time::Instant;

use super::{
    Adoption, Inner, fields,
    intent::{Intent, Manifest},
    outcome::{Problem, Unapplied},
    site::Destination,
    target::Reach,
};
use crate::{
    answer::{Answer, Refusal},
    api::{api, find_metadata, get_metadata, patch_metadata, patched_by},
    discovery::Resolution,
    inventory::{DeletionPolicy, Entry, Origin, Role},
    manager::Manager,
    object::{LiveRef, ObjectId, ParentRef, ResourceKind, Uid},
    ownership::{self, BackPointer, Claim, LiveOwner, ReferenceOptions},
    teardown::{Live, Sequencer},
};

/// How often one object is looked at in one pass while somebody else writes to it.
const ROUNDS: usize = 5;
/// After this many rounds a busy writer no longer starves the apply: it goes with the UID alone.
const ROUNDS_WITH_RESOURCE_VERSION: usize = 3;
/// How long a CustomResourceDefinition is waited for in one pass.
const ESTABLISHED_WITHIN: Duration = Duration::from_secs(10);

/// What an apply pass came to.
#[derive(Debug, Default)]
pub(super) struct Applied {
    /// Objects that are applied, as they live.
    pub(super) live: BTreeMap<ObjectId, Uid>,
    /// Objects that are not.
    pub(super) unapplied: Vec<Unapplied>,
    /// Objects that may be adopted, once that is on record.
    pub(super) adoptions: BTreeMap<ObjectId, Uid>,
    /// Objects that we wrote, and whose marks were changed on the way.
    pub(super) unmarked: BTreeMap<ObjectId, Uid>,
    /// Objects that were given up or left in the cluster earlier, and may be taken up again, once that is on record.
    pub(super) renewed: BTreeSet<ObjectId>,
    /// Objects that were intended in this pass and turned out to be somebody else's before anything was created.
    pub(super) never_ours: BTreeSet<ObjectId>,
    /// Namespaces in which nothing can be created, because they are being terminated.
    pub(super) closing: BTreeSet<String>,
    /// Children that were there before, were gone, and have been created again.
    pub(super) recreated: BTreeSet<ObjectId>,
}

impl Applied {
    /// The applied objects.
    pub(super) fn refs(&self) -> Vec<LiveRef> {
        self.live.iter().map(|(id, uid)| LiveRef::new(id.clone(), uid.clone())).collect()
    }
}

/// One apply pass of one parent.
pub(super) struct Pass<'a> {
    pub(super) inner: &'a Inner,
    /// Where the children live.
    pub(super) site: &'a Destination,
    pub(super) parent: &'a ParentRef,
    pub(super) intent: &'a Intent,
    /// What the watches show of the parent's objects; a hint.
    pub(super) seen: &'a BTreeMap<ObjectId, Live>,
    /// Whether creating is over for this pass.
    pub(super) closed: AtomicBool,
}

enum Failure {
    Problem(Problem),
    Adopt(Uid),
    NotOurs(Problem),
    /// Created by us, and changed on its way so that nothing shows it.
    Mutated(Uid, Problem),
    /// Somebody changed it between our look and our write: look again.
    Raced,
    /// It was given up or left in the cluster earlier, and can be taken up again once that is on record.
    Renew,
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        Self::Problem(problem)
    }
}

impl Pass<'_> {
    /// Applies everything that can be applied now.
    pub(super) async fn run(&self) -> Applied {
        let graph = Arc::clone(&self.intent.graph);
        let mut sequencer = Sequencer::application(Arc::clone(&graph));
        let mut applied = Applied::default();
        let mut metas: BTreeMap<ObjectId, ObjectMeta> = BTreeMap::new();
        let mut failed = BTreeSet::new();
        let mut in_flight = FuturesUnordered::new();
        loop {
            while in_flight.len() < self.inner.concurrency {
                let Some(node) = sequencer.ready() else { break };
                let id = graph.id(node);
                let Some(manifest) = self.intent.manifests.get(id) else {
                    sequencer.settle(node);
                    continue;
                };
                let externals: Vec<_> = graph.external(node).iter().filter_map(|e| e.id.clone()).collect();
                let owner = manifest.owner.as_ref().and_then(|owner| {
                    let resource = self.intent.manifests.get(owner)?.resource.clone();
                    Some((resource, metas.get(owner)?.clone()))
                });
                in_flight.push(async move { (node, self.one(id, manifest, owner, externals).await) });
            }
            let Some((node, result)) = in_flight.next().await else { break };
            let id = graph.id(node);
            match result {
                Ok(meta) => {
                    let is_proxy = self.is_proxy(id);
                    if let Some(uid) = Uid::of(&meta) {
                        let before = self.intent.inventory.get(id).and_then(|e| e.uid.as_ref());
                        if !is_proxy && before.is_some_and(|before| *before != uid) {
                            applied.recreated.insert(id.clone());
                        }
                        applied.live.insert(id.clone(), uid);
                    }
                    if is_proxy {
                        metas.insert(id.clone(), meta);
                    }
                    sequencer.settle(node);
                }
                Err(failure) => {
                    let problem = match failure {
                        Failure::Problem(problem) => problem,
                        Failure::Adopt(uid) => {
                            applied.adoptions.insert(id.clone(), uid);
                            Problem::Adopting
                        }
                        Failure::Mutated(uid, problem) => {
                            applied.unmarked.insert(id.clone(), uid);
                            problem
                        }
                        Failure::Renew => {
                            applied.renewed.insert(id.clone());
                            Problem::Renewing
                        }
                        Failure::Raced => Problem::NotReady { words: "somebody else is writing to it".into() },
                        Failure::NotOurs(problem) => {
                            if self.intent.fresh.contains(id) {
                                applied.never_ours.insert(id.clone());
                            }
                            problem
                        }
                    };
                    match &problem {
                        Problem::NamespaceTerminating => applied.closing.extend(id.namespace().map(ToOwned::to_owned)),
                        Problem::BeingDeleted if id.is("", "Namespace") => {
                            applied.closing.insert(id.name().to_owned());
                        }
                        Problem::NotServed { .. } if self.is_proxy(id) => self.site.suspect_proxies(id.scope()),
                        _ => {}
                    }
                    failed.insert(node);
                    applied.unapplied.push(Unapplied::new(id.clone(), problem));
                }
            }
        }
        for node in graph.nodes().filter(|n| !sequencer.is_settled(*n) && !failed.contains(n)) {
            let on = sequencer.waits_for(node).next().unwrap_or(node);
            let problem = if graph.id(node).namespace().is_some_and(|n| applied.closing.contains(n)) {
                Problem::NamespaceTerminating
            } else {
                Problem::Waits { on: graph.id(on).clone() }
            };
            applied.unapplied.push(Unapplied::new(graph.id(node).clone(), problem));
        }
        applied.unapplied.sort_by(|a, b| a.id.cmp(&b.id));
        applied
    }

    fn is_proxy(&self, id: &ObjectId) -> bool {
        self.intent.manifests.get(id).is_some_and(|m| m.role == Role::Proxy)
    }

    async fn one(
        &self,
        id: &ObjectId,
        manifest: &Manifest,
        owner: Option<(ResourceKind, ObjectMeta)>,
        externals: Vec<ObjectId>,
    ) -> Result<ObjectMeta, Failure> {
        let entry = self.intent.inventory.get(id);
        if entry.is_some_and(Entry::is_let_go) {
            return self.renew(id, manifest).await;
        }
        let uid = entry.and_then(|e| e.uid.clone());
        let body = self.body(id, manifest, owner)?;
        if let Some(live) = self.seen.get(id).filter(|l| !l.is_terminating() && uid.as_ref() == Some(&l.uid))
            && self.site.fingerprints.is_current(&live.uid, &body, &live.resource_version)
            && manifest.role == Role::Child
        {
            return Ok(ObjectMeta { uid: Some(live.uid.to_string()), ..ObjectMeta::default() });
        }
        let meta = match uid {
            Some(_) => self.examine(id, manifest, entry, &body, true).await?,
            None => {
                for external in externals {
                    self.await_external(external).await?;
                }
                self.create(id, manifest, entry, &body).await?
            }
        };
        self.await_ready(id, manifest).await?;
        Ok(meta)
    }

    /// The manifest with our marks, and with the owner reference it is to carry.
    fn body(
        &self,
        id: &ObjectId,
        manifest: &Manifest,
        owner: Option<(ResourceKind, ObjectMeta)>,
    ) -> Result<DynamicObject, Problem> {
        let refused = |error: ownership::Error| Problem::Refused { words: error.to_string() };
        let mut body = manifest.object.clone();
        ownership::mark(&self.inner.manager, &self.site.back_pointer(self.parent, id), &mut body.metadata)
            .map_err(refused)?;
        let entry = self.intent.inventory.get(id).filter(|e| e.deletion == DeletionPolicy::Keep);
        if let Some(Entry { origin, .. }) = entry {
            let why = if *origin == Origin::Adopted { "adopted" } else { "kept" };
            let annotations = body.metadata.annotations.get_or_insert_default();
            annotations.insert(self.inner.manager.retain_annotation(), why.to_owned());
        }
        if let Some((resource, meta)) = owner {
            let owner = LiveOwner::read(&resource, &meta).map_err(refused)?;
            let reference = owner.reference(id, ReferenceOptions::default()).map_err(refused)?;
            body.metadata.owner_references = Some(vec![reference]);
        }
        if manifest.role == Role::Proxy && self.inner.guards_proxy(self.parent, id) {
            body.metadata.finalizers = Some(vec![self.inner.manager.proxy_finalizer()]);
        }
        Ok(body)
    }

    fn api(&self, id: &ObjectId, resource: &ResourceKind) -> Api<DynamicObject> {
        api(&self.site.client, resource, id.namespace())
    }

    /// POSTs the object. A name that is taken is looked at: it may be our own, by an answer that was lost.
    async fn create(
        &self,
        id: &ObjectId,
        manifest: &Manifest,
        entry: Option<&Entry>,
        body: &DynamicObject,
    ) -> Result<ObjectMeta, Failure> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Problem::DoorClosed.into());
        }
        let params =
            PostParams { field_manager: Some(self.inner.manager.field_manager().to_owned()), ..PostParams::default() };
        match self.api(id, &manifest.resource).create(&params, body).await {
            Ok(created) => self.check_answer(id, body, created.metadata),
            Err(error) => {
                let refusal = Refusal::about(id, &error);
                match refusal.answer() {
                    Answer::AlreadyExists { terminating: true } => Err(Problem::BeingDeleted.into()),
                    Answer::AlreadyExists { terminating: false } => {
                        self.examine(id, manifest, entry, body, false).await
                    }
                    _ => Err(self.refused(id, &refusal).await.into()),
                }
            }
        }
    }

    /// Looks at the object that has the name, until it stands still for long enough to be judged and written.
    ///
    /// `create` says what is done if there is none: it is created again, or left for the next pass.
    async fn examine(
        &self,
        id: &ObjectId,
        manifest: &Manifest,
        entry: Option<&Entry>,
        body: &DynamicObject,
        create: bool,
    ) -> Result<ObjectMeta, Failure> {
        for round in 0..ROUNDS {
            let meta = match find_metadata(&self.site.client, &manifest.resource, id).await {
                Ok(Some(meta)) => meta,
                Ok(None) if create => return Box::pin(self.create(id, manifest, entry, body)).await,
                Ok(None) => {
                    let words = "an earlier object of this name has just gone".into();
                    return Err(Problem::NotReady { words }.into());
                }
                Err(refusal) => return Err(self.refused(id, &refusal).await.into()),
            };
            match self.judge(id, manifest, entry, body, meta, round).await {
                Err(Failure::Raced) => {}
                judged => return judged,
            }
        }
        Err(Problem::NotReady { words: "somebody else is writing to it".into() }.into())
    }

    /// What was given up or left in the cluster is not ours any more. Wanted again, it is judged like any other object of
    /// that name; nothing is written to it before the record says that it may be ours again.
    async fn renew(&self, id: &ObjectId, manifest: &Manifest) -> Result<ObjectMeta, Failure> {
        match find_metadata(&self.site.client, &manifest.resource, id).await {
            Ok(Some(meta)) => {
                let claim = ownership::judge(&self.inner.manager, self.parent, id, &meta);
                if claim.is_ours() || self.may_adopt(id, &claim, &meta) {
                    return Err(Failure::Renew);
                }
                Err(Problem::Exists { owner: claim.to_string() }.into())
            }
            Ok(None) => Err(Failure::Renew),
            Err(refusal) => Err(self.refused(id, &refusal).await.into()),
        }
    }

    /// Whose is the object that has the name?
    async fn judge(
        &self,
        id: &ObjectId,
        manifest: &Manifest,
        entry: Option<&Entry>,
        body: &DynamicObject,
        meta: ObjectMeta,
        round: usize,
    ) -> Result<ObjectMeta, Failure> {
        let uid = Uid::of(&meta).ok_or_else(|| Problem::Refused { words: "the live object has no UID".into() })?;
        let recorded = entry.and_then(|e| e.uid.as_ref()) == Some(&uid);
        let claim = ownership::judge(&self.inner.manager, self.parent, id, &meta);
        let terminating = meta.deletion_timestamp.is_some();
        if claim.is_ours() || self.is_moved(&claim, &uid, &meta) {
            if terminating {
                return Err(Problem::BeingDeleted.into());
            }
            return self.update(id, manifest, body, meta, true, round).await;
        }
        let adopting = recorded && entry.is_some_and(|e| e.origin == Origin::Adopted);
        let may_adopt = self.may_adopt(id, &claim, &meta);
        if recorded && !(adopting && may_adopt) {
            return Err(Problem::Disowned.into());
        }
        match may_adopt {
            true if terminating => Err(Problem::BeingDeleted.into()),
            true if adopting => self.update(id, manifest, body, meta, false, round).await,
            true => Err(Failure::Adopt(uid)),
            false if self.asks_for(id, manifest, &claim, &meta).await => {
                Err(Problem::Exists { owner: format!("{claim}, and asked for") }.into())
            }
            false => Err(Failure::NotOurs(Problem::Exists { owner: claim.to_string() })),
        }
    }

    /// Whether the object is one of ours that is now desired under another API group, which serves the same object.
    fn is_moved(&self, claim: &Claim, uid: &Uid, meta: &ObjectMeta) -> bool {
        let Claim::Copied { names } = claim else { return false };
        let recorded = self.intent.inventory.get(names).and_then(|e| e.uid.as_ref());
        recorded == Some(uid)
            && self.intent.dropped.contains(names)
            && ownership::judge(&self.inner.manager, self.parent, names, meta).is_ours()
    }

    /// Whether the adoption policy lets us take an object that is not ours. What another parent of this manager claims is
    /// nobody's to take; nor is what it may claim in words that we cannot read, nor the record of any parent.
    fn may_adopt(&self, id: &ObjectId, claim: &Claim, meta: &ObjectMeta) -> bool {
        if matches!(claim, Claim::OtherParent { restored: false, .. } | Claim::Unreadable(_))
            || is_record(&self.inner.manager, meta)
        {
            return false;
        }
        match self.inner.adoption {
            Adoption::Never => false,
            Adoption::IfUnowned => is_unowned(id, claim, meta),
            Adoption::Always => true,
        }
    }

    /// Server-side apply onto exactly this incarnation, and in the state that was judged, so that marks that somebody changes
    /// in between, to hand the object to another parent for one, are not written over.
    async fn update(
        &self,
        id: &ObjectId,
        manifest: &Manifest,
        body: &DynamicObject,
        meta: ObjectMeta,
        is_ours: bool,
        round: usize,
    ) -> Result<ObjectMeta, Failure> {
        let uid = Uid::of(&meta).ok_or_else(|| Problem::Refused { words: "the live object has no UID".into() })?;
        if self.site.fingerprints.is_current(&uid, body, meta.resource_version.as_deref().unwrap_or_default()) {
            return Ok(meta);
        }
        let manager = self.inner.manager.field_manager();
        let mut judged = meta.resource_version.clone();
        if let Some(patch) = fields::adopt_update_entry(&meta, manager) {
            judged = self.patch(id, manifest, patch).await?.resource_version;
        }
        let mut body_with_uid = body.clone();
        body_with_uid.metadata.uid = Some(uid.to_string());
        body_with_uid.metadata.resource_version = judged.filter(|_| !is_ours || round < ROUNDS_WITH_RESOURCE_VERSION);
        let apply = async |force| {
            let params = PatchParams { field_manager: Some(manager.to_owned()), force, ..PatchParams::default() };
            self.api(id, &manifest.resource).patch(id.name(), &params, &Patch::Apply(&body_with_uid)).await
        };
        let mut written = apply(self.inner.force_conflicts).await;
        if let Err(error) = &written
            && fields::conflicts_only_over(error, |field| self.is_mark(field, body))
        {
            // Somebody may have changed the marks since we looked. If they still say that the object is ours, then what
            // is left of them is ours to put back; and so are fields that nobody is known to own, on an object of our own.
            if round == 0 && !fields::conflicts_only_over(error, |_| false) {
                return Err(Failure::Raced);
            }
            if is_ours {
                written = apply(true).await;
            }
        }
        match written {
            Ok(written) => {
                let meta = self.strip_stale(id, manifest, body, written.metadata).await?;
                self.check_answer(id, body, meta)
            }
            Err(error) => {
                let refusal = Refusal::about(id, &error);
                Err(match refusal.answer() {
                    Answer::FieldConflict => Problem::FieldConflict { words: refusal.words_for(id) }.into(),
                    Answer::UidMismatch | Answer::NothingToApply | Answer::VersionMismatch => Failure::Raced,
                    _ => self.refused(id, &refusal).await.into(),
                })
            }
        }
    }

    /// Whether a field is one of ours alone: a key of the manager, or our reference to our proxy.
    fn is_mark(&self, field: &str, body: &DynamicObject) -> bool {
        let refers = |owner: &OwnerReference| field.contains(".ownerReferences[") && field.contains(&owner.uid);
        field.contains(&format!("{}/", self.inner.manager))
            || body.metadata.owner_references.iter().flatten().any(refers)
    }

    /// Takes off the references to our proxies that an apply leaves, because somebody else's field manager has a share
    /// in them.
    async fn strip_stale(
        &self,
        id: &ObjectId,
        manifest: &Manifest,
        body: &DynamicObject,
        meta: ObjectMeta,
    ) -> Result<ObjectMeta, Failure> {
        let stale = self.inner.rulebook.stale_references(self.parent, &self.intent.inventory, &meta, &body.metadata);
        if stale.is_empty() {
            return Ok(meta);
        }
        let refused = |error: ownership::Error| Problem::Refused { words: error.to_string() };
        let patch = ownership::strip_patch(id, &meta, &stale).map_err(refused)?;
        self.patch(id, manifest, patch).await
    }

    /// Sends a patch that tests the state it is made for.
    async fn patch(&self, id: &ObjectId, manifest: &Manifest, patch: json_patch::Patch) -> Result<ObjectMeta, Failure> {
        let params = patched_by(Some(self.inner.manager.field_manager()));
        let patch = Patch::Json(patch);
        match patch_metadata(&self.site.client, &manifest.resource, id, &patch, &params).await {
            Ok(patched) => Ok(patched),
            Err(refusal) => Err(match refusal.answer() {
                Answer::PatchRejected | Answer::VersionMismatch => Failure::Raced,
                _ => self.refused(id, &refusal).await.into(),
            }),
        }
    }

    /// A mutating webhook may have changed what we rely on.
    fn check_answer(&self, id: &ObjectId, body: &DynamicObject, meta: ObjectMeta) -> Result<ObjectMeta, Failure> {
        let problem = |words: &str| Problem::Mutated { words: words.to_owned() };
        let Some(uid) = Uid::of(&meta) else { return Err(problem("it has no UID").into()) };
        let mutated = |words: &str| Failure::Mutated(uid.clone(), problem(words));
        if meta.name.as_deref() != Some(id.name()) || meta.namespace.as_deref() != id.namespace() {
            return Err(mutated("its name or namespace is another one now"));
        }
        if !matches!(
            ownership::judge(&self.inner.manager, self.parent, id, &meta),
            Claim::Ours { label_missing: false }
        ) {
            return Err(mutated("the manager's label or back-pointer is not what was sent"));
        }
        self.site.fingerprints.set(&uid, body, meta.resource_version.as_deref().unwrap_or_default());
        Ok(meta)
    }

    async fn refused(&self, id: &ObjectId, refusal: &Refusal) -> Problem {
        let words = refusal.words_for(id);
        match refusal.answer() {
            Answer::NamespaceTerminating => {
                if self.site.reach != Reach::Remote && id.namespace() == self.parent.id.namespace() {
                    self.closed.store(true, Ordering::Release);
                }
                Problem::NamespaceTerminating
            }
            Answer::KindTerminating => Problem::NotServed { words },
            Answer::NoRoute => match self.site.resolver.refresh(&id.group_kind()).await {
                Resolution::Served(_) => Problem::NotReady { words: "its kind is being brought up".into() },
                Resolution::NotServed => Problem::NotServed { words },
                Resolution::Unavailable { reason } => Problem::NotServed { words: reason },
            },
            _ => Problem::Refused { words },
        }
    }

    /// An object outside of the set has to exist before what depends on it is created.
    async fn await_external(&self, external: ObjectId) -> Result<(), Problem> {
        let waits = || Problem::Waits { on: external.clone() };
        match self.site.resolver.resolve(&external.group_kind()).await {
            Resolution::Served(resource) => {
                get_metadata(&self.site.client, &resource, &external).await.map(|_| ()).map_err(|_| waits())
            }
            _ => Err(waits()),
        }
    }

    /// A definition has to be established before objects of its kind can be created.
    async fn await_ready(&self, id: &ObjectId, manifest: &Manifest) -> Result<(), Problem> {
        if !id.is("apiextensions.k8s.io", "CustomResourceDefinition") {
            return Ok(());
        }
        let deadline = Instant::now() + ESTABLISHED_WITHIN;
        loop {
            let read = self.api(id, &manifest.resource).get(id.name()).await;
            if read.is_ok_and(|object| is_established(&object)) {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(Problem::NotReady { words: "it is not established yet".into() });
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

fn is_established(definition: &DynamicObject) -> bool {
    let conditions = definition.data.pointer("/status/conditions").and_then(|c| c.as_array());
    conditions
        .into_iter()
        .flatten()
        .any(|c| c.get("type").is_some_and(|t| t == "Established") && c.get("status").is_some_and(|s| s == "True"))
}

/// Nobody has laid a claim on the object that we can see: no back-pointer of this or any other manager, no owner.
fn is_unowned(id: &ObjectId, claim: &Claim, meta: &ObjectMeta) -> bool {
    let claims = |(key, text): (&String, &String)| {
        Manager::is_back_pointer(key) && BackPointer::decode(text).map_or(true, |pointer| pointer.object() == id)
    };
    matches!(claim, Claim::Unmarked { .. } | Claim::Copied { .. })
        && meta.owner_references.as_ref().is_none_or(Vec::is_empty)
        && !meta.annotations.iter().flatten().any(claims)
}

/// Whether it is a part of an inventory, which is the store's to write and nobody else's.
fn is_record(manager: &Manager, meta: &ObjectMeta) -> bool {
    meta.finalizers.iter().flatten().any(|f| *f == manager.inventory_finalizer())
        || meta.labels.iter().flatten().any(|(key, _)| *key == manager.inventory_label())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ownership::{
        mark,
        testing::{id, manager, parent},
    };

    #[test]
    fn what_another_manager_takes_care_of_is_not_unowned() {
        let object = id("ConfigMap b/x");
        let mut meta = ObjectMeta::default();
        let unmarked = Claim::Unmarked { labelled: false };
        assert!(is_unowned(&object, &unmarked, &meta));
        mark(&Manager::new("other.example.com").unwrap(), &BackPointer::new(&parent(), &object), &mut meta).unwrap();
        assert_eq!(ownership::judge(&manager(), &parent(), &object, &meta), unmarked);
        assert!(!is_unowned(&object, &unmarked, &meta));
        assert!(is_unowned(&id("ConfigMap b/copy"), &unmarked, &meta), "a copy claims nothing");
    }
}
