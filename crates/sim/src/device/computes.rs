//! Batches of pipelines through a queue pair whose engine runs them between polls. The flash completes late, in any order and with errors.
//! Time passes, and some pipelines have deadlines.
//!
//! A batch has a buffer:
//!
//! ```text
//! 0             4 KiB             8 KiB
//! | descriptors | lists of ranges | for each pipeline: its source's bytes, room for what comes of it |
//! ```

mod trouble;

use super::pipelines::{DrawnPipeline, DrawnSource, PipelineFate, all_programs};
use super::{DeviceSetup, DeviceTally};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tapetum_drive::{
    Command, Drive, Env, Faults, FaultyFlash, Lease, LocalBuffer, LocalMemory, LocalRange, MemoryAddress, Operation,
    PipelineDescriptor, PipelineFailure, PipelinePlace, PipelineReason, PipelineResult, PipelineSink, PipelineSource,
    Program, QueuePair, Returned, SimClock, SourceRange, SplitMix64,
};

const LOCAL_BYTES: usize = 8 << 20;
const BUFFERS: usize = 4;
const PIPELINES: usize = 6;
const LISTS_AT: usize = 4 << 10;
const LIST_BYTES: usize = RANGES * SourceRange::ENCODED_BYTES;
const RANGES: usize = 3;
const BYTES_AT: usize = 8 << 10;
/// More than any pipeline's input or output.
const ROOM_BYTES: usize = 32 << 10;
const BUFFER_BYTES: usize = BYTES_AT + 2 * PIPELINES * ROOM_BYTES;
/// One half is written once and then only read. The other half holds the slots of sinks.
const FLASH_BYTES: u64 = 1 << 20;
const SECTOR_BYTES: u64 = 512;
const SLOTS: u64 = FLASH_BYTES / 2 / ROOM_BYTES as u64;
/// The most results kept in local memory.
const KEPT_MAX: usize = 24;
const APPLICATIONS: u64 = 1;
const STEPS_MAX: u64 = 1 << 16;

#[derive(Clone, Copy)]
enum BatchSink {
    /// Offset in the buffer.
    Host(usize),
    Flash {
        slot: u64,
        durable: bool,
    },
    Kept {
        id: u64,
    },
}

struct BatchPipeline {
    descriptor: PipelineDescriptor,
    fate: PipelineFate,
    /// The pipeline of the batch whose kept result it reads.
    maker: Option<usize>,
    sink: BatchSink,
}

struct Batch {
    pipelines: Vec<BatchPipeline>,
    range: LocalRange,
    /// Ranges of the buffer whose bytes must not change.
    sources: Vec<(usize, Vec<u8>)>,
    /// Numbers of kept results that a reader in the batch takes for itself.
    taken: BTreeSet<u64>,
    /// Pipelines that were cancelled, and how many the drive said it cancelled.
    to_cancel: BTreeSet<usize>,
    cancelled: u64,
}

pub struct ComputeWorld {
    // First, so that it is dropped before the memory that its commands name.
    pair: QueuePair,
    flash: FaultyFlash,
    clock: SimClock,
    env: Env,
    random: SplitMix64,
    programs: Vec<Box<dyn Program>>,
    free: Vec<LocalBuffer>,
    batches: BTreeMap<u64, Batch>,
    written: Vec<u8>,
    slots_free: BTreeSet<u64>,
    /// Results kept by batches that have ended.
    kept: BTreeMap<u64, Vec<u8>>,
    /// Pipelines in flight that will keep a result.
    keeping: usize,
    /// The batch of each cancellation in flight.
    cancels: BTreeMap<u64, u64>,
    /// By slot: the bytes that must be there after a power cut.
    durable: BTreeMap<u64, Vec<u8>>,
    number_next: u64,
    reads_fail: bool,
    pub tally: DeviceTally,
}

