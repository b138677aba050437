//! Records every call of a client, and makes calls fail.
//!
//! [`wrap`] builds a client whose calls pass through a [`tower`] layer that writes an
//! [`AuditLog`]. With [`AuditLog::client`] several clients write the same log, and
//! [`AuditLog::layer`] goes into a service stack of your own.
//!
//! # What a call is
//!
//! A call is one HTTP request. These clients do **not** retry by themselves, so the record is
//! exactly what the code under test did; kube's default client would repeat a call that is
//! answered with 429, 503 or 504. [`AuditLog::retrying_client`] puts kube's retries back, outside
//! of the record: each attempt is then a call.
//!
//! The bodies of requests and answers are kept as JSON, except the answers of watches, which
//! stream through. Credentials are added below this layer and are never recorded.
//!
//! # Faults
//!
//! * [`AuditLog::cut_at`] plays a crash of the process: from some call on nothing gets through.
//! * [`AuditLog::on_call`] and [`AuditLog::once`] choose a [`Fault`] for a call.
//! * [`AuditLog::before_call`] runs code right before a call is sent, such as the write of a
//!   foreign party.
//! * [`AuditLog::close_watches`] ends all open watches as an API server does that has had enough.
//!
//! ```no_run
//! # async fn example(plane: &control_plane::Plane) {
//! use control_plane::audit::{CutMode, Fault, Refusal, Verb};
//!
//! let (client, log) = plane.audited("admin");
//! log.once(|call| call.verb == Verb::Delete, Fault::Fail(Refusal::status(429, "TooManyRequests", "later")));
//! log.cut_at(7, CutMode::After); // the seventh call from here takes effect, its answer is lost
//! // ... run the code under test with `client` until `log.cut_off().await` ...
//! assert_eq!(log.count(Verb::Delete), 2, "{log}");
//! # }
//! ```

mod call;
mod fault;
mod layer;
mod log;

use kube::{Client, Config};

pub use self::{
    call::{Call, CallHead, Outcome, Target, Verb, WatchEvent},
    fault::{CutMode, Fault, Gate, Refusal},
    layer::{Audit, AuditBody, AuditService},
    log::AuditLog,
};

/// Builds a client that records its calls in a new log. It does not retry.
///
/// # Errors
///
/// If kube can't use the configuration.
///
/// # Panics
///
/// Outside of a Tokio runtime.
pub fn wrap(config: Config) -> Result<(Client, AuditLog), kube::Error> {
    let log = AuditLog::new();
    Ok((log.client(config)?, log))
}
