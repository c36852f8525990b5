//! Which pieces of a block device may hold anything, so that a hole is told and trimmed without a lookup for each of its blocks.
//!
//! ```text
//!  unknown ──(the index has no candidate for any of its blocks, or nothing of the device is on flash)──► empty
//!     └───────────────────────────(a value is written)────────────────────────────────────────────────────┴──► written
//! ```
//! A piece is a power of two of blocks, at least [`PIECE_BLOCKS_MIN`], and a device has at most [`PIECES_MAX`] of them, a byte of memory each.
//!
//! Invariants:
//! 1. A piece of which a write buffer has a value is written: the writer says so before the record can be found, with the key's shard held,
//!    and whoever begins a map looks through the write buffers.
//! 2. Of an unknown piece only the index may have blocks, and they only become fewer. Where it had none, the piece is empty until a write.
//!    A candidate may be another key's: then the piece stays unknown, and its blocks are looked up each time, many together.
//! 3. A map lives in memory, from the first question after an opening. It outlives a drop of its keyspace: whoever gets the id next writes
//!    under the same rules. Blocks beyond the map count as written.
//!
//! Threads: any.

use crate::hashed::HashedEngine;
use crate::hashed::buffer::Place;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::keyspace::block_device::{AbsentBlocks, BLOCK_BYTES, BlockDevice};
use tapetum_base::keyspace::by_id::ById;
use tapetum_base::keyspace::states::KeyspaceRef;
use tapetum_base::media::io::lock;
use tapetum_kernels::block_group::GROUP_KEY_BYTES;
use tapetum_kernels::hash::HashKey;
use tapetum_kernels::record::Kind;

const PIECE_BLOCKS_MIN: u64 = 1024; // blocks, 4 MiB; after one write this much is looked up block by block
const PIECES_MAX: u64 = 256 << 10; // bytes of memory; pieces of 4 MiB up to a device of 1 TiB
/// Most blocks or groups in one lookup.
const TOGETHER: usize = 32;

const UNKNOWN: u8 = 0;
const EMPTY: u8 = 1;
const WRITTEN: u8 = 2;

struct BlockMap {
    piece_bits: u32,
    pieces: Box<[AtomicU8]>,
    /// The write buffers were looked through.
    begun: OnceLock<()>,
}

impl BlockMap {
    fn new(blocks: u64) -> BlockMap {
        let piece_blocks = blocks.div_ceil(PIECES_MAX).next_power_of_two().max(PIECE_BLOCKS_MIN);
        let pieces = (0..blocks.div_ceil(piece_blocks)).map(|_| AtomicU8::new(UNKNOWN)).collect();
        BlockMap { piece_bits: piece_blocks.ilog2(), pieces, begun: OnceLock::new() }
    }

    fn piece(&self, block: u64) -> Option<&AtomicU8> {
        self.pieces.get(usize::try_from(block >> self.piece_bits).ok()?)
    }

    /// The blocks of the piece that has this one.
    fn blocks_around(&self, block: u64) -> Range<u64> {
        let number = block >> self.piece_bits;
        number << self.piece_bits..(number + 1) << self.piece_bits
    }

    /// Notes that a key is being written. Keys that name no block or group are ignored.
    fn note_written(&self, key: &[u8]) {
        let Some(number) = key.first_chunk::<GROUP_KEY_BYTES>() else { return };
        let Some(piece) = self.piece(u64::from_be_bytes(*number)) else { return };
        // Most writes go to a piece that is known as written. Without a store its cache line stays shared.
        if piece.load(Ordering::Relaxed) != WRITTEN {
            piece.store(WRITTEN, Ordering::Release);
        }
    }
}

/// Notes that flash has nothing of a piece, which was unknown.
fn note_empty(piece: &AtomicU8) {
    // A write that came in between has already noted more.
    let _ = piece.compare_exchange(UNKNOWN, EMPTY, Ordering::AcqRel, Ordering::Relaxed);
}

/// The maps of all block devices.
pub struct BlockMaps {
    maps: ById<OnceLock<Box<BlockMap>>>,
}

