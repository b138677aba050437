//! The caller is cut off at each of its calls, with and without the call taking effect; the next one finishes.

use super::*;
use crate::inventory::testing::{empty, entry, id, inventory, parent, required};

fn is_between(read: &Inventory, old: &Inventory, new: &Inventory) {
    for entry in read.entries() {
        let same = |inventory: &Inventory| {
            inventory.get(&entry.id).is_some_and(|known| {
                let mut known = known.clone();
                known.dependents = entry.dependents;
                known == *entry
            })
        };
        assert!(same(old) || same(new), "{} is neither old nor new", entry.id);
    }
    for kept in old.entries().filter(|entry| new.get(&entry.id).is_some()) {
        assert!(read.get(&kept.id).is_some(), "{} is lost", kept.id);
    }
}

/// An inventory with `length` entries that depend on their neighbours, in one of two directions.
fn linked(parent: &ParentRef, length: usize, forwards: bool) -> Inventory {
    let mut inventory = empty(parent);
    for number in 0..length {
        let mut entry = entry(&format!("n{number}"));
        let neighbour = if forwards { number + 1 } else { number + length - 1 } % length;
        entry.edges.insert(required(&format!("n{neighbour}")));
        entry.recreations = u32::from(forwards);
        inventory.insert(entry);
    }
    inventory
}

/// Cuts the save of `new` over `old` at every call.
async fn every_cut(limits: Limits, old: Option<&Inventory>, new: &Inventory, renew: bool, prepare: impl Fn(&Model)) {
    let parent = &new.parent;
    let nothing = empty(parent);
    for carried_out in [false, true] {
        for call in 0.. {
            let model = Model::default();
            let store = store(&model, limits);
            let options = match old {
                Some(old) => {
                    create(&store, old).await;
                    prepare(&model);
                    replace(&found(&store, parent).await.version).renew(renew)
                }
                None => SaveOptions::create(),
            };
            model.cut(call, carried_out);
            let outcome = store.save(new, options).await;
            let finished = !model.was_cut();
            model.heal();
            let state = store.load(parent).await.unwrap();
            if let (Ok(version), Loaded::Found(snapshot)) = (&outcome, &state) {
                assert_eq!(snapshot.inventory, counted(new));
                // What was left of removing the old objects does not matter to the token.
                let again = store.save(new, replace(version).renew(renew)).await.unwrap();
                assert_eq!(found(&store, parent).await.version, again);
            }
            let version = match (state, old) {
                (Loaded::Missing, None) => create(&store, new).await,
                (Loaded::Found(snapshot), _) => {
                    is_between(&snapshot.inventory, old.unwrap_or(&nothing), new);
                    if limits.readable == Limits::KUBERNETES.readable {
                        // What fits into one object changes all at once.
                        let whole = [old, Some(new)].into_iter().flatten().map(counted);
                        assert!(whole.into_iter().any(|whole| whole == snapshot.inventory), "after call {call}");
                    }
                    // Whatever was going on, teardown goes on without creating anything.
                    model.take_calls();
                    let version = store.save(new, replace(&found(&store, parent).await.version)).await.unwrap();
                    assert!(!model.take_calls().iter().any(|call| call.starts_with("POST")));
                    assert_eq!(found(&store, parent).await.inventory, counted(new));
                    store.save(new, replace(&version).renew(renew)).await.unwrap()
                }
                (other, _) => panic!("after call {call}: {other:?}"),
            };
            assert_eq!(found(&store, parent).await.inventory, counted(new));
            // However many roots there were, one is left.
            let roots = [Slot::A, Slot::B].map(|slot| root_name(parent, slot));
            assert_eq!(model.names().iter().filter(|name| roots.contains(name)).count(), 1, "after call {call}");
            store.delete(parent, &version).await.unwrap();
            assert_eq!(model.names(), NONE, "after call {call}");
            if finished {
                break;
            }
        }
    }
}

#[tokio::test]
async fn s02_creating() {
    let parent = parent("a", "1");
    for limits in [Limits::KUBERNETES, TINY, TINY_PLAIN] {
        every_cut(limits, None, &inventory(&parent, 12), false, |_| ()).await;
    }
}

#[tokio::test]
async fn s02_changing_across_shards() {
    let parent = parent("a", "1");
    for limits in [Limits::KUBERNETES, TINY, TINY_PLAIN] {
        let sets = [linked(&parent, 12, true), linked(&parent, 12, false), linked(&parent, 9, true)];
        for (old, new) in [(0, 1), (1, 2), (2, 0)] {
            every_cut(limits, Some(&sets[old]), &sets[new], false, |_| ()).await;
        }
    }
}

