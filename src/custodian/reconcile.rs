//! One pass over one parent.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_core::Resource;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout};

use super::{
    Custodian, Desired, Error, Inner, LOOK_AGAIN, WAIT,
    apply::{Applied, Pass},
    desired::Checked,
    forcing::Forcing,
    gating::Needs,
    intent::{Intent, Known},
    outcome::{Hold, Outcome, Phase, Problem},
    proxies::Survey,
    removal::Removal,
    site::{Destination, Nowhere, Site},
    target::{Reach, Target, Unavailable},
};
use crate::{
    answer::{Answer, Refusal, with_causes},
    api::find_metadata,
    finalizer::{self, AnnotationUpdate, Ensured},
    force::Allowed,
    gate::Why,
    inventory::{self, DeletionPolicy, Entry, EntryState, Inventory, Loaded, Origin, Role, SaveOptions, Snapshot},
    lock::lock,
    object::{GroupKind, ObjectId, ParentRef, Uid},
    teardown::Live,
};

/// How long the author's hook may take to name a target.
const TARGET_WITHIN: Duration = Duration::from_secs(30);
/// How often a pass starts over because somebody else changed the inventory.
const ROUNDS: usize = 5;
/// After how long a parent is looked at again whose proxies cannot be had at present.
const DEFINITION_BACK: Duration = Duration::from_secs(30);

