//! Legal ownership, a crash-proof inventory, ordered deletion and honest finalizers for Kubernetes operators.

pub mod inventory;
pub mod manager;
pub mod object;
