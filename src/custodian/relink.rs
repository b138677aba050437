//! Linking the record of a parent that was restored from a backup, or made again, to its new incarnation.
//!
//! Children carry the former parent's UID in their marks, so they are nobody's until somebody says that the parent is the
//! same. Then both sides decide, object by object: what is on record *and* carries a back-pointer that names the recorded
//! incarnation of the parent and the object itself is marked for the new one. Nothing else is touched.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_client::api::Patch;
use kube_core::Resource;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{
    Custodian, Error, Hold, Inner,
    reconcile::of_another_cluster,
    site::{Destination, Nowhere},
};
use crate::{
    answer::{Answer, Refusal},
    api::{delete, find_metadata, patch_metadata, patched_by},
    discovery::Crd,
    inventory::{Entry, EntryState, Loaded, Role, SaveOptions},
    manager::Manager,
    object::{LiveRef, ObjectId, ParentRef, Uid},
    ownership::{self, BackPointer},
};

/// How often one object is looked at while somebody else writes to it.
const ROUNDS: usize = 5;

/// An object on record that is not the parent's by its marks.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Foreign {
    /// Which object.
    pub id: ObjectId,
    /// Whose it is, or why it could not be told, in words.
    pub words: String,
}

impl fmt::Display for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.id, self.words)
    }
}

/// What became of the objects on record when a parent was linked to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Relinked {
    /// Marked for the new incarnation.
    pub linked: Vec<LiveRef>,
    /// Proven not to exist; created again if they are still desired.
    pub gone: Vec<ObjectId>,
    /// Left alone, because their marks do not name the recorded parent. On record as unproven.
    pub foreign: Vec<Foreign>,
    /// Objects that could not be judged or marked. As long as there are any the record stays as it was: put right what
    /// the words name, and call again.
    pub open: Vec<Foreign>,
}

impl Relinked {
    /// Whether the record speaks of the new incarnation by now.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.open.is_empty()
    }
}

/// What the marks of an object on record say.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// The recorded parent's: to be marked for the new one.
    Mark,
    /// Marked for the new one already.
    Marked,
    Foreign(String),
}

fn judge(manager: &Manager, recorded: &ParentRef, parent: &ParentRef, id: &ObjectId, meta: &ObjectMeta) -> Verdict {
    let claim = ownership::judge(manager, recorded, id, meta);
    if claim.is_ours() {
        Verdict::Mark
    } else if ownership::judge(manager, parent, id, meta).is_ours() {
        Verdict::Marked
    } else {
        Verdict::Foreign(claim.to_string())
    }
}

/// The merge patch that marks an object by `pointer`, in exactly the state that was judged. `guard` is a finalizer that
/// it is to carry.
fn marking(manager: &Manager, pointer: &BackPointer, meta: &ObjectMeta, guard: Option<&str>) -> Value {
    let mut patch = json!({"metadata": {
        "uid": meta.uid, "resourceVersion": meta.resource_version,
        "labels": {manager.parent_label(): pointer.parent().uid},
        "annotations": {manager.back_pointer_annotation(): pointer.encode()},
    }});
    let mut finalizers = meta.finalizers.clone().unwrap_or_default();
    if let Some(guard) = guard.filter(|guard| finalizers.iter().all(|f| f != guard)) {
        finalizers.push(guard.to_owned());
        patch["metadata"]["finalizers"] = json!(finalizers);
    }
    patch
}

/// What became of one object.
enum Linked {
    As(Uid),
    Gone,
    Foreign(String),
    Open(String),
}

impl<K> Custodian<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + fmt::Debug + Send + Sync + 'static,
{
    /// Says that `parent`, which was restored from a backup or made again under its name, is the one its record was
    /// written for ([`Hold::Restored`](super::Hold)).
    ///
    /// # Guarantees
    /// An object is marked for the new incarnation only if it is on record and its live back-pointer names the recorded
    /// incarnation and the object itself; which incarnation of the *object* it is does not matter, since restored
    /// children are new ones. What carries other marks, copied ones included, is left alone and named. Adopted and kept
    /// objects stay adopted and kept; what was given up stays so. The record is written last, when every object on it is
    /// judged: until then the parent is held, and calling again goes on.
    ///
    /// A proxy names its parent's incarnation in its spec, which cannot change: it gets a guard finalizer and a DELETE, and
    /// is replaced by the next reconcile, which re-parents the children before it lets the old one go.
    ///
    /// # Caveats
    /// Children that a backup restored with owner references to proxies that are gone are collected by the garbage
    /// collector, maybe before this is called: leave owner references out of backups, or restore proxies first.
    ///
    /// # Permissions
    /// `get` and `patch` on the kinds of children, `get`, `patch` and `delete` on the proxies.
    ///
    /// # Errors
    /// [`Error`] if the record could not be read or written, [`Error::Target`] if the children cannot be looked at.
    pub async fn relink(&self, parent: &K) -> Result<Relinked, Error> {
        let reference = ParentRef::of(parent).map_err(|source| Error::Parent { source })?;
        let inner = &self.inner;
        let mut relinked = Relinked::default();
        let Loaded::Restored { snapshot, .. } = inner.store.load(&reference).await? else { return Ok(relinked) };
        let (mut inventory, recorded) = (snapshot.inventory.clone(), snapshot.inventory.parent);
        let at = self.destination(parent, &reference).await.map_err(Nowhere::into_error)?;
        let target = |hold: Hold| Error::Target { words: hold.to_string() };
        of_another_cluster(&inventory, &at.cluster).map_or(Ok(()), |hold| Err(target(hold)))?;
        for entry in inventory.entries_mut().filter(|e| !e.is_let_go()) {
            let id = entry.id.clone();
            let linked = inner.link(&at, &recorded, &reference, entry).await;
            (entry.uid, entry.state) = (None, EntryState::Intended);
            match linked {
                Linked::As(uid) => {
                    (entry.uid, entry.state) = (Some(uid.clone()), EntryState::Recorded);
                    relinked.linked.push(LiveRef::new(id, uid));
                }
                Linked::Gone => relinked.gone.push(id),
                Linked::Foreign(words) => relinked.foreign.push(Foreign { id, words }),
                Linked::Open(words) => relinked.open.push(Foreign { id, words }),
            }
        }
        at.confirm().await.map_err(target)?;
        if relinked.is_complete() {
            inventory.parent = reference;
            // Made for the former incarnation's deletion.
            inventory.decision = None;
            inner.store.save(&inventory, SaveOptions::replace(snapshot.version)).await?;
            // Named after the former UID; the next reconcile holds them for the new one.
            for words in inner.release_holds(&recorded, &inventory).await {
                tracing::warn!(%words, "still held for the former incarnation of a parent; a sweep takes it off");
            }
        }
        Ok(relinked)
    }
}

