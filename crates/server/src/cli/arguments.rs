//! The command line: its commands and options. What they do is elsewhere.

use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use tapetum::Place;

use crate::cli::access_arguments::UserCommand;
use crate::cli::backup_arguments::BackupCommand;
use crate::cli::drive_process::DriveArguments;
use crate::cli::fields_arguments::GetArguments;
use crate::cli::freeze_arguments::{FreezeArguments, FreezeCommand};
use crate::cli::generate_arguments::GenerateCommand;
use crate::cli::graph_arguments::GraphCommand;
use crate::cli::help::HelpArguments;
#[cfg(feature = "images")]
use crate::cli::import_arguments::ImportCommand;
use crate::cli::keyspace_arguments::{DEFAULT_NAME, KeyspaceArguments, KeyspaceCommand, keyspace_name};
use crate::cli::pipeline_arguments::PipelineCommand;
use crate::cli::promotion::PromoteArguments;
use crate::cli::ranges::{capacity, memory};
use crate::cli::repair_arguments::RepairArguments;
use crate::cli::scan_arguments::ScanArguments;
use crate::cli::serve_arguments::ServeArguments;
use crate::net::listen::Address;
use crate::tools::item_lines::Format;
use crate::version::with_build;
#[cfg(feature = "flight")]
use tapetum_flight::client::ServerAddress;

