//! Queries and changes at the same time, under loom: the tree's own code, over loom's words.
//!
//! The trees are filled beforehand, so that loom only explores the change under test. The keys are chosen so that no query scans the root.

use super::test_memory::*;
use super::tree_memory::{Exclusive, TreeMemory};
use super::*;
use loom::model::Builder;
use loom::thread;
use std::io;
use tapetum_base::memory::memory_word::model::*;

/// The most thread switches that loom tries in one order of steps, where the orders are too many to try all.
const SWITCHES_MAX: usize = 3;

struct ModelMemory<const WEAK: u8>;

impl<T: Send> Exclusive<T> for loom::sync::Mutex<T> {
    fn new(value: T) -> Self {
        loom::sync::Mutex::new(value)
    }

    fn with<R>(&self, use_it: impl FnOnce(&mut T) -> R) -> R {
        use_it(&mut self.lock().expect("nobody panicked"))
    }
}

impl<const WEAK: u8> TreeMemory for ModelMemory<WEAK> {
    type Word = ModelWord<WEAK>;
    type Chunk = Vec<ModelWord<WEAK>>;
    type Lock<T: Send> = loom::sync::Mutex<T>;

    const CHUNK_WORDS: usize = HeapMemory::CHUNK_WORDS;
    const RETIRED_MANY: usize = 1;

    fn map(&self, _: usize) -> io::Result<Self::Chunk> {
        panic!("the models' trees fit their first chunk")
    }
}

type ModelTree<const WEAK: u8> = Arc<SearchTree<ModelMemory<WEAK>>>;
type ModelHandle<const WEAK: u8> = SearchHandle<ModelMemory<WEAK>>;

/// Values are the positions of the keys, from 1.
fn filled(keys: &[&[u8]]) -> HeapTree {
    let limits = SearchLimits { bytes_max: 1, handles_max: 3 };
    let tree = SearchTree::over(HeapMemory, limits, LEFTMOST).expect("memory");
    let mut handle = tree.handle().expect("a handle");
    for (value, key) in (1..).zip(keys) {
        assert_eq!(handle.insert(key, value).expect("room"), AnchorChange::Done);
    }
    contents(&tree);
    tree
}

/// Runs both, each with a handle of its own, in many orders; then checks the tree. Loom does not see that a load and a later store may be reordered
/// if the storing thread has loaded the word in between. So each of them is the thread that starts first, in turn.
fn beside<const WEAK: u8, S: Send + 'static, R: Send + 'static>(
    keys: &[&[u8]],
    first: impl Fn(&mut ModelHandle<WEAK>) -> S + Copy + Send + Sync + 'static,
    second: impl Fn(&mut ModelHandle<WEAK>) -> R + Copy + Send + Sync + 'static,
    then: impl Fn(S, R, &mut ModelHandle<WEAK>) + Copy + Send + Sync + 'static,
) {
    in_turn(keys, first, second, then);
    in_turn(keys, second, first, move |seen, first_seen, handle| then(first_seen, seen, handle));
}

fn in_turn<const WEAK: u8, S: Send + 'static, R: Send + 'static>(
    keys: &[&[u8]],
    first: impl Fn(&mut ModelHandle<WEAK>) -> S + Copy + Send + Sync + 'static,
    second: impl Fn(&mut ModelHandle<WEAK>) -> R + Copy + Send + Sync + 'static,
    then: impl Fn(S, R, &mut ModelHandle<WEAK>) + Copy + Send + Sync + 'static,
) {
    let before = filled(keys);
    let mut model = Builder::new();
    model.preemption_bound = Some(SWITCHES_MAX);
    model.max_branches = 100_000;
    model.check(move || {
        let blocks =
            before.blocks.copied(ModelMemory::<WEAK>, |words| words.iter().map(|word| ModelWord::new(*word)).collect());
        let tree: ModelTree<WEAK> = Arc::new(SearchTree { blocks });
        let mut handle = tree.handle().expect("a handle");
        let other = {
            let mut handle = tree.handle().expect("a handle");
            thread::spawn(move || second(&mut handle))
        };
        let seen = first(&mut handle);
        let other_seen = other.join().unwrap();
        then(seen, other_seen, &mut handle);
    });
}

fn insert<const WEAK: u8>(handle: &mut ModelHandle<WEAK>, key: &[u8], value: u64) {
    assert_eq!(handle.insert(key, value).expect("room"), AnchorChange::Done);
}

fn remove<const WEAK: u8>(handle: &mut ModelHandle<WEAK>, key: &[u8], value: u64) {
    assert_eq!(handle.remove(key, value).expect("room"), AnchorChange::Done);
}

fn floor<const WEAK: u8>(handle: &mut ModelHandle<WEAK>, key: &[u8]) -> (Vec<u8>, u64) {
    let mut anchor = AnchorKey::new();
    let value = handle.floor(key, &mut anchor);
    (anchor.to_vec(), value)
}

