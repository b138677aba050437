//! Rows of items under consecutive indices, in two allocations.

/// `rows.row(i)` is a slice; all rows share one buffer.
#[derive(Clone, Debug)]
pub(super) struct Rows<T> {
    // One more than there are rows.
    starts: Vec<usize>,
    items: Vec<T>,
}

impl<T: Copy> Rows<T> {
    /// Sorts `items` into `rows` rows by `row_of`, which must stay below `rows`. Within a row the given order is kept.
    pub(super) fn scatter<I>(rows: usize, items: I, row_of: impl Fn(&T) -> usize) -> Self
    where
        I: Iterator<Item = T> + Clone,
    {
        let mut starts = vec![0; rows + 1];
        for item in items.clone() {
            starts[row_of(&item) + 1] += 1;
        }
        for i in 0..rows {
            starts[i + 1] += starts[i];
        }
        let Some(first) = items.clone().next() else { return Self { starts, items: Vec::new() } };
        let mut sorted = vec![first; starts[rows]];
        let mut next = starts.clone();
        for item in items {
            let place = &mut next[row_of(&item)];
            sorted[*place] = item;
            *place += 1;
        }
        Self { starts, items: sorted }
    }

    /// Rows of another shape: each row of `self` as `edit` leaves it. `edit` may only shrink a row, and returns how many
    /// items at its beginning are kept.
    pub(super) fn shrink(&mut self, mut edit: impl FnMut(usize, &mut [T]) -> usize) {
        let mut end = 0;
        for row in 0..self.len() {
            let (from, to) = (self.starts[row], self.starts[row + 1]);
            let kept = edit(row, &mut self.items[from..to]);
            self.items.copy_within(from..from + kept, end);
            self.starts[row] = end;
            end += kept;
        }
        let rows = self.len();
        self.starts[rows] = end;
        self.items.truncate(end);
    }

    /// The same rows with other items.
    pub(super) fn map<U>(&self, f: impl FnMut(&T) -> U) -> Rows<U> {
        Rows { starts: self.starts.clone(), items: self.items.iter().map(f).collect() }
    }

    /// All items, row by row.
    pub(super) fn into_items(self) -> Vec<T> {
        self.items
    }

    pub(super) fn len(&self) -> usize {
        self.starts.len() - 1
    }

    pub(super) fn row(&self, row: usize) -> &[T] {
        &self.items[self.starts[row]..self.starts[row + 1]]
    }

    /// Rows the other way round: row `i` lists, in order, the rows (as `item_of` spells them) that hold an item with
    /// `row_of` = `i`. There are as many rows as before.
    pub(super) fn transpose(&self, row_of: impl Fn(T) -> usize, item_of: impl Fn(usize) -> T) -> Self {
        let mut starts = vec![0; self.starts.len()];
        for item in &self.items {
            starts[row_of(*item) + 1] += 1;
        }
        for i in 0..self.len() {
            starts[i + 1] += starts[i];
        }
        let mut items = self.items.clone();
        let mut next = starts.clone();
        for row in 0..self.len() {
            let here = item_of(row);
            for item in self.row(row) {
                let place = &mut next[row_of(*item)];
                items[*place] = here;
                *place += 1;
            }
        }
        Self { starts, items }
    }
}

/// Moves the first of each run of equals to the front of a sorted slice; returns how many there are.
pub(super) fn dedup<T: Copy + PartialEq>(sorted: &mut [T]) -> usize {
    let mut kept = 0;
    for i in 0..sorted.len() {
        if kept == 0 || sorted[kept - 1] != sorted[i] {
            sorted[kept] = sorted[i];
            kept += 1;
        }
    }
    kept
}
