//! What rules look at: the manifests of a set, indexed once for all of them.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
    sync::OnceLock,
};

use kube_core::{ApiResource, DynamicObject, GroupVersionKind};
use serde_json::Value;

use super::{pods::Workload, rbac::Rbac};
use crate::object::{GroupKind, ObjectId, ResourceKind};

/// An object of the set as it is about to be applied, or one of its context.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Manifest<'a> {
    /// Which object.
    pub id: &'a ObjectId,
    /// Its content.
    pub object: &'a DynamicObject,
}

impl<'a> Manifest<'a> {
    /// The text at a JSON pointer below the top level, such as `/spec/serviceAccountName`; `None` if there is none, or
    /// an empty one.
    #[must_use]
    pub fn text(&self, pointer: &str) -> Option<&'a str> {
        self.object.data.pointer(pointer)?.as_str().filter(|text| !text.is_empty())
    }

    /// The items of the list at a JSON pointer below the top level; none if there is no list.
    pub fn list(&self, pointer: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
        list(&self.object.data, pointer)
    }

    /// The labels in its metadata.
    #[must_use]
    pub fn labels(&self) -> &'a BTreeMap<String, String> {
        static NONE: BTreeMap<String, String> = BTreeMap::new();
        self.object.metadata.labels.as_ref().unwrap_or(&NONE)
    }
}

/// The items of the list at `pointer`.
pub(super) fn list<'a>(value: &'a Value, pointer: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    value.pointer(pointer).and_then(Value::as_array).into_iter().flatten()
}

/// The text at `pointer`, if it is not empty.
pub(super) fn text<'a>(value: &'a Value, pointer: &str) -> Option<&'a str> {
    value.pointer(pointer)?.as_str().filter(|text| !text.is_empty())
}

