//! `Compute`: descriptors are copied and checked, and what comes of their pipelines ends the command.

use super::{CommandEnd, Controller, EndedCommand, TransferOwner};
use crate::device::compute::{CheckedPipeline, ComputeBatch, ComputeEnd, ComputeRequest, ControllerCompute};
use crate::device::engine::{JobRequest, SinkRequest, SourceRequest, TaskResult};
use crate::device::ranges::copy_once;
use crate::protocol::{
    ATTACHMENT_BYTES_MAX, Completion, LeasedRanges, LocalRange, Opcode, PIPELINES_MAX, PipelineDescriptor,
    PipelineFailure, PipelinePlace, PipelineReason, PipelineSink, PipelineSource, SOURCE_RANGES_MAX, SourceRange,
    Status,
};
use std::sync::Arc;

impl Controller {
    /// # Safety
    /// As [`Controller::submit`].
    pub(super) unsafe fn submit_compute(&mut self, end: CommandEnd, list: LocalRange, leased: &LeasedRanges) {
        // SAFETY: by our caller's word.
        match unsafe { self.check_descriptors(list, leased) } {
            Err((stage, status)) => self.refuse(end, Opcode::Compute, stage, status),
            Ok(pipelines) => self.start_compute(end, ComputeRequest { list, pipelines }),
        }
    }

    /// Copies the descriptors and what they list. An error is the descriptor that is none, and how; what is wrong with a pipeline
    /// concerns it alone.
    ///
    /// # Safety
    /// As [`Controller::submit`].
    unsafe fn check_descriptors(
        &mut self,
        list: LocalRange,
        leased: &LeasedRanges,
    ) -> Result<Vec<CheckedPipeline>, (u16, Status)> {
        let count = list.length as usize / PipelineDescriptor::ENCODED_BYTES;
        let is_whole =
            list.length as usize == count * PipelineDescriptor::ENCODED_BYTES && list.offset.is_multiple_of(8);
        if !is_whole || !(1..=PIPELINES_MAX).contains(&count) {
            return Err((0, Status::InvalidField));
        }
        self.check_leased(list, leased).map_err(|status| (0, status))?;
        let first = self.pointer(list);
        let mut pipelines = Vec::with_capacity(count);
        for number in 0..count {
            // SAFETY: inside the list, which is aligned to eight bytes, and leased, so that nobody frees it.
            let bytes = unsafe { copy_once(first.add(number * PipelineDescriptor::ENCODED_BYTES)) };
            let descriptor = PipelineDescriptor::decode(&bytes).map_err(|_| (number as u16, Status::InvalidField))?;
            let keeps = if let PipelineSink::Kept { id, .. } = descriptor.sink { Some(id) } else { None };
            // SAFETY: by our caller's word.
            let job = unsafe { self.check_pipeline(&descriptor, leased) };
            pipelines.push(CheckedPipeline { job, keeps });
        }
        Ok(pipelines)
    }

    /// # Safety
    /// As [`Controller::submit`].
    unsafe fn check_pipeline(
        &mut self,
        descriptor: &PipelineDescriptor,
        leased: &LeasedRanges,
    ) -> Result<JobRequest, PipelineFailure> {
        let source = match descriptor.source {
            PipelineSource::Kept { id, stays } => SourceRequest::Kept { id, stays },
            PipelineSource::Local { list } => {
                // SAFETY: by our caller's word.
                let ranges = unsafe { self.source_ranges(list, leased) }?;
                let is_leased = |range: &SourceRange| {
                    u32::try_from(range.bytes).is_ok_and(|length| {
                        self.check_leased(LocalRange { offset: range.offset, length }, leased).is_ok()
                    })
                };
                if !ranges.iter().all(is_leased) {
                    return Err(PipelineFailure::new(PipelinePlace::Source, PipelineReason::OutsideLocal));
                }
                SourceRequest::Local(ranges)
            }
            PipelineSource::Flash { list } => {
                // SAFETY: by our caller's word.
                let ranges = unsafe { self.source_ranges(list, leased) }?;
                for range in &ranges {
                    match range.local() {
                        None => self.check_flash(PipelinePlace::Source, range.offset, range.bytes)?,
                        Some(local) if self.check_leased(local, leased).is_ok() => {}
                        Some(_) => {
                            return Err(PipelineFailure::new(PipelinePlace::Source, PipelineReason::OutsideLocal));
                        }
                    }
                }
                SourceRequest::Flash(ranges)
            }
        };
        let sink = match descriptor.sink {
            PipelineSink::Kept { id, bytes_max } => SinkRequest::Kept { id, bytes_max },
            PipelineSink::Host { into } if self.check_leased(into, leased).is_ok() => SinkRequest::Host(into),
            PipelineSink::Host { .. } => {
                return Err(PipelineFailure::new(PipelinePlace::Sink, PipelineReason::OutsideLocal));
            }
            PipelineSink::Flash { flash, bytes, durable } => {
                if bytes & self.sector_mask != 0 {
                    return Err(PipelineFailure::new(PipelinePlace::Sink, PipelineReason::UnalignedFlash));
                }
                self.check_flash(PipelinePlace::Sink, flash, bytes)?;
                SinkRequest::Flash { flash, bytes_max: bytes, durable }
            }
        };
        // SAFETY: by our caller's word.
        let attachment = unsafe { self.attachment(descriptor.attachment, leased) }?;
        Ok(JobRequest {
            owner: 0,
            token: 0,
            application: descriptor.application,
            deadline_us: (descriptor.deadline_us > 0).then_some(descriptor.deadline_us),
            stages: descriptor.stages().to_vec(),
            source,
            sink,
            attachment,
        })
    }

