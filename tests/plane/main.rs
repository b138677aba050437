//! Everything that is shown on a real control plane: API server, garbage collector and namespace controller.
//!
//! One binary, so that all tests share one plane, each in namespaces of its own. A test that kills a component starts a
//! plane of its own.

#![allow(unreachable_pub, reason = "modules of one binary share their helpers")]

mod answer;
mod bad_input;
mod crash;
mod discovery;
mod drain;
#[cfg(feature = "yaml")]
mod examples;
mod faros_143;
mod finalizer;
mod force;
mod foreign_crowd;
mod foreign_hands;
mod hop_137;
mod hostile;
mod in_use;
mod inventory_store;
mod isolation;
mod istio;
mod kustomization;
mod kustomize_301;
#[path = "../laws/mod.rs"]
mod laws;
mod limited_rights;
mod proxies;
mod prune;
mod rbac_reading;
mod recorder;
mod references;
mod relink;
mod rights;
mod sizes;
mod skeleton;
mod slices;
mod two;
mod uninstall;
mod vcluster;
mod wakeups;
mod workloads;
mod world;
