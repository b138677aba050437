//! What every [`InventoryStore`] has to pass.
//!
//! Call [`all`] from a test of your store, or single functions. Each works on parents of its own, which the factory
//! hands out, and leaves nothing behind; run them one after another or at once. They use nothing but the trait, so what
//! a store makes of damage, of terminating objects and of crashes is for its own tests to show. A failure is a panic
//! that says which promise was broken.
//!
//! ```
//! # async fn check() {
//! use kube_custody::{inventory::{MemoryStore, conformance}, object::{ObjectId, ParentRef, ResourceKind, Scope, Uid}};
//!
//! let kind = ResourceKind::new("example.com", "v1", "GitTrack", "gittracks", Scope::Namespaced);
//! conformance::all(&MemoryStore::new(), &|name| {
//!     let id = ObjectId::new("example.com", "GitTrack", Some("default"), name).unwrap();
//!     ParentRef::new(id, Uid::new("0cbd8f1e-5a4b-4f5e-9d0e-3f1f5e6f0001").unwrap(), &kind)
//! })
//! .await;
//! # }
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(check());
//! ```

use super::{
    ClusterId, Decision, DeletionPolicy, Edge, Entry, EntryState, Error, Inventory, InventoryStore, Loaded, Origin,
    Requirement, Role, SaveOptions, Snapshot, Version,
};
use crate::object::{ObjectId, ParentRef, ResourceKind, Scope, Uid};

/// Makes a parent of the given name, always with the same UID and in a place where the store can keep its inventory.
pub type Parents<'a> = &'a (dyn Fn(&str) -> ParentRef + Sync);

/// The whole suite.
///
/// # Panics
/// If the store breaks a promise.
pub async fn all(store: &dyn InventoryStore, parents: Parents<'_>) {
    missing_is_missing(store, parents).await;
    what_was_saved_is_loaded(store, parents).await;
    every_name_is_stored(store, parents).await;
    a_create_never_overwrites(store, parents).await;
    a_stale_save_stores_nothing(store, parents).await;
    a_save_over_nothing_creates_nothing(store, parents).await;
    dependents_are_counted(store, parents).await;
    entries_leave_only_when_dropped(store, parents).await;
    a_restored_parent_is_told_apart(store, parents).await;
    a_delete_is_conditional(store, parents).await;
    parents_do_not_meet(store, parents).await;
    large_records_are_stored(store, parents).await;
}

fn id(name: &str) -> ObjectId {
    ObjectId::new("", "ConfigMap", Some("elsewhere"), name).expect("a legal name")
}

fn entry(name: &str, needs: &[&str]) -> Entry {
    let resource = ResourceKind::new("", "v1", "ConfigMap", "configmaps", Scope::Namespaced);
    let mut entry = Entry::intended(id(name), &resource);
    let required = || Requirement::Required { declared_by: "config.kubernetes.io/depends-on".into() };
    entry.edges = needs.iter().map(|to| Edge::new(id(to).stable_id(), required())).collect();
    entry
}

fn empty(parent: &ParentRef) -> Inventory {
    Inventory::new(parent.clone(), ClusterId(uid("cluster")))
}

fn uid(uid: &str) -> Uid {
    Uid::new(uid).expect("a legal UID")
}

fn with(parent: &ParentRef, entries: impl IntoIterator<Item = Entry>) -> Inventory {
    let mut inventory = empty(parent);
    entries.into_iter().for_each(|entry| {
        inventory.insert(entry);
    });
    inventory
}

async fn create(store: &dyn InventoryStore, inventory: &Inventory) -> Version {
    store.save(inventory, SaveOptions::create()).await.expect("a record can be created")
}

async fn found(store: &dyn InventoryStore, parent: &ParentRef) -> Snapshot {
    match store.load(parent).await.expect("a record can be loaded") {
        Loaded::Found(snapshot) => snapshot,
        other => panic!("a whole record loads as found, not as {other:?}"),
    }
}

async fn is_missing(store: &dyn InventoryStore, parent: &ParentRef) {
    let loaded = store.load(parent).await.expect("a missing record is not an error");
    assert!(matches!(loaded, Loaded::Missing), "{parent} has no record, but {loaded:?} was found");
}

/// Removes the record, whatever it is.
async fn clean(store: &dyn InventoryStore, parent: &ParentRef) {
    let loaded = store.load(parent).await.expect("a record can be loaded");
    if let Some(snapshot) = loaded.snapshot() {
        store.delete(parent, &snapshot.version).await.expect("a record can be deleted under its version");
    }
    is_missing(store, parent).await;
}

