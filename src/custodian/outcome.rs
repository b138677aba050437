//! What one reconcile came to, for the parent's status and for the controller.

use std::{fmt, time::Duration};

use kube_runtime::controller::Action;

use super::{Error, Forced, desired};
use crate::{
    gate::{Blocked, Unmet},
    graph::DependencyGraph,
    inventory::{ClusterId, Damage},
    object::{LiveRef, ObjectId, ParentRef, Uid},
    ownership::Ignored,
    teardown::Report,
};

/// Where a parent stands.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Phase {
    /// Everything desired is applied, and nothing is left to prune.
    Applied,
    /// Something desired is not applied yet, or something dropped is not gone yet.
    Progressing,
    /// The parent waits for what it depends on: nothing is applied or pruned meanwhile.
    Waiting {
        /// What it waits for.
        on: Vec<Unmet>,
    },
    /// The parent is being deleted, and waits for parents that depend on it: nothing is torn down yet.
    Blocked(Blocked),
    /// The parent is being deleted, and children are left.
    Deleting,
    /// The parent was let go: all its children are accounted for.
    Released,
    /// There is no such parent any more, or another incarnation has its name.
    Gone,
    /// Nothing is done until somebody decides.
    Held(Hold),
    /// Nothing could be judged in this pass.
    Failed,
}

/// Why a parent is held until somebody decides.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Hold {
    /// Children may exist, and the record of them is gone; rediscovery could not prove its findings complete.
    InventoryMissing {
        /// What could not be found out.
        words: String,
    },
    /// The record belongs to an earlier incarnation of the parent, as after a restore from a backup. Re-link it with
    /// [`Custodian::relink`](super::Custodian::relink).
    Restored {
        /// The UID it was written for.
        recorded: Uid,
    },
    /// The record speaks of another cluster than the one that answers.
    OtherCluster {
        /// The cluster in the record and the one that answers, in words.
        words: String,
    },
    /// The target cluster cannot be reached, or the hook gave none. Tried again by itself; where the cluster is gone for
    /// good, [`Custodian::abandon_all`](super::Custodian::abandon_all) lets the parent go.
    TargetUnavailable {
        /// What is missing, in words.
        words: String,
    },
    /// The parent is being released: [`Custodian::uninstall`](super::Custodian::uninstall) or a
    /// [`drain`](super::Custodian::drain) decided so, and has not finished. Finish it; the parent is then as one that was
    /// never reconciled, and its children are anybody's.
    Releasing {
        /// Why, as recorded.
        reason: String,
    },
    /// More would be pruned than the author allows at once.
    Guarded {
        /// How many objects.
        pruned: usize,
        /// Out of how many.
        of: usize,
    },
}

impl Hold {
    /// `answers` where `recorded` is on record.
    pub(super) fn other_cluster(recorded: &ClusterId, answers: &ClusterId) -> Self {
        Self::OtherCluster {
            words: format!(
                "the inventory speaks of cluster {recorded}, but {answers} answers: connect to the recorded cluster"
            ),
        }
    }

    /// After how long to look again.
    fn requeue(&self) -> Duration {
        match self {
            Self::TargetUnavailable { .. } => super::TARGET_BACK,
            _ => super::LOOK_AGAIN,
        }
    }
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InventoryMissing { words } => {
                write!(f, "the inventory is missing although children were created: {words}")
            }
            Self::Restored { recorded } => {
                write!(f, "the inventory was written for another incarnation of the parent ({recorded}): re-link it")
            }
            Self::OtherCluster { words } => f.write_str(words),
            Self::TargetUnavailable { words } => write!(f, "where the children live cannot be reached: {words}"),
            Self::Releasing { reason } => write!(f, "the parent is being released ({reason}): finish that"),
            Self::Guarded { pruned, of } => {
                write!(f, "{pruned} of {of} objects would be pruned, more than allowed at once: allow it explicitly")
            }
        }
    }
}

/// Why one object is not applied.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// The name is taken by an object that is not ours, and the adoption policy leaves it alone.
    Exists {
        /// Whose it is, in words.
        owner: String,
    },
    /// It is the recorded incarnation, but our back-pointer was taken off or changed.
    Disowned,
    /// An earlier object of this name is being deleted.
    BeingDeleted,
    /// The namespace is being terminated, so nothing can be created in it.
    NamespaceTerminating,
    /// The parent is being deleted or could not be confirmed, so nothing is created any more.
    DoorClosed,
    /// What it depends on is not applied.
    Waits {
        /// On what.
        on: ObjectId,
    },
    /// The kind is not served (yet).
    NotServed {
        /// What discovery said.
        words: String,
    },
    /// Another field manager owns fields that the manifest sets, and force is off.
    FieldConflict {
        /// The API server's words.
        words: String,
    },
    /// A webhook changed the object's name or the manager's marks.
    Mutated {
        /// What was changed.
        words: String,
    },
    /// The API server refused.
    Refused {
        /// Its words; of a Secret only code and reason.
        words: String,
    },
    /// It is about to be adopted, as soon as that is on record.
    Adopting,
    /// It was given up or left in the cluster earlier; it is taken up again as soon as that is on record.
    Renewing,
    /// It is applied but not usable yet.
    NotReady {
        /// What is missing.
        words: String,
    },
}

