//! The extension: a value that does not fit in a node and has a range of its own; and the reference to it, which the
//! node's record stores.
//!
//! The reference:
//! ```text
//!  0       8               15      16       20
//!  +-------+---------------+-------+--------+
//!  | stamp | slot, 56 bits | codec | stored |
//!  | u64   |               | u8    | u32    |
//!  +-------+---------------+-------+--------+
//! ```
//! The extension, in the slot ([`super::SlotAddress`]) and the pages behind it:
//! ```text
//!  0      4         5       6          8       16    20       24       28       30     32
//!  +------+---------+-------+----------+-------+-----+--------+--------+--------+------+-----+----------+--------+------
//!  | crc  | version | codec | keyspace | stamp | raw | stored | crc of | key    | zero | key | stations | stored | zeros
//!  | u32  | u8      | u8    | u16      | u64   | u32 | u32    | stored | length | u16  |     | u32 each | bytes  |
//!  |      |         |       |          |       |     |        | u32    | u16    |      |     |          |        |
//!  +------+---------+-------+----------+-------+-----+--------+--------+--------+------+-----+----------+--------+------
//! ```
//! All numbers are little-endian. `stored` bytes are coded by `codec` (raw or zstd); `raw` is the value's length before
//! that. Both crcs are salted with the store, the slot and the version of the slot's group. The first crc covers the
//! head, the key and the stations. The second covers the stored bytes, and can be computed part by part. An extension
//! of more than 1 MiB of stored bytes has stations, one for each MiB but the last ([`crate::mib_sums`]). The key serves
//! the repair of a store whose node is lost.
//!
//! An extension names no node, so it stays where it is when its record moves to another node. It takes one contiguous
//! range of 4, 8, 16, 32 or 64 KiB, or of a multiple of 64 KiB.

use super::{NODE_KEY_BYTES_MAX, SlotAddress, SlotSalt};
use crate::checksum::{checksum, crc32c_append};
use crate::mib_sums::{MibSums, stations_bytes};
use crate::record::{Codec, VALUE_BYTES_MAX};

pub const REFERENCE_BYTES: usize = 20;
/// Bytes in front of an extension's key.
pub const EXTENSION_HEAD_BYTES: usize = 32;

/// Bytes in front of the stored ones.
pub const fn front_bytes(key_bytes: usize, stored_bytes: usize) -> usize {
    EXTENSION_HEAD_BYTES + key_bytes + stations_bytes(stored_bytes)
}

pub const EXTENSION_VERSION: u8 = 2;
/// The most bytes that must be read to know what an extension is.
pub const EXTENSION_PREFIX_BYTES_MAX: usize = front_bytes(NODE_KEY_BYTES_MAX, VALUE_BYTES_MAX);
/// The smallest extension, and the largest of a slab.
const SMALLEST_BYTES: u64 = 4 << 10;
const LARGEST_SLAB_BYTES: u64 = 64 << 10;
/// The number of sizes that have slabs.
pub const EXTENSION_SLABS: usize = 5;
const _: () = assert!(SMALLEST_BYTES << (EXTENSION_SLABS - 1) == LARGEST_SLAB_BYTES);
const _: () = assert!(EXTENSION_PREFIX_BYTES_MAX as u64 <= SMALLEST_BYTES);
const _: () = assert!(SlotAddress::BYTES == 7);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ExtensionClass {
    /// 4 KiB × 2ⁿ, of [`EXTENSION_SLABS`] sizes.
    Slab(u8),
    /// This many times 64 KiB, more than one.
    Large(u32),
}

impl ExtensionClass {
    /// The smallest class that holds a key and stored bytes of these lengths. `None` if no value or key is that long.
    pub fn of(key_bytes: usize, stored_bytes: usize) -> Option<ExtensionClass> {
        if !(1..=NODE_KEY_BYTES_MAX).contains(&key_bytes) || stored_bytes > VALUE_BYTES_MAX {
            return None;
        }
        let bytes = (front_bytes(key_bytes, stored_bytes) + stored_bytes) as u64;
        Some(match bytes.div_ceil(LARGEST_SLAB_BYTES) {
            1 => ExtensionClass::Slab((bytes.div_ceil(SMALLEST_BYTES).next_power_of_two().trailing_zeros()) as u8),
            units => ExtensionClass::Large(units as u32),
        })
    }

