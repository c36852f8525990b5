//! The device half on a small scale: it is deterministic, and holds. `make test-simulation` runs more of it.

use tapetum_sim::device::{DeviceSetup, run, run_all};

#[test]
fn a_seed_decides_a_run() {
    // Shares, commands, batches, and all that may happen.
    for seed in [8, 12, 13, 14] {
        assert_eq!(run(&DeviceSetup::new(seed)), run(&DeviceSetup::new(seed)));
    }
    assert_ne!(run(&DeviceSetup::new(14)).trace_hash, run(&DeviceSetup::new(15)).trace_hash);
}

#[test]
fn every_pipeline_ends_once_whatever_its_units_do() {
    let (outcome, seed) = run_all(&DeviceSetup::new(1), 64);
    assert_eq!(outcome.failure, None, "seed {seed}");
    for (name, struck) in outcome.tally.faults() {
        assert!(struck > 0, "no {name}");
    }
}
