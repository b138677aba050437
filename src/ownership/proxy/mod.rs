//! Proxy owners: objects that stand in for a parent where it may not own its children itself.
//!
//! For a parent kind `Foo` there are two custom resources: `FooOwner` (namespaced) and `ClusterFooOwner`. A child in
//! namespace *n* is owned by the `FooOwner` in *n*, a cluster-scoped child by the `ClusterFooOwner`. Each proxy names its
//! parent in its [`ProxySpec`]; none refers to it by owner reference, so that no cascade from the parent passes
//! through. [`proxy_owners!`](crate::proxy_owners) declares the pair for any kind; [`GitTrackOwner`] and
//! [`ClusterGitTrackOwner`] are built in, with their manifests in `manifests/`.
//!
//! A proxy that is deleted with propagation `Foreground` takes its dependents with it at once, and one deleted with
//! `Orphan` strips their references, whatever finalizers it carries. The admission policy of
//! [`ProxyOwners::deletion_guard`] admits only `Background`.
//!
//! This module decides what proxies are called, what they hold, which are needed ([`Placer`]) and which child refers
//! to which. It must not know whether they exist: the caller creates, reads and removes them.

mod admission;
mod crd;
#[doc(hidden)]
pub mod macros;
mod name;
mod placement;
mod spec;

use std::fmt::Debug;

