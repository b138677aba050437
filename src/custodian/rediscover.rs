//! Finding children again whose record is gone.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_client::api::ListParams;

use super::{Inner, reconcile::read_kinds};
use crate::{
    answer::Refusal,
    discovery::{Crd, Resolution},
    inventory::{Edge, Entry, EntryState, Inventory, Requirement, Role},
    object::{GroupKind, ObjectId, ParentRef, Uid},
    ownership::{
        self,
        proxy::{Place, is_never_owned},
    },
    teardown::{metadata_api, policy},
};

/// Objects a page.
const PAGE: u32 = 500;

impl Inner {
    /// Fills `inventory` with every object that carries the parent's marks, over the group-kinds noted on the parent.
    ///
    /// An error says, in words, what could not be looked at: then the findings prove nothing. Declared edges are lost with
    /// the record; what the rules infer from identities alone is found again.
    pub(super) async fn rediscover(
        &self,
        parent: &ParentRef,
        meta: &ObjectMeta,
        inventory: &mut Inventory,
    ) -> Result<(), String> {
        let key = self.manager.group_kinds_annotation();
        let Some(noted) = meta.annotations.as_ref().and_then(|a| a.get(&key)) else {
            return Err(format!("the parent's annotation {key} is missing, so it is not known where to look"));
        };
        for text in read_kinds(noted) {
            let kind: GroupKind = text
                .parse()
                .map_err(|e| format!("the parent's annotation {key} names {text:?}, which is no kind: {e}"))?;
            self.rediscover_kind(parent, &kind, inventory).await?;
        }
        infer_edges(inventory);
        Ok(())
    }

    async fn rediscover_kind(
        &self,
        parent: &ParentRef,
        kind: &GroupKind,
        inventory: &mut Inventory,
    ) -> Result<(), String> {
        let resource = match self.resolver.refresh(kind).await {
            Resolution::Served(resource) => resource,
            Resolution::NotServed => return Err(format!("{kind} is not served at present")),
            Resolution::Unavailable { reason } => return Err(format!("{kind} cannot be looked at: {reason}")),
        };
        let defined_by_crd = matches!(self.resolver.crd_of(&resource).await, Crd::Present(_));
        let api = metadata_api(&self.client, &resource, None);
        let selector = format!("{}={}", self.manager.parent_label(), parent.uid);
        let mut params = ListParams::default().labels(&selector).limit(PAGE);
        let mut seen = BTreeSet::new();
        loop {
            let page = api.list(&params).await.map_err(|e| format!("{kind} cannot be listed: {}", Refusal::of(&e)))?;
            for object in page.items {
                let Ok(id) = ObjectId::from_meta(kind, &object.metadata) else { continue };
                let ours = ownership::judge(&self.manager, parent, &id, &object.metadata).is_ours();
                if !ours || !seen.insert(id.clone()) {
                    continue;
                }
                let mut entry = Entry::intended(id.clone(), &resource);
                entry.uid = Uid::of(&object.metadata);
                entry.state = EntryState::Recorded;
                entry.defined_by_crd = defined_by_crd;
                if self.rulebook.proxies.as_ref().is_some_and(|p| p.is_proxy(&id)) {
                    entry.role = Role::Proxy;
                }
                inventory.insert(entry);
            }
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => return Ok(()),
            }
        }
    }
}

/// The edges that identities alone show: an object goes before its Namespace, before the definition of its kind, and before
/// the proxy of its place.
pub(super) fn infer_edges(inventory: &mut Inventory) {
    let present: BTreeSet<ObjectId> = inventory.entries().map(|e| e.id.clone()).collect();
    let proxies: Vec<ObjectId> = inventory.entries().filter(|e| e.role == Role::Proxy).map(|e| e.id.clone()).collect();
    for entry in inventory.entries_mut() {
        let namespace = entry.id.namespace().and_then(|n| ObjectId::new("", "Namespace", None, n).ok());
        let definition = policy::definition_of(&entry.plural, entry.id.group());
        let place = Place::of(&entry.id);
        let owned = entry.role == Role::Child && !(place == Place::Cluster && is_never_owned(&entry.id));
        let proxies = proxies.iter().filter(|p| owned && Place::of(p) == place).cloned();
        let needed = [namespace, definition].into_iter().flatten().chain(proxies);
        let edges = needed
            .filter(|id| *id != entry.id && present.contains(id))
            .map(|id| Edge::new(id.stable_id(), Requirement::Required { declared_by: "rediscovery".into() }));
        entry.edges.extend(edges.collect::<Vec<_>>());
    }
}
