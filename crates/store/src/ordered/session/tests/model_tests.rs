//! One or several sessions over a cache of few pages, compared with a map.

use super::bench::{Answer, Bench, Client, new_flash};
use crate::ordered::node_table::NodeId;
use crate::ordered::slabs::SlotSpace;
use crate::ordered::slabs::slot_class::SlotClass;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tapetum_base::error::Error;
use tapetum_base::log::Sync;
use tapetum_base::request::key_range::{KeyBound, KeyRange};
use tapetum_base::request::{Condition, Outcome, Request};
use tapetum_base::session::engine_session::{EngineSession, EngineWait};
use tapetum_drive::{Opcode, Purpose, SplitMix64};
use tapetum_kernels::expiry::Expiry;
use tapetum_kernels::ordered::extension::EXTENSION_HEAD_BYTES;

pub fn put<'a>(key: &'a [u8], value: &'a [u8]) -> Request<'a> {
    Request::Put { key, value, flags: 0, expiry: Expiry::NONE, condition: Condition::Always }
}

/// Keys that are prefixes of each other, short and long.
fn key(random: &mut SplitMix64, count: u64) -> Vec<u8> {
    let number = random.below(count);
    let mut key = format!("user:{:05}", number / 4).into_bytes();
    match number % 4 {
        0 => {}
        1 => key.push(0),
        2 => key.extend_from_slice(b":name"),
        _ => key.extend(std::iter::repeat_n(b'x', (number % 700) as usize)),
    }
    key
}

fn value(random: &mut SplitMix64, key: &[u8]) -> Vec<u8> {
    let longest = 1900 - key.len() as u64;
    let lengths = [random.below(20), random.below(200), random.below(longest), longest, random.below(20_000)];
    // Few of the values go to extensions.
    let length = lengths[(random.below(33) as usize) / 8];
    (0..length).map(|_| random.next_u64() as u8).collect()
}

/// The expected answer.
enum Expected {
    Value(Option<Vec<u8>>),
    Stored,
    Deleted(bool),
}

impl Expected {
    fn check(&self, (outcome, bytes): &Answer, key: &[u8]) {
        let is_right = match self {
            Expected::Value(None) => *outcome == Outcome::Missing,
            Expected::Value(Some(value)) => matches!(outcome, Outcome::Value { .. }) && bytes == value,
            Expected::Stored => matches!(outcome, Outcome::Stored { .. }),
            Expected::Deleted(there) => *outcome == if *there { Outcome::Deleted } else { Outcome::Missing },
        };
        assert!(is_right, "{outcome:?} of {}", key.escape_ascii());
    }
}

/// Submits operations together.
fn run_batch(client: &mut Client, model: &mut BTreeMap<Vec<u8>, Vec<u8>>, random: &mut SplitMix64, removes: u64) {
    let mut started = Vec::new();
    for _ in 0..1 + random.below(24) {
        let key = key(random, 1200);
        let (token, expected) = match random.below(100) {
            dice if dice < 40 => (client.start(Request::Get { key: &key }), Expected::Value(model.get(&key).cloned())),
            dice if dice < 40 + removes => {
                let expected = Expected::Deleted(model.remove(&key).is_some());
                (client.start(Request::Delete { key: &key, stamp: None }), expected)
            }
            _ => {
                let value = value(random, &key);
                let token = client.start(put(&key, &value));
                model.insert(key.clone(), value);
                (token, Expected::Stored)
            }
        };
        started.push((token, key, expected));
    }
    for (token, key, expected) in started {
        expected.check(&client.answer(token), &key);
    }
}

fn bound(random: &mut SplitMix64) -> (KeyBound, Bound<Vec<u8>>) {
    let key = key(random, 1200);
    match random.below(4) {
        0 => (KeyBound::Unbounded, Bound::Unbounded),
        1 => (KeyBound::Excluded(key.clone()), Bound::Excluded(key)),
        _ => (KeyBound::Included(key.clone()), Bound::Included(key)),
    }
}

