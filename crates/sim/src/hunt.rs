//! Many runs: until so many points are counted, or until a planted bug shows.

use crate::bugs::{Bug, with_bug};
use crate::exhaustive::{self, Count};
use crate::run::{Failure, Outcome, Setup, run};
use crate::tally::Tally;
use crate::workload::Load;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use tapetum_drive::Env;

/// Crashes in one run, where not told otherwise.
pub const CRASHES: u32 = 24;
/// Runs that shrinking may take.
const TRIES_MAX: u32 = 200;
/// Runs between two looks at the tally.
const RUNS_PER_LOOK: u64 = 16;

/// The outcome of many runs.
#[derive(Clone, Default, Debug)]
pub struct Found {
    pub tally: Tally,
    pub runs: u64,
    /// Over all runs.
    pub trace_hash: u64,
    /// The failure of the lowest seed.
    pub failure: Option<Failure>,
}

/// Runs seeds from the first one on until `enough`, which is asked now and then, or until one fails.
pub fn run_until(first: &Setup, threads: usize, enough: impl Fn(&Found) -> bool) -> Found {
    let mut found = Found::default();
    if enough(&found) {
        return found;
    }
    let first = *first;
    let make = move || move |number| run(&Setup { seed: first.seed.wrapping_add(number), ..first });
    in_parallel(u64::MAX, threads, make, |outcome: Outcome| {
        found.tally.merge(&outcome.tally);
        found.runs += 1;
        found.trace_hash = found.trace_hash.rotate_left(1) ^ outcome.trace_hash;
        found.failure = outcome.failure;
        let ends = found.failure.is_some() || (found.runs.is_multiple_of(RUNS_PER_LOOK) && enough(&found));
        if ends { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    found
}

/// Works on the numbers below `count` with several threads, each with a worker from `make`. `hear` gets the results in order, until it
/// breaks off.
fn in_parallel<T: Send + 'static, W: FnMut(u64) -> T>(
    count: u64,
    threads: usize,
    make: impl Fn() -> W + Clone + Send + 'static,
    hear: impl FnMut(T) -> ControlFlow<()>,
) {
    let next = Arc::new(AtomicU64::new(0));
    let (sender, results) = mpsc::channel();
    let env = Env::system();
    let workers: Vec<_> = (0..threads.max(1))
        .filter_map(|number| {
            let (next, sender, make) = (next.clone(), sender.clone(), make.clone());
            let work = move || {
                let mut work = make();
                loop {
                    let number = next.fetch_add(1, Ordering::SeqCst);
                    if number >= count || sender.send((number, work(number))).is_err() {
                        return;
                    }
                }
            };
            env.spawn(&format!("run-{number}"), work).ok()
        })
        .collect();
    assert!(!workers.is_empty(), "no thread to run on");
    drop(sender);
    hear_in_order(results, hear);
    for worker in workers {
        assert!(worker.join().is_ok(), "the simulator itself panicked");
    }
}

/// Later sends fail, which ends the workers.
fn hear_in_order<T>(results: mpsc::Receiver<(u64, T)>, mut hear: impl FnMut(T) -> ControlFlow<()>) {
    let (mut due, mut early) = (0, BTreeMap::new());
    for (number, result) in results {
        early.insert(number, result);
        while let Some(result) = early.remove(&due) {
            due += 1;
            if hear(result).is_break() {
                return;
            }
        }
    }
}

/// Hunts several bugs at once, and tells what each hunt found as soon as it is over.
pub fn hunt_all(
    first: &Setup,
    bugs: &[Bug],
    runs_max: u64,
    threads: usize,
    tell: impl Fn(Bug, &Found) + Clone + Send + 'static,
) -> Vec<(Bug, Found)> {
    let (first, bugs): (Setup, Arc<[Bug]>) = (*first, bugs.into());
    let (count, mut all) = (bugs.len() as u64, Vec::new());
    let make = move || {
        let (bugs, tell) = (bugs.clone(), tell.clone());
        move |number| {
            let bug = bugs[number as usize];
            let found = match shows_in_cases(bug) {
                true => hunt_in_cases(bug),
                false => hunt(&Setup { bug: Some(bug), load: load_for(bug), ..first }, runs_max),
            };
            tell(bug, &found);
            (bug, found)
        }
    };
    in_parallel(count, threads, make, |found| {
        all.push(found);
        ControlFlow::Continue(())
    });
    all
}

/// The load under which a bug can show at all; `None` where any may do.
pub fn load_for(bug: Bug) -> Option<Load> {
    match bug {
        "TakeRoomEarly" | "KeepPayloadBits" => Some(Load::Heavy),
        "GrowWithoutNewest" | "GrowWithDead" => Some(Load::Tidal),
        "EvictUndurably" | "EvictExtentsEarly" | "TierOutlivesEviction" => Some(Load::Evicting),
        // A forced write that is answered early, and a trimmed block that comes back.
        "SyncEarly" | "ForgetTombstone" | "BlockTornGroup" | "BlockLostHole" => Some(Load::Block),
        // Not by queries, which hashed keyspaces have beside ordered ones alone.
        "FreezeForgetDeaths" | "FreezeWithoutTail" => None,
        _ if bug.ends_with("WithoutFloor") => Some(Load::Brim),
        _ if ["Ordered", "Query", "Freeze"].iter().any(|of| bug.starts_with(of)) => Some(Load::Ordered),
        _ => None,
    }
}

/// The seed, counted from the first one, at which a bug was caught that few runs show. It is tried first: if what runs do has changed since,
/// the hunt takes longer, and that is all.
fn seed_for(bug: Bug) -> Option<u64> {
    match bug {
        "FlushBeforeLog" => Some(3),
        "FreeLargeEarly" => Some(24),
        "RetryFlush" => Some(14),
        "TrustLarge" => Some(12),
        "TrustShortLog" => Some(163),
        "TrustCachedLog" => Some(17),
        "OpenOverFailure" => Some(131),
        "TierFillsLate" => Some(18),
        "OrderedTrustCachedImage" => Some(9),
        "OrderedTrimBatch" => Some(6),
        "OrderedNameEarly" => Some(20),
        "OrderedFreeExtensionEarly" => Some(24),
        "OrderedMergeForgets" => Some(221),
        "QueryForgetMissed" => Some(69),
        "FlushWithoutFloor" => Some(61),
        _ => None,
    }
}

/// Whether a bug shows in the exhaustive cases alone: it takes a power failure in the one recovery after a failed flush, which runs hardly
/// ever meet.
pub fn shows_in_cases(bug: Bug) -> bool {
    bug == "OrderedForgetOlder"
}

/// Looks for a planted bug in the cases of ordered keyspaces, each of which counts as a run.
fn hunt_in_cases(bug: Bug) -> Found {
    let (count, failure) = exhaust(exhaustive::ordered_cases(), Some(bug), 1);
    let failure = failure.map(|what| Failure { seed: 0, crashes: 0, what });
    Found { runs: count.cases + u64::from(failure.is_some()), failure, ..Found::default() }
}

/// Runs cases of [`exhaustive`] until one fails; what was enumerated, and the one that failed.
pub fn exhaust(cases: Vec<exhaustive::Case>, bug: Option<Bug>, threads: usize) -> (Count, Option<String>) {
    let cases = Arc::new(cases);
    let count = cases.len() as u64;
    let make = move || {
        let (cases, bench) = (cases.clone(), with_bug(bug, exhaustive::Bench::new));
        move |number| {
            let case = &cases[number as usize];
            let panicked = |_| Err("the store panicked".to_owned());
            let run = || bench.as_ref().map_err(Clone::clone)?.run(case);
            let result = catch_unwind(AssertUnwindSafe(|| with_bug(bug, run))).unwrap_or_else(panicked);
            result.map_err(|why| format!("{case:?}: {why}"))
        }
    };
    let (mut sum, mut failure) = (Count::default(), None);
    in_parallel(count, threads, make, |result| match result {
        Ok(count) => {
            sum.merge(&count);
            ControlFlow::Continue(())
        }
        Err(why) => {
            failure = Some(why);
            ControlFlow::Break(())
        }
    });
    (sum, failure)
}

/// Looks for a planted bug: where it was caught before, then one seed after the other. How many runs and points it took, if it was caught.
pub fn hunt(first: &Setup, runs_max: u64) -> Found {
    let mut found = Found::default();
    for offset in first.bug.and_then(seed_for).into_iter().chain(0..runs_max) {
        let outcome = run(&Setup { seed: first.seed.wrapping_add(offset), ..*first });
        found.tally.merge(&outcome.tally);
        found.runs += 1;
        found.failure = outcome.failure;
        if found.failure.is_some() {
            break;
        }
    }
    found
}

/// The least that still fails: fewer crashes, fewer copies in trouble, fewer operations; by running it again and again.
pub fn shrink(failure: &Failure, setup: &Setup) -> Setup {
    let mut least = Setup { seed: failure.seed, crashes_max: failure.crashes.saturating_add(1), ..*setup };
    let fails = |setup: &Setup| run(setup).failure.is_some();
    if !fails(&least) {
        return Setup { seed: failure.seed, ..*setup };
    }
    let mut tries = TRIES_MAX;
    // Another number of copies, of twins or of sessions is another run: it may fail elsewhere, and sooner.
    loop {
        let candidates = [
            Setup { crashes_max: least.crashes_max / 2, ..least },
            Setup { crashes_max: least.crashes_max.saturating_sub(1), ..least },
            Setup { troubles: 0, ..least },
            Setup { troubles: least.troubles / 2, ..least },
            Setup { twins: 0, ..least },
            Setup { backups: false, ..least },
            Setup { sessions_max: 1, ..least },
            Setup { keys_max: least.keys_max / 2, ..least },
            Setup { keys_max: least.keys_max * 3 / 4, ..least },
            Setup { life_steps_max: least.life_steps_max / 2, ..least },
        ];
        let smaller = candidates.into_iter().find(|candidate| {
            let differs = candidate != &least && candidate.keys_max > 0 && candidate.life_steps_max > 0;
            tries -= u32::from(differs && tries > 0);
            differs && tries > 0 && fails(candidate)
        });
        match smaller {
            Some(smaller) => least = smaller,
            None => return least,
        }
    }
}

/// Runs a seed that failed once more, with a report of what happened to the key.
pub fn explain(failure: &Failure, setup: &Setup) -> String {
    let outcome = run(&Setup { record_events: true, ..*setup });
    outcome.failure.as_ref().map_or_else(|| failure.to_string(), Failure::to_string)
}
