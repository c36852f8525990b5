//! The reference that a record stores in place of a value that lies in extents of its own
//! ([`crate::record::Codec::OutOfLine`]).
//!
//! ```text
//!  0         8     12       16      17
//!  +---------+-----+--------+-------+----------+---------------+-----
//!  | version | crc | stored | codec | stations | first · count | ...  one pair a run of neighbouring extents
//!  | u64     | u32 | u32    | u8    | u32 each | varints       |
//!  +---------+-----+--------+-------+----------+---------------+-----
//! ```
//! All numbers are little-endian. `first` is the address of an extent ([`crate::extent_address`]). `stored` bytes,
//! coded by `codec` (raw or zstd), lie in the runs one behind the other. The crc covers them, salted with the store,
//! the first extent and the version, which no two values of a store share. A reference to more than 1 MiB has stations,
//! one for each MiB but the last ([`crate::mib_sums`]). The record holds the value's length before compression.
//!
//! Parsing trusts only that the record around the reference was checked.

use crate::checksum::{Salt, checksum};
use crate::extent_address::{EXTENTS_MAX, ExtentAddress};
use crate::mib_sums::{MibSums, stations_bytes};
use crate::record::{Codec, VALUE_BYTES_MAX};

const HEAD_BYTES: usize = 17;
/// Keeps these bytes apart from a segment's parts in the salt's address.
const ADDRESS_LARGE: u64 = 1 << 61;

/// A run of neighbouring extents of the only member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    pub first: u32,
    pub count: u32,
}

impl Run {
    /// The address of its first extent, as it stands on flash.
    pub fn address_word(self) -> u32 {
        ExtentAddress::new(0, self.first).word()
    }

    /// A run as flash has it. `None` if it has no extents, ends behind the last of its member, or is of a member that is not there.
    pub fn of_words(address: u32, count: u32) -> Option<Run> {
        let first = ExtentAddress::from_word(address).number_of_only_member()?;
        (count > 0 && count <= EXTENTS_MAX - first).then_some(Run { first, count })
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reference {
    /// Unique in the store's life.
    pub version: u64,
    /// The sums of the stored bytes, continued from [`Reference::crc_of_none`].
    pub sums: MibSums,
    pub stored_bytes: u32,
    /// How the stored bytes are coded.
    pub codec: Codec,
    pub runs: Vec<Run>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReferenceError;

impl Reference {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes =
            Vec::with_capacity(HEAD_BYTES + stations_bytes(self.stored_bytes as usize) + self.runs.len() * 6);
        bytes.extend_from_slice(&self.version.to_le_bytes());
        bytes.extend_from_slice(&self.sums.whole.to_le_bytes());
        bytes.extend_from_slice(&self.stored_bytes.to_le_bytes());
        bytes.push(self.codec as u8);
        self.sums.stations().for_each(|station| bytes.extend_from_slice(&station));
        for run in &self.runs {
            varint_encode(run.address_word(), &mut bytes);
            varint_encode(run.count, &mut bytes);
        }
        bytes
    }

    pub fn parse(bytes: &[u8]) -> Result<Reference, ReferenceError> {
        let (head, mut rest) = bytes.split_at_checked(HEAD_BYTES).ok_or(ReferenceError)?;
        let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let codec = match head[16] {
            0 => Codec::Raw,
            1 => Codec::Zstd,
            _ => return Err(ReferenceError),
        };
        let stored_bytes = word(12);
        if stored_bytes == 0 || stored_bytes as usize > VALUE_BYTES_MAX {
            return Err(ReferenceError);
        }
        let stations;
        (stations, rest) = rest.split_at_checked(stations_bytes(stored_bytes as usize)).ok_or(ReferenceError)?;
        let sums = MibSums::from_flash(stations, word(8)).ok_or(ReferenceError)?;
        let mut runs: Vec<Run> = Vec::new();
        while !rest.is_empty() {
            let (address, count) = (varint_parse(&mut rest)?, varint_parse(&mut rest)?);
            runs.push(Run::of_words(address, count).ok_or(ReferenceError)?);
        }
        if runs.is_empty() {
            return Err(ReferenceError);
        }
        let version = u64::from(word(0)) | u64::from(word(4)) << 32;
        Ok(Reference { version, sums, stored_bytes, codec, runs })
    }

    /// Extents in all runs together.
    pub fn extents(&self) -> u64 {
        self.runs.iter().map(|run| u64::from(run.count)).sum()
    }

    /// The crc of no bytes, from which the crc of the stored bytes continues.
    pub fn crc_of_none(&self, store: u64) -> u32 {
        let address = ADDRESS_LARGE | u64::from(self.runs[0].first);
        checksum(Salt { store, address, version: self.version }, &[])
    }
}

fn varint_encode(mut number: u32, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn varint_parse(bytes: &mut &[u8]) -> Result<u32, ReferenceError> {
    let mut number = 0u64;
    for shift in [0, 7, 14, 21, 28] {
        let (byte, rest) = bytes.split_first().ok_or(ReferenceError)?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return u32::try_from(number).map_err(|_| ReferenceError);
        }
    }
    Err(ReferenceError)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mib_sums::STATIONS_BYTES_MAX;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(
            version in any::<u64>(),
            crc in any::<u32>(),
            stations in proptest::collection::vec(any::<u8>(), 60),
            stored_bytes in 1..=VALUE_BYTES_MAX as u32,
            zstd in any::<bool>(),
            runs in proptest::collection::vec((any::<u32>(), 1..5000u32), 1..40),
        ) {
            let codec = if zstd { Codec::Zstd } else { Codec::Raw };
            let runs = runs.into_iter().map(|(first, count)| Run { first: first % (EXTENTS_MAX / 2), count }).collect();
            let sums = MibSums::from_flash(&stations[..stations_bytes(stored_bytes as usize)], crc).unwrap();
            let reference = Reference { version, sums, stored_bytes, codec, runs };
            let bytes = reference.encode();
            prop_assert_eq!(Reference::parse(&bytes), Ok(reference));
            let head = HEAD_BYTES + stations_bytes(stored_bytes as usize);
            prop_assert!((0..=head).all(|end| Reference::parse(&bytes[..end]).is_err()), "it has no extents");
        }

        #[test]
        fn nothing_makes_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = Reference::parse(&bytes);
        }
    }