/// A parent without a record has none, and deleting it is success.
///
/// # Panics
/// If the store breaks the promise.
pub async fn missing_is_missing(store: &dyn InventoryStore, parents: Parents<'_>) {
    let parent = parents("missing");
    is_missing(store, &parent).await;
    store.delete(&parent, &Version::new("never")).await.expect("deleting a missing record is success");
}

/// Every field of a record is loaded as it was saved, under the version that the save returned.
///
/// # Panics
/// If the store breaks the promise.
pub async fn what_was_saved_is_loaded(store: &dyn InventoryStore, parents: Parents<'_>) {
    let parent = parents("round-trip");
    let mut inventory = with(&parent, [entry("a", &[]), entry("b", &["a"]), entry("c", &["a", "outside"])]);
    let resource = ResourceKind::new("example.com", "v1beta1", "Thing", "things", Scope::Cluster);
    let mut other = Entry::intended(ObjectId::new("example.com", "Thing", None, "x").expect("a legal name"), &resource);
    other.uid = Some(uid("u"));
    other.state = EntryState::Detaching;
    other.deletion = DeletionPolicy::Keep;
    other.origin = Origin::Adopted;
    other.role = Role::Proxy;
    other.defined_by_crd = true;
    other.recreations = 3;
    let evidence = "line one\nline two\t\"quoted\" \u{1f980}".into();
    let requirement = Requirement::Preferred { rule: "r".into(), rank: 7, evidence };
    other.edges = [Edge::new(id("a").stable_id(), requirement)].into();
    inventory.insert(other);
    inventory.creator = Some("system:serviceaccount:a:b".into());
    inventory.decision = Some(Decision::new(DeletionPolicy::Keep, "because"));
    inventory.held = [id("held")].into();
    let version = create(store, &inventory).await;
    let snapshot = found(store, &parent).await;
    inventory.get_mut(&id("a")).expect("it was added").dependents = 3;
    assert_eq!(snapshot.inventory, inventory, "a record is loaded as it was saved");
    assert_eq!(snapshot.version, version, "a load returns the version of the last save");
    assert!(!snapshot.terminating, "a fresh record is not being deleted");
    clean(store, &parent).await;
}

/// Names that the API server accepts are stored, however long or odd, of parents and of children.
///
/// # Panics
/// If the store breaks the promise.
pub async fn every_name_is_stored(store: &dyn InventoryStore, parents: Parents<'_>) {
    let long = "x".repeat(253);
    let parent = parents(&long);
    let resource = ResourceKind::new("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles", Scope::Cluster);
    let names = ["system:node_x", "a__b", "A.b:c", "-", "~", &long];
    let mut inventory = with(
        &parent,
        names.into_iter().map(|name| {
            let id = ObjectId::new(&resource.group, &resource.kind, None, name).expect("a legal name");
            Entry::intended(id, &resource)
        }),
    );
    create(store, &inventory).await;
    assert_eq!(found(store, &parent).await.inventory, inventory, "names are loaded as they were saved");
    let snapshot = found(store, &parent).await;
    inventory.entries_mut().for_each(|entry| entry.recreations += 1);
    store.save(&inventory, SaveOptions::replace(snapshot.version)).await.expect("a record can be replaced");
    clean(store, &parent).await;
}

/// A create over a record fails, and changes nothing.
///
/// # Panics
/// If the store breaks the promise.
pub async fn a_create_never_overwrites(store: &dyn InventoryStore, parents: Parents<'_>) {
    let parent = parents("create-twice");
    let first = with(&parent, [entry("a", &[])]);
    create(store, &first).await;
    let error = store.save(&empty(&parent), SaveOptions::create()).await;
    assert!(matches!(error, Err(Error::AlreadyExists { .. })), "a record exists, but a create returned {error:?}");
    assert_eq!(found(store, &parent).await.inventory, first, "a refused create changes nothing");
    clean(store, &parent).await;
}

