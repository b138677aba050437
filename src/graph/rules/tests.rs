//! What each rule finds, by examples; what all rules keep to, by properties.

mod accounts;
mod calls;
mod properties;
mod targets;

use kube_core::DynamicObject;
use serde_json::{Value, json};

use super::*;
use crate::{
    graph::{DependencyGraph, GraphBuilder},
    inventory::Requirement,
};

/// Manifests of a set and, beside them, live objects.
#[derive(Debug, Default)]
struct World {
    set: Vec<(ObjectId, DynamicObject)>,
    context: Vec<(ObjectId, DynamicObject)>,
}

fn read(value: Value) -> (ObjectId, DynamicObject) {
    let object: DynamicObject = serde_json::from_value(value).unwrap();
    (ObjectId::of(&object).unwrap(), object)
}

impl World {
    fn new(values: impl IntoIterator<Item = Value>) -> Self {
        Self { set: values.into_iter().map(read).collect(), context: Vec::new() }
    }

    fn and(mut self, values: impl IntoIterator<Item = Value>) -> Self {
        self.set.extend(values.into_iter().map(read));
        self
    }

    fn beside(mut self, values: impl IntoIterator<Item = Value>) -> Self {
        self.context.extend(values.into_iter().map(read));
        self
    }

    fn manifests(&self) -> ManifestSet<'_> {
        let set = ManifestSet::new(self.set.iter().map(|(id, object)| (id, object)));
        set.context(self.context.iter().map(|(id, object)| (id, object)))
    }

    fn graph(&self) -> DependencyGraph {
        self.graph_by(&Rules::standard())
    }

    fn graph_by(&self, rules: &Rules) -> DependencyGraph {
        let mut builder = GraphBuilder::new();
        for (id, _) in &self.set {
            builder.add(id.clone()).unwrap();
        }
        builder.infer(rules, &self.manifests());
        builder.build().unwrap()
    }

    /// The edges of one rule that hold, as `kind name -> kind name`, in order.
    fn edges(&self, rule: &str) -> Vec<String> {
        edges(&self.graph(), rule)
    }
}

fn edges(graph: &DependencyGraph, rule: &str) -> Vec<String> {
    let short = |id: &ObjectId| format!("{} {}", id.kind(), id.name());
    let of_rule = |r: &Requirement| matches!(r, Requirement::Preferred { rule: name, .. } if name == rule);
    let all = graph.nodes().flat_map(|from| graph.edges(from).map(move |edge| (from, edge)));
    let found = all.filter(|(_, edge)| of_rule(edge.requirement));
    found.map(|(from, edge)| format!("{} -> {}", short(graph.id(from)), short(graph.id(edge.to)))).collect()
}

fn object(api_version: &str, kind: &str, place: &str, more: Value) -> Value {
    let mut value = json!({"apiVersion": api_version, "kind": kind});
    value["metadata"] = match place.split_once('/') {
        Some((namespace, name)) => json!({"namespace": namespace, "name": name}),
        None => json!({"name": place}),
    };
    for (key, field) in more.as_object().into_iter().flatten() {
        if key == "labels" {
            value["metadata"]["labels"] = field.clone();
        } else {
            value[key] = field.clone();
        }
    }
    value
}

fn account(place: &str) -> Value {
    object("v1", "ServiceAccount", place, json!({}))
}

/// A Deployment whose pods run as `account` and have the label `app`, which is its name.
fn deployment(place: &str, account: &str) -> Value {
    let name = place.split('/').next_back();
    let pod = json!({"serviceAccountName": account, "containers": [{"name": "main"}]});
    let template = json!({"metadata": {"labels": {"app": name}}, "spec": pod});
    object("apps/v1", "Deployment", place, json!({"spec": {"template": template}}))
}

fn cluster_role(name: &str, groups: &[&str], resources: &[&str], verbs: &[&str]) -> Value {
    let rule = json!({"apiGroups": groups, "resources": resources, "verbs": verbs});
    object("rbac.authorization.k8s.io/v1", "ClusterRole", name, json!({"rules": [rule]}))
}

fn subject(account: &str) -> Value {
    let (namespace, name) = account.split_once('/').unwrap();
    json!({"kind": "ServiceAccount", "namespace": namespace, "name": name})
}

/// A binding, of a Role if it has a namespace and the role's name has one, else of a ClusterRole.
fn binding(place: &str, role: &str, subjects: &[Value]) -> Value {
    let kind = if place.contains('/') { "RoleBinding" } else { "ClusterRoleBinding" };
    let (role_kind, role) = role.split_once('/').map_or(("ClusterRole", role), |(_, name)| ("Role", name));
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": role_kind, "name": role});
    object("rbac.authorization.k8s.io/v1", kind, place, json!({"roleRef": role, "subjects": subjects}))
}

/// A custom resource `Mesh`.
fn mesh(place: &str) -> Value {
    object("mesh.example.com/v1", "Mesh", place, json!({}))
}
