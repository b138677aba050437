//! From the configuration of an operator to the rights it needs.

use std::collections::{BTreeMap, BTreeSet};

use super::{Place, Resource, Right, Rights, Verb};
use crate::{
    custodian::Watch,
    discovery,
    inventory::InUsePolicy,
    object::{ObjectId, ResourceKind, Scope},
    ownership::{
        self,
        proxy::{ProxyKinds, ProxyOwners},
    },
};

const POLLED: &str = "objects are asked for one by one, and what changes wakes no parent";
const UNPROVEN: &str =
    "should the definition be deleted, its objects cannot be proven gone, and hold their parent until it is back";

/// Where inventories are.
#[derive(Clone, Debug)]
enum Records {
    BesideParents,
    In(String),
    Elsewhere,
}

/// How an operator is built, as far as it matters to the rights it needs. Give it what the custodian's
/// [`Builder`](crate::custodian::Builder) was given.
#[derive(Clone, Debug)]
#[must_use]
pub struct Setup {
    parent: ResourceKind,
    children: Vec<ResourceKind>,
    proxies: Option<ProxyKinds>,
    watch: Watch,
    namespaces: Option<BTreeSet<String>>,
    records: Records,
    held: Vec<(ResourceKind, ObjectId)>,
    controller: bool,
    status: bool,
    in_use: InUsePolicy,
    scanned: Vec<ResourceKind>,
    rules: bool,
    elsewhere: bool,
    more: Vec<Right>,
}

impl Setup {
    /// An operator for parents of this kind, without children, proxies or holds, that works everywhere, watches by
    /// [`Watch::Auto`], keeps inventories beside the parents, uses the standard rules, and runs a controller that publishes
    /// conditions. Children are where the parents are, and the operator acts as itself.
    pub fn new(parent: ResourceKind) -> Self {
        Self {
            parent,
            children: Vec::new(),
            proxies: None,
            watch: Watch::Auto,
            namespaces: None,
            records: Records::BesideParents,
            held: Vec::new(),
            controller: true,
            status: true,
            in_use: InUsePolicy::default(),
            scanned: Vec::new(),
            rules: true,
            elsewhere: false,
            more: Vec::new(),
        }
    }

    /// Adds kinds of children.
    pub fn children(mut self, kinds: impl IntoIterator<Item = ResourceKind>) -> Self {
        self.children.extend(kinds);
        self
    }

    /// Owns children through this pair of proxy owners.
    ///
    /// # Errors
    /// [`ownership::Error::ProxyIdentity`] if the pair is declared with a group, kind or plural that the API server would
    /// refuse.
    pub fn proxies<N, C>(mut self) -> Result<Self, ownership::Error>
    where
        (N, C): ProxyOwners,
    {
        self.proxies = Some(<(N, C)>::kinds()?);
        Ok(self)
    }

    /// Sets how children are watched.
    pub fn watch(mut self, watch: Watch) -> Self {
        self.watch = watch;
        self
    }

    /// Confines the operator to these namespaces: all parents, their inventories and their namespaced children are there,
    /// and rights on them come from Roles there. Rights on cluster-scoped objects come from a ClusterRole all the same.
    pub fn namespaces<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.namespaces = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// Keeps inventories in this namespace, as [`ConfigMapStore::namespace`](crate::inventory::ConfigMapStore::namespace)
    /// does for cluster-scoped parents.
    pub fn records_in(mut self, namespace: impl Into<String>) -> Self {
        self.records = Records::In(namespace.into());
        self
    }

    /// Keeps inventories in a store of the author's own, which knows itself what it needs.
    pub fn own_store(mut self) -> Self {
        self.records = Records::Elsewhere;
        self
    }

    /// Holds this object ([`Builder::hold`](crate::custodian::Builder::hold)); only its name counts. The right comes from a
    /// ClusterRole that names it, and never from what is held.
    pub fn hold(mut self, kind: ResourceKind, id: ObjectId) -> Self {
        self.held.push((kind, id));
        self
    }