impl<K> Custodian<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Send + Sync + 'static,
{
    /// Reconciles one parent: applies what `desired` returns and prunes the rest while the parent lives, tears
    /// everything down when it is deleted.
    ///
    /// `parent` may come from a cache; what matters is read live. `desired` is called only while the parent lives. The
    /// future is `Send` if `desired`'s is. Dropping it at any point is safe.
    ///
    /// Never fails as a whole because of single objects: see [`Outcome`].
    pub async fn reconcile<F, Fut, D, E>(&self, parent: &K, desired: F) -> Outcome
    where
        F: FnOnce(Arc<K>) -> Fut,
        Fut: Future<Output = Result<D, E>>,
        D: Into<Desired>,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let reference = match ParentRef::of(parent) {
            Ok(reference) => reference,
            Err(source) => return Outcome::failed(None, Error::Parent { source }),
        };
        if parent.meta().deletion_timestamp.is_some() {
            return self.finalize(parent, &reference).await;
        }
        let need = match self.inner.needs(parent) {
            Ok(need) => need,
            Err(error) => return Outcome::failed(Some(reference), error),
        };
        if let Some(waiting) = self.inner.unmet(&reference, &need).await {
            return self.step_back(parent, &reference, waiting).await;
        }
        let desired = match desired(Arc::new(parent.clone())).await {
            Ok(desired) => desired.into(),
            Err(source) => return Outcome::failed(Some(reference), Error::Render { source: source.into() }),
        };
        let checked = match desired.check(&self.inner.manager) {
            Ok(checked) => checked,
            Err(error) => return Outcome::failed(Some(reference), error),
        };
        let at = match self.destination(parent, &reference).await {
            Ok(at) => at,
            Err(nowhere) => return nowhere.into_outcome(&reference),
        };
        match self.inner.reconcile(&at, &reference, checked, &need).await {
            Ok(outcome) => self.inner.with_cycle(outcome),
            Err(Stop::Deleting) => self.finalize(parent, &reference).await,
            Err(Stop::Outcome(outcome)) => self.step_back(parent, &reference, *outcome).await,
        }
    }

    /// Sees to it that a parent that waits for what is being deleted is not waited for in turn, if it has created nothing.
    async fn step_back(&self, parent: &K, reference: &ParentRef, mut outcome: Outcome) -> Outcome {
        let Phase::Waiting { on } = &outcome.phase else { return outcome };
        if on.iter().any(|unmet| matches!(unmet.why, Why::Deleting { .. }))
            && let Ok(at) = self.destination(parent, reference).await
            && let Err(error) = self.inner.step_back(&at, reference).await
        {
            outcome.notes.push(format!("it is waited for in turn: {}", with_causes(&error)));
        }
        outcome
    }

    /// One slice of the teardown of a parent that is being deleted.
    pub(super) async fn finalize(&self, parent: &K, reference: &ParentRef) -> Outcome {
        let outcome = match self.inner.being_deleted(reference).await {
            Ok(Some(meta)) => {
                let at = self.destination(parent, reference).await;
                self.inner.finalize(at, reference, &meta).await
            }
            Ok(None) => Outcome::new(Some(reference.clone()), Phase::Gone),
            Err(error) => Outcome::failed(Some(reference.clone()), error),
        };
        if matches!(outcome.phase, Phase::Released | Phase::Gone) {
            lock(&self.inner.sites).leave(&reference.uid);
        }
        outcome
    }

    /// Where the parent's children live, as the author says.
    pub(super) async fn destination(&self, parent: &K, reference: &ParentRef) -> Result<Destination, Nowhere> {
        let target = match &self.target {
            None => Target::home(),
            Some(hook) => match timeout(TARGET_WITHIN, hook(Arc::new(parent.clone()))).await {
                Ok(target) => target.map_err(Nowhere::Target)?,
                Err(_) => {
                    let words = format!("the operator's hook named no target within {TARGET_WITHIN:?}");
                    return Err(Nowhere::Target(Unavailable::new(words)));
                }
            },
        };
        self.inner.reach(reference, target).await
    }

    /// What is on record for `parent`, for plans and diagnosis.
    ///
    /// # Errors
    /// [`Error`] if the record could not be read.
    pub async fn inventory(&self, parent: &K) -> Result<Loaded, Error> {
        let reference = ParentRef::of(parent).map_err(|source| Error::Parent { source })?;
        self.inner.store.load(&reference).await.map_err(Into::into)
    }

    /// Gives one object up: it is neither deleted nor waited for any more. For objects that a report names as unproven,
    /// disowned or recreated.
    ///
    /// The decision is recorded in the inventory before anything follows from it.
    ///
    /// # Errors
    /// [`Error`] if the record could not be read or written.
    pub async fn abandon(&self, parent: &K, id: &ObjectId) -> Result<(), Error> {
        self.give_up(parent, |entry| entry == id).await.map(drop)
    }

    /// Gives everything up that is on record for `parent`, proxies included, for where the cluster that the children live in
    /// is gone for good: nothing of it is deleted or waited for any more. A parent that is being deleted is let go at
    /// its next reconcile, reachable target or not, with all the manager's finalizers. Returns how many objects were given
    /// up.
    ///
    /// If the cluster still exists, everything of the parent stays there, marks included. What part of a damaged record
    /// cannot be read is not given up, nor is a record that is missing.
    ///
    /// # Errors
    /// [`Error`] if the record could not be read or written.
    pub async fn abandon_all(&self, parent: &K) -> Result<usize, Error> {
        self.give_up(parent, |_| true).await
    }

    /// Records the chosen objects as given up; how many were not before.
    async fn give_up(&self, parent: &K, chosen: impl Fn(&ObjectId) -> bool) -> Result<usize, Error> {
        let reference = ParentRef::of(parent).map_err(|source| Error::Parent { source })?;
        for _ in 0..ROUNDS {
            let (Loaded::Found(snapshot) | Loaded::Damaged { snapshot, .. }) =
                self.inner.store.load(&reference).await?
            else {
                return Ok(0);
            };
            let mut inventory = snapshot.inventory;
            let mut given_up = 0;
            let open = |e: &Entry| e.state != EntryState::Abandoned && chosen(&e.id);
            for entry in inventory.entries_mut().filter(|e| open(e)) {
                entry.state = EntryState::Abandoned;
                given_up += 1;
            }
            if given_up == 0 {
                return Ok(0);
            }
            match self.inner.store.save(&inventory, SaveOptions::replace(snapshot.version)).await {
                Err(inventory::Error::Conflict { .. }) => {}
                other => return other.map(|_| given_up).map_err(Into::into),
            }
        }
        Err(Error::Contended { parent: reference })
    }
}

