//! Gets through programs of the drive.

use crate::hashed::collect::victim::tests::{
    RECORD_BYTES, drive_in_memory, new_on, put_equal_records, store_of_equal_records, wait_for_flush,
};
use crate::{ItemPipeline, KeyspaceRef, Session, Store};
use std::collections::BTreeMap;
use std::time::Duration;
use tapetum_base::error::Error;
use tapetum_base::log::Sync;
use tapetum_base::media::io::lock;
use tapetum_base::options::StoreOptions;
use tapetum_base::request::{Condition, Outcome, Reply, Request};
use tapetum_base::session::near::NEAR_MAX;
use tapetum_drive::{Drive, Env, PipelineFailure, PipelinePlace, PipelineReason, Purpose, PurposeAccount};
use tapetum_kernels::expiry::Expiry;
use tapetum_kernels::sha256::Sha256;

fn pipeline(drive: &Drive, names: &[&str]) -> ItemPipeline {
    let identity = drive.identity();
    let id = |name: &&str| identity.programs.iter().find(|program| program.name == *name).unwrap().id;
    let stages = names.iter().map(|name| (id(name), Vec::new())).collect();
    ItemPipeline { stages, output_bytes_max: 1 << 16, ..ItemPipeline::default() }
}

fn flushed() -> (Drive, Store) {
    let (drive, store) = store_of_equal_records(64 << 10, RECORD_BYTES);
    settled(drive, store)
}

/// As [`flushed`], on a drive with a thread of its own.
fn flushed_on_a_drive_thread() -> (Drive, Store) {
    const CAPACITY: u64 = 64 << 20;
    let options = StoreOptions {
        segment_bytes: 64 << 10,
        partition_bits: 2,
        sync: Sync::No,
        ..StoreOptions::new(CAPACITY, 64 << 20)
    };
    let drive = drive_in_memory(CAPACITY, &options, Env::system()).with_threads(1).unwrap();
    let store = new_on(&drive, &options);
    put_equal_records(&store, 64 << 10, RECORD_BYTES, "key");
    settled(drive, store)
}

fn settled(drive: Drive, store: Store) -> (Drive, Store) {
    wait_for_flush(store.hashed());
    while lock(&store.hashed().installer).is_none() {
        std::thread::yield_now();
    }
    (drive, store)
}

/// Bytes moved by gets and their pipelines. Flushes go on beside them, for purposes of their own.
fn moved_by_gets(drive: &Drive) -> PurposeAccount {
    let counters = drive.counters();
    let mut moved = counters.purpose(Purpose::Get);
    moved += counters.purpose(Purpose::Pipeline);
    moved
}

#[test]
fn only_the_digest_of_an_item_on_flash_comes_to_the_host() {
    let (drive, store) = flushed();
    let digest = pipeline(&drive, &["sha256"]);
    let (mut compared, mut on_flash) = (0, 0);
    for number in 0..16 {
        let key = format!("key:{number:04x}");
        let value = store.get(key.as_bytes()).unwrap().unwrap().value;
        let mut sha = Sha256::default();
        sha.update(&value);
        let before = moved_by_gets(&drive);
        let through = store.get_through(key.as_bytes(), &digest).unwrap().unwrap();
        assert_eq!(through, sha.finish());
        let after = moved_by_gets(&drive);
        if after.flash_to_local > before.flash_to_local {
            on_flash += 1;
            let moved = after.local_to_host - before.local_to_host;
            // The digest, and the descriptions of where the record and the result are.
            assert!(moved < 32 + 128, "{moved} bytes of a value of {}", value.len());
            assert!(value.len() > 128);
        }
        compared += 1;
    }
    assert!(on_flash > 0 && compared == 16, "{on_flash} of {compared}");
}

