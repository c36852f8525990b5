//! Random histories of updates, splits and merges, with a crash at every point and every fate of the images in flight.

use super::history::{Fate, History, KEYS, Mistake};
use proptest::prelude::*;

const FATES: [Fate; 3] = [Fate::NotWritten, Fate::Torn, Fate::Written];

#[derive(Clone, Copy, Debug)]
enum Step {
    Write {
        key: u8,
        is_removed: bool,
    },
    Send(u8),
    Complete(u8),
    Flush,
    Split {
        node: u8,
        at: u8,
    },
    Merge(u8),
    /// The power fails, with these fates, and the store is reopened.
    Recover(u16),
    /// A flush fails, the process ends, and the store is reopened.
    Kill,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..KEYS, any::<bool>()).prop_map(|(key, is_removed)| Step::Write { key, is_removed }),
        6 => any::<u8>().prop_map(Step::Send),
        5 => any::<u8>().prop_map(Step::Complete),
        3 => Just(Step::Flush),
        3 => (any::<u8>(), 0..KEYS).prop_map(|(node, at)| Step::Split { node, at }),
        3 => any::<u8>().prop_map(Step::Merge),
        1 => any::<u16>().prop_map(Step::Recover),
        1 => Just(Step::Kill),
    ]
}

/// The fates of `writes` images, encoded in a number.
fn fates(number: usize, writes: usize) -> Vec<Fate> {
    (0..writes as u32).map(|write| FATES[number / 3_usize.pow(write) % 3]).collect()
}

/// The most images that get every fate in a crash. The others get the fate of the last one.
const FATES_MAX: usize = 4;

/// The error after a crash at this point, if there is one.
fn crash_each_way(history: &History) -> Result<(), String> {
    let images = history.fates();
    let tried = images.min(FATES_MAX);
    (0..3_usize.pow(tried as u32)).try_for_each(|number| {
        let mut fates = fates(number, tried);
        fates.resize(images, fates.last().copied().unwrap_or(Fate::Written));
        // The newest images get every fate.
        fates.reverse();
        history.check(&fates).map_err(|wrong| format!("{wrong} ({fates:?})"))
    })
}

/// A recovery, with a crash at each point of it.
fn reopened(history: &mut History) -> Result<(), String> {
    crash_each_way(history)?;
    for node in (0..history.nodes()).filter(|node| history.is_again(*node)).collect::<Vec<_>>() {
        history.send(node);
        if history.is_again(node) {
            return Err("no slot is left for what is to be written again".into());
        }
        crash_each_way(history)?;
        (0..history.writes()).for_each(|write| history.complete(write));
        crash_each_way(history)?;
        history.flush();
        crash_each_way(history)?;
    }
    history.opened();
    Ok(())
}

fn run(mistake: Mistake, steps: &[Step]) -> Result<(), String> {
    let mut history = History::new(mistake);
    for (number, step) in steps.iter().enumerate() {
        let place = |of: u8, count: usize| usize::from(of) % count;
        match *step {
            Step::Write { key, is_removed } => history.write(key, is_removed),
            Step::Send(node) => history.send(place(node, history.nodes())),
            Step::Complete(write) if history.writes() > 0 => history.complete(place(write, history.writes())),
            Step::Complete(_) => (),
            Step::Flush => history.flush(),
            Step::Split { node, at } => history.split(place(node, history.nodes()), at),
            Step::Merge(node) => history.merge(place(node, history.nodes())),
            Step::Recover(number) => {
                history.recover(&fates(number.into(), history.fates()));
                reopened(&mut history)?;
            }
            Step::Kill => {
                history.recover_killed();
                reopened(&mut history)?;
            }
        }
        crash_each_way(&history).map_err(|wrong| format!("step {number}, {step:?}: {wrong}"))?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]
    #[test]
    fn no_acknowledged_write_is_lost_and_none_comes_back(steps in proptest::collection::vec(step(), 1..100)) {
        let ran = run(Mistake::None, &steps);
        prop_assert!(ran.is_ok(), "{}", ran.unwrap_err());
    }
}

/// Whether some history exposes the mistake.
fn is_seen(mistake: Mistake, histories: usize) -> bool {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let steps_of = proptest::collection::vec(step(), 90..100);
    (0..histories).any(|_| {
        let steps = steps_of.new_tree(&mut runner).unwrap().current();
        run(mistake, &steps).is_err()
    })
}

#[test]
fn each_broken_rule_is_seen() {
    for mistake in [
        Mistake::StampOfNode,
        Mistake::ShareGivenUpEarly,
        Mistake::OneHalfHolds,
        Mistake::MergeHoldsLeft,
        Mistake::AcknowledgeEarly,
        Mistake::StampsBeginAnew,
        Mistake::TrustCache,
        Mistake::ForgetOlder,
    ] {
        assert!(is_seen(mistake, 300), "{mistake:?}");
    }
    assert!(!is_seen(Mistake::None, 30));
}
