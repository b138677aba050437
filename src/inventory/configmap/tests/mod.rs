//! The store against a model of the API server.

mod crashes;
mod damage;
mod life;
mod model;
mod writers;

use std::sync::Arc;

use self::model::Model;
use super::{ConfigMapFormat, ConfigMapStore, names::Slot};
use crate::{
    inventory::{Inventory, InventoryStore, Loaded, SaveOptions, Snapshot, Version, shards::Limits},
    manager::Manager,
    object::ParentRef,
};

/// Some three entries a stored object.
const TINY: Limits = Limits { readable: 400, target: 250, half: 2800, hard: 20_000 };
/// As tiny, but with readable shards.
const TINY_PLAIN: Limits = Limits { readable: 10_000, target: 1500, half: 2800, hard: 20_000 };

/// No names, no calls.
const NONE: [String; 0] = [];
/// Five entries are one object, seven are too much for it.
const GROWING: Limits = Limits { target: 1300, half: 2300, ..TINY_PLAIN };

fn manager() -> Manager {
    Manager::new("gittrack.example.com").unwrap()
}

fn store(model: &Model, limits: Limits) -> ConfigMapStore {
    let format = ConfigMapFormat { limits, ..ConfigMapFormat::new(manager()) };
    ConfigMapStore { objects: Arc::new(model.clone()), format }
}

fn root_name(parent: &ParentRef, slot: Slot) -> String {
    ConfigMapFormat::new(manager()).naming(parent).root(slot)
}

async fn found(store: &ConfigMapStore, parent: &ParentRef) -> Snapshot {
    match store.load(parent).await.unwrap() {
        Loaded::Found(snapshot) => snapshot,
        other => panic!("{other:?}"),
    }
}

async fn create(store: &ConfigMapStore, inventory: &Inventory) -> Version {
    store.save(inventory, SaveOptions::create()).await.unwrap()
}

fn replace(version: &Version) -> SaveOptions {
    SaveOptions::replace(version.clone())
}

/// `inventory` as a load returns it.
fn counted(inventory: &Inventory) -> Inventory {
    let mut inventory = inventory.clone();
    crate::inventory::dependents::report(&mut inventory, &Default::default());
    inventory
}

#[tokio::test]
async fn tiny_limits_make_shards() {
    for (limits, packed) in [(TINY, true), (TINY_PLAIN, false)] {
        let (model, parent) = (Model::default(), crate::inventory::testing::parent("a", "1"));
        create(&store(&model, limits), &crate::inventory::testing::inventory(&parent, 10)).await;
        assert!(model.names().len() >= 3, "{:?}", model.names());
        let objects = model.names().into_iter().filter_map(|name| model.object(&name));
        assert_eq!(objects.filter(|object| object.binary_data.is_some()).count() > 1, packed);
    }
    let (model, parent) = (Model::default(), crate::inventory::testing::parent("a", "1"));
    let store = store(&model, GROWING);
    let version = create(&store, &crate::inventory::testing::inventory(&parent, 5)).await;
    assert_eq!(model.names().len(), 1);
    let grown = crate::inventory::testing::inventory(&parent, 7);
    store.save(&grown, replace(&version).renew(true)).await.unwrap();
    assert!(model.names().len() > 2, "{:?}", model.names());
}
