//! What crosses a queue pair.

use std::cell::RefCell;
use std::sync::Arc;
use tapetum::fuzzing::Input;
use tapetum_drive::{
    Command, Completion, Drive, Env, LocalBuffer, LocalMemory, LocalRange, MemoryFlash, Operation, QueuePair, Stage,
    Status, programs,
};

/// Decoding is strict: what decodes encodes to the same bytes.
pub fn command(bytes: &[u8]) {
    let whole: [u8; Command::ENCODED_BYTES] = Input::new(bytes).array();
    if let Ok(command) = Command::decode(&whole) {
        assert_eq!(command.encode(), whole);
    }
    let whole: [u8; Completion::ENCODED_BYTES] = Input::new(bytes).array();
    if let Ok(completion) = Completion::decode(&whole) {
        assert_eq!(completion.encode(), whole);
    }
}

/// A drive, a queue pair, and all of its local memory.
struct Bench {
    pair: QueuePair,
    buffer: LocalBuffer,
}

const LOCAL_BYTES: usize = 8 << 10;

impl Bench {
    fn new() -> Bench {
        let local = LocalMemory::new(LOCAL_BYTES).expect("local memory");
        let buffer = local.allocate(LOCAL_BYTES).expect("all of it");
        let flash = Arc::new(MemoryFlash::new(4096));
        let pair = Drive::new(flash, local, programs::built_in(), Env::simulated(1).0).queue_pair(4);
        Bench { pair: pair.expect("a queue pair of a flash in memory"), buffer }
    }

    fn run(&mut self, list: &[u8]) -> Completion {
        self.buffer.bytes_mut()[..list.len()].copy_from_slice(list);
        let stages = LocalRange { offset: self.buffer.offset(), length: list.len() as u32 };
        // SAFETY: the buffer is left alone until the completion; it is dropped after the pair.
        let submitted = unsafe { self.pair.submit(Command { tag: 7, operation: Operation::Pipeline { stages } }) };
        assert_eq!(submitted, Ok(()));
        let mut completions = Vec::new();
        while self.pair.poll(&mut completions) == 0 {}
        assert_eq!((completions.len(), completions[0].tag), (1, 7));
        completions[0]
    }
}

thread_local! {
    static BENCH: RefCell<Bench> = RefCell::new(Bench::new());
}

/// Any bytes as a list of stages: one completion, which names a stage of the list; where a stage is none, that one or one before
/// it. What decodes encodes to the same bytes.
pub fn stages(bytes: &[u8]) {
    let list = &bytes[..bytes.len().min(LOCAL_BYTES / 2)];
    let mut malformed = None;
    let (stages, rest) = list.as_chunks::<{ Stage::ENCODED_BYTES }>();
    for (number, bytes) in stages.iter().enumerate() {
        match Stage::decode(bytes) {
            Ok(stage) => assert_eq!(stage.encode(), *bytes),
            Err(_) => malformed = malformed.or(Some(number)),
        }
    }
    let completion = BENCH.with_borrow_mut(|bench| bench.run(list));
    let stage = usize::from(completion.stage);
    if stages.is_empty() || !rest.is_empty() {
        assert_eq!((completion.status, stage), (Status::InvalidField, 0));
    } else if let Some(malformed) = malformed {
        assert!(!completion.is_success() && stage <= malformed, "{completion:?}");
    }
    assert!(stage < stages.len().max(1), "{completion:?}");
}
