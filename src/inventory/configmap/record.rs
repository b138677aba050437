//! What the stored objects of one parent add up to.
//!
//! Pure: from objects as they were read to an inventory, its damage, and everything that a later save has to know.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::ConfigMap;

use super::{
    head::{Head, RootHead, ShardHead},
    names::{Naming, Slot},
    piece::{self, Piece, Reading, Seen},
};
use crate::inventory::{
    Damage, Inventory,
    codec::Check,
    dependents::{self, Counts},
};

/// A root and its shards.
#[derive(Clone, Debug)]
pub(super) struct Tree {
    pub(super) slot: Slot,
    pub(super) root: Arc<Piece<RootHead>>,
    pub(super) shards: Vec<Shard>,
}

/// A shard, if it is there.
#[derive(Clone, Debug)]
pub(super) struct Shard {
    pub(super) name: String,
    pub(super) piece: Option<Arc<Piece<ShardHead>>>,
}

impl Tree {
    /// All objects that are there, the root last.
    pub(super) fn seen(&self) -> impl Iterator<Item = &Seen> {
        self.shards.iter().filter_map(|shard| shard.piece.as_ref().map(|piece| &piece.seen)).chain([&self.root.seen])
    }

    /// Highest epoch of a move that has begun.
    pub(super) fn moving(&self) -> u64 {
        let shards = self.shards.iter().filter_map(|shard| shard.piece.as_ref()?.head.moving);
        shards.chain(self.root.head.moving).max().unwrap_or(0)
    }
}

/// Another root beside the record's.
#[derive(Clone, Debug)]
pub(super) struct Rival {
    pub(super) tree: Tree,
    /// Whether something in it is unreadable: then it stays.
    pub(super) damaged: bool,
}

/// What may be done with a name for a root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Name {
    Free,
    /// Taken by the record, or by what is not ours to remove.
    Taken,
    /// Taken by a root that is no longer needed.
    Spent,
}

/// A parent's record as it was read, without the entries.
#[derive(Clone, Debug)]
pub(super) struct Record {
    pub(super) tree: Tree,
    pub(super) rival: Option<Rival>,
    /// Whether the root's other name can be used.
    pub(super) other: Name,
    /// Objects that are no longer needed.
    pub(super) spent: Vec<String>,
    pub(super) damaged: bool,
    pub(super) hidden: Counts,
}

impl Record {
    /// A record just written.
    pub(super) fn new(tree: Tree) -> Self {
        let (rival, spent) = (None, Vec::new());
        Self { tree, rival, other: Name::Free, spent, damaged: false, hidden: Counts::new() }
    }

    /// All objects that are there, roots last and the record's own root the very last.
    pub(super) fn seen(&self) -> impl Iterator<Item = &Seen> {
        self.rival.iter().flat_map(|rival| rival.tree.seen()).chain(self.tree.seen())
    }

    /// Whether an object of the record is being deleted.
    pub(super) fn terminating(&self) -> bool {
        self.tree.seen().any(|seen| seen.terminating)
    }

    /// A text that differs whenever an object of the record does.
    pub(super) fn token(&self) -> String {
        let parts = self.seen().flat_map(|seen| [&seen.name, &seen.uid, &seen.resource_version]);
        Check::over(parts.map(|part| part.as_bytes())).to_string()
    }
}

/// What the two names for roots hold.
#[derive(Debug)]
pub(super) struct Survey {
    winner: Option<Root>,
    rival: Option<(Root, bool)>,
    names: [Name; 2],
    spent: Vec<String>,
    damage: Vec<Damage>,
}

#[derive(Debug)]
struct Root {
    slot: Slot,
    object: ConfigMap,
    head: RootHead,
}

/// A name under which something else than a root was found.
#[derive(Debug)]
pub(super) struct Foreign {
    pub(super) place: String,
    pub(super) problem: String,
}

/// Tells roots from what else may be under their names.
///
/// # Errors
/// If no root is readable, but something is there.
pub(super) fn survey(naming: &Naming, objects: [Option<ConfigMap>; 2]) -> Result<Survey, Foreign> {
    let mut survey =
        Survey { winner: None, rival: None, names: [Name::Free; 2], spent: Vec::new(), damage: Vec::new() };
    let mut roots = Vec::new();
    for ((slot, object), name) in Slot::BOTH.into_iter().zip(objects).zip(&mut survey.names) {
        let Some(object) = object else { continue };
        *name = Name::Taken;
        let guarded = naming.guards(object.metadata.finalizers.as_deref().unwrap_or_default());
        match naming.read_root(&object) {
            // Let go by us; somebody else's finalizer still holds it.
            Ok(head) if (head.deleting.is_some() || head.superseded_by.is_some()) && !guarded => {}
            Ok(head) => roots.push(Root { slot, object, head }),
            Err(problem) => survey.damage.push(Damage::new(naming.root(slot), problem)),
        }
    }
    roots.sort_by_key(|root| (root.head.epoch, std::cmp::Reverse(root.slot)));
    survey.winner = roots.pop();
    let Some(winner) = &mut survey.winner else {
        return match survey.damage.pop() {
            Some(Damage { place, problem, .. }) => Err(Foreign { place, problem }),
            None => Ok(survey),
        };
    };
    let epoch = winner.head.epoch;
    if let Some(newer) = winner.head.superseded_by {
        winner.head.lost.insert(format!("it was replaced by a record of epoch {newer}, which is missing"));
    }
    if let Some(root) = roots.pop() {
        if root.head.superseded_by.is_some_and(|by| by <= epoch) {
            let seen = Seen::of(&root.object.metadata, naming);
            survey.spent.extend(naming.shards(&root.head));
            survey.spent.push(seen.name);
            survey.names[root.slot as usize] = Name::Spent;
        } else {
            // A root that has moved here completely, except for the word that it has.
            let moved = root.head.moving == Some(epoch);
            survey.rival = Some((root, !moved));
        }
    }
    Ok(survey)
}

