use std::{fmt, time::Duration};

use http::request::Parts;
use serde_json::Value;

/// What a request does, in the terms of Kubernetes' audit log and RBAC rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Verb {
    /// Reads one object.
    Get,
    /// Reads a collection.
    List,
    /// Watches a collection or an object.
    Watch,
    /// POST.
    Create,
    /// PUT.
    Update,
    /// PATCH, server-side apply included.
    Patch,
    /// Deletes one object.
    Delete,
    /// Deletes a collection.
    DeleteCollection,
    /// A request that names no resource: discovery, version, health.
    NonResource,
}

impl Verb {
    /// Whether this verb can change something.
    #[must_use]
    pub fn writes(self) -> bool {
        matches!(self, Self::Create | Self::Update | Self::Patch | Self::Delete | Self::DeleteCollection)
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
            Self::NonResource => "nonresource",
        })
    }
}

/// What a request's path names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Target {
    /// The API group; empty for the core group.
    pub group: String,
    /// The API version.
    pub version: String,
    /// The resource, such as `configmaps`. Empty for [`Verb::NonResource`].
    pub plural: String,
    /// The namespace, if the path has one. For a Namespace itself it is `None`.
    pub namespace: Option<String>,
    /// The object, if the path names one. A POST does not: see [`CallHead::name`].
    pub name: Option<String>,
    /// The subresource, such as `status`.
    pub subresource: Option<String>,
}

impl Target {
    /// Takes a path apart as the API server does; `None` if it names no resource.
    fn parse(path: &str) -> Option<Self> {
        let mut parts = path.split('/').filter(|part| !part.is_empty()).map(decode);
        let group = match parts.next()?.as_str() {
            "api" => String::new(),
            "apis" => parts.next()?,
            _ => return None,
        };
        let version = parts.next()?;
        let mut rest: Vec<String> = parts.collect();
        let mut namespace = None;
        // `namespaces/a/status` is a Namespace, `namespaces/a/configmaps` is in one.
        if rest.len() > 2 && rest[0] == "namespaces" && !matches!(rest[2].as_str(), "status" | "finalize") {
            namespace = Some(rest[1].clone());
            rest.drain(..2);
        }
        let mut rest = rest.into_iter();
        Some(Self { group, version, plural: rest.next()?, namespace, name: rest.next(), subresource: rest.next() })
    }
}

fn decode(part: &str) -> String {
    // A path segment is like a query value, but for the plus sign.
    form_urlencoded::parse(part.replace('+', "%2B").as_bytes()).map(|(name, _)| name.into_owned()).collect()
}

/// A call as it is known before it is sent.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CallHead {
    /// Counts the calls of a log from 1, in the order in which they reached the layer. A hook can
    /// hold a call back, so that it is sent after one of a higher number.
    pub seq: u64,
    /// What it does.
    pub verb: Verb,
    /// What it names.
    pub target: Target,
    /// The path as it was sent.
    pub path: String,
    /// The decoded query, in order.
    pub query: Vec<(String, String)>,
    /// The content type of the request, without parameters; empty without one.
    pub content_type: String,
    /// The request's body; a string if it is no JSON, `None` if it is empty or not kept.
    pub body: Option<Value>,
}

impl CallHead {
    pub(super) fn new(parts: &Parts, body: &[u8], keep: bool) -> Self {
        let query: Vec<(String, String)> =
            form_urlencoded::parse(parts.uri.query().unwrap_or_default().as_bytes()).into_owned().collect();
        let path = parts.uri.path().to_owned();
        let target = Target::parse(&path);
        let watch = query.iter().any(|(name, value)| name == "watch" && matches!(value.as_str(), "true" | "1"));
        let verb = match (parts.method.as_str(), &target) {
            (_, None) => Verb::NonResource,
            ("POST", _) => Verb::Create,
            ("PUT", _) => Verb::Update,
            ("PATCH", _) => Verb::Patch,
            ("DELETE", Some(Target { name: Some(_), .. })) => Verb::Delete,
            ("DELETE", _) => Verb::DeleteCollection,
            _ if watch => Verb::Watch,
            (_, Some(Target { name: Some(_), .. })) => Verb::Get,
            _ => Verb::List,
        };
        let content_type = parts.headers.get(http::header::CONTENT_TYPE);
        let content_type = content_type.and_then(|value| value.to_str().ok()).unwrap_or_default();
        Self {
            seq: 0,
            verb,
            target: target.unwrap_or_default(),
            path,
            query,
            content_type: content_type.split(';').next().unwrap_or_default().trim().to_owned(),
            body: if keep { json(body) } else { None },
        }
    }

