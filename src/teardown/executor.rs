//! Carries out a [`Course`]: sends what it asks for, feeds back what was answered, and waits.
//!
//! Decides nothing. Cancel-safe: dropping the future at any await loses answers, never order or identity, because
//! every request carries the incarnation it is about and a new course asks again.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::{FutureExt, StreamExt, stream::FuturesUnordered};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube_client::{Client, api::Patch};
use tokio::time::Instant;

use super::{
    course::{Course, Hint, Progress},
    inside::{Insight, Reader},
    live::{Authority, Live},
    policy,
    proof::{Event, Reason, Settled, Step, Subject},
    report::Report,
    requests,
    wakes::{Change, Wakes},
};
use crate::{
    answer::{Answer, Refusal},
    api::{finalizer_off, finalizers_off, get_metadata, patch_metadata, patched_by},
    discovery::{Crd, Resolution, Resolver},
    graph::Node,
    manager::Manager,
    object::{ObjectId, ParentRef, ResourceKind, Uid},
    ownership::{self, proxy::proxy_references},
};

/// Most requests in flight at once, unless set: more gains nothing against one API server.
pub const DEFAULT_CONCURRENCY: usize = 32;

/// How soon a blocked object is asked about again when a watch shows that it changed: whoever changes it often must not
/// set the pace.
const SOON: Duration = Duration::from_secs(1);

/// After how long a teardown is looked at again in which nothing is due.
const LOOK_AGAIN: Duration = Duration::from_secs(300);
/// Shortest pause between two slices of which the second can do nothing but ask again.
const SHORTEST: Duration = Duration::from_millis(10);

/// Something that happened during a teardown, for a progress bar or a log.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Happened {
    /// A DELETE is being sent.
    Deleting(ObjectId),
    /// The object's deletion was accepted, and something keeps it.
    Waiting(ObjectId),
    /// The object is done with.
    Settled(ObjectId, Settled),
    /// Nothing can be done about the object now.
    Blocked(ObjectId, Reason),
}

/// What the executor works with.
#[derive(Clone)]
pub(crate) struct Executor {
    /// The target cluster.
    pub(crate) client: Client,
    /// Discovery of the target cluster.
    pub(crate) resolver: Resolver,
    /// By whose word objects are deleted.
    pub(crate) authority: Arc<Authority>,
    /// Where to look inside Namespaces and definitions.
    pub(crate) insight: Arc<Insight>,
    /// Most requests in flight.
    pub(crate) concurrency: usize,
}

impl std::fmt::Debug for Executor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Executor").field("authority", &self.authority).finish_non_exhaustive()
    }
}

/// When blocked and waiting objects are asked about again, and since when they are blocked. Lives as long as the
/// course does.
#[derive(Debug, Default)]
pub(crate) struct Agenda {
    due: BTreeMap<Node, Instant>,
    queue: BTreeSet<(Instant, Node)>,
    attempts: BTreeMap<Node, u32>,
    since: BTreeMap<ObjectId, Time>,
    crowd: Crowd,
}

/// How many objects are waited for by all that share it, so that their questions together stay few. A clone shares.
#[derive(Clone, Debug, Default)]
pub(crate) struct Crowd(Arc<AtomicUsize>);

impl Drop for Agenda {
    fn drop(&mut self) {
        self.crowd.0.fetch_sub(self.due.len(), Ordering::Relaxed);
    }
}

impl Agenda {
    /// An agenda that shares its pace with others.
    pub(crate) fn within(crowd: Crowd) -> Self {
        let mut agenda = Self::default();
        agenda.crowd = crowd;
        agenda
    }

    /// What became of each object so far.
    pub(crate) fn report(&self, course: &Course) -> Report {
        Report::of(course, &self.since)
    }

    /// When the next object is asked about again.
    fn next_due(&self) -> Option<Instant> {
        self.queue.first().map(|(at, _)| *at)
    }

    /// After how long to go on with `course`, if nothing wakes its parent before: at once where the deadline cut it short.
    pub(crate) fn next_look(&self, course: &Course) -> Duration {
        if course.has_requests() {
            return Duration::ZERO;
        }
        // Nothing due although something is left: it is held for good, and only looking anew can tell otherwise.
        let due = self.next_due().map(|at| at.saturating_duration_since(Instant::now()));
        due.unwrap_or(LOOK_AGAIN).clamp(SHORTEST, LOOK_AGAIN)
    }

