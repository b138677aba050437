//! DELETE of one object and of a collection.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::create::review;
use crate::sim::{
    admission::{Operation, is_protected},
    audit::Verb,
    catalogue::{Resource, Role},
    meta::{generation, grace, namespace_finalizers},
    request::{Ask, Payload},
    status::{FieldError, Refusal, deleted, forbidden, invalid_options, not_found, precondition},
    storage::key,
    value::{finalizers, is_deleting, map, meta, name, namespace, set, set_finalizers, text, uid, version},
    world::{Reply, World},
};

const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";
/// Holds a CustomResourceDefinition until its objects are gone.
pub(in crate::sim) const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";

/// How to delete.
#[derive(Clone, Debug, Default)]
struct Options {
    uid: Option<String>,
    version: Option<String>,
    policy: Option<String>,
    orphan_dependents: Option<bool>,
    grace: Option<i64>,
}

impl Options {
    fn read(ask: &Ask) -> Result<Self, Refusal> {
        let Payload::Object(body) = &ask.payload else { return Ok(Self::default()) };
        let text = |pointer: &str| body.pointer(pointer).and_then(Value::as_str).map(ToOwned::to_owned);
        let options = Self {
            uid: text("/preconditions/uid"),
            version: text("/preconditions/resourceVersion"),
            policy: text("/propagationPolicy"),
            orphan_dependents: body.get("orphanDependents").and_then(Value::as_bool),
            grace: body
                .get("gracePeriodSeconds")
                .and_then(Value::as_i64)
                .map(|period| if period < 0 { 1 } else { period }),
        };
        if let Some(policy) = &options.policy {
            if options.orphan_dependents.is_some() {
                let problem = "orphanDependents and deletionPropagation cannot be both set";
                let error = FieldError::invalid("propagationPolicy", &json!(policy), problem);
                return Err(invalid_options("DeleteOptions", error));
            }
            if !["Foreground", "Background", "Orphan"].contains(&policy.as_str()) {
                let supported = ["Foreground", "Background", "Orphan", "nil"];
                let error = FieldError::unsupported("propagationPolicy", &json!(policy), &supported);
                return Err(invalid_options("DeleteOptions", error));
            }
        }
        Ok(options)
    }

    fn check(&self, resource: &Resource, object: &Value) -> Result<(), Refusal> {
        if let Some(wanted) = self.uid.as_deref().filter(|wanted| *wanted != uid(object)) {
            let why = format!(
                "the UID in the precondition ({wanted}) does not match the UID in record ({}). The object might have \
                 been deleted and then recreated",
                uid(object)
            );
            return Err(precondition(resource, name(object), &why));
        }
        let current = version(object).to_string();
        if let Some(wanted) = self.version.as_deref().filter(|wanted| *wanted != current) {
            let why = format!(
                "the ResourceVersion in the precondition ({wanted}) does not match the ResourceVersion in record \
                 ({current}). The object might have been modified"
            );
            return Err(precondition(resource, name(object), &why));
        }
        Ok(())
    }

    /// The finalizers after this DELETE: those of the garbage collector are worked out anew each time.
    fn finalizers(&self, resource: &Resource, object: &Value) -> Vec<String> {
        let known = finalizers(object);
        let had = |finalizer: &str| known.contains(&finalizer);
        let add = match (self.orphan_dependents, self.policy.as_deref()) {
            _ if resource.role == Role::Event => None,
            (Some(true), _) | (None, Some("Orphan")) => Some(ORPHAN),
            (None, Some("Foreground")) => Some(FOREGROUND),
            // The storage of namespaces goes its own way.
            (Some(false), _) if resource.role == Role::Namespace => Some(FOREGROUND),
            (Some(false), _) | (None, Some(_)) => None,
            (None, None) if had(ORPHAN) => Some(ORPHAN),
            (None, None) if had(FOREGROUND) => Some(FOREGROUND),
            (None, None) => resource.orphans_by_default.then_some(ORPHAN),
        };
        // One that stays keeps its place.
        let mut list: Vec<String> = known
            .iter()
            .filter(|known| ![ORPHAN, FOREGROUND].contains(known) || add == Some(**known))
            .map(|known| (*known).to_owned())
            .collect();
        if let Some(add) = add.filter(|add| !had(add)) {
            list.push(add.to_owned());
        }
        list
    }
}

impl World {
    pub(in crate::sim) fn delete(&mut self, ask: &Ask) -> Result<Reply, Refusal> {
        let options = Options::read(ask)?;
        if ask.resource.role == Role::Namespace && is_protected(&ask.name) {
            return Err(forbidden(&ask.resource, &ask.name, "this namespace may not be deleted", &[]));
        }
        let live = self.stored(ask).ok_or_else(|| not_found(&ask.resource, &ask.name))?;
        self.delete_one(ask, &live, &options, name(&live))
    }

    /// `called` is the name that a refusal by a policy gives the object.
    fn delete_one(&mut self, ask: &Ask, live: &Arc<Value>, options: &Options, called: &str) -> Result<Reply, Refusal> {
        options.check(&ask.resource, live)?;
        self.admission.review(&review(ask, Operation::Delete, None, Some(live)), called)?;
        self.delete_stored(&ask.resource, live, options, ask.dry_run)
    }

