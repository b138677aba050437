//! The end of one operator process whose parents are going too, and the question who serves a finalizer.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

use futures::{FutureExt, StreamExt, stream};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube_core::Resource;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::{
    AT_ONCE,
    parents::{Subject, is_held},
    release::{Extent, Stuck},
    scan::parent_resource,
};
use crate::{
    api::{delete, find_metadata},
    custodian::{Custodian, Error, Outcome, Phase},
    object::{ObjectId, ParentRef, ResourceKind, Scope},
};

/// How soon the parents are looked at again at the latest.
const AGAIN: Duration = Duration::from_millis(500);

/// How to drain.
#[derive(Clone, Debug)]
#[must_use]
pub struct Drain {
    within: Duration,
    namespace: Option<String>,
    release: bool,
    reason: String,
}

impl Drain {
    /// A drain that ends within this time. Choose a few seconds less than the Pod's termination grace period.
    pub fn within(within: Duration) -> Self {
        Self { within, namespace: None, release: false, reason: "its operator ends together with it".into() }
    }

    /// Looks at parents in one namespace only, for operators that may not list others.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// Sets whether parents that cannot be finished in time are released: their children stay, without marks, and the
    /// parents go. The last quarter of the time, and at least that of three slices, is for that. Off unless set, for another process may finish them. Set it
    /// only where none will.
    pub fn release_rest(mut self, release: bool) -> Self {
        self.release = release;
        self
    }

    /// Sets the reason that is recorded with the decision to keep children, for people.
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.reason = reason.into();
        self
    }
}

/// What a drain came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Drained {
    /// Parents that are done with.
    pub finished: Vec<ParentRef>,
    /// Parents that were released, with the children left in the cluster.
    pub released: Vec<ParentRef>,
    /// Parents that are going and not done with, and why.
    pub left: Vec<(ParentRef, String)>,
    /// Namespaces that could not be read, so that it is not known whether their parents are going.
    pub unread: Vec<String>,
}

/// Whether somebody works on a deletion, by what is on record.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Service {
    /// A teardown has begun.
    Begun {
        /// Objects on record still.
        left: usize,
    },
    /// There is a record, and nobody has begun.
    NotBegun,
    /// There is no record: nothing was created, or the record is lost.
    NoRecord,
    /// The record cannot be read.
    Unknown {
        /// Why.
        words: String,
    },
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Begun { left } => write!(f, "its teardown has begun, with {left} objects left"),
            Self::NotBegun => f.write_str("nobody has begun its teardown"),
            Self::NoRecord => f.write_str("nobody has let it go, and there is no record of it"),
            Self::Unknown { words } => write!(f, "its record cannot be read: {words}"),
        }
    }
}

/// A parent that is being deleted and is kept by the manager's finalizers.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Terminating {
    /// Which parent.
    pub parent: ParentRef,
    /// Since when.
    pub since: Time,
    /// The manager's finalizers on it.
    pub finalizers: Vec<String>,
    /// Whether somebody works on it.
    pub service: Service,
}

impl fmt::Display for Terminating {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is being deleted since {}: {}", self.parent, self.since.0, self.service)
    }
}

impl<K> Custodian<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + fmt::Debug + Send + Sync + 'static,
{
    /// Is anybody serving the manager's finalizers? Lists the parents, everywhere or in `namespace`, that are being deleted
    /// and kept by them, longest first. Reads only.
    ///
    /// An operator at work begins within seconds: a parent of which nobody has begun the teardown for minutes is served by
    /// nobody. Start the operator, or [`drain`](Self::drain).
    ///
    /// # Permissions
    /// `list` on the parent kind, and what the inventory store needs to read.
    ///
    /// # Errors
    /// [`Error::ParentUnreadable`] if the parents could not be listed.
    pub async fn terminating(&self, namespace: Option<&str>) -> Result<Vec<Terminating>, Error> {
        let (inner, mut found) = (&self.inner, Vec::new());
        for (parent, meta) in inner.parents_of(&parent_resource::<K>(), namespace).await? {
            let Some(since) = meta.deletion_timestamp.clone().filter(|_| is_held(&inner.manager, &meta)) else {
                continue;
            };
            let finalizers = meta.finalizers.into_iter().flatten().filter(|f| inner.manager.owns_key(f)).collect();
            let service = match inner.store.load(&parent).await {
                Err(error) => Service::Unknown { words: error.to_string() },
                Ok(loaded) => match loaded.snapshot().map(|s| &s.inventory) {
                    None => Service::NoRecord,
                    Some(inventory) if inventory.decision.is_some() => Service::Begun { left: inventory.len() },
                    Some(_) => Service::NotBegun,
                },
            };
            found.push(Terminating { parent, since, finalizers, service });
        }
        found.sort_by(|a, b| (a.since.0, &a.parent).cmp(&(b.since.0, &b.parent)));
        Ok(found)
    }

