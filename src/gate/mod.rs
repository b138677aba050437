//! Parents that must wait for other parents.
//!
//! Parents name each other in a field of their spec, such as `dependsOn`. What is true of objects is then to be true of
//! parents: a dependency is there before its dependents create anything, and it is torn down after they are gone, even if
//! all of them are deleted by one command. A [`Gate`] says when a parent may begin, in either direction. It works alone,
//! with an operator's own code for both; a [`Custodian`](crate::custodian::Custodian) is given one by
//! [`Builder::gate`](crate::custodian::Builder::gate).
//!
//! ```
//! # use kube::CustomResource;
//! # use schemars::JsonSchema;
//! # use serde::{Deserialize, Serialize};
//! use kube::ResourceExt;
//! use kube_custody::gate::{Dependency, Gate, ParentKind};
//!
//! #[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
//! #[kube(group = "example.com", version = "v1", kind = "Kustomization", namespaced)]
//! struct KustomizationSpec {
//!     #[serde(default)]
//!     depends_on: Vec<String>,
//! }
//!
//! fn gate(client: kube::Client) -> Result<Gate, kube_custody::gate::Error> {
//!     Gate::builder(client, "kustomization.example.com")
//!         .kind(ParentKind::new(|parent: &Kustomization| {
//!             let here = || parent.namespace();
//!             parent.spec.depends_on.iter().map(|name| Dependency::on::<Kustomization>(here(), name)).collect()
//!         }))
//!         .build()
//! }
//! ```
//!
//! # The protocol
//!
//! A dependent carries a *mark* (a finalizer) before it reads its dependencies, and creates only after it read each of
//! them there and not being deleted. A dependency is torn down only after a list that began when its deletion was
//! known showed nobody with the mark who names it, or everybody whom it showed was proven gone since. All reads are of
//! the latest state, never of a cache.
//!
//! One of the two always sees the other: if the dependent read the dependency alive, it had its mark before the
//! deletion, so the list shows it; if it reads later, it reads the deletion, and creates nothing.
//!
//! A dependent that reads the deletion just after it was marked is waited for, and waits. If it has created nothing, it takes
//! the mark off again. A custodian proves that by a record without entries, by a search for children, and by taking that
//! record away in the state in which it was read: another process that is about to create, on what it read before the
//! deletion, has written its intent there first, or fails to; one that reads the record later asks the gate after that.
//!
//! # What follows from it
//!
//! - A dependent that is created, or first reconciled, while its dependency is being deleted creates nothing and blocks
//!   nobody. The dependency goes on; the dependent says what it waits for, and begins once a new dependency exists.
//! - A dependent that has children keeps them, and writes nothing, while a dependency is missing or being deleted.
//! - Taking a name out of `dependsOn` takes effect at once: the dependency does not wait for that parent any more.
//! - Parents on a cycle, all of them being deleted, are torn down together, once nothing outside of the cycle depends on
//!   any of them. As long as one of them lives, it blocks like any other.
//! - A parent that depends on one that contains it does not block it: the order among a parent's own objects is that of
//!   its inventory.
//! - Who may block whom is the author's decision ([`BlockPolicy`]), by default only within one namespace. A parent that
//!   names what it may not block creates nothing.
//! - What is said in a record opens no gate, for others may write it. So an operator that was restarted in the middle of a
//!   teardown asks again, and a living parent that has come to name the dependency since holds up the rest.
//! - A [request](crate::force) on a parent releases exactly the dependents that it names, if the author admits it.
//!
//! # Permissions
//! `get`, `list` and `watch` on each kind of parents: in all namespaces, or, with [`BlockPolicy::same_namespace`], `get`
//! and `list` in the namespaces of the parents. Without `watch` everything works by timer, for one read a look.

mod cluster;
mod dependency;
mod lists;
mod opening;
mod parents;
mod policy;
mod request;
#[cfg(test)]
mod tests;
mod verdict;
mod watch;

