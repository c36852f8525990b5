//! A slot of the tier: an item's header and value in words that readers copy while nobody holds a lock.
//!
//! ```text
//!  0              16        22       24         28        32             36     37         40
//!  +--------------+---------+--------+----------+---------+--------------+------+----------+------- ... ---+
//!  | hash key     | stamp   | expiry | flags    | expiry  | value bytes  | marks| accessed | value         |
//!  |              | 48 bits | upper  |          | lower   |              |      |          |               |
//!  |              |         | 16 bits|          | 32 bits |              |      |          |               |
//!  +--------------+---------+--------+----------+---------+--------------+------+----------+------- ... ---+
//! ```
//! `accessed` is the Unix second of the last use that was noted, without its upper eight bits: an item that nobody asks for within
//! 97 days looks as if it were in use.
//! Equal hash keys are equal keys (see [`tapetum_kernels::hash`]), so the key itself is not kept.
//! Invariant: a slot is written only while no entry of the index names it, but for `accessed`, so a reader who finds the entry's
//! bucket unchanged after its copy has copied one item, whole. Until then it may see anything, and must bear it.

use std::sync::atomic::Ordering;
use tapetum_base::memory::memory_word::Word;
use tapetum_base::request::item::ItemHead;
use tapetum_kernels::expiry::Expiry;
use tapetum_kernels::hash::HashKey;
use tapetum_kernels::record::{Marks, STAMP_MAX};

const STAMP_EXPIRY: usize = 2;
const STAMP_BITS: u32 = 48;
const _: () = assert!(STAMP_MAX == u64::MAX >> (64 - STAMP_BITS) && Expiry::NEVER.millis() >> 32 <= u16::MAX as u64);
const FLAGS_EXPIRY: usize = 3;
const VALUE_BYTES_MARKS_ACCESSED: usize = 4;
const ACCESSED_SHIFT: u32 = 40;
const VALUE: usize = 5;
pub const HEADER_BYTES: usize = VALUE * 8;
const _: () = assert!(HEADER_BYTES == 40);

fn put(word: &impl Word, value: u64) {
    word.store(value, Ordering::Relaxed);
}

fn get(word: &impl Word) -> u64 {
    word.load(Ordering::Relaxed)
}

/// Writes an item that was last used at `accessed`. `words` are the slot's, and enough.
pub fn write<W: Word>(words: &[W], hash: HashKey, item: ItemHead, value: &[u8], accessed: u32) {
    // Pairs with the readers' fence: a reader that sees anything of this also sees that the entry that named the slot is gone.
    W::fence(Ordering::Release);
    put(&words[0], hash.0 as u64);
    put(&words[1], (hash.0 >> 64) as u64);
    assert!(item.stamp <= STAMP_MAX);
    let expiry = item.expiry.millis();
    put(&words[STAMP_EXPIRY], item.stamp | expiry >> 32 << STAMP_BITS);
    put(&words[FLAGS_EXPIRY], u64::from(item.flags) | expiry << 32);
    assert_eq!(item.value_bytes, value.len());
    let accessed = u64::from(accessed) << ACCESSED_SHIFT;
    put(&words[VALUE_BYTES_MARKS_ACCESSED], value.len() as u64 | u64::from(item.marks.bits()) << 32 | accessed);
    let (whole, rest) = value.as_chunks::<8>();
    let words = &words[VALUE..];
    words.iter().zip(whole).for_each(|(word, bytes)| put(word, u64::from_le_bytes(*bytes)));
    if !rest.is_empty() {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        put(&words[whole.len()], u64::from_le_bytes(last));
    }
}

#[inline]
pub fn hash(words: &[impl Word]) -> HashKey {
    HashKey(u128::from(get(&words[0])) | u128::from(get(&words[1])) << 64)
}

/// Bytes of the item in a slot, its header included.
pub fn item_bytes(words: &[impl Word]) -> usize {
    HEADER_BYTES + get(&words[VALUE_BYTES_MARKS_ACCESSED]) as u32 as usize
}

