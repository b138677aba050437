//! Reads what is in a Namespace or of a defined kind, directly before that is deleted. Thin: what the content means is
//! decided elsewhere.

use std::{collections::BTreeMap, collections::BTreeSet};

use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use k8s_openapi::{
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube_client::{Api, Client};

use super::{
    in_use::{Container, Inside},
    live::Live,
};
use crate::{
    answer::{Answer, Refusal},
    api::{PAGE, find_metadata, first_page, metadata_api, pages},
    discovery::{Crd, Resolution, Resolver},
    manager::Manager,
    object::{GroupKind, ObjectId, ResourceKind, Scope, Uid, group_of},
    ownership::BackPointer,
};

/// Most pages of one list: more content than this is not judged object by object.
const PAGES: usize = 40;
/// Lists made at once for one container.
const AT_ONCE: usize = 8;
/// Longest chain of controllers that is followed from a Pod to an object of the set.
const CHAIN: usize = 8;

/// Where to look inside a container.
#[derive(Clone, Debug, Default)]
pub(crate) struct Insight {
    /// Kinds whose objects may carry the manager's marks, as they were served when last seen.
    pub(crate) kinds: Vec<ResourceKind>,
    /// The kind of the parents, if they live in the same cluster.
    pub(crate) parents: Option<ResourceKind>,
    /// Further kinds whose objects use a Namespace.
    pub(crate) scan: BTreeSet<GroupKind>,
    /// Objects that are known to be of the set: what they control is theirs. Nothing that only a record says.
    pub(crate) members: BTreeSet<Uid>,
}

/// Which objects of a list count.
#[derive(Clone, Copy, Debug)]
enum Counts {
    /// All.
    All,
    /// Those with a back-pointer that names them.
    Marked,
    /// Those that a finalizer of the manager holds.
    Held,
    /// Those that no object of the set controls, directly or through others.
    Untraced,
}

pub(super) struct Reader<'a> {
    pub(super) client: &'a Client,
    pub(super) resolver: &'a Resolver,
    pub(super) manager: Option<&'a Manager>,
    pub(super) insight: &'a Insight,
    /// Objects of the set that were seen to be of it, beside those in `insight`.
    pub(super) members: &'a BTreeSet<Uid>,
}

