use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use super::{Error, check_reference};
use crate::object::{LiveRef, ObjectId, ResourceKind, Scope, Uid, group_of};

/// An owner as it was read live: the only thing a reference can be made from.
///
/// It names an incarnation, a served version, and an object that is not being deleted. It is a reading of one
/// moment: make a new one in each reconcile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveOwner {
    owner: LiveRef,
    api_version: String,
}

impl LiveOwner {
    /// The owner that `meta`, as answered by the API server for `resource`, describes.
    ///
    /// `resource` says which version is served today: take it from discovery, or from the type that was read.
    ///
    /// # Errors
    /// [`Error::OwnerIdentity`], [`Error::NotLive`] if there is no UID, [`Error::NoServedVersion`], and
    /// [`Error::OwnerTerminating`] if the owner is being deleted.
    pub fn read(resource: &ResourceKind, meta: &ObjectMeta) -> Result<Self, Error> {
        let kind = resource.group_kind();
        let id = ObjectId::from_meta(&kind, meta)
            .and_then(|id| id.check_scope(resource.scope).map(|()| id))
            .map_err(|source| Error::OwnerIdentity { kind, source: Box::new(source) })?;
        let uid = Uid::of(meta).ok_or_else(|| Error::NotLive { object: id.clone() })?;
        if resource.version.is_empty() {
            return Err(Error::NoServedVersion { owner: id });
        }
        let owner = LiveRef::new(id, uid);
        if meta.deletion_timestamp.is_some() {
            return Err(Error::OwnerTerminating { owner });
        }
        Ok(Self { owner, api_version: resource.api_version() })
    }

    /// The owner that a typed object, as read live, is.
    ///
    /// # Errors
    /// Those of [`LiveOwner::read`].
    pub fn of<K: kube_core::Resource<DynamicType = ()>>(object: &K) -> Result<Self, Error> {
        let meta = object.meta();
        let scope = match meta.namespace.as_deref() {
            None | Some("") => Scope::Cluster,
            Some(_) => Scope::Namespaced,
        };
        Self::read(&ResourceKind::of::<K>(scope), meta)
    }

    /// Which object, and which incarnation.
    #[must_use]
    pub fn owner(&self) -> &LiveRef {
        &self.owner
    }

    /// A reference to this owner, for `child`.
    ///
    /// In a server-side apply send it as the only item of `metadata.ownerReferences`: the list is a map keyed by `uid`,
    /// so the references of others stay. An apply does *not* replace a reference to an earlier incarnation.
    ///
    /// # Errors
    /// [`Error::Illegal`] if Kubernetes would not honour it.
    pub fn reference(&self, child: &ObjectId, options: ReferenceOptions) -> Result<OwnerReference, Error> {
        check_reference(&self.owner.id, child).map_err(Error::Illegal)?;
        Ok(OwnerReference {
            api_version: self.api_version.clone(),
            kind: self.owner.id.kind().to_owned(),
            name: self.owner.id.name().to_owned(),
            uid: self.owner.uid.as_str().to_owned(),
            controller: options.controller.then_some(true),
            block_owner_deletion: options.block_owner_deletion.then_some(true),
        })
    }
}

/// How to refer to an owner. By default neither flag is set and only references to the same incarnation are replaced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReferenceOptions {
    /// Set `controller`: at most one reference of an object may.
    pub controller: bool,
    /// Set `blockOwnerDeletion`: a foreground deletion of the owner waits for the child. Where the admission plug-in
    /// `OwnerReferencesPermissionEnforcement` is on, this needs `update` on the owner's `finalizers`.
    pub block_owner_deletion: bool,
    /// Replace references to earlier incarnations of the owner (same group, kind and name, another UID) too.
    /// Only for a child that is known to be the parent's, as after a restore from a backup.
    pub relink: bool,
}

impl ReferenceOptions {
    /// Sets [`controller`](Self::controller).
    #[must_use]
    pub fn controller(mut self, controller: bool) -> Self {
        self.controller = controller;
        self
    }

    /// Sets [`block_owner_deletion`](Self::block_owner_deletion).
    #[must_use]
    pub fn block_owner_deletion(mut self, block: bool) -> Self {
        self.block_owner_deletion = block;
        self
    }

    /// Sets [`relink`](Self::relink).
    #[must_use]
    pub fn relink(mut self, relink: bool) -> Self {
        self.relink = relink;
        self
    }
}

/// What [`set_owner`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReferenceChange {
    /// The reference was there as wanted.
    Unchanged,
    /// The reference was added.
    Added,
    /// References to the owner that were spelled otherwise (an unserved version, a wrong kind or name, other flags,
    /// duplicates, with `relink` an earlier UID) became this one.
    Replaced,
}

