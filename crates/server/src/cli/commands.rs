//! Takes the command line and does what it says. Errors go to standard error and say what to do;
//! the exit status is 0, 1 after one, or 2 if the command line makes no sense.

use std::error::Error;
use std::fs;
use std::io::{self, IsTerminal, Read, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use clap::error::ErrorKind;
use tapetum::{Options, Place};

use super::serve;
use crate::cli::arguments::{Cli, Command, ResizeArguments, StoreArguments};
use crate::cli::pipeline_arguments::PipelineCommand;
use crate::logging;
use crate::net::listen::Address;
use crate::store::store_open::{self, OpenError};
use crate::tools::item_lines::Format;
use crate::tools::load::{Existing, StoreSink, WireSink};
use crate::tools::pipelines::PipelineRun;
use crate::tools::remote::{self, Remote};
use crate::tools::warm::{self, Source};
use crate::tools::{inspect, inspect_lines, list, load, pipelines, repair};
use crate::{os, size, stats};

/// Memory to open a store with that is to grow: the index of a large one.
const GROW_MEMORY_BYTES: u64 = 1 << 30;

pub(super) type Outcome = Result<(), Box<dyn Error>>;

/// The whole process.
pub fn main() -> ExitCode {
    os::return_freed_memory();
    os::ignore_file_size_signal();
    match parse_command_line().command {
        Command::Serve(arguments) => serve::run(&arguments),
        command => {
            logging::of_command();
            match run(command) {
                Ok(()) => ExitCode::SUCCESS,
                // Whoever read the output has seen enough of it, as with `| head`.
                Err(error)
                    if error
                        .downcast_ref::<io::Error>()
                        .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe) =>
                {
                    ExitCode::SUCCESS
                }
                Err(error) => {
                    // Where nobody listens, the status alone must do.
                    let _ = writeln!(std::io::stderr(), "error: {error}");
                    ExitCode::FAILURE
                }
            }
        }
    }
}

fn parse_command_line() -> Cli {
    Cli::try_parse().unwrap_or_else(|error| {
        let begins_with_option = std::env::args().nth(1).is_some_and(|word| word.starts_with("--"));
        if error.kind() == ErrorKind::UnknownArgument && begins_with_option {
            // Where nobody listens, the status alone must do.
            let _ =
                writeln!(std::io::stderr(), "tip: options follow a command; a server is started by `tapetum serve`\n");
        }
        error.exit()
    })
}

/// Does what needs no server of its own.
fn run(command: Command) -> Outcome {
    match command {
        Command::Serve(_) => unreachable!("it has a log of its own"),
        Command::Put { key, value, store } => put(&key, &value, &store),
        Command::Get { key, store } => get(&key, &store),
        Command::Delete { key, store } => delete(&key, &store),
        Command::Stats { json, memcached: Some(address), .. } => {
            Remote::memcached(&address).stats("").map_err(Box::from).and_then(|lines| print_stats(&lines, json))
        }
        Command::Stats { json, memcached: None, store } => offline_stats(json, &store),
        Command::Programs => print(pipelines::list()?.as_bytes()),
        Command::Pipeline(PipelineCommand::Run { pipeline, key, file, compute_units, pin, stats, store }) => {
            let source = (key.as_deref(), file.as_deref());
            let ran = run_pipeline(&pipeline, source, (&compute_units, pin), &store)?;
            if stats {
                eprint!("{}", pipelines::stage_lines(&ran.stages));
            }
            print(&ran.bytes)
        }
        Command::Load { file, format, skip_bad, memcached, store } => {
            let file = file.filter(|path| path.as_os_str() != "-");
            load(file.as_deref(), format, skip_bad, memcached.as_ref(), &store)
        }
        Command::Warm { from, memcached, store } => warm(&from, memcached.as_ref(), &store),
        Command::List { prefix, long, store } => {
            read_store(&store, |opened| Ok(list::list(opened, prefix.as_bytes(), long, &mut std::io::stdout())?))
        }
        Command::Dump { prefix, format, skip_bad: true, store } => {
            check_memory(store.memory)?;
            let from = (&store.place(), &offline_options(&store, false));
            repair::dump(from, (prefix.as_bytes(), format), &mut std::io::stdout(), &mut std::io::stderr())
        }
        Command::Dump { prefix, format, skip_bad: false, store } => {
            read_store(&store, |opened| Ok(list::dump(opened, prefix.as_bytes(), format, &mut std::io::stdout())?))
        }
        Command::Inspect { key: Some(key), json, memcached, store, .. } => {
            inspect_key(&key, json, memcached.as_ref(), &store)
        }
        Command::Inspect { key: None, map, watch, json, memcached, store } => {
            let every = watch.map(|seconds| Duration::from_secs(u64::from(seconds)));
            inspect_all(map, every, json, memcached.as_ref(), &store)
        }
        Command::Resize(arguments) => resize(&arguments),
        Command::Check { store } => check(&store),
        Command::Repair(arguments) => {
            check_memory(arguments.store.memory)?;
            repair::run(&arguments, &offline_options(&arguments.store, false))
        }
    }
}

