//! # The rights an operator needs
//!
//! | resource | verbs | for |
//! |---|---|---|
//! | the parent kind | `get`, `list`, `watch`, `patch` | the controller; finalizers and the group-kinds annotation |
//! | the parent kind's `/status` | `patch` | conditions, if the operator publishes them |
//! | each kind of children | `get`, `create`, `patch`, `delete` | bringing, judging and removing them |
//! | each kind of children | `list`, `watch` | waking and waiting by watch; without them objects are polled, one by one |
//! | the two proxy kinds | `get`, `list`, `watch`, `create`, `patch`, `delete` | proxy owners, if used |
//! | `configmaps` where the records live | `get`, `list`, `create`, `patch`, `delete` | the default [store](crate::inventory::ConfigMapStore) |
//! | `namespaces`, name `kube-system` | `get` | the id of the cluster |
//! | `customresourcedefinitions` | `get` | proof that a kind is gone with all its objects |
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
