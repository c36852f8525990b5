//! The small formats: records, references to large values, fences, compressed values.

use std::cell::RefCell;
use tapetum::fuzzing::Input;
use tapetum_kernels::codec::{Compressor, Decompressor};
use tapetum_kernels::data_page::{PAGE_BYTES, SegmentSalt};
use tapetum_kernels::fence_page::{self, FENCE_PAYLOAD_BYTES};
use tapetum_kernels::fences::{Fences, PageStarts};
use tapetum_kernels::record::{Codec, HEADER_BYTES_MAX, Header, KEY_BYTES_MAX, Record, VALUE_BYTES_MAX};
use tapetum_kernels::reference::Reference;

/// A parsed header is within its limits, and reads back when written.
pub fn record(bytes: &[u8]) {
    let Ok((header, header_bytes)) = Header::parse(bytes) else { return };
    assert!(header_bytes <= bytes.len() && header.header_bytes() <= header_bytes);
    assert!(header.key_bytes as usize <= KEY_BYTES_MAX && header.stored_bytes as usize <= VALUE_BYTES_MAX);
    let mut head = [0; HEADER_BYTES_MAX];
    let written = header.encode(&mut head);
    assert_eq!(Header::parse(&head[..written]), Ok((header, written)));
    for short in 0..written {
        assert!(Header::parse(&head[..short]).is_err(), "{short} of {written} bytes");
    }
    if let Ok(record) = Record::parse(bytes) {
        assert_eq!(record.header, header);
        let mut again = vec![0; header.record_bytes()];
        assert_eq!(record.encode(&mut again), again.len());
        let read = Record::parse(&again).expect("what was written reads back");
        assert_eq!((read.key, read.stored), (record.key, record.stored));
        assert!(Record::parse(&again[..again.len() - 1]).is_err(), "a record that is cut");
    }
}

/// A parsed reference has extents, and reads back when written.
pub fn reference(bytes: &[u8]) {
    let Ok(reference) = Reference::parse(bytes) else { return };
    assert!(reference.runs.iter().all(|run| run.first.checked_add(run.count).is_some()));
    assert!(reference.extents() >= reference.runs.len() as u64);
    let written = reference.encode();
    assert!(written.len() <= bytes.len());
    assert_eq!(Reference::parse(&written), Ok(reference));
}

/// Fences of pages give the page of each record, on flash as in memory; arbitrary fences stay within bounds.
pub fn fences(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    if input.u8() & 1 == 0 { built_fences(&mut input) } else { strange_fences(&mut input) }
}

fn built_fences(input: &mut Input<'_>) {
    let mut starts: Vec<Option<PageStarts>> = Vec::new();
    let mut prefix = input.u64() >> (input.u8() % 64);
    while !input.is_empty() && starts.len() < 3000 {
        let shape = input.u8();
        let empty = if shape & 3 == 0 { usize::from(shape >> 2) } else { 0 };
        starts.resize(starts.len() + empty, None);
        let step = |input: &mut Input<'_>| u64::from(input.u8()) << (shape >> 2);
        let Some(first) = prefix.checked_add(step(input)) else { break };
        let Some(last) = first.checked_add(step(input)) else { break };
        starts.push(Some(PageStarts { first, last }));
        prefix = last;
    }
    let fences = Fences::build(&starts);
    let mut encoded = Vec::new();
    fences.encode(&mut encoded);
    let (again, rest) = Fences::parse(&encoded).expect("what was written reads back");
    assert!(again == fences && rest.is_empty());
    check_fence_pages(&encoded);
    for (page, of_page) in starts.iter().enumerate() {
        let next = (page + 1..starts.len()).find(|&next| starts[next].is_some()).unwrap_or(starts.len());
        assert_eq!(fences.next_start(page as u32) as usize, next);
        for prefix in of_page.iter().flat_map(|starts| [starts.first, starts.last]) {
            let named = fences.start_pages(prefix);
            assert!(named.contains(&(page as u32)), "{prefix:#x} starts in page {page}, not in {named:?}");
            assert!(starts[*named.start() as usize].is_some() && starts[*named.end() as usize].is_some());
        }
    }
}

fn check_fence_pages(encoded: &[u8]) {
    let salt = SegmentSalt { store: 1, version: 2 };
    for (number, payload) in encoded.chunks(FENCE_PAYLOAD_BYTES).enumerate() {
        let mut page = [7; PAGE_BYTES];
        fence_page::encode(salt, number as u32, payload, &mut page);
        let read = fence_page::parse(salt, number as u32, &page).expect("what was written holds");
        assert!(read.starts_with(payload) && read[payload.len()..].iter().all(|byte| *byte == 0));
        assert!(fence_page::parse(salt, number as u32 + 1, &page).is_err());
    }
}

fn strange_fences(input: &mut Input<'_>) {
    let prefixes: [u64; 4] = std::array::from_fn(|_| input.u64());
    let Some((fences, _)) = Fences::parse(input.rest()) else { return };
    for prefix in prefixes {
        let named = fences.start_pages(prefix);
        assert!(named.is_empty() || *named.end() < fences.pages());
    }
    for page in prefixes.map(|prefix| prefix as u32) {
        assert!(fences.next_start(page % (fences.pages() + 1)) <= fences.pages());
    }
}

thread_local! {
    static CONTEXTS: RefCell<(Compressor, Decompressor)> = RefCell::new((
        Compressor::new().expect("a context for zstd"),
        Decompressor::new().expect("a context for zstd"),
    ));
}

/// Compressed bytes decompress to the original. An arbitrary frame fills the room that it was given, or is an error.
pub fn codec(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let repeats = usize::from(input.u8()) + 1;
    let room = usize::from(input.u16());
    let bytes = input.rest();
    CONTEXTS.with_borrow_mut(|(compressor, decompressor)| {
        let mut out = vec![0xaa; room];
        // The library decides whether it is a frame, but it must write nowhere else, and succeed only if it filled the room.
        let _ = decompressor.decompress(bytes, &mut out);
        let value = bytes.repeat(repeats);
        let (codec, stored) = compressor.compress(&value);
        if codec == Codec::Raw {
            assert_eq!(stored, value);
            return;
        }
        assert!(stored.len() <= value.len() - value.len() / 8);
        let mut out = vec![0xaa; value.len()];
        decompressor.decompress(stored, &mut out).expect("what was compressed comes back");
        assert!(out == value);
        out.push(0);
        assert!(decompressor.decompress(stored, &mut out).is_err(), "a value of another length");
    });
}
