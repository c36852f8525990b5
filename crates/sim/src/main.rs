//! `tapetum-sim`: runs seeds, counts crashes and faults, and reports what was wrong.

use clap::Parser;
use std::process::ExitCode;
use tapetum_sim::bugs::{Bug, OF_DEVICE, OF_LEASE, OF_STORE};
use tapetum_sim::device::{self, DeviceSetup};
use tapetum_sim::failed::FAILED;
use tapetum_sim::hunt::{CRASHES, Found, exhaust, explain, hunt_all, load_for, run_until, shows_in_cases, shrink};
use tapetum_sim::lease::{self, LeaseSetup};
use tapetum_sim::{Load, Setup, exhaustive};

/// In so many points, every state must have been struck at least once.
const POINTS_PER_STRIKE: u64 = 50;
const RUNS_PER_BUG_MAX: u64 = 400;

/// Runs the store on a drive that crashes and fails, beside a model of what it may answer.
#[derive(Parser)]
#[command(name = "tapetum-sim", version)]
struct Arguments {
    /// The first seed; later runs count up from it.
    #[arg(default_value_t = 1)]
    seed: u64,
    /// Runs, one a seed.
    #[arg(long, default_value_t = 1)]
    runs: u64,
    /// Crashes, after which a run ends.
    #[arg(long, default_value_t = CRASHES)]
    crashes: u32,
    /// Operations, after which a run ends.
    #[arg(long, default_value_t = u64::MAX)]
    operations: u64,
    /// After each crash, so many copies of the store meet one of the other faults each.
    #[arg(long, default_value_t = 1)]
    troubles: u64,
    /// For each crash, judge so many more outcomes.
    #[arg(long, default_value_t = 2)]
    twins: u32,
    /// Sessions at most, and keys, and steps between two crashes: to make a failure smaller.
    #[arg(long, default_value_t = 3)]
    sessions: u64,
    #[arg(long, default_value_t = 1000)]
    keys: u64,
    #[arg(long, default_value_t = 5000)]
    steps: u64,
    /// The load of all runs, in place of the loads that their seeds decide.
    #[arg(long)]
    load: Option<Load>,
    /// Makes no backups.
    #[arg(long)]
    without_backups: bool,
    /// Puts the boundary of processes between store and drive.
    #[arg(long)]
    across: bool,
    /// Tries every sequence of at most three operations, every moment to fail at, and what may survive of it; with `--load ordered` those of
    /// ordered keyspaces alone.
    #[arg(long)]
    exhaustive: bool,
    /// With `--exhaustive`: of the sequences of three operations only one in so many, drawn by the seed.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    one_in: u64,
    /// Runs what once failed (failed.rs).
    #[arg(long)]
    failed: bool,
    /// Runs the device half alone: pipelines over units that come back late or never, or die; `--runs` seeds of it.
    #[arg(long)]
    device: bool,
    /// Runs the lease of a depot alone, with several holders that are paused anywhere; `--runs` seeds of it.
    #[arg(long)]
    lease: bool,
    /// Runs seeds until so many crashes have lost or torn a command in flight; fails if a state was struck by less than
    /// a fiftieth of them.
    #[arg(long)]
    points: Option<u64>,
    /// Fails if a fault struck less often.
    #[arg(long, default_value_t = 0)]
    each_fault: u64,
    /// Plants one bug after the other; fails if one is not caught.
    #[arg(long)]
    planted: bool,
    /// Plants only bugs with this in their name; if it is one, tells how it was caught.
    #[arg(long)]
    only: Option<String>,
    #[arg(long, default_value_t = 2)]
    threads: usize,
}

impl Arguments {
    fn setup(&self) -> Setup {
        Setup {
            operations_max: self.operations,
            troubles: self.troubles,
            twins: self.twins,
            sessions_max: self.sessions,
            keys_max: self.keys,
            life_steps_max: self.steps,
            load: self.load,
            backups: !self.without_backups,
            across: self.across,
            ..Setup::new(self.seed, self.crashes)
        }
    }