#[test]
fn items_in_memory_and_large_ones_give_the_same() {
    let (drive, store) = flushed();
    let there_and_back = pipeline(&drive, &["zstd-compress", "zstd-decompress"]);
    let both = ItemPipeline { output_bytes_max: 1 << 20, ..there_and_back };
    store.put(b"fresh", b"in a write buffer").unwrap();
    let large: Vec<u8> = (0..700_000_u32).map(|at| (at % 253) as u8).collect();
    store.put(b"large", &large).unwrap();
    assert_eq!(store.get_through(b"fresh", &both).unwrap().unwrap(), b"in a write buffer");
    assert_eq!(store.get_through(b"large", &both).unwrap().unwrap(), large);
    assert_eq!(store.get_through(b"nothing", &both), Ok(None));
    assert_eq!(store.get(b"fresh").unwrap().unwrap().value, b"in a write buffer", "the session is as before");
}

#[test]
fn of_a_large_value_only_the_result_crosses() {
    let (drive, store) = flushed();
    let mut random = tapetum_drive::SplitMix64::new(1);
    let large = random.bytes(600_000);
    // One value is stored raw, and one is stored compressed.
    store.put(b"raw", &large).unwrap();
    let compressible: Vec<u8> = large.iter().map(|byte| byte & 3).collect();
    store.put(b"packed", &compressible).unwrap();
    for (key, value) in [(b"raw".as_slice(), &large), (b"packed", &compressible)] {
        let mut sha = Sha256::default();
        sha.update(value);
        let before = moved_by_gets(&drive);
        let digest = pipeline(&drive, &["sha256"]);
        assert_eq!(store.get_through(key, &digest).unwrap().unwrap(), sha.finish());
        let after = moved_by_gets(&drive);
        let from_flash = after.flash_to_local - before.flash_to_local;
        let to_host = after.local_to_host - before.local_to_host;
        let from_host = after.host_to_local - before.host_to_local;
        assert!(from_flash > 100_000 && to_host < 256, "{from_flash} bytes read, {to_host} to the host");
        assert!(from_host < 1024, "{from_host} bytes of descriptors");
        // These programs leave no room in the pipeline for those that check and inflate the value: the host does both.
        let many = ItemPipeline { output_bytes_max: 1 << 20, ..pipeline(&drive, &["concat"; 8]) };
        assert_eq!(store.get_through(key, &many).unwrap().unwrap(), *value);
    }
    // The caller's stages are counted, not those before them.
    let damaged = pipeline(&drive, &["concat", "zstd-decompress"]);
    let failure = PipelineFailure::new(PipelinePlace::Stage(1), PipelineReason::Program).with(2);
    assert_eq!(store.get_through(b"packed", &damaged), Err(Error::Pipeline(failure)));
}

/// Takes replies until there are `count`: tokens, and values or errors.
pub(crate) fn replies(session: &mut Session, count: usize) -> Vec<(u64, Result<Vec<u8>, Outcome>)> {
    let (mut all, mut replies) = (Vec::new(), Vec::new());
    while all.len() < count {
        session.poll(&mut replies);
        for Reply { token, outcome, .. } in replies.drain(..) {
            let value = outcome.value().map(|value| session.bytes(value).to_vec());
            all.push((token, value.ok_or(outcome)));
        }
        if all.len() < count {
            session.wait(Some(Duration::from_millis(10)));
        }
    }
    all
}

#[test]
fn many_go_on_beside_others_and_keep_the_order_of_their_key() {
    many_beside_others(flushed());
}

#[test]
fn many_go_on_beside_others_on_a_drive_thread() {
    many_beside_others(flushed_on_a_drive_thread());
}

