//! Descriptors of pipelines, and results.

use std::cell::RefCell;
use std::sync::Arc;
use tapetum_drive::programs::built_in;
use tapetum_drive::{
    Command, Completion, Drive, Env, LocalBuffer, LocalMemory, LocalRange, MemoryFlash, Operation, PIPELINES_MAX,
    PipelineDescriptor, PipelineResult, QueuePair, Returned, SourceRange, Status,
};

const BUFFER_BYTES: usize = 16 << 10;
const FLASH_BYTES: u64 = 16 << 10;
/// Where the buffer has lists of ranges: of itself, and of flash.
const LOCAL_LIST_AT: usize = 8 << 10;
const FLASH_LIST_AT: usize = 9 << 10;

struct PipelineBench {
    pair: QueuePair,
    buffer: LocalBuffer,
}

impl PipelineBench {
    fn new() -> PipelineBench {
        let local = LocalMemory::new(1 << 20).expect("local memory");
        let buffer = local.allocate(BUFFER_BYTES).expect("it is all free");
        let flash = Arc::new(MemoryFlash::new(FLASH_BYTES));
        let pair = Drive::new(flash, local, built_in(), Env::simulated(1).0).queue_pair(4);
        PipelineBench { pair: pair.expect("a queue pair of a flash in memory"), buffer }
    }

    fn fill(&mut self) {
        self.buffer.bytes_mut().fill(7);
        let base = self.buffer.offset();
        let mut put = |at: usize, ranges: [(u64, u64); 2]| {
            for (place, (offset, bytes)) in ranges.into_iter().enumerate() {
                let range = SourceRange { offset, bytes }.encode();
                let at = at + place * SourceRange::ENCODED_BYTES;
                self.buffer.bytes_mut()[at..at + range.len()].copy_from_slice(&range);
            }
        };
        put(LOCAL_LIST_AT, [(base + 10_000, 100), (base + 12_000, 3000)]);
        put(FLASH_LIST_AT, [(512, 5000), (8192, 10)]);
    }

    fn run(&mut self, list: &[u8]) -> Completion {
        self.buffer.bytes_mut()[..list.len()].copy_from_slice(list);
        let pipelines = LocalRange { offset: self.buffer.offset(), length: list.len() as u32 };
        let command = Command::new(7, Operation::Compute { pipelines });
        self.pair.submit(command, self.buffer.take().into()).expect("the queue is empty");
        let mut returned = Vec::new();
        while self.pair.poll(&mut returned) == 0 {}
        let Some(Returned { completion, lease }) = returned.pop() else { unreachable!("it has ended") };
        assert_eq!((returned.len(), completion.tag), (0, 7));
        self.buffer = lease.into_buffer();
        completion
    }
}

thread_local! {
    static PIPELINE_BENCH: RefCell<PipelineBench> = RefCell::new(PipelineBench::new());
}

/// Any bytes as descriptors: one completion, which names the first that is none; or else each has a result. What decodes encodes to
/// the same bytes.
pub fn pipelines(bytes: &[u8]) {
    let list = &bytes[..bytes.len().min(LOCAL_LIST_AT)];
    let (descriptors, rest) = list.as_chunks::<{ PipelineDescriptor::ENCODED_BYTES }>();
    let is_list = (1..=PIPELINES_MAX).contains(&descriptors.len()) && rest.is_empty();
    let mut malformed = None;
    for (number, bytes) in descriptors.iter().enumerate() {
        match PipelineDescriptor::decode(bytes) {
            Ok(descriptor) => assert_eq!(descriptor.encode(), *bytes),
            Err(_) => malformed = malformed.or(Some(number)),
        }
    }
    PIPELINE_BENCH.with_borrow_mut(|bench| {
        // Results and sinks of the run before may lie anywhere.
        bench.fill();
        let completion = bench.run(list);
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