fn check_scan(client: &mut Client, model: &BTreeMap<Vec<u8>, Vec<u8>>, random: &mut SplitMix64) {
    let ((from, low), (to, high)) = (bound(random), bound(random));
    let range = KeyRange { from, to, is_reverse: random.below(2) == 0 };
    let inside = |key: &[u8]| {
        let above = match &low {
            Bound::Unbounded => true,
            Bound::Included(low) => key >= low,
            Bound::Excluded(low) => key > low,
        };
        above
            && match &high {
                Bound::Unbounded => true,
                Bound::Included(high) => key <= high,
                Bound::Excluded(high) => key < high,
            }
    };
    let items = model.iter().filter(|(key, _)| inside(key)).map(|(key, value)| (key.clone(), value.clone()));
    let mut expected: Vec<_> = items.collect();
    if range.is_reverse {
        expected.reverse();
    }
    let items_max = [1, 7, 100, usize::MAX][random.below(4) as usize];
    let is_same = client.scan(range.clone(), items_max) == expected;
    assert!(is_same, "{range:?}");
}

fn run_model(seed: u64, cache_pages: usize, sync: Sync, batches: u32) {
    let flash = new_flash(seed);
    let bench = Bench::new(Arc::new(flash), cache_pages, sync);
    let (mut client, mut model) = (bench.client(), BTreeMap::new());
    let mut random = SplitMix64::new(seed);
    for batch in 0..batches {
        // The tree grows, shrinks and grows again.
        let removes = if batch % 200 < 100 { 10 } else { 50 };
        run_batch(&mut client, &mut model, &mut random, removes);
        if batch % 20 == 0 {
            check_scan(&mut client, &model, &mut random);
        }
    }
    let all = client.scan(KeyRange::default(), 50);
    assert!(all.into_iter().eq(model));
    let reads = bench.base.drive.counters().opcode(Opcode::Pipeline).completed;
    assert!(reads > 100 && bench.state.write_back.images() > 100, "{reads} reads");
    assert!(bench.state.cache.table.count() > 3 * cache_pages as u32, "most nodes are not cached");
}

#[test]
fn a_session_does_what_a_map_does() {
    run_model(1, 16, Sync::Always, 400);
}

#[test]
fn a_session_does_what_a_map_does_over_one_set_of_pages() {
    run_model(2, 8, Sync::Always, 200);
}

#[test]
fn a_session_does_what_a_map_does_where_answers_do_not_wait() {
    run_model(3, 24, Sync::No, 400);
    run_model(4, 24, Sync::EverySecond, 200);
}

#[test]
fn deletes_give_nodes_and_slots_back() {
    let bench = Bench::new(Arc::new(new_flash(5)), 400, Sync::Always);
    let mut client = bench.client();
    let keys: Vec<Vec<u8>> = (0..1000).map(|n| format!("key:{n:06}").into_bytes()).collect();
    let tokens: Vec<u64> = keys.iter().map(|key| client.start(put(key, &[7; 300]))).collect();
    tokens.into_iter().for_each(|token| assert!(matches!(client.answer(token).0, Outcome::Stored { .. })));
    let full = bench.state.cache.table.count();
    assert!(full > 80, "{full} nodes");
    let mut random = SplitMix64::new(5);
    let mut left = keys;
    while !left.is_empty() {
        let key = left.swap_remove(random.below(left.len() as u64) as usize);
        assert_eq!(client.run(Request::Delete { key: &key, stamp: None }).0, Outcome::Deleted);
    }
    while bench.state.write_back.has_work() {
        client.step();
    }
    let (nodes, counts) = (bench.state.cache.table.count(), bench.tree.nodes.counts());
    assert!(nodes <= full / 10, "{nodes} of {full} nodes");
    assert_eq!(counts.slots - counts.slots_free, nodes, "a slot each");
    assert_eq!(bench.tree.search.anchors(), u64::from(nodes));
}

/// No two neighbours fit in one node.
#[test]
fn three_sparse_nodes_become_two() {
    // Six of eleven go: a node then uses 46 of 100 bytes. Of large records, three to a node, one of three goes.
    for (value_bytes, goes) in [(300, 6..11), (1000, 1..3)] {
        let bench = Bench::new(Arc::new(new_flash(5)), 400, Sync::Always);
        let mut client = bench.client();
        let keys: Vec<Vec<u8>> = (0..1000).map(|n| format!("key:{n:06}").into_bytes()).collect();
        for key in &keys {
            assert!(matches!(client.run(put(key, &vec![7; value_bytes])).0, Outcome::Stored { .. }));
        }
        let full = bench.state.cache.table.count();
        let stays = |number: &usize| goes.start <= number % goes.end;
        for (_, key) in keys.iter().enumerate().filter(|(number, _)| !stays(number)) {
            assert_eq!(client.run(Request::Delete { key, stamp: None }).0, Outcome::Deleted);
        }
        while bench.state.write_back.has_work() {
            client.step();
        }
        let nodes = bench.state.cache.table.count();
        assert!(nodes <= full * 3 / 4, "{nodes} of {full} nodes with values of {value_bytes} bytes");
        assert_eq!(bench.tree.search.anchors(), u64::from(nodes));
        assert_eq!(client.scan(KeyRange::default(), 7).len(), (0..keys.len()).filter(stays).count());
    }
}

