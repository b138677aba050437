//! How lists and maps merge: which are one value, which have parts that managers own one by one.
//!
//! For custom resources the schema says so. For built-in kinds this is a table by field name, which holds the lists
//! that operators meet; a list that is not in it counts as one value.

use serde_json::Value;

use super::schema;

/// How a list merges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ListShape {
    /// As one value.
    Atomic,
    /// As a set of scalars.
    Set,
    /// As a map by these fields of its items.
    Keyed(Vec<String>),
}

/// What is known of the value at one place.
#[derive(Clone, Copy, Debug)]
pub(super) enum Shape<'a> {
    /// Of an object of a custom resource; `None` where the schema says nothing.
    Custom { schema: Option<&'a Value>, root: bool },
    /// Of an object of a built-in kind: the name of the field that it is the value of, and of that above.
    Builtin { parent: &'a str, field: &'a str },
    /// The metadata, and what is in it.
    Meta { field: &'a str },
}

/// Built-in lists with keys. The field above tells apart those of the same name; empty stands for any.
const KEYED: &[(&str, &str, &[&str])] = &[
    ("", "containers", &["name"]),
    ("", "initContainers", &["name"]),
    ("", "ephemeralContainers", &["name"]),
    ("", "env", &["name"]),
    ("", "volumes", &["name"]),
    ("", "volumeMounts", &["mountPath"]),
    ("", "volumeDevices", &["devicePath"]),
    ("", "imagePullSecrets", &["name"]),
    ("", "hostAliases", &["ip"]),
    ("", "topologySpreadConstraints", &["topologyKey", "whenUnsatisfiable"]),
    ("", "resourceClaims", &["name"]),
    ("", "conditions", &["type"]),
    ("", "secrets", &["name"]),
    ("", "webhooks", &["name"]),
    ("containers", "ports", &["containerPort", "protocol"]),
    ("spec", "ports", &["port", "protocol"]),
];

/// Built-in maps that are one value.
const ATOMIC: &[&str] = &[
    "selector",
    "labelSelector",
    "namespaceSelector",
    "objectSelector",
    "podSelector",
    "nodeSelector",
    "roleRef",
    "secretRef",
    "configMapRef",
    "secretKeyRef",
    "configMapKeyRef",
    "fieldRef",
    "resourceFieldRef",
    "scaleTargetRef",
    "involvedObject",
    "regarding",
    "related",
    "targetRef",
    "valueFrom",
];

/// Parts of built-in objects that exist in every object, so that no manager comes to own them.
const ALWAYS: &[&str] =
    &["spec", "status", "template", "strategy", "updateStrategy", "jobTemplate", "names", "acceptedNames"];

impl<'a> Shape<'a> {
    /// Of a whole object.
    pub(super) fn root(schema: Option<&'a Value>, custom: bool) -> Self {
        if custom { Self::Custom { schema, root: true } } else { Self::Builtin { parent: "", field: "" } }
    }

    /// Of the value of a field of this one.
    pub(super) fn field(self, name: &'a str) -> Self {
        match self {
            Self::Custom { root: true, .. } | Self::Builtin { parent: "", field: "" } if name == "metadata" => {
                Self::Meta { field: "" }
            }
            Self::Custom { schema, .. } => {
                Self::Custom { schema: schema.and_then(|schema| schema::field(schema, name)), root: false }
            }
            Self::Builtin { field, .. } => Self::Builtin { parent: field, field: name },
            Self::Meta { .. } => Self::Meta { field: name },
        }
    }

    /// Whether a field of this one is known by name, and not just one key among others.
    pub(super) fn declares(self, name: &str) -> bool {
        match self {
            Self::Custom { schema, root } => {
                let properties = schema.and_then(|schema| schema.get("properties"));
                let system = root && matches!(name, "apiVersion" | "kind" | "metadata");
                system || properties.is_some_and(|properties| properties.get(name).is_some())
            }
            Self::Builtin { .. } | Self::Meta { .. } => true,
        }
    }

    /// Of the items of this list.
    pub(super) fn item(self) -> Self {
        match self {
            Self::Custom { schema, .. } => {
                Self::Custom { schema: schema.and_then(|schema| schema.get("items")), root: false }
            }
            Self::Builtin { field, .. } => Self::Builtin { parent: field, field },
            Self::Meta { field: "ownerReferences" } => Self::Meta { field: "ownerReference" },
            meta @ Self::Meta { .. } => meta,
        }
    }

    pub(super) fn list(self) -> ListShape {
        match self {
            Self::Custom { schema, .. } => {
                let of = |name: &str| schema.and_then(|schema| schema.get(name));
                match of("x-kubernetes-list-type").and_then(Value::as_str) {
                    Some("set") => ListShape::Set,
                    Some("map") => {
                        let keys = of("x-kubernetes-list-map-keys").and_then(Value::as_array).into_iter().flatten();
                        ListShape::Keyed(keys.filter_map(Value::as_str).map(ToOwned::to_owned).collect())
                    }
                    _ => ListShape::Atomic,
                }
            }
            Self::Builtin { parent, field } => {
                let row =
                    KEYED.iter().find(|(above, name, _)| *name == field && (above.is_empty() || *above == parent));
                match row {
                    Some((_, _, keys)) => ListShape::Keyed(keys.iter().map(|key| (*key).to_owned()).collect()),
                    None if field == "finalizers" => ListShape::Set,
                    None => ListShape::Atomic,
                }
            }
            Self::Meta { field: "finalizers" } => ListShape::Set,
            Self::Meta { field: "ownerReferences" } => ListShape::Keyed(vec!["uid".to_owned()]),
            Self::Meta { .. } => ListShape::Atomic,
        }
    }

    /// Whether a map is one value.
    pub(super) fn is_atomic_map(self) -> bool {
        match self {
            Self::Custom { schema, .. } => {
                let of = |name: &str| schema.and_then(|schema| schema.get(name)).and_then(Value::as_str);
                of("x-kubernetes-map-type") == Some("atomic")
            }
            Self::Builtin { field, .. } => ATOMIC.contains(&field),
            Self::Meta { field } => field == "ownerReference",
        }
    }

    /// Whether the value exists in every object, be it empty.
    pub(super) fn always_exists(self) -> bool {
        match self {
            Self::Custom { root, .. } => root,
            Self::Builtin { parent, field } => {
                field.is_empty() || ALWAYS.contains(&field) || (parent == "template" && field == "metadata")
            }
            Self::Meta { field } => field.is_empty(),
        }
    }
}
