//! A real Kubernetes control plane on one machine, for tests.
//!
//! [`Plane`] starts etcd, kube-apiserver 1.36, and the upstream garbage collector and namespace
//! controller: one Go program (in the folder `go` of this crate), each part a process of its own,
//! so that a test can kill and restart one of them alone. The program is built at the first use;
//! that needs Go 1.26 or newer and takes some minutes. After that a start takes 2–5 s. There are
//! no nodes. Linux only.
//!
//! [`audit`] records every call of a client and makes calls fail. [`fixtures`] has namespaces,
//! CRDs, rights, and waiting.
//!
//! ```no_run
//! use control_plane::{Plane, audit::Verb, fixtures};
//! use k8s_openapi::api::core::v1::ConfigMap;
//! use kube::{Api, api::DeleteParams};
//!
//! #[tokio::test]
//! async fn deletes_once() -> Result<(), kube::Error> {
//!     let plane = Plane::shared().await;
//!     let (client, log) = plane.audited("admin");
//!     let namespace = fixtures::namespace(&plane.client(), "once").await;
//!     let maps: Api<ConfigMap> = Api::namespaced(client, &namespace);
//!     fixtures::create(&maps, serde_json::json!({"metadata": {"name": "a"}})).await;
//!     maps.delete("a", &DeleteParams::default()).await?;
//!     assert_eq!(log.count(Verb::Delete), 1, "{log}");
//!     Ok(())
//! }
//! ```
//!
//! The behaviour of the control plane that tests rely on stands in this crate's `README.md`.

pub mod audit;
mod binary;
mod error;
pub mod fixtures;
mod metrics;
mod plane;
mod state;

pub use self::{
    binary::binary,
    error::Error,
    plane::{Builder, Controllers, Part, Pids, Plane},
};
