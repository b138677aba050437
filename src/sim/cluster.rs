//! The handle that tests hold.

use std::{
    convert::Infallible,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicBool},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube_client::{Client, client::Body};
use serde_json::{Value, json};
use tokio::time::Instant;
use tower_service::Service;

use super::{
    admission::Review,
    audit::{Audit, Target, Verb},
    catalogue::Role,
    controllers::{Controller, Step},
    faults::Fault,
    request::{Ask, Payload},
    service::{Lost, Server},
    storage::key,
    world::World,
};

/// Why the cluster did not do what a test asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The CustomResourceDefinition was refused.
    #[error("the CustomResourceDefinition {name} was refused: {message}")]
    Definition {
        /// Its name.
        name: String,
        /// What the server said.
        message: String,
    },
    /// Somebody goes on writing.
    #[error("not settled after {rounds} rounds: something writes again and again; the last call was {last}")]
    Restless {
        /// How often it was looked for quiet.
        rounds: usize,
        /// The last call on record.
        last: String,
    },
}

/// What all handles and clients of a cluster share.
pub(super) struct Shared {
    world: Mutex<World>,
    start: Instant,
    /// Time that was skipped.
    skipped: Mutex<Duration>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl Shared {
    /// The world, at the present time.
    pub(super) fn lock(&self) -> MutexGuard<'_, World> {
        let skipped = *self.skipped.lock().unwrap_or_else(PoisonError::into_inner);
        // A panic in a rule of a test leaves the world as it is between two steps.
        let mut world = self.world.lock().unwrap_or_else(PoisonError::into_inner);
        world.elapsed = world.elapsed.max(self.start.elapsed() + skipped);
        world
    }

    /// Moves the clock on to a point in time.
    fn skip_to(&self, due: Duration) {
        let now = self.lock().elapsed;
        if due > now {
            *self.skipped.lock().unwrap_or_else(PoisonError::into_inner) += due - now;
            self.lock().elapsed = due;
        }
    }
}

/// How a [`Cluster`] is made.
#[derive(Clone, Debug)]
#[must_use]
pub struct ClusterBuilder {
    seed: u64,
    history: usize,
    audit: bool,
    workers: usize,
}

impl Default for ClusterBuilder {
    fn default() -> Self {
        Self { seed: 0, history: 100_000, audit: true, workers: 1 }
    }
}

impl ClusterBuilder {
    /// The seed of all chance: UIDs, generated names, the order in which the controllers work.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// How many changes of a kind are kept for watches that lag behind. By default 100,000.
    pub fn history(mut self, changes: usize) -> Self {
        self.history = changes;
        self
    }

    /// Whether calls are kept for [`Cluster::audit`]. By default they are; a long run may save the memory.
    pub fn keep_calls(mut self, keep: bool) -> Self {
        self.audit = keep;
        self
    }

    /// How many workers the garbage collector has. By default one, which judges objects in the order in which they came
    /// up. With more, an object may overtake as many others as there are other workers, as when those are slow: an owner
    /// that is deleted in the foreground may then lose its finalizer before a dependent that does not block it was
    /// judged, which then stays. A real collector has 20, of which hardly any is ever that slow.
    pub fn collector_workers(mut self, workers: usize) -> Self {
        self.workers = workers.max(1);
        self
    }

    /// The cluster. Its clock is Tokio's: it stands still under `#[tokio::test(start_paused = true)]` while anything
    /// can go on.
    #[must_use]
    pub fn build(self) -> Cluster {
        let mut world = World::new(self.seed, self.history);
        world.calls.clear();
        world.call_count = 0;
        world.keeps_calls = self.audit;
        world.controllers.workers = self.workers;
        let shared = Shared { world: Mutex::new(world), start: Instant::now(), skipped: Mutex::default() };
        Cluster { shared: Arc::new(shared), quiet: Duration::from_secs(1) }
    }
}

/// A Kubernetes control plane in memory. Cheap to clone; clones are the same cluster.
///
/// The [module](super) has an example.
#[derive(Clone, Debug)]
pub struct Cluster {
    shared: Arc<Shared>,
    quiet: Duration,
}

impl Default for Cluster {
    fn default() -> Self {
        Self::new()
    }
}

impl Cluster {
    /// How often [`Cluster::settle`] looks for quiet.
    const ROUNDS: usize = 10_000;

    /// A cluster with the namespaces that every cluster has, and the seed 0.
    #[must_use]
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// A cluster with choices.
    pub fn builder() -> ClusterBuilder {
        ClusterBuilder::default()
    }

    /// A client of the user `admin`. To be called inside of a Tokio runtime.
    ///
    /// The client has no layer that repeats calls, as one made from a configuration has.
    #[must_use]
    pub fn client(&self) -> Client {
        self.client_as("admin")
    }

    /// A client of this user, who may do everything unless [`Cluster::forbid`] says otherwise. To be called inside of a
    /// Tokio runtime. Every client is a process of its own to [`Trouble::CrashAfter`](super::Trouble::CrashAfter).
    #[must_use]
    pub fn client_as(&self, user: &str) -> Client {
        Client::new(self.service_as(user), "default")
    }

