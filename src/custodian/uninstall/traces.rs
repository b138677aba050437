//! What an object carries of a manager, which parents it names by that, and whether it may be taken off. No IO.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::{
    inventory::ClusterId,
    manager::Manager,
    object::{GroupKind, LiveRef, ObjectId, ResourceKind, Uid, group_of},
    ownership::{
        BackPointer,
        proxy::{ProxyKinds, proxy_generation},
    },
};

/// What an object carries of a manager.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Traces {
    /// Keys of labels under the manager's domain.
    pub labels: BTreeSet<String>,
    /// Keys of annotations under the manager's domain.
    pub annotations: BTreeSet<String>,
    /// Finalizers under the manager's domain.
    pub finalizers: BTreeSet<String>,
    /// Proxies of the manager that the object refers to as owners.
    pub references: BTreeSet<Uid>,
}

impl Traces {
    fn of(manager: &Manager, meta: &ObjectMeta) -> Self {
        let ours = |key: &&String| manager.owns_key(key);
        Self {
            labels: meta.labels.iter().flat_map(BTreeMap::keys).filter(ours).cloned().collect(),
            annotations: meta.annotations.iter().flat_map(BTreeMap::keys).filter(ours).cloned().collect(),
            finalizers: meta.finalizers.iter().flatten().filter(ours).cloned().collect(),
            references: BTreeSet::new(),
        }
    }

    /// Whether there is nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether there is more than what makes a parent.
    pub(super) fn is_child(&self, manager: &Manager) -> bool {
        let mut all = self.labels.iter().chain(&self.annotations).chain(&self.finalizers);
        !self.references.is_empty() || all.any(|key| manager.writes_key(key) && !manager.is_parents_key(key))
    }

    /// Keys under the domain that the crate does not write: the operator's author has to know what they mean.
    pub(super) fn unknown<'a>(&'a self, manager: &'a Manager) -> impl Iterator<Item = &'a String> {
        let all = self.labels.iter().chain(&self.annotations).chain(&self.finalizers);
        all.filter(|key| !manager.writes_key(key))
    }
}

impl fmt::Display for Traces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |what: &str, keys: &BTreeSet<String>| {
            (!keys.is_empty()).then(|| format!("{what} {}", keys.iter().cloned().collect::<Vec<_>>().join(", ")))
        };
        let references = self.references.len();
        let parts = [
            of("labels", &self.labels),
            of("annotations", &self.annotations),
            of("finalizers", &self.finalizers),
            (references > 0).then(|| format!("{references} owner references to proxies")),
        ];
        f.write_str(&parts.into_iter().flatten().collect::<Vec<_>>().join("; "))
    }
}

/// What an object is to the manager, by its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Part {
    /// It carries the finalizers or the annotation of a parent.
    Parent,
    /// A proxy owner.
    Proxy,
    /// A stored inventory, or a part of one.
    Record,
    /// A child, a held object, or a copy of one.
    Child,
}

/// Whether a live parent stands behind an object.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Behind {
    /// This one; it may be the object itself.
    Lives(LiveRef),
    /// Every parent that the object names is proven gone.
    Gone,
    /// It could not be told.
    Unknown {
        /// Why.
        words: String,
    },
    /// The object names no parent, or only a UID that nobody known has.
    Nobody,
}

impl fmt::Display for Behind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lives(parent) => write!(f, "{parent} lives"),
            Self::Gone => f.write_str("its parent is gone"),
            Self::Unknown { words } => write!(f, "whether its parent lives is unknown: {words}"),
            Self::Nobody => f.write_str("it names no parent that is known"),
        }
    }
}

/// An object that carries something of the manager.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// Which object.
    pub object: LiveRef,
    /// How requests for it are spelled.
    pub resource: ResourceKind,
    /// What it is to the manager.
    pub part: Part,
    /// What it carries.
    pub traces: Traces,
    /// The parents it names: in its back-pointer, and as those of the proxies it refers to.
    pub parents: BTreeSet<LiveRef>,
    /// The cluster that those live in, if its back-pointer names another one than that which was looked at: an operator there
    /// takes care of it.
    pub home: Option<ClusterId>,
    /// The parent's UID in its label.
    pub label: Option<Uid>,
    /// Whether a live parent stands behind it.
    pub behind: Behind,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} carries {}; {}", self.object.id, self.traces, self.behind)
    }
}

