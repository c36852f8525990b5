//! Sessions on concurrent threads.

use super::bench::{Bench, Client};
use super::model_tests::put;
use crate::hashed::collect::victim::tests::SMALL_BYTES;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tapetum_base::log::Sync;
use tapetum_base::request::key_range::{KeyBound, KeyRange};
use tapetum_base::request::{Outcome, Request};
use tapetum_drive::{Env, MemoryFlash, SplitMix64};

fn bench(cache_pages: usize, sync: Sync) -> Bench {
    Bench::on_threads(Arc::new(MemoryFlash::new(SMALL_BYTES)), cache_pages, sync)
}

/// Works on the keys of one thread, which no other thread writes: the last write is there.
fn work(client: &mut Client, thread: u64, rounds: u32) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut random = SplitMix64::new(thread);
    let mut model = BTreeMap::new();
    for _ in 0..rounds {
        // Neighbours of the other thread's keys, in the same nodes.
        let key = format!("key:{:04}:{thread}", random.below(300)).into_bytes();
        match random.below(3) {
            0 => {
                let (outcome, value) = client.run(Request::Get { key: &key });
                match model.get(&key) {
                    Some(expected) => assert!(matches!(outcome, Outcome::Value { .. }) && value == *expected),
                    None => assert_eq!(outcome, Outcome::Missing),
                }
            }
            1 => {
                let there = model.remove(&key).is_some();
                let deleted = client.run(Request::Delete { key: &key, stamp: None }).0;
                assert_eq!(deleted, if there { Outcome::Deleted } else { Outcome::Missing });
            }
            _ => {
                let value = vec![thread as u8; random.below(900) as usize];
                assert!(matches!(client.run(put(&key, &value)).0, Outcome::Stored { .. }));
                model.insert(key, value);
            }
        }
    }
    model
}

#[test]
fn two_threads_see_what_each_wrote() {
    for sync in [Sync::Always, Sync::No] {
        let bench = bench(16, sync);
        let env = Env::system();
        let clients = [bench.client(), bench.client()];
        let threads = (1..).zip(clients).map(|(thread, mut client)| {
            let (sender, receiver) = std::sync::mpsc::channel();
            let handle = env.spawn("test", move || drop(sender.send(work(&mut client, thread, 3000))));
            (receiver, handle)
        });
        let threads: Vec<_> = threads.collect();
        let mut model = BTreeMap::new();
        for (receiver, _handle) in threads {
            model.extend(receiver.recv().unwrap());
        }
        let mut client = bench.client();
        assert!(client.scan(KeyRange::default(), 100).into_iter().eq(model));
    }
}

/// Every scan sees the keys that stay, once and in order, while another session splits and merges their nodes.
#[test]
fn scans_beside_splits_and_merges_see_all_that_stays() {
    let bench = bench(64, Sync::No);
    let mut writer = bench.client();
    let stays: Vec<Vec<u8>> = (0..150).map(|n| format!("{n:04}:stays").into_bytes()).collect();
    stays.iter().for_each(|key| drop(writer.run(put(key, &[1; 200]))));
    let (env, over) = (Env::system(), Arc::new(AtomicBool::new(false)));
    let (sender, receiver) = std::sync::mpsc::channel();
    let is_over = over.clone();
    let _writer = env.spawn("writer", move || {
        for round in 0..12 {
            for number in 0..150 {
                let key = format!("{number:04}:x{}", round % 3).into_bytes();
                let request =
                    if round % 2 == 0 { put(&key, &[2; 500]) } else { Request::Delete { key: &key, stamp: None } };
                writer.run(request);
                if round % 2 == 1 {
                    let key = format!("{number:04}:x{}", (round - 1) % 3).into_bytes();
                    writer.run(Request::Delete { key: &key, stamp: None });
                }
            }
        }
        is_over.store(true, Ordering::SeqCst);
        sender.send(()).unwrap();
    });
    let mut reader = bench.client();
    let mut scans = 0;
    while !over.load(Ordering::SeqCst) || scans < 10 {
        let is_reverse = scans % 2 == 1;
        let range = KeyRange { from: KeyBound::Included(b"0010".to_vec()), to: KeyBound::Unbounded, is_reverse };
        let mut keys: Vec<Vec<u8>> = reader.scan(range, 30).into_iter().map(|(key, _)| key).collect();
        if is_reverse {
            keys.reverse();
        }
        assert!(keys.is_sorted_by(|one, other| one < other));
        let seen = keys.iter().filter(|key| key.ends_with(b":stays"));
        assert!(seen.eq(&stays[10..]), "of scan {scans}");
        scans += 1;
    }
    receiver.recv().unwrap();
}
