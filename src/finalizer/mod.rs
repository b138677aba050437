//! Finalizers that let go only when the work is done.
//!
//! A finalizer is a promise: the object stays until its operator has cleaned up. This module keeps the promise in
//! both directions. It decides when a finalizer may be added, when cleanup runs and when the finalizer goes; what cleanup
//! *is*, is the caller's. It works alone, for any kind, with nothing else of this crate.
//!
//! ```no_run
//! use kube_custody::finalizer::{Event, Finalizer, Outcome, Progress};
//! # use k8s_openapi::api::core::v1::ConfigMap;
//! # async fn apply(_: &ConfigMap) -> Result<(), std::io::Error> { Ok(()) }
//! # async fn gone(_: &ConfigMap) -> Result<bool, std::io::Error> { Ok(true) }
//! # async fn reconcile(api: kube_client::Api<ConfigMap>, object: ConfigMap) -> Result<(), Box<dyn std::error::Error>> {
//! let finalizer = Finalizer::new("gittrack.example.com/cleanup")?.legacy(["gittrack.example.com"])?;
//! let outcome = finalizer
//!     .reconcile(&api, &object, async |event| match event {
//!         Event::Apply(object) => apply(&object).await.map(|()| Progress::Done),
//!         Event::Cleanup(object) if gone(&object).await? => Ok(Progress::Done),
//!         Event::Cleanup(_) => Ok(Progress::after(std::time::Duration::from_secs(10))),
//!     })
//!     .await?;
//! # Ok(()) }
//! ```
//!
//! # Guarantees
//! - A finalizer is never added to an object that is being deleted, be it in the cache or live.
//! - `Apply` runs only after a live read showed the object not deleting and with every finalizer on it. `Cleanup` runs
//!   only if one of them, current or legacy, is on it.
//! - The finalizer goes only after `Cleanup` returned [`Progress::Done`].
//! - Every patch tests the UID: another incarnation under the same name is left alone.
//! - Other parties' finalizers are neither removed nor reordered. Several finalizers of ours leave in one patch.
//! - 404 while removing is success. An object that is not there, or not the same any more, is an outcome, no error.
//!
//! # Caveats
//! - A DELETE that has read the object before its *first* finalizer was added can remove it all the same, although both
//!   requests are answered 200 (kubernetes/kubernetes#77988). The live read afterwards closes that window but for the
//!   instant between two requests. Create external things only in `Apply`, or put the finalizer into the create.
//! - A removal is an UPDATE to admission: a policy that validates the whole object can refuse it, and the object stays.
//!   [`Error::Write`] carries the server's words. Policies should admit updates of objects that have a
//!   `deletionTimestamp`.
//! - Nothing here has a time-out: a stuck cleanup is `Pending`, with the time since when.
//!
//! # Permissions
//! `get` and `patch` on the kind.

mod name;
mod plan;
mod protocol;
mod remote;

use std::{fmt, future::Future, sync::Arc, time::Duration};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_client::{Api, Client, api::PatchParams};
use kube_core::Resource;
use kube_runtime::controller::Action;
use serde::de::DeserializeOwned;

use self::{
    name::LegacyName,
    protocol::{Intent, Protocol},
    remote::{End, Server, drive, identify, metadata_api},
};
pub use self::{
    name::{FinalizerName, InvalidName},
    plan::{AnnotationUpdate, Plan},
};
use crate::{
    answer::Refusal,
    object::{self, LiveRef, ObjectId, ResourceKind, Uid},
};

