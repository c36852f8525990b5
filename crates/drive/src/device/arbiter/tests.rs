//! The arbiter against a model of units and sub-buffers, which knows nothing of how it decides.

use super::*;
use crate::SplitMix64;
use crate::planted::with;
use proptest::prelude::*;

const FETCH: ProgramId = ProgramId(10);
const INFLATE: ProgramId = ProgramId(11);
const DIGEST: ProgramId = ProgramId(12);
const PROGRAMS: [ProgramId; 3] = [FETCH, INFLATE, DIGEST];

fn options(sub_buffers: u16, weights: &[u32]) -> ArbiterOptions {
    let units = |program, units| UnitCount { program, units };
    ArbiterOptions {
        units: vec![units(FETCH, 3), units(INFLATE, 2), units(DIGEST, 1)],
        weights: weights.to_vec(),
        sub_buffers,
        pipelines_max: 16,
        movers: vec![FETCH],
        flash_byte_cost: 0,
    }
}

fn request(application: u16, programs: &[ProgramId]) -> PipelineRequest {
    let stage = |program: &ProgramId| StageRequest { program: *program, arguments: [0; ARGUMENTS_BYTES] };
    PipelineRequest { application, stages: programs.iter().map(stage).collect(), in_parts: false, deadline_us: None }
}

/// The model's view of a pipeline: its request, and how many parts each stage still has to make.
struct ModelPipeline {
    request: PipelineRequest,
    cancelled: bool,
    /// The stage whose unit died.
    lost_at: Option<u8>,
    fails_at: Option<u8>,
    /// By stage: the number of parts into which it still splits an input.
    parts_left: Vec<u8>,
    held: BTreeMap<u8, SubBuffer>,
}

struct RunningTask {
    packet: TaskPacket,
    ends_us: u64,
    took_us: u64,
}

/// Units that run tasks, and a clock. Each error names an invariant that the arbiter broke.
struct Model {
    arbiter: Arbiter,
    options: ArbiterOptions,
    random: SplitMix64,
    now_us: u64,
    running: Vec<RunningTask>,
    pipelines: BTreeMap<u32, ModelPipeline>,
    /// By application.
    served_us: Vec<u64>,
    finished: usize,
    last_started_us: Vec<u64>,
}

impl Model {
    fn new(options: ArbiterOptions, seed: u64) -> Model {
        let arbiter = Arbiter::new(&options);
        let applications = options.weights.len();
        Model {
            arbiter,
            options,
            random: SplitMix64::new(seed),
            now_us: 0,
            running: Vec::new(),
            pipelines: BTreeMap::new(),
            served_us: vec![0; applications],
            finished: 0,
            last_started_us: vec![0; applications],
        }
    }

    fn submit(&mut self, request: PipelineRequest, fails_at: Option<u8>) -> Result<u32, PipelineRefusal> {
        let sequence = self.arbiter.submit(&request)?;
        let parts = |random: &mut SplitMix64| if request.in_parts { random.below(4) as u8 } else { 0 };
        let parts_left = request.stages.iter().map(|_| parts(&mut self.random)).collect();
        let held = BTreeMap::new();
        let pipeline = ModelPipeline { request, cancelled: false, lost_at: None, fails_at, parts_left, held };
        self.pipelines.insert(sequence, pipeline);
        Ok(sequence)
    }

    fn start_all(&mut self) -> Result<(), String> {
        while let Some(packet) = self.arbiter.start_next() {
            self.start(packet)?;
        }
        Ok(())
    }