    pub fn bytes(self) -> u64 {
        match self {
            ExtensionClass::Slab(size) => SMALLEST_BYTES << size,
            ExtensionClass::Large(units) => LARGEST_SLAB_BYTES * u64::from(units),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExtensionError {
    /// The checksum does not match head and key.
    Checksum,
    /// This code does not know the format.
    Version(u8),
    /// The bytes end before the key does, or no extension has such fields.
    Malformed,
    /// The reference names another extension: it belongs to a dead record, or the store is damaged.
    Another,
}

/// The place of the value of a node's record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExtensionReference {
    /// The extension's stamp, which no two extensions of a store share.
    pub stamp: u64,
    pub slot: SlotAddress,
    /// How the stored bytes are coded.
    pub codec: Codec,
    pub stored_bytes: u32,
}

impl ExtensionReference {
    /// # Panics
    /// When the codec is another one than raw or zstd.
    pub fn encode(&self) -> [u8; REFERENCE_BYTES] {
        assert!(is_codec(self.codec), "an extension is raw or zstd");
        let mut bytes = [0; REFERENCE_BYTES];
        bytes[..8].copy_from_slice(&self.stamp.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.slot.word().to_le_bytes());
        bytes[15] = self.codec as u8;
        bytes[16..].copy_from_slice(&self.stored_bytes.to_le_bytes());
        bytes
    }

    /// # Errors
    /// [`ExtensionError::Malformed`] when no reference looks like this.
    pub fn parse(bytes: &[u8]) -> Result<ExtensionReference, ExtensionError> {
        let bytes: &[u8; REFERENCE_BYTES] = bytes.try_into().map_err(|_| ExtensionError::Malformed)?;
        let mut slot = [0; 8];
        slot[..7].copy_from_slice(&bytes[8..15]);
        let slot = SlotAddress::from_word(u64::from_le_bytes(slot)).ok_or(ExtensionError::Malformed)?;
        let stored_bytes = u32_at(bytes, 16);
        if stored_bytes as usize > VALUE_BYTES_MAX {
            return Err(ExtensionError::Malformed);
        }
        Ok(ExtensionReference { stamp: u64_at(bytes, 0), slot, codec: codec_of(bytes[15])?, stored_bytes })
    }

    /// The size of the extension, if its key has `key_bytes` bytes.
    pub fn class(&self, key_bytes: usize) -> Option<ExtensionClass> {
        ExtensionClass::of(key_bytes, self.stored_bytes as usize)
    }
}

/// The fields of an extension in front of its stored bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExtensionHead {
    pub keyspace: u16,
    pub stamp: u64,
    pub codec: Codec,
    /// The value's length.
    pub raw_bytes: u32,
    pub stored_bytes: u32,
    /// The sums of the stored bytes, continued from [`crc_of_none`].
    pub sums: MibSums,
}

impl ExtensionHead {
    /// Writes head, key and stations to the beginning of `out`. Returns their length; the stored bytes follow them.
    ///
    /// # Panics
    /// When `out` is shorter than that, or when no extension has such a key or codec.
    pub fn encode(&self, key: &[u8], salt: SlotSalt, out: &mut [u8]) -> usize {
        assert!((1..=NODE_KEY_BYTES_MAX).contains(&key.len()), "a key of {} bytes", key.len());
        assert!(is_codec(self.codec), "an extension is raw or zstd");
        let out = &mut out[..front_bytes(key.len(), self.stored_bytes as usize)];
        (out[4], out[5]) = (EXTENSION_VERSION, self.codec as u8);
        out[6..8].copy_from_slice(&self.keyspace.to_le_bytes());
        out[8..16].copy_from_slice(&self.stamp.to_le_bytes());
        out[16..20].copy_from_slice(&self.raw_bytes.to_le_bytes());
        out[20..24].copy_from_slice(&self.stored_bytes.to_le_bytes());
        out[24..28].copy_from_slice(&self.sums.whole.to_le_bytes());
        out[28..30].copy_from_slice(&(key.len() as u16).to_le_bytes());
        out[30..32].fill(0);
        let (to_key, to_stations) = out[EXTENSION_HEAD_BYTES..].split_at_mut(key.len());
        to_key.copy_from_slice(key);
        to_stations.as_chunks_mut().0.iter_mut().zip(self.sums.stations()).for_each(|(to, station)| *to = station);
        let crc = checksum(salt.of_extension(), &[&out[4..]]);
        out[..4].copy_from_slice(&crc.to_le_bytes());
        out.len()
    }