impl Inner {
    async fn link(&self, at: &Destination, recorded: &ParentRef, parent: &ParentRef, entry: &Entry) -> Linked {
        let id = &entry.id;
        let resource = at.served(&id.group_kind()).await.unwrap_or_else(|| entry.resource());
        let guard = self.manager.proxy_finalizer();
        let is_proxy = entry.role == Role::Proxy;
        for _ in 0..ROUNDS {
            let meta = match find_metadata(&at.client, &resource, id).await {
                Ok(Some(meta)) => meta,
                Ok(None) => return Linked::Gone,
                Err(refusal) if *refusal.answer() == Answer::NoRoute && entry.defined_by_crd => {
                    return match at.resolver.crd_of(&resource).await {
                        Crd::NotFound => Linked::Gone,
                        _ => Linked::Open(refusal.words_for(id)),
                    };
                }
                Err(refusal) => return Linked::Open(refusal.words_for(id)),
            };
            let Some(uid) = Uid::of(&meta) else { return Linked::Open("it has no UID".into()) };
            let terminating = meta.deletion_timestamp.is_some();
            let guarded = meta.finalizers.iter().flatten().any(|f| *f == guard);
            let wanted = (is_proxy && !terminating).then_some(guard.as_str());
            let sent = match judge(&self.manager, recorded, parent, id, &meta) {
                Verdict::Foreign(words) => return Linked::Foreign(words),
                Verdict::Marked if !is_proxy || terminating => return Linked::As(uid),
                Verdict::Marked if guarded => delete(&at.client, &resource, id, &meta).await,
                Verdict::Mark | Verdict::Marked => {
                    let patch = Patch::Merge(marking(&self.manager, &at.back_pointer(parent, id), &meta, wanted));
                    let params = patched_by(Some(self.manager.field_manager()));
                    patch_metadata(&at.client, &resource, id, &patch, &params).await.map(drop)
                }
            };
            match sent {
                Ok(()) if !is_proxy => return Linked::As(uid),
                // Look at it as it is now, and go on.
                Ok(()) => {}
                Err(refusal) if raced(&refusal) => {}
                Err(refusal) => return Linked::Open(refusal.words_for(id)),
            }
        }
        Linked::Open("somebody else keeps writing to it".into())
    }
}

fn raced(refusal: &Refusal) -> bool {
    matches!(
        refusal.answer(),
        Answer::VersionMismatch
            | Answer::UidMismatch
            | Answer::Conflict
            | Answer::NotFound { .. }
            | Answer::FinalizersClosed
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ownership::testing::{any_id, any_parent, id, manager, parent, uid};

    fn marked(parent: &ParentRef, object: &ObjectId) -> ObjectMeta {
        let mut meta = ObjectMeta { uid: Some("c".into()), ..ObjectMeta::default() };
        ownership::mark(&manager(), &BackPointer::new(parent, object), &mut meta).unwrap();
        meta
    }

    #[test]
    fn c05_only_what_names_the_recorded_parent_and_itself_is_linked() {
        let (recorded, now) = (parent(), ParentRef { uid: uid("p-2"), ..parent() });
        let object = id("ConfigMap b/x");
        let verdict = |meta: &ObjectMeta| judge(&manager(), &recorded, &now, &object, meta);
        assert_eq!(verdict(&marked(&recorded, &object)), Verdict::Mark);
        assert_eq!(verdict(&marked(&now, &object)), Verdict::Marked);
        let third = ParentRef { uid: uid("p-3"), ..parent() };
        let elsewhere = ParentRef { id: id("GitTrack.faros.pusher.com a/other"), ..parent() };
        for foreign in [
            ObjectMeta::default(),
            marked(&recorded, &id("ConfigMap b/original")),
            marked(&third, &object),
            marked(&elsewhere, &object),
        ] {
            assert!(matches!(verdict(&foreign), Verdict::Foreign(_)));
        }
    }

    proptest! {
        #[test]
        fn c05_linked_once_is_linked(recorded in any_parent(), now in any_parent(), object in any_id(), proxy: bool) {
            prop_assume!(now.uid != recorded.uid);
            let now = ParentRef { id: recorded.id.clone(), ..now };
            let meta = marked(&recorded, &object);
            let guard = proxy.then_some("gittrack.example.com/proxy");
            let mut object_json = json!({"metadata": meta});
            json_patch::merge(&mut object_json, &marking(&manager(), &BackPointer::new(&now, &object), &meta, guard));
            let after: ObjectMeta = serde_json::from_value(object_json["metadata"].take()).unwrap();
            prop_assert_eq!(judge(&manager(), &recorded, &now, &object, &after), Verdict::Marked);
            prop_assert_eq!(after.finalizers.is_some(), proxy);
        }
    }
}
