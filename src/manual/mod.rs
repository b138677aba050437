//! The long form: how to use each part, what can go wrong and what to do then, which rights are needed, and how to move
//! an operator over.
//!
//! - [`howto`]: the whole lifecycle, and each part by itself
//! - [`order`]: what depends on what without being told, and the ways out
//! - [`failures`]: every state a parent can be held in, why, and the way out
//! - [`remote`]: children in another cluster, or made by another identity
//! - [`rbac`]: the rights an operator needs, request by request
//! - [`migration`]: from owner references, from a finalizer with a list, from another manager name

pub mod failures;
pub mod howto;
pub mod migration;
pub mod order;
pub mod rbac;
pub mod remote;
#[cfg(feature = "sim")]
pub mod sim;
