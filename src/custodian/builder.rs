//! Putting a custodian together.

use std::{
    collections::BTreeSet,
    fmt,
    marker::PhantomData,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::FutureExt;
use kube_client::Client;
use kube_core::Resource;
use serde::de::DeserializeOwned;

use super::{
    Adoption, Custodian, Error, HoldsOf, InUseOf, Inner, PolicyOf, PruneGuard, Target, TargetOf, Unavailable,
    hub::{Hub, Wakeups},
    intent::Rulebook,
    site::Site,
    target::Reach,
    watches::Watch,
};
use crate::{
    finalizer::Finalizer,
    force::Allowed,
    gate::Gate,
    graph::Rules,
    inventory::{ConfigMapStore, DeletionPolicy, InUsePolicy, InventoryStore},
    manager::Manager,
    object::{GroupKind, ObjectId, ParentRef},
    ownership::{
        self, HandOver, OwnershipPolicy,
        proxy::{ProxyKinds, ProxyOwners, References},
    },
    teardown::DEFAULT_CONCURRENCY,
};

/// Options of a [`Custodian`].
#[must_use]
pub struct Builder<K> {
    client: Client,
    manager: String,
    proxies: Option<Result<ProxyKinds, ownership::Error>>,
    references: References,
    guards_proxies_elsewhere: bool,
    policy: PolicyOf,
    holds: Option<HoldsOf>,
    target: Option<TargetOf<K>>,
    store: Option<Arc<dyn InventoryStore>>,
    rules: Rules,
    adoption: Adoption,
    hand_over: HandOver,
    force_conflicts: bool,
    children_on_delete: DeletionPolicy,
    prune: bool,
    guard: PruneGuard,
    in_use: InUseOf,
    scan: BTreeSet<GroupKind>,
    force: Allowed,
    slice: Duration,
    concurrency: usize,
    watch: Watch,
    legacy: Vec<String>,
    creator: Option<String>,
    gate: Option<Gate>,
}

impl<K> fmt::Debug for Builder<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("manager", &self.manager).finish_non_exhaustive()
    }
}

impl<K> Builder<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + fmt::Debug + Send + Sync + 'static,
{
    pub(super) fn new(client: Client, manager: String) -> Self {
        Self {
            client,
            manager,
            proxies: None,
            references: References::default(),
            guards_proxies_elsewhere: true,
            policy: Arc::new(|_| OwnershipPolicy::SameNamespace),
            holds: None,
            target: None,
            store: None,
            rules: Rules::standard(),
            adoption: Adoption::default(),
            hand_over: HandOver::default(),
            force_conflicts: false,
            children_on_delete: DeletionPolicy::Delete,
            prune: true,
            guard: PruneGuard::default(),
            in_use: Arc::new(|_, _| InUsePolicy::default()),
            scan: BTreeSet::new(),
            force: Allowed::nothing(),
            slice: Duration::from_secs(1),
            concurrency: DEFAULT_CONCURRENCY,
            watch: Watch::Auto,
            legacy: Vec::new(),
            creator: None,
            gate: None,
        }
    }

    /// Makes children legally owned through this pair of proxy owners, whose definitions have to be installed. Without
    /// it, ownership rests on inventory and finalizer alone.
    pub fn proxies<N, C>(mut self) -> Self
    where
        (N, C): ProxyOwners,
    {
        self.proxies = Some(<(N, C)>::kinds());
        self
    }

    /// Sets which children carry an owner reference to their proxy. [`References::Leaves`] unless set.
    pub fn references(mut self, references: References) -> Self {
        self.references = references;
        self
    }

    /// Sets whether proxies outside of the parent's own namespace carry a finalizer. They do unless set: without one, a
    /// proxy that is deleted by hand takes the children that refer to it along, in no order; with one, its namespace
    /// cannot go while the operator is down.
    pub fn guard_proxies_elsewhere(mut self, guard: bool) -> Self {
        self.guards_proxies_elsewhere = guard;
        self
    }

    /// Sets what every parent may manage. [`OwnershipPolicy::SameNamespace`] unless set.
    pub fn ownership(self, policy: OwnershipPolicy) -> Self {
        self.ownership_of(move |_| policy.clone())
    }

