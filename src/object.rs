//! Identities: which object, which kind, which incarnation.
//!
//! This module decides what two names have in common and knows nothing of a cluster. An object's
//! identity is group + kind + namespace + name; a *version* is how a request spells the kind today, not
//! part of the identity, because objects outlive versions. A [`Uid`] tells one incarnation of an identity from
//! the next.

use std::{borrow::Cow, fmt, str::FromStr, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_core::{ApiResource, DynamicObject, GroupVersionKind};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};

/// Why a name, kind or identity was refused.
///
/// The rules are those the API server applies to object names, namespaces, groups and kinds.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A part of an identity breaks a rule of the API server.
    #[error("invalid {part} {value:?}: {rule}")]
    Invalid {
        /// Which part: `group`, `kind`, `namespace`, `name`, `uid` or `plural`.
        part: &'static str,
        /// The refused value, cut to a readable length.
        value: String,
        /// The rule it breaks and what to do.
        rule: &'static str,
    },
    /// A namespaced kind came without a namespace.
    #[error("{kind} {name:?} is namespaced but names no namespace: set metadata.namespace")]
    NamespaceMissing {
        /// The kind.
        kind: GroupKind,
        /// The object's name.
        name: String,
    },
    /// A cluster-scoped kind came with a namespace.
    #[error("{kind} {name:?} is cluster-scoped but names namespace {namespace:?}: remove metadata.namespace")]
    NamespaceNotAllowed {
        /// The kind.
        kind: GroupKind,
        /// The object's name.
        name: String,
        /// The namespace it named.
        namespace: String,
    },
    /// A text is not an identity in display form.
    #[error("{0:?} is not an identity: write \"Kind.group namespace/name\" or \"Kind.group name\"")]
    Syntax(String),
}

fn invalid(part: &'static str, value: &str, rule: &'static str) -> Error {
    Error::Invalid { part, value: value.chars().take(80).collect(), rule }
}

/// A DNS label (RFC 1123): lower-case alphanumerics and `-`, at most 63 bytes.
fn is_dns_label(text: &str) -> bool {
    let alphanumeric = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    !text.is_empty()
        && text.len() <= 63
        && text.bytes().all(|b| alphanumeric(&b) || b == b'-')
        && text.as_bytes().first().is_some_and(alphanumeric)
        && text.as_bytes().last().is_some_and(alphanumeric)
}

/// A DNS subdomain (RFC 1123): labels joined by dots, at most 253 bytes.
pub(crate) fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_dns_label)
}

fn check_group(group: &str) -> Result<(), Error> {
    if group.is_empty() || is_dns_subdomain(group) {
        return Ok(());
    }
    Err(invalid("group", group, "an API group is empty (the core group) or a DNS subdomain of at most 253 characters"))
}

fn check_kind(kind: &str) -> Result<(), Error> {
    let bytes = kind.as_bytes();
    if bytes.first().is_some_and(u8::is_ascii_alphabetic)
        && bytes.len() <= 63
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'-')
    {
        return Ok(());
    }
    Err(invalid("kind", kind, "a kind starts with a letter and holds at most 63 letters, digits and '-'"))
}

/// Namespaces are DNS labels.
pub(crate) fn check_namespace(namespace: &str) -> Result<(), Error> {
    if is_dns_label(namespace) {
        return Ok(());
    }
    Err(invalid("namespace", namespace, "a namespace is a DNS label: at most 63 lower-case letters, digits and '-'"))
}

/// Names are path segments. Most kinds demand more (a DNS subdomain), but RBAC objects may be called
/// `system:node_x`, and only the API server knows each kind's rule. What would end or change the path of a request is
/// refused: a request for `x?y` would be answered for `x`.
fn check_name(name: &str) -> Result<(), Error> {
    if name.is_empty() {
        return Err(invalid(
            "name",
            name,
            "an object needs a name of its own; generateName cannot be recorded before the create",
        ));
    }
    if name.len() > 253 {
        return Err(invalid("name", name, "a name has at most 253 characters"));
    }
    let breaks_paths = |c: char| matches!(c, '/' | '%' | '?' | '#') || c.is_control();
    if name == "." || name == ".." || name.contains(breaks_paths) {
        return Err(invalid(
            "name",
            name,
            "a name is a path segment: not '.' or '..', and without '/', '%', '?', '#' and control characters",
        ));
    }
    Ok(())
}

