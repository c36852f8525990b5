//! The queue of a set with redundancy: cuts commands at chunks, writes what is there twice to both, adds up parities, and rebuilds what a member
//! cannot give.
//!
//! ```text
//!  a read   ─► its member ── fails, or is lost ─► copies: the other one
//!                                                 a stripe: the other chunks of the row and its parity, added up
//!  a write  ─► its member, and the copy's; or, with the last bytes of a row, the row's parity
//!  a flush  ─► all members
//! ```
//! A command ends when its last part has. Parities and rebuilds go by queues and memory of this queue's own ([`Spare`]), which are made when they
//! are first needed: what a host lends is the host's.

use std::cell::OnceCell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use slab::Slab;
use tapetum_kernels::parity;

use super::Set;
use super::pieces::{Piece, Source, pieces};
use super::shape::Cell;
use crate::event::{EventSet, is_readable_within};
use crate::fail_point;
use crate::flash::FlashQueue;
use crate::flash::set::SetMember;
use crate::memory::{LocalBuffer, LocalMemory, PairMemory};
use crate::protocol::{Command, Completion, LocalRange, MemoryAddress, Operation, Status};

/// Buffers of a chunk each, for parities and rebuilds. A row's rebuild needs fewer than there may be members.
const SPARE_BUFFERS: usize = 16;

/// A command that is under way.
struct UnderWay {
    tag: u64,
    parts_left: usize,
    /// The first part that failed, or success so far.
    ended: Completion,
}

/// A part of a command, on one member.
struct Part {
    command: usize,
    member: usize,
    work: Work,
}

enum Work {
    Read(Piece, Memory),
    /// A write of data or of a copy; a flush.
    Change,
    /// A write of a parity, out of a spare buffer.
    Parity(usize),
    /// A block of a row that is rebuilt.
    Block(usize),
    /// A discard, or the read of a copy whose other is gone: nothing makes up for its error.
    Alone,
}

/// Where a piece lies in the host's memory.
#[derive(Clone, Copy)]
struct Memory {
    local: u64,
}

/// A piece that is rebuilt from the rest of its row.
struct Rebuild {
    command: usize,
    member: usize,
    piece: Piece,
    memory: Memory,
    blocks_left: usize,
    has_failed: bool,
    /// Spare buffers, which hold all blocks but the first.
    buffers: Vec<usize>,
}

/// What waits for a spare buffer.
enum Waiting {
    Parity { command: usize, cell: Cell, sum: Box<[u8]>, fua: bool },
    Rebuild { command: usize, member: usize, piece: Piece, memory: Memory },
}

/// Queues and memory of this queue's own.
struct Spare {
    // First, so that its commands have ended before the memory that they fill is freed.
    queues: Vec<Box<dyn FlashQueue>>,
    buffers: Vec<LocalBuffer>,
    free: Vec<usize>,
}

pub struct RedundantQueue {
    set: Arc<Set>,
    memory: PairMemory,
    /// Of each member.
    queues: Vec<Box<dyn FlashQueue>>,
    spare: Option<Spare>,
    waiting: VecDeque<Waiting>,
    commands: Slab<UnderWay>,
    parts: Slab<Part>,
    rebuilds: Slab<Rebuild>,
    /// Readable while a member has completions.
    event: OnceCell<Option<EventSet>>,
    done: Vec<Completion>,
}

impl RedundantQueue {
    pub fn new(set: Arc<Set>, queues: Vec<Box<dyn FlashQueue>>, memory: PairMemory) -> RedundantQueue {
        RedundantQueue {
            set,
            memory,
            queues,
            spare: None,
            waiting: VecDeque::new(),
            commands: Slab::default(),
            parts: Slab::default(),
            rebuilds: Slab::default(),
            event: OnceCell::new(),
            done: Vec::new(),
        }
    }

    /// # Safety
    /// As [`FlashQueue::submit`], of each range.
    unsafe fn start(&mut self, command: usize, member: usize, work: Work, operation: Operation) {
        self.commands[command].parts_left += 1;
        let of_spare = matches!(work, Work::Parity(_));
        let part = self.parts.insert(Part { command, member, work });
        let queues = match &mut self.spare {
            Some(spare) if of_spare => &mut spare.queues,
            _ => &mut self.queues,
        };
        // SAFETY: by our caller's word.
        unsafe { queues[member].submit(&Command::new(part as u64, operation)) };
    }

    fn fail(&mut self, command: usize, errno: i32) {
        let command = &mut self.commands[command];
        if command.ended.is_success() {
            command.ended = Completion::failed(command.tag, errno);
        }
    }

    fn flash(&self, piece: &Piece, cell: Cell) -> u64 {
        self.set.flash(cell.member, piece.is_own, cell.at + piece.within)
    }

