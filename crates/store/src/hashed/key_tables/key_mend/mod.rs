//! Rebuilds pages of a segment's key table and fences that cannot be read or are damaged: entries from the records, fences from the entries.
//!
//! The pages hold only what the records say, and every record, dead ones too, has a checksum of its own. So a rebuilt page equals the original byte
//! for byte, and after a crash amid its write the page is rebuilt again. No extent is reused meanwhile: a reader of key tables holds the segment.
//! Only records whose entries are lost are read, so damage elsewhere in the segment does not matter. If neighbouring pages are lost, none is written
//! before all of them fit between those that hold; until then they are in memory, beside the budget.

pub mod records;

use crate::hashed::segment::keyspace_shares::KeyspaceShares;
use crate::hashed::segment::local_index::FenceBuilder;
use crate::hashed::segment::view::Segment;
use records::Records;
use tapetum_base::error::Error;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::keyspace::hasher::KeyHasher;
use tapetum_base::media::io::Io;
use tapetum_drive::HostView;
use tapetum_kernels::data_page::PAGE_BYTES;
use tapetum_kernels::fence_page::{self, FENCE_PAYLOAD_BYTES};
use tapetum_kernels::hash::HashKey;
use tapetum_kernels::key_table::{Entry, KeyPage, PageBuilder};

/// Whether a page of the key table, or of the fences behind it, is as it was written.
pub fn holds(segment: &Segment, page: u32, bytes: &[u8]) -> bool {
    match page.checked_sub(segment.key_pages()) {
        None => KeyPage::parse(segment.salt, page, bytes).is_ok(),
        Some(fence_page) => fence_page::parse(segment.salt, fence_page, bytes).is_ok(),
    }
}

/// Rebuilds the pages that do not hold.
pub async fn mend(segment: &Segment, io: &Io, hasher: KeyHasher) -> Result<(), Error> {
    let mut table =
        MendedTable { segment, io, page: io.view(io.allocate(PAGE_BYTES).await?, 0..0), mended: Vec::new() };
    let fences = FenceBuilder::new(segment.geometry(), segment.page_size());
    let mut entries = Entries { segment, fences, hash_last: None };
    table.mend_key_pages(&mut entries, hasher).await?;
    table.mend_fences(entries).await?;
    let pages = segment.note_mended(&table.mended);
    if pages > 0 {
        tracing::warn!("{pages} pages of the key table of segment {} were made anew", segment.descriptor.number);
    }
    Ok(())
}

fn misfit(segment: &Segment) -> Error {
    Error::Corrupt(format!("the records of segment {} are not what it was made of", segment.descriptor.number))
}

/// The entries so far, which say where the next record is.
struct Entries<'a> {
    segment: &'a Segment,
    fences: FenceBuilder,
    hash_last: Option<HashKey>,
}

