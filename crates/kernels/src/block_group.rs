//! A group: neighbouring blocks of a block device as one value, each compressed by itself.
//!
//! ```text
//!  0           1        2         4      6        8
//!  +-----------+--------+---------+------+--------+- - - - - - - - - - - - - - - +- - - - +
//!  | version 1 | blocks | present | lost | zero   | heads of the present blocks  | stored |
//!  | u8        | u8     | u16     | u16  | u16    | 11 bytes each                |        |
//!  +-----------+--------+---------+------+--------+- - - - - - - - - - - - - - - +- - - - +
//!  head: stamp 48 bits · codec u8 (raw 0, zstd 1) · raw length u16 · stored length u16
//! ```
//! All numbers are little-endian. Bit `n` of a map is the group's block `n`. A block that is neither present nor lost
//! is a hole. A lost block was damaged when the group was rewritten; it stays lost until it is written.
//!
//! A group's key has eight bytes. The key of a block's own record is its group's key and one more byte, the block's
//! place in the group. The hash keys of a group's blocks differ in five bits, which hold the place + 1, so blocks of
//! one group are neighbours where records are sorted. With those bits clear, a block's hash key is its group's.

use crate::hash::HashKey;
use crate::record::{Codec, Header, Record};

pub const GROUP_BLOCKS_MAX: usize = 16;
/// Length of a group's key. A block's key is its group's key and the block's place.
pub const GROUP_KEY_BYTES: usize = 8;
pub const BLOCK_KEY_BYTES: usize = GROUP_KEY_BYTES + 1;
/// The highest of the bits by which the tables of write buffers choose lines, so that blocks of one group do not crowd there.
const PLACE_SHIFT: u32 = 27;
const PLACE_BITS: u128 = 31 << PLACE_SHIFT;
const _: () = assert!(GROUP_BLOCKS_MAX < 31 && PLACE_BITS >> 32 == 0);

const VERSION: u8 = 1;
const FRAME_HEAD_BYTES: usize = 8;
const BLOCK_HEAD_BYTES: usize = 11;
const _: () = assert!(FRAME_HEAD_BYTES == 2 + 3 * 2 && BLOCK_HEAD_BYTES == 6 + 1 + 2 + 2);
const _: () = assert!(GROUP_BLOCKS_MAX == u16::BITS as usize);

/// Bytes of the longest frame of a group of `blocks` blocks of `block_bytes` bytes.
pub const fn frame_bytes_max(blocks: usize, block_bytes: usize) -> usize {
    FRAME_HEAD_BYTES + blocks * (BLOCK_HEAD_BYTES + block_bytes)
}

/// The hash key of a group, from that of one of its blocks.
#[inline]
pub fn group_hash(hash: HashKey) -> HashKey {
    HashKey(hash.0 & !PLACE_BITS)
}

/// The place in its group of the block with a hash key.
#[inline]
pub fn place_of(hash: HashKey) -> usize {
    (((hash.0 & PLACE_BITS) >> PLACE_SHIFT) as usize).saturating_sub(1)
}

/// The hash key of a group, or of one of its blocks, under a keyspace's secret.
pub fn hash_of(secret: &[u8; 16], key: &[u8]) -> HashKey {
    let (group, place) = key.split_at(key.len().min(GROUP_KEY_BYTES));
    let place = place.first().map_or(0, |place| (u128::from(*place) + 1) << PLACE_SHIFT);
    HashKey(group_hash(HashKey::of(secret, group)).0 | place & PLACE_BITS)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MalformedGroup;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum GroupBlock<'a> {
    #[default]
    Hole,
    Lost,
    Stored {
        stamp: u64,
        codec: Codec,
        raw_bytes: u16,
        stored: &'a [u8],
    },
}