fn many_beside_others((drive, store): (Drive, Store)) {
    let mut session = store.session().unwrap();
    let digest = |value: &[u8]| {
        let mut sha = Sha256::default();
        sha.update(value);
        sha.finish().to_vec()
    };
    let sha = pipeline(&drive, &["sha256"]);
    let mut expected = BTreeMap::new();
    let keys: Vec<String> = (0..3 * NEAR_MAX).map(|number| format!("key:{number:04x}")).collect();
    for (token, key) in (0..).map(|number| 4 * number).zip(&keys) {
        let before = store.get(key.as_bytes()).unwrap().unwrap().value;
        session.submit_through(KeyspaceRef::DEFAULT, token, key.as_bytes(), &sha).unwrap();
        let put = Request::Put {
            key: key.as_bytes(),
            value: b"new",
            flags: 0,
            expiry: Expiry::NONE,
            condition: Condition::Always,
        };
        session.submit(token + 1, put).unwrap();
        session.submit_through(KeyspaceRef::DEFAULT, token + 2, key.as_bytes(), &sha).unwrap();
        session.submit(token + 3, Request::Get { key: key.as_bytes() }).unwrap();
        expected.insert(token, digest(&before));
        expected.insert(token + 2, digest(b"new"));
        expected.insert(token + 3, b"new".to_vec());
    }
    session.submit_through(KeyspaceRef::DEFAULT, u64::MAX, b"nothing", &sha).unwrap();
    for (token, value) in replies(&mut session, 4 * keys.len() + 1) {
        match (value, expected.remove(&token)) {
            (Ok(value), Some(expected)) => assert_eq!(value, expected, "operation {token}"),
            (Err(Outcome::Stored { .. }), None) => assert_eq!(token % 4, 1),
            (Err(Outcome::Missing), None) => assert_eq!(token, u64::MAX),
            other => panic!("operation {token}: {other:?}"),
        }
    }
    assert!(expected.is_empty() && session.in_flight() == 0);
}

#[test]
fn a_session_that_goes_takes_its_pipelines_along() {
    dropped_with_pipelines(flushed());
}

#[test]
fn a_session_that_goes_takes_its_pipelines_along_from_a_drive_thread() {
    dropped_with_pipelines(flushed_on_a_drive_thread());
}

fn dropped_with_pipelines((drive, store): (Drive, Store)) {
    let large: Vec<u8> = (0..600_000_u32).map(|at| (at.wrapping_mul(at) >> 3) as u8).collect();
    store.put(b"large", &large).unwrap();
    let used = drive.local().bytes_used();
    let mut session = store.session().unwrap();
    let concat = ItemPipeline { output_bytes_max: 700_000, ..pipeline(&drive, &["concat"; 4]) };
    for token in 0..8 {
        session.submit_through(KeyspaceRef::DEFAULT, token, b"large", &concat).unwrap();
        session
            .submit_through(KeyspaceRef::DEFAULT, 100 + token, format!("key:{token:04x}").as_bytes(), &concat)
            .unwrap();
    }
    for _ in 0..4 {
        session.poll(&mut Vec::new());
    }
    assert!(drive.local().bytes_used() > used, "they are on their way");
    drop(session);
    assert_eq!(drive.local().bytes_used(), used);
    store.put(b"large", b"small").unwrap();
    assert_eq!(store.get(b"large").unwrap().unwrap().value, b"small");
}

#[test]
fn what_is_cancelled_is_replied_to_and_disturbs_nobody() {
    let (drive, store) = flushed();
    let large: Vec<u8> = (0..600_000_u32).map(|at| (at.wrapping_mul(at) >> 3) as u8).collect();
    store.put(b"large", &large).unwrap();
    let concat = ItemPipeline { output_bytes_max: 700_000, ..pipeline(&drive, &["concat"; 6]) };
    let mut session = store.session().unwrap();
    let cancelled = |outcome: &Result<Vec<u8>, Outcome>| match outcome {
        Err(Outcome::Failed(Error::Pipeline(failure))) => failure.reason == PipelineReason::Cancelled,
        _ => false,
    };
    // One that runs, one behind it, and one that is not looked up yet.
    session.submit_through(KeyspaceRef::DEFAULT, 1, b"large", &concat).unwrap();
    session.submit_through(KeyspaceRef::DEFAULT, 2, b"large", &concat).unwrap();
    (0..4).for_each(|_| session.poll(&mut Vec::new()));
    session.submit_through(KeyspaceRef::DEFAULT, 3, b"key:0001", &concat).unwrap();
    session.submit(4, Request::Get { key: b"large" }).unwrap();
    [1, 2, 3, 4, 5].into_iter().for_each(|token| session.cancel_through(token));
    let mut all = replies(&mut session, 4);
    all.sort_by_key(|(token, _)| *token);
    assert!(all[..3].iter().all(|(_, outcome)| cancelled(outcome)), "{:?}", &all[..3]);
    assert_eq!(all[3], (4, Ok(large)));
    session.submit_through(KeyspaceRef::DEFAULT, 1, b"large", &concat).unwrap();
    assert!(replies(&mut session, 1)[0].1.is_ok());
}