/// A reference to something of a proxy kind, before it is known whose proxy that is.
#[derive(Clone, Debug)]
struct Reference {
    kind: GroupKind,
    name: String,
    uid: Uid,
}

/// An object that may be a finding.
#[derive(Clone, Debug)]
pub(super) struct Sighting {
    object: LiveRef,
    resource: ResourceKind,
    traces: Traces,
    references: Vec<Reference>,
    pointer: Option<BackPointer>,
    label: Option<Uid>,
}

impl Sighting {
    /// What the metadata of an object shows, if it is of interest.
    pub(super) fn of(
        manager: &Manager,
        proxies: Option<&ProxyKinds>,
        resource: &ResourceKind,
        meta: &ObjectMeta,
    ) -> Option<Self> {
        let traces = Traces::of(manager, meta);
        let of_proxies = |r: &Reference| {
            proxies.is_some_and(|p| [p.namespaced(), p.cluster()].iter().any(|k| k.group_kind() == r.kind))
        };
        let references = meta.owner_references.iter().flatten().filter_map(|r| {
            let kind = GroupKind::new(group_of(&r.api_version), r.kind.as_str()).ok()?;
            Some(Reference { kind, name: r.name.clone(), uid: Uid::new(&r.uid).ok()? })
        });
        let references: Vec<_> = references.filter(of_proxies).collect();
        if traces.is_empty() && references.is_empty() {
            return None;
        }
        let id = ObjectId::from_meta(&resource.group_kind(), meta).ok()?;
        let annotation = meta.annotations.as_ref().and_then(|a| a.get(&manager.back_pointer_annotation()));
        let label = meta.labels.as_ref().and_then(|l| l.get(&manager.parent_label()));
        Some(Self {
            object: LiveRef::new(id, Uid::of(meta)?),
            resource: resource.clone(),
            traces,
            references,
            pointer: annotation.and_then(|text| BackPointer::decode(text).ok()),
            label: label.and_then(|text| Uid::new(text).ok()),
        })
    }

    fn part(&self, manager: &Manager, proxies: Option<&ProxyKinds>) -> Part {
        let has = |name: String| self.traces.finalizers.contains(&name);
        let noted = self.traces.annotations.contains(&manager.group_kinds_annotation());
        if has(manager.finalizer()) || has(manager.applied_finalizer()) || noted {
            Part::Parent
        } else if proxies.is_some_and(|p| p.is_proxy(&self.object.id)) || has(manager.proxy_finalizer()) {
            Part::Proxy
        } else if has(manager.inventory_finalizer()) || self.traces.labels.contains(&manager.inventory_label()) {
            Part::Record
        } else {
            Part::Child
        }
    }
}

/// The findings among what was seen in cluster `here`, in order; an object that several groups serve once.
pub(super) fn findings(
    manager: &Manager,
    proxies: Option<&ProxyKinds>,
    here: Option<&ClusterId>,
    seen: Vec<Sighting>,
) -> Vec<Finding> {
    let mut by_uid: BTreeMap<Uid, Sighting> = BTreeMap::new();
    for sighting in seen {
        // The identity under which it was marked, where that is one of them.
        let names_itself = sighting.pointer.as_ref().is_some_and(|p| *p.object() == sighting.object.id);
        let known = by_uid.get(&sighting.object.uid);
        if known.is_none_or(|known| names_itself || (known.pointer.is_none() && sighting.object < known.object)) {
            by_uid.insert(sighting.object.uid.clone(), sighting);
        }
    }
    let ours: BTreeMap<Uid, Option<LiveRef>> = by_uid
        .values()
        .filter(|s| s.part(manager, proxies) == Part::Proxy)
        .map(|s| (s.object.uid.clone(), s.pointer.as_ref().map(|p| p.parent().clone())))
        .collect();
    let finding = |s: Sighting| {
        let part = s.part(manager, proxies);
        let pointed = s.pointer.as_ref().map(BackPointer::parent);
        // A proxy that is gone is known by its name, which is derived from the manager and the parent.
        let named = |r: &Reference| pointed.is_some_and(|p| proxy_generation(manager, &p.id, &r.name).is_some());
        let references: BTreeSet<_> =
            s.references.iter().filter(|r| ours.contains_key(&r.uid) || named(r)).map(|r| r.uid.clone()).collect();
        let of_proxies = references.iter().filter_map(|uid| ours.get(uid)?.clone());
        let parents = of_proxies.chain(pointed.cloned()).collect();
        let traces = Traces { references, ..s.traces };
        let behind = Behind::Nobody;
        (!traces.is_empty()).then_some(Finding {
            object: s.object,
            resource: s.resource,
            part,
            traces,
            parents,
            home: s.pointer.as_ref().and_then(BackPointer::home).filter(|home| Some(*home) != here).cloned(),
            label: s.label,
            behind,
        })
    };
    let mut found: Vec<_> = by_uid.into_values().filter_map(finding).collect();
    found.sort_by(|a, b| a.object.cmp(&b.object));
    found
}

