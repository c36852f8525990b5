//! The transfers of a controller that the flash queue holds: the owner of each, and what its completion does.

use super::stages::StageFailure;
use super::{CommandEnd, Controller, EndedCommand};
use crate::protocol::{Command, Completion, Opcode, Operation, Purpose, RegionId, Status};

#[derive(Clone, Copy)]
pub(super) enum TransferOwner {
    Command(CommandEnd),
    Stage {
        pipeline: u32,
        stage: u16,
    },
    /// A task of the engine that moves bytes of a pipeline.
    Task {
        place: u32,
    },
}

/// A command that the flash queue holds. `length` is zero if it moves no bytes.
#[derive(Clone, Copy)]
pub(super) struct FlashTransfer {
    owner: TransferOwner,
    opcode: Opcode,
    purpose: Purpose,
    length: u32,
    /// The bytes come from the host's region.
    from_host: bool,
    submitted_us: u64,
}

impl Controller {
    /// # Safety
    /// As [`FlashQueue::submit`].
    pub(super) unsafe fn submit_to_flash(&mut self, owner: TransferOwner, operation: Operation) {
        let (length, from_host) = match operation {
            Operation::Read { length, .. } => (length, false),
            Operation::Write { length, from, .. } => (length, from.region == RegionId::HOST),
            _ => (0, false),
        };
        let submitted_us = self.started_us();
        let purpose = match owner {
            TransferOwner::Command(end) => end.purpose,
            TransferOwner::Stage { pipeline, .. } => self.pipelines[pipeline as usize].end.purpose,
            TransferOwner::Task { .. } => Purpose::Pipeline,
        };
        let transfer = FlashTransfer { owner, opcode: operation.opcode(), purpose, length, from_host, submitted_us };
        let place = match self.transfers_free.pop() {
            Some(place) => {
                self.transfers[place as usize] = transfer;
                place
            }
            None => {
                self.transfers.push(transfer);
                self.transfers.len() as u32 - 1
            }
        };
        self.in_flash += 1;
        // SAFETY: by our caller's word.
        unsafe { self.queue.submit(&Command::new(u64::from(place), operation)) };
    }

    /// Completes transfers: ends their commands, or readies the pipelines that waited for them.
    pub(super) fn take_flash_done(&mut self, now_us: u64, ended: &mut Vec<EndedCommand>) {
        let mut flash_done = std::mem::take(&mut self.flash_done);
        self.flash_ended += flash_done.len() as u64;
        for completion in flash_done.drain(..) {
            let transfer = self.transfers[completion.tag as usize];
            self.transfers_free.push(completion.tag as u32);
            self.in_flash -= 1;
            self.counters.completed(transfer.opcode, completion.status);
            self.counters.latency(transfer.opcode, now_us.saturating_sub(transfer.submitted_us));
            let (purpose, bytes) = (transfer.purpose, u64::from(transfer.length));
            match (transfer.opcode, completion.status) {
                (Opcode::Read, Status::Success) => self.counters.moved_flash_to_local(purpose, bytes),
                (Opcode::Write, Status::Success) => self.counters.moved_local_to_flash(purpose, bytes),
                _ => {}
            }
            if transfer.from_host && completion.is_success() {
                self.counters.moved_host_to_local(purpose, bytes);
            }
            match transfer.owner {
                TransferOwner::Command(end) => {
                    ended.push(end.ended(Completion { tag: end.tag, ..completion }));
                }
                TransferOwner::Stage { pipeline, stage } => {
                    let Completion { status, errno, .. } = completion;
                    let failure = (status != Status::Success).then_some(StageFailure { stage, status, errno });
                    self.read_ended(pipeline, failure);
                }
                TransferOwner::Task { place } => {
                    self.share.ended(transfer.length);
                    self.task_moved(place, &completion);
                }
            }
        }
        self.flash_done = flash_done;
    }
}