    fn start(&mut self, packet: TaskPacket) -> Result<(), String> {
        let encoded = packet.encode();
        assert_eq!(TaskPacket::decode(&encoded), Some(packet));
        let busy = self.running.iter().filter(|task| task.packet.program() == packet.program()).count();
        let units = self.options.units.iter().find(|count| count.program == packet.program());
        if units.is_none_or(|count| busy >= usize::from(count.units)) {
            return Err(format!("{packet:?} has no unit"));
        }
        let mut holders = self
            .pipelines
            .iter()
            .flat_map(|(sequence, pipeline)| pipeline.held.values().map(move |held| (*sequence, *held)));
        if let Some((holder, _)) = holders.find(|(_, held)| *held == packet.output) {
            return Err(format!("{packet:?} has an output that pipeline {holder} holds"));
        }
        let late = self.running.iter().filter(|task| !self.pipelines.contains_key(&task.packet.sequence));
        if let Some(task) = late.map(|task| task.packet).find(|task| uses(task, packet.output)) {
            return Err(format!("{packet:?} has an output that {task:?} may still write"));
        }
        let Some(pipeline) = self.pipelines.get_mut(&packet.sequence) else {
            return Err(format!("{packet:?} of a pipeline that has ended"));
        };
        let before = packet.stage.checked_sub(1);
        if packet.input != before.and_then(|stage| pipeline.held.get(&stage).copied()) {
            return Err(format!("{packet:?} has another input than its stage before left: {:?}", pipeline.held));
        }
        pipeline.held.insert(packet.stage, packet.output);
        let hangs = pipeline.request.deadline_us.is_some() && self.random.one_in(4);
        let took_us = 1 + self.random.below(if hangs { 2000 } else { 100 });
        self.last_started_us[usize::from(packet.application)] = self.now_us;
        self.running.push(RunningTask { packet, ends_us: self.now_us + took_us, took_us });
        Ok(())
    }

    /// Ends the task that ends first.
    fn advance(&mut self) -> Result<(), String> {
        let Some(first) = (0..self.running.len()).min_by_key(|place| self.running[*place].ends_us) else {
            return if self.arbiter.in_flight() > 0 {
                Err(format!("{} pipelines are left, and nothing runs", self.arbiter.in_flight()))
            } else {
                Ok(())
            };
        };
        let RunningTask { packet, ends_us, took_us } = self.running.swap_remove(first);
        self.now_us = ends_us;
        self.served_us[usize::from(packet.application)] += took_us;
        let cost = TaskCost { unit_us: took_us, flash_bytes: 0 };
        let stage = usize::from(packet.stage);
        let Some(pipeline) = self.pipelines.get_mut(&packet.sequence) else {
            let report = self.arbiter.completed(packet.sequence, packet.stage, TaskOutcome::Done { bytes: 1 }, cost);
            let is_right = report == Ok(TaskReport::Late) && packet.program() != FETCH;
            return if is_right { Ok(()) } else { Err(format!("{packet:?} outlived its pipeline: {report:?}")) };
        };
        let outcome = if pipeline.fails_at == Some(packet.stage) {
            TaskOutcome::Failed { status: 5 }
        } else if pipeline.parts_left[stage] > 0 {
            pipeline.parts_left[stage] -= 1;
            TaskOutcome::More { bytes: 1 }
        } else {
            // The next part of the input is not split again.
            TaskOutcome::Done { bytes: self.random.below(3) as u32 }
        };
        if let TaskOutcome::Done { .. } = outcome
            && let Some(before) = packet.stage.checked_sub(1)
        {
            pipeline.held.remove(&before);
        }
        let is_taken =
            packet.is_last_stage() || matches!(outcome, TaskOutcome::Done { bytes: 0 }) && !packet.input_is_last;
        if is_taken {
            pipeline.held.remove(&packet.stage);
        }
        self.arbiter
            .completed(packet.sequence, packet.stage, outcome, cost)
            .map_err(|_| "a task is unknown".to_owned())?;
        self.take_ends()
    }

    /// Kills one of the units that have a task.
    fn lose_unit(&mut self) -> Result<(), String> {
        if self.running.is_empty() {
            return Ok(());
        }
        let place = self.random.below(self.running.len() as u64) as usize;
        let RunningTask { packet, .. } = self.running.swap_remove(place);
        if let Some(units) = self.options.units.iter_mut().find(|count| count.program == packet.program()) {
            units.units -= 1;
        }
        if let Some(pipeline) = self.pipelines.get_mut(&packet.sequence) {
            pipeline.lost_at = Some(packet.stage);
        }
        self.arbiter.task_lost(packet.sequence, packet.stage).map_err(|_| format!("{packet:?} was not running"))?;
        self.take_ends()
    }

