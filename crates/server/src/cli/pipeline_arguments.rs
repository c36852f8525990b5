//! The command line of `tapetum pipeline`.

use std::path::PathBuf;

use clap::Subcommand;

use crate::cli::arguments::StoreArguments;
use crate::cli::keyspace_arguments::{DEFAULT_NAME, keyspace_name};

#[derive(Debug, Subcommand)]
pub enum PipelineCommand {
    /// Run an item, or a file, through programs, and print what comes out
    #[command(after_help = PIPELINE_HELP)]
    Run {
        /// Programs with | between them, such as 'fetch | zstd -d | sha256'
        pipeline: String,
        /// The key of the item
        #[arg(long, required_unless_present = "file")]
        key: Option<String>,
        /// The keyspace of the item
        #[arg(long, value_name = "NAME", conflicts_with = "file", default_value = DEFAULT_NAME, value_parser = keyspace_name())]
        keyspace: String,
        /// A file rather than an item; - is standard input
        #[arg(long, value_name = "FILE", conflicts_with = "key")]
        file: Option<PathBuf>,
        /// Threads of their own for programs: PROGRAM=NUMBER, with commas between them, such as zstd=1,sha256=2
        #[arg(long, value_name = "UNITS", value_delimiter = ',')]
        compute_units: Vec<String>,
        /// Pin these threads, each to a core
        #[arg(long, requires = "compute_units")]
        pin: bool,
        /// Print to standard error what each stage did
        #[arg(long)]
        stats: bool,
        #[command(flatten)]
        store: StoreArguments,
    },
}

const PIPELINE_HELP: &str = "\
`tapetum programs` lists the programs. For four of them there are short words: zstd, zstd -d, snappy, snappy -d; and zstd
takes a level, as in zstd -19; as compute units, zstd and snappy are both directions. fetch may stand first, for the item or the file.
Digests are printed in hexadecimal. An item is computed by the drive that it is on, and only the result is read.";
