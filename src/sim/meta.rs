//! What the server checks of every object's metadata, in its words.

use serde_json::{Value, json};

use super::{
    catalogue::{Resource, Role, split},
    status::FieldError,
    value::{finalizers, is_deleting, list, meta, name, text},
};

const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const DNS_1035: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";
const QUALIFIED: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";

/// The most bytes that the annotations of an object may have, keys and values.
const MAX_ANNOTATIONS: usize = 256 * 1024;

fn is_label(text: &str) -> bool {
    let bytes = text.as_bytes();
    let inner = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-';
    let outer = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    bytes.iter().all(inner) && outer(bytes.first()) && outer(bytes.last())
}

fn subdomain(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > 253 {
        errors.push("must be no more than 253 characters".to_owned());
    }
    if !text.split('.').all(is_label) {
        errors.push(SUBDOMAIN.to_owned());
    }
    errors
}

fn label(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > 63 {
        errors.push("must be no more than 63 characters".to_owned());
    }
    if !is_label(text) {
        errors.push(if text.contains('.') { "must not contain dots".to_owned() } else { LABEL.to_owned() });
    }
    errors
}

fn dns_1035(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > 63 {
        errors.push("must be no more than 63 characters".to_owned());
    }
    if !is_label(text) || !text.starts_with(|c: char| c.is_ascii_lowercase()) {
        errors.push(DNS_1035.to_owned());
    }
    errors
}

fn path_segment(text: &str) -> Vec<String> {
    if text == "." || text == ".." {
        return vec![format!("may not be '{text}'")];
    }
    ["/", "%"].into_iter().filter(|c| text.contains(c)).map(|c| format!("may not contain '{c}'")).collect()
}

fn is_name_part(text: &str) -> bool {
    let bytes = text.as_bytes();
    let outer = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(b)) && outer(bytes.first()) && outer(bytes.last())
}

/// A name with an optional prefix: of a label, an annotation or a finalizer.
fn qualified(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    let (prefix, part) = match text.split_once('/') {
        None => (None, text),
        Some((_, part)) if part.contains('/') => {
            return vec![
                "a qualified name must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
                    .to_owned(),
            ];
        }
        Some((prefix, part)) => (Some(prefix), part),
    };
    match prefix {
        Some("") => errors.push("prefix part must be non-empty".to_owned()),
        Some(prefix) => errors.extend(subdomain(prefix).into_iter().map(|error| format!("prefix part {error}"))),
        None => {}
    }
    if part.is_empty() {
        errors.push("name part must be non-empty".to_owned());
    } else if part.len() > 63 {
        errors.push("name part must be no more than 63 characters".to_owned());
    }
    if !is_name_part(part) {
        errors.push(QUALIFIED.to_owned());
    }
    errors
}

/// Checks the metadata of an object, on create and on update.
pub(super) fn validate(resource: &Resource, object: &Value, creates: bool) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let given = name(object);
    if given.is_empty() {
        errors.push(FieldError::required("metadata.name", "name or generateName is required"));
    } else if creates {
        let problems = match (resource.group.as_str(), resource.plural.as_str()) {
            _ if resource.path_name => path_segment(given),
            ("", "namespaces") => label(given),
            ("", "services") => dns_1035(given),
            _ => subdomain(given),
        };
        errors.extend(problems.iter().map(|problem| FieldError::invalid("metadata.name", &json!(given), problem)));
    }
    for (key, value) in meta(object, "labels").and_then(Value::as_object).into_iter().flatten() {
        for problem in qualified(key) {
            errors.push(FieldError::invalid("metadata.labels", &json!(key), &problem));
        }
        let value = value.as_str().unwrap_or_default();
        if value.len() > 63 {
            let problem = "must be no more than 63 characters";
            errors.push(FieldError::invalid("metadata.labels", &json!(value), problem));
        }
        if !value.is_empty() && !is_name_part(value) {
            errors.push(FieldError::invalid("metadata.labels", &json!(value), LABEL_VALUE));
        }
    }
    let mut size = 0;
    for (key, value) in meta(object, "annotations").and_then(Value::as_object).into_iter().flatten() {
        size += key.len() + value.as_str().map(str::len).unwrap_or_default();
        for problem in qualified(&key.to_lowercase()) {
            errors.push(FieldError::invalid("metadata.annotations", &json!(key), &problem));
        }
    }
    if size > MAX_ANNOTATIONS {
        let problem = format!("may not be more than {MAX_ANNOTATIONS} bytes");
        errors.push(FieldError::invalid("metadata.annotations", &json!(""), &problem));
    }
    owner_references(object, &mut errors);
    for (place, finalizer) in finalizers(object).into_iter().enumerate() {
        for problem in qualified(finalizer) {
            errors.push(FieldError::invalid("metadata.finalizers", &json!(finalizer), &problem));
        }
        let standard = ["kubernetes", "orphan", "foregroundDeletion"].contains(&finalizer);
        if !resource.is_custom() && !standard && !finalizer.contains('/') {
            let problem = "name is neither a standard finalizer name nor is it fully qualified";
            let path = format!("metadata.finalizers[{place}]");
            errors.push(FieldError::invalid(path, &json!(finalizer), problem));
        }
    }
    if ["orphan", "foregroundDeletion"].iter().all(|finalizer| finalizers(object).contains(finalizer)) {
        let all = json!(finalizers(object));
        let problem = "finalizer orphan and foregroundDeletion cannot be both set";
        errors.push(FieldError::invalid("metadata.finalizers", &all, problem));
    }
    errors
}

