//! How requests for a kind are spelled, and which cluster answers them.
//!
//! A [`Resolver`] turns group and kind into a served version, a plural and a scope by asking the API server, one
//! group at a time: `/apis/<group>` and its versions. A group whose backend is broken therefore neither hides nor
//! condemns any other. The module asks and caches; it draws no conclusion about objects. In particular a kind
//! that is not served proves nothing about objects of that kind: a restarting API server answers 200 without the
//! groups of custom resources, and a version that was switched off hides objects that still exist. The one look-up
//! that does prove a whole kind gone is [`Resolver::crd_of`] (or [`crd_of_kind`](Resolver::crd_of_kind)).

mod everything;
mod group;

use std::{
    collections::BTreeMap,
    fmt,
    future::Future,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::{TryStreamExt, future::join_all};
use k8s_openapi::{
    api::core::v1::Namespace,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::apis::meta::v1::{APIGroup, APIResourceList, APIVersions, ObjectMeta},
};
use kube_client::{Api, Client, core::PartialObjectMeta};
use serde::de::DeserializeOwned;

pub use self::everything::Everything;
use self::group::{Group, Listing, Lookup};
use crate::{
    answer::{Answer, Refusal},
    api::{Pages, first_page, pages},
    inventory::ClusterId,
    lock::lock,
    object::{self, GroupKind, ObjectId, ResourceKind, Scope, Uid, is_dns_subdomain},
};

/// Why the cluster could not be identified.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The id may not be read.
    #[error(
        "may not read namespace \"kube-system\", whose UID is the cluster's id; add to a ClusterRole of the operator: \
         {{apiGroups: [\"\"], resources: [namespaces], resourceNames: [kube-system], verbs: [get]}} ({refusal})"
    )]
    ClusterIdForbidden {
        /// The API server's refusal.
        #[source]
        refusal: Refusal,
    },
    /// The id could not be read for another reason.
    #[error("cannot read namespace \"kube-system\", whose UID is the cluster's id: {refusal}")]
    ClusterIdUnreadable {
        /// The API server's refusal.
        #[source]
        refusal: Refusal,
    },
    /// The namespace was answered without a UID.
    #[error("namespace \"kube-system\" came without a usable UID, so the cluster has no id: {source}")]
    ClusterIdMissing {
        /// What is wrong with the UID.
        source: object::Error,
    },
}

/// The id of the cluster behind `client`: the UID of its namespace `kube-system`, one GET.
///
/// # Errors
/// [`Error::ClusterIdForbidden`] names the permission that is missing.
pub async fn cluster_id(client: &Client) -> Result<ClusterId, Error> {
    let read = Api::<Namespace>::all(client.clone()).get_metadata("kube-system").await;
    let meta = read.map_err(|error| {
        let refusal = Refusal::of(&error);
        match refusal.answer() {
            Answer::Forbidden | Answer::Denied { .. } => Error::ClusterIdForbidden { refusal },
            _ => Error::ClusterIdUnreadable { refusal },
        }
    })?;
    let uid = Uid::new(meta.metadata.uid.as_deref().unwrap_or(""));
    uid.map(ClusterId).map_err(|source| Error::ClusterIdMissing { source })
}

/// How a kind is served.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Resolution {
    /// It is served so: the group's preferred version if that has the kind, else another.
    Served(ResourceKind),
    /// The server answered for the group, or said that there is no such group, and the kind is not in it.
    ///
    /// Never a proof that objects of the kind are gone, and never cached for good: the kind may come.
    NotServed,
    /// The server, or the part of it that serves the group, did not give a usable answer.
    Unavailable {
        /// What happened, in words for a person.
        reason: String,
    },
}

/// Every version that serves a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServedVersions {
    /// The versions that were seen to serve the kind, the preferred one first.
    pub known: Vec<ResourceKind>,
    /// Why there may be more: a version or the group did not answer.
    pub unavailable: Option<String>,
}

impl ServedVersions {
    /// Whether `version` was seen to serve the kind.
    #[must_use]
    pub fn contains(&self, version: &str) -> bool {
        self.known.iter().any(|r| r.version == version)
    }
}

/// What is known of the CustomResourceDefinition behind a kind.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Crd {
    /// It exists; it may be terminating.
    Present(Box<ObjectMeta>),
    /// It does not exist, and nothing else serves the kind: all its objects are gone.
    NotFound,
    /// Neither is proven, because the right to read it is missing.
    Forbidden {
        /// Which right, in the API server's words.
        reason: String,
    },
    /// Neither is proven.
    Unknown {
        /// Why, in words for a person.
        reason: String,
    },
}

