//! Writes one segment: records in hash-key order go in, pages go out as they fill, strictly in sequence.
//!
//! Nothing refers to the segment before the manifest does, so a crash on the way leaves only free extents.

use super::local_index::{FenceBuilder, LocalIndex};
use super::view::Segment;
use super::{Descriptor, LargeEntry};
use crate::error::Error;
use crate::extents::Extents;
use crate::geometry::Geometry;
use crate::io::{Io, Tag, lock, succeeded};
use crate::large::{LargeEntries, LargeExtents};
use std::sync::{Arc, Mutex};
use tapetum_drive::LocalBuffer;
use tapetum_kernels::data_page::{PAGE_BYTES, PAGE_PAYLOAD_BYTES, SegmentSalt, Trailer, record_checksum};
use tapetum_kernels::fence_page::{self, FENCE_PAYLOAD_BYTES};
use tapetum_kernels::hash::HashKey;
use tapetum_kernels::key_table::{Entry, PageBuilder};
use tapetum_kernels::record::Header;

const STAGING_BYTES_MAX: u64 = 256 << 10;

/// Pages that fill extents one behind the other; one half of the staging is filled while the other is written.
struct PageStream {
    io: Io,
    geometry: Geometry,
    extents: Vec<u32>,
    /// Two halves.
    staging: Vec<LocalBuffer>,
    in_flight: [Option<Tag>; 2],
    half: usize,
    /// Pages in the half being filled.
    filled: u32,
    pages: u32,
}

impl Drop for PageStream {
    /// Given up with writes on their way: the drive still reads what they write.
    fn drop(&mut self) {
        for (buffer, tag) in self.staging.drain(..).zip(self.in_flight) {
            if let Some(tag) = tag {
                self.io.abandon(vec![tag], buffer);
            }
        }
    }
}

impl PageStream {
    async fn new(io: &Io, geometry: &Geometry) -> Result<PageStream, Error> {
        let bytes = geometry.extent_bytes.min(STAGING_BYTES_MAX) as usize;
        Ok(PageStream {
            io: io.clone(),
            geometry: *geometry,
            extents: Vec::new(),
            staging: vec![io.allocate(bytes).await?, io.allocate(bytes).await?],
            in_flight: [None, None],
            half: 0,
            filled: 0,
            pages: 0,
        })
    }

    /// Appends a page.
    async fn push(&mut self, page: &[u8], allocator: &Mutex<Extents>) -> Result<(), Error> {
        if self.pages.is_multiple_of(self.geometry.pages_per_extent()) {
            self.extents.push(lock(allocator).allocate().ok_or(Error::FullFlash)?);
        }
        let at = self.filled as usize * PAGE_BYTES;
        self.staging[self.half].bytes_mut()[at..at + PAGE_BYTES].copy_from_slice(page);
        self.filled += 1;
        self.pages += 1;
        let full = self.filled as usize * PAGE_BYTES == self.staging[0].len().min(STAGING_BYTES_MAX as usize)
            || self.pages.is_multiple_of(self.geometry.pages_per_extent());
        if full { self.write_half().await } else { Ok(()) }
    }

    async fn write_half(&mut self) -> Result<(), Error> {
        if self.filled == 0 {
            return Ok(());
        }
        let first = self.pages - self.filled;
        let per_extent = self.geometry.pages_per_extent();
        let extent = self.extents[(first / per_extent) as usize];
        let flash = self.geometry.extent_offset(extent) + u64::from(first % per_extent) * PAGE_BYTES as u64;
        let length = self.filled as usize * PAGE_BYTES;
        self.in_flight[self.half] = Some(self.io.start_write(flash, &self.staging[self.half], 0, length, false));
        self.half ^= 1;
        self.filled = 0;
        self.settle(self.half).await
    }

    async fn settle(&mut self, half: usize) -> Result<(), Error> {
        match self.in_flight[half].take() {
            Some(tag) => succeeded(self.io.finish(tag).await, "write of a segment"),
            None => Ok(()),
        }
    }

