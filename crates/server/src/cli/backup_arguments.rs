//! The command line of `tapetum backup`.

use std::path::PathBuf;

use clap::Subcommand;

use crate::cli::arguments::StoreArguments;

#[derive(Debug, Subcommand)]
#[command(after_help = BACKUP_HELP)]
pub enum BackupCommand {
    /// Copy the whole store, as it is at one moment, to a folder; of what its last backup has, nothing is copied
    Create {
        /// The folder of this store's backups; it is made if it is not there
        folder: PathBuf,
        /// Copy everything, whatever earlier backups have
        #[arg(long)]
        anew: bool,
        #[command(flatten)]
        store: StoreArguments,
    },
    /// Print the backups in a folder, the oldest first
    List {
        /// The folder of backups
        folder: PathBuf,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Read backups, and look at the checksum of all their bytes
    Verify {
        /// The folder of backups
        folder: PathBuf,
        /// The number of a backup, as `backup list` prints it [default: all of them]
        #[arg(long, value_name = "N")]
        number: Option<u64>,
    },
    /// Make a new store of a backup
    Restore {
        /// The folder of backups
        folder: PathBuf,
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
        /// The folder of backups
        folder: PathBuf,
        /// How many stay
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        keep: u32,
    },
}

const BACKUP_HELP: &str = "\
A backup is one moment of all keyspaces, with their kinds and formats, and of all block devices. It is made while a server serves the store,
or of a store that no server has open. A folder has the backups of one store; each is whole by itself, and shares its bytes with those before it.
`sha256sum` of a file in packs/ prints its name.";
