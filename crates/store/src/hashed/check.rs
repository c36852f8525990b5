//! The check of segments: every checksum of every record and key-table page, and the invariants that tie them together.

use crate::hashed::HashedEngine;
use crate::hashed::catalog::{Bitmap, Catalog, SegmentState};
use crate::hashed::collect::victim::VictimCursor;
use crate::hashed::key_tables::key_reader::{KeyPages, KeyReader, page_name};
use crate::hashed::large::verify::verify;
use crate::hashed::segment::keyspace_shares::KeyspaceShares;
use crate::hashed::segment::local_index::FenceBuilder;
use crate::hashed::segment::view::Segment;
use std::collections::VecDeque;
use std::sync::Arc;
use tapetum_base::engine::check_report::{CheckPart, CheckPlace, CheckReport, CheckedValue, MADE_ANEW};
use tapetum_base::error::Error;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::media::io::Io;
use tapetum_kernels::hash::HashKey;
use tapetum_kernels::key_table::Entry;
use tapetum_kernels::record::{Codec, Record};
use tapetum_kernels::reference::Reference;

/// Bytes of large values that are read before others have their turn.
const PART_BYTES: u32 = 16 << 20;

/// Checks the segments of hashed keyspaces, and the index.
pub async fn check_hashed(engine: &Arc<HashedEngine>, io: &Io) -> Result<CheckReport, Error> {
    let installer = engine.take_installer().await;
    let mut report = CheckReport { buffered_records: engine.buffers.entries(), ..CheckReport::default() };
    for state in installer.of::<Catalog>().segments.values() {
        report.segments += 1;
        report.problems.extend(pages_made_anew(engine, state.descriptor.number));
        if let Err(error) = check_segment(engine, io, state, &mut report).await {
            report.problems.push(error.to_string());
        }
    }
    let entries = engine.index.entries() as u64;
    if report.problems.is_empty() && entries != report.valid_records {
        report.problems.push(format!("the index has {entries} entries for {} valid records", report.valid_records));
    }
    Ok(report)
}

/// Pages of a segment's key table, and of its fences, that were made anew in memory alone.
fn pages_made_anew(engine: &HashedEngine, number: u32) -> Vec<String> {
    let segment = engine.segments.get(number);
    let (Some(overlay), Some(segment)) = (&engine.overlay, segment) else { return Vec::new() };
    let is_anew = |page: &u32| {
        let mut runs = segment.key_runs(*page..*page + 1);
        runs.any(|run| overlay.touches(run.flash..run.flash + u64::from(run.length)))
    };
    let pages = (0..segment.fence_pages().end).filter(is_anew);
    pages.map(|page| format!("{}, {MADE_ANEW}", page_name(&segment, page))).collect()
}

async fn check_segment(
    engine: &Arc<HashedEngine>,
    io: &Io,
    state: &SegmentState,
    report: &mut CheckReport,
) -> Result<(), Error> {
    let number = state.descriptor.number;
    let wrong = |what: String| wrong(number, &what);
    let segment = engine.segments.get(number).ok_or_else(|| wrong("it is not open".into()))?;
    let mut walk = RecordWalk::new(engine, io, segment).await?;
    let mut valid_bytes = 0;
    let mut large = state.descriptor.large.iter();
    while let Some((place, hash)) = walk.next(engine).await? {
        report.records += 1;
        if !state.valid.get(place) {
            continue;
        }
        report.valid_records += 1;
        valid_bytes += walk.cursor.record().len() as u64;
        if engine.index.lookup(hash) != Some(number) {
            return Err(wrong(format!("the index does not lead to record {place}, which is valid")));
        }
        if walk.cursor.header().codec == Codec::OutOfLine {
            report.large_values += 1;
            let reference = walk.reference(place)?;
            if large.next().is_none_or(|named| (named.entry, &named.runs) != (place, &reference.runs)) {
                return Err(wrong(format!("record {place} is not the large value that the manifest names")));
            }
            if let Err(error) = verify(engine, io, &reference, walk.cursor.header().raw_bytes).await {
                report.problems.push(error.to_string());
            }
        }
    }
    if let Some(named) = large.next() {
        return Err(wrong(format!("the manifest names a large value in record {}, which is not alive", named.entry)));
    }
    if valid_bytes != state.valid_bytes {
        return Err(wrong(format!("{valid_bytes} valid bytes instead of {}", state.valid_bytes)));
    }
    Ok(())
}

fn wrong(number: u32, what: &str) -> Error {
    Error::Corrupt(format!("segment {number}: {what}"))
}

/// Checks a part of a segment while others read and write: its records, or some of its large values. The next part may be the next segment's.
/// Segments that get lower numbers meanwhile are not looked at.
pub async fn check_part(engine: &Arc<HashedEngine>, io: &Io, from: CheckPlace) -> Result<CheckPart, Error> {
    let CheckPlace { number, mut large, .. } = from;
    let (report, number) = match large.is_empty() {
        false => (check_large(engine, io, number, &mut large).await?, number),
        true => {
            // As long as a segment is held, its room is not given to another one.
            let found = engine.segments.numbers().skip(number as usize).find_map(|number| engine.segments.get(number));
            let Some(segment) = found else { return Ok(CheckPart::default()) };
            let number = segment.descriptor.number;
            let mut report = CheckReport { segments: 1, ..CheckReport::default() };
            match check_stored(engine, io, segment, &mut report).await {
                Ok(found) => large = found,
                Err(error) => note(engine, error, number, &mut report)?,
            }
            (report, number)
        }
    };
    let number = if large.is_empty() { number + 1 } else { number };
    Ok(CheckPart { report, next: Some(CheckPlace { number, large, ..CheckPlace::default() }) })
}

