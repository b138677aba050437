//! Sharing lists.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use futures::{FutureExt, future::join_all};
use proptest::prelude::*;
use tokio::sync::Semaphore;

use super::{
    super::{cluster::Unread, lists::Lists},
    *,
};

/// Lists that show how many had begun when they began, and that end when told to.
#[derive(Clone)]
struct Source {
    begun: Arc<AtomicU64>,
    ends: Arc<Semaphore>,
}

impl Source {
    fn new(ends: usize) -> Self {
        Self { begun: Arc::default(), ends: Arc::new(Semaphore::new(ends)) }
    }

    fn make(&self) -> futures::future::BoxFuture<'static, Result<Arc<Parents>, Unread>> {
        let this = self.clone();
        async move {
            let number = this.begun.fetch_add(1, Ordering::SeqCst);
            this.ends.acquire().await.unwrap().forget();
            Ok(Arc::new(all([parent(&format!("n{number}"), &[])])))
        }
        .boxed()
    }
}

fn number(parents: &Parents) -> u64 {
    parents.ids().next().unwrap().name()[1..].parse().unwrap()
}

#[tokio::test]
async fn a_thousand_that_ask_together_share_a_list() {
    let (lists, source) = (Lists::default(), Source::new(10));
    let moment = lists.moment();
    let asked = join_all((0..1000).map(|_| lists.after(moment, &None, || source.make()))).await;
    assert!(asked.iter().all(|listing| number(listing.as_ref().unwrap()) == 0));
    assert_eq!(source.begun.load(Ordering::SeqCst), 1);
    let again = lists.after(lists.moment(), &None, || source.make()).await.unwrap();
    assert_eq!(number(&again), 1, "what is over is too old for who asks now");
}

#[tokio::test]
async fn who_asks_during_a_list_waits_for_the_next() {
    let (lists, source) = (Lists::default(), Source::new(0));
    let mut first = Box::pin(lists.after(lists.moment(), &None, || source.make()));
    assert!(futures::poll!(&mut first).is_pending());
    let mut second = Box::pin(lists.after(lists.moment(), &None, || source.make()));
    assert!(futures::poll!(&mut second).is_pending());
    source.ends.add_permits(2);
    assert_eq!(number(&second.await.unwrap()), 1);
    assert_eq!(number(&first.await.unwrap()), 0);
}

#[tokio::test]
async fn a_list_that_nobody_waits_for_any_more_is_finished_by_the_next_who_asks() {
    let (lists, source) = (Lists::default(), Source::new(0));
    let mut first = Box::pin(lists.after(lists.moment(), &None, || source.make()));
    assert!(futures::poll!(&mut first).is_pending());
    drop(first);
    source.ends.add_permits(2);
    assert_eq!(number(&lists.after(lists.moment(), &None, || source.make()).await.unwrap()), 1);
}

#[tokio::test]
async fn a_failed_list_is_nobodys_proof() {
    let lists = Lists::default();
    let moment = lists.moment();
    let failed = lists.after(moment, &None, || async { Err(Unread("no".into())) }.boxed()).await;
    assert_eq!(failed.unwrap_err(), Unread("no".into()));
    let source = Source::new(1);
    assert!(lists.after(moment, &None, || source.make()).await.is_ok());
}

proptest! {
    #[test]
    fn no_list_is_older_than_the_moment_it_is_for(script in prop::collection::vec((0..8_usize, any::<bool>()), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (lists, source) = (Lists::default(), Source::new(0));
            let mut asking: Vec<Option<_>> = (0..8).map(|_| None).collect();
            for (who, end) in script {
                if end {
                    source.ends.add_permits(1);
                }
                let begun = source.begun.load(Ordering::SeqCst);
                let (lists, source) = (&lists, &source);
                let ask = asking[who].get_or_insert_with(|| {
                    let listing = lists.after(lists.moment(), &None, || source.make());
                    (begun, Box::pin(listing))
                });
                if let std::task::Poll::Ready(listing) = futures::poll!(&mut ask.1) {
                    assert!(number(&listing.unwrap()) >= ask.0);
                    asking[who] = None;
                }
            }
        });
    }
}
