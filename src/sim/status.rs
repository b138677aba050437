//! What the server answers when it refuses: `Status` objects with the real server's code, reason, message, details and
//! causes.

use serde_json::{Value, json};

use super::catalogue::Resource;

/// A request that was refused.
#[derive(Clone, Debug)]
pub(super) enum Refusal {
    Status {
        code: u16,
        body: Value,
    },
    /// The path is not served at all: `404 page not found`, as plain text.
    NotServed,
}

impl Refusal {
    pub(super) fn code(&self) -> u16 {
        match self {
            Self::Status { code, .. } => *code,
            Self::NotServed => 404,
        }
    }

    pub(super) fn reason(&self) -> &str {
        match self {
            Self::Status { body, .. } => body["reason"].as_str().unwrap_or_default(),
            Self::NotServed => "",
        }
    }

    pub(super) fn message(&self) -> &str {
        match self {
            Self::Status { body, .. } => body["message"].as_str().unwrap_or_default(),
            Self::NotServed => NOT_SERVED,
        }
    }

    pub(super) fn is_not_found(&self) -> bool {
        self.code() == 404
    }
}

/// The body of an answer for a path that is not served.
pub(super) const NOT_SERVED: &str = "404 page not found\n";

/// A refusal; an empty reason and absent details are left out.
pub(super) fn refuse(code: u16, reason: &str, message: impl Into<String>, details: Option<Value>) -> Refusal {
    let mut body = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message.into(), "code": code,
    });
    if !reason.is_empty() {
        body["reason"] = json!(reason);
    }
    if let Some(details) = details {
        body["details"] = details;
    }
    Refusal::Status { code, body }
}

/// `details` that name an object; `kind` is the resource in most answers, the kind in some.
fn details(name: &str, group: &str, kind: &str) -> Value {
    let mut details = json!({"kind": kind});
    if !name.is_empty() {
        details["name"] = json!(name);
    }
    if !group.is_empty() {
        details["group"] = json!(group);
    }
    details
}

/// `configmaps`, or `widgets.example.com`.
fn qualified(what: &str, group: &str) -> String {
    if group.is_empty() { what.to_owned() } else { format!("{what}.{group}") }
}

pub(super) fn not_found(resource: &Resource, name: &str) -> Refusal {
    not_found_in(&resource.plural, &resource.group, name)
}

pub(super) fn not_found_in(plural: &str, group: &str, name: &str) -> Refusal {
    let message = format!("{} \"{name}\" not found", qualified(plural, group));
    refuse(404, "NotFound", message, Some(details(name, group, plural)))
}

/// An unknown resource in a group and version that is served, or an unknown subresource.
pub(super) fn no_resource() -> Refusal {
    refuse(404, "NotFound", "the server could not find the requested resource", Some(json!({})))
}

pub(super) fn method_not_allowed() -> Refusal {
    let message = "the server does not allow this method on the requested resource";
    refuse(405, "MethodNotAllowed", message, Some(json!({})))
}

pub(super) fn already_exists(resource: &Resource, name: &str, deleting: bool) -> Refusal {
    let prefix = if deleting { "object is being deleted: " } else { "" };
    let message = format!("{prefix}{} \"{name}\" already exists", qualified(&resource.plural, &resource.group));
    refuse(409, "AlreadyExists", message, Some(details(name, &resource.group, &resource.plural)))
}

/// A conflict that names the resource.
pub(super) fn conflict(resource: &Resource, name: &str, why: &str) -> Refusal {
    conflict_on(&resource.plural, &resource.group, name, why)
}

/// A conflict of preconditions names the kind.
pub(super) fn precondition(resource: &Resource, name: &str, why: &str) -> Refusal {
    conflict_on(&resource.kind, &resource.group, name, why)
}

fn conflict_on(what: &str, group: &str, name: &str, why: &str) -> Refusal {
    let message = format!("Operation cannot be fulfilled on {} \"{name}\": {why}", qualified(what, group));
    refuse(409, "Conflict", message, Some(details(name, group, what)))
}

pub(super) const MODIFIED: &str =
    "the object has been modified; please apply your changes to the latest version and try again";

pub(super) fn bad_request(message: impl Into<String>) -> Refusal {
    refuse(400, "BadRequest", message, None)
}