    /// Finishes the parents that are going before this process ends: those that are being deleted, and those whose
    /// namespace is. Call it when the process is told to stop (SIGTERM), after the controller has stopped handing out
    /// reconciles; or from a command, for parents that nobody serves.
    ///
    /// A namespace that is deleted takes its Pods first, and everything else only when they are gone, so an operator in
    /// it is told to stop *before* its parents are deleted. A parent in such a namespace is lost in any case: it is
    /// deleted here, and torn down while there is somebody to do it. All other parents are left as they are; another
    /// process, or the next start, serves them. Two processes that do this at once, or beside a controller, do no harm.
    ///
    /// # Caveats
    /// What cannot be finished within the grace period stays `Terminating`, and its namespace with it, until a process
    /// serves it again: see [`terminating`](Self::terminating) and [`Drain::release_rest`].
    ///
    /// # Permissions
    /// What the operator has, and `delete` on the parents; `get` on `namespaces` to see which are being deleted. Rights
    /// that a Role in the namespace gives last, because the namespace's Pods go before it.
    ///
    /// # Errors
    /// [`Error::ParentUnreadable`] if the parents could not be listed.
    pub async fn drain(&self, options: &Drain) -> Result<Drained, Error> {
        let kind = parent_resource::<K>();
        let deadline = Instant::now() + options.within;
        // A slice under way outlasts the moment at which it should end.
        let reserve = (options.within / 4).max(self.inner.slice * 3).min(options.within);
        let finish_by = if options.release { deadline - reserve } else { deadline };
        let mut drained = Drained::default();
        let mut going: BTreeMap<ParentRef, String> = BTreeMap::new();
        loop {
            let parents = self.inner.parents_of(&kind, options.namespace.as_deref()).await?;
            let closing = self.closing(&parents, &mut drained).await;
            let doomed = parents.into_iter().filter(|(parent, meta)| {
                is_held(&self.inner.manager, meta)
                    && (meta.deletion_timestamp.is_some() || parent.id.namespace().is_some_and(|n| closing.contains(n)))
            });
            let doomed: BTreeMap<ParentRef, ObjectMeta> = doomed.collect();
            drained.finished.extend(going.keys().filter(|p| !doomed.contains_key(*p)).cloned());
            let steps = doomed
                .iter()
                .map(|(parent, meta)| async move { (parent.clone(), self.finish_parent(parent, meta).await) }.boxed());
            let steps: Vec<_> = steps.collect();
            going = stream::iter(steps).buffer_unordered(AT_ONCE).collect().await;
            if going.is_empty() || Instant::now() >= finish_by {
                break;
            }
            tokio::time::sleep_until(finish_by.min(Instant::now() + AGAIN)).await;
        }
        for (parent, words) in going {
            // The last step may just have finished it.
            match self.inner.find_parent(&parent).await {
                Ok(None) => drained.finished.push(parent),
                Ok(meta) if options.release => match self.release_parent(parent.clone(), meta, options, deadline).await
                {
                    Ok(()) => drained.released.push(parent),
                    Err(Stuck(stuck)) => drained.left.push((parent, stuck)),
                },
                _ => drained.left.push((parent, words)),
            }
        }
        drained.finished.sort();
        Ok(drained)
    }

    /// The namespaces among those of `parents` that are being deleted.
    async fn closing(&self, parents: &[(ParentRef, ObjectMeta)], drained: &mut Drained) -> BTreeSet<String> {
        let namespaces: BTreeSet<_> = parents.iter().filter_map(|(p, _)| p.id.namespace()).collect();
        let resource = ResourceKind::new("", "v1", "Namespace", "namespaces", Scope::Cluster);
        let mut closing = BTreeSet::new();
        drained.unread.clear();
        for namespace in namespaces {
            let Ok(id) = ObjectId::new("", "Namespace", None, namespace) else { continue };
            match find_metadata(&self.inner.home.client, &resource, &id).await {
                Ok(Some(meta)) if meta.deletion_timestamp.is_some() => drop(closing.insert(namespace.to_owned())),
                Ok(_) => {}
                Err(refusal) => drained.unread.push(refusal.words_for(&id)),
            }
        }
        closing
    }

    /// One slice of the end of a parent. Returns what it waits for, in words.
    async fn finish_parent(&self, parent: &ParentRef, meta: &ObjectMeta) -> String {
        if meta.deletion_timestamp.is_none()
            && let Err(refusal) = delete(&self.inner.home.client, &parent.resource(), &parent.id, meta).await
        {
            return refusal.words_for(&parent.id);
        }
        let outcome = match self.typed(parent).await {
            Ok(Some(typed)) => self.finalize(&typed, parent).await,
            Ok(None) => return "it has just gone".into(),
            Err(Stuck(words)) => return words,
        };
        match &outcome.phase {
            Phase::Held(hold) => hold.to_string(),
            Phase::Failed => outcome.error.map(|error| error.to_string()).unwrap_or_default(),
            _ => waits_for(&outcome),
        }
    }

    async fn release_parent(
        &self,
        parent: ParentRef,
        meta: Option<ObjectMeta>,
        options: &Drain,
        deadline: Instant,
    ) -> Result<(), Stuck> {
        let subject = Subject { parent, meta };
        let at = self.whereabouts(&subject).await?;
        let loosened = self.inner.loosen_parent(&at, &subject, &options.reason, Extent::Everything, deadline).await?;
        if let Some(words) = &loosened.unproven {
            return Err(Stuck(words.clone()));
        }
        self.inner.part_with(&subject, loosened).await.map(drop)
    }
}

/// What a parent that is being deleted waits for.
pub(super) fn waits_for(outcome: &Outcome) -> String {
    if let Phase::Blocked(blocked) = &outcome.phase {
        return blocked.to_string();
    }
    let first = outcome.removal.blockers.iter().chain(&outcome.removal.waiting).next();
    match first {
        Some(first) => format!("{} objects are left: {first}", outcome.removal.unfinished()),
        None => outcome.notes.first().cloned().unwrap_or_else(|| "it is being let go of".into()),
    }
}
