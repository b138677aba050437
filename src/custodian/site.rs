//! One cluster, as one identity sees it: what all parents share whose children live there.
//!
//! Parents, inventories and holds are at home. Everything about children goes through the site they live at, so that
//! nothing that one cluster says, and nothing that one identity may see, is taken for the word of another.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Mutex,
};

use kube_client::Client;
use tokio::sync::OnceCell;

use super::{Error, fields::Fingerprints, finalize::Session, hub::Hub, kinds::Definitions, watches::Watch};
use crate::{
    discovery::{self, Resolver},
    inventory::ClusterId,
    lock::lock,
    manager::Manager,
    object::{Scope, Uid},
    teardown::Crowd,
};

/// A client, and what was learned through it.
pub(crate) struct Site {
    pub(super) client: Client,
    pub(super) resolver: Resolver,
    pub(super) hub: Hub,
    pub(super) fingerprints: Fingerprints,
    pub(super) definitions: Definitions,
    pub(super) sessions: Mutex<BTreeMap<Uid, Session>>,
    /// Objects that are waited for, of all parents.
    pub(super) crowd: Crowd,
    /// Scopes whose proxies could not be had when last asked.
    pub(super) suspended: Mutex<BTreeSet<Scope>>,
    cluster: OnceCell<ClusterId>,
}

impl Site {
    pub(super) fn new(client: Client, manager: Manager, watch: Watch) -> Self {
        Self {
            resolver: Resolver::new(client.clone()),
            hub: Hub::new(client.clone(), manager, watch),
            client,
            fingerprints: Fingerprints::default(),
            definitions: Definitions::default(),
            sessions: Mutex::default(),
            crowd: Crowd::default(),
            suspended: Mutex::default(),
            cluster: OnceCell::new(),
        }
    }

    /// Which cluster it is.
    pub(super) async fn cluster_id(&self) -> Result<ClusterId, Error> {
        let id = self.cluster.get_or_try_init(|| discovery::cluster_id(&self.client)).await?;
        Ok(id.clone())
    }

    /// Says that proxies of this scope could not be had, so that the next survey asks for their definition.
    pub(super) fn suspect_proxies(&self, scope: Scope) {
        lock(&self.suspended).insert(scope);
    }
}
