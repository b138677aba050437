//! What proves that an object is gone, what a refusal means, and what to ask next.
//!
//! Every path that deletes goes through [`Case`], one per object: it is told what the API server answered and says
//! what to do next. It sends nothing, reads no clock and knows no graph. The rules:
//!
//! An object is gone when
//! - a DELETE was answered by a Status Success whose `details.uid` is its UID ([`Proof::DeleteStatus`]),
//! - a DELETE was answered by the object itself with neither finalizers nor a deletion timestamp
//!   ([`Proof::DeletedObject`]; not for Pods and Namespaces, which live on),
//! - a GET or DELETE was answered by a Status with reason NotFound that names it, on a served version
//!   ([`Proof::NotFound`]),
//! - another incarnation without our back-pointer has its name ([`Proof::Replaced`]),
//! - the CustomResourceDefinition that defined its kind, read by name, is NotFound ([`Proof::KindGone`]).
//!
//! Nothing else. A plain-text 404 says that the version is not served (so the kind is resolved again); absence from
//! a selector's list, a DELETED event (a stripped label sends one) and absence from discovery (a restarting API
//! server lacks groups) each lead to one question and prove nothing. Refusals, time-outs and server errors leave the
//! object [unknown](Reason::Unknown), and unknown blocks.

use std::{collections::BTreeSet, fmt, sync::Arc, time::Duration};

use super::{
    in_use::{self, Container, Inside, Stance, Verdict},
    live::{Authority, Live},
};
use crate::{
    answer::{Answer, Refusal},
    inventory::{EntryState, InUsePolicy, Role},
    object::{LiveRef, ObjectId, ResourceKind, Uid},
    ownership::Claim,
};

/// From this recreation on, an object that keeps coming back with our back-pointer is held and reported.
const RECREATIONS_BEFORE_HOLD: u32 = 3;
/// After this many rounds without an end, the object is left alone for a while.
const ROUNDS_IN_A_ROW: u32 = 8;
/// After this many rounds of reading and judging again, a busy writer no longer starves the DELETE: it goes with the UID alone.
const ROUNDS_WITH_RESOURCE_VERSION: u32 = 3;

/// Why an object counts as gone.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Proof {
    /// The DELETE's answer was a Status Success with the object's UID.
    DeleteStatus,
    /// The DELETE's answer was the object, with nothing left that could keep it.
    DeletedObject,
    /// A Status NotFound that names the object, on a served version.
    NotFound,
    /// Another incarnation, not ours, has the name.
    Replaced {
        /// The incarnation that was found.
        by: Uid,
    },
    /// The definition of the object's kind is gone, and all instances went with it.
    KindGone,
}

/// How an object was done with.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Settled {
    /// Proven gone.
    Gone(Proof),
    /// Left in the cluster without our marks.
    Detached,
    /// Given up by an explicit, recorded decision.
    Abandoned,
}

