//! What the tests of this crate do with a queue pair.

use super::{Lease, QueuePair, Returned};
use crate::memory::LocalBuffer;
use crate::protocol::{Command, Completion, Operation};

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
