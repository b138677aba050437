//! # The order of things
//!
//! An edge *A → B* reads "A depends on B": B is applied before A and deleted after A. **Required** edges are declared, and
//! always hold. **Preferred** edges are found by [rules](crate::graph::rules); they give an order that nobody has to
//! declare, and can be given up. Both are on record, so that a teardown knows them without manifests.
//!
//! ## What rules go by, and what they never do
//!
//! By the manifests of the set. RBAC is read as the API server reads it: aggregated ClusterRoles, wildcards, resource names,
//! subresources, groups of ServiceAccounts, ClusterRoles that a RoleBinding confines to its namespace. Of the live cluster,
//! rules see the roles outside of the set that bindings of the set name, such as `cluster-admin`: at most one GET for each,
//! kept for five minutes. A role that may not be read is a note in the outcome. No rule makes anything wait for an
//! object outside of the set, which may be somebody else's to bring, and no content of a Secret is ever read.
//!
//! ## Ranks
//!
//! Where edges form a cycle, the one of the lowest rank gives way, of equal ones the one between the greatest identities;
//! never more than necessary, and the same whatever the order of the manifests.
//!
//! | rank | rule | A depends on B | why it ranks there |
//! |---|---|---|---|
//! | 1000 | `in-namespace` | object → its Namespace | deleting B deletes A, in no order |
//! | 900 | `of-definition` | custom resource → its definition | as above |
//! | 850 | `of-api-service` | object of an aggregated API → its APIService | without B nothing can be asked about A |
//! | 800 | `binds` | binding → role, accounts; aggregated role → its parts | A means nothing without B |
//! | 750 | `pod-template` | workload → ServiceAccount, Secrets, ConfigMaps, claims, classes | A's pods don't start without B |
//! | 700 | `account-rights` | workload → bindings and roles of its account | A's pods start, and can do nothing |
//! | 650 | `impersonates` | custom resource → the account at `spec.serviceAccountName`, its rights | A can't be cleaned up without B |
//! | 600 | `served-by` | custom resource → the workload that serves it | as above, but found by what somebody *may* do |
//! | 550 | `answered-by` | webhook configuration, APIService, definition → Service → workload | everything that A covers is refused without B; A can always be deleted |
//! | 500 | `stored-on` | claim → StorageClass, volume | only cleaning up suffers |
//! | 450 | `scales` | autoscaler → what it scales | A works against the teardown |
//! | 400 | `routes-to` | Ingress → backends, TLS Secrets, class | A answers with errors for a while |
//! | 350 | `guarded-by` | workload → NetworkPolicy, PodDisruptionBudget, ResourceQuota, LimitRange | A is less guarded for a while |
//! | 300 | `covered-by-webhook` | object → webhook configuration | often covers what its own webhook runs on, and has to give way there |
//! | 100 | `served-by-wildcard` | custom resource that nothing serves by name → workload that may write everything | a guess |
//!
//! ## Ways out
//!
//! What was given up is listed in [`Outcome::given_up`](crate::custodian::Outcome), with rule, evidence and reason.
//!
//! 1. **Cycles** resolve themselves, as above.
//! 2. **By decision.** One object: the annotation `<manager>/waive` in its manifest, with names of rules, `*`, or objects in the
//!    form of `depends-on` references, separated by commas; `Desired::waive` and `Desired::waive_rule` in code. Everything:
//!    [`Rules::waive`](crate::graph::Rules::waive), or [`Rules::without`](crate::graph::Rules::without), which does not even
//!    look. A waiver never lifts a declared edge.
//! 3. **A dead webhook.** When the API server answers three times that a webhook cannot be called, the preferred edges to the
//!    configuration that names it end, and the configuration goes first. Which configuration that is, is read from those
//!    of the plan as they live (one GET each); one that is not in the plan is nobody's to delete, and the object stays blocked
//!    with the server's words. A required edge to the configuration holds all the same.
//!
//! ## Rules of your own
//!
//! [`Rule`](crate::graph::Rule) shows one whole. Use `prefer_within`, or look the target up in the set, unless an apply is
//! really to wait until somebody else brings it.