    /// What a client of this user talks to, for those who put layers of their own in between. A request is answered the
    /// first time that its future is polled, unless a fault makes it wait.
    pub fn service_as(
        &self,
        user: &str,
    ) -> impl Service<
        Request<Body>,
        Response = Response<impl http_body::Body<Data = Bytes, Error = Infallible> + Send + Unpin + use<>>,
        Error = Lost,
        Future: Send + 'static,
    >
    + Clone
    + Send
    + Sync
    + 'static
    + use<> {
        Server { shared: Arc::clone(&self.shared), user: Arc::from(user), dead: Arc::new(AtomicBool::new(false)) }
    }

    /// Creates a CustomResourceDefinition; its kind is served when this returns. One that exists is left as it is.
    ///
    /// # Errors
    ///
    /// [`Error::Definition`] if it is refused.
    pub fn install(&self, crd: &CustomResourceDefinition) -> Result<(), Error> {
        let mut object = serde_json::to_value(crd).unwrap_or_default();
        object["apiVersion"] = json!("apiextensions.k8s.io/v1");
        object["kind"] = json!("CustomResourceDefinition");
        let name = crd.metadata.name.clone().unwrap_or_default();
        let mut world = self.shared.lock();
        let definitions = world.catalogue.by_role(Role::Definition).cloned();
        let Some(definitions) = definitions else {
            return Err(Error::Definition { name, message: "CustomResourceDefinitions are not served".to_owned() });
        };
        if world.storage.get(definitions.id, &name).is_some() {
            return Ok(());
        }
        let mut ask = Ask::by("admin", Verb::Create, &definitions, "", "");
        ask.payload = Payload::Object(object);
        world.ask(&ask).map_err(|refusal| Error::Definition { name, message: refusal.message().to_owned() })?;
        world.gc_refresh();
        Ok(())
    }

    // ---- controllers and time ---------------------------------------------------

    /// One step of one of the controllers, whichever chance picks; if all wait for a time, the clock is moved on to it.
    /// `None` if nothing is left to do: what is held, or failed, would only be looked at again with the same result.
    pub fn step(&self) -> Option<Step> {
        loop {
            if let Some(step) = self.step_now() {
                return Some(step);
            }
            let due = self.shared.lock().next_step_due()?;
            self.shared.skip_to(due);
        }
    }

    /// One step of one of the controllers, whichever chance picks, without waiting for what is due later.
    pub fn step_now(&self) -> Option<Step> {
        self.shared.lock().step()
    }

    /// One step of this controller, even if it is paused for [`Cluster::step`]; `None` if it has nothing to do now.
    pub fn step_of(&self, controller: Controller) -> Option<Step> {
        let mut world = self.shared.lock();
        let paused = world.controllers.is_paused(controller);
        world.controllers.pause(controller, false);
        let step = world.step_of(controller);
        world.controllers.pause(controller, paused);
        step
    }

    /// Lets the controllers work until none has anything to do, and returns what they did. Time is skipped where they
    /// wait.
    pub fn run_controllers(&self) -> Vec<Step> {
        std::iter::from_fn(|| self.step()).collect()
    }

    /// Lets the controllers and all tasks of the runtime work until nothing has been written for a second of Tokio's
    /// time, and the controllers have nothing to do.
    ///
    /// Under a paused clock that takes no real time, but it ends only when all tasks wait for something; a reconciler
    /// that polls more rarely than once a second has to be waited for with [`Cluster::settle_for`].
    ///
    /// # Errors
    ///
    /// [`Error::Restless`] if there is no end of it.
    pub async fn settle(&self) -> Result<(), Error> {
        self.settle_for(self.quiet).await
    }

    /// [`Cluster::settle`] with another measure of quiet.
    ///
    /// # Errors
    ///
    /// [`Error::Restless`] if there is no end of it.
    pub async fn settle_for(&self, quiet: Duration) -> Result<(), Error> {
        for _ in 0..Self::ROUNDS {
            self.run_controllers();
            let before = self.shared.lock().storage.version();
            tokio::time::sleep(quiet).await;
            if self.run_controllers().is_empty() && self.shared.lock().storage.version() == before {
                return Ok(());
            }
        }
        let last = self.shared.lock().calls.last().map(ToString::to_string).unwrap_or_default();
        Err(Error::Restless { rounds: Self::ROUNDS, last })
    }

    /// Stops a controller: it takes no steps by itself, but keeps what it knows.
    pub fn pause(&self, controller: Controller) {
        self.shared.lock().controllers.pause(controller, true);
    }

    /// Lets a controller go on.
    pub fn resume(&self, controller: Controller) {
        self.shared.lock().controllers.pause(controller, false);
    }

    /// A controller dies and begins anew, knowing nothing. The garbage collector begins with an empty graph, and looks
    /// again which kinds exist.
    pub fn restart(&self, controller: Controller) {
        self.shared.lock().restart(controller);
    }

