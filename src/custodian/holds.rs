//! Foreign objects that cleanup needs, kept by a hold finalizer of their own for each parent.

use super::Inner;
use crate::{
    finalizer::{Ensured, Finalizer, Released},
    inventory::Inventory,
    object::{LiveRef, ObjectId, ParentRef, ResourceKind, Uid},
    teardown::get_metadata,
};

impl Inner {
    /// What the author names for this parent.
    pub(super) fn holds_of(&self, parent: &ParentRef) -> Vec<ObjectId> {
        self.holds.as_ref().map(|holds| holds(parent)).unwrap_or_default()
    }

    fn hold_finalizer(&self, parent: &ParentRef) -> Option<Finalizer> {
        let finalizer = Finalizer::new(self.manager.hold_finalizer(&parent.uid)).ok()?;
        Some(finalizer.field_manager(self.manager.field_manager()))
    }

    async fn find(&self, id: &ObjectId) -> Result<Option<(ResourceKind, LiveRef)>, String> {
        let resource = self.served(&id.group_kind()).await.ok_or_else(|| format!("{id}: its kind is not served"))?;
        match get_metadata(&self.client, &resource, id).await {
            Ok(meta) => Ok(Uid::of(&meta).map(|uid| (resource, LiveRef::new(id.clone(), uid)))),
            Err(refusal) if refusal.answer().names(&resource, id.name()) => Ok(None),
            Err(refusal) => Err(format!("{id}: {}", refusal.words_for(id))),
        }
    }

    /// Holds what is on record as held. Returns what could not be held, in words.
    pub(super) async fn hold_all(&self, parent: &ParentRef, inventory: &Inventory) -> Vec<String> {
        let Some(finalizer) = self.hold_finalizer(parent) else { return Vec::new() };
        let mut problems = Vec::new();
        for id in &inventory.held {
            match self.find(id).await {
                Ok(Some((resource, live))) => match finalizer.ensure(&self.client, &resource, &live, &[]).await {
                    Ok(Ensured::Held(_)) => {}
                    Ok(_) => problems.push(format!("{id} cannot be held: it is being deleted or was replaced")),
                    Err(error) => problems.push(format!("{id} cannot be held: {error}")),
                },
                Ok(None) => problems.push(format!("{id} cannot be held: it does not exist")),
                Err(words) => problems.push(format!("cannot be held: {words}")),
            }
        }
        problems
    }

    /// Lets go of everything that is on record as held. Returns what is still held, in words.
    pub(super) async fn release_holds(&self, parent: &ParentRef, inventory: &Inventory) -> Vec<String> {
        let Some(finalizer) = self.hold_finalizer(parent) else { return Vec::new() };
        // All at once: taking the first hold off may end the very rights that the next one needs.
        let releases = inventory.held.iter().map(|id| {
            let finalizer = &finalizer;
            async move {
                let (resource, live) = match self.find(id).await {
                    Ok(Some(found)) => found,
                    Ok(None) => return None,
                    Err(words) => return Some(words),
                };
                match finalizer.release(&self.client, &resource, &live).await {
                    Ok(Released::Off(_) | Released::Gone | Released::Recreated(_)) => None,
                    Err(error) => Some(error.to_string()),
                }
            }
        });
        futures::future::join_all(releases).await.into_iter().flatten().collect()
    }
}