    /// Sets whether a controller lists and watches the parents. One does unless set.
    pub fn controller(mut self, controller: bool) -> Self {
        self.controller = controller;
        self
    }

    /// Sets whether conditions are written into the parents' status. They are unless set.
    pub fn status(mut self, status: bool) -> Self {
        self.status = status;
        self
    }

    /// Lets parents wait for parents of these kinds, by a [`Gate`](crate::gate::Gate). Everywhere, as its default policy
    /// needs it, unless the operator is confined to [`namespaces`](Self::namespaces).
    pub fn gate(mut self, kinds: impl IntoIterator<Item = ResourceKind>) -> Self {
        for kind in kinds {
            let (resource, place) = (resource(&kind), self.place(kind.scope));
            let reason = "parents that wait for each other are read live";
            let needed =
                [Verb::Get, Verb::List].map(|verb| Right::required(resource.clone(), verb, place.clone(), reason));
            self.more.extend(needed);
            let cost = "parents wait by timer, for one read a look";
            self.more.push(Right::optional(resource, Verb::Watch, place, "wakes those who wait", cost));
        }
        self
    }

    /// Sets what happens to Namespaces and definitions among the children that something else uses
    /// ([`Builder::in_use`](crate::custodian::Builder::in_use)); to tell, the operator looks into them. Under
    /// [`InUsePolicy::Delete`] it needs no right to.
    pub fn in_use(mut self, policy: InUsePolicy) -> Self {
        self.in_use = policy;
        self
    }

    /// Adds kinds whose objects use a Namespace, or, with CustomResourceDefinitions among the children, kinds that those define
    /// and that are no kinds of children.
    pub fn in_use_scan(mut self, kinds: impl IntoIterator<Item = ResourceKind>) -> Self {
        self.scanned.extend(kinds);
        self
    }

    /// Sets whether rules read Roles and ClusterRoles that are outside of the desired set, as the standard ones do where it has
    /// bindings, workloads and custom resources. They do unless set.
    pub fn rules(mut self, rules: bool) -> Self {
        self.rules = rules;
        self
    }

    /// Sets whether children live in other clusters, or are managed as somebody else
    /// ([`Builder::target`](crate::custodian::Builder::target)): what that identity needs is then listed by
    /// [`rights_at_target`](Self::rights_at_target) only. They do not unless set.
    pub fn elsewhere(mut self, elsewhere: bool) -> Self {
        self.elsewhere = elsewhere;
        self
    }

    /// Adds what the operator needs beyond: for its own purposes, or for rules of its own that read objects.
    pub fn also(mut self, rights: impl IntoIterator<Item = Right>) -> Self {
        self.more.extend(rights);
        self
    }

    /// The least rights where the parents are.
    #[must_use]
    pub fn rights(&self) -> Rights {
        let mut rights = Rights::default();
        rights.extend(self.on_parents());
        rights.extend(self.on_records());
        rights.extend(self.on_held());
        rights.extend([Self::cluster_id()]);
        if !self.elsewhere {
            rights.extend(self.about_children());
        }
        rights.extend(self.more.iter().cloned());
        rights
    }

    /// The least rights of the identity that children are managed as, where they live, if that is
    /// [`elsewhere`](Self::elsewhere). Proxies are among them only if the [`Target`](crate::custodian::Target) uses them: leave
    /// them out here otherwise.
    ///
    /// A tenant who is impersonated in the parents' own cluster needs no right on `kube-system`.
    #[must_use]
    pub fn rights_at_target(&self) -> Rights {
        self.about_children().into_iter().chain([Self::cluster_id()]).collect()
    }

    /// What an administrator needs for [`Custodian::uninstall`](crate::custodian::Custodian::uninstall), by release or
    /// tear-down, and for a [`scan`](crate::custodian::Custodian::scan): what the operator itself has, and, since anything may
    /// carry a key, a look at everything.
    #[must_use]
    pub fn rights_to_uninstall(&self) -> Rights {
        let everything = Resource::new("*", "*");
        let right = |verb, reason| Right::required(everything.clone(), verb, Place::Everywhere, reason);
        let parents = resource(&self.parent);
        let mut rights = self.rights();
        rights.extend([
            right(Verb::List, "whatever carries a key of the manager is found"),
            right(Verb::Get, "keys are taken off in the state that was read"),
            right(Verb::Patch, "keys are taken off"),
            Right::optional(
                parents,
                Verb::Delete,
                self.place(self.parent.scope),
                "parents are torn down",
                "parents can be released, and not torn down",
            ),
        ]);
        rights
    }

