//! Follows the manager's objects of one kind in one place: lists them, watches them, and goes on where that ends.
//!
//! Says after every request how far what it told can be relied upon: a list without a watch goes stale, so "listed" and
//! "watched" are told apart (a kube-runtime watcher does not say when its watch was opened). Missing rights are asked for
//! again ever more rarely, and by all followers of a hub together no more than once a second.

use std::{collections::BTreeSet, time::Duration};

use futures::{StreamExt, TryStreamExt};
use kube_client::{
    Api,
    api::{DynamicObject, WatchEvent, WatchParams},
    core::PartialObjectMeta,
};
use tokio::{
    sync::{Mutex, Semaphore},
    time::{Instant, sleep, sleep_until, timeout},
};

use crate::{
    answer::{Answer, Refusal},
    api::{first_page, pages},
    manager::Manager,
    object::{GroupKind, ObjectId},
    teardown::Live,
};

/// Lists under way at once, of all followers of a hub.
const LISTS: usize = 8;
/// After how many seconds the API server is asked to end a watch, so that a dead connection does not go unnoticed.
const WATCH_ENDS: u32 = 290;
/// How long an answer is waited for; for the next event of a watch, beyond its end.
const PATIENCE: Duration = Duration::from_secs(30);
/// A watch that lasted so long did its service, even if it told nothing.
const LASTED: Duration = Duration::from_secs(5);
/// Between two questions for rights that were missing.
const RIGHTS_EVERY: Duration = Duration::from_secs(1);

/// What a follower tells.
#[derive(Debug)]
pub(super) enum Told {
    /// An object is there, in this state.
    Here(ObjectId, Live),
    /// An object is gone, or not selected any more.
    Gone(ObjectId),
    /// A list is complete: what it did not name is gone, or not selected any more.
    Listed(BTreeSet<ObjectId>),
    /// A watch goes on where the last list or watch ended: from now on every change is told.
    Watching,
    /// It cannot go on at present: what was told before grows old.
    Failed(Refusal),
}

/// What the followers of one hub share.
#[derive(Debug)]
pub(super) struct Turns {
    lists: Semaphore,
    rights: Mutex<Instant>,
}

impl Turns {
    pub(super) fn new() -> Self {
        Self { lists: Semaphore::new(LISTS), rights: Mutex::new(Instant::now()) }
    }

    /// Waits for a turn to ask for rights that were missing.
    async fn for_rights(&self) {
        let at = {
            let mut next = self.rights.lock().await;
            let at = (*next).max(Instant::now());
            *next = at + RIGHTS_EVERY;
            at
        };
        sleep_until(at).await;
    }
}

/// How long to wait before asking again, after so many failures in a row.
fn pause(answer: &Answer, failures: u32) -> Duration {
    let (first, longest) = if is_refusal(answer) { (2_000, 300_000) } else { (100, 30_000) };
    let doubled = u64::saturating_mul(first, 1_u64.checked_shl(failures.saturating_sub(1)).unwrap_or(u64::MAX));
    Duration::from_millis(doubled.min(longest))
}

/// Whether somebody has to grant something before asking again makes sense.
pub(super) fn is_refusal(answer: &Answer) -> bool {
    matches!(answer, Answer::Forbidden | Answer::Unauthorized | Answer::Denied { .. } | Answer::Unsupported)
}

type Meta = PartialObjectMeta<DynamicObject>;

/// Who is told; `false` means that nobody listens any more.
type Listener<'a> = &'a mut (dyn FnMut(Told) -> bool + Send);

/// Nobody listens any more.
struct Deaf;

/// Where to look, and for what.
pub(super) struct Follower {
    pub(super) api: Api<Meta>,
    pub(super) kind: GroupKind,
    pub(super) manager: Manager,
    pub(super) turns: std::sync::Arc<Turns>,
}

impl Follower {
    /// Tells `listener` what is there and what changes, until it returns `false`.
    pub(super) async fn follow(self, mut listener: impl FnMut(Told) -> bool + Send) {
        let _ = self.follow_all(&mut listener).await;
    }

    async fn follow_all(&self, listener: Listener<'_>) -> Result<(), Deaf> {
        let mut failures = 0;
        loop {
            let mut version = match self.list(listener).await? {
                Ok(version) => version,
                Err(refusal) => {
                    self.fail(refusal, &mut failures, listener).await?;
                    continue;
                }
            };
            // From here on until the version is too old.
            loop {
                let Err(refusal) = self.watch(&mut version, &mut failures, listener).await? else { continue };
                let expired = *refusal.answer() == Answer::Expired;
                self.fail(refusal, &mut failures, listener).await?;
                if expired {
                    break;
                }
            }
        }
    }