use k8s_openapi::{
    ClusterResourceScope, NamespaceResourceScope,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube_core::{CustomResourceExt, Resource};
use serde::{Serialize, de::DeserializeOwned};

pub(crate) use self::name::proxy_references;
pub use self::{
    name::{proxy_generation, proxy_name},
    placement::{Difference, Place, Placement, Placer, References, is_never_owned},
    spec::{ProxyKinds, ProxyParent, ProxySpec},
};
use super::Error;
use crate::object::{ResourceKind, Scope};

crate::proxy_owners! {
    group: "faros.pusher.com",
    version: "v1alpha1",
    /// Stands in for a GitTrack or ClusterGitTrack in one namespace.
    namespaced: pub GitTrackOwner / "gittrackowners",
    /// Stands in for a GitTrack or ClusterGitTrack in cluster scope.
    cluster: pub ClusterGitTrackOwner / "clustergittrackowners",
}

/// The type of a proxy owner. Declare it with [`proxy_owners!`](crate::proxy_owners).
pub trait ProxyOwner:
    Resource<DynamicType = ()> + CustomResourceExt + Serialize + DeserializeOwned + Clone + Debug + Send + Sync + 'static
{
    /// Where proxies of this type live.
    const SCOPE: Scope;

    /// A proxy, not yet created.
    fn new(metadata: ObjectMeta, spec: ProxySpec) -> Self;

    /// What it stands for.
    fn spec(&self) -> &ProxySpec;

    /// How requests for the type are spelled. The version is the one the type is declared with.
    #[must_use]
    fn resource() -> ResourceKind {
        ResourceKind::of::<Self>(Self::SCOPE)
    }
}

/// The pair of proxy owners of a parent kind: implemented by `(FooOwner, ClusterFooOwner)`.
pub trait ProxyOwners {
    /// The proxy for children in a namespace.
    type Namespaced: ProxyOwner + Resource<Scope = NamespaceResourceScope>;
    /// The proxy for cluster-scoped children.
    type Cluster: ProxyOwner + Resource<Scope = ClusterResourceScope>;

    /// The two kinds.
    ///
    /// # Errors
    /// [`Error::ProxyIdentity`] if the pair is declared with a group, kind or plural that the API server would refuse.
    fn kinds() -> Result<ProxyKinds, Error> {
        ProxyKinds::new(Self::Namespaced::resource(), Self::Cluster::resource())
    }

    /// The CustomResourceDefinitions of the two kinds, to be installed before the operator runs.
    ///
    /// They serialise to what `kubectl apply -f -` takes:
    ///
    /// ```
    /// use kube_custody::ownership::proxy::{ClusterGitTrackOwner, GitTrackOwner, ProxyOwners};
    ///
    /// for crd in <(GitTrackOwner, ClusterGitTrackOwner)>::crds() {
    ///     println!("{}", serde_json::to_string_pretty(&crd)?);
    /// }
    /// # Ok::<_, serde_json::Error>(())
    /// ```
    #[must_use]
    fn crds() -> [CustomResourceDefinition; 2] {
        [Self::Namespaced::crd(), Self::Cluster::crd()]
    }

    /// A ValidatingAdmissionPolicy and its binding, as manifests, that admit only propagation `Background` in a
    /// DELETE of a proxy.
    ///
    /// A DELETE that states no policy is admitted too (Background is the default of custom resources), unless the proxy
    /// carries the finalizer `foregroundDeletion` or `orphan` that would then count, and is not being deleted yet.
    /// `Foreground` and `Orphan` are refused for a proxy that is already being deleted as well: the API server
    /// reads the policy of every DELETE anew, and the last one counts. A repeated DELETE with Background always
    /// passes, and takes those finalizers off.
    ///
    /// The policy is not asked when proxies go because their CustomResourceDefinition is deleted.
    #[must_use]
    fn deletion_guard() -> [serde_json::Value; 2] {
        admission::deletion_guard(&Self::Namespaced::resource(), &Self::Cluster::resource())
    }
}

impl<N, C> ProxyOwners for (N, C)
where
    N: ProxyOwner + Resource<Scope = NamespaceResourceScope>,
    C: ProxyOwner + Resource<Scope = ClusterResourceScope>,
{
    type Namespaced = N;
    type Cluster = C;
}

#[cfg(test)]
mod tests {
    use super::*;

    type Pair = (GitTrackOwner, ClusterGitTrackOwner);

    /// Run with `UPDATE_MANIFESTS=1` after a change to write the files anew.
    fn check_in_step(file: &str, wanted: &[serde_json::Value]) {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests").join(file);
        if std::env::var_os("UPDATE_MANIFESTS").is_some() {
            let documents = wanted.iter().map(|manifest| serde_saphyr::to_string(manifest).unwrap());
            std::fs::write(&path, documents.collect::<Vec<_>>().join("---\n")).unwrap();
        }
        let found: Vec<serde_json::Value> =
            serde_saphyr::from_multiple(&std::fs::read_to_string(path).unwrap()).unwrap();
        assert_eq!(found, wanted);
    }

    #[test]
    fn the_shipped_manifests_are_in_step() {
        let crds = Pair::crds().map(|crd| serde_json::to_value(crd).unwrap());
        check_in_step("gittrack-owners.yaml", &crds);
        check_in_step("gittrack-owners-deletion-guard.yaml", &Pair::deletion_guard());
    }

    #[test]
    fn the_built_in_pair_is_a_pair() {
        let kinds = Pair::kinds().unwrap();
        assert_eq!(kinds.namespaced().plural, "gittrackowners");
        assert_eq!(kinds.cluster().api_version(), "faros.pusher.com/v1alpha1");
        assert_eq!(GitTrackOwner::crd_name(), "gittrackowners.faros.pusher.com");
    }

    mod elsewhere {
        crate::proxy_owners! {
            group: "example.com", version: "v1",
            namespaced: pub(super) FooOwner / "fooowners",
            cluster: pub(super) ClusterFooOwner / "clusterfooowners"
        }
    }

    #[test]
    fn the_macro_makes_a_pair_for_any_kind_that_reads_what_it_writes() {
        let kinds = <(elsewhere::FooOwner, elsewhere::ClusterFooOwner)>::kinds().unwrap();
        assert_eq!(kinds.namespaced().group_kind().to_string(), "FooOwner.example.com");
        let spec = ProxySpec::new(
            &crate::ownership::testing::manager(),
            &crate::ownership::testing::parent(),
            &crate::inventory::ClusterId(crate::ownership::testing::uid("c-1")),
        );
        let meta = ObjectMeta { name: Some("x".into()), namespace: Some("n".into()), ..ObjectMeta::default() };
        let owner = elsewhere::FooOwner::new(meta, spec);
        let json = serde_json::to_value(&owner).unwrap();
        assert_eq!(json["apiVersion"], "example.com/v1");
        assert_eq!(json["kind"], "FooOwner");
        assert_eq!(json["spec"]["parent"]["uid"], "p-1");
        assert_eq!(serde_json::from_value::<elsewhere::FooOwner>(json.clone()).unwrap(), owner);
        let error = serde_json::from_value::<GitTrackOwner>(json).unwrap_err();
        assert!(error.to_string().contains("expected faros.pusher.com/v1alpha1 GitTrackOwner"), "{error}");
    }
}
