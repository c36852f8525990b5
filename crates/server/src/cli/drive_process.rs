//! `tapetum drive`: the drive alone, a process that knows no keyspaces, for the stores of other processes.

use crate::cli::commands::Outcome;
use crate::cli::ranges::{capacity, memory};
use crate::cli::serve_arguments::weight;
use crate::logging::Log;
use crate::os;
use clap::Args;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use tapetum::when_free;
use tapetum_drive::serving::{COMMANDS_AT_ONCE, Serving, ServingOptions};
use tapetum_drive::{Env, FileFlash, Flash, IoEngine, Size};

#[derive(Debug, Args)]
pub struct DriveArguments {
    /// Its flash: a file, which is made with --capacity, or a block device, whose beginning is zeros; each one more is a namespace
    #[arg(long, value_name = "FILE|DEV", required = true)]
    file: Vec<PathBuf>,
    /// Stores find it here, by --drive: a path that ends with .sock, and is its owner's alone
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// Bytes of each file that is not there yet; they are reserved at once
    #[arg(long, value_name = "SIZE", value_parser = capacity)]
    capacity: Option<u64>,
    /// Local memory of all stores together
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = memory)]
    memory: u64,
    /// Look so often for commands before sleeping: sooner answers, for processor time
    #[arg(long, value_name = "N", default_value_t = 0)]
    polls: u32,
    /// Let stores of other users have partitions too, each its own user's; run the drive as root then, whom all of them trust
    #[arg(long)]
    any_user: bool,
    /// Copy results to every store, rather than let those of the drive's own user read local memory
    #[arg(long)]
    copy_results: bool,
    /// Stores by their partitions, and their weights, by which the drive is divided while it is loaded: NAME=WEIGHT, 1 to 1024, with commas between; others have 1
    #[arg(long, value_name = "WEIGHTS", value_delimiter = ',', value_parser = weight_of_partition)]
    weight: Vec<(String, u32)>,
    /// Commands on their way, of all stores, from which on the drive counts as loaded
    #[arg(long, value_name = "N", default_value_t = COMMANDS_AT_ONCE, value_parser = clap::value_parser!(u32).range(1..=65536))]
    commands: u32,
}

fn weight_of_partition(text: &str) -> Result<(String, u32), String> {
    let (name, weight) = weight(text)?;
    if !(1..=1024).contains(&weight) {
        return Err(format!("a weight of {weight}: give 1 to 1024"));
    }
    Ok((name, weight))
}

/// Serves until a signal comes. A log that nobody reads does not block it.
pub fn run(arguments: &DriveArguments, level: tracing::Level) -> ExitCode {
    // In this order, because the log's thread must not take the signals.
    let started = os::termination_signals().and_then(|signals| Ok((signals, Log::of_server(level)?)));
    let (signals, mut log) = match started {
        Ok(started) => started,
        Err(error) => {
            // If standard error cannot be written, the exit status reports the error.
            let _ = writeln!(std::io::stderr(), "error: the system refused a descriptor or a thread: {error}");
            return ExitCode::FAILURE;
        }
    };
    let outcome = serve(arguments, signals.as_fd());
    if let Err(error) = &outcome {
        log.say(&format!("error: {error}\n"));
    }
    log.end();
    if outcome.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn serve(arguments: &DriveArguments, signals: BorrowedFd<'_>) -> Outcome {
    // It has what its servers store, some of which hide their memory too.
    os::hide_memory()?;
    let env = Env::system();
    let flash = |path: &PathBuf| open(path, arguments.capacity, &env);
    let namespaces = arguments.file.iter().map(flash).collect::<Result<Vec<_>, _>>()?;
    namespaces.iter().for_each(|flash| tracing::info!("{}: {}", flash.describe(), Size(flash.capacity_bytes())));
    let options = ServingOptions {
        polls: arguments.polls,
        copies_results: arguments.copy_results,
        any_user: arguments.any_user,
        commands_at_once: arguments.commands,
        weights: arguments.weight.clone(),
        ..ServingOptions::new(arguments.socket.clone(), arguments.memory)
    };
    let serving = Serving::start(namespaces, &options, &env)?;
    for (name, bytes) in serving.partitions() {
        tracing::info!("partition {name}: {}", Size(bytes));
    }
    tracing::info!("stores find the drive at {}", arguments.socket.display());
    serving.run(signals)?;
    Ok(())
}

fn open(path: &Path, capacity: Option<u64>, env: &Env) -> Result<Arc<dyn Flash>, String> {
    let flash = match (path.exists(), capacity) {
        (true, _) => when_free(|| FileFlash::open(path, IoEngine::Auto, env)),
        (false, Some(bytes)) => FileFlash::create(path, bytes, IoEngine::Auto, env),
        (false, None) => return Err(format!("{} is not there: give --capacity, and it is made", path.display())),
    };
    Ok(Arc::new(flash.map_err(|error| error.to_string())?))
}