/// Why a pass ends early.
pub(super) enum Stop {
    /// The parent is being deleted.
    Deleting,
    /// There is an outcome.
    Outcome(Box<Outcome>),
}

impl Stop {
    fn failed(parent: &ParentRef, error: impl Into<Error>) -> Self {
        Self::Outcome(Box::new(Outcome::failed(Some(parent.clone()), error)))
    }

    fn gone(parent: &ParentRef) -> Self {
        Self::Outcome(Box::new(Outcome::new(Some(parent.clone()), Phase::Gone)))
    }

    fn held(parent: &ParentRef, hold: Hold) -> Self {
        Self::Outcome(Box::new(Outcome::held(parent.clone(), hold)))
    }

    /// Whether the parent is being deleted, or gone.
    fn parent_goes(&self) -> bool {
        match self {
            Self::Deleting => true,
            Self::Outcome(outcome) => outcome.phase == Phase::Gone,
        }
    }
}

impl Inner {
    async fn reconcile(
        &self,
        at: &Destination,
        parent: &ParentRef,
        checked: Checked,
        need: &Needs,
    ) -> Result<Outcome, Stop> {
        let kinds = at.kinds(&checked.objects).await.map_err(|e| Stop::failed(parent, e))?;
        // Proxies name the parent's own cluster, wherever they are.
        let home = self.home.cluster_id().await.map_err(|e| Stop::failed(parent, e))?;
        let policy = (self.policy)(parent);
        // Judge the set before anything is sent, against an empty record: what is wrong with it is wrong with any.
        let empty = Inventory::new(parent.clone(), at.cluster.clone());
        let none = Survey::default();
        let context = at.context(&self.rulebook.rules, &checked.objects, &kinds).await;
        let dry = Known {
            parent,
            cluster: &home,
            policy: &policy,
            kinds: &kinds,
            stored: &empty,
            lost_proxies: &BTreeSet::new(),
            suspended: &none.suspended,
            holds: &at.holds,
            context: &context.roles,
        };
        let rehearsed = self.rulebook_at(at).intend(checked.clone(), &dry).map_err(|e| Stop::failed(parent, e))?;
        let coming = rehearsed.inventory.places(|_| true);

        let mut told = Told::default();
        for _ in 0..ROUNDS {
            let meta = self.take_custody(parent).await?;
            let snapshot = self.root(at, parent, &meta, &mut told).await?;
            let seen = self.watch_entries(at, parent, &snapshot.inventory, &coming).await;
            let survey = self.survey(at, &snapshot.inventory, &seen).await;
            let lost_proxies = survey.lost.keys().cloned().collect();
            let known = Known {
                parent,
                cluster: &home,
                policy: &policy,
                kinds: &kinds,
                stored: &snapshot.inventory,
                lost_proxies: &lost_proxies,
                suspended: &survey.suspended,
                holds: &at.holds,
                context: &context.roles,
            };
            let intent = self.rulebook_at(at).intend(checked.clone(), &known).map_err(|e| Stop::failed(parent, e))?;
            if let Err(stop) = self.mark_applied(at, parent, &meta, &intent.inventory).await {
                if stop.parent_goes() && snapshot.inventory.is_empty() {
                    // Another process may have let it go just before the record was made, which nobody would look for.
                    let _ = self.finish(parent, &snapshot.inventory, &snapshot.version).await;
                }
                return Err(stop);
            }
            if !need.marked || snapshot.inventory.is_empty() {
                // Read again now that the parent carries the mark, and has this record: only from here on do they wait for it.
                let waiting = self.unmet(parent, need).await;
                waiting.map_or(Ok(()), |outcome| Err(Stop::Outcome(Box::new(outcome))))?;
            }
            match self.carry_out(at, parent, snapshot, intent, &seen, &survey).await {
                Err(Carried::Conflict) => {}
                Err(Carried::Stop(stop)) => return Err(stop),
                Ok(mut outcome) => {
                    outcome.notes.splice(0..0, told.notes);
                    outcome.notes.extend(context.notes);
                    outcome.damage = told.damage;
                    return Ok(outcome);
                }
            }
        }
        Err(Stop::failed(parent, Error::Contended { parent: parent.clone() }))
    }

