//! The binary `tapetum`: takes the command line and does what it says. Errors go to standard error and say what to do;
//! the exit status is 0, or 1 after one.

use std::error::Error;
use std::io::{IsTerminal, Read, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use tapetum_server::cli::{Cli, Command, ServeArguments, StoreArguments};
use tapetum_server::limits::Limits;
use tapetum_server::listen::Address;
use tapetum_server::protocol::VERSION;
use tapetum_server::server::{Options, Server};
use tapetum_server::store_open::{self, OpenError, OpenOptions};
use tapetum_server::tools::item_lines::Format;
use tapetum_server::tools::load::{StoreSink, WireSink};
use tapetum_server::tools::{list, load};
use tapetum_server::{os, remote, size, stats};

/// Descriptors beside the clients': store, sessions, listeners, logs.
const OTHER_FILES: u64 = 512;

type Outcome = Result<(), Box<dyn Error>>;

fn main() -> ExitCode {
    os::return_freed_memory();
    let cli = Cli::parse();
    // What runs once says only what is wrong. A log that nobody reads any more must not stop a server.
    let serves = matches!(cli.command, None | Some(Command::Serve(_)));
    let level = if serves { tracing::Level::INFO } else { tracing::Level::WARN };
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_max_level(level)
        .with_target(false)
        .log_internal_errors(false)
        .init();
    let outcome = match cli.command {
        None => serve(&cli.serve),
        Some(Command::Serve(arguments)) => serve(&arguments),
        Some(Command::Put { key, value, store }) => put(&key, &value, &store),
        Some(Command::Get { key, store }) => get(&key, &store),
        Some(Command::Delete { key, store }) => delete(&key, &store),
        Some(Command::Stats { json, memcached: Some(address), .. }) => {
            remote::stats(&address, "").map_err(Box::from).and_then(|lines| print_stats(&lines, json))
        }
        Some(Command::Stats { json, memcached: None, store }) => offline_stats(json, &store),
        Some(Command::Load { file, format, skip_bad, memcached, store }) => {
            let file = file.filter(|path| path.as_os_str() != "-");
            load(file.as_deref(), format, skip_bad, memcached.as_ref(), &store)
        }
        Some(Command::List { prefix, long, store }) => with_store(&store, offline_options(&store, false), |opened| {
            Ok(list::list(opened, prefix.as_bytes(), long, &mut std::io::stdout())?)
        }),
        Some(Command::Dump { prefix, format, store }) => with_store(&store, offline_options(&store, false), |opened| {
            Ok(list::dump(opened, prefix.as_bytes(), format, &mut std::io::stdout())?)
        }),
        Some(Command::Check { store }) => check(&store),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Where nobody listens, the status alone must do.
            let _ = writeln!(std::io::stderr(), "error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn offline_options(arguments: &StoreArguments, create: bool) -> OpenOptions {
    OpenOptions {
        capacity_bytes: arguments.capacity,
        memory_bytes: arguments.memory,
        front_bytes: 0,
        sync: tapetum::Sync::Always,
        full: tapetum::Full::Error,
        create,
    }
}

/// Runs `work` on the store without a server, and closes it.
fn with_store<R>(
    arguments: &StoreArguments,
    options: OpenOptions,
    work: impl FnOnce(&tapetum::Store) -> Result<R, Box<dyn Error>>,
) -> Result<R, Box<dyn Error>> {
    let place = arguments.place();
    let store = store_open::open(&place, &options)?;
    let named = |error: Box<dyn Error>| match error.downcast::<tapetum::Error>() {
        Ok(error) => OpenError::Store { path: place.path(), error: *error }.into(),
        Err(other) => other,
    };
    let result = work(&store).map_err(named);
    let closed = store.close();
    // What went wrong first says more.
    let result = result?;
    closed.map_err(|error| named(error.into()))?;
    Ok(result)
}

fn load(
    file: Option<&Path>,
    format: Option<Format>,
    skip_bad: bool,
    memcached: Option<&Address>,
    arguments: &StoreArguments,
) -> Outcome {
    let loaded = match memcached {
        Some(address) => load::load(file, format, skip_bad, &mut WireSink::new(remote::connect(address)?))?,
        None => {
            // Closing the store makes all of it durable, once.
            let options = OpenOptions { sync: tapetum::Sync::No, ..offline_options(arguments, true) };
            with_store(arguments, options, |store| {
                Ok(load::load(file, format, skip_bad, &mut StoreSink::new(store.session()?))?)
            })?
        }
    };
    let skipped = if skip_bad { format!(", {} bad lines left out", loaded.bad_lines) } else { String::new() };
    // Where nobody listens, the status alone must do.
    let _ = writeln!(std::io::stderr(), "{} items stored{skipped}", loaded.items);
    Ok(())
}

fn serve(arguments: &ServeArguments) -> Outcome {
    let signals = os::termination_signals()?;
    let files = os::allow_open_files(u64::from(arguments.connections) + OTHER_FILES)?;
    if files < u64::from(arguments.connections) + OTHER_FILES {
        return Err(format!(
            "{} clients need {} open files, and the system allows {files}: raise `ulimit -n`, or lower --connections",
            arguments.connections,
            u64::from(arguments.connections) + OTHER_FILES
        )
        .into());
    }
    let mut limits = Limits { connections: arguments.connections as usize, ..Limits::default() };
    limits.in_flight_bytes = (arguments.store.memory / 10).clamp(2 << 20, 256 << 20) as usize;
    let options = OpenOptions {
        front_bytes: limits.in_flight_bytes as u64,
        sync: arguments.sync.into(),
        full: arguments.full.into(),
        ..offline_options(&arguments.store, true)
    };
    let place = arguments.store.place();
    let store = store_open::open(&place, &options)?;
    limits.item_bytes_max = item_bytes_max(arguments.item_size, store.value_bytes_max());
    let threads = arguments.threads.map_or_else(cores, usize::from);
    let settings = vec![
        ("maxbytes", arguments.store.memory.to_string()),
        ("sync", arguments.sync.name().into()),
        ("drive", place.path().display().to_string()),
    ];
    let (addresses, metrics) = (arguments.memcached.clone(), arguments.metrics.clone());
    let store = Arc::new(store);
    let server = Server::start(Arc::clone(&store), Options { addresses, threads, limits, settings, metrics })?;
    for address in server.addresses()? {
        tracing::info!("tapetum {VERSION} serves {} to memcached clients at {address}", place.path().display());
    }
    if let Some(address) = server.metrics_address() {
        tracing::info!("figures for Prometheus at http://{address}/metrics");
    }
    let signal = os::wait_for_signal(signals.as_fd())?;
    tracing::info!("stopping after signal {signal}: serving what has come, then closing the store");
    let stopped = server.stop();
    store.close()?;
    tracing::info!("closed");
    Ok(stopped?)
}

fn item_bytes_max(wanted: u64, possible: usize) -> usize {
    let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
    if wanted > possible {
        let shown = size::shown(possible as u64);
        tracing::warn!(
            "values are limited to {shown}: larger ones need larger segments, so a store made with more --memory and --capacity"
        );
    }
    wanted.min(possible)
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
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
    let item = with_store(arguments, offline_options(arguments, false), |store| Ok(store.get(key.as_bytes())?))?;
    let item = item.ok_or_else(|| not_found(key))?;
    let mut out = std::io::stdout();
    out.write_all(&item.value)?;
    if out.is_terminal() {
        out.write_all(b"\n")?;
    }
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
    let figures = with_store(arguments, offline_options(arguments, false), |store| Ok(store.stats()))?;
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
