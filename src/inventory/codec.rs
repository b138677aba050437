//! How entries are written down.
//!
//! Format `v1`. An entry is one JSON object whose last member is a checksum over everything before it and over the
//! parent's identity, so a flipped byte, a cut, and an entry copied from another parent's record are all noticed, each
//! by itself. Requirements repeat a lot; an entry names them by hash, and each is written once a stored object. Entries
//! depend on identities (by [`StableId`]), never on positions. There is no manifest in an entry and no content of any
//! object.
//!
//! This module decides what a text says or that it says nothing. It knows nothing of objects, shards or IO.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    fmt,
    io::{Read, Write},
};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};

use super::{
    DeletionPolicy, Edge, Entry, EntryState, ForcedBy, InUsePolicy, Origin, Requirement, Role, dependents::Counts,
};
use crate::object::{ObjectId, StableId, Uid};

/// The format's name, in every stored object.
pub(super) const FORMAT: &str = "v1";

/// Most bytes that a compressed text may hold, so that a forged one cannot take the memory. A stored object of half the
/// API server's limit expands to a fraction of it.
const MAX_UNPACKED: u64 = 64 << 20;

/// The first 64 bits of a SHA-256. Serialises as 16 hexadecimal digits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Check(u64);

impl Check {
    /// Over all parts, each preceded by its length so that no two lists of parts are alike.
    pub(super) fn over<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut hash = Sha256::new();
        for part in parts {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        Self::of(hash)
    }

    fn of(hash: Sha256) -> Self {
        let mut bits = [0; 8];
        bits.copy_from_slice(&hash.finalize()[..8]);
        Self(u64::from_be_bytes(bits))
    }

    fn parse(text: &str) -> Option<Self> {
        let hex = text.len() == 16 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        u64::from_str_radix(text, 16).ok().filter(|_| hex).map(Self)
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl Serialize for Check {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Check {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| serde::de::Error::custom("a checksum has 16 hexadecimal digits"))
    }
}

/// How many entries a stored object holds, and which: tells a text that lost some from one that never had them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Tally {
    /// How many.
    pub(super) entries: usize,
    /// Over their identities and checksums.
    pub(super) digest: Check,
}

impl Tally {
    pub(super) fn of(checks: &BTreeMap<StableId, Check>) -> Self {
        let mut hash = Sha256::new();
        for (id, check) in checks {
            hash.update(id.as_bytes());
            hash.update(check.0.to_be_bytes());
        }
        Self { entries: checks.len(), digest: Check::of(hash) }
    }
}

/// The member that ends every sealed text.
const SEAL: &str = ",\"check\":\"";
/// Its length: name, 16 digits, closing quote and brace.
const SEAL_LENGTH: usize = SEAL.len() + 16 + 2;

/// Puts checksums on JSON objects, bound to one parent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sealer {
    parent: StableId,
}

impl Sealer {
    pub(super) fn new(parent: &ObjectId) -> Self {
        Self { parent: parent.stable_id() }
    }

    fn check(&self, kind: &str, body: &str) -> Check {
        Check::over([self.parent.as_bytes().as_slice(), kind.as_bytes(), body.as_bytes()])
    }

    /// `value` as JSON whose last member, `check`, is set to the checksum over what precedes it.
    pub(super) fn seal<T: Serialize>(&self, kind: &str, value: &T) -> Result<(String, Check), serde_json::Error> {
        let mut text = serde_json::to_string(value)?;
        let body = text.strip_suffix(&format!("{SEAL}{}\"}}", Check::default())).map(str::len);
        text.truncate(body.ok_or_else(|| serde::ser::Error::custom("its last member is not an empty checksum"))?);
        let check = self.check(kind, &text);
        text.push_str(SEAL);
        text.push_str(&check.to_string());
        text.push_str("\"}");
        Ok((text, check))
    }

    /// Whether the text is as it was sealed.
    pub(super) fn verify(&self, kind: &str, text: &str) -> Option<Check> {
        let (body, seal) = text.split_at_checked(text.len().checked_sub(SEAL_LENGTH)?)?;
        let check = Check::parse(seal.strip_prefix(SEAL)?.strip_suffix("\"}")?)?;
        (self.check(kind, body) == check).then_some(check)
    }

    /// What was sealed.
    pub(super) fn open<'a, T: Deserialize<'a>>(&self, kind: &str, text: &'a str) -> Result<(T, Check), String> {
        let check = self.verify(kind, text).ok_or("its checksum does not match")?;
        serde_json::from_str(text).map(|value| (value, check)).map_err(|e| e.to_string())
    }
}

