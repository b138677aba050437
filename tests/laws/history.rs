//! What happened, as far as one can see from outside of an operator.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
    time::Duration,
};

use serde_json::Value;

/// An object, as requests name it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Id {
    pub group: String,
    pub plural: String,
    pub namespace: Option<String>,
    pub name: String,
}

impl Id {
    pub fn new(group: &str, plural: &str, namespace: Option<&str>, name: &str) -> Self {
        Self {
            group: group.into(),
            plural: plural.into(),
            namespace: namespace.filter(|n| !n.is_empty()).map(Into::into),
            name: name.into(),
        }
    }

    pub fn definition(group: &str, plural: &str) -> Self {
        Self::new("apiextensions.k8s.io", "customresourcedefinitions", None, &format!("{plural}.{group}"))
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.plural)?;
        if !self.group.is_empty() {
            write!(f, ".{}", self.group)?;
        }
        write!(f, " {}{}", self.namespace.as_ref().map(|n| format!("{n}/")).unwrap_or_default(), self.name)
    }
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
}

/// One request, as its maker made it.
#[derive(Clone, Debug)]
pub struct Request {
    pub verb: Verb,
    pub group: String,
    pub version: String,
    pub plural: String,
    pub namespace: Option<String>,
    /// From the path, or from the body of a POST.
    pub name: Option<String>,
    pub subresource: Option<String>,
    pub content_type: String,
    pub dry_run: bool,
    pub body: Option<Value>,
    /// How a message shows it.
    pub text: String,
}

impl Request {
    pub fn id(&self) -> Id {
        Id::new(&self.group, &self.plural, self.namespace.as_deref(), self.name.as_deref().unwrap_or(""))
    }

    pub fn body_at(&self, pointer: &str) -> Option<&Value> {
        self.body.as_ref()?.pointer(pointer)
    }

    pub fn body_text(&self, pointer: &str) -> Option<&str> {
        self.body_at(pointer)?.as_str()
    }

    pub fn is_apply(&self) -> bool {
        self.verb == Verb::Patch && self.content_type.starts_with("application/apply-patch")
    }
}

/// One entry of a stored record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    pub kind: String,
    pub uid: Option<String>,
    /// Left in the cluster, or given up, by a decision on record.
    pub let_go: bool,
    pub needs: BTreeSet<Id>,
}

/// A stored record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    pub entries: BTreeMap<Id, Entry>,
    /// All of it, as text.
    pub text: String,
}

/// What happened.
#[derive(Clone, Debug)]
pub enum What {
    /// The operator began to reconcile.
    Pass,
    /// The operator made a request.
    Made(Arc<Request>),
    /// The server accepted a change, whether or not the operator got to know.
    Accepted(Arc<Request>, Value),
    /// The operator was given the server's answer.
    Told { request: Arc<Request>, code: u16, answer: Value, made: Duration },
    /// The operator's watch showed an object.
    Watched { request: Arc<Request>, object: Value },
    /// The operator begins to store a record (none: to remove it). Unless `Stored` or `NotStored` follows, nobody knows
    /// whether it did.
    Storing(Option<Record>),
    /// The record is stored, or removed.
    Stored,
    /// Another writer was faster.
    NotStored,
    /// There is no record, and none can be made where it belongs.
    NoRoom,
    /// Somebody else removed the record.
    Robbed,
    /// The operator read what is stored, beginning at that time.
    Loaded { record: Option<Record>, began: Duration },
}

/// One thing that happened.
#[derive(Clone, Debug)]
pub struct Event {
    pub at: Duration,
    pub operator: usize,
    pub what: What,
}

/// Everything that happened, in order.
#[derive(Clone, Debug, Default)]
pub struct History {
    events: Vec<Event>,
}

impl History {
    pub fn extend(&mut self, events: impl IntoIterator<Item = Event>) {
        self.events.extend(events);
        self.events.sort_by_key(|event| event.at);
    }

    pub fn events(&self) -> &[Event] {
        &self.events
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>9.4} operator {} ", self.at.as_secs_f64(), self.operator)?;
        let named = |record: &Record| record.entries.keys().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        match &self.what {
            What::Pass => f.write_str("begins a pass"),
            What::Made(request) => write!(f, "makes {}", request.text),
            What::Accepted(request, _) => write!(f, "had accepted {}", request.text),
            What::Told { request, code, answer, .. } => {
                let reason = answer.get("reason").and_then(Value::as_str).unwrap_or("");
                write!(f, "is told {code} {reason} on {}", request.text)
            }
            What::Watched { object, .. } => {
                let at = |p| object.pointer(p).and_then(Value::as_str).unwrap_or("");
                write!(f, "sees {} at {}", at("/metadata/name"), at("/metadata/resourceVersion"))
            }
            What::Storing(Some(record)) => write!(f, "stores [{}]", named(record)),
            What::Storing(None) => f.write_str("removes the record"),
            What::Stored => f.write_str("has stored or removed the record"),
            What::NotStored => f.write_str("was not let store or remove the record"),
            What::NoRoom => f.write_str("cannot store the record anywhere"),
            What::Robbed => f.write_str("has its record removed by somebody else"),
            What::Loaded { record: Some(record), .. } => write!(f, "loads [{}]", named(record)),
            What::Loaded { record: None, .. } => f.write_str("finds no record"),
        }
    }
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.events.iter().try_for_each(|event| writeln!(f, "{event}"))
    }
}
