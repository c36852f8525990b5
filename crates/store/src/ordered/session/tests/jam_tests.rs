//! Many more operations than pages: all complete, and none is attempted much more often than it makes progress.

use super::bench::{Bench, Client, new_flash};
use super::model_tests::put;
use crate::hashed::collect::victim::tests::SMALL_BYTES;
use std::collections::BTreeMap;
use std::sync::Arc;
use tapetum_base::log::Sync;
use tapetum_base::request::{Outcome, Request};
use tapetum_base::session::engine_session::EngineSession;
use tapetum_drive::{Env, MemoryFlash, SplitMix64};
use tapetum_kernels::ordered::NODE_BYTES;

/// The most attempts and turns of an operation: it is attempted, has its turn, its page is read, and a split or two come between.
const ATTEMPTS_MAX: usize = 8;

/// The operations that a client has started on its own keys, and the expected answers.
#[derive(Default)]
struct Started {
    values: BTreeMap<Vec<u8>, Vec<u8>>,
    gets: Vec<(u64, Vec<u8>, Option<Vec<u8>>)>,
    puts: Vec<u64>,
}

impl Started {
    /// Starts `count` operations at once, on keys between those of the other clients.
    fn start(&mut self, client: &mut Client, (client_number, random): (u64, &mut SplitMix64), count: usize) {
        for _ in 0..count {
            let key = format!("key:{:04}:{client_number}", random.below(500)).into_bytes();
            if random.below(3) == 0 {
                let expected = self.values.get(&key).cloned();
                self.gets.push((client.start(Request::Get { key: &key }), key, expected));
            } else {
                let longest = if random.below(40) == 0 { 6000 } else { 700 };
                let value = vec![random.next_u64() as u8; random.below(longest) as usize];
                self.puts.push(client.start(put(&key, &value)));
                self.values.insert(key, value);
            }
        }
    }

    fn count(&self) -> usize {
        self.gets.len() + self.puts.len()
    }

    /// Takes the answers that have come.
    fn take_answers(&mut self, client: &mut Client) {
        self.puts.retain(|token| {
            let answer = client.take_answer(*token);
            assert!(answer.as_ref().is_none_or(|(outcome, _)| matches!(outcome, Outcome::Stored { .. })), "{answer:?}");
            answer.is_none()
        });
        self.gets.retain(|(token, key, expected)| {
            let Some((outcome, value)) = client.take_answer(*token) else { return true };
            let is_right = match expected {
                Some(expected) => matches!(outcome, Outcome::Value { .. }) && value == *expected,
                None => outcome == Outcome::Missing,
            };
            assert!(is_right, "{outcome:?} of {}", key.escape_ascii());
            false
        });
    }
}

#[test]
fn many_more_operations_than_pages_are_each_attempted_a_few_times() {
    for (sync, pages) in [(Sync::Always, 8), (Sync::No, 8), (Sync::EverySecond, 16)] {
        let bench = Bench::new(Arc::new(new_flash(31)), pages, sync);
        let mut clients: Vec<Client> = (0..3).map(|_| bench.client()).collect();
        let mut all: Vec<Started> = clients.iter().map(|_| Started::default()).collect();
        let (mut random, mut count) = (SplitMix64::new(31), 0);
        for _ in 0..4 {
            for (number, (client, started)) in clients.iter_mut().zip(&mut all).enumerate() {
                started.start(client, (number as u64, &mut random), 300);
                count += 300;
            }
            let mut steps = 0;
            while all.iter().any(|started| started.count() > 0) {
                for (client, started) in clients.iter_mut().zip(&mut all) {
                    client.step();
                    started.take_answers(client);
                }
                steps += 1;
                assert!(steps < 100_000, "{sync:?}: {:?} are left", all.iter().map(Started::count).collect::<Vec<_>>());
            }
        }
        let attempts: usize = clients.iter().map(|client| client.session.cx.attempts).sum();
        assert!(attempts < ATTEMPTS_MAX * count, "{sync:?}: {attempts} attempts for {count} operations");
    }
}

/// A page that was read is used before another one takes its place. Otherwise it would be read again.
#[test]
fn a_page_is_read_for_a_put_little_more_than_once() {
    let bench = Bench::new(Arc::new(new_flash(3)), 16, Sync::No);
    let mut client = bench.client();
    let (mut random, mut waiting, puts) = (SplitMix64::new(9), Vec::new(), 1400);
    let mut keys = (0..puts).map(|_| random.next_u64().to_be_bytes()).peekable();
    while keys.peek().is_some() || !waiting.is_empty() {
        while waiting.len() < 128
            && let Some(key) = keys.next()
        {
            waiting.push(client.start(put(&key, &[5; 1000])));
        }
        client.step();
        waiting.retain(|token| client.take_answer(*token).is_none());
    }
    let reads = bench.base.drive.counters().flash_to_local_bytes / NODE_BYTES as u64;
    assert!(reads * 2 < puts * 3, "{reads} reads for {puts} puts");
}

#[test]
fn sessions_on_threads_come_to_an_end_over_one_set_of_pages() {
    for sync in [Sync::Always, Sync::No] {
        let bench = Bench::on_threads(Arc::new(MemoryFlash::new(SMALL_BYTES)), 8, sync);
        let env = Env::system();
        let threads: Vec<_> = (0..4)
            .map(|number| {
                let (mut client, (sender, receiver)) = (bench.client(), std::sync::mpsc::channel());
                let handle = env.spawn("test", move || {
                    let (mut started, mut random) = (Started::default(), SplitMix64::new(number));
                    for _ in 0..4 {
                        started.start(&mut client, (number, &mut random), 200);
                        while started.count() > 0 {
                            client.step();
                            started.take_answers(&mut client);
                        }
                    }
                    let _ = sender.send(());
                });
                (receiver, handle)
            })
            .collect();
        threads.into_iter().for_each(|(receiver, _handle)| receiver.recv().unwrap());
    }
}

/// Many keys in one call are many requests: every uncached node has its read in flight before the first read completes.
#[test]
fn reads_of_many_keys_are_on_their_way_at_once() {
    let bench = Bench::new(Arc::new(new_flash(10)), 8, Sync::Always);
    let mut client = bench.client();
    let keys: Vec<Vec<u8>> = (0..60).map(|n| format!("key:{n:03}").into_bytes()).collect();
    keys.iter().for_each(|key| assert!(matches!(client.run(put(key, &[1; 1500])).0, Outcome::Stored { .. })));
    // A program over a cached page would make its poll wait.
    let mut is_absent = |key: &Vec<u8>| bench.state.cache.absent_home(client.session.cx.node_of(0, key)).is_some();
    let absent: Vec<&Vec<u8>> = keys.iter().filter(|key| is_absent(key)).collect();
    let tokens: Vec<u64> = absent.into_iter().map(|key| client.start(Request::Get { key })).collect();
    client.session.poll(&mut client.core);
    let reads = client.core.queue.in_flight();
    assert!(reads > 4, "{reads} at once, of nodes that a cache of 8 pages lacks");
    tokens.into_iter().for_each(|token| assert_eq!(client.answer(token).1, [1; 1500]));
}
