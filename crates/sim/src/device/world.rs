//! The engine's core with simulated units around it, and the checks after each of their steps.

use super::pipelines::{PipelineFate, SimKept, SimPipeline, SimSink, all_programs};
use super::units::{DeviceBytes, SimUnit, UnitTask};
use super::{DeviceSetup, DeviceTally};
use std::collections::{BTreeMap, BTreeSet};
use tapetum_drive::arbiter::{SubBuffer, TaskOutcome, TaskPacket, UnitCount};
use tapetum_drive::engine::{EngineCore, EngineOptions, JobResult, TaskResult, TaskWork};
use tapetum_drive::{LocalMemory, PipelineResult, ProgramId, SplitMix64, Status};

const LOCAL_BYTES: usize = 8 << 20;
pub const SECTOR_BYTES: u32 = 512;
pub const SUB_BUFFER_BYTES: u32 = 4096;
/// The owner of all kept results.
pub(super) const OWNER: u64 = 0;
/// Flash bytes for the source and for the sink of each pipeline.
pub(super) const SLOT_BYTES: u64 = 64 << 10;
const SLOTS: u64 = 64;

/// How often each fault strikes: once in so many; 0 is never.
#[derive(Clone, Copy, Default)]
pub struct FaultRates {
    pub late: u64,
    pub hangs: u64,
    pub dies: u64,
    pub dies_idle: u64,
    pub flash_fails: u64,
    pub short_sink: u64,
}

pub struct DeviceWorld {
    pub random: SplitMix64,
    pub core: EngineCore,
    pub bytes: DeviceBytes,
    pub rates: FaultRates,
    /// The time of a task without faults, by program: the least, and the most in addition.
    pub takes_us: fn(ProgramId) -> (u64, u64),
    pub now_us: u64,
    pub tally: DeviceTally,
    /// Hash of everything that was taken, completed and ended.
    pub trace_hash: u64,
    /// By application.
    pub served_us: Vec<u64>,
    pub last_taken_us: Vec<u64>,
    pub(super) options: EngineOptions,
    units: Vec<SimUnit>,
    /// By token.
    pub(super) pipelines: BTreeMap<u64, SimPipeline>,
    /// The holder of each sub-buffer: pipeline and stage.
    holders: BTreeMap<SubBuffer, (u32, u8)>,
    /// Results that pipelines kept or will keep, by number.
    pub(super) kept: BTreeMap<u64, SimKept>,
    pub(super) slots_free: BTreeSet<u64>,
    pub(super) token_next: u64,
    /// Local memory in use when there are no pipelines.
    used_bytes: usize,
}

impl DeviceWorld {
    pub fn new(setup: &DeviceSetup, options: EngineOptions, inline_units: u64) -> DeviceWorld {
        let local = LocalMemory::new(LOCAL_BYTES).unwrap_or_else(|error| panic!("no memory: {error}"));
        let programs = all_programs();
        let Some(core) = EngineCore::alone(&local, SECTOR_BYTES, &programs, &options) else {
            panic!("the simulation's local memory is too small");
        };
        let of_program = |UnitCount { program, units }: &UnitCount| vec![Some(*program); usize::from(*units)];
        let inline = std::iter::repeat_n(None, inline_units as usize);
        let units = options.units.iter().flat_map(of_program).chain(inline).map(SimUnit::new).collect();
        let applications = options.weights.len();
        DeviceWorld {
            random: SplitMix64::new(setup.seed ^ 0x00de_71ce),
            core,
            rates: FaultRates::default(),
            takes_us: |_| (1, 100),
            now_us: 1,
            tally: DeviceTally::default(),
            trace_hash: 0,
            served_us: vec![0; applications],
            last_taken_us: vec![0; applications],
            options,
            units,
            pipelines: BTreeMap::new(),
            holders: BTreeMap::new(),
            kept: BTreeMap::new(),
            slots_free: (0..SLOTS).collect(),
            token_next: 0,
            used_bytes: local.bytes_used(),
            bytes: DeviceBytes { local, flash: vec![0; (2 * SLOTS * SLOT_BYTES) as usize], programs },
        }
    }

    fn trace(&mut self, what: u64) {
        self.trace_hash = SplitMix64::new(self.trace_hash ^ what.wrapping_mul(0x9e37_79b9_7f4a_7c15)).next_u64();
    }

    pub fn weights(&self) -> &[u32] {
        &self.options.weights
    }

    pub fn in_flight_of(&self, application: u16) -> usize {
        self.pipelines.values().filter(|pipeline| pipeline.application == application).count()
    }