/// Why an object is not done with.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// It is terminating, and finalizers (or, with none left, the API server) still keep it.
    Terminating,
    /// Objects that depend on it are not gone.
    Dependents,
    /// It has our back-pointer nowhere and no recorded UID: it may be somebody else's. Never deleted; an explicit
    /// abandon releases it.
    Unproven,
    /// It is the recorded incarnation, but our back-pointer was taken off or changed. Never deleted; an explicit
    /// abandon releases it.
    Disowned,
    /// Somebody recreates it with our back-pointer as often as it is deleted. Held, so that two controllers do not
    /// fight for ever.
    Recreated {
        /// How often it came back.
        times: u32,
    },
    /// Admission (a policy or a webhook) refused the DELETE.
    Refused,
    /// RBAC refused a request.
    Forbidden,
    /// The API server asked for a pause.
    Throttled {
        /// For how long.
        after: Duration,
    },
    /// Whether it exists could not be told.
    Unknown,
    /// The ownership policy does not let the parent manage it (any more).
    NotManaged,
    /// Part of the inventory is unreadable, and what is in it may depend on the object.
    Damaged,
    /// Something that is not of the set uses it: content of a Namespace, objects of a defined kind.
    InUse {
        /// Some of what uses it, in order.
        by: Vec<ObjectId>,
        /// How much there is at least.
        count: usize,
    },
    /// Whether something uses it could not be told.
    UseUnknown,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Terminating => "is terminating",
            Self::Dependents => "waits for its dependents",
            Self::Unproven => "has this name, but nothing proves that it is ours; abandon it to go on",
            Self::Disowned => "lost the mark that it is ours; abandon it to go on",
            Self::Recreated { times } => {
                return write!(f, "was recreated with our mark {times} times; stop what recreates it");
            }
            Self::Refused => "admission refused its deletion",
            Self::Forbidden => "RBAC refused the request",
            Self::Throttled { .. } => "the API server asked for a pause",
            Self::Unknown => "cannot tell whether it exists",
            Self::NotManaged => {
                "the ownership policy does not let the parent manage it; widen it or abandon the object"
            }
            Self::Damaged => "an unreadable part of the inventory may depend on it",
            Self::InUse { by, count } => {
                f.write_str("is in use by ")?;
                for (n, id) in by.iter().enumerate() {
                    write!(f, "{}{id}", if n == 0 { "" } else { ", " })?;
                }
                if *count > by.len() {
                    write!(f, " and at least {} more", count - by.len())?;
                }
                return f.write_str(", and waits until that is gone");
            }
            Self::UseUnknown => "cannot tell whether something else uses it",
        })
    }
}

/// A reason with the API server's own words, where it had any.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Block {
    /// Why.
    pub reason: Reason,
    /// The API server's words; of a Secret only code and reason. Empty where nothing was said.
    pub words: String,
}

impl Block {
    /// A reason without words.
    #[must_use]
    pub fn new(reason: Reason) -> Self {
        Self { reason, words: String::new() }
    }

    pub(crate) fn said(reason: Reason, words: impl Into<String>) -> Self {
        Self { reason, words: words.into() }
    }
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.words.as_str() {
            "" => write!(f, "{}", self.reason),
            words => write!(f, "{}: {words}", self.reason),
        }
    }
}

/// What the object's dependents need when it is deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Propagation {
    /// The garbage collector takes dependents afterwards. The default.
    #[default]
    Background,
    /// The object stays until its dependents are gone: for workloads that something in the plan waits for, so that
    /// gone includes their pods.
    Foreground,
}

/// What is on record about the object.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Subject {
    /// Which object.
    pub id: ObjectId,
    /// How to ask for it; updated when the kind was resolved again.
    pub resource: ResourceKind,
    /// Whether a CustomResourceDefinition was seen to define the kind.
    pub defined_by_crd: bool,
    /// The recorded incarnation.
    pub uid: Option<Uid>,
    /// How far the record had come.
    pub state: EntryState,
    /// Child or proxy.
    pub role: Role,
    /// How often it was recreated before.
    pub recreations: u32,
    /// Leave it in the cluster.
    pub keep: bool,
    /// Mark it for this parent instead, if it asks for it.
    pub yield_to: Option<LiveRef>,
    /// What happens if something else uses it, for what contains other objects.
    pub in_use: InUsePolicy,
    /// Finalizers of others to strip, by an admitted request, once it is being deleted.
    pub strip: BTreeSet<String>,
    /// The DELETE's propagation policy.
    pub propagation: Propagation,
    /// The DELETE's grace period, if not the object's own.
    pub grace_period: Option<u32>,
}

impl Subject {
    /// An object of a kind that is served as `resource`, of which nothing else is known.
    #[must_use]
    pub fn new(id: ObjectId, resource: ResourceKind) -> Self {
        Self {
            id,
            resource,
            defined_by_crd: false,
            uid: None,
            state: EntryState::Intended,
            role: Role::Child,
            recreations: 0,
            keep: false,
            yield_to: None,
            in_use: InUsePolicy::Hold,
            strip: BTreeSet::new(),
            propagation: Propagation::Background,
            grace_period: None,
        }
    }
}

