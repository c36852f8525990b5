//! Values through programs of the drive: an ordered keyspace gives what a hashed one does.

use super::KINDS;
use crate::hashed::collect::victim::tests::{drive_in_memory, new_on};
use crate::hashed::session::near_tests::replies;
use crate::{ItemPipeline, KeyspaceHandle, KeyspaceKind, Outcome, Store};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use tapetum_base::error::Error;
use tapetum_base::log::Sync;
use tapetum_base::options::StoreOptions;
use tapetum_drive::{Drive, Env, PipelineFailure, PipelinePlace, PipelineReason, Purpose, PurposeAccount, SplitMix64};
use tapetum_kernels::sha256::Sha256;

const CAPACITY: u64 = 128 << 20;
/// Values in a node, in slabs of extensions and in large extensions, of which the last has stations.
const LENGTHS: [usize; 7] = [0, 1, 300, 5000, 60_000, 300_000, 2_500_000];

struct Bench {
    drive: Drive,
    store: Store,
}

impl Bench {
    fn new() -> Bench {
        let options = StoreOptions {
            segment_bytes: 256 << 10,
            partition_bits: 2,
            sync: Sync::No,
            ..StoreOptions::new(CAPACITY, 256 << 20)
        };
        let drive = drive_in_memory(CAPACITY, &options, Env::system());
        let store = new_on(&drive, &options);
        Bench { drive, store }
    }

    fn keyspace(&self, kind: KeyspaceKind) -> KeyspaceHandle {
        self.store.keyspace_or_create_of(&kind.to_string(), kind).unwrap()
    }

    fn pipeline(&self, names: &[&str]) -> ItemPipeline {
        let programs = self.drive.identity().programs;
        let id = |name: &&str| programs.iter().find(|program| program.name == *name).unwrap().id;
        let stages = names.iter().map(|name| (id(name), Vec::new())).collect();
        ItemPipeline { stages, output_bytes_max: 3 << 20, ..ItemPipeline::default() }
    }

    /// Bytes moved by gets and their pipelines.
    fn moved(&self) -> PurposeAccount {
        let counters = self.drive.counters();
        let mut moved = counters.purpose(Purpose::Get);
        moved += counters.purpose(Purpose::Pipeline);
        moved
    }
}

fn digest(value: &[u8]) -> Vec<u8> {
    let mut sha = Sha256::default();
    sha.update(value);
    sha.finish().to_vec()
}

#[test]
fn programs_see_the_value_that_a_get_gives_wherever_it_lies() {
    for kind in KINDS {
        let bench = Bench::new();
        let keyspace = bench.keyspace(kind);
        let (sha, packed) = (bench.pipeline(&["sha256"]), bench.pipeline(&["zstd-compress", "zstd-decompress"]));
        // They leave no room for a program that checks the value.
        let many = bench.pipeline(&["concat"; 8]);
        let keys = LENGTHS.map(|length| format!("{length}{}", "-".repeat(length % 77)).into_bytes());
        for (length, key) in LENGTHS.into_iter().zip(&keys) {
            let value = SplitMix64::new(1).bytes(length);
            keyspace.put(key, &value).unwrap();
            assert_eq!(keyspace.get(key).unwrap().unwrap().value, value);
            let through = |pipeline| keyspace.get_through(key, pipeline).unwrap().unwrap();
            assert_eq!(through(&sha), digest(&value), "{kind}, {length} bytes");
            assert!(through(&packed) == value && through(&many) == value, "{kind}, {length} bytes");
        }
        assert_eq!(keyspace.get_through(b"nothing", &sha), Ok(None));
        let damaged = bench.pipeline(&["concat", "zstd-decompress"]);
        let failure = PipelineFailure::new(PipelinePlace::Stage(1), PipelineReason::Program).with(2);
        for key in &keys[2..] {
            assert_eq!(keyspace.get_through(key, &damaged), Err(Error::Pipeline(failure)), "the caller's stage");
        }
        assert!(matches!(keyspace.get_through(&keys[0], &bench.pipeline(&["concat"; 9])), Err(Error::Options(_))));
    }
}

