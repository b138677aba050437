//! Finding children again whose record is gone or damaged.
//!
//! Objects are found by label and back-pointer, over the group-kinds noted on the parent, everywhere; where listing
//! everywhere is forbidden, in the namespaces that the ownership policy confines the parent to. The findings count only
//! if every kind could be listed. What was left in the cluster on purpose says so itself
//! ([`Manager::retain_annotation`](crate::manager::Manager::retain_annotation)); what was abandoned and still carries the
//! marks does not, and is found like any other child.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_core::DynamicObject;
use serde_json::Value;

use super::{
    Inner,
    reconcile::read_kinds,
    site::{Destination, Site},
    target::Reach,
    unite::{Found, unite},
};
use crate::{
    answer::{Answer, Refusal},
    api::{list_metadata, list_objects},
    discovery::{Crd, Resolution},
    graph::{annotations, waivers},
    inventory::{Damage, DeletionPolicy, Entry, EntryState, Inventory, Origin, Role},
    object::{GroupKind, ObjectId, ParentRef, ResourceKind, Scope, Uid},
    ownership,
};

/// Most kinds that are searched for one parent. Whoever may edit the parent may write the note, and each kind in it costs
/// several requests; no cluster serves as many.
const MOST_KINDS: usize = 1000;

impl Inner {
    /// A record made from what the cluster shows, in place of one that is gone. Returns what should be known about the
    /// search.
    ///
    /// An error says, in words, what could not be looked at: then the findings prove nothing.
    pub(super) async fn rediscover(
        &self,
        at: &Destination,
        parent: &ParentRef,
        meta: &ObjectMeta,
        inventory: &mut Inventory,
    ) -> Result<Vec<String>, String> {
        let mut found = self.search(at, parent, meta, inventory).await?;
        let notes = std::mem::take(&mut found.notes);
        unite(inventory, found, &self.rulebook.rules);
        // Which holds were taken went with the record as well.
        inventory.held.extend(at.holds.iter().cloned());
        Ok(notes)
    }

    /// Completes a damaged record: what the cluster shows, and what the unreadable parts still name.
    ///
    /// Errors as [`rediscover`](Self::rediscover) does.
    pub(super) async fn complete(
        &self,
        at: &Destination,
        parent: &ParentRef,
        meta: &ObjectMeta,
        inventory: &mut Inventory,
        damage: &[Damage],
    ) -> Result<Vec<String>, String> {
        let mut found = self.search(at, parent, meta, inventory).await?;
        for id in damage.iter().filter_map(|d| d.id.as_ref()) {
            if inventory.get(id).is_some() || found.entries.contains_key(id) {
                continue;
            }
            // Not found by its marks; it may live without them, or not at all. A look at it by name will tell.
            if let Some(resource) = self.spelling(at, &id.group_kind(), inventory).await? {
                let mut entry = Entry::intended(id.clone(), &resource);
                entry.defined_by_crd = at.is_defined(&resource).await;
                found.entries.insert(id.clone(), entry);
            }
        }
        let notes = std::mem::take(&mut found.notes);
        unite(inventory, found, &self.rulebook.rules);
        Ok(notes)
    }

    async fn search(
        &self,
        at: &Destination,
        parent: &ParentRef,
        meta: &ObjectMeta,
        known: &Inventory,
    ) -> Result<Found, String> {
        let mut kinds = self.noted_kinds(at, meta)?;
        kinds.extend(known.entries().map(|e| e.id.group_kind()));
        let mut found = Found::default();
        for kind in &kinds {
            self.search_kind(at, parent, kind, known, &mut found).await.map_err(|unsearched| unsearched.words)?;
        }
        self.interpret(at, &mut found).await;
        at.confirm().await.map_err(|hold| hold.to_string())?;
        Ok(found)
    }

