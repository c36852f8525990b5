//! Ranges of keys, to be scanned.

use tapetum::{KeyBound, KeyRange};
use tapetum_drive::SplitMix64;

/// Whether a key is in a range.
pub fn holds(range: &KeyRange, key: &[u8]) -> bool {
    let above = match &range.from {
        KeyBound::Unbounded => true,
        KeyBound::Included(from) => key >= &from[..],
        KeyBound::Excluded(from) => key > &from[..],
    };
    let below = match &range.to {
        KeyBound::Unbounded => true,
        KeyBound::Included(to) => key <= &to[..],
        KeyBound::Excluded(to) => key < &to[..],
    };
    above && below
}

/// A range about the keys that `key` gives: all, from or to a key or near one, those with a prefix; now and then one without a key.
pub fn draw<'k>(random: &mut SplitMix64, key: impl Fn(&mut SplitMix64) -> &'k Vec<u8>) -> KeyRange {
    let is_reverse = random.one_in(2);
    if random.one_in(4) {
        let name = key(random);
        let prefix = name[..1 + random.below(name.len() as u64) as usize].to_vec();
        return KeyRange { to: behind(&prefix), from: KeyBound::Included(prefix), is_reverse };
    }
    let mut bound = || match random.below(4) {
        0 | 1 => KeyBound::Unbounded,
        2 => KeyBound::Included(near(random, &key)),
        _ => KeyBound::Excluded(near(random, &key)),
    };
    let (from, to) = (bound(), bound());
    KeyRange { from, to, is_reverse }
}

/// A key, or bytes that are close to one.
fn near<'k>(random: &mut SplitMix64, key: impl Fn(&mut SplitMix64) -> &'k Vec<u8>) -> Vec<u8> {
    let mut name = key(random).clone();
    match random.below(6) {
        0 => name.truncate(random.below(name.len() as u64) as usize),
        1 if name.len() < 1024 => name.push(0),
        _ => {}
    }
    name
}

/// The bound behind all keys with a prefix.
fn behind(prefix: &[u8]) -> KeyBound {
    let Some(last) = prefix.iter().rposition(|byte| *byte < u8::MAX) else { return KeyBound::Unbounded };
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    KeyBound::Excluded(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_has_its_keys_and_no_others() {
        let with = |prefix: &[u8]| KeyRange {
            from: KeyBound::Included(prefix.to_vec()),
            to: behind(prefix),
            is_reverse: false,
        };
        for (prefix, key, holds_it) in [
            (&b"ab"[..], &b"ab"[..], true),
            (b"ab", b"ab\xff\xff", true),
            (b"ab", b"ac", false),
            (b"a\xff", b"a\xff\x01", true),
            (b"a\xff", b"b", false),
            (b"\xff", b"\xff\xff", true),
            (b"\xff", b"\xfe", false),
        ] {
            assert_eq!(holds(&with(prefix), key), holds_it, "{prefix:?} {key:?}");
        }
    }
}
