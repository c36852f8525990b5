//! A queue pair: commands one way, completions the other, and how many there may be between them.
//!
//! Every command in flight holds one of the pair's [`CREDITS`]; its completion gives it back when it is polled. Without one,
//! [`QueuePair::submit`] says [`QueueFull`] and has done nothing. A quiet command that succeeds has no completion: its credit comes
//! back with the poll that would have given one.

use super::Drive;
use crate::counters::QueueCounters;
use crate::device::Controller;
use crate::memory::LocalBuffer;
use crate::protocol::{Command, Completion, Operation};
use std::fmt;
use std::ops::Range;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

/// The most commands that one queue pair has in flight. Enough for the deepest drive many times over; so few that what is kept
/// for each of them does not count beside the memory that they name.
pub const CREDITS: usize = 4096;

/// All of a queue pair's credits are in use: `poll`, and submit again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueFull;

impl fmt::Display for QueueFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{CREDITS} commands are in flight on this queue pair: take completions before the next command")
    }
}

impl std::error::Error for QueueFull {}

/// Submission and completion of commands to one drive. Dropping it waits for what is in flight.
pub struct QueuePair {
    // First, so that it is dropped, and its commands are over, before anything they use goes.
    controller: Controller,
    drive: Drive,
    counters: Arc<QueueCounters>,
    in_flight: usize,
}

impl QueuePair {
    pub(super) fn new(controller: Controller, drive: Drive, counters: Arc<QueueCounters>) -> QueuePair {
        QueuePair { controller, drive, counters, in_flight: 0 }
    }

    /// Takes a command; never blocks. What is wrong with it comes out as its completion. Flash commands start at the next `poll` or
    /// `wait`, and programs run in `poll`.
    ///
    /// # Safety
    /// From here until `poll` has given the completion, or this queue pair is dropped, and however the caller ends:
    /// - what the command writes (of a `Read` the range, of an `Execute` the output) nobody else reads, writes or frees;
    /// - what it reads (of a `Write` the range, of an `Execute` parameters and input) nobody writes or frees.
    ///
    /// Of a `Pipeline` this goes for each of its stages, except that its programs read what stages before them wrote. The list
    /// itself nobody writes or frees until this returns.
    ///
    /// Commands that are chained by events may use each other's ranges, those before with those behind, directly or through others.
    /// The ranges of a quiet command are the drive's until the completion of a command that waits for it, directly or through others,
    /// or until nothing is in flight.
    ///
    /// # Errors
    /// [`QueueFull`], when [`CREDITS`] commands are in flight.
    pub unsafe fn submit(&mut self, command: Command) -> Result<(), QueueFull> {
        if self.in_flight == CREDITS {
            return Err(QueueFull);
        }
        self.in_flight += 1;
        self.counters.depth(self.in_flight as u64);
        // SAFETY: by our caller's word.
        unsafe { self.controller.submit(command) };
        Ok(())
    }

    /// Submits a `Flush`.
    ///
    /// # Errors
    /// As [`QueuePair::submit`].
    pub fn submit_flush(&mut self, tag: u64) -> Result<(), QueueFull> {
        // SAFETY: a flush names no memory.
        unsafe { self.submit(Command::new(tag, Operation::Flush)) }
    }

    /// Starts what was submitted, runs programs whose reads are there, appends what is done, and says how many that was. Never
    /// blocks. The order is the drive's.
    pub fn poll(&mut self, completions: &mut Vec<Completion>) -> usize {
        if self.in_flight == 0 {
            return 0;
        }
        let first = completions.len();
        let ended_quietly = self.controller.poll(completions);
        let count = completions.len() - first;
        let credits = count + ended_quietly;
        if credits > 0 {
            self.in_flight -= credits;
            self.counters.depth(self.in_flight as u64);
        }
        count
    }

    /// Blocks until `poll` has something, the timeout ends, or nothing is in flight. May return early for no reason.
    pub fn wait(&mut self, timeout: Option<Duration>) {
        self.controller.wait(timeout);
    }

    /// Waits until the drive has let go of everything that was submitted, and drops what comes.
    pub fn drain(&mut self) {
        let mut completions = Vec::new();
        while self.in_flight() > 0 {
            self.wait(Some(Duration::from_millis(10)));
            completions.clear();
            let before = self.in_flight();
            self.poll(&mut completions);
            if self.in_flight() == before && self.event_fd().is_none() {
                // A simulated drive that stopped never answers, and never writes either.
                return;
            }
        }
    }

    /// A descriptor that polls readable while flash completions are there, for `epoll`. Before sleeping on it, `poll`
    /// until that gives nothing: it neither speaks of commands refused nor of commands not started. `None` where there is
    /// nothing to sleep for: keep polling.
    pub fn event_fd(&self) -> Option<RawFd> {
        self.controller.event_fd()
    }

    /// Commands submitted that have not ended, or whose completions `poll` has not given yet.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// How many more commands may be submitted now.
    pub fn credits(&self) -> usize {
        CREDITS - self.in_flight
    }

    /// The explicit step by which a result leaves the drive: appends bytes of a buffer, counting them.
    pub fn copy_to_host(&self, buffer: &LocalBuffer, bytes: Range<usize>, into: &mut Vec<u8>) {
        self.counters.moved_local_to_host(bytes.len() as u64);
        into.extend_from_slice(&buffer.bytes()[bytes]);
    }

    /// [`QueuePair::copy_to_host`] of a few bytes whose number is known.
    pub fn copy_array_to_host<const N: usize>(&self, buffer: &LocalBuffer, at: usize) -> [u8; N] {
        self.counters.moved_local_to_host(N as u64);
        let mut bytes = [0; N];
        bytes.copy_from_slice(&buffer.bytes()[at..at + N]);
        bytes
    }

    pub fn drive(&self) -> &Drive {
        &self.drive
    }
}
