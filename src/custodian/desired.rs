//! What a parent should have: the objects, as manifests, with what their author says about order and end.
//!
//! Checks each manifest for what no cluster is needed to see. Which kinds are served, and which objects the parent may
//! manage, is decided later.

use std::collections::{BTreeMap, BTreeSet};

use kube_core::{DynamicObject, Resource, TypeMeta};
use serde::Serialize;

use crate::{
    graph::Waiver,
    inventory::{DeletionPolicy, InUsePolicy},
    manager::Manager,
    object::{self, ObjectId},
};

/// Why a desired set was refused. Nothing is sent and nothing is lost.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A manifest has no usable identity.
    #[error("manifest {position} has no valid identity")]
    Identity {
        /// Position in the set, from 0.
        position: usize,
        /// Which rule it breaks.
        #[source]
        source: object::Error,
    },
    /// Two manifests describe one object, perhaps in two versions.
    #[error("{0} is in the desired set twice: remove one of the manifests")]
    Duplicate(ObjectId),
    /// Two manifests describe one object, which the API server serves under both groups.
    #[error("{0} and {1} are one object, served under two API groups: remove one of the manifests")]
    TwoGroups(ObjectId, ObjectId),
    /// A manifest carries a field that only the API server, or another party, may write.
    #[error("{id} carries metadata.{field}: remove it from the manifest; {why}")]
    Field {
        /// Which object.
        id: ObjectId,
        /// Which field.
        field: &'static str,
        /// Who writes it.
        why: &'static str,
    },
    /// A manifest carries a key of this manager.
    #[error("{id} carries the key {key:?}, which only the manager itself writes: remove it from the manifest")]
    ManagerKey {
        /// Which object.
        id: ObjectId,
        /// Which key.
        key: String,
    },
    /// What is said of an object in use is not what a desired set may say.
    #[error(
        "{key:?} of {id} is {value:?}: use \"hold\" or \"keep\"; only the custodian's builder can say that something in use is deleted"
    )]
    InUse {
        /// Which object.
        id: ObjectId,
        /// The annotation.
        key: String,
        /// Its value, cut to a readable length.
        value: String,
    },
    /// Something is said about an object that is not in the set.
    #[error("{0} is not in the desired set, so nothing can be said about it")]
    NotInSet(ObjectId),
    /// A typed object could not be turned into a manifest.
    #[error("an object of kind {kind} cannot be serialised")]
    Serialise {
        /// Its kind.
        kind: String,
        /// The serialiser's error.
        #[source]
        source: serde_json::Error,
    },
    /// A YAML text could not be read.
    #[error("document {position} is not a manifest: {problem}")]
    Yaml {
        /// Position in the text, from 0.
        position: usize,
        /// What is wrong.
        problem: String,
    },
}

/// The objects that a parent should have.
///
/// Anything that turns into objects: typed resources ([`push`](Self::push)), dynamic objects
/// ([`push_dynamic`](Self::push_dynamic), [`FromIterator`]), YAML (`from_yaml`, feature `yaml`).
///
/// Order is taken from the annotation `config.kubernetes.io/depends-on`, from [`depends_on`](Self::depends_on) and from
/// rules; the order of the calls means nothing.
#[derive(Clone, Debug, Default)]
pub struct Desired {
    objects: Vec<DynamicObject>,
    depends_on: Vec<(ObjectId, ObjectId)>,
    deletion: BTreeMap<ObjectId, DeletionPolicy>,
    in_use: BTreeMap<ObjectId, InUsePolicy>,
    waivers: BTreeMap<ObjectId, BTreeSet<Waiver>>,
}

impl Desired {
    /// An empty set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a typed object.
    ///
    /// # Errors
    /// [`Error::Serialise`] if it has no JSON form.
    pub fn push<K: Resource<DynamicType = ()> + Serialize>(&mut self, object: &K) -> Result<&mut Self, Error> {
        let fail = |source| Error::Serialise { kind: K::kind(&()).into_owned(), source };
        let mut value = serde_json::to_value(object).map_err(fail)?;
        if let Some(map) = value.as_object_mut() {
            // Types of k8s-openapi write these themselves; custom resources may not.
            map.entry("apiVersion").or_insert_with(|| K::api_version(&()).into());
            map.entry("kind").or_insert_with(|| K::kind(&()).into());
        }
        Ok(self.push_dynamic(serde_json::from_value(value).map_err(fail)?))
    }

    /// Adds a dynamic object; `apiVersion` and `kind` must be set.
    pub fn push_dynamic(&mut self, object: DynamicObject) -> &mut Self {
        self.objects.push(object);
        self
    }

