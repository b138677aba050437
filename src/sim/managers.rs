//! `metadata.managedFields`: who owns which fields, after an update and after an apply.

use serde_json::{Value, json};

use super::{
    fields::{self, Comparison, Set},
    shape::Shape,
    status::{Refusal, bad_request, refuse},
    value::{list, set},
};

const APPLY: &str = "Apply";
const UPDATE: &str = "Update";

/// The manager to whom everything belongs that was there before the first apply.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// System fields, which nobody owns.
const SYSTEM: &[&str] = &[
    "name",
    "namespace",
    "creationTimestamp",
    "selfLink",
    "uid",
    "clusterName",
    "generation",
    "managedFields",
    "resourceVersion",
];

/// Who writes, and how.
#[derive(Clone, Copy, Debug)]
pub(super) struct Writer<'a> {
    pub(super) manager: &'a str,
    pub(super) api_version: &'a str,
    pub(super) subresource: &'a str,
    pub(super) now: &'a str,
    pub(super) shape: Shape<'a>,
    /// Whether the main resource can't write the status, because it is a subresource.
    pub(super) status_apart: bool,
    pub(super) custom: bool,
}

impl Writer<'_> {
    /// Takes out of a set what this writer can't own.
    fn strip(&self, set: &mut Set) {
        set.strip(&["f:apiVersion"]);
        set.strip(&["f:kind"]);
        set.strip_member(&["f:metadata"]);
        for field in SYSTEM {
            set.strip(&["f:metadata", &format!("f:{field}")]);
        }
        if self.subresource == "status" {
            set.strip(&["f:spec"]);
            if self.custom {
                set.strip(&["f:metadata"]);
            }
        } else if self.status_apart {
            set.strip(&["f:status"]);
        }
    }

    fn compare(&self, old: &Value, new: &Value) -> Comparison {
        let mut comparison = fields::compare(old, new, self.shape);
        self.strip(&mut comparison.added);
        self.strip(&mut comparison.modified);
        self.strip(&mut comparison.removed);
        comparison
    }

    fn entry(&self, operation: &'static str, fields: Set) -> Entry {
        Entry {
            manager: self.manager.to_owned(),
            operation: operation.to_owned(),
            api_version: self.api_version.to_owned(),
            subresource: self.subresource.to_owned(),
            time: Some(self.now.to_owned()),
            fields,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
struct Entry {
    manager: String,
    operation: String,
    api_version: String,
    subresource: String,
    time: Option<String>,
    fields: Set,
}

impl Entry {
    fn read(value: &Value) -> Option<Self> {
        let text = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let operation = text("operation");
        if operation != APPLY && operation != UPDATE {
            return None;
        }
        Some(Self {
            manager: text("manager"),
            operation,
            api_version: text("apiVersion"),
            subresource: text("subresource"),
            time: value.get("time").and_then(Value::as_str).map(ToOwned::to_owned),
            fields: Set::from_json(value.get("fieldsV1")?)?,
        })
    }

    fn write(&self) -> Value {
        let mut value = json!({
            "manager": self.manager, "operation": self.operation, "apiVersion": self.api_version,
            "fieldsType": "FieldsV1", "fieldsV1": self.fields.to_json(),
        });
        if let Some(time) = &self.time {
            value["time"] = json!(time);
        }
        if !self.subresource.is_empty() {
            value["subresource"] = json!(self.subresource);
        }
        value
    }

    /// Updates in different versions are different managers, applies are not.
    fn same(&self, other: &Self) -> bool {
        self.manager == other.manager
            && self.operation == other.operation
            && self.subresource == other.subresource
            && (self.operation == APPLY || self.api_version == other.api_version)
    }

    /// As a conflict names it.
    fn print(&self) -> String {
        let mut text = format!("\"{}\"", self.manager);
        if !self.subresource.is_empty() {
            text += &format!(" with subresource \"{}\"", self.subresource);
        }
        if self.operation == UPDATE {
            text += &format!(" using {}", self.api_version);
        }
        text
    }
}

/// The entries of an object; `None` if one can't be read.
fn read(object: &Value) -> Option<Vec<Entry>> {
    list(object, "managedFields").iter().map(Entry::read).collect()
}

fn write(object: &mut Value, mut entries: Vec<Entry>) {
    entries.retain(|entry| !entry.fields.is_empty());
    entries.sort_by(|a, b| {
        let key = |entry: &Entry| {
            let Entry { operation, time, manager, api_version, subresource, .. } = entry.clone();
            (operation, time, manager, api_version, subresource)
        };
        key(a).cmp(&key(b))
    });
    let list = (!entries.is_empty()).then(|| entries.iter().map(Entry::write).collect());
    set(object, "managedFields", list);
}

fn without_managers(object: &Value) -> Value {
    let mut object = object.clone();
    set(&mut object, "managedFields", None);
    object
}

/// The entries that an update starts from: those it brings, or those of the live object. A list of one empty entry
/// resets them.
fn base(live: &Value, new: &Value, subresource: bool) -> Vec<Entry> {
    let of_live = || read(live).unwrap_or_default();
    if subresource {
        return of_live();
    }
    let brought = list(new, "managedFields");
    if brought.len() == 1 && brought[0].as_object().is_some_and(serde_json::Map::is_empty) {
        return Vec::new();
    }
    read(new).filter(|entries| !entries.is_empty()).unwrap_or_else(of_live)
}

/// Sets the managers of an object that is written as a whole: a create (with an empty `live`), an update or a patch.
pub(super) fn update(live: &Value, new: &mut Value, creates: bool, writer: Writer<'_>) {
    let entries = base(live, new, !writer.subresource.is_empty());
    if entries.is_empty() && !creates {
        // Nobody has been tracked so far, and an update does not begin with it.
        set(new, "managedFields", None);
        return;
    }
    let comparison = writer.compare(&without_managers(live), &without_managers(new));
    let entries = take(entries, &comparison, writer.entry(UPDATE, Set::default()));
    write(new, entries);
}

/// Moves the changed fields to the writer.
fn take(mut entries: Vec<Entry>, comparison: &Comparison, mut own: Entry) -> Vec<Entry> {
    let taken = comparison.modified.union(&comparison.added);
    for entry in &mut entries {
        entry.fields = entry.fields.without(&taken).without(&comparison.removed);
    }
    if !taken.is_empty() {
        match entries.iter_mut().find(|entry| entry.same(&own)) {
            Some(known) => {
                known.fields = known.fields.union(&taken);
                known.time = own.time;
            }
            None => {
                own.fields = taken;
                entries.push(own);
            }
        }
    }
    entries
}

/// What an apply makes of an object. `live` has no fields but `apiVersion` and `kind` when the object is created.
pub(super) fn apply(live: &Value, applied: &Value, force: bool, writer: Writer<'_>) -> Result<Value, Refusal> {
    if !list(applied, "managedFields").is_empty() {
        return Err(bad_request("metadata.managedFields must be nil"));
    }
    let mut entries = read(live).unwrap_or_default();
    let live = without_managers(live);
    if entries.is_empty() {
        let nothing = json!({"apiVersion": live["apiVersion"], "kind": live["kind"], "metadata": {}});
        let before = Writer { manager: BEFORE_FIRST_APPLY, subresource: "", ..writer };
        let own = before.entry(UPDATE, Set::default());
        entries = take(entries, &before.compare(&nothing, &live), own);
    }
    let mut applied = applied.clone();
    set(&mut applied, "managedFields", None);
    let mut wanted = fields::mentioned(&applied, writer.shape);
    writer.strip(&mut wanted);
    let mut merged = live.clone();
    fields::merge(&mut merged, &applied, writer.shape);

    let mut own = writer.entry(APPLY, wanted);
    let last = entries.iter().position(|entry| entry.same(&own)).map(|place| entries.remove(place));
    if let Some(last) = &last {
        let kept = entries.iter().fold(own.fields.clone(), |all, entry| all.union(&entry.fields));
        fields::remove(&mut merged, &last.fields, &kept, writer.shape);
    }
    let comparison = writer.compare(&live, &merged);
    let taken = comparison.modified.union(&comparison.added);
    let mut conflicts = Vec::new();
    for entry in &mut entries {
        let conflict = entry.fields.intersection(&taken);
        if !conflict.is_empty() {
            conflicts.push((entry.print(), conflict.paths()));
        }
        entry.fields = entry.fields.without(&conflict).without(&comparison.removed);
    }
    if !force && !conflicts.is_empty() {
        return Err(conflicting(conflicts));
    }
    if comparison.is_same() {
        // The time is that of the last change of a value, not of ownership.
        own.time = last.and_then(|last| last.time);
    }
    entries.push(own);
    write(&mut merged, entries);
    Ok(merged)
}

fn conflicting(mut conflicts: Vec<(String, Vec<String>)>) -> Refusal {
    conflicts.sort();
    let count: usize = conflicts.iter().map(|(_, paths)| paths.len()).sum();
    let causes: Vec<Value> = conflicts
        .iter()
        .flat_map(|(by, paths)| {
            paths.iter().map(move |path| {
                json!({"reason": "FieldManagerConflict", "message": format!("conflict with {by}"), "field": path})
            })
        })
        .collect();
    let message = match conflicts.as_slice() {
        [(by, paths)] if paths.len() == 1 => format!("Apply failed with 1 conflict: conflict with {by}: {}", paths[0]),
        many => {
            let parts: Vec<_> =
                many.iter().map(|(by, paths)| format!("conflicts with {by}:\n- {}", paths.join("\n- "))).collect();
            format!("Apply failed with {count} conflicts: {}", parts.join("\n"))
        }
    };
    refuse(409, "Conflict", message, Some(json!({"causes": causes})))
}

/// Whether two states differ in nothing but the times of their managers.
pub(super) fn same_but_times(a: &Value, b: &Value) -> bool {
    let bare = |object: &Value| {
        let entries: Option<Vec<_>> =
            read(object).map(|entries| entries.into_iter().map(|entry| Entry { time: None, ..entry }).collect());
        entries.map(|mut entries: Vec<Entry>| {
            entries.sort_by(|a, b| (&a.operation, &a.manager).cmp(&(&b.operation, &b.manager)));
            entries
        })
    };
    match (bare(a), bare(b)) {
        (Some(first), Some(second)) => first == second && without_managers(a) == without_managers(b),
        _ => a == b,
    }
}
