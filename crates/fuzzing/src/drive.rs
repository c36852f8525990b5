//! The messages of a queue pair.

use std::cell::RefCell;
use std::sync::Arc;
use tapetum::fuzzing::Input;
use tapetum_drive::program::{Context, TaskState};
use tapetum_drive::programs::built_in;
use tapetum_drive::{
    Command, Completion, Drive, Env, HostArena, HostRegion, Identity, Lease, LocalBuffer, LocalMemory, LocalRange,
    MemoryAddress, MemoryFlash, Operation, PIPELINES_MAX, QueuePair, RegionId, Returned, Stage, Status,
};

/// Decoding is strict: a decoded command encodes to the same bytes.
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

/// A queue pair of a drive, and a buffer of its local memory.
pub(crate) struct Bench {
    pair: QueuePair,
    pub buffer: LocalBuffer,
}

const LOCAL_BYTES: usize = 8 << 10;

impl Bench {
    pub fn new(local_bytes: usize, buffer_bytes: usize, flash_bytes: u64) -> Bench {
        let local = LocalMemory::new(local_bytes).expect("local memory");
        let buffer = local.allocate(buffer_bytes).expect("it is all free");
        let flash = Arc::new(MemoryFlash::new(flash_bytes));
        let pair = Drive::new(flash, local, built_in(), Env::simulated(1).0).queue_pair(4);
        Bench { pair: pair.expect("a queue pair of a flash in memory"), buffer }
    }

    /// Runs a command that names a list at the start of the buffer, and lends it the buffer.
    pub fn run(&mut self, list: &[u8], operation: impl Fn(LocalRange) -> Operation) -> Completion {
        self.run_and(list, operation, None).0
    }

    /// Like [`Bench::run`], followed by a cancellation of its pipelines. Returns how many were cancelled.
    pub fn run_and(
        &mut self,
        list: &[u8],
        operation: impl Fn(LocalRange) -> Operation,
        cancel: Option<Option<u16>>,
    ) -> (Completion, u64) {
        self.buffer.bytes_mut()[..list.len()].copy_from_slice(list);
        let range = LocalRange { offset: self.buffer.offset(), length: list.len() as u32 };
        let command = Command::new(7, operation(range));
        self.pair.submit(command, self.buffer.take().into()).expect("the queue is empty");
        let mut returned = Vec::new();
        let mut cancelled = 0;
        if let Some(pipeline) = cancel {
            let cancel = Command::new(8, Operation::Cancel { tag: 7, pipeline });
            self.pair.submit(cancel, Lease::Nothing).expect("there are credits");
            while returned.len() < 2 {
                self.pair.poll(&mut returned);
            }
            returned.sort_by_key(|returned| std::cmp::Reverse(returned.completion.tag));
            let Completion { status, result, .. } = returned.remove(0).completion;
            assert!(status == Status::Success || pipeline.is_some_and(|number| usize::from(number) >= PIPELINES_MAX));
            cancelled = result[0];
        }
        while returned.is_empty() {
            self.pair.poll(&mut returned);
        }
        let Some(Returned { completion, lease }) = returned.pop() else { unreachable!("it has ended") };
        assert_eq!((returned.len(), completion.tag), (0, 7));
        self.buffer = lease.into_buffer();
        (completion, cancelled)
    }
}

/// Polls within which a command must end. The flash is in memory, so each poll completes everything that is ready.
const POLLS_MAX: usize = 64;

thread_local! {
    static DRIVE: Drive = {
        let local = LocalMemory::new(LOCAL_BYTES).expect("local memory");
        Drive::new(Arc::new(MemoryFlash::new(4096)), local, built_in(), Env::simulated(1).0)
    };
    /// An arena whose first half is sealed.
    static ARENA: RefCell<HostArena> = {
        let [mut arena] = HostRegion::of_arenas(LOCAL_BYTES).expect("a region");
        arena.seal(LOCAL_BYTES / 2);
        RefCell::new(arena)
    };
    static BENCH: RefCell<Bench> = RefCell::new(Bench::new(LOCAL_BYTES, LOCAL_BYTES, 4096));
}

