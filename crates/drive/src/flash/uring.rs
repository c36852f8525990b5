//! Moves a file's bytes by io_uring: one ring for each queue pair.
//!
//! `submit` only fills ring entries; `poll` and `wait` enter the kernel once for all of them. The kernel has at most as many commands as
//! the ring has entries, so the completion ring (twice as large) never overflows; other commands wait in `backlog`. Local memory is
//! registered with the ring if the limit on locked memory allows; the kernel then need not look up its pages for every command.
//!
//! The kernel normally interrupts the submitting thread to complete commands. The ring of a single-thread queue lets completions wait until
//! that thread asks (docs/decisions/get-path.md). Such a ring is created disabled, and belongs to the thread that enables it by entering it
//! first. An eventfd reports its completions (`ring_event`).
//!
//! A flush is `fdatasync`. It is held back until the writes of this queue that came before it are complete, without
//! holding back anything else.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use io_uring::{Builder, IoUring, opcode, squeue, types};

use super::data_file::DataFile;
use super::ring_event::RingEvent;
use super::{FlashQueue, RETRIES_MAX, is_put_off};
use crate::memory::{LocalMemory, PairMemory};
use crate::protocol::{Command, Completion, LocalRange, MemoryAddress, Operation, RegionId, Status};

const DEPTH_MAX: u32 = 4096;
/// The kernel registers no larger buffer in one piece.
const FIXED_BUFFER_BYTES: usize = 1 << 30;
/// The data file's index among the ring's registered files.
const DATA: types::Fixed = types::Fixed(0);

/// Whether the kernel offers a ring with all features that the queue uses.
pub(super) fn probe() -> io::Result<()> {
    new_ring(1, &mut IoUring::builder()).map(drop)
}

fn new_ring(depth: u32, builder: &mut Builder) -> io::Result<IoUring> {
    let ring = builder.build(depth.clamp(1, DEPTH_MAX))?;
    if !(ring.params().is_feature_ext_arg() && ring.params().is_feature_nodrop()) {
        return Err(io::Error::from_raw_os_error(libc::ENOSYS));
    }
    Ok(ring)
}

#[derive(Clone, Copy)]
enum Action {
    Read,
    Write { fua: bool },
    Flush,
}

/// A command in flight. `flash`, `memory` and `length` describe the rest that is still to be moved.
#[derive(Clone, Copy)]
struct Transfer {
    tag: u64,
    action: Action,
    flash: u64,
    memory: MemoryAddress,
    length: u32,
    /// Flushes submitted before this one.
    flushes_before: u64,
    /// Retries since the kernel last moved bytes of it.
    retries: u32,
}

/// A flush that waits for earlier writes.
struct HeldFlush {
    transfer: u32,
    writes_before: u32,
}

pub(super) struct UringQueue {
    ring: IoUring,
    /// The ring is not enabled yet: the first thread that enters it enables it, and owns it.
    disabled: bool,
    /// The ring's event, for single-thread rings. Shared rings use their own descriptor.
    event: Option<RingEvent>,
    memory: PairMemory,
    fixed: bool,
    sector_mask: u32,
    /// Indexed by number, which is the ring entry's user data. A transfer keeps its number until its completion.
    transfers: Vec<Transfer>,
    transfers_free: Vec<u32>,
    backlog: VecDeque<u32>,
    held_flushes: VecDeque<HeldFlush>,
    flushes_submitted: u64,
    writes_in_flight: u32,
    ring_entries: u32,
    /// Entries pushed and not completed; the kernel does not know `unentered` of them yet.
    in_ring: u32,
    unentered: u32,
    done: Vec<Completion>,
    /// Completions just taken from the ring: transfer number and the kernel's result.
    results: Vec<(u32, i32)>,
    #[cfg(test)]
    enters: u64,
    // Last: the ring closes before the file does.
    data: Arc<DataFile>,
}

impl UringQueue {
    pub(super) fn new(data: Arc<DataFile>, memory: &PairMemory, depth: u32) -> io::Result<Self> {
        let ring = new_ring(depth, &mut IoUring::builder())?;
        UringQueue::on(ring, data, memory)
    }