    /// Adds every object of a multi-document YAML text; empty documents are skipped.
    ///
    /// # Errors
    /// [`Error::Yaml`] for the first document that is not an object with `apiVersion`, `kind` and `metadata`.
    #[cfg(feature = "yaml")]
    pub fn push_yaml(&mut self, text: &str) -> Result<&mut Self, Error> {
        let problem = |position, problem: String| Error::Yaml { position, problem };
        // Places only: the messages quote the text around, and that may be a Secret's.
        let documents: Vec<serde_json::Value> = serde_saphyr::from_multiple(text).map_err(|e| {
            let at = e.location().map(|at| format!(" (line {}, column {} of the text)", at.line(), at.column()));
            problem(0, format!("it or one after it is not valid YAML{}", at.unwrap_or_default()))
        })?;
        for (position, document) in documents.into_iter().enumerate().filter(|(_, d)| !d.is_null()) {
            let object: DynamicObject = serde_json::from_value(document)
                .map_err(|_| problem(position, "apiVersion, kind or metadata is not what it has to be".into()))?;
            if object.types.is_none() {
                return Err(problem(position, "apiVersion or kind is missing".into()));
            }
            self.push_dynamic(object);
        }
        Ok(self)
    }

    /// Says that `from` depends on `to`: applied after it, deleted before it. `to` may be outside of the set; then apply
    /// waits for it, and teardown does not.
    pub fn depends_on(&mut self, from: ObjectId, to: ObjectId) -> &mut Self {
        self.depends_on.push((from, to));
        self
    }

    /// Says that `from` need not be applied after and deleted before `to`, whatever rules find. A declared edge holds all the
    /// same.
    pub fn waive(&mut self, from: ObjectId, to: ObjectId) -> &mut Self {
        self.waivers.entry(from).or_default().insert(Waiver::To(to));
        self
    }

    /// Says that no edge from `from` holds that the rule of this name finds.
    pub fn waive_rule(&mut self, from: ObjectId, rule: impl Into<String>) -> &mut Self {
        self.waivers.entry(from).or_default().insert(Waiver::Rule(rule.into()));
        self
    }

    /// Leaves `id` in the cluster when it is dropped from the set or the parent goes, with everything it requires.
    pub fn keep(&mut self, id: ObjectId) -> &mut Self {
        self.deletion.insert(id, DeletionPolicy::Keep);
        self
    }

    /// Says what happens to a Namespace or CustomResourceDefinition that something else still uses when its turn to be deleted has
    /// come: [`InUsePolicy::Hold`] or [`InUsePolicy::Keep`]. Recorded with the object. A manifest says the same by the annotation
    /// [`Manager::in_use_annotation`], which is taken off before it is applied.
    ///
    /// That something in use is deleted all the same can only be said by [`Builder::in_use`](super::Builder::in_use): manifests, and the
    /// inventory, are often within a tenant's reach.
    pub fn in_use(&mut self, id: ObjectId, policy: InUsePolicy) -> &mut Self {
        self.in_use.insert(id, policy);
        self
    }

    /// Number of objects.
    #[must_use]
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// The checked set, by identity.
    pub(crate) fn check(self, manager: &Manager) -> Result<Checked, Error> {
        let mut objects = BTreeMap::new();
        let mut stored = BTreeMap::new();
        let mut in_use = BTreeMap::new();
        for (position, mut object) in self.objects.into_iter().enumerate() {
            let id = ObjectId::of(&object).map_err(|source| Error::Identity { position, source })?;
            check_fields(&id, &object)?;
            if let Some(policy) = take_in_use(&id, &mut object, manager)? {
                in_use.insert(id.clone(), policy);
            }
            check_keys(&id, &object, manager)?;
            let place =
                (stored_group(&id), id.kind().to_owned(), id.namespace().map(str::to_owned), id.name().to_owned());
            if let Some(other) = stored.insert(place, id.clone()).filter(|other| *other != id) {
                return Err(Error::TwoGroups(other, id));
            }
            if objects.insert(id.clone(), object).is_some() {
                return Err(Error::Duplicate(id));
            }
        }
        let said_about = self.depends_on.iter().map(|(from, _)| from).chain(self.deletion.keys());
        let said_about = said_about.chain(self.in_use.keys()).chain(self.waivers.keys());
        let about: BTreeSet<_> = said_about.collect();
        if let Some(id) = about.into_iter().find(|id| !objects.contains_key(*id)) {
            return Err(Error::NotInSet(id.clone()));
        }
        if let Some((id, _)) = self.in_use.iter().find(|(_, policy)| **policy == InUsePolicy::Delete) {
            return Err(Error::InUse { id: id.clone(), key: manager.in_use_annotation(), value: "delete".into() });
        }
        in_use.extend(self.in_use);
        let (depends_on, deletion, waivers) = (self.depends_on, self.deletion, self.waivers);
        Ok(Checked { objects, depends_on, deletion, in_use, waivers })
    }
}

