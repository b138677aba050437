//! Requests about objects of any kind, one function each. Thin: what to send and what an answer means is decided
//! elsewhere.

use std::fmt::Debug;

use futures::{
    StreamExt, TryStreamExt,
    stream::{self, BoxStream},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_client::{
    Api, Client,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, Preconditions},
    core::{ObjectList, PartialObjectMeta},
};
use kube_core::{ApiResource, DynamicResourceScope, Resource};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::{
    answer::{Answer, Refusal},
    object::{ObjectId, ResourceKind},
};

/// Objects on one page of a list.
pub(crate) const PAGE: u32 = 500;

/// The API of one kind in a namespace, or in cluster scope and everywhere.
pub(crate) fn api<K>(client: &Client, kind: &ResourceKind, namespace: Option<&str>) -> Api<K>
where
    K: Resource<DynamicType = ApiResource, Scope = DynamicResourceScope>,
{
    let resource = kind.api_resource();
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

/// [`api`], metadata only.
pub(crate) fn metadata_api(
    client: &Client,
    kind: &ResourceKind,
    namespace: Option<&str>,
) -> Api<PartialObjectMeta<DynamicObject>> {
    api(client, kind, namespace)
}

/// Reads an object's metadata.
pub(crate) async fn get_metadata(client: &Client, kind: &ResourceKind, id: &ObjectId) -> Result<ObjectMeta, Refusal> {
    let api = metadata_api(client, kind, id.namespace());
    api.get(id.name()).await.map(|object| object.metadata).map_err(|e| Refusal::about(id, &e))
}

/// Reads an object's metadata; `None` if the API server says that this very object does not exist.
pub(crate) async fn find_metadata(
    client: &Client,
    kind: &ResourceKind,
    id: &ObjectId,
) -> Result<Option<ObjectMeta>, Refusal> {
    match get_metadata(client, kind, id).await {
        Err(refusal) if refusal.answer().names(kind, id.name()) => Ok(None),
        read => read.map(Some),
    }
}

/// Pages of a list.
pub(crate) type Pages<K> = BoxStream<'static, kube_client::Result<ObjectList<K>>>;

/// The pages of a list, one after the other, up to its end or the first that is refused.
pub(crate) fn pages<K>(api: Api<K>, first: ListParams) -> Pages<K>
where
    K: Clone + DeserializeOwned + Debug + Send + 'static,
{
    let pages = stream::try_unfold(Some((api, first)), |next| async move {
        let Some((api, params)) = next else { return Ok(None) };
        let page = api.list(&params).await?;
        let token = page.metadata.continue_.as_deref().filter(|token| !token.is_empty());
        let next = token.map(|token| (api, params.continue_token(token)));
        Ok(Some((page, next)))
    });
    pages.boxed()
}

/// A list that a label selector, if given, narrows, in pages of moderate size.
pub(crate) fn first_page(selector: Option<&str>) -> ListParams {
    ListParams { label_selector: selector.map(ToOwned::to_owned), ..ListParams::default().limit(PAGE) }
}

/// Metadata of all objects of a kind that a label selector, if given, picks, in a namespace or everywhere.
pub(crate) async fn list_metadata(
    client: &Client,
    kind: &ResourceKind,
    namespace: Option<&str>,
    selector: Option<&str>,
) -> Result<Vec<ObjectMeta>, Refusal> {
    let objects = list(metadata_api(client, kind, namespace), selector).await?;
    Ok(objects.into_iter().map(|object| object.metadata).collect())
}

/// As [`list_metadata`], with their content.
pub(crate) async fn list_objects(
    client: &Client,
    kind: &ResourceKind,
    namespace: Option<&str>,
    selector: Option<&str>,
) -> Result<Vec<DynamicObject>, Refusal> {
    list(api(client, kind, namespace), selector).await
}

async fn list<K>(api: Api<K>, selector: Option<&str>) -> Result<Vec<K>, Refusal>
where
    K: Clone + DeserializeOwned + Debug + Send + 'static,
{
    let (mut pages, mut found) = (pages(api, first_page(selector)), Vec::new());
    while let Some(page) = pages.try_next().await.map_err(|e| Refusal::of(&e))? {
        found.extend(page.items);
    }
    Ok(found)
}

/// Hands the metadata of all objects of a kind, everywhere, to `take`, page by page; some of them twice, if a list outlives
/// what the API server remembers.
pub(crate) async fn each_metadata(
    client: &Client,
    kind: &ResourceKind,
    selector: Option<&str>,
    mut take: impl FnMut(ObjectMeta),
) -> Result<(), Refusal> {
    let api = metadata_api(client, kind, None);
    let (mut list, mut begun) = (pages(api.clone(), first_page(selector)), false);
    loop {
        match list.try_next().await.map_err(|e| Refusal::of(&e)) {
            Ok(Some(page)) => {
                begun = true;
                page.items.into_iter().for_each(|object| take(object.metadata));
            }
            Ok(None) => return Ok(()),
            // In one piece then: the API server answers that from its cache.
            Err(refusal) if begun && *refusal.answer() == Answer::Expired => {
                (list, begun) = (pages(api.clone(), ListParams { limit: None, ..first_page(selector) }), false);
            }
            Err(refusal) => return Err(refusal),
        }
    }
}

/// Patches an object's metadata. The patch itself has to name the incarnation, and the state where it matters.
pub(crate) async fn patch_metadata(
    client: &Client,
    kind: &ResourceKind,
    id: &ObjectId,
    patch: &Patch<Value>,
    params: &PatchParams,
) -> Result<ObjectMeta, Refusal> {
    let api = metadata_api(client, kind, id.namespace());
    let patched = api.patch_metadata(id.name(), params, patch).await;
    patched.map(|object| object.metadata).map_err(|e| Refusal::about(id, &e))
}

/// Deletes an object in exactly the state that was read, with propagation Background.
pub(crate) async fn delete(
    client: &Client,
    kind: &ResourceKind,
    id: &ObjectId,
    seen: &ObjectMeta,
) -> Result<(), Refusal> {
    let (uid, resource_version) = (seen.uid.clone(), seen.resource_version.clone());
    let params = DeleteParams::background().preconditions(Preconditions { uid, resource_version });
    let deleted = metadata_api(client, kind, id.namespace()).delete(id.name(), &params).await;
    deleted.map(drop).map_err(|e| Refusal::about(id, &e))
}

/// Parameters of a patch by `field_manager`.
pub(crate) fn patched_by(field_manager: Option<&str>) -> PatchParams {
    PatchParams { field_manager: field_manager.map(ToOwned::to_owned), ..PatchParams::default() }
}

/// The merge patch that takes finalizers off and leaves the others, in exactly the state that was read.
pub(crate) fn finalizers_off(
    uid: &str,
    resource_version: &str,
    finalizers: &[String],
    off: impl Fn(&str) -> bool,
) -> Patch<Value> {
    let rest: Vec<_> = finalizers.iter().filter(|f| !off(f)).collect();
    Patch::Merge(json!({"metadata": {"uid": uid, "resourceVersion": resource_version, "finalizers": rest}}))
}

/// [`finalizers_off`] for one.
pub(crate) fn finalizer_off(uid: &str, resource_version: &str, finalizers: &[String], finalizer: &str) -> Patch<Value> {
    finalizers_off(uid, resource_version, finalizers, |f| f == finalizer)
}
