//! Parses the command line and runs its command. Errors go to standard error and say what to do. The exit status is 0 after success, 1
//! after an error, 2 if the command line makes no sense.

use std::error::Error;
use std::fs;
use std::io::{self, IsTerminal, Read, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser};
use tapetum::{NewStore, Options, Place};

#[cfg(feature = "images")]
use super::pictures;
use super::reach::{self, Reached, server_of};
use super::{
    backups, drive_process, freezes, generating, graphs, help, inspection, keyspaces, mistypes, presets, promotion,
    queries, repair_arguments, serve, users,
};
use crate::cli::arguments::{Cli, Command, CreationArguments, LogLevel, ResizeArguments, StoreArguments};
use crate::cli::fields_arguments::GetArguments;
use crate::cli::freeze_arguments::FreezeArguments;
use crate::cli::keyspace_arguments::DEFAULT_NAME;
use crate::cli::pipeline_arguments::PipelineCommand;
use crate::logging;
use crate::net::listen::Address;
use crate::tools::item_lines::Format;
use crate::tools::key_text::KeyText;
use crate::tools::list::{LineShape, LinesCaller};
use crate::tools::load::{Existing, ServiceSink};
use crate::tools::remote::{self, Remote};
use crate::tools::remote_items;
use crate::tools::warm::{self, WarmSource};
use crate::tools::{load, repair};
use crate::{machine, os, output};
use tapetum_service::opening::{self, OpenError};
use tapetum_service::pipelines;
use tapetum_service::pipelines::{PipelineRun, UnitChoice};
use tapetum_service::reply::Reply;
use tapetum_service::request::{ListWanted, Request};
use tapetum_service::service::Access;
use tapetum_service::size;

/// Memory for opening a store that is to grow: a large one needs a large index.
const GROW_MEMORY_BYTES: u64 = 1 << 30;

pub(super) type Outcome = Result<(), Box<dyn Error>>;

/// Runs the whole process.
pub fn main() -> ExitCode {
    os::return_freed_memory();
    os::ignore_file_size_signal();
    let Cli { log, command, .. } = parse_command_line();
    match command {
        Command::Serve(arguments) => serve::run(&arguments, log.level(LogLevel::Info).into()),
        Command::Drive(arguments) => drive_process::run(&arguments, log.level(LogLevel::Info).into()),
        command => {
            logging::of_command(log.level(LogLevel::Warn).into());
            match run(command) {
                Ok(()) => ExitCode::SUCCESS,
                // The reader of the output has closed it, as `| head` does.
                Err(error)
                    if error
                        .downcast_ref::<io::Error>()
                        .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe) =>
                {
                    ExitCode::SUCCESS
                }
                Err(error) => {
                    // If standard error cannot be written, the exit status reports the error.
                    let _ = writeln!(std::io::stderr(), "error: {error}");
                    ExitCode::FAILURE
                }
            }
        }
    }
}

fn parse_command_line() -> Cli {
    let variables =
        std::env::vars_os().filter_map(|(name, text)| Some((name.into_string().ok()?, text.into_string().ok()?)));
    let completed = presets::complete(&Cli::command(), std::env::args_os().collect(), &variables.collect());
    let completed = completed.unwrap_or_else(|wrong| Cli::command().error(ErrorKind::ValueValidation, wrong).exit());
    Cli::try_parse_from(&completed.words).unwrap_or_else(|error| {
        if !error.use_stderr() {
            print_help(&error);
        }
        if let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg)
            && let Some(origin) = completed.origin_of(option)
        {
            // If standard error cannot be written, the exit status reports the error.
            let _ = writeln!(std::io::stderr(), "{option} is from {origin}");
        }
        let begins_with_option = std::env::args().nth(1).is_some_and(|word| word.starts_with("--"));
        if error.kind() == ErrorKind::UnknownArgument && begins_with_option {
            // If standard error cannot be written, the exit status reports the error.
            let _ =
                writeln!(std::io::stderr(), "tip: options follow a command; a server is started by `tapetum serve`\n");
        }
        mistypes::explain(error, &Cli::command(), &completed.words).exit()
    })
}

