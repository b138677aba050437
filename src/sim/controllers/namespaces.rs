//! The namespace controller: deletes the content of namespaces that are being deleted, pods first, and lets them go
//! when nothing is left.
//!
//! A pass over the kinds is taken one kind at a time, in an order that chance decides, so that others can act in
//! between.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde_json::{Value, json};

use super::Stamp;
use crate::sim::{
    audit::Verb,
    catalogue::{Resource, Role},
    meta::namespace_finalizers,
    request::{Ask, Payload},
    status::Refusal,
    value::{finalizers, is_deleting, map, name, uid, version},
    world::{Reply, World},
};

const USER: &str = "system:serviceaccount:kube-system:namespace-controller";
/// Between an event of a namespace and the pass that it causes.
const DELAY: Duration = Duration::from_secs(5);
/// After a pass that left something behind.
const RETRY: Duration = Duration::from_secs(8);

/// What one pass has found so far.
#[derive(Clone, Debug, Default)]
struct Pass {
    /// Still to be visited, the last one next.
    kinds: Vec<Arc<Resource>>,
    /// Kind and number of what is left.
    left: BTreeMap<String, usize>,
    /// Finalizer and number of objects that have it.
    holds: BTreeMap<String, usize>,
    failures: Vec<String>,
    discovery: Vec<String>,
    only_pods: bool,
    /// Which incarnation it is about.
    uid: String,
    /// What it goes by: how things stood when it began, and its own writes since.
    seen: Stamp,
}

#[derive(Clone, Debug)]
enum Stage {
    /// Until then; if the last pass changed nothing, until something else does.
    Waiting {
        due: Duration,
        seen: Option<Stamp>,
    },
    Running(Pass),
}

#[derive(Debug, Default)]
pub(in crate::sim) struct Namespaces {
    /// Events up to this version have been seen.
    cursor: u64,
    /// By name.
    queue: BTreeMap<String, Stage>,
}

impl World {
    /// Takes in the events of namespaces. An informer does that all the time.
    fn observe_namespaces(&mut self) {
        let Some(namespaces) = self.catalogue.by_role(Role::Namespace) else { return };
        let Some(table) = self.storage.find(namespaces.id) else { return };
        let Namespaces { cursor, queue } = &mut self.controllers.namespaces;
        // A namespace may be gone and there again under its name.
        queue.retain(|name, stage| {
            let of = match stage {
                Stage::Running(pass) => Some(&pass.uid),
                Stage::Waiting { .. } => None,
            };
            table.get(name).is_some_and(|live| is_deleting(live) && of.is_none_or(|of| of == uid(live)))
        });
        let due = self.elapsed + DELAY;
        let mut wait = |name: &str| {
            queue.entry(name.to_owned()).or_insert(Stage::Waiting { due, seen: None });
        };
        if !table.remembers(*cursor) || *cursor == 0 {
            for (_, namespace) in table.list(None, None).filter(|(_, namespace)| is_deleting(namespace)) {
                wait(name(namespace));
            }
        } else {
            for change in table.changes_after(*cursor) {
                match &change.after {
                    Some(namespace) if is_deleting(namespace) => wait(name(namespace)),
                    _ => {}
                }
            }
        }
        *cursor = self.storage.version();
    }

    fn waiting_namespaces(&self) -> Vec<(String, Duration)> {
        let stamp = self.stamp();
        let due = |stage: &Stage| match stage {
            Stage::Waiting { seen: Some(seen), .. } if *seen == stamp => None,
            Stage::Waiting { due, .. } => Some(*due),
            Stage::Running(_) => Some(Duration::ZERO),
        };
        let queue = &self.controllers.namespaces.queue;
        queue.iter().filter_map(|(name, stage)| Some((name.clone(), due(stage)?))).collect()
    }

    pub(super) fn namespaces_ready(&mut self) -> usize {
        self.observe_namespaces();
        self.waiting_namespaces().iter().filter(|(_, due)| *due <= self.elapsed).count()
    }