fn same_group_kind(reference: &OwnerReference, id: &ObjectId) -> bool {
    id.is(group_of(&reference.api_version), &reference.kind)
}

/// Whether `reference` names `owner`: by group, kind and UID, in whatever version.
#[must_use]
pub fn refers_to(reference: &OwnerReference, owner: &LiveRef) -> bool {
    reference.uid == owner.uid.as_str() && same_group_kind(reference, &owner.id)
}

/// Absent and `false` are the same to Kubernetes.
pub(super) fn same_reference(a: &OwnerReference, b: &OwnerReference) -> bool {
    let flags = |r: &OwnerReference| (r.controller == Some(true), r.block_owner_deletion == Some(true));
    (&a.api_version, &a.kind, &a.name, &a.uid, flags(a)) == (&b.api_version, &b.kind, &b.name, &b.uid, flags(b))
}

fn check_is_meta_of(child: &ObjectId, meta: &ObjectMeta) -> Result<(), Error> {
    let namespace = meta.namespace.as_deref().filter(|n| !n.is_empty());
    let name = meta.name.as_deref().unwrap_or_else(|| child.name());
    if name == child.name() && (namespace.is_none() || namespace == child.namespace()) {
        return Ok(());
    }
    Err(Error::WrongObject { child: child.clone(), found: format!("{}/{name}", namespace.unwrap_or("")) })
}

/// Makes `meta`, the metadata of `child`, refer to `owner` exactly once.
///
/// A reference with the owner's UID is replaced, whatever else it says; with
/// [`relink`](ReferenceOptions::relink) so is one with its group, kind and name and another UID. Otherwise one is
/// added. No other reference is changed, moved or removed.
///
/// # Errors
/// [`Error::Illegal`], [`Error::WrongObject`] if `meta` names another object, and [`Error::SecondController`] if
/// `controller` is asked for and another reference has it. `meta` is then untouched.
pub fn set_owner(
    child: &ObjectId,
    meta: &mut ObjectMeta,
    owner: &LiveOwner,
    options: ReferenceOptions,
) -> Result<ReferenceChange, Error> {
    check_is_meta_of(child, meta)?;
    let wanted = owner.reference(child, options)?;
    let replaced = |reference: &OwnerReference| {
        let owner = &owner.owner;
        let earlier = || same_group_kind(reference, &owner.id) && reference.name == owner.id.name();
        reference.uid == owner.uid.as_str() || (options.relink && earlier())
    };

    let existing = meta.owner_references.as_deref().unwrap_or_default();
    if options.controller
        && let Some(other) = existing.iter().find(|r| r.controller == Some(true) && !replaced(r))
    {
        return Err(Error::SecondController {
            child: child.clone(),
            owner: owner.owner.clone(),
            other: format!("{} {} ({})", other.kind, other.name, other.uid),
        });
    }
    let ours: Vec<&OwnerReference> = existing.iter().filter(|r| replaced(r)).collect();
    let change = match ours.as_slice() {
        [] => ReferenceChange::Added,
        [only] if same_reference(only, &wanted) => return Ok(ReferenceChange::Unchanged),
        _ => ReferenceChange::Replaced,
    };
    let mut wanted = Some(wanted);
    let mut references: Vec<OwnerReference> = Vec::with_capacity(existing.len() + 1);
    for reference in existing {
        if replaced(reference) {
            references.extend(wanted.take());
        } else {
            references.push(reference.clone());
        }
    }
    references.extend(wanted);
    meta.owner_references = Some(references);
    Ok(change)
}