use std::{
    any::type_name,
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::{FutureExt, Stream, StreamExt, stream};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube_client::Client;
use kube_core::Resource;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use self::{
    cluster::{Cluster, Server, Unread},
    dependency::Reader,
    lists::{Lists, Moment},
    opening::{Ask, Opening, Reading},
    parents::{Parent, Parents, View},
    request::judge,
    watch::Watches,
};
pub use self::{
    dependency::{Dependency, ParentKind},
    parents::{Cycle, Dependent},
    policy::BlockPolicy,
    request::{Forced, Unfollowed},
    verdict::{Blocked, Cleared, MayCreate, MayDelete, Unmet, Why},
};
use crate::{
    custodian::Wakeup,
    discovery::Resolver,
    force::Allowed,
    lock::lock,
    manager::{InvalidManager, Manager},
    object::{self, GroupKind, LiveRef, ObjectId, ParentRef, ResourceKind},
};

/// Requests in flight for one parent.
const CONCURRENCY: usize = 8;
/// How long what the watches show is believed without a read in between: a watch that hangs shows the same for ever.
const BELIEVED: Duration = Duration::from_secs(60);
/// After how long a parent's progress is forgotten if nobody asks. It costs a list to find it again.
const FORGOTTEN: Duration = Duration::from_secs(3600);

/// Why a gate could not be built, or cannot answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The manager domain is not usable.
    #[error(transparent)]
    Manager(InvalidManager),
    /// A kind was added twice.
    #[error("{kind} was added to the gate twice: say once what it depends on")]
    Twice {
        /// Which kind.
        kind: GroupKind,
    },
    /// The gate does not know the kind that asks.
    #[error("the gate does not know {kind} as {rust_type}: add it with Builder::kind")]
    UnknownKind {
        /// Which kind.
        kind: GroupKind,
        /// The type that was asked with.
        rust_type: &'static str,
    },
    /// The parent was not read from the API server.
    #[error("the parent has no usable identity: {0}")]
    Parent(#[source] object::Error),
    /// The parent does not carry the mark by which others see that it may have created something.
    #[error(
        "{parent} does not carry finalizer {mark:?}: put it on, and read it back, before asking whether it may create"
    )]
    Unmarked {
        /// Which parent.
        parent: LiveRef,
        /// The finalizer.
        mark: String,
    },
    /// The parent is not being deleted.
    #[error("{parent} is not being deleted, so nothing can be said about its teardown")]
    NotDeleting {
        /// Which parent.
        parent: LiveRef,
    },
}

/// Options of a [`Gate`].
#[must_use]
pub struct Builder {
    client: Client,
    manager: String,
    kinds: Vec<Box<dyn Kind>>,
    policy: BlockPolicy,
    allowed: Allowed,
    until_ready: bool,
    watch: bool,
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("manager", &self.manager).field("kinds", &self.kinds).finish_non_exhaustive()
    }
}

/// A [`ParentKind`] before the manager's mark is known.
trait Kind: fmt::Debug + Send {
    fn reader(self: Box<Self>, applied: &str) -> Reader;
}

impl<K> Kind for ParentKind<K>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Send + Sync + 'static,
{
    fn reader(self: Box<Self>, applied: &str) -> Reader {
        self.erase(applied)
    }
}

impl Builder {
    /// Adds a kind of parents. All kinds that a parent may name, and all whose parents may name it, have to be added.
    pub fn kind<K>(mut self, kind: ParentKind<K>) -> Self
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Send + Sync + 'static,
    {
        self.kinds.push(Box::new(kind));
        self
    }

