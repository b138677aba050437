//! From what is desired and what is on record to what will be on record: entries, edges, proxies, and what is to go.
//!
//! Pure: the same desired set, record and kinds give the same intent.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_core::DynamicObject;

use super::{
    context::resources,
    desired::{Checked, version_of},
    outcome::{Problem, Unapplied},
};
use crate::{
    graph::{self, DependencyGraph, GraphBuilder, ManifestSet, Node, Rules, Waiver, annotations, waivers},
    inventory::{ClusterId, DeletionPolicy, Edge, Entry, InUsePolicy, Inventory, Origin, Requirement, Role},
    manager::Manager,
    object::{GroupKind, ObjectId, ParentRef, ResourceKind, Scope, Uid},
    ownership::{
        self, Ignored, OwnershipPolicy,
        proxy::{Place, Placement, Placer, ProxyKinds, References},
    },
    teardown::policy,
};

/// How a kind of the set is served, as far as is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Served so, in the manifest's version.
    Served { resource: ResourceKind, defined_by_crd: bool },
    /// Not served yet, but its definition is in the set.
    InSet(ResourceKind),
    /// The part of the API server that serves it gives no answer.
    Unavailable(String),
}

/// What the author decided once for all reconciles.
#[derive(Clone, Debug)]
pub(super) struct Rulebook {
    pub(super) manager: Manager,
    pub(super) proxies: Option<ProxyKinds>,
    pub(super) references: References,
    pub(super) rules: Rules,
    pub(super) guards_proxies_elsewhere: bool,
}

/// An object to be applied.
#[derive(Clone, Debug)]
pub(super) struct Manifest {
    pub(super) object: DynamicObject,
    pub(super) resource: ResourceKind,
    pub(super) role: Role,
    /// The proxy it refers to.
    pub(super) owner: Option<ObjectId>,
}

/// What one pass is going to do.
#[derive(Debug)]
pub(super) struct Intent {
    /// What has to be stored before anything is created.
    pub(super) inventory: Inventory,
    /// The desired objects and their proxies.
    pub(super) graph: Arc<DependencyGraph>,
    pub(super) manifests: BTreeMap<ObjectId, Manifest>,
    /// Entries of objects that are no longer desired.
    pub(super) dropped: BTreeSet<ObjectId>,
    /// Proxies among them that something else takes the place of, or that are being deleted already: they go
    /// whether or not anything is pruned.
    pub(super) retired: BTreeSet<ObjectId>,
    /// Entries that this pass adds.
    pub(super) fresh: BTreeSet<ObjectId>,
    /// Desired objects that the parent may not manage.
    pub(super) ignored: Vec<Ignored>,
    /// Desired objects whose kind cannot be told at present.
    pub(super) unapplied: Vec<Unapplied>,
}

impl Intent {
    /// Takes the edges to retired proxies off `inventory`, for children that are seen not to refer to them.
    pub(super) fn untie<'a>(&self, inventory: &mut Inventory, children: impl Iterator<Item = &'a ObjectId>) {
        let retired: BTreeSet<_> = self.retired.iter().map(ObjectId::stable_id).collect();
        for id in children {
            if let Some(entry) = inventory.get_mut(id) {
                entry.edges.retain(|edge| !retired.contains(&edge.to));
            }
        }
    }
}

/// Why a desired set cannot become an intent. Nothing is sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Edges are unreadable, refer to their own object, or form a cycle.
    #[error("the dependencies of the desired set are not usable: {source}")]
    Graph {
        /// What is wrong.
        #[source]
        source: graph::Error,
    },
    /// A dependency annotation cannot be read.
    #[error("a dependency annotation cannot be read: {source}")]
    Annotation {
        /// What is wrong.
        #[source]
        source: annotations::Error,
    },
    /// An object cannot be a child.
    #[error("the desired set cannot be owned: {source}")]
    Ownership {
        /// What is wrong.
        #[source]
        source: ownership::Error,
    },
    /// An object's namespace does not fit the scope of its kind.
    #[error("the desired set has an object in the wrong scope: {source}")]
    Scope {
        /// What is wrong.
        #[source]
        source: crate::object::Error,
    },
}