/// Prints the help or the version that was asked for, and ends the process.
fn print_help(help: &clap::Error) -> ! {
    let printed = help.print().and_then(|()| io::stdout().flush());
    std::process::exit(match printed {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            // If standard error cannot be written, the exit status reports the error.
            let _ = writeln!(io::stderr(), "error: cannot write to standard output: {error}");
            1
        }
        _ => 0,
    })
}

/// Runs a command that starts no server.
fn run(command: Command) -> Outcome {
    match command {
        Command::Serve(_) | Command::Drive(_) => unreachable!("it has a log of its own"),
        Command::Put { key, value, keyspace, store, creation } => {
            put(&key, &value, KeyspaceTarget::new(&store, &keyspace.keyspace), creating_options(&store, &creation))
        }
        Command::Get(arguments) if arguments.asks_for_fields() => queries::get_fields(&arguments),
        Command::Get(GetArguments { key, keyspace, store, .. }) => {
            get(&key, KeyspaceTarget::new(&store, &keyspace.keyspace))
        }
        Command::Delete { key, keyspace, store } => delete(&key, KeyspaceTarget::new(&store, &keyspace.keyspace)),
        Command::Stats { json, memcached: Some(address), .. } => {
            Remote::memcached(&address).stats(b"").map_err(Box::from).and_then(|lines| print_stats(&lines, json))
        }
        Command::Stats { json, memcached: None, store } => stats_of(json, &store),
        Command::Programs => print(pipelines::list()?.as_bytes()),
        #[cfg(feature = "images")]
        Command::Import(command) => pictures::import(&command),
        #[cfg(feature = "images")]
        Command::Pipeline(PipelineCommand::Run { pipeline, keyspace, pictures: asked, application, store, .. })
            if !asked.keys.is_empty() =>
        {
            pictures::run(KeyspaceTarget::new(&store, &keyspace), &pipeline, application, &asked)
        }
        Command::Pipeline(PipelineCommand::Run {
            pipeline,
            key,
            keyspace,
            file,
            compute_units,
            application,
            pin,
            stats,
            store,
            ..
        }) => {
            let choice = UnitChoice { compute_units: &compute_units, pin };
            let target = KeyspaceTarget::new(&store, &keyspace);
            let ran = match file {
                Some(file) => run_pipeline(&pipeline, &file, choice)?,
                None => run_item_pipeline(&pipeline, &key.unwrap_or_default(), choice, application, target)?,
            };
            if stats {
                // An error of standard error is ignored: the output matters.
                let _ = write!(io::stderr(), "{}", pipelines::stage_lines(&ran.stages));
            }
            print(&ran.bytes)
        }
        Command::Load { file, format, skip_bad, memcached, keyspace, store, creation } => {
            let file = file.filter(|path| path.as_os_str() != "-");
            let options = filling_options(&store, &creation);
            load(
                file.as_deref(),
                format,
                skip_bad,
                memcached.as_ref(),
                KeyspaceTarget::new(&store, &keyspace.keyspace),
                options,
            )
        }
        Command::Warm { from, memcached, keyspace, store, creation } => warm(
            &from,
            memcached.as_ref(),
            KeyspaceTarget::new(&store, &keyspace.keyspace),
            filling_options(&store, &creation),
        ),
        Command::List { prefix, long, memcached: Some(address), .. } => list_remote(&address, &prefix, long),
        Command::Dump { prefix, format, memcached: Some(address), .. } => dump_remote(&address, &prefix, format),
        Command::List { prefix, long, memcached: None, keyspace, freeze, store } => {
            let target = KeyspaceTarget::new(&store, &keyspace.keyspace);
            let shape = |keys| LineShape::Keys { keys, is_long: long };
            list_lines(&prefix, target, freeze, ListWanted::Keys, shape)
        }
        Command::Dump { prefix, format, skip_bad: true, memcached: None, keyspace, store, .. } => {
            check_memory(store.memory)?;
            let (place, options) = (store.place(), offline_options(&store));
            // A damaged store may not say the keyspace's format, so the prefix is taken as bytes.
            let prefix = KeyText::of_bytes().prefix(&prefix)?;
            let (mut out, mut complaints) = (output::stdout(), std::io::stderr());
            repair::dump(&place, &options, &keyspace.keyspace, &prefix, format, &mut out, &mut complaints)
        }
        Command::Dump { prefix, format, skip_bad: false, memcached: None, keyspace, freeze, store } => {
            let target = KeyspaceTarget::new(&store, &keyspace.keyspace);
            list_lines(&prefix, target, freeze, ListWanted::Items, |_| LineShape::Items(format))
        }
        Command::Generate(command) => generating::run(&command),
        Command::Graph(command) => graphs::run(&command),
        Command::Scan(arguments) => queries::scan(&arguments),
        Command::Inspect { key: Some(key), keyspace, json, memcached, store, .. } => {
            inspection::inspect_key(&key, json, memcached.as_ref(), KeyspaceTarget::new(&store, &keyspace))
        }
        Command::Inspect { key: None, map, watch, json, memcached, store, .. } => {
            let every = watch.map(|seconds| Duration::from_secs(u64::from(seconds)));
            inspection::inspect_all(map, every, json, memcached.as_ref(), &store)
        }
        Command::User(command) => users::run(command),
        Command::Help(arguments) => help::run(&arguments),
        Command::Keyspace(command) => keyspaces::run(command),
        Command::Freeze(command) => freezes::run(command),
        Command::Backup(command) => backups::run(command),
        Command::Promote(arguments) => promotion::run(&arguments),
        Command::Resize(arguments) => resize(&arguments),
        Command::Check { store } => check(&store),
        Command::Repair(arguments) => {
            reach::refuse_server(&arguments.store.place, "repair")?;
            check_memory(arguments.store.memory)?;
            repair_arguments::run(&arguments, &offline_options(&arguments.store))
        }
    }
}

