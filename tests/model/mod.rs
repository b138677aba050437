//! A model checker for operators built on the crate: random histories on the control plane in memory.
//!
//! [`scenario`] says what a history is made of and draws one from a seed; [`play`] plays it and collects what was broken;
//! [`stage`] does what others do in it; [`wire`] puts on record what the operators do, between their clients and the
//! control plane; [`judge`] looks at the world in the end, and the laws at each call on the way. [`shrink`] makes a
//! scenario smaller that breaks something.

pub mod coverage;
pub mod dice;
pub mod judge;
pub mod play;
pub mod scenario;
pub mod shrink;
pub mod stage;
pub mod things;
pub mod wire;
