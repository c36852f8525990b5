//! A leaf: one anchor's whole key and its value.
//!
//! ```text
//! word 0   value
//! word 1   bytes of the key (16 bits) │ the key's first 6 bytes
//! word 2…  8 bytes of the key each, the last word padded with zeros
//! ```
//!
//! Both are written once, before the leaf is linked.

use super::anchor_key::AnchorKey;
use std::cmp::Ordering;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use tapetum_base::memory::memory_word::Word;

const VALUE: usize = 0;
const KEY: usize = 1;
/// Bytes of the key in the word that has its length.
const FIRST_BYTES: usize = 6;

/// Words of a leaf whose key has `key_bytes` bytes.
pub const fn words_for(key_bytes: usize) -> usize {
    KEY + (key_bytes + 8 - FIRST_BYTES).div_ceil(8)
}

pub fn words_of<W: Word>(words: &[W]) -> usize {
    words_for(usize::from(words[KEY].load(Relaxed) as u16))
}

/// Writes a leaf before anybody can reach it.
pub fn write<W: Word>(words: &[W], key: &[u8], value: u64) {
    words[VALUE].store(value, Relaxed);
    let (first, rest) = key.split_at(key.len().min(FIRST_BYTES));
    words[KEY].store(key.len() as u64 | word_of(first) << 16, Relaxed);
    for (word, piece) in words[KEY + 1..].iter().zip(rest.chunks(8)) {
        word.store(word_of(piece), Relaxed);
    }
}

/// At most eight bytes, the first one lowest.
pub fn word_of(piece: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    bytes[..piece.len()].copy_from_slice(piece);
    u64::from_le_bytes(bytes)
}

pub fn value<W: Word>(words: &[W]) -> u64 {
    words[VALUE].load(Acquire)
}

/// Passes the key to `take` in pieces, in order, until that returns false.
#[inline(always)]
fn pieces<W: Word>(words: &[W], mut take: impl FnMut(&[u8]) -> bool) {
    let first = words[KEY].load(Relaxed);
    let mut left = usize::from(first as u16);
    let (mut bytes, mut room) = ((first >> 16).to_le_bytes(), FIRST_BYTES);
    let mut rest = words[KEY + 1..].iter();
    loop {
        let piece = left.min(room);
        if !take(&bytes[..piece]) || left == piece {
            return;
        }
        left -= piece;
        let Some(word) = rest.next() else { return };
        (bytes, room) = (word.load(Relaxed).to_le_bytes(), 8);
    }
}

/// How the leaf's key sorts against `key`.
pub fn compare<W: Word>(words: &[W], key: &[u8]) -> Ordering {
    let mut rest = key;
    let mut order = Ordering::Equal;
    pieces(words, |piece| {
        let (same, behind) = rest.split_at(piece.len().min(rest.len()));
        rest = behind;
        order = piece.cmp(same);
        order.is_eq()
    });
    if order.is_eq() && !rest.is_empty() { Ordering::Less } else { order }
}

/// Copies the key out.
pub fn copy_key<W: Word>(words: &[W], anchor: &mut AnchorKey) {
    anchor.clear();
    pieces(words, |piece| {
        anchor.append(piece);
        true
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ordered::search::KEY_BYTES_MAX;
    use proptest::prelude::*;
    use std::sync::atomic::AtomicU64;

    fn leaf(key: &[u8]) -> Vec<AtomicU64> {
        let words: Vec<_> = (0..words_for(key.len())).map(|_| AtomicU64::new(!0)).collect();
        write(&words, key, 7);
        words
    }

    #[test]
    fn a_key_of_any_length_comes_back() {
        for len in (0..40).chain([KEY_BYTES_MAX - 1, KEY_BYTES_MAX]) {
            let key: Vec<u8> = (0..len).map(|at| at as u8 ^ 0xa5).collect();
            let words = leaf(&key);
            let mut anchor = AnchorKey::new();
            copy_key(&words, &mut anchor);
            assert_eq!((&*anchor, value(&words), words_of(&words)), (&*key, 7, words.len()));
        }
        assert_eq!([0, 6, 7, 14, 15].map(words_for), [2, 2, 3, 3, 4]);
    }

    proptest! {
        #[test]
        fn leaves_sort_as_their_keys_do(a in "[ab]{0,20}", b in "[ab]{0,20}") {
            prop_assert_eq!(compare(&leaf(a.as_bytes()), b.as_bytes()), a.as_bytes().cmp(b.as_bytes()));
            prop_assert_eq!(compare(&leaf(a.as_bytes()), a.as_bytes()), Ordering::Equal);
        }
    }
}
