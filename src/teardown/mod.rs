//! Deletion in dependency order, with proof.
//!
//! [`Sequencer`] decides order, [`Case`] decides what an answer means, [`Course`] puts the two together; all three are
//! state machines without IO. An executor carries a course out: for a custodian as part of its reconcile, and for an
//! operator that keeps its own records through [`Teardown`], by [`Plan::run`] or in [slices](Plan::slice).

mod course;
mod executor;
mod in_use;
mod inside;
mod live;
mod look;
mod plan;
pub mod policy;
pub mod proof;
mod report;
mod requests;
mod run;
mod sequencer;
mod wakes;
mod watching;
mod webhooks;

pub use self::{
    course::{Course, Hint, Progress},
    executor::{DEFAULT_CONCURRENCY, Happened},
    in_use::Inside,
    live::{Authority, Live},
    plan::{Error, Plan, Row, Teardown, Verdict},
    proof::{Block, Case, Event, Proof, Propagation, Reason, Settled, Step, Subject},
    report::{Blocker, Kept, Report},
    run::{Run, Slice, Underway},
    sequencer::Sequencer,
    webhooks::Ended,
};
pub(crate) use self::{
    executor::{Agenda, Crowd, Executor},
    inside::Insight,
    wakes::{Change, Wakes},
    watching::Extent,
};
