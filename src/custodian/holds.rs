//! Foreign objects that cleanup needs, kept by a hold finalizer of their own for each parent.

use kube_client::api::PatchParams;

use super::Inner;
use crate::{
    answer::{Answer, Refusal},
    api::{finalizer_off, find_metadata, patch_metadata},
    finalizer::{Ensured, Finalizer},
    inventory::Inventory,
    object::{LiveRef, ObjectId, ParentRef, ResourceKind, Uid},
};

/// How often a hold is taken off an object that others are writing to.
const ROUNDS: usize = 5;

impl Inner {
    /// What the author names for this parent.
    pub(super) fn holds_of(&self, parent: &ParentRef) -> Vec<ObjectId> {
        self.holds.as_ref().map(|holds| holds(parent)).unwrap_or_default()
    }

    fn hold_finalizer(&self, parent: &ParentRef) -> Option<Finalizer> {
        Finalizer::new(self.manager.hold_finalizer(&parent.id, &parent.uid)).ok()
    }

    async fn find(&self, id: &ObjectId) -> Result<Option<(ResourceKind, LiveRef)>, String> {
        let resource = self.home.served(&id.group_kind()).await.ok_or("its kind is not served")?;
        let found = find_metadata(&self.home.client, &resource, id).await;
        let found = found.map_err(|refusal| refusal.words_for(id))?;
        Ok(found.and_then(|meta| Uid::of(&meta)).map(|uid| (resource, LiveRef::new(id.clone(), uid))))
    }

    /// Holds what the author names. Returns what could not be held, and why, in words.
    ///
    /// Not what is on record as held: that is for letting go, and whoever may write the record must not choose what the
    /// operator writes to.
    pub(super) async fn hold_all(&self, parent: &ParentRef, named: &[ObjectId]) -> Vec<(ObjectId, String)> {
        let Some(finalizer) = self.hold_finalizer(parent) else { return Vec::new() };
        let mut problems = Vec::new();
        for id in named {
            if let Err(words) = self.hold(&finalizer, id).await {
                problems.push((id.clone(), format!("{id} cannot be held: {words}")));
            }
        }
        problems
    }

    async fn hold(&self, finalizer: &Finalizer, id: &ObjectId) -> Result<(), String> {
        let (resource, live) = self.find(id).await?.ok_or("it does not exist")?;
        match finalizer.ensure(&self.home.client, &resource, &live, &[]).await {
            Ok(Ensured::Held(_)) => Ok(()),
            Ok(Ensured::Deleting(meta)) if finalizer.is_on(&meta) => Ok(()),
            Ok(_) => Err("it is being deleted or was replaced".into()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Lets go of everything that is on record as held. Returns what is still held, in words.
    pub(super) async fn release_holds(&self, parent: &ParentRef, inventory: &Inventory) -> Vec<String> {
        self.unhold_all(parent, inventory, false).await
    }

    /// What [`release_holds`](Self::release_holds) would return; changes nothing.
    pub(super) async fn rehearse_release(&self, parent: &ParentRef, inventory: &Inventory) -> Vec<String> {
        self.unhold_all(parent, inventory, true).await
    }

    async fn unhold_all(&self, parent: &ParentRef, inventory: &Inventory, dry_run: bool) -> Vec<String> {
        let finalizer = self.manager.hold_finalizer(&parent.id, &parent.uid);
        // All at once: taking the first hold off may end the very rights that the next one needs.
        let releases = inventory.held.iter().map(|id| self.unhold(id, &finalizer, dry_run));
        futures::future::join_all(releases).await.into_iter().filter_map(Result::err).collect()
    }

    /// Takes one finalizer off an object, and changes nothing else of it: for Roles and RoleBindings the API server asks
    /// for more rights if anything but finalizers and owner references changes.
    pub(super) async fn unhold(&self, id: &ObjectId, finalizer: &str, dry_run: bool) -> Result<(), String> {
        let fail = |refusal: Refusal| format!("{id}: {}", refusal.words_for(id));
        let resource =
            self.home.served(&id.group_kind()).await.ok_or_else(|| format!("{id}: its kind is not served"))?;
        for _ in 0..ROUNDS {
            let Some(meta) = find_metadata(&self.home.client, &resource, id).await.map_err(fail)? else {
                return Ok(());
            };
            let all = meta.finalizers.unwrap_or_default();
            if !all.iter().any(|f| f == finalizer) {
                return Ok(());
            }
            let (uid, version) = (meta.uid.unwrap_or_default(), meta.resource_version.unwrap_or_default());
            let patch = finalizer_off(&uid, &version, &all, finalizer);
            let params = PatchParams { dry_run, ..PatchParams::default() };
            match patch_metadata(&self.home.client, &resource, id, &patch, &params).await {
                Ok(_) => return Ok(()),
                Err(refusal) => match refusal.answer() {
                    Answer::VersionMismatch | Answer::UidMismatch | Answer::NotFound { .. } => {}
                    _ => return Err(fail(refusal)),
                },
            }
        }
        Err(format!("{id}: somebody else keeps writing to it"))
    }
}