/// A node whose half would be merged with its other half is not halved: it would be merged and halved for ever.
#[test]
fn merges_come_to_an_end_whatever_nodes_use() {
    for kept in [[3, 9, 3], [2, 11, 2], [6, 7, 5], [1, 8, 10], [5, 9, 6]] {
        let bench = Bench::new(Arc::new(new_flash(5)), 400, Sync::Always);
        let mut client = bench.client();
        let keys: Vec<Vec<u8>> = (0..600).map(|n| format!("key:{n:06}").into_bytes()).collect();
        for key in &keys {
            assert!(matches!(client.run(put(key, &[7; 300])).0, Outcome::Stored { .. }));
        }
        // Nodes of so many records, in turn, where they were full.
        let goes = |number: usize| number % 13 >= kept[number / 13 % 3];
        for (_, key) in keys.iter().enumerate().filter(|(number, _)| goes(*number)) {
            assert_eq!(client.run(Request::Delete { key, stamp: None }).0, Outcome::Deleted);
        }
        let structure = || bench.base.drive.counters().purpose(Purpose::Structure);
        let mut before = structure();
        let is_quiet = (0..200).any(|_| {
            (0..50).for_each(|_| client.step());
            std::mem::replace(&mut before, structure()) == before && !bench.state.write_back.has_work()
        });
        assert!(is_quiet, "{kept:?}: nodes are merged for ever");
        let left = (0..keys.len()).filter(|number| !goes(*number)).count();
        assert_eq!(client.scan(KeyRange::default(), 7).len(), left);
    }
}

#[test]
fn conditions_hold_for_the_item_as_it_is() {
    let bench = Bench::new(Arc::new(new_flash(6)), 16, Sync::Always);
    let mut client = bench.client();
    let put_if = |value, condition| Request::Put { key: b"k", value, flags: 5, expiry: Expiry::NONE, condition };
    assert_eq!(client.run(put_if(b"1", Condition::Present)).0, Outcome::NotStored);
    let Outcome::Stored { stamp } = client.run(put_if(b"1", Condition::Absent)).0 else { panic!("it was absent") };
    assert_eq!(client.run(put_if(b"2", Condition::Absent)).0, Outcome::NotStored);
    assert_eq!(client.run(put_if(b"2", Condition::Stamp(stamp + 1))).0, Outcome::Exists);
    assert!(matches!(client.run(put_if(b"20", Condition::Stamp(stamp))).0, Outcome::Stored { .. }));
    let increment =
        Request::Increment { key: b"k", delta: 22, decrement: false, initial: None, stamp: None, touch: None };
    assert!(matches!(client.run(increment).0, Outcome::Number { number: 42, .. }));
    assert!(matches!(client.run(Request::Append { key: b"k", value: b"!", stamp: None }).0, Outcome::Stored { .. }));
    let (outcome, value) = client.run(Request::Get { key: b"k" });
    assert!(matches!(outcome, Outcome::Value { flags: 5, .. }) && value == b"42!");
    let (outcome, value) = client.run(Request::GetAndTouch { key: b"k", expiry: Expiry::from_secs(u32::MAX) });
    assert!(
        matches!(outcome, Outcome::Value { expiry, .. } if expiry == Expiry::from_secs(u32::MAX)) && value == b"42!",
        "{outcome:?}"
    );
    assert_eq!(client.run(Request::Delete { key: b"k", stamp: Some(stamp) }).0, Outcome::Exists);
    assert_eq!(client.run(Request::Delete { key: b"k", stamp: None }).0, Outcome::Deleted);
    assert_eq!(client.run(Request::Delete { key: b"k", stamp: None }).0, Outcome::Missing);
    let expired =
        Request::Put { key: b"k", value: b"", flags: 0, expiry: Expiry::from_secs(1), condition: Condition::Always };
    assert!(matches!(client.run(expired).0, Outcome::Stored { .. }));
    assert_eq!(client.run(Request::Get { key: b"k" }).0, Outcome::Missing);
    assert_eq!(client.scan(KeyRange::default(), 9), []);
}