/// Options for opening a store that must exist.
pub(super) fn offline_options(arguments: &StoreArguments) -> Options {
    Options { memory_bytes: arguments.memory, new_store: NewStore::Served, create: false, ..Options::new() }
}

pub(super) fn creating_options(arguments: &StoreArguments, creation: &CreationArguments) -> Options {
    let CreationArguments { create, capacity } = *creation;
    // A capacity implies `--create`.
    let create = create || capacity.is_some();
    let options = if create { making_options(arguments) } else { offline_options(arguments) };
    Options { create, capacity_bytes: capacity, ..options }
}

/// For a command that may make a store: a server must be able to serve it with the same memory, part of which its front doors take.
pub(super) fn making_options(arguments: &StoreArguments) -> Options {
    Options { memory_beside: opening::front_bytes, ..offline_options(arguments) }
}

/// For writing many items: closing the store makes all of them durable at once.
pub(super) fn filling_options(arguments: &StoreArguments, creation: &CreationArguments) -> Options {
    Options { sync: tapetum::Sync::No, ..creating_options(arguments, creation) }
}

/// A store, and the name of one of its keyspaces.
#[derive(Clone, Copy)]
pub(super) struct KeyspaceTarget<'a> {
    pub store: &'a StoreArguments,
    pub keyspace: &'a str,
}

impl<'a> KeyspaceTarget<'a> {
    pub fn new(store: &'a StoreArguments, keyspace: &'a str) -> KeyspaceTarget<'a> {
        KeyspaceTarget { store, keyspace }
    }
}

