//! The parents of the kind that is uninstalled, and the records of those that are gone.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::Unseen;
use crate::{
    answer::Answer,
    api::list_metadata,
    custodian::{Error, Inner, reconcile::carries},
    discovery::Crd,
    inventory,
    manager::Manager,
    object::{ObjectId, ParentRef, ResourceKind, Uid},
};

/// A parent with something of the manager, or a record of one that is gone.
#[derive(Clone, Debug)]
pub(super) struct Subject {
    pub(super) parent: ParentRef,
    /// As it was listed; `None` if it is gone.
    pub(super) meta: Option<ObjectMeta>,
}

/// All parents of the kind.
#[derive(Clone, Debug, Default)]
pub(super) struct Roster {
    /// Those that the manager has something to do with, and records of parents that are gone, in order.
    pub(super) subjects: Vec<Subject>,
    /// Live parents that carry nothing of the manager.
    pub(super) free: Vec<ParentRef>,
    /// Parents of other kinds that there are records of.
    pub(super) others: BTreeMap<Uid, ObjectId>,
    /// Why records of parents that are gone are not among them, if they are not.
    unlisted: Option<String>,
}

impl Roster {
    /// What the records of parents that are gone hide behind, if they are not listed.
    pub(super) fn unlisted(&self) -> Option<Unseen> {
        self.unlisted.clone().map(|words| Unseen { what: String::new(), words })
    }
}

/// What of the manager a parent carries.
pub(super) fn is_held(manager: &Manager, meta: &ObjectMeta) -> bool {
    carries(meta, &manager.finalizer()) || carries(meta, &manager.applied_finalizer())
}

fn is_marked(manager: &Manager, meta: &ObjectMeta) -> bool {
    is_held(manager, meta) || meta.annotations.iter().flatten().any(|(key, _)| *key == manager.group_kinds_annotation())
}

/// Other managers of this crate that have custody of a parent, by their finalizers.
pub(super) fn other_custodians<'a>(manager: &'a Manager, meta: &'a ObjectMeta) -> impl Iterator<Item = &'a str> {
    let all = meta.finalizers.iter().flatten().map(String::as_str);
    all.filter(|f| (f.ends_with("/custody") || f.ends_with("/applied")) && !manager.owns_key(f))
}

impl Inner {
    /// All parents of the kind in a namespace, or everywhere, as listed.
    pub(super) async fn parents_of(
        &self,
        kind: &ResourceKind,
        namespace: Option<&str>,
    ) -> Result<Vec<(ParentRef, ObjectMeta)>, Error> {
        let listed = match list_metadata(&self.home.client, kind, namespace, None).await {
            // Proven: its definition is gone, and all parents went with it.
            Err(refusal)
                if *refusal.answer() == Answer::NoRoute && self.home.resolver.crd_of(kind).await == Crd::NotFound =>
            {
                Vec::new()
            }
            listed => listed.map_err(|refusal| Error::ParentUnreadable { words: refusal.to_string() })?,
        };
        let parent = |meta: ObjectMeta| {
            let id = ObjectId::from_meta(&kind.group_kind(), &meta).ok()?;
            Some((ParentRef::new(id, Uid::of(&meta)?, kind), meta))
        };
        Ok(listed.into_iter().filter_map(parent).collect())
    }

    /// Every parent of the kind, read live.
    ///
    /// # Errors
    /// If they could not all be listed: then it is not known who is to be spared.
    pub(super) async fn roster(&self, kind: &ResourceKind) -> Result<Roster, Error> {
        // Records first: a parent that is made in between is listed.
        let (records, unlisted) = match self.store.parents(None).await {
            Ok(records) => (records, None),
            Err(error @ inventory::Error::NotEnumerable { .. }) => (Vec::new(), Some(error.to_string())),
            Err(error) => return Err(error.into()),
        };
        let (records, foreign): (Vec<_>, Vec<_>) =
            records.into_iter().partition(|r| r.id.group_kind() == kind.group_kind());
        let others = foreign.into_iter().map(|r| (r.uid, r.id)).collect();
        let mut roster = Roster { others, unlisted, ..Roster::default() };
        for (parent, meta) in self.parents_of(kind, None).await? {
            // The record of another incarnation is found through the live one.
            if is_marked(&self.manager, &meta) || records.iter().any(|r| r.id == parent.id) {
                roster.subjects.push(Subject { parent, meta: Some(meta) });
            } else {
                roster.free.push(parent);
            }
        }
        for record in records {
            if roster.subjects.iter().all(|t| t.parent.id != record.id) {
                roster.subjects.push(Subject { parent: record, meta: None });
            }
        }
        roster.subjects.sort_by(|a, b| a.parent.cmp(&b.parent));
        Ok(roster)
    }
}
