//! What happens in one history: a world, and what is done to it at which call.
//!
//! A scenario is data. It comes from a seed, can be made smaller, and is played the same way each time.

use std::{fmt, time::Duration};

use kube_custody::{
    custodian::{Adoption, Watch},
    ownership::proxy::References,
    sim::{Controller, Trouble},
};

use super::dice::Dice;

/// How an operator is built.
#[derive(Clone, Debug)]
pub struct Setup {
    pub proxies: bool,
    pub references: References,
    pub watch: Watch,
    pub adoption: Adoption,
    /// Steps of the controllers between two calls, at most.
    pub pace: usize,
    /// How often a call lets others go first, at most.
    pub yields: usize,
    /// Whether what holds finalizers never lets go of them.
    pub held_for_good: bool,
    /// How many parents there are: one or two.
    pub parents: usize,
}

/// What a child is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A ConfigMap in the parent's namespace.
    Near,
    /// A ConfigMap in another one.
    Far,
    Secret,
    ClusterRole,
    /// A Namespace.
    Team,
    /// A ConfigMap in the child that is a Namespace.
    Inside,
    /// The definition of Widgets.
    Definition,
    /// A Widget in the other namespace.
    Widget,
}

/// A desired object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Child {
    pub kind: Kind,
    pub number: usize,
    /// Which children it names as what it depends on.
    pub needs: Vec<usize>,
    /// Whether its manifest asks for it to be kept.
    pub keep: bool,
}

/// One version of what is desired: by child, whether each of the parents wants it, and what it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    pub wanted: Vec<[bool; 2]>,
    pub data: usize,
}

/// Which namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Home,
    Far,
}