/// Runs `fill` with a sink into a keyspace, and makes what it put there durable.
fn fill_keyspace<R>(
    target: KeyspaceTarget<'_>,
    options: Options,
    existing: Existing,
    fill: impl FnOnce(&mut ServiceSink<'_>) -> Result<R, String>,
) -> Result<R, Box<dyn Error>> {
    let KeyspaceTarget { store, keyspace } = target;
    if options.create && !store.place.is_remote() {
        expect_store_of(&store.place(), keyspace)?;
    }
    let mut reached = Reached::new(store, &options, Access::Write)?;
    let filled = reached.format(keyspace).and_then(|format| {
        let mut sink = ServiceSink::new(&mut reached.service, keyspace, format.is_some(), existing);
        Ok(fill(&mut sink)?)
    });
    reached.close(filled)
}

/// A new store has only the default keyspace. Checked before the store is made.
pub(super) fn expect_store_of(place: &Place, keyspace: &str) -> Result<(), String> {
    if keyspace == DEFAULT_NAME || place.may_have_store() {
        return Ok(());
    }
    let path = place.path();
    let path = path.display();
    Err(format!(
        "there is no store at {path}, and so no keyspace {keyspace:?}: give --data or --drive as the server has it, or make both with \
         `tapetum keyspace create`"
    ))
}

fn load(
    file: Option<&Path>,
    format: Option<Format>,
    skip_bad: bool,
    memcached: Option<&Address>,
    target: KeyspaceTarget<'_>,
    options: Options,
) -> Outcome {
    // Check the file first, so that an error leaves no empty store behind.
    file.map_or(Ok(()), load::check_file)?;
    let loaded = match memcached {
        Some(address) => load::load(file, format, skip_bad, &mut Remote::memcached(address).sink(Existing::Replace)?)?,
        None => fill_keyspace(target, options, Existing::Replace, |sink| load::load(file, format, skip_bad, sink))?,
    };
    let skipped = if skip_bad { format!(", {} bad lines left out", loaded.bad_lines) } else { String::new() };
    let items = if loaded.items == 1 { "item" } else { "items" };
    let expired = match loaded.expired {
        0 => String::new(),
        expired => format!(", {expired} of them expired already"),
    };
    tell(&format!("{} {items} stored{expired}{skipped}", loaded.items));
    Ok(())
}

fn warm(from: &Address, memcached: Option<&Address>, target: KeyspaceTarget<'_>, options: Options) -> Outcome {
    let from = Remote::from(from);
    let count = || from.figure("curr_items");
    let source = source_of(from, &count, b"")?;
    let warmed = match memcached {
        Some(address) => warm::warm(source, &mut Remote::memcached(address).sink(Existing::Keep)?)?,
        None => fill_keyspace(target, options, Existing::Keep, |sink| warm::warm(source, sink))?,
    };
    tell(&warmed.to_string());
    Ok(())
}

/// A running server, for reading its items that begin with `prefix`.
fn source_of<'a>(
    from: Remote<'_>,
    count: &'a dyn Fn() -> Result<u64, String>,
    prefix: &'a [u8],
) -> Result<WarmSource<'a>, String> {
    let lists_all = from.is_tapetum()?;
    Ok(WarmSource { list: from.connect()?, values: from.connect()?, count, prefix, lists_all })
}

fn dump_remote(address: &Address, prefix: &str, format: Format) -> Outcome {
    let from = Remote::memcached(address);
    let prefix = KeyText::of_bytes().prefix(prefix)?;
    let count = || from.figure("curr_items");
    Ok(remote_items::dump(source_of(from, &count, &prefix)?, format, &mut output::stdout())?)
}

fn list_remote(address: &Address, prefix: &str, long: bool) -> Outcome {
    let from = Remote::memcached(address);
    let prefix = KeyText::of_bytes().prefix(prefix)?;
    Ok(remote_items::list(from.connect()?, from.connect()?, &prefix, long, &mut output::stdout())?)
}

/// Reports on standard error what was done, unless the log takes only errors (`-q`).
pub(super) fn tell(done: &str) {
    if tracing::enabled!(tracing::Level::WARN) {
        // An error of standard error is ignored: the report is not essential.
        let _ = writeln!(std::io::stderr(), "{done}");
    }
}

fn resize(arguments: &ResizeArguments) -> Outcome {
    let ResizeArguments { capacity, memory, memcached, .. } = arguments;
    let mut out = output::stdout();
    // First, since a store that is closed has none.
    if let Some(bytes) = *memory {
        match memcached {
            Some(address) => resize_served(address, "memory", bytes)?,
            None => resize_memory(bytes, arguments)?,
        }
        writeln!(out, "memory is {} now", size::shown(bytes))?;
    }
    if let Some(bytes) = *capacity {
        match memcached {
            Some(address) => resize_served(address, "capacity", bytes)?,
            None => grow(bytes, arguments)?,
        }
        writeln!(out, "capacity is {} now", size::shown(bytes))?;
    }
    Ok(())
}

