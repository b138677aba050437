//! What a parent's status says: conditions in the form of kstatus, written only when their meaning changed.
//!
//! Turns an [`Outcome`] into conditions. It knows no cluster and no clock: the caller passes the conditions the parent
//! carries and the time of the transition. Times are absolute, so a status that says the same as before is the same as
//! before, and writing it again would wake the controller for nothing.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::{
    answer::with_causes,
    custodian::{Hold, Outcome, Phase},
    gate::Blocked,
    teardown::{Blocker, Reason},
};

/// True when everything desired is applied and nothing is left to prune.
pub const READY: &str = "Ready";
/// True while something is under way: applies that wait, or objects that are not gone yet.
pub const RECONCILING: &str = "Reconciling";
/// True when time alone will not help: somebody has to decide or to repair something.
pub const STALLED: &str = "Stalled";

/// Longest message, in bytes: the limit that the API conventions set for conditions.
const MAX_MESSAGE: usize = 32_768;
/// Objects named in a message; the rest is counted.
const NAMED: usize = 10;

/// The conditions `Ready`, `Reconciling` and `Stalled` after a reconcile, or `None` if `previous` says the same already.
///
/// Conditions of other types in `previous` are kept. `lastTransitionTime` becomes `now` where a status changed.
#[must_use]
pub fn conditions(
    outcome: &Outcome,
    previous: &[Condition],
    observed_generation: Option<i64>,
    now: &Time,
) -> Option<Vec<Condition>> {
    let verdict = Verdict::of(outcome);
    let message = cut(verdict.message);
    let wanted = [
        (READY, verdict.ready, verdict.reason),
        (RECONCILING, verdict.reconciling, verdict.reason),
        (STALLED, verdict.stalled, verdict.reason),
    ];
    let ours = |condition: &Condition| wanted.iter().any(|(kind, ..)| *kind == condition.type_);
    let mut all: Vec<_> = previous.iter().filter(|c| !ours(c)).cloned().collect();
    for (kind, status, reason) in wanted {
        let status = if status { "True" } else { "False" };
        let before = previous.iter().find(|c| c.type_ == kind);
        let since = before.filter(|c| c.status == status).map_or(now, |c| &c.last_transition_time);
        all.push(Condition {
            type_: kind.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message: message.clone(),
            observed_generation,
            last_transition_time: since.clone(),
        });
    }
    let same = all.len() == previous.len() && all.iter().all(|c| previous.contains(c));
    (!same).then_some(all)
}

struct Verdict {
    ready: bool,
    reconciling: bool,
    stalled: bool,
    reason: &'static str,
    message: String,
}

impl Verdict {
    fn of(outcome: &Outcome) -> Self {
        let this = |ready, reconciling, stalled, reason, message| Self { ready, reconciling, stalled, reason, message };
        match &outcome.phase {
            Phase::Applied => {
                let message = format!("{} objects are applied", outcome.applied.len());
                this(true, false, false, "Applied", with_notes(message, outcome))
            }
            Phase::Progressing => {
                let stalled = outcome.unapplied.iter().any(|u| !u.problem.is_transient()) || is_stuck(outcome);
                let reason = if outcome.unapplied.is_empty() { "Pruning" } else { "Applying" };
                this(false, true, stalled, reason, with_notes(unfinished(outcome), outcome))
            }
            Phase::Waiting { on } => {
                let stalled = on.iter().any(|unmet| !unmet.why.is_transient());
                let message = named(on.iter().map(|unmet| format!("waits: {unmet}")));
                this(false, !stalled, stalled, "DependenciesNotMet", with_notes(message, outcome))
            }
            Phase::Blocked(blocked) => {
                let stalled = blocked.needs_somebody();
                this(false, true, stalled, "DependentsExist", with_notes(blocking(blocked), outcome))
            }
            Phase::Deleting => {
                let message = with_notes(unfinished(outcome), outcome);
                this(false, true, is_stuck(outcome), deletion_reason(outcome), message)
            }
            Phase::Released | Phase::Gone => {
                this(false, false, false, "Released", "all children are accounted for".into())
            }
            Phase::Held(hold) => {
                let reason = match hold {
                    Hold::InventoryMissing { .. } => "InventoryMissing",
                    Hold::Restored { .. } => "Restored",
                    Hold::OtherCluster { .. } => "OtherCluster",
                    Hold::TargetUnavailable { .. } => "TargetUnavailable",
                    Hold::Releasing { .. } => "Releasing",
                    Hold::Guarded { .. } => "Guarded",
                };
                // An outage ends by itself; all else waits for somebody.
                let waits = matches!(hold, Hold::TargetUnavailable { .. });
                this(false, waits, !waits, reason, with_notes(hold.to_string(), outcome))
            }
            Phase::Failed => {
                let message = outcome.error.as_ref().map(|error| with_causes(error)).unwrap_or_default();
                this(false, false, true, "Failed", message)
            }
        }
    }
}

/// Whether something is left that neither we nor time will solve.
fn is_stuck(outcome: &Outcome) -> bool {
    !outcome.damage.is_empty()
        || outcome.removal.blockers.iter().any(|b| {
            !matches!(b.reason, Reason::Terminating | Reason::Dependents | Reason::Throttled { .. } | Reason::Unknown)
        })
}

