//! A segment that may be damaged: which of its valid records can be read, and what is lost with the others.
//!
//! Data pages say where the first record that starts in each of them is, and its number; key table and records say how long
//! each is. So a record is found as long as one before it is, with all lengths between.

use super::report::{Loss, RepairReport};
use super::roots::Roots;
use crate::hashed::catalog::{Deaths, SegmentState};
use crate::hashed::key_tables::key_mend::records::Records;
use crate::hashed::key_tables::key_mend::{holds, mend};
use crate::hashed::key_tables::key_reader::page_name;
use crate::hashed::large::verify::read_value;
use crate::hashed::segment::layout::stream_layout;
use crate::hashed::segment::local_index::LocalIndex;
use crate::hashed::segment::view::Segment;
use tapetum_base::error::Error;
use tapetum_base::media::io::Io;
use tapetum_base::media::superblock::Superblock;
use tapetum_kernels::data_page::{PAGE_BYTES, Trailer};
use tapetum_kernels::key_table::{Entry, KeyPage};
use tapetum_kernels::record::{Codec, Header, Record};
use tapetum_kernels::reference::Reference;

/// A segment as it was found.
pub struct FoundSegment {
    pub segment: Segment,
    /// Valid records that can be read: their numbers and places, in order.
    pub readable: Vec<(u32, u64)>,
    /// Valid records whose large values cannot be read.
    pub dead: Deaths,
    /// A part of it can neither be read nor rebuilt.
    pub is_damaged: bool,
}

pub fn open_blind(superblock: &Superblock, state: &SegmentState) -> Segment {
    Segment::new(state.descriptor.clone(), superblock.store_id, superblock.geometry, LocalIndex::empty())
}

/// Looks at all of a segment. Pages of its key table are rebuilt where that can be done.
pub async fn look(
    io: &Io,
    roots: &Roots,
    state: &SegmentState,
    report: &mut RepairReport,
) -> Result<FoundSegment, Error> {
    let segment = open_blind(&roots.superblock, state);
    let mut look = Look {
        io,
        roots,
        state,
        known: vec![None; state.descriptor.entries as usize],
        found: vec![false; state.descriptor.entries as usize],
        readable: Vec::new(),
        dead: Deaths { segment: state.descriptor.number, record_bytes: 0, entries: Vec::new() },
        is_damaged: false,
        report,
    };
    look.read_key_table(&segment).await?;
    look.read_records(&segment).await?;
    look.tell_of_unfound();
    let Look { readable, dead, is_damaged, .. } = look;
    Ok(FoundSegment { segment, readable, dead, is_damaged })
}

struct Look<'a> {
    io: &'a Io,
    roots: &'a Roots,
    state: &'a SegmentState,
    /// The key table's entry of each record.
    known: Vec<Option<Entry>>,
    /// Whether a record was looked at.
    found: Vec<bool>,
    readable: Vec<(u32, u64)>,
    dead: Deaths,
    is_damaged: bool,
    report: &'a mut RepairReport,
}

