//! What can go wrong with a call, and with which.

use std::{fmt, sync::Arc, time::Duration};

use serde_json::json;

use super::{
    audit::{Target, Verb},
    request::Ask,
    status::{Refusal, refuse},
};

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Trouble {
    /// The call is refused with this status code and changes nothing. 429 and 503 ask to come again after a second.
    Refused(u16),
    /// The connection fails before the call arrives: nothing changes, and the caller gets an error.
    Unsent,
    /// The call is carried out and the answer is lost: the caller gets an error.
    AnswerLost,
    /// The call is carried out, and the caller gets an error after this time.
    TimedOut(Duration),
    /// The call is carried out twice, as when something between client and server repeats it; the answer is the
    /// second.
    Repeated,
    /// A list is answered from the state before the last so many writes (of anything), as a lagging cache does.
    Stale(u64),
    /// The caller dies before the call arrives: this call and all later ones of this client never return.
    CrashBefore,
    /// The call is carried out and the caller dies: this call and all later ones of this client never return.
    CrashAfter,
}

impl Trouble {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Refused(_) => "refused",
            Self::Unsent => "unsent",
            Self::AnswerLost => "answer lost",
            Self::TimedOut(_) => "timed out",
            Self::Repeated => "repeated",
            Self::Stale(_) => "stale",
            Self::CrashBefore => "crash before",
            Self::CrashAfter => "crash after",
        }
    }
}

type Condition = Arc<dyn Fn(&str, Verb, &Target) -> bool + Send + Sync>;

/// A [`Trouble`] and the calls that it happens to: by default the very next one.
///
/// ```
/// use kube_custody::sim::{Fault, Trouble, Verb};
///
/// // The second DELETE of a ConfigMap is carried out, and its answer is lost.
/// let fault = Fault::new(Trouble::AnswerLost).verb(Verb::Delete).plural("configmaps").nth(2);
/// # let _ = fault;
/// ```
#[derive(Clone)]
#[must_use]
pub struct Fault {
    trouble: Trouble,
    conditions: Vec<Condition>,
    skip: usize,
    times: usize,
}

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { trouble, skip, times, .. } = self;
        f.debug_struct("Fault").field("trouble", trouble).field("skip", skip).field("times", times).finish()
    }
}

impl Fault {
    /// This trouble, at the next call.
    pub fn new(trouble: Trouble) -> Self {
        Self { trouble, conditions: Vec::new(), skip: 0, times: 1 }
    }

    /// Only at calls for which `condition` holds, given the user, the verb and the target.
    pub fn when(mut self, condition: impl Fn(&str, Verb, &Target) -> bool + Send + Sync + 'static) -> Self {
        self.conditions.push(Arc::new(condition));
        self
    }

    /// Only at calls of this verb.
    pub fn verb(self, verb: Verb) -> Self {
        self.when(move |_, known, _| known == verb)
    }

    /// Only at calls about this resource.
    pub fn plural(self, plural: &str) -> Self {
        let plural = plural.to_owned();
        self.when(move |_, _, target| target.plural == plural)
    }

    /// Only at calls about an object of this name.
    pub fn name(self, name: &str) -> Self {
        let name = name.to_owned();
        self.when(move |_, _, target| target.name == name)
    }

    /// Only at calls of this user.
    pub fn user(self, user: &str) -> Self {
        let user = user.to_owned();
        self.when(move |known, _, _| known == user)
    }

    /// At the `n`th of the calls that fit, counted from 1.
    pub fn nth(mut self, n: usize) -> Self {
        self.skip = n.saturating_sub(1);
        self
    }

    /// At so many calls in a row, from the first or [`nth`](Self::nth) on.
    pub fn times(mut self, times: usize) -> Self {
        self.times = times;
        self
    }

    /// At all calls that fit.
    pub fn always(self) -> Self {
        self.times(usize::MAX)
    }
}

/// The faults that are still to come.
#[derive(Debug, Default)]
pub(super) struct Faults(Vec<Fault>);

impl Faults {
    pub(super) fn add(&mut self, fault: Fault) {
        self.0.push(fault);
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// What happens to a call: the first fault that fits and is due.
    pub(super) fn decide(&mut self, ask: &Ask) -> Option<Trouble> {
        if self.0.is_empty() {
            return None;
        }
        let target = ask.target();
        let mut found = None;
        for fault in &mut self.0 {
            if !fault.conditions.iter().all(|condition| condition(&ask.user, ask.verb, &target)) {
                continue;
            }
            if fault.skip > 0 {
                fault.skip -= 1;
            } else if found.is_none() && fault.times > 0 {
                fault.times = fault.times.saturating_sub(usize::from(fault.times != usize::MAX));
                found = Some(fault.trouble);
            }
        }
        self.0.retain(|fault| fault.times > 0);
        found
    }
}

/// The answer to a call that is refused with this code.
pub(super) fn refused(code: u16) -> Refusal {
    let (reason, message) = match code {
        401 => ("Unauthorized", "Unauthorized"),
        403 => ("Forbidden", "forbidden by a fault"),
        404 => return Refusal::NotServed,
        409 => {
            ("Conflict", "the object has been modified; please apply your changes to the latest version and try again")
        }
        410 => ("Expired", "too old resource version"),
        429 => ("TooManyRequests", "the server has received too many requests and has asked us to try again later"),
        500 => ("InternalError", "an error on the server has prevented the request from succeeding"),
        503 => ("ServiceUnavailable", "the server is currently unable to handle the request"),
        504 => ("Timeout", "the server was unable to return a response in the time allotted"),
        _ => ("", "refused by a fault"),
    };
    let details = if matches!(code, 429 | 503) { json!({"retryAfterSeconds": 1}) } else { json!({}) };
    refuse(code, reason, message, Some(details))
}
