use std::{fmt, time::Duration};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, StatusCode, header::CONTENT_TYPE};
use http_body_util::{BodyExt as _, Full};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::layer::AuditBody;

/// Which half of the last call still happens: see [`AuditLog::cut_at`](super::AuditLog::cut_at).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CutMode {
    /// The call is not sent.
    Before,
    /// The call is sent and carried out; its answer is lost.
    After,
}

/// What happens to a call.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Fault {
    /// Nothing special.
    Pass,
    /// It is not sent; this is the answer.
    Fail(Refusal),
    /// It is sent, and this is the answer instead of the server's, as after a time-out inside the
    /// server.
    FailAfter(Refusal),
    /// It is not sent; the caller sees a connection error.
    Drop,
    /// It is sent; the caller sees a connection error instead of the answer.
    LoseAnswer,
    /// It is sent after this time.
    Delay(Duration),
    /// It is sent once the gate is open.
    Pause(Gate),
    /// It is sent, and its answer is passed on once the gate is open.
    HoldAnswer(Gate),
}

/// An answer that a test makes up.
#[derive(Clone, Debug)]
pub struct Refusal {
    code: StatusCode,
    headers: Vec<(HeaderName, HeaderValue)>,
    body: Bytes,
}

impl Refusal {
    /// A Status object, as the API server answers most errors.
    ///
    /// # Panics
    ///
    /// If the code is not between 100 and 999.
    #[must_use]
    pub fn status(code: u16, reason: &str, message: &str) -> Self {
        Self::json(
            code,
            &json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "message": message, "reason": reason, "code": code,
            }),
        )
    }

    /// Any JSON.
    ///
    /// # Panics
    ///
    /// If the code is not between 100 and 999.
    #[must_use]
    pub fn json(code: u16, body: &Value) -> Self {
        Self::new(code, "application/json", body.to_string())
    }

    /// A plain text, as the API server answers for a resource that it does not serve
    /// (`404 page not found`).
    ///
    /// # Panics
    ///
    /// If the code is not between 100 and 999.
    #[must_use]
    pub fn text(code: u16, body: &str) -> Self {
        Self::new(code, "text/plain; charset=utf-8", body.to_owned())
    }

    /// Adds a header, such as `retry-after`.
    ///
    /// # Panics
    ///
    /// If the value is not valid in a header.
    #[must_use]
    pub fn header(mut self, name: &'static str, value: &str) -> Self {
        let value = HeaderValue::from_str(value).expect("a valid header value");
        self.headers.push((HeaderName::from_static(name), value));
        self
    }

    fn new(code: u16, content_type: &'static str, body: String) -> Self {
        Self {
            code: StatusCode::from_u16(code).expect("an HTTP status code"),
            headers: vec![(CONTENT_TYPE, HeaderValue::from_static(content_type))],
            body: body.into(),
        }
    }

    pub(super) fn response(&self) -> Response<AuditBody> {
        let body = Full::new(self.body.clone()).map_err(|never| match never {}).boxed_unsync();
        let mut response = Response::new(body);
        *response.status_mut() = self.code;
        response.headers_mut().extend(self.headers.iter().cloned());
        response
    }
}

/// Holds calls back until the test opens it, and tells the test when one has arrived.
///
/// ```no_run
/// # async fn example(log: control_plane::audit::AuditLog) {
/// use control_plane::audit::{Fault, Gate, Verb};
///
/// let gate = Gate::new();
/// log.once(|call| call.verb == Verb::Delete, Fault::Pause(gate.clone()));
/// // ... start the code under test ...
/// gate.reached().await;
/// // ... change the world while its DELETE is about to be sent ...
/// gate.release();
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Gate {
    state: watch::Sender<GateState>,
}

#[derive(Clone, Copy, Debug, Default)]
struct GateState {
    arrived: usize,
    open: bool,
}

impl Gate {
    /// A closed gate.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Waits until a call has arrived here. At once, if one ever had.
    pub async fn reached(&self) {
        // `self` keeps the sender alive.
        let _ = self.state.subscribe().wait_for(|state| state.arrived > 0).await;
    }

    /// How many calls have arrived so far.
    #[must_use]
    pub fn arrived(&self) -> usize {
        self.state.borrow().arrived
    }

    /// Opens the gate for good: what waits goes on, and nothing waits any more.
    pub fn release(&self) {
        self.state.send_modify(|state| state.open = true);
    }

    pub(super) async fn pass(&self) {
        self.state.send_modify(|state| state.arrived += 1);
        let _ = self.state.subscribe().wait_for(|state| state.open).await;
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.state.borrow().fmt(f)
    }
}