    /// # Safety
    /// As [`FlashQueue::submit`].
    unsafe fn read(&mut self, command: usize, piece: Piece, memory: Memory) {
        let member = piece.cell.member;
        if self.set.losses.is_lost(member) {
            return self.rebuild(command, member, piece, memory);
        }
        let operation =
            Operation::Read { flash: self.flash(&piece, piece.cell), local: memory.local, length: piece.length };
        // SAFETY: a part of the command's range.
        unsafe { self.start(command, member, Work::Read(piece, memory), operation) };
    }

    /// # Safety
    /// As [`FlashQueue::submit`].
    unsafe fn write(&mut self, command: usize, piece: Piece, from: MemoryAddress, fua: bool) {
        let mut cells = vec![piece.cell];
        let mut parity = None;
        match piece.source {
            Source::Copy(_) if fail_point!(CopyForgotten) => {}
            Source::Copy(copy) => cells.push(copy),
            Source::Row { row, .. } => {
                let Some(bytes) = self.memory.pointer(from, piece.length) else {
                    unreachable!("the queue pair has checked the range")
                };
                // SAFETY: inside its region, and written by nobody by our caller's word.
                let bytes = unsafe { std::slice::from_raw_parts(bytes.as_ptr(), piece.length as usize) };
                parity = self.set.rows.add(row, piece.within, bytes).map(|sum| (self.set.shape.parity_cell(row), sum));
            }
        }
        cells.retain(|cell| !self.set.losses.is_lost(cell.member));
        if cells.is_empty() && matches!(piece.source, Source::Copy(_)) {
            self.fail(command, libc::EIO);
        }
        for cell in cells {
            let operation = Operation::Write { flash: self.flash(&piece, cell), from, length: piece.length, fua };
            // SAFETY: a part of the command's range. Both copies only read it.
            unsafe { self.start(command, cell.member, Work::Change, operation) };
        }
        if let Some((cell, sum)) = parity
            && !self.set.losses.is_lost(cell.member)
            && !fail_point!(ParityForgotten)
        {
            self.commands[command].parts_left += 1;
            self.waiting.push_back(Waiting::Parity { command, cell, sum, fua });
        }
    }

    /// Answers a part of a read from the other members.
    fn rebuild(&mut self, command: usize, member: usize, piece: Piece, memory: Memory) {
        self.set.losses.counts[member].rebuilt.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        match piece.source {
            Source::Copy(copy) if member == piece.cell.member && !self.set.losses.is_lost(copy.member) => {
                let other = Piece { cell: copy, source: Source::Copy(piece.cell), ..piece };
                let operation =
                    Operation::Read { flash: self.flash(&other, copy), local: memory.local, length: piece.length };
                // SAFETY: the part's own range, which the command that has failed there is done with.
                unsafe { self.start(command, copy.member, Work::Alone, operation) };
            }
            Source::Copy(_) => self.fail(command, libc::EIO),
            Source::Row { .. } => {
                self.commands[command].parts_left += 1;
                self.waiting.push_back(Waiting::Rebuild { command, member, piece, memory });
            }
        }
    }

    /// Starts what waits for spare buffers, as far as there are some.
    fn start_waiting(&mut self) {
        while !self.waiting.is_empty() {
            if self.spare.is_none()
                && let Err(error) = self.make_spare()
            {
                tracing::error!("a set with redundancy has no memory to rebuild with: {error}");
                for waiting in std::mem::take(&mut self.waiting) {
                    let (Waiting::Parity { command, .. } | Waiting::Rebuild { command, .. }) = waiting;
                    self.fail(command, libc::ENOMEM);
                    self.end_part(command);
                }
                return;
            }
            let free = self.spare.as_ref().map_or(0, |spare| spare.free.len());
            let needed = match &self.waiting[0] {
                Waiting::Parity { .. } => 1,
                Waiting::Rebuild { piece, .. } => self.set.row_blocks(piece).len().saturating_sub(1),
            };
            if free < needed {
                return;
            }
            match self.waiting.pop_front() {
                Some(Waiting::Parity { command, cell, sum, fua }) => self.start_parity(command, cell, &sum, fua),
                Some(Waiting::Rebuild { command, member, piece, memory }) => {
                    self.start_rebuild(command, member, piece, memory);
                }
                None => {}
            }
        }
    }

