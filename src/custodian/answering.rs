//! Which cluster answers at a target: asked by one parent for all that want to know at the time.

use std::{future::Future, sync::Mutex, time::Duration};

use tokio::time::Instant;

use super::Unavailable;
use crate::{inventory::ClusterId, lock::lock};

/// For how long after it gave no answer a target is not asked again, so that its parents do not wait for it in turn and
/// keep a controller from all others.
const PAUSE: Duration = Duration::from_secs(5);

type Answer = Result<ClusterId, Unavailable>;

/// The last answer of a target.
#[derive(Debug, Default)]
pub(super) struct Answering {
    /// Held while somebody asks.
    turn: tokio::sync::Mutex<()>,
    memory: Mutex<Memory>,
}

#[derive(Debug, Default)]
struct Memory {
    /// Number of the last question that was asked.
    asked: u64,
    last: Option<Last>,
}

#[derive(Clone, Debug)]
struct Last {
    number: u64,
    at: Instant,
    answer: Answer,
}

impl Answering {
    /// An answer to a question that was asked after this call.
    pub(super) async fn now<F: Future<Output = Answer>>(&self, ask: impl FnOnce() -> F) -> Answer {
        let since = lock(&self.memory).asked;
        let _turn = self.turn.lock().await;
        let number = {
            let mut memory = lock(&self.memory);
            if let Some(last) = memory.last.as_ref().filter(|last| last.number > since) {
                return last.answer.clone();
            }
            memory.asked += 1;
            memory.asked
        };
        let answer = ask().await;
        lock(&self.memory).last = Some(Last { number, at: Instant::now(), answer: answer.clone() });
        answer
    }

    /// [`now`](Self::now), but a target that has just given no answer is not asked again.
    pub(super) async fn soon<F: Future<Output = Answer>>(&self, ask: impl FnOnce() -> F) -> Answer {
        let last = lock(&self.memory).last.clone();
        match last {
            Some(Last { at, answer: Err(unavailable), .. }) if at.elapsed() < PAUSE => Err(unavailable),
            _ => self.now(ask).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::ownership::testing::uid;

    async fn asked(times: &AtomicU32, answer: Answer) -> Answer {
        times.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_secs(1)).await;
        answer
    }

    #[tokio::test(start_paused = true)]
    async fn one_asks_for_all_that_want_to_know() {
        let (answering, times) = (Answering::default(), AtomicU32::new(0));
        let there = Ok(ClusterId(uid("c")));
        let first = answering.now(|| asked(&times, there.clone()));
        let late = async {
            // Asked before these want to know: it may have been answered before, too.
            tokio::time::sleep(Duration::from_millis(500)).await;
            tokio::join!(
                answering.now(|| asked(&times, there.clone())),
                answering.now(|| asked(&times, there.clone())),
                answering.soon(|| asked(&times, there.clone())),
            )
        };
        let (first, late) = tokio::join!(first, late);
        assert_eq!((first, late), (there.clone(), (there.clone(), there.clone(), there)));
        assert_eq!(times.load(Ordering::SeqCst), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn who_gives_no_answer_is_left_alone_for_a_while_except_for_proof() {
        let (answering, times) = (Answering::default(), AtomicU32::new(0));
        let (silent, there) = (Err(Unavailable::new("no answer")), Ok(ClusterId(uid("c"))));
        assert_eq!(answering.soon(|| asked(&times, silent.clone())).await, silent);
        assert_eq!(answering.soon(|| asked(&times, there.clone())).await, silent);
        assert_eq!(times.load(Ordering::SeqCst), 1);
        assert_eq!(answering.now(|| asked(&times, there.clone())).await, there);
        assert_eq!(answering.soon(|| asked(&times, silent.clone())).await, silent, "an answer does not last");
        tokio::time::sleep(PAUSE).await;
        assert_eq!(answering.soon(|| asked(&times, there.clone())).await, there);
    }
}
