//! The parent kind.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, ResourceExt};
use kube_custody::gate::Dependency;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A directory of manifests that may depend on others.
#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "kustomization.example.com",
    version = "v1alpha1",
    kind = "Kustomization",
    namespaced,
    status = "KustomizationStatus",
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name":"Status","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].message"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct KustomizationSpec {
    /// Directory below the checkout.
    pub path: String,
    /// Kustomizations that have to be ready before this one is applied, and that stay until it is gone.
    #[serde(default)]
    #[schemars(length(max = 32))]
    pub depends_on: Vec<Reference>,
    /// The cluster to apply to; this one if not set.
    #[serde(default)]
    pub kube_config: Option<KubeConfig>,
}

#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
pub struct Reference {
    pub name: String,
    /// The namespace of the dependency; that of the Kustomization if not set.
    #[serde(default)]
    pub namespace: Option<String>,
}

#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KubeConfig {
    /// A Secret in the Kustomization's namespace with a kubeconfig under `value`.
    pub secret_ref: SecretRef,
}

#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
pub struct SecretRef {
    pub name: String,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
pub struct KustomizationStatus {
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

/// What a Kustomization depends on, for the gate.
pub fn dependencies(parent: &Kustomization) -> Vec<Dependency> {
    let namespace = |reference: &Reference| reference.namespace.clone().or_else(|| parent.namespace());
    let named = parent.spec.depends_on.iter();
    named.map(|reference| Dependency::on::<Kustomization>(namespace(reference), &reference.name)).collect()
}
