//! The tree compared with a sorted map, by one thread: contents, order, sizes, limits.

use super::node::NodeKind;
use super::test_memory::*;
use super::*;
use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::atomic::Ordering::Relaxed;
use tapetum_base::memory::region::Account;

type Model = BTreeMap<Vec<u8>, u64>;

const ROOMY: usize = 64 << 20;

fn new_model() -> Model {
    BTreeMap::from([(Vec::new(), LEFTMOST)])
}

/// All queries for one key, compared with the model.
fn check_key(handle: &mut HeapHandle, model: &Model, key: &[u8]) {
    assert_eq!(handle.lookup(key), model.get(key).copied(), "{key:?}");
    let pair = |entry: Option<(&Vec<u8>, &u64)>| entry.map(|(key, value)| (key.clone(), *value));
    let mut anchor = AnchorKey::new();
    let value = handle.floor(key, &mut anchor);
    assert_eq!(Some((anchor.to_vec(), value)), pair(model.range(..=key.to_vec()).next_back()), "floor of {key:?}");
    if key.len() > KEY_BYTES_MAX {
        return;
    }
    anchor.set(key);
    let next = handle.next(&mut anchor).map(|value| (anchor.to_vec(), value));
    assert_eq!(next, pair(model.range((Excluded(key.to_vec()), Unbounded)).next()), "next of {key:?}");
    anchor.set(key);
    let previous = handle.previous(&mut anchor).map(|value| (anchor.to_vec(), value));
    assert_eq!(previous, pair(model.range(..key.to_vec()).next_back()), "previous of {key:?}");
}

/// All anchors, in both directions.
fn check_order(handle: &mut HeapHandle, model: &Model) {
    let mut anchor = AnchorKey::new();
    let mut value = Some(handle.floor(b"", &mut anchor));
    for (key, expected) in model {
        assert_eq!((&*anchor, value), (&key[..], Some(*expected)));
        value = handle.next(&mut anchor);
    }
    assert_eq!([value, handle.next(&mut anchor)], [None; 2]);
    value = Some(handle.last(&mut anchor));
    for (key, expected) in model.iter().rev() {
        assert_eq!((&*anchor, value), (&key[..], Some(*expected)));
        value = handle.previous(&mut anchor);
    }
    assert_eq!([value, handle.previous(&mut anchor)], [None; 2]);
}

/// A key that shares much with others: of few bytes, a prefix of another one, or an extension of another one.
fn near_key(chance: &mut Chance, alphabet: &[u8], len_max: usize, others: &Model) -> Vec<u8> {
    let mut key = if others.is_empty() || chance.below(3) == 0 {
        Vec::new()
    } else {
        others.keys().nth(chance.below(others.len())).expect("one of them").clone()
    };
    if chance.below(2) == 0 {
        key.truncate(chance.below(key.len() + 1));
    }
    for _ in 0..chance.below(len_max) {
        key.push(alphabet[chance.below(alphabet.len())]);
    }
    key.truncate(len_max);
    key
}

fn change(handle: &mut HeapHandle, model: &mut Model, chance: &mut Chance, key: Vec<u8>, inserts_of_10: usize) {
    let stands = model.get(&key).copied();
    let value = chance.word();
    let expected = if chance.below(8) == 0 { stands.unwrap_or(0) ^ 1 } else { stands.unwrap_or(0) };
    let refused = match stands {
        None => Some(AnchorChange::Absent),
        Some(found) if found != expected => Some(AnchorChange::Found(found)),
        Some(_) => None,
    };
    if chance.below(10) < inserts_of_10 {
        let inserted = handle.insert(&key, value).expect("room");
        assert_eq!(inserted, stands.map_or(AnchorChange::Done, AnchorChange::Taken));
        model.entry(key).or_insert(value);
    } else if !key.is_empty() {
        assert_eq!(handle.remove(&key, expected).expect("room"), refused.unwrap_or(AnchorChange::Done));
        if refused.is_none() {
            model.remove(&key);
        }
    }
}