    /// Decides parent by parent what it may manage.
    pub fn ownership_of(mut self, policy: impl Fn(&ParentRef) -> OwnershipPolicy + Send + Sync + 'static) -> Self {
        self.policy = Arc::new(policy);
        self
    }

    /// Names objects that cleanup needs, such as the Role and RoleBinding the operator works under in the parent's
    /// namespace. They get a hold finalizer, so that namespace deletion cannot take them before the children are gone.
    /// Never name Pods or workloads: a namespace waits for its pods before anything else.
    ///
    /// # Permissions
    /// The right to take holds off (`get` and `patch`) must not come from the held objects themselves, whose end it is. For
    /// Roles and RoleBindings give it by a ClusterRole that names them, with a ClusterRoleBinding:
    ///
    /// ```yaml
    /// - apiGroups: [rbac.authorization.k8s.io]
    ///   resources: [roles, rolebindings]
    ///   resourceNames: [gittrack-operator]
    ///   verbs: [get, patch]
    /// ```
    ///
    /// Everything else in the namespace, the inventory included, may rest on the held Role. The order at the end is
    /// therefore: the parent's finalizers, the record, the holds. A crash in between leaves a record or a hold of a parent
    /// that is gone; [`Custodian::sweep`] finishes both.
    pub fn hold(mut self, holds: impl Fn(&ParentRef) -> Vec<ObjectId> + Send + Sync + 'static) -> Self {
        self.holds = Some(Arc::new(holds));
        self
    }

