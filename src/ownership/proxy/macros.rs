//! The macro that declares a pair of proxy owners, and what its expansion needs.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
pub use {k8s_openapi, kube_core, serde};

pub use super::crd::definition;
use super::{ProxyOwner, ProxySpec};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Written<'a> {
    api_version: String,
    kind: String,
    metadata: &'a ObjectMeta,
    spec: &'a ProxySpec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Read {
    api_version: Option<String>,
    kind: Option<String>,
    #[serde(default)]
    metadata: ObjectMeta,
    spec: ProxySpec,
}

/// Serialises any proxy.
pub fn serialize<K: ProxyOwner, S: Serializer>(proxy: &K, serializer: S) -> Result<S::Ok, S::Error> {
    Written {
        api_version: K::api_version(&()).into_owned(),
        kind: K::kind(&()).into_owned(),
        metadata: proxy.meta(),
        spec: proxy.spec(),
    }
    .serialize(serializer)
}

/// Deserialises any proxy. Items of lists come without a type; a type that is there has to be the proxy's.
pub fn deserialize<'de, K: ProxyOwner, D: Deserializer<'de>>(deserializer: D) -> Result<K, D::Error> {
    let read = Read::deserialize(deserializer)?;
    let (api_version, kind) = (K::api_version(&()), K::kind(&()));
    let differs = |found: Option<&str>, wanted: &str| found.is_some_and(|found| found != wanted);
    if differs(read.api_version.as_deref(), &api_version) || differs(read.kind.as_deref(), &kind) {
        return Err(D::Error::custom(format!("the object is of another type: expected {api_version} {kind}")));
    }
    Ok(K::new(read.metadata, read.spec))
}

/// Declares the pair of proxy owners for a parent kind: two types with their CustomResourceDefinitions.
///
/// The types implement [`ProxyOwner`](crate::ownership::proxy::ProxyOwner), and with it kube's `Resource` and
/// `CustomResourceExt`, and serde's traits; the tuple of both implements
/// [`ProxyOwners`](crate::ownership::proxy::ProxyOwners). Nothing else has to be a dependency of the crate that
/// uses the macro.
///
/// ```
/// use kube_custody::ownership::proxy::ProxyOwners;
///
/// kube_custody::proxy_owners! {
///     group: "example.com",
///     version: "v1alpha1",
///     namespaced: pub FooOwner / "fooowners",
///     cluster: pub ClusterFooOwner / "clusterfooowners",
/// }
///
/// let [crd, _] = <(FooOwner, ClusterFooOwner)>::crds();
/// assert_eq!(crd.metadata.name.as_deref(), Some("fooowners.example.com"));
/// ```
#[macro_export]
macro_rules! proxy_owners {
    (
        group: $group:literal,
        version: $version:literal,
        $(#[$namespaced_meta:meta])*
        namespaced: $namespaced_vis:vis $namespaced:ident / $namespaced_plural:literal,
        $(#[$cluster_meta:meta])*
        cluster: $cluster_vis:vis $cluster:ident / $cluster_plural:literal $(,)?
    ) => {
        $crate::proxy_owners! {
            @type $group, $version, $(#[$namespaced_meta])* $namespaced_vis $namespaced / $namespaced_plural,
            Namespaced, NamespaceResourceScope, "A proxy owner: stands in for a parent in one namespace."
        }
        $crate::proxy_owners! {
            @type $group, $version, $(#[$cluster_meta])* $cluster_vis $cluster / $cluster_plural,
            Cluster, ClusterResourceScope, "A proxy owner: stands in for a parent in cluster scope."
        }
    };
    (
        @type $group:literal, $version:literal, $(#[$meta:meta])* $vis:vis $name:ident / $plural:literal,
        $scope:ident, $resource_scope:ident, $doc:literal
    ) => {
        $(#[$meta])*
        #[doc = ""]
        #[doc = $doc]
        #[derive(Clone, Debug, PartialEq)]
        #[non_exhaustive]
        $vis struct $name {
            /// Standard object metadata.
            pub metadata: $crate::ownership::proxy::macros::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
            /// What the proxy stands for.
            pub spec: $crate::ownership::proxy::ProxySpec,
        }

        const _: () = {
            use ::std::borrow::Cow;
            use $crate::ownership::proxy::{
                ProxyOwner, ProxySpec,
                macros::{
                    self, k8s_openapi, kube_core,
                    serde::{Deserialize, Deserializer, Serialize, Serializer},
                },
            };
            use k8s_openapi::{
                apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
                apimachinery::pkg::apis::meta::v1::ObjectMeta,
            };

            impl kube_core::Resource for $name {
                type DynamicType = ();
                type Scope = k8s_openapi::$resource_scope;

                fn kind(_: &()) -> Cow<'_, str> {
                    Cow::Borrowed(stringify!($name))
                }

                fn group(_: &()) -> Cow<'_, str> {
                    Cow::Borrowed($group)
                }

                fn version(_: &()) -> Cow<'_, str> {
                    Cow::Borrowed($version)
                }

                fn plural(_: &()) -> Cow<'_, str> {
                    Cow::Borrowed($plural)
                }

                fn meta(&self) -> &ObjectMeta {
                    &self.metadata
                }

                fn meta_mut(&mut self) -> &mut ObjectMeta {
                    &mut self.metadata
                }
            }

            impl kube_core::CustomResourceExt for $name {
                fn crd() -> CustomResourceDefinition {
                    macros::definition(&<Self as ProxyOwner>::resource())
                }

                fn crd_name() -> &'static str {
                    concat!($plural, ".", $group)
                }

                fn api_resource() -> kube_core::ApiResource {
                    <Self as ProxyOwner>::resource().api_resource()
                }

                fn shortnames() -> &'static [&'static str] {
                    &[]
                }
            }

            impl ProxyOwner for $name {
                const SCOPE: $crate::object::Scope = $crate::object::Scope::$scope;

                fn new(metadata: ObjectMeta, spec: ProxySpec) -> Self {
                    Self { metadata, spec }
                }

                fn spec(&self) -> &ProxySpec {
                    &self.spec
                }
            }

            impl Serialize for $name {
                fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                    macros::serialize(self, serializer)
                }
            }

            impl<'de> Deserialize<'de> for $name {
                fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                    macros::deserialize(deserializer)
                }
            }
        };
    };
}
