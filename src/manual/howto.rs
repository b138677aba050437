//! # How to
//!
//! ## Take custody of a parent's children
//!
//! One [`Custodian`](crate::custodian::Custodian) a parent kind, one call in the reconciler; the [front page](crate) shows a whole
//! operator. Decide:
//!
//! - **What a parent may manage.** [`OwnershipPolicy::SameNamespace`](crate::ownership::OwnershipPolicy) is the default and the
//!   right choice where tenants write parents: whatever a tenant writes, only objects in the parent's own namespace are
//!   touched, and the rest is listed in the outcome with the reason. `Builder::ownership_of` decides parent by parent.
//! - **Proxies or not.** With a pair of proxy owners (built in for GitTrack, one macro
//!   [`proxy_owners!`](crate::proxy_owners) for any kind) ownership is visible to `kubectl` and to the garbage collector, and
//!   what a stalled process creates late is collected. Without, inventory and finalizer do the work alone, and no extra
//!   CustomResourceDefinitions are needed.
//! - **What happens to objects that exist already**: [`Adoption`](crate::custodian::Adoption). `Never` is the default; what is
//!   adopted is detached at the end, not deleted.
//! - **What happens to the children when the parent goes**: `Builder::children_on_delete`. This is the crate's own switch on
//!   purpose: `kubectl delete --cascade=orphan` leaves a finalizer that the garbage collector may have removed before any
//!   operator reads it, so it cannot be honoured reliably, and `--cascade=foreground` must not cascade past the order. Neither
//!   changes what the custodian does.
//! - **How much a prune may take at once**: [`PruneGuard`](crate::custodian::PruneGuard). An empty desired set prunes nothing
//!   unless that is allowed.
//!
//! ## Say what depends on what
//!
//! An edge *A → B* reads "A depends on B": B is applied first and deleted last. Declare it with the annotation
//! `config.kubernetes.io/depends-on` on A, or in code with `Desired::depends_on`. Declared edges always hold, and a cycle of
//! them is an error that shows the whole cycle before anything is sent. Most of an order need not be declared: rules find
//! it ([`order`](super::order)).
//!
//! ## Keep something
//!
//! `Desired::keep` in code, or one of the marks of other tools on the live object
//! ([`markers`](crate::markers) lists them; a value that is not known keeps the object and is reported). What is kept keeps
//! what it requires, its Namespace and the definition of its kind.
//!
//! ## Move an object from one parent to another
//!
//! Take it out of one desired set and put it into the other's, in any order. The parent that desires it and does not have it asks
//! for it, by an annotation on the object; the one that has it hands it over where it would have pruned it, marks and references
//! in one write. So it is never deleted, and never nobody's. As long as the one that has it desires it, nothing changes. A parent
//! that is deleted hands nothing over. Between whom this may happen is
//! [`Builder::hand_over`](crate::custodian::Builder::hand_over)'s to say; in one namespace, unless set.
//!
//! ## Namespaces and definitions among the children
//!
//! Deleting a Namespace or a CustomResourceDefinition takes along whatever is in it, so each is looked into directly before its
//! DELETE, after everything of the set that is in it is gone. What does not go as well uses it: another parent's children, Pods
//! and PersistentVolumeClaims that nothing of the set controls, objects of a defined kind that somebody else made
//! ([`Builder::in_use`](crate::custodian::Builder::in_use) has the full list and the rights). Then the policy decides:
//!
//! | [`InUsePolicy`](crate::inventory::InUsePolicy) | what happens |
//! |---|---|
//! | `Hold` (default) | it waits until that is gone; the report names what uses it ([`Reason::InUse`](crate::teardown::Reason::InUse)) |
//! | `Keep` | it is left in the cluster, without the parent's marks, and with what it needs; everything else goes |
//! | `Delete` | it is deleted with what is in it, unless that asks to be kept |
//!
//! ```
//! # use kube_custody::{custodian::{Builder, Desired}, inventory::InUsePolicy, object::ObjectId};
//! # use kube_custody::ownership::proxy::GitTrackOwner as Parent;
//! # fn f(builder: Builder<Parent>) -> Result<Builder<Parent>, kube_custody::object::Error> {
//! let builder = builder.in_use_of(|_parent, container| match container.kind() {
//!     // Its custom resources are others' data.
//!     "CustomResourceDefinition" => InUsePolicy::Keep,
//!     _ => InUsePolicy::Hold,
//! });
//! // One object, by the code that makes the set; or in its manifest, by the annotation `<manager>/in-use: keep`.
//! let mut desired = Desired::new();
//! desired.in_use(ObjectId::new("", "Namespace", None, "shared")?, InUsePolicy::Keep);
//! # Ok(builder)
//! # }
//! ```
//!
//! Manifests may come from tenants, so they can ask for `hold` and `keep`, never for `delete`. What may not be listed is not taken
//! for empty: it holds, and the report names the missing rule ([`Reason::UseUnknown`](crate::teardown::Reason::UseUnknown));
//! only under `Delete` it is passed over. A ConfigMap or a Secret of somebody else does not hold a Namespace unless its kind is given
//! to [`Builder::in_use_scan`](crate::custodian::Builder::in_use_scan).
//!
//! ## Let somebody force what is stuck
//!
//! A finalizer whose controller is gone for good keeps its object, and the parent, for ever. Whoever may edit the parent can write
//! a [request](crate::force) onto it, in the annotation `<manager>/force`, that names finalizers to strip and objects to give up,
//! each with its UID. It is a wish: what of it is admitted is for the operator's author to list, and that is nothing by default.
//!
//! ```
//! # use kube_custody::{custodian::Builder, force::{Allowed, Request}, object::Error};
//! # use kube_custody::ownership::proxy::GitTrackOwner as Parent;
//! # fn f(builder: Builder<Parent>) -> Result<Builder<Parent>, Error> {
//! let builder = builder.force(
//!     Allowed::nothing()
//!         .finalizer("legacy.example.com/cleanup", "Widget.example.com".parse()?)
//!         .abandon("ConfigMap".parse()?),
//! );
//! # Ok(builder)
//! # }
//! let request = Request::parse(
//!     r#"{"uid": "5c3b0c0e-parent", "reason": "the legacy operator was uninstalled",
//!         "finalizers": [{"object": "Widget.example.com shop/old", "uid": "77d1-widget", "finalizer": "legacy.example.com/cleanup"}],
//!         "abandon": [{"object": "ConfigMap shop/lost", "uid": "90aa-map"}]}"#,
//! )?;
//! assert_eq!((request.finalizers.len(), request.abandon.len()), (1, 1));
//! # Ok::<_, kube_custody::force::Error>(())
//! ```
//!
//! - *What it takes.* A finalizer is stripped only of the recorded incarnation of a child that carries the parent's marks and is
//!   being deleted already. What is given up is left as it is, with what it needs.
//! - *What is never stripped*, whoever lists it: the finalizers of the API server and the garbage collector, a definition's
//!   cleanup among them, and the manager's own.
//! - *How it shows.* It is recorded with its reason before it happens. [`Outcome::forced`](crate::custodian::Outcome) has what is
//!   new, for an event or an audit log; what is not admitted is in [`Outcome::notes`](crate::custodian::Outcome), with why.
//! - *Rights*: `patch` on the objects. Give the right to write the annotation to whom you would give the right to orphan things.
//!
//! Your own code gives objects up with [`Custodian::abandon`](crate::custodian::Custodian::abandon), without a list.
//!
//! ## Wake the parent when a child changes
//!
//! [`Custodian::wakeups`](crate::custodian::Custodian::wakeups) is a stream for `Controller::reconcile_on` (an unstable feature of
//! kube-runtime); [`Custodian::mapper`](crate::custodian::Custodian::mapper) is for `Controller::watches` (stable). Without either,
//! parents are looked at by timer, and everything still works. `Controller::owns` does not fit: it goes by the exact
//! version in an owner reference, misses deletions across a relist, and runs one cluster-scoped parent several times at
//! once.
//!
//! ## Manage children in another cluster, or as a tenant
//!
//! [`Builder::target`](crate::custodian::Builder::target); all about it in [`remote`](super::remote).
//!
//! ## Let parents wait for parents
//!
//! A [`Gate`](crate::gate::Gate) is told the kinds of parents that may name each other and how to read what each names; give it to
//! the custodians of all these kinds with `Builder::gate`. Parents that are deleted together then go in reverse order, each
//! after everything that depends on it is gone, and a parent creates only while what it depends on exists. Decide:
//!
//! - **Who may hold up whose deletion**: [`BlockPolicy`](crate::gate::BlockPolicy). Dependents in the same namespace only, unless
//!   set: whoever can write a dependent can otherwise keep somebody else's parent from going.
//! - **Whether a dependency has to be ready** before its dependents create: `gate::Builder::until_ready`.
//! - **Whether a parent can be told not to wait**: `gate::Builder::force`, and a [request](crate::force) that names the dependents.
//!
//! An operator with code of its own asks [`Gate::may_create`](crate::gate::Gate::may_create), with its finalizer on the parent, and
//! [`Gate::may_delete`](crate::gate::Gate::may_delete). With a gate, workloads are deleted with propagation Foreground, so that
//! a parent that is gone has no pods left.
//!
//! ## Only the order
//!
//! [`teardown`](crate::teardown): for an operator that keeps its own records and vouches for objects by their UIDs.
//!
//! ## Only the finalizer
//!
//! [`Finalizer::reconcile`](crate::finalizer::Finalizer::reconcile), with "not finished yet" as an outcome of its own.
//!
//! ## Only legal ownership
//!
//! [`LiveOwner`](crate::ownership::LiveOwner) and [`set_owner`](crate::ownership::set_owner): the error says which rule and which scopes.
//!
//! ## Only the record
//!
//! Any [`InventoryStore`](crate::inventory::InventoryStore). A store of your own runs the suite in `inventory::conformance`
//! (feature `conformance`).
//!
//! ## Uninstall the operator
//!
//! Its finalizers keep parents, proxies, records and held objects, so they have to go before it does.
//!
//! - *To leave everything running*: stop the operator, then call
//!   [`Custodian::uninstall`](crate::custodian::Custodian::uninstall) with `Uninstall::release()` until it is complete, once for each
//!   parent kind. Children, parents and whatever else lose the manager's keys and nothing else; proxies and records are
//!   deleted.
//! - *To remove everything*: `Uninstall::tear_down()`, with the operator's own objects named and `definitions(true)`. Parents go
//!   first, then the operator, then each definition of which no object is left.
//!
//! Either may be cut off and called again. What is left is named with the reason. Use an administrator's credentials: it
//! lists everything in the cluster to prove that nothing is left, and names each kind that it may not list.
//! [`Custodian::scan`](crate::custodian::Custodian::scan) does only that. Entries of managedFields under the manager's name
//! stay on children, as after any field manager; another tool that takes them over by server-side apply has to force.
//!
//! ## An operator that lives in a namespace that it manages
//!
//! A namespace that is deleted takes its Pods first. The operator is told to stop before its parents are deleted, and
//! afterwards nobody serves their finalizers: parents and namespace stay `Terminating`. No library can save an operator
//! from this; keep it in a namespace of its own. Where that cannot be, call
//! [`Custodian::drain`](crate::custodian::Custodian::drain) on SIGTERM, with a termination grace period that is long enough, and never
//! hold Pods or workloads to win time. [`Custodian::terminating`](crate::custodian::Custodian::terminating) tells which parents wait, since
//! when, and whether anybody has begun; the same `drain`, from a command, finishes or releases them.
