//! A request taken apart: from method, path, query, headers and body to what is asked.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;

use super::{
    admission::bad_dry_run,
    audit::{Target, Verb},
    catalogue::{Catalogue, Resource},
    status::{FieldError, Refusal, bad_request, invalid_options, method_not_allowed, no_resource, refuse},
};

/// A request as it came.
#[derive(Clone, Debug)]
pub(super) struct Raw {
    pub(super) user: Arc<str>,
    pub(super) method: String,
    pub(super) path: String,
    pub(super) query: Vec<(String, String)>,
    pub(super) content_type: String,
    pub(super) accept: String,
    pub(super) user_agent: String,
    pub(super) body: Bytes,
}

impl Raw {
    fn parameter(&self, name: &str) -> &str {
        self.query.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str()).unwrap_or_default()
    }

    fn flag(&self, name: &str) -> bool {
        matches!(self.parameter(name), "true" | "1")
    }
}

/// How a patch is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PatchKind {
    Json,
    Merge,
    Strategic,
    Apply { force: bool },
}

/// What comes with a request.
#[derive(Clone, Debug)]
pub(super) enum Payload {
    None,
    Object(Value),
    Patch(PatchKind, Value),
}

/// Options of lists and watches.
#[derive(Clone, Debug, Default)]
pub(super) struct ListOptions {
    pub(super) labels: String,
    pub(super) fields: String,
    pub(super) limit: usize,
    pub(super) continue_token: String,
    pub(super) version: String,
    pub(super) version_match: String,
    pub(super) initial_events: Option<bool>,
    pub(super) bookmarks: bool,
    pub(super) timeout: Option<u64>,
}

/// What is asked of the API server.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub(super) user: Arc<str>,
    pub(super) verb: Verb,
    pub(super) resource: Arc<Resource>,
    pub(super) version: String,
    /// Empty for cluster scope and for all namespaces.
    pub(super) namespace: String,
    /// Empty for a collection.
    pub(super) name: String,
    pub(super) subresource: String,
    pub(super) manager: String,
    pub(super) dry_run: bool,
    pub(super) list: ListOptions,
    pub(super) payload: Payload,
    pub(super) content_type: String,
    /// Whether only metadata is wanted.
    pub(super) partial: bool,
}

impl Ask {
    /// A request by one of the controllers.
    pub(super) fn by(user: &str, verb: Verb, resource: &Arc<Resource>, namespace: &str, name: &str) -> Self {
        Self {
            user: Arc::from(user),
            verb,
            resource: Arc::clone(resource),
            version: resource.preferred().to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            subresource: String::new(),
            manager: user.rsplit(':').next().unwrap_or_default().to_owned(),
            dry_run: false,
            list: ListOptions::default(),
            payload: Payload::None,
            content_type: String::new(),
            partial: true,
        }
    }

    pub(super) fn target(&self) -> Target {
        let named = match &self.payload {
            Payload::Object(object) if self.verb == Verb::Create => super::value::name(object),
            _ => "",
        };
        Target {
            group: self.resource.group.clone(),
            version: self.version.clone(),
            plural: self.resource.plural.clone(),
            namespace: self.namespace.clone(),
            name: if self.name.is_empty() { named.to_owned() } else { self.name.clone() },
            subresource: self.subresource.clone(),
        }
    }

    pub(super) fn body(&self) -> Option<&Value> {
        match &self.payload {
            Payload::None => None,
            Payload::Object(value) | Payload::Patch(_, value) => Some(value),
        }
    }

    pub(super) fn api_version(&self) -> String {
        self.resource.api_version(&self.version)
    }
}

/// Where a request goes.
#[derive(Debug)]
pub(super) enum Routed {
    /// To what the API server says about itself.
    Discovery,
    Ask(Box<Ask>),
}

/// The parts of a path, decoded.
pub(super) fn segments(path: &str) -> Vec<String> {
    let decode = |part: &str| -> String {
        form_urlencoded::parse(part.replace('+', "%2B").as_bytes()).map(|(name, _)| name.into_owned()).collect()
    };
    path.split('/').filter(|part| !part.is_empty()).map(decode).collect()
}

