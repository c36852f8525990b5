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
        /// The key of the item, written as for `get`
        #[arg(long, required_unless_present_any = KEY_UNLESS)]
        key: Option<String>,
        /// The keyspace of the item
        #[arg(long, value_name = "NAME", conflicts_with = "file", default_value = DEFAULT_NAME, value_parser = keyspace_name())]
        keyspace: String,
        /// A file rather than an item; - is standard input
        #[arg(long, value_name = "FILE", conflicts_with_all = ["key", "data", "drive", "memory"])]
        file: Option<PathBuf>,
        /// Threads of their own for programs: PROGRAM=NUMBER, with commas between them, such as zstd=1,sha256=2
        #[arg(long, value_name = "UNITS", value_delimiter = ',')]
        compute_units: Vec<String>,
        /// Count the work as that of an application of the running server, and give it that one's share of the drive: see `serve --weight`
        #[arg(long, value_name = "NAME", conflicts_with = "file")]
        application: Option<String>,
        /// Pin these threads, each to a core
        #[arg(long, requires = "compute_units")]
        pin: bool,
        /// Print to standard error what each stage did
        #[arg(long)]
        stats: bool,
        #[cfg(feature = "images")]
        #[command(flatten)]
        pictures: PicturesArguments,
        #[command(flatten)]
        store: StoreArguments,
    },
}

#[cfg(feature = "images")]
const KEY_UNLESS: [&str; 2] = ["file", "keys"];
#[cfg(not(feature = "images"))]
const KEY_UNLESS: [&str; 1] = ["file"];

/// The options that name one item or file. clap ignores `requires = "keys"` if one of these is given, since they conflict with `keys`.
#[cfg(feature = "images")]
const ONE_ITEM: [&str; 2] = ["key", "file"];

/// Options for many pictures rather than one item.
#[cfg(feature = "images")]
#[derive(Debug, clap::Args)]
pub struct PicturesArguments {
    /// Imported pictures whose keys begin so, with commas between them, through a pipeline such as 'jpeg_decode | random_resized_crop 224 | flip'
    #[arg(long, value_name = "PREFIX", value_delimiter = ',', requires = "out",
          conflicts_with_all = ["key", "file", "compute_units", "pin", "stats"])]
    pub keys: Vec<String>,
    /// The folder that they are written into, as JPEG files
    #[arg(long, value_name = "DIR", requires = "keys", conflicts_with_all = ONE_ITEM)]
    pub out: Option<PathBuf>,
    /// The seed of all random choices
    #[arg(long, value_name = "N", requires = "keys", conflicts_with_all = ONE_ITEM, default_value_t = 0)]
    pub seed: u64,
    /// The most pictures
    #[arg(long, value_name = "N", requires = "keys", conflicts_with_all = ONE_ITEM, default_value_t = 100)]
    pub most: usize,
}

const PIPELINE_HELP: &str = "\
`tapetum programs` lists the programs. For four of them there are short words: zstd, zstd -d, snappy, snappy -d; and zstd
takes a level, as in zstd -19; as compute units, zstd and snappy are both directions. fetch may stand first, for the item or the file.
Digests are printed in hexadecimal. An item is computed by the drive that it is on, and only the result is read.";