    /// Sets who may hold up whose deletion. [`BlockPolicy::same_namespace`] unless set.
    pub fn may_block(mut self, policy: BlockPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// Sets which dependents a [request](crate::force) on a parent may have it not wait for. None unless set: whoever may
    /// annotate a parent could otherwise break the order that others rely on.
    pub fn force(mut self, allowed: Allowed) -> Self {
        self.allowed = allowed;
        self
    }

    /// Sets whether a dependency has to be ready before its dependents create: condition `Ready` is `True`, for its present
    /// generation. Off unless set; then it only has to exist. Parents on a cycle do not wait for each other.
    pub fn until_ready(mut self, until_ready: bool) -> Self {
        self.until_ready = until_ready;
        self
    }

    /// Sets whether parents are watched, which wakes those that wait and spares reads. They are unless set.
    pub fn watch(mut self, watch: bool) -> Self {
        self.watch = watch;
        self
    }

    /// The gate.
    ///
    /// # Errors
    /// [`Error::Manager`] or [`Error::Twice`].
    pub fn build(self) -> Result<Gate, Error> {
        let client = self.client;
        let server = Server { client: client.clone(), resolver: Resolver::new(client.clone()) };
        let manager = Manager::new(&self.manager).map_err(Error::Manager)?;
        let applied = manager.applied_finalizer();
        let mut readers: Vec<Reader> = self.kinds.into_iter().map(|kind| kind.reader(&applied)).collect();
        readers.sort_by_key(|reader| reader.resource.group_kind());
        let twice = readers.windows(2).find(|pair| pair[0].resource.group_kind() == pair[1].resource.group_kind());
        if let Some([reader, _]) = twice {
            return Err(Error::Twice { kind: reader.resource.group_kind() });
        }
        Ok(Gate(Arc::new(Inner {
            client: Some(client).filter(|_| self.watch),
            cluster: Arc::new(server),
            manager,
            watches: Watches::new(self.policy.clone()),
            readers,
            policy: self.policy,
            allowed: self.allowed,
            until_ready: self.until_ready,
            lists: Lists::default(),
            sessions: Mutex::default(),
        })))
    }
}

struct Inner {
    /// For watches, if there are to be any.
    client: Option<Client>,
    cluster: Arc<dyn Cluster>,
    manager: Manager,
    readers: Vec<Reader>,
    policy: BlockPolicy,
    allowed: Allowed,
    until_ready: bool,
    watches: Watches,
    lists: Lists,
    sessions: Mutex<BTreeMap<LiveRef, Session>>,
}

/// How far a parent that is being deleted has come.
#[derive(Clone, Debug)]
struct Session {
    /// When its deletion was known.
    since: Moment,
    opening: Opening,
    /// When something was last read for it.
    read: Instant,
    asked: Instant,
}

/// Says when parents may begin. Cheap to clone; clones share watches and lists. See the [module](self).
#[derive(Clone)]
pub struct Gate(Arc<Inner>);

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("readers", &self.0.readers).field("policy", &self.0.policy).finish_non_exhaustive()
    }
}

impl Gate {
    /// Starts building a gate whose keys live under the domain `manager`.
    pub fn builder(client: Client, manager: impl Into<String>) -> Builder {
        Builder {
            client,
            manager: manager.into(),
            kinds: Vec::new(),
            policy: BlockPolicy::default(),
            allowed: Allowed::nothing(),
            until_ready: false,
            watch: true,
        }
    }

    /// What `parent` depends on.
    ///
    /// # Errors
    /// [`Error::UnknownKind`].
    pub fn dependencies<K>(&self, parent: &K) -> Result<Vec<Dependency>, Error>
    where
        K: Resource<DynamicType = ()> + 'static,
    {
        let kind = GroupKind::of::<K>();
        let named = self.0.reader(&kind).and_then(|reader| reader.typed(parent));
        named.ok_or_else(|| Error::UnknownKind { kind, rust_type: type_name::<K>() })
    }

    /// Whether `parent` may create: everything that it depends on was read, there and not being deleted.
    ///
    /// The answer holds for the creates that follow in this pass, however long they take: what was read will wait for this
    /// parent from now on.
    ///
    /// # Errors
    /// [`Error::UnknownKind`], [`Error::Parent`], or [`Error::Unmarked`] if the parent was read without its mark.
    pub async fn may_create<K>(&self, parent: &K) -> Result<MayCreate, Error>
    where
        K: Resource<DynamicType = ()> + 'static,
    {
        let dependencies = self.dependencies(parent)?;
        let this = live_ref(parent)?;
        let mark = self.0.reader(&this.id.group_kind()).and_then(|reader| reader.mark.as_ref());
        match mark.filter(|mark| !parent.meta().finalizers.iter().flatten().any(|f| f == *mark)) {
            Some(mark) => Err(Error::Unmarked { parent: this, mark: mark.clone() }),
            None => Ok(self.admits(&this.id, &dependencies).await),
        }
    }

    /// Whether `parent`, which is being deleted, may be torn down. Once it may, it may for good.
    ///
    /// # Errors
    /// [`Error::UnknownKind`], [`Error::Parent`], or [`Error::NotDeleting`] if the parent was read without a
    /// `deletionTimestamp`.
    pub async fn may_delete<K>(&self, parent: &K) -> Result<MayDelete, Error>
    where
        K: Resource<DynamicType = ()> + 'static,
    {
        self.dependencies(parent)?;
        let this = live_ref(parent)?;
        if parent.meta().deletion_timestamp.is_none() {
            return Err(Error::NotDeleting { parent: this });
        }
        Ok(self.releases(&this, parent.meta(), BTreeSet::new()).await)
    }

    /// Parents that should be reconciled because another one changed: one that is being deleted and has nobody in its
    /// way any more, one that waits for what has come, or is ready, or is being deleted now.
    ///
    /// Only an accelerator: without it everything works by timer.
    pub fn wakeups(&self) -> impl Stream<Item = Wakeup> + Send + use<> {
        self.0.watches.wakeups()
    }

