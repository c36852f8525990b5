//! The local index of a segment: its data fences, its key fences and the shares of its keyspaces, in host memory and on flash.
//!
//! On flash it lies behind the key table, cut into checked pages (`kernels::fence_page`), so that opening a segment reads a
//! few pages and not its key table:
//! ```text
//!  data fences (kernels::fences) · top 32 bits of the first hash key of each key-table page, u32 each · keyspace shares
//! ```

use super::keyspace_shares::{KeyspaceShares, ShareBuilder};
use super::layout::stream_layout;
use std::ops::Range;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::media::geometry::Geometry;
use tapetum_kernels::data_page::PageSize;
use tapetum_kernels::fences::{Fences, PageStarts};
use tapetum_kernels::hash::HashKey;
use tapetum_kernels::stream_layout::StreamLayout;

#[derive(PartialEq, Eq, Debug)]
pub struct LocalIndex {
    /// In which data page a record starts.
    pub data: Fences,
    /// The top 32 bits of the first hash key of each key-table page.
    keys: Box<[u32]>,
    pub shares: KeyspaceShares,
}

impl LocalIndex {
    /// The local index of a segment without pages.
    pub fn empty() -> LocalIndex {
        LocalIndex { data: Fences::build(&[]), keys: Box::default(), shares: KeyspaceShares::default() }
    }

    pub fn key_pages(&self) -> u32 {
        self.keys.len() as u32
    }

    /// Host memory in bytes.
    pub fn bytes(&self) -> usize {
        self.data.bytes() + self.keys.len() * 4 + self.shares.bytes()
    }

    /// The key-table pages that may hold hash keys from `low` to `high`, both included.
    pub fn key_pages_between(&self, low: HashKey, high: HashKey) -> Range<u32> {
        let (low, high) = ((low.prefix() >> 32) as u32, (high.prefix() >> 32) as u32);
        // The page before the first fence that reaches `low` may still hold it.
        let start = self.keys.partition_point(|&fence| fence < low).saturating_sub(1);
        let end = self.keys.partition_point(|&fence| fence <= high);
        start as u32..(end as u32).max(start as u32)
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.data.encode(&mut bytes);
        self.keys.iter().for_each(|fence| bytes.extend_from_slice(&fence.to_le_bytes()));
        self.shares.encode(&mut bytes);
        bytes
    }

    /// Reads what `encode` wrote for a segment with so many key-table pages; zeros may follow.
    pub fn parse(bytes: &[u8], key_pages: u32) -> Option<LocalIndex> {
        let (data, rest) = Fences::parse(bytes)?;
        let (keys, rest) = rest.split_at_checked(key_pages as usize * 4)?;
        let fence = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
        let keys: Box<[u32]> = keys.chunks_exact(4).map(fence).collect();
        keys.is_sorted().then(|| LocalIndex { data, keys, shares: KeyspaceShares::parse(rest) })
    }
}

/// Gathers a segment's fences from its entries in order.
#[derive(Debug)]
pub struct FenceBuilder {
    layout: StreamLayout,
    page_size: PageSize,
    /// The first and last hash prefix of the records that start in each data page so far; `None` where none does.
    data: Vec<Option<PageStarts>>,
    keys: Vec<u32>,
    shares: ShareBuilder,
    entries: u32,
}

impl FenceBuilder {
    pub fn new(geometry: &Geometry, page_size: PageSize) -> FenceBuilder {
        let layout = stream_layout(geometry, page_size);
        FenceBuilder {
            layout,
            page_size,
            data: Vec::new(),
            keys: Vec::new(),
            shares: ShareBuilder::default(),
            entries: 0,
        }
    }

    /// Takes the next entry; returns its record's address in the stream.
    pub fn add(&mut self, hash: HashKey, keyspace: KeyspaceId, size_bytes: u32) -> u64 {
        self.shares.add(keyspace, size_bytes);
        let address = self.layout.place(u64::from(size_bytes));
        let page = self.page_size.page_of(address) as usize;
        if self.data.len() <= page {
            self.data.resize(page + 1, None);
        }
        let prefix = hash.prefix();
        self.data[page].get_or_insert(PageStarts { first: prefix, last: prefix }).last = prefix;
        self.entries += 1;
        address
    }

    /// The possible places of the next entry's record if its length is not known.
    pub fn places_next(&self) -> [u64; 2] {
        self.layout.places_next()
    }

    /// Notes that the next entry is the first of a key-table page.
    pub fn begin_key_page(&mut self, hash: HashKey) {
        self.keys.push((hash.prefix() >> 32) as u32);
    }

    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// Pages that the stream fills, the last one perhaps in part.
    pub fn data_pages(&self) -> u32 {
        self.layout.end().div_ceil(self.page_size.payload_bytes() as u64) as u32
    }

    pub fn build(mut self) -> LocalIndex {
        let data_pages = self.data_pages();
        self.data.resize(data_pages as usize, None);
        LocalIndex { data: Fences::build(&self.data), keys: self.keys.into(), shares: self.shares.build() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pages_between_two_hash_keys_are_those_that_may_hold_them_and_no_others() {
        let geometry = Geometry::new(4 << 20, 64 << 10, 2, 512).unwrap();
        let mut builder = FenceBuilder::new(&geometry, PageSize::Large);
        let hash = |entry: u128| HashKey(entry << 116);
        for entry in 0..1000 {
            if entry % 200 == 0 {
                builder.begin_key_page(hash(entry));
            }
            builder.add(hash(entry), KeyspaceId(3), 60);
        }
        let index = builder.build();
        assert_eq!((index.key_pages(), index.bytes()), (5, index.data.bytes() + 5 * 4 + index.shares.bytes()));
        assert!(index.data.bytes() > 0);
        let between = |low, high| index.key_pages_between(hash(low), hash(high));
        assert_eq!([between(0, 0), between(199, 199), between(201, 201), between(999, 999)], [0..1, 0..1, 1..2, 4..5]);
        assert_eq!([between(1, 201), between(399, 401), between(0, 999)], [0..2, 1..3, 0..5]);
        assert_eq!(between(200, 200), 0..2, "the page before may end with others of these bits");
    }

    #[test]
    fn what_is_encoded_is_parsed() {
        let geometry = Geometry::new(4 << 20, 64 << 10, 2, 512).unwrap();
        let mut builder = FenceBuilder::new(&geometry, PageSize::Large);
        for entry in 0..1000u128 {
            let hash = HashKey(entry << 116);
            if entry % 200 == 0 {
                builder.begin_key_page(hash);
            }
            builder.add(hash, KeyspaceId((entry % 3) as u16), if entry % 100 == 0 { 9000 } else { 60 });
        }
        let index = builder.build();
        let mut bytes = index.encode();
        assert!(LocalIndex::parse(&bytes, 6).is_none(), "one more key page than there is");
        bytes.extend_from_slice(&[0; 100]);
        assert_eq!(LocalIndex::parse(&bytes, 5), Some(index));
    }
}