    /// The first finalizer, and a live look at the parent.
    async fn take_custody(&self, parent: &ParentRef) -> Result<ObjectMeta, Stop> {
        let target = parent.live();
        held(parent, self.custody.ensure(&self.home.client, &parent.resource(), &target, &[]).await)
    }

    /// The record, made if nothing was ever created, rediscovered if it is missing all the same, completed if it is damaged.
    ///
    /// What is worth knowing about it goes into `told`.
    async fn root(
        &self,
        at: &Destination,
        parent: &ParentRef,
        meta: &ObjectMeta,
        told: &mut Told,
    ) -> Result<Snapshot, Stop> {
        let failed = |error: inventory::Error| Stop::failed(parent, error);
        let mut loaded = self.store.load(parent).await.map_err(failed)?;
        if let Loaded::Restored { snapshot, damage, .. } = &loaded {
            let record = &snapshot.inventory;
            if record.is_empty() && damage.is_empty() {
                // Of an earlier incarnation, which is gone: the name has another UID.
                let left = self.finish(&record.parent, record, &snapshot.version).await.map_err(failed)?;
                told.notes.extend(left);
                loaded = self.store.load(parent).await.map_err(failed)?;
            }
        }
        let mut snapshot = match loaded {
            Loaded::Found(snapshot) => snapshot,
            Loaded::Damaged { mut snapshot, damage } => {
                if let Some(hold) = of_another_cluster(&snapshot.inventory, &at.cluster) {
                    return Err(Stop::held(parent, hold));
                }
                let completed = self.complete(at, parent, meta, &mut snapshot.inventory, &damage).await;
                told.notes.extend(completed.map_err(|words| {
                    let mut outcome = Outcome::failed(Some(parent.clone()), damaged(parent, &damage, &words));
                    outcome.damage.clone_from(&damage);
                    Stop::Outcome(Box::new(outcome))
                })?);
                let options = SaveOptions::replace(snapshot.version).heal(true);
                snapshot.version = self.store.save(&snapshot.inventory, options).await.map_err(failed)?;
                told.notes.push("the inventory was damaged, and completed by what was found in the cluster".into());
                told.damage = damage;
                snapshot
            }
            Loaded::Restored { recorded, .. } => return Err(Stop::held(parent, Hold::Restored { recorded })),
            Loaded::Missing => {
                let mut inventory = Inventory::new(parent.clone(), at.cluster.clone());
                inventory.creator.clone_from(&self.creator);
                if carries(meta, &self.manager.applied_finalizer()) {
                    let notes = self.rediscover(at, parent, meta, &mut inventory).await;
                    told.notes.extend(notes.map_err(|words| Stop::held(parent, Hold::InventoryMissing { words }))?);
                    told.notes.push(format!(
                        "the inventory was missing: {} objects were found by their marks",
                        inventory.len()
                    ));
                }
                let version = self.store.save(&inventory, SaveOptions::create()).await.map_err(failed)?;
                Snapshot::new(inventory, version)
            }
        };
        if snapshot.inventory.is_empty() {
            // It speaks of nothing, and from now on of whatever is there.
            snapshot.inventory.cluster.clone_from(&at.cluster);
        }
        // Decided although the parent lives: it is being released.
        let releasing = snapshot.inventory.decision.as_ref().map(|d| Hold::Releasing { reason: d.reason.clone() });
        match of_another_cluster(&snapshot.inventory, &at.cluster).or(releasing) {
            Some(hold) => Err(Stop::held(parent, hold)),
            None => Ok(snapshot),
        }
    }