impl Entries<'_> {
    /// Takes the next one; returns where its record is.
    fn take(&mut self, entry: Entry) -> Result<u64, Error> {
        let end = self.segment.page_size().address(self.segment.descriptor.data_pages);
        let is_within = self.fences.places_next()[0] + u64::from(entry.size_bytes) <= end;
        if !is_within || !self.goes_on_with(entry.hash) {
            return Err(misfit(self.segment));
        }
        self.hash_last = Some(entry.hash);
        Ok(self.fences.add(entry.hash, KeyspaceId(entry.keyspace()), entry.size_bytes))
    }

    fn goes_on_with(&self, hash: HashKey) -> bool {
        self.hash_last.is_none_or(|last| last < hash)
    }

    /// Takes those of a page that holds.
    fn take_page(&mut self, page: KeyPage<'_>) -> Result<(), Error> {
        if page.first_entry != self.fences.entries() || page.count() == 0 {
            return Err(misfit(self.segment));
        }
        self.fences.begin_key_page(page.hash(0));
        (0..page.count()).try_for_each(|place| self.take(page.entry(place)).map(drop))
    }

    /// Takes those up to number `end` from their records; returns the pages of them, of which `page_first` is the first.
    async fn take_records(&mut self, records: &mut Records<'_>, page_first: u32, end: u32) -> Result<Vec<Page>, Error> {
        let (mut pages, mut builder) = (Vec::new(), PageBuilder::default());
        let mut entry_first = self.fences.entries();
        let mut push = |builder: &mut PageBuilder, entry_first| {
            let mut page = [0; PAGE_BYTES];
            builder.encode(self.segment.salt, page_first + pages.len() as u32, entry_first, &mut page);
            pages.push(page);
        };
        while self.fences.entries() < end {
            let (entry, address) = self.record_next(records).await.ok_or_else(|| self.lost())?;
            let number = self.fences.entries();
            if self.take(entry)? != address {
                return Err(misfit(self.segment));
            }
            if !builder.fits(&entry) {
                push(&mut builder, entry_first);
                entry_first = number;
            }
            if builder.is_empty() {
                self.fences.begin_key_page(entry.hash);
            }
            builder.push(entry);
        }
        if !builder.is_empty() {
            push(&mut builder, entry_first);
        }
        Ok(pages)
    }

    /// The next entry by its record, and where that is: behind the one before, or at the next extent's beginning if the page there
    /// says that it is the one.
    async fn record_next(&self, records: &mut Records<'_>) -> Option<(Entry, u64)> {
        let [place, next_extent] = self.fences.places_next();
        if let Some(entry) = records.entry(place).await {
            return Some((entry, place));
        }
        if next_extent == place {
            return None;
        }
        let first_there = records.entry_first(self.segment.page_size().page_of(next_extent)).await?;
        if first_there != self.fences.entries() {
            return None;
        }
        records.entry(next_extent).await.map(|entry| (entry, next_extent))
    }

    fn lost(&self) -> Error {
        let (entry, segment) = (self.fences.entries(), self.segment.descriptor.number);
        Error::Corrupt(format!("record {entry} of segment {segment} is damaged too, and its key is nowhere else"))
    }
}

type Page = [u8; PAGE_BYTES];

/// The key table on flash.
struct MendedTable<'a> {
    segment: &'a Segment,
    io: &'a Io,
    /// The page that was read last.
    page: HostView,
    mended: Vec<u32>,
}