/// Checks some of a segment's large values. Each is held while it is read, so that nobody else gets its extents.
async fn check_large(
    engine: &Arc<HashedEngine>,
    io: &Io,
    number: u32,
    large: &mut VecDeque<CheckedValue>,
) -> Result<CheckReport, Error> {
    let (mut report, mut read_bytes) = (CheckReport::default(), 0);
    while read_bytes < PART_BYTES {
        let Some(CheckedValue { version, entry, raw_bytes, reference }) = large.pop_front() else { break };
        let segment = engine.segments.get(number).filter(|segment| segment.descriptor.version == version);
        let Some(_held) = segment.and_then(|segment| segment.large(entry)) else { continue };
        report.large_values += 1;
        read_bytes += reference.stored_bytes;
        if let Err(error) = verify(engine, io, &reference, raw_bytes).await {
            note(engine, error, number, &mut report)?;
        }
    }
    Ok(report)
}

/// Reports damage, and what cannot be read. Any other error ends the check.
fn note(engine: &HashedEngine, error: Error, number: u32, report: &mut CheckReport) -> Result<(), Error> {
    match error {
        Error::Corrupt(_) => report.problems.push(error.to_string()),
        Error::Io(_) if engine.log.poisoned().is_ok() => report.problems.push(format!("segment {number}: {error}")),
        error => return Err(error),
    }
    Ok(())
}

/// Checks the records of a segment; gives its large values, which are to be checked.
async fn check_stored(
    engine: &Arc<HashedEngine>,
    io: &Io,
    segment: Arc<Segment>,
    report: &mut CheckReport,
) -> Result<VecDeque<CheckedValue>, Error> {
    let (mut large, version) = (VecDeque::new(), segment.descriptor.version);
    let mut walk = RecordWalk::new(engine, io, Arc::clone(&segment)).await?;
    while let Some((entry, _)) = walk.next(engine).await? {
        report.records += 1;
        if !segment.is_valid(entry) {
            continue;
        }
        report.valid_records += 1;
        let header = walk.cursor.header();
        if header.codec == Codec::OutOfLine {
            let (raw_bytes, reference) = (header.raw_bytes, walk.reference(entry)?);
            large.push_back(CheckedValue { version, entry, raw_bytes, reference });
        }
    }
    Ok(large)
}

/// The records of a segment in their order, each of which must be the one that the key table names.
struct RecordWalk {
    number: u32,
    entries: Vec<Entry>,
    cursor: VictimCursor,
    all: Bitmap,
    last: Option<HashKey>,
}

impl RecordWalk {
    async fn new(engine: &Arc<HashedEngine>, io: &Io, segment: Arc<Segment>) -> Result<RecordWalk, Error> {
        let (number, all) = (segment.descriptor.number, Bitmap::full(segment.descriptor.entries));
        let entries = key_table(engine, io, &segment).await?;
        let cursor = VictimCursor::new(segment, io, engine.drive.local(), engine.hasher.clone()).await?;
        Ok(RecordWalk { number, entries, cursor, all, last: None })
    }

    /// Goes to the next record: its number in the segment, and the hash of its key.
    async fn next(&mut self, engine: &HashedEngine) -> Result<Option<(u32, HashKey)>, Error> {
        self.cursor.advance(&self.all).await?;
        let Some(hash) = self.cursor.head() else { return Ok(None) };
        let place = self.cursor.entry();
        let (header, record) = (self.cursor.header(), self.cursor.record());
        let key = &record[header.header_bytes()..][..header.key_bytes as usize];
        let is = Entry::of_record(hash, &header, key, record.len() as u32, engine.hasher.routes());
        if self.entries.get(place as usize) != Some(&is) {
            return Err(wrong(self.number, &format!("record {place} is not the one that the key table names")));
        }
        if self.last.is_some_and(|last| last >= hash) {
            return Err(wrong(self.number, &format!("record {place} is out of order")));
        }
        self.last = Some(hash);
        Ok(Some((place, hash)))
    }

    /// What the record that it is at names: it is of a large value.
    fn reference(&self, place: u32) -> Result<Reference, Error> {
        let reference = Record::parse(self.cursor.record()).ok().and_then(|r| Reference::parse(r.stored).ok());
        reference.ok_or_else(|| wrong(self.number, &format!("record {place} names nothing that can be")))
    }
}

/// The entries of a key table, whose fences must be those that were read from flash.
async fn key_table(engine: &Arc<HashedEngine>, io: &Io, segment: &Arc<Segment>) -> Result<Vec<Entry>, Error> {
    let number = segment.descriptor.number;
    let mut fences = FenceBuilder::new(&engine.geometry, segment.descriptor.data_page_size);
    let mut entries = Vec::with_capacity(segment.descriptor.entries as usize);
    let mut reader = KeyReader::telling(io, engine.drive.local());
    let look = |read: &KeyPages<()>| {
        for page in read.pages() {
            if page.first_entry != fences.entries() || page.count() == 0 {
                return Err(Error::Corrupt(format!("segment {number}: its key table does not go on as it began")));
            }
            fences.begin_key_page(page.hash(0));
            page.entries().for_each(|entry| {
                fences.add(entry.hash, KeyspaceId(entry.keyspace()), entry.size_bytes);
            });
            entries.extend(page.entries());
        }
        Ok(())
    };
    reader.each(segment, look).await?;
    let data_pages = fences.data_pages();
    let mut local_index = fences.build();
    if !segment.local_index.shares.is_listed() {
        // Segments that were written before there were lists of keyspaces have none.
        local_index.shares = KeyspaceShares::default();
    }
    if data_pages != segment.descriptor.data_pages || local_index != segment.local_index {
        return Err(Error::Corrupt(format!("segment {number}: its fences are not those of its key table")));
    }
    Ok(entries)
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
