//! The whole lifecycle of a parent's children, in one call from a reconciler.
//!
//! [`Custodian::reconcile`] brings what is desired into the cluster while the parent lives, prunes what is no longer
//! desired, and tears everything down in proven order when the parent is deleted. The order of a parent's first
//! reconcile is fixed, because each step protects the next against a crash or a DELETE in between:
//!
//! 1. the first finalizer on the parent, `<manager>/custody`;
//! 2. a live read: same UID, finalizer present, not being deleted;
//! 3. the inventory root, with its guard finalizer in the POST;
//! 4. the second finalizer, `<manager>/applied`, and the group-kinds about to be created, in one patch. The API server
//!    refuses it on a parent that is being deleted, and it survives backup and restore: without it nothing was created;
//! 5. the intents of all objects, proxies included, in the inventory;
//! 6. proxies, then 7. children, each by POST, after another live read of the parent.
//!
//! When the parent is deleted: without an inventory and without `applied` nothing was created, and it is let go. With
//! `applied` and no inventory the children are rediscovered, or the parent is held with
//! [`Hold::InventoryMissing`](Hold).
//!
//! What to keep when a parent goes is the operator's own policy ([`Builder::children_on_delete`]), never the propagation policy
//! of the parent's DELETE: its marker can be gone before anyone reads it.
//!
//! A proxy that is deleted while its parent lives is replaced under another name, its children are re-parented, and
//! its finalizer comes off once nothing refers to it any more. In a namespace that is being terminated nothing can
//! replace it: it is released as soon as nothing of the parent's is left there. While the definition of the proxies is
//! being deleted or gone, work goes on without proxies, and [`Outcome::notes`] says so; the operator needs the right to `get`
//! those two CustomResourceDefinitions to see it.

mod answering;
mod apply;
mod builder;
mod containers;
mod context;
mod desired;
mod error;
mod fields;
mod finalize;
mod follow;
mod forcing;
mod gating;
mod handing;
mod holds;
mod hub;
mod intent;
mod kinds;
mod kubeconfig;
mod outcome;
mod proxies;
mod reconcile;
mod rediscover;
mod registry;
mod relink;
mod removal;
mod site;
mod strays;
mod sweep;
mod target;
pub mod uninstall;
mod unite;
mod watches;

use std::{
    collections::BTreeSet,
    fmt,
    marker::PhantomData,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::{Stream, StreamExt, future::BoxFuture, stream};
use kube_client::Client;
use kube_core::Resource;
use kube_runtime::reflector::ObjectRef;
use serde::de::DeserializeOwned;

pub(crate) use self::hub::Pending;
pub use self::{
    builder::Builder,
    desired::{Desired, Error as DesiredError},
    error::Error,
    forcing::Forced,
    hub::Wakeup,
    intent::Error as IntentError,
    kubeconfig::kubeconfig,
    outcome::{Hold, Outcome, Phase, Problem, Unapplied},
    relink::{Foreign, Relinked},
    sweep::{LeftRecord, Sweep},
    target::{Target, TargetKey, Unavailable},
    watches::{KindWatch, PlaceWatch, Watch},
};
use self::{intent::Rulebook, registry::Registry, site::Site, target::Reach};
use crate::{
    finalizer::Finalizer,
    force::Allowed,
    gate::Gate,
    inventory::{DeletionPolicy, InUsePolicy, InventoryStore},
    manager::Manager,
    object::{GroupKind, ObjectId, ParentRef},
    ownership::{BackPointer, HandOver, OwnershipPolicy},
};

/// After how long a parent is looked at again that waits for a decision.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_secs(300);
/// After how long a parent is looked at again whose children are waited for, if no watch wakes it before.
pub(crate) const WAIT: Duration = Duration::from_secs(5);

/// After how long a parent is looked at again whose target gave no answer.
pub(crate) const TARGET_BACK: Duration = Duration::from_secs(30);

/// What to do when an object to be created exists already and is not ours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Adoption {
    /// Leave it alone and report it.
    #[default]
    Never,
    /// Adopt it if it carries neither an owner reference nor a back-pointer of this manager or any other.
    IfUnowned,
    /// Adopt it unless another parent of this manager claims it.
    Always,
}

/// How much a prune may take at once.
///
/// An empty desired set more often means a failed render than a wish, so it prunes nothing unless allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct PruneGuard {
    allow_empty: bool,
    max_share: Option<f64>,
}

impl PruneGuard {
    /// No limit, and an empty set prunes everything.
    #[must_use]
    pub fn off() -> Self {
        Self { allow_empty: true, max_share: None }
    }

    /// Lets an empty desired set prune everything.
    #[must_use]
    pub fn allow_empty(mut self, allow: bool) -> Self {
        self.allow_empty = allow;
        self
    }

    /// Refuses to prune more than this share of the inventory at once, between 0 and 1.
    #[must_use]
    pub fn max_share(mut self, share: f64) -> Self {
        self.max_share = Some(share.clamp(0.0, 1.0));
        self
    }

    /// Whether `pruned` of `of` objects may go at once.
    fn admits(&self, pruned: usize, of: usize, desired_is_empty: bool) -> bool {
        if pruned == 0 {
            return true;
        }
        #[allow(clippy::cast_precision_loss, reason = "a share, not a count")]
        let share = pruned as f64 / of.max(1) as f64;
        (self.allow_empty || !desired_is_empty) && self.max_share.is_none_or(|max| share <= max)
    }
}

