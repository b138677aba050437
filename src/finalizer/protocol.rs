//! The exchange with the API server, decided without IO: what to send after each answer, and when to stop.

use json_patch::Patch;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{AnnotationUpdate, Error, Finalizer, Plan};
use crate::{
    answer::{Answer, Refusal},
    object::{LiveRef, ResourceKind, Uid},
};

/// What is to become of the finalizers.
#[derive(Clone, Copy)]
pub(super) enum Intent<'a> {
    Hold(&'a [AnnotationUpdate<'a>]),
    Release,
}

/// What follows from the object's metadata.
pub(super) enum Verdict {
    /// Nothing is left to do on this object.
    Settled,
    /// The name belongs to another incarnation.
    Recreated(Uid),
    /// Send this.
    Patch(Patch),
}

/// What follows from an accepted patch.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Accepted {
    /// The answer counts as a read.
    Judge,
    /// Only a new read counts.
    Confirm,
}

/// What follows from a refusal that is no error.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    Gone,
    ReadAgain,
}

pub(super) struct Protocol<'a> {
    finalizer: &'a Finalizer,
    target: &'a LiveRef,
    resource: &'a ResourceKind,
    intent: Intent<'a>,
    attempts: u32,
    /// The resource version that the last patch was made from.
    version: Option<String>,
    /// Whether the last patch added our first finalizer.
    first: bool,
    /// The refusal that made us read again.
    last: Option<Refusal>,
}

impl<'a> Protocol<'a> {
    /// Patches sent before giving up on an object that others keep changing.
    pub(super) const MAX_ATTEMPTS: u32 = 10;

    pub(super) fn new(
        finalizer: &'a Finalizer,
        resource: &'a ResourceKind,
        target: &'a LiveRef,
        intent: Intent<'a>,
    ) -> Self {
        Self { finalizer, target, resource, intent, attempts: 0, version: None, first: false, last: None }
    }

    /// Judges metadata that was read live.
    pub(super) fn judge(&mut self, meta: &ObjectMeta) -> Result<Verdict, Error> {
        let uid = Uid::new(meta.uid.as_deref().unwrap_or(""))
            .map_err(|source| Error::NotLive { id: Some(self.target.id.clone()), source })?;
        if uid != self.target.uid {
            return Ok(Verdict::Recreated(uid));
        }
        let plan = match self.intent {
            Intent::Hold(annotations) => self.finalizer.plan_add(meta, &uid, annotations),
            Intent::Release => self.finalizer.plan_remove(meta, &uid),
        };
        let Plan::Patch(patch) = plan else { return Ok(Verdict::Settled) };
        // Nobody wrote since the read that the refused patch was made from: no test can have failed on a race.
        if self.version.is_some()
            && self.version == meta.resource_version
            && let Some(refusal) = self.last.take()
        {
            return Err(self.refused(refusal));
        }
        if self.attempts == Self::MAX_ATTEMPTS {
            return Err(Error::Contended {
                id: self.target.id.clone(),
                attempts: self.attempts,
                refusal: self.last.take(),
            });
        }
        self.attempts += 1;
        self.version.clone_from(&meta.resource_version);
        self.first = matches!(self.intent, Intent::Hold(_)) && !self.finalizer.is_on(meta);
        Ok(Verdict::Patch(patch))
    }

    /// The last patch was accepted.
    ///
    /// A DELETE that read the object before it had any finalizer may still remove it, although both requests are
    /// answered 200; so after our first finalizer only a read counts.
    pub(super) fn accepted(&mut self) -> Accepted {
        self.last = None;
        if self.first { Accepted::Confirm } else { Accepted::Judge }
    }

    /// A read was refused; `Ok` means that the object does not exist.
    pub(super) fn read_refused(&self, refusal: Refusal) -> Result<(), Error> {
        if refusal.answer().names(self.resource, self.target.id.name()) {
            return Ok(());
        }
        Err(Error::Read { id: self.target.id.clone(), refusal })
    }

    /// The last patch was refused.
    pub(super) fn patch_refused(&mut self, refusal: Refusal) -> Result<Refused, Error> {
        match refusal.answer() {
            answer if answer.names(self.resource, self.target.id.name()) => Ok(Refused::Gone),
            // A test did not hold, or the server gave up on concurrent writes; a read tells the rest. A validator's
            // 422 is told from a failed test by the read as well.
            Answer::PatchRejected
            | Answer::Conflict
            | Answer::VersionMismatch
            | Answer::UidMismatch
            | Answer::FinalizersClosed
            | Answer::Invalid => {
                self.last = Some(refusal);
                Ok(Refused::ReadAgain)
            }
            _ => Err(self.refused(refusal)),
        }
    }

    fn refused(&self, refusal: Refusal) -> Error {
        Error::Write { id: self.target.id.clone(), finalizers: self.finalizer.to_string(), refusal }
    }
}
