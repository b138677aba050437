//! The requests that a teardown sends, one function each. Thin: what to send and what an answer means is decided
//! elsewhere.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_client::{
    Api, Client,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, Preconditions, PropagationPolicy},
    core::PartialObjectMeta,
};

use super::{
    live::Live,
    proof::{Event, Propagation, Subject},
};
use crate::{
    answer::Refusal,
    manager::Manager,
    object::{ObjectId, ResourceKind, Uid},
};

/// The API of one kind, metadata only, where `id` lives.
pub(crate) fn metadata_api(
    client: &Client,
    kind: &ResourceKind,
    namespace: Option<&str>,
) -> Api<PartialObjectMeta<DynamicObject>> {
    let resource = kind.api_resource();
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

/// Reads an object's metadata.
pub(crate) async fn get(client: &Client, kind: &ResourceKind, id: &ObjectId) -> Result<ObjectMeta, Refusal> {
    let api = metadata_api(client, kind, id.namespace());
    api.get(id.name()).await.map(|object| object.metadata).map_err(|e| Refusal::about(id, &e))
}

/// Deletes one incarnation of an object.
pub(crate) async fn delete(
    client: &Client,
    subject: &Subject,
    uid: &Uid,
    resource_version: Option<String>,
    manager: Option<&Manager>,
) -> Event {
    let params = DeleteParams {
        propagation_policy: Some(match subject.propagation {
            Propagation::Background => PropagationPolicy::Background,
            Propagation::Foreground => PropagationPolicy::Foreground,
        }),
        grace_period_seconds: subject.grace_period,
        preconditions: Some(Preconditions { uid: Some(uid.to_string()), resource_version }),
        ..DeleteParams::default()
    };
    let api = metadata_api(client, &subject.resource, subject.id.namespace());
    match api.delete(subject.id.name(), &params).await {
        Ok(either) => either.either(
            |object| Live::of(&object.metadata, manager).map_or(Event::Changed, Event::DeleteObject),
            |status| {
                let uid = status.details.map(|d| d.uid).and_then(|uid| Uid::new(uid).ok());
                if status.status.is_some()
                    && !matches!(status.status, Some(kube_client::core::response::StatusSummary::Success))
                {
                    return Event::Changed;
                }
                Event::DeleteStatus(uid)
            },
        ),
        Err(error) => Event::Refused(Refusal::about(&subject.id, &error)),
    }
}

/// Patches an object's metadata. The patch itself has to name the incarnation, and the state where it matters.
pub(crate) async fn patch_metadata(
    client: &Client,
    kind: &ResourceKind,
    id: &ObjectId,
    patch: &Patch<serde_json::Value>,
    field_manager: Option<&str>,
) -> Result<ObjectMeta, Refusal> {
    let params = PatchParams { field_manager: field_manager.map(ToOwned::to_owned), ..PatchParams::default() };
    let api = metadata_api(client, kind, id.namespace());
    let patched = api.patch_metadata(id.name(), &params, patch).await;
    patched.map(|object| object.metadata).map_err(|e| Refusal::about(id, &e))
}
