//! The command line of `tapetum keyspace`, and the option that names a keyspace.

use std::os::unix::ffi::OsStrExt;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, Subcommand, ValueEnum};
use tapetum::{BlockDevice, checked_keyspace_name};

use crate::cli::arguments::{CreationArguments, StoreArguments};
use crate::cli::freeze_arguments::FreezeArguments;
use tapetum_service::size;

/// The keyspace that every store has.
pub const DEFAULT_NAME: &str = tapetum::DEFAULT_KEYSPACE_NAME;

#[derive(Debug, Subcommand)]
#[command(after_help = KEYSPACE_HELP)]
pub enum KeyspaceCommand {
    /// Make an empty keyspace
    Create {
        /// Any text of at most 255 bytes without control characters
        #[arg(value_parser = keyspace_name())]
        name: String,
        /// How its keys are found
        #[arg(long, value_enum, default_value = "hashed")]
        index: IndexArgument,
        /// Make it a block device of so much, in blocks of 4 KiB that take room when they are written: `tapetum serve --nbd` serves it
        #[arg(long, value_name = "SIZE", value_parser = device_size)]
        block_device: Option<BlockDevice>,
        /// The number of neighbouring blocks of a block device that lie together on flash: 8 or 16 make sequential reads fast, and each
        /// random write rewrites its group; cannot be changed later
        #[arg(long, value_name = "BLOCKS", default_value_t = 1, requires = "block_device")]
        group_blocks: u64,
        #[command(flatten)]
        store: StoreArguments,
        #[command(flatten)]
        creation: CreationArguments,
    },
    /// Print a store's keyspaces, one a line: its name, its kind, how many items it has (- in a freeze, of which nobody counts
    /// them), its block device and its format, if it has them, with tabs between
    List {
        /// As JSON, with numbers, kinds, states and formats, dropped ones included whose room has not come back
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        freeze: FreezeArguments,
        #[command(flatten)]
        store: StoreArguments,
    },
    /// Print what a keyspace is: its name, kind, how many items it has, and its format
    Show {
        #[arg(value_parser = keyspace_name())]
        name: String,
        #[command(flatten)]
        store: StoreArguments,
    },
    /// Keep the fields of a keyspace's keys and values with it, so that queries need no --fields; without FIELDS, print them
    Format {
        #[arg(value_parser = keyspace_name())]
        name: String,
        /// As `scan --fields` takes them
        fields: Option<String>,
        /// Read all items, and refuse the format if one does not fit, to its last byte
        #[arg(long)]
        check: bool,
        /// Forget it
        #[arg(long, conflicts_with_all = ["fields", "check"])]
        remove: bool,
        #[command(flatten)]
        store: StoreArguments,
    },
    /// Delete a keyspace with everything in it, for good; its room comes back while a server serves the store
    Drop {
        #[arg(value_parser = keyspace_name())]
        name: String,
        /// Drop it; without this, say what would be dropped
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        store: StoreArguments,
    },
    /// Make a block device larger
    Resize {
        #[arg(value_parser = keyspace_name())]
        name: String,
        /// Its new size
        #[arg(value_parser = device_size)]
        size: BlockDevice,
        #[command(flatten)]
        store: StoreArguments,
    },
    /// Give a keyspace another name
    Rename {
        #[arg(value_parser = keyspace_name())]
        from: String,
        #[arg(value_parser = keyspace_name())]
        to: String,
        #[command(flatten)]
        store: StoreArguments,
    },
}

const KEYSPACE_HELP: &str = "\
A keyspace has keys of its own: others do not see them, and flush_all of one leaves the others as they are. Every store has
the keyspace default, which is neither dropped nor renamed. A running server
does all of this too; `tapetum serve --keyspace NAME` shows one to memcached clients.";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum IndexArgument {
    /// By a hash of the key: one at a time, in no order
    Hashed,
    /// By the order of the keys: scans too; keys to 1,024 bytes
    Ordered,
}

#[derive(Debug, Args)]
pub struct KeyspaceArguments {
    /// The keyspace of the keys
    #[arg(long, value_name = "NAME", default_value = DEFAULT_NAME, value_parser = keyspace_name())]
    pub keyspace: String,
}

/// Parses any text that is allowed as a keyspace's name.
pub fn keyspace_name() -> impl TypedValueParser<Value = String> {
    OsStringValueParser::new().try_map(|name| checked_keyspace_name(name.as_bytes()).map(str::to_owned))
}

fn device_size(text: &str) -> Result<BlockDevice, String> {
    BlockDevice::new(size::parse(text)?).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use crate::cli::arguments::Cli;
    use clap::Parser;
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;

    #[test]
    fn names_that_cannot_be_are_refused_wherever_they_stand() {
        let long = vec![b'a'; 300];
        for (name, advice) in [
            (&b""[..], "is empty"),
            (&long, "has 300 bytes: use at most 255"),
            (b"a\nb", "control character"),
            (b"a\xffb", "not UTF-8"),
        ] {
            for words in [
                &["keyspace", "create", "NAME"][..],
                &["keyspace", "drop", "NAME"],
                &["keyspace", "rename", "a", "NAME"],
                &["keyspace", "rename", "NAME", "a"],
                &["get", "key", "--keyspace", "NAME"],
            ] {
                let words = std::iter::once("tapetum").chain(words.iter().copied());
                let words = words.map(|word| match word {
                    "NAME" => OsString::from_vec(name.into()),
                    word => word.into(),
                });
                let refusal = Cli::try_parse_from(words).unwrap_err().to_string();
                assert!(refusal.contains(advice), "{refusal}");
            }
        }
    }

    #[test]
    fn a_keyspace_is_named_for_keys_of_data_and_for_nothing_else() {
        let parse = |line: &str| Cli::try_parse_from(line.split_whitespace());
        for line in [
            "tapetum list --keyspace a",
            "tapetum inspect key --keyspace a",
            "tapetum pipeline run sha256 --key k --keyspace a",
            "tapetum load --memcached unix:/x",
            "tapetum keyspace create a --index hashed",
            "tapetum keyspace create a --index ordered",
            "tapetum keyspace create a --block-device 100GiB",
            "tapetum keyspace create a --block-device 100GiB --group-blocks 8",
            "tapetum keyspace resize a 200GiB",
            "tapetum scan --keyspace a --count",
        ] {
            assert!(parse(line).is_ok(), "{line}");
        }
        for line in [
            "tapetum load --memcached unix:/x --keyspace a",
            "tapetum warm --from unix:/y --memcached unix:/x --keyspace a",
            "tapetum inspect key --memcached unix:/x --keyspace a",
            "tapetum inspect --keyspace a",
            "tapetum pipeline run sha256 --file f --keyspace a",
            "tapetum keyspace create a --index sorted",
            "tapetum keyspace create a --block-device 1000",
            "tapetum keyspace create a --block-device 0",
            "tapetum keyspace create a --group-blocks 8",
            "tapetum keyspace resize a",
            "tapetum scan --from a",
            "tapetum scan --keyspace a --count --format tsv",
            "tapetum keyspace",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
