//! What the garbage collector does with one object: leave it, take references off, delete it, let it go.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{
    Task, USER,
    graph::{Identity, Reference},
};
use crate::sim::{
    audit::Verb,
    catalogue::Resource,
    request::{Ask, PatchKind, Payload},
    status::Refusal,
    value::{finalizers, is_deleting, list, name, namespace, uid, version},
    world::{Reply, World},
};

/// How an attempt ended.
enum Outcome {
    Done,
    /// A read found nothing; the graph will hear of it.
    Vanished,
    /// Never to be repeated: an owner in a namespace, of something in cluster scope.
    Impossible,
    /// To be repeated.
    Failed(String),
}

/// What a reference comes to.
enum Owner {
    Solid,
    /// It waits in the foreground for its dependents.
    Waiting,
    Dangling,
}

impl World {
    pub(super) fn gc_do(&mut self, task: Task) -> String {
        // What an attempt wrote itself makes it worth repeating.
        let (now, stamp) = (self.elapsed, self.stamp());
        match &task {
            Task::Delete(uid) => {
                let Some(node) = self.controllers.gc.graph.get(uid) else {
                    self.controllers.gc.forget(&task);
                    return format!("forget {uid}");
                };
                let identity = node.identity.clone();
                let about = format!("judge {} {}/{}", identity.kind, identity.namespace, identity.name);
                match self.gc_judge(&identity) {
                    Outcome::Done if self.controllers.gc.graph.get(uid).is_some_and(|node| node.is_virtual) => {
                        // Until it is seen or proven absent it is asked about again and again.
                        self.controllers.gc.retry(task, now, Some(stamp));
                        about
                    }
                    Outcome::Done | Outcome::Vanished | Outcome::Impossible => {
                        self.controllers.gc.forget(&task);
                        about
                    }
                    Outcome::Failed(why) => {
                        self.controllers.gc.retry(task, now, Some(stamp));
                        format!("{about}: {why}")
                    }
                }
            }
            Task::Orphan(uid) => {
                let uid = uid.clone();
                match self.gc_orphan(&uid) {
                    Ok(()) => {
                        self.controllers.gc.forget(&task);
                        format!("orphan the dependents of {uid}")
                    }
                    Err(why) => {
                        self.controllers.gc.retry(task, now, Some(stamp));
                        format!("orphan the dependents of {uid}: {why}")
                    }
                }
            }
        }
    }

    /// The kind of an identity, as the mapper knows it.
    fn gc_kind(&self, api_version: &str, kind: &str) -> Option<Arc<Resource>> {
        self.controllers.gc.mapper.get(&(api_version.to_owned(), kind.to_owned())).cloned()
    }

    fn gc_get(
        &mut self,
        resource: &Arc<Resource>,
        api_version: &str,
        place: &str,
        name: &str,
    ) -> Result<Arc<Value>, Refusal> {
        let place = if resource.namespaced { place } else { "" };
        let mut ask = Ask::by(USER, Verb::Get, resource, place, name);
        ask.version = crate::sim::catalogue::split(api_version).1.to_owned();
        match self.ask(&ask)? {
            Reply::Object { object, .. } => Ok(object),
            _ => Err(Refusal::NotServed),
        }
    }

    fn gc_vanished(&mut self, identity: &Identity) -> Outcome {
        self.controllers.gc.vanished.push_back(identity.clone());
        Outcome::Vanished
    }

