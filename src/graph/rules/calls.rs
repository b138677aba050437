//! Rules about what the API server calls: admission webhooks, conversion webhooks and aggregated API servers.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{Edges, Manifest, ManifestSet, Rule, pods::PodIndex, set::text};
use crate::object::ObjectId;

/// The kinds of webhook configurations.
pub(super) const CONFIGURATIONS: [&str; 2] = ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"];
pub(super) const ADMISSION: &str = "admissionregistration.k8s.io";

/// What the API server calls depends on who answers: a webhook configuration, an APIService and the conversion webhook
/// of a definition on their Service (and its Namespace), and that Service on the workloads that it selects.
///
/// While a configuration outlives its Service, every request that it covers is refused. Other Services do not wait for
/// their workloads, because members of a workload may find each other through them until they end.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct AnsweredBy;

impl Rule for AnsweredBy {
    fn name(&self) -> &'static str {
        "answered-by"
    }

    fn rank(&self) -> u16 {
        550
    }

    fn infer(&self, set: &ManifestSet<'_>, edges: &mut Edges<'_>) {
        let mut called = BTreeSet::new();
        let calls = callers(set).flat_map(|(caller, references)| {
            references.into_iter().filter_map(move |r| Some((caller, text(r, "/namespace")?, text(r, "/name")?)))
        });
        for (caller, namespace, name) in calls {
            if let Some(service) = set.named("", "Service", Some(namespace), name) {
                edges.prefer(caller, service.id, "the API server calls it through this service");
                called.insert(service.id);
            }
            // It holds the Service also where that is not in the set.
            if let Some(namespace) = set.named("", "Namespace", None, namespace) {
                edges.prefer(caller, namespace.id, "the API server calls a service in it");
            }
        }
        let pods = PodIndex::of(set);
        for service in called.into_iter().filter_map(|id| set.get(id)) {
            let Some(selector) = service.object.data.pointer("/spec/selector").and_then(Value::as_object) else {
                continue;
            };
            let selector: BTreeMap<_, _> =
                selector.iter().filter_map(|(key, value)| Some((key.as_str(), value.as_str()?))).collect();
            if selector.is_empty() {
                continue;
            }
            for workload in pods.with_labels(service.id.namespace(), &selector) {
                edges.prefer(service.id, workload.id(), "its pods answer for the service");
            }
        }
    }
}

/// Everything in the set that makes the API server call a service, with the references to services.
fn callers<'a>(set: &ManifestSet<'a>) -> impl Iterator<Item = (&'a ObjectId, Vec<&'a Value>)> {
    let webhooks = CONFIGURATIONS.into_iter().flat_map(|kind| set.of_kind(ADMISSION, kind)).map(|configuration| {
        let services = configuration.list("/webhooks").filter_map(|webhook| webhook.pointer("/clientConfig/service"));
        (configuration.id, services.collect())
    });
    let at = |manifest: Manifest<'a>, pointer: &str| {
        (manifest.id, manifest.object.data.pointer(pointer).into_iter().collect::<Vec<_>>())
    };
    let services = set.of_kind("apiregistration.k8s.io", "APIService").map(move |m| at(m, "/spec/service"));
    let definitions = set.of_kind("apiextensions.k8s.io", "CustomResourceDefinition");
    let conversions = definitions.map(move |m| at(m, "/spec/conversion/webhook/clientConfig/service"));
    webhooks.chain(services).chain(conversions)
}

/// An object of an aggregated API depends on its APIService.
///
/// Without it no request for the object is answered. Matched by `spec.group`, in any version; an APIService without a
/// service only says that the API server serves the group itself.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct OfApiService;

impl Rule for OfApiService {
    fn name(&self) -> &'static str {
        "of-api-service"
    }

    fn rank(&self) -> u16 {
        850
    }

    fn infer(&self, set: &ManifestSet<'_>, edges: &mut Edges<'_>) {
        for service in set.of_kind("apiregistration.k8s.io", "APIService") {
            let Some(group) = service.text("/spec/group") else { continue };
            if service.object.data.pointer("/spec/service").is_some_and(Value::is_object) {
                let content = set.of_group(group).map(|m| m.id);
                edges.prefer_all(content, service.id, format!("it serves group {group:?}"));
            }
        }
    }
}
