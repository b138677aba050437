//! Live roles that rules read beside the desired set. Thin: which ones is decided by the rules.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Mutex,
};

use kube_core::DynamicObject;
use tokio::time::Instant;

use super::{LOOK_AGAIN, intent::Kind, site::Site};
use crate::{
    answer::{Answer, Refusal},
    api::api,
    graph::{ManifestSet, Rules},
    lock::lock,
    object::{GroupKind, ObjectId, ResourceKind, Scope},
};

/// Roles by name, as they were read last, or why they could not be. They change seldom, and all that hangs on them is an
/// order that can be given up.
#[derive(Debug, Default)]
pub(super) struct Roles(Mutex<BTreeMap<ObjectId, (Instant, Read)>>);

/// A role that exists, or why it could not be read.
type Read = Result<DynamicObject, String>;

/// What rules read beside the desired set.
#[derive(Debug, Default)]
pub(super) struct Context {
    pub(super) roles: BTreeMap<ObjectId, DynamicObject>,
    /// What could not be read, in words.
    pub(super) notes: Vec<String>,
}

impl Site {
    /// The roles outside of `objects` that rules ask for: at most one GET for each, and none for those that were read
    /// within the last minutes. A role that does not exist grants nothing, and is asked for again by the next pass.
    pub(super) async fn context(
        &self,
        rules: &Rules,
        objects: &BTreeMap<ObjectId, DynamicObject>,
        kinds: &BTreeMap<GroupKind, Kind>,
    ) -> Context {
        let wanted = rules.context(&ManifestSet::new(objects).kinds(resources(kinds)));
        let mut context = Context::default();
        for (id, role) in self.read_roles(wanted).await {
            match role {
                Ok(role) => drop(context.roles.insert(id, role)),
                Err(words) => context.notes.push(format!(
                    "{id} could not be read, so it is not known which resources it lets its accounts serve: {words}"
                )),
            }
        }
        context
    }

    async fn read_roles(&self, wanted: BTreeSet<ObjectId>) -> BTreeMap<ObjectId, Read> {
        let now = Instant::now();
        let is_fresh = |at: &Instant| now.duration_since(*at) < LOOK_AGAIN;
        let mut found = BTreeMap::new();
        for id in wanted {
            let known = lock(&self.roles.0).get(&id).filter(|(at, _)| is_fresh(at)).map(|(_, role)| role.clone());
            if let Some(known) = known {
                found.insert(id, known);
            } else if let Some(read) = self.read_role(&id).await.transpose() {
                lock(&self.roles.0).insert(id.clone(), (now, read.clone()));
                found.insert(id, read);
            }
        }
        lock(&self.roles.0).retain(|_, (at, _)| is_fresh(at));
        found
    }

    /// The role as it lives; `None` if it does not exist.
    async fn read_role(&self, id: &ObjectId) -> Result<Option<DynamicObject>, String> {
        let (plural, scope) = match id.namespace() {
            Some(_) => ("roles", Scope::Namespaced),
            None => ("clusterroles", Scope::Cluster),
        };
        let resource = ResourceKind::new(id.group(), "v1", id.kind(), plural, scope);
        match api::<DynamicObject>(&self.client, &resource, id.namespace()).get(id.name()).await {
            Ok(role) => Ok(Some(role)),
            Err(error) => {
                let refusal = Refusal::about(id, &error);
                let absent = matches!(refusal.answer(), Answer::NotFound { .. });
                if absent { Ok(None) } else { Err(refusal.words_for(id)) }
            }
        }
    }
}

/// How the kinds of a set are called, as far as is known.
pub(super) fn resources(kinds: &BTreeMap<GroupKind, Kind>) -> impl Iterator<Item = ResourceKind> + '_ {
    kinds.values().filter_map(|kind| match kind {
        Kind::Served { resource, .. } | Kind::InSet(resource) => Some(resource.clone()),
        Kind::Unavailable(_) => None,
    })
}
