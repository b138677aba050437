//! How often which situation was really met.

use std::{collections::BTreeMap, fmt};

/// Counts of situations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage(BTreeMap<&'static str, u64>);

impl Coverage {
    pub fn met(&mut self, situation: &'static str) {
        *self.0.entry(situation).or_default() += 1;
    }

    pub fn add(&mut self, other: &Self) {
        for (situation, times) in &other.0 {
            *self.0.entry(situation).or_default() += times;
        }
    }

    pub fn times(&self, situation: &str) -> u64 {
        self.0.get(situation).copied().unwrap_or(0)
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(situation, times)| writeln!(f, "{times:>10}  {situation}"))
    }
}
