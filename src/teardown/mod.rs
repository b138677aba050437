//! Deletion in dependency order, with proof.
//!
//! [`Sequencer`] decides order, [`Case`] decides what an answer means, [`Course`] puts the two together; all three are
//! state machines without IO. The executor carries a course out, by [`Teardown::run`] or in slices inside of a
//! reconcile.

mod course;
mod executor;
mod live;
pub mod policy;
pub mod proof;
mod report;
mod requests;
mod sequencer;

pub use self::{
    course::{Course, Progress},
    executor::{DEFAULT_CONCURRENCY, Happened},
    live::{Authority, Live},
    proof::{Block, Case, Event, Proof, Propagation, Reason, Settled, Step, Subject},
    report::{Blocker, Kept, Report},
    sequencer::Sequencer,
};
pub(crate) use self::{
    executor::{Agenda, Executor, Wakes},
    requests::{get as get_metadata, metadata_api, patch_metadata},
};