    /// The garbage collector looks which kinds exist, as it does every 30 seconds.
    pub fn refresh_discovery(&self) {
        self.shared.lock().gc_refresh();
    }

    /// Whether the garbage collector knows an object of this UID from its own sight.
    #[must_use]
    pub fn gc_has_seen(&self, uid: &str) -> bool {
        self.shared.lock().controllers.gc.has_seen(uid)
    }

    /// How many objects are in the garbage collector's graph, those that are only referred to included.
    #[must_use]
    pub fn gc_nodes(&self) -> usize {
        self.shared.lock().controllers.gc.nodes()
    }

    /// The time since the cluster was made.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.shared.lock().elapsed
    }

    /// Moves the cluster's clock on. Tokio's clock, by which clients wait, is not touched.
    pub fn advance(&self, by: Duration) {
        let now = self.elapsed();
        self.shared.skip_to(now + by);
    }

    // ---- rules --------------------------------------------------------------------

    /// Denies what `rule` has an answer to, as a ValidatingAdmissionPolicy of this name does: 422, with the answer as
    /// the message. It binds everybody, the controllers too; the deletion of custom resources by that of their
    /// definition does not ask. A policy of the same name is replaced.
    pub fn deny(&self, policy: &str, rule: impl Fn(&Review<'_>) -> Option<String> + Send + Sync + 'static) {
        let mut world = self.shared.lock();
        world.admission.add_policy(policy, Arc::new(rule));
        world.controllers.settings += 1;
    }

    /// Removes a policy.
    pub fn lift(&self, policy: &str) {
        let mut world = self.shared.lock();
        world.admission.remove_policy(policy);
        world.controllers.settings += 1;
    }

    /// Takes the right to do something from users, as RBAC does: 403 where `denied` holds, given the user, the verb and
    /// the target. Of a creation the target has no name.
    pub fn forbid(&self, denied: impl Fn(&str, Verb, &Target) -> bool + Send + Sync + 'static) {
        let mut world = self.shared.lock();
        world.admission.add_denial(Arc::new(denied));
        world.controllers.settings += 1;
    }

    /// Gives back all rights that [`Cluster::forbid`] took.
    pub fn permit_all(&self) {
        let mut world = self.shared.lock();
        world.admission.clear_denials();
        world.controllers.settings += 1;
    }

    /// Switches the admission plug-in OwnerReferencesPermissionEnforcement on or off. By default it is off.
    pub fn enforce_owner_references(&self, enforce: bool) {
        self.shared.lock().admission.owner_references = enforce;
    }

    // ---- trouble --------------------------------------------------------------------

    /// Plans a fault.
    pub fn inject(&self, fault: Fault) {
        self.shared.lock().faults.add(fault);
    }

    /// Cancels all faults that have not happened.
    pub fn clear_faults(&self) {
        self.shared.lock().faults.clear();
    }

    /// Ends all watches, as a server does that restarts.
    pub fn close_watches(&self) {
        let mut world = self.shared.lock();
        world.closed_watches = world.watches;
        world.storage.wake_all();
    }

    /// Forgets the history: watches that have not delivered everything, and lists that are being continued, are
    /// answered with 410.
    pub fn compact(&self) {
        self.shared.lock().storage.compact();
    }

    /// Leaves a group out of discovery, as when the server behind it does not answer; requests for its objects are
    /// answered all the same. Its objects can't be resolved by the garbage collector, and hold namespaces.
    pub fn hide_group(&self, group: &str) {
        self.shared.lock().catalogue.hide(group, true);
    }

    /// Shows a group again.
    pub fn show_group(&self, group: &str) {
        self.shared.lock().catalogue.hide(group, false);
    }

    // ---- what happened -----------------------------------------------------------------

    /// All calls so far.
    pub fn audit(&self) -> Audit {
        Audit { calls: self.shared.lock().calls.clone() }
    }

    /// Forgets the calls so far.
    pub fn clear_audit(&self) {
        self.shared.lock().calls.clear();
    }

    /// The resource version of the last write.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.shared.lock().storage.version()
    }

    /// An object as it is stored, without a call. `resource` is `configmaps` or `widgets.example.com`; the namespace
    /// is empty for cluster scope.
    #[must_use]
    pub fn object(&self, resource: &str, namespace: &str, name: &str) -> Option<Arc<Value>> {
        let world = self.shared.lock();
        let (plural, group) = resource.split_once('.').unwrap_or((resource, ""));
        let id = world.catalogue.by_plural(group, plural)?.id;
        world.storage.get(id, &key(namespace, name)).cloned()
    }

    /// All objects of a kind as they are stored, without a call.
    #[must_use]
    pub fn objects(&self, resource: &str) -> Vec<Arc<Value>> {
        let world = self.shared.lock();
        let (plural, group) = resource.split_once('.').unwrap_or((resource, ""));
        let table = world.catalogue.by_plural(group, plural).and_then(|resource| world.storage.find(resource.id));
        table.map(|table| table.list(None, None).map(|(_, object)| Arc::clone(object)).collect()).unwrap_or_default()
    }
}
