//! Carrying a [`Plan`] out.

use std::{
    fmt,
    future::{Future, IntoFuture},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use kube_client::Client;
use tokio::time::Instant;

use super::{
    course::Course,
    executor::{Agenda, DEFAULT_CONCURRENCY, Executor, Happened},
    live::Authority,
    look,
    plan::{Error, Plan},
    report::Report,
    wakes::{Wakes, Watches},
};
use crate::discovery::Resolver;

/// A run of a plan, to be awaited.
///
/// # Guarantees
/// - No DELETE is sent for an object while one that depends on it may exist; each names the UID and, unless somebody
///   keeps writing to the object, the resourceVersion that was judged.
/// - Dropping it at any point is safe: what was sent was in order, and another run goes on from what the cluster shows.
///
/// # Errors
/// [`Error::Incomplete`] if the timeout passed, or if what is left is held for good. Without a timeout it waits as long
/// as objects are kept by what others hold; watch [`progress`](Self::progress) to see which.
#[must_use = "nothing happens until it is awaited"]
pub struct Run<'a> {
    plan: Plan,
    client: Client,
    concurrency: usize,
    timeout: Option<Duration>,
    progress: Box<dyn FnMut(Happened) + Send + 'a>,
}

impl fmt::Debug for Run<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run").field("plan", &self.plan).field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

impl<'a> Run<'a> {
    pub(super) fn new(plan: Plan, client: Client) -> Self {
        Self { plan, client, concurrency: DEFAULT_CONCURRENCY, timeout: None, progress: Box::new(|_| {}) }
    }

    /// Sets how many requests may be in flight; at least one. [`DEFAULT_CONCURRENCY`] unless set.
    pub fn concurrency(mut self, requests: usize) -> Self {
        self.concurrency = requests.max(1);
        self
    }

    /// Ends the run after this time; requests that were sent by then are answered first.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Calls `on` with everything that happens, in the order in which it does.
    pub fn progress(mut self, on: impl FnMut(Happened) + Send + 'a) -> Self {
        self.progress = Box::new(on);
        self
    }
}

impl<'a> IntoFuture for Run<'a> {
    type Output = Result<Report, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(mut self) -> Self::IntoFuture {
        Box::pin(async move {
            let deadline = self.timeout.map(|timeout| Instant::now() + timeout);
            let resolver = Resolver::new(self.client.clone());
            if !self.plan.is_looked_at() {
                let look = self.plan.look(&self.client, &resolver);
                match deadline {
                    // Unseen objects are asked for one by one, as far as there is time.
                    Some(deadline) => drop(tokio::time::timeout_at(deadline, look).await),
                    None => look.await,
                }
            }
            let mut underway = Underway::of(self.plan, self.client, resolver, self.concurrency);
            underway.drive(deadline, &mut *self.progress).await;
            let report = underway.report();
            if report.is_complete() { Ok(report) } else { Err(Error::Incomplete { report: Box::new(report) }) }
        })
    }
}

/// What a slice came to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Slice {
    /// Every object is done with.
    Done(Report),
    /// Something is left.
    Pending {
        /// What became of each object so far, and what blocks.
        report: Report,
        /// After how long to go on, if nothing wakes the reconciler before. Zero where the budget alone ended the slice.
        requeue: Duration,
    },
}

/// A plan that is carried out in slices. Disposable: a new one asks the cluster where things stand.
#[derive(Debug)]
pub struct Underway {
    executor: Executor,
    course: Course,
    agenda: Agenda,
    wakes: Wakes,
}

impl Underway {
    pub(super) async fn new(mut plan: Plan, client: Client) -> Self {
        let resolver = Resolver::new(client.clone());
        if !plan.is_looked_at() {
            plan.look(&client, &resolver).await;
        }
        Self::of(plan, client, resolver, DEFAULT_CONCURRENCY)
    }

    fn of(mut plan: Plan, client: Client, resolver: Resolver, concurrency: usize) -> Self {
        let course = plan.course();
        let looked = plan.take_looked();
        let selector = plan.selector().map(ToOwned::to_owned);
        let watches = Watches::new(client.clone(), selector, look::selected(&looked), looked.listed);
        let authority = Arc::new(Authority::Caller);
        let insight = Arc::new(plan.insight());
        let executor = Executor { client, resolver, authority, insight, concurrency };
        Self { executor, course, agenda: Agenda::default(), wakes: Wakes::Own(Box::new(watches)) }
    }

    async fn drive(&mut self, deadline: Option<Instant>, happened: &mut (dyn FnMut(Happened) + Send)) {
        self.executor.drive(&mut self.course, &mut self.agenda, &mut self.wakes, deadline, happened).await;
    }

    /// What became of each object so far.
    #[must_use]
    pub fn report(&self) -> Report {
        self.agenda.report(&self.course)
    }

    /// Goes on for at most `budget`, and then until the requests that were sent are answered. Dropping the future is
    /// safe.
    pub async fn slice(&mut self, budget: Duration) -> Slice {
        self.drive(Some(Instant::now() + budget), &mut |_| {}).await;
        let report = self.report();
        if report.is_complete() {
            return Slice::Done(report);
        }
        Slice::Pending { report, requeue: self.agenda.next_look(&self.course) }
    }
}