impl ComputeWorld {
    pub fn new(setup: &DeviceSetup) -> ComputeWorld {
        let mut random = SplitMix64::new(setup.seed ^ 0xc0de);
        let flash = FaultyFlash::new(FLASH_BYTES, random.next_u64());
        let local = LocalMemory::new(LOCAL_BYTES).unwrap_or_else(|error| panic!("no memory: {error}"));
        let (env, clock) = Env::simulated(setup.seed);
        let drive = Drive::new(Arc::new(flash.clone()), local, all_programs(), env.clone());
        let pair = drive.queue_pair(4).unwrap_or_else(|error| panic!("no queue pair: {error}"));
        let buffer = || drive.local().allocate(BUFFER_BYTES).unwrap_or_else(|| panic!("no buffer"));
        let mut written = vec![0; FLASH_BYTES as usize / 2];
        random.fill(&mut written);
        // Make a part of it compressible.
        written.iter_mut().step_by(3).for_each(|byte| *byte &= 1);
        let mut world = ComputeWorld {
            pair,
            flash,
            clock,
            env,
            programs: all_programs(),
            free: (0..BUFFERS).map(|_| buffer()).collect(),
            batches: BTreeMap::new(),
            written,
            slots_free: (0..SLOTS).collect(),
            kept: BTreeMap::new(),
            keeping: 0,
            cancels: BTreeMap::new(),
            durable: BTreeMap::new(),
            number_next: 1,
            reads_fail: random.one_in(2),
            tally: DeviceTally::default(),
            random,
        };
        world.fill_flash();
        let fails = if world.reads_fail { 40 } else { 0 };
        world.flash.set_faults(Faults {
            read_one_in: fails,
            write_one_in: fails,
            short_one_in: 8,
            ..Faults::default()
        });
        world
    }

    fn fill_flash(&mut self) {
        let piece = BUFFER_BYTES.next_multiple_of(SECTOR_BYTES as usize) - SECTOR_BYTES as usize;
        for flash in (0..self.written.len()).step_by(piece) {
            let Some(mut buffer) = self.free.pop() else { panic!("a buffer is free") };
            let bytes = &self.written[flash..(flash + piece).min(self.written.len())];
            buffer.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
            let length = bytes.len() as u32;
            let write = Operation::Write {
                flash: flash as u64,
                from: MemoryAddress::local(buffer.offset()),
                length,
                fua: true,
            };
            let submitted = self.pair.submit(Command::new(0, write), buffer.into());
            assert!(submitted.is_ok(), "there are credits");
            let mut returned = Vec::new();
            while self.pair.poll(&mut returned) == 0 {
                self.pair.wait(None);
            }
            self.free.extend(returned.into_iter().map(|returned| returned.lease.into_buffer()));
        }
    }

    pub fn trace_hash(&self) -> u64 {
        self.flash.trace_hash() ^ self.tally.ends.values().fold(0, |hash: u64, count| hash.rotate_left(7) ^ count)
    }

    pub fn run(&mut self, steps: u64) -> Result<(), String> {
        for _ in 0..steps {
            if self.random.one_in(3) {
                self.begin();
            }
            if self.random.one_in(trouble::CANCELS_EVERY) {
                self.cancel();
            }
            if self.random.one_in(trouble::CUTS_EVERY) {
                self.cut_power()?;
            }
            self.clock.advance_us(self.random.below(200));
            self.poll()?;
        }
        for _ in 0..STEPS_MAX {
            if self.pair.in_flight() == 0 {
                break;
            }
            self.pair.wait(None);
            self.clock.advance_us(1);
            self.poll()?;
        }
        self.cut_power()?;
        if !self.batches.is_empty()
            || !self.cancels.is_empty()
            || self.free.len() != BUFFERS
            || self.pair.in_flight() > 0
        {
            return Err(format!("{} batches have not ended", self.batches.len()));
        }
        Ok(())
    }

    fn begin(&mut self) {
        let Some(mut buffer) = self.free.pop() else { return };
        let range = buffer.range();
        let mut batch = Batch {
            pipelines: Vec::new(),
            range,
            sources: Vec::new(),
            taken: BTreeSet::new(),
            to_cancel: BTreeSet::new(),
            cancelled: 0,
        };
        for number in 0..1 + self.random.below(PIPELINES as u64) as usize {
            let Some(pipeline) = self.draw(number, &mut buffer, &mut batch) else { break };
            let at = number * PipelineDescriptor::ENCODED_BYTES;
            let descriptor = pipeline.descriptor.encode();
            buffer.bytes_mut()[at..at + descriptor.len()].copy_from_slice(&descriptor);
            batch.pipelines.push(pipeline);
        }
        if batch.pipelines.is_empty() {
            self.free.push(buffer);
            return;
        }
        self.tally.accepted += batch.pipelines.len() as u64;
        let length = (batch.pipelines.len() * PipelineDescriptor::ENCODED_BYTES) as u32;
        let tag = self.number();
        let compute = Operation::Compute { pipelines: LocalRange { length, ..range } };
        let submitted = self.pair.submit(Command::new(tag, compute), Lease::Buffer(buffer));
        assert!(submitted.is_ok(), "there are more credits than commands");
        self.batches.insert(tag, batch);
    }

