//! Reading and changing the metadata of objects that are JSON.

use serde_json::{Map, Value};

/// A field of the metadata.
pub(super) fn meta<'a>(object: &'a Value, field: &str) -> Option<&'a Value> {
    object.get("metadata")?.get(field)
}

/// A text in the metadata; empty if it is missing.
pub(super) fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    meta(object, field).and_then(Value::as_str).unwrap_or_default()
}

pub(super) fn uid(object: &Value) -> &str {
    text(object, "uid")
}

pub(super) fn name(object: &Value) -> &str {
    text(object, "name")
}

pub(super) fn namespace(object: &Value) -> &str {
    text(object, "namespace")
}

pub(super) fn version(object: &Value) -> u64 {
    text(object, "resourceVersion").parse().unwrap_or_default()
}

pub(super) fn is_deleting(object: &Value) -> bool {
    !text(object, "deletionTimestamp").is_empty()
}

/// A list of texts in the metadata.
pub(super) fn texts<'a>(object: &'a Value, field: &str) -> Vec<&'a str> {
    list(object, field).iter().filter_map(Value::as_str).collect()
}

/// A list in the metadata; empty if it is missing.
pub(super) fn list<'a>(object: &'a Value, field: &str) -> &'a [Value] {
    meta(object, field).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

pub(super) fn finalizers(object: &Value) -> Vec<&str> {
    texts(object, "finalizers")
}

pub(super) fn label<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    meta(object, "labels")?.get(key)?.as_str()
}

/// The object as a map; anything else becomes an empty one.
pub(super) fn map(object: &mut Value) -> &mut Map<String, Value> {
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    match object {
        Value::Object(map) => map,
        _ => unreachable!("it was made a map above"),
    }
}

/// The metadata as a map, made if it is missing.
pub(super) fn meta_mut(object: &mut Value) -> &mut Map<String, Value> {
    map(map(object).entry("metadata").or_insert_with(|| Value::Object(Map::new())))
}

/// Sets a field of the metadata, or removes it.
pub(super) fn set(object: &mut Value, field: &str, value: Option<Value>) {
    match value {
        Some(value) => meta_mut(object).insert(field.to_owned(), value),
        None => meta_mut(object).remove(field),
    };
}

/// Sets the finalizers; without any the field goes.
pub(super) fn set_finalizers(object: &mut Value, finalizers: Vec<String>) {
    let list = (!finalizers.is_empty()).then(|| finalizers.into());
    set(object, "finalizers", list);
}

/// Copies a field of the metadata from another object, its absence too.
pub(super) fn copy(object: &mut Value, from: &Value, field: &str) {
    set(object, field, meta(from, field).cloned());
}

/// Removes what the server leaves out when it writes an object: nulls and empty lists and maps of the metadata.
pub(super) fn tidy(object: &mut Value) {
    let empty = |value: &Value| match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    };
    meta_mut(object).retain(|_, value| !empty(value));
}
