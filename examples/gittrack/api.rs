//! The two parent kinds.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{Api, Client, CustomResource, Resource, ResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// A directory of manifests, managed on behalf of a namespace.
#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[kube(group = "faros.pusher.com", version = "v1alpha1", kind = "GitTrack", namespaced, status = "TrackStatus")]
pub struct GitTrackSpec {
    /// Directory below the checkout.
    pub path: String,
}

/// A directory of manifests, managed on behalf of the cluster.
#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[kube(group = "faros.pusher.com", version = "v1alpha1", kind = "ClusterGitTrack", status = "TrackStatus")]
pub struct ClusterGitTrackSpec {
    /// Directory below the checkout.
    pub path: String,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
pub struct TrackStatus {
    /// `Ready`, `Reconciling` and `Stalled`.
    #[serde(default)]
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
    /// Objects in the directory that the track may not manage, each with the reason.
    #[serde(default)]
    pub ignored: Vec<String>,
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

/// What the two kinds have in common.
pub trait Track:
    Resource<DynamicType = ()> + Clone + DeserializeOwned + Serialize + std::fmt::Debug + Send + Sync + 'static
{
    fn path(&self) -> &str;
    fn status(&self) -> Option<&TrackStatus>;
    fn api(&self, client: &Client) -> Api<Self>;
}

impl Track for GitTrack {
    fn path(&self) -> &str {
        &self.spec.path
    }
    fn status(&self) -> Option<&TrackStatus> {
        self.status.as_ref()
    }
    fn api(&self, client: &Client) -> Api<Self> {
        Api::namespaced(client.clone(), &self.namespace().unwrap_or_default())
    }
}

impl Track for ClusterGitTrack {
    fn path(&self) -> &str {
        &self.spec.path
    }
    fn status(&self) -> Option<&TrackStatus> {
        self.status.as_ref()
    }
    fn api(&self, client: &Client) -> Api<Self> {
        Api::all(client.clone())
    }
}
