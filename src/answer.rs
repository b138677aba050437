//! What the API server means by a refusal.
//!
//! This module decides what an error of a request says, and nothing about what to do next. It matters because
//! one status code stands for very different things: a 404 may name an object that is gone or a path that is not
//! served; a 409 may come from the name, the UID, the resource version, another field manager or an admission
//! webhook; a 403 from RBAC, from a policy or from a namespace that is going away. The machine-readable reason and
//! causes are used where they exist. Where only the message tells, it is matched leniently, and what is not
//! recognised falls into the row that proves least.
//!
//! A message of the server is shown to people, except where it is about a Secret: an admission webhook or a
//! validator may quote content, so of those only code and reason are kept (see [`Refusal::about`]).

use std::{fmt, sync::Arc, time::Duration};

use kube_core::{Status, response::reason};

use crate::object::{GroupKind, ObjectId, ResourceKind};

/// What a request was answered with, when it was not answered with success.
///
/// Only [`Answer::NotFound`] says that an object does not exist, and only the one it names.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Answer {
    /// 404, reason `NotFound`, naming an object. Compare with [`Answer::names`]: a create in a missing namespace
    /// is answered so as well, and names the namespace.
    NotFound {
        /// The resource in paths (`configmaps`), as most answers give it.
        resource: String,
        /// The API group; empty for the core group.
        group: String,
        /// The object's name.
        name: String,
    },
    /// 404 without a named object, such as the plain text `404 page not found`: the path is not served. The object
    /// may well exist under another version; resolve its kind again.
    NoRoute,
    /// 409, reason `AlreadyExists`: the name is taken.
    AlreadyExists {
        /// By an object that is being deleted (message prefix `object is being deleted:`): wait for it.
        terminating: bool,
    },
    /// 409 by a UID precondition, or 422 by a UID in the body of a patch: the object under this name is another
    /// incarnation.
    UidMismatch,
    /// 409 to an apply that carried a UID, when no object exists. Nothing was created.
    NothingToApply,
    /// 409 by a resource version, in the preconditions or in the body: somebody wrote in between.
    VersionMismatch,
    /// 409 to an apply that was not forced: other managers own some of the fields.
    FieldConflict,
    /// 409 of a kind not listed here. Read again and judge again.
    Conflict,
    /// 403 with cause `NamespaceTerminating`: nothing can be created in the namespace any more.
    NamespaceTerminating,
    /// 403 because the kind's CustomResourceDefinition is being deleted: no object of the kind can be created.
    KindTerminating,
    /// 403 by the authorizer: a permission is missing.
    Forbidden,
    /// 401: the credentials are not accepted.
    Unauthorized,
    /// Admission said no: a webhook (with whatever code it chose, 404 and 409 included), a
    /// ValidatingAdmissionPolicy (422, 403, ...) or a built-in plug-in (403).
    Denied {
        /// Which webhook or policy, where the message tells.
        by: Option<String>,
    },
    /// 500: an admission webhook could not be called, and its failure policy is `Fail`.
    WebhookUnavailable {
        /// The webhook's name.
        webhook: String,
    },
    /// 500: the conversion webhook of the kind's CustomResourceDefinition could not be called.
    ConversionUnavailable,
    /// 422: new finalizers cannot be added to an object that is being deleted.
    FinalizersClosed,
    /// 422 with an empty reason: a `test` of a JSON patch did not hold, or its path does not exist. The server does
    /// not say which; read again to tell.
    PatchRejected,
    /// 422 or another 4xx: the request is not valid.
    Invalid,
    /// 405: the kind does not support the verb.
    Unsupported,
    /// 410: the resource version or the continue token is too old; list again.
    Expired,
    /// 429: too many requests.
    TooManyRequests {
        /// How long the server asks to wait.
        retry_after: Option<Duration>,
    },
    /// 504, or reason `Timeout` or `ServerTimeout`. A write may have been carried out.
    Timeout {
        /// How long the server asks to wait.
        retry_after: Option<Duration>,
    },
    /// 502, 503 and other 5xx. A write may have been carried out.
    Unavailable {
        /// How long the server asks to wait.
        retry_after: Option<Duration>,
    },
    /// No answer came: the connection failed. A write may have been carried out.
    NoAnswer,
    /// An answer came that cannot be read. A write may have been carried out.
    Unreadable,
    /// The client could not send the request (configuration, credentials, an illegal parameter). Nothing happened.
    NotSent,
}