impl Survey {
    /// Names for a root, of which one may be free.
    pub(super) fn free(&self) -> Option<Slot> {
        Slot::BOTH.into_iter().zip(self.names).find(|(_, name)| *name == Name::Free).map(|(slot, _)| slot)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.winner.is_none()
    }

    /// Whether there is a record, and it doesn't point to another.
    pub(super) fn is_whole(&self) -> bool {
        self.winner.as_ref().is_some_and(|winner| winner.head.superseded_by.is_none())
    }

    /// Names of the shards to read.
    pub(super) fn shards(&self, naming: &Naming) -> Vec<String> {
        let rival = self.rival.iter().filter(|(_, united)| *united).map(|(root, _)| root);
        self.winner.iter().chain(rival).flat_map(|root| naming.shards(&root.head)).collect()
    }
}

/// A record with what it says.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) record: Record,
    pub(super) inventory: Inventory,
    pub(super) damage: Vec<Damage>,
}

/// Puts a record together; `None` if there is none. `shards` holds the objects that [`Survey::shards`] names, as far
/// as they exist.
pub(super) fn assemble(survey: Survey, mut shards: BTreeMap<String, ConfigMap>, naming: &Naming) -> Option<Found> {
    let Survey { winner, rival, names, mut spent, mut damage } = survey;
    let Root { slot, object, head } = winner?;
    let mut inventory = head.inventory();
    let mut recorded = Counts::new();
    let mut collect = Collector { inventory: &mut inventory, recorded: &mut recorded, damage: &mut damage };
    let mut tree = collect.tree(slot, &object, head, &mut shards, naming);
    if tree.root.head.deleting == Some(0) {
        // All that is missing was removed with the record's last entry, and what is left is on its way.
        spent.extend(tree.shards.iter().map(|shard| shard.name.clone()));
        collect.damage.retain(|damage| tree.shards.iter().all(|shard| shard.name != damage.place));
        tree.shards.clear();
        Arc::make_mut(&mut tree.root).head.shards = None;
    }
    let rival = rival.map(|(Root { slot, object, head }, united)| {
        let known = collect.damage.len();
        if united {
            collect.inventory.held.extend(head.held.iter().cloned());
            let tree = collect.tree(slot, &object, head, &mut shards, naming);
            return Rival { tree, damaged: collect.damage.len() > known };
        }
        spent.extend(naming.shards(&head));
        let Reading { piece, .. } = piece::read(&object, head, None, naming);
        let tree = Tree { slot, root: Arc::new(piece), shards: Vec::new() };
        Rival { tree, damaged: false }
    });
    let hidden =
        if damage.is_empty() { Counts::new() } else { dependents::hidden(&recorded, &inventory.count_dependents()) };
    dependents::report(&mut inventory, &hidden);
    let other = names[slot.other() as usize];
    let record = Record { tree, rival, other, spent, damaged: !damage.is_empty(), hidden };
    Some(Found { record, inventory, damage })
}

struct Collector<'a> {
    inventory: &'a mut Inventory,
    recorded: &'a mut Counts,
    damage: &'a mut Vec<Damage>,
}

impl Collector<'_> {
    fn tree(
        &mut self,
        slot: Slot,
        object: &ConfigMap,
        head: RootHead,
        shards: &mut BTreeMap<String, ConfigMap>,
        naming: &Naming,
    ) -> Tree {
        let layout = head.shards.clone();
        let names = naming.shards(&head);
        let root = self.piece(piece::read(object, head, None, naming));
        let Some(layout) = layout else { return Tree { slot, root, shards: Vec::new() } };
        let shards = names.into_iter().enumerate().map(|(index, name)| {
            let Some(object) = shards.remove(&name) else {
                self.damage.push(Damage::new(&name, "the shard is missing"));
                return Shard { name, piece: None };
            };
            let expected = ShardHead::new(&layout, index);
            let head = ShardHead::read(object.data.as_ref().unwrap_or(&BTreeMap::new()), &naming.sealer);
            let (head, problem) = match head {
                Ok(head) if head.shards == layout && head.index == index => (head, None),
                Ok(_) => (expected, Some("it is another shard than its name says".to_owned())),
                Err(problem) => (expected, Some(problem)),
            };
            let piece = Some(self.piece(piece::read(&object, head, problem, naming)));
            Shard { name, piece }
        });
        let shards = shards.collect();
        Tree { slot, root, shards }
    }

    fn piece<H>(&mut self, reading: Reading<H>) -> Arc<Piece<H>> {
        let Reading { piece, entries, damage } = reading;
        self.damage.extend(damage);
        for (id, count) in &piece.held.counts {
            let recorded = self.recorded.entry(*id).or_insert(0);
            *recorded = (*recorded).max(*count);
        }
        for entry in entries {
            if self.inventory.get(&entry.id).is_none() {
                self.inventory.insert(entry);
            }
        }
        Arc::new(piece)
    }
}
