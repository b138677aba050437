//! Watches on the manager's own objects, shared by all parents.
//!
//! One metadata watch per kind (cluster-wide, or per namespace where RBAC allows no more), selected by the manager's
//! label, so that calls and memory grow with the manager's objects and not with the cluster. What the hub holds is a hint:
//! it says what to judge and when to look again, never that an object is gone.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, Weak},
};

use futures::{Stream, StreamExt};
use kube_client::{Client, api::DynamicObject, core::PartialObjectMeta};
use kube_runtime::{WatchStreamExt, reflector::ObjectRef, watcher};
use tokio::{
    sync::{Notify, mpsc, watch},
    task::AbortHandle,
};

use crate::{
    answer::{self, Answer},
    api::metadata_api,
    lock::lock,
    manager::Manager,
    object::{GroupKind, ObjectId, ResourceKind, Scope, Uid},
    ownership::BackPointer,
    teardown::{Change, Live},
};

/// A parent that should be reconciled because a child changed or went.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct Wakeup {
    /// Which parent, as the child's back-pointer names it.
    pub parent: ObjectId,
    /// Which incarnation.
    pub uid: Uid,
    /// The child that changed or went; from a [`gate`](crate::gate), the other parent.
    pub child: ObjectId,
}

impl Wakeup {
    /// The parent, as a controller of kind `K` refers to it. Cluster-scoped parents have no namespace, so that a parent is
    /// never reconciled twice at once.
    #[must_use]
    pub fn object_ref<K: kube_core::Resource<DynamicType = ()>>(&self) -> ObjectRef<K> {
        object_ref(&self.parent)
    }

    /// Whether the parent is of kind `K`.
    #[must_use]
    pub fn is_for<K: kube_core::Resource<DynamicType = ()>>(&self) -> bool {
        self.parent.is(&K::group(&()), &K::kind(&()))
    }
}

/// An identity as a controller refers to it.
pub(super) fn object_ref<K: kube_core::Resource<DynamicType = ()>>(id: &ObjectId) -> ObjectRef<K> {
    let reference = ObjectRef::new(id.name());
    match id.namespace() {
        Some(namespace) => reference.within(namespace),
        None => reference,
    }
}

/// How one kind is watched in one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sync {
    /// The first list is under way.
    Starting,
    /// Listed, and watched.
    Watching,
    /// Not listed at present: forbidden, not served, or no answer. It goes on trying, and nobody waits for it meanwhile.
    Failing,
}

/// Where a watch looks: one namespace, or everywhere.
type Place = (GroupKind, Option<String>);

struct Watched {
    /// The version that is watched: one that was served when the watch began.
    version: String,
    seen: BTreeMap<ObjectId, Live>,
    sync: watch::Sender<Sync>,
    task: AbortHandle,
}

#[derive(Default)]
struct State {
    places: BTreeMap<Place, Watched>,
    /// Objects by the parent UID in their label.
    children: BTreeMap<Uid, BTreeSet<ObjectId>>,
    subscribers: BTreeMap<Uid, Vec<mpsc::UnboundedSender<Change>>>,
    wakeups: Vec<Weak<Pending>>,
}

/// Wakeups that were not taken yet: one a parent, so that a slow or forgotten stream costs no more than there are parents.
#[derive(Default)]
pub(crate) struct Pending {
    parents: Mutex<BTreeMap<Uid, Wakeup>>,
    more: Notify,
}

impl Pending {
    fn parents(&self) -> MutexGuard<'_, BTreeMap<Uid, Wakeup>> {
        lock(&self.parents)
    }

    pub(crate) fn put(&self, wakeup: Wakeup) {
        self.parents().insert(wakeup.uid.clone(), wakeup);
        self.more.notify_one();
    }

    pub(crate) async fn take(&self) -> Wakeup {
        loop {
            if let Some((_, wakeup)) = self.parents().pop_first() {
                return wakeup;
            }
            self.more.notified().await;
        }
    }
}

/// The shared watches. Cheap to clone; the watches end with the last clone.
#[derive(Clone)]
pub(crate) struct Hub {
    client: Client,
    manager: Manager,
    state: Arc<Mutex<State>>,
}

impl std::fmt::Debug for Hub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hub").field("manager", &self.manager).finish_non_exhaustive()
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.places.values().for_each(|watched| watched.task.abort());
    }
}