/// Why the finalizers of an object could not be brought into order.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The object was not read from an API server: it lacks a name or a UID.
    #[error("{} is not an object read from the API server: {source}", .id.as_ref().map_or_else(|| "this".to_owned(), ToString::to_string))]
    NotLive {
        /// Which object, where that much is known.
        id: Option<ObjectId>,
        /// What is missing.
        source: object::Error,
    },
    /// The identity does not fit the scope of its kind.
    #[error("cannot reach {id}: {source}")]
    Scope {
        /// Which object.
        id: ObjectId,
        /// What does not fit.
        source: object::Error,
    },
    /// The object could not be read. Nothing was changed.
    #[error("cannot read {id}: {refusal}")]
    Read {
        /// Which object.
        id: ObjectId,
        /// The API server's words.
        #[source]
        refusal: Refusal,
    },
    /// The patch was refused, or its answer was lost; [`Refusal::answer`] tells which. An admission refusal stands until
    /// the policy or the object changes.
    #[error("cannot change finalizers {finalizers} of {id}: {refusal}")]
    Write {
        /// Which object.
        id: ObjectId,
        /// Which finalizers, joined by commas.
        finalizers: String,
        /// The API server's words.
        #[source]
        refusal: Refusal,
    },
    /// Others changed the object between every read and patch, or undid every patch.
    #[error(
        "finalizers of {id} were changed by others during each of {attempts} patches: try again later, and look for a \
         writer that replaces metadata.finalizers{}", .refusal.as_ref().map(|r| format!(" (last answer: {r})")).unwrap_or_default()
    )]
    Contended {
        /// Which object.
        id: ObjectId,
        /// How many patches were sent.
        attempts: u32,
        /// The last refusal, if the last patch was refused.
        #[source]
        refusal: Option<Refusal>,
    },
}

/// Why a reconciliation failed. `E` is the caller's error and may be anything.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReconcileError<E> {
    /// The caller's `Apply` failed.
    #[error("cannot apply: {0}")]
    Apply(E),
    /// The caller's `Cleanup` failed; the finalizer stays.
    #[error("cannot clean up: {0}")]
    Cleanup(E),
    /// The finalizer itself could not be handled.
    #[error(transparent)]
    Finalizer(Error),
}

/// What the caller has to do. The object was read live a moment ago.
#[derive(Clone, Debug)]
#[allow(clippy::exhaustive_enums, reason = "an object is being deleted or it is not")]
pub enum Event<K> {
    /// Bring about what the object asks for.
    Apply(Arc<K>),
    /// The object is being deleted: undo what `Apply` did. `Apply` may never have run, or only in part.
    Cleanup(Arc<K>),
}

/// How far the caller got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "work is done or it is not")]
pub enum Progress {
    /// All done. After `Cleanup`, the finalizer goes.
    Done,
    /// Not yet: look again after this time. After `Cleanup`, the finalizer stays.
    Pending {
        /// When to look again.
        after: Duration,
    },
}

impl Progress {
    /// Not yet: look again after `after`.
    #[must_use]
    pub fn after(after: Duration) -> Self {
        Self::Pending { after }
    }
}

/// How a reconciliation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// `Apply` is done; the finalizer is on the object.
    Applied,
    /// `Apply` or `Cleanup` is not done; the finalizer is on the object.
    Pending {
        /// When to look again.
        after: Duration,
        /// Since when the object is being deleted, if it is.
        deleting_since: Option<jiff::Timestamp>,
    },
    /// `Cleanup` is done and the finalizer is off.
    Released,
    /// The object is being deleted and carries no finalizer of ours: nothing to do, nothing was called.
    NotHeld,
    /// The object does not exist any more.
    Gone,
    /// The object was deleted and created again; the new incarnation was left alone and will be reconciled by itself.
    Recreated {
        /// The new incarnation.
        uid: Uid,
    },
}

impl Outcome {
    /// When to look again, if nothing changes before.
    #[must_use]
    pub fn requeue_after(&self) -> Option<Duration> {
        match self {
            Self::Pending { after, .. } => Some(*after),
            _ => None,
        }
    }
}

impl From<Outcome> for Action {
    fn from(outcome: Outcome) -> Self {
        outcome.requeue_after().map_or_else(Self::await_change, Self::requeue)
    }
}

/// What [`Finalizer::ensure`] found or brought about.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Ensured {
    /// The finalizers and annotations are on the object, which is not being deleted: metadata as the server last gave it.
    Held(Box<ObjectMeta>),
    /// The object is being deleted; nothing was added.
    Deleting(Box<ObjectMeta>),
    /// The object does not exist.
    Gone,
    /// The name belongs to another incarnation, which was left alone.
    Recreated(Uid),
}

/// What [`Finalizer::release`] found or brought about. In every case no finalizer of ours is on the incarnation asked for.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Released {
    /// The object exists without the finalizers: metadata as the server last gave it. If it was being deleted and these
    /// were the last ones, it is gone by now.
    Off(Box<ObjectMeta>),
    /// The object does not exist.
    Gone,
    /// The name belongs to another incarnation, which was left alone.
    Recreated(Uid),
}

