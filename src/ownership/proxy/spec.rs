use kube_core::DynamicObject;
use serde::{Deserialize, Serialize};

use super::Place;
use crate::{
    inventory::ClusterId,
    manager::Manager,
    object::{self, GroupKind, ObjectId, ParentRef, ResourceKind, Scope, Uid},
    ownership::{BackPointer, Error, mark},
};

/// What a proxy owner stands for. It never changes: the definition's schema refuses it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ProxySpec {
    /// The domain of the manager that made the proxy.
    pub manager: String,
    /// The parent.
    pub parent: ProxyParent,
}

/// The parent that a proxy stands in for, with all that is needed to look it up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ProxyParent {
    /// Group and version, as it was served when the proxy was made; the version is a hint.
    pub api_version: String,
    /// The kind.
    pub kind: String,
    /// The namespace, unless the parent is cluster-scoped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The name.
    pub name: String,
    /// The incarnation.
    pub uid: Uid,
    /// The cluster that the parent lives in, which need not be the proxy's.
    pub cluster: ClusterId,
}

impl ProxySpec {
    /// The spec of a proxy for `parent`, which lives in `cluster`.
    #[must_use]
    pub fn new(manager: &Manager, parent: &ParentRef, cluster: &ClusterId) -> Self {
        let parent = ProxyParent {
            api_version: parent.resource().api_version(),
            kind: parent.id.kind().to_owned(),
            namespace: parent.id.namespace().map(ToOwned::to_owned),
            name: parent.id.name().to_owned(),
            uid: parent.uid.clone(),
            cluster: cluster.clone(),
        };
        Self { manager: manager.as_str().to_owned(), parent }
    }

    /// The spec of a proxy as it was read.
    ///
    /// # Errors
    /// [`Error::ProxySpec`] if it is not whole.
    pub fn read(proxy: &DynamicObject) -> Result<Self, Error> {
        let spec = proxy.data.get("spec").unwrap_or(&serde_json::Value::Null);
        Self::deserialize(spec).map_err(|error| Error::ProxySpec {
            proxy: proxy.metadata.name.clone().unwrap_or_default(),
            problem: error.to_string(),
        })
    }

    /// Whether a proxy with this spec stands in for this incarnation of `parent`, in the version-free sense.
    #[must_use]
    pub fn stands_for(&self, manager: &Manager, parent: &ParentRef, cluster: &ClusterId) -> bool {
        self.manager == manager.as_str()
            && self.parent.id().is_ok_and(|id| id == parent.id)
            && self.parent.uid == parent.uid
            && self.parent.cluster == *cluster
    }
}

impl ProxyParent {
    /// The parent's identity.
    ///
    /// # Errors
    /// [`object::Error`] if a part is not legal: then somebody else wrote it.
    pub fn id(&self) -> Result<ObjectId, object::Error> {
        ObjectId::new(
            object::group_of(&self.api_version),
            &self.kind,
            self.namespace.as_deref().filter(|n| !n.is_empty()),
            &self.name,
        )
    }
}

/// The two proxy kinds of a pair, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyKinds {
    namespaced: ResourceKind,
    cluster: ResourceKind,
}

impl ProxyKinds {
    /// A pair of kinds, as served.
    ///
    /// # Errors
    /// [`Error::ProxyScope`] if one has the wrong scope, [`Error::ProxyIdentity`] if one is not legal.
    pub fn new(namespaced: ResourceKind, cluster: ResourceKind) -> Result<Self, Error> {
        for (resource, wanted) in [(&namespaced, Scope::Namespaced), (&cluster, Scope::Cluster)] {
            let kind = resource.group_kind();
            if resource.scope != wanted {
                return Err(Error::ProxyScope { kind, found: resource.scope, wanted });
            }
            GroupKind::new(&*kind.group, &*kind.kind)
                .map_err(|source| Error::ProxyIdentity { kind, source: Box::new(source) })?;
        }
        Ok(Self { namespaced, cluster })
    }

    /// The kind of the namespaced proxy.
    #[must_use]
    pub fn namespaced(&self) -> &ResourceKind {
        &self.namespaced
    }

    /// The kind of the cluster-scoped proxy.
    #[must_use]
    pub fn cluster(&self) -> &ResourceKind {
        &self.cluster
    }

    /// The kind of the proxy in `place`.
    #[must_use]
    pub fn resource(&self, place: &Place) -> &ResourceKind {
        match place {
            Place::Cluster => &self.cluster,
            Place::Namespace(_) => &self.namespaced,
        }
    }

    /// Whether `id` is of one of the two kinds.
    #[must_use]
    pub fn is_proxy(&self, id: &ObjectId) -> bool {
        [&self.namespaced, &self.cluster].iter().any(|kind| id.is(&kind.group, &kind.kind))
    }

