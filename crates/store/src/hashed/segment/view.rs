//! A segment as readers see it: the possible places of a key's record, and the bytes to read for it. Immutable.

use super::Descriptor;
use super::lapsed::Lapsed;
use super::layout::stream_layout;
use super::local_index::LocalIndex;
use crate::hashed::catalog::Bitmap;
use crate::hashed::large::{LargeEntries, LargeExtents};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock};
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::media::flash_run::FlashRun;
use tapetum_base::media::geometry::Geometry;
use tapetum_base::media::io::lock;
use tapetum_kernels::data_page::{PAGE_BYTES, PageSize, SegmentSalt};
use tapetum_kernels::hash::HashKey;
use tapetum_kernels::prefetch::prefetch;

#[derive(Debug)]
pub struct Segment {
    pub descriptor: Descriptor,
    pub salt: SegmentSalt,
    geometry: Geometry,
    pub local_index: LocalIndex,
    record_bytes_mean: usize,
    /// The catalog's map, seen from here too.
    valid: OnceLock<Bitmap>,
    /// The extents of large values whose records are here and alive.
    large: Mutex<LargeEntries>,
    pub lapsed: Lapsed,
    /// Pages of the key table that were rebuilt.
    mended: Mutex<BTreeSet<u32>>,
}

impl Segment {
    pub fn new(descriptor: Descriptor, store_id: u64, geometry: Geometry, local_index: LocalIndex) -> Segment {
        let salt = SegmentSalt { store: store_id, version: descriptor.version };
        let record_bytes_mean = (descriptor.record_bytes / u64::from(descriptor.entries).max(1)).max(1) as usize;
        let (valid, large) = (OnceLock::new(), Mutex::default());
        let (lapsed, mended) = (Lapsed::default(), Mutex::default());
        Segment { descriptor, salt, geometry, local_index, record_bytes_mean, valid, large, lapsed, mended }
    }

    /// Notes pages of the key table that were rebuilt. Returns how many of them are new: several threads may read one segment.
    pub fn note_mended(&self, pages: &[u32]) -> usize {
        let mut mended = lock(&self.mended);
        pages.iter().filter(|page| mended.insert(**page)).count()
    }

    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Shows readers the catalog's validity map.
    pub fn attach(&self, valid: &Bitmap) {
        assert!(self.valid.set(valid.clone()).is_ok(), "a segment is installed once");
    }

    /// Takes over the extents of its large values.
    pub fn own_large(&self, large: LargeEntries) {
        *lock(&self.large) = large;
    }

    /// The extents of a large value; `None` when its record is dead.
    pub fn large(&self, entry: u32) -> Option<Arc<LargeExtents>> {
        lock(&self.large).get(&entry).cloned()
    }

    pub fn all_large(&self) -> Vec<Arc<LargeExtents>> {
        lock(&self.large).values().cloned().collect()
    }

    /// Releases the large values of records that are durably dead.
    pub fn forget_large(&self, dead: &[u32]) {
        let mut large = lock(&self.large);
        if !large.is_empty() {
            dead.iter().for_each(|entry| {
                large.remove(entry);
            });
        }
    }

    /// Extents of large values that nobody else holds: they are freed with the segment.
    pub fn large_extents_alone(&self) -> u64 {
        let large = lock(&self.large);
        large.values().filter(|extents| Arc::strong_count(extents) == 1).map(|extents| extents.count()).sum()
    }

    pub fn record_bytes_mean(&self) -> usize {
        self.record_bytes_mean
    }

    /// Whether a record is valid: it may be found dead where the index took another key's entry for it.
    pub fn is_valid(&self, entry: u32) -> bool {
        self.valid.get().is_some_and(|valid| entry < self.descriptor.entries && valid.get(entry))
    }

    /// Whether it may have an item of a keyspace: not if it has no record of it, or none that was written after everything was deleted, or if all
    /// of its records have expired.
    pub fn may_show(&self, keyspace: KeyspaceId, deleted_through: u64, now_ms: u64) -> bool {
        let Descriptor { stamp_max, expiry_max, .. } = self.descriptor;
        let may_have = self.local_index.shares.may_have(keyspace);
        may_have && stamp_max > deleted_through && !expiry_max.has_passed(now_ms)
    }

    /// The catalog's map, once it is installed.
    pub fn validity(&self) -> Option<Bitmap> {
        self.valid.get().cloned()
    }

    pub fn valid_entries(&self) -> u32 {
        self.valid.get().map_or(0, Bitmap::ones)
    }

