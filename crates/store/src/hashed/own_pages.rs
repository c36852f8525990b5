//! The data pages in which a keyspace's records of a shared segment lie, by the entries of its key table.
//!
//! ```text
//! key table ─► local memory ─► own-pages, at the drive ─► ranges of pages ─► host
//! ```
//! So a scan reads a page an item, not the segment. A segment that is nearly all the keyspace's is read whole, without a look at its key table.

use super::HashedEngine;
use super::key_tables::key_reader::{KeyPages, KeyReader, PAGES_PER_READ};
use super::segment::layout::stream_layout;
use super::segment::view::Segment;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;
use tapetum_base::error::Error;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::media::io::Io;
use tapetum_base::media::transfer::Transfer;
use tapetum_drive::programs::CORRUPT;
use tapetum_drive::programs::own_pages::{PARAMETERS_BYTES, decode_output, encode_parameters};
use tapetum_drive::{Execution, LocalRange, Operation, Purpose, Stage, Status};
use tapetum_kernels::data_page::PAGE_BYTES;
use tapetum_kernels::hash::HashKey;
use tapetum_kernels::key_table::{ENTRY_BYTES_MIN, KeyPage};
use tapetum_kernels::own_pages::{OwnPages, PageSearch};

/// Pages of a key table that the drive looks through by one command.
const PAGES_AT_ONCE: u32 = 8;
/// Words of valid bits for all entries of so many pages, the first of which may be the last bit of its word.
const VALID_WORDS: usize = PAGES_AT_ONCE as usize * PAGE_BYTES / ENTRY_BYTES_MIN / 64 + 2;
// The buffer: pages, parameters, valid bits, a list of one stage, the output.
const PARAMETERS_AT: usize = PAGES_AT_ONCE as usize * PAGE_BYTES;
const VALID_AT: usize = PARAMETERS_AT + PARAMETERS_BYTES;
const STAGES_AT: usize = VALID_AT + 8 * VALID_WORDS;
const OUTPUT_AT: usize = STAGES_AT + Stage::ENCODED_BYTES;
/// Every second record may be the keyspace's, each in pages that no other of its records touches.
const OUTPUT_BYTES: usize =
    PageSearch::ENCODED_BYTES + PAGES_AT_ONCE as usize * PAGE_BYTES / ENTRY_BYTES_MIN / 2 * OwnPages::ENCODED_BYTES;
const BUFFER_BYTES: usize = OUTPUT_AT + OUTPUT_BYTES;
const _: () = assert!(STAGES_AT.is_multiple_of(8));

/// A segment is read whole where that reads at most a fifth more: 6 bytes for 5.
const WHOLE_PARTS: u64 = 6;
const OWN_PARTS: u64 = 5;

/// Whether to look at the key table: not where the segment is known to be nearly all the keyspace's.
fn is_worth_a_look(segment: &Segment, keyspace: KeyspaceId) -> bool {
    let own_bytes = segment.local_index.shares.record_bytes(keyspace);
    own_bytes.is_none_or(|own| own * WHOLE_PARTS < segment.descriptor.record_bytes * OWN_PARTS)
}

/// The pages with valid records of a keyspace, in order; `None`: the whole segment is to be read. The drive looks through a key table that is not in memory,
/// and only these ranges cross.
///
/// # Errors
/// The key table cannot be read.
pub async fn find(
    engine: &HashedEngine,
    io: &Io,
    segment: &Arc<Segment>,
    keyspace: KeyspaceId,
    valid: &[u64],
) -> Result<Option<Vec<OwnPages>>, Error> {
    if !is_worth_a_look(segment, keyspace) {
        return Ok(None);
    }
    let (size, pages_end) = (segment.page_size(), segment.descriptor.data_pages);
    let search = PageSearch::new(keyspace.0, size, pages_end, stream_layout(segment.geometry(), size));
    let found = match engine.segments.key_tables.get(segment.descriptor.version) {
        Some(table) => find_in((0..segment.key_pages()).map(|page| table.page(page)), search, valid),
        None => match find_at_drive(engine, io, segment, search, valid).await? {
            Some(found) => found,
            None => find_on_host(engine, io, segment, search, valid).await?,
        },
    };
    let pages: u64 = found.iter().map(|own| own.pages.len() as u64).sum();
    let is_most = pages * WHOLE_PARTS >= u64::from(pages_end) * OWN_PARTS;
    Ok((!is_most).then_some(found))
}

/// Searches a key table that the host has.
fn find_in<'a>(pages: impl Iterator<Item = KeyPage<'a>>, mut search: PageSearch, valid: &[u64]) -> Vec<OwnPages> {
    let mut found = Vec::new();
    pages.for_each(|page| search.look(page, (0, valid), |own| own.push_to(&mut found)));
    found
}