/// A save on a version that was replaced fails, if it would overwrite what was changed, and stores nothing. Loading
/// again and redoing the change works.
///
/// # Panics
/// If the store breaks the promise.
pub async fn a_stale_save_stores_nothing(store: &dyn InventoryStore, parents: Parents<'_>) {
    let parent = parents("stale");
    let stale = create(store, &with(&parent, [entry("a", &[])])).await;
    let mut theirs = with(&parent, [entry("a", &[])]);
    theirs.get_mut(&id("a")).expect("it was added").uid = Some(uid("theirs"));
    let current = store.save(&theirs, SaveOptions::replace(stale.clone())).await.expect("the version is current");
    assert_ne!(stale, current, "every change makes a new version");
    let mut ours = with(&parent, [entry("a", &[]), entry("b", &["a"])]);
    for renew in [false, true] {
        let options = SaveOptions::replace(stale.clone()).renew(renew);
        let error = store.save(&ours, options).await;
        assert!(matches!(error, Err(Error::Conflict { .. })), "the version is stale, but a save returned {error:?}");
        assert_eq!(found(store, &parent).await.inventory, theirs, "a refused save stores nothing");
    }
    let snapshot = found(store, &parent).await;
    assert_eq!(snapshot.version, current, "a refused save makes no new version");
    ours.get_mut(&id("a")).expect("it was added").uid = Some(uid("theirs"));
    store.save(&ours, SaveOptions::replace(snapshot.version)).await.expect("the change can be redone");
    assert_eq!(found(store, &parent).await.inventory.len(), 2, "the change was redone");
    clean(store, &parent).await;
}

/// A save on top of a record that is gone fails, and does not bring it back.
///
/// # Panics
/// If the store breaks the promise.
pub async fn a_save_over_nothing_creates_nothing(store: &dyn InventoryStore, parents: Parents<'_>) {
    let parent = parents("gone");
    let inventory = with(&parent, [entry("a", &[])]);
    let version = create(store, &inventory).await;
    store.delete(&parent, &version).await.expect("the version is current");
    let mut changed = inventory.clone();
    changed.insert(entry("b", &[]));
    for renew in [false, true] {
        let error = store.save(&changed, SaveOptions::replace(version.clone()).renew(renew)).await;
        assert!(matches!(error, Err(Error::Conflict { .. })), "the record is gone, but a save returned {error:?}");
        is_missing(store, &parent).await;
    }
}

/// The number of entries that depend on an entry is kept by the store, whatever the caller has in that field.
///
/// # Panics
/// If the store breaks the promise.
pub async fn dependents_are_counted(store: &dyn InventoryStore, parents: Parents<'_>) {
    let parent = parents("dependents");
    let count = async |name: &str| {
        let snapshot = found(store, &parent).await;
        snapshot.inventory.get(&id(name)).map(|entry| entry.dependents)
    };
    let mut inventory = with(&parent, [entry("a", &[]), entry("b", &["a"]), entry("c", &["a", "b", "outside"])]);
    inventory.get_mut(&id("c")).expect("it was added").dependents = 9;
    let version = create(store, &inventory).await;
    assert_eq!((count("a").await, count("b").await, count("c").await), (Some(2), Some(1), Some(0)));
    inventory.remove(&id("c"));
    let version = store.save(&inventory, SaveOptions::replace(version)).await.expect("the version is current");
    assert_eq!((count("a").await, count("b").await), (Some(1), Some(0)), "numbers go down with the entries");
    inventory.insert(entry("b", &[]));
    inventory.insert(entry("d", &["b"]));
    store.save(&inventory, SaveOptions::replace(version)).await.expect("the version is current");
    assert_eq!((count("a").await, count("b").await), (Some(0), Some(1)), "numbers follow the edges");
    clean(store, &parent).await;
}

/// Entries stay until a save drops them, one by one, down to an empty record, which is still found.
///
/// # Panics
/// If the store breaks the promise.
pub async fn entries_leave_only_when_dropped(store: &dyn InventoryStore, parents: Parents<'_>) {
    let parent = parents("shrinking");
    let mut inventory = with(&parent, (0..5).map(|n| entry(&format!("n{n}"), &[])));
    let mut version = create(store, &inventory).await;
    for number in 0..5 {
        inventory.remove(&id(&format!("n{number}")));
        version = store.save(&inventory, SaveOptions::replace(version)).await.expect("the version is current");
        assert_eq!(found(store, &parent).await.inventory, inventory, "what was not dropped stays");
    }
    clean(store, &parent).await;
}