    fn gc_judge(&mut self, identity: &Identity) -> Outcome {
        let Some(node) = self.controllers.gc.graph.get(&identity.uid) else { return Outcome::Done };
        let deleting_dependents = node.deleting_dependents;
        if node.being_deleted && !deleting_dependents {
            return Outcome::Done;
        }
        let Some(resource) = self.gc_kind(&identity.api_version, &identity.kind) else {
            return Outcome::Failed(format!("{} {} is not served", identity.api_version, identity.kind));
        };
        if resource.namespaced && identity.namespace.is_empty() {
            return Outcome::Impossible;
        }
        let live = match self.gc_get(&resource, &identity.api_version, &identity.namespace, &identity.name) {
            Ok(live) if uid(&live) == identity.uid => live,
            Ok(_) => return self.gc_vanished(identity),
            Err(refusal) if refusal.is_not_found() => return self.gc_vanished(identity),
            Err(refusal) => return Outcome::Failed(refusal.message().to_owned()),
        };
        if deleting_dependents {
            return self.gc_foreground(identity, &resource, &live);
        }
        let references = Reference::all(&live);
        if references.is_empty() {
            return Outcome::Done;
        }
        let (mut dangling, mut waiting, mut solid) = (Vec::new(), Vec::new(), 0);
        for reference in &references {
            match self.gc_classify(identity, reference) {
                Ok(Owner::Solid) => solid += 1,
                Ok(Owner::Waiting) => waiting.push(reference.uid.clone()),
                Ok(Owner::Dangling) => dangling.push(reference.uid.clone()),
                Err(outcome) => return outcome,
            }
        }
        if solid > 0 {
            dangling.extend(waiting);
            if dangling.is_empty() {
                return Outcome::Done;
            }
            let result = self.gc_drop_references(&resource, &live, &dangling);
            return self.outcome(identity, result);
        }
        let dependents = self.controllers.gc.graph.dependents(&identity.uid);
        let (has, circle) = (!dependents.is_empty(), dependents.iter().any(|node| node.deleting_dependents));
        let policy = if !waiting.is_empty() && has {
            if circle && let Err(refusal) = self.gc_unblock(&resource, &live) {
                return Outcome::Failed(refusal.message().to_owned());
            }
            "Foreground"
        } else if finalizers(&live).contains(&"orphan") {
            "Orphan"
        } else if finalizers(&live).contains(&"foregroundDeletion") {
            "Foreground"
        } else {
            "Background"
        };
        match self.gc_delete(&resource, &live, Some(version(&live)), policy) {
            Err(refusal) if refusal.code() == 409 => self.gc_delete_again(identity, &resource, &live, policy, refusal),
            result => self.outcome(identity, result),
        }
    }

    /// After a conflict: an object that has changed, but not its owners, is deleted all the same.
    fn gc_delete_again(
        &mut self,
        identity: &Identity,
        resource: &Arc<Resource>,
        judged: &Value,
        policy: &str,
        refusal: Refusal,
    ) -> Outcome {
        let read = match self.gc_get(resource, &identity.api_version, &identity.namespace, &identity.name) {
            Ok(read) => read,
            Err(refusal) => return self.outcome(identity, Err(refusal)),
        };
        let changed = uid(&read) == uid(judged) && version(&read) != version(judged);
        let result = if changed && list(&read, "ownerReferences") == list(judged, "ownerReferences") {
            self.gc_delete(resource, &read, None, policy)
        } else {
            Err(refusal)
        };
        self.outcome(identity, result)
    }

    fn outcome(&mut self, identity: &Identity, result: Result<(), Refusal>) -> Outcome {
        match result {
            Ok(()) => Outcome::Done,
            Err(refusal) if refusal.is_not_found() => self.gc_vanished(identity),
            Err(refusal) => Outcome::Failed(refusal.message().to_owned()),
        }
    }

    /// An object that waits for its dependents: those that block it are judged; without any it is let go.
    fn gc_foreground(&mut self, identity: &Identity, resource: &Arc<Resource>, live: &Value) -> Outcome {
        let blocking: Vec<(String, bool)> = self
            .controllers
            .gc
            .graph
            .dependents(&identity.uid)
            .into_iter()
            .filter(|node| node.owners.iter().any(|owner| owner.uid == identity.uid && owner.blocks))
            .map(|node| (node.identity.uid.clone(), node.deleting_dependents))
            .collect();
        if blocking.is_empty() {
            return match self.gc_release(resource, live, "foregroundDeletion") {
                Ok(()) => Outcome::Done,
                Err(refusal) => Outcome::Failed(refusal.message().to_owned()),
            };
        }
        for (uid, deleting_dependents) in blocking {
            if !deleting_dependents {
                self.controllers.gc.add(Task::Delete(uid));
            }
        }
        Outcome::Done
    }