impl Hub {
    /// A hub without watches.
    pub(crate) fn new(client: Client, manager: Manager) -> Self {
        Self { client, manager, state: Arc::default() }
    }

    /// Watches `kind` wherever `namespaces` says (for namespaced kinds; `None` among them means everywhere), and waits until
    /// its first list is in. Returns whether every place is watched.
    ///
    /// Everywhere is tried first: one watch instead of one a namespace. A watch that is refused goes on trying at growing
    /// intervals, and nobody waits for it.
    pub(crate) async fn ensure(&self, kind: &ResourceKind, namespaces: &BTreeSet<String>) -> bool {
        if self.watched(kind, None).await {
            return true;
        }
        if kind.scope == Scope::Cluster {
            return false;
        }
        let mut all = true;
        for namespace in namespaces {
            all &= self.watched(kind, Some(namespace.clone())).await;
        }
        all
    }

    async fn watched(&self, kind: &ResourceKind, namespace: Option<String>) -> bool {
        let mut sync = self.start(kind, namespace);
        let reached = sync.wait_for(|s| *s != Sync::Starting).await.map(|s| *s);
        reached.is_ok_and(|s| s == Sync::Watching)
    }

    fn start(&self, kind: &ResourceKind, namespace: Option<String>) -> watch::Receiver<Sync> {
        let place = (kind.group_kind(), namespace.clone());
        let mut state = lock(&self.state);
        match state.places.get(&place) {
            Some(watched) if watched.version == kind.version => return watched.sync.subscribe(),
            // That version was switched off; what it showed is shown again by the new watch.
            Some(watched) => watched.task.abort(),
            None => {}
        }
        let (sync, receiver) = watch::channel(Sync::Starting);
        let api = metadata_api(&self.client, kind, namespace.as_deref());
        let config = watcher::Config::default().labels(&self.manager.parent_label());
        let events = watcher(api, config).default_backoff();
        // The task holds no strong handle, so that dropping the hub ends it.
        let task = tokio::spawn(follow(Arc::downgrade(&self.state), self.manager.clone(), place.clone(), events));
        let seen = state.places.remove(&place).map(|watched| watched.seen).unwrap_or_default();
        let watched = Watched { version: kind.version.clone(), seen, sync, task: task.abort_handle() };
        state.places.insert(place, watched);
        receiver
    }

    /// What the watches show of the objects labelled with `parent`.
    pub(crate) fn live(&self, parent: &Uid) -> BTreeMap<ObjectId, Live> {
        let state = lock(&self.state);
        let ids = state.children.get(parent).into_iter().flatten();
        ids.filter_map(|id| Some((id.clone(), state.seen(id)?.clone()))).collect()
    }

    /// Changes of objects labelled with `parent`, from now on.
    pub(crate) fn subscribe(&self, parent: &Uid) -> mpsc::UnboundedReceiver<Change> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut state = lock(&self.state);
        state.subscribers.retain(|_, senders| {
            senders.retain(|s| !s.is_closed());
            !senders.is_empty()
        });
        state.subscribers.entry(parent.clone()).or_default().push(sender);
        receiver
    }

    /// Parents of objects that change or go, from now on.
    pub(crate) fn wakeups(&self) -> impl Stream<Item = Wakeup> + Send + use<> {
        let pending = Arc::<Pending>::default();
        lock(&self.state).wakeups.push(Arc::downgrade(&pending));
        futures::stream::unfold(pending, |pending| async move { Some((pending.take().await, pending)) })
    }
}

impl State {
    fn seen(&self, id: &ObjectId) -> Option<&Live> {
        let kind = id.group_kind();
        let place = (kind, None);
        let everywhere = self.places.get(&place).and_then(|w| w.seen.get(id));
        everywhere.or_else(|| self.places.get(&(place.0, id.namespace().map(ToOwned::to_owned)))?.seen.get(id))
    }

