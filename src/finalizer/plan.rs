//! The patches. Pure: metadata in, JSON patch out.
//!
//! Every patch tests the UID and that the list of finalizers is exactly what was read, so it changes the incarnation
//! that was judged or nothing. Under that lock the list is written whole; no index is used.

use std::{collections::BTreeMap, fmt};

use json_patch::{
    AddOperation, Patch, PatchOperation, RemoveOperation, ReplaceOperation, TestOperation, jsonptr::PointerBuf,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use super::Finalizer;
use crate::object::Uid;

/// What has to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "there is something to send or there is not")]
pub enum Plan {
    /// Nothing: the metadata is as it should be, or, when adding, the object is being deleted.
    Nothing,
    /// This patch.
    Patch(Patch),
}

/// A change of one annotation in the patch that adds finalizers.
///
/// The change is a function of the value that was read. If somebody else changes the annotation in between, it is read
/// again and the function is applied again, so a value that grows from several sides loses nothing.
pub struct AnnotationUpdate<'a> {
    key: String,
    merge: Merge<'a>,
}

/// The value that was read, to the value to write.
type Merge<'a> = Box<dyn Fn(Option<&str>) -> Option<String> + Send + Sync + 'a>;

impl<'a> AnnotationUpdate<'a> {
    /// Sets annotation `key` to what `merge` makes of its present value; `None` leaves it alone.
    #[must_use]
    pub fn new(key: impl Into<String>, merge: impl Fn(Option<&str>) -> Option<String> + Send + Sync + 'a) -> Self {
        Self { key: key.into(), merge: Box::new(merge) }
    }
}

impl fmt::Debug for AnnotationUpdate<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnnotationUpdate").field("key", &self.key).finish_non_exhaustive()
    }
}

fn pointer<const N: usize>(tokens: [&str; N]) -> PointerBuf {
    PointerBuf::from_tokens(tokens)
}

fn test(path: PointerBuf, value: Value) -> PatchOperation {
    PatchOperation::Test(TestOperation { path, value })
}

fn add(path: PointerBuf, value: Value) -> PatchOperation {
    PatchOperation::Add(AddOperation { path, value })
}

fn finalizers_path() -> PointerBuf {
    pointer(["metadata", "finalizers"])
}

fn finalizers(meta: &ObjectMeta) -> &[String] {
    meta.finalizers.as_deref().unwrap_or_default()
}

/// The tests that bind a patch to what was read. A missing list is tested as `null`, which the API server accepts.
fn locks(uid: &Uid, current: &[String]) -> Vec<PatchOperation> {
    let list = if current.is_empty() { Value::Null } else { current.into() };
    vec![test(pointer(["metadata", "uid"]), uid.as_str().into()), test(finalizers_path(), list)]
}

/// New values of annotations, with the values they were made from.
fn annotation_changes(meta: &ObjectMeta, updates: &[AnnotationUpdate<'_>]) -> BTreeMap<String, String> {
    let read = |key: &str| meta.annotations.as_ref().and_then(|a| a.get(key)).map(String::as_str);
    let mut changes: BTreeMap<String, String> = BTreeMap::new();
    for update in updates {
        let current = changes.get(&update.key).map(String::as_str).or_else(|| read(&update.key));
        if let Some(value) = (update.merge)(current) {
            changes.insert(update.key.clone(), value);
        }
    }
    changes.retain(|key, value| read(key) != Some(value));
    changes
}

fn annotation_operations(meta: &ObjectMeta, changes: BTreeMap<String, String>) -> Vec<PatchOperation> {
    let path = |key: &str| pointer(["metadata", "annotations", key]);
    match meta.annotations.as_ref().filter(|a| !a.is_empty()) {
        _ if changes.is_empty() => Vec::new(),
        // The parent member is missing, so single keys can neither be tested nor added.
        None => {
            let all = pointer(["metadata", "annotations"]);
            let value =
                changes.into_iter().map(|(key, value)| (key, Value::from(value))).collect::<serde_json::Map<_, _>>();
            vec![test(all.clone(), Value::Null), add(all, value.into())]
        }
        Some(read) => changes
            .into_iter()
            .flat_map(|(key, value)| {
                let before = read.get(&key).map_or(Value::Null, |v| v.as_str().into());
                [test(path(&key), before), add(path(&key), value.into())]
            })
            .collect(),
    }
}

impl Finalizer {
    /// The patch that makes `meta` carry each of the current names exactly once, and the annotations.
    ///
    /// Missing names are appended in the order they were declared; duplicates of them after the first are dropped; all
    /// else stays, and in its order. Legacy names are left alone: an older operator may still rely on them.
    ///
    /// Nothing is planned for an object that is being deleted, and the patch tests that it still is not: the API server
    /// refuses new finalizers then, but would accept the annotations alone.
    #[must_use]
    pub fn plan_add(&self, meta: &ObjectMeta, uid: &Uid, annotations: &[AnnotationUpdate<'_>]) -> Plan {
        if meta.deletion_timestamp.is_some() {
            return Plan::Nothing;
        }
        let current = finalizers(meta);
        let mut wanted: Vec<String> = Vec::with_capacity(current.len() + self.names.len());
        for name in current {
            if !(self.adds(name) && wanted.contains(name)) {
                wanted.push(name.clone());
            }
        }
        for name in &self.names {
            if !wanted.iter().any(|w| w == name.as_str()) {
                wanted.push(name.as_str().to_owned());
            }
        }
        let changes = annotation_changes(meta, annotations);
        if wanted == current && changes.is_empty() {
            return Plan::Nothing;
        }
        let mut operations = locks(uid, current);
        operations.push(test(pointer(["metadata", "deletionTimestamp"]), Value::Null));
        if wanted != current {
            operations.push(add(finalizers_path(), wanted.into()));
        }
        operations.extend(annotation_operations(meta, changes));
        Plan::Patch(Patch(operations))
    }

    /// The patch that takes every current and legacy name off `meta`, all copies at once; all else stays, and in its
    /// order.
    #[must_use]
    pub fn plan_remove(&self, meta: &ObjectMeta, uid: &Uid) -> Plan {
        let current = finalizers(meta);
        let rest: Vec<String> = current.iter().filter(|name| !self.removes(name)).cloned().collect();
        if rest.len() == current.len() {
            return Plan::Nothing;
        }
        let mut operations = locks(uid, current);
        operations.push(if rest.is_empty() {
            PatchOperation::Remove(RemoveOperation { path: finalizers_path() })
        } else {
            PatchOperation::Replace(ReplaceOperation { path: finalizers_path(), value: rest.into() })
        });
        Plan::Patch(Patch(operations))
    }

    /// Whether `meta` carries any of the names, current or legacy: whether there is something to clean up.
    #[must_use]
    pub fn is_on(&self, meta: &ObjectMeta) -> bool {
        finalizers(meta).iter().any(|name| self.removes(name))
    }

    fn adds(&self, name: &str) -> bool {
        self.names.iter().any(|n| n.as_str() == name)
    }

    fn removes(&self, name: &str) -> bool {
        self.adds(name) || self.legacy.iter().any(|n| n.as_str() == name)
    }
}
