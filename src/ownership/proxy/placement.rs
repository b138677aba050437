use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use super::{ProxyKinds, proxy_generation, proxy_name};
use crate::{
    inventory::{Edge, Requirement},
    manager::Manager,
    object::{ObjectId, ParentRef, Scope, Uid, group_of},
    ownership::{Error, reference::same_reference},
};

/// Where children live, and with them the proxy that may own them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(clippy::exhaustive_enums, reason = "Kubernetes has these two")]
pub enum Place {
    /// Cluster scope.
    Cluster,
    /// A namespace.
    Namespace(String),
}

impl Place {
    /// Where `id` lives.
    #[must_use]
    pub fn of(id: &ObjectId) -> Self {
        id.namespace().map_or(Self::Cluster, |namespace| Self::Namespace(namespace.to_owned()))
    }

    /// The namespace, if it is one.
    #[must_use]
    pub fn namespace(&self) -> Option<&str> {
        match self {
            Self::Cluster => None,
            Self::Namespace(namespace) => Some(namespace),
        }
    }

    /// The scope of the proxies that own what lives there.
    #[must_use]
    pub fn scope(&self) -> Scope {
        match self {
            Self::Cluster => Scope::Cluster,
            Self::Namespace(_) => Scope::Namespaced,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cluster => f.write_str("cluster scope"),
            Self::Namespace(namespace) => write!(f, "namespace {namespace:?}"),
        }
    }
}

/// Which children refer to the proxy of their place. Never one of a kind that [`is_never_owned`].
///
/// References are a net for what a stalled process creates late and for leftovers. They are not what deletes
/// children, and the garbage collector knows no order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum References {
    /// Those that nothing in the set depends on, so that no cascade can break the order.
    #[default]
    Leaves,
    /// All. The cascade of a proxy that is deleted behind the operator's back can break the order.
    All,
    /// None. The proxies show who owns what in a place, and the garbage collector is not involved.
    None,
}

/// Whether objects of this kind never carry a reference: Namespaces, CustomResourceDefinitions, PersistentVolumes and
/// PersistentVolumeClaims, whose loss takes other people's objects or data with it.
#[must_use]
pub fn is_never_owned(id: &ObjectId) -> bool {
    match id.group() {
        "" => matches!(id.kind(), "Namespace" | "PersistentVolume" | "PersistentVolumeClaim"),
        "apiextensions.k8s.io" => id.kind() == "CustomResourceDefinition",
        _ => false,
    }
}

/// Decides, for one parent, which proxies are needed and which child refers to which.
#[derive(Clone, Debug)]
pub struct Placer {
    kinds: ProxyKinds,
    manager: Manager,
    parent: ParentRef,
    references: References,
    generations: BTreeMap<Place, u32>,
    suspended: BTreeSet<Scope>,
}

impl Placer {
    /// A placer for the children of `parent`.
    #[must_use]
    pub fn new(kinds: ProxyKinds, manager: Manager, parent: ParentRef) -> Self {
        Self {
            kinds,
            manager,
            parent,
            references: References::default(),
            generations: BTreeMap::new(),
            suspended: BTreeSet::new(),
        }
    }

    /// Does without proxies of this scope, because their definition is being deleted or missing: children there get
    /// neither proxy nor reference nor edge.
    #[must_use]
    pub fn without(mut self, scope: Scope) -> Self {
        self.suspended.insert(scope);
        self
    }

    /// Sets which children carry a reference.
    #[must_use]
    pub fn references(mut self, references: References) -> Self {
        self.references = references;
        self
    }

    /// Sets the generation of the proxy in `place`; 0 unless set.
    #[must_use]
    pub fn generation(mut self, place: Place, generation: u32) -> Self {
        self.generations.insert(place, generation);
        self
    }