/// One or more finalizers of one operator, handled as one.
///
/// Displays as the current names, joined by commas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finalizer {
    /// Never empty.
    names: Vec<FinalizerName>,
    legacy: Vec<LegacyName>,
    field_manager: String,
}

impl fmt::Display for Finalizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, name) in self.names.iter().enumerate() {
            if index > 0 {
                f.write_str(", ")?;
            }
            fmt::Display::fmt(name, f)?;
        }
        Ok(())
    }
}

impl Finalizer {
    /// Longest field manager that the API server accepts.
    const MAX_FIELD_MANAGER: usize = 128;

    /// A finalizer. Its name becomes the field manager; of a longer one the last 128 bytes, which are allowed.
    ///
    /// Not the domain alone, because an operator is likely to apply objects under that: what one field manager applies
    /// it also takes off again where a manifest does not name it, its own finalizer on the same object included.
    ///
    /// # Errors
    /// [`InvalidName`] unless the name is qualified: `<domain>/<name>`.
    pub fn new(name: impl AsRef<str>) -> Result<Self, InvalidName> {
        let name = FinalizerName::new(name)?;
        let text = name.as_str();
        let field_manager = text.get(text.len().saturating_sub(Self::MAX_FIELD_MANAGER)..).unwrap_or(text).to_owned();
        Ok(Self { names: vec![name], legacy: Vec::new(), field_manager })
    }

    /// Handles another finalizer together with these: added in one patch, removed in one patch.
    ///
    /// # Errors
    /// [`InvalidName`] unless the name is qualified.
    pub fn and(mut self, name: impl AsRef<str>) -> Result<Self, InvalidName> {
        let name = FinalizerName::new(name)?;
        if !self.names.contains(&name) {
            self.names.push(name);
        }
        Ok(self)
    }

    /// Names that earlier versions of the operator used, qualified or not. They count as ours when an object is
    /// deleted, are removed together with the current names, and are never added.
    ///
    /// # Errors
    /// [`InvalidName`] if a name is one that Kubernetes itself acts on, or could never have been stored.
    pub fn legacy<S: AsRef<str>>(mut self, names: impl IntoIterator<Item = S>) -> Result<Self, InvalidName> {
        for name in names {
            self.legacy.push(LegacyName::new(name.as_ref())?);
        }
        Ok(self)
    }

