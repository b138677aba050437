//! The DELETE that a teardown sends, and what it has to read beyond metadata. Thin: what to delete and what the answer means is decided elsewhere.

use kube_client::{
    Client,
    api::{DeleteParams, DynamicObject, Preconditions, PropagationPolicy},
};

use super::{
    live::Live,
    proof::{Event, Propagation, Subject},
};
use crate::{
    answer::Refusal,
    api::{api, metadata_api},
    manager::Manager,
    object::Uid,
};

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

/// Reads which webhooks a webhook configuration names.
pub(crate) async fn webhooks(client: &Client, subject: &Subject) -> Event {
    let read = api::<DynamicObject>(client, &subject.resource, None).get(subject.id.name()).await;
    let names = read.ok().map(|configuration| {
        let webhooks = configuration.data.get("webhooks").and_then(|webhooks| webhooks.as_array());
        let names = webhooks.into_iter().flatten().filter_map(|webhook| webhook.get("name")?.as_str());
        names.map(ToOwned::to_owned).collect()
    });
    Event::Webhooks(names)
}
