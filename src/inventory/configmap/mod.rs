//! Inventories in ConfigMaps of the parent's namespace.
//!
//! # What is stored
//! One ConfigMap, the *root*, holds a small inventory whole and readable: a key `inventory` with everything but the
//! entries, one key for each entry, and one for each reason of an edge. Above about 100 KiB the entries are compressed;
//! above about 200 KiB compressed they are spread over *shards*, so that one changed entry is one write of one object
//! of less than half of what the API server accepts. No manifest and no content of any object is stored.
//!
//! Every object carries the manager's guard finalizer from its creation on: deleting the namespace cannot take the
//! record before the children. A root has one of two names, used in turn, since the name of an object that is being
//! deleted cannot be used again. All names are hashes of the parent's identity; the annotation
//! `<manager>/inventory-of` names the parent for people, and the label `<manager>/parent-uid` carries its UID.
//!
//! Every text carries a checksum that binds it to the parent. What does not match is damage, named and kept as it is;
//! the rest is read.
//!
//! # Permissions
//! On `configmaps` in the namespaces of the parents: `get`, `create`, `patch` and `delete` for everything, and `list`
//! for [`delete`](crate::inventory::InventoryStore::delete), which looks for what crashed saves have left, and for
//! [`parents`](crate::inventory::InventoryStore::parents). Objects of a known parent are read by name, never found by a label that somebody might have stripped. Names are hashes, so `resourceNames` can't
//! narrow the permission.
//!
//! # Calls
//! A load is two GETs, and one for each shard. A save is one PATCH for each object that changes, a few more where
//! numbers of dependents in other shards change with it. Deleting a small record takes a DELETE, a LIST and a PATCH.

mod head;
mod names;
mod objects;
mod piece;
mod plan;
mod record;
mod run;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use async_trait::async_trait;
use k8s_openapi::api::core::v1::ConfigMap;
use kube_client::Client;

use self::{
    head::RootHead,
    names::{Naming, Slot},
    objects::{Fault, KubeObjects, Objects},
    plan::{Act, Planner, Target},
    record::{Foreign, Found, Record},
    run::{Failure, Runner},
};
use super::{Error, Inventory, InventoryStore, Loaded, SaveOptions, Snapshot, Version, shards::Limits};
use crate::{
    manager::Manager,
    object::{self, ParentRef},
};

/// How inventories are written into ConfigMaps; no IO.
///
/// What [`ConfigMapStore`] stores, and for tools that look at a dump of it.
#[derive(Clone, Debug)]
pub struct ConfigMapFormat {
    manager: Manager,
    cluster_namespace: Option<String>,
    limits: Limits,
}

impl ConfigMapFormat {
    /// The format under `manager`'s keys.
    #[must_use]
    pub fn new(manager: Manager) -> Self {
        Self { manager, cluster_namespace: None, limits: Limits::KUBERNETES }
    }

