//! The items of a keyspace within a slice of the hash space, gathered at one moment.
//!
//! 1. Whoever gathers holds the installer: flush and collector install nothing meanwhile, so every key is in a write buffer or in the
//!    one segment in which it is valid.
//! 2. A slice is small, so the installer is held for a short time.
//! 3. A key has one hash, so it is in one slice.

use crate::hashed::HashedEngine;
use crate::hashed::buffer::Place;
use crate::hashed::catalog::{Catalog, SegmentState};
use crate::hashed::collect::victim::VictimCursor;
use crate::hashed::own_pages;
use crate::hashed::segment::view::Segment;
use std::collections::HashSet;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;
use tapetum_base::error::Error;
use tapetum_base::installer::Installer;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::media::io::{Io, lock};
use tapetum_kernels::hash::HashKey;
use tapetum_kernels::record::{Kind, Record};

/// The approximate size of a slice.
pub struct SliceSize {
    /// Bytes of records in segments, at least.
    pub bytes: u64,
    /// The same for each segment, of which a slice reads a few pages.
    pub bytes_per_segment: u64,
    pub bytes_max: u64,
    /// Keys of the write buffers.
    pub buffered_keys: u64,
}

/// The hash keys of the slice with this number, if the hash space is cut into `slices`.
pub fn bounds(number: u64, slices: u64) -> RangeInclusive<HashKey> {
    assert!(number < slices);
    // No slice is finer than 2^-64 of the space.
    let edge = |number: u64| ((u128::from(number) << 64) / u128::from(slices)) << 64;
    let last = if number + 1 < slices { edge(number + 1) - 1 } else { u128::MAX };
    HashKey(edge(number))..=HashKey(last)
}

/// The segments that may have items of a keyspace.
fn segments_of<'a>(
    engine: &'a HashedEngine,
    installer: &'a Installer,
    keyspace: KeyspaceId,
) -> impl Iterator<Item = (Arc<Segment>, &'a SegmentState)> {
    let (deleted_through, now_ms) = (engine.keyspaces.watermark(keyspace), engine.now_ms());
    let states = installer.of::<Catalog>().segments.values();
    let segments = states.filter_map(|state| Some((engine.segments.get(state.descriptor.number)?, state)));
    segments.filter(move |(segment, _)| segment.may_show(keyspace, deleted_through, now_ms))
}

/// How many slices of a size a keyspace has now.
pub fn count(engine: &HashedEngine, installer: &Installer, keyspace: KeyspaceId, size: &SliceSize) -> u64 {
    let (mut segments, mut bytes) = (0, 0);
    segments_of(engine, installer, keyspace).for_each(|(_, state)| {
        segments += 1;
        bytes += state.valid_bytes;
    });
    let slice_bytes = (segments * size.bytes_per_segment).clamp(size.bytes, size.bytes_max);
    let of_buffers = engine.buffers.entries().div_ceil(size.buffered_keys);
    bytes.div_ceil(slice_bytes).max(of_buffers).max(1)
}

/// The filter of a gathering, and the function that it shows records to.
struct Gathering<'a, F> {
    engine: &'a Arc<HashedEngine>,
    keyspace: KeyspaceId,
    prefix: &'a [u8],
    bounds: RangeInclusive<HashKey>,
    now_ms: u64,
    /// Keys whose latest record, deletions included, is in a write buffer.
    in_buffers: HashSet<HashKey>,
    show: F,
}

/// Shows the records of a keyspace's live items whose keys begin with `prefix`, in a slice of the hash space. The caller holds the
/// installer; `show` is called with a shard held.
pub async fn gather(
    engine: &Arc<HashedEngine>,
    io: &Io,
    installer: &Installer,
    keyspace: KeyspaceId,
    prefix: &[u8],
    bounds: RangeInclusive<HashKey>,
    show: impl FnMut(&Record<'_>) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut gathering =
        Gathering { engine, keyspace, prefix, bounds, now_ms: engine.now_ms(), in_buffers: HashSet::new(), show };
    gathering.look_in_buffers()?;
    for (segment, state) in segments_of(engine, installer, keyspace) {
        // A segment whose key table cannot be read is read whole.
        let own = own_pages::between(engine, io, &segment, keyspace, &gathering.bounds).await.unwrap_or(None);
        for pages in own.unwrap_or_else(|| vec![pages_of(&segment, &gathering.bounds)]) {
            gathering.look_in_pages(io, &segment, state, pages).await?;
        }
    }
    Ok(())
}

fn corrupt(page: Option<u32>) -> Error {
    Error::Corrupt(format!("a record in data page {}", page.unwrap_or(0)))
}

/// The data pages in which records of a slice start.
fn pages_of(segment: &Segment, bounds: &RangeInclusive<HashKey>) -> Range<u32> {
    segment.start_pages(*bounds.start()).start..segment.start_pages(*bounds.end()).end
}

impl<F: FnMut(&Record<'_>) -> Result<(), Error>> Gathering<'_, F> {
    fn look_in_buffers(&mut self) -> Result<(), Error> {
        let bits = self.engine.geometry.partition_bits;
        let (first, last) = (self.bounds.start().partition(bits), self.bounds.end().partition(bits));
        for shard in &self.engine.buffers.shards()[first..=last] {
            let shard = lock(shard);
            let bounds = self.bounds.clone();
            for (hash, Place { buffer, place }) in shard.latest().filter(|(hash, _)| bounds.contains(hash)) {
                self.in_buffers.insert(hash);
                // SAFETY: the shard names the place, and we hold it.
                let record = unsafe { self.engine.log.record(buffer, place) };
                self.take(&record)?;
            }
        }
        Ok(())
    }

    /// Shows records that start in these pages of a segment.
    async fn look_in_pages(
        &mut self,
        io: &Io,
        segment: &Arc<Segment>,
        state: &SegmentState,
        pages: Range<u32>,
    ) -> Result<(), Error> {
        if pages.is_empty() {
            return Ok(());
        }
        let (local, hasher) = (self.engine.drive.local(), self.engine.hasher.clone());
        let mut cursor = VictimCursor::within(segment.clone(), pages, io, local, hasher).await?;
        cursor.advance(&state.valid).await?;
        while let Some(hash) = cursor.head().filter(|hash| hash <= self.bounds.end()) {
            if hash >= *self.bounds.start() && !self.in_buffers.contains(&hash) {
                let record = Record::parse(cursor.record()).map_err(|_| corrupt(cursor.page()))?;
                self.take(&record)?;
            }
            cursor.advance(&state.valid).await?;
        }
        Ok(())
    }

    fn take(&mut self, record: &Record<'_>) -> Result<(), Error> {
        let header = record.header;
        let is_wanted = header.kind == Kind::Value
            && KeyspaceId::of(&header) == self.keyspace
            && record.key.starts_with(self.prefix)
            && self.engine.is_live(&header, self.now_ms);
        if is_wanted { (self.show)(record) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_tile_the_hash_space() {
        for slices in [1, 2, 3, 7, 1000, 65537] {
            let mut next = 0u128;
            for number in 0..slices {
                let slice = bounds(number, slices);
                assert_eq!(slice.start().0, next);
                next = slice.end().0.wrapping_add(1);
            }
            assert_eq!(next, 0);
        }
    }
}