pub(super) fn offline_options(arguments: &StoreArguments, create: bool) -> Options {
    Options { capacity_bytes: arguments.capacity, memory_bytes: arguments.memory, create, ..Options::new() }
}

/// Runs `work` on the store without a server, and closes it.
fn with_store<R>(
    arguments: &StoreArguments,
    options: Options,
    work: impl FnOnce(&tapetum::Store) -> Result<R, Box<dyn Error>>,
) -> Result<R, Box<dyn Error>> {
    check_memory(arguments.memory)?;
    let place = arguments.place();
    let store = store_open::open(&place, &options)?;
    let result = work(&store).map_err(|error| of_store(&place, error));
    let closed = store.close();
    // What went wrong first says more.
    let result = result?;
    closed.map_err(|error| of_store(&place, error.into()))?;
    Ok(result)
}

/// Runs `work` on the store without a server, and leaves it as it is.
fn read_store<R>(
    arguments: &StoreArguments,
    work: impl FnOnce(&tapetum::Store) -> Result<R, Box<dyn Error>>,
) -> Result<R, Box<dyn Error>> {
    read_store_with(arguments, &offline_options(arguments, false), work)
}

fn read_store_with<R>(
    arguments: &StoreArguments,
    options: &Options,
    work: impl FnOnce(&tapetum::Store) -> Result<R, Box<dyn Error>>,
) -> Result<R, Box<dyn Error>> {
    check_memory(arguments.memory)?;
    let place = arguments.place();
    let store = options.open_read_only(place.clone()).map_err(OpenError::from)?;
    work(&store).map_err(|error| of_store(&place, error))
}

/// The error with the store's path, if it is the store's.
fn of_store(place: &Place, error: Box<dyn Error>) -> Box<dyn Error> {
    let path = place.path();
    let other = match error.downcast::<tapetum::Error>() {
        Ok(error) => return OpenError::of_store(path)(*error).into(),
        Err(other) => other,
    };
    match other.downcast::<list::ListError>().map(|error| *error) {
        Ok(list::ListError::Store(error)) => OpenError::of_store(path)(error).into(),
        Ok(error) => error.into(),
        Err(other) => other,
    }
}

fn load(
    file: Option<&Path>,
    format: Option<Format>,
    skip_bad: bool,
    memcached: Option<&Address>,
    arguments: &StoreArguments,
) -> Outcome {
    let loaded = match memcached {
        Some(address) => {
            let stream = Remote::memcached(address).connect()?;
            load::load(file, format, skip_bad, &mut WireSink::new(stream, Existing::Replace))?
        }
        None => {
            // Closing the store makes all of it durable, once.
            let options = Options { sync: tapetum::Sync::No, ..offline_options(arguments, true) };
            with_store(arguments, options, |store| {
                Ok(load::load(file, format, skip_bad, &mut StoreSink::new(store.session()?, Existing::Replace))?)
            })?
        }
    };
    let skipped = if skip_bad { format!(", {} bad lines left out", loaded.bad_lines) } else { String::new() };
    // Where nobody listens, the status alone must do.
    let items = if loaded.items == 1 { "item" } else { "items" };
    let _ = writeln!(std::io::stderr(), "{} {items} stored{skipped}", loaded.items);
    Ok(())
}

