//! `own-pages`: finds the data pages of a segment in which a keyspace has valid records, in pages of the segment's key table (nKV's walk over an
//! index block, at the drive).
//!
//! ```text
//! parameters: store id u64 · segment version u64 · first key-table page u32 · zero u32 · search
//! inputs:     key-table pages as read, one behind the other · valid bits of their entries, from the word on that has the next entry's
//! output:     search, as far as it came · pages · pages …
//! result:     bytes of the output · 0
//! ```
//! `search` and `pages` are [`PageSearch`]'s and [`OwnPages`]'s. Stateless. Its statuses: [`CORRUPT`] for a page that is not as it was written,
//! [`OUTPUT_SHORT`].

use super::{CORRUPT, OUTPUT_SHORT};
use crate::device::program::{Context, Program, ProgramDescriptor, ProgramResult};
use crate::protocol::Status;
use tapetum_kernels::data_page::{PAGE_BYTES, SegmentSalt};
use tapetum_kernels::key_table::KeyPage;
use tapetum_kernels::own_pages::{OwnPages, PageSearch};

/// Its name and version.
pub const OWN_PAGES: (&str, u16) = ("own-pages", 1);
pub const PARAMETERS_BYTES: usize = HEAD_BYTES + PageSearch::ENCODED_BYTES;
const HEAD_BYTES: usize = 24;

pub struct OwnPagesProgram;

/// The parameters for key-table pages from `first` on.
pub fn encode_parameters(salt: SegmentSalt, first: u32, search: &PageSearch, out: &mut [u8]) {
    out[..8].copy_from_slice(&salt.store.to_le_bytes());
    out[8..16].copy_from_slice(&salt.version.to_le_bytes());
    out[16..HEAD_BYTES].copy_from_slice(&u64::from(first).to_le_bytes());
    let mut encoded = [0; PageSearch::ENCODED_BYTES];
    search.encode(&mut encoded);
    out[HEAD_BYTES..PARAMETERS_BYTES].copy_from_slice(&encoded);
}

/// The search and the pages of an output. `None`: nothing that the program writes.
pub fn decode_output(output: &[u8]) -> Option<(PageSearch, impl Iterator<Item = OwnPages> + '_)> {
    let (search, pages) = output.split_first_chunk()?;
    let (pages, []) = pages.as_chunks() else { return None };
    Some((PageSearch::decode(search)?, pages.iter().map(OwnPages::decode)))
}

impl Program for OwnPagesProgram {
    fn descriptor(&self) -> ProgramDescriptor {
        ProgramDescriptor { name: OWN_PAGES.0, version: OWN_PAGES.1, is_stream: false }
    }

    fn run(&self, Context { parameters, inputs, output, .. }: Context<'_>) -> ProgramResult {
        find(parameters, inputs, output).unwrap_or_else(|failure| failure)
    }
}

