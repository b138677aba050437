//! Rules that infer preferred edges from manifests.
//!
//! A [`Rule`] looks at the whole set of manifests at once and says which object depends on which, with its evidence in
//! words. What it finds is *preferred*: it holds unless it would close a cycle or was waived, and then the lowest rank
//! gives way first. A rule decides from manifests alone; it knows nothing of a cluster.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Debug,
    sync::Arc,
};

use kube_core::DynamicObject;

use super::{GraphBuilder, Slot};
use crate::{inventory::Requirement, object::ObjectId};

/// Infers preferred edges.
///
/// # Assumptions
/// A rule is deterministic, and costs no more than the manifests it reads and the edges it finds: look targets up in the
/// [`ManifestSet`] instead of comparing all pairs.
pub trait Rule: Debug + Send + Sync {
    /// What edges of this rule are called in plans, records and waivers: short, stable, unique among the rules in use.
    fn name(&self) -> &str;

    /// How much the rule is worth when edges of several rules form a cycle: the lowest gives way. The rules of this
    /// crate have ranks from 100 to 1000.
    fn rank(&self) -> u16;

    /// Adds the edges that the rule finds in `set`.
    fn infer(&self, set: &ManifestSet<'_>, edges: &mut Edges<'_>);
}

/// An object of the set as it is about to be applied.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Manifest<'a> {
    /// Which object.
    pub id: &'a ObjectId,
    /// Its content.
    pub object: &'a DynamicObject,
}

/// The manifests of a set, indexed once for all rules.
#[derive(Debug, Default)]
pub struct ManifestSet<'a> {
    // In order of identity.
    manifests: Vec<Manifest<'a>>,
    by_id: HashMap<&'a ObjectId, usize>,
    by_group_and_kind: BTreeMap<&'a str, BTreeMap<&'a str, Vec<usize>>>,
    by_namespace: BTreeMap<&'a str, Vec<usize>>,
}

impl<'a> ManifestSet<'a> {
    /// Indexes manifests under their identities. Of several with one identity the first counts.
    #[must_use]
    pub fn new(manifests: impl IntoIterator<Item = (&'a ObjectId, &'a DynamicObject)>) -> Self {
        let mut sorted: Vec<_> = manifests.into_iter().map(|(id, object)| Manifest { id, object }).collect();
        sorted.sort_by_key(|m| m.id);
        sorted.dedup_by_key(|m| m.id);
        let mut this = Self::default();
        for (i, Manifest { id, .. }) in sorted.iter().enumerate() {
            this.by_id.insert(id, i);
            this.by_group_and_kind.entry(id.group()).or_default().entry(id.kind()).or_default().push(i);
            if let Some(namespace) = id.namespace() {
                this.by_namespace.entry(namespace).or_default().push(i);
            }
        }
        this.manifests = sorted;
        this
    }

    fn at<'s>(&'s self, indices: Option<&'s Vec<usize>>) -> impl Iterator<Item = Manifest<'a>> + 's {
        indices.into_iter().flatten().map(|i| self.manifests[*i])
    }

    /// All manifests, in order of identity.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Manifest<'a>> + '_ {
        self.manifests.iter().copied()
    }

    /// The manifest of an identity.
    #[must_use]
    pub fn get(&self, id: &ObjectId) -> Option<Manifest<'a>> {
        self.by_id.get(id).map(|i| self.manifests[*i])
    }

    /// All manifests of a kind in any version, in order of identity.
    pub fn of_kind<'s>(&'s self, group: &str, kind: &str) -> impl Iterator<Item = Manifest<'a>> + 's {
        self.at(self.by_group_and_kind.get(group).and_then(|kinds| kinds.get(kind)))
    }

    /// All manifests in a namespace, in order of identity.
    pub fn in_namespace<'s>(&'s self, namespace: &str) -> impl Iterator<Item = Manifest<'a>> + 's {
        self.at(self.by_namespace.get(namespace))
    }
}

/// Takes the edges that one rule finds.
#[derive(Debug)]
pub struct Edges<'b> {
    builder: &'b mut GraphBuilder,
    rule: &'b dyn Rule,
}