    /// Sets the namespace for the inventories of cluster-scoped parents, such as the operator's own. It has to outlive
    /// every such parent. Those of namespaced parents live beside the parent whatever is set here.
    ///
    /// # Errors
    /// [`object::Error::Invalid`] unless it is a DNS label.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Result<Self, object::Error> {
        let namespace = namespace.into();
        object::check_namespace(&namespace)?;
        self.cluster_namespace = Some(namespace);
        Ok(self)
    }

    /// The namespace of a parent's inventory.
    ///
    /// # Errors
    /// [`Error::Unstorable`] if the parent is cluster-scoped and no namespace was chosen for those.
    pub fn namespace_of<'a>(&'a self, parent: &'a ParentRef) -> Result<&'a str, Error> {
        parent.id.namespace().or(self.cluster_namespace.as_deref()).ok_or_else(|| Error::Unstorable {
            parent: parent.id.clone(),
            problem:
                "the parent is cluster-scoped: choose a namespace for its inventory with `ConfigMapStore::namespace`"
                    .into(),
        })
    }

    /// The objects that a save of a new record creates, in order.
    ///
    /// # Errors
    /// [`Error::Unstorable`] if the inventory does not fit the format.
    pub fn encode(&self, inventory: &Inventory) -> Result<Vec<ConfigMap>, Error> {
        let naming = self.naming(&inventory.parent);
        let plan = self.planner(&naming, inventory).create(Some(Slot::A)).map_err(unstorable(&inventory.parent))?;
        let namespace = self.namespace_of(&inventory.parent)?;
        let created = plan.acts.into_iter().filter_map(|act| match act {
            Act::Create(_, mut object) => {
                object.metadata.namespace = Some(namespace.to_owned());
                Some(object)
            }
            Act::Probe(_) | Act::Patch(..) => None,
        });
        Ok(created.collect())
    }

    /// What the record of `parent` says, from all ConfigMaps of its namespace or a part of them; others are ignored.
    ///
    /// # Errors
    /// [`Error::Unreadable`] if there is something under its names, but no readable record.
    pub fn decode(&self, parent: &ParentRef, objects: impl IntoIterator<Item = ConfigMap>) -> Result<Loaded, Error> {
        let naming = self.naming(parent);
        let name = |object: &ConfigMap| object.metadata.name.clone().unwrap_or_default();
        let mut objects: BTreeMap<_, _> = objects.into_iter().map(|object| (name(&object), object)).collect();
        let roots = Slot::BOTH.map(|slot| objects.remove(&naming.root(slot)));
        let survey = record::survey(&naming, roots).map_err(|foreign| unreadable(parent, foreign))?;
        Ok(loaded(parent, record::assemble(survey, objects, &naming)))
    }

    /// The names of the objects that a save would write, in order. `options.expected` has to be a version that
    /// [`decode`](Self::decode) or the store returned.
    ///
    /// # Errors
    /// [`Error::Unstorable`] if the inventory does not fit.
    pub fn preview(&self, inventory: &Inventory, options: &SaveOptions) -> Result<Vec<String>, Error> {
        let record = options.expected.as_ref().and_then(Version::state::<Record>);
        let naming = self.naming(&inventory.parent);
        let planner = self.planner(&naming, inventory);
        let plan = match &record {
            None => planner.create(Some(Slot::A)),
            Some(record) => {
                let in_place = planner.in_place(record);
                let moved = planner.moved(record, &in_place, options);
                moved.and_then(|plan| plan.map_or(in_place, Ok))
            }
        };
        let plan = plan.map_err(unstorable(&inventory.parent))?;
        let names = plan.acts.iter().filter_map(|act| match act {
            Act::Create(_, object) => object.metadata.name.clone(),
            Act::Patch(target, _) => {
                let record = record.as_ref()?;
                Some(match target {
                    Target::Shard(index) => record.tree.shards.get(*index)?.name.clone(),
                    Target::Rival => record.rival.as_ref()?.tree.root.seen.name.clone(),
                    Target::Root | Target::NewRoot | Target::NewShard(_) => record.tree.root.seen.name.clone(),
                })
            }
            Act::Probe(_) => None,
        });
        Ok(names.collect())
    }

    fn naming(&self, parent: &ParentRef) -> Naming {
        Naming::new(&self.manager, &parent.id)
    }

    fn planner<'a>(&'a self, naming: &'a Naming, inventory: &'a Inventory) -> Planner<'a> {
        Planner { naming, limits: &self.limits, inventory }
    }
}

fn unstorable(parent: &ParentRef) -> impl FnOnce(plan::Error) -> Error {
    let parent = parent.id.clone();
    move |error| Error::Unstorable { parent, problem: error.to_string() }
}

fn unreadable(parent: &ParentRef, Foreign { place, problem }: Foreign) -> Error {
    Error::Unreadable { parent: parent.id.clone(), place, problem }
}

fn loaded(parent: &ParentRef, found: Option<Found>) -> Loaded {
    let Some(Found { record, inventory, damage }) = found else { return Loaded::Missing };
    let mut snapshot = Snapshot::new(inventory, Version::new(""));
    snapshot.terminating = record.terminating();
    snapshot.version = version(record);
    Loaded::of(parent, snapshot, damage)
}