    fn number(&mut self) -> u64 {
        self.number_next += 1;
        self.number_next
    }

    /// Draws a pipeline, and puts its bytes into the buffer.
    fn draw(&mut self, number: usize, buffer: &mut LocalBuffer, batch: &mut Batch) -> Option<BatchPipeline> {
        let (base, list_at) = (buffer.offset(), LISTS_AT + number * LIST_BYTES);
        let source_at = BYTES_AT + 2 * number * ROOM_BYTES;
        let mut list = |ranges: &[SourceRange]| {
            let bytes: Vec<u8> = ranges.iter().flat_map(|range| range.encode()).collect();
            let length = bytes.len() as u32;
            buffer.bytes_mut()[list_at..list_at + bytes.len()].copy_from_slice(&bytes);
            batch.sources.push((list_at, bytes));
            LocalRange { offset: base + list_at as u64, length }
        };
        // Sometimes one more than the last application.
        let application = u16::from(self.random.one_in(50)) * APPLICATIONS as u16;
        let kept = self.kept.keys().next().copied().filter(|_| application == 0 && self.random.one_in(4));
        let made = self.made(&batch.pipelines, &batch.taken).filter(|_| application == 0 && self.random.one_in(2));
        let mut maker = None;
        let (source, drawn, from_flash) = if let Some((id, of)) = made {
            maker = Some(of);
            let stays = self.random.one_in(3);
            if !stays {
                batch.taken.insert(id);
            }
            let bytes = batch.pipelines[of].fate.expected.clone().unwrap_or_default();
            let source = DrawnSource::Kept { id, stays };
            let drawn = DrawnPipeline::over(&mut self.random, &self.programs, source, bytes);
            (PipelineSource::Kept { id, stays }, drawn, false)
        } else if let Some(id) = kept {
            let stays = self.random.one_in(4);
            let bytes = if stays { self.kept.get(&id).cloned() } else { self.kept.remove(&id) };
            let source = DrawnSource::Kept { id, stays };
            let drawn = DrawnPipeline::over(&mut self.random, &self.programs, source, bytes.unwrap_or_default());
            (PipelineSource::Kept { id, stays }, drawn, false)
        } else if self.random.one_in(2) {
            let (ranges, bytes) = self.flash_ranges();
            let source = PipelineSource::Flash { list: list(&ranges) };
            (source, DrawnPipeline::over(&mut self.random, &self.programs, DrawnSource::Flash(ranges), bytes), true)
        } else {
            let drawn = DrawnPipeline::draw(&mut self.random, &self.programs);
            let DrawnSource::Bytes(bytes) = &drawn.source else { unreachable!("bytes were drawn") };
            let range = SourceRange { offset: base + source_at as u64, bytes: bytes.len() as u64 };
            let source = PipelineSource::Local { list: list(&[range]) };
            buffer.bytes_mut()[source_at..source_at + bytes.len()].copy_from_slice(bytes);
            batch.sources.push((source_at, bytes.clone()));
            (source, drawn, false)
        };
        let DrawnPipeline { stages, mut expected, .. } = drawn;
        let (sink, batch_sink) = self.sink(base, source_at + ROOM_BYTES, &mut expected)?;
        let into_flash = matches!(batch_sink, BatchSink::Flash { .. });
        let deadline_us = if self.random.one_in(4) { 1 + self.random.below(4000) } else { 0 };
        if application > 0 {
            let unknown = PipelineFailure::new(PipelinePlace::Source, PipelineReason::UnknownApplication);
            expected = Err(unknown.with(u32::from(application)));
        }
        let mut descriptor = PipelineDescriptor::new(&stages, source, sink)?;
        (descriptor.application, descriptor.deadline_us) = (application, deadline_us);
        let ends_us = (deadline_us > 0).then_some(self.env.now_us() + deadline_us);
        let mut fate = PipelineFate::new(stages, ends_us, expected);
        fate.flash_failed = self.reads_fail && (from_flash || into_flash);
        Some(BatchPipeline { descriptor, fate, maker, sink: batch_sink })
    }