#[test]
fn of_a_value_in_an_extension_only_the_result_crosses() {
    let bench = Bench::new();
    let keyspace = bench.keyspace(KeyspaceKind::Ordered);
    let sha = bench.pipeline(&["sha256"]);
    for length in [5000, 60_000, 2_500_000] {
        let value = SplitMix64::new(2).bytes(length);
        keyspace.put(b"key", &value).unwrap();
        let before = bench.moved();
        assert_eq!(keyspace.get_through(b"key", &sha).unwrap().unwrap(), digest(&value));
        let after = bench.moved();
        let from_flash = after.flash_to_local - before.flash_to_local;
        let to_host = after.local_to_host - before.local_to_host;
        let from_host = after.host_to_local - before.host_to_local;
        assert!(from_flash as usize >= length && to_host < 256, "{from_flash} bytes read, {to_host} to the host");
        assert!(from_host < 1024, "{from_host} bytes of requests");
    }
}

/// Each read has the value before or after a change, whole, while slots are freed and written anew.
#[test]
#[expect(clippy::disallowed_methods, reason = "the point is real threads")]
fn a_value_that_is_replaced_meanwhile_is_one_or_the_other() {
    for kind in KINDS {
        let bench = Bench::new();
        let keyspace = bench.keyspace(kind);
        let values: Vec<Vec<u8>> =
            (0..4).map(|seed| SplitMix64::new(seed).bytes(50_000 + 3000 * seed as usize)).collect();
        let digests: BTreeSet<Vec<u8>> = values.iter().map(|value| digest(value)).collect();
        let keys: [&[u8]; 3] = [b"a", b"b", b"c"];
        for key in keys {
            keyspace.put(key, &values[0]).unwrap();
        }
        let (sha, is_over) = (bench.pipeline(&["sha256"]), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..300 {
                    keyspace.put(keys[round % 3], &values[round % values.len()]).unwrap();
                }
                is_over.store(true, Ordering::Relaxed);
            });
            while !is_over.load(Ordering::Relaxed) {
                for key in keys {
                    let through = keyspace.get_through(key, &sha).unwrap().unwrap();
                    assert!(digests.contains(&through), "{kind}");
                }
            }
        });
    }
}

#[test]
fn many_go_on_beside_others_are_cancelled_and_give_everything_back() {
    const COUNT: u64 = 100;
    for kind in KINDS {
        let bench = Bench::new();
        let keyspace = bench.keyspace(kind);
        let value = |number: u64| SplitMix64::new(number).bytes(2000 + 900 * number as usize);
        let keys: Vec<String> = (0..COUNT).map(|number| format!("key {number:03}")).collect();
        for (number, key) in (0..).zip(&keys) {
            keyspace.put(key.as_bytes(), &value(number)).unwrap();
        }
        let (sha, place) = (bench.pipeline(&["sha256"]), keyspace.keyspace());
        let used = bench.drive.local().bytes_used();
        let mut session = bench.store.session().unwrap();
        for (number, key) in (0..).zip(&keys) {
            session.submit_through(place, number, key.as_bytes(), &sha).unwrap();
        }
        let mut found = replies(&mut session, COUNT as usize);
        found.sort_by_key(|(token, _)| *token);
        for (number, (token, found)) in (0..).zip(found) {
            assert_eq!((token, found), (number, Ok(digest(&value(number)))), "{kind}");
        }
        // A get that is cancelled has its reply.
        let mut early = Vec::new();
        let slow = bench.pipeline(&["zstd-compress", "zstd-decompress", "sha256"]);
        for (number, key) in (0..).zip(&keys) {
            session.submit_through(place, number, key.as_bytes(), &slow).unwrap();
        }
        (0..2).for_each(|_| session.poll(&mut early));
        (0..COUNT).for_each(|token| session.cancel_through(token));
        let mut cancelled = 0;
        for (token, end) in replies(&mut session, COUNT as usize - early.len()) {
            match end {
                Ok(found) => assert_eq!(found, digest(&value(token)), "{kind}"),
                Err(Outcome::Failed(Error::Pipeline(PipelineFailure {
                    reason: PipelineReason::Cancelled, ..
                }))) => {
                    cancelled += 1;
                }
                other => panic!("{kind}: {other:?}"),
            }
        }
        assert!(cancelled > COUNT / 2, "{kind}: {cancelled}");
        // A session that is dropped takes its pipelines along.
        for (number, key) in (0..).zip(&keys) {
            session.submit_through(place, number, key.as_bytes(), &slow).unwrap();
        }
        (0..4).for_each(|_| session.poll(&mut Vec::new()));
        drop(session);
        assert_eq!(keyspace.get_through(keys[3].as_bytes(), &sha).unwrap().unwrap(), digest(&value(3)));
        assert!(bench.drive.local().bytes_used() <= used + (1 << 20), "{kind}");
    }
}
