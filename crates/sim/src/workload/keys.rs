//! Names of keys.

use std::collections::BTreeSet;
use tapetum_drive::SplitMix64;

/// The longest key that an ordered keyspace takes.
const KEY_BYTES_MAX: u64 = 1024;

/// A key such as clients use.
pub fn key(random: &mut SplitMix64, number: u64) -> Vec<u8> {
    let mut key = format!("key-{number}-").into_bytes();
    let longer = match random.below(20) {
        0 => random.below(1000),
        1..=4 => random.below(60),
        _ => 0,
    };
    key.resize(key.len() + longer as usize, b'k');
    key
}

/// How the keys of an ordered keyspace relate to each other.
#[derive(Clone, Copy)]
enum KeyShape {
    /// Consecutive numbers.
    Dense,
    /// Each a prefix of the next.
    Nested,
    /// Random bytes, few or many.
    Sparse,
    /// They share a long prefix.
    FarApart,
    /// Zero bytes, which sort before everything.
    Zeros,
}

const SHAPES: [KeyShape; 5] =
    [KeyShape::Dense, KeyShape::Nested, KeyShape::Sparse, KeyShape::FarApart, KeyShape::Zeros];

/// `count` different keys, of one shape or of all.
pub fn shaped(random: &mut SplitMix64, count: usize) -> Vec<Vec<u8>> {
    let shape = (!random.one_in(3)).then(|| SHAPES[random.below(SHAPES.len() as u64) as usize]);
    let common_bytes = 1 + random.below(KEY_BYTES_MAX - 8);
    let step_bytes = 1 + random.below(3);
    let (mut keys, mut known) = (Vec::new(), BTreeSet::new());
    let mut number = 0;
    while keys.len() < count {
        number += 1;
        let shape = shape.unwrap_or_else(|| SHAPES[random.below(SHAPES.len() as u64) as usize]);
        let key = match shape {
            KeyShape::Dense => format!("user:{number:06}").into_bytes(),
            KeyShape::Nested if number * step_bytes < KEY_BYTES_MAX => vec![b'n'; (number * step_bytes) as usize],
            KeyShape::FarApart => {
                let mut key = vec![b'c'; common_bytes as usize];
                key.extend((number as u16).to_be_bytes());
                key
            }
            KeyShape::Zeros => [&vec![0; (number % 7) as usize][..], &(number as u16 / 7).to_be_bytes()].concat(),
            KeyShape::Sparse | KeyShape::Nested => {
                let bytes = if random.one_in(8) { random.below(KEY_BYTES_MAX) } else { random.below(24) };
                let mut key = vec![0; 1 + bytes as usize];
                random.fill(&mut key);
                key
            }
        };
        if known.insert(key.clone()) {
            keys.push(key);
        }
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shaped_keys_are_different_and_fit_an_ordered_keyspace() {
        for seed in 0..64 {
            let keys = shaped(&mut SplitMix64::new(seed), 350);
            assert!(keys.iter().all(|key| (1..=KEY_BYTES_MAX as usize).contains(&key.len())));
            assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), 350);
        }
    }
}