impl Default for BlockMaps {
    fn default() -> BlockMaps {
        BlockMaps { maps: ById::new(|_| OnceLock::new()) }
    }
}

impl BlockMaps {
    fn of(&self, keyspace: KeyspaceId) -> &OnceLock<Box<BlockMap>> {
        self.maps.get(keyspace, |_| OnceLock::new())
    }

    /// Notes a write just before its value can be found. The caller holds the key's shard.
    #[inline]
    pub fn note_written(&self, keyspace: KeyspaceId, key: &[u8]) {
        if let Some(map) = self.of(keyspace).get() {
            map.note_written(key);
        }
    }
}

impl HashedEngine {
    /// Counts how many of these blocks, from the first on, are certainly absent. It makes about `looks_max` lookups, or those for one piece.
    pub fn absent_blocks(
        &self,
        keyspace: KeyspaceRef,
        device: BlockDevice,
        blocks: Range<u64>,
        looks_max: usize,
    ) -> AbsentBlocks {
        if self.refuse_dropped(keyspace).is_err() {
            return AbsentBlocks::default();
        }
        let map = self.block_map(keyspace.id, device);
        let (mut at, mut looks) = (blocks.start, 0);
        while at < blocks.end && looks < looks_max {
            let Some(piece) = map.piece(at) else { break };
            let whole = map.blocks_around(at);
            let end = whole.end.min(blocks.end);
            match piece.load(Ordering::Acquire) {
                EMPTY => (at, looks) = (end, looks + 1),
                UNKNOWN => {
                    let absent = self.absent_on_flash(keyspace, device, at..end);
                    looks += absent.looks;
                    let reached = at + absent.blocks;
                    // Not the caller's size: the device may have grown, and its last piece may have blocks beyond that.
                    let device_end = self.keyspaces.device_blocks(keyspace.id);
                    if at == whole.start && reached >= whole.end.min(device_end) {
                        note_empty(piece);
                    }
                    at = reached;
                    if reached < end {
                        break;
                    }
                }
                _ => break,
            }
        }
        AbsentBlocks { blocks: at - blocks.start, looks }
    }

    fn block_map(&self, keyspace: KeyspaceId, device: BlockDevice) -> &BlockMap {
        let new = || Box::new(BlockMap::new(device.size_bytes() / BLOCK_BYTES as u64));
        let map = self.block_maps.of(keyspace).get_or_init(new);
        // Writers find the map from here on, so no write slips between.
        map.begun.get_or_init(|| {
            self.note_buffered(keyspace, map);
            // A record that was in no write buffer at that moment was counted before its buffer was released.
            if self.item_count.by_keyspace.on_flash().iter().all(|(id, _)| id != keyspace) {
                map.pieces.iter().for_each(note_empty);
            }
        });
        map
    }

    /// Notes what write buffers have of a keyspace.
    fn note_buffered(&self, keyspace: KeyspaceId, map: &BlockMap) {
        for shard in self.buffers.shards() {
            let shard = lock(shard);
            for (_, Place { buffer, place }) in shard.latest() {
                // SAFETY: the shard's table gave the place, and nothing is released while the shard's lock is held.
                let record = unsafe { self.log.record(buffer, place) };
                if record.header.kind == Kind::Value && KeyspaceId::of(&record.header) == keyspace {
                    map.note_written(record.key);
                }
            }
        }
    }

