//! The cost of running nothing: an inline program without work through a queue pair, and a stage without work in the arbiter, from
//! submission to its pipeline's end.

use std::sync::Arc;

use tapetum_bench::kernels::{self, NoWork};
use tapetum_drive::arbiter::{
    ARGUMENTS_BYTES, Arbiter, ArbiterOptions, PipelineRequest, StageRequest, TaskCost, TaskOutcome, UnitCount,
};
use tapetum_drive::{Command, Lease, LocalRange, MemoryFlash, Operation, ProgramId, QueuePair, Returned};

use super::dram::each;
use crate::Failure;
use crate::arguments::Arguments;
use crate::results::outcome::{Outcome, Reach};
use crate::results::spread::Spread;

/// The batch in which GETs are looked up and submitted.
const BATCH: usize = 32;
const LOCAL_BYTES: usize = 1 << 20;
const PROGRAMS: [ProgramId; 4] = [ProgramId(0), ProgramId(1), ProgramId(2), ProgramId(3)];
/// A single pipeline, and the paper's batch.
const PIPELINES_AT_ONCE: [usize; 2] = [1, 128];

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let commands = arguments.number("commands", 4 << 20)? as usize;
    let rounds = arguments.number("rounds", 9)?;
    arguments.finish()?;
    let about = format!("{commands} commands and stages of no work a round");
    let drive = kernels::drive(Arc::new(MemoryFlash::new(1 << 20)), LOCAL_BYTES, vec![Box::new(NoWork)])?;
    let mut pair = drive.queue_pair_of_one_thread(BATCH as u32)?;
    let mut outcome = Outcome::new(arguments, "dispatch", about);
    let (mut batched, mut single, mut staged) = (Vec::new(), Vec::new(), [Vec::new(), Vec::new()]);
    for _ in 0..rounds {
        batched.push(execute_ns(&mut pair, commands, BATCH));
        single.push(execute_ns(&mut pair, commands / 4, 1));
        for (staged, at_once) in staged.iter_mut().zip(PIPELINES_AT_ONCE) {
            staged.push(stage_ns(commands / 4, at_once)?);
        }
    }
    let batches = format!("an inline program of no work through a queue pair, in batches of {BATCH}, ns a command");
    outcome.hold(batches, Spread::of(batched), Reach::AtMost(50.0));
    outcome.hold("the same one at a time, ns", Spread::of(single), Reach::Reported);
    for (staged, at_once) in staged.into_iter().zip(PIPELINES_AT_ONCE) {
        let what = format!("a stage in the arbiter, {at_once} of its pipelines at once, ns a stage");
        outcome.hold(what, Spread::of(staged), Reach::AtMost(1000.0));
    }
    outcome.end()
}

fn execute_ns(pair: &mut QueuePair, commands: usize, batch: usize) -> f64 {
    let batches = commands.div_ceil(batch);
    let operation = Operation::Execute {
        program: ProgramId(0),
        parameters: LocalRange::EMPTY,
        input: LocalRange::EMPTY,
        output: LocalRange::EMPTY,
    };
    let mut returned: Vec<Returned> = Vec::with_capacity(batch);
    each(batches * batch, || {
        for _ in 0..batches {
            for tag in 0..batch as u64 {
                pair.submit(Command::new(tag, operation), Lease::Nothing).expect("a batch has credits");
            }
            returned.clear();
            while pair.in_flight() > 0 {
                pair.poll(&mut returned);
            }
            assert!(returned.iter().all(|end| end.completion.is_success()), "a program of no work succeeds");
        }
    })
}

/// Pipelines of all programs, alternating between two applications, with one unit for each program. All tasks end before the next are
/// started.
fn stage_ns(stages: usize, at_once: usize) -> Result<f64, Failure> {
    let mut arbiter = Arbiter::new(&ArbiterOptions {
        movers: Vec::new(),
        units: PROGRAMS.map(|program| UnitCount { program, units: 1 }).into(),
        weights: vec![1, 3],
        sub_buffers: 64,
        pipelines_max: at_once,
        flash_byte_cost: 0,
    });
    let stage = |program| StageRequest { program, arguments: [0; ARGUMENTS_BYTES] };
    let request = |application| PipelineRequest {
        application,
        stages: PROGRAMS.map(stage).into(),
        in_parts: true,
        deadline_us: None,
    };
    let requests = [request(0), request(1)];
    let pipelines = stages / PROGRAMS.len();
    let (mut submitted, mut ended, mut running) = (0, 0, Vec::with_capacity(PROGRAMS.len()));
    let mut refused = None;
    let ns = each(pipelines * PROGRAMS.len(), || {
        while ended < pipelines && refused.is_none() {
            while submitted < pipelines && submitted - ended < at_once {
                refused = arbiter.submit(&requests[submitted % 2]).err();
                submitted += 1;
            }
            running.extend(std::iter::from_fn(|| arbiter.start_next()).map(|packet| (packet.sequence, packet.stage)));
            for (sequence, stage) in running.drain(..) {
                let (outcome, cost) = (TaskOutcome::Done { bytes: 1 }, TaskCost { unit_us: 1, flash_bytes: 0 });
                arbiter.completed(sequence, stage, outcome, cost).expect("it was started");
            }
            ended += std::iter::from_fn(|| arbiter.ended()).count();
        }
    });
    refused.map_or(Ok(ns), |refusal| Err(refusal.into()))
}
