//! The controllers of a control plane, each an explicit state machine of which one step is taken at a time.

pub(super) mod crds;
pub(super) mod gc;
pub(super) mod namespaces;

use std::{fmt, time::Duration};

use self::{crds::Definitions, gc::Gc, namespaces::Namespaces};
use super::{catalogue::Catalogue, storage::Storage, world::World};

/// One of the controllers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Controller {
    /// The garbage collector: owner references and the finalizers `orphan` and `foregroundDeletion`.
    GarbageCollector,
    /// Deletes the content of namespaces.
    Namespaces,
    /// Serves the kinds of CustomResourceDefinitions, and deletes their objects when they go.
    Definitions,
}

impl Controller {
    pub(super) const ALL: [Self; 3] = [Self::GarbageCollector, Self::Namespaces, Self::Definitions];
}

impl fmt::Display for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::GarbageCollector => "garbage collector",
            Self::Namespaces => "namespace controller",
            Self::Definitions => "definitions",
        })
    }
}

/// What a step did, for people who read a history.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Step {
    /// Who did it.
    pub controller: Controller,
    /// What was looked at.
    pub about: String,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.controller, self.about)
    }
}

/// Whatever can make a failed attempt worth repeating. As long as it stays the same, a repetition would fail in the
/// same way.
pub(super) type Stamp = (u64, u64, u64);

/// The states of all controllers.
#[derive(Debug)]
pub(super) struct Controllers {
    pub(super) gc: Gc,
    pub(super) namespaces: Namespaces,
    pub(super) definitions: Definitions,
    paused: Vec<Controller>,
    /// Counts changes of settings, such as policies.
    pub(super) settings: u64,
    /// Among how many tasks at the head of its queue the garbage collector chooses.
    pub(super) workers: usize,
}

impl Default for Controllers {
    fn default() -> Self {
        Self {
            gc: Gc::default(),
            namespaces: Namespaces::default(),
            definitions: Definitions::default(),
            paused: Vec::new(),
            settings: 0,
            workers: 1,
        }
    }
}

impl Controllers {
    pub(super) fn start(&mut self, catalogue: &mut Catalogue, storage: &Storage) {
        self.gc = Gc::started(catalogue, storage);
        self.namespaces = Namespaces::default();
    }

    pub(super) fn pause(&mut self, controller: Controller, paused: bool) {
        self.paused.retain(|known| *known != controller);
        if paused {
            self.paused.push(controller);
        }
    }

    pub(super) fn is_paused(&self, controller: Controller) -> bool {
        self.paused.contains(&controller)
    }
}

impl World {
    pub(super) fn stamp(&self) -> Stamp {
        (self.storage.version(), self.catalogue.edition(), self.controllers.settings)
    }

    /// A controller forgets all it knew and begins anew.
    pub(super) fn restart(&mut self, controller: Controller) {
        match controller {
            Controller::GarbageCollector => {
                self.controllers.gc = Gc::started(&self.catalogue, &self.storage);
            }
            Controller::Namespaces => self.controllers.namespaces = Namespaces::default(),
            Controller::Definitions => self.controllers.definitions.restart(),
        }
    }

    /// How many things a controller could do now.
    fn ready(&mut self, controller: Controller) -> usize {
        if self.controllers.is_paused(controller) {
            return 0;
        }
        match controller {
            Controller::GarbageCollector => self.gc_ready(),
            Controller::Namespaces => self.namespaces_ready(),
            Controller::Definitions => self.definitions_ready(),
        }
    }

    fn next_due(&self, controller: Controller) -> Option<Duration> {
        if self.controllers.is_paused(controller) {
            return None;
        }
        match controller {
            Controller::GarbageCollector => self.gc_due(),
            Controller::Namespaces => self.namespaces_due(),
            Controller::Definitions => self.definitions_due(),
        }
    }

    /// One step of a controller, if it can take one without waiting.
    pub(super) fn step_of(&mut self, controller: Controller) -> Option<Step> {
        let ready = self.ready(controller);
        if ready == 0 {
            return None;
        }
        let choice = self.rng.below(ready);
        let about = match controller {
            Controller::GarbageCollector => self.gc_step(choice),
            Controller::Namespaces => self.namespaces_step(choice),
            Controller::Definitions => self.definitions_step(choice),
        };
        Some(Step { controller, about })
    }

    /// One step of whichever controller chance picks, the more work the likelier. `None` if none can go on without
    /// waiting.
    pub(super) fn step(&mut self) -> Option<Step> {
        let ready = Controller::ALL.map(|controller| (controller, self.ready(controller)));
        let mut choice = self.rng.below(ready.iter().map(|(_, count)| count).sum());
        for (controller, count) in ready {
            if choice < count {
                return self.step_of(controller);
            }
            choice -= count;
        }
        None
    }

    /// When the next thing is due that a controller waits for.
    pub(super) fn next_step_due(&self) -> Option<Duration> {
        Controller::ALL.into_iter().filter_map(|controller| self.next_due(controller)).min()
    }
}
