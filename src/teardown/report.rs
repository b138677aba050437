//! What became of each object, and what blocks the rest.

use std::{collections::BTreeMap, fmt};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{
    course::{Course, Progress},
    proof::{Case, Proof, Reason, Settled},
    webhooks::Ended,
};
use crate::{
    graph::Node,
    object::{ObjectId, Uid},
};

/// The finalizer of an object whose DELETE asked for its dependents to go first. The garbage collector serves it.
const FOREGROUND: &str = "foregroundDeletion";

/// An object that is not done with, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Blocker {
    /// Which object.
    pub id: ObjectId,
    /// Which incarnation, where known.
    pub uid: Option<Uid>,
    /// Why.
    pub reason: Reason,
    /// The API server's own words, where it said any; of a Secret only code and reason.
    pub words: String,
    /// The finalizers that keep it, if it is terminating.
    pub finalizers: Vec<String>,
    /// What must go first: the objects that depend on it and are not gone.
    pub dependents: Vec<ObjectId>,
    /// Since when: its deletion timestamp, or the first time it was found blocked.
    pub since: Option<Time>,
}

impl fmt::Display for Blocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.id)?;
        match &self.reason {
            Reason::Terminating if !self.finalizers.is_empty() => {
                write!(f, "{}, kept by finalizers {}", self.reason, self.finalizers.join(", "))?;
                if self.finalizers.iter().any(|finalizer| finalizer == FOREGROUND) {
                    f.write_str("; the garbage collector has to delete what it controls, such as its pods, first")?;
                }
            }
            Reason::Dependents => match self.dependents.as_slice() {
                [one] => write!(f, "waits for {one}")?,
                [first, rest @ ..] => write!(f, "waits for {first} and {} more", rest.len())?,
                [] => write!(f, "{}", self.reason)?,
            },
            reason => write!(f, "{reason}")?,
        }
        if !self.words.is_empty() {
            write!(f, ": {}", self.words)?;
        }
        Ok(())
    }
}

/// An object that was left in the cluster, and for whose sake.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Kept {
    /// Which object.
    pub id: ObjectId,
    /// What needs it, if it is not kept by a policy of its own.
    pub needed_by: Option<ObjectId>,
    /// The foreign marks on it that asked for it, in words.
    pub markers: Vec<String>,
}

impl Kept {
    /// Why `case` is kept.
    pub(super) fn of(course: &Course, node: Node, case: &Case) -> Self {
        let markers = case.live().into_iter().flat_map(|live| &live.markers).filter(|m| m.verdict.keeps());
        Self {
            id: case.subject().id.clone(),
            needed_by: course.kept_for(node).cloned(),
            markers: markers.map(ToString::to_string).collect(),
        }
    }
}

/// What became of the objects of a teardown or prune.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Proven gone, each with its proof.
    pub gone: Vec<(ObjectId, Proof)>,
    /// Left in the cluster without our marks.
    pub kept: Vec<Kept>,
    /// Given up by explicit decision.
    pub abandoned: Vec<ObjectId>,
    /// What blocks: objects that could be acted on, were it not for the reason given.
    pub blockers: Vec<Blocker>,
    /// What waits for its dependents only.
    pub waiting: Vec<Blocker>,
    /// Preferred edges that ended, because a webhook cannot be called and its configuration has to go first.
    pub ended: Vec<Ended>,
}

impl Report {
    /// Whether every object is done with.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.blockers.is_empty() && self.waiting.is_empty()
    }

    /// Number of objects in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.gone.len() + self.kept.len() + self.abandoned.len() + self.unfinished()
    }

    /// Whether it speaks of no object.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of objects that are not done with.
    #[must_use]
    pub fn unfinished(&self) -> usize {
        self.blockers.len() + self.waiting.len()
    }

    /// What blocks, in words: the first blocker and the number of others.
    pub(super) fn first_blocker(&self) -> String {
        match self.blockers.as_slice() {
            [] => "nothing blocks".to_owned(),
            [one] => one.to_string(),
            [first, rest @ ..] => format!("{first} (and {} more)", rest.len()),
        }
    }

    /// The report of a course; `since` tells when an object was first found blocked.
    #[must_use]
    pub fn of(course: &Course, since: &BTreeMap<ObjectId, Time>) -> Self {
        let mut report = Self { ended: course.ended().to_vec(), ..Self::default() };
        let graph = course.graph();
        for (node, case, progress) in course.progress() {
            let id = &case.subject().id;
            let blocker = |reason: Reason, words: String| {
                let live = case.live().filter(|l| l.is_terminating());
                Blocker {
                    id: id.clone(),
                    uid: case.subject().uid.clone(),
                    reason,
                    words,
                    finalizers: live.map(|l| l.finalizers.clone()).unwrap_or_default(),
                    dependents: course.waits_for(node).map(|n| graph.id(n).clone()).collect(),
                    since: live.and_then(|l| l.deleting_since.clone()).or_else(|| since.get(id).cloned()),
                }
            };
            match progress {
                Progress::Settled(Settled::Gone(proof)) => report.gone.push((id.clone(), proof.clone())),
                Progress::Settled(Settled::Abandoned) => report.abandoned.push(id.clone()),
                Progress::Settled(Settled::Detached) => {
                    report.kept.push(Kept::of(course, node, case));
                }
                Progress::Idle => report.waiting.push(blocker(Reason::Dependents, String::new())),
                Progress::Asked => report.blockers.push(blocker(Reason::Unknown, "not answered yet".into())),
                Progress::Waiting => report.blockers.push(blocker(Reason::Terminating, String::new())),
                Progress::Blocked(block) => report.blockers.push(blocker(block.reason.clone(), block.words.clone())),
            }
        }
        report
    }
}