pub(super) fn internal(message: impl Into<String>) -> Refusal {
    refuse(500, "", message, None)
}

/// `name` is empty for requests about no single object.
pub(super) fn forbidden(resource: &Resource, name: &str, why: &str, causes: &[Value]) -> Refusal {
    let what = qualified(&resource.plural, &resource.group);
    let object = if name.is_empty() { what } else { format!("{what} \"{name}\"") };
    let mut details = details(name, &resource.group, &resource.plural);
    if !causes.is_empty() {
        details["causes"] = json!(causes);
    }
    refuse(403, "Forbidden", format!("{object} is forbidden: {why}"), Some(details))
}

/// A list or watch whose resource version is no longer kept.
pub(super) fn expired(message: impl Into<String>) -> Refusal {
    refuse(410, "Expired", message, None)
}

/// A JSON patch that can't be carried out. The server does not say why.
pub(super) fn patch_rejected() -> Refusal {
    refuse(422, "Invalid", "the server rejected our request due to an error in our request", Some(json!({})))
}

/// What is wrong with one field.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct FieldError {
    reason: &'static str,
    field: String,
    message: String,
}

impl FieldError {
    pub(super) fn invalid(field: impl Into<String>, value: &Value, detail: &str) -> Self {
        Self { reason: "FieldValueInvalid", field: field.into(), message: format!("Invalid value: {value}: {detail}") }
    }

    /// As JSON schema validation puts it: the type of the value stands for the value.
    pub(super) fn wrong_type(field: &str, found: &str, detail: &str) -> Self {
        let message = format!("Invalid value: \"{found}\": {detail}");
        Self { reason: "FieldValueTypeInvalid", field: field.into(), message }
    }

    pub(super) fn required(field: impl Into<String>, detail: &str) -> Self {
        let message = if detail.is_empty() { "Required value".to_owned() } else { format!("Required value: {detail}") };
        Self { reason: "FieldValueRequired", field: field.into(), message }
    }

    pub(super) fn forbidden(field: impl Into<String>, detail: &str) -> Self {
        Self { reason: "FieldValueForbidden", field: field.into(), message: format!("Forbidden: {detail}") }
    }

    pub(super) fn duplicate(field: impl Into<String>, value: &Value) -> Self {
        Self { reason: "FieldValueDuplicate", field: field.into(), message: format!("Duplicate value: {value}") }
    }

    pub(super) fn unsupported(field: impl Into<String>, value: &Value, supported: &[&str]) -> Self {
        let list: Vec<_> = supported.iter().map(|s| format!("\"{s}\"")).collect();
        let message = format!("Unsupported value: {value}: supported values: {}", list.join(", "));
        Self { reason: "FieldValueNotSupported", field: field.into(), message }
    }

    /// Whether it is about one item of a list.
    pub(super) fn is_about_item(&self) -> bool {
        self.field.ends_with(']')
    }

    fn cause(&self) -> Value {
        json!({"reason": self.reason, "message": self.message, "field": self.field})
    }
}

/// 422 about an object of a kind.
pub(super) fn invalid(resource: &Resource, name: &str, errors: &[FieldError]) -> Refusal {
    invalid_as(&resource.kind, &resource.group, name, errors)
}

/// 422 about something that calls itself `kind`.
pub(super) fn invalid_as(kind: &str, group: &str, name: &str, errors: &[FieldError]) -> Refusal {
    let mut texts: Vec<String> = Vec::new();
    for error in errors {
        let text = format!("{}: {}", error.field, error.message);
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    let joined = match texts.as_slice() {
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    };
    let mut details = details(name, group, kind);
    details["causes"] = errors.iter().map(FieldError::cause).collect();
    refuse(422, "Invalid", format!("{} \"{name}\" is invalid: {joined}", qualified(kind, group)), Some(details))
}

/// 422 about the options of a request.
pub(super) fn invalid_options(kind: &str, error: FieldError) -> Refusal {
    invalid_as(kind, "meta.k8s.io", "", &[error])
}

/// The answer to a DELETE that took an object away.
pub(super) fn deleted(resource: &Resource, name: &str, uid: &str) -> Value {
    let mut details = details(name, &resource.group, &resource.plural);
    details["uid"] = json!(uid);
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
}
