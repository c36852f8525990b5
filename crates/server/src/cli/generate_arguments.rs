//! The command line of `tapetum generate`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::cli::arguments::{CreationArguments, PlaceArguments, StoreArguments};
use crate::cli::keyspace_arguments::IndexArgument;
use crate::cli::ranges::{capacity, memory};
use crate::tools::packages::PackageTable;
use crate::tools::papers::PaperTable;

#[derive(Debug, Subcommand)]
pub enum GenerateCommand {
    /// A database of papers, made from a seed: a table of it as lines that `load` reads, or all of it in a store
    Papers {
        /// Print this table; each is a keyspace of its own, whose fields `scan --fields` knows by this name
        #[arg(long, value_enum, required_unless_present = "into", conflicts_with = "into")]
        table: Option<PaperTable>,
        /// How large: 1 is 3.8 million papers
        #[arg(long, value_name = "S", default_value_t = 0.001, value_parser = scale)]
        scale: f64,
        /// The same seed gives the same lines
        #[arg(long, value_name = "N", default_value_t = 1)]
        seed: u64,
        #[command(flatten)]
        into: IntoArguments,
    },
    /// The packages of a Debian machine, and which needs which: a real graph
    Packages {
        /// Print this table; each is a keyspace of its own, whose fields `scan --fields` knows by this name
        #[arg(long, value_enum, required_unless_present = "into", conflicts_with = "into")]
        table: Option<PackageTable>,
        /// The file that lists them
        #[arg(long, value_name = "FILE", default_value = "/var/lib/dpkg/status")]
        from: PathBuf,
        #[command(flatten)]
        into: IntoArguments,
    },
}

#[derive(Debug, Args)]
pub struct IntoArguments {
    /// Make a keyspace of each table in the store of this directory, with its format
    #[arg(long, value_name = "DIR")]
    into: Option<PathBuf>,
    /// How keys of these keyspaces are found
    #[arg(long, value_enum, conflicts_with = "table", default_value = "hashed")]
    pub index: IndexArgument,
    /// Make the store if there is none
    #[arg(long, conflicts_with = "table")]
    create: bool,
    /// As --create, and how much flash the store may use
    #[arg(long, value_name = "SIZE", value_parser = capacity, conflicts_with = "table")]
    capacity: Option<u64>,
    /// Memory for index, buffers and requests [default: 256MiB, or what the store needs]
    #[arg(long, value_name = "SIZE", conflicts_with = "table", value_parser = memory)]
    memory: Option<u64>,
}

impl IntoArguments {
    pub fn store(&self) -> Option<StoreArguments> {
        let place = PlaceArguments::of_data(self.into.clone()?);
        Some(StoreArguments { place, memory: self.memory })
    }

    pub fn creation(&self) -> CreationArguments {
        CreationArguments { create: self.create, capacity: self.capacity }
    }
}

fn scale(text: &str) -> Result<f64, String> {
    let scale: f64 = text.parse().map_err(|_| "a scale is a number, such as 0.01".to_string())?;
    if scale > 0.0 && scale <= 100.0 { Ok(scale) } else { Err("a scale is above 0, and at most 100".into()) }
}
