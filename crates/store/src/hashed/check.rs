//! The check of segments: every checksum of every record and key-table page, and the invariants that tie them together.

use crate::hashed::HashedEngine;
use crate::hashed::catalog::{Bitmap, Catalog, SegmentState};
use crate::hashed::collect::victim::VictimCursor;
use crate::hashed::key_tables::key_reader::{KeyPages, KeyReader, page_name};
use crate::hashed::large::verify::verify;
use crate::hashed::segment::local_index::FenceBuilder;
use crate::hashed::segment::view::Segment;
use std::sync::Arc;
use tapetum_base::engine::check_report::{CheckReport, MADE_ANEW};
use tapetum_base::error::Error;
use tapetum_base::media::io::Io;
use tapetum_kernels::hash::HashKey;
use tapetum_kernels::key_table::Entry;
use tapetum_kernels::record::{Codec, Record};
use tapetum_kernels::reference::Reference;

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
    let wrong = |what: String| Error::Corrupt(format!("segment {number}: {what}"));
    let segment = engine.segments.get(number).ok_or_else(|| wrong("it is not open".into()))?;
    let entries = key_table(engine, io, &segment).await?;
    let mut cursor = VictimCursor::new(segment, io, engine.drive.local(), engine.hasher.clone()).await?;
    let all = Bitmap::full(state.descriptor.entries);
    let (mut valid_bytes, mut last) = (0, None::<HashKey>);
    let mut large = state.descriptor.large.iter();
    cursor.advance(&all).await?;
    while let Some(hash) = cursor.head() {
        let place = cursor.entry();
        let entry = entries.get(place as usize).copied();
        let (header, record) = (cursor.header(), cursor.record());
        let key = &record[header.header_bytes()..][..header.key_bytes as usize];
        if entry != Some(Entry::of_record(hash, &header, key, record.len() as u32, engine.hasher.routes())) {
            return Err(wrong(format!("record {place} is not the one that the key table names")));
        }
        if last.is_some_and(|last| last >= hash) {
            return Err(wrong(format!("record {place} is out of order")));
        }
        last = Some(hash);
        report.records += 1;
        if state.valid.get(place) {
            report.valid_records += 1;
            valid_bytes += cursor.record().len() as u64;
            if engine.index.lookup(hash) != Some(number) {
                return Err(wrong(format!("the index does not lead to record {place}, which is valid")));
            }
            if cursor.header().codec == Codec::OutOfLine {
                report.large_values += 1;
                let reference = Record::parse(cursor.record()).ok().and_then(|r| Reference::parse(r.stored).ok());
                let reference = reference.ok_or_else(|| wrong(format!("record {place} names nothing that can be")))?;
                if large.next().is_none_or(|named| (named.entry, &named.runs) != (place, &reference.runs)) {
                    return Err(wrong(format!("record {place} is not the large value that the manifest names")));
                }
                if let Err(error) = verify(engine, io, &reference, cursor.header().raw_bytes).await {
                    report.problems.push(error.to_string());
                }
            }
        }
        cursor.advance(&all).await?;
    }
    if let Some(named) = large.next() {
        return Err(wrong(format!("the manifest names a large value in record {}, which is not alive", named.entry)));
    }
    if valid_bytes != state.valid_bytes {
        return Err(wrong(format!("{valid_bytes} valid bytes instead of {}", state.valid_bytes)));
    }
    Ok(())
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
                fences.add(entry.hash, entry.size_bytes);
            });
            entries.extend(page.entries());
        }
        Ok(())
    };
    reader.each(segment, look).await?;
    if fences.data_pages() != segment.descriptor.data_pages || fences.build() != segment.local_index {
        return Err(Error::Corrupt(format!("segment {number}: its fences are not those of its key table")));
    }
    Ok(entries)
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