/// What is known when an intent is made.
pub(super) struct Known<'a> {
    pub(super) parent: &'a ParentRef,
    pub(super) cluster: &'a ClusterId,
    pub(super) policy: &'a OwnershipPolicy,
    pub(super) kinds: &'a BTreeMap<GroupKind, Kind>,
    pub(super) stored: &'a Inventory,
    /// Proxies that are being deleted although the parent lives.
    pub(super) lost_proxies: &'a BTreeSet<ObjectId>,
    /// Where no proxies can be had at present.
    pub(super) suspended: &'a BTreeSet<Scope>,
    /// Foreign objects that cleanup needs.
    pub(super) holds: &'a [ObjectId],
    /// Live roles that rules read beside the set.
    pub(super) context: &'a BTreeMap<ObjectId, DynamicObject>,
}

impl Rulebook {
    /// Whether the proxy carries a finalizer of ours.
    pub(super) fn guards_proxy(&self, parent: &ParentRef, proxy: &ObjectId) -> bool {
        self.guards_proxies_elsewhere || proxy.namespace() == parent.id.namespace()
    }

    /// What `live` refers to as the parent or one of its proxies, and `wanted` does not.
    pub(super) fn stale_references(
        &self,
        parent: &ParentRef,
        inventory: &Inventory,
        live: &ObjectMeta,
        wanted: &ObjectMeta,
    ) -> BTreeSet<Uid> {
        let is_wanted = |uid: &str| wanted.owner_references.iter().flatten().any(|reference| reference.uid == uid);
        let more = live.owner_references.iter().flatten().any(|reference| !is_wanted(&reference.uid));
        // Mostly there is nothing more, and then the record need not be searched for each object that is applied.
        let Some(kinds) = self.proxies.as_ref().filter(|_| more) else { return BTreeSet::new() };
        let proxies = inventory.entries().filter(|e| e.role == Role::Proxy);
        let proxies = proxies.filter_map(|e| Some((e.id.clone(), e.uid.clone()?))).collect();
        let placer = Placer::new(kinds.clone(), self.manager.clone(), parent.clone());
        let mut own = placer.own_references(live, &proxies);
        own.retain(|uid| !is_wanted(uid.as_str()));
        own
    }

    /// The intent of one pass.
    pub(super) fn intend(&self, desired: Checked, known: &Known<'_>) -> Result<Intent, Error> {
        let mut ignored = Vec::new();
        let mut unapplied = Vec::new();
        let mut objects = BTreeMap::new();
        let mut unavailable = BTreeSet::new();
        for (id, object) in desired.objects {
            if let Some(Kind::Served { resource, .. } | Kind::InSet(resource)) = known.kinds.get(&id.group_kind()) {
                id.check_scope(resource.scope).map_err(|source| Error::Scope { source })?;
            }
            // In another cluster it is another object.
            if id == known.parent.id && known.stored.cluster == *known.cluster {
                let source = ownership::Error::ChildIsParent { parent: known.parent.clone() };
                return Err(Error::Ownership { source });
            }
            if let Err(refused) = known.policy.decide(known.parent, &id) {
                ignored.push(refused);
                continue;
            }
            match known.kinds.get(&id.group_kind()) {
                Some(Kind::Served { .. } | Kind::InSet(_)) => {
                    objects.insert(id, object);
                }
                Some(Kind::Unavailable(words)) => {
                    let problem = Problem::NotServed { words: words.clone() };
                    unapplied.push(Unapplied::new(id.clone(), problem));
                    unavailable.insert(id);
                }
                None => unapplied.push(Unapplied::new(id, Problem::NotServed { words: "its kind is unknown".into() })),
            }
        }

        let order = self.order(known, &objects, &desired.depends_on, &desired.waivers)?;
        let placement = self.place(known, &objects, &order)?;
        let graph = with_proxies(order, &placement).map_err(|source| Error::Graph { source })?;
        let manifests = self.manifests(known, objects, &placement)?;
        let (inventory, fresh) = self.entries(known, &graph, &manifests, &desired.deletion, &desired.in_use);
        let dropped: BTreeSet<_> = inventory
            .entries()
            .map(|e| &e.id)
            .filter(|id| !manifests.contains_key(*id) && !unavailable.contains(*id))
            .cloned()
            .collect();
        let replaced: BTreeSet<_> = placement.proxies().map(|(place, _)| place).collect();
        let retired = inventory
            .entries()
            .filter(|e| e.role == Role::Proxy && dropped.contains(&e.id))
            .filter(|e| {
                let place = Place::of(&e.id);
                self.proxies.is_none()
                    || replaced.contains(&place)
                    || known.suspended.contains(&place.scope())
                    || known.lost_proxies.contains(&e.id)
            })
            .map(|e| e.id.clone())
            .collect();
        Ok(Intent { inventory, graph: Arc::new(graph), manifests, dropped, retired, fresh, ignored, unapplied })
    }

