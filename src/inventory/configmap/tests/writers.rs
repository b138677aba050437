//! Two writers at once, in every order of their calls that matters.

use std::{
    future::Future,
    pin::pin,
    task::{Context, Poll, Waker},
};

use proptest::prelude::*;

use super::*;
use crate::{
    inventory::{
        Error,
        testing::{entry, id, inventory, parent, required},
    },
    object::Uid,
};

/// Runs both futures, one call at a time; `schedule` says whose turn it is, and when it is over the first goes on
/// until it is done.
fn interleave(schedule: impl IntoIterator<Item = bool>, a: impl Future<Output = ()>, b: impl Future<Output = ()>) {
    let (mut a, mut b) = (pin!(a), pin!(b));
    let mut context = Context::from_waker(Waker::noop());
    let (mut a_done, mut b_done) = (false, false);
    let mut schedule = schedule.into_iter();
    for _ in 0..100_000 {
        match (a_done, b_done, schedule.next()) {
            (true, true, _) => return,
            (false, true, _) | (false, false, Some(true) | None) => {
                a_done = a.as_mut().poll(&mut context) == Poll::Ready(())
            }
            (true, false, _) | (false, false, Some(false)) => b_done = b.as_mut().poll(&mut context) == Poll::Ready(()),
        }
    }
    panic!("the writers keep each other from finishing");
}

/// Loads, changes and saves until it succeeds, as a reconciler does.
async fn apply(store: &ConfigMapStore, parent: &ParentRef, renew: bool, change: impl Fn(&mut Inventory)) {
    for _ in 0..50 {
        let (snapshot, creating) = match store.load(parent).await.unwrap() {
            Loaded::Found(snapshot) => (snapshot, false),
            Loaded::Missing => (Snapshot::new(crate::inventory::testing::empty(parent), Version::new("")), true),
            other => panic!("{other:?}"),
        };
        let mut inventory = snapshot.inventory;
        change(&mut inventory);
        let options = if creating { SaveOptions::create() } else { replace(&snapshot.version).renew(renew) };
        match store.save(&inventory, options).await {
            Ok(_) => return,
            Err(Error::Conflict { .. } | Error::AlreadyExists { .. }) => {}
            Err(other) => panic!("{other}"),
        }
    }
    panic!("never succeeds");
}

fn add(name: &'static str, to: &'static str) -> impl Fn(&mut Inventory) {
    move |inventory| {
        let mut entry = entry(name);
        entry.edges.insert(required(to));
        inventory.insert(entry);
    }
}

fn record_uid(name: &'static str) -> impl Fn(&mut Inventory) {
    move |inventory| inventory.get_mut(&id(name)).unwrap().uid = Some(Uid::new("seen").unwrap())
}