    /// The value of a query parameter.
    #[must_use]
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// The name of the object: from the path, or from the body of a POST.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.target.name.as_deref().or_else(|| self.body.as_ref()?.pointer("/metadata/name")?.as_str())
    }

    /// Whether this is a server-side apply.
    #[must_use]
    pub fn is_apply(&self) -> bool {
        self.content_type.starts_with("application/apply-patch")
    }

    /// Whether the server was asked to change nothing.
    #[must_use]
    pub fn is_dry_run(&self) -> bool {
        let in_body = self.body.as_ref().and_then(|body| body.get("dryRun"));
        self.parameter("dryRun").is_some()
            || (matches!(self.verb, Verb::Delete | Verb::DeleteCollection) && in_body.is_some())
    }

    /// The UID that a DELETE's precondition names.
    #[must_use]
    pub fn uid_precondition(&self) -> Option<&str> {
        self.body.as_ref()?.pointer("/preconditions/uid")?.as_str()
    }

    /// The resource version that a DELETE's precondition names.
    #[must_use]
    pub fn version_precondition(&self) -> Option<&str> {
        self.body.as_ref()?.pointer("/preconditions/resourceVersion")?.as_str()
    }

    /// The propagation policy that a DELETE states.
    #[must_use]
    pub fn propagation_policy(&self) -> Option<&str> {
        self.body.as_ref()?.get("propagationPolicy")?.as_str()
    }
}

impl fmt::Display for CallHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{} {} ", self.seq, self.verb)?;
        if self.verb == Verb::NonResource {
            return f.write_str(&self.path);
        }
        f.write_str(&self.target.plural)?;
        if !self.target.group.is_empty() {
            write!(f, ".{}", self.target.group)?;
        }
        if let Some(subresource) = &self.target.subresource {
            write!(f, "/{subresource}")?;
        }
        f.write_str(" ")?;
        if let Some(namespace) = &self.target.namespace {
            write!(f, "{namespace}/")?;
        }
        f.write_str(self.name().unwrap_or("*"))?;
        if self.is_apply() {
            f.write_str(" (apply)")?;
        }
        if self.is_dry_run() {
            f.write_str(" (dry run)")?;
        }
        Ok(())
    }
}

/// What became of a call, as its caller saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// It is under way.
    Pending,
    /// The server's answer was passed on. For a watch: its first part; the events follow.
    Answered,
    /// The caller gave up before there was an answer. The server may have carried it out.
    Abandoned,
    /// It was not sent, and a made-up answer was given: [`Fault::Fail`](super::Fault::Fail).
    Refused,
    /// It was sent, and a made-up answer was given instead of the server's:
    /// [`Fault::FailAfter`](super::Fault::FailAfter).
    Replaced,
    /// It was not sent; the caller saw a connection error.
    Dropped,
    /// It was sent; the caller saw a connection error instead of the server's answer.
    Lost,
    /// A real error on the way, in its own words. The server may have carried it out.
    Failed(String),
}

/// One recorded call.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Call {
    /// The request.
    pub head: CallHead,
    /// What the caller saw.
    pub outcome: Outcome,
    /// The server's HTTP status, also where the caller did not see it. `None` if the server was
    /// not asked or did not answer.
    pub code: Option<u16>,
    /// The server's answer, with the same meaning; a string if it is no JSON. `None` for a watch
    /// that was accepted, and where bodies are not kept.
    pub answer: Option<Value>,
    /// Whether the server accepted a change: a writing verb, not a dry run, answered with 2xx,
    /// whether or not the caller got to see that. A repeated DELETE of a terminating object is
    /// accepted too.
    pub effective: bool,
    /// When its caller made it, before all hooks; counted from the making of the log.
    pub made: Duration,
    /// When it was sent, after all hooks; counted from the making of the log.
    pub sent: Option<Duration>,
    /// When the server had answered completely; counted from the making of the log. For a watch:
    /// when it was accepted.
    pub answered: Option<Duration>,
    /// When the server's answer was passed on to the caller; counted from the making of the log. `None` if it never was.
    pub told: Option<Duration>,
    /// What a watch showed, if [`AuditLog::keep_events`](super::AuditLog::keep_events) is on.
    pub events: Vec<WatchEvent>,
}

/// An event of a watch, as it was passed on to the caller.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WatchEvent {
    /// When; counted from the making of the log.
    pub at: Duration,
    /// The event: `type` and `object`.
    pub event: Value,
}

