//! The device half under the simulator's order and time: the engine's core ([`EngineCore`](tapetum_drive::engine::EngineCore)) with its
//! arbiter. Units take tasks in any order, return late or never, or die.
//!
//! ```text
//! pipelines drawn ─► core ─► tasks ─► simulated units ─► core ─► ends ─► judged
//!                             └ late, hung, dead; flash that fails; cancels; deadlines
//! ```
//! Checked after each step:
//! 1. An accepted pipeline ends once, in a way that its history allows. Its bytes are those that its stages give on the host.
//! 2. A sub-buffer has one holder, which may be a unit whose pipeline has ended.
//! 3. While a pipeline is in flight, some task runs or can start.
//! 4. Reservations stay within the sub-buffers that exist. At the end nothing is held, reserved or in quarantine.
//! 5. A lent buffer comes back once, when no command has it, with the bytes that its command makes ([`commands`]).
//! 6. In a batch, a reader of a result kept by the batch ends like the result's maker. `Cancel` reports as many pipelines as end cancelled.
//!    Whenever the power fails, the bytes of durable sinks that were reported are there ([`computes`]).
//! 7. Applications that always have work get unit time by their weights, and each is served again and again.
//!
//! One seed decides one run. Nothing here depends on how the arbiter decides.

mod asking;
mod commands;
mod computes;
mod pipelines;
mod shares;
mod units;
mod world;

use crate::bugs::{Bug, with_bug};
use crate::run::caught;
use pipelines::{DrawnPipeline, DrawnSource, SimKept, all_programs, program_named};
use std::collections::BTreeMap;
use std::fmt;
use tapetum_drive::arbiter::UnitCount;
use tapetum_drive::engine::EngineOptions;
use tapetum_drive::{PipelineResult, SplitMix64};
use world::{DeviceWorld, FaultRates, SUB_BUFFER_BYTES};

/// The most runs within which a planted bug must show.
pub const RUNS_PER_BUG_MAX: u64 = 200;
/// One seed in so many measures shares without faults; others run single commands, or batches of pipelines.
const SHARES_EVERY: u64 = 8;
const COMMANDS_EVERY: u64 = 4;
const COMPUTES_EVERY: u64 = 4;
/// Steps of commands, which are short, for each step of pipelines.
const COMMAND_STEPS: u64 = 8;
const COMPUTE_STEPS: u64 = 2;
const APPLICATIONS: u64 = 3;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceSetup {
    pub seed: u64,
    /// Steps in which pipelines are submitted. Afterwards, the ones in flight run to their end.
    pub steps: u64,
    pub bug: Option<Bug>,
}

impl DeviceSetup {
    pub fn new(seed: u64) -> DeviceSetup {
        DeviceSetup { seed, steps: 300, bug: None }
    }
}

/// Counts of a run's events, and of the ends of its pipelines.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct DeviceTally {
    pub runs: u64,
    pub accepted: u64,
    /// Single commands of queue pairs.
    pub commands: u64,
    /// Refused pipelines and commands.
    pub refused: u64,
    pub cancelled: u64,
    pub late: u64,
    pub hung: u64,
    pub died: u64,
    pub flash_failed: u64,
    /// By the text of the failure, or of success.
    pub ends: BTreeMap<String, u64>,
}

impl DeviceTally {
    fn ended(&mut self, result: &PipelineResult) {
        let name = match result {
            PipelineResult::Finished { .. } => "Finished".to_owned(),
            PipelineResult::Failed(failure) => format!("{:?}", failure.reason),
        };
        *self.ends.entry(name).or_default() += 1;
    }

    fn merge(&mut self, other: &DeviceTally) {
        let pairs = self.faults_mut().into_iter().zip(other.faults());
        pairs.for_each(|(sum, (_, count))| *sum += count);
        (self.runs, self.accepted) = (self.runs + other.runs, self.accepted + other.accepted);
        self.commands += other.commands;
        for (name, count) in &other.ends {
            *self.ends.entry(name.clone()).or_default() += count;
        }
    }

    fn faults_mut(&mut self) -> [&mut u64; 6] {
        let DeviceTally { refused, cancelled, late, hung, died, flash_failed, .. } = self;
        [refused, cancelled, late, hung, died, flash_failed]
    }

    /// Each count with its name.
    pub fn faults(&self) -> [(&'static str, u64); 6] {
        [
            ("refused", self.refused),
            ("pipelines cancelled", self.cancelled),
            ("tasks late", self.late),
            ("tasks beyond their deadline", self.hung),
            ("units dead", self.died),
            ("flash errors", self.flash_failed),
        ]
    }
}

impl fmt::Display for DeviceTally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let faults = self.faults().map(|(name, count)| format!("{count} {name}")).join(", ");
        let ends: Vec<String> = self.ends.iter().map(|(name, count)| format!("{name} {count}")).collect();
        let DeviceTally { runs, accepted, commands, .. } = self;
        write!(
            f,
            "{accepted} pipelines and {commands} commands of {runs} runs; {faults}\nends of pipelines: {}",
            ends.join(", ")
        )
    }
}

/// The outcome of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceOutcome {
    pub tally: DeviceTally,
    pub trace_hash: u64,
    pub failure: Option<String>,
}

/// The outcome of a run that did not panic.
type Ended = (DeviceTally, u64, Result<(), String>);

pub fn run(setup: &DeviceSetup) -> DeviceOutcome {
    let ended = caught(|| run_seed(setup));
    let (tally, trace_hash, failure) = match ended {
        Ok((tally, trace_hash, done)) => (tally, trace_hash, done.err()),
        Err(panic) => (DeviceTally::default(), 0, Some(panic)),
    };
    DeviceOutcome { tally: DeviceTally { runs: 1, ..tally }, trace_hash, failure }
}

