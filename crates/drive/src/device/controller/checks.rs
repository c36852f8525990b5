//! What a controller checks before it starts anything.

use super::Controller;
use crate::device::ranges::{copy_stage, end, overlap};
use crate::protocol::{Execution, LocalRange, Operation, STAGES_MAX, Stage, Status};

impl Controller {
    /// Whether all that a command other than `Execute` and `Pipeline` names is there.
    pub(super) fn is_valid(&mut self, operation: &Operation) -> bool {
        match *operation {
            Operation::Read { flash, local, length } | Operation::Write { flash, local, length, .. } => {
                self.may_transfer(flash, LocalRange { offset: local, length })
            }
            Operation::Discard { flash, length } => self.is_in_flash(flash, length),
            Operation::Flush => true,
            Operation::Identify { into } => self.device.local.pointer(into).is_some(),
            Operation::Execute { .. } | Operation::Pipeline { .. } => false,
        }
    }

    fn may_transfer(&mut self, flash: u64, local: LocalRange) -> bool {
        self.is_in_flash(flash, u64::from(local.length))
            && local.offset & self.sector_mask == 0
            && self.device.local.pointer(local).is_some()
    }

    fn is_in_flash(&mut self, flash: u64, length: u64) -> bool {
        let Some(end) = flash.checked_add(length) else { return false };
        if end > self.capacity_bytes {
            // It may have grown since its size was last asked.
            self.capacity_bytes = self.device.flash.capacity_bytes();
        }
        length > 0 && (flash | length) & self.sector_mask == 0 && end <= self.capacity_bytes
    }

    /// Copies a list and checks it. An error is the stage at which the list is wrong, and how.
    ///
    /// # Safety
    /// Nobody frees the list.
    pub(super) unsafe fn check_list(
        &mut self,
        list: LocalRange,
        reads: &mut Vec<(u64, LocalRange)>,
        executions: &mut Vec<Execution>,
    ) -> Result<(), (u16, Status)> {
        let count = list.length as usize / Stage::ENCODED_BYTES;
        let is_whole = list.length.is_multiple_of(Stage::ENCODED_BYTES as u32) && list.offset.is_multiple_of(8);
        let Some(first) = self.device.local.pointer(list).filter(|_| is_whole && (1..=STAGES_MAX).contains(&count))
        else {
            return Err((0, Status::InvalidField));
        };
        for number in 0..count as u16 {
            // SAFETY: inside the list, which is aligned to eight bytes and inside local memory.
            let bytes = unsafe { copy_stage(first.add(usize::from(number) * Stage::ENCODED_BYTES)) };
            match Stage::decode(&bytes) {
                Ok(Stage::Read { flash, local, length }) => {
                    let local = LocalRange { offset: local, length };
                    let ascends = reads.last().is_none_or(|(_, before)| end(*before) <= local.offset);
                    if !executions.is_empty() || !ascends || !self.may_transfer(flash, local) {
                        return Err((number, Status::InvalidField));
                    }
                    reads.push((flash, local));
                }
                Ok(Stage::Execute(execution)) => {
                    self.check_execution(&execution).map_err(|status| (number, status))?;
                    executions.push(execution);
                }
                Err(_) => return Err((number, Status::InvalidField)),
            }
        }
        Ok(())
    }

    pub(super) fn check_execution(&self, execution: &Execution) -> Result<(), Status> {
        if usize::from(execution.program.0) >= self.device.programs.len() {
            return Err(Status::Unsupported);
        }
        let Execution { parameters, output, .. } = *execution;
        let is_inside = |range: LocalRange| self.device.local.pointer(range).is_some();
        let is_read = execution.inputs().iter().copied().chain([parameters]);
        let is_valid = is_inside(output) && is_read.clone().all(is_inside);
        if is_valid && !is_read.into_iter().any(|range| overlap(range, output)) {
            return Ok(());
        }
        Err(Status::InvalidField)
    }
}
