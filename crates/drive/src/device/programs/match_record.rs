//! Match and decompress: the program of a hashed GET (XDP, section 4: the flash page read, then keyspace and full key compared).
//!
//! ```text
//! parameters: store id u64 · segment version u64 · first page u32 · key length u16 · keyspace u16
//!             page bytes u32 · record bytes u32 · key
//! input:      data pages as read, from the page in which the record may start
//! output:     stamp u64 · value address u64 · value length u32 · flags u32 · expiry 48 bits
//!             place u8 · marks u8 · entry u32 · raw length u32 · value if inflated
//! result:     value length · entry
//! ```
//! A raw value stays in the input: `place` is 0, and `value address` is in the segment's stream. A compressed value is inflated behind the
//! output's head: `place` is 1. For a value out of line, its reference stays in the input: `place` is 2, and `value length` is the
//! reference's length. `record bytes` is the mean length of the pages' records, a hint where their headers lie.
//! Stateless. Each thread keeps its own contexts for inflating.

use super::inflate;
use crate::device::program::{Context, Program, ProgramDescriptor, ProgramResult};
use crate::protocol::Status;
use tapetum_kernels::data_page::{FoundRecord, PageRun, PageSize, SegmentSalt, Trailer};
use tapetum_kernels::expiry::Expiry;
use tapetum_kernels::prefetch::prefetch;
use tapetum_kernels::record::{Codec, KEY_BYTES_MAX, Marks};

pub const NAME: &str = "match-record";
pub const VERSION: u16 = 3;

/// No record of the key starts in the page.
pub const MISSING: Status = Status::Program(1);
/// A checksum did not hold.
pub use super::CORRUPT;
/// The output is too short. The second word of the result is the number of its bytes that the value takes.
pub use super::OUTPUT_SHORT;

const PARAMETERS_HEAD_BYTES: usize = 32;
pub const OUTPUT_HEAD_BYTES: usize = 40;
/// Guesses for headers further on are too far off to be useful.
const HEADERS_PREFETCHED: usize = 4;

pub struct MatchRecord;

/// The pages in which to look for a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pages {
    pub salt: SegmentSalt,
    pub size: PageSize,
    /// The number of the first one.
    pub first: u32,
    /// The mean length of their records.
    pub record_bytes: u32,
}

pub fn parameters_bytes(key: &[u8]) -> usize {
    PARAMETERS_HEAD_BYTES + key.len()
}

pub fn encode_parameters(pages: Pages, keyspace: u16, key: &[u8], out: &mut [u8]) {
    assert!(key.len() <= KEY_BYTES_MAX);
    out[..8].copy_from_slice(&pages.salt.store.to_le_bytes());
    out[8..16].copy_from_slice(&pages.salt.version.to_le_bytes());
    out[16..20].copy_from_slice(&pages.first.to_le_bytes());
    out[20..22].copy_from_slice(&(key.len() as u16).to_le_bytes());
    out[22..24].copy_from_slice(&keyspace.to_le_bytes());
    out[24..28].copy_from_slice(&(pages.size.bytes() as u32).to_le_bytes());
    out[28..32].copy_from_slice(&pages.record_bytes.to_le_bytes());
    out[32..32 + key.len()].copy_from_slice(key);
}

/// The head of the output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Matched {
    pub stamp: u64,
    pub flags: u32,
    pub expiry: Expiry,
    pub marks: Marks,
    pub value_bytes: u32,
    /// The length of the value itself; `value_bytes` may be the length of its reference.
    pub raw_bytes: u32,
    /// The record's number in the segment. The host knows whether the record is valid.
    pub entry: u32,
    pub place: Place,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// In the input, at this address of the segment's stream.
    Stream(u64),
    /// In the output, right behind the head.
    Output,
    /// In its own extents: the reference to them is in the input, at this address of the segment's stream.
    OutOfLine(u64),
}

impl Matched {
    /// A record whose value, or the reference to it, stays in the input.
    pub(super) fn of(record: &FoundRecord) -> Matched {
        let (header, address) = (&record.header, record.stored_address());
        let (value_bytes, place) = match header.codec {
            Codec::OutOfLine => (header.stored_bytes, Place::OutOfLine(address)),
            _ => (header.raw_bytes, Place::Stream(address)),
        };
        Matched {
            stamp: header.stamp,
            flags: header.flags,
            expiry: header.expiry,
            marks: header.marks,
            value_bytes,
            raw_bytes: header.raw_bytes,
            entry: record.entry,
            place,
        }
    }