    /// The second finalizer, and every group-kind that is or will be on record.
    ///
    /// And which cluster the record speaks of, if that is not the parent's own.
    async fn mark_applied(
        &self,
        at: &Destination,
        parent: &ParentRef,
        meta: &ObjectMeta,
        inventory: &Inventory,
    ) -> Result<(), Stop> {
        let kinds: BTreeSet<GroupKind> = inventory.entries().map(|e| e.id.group_kind()).collect();
        let key = self.manager.group_kinds_annotation();
        let present = meta.annotations.as_ref().and_then(|a| a.get(&key)).map(|text| read_kinds(text));
        let complete = present.is_some_and(|present| kinds.iter().all(|k| present.contains(&k.to_string())));
        let place = (at.reach == Reach::Remote).then(|| inventory.cluster.to_string());
        let placed = place.is_none() || place == self.noted_cluster(meta);
        if complete && placed && carries(meta, &self.manager.applied_finalizer()) {
            return Ok(());
        }
        let target = parent.live();
        let update = AnnotationUpdate::new(key, move |present| {
            let mut all = present.map(read_kinds).unwrap_or_default();
            all.extend(kinds.iter().map(ToString::to_string));
            Some(all.into_iter().collect::<Vec<_>>().join(","))
        });
        let mut updates = vec![update];
        if let Some(place) = place {
            updates.push(AnnotationUpdate::new(self.manager.cluster_annotation(), move |_| Some(place.clone())));
        }
        held(parent, self.applied.ensure(&self.home.client, &parent.resource(), &target, &updates).await).map(drop)
    }

    /// Watches the kinds on record and those about to be, as far as RBAC allows; what the watches show.
    pub(super) async fn watch_entries(
        &self,
        site: &Site,
        parent: &ParentRef,
        inventory: &Inventory,
        more: &BTreeMap<GroupKind, BTreeSet<String>>,
    ) -> BTreeMap<ObjectId, Live> {
        let mut places = inventory.places(|_| true);
        for (kind, namespaces) in more {
            places.entry(kind.clone()).or_default().extend(namespaces.iter().cloned());
        }
        for (kind, namespaces) in places {
            if let Some(resource) = site.served(&kind).await {
                site.hub.ensure(&resource, &namespaces).await;
            }
        }
        site.hub.live(&parent.uid)
    }