    /// The generation that a new proxy in `place` has to have, so that it takes the name of none of `known`: of all
    /// proxies in the inventory and all that were met live, whatever their state.
    #[must_use]
    pub fn next_generation<'a>(&self, place: &Place, known: impl IntoIterator<Item = &'a ObjectId>) -> u32 {
        let here = known.into_iter().filter(|id| self.kinds.is_proxy(id) && Place::of(id) == *place);
        let generations = here.filter_map(|id| proxy_generation(&self.manager, &self.parent.id, id.name()));
        generations.max().map_or(0, |highest| highest.saturating_add(1))
    }

    /// Places `children`, each with whether anything in the set depends on it. (Edges to proxies do not count.)
    ///
    /// Input order and repetitions make no difference; a child that is given twice has dependents if either says so.
    ///
    /// # Errors
    /// [`Error::ChildIsParent`] or [`Error::ChildIsProxy`] if a child may not be one.
    pub fn place(&self, children: impl IntoIterator<Item = (ObjectId, bool)>) -> Result<Placement, Error> {
        let mut set: BTreeMap<ObjectId, bool> = BTreeMap::new();
        for (id, has_dependents) in children {
            if id == self.parent.id {
                return Err(Error::ChildIsParent { parent: self.parent.clone() });
            }
            if self.kinds.is_proxy(&id) {
                return Err(Error::ChildIsProxy { child: id });
            }
            *set.entry(id).or_default() |= has_dependents;
        }

        let mut placement = Placement::without_proxies();
        for (child, has_dependents) in &set {
            let place = Place::of(child);
            // The definition of the proxies themselves may be in the set: it must not depend on one of them.
            if place == Place::Cluster && is_never_owned(child) || self.suspended.contains(&place.scope()) {
                continue;
            }
            let proxy = match placement.proxies.get(&place) {
                Some(proxy) => proxy.clone(),
                None => self.add_proxy(&mut placement, place, &set)?,
            };
            placement.add_edge(child, &proxy);
            let refers = match self.references {
                References::Leaves => !has_dependents,
                References::All => true,
                References::None => false,
            };
            if refers && !is_never_owned(child) {
                placement.owners.insert(child.clone(), proxy);
            }
        }
        Ok(placement)
    }

    fn add_proxy(
        &self,
        placement: &mut Placement,
        place: Place,
        set: &BTreeMap<ObjectId, bool>,
    ) -> Result<ObjectId, Error> {
        let generation = self.generations.get(&place).copied().unwrap_or(0);
        let proxy = self.kinds.id(&place, &proxy_name(&self.manager, &self.parent.id, generation))?;
        if let Some(namespace) = place.namespace()
            && let Ok(object) = ObjectId::new("", "Namespace", None, namespace)
            && set.contains_key(&object)
        {
            placement.add_edge(&proxy, &object);
        }
        placement.proxies.insert(place, proxy.clone());
        Ok(proxy)
    }

    /// What the references of a live child need to come into line with `placement`.
    ///
    /// `child` may be outside of the placement (being pruned): then it keeps none. Strip before anything is
    /// created that depends on the child, for a child that gains a dependent loses its reference first; setting can
    /// wait. `proxies` are this parent's proxies as read live, terminating ones too; earlier incarnations are
    /// recognised by their name.
    #[must_use]
    pub fn compare(
        &self,
        placement: &Placement,
        child: &ObjectId,
        live: &ObjectMeta,
        proxies: &BTreeMap<ObjectId, Uid>,
    ) -> Difference {
        let owner = placement.owner_of(child);
        let wanted = owner.and_then(|proxy| Some(self.reference(proxy, proxies.get(proxy)?)));
        let mut difference = Difference { strip: BTreeSet::new(), set: owner.cloned() };
        for reference in live.owner_references.iter().flatten() {
            if let Some(wanted) = wanted.as_ref().filter(|wanted| wanted.uid == reference.uid) {
                if same_reference(wanted, reference) {
                    difference.set = None;
                }
            } else if self.is_own(reference, proxies) {
                difference.strip.extend(Uid::new(&reference.uid));
            }
        }
        difference
    }

    /// The UIDs that `live` refers to as this parent or one of its proxies, `proxies` or, by kind and name, an earlier one.
    #[must_use]
    pub fn own_references(&self, live: &ObjectMeta, proxies: &BTreeMap<ObjectId, Uid>) -> BTreeSet<Uid> {
        let own = live.owner_references.iter().flatten().filter(|reference| self.is_own(reference, proxies));
        own.filter_map(|reference| Uid::new(&reference.uid).ok()).collect()
    }

    /// The reference to `proxy`, without flags.
    fn reference(&self, proxy: &ObjectId, uid: &Uid) -> OwnerReference {
        OwnerReference {
            api_version: self.kinds.resource(&Place::of(proxy)).api_version(),
            kind: proxy.kind().to_owned(),
            name: proxy.name().to_owned(),
            uid: uid.as_str().to_owned(),
            controller: None,
            block_owner_deletion: None,
        }
    }

    /// Whether a reference is to the parent itself, to one of its proxies, or, by kind and name, to an earlier
    /// incarnation of one, for which the garbage collector would delete the child.
    fn is_own(&self, reference: &OwnerReference, proxies: &BTreeMap<ObjectId, Uid>) -> bool {
        let known = || [&self.parent.uid].into_iter().chain(proxies.values()).any(|uid| uid.as_str() == reference.uid);
        let is_proxy = || {
            let kinds = [self.kinds.namespaced(), self.kinds.cluster()];
            kinds.iter().any(|kind| group_of(&reference.api_version) == kind.group && reference.kind == kind.kind)
        };
        let named = || proxy_generation(&self.manager, &self.parent.id, &reference.name).is_some();
        known() || (is_proxy() && named())
    }
}