fn all<A: Fn(&mut Inventory), B: Fn(&mut Inventory)>(a: A, b: B) -> impl Fn(&mut Inventory) {
    move |inventory| {
        a(inventory);
        b(inventory);
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Start {
    Nothing,
    Whole,
    RootTerminating,
    AllTerminating,
    NamespaceTerminating,
}

/// Both writers add an entry and record a UID; whatever the order, everything is there at the end.
fn contest(limits: Limits, length: usize, start: Start, renew: [bool; 2], schedule: impl IntoIterator<Item = bool>) {
    let model = Model::default();
    contest_on(&model, &model, limits, length, start, renew, schedule);
}

fn contest_on(
    model: &Model,
    other: &Model,
    limits: Limits,
    length: usize,
    start: Start,
    renew: [bool; 2],
    schedule: impl IntoIterator<Item = bool>,
) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let parent = parent("a", "1");
    let (first, second) = (store(model, limits), store(other, limits));
    let before = inventory(&parent, length);
    if start != Start::Nothing {
        runtime.block_on(create(&first, &before));
    }
    match start {
        Start::Nothing | Start::Whole => {}
        Start::RootTerminating => model.delete_by_hand(&root_name(&parent, Slot::A)),
        Start::AllTerminating => model.names().iter().for_each(|name| model.delete_by_hand(name)),
        Start::NamespaceTerminating => model.terminate_namespace(),
    }
    let whole = |change: &dyn Fn(&mut Inventory), inventory: &mut Inventory| {
        if inventory.is_empty() {
            *inventory = before.clone();
        }
        change(inventory);
    };
    let one = all(add("x", "n3"), record_uid("n1"));
    let two = all(add("y", "n4"), record_uid("n2"));
    interleave(
        schedule,
        apply(&first, &parent, renew[0], |inventory| whole(&one, inventory)),
        apply(&second, &parent, renew[1], |inventory| whole(&two, inventory)),
    );
    let mut expected = before.clone();
    all(one, two)(&mut expected);
    let snapshot = runtime.block_on(found(&first, &parent));
    assert_eq!(snapshot.inventory, counted(&expected));
    // And whatever is left lying about goes with the record.
    let version = runtime.block_on(first.save(&expected, replace(&snapshot.version))).unwrap();
    runtime.block_on(first.delete(&parent, &version)).unwrap();
    assert_eq!(model.names(), NONE);
}

/// The first goes `i` calls, then the second `j`, then the first to its end, then the second; and the other way round.
fn every_switch(limits: Limits, length: usize, start: Start, renew: [bool; 2], most: usize) {
    for i in 0..most {
        for j in [1, 3, 6, 10, most, 100] {
            // Writers that do the same need not change places.
            for first in [true, false].into_iter().take(if renew[0] == renew[1] { 1 } else { 2 }) {
                let schedule = std::iter::repeat_n(first, i).chain(std::iter::repeat_n(!first, j));
                let rest = std::iter::repeat_n(first, 10_000);
                contest(limits, length, start, renew, schedule.chain(rest));
            }
        }
    }
}

#[test]
fn s17_two_writers_lose_nothing_in_one_object() {
    for start in [Start::Nothing, Start::Whole, Start::RootTerminating, Start::NamespaceTerminating] {
        for renew in [[true, true], [true, false]] {
            every_switch(Limits::KUBERNETES, 5, start, renew, 12);
        }
    }
}

#[test]
fn s17_two_writers_lose_nothing_across_shards() {
    for start in [Start::Whole, Start::RootTerminating, Start::AllTerminating, Start::NamespaceTerminating] {
        for renew in [[true, true], [true, false]] {
            every_switch(TINY, 8, start, renew, 18);
        }
    }
}

#[test]
fn c26_two_writers_lose_nothing_while_the_record_grows() {
    // Between the readable root and the first shards.
    for renew in [[true, true], [true, false]] {
        every_switch(GROWING, 5, Start::Whole, renew, 20);
    }
}

#[test]
fn a_record_that_moves_while_it_is_looked_for_is_found() {
    let parent = parent("a", "1");
    for (suffix, turns) in ["-a", "-b"].into_iter().flat_map(|suffix| (0..80).map(move |turns| (suffix, turns))) {
        for before in [0, 1] {
            let model = Model::default();
            let (reader, writer) = (store(&model.slowed(suffix, turns), TINY), store(&model, TINY));
            let moved = async |slots: &[Slot]| {
                for slot in slots {
                    model.delete_by_hand(&root_name(&parent, *slot));
                    apply(&writer, &parent, true, |_| ()).await;
                }
            };
            let (earlier, later) = Slot::BOTH.split_at(before);
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(create(&writer, &inventory(&parent, 10)));
            runtime.block_on(moved(earlier));
            let read = async {
                assert_eq!(found(&reader, &parent).await.inventory, counted(&inventory(&parent, 10)));
            };
            interleave([true, false].into_iter().cycle().take(2000), read, moved(later));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn s17_two_writers_lose_nothing_in_any_order(
        schedule in prop::collection::vec(any::<bool>(), 0..120),
        start in prop::sample::select(vec![
            Start::Nothing, Start::Whole, Start::RootTerminating, Start::AllTerminating, Start::NamespaceTerminating,
        ]),
        length in 5..16usize,
        renew in any::<[bool; 2]>(),
        limits in prop::sample::select(vec![0, 1, 2, 3]),
        slow in prop::option::of((prop::sample::select(vec!["-a", "-b", "-0", "-1"]), 1..60usize)),
    ) {
        let limits = [Limits::KUBERNETES, TINY, TINY_PLAIN, GROWING][limits];
        let model = Model::default();
        let other = slow.map_or_else(|| model.clone(), |(suffix, turns)| model.slowed(suffix, turns));
        contest_on(&model, &other, limits, length, start, renew, schedule);
    }
}