/// Each kind of run plants only the bugs that it can show. With a bug of the arbiter below it, a queue pair would panic while it is
/// dropped, which would end the process.
fn run_seed(setup: &DeviceSetup) -> Ended {
    let bug_among = |bugs: &[Bug]| setup.bug.filter(|bug| bugs.contains(bug));
    let of_arbiter = setup.bug.filter(|bug| !["LeaseInFlight", "LostKick", "SinkNotDurable"].contains(bug));
    match setup.seed {
        seed if seed.is_multiple_of(SHARES_EVERY) => {
            with_bug(of_arbiter, || in_world(shares::world(setup), shares::run))
        }
        seed if seed.is_multiple_of(COMMANDS_EVERY) => with_bug(bug_among(&["LeaseInFlight", "LostKick"]), || {
            let mut world = commands::CommandWorld::new(setup);
            let done = world.run(setup.steps * COMMAND_STEPS);
            (world.tally.clone(), world.trace_hash(), done)
        }),
        seed if seed % COMPUTES_EVERY == 1 => with_bug(bug_among(&["SinkNotDurable"]), || {
            let mut world = computes::ComputeWorld::new(setup);
            let done = world.run(setup.steps * COMPUTE_STEPS);
            (world.tally.clone(), world.trace_hash(), done)
        }),
        _ => with_bug(of_arbiter, || in_world(mixed_world(setup), |world| mixed(world, setup))),
    }
}

fn in_world(mut world: DeviceWorld, run: impl FnOnce(&mut DeviceWorld) -> Result<(), String>) -> Ended {
    let done = run(&mut world);
    (world.tally.clone(), world.trace_hash, done)
}

/// Runs seeds from the first one on until one fails. Returns the sum of their outcomes, and the last seed.
pub fn run_all(first: &DeviceSetup, runs: u64) -> (DeviceOutcome, u64) {
    let mut all = DeviceOutcome { tally: DeviceTally::default(), trace_hash: 0, failure: None };
    for number in 0..runs {
        let seed = first.seed.wrapping_add(number);
        let outcome = run(&DeviceSetup { seed, ..*first });
        all.tally.merge(&outcome.tally);
        all.trace_hash = all.trace_hash.rotate_left(1) ^ outcome.trace_hash;
        if outcome.failure.is_some() {
            return (DeviceOutcome { failure: outcome.failure, ..all }, seed);
        }
    }
    (all, first.seed)
}

/// Runs seed after seed until a planted bug shows. Returns the number of runs, and the failure.
pub fn hunt(first: &DeviceSetup, bug: Bug) -> (u64, Option<String>) {
    let setup = DeviceSetup { bug: Some(bug), ..*first };
    let (outcome, _) = run_all(&setup, RUNS_PER_BUG_MAX);
    (outcome.tally.runs, outcome.failure)
}

/// Some programs have their own units; one more unit runs the others.
fn mixed_world(setup: &DeviceSetup) -> DeviceWorld {
    let mut random = SplitMix64::new(setup.seed);
    let programs = all_programs();
    let mut units = Vec::new();
    for program in programs.iter().filter(|program| program.descriptor().is_stream) {
        if random.one_in(2) {
            let program = program_named(&programs, program.descriptor().name);
            units.push(UnitCount { program, units: 1 + random.below(3) as u16 });
        }
    }
    let options = EngineOptions {
        units,
        weights: (0..APPLICATIONS).map(|_| 1 + random.below(4) as u32).collect(),
        sub_buffers: 6 + random.below(18) as u16,
        sub_buffer_bytes: SUB_BUFFER_BYTES,
        pipelines_max: 4 + random.below(12) as usize,
        ..EngineOptions::default()
    };
    let mut world = DeviceWorld::new(setup, options, 1 + random.below(4));
    let often = |random: &mut SplitMix64, of: u64| if random.one_in(4) { 0 } else { of };
    world.rates = FaultRates {
        late: often(&mut random, 12),
        hangs: often(&mut random, 8),
        dies: often(&mut random, 300),
        dies_idle: often(&mut random, 200),
        flash_fails: often(&mut random, 60),
        short_sink: 20,
    };
    world
}

/// Pipelines of all shapes, with every kind of fault.
fn mixed(world: &mut DeviceWorld, setup: &DeviceSetup) -> Result<(), String> {
    for _ in 0..setup.steps {
        for _ in 0..world.random.below(3) {
            // Sometimes one more than the last application.
            let application = if world.random.one_in(100) { APPLICATIONS } else { world.random.below(APPLICATIONS) };
            let drawn = if world.random.one_in(6) {
                let (id, stays) = (world.random.below(asking::KEPT), world.random.one_in(2));
                let kept = world.kept.get(&id).map(SimKept::bytes).unwrap_or_default();
                let source = DrawnSource::Kept { id, stays };
                DrawnPipeline::over(&mut world.random, &world.bytes.programs, source, kept)
            } else {
                DrawnPipeline::draw(&mut world.random, &world.bytes.programs)
            };
            let has_deadline = world.random.one_in(3);
            let deadline_us = has_deadline.then(|| world.now_us + world.random.below(8000));
            world.submit(drawn, application as u16, deadline_us)?;
        }
        world.step()?;
        if world.random.one_in(20) {
            world.cancel_one()?;
        }
        world.lose_idle_unit()?;
    }
    world.settle()
}