fn version(record: Record) -> Version {
    Version::with_state(record.token(), Arc::new(record))
}

/// Inventories in ConfigMaps; see the [module](self).
#[derive(Clone, Debug)]
pub struct ConfigMapStore {
    objects: Arc<dyn Objects>,
    format: ConfigMapFormat,
}

impl ConfigMapStore {
    /// A store that keeps the inventory of each parent in the parent's own namespace.
    #[must_use]
    pub fn new(client: Client, manager: Manager) -> Self {
        Self::with_format(client, ConfigMapFormat::new(manager))
    }

    /// Sets the namespace for the inventories of cluster-scoped parents; see [`ConfigMapFormat::namespace`].
    ///
    /// # Errors
    /// [`object::Error::Invalid`] unless it is a DNS label.
    pub fn namespace(self, namespace: impl Into<String>) -> Result<Self, object::Error> {
        Ok(Self { format: self.format.namespace(namespace)?, ..self })
    }

    /// A store with this format.
    #[must_use]
    pub fn with_format(client: Client, format: ConfigMapFormat) -> Self {
        let objects = Arc::new(KubeObjects::new(client, format.manager.clone()));
        Self { objects, format }
    }

    fn error(&self, parent: &ParentRef, operation: &'static str, failure: Failure) -> Error {
        let namespace = self.format.namespace_of(parent);
        let foreign = |foreign| unreadable(parent, foreign);
        let parent = parent.id.clone();
        match failure {
            Failure::Conflict(place) | Failure::Taken(place) => Error::Conflict { parent, place },
            Failure::NamespaceTerminating => {
                let namespace = namespace.unwrap_or_default().to_owned();
                Error::NamespaceTerminating { parent, namespace }
            }
            Failure::Foreign(found) => foreign(found),
            Failure::Other(source) => Error::Backend { store: self.to_string(), operation, parent, source },
        }
    }

    /// The state that `expected` names, read again if the token doesn't carry it.
    async fn expected(&self, runner: &Runner<'_>, expected: &Version) -> Result<Record, Failure> {
        if let Some(record) = expected.state::<Record>()
            && runner.naming.root(record.tree.slot) == record.tree.root.seen.name
        {
            return Ok(Record::clone(&record));
        }
        let record = runner.load().await?.map(|found| found.record);
        let record = record.filter(|record| record.token() == expected.as_str());
        record.ok_or_else(|| Failure::Conflict(runner.naming.root(Slot::A)))
    }

    async fn create(&self, runner: &Runner<'_>, inventory: &Inventory) -> Result<Version, Error> {
        let parent = &inventory.parent;
        let error = |failure| match failure {
            Failure::Taken(_) => Error::AlreadyExists { parent: parent.id.clone() },
            failure => self.error(parent, "create", failure),
        };
        let (survey, _) = runner.survey().await.map_err(error)?;
        if !survey.is_empty() {
            return Err(Error::AlreadyExists { parent: parent.id.clone() });
        }
        let free = survey.free();
        let plan = self.format.planner(runner.naming, inventory).create(free).map_err(unstorable(parent))?;
        let record = runner.create_record(plan).await.map_err(error)?;
        if free == Some(Slot::B) {
            // Somebody may have found the first name free in the meantime.
            let roots = runner.load().await.map_err(error)?;
            if roots.is_none_or(|found| found.record.rival.is_some() || found.record.tree.slot != Slot::B) {
                return Err(Error::AlreadyExists { parent: parent.id.clone() });
            }
        }
        Ok(version(record))
    }

