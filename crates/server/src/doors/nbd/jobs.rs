//! One request of a client, in parts: one part is the store's work for one block.
//!
//! ```text
//!   job: at ─► end, a part a block ─► all parts done ─► (a barrier, if it is to be durable) ─► reply
//! ```
//! The steps of a part that changes a piece of a block are described at [`BlockChange`].
//! Plain data of one client's transmission.

use std::time::Instant;

use tapetum::{BLOCK_BYTES, BlockChange, BlockPiece};

use super::protocol::reply;
use super::protocol::request::{NbdCommand, NbdRequest};
use crate::doors::context::Context;
use crate::net::out::{OutQueue, Pool};
use crate::stats::device_stats::DeviceCommand;

const BLOCK: u64 = BLOCK_BYTES as u64;

pub enum Task {
    /// `holes`: for each block of the read, whether it is absent.
    Read {
        bytes: Vec<u8>,
        holes: Vec<bool>,
        is_whole: bool,
    },
    Write,
    /// Covers whole blocks only.
    Trim,
    Zero {
        is_allocated: bool,
    },
    Status {
        is_of_one: bool,
    },
    Flush,
}

pub struct Job {
    pub cookie: u64,
    /// Start time, for the figures.
    pub began: Instant,
    pub length: u32,
    pub task: Task,
    start: u64,
    /// Parts before this offset are handed out, or were looked at.
    pub at: u64,
    pub end: u64,
    /// Parts in progress.
    pub parts: usize,
    /// The first error of a part; 0 is none.
    pub error: u32,
    /// A barrier must follow the last part.
    pub needs_sync: bool,
    /// Bytes that the job is charged with until it is answered.
    pub held_bytes: usize,
    /// Value of [`Session::exchanges`] when the job began.
    pub exchanges: u64,
}

impl Job {
    /// The job of an accepted request.
    pub fn new(request: &NbdRequest, held_bytes: usize, cx: &mut Context<'_>) -> Job {
        let (mut start, mut end) = (request.offset, request.offset.saturating_add(request.length.into()));
        let task = match request.command {
            NbdCommand::Read => {
                let blocks = end.div_ceil(BLOCK) - start / BLOCK;
                let (bytes, holes) = (cx.pool.take_zeroed(request.length as usize), vec![false; blocks as usize]);
                Task::Read { bytes, holes, is_whole: request.is_whole() }
            }
            NbdCommand::Write => Task::Write,
            NbdCommand::Trim => {
                // The parts of blocks at both ends keep their bytes: a trim is a hint.
                start = start.next_multiple_of(BLOCK);
                end = start.max(end - end % BLOCK);
                Task::Trim
            }
            NbdCommand::WriteZeroes => Task::Zero { is_allocated: request.is_allocated() },
            NbdCommand::BlockStatus => Task::Status { is_of_one: request.is_of_one() },
            NbdCommand::Flush => {
                (start, end) = (0, 0);
                Task::Flush
            }
            NbdCommand::Disconnect | NbdCommand::Unknown(_) => unreachable!("neither is a job"),
        };
        let is_forced = request.is_forced() && !matches!(task, Task::Read { .. });
        let needs_sync = is_forced || matches!(task, Task::Flush);
        let NbdRequest { cookie, length, .. } = *request;
        let (began, exchanges) = (cx.instant(), cx.seat.exchanges());
        Job {
            cookie,
            began,
            length,
            task,
            start,
            at: start,
            end,
            parts: 0,
            error: 0,
            needs_sync,
            held_bytes,
            exchanges,
        }
    }

    /// The job of a refused write: it takes the bytes, which arrive anyway.
    pub fn of_refused_write(request: &NbdRequest, error: u32, began: Instant) -> Job {
        let NbdRequest { cookie, length, .. } = *request;
        let (at, end, task) = (0, length.into(), Task::Write);
        let (needs_sync, held_bytes, exchanges) = (false, 0, 0);
        Job { cookie, began, length, task, start: at, at, end, parts: 0, error, needs_sync, held_bytes, exchanges }
    }

    /// The command for its counters.
    pub fn command(&self) -> DeviceCommand {
        match self.task {
            Task::Read { .. } => DeviceCommand::Read,
            Task::Write => DeviceCommand::Write,
            Task::Trim => DeviceCommand::Trim,
            Task::Zero { .. } => DeviceCommand::WriteZeroes,
            Task::Status { .. } => DeviceCommand::BlockStatus,
            Task::Flush => DeviceCommand::Flush,
        }
    }

