//! Proxies that are lost while their parent lives: deleted by hand, with their namespace, or with their definition.
//!
//! A lost proxy is replaced under another name ([`intent`](super::intent) picks it) and its children are re-parented by the
//! applies that follow. This module finds out which proxies are lost, and takes the last references off, so that the
//! finalizer of a lost proxy comes off only after nothing refers to it: [`tie`] decides, the rest asks and sends.

use std::collections::{BTreeMap, BTreeSet, btree_map::Entry as BTreeEntry};

use futures::future::join_all;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube_client::api::Patch;

use super::{
    Inner,
    apply::Applied,
    intent::Intent,
    site::{Destination, Site},
};
use crate::{
    answer::Refusal,
    api::{get_metadata, patch_metadata, patched_by},
    discovery::Crd,
    inventory::{Entry, Inventory, Role},
    lock::lock,
    object::{GroupKind, ObjectId, ParentRef, ResourceKind, Scope, Uid, group_of},
    ownership::{
        self,
        proxy::{Place, proxy_generation},
    },
    teardown::Live,
};

/// What was found out about a parent's proxies before anything is decided.
#[derive(Debug, Default)]
pub(super) struct Survey {
    /// Proxies that are being deleted although the parent lives.
    pub(super) lost: BTreeMap<ObjectId, Live>,
    /// Where no proxies can be had, because their definition is being deleted or gone.
    pub(super) suspended: BTreeSet<Scope>,
    /// What could not be found out, in words.
    unknown: Vec<String>,
}

impl Survey {
    /// What the author should hear of it.
    pub(super) fn notes(&self) -> Vec<String> {
        let lost = self.lost.iter().map(|(id, live)| {
            format!(
                "{id} is being deleted ({}) although its parent lives; it is released once nothing refers to it",
                cascade(&live.finalizers)
            )
        });
        let suspended = self.suspended.iter().map(|scope| {
            let scope = match scope {
                Scope::Cluster => "cluster-scoped",
                Scope::Namespaced => "namespaced",
            };
            format!(
                "the definition of the {scope} proxies is being deleted or gone: until it is back, the children there are \
                 held by inventory and finalizer alone"
            )
        });
        lost.chain(suspended).chain(self.unknown.iter().cloned()).collect()
    }
}

/// How a terminating object was deleted, as far as its finalizers still tell.
fn cascade(finalizers: &[String]) -> &'static str {
    let has = |name: &str| finalizers.iter().any(|f| f == name);
    if has("foregroundDeletion") {
        "in the foreground, which deletes what refers to it at once"
    } else if has("orphan") {
        "orphaning what refers to it"
    } else {
        "in the background, or with its cascade done"
    }
}

/// What still ties a child to lost proxies.
#[derive(Debug, PartialEq, Eq)]
enum Tie {
    /// Nothing.
    Free,
    /// References that have to come off.
    Cut(BTreeSet<Uid>),
    /// It will be gone soon, or is to be seen gone first.
    Holds,
}

/// What ties a live object, for which `entry` is on record, to the proxies in `retired`.
///
/// In a namespace that is being terminated nothing can take the place of a proxy, so it stays until everything of
/// ours there is seen gone.
fn tie(entry: &Entry, ours: bool, meta: &ObjectMeta, retired: &BTreeSet<&ObjectId>, closing: bool) -> Tie {
    let names = |reference: &&OwnerReference| {
        let group = group_of(&reference.api_version);
        retired.iter().any(|id| id.is(group, &reference.kind) && id.name() == reference.name)
    };
    let references: BTreeSet<_> =
        meta.owner_references.iter().flatten().filter(names).filter_map(|r| Uid::new(&r.uid).ok()).collect();
    let recorded = entry.uid.is_some() && entry.uid == Uid::of(meta);
    let alive = closing && (ours || recorded) && !entry.is_let_go();
    if alive || meta.deletion_timestamp.is_some() && !references.is_empty() {
        Tie::Holds
    } else if references.is_empty() {
        Tie::Free
    } else {
        Tie::Cut(references)
    }
}