/// Resolves kinds through discovery and remembers the answers. Cheap to clone; clones share their memory.
///
/// # Guarantees
/// - Only the group in question is asked. Callers that ask for one group at the same time share one look-up.
/// - Positive answers are kept until [`Resolver::refresh`]; negative ones only serve the callers that waited for them.
/// - A look-up ends after the timeout at the latest, also where the client retries for longer.
///
/// # Caveats
/// A remembered version may have been switched off since. Requests for it are then answered 404 without naming an
/// object ([`Answer::NoRoute`]), which means: `refresh`.
#[derive(Clone)]
pub struct Resolver {
    client: Client,
    timeout: Duration,
    groups: Arc<Mutex<BTreeMap<String, Arc<Slot>>>>,
}

/// One group's memory.
#[derive(Default)]
struct Slot {
    /// Held during a look-up, so that there is one at a time.
    turn: tokio::sync::Mutex<()>,
    memory: Mutex<Memory>,
}

#[derive(Default)]
struct Memory {
    /// Number of the last look-up that was started.
    started: u64,
    /// The last look-up that ended, with its number.
    last: Option<(u64, Arc<Lookup>)>,
    /// The last look-up that could be read: an outage does not wipe what was known.
    good: Option<Arc<Lookup>>,
}

/// Which look-ups may serve a caller.
#[derive(Clone, Copy)]
enum Freshness {
    /// One that ended after the caller asked.
    Joined,
    /// One that started after the caller asked.
    New,
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resolver").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

impl Resolver {
    /// How long one look-up may take unless set otherwise.
    pub const TIMEOUT: Duration = Duration::from_secs(10);

    /// A resolver that asks through `client`.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self { client, timeout: Self::TIMEOUT, groups: Arc::default() }
    }

    /// Sets how long one look-up may take.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How `kind` is served: from memory if known, else the group is asked.
    pub async fn resolve(&self, kind: &GroupKind) -> Resolution {
        let slot = self.slot(&kind.group);
        let known = lock(&slot.memory).good.clone().map(|lookup| lookup.resolve(kind));
        match known {
            Some(served @ Resolution::Served(_)) => served,
            _ => self.ask(&slot, &kind.group, Freshness::Joined).await.resolve(kind),
        }
    }

    /// How `kind` is served, asking the group again by a request sent after this call.
    pub async fn refresh(&self, kind: &GroupKind) -> Resolution {
        let slot = self.slot(&kind.group);
        self.ask(&slot, &kind.group, Freshness::New).await.resolve(kind)
    }

    /// Every version that serves `kind`: from memory if any is known, else the group is asked.
    pub async fn served_versions(&self, kind: &GroupKind) -> ServedVersions {
        let slot = self.slot(&kind.group);
        let known = lock(&slot.memory).good.clone().map(|lookup| lookup.served_versions(kind));
        match known {
            Some(versions) if !versions.known.is_empty() && versions.unavailable.is_none() => versions,
            _ => self.ask(&slot, &kind.group, Freshness::Joined).await.served_versions(kind),
        }
    }

