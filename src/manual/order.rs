//! # Order