/// Which parents are done with, and which are not.
#[derive(Clone, Debug)]
pub(super) struct Parents {
    /// The kind that is uninstalled. All live parents of it are known.
    pub(super) kind: GroupKind,
    /// Parents whose objects have to stay as they are: what is known of them is not done with. That goes for objects of
    /// every incarnation, for a record may speak of an earlier one.
    pub(super) staying: BTreeMap<Uid, ObjectId>,
    /// Parents of other kinds that live or have a record, as far as they were seen.
    pub(super) others: BTreeMap<Uid, ObjectId>,
    /// Parents that are done with.
    pub(super) done: BTreeMap<Uid, ObjectId>,
    /// Whether `others` are all.
    pub(super) complete: bool,
}

impl Parents {
    /// Why what an object carries must stay, that which makes it a parent aside; `Ok` if it can go.
    pub(super) fn may_clear(&self, manager: &Manager, finding: &Finding) -> Result<(), String> {
        if let Some(home) = &finding.home {
            return Err(format!("it belongs to a parent in cluster {home}"));
        }
        for parent in &finding.parents {
            if parent.id.group_kind() != self.kind {
                return Err(format!("it belongs to a parent of another kind, {parent}"));
            }
            if self.staying.values().any(|id| *id == parent.id) {
                return Err(format!("it is marked for {parent}, which is not done with"));
            }
            self.may_clear_uid(&parent.uid, true)?;
        }
        if let Some(uid) = &finding.label {
            self.may_clear_uid(uid, !finding.parents.is_empty())?;
        }
        for name in finding.traces.finalizers.iter().filter(|f| manager.is_hold(f)) {
            self.may_unhold(manager, name)?;
        }
        Ok(())
    }

    /// Whether an object is a parent of another kind, or belongs to one, or to a parent in another cluster: that is not
    /// uninstalled.
    pub(super) fn is_of_others(&self, manager: &Manager, finding: &Finding) -> bool {
        if finding.home.is_some() && finding.part != Part::Parent {
            return true;
        }
        let other = |id: &ObjectId| id.group_kind() != self.kind;
        let labelled = finding.label.as_ref().is_some_and(|uid| self.others.contains_key(uid));
        let prefix = manager.hold_prefix(&self.kind);
        let mut holds = finding.traces.finalizers.iter().filter(|f| manager.is_hold(f));
        match finding.part {
            Part::Parent => other(&finding.object.id),
            _ if finding.parents.is_empty() => labelled || holds.any(|f| !f.starts_with(&prefix)),
            _ => finding.parents.iter().any(|p| other(&p.id)),
        }
    }

    fn may_clear_uid(&self, uid: &Uid, of_kind: bool) -> Result<(), String> {
        if self.staying.contains_key(uid) || self.others.contains_key(uid) {
            return Err(format!("it is marked for a parent that is not done with ({uid})"));
        }
        if of_kind || self.complete || self.done.contains_key(uid) {
            return Ok(());
        }
        Err(format!("it is marked for {uid}, which may be a parent that could not be looked at"))
    }

    fn may_unhold(&self, manager: &Manager, name: &str) -> Result<(), String> {
        let among =
            |parents: &BTreeMap<Uid, ObjectId>| parents.iter().any(|(uid, id)| manager.hold_finalizer(id, uid) == name);
        if !name.starts_with(&manager.hold_prefix(&self.kind)) {
            return Err(format!("finalizer {name} is held for a parent of another kind"));
        }
        // Of which incarnation of a parent that stays it is cannot be seen.
        if !among(&self.done) && !self.staying.is_empty() {
            return Err(format!("finalizer {name} may be held for a parent that is not done with"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
