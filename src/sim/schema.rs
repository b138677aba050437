//! The schema of a custom resource: what it drops, fills in and refuses.
//!
//! Types, `required`, `enum`, bounds and the uniqueness of list keys are checked; `pattern`, `format`, `oneOf` and
//! the like, and CEL rules, are not.

use serde_json::{Map, Value, json};

use super::status::FieldError;

/// The `openAPIV3Schema` of one version.
#[derive(Debug)]
pub(super) struct Schema(Value);

impl Schema {
    pub(super) fn new(schema: Value) -> Self {
        Self(schema)
    }

    pub(super) fn root(&self) -> &Value {
        &self.0
    }

    /// Drops fields that the schema does not know.
    pub(super) fn prune(&self, object: &mut Value) {
        let Value::Object(map) = object else { return };
        let kept: Vec<(String, Value)> =
            ["apiVersion", "kind", "metadata"].into_iter().filter_map(|f| map.remove_entry(f)).collect();
        prune(&self.0, object);
        if let Value::Object(map) = object {
            map.extend(kept);
        }
    }

    /// Fills in defaults.
    pub(super) fn default(&self, object: &mut Value) {
        default(&self.0, object);
    }

    /// Why an applied configuration does not fit the schema at all, in the words of structured merge.
    pub(super) fn misfits(&self, applied: &Value) -> Vec<String> {
        let mut errors = Vec::new();
        for (name, value) in applied.as_object().into_iter().flatten() {
            if !matches!(name.as_str(), "apiVersion" | "kind" | "metadata") {
                misfit_field(&self.0, name, value, "", &mut errors);
            }
        }
        errors.sort();
        errors
    }

    /// What is wrong with an object.
    pub(super) fn validate(&self, object: &Value) -> Vec<FieldError> {
        let mut errors = Vec::new();
        validate(&self.0, object, "", &mut errors);
        duplicates(&self.0, object, "", &mut errors);
        errors
    }
}

fn flag(schema: &Value, name: &str) -> bool {
    schema.get(name).and_then(Value::as_bool).unwrap_or(false)
}

/// The schema of a field: declared, or that of additional fields.
pub(super) fn field<'a>(schema: &'a Value, name: &str) -> Option<&'a Value> {
    let declared = schema.get("properties").and_then(|properties| properties.get(name));
    declared.or_else(|| schema.get("additionalProperties").filter(|additional| additional.is_object()))
}

fn prune(schema: &Value, value: &mut Value) {
    match value {
        Value::Object(map) => {
            let preserve = flag(schema, "x-kubernetes-preserve-unknown-fields");
            let open = schema.get("additionalProperties").is_some_and(|additional| additional != &json!(false));
            let embedded = flag(schema, "x-kubernetes-embedded-resource");
            map.retain(|name, _| {
                preserve
                    || open
                    || field(schema, name).is_some()
                    || (embedded && matches!(name.as_str(), "apiVersion" | "kind" | "metadata"))
            });
            for (name, value) in map {
                if let Some(schema) = field(schema, name) {
                    prune(schema, value);
                }
            }
        }
        Value::Array(items) => {
            if let Some(schema) = schema.get("items") {
                items.iter_mut().for_each(|item| prune(schema, item));
            }
        }
        _ => {}
    }
}

fn default(schema: &Value, value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (name, schema) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
                if let Some(filler) = schema.get("default")
                    && !map.contains_key(name)
                {
                    map.insert(name.clone(), filler.clone());
                }
            }
            for (name, value) in map {
                if let Some(schema) = field(schema, name) {
                    default(schema, value);
                }
            }
        }
        Value::Array(items) => {
            if let Some(schema) = schema.get("items") {
                items.iter_mut().for_each(|item| default(schema, item));
            }
        }
        _ => {}
    }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn below(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

fn validate(schema: &Value, value: &Value, path: &str, errors: &mut Vec<FieldError>) {
    if value.is_null() && flag(schema, "nullable") {
        return;
    }
    let wanted = schema.get("type").and_then(Value::as_str);
    let found = type_of(value);
    let either = flag(schema, "x-kubernetes-int-or-string") && matches!(found, "integer" | "string");
    let fits = match wanted {
        None | Some("") => true,
        Some("number") => matches!(found, "number" | "integer"),
        Some(wanted) => wanted == found || either,
    };
    if !fits {
        let wanted = wanted.unwrap_or_default();
        errors.push(FieldError::wrong_type(
            path,
            found,
            &format!("{path} in body must be of type {wanted}: \"{found}\""),
        ));
        return;
    }
    match value {
        Value::Object(map) => fields(schema, map, path, errors),
        Value::Array(items) => {
            let bounds = [("minItems", "at least"), ("maxItems", "at most")];
            for (name, words) in bounds {
                let Some(bound) = schema.get(name).and_then(Value::as_u64) else { continue };
                let length = u64::try_from(items.len()).unwrap_or(u64::MAX);
                if if name == "minItems" { length < bound } else { length > bound } {
                    let detail = format!("{path} in body should have {words} {bound} items");
                    errors.push(FieldError::invalid(path, &json!(items.len()), &detail));
                }
            }
            if let Some(schema) = schema.get("items") {
                for (index, item) in items.iter().enumerate() {
                    validate(schema, item, &format!("{path}[{index}]"), errors);
                }
            }
        }
        Value::Number(number) => {
            let number = number.as_f64().unwrap_or_default();
            let bound = |name: &str| schema.get(name).and_then(Value::as_f64);
            if let Some(least) = bound("minimum").filter(|least| number < *least) {
                let detail = format!("{path} in body should be greater than or equal to {least}");
                errors.push(FieldError::invalid(path, value, &detail));
            }
            if let Some(most) = bound("maximum").filter(|most| number > *most) {
                let detail = format!("{path} in body should be less than or equal to {most}");
                errors.push(FieldError::invalid(path, value, &detail));
            }
        }
        Value::String(text) => {
            let length = u64::try_from(text.chars().count()).unwrap_or(u64::MAX);
            let bound = |name: &str| schema.get(name).and_then(Value::as_u64);
            if let Some(least) = bound("minLength").filter(|least| length < *least) {
                let detail = format!("{path} in body should be at least {least} chars long");
                errors.push(FieldError::invalid(path, value, &detail));
            }
        }
        _ => {}
    }
    if let Some(allowed) = schema.get("enum").and_then(Value::as_array).filter(|allowed| !allowed.contains(value)) {
        let allowed: Vec<_> = allowed.iter().filter_map(Value::as_str).collect();
        errors.push(FieldError::unsupported(path, value, &allowed));
    }
}

fn fields(schema: &Value, map: &Map<String, Value>, path: &str, errors: &mut Vec<FieldError>) {
    for (name, value) in map {
        // The API server knows the metadata itself.
        let own = path.is_empty() && matches!(name.as_str(), "apiVersion" | "kind" | "metadata");
        if let Some(schema) = field(schema, name).filter(|_| !own) {
            validate(schema, value, &below(path, name), errors);
        }
    }
    for name in schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str) {
        if !map.contains_key(name) {
            errors.push(FieldError::required(below(path, name), ""));
        }
    }
}