    /// A result that an earlier pipeline of the batch keeps, and that pipeline.
    fn made(&mut self, pipelines: &[BatchPipeline], taken: &BTreeSet<u64>) -> Option<(u64, usize)> {
        let kept = pipelines.iter().enumerate().filter_map(|(number, pipeline)| match pipeline.sink {
            BatchSink::Kept { id } if !taken.contains(&id) => Some((id, number)),
            _ => None,
        });
        let all: Vec<(u64, usize)> = kept.collect();
        all.get(self.random.below(all.len().max(1) as u64) as usize).copied()
    }

    /// Up to three ranges of the written half, each beginning at a sector, and their bytes.
    fn flash_ranges(&mut self) -> (Vec<SourceRange>, Vec<u8>) {
        let (mut ranges, mut all) = (Vec::new(), Vec::new());
        for _ in 0..1 + self.random.below(RANGES as u64) {
            let bytes = self.random.below(8000);
            let sectors = (self.written.len() as u64 - 8192) / SECTOR_BYTES;
            let offset = self.random.below(sectors) * SECTOR_BYTES;
            all.extend_from_slice(&self.written[offset as usize..(offset + bytes) as usize]);
            ranges.push(SourceRange { offset, bytes });
        }
        (ranges, all)
    }

    fn sink(
        &mut self,
        base: u64,
        at: usize,
        expected: &mut Result<Vec<u8>, PipelineFailure>,
    ) -> Option<(PipelineSink, BatchSink)> {
        if self.random.one_in(4)
            && let Some(slot) = self.slots_free.pop_first()
        {
            let (flash, durable) = (slot_at(slot), self.random.one_in(2));
            self.durable.remove(&slot);
            let sink = PipelineSink::Flash { flash, bytes: ROOM_BYTES as u64, durable };
            return Some((sink, BatchSink::Flash { slot, durable }));
        }
        let mut room = ROOM_BYTES as u32;
        if let Ok(bytes) = expected
            && !bytes.is_empty()
            && self.random.one_in(20)
        {
            room = self.random.below(bytes.len() as u64) as u32;
            let failure = PipelineFailure::new(PipelinePlace::Sink, PipelineReason::OutputTooLong);
            *expected = Err(failure.with(room));
        }
        if self.random.one_in(4) && self.kept.len() + self.keeping < KEPT_MAX {
            let id = self.number();
            self.keeping += 1;
            return Some((PipelineSink::Kept { id, bytes_max: room }, BatchSink::Kept { id }));
        }
        let into = LocalRange { offset: base + at as u64, length: room };
        Some((PipelineSink::Host { into }, BatchSink::Host(at)))
    }

    fn poll(&mut self) -> Result<(), String> {
        let mut returned = Vec::new();
        self.pair.poll(&mut returned);
        for Returned { completion, lease } in returned {
            if let Some(of) = self.cancels.remove(&completion.tag) {
                self.cancelled(of, &completion)?;
                continue;
            }
            let Some(batch) = self.batches.remove(&completion.tag) else {
                return Err(format!("{completion:?} came twice, or of nothing"));
            };
            let Lease::Buffer(buffer) = lease else { return Err(format!("{completion:?} came without its buffer")) };
            if buffer.range() != batch.range || !completion.is_success() {
                return Err(format!("{completion:?} with {:?} of {:?}", buffer.range(), batch.range));
            }
            for (at, bytes) in &batch.sources {
                if buffer.bytes()[*at..*at + bytes.len()] != bytes[..] {
                    return Err(format!("the source at {at} of batch {} has changed", completion.tag));
                }
            }
            let Batch { pipelines, taken, to_cancel, cancelled, .. } = batch;
            let results =
                (0..pipelines.len()).map(|number| result_of(&buffer, number)).collect::<Result<Vec<_>, _>>()?;
            for (number, pipeline) in pipelines.into_iter().enumerate() {
                let maker = pipeline.maker.map(|maker| results[maker]);
                self.judge(number, &results[number], &pipeline, maker, to_cancel.contains(&number))?;
                self.end(number, &results[number], pipeline, &buffer, &taken)?;
            }
            let of_reason = |wanted| move |result: &&PipelineResult| matches!(result, PipelineResult::Failed(failure) if wanted == failure.reason);
            let gave_up = results.iter().filter(of_reason(PipelineReason::Cancelled)).count() as u64;
            let failed = results.iter().filter(|result| matches!(result, PipelineResult::Failed(_))).count() as u64;
            if completion.result != [failed, 0] || gave_up != cancelled {
                return Err(format!(
                    "{completion:?}, and {failed} failed, {gave_up} of them cancelled, {cancelled} as was said"
                ));
            }
            self.free.push(buffer);
        }
        Ok(())
    }