    fn cluster_id() -> Right {
        Right::required(
            Resource::new("", "namespaces").named(["kube-system"]),
            Verb::Get,
            Place::Everywhere,
            "its UID is the cluster's id: no other cluster's answer is taken for this one's",
        )
    }

    fn about_children(&self) -> Vec<Right> {
        let mut rights: Vec<_> = self.children.iter().flat_map(|kind| self.on_children(kind)).collect();
        let pair = self.proxies.iter().flat_map(|pair| [pair.namespaced(), pair.cluster()]);
        rights.extend(pair.filter(|kind| self.may_have(kind)).flat_map(|kind| self.on_proxies(kind)));
        rights.extend(self.on_definitions());
        rights.extend(self.inside_containers());
        rights.extend(self.on_roles_outside());
        rights
    }

    /// Whether children of a kind are among the operator's.
    fn has(&self, group: &str, kind: &str) -> bool {
        self.children.iter().any(|c| c.group == group && c.kind == kind)
    }

    /// What rules read of roles that bindings in the set refer to, and that are not in it.
    fn on_roles_outside(&self) -> Vec<Right> {
        const GROUP: &str = "rbac.authorization.k8s.io";
        let local = self.has(GROUP, "RoleBinding");
        let custom = self.children.iter().any(|kind| !discovery::is_built_in(&kind.group));
        if !self.rules || !custom || !(local || self.has(GROUP, "ClusterRoleBinding")) {
            return Vec::new();
        }
        let cost = "it is not known who serves a custom resource where that hangs on a role outside of the desired set";
        let right = |plural, place| {
            let reason = "which resources bindings of the set let its workloads serve";
            Right::optional(Resource::new(GROUP, plural), Verb::Get, place, reason, cost)
        };
        let roles = local.then(|| right("roles", self.place(Scope::Namespaced)));
        roles.into_iter().chain([right("clusterroles", Place::Everywhere)]).collect()
    }

    fn place(&self, scope: Scope) -> Place {
        match (&self.namespaces, scope) {
            (Some(names), Scope::Namespaced) => Place::Namespaces(names.clone()),
            _ => Place::Everywhere,
        }
    }

    /// An operator that creates nothing in cluster scope has no proxy there.
    fn may_have(&self, proxy: &ResourceKind) -> bool {
        self.children.iter().any(|child| child.scope == proxy.scope)
    }

    fn on_parents(&self) -> Vec<Right> {
        let (parents, place) = (resource(&self.parent), self.place(self.parent.scope));
        let required = |verb, reason| Right::required(parents.clone(), verb, place.clone(), reason);
        let mut rights = vec![
            required(Verb::Get, "read live before anything is created or let go"),
            required(Verb::Patch, "finalizers, and the annotation of group-kinds"),
        ];
        if self.controller {
            rights.extend([Verb::List, Verb::Watch].map(|verb| required(verb, "the controller")));
        }
        if self.status {
            let status = Resource { plural: format!("{}/status", parents.plural), ..parents.clone() };
            let cost = "the status cannot say what blocks, and why";
            rights.push(Right::optional(status, Verb::Patch, place.clone(), "conditions", cost));
        }
        rights
    }

    fn on_children(&self, kind: &ResourceKind) -> Vec<Right> {
        let (children, place) = (resource(kind), self.place(kind.scope));
        let required = |verb, reason| Right::required(children.clone(), verb, place.clone(), reason);
        let mut rights = vec![
            required(Verb::Get, "judged as they live before they are written, deleted or taken for gone"),
            required(Verb::Create, "children are created by POST"),
            required(Verb::Patch, "applied, marked and detached"),
            required(Verb::Delete, "pruned and torn down"),
        ];
        let cost = "a parent whose inventory is lost is held";
        rights.push(Right::optional(children, Verb::List, place, "found again if the inventory is lost", cost));
        rights.extend(self.watched(kind));
        rights
    }

