//! A look beside the one writer, under loom: the code of [`super::table`] and [`super::slot`] itself, over words of loom's.
//!
//! The tables are filled beforehand, so that what loom tries is the one change that a model is about. The writer has the thread
//! that comes first, as in the models of the sequence lock.

use super::slot;
use super::table::{TierItem, TierTable};
use loom::model::Builder;
use loom::sync::Arc;
use loom::thread;
use std::sync::atomic::{AtomicU64, Ordering};
use tapetum_base::memory::memory_word::model::*;
use tapetum_base::request::item::ItemHead;
use tapetum_kernels::expiry::Expiry;
use tapetum_kernels::hash::HashKey;
use tapetum_kernels::record::Marks;
use tapetum_kernels::tag_bucket::{SLOTS, TagEntry, WORDS, home_of, other_of, tag_of};

/// Switches of threads that loom tries in one order of steps, where there are more orders than can be tried.
const SWITCHES_MAX: usize = 3;

type ModelTable<const WEAK: u8> = TierTable<Vec<ModelWord<WEAK>>>;

/// The `n`th key whose entry belongs into these of `buckets` buckets.
fn key(buckets: u32, (home, second): (u32, u32), n: usize) -> HashKey {
    let chooses_home = ((u128::from(2 * home + 1) << 32) / u128::from(2 * buckets)) << 16;
    let fits = |key: &HashKey| other_of(home, tag_of(*key), buckets) == second;
    let key = (1..1 << 16).map(|tag| HashKey(chooses_home | tag)).filter(fits).nth(n).expect("one of 65,535");
    assert_eq!(home_of(key, buckets), home);
    key
}

/// The words of a table, and its entries.
type Filled = (Vec<u64>, u32);

/// A table of `buckets` buckets, filled by `fill`.
fn filled(buckets: usize, fill: impl FnOnce(&TierTable<Vec<AtomicU64>>)) -> Filled {
    let table = TierTable::new((0..buckets * WORDS).map(|_| AtomicU64::new(0)).collect());
    fill(&table);
    let (home, second) = table.spread();
    (table.words.iter().map(|word| word.load(Ordering::Relaxed)).collect(), (home + second) as u32)
}

fn words<const WEAK: u8>(words: &[u64]) -> Vec<ModelWord<WEAK>> {
    words.iter().map(|word| ModelWord::new(*word)).collect()
}

fn find<const WEAK: u8>(table: &ModelTable<WEAK>, hash: HashKey, place: u32) -> Option<TierItem> {
    table.find(hash, |found| (found.entry.place() == place).then_some(found))
}

fn model(body: impl Fn() + Send + Sync + 'static) {
    let mut model = Builder::new();
    model.preemption_bound = Some(SWITCHES_MAX);
    model.max_branches = 100_000;
    model.check(body);
}

/// A look for an entry that is always there, and a use of it, beside a writer.
fn is_found_beside<const WEAK: u8>(
    (before, entries): Filled,
    (hash, place): (HashKey, u32),
    change: impl Fn(&ModelTable<WEAK>) + Copy + Send + Sync + 'static,
) {
    model(move || {
        let table = Arc::new(TierTable::of(words(&before), entries));
        let reader = {
            let table = table.clone();
            thread::spawn(move || {
                let found = find(&table, hash, place);
                table.note_use(found.expect("it only moves"));
            })
        };
        change(&table);
        reader.join().unwrap();
        assert!(find(&table, hash, place).is_some(), "a use that was noted changed an entry");
    });
}

/// An entry of a full bucket makes room for a new one whose second bucket is full as well.
fn an_entry_goes_away<const WEAK: u8>() {
    let moves = |n| key(3, (0, 2), n);
    let stays = |n| key(3, (1, 0), n);
    let before = filled(3, |table| {
        for n in 0..SLOTS {
            assert!(table.insert(moves(n), TagEntry::new(n as u32, false)));
            assert!(table.insert(stays(n), TagEntry::new(100 + n as u32, false)));
        }
    });
    is_found_beside::<WEAK>(before, (moves(0), 0), |table| {
        assert!(table.insert(key(3, (0, 1), 0), TagEntry::new(200, false)));
        assert_eq!(table.spread().1, 1, "one went");
    });
}