    fn is_gone(&self, program: ProgramId) -> bool {
        self.options.units.iter().any(|count| count.program == program && count.units == 0)
    }

    fn take_ends(&mut self) -> Result<(), String> {
        while let Some(end) = self.arbiter.ended() {
            let Some(pipeline) = self.pipelines.remove(&end.sequence) else {
                return Err(format!("{end:?} came twice"));
            };
            let is_right = match end.outcome {
                PipelineOutcome::Finished => pipeline.fails_at.is_none() && !pipeline.cancelled,
                PipelineOutcome::Failed { stage, status } => pipeline.fails_at == Some(stage) && status == 5,
                PipelineOutcome::Cancelled { stage } => {
                    pipeline.cancelled && usize::from(stage) < pipeline.request.stages.len()
                }
                PipelineOutcome::DeadlineExceeded { .. } => {
                    pipeline.request.deadline_us.is_some_and(|deadline_us| deadline_us <= self.now_us)
                }
                PipelineOutcome::UnitLost { stage } => pipeline.lost_at == Some(stage),
                PipelineOutcome::NoUnitLeft { stage } => {
                    self.is_gone(pipeline.request.stages[usize::from(stage)].program)
                }
            };
            if !is_right || end.application != pipeline.request.application {
                return Err(format!("{end:?} of {:?}", pipeline.request));
            }
            self.finished += 1;
        }
        Ok(())
    }

    /// Checks that nobody holds anything at the end.
    fn check_rest(&mut self) -> Result<(), String> {
        while !self.running.is_empty() {
            self.advance()?;
        }
        let Arbiter { sub_buffers_free, sub_buffers, reserved, units, .. } = &self.arbiter;
        let mut free = sub_buffers_free.clone();
        free.sort();
        free.dedup();
        let all_back = free.len() == usize::from(*sub_buffers) && sub_buffers_free.len() == free.len();
        if !all_back || *reserved != 0 || units.values().any(|unit| unit.busy > 0) || !self.pipelines.is_empty() {
            return Err(format!("{free:?} of {sub_buffers} are free, {reserved} reserved at the end"));
        }
        Ok(())
    }
}

fn uses(packet: &TaskPacket, sub_buffer: SubBuffer) -> bool {
    packet.output == sub_buffer || packet.input == Some(sub_buffer)
}

/// Pipelines of all shapes, some of which fail, are cancelled or too late, or lose their units, until all have ended.
fn mixed_run(seed: u64, sub_buffers: u16) -> Result<(), String> {
    let mut model = Model::new(options(sub_buffers, &[1, 3]), seed);
    let mut accepted = 0;
    for _ in 0..120 {
        for _ in 0..model.random.below(4) {
            let stages = 1 + model.random.below(4) as usize;
            let programs: Vec<_> = (0..stages).map(|_| PROGRAMS[model.random.below(3) as usize]).collect();
            let application = model.random.below(2) as u16;
            let fails_at = (model.random.one_in(8)).then(|| model.random.below(stages as u64) as u8);
            let in_parts = model.random.one_in(2);
            let deadline_us = model.random.one_in(16).then(|| model.now_us + model.random.below(200));
            let request = PipelineRequest { in_parts, deadline_us, ..request(application, &programs) };
            accepted += usize::from(model.submit(request, fails_at).is_ok());
        }
        model.start_all()?;
        if model.random.one_in(6)
            && let Some(sequence) = model.pipelines.keys().next().copied()
        {
            let Some(pipeline) = model.pipelines.get_mut(&sequence) else { unreachable!("it was just seen") };
            pipeline.cancelled = true;
            model.arbiter.cancel(sequence);
            model.take_ends()?;
        }
        model.arbiter.expire(model.now_us);
        model.take_ends()?;
        if model.random.one_in(80) {
            model.lose_unit()?;
        }
        model.start_all()?;
        model.advance()?;
    }
    while model.arbiter.in_flight() > 0 {
        model.start_all()?;
        model.advance()?;
        model.arbiter.expire(model.now_us);
        model.take_ends()?;
    }
    if model.finished != accepted {
        return Err(format!("{accepted} were taken and {} ended", model.finished));
    }
    model.check_rest()
}

