//! Which calls a save consists of, and in which order.
//!
//! Pure. A plan is carried out call by call until one fails; every prefix of every plan leaves a record that loads.
//!
//! **In place**: each touched object is patched under the lock of its resource version. Numbers of dependents are
//! raised before and lowered after ([`shards::order`]).
//!
//! **Move**, to a fresh root under the other name, where objects are being deleted or have become too large:
//! 1. a dry run tells whether anything can be created at all;
//! 2. the new shards are created; nothing names them yet;
//! 3. the old shards and then the old root are marked as moving, each under the lock of what was read: from now on no
//!    save that began before can succeed;
//! 4. the new root is created, complete, with a higher epoch: it is the record;
//! 5. the old root is marked as superseded, again under its lock. Only now the save has succeeded: somebody who found
//!    the mark of step 3 and no new root may have claimed the old root by raising its epoch in the meantime, and then
//!    this fails and what was created here is united in;
//! 6. the old objects are let go.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::ConfigMap;

use super::{
    head::{Head, RootHead, ShardHead, Shards, tag},
    names::{Naming, Slot},
    piece::{self, Change, Content, Piece, Unreadable},
    record::{Name, Record},
};
use crate::inventory::{
    Inventory, SaveOptions,
    codec::{Draft, Tally},
    dependents,
    shards::{self, Body, Layout, Limits, Part, Placed, Rewrite, Write},
};

/// Which object a call is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Root,
    Shard(usize),
    Rival,
    NewRoot,
    NewShard(usize),
}

/// One call.
#[derive(Debug)]
pub(super) enum Act {
    /// Try out, without effect, whether `object` could be created.
    Probe(ConfigMap),
    /// Create an object.
    Create(Target, ConfigMap),
    /// Patch an object of the record, on the condition that it is as it was seen last.
    Patch(Target, Change),
}

/// The calls of a save.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Objects to remove before anything else, so that their name becomes free.
    pub(super) first: Vec<String>,
    /// In order; the save has succeeded when all have.
    pub(super) acts: Vec<Act>,
    /// Objects that are no longer needed then.
    pub(super) retire: Vec<String>,
    /// Name of the new root, if there is one.
    pub(super) new_root: Option<Slot>,
    /// Whether the new root leaves behind what is unreadable.
    pub(super) heals: bool,
    /// Bytes of the largest object that is written.
    pub(super) largest: usize,
}

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error(transparent)]
    Layout(#[from] shards::Error),
    #[error("the head of a stored object could not be written")]
    Text(#[source] serde_json::Error),
    #[error("{0:?} would take {1} bytes, of the {limit} that an object can have: save with `renew`", limit = shards::OBJECT_LIMIT)]
    Full(String, usize),
    #[error("the stored object {0:?} is missing, and entries belong into it: save with `renew`")]
    Gap(String),
    #[error("both names for its root are taken by objects that other finalizers hold: release them")]
    NoName,
}

/// Plans saves of one inventory.
#[derive(Debug)]
pub(super) struct Planner<'a> {
    pub(super) naming: &'a Naming,
    pub(super) limits: &'a Limits,
    pub(super) inventory: &'a Inventory,
}