    /// The cycle of `dependsOn` that a parent is on, as far as is known without a read.
    #[must_use]
    pub fn cycle(&self, parent: &ObjectId) -> Option<Cycle> {
        let inner = &self.0;
        inner.watches.look(&inner.readers, |hint| match hint {
            Some(hint) => hint.cycle(parent, &inner.policy),
            None => inner.lists.last(&inner.place(parent))?.cycle(parent, &inner.policy),
        })
    }

    /// Whether `parent` may create, as far as `dependencies` go. The caller has seen to the mark.
    pub(crate) async fn admits(&self, parent: &ObjectId, dependencies: &[Dependency]) -> MayCreate {
        let inner = &self.0;
        inner.listen();
        let named: BTreeSet<&Dependency> = dependencies.iter().collect();
        let checks: Vec<_> = named.into_iter().map(|dependency| inner.unmet(parent, dependency).boxed()).collect();
        let unmet: Vec<_> = stream::iter(checks).buffered(CONCURRENCY).filter_map(std::future::ready).collect().await;
        if unmet.is_empty() { MayCreate::Yes } else { MayCreate::Waits(unmet) }
    }

    /// Whether `parent`, which was read being deleted as `meta` says, may be torn down. `passed` never block it.
    pub(crate) async fn releases(
        &self,
        parent: &LiveRef,
        meta: &ObjectMeta,
        mut passed: BTreeSet<LiveRef>,
    ) -> MayDelete {
        let inner = &self.0;
        inner.listen();
        let annotation = meta.annotations.as_ref().and_then(|all| all.get(&inner.manager.force_annotation()));
        let (forced, unfollowed) = judge(&inner.manager, &inner.allowed, parent, annotation.map(String::as_str));
        passed.extend(forced.dependents.iter().cloned());
        let view = View { parent, policy: &inner.policy, passed: &passed };
        let (by, unknown) = match inner.open(&view).await {
            Ok(by) if by.is_empty() => {
                return MayDelete::Yes(Cleared { forced: Some(forced).filter(|forced| !forced.dependents.is_empty()) });
            }
            Ok(by) => (by, None),
            Err((by, Unread(words))) => (by, Some(words)),
        };
        let by = by.iter().map(Dependent::from).collect();
        MayDelete::Blocked(Blocked { by, cycle: self.cycle(&parent.id), unknown, unfollowed })
    }

    /// How a kind that the gate knows is served.
    pub(crate) fn resource(&self, kind: &GroupKind) -> Option<&ResourceKind> {
        self.0.reader(kind).map(|reader| &reader.resource)
    }

    /// After how long to look again if nothing wakes a parent that waits.
    pub(crate) fn pace(&self) -> Duration {
        let heard = self.0.watches.look(&self.0.readers, |hint| hint.is_some());
        if heard { BELIEVED } else { crate::custodian::WAIT }
    }

    /// Those of `dependents` that a request may have their dependency not wait for, whoever says that it did.
    pub(crate) fn admitted<'a>(&'a self, dependents: &'a BTreeSet<LiveRef>) -> impl Iterator<Item = &'a LiveRef> {
        dependents.iter().filter(|dependent| self.0.allowed.passes(&dependent.id.group_kind()))
    }

    /// The teardown of the parent begins: whoever comes from now on is not in its way.
    pub(crate) fn opened(&self, parent: &LiveRef) {
        if let Some(session) = lock(&self.0.sessions).get_mut(parent) {
            session.opening = Opening::clear();
        }
    }

    /// The parent is let go: nobody asks for it again.
    pub(crate) fn forget(&self, parent: &LiveRef) {
        lock(&self.0.sessions).remove(parent);
    }
}

fn live_ref<K: Resource<DynamicType = ()>>(parent: &K) -> Result<LiveRef, Error> {
    let ParentRef { id, uid, .. } = ParentRef::of(parent).map_err(Error::Parent)?;
    Ok(LiveRef::new(id, uid))
}

impl Inner {
    fn reader(&self, kind: &GroupKind) -> Option<&Reader> {
        self.readers.iter().find(|reader| reader.resource.group_kind() == *kind)
    }

    fn listen(&self) {
        if let Some(client) = &self.client {
            self.watches.start(client, &self.readers);
        }
    }

    /// Where those are that may block `parent`.
    fn place(&self, parent: &ObjectId) -> Option<String> {
        parent.namespace().filter(|_| self.policy.is_local()).map(ToOwned::to_owned)
    }

