use std::collections::BTreeMap;

use k8s_openapi::{
    apiextensions_apiserver::pkg::apis::apiextensions::v1::{
        CustomResourceColumnDefinition, CustomResourceDefinition, CustomResourceDefinitionNames,
        CustomResourceDefinitionSpec, CustomResourceDefinitionVersion, CustomResourceValidation, JSONSchemaProps,
        ValidationRule,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use crate::object::{ResourceKind, Scope};

/// The CustomResourceDefinition of a proxy kind: a structural schema in which the spec is required and immutable.
#[must_use]
pub fn definition(resource: &ResourceKind) -> CustomResourceDefinition {
    let singular = resource.kind.to_ascii_lowercase();
    CustomResourceDefinition {
        metadata: ObjectMeta { name: Some(resource.group_resource()), ..ObjectMeta::default() },
        spec: CustomResourceDefinitionSpec {
            group: resource.group.clone(),
            names: CustomResourceDefinitionNames {
                kind: resource.kind.clone(),
                list_kind: Some(format!("{}List", resource.kind)),
                plural: resource.plural.clone(),
                singular: Some(singular),
                ..CustomResourceDefinitionNames::default()
            },
            scope: match resource.scope {
                Scope::Cluster => "Cluster",
                Scope::Namespaced => "Namespaced",
            }
            .to_owned(),
            versions: vec![CustomResourceDefinitionVersion {
                name: resource.version.clone(),
                served: true,
                storage: true,
                schema: Some(CustomResourceValidation { open_api_v3_schema: Some(schema(resource)) }),
                additional_printer_columns: Some(columns()),
                ..CustomResourceDefinitionVersion::default()
            }],
            ..CustomResourceDefinitionSpec::default()
        },
        status: None,
    }
}

fn columns() -> Vec<CustomResourceColumnDefinition> {
    let column = |name: &str, type_: &str, path: &str, priority: Option<i32>| CustomResourceColumnDefinition {
        name: name.to_owned(),
        type_: type_.to_owned(),
        json_path: path.to_owned(),
        priority,
        ..CustomResourceColumnDefinition::default()
    };
    vec![
        column("Parent Kind", "string", ".spec.parent.kind", None),
        column("Parent Namespace", "string", ".spec.parent.namespace", None),
        column("Parent", "string", ".spec.parent.name", None),
        column("Parent UID", "string", ".spec.parent.uid", Some(1)),
        column("Manager", "string", ".spec.manager", Some(1)),
        column("Age", "date", ".metadata.creationTimestamp", None),
    ]
}

fn schema(resource: &ResourceKind) -> JSONSchemaProps {
    let place = match resource.scope {
        Scope::Cluster => "cluster-scoped objects",
        Scope::Namespaced => "objects in its namespace",
    };
    let parent = object(
        "The parent that the proxy stands in for.",
        [
            ("apiVersion", text("API group and version of the parent.", 1, 317), true),
            ("kind", text("Kind of the parent.", 1, 63), true),
            ("namespace", text("Namespace of the parent; absent if it is cluster-scoped.", 1, 63), false),
            ("name", text("Name of the parent.", 1, 253), true),
            ("uid", text("UID of the parent.", 1, 253), true),
            ("cluster", text("UID of the namespace kube-system in the cluster of the parent.", 1, 253), true),
        ],
    );
    let manager = text("Domain of the operator that made the proxy.", 1, 128);
    let mut spec = object("What the proxy stands for.", [("manager", manager, true), ("parent", parent, true)]);
    spec.x_kubernetes_validations = Some(vec![ValidationRule {
        rule: "self == oldSelf".to_owned(),
        message: Some("a proxy owner stands for one parent: its spec is immutable".to_owned()),
        ..ValidationRule::default()
    }]);
    object(
        &format!(
            "Stands in for its parent as the owner of {place}. Made and removed by an operator; do not edit or delete."
        ),
        [("spec", spec, true)],
    )
}

fn object<const N: usize>(description: &str, fields: [(&str, JSONSchemaProps, bool); N]) -> JSONSchemaProps {
    let required = fields.iter().filter(|(.., required)| *required).map(|(name, ..)| (*name).to_owned()).collect();
    let properties: BTreeMap<_, _> = fields.into_iter().map(|(name, field, _)| (name.to_owned(), field)).collect();
    JSONSchemaProps {
        type_: Some("object".to_owned()),
        description: Some(description.to_owned()),
        properties: Some(properties),
        required: Some(required),
        ..JSONSchemaProps::default()
    }
}

fn text(description: &str, min: i64, max: i64) -> JSONSchemaProps {
    JSONSchemaProps {
        type_: Some("string".to_owned()),
        description: Some(description.to_owned()),
        min_length: Some(min),
        max_length: Some(max),
        ..JSONSchemaProps::default()
    }
}