    /// Tells everybody concerned that an object changed.
    fn announce(&mut self, id: &ObjectId, live: &Live, present: bool) {
        let parent = live.label.as_ref().and_then(|uid| Uid::new(uid).ok());
        if let Some(senders) = parent.as_ref().and_then(|uid| self.subscribers.get_mut(uid)) {
            let change = match present {
                true => Change::Seen(id.clone(), live.clone()),
                false => Change::Lost(id.clone()),
            };
            senders.retain(|s| s.send(change.clone()).is_ok());
        }
        let Some(pointer) = live.back_pointer.as_deref().and_then(|text| BackPointer::decode(text).ok()) else {
            return;
        };
        let wakeup =
            Wakeup { parent: pointer.parent().id.clone(), uid: pointer.parent().uid.clone(), child: id.clone() };
        self.wakeups.retain(|pending| pending.upgrade().map(|pending| pending.put(wakeup.clone())).is_some());
    }

    fn index(&mut self, id: &ObjectId, live: &Live, present: bool) {
        let Some(parent) = live.label.as_ref().and_then(|uid| Uid::new(uid).ok()) else { return };
        if present {
            self.children.entry(parent).or_default().insert(id.clone());
        } else if let Some(ids) = self.children.get_mut(&parent) {
            ids.remove(id);
            if ids.is_empty() {
                self.children.remove(&parent);
            }
        }
    }

    fn put(&mut self, place: &Place, id: ObjectId, live: Live) {
        let Some(watched) = self.places.get_mut(place) else { return };
        let before = watched.seen.insert(id.clone(), live.clone());
        if before.as_ref() == Some(&live) {
            return;
        }
        if let Some(before) = before {
            self.index(&id, &before, false);
        }
        self.index(&id, &live, true);
        self.announce(&id, &live, true);
    }

    fn take(&mut self, place: &Place, id: &ObjectId) {
        let Some(live) = self.places.get_mut(place).and_then(|w| w.seen.remove(id)) else { return };
        self.index(id, &live, false);
        self.announce(id, &live, false);
    }
}

type Meta = PartialObjectMeta<DynamicObject>;

async fn follow(
    state: Weak<Mutex<State>>,
    manager: Manager,
    place: Place,
    events: impl Stream<Item = watcher::Result<watcher::Event<Meta>>>,
) {
    let mut events = std::pin::pin!(events);
    let mut listed = BTreeSet::new();
    let read = |meta: &Meta| {
        Some((ObjectId::from_meta(&place.0, &meta.metadata).ok()?, Live::of(&meta.metadata, Some(&manager))?))
    };
    while let Some(event) = events.next().await {
        let Some(state) = state.upgrade() else { return };
        let mut state = lock(&state);
        match event {
            Ok(watcher::Event::Init) => listed.clear(),
            Ok(watcher::Event::InitApply(meta)) => {
                if let Some((id, live)) = read(&meta) {
                    listed.insert(id.clone());
                    state.put(&place, id, live);
                }
            }
            Ok(watcher::Event::InitDone) => {
                // What a gap in the watch swallowed shows only here.
                let lost: Vec<_> = match state.places.get(&place) {
                    Some(watched) => watched.seen.keys().filter(|id| !listed.contains(*id)).cloned().collect(),
                    None => return,
                };
                lost.iter().for_each(|id| state.take(&place, id));
                listed.clear();
                if let Some(watched) = state.places.get(&place) {
                    watched.sync.send_replace(Sync::Watching);
                }
            }
            Ok(watcher::Event::Apply(meta)) => {
                if let Some((id, live)) = read(&meta) {
                    state.put(&place, id, live);
                }
            }
            Ok(watcher::Event::Delete(meta)) => {
                if let Some((id, _)) = read(&meta) {
                    state.take(&place, &id);
                }
            }
            Err(error) => {
                if let Some(watched) = state.places.get(&place) {
                    let refused = refused(&error);
                    watched.sync.send_if_modified(|sync| {
                        let failing = *sync == Sync::Starting || (*sync == Sync::Watching && refused);
                        if failing {
                            *sync = Sync::Failing;
                        }
                        failing
                    });
                }
                tracing::debug!(kind = %place.0, namespace = ?place.1, %error, "watch failed");
            }
        }
    }
}

/// Whether a watch that was going is not to be relied on any more. Any other trouble is that of one request.
fn refused(error: &watcher::Error) -> bool {
    use watcher::Error::{InitialListFailed, WatchFailed, WatchStartFailed};
    let (InitialListFailed(source) | WatchStartFailed(source) | WatchFailed(source)) = error else { return false };
    matches!(answer::classify(source), Answer::Forbidden | Answer::NotFound { .. } | Answer::NoRoute)
}
