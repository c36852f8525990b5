//! The controller: the device half of one queue pair.
//!
//! ```text
//! submit ─► copied, checked ─┬─ refused ───────────────────────────────────────────────────────► done
//!                            ├─ moves bytes ─► flash queue ────────────────────────────────────► done
//!                            └─ stages ─► reads ─► all there ─► ready ─► programs, in order ───► done
//!                                           │                     ▲  └─► a unit, if it has some ─┐
//!                                           │                     └──────────────────────────────┘
//!                                           └─ one failed: when the last has ended ────────────► done
//! ```
//! Commands to the flash queue carry tags of the controller's own (a place in `transfers`), so that it can time them and callers
//! may use any tag twice. Places of transfers and pipelines are used again: in a steady state nothing is allocated.

mod checks;
mod computing;
mod sleeping;
mod stages;
mod transfers;

use super::Device;
use super::compute::ControllerCompute;
use super::engine::shared::EngineClient;
use super::flash_share::FlashShare;
use crate::counters::QueueCounters;
use crate::event::EventSet;
use crate::flash::FlashQueue;
use crate::memory::HostRegion;
use crate::protocol::{Command, Completion, Execution, LeasedRanges, LocalRange, Opcode, Operation, Purpose, Status};
use stages::Pipeline;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;
use transfers::{FlashTransfer, TransferOwner};

#[derive(Clone, Copy)]
pub(crate) struct EndedCommand {
    /// The host's slot of the command.
    pub slot: u32,
    pub completion: Completion,
}

/// How to report the end of a command that was taken.
#[derive(Clone, Copy)]
pub(super) struct CommandEnd {
    pub tag: u64,
    /// The host's slot of the command.
    pub slot: u32,
    pub purpose: Purpose,
}

impl CommandEnd {
    fn of(command: &Command, slot: u32) -> CommandEnd {
        CommandEnd { tag: command.tag, slot, purpose: command.purpose }
    }

    fn ended(self, completion: Completion) -> EndedCommand {
        EndedCommand { slot: self.slot, completion }
    }
}

pub(crate) struct Controller {
    // First, so that it is dropped before anything its commands use; the drop waits for those commands.
    queue: Box<dyn FlashQueue>,
    /// Created by the first `Compute`, if the drive has no compute units.
    compute: Option<Box<ControllerCompute>>,
    /// Flash commands of the pipelines that the polling thread runs.
    share: FlashShare,
    /// Readable for completions of flash and for pipelines that ended on the drive's units. `None` without units.
    both_events: Option<EventSet>,
    device: Arc<Device>,
    counters: Arc<QueueCounters>,
    /// The host's memory, if it has a region. The drive only reads it.
    host: Option<HostRegion>,
    capacity_bytes: u64,
    sector_mask: u64,
    transfers: Vec<FlashTransfer>,
    transfers_free: Vec<u32>,
    pipelines: Vec<Pipeline>,
    pipelines_free: Vec<u32>,
    /// Pipelines whose reads have completed.
    ready: Vec<u32>,
    /// The reads of the list that is being checked.
    reads: Vec<(u64, LocalRange)>,
    /// Commands that were refused, and pipelines whose reads failed.
    done: Vec<EndedCommand>,
    flash_done: Vec<Completion>,
    in_flash: usize,
    flash_ended: u64,
    /// Submission time of the commands that the next `poll` or `wait` starts. One clock reading serves all of them.
    started_us: Option<u64>,
    runs: u64,
}

impl Controller {
    /// # Errors
    /// On a drive with compute units: the operating system's error when it has no more descriptors or threads, and an error when local
    /// memory has no room for the sub-buffers.
    pub fn new(
        device: Arc<Device>,
        queue: Box<dyn FlashQueue>,
        host: Option<HostRegion>,
        counters: Arc<QueueCounters>,
    ) -> io::Result<Controller> {
        let client = device.shared_engine()?.map(EngineClient::join).transpose()?;
        let both_events = match (&client, queue.event_fd()) {
            (Some(client), Some(flash)) => Some(EventSet::new(&[flash, client.event_fd()])?),
            _ => None,
        };
        Ok(Controller {
            queue,
            host,
            compute: client.map(|client| Box::new(ControllerCompute::shared(client))),
            share: FlashShare::default(),
            both_events,
            counters,
            capacity_bytes: device.flash.capacity_bytes(),
            sector_mask: u64::from(device.flash.sector_bytes()) - 1,
            device,
            transfers: Vec::new(),
            transfers_free: Vec::new(),
            pipelines: Vec::new(),
            pipelines_free: Vec::new(),
            ready: Vec::new(),
            reads: Vec::new(),
            done: Vec::new(),
            flash_done: Vec::new(),
            in_flash: 0,
            flash_ended: 0,
            started_us: None,
            runs: 0,
        })
    }

    /// Sets how many bytes its pipelines take at a time.
    pub fn take_parts_of(&mut self, part_bytes: u32) {
        self.compute.get_or_insert_with(|| Box::new(ControllerCompute::alone())).take_parts_of(part_bytes);
    }

    /// Takes local memory for its pipelines at once rather than with the first one. Returns whether there is room.
    pub fn make_engine(&mut self) -> bool {
        self.compute.get_or_insert_with(|| Box::new(ControllerCompute::alone())).make_engine(&self.device)
    }