impl FromIterator<DynamicObject> for Desired {
    fn from_iter<I: IntoIterator<Item = DynamicObject>>(objects: I) -> Self {
        Self { objects: objects.into_iter().collect(), ..Self::default() }
    }
}

impl From<Vec<DynamicObject>> for Desired {
    fn from(objects: Vec<DynamicObject>) -> Self {
        objects.into_iter().collect()
    }
}

/// A desired set whose manifests can be applied as far as can be told without a cluster.
#[derive(Clone, Debug, Default)]
pub(crate) struct Checked {
    pub(crate) objects: BTreeMap<ObjectId, DynamicObject>,
    pub(crate) depends_on: Vec<(ObjectId, ObjectId)>,
    pub(crate) deletion: BTreeMap<ObjectId, DeletionPolicy>,
    pub(crate) in_use: BTreeMap<ObjectId, InUsePolicy>,
    pub(crate) waivers: BTreeMap<ObjectId, BTreeSet<Waiver>>,
}

/// The version that a manifest is written in.
pub(crate) fn version_of(types: &TypeMeta) -> &str {
    types.api_version.rsplit('/').next().unwrap_or_default()
}

/// The group under which the API server stores a built-in kind that it serves, or served, under two.
fn stored_group(id: &ObjectId) -> String {
    const TWICE: [(&str, &str, &str); 6] = [
        ("events.k8s.io", "Event", ""),
        ("extensions", "DaemonSet", "apps"),
        ("extensions", "Deployment", "apps"),
        ("extensions", "ReplicaSet", "apps"),
        ("extensions", "Ingress", "networking.k8s.io"),
        ("extensions", "NetworkPolicy", "networking.k8s.io"),
    ];
    let twice = TWICE.iter().find(|(group, kind, _)| id.is(group, kind));
    twice.map_or_else(|| id.group(), |(_, _, stored)| stored).to_owned()
}

fn check_fields(id: &ObjectId, object: &DynamicObject) -> Result<(), Error> {
    const SERVER: &str = "the API server sets it";
    let meta = &object.metadata;
    let nonempty = |list: Option<usize>| list.is_some_and(|n| n > 0);
    let refused = [
        ("uid", meta.uid.is_some(), SERVER),
        ("resourceVersion", meta.resource_version.is_some(), SERVER),
        ("generateName", meta.generate_name.is_some(), "an object is recorded by its name before it is created"),
        ("deletionTimestamp", meta.deletion_timestamp.is_some(), SERVER),
        ("deletionGracePeriodSeconds", meta.deletion_grace_period_seconds.is_some(), SERVER),
        ("managedFields", nonempty(meta.managed_fields.as_ref().map(Vec::len)), SERVER),
        (
            "finalizers",
            nonempty(meta.finalizers.as_ref().map(Vec::len)),
            "whoever serves a finalizer adds it; from a manifest it would come back while the object is being deleted",
        ),
        (
            "ownerReferences",
            nonempty(meta.owner_references.as_ref().map(Vec::len)),
            "legal references are written by the custodian",
        ),
    ];
    match refused.into_iter().find(|(_, present, _)| *present) {
        Some((field, _, why)) => Err(Error::Field { id: id.clone(), field, why }),
        None => Ok(()),
    }
}

/// What the manifest says of an object in use; the annotation is not applied.
fn take_in_use(id: &ObjectId, object: &mut DynamicObject, manager: &Manager) -> Result<Option<InUsePolicy>, Error> {
    let key = manager.in_use_annotation();
    match object.metadata.annotations.as_mut().and_then(|all| all.remove(&key)).as_deref() {
        None => Ok(None),
        Some("hold") => Ok(Some(InUsePolicy::Hold)),
        Some("keep") => Ok(Some(InUsePolicy::Keep)),
        Some(value) => Err(Error::InUse { id: id.clone(), key, value: value.chars().take(80).collect() }),
    }
}