/// Finds out what a request asks.
pub(super) fn route(raw: &Raw, catalogue: &Catalogue) -> Result<Routed, Refusal> {
    let segments = segments(&raw.path);
    let parts: Vec<&str> = segments.iter().map(String::as_str).collect();
    let (group, version, rest) = match parts.as_slice() {
        []
        | ["version" | "healthz" | "readyz" | "livez"]
        | ["api" | "apis"]
        | ["api", _]
        | ["apis", _]
        | ["apis", _, _] => {
            return Ok(Routed::Discovery);
        }
        ["api", version, rest @ ..] => ("", *version, rest),
        ["apis", group, version, rest @ ..] => (*group, *version, rest),
        _ => return Err(Refusal::NotServed),
    };
    if !catalogue.serves(group, version) {
        return Err(Refusal::NotServed);
    }
    // `namespaces/a/status` is a Namespace, `namespaces/a/configmaps` is in one.
    let (namespace, rest) = match rest {
        ["namespaces", namespace, third, more @ ..] if !matches!(*third, "status" | "finalize") => {
            (*namespace, [&[*third], more].concat())
        }
        rest => ("", rest.to_vec()),
    };
    let (plural, name, subresource) = match rest.as_slice() {
        [plural] => (*plural, "", ""),
        [plural, name] => (*plural, *name, ""),
        [plural, name, subresource] => (*plural, *name, *subresource),
        _ => return Err(no_resource()),
    };
    let unknown = || {
        let custom = catalogue.all().any(|known| known.group == group && !known.is_custom());
        if custom { no_resource() } else { Refusal::NotServed }
    };
    let resource = catalogue.find(group, version, plural).ok_or_else(unknown)?;
    if !resource.namespaced && !namespace.is_empty() {
        return Err(unknown());
    }
    let known = match subresource {
        "" => true,
        "status" => resource.version(version).is_some_and(|version| version.status),
        "finalize" => resource.role == super::catalogue::Role::Namespace,
        _ => false,
    };
    if !known {
        return Err(no_resource());
    }
    let watch = raw.flag("watch");
    let verb = match (raw.method.as_str(), name.is_empty()) {
        ("GET", _) if watch => Verb::Watch,
        ("GET", true) => Verb::List,
        ("GET", false) => Verb::Get,
        ("POST", true) => Verb::Create,
        ("PUT", false) => Verb::Update,
        ("PATCH", false) => Verb::Patch,
        ("DELETE", false) if subresource.is_empty() => Verb::Delete,
        ("DELETE", true) => Verb::DeleteCollection,
        _ => return Err(method_not_allowed()),
    };
    // An object is in a namespace, except for a list of all.
    let placed = !resource.namespaced || !namespace.is_empty() || matches!(verb, Verb::List | Verb::Watch);
    if !resource.allows(verb.as_str()) || !placed {
        return Err(method_not_allowed());
    }
    let mut ask = Ask {
        user: Arc::clone(&raw.user),
        verb,
        resource: Arc::clone(resource),
        version: version.to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        subresource: subresource.to_owned(),
        manager: manager(raw),
        dry_run: false,
        list: ListOptions::default(),
        payload: Payload::None,
        content_type: String::new(),
        partial: raw.accept.contains("as=PartialObjectMetadata"),
    };
    fill(raw, &mut ask)?;
    Ok(Routed::Ask(Box::new(ask)))
}

/// The field manager: as asked, or the first part of the user agent.
fn manager(raw: &Raw) -> String {
    match (raw.parameter("fieldManager"), raw.user_agent.split('/').next().unwrap_or_default()) {
        ("", "") => "unknown".to_owned(),
        ("", agent) => agent.to_owned(),
        (manager, _) => manager.to_owned(),
    }
}

fn fill(raw: &Raw, ask: &mut Ask) -> Result<(), Refusal> {
    match ask.verb {
        Verb::List | Verb::Watch => ask.list = list_options(raw)?,
        Verb::Get | Verb::NonResource => {}
        Verb::Create | Verb::Update => {
            dry_run(raw, ask, if ask.verb == Verb::Create { "CreateOptions" } else { "UpdateOptions" })?;
            ask.payload = Payload::Object(decode(raw, &ask.resource)?);
        }
        Verb::Patch => {
            dry_run(raw, ask, "PatchOptions")?;
            let kind = patch_kind(raw, ask)?;
            let body = serde_json::from_slice(&raw.body)
                .map_err(|error| bad_request(format!("error decoding patch: {error}")))?;
            ask.content_type.clone_from(&raw.content_type);
            ask.payload = Payload::Patch(kind, body);
        }
        Verb::Delete | Verb::DeleteCollection => {
            let mut options: Value = if raw.body.is_empty() {
                Value::Null
            } else {
                serde_json::from_slice(&raw.body)
                    .map_err(|error| bad_request(format!("error decoding DeleteOptions: {error}")))?
            };
            if !options.is_object() {
                options = Value::Object(serde_json::Map::new());
            }
            dry_run(raw, ask, "DeleteOptions")?;
            for given in options.get("dryRun").and_then(Value::as_array).into_iter().flatten() {
                match given.as_str() {
                    Some("All") => ask.dry_run = true,
                    other => return Err(bad_dry_run("DeleteOptions", other.unwrap_or_default())),
                }
            }
            if options.get("propagationPolicy").is_none() && !raw.parameter("propagationPolicy").is_empty() {
                options["propagationPolicy"] = raw.parameter("propagationPolicy").into();
            }
            if ask.verb == Verb::DeleteCollection {
                ask.list = list_options(raw)?;
            }
            ask.payload = Payload::Object(options);
        }
    }
    Ok(())
}