/// A durable, compressed key-value store on flash, behind the memcached protocol.
#[derive(Debug, Parser)]
#[command(name = "tapetum", version = with_build(), arg_required_else_help = true, disable_help_subcommand = true, after_help = PRESETS_HELP)]
pub struct Cli {
    /// Take options from this file: all of serve's; other commands take --data, --drive, --memory and --log of them
    #[arg(long, value_name = "FILE", global = true)]
    pub config: Option<PathBuf>,
    #[command(flatten)]
    pub log: LogArguments,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve clients, until SIGTERM or SIGINT; until SIGHUP too, unless there are users or a certificate to read again then
    Serve(Box<ServeArguments>),
    /// Serve a drive, until SIGTERM or SIGINT, to stores of other processes: those have --drive with its socket
    Drive(DriveArguments),
    /// Say who may log in at a server, and what each may do
    #[command(subcommand)]
    User(UserCommand),
    /// Store a value
    #[command(after_help = KEY_HELP)]
    Put {
        /// The key: the values of its fields, with commas between them, or its bytes as `list` prints them
        key: String,
        /// The value; - reads it from standard input
        value: String,
        #[command(flatten)]
        keyspace: KeyspaceArguments,
        #[command(flatten)]
        store: StoreArguments,
        #[command(flatten)]
        creation: CreationArguments,
    },
    /// Print a value, or fields of it
    Get(GetArguments),
    /// Delete a key
    #[command(after_help = KEY_HELP)]
    Delete {
        /// The key: the values of its fields, with commas between them, or its bytes as `list` prints them
        key: String,
        #[command(flatten)]
        keyspace: KeyspaceArguments,
        #[command(flatten)]
        store: StoreArguments,
    },
    /// Print the figures of a store, or of a running server
    Stats {
        /// As JSON
        #[arg(long)]
        json: bool,
        /// Ask the server that listens there rather than open the data
        #[arg(long, value_name = "ADDR", conflicts_with_all = ["data", "drive", "memory"])]
        memcached: Option<Address>,
        #[command(flatten)]
        store: StoreArguments,
    },
    /// List the programs that a drive computes with
    Programs,
    /// Compute with the programs of a drive
    #[command(subcommand)]
    Pipeline(PipelineCommand),
    /// Import files that are not lines of text
    #[cfg(feature = "images")]
    #[command(subcommand)]
    Import(ImportCommand),
    /// Store the items of a file, or of standard input
    #[command(after_help = LOAD_HELP)]
    Load {
        /// The file; - or nothing is standard input
        file: Option<PathBuf>,
        /// The format of its lines [default: as its name ends, or tsv]
        #[arg(long, value_enum)]
        format: Option<Format>,
        /// Leave out lines that cannot be stored, and count them, rather than stop at the first
        #[arg(long)]
        skip_bad: bool,
        /// Store into the server that listens there rather than open the data
        #[arg(long, value_name = "ADDR", conflicts_with_all = ["keyspace", "create", "capacity", "data", "drive", "memory"])]
        memcached: Option<Address>,
        #[command(flatten)]
        keyspace: KeyspaceArguments,
        #[command(flatten)]
        store: StoreArguments,
        #[command(flatten)]
        creation: CreationArguments,
    },
    /// Copy the items of a running memcached that this store or server does not have
    Warm {
        /// The memcached to copy from: HOST:PORT, or the path of its socket
        #[arg(long, value_name = "ADDR")]
        from: Address,
        /// Copy into the server that listens there rather than open the data
        #[arg(long, value_name = "ADDR", conflicts_with_all = ["keyspace", "create", "capacity", "data", "drive", "memory"])]
        memcached: Option<Address>,
        #[command(flatten)]
        keyspace: KeyspaceArguments,
        #[command(flatten)]
        store: StoreArguments,
        #[command(flatten)]
        creation: CreationArguments,
    },
    /// Print the keys of a store, or of a running server, one a line, in no particular order
    #[command(after_help = KEY_HELP)]
    List {
        /// Only keys that begin so: with these fields, or these bytes as this prints them
        #[arg(long, value_name = "TEXT", default_value = "")]
        prefix: String,
        /// Also, after tabs: bytes of the value, flags, and expiry in unix seconds (0 is never)
        #[arg(long)]
        long: bool,
        /// Ask the server that listens there rather than open the data
        #[arg(long, value_name = "ADDR", conflicts_with_all = ["keyspace", "freeze", "data", "drive", "memory"])]
        memcached: Option<Address>,
        #[command(flatten)]
        keyspace: KeyspaceArguments,
        #[command(flatten)]
        freeze: FreezeArguments,
        #[command(flatten)]
        store: StoreArguments,
    },
    /// Print the items of a store, or of a running server, as lines that load reads
    #[command(after_help = KEY_HELP)]
    Dump {
        /// Only keys that begin so: with these fields, or these bytes as `list` prints them; with --skip-bad always bytes
        #[arg(long, value_name = "TEXT", default_value = "")]
        prefix: String,
        /// The format of the lines; tsv has no place for flags and expiry
        #[arg(long, value_enum, default_value = "jsonl")]
        format: Format,
        /// Print the items of a damaged store that can be read, also of one that does not open, and count the others
        #[arg(long, conflicts_with_all = ["memcached", "freeze"])]
        skip_bad: bool,
        /// Ask the server that listens there rather than open the data: a backup while it serves
        #[arg(long, value_name = "ADDR", conflicts_with_all = ["keyspace", "freeze", "data", "drive", "memory"])]
        memcached: Option<Address>,
        #[command(flatten)]
        keyspace: KeyspaceArguments,
        #[command(flatten)]
        freeze: FreezeArguments,
        #[command(flatten)]
        store: StoreArguments,
    },
    /// Print the lines of a database that is made, or put them into a store
    #[command(subcommand)]
    Generate(GenerateCommand),
    /// Print the items of an ordered keyspace in the order of their keys, or what a query says of any keyspace
    #[command(after_help = SCAN_HELP)]
    Scan(ScanArguments),
    /// Analyse the graph whose edges are records of a keyspace
    #[command(subcommand)]
    Graph(GraphCommand),
    /// Look inside a store, or a running server: superblock, manifest and segments, or where a key lives
    Inspect {
        /// Tell where this key lives, rather than what the store holds; it is written as for `get`
        key: Option<String>,
        /// The keyspace of the key
        #[arg(long, value_name = "NAME", requires = "key", conflicts_with = "map", default_value = DEFAULT_NAME, value_parser = keyspace_name())]
        keyspace: String,
        /// Draw the drive: what lies where, and how much of it is valid
        #[arg(long, conflicts_with = "key")]
        map: bool,
        /// Draw it again every so many seconds
        #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2", requires = "map",
              conflicts_with_all = ["key", "json"], value_parser = clap::value_parser!(u32).range(1..=86_400))]
        watch: Option<u32>,
        /// As JSON
        #[arg(long, conflicts_with = "map")]
        json: bool,
        /// Ask the server that listens there rather than read the data
        #[arg(long, value_name = "ADDR", conflicts_with_all = ["keyspace", "data", "drive", "memory"])]
        memcached: Option<Address>,
        #[command(flatten)]
        store: StoreArguments,
    },
    /// Make, list, describe, drop and rename the keyspaces of a store
    #[command(subcommand)]
    Keyspace(KeyspaceCommand),
    /// Make, list, renew and release freezes: moments of a served store that stay
    #[command(subcommand)]
    Freeze(FreezeCommand),
    /// Make, list, verify, restore and prune backups of a store
    #[command(subcommand)]
    Backup(BackupCommand),
    /// Let a standby take the place of the server that it follows: see `tapetum serve --follow`
    Promote(PromoteArguments),
    /// Give a store more flash, or a running server more or less memory
    Resize(ResizeArguments),
    /// Test every checksum and invariant of a store that no server has open
    Check {
        #[command(flatten)]
        store: StoreArguments,
    },
    /// Say what is damaged in a store that no server has open, and what a repair would cost; with --yes, repair it
    Repair(RepairArguments),
    /// Print the help of a command, its page of the manual, or completions for a shell
    Help(HelpArguments),
}