/// Something that happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// The next version of what is desired.
    Upgrade,
    DeleteParent(usize, &'static str),
    /// What goes wrong with this very call.
    Trouble(Trouble),
    CloseWatches,
    /// Watches end, and what happened since is forgotten.
    Compact,
    RestartCollector,
    Pause(Controller),
    Resume,
    /// Another operator process.
    SecondOperator,
    /// All operator processes are replaced by a new one, without a crash.
    Restart,
    DeleteChild(usize),
    /// Deleted and created again at once, with all marks or with none.
    Recreate(usize, bool),
    /// Somebody else creates an object of the child's name, if there is none.
    TakeName(usize),
    StripLabel(usize),
    StripPointer(usize),
    Hold(usize),
    Release,
    Touch(usize),
    /// A copy of the child with all its marks under another name.
    Copy(usize),
    Keep(usize),
    /// A reference of somebody else's to an object of theirs.
    Refer(usize),
    DeleteNamespace(Place),
    DeleteDefinition(&'static str),
    DeleteRecord,
    DeleteProxies(&'static str),
    /// Deletions of a kind are refused by admission.
    Deny(&'static str),
    /// The operator loses the right to do something with a kind.
    Forbid(&'static str, &'static str),
    Lift,
    HideGroup(&'static str),
    ShowGroups,
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// One history, before it is played.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub seed: u64,
    pub setup: Setup,
    pub children: Vec<Child>,
    pub sets: Vec<Set>,
    /// What happens before which call of an operator, in order.
    pub acts: Vec<(usize, Act)>,
}

const KINDS: [Kind; 10] = [
    Kind::Near,
    Kind::Near,
    Kind::Far,
    Kind::Far,
    Kind::Secret,
    Kind::ClusterRole,
    Kind::ClusterRole,
    Kind::Team,
    Kind::Definition,
    Kind::Widget,
];

/// Names of resources as acts name them.
pub const PLURALS: [&str; 6] = ["configmaps", "secrets", "clusterroles", "namespaces", "widgets", "gittrackowners"];

impl Scenario {
    /// The scenario of a seed.
    pub fn from_seed(seed: u64) -> Self {
        let mut dice = Dice(seed);
        let dice = &mut dice;
        let setup = Setup {
            proxies: !dice.one_in(4),
            references: dice.of(&[References::Leaves, References::Leaves, References::All, References::None]),
            watch: dice.of(&[Watch::Auto, Watch::Auto, Watch::Namespaces, Watch::Off]),
            adoption: dice.of(&[Adoption::Never, Adoption::Never, Adoption::IfUnowned]),
            pace: dice.of(&[0, 1, 1, 3, 10]),
            yields: dice.of(&[0, 0, 1, 3]),
            held_for_good: dice.one_in(8),
            parents: if dice.one_in(5) { 2 } else { 1 },
        };
        let children = children(dice);
        let sets = sets(dice, &children, setup.parents);
        let acts = acts(dice, &children, &sets, &setup);
        Self { seed, setup, children, sets, acts }
    }
}

fn children(dice: &mut Dice) -> Vec<Child> {
    let mut children: Vec<Child> = Vec::new();
    for _ in 0..1 + dice.below(4) {
        let kind = dice.of(&KINDS);
        let has = |children: &[Child], kind: Kind| children.iter().any(|child| child.kind == kind);
        let mut add = |children: &mut Vec<Child>, kind: Kind| {
            let number = children.len();
            let needs = (0..number).filter(|_| dice.one_in(3)).collect();
            children.push(Child { kind, number, needs, keep: dice.one_in(16) });
        };
        match kind {
            Kind::Team | Kind::Definition if has(&children, kind) => {}
            Kind::Team => {
                add(&mut children, Kind::Team);
                add(&mut children, Kind::Inside);
            }
            Kind::Widget if !has(&children, Kind::Definition) => {
                add(&mut children, Kind::Definition);
                add(&mut children, Kind::Widget);
            }
            kind => add(&mut children, kind),
        }
    }
    children
}

fn sets(dice: &mut Dice, children: &[Child], parents: usize) -> Vec<Set> {
    let versions = dice.of(&[1, 1, 2, 2, 3]);
    let set = |dice: &mut Dice, data: usize| {
        let wanted = children.iter().map(|_| match (parents, dice.below(4)) {
            (1, 0) if data > 0 => [false, false],
            (1, _) => [true, false],
            (_, 0) => [false, data > 0],
            (_, 1) => [false, true],
            (_, 2) => [true, true],
            _ => [true, false],
        });
        Set { wanted: wanted.collect(), data }
    };
    (0..versions).map(|data| set(dice, data)).collect()
}

fn acts(dice: &mut Dice, children: &[Child], sets: &[Set], setup: &Setup) -> Vec<(usize, Act)> {
    let mut acts: Vec<(usize, Act)> = Vec::new();
    let ends = 10 + dice.below(90);
    for parent in 0..setup.parents {
        let policy = dice.of(&["Background", "Background", "Foreground", "Orphan"]);
        let at = if parent == 0 { ends } else { 10 + dice.below(90) };
        acts.push((at, Act::DeleteParent(parent, policy)));
    }
    acts.extend((1..sets.len()).map(|_| (1 + dice.below(ends), Act::Upgrade)));
    for _ in 0..dice.of(&[0, 1, 1, 2, 2, 3, 4, 6]) {
        let at = 1 + dice.below(ends + 50);
        acts.push((at, act(dice, children.len())));
    }
    acts.sort_by_key(|(at, _)| *at);
    acts
}

fn trouble(dice: &mut Dice) -> Trouble {
    let codes = [403, 404, 409, 429, 500, 503, 504];
    match dice.below(16) {
        0..=3 => Trouble::CrashBefore,
        4..=7 => Trouble::CrashAfter,
        8 | 9 => Trouble::AnswerLost,
        10 => Trouble::Unsent,
        11 => Trouble::Repeated,
        12 => Trouble::TimedOut(Duration::from_secs(30)),
        13 => Trouble::Stale(1 + u64::try_from(dice.below(20)).unwrap()),
        _ => Trouble::Refused(dice.of(&codes)),
    }
}

fn act(dice: &mut Dice, children: usize) -> Act {
    let child = dice.below(children);
    match dice.below(48) {
        0..=11 => Act::Trouble(trouble(dice)),
        12 => Act::CloseWatches,
        13 => Act::Compact,
        14 | 15 => Act::RestartCollector,
        16 => Act::Pause(dice.of(&[Controller::GarbageCollector, Controller::Namespaces, Controller::Definitions])),
        17 => Act::Resume,
        18 | 19 => Act::SecondOperator,
        20 => Act::Restart,
        21 | 22 => Act::DeleteChild(child),
        23 | 24 => Act::Recreate(child, dice.one_in(2)),
        25 | 26 => Act::TakeName(child),
        27 => Act::StripLabel(child),
        28 => Act::StripPointer(child),
        29 | 30 => Act::Hold(child),
        31 => Act::Release,
        32 | 33 => Act::Touch(child),
        34 => Act::Copy(child),
        35 => Act::Keep(child),
        36 => Act::Refer(child),
        37 | 38 => Act::DeleteNamespace(dice.of(&[Place::Home, Place::Home, Place::Far])),
        39 => Act::DeleteDefinition(dice.of(&["gittrackowners.faros.pusher.com", "widgets.model.example.com"])),
        40 => Act::DeleteRecord,
        41 => Act::DeleteProxies(dice.of(&["Background", "Foreground", "Orphan"])),
        42 => Act::Deny(dice.of(&PLURALS)),
        43 | 44 => Act::Forbid(dice.of(&["get", "list", "watch", "create", "patch", "delete"]), dice.of(&PLURALS)),
        45 => Act::Lift,
        46 => Act::HideGroup(dice.of(&["rbac.authorization.k8s.io", "model.example.com", "faros.pusher.com"])),
        _ => Act::ShowGroups,
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: {:?}", self.seed, self.setup)?;
        for child in &self.children {
            let keep = if child.keep { ", to be kept" } else { "" };
            writeln!(f, "  child {}: {:?}, needs {:?}{keep}", child.number, child.kind, child.needs)?;
        }
        for (number, set) in self.sets.iter().enumerate() {
            writeln!(f, "  desired {number}: {:?}", set.wanted)?;
        }
        for (at, act) in &self.acts {
            writeln!(f, "  before call {at}: {act}")?;
        }
        Ok(())
    }
}