/// Which proxies a set of children needs, and who refers to whom.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Placement {
    proxies: BTreeMap<Place, ObjectId>,
    owners: BTreeMap<ObjectId, ObjectId>,
    edges: BTreeMap<ObjectId, BTreeSet<Edge>>,
}

impl Placement {
    /// The placement of an operator that works without proxies, or cannot use them now because their definitions are
    /// being deleted: no proxy, no reference, no edge. Compared with live objects, it strips what is there.
    pub fn without_proxies() -> Self {
        Self::default()
    }

    /// The proxies needed: one in each namespace that has children, and one in cluster scope if it has children other
    /// than those that are never owned.
    pub fn proxies(&self) -> impl ExactSizeIterator<Item = (&Place, &ObjectId)> + '_ {
        self.proxies.iter()
    }

    /// The proxy that `child` refers to, if it refers to one.
    #[must_use]
    pub fn owner_of(&self, child: &ObjectId) -> Option<&ObjectId> {
        self.owners.get(child)
    }

    /// The edges that proxies add, by the object that depends: a child depends on the proxy of its place, which so goes
    /// last, and a proxy on its Namespace, if that is in the set. All are required, declared by `proxy`.
    pub fn edges(&self) -> impl ExactSizeIterator<Item = (&ObjectId, &BTreeSet<Edge>)> + '_ {
        self.edges.iter()
    }

    fn add_edge(&mut self, from: &ObjectId, to: &ObjectId) {
        let requirement = Requirement::Required { declared_by: "proxy".to_owned() };
        self.edges.entry(from.clone()).or_default().insert(Edge::new(to.stable_id(), requirement));
    }
}

/// How the references of a live child differ from its placement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Difference {
    /// UIDs whose references have to go: see [`strip_patch`](crate::ownership::strip_patch).
    pub strip: BTreeSet<Uid>,
    /// The proxy that a reference has to be set to, because there is none, or one that is spelled otherwise.
    pub set: Option<ObjectId>,
}

