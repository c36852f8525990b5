//! The command line of `tapetum freeze`, and the option that names a freeze.

use std::time::Duration;

use clap::{Args, Subcommand};

use crate::cli::arguments::PlaceArguments;
use crate::cli::ranges::{freeze_lasts, memory};

#[derive(Debug, Subcommand)]
#[command(after_help = FREEZE_HELP)]
pub enum FreezeCommand {
    /// Freeze all keyspaces of a running server's store: print the id by which commands name this moment
    Create {
        /// The owner's name, as `freeze list` shows it; an owner has 8 freezes at most [default: your name]
        #[arg(long, value_name = "NAME")]
        owner: Option<String>,
        /// How long it lasts, unless it is renewed: 1ms to 24h
        #[arg(long = "for", value_name = "TIME", default_value = "1m", value_parser = freeze_lasts)]
        lasts: Duration,
        /// End it when it keeps more flash than this from writers [default: a quarter of the store's]
        #[arg(long, value_name = "SIZE", value_parser = memory)]
        flash: Option<u64>,
        #[command(flatten)]
        place: PlaceArguments,
    },
    /// Print the freezes of a running server, the oldest first: what they show, how long they last, and what they hold
    List {
        /// As JSON, with all their figures
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        place: PlaceArguments,
    },
    /// Let a freeze last so long from now on
    Renew {
        /// As `freeze create` printed it
        id: u64,
        /// How long: 1ms to 24h
        #[arg(long = "for", value_name = "TIME", default_value = "1m", value_parser = freeze_lasts)]
        lasts: Duration,
        #[command(flatten)]
        place: PlaceArguments,
    },
    /// End a freeze, so that writers get back the flash that it keeps
    Release {
        /// As `freeze create` printed it
        id: u64,
        #[command(flatten)]
        place: PlaceArguments,
    },
}

const FREEZE_HELP: &str = "\
A freeze is a moment of the whole store that stays: `list`, `dump`, `scan`, `graph bc` and `keyspace list` show it with --freeze ID, the
same each time, whatever is written meanwhile. It lives in a running server, and ends when it is released, when its time is over, when it
keeps more flash than it may, or when writers need that flash.";

#[derive(Clone, Copy, Debug, Args)]
pub struct FreezeArguments {
    /// Read the store as it was when the freeze with this id was made: see `tapetum freeze`
    #[arg(long, value_name = "ID")]
    pub freeze: Option<u64>,
}
