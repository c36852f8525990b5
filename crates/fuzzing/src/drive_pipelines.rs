//! Descriptors of pipelines, and results.

use std::cell::RefCell;
use tapetum_drive::{LocalBuffer, Operation, PIPELINES_MAX, PipelineDescriptor, PipelineResult, SourceRange, Status};

use crate::drive::Bench;

const BUFFER_BYTES: usize = 16 << 10;
const FLASH_BYTES: u64 = 16 << 10;
/// Offsets in the buffer of lists of ranges: ranges of the buffer itself, and of flash.
const LOCAL_LIST_AT: usize = 8 << 10;
const FLASH_LIST_AT: usize = 9 << 10;
/// Offset of the lowest byte of the first descriptor's deadline, which no clock reaches here.
const DEADLINE_AT: usize = 8;

/// Fills the buffer, and writes the lists of ranges.
fn fill(buffer: &mut LocalBuffer) {
    buffer.bytes_mut().fill(7);
    let base = buffer.offset();
    let mut put = |at: usize, ranges: [(u64, u64); 2]| {
        for (place, (offset, bytes)) in ranges.into_iter().enumerate() {
            let range = SourceRange { offset, bytes }.encode();
            let at = at + place * SourceRange::ENCODED_BYTES;
            buffer.bytes_mut()[at..at + range.len()].copy_from_slice(&range);
        }
    };
    put(LOCAL_LIST_AT, [(base + 10_000, 100), (base + 12_000, 3000)]);
    put(FLASH_LIST_AT, [(512, 5000), (8192, 10)]);
}

thread_local! {
    static PIPELINE_BENCH: RefCell<Bench> = RefCell::new(Bench::new(1 << 20, BUFFER_BYTES, FLASH_BYTES));
}

/// Any bytes as descriptors, some of which are cancelled: there is one completion, which names the first invalid descriptor; or otherwise
/// each has a result. Decoded descriptors encode to the same bytes.
pub fn pipelines(bytes: &[u8]) {
    let list = &bytes[..bytes.len().min(LOCAL_LIST_AT)];
    let (descriptors, rest) = list.as_chunks::<{ PipelineDescriptor::ENCODED_BYTES }>();
    // Cancel one, or all.
    let cancel =
        bytes.get(DEADLINE_AT).filter(|byte| **byte & 3 == 1).map(|byte| (byte & 4 == 0).then_some(u16::from(*byte)));
    let is_list = (1..=PIPELINES_MAX).contains(&descriptors.len()) && rest.is_empty();
    let mut malformed = None;
    for (number, bytes) in descriptors.iter().enumerate() {
        match PipelineDescriptor::decode(bytes) {
            Ok(descriptor) => assert_eq!(descriptor.encode(), *bytes),
            Err(_) => malformed = malformed.or(Some(number)),
        }
    }
    PIPELINE_BENCH.with_borrow_mut(|bench| {
        // Results and sinks of the last run may be anywhere.
        fill(&mut bench.buffer);
        let (completion, cancelled) = bench.run_and(list, |pipelines| Operation::Compute { pipelines }, cancel);
        assert!(cancelled <= completion.result[0], "{completion:?}, and {cancelled} were cancelled");
        match (is_list, malformed) {
            (false, _) => assert_eq!((completion.status, completion.stage), (Status::InvalidField, 0)),
            (true, Some(number)) => {
                assert_eq!((completion.status, usize::from(completion.stage)), (Status::InvalidField, number));
            }
            (true, None) => assert!(completion.is_success() && completion.result[0] <= descriptors.len() as u64),
        }
    });
    if let Some(bytes) = bytes.first_chunk()
        && let Ok(Some(result)) = PipelineResult::decode(bytes)
    {
        assert_eq!(result.encode(), *bytes);
    }
}