impl Answer {
    /// Whether this is the server's word that the object `name` of `resource` does not exist.
    ///
    /// Together with "asked on a served version of the right cluster" this is proof of absence.
    #[must_use]
    pub fn names(&self, resource: &ResourceKind, name: &str) -> bool {
        matches!(self, Self::NotFound { resource: r, group, name: n }
            if (*r == resource.plural || *r == resource.kind) && *group == resource.group && n == name)
    }
}

/// What `error` means; [`Refusal::of`] keeps the words as well.
#[must_use]
pub fn classify(error: &kube_client::Error) -> Answer {
    use kube_client::Error;
    match error {
        Error::Api(status) => classify_status(status),
        Error::HyperError(_) | Error::Service(_) | Error::ReadEvents(_) => Answer::NoAnswer,
        Error::SerdeError(_) | Error::FromUtf8(_) | Error::LinesCodecMaxLineLengthExceeded => Answer::Unreadable,
        _ => Answer::NotSent,
    }
}

/// What a `Status` of failure means, whether it came as an error or inside of a watch.
#[must_use]
pub fn classify_status(status: &Status) -> Answer {
    // An admission webhook chooses code, reason and details freely, so it is looked for before any of them is believed.
    if let Some(by) = admission(&status.message) {
        return Answer::Denied { by: Some(by) };
    }
    let details = status.details.as_ref();
    let causes = details.map(|d| d.causes.as_slice()).unwrap_or_default();
    let retry_after = details.map(|d| u64::from(d.retry_after_seconds)).filter(|s| *s > 0).map(Duration::from_secs);
    match (status.reason.as_str(), status.code) {
        (reason::NOT_FOUND, _) | (_, 404) => match details {
            Some(d) if status.reason == reason::NOT_FOUND && !d.name.is_empty() && !d.kind.is_empty() => {
                Answer::NotFound { resource: d.kind.clone(), group: d.group.clone(), name: d.name.clone() }
            }
            _ => Answer::NoRoute,
        },
        (reason::ALREADY_EXISTS, _) => {
            Answer::AlreadyExists { terminating: status.message.starts_with("object is being deleted") }
        }
        (reason::CONFLICT, _) | (_, 409) => conflict(status),
        (reason::FORBIDDEN, _) | (_, 403) => {
            let message = status.message.as_str();
            if causes.iter().any(|c| c.reason == "NamespaceTerminating") {
                Answer::NamespaceTerminating
            } else if message.contains("while custom resource definition is terminating") {
                Answer::KindTerminating
            } else if is_authorizer(message) {
                Answer::Forbidden
            } else {
                Answer::Denied { by: None }
            }
        }
        (reason::UNAUTHORIZED, _) | (_, 401) => Answer::Unauthorized,
        (reason::INVALID, _) | (_, 422) => {
            let on = |field: &str, words: &str| causes.iter().any(|c| c.field == field && c.message.contains(words));
            if on("metadata.finalizers", "no new finalizers can be added") {
                Answer::FinalizersClosed
            } else if on("metadata.uid", "immutable") {
                Answer::UidMismatch
            } else if causes.is_empty()
                && status.message.contains("rejected our request due to an error in our request")
            {
                Answer::PatchRejected
            } else {
                Answer::Invalid
            }
        }
        (_, 405) => Answer::Unsupported,
        (reason::EXPIRED | reason::GONE, _) | (_, 410) => Answer::Expired,
        (reason::TOO_MANY_REQUESTS, _) | (_, 429) => Answer::TooManyRequests { retry_after },
        (reason::TIMEOUT | reason::SERVER_TIMEOUT, _) | (_, 408 | 504) => Answer::Timeout { retry_after },
        (_, 500..) => server_error(&status.message, retry_after),
        (_, 400..) => Answer::Invalid,
        _ => Answer::Unreadable,
    }
}