    /// Says parent by parent where its children live: at home, in another cluster, or at home under another identity.
    ///
    /// Asked in every reconcile, and given what the caller of the reconcile has of the parent, which may come from a cache.
    /// Read credentials live. A Secret that is being deleted stays readable while it is held ([`Target::hold`]), so read it
    /// also when it is terminating. Parents, inventories, finalizers and holds stay at home.
    ///
    /// While there is no target, or its cluster gives no answer, the parent waits with
    /// [`Hold::TargetUnavailable`](super::Hold): nothing is applied, and nothing is taken for gone. A target in another
    /// cluster than the one on record is [`Hold::OtherCluster`](super::Hold): nothing is sent there.
    ///
    /// ```no_run
    /// # use k8s_openapi::api::core::v1::{Namespace, Secret};
    /// # use kube::{Api, Client, Resource};
    /// # use kube_custody::{custodian::{self, Builder, Target, TargetKey, Unavailable}, object::ObjectId};
    /// # fn example(builder: Builder<Namespace>, home: Client) -> Builder<Namespace> {
    /// builder.target(move |parent| {
    ///     let secrets = Api::<Secret>::namespaced(home.clone(), "tenants");
    ///     async move {
    ///         let name = parent.meta().name.clone().unwrap_or_default();
    ///         let id = ObjectId::new("", "Secret", Some("tenants"), &name).map_err(|e| Unavailable::new(e.to_string()))?;
    ///         let secret = secrets.get(&name).await.map_err(|e| Unavailable::reading(&id, &e))?;
    ///         let text = secret.data.as_ref().and_then(|data| data.get("value"));
    ///         let text = text.ok_or_else(|| Unavailable::new(format!("{id} has no key value")))?;
    ///         let config = custodian::kubeconfig(&text.0).await?;
    ///         let client = Client::try_from(config).map_err(|_| Unavailable::new("no client can be made from it"))?;
    ///         Ok(Target::remote(TargetKey::of_secret(&secret), client).hold(id))
    ///     }
    /// })
    /// # }
    /// ```
    pub fn target<F, Fut>(mut self, target: F) -> Self
    where
        F: Fn(Arc<K>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Target, Unavailable>> + Send + 'static,
    {
        self.target = Some(Arc::new(move |parent| target(parent).boxed()));
        self
    }

    /// Sets where inventories are kept. ConfigMaps in the parent's namespace unless set; required for cluster-scoped
    /// parents unless a namespace is named.
    pub fn store(mut self, store: Arc<dyn InventoryStore>) -> Self {
        self.store = Some(store);
        self
    }

    /// Sets the rules that infer edges. [`Rules::standard`] unless set.
    pub fn rules(mut self, rules: Rules) -> Self {
        self.rules = rules;
        self
    }

    /// Sets what happens to objects that exist already. [`Adoption::Never`] unless set.
    pub fn adoption(mut self, adoption: Adoption) -> Self {
        self.adoption = adoption;
        self
    }

    /// Sets between which parents of this manager an object changes hands that one of them does not desire any more, and
    /// another one does: it is handed over then, where it would have been pruned. [`HandOver::SameNamespace`] unless set.
    ///
    /// A parent among the desired objects, which may be the one that takes over, is first given the time to look at what it
    /// was last told, if it reports an `observedGeneration`.
    pub fn hand_over(mut self, between: HandOver) -> Self {
        self.hand_over = between;
        self
    }

    /// Sets whether applies take over fields of other field managers. Off unless set.
    pub fn force_conflicts(mut self, force: bool) -> Self {
        self.force_conflicts = force;
        self
    }

    /// Sets what happens to the children when their parent is deleted: [`DeletionPolicy::Delete`] unless set. The value at the
    /// moment the teardown starts counts.
    ///
    /// This policy alone decides, and not the propagation policy of the DELETE that the parent gets
    /// (`kubectl delete --cascade=orphan`). That policy is told to nobody but the garbage collector, as the finalizer
    /// `orphan` on the parent, and the garbage collector takes it off again as soon as it has looked for dependents: it can
    /// be gone before any operator reads it, or never come where another DELETE follows. No child refers to the parent, so
    /// `--cascade=foreground` and `--cascade=orphan` neither pass the order nor keep anything by themselves.
    pub fn children_on_delete(mut self, policy: DeletionPolicy) -> Self {
        self.children_on_delete = policy;
        self
    }

    /// Sets whether objects that are no longer desired are removed while the parent lives. They are unless set.
    pub fn prune(mut self, prune: bool) -> Self {
        self.prune = prune;
        self
    }

    /// Sets how much a prune may take at once. An empty desired set prunes nothing unless allowed.
    pub fn prune_guard(mut self, guard: PruneGuard) -> Self {
        self.guard = guard;
        self
    }

    /// Sets what happens to Namespaces and CustomResourceDefinitions that something else still uses when their turn to be
    /// deleted has come: [`InUsePolicy::Hold`] unless set. A manifest may ask for `hold` or `keep` by itself, see
    /// [`Desired::in_use`](super::Desired::in_use).
    ///
    /// A CustomResourceDefinition is in use by every object of its kind that does not go as well. A Namespace is in use by
    /// - children and proxies of other parents of this manager, of every kind that this process watches or has on record for the
    ///   parent;
    /// - parents of this custodian's kind (the parent itself does not hold its own Namespace, which is kept for it);
    /// - Pods and PersistentVolumeClaims that are not children, and whose chain of controllers (Pod, ReplicaSet, Deployment) does
    ///   not lead to one. Claims made from a StatefulSet's templates have no controller unless its retention policy says so: the data
    ///   in them is nobody's to delete along;
    /// - objects of the kinds given to [`in_use_scan`](Self::in_use_scan).
    ///
    /// This is read directly before each DELETE. A child that asks to be kept, or was given up, keeps its container under every policy.
    ///
    /// # Permissions
    /// `list` on the kind that a CustomResourceDefinition defines, in all namespaces, and `get` on the definition. In a Namespace: `list` on
    /// `pods`, `persistentvolumeclaims`, the parents and the kinds of the children, and `get` on what controls the Pods. What may not be
    /// read holds the container, and the report names the missing rule; under [`InUsePolicy::Delete`] it is passed over.
    pub fn in_use(self, policy: InUsePolicy) -> Self {
        self.in_use_of(move |_, _| policy)
    }

    /// [`in_use`](Self::in_use), decided object by object.
    pub fn in_use_of(mut self, policy: impl Fn(&ParentRef, &ObjectId) -> InUsePolicy + Send + Sync + 'static) -> Self {
        self.in_use = Arc::new(policy);
        self
    }

    /// Further kinds whose objects use the Namespace that they are in, unless they are children or are controlled by one.
    ///
    /// # Permissions
    /// `list` on each of them in the Namespaces among the children.
    pub fn in_use_scan(mut self, kinds: impl IntoIterator<Item = GroupKind>) -> Self {
        self.scan.extend(kinds);
        self
    }

    /// Sets what is admitted of [requests to force](crate::force) that stand on a parent. Nothing unless set: whoever may edit a
    /// parent may write them.
    ///
    /// A finalizer is stripped of an object only if it is the recorded incarnation of a child, carries the parent's marks and is being
    /// deleted already.
    ///
    /// # Permissions
    /// `patch` on the objects.
    pub fn force(mut self, allowed: Allowed) -> Self {
        self.force = allowed;
        self
    }

    /// Sets how long one reconcile may wait for removals. One second unless set.
    pub fn slice(mut self, slice: Duration) -> Self {
        self.slice = slice;
        self
    }

    /// Sets how many requests are in flight at once. [`DEFAULT_CONCURRENCY`] unless set.
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.concurrency = concurrency.max(1);
        self
    }