    fn on_proxies(&self, kind: &ResourceKind) -> Vec<Right> {
        let (proxies, place) = (resource(kind), self.place(kind.scope));
        let verbs = [
            (Verb::Get, "read live before children refer to them"),
            (Verb::Create, "children are owned by them"),
            (Verb::Patch, "their finalizer comes off last"),
            (Verb::Delete, "they go after the children"),
        ];
        let mut rights: Vec<_> =
            verbs.map(|(verb, reason)| Right::required(proxies.clone(), verb, place.clone(), reason)).into();
        let cost = "a parent whose inventory is lost is held";
        rights.push(Right::optional(proxies, Verb::List, place, "found again if the inventory is lost", cost));
        rights.extend(self.watched(kind));
        rights
    }

    fn watched(&self, kind: &ResourceKind) -> Vec<Right> {
        let place = match self.watch {
            Watch::Off => return Vec::new(),
            Watch::Everywhere => Place::Everywhere,
            Watch::Auto | Watch::Namespaces => self.place(kind.scope),
        };
        let right = |verb| Right::optional(resource(kind), verb, place.clone(), "changes wake the parent", POLLED);
        vec![right(Verb::List), right(Verb::Watch)]
    }

    fn on_records(&self) -> Vec<Right> {
        let place = match &self.records {
            Records::BesideParents => self.place(Scope::Namespaced),
            Records::In(namespace) => Place::Namespaces(BTreeSet::from([namespace.clone()])),
            Records::Elsewhere => return Vec::new(),
        };
        let maps = Resource::new("", "configmaps");
        let verbs = [Verb::Get, Verb::List, Verb::Create, Verb::Patch, Verb::Delete];
        verbs.map(|verb| Right::required(maps.clone(), verb, place.clone(), "inventories")).into()
    }

    fn on_definitions(&self) -> Option<Right> {
        let pair = self.proxies.iter().flat_map(|pair| [pair.namespaced(), pair.cluster()]);
        let kinds = self.children.iter().chain(pair.filter(|kind| self.may_have(kind)));
        let names: BTreeSet<_> =
            kinds.filter(|k| !discovery::is_built_in(&k.group)).map(ResourceKind::group_resource).collect();
        let definitions = Resource::new("apiextensions.k8s.io", "customresourcedefinitions").named(names);
        let reason = "proof that a kind is gone with all its objects";
        (!definitions.names.is_empty())
            .then(|| Right::optional(definitions, Verb::Get, Place::Everywhere, reason, UNPROVEN))
    }

    /// What the look into Namespaces and definitions reads before they are deleted.
    fn inside_containers(&self) -> Vec<Right> {
        if self.in_use == InUsePolicy::Delete {
            return Vec::new();
        }
        let required =
            |resource, verb, reason: &str| Right::required(resource, verb, Place::Everywhere, reason.to_owned());
        let mut rights = Vec::new();
        if self.has("", "Namespace") {
            let reason = "whether a Namespace that is to go is in use";
            let pair = self.proxies.iter().map(ProxyKinds::namespaced);
            let kinds = self.children.iter().chain(&self.scanned).chain([&self.parent]).chain(pair);
            let listed = kinds.filter(|kind| kind.scope == Scope::Namespaced).map(resource);
            let listed = listed.chain([Resource::new("", "pods"), Resource::new("", "persistentvolumeclaims")]);
            rights.extend(listed.map(|listed| required(listed, Verb::List, reason)));
            // The links between a workload and its Pods.
            for (group, kind, link) in [("apps", "Deployment", "replicasets"), ("batch", "CronJob", "jobs")] {
                if self.has(group, kind) {
                    rights.push(required(Resource::new(group, link), Verb::Get, "whose Pods are in a Namespace"));
                }
            }
        }
        if self.has("apiextensions.k8s.io", "CustomResourceDefinition") {
            let kinds = self.children.iter().chain(&self.scanned);
            let custom = kinds.filter(|kind| !discovery::is_built_in(&kind.group)).map(resource);
            let reason = "whether a definition that is to go is in use";
            rights.extend(custom.map(|custom| required(custom, Verb::List, reason)));
        }
        rights
    }

