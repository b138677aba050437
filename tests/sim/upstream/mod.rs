//! The upstream tests of garbage collection and deletion, under their names.
//!
//! | here | there |
//! |---|---|
//! | [`integration`] | test/integration/garbagecollector |
//! | [`units`] | pkg/controller/garbagecollector/garbagecollector_test.go, on the sim alone |
//! | [`e2e`] | test/e2e/apimachinery/garbage_collector.go |
//! | [`namespaces`] | test/e2e/apimachinery/namespace.go, test/integration/namespace, the storage of namespaces |
//! | [`storage`] | the generic store, registry/generic/registry/store_test.go and registry/rest/delete_test.go |
//! | [`definitions`] | apiextensions-apiserver/test/integration/finalization_test.go |
//! | [`admission`] | plugin/pkg/admission/gc |
//!
//! A claim that something stays is made when the garbage collector has nothing left to do, not after a while. Upstream's
//! lists of tests are those of 1.36; what could not be taken over is named in each module.

mod admission;
mod definitions;
mod e2e;
mod integration;
mod namespaces;
mod storage;
mod units;