impl Inner {
    /// Looks for proxies on record that are being deleted, and whether proxies can be had at all.
    ///
    /// Asks only for what the watches do not show, and for a definition only where something points to its end.
    pub(super) async fn survey(
        &self,
        site: &Destination,
        inventory: &Inventory,
        seen: &BTreeMap<ObjectId, Live>,
    ) -> Survey {
        let mut survey = Survey::default();
        let (shown, hidden): (Vec<_>, Vec<_>) =
            inventory.entries().filter(|e| e.role == Role::Proxy).partition(|e| seen.contains_key(&e.id));
        let shown = shown.into_iter().filter_map(|e| Some((e.id.clone(), seen.get(&e.id)?.clone())));
        let read = self
            .read_all(site, &hidden)
            .await
            .into_iter()
            .filter_map(|(entry, _, read)| Some((entry.id.clone(), Live::of(&read.ok()?, Some(&self.manager))?)));
        survey.lost = shown.chain(read).filter(|(_, live)| live.is_terminating()).collect();
        let Some(kinds) = &self.rulebook_at(site).proxies else { return survey };

        let mut suspects = lock(&site.suspended).clone();
        suspects.extend(survey.lost.keys().map(|id| Place::of(id).scope()));
        for scope in suspects {
            let kind = if scope == Scope::Cluster { kinds.cluster() } else { kinds.namespaced() };
            match site.resolver.crd_of(kind).await {
                Crd::Present(meta) if meta.deletion_timestamp.is_none() => {}
                Crd::Present(_) | Crd::NotFound => drop(survey.suspended.insert(scope)),
                Crd::Unknown { reason } | Crd::Forbidden { reason } => survey
                    .unknown
                    .push(format!("whether proxies of kind {} can be had is unknown: {reason}", kind.group_kind())),
            }
        }
        lock(&site.suspended).clone_from(&survey.suspended);
        survey
    }

    /// Takes the references to retired proxies off every child that this pass did not apply. Returns the children that
    /// nothing ties to those proxies any more.
    pub(super) async fn loosen(
        &self,
        site: &Site,
        parent: &ParentRef,
        intent: &Intent,
        applied: &Applied,
    ) -> BTreeSet<ObjectId> {
        // By the names that this parent's proxies have and nothing else: a record can be made to call anything a proxy.
        let named = |id: &&ObjectId| proxy_generation(&self.manager, &parent.id, id.name()).is_some();
        let retired: BTreeSet<_> = intent.retired.iter().filter(named).collect();
        let ends: BTreeSet<_> = intent.retired.iter().map(ObjectId::stable_id).collect();
        let tied: Vec<_> = intent
            .inventory
            .entries()
            .filter(|e| !applied.live.contains_key(&e.id) && e.edges.iter().any(|edge| ends.contains(&edge.to)))
            .filter(|e| e.role == Role::Child)
            .collect();

        let mut free = BTreeSet::new();
        for (entry, resource, read) in self.read_all(site, &tied).await {
            let id = &entry.id;
            let loose = match read {
                Ok(meta) => {
                    let ours = ownership::judge(&self.manager, parent, id, &meta).is_ours();
                    let closing = id.namespace().is_some_and(|n| applied.closing.contains(n));
                    match tie(entry, ours, &meta, &retired, closing) {
                        Tie::Free => true,
                        Tie::Holds => false,
                        Tie::Cut(owners) => self.cut(site, &resource, id, &meta, &owners).await,
                    }
                }
                Err(refusal) => refusal.answer().names(&resource, id.name()),
            };
            if loose {
                free.insert(id.clone());
            }
        }
        free
    }

    /// Whether the references came off.
    async fn cut(
        &self,
        site: &Site,
        resource: &ResourceKind,
        id: &ObjectId,
        meta: &ObjectMeta,
        owners: &BTreeSet<Uid>,
    ) -> bool {
        let Ok(patch) = ownership::strip_patch(id, meta, owners) else { return false };
        let params = patched_by(Some(self.manager.field_manager()));
        let patched = patch_metadata(&site.client, resource, id, &Patch::Json(patch), &params).await;
        if let Err(refusal) = &patched {
            tracing::debug!(%id, words = refusal.words_for(id), "references to a lost proxy stay for now");
        }
        patched.is_ok()
    }

