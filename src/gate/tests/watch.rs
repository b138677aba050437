//! Who is woken.

use super::{super::watch::whom_to_wake, *};

fn woken(before: impl IntoIterator<Item = Parent>, changed: &str, now: Option<Parent>) -> Vec<String> {
    let mut parents = all(before);
    let was = match now {
        Some(now) => parents.put(now),
        None => parents.take(&id(changed)),
    };
    let woken = whom_to_wake(&parents, &BlockPolicy::same_namespace(), &id(changed), was.as_ref());
    woken.into_iter().map(|live| live.id.name().to_owned()).collect()
}

#[test]
fn the_last_dependent_that_goes_wakes_its_dependency() {
    let set = || {
        [
            deleting(parent("a", &["base"])),
            deleting(parent("b", &["base"])),
            deleting(parent("base", &["below"])),
            deleting(parent("below", &[])),
        ]
    };
    assert!(woken(set(), "a", None).is_empty(), "b is still there");
    let without_b = || set().into_iter().filter(|p| p.this.id.name() != "b");
    assert_eq!(woken(without_b(), "a", None), ["base"]);
    assert_eq!(woken(without_b(), "a", Some(unmarked(deleting(parent("a", &["base"]))))), ["base"]);
    assert_eq!(woken(without_b(), "a", Some(parent("a", &[]))), ["base"], "it does not depend on it any more");
}

#[test]
fn the_last_member_of_a_cycle_that_is_deleted_wakes_the_others() {
    let set = [parent("a", &["b"]), deleting(parent("b", &["c"])), deleting(parent("c", &["a"]))];
    assert_eq!(woken(set, "a", Some(deleting(parent("a", &["b"])))), ["b", "c"]);
}

#[test]
fn a_dependent_whose_deletion_begins_wakes_those_that_name_it_as_living() {
    let set = || [parent("a", &["base"]), parent("b", &["base"]), deleting(parent("base", &[]))];
    assert_eq!(woken(set(), "a", Some(deleting(parent("a", &["base"])))), ["base"]);
    let ready = Parent { ready: true, ..parent("a", &["base"]) };
    assert!(woken(set(), "a", Some(ready)).is_empty(), "the same is in the way as before");
    // A cycle is waited for as a whole by whoever needs any of it.
    let cycle = [parent("user", &["a"]), deleting(parent("a", &["b"])), parent("b", &["a"])];
    assert_eq!(woken(cycle, "b", Some(deleting(parent("b", &["a"])))), ["a"]);
}

#[test]
fn a_dependency_wakes_those_that_wait_for_it() {
    let app = || [parent("app", &["base"])];
    assert_eq!(woken(app(), "base", Some(parent("base", &[]))), ["app"], "it came");
    let both = || [parent("app", &["base"]), parent("base", &[])];
    assert_eq!(woken(both(), "base", Some(Parent { ready: true, ..parent("base", &[]) })), ["app"], "it is ready");
    assert_eq!(woken(both(), "base", None), ["app"], "it went");
    assert!(woken(both(), "base", Some(parent("base", &[]))).is_empty(), "nothing changed");
}
