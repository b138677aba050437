//! Which stored object an entry lives in, how many there are, and in which order they are written.
//!
//! An entry is placed by its [`StableId`] alone, so that a change touches one stored object however many there are.
//! This module decides; it knows nothing of how a stored object looks.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Entry,
    codec::{Draft, Sealer},
    dependents::Counts,
};
use crate::object::StableId;

/// What the API server takes in one ConfigMap or Secret.
pub(super) const OBJECT_LIMIT: usize = 1 << 20;

/// Most text in one stored object, compressed or not; far below what a reader accepts.
const MAX_TEXT: usize = 16 << 20;

/// How large a stored object may be, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Up to here entries are stored as readable text.
    pub(super) readable: usize,
    /// What a stored object holds when the number of them is chosen: room for UIDs and further entries before it has
    /// to be chosen again.
    pub(super) target: usize,
    /// No stored object is made larger. An object at the limit can't even be deleted, since the deletion mark makes
    /// it larger.
    pub(super) half: usize,
    /// Where even an update that may not create anything is refused.
    pub(super) hard: usize,
}

impl Limits {
    pub(super) const KUBERNETES: Self =
        Self { readable: 96 << 10, target: 192 << 10, half: OBJECT_LIMIT / 2, hard: OBJECT_LIMIT / 8 * 7 };
}

/// The place of an entry among `count` stored objects, counted from zero.
pub(super) fn place(id: &StableId, count: usize) -> usize {
    let [a, b, c, d, ..] = *id.as_bytes();
    let point = u64::from(u32::from_be_bytes([a, b, c, d]));
    // Below 2^32 * 2^31, and the result below `count`.
    ((point * count as u64) >> 32) as usize
}

/// The entries of one stored object in the form they are stored in.
#[derive(Clone, Debug)]
pub(super) enum Body {
    /// One readable text for each entry.
    Plain(Draft),
    /// All in one compressed text.
    Packed(Draft, Vec<u8>),
}

impl Body {
    /// Chooses the form; what is packed stays packed until it is well below the bound.
    pub(super) fn new(draft: Draft, packed_before: bool, limits: &Limits) -> Result<Self, Error> {
        let bound = if packed_before { limits.readable / 2 } else { limits.readable };
        if draft.size() <= bound {
            return Ok(Self::Plain(draft));
        }
        let packed = draft.pack().map_err(Error::Pack)?;
        Ok(Self::Packed(draft, packed))
    }

    pub(super) fn draft(&self) -> &Draft {
        match self {
            Self::Plain(draft) | Self::Packed(draft, _) => draft,
        }
    }

    /// Bytes stored.
    pub(super) fn size(&self) -> usize {
        match self {
            Self::Plain(draft) => draft.size(),
            Self::Packed(_, packed) => packed.len(),
        }
    }

    fn fits(&self, bound: usize) -> bool {
        self.size() <= bound && self.draft().size() <= MAX_TEXT
    }
}

/// Why entries can't be laid out.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("an entry could not be written")]
    Text(#[source] serde_json::Error),
    #[error("entries could not be compressed")]
    Pack(#[source] std::io::Error),
    #[error("an entry takes more than half of a stored object: shorten the evidence of its edges")]
    Oversized,
}

/// Entries by stored object: one body where the root alone holds them, otherwise one for each shard.
#[derive(Debug)]
pub(super) enum Layout {
    Alone(Body),
    Sharded(Vec<Body>),
}

/// Entries that are written and laid out together.
pub(super) type Placed<'a> = (StableId, &'a Entry);

/// Splits entries by place.
pub(super) fn split<'a>(entries: &[Placed<'a>], count: usize) -> Vec<Vec<Placed<'a>>> {
    let mut parts = vec![Vec::new(); count];
    for entry in entries {
        if let Some(part) = parts.get_mut(place(&entry.0, count)) {
            part.push(*entry);
        }
    }
    parts
}