    /// Stores the intent, applies it, prunes, and stores what came of it.
    async fn carry_out(
        &self,
        at: &Destination,
        parent: &ParentRef,
        snapshot: Snapshot,
        intent: Intent,
        seen: &BTreeMap<ObjectId, Live>,
        survey: &Survey,
    ) -> Result<Outcome, Carried> {
        // Only an apply may create: what is being deleted is replaced, and what has grown is spread over more objects.
        let options = |version| SaveOptions::replace(version).renew(true);
        let mut version = snapshot.version;
        if intent.inventory != snapshot.inventory || snapshot.terminating {
            version = self.store.save(&intent.inventory, options(version)).await.map_err(|e| Carried::of(parent, e))?;
        }
        // Where the record could not be written afresh, nothing else can be created there either.
        let closed = snapshot.terminating && self.is_terminating(parent).await.map_err(|e| Carried::of(parent, e))?;
        self.parent_lives(parent).await.map_err(Carried::Stop)?;

        let unheld = self.hold_all(parent, &at.holds).await;
        if let Some((_, words)) = unheld.iter().find(|(id, _)| at.credentials.contains(id)) {
            return Err(Carried::Stop(Stop::held(parent, Hold::TargetUnavailable { words: words.clone() })));
        }
        let pass = Pass { inner: self, site: at, parent, intent: &intent, seen, closed: AtomicBool::new(closed) };
        let applied = pass.run().await;
        let mut outcome = Outcome::new(Some(parent.clone()), Phase::Progressing);
        outcome.notes.extend(
            unheld.into_iter().map(|(_, words)| words).chain(survey.notes()).chain(at.does_without(&intent.inventory)),
        );
        outcome.notes.extend(applied.recreated.iter().map(|id| format!("{id} was gone and has been created again")));
        if closed {
            let words = "the inventory is being deleted and cannot be replaced: it is kept until the children are gone";
            outcome.notes.push(words.into());
        }
        outcome.record_given_up(&intent.graph);
        outcome.applied = applied.refs();
        outcome.ignored.clone_from(&intent.ignored);
        outcome.unapplied.extend(intent.unapplied.iter().chain(&applied.unapplied).cloned());

        let mut inventory = intent.inventory.clone();
        record(&mut inventory, &applied, &intent.dropped);
        let loose = self.loosen(at, parent, &intent, &applied).await;
        intent.untie(&mut inventory, applied.live.keys().chain(&loose));
        if inventory != intent.inventory {
            version = self.store.save(&inventory, options(version)).await.map_err(|e| Carried::of(parent, e))?;
        }
        self.prune(at, parent, &intent, &mut inventory, version, &mut outcome)
            .await
            .map_err(|e| Carried::of(parent, e))?;
        conclude(&mut outcome);
        if !survey.suspended.is_empty() {
            outcome.requeue = outcome.requeue.map(|after| after.min(DEFINITION_BACK));
        }
        Ok(outcome)
    }

    /// Whether somebody is deleting the stored record.
    async fn is_terminating(&self, parent: &ParentRef) -> Result<bool, inventory::Error> {
        Ok(self.store.load(parent).await?.snapshot().is_some_and(|snapshot| snapshot.terminating))
    }

    /// The parent's metadata, read live; `None` if it is gone, or another incarnation has its name.
    pub(super) async fn find_parent(&self, parent: &ParentRef) -> Result<Option<ObjectMeta>, Refusal> {
        let found = find_metadata(&self.home.client, &parent.resource(), &parent.id).await?;
        Ok(found.filter(|meta| Uid::of(meta).as_ref() == Some(&parent.uid)))
    }

    /// The parent, read live: there, the same, and not being deleted. Creates follow only after this.
    async fn parent_lives(&self, parent: &ParentRef) -> Result<(), Stop> {
        match self.find_parent(parent).await {
            Ok(Some(meta)) if meta.deletion_timestamp.is_some() => Err(Stop::Deleting),
            Ok(Some(_)) => Ok(()),
            Ok(None) => Err(Stop::gone(parent)),
            Err(refusal) => Err(Stop::failed(parent, unreadable(parent, &refusal))),
        }
    }

    /// Removes what is no longer desired, once everything desired is applied; retired proxies in any case.
    async fn prune(
        &self,
        at: &Destination,
        parent: &ParentRef,
        intent: &Intent,
        inventory: &mut Inventory,
        version: inventory::Version,
        outcome: &mut Outcome,
    ) -> Result<(), inventory::Error> {
        let mut going = if self.may_prune(intent, inventory, outcome) { &intent.dropped } else { &intent.retired };
        if going.iter().any(|id| inventory.get(id).is_some_and(|entry| entry.role == Role::Child))
            && let Some(unaware) = self.unaware(at, parent, intent).await
        {
            outcome.notes.push(format!("nothing is pruned before {unaware}, which may take it over, was reconciled"));
            outcome.requeue = Some(WAIT);
            going = &intent.retired;
        }
        if going.is_empty() {
            return Ok(());
        }
        let version = self.force_pruned(parent, going, inventory, version, outcome).await?;
        let successors = self.successors(at, inventory, going, at.hub.live(&parent.uid)).await;
        let mut removal = Removal::new(self, at, parent, inventory, Some(going), &successors).await;
        removal.run(Some(Instant::now() + self.slice)).await;
        outcome.set_removal(removal.report());
        if removal.is_cut_short() {
            outcome.requeue = Some(Duration::ZERO);
        }
        if let Err(hold) = at.confirm().await {
            // What was seen proves nothing.
            outcome.phase = Phase::Held(hold);
            return Ok(());
        }
        let changed = removal.record(inventory, &at.fingerprints);
        if changed {
            self.store.save(inventory, SaveOptions::replace(version)).await?;
        }
        Ok(())
    }