    async fn finish(&mut self) -> Result<(), Error> {
        self.write_half().await?;
        self.settle(0).await?;
        self.settle(1).await
    }
}

pub struct SegmentWriter {
    geometry: Geometry,
    store_id: u64,
    allocator: Arc<Mutex<Extents>>,
    salt: SegmentSalt,
    data: PageStream,
    keys: PageStream,
    page: Box<[u8; PAGE_BYTES]>,
    page_filled: usize,
    page_trailer: Trailer,
    entries_begun: u32,
    key_page: PageBuilder,
    /// The number of the first entry in `key_page`.
    key_page_first: u32,
    /// The key table so far; empty if it is longer than is kept in memory.
    key_table: Vec<u8>,
    key_table_bytes_max: u64,
    fences: FenceBuilder,
    last_hash: Option<HashKey>,
    descriptor: Descriptor,
    large: LargeEntries,
}

impl SegmentWriter {
    pub async fn new(
        io: &Io,
        geometry: &Geometry,
        store_id: u64,
        allocator: &Arc<Mutex<Extents>>,
        (number, version): (u32, u64),
        key_table_bytes_max: u64,
    ) -> Result<SegmentWriter, Error> {
        Ok(SegmentWriter {
            geometry: *geometry,
            store_id,
            allocator: allocator.clone(),
            salt: SegmentSalt { store: store_id, version },
            data: PageStream::new(io, geometry).await?,
            keys: PageStream::new(io, geometry).await?,
            page: Box::new([0; PAGE_BYTES]),
            page_filled: 0,
            page_trailer: Trailer { first: 0, starts: 0, entry_first: 0 },
            entries_begun: 0,
            key_page: PageBuilder::default(),
            key_page_first: 0,
            key_table: Vec::new(),
            key_table_bytes_max,
            fences: FenceBuilder::new(geometry),
            last_hash: None,
            descriptor: Descriptor {
                number,
                version,
                entries: 0,
                data_pages: 0,
                key_pages: 0,
                fence_pages: 0,
                record_bytes_max: 0,
                record_bytes: 0,
                expiry_max: 0,
                stamp_max: 0,
                data_extents: Vec::new(),
                key_extents: Vec::new(),
                large: Vec::new(),
            },
            large: LargeEntries::new(),
        })
    }

    fn stream_end(&self) -> u64 {
        u64::from(self.data.pages) * PAGE_PAYLOAD_BYTES as u64 + self.page_filled as u64
    }

    pub fn record_bytes(&self) -> u64 {
        self.descriptor.record_bytes
    }

    /// Appends a record, whose crc field is filled in on the way. Hash keys must ascend.
    pub async fn add(&mut self, hash: HashKey, header: &Header, record: &[u8]) -> Result<(), Error> {
        assert!(self.last_hash.is_none_or(|last| last < hash), "records of a segment must ascend");
        self.last_hash = Some(hash);
        let entry = Entry { hash, size_bytes: record.len() as u32, route: 0 };
        if !self.key_page.fits(&entry) {
            self.write_key_page().await?;
        }
        if self.key_page.is_empty() {
            self.fences.begin_key_page(hash);
        }
        self.key_page.push(entry);
        let address = self.fences.add(hash, record.len() as u32);
        while self.stream_end() < address {
            let gap = (address - self.stream_end()).min((PAGE_PAYLOAD_BYTES - self.page_filled) as u64) as usize;
            self.page[self.page_filled..self.page_filled + gap].fill(0);
            self.page_filled += gap;
            self.page_full().await?;
        }
        if self.page_trailer.starts == 0 {
            self.page_trailer.first = self.page_filled as u16;
        }
        self.page_trailer.starts += 1;
        self.entries_begun += 1;
        let crc = record_checksum(self.salt, address, record).to_le_bytes();
        self.append(&crc).await?;
        self.append(&record[4..]).await?;
        let descriptor = &mut self.descriptor;
        descriptor.record_bytes_max = descriptor.record_bytes_max.max(record.len() as u32);
        descriptor.record_bytes += record.len() as u64;
        descriptor.stamp_max = descriptor.stamp_max.max(header.stamp);
        descriptor.expiry_max = descriptor.expiry_max.max(if header.expiry == 0 { u32::MAX } else { header.expiry });
        Ok(())
    }