    /// Sets where children are watched. [`Watch::Auto`] unless set; where rights are missing, an exact choice spares the
    /// attempts.
    pub fn watch(mut self, watch: Watch) -> Self {
        self.watch = watch;
        self
    }

    /// Names finalizers of earlier versions of the operator, which leave together with the present ones.
    pub fn legacy_finalizers<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.legacy.extend(names.into_iter().map(Into::into));
        self
    }

    /// Names the identity (ServiceAccount or user) that creates children, for the record.
    pub fn creator(mut self, creator: impl Into<String>) -> Self {
        self.creator = Some(creator.into());
        self
    }

    /// Makes parents wait for each other: see [`gate`](crate::gate). The gate knows kind `K`, and all custodians whose
    /// parents name each other share one.
    ///
    /// A parent creates only while everything that it depends on exists and is not being deleted, and is torn down only
    /// after nothing depends on it: [`Phase::Waiting`](super::Phase) and [`Phase::Blocked`](super::Phase).
    pub fn gate(mut self, gate: Gate) -> Self {
        self.gate = Some(gate);
        self
    }

    /// The custodian.
    ///
    /// # Errors
    /// [`Error::Manager`], [`Error::FinalizerName`] or [`Error::Proxies`] if a name is not usable.
    pub fn build(self) -> Result<Custodian<K>, Error> {
        let manager = Manager::new(&self.manager)?;
        let name = |source| Error::FinalizerName { source };
        let custody = Finalizer::new(manager.finalizer()).map_err(name)?;
        let applied = Finalizer::new(manager.applied_finalizer()).map_err(name)?;
        let both = Finalizer::new(manager.finalizer())
            .and_then(|f| f.and(manager.applied_finalizer()))
            .and_then(|f| f.legacy(self.legacy))
            .map_err(name)?;
        let proxies = self.proxies.transpose().map_err(|source| Error::Proxies { source })?;
        let store = self.store.unwrap_or_else(|| Arc::new(ConfigMapStore::new(self.client.clone(), manager.clone())));
        let rulebook = Rulebook {
            manager: manager.clone(),
            proxies,
            references: self.references,
            rules: self.rules,
            guards_proxies_elsewhere: self.guards_proxies_elsewhere,
        };
        Ok(Custodian {
            target: self.target,
            inner: Arc::new(Inner {
                home: Arc::new(Site::new(
                    self.client.clone(),
                    Hub::new(self.client, manager.clone(), self.watch, Wakeups::default()),
                    Reach::Home,
                )),
                sites: Mutex::default(),
                bare: Rulebook { proxies: None, ..rulebook.clone() },
                rulebook,
                manager,
                store,
                adoption: self.adoption,
                hand_over: self.hand_over,
                force_conflicts: self.force_conflicts,
                concurrency: self.concurrency,
                custody,
                applied,
                both,
                policy: self.policy,
                holds: self.holds,
                children_on_delete: self.children_on_delete,
                prune: self.prune,
                guard: self.guard,
                scan: self.scan,
                in_use: self.in_use,
                force: self.force,
                slice: self.slice,
                creator: self.creator,
                gate: self.gate,
            }),
            kind: PhantomData,
        })
    }
}
