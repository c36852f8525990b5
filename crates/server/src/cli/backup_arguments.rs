//! The command line of `tapetum backup`.

use std::ffi::OsStr;
use std::path::PathBuf;

use clap::builder::TypedValueParser;
use clap::error::ErrorKind;
use clap::{Arg, Command, Error, Subcommand};
use tapetum_depot::Destination;

use crate::cli::arguments::StoreArguments;

/// Parses the place of backups. Its error does not repeat the text: what looks like a URL may hold a password, and a server's errors are logged.
#[derive(Clone, Copy, Debug)]
pub struct DestinationParser;

impl TypedValueParser for DestinationParser {
    type Value = Destination;

    fn parse_ref(&self, command: &Command, argument: Option<&Arg>, text: &OsStr) -> Result<Destination, Error> {
        Destination::parse(text).map_err(|error| {
            let of = argument.map(ToString::to_string).unwrap_or_default();
            Error::raw(ErrorKind::ValueValidation, format!("the place of {of} makes no sense: {error}\n"))
                .with_cmd(command)
        })
    }
}

pub fn destination() -> DestinationParser {
    DestinationParser
}

#[derive(Debug, Subcommand)]
#[command(after_help = BACKUP_HELP)]
pub enum BackupCommand {
    /// Copy the whole store, as it is at one moment, to a folder or to object storage; of what its last backup has, nothing is copied
    Create {
        /// The place of this store's backups: a folder, which is made if it is not there, or s3://BUCKET/PREFIX
        #[arg(value_name = "PLACE", value_parser = destination())]
        to: Destination,
        /// Copy everything, whatever earlier backups have
        #[arg(long)]
        anew: bool,
        #[command(flatten)]
        store: StoreArguments,
    },
    /// Print the backups at a place, the oldest first
    List {
        /// The place of the backups
        #[arg(value_name = "PLACE", value_parser = destination())]
        from: Destination,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Read backups, and look at the checksum of all their bytes
    Verify {
        /// The place of the backups
        #[arg(value_name = "PLACE", value_parser = destination())]
        from: Destination,
        /// The number of a backup, as `backup list` prints it [default: all of them]
        #[arg(long, value_name = "N")]
        number: Option<u64>,
    },
    /// Make a new store of a backup
    Restore {
        /// The place of the backups
        #[arg(value_name = "PLACE", value_parser = destination())]
        from: Destination,
        /// The directory of the new store, or a file that it is to be
        #[arg(long, value_name = "NEW")]
        into: PathBuf,
        /// The number of a backup, as `backup list` prints it [default: the last one]
        #[arg(long, value_name = "N")]
        number: Option<u64>,
        /// Restore what is left of a backup that lacks bytes: `tapetum repair` then makes a store of it
        #[arg(long)]
        partial: bool,
    },
    /// Remove all backups but the last ones, and the bytes that only those needed
    Prune {
        /// The place of the backups
        #[arg(value_name = "PLACE", value_parser = destination())]
        from: Destination,
        /// How many stay
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        keep: u32,
    },
}

const BACKUP_HELP: &str = "\
A backup is one moment of all keyspaces, with their kinds and formats, and of all block devices. It is made while a server serves the store,
or of a store that no server has open. A place has the backups of one store; each is whole by itself, and shares its bytes with those before it.
`sha256sum` of a file in packs/ prints its name.

A place is a folder, or s3://BUCKET/PREFIX of S3 or a server that speaks its protocol. Its address and credentials are read from the environment:
AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION; AWS_ENDPOINT_URL, and AWS_ALLOW_HTTP=true if that is http. `create` of a store that a server
has open needs them in the server's environment.";