/// API group and kind, without a version: what stays the same when a version comes or goes.
///
/// Displays as `Kind` for the core group and `Kind.group` otherwise, as `kubectl` does.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct GroupKind {
    /// The API group; empty for the core group.
    pub group: String,
    /// The kind, in upper camel case.
    pub kind: String,
}

impl GroupKind {
    /// A group and a kind, checked.
    ///
    /// # Errors
    /// [`Error::Invalid`] if either breaks the API server's rules.
    pub fn new(group: impl Into<String>, kind: impl Into<String>) -> Result<Self, Error> {
        let this = Self { group: group.into(), kind: kind.into() };
        check_group(&this.group)?;
        check_kind(&this.kind)?;
        Ok(this)
    }

    /// The group and kind of a typed resource.
    #[must_use]
    pub fn of<K: kube_core::Resource<DynamicType = ()>>() -> Self {
        Self { group: K::group(&()).into_owned(), kind: K::kind(&()).into_owned() }
    }

    /// Whether this is `group`/`kind`.
    #[must_use]
    pub fn is(&self, group: &str, kind: &str) -> bool {
        self.group == group && self.kind == kind
    }
}

impl fmt::Display for GroupKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_group_kind(f, &self.group, &self.kind)
    }
}

impl FromStr for GroupKind {
    type Err = Error;
    /// Reads the display form.
    fn from_str(text: &str) -> Result<Self, Error> {
        let (kind, group) = text.split_once('.').unwrap_or((text, ""));
        Self::new(group, kind)
    }
}

fn write_group_kind(f: &mut fmt::Formatter<'_>, group: &str, kind: &str) -> fmt::Result {
    match group {
        "" => f.write_str(kind),
        _ => write!(f, "{kind}.{group}"),
    }
}

/// Where objects of a kind live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[allow(clippy::exhaustive_enums, reason = "Kubernetes has these two")]
pub enum Scope {
    /// One of each name in the cluster.
    Cluster,
    /// One of each name in each namespace.
    Namespaced,
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cluster => "cluster-scoped",
            Self::Namespaced => "namespaced",
        })
    }
}

/// How requests for a kind are spelled: one served version, the plural and the scope.
///
/// The answer of discovery, as of one moment; `version` is only a hint for later.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ResourceKind {
    /// The API group; empty for the core group.
    pub group: String,
    /// A version that was served when this was resolved.
    pub version: String,
    /// The kind.
    pub kind: String,
    /// The resource name in paths, in lower case.
    pub plural: String,
    /// Where objects of the kind live.
    pub scope: Scope,
}

impl ResourceKind {
    /// A kind spelled out by hand, for callers that do not ask discovery.
    #[must_use]
    pub fn new(group: &str, version: &str, kind: &str, plural: &str, scope: Scope) -> Self {
        Self { group: group.into(), version: version.into(), kind: kind.into(), plural: plural.into(), scope }
    }

    /// The kind of a typed resource.
    #[must_use]
    pub fn of<K: kube_core::Resource<DynamicType = ()>>(scope: Scope) -> Self {
        Self::new(&K::group(&()), &K::version(&()), &K::kind(&()), &K::plural(&()), scope)
    }

    /// Group and kind.
    #[must_use]
    pub fn group_kind(&self) -> GroupKind {
        GroupKind { group: self.group.clone(), kind: self.kind.clone() }
    }

    /// `version` for the core group, `group/version` otherwise.
    #[must_use]
    pub fn api_version(&self) -> String {
        match self.group.as_str() {
            "" => self.version.clone(),
            group => format!("{group}/{}", self.version),
        }
    }

    /// The resource name as RBAC rules and the names of CustomResourceDefinitions spell it: `plural.group`, or `plural` alone
    /// in the core group.
    #[must_use]
    pub fn group_resource(&self) -> String {
        match self.group.as_str() {
            "" => self.plural.clone(),
            group => format!("{}.{group}", self.plural),
        }
    }

    /// kube's form, for `Api::all_with` and `Api::namespaced_with`.
    #[must_use]
    pub fn api_resource(&self) -> ApiResource {
        let gvk = GroupVersionKind::gvk(&self.group, &self.version, &self.kind);
        ApiResource::from_gvk_with_plural(&gvk, &self.plural)
    }
}

/// The API group that an `apiVersion` names: what comes before the slash, nothing for the core group.
pub(crate) fn group_of(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
}

