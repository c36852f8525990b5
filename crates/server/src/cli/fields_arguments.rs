//! The command line of `tapetum get`.

use clap::Args;

use crate::cli::arguments::{KEY_HELP, StoreArguments};
use crate::cli::keyspace_arguments::KeyspaceArguments;
use crate::cli::scan_arguments::RunSide;
use crate::tools::query_rows::RowFormat;

#[derive(Debug, Args)]
#[command(after_help = KEY_HELP)]
#[command(group = clap::ArgGroup::new("of_fields").args(["select", "fields"]).multiple(true))]
pub struct GetArguments {
    /// The key: the values of its fields, with commas between them, or its bytes as `list` prints them
    pub key: String,
    /// Print these of the record's fields rather than the value; only they come from the drive
    #[arg(long, value_name = "COLUMNS")]
    pub select: Option<String>,
    /// The format of keys and values, as `scan` takes it [default: the one that `keyspace format` keeps]
    #[arg(long, value_name = "FORMAT")]
    pub fields: Option<String>,
    /// The side that picks the fields
    #[arg(long, value_enum, requires = "of_fields", default_value = "drive")]
    pub run: RunSide,
    /// The format to print them in
    #[arg(long, value_enum, requires = "of_fields", default_value = "table")]
    pub format: RowFormat,
    /// Tell on standard error how much was read, sent and returned
    #[arg(long, requires = "of_fields")]
    pub explain: bool,
    #[command(flatten)]
    pub keyspace: KeyspaceArguments,
    #[command(flatten)]
    pub store: StoreArguments,
}

impl GetArguments {
    pub fn asks_for_fields(&self) -> bool {
        self.select.is_some() || self.fields.is_some()
    }
}
