//! Queries and changes at the same time, with real threads, bounded by a number of changes.

use super::test_memory::*;
use super::*;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};

/// Changes of each writer.
const CHANGES: usize = if cfg!(miri) { 300 } else { 60_000 };
/// The number of stable anchors, and of those that come and go.
const KEYS: usize = 600;

/// A value encodes its key and a version.
fn value_of(key: &[u8], version: u64) -> u64 {
    let hash = key.iter().fold(7u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    hash & !0xff | version & 0xff
}

fn is_value_of(key: &[u8], value: u64) -> bool {
    value == value_of(key, value) || key.is_empty() && value == LEFTMOST
}

/// Short keys: nodes of all kinds, shared prefixes, keys that are prefixes of others.
fn random_key(chance: &mut Chance) -> Vec<u8> {
    let trunk: &[u8] = [&b""[..], b"a", b"aaaa", b"aaaabbbbccccdddd", b"zz"][chance.below(5)];
    let mut key = trunk.to_vec();
    for _ in 0..chance.below(4) {
        key.push(if chance.below(3) == 0 { chance.word() as u8 } else { b'a' + chance.below(4) as u8 });
    }
    key
}

struct Keys {
    stable: Vec<Vec<u8>>,
    passing: Vec<Vec<u8>>,
}

fn keys() -> Keys {
    let mut chance = Chance(17);
    let mut all = std::collections::BTreeSet::new();
    while all.len() < 2 * KEYS {
        all.insert(random_key(&mut chance));
    }
    all.remove(&[][..]);
    let (mut stable, mut passing) = (vec![Vec::new()], Vec::new());
    for key in all {
        if chance.below(2) == 0 { stable.push(key) } else { passing.push(key) }
    }
    Keys { stable, passing }
}

/// Adds and removes anchors. `count` is the number of present ones.
fn write(handle: &mut HeapHandle, keys: &Keys, seed: u64, count: &AtomicI64) {
    let mut chance = Chance(seed);
    for version in 0..CHANGES as u64 {
        let key = &keys.passing[chance.below(keys.passing.len())];
        let value = value_of(key, version);
        let inserted = match handle.lookup(key) {
            Some(found) => {
                assert!(is_value_of(key, found));
                -i64::from(handle.remove(key, found).expect("room") == AnchorChange::Done)
            }
            None => i64::from(handle.insert(key, value).expect("room") == AnchorChange::Done),
        };
        count.fetch_add(inserted, Relaxed);
    }
}

/// Floors of random keys: no stable anchor is skipped.
fn ask(handle: &mut HeapHandle, keys: &Keys, chance: &mut Chance) {
    let key = random_key(chance);
    let mut anchor = AnchorKey::new();
    let value = handle.floor(&key, &mut anchor);
    assert!(*anchor <= *key && is_value_of(&anchor, value), "{anchor:?} for {key:?}");
    let at_least = &keys.stable[keys.stable.partition_point(|stable| *stable <= key) - 1];
    assert!(*anchor >= **at_least, "the floor of {key:?} is {anchor:?}, not {at_least:?}");
    let stable = &keys.stable[chance.below(keys.stable.len())];
    assert!(is_value_of(stable, handle.lookup(stable).expect("a stable anchor")));
}

/// Iteration returns all stable anchors, each once and in order, with others between them.
fn iterate(handle: &mut HeapHandle, keys: &Keys, forward: bool) {
    let mut stable: Vec<_> = keys.stable.iter().collect();
    if !forward {
        stable.reverse();
    }
    let mut stable = stable.into_iter().peekable();
    let mut anchor = AnchorKey::new();
    let mut step = Some(if forward { handle.floor(b"", &mut anchor) } else { handle.last(&mut anchor) });
    let mut last: Option<Vec<u8>> = None;
    while let Some(value) = step {
        assert!(is_value_of(&anchor, value));
        let is_in_order = last.is_none_or(|last| if forward { *last < *anchor } else { *last > *anchor });
        assert!(is_in_order, "{anchor:?} out of order");
        stable.next_if(|stable| stable[..] == *anchor);
        let is_passed = stable.peek().is_some_and(|next| if forward { next[..] < *anchor } else { next[..] > *anchor });
        assert!(!is_passed, "{:?} was passed over at {anchor:?}", stable.peek());
        last = Some(anchor.to_vec());
        step = if forward { handle.next(&mut anchor) } else { handle.previous(&mut anchor) };
    }
    assert_eq!(stable.next(), None, "the end came early");
}

/// Counts down when dropped, also in a panic of a writer.
struct OneLess<'a>(&'a AtomicI64);

impl Drop for OneLess<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the point is real threads")]
fn queries_beside_writers_see_every_anchor_that_stays() {
    let keys = keys();
    let (tree, mut handle) = heap_tree(16 << 20);
    for key in &keys.stable[1..] {
        assert_eq!(handle.insert(key, value_of(key, 0)).expect("room"), AnchorChange::Done);
    }
    let writers = AtomicI64::new(2);
    let count = AtomicI64::new(keys.stable.len() as i64);
    let was_seen = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for seed in 0..2 {
            let (tree, keys, writers, count) = (&tree, &keys, &writers, &count);
            scope.spawn(move || {
                let _one_less = OneLess(writers);
                write(&mut tree.handle().expect("a handle"), keys, seed, count);
            });
        }
        for seed in 2..5 {
            let (tree, keys, writers, was_seen) = (&tree, &keys, &writers, &was_seen);
            scope.spawn(move || {
                let mut handle = tree.handle().expect("a handle");
                let mut chance = Chance(seed);
                while writers.load(Relaxed) > 0 {
                    match seed {
                        2 => ask(&mut handle, keys, &mut chance),
                        _ => iterate(&mut handle, keys, seed == 3),
                    }
                    was_seen.store(true, Relaxed);
                }
            });
        }
    });
    assert!(was_seen.into_inner(), "no query ran");
    // Nothing leaks: `contents` counts the blocks. How many were mapped depends on the scheduler: a stalled reader holds all blocks retired
    // meanwhile.
    let anchors = contents(&tree);
    assert_eq!(anchors.len() as i64, count.into_inner());
    assert!(keys.stable.iter().all(|key| anchors.contains_key(key)));
}
