//! Inventories for tests.

use proptest::prelude::*;

use super::{
    ClusterId, Decision, DeletionPolicy, Edge, Entry, EntryState, InUsePolicy, Inventory, Origin, Requirement, Role,
};
use crate::object::{ObjectId, ParentRef, ResourceKind, Scope, Uid};

pub(crate) fn parent(name: &str, uid: &str) -> ParentRef {
    let resource = ResourceKind::new("example.com", "v1", "GitTrack", "gittracks", Scope::Namespaced);
    let id = ObjectId::new("example.com", "GitTrack", Some("home"), name).unwrap();
    ParentRef::new(id, Uid::new(uid).unwrap(), &resource)
}

pub(crate) fn id(name: &str) -> ObjectId {
    ObjectId::new("", "ConfigMap", Some("elsewhere"), name).unwrap()
}

pub(crate) fn entry(name: &str) -> Entry {
    Entry::intended(id(name), &ResourceKind::new("", "v1", "ConfigMap", "configmaps", Scope::Namespaced))
}

pub(crate) fn required(to: &str) -> Edge {
    Edge::new(id(to).stable_id(), Requirement::Required { declared_by: "config.kubernetes.io/depends-on".into() })
}

pub(crate) fn empty(parent: &ParentRef) -> Inventory {
    Inventory::new(parent.clone(), ClusterId(Uid::new("cluster").unwrap()))
}

/// `length` entries `n0`, `n1`, ..., each depending on the one before it.
pub(crate) fn inventory(parent: &ParentRef, length: usize) -> Inventory {
    let mut inventory = empty(parent);
    for number in 0..length {
        let mut entry = entry(&format!("n{number}"));
        if number > 0 {
            entry.edges.insert(required(&format!("n{}", number - 1)));
        }
        inventory.insert(entry);
    }
    inventory
}

fn any_requirement() -> impl Strategy<Value = Requirement> {
    prop_oneof![
        "[a-z./]{1,8}".prop_map(|declared_by| Requirement::Required { declared_by }),
        ("[a-z-]{1,4}", 0..3u16, ".{0,12}").prop_map(|(rule, rank, evidence)| Requirement::Preferred {
            rule,
            rank,
            evidence
        }),
    ]
}

fn any_entry() -> impl Strategy<Value = Entry> {
    let id = (prop::sample::select(vec!["", "apps"]), prop::option::of("[a-c]{1,2}"), "[a-zA-Z:_.]{1,3}")
        .prop_filter_map("path segment", |(group, namespace, name)| {
            ObjectId::new(group, "Thing", namespace.as_deref(), &name).ok()
        });
    let edges = prop::collection::btree_set((0..12u8, any_requirement()), 0..4);
    let options = (any::<[bool; 5]>(), prop::option::of("[a-f0-9-]{1,36}"), 0..3u32);
    (id, edges, options).prop_map(|(id, edges, ([a, b, c, d, e], uid, recreations))| {
        let resource = ResourceKind::new(id.group(), "v1", id.kind(), "things", id.scope());
        let mut entry = Entry::intended(id, &resource);
        entry.uid = uid.and_then(|uid| Uid::new(uid).ok());
        entry.defined_by_crd = e;
        entry.state = if a { EntryState::Recorded } else { EntryState::Detaching };
        entry.deletion = if b { DeletionPolicy::Keep } else { DeletionPolicy::Delete };
        entry.origin = if c { Origin::Adopted } else { Origin::Created };
        entry.role = if d { Role::Proxy } else { Role::Child };
        entry.recreations = recreations;
        entry.in_use = [None, Some(InUsePolicy::Keep), Some(InUsePolicy::Hold)][recreations as usize];
        if a && b {
            entry.forced.strip("dead.example.com/x", c.then_some("asked for"));
            entry.forced.abandon(None);
        }
        // Among few targets, so that entries meet; some are in the set, some outside.
        entry.edges = edges.into_iter().map(|(to, why)| Edge::new(target(to).stable_id(), why)).collect();
        entry
    })
}

fn target(number: u8) -> ObjectId {
    let names = ["a", "b", "c", "aa", "x.y", "Z"];
    let group = if number < 6 { "" } else { "apps" };
    ObjectId::new(group, "Thing", Some("a"), names[usize::from(number) % names.len()]).unwrap()
}

pub(crate) fn any_inventory() -> impl Strategy<Value = Inventory> {
    let targets = prop::collection::vec(any_entry(), 0..8);
    let chosen = prop::collection::btree_set(0..12u8, 0..8);
    (targets, chosen, any::<bool>(), prop::option::of("[a-z:]{1,9}")).prop_map(|(entries, chosen, decided, creator)| {
        let mut inventory = empty(&parent("a", "1"));
        let targets: Vec<_> = chosen.into_iter().map(target).collect();
        for (index, entry) in entries.into_iter().enumerate() {
            let mut entry = entry;
            if let Some(id) = targets.get(index) {
                entry.id = id.clone();
            }
            inventory.insert(entry);
        }
        inventory.decision = decided.then(|| Decision::new(DeletionPolicy::Keep, "asked for"));
        inventory.creator = creator;
        inventory.held = targets.into_iter().take(2).collect();
        inventory
    })
}