    pub(super) fn encode(&self, out: &mut [u8]) {
        let (place, address) = match self.place {
            Place::Stream(address) => (0u8, address),
            Place::Output => (1, 0),
            Place::OutOfLine(address) => (2, address),
        };
        out[..8].copy_from_slice(&self.stamp.to_le_bytes());
        out[8..16].copy_from_slice(&address.to_le_bytes());
        out[16..20].copy_from_slice(&self.value_bytes.to_le_bytes());
        out[20..24].copy_from_slice(&self.flags.to_le_bytes());
        out[24..30].copy_from_slice(&self.expiry.to_bytes());
        out[30..32].copy_from_slice(&[place, self.marks.bits()]);
        out[32..36].copy_from_slice(&self.entry.to_le_bytes());
        out[36..40].copy_from_slice(&self.raw_bytes.to_le_bytes());
    }

    /// Reads an output's head.
    pub fn parse(head: &[u8; OUTPUT_HEAD_BYTES]) -> Matched {
        let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let place = match head[30] {
            0 => Place::Stream(long(8)),
            1 => Place::Output,
            _ => Place::OutOfLine(long(8)),
        };
        let (flags, expiry, marks) = (word(20), Expiry::from_flash(long(24)), Marks::from_bits(head[31]));
        let (value_bytes, entry, raw_bytes) = (word(16), word(32), word(36));
        Matched { stamp: long(0), flags, expiry, marks, value_bytes, raw_bytes, entry, place }
    }
}

impl Program for MatchRecord {
    fn descriptor(&self) -> ProgramDescriptor {
        ProgramDescriptor { name: NAME, version: VERSION, is_stream: false }
    }

    fn run(&self, Context { parameters, inputs, output, .. }: Context<'_>) -> ProgramResult {
        match find(parameters, inputs, output) {
            Ok(Match { run, record, .. }) => deliver(run, &record, output),
            Err(result) => result,
        }
    }

    fn prefetch(&self, round: usize, parameters: &[u8], inputs: &[&[u8]]) {
        prefetch_pages(round, parameters, inputs);
    }
}

/// A record that was looked for.
pub(super) struct Match<'a> {
    pub run: PageRun<'a>,
    pub record: FoundRecord,
    /// The bytes behind the parameters.
    pub rest: &'a [u8],
}