/// What to do next about one object.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// Read its metadata.
    Get,
    /// Look at what is in it, directly before its DELETE.
    Inspect,
    /// Delete it, on these preconditions.
    Delete {
        /// Which incarnation.
        uid: Uid,
        /// In which state; `None` after several rounds against a busy writer.
        resource_version: Option<String>,
    },
    /// Take the manager's own finalizer off this proxy owner, whose children are gone.
    Unguard(Live),
    /// Take the finalizers off that an admitted request names, and no others.
    Strip(Live),
    /// Take this parent's marks off and leave the object.
    Detach(Live),
    /// Mark it for the parent that asks for it, in place of this one.
    HandOver(Live),
    /// Take the references to this parent's proxies off an object that is not ours any more, or was given up, so that the
    /// garbage collector does not take it along with them, and this parent's request for it. Nothing else is touched.
    Unreference(Live),
    /// It is terminating: wait for a change, then ask [`Event::Changed`].
    Wait,
    /// Ask discovery how the kind is served now.
    Resolve,
    /// Read the CustomResourceDefinition of the kind by name.
    ReadDefinition,
    /// Read which webhooks this webhook configuration names.
    ReadWebhooks,
    /// Nothing; it is done with.
    Settle(Settled),
    /// Nothing for now; ask again with [`Event::Changed`] later.
    Block(Block),
}

/// What happened to one object, or what an answer said.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A GET, a PATCH or a watch showed it.
    Live(Live),
    /// A DELETE was answered by a Status Success with this `details.uid`.
    DeleteStatus(Option<Uid>),
    /// A DELETE was answered by the object.
    DeleteObject(Live),
    /// Its marks, or the references on it, were taken off.
    Detached,
    /// What is in it was read.
    Inside(Inside),
    /// What the subject says is on record by now.
    Recorded,
    /// A request failed.
    Refused(Refusal),
    /// Discovery answered: the kind as it is served, or that it is not in its group.
    Resolved(Option<ResourceKind>),
    /// The kind's definition, read by name: present, or proven not found.
    Definition {
        /// Whether it exists.
        exists: bool,
    },
    /// The webhooks that a webhook configuration names; `None` if it could not be read.
    Webhooks(Option<BTreeSet<String>>),
    /// Nothing could be learned, and why.
    Unknown(String),
    /// Something may have changed, or enough time has passed; nothing is known.
    Changed,
}

/// One object on its way out.
#[derive(Clone, Debug)]
pub struct Case {
    subject: Subject,
    authority: Arc<Authority>,
    manager_guard: Option<String>,
    live: Option<Live>,
    /// Rounds lost to preconditions.
    rounds: u32,
    /// Whether the last answer was a plain-text 404 on the version in `subject`.
    unserved: bool,
    /// Whether `subject` speaks of another incarnation than the record.
    unrecorded: bool,
    /// Whether an object that was given up was found to be gone.
    absent: bool,
}

impl Case {
    /// A case about `subject`; `live` is what a list or watch showed of it, if anything.
    #[must_use]
    pub fn new(subject: Subject, authority: impl Into<Arc<Authority>>, live: Option<Live>) -> Self {
        let authority = authority.into();
        let manager_guard = match authority.as_ref() {
            Authority::Marks { manager, .. } if subject.role == Role::Proxy => Some(manager.proxy_finalizer()),
            _ => None,
        };
        Self { subject, authority, manager_guard, live, rounds: 0, unserved: false, unrecorded: false, absent: false }
    }

    pub(super) fn authority(&self) -> &Authority {
        &self.authority
    }

    /// What is on record, with the UID, the recreations and the served version learned since.
    #[must_use]
    pub fn subject(&self) -> &Subject {
        &self.subject
    }

    /// The latest sight of the object.
    #[must_use]
    pub fn live(&self) -> Option<&Live> {
        self.live.as_ref()
    }

