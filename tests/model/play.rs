//! Plays a scenario, and says what was broken.

use std::{fmt, sync::Arc, time::Duration};

use futures::future::{self, FutureExt};
use kube::{Api, Client, ResourceExt, api::PostParams};
use kube_custody::{
    custodian::{Custodian, Desired, Outcome},
    inventory::ConfigMapStore,
    manager::Manager,
    ownership::{
        OwnershipPolicy,
        proxy::{ClusterGitTrackOwner, GitTrackOwner, References},
    },
    sim::Cluster,
};
use serde_json::json;

use super::{
    coverage::Coverage,
    dice::Dice,
    judge::{self, End},
    scenario::Scenario,
    stage::Stagehand,
    things::{self, Address, GitTrack, GitTrackSpec, MANAGER},
    wire::{self, PARENT, PARENTS, Process, ProcessTape, Record},
};
use crate::laws::{
    checker::{self, Parent},
    history::{History, What},
    store::RecordingStore,
};

/// What came of a scenario.
#[derive(Debug)]
pub struct Played {
    /// What was broken, in words that do not change when a scenario is made smaller.
    pub broken: Vec<String>,
    /// How the life of each parent ended.
    pub ends: Vec<End>,
    /// What is still being deleted.
    pub terminating: Vec<String>,
    /// Calls of the operators.
    pub calls: usize,
    pub coverage: Coverage,
    /// What the operators did, for people.
    pub history: History,
}

impl Played {
    /// What was broken first, without the objects.
    pub fn kind(&self) -> Option<String> {
        self.broken.first().map(|text| text.split(':').next().unwrap_or_default().to_owned())
    }
}

impl fmt::Display for Played {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.broken.iter().try_for_each(|broken| writeln!(f, "BROKEN {broken}"))?;
        self.ends.iter().try_for_each(|end| writeln!(f, "end: {end}"))?;
        self.terminating.iter().try_for_each(|line| writeln!(f, "terminating: {line}"))?;
        write!(f, "{}", self.history)
    }
}

/// How long a pass may take, of the clock that jumps.
const PASS: Duration = Duration::from_secs(3600);
/// How many passes follow when nothing goes wrong any more.
const LAST_PASSES: usize = 60;
/// How many passes there are at most before.
const PASSES: usize = 60;
/// After how many passes with the same outcome nothing more is expected.
const SAME: usize = 6;

struct Operator {
    process: Arc<Process>,
    custodian: Custodian<GitTrack>,
}

/// One history in the making.
pub struct Play {
    scenario: Scenario,
    cluster: Cluster,
    admin: Client,
    hand: Arc<Stagehand>,
    record: Arc<Record>,
    parents: Vec<GitTrack>,
    operators: Vec<Operator>,
    processes: usize,
    broken: Vec<String>,
}

/// Plays a scenario in a runtime of its own.
pub fn play(scenario: &Scenario) -> Played {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let mut play = Play::new(scenario.clone()).await;
        play.run().await;
        play.finish().await
    })
}

impl Play {
    async fn new(scenario: Scenario) -> Self {
        let cluster = Cluster::builder().seed(scenario.seed).keep_calls(false).build();
        for crd in things::definitions() {
            cluster.install(&crd).unwrap();
        }
        let admin = cluster.client_as("author");
        for name in ["home", "far"] {
            let address = Address::new(things::NAMESPACE, None, name);
            let object = serde_json::from_value(address.object()).unwrap();
            address.api(&admin).create(&PostParams::default(), &object).await.unwrap();
        }
        let tracks = Api::<GitTrack>::namespaced(admin.clone(), "home");
        let mut parents = Vec::new();
        for parent in 0..scenario.setup.parents {
            let track = GitTrack::new(things::parent_name(parent), GitTrackSpec { path: "/".into() });
            parents.push(tracks.create(&PostParams::default(), &track).await.unwrap());
        }
        let record = Arc::<Record>::default();
        let hand = Stagehand::new(scenario.clone(), cluster.clone(), Arc::clone(&record));
        let mut play = Self {
            scenario,
            cluster,
            admin,
            hand,
            record,
            parents,
            operators: Vec::new(),
            processes: 0,
            broken: Vec::new(),
        };
        play.start();
        play
    }