/// The webhook or policy that denied a request, by the API server's wording.
fn admission(message: &str) -> Option<String> {
    let quoted = |start: &str, quote: char, verdict: &str| {
        let (_, rest) = message.split_once(start)?;
        let (name, rest) = rest.split_once(quote)?;
        rest.contains(verdict).then(|| name.to_owned())
    };
    quoted("admission webhook \"", '"', "denied the request").or_else(|| {
        let policy = quoted("ValidatingAdmissionPolicy '", '\'', "denied request")?;
        Some(format!("ValidatingAdmissionPolicy {policy}"))
    })
}

/// RBAC says `User "x" cannot delete resource ...`, its escalation check `user "x" ... is attempting to grant ...`.
fn is_authorizer(message: &str) -> bool {
    message.split_once("User \"").is_some_and(|(_, rest)| rest.contains("\" cannot "))
        || message.contains("is attempting to grant RBAC permissions not currently held")
}

fn conflict(status: &Status) -> Answer {
    let message = status.message.to_ascii_lowercase();
    let causes = status.details.as_ref().map(|d| d.causes.as_slice()).unwrap_or_default();
    if message.contains("uid mismatch") && message.contains("no existing object was found") {
        Answer::NothingToApply
    } else if ["the uid in the precondition", "uid in precondition", "uid mismatch"].iter().any(|w| message.contains(w))
    {
        Answer::UidMismatch
    } else if ["the resourceversion in the precondition", "resourceversion in precondition", "has been modified"]
        .iter()
        .any(|w| message.contains(w))
    {
        Answer::VersionMismatch
    } else if causes.iter().any(|c| c.reason == "FieldManagerConflict") {
        Answer::FieldConflict
    } else {
        Answer::Conflict
    }
}

fn server_error(message: &str, retry_after: Option<Duration>) -> Answer {
    let webhook = message.split_once("failed calling webhook \"").and_then(|(_, rest)| rest.split_once('"'));
    match webhook {
        Some((webhook, _)) => Answer::WebhookUnavailable { webhook: webhook.to_owned() },
        None if message.contains("conversion webhook for ") => Answer::ConversionUnavailable,
        None => Answer::Unavailable { retry_after },
    }
}

/// A refusal with the server's own words, ready for a status, an event or an error. Cheap to clone.
///
/// Displays as code, reason and message.
#[derive(Clone, PartialEq, Eq)]
pub struct Refusal(Arc<Parts>);

#[derive(Debug, PartialEq, Eq)]
struct Parts {
    answer: Answer,
    code: u16,
    reason: String,
    message: String,
}

impl Refusal {
    /// Longest message kept, in characters.
    const MAX_MESSAGE: usize = 1000;

    /// The refusal of a request that was not about one object, such as a list or discovery.
    ///
    /// For a request about an object use [`Refusal::about`], which holds back what may not be shown.
    #[must_use]
    pub fn of(error: &kube_client::Error) -> Self {
        Self::new(error, true)
    }

    /// The refusal of a request about `id`. If `id` is a Secret, the message is dropped.
    #[must_use]
    pub fn about(id: &ObjectId, error: &kube_client::Error) -> Self {
        Self::new(error, quotable(&id.group_kind()))
    }

    /// The refusal of a request about objects of `kind`, such as a list. For Secrets, the message is dropped.
    #[must_use]
    pub fn about_kind(kind: &GroupKind, error: &kube_client::Error) -> Self {
        Self::new(error, quotable(kind))
    }

    /// No answer came in time.
    pub(crate) fn silence() -> Self {
        let (reason, message) = (String::new(), "none came in time".to_owned());
        Self(Arc::new(Parts { answer: Answer::NoAnswer, code: 0, reason, message }))
    }

    /// The refusal of a request whose message may not be shown, whatever it was about.
    pub(crate) fn discreet(error: &kube_client::Error) -> Self {
        Self::new(error, false)
    }

    fn new(error: &kube_client::Error, quote: bool) -> Self {
        let (code, reason, message) = match error {
            // kube puts bodies that are no Status into the message, with a reason of its own making.
            kube_client::Error::Api(s) if s.reason == "Failed to parse error data" => (s.code, "", s.message.clone()),
            kube_client::Error::Api(s) => (s.code, s.reason.as_str(), s.message.clone()),
            other => (0, "", with_causes(other)),
        };
        let message = match message.char_indices().nth(Self::MAX_MESSAGE) {
            _ if !quote => String::new(),
            Some((end, _)) => format!("{}...", message.get(..end).unwrap_or_default()),
            None => message,
        };
        Self(Arc::new(Parts { answer: classify(error), code, reason: reason.to_owned(), message }))
    }

