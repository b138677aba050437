//! The upstream tests of garbage collection and deletion, under their names.

mod admission;
mod definitions;
mod e2e;
mod integration;
mod namespaces;
mod storage;
mod units;
