//! `tapetum-sim`: runs seeds, counts the crashes, and says what was wrong.

use clap::Parser;
use std::process::ExitCode;
use tapetum::planted::ALL;
use tapetum_sim::hunt::{Found, explain, hunt, run_until};

/// Points out of which every state must be struck once, at least.
const POINTS_PER_STRIKE: u64 = 20;
const RUNS_PER_BUG_MAX: u64 = 400;

/// Runs the store on a drive that crashes, beside a model of what it may answer.
#[derive(Parser)]
#[command(name = "tapetum-sim", version)]
struct Arguments {
    /// The first seed; later runs count up from it.
    #[arg(default_value_t = 1)]
    seed: u64,
    /// Runs, of two dozen crashes each.
    #[arg(long, default_value_t = 1)]
    runs: u64,
    /// Runs seeds until so many crashes have lost or torn a command in flight; fails if a state was struck by less than
    /// a twentieth of them.
    #[arg(long)]
    points: Option<u64>,
    /// Plants one bug after the other; fails if one is not caught.
    #[arg(long)]
    planted: bool,
    /// Plants only bugs with this in their name.
    #[arg(long)]
    only: Option<String>,
    #[arg(long, default_value_t = 2)]
    threads: usize,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // A panic of the store is a finding, reported with its seed.
    tapetum_sim::run::keep_panics_quiet();
    let holds = if arguments.planted { planted(&arguments) } else { clean(&arguments) };
    if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn clean(arguments: &Arguments) -> bool {
    let enough = |found: &Found| match arguments.points {
        Some(points) => found.tally.points() >= points,
        None => found.runs >= arguments.runs,
    };
    let found = match (arguments.points, arguments.runs) {
        (None, 1) => one(arguments.seed),
        _ => run_until(arguments.seed, arguments.threads, None, enough),
    };
    println!("{}", found.tally);
    println!("{} runs from seed {}, trace hash {:016x}", found.runs, arguments.seed, found.trace_hash);
    if let Some(failure) = &found.failure {
        println!("\nFAILED: {}", explain(failure, None));
        return false;
    }
    let Some(points) = arguments.points else { return true };
    let (name, struck) = found.tally.rarest();
    if struck < points / POINTS_PER_STRIKE {
        println!("\nFAILED: only {struck} crashes struck in {name}; {} were wanted", points / POINTS_PER_STRIKE);
        return false;
    }
    println!("nothing lost, invented or half done");
    true
}

fn one(seed: u64) -> Found {
    let setup = tapetum_sim::Setup { seed, crashes: tapetum_sim::hunt::CRASHES, bug: None, record_events: false };
    let outcome = tapetum_sim::run(&setup);
    Found { tally: outcome.tally, runs: 1, trace_hash: outcome.trace_hash, failure: outcome.failure }
}

fn planted(arguments: &Arguments) -> bool {
    let mut missed = 0;
    for &bug in
        ALL.iter().filter(|bug| arguments.only.as_ref().is_none_or(|only| format!("{bug:?}").contains(only.as_str())))
    {
        let name = format!("{bug:?}");
        let found = hunt(arguments.seed, bug, RUNS_PER_BUG_MAX);
        let effort = format!("{} runs, {} points", found.runs, found.tally.points());
        match &found.failure {
            Some(failure) => {
                let first = failure.what.lines().next().unwrap_or_default();
                let short: String = first.chars().take(100).collect();
                println!("{name:<18} caught after {effort}: {short}");
            }
            None => {
                println!("{name:<18} NOT CAUGHT in {effort}");
                missed += 1;
            }
        }
    }
    println!("{missed} planted bugs were not caught");
    missed == 0
}
