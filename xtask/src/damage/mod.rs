//! Damaged blocks: bits turned, blocks zeroed, exchanged, or put back as they were earlier, in every part of a store's file, before it is
//! opened and below it while it runs. Every key that may be concerned is then read: it has its right value or a typed error, never another
//! value, and nothing panics. A log that lost its end, which no store can see (docs/FORMAT.md), is counted apart.
//!
//! With `--index ordered` the test writes and reads an ordered keyspace: data nodes, extensions, the checkpoint of anchors.
//!
//! Each damage is decided by the seed and its number alone, and is undone before the next.

mod harm;
mod history;
mod probe;
mod running;
mod subject;
mod tally;

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use tapetum::KeyspaceKind;

use self::harm::Kind;
use self::probe::Probe;
use self::subject::{Region, Subjects};
use self::tally::{Moment, Outcome, Tally};
use crate::arguments::Arguments;
use crate::{Failure, workspace};
use tapetum_bench::random::{Random, mix};

/// One damage in so many is done while the store takes writes: these take the longest.
const WRITING_ONE_IN: u64 = 16;
const THREADS_MAX: usize = 8;
/// Files of a thread: of two subjects, to be opened and open.
const REPLICAS: u64 = 4;

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let blocks = arguments.number("blocks", 10_000)?;
    let first = arguments.number("first", 0)?;
    let seed = arguments.number("seed", u64::from(std::process::id()))?;
    let index = arguments.text("index").unwrap_or("hashed").to_owned();
    let kind = match &index[..] {
        "hashed" => KeyspaceKind::Hashed,
        "ordered" => KeyspaceKind::Ordered,
        _ => return Err(format!("--index takes hashed or ordered, not {index}").into()),
    };
    arguments.finish()?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
    let needed_bytes = threads as u64 * REPLICAS * running::CAPACITY_BYTES;
    let scratch = workspace::scratch_in_memory("damage", needed_bytes)?;
    let tally = damage(&scratch, threads, seed, kind, first..first + blocks, draw);
    // The seed makes it all again: nothing is kept.
    std::fs::remove_dir_all(scratch)?;
    let tally = tally?;
    println!("{tally}");
    println!(
        "test-damage: {} blocks of {index} keyspaces damaged; {} answered right, {} with an error, {} refused when opened, \
         {} tails lost, {} nodes older; no wrong answer; seed {seed}",
        tally.fired(),
        tally.of(Outcome::RightAndNamed) + tally.of(Outcome::RightUnseen),
        tally.of(Outcome::Error),
        tally.of(Outcome::Refused),
        tally.of(Outcome::TailLost),
        tally.of(Outcome::Older),
    );
    Ok(())
}

/// Does the damages of these numbers.
fn damage(
    scratch: &Path,
    threads: usize,
    seed: u64,
    kind: KeyspaceKind,
    numbers: Range<u64>,
    draw: impl Fn(&mut Random) -> (Moment, Region, Kind) + Sync,
) -> Result<Tally, Failure> {
    let subjects = subject::make(seed, kind)?;
    let next = AtomicU64::new(numbers.start);
    let end = numbers.end;
    std::thread::scope(|scope| {
        let thread = |number: usize| {
            let (subjects, next, draw) = (&subjects, &next, &draw);
            move || work(subjects, &scratch.join(number.to_string()), seed, draw, next, end)
        };
        let threads: Vec<_> = (0..threads).map(|number| scope.spawn(thread(number))).collect();
        let mut tally = Tally::default();
        for thread in threads {
            tally.add(thread.join().expect("a panic of the store is caught")?);
        }
        Ok(tally)
    })
}

/// Does the next damage until `end`.
fn work(
    subjects: &Subjects,
    path: &Path,
    seed: u64,
    draw: &impl Fn(&mut Random) -> (Moment, Region, Kind),
    next: &AtomicU64,
    end: u64,
) -> Result<Tally, Failure> {
    let mut tally = Tally::default();
    let options = running::options();
    let mut closed = Probe::new(&subjects.closed, options, &path.with_extension("closed"))?;
    let mut crashed = Probe::new(&subjects.crashed, options, &path.with_extension("crashed"))?;
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= end {
            return Ok(tally);
        }
        let mut random = Random::new(mix(seed ^ mix(number)));
        // Some kinds change nothing in some regions: then another draw takes the place.
        let (place, outcome) = loop {
            let (moment, region, kind) = draw(&mut random);
            let probe = if random.one_in(2) { &mut closed } else { &mut crashed };
            let place = format!("{kind:?} in {region:?}, {moment:?}");
            let outcome = catch_unwind(AssertUnwindSafe(|| probe.run(moment, region, kind, &mut random)));
            let told = |what: String| -> Failure {
                next.store(end, Ordering::Relaxed);
                format!(
                    "seed {seed}, damage {number} ({place}): {what}\nagain: --seed {seed} --first {number} --blocks 1, and the same --index"
                )
                .into()
            };
            match outcome {
                Err(_) => return Err(told("the store panicked; its message is above".into())),
                Ok(Err(failure)) => return Err(told(failure.to_string())),
                Ok(Ok(None)) => {}
                Ok(Ok(Some(outcome))) => break ((moment, region, kind), outcome),
            }
        };
        tally.count(place.0, place.1, place.2, outcome);
    }
}

fn draw(random: &mut Random) -> (Moment, Region, Kind) {
    let pick = |random: &mut Random, count: usize| random.below(count as u64) as usize;
    let kind = Kind::ALL[pick(random, Kind::ALL.len())];
    let region = Region::ALL[pick(random, Region::ALL.len())];
    let read_while_running =
        ![Region::Superblock, Region::Manifest, Region::ManifestCopy, Region::Log, Region::Checkpoint]
            .contains(&region);
    let moment = match (read_while_running, random.one_in(WRITING_ONE_IN), random.one_in(2)) {
        (true, true, _) => Moment::Writing,
        (true, false, true) => Moment::Reading,
        _ => Moment::Closed,
    };
    (moment, region, kind)
}

/// The test is tested: a store that leaves a checksum out, or one whose damage has the right checksum, must be found out.
#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Scratch;
    use tapetum_drive::planted;

    #[test]
    fn a_log_that_is_believed_without_checksums_is_found_out() {
        let scratch = Scratch::new("damage-planted").unwrap();
        let flip_log = |_: &mut Random| (Moment::Closed, Region::Log, Kind::Flip);
        let (subjects, next) = (subject::make(1, KeyspaceKind::Hashed).unwrap(), AtomicU64::new(0));
        let work = || work(&subjects, &scratch.folder().join("0"), 1, &flip_log, &next, 2000);
        // SAFETY: this bug leaves leases alone.
        match unsafe { planted::with("SkipGroupChecksum", work) } {
            Err(failure) => assert!(failure.to_string().contains("was answered with"), "{failure}"),
            Ok(tally) => panic!("the bug was not seen:\n{tally}"),
        }
    }

    #[test]
    fn a_value_that_was_damaged_together_with_its_checksum_is_found_out() {
        let scratch = Scratch::new("damage-resealed").unwrap();
        let path = scratch.folder().join("drive");
        let mut subject = subject::make(1, KeyspaceKind::Hashed).unwrap().closed;
        let inspection = Probe::new(&subject, running::options(), &path).unwrap().look(&mut Random::new(1)).unwrap();
        assert!(subject.reseal_values(&inspection) > 10);
        let probe = Probe::new(&subject, running::options(), &path).unwrap();
        let wrong = probe.look(&mut Random::new(1)).unwrap_err().to_string();
        assert!(wrong.contains("other bytes than were written"), "{wrong}");
    }
}