    /// Takes a request to force on the living parent into account, for what is to go.
    async fn force_pruned(
        &self,
        parent: &ParentRef,
        going: &BTreeSet<ObjectId>,
        inventory: &mut Inventory,
        version: inventory::Version,
        outcome: &mut Outcome,
    ) -> Result<inventory::Version, inventory::Error> {
        if self.force == Allowed::nothing() {
            return Ok(version);
        }
        // What cannot be read now is not forced now.
        let Ok(Some(meta)) = self.find_parent(parent).await else { return Ok(version) };
        let Forcing { forced, notes } = self.force(parent, &meta, inventory, |id| going.contains(id));
        outcome.notes.extend(notes);
        outcome.forced = forced;
        if outcome.forced.is_empty() {
            return Ok(version);
        }
        self.store.save(inventory, SaveOptions::replace(version)).await
    }

    /// Whether objects may be pruned now; what speaks against it is in the outcome.
    fn may_prune(&self, intent: &Intent, inventory: &Inventory, outcome: &mut Outcome) -> bool {
        // What was let go is on record for the sake of what it needs, or of the decision.
        let left = Entry::is_let_go;
        let going: Vec<_> = intent.dropped.iter().filter_map(|id| inventory.get(id)).collect();
        if going.iter().all(|e| left(e)) {
            return false;
        }
        let children = |e: &&Entry| e.role == Role::Child && !left(e);
        let pruned = going.iter().copied().filter(children).count();
        let of = inventory.entries().filter(children).count();
        let desired_is_empty = !intent.manifests.values().any(|m| m.role == Role::Child);
        if !self.guard.admits(pruned, of, desired_is_empty) {
            outcome.phase = Phase::Held(Hold::Guarded { pruned, of });
            return false;
        }
        if pruned == 0 {
            return true;
        }
        if !self.prune {
            outcome.notes.push(format!("{pruned} objects are no longer desired and stay, because pruning is off"));
            return false;
        }
        if let Some(first) = outcome.unapplied.iter().find(|u| blocks_prune(&u.problem)) {
            outcome.notes.push(format!("{pruned} objects are pruned once everything desired is applied: {first}"));
            return false;
        }
        true
    }
}

/// What is worth knowing about the record that a pass works with.
#[derive(Default)]
struct Told {
    notes: Vec<String>,
    damage: Vec<inventory::Damage>,
}

/// Why carrying out an intent ended early.
enum Carried {
    /// Somebody else changed the inventory: read it again.
    Conflict,
    Stop(Stop),
}

impl Carried {
    fn of(parent: &ParentRef, error: inventory::Error) -> Self {
        match error {
            inventory::Error::Conflict { .. } => Self::Conflict,
            error => Self::Stop(Stop::failed(parent, error)),
        }
    }
}

/// New things before old ones go: an object that could not be applied may need what would be pruned.
fn blocks_prune(problem: &Problem) -> bool {
    !matches!(problem, Problem::NamespaceTerminating)
}

fn damaged(parent: &ParentRef, damage: &[inventory::Damage], words: &str) -> Error {
    let problem = damage.iter().map(|d| format!("{}: {}", d.place, d.problem)).collect::<Vec<_>>().join("; ");
    Error::Inventory(inventory::Error::Unstorable {
        parent: parent.id.clone(),
        problem: format!(
            "part of it is unreadable ({problem}), and it cannot be completed by what is in the cluster ({words}), so \
             nothing is applied or pruned"
        ),
    })
}

