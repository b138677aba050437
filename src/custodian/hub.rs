//! Watches on the manager's own objects, shared by all parents.
//!
//! One metadata watch per kind (cluster-wide, or per namespace where RBAC allows no more), selected by the manager's
//! label, so that calls and memory grow with the manager's objects and not with the cluster. What the hub holds is a hint:
//! it says what to judge and when to look again, never that an object is gone.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, Weak},
    time::Duration,
};

use futures::{Stream, future::join_all};
use kube_client::Client;
use kube_runtime::reflector::ObjectRef;
use tokio::{
    sync::{Notify, mpsc, watch},
    task::AbortHandle,
    time::Instant,
};

use super::{
    follow::{Follower, Told, Turns},
    watches::{KindWatch, PlaceWatch, Watch},
};
use crate::{
    answer::Refusal,
    api::metadata_api,
    lock::lock,
    manager::Manager,
    object::{GroupKind, ObjectId, ResourceKind, Scope, Uid},
    ownership::BackPointer,
    teardown::{Change, Extent, Live},
};

/// A namespace that shows nothing, and that nobody asked for so long, is not watched any more: no parent is there.
const FORGOTTEN: Duration = Duration::from_secs(1_200);

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
#[derive(Clone, Debug)]
enum Sync {
    /// The first list is under way.
    Starting,
    /// Listed, and watched: what it shows is as the API server told it last.
    Watching,
    /// Not watched at present, and why. It goes on trying, nobody waits for it meanwhile, and what it showed has grown old.
    Failing(Refusal),
}

/// Where a watch looks: one namespace, or everywhere.
type Place = (GroupKind, Option<String>);

struct Watched {
    /// The kind as it was served when the watch began.
    kind: ResourceKind,
    seen: BTreeMap<ObjectId, Live>,
    sync: watch::Sender<Sync>,
    task: AbortHandle,
    /// When somebody last asked for it.
    asked: Instant,
}

impl Watched {
    fn is_watching(&self) -> bool {
        matches!(*self.sync.borrow(), Sync::Watching)
    }
}

#[derive(Default)]
struct State {
    places: BTreeMap<Place, Watched>,
    /// Objects by the parent UID in their label.
    children: BTreeMap<Uid, BTreeSet<ObjectId>>,
    subscribers: BTreeMap<Uid, Vec<mpsc::UnboundedSender<Change>>>,
    wakeups: Wakeups,
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

/// Who wants to hear of wakeups: of all hubs that share this, those included that are made later.
#[derive(Clone, Default)]
pub(super) struct Wakeups(Arc<Mutex<Vec<Weak<Pending>>>>);

impl Wakeups {
    fn put(&self, wakeup: &Wakeup) {
        lock(&self.0).retain(|pending| pending.upgrade().map(|pending| pending.put(wakeup.clone())).is_some());
    }

    /// Parents of objects that change or go, from now on.
    fn stream(&self) -> impl Stream<Item = Wakeup> + Send + use<> {
        let pending = Arc::<Pending>::default();
        lock(&self.0).push(Arc::downgrade(&pending));
        futures::stream::unfold(pending, |pending| async move { Some((pending.take().await, pending)) })
    }
}

/// The shared watches. Cheap to clone; the watches end with the last clone.
#[derive(Clone)]
pub(crate) struct Hub {
    client: Client,
    manager: Manager,
    mode: Watch,
    turns: Arc<Turns>,
    state: Arc<Mutex<State>>,
}

impl std::fmt::Debug for Hub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hub").field("manager", &self.manager).field("mode", &self.mode).finish_non_exhaustive()
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.places.values().for_each(|watched| watched.task.abort());
    }
}

impl Hub {
    /// A hub without watches.
    pub(super) fn new(client: Client, manager: Manager, mode: Watch, wakeups: Wakeups) -> Self {
        let mut state = State::default();
        state.wakeups = wakeups;
        Self { client, manager, mode, turns: Arc::new(Turns::new()), state: Arc::new(Mutex::new(state)) }
    }

    /// A hub of the same manager for another client, whose wakeups go to the same streams.
    pub(super) fn sibling(&self, client: Client) -> Self {
        let wakeups = lock(&self.state).wakeups.clone();
        Self::new(client, self.manager.clone(), self.mode, wakeups)
    }