    /// What it means.
    #[must_use]
    pub fn answer(&self) -> &Answer {
        &self.0.answer
    }

    /// The HTTP status code, or 0 if there was no readable answer.
    #[must_use]
    pub fn code(&self) -> u16 {
        self.0.code
    }

    /// The machine-readable reason, or empty.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.0.reason
    }

    /// The server's message as it came, cut if very long; empty for a Secret and where there was none.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Words for a person: code, reason and the server's message; for a Secret, code and reason only.
    #[must_use]
    pub fn words_for(&self, id: &ObjectId) -> String {
        self.words(quotable(&id.group_kind()))
    }

    fn words(&self, quote: bool) -> String {
        let head = match (self.0.code, self.0.reason.as_str()) {
            (0, "") => match self.0.answer {
                Answer::NotSent => "request not sent".to_owned(),
                Answer::Unreadable => "unreadable answer".to_owned(),
                _ => "no answer".to_owned(),
            },
            (0, reason) => reason.to_owned(),
            (code, "") => code.to_string(),
            (code, reason) => format!("{code} {reason}"),
        };
        if quote && !self.0.message.is_empty() { format!("{head}: {}", self.0.message) } else { head }
    }
}

impl fmt::Debug for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words(true))
    }
}

impl std::error::Error for Refusal {}

/// Whether the server's messages about objects of `kind` may be shown.
fn quotable(kind: &GroupKind) -> bool {
    !kind.is("", "Secret")
}