    /// Starts one more process of the operator.
    fn start(&mut self) {
        let process = Process::new(self.processes);
        self.processes += 1;
        let tape = ProcessTape { record: Arc::clone(&self.record), process: Arc::clone(&process) };
        let client = wire::client(&self.cluster, &self.hand, &tape);
        let manager = Manager::new(MANAGER).unwrap();
        let store = RecordingStore { tape, inner: Arc::new(ConfigMapStore::new(client.clone(), manager)) };
        let setup = &self.scenario.setup;
        let builder = Custodian::<GitTrack>::builder(client, MANAGER)
            .ownership(OwnershipPolicy::ClusterWide)
            .references(setup.references)
            .watch(setup.watch)
            .adoption(setup.adoption)
            .store(Arc::new(store));
        let builder = match setup.proxies {
            true => builder.proxies::<GitTrackOwner, ClusterGitTrackOwner>(),
            false => builder.references(References::None),
        };
        self.operators.push(Operator { process, custodian: builder.build().unwrap() });
    }

    async fn live(&self, parent: usize) -> Option<GitTrack> {
        let tracks = Api::<GitTrack>::namespaced(self.admin.clone(), "home");
        let live = tracks.get_opt(things::parent_name(parent)).await.ok().flatten()?;
        (live.uid() == self.parents[parent].uid()).then_some(live)
    }

    /// Each process takes one pass over each parent, all at once. Returns the outcomes by parent.
    async fn pass(&mut self) -> Vec<Option<Outcome>> {
        let mut lives = Vec::new();
        for parent in 0..self.parents.len() {
            lives.push(self.live(parent).await);
        }
        self.hand.pass();
        let passes = self.operators.iter().flat_map(|operator| {
            lives.iter().enumerate().filter_map(move |(parent, live)| Some((operator, parent, live.clone()?)))
        });
        let (hand, record, scenario) = (&self.hand, &self.record, &self.scenario);
        let passes = passes.map(|(operator, parent, live)| {
            let reconcile = async move {
                record.note([operator.process.operator(parent)], &What::Pass);
                let desired = async move |_: Arc<GitTrack>| {
                    let desired = scenario.desired(hand.version(), parent);
                    Ok::<_, std::io::Error>(Desired::from(desired))
                };
                let pass = operator.custodian.reconcile(&live, desired);
                let death = operator.process.death();
                tokio::select! {
                    biased;
                    () = death => (parent, Some(None)),
                    outcome = tokio::time::timeout(PASS, pass) => (parent, outcome.ok().map(Some)),
                }
            };
            PARENT.scope(parent, reconcile).boxed_local()
        });
        let mut outcomes: Vec<Option<Outcome>> = (0..self.parents.len()).map(|_| None).collect();
        for (parent, outcome) in future::join_all(passes.collect::<Vec<_>>()).await {
            match outcome {
                Some(Some(outcome)) => outcomes[parent] = Some(outcome),
                Some(None) => {}
                None => self.broken.push("progress: a pass did not end within an hour".to_owned()),
            }
        }
        outcomes
    }

    /// What has to be done about the processes after a pass.
    fn staff(&mut self) {
        if self.hand.wants_restart() {
            self.operators.drain(..).for_each(|operator| operator.process.kill());
        }
        self.operators.retain(|operator| !operator.process.is_dead());
        let second = self.hand.wants_second() && self.operators.len() < 2;
        if self.operators.is_empty() || second {
            self.start();
        }
    }

    /// Lets time pass between two passes.
    async fn rest(&self, outcomes: &[Option<Outcome>], dice: &mut Dice) {
        match dice.below(4) {
            0 => {}
            1 => self.hand.let_others_work(dice).await,
            _ => while self.cluster.step_now().is_some() {},
        }
        let after = outcomes.iter().flatten().filter_map(|outcome| outcome.requeue).min();
        tokio::time::sleep(after.unwrap_or(Duration::from_secs(1)).min(Duration::from_secs(60))).await;
    }

    async fn run(&mut self) {
        let mut dice = Dice::of_key(self.scenario.seed, 0);
        let mut last: Vec<String> = Vec::new();
        for _ in 0..PASSES {
            let outcomes = self.pass().await;
            self.staff();
            self.rest(&outcomes, &mut dice).await;
            let now: Vec<String> = outcomes.iter().map(summary).collect();
            // Nothing moves by itself any more, so the next thing happens now.
            if now == last && self.hand.skip_to_next().await {
                last.clear();
                continue;
            }
            if now == last || outcomes.iter().all(Option::is_none) && self.hand.is_done() {
                break;
            }
            last = now;
        }
        while self.hand.skip_to_next().await {
            self.pass().await;
            self.staff();
        }
    }

