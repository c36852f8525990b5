//! One bucket of the delta table, the succinct perfect-hash index: decode and encode, over words.
//!
//! # What it holds
//! A partition of the table has `n` buckets. A hash key, less its partition bits, is multiplied by `n` as a fraction of
//! 2^64: the integer part is the bucket, what is left is the key's *tail* ([`Position`]). The top [`SLOT_BITS`] of the
//! tail are the slot, the next `fingerprint_bits` the fingerprint, and the rest are there to tell apart entries of one
//! slot with equal fingerprints. All of this is monotone: hash keys in order are in order of (bucket, tail).
//!
//! An entry is a fingerprint and a payload. Of the rest of its tail only this is kept: for two neighbouring entries with
//! the same slot and fingerprint (a *branch*), the number of equal tail bits after the fingerprint, that is, the place of
//! the first bit in which they differ.
//!
//! # The trie
//! Branches in order determine the binary trie of the entries' tails: the smallest of a range of them is its root, since
//! neighbours on both sides of the root's bit differ there first. So no bits are spent on the shape (the published
//! delta hash table spends 2(l - 2) a slot), and each branch costs its unary code, about two bits. A search
//! walks the branches once from left to right ([`find`](find::find)) and ends at one entry. If the key is in the
//! table, that is its entry: at every branch above it, the key has the bit of the side where it lies. If the key is
//! not, the search may end at some other entry, whose key the caller must compare in full; and that is the entry with which the new
//! key shares the longest prefix among its group, up to ties, which is why the full hash key of that one entry (the *neighbor*) is
//! enough to place a new one ([`Bucket::insert`](edit::Bucket::insert)).
//!
//! # Layout
//! ```text
//! word 0   bits  0..24  sequence: odd while the bucket is being written (bucket of the table only, 0 in an extension)
//!          bits 24..32  split: the first slot that is not here; 0 if there is no extension
//!          bits 32..48  extension: 0, or 1 + the number of the extension bucket that holds the slots from `split` on
//!          bits 48..63  bits of all branches together
//!          bit  63      zero: so a zero stands before every slot's tenancy, the first one's too
//! bit 64.. tenancy: for each slot held here its number of entries in unary (ones, then a zero)
//!          branches: for each branch in order, its number of equal bits in unary
//!          free bits: all zero
//! ..end    entries, the first one in the last bits: payload (low) and fingerprint (high), fixed width
//! ```
//! An extension bucket has the same layout, begins with the slot at which its predecessor was split, and may have an
//! extension of its own. A bucket has 256 slots, not the paper's 64: the number of entries in a bucket is Poisson, so
//! the room left free for its variance is about 17 bits an entry times 1/sqrt(entries a bucket), 3 bits an entry at
//! 64 slots and 1 at 256; and select over ten words costs a few nanoseconds.
//!
//! # Threads
//! None here. A reader of words that are being written may be given nonsense, but it ends and never panics; the sequence
//! lock around it is the caller's.

pub mod edit;
mod entries;
pub mod find;
mod group;
pub mod splice;

use crate::hash::HashKey;

pub const SLOT_BITS: u32 = 8;
pub const SLOTS: u32 = 1 << SLOT_BITS;
/// The bit at which the tenancy begins.
pub const TENANCY_START: usize = 64;

/// The position of a hash key in a partition with some number of buckets.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Position {
    pub bucket: usize,
    /// The bits below the bucket: slot, fingerprint, and the rest, the most significant first. Two hash keys of a partition
    /// are equal exactly when bucket and tail are.
    pub tail: u128,
}

impl Position {
    /// The position of `hash` in its partition of 2^`partition_bits`, which has `buckets` buckets.
    #[inline(always)]
    pub fn of(hash: HashKey, partition_bits: u32, buckets: usize) -> Position {
        let rest = hash.0 << partition_bits;
        let scaled = (rest >> 64) * buckets as u128;
        Position { bucket: (scaled >> 64) as usize, tail: scaled << 64 | (rest & u128::from(u64::MAX)) }
    }
}

#[inline(always)]
pub fn slot(tail: u128) -> u32 {
    (tail >> (128 - SLOT_BITS)) as u32
}

/// The widths of an entry's fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EntryLayout {
    fingerprint_bits: u32,
    payload_bits: u32,
    /// Masks that compare the fingerprints of several entries at once.
    fields: entries::Fields,
}

impl EntryLayout {
    pub const FINGERPRINT_BITS_MAX: u32 = 16;
    pub const PAYLOAD_BITS_MAX: u32 = 32;

    pub fn new(fingerprint_bits: u32, payload_bits: u32) -> EntryLayout {
        assert!(fingerprint_bits <= Self::FINGERPRINT_BITS_MAX, "fingerprints of {fingerprint_bits} bits");
        assert!((1..=Self::PAYLOAD_BITS_MAX).contains(&payload_bits), "payloads of {payload_bits} bits");
        EntryLayout { fingerprint_bits, payload_bits, fields: entries::Fields::new(fingerprint_bits, payload_bits) }
    }

    #[inline(always)]
    pub fn fingerprint_bits(self) -> u32 {
        self.fingerprint_bits
    }

    #[inline(always)]
    pub fn payload_bits(self) -> u32 {
        self.payload_bits
    }

    #[inline(always)]
    pub fn width(self) -> u32 {
        self.fingerprint_bits + self.payload_bits
    }

    #[inline(always)]
    pub fn fingerprint(self, tail: u128) -> u32 {
        // Two shifts, because a shift by 64 - 0 would be too far.
        let below_slot = ((tail << SLOT_BITS) >> 64) as u64;
        (below_slot >> 1 >> (63 - self.fingerprint_bits)) as u32
    }