    pub(super) fn namespaces_due(&self) -> Option<Duration> {
        self.waiting_namespaces().into_iter().map(|(_, due)| due).min()
    }

    pub(super) fn namespaces_step(&mut self, choice: usize) -> String {
        let ready = self.waiting_namespaces().into_iter().filter(|(_, due)| *due <= self.elapsed);
        let Some((namespace, _)) = ready.into_iter().nth(choice) else { return String::new() };
        match self.controllers.namespaces.queue.remove(&namespace) {
            Some(Stage::Running(mut pass)) => {
                // A real pass asks about kinds without objects as well; nothing comes of it.
                while pass.kinds.last().is_some_and(|kind| !self.has_content(&namespace, kind)) {
                    pass.kinds.pop();
                }
                let about = match pass.kinds.pop() {
                    Some(kind) => {
                        self.empty(&namespace, &kind, &mut pass);
                        format!("delete all {} in {namespace}", kind.plural)
                    }
                    None => return self.conclude(&namespace, pass),
                };
                self.controllers.namespaces.queue.insert(namespace, Stage::Running(pass));
                about
            }
            _ => self.begin(&namespace),
        }
    }

    fn begin(&mut self, namespace: &str) -> String {
        let Some(live) = self.namespace(namespace).cloned() else { return format!("{namespace} is gone") };
        if namespace_finalizers(&live).is_empty() {
            return format!("{namespace} is released already");
        }
        let mut pass = Pass { uid: uid(&live).to_owned(), seen: self.stamp(), ..Pass::default() };
        let mut kinds: Vec<Arc<Resource>> = Vec::new();
        let mut pods = None;
        for resource in self.catalogue.all().filter(|resource| resource.namespaced && !resource.versions.is_empty()) {
            if self.catalogue.is_hidden(&resource.group) {
                let group = resource.group.clone();
                if !pass.discovery.contains(&group) {
                    pass.discovery.push(group);
                }
            } else if resource.role == Role::Pod {
                pods = Some(Arc::clone(resource));
            } else {
                kinds.push(Arc::clone(resource));
            }
        }
        self.rng.shuffle(&mut kinds);
        kinds.extend(pods);
        pass.kinds = kinds;
        self.controllers.namespaces.queue.insert(namespace.to_owned(), Stage::Running(pass));
        format!("begin to empty {namespace}")
    }

    fn has_content(&self, namespace: &str, kind: &Resource) -> bool {
        self.storage.find(kind.id).is_some_and(|table| table.list(Some(namespace), None).next().is_some())
    }

    /// A request of a pass.
    fn ask_in(&mut self, pass: &mut Pass, ask: &Ask) -> Result<Reply, Refusal> {
        let before = self.storage.version();
        let reply = self.ask(ask);
        pass.seen.0 += self.storage.version() - before;
        reply
    }

    /// Deletes all objects of a kind and counts what is left.
    fn empty(&mut self, namespace: &str, kind: &Arc<Resource>, pass: &mut Pass) {
        let mut ask = Ask::by(USER, Verb::DeleteCollection, kind, namespace, "");
        ask.payload = Payload::Object(json!({"propagationPolicy": "Background"}));
        if let Err(refusal) = self.ask_in(pass, &ask) {
            if !refusal.is_not_found() {
                pass.failures.push(refusal.message().to_owned());
            }
            return;
        }
        let Ok(Reply::List(left)) = self.ask(&Ask::by(USER, Verb::List, kind, namespace, "")) else { return };
        if left.items.is_empty() {
            return;
        }
        let called = format!("{}.{}", kind.plural, kind.group);
        pass.left.insert(called, left.items.len());
        for finalizer in left.items.iter().flat_map(|object| finalizers(object)) {
            *pass.holds.entry(finalizer.to_owned()).or_default() += 1;
        }
        if kind.role == Role::Pod {
            // Nothing else is touched while there are pods.
            pass.kinds.clear();
            pass.only_pods = true;
        }
    }