/// Looks for the record that the parameters name. The output has room for a head then.
pub(super) fn find<'a>(parameters: &'a [u8], inputs: &[&'a [u8]], output: &[u8]) -> Result<Match<'a>, ProgramResult> {
    let (Some((pages, (keyspace, key))), [input]) = (parse_parameters(parameters), inputs) else {
        return Err((Status::InvalidField, [0; 2]));
    };
    if output.len() < OUTPUT_HEAD_BYTES {
        return Err((OUTPUT_SHORT, [OUTPUT_HEAD_BYTES as u64, 0]));
    }
    let run = PageRun { bytes: input, first_page: pages.first, page_size: pages.size };
    match run.find(pages.salt, keyspace, key) {
        Ok(Some(record)) => Ok(Match { run, record, rest: &parameters[parameters_bytes(key)..] }),
        Ok(None) => Err((MISSING, [0; 2])),
        Err(_) => Err((CORRUPT, [0; 2])),
    }
}

/// Prefetches what a search reads first.
pub(super) fn prefetch_pages(round: usize, parameters: &[u8], inputs: &[&[u8]]) {
    let Some(input) = inputs.first() else { return };
    if round == 0 {
        prefetch(parameters.as_ptr());
        // The trailer, where the search begins, for either page size.
        let trailers = [PageSize::Small, PageSize::Large].map(|size| input.get(size.bytes() - 1));
        trailers.into_iter().flatten().for_each(|byte| prefetch(byte));
    } else if let Some((pages, _)) = parse_parameters(parameters)
        && let Some(page) = input.get(..pages.size.bytes())
    {
        let headers = (Trailer::first_hint(page)..page.len()).step_by(pages.record_bytes.max(1) as usize);
        headers.take(HEADERS_PREFETCHED).for_each(|at| prefetch(&page[at]));
    }
}

/// The pages, and a keyspace's id and a key of it.
fn parse_parameters(bytes: &[u8]) -> Option<(Pages, (u16, &[u8]))> {
    let head = bytes.get(..PARAMETERS_HEAD_BYTES)?;
    let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
    let (key_bytes, keyspace) = (word(20) as usize & 0xffff, (word(20) >> 16) as u16);
    let key = bytes.get(PARAMETERS_HEAD_BYTES..PARAMETERS_HEAD_BYTES + key_bytes)?;
    let salt = SegmentSalt { store: long(0), version: long(8) };
    Some((Pages { salt, size: PageSize::of(word(24))?, first: word(16), record_bytes: word(28) }, (keyspace, key)))
}

fn deliver(run: PageRun<'_>, record: &FoundRecord, output: &mut [u8]) -> (Status, [u64; 2]) {
    let (header, mut matched) = (&record.header, Matched::of(record));
    if header.codec != Codec::OutOfLine && header.codec != Codec::Raw {
        let (raw, stored) = (header.raw_bytes as usize, header.stored_bytes as usize);
        let needed = OUTPUT_HEAD_BYTES + raw + stored;
        if output.len() < needed {
            return (OUTPUT_SHORT, [needed as u64, raw as u64]);
        }
        let (value, frame) = output[OUTPUT_HEAD_BYTES..needed].split_at_mut(raw);
        run.copy(record.stored_address(), frame);
        if header.codec != Codec::Zstd || !inflate(frame, value) {
            return (CORRUPT, [0; 2]);
        }
        matched.place = Place::Output;
    }
    matched.encode(output);
    (Status::Success, [matched.value_bytes, matched.entry].map(u64::from))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::device::program::TaskState;
    use tapetum_kernels::codec::Compressor;
    use tapetum_kernels::data_page::{PAGE_BYTES, Trailer, record_checksum};
    use tapetum_kernels::record::{Header, Record};

    const SALT: SegmentSalt = SegmentSalt { store: 1, version: 2 };

    pub fn page(value: &[u8]) -> Vec<u8> {
        let mut compressor = Compressor::new().unwrap();
        let (codec, stored) = compressor.compress(value);
        let mut header = Header::value(9, 3, stored.len());
        (header.codec, header.raw_bytes, header.flags, header.expiry) =
            (codec, value.len() as u32, 5, Expiry::from_millis(6));
        header.keyspace = 5;
        let mut page = vec![0; PAGE_BYTES];
        let length = Record { header, key: b"key", stored }.encode(&mut page);
        let crc = record_checksum(SALT, 4084 * 7, &page[..length]);
        page[..4].copy_from_slice(&crc.to_le_bytes());
        Trailer { first: 0, starts: 1, entry_first: 3 }.encode(SALT, 7, &mut page);
        page
    }

    pub fn pages() -> Pages {
        Pages { salt: SALT, size: PageSize::Large, first: 7, record_bytes: 40 }
    }

    fn run(page: &[u8], key: &[u8], output: &mut [u8]) -> (Status, [u64; 2]) {
        run_in(page, 5, key, output)
    }

    fn run_in(page: &[u8], keyspace: u16, key: &[u8], output: &mut [u8]) -> (Status, [u64; 2]) {
        let mut parameters = vec![0; parameters_bytes(key)];
        encode_parameters(pages(), keyspace, key, &mut parameters);
        let task = &mut TaskState::default();
        MatchRecord.run(Context { parameters: &parameters, inputs: &[page], output, task })
    }

    #[test]
    fn a_compressed_value_is_inflated_and_a_raw_one_stays_where_it_is() {
        let text = b"mirror ".repeat(100);
        let mut output = vec![0; 2048];
        assert_eq!(run(&page(&text), b"key", &mut output).0, Status::Success);
        let matched = Matched::parse(output[..40].try_into().unwrap());
        assert_eq!((matched.place, matched.stamp, matched.flags, matched.expiry.millis()), (Place::Output, 9, 5, 6));
        assert_eq!(output[40..40 + matched.value_bytes as usize], text);
        assert_eq!(run(&page(b"raw"), b"key", &mut output).0, Status::Success);
        let matched = Matched::parse(output[..40].try_into().unwrap());
        assert_eq!((matched.value_bytes, matched.entry, matched.place), (3, 3, Place::Stream(4084 * 7 + 15 + 10 + 3)));
    }

    #[test]
    fn other_keys_are_missing_and_damage_is_told_apart() {
        let mut output = vec![0; 2048];
        let mut page = page(b"raw");
        assert_eq!(run(&page, b"other", &mut output).0, MISSING);
        assert_eq!(
            [0, 5, 6].map(|keyspace| run_in(&page, keyspace, b"key", &mut output).0),
            [MISSING, Status::Success, MISSING]
        );
        page[20] ^= 1;
        assert_eq!(run(&page, b"key", &mut output).0, CORRUPT);
    }

    #[test]
    fn a_short_output_says_how_much_it_takes() {
        let text = b"mirror ".repeat(100);
        let mut output = vec![0; 64];
        let (status, [needed, value_bytes]) = run(&page(&text), b"key", &mut output);
        assert_eq!((status, value_bytes), (OUTPUT_SHORT, text.len() as u64));
        assert_eq!(run(&page(&text), b"key", &mut vec![0; needed as usize]).0, Status::Success);
    }
}
