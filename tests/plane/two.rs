//! Two operators that work on one parent at once, each slowed down at random.

use std::time::Duration;

use control_plane::audit::{Fault, Verb};
use kube::Client;

use crate::{
    crash::{Life, Operator, Stage},
    world::*,
};

/// A number that follows from others, the same in every run.
fn scrambled(parts: [u64; 3]) -> u64 {
    parts.iter().fold(0x9e37_79b9_7f4a_7c15, |state: u64, part| {
        let mixed = (state ^ part).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^ (mixed >> 29)
    })
}

/// Delays about every second call of an operator, by up to 60 ms.
fn slow_down(operator: &Operator, seed: u64, number: u64) {
    operator.log.on_call(move |call| {
        let chance = scrambled([seed, number, call.seq]);
        if call.verb == Verb::Watch || chance.is_multiple_of(2) {
            return Fault::Pass;
        }
        Fault::Delay(Duration::from_millis(chance / 2 % 60))
    });
}

/// A whole life under two operators. With `apart`, the second learns of each stage some reconciles later than the first, as
/// one of an older release or with an older cache would.
async fn together(admin: &Client, home: &str, seed: u64, apart: bool) -> Result<(), String> {
    let life = Life::new(admin, home, "two").await;
    let operators = [life.operator(|builder| builder).await, life.operator(|builder| builder).await];
    for (number, operator) in operators.iter().enumerate() {
        slow_down(operator, seed, number as u64);
    }
    let run = async {
        let mut before = None;
        for stage in Stage::ALL {
            life.enter(stage).await;
            let second = async {
                if let Some(before) = before.filter(|_| apart && stage != Stage::Delete) {
                    for _ in 0..scrambled([seed, 7, stage as u64]) % 3 + 1 {
                        life.once(&operators[1], before).await;
                    }
                }
                life.settle(&operators[1], stage).await
            };
            let (first, second) = tokio::join!(life.settle(&operators[0], stage), second);
            first.and(second)?;
            if stage == Stage::Delete {
                life.is_over().await?;
            } else {
                if apart {
                    // What the second did by its older set, the first puts right.
                    life.settle(&operators[0], stage).await?;
                }
                life.stands(stage).await?;
            }
            before = Some(stage);
        }
        life.judge()?;
        if apart { Ok(()) } else { life.created_once() }
    };
    let limit = Duration::from_secs(90);
    let result = tokio::time::timeout(limit, run).await.unwrap_or_else(|_| Err("it takes for ever".into()));
    result.map_err(|words| format!("seed {seed}, apart {apart}: {words}\n{}", life.history()))
}

async fn many(prefix: &str, apart: bool) {
    let admin = client().await;
    let home = new_namespace(&admin, prefix).await;
    let lives = (0..8).map(|seed| together(&admin, &home, seed, apart));
    let failures: Vec<String> = futures::future::join_all(lives).await.into_iter().filter_map(Result::err).collect();
    assert!(failures.is_empty(), "{} lives failed:\n{}", failures.len(), failures.join("\n\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_operators_bring_one_parent_through_its_life() {
    many("two", false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_operators_of_two_minds_keep_the_laws() {
    many("two-minds", true).await;
}
