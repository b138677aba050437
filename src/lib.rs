//! Custody of the objects that a Kubernetes operator creates: legal ownership, an inventory that survives crashes, deletion in
//! dependency order, and finalizers that let go only on proof.
//!
//! Kubernetes gives an operator two tools, and both are traps. An owner reference may not cross namespaces nor point
//! from cluster scope into one; the API server accepts it, and the garbage collector then deletes the child or never
//! collects it. A finalizer has no order, no memory and no proof. This crate gives one answer in four parts, each of which
//! works alone:
//!
//! | part | module | in one sentence |
//! |---|---|---|
//! | legal ownership | [`ownership`] | children are owned by *proxy owners* that stand in for the parent in each namespace and in cluster scope |
//! | inventory | [`inventory`] | what may exist is on record before it is created, until it is proven gone |
//! | ordered deletion | [`graph`], [`teardown`] | an object is deleted when everything that depends on it is proven gone |
//! | finalizers | [`finalizer`] | a finalizer goes when the work is done, which "not finished yet" is not |
//!
//! [`custodian`] puts them together: one call in a reconciler. The [`manual`] has the long form.
//!
//! # A whole operator
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use futures::StreamExt;
//! use k8s_openapi::api::core::v1::ConfigMap;
//! use kube::{Api, Client, CustomResource, runtime::{Controller, controller::Action, watcher}};
//! use kube_custody::{
//!     custodian::{Custodian, Desired, DesiredError, Error},
//!     ownership::{OwnershipPolicy, proxy::{ClusterGitTrackOwner, GitTrackOwner}},
//! };
//! use schemars::JsonSchema;
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
//! #[kube(group = "example.com", version = "v1", kind = "GitTrack", namespaced)]
//! struct GitTrackSpec {
//!     namespaces: Vec<String>,
//! }
//!
//! // What the parent should have, wherever it belongs.
//! fn desired(track: &GitTrack) -> Result<Desired, DesiredError> {
//!     let mut desired = Desired::new();
//!     for namespace in &track.spec.namespaces {
//!         let mut object = ConfigMap::default();
//!         object.metadata.name = Some("settings".into());
//!         object.metadata.namespace = Some(namespace.clone());
//!         desired.push(&object)?;
//!     }
//!     Ok(desired)
//! }
//!
//! async fn reconcile(track: Arc<GitTrack>, custodian: Arc<Custodian<GitTrack>>) -> Result<Action, Error> {
//!     let outcome = custodian.reconcile(&*track, async |track: Arc<GitTrack>| desired(&track)).await;
//!     for object in &outcome.unapplied {
//!         eprintln!("{object}");
//!     }
//!     outcome.into_action()
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let client = Client::try_default().await?;
//!     let custodian = Custodian::<GitTrack>::builder(client.clone(), "gittrack.example.com")
//!         .proxies::<GitTrackOwner, ClusterGitTrackOwner>()
//!         .ownership(OwnershipPolicy::ClusterWide)
//!         .build()?;
//!     Controller::new(Api::<GitTrack>::all(client), watcher::Config::default())
//!         .run(reconcile, |_, _, _| Action::requeue(std::time::Duration::from_secs(5)), Arc::new(custodian))
//!         .for_each(|_| async {})
//!         .await;
//!     Ok(())
//! }
//! ```
//!
//! # Why not just owner references, or labels?
//!
//! An owner reference across namespaces is not an error when it is written, but a deletion later: at once, or when the garbage
//! collector restarts. A label says who an object claims to belong to, and controllers copy labels. What the crate deletes is in
//! the inventory *and* carries a back-pointer that names the parent's UID and the object itself, as read in the very
//! state that the DELETE is conditional on.
//!
//! # Features
//!
//! - `yaml`: manifests from YAML documents.
//! - `conformance`: the test suite that every inventory store has to pass.
//! - `sim`: a control plane in memory, for tests of operators.
//!
//! The application chooses the Kubernetes version (a feature of `k8s-openapi`) and TLS (a feature of `kube`).

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod answer;
mod api;
pub mod custodian;
pub mod discovery;
pub mod finalizer;
pub mod force;
pub mod gate;
pub mod graph;
pub mod inventory;
mod lock;
pub mod manager;
pub mod manual;
pub mod markers;
pub mod object;
pub mod ownership;
pub mod rbac;
#[cfg(feature = "sim")]
pub mod sim;
pub mod status;
pub mod teardown;
