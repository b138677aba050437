//! Watches on the kinds of parents: a hint at who still blocks, and wakes.
//!
//! One watch a kind. What it shows may be old: it is enough to say "still blocked" and to know whom to wake, and never
//! to say that somebody is gone.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, Weak},
};

use futures::{Stream, StreamExt};
use kube_client::{Client, api::DynamicObject};
use kube_runtime::{WatchStreamExt, watcher};
use tokio::task::AbortHandle;

use super::{
    BlockPolicy,
    dependency::Reader,
    parents::{Parent, Parents, View},
};
use crate::{
    answer::{self, Answer},
    api::api,
    custodian::{Pending, Wakeup},
    lock::lock,
    object::{GroupKind, LiveRef, ObjectId},
};

#[derive(Default)]
struct State {
    parents: Parents,
    /// Kinds that are listed and watched.
    heard: BTreeSet<GroupKind>,
    tasks: BTreeMap<GroupKind, AbortHandle>,
    wakes: Vec<Weak<Pending>>,
}

impl Drop for State {
    fn drop(&mut self) {
        self.tasks.values().for_each(AbortHandle::abort);
    }
}

/// The watches; they end with the last clone.
#[derive(Clone)]
pub(super) struct Watches {
    state: Arc<Mutex<State>>,
    policy: BlockPolicy,
}

impl Watches {
    pub(super) fn new(policy: BlockPolicy) -> Self {
        Self { state: Arc::default(), policy }
    }

    /// Begins to watch, if that has not been done. Nobody waits for it.
    pub(super) fn start(&self, client: &Client, readers: &[Reader]) {
        let mut state = lock(&self.state);
        for reader in readers {
            let kind = reader.resource.group_kind();
            if state.tasks.contains_key(&kind) {
                continue;
            }
            let api = api::<DynamicObject>(client, &reader.resource, None);
            let events = watcher(api, watcher::Config::default()).default_backoff();
            // The task holds no strong handle, so that dropping the watches ends it.
            let follow = follow(Arc::downgrade(&self.state), self.policy.clone(), reader.clone(), events);
            state.tasks.insert(kind, tokio::spawn(follow).abort_handle());
        }
    }

    /// Looks at what the watches show, if all of them can be heard.
    pub(super) fn look<T>(&self, readers: &[Reader], look: impl FnOnce(Option<&Parents>) -> T) -> T {
        let state = lock(&self.state);
        let heard = readers.iter().all(|reader| state.heard.contains(&reader.resource.group_kind()));
        look(heard.then_some(&state.parents))
    }

    /// Shows `parents`, as a watch would that is that old; nothing, with `None`.
    #[cfg(test)]
    pub(super) fn show(&self, readers: &[Reader], parents: Option<Parents>) {
        let mut state = lock(&self.state);
        let kinds = readers.iter().map(|reader| reader.resource.group_kind());
        state.heard = if parents.is_some() { kinds.collect() } else { BTreeSet::new() };
        state.parents = parents.unwrap_or_default();
    }

    /// Parents to look at again because another one changed, from now on.
    pub(super) fn wakeups(&self) -> impl Stream<Item = Wakeup> + Send + use<> {
        let pending = Arc::<Pending>::default();
        lock(&self.state).wakes.push(Arc::downgrade(&pending));
        futures::stream::unfold(pending, |pending| async move { Some((pending.take().await, pending)) })
    }
}

impl State {
    fn put(&mut self, policy: &BlockPolicy, parent: Parent) {
        let id = parent.this.id.clone();
        let before = self.parents.put(parent);
        self.changed(policy, &id, before.as_ref());
    }

    fn take(&mut self, policy: &BlockPolicy, id: &ObjectId) {
        let before = self.parents.take(id);
        self.changed(policy, id, before.as_ref());
    }

    /// Wakes whom it concerns that the parent `id` is not what it was.
    fn changed(&mut self, policy: &BlockPolicy, id: &ObjectId, before: Option<&Parent>) {
        let wake = whom_to_wake(&self.parents, policy, id, before);
        for parent in wake {
            let wakeup = Wakeup { parent: parent.id, uid: parent.uid, child: id.clone() };
            self.wakes.retain(|pending| pending.upgrade().map(|pending| pending.put(wakeup.clone())).is_some());
        }
    }
}

