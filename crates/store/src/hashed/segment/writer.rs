//! Writes one segment: records in hash-key order go in, pages go out as they fill, strictly in sequence.
//!
//! Nothing refers to the segment before the manifest does, so a crash on the way leaves only free extents.

use super::lapsed::Lapsed;
use super::local_index::{FenceBuilder, LocalIndex};
use super::segment_names::SegmentName;
use super::view::Segment;
use super::{Descriptor, LargeEntry};
use crate::hashed::large::{LargeEntries, LargeExtents};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use tapetum_base::error::Error;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::media::extents::ExtentReservation;
use tapetum_base::media::geometry::Geometry;
use tapetum_base::media::io::{Io, lock};
use tapetum_base::media::row_end::end_row;
use tapetum_base::media::transfer::Transfer;
use tapetum_drive::LocalBuffer;
use tapetum_kernels::data_page::{PAGE_BYTES, PageSize, SegmentSalt, Trailer, record_checksum};
use tapetum_kernels::expiry::Expiry;
use tapetum_kernels::fence_page::{self, FENCE_PAYLOAD_BYTES};
use tapetum_kernels::hash::HashKey;
use tapetum_kernels::key_table::{Entry, PageBuilder, Routes};
use tapetum_kernels::record::Header;

/// The longest write.
const STAGE_BYTES_MAX: u64 = 256 << 10;
/// Writes on their way at once: behind many readers each takes a while.
const DEPTH: usize = 4;

fn stage_bytes(geometry: &Geometry) -> usize {
    geometry.extent_bytes.min(STAGE_BYTES_MAX) as usize
}

/// Pages that fill extents one behind the other; some stages are on their way to flash while one is filled.
struct PageStream {
    io: Io,
    geometry: Geometry,
    page_bytes: usize,
    extents: Vec<u32>,
    filling: LocalBuffer,
    writing: VecDeque<Transfer>,
    /// Pages in the stage being filled.
    filled: u32,
    pages: u32,
}

impl PageStream {
    async fn new(io: &Io, geometry: &Geometry, page_bytes: usize) -> Result<PageStream, Error> {
        Ok(PageStream {
            io: io.clone(),
            geometry: *geometry,
            page_bytes,
            extents: Vec::new(),
            filling: io.allocate(stage_bytes(geometry)).await?,
            writing: VecDeque::new(),
            filled: 0,
            pages: 0,
        })
    }

    /// The bytes of the page that the next [`push`](Self::push) appends, which counts them.
    fn page(&mut self) -> &mut [u8] {
        let at = self.filled as usize * self.page_bytes;
        self.filling.bytes_to_write(at..at + self.page_bytes)
    }

    fn pages_per_extent(&self) -> u32 {
        self.geometry.pages_per_extent(self.page_bytes)
    }

    /// Appends the page that was filled in.
    async fn push(&mut self, reserved: &Mutex<ExtentReservation>) -> Result<(), Error> {
        if self.pages.is_multiple_of(self.pages_per_extent()) {
            self.extents.push(lock(reserved).take().ok_or(Error::FullFlash)?);
        }
        let at = self.filled as usize * self.page_bytes;
        self.io.fill(&mut self.filling, at..at + self.page_bytes);
        self.filled += 1;
        self.pages += 1;
        let is_full = self.filled as usize * self.page_bytes == self.filling.len();
        if !is_full && !self.pages.is_multiple_of(self.pages_per_extent()) {
            return Ok(());
        }
        self.write().await
    }

    /// Starts to write what is filled, and takes another stage to fill.
    async fn write(&mut self) -> Result<(), Error> {
        let next = match self.writing.len() < DEPTH {
            true => self.io.allocate(self.filling.len()).await?,
            false => self.oldest_written().await?,
        };
        let first = self.pages - self.filled;
        let per_extent = self.pages_per_extent();
        let extent = self.extents[(first / per_extent) as usize];
        let flash = self.geometry.extent_offset(extent) + u64::from(first % per_extent) * self.page_bytes as u64;
        let length = self.filled as usize * self.page_bytes;
        let full = std::mem::replace(&mut self.filling, next);
        self.writing.push_back(Transfer::write(&self.io, full, length, flash));
        self.filled = 0;
        Ok(())
    }

