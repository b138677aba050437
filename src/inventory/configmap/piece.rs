//! One stored object: from a ConfigMap to what it holds, and to the change that makes it hold something else.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{ByteString, api::core::v1::ConfigMap, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{head::Head, names::Naming};
use crate::{
    inventory::{
        Damage, Entry,
        codec::{self, Check, DecodedEntry, Requirements, Sealer, Tally},
        dependents::Counts,
        shards::Body,
    },
    object::{ParentRef, StableId},
};

/// Key prefix of an entry's text; its hash follows.
const ENTRY: &str = "entry.";
/// Key prefix of a requirement's text; its hash follows.
const REQUIREMENT: &str = "requirement.";
/// Key of the packed entries.
const PACKED: &str = "entries.gz";
/// Key of numbers of dependents that are raised for the time of a save.
const RAISED: &str = "raised";
/// Key prefix of packed entries that could not be read whole and are kept; a hash follows.
const QUARANTINE: &str = "quarantine.";

/// Key of an entry's text.
pub(super) fn entry_key(id: &StableId) -> String {
    format!("{ENTRY}{id}")
}

/// What a request needs to know of an object's metadata.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) resource_version: String,
    pub(super) terminating: bool,
    pub(super) finalizers: Vec<String>,
    /// Value of the label that names the parent.
    parent: Option<String>,
}

impl Seen {
    pub(super) fn of(meta: &ObjectMeta, naming: &Naming) -> Self {
        let label = naming.manager.parent_label();
        Self {
            name: meta.name.clone().unwrap_or_default(),
            uid: meta.uid.clone().unwrap_or_default(),
            resource_version: meta.resource_version.clone().unwrap_or_default(),
            terminating: meta.deletion_timestamp.is_some(),
            finalizers: meta.finalizers.clone().unwrap_or_default(),
            parent: meta.labels.as_ref().and_then(|labels| labels.get(&label).cloned()),
        }
    }
}

/// What could not be read, as it is stored.
#[derive(Clone, Debug, Default)]
pub(super) struct Unreadable {
    pub(super) texts: BTreeMap<String, String>,
    pub(super) packed: BTreeMap<String, Vec<u8>>,
}

impl Unreadable {
    pub(super) fn size(&self) -> usize {
        self.texts.values().map(String::len).sum::<usize>() + self.packed.values().map(Vec::len).sum::<usize>()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.texts.is_empty() && self.packed.is_empty()
    }
}

/// What one stored object holds, without the entries themselves.
#[derive(Clone, Debug, Default)]
pub(super) struct Held {
    pub(super) checks: BTreeMap<StableId, Check>,
    /// Recorded numbers of dependents.
    pub(super) counts: Counts,
    /// What the entries depend on.
    pub(super) edges: Counts,
    raised: bool,
    packed: bool,
    /// Keys of readable texts.
    keys: BTreeSet<String>,
    pub(super) unreadable: Unreadable,
    /// Whether the packed entries are among the unreadable.
    broken: bool,
    /// What is missing.
    pub(super) lost: BTreeSet<String>,
}

/// A stored object.
#[derive(Clone, Debug)]
pub(super) struct Piece<H> {
    pub(super) seen: Seen,
    pub(super) head: H,
    pub(super) held: Held,
}