fn is_either<T: PartialEq + std::fmt::Debug>(seen: T, one: T, other: T) {
    assert!(seen == one || seen == other, "{seen:?} was never there");
}

/// A reader concurrent with an insert into a slot of the node that it reads.
fn a_slot_is_filled<const WEAK: u8>() {
    beside::<WEAK, _, _>(
        &[b"ab", b"ac"],
        |handle| insert(handle, b"ad", 9),
        |handle| {
            is_either(handle.lookup(b"ad"), None, Some(9));
            is_either(floor(handle, b"ae"), (b"ac".to_vec(), 2), (b"ad".to_vec(), 9));
        },
        |(), (), handle| assert_eq!(handle.lookup(b"ad"), Some(9)),
    );
}

#[test]
fn a_reader_sees_a_new_leaf_whole_or_not_at_all() {
    a_slot_is_filled::<SOUND>();
}

#[test]
#[should_panic(expected = "was never there")]
fn without_the_release_of_a_slot_a_reader_sees_half_a_leaf() {
    a_slot_is_filled::<RELAXED_STORE>();
}

#[test]
#[should_panic(expected = "was never there")]
fn without_the_acquisition_of_a_slot_a_reader_sees_half_a_leaf() {
    a_slot_is_filled::<RELAXED_LOAD>();
}

/// A reader of the smallest byte, concurrent with an insert into a slot: it does not see a slot before the slot's byte.
#[test]
fn a_reader_sees_no_slot_without_its_byte() {
    beside::<SOUND, _, _>(
        &[b"ab", b"ac"],
        |handle| insert(handle, b"ad", 9),
        |handle| assert_eq!(handle.next(&mut AnchorKey::of(b"a")), Some(1)),
        |(), (), handle| assert_eq!(handle.next(&mut AnchorKey::of(b"ac")), Some(9)),
    );
}

/// A reader concurrent with an insert that replaces a full node by a larger one.
#[test]
fn a_reader_beside_a_node_that_grows_misses_nothing() {
    beside::<SOUND, _, _>(
        &[b"ab", b"ac", b"ad", b"ae"],
        |handle| insert(handle, b"af", 9),
        |handle| {
            assert_eq!(handle.lookup(b"ae"), Some(4));
            is_either(floor(handle, b"az"), (b"ae".to_vec(), 4), (b"af".to_vec(), 9));
        },
        |(), (), handle| assert_eq!(floor(handle, b"az"), (b"af".to_vec(), 9)),
    );
}

/// A reader concurrent with a removal that replaces a node by a smaller one.
#[test]
fn a_reader_beside_a_node_that_shrinks_misses_nothing() {
    // A Node16 of four children, whose next removal makes a Node4.
    beside::<SOUND, _, _>(
        &[b"ab", b"ac", b"ad", b"ae", b"af"],
        |handle| {
            remove(handle, b"af", 5);
            remove(handle, b"ac", 2);
        },
        |handle| {
            is_either(floor(handle, b"ac"), (b"ac".to_vec(), 2), (b"ab".to_vec(), 1));
            let mut anchor = AnchorKey::of(b"ad");
            assert_eq!(handle.next(&mut anchor), Some(4));
        },
        |(), (), handle| assert_eq!(floor(handle, b"az"), (b"ae".to_vec(), 4)),
    );
}

/// A reader concurrent with a removal after which the node's only other entry takes its place, and with an insert that reuses its block.
fn a_block_is_reused<const WEAK: u8>() {
    beside::<WEAK, _, _>(
        &[b"ab", b"ac", b"b"],
        |handle| {
            remove(handle, b"ac", 2);
            insert(handle, b"bb", 9);
        },
        |handle| assert_eq!(handle.lookup(b"ab"), Some(1), "an anchor that stays"),
        |(), (), handle| assert_eq!((handle.lookup(b"ab"), handle.lookup(b"bb")), (Some(1), Some(9))),
    );
}

#[test]
fn a_reader_beside_a_node_that_goes_away_is_not_misled() {
    a_block_is_reused::<SOUND>();
}

#[test]
#[should_panic(expected = "an anchor that stays")]
fn without_the_fences_of_pin_and_reclaim_a_reader_is_misled() {
    a_block_is_reused::<NO_FULL_FENCE>();
}

/// A reader concurrent with the removal of a terminator, and with an insert that reuses its leaf.
#[test]
fn a_reader_beside_a_leaf_that_is_reused_sees_the_old_one_or_none() {
    beside::<SOUND, _, _>(
        &[b"ab", b"abc", b"abd"],
        |handle| {
            remove(handle, b"ab", 1);
            insert(handle, b"b", 9);
        },
        |handle| is_either(handle.lookup(b"ab"), None, Some(1)),
        |(), (), handle| assert_eq!((handle.lookup(b"ab"), handle.lookup(b"b")), (None, Some(9))),
    );
}

