//! The head of a stored object: what it is a part of, and what it must hold.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    inventory::{
        ClusterId, Decision, Inventory,
        codec::{Check, FORMAT, Sealer, Tally},
    },
    object::{ObjectId, ParentRef},
};

/// Keys of the head: written twice, so that one flipped byte doesn't take the way to everything else.
pub(super) const KEYS: [&str; 2] = ["inventory", "inventory.copy"];

/// Where the entries are, if not in the root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Shards {
    /// The root's epoch when they were made.
    pub(super) epoch: u64,
    /// How many.
    pub(super) count: usize,
    /// A hash of their first content, so that two attempts never meet under one name by accident.
    pub(super) tag: String,
}

/// The head of a root.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RootHead {
    pub(super) format: String,
    pub(super) parent: ParentRef,
    pub(super) cluster: ClusterId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) creator: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) decision: Option<Decision>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(super) held: BTreeSet<ObjectId>,
    /// The root with the highest one is the record.
    pub(super) epoch: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) shards: Option<Shards>,
    /// A move to a root of this epoch has begun. Whoever wants to write here instead raises the epoch above it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) moving: Option<u64>,
    /// The root of this epoch holds everything that this one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) superseded_by: Option<u64>,
    /// The record is being removed, and held so many entries when that began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) deleting: Option<usize>,
    pub(super) tally: Tally,
    /// What was found missing, by all loads so far.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(super) lost: BTreeSet<String>,
    pub(super) check: Check,
}

impl RootHead {
    /// The head of a fresh root for `inventory`.
    pub(super) fn new(inventory: &Inventory, epoch: u64) -> Self {
        // Names every field, so that a new one can't be forgotten here.
        let Inventory { parent, cluster, creator, decision, held, entries: _ } = inventory;
        Self {
            format: FORMAT.into(),
            parent: parent.clone(),
            cluster: cluster.clone(),
            creator: creator.clone(),
            decision: decision.clone(),
            held: held.clone(),
            epoch,
            shards: None,
            moving: None,
            superseded_by: None,
            deleting: None,
            tally: Tally::of(&BTreeMap::new()),
            lost: BTreeSet::new(),
            check: Check::default(),
        }
    }

    /// Whose record a root says that it is, without its checksum, which can only be judged for a known parent.
    pub(super) fn peek(texts: &BTreeMap<String, String>) -> Option<ParentRef> {
        let text = |key: &&str| serde_json::from_str::<serde_json::Value>(texts.get(*key)?).ok();
        KEYS.iter().find_map(text).and_then(|mut head| serde_json::from_value(head.get_mut("parent")?.take()).ok())
    }

    /// The inventory without its entries.
    pub(super) fn inventory(&self) -> Inventory {
        let mut inventory = Inventory::new(self.parent.clone(), self.cluster.clone());
        inventory.creator.clone_from(&self.creator);
        inventory.decision.clone_from(&self.decision);
        inventory.held.clone_from(&self.held);
        inventory
    }
}

/// The head of a shard.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ShardHead {
    pub(super) format: String,
    pub(super) shards: Shards,
    pub(super) index: usize,
    /// As in the root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) moving: Option<u64>,
    pub(super) tally: Tally,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(super) lost: BTreeSet<String>,
    pub(super) check: Check,
}

impl ShardHead {
    pub(super) fn new(shards: &Shards, index: usize) -> Self {
        Self {
            format: FORMAT.into(),
            shards: shards.clone(),
            index,
            moving: None,
            tally: Tally::of(&BTreeMap::new()),
            lost: BTreeSet::new(),
            check: Check::default(),
        }
    }
}

/// What roots and shards have in common.
pub(super) trait Head: Serialize + DeserializeOwned + Clone {
    const KIND: &'static str;
    fn tally(&self) -> Tally;
    fn lost(&self) -> &BTreeSet<String>;
    /// The same head over other entries, without a checksum yet.
    fn over(self, tally: Tally, lost: BTreeSet<String>) -> Self;
    fn format(&self) -> &str;

    /// The head as it is stored.
    fn texts(&self, sealer: &Sealer) -> Result<BTreeMap<String, String>, serde_json::Error> {
        let (text, _) = sealer.seal(Self::KIND, self)?;
        Ok(KEYS.iter().map(|key| ((*key).to_owned(), text.clone())).collect())
    }

    /// Reads whichever of the two copies is whole.
    fn read(texts: &BTreeMap<String, String>, sealer: &Sealer) -> Result<Self, String> {
        let mut problem = "it holds no inventory".to_owned();
        for text in KEYS.iter().filter_map(|key| texts.get(*key)) {
            match sealer.open::<Self>(Self::KIND, text) {
                Ok((head, _)) if head.format() == FORMAT => {
                    let (tally, lost) = (head.tally(), head.lost().clone());
                    return Ok(head.over(tally, lost));
                }
                Ok((head, _)) => problem = unknown_format(head.format()),
                Err(e) => problem = diagnose(text).unwrap_or_else(|| format!("its head is unreadable: {e}")),
            }
        }
        Err(problem)
    }
}

fn unknown_format(format: &str) -> String {
    let format: String = format.chars().take(20).collect();
    format!("its format {format:?} is not known to this version of the operator, which reads {FORMAT:?}")
}

/// Why a head does not open, where its text still tells.
fn diagnose(text: &str) -> Option<String> {
    let value: serde_json::Value = serde_json::from_str(text).ok()?;
    let format = value.get("format").and_then(serde_json::Value::as_str)?;
    (format != FORMAT).then(|| unknown_format(format))
}

impl Head for RootHead {
    const KIND: &'static str = "root";
    fn tally(&self) -> Tally {
        self.tally
    }
    fn lost(&self) -> &BTreeSet<String> {
        &self.lost
    }
    fn over(self, tally: Tally, lost: BTreeSet<String>) -> Self {
        Self { tally, lost, check: Check::default(), ..self }
    }
    fn format(&self) -> &str {
        &self.format
    }
}

impl Head for ShardHead {
    const KIND: &'static str = "shard";
    fn tally(&self) -> Tally {
        self.tally
    }
    fn lost(&self) -> &BTreeSet<String> {
        &self.lost
    }
    fn over(self, tally: Tally, lost: BTreeSet<String>) -> Self {
        Self { tally, lost, check: Check::default(), ..self }
    }
    fn format(&self) -> &str {
        &self.format
    }
}

/// A tag for shards with this content.
pub(super) fn tag(epoch: u64, tallies: impl IntoIterator<Item = Tally>) -> String {
    let digests: Vec<_> = tallies.into_iter().map(|tally| tally.digest.to_string().into_bytes()).collect();
    let epoch = epoch.to_be_bytes();
    Check::over(digests.iter().map(Vec::as_slice).chain([epoch.as_slice()])).to_string().chars().take(12).collect()
}