pub(super) const PRESETS_HELP: &str = "\
Options may also be set by variables, such as TAPETUM_DRIVE_THREADS=2, or in the file of --config (TOML), such as
`drive-threads = 2`: all of serve's, and of the other commands --data, --drive, --memory and --log. The command line wins over
variables, and variables win over the file.";

/// How keys are written, as help shows it.
pub const KEY_HELP: &str = r#"A key of a keyspace that has a format is the values of its fields, with commas between them: 100, or 20539,0. With a backslash
in it, and wherever there is no format, it is the key's bytes as `tapetum list` prints them: \t \n \r \\, and \xHH for any byte.
A prefix may be the first fields alone. Of a server keys are bytes, as its format is not known here."#;

/// How keys are written, and what rows look like, as help shows it.
const SCAN_HELP: &str = r#"Keys are written as the values of their fields, with commas between them: 100, or 20539,0; the first ones are enough. With a backslash
in it, and wherever there is no format, a key is its bytes as `tapetum list` prints them: \t \n \r \\, and \xHH for any byte.

Rows as csv are quoted as RFC 4180 says; NULL is an empty field, and an empty text is "". Rows as jsonl have NaN and infinities
as the strings "NaN", "inf" and "-inf". Bytes are written in both as `tapetum list` prints keys."#;

const LOAD_HELP: &str = r#"Lines of a .tsv file are KEY<tab>VALUE, where \t \n \r \\ and \xHH stand for what cannot.
Lines of a .jsonl file are {"key":"k","value":"v"}, with "flags" and "expiry" (unix seconds) if wanted, and
"value_base64" (or "key_base64") for what is no text."#;

/// The place of a store.
#[derive(Clone, Debug, Args)]
pub struct PlaceArguments {
    /// The directory of the data
    #[arg(long, value_name = "DIR", default_value = "./tapetum-data")]
    pub data: PathBuf,
    /// A file or block device for the data, instead of a file in --data; given again for each of several that are one drive together; or the
    /// socket of a drive that runs by itself (tapetum drive), with a partition's name behind it or none: /run/drive.sock/papers
    #[arg(long, value_name = "FILE|DEV|SOCKET", conflicts_with = "data")]
    pub drive: Vec<PathBuf>,
    /// A running server that is asked through its Flight door, in place of the one that has --data or --drive: grpc://HOST:PORT,
    /// grpc+tls://HOST:PORT, or grpc+unix://PATH. What changes keyspaces or sizes is for users with the right to it
    #[cfg(feature = "flight")]
    #[arg(long, value_name = "SERVER", conflicts_with_all = ["data", "drive"])]
    pub server: Option<ServerAddress>,
    /// With grpc+tls: the authority of the server's certificate, in PEM
    #[cfg(feature = "flight")]
    #[arg(long, value_name = "FILE", requires = "server")]
    pub server_ca: Option<PathBuf>,
    /// Log in at --server as this user
    #[cfg(feature = "flight")]
    #[arg(long, value_name = "NAME", requires = "server")]
    pub user: Option<String>,
    /// Read the password of --user from this file, without the line's end; - is standard input. Without, it is asked for
    // A variable may set it for all commands, also for those that log in nowhere.
    #[cfg(feature = "flight")]
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
}