    /// Brings the next question about an object forward.
    fn hurry(&mut self, node: Node, at: Instant) {
        if self.due.get(&node).is_some_and(|due| *due > at) {
            self.unschedule(node);
            self.schedule(node, at);
        }
    }

    fn schedule(&mut self, node: Node, at: Instant) {
        if self.due.insert(node, at).is_none() {
            self.crowd.0.fetch_add(1, Ordering::Relaxed);
        }
        self.queue.insert((at, node));
    }

    fn unschedule(&mut self, node: Node) {
        if let Some(at) = self.due.remove(&node) {
            self.crowd.0.fetch_sub(1, Ordering::Relaxed);
            self.queue.remove(&(at, node));
        }
    }

    /// Takes one object that is to be asked about again by now.
    fn take_due(&mut self, now: Instant) -> Option<Node> {
        let (at, node) = *self.queue.first()?;
        if at > now {
            return None;
        }
        self.unschedule(node);
        Some(node)
    }

    fn note(&mut self, course: &Course, node: Node, watched: bool) {
        let reason = match course.progress_of(node) {
            Some(Progress::Waiting) => Reason::Terminating,
            Some(Progress::Blocked(block)) => block.reason.clone(),
            Some(Progress::Settled(_)) => {
                self.unschedule(node);
                self.attempts.remove(&node);
                self.since.remove(course.graph().id(node));
                return;
            }
            _ => return,
        };
        let crowd = self.crowd.0.load(Ordering::Relaxed);
        let attempt = self.attempts.entry(node).or_insert(0);
        let at = Instant::now() + policy::pace(&reason, *attempt, watched, crowd);
        *attempt += 1;
        self.unschedule(node);
        self.schedule(node, at);
        self.since.entry(course.graph().id(node).clone()).or_insert_with(|| Time(Timestamp::now()));
    }
}

impl Executor {
    /// Drives `course` until it is over or until `deadline`; with no deadline, until it is over. After the deadline no other
    /// object is begun, and those that were get what they are due: an object that was asked about gets its DELETE, so that
    /// a slice shorter than one answer gets somewhere, too.
    pub(crate) async fn drive(
        &self,
        course: &mut Course,
        agenda: &mut Agenda,
        wakes: &mut Wakes,
        deadline: Option<Instant>,
        happened: &mut (dyn FnMut(Happened) + Send),
    ) {
        // What an earlier, cancelled drive had asked.
        course.recall();
        let mut in_flight = FuturesUnordered::new();
        let mut begun = false;
        loop {
            let open = !std::mem::replace(&mut begun, true) || deadline.is_none_or(|d| Instant::now() < d);
            while in_flight.len() < self.concurrency {
                let next = if open { course.next_request() } else { course.next_begun() };
                let Some((node, step)) = next else { break };
                let Some(case) = course.case(node) else { continue };
                agenda.unschedule(node);
                let subject = case.subject().clone();
                let (unseen, members) = match step {
                    Step::Inspect => (course.unseen_in(node), course.seen_members()),
                    _ => Default::default(),
                };
                if matches!(step, Step::Delete { .. }) {
                    happened(Happened::Deleting(subject.id.clone()));
                }
                in_flight.push(async move { (node, self.perform(&subject, step, unseen, &members).await) }.boxed());
            }
            let due = agenda.next_due().filter(|_| open);
            // Nothing in flight and nothing due: it is over, or what is left is held for good.
            if in_flight.is_empty() && due.is_none() {
                return;
            }
            let until = match (due, deadline.filter(|_| open)) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
            tokio::select! {
                biased;
                Some((node, event)) = in_flight.next(), if !in_flight.is_empty() => {
                    course.answer(node, event);
                    Self::take_note(course, agenda, wakes, node, happened);
                }
                change = wakes.next() => Self::take_hint(course, agenda, wakes, change),
                () = sleep_until(until), if until.is_some() => {
                    let now = Instant::now();
                    while let Some(node) = agenda.take_due(now) {
                        course.wake(node);
                    }
                }
            }
        }
    }

