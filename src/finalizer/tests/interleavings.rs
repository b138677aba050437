//! Any order of our calls and other parties' writes.

use std::{future::Future, pin::Pin};

use proptest::prelude::*;

use super::{
    super::{
        AnnotationUpdate, Error, Finalizer,
        protocol::{Intent, Protocol},
        remote::{End, drive},
    },
    world::{Direct, LEGACY, OURS, SECOND, World, config_maps, is_ours, poll, target},
};

const KINDS: &str = "ours.example.com/group-kinds";

#[derive(Clone, Copy, Debug)]
enum Step {
    /// One of our actors makes a call.
    Ours(usize),
    AddForeign(u8),
    DropForeign,
    /// A writer with a stale list wipes ours.
    Wipe,
    Duplicate,
    Touch,
    Delete,
    /// A DELETE that had seen no finalizers removes the row.
    RacingDelete,
    Recreate,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        12 => (0..4_usize).prop_map(Step::Ours),
        2 => (0..3_u8).prop_map(Step::AddForeign),
        1 => Just(Step::DropForeign),
        1 => Just(Step::Wipe),
        1 => Just(Step::Duplicate),
        2 => Just(Step::Touch),
        1 => Just(Step::Delete),
        1 => Just(Step::RacingDelete),
        1 => Just(Step::Recreate),
    ];
    prop::collection::vec(step, 0..40)
}

fn happen(world: &World, step: Step) {
    let mut state = world.state();
    match step {
        Step::Ours(_) => {}
        Step::AddForeign(n) => state.edit(|meta| {
            if meta.deletion_timestamp.is_none() {
                meta.finalizers.get_or_insert_default().insert(0, format!("foreign.example.com/{n}"));
            }
        }),
        Step::DropForeign => state.edit(|meta| {
            let list = meta.finalizers.get_or_insert_default();
            if let Some(at) = list.iter().position(|f| !is_ours(f)) {
                list.remove(at);
            }
        }),
        Step::Wipe => state.edit(|meta| meta.finalizers.get_or_insert_default().retain(|f| !is_ours(f))),
        Step::Duplicate => state.edit(|meta| {
            let list = meta.finalizers.get_or_insert_default();
            if let Some(name) = list.iter().find(|f| is_ours(f)).cloned() {
                list.push(name);
            }
        }),
        Step::Touch => state.edit(|_| {}),
        Step::Delete => state.delete(),
        Step::RacingDelete => state.object = None,
        Step::Recreate => state.create("u2", &[OURS, "foreign.example.com/0"]),
    }
}

type Ending = Result<End<()>, Error>;

/// What must hold in the world at the moment an actor says that it is finished.
fn judge(world: &World, adds: bool, kind: &str, ending: &Ending) -> Result<(), TestCaseError> {
    let state = world.state();
    let uid = state.object.as_ref().and_then(|o| o.uid.clone());
    let ours = state.finalizers().into_iter().filter(|f| is_ours(f)).collect::<Vec<_>>();
    match ending {
        Ok(End::Gone) => prop_assert!(state.object.is_none()),
        Ok(End::Recreated(new)) => prop_assert_eq!(uid.as_deref(), Some(new.as_str())),
        Ok(End::Settled(())) if adds => {
            prop_assert_eq!(uid.as_deref(), Some("u1"));
            if state.object.as_ref().is_some_and(|o| o.deletion_timestamp.is_none()) {
                let count = |name: &str| ours.iter().filter(|f| *f == name).count();
                prop_assert_eq!((count(OURS), count(SECOND)), (1, 1));
                prop_assert!(state.annotation(KINDS).unwrap_or_default().split(',').any(|k| k == kind));
            }
        }
        Ok(End::Settled(())) => prop_assert!(ours.is_empty() || uid.as_deref() != Some("u1"), "{ours:?}"),
        Err(Error::Contended { .. }) => {}
        Err(other) => prop_assert!(false, "{other}"),
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn c22_no_interleaving_loses_a_neighbour_or_resurrects_ours(
        start in prop::sample::subsequence(vec!["foreign.example.com/a", OURS, "foreign.example.com/b", LEGACY, SECOND], 0..5),
        steps in steps(),
    ) {
        let world = World::with("u1", &start);
        let finalizer = Finalizer::new(OURS).unwrap().and(SECOND).unwrap().legacy([LEGACY]).unwrap();
        let (resource, parent) = (config_maps(), target("u1"));
        let direct = Direct { world: world.clone(), uid: "u1".into() };
        let grow = |kind: &'static str| AnnotationUpdate::new(KINDS, move |old: Option<&str>| match old {
            Some(old) if old.split(',').any(|k| k == kind) => None,
            Some(old) => Some(format!("{old},{kind}")),
            None => Some(kind.to_owned()),
        });
        let (a, b) = ([grow("A")], [grow("B")]);
        let intents = [Intent::Hold(&a), Intent::Hold(&b), Intent::Release, Intent::Release];
        let mut actors: Vec<Option<Pin<Box<dyn Future<Output = Ending>>>>> = intents
            .into_iter()
            .map(|intent| {
                let protocol = Protocol::new(&finalizer, &resource, &parent, intent);
                let (direct, id) = (&direct, &parent.id);
                let run = async move {
                    Ok(match drive(direct, id, protocol, None).await? {
                        End::Settled(_) => End::Settled(()),
                        End::Gone => End::Gone,
                        End::Recreated(uid) => End::Recreated(uid),
                    })
                };
                Some(Box::pin(run) as Pin<Box<dyn Future<Output = Ending>>>)
            })
            .collect();
        // The script, then everybody in turn until all are finished.
        let rest = (0..200).map(|n| Step::Ours(n % 4));
        for step in steps.into_iter().chain(rest) {
            let Step::Ours(index) = step else { happen(&world, step); continue };
            let ended = actors[index].as_mut().and_then(poll);
            if let Some(ending) = ended {
                actors[index] = None;
                judge(&world, index < 2, ["A", "B", "", ""][index], &ending)?;
            }
        }
        prop_assert!(actors.iter().all(Option::is_none), "somebody does not end");
        let state = world.state();
        prop_assert!(state.violations.is_empty(), "{:?}", state.violations);
    }
}
