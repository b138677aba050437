//! Any order of our calls, of what others do, and of what old watches show.
//!
//! Each parent has two operators, which mark, ask and create while the parent lives, and ask and tear down when it is
//! deleted, as a custodian does. A referee looks at the world after every step.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::{Future, poll_fn},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard},
    task::{Context, Poll},
};

use async_trait::async_trait;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use proptest::prelude::*;

use super::{
    super::{
        Dependency, Gate, Inner, MayCreate, MayDelete,
        cluster::{Cluster, Unread},
        lists::Lists,
        watch::Watches,
    },
    *,
};
use crate::{force::Allowed, manager::Manager, object::GroupKind};

const PARENTS: usize = 4;
/// Operators of each parent.
const OPERATORS: usize = 2;

/// A parent and what its operator did.
#[derive(Clone)]
struct Row {
    parent: Parent,
    /// The dependencies on whose existence its children were created.
    built_on: Option<BTreeSet<LiveRef>>,
    /// How often its record was written or removed, and whether children are on it.
    record: (usize, bool),
    /// Whether its teardown has begun.
    torn: bool,
    /// Names that were taken out, in the order in which they were: what is added again later is another dependency.
    withdrawn: Vec<ObjectId>,
}

#[derive(Default)]
struct State {
    rows: BTreeMap<ObjectId, Row>,
    incarnations: usize,
    /// Who was on a cycle with whom while both were being deleted: the cycle opens as soon as the first of them is gone.
    together: BTreeSet<(LiveRef, LiveRef)>,
}

impl State {
    fn parents(&self) -> Parents {
        all(self.rows.values().map(|row| row.parent.clone()))
    }

    /// Who reaches whom over parents that are being deleted and may have created something.
    fn reaches(&self, from: &ObjectId, to: &ObjectId) -> bool {
        let going = |id: &ObjectId| {
            let row = self.rows.get(id);
            row.is_some_and(|row| row.parent.deleting.is_some() && (row.parent.marked || row.torn))
        };
        let (mut seen, mut open) = (BTreeSet::new(), vec![from.clone()]);
        while let Some(id) = open.pop() {
            if going(&id) && seen.insert(id.clone()) {
                open.extend(self.rows[&id].parent.named().cloned());
            }
        }
        seen.contains(to)
    }

    /// Parents that are being deleted although nobody lives who depends on them, by whatever way, and has anything.
    fn stuck(&self) -> Vec<ObjectId> {
        let parents = self.parents();
        let deleting = self.rows.values().filter(|row| row.parent.deleting.is_some());
        let is_used = |row: &&Row| {
            let users = self.rows.values().filter(|user| user.parent.deleting.is_none() && user.record.1);
            let policy = BlockPolicy::same_namespace();
            users.map(|user| &user.parent.this.id).any(|user| parents.leads(user, &row.parent.this.id, &policy))
        };
        deleting.filter(|row| !is_used(row)).map(|row| row.parent.this.id.clone()).collect()
    }

    /// Whether children of `from` were built on `to`, by whatever way.
    fn rests_on(&self, from: &LiveRef, to: &LiveRef) -> bool {
        let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(live) = open.pop() {
            if seen.insert(live) {
                let row = self.rows.get(&live.id).filter(|row| row.parent.this == *live);
                open.extend(row.into_iter().flat_map(|row| row.built_on.iter().flatten()));
            }
        }
        seen.contains(to)
    }