    /// For one thread alone: the first that polls it or waits on it. If the kernel has no such rings, any thread may use it.
    pub(super) fn of_one_thread(data: Arc<DataFile>, memory: &PairMemory, depth: u32) -> io::Result<Self> {
        let mut builder = IoUring::builder();
        builder.setup_r_disabled().setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
        match new_ring(depth, &mut builder) {
            Ok(mut ring) => {
                let event = RingEvent::register(&mut ring)?;
                let mut queue = UringQueue::on(ring, data, memory)?;
                (queue.disabled, queue.event) = (true, Some(event));
                Ok(queue)
            }
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => UringQueue::new(data, memory, depth),
            Err(error) => Err(error),
        }
    }

    fn on(ring: IoUring, data: Arc<DataFile>, memory: &PairMemory) -> io::Result<Self> {
        ring.submitter().register_files(&[data.fd()])?;
        let fixed = match register_memory(&ring, memory) {
            Ok(()) => true,
            Err(error) => {
                data.say_unregistered(memory, &error);
                false
            }
        };
        let ring_entries = ring.params().sq_entries();
        Ok(UringQueue {
            ring,
            disabled: false,
            event: None,
            memory: memory.clone(),
            fixed,
            sector_mask: data.sector_bytes() - 1,
            transfers: Vec::with_capacity(ring_entries as usize),
            transfers_free: Vec::with_capacity(ring_entries as usize),
            backlog: VecDeque::new(),
            held_flushes: VecDeque::new(),
            flushes_submitted: 0,
            writes_in_flight: 0,
            ring_entries,
            in_ring: 0,
            unentered: 0,
            done: Vec::new(),
            results: Vec::new(),
            #[cfg(test)]
            enters: 0,
            data,
        })
    }

    /// Puts a transfer into the ring, or into the backlog.
    fn start(&mut self, number: u32) {
        if self.in_ring < self.ring_entries {
            self.push(number);
        } else {
            self.backlog.push_back(number);
        }
    }

    fn push(&mut self, number: u32) {
        let transfer = self.transfers[number as usize];
        let entry = self.entry(&transfer).user_data(u64::from(number));
        // SAFETY: the memory that the entry names is inside one of our regions, which this queue keeps alive until the entry is complete
        // (`drop` waits). The submitter promised that only the drive uses it until `finish` gives its completion.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        assert!(pushed.is_ok(), "the ring has {} entries and {} are in it", self.ring_entries, self.in_ring);
        self.in_ring += 1;
        self.unentered += 1;
    }

    fn entry(&self, transfer: &Transfer) -> squeue::Entry {
        if let Action::Flush = transfer.action {
            return opcode::Fsync::new(DATA).flags(types::FsyncFlags::DATASYNC).build();
        }
        let Some(memory) = self.memory.pointer(transfer.memory, transfer.length) else {
            panic!("a transfer at {:?}+{} outside memory passed the queue pair", transfer.memory, transfer.length);
        };
        let (memory, length, flash) = (memory.as_ptr(), transfer.length, transfer.flash);
        let MemoryAddress { region, offset } = transfer.memory;
        let (first, last) = (offset, offset + u64::from(length) - 1);
        let piece = first / FIXED_BUFFER_BYTES as u64;
        let pieces_before = if region == RegionId::HOST { pieces_of(&self.memory.local) } else { 0 };
        let is_one_piece = self.fixed && piece == last / FIXED_BUFFER_BYTES as u64;
        let fixed = is_one_piece.then_some((pieces_before as u64 + piece) as u16);
        let write_flags = |fua| self.data.write_flags(flash, length, fua);
        match (transfer.action, fixed) {
            (Action::Read, Some(piece)) => opcode::ReadFixed::new(DATA, memory, length, piece).offset(flash).build(),
            (Action::Read, None) => opcode::Read::new(DATA, memory, length).offset(flash).build(),
            (Action::Write { fua }, Some(piece)) => {
                opcode::WriteFixed::new(DATA, memory, length, piece).offset(flash).rw_flags(write_flags(fua)).build()
            }
            (Action::Write { fua }, None) => {
                opcode::Write::new(DATA, memory, length).offset(flash).rw_flags(write_flags(fua)).build()
            }
            (Action::Flush, _) => unreachable!("answered above"),
        }
    }