/// Chooses how many stored objects there are, for a record written anew.
pub(super) fn lay_out(
    entries: &[Placed<'_>],
    counts: &Counts,
    sealer: &Sealer,
    limits: &Limits,
) -> Result<Layout, Error> {
    /// More can't fit into one object, so a part of them is enough to learn how well they compress.
    const SAMPLE: usize = 6000;
    let body = |entries: &[Placed<'_>]| -> Result<Body, Error> {
        let draft = Draft::new(entries, counts, sealer).map_err(Error::Text)?;
        Body::new(draft, false, limits)
    };
    let sample = body(entries.get(..SAMPLE).unwrap_or(entries))?;
    if entries.len() <= SAMPLE && sample.fits(limits.target) {
        return Ok(Layout::Alone(sample));
    }
    let room = (limits.target / 4 * 3).max(1);
    let enough = |size: usize, of: usize| (size * entries.len()).div_ceil(of.max(1)).div_ceil(room).max(2);
    let guess = enough(sample.size(), entries.len().min(SAMPLE));
    // Neighbours compress well together, and placing by hash parts them: what one part takes tells more.
    let part = split(entries, guess).into_iter().next().unwrap_or_default();
    let mut count = enough(body(&part)?.size(), part.len()).clamp(guess, guess * 2);
    loop {
        let bodies = split(entries, count).iter().map(|part| body(part)).collect::<Result<Vec<_>, _>>()?;
        // More parts don't help where one entry takes most of the room.
        let fits = |body: &Body| {
            body.fits(limits.target) || (body.fits(limits.half) && body.draft().largest() > limits.target / 2)
        };
        if bodies.iter().all(fits) {
            return Ok(Layout::Sharded(bodies));
        }
        // By then every entry has a part of its own.
        if count > 16 * entries.len() + 16 {
            return Err(Error::Oversized);
        }
        count += count.div_ceil(4);
    }
}

/// One stored object before a save.
#[derive(Debug)]
pub(super) struct Part<'a> {
    /// The entries in it.
    pub(super) holds: BTreeSet<&'a StableId>,
    /// Their recorded numbers of dependents.
    pub(super) counts: Counts,
    /// What they depend on.
    pub(super) edges: &'a Counts,
}

/// One stored object that a save changes.
#[derive(Debug)]
pub(super) struct Rewrite<'a> {
    pub(super) part: usize,
    /// The numbers of dependents of the entries it will hold, zeros included.
    pub(super) counts: Counts,
    /// What they will depend on.
    pub(super) edges: &'a Counts,
}

/// One write of a save.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Write {
    /// Raise the numbers of entries in `part`, and change nothing else.
    Raise { part: usize, to: Counts },
    /// Write the part of `rewrites[rewrite]` whole, keeping `raised` numbers that are still needed.
    Whole { rewrite: usize, raised: Counts },
    /// Drop the raised numbers of `part`.
    Settle { part: usize },
}

/// Orders the writes so that at no moment an entry's recorded number is below the number of stored entries that depend
/// on it, however few of the writes are carried out.
///
/// Usually that is one write for each rewrite. Only where two parts wait for each other, numbers are raised by a write
/// of their own before and settled after.
pub(super) fn order(parts: &[Part<'_>], rewrites: &[Rewrite<'_>], hidden: &Counts) -> Vec<Write> {
    if rewrites.len() <= 1 {
        return (0..rewrites.len()).map(|rewrite| Write::Whole { rewrite, raised: Counts::new() }).collect();
    }
    let mut stored = Stored::new(parts, hidden);
    let deltas: Vec<_> = rewrites.iter().map(|r| Delta::new(parts.get(r.part), r)).collect();
    let mut writes = Vec::new();
    let mut left: Vec<usize> = (0..rewrites.len()).collect();
    let mut before = usize::MAX;
    while left.len() < before {
        before = left.len();
        left.retain(|rewrite| {
            let (delta, rewritten) = (&deltas[*rewrite], &rewrites[*rewrite]);
            let allowed = stored.allows(delta, rewritten);
            if allowed {
                stored.apply(delta, rewritten);
                writes.push(Write::Whole { rewrite: *rewrite, raised: Counts::new() });
            }
            !allowed
        });
    }
    if left.is_empty() {
        return writes;
    }
    // The rest waits for each other. The most that can be stored at once is what is stored and all that is added.
    let mut peaks = Counts::new();
    for rewrite in &left {
        for (id, (old, new)) in &deltas[*rewrite].edges {
            *peaks.entry(*id).or_insert_with(|| stored.edges(id)) += new.saturating_sub(*old);
        }
    }
    let mut raises: BTreeMap<usize, Counts> = BTreeMap::new();
    for (id, peak) in &peaks {
        if stored.counts.get(id).is_some_and(|count| count < peak) {
            raises.entry(place(id, parts.len())).or_default().insert(*id, *peak);
        }
    }
    let mut settles: BTreeSet<usize> = raises.keys().copied().collect();
    writes.extend(raises.into_iter().map(|(part, to)| Write::Raise { part, to }));
    for rewrite in left {
        let Rewrite { part, counts, .. } = &rewrites[rewrite];
        let raised: Counts = counts
            .iter()
            .map(|(id, count)| (id, *count, peaks.get(id).copied().unwrap_or_else(|| stored.edges(id))))
            .filter(|(_, count, peak)| count < peak)
            .map(|(id, _, peak)| (*id, peak))
            .collect();
        if raised.is_empty() {
            settles.remove(part);
        } else {
            settles.insert(*part);
        }
        writes.push(Write::Whole { rewrite, raised });
    }
    writes.extend(settles.into_iter().map(|part| Write::Settle { part }));
    writes
}

