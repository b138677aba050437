//! Field ownership: what server-side apply needs to know about an object that was created by POST, and what was
//! applied last.

use std::{collections::BTreeMap, sync::Mutex};

use json_patch::{PatchOperation, ReplaceOperation, TestOperation, jsonptr::PointerBuf};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry, ObjectMeta};
use kube_client::api::DynamicObject;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::{lock::lock, object::Uid};

/// The patch that turns our entry for the POST into our entry for applies, if there is one.
///
/// A POST leaves an entry of operation Update. An apply makes one of its own and leaves that one alone, so a field that
/// is dropped from the manifest later would keep an owner and stay. The patch is bound to the state that was read.
pub(super) fn adopt_update_entry(meta: &ObjectMeta, manager: &str) -> Option<json_patch::Patch> {
    let entries = meta.managed_fields.as_ref()?;
    let ours = |e: &ManagedFieldsEntry, operation: &str| {
        e.manager.as_deref() == Some(manager)
            && e.operation.as_deref() == Some(operation)
            && e.subresource.as_deref().unwrap_or_default().is_empty()
    };
    if !entries.iter().any(|e| ours(e, "Update")) {
        return None;
    }
    let mut fields = Value::Object(serde_json::Map::new());
    for entry in entries.iter().filter(|e| ours(e, "Update") || ours(e, "Apply")) {
        if let Some(FieldsV1(more)) = &entry.fields_v1 {
            unite(&mut fields, more);
        }
    }
    let base = entries.iter().find(|e| ours(e, "Apply")).or_else(|| entries.iter().find(|e| ours(e, "Update")))?;
    let united =
        ManagedFieldsEntry { operation: Some("Apply".into()), fields_v1: Some(FieldsV1(fields)), ..base.clone() };
    let others = entries.iter().filter(|e| !ours(e, "Update") && !ours(e, "Apply")).cloned();
    let entries: Vec<_> = others.chain([united]).collect();
    let at = |name: &str| PointerBuf::from_tokens(["metadata", name]);
    let test = |name: &str, value: &Option<String>| {
        Some(PatchOperation::Test(TestOperation { path: at(name), value: Value::String(value.clone()?) }))
    };
    Some(json_patch::Patch(vec![
        test("uid", &meta.uid)?,
        test("resourceVersion", &meta.resource_version)?,
        PatchOperation::Replace(ReplaceOperation {
            path: at("managedFields"),
            value: serde_json::to_value(entries).ok()?,
        }),
    ]))
}

/// Whether an apply was refused only for fields that `ours` says are ours, or that nobody is known to own: the API server
/// ascribes the fields of an object without managedFields, such as an Event, to `before-first-apply`.
pub(super) fn conflicts_only_over(error: &kube_client::Error, ours: impl Fn(&str) -> bool) -> bool {
    let kube_client::Error::Api(status) = error else { return false };
    let causes = status.details.as_ref().map(|d| d.causes.as_slice()).unwrap_or_default();
    let mut conflicts = causes.iter().map(|c| {
        c.reason == "FieldManagerConflict" && {
            ours(&c.field) || c.message.starts_with("conflict with \"before-first-apply\"")
        }
    });
    !causes.is_empty() && conflicts.all(|ours| ours)
}

/// Adds the members of a field set to another.
fn unite(into: &mut Value, more: &Value) {
    if let (Value::Object(into), Value::Object(more)) = (into, more) {
        for (key, value) in more {
            match into.get_mut(key) {
                Some(existing) => unite(existing, value),
                None => {
                    into.insert(key.clone(), value.clone());
                }
            }
        }
    }
}

/// What was applied last to each object, and the state that gave, so that nothing is sent when neither has changed.
///
/// Held in memory only: a hash of a manifest is not to be stored, since a manifest may be a Secret.
#[derive(Debug, Default)]
pub(crate) struct Fingerprints(Mutex<BTreeMap<Uid, ([u8; 32], String)>>);

impl Fingerprints {
    fn hash(body: &DynamicObject) -> Option<[u8; 32]> {
        Some(Sha256::digest(serde_json::to_vec(body).ok()?).into())
    }

    pub(super) fn is_current(&self, uid: &Uid, body: &DynamicObject, resource_version: &str) -> bool {
        let map = lock(&self.0);
        map.get(uid).is_some_and(|(hash, version)| {
            version == resource_version && !resource_version.is_empty() && Self::hash(body).as_ref() == Some(hash)
        })
    }

    pub(super) fn set(&self, uid: &Uid, body: &DynamicObject, resource_version: &str) {
        if let Some(hash) = Self::hash(body) {
            let mut map = lock(&self.0);
            map.insert(uid.clone(), (hash, resource_version.to_owned()));
        }
    }

    pub(super) fn forget(&self, uid: &Uid) {
        lock(&self.0).remove(uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn meta(entries: Value) -> ObjectMeta {
        serde_json::from_value(json!({"uid": "u", "resourceVersion": "7", "managedFields": entries})).unwrap()
    }

    #[test]
    fn the_entry_of_the_post_becomes_the_entry_of_applies() {
        let meta = meta(json!([
            {"manager": "m", "operation": "Update", "apiVersion": "v1", "fieldsV1": {"f:data": {"f:a": {}}}},
            {"manager": "other", "operation": "Update", "apiVersion": "v1", "fieldsV1": {"f:data": {"f:z": {}}}},
            {"manager": "m", "operation": "Apply", "apiVersion": "v1", "fieldsV1": {"f:data": {"f:b": {}}}},
        ]));
        let patch = serde_json::to_value(adopt_update_entry(&meta, "m").unwrap()).unwrap();
        assert_eq!(patch[0], json!({"op": "test", "path": "/metadata/uid", "value": "u"}));
        assert_eq!(patch[1], json!({"op": "test", "path": "/metadata/resourceVersion", "value": "7"}));
        let entries = patch[2]["value"].as_array().unwrap();
        assert_eq!(entries.len(), 2);
        assert_eq!(entries[0]["manager"], "other");
        assert_eq!(entries[1]["operation"], "Apply");
        assert_eq!(entries[1]["fieldsV1"], json!({"f:data": {"f:a": {}, "f:b": {}}}));
    }

    #[test]
    fn nothing_to_do_once_it_is_done() {
        let done = meta(json!([{"manager": "m", "operation": "Apply", "apiVersion": "v1", "fieldsV1": {}}]));
        assert!(adopt_update_entry(&done, "m").is_none());
        let status = meta(json!([{"manager": "m", "operation": "Update", "subresource": "status", "fieldsV1": {}}]));
        assert!(adopt_update_entry(&status, "m").is_none());
    }
}