    /// No parent is being torn down while somebody outside of its cycle has children that were built on it, or, with
    /// `cycles`, on another member that was built on it in turn. (Names that are added late can close a cycle around a
    /// parent that has begun; so can a parent that comes late, but it builds nothing.)
    fn judge(&mut self, cycles: bool) -> Result<(), String> {
        let ids: Vec<_> = self.rows.keys().cloned().collect();
        for (a, b) in ids.iter().flat_map(|a| ids.iter().map(move |b| (a, b))) {
            if a != b && self.reaches(a, b) && self.reaches(b, a) {
                self.together.insert((self.rows[a].parent.this.clone(), self.rows[b].parent.this.clone()));
            }
        }
        let together = |a: &Row, b: &Row| self.together.contains(&(a.parent.this.clone(), b.parent.this.clone()));
        for torn in self.rows.values().filter(|row| row.torn) {
            let (this, id) = (&torn.parent.this, |row: &Row| row.parent.this.id.clone());
            let now = |row: &Row| self.reaches(&this.id, &id(row)) && self.reaches(&id(row), &this.id);
            let built_on_this = |row: &Row| self.rests_on(&row.parent.this, this);
            let is_member = |row: &&Row| row.parent.this == *this || cycles && now(row) && built_on_this(row);
            for member in self.rows.values().filter(is_member) {
                let built_on_it = |user: &&Row| {
                    let named = user.parent.named().any(|n| *n == member.parent.this.id);
                    named && user.built_on.as_ref().is_some_and(|on| on.contains(&member.parent.this))
                };
                if let Some(user) = self
                    .rows
                    .values()
                    .filter(built_on_it)
                    .find(|user| user.parent.this != torn.parent.this && !together(torn, user))
                {
                    return Err(format!("{} is torn down under {}", torn.parent.this, user.parent.this));
                }
            }
        }
        Ok(())
    }
}

#[derive(Clone, Default)]
struct World(Arc<Mutex<State>>);

impl World {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }
}