    /// Tells the kernel of new entries and, with `wait`, blocks for a completion.
    fn enter(&mut self, wait: Option<Option<Duration>>) {
        #[cfg(test)]
        {
            self.enters += 1;
        }
        if std::mem::take(&mut self.disabled) {
            let enabled = self.ring.submitter().register_enable_rings();
            assert!(enabled.is_ok(), "a ring that was made disabled is enabled once: {enabled:?}");
        }
        let entered = match wait {
            None => self.ring.submit(),
            Some(None) => self.ring.submit_and_wait(1),
            Some(Some(timeout)) => {
                let timespec = types::Timespec::from(timeout);
                self.ring.submitter().submit_with_args(1, &types::SubmitArgs::new().timespec(&timespec))
            }
        };
        match entered {
            Ok(count) => self.unentered -= count as u32,
            // Interrupted, timed out, or the kernel is temporarily short of something: the next call retries.
            Err(error) => match error.raw_os_error() {
                Some(libc::EEXIST) => panic!("a queue pair of one thread was used by another"),
                Some(libc::EINTR | libc::ETIME | libc::EAGAIN | libc::EBUSY | libc::ENOMEM) => {}
                _ => panic!("io_uring_enter refused a ring that it had accepted: {error}"),
            },
        }
    }

    /// Starts pending entries, and takes completions.
    fn turn(&mut self) {
        if self.unentered > 0 || self.ring.submission().taskrun() {
            self.enter(None);
        }
        self.reap();
        if self.unentered > 0 {
            self.enter(None); // What completions made room for.
        }
    }

    /// Arms the event, so that later completions wake a sleeper. Returns whether completions are already there.
    fn came_before_armed(&mut self) -> bool {
        let Some(event) = &self.event else { return false };
        event.arm(&mut self.ring) && (self.ring.submission().taskrun() || !self.ring.completion().is_empty())
    }

    /// Takes completions, and refills the ring from the backlog.
    fn reap(&mut self) {
        let mut results = std::mem::take(&mut self.results);
        results.extend(self.ring.completion().map(|entry| (entry.user_data() as u32, entry.result())));
        self.in_ring -= results.len() as u32;
        for (number, result) in results.drain(..) {
            self.finish(number, result);
        }
        self.results = results;
        while self.in_ring < self.ring_entries {
            let Some(number) = self.backlog.pop_front() else { break };
            self.push(number);
        }
    }

    fn finish(&mut self, number: u32, result: i32) {
        let transfer = &mut self.transfers[number as usize];
        let status = match (transfer.action, result) {
            (_, errno) if is_put_off(-errno) && transfer.retries < RETRIES_MAX => {
                transfer.retries += 1;
                self.backlog.push_back(number);
                return;
            }
            (_, errno) if errno < 0 => Err(-errno),
            (Action::Flush, _) => Ok(()),
            (_, moved) if moved as u32 == transfer.length => Ok(()),
            (_, moved) => {
                // A short transfer continues from its last whole sector. One that makes no progress is an error.
                let moved = moved as u32 & !self.sector_mask;
                if moved > 0 {
                    transfer.flash += u64::from(moved);
                    transfer.memory.offset += u64::from(moved);
                    transfer.length -= moved;
                    transfer.retries = 0;
                    self.backlog.push_back(number);
                    return;
                }
                Err(libc::EIO)
            }
        };
        let transfer = *transfer;
        self.transfers_free.push(number);
        self.done.push(match status {
            Ok(()) => Completion::success(transfer.tag),
            Err(errno) => Completion::failed(transfer.tag, errno),
        });
        if let Action::Write { .. } = transfer.action {
            self.writes_in_flight -= 1;
            self.release_flushes(transfer.flushes_before);
        }
    }

    /// A write that was submitted after `flushes_before` flushes has ended: flushes submitted after it waited for it.
    fn release_flushes(&mut self, flushes_before: u64) {
        if self.held_flushes.is_empty() {
            return;
        }
        for held in &mut self.held_flushes {
            if self.transfers[held.transfer as usize].flushes_before >= flushes_before {
                held.writes_before -= 1;
            }
        }
        // Later flushes wait for more writes, so those that can go are at the front.
        while self.held_flushes.front().is_some_and(|held| held.writes_before == 0) {
            let Some(held) = self.held_flushes.pop_front() else { break };
            self.start(held.transfer);
        }
    }
}

