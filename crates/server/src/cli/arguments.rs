//! The command line: what can be said, and nothing of how it is done.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use tapetum::Place;

use crate::cli::fields_arguments::GetArguments;
use crate::cli::generate_arguments::GenerateCommand;
use crate::cli::graph_arguments::GraphCommand;
#[cfg(feature = "images")]
use crate::cli::import_arguments::ImportCommand;
use crate::cli::keyspace_arguments::{DEFAULT_NAME, KeyspaceArguments, KeyspaceCommand, keyspace_name};
use crate::cli::pipeline_arguments::PipelineCommand;
use crate::cli::ranges::{capacity, memory};
use crate::cli::scan_arguments::ScanArguments;
use crate::cli::serve_arguments::ServeArguments;
use crate::net::listen::Address;
use crate::tools::item_lines::Format;
use crate::tools::repair::RepairArguments;

/// A durable, compressed key-value store on flash, behind the memcached protocol.
#[derive(Debug, Parser)]
#[command(name = "tapetum", version, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve clients, until SIGTERM, SIGINT or SIGHUP
    Serve(ServeArguments),
    /// Store a value, without a server
    Put {
        key: String,
        /// The value; - reads it from standard input
        value: String,
        #[command(flatten)]
        keyspace: KeyspaceArguments,
        #[command(flatten)]
        store: StoreArguments,
    },
    /// Print a value, or fields of it, without a server
    Get(GetArguments),
    /// Delete a key, without a server
    Delete {
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
        #[arg(long, value_name = "ADDR")]
        memcached: Option<Address>,
        #[command(flatten)]
        store: StoreArguments,
    },
    /// List the programs that a drive computes with
    Programs,
    /// Compute with the programs of a drive
    #[command(subcommand)]
    Pipeline(PipelineCommand),
    /// Import what is not lines
    #[cfg(feature = "images")]
    #[command(subcommand)]
    Import(ImportCommand),
    /// Store the items of a file, or of standard input
    #[command(after_help = LOAD_HELP)]
    Load {
        /// The file; - or nothing is standard input
        file: Option<PathBuf>,
        /// What its lines are [default: what its name ends in, or tsv]
        #[arg(long, value_enum)]
        format: Option<Format>,
        /// Leave out lines that cannot be stored, and count them, rather than stop at the first
        #[arg(long)]
        skip_bad: bool,
        /// Store into the server that listens there rather than open the data
        #[arg(long, value_name = "ADDR", conflicts_with = "keyspace")]
        memcached: Option<Address>,
        #[command(flatten)]
        keyspace: KeyspaceArguments,
        #[command(flatten)]
        store: StoreArguments,
    },
    /// Copy the items of a running memcached that this store or server does not have
    Warm {
        /// The memcached to copy from: HOST:PORT, or the path of its socket
        #[arg(long, value_name = "ADDR")]
        from: Address,
        /// Copy into the server that listens there rather than open the data
        #[arg(long, value_name = "ADDR", conflicts_with = "keyspace")]
        memcached: Option<Address>,
        #[command(flatten)]
        keyspace: KeyspaceArguments,
        #[command(flatten)]
        store: StoreArguments,
    },
    /// Print the keys of a store, or of a running server, one a line, in no particular order
    List {
        /// Only keys that begin so
        #[arg(long, value_name = "TEXT", default_value = "")]
        prefix: String,
        /// Also, after tabs: bytes of the value, flags, and expiry in unix seconds (0 is never)
        #[arg(long)]
        long: bool,
        /// Ask the server that listens there rather than open the data
        #[arg(long, visible_alias = "server", value_name = "ADDR", conflicts_with = "keyspace")]
        memcached: Option<Address>,
        #[command(flatten)]
        keyspace: KeyspaceArguments,
        #[command(flatten)]
        store: StoreArguments,
    },
    /// Print the items of a store, or of a running server, as lines that load reads
    Dump {
        /// Only keys that begin so
        #[arg(long, value_name = "TEXT", default_value = "")]
        prefix: String,
        /// What lines to print; tsv has no place for flags and expiry
        #[arg(long, value_enum, default_value = "jsonl")]
        format: Format,
        /// Print what can be read of a damaged store, also of one that does not open, and count what cannot
        #[arg(long, conflicts_with = "memcached")]
        skip_bad: bool,
        /// Ask the server that listens there rather than open the data: a backup while it serves
        #[arg(long, visible_alias = "server", value_name = "ADDR", conflicts_with = "keyspace")]
        memcached: Option<Address>,
        #[command(flatten)]
        keyspace: KeyspaceArguments,
        #[command(flatten)]
        store: StoreArguments,
    },
    /// Print the lines of a database that is made, or put them into a store
    #[command(subcommand)]
    Generate(GenerateCommand),
    /// Print the items of an ordered keyspace in the order of their keys, or what a query says of any keyspace, without a server
    Scan(ScanArguments),
    /// Analyse the graph whose edges are records of a keyspace, without a server
    #[command(subcommand)]
    Graph(GraphCommand),
    /// Look inside a store, or a running server: superblock, manifest and segments, or where a key lives
    Inspect {
        /// Say where this key lives, rather than what there is
        key: Option<String>,
        /// The keyspace of the key
        #[arg(long, value_name = "NAME", requires = "key", default_value = DEFAULT_NAME, value_parser = keyspace_name())]
        keyspace: String,
        /// Draw the drive: what lies where, and how much of it is valid
        #[arg(long, conflicts_with = "key")]
        map: bool,
        /// Draw it again every so many seconds
        #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2", requires = "map",
              value_parser = clap::value_parser!(u32).range(1..=86_400))]
        watch: Option<u32>,
        /// As JSON
        #[arg(long, conflicts_with = "map")]
        json: bool,
        /// Ask the server that listens there rather than read the data
        #[arg(long, value_name = "ADDR", conflicts_with = "keyspace")]
        memcached: Option<Address>,
        #[command(flatten)]
        store: StoreArguments,
    },
    /// Make, list, describe, drop and rename the keyspaces of a store, while no server runs on it
    #[command(subcommand)]
    Keyspace(KeyspaceCommand),
    /// Give a store more flash, or a running server more or less memory
    Resize(ResizeArguments),
    /// Test every checksum and invariant of a store that no server has open
    Check {
        #[command(flatten)]
        store: StoreArguments,
    },
    /// Say what is damaged in a store that no server has open, and what a repair would cost; with --yes, repair it
    Repair(RepairArguments),
}