    /// The kinds that the parent says it has, or had, children of, if `at` is where those are.
    pub(super) fn noted_kinds(&self, at: &Destination, meta: &ObjectMeta) -> Result<BTreeSet<GroupKind>, String> {
        self.is_the_place(at, meta)?;
        let key = self.manager.group_kinds_annotation();
        let Some(noted) = meta.annotations.as_ref().and_then(|a| a.get(&key)) else {
            return Err(format!("the parent's annotation {key} is missing, so it is not known where to look"));
        };
        let noted = read_kinds(noted);
        if noted.len() > MOST_KINDS {
            return Err(format!(
                "the parent's annotation {key} names {} kinds, more than the {MOST_KINDS} that are looked for: leave those \
                 that it has children of",
                noted.len()
            ));
        }
        let read = |text: &String| {
            let kind = text.parse();
            kind.map_err(|e| format!("the parent's annotation {key} names {text:?}, which is no kind: {e}"))
        };
        noted.iter().map(read).collect()
    }

    /// Adds the objects of a kind that carry the parent's marks.
    pub(super) async fn search_kind(
        &self,
        site: &Site,
        parent: &ParentRef,
        kind: &GroupKind,
        known: &Inventory,
        found: &mut Found,
    ) -> Result<(), Unsearched> {
        let spelling = self.spelling(site, kind, known).await;
        let Some(resource) = spelling.map_err(|words| Unsearched { words, forbidden: false })? else { return Ok(()) };
        for object in self.list_marked(site, parent, &resource, &mut found.notes).await? {
            let Ok(id) = ObjectId::from_meta(kind, &object.metadata) else { continue };
            let Some(entry) = self.marked(site, parent, &id, &resource, &object.metadata).await else { continue };
            found.entries.insert(id.clone(), entry);
            found.manifests.insert(id, object);
        }
        found.scopes.insert(kind.clone(), resource.scope);
        Ok(())
    }

    /// Reads what the objects' annotations say of their order, and the roles that rules read beside them.
    pub(super) async fn interpret(&self, site: &Site, found: &mut Found) {
        let scope = |kind: &GroupKind| found.scopes.get(kind).copied();
        let key = self.manager.waive_annotation();
        // Annotations may have been edited since they were applied.
        let unknown = |error: annotations::Error| format!("an order is not known any more: {error}");
        for (id, object) in &found.manifests {
            let Some(annotations) = &object.metadata.annotations else { continue };
            match annotations::declared(id, annotations, &scope) {
                Ok(declared) => found.declared.extend(declared),
                Err(error) => found.notes.push(unknown(error)),
            }
            match annotations.get(&key).map(|value| waivers::read(id, &key, value, &scope)) {
                Some(Ok(waived)) => found.waived.extend(waived.into_iter().map(|waiver| (id.clone(), waiver))),
                Some(Err(error)) => found.notes.push(unknown(error)),
                None => {}
            }
        }
        let context = site.context(&self.rulebook.rules, &found.manifests, &BTreeMap::new()).await;
        found.context = context.roles;
        found.notes.extend(context.notes);
    }

