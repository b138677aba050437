//! Requests to force, put on record before anything follows from them.

use std::{collections::BTreeSet, fmt};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::Inner;
use crate::{
    force::{Admitted, Named, Refused, Request},
    inventory::{Entry, EntryState, Inventory},
    object::{LiveRef, ObjectId, ParentRef},
};

/// Something that is forced, by an admitted request that is on record by now. For an event on the parent, or an audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Forced {
    /// Which object.
    pub object: LiveRef,
    /// The finalizer that is stripped as soon as the object is being deleted; `None` if the object is given up, and left in the
    /// cluster as it is.
    pub finalizer: Option<String>,
    /// Why, in the words of whoever asked.
    pub reason: Option<String>,
}

impl fmt::Display for Forced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.finalizer {
            Some(finalizer) => write!(f, "finalizer {finalizer:?} of {} is stripped by request", self.object)?,
            None => write!(f, "{} is given up by request, and left as it is", self.object)?,
        }
        self.reason.iter().try_for_each(|reason| write!(f, " ({reason})"))
    }
}

/// What came of a request.
#[derive(Debug, Default)]
pub(super) struct Forcing {
    /// What is new on record.
    pub(super) forced: Vec<Forced>,
    /// What is not done, and why.
    pub(super) notes: Vec<String>,
}

impl Inner {
    /// The finalizers that may be stripped of an entry: on record, and still allowed. The record alone is no warrant.
    pub(super) fn to_strip(&self, entry: &Entry) -> BTreeSet<String> {
        let kind = entry.id.group_kind();
        let allowed = entry.forced.stripped().filter(|(name, _)| self.force.strips(&self.manager, &kind, name));
        allowed.map(|(finalizer, _)| finalizer.to_owned()).collect()
    }

    /// Puts what is admitted of the request on the parent, if there is one, into `inventory`, for entries that `chosen` picks.
    /// The caller stores it before anything else.
    pub(super) fn force(
        &self,
        parent: &ParentRef,
        meta: &ObjectMeta,
        inventory: &mut Inventory,
        chosen: impl Fn(&ObjectId) -> bool,
    ) -> Forcing {
        let Some(text) = meta.annotations.as_ref().and_then(|all| all.get(&self.manager.force_annotation())) else {
            return Forcing::default();
        };
        match Request::parse(text) {
            Ok(request) => record(&self.force.admit(&self.manager, &parent.uid, &request), inventory, chosen),
            Err(error) => Forcing { notes: vec![error.to_string()], ..Forcing::default() },
        }
    }
}

/// Takes what is admitted into the record, entry by entry.
fn record(admitted: &Admitted, inventory: &mut Inventory, chosen: impl Fn(&ObjectId) -> bool) -> Forcing {
    // Dependents are the gate's.
    let refused = admitted.refused.iter().filter(|refused| !matches!(refused, Refused::Dependent { .. }));
    let mut forcing = Forcing { notes: refused.map(ToString::to_string).collect(), ..Forcing::default() };
    let reason = admitted.reason.as_deref();
    for (named, finalizers) in &admitted.finalizers {
        match entry_of(inventory, named, &chosen) {
            Ok(entry) if entry.uid.is_some() => {
                for finalizer in finalizers {
                    if !entry.forced.strips(finalizer) {
                        entry.forced.strip(finalizer.clone(), reason);
                        forcing.forced.push(forced(named, Some(finalizer), reason));
                    }
                }
            }
            Ok(_) => {
                forcing.notes.push(format!("nothing is stripped of {}: it was never seen to be ours", named.object))
            }
            Err(words) => forcing.notes.extend(words),
        }
    }
    for named in &admitted.abandon {
        match entry_of(inventory, named, &chosen) {
            Ok(entry) if entry.state == EntryState::Abandoned => {}
            Ok(entry) => {
                entry.state = EntryState::Abandoned;
                entry.forced.abandon(reason);
                forcing.forced.push(forced(named, None, reason));
            }
            Err(words) => forcing.notes.extend(words),
        }
    }
    forcing
}

