//! Random draws by counting. A draw depends on seed, epoch, item, the operation's place and the number of draws before
//! it, and on nothing else. So a loader that resumes, or distributes its work anew, draws the same.

use crate::image_error::ImageError;
use siphasher::sip::SipHasher13;
use std::hash::Hasher;

/// The inputs on which all draws for one picture depend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImageChance {
    pub seed: u64,
    pub epoch: u64,
    /// The picture's place in its data set.
    pub item: u64,
}

// The attachment of a pipeline, little-endian:
//
//   0         8       16      24     32
//   | version | seed  | epoch | item |
//   | u64     | u64   | u64   | u64  |
const VERSION: u64 = 1;

impl ImageChance {
    pub const ENCODED_BYTES: usize = 32;

    pub fn encode(self) -> [u8; Self::ENCODED_BYTES] {
        let mut bytes = [0; Self::ENCODED_BYTES];
        for (place, word) in bytes.chunks_exact_mut(8).zip([VERSION, self.seed, self.epoch, self.item]) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Without bytes, seed, epoch and item are zero.
    pub fn decode(bytes: &[u8]) -> Result<ImageChance, ImageError> {
        if bytes.is_empty() {
            return Ok(ImageChance::default());
        }
        let bytes: &[u8; Self::ENCODED_BYTES] = bytes.try_into().map_err(|_| ImageError::Parameters)?;
        let mut words = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()));
        let [version, seed, epoch, item] = std::array::from_fn(|_| words.next().unwrap_or_default());
        if version != VERSION {
            return Err(ImageError::Parameters);
        }
        Ok(ImageChance { seed, epoch, item })
    }

    /// The draws of the operation at this place of its pipeline.
    pub fn draws(self, place: u8) -> ImageDraws {
        ImageDraws { chance: self, place, drawn: 0 }
    }
}

pub struct ImageDraws {
    chance: ImageChance,
    place: u8,
    drawn: u64,
}

impl ImageDraws {
    fn word(&mut self) -> u64 {
        let ImageChance { seed, epoch, item } = self.chance;
        let mut hasher = SipHasher13::new_with_keys(seed, epoch);
        hasher.write(&item.to_le_bytes());
        hasher.write(&(u64::from(self.place) << 32 | self.drawn).to_le_bytes());
        self.drawn += 1;
        hasher.finish()
    }

    /// A number of at least 0 and below 1.
    pub fn unit(&mut self) -> f64 {
        (self.word() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A number of at least `low` and below `high`.
    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// A number below `count`, which is not zero.
    pub fn below(&mut self, count: u32) -> u32 {
        ((u128::from(self.word()) * u128::from(count)) >> 64) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_depend_on_all_of_their_key() {
        let chance = ImageChance { seed: 1, epoch: 2, item: 3 };
        let draw = |chance: ImageChance, place| chance.draws(place).word();
        let first = draw(chance, 0);
        assert_eq!(first, draw(chance, 0));
        let others = [
            draw(ImageChance { seed: 9, ..chance }, 0),
            draw(ImageChance { epoch: 9, ..chance }, 0),
            draw(ImageChance { item: 9, ..chance }, 0),
            draw(chance, 1),
        ];
        assert!(others.iter().all(|other| *other != first));
        let mut draws = chance.draws(0);
        assert!((0..1000).all(|_| draws.below(7) < 7 && (0.0..1.0).contains(&draws.unit())));
        let mean = (0..10_000).map(|_| draws.unit()).sum::<f64>() / 10_000.0;
        assert!((0.48..0.52).contains(&mean), "{mean}");
    }

    #[test]
    fn the_sequence_does_not_drift() {
        let mut draws = ImageChance { seed: 1, epoch: 2, item: 3 }.draws(4);
        let words = [draws.word(), draws.word()];
        assert_eq!(words, WORDS, "pictures of a resumed training would differ");
    }

    const WORDS: [u64; 2] = [9_306_297_460_880_033_814, 9_010_955_979_157_688_232];

    #[test]
    fn a_chance_survives_its_encoding() {
        let chance = ImageChance { seed: u64::MAX, epoch: 7, item: 1 << 40 };
        assert_eq!(ImageChance::decode(&chance.encode()), Ok(chance));
        assert_eq!(ImageChance::decode(&[]), Ok(ImageChance::default()));
        assert_eq!(ImageChance::decode(&[1; 31]), Err(ImageError::Parameters));
        assert_eq!(ImageChance::decode(&[2; 32]), Err(ImageError::Parameters));
    }
}