#[test]
fn the_tree_is_a_sorted_map() {
    let all: Vec<u8> = (0..=255).collect();
    for (round, (alphabet, len_max)) in
        [(&b"ab"[..], 6), (&[0, 1, 0x7f, 0x80, 0xff], 4), (&all, 2), (&all, 3), (b"ab", 40), (&all[100..130], 5)]
            .into_iter()
            .enumerate()
    {
        let (tree, mut handle) = heap_tree(ROOMY);
        let (mut model, mut chance) = (new_model(), Chance(round as u64));
        // The tree grows, shrinks, grows again and empties.
        for inserts_of_10 in [9, 2, 6, 0] {
            for step in 0..if cfg!(miri) { 100 } else { 6000 } {
                let others = if inserts_of_10 > 4 && step % 50 != 0 { &Model::new() } else { &model };
                let key = near_key(&mut chance, alphabet, len_max, others);
                change(&mut handle, &mut model, &mut chance, key, inserts_of_10);
                if step % 16 == 0 {
                    let key = near_key(&mut chance, alphabet, len_max + 1, &model);
                    check_key(&mut handle, &model, &key);
                }
            }
            assert_eq!(contents(&tree), model);
            check_order(&mut handle, &model);
        }
    }
}

/// The kind of the node with the children behind `a`.
fn kind_at(tree: &HeapTree, byte: u8) -> Option<NodeKind> {
    let child = tree.node(ROOT).child(byte);
    (!child.is_none() && !child.is_leaf()).then(|| tree.node(child.index()).header.kind())
}

#[test]
fn a_node_grows_and_shrinks_through_all_kinds() {
    use NodeKind::*;
    for with_terminator in [false, true] {
        let (tree, mut handle) = heap_tree(ROOMY);
        let mut model = new_model();
        if with_terminator {
            assert_eq!(handle.insert(b"a", 7).expect("room"), AnchorChange::Done);
            model.insert(b"a".to_vec(), 7);
        }
        let mut order: Vec<u8> = (0..=255).collect();
        let mut chance = Chance(5);
        (1..256).rev().for_each(|at| order.swap(at, chance.below(at + 1)));
        for (count, &byte) in (1..).zip(&order) {
            let key = vec![b'a', byte];
            assert_eq!(handle.insert(&key, u64::from(byte)).expect("room"), AnchorChange::Done);
            model.insert(key, u64::from(byte));
            assert_eq!(contents(&tree), model);
            let expected = match count {
                1 if !with_terminator => None,
                1..=4 => Some(Node4),
                5..=16 => Some(Node16),
                17..=48 => Some(Node48),
                _ => Some(Node256),
            };
            assert_eq!(kind_at(&tree, b'a'), expected, "{count} children");
            (0..=255).for_each(|byte| check_key(&mut handle, &model, &[b'a', byte]));
        }
        for (count, &byte) in (0..256).rev().zip(&order) {
            let key = vec![b'a', byte];
            assert_eq!(handle.remove(&key, u64::from(byte)).expect("room"), AnchorChange::Done);
            model.remove(&key);
            assert_eq!(contents(&tree), model);
            let expected = match count {
                0 => None,
                1 if !with_terminator => None,
                1..=3 => Some(Node4),
                4..=12 => Some(Node16),
                13..=40 => Some(Node48),
                _ => Some(Node256),
            };
            assert_eq!(kind_at(&tree, b'a'), expected, "{count} children");
            (0..=255).step_by(3).for_each(|byte| check_key(&mut handle, &model, &[b'a', byte]));
        }
    }
}

#[test]
fn empty_slots_go_when_the_node_is_full() {
    let (tree, mut handle) = heap_tree(ROOMY);
    let mut model = new_model();
    // Ten children of a Node16 stay; others come and go.
    for byte in 0..10 {
        assert_eq!(handle.insert(&[b'a', byte], 1).expect("room"), AnchorChange::Done);
        model.insert(vec![b'a', byte], 1);
    }
    for byte in 10..=255 {
        assert_eq!(handle.insert(&[b'a', byte], 2).expect("room"), AnchorChange::Done);
        assert_eq!(handle.remove(&[b'a', byte], 2).expect("room"), AnchorChange::Done);
        assert_eq!(kind_at(&tree, b'a'), Some(NodeKind::Node16));
    }
    assert_eq!(contents(&tree), model);
}