/// A reader concurrent with an insert that splits a prefix, and with the removal that joins it again.
#[test]
fn a_floor_beside_a_prefix_that_is_parted_misses_nothing() {
    beside::<SOUND, _, _>(
        &[b"aaaab", b"aaaac"],
        |handle| insert(handle, b"aab", 9),
        |handle| {
            assert_eq!(floor(handle, b"aaaad"), (b"aaaac".to_vec(), 2));
            is_either(floor(handle, b"aac"), (b"aaaac".to_vec(), 2), (b"aab".to_vec(), 9));
        },
        |(), (), handle| assert_eq!(floor(handle, b"aac"), (b"aab".to_vec(), 9)),
    );
}

#[test]
fn a_floor_beside_a_prefix_that_is_joined_misses_nothing() {
    beside::<SOUND, _, _>(
        &[b"aaaab", b"aaaac", b"aab"],
        |handle| remove(handle, b"aab", 3),
        |handle| {
            assert_eq!(floor(handle, b"aaaad"), (b"aaaac".to_vec(), 2));
            is_either(floor(handle, b"aac"), (b"aaaac".to_vec(), 2), (b"aab".to_vec(), 3));
        },
        |(), (), handle| assert_eq!(floor(handle, b"aac"), (b"aaaac".to_vec(), 2)),
    );
}

/// Two writers in one node, of which one finds it full.
#[test]
fn two_writers_in_a_node_that_grows_lose_nothing() {
    beside::<SOUND, _, _>(
        &[b"ab", b"ac", b"ad"],
        |handle| insert(handle, b"ae", 8),
        |handle| insert(handle, b"af", 9),
        |(), (), handle| {
            let seen = [handle.lookup(b"ad"), handle.lookup(b"ae"), handle.lookup(b"af")];
            assert_eq!(seen, [Some(3), Some(8), Some(9)]);
        },
    );
}

/// Two writers whose slots share a word, in a node whose header stays as it is.
fn two_writers_in_a_word<const WEAK: u8>() {
    beside::<WEAK, _, _>(
        &[],
        |handle| insert(handle, b"b", 8),
        |handle| insert(handle, b"c", 9),
        |(), (), handle| assert_eq!([handle.lookup(b"b"), handle.lookup(b"c")], [Some(8), Some(9)], "one is lost"),
    );
}

#[test]
fn two_writers_in_a_word_lose_nothing() {
    two_writers_in_a_word::<SOUND>();
}

#[test]
#[should_panic(expected = "one is lost")]
fn without_the_locks_fence_an_insert_is_lost() {
    two_writers_in_a_word::<NO_ACQUIRE_FENCE>();
}

#[test]
fn a_writer_beside_a_node_that_goes_away_starts_anew() {
    beside::<SOUND, _, _>(
        &[b"ab", b"ac"],
        |handle| remove(handle, b"ac", 2),
        |handle| insert(handle, b"ad", 9),
        |(), (), handle| {
            assert_eq!([handle.lookup(b"ab"), handle.lookup(b"ac"), handle.lookup(b"ad")], [Some(1), None, Some(9)]);
        },
    );
}

#[test]
fn of_two_inserts_of_one_key_one_is_done() {
    beside::<SOUND, _, _>(
        &[b"ab", b"ac"],
        |handle| handle.insert(b"ad", 8).expect("room"),
        |handle| handle.insert(b"ad", 9).expect("room"),
        |first, second, handle| match handle.lookup(b"ad") {
            Some(8) => assert_eq!((first, second), (AnchorChange::Done, AnchorChange::Taken(8))),
            Some(9) => assert_eq!((first, second), (AnchorChange::Taken(9), AnchorChange::Done)),
            other => panic!("{other:?}"),
        },
    );
}

/// Both writers split the same leaf.
#[test]
fn two_writers_at_a_leaf_lose_nothing() {
    beside::<SOUND, _, _>(
        &[b"ab"],
        |handle| insert(handle, b"abc", 8),
        |handle| insert(handle, b"abd", 9),
        |(), (), handle| {
            let seen = [handle.lookup(b"ab"), handle.lookup(b"abc"), handle.lookup(b"abd")];
            assert_eq!(seen, [Some(1), Some(8), Some(9)]);
        },
    );
}

/// All children of a node are replaced while a reader reads it. The node may look empty, but the reader finds the anchor before it.
#[test]
fn a_floor_beside_a_node_whose_children_change_misses_nothing() {
    beside::<SOUND, _, _>(
        &[b"aa", b"abk", b"abl"],
        |handle| {
            insert(handle, b"abm", 8);
            insert(handle, b"abn", 9);
            remove(handle, b"abk", 2);
            remove(handle, b"abl", 3);
        },
        |handle| {
            let (anchor, _) = floor(handle, b"ac");
            assert!(anchor >= b"aa".to_vec(), "{anchor:?}");
        },
        |(), (), handle| assert_eq!(floor(handle, b"ac"), (b"abn".to_vec(), 9)),
    );
}