#[test]
fn keys_and_values_that_no_node_takes_are_refused() {
    let bench = Bench::with_slots(Arc::new(new_flash(7)), 16, 100);
    let mut client = bench.client();
    let (longest, longer) = (vec![1; 1024], vec![1; 1025]);
    assert!(matches!(client.run(put(&longest, b"v")).0, Outcome::Stored { .. }));
    assert!(matches!(
        client.run(put(&longer, b"v")).0,
        Outcome::Failed(crate::Error::KeyTooLong { limit_bytes: 1024 })
    ));
    assert_eq!(client.run(put(b"", b"v")).0, Outcome::Failed(crate::Error::KeyEmpty));
    let limit_bytes = bench.base.value_bytes_max;
    let value = vec![1; limit_bytes + 1];
    let too_large = Outcome::Failed(crate::Error::ValueTooLarge { limit_bytes });
    assert_eq!(client.run(put(b"k", &value)).0, too_large);
    assert!(matches!(client.run(put(b"k", &value[1..])).0, Outcome::Stored { .. }));
    assert_eq!(client.run(Request::Get { key: b"k" }).1.len(), limit_bytes);
    assert_eq!(client.run(Request::Append { key: b"k", value: b"1", stamp: None }).0, too_large);
}

/// Values of all sizes in turn under one key: in a node, and in each slab.
#[test]
fn values_move_between_nodes_and_extensions_and_leave_no_slot_behind() {
    let bench = Bench::with_slots(Arc::new(new_flash(8)), 16, 100);
    let mut client = bench.client();
    // Together with key and prefix, these are the sizes of the slabs and beyond.
    let totals = [4, 8, 16, 32, 64, 128, 256, 320].map(|kib| (kib << 10) - EXTENSION_HEAD_BYTES - 3);
    let around = totals.into_iter().flat_map(|length| [length - 1, length, length + 1]);
    // Also the sizes of records: the largest in a node, and larger ones.
    let lengths: Vec<usize> = (1940..1990).chain([1, 4096, 65_536, 65_537]).chain(around).chain([100]).collect();
    for (number, length) in lengths.into_iter().enumerate() {
        let value = vec![number as u8; length];
        assert!(matches!(client.run(put(b"key", &value)).0, Outcome::Stored { .. }));
        assert_eq!(client.run(Request::Get { key: b"key" }).1, value);
        assert_eq!(client.scan(KeyRange::default(), 9), [(b"key".to_vec(), value)]);
    }
    for long in [5000, 64_000, 300_000].map(|length| vec![b'x'; length]) {
        change_in_all_ways(&mut client, &long);
    }
    while bench.state.write_back.has_work() || bench.slots.of_class(SlotClass::Large).wants_change() {
        client.step();
    }
    for space in bench.slots.spaces().skip(1) {
        let counts = space.counts();
        assert_eq!(counts.slots, counts.slots_free, "{:?}", space.options().class);
    }
    assert_eq!(bench.slots.of_class(SlotClass::Large).counts().groups, 0, "their extents are given back");
}

/// Changes an item whose value is in an extension.
fn change_in_all_ways(client: &mut Client, long: &[u8]) {
    assert!(matches!(client.run(put(b"key", long)).0, Outcome::Stored { .. }));
    assert!(matches!(client.run(Request::Append { key: b"key", value: b"!", stamp: None }).0, Outcome::Stored { .. }));
    let touched = client.run(Request::Touch { key: b"key", expiry: Expiry::from_secs(u32::MAX) }).0;
    assert!(matches!(touched, Outcome::Touched { .. }), "{touched:?}");
    let (outcome, value) = client.run(Request::GetAndTouch { key: b"key", expiry: Expiry::NONE });
    assert!(matches!(outcome, Outcome::Value { .. }) && value == [long, b"!"].concat());
    let present =
        Request::Put { key: b"key", value: b"short", flags: 0, expiry: Expiry::NONE, condition: Condition::Present };
    assert!(matches!(client.run(present).0, Outcome::Stored { .. }));
    assert!(matches!(client.run(put(b"key", long)).0, Outcome::Stored { .. }));
    assert_eq!(client.run(Request::Delete { key: b"key", stamp: None }).0, Outcome::Deleted);
}