    fn place(
        &self,
        known: &Known<'_>,
        objects: &BTreeMap<ObjectId, DynamicObject>,
        order: &GraphBuilder,
    ) -> Result<Placement, Error> {
        let Some(kinds) = &self.proxies else { return Ok(Placement::without_proxies()) };
        let bare = order.clone().build().map_err(|source| Error::Graph { source })?;
        let children = bare.nodes().map(|n| (bare.id(n).clone(), !bare.dependents(n).is_empty()));
        let stored: Vec<_> = known.stored.entries().filter(|e| e.role == Role::Proxy).map(|e| &e.id).collect();
        let mut placer =
            Placer::new(kinds.clone(), self.manager.clone(), known.parent.clone()).references(self.references);
        for scope in known.suspended {
            placer = placer.without(*scope);
        }
        let places: BTreeSet<_> = objects.keys().map(Place::of).collect();
        for place in places {
            let here = || stored.iter().copied().filter(|id| Place::of(id) == place);
            let usable = here()
                .filter(|id| !known.lost_proxies.contains(*id))
                .max_by_key(|id| ownership::proxy::proxy_generation(&self.manager, &known.parent.id, id.name()));
            let generation = match usable {
                Some(id) => ownership::proxy::proxy_generation(&self.manager, &known.parent.id, id.name()).unwrap_or(0),
                None => placer.next_generation(&place, here().chain(known.lost_proxies)),
            };
            placer = placer.generation(place, generation);
        }
        placer.place(children).map_err(|source| Error::Ownership { source })
    }

    /// The desired objects with what is declared about their order and what rules find.
    fn order(
        &self,
        known: &Known<'_>,
        objects: &BTreeMap<ObjectId, DynamicObject>,
        declared: &[(ObjectId, ObjectId)],
        waived: &BTreeMap<ObjectId, BTreeSet<Waiver>>,
    ) -> Result<GraphBuilder, Error> {
        let graph = |source| Error::Graph { source };
        let mut builder = GraphBuilder::with_capacity(objects.len(), objects.len());
        for id in objects.keys() {
            builder.add(id.clone()).map_err(graph)?;
        }
        let scope = |kind: &GroupKind| -> Option<Scope> {
            match known.kinds.get(kind)? {
                Kind::Served { resource, .. } | Kind::InSet(resource) => Some(resource.scope),
                Kind::Unavailable(_) => None,
            }
        };
        let none = BTreeMap::new();
        for (id, object) in objects {
            let annotations = object.metadata.annotations.as_ref().unwrap_or(&none);
            let edges =
                annotations::declared(id, annotations, &scope).map_err(|source| Error::Annotation { source })?;
            for edge in edges {
                builder.declare(&edge).map_err(graph)?;
            }
            let Some(slot) = builder.slot(id) else { continue };
            let key = self.manager.waive_annotation();
            if let Some(value) = annotations.get(&key) {
                let found = waivers::read(id, &key, value, &scope).map_err(|source| Error::Annotation { source })?;
                found.into_iter().for_each(|waiver| builder.waive_from(slot, waiver, format!("annotation {key}")));
            }
            for waiver in waived.get(id).into_iter().flatten() {
                builder.waive_from(slot, waiver.clone(), graph::annotations::API);
            }
        }
        for (from, to) in declared.iter().filter(|(from, _)| objects.contains_key(from)) {
            builder.declare(&graph::Declared::by_api(from.clone(), to.clone())).map_err(graph)?;
        }
        let set = ManifestSet::new(objects).context(known.context).kinds(resources(known.kinds));
        builder.infer(&self.rules, &set);
        Ok(builder)
    }