impl PlaceArguments {
    /// Whether a server was given in place of a store.
    pub fn is_remote(&self) -> bool {
        #[cfg(feature = "flight")]
        return self.server.is_some();
        #[cfg(not(feature = "flight"))]
        return false;
    }

    /// A store in a folder.
    pub fn of_data(data: PathBuf) -> PlaceArguments {
        PlaceArguments {
            data,
            drive: Vec::new(),
            #[cfg(feature = "flight")]
            server: None,
            #[cfg(feature = "flight")]
            server_ca: None,
            #[cfg(feature = "flight")]
            user: None,
            #[cfg(feature = "flight")]
            password_file: None,
        }
    }

    pub fn place(&self) -> Place {
        match &self.drive[..] {
            [] => Place::Directory(self.data.clone()),
            drives => Place::on_drives(drives),
        }
    }
}

/// A store that the command itself opens.
#[derive(Debug, Args)]
pub struct StoreArguments {
    #[command(flatten)]
    pub place: PlaceArguments,
    /// Memory for index, buffers and requests [default: 256MiB; of commands beside serve, more if the store needs that]
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    pub memory: Option<u64>,
}

impl StoreArguments {
    pub fn place(&self) -> Place {
        self.place.place()
    }
}

/// Options of commands that make a store if there is none.
#[derive(Debug, Args)]
pub struct CapacityArguments {
    /// Flash the store may use: a new one reserves it, a smaller one grows to it [default: 10GiB, or half of what is free if that is less; all of a block device]
    #[arg(long, value_name = "SIZE", value_parser = capacity)]
    pub capacity: Option<u64>,
}

/// Options of commands that make a store only when told to: a mistyped path must not make one.
#[derive(Debug, Args)]
pub struct CreationArguments {
    /// Make the store if there is none
    #[arg(long)]
    pub create: bool,
    /// As --create, and how much flash the store may use: a new one reserves it, a smaller one grows to it [default: 10GiB, or half of what is free if that is less; all of a block device]
    #[arg(long, value_name = "SIZE", value_parser = capacity)]
    pub capacity: Option<u64>,
}

/// How much the log says. It goes to standard error.
#[derive(Debug, Args)]
#[command(next_help_heading = "Log")]
pub struct LogArguments {
    /// The lowest level that goes to the log [default: info for serve, warn for the other commands]
    #[arg(long, value_name = "LEVEL", value_enum, global = true)]
    pub log: Option<LogLevel>,
    /// Log one level more; may be repeated
    #[arg(short, long, action = ArgAction::Count, global = true)]
    pub verbose: u8,
    /// Log one level less; may be repeated. The other commands' summaries go with the warnings
    #[arg(short, long, action = ArgAction::Count, global = true)]
    pub quiet: u8,
}

impl LogArguments {
    /// The level of a command whose default is `default`.
    pub fn level(&self, default: LogLevel) -> LogLevel {
        let wanted = self.log.unwrap_or(default) as i32 + i32::from(self.verbose) - i32::from(self.quiet);
        LogLevel::ALL[wanted.clamp(0, LogLevel::ALL.len() as i32 - 1) as usize]
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl LogLevel {
    const ALL: [LogLevel; 5] = [LogLevel::Error, LogLevel::Warn, LogLevel::Info, LogLevel::Debug, LogLevel::Trace];
}

impl From<LogLevel> for tracing::Level {
    fn from(level: LogLevel) -> tracing::Level {
        match level {
            LogLevel::Error => tracing::Level::ERROR,
            LogLevel::Warn => tracing::Level::WARN,
            LogLevel::Info => tracing::Level::INFO,
            LogLevel::Debug => tracing::Level::DEBUG,
            LogLevel::Trace => tracing::Level::TRACE,
        }
    }
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("size").required(true).multiple(true))]
pub struct ResizeArguments {
    /// Flash that the store may use from now on; it cannot shrink
    #[arg(long, value_name = "SIZE", value_parser = capacity, group = "size")]
    pub capacity: Option<u64>,
    /// Memory that a running server may use until it stops; without a server, give it to `tapetum serve`
    #[arg(long, value_name = "SIZE", value_parser = memory, group = "size")]
    pub memory: Option<u64>,
    /// The server whose store it is, which serves meanwhile
    #[arg(long, value_name = "ADDR", conflicts_with_all = ["data", "drive"])]
    pub memcached: Option<Address>,
    #[command(flatten)]
    pub place: PlaceArguments,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(std::iter::once("tapetum").chain(line.split_whitespace()))
    }