    fn make_spare(&mut self) -> io::Result<()> {
        let chunk = self.set.shape.chunk_bytes() as usize;
        let memory = LocalMemory::new(SPARE_BUFFERS * chunk)?;
        let buffers: Vec<LocalBuffer> = (0..SPARE_BUFFERS).map_while(|_| memory.allocate(chunk)).collect();
        let memory = PairMemory::from(memory);
        let of_member = |member: &SetMember| member.flash.open_queue(&memory, SPARE_BUFFERS as u32);
        let queues = self.set.members.iter().map(of_member).collect::<io::Result<Vec<_>>>()?;
        if let Some(Some(event)) = self.event.get() {
            for fd in queues.iter().filter_map(|queue| queue.event_fd()) {
                event.add(fd)?;
            }
        }
        let free = (0..buffers.len()).collect();
        self.spare = Some(Spare { queues, buffers, free });
        Ok(())
    }

    fn start_parity(&mut self, command: usize, cell: Cell, sum: &[u8], fua: bool) {
        let flash = self.set.flash(cell.member, false, cell.at);
        let Some(spare) = &mut self.spare else { unreachable!("it was just looked at") };
        let Some(buffer) = spare.free.pop() else { unreachable!("one is free") };
        spare.buffers[buffer].bytes_mut()[..sum.len()].copy_from_slice(sum);
        let from = MemoryAddress::local(spare.buffers[buffer].offset());
        let operation = Operation::Write { flash, from, length: sum.len() as u32, fua };
        // SAFETY: the buffer is this part's alone until it ends.
        unsafe { self.start(command, cell.member, Work::Parity(buffer), operation) };
        // It was counted when it began to wait.
        self.commands[command].parts_left -= 1;
    }

    fn start_rebuild(&mut self, command: usize, member: usize, piece: Piece, memory: Memory) {
        let blocks = self.set.row_blocks(&piece);
        if blocks.iter().any(|cell| self.set.losses.is_lost(cell.member)) {
            self.fail(command, libc::EIO);
            return self.end_part(command);
        }
        let Some(spare) = &mut self.spare else { unreachable!("it was just looked at") };
        let buffers: Vec<usize> = spare.free.split_off(spare.free.len() - (blocks.len() - 1));
        let places: Vec<u64> = buffers.iter().map(|buffer| spare.buffers[*buffer].offset()).collect();
        let (blocks_left, has_failed) = (blocks.len(), false);
        let rebuild =
            self.rebuilds.insert(Rebuild { command, member, piece, memory, blocks_left, has_failed, buffers });
        for (number, cell) in blocks.into_iter().enumerate() {
            let flash = self.flash(&piece, cell);
            let part = self.parts.insert(Part { command, member: cell.member, work: Work::Block(rebuild) });
            let (queues, local) = match (number, &mut self.spare) {
                (1.., Some(spare)) => (&mut spare.queues, places[number - 1]),
                _ => (&mut self.queues, memory.local),
            };
            let operation = Operation::Read { flash, local, length: piece.length };
            // SAFETY: the part's own range, which the command that has failed there is done with; or buffers of this rebuild alone.
            unsafe { queues[cell.member].submit(&Command::new(part as u64, operation)) };
        }
    }

    fn block_ended(&mut self, member: usize, number: usize, completion: &Completion) {
        if !completion.is_success() {
            self.count_failed_read(member);
        }
        let rebuild = &mut self.rebuilds[number];
        rebuild.has_failed |= !completion.is_success();
        rebuild.blocks_left -= 1;
        if rebuild.blocks_left > 0 {
            return;
        }
        let Rebuild { command, member, piece, memory, has_failed, buffers, .. } = self.rebuilds.remove(number);
        let Some(spare) = &mut self.spare else { unreachable!("its buffers are there") };
        if has_failed {
            tracing::error!("what member {} had cannot be rebuilt: another member failed as well", member + 1);
        } else {
            let range = LocalRange { offset: memory.local, length: piece.length };
            let Some(sum) = self.memory.local.pointer(range) else {
                unreachable!("the queue pair has checked the range")
            };
            // SAFETY: inside local memory, and the command's alone until it ends.
            let sum = unsafe { std::slice::from_raw_parts_mut(sum.as_ptr(), piece.length as usize) };
            for buffer in &buffers {
                parity::add(sum, &spare.buffers[*buffer].bytes()[..piece.length as usize]);
            }
        }
        spare.free.extend(buffers);
        if has_failed {
            self.fail(command, libc::EIO);
        }
        self.end_part(command);
    }

    fn count_failed_read(&self, member: usize) {
        self.set.losses.counts[member].reads_failed.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }

    fn ended(&mut self, completion: &Completion) {
        let Part { command, member, work } = self.parts.remove(completion.tag as usize);
        match work {
            Work::Block(rebuild) => return self.block_ended(member, rebuild, completion),
            Work::Read(piece, memory) if !completion.is_success() => {
                self.count_failed_read(member);
                self.rebuild(command, member, piece, memory);
            }
            Work::Change | Work::Parity(_) if !completion.is_success() => {
                if completion.is_no_space() || !self.set.losses.lose(member) {
                    self.fail(command, completion.errno.max(1));
                }
            }
            Work::Alone if !completion.is_success() => self.fail(command, completion.errno.max(1)),
            Work::Read(..) | Work::Change | Work::Parity(_) | Work::Alone => {}
        }
        if let (Work::Parity(buffer), Some(spare)) = (work, &mut self.spare) {
            spare.free.push(buffer);
        }
        self.end_part(command);
    }

