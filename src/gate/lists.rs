//! Lists of parents, shared by all who need one of a certain age.
//!
//! A list is good for every parent that was seen being deleted before the list began. One list is made at a time, so
//! that a thousand parents that are deleted together cost a few lists and not a thousand.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use futures::{
    FutureExt,
    future::{BoxFuture, Shared},
};

use super::{cluster::Unread, parents::Parents};
use crate::lock::lock;

/// Most places whose last list is kept.
const MOST_PLACES: usize = 256;

/// A point in the sequence of lists: how many had begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment(u64);

type Listing = Result<Arc<Parents>, Unread>;

/// A namespace, or everywhere.
type Place = Option<String>;

#[derive(Default)]
pub(super) struct Lists(Mutex<State>);

#[derive(Default)]
struct State {
    begun: u64,
    places: BTreeMap<Place, Listed>,
}

#[derive(Default)]
struct Listed {
    /// The last list that ended well, with its number.
    done: Option<(u64, Arc<Parents>)>,
    /// The list that is being made.
    running: Option<(u64, Shared<BoxFuture<'static, Listing>>)>,
}

impl Lists {
    /// Now: lists that begin from here on are after it.
    pub(super) fn moment(&self) -> Moment {
        Moment(lock(&self.0).begun)
    }

    /// The last list of a place, however old.
    pub(super) fn last(&self, place: &Place) -> Option<Arc<Parents>> {
        lock(&self.0).places.get(place)?.done.as_ref().map(|(_, parents)| Arc::clone(parents))
    }

    /// A list of `place` that began after `moment`; `make` makes one when it is polled.
    pub(super) async fn after(
        &self,
        moment: Moment,
        place: &Place,
        make: impl Fn() -> BoxFuture<'static, Listing>,
    ) -> Listing {
        loop {
            let (number, running) = {
                let mut state = lock(&self.0);
                let next = state.begun + 1;
                if !state.places.contains_key(place) && state.places.len() >= MOST_PLACES {
                    state.places.retain(|_, listed| listed.running.is_some());
                }
                let listed = state.places.entry(place.clone()).or_default();
                match (&listed.done, &listed.running) {
                    (Some((number, parents)), _) if *number > moment.0 => return Ok(Arc::clone(parents)),
                    (_, Some((number, running))) => (*number, running.clone()),
                    (_, None) => {
                        let running = make().shared();
                        listed.running = Some((next, running.clone()));
                        state.begun = next;
                        (next, running)
                    }
                }
            };
            let listing = running.await;
            let mut state = lock(&self.0);
            let listed = state.places.get_mut(place);
            let mine = |listed: &&mut Listed| listed.running.as_ref().is_some_and(|(n, _)| *n == number);
            if let Some(listed) = listed.filter(mine) {
                listed.running = None;
                if let Ok(parents) = &listing {
                    listed.done = Some((number, Arc::clone(parents)));
                }
            }
            if number > moment.0 {
                return listing;
            }
        }
    }
}
