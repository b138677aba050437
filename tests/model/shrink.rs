//! Makes a scenario that breaks something smaller, as long as it breaks the same.

use super::{
    play::{Played, play},
    scenario::{Act, Scenario},
};

/// The smallest scenario found that breaks what `scenario` breaks, with what came of it.
pub fn shrink(scenario: &Scenario) -> (Scenario, Played) {
    let mut best = scenario.clone();
    let mut played = play(&best);
    let Some(wanted) = played.kind() else { return (best, played) };
    'again: loop {
        for smaller in smaller(&best) {
            let tried = play(&smaller);
            if tried.kind().as_ref() == Some(&wanted) {
                (best, played) = (smaller, tried);
                continue 'again;
            }
        }
        return (best, played);
    }
}

/// Scenarios that are smaller by one thing.
fn smaller(scenario: &Scenario) -> Vec<Scenario> {
    let mut all = Vec::new();
    let mut with = |change: &dyn Fn(&mut Scenario)| {
        let mut changed = scenario.clone();
        change(&mut changed);
        all.push(changed);
    };
    for number in 0..scenario.acts.len() {
        // Without the deletion of its parent a life has no end.
        if matches!(scenario.acts[number].1, Act::DeleteParent(..)) {
            continue;
        }
        with(&|changed| {
            changed.acts.remove(number);
        });
    }
    for child in 0..scenario.children.len() {
        if scenario.sets.iter().any(|set| set.wanted[child].contains(&true)) {
            with(&|changed| changed.sets.iter_mut().for_each(|set| set.wanted[child] = [false; 2]));
        }
        if !scenario.children[child].needs.is_empty() {
            with(&|changed| changed.children[child].needs.clear());
        }
        if scenario.children[child].keep {
            with(&|changed| changed.children[child].keep = false);
        }
    }
    if scenario.setup.parents > 1 {
        with(&|changed| {
            changed.setup.parents = 1;
            changed.acts.retain(|(_, act)| !matches!(act, Act::DeleteParent(1, _)));
        });
    }
    if scenario.setup.pace > 0 {
        with(&|changed| changed.setup.pace = 0);
    }
    if scenario.setup.yields > 0 {
        with(&|changed| changed.setup.yields = 0);
    }
    all
}
