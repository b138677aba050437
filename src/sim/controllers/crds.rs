//! CustomResourceDefinitions: their kinds are served once they are established, and when they go, their objects go
//! first.
//!
//! The objects are deleted straight from the storage: no admission, no rights, default policy.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde_json::{Value, json};

use super::Stamp;
use crate::sim::{
    catalogue::{Resource, ResourceId, Role, from_definition},
    meta::generation,
    value::{finalizers, is_deleting, map, name, set_finalizers, uid},
    verbs::CLEANUP,
    world::World,
};

/// How often the cleanup looks whether all objects are gone.
const POLL: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
enum Stage {
    /// Objects have to be deleted.
    Delete,
    /// They have been; some are held.
    Poll { due: Duration, seen: Stamp },
}

/// What is known of one definition.
#[derive(Clone, Debug)]
struct Known {
    resource: ResourceId,
    generation: i64,
    terminating: bool,
}

#[derive(Debug, Default)]
pub(in crate::sim) struct Definitions {
    /// By UID.
    known: BTreeMap<String, Known>,
    /// By UID: cleanups that have begun.
    stages: BTreeMap<String, Stage>,
}

impl Definitions {
    pub(super) fn restart(&mut self) {
        self.stages.clear();
    }
}

/// Sets the condition `Terminating`.
pub(in crate::sim) fn terminating(crd: &mut Value, status: &str, reason: &str, message: &str, now: &str) {
    condition(crd, "Terminating", status, reason, message, now);
}

pub(super) fn condition(crd: &mut Value, kind: &str, status: &str, reason: &str, message: &str, now: &str) {
    let conditions =
        map(map(crd).entry("status").or_insert_with(|| json!({}))).entry("conditions").or_insert_with(|| json!([]));
    if !conditions.is_array() {
        *conditions = json!([]);
    }
    let Value::Array(list) = conditions else { return };
    let known = list.iter_mut().find(|condition| condition["type"] == kind);
    let since = known.as_ref().filter(|condition| condition["status"] == status);
    let since = since.map_or_else(|| json!(now), |condition| condition["lastTransitionTime"].clone());
    let value = json!({
        "type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since,
    });
    match known {
        Some(known) => *known = value,
        None => list.push(value),
    }
}

fn is_established(crd: &Value) -> bool {
    let conditions = crd.pointer("/status/conditions").and_then(Value::as_array);
    conditions.into_iter().flatten().any(|c| c["type"] == "Established" && c["status"] == "True")
}

impl World {
    fn definitions(&self) -> Option<&Arc<Resource>> {
        self.catalogue.by_role(Role::Definition)
    }

    fn all_definitions(&self) -> Vec<Arc<Value>> {
        let table = self.definitions().and_then(|resource| self.storage.find(resource.id));
        table.map(|table| table.list(None, None).map(|(_, crd)| Arc::clone(crd)).collect()).unwrap_or_default()
    }

    /// Brings what is served in line with the definitions. A server does this within milliseconds; here it is done
    /// with the request, unless the controller is paused.
    pub(in crate::sim) fn establish(&mut self) {
        let Some(definitions) = self.definitions().cloned() else { return };
        if !self.controllers.is_paused(super::Controller::Definitions) {
            for crd in self.all_definitions() {
                if !is_established(&crd) && !is_deleting(&crd) {
                    let crd = self.accepted(&crd);
                    let key = name(&crd).to_owned();
                    self.storage.put(definitions.id, &key, crd);
                }
            }
        }
        let mut gone: Vec<String> = self.controllers.definitions.known.keys().cloned().collect();
        for crd in self.all_definitions() {
            gone.retain(|known| known != uid(&crd));
            if is_established(&crd) {
                self.serve(&crd);
            }
        }
        for uid in gone {
            self.controllers.definitions.stages.remove(&uid);
            if let Some(known) = self.controllers.definitions.known.remove(&uid) {
                self.catalogue.remove(known.resource);
                self.storage.retire(known.resource);
            }
        }
    }

    fn accepted(&self, crd: &Value) -> Value {
        let mut crd = crd.clone();
        let now = self.now();
        let names = crd.pointer("/spec/names").cloned().unwrap_or_default();
        map(map(&mut crd).entry("status").or_insert_with(|| json!({}))).insert("acceptedNames".to_owned(), names);
        condition(&mut crd, "NamesAccepted", "True", "NoConflicts", "no conflicts found", &now);
        let message = "the initial names have been accepted";
        condition(&mut crd, "Established", "True", "InitialNamesAccepted", message, &now);
        crd
    }