    pub fn counters(&self) -> &Arc<QueueCounters> {
        &self.counters
    }

    /// Takes a command, for which the host has a `slot`. An invalid command ends with a completion that says so.
    ///
    /// # Safety
    /// The leased ranges are inside their region. Until [`Controller::poll`] has given its end, or this is
    /// dropped, nobody else reads, writes or frees what the command writes, and nobody writes or frees what it reads. Nobody writes or
    /// frees its list of stages until this returns.
    pub unsafe fn submit(&mut self, command: Command, slot: u32, leased: &LeasedRanges) {
        let end = CommandEnd::of(&command, slot);
        match command.operation {
            Operation::Execute { program, parameters, input, output } => {
                self.submit_execute(end, Execution::new(program, parameters, &[input], output), leased);
            }
            // SAFETY: by our caller's word.
            Operation::Pipeline { stages } => unsafe { self.submit_pipeline(end, stages, leased) },
            // SAFETY: by our caller's word.
            Operation::Compute { pipelines } => unsafe { self.submit_compute(end, pipelines, leased) },
            operation => match self.check_plain(&operation, leased) {
                // SAFETY: it was checked, and the ranges it names are leased.
                Ok(()) => unsafe { self.start_plain(end, operation) },
                Err(status) => self.refuse(end, operation.opcode(), 0, status),
            },
        }
    }

    /// Starts a command without programs.
    ///
    /// # Safety
    /// The command was checked. Until it has ended, what it writes nobody else touches, and what it reads nobody writes or frees.
    unsafe fn start_plain(&mut self, end: CommandEnd, operation: Operation) {
        let ended = match operation {
            // SAFETY: by our caller's word.
            Operation::Identify { into } => unsafe { self.identify(end, into) },
            Operation::Cancel { tag, pipeline } => self.cancel(end, tag, pipeline),
            // SAFETY: by our caller's word.
            operation => return unsafe { self.submit_to_flash(TransferOwner::Command(end), operation) },
        };
        self.done.push(ended);
    }

    /// Starts submitted commands, runs pipelines that are ready, and appends the commands that have ended.
    pub fn poll(&mut self, ended: &mut Vec<EndedCommand>) {
        ended.append(&mut self.done);
        self.started_us = None;
        let mut now_us = None;
        if self.in_flash > 0 {
            self.queue.poll(&mut self.flash_done);
            if !self.flash_done.is_empty() {
                let now_us = *now_us.insert(self.device.env.now_us());
                self.take_flash_done(now_us, ended);
            }
        } else {
            self.queue.rest();
        }
        if !self.ready.is_empty() {
            let now_us = now_us.unwrap_or_else(|| self.device.env.now_us());
            self.run_ready(now_us, ended);
        }
        if self.compute.as_ref().is_some_and(|compute| compute.is_busy()) {
            self.advance_compute(ended);
        }
    }

    /// To be called in place of `poll` while nothing is in flight.
    pub fn rest(&mut self) {
        self.queue.rest();
    }

    /// Blocks until `poll` has something, the timeout ends, or nothing is in flight. May return early for no reason.
    pub fn wait(&mut self, timeout: Option<Duration>) {
        self.started_us = None;
        if self.done.is_empty() && !self.is_ready() && (self.in_flash > 0 || self.is_computing()) {
            self.sleep(timeout);
        }
    }

    /// Another `poll` would make progress at once, or start what the last one has submitted: no descriptor tells of that.
    pub fn is_ready(&self) -> bool {
        let has_task = || self.compute.as_ref().is_some_and(|compute| compute.has_task());
        !self.ready.is_empty() || self.started_us.is_some() || has_task()
    }

    /// Like [`FlashQueue::event_fd`], and also readable for pipelines that ended on the drive's units.
    pub fn event_fd(&self) -> Option<RawFd> {
        match &self.both_events {
            Some(both) => Some(both.as_raw_fd()),
            // The flash has no descriptor, and units have one for what they end.
            None => self.queue.event_fd().or_else(|| self.is_computing().then(|| self.wake_fd()).flatten()),
        }
    }

    /// # Safety
    /// The range was checked, and the drive may write it.
    unsafe fn identify(&mut self, end: CommandEnd, into: LocalRange) -> EndedCommand {
        let bytes = self.device.identity().encode();
        if bytes.len() <= into.length as usize {
            // SAFETY: inside the range, which our caller says nobody else uses.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.pointer(into).as_ptr(), bytes.len()) };
        }
        self.counters.completed(Opcode::Identify, Status::Success);
        end.ended(Completion { result: [bytes.len() as u64, 0], ..Completion::success(end.tag) })
    }

    fn refuse(&mut self, end: CommandEnd, opcode: Opcode, stage: u16, status: Status) {
        self.counters.completed(opcode, status);
        self.done.push(end.ended(Completion { stage, ..Completion::new(end.tag, status) }));
    }

    fn started_us(&mut self) -> u64 {
        *self.started_us.get_or_insert_with(|| self.device.env.now_us())
    }

    fn pointer(&self, range: LocalRange) -> NonNull<u8> {
        let Some(pointer) = self.device.local.pointer(range) else {
            unreachable!("{range:?} was checked, and local memory never shrinks");
        };
        pointer
    }
}