/// Searches a key table at the drive. `None`: the drive lacks the program, or the table is damaged, and the host searches it.
async fn find_at_drive(
    engine: &HashedEngine,
    io: &Io,
    segment: &Arc<Segment>,
    mut search: PageSearch,
    valid: &[u64],
) -> Result<Option<Vec<OwnPages>>, Error> {
    let Some(program) = engine.programs.own_pages else { return Ok(None) };
    let io = io.of(Purpose::Scan);
    let mut found = Vec::new();
    let mut buffer = io.allocate(BUFFER_BYTES).await?;
    for first in (0..segment.key_pages()).step_by(PAGES_AT_ONCE as usize) {
        let pages = first..segment.key_pages().min(first + PAGES_AT_ONCE);
        let pages_bytes = pages.len() * PAGE_BYTES;
        let (read_into, done) =
            Transfer::read(&io, buffer, 0, segment.key_runs(pages)).end("read of a key table").await;
        buffer = read_into;
        done?;
        encode_parameters(segment.salt, first, &search, io.fill(&mut buffer, PARAMETERS_AT..VALID_AT));
        let words = valid.get(search.entry_next as usize / 64..).unwrap_or_default();
        let words = &words[..words.len().min(VALID_WORDS)];
        let to = io.fill(&mut buffer, VALID_AT..VALID_AT + 8 * words.len());
        to.chunks_exact_mut(8).zip(words).for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
        let at = |at: usize, length: usize| LocalRange { offset: buffer.offset() + at as u64, length: length as u32 };
        let inputs = [at(0, pages_bytes), at(VALID_AT, 8 * words.len())];
        let stage = Stage::Execute(Execution::new(
            program,
            at(PARAMETERS_AT, PARAMETERS_BYTES),
            &inputs,
            at(OUTPUT_AT, OUTPUT_BYTES),
        ));
        let stages = at(STAGES_AT, Stage::ENCODED_BYTES);
        io.fill(&mut buffer, STAGES_AT..OUTPUT_AT).copy_from_slice(&stage.encode());
        let completion = Transfer::run(&io, &mut buffer, Operation::Pipeline { stages }).await;
        match completion.status {
            Status::Success => {}
            CORRUPT => return Ok(None),
            _ => return io.succeeded(&completion, "search of a key table").map(|()| None),
        }
        let bytes = usize::try_from(completion.result[0]).unwrap_or(usize::MAX).min(OUTPUT_BYTES);
        let output = io.look(&buffer, OUTPUT_AT..OUTPUT_AT + bytes);
        let Some((next, own)) = decode_output(output) else {
            return Err(Error::Io("the drive found pages that are none in a key table".into()));
        };
        own.for_each(|own| own.push_to(&mut found));
        search = next;
    }
    Ok(Some(found))
}

/// Searches a key table on the host. [`KeyReader`] repairs damaged pages.
async fn find_on_host(
    engine: &HashedEngine,
    io: &Io,
    segment: &Arc<Segment>,
    mut search: PageSearch,
    valid: &[u64],
) -> Result<Vec<OwnPages>, Error> {
    let mut found = Vec::new();
    let mut reader = KeyReader::new(io, engine.drive.local(), engine.hasher.clone());
    let look = |read: &KeyPages<()>| {
        read.pages().for_each(|page| search.look(page, (0, valid), |own| own.push_to(&mut found)));
        Ok(())
    };
    reader.each(segment, look).await?;
    Ok(found)
}

/// The pages in which records of a keyspace with these hash keys start, in order; `None`: all pages with such hash keys are to be read.
///
/// # Errors
/// The key table cannot be read.
pub async fn between(
    engine: &HashedEngine,
    io: &Io,
    segment: &Arc<Segment>,
    keyspace: KeyspaceId,
    bounds: &RangeInclusive<HashKey>,
) -> Result<Option<Vec<Range<u32>>>, Error> {
    if !is_worth_a_look(segment, keyspace) {
        return Ok(None);
    }
    let mut found: Vec<Range<u32>> = Vec::new();
    let mut take = |page: KeyPage<'_>| {
        for (number, entry) in (page.first_entry..).zip(page.entries()) {
            let is_own = entry.keyspace() == keyspace.0 && bounds.contains(&entry.hash) && segment.is_valid(number);
            let pages = if is_own { segment.start_pages(entry.hash) } else { 0..0 };
            match found.last_mut() {
                _ if pages.is_empty() => {}
                Some(last) if pages.start <= last.end => last.end = last.end.max(pages.end),
                _ => found.push(pages),
            }
        }
    };
    let pages = segment.key_pages_between(*bounds.start(), *bounds.end());
    if let Some(table) = engine.segments.key_tables.get(segment.descriptor.version) {
        pages.for_each(|page| take(table.page(page)));
        return Ok(Some(found));
    }
    let mut reader = KeyReader::new(io, engine.drive.local(), engine.hasher.clone());
    for start in pages.clone().step_by(PAGES_PER_READ as usize) {
        reader.start(segment.clone(), start..pages.end.min(start + PAGES_PER_READ), ()).await?;
        if let Some(read) = reader.next().await? {
            read.pages().for_each(&mut take);
            reader.recycle(read);
        }
    }
    Ok(Some(found))
}
