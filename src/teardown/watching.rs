//! One watch, kept up across its ends.
//!
//! Goes on from the last version seen; where that is too old, it starts again from the present and reports a gap.

use std::time::Duration;

use futures::{Stream, StreamExt, stream, stream::BoxStream};
use kube_client::{
    Api, Client,
    api::{DynamicObject, ListParams, WatchEvent, WatchParams},
    core::PartialObjectMeta,
};

use super::wakes::{Change, identify};
use crate::{
    answer::{self, Answer},
    api::metadata_api,
    object::{GroupKind, ObjectId, ResourceKind},
};

/// What one watch covers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Extent {
    /// The objects of a kind that a selector selects, in one namespace or (`None`) everywhere.
    Selected { kind: GroupKind, namespace: Option<String> },
    /// One object.
    Named(ObjectId),
}

impl Extent {
    /// Whether an object lies in it, as far as can be told.
    pub(crate) fn covers(&self, id: &ObjectId) -> bool {
        match self {
            Self::Selected { kind, namespace } => {
                id.is(&kind.group, &kind.kind) && (namespace.is_none() || namespace.as_deref() == id.namespace())
            }
            Self::Named(named) => named == id,
        }
    }
}

type Meta = PartialObjectMeta<DynamicObject>;

/// A watch that is to be kept up.
pub(crate) struct Watching {
    api: Api<Meta>,
    kind: GroupKind,
    extent: Extent,
    labels: Option<String>,
    /// Where to go on; `None` is the present.
    version: Option<String>,
    failures: u32,
    open: Option<BoxStream<'static, kube_client::Result<WatchEvent<Meta>>>>,
    ended: bool,
}

impl Watching {
    /// A watch of what `labels` selects in `extent`.
    pub(crate) fn selected(client: &Client, kind: &ResourceKind, extent: Extent, labels: Option<&str>) -> Self {
        let namespace = match &extent {
            Extent::Selected { namespace, .. } => namespace.clone(),
            Extent::Named(id) => id.namespace().map(ToOwned::to_owned),
        };
        Self {
            api: metadata_api(client, kind, namespace.as_deref()),
            kind: kind.group_kind(),
            extent,
            labels: labels.map(ToOwned::to_owned),
            version: None,
            failures: 0,
            open: None,
            ended: false,
        }
    }

    /// A watch of one object.
    pub(crate) fn named(client: &Client, kind: &ResourceKind, id: ObjectId) -> Self {
        Self::selected(client, kind, Extent::Named(id), None)
    }

    /// Goes on from this resource version.
    pub(crate) fn from(mut self, version: String) -> Self {
        self.version = Some(version).filter(|v| !v.is_empty());
        self
    }

    /// The changes, without end unless the watch is refused.
    pub(crate) fn changes(self) -> impl Stream<Item = Change> + Send + 'static {
        stream::unfold(self, |mut this| async move {
            let change = this.next().await?;
            Some((change, this))
        })
    }

    async fn next(&mut self) -> Option<Change> {
        while !self.ended {
            let Some(open) = &mut self.open else {
                if let Some(change) = self.reopen().await {
                    return Some(change);
                }
                continue;
            };
            match open.next().await {
                Some(Ok(event)) => {
                    if let Some(change) = self.read(event) {
                        return Some(change);
                    }
                }
                Some(Err(_)) => self.fail(),
                // Watches end after some minutes, and when the API server is busy.
                None => self.fail(),
            }
        }
        None
    }

    fn fail(&mut self) {
        self.open = None;
        self.failures = self.failures.saturating_add(1);
    }

    fn read(&mut self, event: WatchEvent<Meta>) -> Option<Change> {
        let (meta, there) = match event {
            WatchEvent::Added(meta) | WatchEvent::Modified(meta) => (meta.metadata, true),
            WatchEvent::Deleted(meta) => (meta.metadata, false),
            WatchEvent::Bookmark(bookmark) => {
                self.failures = 0;
                self.version = Some(bookmark.metadata.resource_version);
                return None;
            }
            WatchEvent::Error(status) => {
                if answer::classify_status(&status) == Answer::Expired {
                    self.version = None;
                }
                self.fail();
                return None;
            }
        };
        self.failures = 0;
        if meta.resource_version.is_some() {
            self.version.clone_from(&meta.resource_version);
        }
        let (id, live) = identify(&self.kind, &meta)?;
        Some(if there { Change::Seen(id, live) } else { Change::Lost(id) })
    }

    /// Opens the watch. From the present it has a gap before it, which is reported once it is open.
    async fn reopen(&mut self) -> Option<Change> {
        if self.failures > 0 {
            let doubled = 10_u64.saturating_mul(1_u64.checked_shl(self.failures).unwrap_or(u64::MAX));
            tokio::time::sleep(Duration::from_millis(doubled.min(5_000))).await;
        }
        let fields = match &self.extent {
            Extent::Named(id) => Some(format!("metadata.name={}", id.name())),
            Extent::Selected { .. } => None,
        };
        let gap = self.version.is_none();
        let version = match self.version.clone() {
            Some(version) => version,
            None => {
                let mut params = ListParams::default().limit(1);
                (params.label_selector, params.field_selector) = (self.labels.clone(), fields.clone());
                match self.api.list(&params).await {
                    Ok(list) => list.metadata.resource_version.unwrap_or_default(),
                    Err(error) => return self.refused(&error),
                }
            }
        };
        let mut params = WatchParams::default();
        (params.label_selector, params.field_selector) = (self.labels.clone(), fields);
        match self.api.watch(&params, &version).await {
            Ok(open) => {
                self.open = Some(open.boxed());
                self.version = Some(version).filter(|v| !v.is_empty());
                gap.then(|| Change::Gap(self.extent.clone()))
            }
            Err(error) => self.refused(&error),
        }
    }

    fn refused(&mut self, error: &kube_client::Error) -> Option<Change> {
        match answer::classify(error) {
            Answer::Expired => self.version = None,
            Answer::Forbidden | Answer::NoRoute | Answer::NotFound { .. } | Answer::Unsupported => {
                self.ended = true;
                return Some(Change::Ended(self.extent.clone()));
            }
            _ => {}
        }
        self.fail();
        None
    }
}