    /// Reads and checks head, key and stations, for which [`EXTENSION_PREFIX_BYTES_MAX`] bytes are enough. The stored bytes
    /// begin behind [`front_bytes`].
    ///
    /// # Errors
    /// When no extension of this slot begins like this.
    pub fn parse(bytes: &[u8], salt: SlotSalt) -> Result<(ExtensionHead, &[u8]), ExtensionError> {
        ExtensionHead::parse_continued(bytes, crc_of_none(salt))
    }

    /// As [`ExtensionHead::parse`], for a slot of which only [`crc_of_none`] is known.
    ///
    /// # Errors
    /// As [`ExtensionHead::parse`].
    pub fn parse_continued(bytes: &[u8], crc_of_none: u32) -> Result<(ExtensionHead, &[u8]), ExtensionError> {
        let head = bytes.first_chunk::<EXTENSION_HEAD_BYTES>().ok_or(ExtensionError::Malformed)?;
        let key_bytes = usize::from(u16::from_le_bytes([head[28], head[29]]));
        let (stored_bytes, is_key) = (u32_at(head, 20), (1..=NODE_KEY_BYTES_MAX).contains(&key_bytes));
        if !is_key || stored_bytes as usize > VALUE_BYTES_MAX {
            return Err(ExtensionError::Malformed);
        }
        let behind = bytes.get(EXTENSION_HEAD_BYTES..front_bytes(key_bytes, stored_bytes as usize));
        let (key, stations) = behind.ok_or(ExtensionError::Malformed)?.split_at(key_bytes);
        let crc = [&head[4..], key, stations].into_iter().fold(crc_of_none, crc32c_append);
        if u32_at(head, 0) != crc {
            return Err(ExtensionError::Checksum);
        }
        if head[4] != EXTENSION_VERSION {
            return Err(ExtensionError::Version(head[4]));
        }
        let parsed = ExtensionHead {
            keyspace: u16::from_le_bytes([head[6], head[7]]),
            stamp: u64_at(head, 8),
            codec: codec_of(head[5])?,
            raw_bytes: u32_at(head, 16),
            stored_bytes,
            sums: MibSums::from_flash(stations, u32_at(head, 24)).ok_or(ExtensionError::Malformed)?,
        };
        let has_lengths = parsed.raw_bytes as usize <= VALUE_BYTES_MAX;
        let is_plain = parsed.codec != Codec::Raw || parsed.raw_bytes == parsed.stored_bytes;
        let is_right = has_lengths && is_plain && head[30..] == [0; 2];
        if is_right { Ok((parsed, key)) } else { Err(ExtensionError::Malformed) }
    }

    /// Whether this is the extension that a node's record names.
    ///
    /// # Errors
    /// [`ExtensionError::Another`] when it is not.
    pub fn check(&self, reference: &ExtensionReference, raw_bytes: u32) -> Result<(), ExtensionError> {
        let named = (reference.stamp, reference.codec, reference.stored_bytes, raw_bytes);
        let is_named = named == (self.stamp, self.codec, self.stored_bytes, self.raw_bytes);
        if is_named { Ok(()) } else { Err(ExtensionError::Another) }
    }