/// Asks a running server to change a size.
fn resize_served(address: &Address, what: &str, bytes: u64) -> Outcome {
    let answer = Remote::memcached(address).command(&format!("resize {what} {bytes}"))?;
    if answer == "OK" {
        return Ok(());
    }
    let why = answer.strip_prefix("SERVER_ERROR ").unwrap_or(&answer);
    Err(format!("{what} stays as it is: {why}").into())
}

/// Memory is a running server's.
fn resize_memory(memory_bytes: u64, arguments: &ResizeArguments) -> Outcome {
    let place = StoreArguments { place: arguments.place.clone(), memory: None }.place();
    let Some(mut server) = server_of(&arguments.place)? else {
        return Err(format!(
            "no server has {} open, and memory is what a running one may use: give --memory to `tapetum serve`",
            place.path().display()
        )
        .into());
    };
    let resized = server.gather(Request::ResizeMemory { memory_bytes });
    resized.map(|_| ()).map_err(|failure| format!("memory stays as it is: {failure}").into())
}

fn grow(capacity_bytes: u64, arguments: &ResizeArguments) -> Outcome {
    let store = StoreArguments { place: arguments.place.clone(), memory: Some(GROW_MEMORY_BYTES) };
    if let Some(mut server) = server_of(&arguments.place)? {
        return Ok(server.gather(Request::Grow { capacity_bytes }).map(|_| ())?);
    }
    let grown = offline_options(&store).grow(&store.place(), capacity_bytes);
    Ok(grown.map_err(OpenError::from)?)
}

/// Refuses more memory than the machine has, before anything is made.
pub(super) fn check_memory(memory_bytes: Option<u64>) -> Result<(), String> {
    match memory_bytes.and_then(machine::why_too_much) {
        None => Ok(()),
        Some(why) => Err(format!("--memory {why}")),
    }
}

fn put(key: &str, value: &str, target: KeyspaceTarget<'_>, options: Options) -> Outcome {
    let value = if value == "-" { read_input()? } else { value.as_bytes().to_vec() };
    if options.create && !target.store.place.is_remote() {
        expect_store_of(&target.store.place(), target.keyspace)?;
    }
    let mut reached = Reached::new(target.store, &options, Access::Write)?;
    let keyspace = target.keyspace.to_owned();
    let done = reached.key(target.keyspace, key).and_then(|key| reached.gather(Request::Put { keyspace, key, value }));
    reached.close(done).map(|_| ())
}

fn get(key: &str, target: KeyspaceTarget<'_>) -> Outcome {
    let mut reached = Reached::for_reading(target.store)?;
    let request = Request::Get { keyspace: target.keyspace.into(), key: reached.key(target.keyspace, key)? };
    let Some(Reply::Items(mut items)) = reached.gather(request)?.pop() else { return Err(not_found(key).into()) };
    let item = items.pop().ok_or_else(|| not_found(key))?;
    let mut out = output::stdout();
    out.write_all(&item.value)?;
    if io::stdout().is_terminal() {
        out.write_all(b"\n")?;
    }
    Ok(out.flush()?)
}

/// Prints a line of each key or item whose key begins with `prefix`.
fn list_lines(
    prefix: &str,
    target: KeyspaceTarget<'_>,
    FreezeArguments { freeze }: FreezeArguments,
    wanted: ListWanted,
    shape: impl FnOnce(KeyText) -> LineShape,
) -> Outcome {
    let KeyspaceTarget { store, keyspace } = target;
    let mut reached = Reached::for_reading(store)?.at(freeze);
    let keys = KeyText::new(reached.format(keyspace)?.as_ref());
    let request = Request::List { keyspace: keyspace.into(), freeze, prefix: keys.prefix(prefix)?, wanted };
    let mut out = output::stdout();
    let mut lines = LinesCaller::new(shape(keys), &mut out);
    let asked = reached.ask(request, &mut lines);
    lines.finish(asked)
}