    /// Watches `kind` wherever `namespaces` says (for namespaced kinds), and waits until that is so or is refused. Returns
    /// whether every place is watched.
    ///
    /// Everywhere is tried first, unless the mode says otherwise: one watch instead of one a namespace. A watch that is
    /// refused goes on trying at growing intervals, and nobody waits for it.
    pub(crate) async fn ensure(&self, kind: &ResourceKind, namespaces: &BTreeSet<String>) -> bool {
        if self.is_off() {
            return false;
        }
        let confined = kind.scope == Scope::Namespaced;
        if !(confined && self.mode == Watch::Namespaces) && self.watched(kind, None).await {
            lock(&self.state).retire(|(other, namespace), _| *other == kind.group_kind() && namespace.is_some());
            return true;
        }
        if !confined || self.mode == Watch::Everywhere {
            return false;
        }
        lock(&self.state).retire(|_, watched| watched.seen.is_empty() && watched.asked.elapsed() > FORGOTTEN);
        let places = namespaces.iter().map(|namespace| self.watched(kind, Some(namespace.clone())));
        join_all(places).await.into_iter().all(|watched| watched)
    }

    async fn watched(&self, kind: &ResourceKind, namespace: Option<String>) -> bool {
        let mut sync = self.start(kind, namespace);
        let reached = sync.wait_for(|s| !matches!(s, Sync::Starting)).await;
        reached.is_ok_and(|s| matches!(*s, Sync::Watching))
    }

    fn start(&self, kind: &ResourceKind, namespace: Option<String>) -> watch::Receiver<Sync> {
        let place = (kind.group_kind(), namespace.clone());
        let mut state = lock(&self.state);
        match state.places.get_mut(&place) {
            Some(watched) if watched.kind.version == kind.version => {
                watched.asked = Instant::now();
                return watched.sync.subscribe();
            }
            // That version was switched off; what it showed is shown again by the new watch.
            Some(watched) => watched.task.abort(),
            None => {}
        }
        let (sync, receiver) = watch::channel(Sync::Starting);
        let follower = Follower {
            api: metadata_api(&self.client, kind, namespace.as_deref()),
            kind: kind.group_kind(),
            manager: self.manager.clone(),
            turns: Arc::clone(&self.turns),
        };
        // The task holds no strong handle, so that dropping the hub ends it.
        let (weak, told_of) = (Arc::downgrade(&self.state), place.clone());
        let task = tokio::spawn(follower.follow(move |told| match weak.upgrade() {
            Some(state) => {
                lock(&state).take_in(&told_of, told);
                true
            }
            None => false,
        }));
        let seen = state.places.remove(&place).map(|watched| watched.seen).unwrap_or_default();
        let (task, asked) = (task.abort_handle(), Instant::now());
        state.places.insert(place, Watched { kind: kind.clone(), seen, sync, task, asked });
        receiver
    }

    /// What the watches show of the objects labelled with `parent`. Nothing of a place that is not watched at present: it
    /// would be old.
    pub(crate) fn live(&self, parent: &Uid) -> BTreeMap<ObjectId, Live> {
        let state = lock(&self.state);
        let ids = state.children.get(parent).into_iter().flatten();
        ids.filter_map(|id| Some((id.clone(), state.seen(id)?.clone()))).collect()
    }

    /// Whether nothing is ever watched.
    pub(super) fn is_off(&self) -> bool {
        self.mode == Watch::Off
    }

    /// Whether [`live`](Self::live) shows every object of `kind`: wherever it is, or in all the namespaces that it is confined
    /// to.
    pub(super) fn shows_all(&self, kind: &GroupKind, confined: Option<&BTreeSet<String>>) -> bool {
        let state = lock(&self.state);
        let shown = |namespace: Option<&String>| {
            state.places.get(&(kind.clone(), namespace.cloned())).is_some_and(Watched::is_watching)
        };
        shown(None) || confined.is_some_and(|all| all.iter().all(|namespace| shown(Some(namespace))))
    }

    /// Why objects of these kinds, in these namespaces, are polled because rights are missing.
    pub(crate) fn notes(&self, places: &BTreeMap<GroupKind, BTreeSet<String>>) -> Vec<String> {
        let notes = self.report().into_iter().filter_map(|kind| kind.note(places.get(&kind.kind)?.iter().cloned()));
        notes.collect()
    }