impl<'b> Edges<'b> {
    pub(super) fn new(builder: &'b mut GraphBuilder, rule: &'b dyn Rule) -> Self {
        Self { builder, rule }
    }

    /// `from` depends on `to`; `evidence` says what shows it, in words for a person, without content of a Secret. `to`
    /// may be outside of the set. A `from` that is not in the set has no place in an order and is passed over.
    pub fn prefer(&mut self, from: &ObjectId, to: &ObjectId, evidence: impl Into<String>) {
        self.prefer_all([from], to, evidence);
    }

    /// [`prefer`](Self::prefer) for many objects that depend on one for the same reason.
    pub fn prefer_all<'i>(
        &mut self,
        from: impl IntoIterator<Item = &'i ObjectId>,
        to: &ObjectId,
        evidence: impl Into<String>,
    ) {
        let reason = self.builder.reason(Requirement::Preferred {
            rule: self.rule.name().to_owned(),
            rank: self.rule.rank(),
            evidence: evidence.into(),
        });
        let to_slot: Option<Slot> = self.builder.slot(to);
        for from in from {
            let Some(from) = self.builder.slot(from) else { continue };
            match to_slot {
                Some(to) => self.builder.depend_because(from, to, reason),
                None => self.builder.depend_on_id_because(from, to, reason),
            }
        }
    }
}

/// Rules in use, by name.
#[derive(Clone, Debug, Default)]
pub struct Rules(BTreeMap<String, Arc<dyn Rule>>);

impl Rules {
    /// No rule: only declared edges hold.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// The rules of this crate: [`InNamespace`] and [`OfDefinition`].
    #[must_use]
    pub fn standard() -> Self {
        Self::none().with(InNamespace).with(OfDefinition)
    }

    /// Adds a rule; replaces one of the same name.
    #[must_use]
    pub fn with(mut self, rule: impl Rule + 'static) -> Self {
        self.0.insert(rule.name().to_owned(), Arc::new(rule));
        self
    }

    /// Leaves a rule out. Its edges are then not looked for; to have them recorded as given up, use
    /// [`GraphBuilder::waive_rule`].
    #[must_use]
    pub fn without(mut self, name: &str) -> Self {
        self.0.remove(name);
        self
    }

    /// The rules, in order of name.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &dyn Rule> + '_ {
        self.0.values().map(AsRef::as_ref)
    }
}

/// A namespaced object depends on its Namespace, if that is in the set.
///
/// Deleting a Namespace deletes its content in no particular order, and nothing can be created in it before it exists.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct InNamespace;

impl Rule for InNamespace {
    fn name(&self) -> &'static str {
        "in-namespace"
    }

    fn rank(&self) -> u16 {
        1000
    }

    fn infer(&self, set: &ManifestSet<'_>, edges: &mut Edges<'_>) {
        for namespace in set.of_kind("", "Namespace") {
            let name = namespace.id.name();
            let content = set.in_namespace(name).map(|m| m.id);
            edges.prefer_all(content, namespace.id, format!("metadata.namespace is {name:?}"));
        }
    }
}

/// A custom resource depends on its CustomResourceDefinition, if that is in the set.
///
/// Deleting a definition deletes every resource of the kind at once, and none can be created before it is served.
/// Matched by `spec.group` and `spec.names.kind`, in any version.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct OfDefinition;

impl Rule for OfDefinition {
    fn name(&self) -> &'static str {
        "of-definition"
    }

    fn rank(&self) -> u16 {
        900
    }

    fn infer(&self, set: &ManifestSet<'_>, edges: &mut Edges<'_>) {
        for definition in set.of_kind("apiextensions.k8s.io", "CustomResourceDefinition") {
            let text = |pointer| definition.object.data.pointer(pointer).and_then(|value| value.as_str());
            // The API server refuses a definition without these; there is nothing to order by then.
            let (Some(group), Some(kind)) = (text("/spec/group"), text("/spec/names/kind")) else { continue };
            let resources = set.of_kind(group, kind).map(|m| m.id);
            edges.prefer_all(resources, definition.id, format!("it defines kind {kind:?} of group {group:?}"));
        }
    }
}