/// Several values beyond the slabs in one node, written and read at once, each in pieces. A part of a scan has few of them.
#[test]
fn many_large_values_of_one_node_are_there() {
    let bench = Bench::with_slots(Arc::new(new_flash(13)), 16, 100);
    let mut client = bench.client();
    let items: Vec<(Vec<u8>, Vec<u8>)> = (0..6)
        .map(|n| (vec![b'a' + n], (0..70_000 + 9000 * u32::from(n)).map(|at| (at % 251) as u8 ^ n).collect()))
        .collect();
    for _ in 0..3 {
        let puts: Vec<u64> = items.iter().map(|(key, value)| client.start(put(key, value))).collect();
        puts.into_iter().for_each(|token| assert!(matches!(client.answer(token).0, Outcome::Stored { .. })));
        let gets: Vec<u64> = items.iter().map(|(key, _)| client.start(Request::Get { key })).collect();
        for (token, (key, value)) in gets.into_iter().zip(&items) {
            assert!(client.answer(token).1 == *value, "{key:?}");
        }
    }
    for is_reverse in [false, true] {
        let mut scanned = client.scan(KeyRange { is_reverse, ..KeyRange::default() }, 100);
        if is_reverse {
            scanned.reverse();
        }
        assert!(scanned == items);
    }
    let token = client.start_scan(KeyRange::default(), 100);
    let part = loop {
        client.step();
        if let Some(part) = client.take_part(token) {
            break part;
        }
    };
    assert_eq!((part.items.len(), part.rest.is_some()), (1, true), "a part has about 64 KiB");
}

/// A flush covers all extensions and images that were written before.
#[test]
fn many_values_of_extensions_share_few_flushes() {
    let flash = new_flash(14);
    let bench = Bench::new(Arc::new(flash.clone()), 64, Sync::Always);
    let mut client = bench.client();
    assert!(matches!(client.run(put(b"first", b"")).0, Outcome::Stored { .. }));
    let before = flash.submitted(Opcode::Flush);
    let keys: Vec<Vec<u8>> = (0..48).map(|n| format!("key{n:02}").into_bytes()).collect();
    let tokens: Vec<u64> = keys.iter().map(|key| client.start(put(key, &[1; 5000]))).collect();
    tokens.into_iter().for_each(|token| assert!(matches!(client.answer(token).0, Outcome::Stored { .. })));
    let flushes = flash.submitted(Opcode::Flush) - before;
    assert!(flushes <= 16, "{flushes} flushes for 48 puts, each of an extension and an image");
}

/// Operations that are parked because the limit of reads is reached go on when these have completed, even if nothing else waits.
#[test]
fn more_reads_than_are_sent_at_once_all_get_an_answer() {
    let bench = Bench::new(Arc::new(new_flash(18)), 64, Sync::Always);
    let mut client = bench.client();
    fill(&mut client, Expiry::NONE);
    settle(&mut client, &bench);
    for round in 0..20 {
        let keys = (0..48).map(|number| format!("key{:05}", (number * 31 + round * 7) % 1500));
        let tokens: Vec<u64> = keys.map(|key| client.start(Request::Get { key: key.as_bytes() })).collect();
        tokens.into_iter().for_each(|token| assert!(matches!(client.answer(token).0, Outcome::Value { .. })));
    }
}

/// Operations that need no more memory go on.
#[test]
fn a_put_that_needs_a_node_is_refused_while_the_index_has_its_share() {
    let bench = Bench::new(Arc::new(new_flash(19)), 64, Sync::Always);
    let mut client = bench.client();
    fill(&mut client, Expiry::NONE);
    let memory_bytes = bench.base.memory_bytes.swap(0, Ordering::SeqCst);
    let keys = (0..40).map(|number| format!("key{number:05}x"));
    let refused: Vec<String> =
        keys.filter(|key| client.run(put(key.as_bytes(), &[7; 1000])).0 == Outcome::Failed(Error::FullIndex)).collect();
    assert!(!refused.is_empty(), "forty such values need nodes");
    assert!(matches!(client.run(put(b"key00001", b"short")).0, Outcome::Stored { .. }));
    bench.base.memory_bytes.store(memory_bytes, Ordering::SeqCst);
    for key in refused {
        assert_eq!(client.run(Request::Get { key: key.as_bytes() }).0, Outcome::Missing);
        assert!(matches!(client.run(put(key.as_bytes(), &[7; 1000])).0, Outcome::Stored { .. }));
    }
}

