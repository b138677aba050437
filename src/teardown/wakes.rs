//! Where hints come from that a waiting object changed: watches.
//!
//! A hint proves nothing. It says which object to ask about, or shows an object that is still there.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use futures::{
    StreamExt,
    future::{AbortHandle, Abortable},
    stream::{BoxStream, SelectAll},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_client::Client;
use tokio::sync::mpsc;

use super::{
    live::Live,
    proof::Subject,
    watching::{Extent, Watching},
};
use crate::object::{GroupKind, ObjectId, Uid};

/// Most objects that are watched one by one.
const MOST_NAMED: usize = 16;

/// A hint from a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// An object is there, in this state.
    Seen(ObjectId, Live),
    /// A watch lost sight of an object.
    Lost(ObjectId),
    /// A watch has a gap: everything in its extent may have changed.
    Gap(Extent),
    /// A watch ended: for good, or until it is said to be resumed.
    Ended(Extent),
    /// A watch that ended goes on; what changed in between has been told.
    Resumed(Extent),
}

/// The source of hints for one course.
#[derive(Debug)]
pub(crate) enum Wakes {
    /// Watches shared with others, selected by a label that holds a parent's UID.
    Shared {
        changes: mpsc::UnboundedReceiver<Change>,
        /// Kinds that are watched wherever the course has objects.
        kinds: BTreeSet<GroupKind>,
        /// Where that is not so at present.
        ended: BTreeSet<Extent>,
        parent: Uid,
    },
    /// Watches of the course's own, opened when something has to be waited for.
    Own(Box<Watches>),
}

impl Wakes {
    /// The next hint; never resolves if there is none to come.
    pub(crate) async fn next(&mut self) -> Change {
        let change = match self {
            Self::Shared { changes, .. } => changes.recv().await,
            Self::Own(watches) => watches.streams.next().await,
        };
        match change {
            Some(change) => change,
            None => std::future::pending().await,
        }
    }

    /// The object is waited for from now on, last seen as `live`. Returns whether a watch reports its end.
    pub(crate) fn wait_for(&mut self, subject: &Subject, live: Option<&Live>) -> bool {
        match self {
            Self::Shared { kinds, ended, parent, .. } => {
                let selected = live.and_then(|l| l.label.as_deref()) == Some(parent.as_str());
                let covered = || !ended.iter().any(|extent| extent.covers(&subject.id));
                selected && kinds.contains(&subject.id.group_kind()) && covered()
            }
            Self::Own(watches) => watches.wait_for(subject, live),
        }
    }

    /// The object is not waited for any more.
    pub(crate) fn done_with(&mut self, id: &ObjectId) {
        if let Self::Own(watches) = self {
            watches.named.remove(id);
        }
    }

    /// A watch lost sight of the object. If it is still there, its labels were taken off: the selector does not help.
    pub(crate) fn lost(&mut self, id: &ObjectId) {
        if let Self::Own(watches) = self {
            watches.selected.remove(id);
        }
    }

    /// A watch ended: do not rely on it.
    pub(crate) fn ended(&mut self, extent: &Extent) {
        match (self, extent) {
            (Self::Shared { ended, .. }, _) => drop(ended.insert(extent.clone())),
            (Self::Own(watches), Extent::Selected { .. }) => {
                watches.open.remove(extent);
                watches.refused.insert(extent.clone());
            }
            (Self::Own(watches), Extent::Named(id)) => drop(watches.named.remove(id)),
        }
    }

    /// A shared watch goes on.
    pub(crate) fn resumed(&mut self, extent: &Extent) {
        if let Self::Shared { ended, .. } = self {
            ended.remove(extent);
        }
    }
}

/// Ends a watch when dropped.
#[derive(Debug)]
struct OpenWatch(AbortHandle);

impl Drop for OpenWatch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Watches of one course: one a kind and place where a selector was given, else one for each of a few objects.
pub(crate) struct Watches {
    client: Client,
    selector: Option<String>,
    /// Objects that lists with the selector showed.
    selected: BTreeSet<ObjectId>,
    /// Lists that were made with the selector: where they looked, and the version that a watch can go on from.
    listed: BTreeMap<Extent, String>,
    open: BTreeMap<Extent, OpenWatch>,
    refused: HashSet<Extent>,
    named: BTreeMap<ObjectId, OpenWatch>,
    streams: SelectAll<BoxStream<'static, Change>>,
}

impl std::fmt::Debug for Watches {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watches")
            .field("selector", &self.selector)
            .field("open", &self.open.len())
            .field("named", &self.named.len())
            .finish_non_exhaustive()
    }
}

impl Watches {
    /// No watch yet.
    pub(crate) fn new(
        client: Client,
        selector: Option<String>,
        selected: BTreeSet<ObjectId>,
        listed: BTreeMap<Extent, String>,
    ) -> Self {
        let (open, named, refused) = (BTreeMap::new(), BTreeMap::new(), HashSet::new());
        Self { client, selector, selected, listed, open, refused, named, streams: SelectAll::new() }
    }

    fn wait_for(&mut self, subject: &Subject, live: Option<&Live>) -> bool {
        (self.selected.contains(&subject.id) && self.by_selector(subject)) || self.by_name(subject, live)
    }

    /// Watches the kind with the selector where a list with it has looked before.
    fn by_selector(&mut self, subject: &Subject) -> bool {
        let kind = subject.id.group_kind();
        let place = |namespace: Option<&str>| Extent::Selected {
            kind: kind.clone(),
            namespace: namespace.map(ToOwned::to_owned),
        };
        for extent in [place(None), place(subject.id.namespace())] {
            if self.open.contains_key(&extent) {
                return true;
            }
            let Some(version) = self.listed.get(&extent).filter(|_| !self.refused.contains(&extent)) else { continue };
            let watching =
                Watching::selected(&self.client, &subject.resource, extent.clone(), self.selector.as_deref())
                    .from(version.clone());
            let watch = self.start(watching);
            self.open.insert(extent, watch);
            return true;
        }
        false
    }

    fn by_name(&mut self, subject: &Subject, live: Option<&Live>) -> bool {
        if self.named.contains_key(&subject.id) {
            return true;
        }
        let Some(live) = live.filter(|_| self.named.len() < MOST_NAMED) else { return false };
        let watching = Watching::named(&self.client, &subject.resource, subject.id.clone());
        let watch = self.start(watching.from(live.resource_version.clone()));
        self.named.insert(subject.id.clone(), watch);
        true
    }

    fn start(&mut self, watching: Watching) -> OpenWatch {
        let (handle, registration) = AbortHandle::new_pair();
        self.streams.push(Abortable::new(watching.changes(), registration).boxed());
        OpenWatch(handle)
    }
}

/// Reads an event's object; `None` if it names nothing that a course could hold.
pub(super) fn identify(kind: &GroupKind, meta: &ObjectMeta) -> Option<(ObjectId, Live)> {
    Some((ObjectId::from_meta(kind, meta).ok()?, Live::of(meta, None)?))
}
