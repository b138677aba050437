//! # Children in another cluster, or made by somebody else
//!
//! Parents, inventories, finalizers and holds live in the cluster that the custodian was built for: *home*. With
//! [`Builder::target`](crate::custodian::Builder::target) the author says, parent by parent, where the children live:
//!
//! | target | children are | whose rights count | cluster on record |
//! |---|---|---|---|
//! | [`Target::home`](crate::custodian::Target::home) | at home | the operator's | home |
//! | [`Target::impersonating`](crate::custodian::Target::impersonating) | at home | the impersonated identity's | home |
//! | [`Target::remote`](crate::custodian::Target::remote) | behind another API server | those of its client | the other one |
//!
//! Everything about children goes through the target's client: discovery, creates, applies, watches, deletes, the search
//! for lost children. The ownership policy is about namespaces there: `SameNamespace` admits the namespace of the target
//! that is called as the parent's.
//!
//! ## Which cluster it is
//!
//! A 404 from the wrong cluster looks like success. So a remote cluster is identified by the UID of its namespace
//! `kube-system`, not by its address: in every reconcile before anything is done, and again before anything is recorded as
//! gone. The id is in the inventory from the start, and in an annotation of the parent
//! ([`Manager::cluster_annotation`](crate::manager::Manager::cluster_annotation)), for the case that the inventory is lost.
//!
//! - Another cluster answers: [`Hold::OtherCluster`](crate::custodian::Hold). Nothing is sent but that one question,
//!   nothing is forgotten, and it goes on as soon as the recorded cluster answers.
//! - No cluster answers, the credentials are refused, the hook fails, the id may not be read:
//!   [`Hold::TargetUnavailable`](crate::custodian::Hold), condition `Reconciling` with that reason. It is tried again after 30
//!   seconds, or when the controller looks at the parent for other reasons: watch the Secrets if it is to be sooner.
//! - The children are to move to another cluster: a record names one cluster, so empty the desired set (and allow that, with
//!   [`PruneGuard::allow_empty`](crate::custodian::PruneGuard::allow_empty)) until it is pruned, then change the target. Or
//!   delete the parent and make it anew.
//! - The cluster is gone for good: [`Custodian::abandon_all`](crate::custodian::Custodian::abandon_all), on record, and the
//!   parent's finalizers leave together. This is nobody's to decide but a person's: an outage looks the same.
//!
//! A parent whose record is empty, or that never had one, is let go without a target.
//!
//! ## Credentials
//!
//! Name what the target is reached with by [`Target::hold`](crate::custodian::Target::hold): the Secret with the kubeconfig, or
//! the ServiceAccount, Role and RoleBinding of the tenant. It gets a finalizer before the first child is created, so
//! deleting it together with the parent, or with the namespace of both, leaves it readable until the children are proven
//! gone. Two consequences:
//!
//! - The hook has to read a Secret that is terminating like any other.
//! - Rotate by changing the Secret. Deleted and created anew, it would be stuck in between: the new one cannot be created
//!   before the old one is let go.
//!
//! Parents whose targets have the same [`TargetKey`](crate::custodian::TargetKey) share one client, with its watches and its
//! discovery. [`TargetKey::of_secret`](crate::custodian::TargetKey::of_secret) makes the content the key's generation: rotated
//! credentials replace the client for all its parents, labels and holds do not. With keys of your own, tell tenants apart:
//! whoever shares a key shares the client. A client that no parent uses any more is dropped with its watches.
//!
//! [`custodian::kubeconfig`](crate::custodian::kubeconfig) reads a kubeconfig that somebody else wrote. It refuses programs to
//! run and files to read, which would be run and read by the operator. The client is built by the application, so that TLS
//! is its choice; set `Config::read_timeout` or a proxy there. Errors of parsers may quote what they parse: say in an
//! [`Unavailable`](crate::custodian::Unavailable) what is wrong in words of your own.
//!
//! ## Tenants
//!
//! An impersonating target bounds a parent by the rights of its tenant, in deletion too. Three things to know:
//!
//! - What the tenant may not create stays on record all the same, as about to be created. If the tenant may not `get` it
//!   either, nobody can prove for him that it is not there, and the parent's deletion names it as
//!   [`Forbidden`](crate::teardown::Reason::Forbidden). Grant `get`, or [`abandon`](crate::custodian::Custodian::abandon) it.
//! - Rights that are taken away while children exist are missed in the teardown. It waits for them, and says which.
//! - The tenant's identity needs no rights on parents, records, holds or `kube-system`.
//!
//! ## Proxy owners
//!
//! Not used where children live elsewhere, unless [`Target::proxies`](crate::custodian::Target::proxies) says so: their
//! definitions have to be installed in each target cluster, and an impersonated identity needs rights on them. Ownership
//! then rests on inventory and finalizer, as for a custodian without proxies. A proxy in another cluster names the parent
//! and the parent's cluster, and carries no owner reference: the garbage collector there would look for the parent in its own
//! cluster, not find it, and delete. Two home clusters whose parents are called alike, with one manager name, cannot both
//! use proxies in one target cluster: their proxies would have the same names, and the second is told so. The back-pointers of
//! children in another cluster name the parent's; an uninstall of a resident operator with the same manager name leaves them
//! alone.