fn warm(from: &Address, memcached: Option<&Address>, arguments: &StoreArguments) -> Outcome {
    let from = Remote::from(from);
    let count = || from.figure("curr_items");
    let source = Source { list: from.connect()?, values: from.connect()?, count: &count };
    let warmed = match memcached {
        Some(address) => {
            let stream = Remote::memcached(address).connect()?;
            warm::warm(source, &mut WireSink::new(stream, Existing::Keep))?
        }
        None => {
            // Closing the store makes all of it durable, once.
            let options = Options { sync: tapetum::Sync::No, ..offline_options(arguments, true) };
            with_store(arguments, options, |store| {
                Ok(warm::warm(source, &mut StoreSink::new(store.session()?, Existing::Keep))?)
            })?
        }
    };
    // Where nobody listens, the status alone must do.
    let _ = writeln!(std::io::stderr(), "{warmed}");
    Ok(())
}

fn inspect_key(key: &str, json: bool, memcached: Option<&Address>, arguments: &StoreArguments) -> Outcome {
    let lines = match memcached {
        // A space would end the word, a line end the command.
        Some(_) if key.bytes().any(|byte| byte <= b' ') => {
            return Err("a server is asked for keys without spaces and control characters only".into());
        }
        Some(address) => Remote::memcached(address).stats(&format!("inspect {key}"))?,
        None => read_store(arguments, |store| {
            Ok(inspect_lines::location_lines(&tapetum::locate(store, tapetum::KeyspaceRef::DEFAULT, key.as_bytes())?))
        })?,
    };
    print_stats(&lines, json)
}