/// Whom it concerns that `id`, which was `before`, is now what `parents` says: those being deleted that are free now, as
/// far as this shows, or that have to say something else of it because its own deletion began, and those living that
/// wait for it.
pub(super) fn whom_to_wake(
    parents: &Parents,
    policy: &BlockPolicy,
    id: &ObjectId,
    before: Option<&Parent>,
) -> BTreeSet<LiveRef> {
    let now = parents.get(id);
    let mut wake = BTreeSet::new();
    let unchanged = |same: fn(&Parent, &Parent) -> bool| matches!((before, now), (Some(b), Some(n)) if same(b, n));
    if !unchanged(Parent::stands_as) {
        let named: BTreeSet<&ObjectId> = [before, now].into_iter().flatten().flat_map(Parent::named).collect();
        let deleting = |id: &ObjectId| parents.get(id).filter(|p| p.deleting.is_some());
        // It joins the group it is on a cycle with, or is waited for as one that will go.
        let began = matches!((before, now), (Some(b), Some(n)) if b.deleting.is_none() && n.deleting.is_some());
        for dependency in named.into_iter().filter_map(deleting) {
            let together = parents.together(&dependency.this, policy);
            for member in together.iter().filter_map(|member| parents.get(member)) {
                let view = View { parent: &member.this, policy, passed: &BTreeSet::new() };
                if member.this.id != *id && (began || parents.blockers(&view).is_empty()) {
                    wake.insert(member.this.clone());
                }
            }
        }
    }
    let serves_as =
        |b: &Parent, n: &Parent| (&b.this, b.deleting.is_some(), b.ready) == (&n.this, n.deleting.is_some(), n.ready);
    if !unchanged(serves_as) {
        wake.extend(parents.naming(id).filter(|p| p.deleting.is_none()).map(|p| p.this.clone()));
    }
    wake
}

async fn follow(
    state: Weak<Mutex<State>>,
    policy: BlockPolicy,
    reader: Reader,
    events: impl Stream<Item = watcher::Result<watcher::Event<DynamicObject>>>,
) {
    let mut events = std::pin::pin!(events);
    let kind = reader.resource.group_kind();
    let mut listed = BTreeSet::new();
    while let Some(event) = events.next().await {
        let Some(state) = state.upgrade() else { return };
        let mut state = lock(&state);
        match event {
            Ok(watcher::Event::Init) => listed.clear(),
            Ok(watcher::Event::InitApply(object)) => {
                if let Some(parent) = reader.parent(object) {
                    listed.insert(parent.this.id.clone());
                    state.put(&policy, parent);
                }
            }
            Ok(watcher::Event::InitDone) => {
                // What a gap in the watch swallowed shows only here.
                let of_kind = state.parents.ids().filter(|id| id.group_kind() == kind);
                let lost: Vec<_> = of_kind.filter(|id| !listed.contains(*id)).cloned().collect();
                lost.iter().for_each(|id| state.take(&policy, id));
                listed.clear();
                state.heard.insert(kind.clone());
            }
            Ok(watcher::Event::Apply(object)) => {
                if let Some(parent) = reader.parent(object) {
                    state.put(&policy, parent);
                }
            }
            Ok(watcher::Event::Delete(object)) => {
                if let Some(parent) = reader.parent(object) {
                    state.take(&policy, &parent.this.id);
                }
            }
            Err(error) => {
                if is_refused(&error) {
                    state.heard.remove(&kind);
                }
                tracing::debug!(%kind, %error, "watch failed");
            }
        }
    }
}

/// Whether a watch is not to be relied on any more. Any other trouble is that of one request.
fn is_refused(error: &watcher::Error) -> bool {
    use watcher::Error::{InitialListFailed, WatchFailed, WatchStartFailed};
    let (InitialListFailed(source) | WatchStartFailed(source) | WatchFailed(source)) = error else { return false };
    matches!(answer::classify(source), Answer::Forbidden | Answer::NotFound { .. } | Answer::NoRoute)
}