/// Takes the references to the owner with `uid` out of `meta`; all others stay. Returns whether there was one.
pub fn strip_owner(meta: &mut ObjectMeta, uid: &Uid) -> bool {
    let Some(references) = &mut meta.owner_references else { return false };
    let before = references.len();
    references.retain(|reference| reference.uid != uid.as_str());
    let stripped = references.len() < before;
    if references.is_empty() {
        meta.owner_references = None;
    }
    stripped
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
    use proptest::prelude::*;

    use super::*;
    use crate::{
        object::GroupKind,
        ownership::{
            Illegal,
            testing::{id, uid},
        },
    };

    fn kind(version: &str) -> ResourceKind {
        ResourceKind::new("example.com", version, "Foo", "foos", Scope::Namespaced)
    }

    fn meta(namespace: Option<&str>, name: &str, uid: Option<&str>) -> ObjectMeta {
        ObjectMeta {
            namespace: namespace.map(Into::into),
            name: Some(name.into()),
            uid: uid.map(Into::into),
            ..ObjectMeta::default()
        }
    }

    fn owner(version: &str, uid: &str) -> LiveOwner {
        LiveOwner::read(&kind(version), &meta(Some("a"), "foo", Some(uid))).unwrap()
    }

    fn reference(api_version: &str, kind: &str, name: &str, uid: &str, controller: Option<bool>) -> OwnerReference {
        OwnerReference {
            api_version: api_version.into(),
            kind: kind.into(),
            name: name.into(),
            uid: uid.into(),
            controller,
            block_owner_deletion: None,
        }
    }

    fn child(references: Vec<OwnerReference>) -> ObjectMeta {
        ObjectMeta { owner_references: Some(references), ..meta(Some("a"), "child", None) }
    }

    fn set(meta: &mut ObjectMeta, owner: &LiveOwner, options: ReferenceOptions) -> Result<ReferenceChange, Error> {
        set_owner(&id("ConfigMap a/child"), meta, owner, options)
    }

    fn plain() -> ReferenceOptions {
        ReferenceOptions::default()
    }

    #[test]
    fn an_owner_must_have_been_read_live() {
        let gk = GroupKind::new("example.com", "Foo").unwrap();
        assert!(matches!(LiveOwner::read(&kind("v1"), &meta(Some("a"), "foo", None)), Err(Error::NotLive { .. })));
        assert!(matches!(LiveOwner::read(&kind("v1"), &meta(Some("a"), "foo", Some(""))), Err(Error::NotLive { .. })));
        assert!(matches!(
            LiveOwner::read(&kind(""), &meta(Some("a"), "foo", Some("1"))),
            Err(Error::NoServedVersion { .. })
        ));
        match LiveOwner::read(&kind("v1"), &meta(None, "foo", Some("1"))) {
            Err(Error::OwnerIdentity { kind, .. }) => assert_eq!(kind, gk),
            other => panic!("{other:?}"),
        }
        let mut terminating = meta(Some("a"), "foo", Some("1"));
        terminating.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        assert!(matches!(LiveOwner::read(&kind("v1"), &terminating), Err(Error::OwnerTerminating { .. })));
    }

    #[test]
    fn flags_are_unset_unless_asked_for_and_the_json_is_an_apply_item() {
        let plain_reference = owner("v1", "1").reference(&id("ConfigMap a/child"), plain()).unwrap();
        let json = serde_json::to_value([plain_reference]).unwrap();
        assert_eq!(
            json,
            serde_json::json!([{"apiVersion": "example.com/v1", "kind": "Foo", "name": "foo", "uid": "1"}])
        );
        let options = plain().controller(true).block_owner_deletion(true);
        let flagged = owner("v1", "1").reference(&id("ConfigMap a/child"), options).unwrap();
        assert_eq!((flagged.controller, flagged.block_owner_deletion), (Some(true), Some(true)));
    }

    #[test]
    fn c01_no_reference_is_made_or_set_across_namespaces() {
        let mut other = meta(Some("b"), "child", None);
        let before = other.clone();
        let result = set_owner(&id("ConfigMap b/child"), &mut other, &owner("v1", "1"), plain());
        assert!(matches!(result, Err(Error::Illegal(Illegal::CrossNamespace { .. }))));
        assert_eq!(other, before);
    }

    #[test]
    fn metadata_of_another_object_is_refused() {
        for mut wrong in [meta(Some("b"), "child", None), meta(Some("a"), "other", None)] {
            assert!(matches!(set(&mut wrong, &owner("v1", "1"), plain()), Err(Error::WrongObject { .. })));
            assert_eq!(wrong.owner_references, None);
        }
    }

    #[test]
    fn c03_a_repair_replaces_the_reference_with_the_same_uid() {
        let mut meta = child(vec![
            reference("example.com/v1", "*v1.Foo", "foo", "1", Some(true)),
            reference("v1", "ConfigMap", "else", "9", None),
            reference("example.com/v1", "Foo", "foo", "1", None),
        ]);
        let change = set(&mut meta, &owner("v1", "1"), plain().controller(true)).unwrap();
        assert_eq!(change, ReferenceChange::Replaced);
        assert_eq!(
            meta.owner_references.unwrap(),
            [
                reference("example.com/v1", "Foo", "foo", "1", Some(true)),
                reference("v1", "ConfigMap", "else", "9", None)
            ]
        );
    }

    #[test]
    fn c04_a_reference_in_an_unserved_version_is_recognised_and_rewritten() {
        let old = reference("example.com/v1", "Foo", "foo", "1", None);
        let live = owner("v2", "1");
        assert!(refers_to(&old, live.owner()));
        assert!(!refers_to(&reference("other.com/v2", "Foo", "foo", "1", None), live.owner()));
        let mut meta = child(vec![old]);
        assert_eq!(set(&mut meta, &live, plain()).unwrap(), ReferenceChange::Replaced);
        assert_eq!(meta.owner_references.as_deref().unwrap()[0].api_version, "example.com/v2");
        assert_eq!(set(&mut meta, &live, plain()).unwrap(), ReferenceChange::Unchanged);
    }

    #[test]
    fn c05_an_earlier_incarnation_is_relinked_only_when_asked() {
        let stale = reference("example.com/v1", "Foo", "foo", "1", Some(true));
        let mut meta = child(vec![stale.clone()]);
        assert_eq!(set(&mut meta, &owner("v1", "2"), plain()).unwrap(), ReferenceChange::Added);
        assert_eq!(meta.owner_references.as_deref().unwrap()[0], stale);

        let mut meta = child(vec![stale, reference("example.com/v1", "Bar", "foo", "3", None)]);
        let options = plain().controller(true).relink(true);
        assert_eq!(set(&mut meta, &owner("v1", "2"), options).unwrap(), ReferenceChange::Replaced);
        let uids: Vec<_> = meta.owner_references.unwrap().into_iter().map(|r| r.uid).collect();
        assert_eq!(uids, ["2", "3"]);
    }

    #[test]
    fn a_second_controller_is_refused_by_name() {
        let mut meta = child(vec![reference("apps/v1", "Deployment", "web", "7", Some(true))]);
        let before = meta.clone();
        match set(&mut meta, &owner("v1", "1"), plain().controller(true)) {
            Err(Error::SecondController { other, .. }) => assert_eq!(other, "Deployment web (7)"),
            other => panic!("{other:?}"),
        }
        assert_eq!(meta, before);
        assert_eq!(set(&mut meta, &owner("v1", "1"), plain()).unwrap(), ReferenceChange::Added);
    }

    fn any_reference() -> impl Strategy<Value = OwnerReference> {
        ("(example.com/)?v[12]", "Foo|Bar", "foo|bar", "[1-4]", any::<Option<bool>>(), any::<Option<bool>>()).prop_map(
            |(api_version, kind, name, uid, controller, block_owner_deletion)| OwnerReference {
                api_version,
                kind,
                name,
                uid,
                controller,
                block_owner_deletion,
            },
        )
    }

    proptest! {
        #[test]
        fn c41_foreign_references_stay_and_ours_is_there_once(
            references in proptest::collection::vec(any_reference(), 0..6),
            controller: bool, block: bool, relink: bool,
        ) {
            let options = plain().controller(controller).block_owner_deletion(block).relink(relink);
            let live = owner("v2", "1");
            let mut meta = child(references.clone());
            let result = set(&mut meta, &live, options);
            let after = meta.owner_references.clone().unwrap();
            // "earlier incarnation" said independently of the code under test
            let ours = |r: &OwnerReference| r.uid == "1"
                || (relink && r.api_version.starts_with("example.com/") && r.kind == "Foo" && r.name == "foo");
            let foreign = |list: &[OwnerReference]| list.iter().filter(|r| !ours(r)).cloned().collect::<Vec<_>>();
            prop_assert_eq!(foreign(&after), foreign(&references));
            let blocked = controller && foreign(&references).iter().any(|r| r.controller == Some(true));
            prop_assert_eq!(result.is_err(), blocked);
            if blocked {
                prop_assert_eq!(after, references);
            } else {
                let mine: Vec<_> = after.iter().filter(|r| ours(r)).collect();
                prop_assert_eq!(mine.len(), 1);
                prop_assert!(same_reference(mine[0], &live.reference(&id("ConfigMap a/child"), options).unwrap()));
                prop_assert_eq!(set(&mut meta, &live, options).unwrap(), ReferenceChange::Unchanged);
            }
        }

        #[test]
        fn c06_stripping_takes_that_uid_and_nothing_else(references in proptest::collection::vec(any_reference(), 0..6)) {
            let mut meta = child(references.clone());
            let stripped = strip_owner(&mut meta, &uid("1"));
            let rest: Vec<_> = references.iter().filter(|r| r.uid != "1").cloned().collect();
            prop_assert_eq!(stripped, rest.len() < references.len());
            prop_assert_eq!(meta.owner_references.unwrap_or_default(), rest);
        }
    }
}
