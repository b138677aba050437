//! Who blocks whom.

use super::*;

fn local() -> BlockPolicy {
    BlockPolicy::same_namespace()
}

#[test]
fn c12_a_dependency_waits_for_its_dependents_and_they_for_nobody() {
    let set = all([
        deleting(parent("app", &["operator"])),
        deleting(parent("operator", &["crds"])),
        deleting(parent("crds", &[])),
    ]);
    assert_eq!(blockers(&set, "crds", &local(), &[]), ["operator"]);
    assert_eq!(blockers(&set, "operator", &local(), &[]), ["app"]);
    assert!(blockers(&set, "app", &local(), &[]).is_empty());
}

#[test]
fn who_has_created_nothing_is_in_nobodys_way() {
    let set = all([unmarked(parent("late", &["base"])), deleting(parent("base", &[]))]);
    assert!(blockers(&set, "base", &local(), &[]).is_empty());
}

#[test]
fn c24_a_cycle_that_is_being_deleted_is_seen_through_once_nobody_else_needs_it() {
    let ring = || [parent("a", &["b"]), parent("b", &["c"]), parent("c", &["a"])];
    let set = all(ring().map(deleting));
    for name in ["a", "b", "c"] {
        assert!(blockers(&set, name, &local(), &[]).is_empty(), "{name}");
    }
    let outside = all(ring().map(deleting).into_iter().chain([parent("user", &["b"])]));
    for name in ["a", "b", "c"] {
        assert_eq!(blockers(&outside, name, &local(), &[]), ["user"], "the group is one: {name}");
    }
}

#[test]
fn a_living_member_of_a_cycle_blocks_like_any_other() {
    let set = all([parent("a", &["b"]), deleting(parent("b", &["c"])), deleting(parent("c", &["a"]))]);
    assert_eq!(blockers(&set, "b", &local(), &[]), ["a"]);
    assert_eq!(blockers(&set, "c", &local(), &[]), ["b"]);
}

#[test]
fn the_shortest_cycle_is_named_and_a_long_one_cut() {
    let set = all([parent("a", &["b", "x"]), parent("b", &["c"]), parent("c", &["a"]), parent("x", &["a"])]);
    let path =
        |name: &str| set.cycle(&id(name), &local()).map(|c| c.path.iter().map(|i| i.name().to_owned()).collect());
    assert_eq!(path("a"), Some(["a", "x", "a"].map(String::from).to_vec()));
    assert_eq!(path("b"), Some(["b", "c", "a", "b"].map(String::from).to_vec()));
    let long = (0..1000).map(|n| parent(&format!("p{n}"), &[&format!("p{}", (n + 1) % 1000)]));
    let cycle = all(long).cycle(&id("p0"), &local()).unwrap();
    let words = cycle.to_string();
    assert!(words.ends_with("p9 -> (990 more) -> ConfigMap n/p0"), "{words}");
    assert!(all([parent("a", &["b"]), parent("b", &[])]).cycle(&id("a"), &local()).is_none());
}

#[test]
fn nobody_blocks_another_namespace_unless_allowed() {
    let set = all([parent("theirs/app", &["base"]), deleting(parent("base", &[]))]);
    assert!(blockers(&set, "base", &local(), &[]).is_empty());
    assert_eq!(blockers(&set, "base", &BlockPolicy::anyone(), &[]), ["app"]);
    let only = |namespace: &'static str| BlockPolicy::when(move |by, _| by.namespace() == Some(namespace));
    assert_eq!(blockers(&set, "base", &only("theirs"), &[]), ["app"]);
    assert!(blockers(&set, "base", &only("others"), &[]).is_empty());
}

#[test]
fn a_parent_that_cannot_be_read_blocks_what_it_may_and_no_more() {
    let odd = Parent { names: Names::Unreadable, ..parent("odd", &[]) };
    let set = all([odd, deleting(parent("base", &[])), deleting(parent("theirs/base", &[]))]);
    assert_eq!(blockers(&set, "base", &local(), &[]), ["odd"]);
    assert!(blockers(&set, "theirs/base", &local(), &[]).is_empty());
}

#[test]
fn exactly_the_incarnations_that_are_named_are_passed() {
    let mut other = parent("other", &["base"]);
    other.this.uid = Uid::new("another incarnation").unwrap();
    let set = all([parent("app", &["base"]), other, deleting(parent("base", &[]))]);
    assert_eq!(blockers(&set, "base", &local(), &["app", "other"]), ["other"]);
}

#[test]
fn what_is_taken_out_leaves_no_trace() {
    let mut set = all([parent("app", &["base"]), deleting(parent("base", &[]))]);
    set.put(parent("app", &[]));
    assert!(blockers(&set, "base", &local(), &[]).is_empty());
    set.put(parent("app", &["base"]));
    set.take(&id("app"));
    assert!(blockers(&set, "base", &local(), &[]).is_empty());
}

#[test]
fn a_chain_of_many_parents_is_no_matter() {
    let chain = (0..20_000).map(|n| deleting(parent(&format!("p{n}"), &[&format!("p{}", n + 1)])));
    let set = all(chain);
    assert_eq!(blockers(&set, "p19999", &local(), &[]), ["p19998"]);
    assert!(blockers(&set, "p0", &local(), &[]).is_empty());
}