impl Call {
    pub(super) fn new(head: CallHead, made: Duration) -> Self {
        Self {
            head,
            outcome: Outcome::Pending,
            code: None,
            answer: None,
            effective: false,
            made,
            sent: None,
            answered: None,
            told: None,
            events: Vec::new(),
        }
    }

    /// The UID of the object that the server's answer speaks of: that of the object, or of the
    /// details of a Status.
    #[must_use]
    pub fn answered_uid(&self) -> Option<&str> {
        let answer = self.answer.as_ref()?;
        answer.pointer("/metadata/uid").or_else(|| answer.pointer("/details/uid"))?.as_str()
    }

    /// The machine-readable reason of a Status that the server answered with, such as `Conflict`.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        let answer = self.answer.as_ref()?;
        if answer.get("kind")? == "Status" { answer.get("reason")?.as_str() } else { None }
    }
}

impl std::ops::Deref for Call {
    type Target = CallHead;

    fn deref(&self) -> &CallHead {
        &self.head
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.head)?;
        if let Some(code) = self.code {
            write!(f, " -> {code}")?;
        }
        if let Some(reason) = self.reason() {
            write!(f, " {reason}")?;
        }
        match &self.outcome {
            Outcome::Answered => Ok(()),
            Outcome::Failed(error) => write!(f, " failed: {error}"),
            Outcome::Pending => f.write_str(" pending"),
            Outcome::Abandoned => f.write_str(" abandoned"),
            Outcome::Refused => f.write_str(" refused by the test"),
            Outcome::Replaced => f.write_str(" answer replaced by the test"),
            Outcome::Dropped => f.write_str(" dropped by the test"),
            Outcome::Lost => f.write_str(" answer lost by the test"),
        }
    }
}

pub(super) fn json(bytes: &[u8]) -> Option<Value> {
    if bytes.is_empty() {
        return None;
    }
    let parsed = serde_json::from_slice(bytes);
    Some(parsed.unwrap_or_else(|_| Value::String(String::from_utf8_lossy(bytes).into_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(method: &str, uri: &str, body: &str) -> CallHead {
        let request = http::Request::builder().method(method).uri(uri);
        let (parts, ()) = request.header("content-type", "application/json; x=y").body(()).unwrap().into_parts();
        CallHead::new(&parts, body.as_bytes(), true)
    }

    #[test]
    fn paths_are_taken_apart_as_the_server_does() {
        let expect = |method: &str, uri: &str, text: &str| {
            assert_eq!(head(method, uri, "").to_string(), format!("#0 {text}"));
        };
        expect("GET", "/api/v1/namespaces/a", "get namespaces a");
        expect("PUT", "/api/v1/namespaces/a/finalize", "update namespaces/finalize a");
        expect("GET", "/api/v1/namespaces/a/configmaps?&limit=500", "list configmaps a/*");
        expect("GET", "/api/v1/configmaps?&watch=true", "watch configmaps *");
        expect("PATCH", "/apis/x.io/v1/namespaces/a/foos/b/status", "patch foos.x.io/status a/b");
        expect("DELETE", "/apis/x.io/v1/foos/system%3Ab", "delete foos.x.io system:b");
        expect("DELETE", "/apis/x.io/v1/foos", "deletecollection foos.x.io *");
        expect("GET", "/apis/x.io/v1", "nonresource /apis/x.io/v1");
        expect("GET", "/version", "nonresource /version");
        expect("GET", "/api", "nonresource /api");
        expect("DELETE", "/api/v1/pods/p?&dryRun=All", "delete pods p (dry run)");
    }

    #[test]
    fn bodies_tell_names_preconditions_and_dry_runs() {
        let create = head("POST", "/api/v1/namespaces/a/pods", r#"{"metadata":{"name":"p"}}"#);
        assert_eq!((create.verb, create.name()), (Verb::Create, Some("p")));
        assert_eq!(create.content_type, "application/json");
        let body = r#"{"propagationPolicy":"Background","preconditions":{"uid":"u"},"dryRun":["All"]}"#;
        let delete = head("DELETE", "/api/v1/namespaces/a/pods/p?fieldManager=a%20b", body);
        assert_eq!(delete.uid_precondition(), Some("u"));
        assert_eq!(delete.version_precondition(), None);
        assert_eq!(delete.propagation_policy(), Some("Background"));
        assert_eq!(delete.parameter("fieldManager"), Some("a b"));
        assert!(delete.is_dry_run());
    }
}