    /// Carries out the first plan that is possible, and returns the state after it.
    async fn replace(
        &self,
        runner: &Runner<'_>,
        inventory: &Inventory,
        mut record: Record,
        options: &SaveOptions,
    ) -> Result<Version, Error> {
        let parent = &inventory.parent;
        let error = |failure| self.error(parent, "save", failure);
        let planner = self.format.planner(runner.naming, inventory);
        let mut in_place = planner.in_place(&record);
        let moved = planner.moved(&record, &in_place, options).map_err(unstorable(parent))?;
        if let Some(plan) = moved {
            match runner.change_record(plan, &mut record).await {
                Ok(()) => return Ok(version(record)),
                Err(Failure::NamespaceTerminating | Failure::Taken(_)) => {
                    // Nothing can be created. What was begun is taken up in place, if nobody else wrote since.
                    let found = runner.load().await.map_err(error)?.map(|found| found.record);
                    let unchanged = found.filter(|found| found.token() == record.token());
                    record = unchanged.ok_or_else(|| error(Failure::Conflict(record.tree.root.seen.name.clone())))?;
                    in_place = planner.in_place(&record);
                }
                Err(failure) => return Err(error(failure)),
            }
        }
        let plan = in_place.map_err(unstorable(parent))?;
        runner.change_record(plan, &mut record).await.map_err(error)?;
        Ok(version(record))
    }
}

impl fmt::Display for ConfigMapStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "configmaps of {}", self.format.manager)
    }
}

#[async_trait]
impl InventoryStore for ConfigMapStore {
    async fn load(&self, parent: &ParentRef) -> Result<Loaded, Error> {
        let naming = self.format.naming(parent);
        let namespace = self.format.namespace_of(parent)?;
        let runner = Runner { objects: &*self.objects, namespace, naming: &naming, parent };
        let found = runner.load().await.map_err(|failure| self.error(parent, "load", failure))?;
        Ok(loaded(parent, found))
    }

    async fn save(&self, inventory: &Inventory, options: SaveOptions) -> Result<Version, Error> {
        let parent = &inventory.parent;
        let naming = self.format.naming(parent);
        let namespace = self.format.namespace_of(parent)?;
        let runner = Runner { objects: &*self.objects, namespace, naming: &naming, parent };
        let Some(expected) = &options.expected else { return self.create(&runner, inventory).await };
        let record = self.expected(&runner, expected).await;
        let record = record.map_err(|failure| self.error(parent, "save", failure))?;
        self.replace(&runner, inventory, record, &options).await
    }

    async fn delete(&self, parent: &ParentRef, expected: &Version) -> Result<(), Error> {
        let naming = self.format.naming(parent);
        let namespace = self.format.namespace_of(parent)?;
        let runner = Runner { objects: &*self.objects, namespace, naming: &naming, parent };
        let record = match self.expected(&runner, expected).await {
            Ok(record) => Ok(record),
            // Without its state in the token, a record that is gone can't be told from one that changed.
            Err(Failure::Conflict(place)) => match runner.load().await {
                Ok(None) => return Ok(()),
                Ok(Some(_)) => Err(Failure::Conflict(place)),
                Err(failure) => Err(failure),
            },
            Err(failure) => Err(failure),
        };
        let outcome = match record {
            Ok(record) => runner.remove(record).await,
            Err(failure) => Err(failure),
        };
        outcome.map_err(|failure| self.error(parent, "delete", failure))
    }

    async fn parents(&self, namespace: Option<&str>) -> Result<Vec<ParentRef>, Error> {
        let error = |fault: Fault| Error::Enumeration {
            store: self.to_string(),
            source: match fault {
                Fault::Other(source) => source,
                fault => format!("{fault:?}").into(),
            },
        };
        let label = self.format.manager.inventory_label();
        let found = self.objects.list(namespace, &label).await.map_err(error)?;
        let mut parents = BTreeSet::new();
        for meta in found {
            let (Some(within), Some(name)) = (meta.namespace, meta.name) else { continue };
            // Shards have longer names.
            if !name.ends_with("-a") && !name.ends_with("-b") {
                continue;
            }
            let Some(root) = self.objects.get(&within, &name).await.map_err(error)? else { continue };
            let Some(parent) = root.data.as_ref().and_then(RootHead::peek) else { continue };
            let naming = self.format.naming(&parent);
            let is_root = Slot::BOTH.iter().any(|slot| naming.root(*slot) == name);
            if is_root && namespace.is_none_or(|n| parent.id.namespace() == Some(n)) {
                parents.insert(parent);
            }
        }
        Ok(parents.into_iter().collect())
    }
}
