//! How the kinds of a desired set are served: discovery, and the definitions in the set itself.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Mutex,
    time::Duration,
};

use kube_core::DynamicObject;
use tokio::time::Instant;

use super::{Error, desired, intent::Kind, site::Site};
use crate::{
    discovery::{Crd, Resolution},
    inventory::Inventory,
    lock::lock,
    object::{GroupKind, ObjectId, ResourceKind, Scope},
};

/// What is known of the CustomResourceDefinitions of kinds.
#[derive(Debug, Default)]
pub(super) struct Definitions(Mutex<BTreeMap<GroupKind, Definition>>);

#[derive(Debug)]
enum Definition {
    /// It was seen.
    Seen,
    /// It may not be read; asked for again after a while, whatever the number of parents.
    Forbidden { words: String, asked: Instant },
}

/// After how long a definition that could not be read is asked for again.
const DEFINITION_AGAIN: Duration = Duration::from_secs(60);

impl Site {
    /// How the kinds of `objects` are served.
    pub(super) async fn kinds(
        &self,
        objects: &BTreeMap<ObjectId, DynamicObject>,
    ) -> Result<BTreeMap<GroupKind, Kind>, Error> {
        let in_set = defined_in(objects);
        let mut kinds = BTreeMap::new();
        let mut asked = BTreeSet::new();
        for (id, object) in objects {
            let kind = id.group_kind();
            let version = object.types.as_ref().map(desired::version_of).unwrap_or_default();
            // One question for all objects of a kind that are written in one version.
            if !asked.insert((kind.clone(), version)) {
                continue;
            }
            let mut served = self.resolver.served_versions(&kind).await;
            let mut defined_by_crd = in_set.contains_key(&kind);
            if let Some(resource) = served.known.iter().find(|r| r.version == version).filter(|_| !defined_by_crd) {
                defined_by_crd = self.is_defined(resource).await;
                if !defined_by_crd {
                    // Discovery may have been older than the deletion of the definition, and have been asked again just now.
                    served = self.resolver.served_versions(&kind).await;
                }
            }
            let found = match served.known.iter().find(|r| r.version == version) {
                Some(resource) => Kind::Served { resource: resource.clone(), defined_by_crd },
                None => match (in_set.get(&kind), served.unavailable) {
                    (Some(defined), _) => Kind::InSet(ResourceKind { version: version.to_owned(), ..defined.clone() }),
                    (None, Some(reason)) => Kind::Unavailable(reason),
                    (None, None) if served.known.is_empty() => return Err(Error::UnknownKind { id: id.clone() }),
                    (None, None) => {
                        let served = served.known.into_iter().map(|r| r.version).collect();
                        return Err(Error::UnservedVersion { id: id.clone(), version: version.to_owned(), served });
                    }
                },
            };
            kinds.entry(kind).or_insert(found);
        }
        Ok(kinds)
    }

    /// Whether a CustomResourceDefinition defines the kind, as far as could be seen.
    pub(super) async fn is_defined(&self, resource: &ResourceKind) -> bool {
        let kind = resource.group_kind();
        match lock(&self.definitions.0).get(&kind) {
            Some(Definition::Seen) => return true,
            Some(Definition::Forbidden { asked, .. }) if asked.elapsed() < DEFINITION_AGAIN => return false,
            _ => {}
        }
        let found = self.resolver.crd_of(resource).await;
        let mut known = lock(&self.definitions.0);
        match found {
            Crd::Present(_) => drop(known.insert(kind, Definition::Seen)),
            Crd::Forbidden { reason } => {
                known.insert(kind, Definition::Forbidden { words: reason, asked: Instant::now() });
                return false;
            }
            _ => drop(known.remove(&kind)),
        }
        known.contains_key(&resource.group_kind())
    }

    /// What the custodian does without for these objects, because rights are missing, and what that costs; in words.
    pub(super) fn does_without(&self, inventory: &Inventory) -> Vec<String> {
        let places = inventory.places(|_| true);
        let mut notes = self.hub.notes(&places);
        notes.extend(lock(&self.definitions.0).iter().filter(|(kind, _)| places.contains_key(kind)).filter_map(
            |(kind, known)| match known {
                Definition::Seen => None,
                Definition::Forbidden { words, .. } => Some(format!(
                    "should the definition of {kind} be deleted, its objects could not be proven gone: {words}"
                )),
            },
        ));
        notes
    }

    /// How one kind is served now, if that can be told.
    pub(super) async fn served(&self, kind: &GroupKind) -> Option<ResourceKind> {
        match self.resolver.resolve(kind).await {
            Resolution::Served(resource) => Some(resource),
            _ => None,
        }
    }
}

/// The kinds that CustomResourceDefinitions among `objects` define.
fn defined_in(objects: &BTreeMap<ObjectId, DynamicObject>) -> BTreeMap<GroupKind, ResourceKind> {
    let definitions = objects.iter().filter(|(id, _)| id.is("apiextensions.k8s.io", "CustomResourceDefinition"));
    let defined = definitions.filter_map(|(_, object)| {
        let text = |path: &str| object.data.pointer(path).and_then(|v| v.as_str());
        let kind = GroupKind::new(text("/spec/group")?, text("/spec/names/kind")?).ok()?;
        let scope = if text("/spec/scope")? == "Namespaced" { Scope::Namespaced } else { Scope::Cluster };
        let resource = ResourceKind::new(&kind.group, "", &kind.kind, text("/spec/names/plural")?, scope);
        Some((kind, resource))
    });
    defined.collect()
}
