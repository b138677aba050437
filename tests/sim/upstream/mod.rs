//! The upstream tests of garbage collection and deletion, under their names.

mod integration;
