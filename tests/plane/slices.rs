//! Removals that take longer than one reconcile may.

use std::time::Duration;

use control_plane::{audit::Verb, fixtures};
use kube_custody::{
    custodian::{Phase, Watch},
    object::{LiveRef, ObjectId, Uid},
    teardown::{Slice, Teardown},
};

use crate::world::*;

/// Shorter than any request takes: at most one object is asked about in a slice.
const NO_TIME: Duration = Duration::from_micros(1);

#[tokio::test]
async fn a_teardown_that_is_cut_short_goes_on_at_once_and_writes_its_record_once() {
    let scene = Scene::with("slices", |builder| builder.slice(NO_TIME).concurrency(1).watch(Watch::Off)).await;
    let set: Vec<_> = ["a", "b", "c", "d", "e"].map(|name| scene.map(name, &[])).into();
    settle(&scene.custodian, &scene.admin, &scene.track, &set).await;
    delete(&scene.admin, &scene.track).await;
    scene.log.clear();
    let parent = reload(&scene.admin, &scene.track).await.unwrap();
    let mut slices = 0;
    loop {
        let outcome = reconcile(&scene.custodian, &parent, &set).await;
        if outcome.phase == Phase::Released {
            break;
        }
        slices += 1;
        assert_eq!(outcome.phase, Phase::Deleting, "{outcome:#?}");
        assert!(slices < 100, "{outcome:#?}");
        tokio::time::sleep(outcome.requeue.unwrap()).await;
        assert_eq!(outcome.requeue, Some(Duration::ZERO), "nothing wakes it, so no time may be lost: {outcome:#?}");
    }
    assert!(slices >= set.len(), "{slices}");
    let writes = scene
        .log
        .calls_where(|c| c.head.target.plural == "configmaps" && matches!(c.head.verb, Verb::Update | Verb::Patch));
    // The decision, and whatever letting go of the record takes; none of it for each slice.
    assert!(writes.len() < slices, "{slices} slices, {writes:#?}");
}

#[tokio::test]
async fn a_prune_that_is_cut_short_goes_on_at_once() {
    let scene = Scene::with("slices-prune", |builder| builder.slice(NO_TIME).concurrency(1).watch(Watch::Off)).await;
    let set: Vec<_> = ["stays", "a", "b", "c"].map(|name| scene.map(name, &[])).into();
    settle(&scene.custodian, &scene.admin, &scene.track, &set).await;
    let mut outcome = reconcile(&scene.custodian, &scene.track, &set[..1]).await;
    let mut passes = 0;
    while outcome.phase != Phase::Applied {
        passes += 1;
        assert_eq!((&outcome.phase, outcome.requeue), (&Phase::Progressing, Some(Duration::ZERO)), "{outcome:#?}");
        assert!(passes < 50, "{outcome:#?}");
        outcome = reconcile(&scene.custodian, &scene.track, &set[..1]).await;
    }
    assert!(passes >= 2, "{passes}");
    assert_eq!(scene.present(&set).await, [true, false, false, false]);
}

#[tokio::test]
async fn a_plan_that_is_cut_short_goes_on_at_once() {
    let client = client().await;
    let ns = fixtures::namespace(&client, "slices-plan").await;
    let mut records = Vec::new();
    for name in ["a", "b", "c"] {
        let live = create(&client, &config_map(&ns, name, &[])).await;
        records.push(LiveRef::new(ObjectId::of(&live).unwrap(), Uid::of(&live.metadata).unwrap()));
    }
    let edge = |from: usize, to: usize| (records[from].id.clone(), records[to].id.clone());
    let plan = Teardown::new(records.clone()).edges([edge(0, 1), edge(1, 2)]).plan().unwrap();
    let mut underway = plan.start(&client).await;
    for left in [2, 1] {
        match underway.slice(Duration::ZERO).await {
            Slice::Pending { report, requeue } => {
                assert_eq!((requeue, report.unfinished()), (Duration::ZERO, left), "{report:#?}")
            }
            done => panic!("{done:?}"),
        }
    }
    assert!(matches!(underway.slice(Duration::ZERO).await, Slice::Done(_)));
}