    /// Whether the program had its own units, and all of them are dead.
    pub(super) fn is_gone(&self, program: ProgramId) -> bool {
        let mut units = self.units.iter().filter(|unit| unit.program == Some(program)).peekable();
        units.peek().is_some() && units.all(|unit| unit.is_dead)
    }

    /// One step of time: units take tasks in some order, the clock advances, tasks end in some order.
    pub fn step(&mut self) -> Result<(), String> {
        for number in self.shuffled() {
            // Some units wait a while.
            if self.units[number].is_idle() && !self.random.one_in(8) {
                self.take(number)?;
            }
        }
        let busy = |unit: &SimUnit| unit.task.as_ref().map(|task| task.ends_us);
        if self.units.iter().filter_map(busy).next().is_none() {
            self.take_all()?;
        }
        let ends = self.units.iter().filter_map(busy).chain(self.core.deadline_next_us());
        match ends.min() {
            Some(next_us) => self.now_us = self.now_us.max(next_us),
            None if self.core.in_flight() > 0 => return Err(self.stuck()),
            None => self.now_us += 1,
        }
        self.core.expire(self.now_us);
        self.take_ends()?;
        for number in self.shuffled() {
            if self.units[number].task.as_ref().is_some_and(|task| task.ends_us <= self.now_us) {
                self.complete(number)?;
            }
        }
        Ok(())
    }

    /// All idle units take tasks. A task that ended before it began may have made way for others.
    fn take_all(&mut self) -> Result<(), String> {
        loop {
            for number in self.shuffled() {
                if self.units[number].is_idle() {
                    self.take(number)?;
                }
            }
            if !self.core.take_made_way() {
                return Ok(());
            }
        }
    }

    fn stuck(&self) -> String {
        let programs =
            |pipeline: &SimPipeline| -> Vec<u16> { pipeline.fate.stages.iter().map(|stage| stage.program.0).collect() };
        let left: Vec<_> = self.pipelines.values().map(|left| (left.sequence, programs(left))).collect();
        let (reserved, free, quarantined) =
            (self.core.reserved(), self.core.sub_buffers_free(), self.core.quarantined());
        format!(
            "nothing runs and nothing can start, and {} pipelines wait: {left:?}; of {} sub-buffers {reserved} are reserved, {free} free, {quarantined} in quarantine",
            left.len(),
            self.options.sub_buffers
        )
    }