    /// Counts how many of these blocks, from the first on, the index does not have. It looks up the first alone and then ever larger batches, because
    /// a run of blocks that are present is asked for one by one.
    fn absent_on_flash(&self, keyspace: KeyspaceRef, device: BlockDevice, blocks: Range<u64>) -> AbsentBlocks {
        let group_blocks = device.group_blocks();
        let (mut hashes, mut found) = ([HashKey::default(); TOGETHER], [None; TOGETHER]);
        let (mut at, mut looks, mut together) = (blocks.start - blocks.start % group_blocks, 0, 1);
        while at < blocks.end {
            let count = (blocks.end - at).div_ceil(group_blocks).min(together as u64) as usize;
            for (number, hash) in hashes[..count].iter_mut().enumerate() {
                let key = device.key(at + number as u64 * group_blocks);
                *hash = HashedEngine::flash_hash(keyspace, self.hasher.hash_in(keyspace, &key));
            }
            self.index.lookup_batch(&hashes[..count], &mut found[..count]);
            looks += count;
            if let Some(number) = found[..count].iter().position(Option::is_some) {
                let reached = at + number as u64 * group_blocks;
                return AbsentBlocks { blocks: reached.saturating_sub(blocks.start), looks };
            }
            at += count as u64 * group_blocks;
            together = (2 * together).min(TOGETHER);
        }
        AbsentBlocks { blocks: blocks.end - blocks.start, looks }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hashed::collect::victim::tests::store_at_rest;
    use crate::{Store, StoreOptions, Sync};
    use std::collections::BTreeSet;
    use tapetum_drive::{Drive, Env, SplitMix64};

    const CAPACITY_BYTES: u64 = 32 << 20;
    /// 256 GiB and a bit: in the smallest pieces.
    const BLOCKS: u64 = (64 << 20) + 5;

    /// With segments that take groups.
    fn options() -> StoreOptions {
        StoreOptions { sync: Sync::No, segment_bytes: 512 << 10, ..StoreOptions::new(CAPACITY_BYTES, 16 << 20) }
    }

    struct MapBench {
        drive: Drive,
        store: Store,
        device: BlockDevice,
        model: BTreeSet<u64>,
    }

    impl MapBench {
        fn new(group_blocks: u64) -> MapBench {
            let (drive, store) = store_at_rest(CAPACITY_BYTES, &options(), Env::simulated(1).0);
            let device = BlockDevice::new(BLOCKS * BLOCK_BYTES as u64).unwrap().in_groups_of(group_blocks).unwrap();
            store.create_block_device("disk", device).unwrap();
            MapBench { drive, store, device, model: BTreeSet::new() }
        }

        fn put(&mut self, block: u64) {
            // Nobody else makes room.
            while self.store.maintain() != crate::Step::Idle {}
            let value = vec![block as u8; BLOCK_BYTES];
            self.store.keyspace("disk").unwrap().put(&self.device.key(block), &value).unwrap();
            self.model.insert(block);
        }

        fn delete(&mut self, block: u64) {
            while self.store.maintain() != crate::Step::Idle {}
            self.store.keyspace("disk").unwrap().delete(&self.device.key(block)).unwrap();
            self.model.remove(&block);
        }

        fn flush(&self) {
            while !self.store.hashed().rotate() {
                self.store.maintain();
            }
            while self.store.maintain() != crate::Step::Idle {}
        }

        fn reopen(mut self) -> MapBench {
            self.store.close_with(|| false).unwrap();
            drop(self.store);
            self.store = Store::open_with(&self.drive, &options(), || false).unwrap();
            self
        }

        fn absent(&self, blocks: Range<u64>, looks_max: usize) -> AbsentBlocks {
            let keyspace = self.store.keyspace("disk").unwrap().keyspace();
            self.store.hashed().absent_blocks(keyspace, self.device, blocks, looks_max)
        }

        /// No block is told to be absent that is there.
        fn check(&self, blocks: Range<u64>) {
            let absent = self.absent(blocks.clone(), 1 << 14);
            let first = self.model.range(blocks.clone()).next();
            assert!(
                first.is_none_or(|first| blocks.start + absent.blocks <= *first),
                "{absent:?} of {blocks:?}: {first:?}"
            );
        }
    }

    #[test]
    fn a_device_without_a_block_on_flash_is_empty_without_a_lookup() {
        for group_blocks in [1, 8] {
            let mut bench = MapBench::new(group_blocks);
            bench.put(2 * PIECE_BLOCKS_MIN + 17);
            let far = 100 * PIECE_BLOCKS_MIN;
            let up_to_the_written = AbsentBlocks { blocks: 2 * PIECE_BLOCKS_MIN - 5, looks: 2 };
            assert_eq!(bench.absent(5..far, usize::MAX), up_to_the_written);
            assert_eq!(
                bench.absent(3 * PIECE_BLOCKS_MIN..far, usize::MAX),
                AbsentBlocks { blocks: 97 << 10, looks: 97 }
            );
            assert_eq!(bench.absent(BLOCKS - 3..BLOCKS, usize::MAX).blocks, 3);
            assert_eq!(bench.absent(5..far, 1), AbsentBlocks { blocks: PIECE_BLOCKS_MIN - 5, looks: 1 });
            bench.put(PIECE_BLOCKS_MIN);
            assert_eq!(bench.absent(0..far, usize::MAX).blocks, PIECE_BLOCKS_MIN);
        }
    }

    #[test]
    fn pieces_of_which_the_index_has_nothing_are_looked_up_once() {
        for group_blocks in [1, 8] {
            let mut bench = MapBench::new(group_blocks);
            bench.put(17);
            bench.flush();
            let bench = bench.reopen();
            let mut learned = 0;
            for first in (1..64).map(|number| number * PIECE_BLOCKS_MIN) {
                let piece = first..first + PIECE_BLOCKS_MIN;
                let told = bench.absent(piece.clone(), usize::MAX);
                if told.blocks == PIECE_BLOCKS_MIN {
                    assert!(told.looks > 1, "unknown: {told:?}");
                    learned += 1;
                    assert_eq!(bench.absent(piece, usize::MAX), AbsentBlocks { looks: 1, ..told });
                }
            }
            // Few are in the way of another key's entry.
            assert!(learned > 32, "{learned}");
            assert_eq!(bench.absent(17..PIECE_BLOCKS_MIN, usize::MAX).blocks, 0);
        }
    }

    #[test]
    fn a_large_device_has_larger_pieces_in_place_of_more() {
        let map = BlockMap::new(8 << 38);
        assert_eq!((map.pieces.len() as u64, map.piece_bits), (PIECES_MAX, 23));
        assert!(map.piece(8 << 38).is_none() && map.piece((8 << 38) - 1).is_some());
    }

    #[test]
    fn whoever_knows_the_size_before_a_growth_makes_no_piece_empty() {
        for group_blocks in [1, 8] {
            let mut bench = MapBench::new(group_blocks);
            let grown = BlockDevice::new((BLOCKS + 1000) * BLOCK_BYTES as u64).unwrap();
            bench.store.resize_block_device("disk", grown).unwrap();
            bench.put(BLOCKS + 500);
            bench.flush();
            let bench = bench.reopen();
            let last_piece = BLOCKS - BLOCKS % PIECE_BLOCKS_MIN;
            bench.absent(last_piece..BLOCKS, usize::MAX);
            bench.check(last_piece..BLOCKS + 1000);
        }
    }

    #[test]
    fn a_map_that_begins_late_knows_what_the_write_buffers_have() {
        let mut bench = MapBench::new(1);
        bench.put(40);
        assert_eq!(bench.absent(0..100, usize::MAX).blocks, 0);
        let reopened = bench.reopen();
        assert!(reopened.absent(0..100, usize::MAX).blocks <= 40);
    }

    #[test]
    fn nothing_that_is_there_is_told_to_be_absent() {
        for group_blocks in [1, 8] {
            let (mut bench, mut random) = (MapBench::new(group_blocks), SplitMix64::new(7));
            for round in 0..12 {
                for _ in 0..60 {
                    let block = random.below(64) * 20_000 + random.below(3);
                    if random.below(3) == 0 {
                        bench.delete(block)
                    } else {
                        bench.put(block)
                    }
                    let start = random.below(64) * 20_000 + random.below(3);
                    bench.check(start..start + 1 + random.below(200_000));
                }
                if round % 3 == 1 {
                    bench.flush();
                }
                if round % 4 == 3 {
                    bench = bench.reopen();
                }
            }
        }
    }
}