    /// Waits for the oldest write that is on its way and takes its stage back.
    async fn oldest_written(&mut self) -> Result<LocalBuffer, Error> {
        let transfer = self.writing.pop_front().expect("the caller knows that there is one");
        let (buffer, result) = transfer.end("write of a segment").await;
        result.map(|()| buffer)
    }

    async fn finish(&mut self, row_bytes: u64) -> Result<(), Error> {
        if self.filled > 0 {
            self.write().await?;
        }
        self.written().await?;
        let in_last = u64::from(self.pages % self.pages_per_extent()) * self.page_bytes as u64;
        match self.extents.last() {
            Some(last) if in_last > 0 => {
                end_row(&self.io, &self.geometry, row_bytes, self.geometry.extent_offset(*last) + in_last).await
            }
            _ => Ok(()),
        }
    }

    /// Waits until nothing is on its way to flash.
    async fn written(&mut self) -> Result<(), Error> {
        while !self.writing.is_empty() {
            self.oldest_written().await?;
        }
        Ok(())
    }
}

pub struct SegmentWriter {
    geometry: Geometry,
    store_id: u64,
    routes: Routes,
    /// Segments that are written at once share it.
    reserved: Arc<Mutex<ExtentReservation>>,
    salt: SegmentSalt,
    data: PageStream,
    keys: PageStream,
    /// Bytes in the data page that is being filled.
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
    /// When the first record expires.
    expiry_min: Expiry,
    /// A record never expires.
    some_stay: bool,
    large: LargeEntries,
}

/// The store that a segment belongs to, and how it routes keys.
#[derive(Clone, Copy)]
pub struct SegmentStore {
    pub id: u64,
    pub routes: Routes,
}

impl SegmentWriter {
    pub async fn new(
        io: &Io,
        geometry: &Geometry,
        store: SegmentStore,
        reserved: Arc<Mutex<ExtentReservation>>,
        name: SegmentName,
        page_size: PageSize,
        key_table_bytes_max: u64,
    ) -> Result<SegmentWriter, Error> {
        Ok(SegmentWriter {
            geometry: *geometry,
            store_id: store.id,
            routes: store.routes,
            reserved,
            salt: SegmentSalt { store: store.id, version: name.version },
            data: PageStream::new(io, geometry, page_size.bytes()).await?,
            keys: PageStream::new(io, geometry, PAGE_BYTES).await?,
            page_filled: 0,
            page_trailer: Trailer { first: 0, starts: 0, entry_first: 0 },
            entries_begun: 0,
            key_page: PageBuilder::default(),
            key_page_first: 0,
            key_table: Vec::new(),
            key_table_bytes_max,
            fences: FenceBuilder::new(geometry, page_size),
            last_hash: None,
            descriptor: Descriptor {
                number: name.number,
                version: name.version,
                entries: 0,
                data_pages: 0,
                data_page_size: page_size,
                key_pages: 0,
                fence_pages: 0,
                record_bytes_max: 0,
                record_bytes: 0,
                expiry_max: Expiry::NONE,
                stamp_max: 0,
                data_extents: Vec::new(),
                key_extents: Vec::new(),
                large: Vec::new(),
            },
            expiry_min: Expiry::NEVER,
            some_stay: false,
            large: LargeEntries::new(),
        })
    }

    fn page_size(&self) -> PageSize {
        self.descriptor.data_page_size
    }

    /// Bytes of the record stream that the page being filled has room for.
    fn page_room(&self) -> usize {
        self.page_size().payload_bytes() - self.page_filled
    }

    fn stream_end(&self) -> u64 {
        self.page_size().address(self.data.pages) + self.page_filled as u64
    }

    /// The number of records so far.
    pub fn entries(&self) -> u32 {
        self.fences.entries()
    }

    /// Local memory that a writer takes at most.
    pub fn local_bytes_max(geometry: &Geometry) -> usize {
        const STREAMS: usize = 2;
        STREAMS * (DEPTH + 1) * stage_bytes(geometry)
    }