fn inspect_all(
    map: bool,
    every: Option<Duration>,
    json: bool,
    memcached: Option<&Address>,
    arguments: &StoreArguments,
) -> Outcome {
    let ask = || -> Result<tapetum::Inspection, Box<dyn Error>> {
        match memcached {
            Some(address) => Ok(inspect_lines::from_lines(&Remote::memcached(address).stats("inspect")?)?),
            None => Ok(tapetum::inspect_at(&arguments.place()).map_err(OpenError::from)?),
        }
    };
    if map {
        return inspect::map(ask, every);
    }
    let inspection = ask()?;
    let text = match json {
        true => format!("{:#}\n", inspect::to_json(&inspection)),
        false => inspect::report(&inspection),
    };
    let mut out = std::io::stdout();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

fn resize(arguments: &ResizeArguments) -> Outcome {
    let mut out = std::io::stdout();
    for (what, bytes) in [("capacity", arguments.capacity), ("memory", arguments.memory)] {
        let Some(bytes) = bytes else { continue };
        match &arguments.memcached {
            Some(address) => {
                let answer = Remote::memcached(address).command(&format!("resize {what} {bytes}"))?;
                if answer != "OK" {
                    let why = answer.strip_prefix("SERVER_ERROR ").unwrap_or(&answer);
                    return Err(format!("{what} stays as it is: {why}").into());
                }
            }
            // The command line lets memory be said of a server only.
            None => grow(bytes, arguments)?,
        }
        writeln!(out, "{what} is {} now", size::shown(bytes))?;
    }
    Ok(())
}

fn grow(capacity_bytes: u64, arguments: &ResizeArguments) -> Outcome {
    let store = StoreArguments {
        data: arguments.data.clone(),
        drive: arguments.drive.clone(),
        capacity: None,
        memory: GROW_MEMORY_BYTES,
    };
    let grown = offline_options(&store, false).grow(&store.place(), capacity_bytes);
    Ok(grown.map_err(OpenError::from)?)
}

/// What the machine does not have cannot be given; found out in time, nothing is made.
pub(super) fn check_memory(memory_bytes: u64) -> Result<(), String> {
    let has_bytes = os::memory_bytes();
    if memory_bytes <= has_bytes {
        return Ok(());
    }
    let (wanted, has) = (size::shown(memory_bytes), size::shown(has_bytes));
    Err(format!("this machine has {has} of memory and swap, and {wanted} were asked for: give a smaller --memory"))
}

fn put(key: &str, value: &str, arguments: &StoreArguments) -> Outcome {
    let mut bytes = value.as_bytes().to_vec();
    if value == "-" {
        bytes.clear();
        std::io::stdin().read_to_end(&mut bytes)?;
    }
    with_store(arguments, offline_options(arguments, true), |store| Ok(store.put(key.as_bytes(), &bytes)?))?;
    Ok(())
}

fn get(key: &str, arguments: &StoreArguments) -> Outcome {
    let item = read_store(arguments, |store| Ok(store.get(key.as_bytes())?))?;
    let item = item.ok_or_else(|| not_found(key))?;
    let mut out = std::io::stdout();
    out.write_all(&item.value)?;
    if out.is_terminal() {
        out.write_all(b"\n")?;
    }
    Ok(out.flush()?)
}

/// An item by its key, or a file, through a pipeline.
fn run_pipeline(
    text: &str,
    (key, file): (Option<&str>, Option<&Path>),
    (compute_units, pin): (&[String], bool),
    arguments: &StoreArguments,
) -> Result<PipelineRun, Box<dyn Error>> {
    let bytes = match (key, file) {
        (_, Some(file)) if file == Path::new("-") => {
            let mut bytes = Vec::new();
            std::io::stdin().read_to_end(&mut bytes)?;
            bytes
        }
        (_, Some(file)) => fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?,
        (key, None) => {
            let key = key.unwrap_or_default();
            let units = pipelines::named_units(compute_units)?;
            let options = Options { compute_units: units, pin_units: pin, ..offline_options(arguments, false) };
            let ran = read_store_with(arguments, &options, |store| {
                pipelines::run_item(store, key, text, (compute_units, pin))
            })?;
            return ran.ok_or_else(|| not_found(key).into());
        }
    };
    Ok(pipelines::run(text, (compute_units, pin), &bytes)?)
}

fn print(bytes: &[u8]) -> Outcome {
    let mut out = std::io::stdout();
    out.write_all(bytes)?;
    Ok(out.flush()?)
}

fn delete(key: &str, arguments: &StoreArguments) -> Outcome {
    match with_store(arguments, offline_options(arguments, false), |store| Ok(store.delete(key.as_bytes())?))? {
        true => Ok(()),
        false => Err(not_found(key).into()),
    }
}

fn not_found(key: &str) -> String {
    format!("there is no key {key:?}")
}

fn offline_stats(json: bool, arguments: &StoreArguments) -> Outcome {
    let figures = read_store(arguments, |store| Ok(store.stats()))?;
    let lines: Vec<_> = stats::store_figures(&figures).into_iter().map(|one| (one.name.into(), one.value)).collect();
    print_stats(&lines, json)
}

fn print_stats(lines: &[(String, String)], json: bool) -> Outcome {
    let mut out = std::io::stdout();
    if json {
        writeln!(out, "{}", remote::json(lines))?;
    } else {
        for (name, value) in lines {
            writeln!(out, "{name} {value}")?;
        }
    }
    Ok(out.flush()?)
}

fn check(arguments: &StoreArguments) -> Outcome {
    let counts = store_open::check(&arguments.place(), &offline_options(arguments, false))?;
    let mut out = std::io::stdout();
    for (name, count) in counts {
        writeln!(out, "{name} {count}")?;
    }
    writeln!(out, "no damage found")?;
    Ok(out.flush()?)
}