fn patch_kind(raw: &Raw, ask: &Ask) -> Result<PatchKind, Refusal> {
    match raw.content_type.as_str() {
        "application/json-patch+json" => Ok(PatchKind::Json),
        "application/merge-patch+json" => Ok(PatchKind::Merge),
        "application/strategic-merge-patch+json" if !ask.resource.is_custom() => Ok(PatchKind::Strategic),
        "application/apply-patch+yaml" if raw.parameter("fieldManager").is_empty() => {
            let error = FieldError::required("fieldManager", "is required for apply patch");
            Err(invalid_options("PatchOptions", error))
        }
        "application/apply-patch+yaml" => Ok(PatchKind::Apply { force: raw.flag("force") }),
        "application/strategic-merge-patch+json" => Err(refuse(
            415,
            "UnsupportedMediaType",
            "the body of the request was in an unknown format - accepted media types include: \
             application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml",
            None,
        )),
        _ => {
            let details = Some(Value::Object(serde_json::Map::new()));
            Err(refuse(415, "UnsupportedMediaType", "415: Unsupported Media Type", details))
        }
    }
}

fn dry_run(raw: &Raw, ask: &mut Ask, options: &str) -> Result<(), Refusal> {
    match raw.parameter("dryRun") {
        "" => Ok(()),
        "All" => {
            ask.dry_run = true;
            Ok(())
        }
        other => Err(bad_dry_run(options, other)),
    }
}

/// Reads the object of a create or an update.
fn decode(raw: &Raw, resource: &Resource) -> Result<Value, Refusal> {
    let kind = &resource.kind;
    let text = || String::from_utf8_lossy(&raw.body).into_owned();
    let object: Value = serde_json::from_slice(&raw.body).map_err(|error| {
        bad_request(format!(
            "the object provided is unrecognized (must be of type {kind}): couldn't get version/kind; json parse \
             error: {error} ({})",
            text()
        ))
    })?;
    let given = object.get("kind").and_then(Value::as_str).unwrap_or_default();
    if given.is_empty() && resource.is_custom() {
        let text = text();
        return Err(bad_request(format!(
            "the object provided is unrecognized (must be of type {kind}): Object 'Kind' is missing in '{text}' ({text})"
        )));
    }
    Ok(object)
}

fn list_options(raw: &Raw) -> Result<ListOptions, Refusal> {
    let options = ListOptions {
        labels: raw.parameter("labelSelector").to_owned(),
        fields: raw.parameter("fieldSelector").to_owned(),
        limit: raw.parameter("limit").parse().unwrap_or_default(),
        continue_token: raw.parameter("continue").to_owned(),
        version: raw.parameter("resourceVersion").to_owned(),
        version_match: raw.parameter("resourceVersionMatch").to_owned(),
        initial_events: match raw.parameter("sendInitialEvents") {
            "" => None,
            other => Some(matches!(other, "true" | "1")),
        },
        bookmarks: raw.flag("allowWatchBookmarks"),
        timeout: raw.parameter("timeoutSeconds").parse().ok(),
    };
    let forbid =
        |detail: &str| Err(invalid_options("ListOptions", FieldError::forbidden("resourceVersionMatch", detail)));
    if options.initial_events.is_some() {
        if options.version_match != "NotOlderThan" {
            return forbid("sendInitialEvents requires setting resourceVersionMatch to NotOlderThan");
        }
    } else if !options.version_match.is_empty() && options.version.is_empty() {
        return forbid("resourceVersionMatch is forbidden unless resourceVersion is provided");
    }
    Ok(options)
}