    /// Copies an attachment.
    ///
    /// # Safety
    /// As [`Controller::submit`].
    unsafe fn attachment(&self, range: LocalRange, leased: &LeasedRanges) -> Result<Arc<[u8]>, PipelineFailure> {
        if range.length == 0 {
            return Ok(Arc::default());
        }
        let is_short = range.length as usize <= ATTACHMENT_BYTES_MAX;
        if !is_short || self.check_leased(range, leased).is_err() {
            return Err(PipelineFailure::new(PipelinePlace::Source, PipelineReason::OutsideLocal));
        }
        let mut bytes = vec![0; range.length as usize];
        // SAFETY: it is inside local memory, and leased, so that nobody frees it.
        unsafe { std::ptr::copy_nonoverlapping(self.pointer(range).as_ptr(), bytes.as_mut_ptr(), bytes.len()) };
        Ok(bytes.into())
    }

    /// # Safety
    /// As [`Controller::submit`].
    unsafe fn source_ranges(
        &self,
        list: LocalRange,
        leased: &LeasedRanges,
    ) -> Result<Vec<SourceRange>, PipelineFailure> {
        let count = list.length as usize / SourceRange::ENCODED_BYTES;
        let is_list = list.length as usize == count * SourceRange::ENCODED_BYTES
            && list.offset.is_multiple_of(8)
            && count <= SOURCE_RANGES_MAX;
        if !is_list || self.check_leased(list, leased).is_err() {
            return Err(PipelineFailure::new(PipelinePlace::Source, PipelineReason::OutsideLocal));
        }
        let first = self.pointer(list);
        let range = |number: usize| {
            // SAFETY: inside the list, which is aligned to eight bytes, and leased, so that nobody frees it.
            SourceRange::decode(&unsafe { copy_once(first.add(number * SourceRange::ENCODED_BYTES)) })
        };
        Ok((0..count).map(range).collect())
    }

    /// A range that begins at a sector and is inside the flash, to the end of its last sector.
    fn check_flash(&mut self, place: PipelinePlace, flash: u64, bytes: u64) -> Result<(), PipelineFailure> {
        if flash & self.sector_mask != 0 {
            return Err(PipelineFailure::new(place, PipelineReason::UnalignedFlash));
        }
        let whole = bytes.checked_next_multiple_of(self.sector_mask + 1);
        let is_inside = whole.is_some_and(|whole| whole == 0 || self.is_in_flash(flash, whole));
        is_inside.then_some(()).ok_or(PipelineFailure::new(place, PipelineReason::OutsideFlash))
    }

    fn start_compute(&mut self, end: CommandEnd, request: ComputeRequest) {
        let now_us = self.started_us();
        let mut compute = self.compute.take().unwrap_or_else(|| Box::new(ControllerCompute::alone()));
        let ended = compute.start(&self.device, end, request, now_us);
        self.compute = Some(compute);
        if let Some(batch) = ended {
            let ended = self.end_compute(&batch, now_us);
            self.done.push(ended);
        }
    }

    fn end_compute(&mut self, batch: &ComputeBatch, now_us: u64) -> EndedCommand {
        self.counters.completed(Opcode::Compute, Status::Success);
        self.counters.latency(Opcode::Compute, now_us.saturating_sub(batch.submitted_us));
        let completion = Completion { result: [batch.failed, 0], ..Completion::success(batch.end.tag) };
        batch.end.ended(completion)
    }

    /// Cancels pipelines of the `Compute` commands with this tag.
    pub(super) fn cancel(&mut self, end: CommandEnd, tag: u64, pipeline: Option<u16>) -> EndedCommand {
        let cancelled = self.compute.as_mut().map_or(0, |compute| compute.cancel(tag, pipeline));
        self.counters.completed(Opcode::Cancel, Status::Success);
        end.ended(Completion { result: [cancelled, 0], ..Completion::success(end.tag) })
    }

    /// Flash commands and tasks that have ended: whether anything goes on.
    pub fn steps(&self) -> u64 {
        self.flash_ended + self.compute.as_ref().map_or(0, |compute| compute.tasks())
    }

    pub(super) fn task_moved(&mut self, place: u32, completion: &Completion) {
        let Some(compute) = &mut self.compute else { unreachable!("a task is of the engine's") };
        compute.moved(
            place,
            match completion.status {
                Status::Success => TaskResult::Moved,
                _ => TaskResult::FlashFailed { errno: completion.errno },
            },
        );
    }

    /// Runs tasks of the engine, a bounded number, and ends commands.
    pub(super) fn advance_compute(&mut self, ended: &mut Vec<EndedCommand>) {
        let Some(mut compute) = self.compute.take() else { return };
        let device = self.device.clone();
        compute.expire(&device);
        let mut share = std::mem::take(&mut self.share);
        compute.advance(&device, |place, operation| share.put(u64::from(place), operation));
        share.release(&device.counters, &device.env, |place, operation| {
            // SAFETY: the engine's sub-buffers, of which a task's are nobody else's; flash was checked. They are freed after the
            // flash queue.
            unsafe { self.submit_to_flash(TransferOwner::Task { place: place as u32 }, operation) };
        });
        self.share = share;
        let mut now_us = None;
        while let Some(end) = compute.ended(&device) {
            let now_us = *now_us.get_or_insert_with(|| device.env.now_us());
            match end {
                ComputeEnd::Batch(batch) => ended.push(self.end_compute(&batch, now_us)),
                ComputeEnd::Execution(place, result) => self.unit_ended(place, result),
            }
        }
        self.compute = Some(compute);
        // Commands whose programs units have ended go on.
        if let Some(now_us) = now_us {
            self.run_ready(now_us, ended);
        }
    }
}
