//! The three kinds of patches that are not server-side apply.

use json_patch::{AddOperation, PatchOperation, jsonptr::Pointer};
use serde_json::{Map, Value};

use super::{
    shape::{ListShape, Shape},
    status::{Refusal, bad_request, patch_rejected},
};

/// Carries out a JSON patch, with the real server's leniency: a `test` for null holds for what is missing.
pub(super) fn json(object: &mut Value, patch: &Value) -> Result<(), Refusal> {
    if !patch.is_array() {
        let what = match patch {
            Value::Object(_) => "object",
            Value::String(_) => "string",
            Value::Number(_) => "number",
            _ => "bool",
        };
        let message =
            format!("error decoding patch: json: cannot unmarshal {what} into Go value of type []handlers.jsonPatchOp");
        return Err(bad_request(message));
    }
    let operations: Vec<PatchOperation> = serde_json::from_value(patch.clone()).map_err(|_| patch_rejected())?;
    for operation in operations {
        if let PatchOperation::Test(test) = &operation
            && test.value.is_null()
            && missing(object, &test.path)
        {
            continue;
        }
        let operation = match operation {
            // The real server's library replaces a member of a map whether it is there or not.
            PatchOperation::Replace(replace) if missing(object, &replace.path) => {
                PatchOperation::Add(AddOperation { path: replace.path, value: replace.value })
            }
            other => other,
        };
        json_patch::patch(object, &[operation]).map_err(|_| patch_rejected())?;
    }
    Ok(())
}

/// Whether the last part of a path is missing from a map that exists.
fn missing(object: &Value, path: &Pointer) -> bool {
    let text = path.as_str();
    let Some((parent, last)) = text.rsplit_once('/') else { return false };
    let last = last.replace("~1", "/").replace("~0", "~");
    object.pointer(parent).and_then(Value::as_object).is_some_and(|parent| !parent.contains_key(&last))
}

/// Carries out a merge patch.
pub(super) fn merge(object: &mut Value, patch: &Value) -> Result<(), Refusal> {
    if !patch.is_object() {
        return Err(bad_request(
            "error decoding patch: json: cannot unmarshal into Go value of type map[string]interface {}",
        ));
    }
    json_patch::merge(object, patch);
    Ok(())
}

/// Carries out a strategic merge patch.
pub(super) fn strategic(object: &mut Value, patch: &Value, shape: Shape<'_>) -> Result<(), Refusal> {
    match patch {
        Value::Object(fields) => {
            strategic_map(super::value::map(object), fields, shape);
            Ok(())
        }
        _ => Err(bad_request(
            "error decoding patch: json: cannot unmarshal into Go value of type map[string]interface {}",
        )),
    }
}

fn directive(value: &Value) -> Option<&str> {
    value.get("$patch").and_then(Value::as_str)
}

fn strategic_map(live: &mut Map<String, Value>, patch: &Map<String, Value>, shape: Shape<'_>) {
    if patch.get("$patch").and_then(Value::as_str) == Some("replace") {
        live.clear();
    }
    for (name, value) in patch {
        if let Some(list) = name.strip_prefix("$deleteFromPrimitiveList/") {
            if let (Some(Value::Array(known)), Value::Array(gone)) = (live.get_mut(list), value) {
                known.retain(|item| !gone.contains(item));
            }
        } else if name.starts_with('$') {
            // The order of elements is not modelled, and the directive itself was handled above.
        } else if value.is_null() || directive(value) == Some("delete") {
            live.remove(name);
        } else {
            let field = shape.field(name);
            match (live.get_mut(name), value) {
                (Some(Value::Object(known)), Value::Object(fields)) => strategic_map(known, fields, field),
                (Some(Value::Array(known)), Value::Array(items)) => strategic_list(known, items, field),
                (_, Value::Object(fields)) => {
                    let mut made = Map::new();
                    strategic_map(&mut made, fields, field);
                    live.insert(name.clone(), Value::Object(made));
                }
                (_, Value::Array(items)) => {
                    let mut made = Vec::new();
                    strategic_list(&mut made, items, field);
                    live.insert(name.clone(), Value::Array(made));
                }
                _ => {
                    live.insert(name.clone(), value.clone());
                }
            }
        }
    }
}