async fn pause() {
    let mut paused = false;
    poll_fn(|context| {
        // Combinators poll only what was woken.
        context.waker().wake_by_ref();
        if std::mem::replace(&mut paused, true) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

#[async_trait]
impl Cluster for World {
    async fn read(&self, _: &Reader, id: &ObjectId) -> Result<Option<Parent>, Unread> {
        pause().await;
        let found = self.state().rows.get(id).map(|row| row.parent.clone());
        pause().await;
        Ok(found)
    }

    async fn list(&self, _: &[Reader], _: Option<&str>) -> Result<Parents, Unread> {
        pause().await;
        let found = self.state().parents();
        pause().await;
        Ok(found)
    }
}

fn name(n: usize) -> String {
    format!("p{n}")
}

/// One pass of the operator of a parent.
async fn pass(world: &World, gate: &Gate, id: &ObjectId) {
    pause().await;
    let Some(row) = world.state().rows.get(id).cloned() else { return };
    let this = row.parent.this.clone();
    // What a write does, if this incarnation is still there.
    let write = |change: &dyn Fn(&mut Row)| {
        let mut state = world.state();
        state.rows.get_mut(id).filter(|row| row.parent.this == this).map(change).is_some()
    };
    pause().await;
    if row.parent.deleting.is_some() {
        if row.parent.marked {
            if !row.torn {
                let answer = gate.releases(&this, &ObjectMeta::default(), BTreeSet::new()).await;
                if !matches!(answer, MayDelete::Yes(_)) {
                    return;
                }
                pause().await;
                write(&|row| row.torn = true);
            }
            pause().await;
            write(&|row| row.built_on = None);
            pause().await;
            write(&|row| row.parent.marked = false);
        }
        pause().await;
        let mut state = world.state();
        if state.rows.get(id).is_some_and(|row| row.parent.this == this) {
            state.rows.remove(id);
        }
        return;
    }
    let kind = GroupKind::new("", "ConfigMap").unwrap();
    let on: Vec<_> = row
        .parent
        .named()
        .map(|id| Dependency::new(kind.clone(), id.namespace().map(ToOwned::to_owned), id.name()))
        .collect();
    let before = world.state().rows.clone();
    let live = || world.state().rows.get(id).filter(|row| row.parent.this == this).cloned();
    if gate.admits(id, &on).await != MayCreate::Yes {
        return step_back(world, id, &this).await;
    }
    pause().await;
    // A finalizer is not added any more once the parent is being deleted.
    write(&|row| row.parent.marked |= row.parent.deleting.is_none());
    pause().await;
    let lives = || live().is_some_and(|row| row.parent.deleting.is_none());
    if !live().is_some_and(|row| row.parent.marked) || !lives() {
        return;
    }
    pause().await;
    let Some(Row { record: (version, used), .. }) = live() else { return };
    pause().await;
    if (!row.parent.marked || !used) && gate.admits(id, &on).await != MayCreate::Yes {
        return step_back(world, id, &this).await;
    }
    pause().await;
    if !used && !write_record(world, id, &this, version, true) {
        return;
    }
    pause().await;
    if !lives() {
        return;
    }
    pause().await;
    let mut state = world.state();
    // Those that were there during the whole pass: of one that was replaced, either incarnation may have been read.
    let there = |id: &ObjectId| {
        let now = state.rows.get(id)?.parent.this.clone();
        (before.get(id)?.parent.this == now).then_some(now)
    };
    let Some(live) = state.rows.get(id).filter(|row| row.parent.this == this) else { return };
    let withdrawn = live.withdrawn.get(row.withdrawn.len()..).unwrap_or_default();
    let named = row.parent.named().filter(|n| live.parent.named().any(|l| l == *n) && !withdrawn.contains(n));
    let still: BTreeSet<LiveRef> = named.filter_map(there).collect();
    if let Some(row) = state.rows.get_mut(id) {
        row.built_on.get_or_insert_default().extend(still);
    }
}

/// Writes the record of a parent, or takes it away, if nobody did since it was read.
fn write_record(world: &World, id: &ObjectId, this: &LiveRef, version: usize, used: bool) -> bool {
    let mut state = world.state();
    let row = state.rows.get_mut(id).filter(|row| row.parent.this == *this && row.record.0 == version);
    row.map(|row| row.record = (version + 1, used)).is_some()
}

/// A parent that has to wait, and has nothing on record, takes its mark off.
async fn step_back(world: &World, id: &ObjectId, this: &LiveRef) {
    let live = || world.state().rows.get(id).filter(|row| row.parent.this == *this).cloned();
    pause().await;
    if !live().is_some_and(|row| row.parent.marked && row.parent.deleting.is_none()) {
        return;
    }
    pause().await;
    let Some(Row { record: (version, false), .. }) = live() else { return };
    pause().await;
    if live().is_some_and(|row| row.built_on.is_some()) || !write_record(world, id, this, version, false) {
        return;
    }
    pause().await;
    if let Some(row) = world.state().rows.get_mut(id).filter(|row| row.parent.this == *this) {
        row.parent.marked = false;
    }
}

#[derive(Clone, Debug)]
enum Step {
    Ours(usize),
    Create(usize, Vec<usize>),
    Delete(usize),
    /// Names are taken out, and some added.
    Rename(usize, Vec<usize>),
    /// The watches catch up.
    Show,
    /// The watches are refused.
    Hide,
    /// The operator forgets what it knows.
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let names = || prop::collection::vec(0..PARENTS, 0..3);
    let step = prop_oneof![
        40 => (0..PARENTS * OPERATORS).prop_map(Step::Ours),
        3 => (0..PARENTS, names()).prop_map(|(n, names)| Step::Create(n, names)),
        3 => (0..PARENTS).prop_map(Step::Delete),
        1 => (0..PARENTS, names()).prop_map(|(n, names)| Step::Rename(n, names)),
        2 => Just(Step::Show),
        1 => Just(Step::Hide),
        1 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 0..250)
}

fn named(n: usize, names: &[usize]) -> Names {
    Names::Read(names.iter().filter(|m| **m != n).map(|m| id(&name(*m))).collect())
}

fn delete(state: &mut State, n: usize) {
    let id = id(&name(n));
    let Some(row) = state.rows.get_mut(&id) else { return };
    if row.parent.marked {
        row.parent.deleting.get_or_insert(Timestamp::UNIX_EPOCH);
    } else {
        state.rows.remove(&id);
    }
}

fn happen(world: &World, gate: &Gate, adds: bool, step: &Step) {
    let mut state = world.state();
    match step {
        Step::Ours(_) => {}
        Step::Create(n, names) => {
            if !state.rows.contains_key(&id(&name(*n))) {
                state.incarnations += 1;
                let mut parent = unmarked(parent(&name(*n), &[]));
                parent.this.uid = Uid::new(format!("u{}", state.incarnations)).unwrap();
                parent.names = named(*n, names);
                state.rows.insert(
                    id(&name(*n)),
                    Row { parent, built_on: None, record: (0, false), torn: false, withdrawn: Vec::new() },
                );
            }
        }
        Step::Delete(n) => delete(&mut state, *n),
        Step::Rename(n, names) => {
            if let Some(row) = state.rows.get_mut(&id(&name(*n))) {
                let before: BTreeSet<_> = row.parent.named().cloned().collect();
                row.parent.names = match named(*n, names) {
                    Names::Read(names) if !adds => {
                        Names::Read(names.into_iter().filter(|n| before.contains(n)).collect())
                    }
                    names => names,
                };
                let after: BTreeSet<_> = row.parent.named().cloned().collect();
                // Whoever takes a name out says that what was built on it does not need it any more.
                if let Some(on) = &mut row.built_on {
                    on.retain(|reference| after.contains(&reference.id));
                }
                row.withdrawn.extend(before.difference(&after).cloned());
            }
        }
        Step::Show => gate.0.watches.show(&gate.0.readers, Some(state.parents())),
        Step::Hide => gate.0.watches.show(&gate.0.readers, None),
        Step::Restart => gate.0.sessions.lock().unwrap().clear(),
    }
}

fn gate(world: &World) -> Gate {
    let policy = BlockPolicy::same_namespace();
    Gate(Arc::new(Inner {
        client: None,
        cluster: Arc::new(world.clone()),
        manager: Manager::new("ours.example.com").unwrap(),
        readers: vec![reader()],
        watches: Watches::new(policy.clone()),
        policy,
        allowed: Allowed::nothing(),
        until_ready: false,
        lists: Lists::default(),
        sessions: Mutex::default(),
    }))
}

type Running<'a> = Vec<Option<Pin<Box<dyn Future<Output = ()> + 'a>>>>;

fn poll<'a>(running: &mut Running<'a>, n: usize, begin: impl Fn(usize) -> Pin<Box<dyn Future<Output = ()> + 'a>>) {
    let pass = running[n].get_or_insert_with(|| begin(n));
    let waker = futures::task::noop_waker();
    if pass.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
        running[n] = None;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn c24_no_interleaving_tears_down_under_a_dependent_or_waits_for_ever(steps in steps(), adds in any::<bool>()) {
        let world = World::default();
        let gate = gate(&world);
        let ids: Vec<_> = (0..PARENTS).map(|n| id(&name(n))).collect();
        let begin = |n: usize| Box::pin(pass(&world, &gate, &ids[n % PARENTS])) as Pin<Box<dyn Future<Output = ()> + '_>>;
        let mut running: Running<'_> = (0..PARENTS * OPERATORS).map(|_| None).collect();
        for step in &steps {
            match step {
                Step::Ours(n) => poll(&mut running, *n, begin),
                other => happen(&world, &gate, adds, other),
            }
            prop_assert_eq!(world.state().judge(!adds), Ok(()));
        }
        let mut settle = || -> Result<(), TestCaseError> {
            for _ in 0..40 {
                happen(&world, &gate, adds, &Step::Show);
                for _ in 0..4 {
                    (0..running.len()).for_each(|n| poll(&mut running, n, begin));
                    prop_assert_eq!(world.state().judge(!adds), Ok(()));
                }
            }
            Ok(())
        };
        // Nobody waits for one that has nothing.
        settle()?;
        let stuck = world.state().stuck();
        prop_assert!(stuck.is_empty(), "{stuck:?} wait for nobody who has anything");
        // Everybody is deleted, and the watches follow: all of it goes.
        (0..PARENTS).for_each(|n| delete(&mut world.state(), n));
        settle()?;
        let left: Vec<_> = world.state().rows.keys().cloned().collect();
        prop_assert!(left.is_empty(), "{left:?} wait for ever");
    }
}