    /// Reads the metadata of what is on record, a bounded number at once.
    async fn read_all<'a>(
        &self,
        site: &Site,
        entries: &[&'a Entry],
    ) -> Vec<(&'a Entry, ResourceKind, Result<ObjectMeta, Refusal>)> {
        let mut kinds: BTreeMap<GroupKind, ResourceKind> = BTreeMap::new();
        for entry in entries {
            let kind = entry.id.group_kind();
            if let BTreeEntry::Vacant(slot) = kinds.entry(kind) {
                let resource = site.served(slot.key()).await;
                slot.insert(resource.unwrap_or_else(|| entry.resource()));
            }
        }
        let mut all = Vec::with_capacity(entries.len());
        for chunk in entries.chunks(self.concurrency) {
            let reads = chunk.iter().map(|entry| {
                let resource = kinds.get(&entry.id.group_kind()).cloned().unwrap_or_else(|| entry.resource());
                async move {
                    let read = get_metadata(&site.client, &resource, &entry.id).await;
                    (*entry, resource, read)
                }
            });
            all.extend(join_all(reads).await);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

    use super::*;
    use crate::{
        inventory::EntryState,
        ownership::testing::{id, uid},
    };

    fn reference(kind: &str, name: &str, uid: &str) -> OwnerReference {
        OwnerReference {
            api_version: "faros.pusher.com/v1".into(),
            kind: kind.into(),
            name: name.into(),
            uid: uid.into(),
            ..OwnerReference::default()
        }
    }

    fn child(references: Vec<OwnerReference>, terminating: bool) -> ObjectMeta {
        ObjectMeta {
            uid: Some("c".into()),
            owner_references: Some(references),
            deletion_timestamp: terminating.then_some(Time(Timestamp::UNIX_EPOCH)),
            ..ObjectMeta::default()
        }
    }

    fn judged(meta: &ObjectMeta, ours: bool, closing: bool) -> Tie {
        let kind = ResourceKind::new("", "v1", "ConfigMap", "configmaps", Scope::Namespaced);
        let mut entry = Entry::intended(id("ConfigMap b/x"), &kind);
        entry.uid = Some(uid("recorded"));
        entry.state = EntryState::Recorded;
        tie(&entry, ours, meta, &BTreeSet::from([&id("GitTrackOwner.faros.pusher.com b/p")]), closing)
    }

    #[test]
    fn only_references_to_the_lost_proxy_are_cut() {
        let foreign = reference("GitTrackOwner", "other", "f");
        let next = reference("GitTrackOwner", "p-1", "p-1");
        let meta = child(vec![foreign.clone(), reference("GitTrackOwner", "p", "p-0"), next.clone()], false);
        assert_eq!(judged(&meta, true, false), Tie::Cut(BTreeSet::from([uid("p-0")])));
        // An earlier incarnation of it, met by name only.
        let meta = child(vec![foreign.clone(), reference("GitTrackOwner", "p", "earlier")], false);
        assert_eq!(judged(&meta, true, false), Tie::Cut(BTreeSet::from([uid("earlier")])));
        assert_eq!(judged(&child(vec![foreign, next], false), true, false), Tie::Free);
    }

    #[test]
    fn in_a_closing_namespace_the_proxy_waits_until_everything_of_ours_is_gone() {
        assert_eq!(judged(&child(vec![], false), true, true), Tie::Holds);
        assert_eq!(judged(&child(vec![], false), false, true), Tie::Free, "somebody else's by that name");
        let kept = child(vec![reference("GitTrackOwner", "p", "p-0")], true);
        assert_eq!(judged(&kept, true, false), Tie::Holds, "terminating: it goes by itself");
    }
}
