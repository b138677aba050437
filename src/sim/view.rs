//! Objects as they are sent: in the version that was asked for, or their metadata only.

use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Value;

use super::{catalogue::Resource, world::ListReply};

/// One object on its way out.
#[derive(Clone, Copy, Debug)]
pub(super) struct View<'a> {
    object: &'a Value,
    kind: &'a str,
    /// In this version, or as it is stored.
    version: Option<(&'a str, &'a str)>,
    partial: bool,
    /// Items of built-in lists do not say what they are.
    bare: bool,
}

impl<'a> View<'a> {
    pub(super) fn of(object: &'a Value, resource: &'a Resource, version: &'a str, partial: bool) -> Self {
        let version = (resource.storage_version != version).then_some((resource.group.as_str(), version));
        Self { object, kind: &resource.kind, version, partial, bare: false }
    }

    pub(super) fn to_vec(self) -> Vec<u8> {
        // Writing JSON to memory can't fail: all keys are texts.
        serde_json::to_vec(&self).unwrap_or_default()
    }
}

impl Serialize for View<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if self.partial {
            map.serialize_entry("kind", "PartialObjectMetadata")?;
            map.serialize_entry("apiVersion", "meta.k8s.io/v1")?;
            map.serialize_entry("metadata", &self.object["metadata"])?;
            return map.end();
        }
        if !self.bare {
            map.serialize_entry("kind", self.kind)?;
        }
        for (name, value) in self.object.as_object().into_iter().flatten() {
            match (name.as_str(), self.version) {
                ("apiVersion" | "kind", _) if self.bare => {}
                ("kind", _) => {}
                ("apiVersion", Some((group, version))) => {
                    let text = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
                    map.serialize_entry("apiVersion", &text)?;
                }
                _ => map.serialize_entry(name, value)?,
            }
        }
        map.end()
    }
}

/// A list on its way out.
pub(super) fn list(reply: &ListReply, resource: &Resource, version: &str, partial: bool) -> Vec<u8> {
    let views: Vec<View<'_>> = reply
        .items
        .iter()
        .map(|object| View { bare: !resource.is_custom(), ..View::of(object, resource, version, partial) })
        .collect();
    let (kind, api_version) = if partial {
        ("PartialObjectMetadataList", "meta.k8s.io/v1".to_owned())
    } else {
        (resource.list_kind.as_str(), resource.api_version(version))
    };
    let mut metadata = serde_json::json!({"resourceVersion": reply.version.to_string()});
    if !reply.continue_token.is_empty() {
        metadata["continue"] = reply.continue_token.as_str().into();
    }
    if let Some(remaining) = reply.remaining {
        metadata["remainingItemCount"] = remaining.into();
    }
    #[derive(serde::Serialize)]
    #[serde(rename_all = "camelCase")]
    struct List<'a> {
        kind: &'a str,
        api_version: String,
        metadata: Value,
        items: Vec<View<'a>>,
    }
    serde_json::to_vec(&List { kind, api_version, metadata, items: views }).unwrap_or_default()
}
