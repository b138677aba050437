use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use futures::future::BoxFuture;
use kube::{
    Client, Config,
    client::{ClientBuilder, retry::RetryPolicy},
};
use tokio::sync::watch;
use tower::{BoxError, buffer::BufferLayer, retry::RetryLayer};

use super::{Audit, Call, CallHead, CutMode, Fault, Outcome, Verb};

/// The record of all calls of one or more clients, and the control over them. Clones share it.
#[derive(Clone)]
pub struct AuditLog {
    shared: Arc<Shared>,
}

struct Shared {
    began: Instant,
    state: Mutex<State>,
    signal: watch::Sender<Signal>,
    open_watches: AtomicUsize,
}

struct State {
    calls: BTreeMap<u64, Call>,
    next: u64,
    keep_bodies: bool,
    keep_events: bool,
    /// Calls until the cut, and which half of the last one happens.
    cut: Option<(u64, CutMode)>,
    rules: Vec<Rule>,
    before: Option<Before>,
}

type Before = Arc<dyn Fn(CallHead) -> BoxFuture<'static, ()> + Send + Sync>;

enum Rule {
    Always(Arc<dyn Fn(&CallHead) -> Fault + Send + Sync>),
    Once(Arc<dyn Fn(&CallHead) -> bool + Send + Sync>, Fault),
}

/// What open watches and waiting tests look at.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Signal {
    /// Nothing gets through any more, except the one call that is the last.
    pub(super) severed: bool,
    /// The last call has had its effect.
    cut: bool,
    /// Counts [`AuditLog::close_watches`].
    pub(super) closings: u64,
}

/// What the layer is to do with a call.
pub(super) enum Admission {
    /// Ask the hooks, then send it.
    Go,
    /// Ask the hooks, send it and lose the answer: it is the last.
    Last,
    /// Don't send it.
    Drop,
}

impl AuditLog {
    /// An empty log, for [`client`](Self::client) and [`layer`](Self::layer).
    #[must_use]
    pub fn new() -> Self {
        let state = State {
            calls: BTreeMap::new(),
            next: 1,
            keep_bodies: true,
            keep_events: false,
            cut: None,
            rules: Vec::new(),
            before: None,
        };
        Self {
            shared: Arc::new(Shared {
                began: Instant::now(),
                state: Mutex::new(state),
                signal: watch::Sender::default(),
                open_watches: AtomicUsize::new(0),
            }),
        }
    }

    /// A client that writes this log. It does not retry.
    ///
    /// # Errors
    ///
    /// If kube can't use the configuration.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime.
    pub fn client(&self, config: Config) -> Result<Client, kube::Error> {
        self.build(config, false)
    }

    /// A client that writes this log and retries as kube's default client does: what is answered
    /// with 429, 503 or 504, up to 15 times. Every attempt is a call.
    ///
    /// # Errors
    ///
    /// If kube can't use the configuration.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime.
    pub fn retrying_client(&self, config: Config) -> Result<Client, kube::Error> {
        self.build(config, true)
    }

    fn build(&self, mut config: Config, retry: bool) -> Result<Client, kube::Error> {
        config.default_retry = false; // it would sit below the record
        let transport = ClientBuilder::try_from(config)?;
        let client = transport.with_layer(&BufferLayer::new(1024)).with_layer(&self.layer());
        Ok(if retry {
            client.with_layer(&RetryLayer::new(RetryPolicy::server_retry())).build()
        } else {
            client.build()
        })
    }

    /// The layer for a service stack of your own. Put it outside of layers that add credentials,
    /// and inside of those that retry.
    #[must_use]
    pub fn layer(&self) -> Audit {
        Audit::new(self.clone())
    }

    // ---- the record --------------------------------------------------------

