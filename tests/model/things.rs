//! The objects of a scenario, and how they are named in the cluster.

use kube::{
    Api, Client, CustomResource, CustomResourceExt,
    api::{ApiResource, DynamicObject, GroupVersionKind},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::scenario::{Child, Kind, Place, Scenario};
use crate::laws::history::Id;

pub const MANAGER: &str = "gittrack.example.com";

/// What a Secret of a scenario holds, as it stands in its manifest.
pub const SECRET: &str = "c3VwZXJzZWNyZXQ=";

#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[kube(group = "faros.pusher.com", version = "v1alpha1", kind = "GitTrack", namespaced)]
pub struct GitTrackSpec {
    pub path: String,
}

/// Where something is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address {
    pub group: &'static str,
    pub version: &'static str,
    pub kind: &'static str,
    pub plural: &'static str,
    pub namespace: Option<String>,
    pub name: String,
}

impl Address {
    pub fn new(
        of: (&'static str, &'static str, &'static str, &'static str),
        namespace: Option<&str>,
        name: &str,
    ) -> Self {
        let (group, version, kind, plural) = of;
        Self { group, version, kind, plural, namespace: namespace.map(Into::into), name: name.into() }
    }

    pub fn id(&self) -> Id {
        Id::new(self.group, self.plural, self.namespace.as_deref(), &self.name)
    }

    pub fn api(&self, client: &Client) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk(self.group, self.version, self.kind);
        let resource = ApiResource::from_gvk_with_plural(&kind, self.plural);
        match &self.namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        }
    }

    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.to_owned() } else { format!("{}/{}", self.group, self.version) }
    }

    /// An object with nothing in it but what its kind demands.
    pub fn object(&self) -> Value {
        let mut object = json!({
            "apiVersion": self.api_version(), "kind": self.kind,
            "metadata": {"name": self.name, "namespace": self.namespace},
        });
        if self.kind == "CustomResourceDefinition" {
            object["spec"] = widgets();
        }
        object
    }

    /// As annotations name it.
    fn reference(&self) -> String {
        match &self.namespace {
            Some(namespace) => format!("{}/namespaces/{namespace}/{}/{}", self.group, self.kind, self.name),
            None => format!("{}/{}/{}", self.group, self.kind, self.name),
        }
    }
}

pub type Type = (&'static str, &'static str, &'static str, &'static str);
pub const MAP: Type = ("", "v1", "ConfigMap", "configmaps");
pub const SECRETS: Type = ("", "v1", "Secret", "secrets");
pub const NAMESPACE: Type = ("", "v1", "Namespace", "namespaces");
pub const ROLE: Type = ("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles");
pub const DEFINITION: Type = ("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions");
pub const WIDGET: Type = ("model.example.com", "v1", "Widget", "widgets");
pub const TRACK: Type = ("faros.pusher.com", "v1alpha1", "GitTrack", "gittracks");
pub const OWNER: Type = ("faros.pusher.com", "v1alpha1", "GitTrackOwner", "gittrackowners");
pub const CLUSTER_OWNER: Type = ("faros.pusher.com", "v1alpha1", "ClusterGitTrackOwner", "clustergittrackowners");

/// Everything that is looked at in the end.
pub const ALL: [Type; 9] = [MAP, SECRETS, NAMESPACE, ROLE, DEFINITION, WIDGET, TRACK, OWNER, CLUSTER_OWNER];

pub fn namespace(place: Place) -> &'static str {
    match place {
        Place::Home => "home",
        Place::Far => "far",
    }
}

pub fn parent_name(parent: usize) -> &'static str {
    ["track", "other"][parent]
}

fn widgets() -> Value {
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    json!({
        "group": "model.example.com", "scope": "Namespaced", "names": {"plural": "widgets", "kind": "Widget"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}],
    })
}

impl Child {
    pub fn address(&self) -> Address {
        let name = format!("child-{}", self.number);
        match self.kind {
            Kind::Near => Address::new(MAP, Some("home"), &name),
            Kind::Far => Address::new(MAP, Some("far"), &name),
            Kind::Inside => Address::new(MAP, Some("team"), &name),
            Kind::Secret => Address::new(SECRETS, Some("home"), &name),
            Kind::ClusterRole => Address::new(ROLE, None, &name),
            Kind::Team => Address::new(NAMESPACE, None, "team"),
            Kind::Definition => Address::new(DEFINITION, None, "widgets.model.example.com"),
            Kind::Widget => Address::new(WIDGET, Some("far"), &name),
        }
    }

    /// The manifest, in the version that holds `data`.
    fn manifest(&self, children: &[Self], wanted: &[bool], data: usize) -> Value {
        let mut object = self.address().object();
        let content = json!({"text": format!("{data}")});
        match self.kind {
            Kind::Near | Kind::Far | Kind::Inside => object["data"] = content,
            Kind::Secret => object["data"] = json!({"text": SECRET}),
            Kind::ClusterRole => object["rules"] = json!([]),
            Kind::Widget => object["spec"] = content,
            Kind::Team | Kind::Definition => {}
        }
        let needs: Vec<String> =
            self.needs.iter().filter(|need| wanted[**need]).map(|need| children[*need].address().reference()).collect();
        if !needs.is_empty() {
            object["metadata"]["annotations"]["config.kubernetes.io/depends-on"] = json!(needs.join(","));
        }
        if self.keep {
            object["metadata"]["annotations"]["cli-utils.sigs.k8s.io/on-remove"] = json!("keep");
        }
        object
    }
}

impl Scenario {
    /// What a parent desires in a version.
    pub fn desired(&self, version: usize, parent: usize) -> Vec<DynamicObject> {
        let set = &self.sets[version.min(self.sets.len() - 1)];
        let wanted: Vec<bool> = set.wanted.iter().map(|by| by[parent]).collect();
        let children = self.children.iter().filter(|child| wanted[child.number]);
        let manifests = children.map(|child| child.manifest(&self.children, &wanted, set.data));
        manifests.map(|manifest| serde_json::from_value(manifest).unwrap()).collect()
    }

    /// Edges that every version declares in which the parent wants the object that they begin at.
    pub fn edges(&self, parent: usize) -> Vec<(Id, Id)> {
        let always =
            |from: usize, to: usize| self.sets.iter().all(|set| !set.wanted[from][parent] || set.wanted[to][parent]);
        let edges = self.children.iter().flat_map(|child| child.needs.iter().map(move |need| (child, *need)));
        let edges = edges.filter(|(child, need)| always(child.number, *need));
        edges.map(|(child, need)| (child.address().id(), self.children[need].address().id())).collect()
    }
}

/// The definitions that are there before anything happens.
pub fn definitions() -> Vec<k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition>
{
    use kube_custody::ownership::proxy::{ClusterGitTrackOwner, GitTrackOwner, ProxyOwners};
    std::iter::once(GitTrack::crd()).chain(<(GitTrackOwner, ClusterGitTrackOwner)>::crds()).collect()
}