    /// Takes in what a watch reported.
    fn take_hint(course: &mut Course, agenda: &mut Agenda, wakes: &mut Wakes, change: Change) {
        match change {
            Change::Seen(id, live) => {
                let Some(node) = course.graph().node(&id) else { return };
                if course.seen(node, live) == Hint::AskSoon {
                    agenda.hurry(node, Instant::now() + SOON);
                }
            }
            Change::Lost(id) => {
                wakes.lost(&id);
                if let Some(node) = course.graph().node(&id) {
                    course.wake(node);
                }
            }
            Change::Gap(extent) => {
                let waiting = course.progress().filter(|(_, _, progress)| matches!(progress, Progress::Waiting));
                let covered = waiting.filter(|(_, case, _)| extent.covers(&case.subject().id));
                let nodes: Vec<_> = covered.map(|(node, ..)| node).collect();
                for node in nodes {
                    course.wake(node);
                }
            }
            Change::Ended(extent) => {
                wakes.ended(&extent);
                // They are not watched now: ask, and go on asking.
                let waiting = course.progress().filter(|(_, _, progress)| matches!(progress, Progress::Waiting));
                let covered = waiting.filter(|(_, case, _)| extent.covers(&case.subject().id));
                covered.for_each(|(node, ..)| agenda.hurry(node, Instant::now()));
            }
            Change::Resumed(extent) => wakes.resumed(&extent),
        }
    }

    fn take_note(
        course: &Course,
        agenda: &mut Agenda,
        wakes: &mut Wakes,
        node: Node,
        happened: &mut (dyn FnMut(Happened) + Send),
    ) {
        let (Some(case), Some(progress)) = (course.case(node), course.progress_of(node)) else { return };
        let id = &case.subject().id;
        let watched = matches!(progress, Progress::Waiting) && wakes.wait_for(case.subject(), case.live());
        agenda.note(course, node, watched);
        match progress {
            Progress::Settled(settled) => {
                wakes.done_with(id);
                happened(Happened::Settled(id.clone(), settled.clone()));
            }
            Progress::Waiting => happened(Happened::Waiting(id.clone())),
            Progress::Blocked(block) => happened(Happened::Blocked(id.clone(), block.reason.clone())),
            _ => {}
        }
    }

    /// Sends one request and says what came of it.
    async fn perform(
        &self,
        subject: &Subject,
        step: Step,
        unseen: Vec<(ObjectId, ResourceKind)>,
        members: &BTreeSet<Uid>,
    ) -> Event {
        match step {
            Step::Get => self.look(subject).await,
            Step::Inspect => {
                let Self { client, resolver, insight, .. } = self;
                let reader = Reader { client, resolver, manager: self.manager(), insight, members };
                Event::Inside(reader.look_into(&subject.id, unseen).await)
            }
            Step::Delete { uid, resource_version } => {
                requests::delete(&self.client, subject, &uid, resource_version, self.manager()).await
            }
            Step::Unguard(live) => self.unguard(subject, &live).await,
            Step::Strip(live) => self.strip(subject, &live).await,
            Step::Detach(live) => self.detach(subject, &live).await,
            Step::HandOver(live) => self.hand_over(subject, &live).await,
            Step::Unreference(live) => self.unreference(subject, &live).await,
            Step::Resolve => match self.resolver.refresh(&subject.id.group_kind()).await {
                Resolution::Served(kind) => Event::Resolved(Some(kind)),
                Resolution::NotServed => Event::Resolved(None),
                Resolution::Unavailable { reason } => Event::Unknown(reason),
            },
            Step::ReadDefinition => match self.resolver.crd_of(&subject.resource).await {
                Crd::Present(_) => Event::Definition { exists: true },
                Crd::NotFound => Event::Definition { exists: false },
                Crd::Unknown { reason } | Crd::Forbidden { reason } => Event::Unknown(reason),
            },
            Step::ReadWebhooks => requests::webhooks(&self.client, subject).await,
            // Not requests; a course keeps them to itself.
            Step::Wait | Step::Settle(_) | Step::Block(_) => Event::Changed,
        }
    }

    fn manager(&self) -> Option<&crate::manager::Manager> {
        match self.authority.as_ref() {
            Authority::Marks { manager, .. } => Some(manager),
            Authority::Caller => None,
        }
    }

    async fn read(&self, subject: &Subject) -> Result<ObjectMeta, Refusal> {
        get_metadata(&self.client, &subject.resource, &subject.id).await
    }

    async fn look(&self, subject: &Subject) -> Event {
        self.read(subject).await.map_or_else(Event::Refused, |meta| self.seen(&meta))
    }

    fn seen(&self, meta: &ObjectMeta) -> Event {
        Live::of(meta, self.manager()).map_or(Event::Changed, Event::Live)
    }

    async fn patch(&self, subject: &Subject, patch: Patch<serde_json::Value>) -> Result<ObjectMeta, Event> {
        let sent = patch_metadata(&self.client, &subject.resource, &subject.id, &patch, &patched_by(None)).await;
        sent.map_err(after_patch)
    }

