//! The simulator on a small scale: it is deterministic, the store passes, and a planted bug shows and shrinks. `make test-simulation` hunts
//! all bugs.

use tapetum_sim::hunt::{CRASHES, explain, hunt, run_until, shrink};
use tapetum_sim::run::keep_panics_quiet;
use tapetum_sim::{Load, Setup, exhaustive, run};

#[test]
fn a_seed_decides_a_run() {
    let trace = |seed| run(&Setup::new(seed, 6));
    assert_eq!(trace(7), trace(7));
    assert_ne!(trace(7).trace_hash, trace(8).trace_hash);
}

#[test]
fn what_is_recorded_for_a_report_changes_nothing() {
    let trace = |record_events| run(&Setup { record_events, ..Setup::new(9, 6) }).trace_hash;
    assert_eq!(trace(false), trace(true));
}

#[test]
fn five_hundred_crashes_lose_nothing() {
    keep_panics_quiet();
    // Few of the first seeds run the collector.
    let setup = Setup::new(101, CRASHES);
    let found = run_until(&setup, 2, |found| found.tally.points() >= 500);
    assert!(found.failure.is_none(), "{}", found.failure.map_or(String::new(), |failure| explain(&failure, &setup)));
    let (state, struck) = found.tally.rarest_state();
    assert!(struck >= 5, "only {struck} crashes struck in {state}");
}

#[test]
fn short_lives_meet_every_fault() {
    keep_panics_quiet();
    let setup = Setup { operations_max: 300, troubles: 5, ..Setup::new(1, u32::MAX) };
    let found = run_until(&setup, 2, |found| found.runs >= 48);
    assert!(found.failure.is_none(), "{}", found.failure.map_or(String::new(), |failure| explain(&failure, &setup)));
    let (name, struck) = found.tally.rarest_fault();
    assert!(struck > 0, "nothing met {name}");
}

#[test]
fn one_case_is_tried_in_every_way() {
    let bench = exhaustive::Bench::new().unwrap();
    let steps = vec![exhaustive::Step::PutOne, exhaustive::Step::DeleteOne];
    for begins in [exhaustive::Begin::Empty, exhaustive::Begin::NearlyFull] {
        let (steps, strikes) = (steps.clone(), exhaustive::Strikes::Anywhere);
        let count = bench.run(&exhaustive::Case { steps, at_once: false, begins, strikes }).unwrap();
        // With one write in flight, with the other, and at the end.
        assert!(count.cuts >= 3 && count.outcomes > 256, "{count:?}");
    }
}

#[test]
fn a_failure_shrinks_to_a_smaller_one_that_still_fails() {
    keep_panics_quiet();
    let setup = Setup { bug: Some("ForgetTombstone"), ..Setup::new(1, CRASHES) };
    let failure = hunt(&setup, 20).failure.expect("the planted bug shows");
    let least = shrink(&failure, &setup);
    assert!(run(&least).failure.is_some(), "{least:?}");
    assert!(least.keys_max < setup.keys_max && least.crashes_max <= failure.crashes + 1, "{least:?}");
}

/// Shrinking may ask for fewer keys than there are keyspaces.
#[test]
fn each_keyspace_keeps_a_key_however_few_are_asked_for() {
    for load in [Load::Mixed, Load::Ordered, Load::Block] {
        let setup = Setup { load: Some(load), keys_max: 1, operations_max: 100, ..Setup::new(3, 3) };
        assert_eq!(run(&setup).failure, None, "{load:?}");
    }
}