    /// How many of some entries are valid.
    pub fn valid_among(&self, entries: &[u64]) -> u32 {
        self.valid.get().map_or(0, |valid| valid.ones_among(entries))
    }

    pub fn key_pages(&self) -> u32 {
        self.descriptor.key_pages
    }

    /// The pages behind the key table that hold the fences.
    pub fn fence_pages(&self) -> Range<u32> {
        let Descriptor { key_pages, fence_pages, .. } = self.descriptor;
        key_pages..key_pages + fence_pages
    }

    /// Host memory of the local index, and of what is known to have expired, in bytes.
    pub fn index_bytes(&self) -> usize {
        self.local_index.bytes() + self.lapsed.bytes()
    }

    /// The data pages in which the record of `hash` may start: one, or more when a fence ties.
    pub fn start_pages(&self, hash: HashKey) -> Range<u32> {
        let pages = self.local_index.data.start_pages(hash.prefix());
        if pages.is_empty() { 0..0 } else { *pages.start()..*pages.end() + 1 }
    }

    /// Prefetches the lines that [`Segment::start_pages`] and [`Segment::data_runs`] will read.
    pub fn prefetch(&self, hash: HashKey) {
        self.local_index.data.prefetch(hash.prefix());
        let extents = &self.descriptor.data_extents;
        // Hash keys are spread evenly, so it is about there.
        let place = (u128::from(hash.prefix()) * extents.len() as u128) >> 64;
        prefetch(extents.as_ptr().wrapping_add(place as usize));
    }

    /// Prefetches the line that [`Segment::is_valid`] will read.
    pub fn prefetch_validity(&self, entry: u64) {
        if let Some(valid) = self.valid.get() {
            valid.prefetch(entry);
        }
    }

    pub fn page_size(&self) -> PageSize {
        self.descriptor.data_page_size
    }

    /// How many bytes of the data area, from the start of `page`, hold every record that starts in `page`.
    pub fn span_bytes(&self, page: u32) -> u32 {
        let page_bytes = self.page_size().bytes() as u32;
        let payload = self.page_size().payload_bytes() as u64;
        let next_start = self.local_index.data.next_start(page).min(self.descriptor.data_pages);
        let longest_end = (u64::from(page) + 1) * payload - 1 + u64::from(self.descriptor.record_bytes_max);
        let next_end = (u64::from(next_start.min(self.descriptor.data_pages - 1)) + 1) * payload;
        let end = longest_end.min(next_end);
        let end_page = ((end - 1) / payload) as u32;
        let in_end_page = (end - u64::from(end_page) * payload) as u32;
        let mut bytes = (end_page - page) * page_bytes;
        bytes += if end_page == page || u64::from(in_end_page) == payload {
            page_bytes
        } else {
            in_end_page.next_multiple_of(self.geometry.sector_bytes)
        };
        // A small record never crosses an extent's end, and a large one leaves pages behind it in which none starts.
        let small_bytes_max = stream_layout(&self.geometry, self.page_size()).small_bytes_max();
        let no_large_one = u64::from(next_start - page) < small_bytes_max / payload
            || u64::from(self.descriptor.record_bytes_max) <= small_bytes_max;
        if no_large_one {
            let per_extent = self.geometry.pages_per_extent(page_bytes as usize);
            bytes = bytes.min((per_extent - page % per_extent) * page_bytes);
        }
        bytes
    }