/// The one reason that a condition can carry: the first of the blockers', in order of gravity.
fn deletion_reason(outcome: &Outcome) -> &'static str {
    let reasons = || outcome.removal.blockers.iter().map(|b| &b.reason);
    let any = |wanted: fn(&Reason) -> bool| reasons().any(wanted);
    if !outcome.damage.is_empty() {
        "InventoryDamaged"
    } else if any(|r| matches!(r, Reason::Unproven)) {
        "Unproven"
    } else if any(|r| matches!(r, Reason::Disowned)) {
        "Disowned"
    } else if any(|r| matches!(r, Reason::Recreated { .. })) {
        "Recreated"
    } else if any(|r| matches!(r, Reason::InUse { .. })) {
        "InUse"
    } else if any(|r| matches!(r, Reason::UseUnknown)) {
        "UseUnknown"
    } else if any(|r| matches!(r, Reason::Refused)) {
        "DeletionRefused"
    } else if any(|r| matches!(r, Reason::Forbidden)) {
        "Forbidden"
    } else if any(|r| matches!(r, Reason::Terminating)) {
        "WaitingForFinalizers"
    } else {
        "Deleting"
    }
}

fn unfinished(outcome: &Outcome) -> String {
    let unapplied = outcome.unapplied.iter().map(ToString::to_string);
    let blockers = outcome.removal.blockers.iter().map(describe);
    let waiting = outcome.removal.waiting.len();
    let damage = outcome.damage.iter().map(|d| format!("{}: {}", d.place, d.problem));
    let mut message = named(unapplied.chain(blockers).chain(damage));
    if waiting > 0 {
        let words = format!("{waiting} objects wait for those that depend on them");
        message = if message.is_empty() { words } else { format!("{message}; {words}") };
    }
    if message.is_empty() { "under way".into() } else { message }
}

/// Who depends on a parent that is being deleted.
fn blocking(blocked: &Blocked) -> String {
    let by = named(blocked.by.iter().map(|dependent| format!("waits for {dependent}")));
    let rest = Blocked { by: Vec::new(), ..blocked.clone() }.to_string();
    [by, rest].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ")
}

/// A blocker with the time since when, as an absolute one.
fn describe(blocker: &Blocker) -> String {
    match &blocker.since {
        Some(since) => format!("{blocker} (since {})", since.0),
        None => blocker.to_string(),
    }
}

fn with_notes(message: String, outcome: &Outcome) -> String {
    let ignored = outcome.ignored.iter().map(|i| format!("ignored: {i}"));
    let notes = named(outcome.notes.iter().cloned().chain(ignored));
    if notes.is_empty() { message } else { format!("{message}; {notes}") }
}

fn named(items: impl Iterator<Item = String>) -> String {
    let all: Vec<_> = items.collect();
    let mut text = all.iter().take(NAMED).cloned().collect::<Vec<_>>().join("; ");
    if all.len() > NAMED {
        text.push_str(&format!("; and {} more", all.len() - NAMED));
    }
    text
}

fn cut(mut message: String) -> String {
    if message.len() > MAX_MESSAGE {
        let end = (0..=MAX_MESSAGE - 3).rev().find(|i| message.is_char_boundary(*i)).unwrap_or(0);
        message.truncate(end);
        message.push_str("...");
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;

    fn at(second: i64) -> Time {
        Time(Timestamp::from_second(second).unwrap())
    }

    fn status(all: &[Condition], kind: &str) -> (String, Time) {
        let condition = all.iter().find(|c| c.type_ == kind).unwrap();
        (condition.status.clone(), condition.last_transition_time.clone())
    }

    #[test]
    fn a_status_that_says_the_same_is_not_written() {
        let outcome = Outcome::new(None, Phase::Applied);
        let first = conditions(&outcome, &[], Some(1), &at(1)).unwrap();
        assert_eq!(status(&first, READY), ("True".into(), at(1)));
        assert!(conditions(&outcome, &first, Some(1), &at(2)).is_none());
        let next = conditions(&outcome, &first, Some(2), &at(3)).unwrap();
        assert_eq!(status(&next, READY), ("True".into(), at(1)), "seen again, not changed");
        let deleting = Outcome::new(None, Phase::Deleting);
        let last = conditions(&deleting, &next, Some(2), &at(4)).unwrap();
        assert_eq!(status(&last, READY), ("False".into(), at(4)));
        assert_eq!(status(&last, RECONCILING), ("True".into(), at(4)));
        assert_eq!(status(&last, STALLED), ("False".into(), at(1)));
    }

    #[test]
    fn conditions_of_others_stay() {
        let foreign = Condition {
            type_: "Foreign".into(),
            status: "True".into(),
            reason: "X".into(),
            message: String::new(),
            observed_generation: None,
            last_transition_time: at(0),
        };
        let all =
            conditions(&Outcome::new(None, Phase::Applied), std::slice::from_ref(&foreign), None, &at(1)).unwrap();
        assert!(all.contains(&foreign) && all.len() == 4);
        assert!(conditions(&Outcome::new(None, Phase::Applied), &all, None, &at(2)).is_none());
    }

    #[test]
    fn a_long_message_is_cut_and_counted() {
        let mut outcome = Outcome::new(None, Phase::Applied);
        outcome.notes = (0..50).map(|n| format!("note {n} {}", "ä".repeat(5_000))).collect();
        let all = conditions(&outcome, &[], None, &at(1)).unwrap();
        assert!(all.iter().all(|c| c.message.len() <= MAX_MESSAGE));
        outcome.notes = (0..50).map(|n| format!("note {n}")).collect();
        let all = conditions(&outcome, &[], None, &at(1)).unwrap();
        assert!(all[0].message.ends_with("and 40 more"), "{}", all[0].message);
    }
}