    /// Those of these bugs that are to be planted.
    fn wanted(&self, bugs: &[(Bug, &str)]) -> Vec<Bug> {
        let only = self.only.as_deref().unwrap_or_default();
        bugs.iter().map(|(bug, _)| *bug).filter(|bug| bug.contains(only)).collect()
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // A panic of the store is a finding, which is reported with its seed.
    tapetum_sim::run::keep_panics_quiet();
    let holds = match arguments {
        Arguments { failed: true, .. } => failed(),
        Arguments { exhaustive: true, .. } => exhaustive(&arguments),
        Arguments { planted: true, device: true, .. } => planted_in_device(&arguments),
        Arguments { planted: true, lease: true, .. } => planted_in_lease(&arguments),
        Arguments { planted: true, .. } => {
            planted(&arguments) & planted_in_device(&arguments) & planted_in_lease(&arguments)
        }
        Arguments { device: true, .. } => device(&arguments),
        Arguments { lease: true, .. } => lease(&arguments),
        _ => clean(&arguments),
    };
    if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn clean(arguments: &Arguments) -> bool {
    let setup = arguments.setup();
    let enough = |found: &Found| match arguments.points {
        Some(points) => found.tally.points() >= points,
        None => found.runs >= arguments.runs,
    };
    let found = match (arguments.points, arguments.runs) {
        (None, 1) => one(&setup),
        _ => run_until(&setup, arguments.threads, enough),
    };
    println!("{}", found.tally);
    println!("{} runs from seed {}, trace hash {:016x}", found.runs, arguments.seed, found.trace_hash);
    if let Some(failure) = &found.failure {
        let least = shrink(failure, &setup);
        println!("\nFAILED: {}", explain(failure, &least));
        println!("\n{}", command_line(&least));
        return false;
    }
    let (name, struck) = found.tally.rarest_fault();
    if struck < arguments.each_fault {
        println!("\nFAILED: only {struck} times {name}; {} were wanted", arguments.each_fault);
        return false;
    }
    let wanted = arguments.points.map_or(0, |points| points / POINTS_PER_STRIKE);
    let (name, struck) = found.tally.rarest_state();
    if struck < wanted {
        println!("\nFAILED: only {struck} crashes struck in {name}; {wanted} were wanted");
        return false;
    }
    println!("nothing lost, invented or half done");
    true
}

fn failed() -> bool {
    let failing = FAILED.iter().filter_map(|once| {
        let setup = once.setup();
        let failure = tapetum_sim::run(&setup).failure?;
        println!("FAILED again ({}): {}\n\n{}\n", once.what, explain(&failure, &setup), command_line(&setup));
        Some(())
    });
    let count = failing.count();
    println!("{} runs that once failed: {count} fail", FAILED.len());
    count == 0
}

fn device(arguments: &Arguments) -> bool {
    let (outcome, seed) = device::run_all(&DeviceSetup::new(arguments.seed), arguments.runs);
    println!("{}\ntrace hash {:016x}", outcome.tally, outcome.trace_hash);
    if let Some(what) = &outcome.failure {
        println!("\nFAILED: seed {seed}: {what}\n\ncargo run -p tapetum-sim -- {seed} --device");
        return false;
    }
    if let Some((name, struck)) = outcome.tally.faults().into_iter().find(|(_, struck)| *struck < arguments.each_fault)
    {
        println!("\nFAILED: only {struck} {name}; {} were wanted", arguments.each_fault);
        return false;
    }
    println!("every pipeline ended once, as it should");
    true
}

/// Like [`planted`], for the device half.
fn planted_in_device(arguments: &Arguments) -> bool {
    let bugs = arguments.wanted(OF_DEVICE);
    let mut missed = 0;
    for bug in &bugs {
        let (runs, failure) = device::hunt(&DeviceSetup::new(arguments.seed), bug);
        missed += usize::from(failure.is_none());
        tell(bug, &format!("{runs} runs"), failure.as_deref());
    }
    println!("{missed} of {} planted bugs of the device half were not caught", bugs.len());
    missed == 0
}

fn lease(arguments: &Arguments) -> bool {
    let (tally, runs, failure) = lease::run_all(&LeaseSetup { seed: arguments.seed, bug: None }, arguments.runs);
    println!("{runs} runs: {tally}");
    if let Some(what) = &failure {
        let seed = arguments.seed + runs - 1;
        println!("\nFAILED: seed {seed}: {what}\n\ncargo run -p tapetum-sim -- {seed} --lease");
    }
    failure.is_none()
}

/// Like [`planted`], for the lease.
fn planted_in_lease(arguments: &Arguments) -> bool {
    let bugs = arguments.wanted(OF_LEASE);
    let mut missed = 0;
    for bug in &bugs {
        let setup = LeaseSetup { seed: arguments.seed, bug: Some(bug) };
        let (_, runs, failure) = lease::run_all(&setup, lease::RUNS_PER_BUG_MAX);
        missed += usize::from(failure.is_none());
        tell(bug, &format!("{runs} runs"), failure.as_deref());
    }
    println!("{missed} of {} planted bugs of the lease were not caught", bugs.len());
    missed == 0
}

/// The command that reproduces a failure.
fn command_line(setup: &Setup) -> String {
    let Setup { seed, crashes_max, operations_max, troubles, twins, sessions_max, keys_max, life_steps_max, .. } =
        setup;
    let load = setup.load.map(|load| format!(" --load {}", format!("{load:?}").to_lowercase())).unwrap_or_default();
    let backups = if setup.backups { "" } else { " --without-backups" };
    let across = if setup.across { " --across" } else { "" };
    format!(
        "cargo run -p tapetum-sim -- {seed} --crashes {crashes_max} --operations {operations_max} --troubles {troubles} \
         --twins {twins} --sessions {sessions_max} --keys {keys_max} --steps {life_steps_max}{load}{backups}{across}"
    )
}

fn exhaustive(arguments: &Arguments) -> bool {
    let cases = match arguments.load {
        Some(Load::Ordered) => exhaustive::ordered_cases(),
        _ => exhaustive::cases_drawn(arguments.one_in, arguments.seed),
    };
    let (count, failure) = exhaust(cases, None, arguments.threads);
    println!(
        "{} cases, {} moments to fail at, {} outcomes of up to eight sectors in doubt, {} of more",
        count.cases, count.cuts, count.outcomes, count.outcomes_of_many
    );
    match &failure {
        Some(failure) => println!("\nFAILED: {failure}"),
        None => println!("nothing lost, invented or half done"),
    }
    failure.is_none()
}

fn one(setup: &Setup) -> Found {
    let outcome = tapetum_sim::run(setup);
    Found { tally: outcome.tally, runs: 1, trace_hash: outcome.trace_hash, failure: outcome.failure }
}

fn planted(arguments: &Arguments) -> bool {
    if !cfg!(debug_assertions) {
        // Some bugs show only in the store's own assertions. Without them, such a run never ends.
        eprintln!("planted bugs are looked for with assertions on: cargo run -p tapetum-sim -- --planted");
        return false;
    }
    let bugs = arguments.wanted(OF_STORE);
    let found = hunt_all(&arguments.setup(), &bugs, RUNS_PER_BUG_MAX, arguments.threads, tell_hunt);
    if let [(bug, Found { failure: Some(failure), .. })] = &found[..]
        && !shows_in_cases(bug)
    {
        let setup = Setup { seed: failure.seed, bug: Some(*bug), load: load_for(bug), ..arguments.setup() };
        println!("{}", explain(failure, &setup));
    }
    let missed = found.iter().filter(|(_, found)| found.failure.is_none()).count();
    println!("{missed} of {} planted bugs were not caught", bugs.len());
    missed == 0
}

fn tell_hunt(bug: Bug, found: &Found) {
    let seed = found.failure.as_ref().map_or(String::new(), |failure| format!(", at seed {}", failure.seed));
    let effort = format!("{} runs, {} points{seed}", found.runs, found.tally.points());
    tell(bug, &effort, found.failure.as_ref().map(|failure| failure.what.as_str()));
}

fn tell(bug: Bug, effort: &str, failure: Option<&str>) {
    match failure {
        Some(what) => {
            let first = what.lines().next().unwrap_or_default();
            let short: String = first.chars().take(100).collect();
            println!("{bug:<22} caught after {effort}: {short}");
        }
        None => {
            let what = OF_STORE
                .iter()
                .chain(OF_DEVICE)
                .chain(OF_LEASE)
                .find(|(name, _)| *name == bug)
                .map_or("", |(_, what)| what);
            println!("{bug:<22} NOT CAUGHT in {effort}: {what}");
        }
    }
}
