//! Why nothing could be judged.

use super::{desired, intent};
use crate::{
    discovery, finalizer, gate, inventory,
    manager::InvalidManager,
    object::{self, ObjectId},
    ownership,
};

/// Why a custodian could not be built, or a reconcile could judge nothing. What was recorded stays recorded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The manager domain is not usable.
    #[error(transparent)]
    Manager(#[from] InvalidManager),
    /// A name derived from the manager is not usable.
    #[error("the manager's finalizers cannot be named: {source}")]
    FinalizerName {
        /// Which rule it breaks.
        #[source]
        source: finalizer::InvalidName,
    },
    /// The pair of proxy owners is not usable.
    #[error("the proxy owners are not usable: {source}")]
    Proxies {
        /// What is wrong.
        #[source]
        source: ownership::Error,
    },
    /// The parent was not read from the API server.
    #[error("the parent has no usable identity: {source}")]
    Parent {
        /// What is missing.
        #[source]
        source: object::Error,
    },
    /// The author's code could not say what is desired. Nothing was pruned.
    #[error("what is desired could not be told: {source}")]
    Render {
        /// The author's error.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The desired set is not usable.
    #[error("the desired set is not usable: {source}")]
    Desired {
        /// What is wrong.
        #[source]
        source: desired::Error,
    },
    /// The desired set cannot become entries of an inventory.
    #[error(transparent)]
    Intent(intent::Error),
    /// A kind in the desired set is not served, and its definition is not in the set.
    #[error(
        "{id}: the API server does not serve its kind, and the set does not define it: install it, or correct apiVersion and kind"
    )]
    UnknownKind {
        /// The first object of the kind.
        id: ObjectId,
    },
    /// A manifest is written in a version that is not served.
    #[error("{id}: version {version:?} is not served, but {}: rewrite the manifest", .served.join(", "))]
    UnservedVersion {
        /// Which object.
        id: ObjectId,
        /// The manifest's version.
        version: String,
        /// The versions that are served.
        served: Vec<String>,
    },
    /// The parent's finalizers could not be handled.
    #[error(transparent)]
    Finalizer(finalizer::Error),
    /// The inventory could not be read or written.
    #[error(transparent)]
    Inventory(inventory::Error),
    /// The cluster could not be identified.
    #[error(transparent)]
    Cluster(discovery::Error),
    /// Where the parent's children live cannot be reached, or is not where its record says.
    #[error("the parent's children cannot be looked at: {words}")]
    Target {
        /// Why, in words.
        words: String,
    },
    /// The parent could not be read live.
    #[error("the parent could not be read: {words}")]
    ParentUnreadable {
        /// The API server's words.
        words: String,
    },
    /// The gate does not know the parent's kind.
    #[error(transparent)]
    Gate(gate::Error),
    /// Somebody else changed the inventory in every round of this pass.
    #[error("the inventory of {parent} is being changed by somebody else: try again")]
    Contended {
        /// Whose.
        parent: object::ParentRef,
    },
}

impl From<intent::Error> for Error {
    fn from(error: intent::Error) -> Self {
        Self::Intent(error)
    }
}

impl From<finalizer::Error> for Error {
    fn from(error: finalizer::Error) -> Self {
        Self::Finalizer(error)
    }
}

impl From<inventory::Error> for Error {
    fn from(error: inventory::Error) -> Self {
        Self::Inventory(error)
    }
}

impl From<gate::Error> for Error {
    fn from(error: gate::Error) -> Self {
        Self::Gate(error)
    }
}

impl From<discovery::Error> for Error {
    fn from(error: discovery::Error) -> Self {
        Self::Cluster(error)
    }
}