/// Which object: group, kind, namespace and name.
///
/// Totally ordered by group, kind, namespace (cluster scope first) and name. One shared allocation, so that
/// clones are cheap. Displays as `Kind.group namespace/name`, or `Kind.group name` in cluster scope, and
/// parses from that form.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId {
    // group, kind, namespace and name joined by NUL, which none of them can hold: comparing the
    // text compares the parts in turn.
    text: Arc<str>,
}

impl ObjectId {
    /// An identity from its parts; `None` as namespace means cluster scope.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a part breaks the API server's rules. Whether the kind *is* namespaced is
    /// discovery's to say: see [`ObjectId::check_scope`].
    pub fn new(group: &str, kind: &str, namespace: Option<&str>, name: &str) -> Result<Self, Error> {
        check_group(group)?;
        check_kind(kind)?;
        if let Some(namespace) = namespace {
            check_namespace(namespace)?;
        }
        check_name(name)?;
        Ok(Self { text: format!("{group}\0{kind}\0{}\0{name}", namespace.unwrap_or("")).into() })
    }

    /// The identity of a dynamic object, from its `apiVersion`, `kind` and metadata.
    ///
    /// # Errors
    /// [`Error::Invalid`] if type, kind or name is missing or breaks the rules.
    pub fn of(object: &DynamicObject) -> Result<Self, Error> {
        let types = object.types.as_ref();
        let (group, kind) = types.map_or(("", ""), |t| (group_of(&t.api_version), t.kind.as_str()));
        Self::from_meta(&GroupKind { group: group.to_owned(), kind: kind.to_owned() }, &object.metadata)
    }

    /// The identity of a typed object.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the name is missing or breaks the rules.
    pub fn of_resource<K: kube_core::Resource<DynamicType = ()>>(object: &K) -> Result<Self, Error> {
        Self::from_meta(&GroupKind::of::<K>(), object.meta())
    }

    /// The identity that `meta` has in `kind`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a part is missing or breaks the rules.
    pub fn from_meta(kind: &GroupKind, meta: &ObjectMeta) -> Result<Self, Error> {
        let namespace = meta.namespace.as_deref().filter(|n| !n.is_empty());
        Self::new(&kind.group, &kind.kind, namespace, meta.name.as_deref().unwrap_or(""))
    }

    fn parts(&self) -> [&str; 4] {
        let mut parts = self.text.splitn(4, '\0');
        std::array::from_fn(|_| parts.next().unwrap_or(""))
    }

    /// The API group; empty for the core group.
    #[must_use]
    pub fn group(&self) -> &str {
        self.parts()[0]
    }

    /// The kind.
    #[must_use]
    pub fn kind(&self) -> &str {
        self.parts()[1]
    }

    /// The namespace, or `None` in cluster scope.
    #[must_use]
    pub fn namespace(&self) -> Option<&str> {
        Some(self.parts()[2]).filter(|n| !n.is_empty())
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.parts()[3]
    }

    /// Group and kind.
    #[must_use]
    pub fn group_kind(&self) -> GroupKind {
        GroupKind { group: self.group().into(), kind: self.kind().into() }
    }

    /// Whether the kind is `group`/`kind`.
    #[must_use]
    pub fn is(&self, group: &str, kind: &str) -> bool {
        self.group() == group && self.kind() == kind
    }

    /// Where the object lives, as its identity says.
    #[must_use]
    pub fn scope(&self) -> Scope {
        if self.namespace().is_some() { Scope::Namespaced } else { Scope::Cluster }
    }

    /// Checks the identity against the scope that discovery reports for its kind.
    ///
    /// # Errors
    /// [`Error::NamespaceMissing`] or [`Error::NamespaceNotAllowed`].
    pub fn check_scope(&self, scope: Scope) -> Result<(), Error> {
        match (scope, self.namespace()) {
            (Scope::Namespaced, None) => {
                Err(Error::NamespaceMissing { kind: self.group_kind(), name: self.name().into() })
            }
            (Scope::Cluster, Some(namespace)) => Err(Error::NamespaceNotAllowed {
                kind: self.group_kind(),
                name: self.name().into(),
                namespace: namespace.into(),
            }),
            _ => Ok(()),
        }
    }

