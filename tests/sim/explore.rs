//! Random histories of operators, judged by the laws. `examples/explore.rs` plays more of them.

use crate::{
    both::number,
    model::{
        coverage::Coverage,
        play::{Played, play},
        scenario::Scenario,
        shrink::shrink,
    },
};

fn played(seed: u64) -> Played {
    let scenario = Scenario::from_seed(seed);
    let played = play(&scenario);
    if !played.broken.is_empty() {
        let (scenario, played) = shrink(&scenario);
        panic!("{scenario}{played}");
    }
    played
}

/// `EXPLORE_HISTORIES` and `EXPLORE_SEED` choose others.
#[test]
fn no_history_breaks_a_law() {
    let (first, histories) = (number("EXPLORE_SEED", 0), number("EXPLORE_HISTORIES", 1000));
    let halves = [first..first + histories / 2, first + histories / 2..first + histories];
    let halves = halves.map(|seeds| std::thread::spawn(|| seeds.map(played).collect::<Vec<_>>()));
    let all: Vec<Played> = halves.into_iter().flat_map(|half| half.join().unwrap()).collect();
    let (mut coverage, mut calls) = (Coverage::default(), Vec::new());
    for played in all {
        coverage.add(&played.coverage);
        calls.push(played.calls);
    }
    calls.sort_unstable();
    assert!(calls[calls.len() / 2] <= 100, "histories are to be short: {}", calls[calls.len() / 2]);
    for situation in [
        "stale: an old list",
        "stale: a watch with a gap",
        "intermediate: a crash between two writes of a pass",
        "unobserved: gone and there again between two calls",
        "answer to a write lost",
        "a second operator",
        "end: all gone",
    ] {
        assert!(coverage.times(situation) > 0, "{situation} was never met:\n{coverage}");
    }
}

/// What a seed shows once it shows again.
#[test]
fn a_history_is_the_same_each_time() {
    for seed in 0..40 {
        let scenario = Scenario::from_seed(seed);
        assert_eq!(play(&scenario).history.to_string(), play(&scenario).history.to_string(), "seed {seed}");
    }
}