/// Two applications that always have pipelines, with the same programs in different orders: their shares of the units' time.
fn shares(seed: u64, weights: [u32; 2]) -> Result<[f64; 2], String> {
    let mut options = options(8, &weights);
    options.units.iter_mut().for_each(|count| count.units = 1);
    let mut model = Model::new(options, seed);
    while model.now_us < 400_000 {
        while model.submit(request(0, &[FETCH, INFLATE, DIGEST]), None).is_ok() {}
        while model.submit(request(1, &[DIGEST, INFLATE, FETCH]), None).is_ok() {}
        model.start_all()?;
        model.advance()?;
        if model.last_started_us.iter().any(|last_us| last_us + 20_000 < model.now_us) {
            return Err("an application has not been served for 20 ms".into());
        }
    }
    let total: u64 = model.served_us.iter().sum();
    Ok([0, 1].map(|application: usize| model.served_us[application] as f64 / total as f64))
}

proptest! {
    #[test]
    fn every_pipeline_ends_once_and_nothing_is_held_by_two(seed: u64, sub_buffers in 4..12_u16) {
        prop_assert_eq!(mixed_run(seed, sub_buffers), Ok(()));
    }
}

#[test]
fn applications_get_what_they_weigh() {
    for (weights, expected) in [([1, 1], 0.5), ([1, 3], 0.25), ([4, 1], 0.8)] {
        let [first, _] = shares(7, weights).unwrap();
        assert!((first - expected).abs() <= 0.1 * expected, "weights {weights:?}: {first}");
    }
}

#[test]
fn planted_bugs_are_caught() {
    // SAFETY: an arbiter alone has no drive.
    let caught = |bug, run: &dyn Fn() -> bool| assert!(unsafe { with(bug, run) }, "{bug}");
    let in_mixed_runs = |sub_buffers| (0..50).any(|seed| mixed_run(seed, sub_buffers).is_err());
    for bug in ["LostCompletion", "SubBufferTwice", "NoQuarantine", "DeadUnitsCount"] {
        caught(bug, &|| in_mixed_runs(8));
    }
    caught("NoReservation", &|| in_mixed_runs(4));
    caught("StarvedApplication", &|| shares(7, [1, 1]).is_err());
}

#[test]
fn a_busy_unit_keeps_nobody_else_waiting() {
    let mut arbiter = Arbiter::new(&options(8, &[1]));
    let busy = arbiter.submit(&request(0, &[DIGEST])).unwrap();
    let behind = arbiter.submit(&request(0, &[DIGEST])).unwrap();
    let other = arbiter.submit(&request(0, &[INFLATE])).unwrap();
    let started = [arbiter.start_next(), arbiter.start_next(), arbiter.start_next()]
        .map(|packet| packet.map(|packet| packet.sequence));
    assert_eq!(started, [Some(busy), Some(other), None]);
    let cost = TaskCost::default();
    assert_eq!(arbiter.completed(behind, 0, TaskOutcome::Done { bytes: 1 }, cost), Err(UnknownTask));
    assert_eq!(arbiter.completed(busy, 0, TaskOutcome::Done { bytes: 1 }, cost), Ok(TaskReport::Counted));
    assert_eq!(arbiter.completed(busy, 0, TaskOutcome::Done { bytes: 1 }, cost), Err(UnknownTask));
    assert_eq!(arbiter.start_next().map(|packet| packet.sequence), Some(behind));
}

#[test]
fn what_cannot_run_is_refused_with_its_reason() {
    let mut arbiter = Arbiter::new(&options(3, &[1]));
    let stage = ProgramId(99);
    let parts = PipelineRequest { in_parts: true, ..request(0, &[FETCH; 4]) };
    assert_eq!(arbiter.submit(&request(1, &[FETCH])), Err(PipelineRefusal::UnknownApplication(1)));
    assert_eq!(arbiter.submit(&request(0, &[])), Err(PipelineRefusal::NoStages));
    assert_eq!(arbiter.submit(&request(0, &[FETCH; 11])), Err(PipelineRefusal::TooManyStages(11)));
    let refusal = PipelineRefusal::NoUnit { stage: 1, program: stage };
    assert_eq!(arbiter.submit(&request(0, &[FETCH, stage])), Err(refusal));
    assert_eq!(arbiter.submit(&parts), Err(PipelineRefusal::TooLarge { peak: 4, sub_buffers: 3 }));
    (0..16).for_each(|_| assert!(arbiter.submit(&request(0, &[FETCH; 8])).is_ok()));
    assert_eq!(arbiter.submit(&request(0, &[FETCH])), Err(PipelineRefusal::QueueFull));
}

