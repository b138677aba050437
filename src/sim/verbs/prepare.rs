//! What becomes of a sent object before it is stored: decoding, defaults, and what is peculiar to a kind.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Map, Value, json};

use crate::sim::{
    catalogue::{Resource, Role},
    request::Ask,
    status::{FieldError, Refusal, bad_request, invalid_as},
    value::{map, meta_mut, name, namespace, set, tidy},
};

/// The fields that metadata has. Others are dropped.
const METADATA: &[&str] = &[
    "name",
    "generateName",
    "namespace",
    "selfLink",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "labels",
    "annotations",
    "ownerReferences",
    "finalizers",
    "managedFields",
];

/// Checks that an object is of the kind and in the version that the request names.
pub(super) fn check_type(ask: &Ask, object: &Value) -> Result<(), Refusal> {
    let text = |field: &str| object.get(field).and_then(Value::as_str).unwrap_or_default();
    let (kind, api_version) = (text("kind"), text("apiVersion"));
    let (own, expected) = (&ask.resource.kind, ask.api_version());
    if ask.resource.is_custom() {
        if api_version != expected {
            return Err(bad_request(format!(
                "the API version in the data ({api_version}) does not match the expected API version ({expected})"
            )));
        }
        return Ok(());
    }
    if !api_version.is_empty() && api_version != expected {
        return Err(bad_request(format!(
            "{kind} in version \"{api_version}\" cannot be handled as a {own}: no kind \"{kind}\" is registered for \
             version \"{api_version}\" in scheme \"pkg/runtime/scheme.go:111\""
        )));
    }
    if !kind.is_empty() && kind != own {
        return Err(bad_request(format!(
            "{kind} in version \"{expected}\" cannot be handled as a {own}: converting (v1.{kind}) to (core.{own}): \
             unknown conversion"
        )));
    }
    Ok(())
}

