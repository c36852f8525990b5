//! Sends the log's groups and flushes to the drive, and takes their completions.
//!
//! Any waiting thread advances it ([`Log::advance`]). One thread at a time does so, for all ([`super::turns`]). No appender waits for that thread:
//! it takes the log's lock only to read and update state, never across a system call.

use super::{Flushing, GROUP_BYTES, Log, LogState, SECOND_US, SealedGroup, Sync};
use crate::error::Error;
use crate::media::geometry::BUFFERS;
use crate::media::io::{Io, lock};
use std::future::poll_fn;
use std::sync::atomic::Ordering;
use std::task::Poll;
use tapetum_drive::{Command, Completion, Lease, Operation, Purpose, QueuePair, Returned, fail_point};

/// A thread's requests, as bits: take completions; also send a group that is worth it; also send a group of any size.
const REAP: u64 = 1;
const SEND: u64 = 2;
const HURRY: u64 = 4;

const TAG_WRITE: u64 = 1;
const TAG_FLUSH: u64 = 2;

/// The tools of the thread whose turn it is.
pub struct Sender {
    queue: QueuePair,
    batch: Vec<Returned>,
}

impl Sender {
    pub fn new(queue: QueuePair) -> Sender {
        Sender { queue, batch: Vec::new() }
    }
}

impl Log {
    /// Advances the log: takes completions, sends the next group. `hurry` sends a small group too. Never blocks on I/O.
    pub fn advance(&self, hurry: bool, now_us: u64) {
        self.ask(if hurry { SEND | HURRY } else { SEND }, Some(now_us));
    }

    fn ask(&self, asks: u64, now_us: Option<u64>) {
        if self.sender.run(asks, |sender, asks| self.work(sender, asks, now_us)) {
            // The woken threads ask again.
            self.wake();
        }
    }

    fn work(&self, sender: &mut Sender, asks: u64, now_us: Option<u64>) {
        let now_us = now_us.unwrap_or_else(|| sender.queue.drive().env().now_us());
        loop {
            let any = self.reap(sender);
            let may_send = asks & (SEND | HURRY) != 0 && self.poison.get().is_none();
            let sent = may_send && self.send(sender, asks & HURRY != 0, now_us);
            if !any && !sent {
                return;
            }
        }
    }

    /// Takes completions and starts submitted commands. Returns whether there were completions.
    fn reap(&self, Sender { queue, batch }: &mut Sender) -> bool {
        if queue.poll(batch) == 0 {
            return false;
        }
        {
            let mut state = lock(&self.state);
            // Leases end here, too. This lock also protects the reset of an arena.
            batch.drain(..).for_each(|returned| self.completed(&mut state, queue, returned.completion));
        }
        self.wake();
        true
    }

    fn completed(&self, state: &mut LogState, queue: &QueuePair, completion: Completion) {
        let believed = completion.is_no_space() && fail_point!(AcknowledgeFull);
        if !completion.is_success() && !believed {
            let what = if completion.tag == TAG_WRITE { "write" } else { "flush" };
            return self.poison("the commit log", Error::of_command(queue.drive(), what, &completion));
        }
        let durable = match completion.tag {
            TAG_WRITE => state.writing.take().and_then(|group| {
                state.stamps.written = group.stamp_last;
                (self.sync == Sync::Always).then_some(group.stamp_last)
            }),
            _ => match state.flushing.take() {
                Some(Flushing::Log(stamp)) => Some(stamp),
                Some(Flushing::Elsewhere(_)) | None => unreachable!("the log's flush was the only one"),
            },
        };
        if let Some(stamp) = durable {
            self.durable.fetch_max(stamp, Ordering::SeqCst);
        }
    }