/// What an entry's text is sealed as.
const ENTRY: &str = "entry";

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// An entry as JSON. Members with their usual value are left out.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct StoredEntry<'a> {
    #[serde(borrow, default, skip_serializing_if = "str::is_empty")]
    group: Cow<'a, str>,
    #[serde(borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    namespace: Option<Cow<'a, str>>,
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    version: Cow<'a, str>,
    #[serde(borrow)]
    plural: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "is_default")]
    defined_by_crd: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    uid: Option<Uid>,
    state: EntryState,
    #[serde(default, skip_serializing_if = "is_default")]
    deletion: DeletionPolicy,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    in_use: Option<InUsePolicy>,
    #[serde(default, skip_serializing_if = "is_default")]
    forced: ForcedBy,
    #[serde(default, skip_serializing_if = "is_default")]
    origin: Origin,
    #[serde(default, skip_serializing_if = "is_default")]
    role: Role,
    #[serde(borrow, default, skip_serializing_if = "Vec::is_empty")]
    edges: Vec<StoredEdge<'a>>,
    #[serde(default, skip_serializing_if = "is_default")]
    dependents: u32,
    #[serde(default, skip_serializing_if = "is_default")]
    recreations: u32,
    check: Check,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredEdge<'a> {
    to: StableId,
    #[serde(borrow)]
    why: Cow<'a, str>,
}

/// An entry as it is written.
#[derive(Clone, Debug)]
pub(super) struct EncodedEntry {
    pub(super) id: StableId,
    pub(super) dependents: u32,
    pub(super) check: Check,
    pub(super) text: String,
}

/// The entries of one stored object, written.
#[derive(Clone, Debug, Default)]
pub(super) struct Draft {
    /// In order of identity, which compresses best.
    pub(super) entries: Vec<EncodedEntry>,
    /// By the name that entries use.
    pub(super) requirements: BTreeMap<String, String>,
    /// How many of the entries depend on each identity.
    pub(super) edges: Counts,
}

impl Draft {
    /// Writes `entries`, with `counts` as the number of their dependents.
    pub(super) fn new<'a>(
        entries: impl IntoIterator<Item = &'a (StableId, &'a Entry)>,
        counts: &Counts,
        sealer: &Sealer,
    ) -> Result<Self, serde_json::Error> {
        let mut draft = Self::default();
        let mut names: BTreeMap<&Requirement, String> = BTreeMap::new();
        for (id, entry) in entries {
            // Names every field, so that a new one can't be forgotten here.
            let Entry {
                id: identity,
                version,
                plural,
                defined_by_crd,
                uid,
                state,
                deletion,
                in_use,
                forced,
                origin,
                role,
                edges,
                dependents: _,
                recreations,
            } = entry;
            let mut stored_edges = Vec::with_capacity(edges.len());
            for Edge { to, requirement } in edges {
                let why = match names.get(requirement) {
                    Some(name) => name.clone(),
                    None => {
                        let text = serde_json::to_string(requirement)?;
                        let name = requirement_name(&text);
                        draft.requirements.insert(name.clone(), text);
                        names.entry(requirement).or_insert(name).clone()
                    }
                };
                *draft.edges.entry(*to).or_insert(0) += 1;
                stored_edges.push(StoredEdge { to: *to, why: why.into() });
            }
            let dependents = counts.get(id).copied().unwrap_or(0);
            let stored = StoredEntry {
                group: identity.group().into(),
                kind: identity.kind().into(),
                namespace: identity.namespace().map(Into::into),
                name: identity.name().into(),
                version: version.into(),
                plural: plural.into(),
                defined_by_crd: *defined_by_crd,
                uid: uid.clone(),
                state: *state,
                deletion: *deletion,
                in_use: *in_use,
                forced: forced.clone(),
                origin: *origin,
                role: *role,
                edges: stored_edges,
                dependents,
                recreations: *recreations,
                check: Check::default(),
            };
            let (text, check) = sealer.seal(ENTRY, &stored)?;
            draft.entries.push(EncodedEntry { id: *id, dependents, check, text });
        }
        Ok(draft)
    }

    /// The checksums by identity.
    pub(super) fn checks(&self) -> BTreeMap<StableId, Check> {
        self.entries.iter().map(|entry| (entry.id, entry.check)).collect()
    }

    /// Bytes of all texts.
    pub(super) fn size(&self) -> usize {
        let entries: usize = self.entries.iter().map(|e| e.text.len()).sum();
        entries + self.requirements.values().map(String::len).sum::<usize>()
    }

    /// Bytes of the longest text.
    pub(super) fn largest(&self) -> usize {
        self.entries.iter().map(|e| e.text.len()).chain(self.requirements.values().map(String::len)).max().unwrap_or(0)
    }

    /// All texts, compressed: lines of `r` requirement and `e` entry.
    pub(super) fn pack(&self) -> std::io::Result<Vec<u8>> {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        let mut line =
            |kind: &str, text: &str| [kind, text, "\n"].iter().try_for_each(|part| gzip.write_all(part.as_bytes()));
        self.requirements.values().try_for_each(|text| line("r ", text))?;
        self.entries.iter().try_for_each(|entry| line("e ", &entry.text))?;
        gzip.finish()
    }
}