    /// Deletes without asking anybody.
    fn delete_stored(
        &mut self,
        resource: &Arc<Resource>,
        live: &Arc<Value>,
        options: &Options,
        dry_run: bool,
    ) -> Result<Reply, Refusal> {
        let now = self.now();
        let first = !is_deleting(live);
        let mut new = (**live).clone();
        let code = if options.orphan_dependents == Some(false) { 202 } else { 200 };
        match resource.role {
            Role::Namespace if first || !namespace_finalizers(live).is_empty() => {
                if !first {
                    return Ok(object(live));
                }
                set(&mut new, "deletionTimestamp", Some(json!(now)));
                map(&mut new).insert("status".to_owned(), json!({"phase": "Terminating"}));
                set_finalizers(&mut new, options.finalizers(resource, live));
                return Ok(answered(code, self.keep(resource, new, dry_run)));
            }
            Role::Definition if first => {
                set(&mut new, "deletionTimestamp", Some(json!(now)));
                let mut list: Vec<String> = finalizers(live).into_iter().map(ToOwned::to_owned).collect();
                if !list.iter().any(|known| known == CLEANUP) {
                    list.push(CLEANUP.to_owned());
                }
                set_finalizers(&mut new, list);
                let message = "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon";
                crate::sim::controllers::crds::terminating(&mut new, "True", "InstanceDeletionPending", message, &now);
                return Ok(self.keep(resource, new, dry_run));
            }
            _ => {}
        }
        let list = options.finalizers(resource, live);
        let pending = meta(live, "deletionGracePeriodSeconds").and_then(Value::as_i64);
        let period = match (resource.role, pending) {
            (Role::Pod, Some(pending)) if pending > 0 => match options.grace {
                Some(asked) if asked < pending => asked,
                // A pod on its way out: the period can only be shortened, and nothing else be changed.
                _ => return Ok(object(live)),
            },
            (Role::Pod, _) if first => grace(live, options.grace),
            _ => 0,
        };
        if list.is_empty() && period == 0 {
            if !dry_run {
                self.storage.remove(resource.id, &key(namespace(live), name(live)));
            }
            return Ok(if resource.returns_object {
                object(live)
            } else {
                Reply::Status(deleted(resource, name(live), uid(live)))
            });
        }
        if first {
            set(&mut new, "deletionTimestamp", Some(json!(after(&now, period))));
            if generation(live) > 0 {
                set(&mut new, "generation", Some(json!(generation(live) + 1)));
            }
        } else if let Some(pending) = pending {
            let sooner = after(text(live, "deletionTimestamp"), period.min(pending) - pending);
            set(&mut new, "deletionTimestamp", Some(json!(sooner)));
        }
        if resource.role != Role::Definition && (first || period < pending.unwrap_or_default()) {
            set(&mut new, "deletionGracePeriodSeconds", Some(json!(period)));
        }
        set_finalizers(&mut new, list);
        Ok(answered(code, self.keep(resource, new, dry_run)))
    }

    /// Stores the state of a deletion, if it is a new one.
    fn keep(&mut self, resource: &Arc<Resource>, new: Value, dry_run: bool) -> Reply {
        let key = key(namespace(&new), name(&new));
        match self.storage.get(resource.id, &key) {
            Some(live) if **live == new => object(&Arc::clone(live)),
            _ if dry_run => object(&Arc::new(new)),
            _ => object(&self.storage.put(resource.id, &key, new)),
        }
    }

    pub(in crate::sim) fn delete_collection(&mut self, ask: &Ask) -> Result<Reply, Refusal> {
        let options = Options::read(ask)?;
        let mut listing = ask.clone();
        listing.verb = Verb::List;
        let reply = self.list_as_of(&listing, None)?;
        for item in &reply.items {
            let key = key(namespace(item), name(item));
            // One that is gone by now is fine; the first refusal ends it all.
            let Some(live) = self.storage.get(ask.resource.id, &key).cloned() else { continue };
            self.delete_one(ask, &live, &options, "Unknown")?;
        }
        Ok(Reply::List(reply))
    }

    /// Deletes all objects of a kind as the deletion of its definition does: without admission, with no options.
    pub(in crate::sim) fn delete_all_stored(&mut self, resource: &Arc<Resource>) {
        let all: Vec<Arc<Value>> =
            self.storage.table(resource.id).list(None, None).map(|(_, object)| Arc::clone(object)).collect();
        for live in all {
            // Nothing refuses: there are no preconditions.
            let _ = self.delete_stored(resource, &live, &Options::default(), false);
        }
    }

    /// The part of a request that controllers send: a DELETE with preconditions.
    pub(in crate::sim) fn delete_options(policy: &str, uid: &str, version: Option<u64>) -> Payload {
        let mut preconditions = json!({"uid": uid});
        if let Some(version) = version {
            preconditions["resourceVersion"] = json!(version.to_string());
        }
        Payload::Object(json!({"propagationPolicy": policy, "preconditions": preconditions}))
    }
}

/// So many seconds after a time.
fn after(time: &str, seconds: i64) -> String {
    let time: Timestamp = time.parse().unwrap_or_default();
    (time + SignedDuration::from_secs(seconds)).to_string()
}

fn answered(code: u16, reply: Reply) -> Reply {
    match reply {
        Reply::Object { object, .. } => Reply::Object { code, object },
        other => other,
    }
}

fn object(object: &Arc<Value>) -> Reply {
    Reply::Object { code: 200, object: Arc::clone(object) }
}