    /// Appends a record, whose crc field is filled in on the way. Hash keys must ascend.
    pub async fn add(&mut self, hash: HashKey, header: &Header, record: &[u8]) -> Result<(), Error> {
        assert!(self.last_hash.is_none_or(|last| last < hash), "records of a segment must ascend");
        self.last_hash = Some(hash);
        let key = &record[header.header_bytes()..][..header.key_bytes as usize];
        let entry = Entry::of_record(hash, header, key, record.len() as u32, self.routes);
        if !self.key_page.fits(&entry) {
            self.write_key_page().await?;
        }
        if self.key_page.is_empty() {
            self.fences.begin_key_page(hash);
        }
        self.key_page.push(entry);
        let address = self.fences.add(hash, KeyspaceId::of(header), record.len() as u32);
        while self.stream_end() < address {
            let gap = (address - self.stream_end()).min(self.page_room() as u64) as usize;
            self.data.page()[self.page_filled..self.page_filled + gap].fill(0);
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
        match header.expiry {
            Expiry::NONE => self.some_stay = true,
            expiry => {
                descriptor.expiry_max = descriptor.expiry_max.max(expiry);
                self.expiry_min = self.expiry_min.min(expiry);
            }
        }
        Ok(())
    }

    /// Says that the record that was added last is a reference, and whose extents it names.
    pub fn own_large(&mut self, header: &Header, extents: Arc<LargeExtents>) {
        let entry = self.fences.entries() - 1;
        let runs = extents.runs().to_vec();
        let (keyspace, expiry, stamp) = (KeyspaceId::of(header), header.expiry, header.stamp);
        self.descriptor.large.push(LargeEntry { entry, keyspace, expiry, stamp, runs });
        self.large.insert(entry, extents);
    }

    async fn append(&mut self, mut bytes: &[u8]) -> Result<(), Error> {
        while !bytes.is_empty() {
            let take = bytes.len().min(self.page_room());
            self.data.page()[self.page_filled..self.page_filled + take].copy_from_slice(&bytes[..take]);
            self.page_filled += take;
            bytes = &bytes[take..];
            self.page_full().await?;
        }
        Ok(())
    }

    async fn page_full(&mut self) -> Result<(), Error> {
        if self.page_room() > 0 {
            return Ok(());
        }
        let number = self.data.pages;
        self.page_trailer.encode(self.salt, number, self.data.page());
        self.data.push(&self.reserved).await?;
        self.page_filled = 0;
        self.page_trailer = Trailer { first: 0, starts: 0, entry_first: self.entries_begun };
        Ok(())
    }

    async fn write_key_page(&mut self) -> Result<(), Error> {
        let number = self.keys.pages;
        let page = self.keys.page();
        self.key_page.encode(self.salt, number, self.key_page_first, page);
        self.key_table.extend_from_slice(page);
        self.key_page_first = self.fences.entries();
        if self.key_table.len() as u64 > self.key_table_bytes_max {
            self.key_table = Vec::new();
            self.key_table_bytes_max = 0;
        }
        self.keys.push(&self.reserved).await
    }

    async fn write_fences(&mut self, local_index: &LocalIndex) -> Result<(), Error> {
        for (number, payload) in local_index.encode().chunks(FENCE_PAYLOAD_BYTES).enumerate() {
            fence_page::encode(self.salt, number as u32, payload, self.keys.page());
            self.keys.push(&self.reserved).await?;
        }
        self.descriptor.fence_pages = self.keys.pages - self.descriptor.key_pages;
        Ok(())
    }

    /// Gives back the extents once no write to them is in flight: the segment is abandoned.
    pub async fn give_up(mut self) -> Result<(), Error> {
        for stream in [&mut self.data, &mut self.keys] {
            stream.written().await?;
            stream.extents.drain(..).for_each(|extent| lock(&self.reserved).give_back(extent));
        }
        Ok(())
    }

    /// Writes the rest. The segment is complete on the drive, not yet durable, and in no manifest. Its key table comes with it, unless that is longer
    /// than may be kept.
    pub async fn finish(mut self) -> Result<(Segment, Option<Vec<u8>>), Error> {
        if self.page_filled > 0 {
            self.data.page()[self.page_filled..].fill(0);
            self.page_filled = self.page_size().payload_bytes();
            self.page_full().await?;
        }
        if !self.key_page.is_empty() {
            self.write_key_page().await?;
        }
        self.descriptor.entries = self.fences.entries();
        self.descriptor.data_pages = self.data.pages;
        self.descriptor.key_pages = self.keys.pages;
        let fences = FenceBuilder::new(&self.geometry, self.page_size());
        let local_index = std::mem::replace(&mut self.fences, fences).build();
        assert_eq!((local_index.data.pages(), local_index.key_pages()), (self.data.pages, self.keys.pages));
        self.write_fences(&local_index).await?;
        let row_bytes = lock(&self.reserved).row_bytes();
        self.data.finish(row_bytes).await?;
        self.keys.finish(row_bytes).await?;
        self.descriptor.data_extents = std::mem::take(&mut self.data.extents);
        self.descriptor.key_extents = std::mem::take(&mut self.keys.extents);
        if self.some_stay && !self.descriptor.expiry_max.is_none() {
            self.descriptor.expiry_max = Expiry::NEVER;
        }
        let mut segment = Segment::new(self.descriptor, self.store_id, self.geometry, local_index);
        segment.lapsed = Lapsed::of_new(self.expiry_min.secs());
        segment.own_large(self.large);
        Ok((segment, (!self.key_table.is_empty()).then_some(self.key_table)))
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::hashed::HashedEngine;
    use crate::hashed::collect::victim::tests::{SMALL_BYTES, small_options, store_in_memory};
    use tapetum_base::media::extents::ExtentOwner;
    use tapetum_base::media::io::run;
    use tapetum_kernels::record::Record;

    /// Writes `records` records of 300 bytes and more, as they would be in a segment.
    pub async fn fill(engine: &HashedEngine, io: &Io, key_table_bytes_max: u64, records: u8) -> SegmentWriter {
        let (reserved, size) = (ExtentReservation::up_to(&engine.extents, ExtentOwner::Flush, 8), PageSize::Large);
        let writer = SegmentWriter::new(
            io,
            &engine.geometry,
            SegmentStore { id: 1, routes: Routes::Keyspaces },
            Arc::new(Mutex::new(reserved)),
            SegmentName { number: 0, version: 1 },
            size,
            key_table_bytes_max,
        )
        .await;
        let mut writer = writer.unwrap();
        for number in 0..records {
            let (key, stored) = ([number; 4], [number; 300]);
            let record = Record { header: Header::value(1, key.len(), stored.len()), key: &key, stored: &stored };
            let mut bytes = vec![0; record.header.record_bytes()];
            record.encode(&mut bytes);
            writer.add(HashKey(u128::from(number) << 100), &record.header, &bytes).await.unwrap();
        }
        writer
    }

    #[test]
    fn a_key_table_is_kept_that_is_no_longer_than_was_asked_for() {
        let (drive, store) = store_in_memory(SMALL_BYTES, &small_options());
        let (engine, io) = (store.hashed(), Io::new(drive.queue_pair(16).unwrap()));
        let page_bytes = PAGE_BYTES as u64;
        for (bytes_max, kept) in [(page_bytes, true), (page_bytes + 1, true), (page_bytes - 1, false), (0, false)] {
            let finished = async { fill(engine, &io, bytes_max, 10).await.finish().await };
            let (segment, key_table) = run(&io, finished, || false).unwrap().unwrap();
            assert_eq!((segment.key_pages(), key_table.map(|table| table.len())), (1, kept.then_some(PAGE_BYTES)));
        }
    }

    #[test]
    fn a_segment_that_is_not_to_be_gives_its_extents_back() {
        let (drive, store) = store_in_memory(SMALL_BYTES, &small_options());
        let (engine, io) = (store.hashed(), Io::new(drive.queue_pair(16).unwrap()));
        let free = || lock(&engine.extents).free_count();
        let before = free();
        let writing = async {
            let writer = fill(engine, &io, 0, 200).await;
            assert!(free() < before);
            writer.give_up().await
        };
        run(&io, writing, || false).unwrap().unwrap();
        assert_eq!(free(), before);
    }
}