/// The manifests of a set, indexed once for all rules.
///
/// Beside the set there may be *context*: live objects that are not in the set and that its objects name, such as a
/// ClusterRole of the cluster that a binding of the set refers to. Context is read ([`find`](Self::find)), and is never
/// part of an order.
#[derive(Debug, Default)]
pub struct ManifestSet<'a> {
    // In order of identity.
    manifests: Vec<Manifest<'a>>,
    by_id: HashMap<&'a ObjectId, usize>,
    by_group_and_kind: BTreeMap<&'a str, BTreeMap<&'a str, Vec<usize>>>,
    by_namespace: BTreeMap<&'a str, Vec<usize>>,
    context: BTreeMap<&'a ObjectId, &'a DynamicObject>,
    plurals: BTreeMap<GroupKind, String>,
    // Read by several rules; made when the first asks.
    rbac: OnceLock<Rbac<'a>>,
    workloads: OnceLock<Vec<Workload<'a>>>,
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
        for definition in this.of_kind("apiextensions.k8s.io", "CustomResourceDefinition").collect::<Vec<_>>() {
            let texts = ["/spec/group", "/spec/names/kind", "/spec/names/plural"].map(|at| definition.text(at));
            let [Some(group), Some(kind), Some(plural)] = texts else { continue };
            let kind = GroupKind { group: group.to_owned(), kind: kind.to_owned() };
            this.plurals.insert(kind, plural.to_owned());
        }
        this
    }

    /// Adds live objects that are not in the set. Those that are in it are passed over.
    #[must_use]
    pub fn context(mut self, objects: impl IntoIterator<Item = (&'a ObjectId, &'a DynamicObject)>) -> Self {
        self.context.extend(objects);
        let by_id = &self.by_id;
        self.context.retain(|id, _| !by_id.contains_key(id));
        self.rbac = OnceLock::new();
        self
    }

    /// Says how kinds are called in paths and in RBAC, where a definition in the set does not.
    #[must_use]
    pub fn kinds(mut self, kinds: impl IntoIterator<Item = ResourceKind>) -> Self {
        for kind in kinds.into_iter().filter(|kind| !kind.plural.is_empty()) {
            self.plurals.entry(kind.group_kind()).or_insert(kind.plural);
        }
        self
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

    /// The manifest of an object that another one names; `None` if it is not in the set, or cannot be called so.
    #[must_use]
    pub fn named(&self, group: &str, kind: &str, namespace: Option<&str>, name: &str) -> Option<Manifest<'a>> {
        self.get(&ObjectId::new(group, kind, namespace, name).ok()?)
    }

    /// The manifest of an identity, or the live object if it is not in the set and part of the context.
    #[must_use]
    pub fn find(&self, id: &ObjectId) -> Option<Manifest<'a>> {
        let outside = || self.context.get_key_value(id).map(|(id, object)| Manifest { id, object });
        self.get(id).or_else(outside)
    }

    /// All manifests of a kind in any version, in order of identity.
    pub fn of_kind<'s>(&'s self, group: &str, kind: &str) -> impl Iterator<Item = Manifest<'a>> + use<'a, 's> {
        self.at(self.by_group_and_kind.get(group).and_then(|kinds| kinds.get(kind)))
    }

    /// All manifests of an API group, in order of identity.
    pub fn of_group<'s>(&'s self, group: &str) -> impl Iterator<Item = Manifest<'a>> + use<'a, 's> {
        self.by_group_and_kind.get(group).into_iter().flatten().flat_map(|(_, kind)| self.at(Some(kind)))
    }

    /// All manifests in a namespace, in order of identity.
    pub fn in_namespace<'s>(&'s self, namespace: &str) -> impl Iterator<Item = Manifest<'a>> + use<'a, 's> {
        self.at(self.by_namespace.get(namespace))
    }

    /// All manifests of kinds that the API server does not build in: custom resources and what aggregated API servers
    /// serve. In order of identity.
    pub fn custom(&self) -> impl Iterator<Item = Manifest<'a>> + '_ {
        let groups = self.by_group_and_kind.iter().filter(|(group, _)| !is_built_in(group));
        groups.flat_map(|(_, kinds)| kinds.values()).flat_map(|kind| self.at(Some(kind)))
    }

    /// How the kind of an object is called in paths and in RBAC: as a definition in the set or discovery says, else
    /// as kinds are usually turned into plurals.
    #[must_use]
    pub fn plural(&self, id: &ObjectId) -> Cow<'_, str> {
        match self.known_plural(id) {
            Some(plural) => Cow::Borrowed(plural),
            None => Cow::Owned(ApiResource::from_gvk(&GroupVersionKind::gvk(id.group(), "", id.kind())).plural),
        }
    }

    /// [`plural`](Self::plural), if a definition in the set or discovery says it.
    pub(super) fn known_plural(&self, id: &ObjectId) -> Option<&str> {
        self.plurals.get(&id.group_kind()).map(String::as_str)
    }

    /// The context's objects of a kind, in order of identity.
    pub(super) fn context_of_kind(&self, group: &str, kind: &str) -> impl Iterator<Item = Manifest<'a>> {
        let of_kind = self.context.iter().filter(move |(id, _)| id.is(group, kind));
        of_kind.map(|(id, object)| Manifest { id, object })
    }

    /// Who may do what, as far as the set and its context tell.
    pub(super) fn rbac(&self) -> &Rbac<'a> {
        self.rbac.get_or_init(|| Rbac::read(self))
    }

    /// Everything that runs pods, in order of identity.
    pub(super) fn workloads(&self) -> &[Workload<'a>] {
        self.workloads.get_or_init(|| self.manifests.iter().filter_map(|m| Workload::of(*m)).collect())
    }
}

/// Whether the API server itself serves the group. Other groups under `k8s.io` are those of custom resources and of
/// aggregated API servers.
fn is_built_in(group: &str) -> bool {
    const UNDER_K8S_IO: [&str; 14] = [
        "admissionregistration",
        "apiextensions",
        "apiregistration",
        "authentication",
        "authorization",
        "certificates",
        "coordination",
        "discovery",
        "events",
        "networking",
        "node",
        "rbac.authorization",
        "scheduling",
        "storage",
    ];
    const RARE: [&str; 4] =
        ["flowcontrol.apiserver.k8s.io", "internal.apiserver.k8s.io", "resource.k8s.io", "storagemigration.k8s.io"];
    // Groups without a dot are reserved for the API server.
    !group.contains('.')
        || group.strip_suffix(".k8s.io").is_some_and(|group| UNDER_K8S_IO.contains(&group))
        || RARE.contains(&group)
}