    /// How each kind is watched that somebody asked for.
    pub(crate) fn report(&self) -> Vec<KindWatch> {
        let state = lock(&self.state);
        let mut kinds: BTreeMap<&GroupKind, KindWatch> = BTreeMap::new();
        for ((kind, namespace), watched) in &state.places {
            let here = match &*watched.sync.borrow() {
                Sync::Starting => PlaceWatch::Starting,
                Sync::Watching => PlaceWatch::Watched,
                Sync::Failing(refusal) => PlaceWatch::Polled { why: refusal.clone() },
            };
            kinds.entry(kind).or_insert_with(|| KindWatch::new(kind.clone())).add(namespace.clone(), here);
        }
        kinds.into_values().collect()
    }

    /// Every kind that is, or is to be, watched, as it was served when that began.
    pub(crate) fn kinds(&self) -> Vec<(GroupKind, ResourceKind)> {
        lock(&self.state).places.iter().map(|((kind, _), watched)| (kind.clone(), watched.kind.clone())).collect()
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
        lock(&self.state).wakeups.stream()
    }
}

impl State {
    fn seen(&self, id: &ObjectId) -> Option<&Live> {
        let place = |namespace| (id.group_kind(), namespace);
        let shown = |place| self.places.get(&place).filter(|w| w.is_watching()).and_then(|w| w.seen.get(id));
        shown(place(None)).or_else(|| shown(place(Some(id.namespace()?.to_owned()))))
    }

    /// Whether a place shows an object with the same label.
    fn shows(&self, id: &ObjectId, live: &Live) -> bool {
        [None, id.namespace().map(ToOwned::to_owned)].into_iter().any(|namespace| {
            let seen = self.places.get(&(id.group_kind(), namespace)).and_then(|w| w.seen.get(id));
            seen.is_some_and(|seen| seen.label == live.label)
        })
    }

    /// Ends watches that nobody needs any more.
    fn retire(&mut self, done_with: impl Fn(&Place, &Watched) -> bool) {
        let places: Vec<_> = self.places.iter().filter(|(p, w)| done_with(p, w)).map(|(p, _)| p.clone()).collect();
        for place in places {
            let Some(watched) = self.places.remove(&place) else { continue };
            watched.task.abort();
            for (id, live) in &watched.seen {
                self.index(id, live, false);
            }
        }
    }

    /// Takes in what the follower of a place tells.
    fn take_in(&mut self, place: &Place, told: Told) {
        match told {
            Told::Here(id, live) => self.put(place, id, live),
            Told::Gone(id) => self.take(place, &id),
            Told::Listed(listed) => {
                // What a gap in the watch swallowed shows only here.
                let seen = self.places.get(place).into_iter().flat_map(|w| w.seen.keys());
                let lost: Vec<_> = seen.filter(|id| !listed.contains(*id)).cloned().collect();
                lost.iter().for_each(|id| self.take(place, id));
            }
            Told::Watching => {
                let before = self.places.get(place).map(|w| w.sync.send_replace(Sync::Watching));
                if matches!(before, Some(Sync::Failing(_))) {
                    self.tell_all(place, Change::Resumed);
                }
            }
            Told::Failed(refusal) => {
                let before = self.places.get(place).map(|w| w.sync.send_replace(Sync::Failing(refusal)));
                if matches!(before, Some(Sync::Watching)) {
                    // Whoever relies on it has to ask from now on.
                    self.tell_all(place, Change::Ended);
                }
            }
        }
    }

    fn tell_all(&self, (kind, namespace): &Place, change: fn(Extent) -> Change) {
        let extent = Extent::Selected { kind: kind.clone(), namespace: namespace.clone() };
        for sender in self.subscribers.values().flatten() {
            let _ = sender.send(change(extent.clone()));
        }
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
        self.wakeups.put(&wakeup);
    }

    fn index(&mut self, id: &ObjectId, live: &Live, present: bool) {
        let Some(parent) = live.label.as_ref().and_then(|uid| Uid::new(uid).ok()) else { return };
        if present {
            self.children.entry(parent).or_default().insert(id.clone());
        } else if self.shows(id, live) {
            // In another place, too.
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