    #[test]
    fn runs_that_cannot_be_are_refused() {
        let is_right = |first, count| {
            let runs = vec![Run { first: 7, count: 1 }];
            let mut bytes =
                Reference { version: 1, sums: MibSums::of(2, b""), stored_bytes: 3, codec: Codec::Raw, runs }.encode();
            bytes.truncate(HEAD_BYTES);
            varint_encode(first, &mut bytes);
            varint_encode(count, &mut bytes);
            Reference::parse(&bytes).is_ok()
        };
        assert!(is_right(7, 1) && is_right(EXTENTS_MAX - 1, 1));
        assert!(!is_right(7, 0) && !is_right(EXTENTS_MAX - 1, 2) && !is_right(7, u32::MAX));
        assert!(!is_right(ExtentAddress::new(1, 7).word(), 1), "of another member");
    }

    #[test]
    fn lengths_that_no_value_has_are_refused() {
        let parse = |stored_bytes| {
            let runs = vec![Run { first: 7, count: 3 }, Run { first: 1, count: 4 }];
            let stations = [0; STATIONS_BYTES_MAX + 4];
            let sums =
                MibSums::from_flash(&stations[..stations_bytes(stored_bytes as usize).min(STATIONS_BYTES_MAX)], 2)
                    .unwrap();
            let reference = Reference { version: 1, sums, stored_bytes, codec: Codec::Raw, runs };
            Reference::parse(&reference.encode()).map(|parsed| parsed.extents())
        };
        assert_eq!([1, 1 << 20, (1 << 20) + 1, VALUE_BYTES_MAX as u32].map(parse), [Ok(7); 4]);
        assert_eq!((parse(0), parse(VALUE_BYTES_MAX as u32 + 1)), (Err(ReferenceError), Err(ReferenceError)));
    }

    /// Pins the format on flash.
    #[test]
    fn the_sum_is_salted_with_a_place_of_its_own() {
        let runs = vec![Run { first: 9, count: 1 }];
        let reference = Reference { version: 3, sums: MibSums::of(0, b""), stored_bytes: 3, codec: Codec::Raw, runs };
        let salt = Salt { store: 4, address: 1 << 61 | 9, version: 3 };
        assert_eq!(MibSums::of(reference.crc_of_none(4), b"abc").whole, checksum(salt, &[b"abc"]));
    }

    #[test]
    fn the_sum_names_the_store_the_place_and_the_version() {
        let of = |store, first, version| {
            let runs = vec![Run { first, count: 1 }];
            let reference = Reference { version, sums: MibSums::of(0, b""), stored_bytes: 3, codec: Codec::Raw, runs };
            MibSums::of(reference.crc_of_none(store), b"abc").whole
        };
        assert_eq!(of(1, 2, 3), of(1, 2, 3));
        assert!(of(1, 2, 3) != of(2, 2, 3) && of(1, 2, 3) != of(1, 3, 3) && of(1, 2, 3) != of(1, 2, 4));
    }
}