impl<'a> GroupBlock<'a> {
    /// The block that a value's record stores.
    pub fn of_record(record: &Record<'a>) -> GroupBlock<'a> {
        let Header { stamp, codec, raw_bytes, .. } = record.header;
        GroupBlock::Stored { stamp, codec, raw_bytes: raw_bytes as u16, stored: record.stored }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Group<'a> {
    count: usize,
    blocks: [GroupBlock<'a>; GROUP_BLOCKS_MAX],
}

impl<'a> Group<'a> {
    /// A group of `count` equal blocks.
    pub fn of(count: usize, block: GroupBlock<'a>) -> Group<'a> {
        assert!((1..=GROUP_BLOCKS_MAX).contains(&count));
        let mut group = Group { count, blocks: Default::default() };
        group.blocks[..count].fill(block);
        group
    }

    /// The number of blocks that the group has room for.
    pub fn count(&self) -> usize {
        self.count
    }

    pub fn block(&self, place: usize) -> GroupBlock<'a> {
        self.blocks[place]
    }

    pub fn set(&mut self, place: usize, block: GroupBlock<'a>) {
        assert!(place < self.count);
        self.blocks[place] = block;
    }

    /// Whether all blocks are holes, so that there is nothing to keep.
    pub fn is_hole(&self) -> bool {
        self.blocks.iter().all(|block| *block == GroupBlock::Hole)
    }

    fn map(&self, is: impl Fn(&GroupBlock<'_>) -> bool) -> u16 {
        let bits = self.blocks.iter().enumerate().filter(|(_, block)| is(block));
        bits.fold(0, |map, (place, _)| map | 1 << place)
    }

    /// Appends the frame to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let present = self.map(|block| matches!(block, GroupBlock::Stored { .. }));
        let lost = self.map(|block| *block == GroupBlock::Lost);
        out.extend_from_slice(&[VERSION, self.count as u8]);
        [present, lost, 0].iter().for_each(|map| out.extend_from_slice(&map.to_le_bytes()));
        for block in &self.blocks {
            if let GroupBlock::Stored { stamp, codec, raw_bytes, stored } = block {
                assert!(matches!(codec, Codec::Raw | Codec::Zstd) && stored.len() <= u16::MAX.into());
                out.extend_from_slice(&stamp.to_le_bytes()[..6]);
                out.push(*codec as u8);
                out.extend_from_slice(&raw_bytes.to_le_bytes());
                out.extend_from_slice(&(stored.len() as u16).to_le_bytes());
            }
        }
        for block in &self.blocks {
            if let GroupBlock::Stored { stored, .. } = block {
                out.extend_from_slice(stored);
            }
        }
    }

    pub fn parse(frame: &'a [u8]) -> Result<Group<'a>, MalformedGroup> {
        let (head, rest) = frame.split_at_checked(FRAME_HEAD_BYTES).ok_or(MalformedGroup)?;
        let map = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
        let (count, present, lost, zero) = (usize::from(head[1]), map(2), map(4), map(6));
        let all = 1u32.checked_shl(count as u32).map_or(0, |bits| bits - 1);
        let is_known = head[0] == VERSION && (1..=GROUP_BLOCKS_MAX).contains(&count) && zero == 0;
        if !is_known || u32::from(present | lost) & !all != 0 || present & lost != 0 {
            return Err(MalformedGroup);
        }
        let heads_bytes = present.count_ones() as usize * BLOCK_HEAD_BYTES;
        let (heads, mut stored) = rest.split_at_checked(heads_bytes).ok_or(MalformedGroup)?;
        let mut heads = heads.chunks_exact(BLOCK_HEAD_BYTES);
        let mut group = Group::of(count, GroupBlock::Hole);
        for place in 0..count {
            if lost >> place & 1 == 1 {
                group.set(place, GroupBlock::Lost);
            }
            if present >> place & 1 == 0 {
                continue;
            }
            let head = heads.next().ok_or(MalformedGroup)?;
            let mut stamp = [0; 8];
            stamp[..6].copy_from_slice(&head[..6]);
            let codec = match head[6] {
                0 => Codec::Raw,
                1 => Codec::Zstd,
                _ => return Err(MalformedGroup),
            };
            let (raw_bytes, bytes) = (u16::from_le_bytes([head[7], head[8]]), u16::from_le_bytes([head[9], head[10]]));
            if codec == Codec::Raw && raw_bytes != bytes {
                return Err(MalformedGroup);
            }
            let (of_block, rest) = stored.split_at_checked(bytes.into()).ok_or(MalformedGroup)?;
            group.set(
                place,
                GroupBlock::Stored { stamp: u64::from_le_bytes(stamp), codec, raw_bytes, stored: of_block },
            );
            stored = rest;
        }
        if stored.is_empty() { Ok(group) } else { Err(MalformedGroup) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn blocks_of_a_group_are_neighbours_and_their_hash_keys_lead_to_it() {
        let secret = [3; 16];
        let group = hash_of(&secret, &7u64.to_be_bytes());
        let mut keys: Vec<HashKey> =
            (0..16).map(|place| hash_of(&secret, &[&7u64.to_be_bytes()[..], &[place]].concat())).collect();
        assert!(keys.iter().all(|key| group_hash(*key) == group && key.0 >> 32 == group.0 >> 32));
        assert!(keys.iter().map(|key| place_of(*key)).eq(0..16));
        keys.dedup();
        assert!(keys.len() == 16 && keys.is_sorted() && !keys.contains(&group));
        assert_ne!(hash_of(&secret, &8u64.to_be_bytes()), group);
    }

    fn any_block() -> impl Strategy<Value = (u8, u64, Vec<u8>)> {
        (0..4u8, 0..1u64 << 48, proptest::collection::vec(any::<u8>(), 0..40))
    }

    fn group_of(blocks: &[(u8, u64, Vec<u8>)]) -> Group<'_> {
        let mut group = Group::of(blocks.len(), GroupBlock::Hole);
        for (place, (kind, stamp, stored)) in blocks.iter().enumerate() {
            let (stamp, raw_bytes) = (*stamp, stored.len() as u16);
            let block = match kind {
                0 => GroupBlock::Hole,
                1 => GroupBlock::Lost,
                2 => GroupBlock::Stored { stamp, codec: Codec::Raw, raw_bytes, stored },
                _ => GroupBlock::Stored { stamp, codec: Codec::Zstd, raw_bytes: 4096, stored },
            };
            group.set(place, block);
        }
        group
    }

    proptest! {
        #[test]
        fn a_group_reads_back(blocks in proptest::collection::vec(any_block(), 1..=16)) {
            let (group, mut frame) = (group_of(&blocks), Vec::new());
            group.encode(&mut frame);
            prop_assert!(frame.len() <= frame_bytes_max(blocks.len(), 40));
            prop_assert_eq!(Group::parse(&frame), Ok(group));
            prop_assert_eq!(group.is_hole(), blocks.iter().all(|(kind, ..)| *kind == 0));
            prop_assert!(Group::parse(&frame[..frame.len() - 1]).is_err());
            frame.push(0);
            prop_assert!(Group::parse(&frame).is_err());
        }

        #[test]
        fn nothing_makes_it_panic(frame in proptest::collection::vec(any::<u8>(), 0..200), blocks in 0..20u8) {
            let _ = Group::parse(&frame);
            let headed = [&[1, blocks][..], &frame].concat();
            if let Ok(group) = Group::parse(&headed) {
                let mut again = Vec::new();
                group.encode(&mut again);
                prop_assert_eq!(again, headed);
            }
        }
    }

    #[test]
    fn maps_that_contradict_each_other_are_refused() {
        let frame = |count: u8, present: u8, lost: u8, zero: u8| vec![1, count, present, 0, lost, 0, zero, 0];
        assert!(Group::parse(&frame(8, 0, 3, 0)).is_ok());
        for wrong in [frame(0, 0, 0, 0), frame(17, 0, 0, 0), frame(2, 0, 4, 0), frame(8, 1, 1, 0), frame(8, 0, 0, 1)] {
            assert_eq!(Group::parse(&wrong), Err(MalformedGroup), "{wrong:?}");
        }
    }
}
