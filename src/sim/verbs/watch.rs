//! Watches: where one begins, and what it delivers.

use std::{collections::VecDeque, sync::Arc, task::Waker, time::Duration};

use serde_json::{Value, json};

use super::read::parse_version;
use crate::sim::{
    catalogue::Resource,
    request::Ask,
    selectors::Selector,
    status::{Refusal, internal},
    storage::Change,
    value::{namespace, set},
    world::{Reply, World},
};

/// One event of a watch.
#[derive(Clone, Debug)]
pub(in crate::sim) enum WatchEvent {
    Added(Arc<Value>),
    Modified(Arc<Value>),
    Deleted(Arc<Value>),
    /// The version, and whether the initial events end here.
    Bookmark(u64, bool),
    /// The watch can't go on.
    Error(Value),
}

/// A watch: what it is about and how far it has come.
#[derive(Clone, Debug)]
pub(in crate::sim) struct WatchSpec {
    pub(in crate::sim) id: u64,
    pub(in crate::sim) resource: Arc<Resource>,
    pub(in crate::sim) version: String,
    pub(in crate::sim) partial: bool,
    pub(in crate::sim) bookmarks: bool,
    pub(in crate::sim) timeout: Duration,
    selector: Selector,
    namespace: String,
    /// Changes up to this version have been delivered.
    cursor: u64,
    /// The last version that the client was told of.
    told: u64,
    ahead: VecDeque<WatchEvent>,
    ended: bool,
}

/// What a watch has to say.
#[derive(Clone, Debug)]
pub(in crate::sim) enum Next {
    Event(WatchEvent),
    /// Nothing for now.
    Wait,
    End,
}

/// A server ends watches of clients that say nothing after 30 to 60 minutes.
const DEFAULT_TIMEOUT: u64 = 45 * 60;

impl World {
    pub(in crate::sim) fn watch(&mut self, ask: &Ask) -> Result<Reply, Refusal> {
        let options = &ask.list;
        // A watch of one object is one of a collection with its name.
        let fields = match (ask.name.as_str(), options.fields.as_str()) {
            ("", fields) => fields.to_owned(),
            (name, "") => format!("metadata.name={name}"),
            (name, fields) => format!("{fields},metadata.name={name}"),
        };
        let selector = Selector::parse(&options.labels, &fields, &ask.resource)?;
        let asked = match options.version.as_str() {
            "" => 0,
            text => parse_version(text).map_err(internal)?,
        };
        let current = self.storage.version();
        self.watches += 1;
        let mut spec = WatchSpec {
            id: self.watches,
            resource: Arc::clone(&ask.resource),
            version: ask.version.clone(),
            partial: ask.partial,
            bookmarks: options.bookmarks,
            timeout: Duration::from_secs(options.timeout.unwrap_or(DEFAULT_TIMEOUT)),
            selector,
            namespace: ask.namespace.clone(),
            cursor: asked,
            told: asked,
            ahead: VecDeque::new(),
            ended: false,
        };
        // Without a version a watch begins with what exists; with one, after it.
        if options.initial_events.unwrap_or(asked == 0) {
            let namespace = (!ask.namespace.is_empty()).then_some(ask.namespace.as_str());
            let table = self.storage.table(ask.resource.id);
            let existing = table.list(namespace, None).filter(|(_, object)| spec.selector.matches(object));
            spec.ahead = existing.map(|(_, object)| WatchEvent::Added(Arc::clone(object))).collect();
            spec.cursor = current;
            spec.told = current;
            if options.initial_events == Some(true) && options.bookmarks {
                spec.ahead.push_back(WatchEvent::Bookmark(current, true));
            }
        } else if options.initial_events == Some(false) && asked == 0 {
            spec.cursor = current;
            spec.told = current;
        }
        Ok(Reply::Watch(spec))
    }