/// What was read from a stored object.
#[derive(Debug)]
pub(super) struct Reading<H> {
    pub(super) piece: Piece<H>,
    pub(super) entries: Vec<Entry>,
    pub(super) damage: Vec<Damage>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Raised {
    raised: Counts,
    check: Check,
}

/// Reads the entries of `object` under `head`.
///
/// `problem` is why the head is not the stored one, if it had to be made up.
pub(super) fn read<H: Head>(object: &ConfigMap, head: H, problem: Option<String>, naming: &Naming) -> Reading<H> {
    let seen = Seen::of(&object.metadata, naming);
    let mut reader = Reader { place: seen.name.clone(), ..Reader::default() };
    if let Some(texts) = &object.data {
        reader.texts(texts, &naming.sealer);
    }
    if let Some(bytes) = &object.binary_data {
        reader.bytes(bytes, &naming.sealer);
    }
    if let Some(texts) = &object.data {
        reader.raised(texts, &naming.sealer);
    }
    reader.held.lost.extend(head.lost().iter().cloned());
    reader.compare(head.tally(), problem);
    let lost = reader.held.lost.iter().map(|problem| Damage::new(&reader.place, problem));
    reader.damage.extend(lost);
    let Reader { held, entries, damage, .. } = reader;
    Reading { piece: Piece { seen, head, held }, entries, damage }
}

#[derive(Default)]
struct Reader {
    place: String,
    held: Held,
    entries: Vec<Entry>,
    damage: Vec<Damage>,
}

impl Reader {
    fn add(&mut self, decoded: DecodedEntry) -> Result<(), String> {
        let DecodedEntry { id, check, entry } = decoded;
        match self.held.checks.get(&id) {
            Some(known) if *known == check => return Ok(()),
            Some(_) => return Err("another text holds the same entry".into()),
            None => {}
        }
        self.held.checks.insert(id, check);
        if entry.dependents > 0 {
            self.held.counts.insert(id, entry.dependents);
        }
        for edge in &entry.edges {
            *self.held.edges.entry(edge.to).or_insert(0) += 1;
        }
        self.entries.push(entry);
        Ok(())
    }

    fn texts(&mut self, texts: &BTreeMap<String, String>, sealer: &Sealer) {
        let mut requirements = Requirements::default();
        for (key, text) in texts {
            let Some(name) = key.strip_prefix(REQUIREMENT) else { continue };
            // An unreadable one shows in the entries that need it, and is kept for them.
            if requirements.add(text) && requirements.holds(name) {
                self.held.keys.insert(key.clone());
            } else {
                self.held.unreadable.texts.insert(key.clone(), text.clone());
            }
        }
        for (key, text) in texts {
            let Some(name) = key.strip_prefix(ENTRY) else { continue };
            let id: Option<StableId> = name.parse().ok();
            let entry = codec::decode_entry(text, &requirements, sealer);
            let entry = entry.and_then(|entry| match id {
                Some(id) if id == entry.id => self.add(entry),
                _ => Err("it is not the entry that its key names".into()),
            });
            match entry {
                Ok(()) => {
                    self.held.keys.insert(key.clone());
                }
                Err(problem) => {
                    let mut damage = Damage::new(format!("{}/{key}", self.place), problem);
                    damage.stable_id = id;
                    damage.id = id.and_then(|id| codec::salvage_id(text, &id));
                    self.damage.push(damage);
                    self.held.unreadable.texts.insert(key.clone(), text.clone());
                }
            }
        }
    }

    fn bytes(&mut self, bytes: &BTreeMap<String, ByteString>, sealer: &Sealer) {
        if let Some(ByteString(packed)) = bytes.get(PACKED) {
            self.held.packed = true;
            let mut unpacked = codec::unpack(packed, sealer);
            for entry in unpacked.entries {
                unpacked.problems.extend(self.add(entry).err());
            }
            if !unpacked.problems.is_empty() {
                self.held.broken = true;
                self.quarantine(PACKED, packed, unpacked.problems);
            }
        }
        for (key, ByteString(packed)) in bytes.iter().filter(|(key, _)| key.starts_with(QUARANTINE)) {
            let mut problems = codec::unpack(packed, sealer).problems;
            if problems.is_empty() {
                problems.push("it was set aside".into());
            }
            self.quarantine(key, packed, problems);
        }
    }

    fn quarantine(&mut self, key: &str, packed: &[u8], problems: Vec<String>) {
        let place = format!("{}/{key}", self.place);
        self.damage.extend(problems.into_iter().map(|problem| Damage::new(&place, problem)));
        let kept = format!("{QUARANTINE}{}", Check::over([packed]));
        self.held.unreadable.packed.insert(kept, packed.to_vec());
    }