    fn shuffled(&mut self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.units.len()).collect();
        for place in (1..order.len()).rev() {
            order.swap(place, self.random.below(place as u64 + 1) as usize);
        }
        order
    }

    fn take(&mut self, number: usize) -> Result<(), String> {
        let unit = &self.units[number];
        let has_units = |program: ProgramId| self.options.units.iter().any(|count| count.program == program);
        let task = match unit.program {
            Some(program) => self.core.take(program),
            None => self.core.take_any(|program| !has_units(program)),
        };
        self.take_ends()?;
        let Some(task) = task else { return Ok(()) };
        let TaskPacket { sequence, stage, application, output, .. } = task.packet;
        self.trace(u64::from(sequence) << 8 | u64::from(stage));
        if let Some((holder, of_stage)) = self.holders.insert(output, (sequence, stage)) {
            return Err(format!(
                "{output:?} was given to stage {stage} of pipeline {sequence}, and stage {of_stage} of pipeline {holder} has it"
            ));
        }
        let Some(pipeline) = self.pipelines.values().find(|pipeline| pipeline.sequence == sequence) else {
            return Err(format!("a task of pipeline {sequence}, which has ended"));
        };
        self.last_taken_us[usize::from(application)] = self.now_us;
        let deadline_us = pipeline.fate.deadline_us;
        let (least_us, more_us) = (self.takes_us)(task.packet.program());
        let mut ends_us = self.now_us + least_us + self.random.below(more_us);
        let (mut dies, can_die) = (false, self.units[number].program.is_some());
        if self.random.one_in(self.rates.late) {
            ends_us += self.random.below(5000);
            self.tally.late += 1;
        }
        if can_die && self.random.one_in(self.rates.dies) {
            dies = true;
        }
        if let Some(deadline_us) = deadline_us.filter(|_| can_die && self.random.one_in(self.rates.hangs)) {
            // Long enough that the pipeline ends at its deadline.
            ends_us = ends_us.max(deadline_us + 1 + self.random.below(20_000));
            dies = self.random.one_in(2);
            self.tally.hung += 1;
        }
        self.bytes.begin(&task);
        self.units[number].task = Some(UnitTask { task, begun_us: self.now_us, ends_us, dies });
        Ok(())
    }

    fn complete(&mut self, number: usize) -> Result<(), String> {
        let Some(UnitTask { mut task, begun_us, dies, .. }) = self.units[number].task.take() else { return Ok(()) };
        let TaskPacket { sequence, stage, application, input, output, .. } = task.packet;
        let own = self.pipelines.values_mut().find(|pipeline| pipeline.sequence == sequence);
        self.served_us[usize::from(application)] += match task.work {
            TaskWork::Run { .. } => self.now_us - begun_us,
            TaskWork::Move(_) | TaskWork::Execute(_) => 0,
        };
        if dies {
            self.units[number].is_dead = true;
            self.tally.died += 1;
            match own {
                Some(pipeline) => drop(pipeline.fate.lost.insert(stage - 1)),
                None => self.free_late([input, Some(output)]),
            }
            self.core.unit_lost(task.packet.program(), Some((sequence, stage)));
            return self.take_ends();
        }
        let result = match own {
            None if matches!(task.work, TaskWork::Move(_)) => {
                return Err(format!("pipeline {sequence} ended while its own bytes were moved"));
            }
            None => self.bytes.run_late(&task),
            Some(pipeline) => {
                let flash_fails = !task.work.flash().is_empty() && self.random.one_in(self.rates.flash_fails);
                pipeline.fate.flash_failed |= flash_fails;
                self.tally.flash_failed += u64::from(flash_fails);
                self.bytes.run(&mut task, flash_fails)
            }
        };
        let is_late = !self.pipelines.values().any(|pipeline| pipeline.sequence == sequence);
        if is_late {
            self.free_late([input, Some(output)]);
        } else {
            self.let_go(&task.packet, &task.work, result);
        }
        self.trace(u64::from(sequence) << 8 | u64::from(stage) | 1 << 62);
        let unit_us = task.is_timed.then_some(self.now_us - begun_us);
        self.core.complete(task, result, unit_us);
        self.take_ends()
    }

    /// Releases the sub-buffers that a task does not leave to its neighbour stages.
    fn let_go(&mut self, packet: &TaskPacket, work: &TaskWork, result: TaskResult) {
        let outcome = match (work, result) {
            (TaskWork::Move(moves), TaskResult::Moved) => moves.outcome,
            (_, TaskResult::Ran { status: Status::Success, filled }) => TaskOutcome::Done { bytes: filled },
            (_, TaskResult::Ran { status: Status::More, filled }) => TaskOutcome::More { bytes: filled },
            // The pipeline ends, and everything that it holds is released.
            _ => return,
        };
        let (bytes, is_done) = match outcome {
            TaskOutcome::Done { bytes } | TaskOutcome::Enough { bytes } => (bytes, true),
            TaskOutcome::More { bytes } => (bytes, false),
            TaskOutcome::Failed { .. } => return,
        };
        if is_done && let Some(input) = packet.input {
            self.holders.remove(&input);
        }
        let is_last_part = is_done && packet.input_is_last;
        if packet.is_last_stage() || (bytes == 0 && !is_last_part) {
            self.holders.remove(&packet.output);
        }
    }

    fn free_late(&mut self, sub_buffers: [Option<SubBuffer>; 2]) {
        self.holders.retain(|held, _| !sub_buffers.contains(&Some(*held)));
    }

    /// Cancels some pipeline.
    pub fn cancel_one(&mut self) -> Result<(), String> {
        if self.pipelines.is_empty() {
            return Ok(());
        }
        let place = self.random.below(self.pipelines.len() as u64) as usize;
        let Some(pipeline) = self.pipelines.values_mut().nth(place) else { return Ok(()) };
        pipeline.fate.cancelled = true;
        self.tally.cancelled += 1;
        let sequence = pipeline.sequence;
        self.core.cancel(sequence);
        self.take_ends()
    }

    /// Sometimes kills an idle unit.
    pub fn lose_idle_unit(&mut self) -> Result<(), String> {
        let number = self.random.below(self.units.len() as u64) as usize;
        let unit = &mut self.units[number];
        if let (true, Some(program)) = (unit.is_idle(), unit.program)
            && self.random.one_in(self.rates.dies_idle)
        {
            unit.is_dead = true;
            self.tally.died += 1;
            self.core.unit_lost(program, None);
            return self.take_ends();
        }
        Ok(())
    }

    pub(super) fn take_ends(&mut self) -> Result<(), String> {
        while let Some(end) = self.core.ended() {
            let Some(pipeline) = self.pipelines.remove(&end.token) else {
                return Err(format!("{end:?} came twice, or of nothing"));
            };
            let JobResult::Pipeline(result) = end.result else {
                return Err(format!("{end:?} is of a pipeline"));
            };
            self.trace(end.token << 8 | 1 << 63);
            let is_used = |unit: &SimUnit, sub_buffer: SubBuffer| {
                let packet = unit.task.as_ref().map(|task| &task.task.packet);
                packet.is_some_and(|packet| packet.output == sub_buffer || packet.input == Some(sub_buffer))
            };
            self.tell_readers(end.token, result, &pipeline);
            let units = &self.units;
            self.holders.retain(|sub_buffer, (sequence, _)| {
                *sequence != pipeline.sequence || units.iter().any(|unit| is_used(unit, *sub_buffer))
            });
            self.check_end(result, pipeline)?;
        }
        let held = self.core.quarantined() + self.core.sub_buffers_free();
        if held > usize::from(self.options.sub_buffers) || self.core.reserved() > self.options.sub_buffers {
            return Err(format!("{} sub-buffers reserved of {}", self.core.reserved(), self.options.sub_buffers));
        }
        Ok(())
    }

    /// Passes the end of a pipeline that may have kept a result to its readers.
    fn tell_readers(&mut self, token: u64, result: PipelineResult, pipeline: &SimPipeline) {
        let SimSink::Kept { id } = pipeline.sink else { return };
        let readers = self.pipelines.values_mut().filter(|reader| reader.fate.awaits == Some(token));
        readers.for_each(|reader| match result {
            PipelineResult::Finished { .. } => reader.fate.awaits = None,
            PipelineResult::Failed(failure) => reader.fate.maker_failure = Some(failure),
        });
        if let Some(kept @ SimKept::Promised(..)) = self.kept.get_mut(&id)
            && matches!(kept, SimKept::Promised(maker, _) if *maker == token)
        {
            *kept = match result {
                PipelineResult::Finished { .. } => SimKept::Kept(kept.bytes()),
                PipelineResult::Failed(failure) => SimKept::Failed(failure),
            };
        }
    }

    fn check_end(&mut self, result: PipelineResult, pipeline: SimPipeline) -> Result<(), String> {
        self.tally.ended(&result);
        let PipelineFate { expected, stages, .. } = &pipeline.fate;
        if !pipeline.fate.may_end(&result, self.now_us, |program| self.is_gone(program)) {
            let told = expected.as_ref().map(Vec::len);
            return Err(format!("{result:?} at {} µs of {stages:?}, which was to come to {told:?}", self.now_us));
        }
        if let (PipelineResult::Finished { .. }, Ok(expected)) = (result, expected) {
            let (found, is_filled_up) = match &pipeline.sink {
                SimSink::Host(buffer) => (&buffer.bytes()[..expected.len()], true),
                // Checked by the pipelines that take the result.
                SimSink::Kept { .. } => (&expected[..], true),
                SimSink::Flash { at } => {
                    let (found, behind) = self.bytes.flash[*at as usize..].split_at(expected.len());
                    let fill = expected.len().next_multiple_of(SECTOR_BYTES as usize) - expected.len();
                    (found, behind[..fill].iter().all(|byte| *byte == 0))
                }
            };
            if found != expected || !is_filled_up {
                let at = found.iter().zip(expected).position(|(found, expected)| found != expected);
                return Err(format!("pipeline {} of {stages:?} gave other bytes, from {at:?} on", pipeline.sequence));
            }
        }
        self.slots_free.insert(pipeline.slot);
        Ok(())
    }

    /// Runs everything to its end. Then nothing may be held.
    pub fn settle(&mut self) -> Result<(), String> {
        const STEPS_MAX: u64 = 1 << 20;
        for _ in 0..STEPS_MAX {
            if self.core.in_flight() == 0 && self.units.iter().all(|unit| unit.task.is_none()) {
                return self.check_rest();
            }
            self.step()?;
        }
        Err(format!("{} pipelines have not ended after {STEPS_MAX} steps", self.core.in_flight()))
    }

    fn check_rest(&mut self) -> Result<(), String> {
        self.core.cancel_all(OWNER);
        let (free, all) = (self.core.sub_buffers_free(), usize::from(self.options.sub_buffers));
        let (reserved, quarantined) = (self.core.reserved(), self.core.quarantined());
        let used_bytes = self.bytes.local.bytes_used();
        if free != all || reserved != 0 || quarantined != 0 || used_bytes != self.used_bytes {
            return Err(format!(
                "at the end {free} of {all} sub-buffers are free, {reserved} reserved, {quarantined} in quarantine; {used_bytes} bytes are used, and were {}",
                self.used_bytes
            ));
        }
        match self.pipelines.values().next() {
            Some(pipeline) => Err(format!("pipeline {} was taken and never ended", pipeline.sequence)),
            None => Ok(()),
        }
    }
}
