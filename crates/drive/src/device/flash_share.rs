//! Back-pressure on the flash commands of pipelines: while clients read, only a few of them are in flight.
//!
//! Flash serves commands about in the order of arrival. A part of a pipeline may be dozens of commands, and a client's read behind them
//! would wait for all. So while clients read, and for a moment afterwards, a pipeline's commands wait here.
//!
//! 1. Commands leave in the order of arrival.
//! 2. While a command waits, another one is in flight. Its end lets the next one go, so no timer is needed.
//!
//! Threads: only the owner's.

use crate::counters::DriveCounters;
use crate::env::Env;
use crate::protocol::{Operation, Purpose};
use std::collections::VecDeque;

/// Clients count as reading for this long after their last read.
const GETS_PAUSE_US: u64 = 5_000;
/// Limits on commands in flight while clients read. A command longer than the byte limit goes alone.
const COMMANDS_BESIDE_GETS: usize = 8;
pub(in crate::device) const BYTES_BESIDE_GETS: u32 = 128 << 10;

/// One owner's commands: the waiting ones, and counts of those in flight.
#[derive(Default)]
pub(in crate::device) struct FlashShare {
    /// Each command with its owner's mark.
    waiting: VecDeque<(u64, Operation)>,
    commands: usize,
    bytes: u64,
    /// Bytes that clients had read at the last look.
    gets_bytes: u64,
    gets_until_us: u64,
}

/// Bytes that a flash command moves.
pub(in crate::device) fn length(operation: &Operation) -> u32 {
    match operation {
        Operation::Read { length, .. } | Operation::Write { length, .. } => *length,
        _ => 0,
    }
}

impl FlashShare {
    pub fn put(&mut self, mark: u64, operation: Operation) {
        self.waiting.push_back((mark, operation));
    }

    /// A command that moved so many bytes has ended.
    pub fn ended(&mut self, bytes: u32) {
        self.commands -= 1;
        self.bytes -= u64::from(bytes);
    }

    /// Passes the commands that may go now to `submit`.
    pub fn release(&mut self, counters: &DriveCounters, env: &Env, mut submit: impl FnMut(u64, Operation)) {
        if self.waiting.is_empty() {
            return;
        }
        let gives_way = self.gives_way(counters.read_bytes(Purpose::Get), env.now_us());
        while let Some((mark, operation)) = self.next(gives_way) {
            submit(mark, operation);
        }
    }

    /// Whether clients are reading. `gets_bytes` is all that they have read so far.
    fn gives_way(&mut self, gets_bytes: u64, now_us: u64) -> bool {
        if gets_bytes != self.gets_bytes {
            (self.gets_bytes, self.gets_until_us) = (gets_bytes, now_us + GETS_PAUSE_US);
        }
        now_us < self.gets_until_us
    }

    fn next(&mut self, gives_way: bool) -> Option<(u64, Operation)> {
        let bytes = u64::from(length(&self.waiting.front()?.1));
        let has_room = self.commands < COMMANDS_BESIDE_GETS && self.bytes + bytes <= u64::from(BYTES_BESIDE_GETS);
        if gives_way && !has_room && self.commands > 0 {
            return None;
        }
        self.commands += 1;
        self.bytes += bytes;
        self.waiting.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(length: u32) -> Operation {
        Operation::Read { flash: 0, local: 0, length }
    }

    fn released(share: &mut FlashShare, gets_bytes: u64, now_us: u64) -> Vec<u64> {
        let gives_way = share.gives_way(gets_bytes, now_us);
        std::iter::from_fn(|| share.next(gives_way)).map(|(mark, _)| mark).collect()
    }

    #[test]
    fn all_go_while_no_client_reads() {
        let mut share = FlashShare::default();
        (0..100).for_each(|mark| share.put(mark, read(4096)));
        assert_eq!(released(&mut share, 0, 1), (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn few_go_beside_reads_of_clients_and_each_end_lets_one_go() {
        let mut share = FlashShare::default();
        (0..100).for_each(|mark| share.put(mark, read(4096)));
        assert_eq!(released(&mut share, 4096, 1), (0..8).collect::<Vec<_>>());
        assert_eq!(released(&mut share, 8192, 2), []);
        for mark in 8..16 {
            share.ended(4096);
            assert_eq!(released(&mut share, 8192, 3), [mark]);
        }
    }

    #[test]
    fn a_long_one_goes_alone() {
        let mut share = FlashShare::default();
        [4096, 256 << 10, 4096].into_iter().zip(0..).for_each(|(length, mark)| share.put(mark, read(length)));
        assert_eq!(released(&mut share, 4096, 1), [0]);
        share.ended(4096);
        assert_eq!(released(&mut share, 4096, 2), [1]);
        share.ended(256 << 10);
        assert_eq!(released(&mut share, 4096, 3), [2]);
    }

    #[test]
    fn all_go_again_when_clients_have_read_nothing_for_a_moment() {
        let mut share = FlashShare::default();
        (0..100).for_each(|mark| share.put(mark, read(4096)));
        assert_eq!(released(&mut share, 4096, 1).len(), 8);
        assert_eq!(released(&mut share, 4096, GETS_PAUSE_US).len(), 0);
        assert_eq!(released(&mut share, 4096, GETS_PAUSE_US + 1).len(), 92);
    }
}