impl Difference {
    /// Whether the references are as they should be.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.strip.is_empty() && self.set.is_none()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ownership::{
        check_reference,
        proxy::{ClusterGitTrackOwner, GitTrackOwner, ProxyOwners},
        strip_patch,
        testing::{any_id, id, manager, parent, uid},
    };

    fn placer() -> Placer {
        let kinds = <(GitTrackOwner, ClusterGitTrackOwner)>::kinds().unwrap();
        Placer::new(kinds, manager(), parent())
    }

    fn place(placer: &Placer, children: &[(&str, bool)]) -> Placement {
        placer.place(children.iter().map(|(text, dependents)| (id(text), *dependents))).unwrap()
    }

    fn proxy(place: &str, generation: u32) -> ObjectId {
        let kind = if place.is_empty() { "ClusterGitTrackOwner" } else { "GitTrackOwner" };
        let namespace = Some(place).filter(|p| !p.is_empty());
        let name = proxy_name(&manager(), &parent().id, generation);
        ObjectId::new("faros.pusher.com", kind, namespace, &name).unwrap()
    }

    fn depends(placement: &Placement, from: &ObjectId, to: &ObjectId) -> bool {
        let required = Requirement::Required { declared_by: "proxy".into() };
        let edge = Edge::new(to.stable_id(), required);
        placement.edges().any(|(node, edges)| node == from && edges.contains(&edge))
    }

    fn live(references: Vec<OwnerReference>) -> ObjectMeta {
        ObjectMeta { owner_references: Some(references), uid: Some("u".into()), ..ObjectMeta::default() }
    }

    const CHILDREN: [(&str, bool); 7] = [
        ("ConfigMap a/leaf", false),
        ("Secret b/needed", true),
        ("Deployment.apps b/leaf", false),
        ("PersistentVolumeClaim b/data", false),
        ("Namespace b", true),
        ("ClusterRole.rbac.authorization.k8s.io r", false),
        ("CustomResourceDefinition.apiextensions.k8s.io c.x.io", false),
    ];

    #[test]
    fn c01_each_child_is_owned_in_its_own_scope_or_not_at_all() {
        let placement = place(&placer(), &CHILDREN);
        let proxies: Vec<_> = placement.proxies().map(|(_, id)| id.clone()).collect();
        assert_eq!(proxies, [proxy("", 0), proxy("a", 0), proxy("b", 0)]);
        let owners: Vec<_> = CHILDREN.iter().map(|(text, _)| placement.owner_of(&id(text)).cloned()).collect();
        assert_eq!(owners, [Some(proxy("a", 0)), None, Some(proxy("b", 0)), None, None, Some(proxy("", 0)), None]);
        assert!(depends(&placement, &id("Secret b/needed"), &proxy("b", 0)), "proxies go last");
        assert!(depends(&placement, &id("PersistentVolumeClaim b/data"), &proxy("b", 0)));
        assert!(depends(&placement, &proxy("b", 0), &id("Namespace b")));
        assert!(!placement.edges().any(|(node, _)| *node == proxy("a", 0) || *node == id("Namespace b")));
    }

    #[test]
    fn which_children_refer_is_a_choice_that_spares_some_kinds() {
        for (mode, count) in [(References::Leaves, 3), (References::All, 4), (References::None, 0)] {
            let placement = place(&placer().references(mode), &CHILDREN);
            let owned = CHILDREN.iter().filter(|(text, _)| placement.owner_of(&id(text)).is_some());
            assert_eq!(owned.count(), count, "{mode:?}");
            assert_eq!(placement.proxies().len(), 3);
        }
    }

    #[test]
    fn a_cluster_proxy_is_not_made_for_what_is_never_owned() {
        let placement = place(&placer(), &[("Namespace b", false)]);
        assert_eq!(placement, Placement::without_proxies());
    }

    #[test]
    fn neither_parent_nor_proxies_are_children() {
        let refused = placer().place([(parent().id, false)]);
        assert_eq!(refused, Err(Error::ChildIsParent { parent: parent() }));
        assert!(matches!(placer().place([(proxy("z", 9), false)]), Err(Error::ChildIsProxy { .. })));
    }

    #[test]
    fn s48_a_replaced_proxy_has_a_new_name_and_its_children_change_over() {
        let known = [proxy("b", 0), proxy("b", 3), proxy("a", 7), id("ConfigMap b/x")];
        let here = Place::Namespace("b".into());
        assert_eq!(placer().next_generation(&here, &known), 4);
        assert_eq!(placer().next_generation(&Place::Cluster, &known), 0);

        let placer = placer().generation(here, 4);
        let placement = place(&placer, &[("ConfigMap b/x", false)]);
        assert_eq!(placement.owner_of(&id("ConfigMap b/x")), Some(&proxy("b", 4)));
        let old = placer.reference(&proxy("b", 0), &uid("old"));
        let live_proxies = BTreeMap::from([(proxy("b", 0), uid("old")), (proxy("b", 4), uid("new"))]);
        let difference = placer.compare(&placement, &id("ConfigMap b/x"), &live(vec![old]), &live_proxies);
        assert_eq!(difference, Difference { strip: [uid("old")].into(), set: Some(proxy("b", 4)) });
    }

    #[test]
    fn an_object_that_gains_a_dependent_loses_its_reference_and_nothing_else() {
        let child = id("ConfigMap b/x");
        let proxies = BTreeMap::from([(proxy("b", 0), uid("1"))]);
        let foreign = OwnerReference { uid: "9".into(), kind: "GitTrackOwner".into(), ..OwnerReference::default() };
        let meta = live(vec![foreign, placer().reference(&proxy("b", 0), &uid("1"))]);

        let leaf = place(&placer(), &[("ConfigMap b/x", false)]);
        assert!(placer().compare(&leaf, &child, &meta, &proxies).is_empty());
        let needed = place(&placer(), &[("ConfigMap b/x", true), ("Secret b/y", false)]);
        let difference = placer().compare(&needed, &child, &meta, &proxies);
        assert_eq!(difference, Difference { strip: [uid("1")].into(), set: None });
        assert_eq!(strip_patch(&child, &meta, &difference.strip).unwrap().0.len(), 3);
    }

    #[test]
    fn s50_s51_references_to_vanished_proxies_and_to_the_parent_are_stripped() {
        let child = id("ConfigMap a/x");
        let gone = placer().reference(&proxy("a", 2), &uid("gone"));
        let earlier = placer().reference(&proxy("a", 0), &uid("earlier"));
        let direct = OwnerReference { uid: "p-1".into(), ..OwnerReference::default() };
        let meta = live(vec![gone, earlier, direct]);
        let proxies = BTreeMap::from([(proxy("a", 0), uid("now"))]);
        let all: BTreeSet<_> = ["gone", "earlier", "p-1"].map(uid).into();

        let placement = place(&placer(), &[("ConfigMap a/x", false)]);
        let difference = placer().compare(&placement, &child, &meta, &proxies);
        assert_eq!(difference, Difference { strip: all.clone(), set: Some(proxy("a", 0)) });
        let without = placer().compare(&Placement::without_proxies(), &child, &meta, &BTreeMap::new());
        assert_eq!(without, Difference { strip: all, set: None });
    }

    #[test]
    fn c04_a_reference_in_another_version_or_with_flags_is_set_again() {
        let child = id("ConfigMap a/x");
        let proxies = BTreeMap::from([(proxy("a", 0), uid("1"))]);
        let placement = place(&placer(), &[("ConfigMap a/x", false)]);
        let right = placer().reference(&proxy("a", 0), &uid("1"));
        for wrong in [
            OwnerReference { api_version: "faros.pusher.com/v1alpha0".into(), ..right.clone() },
            OwnerReference { block_owner_deletion: Some(true), ..right.clone() },
        ] {
            let difference = placer().compare(&placement, &child, &live(vec![wrong]), &proxies);
            assert_eq!(difference, Difference { strip: BTreeSet::new(), set: Some(proxy("a", 0)) });
        }
        let explicit = OwnerReference { controller: Some(false), ..right };
        assert!(placer().compare(&placement, &child, &live(vec![explicit]), &proxies).is_empty());
    }

    proptest! {
        #[test]
        fn every_reference_is_legal_and_the_input_order_is_nothing(
            children in proptest::collection::vec((any_id(), any::<bool>()), 0..12),
            mode in prop_oneof![Just(References::Leaves), Just(References::All), Just(References::None)],
        ) {
            let placer = placer().references(mode);
            let placement = placer.place(children.clone()).unwrap();
            let mut reversed = children.clone();
            reversed.reverse();
            reversed.extend(children.clone());
            prop_assert_eq!(&placer.place(reversed).unwrap(), &placement);
            let proxies: BTreeSet<_> = placement.proxies().map(|(_, proxy)| proxy.clone()).collect();
            for (child, _) in &children {
                let needed = child.namespace().is_some() || !is_never_owned(child);
                let proxy = placement.proxies().find(|(place, _)| **place == Place::of(child)).map(|(_, id)| id);
                prop_assert!(!needed || proxy.is_some());
                if needed {
                    prop_assert!(depends(&placement, child, proxy.unwrap()));
                }
                if let Some(owner) = placement.owner_of(child) {
                    prop_assert!(proxies.contains(owner));
                    prop_assert_eq!(check_reference(owner, child), Ok(()));
                    prop_assert!(!is_never_owned(child));
                }
            }
        }
    }
}