/// What a finalizer on the parent, once ensured, allows.
fn held(parent: &ParentRef, ensured: Result<Ensured, finalizer::Error>) -> Result<ObjectMeta, Stop> {
    match ensured {
        Ok(Ensured::Held(meta)) => Ok(*meta),
        Ok(Ensured::Deleting(_)) => Err(Stop::Deleting),
        Ok(Ensured::Gone | Ensured::Recreated(_)) => Err(Stop::gone(parent)),
        Err(error) => Err(Stop::failed(parent, error)),
    }
}

pub(super) fn unreadable(parent: &ParentRef, refusal: &Refusal) -> Error {
    let words = refusal.words_for(&parent.id);
    Error::ParentUnreadable {
        words: match refusal.answer() {
            Answer::NoRoute => format!("{words} (is version {:?} still served?)", parent.version),
            _ => words,
        },
    }
}

/// Nothing that another cluster says is evidence about what is on record.
pub(super) fn of_another_cluster(inventory: &Inventory, cluster: &inventory::ClusterId) -> Option<Hold> {
    let recorded = &inventory.cluster;
    (recorded != cluster).then(|| Hold::other_cluster(recorded, cluster))
}

pub(super) fn carries(meta: &ObjectMeta, finalizer: &str) -> bool {
    meta.finalizers.iter().flatten().any(|f| f == finalizer)
}

pub(super) fn read_kinds(text: &str) -> BTreeSet<String> {
    text.split(',').map(str::trim).filter(|k| !k.is_empty()).map(ToOwned::to_owned).collect()
}

/// Writes what an apply pass learned into the record.
fn record(inventory: &mut Inventory, applied: &Applied, dropped: &BTreeSet<ObjectId>) {
    for (id, uid) in applied.live.iter().chain(&applied.unmarked) {
        if let Some(entry) = inventory.get_mut(id) {
            entry.uid = Some(uid.clone());
            entry.state = EntryState::Recorded;
        }
    }
    for (id, uid) in &applied.adoptions {
        if let Some(entry) = inventory.get_mut(id) {
            // On record as adopted before our marks go onto it: a crash in between must not make it ours to delete.
            entry.uid = Some(uid.clone());
            entry.state = EntryState::Recorded;
            entry.origin = Origin::Adopted;
            entry.deletion = DeletionPolicy::Keep;
        }
    }
    for id in &applied.renewed {
        if let Some(entry) = inventory.get_mut(id) {
            *entry =
                Entry { edges: std::mem::take(&mut entry.edges), ..Entry::intended(id.clone(), &entry.resource()) };
        }
    }
    for id in applied.never_ours.iter().filter(|id| !applied.adoptions.contains_key(*id)) {
        inventory.remove(id);
    }
    // One object that several API groups serve, and that is desired under another group now: its new entry speaks for it.
    let desired: BTreeSet<&Uid> = applied.live.values().collect();
    for id in dropped {
        if inventory.get(id).and_then(|e| e.uid.as_ref()).is_some_and(|uid| desired.contains(uid)) {
            inventory.remove(id);
        }
    }
}

/// Where the parent stands after a pass, and when to look again.
fn conclude(outcome: &mut Outcome) {
    if matches!(outcome.phase, Phase::Held(_)) {
        outcome.requeue = Some(outcome.requeue.unwrap_or(LOOK_AGAIN));
        return;
    }
    let complete = outcome.unapplied.is_empty() && outcome.removal.is_complete();
    let adopting = outcome.unapplied.iter().any(|u| matches!(u.problem, Problem::Adopting | Problem::Renewing));
    outcome.phase = if complete { Phase::Applied } else { Phase::Progressing };
    let after = match complete {
        true => LOOK_AGAIN,
        false if adopting => Duration::ZERO,
        false => WAIT,
    };
    outcome.requeue = Some(outcome.requeue.map_or(after, |asked| asked.min(after)));
}
