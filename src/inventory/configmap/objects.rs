//! The requests that the store makes, on ConfigMaps of one namespace at a time.

use std::fmt;

use async_trait::async_trait;
use futures::TryStreamExt;
use k8s_openapi::{api::core::v1::ConfigMap, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube_client::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
    core::PartialObjectMeta,
};
use serde_json::Value;

use super::piece::Seen;
use crate::{
    answer::{Answer, classify},
    api::{first_page, pages},
    manager::Manager,
    object::{ResourceKind, Scope},
};

/// Why a request failed.
#[derive(Debug)]
pub(super) enum Fault {
    /// There is no such object, by the API server's word.
    NotFound,
    /// The object is another one, or another version, than the request was conditional on.
    Conflict,
    /// The name is taken.
    AlreadyExists,
    /// Nothing can be created in the namespace any more.
    NamespaceTerminating,
    /// Anything else.
    Other(Box<dyn std::error::Error + Send + Sync>),
}

/// ConfigMaps, with conditional writes.
#[async_trait]
pub(super) trait Objects: fmt::Debug + Send + Sync + 'static {
    /// As the quorum has it.
    async fn get(&self, namespace: &str, name: &str) -> Result<Option<ConfigMap>, Fault>;
    /// Creates the object, or with `dry_run` only tells whether that would work.
    async fn create(&self, namespace: &str, object: &ConfigMap, dry_run: bool) -> Result<ConfigMap, Fault>;
    /// A merge patch, which carries its conditions in `metadata`.
    async fn patch(&self, namespace: &str, name: &str, patch: &Value) -> Result<ConfigMap, Fault>;
    /// Deletes what was seen; `None` if it is gone at once.
    async fn delete(&self, namespace: &str, seen: &Seen) -> Result<Option<ConfigMap>, Fault>;
    /// Metadata of what `selector` selects, in one namespace or in all.
    async fn list(&self, namespace: Option<&str>, selector: &str) -> Result<Vec<ObjectMeta>, Fault>;
}

/// ConfigMaps of a cluster.
pub(super) struct KubeObjects {
    client: Client,
    manager: Manager,
}

impl fmt::Debug for KubeObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KubeObjects").field("manager", &self.manager).finish_non_exhaustive()
    }
}

impl KubeObjects {
    pub(super) fn new(client: Client, manager: Manager) -> Self {
        Self { client, manager }
    }

    fn api(&self, namespace: &str) -> Api<ConfigMap> {
        Api::namespaced(self.client.clone(), namespace)
    }

    fn manager(&self) -> Option<String> {
        Some(self.manager.field_manager().to_owned())
    }
}

fn fault(name: &str, error: kube_client::Error) -> Fault {
    let answer = classify(&error);
    let configmaps = ResourceKind::new("", "v1", "ConfigMap", "configmaps", Scope::Namespaced);
    match answer {
        Answer::NotFound { .. } if answer.names(&configmaps, name) => Fault::NotFound,
        Answer::UidMismatch | Answer::VersionMismatch | Answer::Conflict => Fault::Conflict,
        Answer::AlreadyExists { .. } => Fault::AlreadyExists,
        Answer::NamespaceTerminating => Fault::NamespaceTerminating,
        _ => Fault::Other(Box::new(error)),
    }
}

#[async_trait]
impl Objects for KubeObjects {
    async fn get(&self, namespace: &str, name: &str) -> Result<Option<ConfigMap>, Fault> {
        match self.api(namespace).get(name).await.map_err(|e| fault(name, e)) {
            Ok(object) => Ok(Some(object)),
            Err(Fault::NotFound) => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    async fn create(&self, namespace: &str, object: &ConfigMap, dry_run: bool) -> Result<ConfigMap, Fault> {
        let params = PostParams { dry_run, field_manager: self.manager() };
        let name = object.metadata.name.as_deref().unwrap_or_default();
        self.api(namespace).create(&params, object).await.map_err(|e| fault(name, e))
    }

    async fn patch(&self, namespace: &str, name: &str, patch: &Value) -> Result<ConfigMap, Fault> {
        let params = PatchParams { field_manager: self.manager(), ..PatchParams::default() };
        self.api(namespace).patch(name, &params, &Patch::Merge(patch)).await.map_err(|e| fault(name, e))
    }

    async fn delete(&self, namespace: &str, seen: &Seen) -> Result<Option<ConfigMap>, Fault> {
        let (uid, resource_version) = (Some(seen.uid.clone()), Some(seen.resource_version.clone()));
        let params = DeleteParams::background().preconditions(Preconditions { resource_version, uid });
        let answer = self.api(namespace).delete(&seen.name, &params).await;
        answer.map(|answer| answer.left()).map_err(|e| fault(&seen.name, e))
    }

    async fn list(&self, namespace: Option<&str>, selector: &str) -> Result<Vec<ObjectMeta>, Fault> {
        let api: Api<PartialObjectMeta<ConfigMap>> = match namespace {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        };
        let mut pages = pages(api, first_page(Some(selector)));
        let mut found = Vec::new();
        while let Some(page) = pages.try_next().await.map_err(|e| fault("", e))? {
            found.extend(page.items.into_iter().map(|item| item.metadata));
        }
        Ok(found)
    }
}
