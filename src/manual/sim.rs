//! # Tests without a cluster
//!
//! [`sim`](crate::sim) is a control plane in memory behind an ordinary [`Client`](kube_client::Client): an operator
//! is tested as it is, with its watches, its finalizers and its server-side applies. It needs the feature `sim`, in
//! `[dev-dependencies]`, and nothing else.
//!
//! ## How to use it
//!
//! Write tests as `#[tokio::test(start_paused = true)]`. The clock then stands still as long as any task can go on, and
//! jumps when all wait: an hour of requeues takes a millisecond, and nothing depends on the speed of the machine.
//!
//! - **Let it run.** Spawn the operator with [`client_as`](crate::sim::Cluster::client_as), act as a user with
//!   [`client`](crate::sim::Cluster::client), and wait with [`settle`](crate::sim::Cluster::settle), which lets
//!   operator and controllers work until nothing is written any more.
//! - **Go step by step.** [`pause`](crate::sim::Cluster::pause) a controller and take its steps with
//!   [`step_of`](crate::sim::Cluster::step_of), to see what an operator does between two of them. The garbage collector
//!   takes in one event, or judges one object, a step; the namespace controller empties one kind a step.
//! - **Let chance decide.** [`seed`](crate::sim::ClusterBuilder::seed) decides in which order the controllers work.
//!   Run a test over a range of seeds; a seed that fails fails again. A `Controller` of kube-runtime has chance of its
//!   own (its maps are hashed with a random key), so that the order of *its* reconciles differs from run to run; call
//!   the reconcile function yourself where that matters.
//! - **Make it hard.** [`inject`](crate::sim::Cluster::inject) refuses calls, loses answers, kills clients;
//!   [`deny`](crate::sim::Cluster::deny) and [`forbid`](crate::sim::Cluster::forbid) are policies and missing rights;
//!   [`close_watches`](crate::sim::Cluster::close_watches) and [`compact`](crate::sim::Cluster::compact) tear holes
//!   into watches; [`restart`](crate::sim::Cluster::restart) lets the garbage collector forget all it knew, which is
//!   when illegal owner references take effect.
//! - **Look.** [`object`](crate::sim::Cluster::object) and [`objects`](crate::sim::Cluster::objects) read what is stored
//!   without a call; [`audit`](crate::sim::Cluster::audit) has every call with its answer.
//!
//! ## What it does as the real one
//!
//! Requests, answers, and the words of refusals are those of the API server 1.36: create, update, all kinds of patches,
//! server-side apply with managed fields and conflicts, dry runs, preconditions, finalizers, generation, pages of lists,
//! selectors, watches with bookmarks and streaming lists, discovery. The deletion of objects, collections, namespaces and
//! definitions, and the garbage collector with its graph and its blind spots, follow the upstream code. Tests of this
//! crate run the same programs on a real control plane and compare.
//!
//! ## What it does not model
//!
//! - **The content of built-in kinds.** Neither defaults (a Deployment has no `replicas` unless you say so) nor
//!   validation beyond metadata; a field that does not exist is stored. In strict field validation everything passes.
//!   Custom resources are pruned, defaulted and validated, except for `pattern`, `format`, `oneOf` and the like, and
//!   CEL rules.
//! - **Other controllers.** No Deployment makes a ReplicaSet, no pod runs, no Endpoints appear, no ServiceAccount is
//!   made. Write what they would write.
//! - **Subresources** other than `status` and the `finalize` of namespaces: no `scale`, no evictions, no logs, no
//!   tokens. Reviews (SubjectAccessReview and its kind) are not served.
//! - **RBAC, webhooks and policies as objects.** They are stored and have no effect. Say the same with
//!   [`forbid`](crate::sim::Cluster::forbid) and [`deny`](crate::sim::Cluster::deny).
//! - **Several versions.** All versions of a definition hold the same fields (conversion `None`); a field that only one of
//!   their schemas knows is not dropped on the way out. Of built-in kinds one version is served. `v1` and
//!   `events.k8s.io/v1` Events are two kinds here, not two views of one.
//! - **The schema of built-in kinds in applies.** Which lists merge by which key is known for the common ones (containers,
//!   ports, environment, volumes, conditions, owner references); others count as one value.
//! - **How often a cause is repeated.** The server checks some things twice or three times, and lists their causes as
//!   often; the sim does so for finalizers, UIDs and deletion marks only. A null in the metadata of an applied custom
//!   resource is stored by the server until the next write; the sim drops it at once.
//! - **Races inside of one request.** Each request, and each step of the garbage collector from its GET to its DELETE, is
//!   carried out as a whole. The known race between a DELETE and the first finalizer (kubernetes #77988) can't happen.
//! - **Time-outs of definitions.** While objects hold a definition, its condition does not turn to `InstanceDeletionCheck`
//!   for a moment each minute.
//! - **Protobuf, tables, YAML bodies.** JSON only; `kubectl` is not a client.
