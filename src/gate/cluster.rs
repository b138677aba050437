//! Reading parents from the API server. Every read is answered from the latest state: none names a resource version.

use async_trait::async_trait;
use futures::TryStreamExt;
use kube_client::{Client, api::DynamicObject};

use super::{
    dependency::Reader,
    parents::{Parent, Parents},
};
use crate::{
    answer::{Answer, Refusal},
    api::{api, first_page, pages},
    discovery::{Crd, Resolver},
    object::{ObjectId, Scope},
};

/// Why something could not be read, in words for a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unread(pub(super) String);

/// Where parents are read.
#[async_trait]
pub(super) trait Cluster: Send + Sync {
    /// How a parent lives; `None` if it is proven not to exist.
    async fn read(&self, reader: &Reader, id: &ObjectId) -> Result<Option<Parent>, Unread>;

    /// All parents of some kinds, in one namespace or everywhere.
    async fn list(&self, readers: &[Reader], namespace: Option<&str>) -> Result<Parents, Unread>;
}

/// The API server.
pub(super) struct Server {
    pub(super) client: Client,
    pub(super) resolver: Resolver,
}

#[async_trait]
impl Cluster for Server {
    async fn read(&self, reader: &Reader, id: &ObjectId) -> Result<Option<Parent>, Unread> {
        let resource = &reader.resource;
        match api::<DynamicObject>(&self.client, resource, id.namespace()).get(id.name()).await {
            Ok(object) => {
                let parent = reader.parent(object);
                parent.map(Some).ok_or_else(|| Unread(format!("{id} was answered without an identity")))
            }
            Err(error) => {
                let refusal = Refusal::about(id, &error);
                let absent = refusal.answer().names(resource, id.name());
                if absent { Ok(None) } else { Err(Unread(refusal.words_for(id))) }
            }
        }
    }

    async fn list(&self, readers: &[Reader], namespace: Option<&str>) -> Result<Parents, Unread> {
        let mut all = Parents::default();
        // Kinds of the other scope are nowhere near, if only one place counts.
        let there = |reader: &&Reader| namespace.is_none() || reader.resource.scope == Scope::Namespaced;
        for reader in readers.iter().filter(there) {
            self.list_kind(reader, namespace, &mut all).await?;
        }
        Ok(all)
    }
}

impl Server {
    async fn list_kind(&self, reader: &Reader, namespace: Option<&str>, all: &mut Parents) -> Result<(), Unread> {
        // The pages of one list show one state.
        let mut pages = pages(api::<DynamicObject>(&self.client, &reader.resource, namespace), first_page(None));
        loop {
            let page = match pages.try_next().await {
                Ok(Some(page)) => page,
                Ok(None) => return Ok(()),
                Err(error) => return self.unlisted(reader, namespace, &error).await,
            };
            page.items.into_iter().filter_map(|object| reader.parent(object)).for_each(|parent| drop(all.put(parent)));
        }
    }

    /// A kind without a definition has no objects. Everything else that is not a list proves nothing.
    async fn unlisted(
        &self,
        reader: &Reader,
        namespace: Option<&str>,
        error: &kube_client::Error,
    ) -> Result<(), Unread> {
        let (refusal, kind) = (Refusal::of(error), reader.resource.group_kind());
        if matches!(refusal.answer(), Answer::NoRoute) && self.resolver.crd_of(&reader.resource).await == Crd::NotFound
        {
            return Ok(());
        }
        let place = namespace.map_or_else(|| "the cluster".to_owned(), |n| format!("namespace {n:?}"));
        Err(Unread(format!("{kind} in {place} cannot be listed ({refusal}): grant list on {}", reader.resource.plural)))
    }
}