    /// Reads the CustomResourceDefinition behind a kind, by its name `<plural>.<group>`.
    ///
    /// # Guarantees
    /// [`Crd::NotFound`] is a proof that every object of the kind is gone, because the API server removes a
    /// definition only after its objects. It is answered only if all of this holds: the server said in a `Status` that
    /// this CustomResourceDefinition does not exist; the group is not built into Kubernetes; and a look-up made
    /// afterwards shows that nothing else, such as an aggregated API server, serves the resource.
    ///
    /// # Caveats
    /// Objects that an aggregated API server keeps in a storage of its own, and whose APIService has been removed,
    /// look the same as those of a removed definition: the cluster has lost every trace of them.
    pub async fn crd_of(&self, kind: &ResourceKind) -> Crd {
        let unknown = |reason: String| Crd::Unknown { reason };
        if is_built_in(&kind.group) {
            return unknown(format!(
                "{} is built into Kubernetes and has no CustomResourceDefinition",
                kind.group_kind()
            ));
        }
        let name = kind.group_resource();
        if let Err(error) = ObjectId::new(CRD_GROUP, "CustomResourceDefinition", None, &name) {
            return unknown(error.to_string());
        }
        let api = Api::<CustomResourceDefinition>::all(self.client.clone());
        let read = self.within(api.get_metadata(&name)).await;
        let refusal = match read {
            Ok(found) => return Crd::Present(Box::new(found.metadata)),
            Err(Trouble::Refused(refusal)) => refusal,
            Err(Trouble::Slow(words)) => return unknown(words),
        };
        let definitions =
            ResourceKind::new(CRD_GROUP, "v1", "CustomResourceDefinition", "customresourcedefinitions", Scope::Cluster);
        if !refusal.answer().names(&definitions, &name) {
            let reason = format!("cannot read CustomResourceDefinition {name:?}: {refusal}");
            return match refusal.answer() {
                Answer::Forbidden => Crd::Forbidden { reason },
                _ => unknown(reason),
            };
        }
        let slot = self.slot(&kind.group);
        match &*self.ask(&slot, &kind.group, Freshness::New).await {
            Lookup::NoSuchGroup => Crd::NotFound,
            Lookup::Unavailable(reason) => unknown(reason.clone()),
            Lookup::Found(group) if group.serves_plural(&kind.plural) => {
                unknown(format!("{name:?} is served without a CustomResourceDefinition (aggregated, or just removed)"))
            }
            Lookup::Found(group) => group.unavailable().map_or(Crd::NotFound, unknown),
        }
    }

    /// Looks for the CustomResourceDefinition that defines `kind`, where the kind's plural is not known.
    ///
    /// # Guarantees
    /// [`Crd::NotFound`] proves what it does in [`crd_of`](Self::crd_of), and for the same reasons: no definition of the
    /// group names the kind (which cannot be changed once the definition is established), the group is not built in, and
    /// a look-up made afterwards shows that nothing serves the kind.
    ///
    /// Lists the metadata of all CustomResourceDefinitions, and reads those of the group: for emergencies only.
    pub async fn crd_of_kind(&self, kind: &GroupKind) -> Crd {
        let unknown = |reason: String| Crd::Unknown { reason };
        if is_built_in(&kind.group) {
            return unknown(format!("{kind} is built into Kubernetes and has no CustomResourceDefinition"));
        }
        let api = Api::<CustomResourceDefinition>::all(self.client.clone());
        let suffix = format!(".{}", kind.group);
        let mut pages = self.definitions();
        loop {
            let page = match self.within(pages.try_next()).await {
                Ok(Some(page)) => page,
                Ok(None) => break,
                Err(trouble) => return unknown(format!("CustomResourceDefinitions cannot be listed: {trouble}")),
            };
            let names = page.items.into_iter().filter_map(|found| found.metadata.name);
            for name in names.filter(|name| name.ends_with(&suffix)) {
                match self.within(api.get_opt(&name)).await {
                    Ok(Some(found)) if found.spec.group == kind.group && found.spec.names.kind == kind.kind => {
                        return Crd::Present(Box::new(found.metadata));
                    }
                    Ok(_) => {}
                    Err(trouble) => {
                        return unknown(format!("CustomResourceDefinition {name:?} cannot be read: {trouble}"));
                    }
                }
            }
        }
        match self.refresh(kind).await {
            Resolution::NotServed => Crd::NotFound,
            Resolution::Served(_) => {
                unknown(format!("{kind} is served without a CustomResourceDefinition (aggregated, or just made)"))
            }
            Resolution::Unavailable { reason } => unknown(reason),
        }
    }

    fn slot(&self, group: &str) -> Arc<Slot> {
        Arc::clone(lock(&self.groups).entry(group.to_owned()).or_default())
    }

    /// Looks the group up, or waits for somebody who does.
    async fn ask(&self, slot: &Slot, group: &str, freshness: Freshness) -> Arc<Lookup> {
        let since = {
            let memory = lock(&slot.memory);
            match freshness {
                Freshness::Joined => memory.last.as_ref().map_or(0, |(number, _)| *number),
                Freshness::New => memory.started,
            }
        };
        let _turn = slot.turn.lock().await;
        let number = {
            let mut memory = lock(&slot.memory);
            if let Some((number, lookup)) = &memory.last
                && *number > since
            {
                return Arc::clone(lookup);
            }
            memory.started += 1;
            memory.started
        };
        let lookup = Arc::new(self.look_up(group).await);
        let mut memory = lock(&slot.memory);
        memory.last = Some((number, Arc::clone(&lookup)));
        if !matches!(*lookup, Lookup::Unavailable(_)) {
            memory.good = Some(Arc::clone(&lookup));
        }
        lookup
    }