impl MendedTable<'_> {
    async fn mend_key_pages(&mut self, entries: &mut Entries<'_>, hasher: KeyHasher) -> Result<(), Error> {
        let key_pages = self.segment.key_pages();
        let mut page = 0;
        while page < key_pages {
            if self.read(page).await {
                entries.take_page(self.key_page())?;
                page += 1;
                continue;
            }
            // Those that are lost with it, and where the entries go on behind them.
            let mut end = page + 1;
            while end < key_pages && !self.read(end).await {
                end += 1;
            }
            let (entries_end, hash_next) = match end < key_pages && self.key_page().count() > 0 {
                true => (self.key_page().first_entry, Some(self.key_page().hash(0))),
                false => (self.segment.descriptor.entries, None),
            };
            let mut records = Records::new(self.segment, self.io, hasher.clone()).await?;
            let pages = entries.take_records(&mut records, page, entries_end).await?;
            let fit = match hash_next {
                Some(hash) => entries.goes_on_with(hash),
                None => entries.fences.data_pages() == self.segment.descriptor.data_pages,
            };
            if !fit || pages.len() != (end - page) as usize {
                return Err(misfit(self.segment));
            }
            for lost in pages {
                self.write(page, |page| page.copy_from_slice(&lost)).await?;
                page += 1;
            }
        }
        Ok(())
    }

    async fn mend_fences(&mut self, entries: Entries<'_>) -> Result<(), Error> {
        let descriptor = &self.segment.descriptor;
        let (count, data_pages) = (entries.fences.entries(), entries.fences.data_pages());
        let mut index = entries.fences.build();
        let mut fences = index.encode();
        if fences.len().div_ceil(FENCE_PAYLOAD_BYTES) > descriptor.fence_pages as usize {
            // A segment that was written before there were lists of keyspaces may have no page for one.
            index.shares = KeyspaceShares::default();
            fences = index.encode();
        }
        let payloads = fences.chunks(FENCE_PAYLOAD_BYTES);
        let are = (count, data_pages, payloads.len());
        if are != (descriptor.entries, descriptor.data_pages, descriptor.fence_pages as usize) {
            return Err(misfit(self.segment));
        }
        for (number, payload) in (0..).zip(payloads) {
            let page = self.segment.key_pages() + number;
            if !self.read(page).await {
                let salt = self.segment.salt;
                self.write(page, |page| fence_page::encode(salt, number, payload, page)).await?;
            }
        }
        Ok(())
    }

    /// Reads a page; whether it is as it was written.
    async fn read(&mut self, page: u32) -> bool {
        let run = self.segment.key_runs(page..page + 1).next().expect("a page lies somewhere");
        let mut buffer = self.page.take();
        let was_read = self.io.read(run.flash, &mut buffer, 0, PAGE_BYTES).await.is_ok();
        self.page = self.io.view(buffer, 0..PAGE_BYTES);
        was_read && holds(self.segment, page, self.page.bytes())
    }

    /// The page that was read and holds.
    fn key_page(&self) -> KeyPage<'_> {
        KeyPage::trusted(self.page.bytes())
    }

    async fn write(&mut self, page: u32, fill: impl FnOnce(&mut [u8])) -> Result<(), Error> {
        let run = self.segment.key_runs(page..page + 1).next().expect("a page lies somewhere");
        let mut buffer = self.page.take();
        fill(self.io.fill(&mut buffer, 0..PAGE_BYTES));
        let written = self.io.write_durably(run.flash, &mut buffer, PAGE_BYTES).await;
        self.page = self.io.view(buffer, 0..0);
        written?;
        self.mended.push(page);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hashed::collect::victim::tests::{
        SMALL_BYTES, drive_in_memory, first_segment, small_options, store_in_memory,
    };
    use crate::hashed::segment::layout::stream_layout;
    use crate::{Store, StoreOptions, Sync};
    use std::sync::Arc;
    use tapetum_base::media::flash_run::FlashRun;
    use tapetum_base::media::io::run;
    use tapetum_drive::{Drive, Env, FaultyFlash, LocalMemory, Opcode, SplitMix64, programs};

    fn write(store: &Store, round: u64) {
        for number in 0..3000u64 {
            store.put(format!("key:{number}").as_bytes(), &(number + round).to_le_bytes().repeat(12)).unwrap();
        }
    }

    /// Spoils the page of each segment that `page` names.
    fn damage(drive: &Drive, store: &Store, page: impl Fn(&Segment) -> u32) -> Result<(), Error> {
        let io = Io::new(drive.queue_pair(16).unwrap());
        let segments: Vec<_> = store.hashed().segments.iter().collect();
        assert!(segments.len() > 3);
        let spoil = async {
            let mut buffer = io.allocate(PAGE_BYTES).await?;
            for segment in segments {
                let page = page(&segment);
                let run = segment.key_runs(page..page + 1).next().expect("there is such a page");
                io.read(run.flash, &mut buffer, 0, PAGE_BYTES).await?;
                buffer.bytes_mut()[100] ^= 1;
                io.write_durably(run.flash, &mut buffer, PAGE_BYTES).await?;
            }
            Ok(())
        };
        run(&io, spoil, || false).unwrap()
    }

    #[test]
    fn damaged_key_tables_and_fences_stop_neither_flushes_nor_opening() {
        let drive = drive_in_memory(SMALL_BYTES, &small_options(), Env::system());
        Store::create_on(&drive, &small_options()).unwrap();
        // Without memory for key tables, so that flushes read them.
        let options = StoreOptions { key_tables_bytes_max: 0, ..small_options() };
        let first_key_page = |_: &Segment| 0;
        let last_fence_page = |segment: &Segment| segment.fence_pages().end - 1;
        for round in 0..3u64 {
            let store = Store::open_on(&drive, &options).unwrap();
            write(&store, round);
            store.close().unwrap();
            // Without a thread for maintenance: no flush takes away, or mends, what is damaged before it is looked at.
            let still = Store::open_with(&drive, &options, || false).unwrap();
            match round {
                0 => damage(&drive, &still, first_key_page).unwrap(),
                1 => damage(&drive, &still, last_fence_page).unwrap(),
                _ => {}
            }
            let problems = crate::check(&still).unwrap().problems;
            assert_eq!(!problems.is_empty(), round == 0, "{problems:?}; fences are read when a store is opened");
            drop(still);
            let store = Store::open_on(&drive, &options).unwrap();
            write(&store, round + 1);
            for number in 0..3000u64 {
                let item = store.get(format!("key:{number}").as_bytes()).unwrap().unwrap();
                assert_eq!(item.value, (number + round + 1).to_le_bytes().repeat(12));
            }
        }
    }

    /// The key table and the fences of a segment, as they lie on flash.
    async fn table(segment: &Segment, io: &Io) -> Vec<u8> {
        let pages = segment.fence_pages().end;
        let mut buffer = io.allocate(pages as usize * PAGE_BYTES).await.unwrap();
        for run in segment.key_runs(0..pages) {
            io.read(run.flash, &mut buffer, run.at as usize, run.length as usize).await.unwrap();
        }
        buffer.bytes()[..pages as usize * PAGE_BYTES].to_vec()
    }

    /// Zeros a page that lies at `run`.
    async fn zero(run: FlashRun, io: &Io) {
        let mut buffer = io.allocate(PAGE_BYTES).await.unwrap();
        buffer.bytes_mut().fill(0);
        io.write_durably(run.flash, &mut buffer, run.length as usize).await.unwrap();
    }

    fn sizes(segment: &Segment, table: &[u8]) -> Vec<u64> {
        let pages = table.chunks_exact(PAGE_BYTES).take(segment.key_pages() as usize).map(KeyPage::trusted);
        pages.flat_map(|page| (0..page.count()).map(move |place| page.entry(place).size_bytes.into())).collect()
    }

    fn entry_address(segment: &Segment, table: &[u8], entry: u32) -> u64 {
        let mut layout = stream_layout(segment.geometry(), segment.page_size());
        sizes(segment, table)[..=entry as usize].iter().map(|&size| layout.place(size)).last().unwrap()
    }

    /// A record that ends an extent while the next one, of the same page of the key table, would not fit in its place; and that page.
    fn last_of_extent_before_longer(segment: &Segment, table: &[u8]) -> (u32, u32) {
        let mut layout = stream_layout(segment.geometry(), segment.page_size());
        let sizes = sizes(segment, table);
        let addresses: Vec<u64> = sizes.iter().map(|&size| layout.place(size)).collect();
        let leads_astray = |entry: &usize| {
            let (at, next) = (addresses[*entry], addresses[entry + 1]);
            at + sizes[*entry] < next && sizes[entry + 1] > next - at && sizes[entry + 1] <= layout.small_bytes_max()
        };
        let page_of = |entry: usize| {
            let pages = table.chunks_exact(PAGE_BYTES).take(segment.key_pages() as usize);
            pages.filter(|page| KeyPage::trusted(page).first_entry as usize <= entry).count() as u32 - 1
        };
        let entry = (0..sizes.len() - 1)
            .filter(leads_astray)
            .find(|&entry| {
                page_of(entry) == page_of(entry + 1) && (1..segment.key_pages() - 2).contains(&page_of(entry))
            })
            .expect("there is one among so many");
        (entry as u32, page_of(entry))
    }

    #[test]
    fn fences_of_several_pages_are_made_anew() {
        const CAPACITY: u64 = 256 << 20;
        let options =
            StoreOptions { segment_bytes: 16 << 20, sync: Sync::No, ..StoreOptions::new(CAPACITY, 128 << 20) };
        let (drive, store) = store_in_memory(CAPACITY, &options);
        let engine = store.hashed();
        let io = Io::new(drive.queue_pair(16).unwrap());
        // Until a buffer is full.
        for number in 0u64.. {
            store.put(format!("key:{number}").as_bytes(), &number.to_le_bytes().repeat(40)).unwrap();
            if store.stats().flushes > 0 {
                break;
            }
        }
        let segment = first_segment(engine);
        let pages = segment.fence_pages();
        assert!(pages.len() > 1, "{pages:?}");
        let mending = async {
            let whole = table(&segment, &io).await;
            for lost in [vec![pages.start], vec![pages.end - 1], vec![0, pages.start, pages.end - 1]] {
                for page in lost {
                    zero(segment.key_runs(page..page + 1).next().unwrap(), &io).await;
                }
                mend(&segment, &io, engine.hasher.clone()).await.unwrap();
                assert!(table(&segment, &io).await == whole);
            }
        };
        run(&io, mending, || false).unwrap();
    }

    #[test]
    fn a_table_is_made_anew_where_its_records_can_be_read() {
        const SMALL_BYTES: u64 = 64 << 20;
        let options =
            StoreOptions { segment_bytes: 1 << 20, sync: Sync::No, ..StoreOptions::new(SMALL_BYTES, 64 << 20) };
        let local = LocalMemory::new(options.local_memory_bytes() as usize).unwrap();
        let flash = FaultyFlash::new(SMALL_BYTES, 7);
        let drive = Drive::new(Arc::new(flash.clone()), local, programs::built_in(), Env::system());
        Store::create_on(&drive, &options).unwrap();
        let store = Store::open_on(&drive, &options).unwrap();
        for number in 0..20_000u64 {
            // Here and there a long one, which crosses the ends of extents.
            let length = if number % 500 == 7 { 20_000 } else { 10 + number as usize % 90 };
            let mut value = vec![0; length];
            SplitMix64::new(number).fill(&mut value);
            store.put(format!("key:{number}").as_bytes(), &value).unwrap();
        }
        store.close().unwrap();
        let store = Store::open_with(&drive, &options, || false).unwrap();
        let engine = store.hashed();
        let segments = engine.segments.iter();
        let segment = segments.max_by_key(|segment| segment.key_pages()).expect("some were flushed");
        let key_pages = segment.key_pages();
        let data_page = |page| segment.data_runs(page, segment.page_size().bytes() as u32).next().unwrap();
        let key_page = |page| segment.key_runs(page..page + 1).next().unwrap();
        assert!(key_pages > 8 && segment.fence_pages().len() == 1 && segment.descriptor.data_extents.len() > 3);
        let io = Io::new(drive.queue_pair(16).unwrap());
        let told = async {
            let whole = table(&segment, &io).await;
            // All of it, from its records; then with reads that fail.
            for failing in 0..40 {
                for page in 0..segment.fence_pages().end {
                    zero(key_page(page), &io).await;
                }
                if failing > 0 {
                    flash.fail_nth(Opcode::Read, failing);
                }
                mend(&segment, &io, engine.hasher.clone()).await.unwrap();
                assert!(table(&segment, &io).await == whole, "read {failing} failed");
            }
            // Lost data does not hinder the rebuild of entries of other records.
            zero(data_page(0), &io).await;
            zero(data_page(segment.descriptor.data_pages - 1), &io).await;
            for page in [1, 2, key_pages / 2, key_pages - 3, key_pages] {
                zero(key_page(page), &io).await;
            }
            mend(&segment, &io, engine.hasher.clone()).await.unwrap();
            assert!(table(&segment, &io).await == whole);
            // A damaged record at an extent's end is not passed over for the longer one that begins the next.
            let (entry, page) = last_of_extent_before_longer(&segment, &whole);
            let at = entry_address(&segment, &whole, entry);
            let data = segment.data_runs(segment.page_size().page_of(at), 512).next().unwrap();
            let within = at - segment.page_size().address(segment.page_size().page_of(at));
            flash.flip(data.flash + within + 6, 1);
            zero(key_page(page), &io).await;
            let error = mend(&segment, &io, engine.hasher.clone()).await.unwrap_err();
            assert!(error.to_string().contains(&format!("record {entry} ")), "{error}");
            let page = page as usize * PAGE_BYTES..(page as usize + 1) * PAGE_BYTES;
            assert!(table(&segment, &io).await[page].iter().all(|byte| *byte == 0), "nothing is written then");
            flash.flip(data.flash + within + 6, 1);
            mend(&segment, &io, engine.hasher.clone()).await.unwrap();
            assert!(table(&segment, &io).await == whole);
            // An entry that is lost with its record cannot be rebuilt.
            zero(key_page(0), &io).await;
            let error = mend(&segment, &io, engine.hasher.clone()).await.unwrap_err();
            assert!(error.to_string().contains("record 0"), "{error}");
        };
        run(&io, told, || false).unwrap();
    }
}