/// Runs a pipeline over a file.
fn run_pipeline(text: &str, file: &Path, choice: UnitChoice<'_>) -> Result<PipelineRun, Box<dyn Error>> {
    let bytes = match file == Path::new("-") {
        true => read_input()?,
        false => fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?,
    };
    Ok(pipelines::run(text, choice, &bytes)?)
}

/// Runs a pipeline over an item.
fn run_item_pipeline(
    text: &str,
    key: &str,
    choice: UnitChoice<'_>,
    application: Option<String>,
    target: KeyspaceTarget<'_>,
) -> Result<PipelineRun, Box<dyn Error>> {
    let KeyspaceTarget { store, keyspace } = target;
    let units = pipelines::named_units(choice.compute_units)?;
    let options = Options { compute_units: units, pin_units: choice.pin, ..offline_options(store) };
    let mut reached = Reached::new(store, &options, Access::Read)?;
    let pipeline = text.to_owned();
    let key_bytes = reached.key(keyspace, key)?;
    let request = Request::RunPipeline { keyspace: keyspace.into(), key: key_bytes, pipeline, application };
    let (mut found, mut run) = (false, PipelineRun { bytes: Vec::new(), stages: Vec::new() });
    for reply in reached.gather(request)? {
        match reply {
            Reply::TooLong => return run_read_item(text, key, choice, (&mut reached, keyspace)),
            Reply::Stages(stages) => (found, run.stages) = (true, stages),
            Reply::Bytes(more) => run.bytes.extend(more),
            _ => {}
        }
    }
    if found { Ok(run) } else { Err(not_found(key).into()) }
}

/// Reads an item whose output the store has no room for, and runs the pipeline here.
fn run_read_item(
    text: &str,
    key: &str,
    choice: UnitChoice<'_>,
    (reached, keyspace): (&mut Reached, &str),
) -> Result<PipelineRun, Box<dyn Error>> {
    let request = Request::Get { keyspace: keyspace.into(), key: reached.key(keyspace, key)? };
    match reached.gather(request)?.pop() {
        Some(Reply::Items(mut items)) if !items.is_empty() => Ok(pipelines::run(text, choice, &items.remove(0).value)?),
        _ => Err(not_found(key).into()),
    }
}

/// All of standard input.
fn read_input() -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let read = io::stdin().read_to_end(&mut bytes);
    read.map_err(|error| format!("cannot read standard input: {error}"))?;
    Ok(bytes)
}

pub(super) fn print(bytes: &[u8]) -> Outcome {
    Ok(output::print(bytes)?)
}

fn delete(key: &str, target: KeyspaceTarget<'_>) -> Outcome {
    let mut reached = Reached::new(target.store, &offline_options(target.store), Access::Write)?;
    let keyspace = target.keyspace.to_owned();
    let done = reached.key(target.keyspace, key).and_then(|key| reached.gather(Request::Delete { keyspace, key }));
    match reached.close(done)?.pop() {
        Some(Reply::Count(1..)) => Ok(()),
        _ => Err(not_found(key).into()),
    }
}

pub(super) fn not_found(key: &str) -> String {
    format!("there is no key \"{key}\"")
}

fn stats_of(json: bool, arguments: &StoreArguments) -> Outcome {
    match Reached::for_reading(arguments)?.gather(Request::Figures)?.pop() {
        Some(Reply::Figures(lines)) => print_stats(&lines, json),
        _ => Err("no figures were told".into()),
    }
}

pub(super) fn print_stats(lines: &[(String, String)], json: bool) -> Outcome {
    let mut out = output::stdout();
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
    let mut reached = Reached::for_reading(arguments)?;
    let replies = reached.gather(Request::Check)?;
    let counts = replies.into_iter().filter_map(Reply::into_figures).flatten();
    let mut out = output::stdout();
    for (name, count) in counts {
        writeln!(out, "{name} {count}")?;
    }
    writeln!(out, "no damage found")?;
    out.flush()?;
    if reached.service.is_served() {
        tell(
            "a server has the store open, so the checksums of what is on flash were read, and no more: `tapetum check` of a stopped one also \
             checks the index, the manifest and what ties the parts together",
        );
    }
    Ok(())
}
