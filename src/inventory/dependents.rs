//! How many entries depend on each entry.
//!
//! The numbers are recorded beside the entries they count for, so that an entry whose dependents became unreadable can
//! be told from one that has none. This module decides what is recorded and what is reported; it knows nothing of
//! how or where.

use std::collections::BTreeMap;

use super::Inventory;
use crate::object::StableId;

/// Numbers by the identity that is depended on; zeros are left out.
pub(super) type Counts = BTreeMap<StableId, u32>;

/// What a record with unreadable parts knows beyond what can be read: by identity, how many dependents were recorded
/// and cannot be found.
pub(super) fn hidden(recorded: &Counts, readable: &Counts) -> Counts {
    recorded
        .iter()
        .map(|(id, number)| (*id, number.saturating_sub(readable.get(id).copied().unwrap_or(0))))
        .filter(|(_, number)| *number > 0)
        .collect()
}

/// What is recorded for each entry: the entries that depend on it, and those that hide.
pub(super) fn to_record(inventory: &Inventory, hidden: &Counts) -> Counts {
    let mut counts = inventory.count_dependents();
    for (id, number) in hidden {
        let count = counts.entry(*id).or_insert(0);
        *count = count.saturating_add(*number);
    }
    counts
}

/// Sets what a load reports; `hidden` is empty where the whole record was read.
pub(super) fn report(inventory: &mut Inventory, hidden: &Counts) {
    let counts = to_record(inventory, hidden);
    for entry in inventory.entries_mut() {
        entry.dependents = counts.get(&entry.id.stable_id()).copied().unwrap_or(0);
    }
}
