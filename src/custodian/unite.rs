//! From what rediscovery found to a record that can be worked with.
//!
//! Pure. Edges are lost with the record; what identities and live annotations show is found again, and what the rest of a
//! damaged record knows of its unreadable part is respected: an entry that recorded more dependents than can be read
//! waits for everything that was found.

use std::collections::{BTreeMap, BTreeSet};

use kube_core::DynamicObject;

use crate::{
    graph::{Declared, DependencyGraph, GraphBuilder, ManifestSet, Rules, Waiver},
    inventory::{Edge, Entry, Inventory, Requirement, Role},
    object::{GroupKind, ObjectId, ResourceKind, Scope, StableId},
    ownership::proxy::{Place, is_never_owned},
    teardown::policy,
};

/// Who declares the edges that are made up for the sake of order.
const REDISCOVERY: &str = "rediscovery";

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Entries of objects that carry the parent's marks, and of objects that a damaged record still names.
    pub(super) entries: BTreeMap<ObjectId, Entry>,
    /// What the objects' annotations declare.
    pub(super) declared: Vec<Declared>,
    /// The objects as they live.
    pub(super) manifests: BTreeMap<ObjectId, DynamicObject>,
    /// Live roles that rules read beside them.
    pub(super) context: BTreeMap<ObjectId, DynamicObject>,
    /// What rules find all the same, and shall not hold.
    pub(super) waived: Vec<(ObjectId, Waiver)>,
    /// The kinds that were searched, and are served.
    pub(super) scopes: BTreeMap<GroupKind, Scope>,
    /// What should be known about the search, in words.
    pub(super) notes: Vec<String>,
}

/// Unites what can be read of a record, or an empty one, with what was found. What is on record stays as it is.
///
/// Rules look at the objects as they live now. Somebody may have edited them; what they find holds no further than a rule's
/// word does.
pub(super) fn unite(inventory: &mut Inventory, mut found: Found, rules: &Rules) {
    let lacking = lacking(inventory);
    let mut fresh = BTreeSet::new();
    for (id, entry) in std::mem::take(&mut found.entries) {
        if inventory.get(&id).is_none() {
            fresh.insert(id);
            inventory.insert(entry);
        }
    }
    if fresh.is_empty() {
        return;
    }
    infer_edges(inventory, &fresh);
    declare_edges(inventory, &fresh, std::mem::take(&mut found.declared));
    let children: Vec<_> = fresh
        .iter()
        .filter_map(|id| inventory.get(id))
        .filter(|e| e.role == Role::Child)
        .map(|e| e.id.clone())
        .collect();
    for id in &lacking {
        if inventory.get(id).is_none_or(|e| e.role != Role::Child) {
            continue;
        }
        let below = reach(inventory, id);
        for child in children.iter().filter(|child| !below.contains(&child.stable_id())) {
            require(inventory, child, id, REDISCOVERY);
        }
    }
    prefer_edges(inventory, &fresh, &found, rules);
}

/// The edges that rules find, beside those that are required.
fn prefer_edges(inventory: &mut Inventory, fresh: &BTreeSet<ObjectId>, found: &Found, rules: &Rules) {
    let mut builder = GraphBuilder::of_inventory(inventory);
    let kinds: BTreeSet<ResourceKind> = inventory.entries().map(Entry::resource).collect();
    builder.infer(rules, &ManifestSet::new(&found.manifests).context(&found.context).kinds(kinds));
    for (id, waiver) in &found.waived {
        if let Some(slot) = builder.slot(id) {
            builder.waive_from(slot, waiver.clone(), "an annotation");
        }
    }
    let graph = builder.build_stored();
    for id in fresh {
        let (Some(node), Some(entry)) = (graph.node(id), inventory.get_mut(id)) else { continue };
        let required: BTreeSet<StableId> = entry.edges.iter().map(|edge| edge.to).collect();
        entry.edges.extend(graph.inventory_edges(node).into_iter().filter(|edge| !required.contains(&edge.to)));
    }
}

/// Entries that recorded more dependents than can be read.
pub(super) fn lacking(inventory: &Inventory) -> BTreeSet<ObjectId> {
    let readable = inventory.count_dependents();
    let lacks = |e: &&Entry| e.dependents > readable.get(&e.id.stable_id()).copied().unwrap_or(0);
    inventory.entries().filter(lacks).map(|e| e.id.clone()).collect()
}

