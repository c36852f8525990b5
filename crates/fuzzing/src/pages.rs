//! The parts of a segment: data pages, which the drive's program searches, and key-table pages.

use std::cell::RefCell;
use tapetum::fuzzing::Input;
use tapetum_drive::Status;
use tapetum_drive::program::{Context, Program, TaskState};
use tapetum_drive::programs::match_record::{self, MatchRecord, Matched, OUTPUT_HEAD_BYTES, Pages, Place};
use tapetum_kernels::codec::Compressor;
use tapetum_kernels::data_page::{PAGE_BYTES, PageRun, PageSize, SegmentSalt, Trailer, record_checksum, stream_ranges};
use tapetum_kernels::expiry::Expiry;
use tapetum_kernels::hash::HashKey;
use tapetum_kernels::key_table::{Entry, KeyPage, PageBuilder};
use tapetum_kernels::record::{Codec, HEADER_BYTES_MAX, Header, Record};

const SALT: SegmentSalt = SegmentSalt { store: 5, version: 9 };
const PAGES_MAX: u32 = 6;

thread_local! {
    static COMPRESSOR: RefCell<Compressor> = RefCell::new(Compressor::new().expect("a context for zstd"));
}

/// A record of a segment.
struct Item {
    header: Header,
    key: Vec<u8>,
    value: Vec<u8>,
    stored: Vec<u8>,
    address: u64,
}

/// Items from an input, with different keys, and their addresses in a stream of at most [`PAGES_MAX`] large pages.
fn items(input: &mut Input<'_>) -> Vec<Item> {
    let mut items = Vec::new();
    let mut address = 0u64;
    while !input.is_empty() && items.len() < 12 {
        let shape = input.u8();
        let length = [0, 1, 13, 70, 200, 900, 3000, 9000][usize::from(shape & 7)] + usize::from(input.u8());
        let mut key = vec![items.len() as u8];
        key.extend_from_slice(input.bytes(usize::from(shape >> 6)));
        let unit = [input.bytes(4), &[shape]].concat();
        let mut value = unit.repeat(length.div_ceil(unit.len()));
        value.truncate(length);
        let (codec, stored) = match shape >> 3 & 3 {
            0 => COMPRESSOR.with_borrow_mut(|compressor| {
                let (codec, stored) = compressor.compress(&value);
                (codec, stored.to_vec())
            }),
            1 => (Codec::OutOfLine, value[..length.min(20)].to_vec()),
            _ => (Codec::Raw, value.clone()),
        };
        let mut header = Header::value(items.len() as u64, key.len(), stored.len());
        header.codec = codec;
        header.raw_bytes = value.len() as u32;
        (header.flags, header.expiry) =
            if shape & 32 == 0 { (0, Expiry::NONE) } else { (u32::from(shape), Expiry::from_millis(7)) };
        let end = address + header.record_bytes() as u64;
        if end > PageSize::Large.address(PAGES_MAX) {
            break;
        }
        items.push(Item { header, key, value, stored, address });
        address = end;
    }
    items
}

fn data_pages(items: &[Item], size: PageSize) -> Vec<u8> {
    let mut stream = Vec::new();
    for item in items {
        let at = item.address as usize;
        stream.resize(at + item.header.record_bytes(), 0);
        Record { header: item.header, key: &item.key, stored: &item.stored }.encode(&mut stream[at..]);
        let crc = record_checksum(SALT, item.address, &stream[at..]);
        stream[at..at + 4].copy_from_slice(&crc.to_le_bytes());
    }
    let mut bytes = Vec::new();
    for (page, payload) in (0..).zip(stream.chunks(size.payload_bytes())) {
        let (from, at) = (size.address(page), bytes.len());
        let entry_first = items.partition_point(|item| item.address < from);
        let starts = items.partition_point(|item| item.address < size.address(page + 1)) - entry_first;
        let first = if starts == 0 { 0 } else { (items[entry_first].address - from) as u16 };
        let trailer = Trailer { first, starts: starts as u16, entry_first: entry_first as u32 };
        bytes.extend_from_slice(payload);
        bytes.resize(at + size.bytes(), 0);
        trailer.encode(SALT, page, &mut bytes[at..]);
    }
    bytes
}