    /// Takes our own finalizer off a proxy, in the state that was judged.
    async fn unguard(&self, subject: &Subject, live: &Live) -> Event {
        let Some(manager) = self.manager() else { return Event::Changed };
        let guard = manager.proxy_finalizer();
        let patch = finalizer_off(live.uid.as_str(), &live.resource_version, &live.finalizers, &guard);
        self.patch(subject, patch).await.map_or_else(|event| event, |meta| self.seen(&meta))
    }

    /// Takes the finalizers off that a request names, in the state that was judged.
    async fn strip(&self, subject: &Subject, live: &Live) -> Event {
        let named = |finalizer: &str| subject.strip.contains(finalizer);
        let patch = finalizers_off(live.uid.as_str(), &live.resource_version, &live.finalizers, named);
        self.patch(subject, patch).await.map_or_else(|event| event, |meta| self.seen(&meta))
    }

    /// Takes this parent's marks off an object, in the state that was read for it.
    async fn detach(&self, subject: &Subject, live: &Live) -> Event {
        self.part_with(subject, live, ownership::detach_patch).await
    }

    /// Marks an object for the parent that asks for it, in the state that was read for it.
    async fn hand_over(&self, subject: &Subject, live: &Live) -> Event {
        self.part_with(subject, live, ownership::hand_over_patch).await
    }

    async fn part_with(&self, subject: &Subject, live: &Live, patch: PatchOf) -> Event {
        let Authority::Marks { manager, parent } = self.authority.as_ref() else { return Event::Detached };
        let meta = match self.read(subject).await {
            Ok(meta) => meta,
            Err(refusal) => return Event::Refused(refusal),
        };
        match Live::of(&meta, Some(manager)) {
            Some(now)
                if now.uid == live.uid
                    && now.wanted_by == live.wanted_by
                    && now.is_ours(&self.authority, &subject.id) => {}
            Some(now) => return Event::Live(now),
            None => return Event::Changed,
        }
        let owners = proxy_references(manager, &parent.id, &meta);
        self.remove(subject, patch(manager, parent, &owners, &subject.id, &meta)).await
    }

    /// Takes references to the parent's proxies off an object, and the parent's request for it, and nothing else.
    async fn unreference(&self, subject: &Subject, live: &Live) -> Event {
        let Authority::Marks { manager, parent } = self.authority.as_ref() else { return Event::Detached };
        if live.owners.is_empty() && live.wanted_by.as_deref() != Some(&parent.live()) {
            return Event::Detached;
        }
        let foreign = !live.is_ours(&self.authority, &subject.id);
        match self.read(subject).await {
            Ok(meta) => {
                // It was given to this parent in the meantime, which now has to part with it otherwise.
                if let Some(now) = Live::of(&meta, Some(manager)).filter(|_| foreign)
                    && now.is_ours(&self.authority, &subject.id)
                {
                    return Event::Live(now);
                }
                let owners = proxy_references(manager, &parent.id, &meta);
                self.remove(subject, ownership::withdraw_patch(manager, parent, &owners, &subject.id, &meta)).await
            }
            Err(refusal) => Event::Refused(refusal),
        }
    }

    /// Sends a patch that takes something of ours off an object, if there is anything to take off.
    async fn remove(&self, subject: &Subject, patch: Result<json_patch::Patch, ownership::Error>) -> Event {
        match patch {
            Ok(patch) if patch.0.is_empty() => Event::Detached,
            Ok(patch) => self.patch(subject, Patch::Json(patch)).await.map_or_else(|event| event, |_| Event::Detached),
            Err(error) => Event::Unknown(error.to_string()),
        }
    }
}

/// The patch by which a parent parts with an object, as it was read.
type PatchOf =
    fn(&Manager, &ParentRef, &BTreeSet<Uid>, &ObjectId, &ObjectMeta) -> Result<json_patch::Patch, ownership::Error>;

/// A refused PATCH proves nothing about existence, and a `test` in it that failed says that the object changed: ask.
fn after_patch(refusal: Refusal) -> Event {
    match refusal.answer() {
        Answer::NotFound { .. } | Answer::PatchRejected => Event::Changed,
        _ => Event::Refused(refusal),
    }
}

async fn sleep_until(instant: Option<Instant>) {
    tokio::time::sleep_until(instant.unwrap_or_else(|| Instant::now() + Duration::from_secs(3600))).await;
}