/// Steps until the client's background work has ended.
fn settle(client: &mut Client, bench: &Bench) {
    for _ in 0..20_000 {
        client.step();
        if !bench.state.write_back.has_work() && client.session.waits() == EngineWait::Commands {
            return;
        }
    }
    panic!("it does not come to an end");
}

fn fill(client: &mut Client, expiry: Expiry) {
    for number in 0..1500 {
        let (key, value) = (format!("key{number:05}"), vec![7; if number % 50 == 0 { 5000 } else { 200 }]);
        let put = Request::Put { key: key.as_bytes(), value: &value, flags: 0, expiry, condition: Condition::Always };
        assert!(matches!(client.run(put).0, Outcome::Stored { .. }));
    }
}

/// The number of a tree's nodes, and of its extensions.
fn counts(bench: &Bench) -> (u32, u32) {
    let extensions = bench.slots.spaces().skip(1).map(SlotSpace::counts);
    (bench.state.cache.table.count(), extensions.map(|counts| counts.slots - counts.slots_free).sum())
}

/// While a node is scanned, the next nodes' pages are read, in either direction. If they are neighbours on flash, few reads suffice. None of them
/// goes into the cache.
#[test]
fn a_cold_scan_reads_ahead() {
    let flash = new_flash(17);
    let bench = Bench::new(Arc::new(flash.clone()), 8, Sync::Always);
    let mut client = bench.client();
    let keys: Vec<Vec<u8>> = (0..600).map(|number| format!("key{number:05}").into_bytes()).collect();
    keys.iter().for_each(|key| assert!(matches!(client.run(put(key, &[7; 900])).0, Outcome::Stored { .. })));
    settle(&mut client, &bench);
    let nodes = u64::from(bench.state.cache.table.count());
    for is_reverse in [false, true] {
        let cached: Vec<bool> =
            (0..nodes).map(|node| bench.state.cache.absent_home(NodeId(node as u32)).is_none()).collect();
        let (before, mut reads_max) = (flash.submitted(Opcode::Read), 0);
        let (mut scanned, mut rest) = (Vec::new(), Some(KeyRange { is_reverse, ..KeyRange::default() }));
        while let Some(range) = rest {
            let token = client.start_scan(range, usize::MAX);
            let part = loop {
                client.step();
                reads_max = reads_max.max(client.session.scans.reads());
                if let Some(part) = client.take_part(token) {
                    break part;
                }
            };
            scanned.extend(part.items.into_iter().map(|item| item.key));
            rest = part.rest;
        }
        if is_reverse {
            scanned.reverse();
        }
        assert!(scanned == keys);
        let reads = flash.submitted(Opcode::Read) - before;
        assert!(reads_max >= 2 && nodes > 140, "{reads_max} reads on their way");
        assert!(reads < nodes * 3 / 4, "{reads} reads for {nodes} nodes");
        let after: Vec<bool> =
            (0..nodes).map(|node| bench.state.cache.absent_home(NodeId(node as u32)).is_none()).collect();
        assert_eq!(cached, after);
    }
    // A scan of few items reads only its node.
    let before = flash.submitted(Opcode::Read);
    let token = client.start_scan(KeyRange { from: KeyBound::Included(keys[300].clone()), ..KeyRange::default() }, 2);
    while client.take_part(token).is_none() {
        client.step();
    }
    assert!(flash.submitted(Opcode::Read) - before <= 2);
}