#[test]
fn keys_may_be_as_long_as_the_limit_and_prefixes_of_each_other() {
    let (tree, mut handle) = heap_tree(ROOMY);
    let mut model = new_model();
    let long: Vec<u8> = (0..KEY_BYTES_MAX + 1).map(|at| (at * 7) as u8).collect();
    // The keys come from both ends inwards, so that nodes are added above and below others.
    for at in 1..=KEY_BYTES_MAX {
        let len = if at % 2 == 0 { at / 2 } else { KEY_BYTES_MAX - at / 2 };
        assert_eq!(handle.insert(&long[..len], at as u64).expect("room"), AnchorChange::Done);
        model.insert(long[..len].to_vec(), at as u64);
    }
    assert_eq!(contents(&tree), model);
    check_order(&mut handle, &model);
    for len in 0..=KEY_BYTES_MAX + 1 {
        check_key(&mut handle, &model, &long[..len]);
    }
    for bound in [[0; KEY_BYTES_MAX], [255; KEY_BYTES_MAX]] {
        check_key(&mut handle, &model, &bound);
    }
    let too_long = handle.insert(&long, 1).expect_err("1,025 bytes");
    assert!(matches!(too_long, SearchError::KeyTooLong { bytes: 1025 }), "{too_long}");
    assert_eq!(handle.lookup(&long), None);
    assert_eq!(handle.remove(&long, 1).expect("room"), AnchorChange::Absent);
    for (key, value) in model.iter().skip(1) {
        assert_eq!(handle.remove(key, *value).expect("room"), AnchorChange::Done);
    }
    assert_eq!(contents(&tree), new_model());
}

#[test]
fn prefixes_of_any_length_are_parted_and_joined() {
    let (tree, mut handle) = heap_tree(ROOMY);
    for len in [1, 2, 7, 8, 9, 15, 16, 17, 100, KEY_BYTES_MAX - 1] {
        let mut model = new_model();
        let trunk = vec![b'x'; len];
        for byte in [b'a', b'b'] {
            let key = [&trunk[..], &[byte]].concat();
            assert_eq!(handle.insert(&key, 1).expect("room"), AnchorChange::Done);
            model.insert(key, 1);
        }
        for at in 0..=len {
            // One key ends within the prefix, another one leaves it.
            for branch in [trunk[..at].to_vec(), [&trunk[..at], b"m"].concat(), [&trunk[..at], b"z"].concat()] {
                if model.contains_key(&branch) || branch.len() > KEY_BYTES_MAX {
                    continue;
                }
                assert_eq!(handle.insert(&branch, 2).expect("room"), AnchorChange::Done);
                model.insert(branch.clone(), 2);
                assert_eq!(contents(&tree), model);
                check_key(&mut handle, &model, &trunk);
                check_key(&mut handle, &model, &trunk[..at]);
                check_key(&mut handle, &model, &branch);
                assert_eq!(handle.remove(&branch, 2).expect("room"), AnchorChange::Done);
                model.remove(&branch);
                assert_eq!(contents(&tree), model);
            }
        }
        for byte in [b'a', b'b'] {
            assert_eq!(handle.remove(&[&trunk[..], &[byte]].concat(), 1).expect("room"), AnchorChange::Done);
        }
    }
}