fn check_keys(id: &ObjectId, object: &DynamicObject, manager: &Manager) -> Result<(), Error> {
    let keys =
        |map: &'_ Option<BTreeMap<String, String>>| map.iter().flat_map(BTreeMap::keys).cloned().collect::<Vec<_>>();
    let annotations = keys(&object.metadata.annotations).into_iter().filter(|key| *key != manager.waive_annotation());
    let mut keys = keys(&object.metadata.labels).into_iter().chain(annotations);
    match keys.find(|key| manager.owns_key(key)) {
        Some(key) => Err(Error::ManagerKey { id: id.clone(), key }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(value: serde_json::Value) -> DynamicObject {
        serde_json::from_value(value).unwrap()
    }

    fn config_map(extra: serde_json::Value) -> DynamicObject {
        let mut value = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "namespace": "a"}});
        let meta = value["metadata"].as_object_mut().unwrap();
        meta.extend(extra.as_object().unwrap().clone());
        object(value)
    }

    fn check(objects: Vec<DynamicObject>) -> Result<Checked, Error> {
        Desired::from(objects).check(&Manager::new("m.example.com").unwrap())
    }

    #[cfg(feature = "yaml")]
    #[test]
    fn an_unreadable_document_is_not_quoted() {
        for text in [
            "apiVersion: v1\nkind: Secret\nmetadata:\n  name: x\nstringData:\n  password: hunter2\n  : : oops\n bad",
            "apiVersion: v1\nkind: Secret\nmetadata: hunter2\n",
            "apiVersion: v1\nkind: Secret\nmetadata:\n  name: x\n  labels: hunter2\n",
            "hunter2",
            "stringData: [hunter2",
            "password: &hunter2 *hunter2x",
        ] {
            let error = Desired::default().push_yaml(text).unwrap_err();
            let shown = format!("{error} {error:?}");
            assert!(!shown.contains("hunter2"), "{shown}");
        }
    }

    #[test]
    fn fields_that_others_write_are_refused() {
        for (field, value) in [
            ("uid", json!("u")),
            ("resourceVersion", json!("1")),
            ("deletionTimestamp", json!("2026-01-01T00:00:00Z")),
            ("finalizers", json!(["a.example.com/x"])),
            ("managedFields", json!([{"manager": "x"}])),
            ("ownerReferences", json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "u"}])),
        ] {
            match check(vec![config_map(json!({field: value}))]) {
                Err(Error::Field { field: named, .. }) => assert_eq!(named, field),
                other => panic!("{field}: {other:?}"),
            }
        }
        assert!(check(vec![config_map(json!({"finalizers": []}))]).is_ok());
    }

    #[test]
    fn identities_are_checked() {
        let nameless = object(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "x-"}}));
        assert!(matches!(check(vec![nameless]), Err(Error::Identity { position: 0, .. })));
        let kindless = object(json!({"metadata": {"name": "x"}}));
        assert!(matches!(check(vec![kindless]), Err(Error::Identity { .. })));
        let twice = |version: &str| {
            object(
                json!({"apiVersion": format!("apps/{version}"), "kind": "Deployment", "metadata": {"name": "x", "namespace": "a"}}),
            )
        };
        assert!(matches!(check(vec![twice("v1"), twice("v1beta1")]), Err(Error::Duplicate(_))));
    }

    #[test]
    fn c33_one_object_under_two_groups_is_a_duplicate() {
        let named = |api_version: &str, kind: &str| {
            object(json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "x", "namespace": "a"}}))
        };
        let events = [named("v1", "Event"), named("events.k8s.io/v1", "Event")];
        for set in [events.to_vec(), events.iter().rev().cloned().collect()] {
            assert!(matches!(check(set), Err(Error::TwoGroups(..))));
        }
        let ingresses = vec![named("extensions/v1beta1", "Ingress"), named("networking.k8s.io/v1", "Ingress")];
        assert!(matches!(check(ingresses), Err(Error::TwoGroups(..))));
        // Custom resources of two groups are two objects.
        let custom = vec![named("a.example.com/v1", "Ingress"), named("b.example.com/v1", "Ingress")];
        assert!(check(custom).is_ok());
    }

    #[test]
    fn the_managers_own_keys_are_refused_and_foreign_ones_pass() {
        let ours = config_map(json!({"labels": {"m.example.com/parent-uid": "u"}}));
        assert!(matches!(check(vec![ours]), Err(Error::ManagerKey { .. })));
        assert!(check(vec![config_map(json!({"labels": {"app.kubernetes.io/name": "x"}}))]).is_ok());
    }

    #[test]
    fn nothing_is_said_about_what_is_not_there() {
        let mut desired = Desired::new();
        desired.keep(ObjectId::new("", "ConfigMap", Some("a"), "x").unwrap());
        assert!(matches!(desired.check(&Manager::new("m.example.com").unwrap()), Err(Error::NotInSet(_))));
    }
}