impl Look<'_> {
    async fn read_key_table(&mut self, segment: &Segment) -> Result<(), Error> {
        let lost = self.read_key_pages(segment).await?;
        if lost.is_empty() {
            return Ok(());
        }
        if mend(segment, self.io, self.roots.hasher.clone()).await.is_err() {
            self.is_damaged = true;
            return Ok(());
        }
        self.report.made_anew.extend(lost.into_iter().map(|page| page_name(segment, page)));
        self.read_key_pages(segment).await.map(drop)
    }

    /// Reads the key-table pages; gives those that do not hold.
    async fn read_key_pages(&mut self, segment: &Segment) -> Result<Vec<u32>, Error> {
        let mut buffer = self.io.allocate(PAGE_BYTES).await?;
        let mut lost = Vec::new();
        for page in 0..segment.fence_pages().end {
            let run = segment.key_runs(page..page + 1).next().expect("a page lies somewhere");
            let was_read = self.io.read(run.flash, &mut buffer, 0, PAGE_BYTES).await.is_ok();
            let bytes = self.io.look(&buffer, 0..PAGE_BYTES);
            if !was_read || !holds(segment, page, bytes) {
                lost.push(page);
            } else if page < segment.key_pages() {
                let page = KeyPage::trusted(bytes);
                let places = self.known.iter_mut().skip(page.first_entry as usize);
                places.zip(page.entries()).for_each(|(known, entry)| *known = Some(entry));
            }
        }
        Ok(lost)
    }

    async fn read_records(&mut self, segment: &Segment) -> Result<(), Error> {
        let layout = stream_layout(segment.geometry(), segment.page_size());
        let mut records = Records::new(segment, self.io, self.roots.hasher.clone()).await?;
        let mut bytes = Vec::new();
        // The next record, and where the one before ends, as far as that is known.
        let mut next = Some((0, 0));
        for page in 0..segment.descriptor.data_pages {
            let (start, end) = (segment.page_size().address(page), segment.page_size().address(page + 1));
            match records.trailer(page).await {
                Some(Trailer { starts: 0, .. }) => continue,
                Some(trailer) => next = Some((trailer.entry_first, start + u64::from(trailer.first))),
                None => self.is_damaged = true,
            }
            while let Some((entry, address)) = next {
                let Some(known) = self.known.get(entry as usize).copied() else { break };
                let address = match known {
                    Some(known) => layout.from(address).place(known.size_bytes.into()),
                    None => place_of_unknown(&mut records, segment, entry, layout.from(address).places_next()).await,
                };
                if address >= end {
                    next = Some((entry, address));
                    break;
                }
                let length = self.look_at(&mut records, entry, address, &mut bytes).await;
                next = length.map(|length| (entry + 1, address + length));
            }
        }
        Ok(())
    }

    /// Looks at a record; its length, if that is known.
    async fn look_at(
        &mut self,
        records: &mut Records<'_>,
        entry: u32,
        address: u64,
        bytes: &mut Vec<u8>,
    ) -> Option<u64> {
        let known = self.known[entry as usize];
        let is_valid = self.state.valid.get(entry);
        let header = records.copy(address, bytes).await;
        let found = header.map(|header| self.roots.hasher.entry_of(&header, key_of(&header, bytes)));
        let fits = |found: &Entry| known.is_none_or(|known| known == *found);
        if let (Some(header), Some(found)) = (header, found.filter(fits)) {
            (self.known[entry as usize], self.found[entry as usize]) = (Some(found), true);
            if is_valid {
                self.keep(&header, entry, address, bytes).await;
            }
            return Some(found.size_bytes.into());
        }
        self.is_damaged = true;
        let known = known?;
        self.found[entry as usize] = true;
        if is_valid && !self.roots.newest.contains_key(&known.hash) {
            let place = format!("record {entry} of segment {}", self.state.descriptor.number);
            let hashes = known.hash.0..=known.hash.0;
            self.report.losses.push(match records.key_of(address, known.hash).await {
                Some(key) => Loss::Item { key, place },
                None => Loss::Items { count: 1, hashes, place },
            });
        }
        Some(known.size_bytes.into())
    }

    /// Takes a valid record that can be read, if its value can.
    async fn keep(&mut self, header: &Header, entry: u32, address: u64, record: &[u8]) {
        if header.codec == Codec::OutOfLine {
            let Superblock { geometry, store_id, .. } = &self.roots.superblock;
            let reference = Record::parse(record).ok().and_then(|record| Reference::parse(record.stored).ok());
            let is_whole = match &reference {
                Some(reference) => read_value(self.io, geometry, *store_id, reference, header.raw_bytes).await.is_ok(),
                None => false,
            };
            if !is_whole {
                self.dead.entries.push(entry);
                self.dead.record_bytes += record.len() as u64;
                let key = key_of(header, record).to_vec();
                if !self.roots.newest.contains_key(&self.roots.hasher.hash_of(header, &key)) {
                    self.report.losses.push(Loss::Item { key, place: "its large value is damaged".into() });
                }
                return;
            }
        }
        self.readable.push((entry, address));
    }

    /// Reports valid records that nothing leads to any more. Neighbours whose hash keys are all unknown are reported together.
    fn tell_of_unfound(&mut self) {
        let number = self.state.descriptor.number;
        let is_nowhere = |entry: &usize| !self.found[*entry] && self.known[*entry].is_none();
        let hash = |entry: &Entry| entry.hash.0;
        let mut entry = 0;
        while entry < self.found.len() {
            let first = entry;
            let end = (first..self.found.len()).find(|entry| !is_nowhere(entry)).unwrap_or(self.found.len());
            entry = end.max(first + 1);
            let lost = (first..entry).filter(|entry| !self.found[*entry] && self.state.valid.get(*entry as u32));
            let count = lost.count() as u64;
            if count == 0 {
                continue;
            }
            let low = self.known[..=first].iter().rev().flatten().map(hash).next().unwrap_or(0);
            let high = self.known[entry - 1..].iter().flatten().map(hash).next().unwrap_or(u128::MAX);
            let place = match entry - first {
                1 => format!("record {first} of segment {number}"),
                _ => format!("records {first} to {} of segment {number}", entry - 1),
            };
            self.report.losses.push(Loss::Items { count, hashes: low..=high, place });
        }
        self.is_damaged |= self.found.contains(&false);
    }
}

/// The place of a record for which the key table has no entry: behind the record before, or at the start of the next extent, if the page there says
/// that this record is the first.
async fn place_of_unknown(
    records: &mut Records<'_>,
    segment: &Segment,
    entry: u32,
    [place, next_extent]: [u64; 2],
) -> u64 {
    if next_extent == place || records.entry(place).await.is_some() {
        return place;
    }
    let first_there = records.entry_first(segment.page_size().page_of(next_extent)).await;
    if first_there == Some(entry) { next_extent } else { place }
}

pub fn key_of<'a>(header: &Header, record: &'a [u8]) -> &'a [u8] {
    &record[header.header_bytes()..][..header.key_bytes as usize]
}
