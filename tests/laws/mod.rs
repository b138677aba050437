//! The laws that an operator keeps, checked on the record of its calls.
//!
//! Shares no code with the crate: it reads requests, answers and stored records as JSON, and judges by what an operator
//! had been told at the moment it made a request. [`history`] is what it reads, [`checker`] what it demands, [`store`]
//! tells what was put on record, and [`tests`] shows that each demand can fail.
//!
//! Checked: 1 only ours, 2 order, 3 proof before the parent goes, 4 write-ahead, 5 no forgetting, 6 legal references,
//! 7 closed door, 9 once, 11 hands off, 12 discretion. The others speak of time, cost and words, which calls do not
//! show.

pub mod checker;
pub mod history;
pub mod store;
#[cfg(test)]
mod tests;
