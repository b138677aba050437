//! Proxies whose parents are gone: reported, and removed where somebody says so.

use std::{collections::BTreeSet, fmt};

use futures::TryStreamExt;
use kube_client::api::{DynamicObject, Patch};
use kube_core::Resource;
use serde::de::DeserializeOwned;

use super::{Behind, Finding, Left, Part, Run, Scan, Stage, Uninstalled, scan::Existence, traces::Parents};
use crate::{
    answer::{Answer, Refusal},
    api::{api, delete, finalizer_off, first_page, pages, patch_metadata, patched_by},
    custodian::{Custodian, Error, Inner, site::Site},
    inventory::Loaded,
    object::{LiveRef, ObjectId, ParentRef, ResourceKind, Uid},
    ownership::{BackPointer, proxy::ProxySpec},
};

/// How often a proxy is looked at while somebody else writes to it.
const ROUNDS: usize = 5;

/// A proxy owner, and whether its parent lives.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeftProxy {
    /// Which proxy.
    pub proxy: LiveRef,
    /// The parent that it stands in for.
    pub parent: LiveRef,
    /// Whether that lives, read live in the cluster that the proxy names as its parent's home.
    pub behind: Behind,
}

impl fmt::Display for LeftProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} stands in for {}: {}", self.proxy.id, self.parent, self.behind)
    }
}

/// What a proxy that was read is.
struct Read {
    object: DynamicObject,
    parent: LiveRef,
    at_home: bool,
}

impl<K> Custodian<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + fmt::Debug + Send + Sync + 'static,
{
    /// Lists the manager's proxies whose parent does not live, or may not. Changes nothing.
    ///
    /// Proxies of parents of all kinds are listed. Of a parent whose home is another cluster than that of the custodian's
    /// own client nothing can be told.
    ///
    /// # Errors
    /// [`Error::ParentUnreadable`] if the proxies cannot be listed, [`Error::Cluster`] if the cluster cannot be identified.
    pub async fn leftover_proxies(&self) -> Result<Vec<LeftProxy>, Error> {
        let (inner, mut left) = (&self.inner, Vec::new());
        let Some(kinds) = &inner.rulebook.proxies else { return Ok(left) };
        for kind in [kinds.namespaced(), kinds.cluster()] {
            let site = &inner.home;
            let unreadable = |e| Error::ParentUnreadable { words: Refusal::of(&e).to_string() };
            let mut pages = pages(api::<DynamicObject>(&site.client, kind, None), first_page(None));
            while let Some(page) = pages.try_next().await.map_err(unreadable)? {
                for object in page.items {
                    let Ok(id) = ObjectId::from_meta(&kind.group_kind(), &object.metadata) else { continue };
                    let Some(uid) = Uid::of(&object.metadata) else { continue };
                    let Ok(read) = inner.read_proxy(site, &id, object).await else { continue };
                    let behind = inner.behind_proxy(site, &read).await;
                    if !matches!(behind, Behind::Lives(_)) {
                        left.push(LeftProxy { proxy: LiveRef::new(id, uid), parent: read.parent, behind });
                    }
                }
            }
        }
        left.sort_by(|a, b| a.proxy.cmp(&b.proxy));
        Ok(left)
    }

    /// Deletes the named proxies whose parents are gone. Returns what was left, and why.
    ///
    /// # Guarantees
    /// A proxy is deleted only if this manager made it for itself (spec and back-pointer agree), its parent, read live in
    /// its home cluster, is proven gone, and no record of that parent speaks of objects, which would go in order. The
    /// DELETE names UID and state, and its propagation is Background.
    ///
    /// # Caveats
    /// The garbage collector then takes what refers to the proxy and has no other owner, in no order. To keep it, take
    /// the references off first, or release instead. Of a proxy that somebody deleted in the foreground the dependents
    /// are gone already, and of one deleted with Orphan the references; for both this only takes the manager's finalizer
    /// off.
    ///
    /// # Errors
    /// [`Error::Cluster`] if the cluster cannot be identified.
    pub async fn delete_proxies(&self, named: impl IntoIterator<Item = LiveRef>) -> Result<Vec<Left>, Error> {
        let named: BTreeSet<_> = named.into_iter().collect();
        let mut left = Vec::new();
        for proxy in named {
            if let Err(words) = self.inner.delete_proxy(&self.inner.home, &proxy, &BTreeSet::new()).await {
                left.push(Left::new(Stage::Proxies, &proxy.id, words));
            }
        }
        Ok(left)
    }
}

impl Inner {
    /// Reads what a proxy says; an error if it is not one that this manager made.
    async fn read_proxy(&self, site: &Site, id: &ObjectId, object: DynamicObject) -> Result<Read, String> {
        let spec = ProxySpec::read(&object).map_err(|error| error.to_string())?;
        if spec.manager != self.manager.as_str() {
            return Err(format!("it is a proxy of manager {}", spec.manager));
        }
        let parent = spec.parent.id().map_err(|error| error.to_string())?;
        let parent = LiveRef::new(parent, spec.parent.uid);
        let annotation =
            object.metadata.annotations.as_ref().and_then(|a| a.get(&self.manager.back_pointer_annotation()));
        let pointer = annotation.and_then(|text| BackPointer::decode(text).ok());
        if !pointer.is_some_and(|p| p.object() == id && *p.parent() == parent) {
            return Err("its back-pointer does not name it and the parent in its spec".into());
        }
        let home = site.cluster_id().await.map_err(|error| error.to_string())?;
        Ok(Read { object, parent, at_home: spec.parent.cluster == home })
    }