    #[test]
    fn is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn without_a_command_there_is_help() {
        let help = parse("").unwrap_err();
        assert_eq!(help.kind(), clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand);
        assert!(help.to_string().contains("Serve clients"), "{help}");
        assert!(parse("--memory 64MiB").is_err());
    }

    #[test]
    fn nonsense_is_refused() {
        for line in [
            "serve --write-buffer 3MiB",
            "serve --write-buffer 32KiB",
            "serve --write-buffer 2GiB",
            "serve --sync maybe",
            "serve --memory lots",
            "serve --memcached nowhere",
            "put k",
            "fly",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn an_option_that_would_do_nothing_is_refused() {
        for line in [
            "check --capacity 1GiB",
            "get k --capacity 1GiB",
            "get k --create",
            "get k --format csv",
            "get k --explain",
            "list --drive f --data d",
            "stats --memcached unix:/x --data d",
            "stats --memcached unix:/x --memory 1GiB",
            "inspect --memcached unix:/x --drive d",
            "load --memcached unix:/x --data d",
            "load --memcached unix:/x --create",
            "load --memcached unix:/x --capacity 1GiB",
            "resize --capacity 1GiB --memcached unix:/x --data d",
            "inspect k --watch 1",
            "inspect --watch 1 --json",
            "inspect --watch 1",
            "inspect --map --keyspace a",
            "pipeline run sha256 --file f --data d",
            "generate papers --table papers --memory 1GiB",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
        for line in [
            "load --create --capacity 1GiB --data d",
            "put k v --create --data d",
            "put k v --capacity 1GiB --data d",
            "get k --select a --format csv",
            "resize --capacity 1GiB --drive d",
            "resize --memory 1GiB --memcached unix:/x",
            "resize --capacity 1GiB --memory 1GiB --memcached unix:/x",
            "inspect --map --watch 1",
            "generate papers --into d --memory 1GiB",
        ] {
            assert!(parse(line).is_ok(), "{line}");
        }
    }

    #[cfg(feature = "images")]
    #[test]
    fn options_for_many_pictures_are_refused_with_one_item() {
        for line in [
            "pipeline run sha256 --key k --out d --seed 5",
            "pipeline run sha256 --key k --out d",
            "pipeline run sha256 --key k --seed 5",
            "pipeline run sha256 --file f --out d",
            "pipeline run sha256 --file f --most 5",
            "pipeline run flip --keys a --out d --stats",
            "pipeline run flip --keys a --out d --compute-units flip=1",
            "pipeline run flip --keys a",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
        assert!(parse("pipeline run flip --keys a --out d --seed 5 --most 5").is_ok());
    }

    #[test]
    fn what_is_mistyped_is_answered_with_what_is_near() {
        for (line, near) in [
            ("srve", "'serve'"),
            ("serve --memry 1GiB", "'--memory'"),
            ("serve --sync alway", "'always'"),
            ("keyspace creat a", "'create'"),
            ("list --keyspce a", "'--keyspace'"),
        ] {
            let refusal = parse(line).unwrap_err().to_string();
            assert!(refusal.contains("similar") && refusal.contains(near), "{line}: {refusal}");
        }
    }

    #[test]
    fn the_log_says_more_or_less() {
        let level = |line: &str| parse(line).unwrap().log.level(LogLevel::Warn);
        assert_eq!(level("list"), LogLevel::Warn);
        assert_eq!(level("list -v"), LogLevel::Info);
        assert_eq!(level("-vv list"), LogLevel::Debug);
        assert_eq!(level("list -q"), LogLevel::Error);
        assert_eq!(level("list -qqqq"), LogLevel::Error);
        assert_eq!(level("list --log trace -q"), LogLevel::Debug);
        assert!(parse("list --log loud").is_err());
    }
}