    /// Sets the field manager that the patches are recorded under, cut to the 128 bytes that are allowed.
    #[must_use]
    pub fn field_manager(mut self, name: impl Into<String>) -> Self {
        let name: String = name.into();
        let fits =
            name.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|end| *end <= Self::MAX_FIELD_MANAGER);
        self.field_manager = name.get(..fits.last().unwrap_or(0)).unwrap_or_default().to_owned();
        self
    }

    /// The names that are added.
    #[must_use]
    pub fn names(&self) -> &[FinalizerName] {
        &self.names
    }

    /// Reconciles one object of a kind known at compile time: holds it while it lives, lets it go when it is
    /// cleaned up.
    ///
    /// `object` says which incarnation is meant and may come from a cache. It is read live first, and `act` is given what
    /// was read. One GET if the finalizer is in place, GET + PATCH + GET when it is added, GET + PATCH for the release.
    ///
    /// Dropping the future at any point is safe: the next call takes up from the live state.
    ///
    /// # Errors
    /// [`ReconcileError`] tells the caller's errors from those of the protocol. The finalizer stays on any error.
    pub async fn reconcile<K, F, Fut, E>(&self, api: &Api<K>, object: &K, act: F) -> Result<Outcome, ReconcileError<E>>
    where
        K: Resource + Clone + DeserializeOwned + fmt::Debug + Send + Sync + 'static,
        K::DynamicType: Default,
        F: FnOnce(Event<K>) -> Fut,
        Fut: Future<Output = Result<Progress, E>>,
    {
        self.reconcile_with(api, object, &K::DynamicType::default(), act).await
    }

    /// [`reconcile`](Self::reconcile) for a kind known at run time.
    ///
    /// # Errors
    /// As there.
    pub async fn reconcile_with<K, F, Fut, E>(
        &self,
        api: &Api<K>,
        object: &K,
        kind: &K::DynamicType,
        act: F,
    ) -> Result<Outcome, ReconcileError<E>>
    where
        K: Resource + Clone + DeserializeOwned + fmt::Debug + Send + Sync + 'static,
        F: FnOnce(Event<K>) -> Fut,
        Fut: Future<Output = Result<Progress, E>>,
    {
        let (resource, target) = identify(object, kind).map_err(ReconcileError::Finalizer)?;
        let protocol = Protocol::new(self, &resource, &target, Intent::Hold(&[]));
        let settled = drive(&self.server(api), &target.id, protocol, None).await.map_err(ReconcileError::Finalizer)?;
        let live = match settled {
            End::Settled(live) => live,
            End::Gone => return Ok(Outcome::Gone),
            End::Recreated(uid) => return Ok(Outcome::Recreated { uid }),
        };
        let Some(deleted) = &live.meta().deletion_timestamp else {
            return match act(Event::Apply(Arc::new(live))).await.map_err(ReconcileError::Apply)? {
                Progress::Done => Ok(Outcome::Applied),
                Progress::Pending { after } => Ok(Outcome::Pending { after, deleting_since: None }),
            };
        };
        if !self.is_on(live.meta()) {
            return Ok(Outcome::NotHeld);
        }
        let deleting_since = Some(deleted.0);
        let live = Arc::new(live);
        match act(Event::Cleanup(Arc::clone(&live))).await.map_err(ReconcileError::Cleanup)? {
            Progress::Pending { after } => return Ok(Outcome::Pending { after, deleting_since }),
            Progress::Done => {}
        }
        let protocol = Protocol::new(self, &resource, &target, Intent::Release);
        let known = Arc::unwrap_or_clone(live);
        match drive(&self.server(api), &target.id, protocol, Some(known)).await.map_err(ReconcileError::Finalizer)? {
            End::Settled(_) | End::Gone => Ok(Outcome::Released),
            End::Recreated(uid) => Ok(Outcome::Recreated { uid }),
        }
    }

    /// Brings the finalizers, and in the same patch some annotations, onto an object that is not being deleted.
    ///
    /// One GET if everything is in place. After our first finalizer was added, another GET confirms that the object is
    /// still there and not being deleted. Only metadata is transferred.
    ///
    /// # Errors
    /// [`Error`]; whether something was changed is then unknown, and calling again is safe.
    pub async fn ensure(
        &self,
        client: &Client,
        resource: &ResourceKind,
        target: &LiveRef,
        annotations: &[AnnotationUpdate<'_>],
    ) -> Result<Ensured, Error> {
        let api = metadata_api(client, resource, &target.id)?;
        let protocol = Protocol::new(self, resource, target, Intent::Hold(annotations));
        Ok(match drive(&self.server(&api), &target.id, protocol, None).await? {
            End::Gone => Ensured::Gone,
            End::Recreated(uid) => Ensured::Recreated(uid),
            End::Settled(o) if o.metadata.deletion_timestamp.is_some() => Ensured::Deleting(Box::new(o.metadata)),
            End::Settled(o) => Ensured::Held(Box::new(o.metadata)),
        })
    }

    /// Takes the finalizers, current and legacy, off an object, whether or not it is being deleted.
    ///
    /// The caller vouches that nothing is left to clean up. One GET, and one PATCH if there is something to remove. Only
    /// metadata is transferred.
    ///
    /// # Errors
    /// [`Error`]; whether something was changed is then unknown, and calling again is safe.
    pub async fn release(&self, client: &Client, resource: &ResourceKind, target: &LiveRef) -> Result<Released, Error> {
        let api = metadata_api(client, resource, &target.id)?;
        let protocol = Protocol::new(self, resource, target, Intent::Release);
        Ok(match drive(&self.server(&api), &target.id, protocol, None).await? {
            End::Settled(o) => Released::Off(Box::new(o.metadata)),
            End::Gone => Released::Gone,
            End::Recreated(uid) => Released::Recreated(uid),
        })
    }

    fn server<'a, K>(&self, api: &'a Api<K>) -> Server<'a, K> {
        let params = PatchParams { field_manager: Some(self.field_manager.clone()), ..PatchParams::default() };
        Server { api, params }
    }
}

#[cfg(test)]
mod tests;