fn strategic_list(live: &mut Vec<Value>, patch: &[Value], shape: Shape<'_>) {
    let key = match shape.list() {
        ListShape::Atomic => None,
        ListShape::Set => {
            let rest: Vec<Value> = live.iter().filter(|item| !patch.contains(item)).cloned().collect();
            *live = weave(live, rest, patch.to_vec(), |item| item.clone());
            return;
        }
        // The merge key is the first of the keys.
        ListShape::Keyed(keys) => keys.into_iter().next(),
    };
    let replaces = patch.iter().any(|item| directive(item) == Some("replace"));
    let items = patch.iter().filter(|item| directive(item) != Some("replace"));
    let Some(key) = key.filter(|_| !replaces) else {
        *live = items.cloned().collect();
        return;
    };
    let identity = |item: &Value| item.get(&key).cloned().unwrap_or_default();
    let mut rest = live.clone();
    let mut patched = Vec::new();
    for item in items {
        let place = rest.iter().position(|known| known.get(&key).is_some() && identity(known) == identity(item));
        let known = place.map(|place| rest.remove(place));
        if directive(item) == Some("delete") {
            continue;
        }
        match (known, item) {
            (Some(Value::Object(mut known)), Value::Object(fields)) => {
                strategic_map(&mut known, fields, shape.item());
                patched.push(Value::Object(known));
            }
            _ => patched.push(item.clone()),
        }
    }
    *live = weave(live, rest, patched, identity);
}

/// The items of a patch and the rest of a list in one: what both know keeps the order of the list, and what is new
/// comes before what is left.
fn weave(live: &[Value], rest: Vec<Value>, patched: Vec<Value>, identity: impl Fn(&Value) -> Value) -> Vec<Value> {
    let place = |item: &Value| live.iter().position(|known| identity(known) == identity(item));
    let mut rest = rest.into_iter().peekable();
    let mut woven = Vec::new();
    for item in patched {
        if let Some(own) = place(&item) {
            while let Some(other) = rest.next_if(|other| place(other) < Some(own)) {
                woven.push(other);
            }
        }
        woven.push(item);
    }
    woven.extend(rest);
    woven
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tests_for_null_hold_for_what_is_missing() {
        let mut object = json!({"metadata": {}});
        let patch = json!([
            {"op": "test", "path": "/metadata/finalizers", "value": null},
            {"op": "add", "path": "/metadata/finalizers", "value": ["x.io/a"]},
        ]);
        json(&mut object, &patch).unwrap();
        assert_eq!(object, json!({"metadata": {"finalizers": ["x.io/a"]}}));
        json(&mut object, &json!([{"op": "replace", "path": "/metadata/new", "value": 1}])).unwrap();
        assert_eq!(object["metadata"]["new"], 1, "a replacement of what is missing adds it");
        for op in [
            json!([{"op": "replace", "path": "/spec/new", "value": 1}]),
            json!([{"op": "test", "path": "/metadata/finalizers", "value": null}]),
            json!([{"op": "test", "path": "/spec/x", "value": null}]),
            json!([{"op": "test", "path": "/metadata/labels", "value": []}]),
            json!([{"op": "remove", "path": "/metadata/labels"}]),
        ] {
            assert_eq!(json(&mut object, &op).unwrap_err().code(), 422, "{op}");
        }
    }

    #[test]
    fn strategic_patches_merge_lists_by_their_keys() {
        let mut object = json!({"metadata": {
            "ownerReferences": [{"uid": "u1", "name": "a"}, {"uid": "u2", "name": "b"}], "finalizers": ["a", "b"],
        }});
        let patch = json!({"metadata": {
            "ownerReferences": [{"$patch": "delete", "uid": "u1"}, {"uid": "u2", "blockOwnerDeletion": true}],
            "$deleteFromPrimitiveList/finalizers": ["a"], "finalizers": ["c"],
        }});
        strategic(&mut object, &patch, Shape::root(None, false)).unwrap();
        assert_eq!(
            object,
            json!({"metadata": {
                "ownerReferences": [{"uid": "u2", "name": "b", "blockOwnerDeletion": true}], "finalizers": ["c", "b"],
            }})
        );
    }
}
