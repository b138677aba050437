//! A Kubernetes control plane in memory, for the tests of operators.
//!
//! [`Cluster`] answers an ordinary [`kube::Client`](kube_client::Client) as the API server 1.36 does, and holds models of
//! the controllers that matter for ownership and deletion: the garbage collector, the namespace controller, and the
//! cleanup of CustomResourceDefinitions. Nothing is random but by a seed, and no time passes under a paused clock, so a
//! test gives the same result each time, within milliseconds. What it does not model stands in the
//! [manual](crate::manual::sim).
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//!
//! use futures::StreamExt;
//! use k8s_openapi::api::core::v1::ConfigMap;
//! use kube::{
//!     Api, Client, CustomResource, CustomResourceExt, Resource, ResourceExt,
//!     api::{DeleteParams, Patch, PatchParams, PostParams},
//!     runtime::{Controller, controller::Action, watcher},
//! };
//! use kube_custody::sim::{Cluster, Fault, Trouble, Verb};
//! use schemars::JsonSchema;
//! use serde::{Deserialize, Serialize};
//!
//! // ---- an operator: each Greeting gets a ConfigMap ----
//!
//! #[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
//! #[kube(group = "example.com", version = "v1", kind = "Greeting", namespaced)]
//! struct GreetingSpec {
//!     text: String,
//! }
//!
//! async fn reconcile(greeting: Arc<Greeting>, client: Arc<Client>) -> Result<Action, kube::Error> {
//!     let maps = Api::<ConfigMap>::namespaced((*client).clone(), &greeting.namespace().unwrap());
//!     let mut map = ConfigMap::default();
//!     map.metadata.name = greeting.metadata.name.clone();
//!     map.metadata.owner_references = greeting.controller_owner_ref(&()).map(|owner| vec![owner]);
//!     map.data = Some([("text".to_owned(), greeting.spec.text.clone())].into());
//!     maps.patch(&greeting.name_any(), &PatchParams::apply("greeter"), &Patch::Apply(&map)).await?;
//!     Ok(Action::await_change())
//! }
//!
//! async fn operator(client: Client) {
//!     let retry = |_: Arc<Greeting>, _: &kube::Error, _: Arc<Client>| Action::requeue(Duration::from_millis(100));
//!     Controller::new(Api::<Greeting>::all(client.clone()), watcher::Config::default())
//!         .owns(Api::<ConfigMap>::all(client.clone()), watcher::Config::default())
//!         .run(reconcile, retry, Arc::new(client))
//!         .for_each(async |_| {})
//!         .await;
//! }
//!
//! // ---- its test, which would be a #[tokio::test(start_paused = true)] ----
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let cluster = Cluster::builder().seed(7).build();
//! cluster.install(&Greeting::crd())?;
//! tokio::spawn(operator(cluster.client_as("greeter")));
//!
//! // The operator's first write is refused; it has to try again.
//! cluster.inject(Fault::new(Trouble::Refused(500)).user("greeter").verb(Verb::Patch));
//!
//! let greetings = Api::<Greeting>::namespaced(cluster.client(), "default");
//! let spec = GreetingSpec { text: "hello".into() };
//! greetings.create(&PostParams::default(), &Greeting::new("hello", spec)).await?;
//! cluster.settle().await?;
//! assert_eq!(cluster.object("configmaps", "default", "hello").unwrap()["data"]["text"], "hello");
//! assert_eq!(cluster.audit().by("greeter").effective().lines(), ["patch configmaps/default/hello"]);
//!
//! // The garbage collector takes the ConfigMap away.
//! greetings.delete("hello", &DeleteParams::default()).await?;
//! cluster.settle().await?;
//! assert!(cluster.objects("configmaps").is_empty());
//! # Ok(())
//! # }
//! ```
//!
//! Calls are answered one at a time, each as a whole. [`Cluster::settle`] lets operator and controllers work until there
//! is nothing left to do; [`Cluster::step`] and [`Cluster::step_of`] take single steps, for tests of what may happen in
//! between. [`Cluster::inject`] makes calls fail, [`Cluster::deny`] and [`Cluster::forbid`] refuse them for good, and
//! [`Cluster::audit`] tells what was asked, by whom, and what came of it.

mod admission;
mod audit;
mod builtin;
mod catalogue;
mod cluster;
mod controllers;
mod discovery;
mod faults;
mod fields;
mod managers;
mod meta;
mod patch;
mod request;
mod rng;
mod schema;
mod selectors;
mod service;
mod shape;
mod status;
mod storage;
mod value;
mod verbs;
mod view;
mod world;

pub use self::{
    admission::{Operation, Review},
    audit::{Audit, Call, Target, Verb},
    cluster::{Cluster, ClusterBuilder, Error},
    controllers::{Controller, Step},
    faults::{Fault, Trouble},
    service::Lost,
};
