//! Legal ownership, a crash-proof inventory, ordered deletion and honest finalizers for Kubernetes operators.

pub mod answer;
pub mod custodian;
pub mod discovery;
pub mod finalizer;
pub mod graph;
pub mod inventory;
pub mod manager;
pub mod markers;
pub mod object;
pub mod ownership;
pub mod status;
pub mod teardown;