    /// A hash of the identity that never changes: what stored edges and shards refer to.
    #[must_use]
    pub fn stable_id(&self) -> StableId {
        let digest = Sha256::digest(self.text.as_bytes());
        let mut id = [0; 16];
        id.copy_from_slice(&digest[..16]);
        StableId(id)
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [group, kind, namespace, name] = self.parts();
        write_group_kind(f, group, kind)?;
        match namespace {
            "" => write!(f, " {name}"),
            _ => write!(f, " {namespace}/{name}"),
        }
    }
}

impl fmt::Debug for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

impl FromStr for ObjectId {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self, Error> {
        let (kind, place) = text.split_once(' ').ok_or_else(|| Error::Syntax(text.chars().take(80).collect()))?;
        let kind: GroupKind = kind.parse()?;
        match place.split_once('/') {
            Some((namespace, name)) => Self::new(&kind.group, &kind.kind, Some(namespace), name),
            None => Self::new(&kind.group, &kind.kind, None, place),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Fields<'a> {
    #[serde(borrow, default, skip_serializing_if = "str::is_empty")]
    group: Cow<'a, str>,
    #[serde(borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    namespace: Option<Cow<'a, str>>,
    #[serde(borrow)]
    name: Cow<'a, str>,
}

impl Serialize for ObjectId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Fields {
            group: self.group().into(),
            kind: self.kind().into(),
            namespace: self.namespace().map(Into::into),
            name: self.name().into(),
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ObjectId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let fields = Fields::deserialize(deserializer)?;
        let namespace = fields.namespace.as_deref().filter(|n| !n.is_empty());
        Self::new(&fields.group, &fields.kind, namespace, &fields.name).map_err(serde::de::Error::custom)
    }
}

/// The first 128 bits of SHA-256 over an identity. Serialises as 32 hexadecimal digits.
///
/// Stored edges name their ends by it, so that an entry can be moved, re-sharded or lost without any other
/// entry changing its meaning.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StableId([u8; 16]);

impl StableId {
    /// The hash as bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Display for StableId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for StableId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for StableId {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self, Error> {
        let bad = || invalid("stable id", text, "a stable id has 32 lower-case hexadecimal digits");
        if text.len() != 32 || !text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(bad());
        }
        u128::from_str_radix(text, 16).map(|bits| Self(bits.to_be_bytes())).map_err(|_| bad())
    }
}

impl Serialize for StableId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for StableId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// The API server's identifier of one incarnation of an object; never empty.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Uid(Arc<str>);

impl Uid {
    /// A UID, checked.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is empty, longer than 253 bytes or holds control characters.
    pub fn new(uid: impl AsRef<str>) -> Result<Self, Error> {
        let uid = uid.as_ref();
        if uid.is_empty() || uid.len() > 253 || uid.bytes().any(|b| b.is_ascii_control()) {
            return Err(invalid("uid", uid, "a UID is copied from metadata.uid of a live object and not empty"));
        }
        Ok(Self(uid.into()))
    }

    /// The UID in `meta`, if it was read from a live object.
    #[must_use]
    pub fn of(meta: &ObjectMeta) -> Option<Self> {
        Self::new(meta.uid.as_deref()?).ok()
    }

    /// The UID as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Uid {
    type Error = Error;
    fn try_from(uid: String) -> Result<Self, Error> {
        Self::new(uid)
    }
}

impl From<Uid> for String {
    fn from(uid: Uid) -> Self {
        uid.as_str().to_owned()
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A live object as one incarnation: identity and UID.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LiveRef {
    /// Which object.
    #[serde(flatten)]
    pub id: ObjectId,
    /// Which incarnation.
    pub uid: Uid,
}

impl LiveRef {
    /// An identity with the UID that was read for it.
    #[must_use]
    pub fn new(id: ObjectId, uid: Uid) -> Self {
        Self { id, uid }
    }
}

impl fmt::Display for LiveRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.id, self.uid)
    }
}

/// The custom resource on whose behalf children exist: identity, incarnation and how to reach it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ParentRef {
    /// Which object.
    pub id: ObjectId,
    /// Which incarnation; children of an earlier one are not this one's.
    pub uid: Uid,
    /// A version that was served when this was written; a hint.
    pub version: String,
    /// The resource name in paths.
    pub plural: String,
}