fn search(run: PageRun<'_>, keyspace: u16, key: &[u8], output: &mut [u8]) -> (Status, [u64; 2]) {
    let mut parameters = vec![0; match_record::parameters_bytes(key)];
    let pages = Pages { salt: SALT, size: run.page_size, first: run.first_page, record_bytes: 40 };
    match_record::encode_parameters(pages, keyspace, key, &mut parameters);
    MatchRecord.prefetch(0, &parameters, &[run.bytes]);
    MatchRecord.prefetch(1, &parameters, &[run.bytes]);
    let task = &mut TaskState::default();
    MatchRecord.run(Context { parameters: &parameters, inputs: &[run.bytes], output, task })
}

fn matched(output: &[u8]) -> Matched {
    Matched::parse(output[..OUTPUT_HEAD_BYTES].try_into().expect("a head"))
}

/// An item is found only in the page where it starts. In damaged pages it is found unchanged, or there is an error.
pub fn match_record(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (damage_at, damage, which) = (input.u16(), input.array::<3>(), input.u8());
    let items = items(&mut input);
    let page_size = if which & 128 == 0 { PageSize::Large } else { PageSize::Small };
    let mut bytes = data_pages(&items, page_size);
    if items.is_empty() {
        return;
    }
    let damaged = damage != [0; 3];
    if damaged {
        // Neighbouring bytes, because the checksum detects any burst of this length.
        let at = usize::from(damage_at) % (bytes.len() - damage.len());
        bytes[at..].iter_mut().zip(damage).for_each(|(byte, damage)| *byte ^= damage);
    }
    let number = usize::from(which) % items.len();
    let item = &items[number];
    let first_page = page_size.page_of(item.address);
    let run = PageRun { bytes: &bytes[first_page as usize * page_size.bytes()..], first_page, page_size };
    let mut output = vec![0; OUTPUT_HEAD_BYTES + item.value.len() + item.stored.len()];
    let (status, result) = search(run, item.header.keyspace, &item.key, &mut output);
    if !(damaged && status == match_record::CORRUPT) {
        assert_eq!(status, Status::Success, "{:?}", item.header);
        check_match(item, number, run, &output);
        assert_eq!(result[0], u64::from(matched(&output).value_bytes));
    }
    let strange = search(PageRun { bytes: &bytes, first_page: 0, page_size }, 0, b"\xff", &mut output).0;
    assert!(strange == match_record::MISSING || (damaged && strange == match_record::CORRUPT), "{strange:?}");
}

fn check_match(item: &Item, number: usize, run: PageRun<'_>, output: &[u8]) {
    let found = matched(output);
    let header = &item.header;
    assert_eq!((found.stamp, found.flags, found.expiry), (header.stamp, header.flags, header.expiry));
    assert_eq!((found.entry, found.raw_bytes), (number as u32, item.value.len() as u32));
    let (place, expected) = match found.place {
        Place::Output => (None, &item.value),
        Place::Stream(address) => (Some(address), &item.value),
        Place::OutOfLine(address) => (Some(address), &item.stored),
    };
    assert_eq!(found.value_bytes as usize, expected.len());
    assert_eq!(matches!(found.place, Place::OutOfLine(_)), header.codec == Codec::OutOfLine);
    let mut value = output[OUTPUT_HEAD_BYTES..][..expected.len()].to_vec();
    if let Some(address) = place {
        let copied = run.copy(address, &mut value);
        assert_eq!(copied, expected.len());
    }
    assert_eq!(&value, expected);
}

/// Arbitrary pages with valid checksums: the program stays within bounds.
pub fn sealed_page(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let first_page = input.u8().into();
    let page_size = if first_page % 2 == 0 { PageSize::Large } else { PageSize::Small };
    let trailer = Trailer { first: input.u16(), starts: input.u8().into(), entry_first: input.u32() };
    let key_bytes = input.below(20);
    let key = input.bytes(key_bytes);
    let output_bytes = usize::from(input.u16());
    let mut pages = input.rest().to_vec();
    pages.resize(PAGE_BYTES * 2, 0);
    trailer.encode(SALT, first_page, &mut pages[..page_size.bytes()]);
    let mut address = page_size.address(first_page) + u64::from(trailer.first);
    for _ in 0..trailer.starts {
        let Some(length) = seal_record(&mut pages, first_page, page_size, address) else { break };
        address += length as u64;
    }
    let mut output = vec![0; output_bytes];
    let status = search(PageRun { bytes: &pages, first_page, page_size }, 0, key, &mut output).0;
    if status == Status::Success {
        let found = matched(&output);
        assert!(trailer.starts > 0 && found.entry.wrapping_sub(trailer.entry_first) < trailer.starts.into());
        if found.place == Place::Output {
            assert!(OUTPUT_HEAD_BYTES + found.value_bytes as usize <= output.len());
        }
    }
}