    /// Lets everything come to its end, and judges.
    async fn finish(mut self) -> Played {
        self.hand.make_peace().await;
        let during = self.hand.calls();
        let mut outcomes: Vec<Option<Outcome>> = Vec::new();
        let (mut same, mut last) = (0, Vec::new());
        for _ in 0..LAST_PASSES {
            self.settle().await;
            self.staff();
            let now = self.pass().await;
            self.settle().await;
            let words: Vec<String> = now.iter().map(summary).collect();
            same = if words == last { same + 1 } else { 0 };
            last = words;
            let mut over = true;
            for parent in 0..self.parents.len() {
                over &= self.live(parent).await.is_none();
            }
            // A parent's last outcome is that of its last pass.
            outcomes.resize_with(self.parents.len(), || None);
            for (kept, new) in outcomes.iter_mut().zip(now) {
                *kept = new.or_else(|| kept.take());
            }
            if over || same >= SAME {
                break;
            }
            let after = outcomes.iter().flatten().filter_map(|outcome| outcome.requeue).min();
            tokio::time::sleep(after.unwrap_or(Duration::from_secs(5)).min(Duration::from_secs(600))).await;
        }
        let mut ends = Vec::new();
        for parent in 0..self.parents.len() {
            let gone = self.live(parent).await.is_none();
            ends.push(End::of(gone, outcomes.get(parent).and_then(Option::as_ref)));
        }
        let calls = during;
        let world = judge::World::read(&self.admin).await;
        self.broken.extend(judge::judge(&self.scenario, &self.hand, &self.parents, &ends, &world));
        let mut coverage = self.hand.coverage();
        for end in &ends {
            coverage.met(end.name());
        }
        for (number, parent) in self.parents.iter().enumerate() {
            let of = |operator: usize| operator % PARENTS == number;
            for violation in checker::check(&self.demands(number, parent), &self.record.history(of)) {
                self.broken.push(format!("law {} ({:?}): {}", violation.law as u8, violation.law, violation.words));
            }
        }
        let mine = |operator: usize| operator % PARENTS < self.parents.len();
        Played {
            broken: self.broken,
            ends,
            terminating: world.terminating(),
            calls,
            coverage,
            history: self.record.history(mine),
        }
    }

    fn demands(&self, number: usize, parent: &GitTrack) -> Parent {
        let address = Address::new(things::TRACK, Some("home"), things::parent_name(number));
        Parent {
            manager: MANAGER.to_owned(),
            id: address.id(),
            kind: "GitTrack".to_owned(),
            uid: parent.uid().unwrap_or_default(),
            // What is found again when the record is lost knows of no more edges than the live objects show.
            edges: if self.hand.foreign(|foreign| foreign.record_deleted) {
                Vec::new()
            } else {
                self.scenario.edges(number)
            },
            defined: [things::WIDGET, things::OWNER, things::CLUSTER_OWNER, things::TRACK]
                .iter()
                .map(|of| (of.0.to_owned(), of.3.to_owned()))
                .collect(),
            secrets: vec![things::SECRET.to_owned(), "supersecret".to_owned()],
        }
    }

    /// The controllers do all they can, time included.
    async fn settle(&self) {
        for _ in 0..20 {
            while self.cluster.step_now().is_some() {}
            let before = self.cluster.version();
            tokio::time::sleep(Duration::from_secs(10)).await;
            if self.cluster.step_now().is_none() && self.cluster.version() == before {
                return;
            }
        }
    }
}

/// What an outcome says, without times.
fn summary(outcome: &Option<Outcome>) -> String {
    let Some(outcome) = outcome else { return "gone".to_owned() };
    let blockers = outcome.removal.blockers.iter().map(|b| format!("{} {:?}", b.id, b.reason));
    let problems = outcome.unapplied.iter().map(ToString::to_string);
    let counts = format!("{} {} {}", outcome.applied.len(), outcome.removal.gone.len(), outcome.removal.waiting.len());
    json!([
        format!("{:?}", outcome.phase),
        counts,
        blockers.collect::<Vec<_>>(),
        problems.collect::<Vec<_>>(),
        outcome.error.as_ref().map(ToString::to_string)
    ])
    .to_string()
}
