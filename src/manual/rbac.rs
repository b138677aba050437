//! # The rights an operator needs
//!
//! [`rbac`](crate::rbac) lists them for a given configuration, each with its reason and with what is lost without it, as a table
//! and as Roles; a test runs whole lives under exactly what it lists, and under all but one of it. In short: `get` and `patch`
//! on the parents; `get`, `create`, `patch` and `delete` on children, proxies and inventories; `get` on the namespace
//! `kube-system`. What remains is optional:
//!
//! | without | falls back to | said in | costs |
//! |---|---|---|---|
//! | `list`, `watch` on a kind everywhere | one watch for each namespace | [`Custodian::watches`](crate::custodian::Custodian::watches) | a list and a watch for each namespace |
//! | `list`, `watch` on a kind in a namespace | asking, object by object | the outcome's notes, `watches` | a GET for each child in a reconcile; while waiting, GETs at growing intervals, of all objects together no more than about 200 a second; drift is seen by timer |
//! | `get` on `customresourcedefinitions` | doing without | the outcome's notes | should a definition be deleted, its objects cannot be proven gone, and hold their parent until it is back |
//! | `list` on a kind, and the inventory is lost | the namespaces of the ownership policy, else [`Hold::InventoryMissing`](crate::custodian::Hold) | the hold | somebody has to decide |
//! | `list` on a kind that the inventory names no more | nothing: the inventory is believed | the outcome's notes | an entry that somebody took out of it is not missed |
//! | `watch` on the parents in a [gate](crate::gate) | a timer | [`gate`](crate::gate) | up to five seconds until a parent that waits for another goes on; without `list` it waits until that is granted |
//! | `list` on the parents | a sweep of one namespace, else an error | [`Custodian::sweep`](crate::custodian::Custodian::sweep) | holds that a crash left stay |
//!
//! With Namespaces or CustomResourceDefinitions among the children, the look into them before their DELETE has rights of its own
//! (`list` on Pods, PersistentVolumeClaims, parents and children): [`Setup`](crate::rbac::Setup) lists them by the in-use policy.
//! Where children live in another cluster, or are managed as a tenant, [`Setup::elsewhere`](crate::rbac::Setup::elsewhere) splits
//! the table in two, one for each identity. What an administrator needs for an uninstall is a third:
//! [`Setup::rights_to_uninstall`](crate::rbac::Setup::rights_to_uninstall).
//!
//! Two things have no fallback. Without the id of the cluster another cluster's "not found" could not be told from this one's, so
//! the error says which rule is missing. And a right on children in a namespace that is gone together with that namespace leaves
//! them unknown: "forbidden" is no proof, the report names the right, and a ClusterRole that grants it lets the deletion go on.
//! Where children's namespaces bring the rights, turn
//! [`guard_proxies_elsewhere`](crate::custodian::Builder::guard_proxies_elsewhere) off: a finalizer there would outlive the
//! right to take it off.
//!
//! Missing rights are asked for again after 2 s, then ever more rarely, up to every five minutes, by all watches together once a
//! second at most and never once a parent; `watches` shows when they are back. Rights that are taken away while a watch is open
//! end it at its next renewal, after five minutes at most; from then on nothing that it had shown is relied upon.
//!
//! ## The operator's own namespace
//!
//! Run the operator in a namespace of its own, never in one with parents. A namespace that is deleted takes its pods first and
//! waits for nothing before that, so an operator in it is gone before its parents are, and their finalizers stay with nobody to
//! serve them (a workload must not be held either: everything else in the namespace would wait for it). The same goes for its
//! ServiceAccount and the bindings that give it its rights.
//!
//! Discovery (`/api`, `/apis`) is open to every authenticated user by default. Where the API server runs the admission plug-in
//! `OwnerReferencesPermissionEnforcement`, setting an owner reference needs `delete` on the child, which the operator has;
//! `blockOwnerDeletion` is never set, so no right on `finalizers` subresources is needed.
//!
//! To create RBAC objects the operator needs every right that they grant, or the verbs `bind` and `escalate`.
//!
//! ## Rights that come from the parent's namespace
//!
//! A Role and RoleBinding in the parent's namespace go when the namespace is deleted, in the middle of the teardown. Name them
//! in `Builder::hold`: a finalizer keeps them until the parent is let go. The right to take the holds off (`get` and `patch`
//! on exactly these Roles and RoleBindings, by `resourceNames`) must come from a ClusterRole, since the moment the
//! first of the two goes, it grants nothing any more.
//!
//! ## Children in another cluster, or made by another identity
//!
//! With [`Builder::target`](crate::custodian::Builder::target) the rights part. At home the operator needs those on the parent
//! kind, on the records, `get` on `kube-system`, and for what its targets are reached with:
//!
//! | resource at home | verbs | for |
//! |---|---|---|
//! | `secrets`, the named ones, by `resourceNames` where names are known | `get`, `patch` | reading credentials, holding them |
//! | `serviceaccounts`, by `resourceNames` | `impersonate` | acting as a tenant |
//! | `serviceaccounts`, `roles`, `rolebindings`, the named ones | `get`, `patch` | holding what a tenant's rights rest on |
//!
//! The target's identity needs those on the kinds of children, on the proxy kinds if they are used there, and on
//! `customresourcedefinitions`; behind another API server also `get` on its namespace `kube-system`:
//!
//! ```yaml
//! - apiGroups: [""]
//!   resources: [namespaces]
//!   resourceNames: [kube-system]
//!   verbs: [get]
//! ```