    fn conclude(&mut self, namespace: &str, mut pass: Pass) -> String {
        let Some(live) = self.namespace(namespace).cloned() else { return format!("{namespace} is gone") };
        let Some(namespaces) = self.catalogue.by_role(Role::Namespace).cloned() else { return String::new() };
        let done = pass.left.is_empty() && pass.failures.is_empty() && pass.discovery.is_empty();
        let mut new = (*live).clone();
        set_conditions(&mut new, &pass, &self.now());
        let mut ask = Ask::by(USER, Verb::Update, &namespaces, "", namespace);
        if new != *live {
            ask.subresource = "status".to_owned();
            ask.payload = Payload::Object(new);
            if let Ok(Reply::Object { object, .. }) = self.ask_in(&mut pass, &ask) {
                new = (*object).clone();
            } else {
                new = (*live).clone();
            }
        }
        if done {
            let rest: Vec<_> =
                namespace_finalizers(&new).iter().filter(|known| *known != "kubernetes").cloned().collect();
            let emptied = rest.is_empty();
            map(map(&mut new).entry("spec").or_insert_with(|| json!({}))).insert("finalizers".to_owned(), json!(rest));
            ask.subresource = "finalize".to_owned();
            ask.payload = Payload::Object(new);
            if self.ask(&ask).is_ok() {
                return if emptied { format!("let go of {namespace}") } else { format!("leave {namespace} to others") };
            }
        }
        let stage = Stage::Waiting { due: self.elapsed + RETRY, seen: Some(pass.seen) };
        self.controllers.namespaces.queue.insert(namespace.to_owned(), stage);
        format!("{namespace} is not empty at version {}", version(&live))
    }
}

/// The five conditions. While only pods hold a namespace, those about content say False, as the real ones do.
fn set_conditions(namespace: &mut Value, pass: &Pass, now: &str) {
    let list = |counts: &BTreeMap<String, usize>, verb: &str| {
        let parts: Vec<_> =
            counts.iter().map(|(what, count)| format!("{what} {verb} {count} resource instances")).collect();
        parts.join(", ")
    };
    let content = !pass.left.is_empty() && !pass.only_pods;
    let held = !pass.holds.is_empty() && !pass.only_pods;
    let rows = [
        (
            "NamespaceDeletionDiscoveryFailure",
            (!pass.discovery.is_empty()).then(|| {
                (
                    "DiscoveryFailed",
                    format!(
                        "Discovery failed for some groups, {} failing: unable to retrieve the \
                  complete list of server APIs: {}",
                        pass.discovery.len(),
                        pass.discovery.join(", ")
                    ),
                )
            }),
            ("ResourcesDiscovered", "All resources successfully discovered"),
        ),
        (
            "NamespaceDeletionGroupVersionParsingFailure",
            None,
            ("ParsedGroupVersions", "All legacy kube types successfully parsed"),
        ),
        (
            "NamespaceDeletionContentFailure",
            (!pass.failures.is_empty()).then(|| {
                let mut failures = pass.failures.clone();
                failures.sort();
                (
                    "ContentDeletionFailed",
                    format!(
                        "Failed to delete all resource types, {} remaining: {}",
                        failures.len(),
                        failures.join(", ")
                    ),
                )
            }),
            ("ContentDeleted", "All content successfully deleted, may be waiting on finalization"),
        ),
        (
            "NamespaceContentRemaining",
            content
                .then(|| ("SomeResourcesRemain", format!("Some resources are remaining: {}", list(&pass.left, "has")))),
            ("ContentRemoved", "All content successfully removed"),
        ),
        (
            "NamespaceFinalizersRemaining",
            held.then(|| {
                (
                    "SomeFinalizersRemain",
                    format!("Some content in the namespace has finalizers remaining: {}", list(&pass.holds, "in")),
                )
            }),
            ("ContentHasNoFinalizers", "All content-preserving finalizers finished"),
        ),
    ];
    for (kind, problem, (fine, text)) in rows {
        let (status, reason, message) = match &problem {
            Some((reason, message)) => ("True", *reason, message.as_str()),
            None => ("False", fine, text),
        };
        super::crds::condition(namespace, kind, status, reason, message, now);
    }
}
