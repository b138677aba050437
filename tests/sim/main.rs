//! The control plane in memory: by itself, and held against a real one.
//!
//! One binary, so that all tests that need the real plane share one.

#![allow(unreachable_pub, reason = "modules of one binary share their helpers")]

mod both;
mod collector;
mod custody;
mod differential;
mod explore;
#[path = "../laws/mod.rs"]
mod laws;
#[path = "../model/mod.rs"]
mod model;
mod objects;
mod ownership;
mod requests;
mod runtime;
mod upstream;