    fn serve(&mut self, crd: &Value) {
        let (generation, terminating) = (generation(crd), is_terminating(crd));
        let known = self.controllers.definitions.known.get(uid(crd));
        if known.is_some_and(|known| known.generation == generation && known.terminating == terminating) {
            return;
        }
        let resource = match known {
            Some(known) => known.resource,
            None => self.catalogue.reserve(),
        };
        if let Some(described) = from_definition(crd, resource, terminating) {
            self.catalogue.insert(described);
            let known = Known { resource, generation, terminating };
            self.controllers.definitions.known.insert(uid(crd).to_owned(), known);
        }
    }

    /// Definitions whose cleanup can go on, with the time at which it can.
    fn cleanups(&self) -> Vec<(Arc<Value>, Duration)> {
        let stamp = self.stamp();
        let waiting = |crd: &Arc<Value>| match self.controllers.definitions.stages.get(uid(crd)) {
            Some(Stage::Poll { seen, .. }) if *seen == stamp => None,
            Some(Stage::Poll { due, .. }) => Some(*due),
            _ => Some(Duration::ZERO),
        };
        self.all_definitions()
            .into_iter()
            .filter(|crd| {
                if is_deleting(crd) {
                    finalizers(crd).contains(&CLEANUP)
                } else {
                    // One that was made while the controller was paused.
                    !is_established(crd)
                }
            })
            .filter_map(|crd| waiting(&crd).map(|due| (crd, due)))
            .collect()
    }

    pub(super) fn definitions_ready(&self) -> usize {
        self.cleanups().iter().filter(|(_, due)| *due <= self.elapsed).count()
    }

    pub(super) fn definitions_due(&self) -> Option<Duration> {
        self.cleanups().into_iter().map(|(_, due)| due).min()
    }

    pub(super) fn definitions_step(&mut self, choice: usize) -> String {
        let ready: Vec<_> = self.cleanups().into_iter().filter(|(_, due)| *due <= self.elapsed).collect();
        let Some((crd, _)) = ready.into_iter().nth(choice) else { return String::new() };
        let about = name(&crd).to_owned();
        if !is_deleting(&crd) {
            self.establish();
            return format!("establish {about}");
        }
        let known = self.controllers.definitions.known.get(uid(&crd)).map(|known| known.resource);
        let Some(resource) = known.and_then(|id| self.catalogue.get(id)).cloned() else {
            self.release(&crd);
            return format!("release {about}, which was never established");
        };
        match self.controllers.definitions.stages.get(uid(&crd)).cloned() {
            None => {
                let mut new = (*crd).clone();
                let message = "CustomResource deletion is in progress";
                terminating(&mut new, "True", "InstanceDeletionInProgress", message, &self.now());
                self.controllers.definitions.stages.insert(uid(&crd).to_owned(), Stage::Delete);
                self.put_definition(new);
                format!("begin to clean up {about}")
            }
            Some(Stage::Delete) => {
                self.delete_all_stored(&resource);
                self.poll(&crd, &resource);
                format!("delete the objects of {about}")
            }
            Some(Stage::Poll { .. }) => {
                self.poll(&crd, &resource);
                format!("look for objects of {about}")
            }
        }
    }

    fn poll(&mut self, crd: &Value, resource: &Resource) {
        if self.storage.find(resource.id).is_none_or(|table| table.len() == 0) {
            self.release(crd);
        } else {
            let stage = Stage::Poll { due: self.elapsed + POLL, seen: self.stamp() };
            self.controllers.definitions.stages.insert(uid(crd).to_owned(), stage);
        }
    }

    /// Takes the finalizer off.
    fn release(&mut self, crd: &Value) {
        self.controllers.definitions.stages.remove(uid(crd));
        let mut new = crd.clone();
        let rest = finalizers(crd).into_iter().filter(|known| *known != CLEANUP).map(ToOwned::to_owned).collect();
        set_finalizers(&mut new, rest);
        let message = "removed all instances";
        terminating(&mut new, "False", "InstanceDeletionCompleted", message, &self.now());
        if finalizers(&new).is_empty() {
            if let Some(definitions) = self.definitions().map(|resource| resource.id) {
                self.storage.remove(definitions, name(crd));
            }
            self.establish();
        } else {
            self.put_definition(new);
        }
    }

    fn put_definition(&mut self, crd: Value) {
        if let Some(definitions) = self.definitions().map(|resource| resource.id) {
            let key = name(&crd).to_owned();
            self.storage.put(definitions, &key, crd);
        }
        self.establish();
    }
}

/// Up to 1.36 the condition counts, not the deletion timestamp: once the cleanup is through, a definition that another
/// finalizer holds takes creations again.
fn is_terminating(crd: &Value) -> bool {
    let conditions = crd.pointer("/status/conditions").and_then(Value::as_array);
    conditions.into_iter().flatten().any(|c| c["type"] == "Terminating" && c["status"] == "True")
}