    fn on_held(&self) -> Vec<Right> {
        let mut held: BTreeMap<(&str, &str), BTreeSet<String>> = BTreeMap::new();
        for (kind, id) in &self.held {
            held.entry((&kind.group, &kind.plural)).or_default().insert(id.name().to_owned());
        }
        let rights = held.into_iter().flat_map(|((group, plural), names)| {
            let resource = Resource::new(group, plural).named(names);
            let reason = "holds: by name, and never from what is held";
            [Verb::Get, Verb::Patch].map(|verb| Right::required(resource.clone(), verb, Place::Everywhere, reason))
        });
        rights.collect()
    }
}

fn resource(kind: &ResourceKind) -> Resource {
    Resource::new(&kind.group, &kind.plural)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ownership::proxy::{ClusterGitTrackOwner, GitTrackOwner},
        rbac::Need,
    };

    fn kind(group: &str, kind: &str, scope: Scope) -> ResourceKind {
        ResourceKind::new(group, "v1", kind, &format!("{}s", kind.to_lowercase()), scope)
    }

    fn setup() -> Setup {
        let setup = Setup::new(kind("faros.pusher.com", "GitTrack", Scope::Namespaced)).children([kind(
            "",
            "Service",
            Scope::Namespaced,
        )]);
        setup.proxies::<GitTrackOwner, ClusterGitTrackOwner>().unwrap()
    }

    fn names(rights: &Rights, verb: Verb) -> BTreeSet<String> {
        rights.iter().filter(|right| right.verb == verb).map(|right| right.resource.plural.clone()).collect()
    }

    #[test]
    fn what_is_elsewhere_is_asked_of_the_identity_there() {
        let (here, all) = (setup().elsewhere(true), setup().rights());
        let (home, there) = (here.rights(), here.rights_at_target());
        assert!(!names(&home, Verb::Delete).contains("services") && names(&home, Verb::Patch).contains("gittracks"));
        assert_eq!(names(&there, Verb::Delete), BTreeSet::from(["services".into(), "gittrackowners".into()]));
        assert!(!names(&there, Verb::Get).contains("gittracks") && !names(&there, Verb::Get).contains("configmaps"));
        // Nothing is needed twice, or not at all, but the cluster's id.
        let both: Rights = home.iter().chain(there.iter()).cloned().collect();
        assert_eq!(both, all);
        assert!([home, there].iter().all(|rights| names(rights, Verb::Get).contains("namespaces")));
    }

    #[test]
    fn roles_are_read_where_rules_ask_for_them() {
        let group = "rbac.authorization.k8s.io";
        let custom = kind("example.com", "Widget", Scope::Namespaced);
        let binding = kind(group, "RoleBinding", Scope::Namespaced);
        let reads = |setup: Setup| {
            let rights = setup.rights();
            let of_roles: Vec<_> =
                rights.iter().filter(|r| ["roles", "clusterroles"].contains(&&*r.resource.plural)).collect();
            assert!(of_roles.iter().all(|r| r.verb == Verb::Get && matches!(r.need, Need::Optional { .. })));
            of_roles.len()
        };
        assert_eq!(reads(setup().children([custom.clone(), binding.clone()])), 2);
        assert_eq!(reads(setup().children([custom.clone(), kind(group, "ClusterRoleBinding", Scope::Cluster)])), 1);
        assert_eq!(reads(setup().children([custom.clone()])), 0, "without bindings, no role is asked for");
        assert_eq!(reads(setup().children([binding.clone()])), 0, "nor without custom resources");
        assert_eq!(reads(setup().children([custom, binding]).rules(false)), 0);
    }
}