impl ParentRef {
    /// A parent as read live: `id` and `uid` from its metadata, the rest from discovery or its type.
    #[must_use]
    pub fn new(id: ObjectId, uid: Uid, resource: &ResourceKind) -> Self {
        Self { id, uid, version: resource.version.clone(), plural: resource.plural.clone() }
    }

    /// The parent that a typed object is.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the object has no valid name, or no UID because it was not read from the API server.
    pub fn of<K: kube_core::Resource<DynamicType = ()>>(object: &K) -> Result<Self, Error> {
        let uid = Uid::new(object.meta().uid.as_deref().unwrap_or(""))?;
        let id = ObjectId::of_resource(object)?;
        Ok(Self { id, uid, version: K::version(&()).into_owned(), plural: K::plural(&()).into_owned() })
    }

    /// Which incarnation, without how to reach it.
    #[must_use]
    pub fn live(&self) -> LiveRef {
        LiveRef::new(self.id.clone(), self.uid.clone())
    }

    /// How to spell requests for the parent.
    #[must_use]
    pub fn resource(&self) -> ResourceKind {
        ResourceKind::new(self.id.group(), &self.version, self.id.kind(), &self.plural, self.id.scope())
    }
}

impl fmt::Display for ParentRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.id, self.uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn id(group: &str, kind: &str, namespace: Option<&str>, name: &str) -> ObjectId {
        ObjectId::new(group, kind, namespace, name).unwrap()
    }

    #[test]
    fn s10_legal_rbac_names_are_kept_whole() {
        for name in ["system:node_x", "a__b", "A.b:c", &"x".repeat(253)] {
            let role = id("rbac.authorization.k8s.io", "ClusterRole", None, name);
            assert_eq!(role.name(), name);
            assert_eq!(role.to_string().parse::<ObjectId>().unwrap(), role);
        }
    }

    #[test]
    fn limits_of_the_api_server_are_typed_errors() {
        let long = "x".repeat(254);
        for (group, kind, namespace, name, part) in [
            ("Bad_Group", "K", None, "n", "group"),
            ("", "", None, "n", "kind"),
            ("", "K", Some("Upper"), "n", "namespace"),
            ("", "K", Some(&*"x".repeat(64)), "n", "namespace"),
            ("", "K", None, "", "name"),
            ("", "K", None, "..", "name"),
            ("", "K", None, "a/b", "name"),
            ("", "K", None, "a\0b", "name"),
            ("", "K", None, &long, "name"),
        ] {
            match ObjectId::new(group, kind, namespace, name) {
                Err(Error::Invalid { part: found, .. }) => assert_eq!(found, part),
                other => panic!("{group} {kind} {namespace:?} {name}: {other:?}"),
            }
        }
        assert!(Uid::new("").is_err());
    }

    #[test]
    fn cluster_scope_sorts_before_namespaces() {
        let mut ids = [id("", "A", Some("a"), "a"), id("", "A", None, "z"), id("", "A", Some("a-b"), "a")];
        ids.sort();
        assert_eq!(ids.map(|i| i.to_string()), ["A z", "A a/a", "A a-b/a"]);
    }

    fn any_id() -> impl Strategy<Value = ObjectId> {
        ("([a-z]{1,5}(\\.[a-z]{1,5})?)?", "[A-Z][a-zA-Z]{0,8}", proptest::option::of("[a-z]{1,5}"), "[a-zA-Z:_.-]{1,9}")
            .prop_filter_map("path segment", |(g, k, ns, n)| ObjectId::new(&g, &k, ns.as_deref(), &n).ok())
    }

    proptest! {
        #[test]
        fn every_form_reads_back(id in any_id()) {
            prop_assert_eq!(&id.to_string().parse::<ObjectId>().unwrap(), &id);
            prop_assert_eq!(&serde_json::from_str::<ObjectId>(&serde_json::to_string(&id).unwrap()).unwrap(), &id);
            let stable = id.stable_id();
            prop_assert_eq!(stable.to_string().parse::<StableId>().unwrap(), stable);
        }

        #[test]
        fn order_is_that_of_the_parts(a in any_id(), b in any_id()) {
            let key = |i: &ObjectId| {
                let parts = [i.group(), i.kind(), i.namespace().unwrap_or(""), i.name()];
                parts.map(ToOwned::to_owned)
            };
            prop_assert_eq!(a.cmp(&b), key(&a).cmp(&key(&b)));
            prop_assert_eq!(a.stable_id() == b.stable_id(), a == b);
        }
    }
}