fn find(parameters: &[u8], inputs: &[&[u8]], output: &mut [u8]) -> Result<ProgramResult, ProgramResult> {
    let invalid = (Status::InvalidField, [0; 2]);
    let (Some((head, search)), &[pages, valid]) = (parameters.split_first_chunk::<HEAD_BYTES>(), inputs) else {
        return Err(invalid);
    };
    let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| head[at + byte]));
    let salt = SegmentSalt { store: long(0), version: long(8) };
    let first = u32::try_from(long(16)).map_err(|_| invalid)?;
    let search: &[u8; PageSearch::ENCODED_BYTES] = search.try_into().map_err(|_| invalid)?;
    let mut search = PageSearch::decode(search).ok_or(invalid)?;
    let ((pages, []), (valid, [])) = (pages.as_chunks::<PAGE_BYTES>(), valid.as_chunks()) else { return Err(invalid) };
    let valid: Vec<u64> = valid.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let (entry_first, mut found) = (search.entry_next, Vec::new());
    for (number, page) in (u64::from(first)..).zip(pages) {
        let number = u32::try_from(number).map_err(|_| invalid)?;
        let page = KeyPage::parse(salt, number, page).map_err(|_| (CORRUPT, [0; 2]))?;
        search.look(page, (entry_first, &valid), |own| own.push_to(&mut found));
    }
    let bytes = PageSearch::ENCODED_BYTES + found.len() * OwnPages::ENCODED_BYTES;
    let result = [bytes as u64, 0];
    let Some((to_search, to_pages)) = output.get_mut(..bytes).and_then(|room| room.split_first_chunk_mut()) else {
        return Err((OUTPUT_SHORT, result));
    };
    search.encode(to_search);
    for (own, to) in found.iter().zip(to_pages.as_chunks_mut().0) {
        own.encode(to);
    }
    Ok((Status::Success, result))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::program::TaskState;
    use tapetum_kernels::data_page::PageSize;
    use tapetum_kernels::hash::HashKey;
    use tapetum_kernels::key_table::{Entry, PageBuilder};
    use tapetum_kernels::stream_layout::StreamLayout;

    const SALT: SegmentSalt = SegmentSalt { store: 5, version: 9 };
    const EXTENT: u64 = 16 * 4084;

    /// Records of 300 bytes: of keyspace 7 those whose numbers `is_own` names, of keyspace 8 all others.
    fn key_pages(count: u32, is_own: impl Fn(u32) -> bool) -> Vec<u8> {
        let (mut pages, mut builder, mut first) = (Vec::new(), PageBuilder::default(), 0);
        let mut encode = |builder: &mut PageBuilder, first: u32| {
            let at = pages.len();
            pages.resize(at + PAGE_BYTES, 0);
            builder.encode(SALT, (at / PAGE_BYTES) as u32, first, &mut pages[at..]);
        };
        for number in 0..count {
            let route = if is_own(number) { 7 } else { 8 };
            let entry = Entry { hash: HashKey(u128::from(number) << 90), size_bytes: 300, route };
            if !builder.fits(&entry) {
                encode(&mut builder, first);
                first = number;
            }
            builder.push(entry);
        }
        encode(&mut builder, first);
        pages
    }

    fn run(parameters: &[u8], inputs: &[&[u8]], room: usize) -> (ProgramResult, Vec<u8>) {
        let (mut output, mut task) = (vec![0; room], TaskState::default());
        let result = OwnPagesProgram.run(Context { parameters, inputs, output: &mut output, task: &mut task });
        output.truncate(result.1[0] as usize);
        (result, output)
    }

    fn parameters(first: u32, search: &PageSearch) -> Vec<u8> {
        let mut parameters = vec![0; PARAMETERS_BYTES];
        encode_parameters(SALT, first, search, &mut parameters);
        parameters
    }

    /// Passes the pages so many at a time.
    fn pages_of(pages: &[u8], valid: &[u64], at_a_time: usize) -> Vec<OwnPages> {
        let mut search = PageSearch::new(7, PageSize::Large, 400, StreamLayout::new(EXTENT));
        let mut found = Vec::new();
        for (number, part) in pages.chunks(at_a_time * PAGE_BYTES).enumerate() {
            let words: Vec<u8> =
                valid[search.entry_next as usize / 64..].iter().flat_map(|word| word.to_le_bytes()).collect();
            let parameters = parameters((number * at_a_time) as u32, &search);
            let ((status, _), output) = run(&parameters, &[part, &words], 1 << 20);
            assert_eq!(status, Status::Success);
            let (next, own) = decode_output(&output).unwrap();
            own.for_each(|own| own.push_to(&mut found));
            search = next;
        }
        found
    }

    #[test]
    fn the_pages_of_a_keyspaces_valid_records_come_out_however_many_are_passed_at_a_time() {
        let is_own = |number: u32| number % 100 < 3 || (2000..2400).contains(&number);
        let pages = key_pages(5000, is_own);
        assert!(pages.len() > 8 * PAGE_BYTES);
        let mut valid = vec![u64::MAX; 5000 / 64 + 1];
        // 300 to 302 are dead.
        valid[300 / 64] &= !(7 << (300 % 64));
        let found = pages_of(&pages, &valid, 1);
        for at_a_time in [2, 5, 100] {
            assert_eq!(pages_of(&pages, &valid, at_a_time), found);
        }
        let mut layout = StreamLayout::new(EXTENT);
        let starts: Vec<u32> = (0..5000).map(|_| PageSize::Large.page_of(layout.place(300))).collect();
        for (number, start) in (0..5000u32).zip(starts) {
            let covers = found.iter().any(|own| own.pages.contains(&start) && number < own.entry_end);
            let is_there = is_own(number) && !(300..303).contains(&number);
            assert!(covers || !is_there, "{number} in page {start}");
        }
        let read: usize = found.iter().map(|own| own.pages.len()).sum();
        // 50 places of three records take at most two pages each, and 400 records 30.
        assert!(read <= 50 * 2 + 31, "{read} pages");
        assert!(found.windows(2).all(|pair| pair[0].pages.end < pair[1].pages.start));
    }

    #[test]
    fn what_is_no_table_or_finds_no_room_is_said() {
        let pages = key_pages(500, |number| number % 40 == 0);
        let search = PageSearch::new(7, PageSize::Large, 40, StreamLayout::new(EXTENT));
        let (good, valid) = (parameters(0, &search), [0xff; 64]);
        let ((status, [bytes, _]), _) = run(&good, &[&pages, &valid], PageSearch::ENCODED_BYTES);
        assert_eq!(status, OUTPUT_SHORT);
        assert_eq!(run(&good, &[&pages, &valid], bytes as usize).0.0, Status::Success);
        assert_eq!(run(&parameters(1, &search), &[&pages, &valid], 4096).0.0, CORRUPT, "they are others");
        let invalid = |parameters: &[u8], inputs: &[&[u8]]| {
            assert_eq!(run(parameters, inputs, 4096).0.0, Status::InvalidField);
        };
        invalid(&good[1..], &[&pages, &valid]);
        invalid(&good, &[&pages]);
        invalid(&good, &[&pages[1..], &valid]);
        invalid(&good, &[&pages, &valid[1..]]);
        let mut other = good.clone();
        other[HEAD_BYTES + 2] = 3;
        invalid(&other, &[&pages, &valid]);
    }
}