/// Corrects the checksum of the record at `address`. Returns its length, if it lies in the pages.
fn seal_record(pages: &mut [u8], first_page: u32, page_size: PageSize, address: u64) -> Option<usize> {
    let run = PageRun { bytes: pages, first_page, page_size };
    let mut head = [0; HEADER_BYTES_MAX];
    let filled = run.copy(address, &mut head);
    let length = Header::parse(&head[..filled]).ok()?.0.record_bytes();
    if length > pages.len() {
        return None;
    }
    let mut record = vec![0; length];
    if run.copy(address, &mut record) < length {
        return None;
    }
    let crc = record_checksum(SALT, address, &record).to_le_bytes();
    let mut done = 0;
    for (at, count) in stream_ranges(page_size, first_page, address, crc.len()) {
        pages[at..at + count].copy_from_slice(&crc[done..done + count]);
        done += count;
    }
    Some(length)
}

/// Key-table pages: entries read back, damage is an error, and an arbitrary page stays within bounds.
pub fn key_table(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    if input.u8() & 1 == 0 { written_key_pages(&mut input) } else { sealed_key_page(&mut input) }
}

fn written_key_pages(input: &mut Input<'_>) {
    let (damage_at, damage) = (input.u16(), input.array::<3>());
    let mut hash = input.u128() >> 1;
    let (mut entries, mut pages, mut builder) = (Vec::new(), Vec::new(), PageBuilder::default());
    while !input.is_empty() && pages.len() < 3 {
        let shift = u32::from(input.u8()) % 128;
        let Some(next) = hash.checked_add((u128::from(input.u16()) << shift).max(1)) else { break };
        hash = next;
        let route = if shift % 16 == 3 { u32::from(input.u16()) } else { 0 };
        let entry = Entry { hash: HashKey(hash), size_bytes: input.number(), route };
        if !builder.fits(&entry) {
            end_page(&mut builder, &mut pages, entries.len());
        }
        builder.push(entry);
        entries.push(entry);
    }
    end_page(&mut builder, &mut pages, entries.len());
    let mut first = 0;
    for (number, bytes) in pages.iter_mut().enumerate() {
        let page = KeyPage::parse(SALT, number as u32, bytes).expect("what was written holds");
        assert_eq!(page.first_entry as usize, first);
        assert!(page.entries().eq(entries[first..first + page.count()].iter().copied()));
        for (place, entry) in page.entries().enumerate() {
            assert_eq!(page.lower_bound(entry.hash), place);
        }
        first += page.count();
        if damage != [0; 3] {
            let at = usize::from(damage_at) % (PAGE_BYTES - damage.len());
            bytes[at..].iter_mut().zip(damage).for_each(|(byte, damage)| *byte ^= damage);
            assert!(KeyPage::parse(SALT, number as u32, bytes).is_err(), "damage at byte {at}");
        }
    }
    assert_eq!(first, entries.len());
}

fn end_page(builder: &mut PageBuilder, pages: &mut Vec<Vec<u8>>, entries: usize) {
    let mut bytes = vec![0; PAGE_BYTES];
    let first: usize = pages.iter().map(|page: &Vec<u8>| usize::from(u16::from_le_bytes([page[4], page[5]]))).sum();
    assert!(first <= entries);
    builder.encode(SALT, pages.len() as u32, first as u32, &mut bytes);
    pages.push(bytes);
}

fn sealed_key_page(input: &mut Input<'_>) {
    const ADDRESS_KEY_TABLE: u64 = 1 << 63;
    let hash = HashKey(input.u128());
    let mut bytes = [0; 4].iter().chain(input.rest()).copied().collect::<Vec<u8>>();
    bytes.resize(PAGE_BYTES, 0);
    let crc = tapetum_kernels::checksum::crc32c_salted(SALT.at(ADDRESS_KEY_TABLE | 3), &bytes[4..]);
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
    if let Ok(page) = KeyPage::parse(SALT, 3, &bytes) {
        assert_eq!(page.entries().count(), page.count());
        assert!(page.lower_bound(hash) <= page.count());
        if page.entries().map(|entry| entry.hash).is_sorted() {
            assert_eq!(page.lower_bound(hash), page.entries().take_while(|entry| entry.hash < hash).count());
        }
    }
}
