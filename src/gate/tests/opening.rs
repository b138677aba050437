//! What is asked for, and in which order.

use std::collections::BTreeSet;

use super::{
    super::opening::{Ask, Opening, Reading},
    *,
};

struct Case {
    this: LiveRef,
    policy: BlockPolicy,
    passed: BTreeSet<LiveRef>,
    opening: Opening,
}

impl Case {
    fn new() -> Self {
        let (policy, passed) = (BlockPolicy::same_namespace(), BTreeSet::new());
        Self { this: live("base"), policy, passed, opening: Opening::default() }
    }

    fn listed(mut self, parents: &Parents) -> Self {
        let mut opening = std::mem::take(&mut self.opening);
        opening.listed(&View { parent: &self.this, policy: &self.policy, passed: &self.passed }, parents);
        Self { opening, ..self }
    }

    fn next(&self, hint: Option<&Parents>) -> Ask {
        self.opening.next(&View { parent: &self.this, policy: &self.policy, passed: &self.passed }, hint)
    }
}

fn users(n: usize) -> Vec<Parent> {
    (0..n).map(|n| parent(&format!("user{n}"), &["base"])).chain([deleting(parent("base", &[]))]).collect()
}

fn done(ask: &Ask) -> Option<usize> {
    match ask {
        Ask::Done(by) => Some(by.len()),
        _ => None,
    }
}

#[test]
fn a_hint_may_say_blocked_and_never_free() {
    let (held, free) = (all(users(2)), all(users(0)));
    assert_eq!(done(&Case::new().next(Some(&held))), Some(2));
    assert_eq!(Case::new().next(Some(&free)), Ask::List);
    assert_eq!(Case::new().next(None), Ask::List);
    let case = Case::new().listed(&held);
    assert_eq!(done(&case.next(Some(&held))), Some(2));
    assert_eq!(case.next(Some(&free)), Ask::Read(id("user0")));
    assert_eq!(case.next(None), Ask::Read(id("user0")));
}

#[test]
fn each_is_read_once_and_then_the_way_is_free() {
    let mut case = Case::new().listed(&all(users(2)));
    assert_eq!(case.opening.read(&id("user0"), None), Reading::Away);
    assert_eq!(case.next(None), Ask::Read(id("user1")));
    let mut reborn = parent("user1", &["base"]);
    reborn.this.uid = Uid::new("later").unwrap();
    assert_eq!(case.opening.read(&id("user1"), Some(&reborn)), Reading::Away, "who comes later creates nothing");
    assert_eq!(case.next(None), Ask::Done(Vec::new()));
}

#[test]
fn many_are_listed_instead_of_read() {
    let case = Case::new().listed(&all(users(1000)));
    assert_eq!(case.next(Some(&all(users(0)))), Ask::ListNow);
    assert_eq!(done(&case.next(Some(&all(users(1))))), Some(1));
}

#[test]
fn one_that_changed_is_listed_and_one_that_is_done_is_away() {
    let mut case = Case::new().listed(&all(users(1)));
    assert_eq!(case.opening.read(&id("user0"), Some(&parent("user0", &["base"]))), Reading::There);
    assert_eq!(case.opening.read(&id("user0"), Some(&deleting(parent("user0", &["base"])))), Reading::Changed);
    assert_eq!(case.opening.read(&id("user0"), Some(&parent("user0", &[]))), Reading::Changed);
    let let_go = unmarked(deleting(parent("user0", &["base"])));
    assert_eq!(case.opening.read(&id("user0"), Some(&let_go)), Reading::Away);
}

#[test]
fn a_cycle_that_the_watch_shows_is_confirmed_by_a_list() {
    let ring = |user: Parent| all([user, deleting(parent("base", &["user0"]))]);
    let case = Case::new().listed(&ring(parent("user0", &["base"])));
    let closed = ring(deleting(parent("user0", &["base"])));
    assert_eq!(case.next(Some(&closed)), Ask::ListNow);
    assert_eq!(case.listed(&closed).next(None), Ask::Done(Vec::new()));
}

#[test]
fn a_request_that_is_withdrawn_releases_nobody() {
    let mut case = Case::new().listed(&all(users(1)));
    case.passed = BTreeSet::from([live("user0")]);
    assert_eq!(case.next(None), Ask::Done(Vec::new()));
    case.passed.clear();
    assert_eq!(case.next(None), Ask::Read(id("user0")));
}