type PolicyOf = Arc<dyn Fn(&ParentRef) -> OwnershipPolicy + Send + Sync>;
type TargetOf<K> = Arc<dyn Fn(Arc<K>) -> BoxFuture<'static, Result<Target, Unavailable>> + Send + Sync>;
type InUseOf = Arc<dyn Fn(&ParentRef, &ObjectId) -> InUsePolicy + Send + Sync>;
type HoldsOf = Arc<dyn Fn(&ParentRef) -> Vec<ObjectId> + Send + Sync>;

/// Everything that is not about one parent.
pub(crate) struct Inner {
    /// Where parents, inventories and holds live.
    pub(crate) home: Arc<Site>,
    pub(crate) manager: Manager,
    pub(crate) store: Arc<dyn InventoryStore>,
    pub(crate) adoption: Adoption,
    hand_over: HandOver,
    pub(crate) force_conflicts: bool,
    pub(crate) concurrency: usize,
    custody: Finalizer,
    applied: Finalizer,
    both: Finalizer,
    rulebook: Rulebook,
    /// The rulebook where no proxies are used.
    bare: Rulebook,
    /// Where children live that do not live at home.
    sites: Mutex<Registry<(Reach, String), Site>>,
    policy: PolicyOf,
    holds: Option<HoldsOf>,
    children_on_delete: DeletionPolicy,
    prune: bool,
    guard: PruneGuard,
    scan: BTreeSet<GroupKind>,
    in_use: InUseOf,
    force: Allowed,
    slice: Duration,
    creator: Option<String>,
    gate: Option<Gate>,
}

impl Inner {
    /// The author's decisions, as they apply where a parent's children live.
    fn rulebook_at(&self, at: &site::Destination) -> &Rulebook {
        if at.proxies { &self.rulebook } else { &self.bare }
    }

    pub(crate) fn guards_proxy(&self, parent: &ParentRef, proxy: &ObjectId) -> bool {
        self.rulebook.guards_proxy(parent, proxy)
    }
}

/// Takes custody of the children of parents of kind `K`.
///
/// Cheap to clone. One custodian serves all parents of a kind; its watches are shared by them.
pub struct Custodian<K> {
    inner: Arc<Inner>,
    target: Option<TargetOf<K>>,
    kind: PhantomData<fn() -> K>,
}

impl<K> Clone for Custodian<K> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner), target: self.target.clone(), kind: PhantomData }
    }
}

impl<K> fmt::Debug for Custodian<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Custodian").field("manager", &self.inner.manager).finish_non_exhaustive()
    }
}

impl<K> Custodian<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + fmt::Debug + Send + Sync + 'static,
{
    /// Starts building a custodian for parents of kind `K`, whose keys live under the domain `manager`.
    pub fn builder(client: Client, manager: impl Into<String>) -> Builder<K> {
        Builder::new(client, manager.into())
    }

    /// The domain under which the manager's keys live.
    #[must_use]
    pub fn manager(&self) -> &Manager {
        &self.inner.manager
    }

    /// Maps a child to its parent, for `Controller::watches`, where a controller watches kinds of children itself:
    ///
    /// ```no_run
    /// # use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
    /// # use kube::{Api, Client, core::PartialObjectMeta, runtime::{Controller, watcher}};
    /// # fn example(client: Client, custodian: kube_custody::custodian::Custodian<Namespace>) -> Controller<Namespace> {
    /// Controller::new(Api::<Namespace>::all(client.clone()), watcher::Config::default()).watches(
    ///     Api::<PartialObjectMeta<ConfigMap>>::all(client),
    ///     watcher::Config::default().labels(&custodian.manager().parent_label()),
    ///     custodian.mapper(),
    /// )
    /// # }
    /// ```
    ///
    /// Goes by the back-pointer, so a copied label wakes nobody, whatever version an owner reference names. Cluster-scoped
    /// parents get no namespace: `Controller::owns` would give them the child's, and run one parent several times at
    /// once.
    pub fn mapper<C>(&self) -> impl Fn(C) -> Option<ObjectRef<K>> + Send + Sync + 'static + use<C, K>
    where
        C: Resource,
    {
        let key = self.inner.manager.back_pointer_annotation();
        move |child: C| {
            let pointer = BackPointer::decode(child.meta().annotations.as_ref()?.get(&key)?).ok()?;
            let itself = child.meta().name.as_deref() == Some(pointer.object().name())
                && child.meta().namespace.as_deref() == pointer.object().namespace();
            let parent = &pointer.parent().id;
            (itself && parent.is(&K::group(&()), &K::kind(&()))).then(|| hub::object_ref(parent))
        }
    }

    /// How each kind of children is followed that a reconcile asked for: by a watch everywhere, by watches in namespaces, or
    /// by asking, and why. Empty with [`Watch::Off`]; of children at home only. For a log line at times, or a metric.
    #[must_use]
    pub fn watches(&self) -> Vec<KindWatch> {
        self.inner.home.hub.report()
    }

    /// Parents that should be reconciled because one of their children changed or went, or, with a
    /// [`gate`](Builder::gate), a parent that they wait for.
    ///
    /// Only an accelerator: without it everything works by timer. Feed it to the controller with
    /// `Controller::reconcile_on`, or with a mapper. Items name cluster-scoped parents without a namespace, so no parent is
    /// reconciled twice at once.
    pub fn wakeups(&self) -> impl Stream<Item = Wakeup> + Send + use<K> {
        let of_parents = self.inner.gate.iter().map(|gate| gate.wakeups().boxed());
        let of_children = std::iter::once(self.inner.home.hub.wakeups().boxed());
        stream::select_all(of_children.chain(of_parents))
    }
}