impl Reader<'_> {
    /// What is in the container `id`, as far as it may be read. `members` are objects of the set that are expected in it and
    /// were not seen yet.
    pub(super) async fn look_into(&self, id: &ObjectId, members: Vec<(ObjectId, ResourceKind)>) -> Inside {
        let content = match Container::of(id) {
            Some(Container::Namespace(name)) => self.namespace(name).await,
            Some(Container::Definition) => self.definition(id).await,
            None => Inside::default(),
        };
        let mut inside = content;
        let seen: BTreeSet<ObjectId> = inside.found.iter().map(|(id, _)| id.clone()).collect();
        let unseen = members.into_iter().filter(|(id, _)| !seen.contains(id));
        let reads: Vec<_> = unseen.map(|(id, resource)| self.member(id, resource).boxed()).collect();
        let mut reads = stream::iter(reads).buffer_unordered(AT_ONCE);
        while let Some(member) = reads.next().await {
            inside.extend(member);
        }
        inside
    }

    fn is_member(&self, uid: &Uid) -> bool {
        self.insight.members.contains(uid) || self.members.contains(uid)
    }

    async fn member(&self, id: ObjectId, resource: ResourceKind) -> Inside {
        match find_metadata(self.client, &resource, &id).await {
            Ok(meta) => Inside {
                found: meta.and_then(|meta| Live::of(&meta, self.manager)).map(|live| (id, live)).into_iter().collect(),
                unread: None,
            },
            Err(refusal) => unread(format!("{id}: {}", refusal.words_for(&id))),
        }
    }

    async fn namespace(&self, name: &str) -> Inside {
        let marked = self.manager.map(Manager::parent_label);
        let mut lists = Vec::new();
        if let Some(label) = &marked {
            let kinds = self.insight.kinds.iter();
            lists.extend(kinds.map(|kind| self.list(kind.clone(), Some(name), Some(label), Counts::Marked).boxed()));
            let parents = self.insight.parents.iter().filter(|kind| kind.scope == Scope::Namespaced);
            lists.extend(parents.map(|kind| self.list(kind.clone(), Some(name), None, Counts::Held).boxed()));
        }
        for (kind, plural) in [("Pod", "pods"), ("PersistentVolumeClaim", "persistentvolumeclaims")] {
            let kind = ResourceKind::new("", "v1", kind, plural, Scope::Namespaced);
            lists.push(self.list(kind, Some(name), None, Counts::Untraced).boxed());
        }
        lists.extend(self.insight.scan.iter().map(|kind| self.scan(kind, name).boxed()));
        let mut lists = stream::iter(lists).buffer_unordered(AT_ONCE);
        let mut inside = Inside::default();
        while let Some(list) = lists.next().await {
            inside.extend(list);
        }
        inside
    }

    async fn scan(&self, kind: &GroupKind, namespace: &str) -> Inside {
        match self.resolver.resolve(kind).await {
            Resolution::Served(resource) => self.list(resource, Some(namespace), None, Counts::Untraced).await,
            Resolution::NotServed => unread(format!("{kind} is not served at present")),
            Resolution::Unavailable { reason } => unread(format!("{kind}: {reason}")),
        }
    }

    /// The objects of a defined kind.
    async fn definition(&self, id: &ObjectId) -> Inside {
        let read = Api::<CustomResourceDefinition>::all(self.client.clone()).get_opt(id.name()).await;
        let definition = match read {
            Ok(Some(definition)) => definition,
            // Gone in the meantime, as the DELETE will say.
            Ok(None) => return Inside::default(),
            Err(error) => {
                let refusal = Refusal::about(id, &error);
                return unread(format!("whether its kind is in use cannot be told: {}", refusal.words_for(id)));
            }
        };
        let conditions = definition.status.iter().flat_map(|status| status.conditions.iter().flatten());
        if !conditions.into_iter().any(|c| c.type_ == "Established" && c.status == "True") {
            // Nothing was ever served, so there is nothing.
            return Inside::default();
        }
        let spec = definition.spec;
        let Some(version) = spec.versions.iter().find(|version| version.served) else {
            return unread(format!("no version of {} is served, so its objects cannot be listed", id.name()));
        };
        let scope = if spec.scope == "Namespaced" { Scope::Namespaced } else { Scope::Cluster };
        let kind = ResourceKind::new(&spec.group, &version.name, &spec.names.kind, &spec.names.plural, scope);
        self.list(kind, None, None, Counts::All).await
    }

    /// One list, until it ends or what counts was found.
    async fn list(
        &self,
        kind: ResourceKind,
        namespace: Option<&str>,
        selector: Option<&str>,
        counts: Counts,
    ) -> Inside {
        let read = self.pages(&kind, namespace, selector, counts).await;
        let refusal = match read {
            Ok(inside) => return inside,
            Err(refusal) => refusal,
        };
        let gk = kind.group_kind();
        let name = kind.group_resource();
        match refusal.answer() {
            Answer::NoRoute => match self.resolver.refresh(&gk).await {
                Resolution::Served(other) if other.version != kind.version => {
                    let again = self.pages(&other, namespace, selector, counts).await;
                    again.unwrap_or_else(|refusal| unread(format!("list {name}: {refusal}")))
                }
                _ => match self.resolver.crd_of(&kind).await {
                    Crd::NotFound => Inside::default(),
                    _ => unread(format!("list {name}: {gk} is not served at present")),
                },
            },
            Answer::Forbidden => {
                let place = namespace.map(|n| format!(" in namespace {n:?}")).unwrap_or_default();
                unread(format!("the rule `list {name}`{place} is missing ({refusal})"))
            }
            _ => unread(format!("list {name}: {refusal}")),
        }
    }

    async fn pages(
        &self,
        kind: &ResourceKind,
        namespace: Option<&str>,
        selector: Option<&str>,
        counts: Counts,
    ) -> Result<Inside, Refusal> {
        let mut pages = pages(metadata_api(self.client, kind, namespace), first_page(selector)).take(PAGES);
        let (gk, mut inside, mut owners) = (kind.group_kind(), Inside::default(), BTreeMap::new());
        while let Some(page) = pages.try_next().await.map_err(|e| Refusal::of(&e))? {
            let mut foreign = false;
            for item in &page.items {
                let meta = &item.metadata;
                let (Ok(id), Some(live)) = (ObjectId::from_meta(&gk, meta), Live::of(meta, self.manager)) else {
                    continue;
                };
                match self.counts(counts, &id, &live, meta, &mut owners).await {
                    Ok(false) => continue,
                    Ok(true) => foreign |= !self.is_member(&live.uid),
                    Err(words) => inside.extend(unread(words)),
                }
                inside.found.push((id, live));
            }
            let more = page.metadata.continue_.is_some_and(|token| !token.is_empty());
            if foreign || !more {
                return Ok(inside);
            }
        }
        inside.extend(unread(format!("there are more than {} objects of kind {gk}", PAGES * PAGE as usize)));
        Ok(inside)
    }

    async fn counts(
        &self,
        counts: Counts,
        id: &ObjectId,
        live: &Live,
        meta: &ObjectMeta,
        owners: &mut BTreeMap<Uid, bool>,
    ) -> Result<bool, String> {
        match counts {
            Counts::All => Ok(true),
            Counts::Marked => {
                let pointer = live.back_pointer.as_deref().and_then(|text| BackPointer::decode(text).ok());
                Ok(pointer.is_some_and(|pointer| pointer.object() == id))
            }
            Counts::Held => {
                let held = |manager: &Manager| {
                    [manager.finalizer(), manager.applied_finalizer()].iter().any(|f| live.finalizers.contains(f))
                };
                Ok(self.manager.is_some_and(held))
            }
            Counts::Untraced if comes_with_every_namespace(id) || self.is_member(&live.uid) => Ok(false),
            Counts::Untraced => self.is_controlled(meta, owners).await.map(|controlled| !controlled),
        }
    }

    /// Whether the chain of controllers leads to an object of the set.
    async fn is_controlled(&self, meta: &ObjectMeta, known: &mut BTreeMap<Uid, bool>) -> Result<bool, String> {
        let mut chain = Vec::new();
        let mut next = controller(meta).cloned();
        let mut found = false;
        while let Some(reference) = next.take() {
            let Ok(uid) = Uid::new(&reference.uid) else { break };
            if self.is_member(&uid) {
                found = true;
                break;
            }
            if let Some(verdict) = known.get(&uid) {
                found = *verdict;
                break;
            }
            if chain.len() == CHAIN {
                break;
            }
            next = self.owner(&reference, &uid, meta.namespace.as_deref()).await?.and_then(|m| controller(&m).cloned());
            chain.push(uid);
        }
        known.extend(chain.into_iter().map(|uid| (uid, found)));
        Ok(found)
    }

    /// The metadata of a controller; `None` if it is gone or another incarnation.
    async fn owner(
        &self,
        reference: &OwnerReference,
        uid: &Uid,
        namespace: Option<&str>,
    ) -> Result<Option<ObjectMeta>, String> {
        let group = group_of(&reference.api_version);
        let Ok(gk) = GroupKind::new(group, &reference.kind) else { return Ok(None) };
        let Resolution::Served(resource) = self.resolver.resolve(&gk).await else {
            // Whoever controls it cannot be looked at; it is nobody's of the set as far as can be seen.
            return Ok(None);
        };
        let namespace = namespace.filter(|_| resource.scope == Scope::Namespaced);
        let Ok(id) = ObjectId::new(group, &reference.kind, namespace, &reference.name) else { return Ok(None) };
        match find_metadata(self.client, &resource, &id).await {
            Ok(meta) => Ok(meta.filter(|meta| Uid::of(meta).as_ref() == Some(uid))),
            Err(refusal) if matches!(refusal.answer(), Answer::Forbidden) => {
                let name = resource.group_resource();
                Err(format!("the rule `get {name}` is missing ({})", refusal.words_for(&id)))
            }
            Err(refusal) => Err(format!("{id}: {}", refusal.words_for(&id))),
        }
    }
}

fn unread(words: impl Into<String>) -> Inside {
    Inside { found: Vec::new(), unread: Some(words.into()) }
}

fn controller(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references.iter().flatten().find(|reference| reference.controller == Some(true))
}

/// What Kubernetes itself puts into every namespace.
fn comes_with_every_namespace(id: &ObjectId) -> bool {
    id.is("", "ConfigMap") && id.name() == "kube-root-ca.crt" || id.is("", "ServiceAccount") && id.name() == "default"
}