    /// The next event of a watch. With nothing to say the waker is kept, to be called at the next change.
    pub(in crate::sim) fn next_event(&mut self, spec: &mut WatchSpec, waker: &Waker) -> Next {
        if let Some(event) = spec.ahead.pop_front() {
            return Next::Event(event);
        }
        let known = self.catalogue.get(spec.resource.id).is_some();
        if spec.ended || spec.id <= self.closed_watches {
            return Next::End;
        }
        let table = self.storage.table(spec.resource.id);
        if spec.cursor < table.compacted() {
            spec.ended = true;
            let message = format!("too old resource version: {} ({})", spec.cursor, table.compacted());
            return Next::Event(WatchEvent::Error(json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message,
                "reason": "Expired", "code": 410,
            })));
        }
        let mut found = None;
        let mut cursor = spec.cursor;
        for change in table.changes_after(spec.cursor) {
            cursor = change.version;
            found = spec.event(change);
            if found.is_some() {
                break;
            }
        }
        spec.cursor = cursor;
        match found {
            Some(event) => {
                spec.told = cursor;
                Next::Event(event)
            }
            None if !known => Next::End,
            None => {
                table.wait(spec.id, waker.clone());
                Next::Wait
            }
        }
    }

    /// A bookmark, if the client wants them and there is something new in one.
    pub(in crate::sim) fn bookmark(&self, spec: &mut WatchSpec) -> Option<WatchEvent> {
        let version = self.storage.version();
        if !spec.bookmarks || spec.told >= version {
            return None;
        }
        spec.cursor = spec.cursor.max(version);
        spec.told = version;
        Some(WatchEvent::Bookmark(version, false))
    }
}

impl WatchSpec {
    fn concerns(&self, object: &Value) -> bool {
        (self.namespace.is_empty() || namespace(object) == self.namespace) && self.selector.matches(object)
    }

    /// What a change looks like through the selector: an object that no longer matches is deleted for this watch.
    fn event(&self, change: &Change) -> Option<WatchEvent> {
        let before = change.before.as_ref().filter(|object| self.concerns(object));
        let after = change.after.as_ref().filter(|object| self.concerns(object));
        match (before, after) {
            (None, None) => None,
            (None, Some(after)) => Some(WatchEvent::Added(Arc::clone(after))),
            (Some(_), Some(after)) => Some(WatchEvent::Modified(Arc::clone(after))),
            (Some(before), None) => {
                // The last state that matched, at the version of its going.
                let mut last = (**before).clone();
                set(&mut last, "resourceVersion", Some(change.version.to_string().into()));
                Some(WatchEvent::Deleted(Arc::new(last)))
            }
        }
    }

    /// The event as it is sent, one line.
    pub(in crate::sim) fn line(&self, event: &WatchEvent) -> Vec<u8> {
        use crate::sim::view::View;
        let (name, value) = match event {
            WatchEvent::Added(object) => {
                ("ADDED", View::of(object, &self.resource, &self.version, self.partial).to_vec())
            }
            WatchEvent::Modified(object) => {
                ("MODIFIED", View::of(object, &self.resource, &self.version, self.partial).to_vec())
            }
            WatchEvent::Deleted(object) => {
                ("DELETED", View::of(object, &self.resource, &self.version, self.partial).to_vec())
            }
            WatchEvent::Bookmark(version, initial) => {
                let mut metadata = json!({"resourceVersion": version.to_string()});
                if *initial {
                    metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
                }
                let (kind, api_version) = if self.partial {
                    ("PartialObjectMetadata", "meta.k8s.io/v1".to_owned())
                } else {
                    (self.resource.kind.as_str(), self.resource.api_version(&self.version))
                };
                let object = json!({"kind": kind, "apiVersion": api_version, "metadata": metadata});
                ("BOOKMARK", object.to_string().into_bytes())
            }
            WatchEvent::Error(status) => ("ERROR", status.to_string().into_bytes()),
        };
        let mut line = format!("{{\"type\":\"{name}\",\"object\":").into_bytes();
        line.extend(value);
        line.extend(b"}\n");
        line
    }
}