#[test]
fn parts_pass_through_the_stages_behind_before_more_is_made() {
    let mut arbiter = Arbiter::new(&options(3, &[1]));
    let request = PipelineRequest { in_parts: true, ..request(0, &[FETCH, INFLATE, DIGEST]) };
    let sequence = arbiter.submit(&request).unwrap();
    let mut order = Vec::new();
    // The fetch brings one part, of which the inflater makes three; the digest says nothing before the last.
    let mut inflated = 0;
    while let Some(packet) = arbiter.start_next() {
        order.push((packet.stage, packet.resumes, packet.input_is_last));
        let outcome = match packet.stage {
            1 if inflated < 2 => {
                inflated += 1;
                TaskOutcome::More { bytes: 9 }
            }
            2 => TaskOutcome::Done { bytes: if packet.input_is_last { 32 } else { 0 } },
            _ => TaskOutcome::Done { bytes: 9 },
        };
        arbiter.completed(sequence, packet.stage, outcome, TaskCost::default()).unwrap();
    }
    let expected = [
        (0, false, true),
        (1, false, true),
        (2, false, false),
        (1, true, true),
        (2, false, false),
        (1, true, true),
        (2, false, true),
    ];
    assert_eq!(order, expected);
    let end = PipelineEnd { sequence, application: 0, outcome: PipelineOutcome::Finished };
    assert_eq!((arbiter.ended(), arbiter.ended()), (Some(end), None));
}

#[test]
fn an_output_that_never_fits_ends_its_pipeline_by_name() {
    for (in_parts, bytes) in [(false, 9), (true, 0)] {
        let mut arbiter = Arbiter::new(&options(3, &[1]));
        let request = PipelineRequest { in_parts, ..request(0, &[FETCH, INFLATE]) };
        let sequence = arbiter.submit(&request).unwrap();
        arbiter.start_next().unwrap();
        arbiter.completed(sequence, 0, TaskOutcome::Done { bytes: 1 }, TaskCost::default()).unwrap();
        arbiter.start_next().unwrap();
        arbiter.completed(sequence, 1, TaskOutcome::More { bytes }, TaskCost::default()).unwrap();
        let outcome = PipelineOutcome::Failed { stage: 1, status: OUTPUT_OVERFLOW };
        assert_eq!(arbiter.ended().map(|end| end.outcome), Some(outcome));
    }
}

#[test]
fn what_runs_is_cancelled_when_its_task_has_ended() {
    let mut arbiter = Arbiter::new(&options(4, &[1]));
    let (first, second) =
        (arbiter.submit(&request(0, &[DIGEST])).unwrap(), arbiter.submit(&request(0, &[DIGEST])).unwrap());
    arbiter.start_next().unwrap();
    arbiter.cancel(first);
    arbiter.cancel(second);
    assert!(arbiter.is_given_up(first));
    assert_eq!(arbiter.ended().map(|end| end.sequence), Some(second));
    assert_eq!(arbiter.ended(), None, "its unit still writes into its sub-buffer");
    arbiter.completed(first, 0, TaskOutcome::Done { bytes: 1 }, TaskCost::default()).unwrap();
    assert_eq!(arbiter.ended().map(|end| end.outcome), Some(PipelineOutcome::Cancelled { stage: 0 }));
}