/// The name that entries use for a requirement.
pub(super) fn requirement_name(text: &str) -> String {
    Check::over([text.as_bytes()]).to_string()
}

/// Requirements by name. A text that does not hash to its name is not there, so nothing can mean it.
#[derive(Debug, Default)]
pub(super) struct Requirements(BTreeMap<String, Requirement>);

impl Requirements {
    pub(super) fn add(&mut self, text: &str) -> bool {
        let read = serde_json::from_str(text);
        read.is_ok_and(|requirement| {
            self.0.insert(requirement_name(text), requirement);
            true
        })
    }

    pub(super) fn holds(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }
}

/// An entry as it was read.
#[derive(Debug)]
pub(super) struct DecodedEntry {
    pub(super) id: StableId,
    pub(super) check: Check,
    pub(super) entry: Entry,
}

/// Reads an entry, or says what is wrong with it.
pub(super) fn decode_entry(text: &str, requirements: &Requirements, sealer: &Sealer) -> Result<DecodedEntry, String> {
    let (stored, check): (StoredEntry<'_>, _) = sealer.open(ENTRY, text)?;
    let namespace = stored.namespace.as_deref();
    let id = ObjectId::new(&stored.group, &stored.kind, namespace, &stored.name).map_err(|e| e.to_string())?;
    let mut edges = BTreeSet::new();
    for StoredEdge { to, why } in &stored.edges {
        let requirement = requirements.0.get(why.as_ref());
        let requirement = requirement.ok_or_else(|| format!("the requirement {why:?} of an edge is unreadable"))?;
        edges.insert(Edge { to: *to, requirement: requirement.clone() });
    }
    let entry = Entry {
        version: stored.version.into_owned(),
        plural: stored.plural.into_owned(),
        defined_by_crd: stored.defined_by_crd,
        uid: stored.uid,
        state: stored.state,
        deletion: stored.deletion,
        in_use: stored.in_use,
        forced: stored.forced,
        origin: stored.origin,
        role: stored.role,
        edges,
        dependents: stored.dependents,
        recreations: stored.recreations,
        id,
    };
    Ok(DecodedEntry { id: entry.id.stable_id(), check, entry })
}

/// The identity in an unreadable entry, if it hashes to `expected` and so was not changed.
pub(super) fn salvage_id(text: &str, expected: &StableId) -> Option<ObjectId> {
    let value: serde_json::Value = serde_json::from_str(text).ok()?;
    let part = |name: &str| value.get(name).and_then(serde_json::Value::as_str);
    let id = ObjectId::new(part("group").unwrap_or(""), part("kind")?, part("namespace"), part("name")?).ok()?;
    (id.stable_id() == *expected).then_some(id)
}

/// What could be read of a packed text.
#[derive(Debug, Default)]
pub(super) struct Unpacked {
    pub(super) entries: Vec<DecodedEntry>,
    /// One for each thing that could not be read.
    pub(super) problems: Vec<String>,
}

/// Reads a packed text as far as it can be read.
pub(super) fn unpack(packed: &[u8], sealer: &Sealer) -> Unpacked {
    let mut plain = Vec::new();
    let mut unpacked = Unpacked::default();
    // On an error, what was read before it is in `plain`: each line speaks for itself.
    match flate2::read::GzDecoder::new(packed).take(MAX_UNPACKED + 1).read_to_end(&mut plain) {
        Ok(read) if read as u64 > MAX_UNPACKED => {
            unpacked.problems.push("the compressed text is too long".into());
            return unpacked;
        }
        Ok(_) => {}
        Err(e) => unpacked.problems.push(format!("the compressed text cannot be read to its end: {e}")),
    }
    let mut requirements = Requirements::default();
    let lines = || plain.split(|byte| *byte == b'\n').map(std::str::from_utf8).filter(|line| *line != Ok(""));
    for text in lines().filter_map(|line| line.ok()?.strip_prefix("r ")) {
        requirements.add(text);
    }
    for (number, line) in lines().enumerate() {
        let entry = match line {
            Ok(line) if line.starts_with("r ") => continue,
            Ok(line) => line.strip_prefix("e ").ok_or_else(|| "it is not an entry".to_owned()),
            Err(e) => Err(e.to_string()),
        };
        match entry.and_then(|text| decode_entry(text, &requirements, sealer)) {
            Ok(entry) => unpacked.entries.push(entry),
            Err(problem) => unpacked.problems.push(format!("line {} is unreadable: {problem}", number + 1)),
        }
    }
    unpacked
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::inventory::testing::{any_inventory, inventory, parent};

    fn draft_of(inventory: &crate::inventory::Inventory) -> (Draft, Sealer) {
        let sealer = Sealer::new(&inventory.parent.id);
        let entries: Vec<_> = inventory.entries().map(|e| (e.id.stable_id(), e)).collect();
        (Draft::new(&entries, &inventory.count_dependents(), &sealer).unwrap(), sealer)
    }

    #[test]
    fn s09_an_entry_of_another_parent_or_kind_of_text_does_not_open() {
        let (draft, _) = draft_of(&inventory(&parent("a", "1"), 1));
        let other = Sealer::new(&parent("b", "1").id);
        let text = &draft.entries[0].text;
        assert!(decode_entry(text, &Requirements::default(), &other).is_err());
        assert!(other.verify("root", text).is_none());
    }

    #[test]
    fn s09_an_entry_without_a_name_is_damage_even_under_a_right_checksum() {
        let sealer = Sealer::new(&parent("a", "1").id);
        let text = |name: &'static str| {
            let inventory = inventory(&parent("a", "1"), 1);
            let (draft, _) = draft_of(&inventory);
            let stored = sealer.open::<StoredEntry<'_>>(ENTRY, &draft.entries[0].text).unwrap().0;
            sealer.seal(ENTRY, &StoredEntry { name: name.into(), check: Check::default(), ..stored }).unwrap().0
        };
        assert!(decode_entry(&text("x"), &Requirements::default(), &sealer).is_ok());
        assert!(decode_entry(&text(""), &Requirements::default(), &sealer).unwrap_err().contains("needs a name"));
    }

    #[test]
    fn a_packed_text_cannot_take_the_memory() {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        let zeros = vec![b'\n'; 1 << 20];
        for _ in 0..65 {
            gzip.write_all(&zeros).unwrap();
        }
        let unpacked = unpack(&gzip.finish().unwrap(), &Sealer::new(&parent("a", "1").id));
        assert_eq!(unpacked.problems, ["the compressed text is too long"]);
    }

    proptest! {
        #[test]
        fn packed_entries_read_back(inventory in any_inventory()) {
            let (draft, sealer) = draft_of(&inventory);
            let unpacked = unpack(&draft.pack().unwrap(), &sealer);
            prop_assert_eq!(unpacked.problems, Vec::<String>::new());
            let mut read = inventory.clone();
            for decoded in unpacked.entries {
                prop_assert_eq!(Some(decoded.check), draft.checks().get(&decoded.id).copied());
                let mut entry = decoded.entry;
                prop_assert_eq!(entry.dependents, inventory.count_dependents().get(&decoded.id).copied().unwrap_or(0));
                entry.dependents = inventory.get(&entry.id).unwrap().dependents;
                prop_assert!(read.remove(&entry.id).is_some_and(|old| old == entry));
            }
            prop_assert!(read.is_empty());
        }

        #[test]
        fn a_mutated_text_never_yields_an_entry_that_was_not_written(
            inventory in any_inventory(),
            at in any::<prop::sample::Index>(),
            byte in any::<u8>(),
            cut in any::<prop::sample::Index>(),
        ) {
            let (draft, sealer) = draft_of(&inventory);
            let known: BTreeSet<_> = draft.entries.iter().map(|e| (e.id, e.check)).collect();
            let mut packed = draft.pack().unwrap();
            let index = at.index(packed.len());
            packed[index] = byte;
            packed.truncate(cut.index(packed.len()) + 1);
            for entry in unpack(&packed, &sealer).entries {
                prop_assert!(known.contains(&(entry.id, entry.check)));
            }
            let mut requirements = Requirements::default();
            draft.requirements.values().for_each(|text| { requirements.add(text); });
            for entry in &draft.entries {
                let mut text = entry.text.clone().into_bytes();
                let index = at.index(text.len());
                if text[index] != byte {
                    text[index] = byte;
                    let text = String::from_utf8_lossy(&text);
                    prop_assert!(decode_entry(&text, &requirements, &sealer).is_err());
                }
            }
        }
    }
}