#[tokio::test]
async fn c08_renewing_what_was_deleted_by_hand() {
    let parent = parent("a", "1");
    for limits in [Limits::KUBERNETES, TINY, TINY_PLAIN] {
        let (old, new) = (inventory(&parent, 12), inventory(&parent, 13));
        let root = |model: &Model| model.delete_by_hand(&root_name(&parent, Slot::A));
        every_cut(limits, Some(&old), &new, true, root).await;
        let all = |model: &Model| model.names().iter().for_each(|name| model.delete_by_hand(name));
        every_cut(limits, Some(&old), &new, true, all).await;
        every_cut(limits, Some(&new), &old, true, all).await;
    }
}

#[tokio::test]
async fn c26_growing_and_shrinking() {
    let parent = parent("a", "1");
    let root = |model: &Model| model.delete_by_hand(&root_name(&parent, Slot::A));
    for (limits, sizes) in [(TINY, [2, 30, 5]), (TINY_PLAIN, [2, 14, 2])] {
        let [small, large, smaller] = sizes.map(|size| inventory(&parent, size));
        every_cut(limits, Some(&small), &large, true, |_| ()).await;
        every_cut(limits, Some(&large), &smaller, true, root).await;
    }
    // From shards to more shards.
    every_cut(TINY_PLAIN, Some(&inventory(&parent, 10)), &inventory(&parent, 50), true, |_| ()).await;
}

#[tokio::test]
async fn c08_in_a_terminating_namespace() {
    let parent = parent("a", "1");
    for limits in [Limits::KUBERNETES, TINY] {
        every_cut(limits, Some(&inventory(&parent, 12)), &inventory(&parent, 8), true, Model::terminate_namespace)
            .await;
    }
}

#[tokio::test]
async fn removing() {
    let parent = parent("a", "1");
    let root = root_name(&parent, Slot::A);
    for limits in [Limits::KUBERNETES, TINY, TINY_PLAIN] {
        for (emptied, terminating) in [(true, false), (true, true), (false, false), (false, true)] {
            for carried_out in [false, true] {
                for call in 0.. {
                    let model = Model::default();
                    let store = store(&model, limits);
                    let full = inventory(&parent, 12);
                    let mut version = create(&store, &full).await;
                    if emptied {
                        version = store.save(&empty(&parent), replace(&version)).await.unwrap();
                    }
                    if terminating {
                        model.delete_by_hand(&root);
                        version = store.load(&parent).await.unwrap().snapshot().unwrap().version.clone();
                    }
                    model.cut(call, carried_out);
                    let outcome = store.delete(&parent, &version).await;
                    let finished = !model.was_cut();
                    assert_eq!(outcome.is_ok(), finished);
                    model.heal();
                    match store.load(&parent).await.unwrap() {
                        Loaded::Missing => {}
                        Loaded::Found(snapshot) if emptied => assert!(snapshot.inventory.is_empty()),
                        Loaded::Found(snapshot) => assert_eq!(snapshot.inventory, counted(&full)),
                        Loaded::Damaged { .. } if !emptied => {}
                        other => panic!("after call {call}: {other:?}"),
                    }
                    if let Some(snapshot) = store.load(&parent).await.unwrap().snapshot() {
                        store.delete(&parent, &snapshot.version).await.unwrap();
                    }
                    assert_eq!(model.names(), NONE, "after call {call}");
                    if finished {
                        break;
                    }
                }
            }
        }
    }
}

#[tokio::test]
async fn a_save_over_a_removal_that_was_cut_off_starts_over() {
    let parent = parent("a", "1");
    for call in 0..30 {
        let model = Model::default();
        let store = store(&model, TINY);
        let version = create(&store, &inventory(&parent, 12)).await;
        let version = store.save(&empty(&parent), replace(&version)).await.unwrap();
        model.cut(call, true);
        let _cut = store.delete(&parent, &version).await;
        model.heal();
        let Loaded::Found(snapshot) = store.load(&parent).await.unwrap() else { continue };
        assert!(snapshot.inventory.is_empty());
        let mut one = empty(&parent);
        one.insert(entry("late"));
        let version = store.save(&one, replace(&snapshot.version)).await.unwrap();
        assert_eq!(found(&store, &parent).await.inventory.get(&id("late")), Some(&entry("late")));
        store.delete(&parent, &version).await.unwrap();
        assert_eq!(model.names(), NONE, "after call {call}");
    }
}

#[tokio::test]
async fn a_lost_answer_to_a_create_is_recognised() {
    for limits in [Limits::KUBERNETES, TINY] {
        let parent = parent("a", "1");
        let (model, inventory) = (Model::default(), inventory(&parent, 12));
        let store = store(&model, limits);
        // A client layer that repeats a request whose answer was lost finds the object there.
        for object in store.format.encode(&inventory).unwrap() {
            model.put(object);
        }
        let names = model.names();
        model.vanish(&root_name(&parent, Slot::A));
        create(&store, &inventory).await;
        assert_eq!(model.names(), names);
        assert_eq!(found(&store, &parent).await.inventory, counted(&inventory));
    }
}