impl<'a> Planner<'a> {
    fn placed(&self) -> Vec<Placed<'a>> {
        self.inventory.entries().map(|entry| (entry.id.stable_id(), entry)).collect()
    }

    fn head<H: Head>(&self, head: &H) -> Result<Change, Error> {
        Change::head(head, &self.naming.sealer).map_err(Error::Text)
    }

    /// Creates a record.
    pub(super) fn create(&self, free: Option<Slot>) -> Result<Plan, Error> {
        let mut plan = Plan::default();
        let slot = free.ok_or(Error::NoName)?;
        let root = self.fresh(&mut plan, slot, RootHead::new(self.inventory, 1), &Unreadable::default(), None)?;
        plan.acts.push(Act::Create(Target::NewRoot, root));
        Ok(plan)
    }

    /// Adds the creation of fresh shards to `plan`, and returns the root that goes with them.
    fn fresh(
        &self,
        plan: &mut Plan,
        slot: Slot,
        mut head: RootHead,
        keep: &Unreadable,
        record: Option<&Record>,
    ) -> Result<ConfigMap, Error> {
        let Self { naming, inventory: Inventory { parent, .. }, .. } = *self;
        let hidden = record.map(|record| record.hidden.clone()).unwrap_or_default();
        let counts = dependents::to_record(self.inventory, &hidden);
        let content = |head: RootHead, body: Option<&Body>| {
            let lost = head.lost.clone();
            Content::new(head, lost, body, Default::default(), &naming.sealer).map_err(Error::Text)
        };
        let mut root = match shards::lay_out(&self.placed(), &counts, &naming.sealer, self.limits)? {
            Layout::Alone(body) => content(head, Some(&body))?,
            Layout::Sharded(bodies) => {
                let tag = tag(head.epoch, bodies.iter().map(|body| Tally::of(&body.draft().checks())));
                let layout = Shards { epoch: head.epoch, count: bodies.len(), tag };
                for (index, body) in bodies.iter().enumerate() {
                    let head = ShardHead::new(&layout, index);
                    let content =
                        Content::new(head, Default::default(), Some(body), Default::default(), &naming.sealer)
                            .map_err(Error::Text)?;
                    plan.largest = plan.largest.max(content.size());
                    let object = content.object(naming.shard(&layout, index), parent, naming);
                    plan.acts.push(Act::Create(Target::NewShard(index), object));
                }
                head.shards = Some(layout);
                content(head, None)?
            }
        };
        root.keep(keep);
        plan.largest = plan.largest.max(root.size());
        let name = naming.root(slot);
        if root.size() > self.limits.hard {
            return Err(Error::Full(name, root.size()));
        }
        plan.new_root = Some(slot);
        Ok(root.object(name, parent, naming))
    }

    /// Writes into the objects that are there. Creates nothing.
    pub(super) fn in_place(&self, record: &Record) -> Result<Plan, Error> {
        let Self { naming, inventory: Inventory { parent, .. }, .. } = *self;
        let mut plan = Plan { retire: record.spent.clone(), ..Plan::default() };
        let counts = dependents::to_record(self.inventory, &record.hidden);
        let root = &record.tree.root;
        let mut head = RootHead::new(self.inventory, epoch(record));
        head.shards.clone_from(&root.head.shards);
        let placed = self.placed();
        if head.shards.is_none() {
            let draft = Draft::new(&placed, &counts, &naming.sealer).map_err(shards::Error::Text)?;
            let checks = draft.checks();
            let head = head.over(Tally::of(&checks), root.held.lost.clone());
            if head != root.head || !root.is(&checks, parent, naming) {
                let body = Body::new(draft, root.is_packed(), self.limits)?;
                let change = self.rewrite(&mut plan, root, head, &body, Default::default())?;
                plan.acts.push(Act::Patch(Target::Root, change));
            }
        } else {
            let head = head.over(root.head.tally, root.held.lost.clone());
            if head != root.head || !root.is(&root.held.checks, parent, naming) {
                plan.acts.push(Act::Patch(Target::Root, self.head(&head)?));
            }
            self.shards_in_place(&mut plan, record, &placed, &counts)?;
            // What the root keeps for entries that are written again goes only now.
            let mut change = Change::default();
            root.supersede(&mut change, placed.iter().map(|(id, _)| id));
            if !change.is_empty() {
                plan.acts.push(Act::Patch(Target::Root, change));
            }
        }
        if let Some(rival) = record.rival.as_ref().filter(|rival| !rival.damaged) {
            let rival_head = &rival.tree.root.head;
            let head = RootHead { superseded_by: Some(epoch(record)), ..rival_head.clone() };
            plan.acts.push(Act::Patch(Target::Rival, self.head(&head)?));
            plan.retire.extend(rival.tree.shards.iter().map(|shard| shard.name.clone()));
            plan.retire.push(rival.tree.root.seen.name.clone());
        }
        Ok(plan)
    }

    fn shards_in_place(
        &self,
        plan: &mut Plan,
        record: &Record,
        placed: &[Placed<'_>],
        counts: &dependents::Counts,
    ) -> Result<(), Error> {
        let Self { naming, inventory: Inventory { parent, .. }, .. } = *self;
        let shards = &record.tree.shards;
        let mut drafts = Vec::new();
        for (index, entries) in shards::split(placed, shards.len()).iter().enumerate() {
            let Some(shard) = shards.get(index) else { continue };
            let draft = Draft::new(entries, counts, &naming.sealer).map_err(shards::Error::Text)?;
            match &shard.piece {
                Some(piece) if piece.is(&draft.checks(), parent, naming) => {}
                Some(piece) => drafts.push((index, piece, Body::new(draft, piece.is_packed(), self.limits)?)),
                None if draft.entries.is_empty() => {}
                None => return Err(Error::Gap(shard.name.clone())),
            }
        }
        let none = dependents::Counts::new();
        // Only needed where several are written, which then have to be ordered.
        let parts: Vec<_> = if drafts.len() > 1 {
            let held = shards.iter().map(|shard| shard.piece.as_ref().map(|piece| &piece.held));
            held.map(|held| Part {
                holds: held.iter().flat_map(|held| held.checks.keys()).collect(),
                counts: held.map_or_else(Default::default, |held| held.counts.clone()),
                edges: held.map_or(&none, |held| &held.edges),
            })
            .collect()
        } else {
            Vec::new()
        };
        let rewrites: Vec<_> = drafts
            .iter()
            .map(|(part, _, body)| Rewrite {
                part: *part,
                counts: body.draft().entries.iter().map(|entry| (entry.id, entry.dependents)).collect(),
                edges: &body.draft().edges,
            })
            .collect();
        for write in shards::order(&parts, &rewrites, &record.hidden) {
            let (part, change) = match write {
                Write::Raise { part, to } => (part, Change::raised(to, &naming.sealer).map_err(Error::Text)?),
                Write::Settle { part } => (part, Change::raised(none.clone(), &naming.sealer).map_err(Error::Text)?),
                Write::Whole { rewrite, raised } => {
                    let Some((part, piece, body)) = drafts.get(rewrite) else { continue };
                    let head = ShardHead { moving: None, ..piece.head.clone() };
                    (*part, self.rewrite(plan, piece, head, body, raised)?)
                }
            };
            plan.acts.push(Act::Patch(Target::Shard(part), change));
        }
        Ok(())
    }

    fn rewrite<H: Head>(
        &self,
        plan: &mut Plan,
        piece: &Piece<H>,
        head: H,
        body: &Body,
        raised: dependents::Counts,
    ) -> Result<Change, Error> {
        let lost = piece.held.lost.clone();
        let content = Content::new(head, lost, Some(body), raised, &self.naming.sealer).map_err(Error::Text)?;
        let (mut change, size) = piece.change_to(content);
        piece.supersede(&mut change, body.draft().entries.iter().map(|entry| &entry.id));
        if size > self.limits.hard {
            return Err(Error::Full(piece.seen.name.clone(), size));
        }
        plan.largest = plan.largest.max(size);
        Ok(change)
    }

    /// Moves the record to a fresh root, if it is to be renewed or healed, and can be.
    ///
    /// `in_place` is the plan that would be carried out otherwise.
    pub(super) fn moved(
        &self,
        record: &Record,
        in_place: &Result<Plan, Error>,
        options: &SaveOptions,
    ) -> Result<Option<Plan>, Error> {
        let heal = options.heal && record.damaged;
        if heal || options.renew { self.renew(record, in_place, heal) } else { Ok(None) }
    }

    fn renew(&self, record: &Record, in_place: &Result<Plan, Error>, heal: bool) -> Result<Option<Plan>, Error> {
        let Record { tree, rival, other, .. } = record;
        let grown = in_place.as_ref().map_or(true, |plan| plan.largest > self.limits.half);
        let wanted = heal || grown || record.terminating() || tree.shards.iter().any(|shard| shard.piece.is_none());
        if !wanted || rival.is_some() || *other == Name::Taken {
            return Ok(None);
        }
        let mut keep = Unreadable::default();
        let written =
            self.inventory.entries().map(|entry| piece::entry_key(&entry.id.stable_id())).collect::<BTreeSet<_>>();
        let mut head = RootHead::new(self.inventory, tree.root.head.epoch.max(tree.moving()) + 1);
        let held = tree.shards.iter().filter_map(|shard| shard.piece.as_ref()).map(|piece| &piece.held);
        for held in held.chain([&tree.root.held]).filter(|_| !heal) {
            keep.texts.extend(held.unreadable.texts.clone());
            keep.packed.extend(held.unreadable.packed.clone());
            head.lost.extend(held.lost.iter().cloned());
        }
        for shard in tree.shards.iter().filter(|shard| shard.piece.is_none() && !heal) {
            head.lost.insert(format!("the shard {} was missing", shard.name));
        }
        // An entry that is written again takes the place of its unreadable text.
        keep.texts.retain(|key, _| !written.contains(key));
        if keep.size() > self.limits.target {
            return Ok(None);
        }
        let epoch = head.epoch;
        let slot = tree.slot.other();
        let mut plan = Plan { heals: heal, ..Plan::default() };
        let root = self.fresh(&mut plan, slot, head, &keep, Some(record).filter(|_| !heal))?;
        let probe = ConfigMap { metadata: root.metadata.clone(), ..ConfigMap::default() };
        plan.acts.insert(0, Act::Probe(probe));
        for (index, shard) in tree.shards.iter().enumerate() {
            if let Some(piece) = &shard.piece {
                let head = ShardHead { moving: Some(epoch), ..piece.head.clone() };
                plan.acts.push(Act::Patch(Target::Shard(index), self.head(&head)?));
            }
        }
        let old = RootHead { moving: Some(epoch), ..tree.root.head.clone() };
        plan.acts.push(Act::Patch(Target::Root, self.head(&old)?));
        plan.acts.push(Act::Create(Target::NewRoot, root));
        let old = RootHead { superseded_by: Some(epoch), ..old };
        plan.acts.push(Act::Patch(Target::Root, self.head(&old)?));
        let names = tree.shards.iter().map(|shard| shard.name.clone()).chain([tree.root.seen.name.clone()]);
        plan.retire = names.chain(record.spent.iter().cloned()).collect();
        if *other == Name::Spent {
            plan.first.clone_from(&record.spent);
        }
        Ok(Some(plan))
    }
}

/// The epoch of the record's root after a save in place.
fn epoch(record: &Record) -> u64 {
    let Record { tree, rival, .. } = record;
    if tree.moving() <= tree.root.head.epoch {
        return tree.root.head.epoch;
    }
    // Somebody began to move the record and may still be at it: whoever writes the root first, wins.
    rival.as_ref().map_or(0, |rival| rival.tree.root.head.epoch).max(tree.moving()) + 1
}