    /// Whether `stored` is the extension's stored bytes.
    pub fn holds(&self, salt: SlotSalt, stored: &[u8]) -> bool {
        stored.len() == self.stored_bytes as usize && MibSums::of(crc_of_none(salt), stored) == self.sums
    }
}

/// The crc of no stored bytes, from which an extension's crc continues.
pub fn crc_of_none(salt: SlotSalt) -> u32 {
    checksum(salt.of_extension(), &[])
}

fn is_codec(codec: Codec) -> bool {
    matches!(codec, Codec::Raw | Codec::Zstd)
}

fn codec_of(byte: u8) -> Result<Codec, ExtensionError> {
    match byte {
        0 => Ok(Codec::Raw),
        1 => Ok(Codec::Zstd),
        _ => Err(ExtensionError::Malformed),
    }
}

fn u32_at<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at<const N: usize>(bytes: &[u8; N], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::super::testing::salt;
    use super::*;
    use crate::extent_address::ExtentAddress;
    use proptest::prelude::*;

    fn head(stored: &[u8]) -> ExtensionHead {
        let stored_bytes = stored.len() as u32;
        let sums = MibSums::of(crc_of_none(salt(7)), stored);
        ExtensionHead { keyspace: 3, stamp: 9, codec: Codec::Zstd, raw_bytes: 5000, stored_bytes, sums }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            key in proptest::collection::vec(any::<u8>(), 1..40),
            stored in proptest::collection::vec(any::<u8>(), 0..200),
            stamp: u64,
        ) {
            let head = ExtensionHead { stamp, ..head(&stored) };
            let mut bytes = vec![0xee; 300];
            let length = head.encode(&key, salt(7), &mut bytes);
            prop_assert_eq!(length, EXTENSION_HEAD_BYTES + key.len());
            prop_assert_eq!(ExtensionHead::parse(&bytes, salt(7)), Ok((head, &key[..])));
            prop_assert!(head.holds(salt(7), &stored) && !head.holds(salt(8), &stored));
            for length in 0..length {
                prop_assert!(ExtensionHead::parse(&bytes[..length], salt(7)).is_err());
            }
        }

        #[test]
        fn a_reference_is_read_back(stamp: u64, word in 0..1_u64 << 56, zstd: bool, stored_bytes in 0..=VALUE_BYTES_MAX as u32) {
            let slot = SlotAddress::from_word(word).unwrap();
            let codec = if zstd { Codec::Zstd } else { Codec::Raw };
            let reference = ExtensionReference { stamp, slot, codec, stored_bytes };
            prop_assert_eq!(ExtensionReference::parse(&reference.encode()), Ok(reference));
        }

        #[test]
        fn nothing_makes_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = ExtensionHead::parse(&bytes, salt(7));
            let _ = ExtensionReference::parse(&bytes);
        }
    }

    /// Pins the format on flash.
    #[test]
    fn both_have_their_bytes() {
        let slot = SlotAddress::new(ExtentAddress::new(0, 0x0a0b_0c0d), 0x01_0203);
        let reference = ExtensionReference { stamp: 0x77, slot, codec: Codec::Zstd, stored_bytes: 0x0405 };
        let expected = [0x77, 0, 0, 0, 0, 0, 0, 0, 3, 2, 1, 0x0d, 0x0c, 0x0b, 0x0a, 1, 5, 4, 0, 0];
        assert_eq!(reference.encode(), expected);
        let mut bytes = [0xee; 40];
        head(b"abc").encode(b"key", salt(7), &mut bytes);
        let crc = |parts: &[&[u8]]| checksum(salt(7).of_extension(), parts).to_le_bytes();
        let fields = [2, 1, 3, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0x88, 0x13, 0, 0, 3, 0, 0, 0];
        let expected =
            [&crc(&[&bytes[4..35]])[..], &fields, &crc(&[b"abc"]), &[3, 0, 0, 0], b"key", &[0xee; 5]].concat();
        assert_eq!(bytes[..], expected);
    }

    #[test]
    fn sizes_are_those_of_the_slabs_and_then_multiples_of_the_largest() {
        let of = |key_bytes, total: usize| {
            let behind_key = total - EXTENSION_HEAD_BYTES - key_bytes;
            ExtensionClass::of(key_bytes, behind_key - stations_bytes(behind_key)).map(ExtensionClass::bytes)
        };
        for kib in [4, 8, 16, 32, 64, 128, 192, 1024, 15 << 10] {
            let bytes = kib << 10;
            let next = if kib < 64 { 2 * bytes } else { bytes + (64 << 10) };
            for key_bytes in [1, 77, 1024] {
                assert_eq!(of(key_bytes, bytes), Some(bytes as u64));
                assert_eq!(of(key_bytes, bytes + 1), Some(next as u64));
            }
        }
        assert_eq!(ExtensionClass::of(1, 0), Some(ExtensionClass::Slab(0)));
        assert_eq!(ExtensionClass::of(1, VALUE_BYTES_MAX), Some(ExtensionClass::Large(257)));
        assert_eq!(ExtensionClass::of(1, VALUE_BYTES_MAX + 1), None);
        assert_eq!((ExtensionClass::of(0, 1), ExtensionClass::of(1025, 1)), (None, None));
    }

    #[test]
    fn stations_are_between_key_and_stored_bytes() {
        let stored = vec![7; (2 << 20) + 1];
        let head = ExtensionHead { codec: Codec::Raw, raw_bytes: stored.len() as u32, ..head(&stored) };
        let mut bytes = vec![0; EXTENSION_PREFIX_BYTES_MAX];
        let length = head.encode(b"key", salt(7), &mut bytes);
        assert_eq!((length, front_bytes(3, stored.len())), (EXTENSION_HEAD_BYTES + 3 + 8, length));
        assert_eq!(bytes[length - 8..length], head.sums.stations().collect::<Vec<_>>().concat());
        assert_eq!(ExtensionHead::parse(&bytes, salt(7)), Ok((head, &b"key"[..])));
        assert!(head.holds(salt(7), &stored));
        bytes[length - 1] ^= 1;
        assert_eq!(ExtensionHead::parse(&bytes, salt(7)), Err(ExtensionError::Checksum));
    }

    #[test]
    fn every_bit_another_slot_and_another_tenant_are_seen() {
        let mut bytes = vec![0; EXTENSION_HEAD_BYTES + 3];
        let head = head(b"abc");
        head.encode(b"key", salt(7), &mut bytes);
        for bit in 0..8 * bytes.len() {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(ExtensionHead::parse(&damaged, salt(7)).is_err(), "bit {bit}");
        }
        let another = [SlotSalt { store: 1, ..salt(7) }, SlotSalt { version: 99, ..salt(7) }, salt(8)];
        for salt in another {
            assert_eq!(ExtensionHead::parse(&bytes, salt), Err(ExtensionError::Checksum));
        }
        let reference = ExtensionReference { stamp: 9, slot: salt(7).slot, codec: Codec::Zstd, stored_bytes: 3 };
        assert_eq!(head.check(&reference, 5000), Ok(()));
        for (reference, raw_bytes) in [
            (ExtensionReference { stamp: 8, ..reference }, 5000),
            (ExtensionReference { codec: Codec::Raw, ..reference }, 5000),
            (ExtensionReference { stored_bytes: 4, ..reference }, 5000),
            (reference, 4999),
        ] {
            assert_eq!(head.check(&reference, raw_bytes), Err(ExtensionError::Another));
        }
    }

    #[test]
    fn fields_that_add_up_and_make_no_sense_are_errors() {
        let parse = |at: usize, byte: u8| {
            let mut bytes = vec![0; EXTENSION_HEAD_BYTES + 3];
            ExtensionHead { codec: Codec::Raw, raw_bytes: 3, ..head(b"abc") }.encode(b"key", salt(7), &mut bytes);
            bytes[at] = byte;
            let crc = checksum(salt(7).of_extension(), &[&bytes[4..]]);
            bytes[..4].copy_from_slice(&crc.to_le_bytes());
            ExtensionHead::parse(&bytes, salt(7)).map(|_| ())
        };
        assert_eq!(parse(4, 2), Ok(()));
        assert_eq!(parse(4, 1), Err(ExtensionError::Version(1)));
        for (at, byte) in [(5, 2), (5, 3), (16, 4), (20, 4), (19, 2), (30, 1), (31, 1)] {
            assert_eq!(parse(at, byte), Err(ExtensionError::Malformed), "byte {at}");
        }
        assert_eq!(parse(28, 0), Err(ExtensionError::Malformed), "a key of no bytes");
        assert_eq!(parse(29, 4), Err(ExtensionError::Malformed), "a key that is too long");
    }
}