/// An entry that lies in its second bucket goes home, where there is room again, as a new one needs its slot.
fn an_entry_comes_home<const WEAK: u8>() {
    let home = |n| key(2, (0, 1), n);
    let others = |n| key(2, (1, 0), n);
    let before = filled(2, |table| {
        for n in 0..=SLOTS {
            assert!(table.insert(home(n), TagEntry::new(n as u32, false)));
        }
        for n in 1..SLOTS {
            assert!(table.insert(others(n), TagEntry::new(100 + n as u32, false)));
        }
        assert_eq!(table.spread().1, 1);
        assert!(table.remove(home(0), 0));
    });
    is_found_beside::<WEAK>(before, (home(SLOTS), SLOTS as u32), move |table| {
        assert!(table.insert(others(0), TagEntry::new(100, false)));
        assert_eq!(table.spread().1, 0, "all are at home");
    });
}

#[test]
fn an_entry_that_goes_away_is_always_found() {
    an_entry_goes_away::<SOUND>();
}

#[test]
#[should_panic(expected = "it only moves")]
fn without_the_readers_fence_an_entry_that_goes_away_is_lost() {
    an_entry_goes_away::<NO_ACQUIRE_FENCE>();
}

#[test]
#[should_panic(expected = "it only moves")]
fn without_the_writers_fence_an_entry_that_goes_away_is_lost() {
    an_entry_goes_away::<NO_RELEASE_FENCE>();
}

#[test]
fn an_entry_that_comes_home_is_always_found() {
    an_entry_comes_home::<SOUND>();
}

#[test]
#[should_panic(expected = "it only moves")]
fn without_the_readers_fence_an_entry_that_comes_home_is_lost() {
    an_entry_comes_home::<NO_ACQUIRE_FENCE>();
}

#[test]
#[should_panic(expected = "it only moves")]
fn without_the_writers_fence_an_entry_that_comes_home_is_lost() {
    an_entry_comes_home::<NO_RELEASE_FENCE>();
}

fn an_item(stamp: u64) -> ItemHead {
    ItemHead { stamp, flags: stamp as u32, expiry: Expiry::NONE, value_bytes: 8, marks: Marks::default() }
}

/// An item leaves its slot to another one, whose tag is the same. `early`: the slot is written before the index forgets it. The thread that takes an
/// item out and the thread that puts the next one in are two writers, one after the other.
fn a_slot_changes_hands<const TABLE: u8, const SLOT: u8>(early: bool) {
    let (old, new) = (HashKey(1 << 64 | 7), HashKey(2 << 64 | 7));
    let entry = TagEntry::new(0, false);
    let (before, entries) = filled(1, |table| assert!(table.insert(old, entry)));
    let slot_before: Vec<AtomicU64> = (0..slot::HEADER_BYTES / 8 + 1).map(|_| AtomicU64::new(0)).collect();
    slot::write(&slot_before, old, an_item(1), &[1; 8], 0);
    let slot_before: Vec<u64> = slot_before.iter().map(|word| word.load(Ordering::Relaxed)).collect();
    model(move || {
        let table = Arc::new(TierTable::of(words::<TABLE>(&before), entries));
        let slot = Arc::new(words::<SLOT>(&slot_before));
        let reader = {
            let (table, slot) = (table.clone(), slot.clone());
            thread::spawn(move || {
                let mut value = Vec::new();
                let seen = table.find(old, |_| {
                    value.clear();
                    let (item, words) = slot::read(&slot, old)?;
                    slot::append_value(words, item.value_bytes, &mut value);
                    Some(item)
                });
                let is_whole = seen.is_none_or(|item| item == an_item(1) && value == [1; 8]);
                assert!(is_whole, "the item of another: {seen:?} {value:?}");
            })
        };
        if early {
            slot::write(&slot, new, an_item(2), &[2; 8], 0);
        }
        let remover = {
            let table = table.clone();
            thread::spawn(move || assert!(table.remove(old, 0)))
        };
        remover.join().unwrap();
        if !early {
            slot::write(&slot, new, an_item(2), &[2; 8], 0);
        }
        assert!(table.insert(new, entry));
        reader.join().unwrap();
    });
}

#[test]
fn an_item_is_seen_whole_or_not_at_all_while_its_slot_goes_to_another() {
    a_slot_changes_hands::<SOUND, SOUND>(false);
}

#[test]
#[should_panic(expected = "the item of another")]
fn with_a_slot_that_is_written_early_the_model_fails() {
    a_slot_changes_hands::<SOUND, SOUND>(true);
}

#[test]
#[should_panic(expected = "the item of another")]
fn without_the_readers_fence_a_slots_item_is_torn() {
    a_slot_changes_hands::<NO_ACQUIRE_FENCE, SOUND>(false);
}

#[test]
#[should_panic(expected = "the item of another")]
fn without_the_slots_own_fence_its_item_is_torn() {
    a_slot_changes_hands::<SOUND, NO_RELEASE_FENCE>(false);
}