    fn manifests(
        &self,
        known: &Known<'_>,
        objects: BTreeMap<ObjectId, DynamicObject>,
        placement: &Placement,
    ) -> Result<BTreeMap<ObjectId, Manifest>, Error> {
        let mut manifests = BTreeMap::new();
        for (id, object) in objects {
            let Some(Kind::Served { resource, .. } | Kind::InSet(resource)) = known.kinds.get(&id.group_kind()) else {
                continue;
            };
            let owner = placement.owner_of(&id).cloned();
            // Objects of one kind may be written in several versions.
            let version = object.types.as_ref().map(version_of).unwrap_or(&resource.version).to_owned();
            let resource = ResourceKind { version, ..resource.clone() };
            manifests.insert(id, Manifest { object, resource, role: Role::Child, owner });
        }
        if let Some(kinds) = &self.proxies {
            for (place, id) in placement.proxies() {
                let guarded = self.guards_proxy(known.parent, id);
                let object = kinds
                    .object(&self.manager, known.parent, known.cluster, id, guarded)
                    .map_err(|source| Error::Ownership { source })?;
                let resource = kinds.resource(place).clone();
                manifests.insert(id.clone(), Manifest { object, resource, role: Role::Proxy, owner: None });
            }
        }
        Ok(manifests)
    }

    /// Old and new entries united; an entry of the new set has the new set's edges, and one to a Namespace or definition
    /// that goes although it is in it; an entry that goes keeps its last. An edge to a proxy that goes stays until the child
    /// is seen to refer to it no more.
    fn entries(
        &self,
        known: &Known<'_>,
        graph: &DependencyGraph,
        manifests: &BTreeMap<ObjectId, Manifest>,
        deletion: &BTreeMap<ObjectId, DeletionPolicy>,
        in_use: &BTreeMap<ObjectId, InUsePolicy>,
    ) -> (Inventory, BTreeSet<ObjectId>) {
        let mut inventory = known.stored.clone();
        inventory.held.extend(known.holds.iter().cloned());
        let mut fresh = BTreeSet::new();
        let leaving: BTreeSet<_> = (known.stored.entries())
            .filter(|e| e.role == Role::Proxy && !manifests.contains_key(&e.id))
            .map(|e| e.id.stable_id())
            .collect();
        for (id, manifest) in manifests {
            let before = inventory.get(id).cloned();
            let mut entry = before.unwrap_or_else(|| {
                fresh.insert(id.clone());
                Entry::intended(id.clone(), &manifest.resource)
            });
            entry.version.clone_from(&manifest.resource.version);
            entry.plural.clone_from(&manifest.resource.plural);
            entry.role = manifest.role;
            // The proxies' definitions are not in the set; that they are defined by one is what a proxy is.
            entry.defined_by_crd |= manifest.role == Role::Proxy
                || matches!(
                    known.kinds.get(&id.group_kind()),
                    Some(Kind::InSet(_) | Kind::Served { defined_by_crd: true, .. })
                );
            let asked = deletion.get(id).copied();
            let by_origin = if entry.origin == Origin::Adopted { DeletionPolicy::Keep } else { DeletionPolicy::Delete };
            entry.deletion = asked.unwrap_or(by_origin);
            entry.in_use = in_use.get(id).copied();
            entry.edges.retain(|edge| leaving.contains(&edge.to));
            entry.edges.extend(edges_of(graph, id));
            // What is desired may be in what is not desired any more, and would be deleted along with that.
            let containers = policy::containers_of(id, Some(&entry.plural)).filter(|to| !manifests.contains_key(to));
            let is_ours = |to: &ObjectId| known.stored.get(to).is_some_and(|e| e.uid.is_some() && !e.is_let_go());
            for container in containers.filter(is_ours) {
                let requirement = Requirement::Required { declared_by: annotations::API.to_owned() };
                entry.edges.insert(Edge::new(container.stable_id(), requirement));
            }
            inventory.insert(entry);
        }
        (inventory, fresh)
    }
}