impl FlashQueue for UringQueue {
    unsafe fn submit(&mut self, command: &Command) {
        let (action, flash, memory, length) = match command.operation {
            Operation::Read { flash, local, length } => (Action::Read, flash, MemoryAddress::local(local), length),
            Operation::Write { flash, from, length, fua } => (Action::Write { fua }, flash, from, length),
            Operation::Flush => (Action::Flush, 0, MemoryAddress::local(0), 0),
            Operation::Discard { .. } => {
                // The reservation must hold, so a discard frees no blocks.
                self.done.push(Completion::success(command.tag));
                return;
            }
            Operation::Execute { .. }
            | Operation::Pipeline { .. }
            | Operation::Compute { .. }
            | Operation::Cancel { .. }
            | Operation::Identify { .. } => {
                self.done.push(Completion::new(command.tag, Status::Unsupported));
                return;
            }
        };
        let flushes_before = self.flushes_submitted;
        let transfer = Transfer { tag: command.tag, action, flash, memory, length, flushes_before, retries: 0 };
        let number = match self.transfers_free.pop() {
            Some(number) => {
                self.transfers[number as usize] = transfer;
                number
            }
            None => {
                self.transfers.push(transfer);
                self.transfers.len() as u32 - 1
            }
        };
        match action {
            Action::Flush => {
                self.flushes_submitted += 1;
                if self.writes_in_flight > 0 {
                    let held = HeldFlush { transfer: number, writes_before: self.writes_in_flight };
                    self.held_flushes.push_back(held);
                    return;
                }
            }
            Action::Write { .. } => self.writes_in_flight += 1,
            Action::Read => {}
        }
        self.start(number);
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        if let Some(event) = &self.event {
            event.disarm(&mut self.ring);
        }
        self.turn();
        while self.done.is_empty() && self.in_ring > 0 && self.came_before_armed() {
            self.turn();
        }
        completions.append(&mut self.done);
    }

    fn wait(&mut self, timeout: Option<Duration>) {
        self.reap();
        if !self.done.is_empty() || self.in_ring == 0 {
            return;
        }
        self.enter(Some(timeout));
    }

    fn event_fd(&self) -> Option<RawFd> {
        Some(match &self.event {
            Some(event) => event.ask(self.in_ring == 0),
            // A shared ring is readable exactly while it holds completions: there is no event to raise or clear.
            None => self.ring.as_raw_fd(),
        })
    }

    fn rest(&mut self) {
        if let Some(event) = &self.event {
            event.disarm(&mut self.ring);
            event.rest();
        }
    }
}

impl Drop for UringQueue {
    fn drop(&mut self) {
        /// The kernel may still write to memory whose owners believe that it no longer does.
        struct AbortUnlessForgotten;
        impl Drop for AbortUnlessForgotten {
            fn drop(&mut self) {
                std::process::abort();
            }
        }
        let must_end = AbortUnlessForgotten;
        self.backlog.clear();
        while self.in_ring > 0 {
            self.enter(Some(None));
            while self.ring.completion().next().is_some() {
                self.in_ring -= 1;
            }
        }
        std::mem::forget(must_end);
        // The kernel destroys a closed ring later; the files that it holds must not stay open until then. This can fail only if they were
        // not registered.
        let _ = self.ring.submitter().unregister_files();
        let _ = self.ring.submitter().unregister_buffers();
    }
}

/// Number of pieces in which local memory is registered; those of the host's region follow.
fn pieces_of(local: &LocalMemory) -> usize {
    local.bytes_total().div_ceil(FIXED_BUFFER_BYTES)
}

fn register_memory(ring: &IoUring, memory: &PairMemory) -> io::Result<()> {
    let Some(local) = memory.local.pointer(LocalRange::EMPTY) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let host = memory.host.as_ref().map(|host| (host.as_ptr(), host.bytes_total()));
    let regions = [Some((local.as_ptr().cast_const(), memory.local.bytes_total())), host];
    let pieces: Vec<libc::iovec> = regions
        .into_iter()
        .flatten()
        .flat_map(|(base, bytes)| (0..bytes).step_by(FIXED_BUFFER_BYTES).map(move |offset| (base, bytes, offset)))
        .map(|(base, bytes, offset)| libc::iovec {
            iov_base: base.wrapping_add(offset).cast_mut().cast(),
            iov_len: FIXED_BUFFER_BYTES.min(bytes - offset),
        })
        .collect();
    // SAFETY: the pieces cover the regions exactly, and the queue keeps them mapped for as long as it has the ring.
    unsafe { ring.submitter().register_buffers(&pieces) }
}

#[cfg(test)]
#[path = "uring_tests.rs"]
mod tests;
