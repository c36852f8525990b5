//! Makes a segment's key table and fences anew from its records, where a page of them cannot be read or is damaged.
//!
//! Nothing in them is anything but what the records say, each of which has a checksum of its own, dead ones too: so what is
//! written is what was there, byte for byte, and a crash amid it leaves a page that is mended again. No extent is reused
//! meanwhile: whoever reads key tables holds the segment.

use crate::catalog::Bitmap;
use crate::error::Error;
use crate::io::Io;
use crate::segment::local_index::FenceBuilder;
use crate::segment::view::Segment;
use crate::victim::VictimCursor;
use std::sync::Arc;
use tapetum_drive::LocalMemory;
use tapetum_kernels::data_page::PAGE_BYTES;
use tapetum_kernels::fence_page::{self, FENCE_PAYLOAD_BYTES};
use tapetum_kernels::key_table::{Entry, KeyPage, PageBuilder};

/// Whether a page of the key table, or of the fences behind it, is what was written there.
pub fn holds(segment: &Segment, page: u32, bytes: &[u8]) -> bool {
    match page.checked_sub(segment.key_pages()) {
        None => KeyPage::parse(segment.salt, page, bytes).is_ok(),
        Some(fence_page) => fence_page::parse(segment.salt, fence_page, bytes).is_ok(),
    }
}

/// Writes those pages anew that do not hold. The whole key table is in memory meanwhile, beside the budget.
pub async fn mend(segment: &Arc<Segment>, io: &Io, local: &LocalMemory, secret: [u8; 16]) -> Result<(), Error> {
    let pages = pages_from_records(segment, io, local, secret).await?;
    let mut buffer = io.allocate(PAGE_BYTES).await?;
    let mut mended = 0;
    for (number, page) in (0u32..).zip(pages.chunks_exact(PAGE_BYTES)) {
        let run = segment.key_runs(number..number + 1).next().expect("a page lies somewhere");
        let was_read = io.read(run.flash, &buffer, 0, PAGE_BYTES).await.is_ok();
        if !was_read || !holds(segment, number, &buffer.bytes()[..PAGE_BYTES]) {
            buffer.bytes_mut()[..PAGE_BYTES].copy_from_slice(page);
            io.write_durably(run.flash, &buffer, PAGE_BYTES).await?;
            mended += 1;
        }
    }
    tracing::warn!("{mended} pages of the key table of segment {} were made anew", segment.descriptor.number);
    Ok(())
}

/// The pages of the key table and of the fences behind it.
async fn pages_from_records(
    segment: &Arc<Segment>,
    io: &Io,
    local: &LocalMemory,
    secret: [u8; 16],
) -> Result<Vec<u8>, Error> {
    let descriptor = &segment.descriptor;
    let misfit = || Error::Corrupt(format!("the records of segment {} are not what it was made of", descriptor.number));
    let mut pages = Pages::default();
    let mut fences = FenceBuilder::new(segment.geometry(), segment.page_size());
    let mut key_page = PageBuilder::default();
    let mut first_entry = 0;
    let mut last = None;
    let all = Bitmap::full(descriptor.entries);
    let mut cursor = VictimCursor::new(segment.clone(), io, local, secret).await?;
    cursor.advance(&all).await?;
    while let Some(hash) = cursor.head() {
        if last.is_some_and(|last| last >= hash) {
            return Err(misfit());
        }
        last = Some(hash);
        let entry = Entry { hash, size_bytes: cursor.record().len() as u32, route: 0 };
        if !key_page.fits(&entry) {
            pages.push(|number, page| key_page.encode(segment.salt, number, first_entry, page));
            first_entry = fences.entries();
        }
        if key_page.is_empty() {
            fences.begin_key_page(hash);
        }
        key_page.push(entry);
        fences.add(hash, entry.size_bytes);
        cursor.advance(&all).await?;
    }
    if !key_page.is_empty() {
        pages.push(|number, page| key_page.encode(segment.salt, number, first_entry, page));
    }
    let key_pages = pages.count();
    let data_pages = fences.data_pages();
    for payload in fences.build().encode().chunks(FENCE_PAYLOAD_BYTES) {
        pages.push(|number, page| fence_page::encode(segment.salt, number - key_pages, payload, page));
    }
    let fence_pages = pages.count() - key_pages;
    let are = (data_pages, key_pages, fence_pages);
    let were = (descriptor.data_pages, descriptor.key_pages, descriptor.fence_pages);
    if are == were { Ok(pages.bytes) } else { Err(misfit()) }
}

#[derive(Default)]
struct Pages {
    bytes: Vec<u8>,
}

impl Pages {
    fn count(&self) -> u32 {
        (self.bytes.len() / PAGE_BYTES) as u32
    }

    fn push(&mut self, fill: impl FnOnce(u32, &mut [u8])) {
        let number = self.count();
        let start = self.bytes.len();
        self.bytes.resize(start + PAGE_BYTES, 0);
        fill(number, &mut self.bytes[start..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::run;
    use crate::{Store, StoreOptions};
    use tapetum_drive::{Drive, Env, MemoryFlash, programs};

    const CAPACITY: u64 = 8 << 20;

    fn options() -> StoreOptions {
        StoreOptions { segment_bytes: 64 << 10, partition_bits: 2, ..StoreOptions::new(CAPACITY, 16 << 20) }
    }

    fn write(store: &Store, round: u64) {
        for number in 0..3000u64 {
            store.put(format!("key:{number}").as_bytes(), &(number + round).to_le_bytes().repeat(12)).unwrap();
        }
    }

    /// Spoils the page of each segment that `page` names.
    fn damage(drive: &Drive, store: &Store, page: impl Fn(&Segment) -> u32) -> Result<(), Error> {
        let io = Io::new(drive.queue_pair(16).unwrap());
        let segments: Vec<_> = store.shared().segments.iter().filter_map(|segment| segment.load_full()).collect();
        assert!(segments.len() > 3);
        let spoil = async {
            let mut buffer = io.allocate(PAGE_BYTES).await?;
            for segment in segments {
                let page = page(&segment);
                let run = segment.key_runs(page..page + 1).next().expect("there is such a page");
                io.read(run.flash, &buffer, 0, PAGE_BYTES).await?;
                buffer.bytes_mut()[100] ^= 1;
                io.write_durably(run.flash, &buffer, PAGE_BYTES).await?;
            }
            Ok(())
        };
        run(&io, spoil, || false).unwrap()
    }

    #[test]
    fn damaged_key_tables_and_fences_stop_neither_flushes_nor_opening() {
        let local = LocalMemory::new(options().local_memory_bytes(64 << 10) as usize).unwrap();
        let drive = Drive::new(Arc::new(MemoryFlash::new(CAPACITY)), local, programs::built_in(), Env::system());
        Store::create(&drive, &options()).unwrap();
        // Without memory for key tables, so that flushes read them.
        let options = StoreOptions { key_tables_bytes_max: 0, ..options() };
        let first_key_page = |_: &Segment| 0;
        let last_fence_page = |segment: &Segment| segment.fence_pages().end - 1;
        for round in 0..3u64 {
            let store = Store::open(&drive, &options).unwrap();
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
            let store = Store::open(&drive, &options).unwrap();
            write(&store, round + 1);
            for number in 0..3000u64 {
                let item = store.get(format!("key:{number}").as_bytes()).unwrap().unwrap();
                assert_eq!(item.value, (number + round + 1).to_le_bytes().repeat(12));
            }
        }
    }
}