    async fn list(&self, after: Moment, place: &Option<String>) -> Result<Arc<Parents>, Unread> {
        let make = || {
            let (cluster, readers, place) = (Arc::clone(&self.cluster), self.readers.clone(), place.clone());
            async move { cluster.list(&readers, place.as_deref()).await.map(Arc::new) }.boxed()
        };
        self.lists.after(after, place, make).await
    }

    /// What is wrong with `dependency` as one of `parent`.
    async fn unmet(&self, parent: &ObjectId, dependency: &Dependency) -> Option<Unmet> {
        let why = match dependency.id() {
            Ok(id) if id == *parent => None,
            Ok(id) => match self.reader(&id.group_kind()) {
                Some(_) if !self.policy.admits(parent, &id) => Some(Why::NotAllowed),
                Some(reader) => match self.cluster.read(reader, &id).await {
                    Ok(Some(found)) => self.unfit(parent, &found).await,
                    Ok(None) => Some(Why::Missing),
                    Err(Unread(words)) => Some(Why::Unknown { words }),
                },
                None => Some(Why::KindNotGated),
            },
            Err(error) => Some(Why::Invalid { words: error.to_string() }),
        };
        why.map(|why| Unmet { dependency: dependency.clone(), why })
    }

    /// Why a dependency that was read does not do.
    async fn unfit(&self, parent: &ObjectId, found: &Parent) -> Option<Why> {
        if let Some(since) = found.deleting {
            return Some(Why::Deleting { since: Time(since) });
        }
        if !self.until_ready || found.ready || self.on_one_cycle(parent, &found.this.id).await {
            return None;
        }
        Some(Why::NotReady)
    }

    /// Whether `dependency`, which `parent` names, leads back to it. Old news will do: it is about who goes first.
    async fn on_one_cycle(&self, parent: &ObjectId, dependency: &ObjectId) -> bool {
        let leads = |parents: &Parents| parents.leads(dependency, parent, &self.policy);
        if let Some(leads) = self.watches.look(&self.readers, |hint| hint.map(leads)) {
            return leads;
        }
        self.list(self.lists.moment(), &self.place(parent)).await.is_ok_and(|parents| leads(&parents))
    }

    /// Who is in the way of a parent that is being deleted. On failure, who was when last read, and what failed.
    async fn open(&self, view: &View<'_>) -> Result<Vec<Parent>, (Vec<Parent>, Unread)> {
        let now = Instant::now();
        let Session { since, mut opening, read, .. } = {
            let mut sessions = lock(&self.sessions);
            sessions.retain(|parent, session| parent == view.parent || now - session.asked < FORGOTTEN);
            let fresh = || Session { since: self.lists.moment(), opening: Opening::default(), read: now, asked: now };
            let session = sessions.entry(view.parent.clone()).or_insert_with(fresh);
            session.asked = now;
            session.clone()
        };
        let believed = now - read < BELIEVED;
        let mut has_read = false;
        let found = loop {
            let hear = |hint: Option<&Parents>| opening.next(view, hint.filter(|_| believed));
            match self.watches.look(&self.readers, hear) {
                Ask::Done(by) => break Ok(by),
                Ask::List => match self.list(since, &self.place(&view.parent.id)).await {
                    Ok(parents) => opening.listed(view, &parents),
                    Err(unread) => break Err(unread),
                },
                Ask::Read(id) => {
                    let Some(reader) = self.reader(&id.group_kind()) else { break Ok(opening.left(view)) };
                    match self.cluster.read(reader, &id).await.map(|found| opening.read(&id, found.as_ref())) {
                        Ok(Reading::Away) => {}
                        Ok(Reading::There) => break Ok(opening.left(view)),
                        Ok(Reading::Changed) => break self.list_now(view, &mut opening).await,
                        Err(unread) => break Err(unread),
                    }
                }
                Ask::ListNow => break self.list_now(view, &mut opening).await,
            }
            has_read = true;
        };
        let left = opening.left(view);
        let read = if has_read || !believed { now } else { read };
        lock(&self.sessions).insert(view.parent.clone(), Session { since, opening, read, asked: now });
        found.map_err(|unread| (left, unread))
    }

    async fn list_now(&self, view: &View<'_>, opening: &mut Opening) -> Result<Vec<Parent>, Unread> {
        let parents = self.list(self.lists.moment(), &self.place(&view.parent.id)).await?;
        opening.listed(view, &parents);
        Ok(opening.left(view))
    }
}
