//! `repair`: its arguments, and what they ask for.

use std::path::PathBuf;

use clap::Args;
use tapetum::Options;

use super::arguments::StoreArguments;
use crate::output;
use crate::tools::repair;

const REPAIR_HELP: &str = r#"An item that cannot be read is lost, and named by its key where that can be read. Where the commit log or the
manifest is damaged, writes are lost, and named by their stamps: their keys have what they had before, or nothing.
Of an ordered keyspace, where a data node cannot be read, an older one takes its place if there is one; otherwise its
keys are lost. Either way the range of keys is named.
A repair writes what it replaces to a file first. The file undoes it, as long as the store was not written to since: --undo refuses
another store, and one that was written to."#;

#[derive(Debug, Args)]
#[command(after_help = REPAIR_HELP)]
pub struct RepairArguments {
    /// Do it, rather than say what would be done
    #[arg(long)]
    pub yes: bool,
    /// The file to keep what is replaced [default: beside the file of the drive, as drive.before-repair-1; none for a block device]
    #[arg(long, value_name = "FILE", requires = "yes")]
    pub keep: Option<PathBuf>,
    /// Put back what a repair has replaced and kept in this file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["yes", "keep"])]
    pub undo: Option<PathBuf>,
    #[command(flatten)]
    pub store: StoreArguments,
}

/// Runs the command.
pub fn run(arguments: &RepairArguments, options: &Options) -> Result<(), Box<dyn std::error::Error>> {
    let RepairArguments { yes, keep, undo, store } = arguments;
    let (place, mut out) = (store.place(), output::stdout());
    match (undo, yes) {
        (Some(kept), _) => repair::put_back(&place, kept, &mut out),
        (None, true) => repair::repair(&place, options, keep.as_deref(), &mut out),
        (None, false) => repair::look(&place, options, &mut out),
    }
}
