//! Two applications on one drive, as in ProcPIPE's figure 2: K1-K2-K3 and K3-K2-K4, each with as many pipelines as the drive takes. Their
//! unit time and completed pipelines are compared with their weights; drawn.
//!
//! K2 takes the longest, so both always wait for it. Without waiting there is nothing to divide, and weights have no effect.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tapetum_bench::kernels::{self, ApplicationCpu, BenchKernel};
use tapetum_drive::arbiter::UnitCount;
use tapetum_drive::engine::EngineOptions;
use tapetum_drive::{
    Command, Drive, Lease, LocalBuffer, LocalRange, MemoryFlash, Operation, PipelineDescriptor, PipelineResult,
    PipelineSink, PipelineSource, PipelineStage, Program, ProgramId, Returned, SourceRange, Status,
};

use crate::Failure;
use crate::arguments::Arguments;
use crate::results::chart::{Chart, Line, Scale};
use crate::results::outcome::{Outcome, Reach};
use crate::results::picture::Picture;
use crate::results::spread::Spread;

const KERNELS: [&str; 4] = ["k1", "k2", "k3", "k4"];
/// About 150 µs of arithmetic, and 450 µs for K2, so that the host's work for a task counts little.
const STEPS: [u32; 4] = [50_000, 150_000, 50_000, 50_000];
/// By application: indexes in `KERNELS`.
const STAGES: [[usize; 3]; 2] = [[0, 1, 2], [2, 1, 3]];
/// Weights of the first application; the second's is 1.
const WEIGHTS: [u32; 4] = [1, 2, 3, 4];
/// Units of each program. With 0, programs run on the waiting threads.
const UNITS: [u16; 3] = [0, 1, 2];
/// Pipelines in flight of each application.
const AT_ONCE: usize = 6;
const ITEM_BYTES: usize = 4096;
const LOCAL_BYTES: usize = 8 << 20;
const WARM_UP: Duration = Duration::from_millis(200);
const TURN: Duration = Duration::from_secs(1);

/// Results of one turn, by application.
struct Turn {
    unit_seconds: [f64; 2],
    pipelines: [f64; 2],
}

impl Turn {
    /// The greatest distance of an application from its weight, relative to the weight.
    fn distance(amounts: [f64; 2], weight: u32) -> f64 {
        let (expected, weight) = (amounts[0] + amounts[1], f64::from(weight));
        let shares = [weight / (weight + 1.0), 1.0 / (weight + 1.0)].map(|share| share * expected);
        amounts.iter().zip(shares).map(|(amount, share)| (amount / share - 1.0).abs()).fold(0.0, f64::max)
    }
}

/// By units, by weights, by round.
type Turns = Vec<Vec<Vec<Turn>>>;

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let rounds = arguments.number("rounds", 3)?;
    arguments.finish()?;
    let about =
        format!("K1-K2-K3 and K3-K2-K4 on one drive, {AT_ONCE} of each on their way, items of {ITEM_BYTES} bytes");
    let mut outcome = Outcome::new(arguments, "two-applications", about);
    let mut turns: Turns = UNITS.iter().map(|_| WEIGHTS.iter().map(|_| Vec::new()).collect()).collect();
    for _ in 0..rounds {
        for (turns, units) in turns.iter_mut().zip(UNITS) {
            for (turns, weight) in turns.iter_mut().zip(WEIGHTS) {
                turns.push(turn(arguments, units, weight)?);
            }
        }
    }
    let columns =
        ["units a program, weights", "unit time, first ÷ second", "pipelines, first ÷ second", "first's a second"];
    outcome.columns(&columns);
    for (turns, units) in turns.iter().zip(UNITS) {
        for (turns, weight) in turns.iter().zip(WEIGHTS) {
            let ratio = |amounts: fn(&Turn) -> [f64; 2]| {
                Spread::of(turns.iter().map(|turn| amounts(turn)[0] / amounts(turn)[1]))
            };
            let rate = Spread::of(turns.iter().map(|turn| turn.pipelines[0]));
            let figures = vec![ratio(|turn| turn.unit_seconds), ratio(|turn| turn.pipelines), rate];
            outcome.line(format!("{}, {weight}:1", unit_name(units)), figures);
        }
        hold(&mut outcome, turns, units, rounds);
    }
    outcome.picture(picture(&turns));
    outcome.end()
}