    /// Says that it cannot go on, and waits until it may be tried again.
    async fn fail(&self, refusal: Refusal, failures: &mut u32, listener: Listener<'_>) -> Result<(), Deaf> {
        let answer = refusal.answer().clone();
        tracing::debug!(kind = %self.kind, %refusal, "watch failed");
        tell(listener, Told::Failed(refusal))?;
        *failures = failures.saturating_add(1);
        sleep(pause(&answer, *failures)).await;
        if is_refusal(&answer) {
            self.turns.for_rights().await;
        }
        Ok(())
    }

    fn read(&self, meta: &Meta) -> Option<(ObjectId, Live)> {
        Some((ObjectId::from_meta(&self.kind, &meta.metadata).ok()?, Live::of(&meta.metadata, Some(&self.manager))?))
    }

    /// Tells what is there. Returns the version that a watch can go on from.
    async fn list(&self, listener: Listener<'_>) -> Result<Result<String, Refusal>, Deaf> {
        let Ok(_turn) = self.turns.lists.acquire().await else { return Err(Deaf) };
        let mut pages = pages(self.api.clone(), first_page(Some(&self.manager.parent_label())));
        let (mut listed, mut version) = (BTreeSet::new(), String::new());
        loop {
            let page = match timeout(PATIENCE, pages.try_next()).await {
                Ok(Ok(Some(page))) => page,
                Ok(Ok(None)) => {
                    tell(listener, Told::Listed(listed))?;
                    return Ok(Ok(version));
                }
                Ok(Err(error)) => return Ok(Err(Refusal::about_kind(&self.kind, &error))),
                Err(_) => return Ok(Err(Refusal::silence())),
            };
            for (id, live) in page.items.iter().filter_map(|meta| self.read(meta)) {
                listed.insert(id.clone());
                tell(listener, Told::Here(id, live))?;
            }
            version = page.metadata.resource_version.unwrap_or_default();
        }
    }

    /// Tells what changes from `version` on, until a watch ends; then `version` is where it ended.
    async fn watch(
        &self,
        version: &mut String,
        failures: &mut u32,
        listener: Listener<'_>,
    ) -> Result<Result<(), Refusal>, Deaf> {
        let refused = |error: &kube_client::Error| Ok(Err(Refusal::about_kind(&self.kind, error)));
        let params = WatchParams::default().labels(&self.manager.parent_label()).timeout(WATCH_ENDS);
        let mut events = match timeout(PATIENCE, self.api.watch(&params, version)).await {
            Ok(Ok(events)) => events.boxed(),
            Ok(Err(error)) => return refused(&error),
            Err(_) => return Ok(Err(Refusal::silence())),
        };
        tell(listener, Told::Watching)?;
        let opened = Instant::now();
        let patience = Duration::from_secs(u64::from(WATCH_ENDS)) + PATIENCE;
        while let Ok(Some(event)) = timeout(patience, events.next()).await {
            match event {
                Ok(WatchEvent::Added(meta) | WatchEvent::Modified(meta)) => {
                    if let Some((id, live)) = self.read(&meta) {
                        tell(listener, Told::Here(id, live))?;
                    }
                    meta.metadata.resource_version.into_iter().for_each(|seen| *version = seen);
                }
                Ok(WatchEvent::Deleted(meta)) => {
                    if let Some((id, _)) = self.read(&meta) {
                        tell(listener, Told::Gone(id))?;
                    }
                    meta.metadata.resource_version.into_iter().for_each(|seen| *version = seen);
                }
                Ok(WatchEvent::Bookmark(bookmark)) => *version = bookmark.metadata.resource_version,
                Ok(WatchEvent::Error(status)) => return refused(&kube_client::Error::Api(status)),
                // The connection broke: open another one.
                Err(_) => break,
            }
            *failures = 0;
        }
        if opened.elapsed() >= LASTED {
            *failures = 0;
        }
        if *failures > 0 {
            // It opens and ends at once, again and again.
            sleep(pause(&Answer::NoAnswer, *failures)).await;
        }
        *failures = failures.saturating_add(1);
        Ok(Ok(()))
    }
}

fn tell(listener: Listener<'_>, told: Told) -> Result<(), Deaf> {
    if listener(told) { Ok(()) } else { Err(Deaf) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_rights_are_asked_for_ever_more_rarely() {
        let at = |failures| pause(&Answer::Forbidden, failures).as_secs();
        assert_eq!([at(1), at(2), at(3), at(9), at(90)], [2, 4, 8, 300, 300]);
        assert_eq!(pause(&Answer::NoAnswer, 1).as_millis(), 100);
        assert_eq!(pause(&Answer::NoAnswer, 40).as_secs(), 30);
    }

    #[tokio::test(start_paused = true)]
    async fn all_followers_together_ask_for_rights_once_a_second() {
        let turns = Turns::new();
        let start = Instant::now();
        futures::future::join_all((0..50).map(|_| turns.for_rights())).await;
        assert_eq!(start.elapsed().as_secs(), 49);
    }
}