fn require(inventory: &mut Inventory, from: &ObjectId, to: &ObjectId, declared_by: &str) {
    if let Some(entry) = inventory.get_mut(from) {
        let requirement = Requirement::Required { declared_by: declared_by.to_owned() };
        entry.edges.insert(Edge::new(to.stable_id(), requirement));
    }
}

/// Everything that `from` depends on, itself included.
fn reach(inventory: &Inventory, from: &ObjectId) -> BTreeSet<StableId> {
    let entries: BTreeMap<StableId, &Entry> = inventory.entries().map(|e| (e.id.stable_id(), e)).collect();
    let mut reached = BTreeSet::from([from.stable_id()]);
    let mut open = vec![from.stable_id()];
    while let Some(entry) = open.pop().map(|id| entries.get(&id)) {
        let further = entry.into_iter().flat_map(|e| &e.edges).map(|edge| edge.to);
        open.extend(further.filter(|to| reached.insert(*to)));
    }
    reached
}

/// The edges that identities alone show: an object goes before its Namespace, before the definition of its kind, and before
/// the proxy of its place.
pub(super) fn infer_edges(inventory: &mut Inventory, fresh: &BTreeSet<ObjectId>) {
    let proxies: Vec<ObjectId> = inventory.entries().filter(|e| e.role == Role::Proxy).map(|e| e.id.clone()).collect();
    for id in fresh {
        let Some(entry) = inventory.get(id) else { continue };
        let containers = policy::containers_of(id, Some(&entry.plural));
        let place = Place::of(id);
        let owned = entry.role == Role::Child && !(place == Place::Cluster && is_never_owned(id));
        let proxies = proxies.iter().filter(|p| owned && Place::of(p) == place).cloned();
        let needed: Vec<_> = containers.chain(proxies).collect();
        for to in needed.iter().filter(|to| *to != id && inventory.get(to).is_some()).collect::<Vec<_>>() {
            require(inventory, id, to, REDISCOVERY);
        }
    }
}