    fn raised(&mut self, texts: &BTreeMap<String, String>, sealer: &Sealer) {
        let Some(text) = texts.get(RAISED) else { return };
        self.held.raised = true;
        match sealer.open::<Raised>(RAISED, text) {
            Ok((Raised { raised, .. }, _)) => {
                for (id, number) in raised {
                    if self.held.checks.contains_key(&id) {
                        let count = self.held.counts.entry(id).or_insert(0);
                        *count = (*count).max(number);
                    }
                }
            }
            // Only while another part was being written, so no entry is concerned that it doesn't name.
            Err(problem) => self.damage.push(Damage::new(format!("{}/{RAISED}", self.place), problem)),
        }
    }

    /// Compares what was read with what the head says was written.
    fn compare(&mut self, written: Tally, problem: Option<String>) {
        if let Some(problem) = problem {
            self.held.lost.insert(problem);
        } else if written != Tally::of(&self.held.checks) && self.held.unreadable.is_empty() {
            let (read, written) = (self.held.checks.len(), written.entries);
            self.held.lost.insert(if read < written {
                format!("{} of {written} entries are missing", written - read)
            } else {
                format!("the {read} entries are not the {written} that were written")
            });
        }
    }
}

/// What is to be stored in one object.
#[derive(Debug)]
pub(super) struct Content {
    texts: BTreeMap<String, String>,
    bytes: BTreeMap<String, Vec<u8>>,
}

impl Content {
    /// `body` under `head`, whose tally is set here.
    pub(super) fn new<H: Head>(
        head: H,
        lost: BTreeSet<String>,
        body: Option<&Body>,
        raised: Counts,
        sealer: &Sealer,
    ) -> Result<Self, serde_json::Error> {
        let tally = Tally::of(&body.map(|body| body.draft().checks()).unwrap_or_default());
        let mut texts = head.over(tally, lost).texts(sealer)?;
        let mut bytes = BTreeMap::new();
        match body {
            Some(Body::Plain(draft)) => {
                texts.extend(draft.entries.iter().map(|e| (entry_key(&e.id), e.text.clone())));
                texts.extend(draft.requirements.iter().map(|(n, text)| (format!("{REQUIREMENT}{n}"), text.clone())));
            }
            Some(Body::Packed(_, packed)) => {
                bytes.insert(PACKED.to_owned(), packed.clone());
            }
            None => {}
        }
        if !raised.is_empty() {
            texts.insert(RAISED.into(), raised_text(raised, sealer)?);
        }
        Ok(Self { texts, bytes })
    }

    /// Adds what another object could not read, to be kept here.
    pub(super) fn keep(&mut self, unreadable: &Unreadable) {
        for (key, text) in &unreadable.texts {
            self.texts.entry(key.clone()).or_insert_with(|| text.clone());
        }
        self.bytes.extend(unreadable.packed.iter().map(|(key, packed)| (key.clone(), packed.clone())));
    }

    pub(super) fn size(&self) -> usize {
        let texts: usize = self.texts.iter().map(|(key, text)| key.len() + text.len()).sum();
        texts + self.bytes.iter().map(|(key, packed)| key.len() + packed.len()).sum::<usize>()
    }

    /// The object to create.
    pub(super) fn object(self, name: String, parent: &ParentRef, naming: &Naming) -> ConfigMap {
        let bytes: BTreeMap<_, _> = self.bytes.into_iter().map(|(key, packed)| (key, ByteString(packed))).collect();
        ConfigMap {
            metadata: naming.metadata(name, parent),
            data: Some(self.texts),
            binary_data: Some(bytes).filter(|bytes| !bytes.is_empty()),
            ..ConfigMap::default()
        }
    }
}

fn raised_text(raised: Counts, sealer: &Sealer) -> Result<String, serde_json::Error> {
    sealer.seal(RAISED, &Raised { raised, check: Check::default() }).map(|(text, _)| text)
}

/// A change of one object's content, as the `data` and `binaryData` of a merge patch.
#[derive(Clone, Debug, Default)]
pub(super) struct Change {
    pub(super) data: Map<String, Value>,
    pub(super) binary_data: Map<String, Value>,
}

impl Change {
    /// Only the head.
    pub(super) fn head<H: Head>(head: &H, sealer: &Sealer) -> Result<Self, serde_json::Error> {
        let data = head.texts(sealer)?.into_iter().map(|(key, text)| (key, text.into())).collect();
        Ok(Self { data, binary_data: Map::new() })
    }