fn forced(named: &Named, finalizer: Option<&String>, reason: Option<&str>) -> Forced {
    let object = LiveRef::new(named.object.clone(), named.uid.clone());
    Forced { object, finalizer: finalizer.cloned(), reason: reason.map(ToOwned::to_owned) }
}

/// The entry that a request names, if it is about the recorded incarnation. What is gone or not to go needs no words.
fn entry_of<'a>(
    inventory: &'a mut Inventory,
    named: &Named,
    chosen: impl Fn(&ObjectId) -> bool,
) -> Result<&'a mut Entry, Option<String>> {
    let entry = inventory.get_mut(&named.object).filter(|entry| chosen(&entry.id)).ok_or(None)?;
    match &entry.uid {
        Some(uid) if *uid != named.uid => Err(Some(format!(
            "nothing is forced on {}: the request names another incarnation than {uid}",
            named.object
        ))),
        _ => Ok(entry),
    }
}

/// What is on record as forced, in words: what was left, and why.
pub(super) fn recorded(inventory: &Inventory) -> Vec<String> {
    let because = |reason: &str| if reason.is_empty() { String::new() } else { format!(" ({reason})") };
    let forced = inventory.entries().flat_map(|entry| {
        let stripped = entry.forced.stripped().map(move |(finalizer, reason)| {
            format!("finalizer {finalizer:?} of {} is stripped by request{}", entry.id, because(reason))
        });
        let left = entry.forced.abandoned().filter(|_| entry.state == EntryState::Abandoned);
        let left = left.map(|reason| format!("{} is left by request{}", entry.id, because(reason)));
        stripped.chain(left)
    });
    forced.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        force::Allowed,
        inventory::testing::{empty, entry, parent},
        manager::Manager,
        object::Uid,
    };

    fn admitted(uid: &str) -> Admitted {
        let request = json!({"uid": "1", "reason": "it is dead", "finalizers": [
            {"object": "ConfigMap elsewhere/x", "uid": uid, "finalizer": "dead.example.com/x"},
        ], "abandon": [{"object": "ConfigMap elsewhere/y", "uid": uid}]});
        let allowed = Allowed::nothing()
            .finalizer("dead.example.com/x", "ConfigMap".parse().unwrap())
            .abandon("ConfigMap".parse().unwrap());
        let manager = Manager::new("gittrack.example.com").unwrap();
        allowed.admit(&manager, &Uid::new("1").unwrap(), &Request::parse(&request.to_string()).unwrap())
    }

    fn inventory() -> Inventory {
        let mut inventory = empty(&parent("p", "1"));
        for name in ["x", "y", "z"] {
            let mut entry = entry(name);
            entry.uid = Some(Uid::new("u").unwrap());
            entry.state = EntryState::Recorded;
            inventory.insert(entry);
        }
        inventory
    }

    #[test]
    fn c38_what_is_admitted_is_recorded_once_with_its_reason() {
        let mut inventory = inventory();
        let before = inventory.clone();
        let forcing = record(&admitted("u"), &mut inventory, |_| true);
        assert_eq!(forcing.forced.len(), 2, "{forcing:?}");
        assert!(forcing.forced[0].to_string().contains("it is dead"));
        let entry = |name: &str| inventory.get(&format!("ConfigMap elsewhere/{name}").parse().unwrap()).unwrap();
        assert!(entry("x").forced.strips("dead.example.com/x") && entry("x").state == EntryState::Recorded);
        assert_eq!(entry("y").state, EntryState::Abandoned);
        assert_eq!(entry("z"), before.get(&entry("z").id).unwrap());
        let (mut again, once) = (inventory.clone(), inventory.clone());
        assert!(record(&admitted("u"), &mut again, |_| true).forced.is_empty());
        assert_eq!(again, once);
    }

    #[test]
    fn nothing_is_forced_on_another_incarnation_or_on_what_stays() {
        let before = inventory();
        let mut inventory = before.clone();
        let forcing = record(&admitted("other"), &mut inventory, |_| true);
        assert_eq!((forcing.forced.len(), forcing.notes.len()), (0, 2), "{forcing:?}");
        assert!(record(&admitted("u"), &mut inventory, |_| false).forced.is_empty());
        assert_eq!(inventory, before);
    }
}