/// The edges that annotations declare. They may have been edited since, so those that close a cycle are left out.
fn declare_edges(inventory: &mut Inventory, fresh: &BTreeSet<ObjectId>, declared: Vec<Declared>) {
    let (mut known, mut added) = (inventory.clone(), Vec::new());
    for edge in declared {
        if fresh.contains(&edge.from) && edge.from != edge.to && known.get(&edge.to).is_some() {
            require(&mut known, &edge.from, &edge.to, &edge.declared_by);
            added.push(edge);
        }
    }
    if added.is_empty() {
        return;
    }
    let graph = DependencyGraph::of_inventory(&known);
    for edge in added {
        let (Some(from), Some(to)) = (graph.node(&edge.from), graph.node(&edge.to)) else { continue };
        if graph.group(from) != graph.group(to) {
            require(inventory, &edge.from, &edge.to, &edge.declared_by);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        inventory::ClusterId,
        object::{ParentRef, ResourceKind, Scope, Uid},
    };

    fn id(name: &str) -> ObjectId {
        match name.split_once('/') {
            Some(("ns", name)) => ObjectId::new("", "Namespace", None, name).unwrap(),
            Some((namespace, name)) => ObjectId::new("", "ConfigMap", Some(namespace), name).unwrap(),
            None => ObjectId::new("", "ConfigMap", Some("a"), name).unwrap(),
        }
    }

    fn entry(name: &str, edges: &[&str], dependents: u32) -> Entry {
        let plural = if name.starts_with("ns/") { "namespaces" } else { "configmaps" };
        let id = id(name);
        let scope = if id.namespace().is_some() { Scope::Namespaced } else { Scope::Cluster };
        let mut entry = Entry::intended(id.clone(), &ResourceKind::new("", "v1", id.kind(), plural, scope));
        let required = Requirement::Required { declared_by: "test".into() };
        entry.edges = edges.iter().map(|to| Edge::new(self::id(to).stable_id(), required.clone())).collect();
        entry.dependents = dependents;
        entry
    }

    fn inventory(entries: impl IntoIterator<Item = Entry>) -> Inventory {
        let resource = ResourceKind::new("example.com", "v1", "App", "apps", Scope::Namespaced);
        let parent = ObjectId::new("example.com", "App", Some("a"), "p").unwrap();
        let parent = ParentRef::new(parent, Uid::new("p").unwrap(), &resource);
        let mut inventory = Inventory::new(parent, ClusterId(Uid::new("c").unwrap()));
        entries.into_iter().for_each(|e| drop(inventory.insert(e)));
        inventory
    }

    fn found(names: &[&str], declared: &[(&str, &str)]) -> Found {
        Found {
            entries: names.iter().map(|n| (id(n), entry(n, &[], 0))).collect(),
            declared: declared.iter().map(|(from, to)| Declared::by_api(id(from), id(to))).collect(),
            ..Found::default()
        }
    }

    fn depends(inventory: &Inventory, from: &str, to: &str) -> bool {
        inventory.get(&id(from)).unwrap().edges.iter().any(|e| e.to == id(to).stable_id())
    }

    #[test]
    fn identities_and_annotations_give_edges_back_and_no_cycle() {
        let mut inventory = inventory([]);
        unite(
            &mut inventory,
            found(&["x", "y", "b/z", "ns/b"], &[("x", "y"), ("ns/b", "b/z"), ("y", "outside"), ("x", "x")]),
            &Rules::none(),
        );
        assert!(depends(&inventory, "x", "y") && depends(&inventory, "b/z", "ns/b"));
        assert!(!depends(&inventory, "ns/b", "b/z"), "an edited annotation must not free the Namespace");
        assert_eq!(inventory.entries().map(|e| e.edges.len()).sum::<usize>(), 2);
    }

    #[test]
    fn s09_what_lacks_dependents_waits_for_what_was_found_unless_it_depends_on_it() {
        // Two entries hide: one of base's dependents, and base itself depends on "below".
        let mut inventory =
            inventory([entry("base", &["below"], 2), entry("known", &["base"], 0), entry("free", &[], 0)]);
        assert_eq!(lacking(&inventory), BTreeSet::from([id("base")]));
        unite(&mut inventory, found(&["top", "below", "known"], &[]), &Rules::none());
        assert!(depends(&inventory, "top", "base"));
        assert!(!depends(&inventory, "below", "base") && !depends(&inventory, "known", "free"));
        assert_eq!(inventory.get(&id("known")).unwrap().edges.len(), 1, "what is on record stays as it is");
    }

    #[test]
    fn rules_look_at_what_was_found() {
        let manifest = |value| {
            let object: DynamicObject = serde_json::from_value(value).unwrap();
            (ObjectId::of(&object).unwrap(), object)
        };
        let pod = serde_json::json!({"containers": [{"envFrom": [{"configMapRef": {"name": "x"}}, {"configMapRef": {"name": "y"}}]}]});
        let (pod, object) = manifest(serde_json::json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod", "namespace": "a"}, "spec": pod,
        }));
        let resource = ResourceKind::new("", "v1", "Pod", "pods", Scope::Namespaced);
        let mut found = found(&["x", "y", "ns/a"], &[]);
        found.entries.insert(pod.clone(), Entry::intended(pod.clone(), &resource));
        for name in ["x", "y", "ns/a"] {
            let types = kube_core::TypeMeta { api_version: "v1".into(), kind: id(name).kind().into() };
            let meta = kube_core::ObjectMeta { name: Some(id(name).name().into()), ..Default::default() };
            let bare = DynamicObject { types: Some(types), metadata: meta, data: serde_json::Value::Null };
            found.manifests.insert(id(name), bare);
        }
        found.manifests.insert(pod.clone(), object);
        found.waived.push((pod.clone(), Waiver::To(id("y"))));
        let mut inventory = inventory([]);
        unite(&mut inventory, found, &Rules::standard());
        let edges = &inventory.get(&pod).unwrap().edges;
        let preferred = edges.iter().filter(|e| matches!(e.requirement, Requirement::Preferred { .. }));
        assert_eq!(preferred.map(|e| e.to).collect::<Vec<_>>(), [id("x").stable_id()]);
        assert_eq!(edges.len(), 2, "its Namespace is required, and not preferred besides");
    }
}