#[test]
fn a_deadline_is_kept_and_more_than_local_memory_is_refused() {
    let (drive, store) = flushed();
    let large: Vec<u8> = (0..600_000_u32).map(|at| (at % 251) as u8).collect();
    store.put(b"large", &large).unwrap();
    let hasty = ItemPipeline { deadline_us: 1, output_bytes_max: 1 << 20, ..pipeline(&drive, &["concat"; 6]) };
    match store.get_through(b"large", &hasty) {
        Err(Error::Pipeline(failure)) => assert_eq!(failure.reason, PipelineReason::DeadlineExceeded),
        other => panic!("{other:?}"),
    }
    // Others never give this piece of local memory back.
    let output_bytes_max = (drive.local().bytes_total() / 2) as u32;
    let large = ItemPipeline { output_bytes_max, ..pipeline(&drive, &["sha256"]) };
    assert!(matches!(store.get_through(b"key:0001", &large), Err(Error::Options(_))));
    let huge = ItemPipeline { output_bytes_max: u32::MAX, ..pipeline(&drive, &["sha256"]) };
    assert!(matches!(store.get_through(b"key:0001", &huge), Err(Error::Options(_))));
}

#[test]
fn what_fails_names_its_stage() {
    let (drive, store) = flushed();
    let damaged = pipeline(&drive, &["concat", "zstd-decompress"]);
    let failure = PipelineFailure::new(PipelinePlace::Stage(1), PipelineReason::Program).with(2);
    assert_eq!(store.get_through(b"key:0001", &damaged), Err(Error::Pipeline(failure)));
    let short = ItemPipeline { output_bytes_max: 10, ..pipeline(&drive, &["sha256"]) };
    let failure = PipelineFailure::new(PipelinePlace::Sink, PipelineReason::OutputTooLong).with(10);
    assert_eq!(store.get_through(b"key:0001", &short), Err(Error::Pipeline(failure)));
    let digest = pipeline(&drive, &["sha256"]);
    assert_eq!(store.get_through(b"key:0001", &digest).unwrap().unwrap().len(), 32);
    let many = pipeline(&drive, &["concat"; 9]);
    assert!(matches!(store.get_through(b"key:0001", &many), Err(Error::Options(_))));
}

/// There is enough of it, but in no piece that holds the parts of a pipeline.
#[test]
fn a_get_waits_where_local_memory_has_no_room_for_the_parts_of_its_pipeline() {
    let (drive, store) = flushed();
    let mut session = store.session().unwrap();
    let taken: Vec<_> = std::iter::from_fn(|| drive.local().allocate(128 << 10)).enumerate().collect();
    let (taken, free): (Vec<_>, Vec<_>) = taken.into_iter().partition(|(number, _)| number.is_multiple_of(2));
    drop(free);
    session.submit_through(KeyspaceRef::DEFAULT, 1, b"key:0001", &pipeline(&drive, &["sha256"])).unwrap();
    let mut replies_early = Vec::new();
    for _ in 0..50 {
        session.poll(&mut replies_early);
        session.wait(Some(Duration::from_millis(1)));
    }
    assert!(replies_early.is_empty(), "{replies_early:?}");
    drop(taken);
    assert_eq!(replies(&mut session, 1)[0].1.as_ref().unwrap().len(), 32);
}