/// A record that was written for another incarnation of the parent says so, and a save links it again.
///
/// # Panics
/// If the store breaks the promise.
pub async fn a_restored_parent_is_told_apart(store: &dyn InventoryStore, parents: Parents<'_>) {
    let old = parents("restored");
    let mut new = old.clone();
    new.uid = uid("0cbd8f1e-5a4b-4f5e-9d0e-3f1f5e6fffff");
    create(store, &with(&old, [entry("a", &[])])).await;
    let loaded = store.load(&new).await.expect("a record can be loaded");
    let Loaded::Restored { snapshot, recorded, damage } = loaded else {
        panic!("the parent's UID differs from the record's, but {loaded:?} was found")
    };
    assert!(damage.is_empty() && recorded == old.uid && snapshot.inventory.parent == old, "the record is as it was");
    let linked = with(&new, [entry("a", &[])]);
    store.save(&linked, SaveOptions::replace(snapshot.version)).await.expect("the version is current");
    assert_eq!(found(store, &new).await.inventory, linked, "the record was linked again");
    let loaded = store.load(&old).await.expect("a record can be loaded");
    assert!(
        matches!(loaded, Loaded::Restored { .. }),
        "the earlier incarnation has none now, but {loaded:?} was found"
    );
    clean(store, &new).await;
}

/// A delete on a version that was replaced fails and removes nothing; deleting twice is success.
///
/// # Panics
/// If the store breaks the promise.
pub async fn a_delete_is_conditional(store: &dyn InventoryStore, parents: Parents<'_>) {
    let parent = parents("delete");
    let stale = create(store, &with(&parent, [entry("a", &[])])).await;
    let inventory = with(&parent, [entry("a", &[]), entry("b", &[])]);
    let current = store.save(&inventory, SaveOptions::replace(stale.clone())).await.expect("the version is current");
    let error = store.delete(&parent, &stale).await;
    assert!(matches!(error, Err(Error::Conflict { .. })), "the version is stale, but a delete returned {error:?}");
    assert_eq!(found(store, &parent).await.inventory, inventory, "a refused delete removes nothing");
    store.delete(&parent, &current).await.expect("the version is current");
    is_missing(store, &parent).await;
    store.delete(&parent, &current).await.expect("deleting a missing record is success");
    // The name can be used again.
    create(store, &inventory).await;
    assert_eq!(found(store, &parent).await.inventory, inventory, "a parent can have a record again");
    clean(store, &parent).await;
}

/// Records of two parents have nothing to do with each other.
///
/// # Panics
/// If the store breaks the promise.
pub async fn parents_do_not_meet(store: &dyn InventoryStore, parents: Parents<'_>) {
    let (one, two) = (parents("one"), parents("two"));
    create(store, &with(&one, [entry("a", &[])])).await;
    is_missing(store, &two).await;
    create(store, &with(&two, [entry("b", &[])])).await;
    clean(store, &one).await;
    assert_eq!(found(store, &two).await.inventory, with(&two, [entry("b", &[])]), "the other parent's record stays");
    clean(store, &two).await;
}

/// Thousands of entries are stored, changed one at a time and shrunk again, or refused as [`Error::Unstorable`] before
/// anything is stored.
///
/// # Panics
/// If the store breaks the promise.
pub async fn large_records_are_stored(store: &dyn InventoryStore, parents: Parents<'_>) {
    let parent = parents("large");
    let name = |number: usize| format!("n{number:05}-{}", id(&number.to_string()).stable_id());
    let mut inventory = with(
        &parent,
        (0..5000).map(|number| {
            let mut entry = entry(&name(number), &[]);
            entry.uid = Some(uid(&id(&number.to_string()).stable_id().to_string()));
            if let Some(before) = number.checked_sub(1) {
                let requirement = Requirement::Required { declared_by: "api".into() };
                entry.edges = [Edge::new(id(&name(before)).stable_id(), requirement)].into();
            }
            entry
        }),
    );
    let last = id(&name(4999));
    inventory.entries_mut().for_each(|entry| entry.dependents = u32::from(entry.id != last));
    let version = match store.save(&inventory, SaveOptions::create()).await {
        Err(Error::Unstorable { .. }) => return is_missing(store, &parent).await,
        outcome => outcome.expect("a record can be created"),
    };
    assert_eq!(found(store, &parent).await.inventory, inventory, "a large record is loaded as it was saved");
    inventory.get_mut(&last).expect("it was added").state = EntryState::Recorded;
    let version = store.save(&inventory, SaveOptions::replace(version)).await.expect("the version is current");
    assert_eq!(found(store, &parent).await.inventory, inventory, "one changed entry is loaded as it was saved");
    (10..5000).for_each(|number| {
        inventory.remove(&id(&name(number)));
    });
    inventory.get_mut(&id(&name(9))).expect("it was added").dependents = 0;
    store.save(&inventory, SaveOptions::replace(version)).await.expect("a large record can shrink");
    assert_eq!(found(store, &parent).await.inventory, inventory, "what was not dropped stays");
    clean(store, &parent).await;
}