/// An error with its causes, as far as its own display leaves them out.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let words = cause.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::Scope;
    use serde_json::json;

    fn status(body: serde_json::Value) -> kube_client::Error {
        kube_client::Error::Api(serde_json::from_value::<Status>(body).unwrap().boxed())
    }

    fn said(code: u16, reason: &str, message: &str) -> Answer {
        classify(&status(json!({"status": "Failure", "code": code, "reason": reason, "message": message})))
    }

    fn config_maps() -> ResourceKind {
        ResourceKind::new("", "v1", "ConfigMap", "configmaps", Scope::Namespaced)
    }

    #[test]
    fn only_a_status_naming_the_object_says_that_it_is_gone() {
        let gone = classify(&status(json!({"status": "Failure", "code": 404, "reason": "NotFound",
            "message": "configmaps \"g\" not found", "details": {"name": "g", "kind": "configmaps"}})));
        assert!(gone.names(&config_maps(), "g"));
        assert!(!gone.names(&config_maps(), "h"));
        assert!(!gone.names(&ResourceKind::new("x.io", "v1", "ConfigMap", "configmaps", Scope::Namespaced), "g"));

        let namespace = classify(&status(json!({"status": "Failure", "code": 404, "reason": "NotFound",
            "message": "namespaces \"g\" not found", "details": {"name": "g", "kind": "namespaces"}})));
        assert!(!namespace.names(&config_maps(), "g"));

        // What kube makes of the body "404 page not found".
        let plain = Status::failure("404 page not found", "Failed to parse error data").with_code(404);
        assert_eq!(classify_status(&plain), Answer::NoRoute);
        let generic = said(404, "NotFound", "the server could not find the requested resource");
        assert_eq!(generic, Answer::NoRoute);
        assert_eq!(said(0, "", ""), Answer::Unreadable, "a JSON body that is no Status");
    }

    #[test]
    fn a_webhook_that_answers_404_proves_nothing() {
        let forged = classify(&status(json!({"status": "Failure", "code": 404, "reason": "NotFound",
            "message": "admission webhook \"guard.example.com\" denied the request: configmaps \"g\" not found",
            "details": {"name": "g", "kind": "configmaps"}})));
        assert_eq!(forged, Answer::Denied { by: Some("guard.example.com".into()) });
    }

    #[test]
    fn the_conflicts_are_told_apart() {
        let precondition = "Operation cannot be fulfilled on ConfigMap \"g\": the UID in the precondition (1) does not match \
             the UID in record (2). The object might have been deleted and then recreated";
        for (reason, message, expected) in [
            ("AlreadyExists", "configmaps \"t\" already exists", Answer::AlreadyExists { terminating: false }),
            (
                "AlreadyExists",
                "object is being deleted: configmaps \"t\" already exists",
                Answer::AlreadyExists { terminating: true },
            ),
            ("Conflict", precondition, Answer::UidMismatch),
            (
                "Conflict",
                "Operation cannot be fulfilled on configmaps \"w\": StorageError: invalid object, Code: 4, Key: \
                 /registry/configmaps/v/w, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in \
                 precondition: 1, UID in object meta: 2",
                Answer::UidMismatch,
            ),
            (
                "Conflict",
                "Operation cannot be fulfilled on ConfigMap \"g\": the ResourceVersion in the precondition (1) does not \
                 match the ResourceVersion in record (254). The object might have been modified",
                Answer::VersionMismatch,
            ),
            (
                "Conflict",
                "Operation cannot be fulfilled on configmaps \"g\": the object has been modified; please apply your \
                 changes to the latest version and try again",
                Answer::VersionMismatch,
            ),
            (
                "Conflict",
                "Operation cannot be fulfilled on configmaps \"zz\": uid mismatch: the provided object specified uid U, \
                 and no existing object was found",
                Answer::NothingToApply,
            ),
            (
                "Conflict",
                "admission webhook \"nousages.protection.crossplane.io\" denied the request: This resource is in-use by 1 \
                 usage(s)",
                Answer::Denied { by: Some("nousages.protection.crossplane.io".into()) },
            ),
            ("Conflict", "something new", Answer::Conflict),
        ] {
            assert_eq!(said(409, reason, message), expected, "{message}");
        }
        let fields = classify(&status(json!({"status": "Failure", "code": 409, "reason": "Conflict",
            "message": "Apply failed with 1 conflict: conflict with \"x\" using v1: .data.a",
            "details": {"causes": [{"reason": "FieldManagerConflict", "message": "conflict with \"x\"", "field": ".data.a"}]}})));
        assert_eq!(fields, Answer::FieldConflict);
    }

    #[test]
    fn the_forbiddens_are_told_apart() {
        let rbac = "configmaps \"a\" is forbidden: User \"alice\" cannot delete resource \"configmaps\" in API group \"\" in \
                    the namespace \"n\"";
        assert_eq!(said(403, "Forbidden", rbac), Answer::Forbidden);
        let escalation = "roles.rbac.authorization.k8s.io \"r\" is forbidden: user \"alice\" (groups=[\"g\"]) is attempting \
                          to grant RBAC permissions not currently held:";
        assert_eq!(said(403, "Forbidden", escalation), Answer::Forbidden);
        let plugin = "namespaces \"default\" is forbidden: this namespace may not be deleted";
        assert_eq!(said(403, "Forbidden", plugin), Answer::Denied { by: None });
        let crd =
            "ks.t.example.com \"new\" is forbidden: create not allowed while custom resource definition is terminating";
        assert_eq!(said(403, "Forbidden", crd), Answer::KindTerminating);
        let policy =
            "configmaps \"pr\" is forbidden: ValidatingAdmissionPolicy 'p0' with binding 'p0' denied request: no";
        let by = Answer::Denied { by: Some("ValidatingAdmissionPolicy p0".into()) };
        assert_eq!(said(422, "Invalid", policy), by);
        assert_eq!(said(403, "Forbidden", policy), by);
        let namespace = classify(&status(json!({"status": "Failure", "code": 403, "reason": "Forbidden",
            "message": "configmaps \"new\" is forbidden: unable to create new content in namespace e because it is being \
                        terminated",
            "details": {"name": "new", "kind": "configmaps", "causes": [{"reason": "NamespaceTerminating",
                "message": "namespace e is being terminated", "field": "metadata.namespace"}]}})));
        assert_eq!(namespace, Answer::NamespaceTerminating);
    }

    #[test]
    fn the_invalids_are_told_apart() {
        let test = "the server rejected our request due to an error in our request";
        assert_eq!(said(422, "Invalid", test), Answer::PatchRejected);
        let caused = |field: &str, message: &str| {
            classify(&status(json!({"status": "Failure", "code": 422, "reason": "Invalid", "message": message,
                "details": {"causes": [{"reason": "FieldValueForbidden", "message": message, "field": field}]}})))
        };
        let closed = "Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers \
                      []string{\"x.example.com/b\"}";
        assert_eq!(caused("metadata.finalizers", closed), Answer::FinalizersClosed);
        assert_eq!(caused("metadata.uid", "Invalid value: \"1\": field is immutable"), Answer::UidMismatch);
        assert_eq!(caused("spec.replicas", "Required value"), Answer::Invalid);
        assert_eq!(said(400, "BadRequest", "no"), Answer::Invalid);
    }

    #[test]
    fn troubles_of_the_server_are_told_apart() {
        let five = Some(Duration::from_secs(5));
        let busy = json!({"status": "Failure", "code": 429, "reason": "TooManyRequests", "message": "later",
            "details": {"retryAfterSeconds": 5}});
        assert_eq!(classify(&status(busy)), Answer::TooManyRequests { retry_after: five });
        assert_eq!(
            said(429, "", "Too many requests, please try again later."),
            Answer::TooManyRequests { retry_after: None }
        );
        assert_eq!(said(504, "Timeout", "slow"), Answer::Timeout { retry_after: None });
        assert_eq!(said(500, "ServerTimeout", "slow"), Answer::Timeout { retry_after: None });
        assert_eq!(said(503, "ServiceUnavailable", "down"), Answer::Unavailable { retry_after: None });
        assert_eq!(said(410, "Expired", "old"), Answer::Expired);
        assert_eq!(said(401, "Unauthorized", "who"), Answer::Unauthorized);
        assert_eq!(said(405, "MethodNotAllowed", "no"), Answer::Unsupported);
        let webhook = "Internal error occurred: failed calling webhook \"w.example.com\": failed to call webhook: Post \
                       \"https://w.n.svc:443/?timeout=10s\": service \"w\" not found";
        assert_eq!(said(500, "InternalError", webhook), Answer::WebhookUnavailable { webhook: "w.example.com".into() });
        let conversion =
            "conversion webhook for t.example.com/v1, Kind=K failed: Post \"https://c.n.svc:443/\": refused";
        assert_eq!(said(500, "", conversion), Answer::ConversionUnavailable);
        assert_eq!(classify(&kube_client::Error::Service("connection reset".into())), Answer::NoAnswer);
        let unreadable = serde_json::from_str::<u8>("<html>").unwrap_err();
        assert_eq!(classify(&kube_client::Error::SerdeError(unreadable)), Answer::Unreadable);
        assert_eq!(classify(&kube_client::Error::TlsRequired), Answer::NotSent);
    }

    #[test]
    fn nothing_but_code_and_reason_of_a_refusal_about_a_secret_is_kept() {
        let error = status(json!({"status": "Failure", "code": 422, "reason": "Invalid", "message": "data: hunter2"}));
        let secret = ObjectId::new("", "Secret", Some("n"), "s").unwrap();
        let other = ObjectId::new("", "ConfigMap", Some("n"), "s").unwrap();
        let kept = Refusal::about(&secret, &error);
        assert_eq!(kept.to_string(), "422 Invalid");
        assert!(!format!("{kept:?}").contains("hunter2"));
        let shown = Refusal::about(&other, &error);
        assert_eq!(shown.to_string(), "422 Invalid: data: hunter2");
        assert_eq!(shown.words_for(&secret), "422 Invalid");
        assert_eq!((shown.code(), shown.reason()), (422, "Invalid"));
    }

    #[test]
    fn words_name_bodies_that_are_no_status_and_are_cut() {
        let plain = Status::failure("404 page not found", "Failed to parse error data").with_code(404);
        assert_eq!(Refusal::of(&kube_client::Error::Api(plain.boxed())).to_string(), "404: 404 page not found");
        let long = Status::failure(&"ä".repeat(5000), "InternalError").with_code(500);
        let words = Refusal::of(&kube_client::Error::Api(long.boxed())).to_string();
        assert_eq!(words.chars().count(), "500 InternalError: ".len() + 1000 + 3);
        let none = Refusal::of(&kube_client::Error::Service("connection reset".into()));
        assert_eq!(none.to_string(), "no answer: ServiceError: connection reset");
    }
}
