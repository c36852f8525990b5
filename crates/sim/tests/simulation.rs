//! The simulator on a small scale: it is deterministic, the store holds, and every planted bug shows.

use tapetum::planted::ALL;
use tapetum_sim::hunt::{CRASHES, explain, hunt, run_until};
use tapetum_sim::run::keep_panics_quiet;
use tapetum_sim::{Setup, run};

#[test]
fn a_seed_decides_a_run() {
    let trace = |seed| run(&Setup { seed, crashes: 6, bug: None, record_events: false });
    assert_eq!(trace(7), trace(7));
    assert_ne!(trace(7).trace_hash, trace(8).trace_hash);
}

#[test]
fn what_is_recorded_for_a_report_changes_nothing() {
    let trace = |record_events| run(&Setup { seed: 9, crashes: 6, bug: None, record_events }).trace_hash;
    assert_eq!(trace(false), trace(true));
}

#[test]
fn five_hundred_crashes_lose_nothing() {
    keep_panics_quiet();
    let found = run_until(1, 2, None, |found| found.tally.points() >= 500);
    assert!(found.failure.is_none(), "{}", found.failure.map_or(String::new(), |failure| explain(&failure, None)));
    let (state, struck) = found.tally.rarest();
    assert!(struck >= 10, "only {struck} crashes struck in {state}");
}

#[test]
fn every_planted_bug_is_caught() {
    keep_panics_quiet();
    let runs_max = 200;
    for &bug in ALL {
        let found = hunt(1, bug, runs_max);
        assert!(found.failure.is_some(), "{bug:?} was not caught in {runs_max} runs of {CRASHES} crashes");
    }
}