/// Checks that an object has the name and namespace of the request; an absent namespace is filled in.
pub(super) fn check_place(ask: &Ask, object: &mut Value) -> Result<(), Refusal> {
    if !ask.name.is_empty() && name(object) != ask.name {
        if name(object).is_empty() {
            return Err(bad_request(format!(
                "the name of the object ({} based on URL) was undeterminable: name must be provided",
                ask.name
            )));
        }
        return Err(bad_request(format!(
            "the name of the object ({}) does not match the name on the URL ({})",
            name(object),
            ask.name
        )));
    }
    if !namespace(object).is_empty() && namespace(object) != ask.namespace {
        return Err(bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    let place = (!ask.namespace.is_empty()).then(|| json!(ask.namespace));
    set(object, "namespace", place);
    Ok(())
}

/// Brings a sent object into the form in which it is stored.
pub(super) fn normalize(resource: &Resource, version: &str, object: &mut Value) {
    let custom = resource.is_custom();
    if custom {
        if let Some(schema) = resource.version(version).and_then(|version| version.schema.as_ref()) {
            schema.prune(object);
            schema.default(object);
        }
    } else {
        drop_nulls(object, "");
        map(object).insert("kind".to_owned(), json!(resource.kind));
    }
    map(object).insert("apiVersion".to_owned(), json!(resource.api_version(&resource.storage_version)));
    meta_mut(object).retain(|field, _| METADATA.contains(&field.as_str()));
    for field in ["labels", "annotations"] {
        if let Some(Value::Object(texts)) = meta_mut(object).get_mut(field) {
            fill_nulls(texts);
        }
    }
    tidy(object);
    if !custom {
        builtin(resource, object);
    }
}

/// Maps of texts, in which a null is an empty text.
const TEXTS: &[&str] = &["labels", "annotations", "data", "matchLabels", "nodeSelector"];

/// For built-in kinds a null is the same as nothing.
fn drop_nulls(value: &mut Value, field: &str) {
    match value {
        Value::Object(map) if TEXTS.contains(&field) => fill_nulls(map),
        Value::Object(map) => {
            map.retain(|_, value| !value.is_null());
            map.iter_mut().for_each(|(name, value)| drop_nulls(value, name));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| drop_nulls(item, "")),
        _ => {}
    }
}

fn fill_nulls(map: &mut Map<String, Value>) {
    for value in map.values_mut().filter(|value| value.is_null()) {
        *value = json!("");
    }
}

/// What is peculiar to some built-in kinds.
fn builtin(resource: &Resource, object: &mut Value) {
    let fields = map(object);
    match resource.plural.as_str() {
        "secrets" if resource.group.is_empty() => {
            if let Some(Value::Object(texts)) = fields.remove("stringData") {
                let data = map(fields.entry("data").or_insert_with(|| Value::Object(Map::new())));
                for (key, value) in texts {
                    data.insert(key, json!(STANDARD.encode(value.as_str().unwrap_or_default())));
                }
            }
            fields.entry("type").or_insert_with(|| json!("Opaque"));
        }
        "namespaces" => {
            let named = fields.get("metadata").and_then(|m| m.get("name")).cloned().unwrap_or_default();
            let labels = map(meta_mut(object).entry("labels").or_insert_with(|| Value::Object(Map::new())));
            labels.insert("kubernetes.io/metadata.name".to_owned(), named);
        }
        "customresourcedefinitions" => definition(fields),
        _ => {}
    }
    let fields = map(object);
    for field in ["data", "binaryData"] {
        if fields.get(field).and_then(Value::as_object).is_some_and(Map::is_empty) {
            fields.remove(field);
        }
    }
}

/// Fills in what a CustomResourceDefinition leaves out.
fn definition(fields: &mut Map<String, Value>) {
    let spec = map(fields.entry("spec").or_insert_with(|| Value::Object(Map::new())));
    spec.entry("conversion").or_insert_with(|| json!({"strategy": "None"}));
    let names = map(spec.entry("names").or_insert_with(|| Value::Object(Map::new())));
    if let Some(kind) = names.get("kind").and_then(Value::as_str).map(ToOwned::to_owned) {
        names.entry("singular").or_insert_with(|| json!(kind.to_lowercase()));
        names.entry("listKind").or_insert_with(|| json!(format!("{kind}List")));
    }
}

/// What a kind has from its creation on.
pub(super) fn fill_new(resource: &Resource, version: &str, object: &mut Value) {
    let fields = map(object);
    match resource.role {
        Role::Namespace => {
            fields.insert("spec".to_owned(), json!({"finalizers": ["kubernetes"]}));
            fields.insert("status".to_owned(), json!({"phase": "Active"}));
        }
        Role::Pod => {
            fields.insert("status".to_owned(), json!({"phase": "Pending", "qosClass": "BestEffort"}));
        }
        Role::Definition => {
            let stored: Vec<Value> = fields
                .get("spec")
                .and_then(|spec| spec.get("versions"))
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
                .filter(|version| version.get("storage").and_then(Value::as_bool) == Some(true))
                .filter_map(|version| version.get("name").cloned())
                .collect();
            let status =
                json!({"conditions": null, "acceptedNames": {"plural": "", "kind": ""}, "storedVersions": stored});
            fields.insert("status".to_owned(), status);
        }
        _ if resource.version(version).is_some_and(|version| version.status) => {
            fields.remove("status");
        }
        _ => {}
    }
    if resource.generation {
        set(object, "generation", Some(json!(1)));
    }
}

/// What is wrong with an object of a custom resource, by its schema. Another kind is refused at once.
pub(super) fn check_custom(ask: &Ask, object: &Value) -> Result<Vec<FieldError>, Refusal> {
    if !ask.resource.is_custom() {
        return Ok(Vec::new());
    }
    let kind = object.get("kind").and_then(Value::as_str).unwrap_or_default();
    if kind != ask.resource.kind {
        let problem = format!("must be {}", ask.resource.kind);
        let error = FieldError::invalid("kind", &json!(kind), &problem);
        return Err(invalid_as(kind, &ask.resource.group, name(object), &[error]));
    }
    let version = ask.resource.version(&ask.version);
    Ok(version.and_then(|version| version.schema.as_ref()).map(|schema| schema.validate(object)).unwrap_or_default())
}