    /// Whether children of the parent would be found at `at`: without a record, only the parent says where they are.
    fn is_the_place(&self, at: &Destination, meta: &ObjectMeta) -> Result<(), String> {
        let key = self.manager.cluster_annotation();
        match self.noted_cluster(meta) {
            Some(noted) if noted != at.cluster.to_string() => Err(format!(
                "the parent's annotation {key} says that its children are in cluster {noted}, but {} answers",
                at.cluster
            )),
            None if at.reach == Reach::Remote => {
                Err(format!("the parent's annotation {key} is missing, so it is not known in which cluster to look"))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn noted_cluster(&self, meta: &ObjectMeta) -> Option<String> {
        meta.annotations.as_ref()?.get(&self.manager.cluster_annotation()).cloned()
    }

    /// The entry of a live object, if it carries the parent's marks.
    pub(super) async fn marked(
        &self,
        site: &Site,
        parent: &ParentRef,
        id: &ObjectId,
        resource: &ResourceKind,
        meta: &ObjectMeta,
    ) -> Option<Entry> {
        if !ownership::judge(&self.manager, parent, id, meta).is_ours() {
            return None;
        }
        let mut entry = Entry::intended(id.clone(), resource);
        entry.uid = Uid::of(meta);
        entry.state = EntryState::Recorded;
        entry.defined_by_crd = site.is_defined(resource).await;
        if self.rulebook.proxies.as_ref().is_some_and(|p| p.is_proxy(id)) {
            entry.role = Role::Proxy;
        }
        let retain = meta.annotations.as_ref().and_then(|all| all.get(&self.manager.retain_annotation()));
        match retain.map(String::as_str) {
            None => {}
            Some("adopted") => (entry.origin, entry.deletion) = (Origin::Adopted, DeletionPolicy::Keep),
            Some(_) => entry.deletion = DeletionPolicy::Keep,
        }
        Some(entry)
    }

    /// How requests for a kind are spelled; `None` if it is proven that nothing of the kind exists.
    async fn spelling(&self, site: &Site, kind: &GroupKind, known: &Inventory) -> Result<Option<ResourceKind>, String> {
        match site.resolver.refresh(kind).await {
            Resolution::Served(resource) => return Ok(Some(resource)),
            Resolution::Unavailable { reason } => return Err(format!("{kind} cannot be looked at: {reason}")),
            Resolution::NotServed => {}
        }
        let recorded = known.entries().find(|e| e.id.is(&kind.group, &kind.kind)).map(Entry::resource);
        let proxies = self.rulebook.proxies.iter().flat_map(|p| [p.namespaced(), p.cluster()]);
        let resource = recorded.or_else(|| proxies.into_iter().find(|r| r.group_kind() == *kind).cloned());
        let definition = match resource {
            Some(resource) => site.resolver.crd_of(&resource).await,
            None => site.resolver.crd_of_kind(kind).await,
        };
        match definition {
            Crd::NotFound => Ok(None),
            Crd::Present(_) => Err(format!("{kind} is defined, but not served at present")),
            Crd::Unknown { reason } | Crd::Forbidden { reason } => {
                Err(format!("{kind} is not served, and it is not proven that nothing of it exists: {reason}"))
            }
        }
    }

    /// All objects of a kind that carry the parent's label, with as much of their content as rules may read.
    async fn list_marked(
        &self,
        site: &Site,
        parent: &ParentRef,
        resource: &ResourceKind,
        notes: &mut Vec<String>,
    ) -> Result<Vec<DynamicObject>, Unsearched> {
        let kind = resource.group_kind();
        let words = |refusal: Refusal| Unsearched {
            words: format!("{kind} cannot be listed: {refusal}"),
            forbidden: matches!(refusal.answer(), Answer::Forbidden),
        };
        let refusal = match self.list_labelled(site, parent, resource, None).await {
            Ok(found) => return Ok(found),
            Err(refusal) => refusal,
        };
        let confined = (self.policy)(parent).confines(parent).filter(|_| resource.scope == Scope::Namespaced);
        let (Answer::Forbidden, Some(namespaces)) = (refusal.answer(), confined) else { return Err(words(refusal)) };
        let mut found = Vec::new();
        for namespace in &namespaces {
            found.extend(self.list_labelled(site, parent, resource, Some(namespace)).await.map_err(words)?);
        }
        let places = namespaces.into_iter().collect::<Vec<_>>().join(", ");
        notes.push(format!("{kind} was looked for in {places} only, because listing it everywhere is forbidden"));
        Ok(found)
    }

    async fn list_labelled(
        &self,
        site: &Site,
        parent: &ParentRef,
        resource: &ResourceKind,
        namespace: Option<&str>,
    ) -> Result<Vec<DynamicObject>, Refusal> {
        let selector = format!("{}={}", self.manager.parent_label(), parent.uid);
        if self.rulebook.rules.iter().len() > 0 && !is_opaque(resource) {
            return list_objects(&site.client, resource, namespace, Some(&selector)).await;
        }
        let found = list_metadata(&site.client, resource, namespace, Some(&selector)).await?;
        let bare = |metadata| DynamicObject { types: None, metadata, data: Value::Null };
        Ok(found.into_iter().map(bare).collect())
    }
}

/// A kind that could not be searched.
pub(super) struct Unsearched {
    pub(super) words: String,
    /// Whether the right to list it is missing.
    pub(super) forbidden: bool,
}

/// Kinds whose content is nobody's business.
fn is_opaque(resource: &ResourceKind) -> bool {
    resource.group.is_empty() && matches!(resource.kind.as_str(), "ConfigMap" | "Secret")
}