    async fn behind_proxy(&self, site: &Site, read: &Read) -> Behind {
        if !read.at_home {
            return Behind::Unknown { words: "its home is another cluster".into() };
        }
        match self.existence(site, &read.parent).await {
            Existence::Lives => Behind::Lives(read.parent.clone()),
            Existence::Gone => Behind::Gone,
            Existence::Unknown(words) => Behind::Unknown { words },
        }
    }

    /// Deletes one incarnation of a proxy whose parent is gone, or is among those that were `released`. Returns whether
    /// there was one.
    pub(super) async fn delete_proxy(
        &self,
        site: &Site,
        proxy: &LiveRef,
        released: &BTreeSet<Uid>,
    ) -> Result<bool, String> {
        let id = &proxy.id;
        let kinds = self.rulebook.proxies.as_ref().filter(|kinds| kinds.is_proxy(id));
        let kinds = kinds.ok_or("it is not of the custodian's kinds of proxies")?;
        let resource = if id.namespace().is_some() { kinds.namespaced() } else { kinds.cluster() };
        let mut found = false;
        for _ in 0..ROUNDS {
            let object = match api::<DynamicObject>(&site.client, resource, id.namespace()).get(id.name()).await {
                Ok(object) if Uid::of(&object.metadata).as_ref() == Some(&proxy.uid) => object,
                Ok(_) => return Ok(found),
                Err(error) => {
                    let refusal = Refusal::about(id, &error);
                    return if refusal.answer().names(resource, id.name()) {
                        Ok(found)
                    } else {
                        Err(refusal.to_string())
                    };
                }
            };
            found = true;
            let read = self.read_proxy(site, id, object).await?;
            if !released.contains(&read.parent.uid) {
                match self.behind_proxy(site, &read).await {
                    Behind::Gone => {}
                    behind => return Err(behind.to_string()),
                }
                self.check_no_record(&read.parent, resource).await?;
            }
            match self.remove_proxy(site, id, resource, &read).await {
                Ok(true) => return Ok(true),
                Ok(false) => {}
                Err(refusal) => match refusal.answer() {
                    Answer::VersionMismatch | Answer::UidMismatch | Answer::NotFound { .. } | Answer::Conflict => {}
                    _ => return Err(refusal.to_string()),
                },
            }
        }
        Err("somebody else keeps writing to it, or others keep it".into())
    }

    /// One step of a proxy's end. Returns whether there is nothing more to do.
    async fn remove_proxy(
        &self,
        site: &Site,
        id: &ObjectId,
        resource: &ResourceKind,
        read: &Read,
    ) -> Result<bool, Refusal> {
        let meta = &read.object.metadata;
        if meta.deletion_timestamp.is_none() {
            delete(&site.client, resource, id, meta).await?;
            // Without a finalizer it is gone; the next look says so.
            return Ok(false);
        }
        let (guard, finalizers) = (self.manager.proxy_finalizer(), meta.finalizers.clone().unwrap_or_default());
        if !finalizers.contains(&guard) {
            // Others keep it.
            return Ok(true);
        }
        let (uid, version) =
            (meta.uid.as_deref().unwrap_or_default(), meta.resource_version.as_deref().unwrap_or_default());
        let patch: Patch<_> = finalizer_off(uid, version, &finalizers, &guard);
        let params = patched_by(Some(self.manager.field_manager()));
        patch_metadata(&site.client, resource, id, &patch, &params).await.map(|_| true)
    }

    /// What is on record goes in order, or is kept; a proxy must not take it along.
    async fn check_no_record(&self, parent: &LiveRef, proxies: &ResourceKind) -> Result<(), String> {
        let unnamed = ResourceKind::new(parent.id.group(), &proxies.version, parent.id.kind(), "", parent.id.scope());
        let parent = ParentRef::new(parent.id.clone(), parent.uid.clone(), &unnamed);
        match self.store.load(&parent).await.map_err(|error| error.to_string())? {
            Loaded::Missing => Ok(()),
            Loaded::Found(found) if found.inventory.is_empty() => Ok(()),
            _ => Err(format!("there is a record of {parent} still, whose objects it may own")),
        }
    }
}

impl<K> Run<'_, K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + fmt::Debug + Send + Sync + 'static,
{
    /// Deletes proxies on no record of parents that are done with, once it is proven that nothing refers to them.
    ///
    /// `free` are parents that carry nothing of the manager, as they were released by an earlier call.
    pub(super) async fn remove_proxies(
        &self,
        known: &Parents,
        free: &[ParentRef],
        scan: &Scan,
        open: &[&Finding],
        done: &mut Uninstalled,
    ) {
        let inner = self.inner;
        let released: BTreeSet<_> = done.parents.iter().chain(free).map(|p| p.uid.clone()).collect();
        for finding in scan.of(Part::Proxy) {
            let proxy = &finding.object;
            let refers = open.iter().find(|f| f.traces.references.contains(&proxy.uid));
            let removed = match refers {
                _ if known.may_clear(&inner.manager, finding).is_err() => continue,
                Some(other) => Err(format!("{} refers to it, and would be collected with it", other.object.id)),
                None if !scan.is_complete() => {
                    Err("what refers to it would be collected with it, and not everything could be looked at".into())
                }
                None => inner.delete_proxy(&inner.home, proxy, &released).await,
            };
            match removed {
                Ok(true) => done.deleted.push(proxy.id.clone()),
                Ok(false) => {}
                Err(words) => done.left.push(Left::new(Stage::Proxies, &proxy.id, words)),
            }
        }
    }
}
