//! Plays random histories of operators on the control plane in memory, and looks for one that breaks a law.
//!
//! ```text
//! cargo run --release --features sim --example explore -- --histories 1000000
//! ```
//!
//! `--first SEED` begins elsewhere, `--seed SEED` plays one history and tells it, `--threads N` is one a core unless set.
//! A violation is made smaller before it is shown; the exit code then is 1.

#![allow(dead_code, unreachable_pub, missing_docs, reason = "modules that are shared with the tests")]

#[path = "../tests/laws/mod.rs"]
mod laws;
#[path = "../tests/model/mod.rs"]
mod model;

use std::{
    process::ExitCode,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Instant,
};

use model::{coverage::Coverage, play::play, scenario::Scenario, shrink::shrink};

#[derive(Debug, Default)]
struct Tally {
    coverage: Coverage,
    calls: Vec<usize>,
    broken: Vec<u64>,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let option = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.get(at + 1)?.parse::<u64>().ok()
    };
    if let Some(seed) = option("--seed") {
        return tell(seed, arguments.iter().any(|argument| argument == "--shrink"));
    }
    let (first, histories) = (option("--first").unwrap_or(0), option("--histories").unwrap_or(10_000));
    let threads =
        option("--threads").unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get() as u64));
    let limit = option("--violations").unwrap_or(1);
    let (next, stop) = (AtomicU64::new(first), AtomicBool::new(false));
    let tally = Mutex::new(Tally::default());
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + histories {
                        return;
                    }
                    let played = play(&Scenario::from_seed(seed));
                    let mut tally = tally.lock().unwrap();
                    tally.coverage.add(&played.coverage);
                    tally.calls.push(played.calls);
                    if !played.broken.is_empty() {
                        println!("seed {seed}: {}", played.broken[0].chars().take(200).collect::<String>());
                        tally.broken.push(seed);
                        stop.store(tally.broken.len() as u64 >= limit, Ordering::Relaxed);
                    }
                    let done = tally.calls.len();
                    if done.is_multiple_of(10_000) {
                        println!("{done} histories, {:.0} a second", done as f64 / began.elapsed().as_secs_f64());
                    }
                }
            });
        }
    });
    let mut tally = tally.into_inner().unwrap();
    tally.calls.sort_unstable();
    let (played, took) = (tally.calls.len(), began.elapsed().as_secs_f64());
    print!("{}", tally.coverage);
    println!(
        "seeds {first} to {}: {played} histories in {took:.0} s ({:.0} a second), calls of operators: median {}, 99 % {}",
        first + played as u64,
        played as f64 / took,
        tally.calls.get(played / 2).unwrap_or(&0),
        tally.calls.get(played * 99 / 100).unwrap_or(&0),
    );
    match tally.broken.first() {
        None => {
            println!("no law was broken");
            ExitCode::SUCCESS
        }
        Some(_) if limit > 1 => ExitCode::FAILURE,
        Some(seed) => tell(*seed, true),
    }
}

/// Plays one history and tells what happened.
fn tell(seed: u64, smaller: bool) -> ExitCode {
    let scenario = Scenario::from_seed(seed);
    let (scenario, played) = if smaller { shrink(&scenario) } else { (scenario.clone(), play(&scenario)) };
    print!("{scenario}{played}");
    if played.broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
