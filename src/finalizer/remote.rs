//! The thin side: sends what [`Protocol`] decides.

use std::{fmt, future::Future};

use kube_client::{
    Api, Client,
    api::{Patch, PatchParams},
};
use kube_core::{DynamicObject, PartialObjectMeta, Resource};
use serde::de::DeserializeOwned;

use super::{
    Error,
    protocol::{Accepted, Protocol, Refused, Verdict},
};
use crate::{
    answer::Refusal,
    api,
    object::{GroupKind, LiveRef, ObjectId, ResourceKind, Uid},
};

/// Where objects live: the API server, or a model of it in tests.
pub(super) trait Remote<K>: Sync {
    fn get(&self, id: &ObjectId) -> impl Future<Output = Result<K, Refusal>> + Send;
    fn patch(&self, id: &ObjectId, patch: json_patch::Patch) -> impl Future<Output = Result<K, Refusal>> + Send;
}

/// The API server.
pub(super) struct Server<'a, K> {
    pub(super) api: &'a Api<K>,
    pub(super) params: PatchParams,
}

impl<K> Remote<K> for Server<'_, K>
where
    K: Clone + DeserializeOwned + fmt::Debug + Send + Sync,
{
    async fn get(&self, id: &ObjectId) -> Result<K, Refusal> {
        self.api.get(id.name()).await.map_err(|error| Refusal::about(id, &error))
    }

    async fn patch(&self, id: &ObjectId, patch: json_patch::Patch) -> Result<K, Refusal> {
        let patch = Patch::Json::<()>(patch);
        self.api.patch(id.name(), &self.params, &patch).await.map_err(|error| Refusal::about(id, &error))
    }
}

/// How an exchange ended.
pub(super) enum End<K> {
    /// Nothing is left to do on the object, as the server last gave it.
    Settled(K),
    Gone,
    Recreated(Uid),
}

/// Carries out a protocol; `known` stands for a first read.
pub(super) async fn drive<K: Resource, R: Remote<K>>(
    remote: &R,
    id: &ObjectId,
    mut protocol: Protocol<'_>,
    mut known: Option<K>,
) -> Result<End<K>, Error> {
    loop {
        let object = match known.take() {
            Some(object) => object,
            None => match remote.get(id).await {
                Ok(object) => object,
                Err(refusal) => return protocol.read_refused(refusal).map(|()| End::Gone),
            },
        };
        let patch = match protocol.judge(object.meta())? {
            Verdict::Settled => return Ok(End::Settled(object)),
            Verdict::Recreated(uid) => return Ok(End::Recreated(uid)),
            Verdict::Patch(patch) => patch,
        };
        match remote.patch(id, patch).await {
            Ok(answer) => known = (protocol.accepted() == Accepted::Judge).then_some(answer),
            Err(refusal) => match protocol.patch_refused(refusal)? {
                Refused::Gone => return Ok(End::Gone),
                Refused::ReadAgain => {}
            },
        }
    }
}

/// The incarnation that `object` is, and how requests for it are spelled.
pub(super) fn identify<K: Resource>(object: &K, kind: &K::DynamicType) -> Result<(ResourceKind, LiveRef), Error> {
    let group_kind = GroupKind { group: K::group(kind).into_owned(), kind: K::kind(kind).into_owned() };
    let id = ObjectId::from_meta(&group_kind, object.meta()).map_err(|source| Error::NotLive { id: None, source })?;
    let uid = Uid::new(object.meta().uid.as_deref().unwrap_or(""))
        .map_err(|source| Error::NotLive { id: Some(id.clone()), source })?;
    let resource =
        ResourceKind::new(&group_kind.group, &K::version(kind), &group_kind.kind, &K::plural(kind), id.scope());
    Ok((resource, LiveRef::new(id, uid)))
}

/// Metadata of one object of a dynamic kind.
pub(super) fn metadata_api(
    client: &Client,
    resource: &ResourceKind,
    id: &ObjectId,
) -> Result<Api<PartialObjectMeta<DynamicObject>>, Error> {
    id.check_scope(resource.scope).map_err(|source| Error::Scope { id: id.clone(), source })?;
    Ok(api::metadata_api(client, resource, id.namespace()))
}