fn unit_name(units: u16) -> String {
    if units == 0 { "inline".into() } else { units.to_string() }
}

/// Checks, for each round, the greatest distance over all weights.
fn hold(outcome: &mut Outcome, turns: &[Vec<Turn>], units: u16, rounds: u64) {
    let furthest = |amounts: fn(&Turn) -> [f64; 2]| {
        Spread::of((0..rounds as usize).map(|round| {
            let distances =
                turns.iter().zip(WEIGHTS).map(|(turns, weight)| Turn::distance(amounts(&turns[round]), weight));
            distances.fold(0.0, f64::max)
        }))
    };
    let reach = if units == 0 { Reach::Reported } else { Reach::AtMost(0.1) };
    let what = format!("units a program: {}; the furthest from its weight, as a part of it", unit_name(units));
    outcome.hold(format!("{what}, unit time"), furthest(|turn| turn.unit_seconds), reach);
    outcome.hold(format!("{what}, pipelines"), furthest(|turn| turn.pipelines), reach);
}

/// A drive with so many units of each kernel, and the weights `weight` and 1.
fn drive(cpu: &Arc<ApplicationCpu>, units: u16, weight: u32) -> Result<Drive, Failure> {
    let kernel = |name| Box::new(BenchKernel { name, cpu: cpu.clone() }) as Box<dyn Program>;
    let drive = kernels::drive(Arc::new(MemoryFlash::new(1 << 20)), LOCAL_BYTES, KERNELS.map(kernel).into())?;
    let count = |program| UnitCount { program: ProgramId(program), units };
    let options = EngineOptions::with_units((0..KERNELS.len() as u16).map(count).collect());
    let options = EngineOptions { weights: vec![weight, 1], sub_buffers: 64, ..options };
    Ok(if units == 0 { drive } else { drive.with_compute_units(&options) })
}

fn turn(arguments: &Arguments, units: u16, weight: u32) -> Result<Turn, Failure> {
    let cpu = Arc::new(ApplicationCpu::default());
    let drive = drive(&cpu, units, weight)?;
    let (stop, ended) = (AtomicBool::new(false), [AtomicU64::new(0), AtomicU64::new(0)]);
    thread::scope(|scope| {
        let ask = |application: usize| {
            let (drive, stop, ended) = (&drive, &stop, &ended[application]);
            let own = if units == 0 { 0 } else { application as u16 };
            move || ask_until(drive, application as u16, own, stop, ended)
        };
        let callers: Vec<_> = (0..2).map(|application| scope.spawn(ask(application))).collect();
        let look = || (Instant::now(), cpu.ns(), ended.each_ref().map(|ended| ended.load(Ordering::Relaxed)));
        thread::sleep(arguments.time(WARM_UP));
        let (begun, cpu_before, ended_before) = look();
        thread::sleep(arguments.time(TURN));
        let (over, cpu_after, ended_after) = look();
        stop.store(true, Ordering::Relaxed);
        for caller in callers {
            caller.join().expect("a caller does not panic")?;
        }
        let seconds = (over - begun).as_secs_f64();
        Ok(Turn {
            unit_seconds: [0, 1].map(|place: usize| (cpu_after[place] - cpu_before[place]) as f64 / 1e9),
            pipelines: [0, 1].map(|place: usize| (ended_after[place] - ended_before[place]) as f64 / seconds),
        })
    })
}

/// Runs a queue pair of one application, with the bench's number of commands in flight, each of one pipeline. `number` is the application's
/// number at the drive; a drive without units has only one.
fn ask_until(
    drive: &Drive,
    application: u16,
    number: u16,
    stop: &AtomicBool,
    ended: &AtomicU64,
) -> Result<(), Failure> {
    let stages: Vec<PipelineStage> = STAGES[usize::from(application)]
        .map(|place| PipelineStage::new(ProgramId(place as u16), &BenchKernel::parameters(application, STEPS[place])))
        .into_iter()
        .flatten()
        .collect();
    let mut pair = drive.queue_pair(1)?;
    let submit = |pair: &mut tapetum_drive::QueuePair, buffer: LocalBuffer| {
        let pipelines = LocalRange { offset: buffer.offset(), length: PipelineDescriptor::ENCODED_BYTES as u32 };
        pair.submit(Command::new(0, Operation::Compute { pipelines }), Lease::Buffer(buffer))
    };
    for _ in 0..AT_ONCE {
        submit(&mut pair, item(drive, &stages, number)?)?;
    }
    let mut returned = Vec::new();
    while pair.in_flight() > 0 {
        if pair.poll(&mut returned) == 0 {
            pair.wait(None);
        }
        for Returned { completion, lease } in returned.drain(..) {
            let mut buffer = lease.into_buffer();
            let result = &mut buffer.bytes_mut()[PipelineDescriptor::RESULT_AT..][..PipelineResult::ENCODED_BYTES];
            match (completion.status, result.first_chunk().map(PipelineResult::decode)) {
                (Status::Success, Some(Ok(Some(PipelineResult::Finished { .. })))) => {}
                other => return Err(format!("a pipeline gave {other:?}").into()),
            }
            // The room for the result must be zero.
            result.fill(0);
            ended.fetch_add(1, Ordering::Relaxed);
            if !stop.load(Ordering::Relaxed) {
                submit(&mut pair, buffer)?;
            }
        }
    }
    Ok(())
}