    async fn look_up(&self, group: &str) -> Lookup {
        let versions = match self.versions(group).await {
            Ok(Some(versions)) => versions,
            Ok(None) => return Lookup::NoSuchGroup,
            Err(reason) => return Lookup::Unavailable(reason),
        };
        let listings = versions.iter().map(|version| self.listing(group, version));
        Lookup::Found(Group { versions: join_all(listings).await })
    }

    /// The versions of a group, preferred first; `None` if there is no such group.
    async fn versions(&self, group: &str) -> Result<Option<Vec<String>>, String> {
        if group.is_empty() {
            let core = self.get::<APIVersions>("/api").await?;
            let core = core.ok_or_else(|| "404 at /api: this is no API server".to_owned())?;
            return group::ordered(core.versions.iter().map(String::as_str), None).map(Some);
        }
        if !is_dns_subdomain(group) {
            return Err(format!("{group:?} is not an API group"));
        }
        let document = self.get::<APIGroup>(&format!("/apis/{group}")).await?;
        document.map(|d| group::versions(group, &d)).transpose()
    }

    async fn listing(&self, group: &str, version: &str) -> Listing {
        let path = if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") };
        let resources = match self.get::<APIResourceList>(&path).await {
            Ok(Some(list)) => group::resources(group, version, &list),
            // The version was switched off a moment ago.
            Ok(None) => Ok(Vec::new()),
            Err(reason) => Err(reason),
        };
        resources.map_or_else(Listing::Unavailable, Listing::Resources)
    }

    /// Reads a discovery document; `None` if the server says that there is none.
    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<Option<T>, String> {
        let request = http::Request::get(path).body(Vec::new()).map_err(|e| format!("cannot ask for {path}: {e}"))?;
        match self.within(self.client.request::<T>(request)).await {
            Ok(document) => Ok(Some(document)),
            Err(Trouble::Slow(words)) => Err(format!("{path}: {words}")),
            Err(Trouble::Refused(refusal)) => match refusal.answer() {
                Answer::NoRoute | Answer::NotFound { .. } => Ok(None),
                Answer::Forbidden | Answer::Unauthorized => {
                    Err(format!("{path}: {refusal}; discovery is granted by the ClusterRole system:discovery"))
                }
                _ => Err(format!("{path}: {refusal}")),
            },
        }
    }

    /// Metadata of all CustomResourceDefinitions, page by page.
    fn definitions(&self) -> Pages<PartialObjectMeta<CustomResourceDefinition>> {
        pages(Api::all(self.client.clone()), first_page(None))
    }

    async fn within<T>(&self, request: impl Future<Output = kube_client::Result<T>>) -> Result<T, Trouble> {
        match tokio::time::timeout(self.timeout, request).await {
            Ok(answer) => answer.map_err(|error| Trouble::Refused(Refusal::of(&error))),
            Err(_) => Err(Trouble::Slow(format!(
                "no usable answer within {:?} (clients retry 429, 503 and 504 by themselves)",
                self.timeout
            ))),
        }
    }
}

/// Why a look-up has no document.
enum Trouble {
    Refused(Refusal),
    Slow(String),
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Slow(words) => f.write_str(words),
        }
    }
}

const CRD_GROUP: &str = "apiextensions.k8s.io";

/// Whether a group is compiled into the API server. Groups of custom resources have a dot by validation, and some
/// end in `k8s.io` too, so the built-in ones are listed.
pub(crate) fn is_built_in(group: &str) -> bool {
    const BUILT_IN: [&str; 19] = [
        "admissionregistration.k8s.io",
        "apidiscovery.k8s.io",
        CRD_GROUP,
        "apiregistration.k8s.io",
        "authentication.k8s.io",
        "authorization.k8s.io",
        "certificates.k8s.io",
        "coordination.k8s.io",
        "discovery.k8s.io",
        "events.k8s.io",
        "flowcontrol.apiserver.k8s.io",
        "internal.apiserver.k8s.io",
        "networking.k8s.io",
        "node.k8s.io",
        "rbac.authorization.k8s.io",
        "resource.k8s.io",
        "scheduling.k8s.io",
        "storage.k8s.io",
        "storagemigration.k8s.io",
    ];
    !group.contains('.') || BUILT_IN.contains(&group)
}

#[cfg(test)]
mod tests;
