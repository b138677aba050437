//! The parent kind, and the proxy owners that stand in for it.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use kube_custody::proxy_owners;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A chart, rendered with values into the release's namespace and into cluster scope.
#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[kube(group = "helm.example.com", version = "v1alpha1", kind = "HelmRelease", namespaced, status = "ReleaseStatus")]
pub struct HelmReleaseSpec {
    /// Folder below the operator's charts.
    pub chart: String,
    /// What the templates call `.Values`.
    #[serde(default)]
    pub values: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
pub struct ReleaseStatus {
    /// `Ready`, `Reconciling` and `Stalled`.
    #[serde(default)]
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
}

fn conditions(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "array",
        "items": {
            "type": "object",
            "required": ["type", "status", "reason", "message", "lastTransitionTime"],
            "properties": {
                "type": {"type": "string"},
                "status": {"type": "string"},
                "reason": {"type": "string"},
                "message": {"type": "string"},
                "observedGeneration": {"type": "integer", "format": "int64"},
                "lastTransitionTime": {"type": "string", "format": "date-time"},
            },
        },
    })
}

proxy_owners! {
    group: "helm.example.com",
    version: "v1alpha1",
    /// Stands in for a HelmRelease in its namespace.
    namespaced: pub HelmReleaseOwner / "helmreleaseowners",
    /// Stands in for a HelmRelease in cluster scope.
    cluster: pub ClusterHelmReleaseOwner / "clusterhelmreleaseowners",
}