/// Pages read by a short scan are cached when it is repeated, in either direction, and a long scan does not evict them.
#[test]
fn a_short_scan_keeps_what_it_reads() {
    let flash = new_flash(18);
    let bench = Bench::new(Arc::new(flash.clone()), 64, Sync::Always);
    let mut client = bench.client();
    let key = |number: usize| format!("key{number:05}").into_bytes();
    (0..600).for_each(|number| assert!(matches!(client.run(put(&key(number), &[7; 900])).0, Outcome::Stored { .. })));
    settle(&mut client, &bench);
    let mut short = |is_reverse| {
        let before = flash.submitted(Opcode::Read);
        let (from, to) = (KeyBound::Included(key(100)), KeyBound::Excluded(key(160)));
        let items = client.scan(KeyRange { from, to, is_reverse }, 60);
        assert!(items.len() == 60 && items.iter().all(|(_, value)| *value == [7; 900]));
        flash.submitted(Opcode::Read) - before
    };
    assert!(short(false) > 0, "it was not cached");
    assert_eq!((short(false), short(true)), (0, 0));
    let all = client.scan(KeyRange::default(), usize::MAX);
    assert_eq!(all.len(), 600);
    let before = flash.submitted(Opcode::Read);
    let range = KeyRange { from: KeyBound::Included(key(100)), to: KeyBound::Excluded(key(160)), is_reverse: false };
    assert_eq!((client.scan(range, 60).len(), flash.submitted(Opcode::Read) - before), (60, 0));
}

/// Expired records make room when there is none, so that nodes with only expired records are not split.
#[test]
fn expired_records_leave_their_nodes_when_others_come() {
    let bench = Bench::new(Arc::new(new_flash(15)), 64, Sync::Always);
    let mut client = bench.client();
    fill(&mut client, Expiry::from_secs(1));
    settle(&mut client, &bench);
    let (nodes, extensions) = counts(&bench);
    assert!(nodes <= 2 && extensions <= 2, "{nodes} nodes, {extensions} extensions");
    fill(&mut client, Expiry::NONE);
    assert_eq!(client.scan(KeyRange::default(), 100).len(), 1500);
}

/// The next scans remove items deleted with everything: their nodes are merged, and their extensions are freed.
#[test]
fn a_keyspace_that_was_emptied_gives_its_space_back_with_a_scan() {
    for is_reverse in [false, true] {
        let bench = Bench::new(Arc::new(new_flash(16)), 16, Sync::Always);
        let mut client = bench.client();
        fill(&mut client, Expiry::NONE);
        settle(&mut client, &bench);
        let (nodes, extensions) = counts(&bench);
        assert!(nodes > 60 && extensions == 30, "{nodes} nodes, {extensions} extensions");
        assert_eq!(client.run(Request::DeleteAll { at: 0 }).0, Outcome::Done);
        let before = nodes;
        // A wish to merge may be given up: another scan makes it again.
        for scan in 0..5 {
            assert_eq!(client.scan(KeyRange { is_reverse, ..KeyRange::default() }, 100), []);
            settle(&mut client, &bench);
            let (nodes, extensions) = counts(&bench);
            assert!(
                nodes * 4 < before && (scan < 4 || nodes + extensions <= 4),
                "{nodes} nodes, {extensions} extensions"
            );
        }
        assert_eq!(client.run(Request::Get { key: b"key00007" }).0, Outcome::Missing);
        assert!(matches!(client.run(put(b"key00007", b"new")).0, Outcome::Stored { .. }));
        assert_eq!(client.scan(KeyRange::default(), 100), [(b"key00007".to_vec(), b"new".to_vec())]);
    }
}

/// Other sessions have taken nearly all of local memory.
#[test]
fn a_session_goes_on_however_short_memory_is() {
    let bench = Bench::new(Arc::new(new_flash(9)), 8, Sync::Always);
    let mut client = bench.client();
    let local = bench.base.drive.local();
    let sizes = (0..11).rev().map(|power| 4096 << power);
    let taken: Vec<_> = sizes.flat_map(|bytes| std::iter::from_fn(move || local.allocate(bytes))).collect();
    assert_eq!(local.bytes_used(), local.bytes_total());
    // There is memory for a page to read into, and one to split into.
    let taken: Vec<_> = taken.into_iter().rev().skip(2).collect();
    let keys: Vec<Vec<u8>> = (0..100).map(|n| format!("key:{n:03}").into_bytes()).collect();
    let tokens: Vec<u64> = keys.iter().map(|key| client.start(put(key, &[1; 900]))).collect();
    tokens.into_iter().for_each(|token| assert!(matches!(client.answer(token).0, Outcome::Stored { .. })));
    let tokens: Vec<u64> = keys.iter().map(|key| client.start(Request::Get { key })).collect();
    tokens.into_iter().for_each(|token| assert_eq!(client.answer(token).1, [1; 900]));
    assert_eq!(client.scan(KeyRange::default(), 7).len(), 100);
    drop(taken);
}