    fn end_part(&mut self, number: usize) {
        let command = &mut self.commands[number];
        command.parts_left -= 1;
        if command.parts_left == 0 {
            self.done.push(self.commands.remove(number).ended);
        }
    }

    /// Until nothing more has ended. What a completion starts is on its way afterwards.
    fn poll_members(&mut self) {
        let mut ended = Vec::new();
        loop {
            self.start_waiting();
            let spare = self.spare.iter_mut().flat_map(|spare| &mut spare.queues);
            self.queues.iter_mut().chain(spare).for_each(|queue| queue.poll(&mut ended));
            if ended.is_empty() {
                return;
            }
            for completion in ended.drain(..) {
                self.ended(&completion);
            }
        }
    }

    fn event(&self) -> Option<&EventSet> {
        let make = || {
            let spare = self.spare.iter().flat_map(|spare| spare.queues.iter().enumerate());
            let queues = self.queues.iter().enumerate().chain(spare);
            // Those of members that were absent from the beginning have none.
            let there = queues.filter(|(member, _)| !self.set.losses.is_lost(*member));
            let fds: Option<Vec<RawFd>> = there.map(|(_, queue)| queue.event_fd()).collect();
            EventSet::new(&fds?).ok()
        };
        self.event.get_or_init(make).as_ref()
    }
}

impl FlashQueue for RedundantQueue {
    unsafe fn submit(&mut self, command: &Command) {
        let tag = command.tag;
        // The last part is this call itself.
        let number = self.commands.insert(UnderWay { tag, parts_left: 1, ended: Completion::success(tag) });
        match command.operation {
            Operation::Read { flash, local, length } => {
                for piece in pieces(&self.set, flash, length.into()) {
                    let memory = Memory { local: local + piece.from };
                    // SAFETY: a part of the command's range, by our caller's word.
                    unsafe { self.read(number, piece, memory) };
                }
            }
            Operation::Write { flash, from, length, fua } => {
                for piece in pieces(&self.set, flash, length.into()) {
                    let from = MemoryAddress { offset: from.offset + piece.from, ..from };
                    // SAFETY: as above.
                    unsafe { self.write(number, piece, from, fua) };
                }
            }
            Operation::Discard { flash, length } => {
                for piece in pieces(&self.set, flash, length) {
                    let copy = match piece.source {
                        Source::Copy(copy) => Some(copy),
                        Source::Row { .. } => None,
                    };
                    for cell in std::iter::once(piece.cell).chain(copy) {
                        let operation =
                            Operation::Discard { flash: self.flash(&piece, cell), length: piece.length.into() };
                        if !self.set.losses.is_lost(cell.member) {
                            // SAFETY: it has no range of memory.
                            unsafe { self.start(number, cell.member, Work::Alone, operation) };
                        }
                    }
                }
            }
            Operation::Flush => {
                for member in
                    (0..self.queues.len()).filter(|member| !self.set.losses.is_lost(*member)).collect::<Vec<_>>()
                {
                    // SAFETY: a flush has no ranges.
                    unsafe { self.start(number, member, Work::Change, Operation::Flush) };
                }
            }
            Operation::Execute { .. }
            | Operation::Pipeline { .. }
            | Operation::Compute { .. }
            | Operation::Cancel { .. }
            | Operation::Identify { .. } => self.commands[number].ended = Completion::new(tag, Status::Unsupported),
        }
        self.end_part(number);
    }

    /// When a member fails it blocks until the others know.
    fn poll(&mut self, completions: &mut Vec<Completion>) {
        self.poll_members();
        completions.append(&mut self.done);
    }

    fn wait(&mut self, timeout: Option<Duration>) {
        self.poll_members();
        // A member without a descriptor must be polled.
        if self.done.is_empty()
            && !self.commands.is_empty()
            && let Some(event) = self.event()
        {
            is_readable_within(event.as_raw_fd(), timeout);
        }
    }

    /// Commands that completed without it come out of the next poll, which precedes any sleep.
    fn event_fd(&self) -> Option<RawFd> {
        self.event().map(AsRawFd::as_raw_fd)
    }

    fn rest(&mut self) {
        let spare = self.spare.iter_mut().flat_map(|spare| &mut spare.queues);
        self.queues.iter_mut().chain(spare).for_each(|queue| queue.rest());
    }
}