    /// The number of bits after the fingerprint that are equal in two different tails with equal slot and fingerprint.
    #[inline(always)]
    fn equal_bits(self, a: u128, b: u128) -> u32 {
        debug_assert!(a != b);
        (a ^ b).leading_zeros() - SLOT_BITS - self.fingerprint_bits
    }

    /// Whether the tail has a one after `equal_bits` bits after the fingerprint; false beyond its end.
    #[inline(always)]
    fn branch_bit(self, tail: u128, equal_bits: usize) -> bool {
        let bit = (SLOT_BITS + self.fingerprint_bits) as usize + equal_bits;
        bit < 128 && tail >> (127 - bit) & 1 == 1
    }
}

/// The first word of a bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BucketHeader(pub u64);

impl BucketHeader {
    /// The number of extension buckets that a header can name.
    pub const EXTENSIONS_MAX: usize = (1 << 16) - 1;
    const SEQUENCE: u64 = (1 << 24) - 1;
    const BRANCH_BITS_MAX: u64 = (1 << 15) - 1;

    /// The header of a bucket without an extension.
    fn of_branches(branch_bits: usize) -> BucketHeader {
        BucketHeader(0).with_branch_bits(branch_bits)
    }

    #[inline(always)]
    pub fn sequence(self) -> u32 {
        (self.0 & Self::SEQUENCE) as u32
    }

    /// The header with another sequence, modulo 2^24.
    #[inline(always)]
    pub fn with_sequence(self, sequence: u32) -> BucketHeader {
        BucketHeader(self.0 & !Self::SEQUENCE | u64::from(sequence) & Self::SEQUENCE)
    }

    #[inline(always)]
    pub fn extension(self) -> Option<u32> {
        ((self.0 >> 32 & 0xffff) as u32).checked_sub(1)
    }

    /// The slot after the last one in this bucket itself: the split, or [`SLOTS`] where that is 0.
    #[inline(always)]
    pub fn slots_end(self) -> u32 {
        // This avoids a branch, because one bucket in four has an extension.
        ((self.0 >> 24) as u32).wrapping_sub(1) % SLOTS + 1
    }

    /// The header with the slots from `split` on in `extension`. Without an extension, the bucket holds all slots
    /// itself.
    pub fn with_extension(self, extension: Option<u32>, split: u32) -> BucketHeader {
        let (extension, split) = extension.map_or((0, 0), |extension| (extension + 1, split));
        assert!(extension as usize <= Self::EXTENSIONS_MAX && split < SLOTS, "extension {extension}, split {split}");
        BucketHeader(self.0 & (0xffff << 48 | Self::SEQUENCE) | u64::from(split) << 24 | u64::from(extension) << 32)
    }

    pub fn branch_bits(self) -> u32 {
        (self.0 >> 48 & Self::BRANCH_BITS_MAX) as u32
    }

    fn with_branch_bits(self, branch_bits: usize) -> BucketHeader {
        assert!(branch_bits as u64 <= Self::BRANCH_BITS_MAX, "{branch_bits} bits of branches");
        BucketHeader(self.0 & (u64::MAX >> 16) | (branch_bits as u64) << 48)
    }
}

const _: () = assert!(SLOTS == 256, "the split slot has eight bits");
const _: () = assert!(SLOT_BITS + EntryLayout::FINGERPRINT_BITS_MAX <= 64, "a fingerprint ends inside the fraction");

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn positions_keep_the_order(a: u128, b: u128, shared in 0u32..128, partition_bits in 0u32..12, buckets in 1usize..5000) {
            // Equal leading bits are the hard case.
            let b = if shared == 0 { b } else { a & !(u128::MAX >> shared) | b & (u128::MAX >> shared) };
            let mask = u128::MAX >> partition_bits;
            let (a, b) = (HashKey(a & mask), HashKey(b & mask));
            let position = |hash| Position::of(hash, partition_bits, buckets);
            prop_assert_eq!(a.cmp(&b), position(a).cmp(&position(b)));
            prop_assert!(position(a).bucket < buckets);
        }

        #[test]
        fn header_fields_come_back(word: u64, sequence in 0u32..1 << 24, extension in prop::option::of(0u32..0xffff),
                                   split in 1u32..256, branch_bits in 0usize..1 << 15) {
            let header = BucketHeader(word).with_branch_bits(branch_bits).with_extension(extension, split);
            prop_assert_eq!(header.sequence(), BucketHeader(word).sequence());
            let header = header.with_sequence(sequence);
            prop_assert_eq!(header.sequence(), sequence);
            prop_assert_eq!(header.with_sequence(sequence + (1 << 24)), header);
            prop_assert_eq!(header.extension(), extension);
            prop_assert_eq!(header.slots_end(), if extension.is_some() { split } else { 256 });
            prop_assert_eq!(header.branch_bits() as usize, branch_bits);
        }
    }

    #[test]
    fn fields_of_a_tail() {
        let tail = 0xab_c5u128 << 112;
        let layout = EntryLayout::new(6, 10);
        assert_eq!(slot(tail), 0xab);
        assert_eq!(layout.fingerprint(tail), 0b110001);
        assert!(!layout.branch_bit(tail, 0));
        assert!(layout.branch_bit(tail, 1));
        assert!(!layout.branch_bit(tail, 1000));
        assert_eq!(layout.equal_bits(tail, tail | 1), 113);
        assert_eq!(EntryLayout::new(0, 10).fingerprint(tail), 0);
        assert!(EntryLayout::new(0, 10).branch_bit(tail, 0));
    }
}