impl Problem {
    /// Whether time alone is likely to solve it.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::BeingDeleted
                | Self::Waits { .. }
                | Self::NotServed { .. }
                | Self::Adopting
                | Self::Renewing
                | Self::NotReady { .. }
        )
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exists { owner } => write!(f, "exists already and is {owner}; adoption is not allowed"),
            Self::Disowned => f.write_str("lost the mark that it is ours; delete it, or abandon it and adopt it again"),
            Self::BeingDeleted => f.write_str("an earlier object of this name is being deleted"),
            Self::NamespaceTerminating => f.write_str("its namespace is being terminated"),
            Self::DoorClosed => f.write_str("the parent is being deleted"),
            Self::Waits { on } => write!(f, "waits for {on}"),
            Self::NotServed { words } => write!(f, "its kind is not served: {words}"),
            Self::FieldConflict { words } => write!(f, "another field manager owns some of its fields: {words}"),
            Self::Mutated { words } => write!(f, "was changed on its way into the cluster: {words}"),
            Self::Refused { words } => write!(f, "was refused: {words}"),
            Self::Adopting => f.write_str("is being adopted"),
            Self::Renewing => f.write_str("was given up earlier and is being taken up again"),
            Self::NotReady { words } => write!(f, "is not ready: {words}"),
        }
    }
}

/// An object that is not applied.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unapplied {
    /// Which object.
    pub id: ObjectId,
    /// Why.
    pub problem: Problem,
}

impl Unapplied {
    pub(crate) fn new(id: ObjectId, problem: Problem) -> Self {
        Self { id, problem }
    }
}

impl fmt::Display for Unapplied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.id, self.problem)
    }
}

/// What one reconcile came to.
///
/// Failures of single objects are listed here and stop nothing else. [`into_action`](Self::into_action) is an error
/// only if nothing could be judged.
#[derive(Debug)]
#[non_exhaustive]
pub struct Outcome {
    /// Whose reconcile; `None` if the parent has no identity that could be read.
    pub parent: Option<ParentRef>,
    /// Where the parent stands.
    pub phase: Phase,
    /// Desired objects that are applied, as they live.
    pub applied: Vec<LiveRef>,
    /// Desired objects that are not applied, and why.
    pub unapplied: Vec<Unapplied>,
    /// Desired objects that the parent may not manage, and why.
    pub ignored: Vec<Ignored>,
    /// Preferred edges that were given up, as text.
    pub given_up: Vec<String>,
    /// What became of dropped objects, or of all objects if the parent is being deleted.
    pub removal: Report,
    /// Unreadable parts of the inventory.
    pub damage: Vec<Damage>,
    /// What this pass put on record to be forced, for an event on the parent.
    pub forced: Vec<Forced>,
    /// Things worth knowing that stop nothing, in words.
    pub notes: Vec<String>,
    /// Why nothing could be judged.
    pub error: Option<Error>,
    /// After how long to look again if nothing wakes the parent.
    pub requeue: Option<Duration>,
}

impl Outcome {
    pub(crate) fn new(parent: Option<ParentRef>, phase: Phase) -> Self {
        Self {
            parent,
            phase,
            applied: Vec::new(),
            unapplied: Vec::new(),
            ignored: Vec::new(),
            given_up: Vec::new(),
            removal: Report::default(),
            damage: Vec::new(),
            forced: Vec::new(),
            notes: Vec::new(),
            error: None,
            requeue: None,
        }
    }

    pub(crate) fn failed(parent: Option<ParentRef>, error: impl Into<Error>) -> Self {
        Self { error: Some(error.into()), ..Self::new(parent, Phase::Failed) }
    }

    pub(crate) fn held(parent: ParentRef, hold: Hold) -> Self {
        Self { requeue: Some(hold.requeue()), ..Self::new(Some(parent), Phase::Held(hold)) }
    }

    pub(crate) fn record_given_up(&mut self, graph: &DependencyGraph) {
        self.given_up.extend(graph.given_up().iter().map(|given_up| graph.words_for(given_up)));
    }

    /// What became of objects, with the edges that ended for it.
    pub(crate) fn set_removal(&mut self, removal: Report) {
        self.given_up.extend(removal.ended.iter().map(ToString::to_string));
        self.removal = removal;
    }

    /// The controller's next action.
    ///
    /// # Errors
    /// Only if nothing could be judged; the controller's error policy then decides.
    pub fn into_action(self) -> Result<Action, Error> {
        match (self.error, self.requeue) {
            (Some(error), _) => Err(error),
            (None, Some(after)) => Ok(Action::requeue(after)),
            (None, None) => Ok(Action::await_change()),
        }
    }
}

impl From<desired::Error> for Error {
    fn from(source: desired::Error) -> Self {
        Self::Desired { source }
    }
}