/// What is stored at one moment of a save.
struct Stored {
    /// Recorded numbers of all entries, zeros included.
    counts: Counts,
    /// Dependents that are stored or hide.
    edges: Counts,
}

impl Stored {
    fn new(parts: &[Part<'_>], hidden: &Counts) -> Self {
        let mut stored = Self { counts: Counts::new(), edges: hidden.clone() };
        for part in parts {
            let count = |id: &StableId| part.counts.get(id).copied().unwrap_or(0);
            stored.counts.extend(part.holds.iter().map(|id| (**id, count(id))));
            for (id, number) in part.edges {
                *stored.edges.entry(*id).or_insert(0) += number;
            }
        }
        stored
    }

    fn edges(&self, id: &StableId) -> u32 {
        self.edges.get(id).copied().unwrap_or(0)
    }

    fn allows(&self, delta: &Delta, rewrite: &Rewrite<'_>) -> bool {
        let after = |id: &StableId| {
            let (old, new) = delta.edges.get(id).copied().unwrap_or_default();
            (self.edges(id) + new).saturating_sub(old)
        };
        let raised = delta.edges.iter().filter(|(_, (old, new))| new > old).all(|(id, _)| {
            let count = rewrite.counts.get(id).or_else(|| self.counts.get(id).filter(|_| !delta.removed.contains(id)));
            count.is_none_or(|count| *count >= after(id))
        });
        raised && delta.judged.iter().all(|id| rewrite.counts.get(id).is_none_or(|count| *count >= after(id)))
    }

    fn apply(&mut self, delta: &Delta, rewrite: &Rewrite<'_>) {
        for id in &delta.removed {
            self.counts.remove(id);
        }
        self.counts.extend(rewrite.counts.iter().map(|(id, count)| (*id, *count)));
        for (id, (old, new)) in &delta.edges {
            let edges = self.edges.entry(*id).or_insert(0);
            *edges = (*edges + new).saturating_sub(*old);
        }
    }
}

/// What a rewrite changes.
struct Delta {
    /// Identities depended on by more or fewer entries: before, after.
    edges: BTreeMap<StableId, (u32, u32)>,
    /// Entries that leave.
    removed: BTreeSet<StableId>,
    /// Entries whose number is lowered, or that come.
    judged: Vec<StableId>,
}

impl Delta {
    fn new(part: Option<&Part<'_>>, rewrite: &Rewrite<'_>) -> Self {
        let none = Counts::new();
        let before = part.map_or(&none, |part| part.edges);
        let count = |counts: &Counts, id: &StableId| counts.get(id).copied().unwrap_or(0);
        let ids: BTreeSet<_> = before.keys().chain(rewrite.edges.keys()).collect();
        let edges = ids.into_iter().map(|id| (*id, (count(before, id), count(rewrite.edges, id))));
        let held = |id: &StableId| part.is_some_and(|part| part.holds.contains(id));
        let lowered = |id: &StableId, number: u32| part.is_some_and(|part| number < count(&part.counts, id));
        let judged = rewrite.counts.iter().filter(|(id, number)| !held(id) || lowered(id, **number));
        let removed = part.iter().flat_map(|part| &part.holds).filter(|id| !rewrite.counts.contains_key(**id));
        Self {
            edges: edges.filter(|(_, (old, new))| old != new).collect(),
            removed: removed.map(|id| **id).collect(),
            judged: judged.map(|(id, _)| *id).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::inventory::{
        Inventory, dependents,
        testing::{any_inventory, entry, id, parent, required},
    };

    #[test]
    fn places_cover_all_parts_and_nothing_else() {
        for count in [1, 2, 3, 40] {
            let places: BTreeSet<_> = (0..1000).map(|n| place(&id(&format!("x{n}")).stable_id(), count)).collect();
            assert_eq!(places, (0..count).collect());
        }
    }

    /// All parts of an inventory: entries, edges and recorded numbers.
    fn parts(inventory: &Inventory, count: usize) -> Vec<(Counts, Counts)> {
        let all = dependents::to_record(inventory, &Counts::new());
        let mut parts = vec![(Counts::new(), Counts::new()); count];
        for entry in inventory.entries() {
            let id = entry.id.stable_id();
            let part = &mut parts[place(&id, count)];
            part.0.insert(id, all.get(&id).copied().unwrap_or(0));
            for edge in &entry.edges {
                *part.1.entry(edge.to).or_insert(0) += 1;
            }
        }
        parts
    }

    /// Carries the writes out one by one; numbers are never below what is stored, and exact at the end.
    fn check(old: &Inventory, new: &Inventory, count: usize) -> Vec<Write> {
        let before = parts(old, count);
        let after = parts(new, count);
        let views: Vec<_> = before
            .iter()
            .map(|(counts, edges)| Part { holds: counts.keys().collect(), counts: counts.clone(), edges })
            .collect();
        let rewrites: Vec<_> = (0..count)
            .filter(|part| before[*part] != after[*part])
            .map(|part| Rewrite { part, counts: after[part].0.clone(), edges: &after[part].1 })
            .collect();
        let writes = order(&views, &rewrites, &Counts::new());
        let mut stored: Vec<_> = before.iter().map(|(c, e)| (c.clone(), e.clone(), Counts::new())).collect();
        for write in &writes {
            match write {
                Write::Raise { part, to } => stored[*part].2 = to.clone(),
                Write::Whole { rewrite, raised } => {
                    let Rewrite { part, counts, edges } = &rewrites[*rewrite];
                    stored[*part] = (counts.clone(), (*edges).clone(), raised.clone());
                }
                Write::Settle { part } => stored[*part].2.clear(),
            }
            let mut edges = Counts::new();
            stored.iter().flat_map(|part| &part.1).for_each(|(id, n)| *edges.entry(*id).or_insert(0) += n);
            for (counts, _, raised) in &stored {
                for (id, count) in counts {
                    let recorded = (*count).max(raised.get(id).copied().unwrap_or(0));
                    assert!(recorded >= edges.get(id).copied().unwrap_or(0), "{id} after {write:?} of {writes:?}");
                }
            }
        }
        assert!(stored.iter().all(|part| part.2.is_empty()));
        assert_eq!(stored.into_iter().map(|(c, e, _)| (c, e)).collect::<Vec<_>>(), after);
        writes
    }

    #[test]
    fn two_parts_that_wait_for_each_other_are_raised_first() {
        let (mut left, mut right) = (Vec::new(), Vec::new());
        for name in (0..20).map(|n| format!("x{n}")) {
            if place(&id(&name).stable_id(), 2) == 0 { left.push(name) } else { right.push(name) }
        }
        let mut old = crate::inventory::testing::empty(&parent("p", "1"));
        [&left[0], &right[0]].iter().for_each(|name| {
            old.insert(entry(name));
        });
        let mut new = old.clone();
        for (name, to) in [(&left[1], &right[0]), (&right[1], &left[0])] {
            let mut entry = entry(name);
            entry.edges.insert(required(to));
            new.insert(entry);
        }
        let there = check(&old, &new, 2);
        assert!(matches!(there[0], Write::Raise { .. }), "{there:?}");
        let back = check(&new, &old, 2);
        assert!(matches!(back.last(), Some(Write::Settle { .. })), "{back:?}");
    }

    proptest! {
        #[test]
        fn numbers_are_raised_before_and_lowered_after(
            old in any_inventory(),
            new in any_inventory(),
            count in 1..5usize,
        ) {
            let writes = check(&old, &new, count);
            prop_assert!(writes.len() <= 3 * count);
        }
    }
}