    fn gc_classify(&mut self, item: &Identity, reference: &Reference) -> Result<Owner, Outcome> {
        for place in ["", item.namespace.as_str()] {
            if self.controllers.gc.is_absent(&Identity::referred(reference, place)) {
                return Ok(Owner::Dangling);
            }
        }
        let Some(resource) = self.gc_kind(&reference.api_version, &reference.kind) else {
            return Err(Outcome::Failed(format!(
                "no matches for kind {} in {}",
                reference.kind, reference.api_version
            )));
        };
        if resource.namespaced && item.namespace.is_empty() {
            return Err(Outcome::Impossible);
        }
        let place = if resource.namespaced { item.namespace.as_str() } else { "" };
        match self.gc_get(&resource, &reference.api_version, place, &reference.name) {
            Ok(owner) if uid(&owner) == reference.uid => {
                let waiting = is_deleting(&owner) && finalizers(&owner).contains(&"foregroundDeletion");
                Ok(if waiting { Owner::Waiting } else { Owner::Solid })
            }
            Err(refusal) if !refusal.is_not_found() => Err(Outcome::Failed(refusal.message().to_owned())),
            _ => {
                self.controllers.gc.remember_absent(Identity::referred(reference, place));
                Ok(Owner::Dangling)
            }
        }
    }

    fn gc_patch(
        &mut self,
        resource: &Arc<Resource>,
        live: &Value,
        kind: PatchKind,
        patch: Value,
    ) -> Result<(), Refusal> {
        let mut ask = Ask::by(USER, Verb::Patch, resource, namespace(live), name(live));
        ask.content_type = match kind {
            PatchKind::Strategic => "application/strategic-merge-patch+json",
            _ => "application/merge-patch+json",
        }
        .to_owned();
        ask.payload = Payload::Patch(kind, patch);
        self.ask(&ask).map(drop)
    }

    /// Takes references off by UID.
    fn gc_drop_references(&mut self, resource: &Arc<Resource>, live: &Value, owners: &[String]) -> Result<(), Refusal> {
        if resource.is_custom() {
            let uid_of =
                |reference: &Value| reference.get("uid").and_then(Value::as_str).unwrap_or_default().to_owned();
            let kept: Vec<_> =
                list(live, "ownerReferences").iter().filter(|owner| !owners.contains(&uid_of(owner))).collect();
            let kept = if kept.is_empty() { Value::Null } else { json!(kept) };
            let metadata = json!({"resourceVersion": version(live).to_string(), "ownerReferences": kept});
            return self.gc_patch(resource, live, PatchKind::Merge, json!({"metadata": metadata}));
        }
        let gone: Vec<_> = owners.iter().map(|owner| json!({"$patch": "delete", "uid": owner})).collect();
        let metadata = json!({"ownerReferences": gone, "uid": uid(live)});
        self.gc_patch(resource, live, PatchKind::Strategic, json!({"metadata": metadata}))
    }

    /// Lets no reference of an object block any more: it may be part of a circle.
    fn gc_unblock(&mut self, resource: &Arc<Resource>, live: &Value) -> Result<(), Refusal> {
        let mut references = list(live, "ownerReferences").to_vec();
        for reference in &mut references {
            if reference.get("blockOwnerDeletion") == Some(&json!(true)) {
                reference["blockOwnerDeletion"] = json!(false);
            }
        }
        if resource.is_custom() {
            let metadata = json!({"resourceVersion": version(live).to_string(), "ownerReferences": references});
            return self.gc_patch(resource, live, PatchKind::Merge, json!({"metadata": metadata}));
        }
        let metadata = json!({"ownerReferences": references, "uid": uid(live)});
        self.gc_patch(resource, live, PatchKind::Strategic, json!({"metadata": metadata}))
    }

    fn gc_delete(
        &mut self,
        resource: &Arc<Resource>,
        live: &Value,
        version: Option<u64>,
        policy: &str,
    ) -> Result<(), Refusal> {
        let mut ask = Ask::by(USER, Verb::Delete, resource, namespace(live), name(live));
        ask.payload = Self::delete_options(policy, uid(live), version);
        self.ask(&ask).map(drop)
    }