    /// The read commands for `length` bytes of the data area from the start of `page`.
    pub fn data_runs(&self, page: u32, length: u32) -> impl Iterator<Item = FlashRun> + '_ {
        self.runs(&self.descriptor.data_extents, u64::from(page) * self.page_size().bytes() as u64, length)
    }

    /// The most that [`Segment::data_runs`] of `length` bytes may be.
    pub fn data_runs_max(&self, length: u32) -> usize {
        (u64::from(length) / self.geometry.extent_bytes) as usize + 2
    }

    /// The read commands for whole pages of the key table, or of the fences behind it.
    pub fn key_runs(&self, pages: Range<u32>) -> impl Iterator<Item = FlashRun> + '_ {
        self.runs(
            &self.descriptor.key_extents,
            u64::from(pages.start) * PAGE_BYTES as u64,
            pages.len() as u32 * PAGE_BYTES as u32,
        )
    }

    /// The read commands for `length` bytes from `start` on of what lies in `extents`.
    fn runs<'a>(&'a self, extents: &'a [u32], start: u64, length: u32) -> impl Iterator<Item = FlashRun> + 'a {
        // The place of the bytes at `at`, and how many follow them in their extent.
        let extent = move |at: u32| {
            let (place, extent_bytes) = (start + u64::from(at), self.geometry.extent_bytes);
            let (extent, within) = (extents[(place / extent_bytes) as usize], place % extent_bytes);
            let in_extent = (extent_bytes - within).min(u64::from(length - at));
            (self.geometry.extent_offset(extent) + within, in_extent as u32)
        };
        let mut at = 0;
        std::iter::from_fn(move || {
            if at == length {
                return None;
            }
            let (flash, taken) = extent(at);
            let mut run = FlashRun { flash, at, length: taken };
            at += taken;
            while at < length {
                let (flash, taken) = extent(at);
                if flash != run.flash + u64::from(run.length) {
                    break;
                }
                run.length += taken;
                at += taken;
            }
            Some(run)
        })
    }

    /// The key-table pages that may hold hash keys from `low` to `high`, both included.
    pub fn key_pages_between(&self, low: HashKey, high: HashKey) -> Range<u32> {
        self.local_index.key_pages_between(low, high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hashed::catalog::tests::descriptor;
    use crate::hashed::segment::local_index::FenceBuilder;

    #[test]
    fn an_entry_is_valid_that_is_there_and_not_dead() {
        let geometry = Geometry::new(4 << 20, 64 << 10, 2, 512).unwrap();
        let mut fences = FenceBuilder::new(&geometry, PageSize::Large);
        fences.begin_key_page(HashKey(0));
        fences.add(HashKey(0), KeyspaceId::DEFAULT, 10);
        let local_index = fences.build();
        let index_bytes = local_index.bytes();
        let segment = Segment::new(Descriptor { record_bytes: 99, ..descriptor(1, 9) }, 1, geometry, local_index);
        assert_eq!((segment.record_bytes_mean(), segment.index_bytes()), (11, index_bytes));
        assert!(!segment.is_valid(0), "nothing is attached");
        let valid = Bitmap::full(9);
        segment.attach(&valid);
        assert!(segment.is_valid(0) && segment.is_valid(8) && !segment.is_valid(9));
        valid.clear(8);
        assert!(!segment.is_valid(8) && segment.is_valid(7));
    }

    #[test]
    fn neighbours_are_read_by_one_command() {
        let geometry = Geometry::new(4 << 20, 64 << 10, 2, 512).unwrap();
        let extent = geometry.extent_bytes as u32;
        let data_extents = vec![3, 4, 9];
        let segment = Segment::new(Descriptor { data_extents, ..descriptor(1, 9) }, 1, geometry, LocalIndex::empty());
        let at = |extent| geometry.extent_offset(extent);
        let runs = |page, length| segment.data_runs(page, length).collect::<Vec<_>>();
        let last = FlashRun { flash: at(9), at: 2 * extent, length: 512 };
        assert_eq!(runs(0, 2 * extent + 512), [FlashRun { flash: at(3), at: 0, length: 2 * extent }, last]);
        let pages = extent / PageSize::Large.bytes() as u32;
        assert_eq!(runs(pages, 512), [FlashRun { flash: at(4), at: 0, length: 512 }]);
    }

    #[test]
    fn as_much_is_read_as_the_records_of_a_page_may_reach() {
        let geometry = Geometry::new(1 << 30, 2 << 20, 2, 512).unwrap();
        let per_extent = geometry.pages_per_extent(PageSize::Large.bytes());
        let mut fences = FenceBuilder::new(&geometry, PageSize::Large);
        fences.begin_key_page(HashKey(0));
        let mut entries = 0;
        while fences.data_pages() < 2 * per_extent {
            fences.add(HashKey(entries << 90), KeyspaceId::DEFAULT, 60);
            entries += 1;
        }
        let data_pages = fences.data_pages();
        let index = fences.build();
        let encoded = index.encode();
        let spans = |record_bytes_max| {
            let descriptor = Descriptor { data_pages, record_bytes_max, ..descriptor(1, entries as u32) };
            let index = LocalIndex::parse(&encoded, 1).unwrap();
            let segment = Segment::new(descriptor, 1, geometry, index);
            [0, per_extent - 1, data_pages - 1].map(|page| segment.span_bytes(page))
        };
        // The last record that starts in a page goes on in the next by so much, or there is no next in its extent.
        assert_eq!(spans(1), [4096, 4096, 4096]);
        assert_eq!(spans(60), [4096 + 512, 4096, 4096]);
        assert_eq!(spans(514), [4096 + 1024, 4096, 4096]);
        // One that is longer than a quarter of an extent crosses its end.
        assert_eq!(spans(60_000), [8192, 8192, 4096]);
    }
}