    /// Only the raised numbers; none takes them away.
    pub(super) fn raised(raised: Counts, sealer: &Sealer) -> Result<Self, serde_json::Error> {
        let text = if raised.is_empty() { Value::Null } else { raised_text(raised, sealer)?.into() };
        Ok(Self { data: Map::from_iter([(RAISED.to_owned(), text)]), binary_data: Map::new() })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.data.is_empty() && self.binary_data.is_empty()
    }

    /// The patch, conditional on what was seen.
    pub(super) fn patch(&self, metadata: Value) -> Value {
        let mut patch = json!({ "metadata": metadata });
        for (key, change) in [("data", &self.data), ("binaryData", &self.binary_data)] {
            if !change.is_empty() {
                patch[key] = change.clone().into();
            }
        }
        patch
    }
}

impl<H: Head> Piece<H> {
    /// The change that makes the object hold `content`, and the size it has then. What is unreadable stays, unless an
    /// entry is written under its identity.
    pub(super) fn change_to(&self, content: Content) -> (Change, usize) {
        let Held { keys, unreadable, .. } = &self.held;
        let mut size = content.size() + unreadable.size();
        let mut change = Change::default();
        let written: BTreeSet<_> = content.texts.keys().cloned().collect();
        for key in keys.iter().map(String::as_str).chain(self.held.raised.then_some(RAISED)) {
            if !written.contains(key) {
                change.data.insert(key.to_owned(), Value::Null);
            }
        }
        if self.held.packed && !content.bytes.contains_key(PACKED) {
            change.binary_data.insert(PACKED.into(), Value::Null);
        }
        if self.held.broken {
            let kept = unreadable.packed.iter().map(|(key, packed)| (key.clone(), base64(packed)));
            change.binary_data.extend(kept);
        }
        change.binary_data.extend(content.bytes.iter().map(|(key, packed)| (key.clone(), base64(packed))));
        for (key, text) in content.texts {
            size = size.saturating_sub(unreadable.texts.get(&key).map_or(0, String::len));
            change.data.insert(key, text.into());
        }
        (change, size)
    }

    /// Drops unreadable texts of entries that are written again, in another form or another object.
    pub(super) fn supersede<'a>(&self, change: &mut Change, written: impl Iterator<Item = &'a StableId>) {
        if self.held.unreadable.texts.is_empty() {
            return;
        }
        for key in written.map(entry_key) {
            if self.held.unreadable.texts.contains_key(&key) {
                change.data.entry(key).or_insert(Value::Null);
            }
        }
    }

    /// Whether the object holds exactly these entries and nothing of it has to be put right.
    pub(super) fn is(&self, checks: &BTreeMap<StableId, Check>, parent: &ParentRef, naming: &Naming) -> bool {
        self.held.checks == *checks
            && !self.held.raised
            && self.seen.parent.as_deref() == Some(parent.uid.as_str())
            && (self.seen.terminating || naming.guards(&self.seen.finalizers))
    }

    pub(super) fn is_packed(&self) -> bool {
        self.held.packed
    }
}

fn base64(packed: &[u8]) -> Value {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(packed).into()
}

/// Whether `stored` holds exactly what `ours` was made with.
pub(super) fn same_content(stored: &ConfigMap, ours: &ConfigMap) -> bool {
    let bytes = |object: &ConfigMap| object.binary_data.clone().unwrap_or_default();
    stored.data == ours.data && bytes(stored) == bytes(ours)
}