const LOAD_HELP: &str = r#"Lines of a .tsv file are KEY<tab>VALUE, where \t \n \r \\ and \xHH stand for what cannot.
Lines of a .jsonl file are {"key":"k","value":"v"}, with "flags" and "expiry" (unix seconds) if wanted, and
"value_base64" (or "key_base64") for what is no text."#;

#[derive(Debug, Args)]
pub struct StoreArguments {
    /// The directory of the data
    #[arg(long, value_name = "DIR", default_value = "./tapetum-data")]
    pub data: PathBuf,
    /// A file or block device for the data, instead of a file in --data
    #[arg(long, value_name = "FILE|DEV")]
    pub drive: Option<PathBuf>,
    /// Flash it may use: a new store has it, a smaller one grows to it [default: 10GiB, or half of what is free if that is less; all of a block device]
    #[arg(long, value_name = "SIZE", value_parser = capacity)]
    pub capacity: Option<u64>,
    /// Memory for index, buffers and what is on its way
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = memory)]
    pub memory: u64,
}

impl StoreArguments {
    pub fn place(&self) -> Place {
        match &self.drive {
            Some(drive) => Place::Drive(drive.clone()),
            None => Place::Directory(self.data.clone()),
        }
    }
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("size").required(true).multiple(true))]
pub struct ResizeArguments {
    /// Flash that the store may use from now on; it cannot shrink
    #[arg(long, value_name = "SIZE", value_parser = capacity, group = "size")]
    pub capacity: Option<u64>,
    /// Memory that a running server may use until it stops; without one, say it to serve
    #[arg(long, value_name = "SIZE", value_parser = memory, group = "size", requires = "memcached")]
    pub memory: Option<u64>,
    /// The server whose store it is, which serves meanwhile
    #[arg(long, value_name = "ADDR")]
    pub memcached: Option<Address>,
    /// The directory of the data, if no server runs
    #[arg(long, value_name = "DIR", default_value = "./tapetum-data")]
    pub data: PathBuf,
    /// The file or block device of the data, if it has its own
    #[arg(long, value_name = "FILE|DEV")]
    pub drive: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

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
}