fn owner_references(object: &Value, errors: &mut Vec<FieldError>) {
    let references = list(object, "ownerReferences");
    let mut controllers: Vec<String> = Vec::new();
    for reference in references {
        let of = |field: &str| reference.get(field).and_then(Value::as_str).unwrap_or_default();
        let (group, version) = split(of("apiVersion"));
        if version.is_empty() {
            let field = "metadata.ownerReferences.apiVersion";
            errors.push(FieldError::invalid(field, &json!(of("apiVersion")), "version must not be empty"));
        }
        for field in ["kind", "name", "uid"] {
            if of(field).is_empty() {
                let path = format!("metadata.ownerReferences.{field}");
                errors.push(FieldError::invalid(path, &json!(""), "must not be empty"));
            }
        }
        if (group, version, of("kind")) == ("", "v1", "Event") {
            let problem = "/v1, Kind=Event is disallowed from being an owner";
            errors.push(FieldError::invalid("metadata.ownerReferences", reference, problem));
        }
        if reference.get("controller").and_then(Value::as_bool) == Some(true) {
            controllers.push(format!("{}/{}", of("kind"), of("name")));
        }
    }
    if let [first, second, ..] = controllers.as_slice() {
        let problem = format!(
            "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {second}"
        );
        errors.push(FieldError::invalid("metadata.ownerReferences", &json!(references), &problem));
    }
}

/// Checks what an update may not change. The server runs these checks twice, so each cause comes twice.
pub(super) fn validate_update(old: &Value, new: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if is_deleting(old) {
        let known = finalizers(old);
        let mut added: Vec<_> = finalizers(new).into_iter().filter(|finalizer| !known.contains(finalizer)).collect();
        added.sort_unstable();
        added.dedup();
        if !added.is_empty() {
            let list: Vec<_> = added.iter().map(|finalizer| format!("{finalizer:?}")).collect();
            let problem = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                list.join(", ")
            );
            errors.push(FieldError::forbidden("metadata.finalizers", &problem));
        }
    }
    for field in ["uid", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        if meta(old, field) != meta(new, field) {
            let value = meta(new, field).cloned().unwrap_or_default();
            errors.push(FieldError::invalid(format!("metadata.{field}"), &value, "field is immutable"));
        }
    }
    errors
}

/// Whether two states of an object differ in what its generation counts.
pub(super) fn differs_in_spec(resource: &Resource, status_apart: bool, old: &Value, new: &Value) -> bool {
    let counts = |name: &&String| {
        !matches!(name.as_str(), "metadata" | "apiVersion" | "kind")
            && (name.as_str() != "status" || (resource.is_custom() && !status_apart))
    };
    let (Some(old), Some(new)) = (old.as_object(), new.as_object()) else { return false };
    let mut names: Vec<_> = old.keys().chain(new.keys()).filter(counts).collect();
    names.sort_unstable();
    names.dedup();
    names.into_iter().any(|name| old.get(name) != new.get(name))
}

/// Whether removing the last finalizer takes the object away.
pub(super) fn may_vanish(resource: &Resource, old: &Value, new: &Value) -> bool {
    let grace = meta(old, "deletionGracePeriodSeconds").and_then(Value::as_i64).unwrap_or_default();
    is_deleting(old)
        && finalizers(new).is_empty()
        && grace == 0
        && (resource.role != Role::Namespace || namespace_finalizers(new).is_empty())
}

pub(super) fn namespace_finalizers(namespace: &Value) -> &[Value] {
    namespace.pointer("/spec/finalizers").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// The period of grace of a pod: none if it runs nowhere or has ended.
pub(super) fn grace(pod: &Value, asked: Option<i64>) -> i64 {
    let phase = pod.pointer("/status/phase").and_then(Value::as_str).unwrap_or_default();
    let scheduled = pod.pointer("/spec/nodeName").and_then(Value::as_str).is_some_and(|node| !node.is_empty());
    if !scheduled || matches!(phase, "Succeeded" | "Failed") {
        return 0;
    }
    let own = pod.pointer("/spec/terminationGracePeriodSeconds").and_then(Value::as_i64).unwrap_or(30);
    match asked.unwrap_or(own) {
        negative if negative < 0 => 1,
        period => period,
    }
}

/// Whether the text of a time lies in the metadata; used where only presence counts.
pub(super) fn generation(object: &Value) -> i64 {
    meta(object, "generation").and_then(Value::as_i64).unwrap_or_default()
}

/// The name that a request's object gives, if any.
pub(super) fn generate_name(object: &Value) -> &str {
    text(object, "generateName")
}