/// The desired objects with their proxies.
fn with_proxies(mut order: GraphBuilder, placement: &Placement) -> Result<DependencyGraph, graph::Error> {
    for (_, proxy) in placement.proxies() {
        order.add(proxy.clone())?;
    }
    for (from, edges) in placement.edges() {
        let Some(slot) = order.slot(from) else { continue };
        for edge in edges {
            order.depend_on_stable(slot, edge.to, edge.requirement.clone());
        }
    }
    order.build()
}

/// The edges of an object of the desired set, as they are stored.
fn edges_of(graph: &DependencyGraph, id: &ObjectId) -> BTreeSet<Edge> {
    graph.node(id).map(|node| graph.inventory_edges(node)).unwrap_or_default()
}

/// The graph of all entries, for removal: edges as they are stored. `only` are the entries that are to go, if not all.
///
/// An upgrade that reverses an edge and drops one end of it stores a cycle: what is dropped keeps its last edges. Those
/// that lead to something that stays say nothing, because that does not go after it nor before it; they must not make
/// the two a group that goes at once, although what stays needs what was dropped.
pub(super) fn removal_graph(inventory: &Inventory, only: Option<&BTreeSet<ObjectId>>) -> Arc<DependencyGraph> {
    let graph = DependencyGraph::of_inventory(inventory);
    let Some(only) = only else { return Arc::new(graph) };
    let goes = |node: &Node| only.contains(graph.id(*node));
    let mixed = |node: &Node| {
        let members = graph.members(graph.group(*node));
        members.len() > 1 && !members.iter().all(goes)
    };
    let knotted: Vec<_> = graph.nodes().filter(|n| goes(n) && mixed(n)).collect();
    if knotted.is_empty() {
        return Arc::new(graph);
    }
    let mut inventory = inventory.clone();
    for node in knotted {
        let Some(entry) = inventory.get_mut(graph.id(node)) else { continue };
        entry.edges.retain(|edge| graph.edges(node).all(|e| graph.stable_id(e.to) != edge.to || goes(&e.to)));
    }
    Arc::new(DependencyGraph::of_inventory(&inventory))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        custodian::Desired,
        ownership::proxy::{ClusterGitTrackOwner, GitTrackOwner, ProxyOwners, proxy_name},
    };

    fn inventory(edges: &[(&str, &str)]) -> Inventory {
        let id = |name: &str| ObjectId::new("", "ConfigMap", Some("a"), name).unwrap();
        let resource = ResourceKind::new("", "v1", "ConfigMap", "configmaps", Scope::Namespaced);
        let parent = ParentRef::new(id("parent"), Uid::new("p").unwrap(), &resource);
        let mut inventory = Inventory::new(parent, ClusterId(Uid::new("c").unwrap()));
        for name in ["a", "b", "c"] {
            let mut entry = Entry::intended(id(name), &resource);
            let ends = edges.iter().filter(|(from, _)| *from == name);
            let required = Requirement::Required { declared_by: "test".into() };
            entry.edges = ends.map(|(_, to)| Edge::new(id(to).stable_id(), required.clone())).collect();
            inventory.insert(entry);
        }
        inventory
    }

    fn holds(graph: &DependencyGraph, from: &str, to: &str) -> bool {
        let node = |name: &str| graph.node(&ObjectId::new("", "ConfigMap", Some("a"), name).unwrap()).unwrap();
        graph.requires(node(from), node(to))
    }

    #[test]
    fn a_reversed_edge_to_what_stays_does_not_free_what_was_dropped() {
        // a -> b was reversed, and a is dropped; c goes along with it.
        let inventory = inventory(&[("a", "b"), ("b", "a"), ("c", "a"), ("c", "b")]);
        let only = inventory.entries().map(|e| e.id.clone()).filter(|id| id.name() != "b").collect();
        let graph = removal_graph(&inventory, Some(&only));
        assert!(
            !holds(&graph, "a", "b") && holds(&graph, "b", "a") && holds(&graph, "c", "a") && holds(&graph, "c", "b")
        );
        // When all go, the cycle is one group, as it is stored.
        let all = removal_graph(&inventory, None);
        assert!(holds(&all, "a", "b") && holds(&all, "b", "a"));
    }

    /// Three passes over one parent with a child in `b` and one in cluster scope.
    struct Passes {
        rulebook: Rulebook,
        parent: ParentRef,
        kinds: BTreeMap<GroupKind, Kind>,
        objects: Vec<DynamicObject>,
        /// Rules that are waived for the child in `b`, in code.
        waive: Vec<&'static str>,
    }

    impl Passes {
        fn new() -> Self {
            let kind = |group: &str, kind: &str, plural: &str, scope| {
                let resource = ResourceKind::new(group, "v1", kind, plural, scope);
                (resource.group_kind(), Kind::Served { resource, defined_by_crd: false })
            };
            let manager = ownership::testing::manager();
            Self {
                rulebook: Rulebook {
                    manager,
                    proxies: Some(<(GitTrackOwner, ClusterGitTrackOwner)>::kinds().unwrap()),
                    references: References::default(),
                    rules: Rules::standard(),
                    guards_proxies_elsewhere: true,
                },
                parent: ownership::testing::parent(),
                kinds: BTreeMap::from([
                    kind("", "ConfigMap", "configmaps", Scope::Namespaced),
                    kind("", "Namespace", "namespaces", Scope::Cluster),
                    kind("rbac.authorization.k8s.io", "ClusterRole", "clusterroles", Scope::Cluster),
                ]),
                objects: [
                    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "b", "name": "x"}}),
                    json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "x"}}),
                ]
                .map(|o| serde_json::from_value(o).unwrap())
                .into(),
                waive: Vec::new(),
            }
        }

        fn intend(&self, stored: Option<&Inventory>, lost: &[&ObjectId], suspended: &[Scope]) -> Intent {
            let cluster = ClusterId(Uid::new("c").unwrap());
            let empty = Inventory::new(self.parent.clone(), cluster.clone());
            let known = Known {
                parent: &self.parent,
                cluster: &cluster,
                policy: &OwnershipPolicy::ClusterWide,
                kinds: &self.kinds,
                stored: stored.unwrap_or(&empty),
                lost_proxies: &lost.iter().map(|id| (*id).clone()).collect(),
                suspended: &suspended.iter().copied().collect(),
                holds: &[],
                context: &BTreeMap::new(),
            };
            let mut desired = Desired::from(self.objects.clone());
            for rule in &self.waive {
                desired.waive_rule("ConfigMap b/x".parse().unwrap(), *rule);
            }
            self.rulebook.intend(desired.check(&self.rulebook.manager).unwrap(), &known).unwrap()
        }

        fn proxy(&self, generation: u32) -> ObjectId {
            let name = proxy_name(&self.rulebook.manager, &self.parent.id, generation);
            self.rulebook.proxies.as_ref().unwrap().id(&Place::Namespace("b".into()), &name).unwrap()
        }
    }

    fn depends(inventory: &Inventory, on: &ObjectId) -> bool {
        let child = inventory.get(&"ConfigMap b/x".parse().unwrap()).unwrap();
        child.edges.iter().any(|edge| edge.to == on.stable_id())
    }

    #[test]
    fn what_rules_find_is_on_record_unless_it_is_waived() {
        let namespace: ObjectId = "Namespace b".parse().unwrap();
        let mut passes = Passes::new();
        let manifest = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "b"}});
        passes.objects.push(serde_json::from_value(manifest).unwrap());
        let intent = passes.intend(None, &[], &[]);
        assert!(depends(&intent.inventory, &namespace) && intent.graph.given_up().is_empty());

        passes.waive = vec!["in-namespace"];
        let intent = passes.intend(Some(&intent.inventory), &[], &[]);
        assert!(!depends(&intent.inventory, &namespace), "what was on record before counts no more");
        let words = intent.graph.words_for(&intent.graph.given_up()[0]);
        let expected =
            "ConfigMap b/x does not wait for Namespace b (rule in-namespace: metadata.namespace is \"b\"), as api says";
        assert_eq!(words, expected);

        passes.waive.clear();
        let key = passes.rulebook.manager.waive_annotation();
        passes.objects[0].metadata.annotations = Some(BTreeMap::from([(key, "/Namespace/b".to_owned())]));
        let intent = passes.intend(None, &[], &[]);
        assert!(!depends(&intent.inventory, &namespace) && intent.graph.given_up().len() == 1);
    }

    #[test]
    fn what_is_desired_keeps_the_namespace_that_it_is_in() {
        let namespace: ObjectId = "Namespace b".parse().unwrap();
        let mut passes = Passes::new();
        let manifest = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "b"}});
        passes.objects.push(serde_json::from_value(manifest).unwrap());
        let mut stored = passes.intend(None, &[], &[]).inventory;
        passes.objects.pop();
        let somebodys = passes.intend(Some(&stored), &[], &[]);
        assert!(!depends(&somebodys.inventory, &namespace), "it was never made, and is not waited for");
        stored.get_mut(&namespace).unwrap().uid = Some(Uid::new("n").unwrap());
        let second = passes.intend(Some(&stored), &[], &[]);
        assert!(second.dropped.contains(&namespace) && depends(&second.inventory, &namespace));
        let graph = removal_graph(&second.inventory, Some(&second.dropped));
        let node = |id: &ObjectId| graph.node(id).unwrap();
        assert!(graph.requires(node(&"ConfigMap b/x".parse().unwrap()), node(&namespace)));
        // When its content goes too, both go, in order.
        passes.objects.remove(0);
        let third = passes.intend(Some(&second.inventory), &[], &[]);
        assert!(third.dropped.len() >= 2 && depends(&third.inventory, &namespace));
    }

    #[test]
    fn a_lost_proxy_keeps_its_children_until_they_are_untied() {
        let passes = Passes::new();
        let first = passes.intend(None, &[], &[]);
        let [zero, one] = [passes.proxy(0), passes.proxy(1)];
        assert!(first.retired.is_empty() && depends(&first.inventory, &zero));

        let second = passes.intend(Some(&first.inventory), &[&zero], &[]);
        assert_eq!(second.retired, BTreeSet::from([zero.clone()]));
        assert!(second.manifests.contains_key(&one) && !second.manifests.contains_key(&zero));
        assert!(depends(&second.inventory, &zero) && depends(&second.inventory, &one));

        // It stays retired when nothing says any more that it is lost, and the next is not replaced in turn.
        let third = passes.intend(Some(&second.inventory), &[], &[]);
        assert_eq!((&third.retired, &third.inventory), (&second.retired, &second.inventory));

        let mut inventory = third.inventory.clone();
        third.untie(&mut inventory, ["ConfigMap b/x".parse().unwrap()].iter());
        assert!(!depends(&inventory, &zero) && depends(&inventory, &one));
    }

    #[test]
    fn without_a_definition_there_are_no_proxies_of_that_scope() {
        let passes = Passes::new();
        let first = passes.intend(None, &[], &[]);
        let zero = passes.proxy(0);
        let second = passes.intend(Some(&first.inventory), &[&zero], &[Scope::Namespaced]);
        assert_eq!(second.retired, BTreeSet::from([zero.clone()]));
        assert!(depends(&second.inventory, &zero), "it may refer to it until it is applied again");
        let owner = |intent: &Intent, id: &str| intent.manifests[&id.parse().unwrap()].owner.clone();
        assert_eq!(owner(&second, "ConfigMap b/x"), None);
        assert!(owner(&second, "ClusterRole.rbac.authorization.k8s.io x").is_some(), "the other scope has its own");
    }
}