#[test]
fn what_runs_beyond_its_deadline_ends_without_its_sub_buffers() {
    let mut arbiter = Arbiter::new(&options(4, &[1]));
    let late = PipelineRequest { deadline_us: Some(10), ..request(0, &[FETCH, DIGEST, INFLATE]) };
    let sequence = arbiter.submit(&late).unwrap();
    arbiter.start_next().unwrap();
    arbiter.completed(sequence, 0, TaskOutcome::Done { bytes: 1 }, TaskCost::default()).unwrap();
    let task = arbiter.start_next().unwrap();
    assert_eq!((task.program(), arbiter.deadline_next_us()), (DIGEST, Some(10)));
    arbiter.expire(10);
    assert_eq!(arbiter.ended().map(|end| end.outcome), Some(PipelineOutcome::DeadlineExceeded { stage: 1 }));
    assert_eq!((arbiter.quarantined(), arbiter.in_flight(), arbiter.deadline_next_us()), (2, 0, None));
    // The other pipelines continue with the sub-buffers that are left, but without the unit.
    let other = arbiter.submit(&request(0, &[FETCH, INFLATE])).unwrap();
    let behind = arbiter.submit(&request(0, &[DIGEST])).unwrap();
    for stage in [0, 1] {
        let packet = arbiter.start_next().unwrap();
        assert!(packet.sequence == other && !uses(&task, packet.output));
        arbiter.completed(other, stage, TaskOutcome::Done { bytes: 1 }, TaskCost::default()).unwrap();
    }
    assert_eq!(arbiter.start_next(), None);
    let done = TaskOutcome::Done { bytes: 1 };
    assert_eq!(arbiter.completed(sequence, 1, done, TaskCost::default()), Ok(TaskReport::Late));
    assert_eq!((arbiter.quarantined(), arbiter.start_next().map(|packet| packet.sequence)), (0, Some(behind)));
    assert_eq!(arbiter.take_waits(DIGEST), 1);
}

#[test]
fn a_move_of_bytes_is_waited_for() {
    let mut arbiter = Arbiter::new(&options(4, &[1]));
    let late = PipelineRequest { deadline_us: Some(10), ..request(0, &[FETCH, DIGEST]) };
    let sequence = arbiter.submit(&late).unwrap();
    arbiter.start_next().unwrap();
    arbiter.expire(10);
    assert_eq!((arbiter.ended(), arbiter.quarantined()), (None, 0));
    arbiter.completed(sequence, 0, TaskOutcome::Done { bytes: 1 }, TaskCost::default()).unwrap();
    assert_eq!(arbiter.ended().map(|end| end.outcome), Some(PipelineOutcome::DeadlineExceeded { stage: 0 }));
}

#[test]
fn a_unit_that_dies_takes_its_task_with_it_and_the_last_one_its_program() {
    let mut arbiter = Arbiter::new(&options(8, &[1]));
    let first = arbiter.submit(&request(0, &[INFLATE])).unwrap();
    let second = arbiter.submit(&request(0, &[INFLATE, DIGEST])).unwrap();
    let needy = arbiter.submit(&request(0, &[FETCH, INFLATE])).unwrap();
    (0..3).for_each(|_| assert!(arbiter.start_next().is_some()));
    assert_eq!(arbiter.task_lost(first, 0), Ok(TaskReport::Counted));
    assert_eq!(arbiter.task_lost(first, 0), Err(UnknownTask));
    assert_eq!(arbiter.ended().map(|end| end.outcome), Some(PipelineOutcome::UnitLost { stage: 0 }));
    assert_eq!((arbiter.units(INFLATE), arbiter.ended()), (1, None));
    arbiter.completed(second, 0, TaskOutcome::Done { bytes: 1 }, TaskCost::default()).unwrap();
    arbiter.unit_lost(INFLATE);
    assert_eq!(arbiter.ended(), None, "its fetch runs");
    arbiter.completed(needy, 0, TaskOutcome::Done { bytes: 1 }, TaskCost::default()).unwrap();
    let end = arbiter.ended().unwrap();
    assert_eq!((end.sequence, end.outcome), (needy, PipelineOutcome::NoUnitLeft { stage: 1 }));
    let refusal = PipelineRefusal::NoUnit { stage: 0, program: INFLATE };
    assert_eq!(arbiter.submit(&request(0, &[INFLATE])), Err(refusal));
    // The one whose inflating was done goes on.
    assert_eq!(arbiter.start_next().map(|packet| packet.sequence), Some(second));
}