    /// The next piece. There must be one.
    pub fn piece(&self) -> BlockPiece {
        BlockPiece::first_of(&(self.at..self.end))
    }

    /// Whether all parts are handed out.
    pub fn is_handed_out(&self) -> bool {
        self.at == self.end
    }

    /// A part failed: no more parts are handed out. A write still takes its bytes, and discards them.
    pub fn fail(&mut self, error: u32) {
        self.error = if self.error == 0 { error } else { self.error };
        if !matches!(self.task, Task::Write) {
            self.at = self.end;
        }
    }

    /// Stores the bytes of a block of a read, or that the block is absent.
    pub fn fill(&mut self, BlockPiece { block, within }: &BlockPiece, value: Option<&[u8]>) {
        let first = self.start / BLOCK;
        let place = (block * BLOCK + within.start as u64 - self.start) as usize;
        let Task::Read { bytes, holes, .. } = &mut self.task else { unreachable!("only reads are filled") };
        match value {
            Some(value) => bytes[place..place + within.len()].copy_from_slice(&value[within.clone()]),
            None => holes[(block - first) as usize] = true,
        }
    }

    /// Sends the reply, when all parts are done.
    pub fn reply(self, is_structured: bool, out: &mut OutQueue, pool: &mut Pool) {
        let Job { cookie, error, start, task, .. } = self;
        match task {
            Task::Read { bytes, holes, is_whole } if error == 0 => {
                if !is_structured {
                    out.append(pool, |out| reply::push_simple(out, cookie, 0));
                    return out.append_buffer(pool, bytes);
                }
                if bytes.is_empty() {
                    return out.append(pool, |out| reply::push_end(out, cookie));
                }
                if is_whole || !holes.contains(&true) {
                    out.append(pool, |out| reply::push_data_head(out, cookie, true, start, bytes.len()));
                    return out.append_buffer(pool, bytes);
                }
                reply_in_runs(cookie, start, &bytes, &holes, out, pool);
            }
            Task::Read { .. } | Task::Status { .. } if is_structured => {
                out.append(pool, |out| reply::push_error(out, cookie, error));
            }
            _ => out.append(pool, |out| reply::push_simple(out, cookie, error)),
        }
    }
}

/// Sends the reply to a read as runs of data and holes.
fn reply_in_runs(cookie: u64, start: u64, bytes: &[u8], holes: &[bool], out: &mut OutQueue, pool: &mut Pool) {
    let first = start / BLOCK;
    let place_of = |block: usize| {
        let at = ((first + block as u64) * BLOCK).saturating_sub(start) as usize;
        at.min(bytes.len())
    };
    let mut begin = 0;
    for run in holes.chunk_by(|one, other| one == other) {
        let end = begin + run.len();
        let within = place_of(begin)..place_of(end);
        let (offset, is_last) = (start + within.start as u64, end == holes.len());
        out.append(pool, |out| match run[0] {
            true => reply::push_hole(out, cookie, is_last, offset, within.len() as u32),
            false => {
                reply::push_data_head(out, cookie, is_last, offset, within.len());
                out.extend_from_slice(&bytes[within.clone()]);
            }
        });
        begin = end;
    }
}

pub enum PartKind {
    Read,
    Put,
    Delete,
    Change(BlockChange),
    Sync,
}

pub struct Part {
    pub job: usize,
    pub piece: BlockPiece,
    pub kind: PartKind,
    /// Bytes that the pending request was admitted with.
    pub charge_bytes: usize,
    /// Bytes that the part itself is charged with until it is done.
    pub held_bytes: usize,
}

impl Part {
    pub fn is_get(&self) -> bool {
        match &self.kind {
            PartKind::Read => true,
            PartKind::Change(change) => change.reads(),
            PartKind::Put | PartKind::Delete | PartKind::Sync => false,
        }
    }
}

/// Values with numbers, which are reused.
pub struct Numbered<T> {
    slots: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Default for Numbered<T> {
    fn default() -> Numbered<T> {
        Numbered { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T> Numbered<T> {
    pub fn count(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().flatten()
    }

    pub fn add(&mut self, one: T) -> usize {
        let number = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[number] = Some(one);
        number
    }

    pub fn take(&mut self, number: usize) -> T {
        let Some(one) = self.slots[number].take() else { unreachable!("it is there until it is taken") };
        self.free.push(number);
        one
    }

    pub fn get(&self, number: usize) -> &T {
        self.slots[number].as_ref().expect("it is there until it is taken")
    }

    pub fn get_mut(&mut self, number: usize) -> &mut T {
        self.slots[number].as_mut().expect("it is there until it is taken")
    }
}
