//! The checks that a controller makes before it starts a command.

use super::Controller;
use crate::device::ranges::{copy_once, overlap};
use crate::protocol::{
    Execution, LeasedRanges, LocalRange, MemoryAddress, Operation, PIPELINES_MAX, RegionId, STAGES_MAX, Stage, Status,
};

impl Controller {
    /// Checks a command other than `Execute` and `Pipeline`: its ranges exist and are leased.
    pub(super) fn check_plain(&mut self, operation: &Operation, leased: &LeasedRanges) -> Result<(), Status> {
        match *operation {
            Operation::Read { flash, local, length } => {
                self.check_moved(flash, MemoryAddress::local(local), length, leased)
            }
            Operation::Write { flash, from, length, .. } => self.check_moved(flash, from, length, leased),
            Operation::Discard { flash, length } if self.is_in_flash(flash, length) => Ok(()),
            Operation::Flush => Ok(()),
            Operation::Identify { into } => self.check_leased(into, leased),
            Operation::Cancel { pipeline, .. } if pipeline.is_none_or(|number| usize::from(number) < PIPELINES_MAX) => {
                Ok(())
            }
            _ => Err(Status::InvalidField),
        }
    }

    fn check_moved(
        &mut self,
        flash: u64,
        memory: MemoryAddress,
        length: u32,
        leased: &LeasedRanges,
    ) -> Result<(), Status> {
        if !self.is_in_flash(flash, u64::from(length)) || memory.offset & self.sector_mask != 0 {
            return Err(Status::InvalidField);
        }
        self.check_leased_at(memory, length, leased)
    }

    pub(super) fn check_leased(&self, range: LocalRange, leased: &LeasedRanges) -> Result<(), Status> {
        self.check_leased_at(MemoryAddress::local(range.offset), range.length, leased)
    }

    /// Checks that a range is leased; leases are always inside their region. An empty range needs no lease.
    #[inline]
    fn check_leased_at(&self, from: MemoryAddress, length: u32, leased: &LeasedRanges) -> Result<(), Status> {
        if leased.hold(from, length) {
            return Ok(());
        }
        let range = LocalRange { offset: from.offset, length };
        let pointer = match (from.region, &self.host) {
            (RegionId::LOCAL, _) => self.device.local.pointer(range),
            (RegionId::HOST, Some(host)) => host.pointer(range),
            _ => return Err(Status::UnknownRegion),
        };
        match pointer {
            None => Err(Status::InvalidField),
            Some(_) if length == 0 => Ok(()),
            Some(_) => Err(Status::OutsideLease),
        }
    }

    pub(super) fn is_in_flash(&mut self, flash: u64, length: u64) -> bool {
        let Some(end) = flash.checked_add(length) else { return false };
        if end > self.capacity_bytes {
            // The flash may have grown since the last look.
            self.capacity_bytes = self.device.flash.capacity_bytes();
        }
        length > 0 && (flash | length) & self.sector_mask == 0 && end <= self.capacity_bytes
    }

    /// Copies a list and checks it. An error names the first wrong stage and the reason.
    ///
    /// # Safety
    /// As [`Controller::submit`].
    pub(super) unsafe fn check_list(
        &mut self,
        list: LocalRange,
        leased: &LeasedRanges,
        reads: &mut Vec<(u64, LocalRange)>,
        executions: &mut Vec<Execution>,
    ) -> Result<(), (u16, Status)> {
        let count = list.length as usize / Stage::ENCODED_BYTES;
        let is_whole = list.length.is_multiple_of(Stage::ENCODED_BYTES as u32) && list.offset.is_multiple_of(8);
        if !is_whole || !(1..=STAGES_MAX).contains(&count) {
            return Err((0, Status::InvalidField));
        }
        self.check_leased(list, leased).map_err(|status| (0, status))?;
        let first = self.pointer(list);
        for number in 0..count as u16 {
            // SAFETY: inside the list, which is aligned to eight bytes, and leased, so that nobody frees it.
            let bytes = unsafe { copy_once(first.add(usize::from(number) * Stage::ENCODED_BYTES)) };
            match Stage::decode(&bytes) {
                Ok(Stage::Read { flash, local, length }) => {
                    let local = LocalRange { offset: local, length };
                    let ascends = reads.last().is_none_or(|(_, before)| before.end() <= local.offset);
                    if !executions.is_empty() || !ascends {
                        return Err((number, Status::InvalidField));
                    }
                    let into = MemoryAddress::local(local.offset);
                    self.check_moved(flash, into, length, leased).map_err(|status| (number, status))?;
                    reads.push((flash, local));
                }
                Ok(Stage::Execute(execution)) => {
                    self.check_execution(&execution, leased).map_err(|status| (number, status))?;
                    executions.push(execution);
                }
                Err(_) => return Err((number, Status::InvalidField)),
            }
        }
        Ok(())
    }

    pub(super) fn check_execution(&self, execution: &Execution, leased: &LeasedRanges) -> Result<(), Status> {
        if usize::from(execution.program.0) >= self.device.programs.len() {
            return Err(Status::Unsupported);
        }
        let Execution { parameters, output, .. } = *execution;
        self.check_leased(output, leased)?;
        for range in execution.inputs().iter().copied().chain([parameters]) {
            self.check_leased(range, leased)?;
            if overlap(range, output) {
                return Err(Status::InvalidField);
            }
        }
        Ok(())
    }
}
