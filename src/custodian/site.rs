//! One cluster, as one identity sees it: what all parents share whose children live there.
//!
//! Parents, inventories and holds are at home. Everything about children goes through the site they live at, so that
//! nothing that one cluster says, and nothing that one identity may see, is taken for the word of another.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Deref,
    sync::{Arc, Mutex},
    time::Duration,
};

use kube_client::Client;
use tokio::{
    sync::OnceCell,
    time::{Instant, timeout},
};

use super::{
    Error, Inner,
    answering::Answering,
    context::Roles,
    fields::Fingerprints,
    finalize::Session,
    hub::Hub,
    kinds::Definitions,
    outcome::{Hold, Outcome},
    target::{Place, Reach, Target, Unavailable},
};
use crate::{
    answer::with_causes,
    discovery::{self, Resolver},
    inventory::ClusterId,
    lock::lock,
    object::{ObjectId, ParentRef, Scope, Uid},
    ownership::BackPointer,
    teardown::Crowd,
};

/// How long a target may take to say which cluster it is.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// A client, and what was learned through it.
pub(crate) struct Site {
    pub(super) client: Client,
    pub(super) resolver: Resolver,
    pub(super) hub: Hub,
    pub(super) fingerprints: Fingerprints,
    pub(super) definitions: Definitions,
    pub(super) roles: Roles,
    pub(super) sessions: Mutex<BTreeMap<Uid, Session>>,
    /// Objects that are waited for, of all parents.
    pub(super) crowd: Crowd,
    /// Scopes whose proxies could not be had when last asked.
    pub(super) suspended: Mutex<BTreeSet<Scope>>,
    pub(super) reach: Reach,
    cluster: OnceCell<ClusterId>,
    answering: Answering,
}

impl Site {
    pub(super) fn new(client: Client, hub: Hub, reach: Reach) -> Self {
        Self {
            resolver: Resolver::new(client.clone()),
            hub,
            client,
            fingerprints: Fingerprints::default(),
            definitions: Definitions::default(),
            roles: Roles::default(),
            sessions: Mutex::default(),
            crowd: Crowd::default(),
            suspended: Mutex::default(),
            reach,
            cluster: OnceCell::new(),
            answering: Answering::default(),
        }
    }

    /// Which cluster it is, as once learned.
    pub(super) async fn cluster_id(&self) -> Result<ClusterId, Error> {
        let id = self.cluster.get_or_try_init(|| discovery::cluster_id(&self.client)).await?;
        Ok(id.clone())
    }

    /// Which cluster answers.
    async fn who_answers(&self) -> Result<ClusterId, Unavailable> {
        match timeout(ANSWER_WITHIN, discovery::cluster_id(&self.client)).await {
            Ok(answer) => answer.map_err(|error| Unavailable::new(with_causes(&error))),
            Err(_) => Err(Unavailable::new(format!("its API server gave no answer within {ANSWER_WITHIN:?}"))),
        }
    }

    /// Says that proxies of this scope could not be had, so that the next survey asks for their definition.
    pub(super) fn suspect_proxies(&self, scope: Scope) {
        lock(&self.suspended).insert(scope);
    }
}

/// Where the children of one parent live, in one pass.
pub(super) struct Destination {
    pub(super) site: Arc<Site>,
    /// The cluster that answered there when the pass began.
    pub(super) cluster: ClusterId,
    /// The cluster that the parent lives in, if that is another one.
    pub(super) parents_home: Option<ClusterId>,
    /// Whether proxy owners are used there.
    pub(super) proxies: bool,
    /// Objects at home that the site cannot be reached without.
    pub(super) credentials: BTreeSet<ObjectId>,
    /// All objects at home that the parent's cleanup needs, those included.
    pub(super) holds: Vec<ObjectId>,
}

impl Deref for Destination {
    type Target = Site;

    fn deref(&self) -> &Site {
        &self.site
    }
}

impl Destination {
    /// What ties an object there to its parent.
    pub(super) fn back_pointer(&self, parent: &ParentRef, object: &ObjectId) -> BackPointer {
        let pointer = BackPointer::new(parent, object);
        match &self.parents_home {
            Some(home) => pointer.from_cluster(home.clone()),
            None => pointer,
        }
    }

    /// Asks again which cluster answers.
    ///
    /// What was seen between two equal answers was seen there. An address can lead to another cluster from one request
    /// to the next, and a new cluster knows nothing: all it is asked for is NotFound.
    pub(super) async fn confirm(&self) -> Result<(), Hold> {
        if self.site.reach != Reach::Remote {
            return Ok(());
        }
        match self.site.answering.now(|| self.site.who_answers()).await {
            Ok(now) if now == self.cluster => Ok(()),
            Ok(now) => Err(Hold::other_cluster(&self.cluster, &now)),
            Err(unavailable) => Err(Hold::TargetUnavailable { words: unavailable.to_string() }),
        }
    }
}

/// Why there is no destination.
pub(super) enum Nowhere {
    /// The home cluster could not be identified.
    Home(Error),
    /// The target cannot be had.
    Target(Unavailable),
}

impl Nowhere {
    pub(super) fn into_error(self) -> Error {
        match self {
            Self::Home(error) => error,
            Self::Target(unavailable) => Error::Target { words: unavailable.to_string() },
        }
    }

    pub(super) fn into_outcome(self, parent: &ParentRef) -> Outcome {
        match self {
            Self::Home(error) => Outcome::failed(Some(parent.clone()), error),
            Self::Target(unavailable) => {
                Outcome::held(parent.clone(), Hold::TargetUnavailable { words: unavailable.to_string() })
            }
        }
    }
}

impl Inner {
    /// The site that a target stands for, and which cluster answers there.
    pub(super) async fn reach(&self, parent: &ParentRef, target: Target) -> Result<Destination, Nowhere> {
        let site = match target.place {
            Place::Home => {
                lock(&self.sites).leave(&parent.uid);
                Arc::clone(&self.home)
            }
            Place::Other { key, client, reach } => {
                let (name, generation) = key.into_parts();
                let make = || Site::new(client.clone(), self.home.hub.sibling(client), reach);
                lock(&self.sites).enter((reach, name), generation, &parent.uid, Instant::now(), make)
            }
        };
        let cluster = match site.reach {
            Reach::Home | Reach::SameCluster => self.home.cluster_id().await.map_err(Nowhere::Home)?,
            Reach::Remote => site.answering.soon(|| site.who_answers()).await.map_err(Nowhere::Target)?,
        };
        let parents_home = match site.reach {
            Reach::Home | Reach::SameCluster => None,
            Reach::Remote => Some(self.home.cluster_id().await.map_err(Nowhere::Home)?),
        };
        let mut holds: BTreeSet<_> = self.holds_of(parent).into_iter().collect();
        holds.extend(target.holds.iter().cloned());
        Ok(Destination {
            site,
            cluster,
            parents_home,
            proxies: target.proxies,
            credentials: target.holds,
            holds: holds.into_iter().collect(),
        })
    }
}
