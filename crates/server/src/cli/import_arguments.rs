//! The command line of `tapetum import` (feature `images`).

use std::path::PathBuf;

use clap::Subcommand;

use crate::cli::arguments::{CreationArguments, StoreArguments};
use crate::cli::keyspace_arguments::keyspace_name;

#[derive(Debug, Subcommand)]
pub enum ImportCommand {
    /// Import a folder of JPEG, PNG and WebP files, a folder a class, for pipelines and for training
    Images {
        /// The folder
        dir: PathBuf,
        /// The keyspace that the pictures come into; it is made where there is none
        #[arg(long, value_name = "NAME", default_value = "images", value_parser = keyspace_name())]
        keyspace: String,
        #[command(flatten)]
        store: StoreArguments,
        #[command(flatten)]
        creation: CreationArguments,
    },
}