    /// All calls so far, in the order of their numbers.
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        self.state().calls.values().cloned().collect()
    }

    /// The calls that satisfy a condition.
    #[must_use]
    pub fn calls_where(&self, mut condition: impl FnMut(&Call) -> bool) -> Vec<Call> {
        self.state().calls.values().filter(|call| condition(call)).cloned().collect()
    }

    /// How many calls had this verb, refused and failed ones included.
    #[must_use]
    pub fn count(&self, verb: Verb) -> usize {
        self.state().calls.values().filter(|call| call.head.verb == verb).count()
    }

    /// How many calls there were.
    #[must_use]
    pub fn len(&self) -> usize {
        self.state().calls.len()
    }

    /// Whether there was no call.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many watches are open.
    #[must_use]
    pub fn open_watches(&self) -> usize {
        self.shared.open_watches.load(Ordering::SeqCst)
    }

    /// Forgets the calls so far. Numbers go on; faults and hooks stay.
    pub fn clear(&self) {
        self.state().calls.clear();
    }

    /// Whether bodies are kept (they are by default). Measurements do better without.
    /// [`Call::effective`] then can't tell a dry run that is asked for in a body.
    pub fn keep_bodies(&self, keep: bool) {
        self.state().keep_bodies = keep;
    }

    /// Whether the events of watches that are opened from now on are kept (they are not by default).
    pub fn keep_events(&self, keep: bool) {
        self.state().keep_events = keep;
    }

    /// The moment that all times of the record are counted from.
    #[must_use]
    pub fn began(&self) -> Instant {
        self.shared.began
    }

    // ---- faults ------------------------------------------------------------

    /// Cuts the clients off at the `k`-th call from now on, counted from 1; watches don't count.
    ///
    /// That call is not sent, or it is sent and its answer lost, as `mode` says. Every later call
    /// fails with a connection error, watches included; open watches break off with an error; the
    /// answers of calls that are under way are lost. It looks like the end of the process to the
    /// cluster, and like the end of the network to the process.
    ///
    /// # Panics
    ///
    /// If `k` is 0.
    pub fn cut_at(&self, k: u64, mode: CutMode) {
        assert!(k > 0, "calls are counted from 1");
        self.state().cut = Some((k, mode));
    }

    /// Cuts the clients off at once.
    pub fn cut_now(&self) {
        self.state().cut = None;
        self.signal(|signal| (signal.severed, signal.cut) = (true, true));
    }

    /// Whether the clients are cut off. With [`CutMode::After`] this becomes true only when the
    /// server has answered the last call.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.shared.signal.borrow().cut
    }

    /// Waits until the clients are cut off.
    pub async fn cut_off(&self) {
        // `self` keeps the sender alive.
        let _ = self.shared.signal.subscribe().wait_for(|signal| signal.cut).await;
    }

    /// Chooses a fault for every later call. Several such functions are asked in the order in
    /// which they were added, together with those of [`once`](Self::once), until one says
    /// anything but [`Fault::Pass`].
    ///
    /// The function must not use this log.
    pub fn on_call(&self, choose: impl Fn(&CallHead) -> Fault + Send + Sync + 'static) {
        self.state().rules.push(Rule::Always(Arc::new(choose)));
    }

    /// Applies a fault to the first later call that satisfies a condition, and to no other. Add it
    /// twice for two calls.
    ///
    /// The function must not use this log.
    pub fn once(&self, condition: impl Fn(&CallHead) -> bool + Send + Sync + 'static, fault: Fault) {
        self.state().rules.push(Rule::Once(Arc::new(condition), fault));
    }

    /// Runs a future before every later call is sent, so that another party's write falls exactly
    /// between two calls. It replaces an earlier one, and runs before the faults are chosen.
    ///
    /// Other calls go on meanwhile. Use another client inside: with this one the hook would call
    /// itself.
    pub fn before_call<F, R>(&self, run: F)
    where
        F: Fn(CallHead) -> R + Send + Sync + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        self.state().before = Some(Arc::new(move |head| Box::pin(run(head))));
    }

    /// Ends every open watch, as the API server does after its time-out: without an error.
    pub fn close_watches(&self) {
        self.signal(|signal| signal.closings += 1);
    }

    /// Takes back all faults and hooks and a cut. Gates stay as they are.
    pub fn heal(&self) {
        let mut state = self.state();
        (state.cut, state.before) = (None, None);
        state.rules.clear();
        self.signal(|signal| (signal.severed, signal.cut) = (false, false));
    }

    // ---- for the layer -----------------------------------------------------

    pub(super) fn keeps_bodies(&self) -> bool {
        self.state().keep_bodies
    }

    pub(super) fn keeps_events(&self) -> bool {
        self.state().keep_events
    }

    pub(super) fn now(&self) -> Duration {
        self.shared.began.elapsed()
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<Signal> {
        self.shared.signal.subscribe()
    }

    pub(super) fn severed(&self) -> bool {
        self.shared.signal.borrow().severed
    }

    /// Numbers and records a call, and counts it against a cut.
    pub(super) fn admit(&self, head: &mut CallHead) -> Admission {
        let mut state = self.state();
        head.seq = state.next;
        state.next += 1;
        state.calls.insert(head.seq, Call::new(head.clone(), self.now()));
        if self.severed() {
            return Admission::Drop;
        }
        let Some((left, mode)) = state.cut.as_mut().filter(|_| head.verb != Verb::Watch) else {
            return Admission::Go;
        };
        *left -= 1;
        if *left > 0 {
            return Admission::Go;
        }
        let mode = *mode;
        state.cut = None;
        self.signal(|signal| (signal.severed, signal.cut) = (true, mode == CutMode::Before));
        if mode == CutMode::Before { Admission::Drop } else { Admission::Last }
    }

    /// The last call has had its effect.
    pub(super) fn complete_cut(&self) {
        self.signal(|signal| signal.cut = signal.severed);
    }

    pub(super) fn hook(&self, head: &CallHead) -> Option<BoxFuture<'static, ()>> {
        let hook = self.state().before.clone();
        hook.map(|hook| hook(head.clone()))
    }

    pub(super) fn fault(&self, head: &CallHead) -> Fault {
        // The functions are the test's and run under the lock: two calls must not both be the
        // first to satisfy a condition.
        let mut state = self.state();
        let mut chosen = None;
        for (index, rule) in state.rules.iter().enumerate() {
            match rule {
                Rule::Always(choose) => match choose(head) {
                    Fault::Pass => {}
                    fault => return fault,
                },
                Rule::Once(condition, _) if condition(head) => {
                    chosen = Some(index);
                    break;
                }
                Rule::Once(..) => {}
            }
        }
        match chosen.map(|index| state.rules.remove(index)) {
            Some(Rule::Once(_, fault)) => fault,
            _ => Fault::Pass,
        }
    }

    /// Changes the record of a call, unless it has been cleared.
    pub(super) fn record(&self, seq: u64, change: impl FnOnce(&mut Call)) {
        if let Some(call) = self.state().calls.get_mut(&seq) {
            change(call);
        }
    }

    /// Counts an open watch for as long as the value lives.
    pub(super) fn open_watch(&self) -> OpenWatch {
        self.shared.open_watches.fetch_add(1, Ordering::SeqCst);
        OpenWatch(self.clone())
    }

    fn signal(&self, change: impl FnOnce(&mut Signal)) {
        self.shared.signal.send_modify(change);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A function of a test may have panicked; the record is valid all the same.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for AuditLog {
    fn default() -> Self {
        Self::new()
    }
}

/// All calls, one a line: for the messages of assertions.
impl fmt::Display for AuditLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for call in self.state().calls.values() {
            writeln!(f, "{call}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for AuditLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuditLog")
            .field("calls", &self.len())
            .field("open_watches", &self.open_watches())
            .field("signal", &*self.shared.signal.borrow())
            .finish_non_exhaustive()
    }
}

pub(super) struct OpenWatch(AuditLog);

impl Drop for OpenWatch {
    fn drop(&mut self) {
        self.0.shared.open_watches.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Marks a call whose future is dropped before it is done.
pub(super) struct Unfinished<'a> {
    pub(super) log: &'a AuditLog,
    pub(super) seq: u64,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        self.log.record(self.seq, |call| {
            if call.outcome == Outcome::Pending {
                call.outcome = Outcome::Abandoned;
            }
        });
    }
}

/// The error of a connection that a test has cut.
pub(super) fn connection_error() -> BoxError {
    Box::new(std::io::Error::new(std::io::ErrorKind::ConnectionReset, "connection cut by the test"))
}
