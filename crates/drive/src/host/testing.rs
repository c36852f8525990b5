//! What the tests of this crate do with a queue pair.

use super::{Drive, Lease, QueuePair, Returned};
use crate::device::program::Program;
use crate::env::Env;
use crate::flash::Flash;
use crate::memory::{LocalBuffer, LocalMemory};
use crate::protocol::{Command, Completion, Operation};
use std::cell::Cell;
use std::sync::Arc;

thread_local! {
    /// How many threads the drives of the test that runs have of their own.
    static DRIVE_THREADS: Cell<usize> = const { Cell::new(0) };
}

/// Runs a test with the device half of its drives on a thread of theirs.
pub fn on_a_drive_thread(test: fn()) {
    DRIVE_THREADS.set(1);
    test();
    DRIVE_THREADS.set(0);
}

/// A drive whose device half is where the test that runs has it, with 1 MiB of local memory.
pub fn drive_of(flash: Arc<dyn Flash>, programs: Vec<Box<dyn Program>>, seed: u64) -> Drive {
    drive_with(flash, 1 << 20, programs, seed)
}

/// As [`drive_of`], with so much local memory.
pub fn drive_with(flash: Arc<dyn Flash>, local_bytes: usize, programs: Vec<Box<dyn Program>>, seed: u64) -> Drive {
    let local = LocalMemory::new(local_bytes).unwrap();
    match DRIVE_THREADS.get() {
        0 => Drive::new(flash, local, programs, Env::simulated(seed).0),
        threads => Drive::new(flash, local, programs, Env::system()).with_threads(threads).unwrap(),
    }
}

pub fn submit(pair: &mut QueuePair, tag: u64, operation: Operation, lease: impl Into<Lease>) {
    pair.submit(Command::new(tag, operation), lease.into()).unwrap();
}

/// The ends of `count` commands, in their order.
pub fn finish(pair: &mut QueuePair, count: usize) -> Vec<Returned> {
    let mut returned = Vec::new();
    while returned.len() < count {
        if pair.poll(&mut returned) == 0 {
            pair.wait(None);
        }
    }
    assert_eq!(returned.len(), count);
    returned
}

/// Runs the only command of a queue pair, which is lent `lease`, to its end.
pub fn run_with(pair: &mut QueuePair, operation: Operation, lease: Lease) -> Returned {
    assert_eq!(pair.in_flight(), 0);
    submit(pair, u64::MAX, operation, lease);
    let Some(returned) = finish(pair, 1).pop() else { unreachable!("it ended") };
    assert_eq!((returned.completion.tag, pair.in_flight()), (u64::MAX, 0));
    returned
}

/// As [`run_with`], of a command that is lent a buffer.
pub fn run(pair: &mut QueuePair, operation: Operation, buffer: &mut LocalBuffer) -> Completion {
    let returned = run_with(pair, operation, buffer.take().into());
    *buffer = returned.lease.into_buffer();
    returned.completion
}