/// The item with this hash key, if the slot holds it, and the words of its value. `words` begin with the slot, and may go on
/// after it.
#[inline]
pub fn read<W: Word>(words: &[W], wanted: HashKey) -> Option<(ItemHead, &[W])> {
    if hash(words) != wanted {
        return None;
    }
    let bytes_marks = get(&words[VALUE_BYTES_MARKS_ACCESSED]);
    let value_bytes = bytes_marks as u32 as usize;
    let value = words[VALUE..].get(..value_bytes.div_ceil(8))?;
    let (flags_expiry, marks) = (get(&words[FLAGS_EXPIRY]), Marks::from_bits((bytes_marks >> 32) as u8));
    let stamp_expiry = get(&words[STAMP_EXPIRY]);
    let expiry = Expiry::from_flash(flags_expiry >> 32 | stamp_expiry >> STAMP_BITS << 32);
    let (flags, stamp) = (flags_expiry as u32, stamp_expiry & STAMP_MAX);
    Some((ItemHead { stamp, flags, expiry, value_bytes, marks }, value))
}

/// Seconds from the last use of the item in a slot until `now`.
#[inline]
pub fn idle_seconds(words: &[impl Word], now: u32) -> u32 {
    let accessed = (get(&words[VALUE_BYTES_MARKS_ACCESSED]) >> ACCESSED_SHIFT) as u32;
    let idle = now.wrapping_sub(accessed) << 8;
    // Somebody's clock is ahead by a second, or the machine's was put back.
    if idle > i32::MAX as u32 { 0 } else { idle >> 8 }
}

/// Notes a use of the item in a slot. Nobody writes the slot meanwhile.
pub fn set_accessed<W: Word>(words: &[W], now: u32) {
    let word = &words[VALUE_BYTES_MARKS_ACCESSED];
    // A reader that sees the item's length and marks by this store must also see the writer's change of the entry's bucket.
    W::fence(Ordering::Release);
    put(word, get(word) & (u64::MAX >> (64 - ACCESSED_SHIFT)) | u64::from(now) << ACCESSED_SHIFT);
}

#[inline]
pub fn append_value(value: &[impl Word], bytes: usize, out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + bytes, 0);
    let (whole, rest) = out[start..].as_chunks_mut::<8>();
    let last = whole.len();
    whole.iter_mut().zip(value).for_each(|(bytes, word)| *bytes = get(word).to_le_bytes());
    if !rest.is_empty() {
        rest.copy_from_slice(&get(&value[last]).to_le_bytes()[..rest.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn an_item_of_any_length_comes_back_and_another_does_not() {
        let words: Vec<AtomicU64> = (0..40).map(|_| AtomicU64::new(u64::MAX)).collect();
        for length in 0..=280 {
            let value: Vec<u8> = (0..length).map(|n| n as u8).collect();
            let marks = Marks { stale: true, leased: false };
            let item = ItemHead {
                flags: u32::MAX,
                expiry: Expiry::from_millis(7 << 40 | 9),
                stamp: 1 << 47,
                value_bytes: length,
                marks,
            };
            write(&words, HashKey(u128::MAX - 5), item, &value, u32::MAX - 3);
            assert_eq!(idle_seconds(&words, 6), 10);
            set_accessed(&words, 5);
            assert_eq!((idle_seconds(&words, 6), idle_seconds(&words, 4)), (1, 0));
            let (found, found_value) = read(&words, HashKey(u128::MAX - 5)).unwrap();
            assert_eq!(found, item);
            assert_eq!(item_bytes(&words), HEADER_BYTES + length);
            let mut values = vec![9];
            append_value(found_value, length, &mut values);
            assert_eq!(values[1..], value);
            assert!(read(&words, HashKey(5)).is_none());
        }
    }

    #[test]
    fn nonsense_is_borne() {
        let words: Vec<AtomicU64> = (0..8).map(|_| AtomicU64::new(0)).collect();
        words[VALUE_BYTES_MARKS_ACCESSED].store(u64::MAX, Ordering::Relaxed);
        assert!(read(&words, HashKey(0)).is_none());
    }
}