    /// Takes a finalizer of the garbage collector off.
    fn gc_release(&mut self, resource: &Arc<Resource>, live: &Value, finalizer: &str) -> Result<(), Refusal> {
        let known = finalizers(live);
        if !known.contains(&finalizer) {
            return Ok(());
        }
        let rest: Vec<_> = known.into_iter().filter(|known| *known != finalizer).collect();
        let metadata = json!({"resourceVersion": version(live).to_string(), "finalizers": rest});
        match self.gc_patch(resource, live, PatchKind::Merge, json!({"metadata": metadata})) {
            Err(refusal) if refusal.is_not_found() => Ok(()),
            result => result,
        }
    }

    /// Takes the references to an owner off all dependents in the graph, then its finalizer `orphan`.
    fn gc_orphan(&mut self, owner: &str) -> Result<(), String> {
        let Some(node) = self.controllers.gc.graph.get(owner) else { return Ok(()) };
        let identity = node.identity.clone();
        let dependents: Vec<Identity> =
            self.controllers.gc.graph.dependents(owner).into_iter().map(|node| node.identity.clone()).collect();
        let said = |refusal: Refusal| refusal.message().to_owned();
        for dependent in dependents {
            let Some(resource) = self.gc_kind(&dependent.api_version, &dependent.kind) else {
                return Err(format!("{} {} is not served", dependent.api_version, dependent.kind));
            };
            let live = match self.gc_get(&resource, &dependent.api_version, &dependent.namespace, &dependent.name) {
                Ok(live) => live,
                Err(refusal) if refusal.is_not_found() => continue,
                Err(refusal) => return Err(said(refusal)),
            };
            match self.gc_drop_references(&resource, &live, &[owner.to_owned()]) {
                Err(refusal) if !refusal.is_not_found() => return Err(said(refusal)),
                _ => {}
            }
        }
        let Some(resource) = self.gc_kind(&identity.api_version, &identity.kind) else {
            return Err(format!("{} {} is not served", identity.api_version, identity.kind));
        };
        match self.gc_get(&resource, &identity.api_version, &identity.namespace, &identity.name) {
            Ok(live) if uid(&live) == owner => self.gc_release(&resource, &live, "orphan").map_err(said),
            Ok(_) => Ok(()),
            Err(refusal) if refusal.is_not_found() => Ok(()),
            Err(refusal) => Err(said(refusal)),
        }
    }

    /// Writes the event about a reference that crosses a boundary.
    pub(super) fn gc_report(&mut self, dependent: &Identity, reference: &Reference) {
        let Some(events) = self.catalogue.by_plural("", "events").cloned() else { return };
        let message = format!(
            "ownerRef [{}/{}, namespace: {}, name: {}, uid: {}] does not exist in namespace \"{}\"",
            reference.api_version,
            reference.kind,
            dependent.namespace,
            reference.name,
            reference.uid,
            dependent.namespace
        );
        let key = format!("{} {message}", dependent.uid);
        if self.controllers.gc.reported.contains(&key) {
            return;
        }
        self.controllers.gc.reported.push(key);
        let place = if dependent.namespace.is_empty() { "default" } else { &dependent.namespace };
        let now = self.now();
        let event = json!({
            "apiVersion": "v1", "kind": "Event",
            "metadata": {"name": format!("{}.{:016x}", dependent.name, self.rng.next()), "namespace": place},
            "involvedObject": {
                "apiVersion": dependent.api_version, "kind": dependent.kind, "namespace": dependent.namespace,
                "name": dependent.name, "uid": dependent.uid,
            },
            "type": "Warning", "reason": "OwnerRefInvalidNamespace", "message": message, "count": 1,
            "source": {"component": "garbage-collector-controller"},
            "firstTimestamp": now, "lastTimestamp": now,
            "reportingComponent": "garbage-collector-controller", "reportingInstance": "",
        });
        let mut ask = Ask::by(USER, Verb::Create, &events, place, "");
        ask.payload = Payload::Object(event);
        // Best effort, as on a real cluster: the namespace may be going.
        let _ = self.ask(&ask);
    }
}