    /// The identity of the proxy called `name` in `place`.
    ///
    /// # Errors
    /// [`Error::ProxyIdentity`] if the place or the name is not legal.
    pub fn id(&self, place: &Place, name: &str) -> Result<ObjectId, Error> {
        let resource = self.resource(place);
        ObjectId::new(&resource.group, &resource.kind, place.namespace(), name)
            .map_err(|source| Error::ProxyIdentity { kind: resource.group_kind(), source: Box::new(source) })
    }

    /// The proxy `id`, ready to be created: spec, marks and, if `finalizer`, the manager's proxy finalizer, which has to
    /// be in the create, because one that is added later can lose a race with a DELETE. It has no owner reference.
    ///
    /// # Errors
    /// [`Error::UidNotALabel`] if the parent's UID cannot be a label's value.
    pub fn object(
        &self,
        manager: &Manager,
        parent: &ParentRef,
        cluster: &ClusterId,
        id: &ObjectId,
        finalizer: bool,
    ) -> Result<DynamicObject, Error> {
        let place = Place::of(id);
        let spec = ProxySpec::new(manager, parent, cluster);
        let mut proxy = DynamicObject::new(id.name(), &self.resource(&place).api_resource())
            .data(serde_json::json!({ "spec": spec }));
        proxy.metadata.namespace = place.namespace().map(ToOwned::to_owned);
        proxy.metadata.finalizers = finalizer.then(|| vec![manager.proxy_finalizer()]);
        mark(manager, &BackPointer::new(parent, id), &mut proxy.metadata)?;
        Ok(proxy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ownership::{
        judge,
        proxy::{ClusterGitTrackOwner, GitTrackOwner, ProxyOwner, ProxyOwners},
        testing::{manager, parent, uid},
    };

    fn kinds() -> ProxyKinds {
        <(GitTrackOwner, ClusterGitTrackOwner)>::kinds().unwrap()
    }

    fn cluster() -> ClusterId {
        ClusterId(uid("c-1"))
    }

    #[test]
    fn the_kinds_of_a_pair_cannot_be_swapped_or_illegal() {
        let swapped = ProxyKinds::new(ClusterGitTrackOwner::resource(), GitTrackOwner::resource());
        assert!(matches!(swapped, Err(Error::ProxyScope { .. })));
        let bad = ResourceKind { group: "Bad_Group".into(), ..GitTrackOwner::resource() };
        let illegal = ProxyKinds::new(bad, ClusterGitTrackOwner::resource());
        assert!(matches!(illegal, Err(Error::ProxyIdentity { .. })));
    }

    #[test]
    fn c07_a_proxy_is_created_with_finalizer_and_marks_and_without_owner() {
        let id = kinds().id(&Place::Namespace("b".into()), "track-x").unwrap();
        let proxy = kinds().object(&manager(), &parent(), &cluster(), &id, true).unwrap();
        assert_eq!(proxy.metadata.finalizers, Some(vec![manager().proxy_finalizer()]));
        assert_eq!(proxy.metadata.owner_references, None);
        assert!(judge(&manager(), &parent(), &id, &proxy.metadata).is_ours());
        assert_eq!(ObjectId::of(&proxy).unwrap(), id);

        let spec = ProxySpec::read(&proxy).unwrap();
        assert_eq!(spec.parent.id().unwrap(), parent().id);
        assert!(spec.stands_for(&manager(), &parent(), &cluster()));
        let typed: GitTrackOwner = proxy.try_parse().unwrap();
        assert_eq!(typed.spec(), &spec);

        let id = kinds().id(&Place::Cluster, "track-x").unwrap();
        let bare = kinds().object(&manager(), &parent(), &cluster(), &id, false).unwrap();
        assert_eq!((bare.metadata.finalizers, bare.metadata.namespace), (None, None));
    }

    #[test]
    fn s50_a_spec_stands_for_one_incarnation_in_one_cluster() {
        let spec = ProxySpec::new(&manager(), &parent(), &cluster());
        let mut later = parent();
        later.version = "v2".into();
        assert!(spec.stands_for(&manager(), &later, &cluster()), "a version is a hint");
        later.uid = uid("p-2");
        assert!(!spec.stands_for(&manager(), &later, &cluster()));
        assert!(!spec.stands_for(&manager(), &parent(), &ClusterId(uid("c-2"))));
        assert!(!spec.stands_for(&Manager::new("other.example.com").unwrap(), &parent(), &cluster()));
    }

    #[test]
    fn an_incomplete_spec_is_an_error_that_names_the_proxy() {
        let id = kinds().id(&Place::Cluster, "track-x").unwrap();
        let mut proxy = kinds().object(&manager(), &parent(), &cluster(), &id, true).unwrap();
        proxy.data["spec"]["parent"]["uid"] = "".into();
        match ProxySpec::read(&proxy) {
            Err(Error::ProxySpec { proxy, .. }) => assert_eq!(proxy, "track-x"),
            other => panic!("{other:?}"),
        }
        proxy.data = serde_json::Value::Null;
        assert!(ProxySpec::read(&proxy).is_err());
    }
}