/// A buffer with a pipeline, its input, and room for its output.
fn item(drive: &Drive, stages: &[PipelineStage], application: u16) -> Result<LocalBuffer, Failure> {
    const LIST_AT: usize = PipelineDescriptor::ENCODED_BYTES;
    const ITEM_AT: usize = LIST_AT + SourceRange::ENCODED_BYTES;
    let mut buffer = drive.local().allocate(ITEM_AT + 2 * ITEM_BYTES).ok_or("local memory is too small")?;
    let at = |at: usize, bytes: usize| LocalRange { offset: buffer.offset() + at as u64, length: bytes as u32 };
    let source = PipelineSource::Local { list: at(LIST_AT, SourceRange::ENCODED_BYTES) };
    let sink = PipelineSink::Host { into: at(ITEM_AT + ITEM_BYTES, ITEM_BYTES) };
    let range = SourceRange { offset: at(ITEM_AT, 0).offset, bytes: ITEM_BYTES as u64 };
    let mut descriptor = PipelineDescriptor::new(stages, source, sink).ok_or("too many stages")?;
    descriptor.application = application;
    buffer.bytes_mut()[..LIST_AT].copy_from_slice(&descriptor.encode());
    buffer.bytes_mut()[LIST_AT..ITEM_AT].copy_from_slice(&range.encode());
    Ok(buffer)
}

/// A line for each number of units, and the ideal line.
fn picture(turns: &Turns) -> Picture {
    let weights = WEIGHTS.map(f64::from);
    let aim = weights.map(|weight| (weight, Spread::once(weight)));
    let mut lines = vec![Line::new("as its weight says", aim)];
    for (turns, units) in turns.iter().zip(UNITS) {
        let ratio = |turn: &Turn| turn.unit_seconds[0] / turn.unit_seconds[1];
        let spreads = turns.iter().map(|turns| Spread::of(turns.iter().map(ratio)));
        let label = match units {
            0 => "inline, unweighted".to_owned(),
            1 => "one unit a program".to_owned(),
            units => format!("{units} units a program"),
        };
        lines.push(Line::new(label, weights.into_iter().zip(spreads)));
    }
    let title = "Two applications, K1-K2-K3 and K3-K2-K4, on one drive";
    let axes = ["weight of the first, where the second's is 1", "unit time of the first ÷ the second's"];
    Picture::new("two-applications", vec![Chart::new(title, axes, Scale::Linear, lines)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_application_gets_its_pipelines_through() {
        for units in UNITS {
            let cpu = Arc::new(ApplicationCpu::default());
            let drive = drive(&cpu, units, 3).unwrap();
            for application in 0..2 {
                let (stop, ended) = (AtomicBool::new(true), AtomicU64::new(0));
                let number = if units == 0 { 0 } else { application };
                ask_until(&drive, application, number, &stop, &ended).unwrap();
                assert_eq!(ended.into_inner(), AT_ONCE as u64);
                assert!(cpu.ns()[usize::from(application)] > 0);
            }
        }
    }

    #[test]
    fn a_distance_is_that_of_the_application_furthest_from_its_weight() {
        assert_eq!(Turn::distance([3.0, 1.0], 3), 0.0);
        assert!((Turn::distance([2.0, 2.0], 3) - 1.0).abs() < 1e-9);
        assert!((Turn::distance([0.45, 0.55], 1) - 0.1).abs() < 1e-9);
    }
}