    /// Leaves the object in the cluster from now on.
    pub fn keep(&mut self) {
        self.subject.keep = true;
    }

    /// Takes [`keep`](Self::keep) back.
    pub(super) fn keep_no_more(&mut self) {
        self.subject.keep = false;
    }

    /// Whether another incarnation was met that is not on record yet. It is not deleted before [`Event::Recorded`].
    #[must_use]
    pub fn is_unrecorded(&self) -> bool {
        self.unrecorded
    }

    /// Whether the object is to stay: by policy, or because a foreign mark on it says so. Not a proxy: that is no part of
    /// what was wanted, and left behind with our finalizer it would keep its namespace for ever.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        if self.subject.role == Role::Proxy {
            return false;
        }
        let asked = |live: &Live| !self.is_other(live) && live.markers.iter().any(|m| m.verdict.keeps());
        self.subject.keep || self.subject.state == EntryState::Detaching || self.live.as_ref().is_some_and(asked)
    }

    /// Whether `live` is an incarnation that is not ours and was never on record.
    fn is_other(&self, live: &Live) -> bool {
        let recorded = self.subject.uid.as_ref();
        recorded.is_some_and(|uid| *uid != live.uid) && !self.may_delete(live)
    }

    pub(super) fn may_delete(&self, live: &Live) -> bool {
        match self.authority.as_ref() {
            Authority::Caller => self.subject.uid.as_ref() == Some(&live.uid),
            marks @ Authority::Marks { .. } => live.is_ours(marks, &self.subject.id),
        }
    }

    /// Whether it is to be marked for the parent that asks for it.
    fn yields(&self, live: &Live) -> bool {
        self.subject.role == Role::Child
            && live.wanted_by.is_some()
            && live.wanted_by.as_deref() == self.subject.yield_to.as_ref()
    }

    /// Whether another parent asked for it, and has it by now.
    fn was_handed_over(&self, live: &Live) -> bool {
        let Authority::Marks { parent, .. } = self.authority.as_ref() else { return false };
        let claim = live.claim(parent, &self.subject.id);
        self.yields(live)
            && matches!(claim, Claim::OtherParent { parent, .. } if Some(&parent) == self.subject.yield_to.as_ref())
    }

    /// Whether this parent asks another one of the manager for it.
    fn is_asked_for(&self, live: &Live) -> bool {
        let Authority::Marks { parent, .. } = self.authority.as_ref() else { return false };
        let claim = live.claim(parent, &self.subject.id);
        live.wanted_by.as_deref() == Some(&parent.live()) && matches!(claim, Claim::OtherParent { .. })
    }

    /// The first step, once everything that depends on the object is settled.
    #[must_use]
    pub fn start(&mut self) -> Step {
        // A list or watch that shows another incarnation than the one on record may be older than the record.
        let outdated = |live: &Live| self.subject.uid.as_ref().is_some_and(|uid| *uid != live.uid);
        if self.live.as_ref().is_some_and(outdated) {
            return Step::Get;
        }
        match self.judge() {
            // Of what a list or watch showed, only a request that names the state can follow.
            Step::Wait | Step::Block(_) | Step::Settle(_) => Step::Get,
            step => step,
        }
    }

    /// The next step after `event`.
    #[must_use]
    pub fn on(&mut self, event: Event) -> Step {
        match event {
            Event::Live(live) => {
                self.unserved = false;
                self.live = Some(live);
                self.judge()
            }
            Event::DeleteStatus(uid) if uid.is_some() && uid == self.expected() => {
                Step::Settle(Settled::Gone(Proof::DeleteStatus))
            }
            Event::DeleteStatus(_) => Step::Get,
            // What a configuration names is for the course to judge.
            Event::Changed | Event::Webhooks(_) => {
                self.rounds = 0;
                Step::Get
            }
            Event::DeleteObject(live) => self.delete_answered(live),
            Event::Inside(inside) => {
                let verdict = in_use::judge(self.subject.in_use, &inside, |_, _| Stance::Foreign);
                self.inspected(verdict)
            }
            Event::Detached if self.is_given_up() => Step::Settle(Settled::Abandoned),
            Event::Detached => Step::Settle(Settled::Detached),
            Event::Recorded => {
                self.unrecorded = false;
                Step::Get
            }
            Event::Refused(refusal) if self.is_given_up() => self.refused_given_up(&refusal),
            Event::Refused(refusal) => self.refused(&refusal),
            Event::Unknown(words) => Step::Block(Block::said(Reason::Unknown, words)),
            Event::Resolved(Some(kind)) if kind.version == self.subject.resource.version && self.unserved => {
                // Served according to discovery, not served according to the request: one of them is behind.
                self.unserved = false;
                Step::Block(Block::said(Reason::Unknown, format!("{} is being brought up", kind.api_version())))
            }
            Event::Resolved(Some(kind)) => {
                self.subject.resource = kind;
                Step::Get
            }
            Event::Resolved(None) if self.subject.defined_by_crd => Step::ReadDefinition,
            Event::Resolved(None) => Step::Block(Block::said(
                Reason::Unknown,
                format!("the API server does not serve {} at present", self.subject.id.group_kind()),
            )),
            Event::Definition { exists: false } if self.subject.defined_by_crd => {
                Step::Settle(Settled::Gone(Proof::KindGone))
            }
            Event::Definition { .. } => Step::Block(Block::said(
                Reason::Unknown,
                format!("{} is defined but not served at present", self.subject.id.group_kind()),
            )),
        }
    }

    /// The incarnation that the last DELETE was about.
    fn expected(&self) -> Option<Uid> {
        self.live.as_ref().map(|l| l.uid.clone()).or_else(|| self.subject.uid.clone())
    }

    pub(super) fn is_given_up(&self) -> bool {
        self.subject.state == EntryState::Abandoned
    }

    /// Whether an object that was given up was found to be gone.
    pub(super) fn is_absent(&self) -> bool {
        self.absent
    }

    /// Whose the object is, in words, if not ours.
    fn words_about(&self, live: &Live) -> String {
        match self.authority.as_ref() {
            Authority::Marks { parent, .. } => match live.claim(parent, &self.subject.id) {
                Claim::Unmarked { .. } => String::new(),
                claim => claim.to_string(),
            },
            Authority::Caller => String::new(),
        }
    }

    /// What follows from what is in the object, as a container. Valid for this one DELETE.
    pub(super) fn inspected(&mut self, verdict: Verdict) -> Step {
        match verdict {
            Verdict::Free => self.judged(true),
            Verdict::Keep(_) => {
                self.keep();
                self.judge()
            }
            Verdict::Hold(block) => Step::Block(block),
        }
    }

    /// Judges the live object: whose it is, and what that allows.
    fn judge(&mut self) -> Step {
        self.judged(false)
    }

    /// [`judge`](Self::judge); `inspected` says that what the object contains was just looked at and may go with it.
    fn judged(&mut self, inspected: bool) -> Step {
        let Some(live) = self.live.clone() else { return Step::Get };
        if self.is_given_up() {
            return Step::Unreference(live);
        }
        let recorded = self.subject.uid.clone();
        let same = recorded.as_ref() == Some(&live.uid);
        if !self.may_delete(&live) {
            return match recorded {
                Some(_) if !same => Step::Settle(Settled::Gone(Proof::Replaced { by: live.uid })),
                Some(_) if self.was_handed_over(&live) => Step::Settle(Settled::Detached),
                // It was somebody else's when it was asked for, and is still.
                None if self.is_asked_for(&live) => Step::Unreference(live),
                // Detaching, or somebody else, took the marks off; a reference may be left.
                _ if self.is_kept() => Step::Unreference(live),
                // On its way out already: there is nothing left to send, whoever took the marks off.
                Some(_) if live.is_terminating() => Step::Wait,
                Some(_) => Step::Block(Block::said(Reason::Disowned, self.words_about(&live))),
                None => Step::Block(Block::said(Reason::Unproven, self.words_about(&live))),
            };
        }
        if !same {
            if recorded.is_some() {
                self.subject.recreations += 1;
                self.unrecorded = true;
            }
            self.subject.uid = Some(live.uid.clone());
        }
        if !self.unrecorded && !live.is_terminating() && self.yields(&live) {
            return Step::HandOver(live);
        }
        if self.is_kept() {
            return Step::Detach(live);
        }
        if self.unrecorded || self.subject.recreations >= RECREATIONS_BEFORE_HOLD {
            return Step::Block(Block::new(Reason::Recreated { times: self.subject.recreations }));
        }
        if self.manager_guard.as_ref().is_some_and(|guard| live.finalizers.contains(guard)) {
            return Step::Unguard(live);
        }
        if live.is_terminating() {
            let named = live.finalizers.iter().any(|f| self.subject.strip.contains(f));
            return if named { Step::Strip(live) } else { Step::Wait };
        }
        if !inspected && Container::of(&self.subject.id).is_some() {
            return Step::Inspect;
        }
        let resource_version = (self.rounds < ROUNDS_WITH_RESOURCE_VERSION).then(|| live.resource_version.clone());
        Step::Delete { uid: live.uid, resource_version }
    }

    /// A DELETE was answered by the object.
    fn delete_answered(&mut self, live: Live) -> Step {
        let ours = Some(&live.uid) == self.expected().as_ref();
        let lives_on = self.subject.id.is("", "Pod") || self.subject.id.is("", "Namespace");
        let over = ours && !lives_on && live.finalizers.is_empty() && !live.is_terminating();
        if over {
            return Step::Settle(Settled::Gone(Proof::DeletedObject));
        }
        if !ours || !live.is_terminating() {
            return Step::Get;
        }
        self.live = Some(live);
        self.judge()
    }

    /// A request about an object that is given up was refused. Only what may pass is waited for: the decision was made in
    /// order not to depend on the object.
    fn refused_given_up(&mut self, refusal: &Refusal) -> Step {
        match refusal.answer() {
            Answer::UidMismatch | Answer::VersionMismatch | Answer::Conflict if self.rounds < ROUNDS_IN_A_ROW => {
                self.rounds += 1;
                Step::Get
            }
            Answer::TooManyRequests { .. }
            | Answer::Timeout { .. }
            | Answer::Unavailable { .. }
            | Answer::NoAnswer
            | Answer::Unreadable => self.refused(refusal),
            answer => {
                if answer.names(&self.subject.resource, self.subject.id.name()) {
                    self.live = None;
                    self.absent = true;
                }
                Step::Settle(Settled::Abandoned)
            }
        }
    }

    /// A request was refused, or its answer was lost.
    fn refused(&mut self, refusal: &Refusal) -> Step {
        let block = |reason| Step::Block(Block::said(reason, refusal.words_for(&self.subject.id)));
        match refusal.answer() {
            answer @ Answer::NotFound { .. } if answer.names(&self.subject.resource, self.subject.id.name()) => {
                Step::Settle(Settled::Gone(Proof::NotFound))
            }
            Answer::NoRoute => {
                self.unserved = true;
                Step::Resolve
            }
            Answer::UidMismatch | Answer::VersionMismatch | Answer::Conflict if self.rounds < ROUNDS_IN_A_ROW => {
                self.rounds += 1;
                Step::Get
            }
            Answer::Forbidden | Answer::Unauthorized => block(Reason::Forbidden),
            Answer::TooManyRequests { retry_after } => {
                block(Reason::Throttled { after: retry_after.unwrap_or(Duration::from_secs(1)) })
            }
            Answer::Denied { .. } | Answer::WebhookUnavailable { .. } | Answer::Invalid | Answer::Conflict => {
                block(Reason::Refused)
            }
            _ => block(Reason::Unknown),
        }
    }
}

#[cfg(test)]
mod tests;