    /// Submits the next write or flush, if one is due.
    fn send(&self, sender: &mut Sender, hurry: bool, now_us: u64) -> bool {
        let mut state = lock(&self.state);
        if self.sync != Sync::Always && now_us >= state.second_began_us + SECOND_US {
            state.second_began_us = now_us;
            state.stamps.due = state.stamps.last;
        }
        if state.writing.is_some() {
            return false;
        }
        // A due flush goes first: otherwise continuous writes would postpone it for ever.
        let due_is_written = state.stamps.written >= state.stamps.due.max(state.stamps.wanted);
        let due = if self.sync == Sync::EverySecond {
            state.stamps.due.max(state.stamps.wanted)
        } else {
            state.stamps.wanted
        };
        let flush_is_due = due > self.durable_stamp();
        if flush_is_due && due_is_written && state.flushing.is_none() {
            state.flushing = Some(Flushing::Log(state.stamps.written));
            sender.queue.submit_flush(TAG_FLUSH).expect("a write and a flush are in flight at most");
            return true;
        }
        let enough = state.open.as_ref().is_some_and(|open| state.buffers.position - open.start >= GROUP_BYTES);
        if state.sealed.is_empty() && (hurry || enough || !due_is_written || self.sync == Sync::Always) {
            self.seal(&mut state);
        }
        let Some(group) = state.sealed.pop_front() else { return false };
        self.send_group(&mut state, sender, group);
        true
    }

    fn send_group(&self, state: &mut LogState, sender: &mut Sender, group: SealedGroup) {
        let arena = &state.buffers.arenas[(group.buffer % BUFFERS) as usize];
        let sealed = arena.lease(group.start..group.start + group.length);
        let operation = Operation::Write {
            flash: self.geometry.zone_offset(group.buffer) + group.start as u64,
            from: sealed.address(),
            length: group.length as u32,
            fua: self.sync == Sync::Always,
        };
        if fail_point!(AcknowledgeEarly) {
            self.durable.fetch_max(group.stamp_last, Ordering::SeqCst);
        }
        self.log_write_bytes.fetch_add(group.length as u64, Ordering::Relaxed);
        state.writing = Some(group);
        let command = Command::new(TAG_WRITE, operation).of(Purpose::Log);
        sender.queue.submit(command, Lease::Sealed(sealed)).expect("a write and a flush are in flight at most");
    }

    /// Requests that all records so far become durable soon, also if nobody waits for single ones. Returns the last one's stamp, or 0 at
    /// [`Sync::Always`], where every acknowledged record is durable already.
    pub fn want_durable(&self) -> u64 {
        if self.sync == Sync::Always {
            return 0;
        }
        let mut state = lock(&self.state);
        state.stamps.wanted = state.stamps.last;
        state.stamps.wanted
    }

    /// Makes the log durable up to a stamp that was given. `io` flushes, unless the mode writes groups durably.
    pub async fn make_durable(&self, io: &Io, stamp: u64, now_us: impl Fn() -> u64) -> Result<(), Error> {
        if stamp <= self.durable_stamp() {
            return Ok(());
        }
        poll_fn(|_| {
            self.advance(true, now_us());
            match self.poisoned() {
                Ok(()) if lock(&self.state).stamps.written < stamp => Poll::Pending,
                done => Poll::Ready(done),
            }
        })
        .await?;
        if stamp > self.durable_stamp() {
            self.flush_elsewhere(io).await?;
        }
        Ok(())
    }

    /// Makes durable what `io` wrote, once no other flush is in flight. A failure poisons the log.
    pub async fn flush_elsewhere(&self, io: &Io) -> Result<(), Error> {
        poll_fn(|_| self.begin_flush_elsewhere()).await?;
        let flushed = io.flush().await;
        self.end_flush_elsewhere(flushed.as_ref().err());
        flushed
    }

    /// Takes note that another queue's flush has ended, with this error if it failed.
    pub fn end_flush_elsewhere(&self, error: Option<&Error>) {
        if let Some(error) = error {
            self.poison("a flush", error.clone());
        }
        let flushed = lock(&self.state).flushing.take();
        if let (Some(Flushing::Elsewhere(stamp)), None) = (flushed, error) {
            self.durable.fetch_max(stamp, Ordering::SeqCst);
        }
        // Others may wait for their turn to flush.
        self.wake();
    }

    /// Lets another queue begin a flush, if none is in flight. The caller must end it.
    pub fn begin_flush_elsewhere(&self) -> Poll<Result<(), Error>> {
        self.ask(REAP, None);
        let mut state = lock(&self.state);
        if let Err(error) = self.poisoned() {
            return Poll::Ready(Err(error));
        }
        if state.flushing.is_some() {
            return Poll::Pending;
        }
        state.flushing = Some(Flushing::Elsewhere(state.stamps.written));
        Poll::Ready(Ok(()))
    }
}
