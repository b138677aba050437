//! Children that the record does not speak of any more, looked for before their parent is let go.
//!
//! Whoever may write the record can take entries out of it, or put an older record back. What is missing then still
//! carries the parent's marks. Watches show it, where they show the whole kind; other kinds that the parent notes are
//! listed. Asks the cluster, and decides nothing about it.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{
    Inner,
    reconcile::carries,
    removal::Removal,
    site::{Destination, Site},
    unite::{Found, infer_edges, unite},
};
use crate::{
    api::find_metadata,
    inventory::Inventory,
    object::{ObjectId, Uid},
};

impl Inner {
    /// Puts objects on record that carry the parent's marks, as they live now. Returns how many there are, those included
    /// that cannot be read; the watches show them again.
    pub(super) async fn put_on_record(
        &self,
        site: &Site,
        inventory: &mut Inventory,
        strays: Vec<(ObjectId, Uid, u32)>,
    ) -> usize {
        let (mut fresh, mut unread) = (BTreeSet::new(), 0);
        for (id, _, recreations) in strays {
            let Some(resource) = site.served(&id.group_kind()).await else {
                unread += 1;
                continue;
            };
            match find_metadata(&site.client, &resource, &id).await {
                Ok(Some(meta)) => {
                    let Some(mut entry) = self.marked(site, &inventory.parent, &id, &resource, &meta).await else {
                        continue;
                    };
                    entry.recreations = recreations;
                    inventory.insert(entry);
                    fresh.insert(id);
                }
                // The watch is behind.
                Ok(None) => {}
                Err(_) => unread += 1,
            }
        }
        infer_edges(inventory, &fresh);
        fresh.len() + unread
    }

    /// Puts on record what carries the parent's marks and nothing on record speaks of, before anything is removed: an owner
    /// that goes takes along, in no order, what belongs to it. Returns what should be known about the search.
    ///
    /// Kinds that may not be listed are passed over, and named: without that right, what is on record is believed. So it is
    /// where nothing shall be watched, unless it is empty. An error says, in words, what else could not be looked at.
    pub(super) async fn search_behind_the_record(
        &self,
        at: &Destination,
        meta: &ObjectMeta,
        removal: &mut Removal,
        inventory: &mut Inventory,
    ) -> Result<Vec<String>, String> {
        let parent = inventory.parent.clone();
        let policy = (self.policy)(&parent);
        let strays = removal.strays(&parent, &policy, at.hub.live(&parent.uid));
        self.put_on_record(at, inventory, strays).await;
        let believed = at.hub.is_off() && !inventory.is_empty();
        if believed || !carries(meta, &self.manager.applied_finalizer()) {
            return Ok(Vec::new());
        }
        let (mut found, mut notes) = (Found::default(), Vec::new());
        let confined = policy.confines(&parent);
        for kind in self.noted_kinds(at, meta)? {
            if at.hub.shows_all(&kind, confined.as_ref()) {
                continue;
            }
            match self.search_kind(at, &parent, &kind, inventory, &mut found).await {
                Ok(()) => {}
                Err(unsearched) if unsearched.forbidden => notes.push(unsearched.words),
                Err(unsearched) => return Err(unsearched.words),
            }
        }
        at.confirm().await.map_err(|hold| hold.to_string())?;
        removal.leave_strays(&parent, &policy, &mut found);
        if !found.entries.is_empty() {
            self.interpret(at, &mut found).await;
            unite(inventory, found, &self.rulebook.rules);
        }
        Ok(notes)
    }
}