/// Any bytes as a list of stages: there is one completion, which names a stage of the list. If a stage is invalid, it names that stage or
/// an earlier one. Decoded stages encode to the same bytes.
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
    let completion = BENCH.with_borrow_mut(|bench| bench.run(list, |stages| Operation::Pipeline { stages }));
    let stage = usize::from(completion.stage);
    if stages.is_empty() || !rest.is_empty() {
        assert_eq!((completion.status, stage), (Status::InvalidField, 0));
    } else if let Some(malformed) = malformed {
        assert!(!completion.is_success() && stage <= malformed, "{completion:?}");
    }
    assert!(stage < stages.len().max(1), "{completion:?}");
}

/// Any bytes as consecutive commands, over memory that holds the same bytes: each accepted command ends once, and its lease is returned.
pub fn commands(bytes: &[u8]) {
    DRIVE.with(|drive| ARENA.with_borrow_mut(|arena| commands_of(drive, arena, bytes)));
}

fn commands_of(drive: &Drive, arena: &mut HostArena, bytes: &[u8]) {
    let mut pair = drive.queue_pair_with_host(arena.region(), 4).expect("a queue pair of a flash in memory");
    let mut buffer = drive.local().allocate(LOCAL_BYTES).expect("all of it");
    buffer.bytes_mut().fill(0);
    let shown = bytes.len().min(LOCAL_BYTES);
    buffer.bytes_mut()[..shown].copy_from_slice(&bytes[..shown]);
    let (mut lease, mut waiting) = (Lease::Buffer(buffer), Vec::new());
    for command in bytes.as_chunks::<{ Command::ENCODED_BYTES }>().0 {
        let Ok(command) = Command::decode(command) else { continue };
        let lent = match command.operation {
            Operation::Write { from: MemoryAddress { region: RegionId::HOST, .. }, .. } => {
                Lease::Sealed(arena.lease(0..LOCAL_BYTES / 2))
            }
            _ => std::mem::take(&mut lease),
        };
        pair.submit(command, lent).expect("fewer commands than credits");
        waiting.push(command.tag);
    }
    let mut returned = Vec::new();
    for _ in 0..POLLS_MAX {
        pair.poll(&mut returned);
    }
    assert_eq!(pair.in_flight(), 0, "commands that never end: {waiting:?}");
    for Returned { completion, .. } in &returned {
        let found = waiting.iter().position(|tag| *tag == completion.tag);
        waiting.swap_remove(found.unwrap_or_else(|| panic!("{completion:?} of no command")));
    }
    assert!(waiting.is_empty(), "commands without an end: {waiting:?}");
    drop((pair, returned, lease));
    assert_eq!(drive.local().bytes_used(), 0);
    arena.reset();
    arena.seal(LOCAL_BYTES / 2);
}

/// A decoded identity encodes to the same bytes.
pub fn identity(bytes: &[u8]) {
    if let Ok(identity) = Identity::decode(bytes) {
        let encoded = identity.encode();
        assert_eq!(encoded, bytes[..encoded.len()]);
    }
}

/// Any built-in program over any bytes, in parts: it answers, and a task that continues makes progress.
pub fn programs(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let programs = built_in();
    let program = &programs[input.below(programs.len())];
    let (parameters, room) = (input.bytes(4), 1 + input.below(64));
    let parameters = &parameters[..parameters.len() * usize::from(room & 1 == 0)];
    let (mut task, mut output) = (TaskState::default(), vec![0; room]);
    let rest = input.rest();
    let (first, second) = rest.split_at(rest.len() / 2);
    for (part, more_input) in [(first, true), (second, false)] {
        task.more_input = more_input;
        loop {
            let context = Context { parameters, inputs: &[part], output: &mut output, task: &mut task };
            match program.run(context) {
                (Status::More, [filled, _]) => assert!((1..=room as u64).contains(&filled)),
                (Status::Success, [filled, _]) => {
                    assert!(!program.descriptor().is_stream || filled <= room as u64);
                    break;
                }
                _ => return,
            }
        }
    }
}