    /// Says that the record that was added last is a reference, and whose extents it names.
    pub fn own_large(&mut self, header: &Header, extents: Arc<LargeExtents>) {
        let entry = self.fences.entries() - 1;
        let runs = extents.runs().to_vec();
        self.descriptor.large.push(LargeEntry { entry, expiry: header.expiry, stamp: header.stamp, runs });
        self.large.insert(entry, extents);
    }

    async fn append(&mut self, mut bytes: &[u8]) -> Result<(), Error> {
        while !bytes.is_empty() {
            let take = bytes.len().min(PAGE_PAYLOAD_BYTES - self.page_filled);
            self.page[self.page_filled..self.page_filled + take].copy_from_slice(&bytes[..take]);
            self.page_filled += take;
            bytes = &bytes[take..];
            self.page_full().await?;
        }
        Ok(())
    }

    async fn page_full(&mut self) -> Result<(), Error> {
        if self.page_filled < PAGE_PAYLOAD_BYTES {
            return Ok(());
        }
        self.page_trailer.encode(self.salt, self.data.pages, &mut self.page[..]);
        self.data.push(&self.page[..], &self.allocator).await?;
        self.page_filled = 0;
        self.page_trailer = Trailer { first: 0, starts: 0, entry_first: self.entries_begun };
        Ok(())
    }

    async fn write_key_page(&mut self) -> Result<(), Error> {
        let mut bytes = [0; PAGE_BYTES];
        self.key_page.encode(self.salt, self.keys.pages, self.key_page_first, &mut bytes);
        self.key_page_first = self.fences.entries();
        self.key_table.extend_from_slice(&bytes);
        if self.key_table.len() as u64 > self.key_table_bytes_max {
            self.key_table = Vec::new();
            self.key_table_bytes_max = 0;
        }
        self.keys.push(&bytes, &self.allocator).await
    }

    async fn write_fences(&mut self, local_index: &LocalIndex) -> Result<(), Error> {
        let mut bytes = [0; PAGE_BYTES];
        for (page, payload) in local_index.encode().chunks(FENCE_PAYLOAD_BYTES).enumerate() {
            fence_page::encode(self.salt, page as u32, payload, &mut bytes);
            self.keys.push(&bytes, &self.allocator).await?;
        }
        self.descriptor.fence_pages = self.keys.pages - self.descriptor.key_pages;
        Ok(())
    }

    /// Writes what is left. The segment is complete on the drive, not yet durable, and in no manifest. Its key table comes
    /// with it, unless that is longer than is kept.
    pub async fn finish(mut self) -> Result<(Segment, Option<Vec<u8>>), Error> {
        if self.page_filled > 0 {
            self.page[self.page_filled..].fill(0);
            self.page_filled = PAGE_PAYLOAD_BYTES;
            self.page_full().await?;
        }
        if !self.key_page.is_empty() {
            self.write_key_page().await?;
        }
        self.descriptor.entries = self.fences.entries();
        self.descriptor.data_pages = self.data.pages;
        self.descriptor.key_pages = self.keys.pages;
        let local_index = std::mem::replace(&mut self.fences, FenceBuilder::new(&self.geometry)).build();
        assert_eq!((local_index.data.pages(), local_index.key_pages()), (self.data.pages, self.keys.pages));
        self.write_fences(&local_index).await?;
        self.data.finish().await?;
        self.keys.finish().await?;
        self.descriptor.data_extents = std::mem::take(&mut self.data.extents);
        self.descriptor.key_extents = std::mem::take(&mut self.keys.extents);
        let segment = Segment::new(self.descriptor, self.store_id, self.geometry, local_index);
        segment.own_large(self.large);
        Ok((segment, (!self.key_table.is_empty()).then_some(self.key_table)))
    }
}