    /// Checks that a pipeline may end like this.
    fn judge(
        &mut self,
        number: usize,
        result: &PipelineResult,
        pipeline: &BatchPipeline,
        maker: Option<PipelineResult>,
        to_cancel: bool,
    ) -> Result<(), String> {
        self.tally.ended(result);
        let BatchPipeline { fate, .. } = pipeline;
        // It may have finished before the last one of its batch did.
        let now_us = if matches!(result, PipelineResult::Finished { .. }) { 0 } else { self.env.now_us() };
        let reason = if let PipelineResult::Failed(failure) = result { Some(failure.reason) } else { None };
        self.tally.flash_failed += u64::from(reason == Some(PipelineReason::FlashFailed));
        let may_be = match (reason, maker) {
            (Some(PipelineReason::Cancelled), _) => to_cancel,
            (Some(PipelineReason::DeadlineExceeded), _) => fate.may_end(result, now_us, |_| false),
            (_, Some(PipelineResult::Failed(failure))) => *result == PipelineResult::Failed(failure.of_reader()),
            _ => fate.may_end(result, now_us, |_| false),
        };
        let told = fate.expected.as_ref().map(Vec::len);
        let error = || format!("pipeline {number}: {result:?} of {:?}, which was to come to {told:?}", fate.stages);
        may_be.then_some(()).ok_or_else(error)
    }

    /// Checks a pipeline's output, and frees its resources.
    fn end(
        &mut self,
        number: usize,
        result: &PipelineResult,
        pipeline: BatchPipeline,
        buffer: &LocalBuffer,
        taken: &BTreeSet<u64>,
    ) -> Result<(), String> {
        let BatchPipeline { fate, sink, .. } = pipeline;
        let has_finished = matches!(result, PipelineResult::Finished { .. });
        if let (true, Ok(expected)) = (has_finished, &fate.expected) {
            let found = match sink {
                BatchSink::Host(at) => buffer.bytes()[at..at + expected.len()].to_vec(),
                BatchSink::Flash { slot, durable } => {
                    if durable {
                        self.durable.insert(slot, expected.clone());
                    }
                    let length = (expected.len() as u64).next_multiple_of(SECTOR_BYTES);
                    let mut found = if length > 0 { self.flash.peek(slot_at(slot), length) } else { Vec::new() };
                    // The last sector is padded with zeros.
                    let is_filled_up = found.drain(expected.len()..).all(|byte| byte == 0);
                    if is_filled_up { found } else { vec![] }
                }
                // Checked by the pipelines that take the result.
                BatchSink::Kept { id } => {
                    if !taken.contains(&id) {
                        self.kept.insert(id, expected.clone());
                    }
                    expected.clone()
                }
            };
            if found != *expected {
                return Err(format!("pipeline {number} of {:?} gave other bytes", fate.stages));
            }
        }
        match sink {
            BatchSink::Flash { slot, .. } => drop(self.slots_free.insert(slot)),
            BatchSink::Kept { .. } => self.keeping -= 1,
            BatchSink::Host(_) => {}
        }
        Ok(())
    }
}

fn result_of(buffer: &LocalBuffer, number: usize) -> Result<PipelineResult, String> {
    let at = number * PipelineDescriptor::ENCODED_BYTES + PipelineDescriptor::RESULT_AT;
    let bytes = buffer.bytes()[at..].first_chunk();
    let result = bytes.and_then(|bytes| PipelineResult::decode(bytes).ok().flatten());
    result.ok_or_else(|| format!("pipeline {number} has no result"))
}

fn slot_at(slot: u64) -> u64 {
    FLASH_BYTES / 2 + slot * ROOM_BYTES as u64
}