/// Items of sets and of lists with keys must differ.
fn duplicates(schema: &Value, value: &Value, path: &str, errors: &mut Vec<FieldError>) {
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                if let Some(schema) = field(schema, name) {
                    duplicates(schema, value, &below(path, name), errors);
                }
            }
        }
        Value::Array(items) => {
            let keys: Option<Vec<&str>> = match schema.get("x-kubernetes-list-type").and_then(Value::as_str) {
                Some("set") => Some(Vec::new()),
                Some("map") => schema
                    .get("x-kubernetes-list-map-keys")
                    .and_then(Value::as_array)
                    .map(|keys| keys.iter().filter_map(Value::as_str).collect()),
                _ => None,
            };
            let mut seen: Vec<Value> = Vec::new();
            for (index, item) in items.iter().enumerate() {
                if let Some(keys) = &keys {
                    let identity = match keys.as_slice() {
                        [] => item.clone(),
                        keys => keys.iter().filter_map(|k| Some(((*k).to_owned(), item.get(*k)?.clone()))).collect(),
                    };
                    if seen.contains(&identity) {
                        errors.push(FieldError::duplicate(format!("{path}[{index}]"), &identity));
                    }
                    seen.push(identity);
                }
                if let Some(schema) = schema.get("items") {
                    duplicates(schema, item, &format!("{path}[{index}]"), errors);
                }
            }
        }
        _ => {}
    }
}

fn misfit_field(schema: &Value, name: &str, value: &Value, path: &str, errors: &mut Vec<String>) {
    let path = format!("{path}.{name}");
    match field(schema, name) {
        Some(schema) => misfit(schema, value, &path, errors),
        None if flag(schema, "x-kubernetes-preserve-unknown-fields") => {}
        None => errors.push(format!("{path}: field not declared in schema")),
    }
}

fn misfit(schema: &Value, value: &Value, path: &str, errors: &mut Vec<String>) {
    if value.is_null() || flag(schema, "x-kubernetes-int-or-string") {
        return;
    }
    let scalar =
        |wanted: &str| format!("{path}: expected {wanted}, got &value.valueUnstructured{{Value:{}}}", go(value, true));
    match (schema.get("type").and_then(Value::as_str), value) {
        (Some("string"), Value::String(_)) | (Some("boolean"), Value::Bool(_)) => {}
        (Some(wanted @ ("string" | "boolean")), _) => errors.push(scalar(wanted)),
        (Some("integer" | "number"), Value::Number(_)) => {}
        (Some("integer" | "number"), _) => {
            let found = match value {
                Value::String(_) => "string",
                Value::Bool(_) => "bool",
                Value::Array(_) => "[]interface {}",
                _ => "map[string]interface {}",
            };
            errors.push(format!("{path}: expected numeric (int or float), got {found}"));
        }
        (Some("object"), Value::Object(map)) => {
            map.iter().for_each(|(name, value)| misfit_field(schema, name, value, path, errors));
        }
        (Some("object"), _) => errors.push(format!("{path}: expected map, got &{{{}}}", go(value, false))),
        (Some("array"), Value::Array(items)) => {
            for item in items {
                if let Some(schema) = schema.get("items") {
                    misfit(schema, item, path, errors);
                }
            }
        }
        (Some("array"), _) => errors.push(format!("{path}: expected list, got &{{{}}}", go(value, false))),
        _ => {}
    }
}

/// A value as Go prints it, with or without its types.
fn go(value: &Value, typed: bool) -> String {
    let list = |items: Vec<String>| items.join(if typed { ", " } else { " " });
    match value {
        Value::Array(items) => {
            let items = list(items.iter().map(|item| go(item, typed)).collect());
            if typed { format!("[]interface {{}}{{{items}}}") } else { format!("[{items}]") }
        }
        Value::Object(map) if typed => {
            let items = list(map.iter().map(|(name, value)| format!("{name:?}:{}", go(value, typed))).collect());
            format!("map[string]interface {{}}{{{items}}}")
        }
        Value::Object(map) => {
            format!("map[{}]", list(map.iter().map(|(name, value)| format!("{name}:{}", go(value, typed))).collect()))
        }
        Value::String(text) if !typed => text.clone(),
        other => other.to_string(),
    }
}