#[test]
fn a_full_tree_refuses_inserts_and_takes_removals() {
    let (tree, mut handle) = heap_tree(20 * HeapMemory::CHUNK_WORDS * 8);
    let (mut model, mut chance) = (new_model(), Chance(9));
    let mut refused = 0;
    while refused < 50 {
        let key = near_key(&mut chance, b"abcdefgh", 30, &model);
        match handle.insert(&key, 1) {
            Ok(AnchorChange::Done) => assert!(model.insert(key, 1).is_none()),
            Ok(_) => {}
            Err(SearchError::Full { bytes_max }) => {
                assert_eq!(bytes_max, 20 * HeapMemory::CHUNK_WORDS * 8);
                refused += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(contents(&tree), model);
    check_order(&mut handle, &model);
    let keys: Vec<_> = model.keys().skip(1).cloned().collect();
    for key in keys {
        let value = model.remove(&key).expect("one of them");
        assert_eq!(handle.remove(&key, value).expect("removals have room"), AnchorChange::Done);
    }
    assert_eq!(contents(&tree), new_model());
    assert_eq!(handle.insert(b"again", 1).expect("room"), AnchorChange::Done);
}

#[test]
fn memory_is_reused_and_given_back_with_the_tree() {
    let account = Account::default();
    let limits = SearchLimits { bytes_max: 64 << 20, handles_max: 2 };
    let tree = SearchTree::new(limits, 0, &account).expect("memory");
    let mut handle = tree.handle().expect("a handle");
    let mut most = 0;
    for round in 0..if cfg!(miri) { 2 } else { 20 } {
        let mut chance = Chance(round);
        let keys: Vec<_> = (0..5000).map(|_| chance.word().to_be_bytes()).collect();
        for key in &keys {
            assert_eq!(handle.insert(key, 1).expect("room"), AnchorChange::Done);
        }
        for key in &keys {
            assert_eq!(handle.remove(key, 1).expect("room"), AnchorChange::Done);
        }
        match round {
            0 => most = tree.bytes(),
            _ => assert!(tree.bytes() <= most + 2 * MappedMemory::CHUNK_WORDS * 8, "{} of {most}", tree.bytes()),
        }
        let mapped = account.load(Relaxed);
        assert!(mapped < tree.bytes() && tree.bytes() - mapped < 64 << 10, "{mapped} of {}", tree.bytes());
    }
    drop(handle);
    drop(tree);
    assert_eq!(account.load(Relaxed), 0);
}

#[test]
fn handles_are_counted() {
    let limits = SearchLimits { bytes_max: 1, handles_max: 2 };
    let tree = SearchTree::over(HeapMemory, limits, 0).expect("one chunk at least");
    let (first, _second) = (tree.handle().expect("one"), tree.handle().expect("two"));
    assert!(matches!(tree.handle(), Err(SearchError::HandlesTaken { handles_max: 2 })));
    drop(first);
    assert!(tree.handle().is_ok());
}

#[test]
#[should_panic(expected = "keeps its anchor")]
fn the_empty_key_is_not_removed() {
    let _ = heap_tree(ROOMY).1.remove(b"", LEFTMOST);
}

/// The shortest key above `below` that is not above its successor `key`.
fn separator(below: &[u8], key: &[u8]) -> Vec<u8> {
    let same = below.iter().zip(key).take_while(|(a, b)| a == b).count();
    key[..same + 1].to_vec()
}

/// Bytes for each anchor, with `keys_a_node` random keys in each data node.
fn bytes_an_anchor(nodes: usize, keys_a_node: usize, order: impl Fn(usize) -> usize) -> f64 {
    let mut chance = Chance(nodes as u64);
    let mut keys: Vec<[u8; 16]> = (0..nodes * keys_a_node)
        .map(|_| (u128::from(chance.word()) << 64 | u128::from(chance.word())).to_be_bytes())
        .collect();
    keys.sort_unstable();
    let limits = SearchLimits { bytes_max: 1 << 30, handles_max: 63 };
    let tree = SearchTree::new(limits, 0, &Account::default()).expect("memory");
    let mut handle = tree.handle().expect("a handle");
    for at in (0..nodes - 1).map(order) {
        let first = (at + 1) * keys_a_node;
        let anchor = separator(&keys[first - 1], &keys[first]);
        assert_eq!(handle.insert(&anchor, at as u64).expect("room"), AnchorChange::Done);
    }
    assert_eq!(tree.anchors(), nodes as u64);
    tree.bytes() as f64 / nodes as f64
}

/// Values of 1 KiB: about 3 items in a data node, and 20 bytes of host memory an item for search layer and page table together.
#[test]
fn anchors_of_random_keys_take_less_than_36_bytes_each() {
    for nodes in [100_000, 400_000, 1_200_000, 1_666_000] {
        // 7,919 is a prime that divides none of these.
        let (sorted, shuffled) =
            (bytes_an_anchor(nodes, 3, |at| at), bytes_an_anchor(nodes, 3, |at| at * 7919 % (nodes - 1)));
        println!("{nodes} anchors: {sorted:.1} bytes each inserted in order, {shuffled:.1} shuffled");
        assert!(sorted < 36.0 && shuffled < 36.0, "{nodes} anchors: {sorted:.1}, {shuffled:.1} bytes each");
    }
}
