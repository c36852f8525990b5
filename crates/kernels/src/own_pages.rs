//! The data pages of a segment in which the records of one keyspace lie, found by the entries of its key table.
//!
//! ```text
//! key table: sizes ─► the stream's layout ─► page of each record · routes ─► whose it is · validity ─► whether it is alive
//! ```
//! Key-table pages are passed in their order, some at a time; a search goes on where it came to.

use crate::data_page::PageSize;
use crate::key_table::KeyPage;
use crate::stream_layout::StreamLayout;
use std::ops::Range;

/// Neighbouring data pages with records of a keyspace.
///
/// ```text
/// pages u32 u32 · starts end u32 · entry first u32 · entry end u32
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OwnPages {
    /// With the pages in which the last record goes on.
    pub pages: Range<u32>,
    /// Behind the last page in which a record of the keyspace starts.
    pub starts_end: u32,
    /// The number of the first record that starts in them.
    pub entry_first: u32,
    /// Behind the number of the last record that is the keyspace's.
    pub entry_end: u32,
}

impl OwnPages {
    pub const ENCODED_BYTES: usize = 20;

    pub fn none() -> OwnPages {
        OwnPages { pages: 0..0, starts_end: 0, entry_first: 0, entry_end: 0 }
    }

    pub fn encode(&self, out: &mut [u8; OwnPages::ENCODED_BYTES]) {
        let words = [self.pages.start, self.pages.end, self.starts_end, self.entry_first, self.entry_end];
        for (out, word) in out.chunks_exact_mut(4).zip(words) {
            out.copy_from_slice(&word.to_le_bytes());
        }
    }

    pub fn decode(bytes: &[u8; OwnPages::ENCODED_BYTES]) -> OwnPages {
        let word = |place: usize| u32::from_le_bytes(std::array::from_fn(|at| bytes[4 * place + at]));
        OwnPages { pages: word(0)..word(1), starts_end: word(2), entry_first: word(3), entry_end: word(4) }
    }

    /// Takes what follows into this, if there is no page between.
    fn joins(&mut self, next: &OwnPages) -> bool {
        // The next record may begin in the page that the last one ends in.
        let joins = next.pages.start <= self.pages.end;
        if joins {
            self.pages.end = self.pages.end.max(next.pages.end);
            (self.starts_end, self.entry_end) = (next.starts_end, next.entry_end);
        }
        joins
    }

    /// Adds what follows to a list.
    pub fn push_to(self, list: &mut Vec<OwnPages>) {
        if !list.last_mut().is_some_and(|last| last.joins(&self)) {
            list.push(self);
        }
    }
}

/// A search, as far as it has come.
///
/// ```text
/// keyspace u16 · page bytes u16 · pages end u32 · extent payload u64 · address u64 · entry next u32 · page u32 · page entry u32 · zero u32
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageSearch {
    keyspace: u16,
    page_size: PageSize,
    /// The number of the segment's data pages.
    pages_end: u32,
    layout: StreamLayout,
    /// The number of the next entry.
    pub entry_next: u32,
    /// The page in which the last record starts, and the number of the first one that does.
    page: u32,
    page_entry: u32,
}

impl PageSearch {
    pub const ENCODED_BYTES: usize = 40;

    pub fn new(keyspace: u16, page_size: PageSize, pages_end: u32, layout: StreamLayout) -> PageSearch {
        PageSearch { keyspace, page_size, pages_end, layout, entry_next: 0, page: 0, page_entry: 0 }
    }

    pub fn encode(&self, out: &mut [u8; PageSearch::ENCODED_BYTES]) {
        out.fill(0);
        out[..2].copy_from_slice(&self.keyspace.to_le_bytes());
        out[2..4].copy_from_slice(&(self.page_size.bytes() as u16).to_le_bytes());
        out[4..8].copy_from_slice(&self.pages_end.to_le_bytes());
        out[8..16].copy_from_slice(&self.layout.extent_payload_bytes().to_le_bytes());
        out[16..24].copy_from_slice(&self.layout.end().to_le_bytes());
        for (out, word) in out[24..36].chunks_exact_mut(4).zip([self.entry_next, self.page, self.page_entry]) {
            out.copy_from_slice(&word.to_le_bytes());
        }
    }

    /// `None` if the bytes are no search.
    pub fn decode(bytes: &[u8; PageSearch::ENCODED_BYTES]) -> Option<PageSearch> {
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        let (keyspace, page_bytes) = (word(0) as u16, word(0) >> 16);
        let extent_payload_bytes = long(8);
        // No sum of sizes comes near the end of what an address counts.
        if extent_payload_bytes == 0 || extent_payload_bytes >> 40 != 0 || long(16) >> 62 != 0 || word(36) != 0 {
            return None;
        }
        Some(PageSearch {
            keyspace,
            page_size: PageSize::of(page_bytes)?,
            pages_end: word(4),
            layout: StreamLayout::new(extent_payload_bytes).from(long(16)),
            entry_next: word(24),
            page: word(28),
            page_entry: word(32),
        })
    }

    /// Goes through a page of the key table, and hands out the pages of each valid record of the keyspace. The first of `valid` are the 64 bits that
    /// the next entry's bit was among at the first of the pages that are passed together, whose next entry was `entry_first`.
    pub fn look(&mut self, page: KeyPage<'_>, (entry_first, valid): (u32, &[u64]), mut found: impl FnMut(OwnPages)) {
        for entry in page.entries() {
            let address = self.layout.place(entry.size_bytes.into());
            let number = self.entry_next;
            self.entry_next = number.wrapping_add(1);
            let start = self.page_size.page_of(address);
            if start != self.page {
                (self.page, self.page_entry) = (start, number);
            }
            let place = (number / 64).checked_sub(entry_first / 64).and_then(|place| valid.get(place as usize));
            let is_valid = place.is_some_and(|word| word >> (number % 64) & 1 == 1);
            if is_valid && entry.keyspace() == self.keyspace {
                let end = self.page_size.page_of(address + u64::from(entry.size_bytes.max(1)) - 1).saturating_add(1);
                found(OwnPages {
                    pages: start..end.min(self.pages_end).max(start),
                    starts_end: start.saturating_add(1),
                    entry_first: self.page_entry,
                    entry_end: number.wrapping_add(1),
                });
            }
        }
    }
}
