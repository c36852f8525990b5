//! The role that each command of memcached's protocols needs. Pure.

use tapetum_service::request::Role;

use crate::protocol::binary::BinaryCommand;
use crate::protocol::meta::{Line, MetaVerb};
use crate::protocol::text::TextCommand;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    Nothing,
    Role(Role, Over),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// The keyspace that the client sees.
    Keyspace,
    /// All of them, and the store.
    Store,
}

pub const READ: Need = Need::Role(Role::Read, Over::Keyspace);
pub const WRITE: Need = Need::Role(Role::Write, Over::Keyspace);
const READ_STORE: Need = Need::Role(Role::Read, Over::Store);
const ADMIN: Need = Need::Role(Role::Admin, Over::Keyspace);
pub const ADMIN_STORE: Need = Need::Role(Role::Admin, Over::Store);

pub fn of_text(command: &TextCommand<'_>) -> Need {
    match command {
        TextCommand::Get { .. } | TextCommand::List { .. } => READ,
        TextCommand::GetAndTouch { .. }
        | TextCommand::Store { .. }
        | TextCommand::TooLarge { .. }
        | TextCommand::Increment { .. }
        | TextCommand::Touch { .. }
        | TextCommand::Delete { .. } => WRITE,
        TextCommand::Meta { line, .. } => of_meta(line),
        TextCommand::FlushAll { .. } => ADMIN,
        TextCommand::Stats { argument } => of_stats(argument),
        TextCommand::Watch { .. } | TextCommand::Resize { .. } | TextCommand::CacheMemlimit { .. } => ADMIN_STORE,
        TextCommand::Verbosity { .. }
        | TextCommand::Refused { .. }
        | TextCommand::RefusedLine { .. }
        | TextCommand::Version
        | TextCommand::Quit => Need::Nothing,
    }
}

fn of_meta(line: &Line<'_>) -> Need {
    match line.verb {
        MetaVerb::Get if line.flags.vivify.or(line.flags.recache).or(line.flags.touch).is_some() => WRITE,
        MetaVerb::Get | MetaVerb::Debug => READ,
        MetaVerb::Set | MetaVerb::Delete | MetaVerb::Arithmetic => WRITE,
        MetaVerb::NoOp => Need::Nothing,
    }
}

pub fn of_binary(command: &BinaryCommand<'_>) -> Need {
    match command {
        BinaryCommand::Get { .. } => READ,
        BinaryCommand::GetAndTouch { .. }
        | BinaryCommand::Touch { .. }
        | BinaryCommand::Store { .. }
        | BinaryCommand::TooLarge { .. }
        | BinaryCommand::Increment { .. }
        | BinaryCommand::Delete { .. } => WRITE,
        BinaryCommand::Flush { .. } => ADMIN,
        BinaryCommand::Stat { argument } => of_stats(argument),
        BinaryCommand::NoOp
        | BinaryCommand::Version
        | BinaryCommand::Quit { .. }
        | BinaryCommand::SaslList
        | BinaryCommand::SaslAuth { .. }
        | BinaryCommand::SaslStep
        | BinaryCommand::Refused { .. } => Need::Nothing,
    }
}

/// `reset` and `detail` change what all see; `conns` shows who is there, and `detail dump` keys of all keyspaces.
fn of_stats(argument: &[u8]) -> Need {
    let mut words = argument.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
    match (words.next().unwrap_or_default(), words.next()) {
        (b"inspect", None) => READ_STORE,
        (b"conns" | b"reset" | b"detail", _) => ADMIN_STORE,
        (word, _) if word.starts_with(b"detail") => ADMIN_STORE,
        _ => READ,
    }
}

/// Commands by which docs/SECURITY.md shows this.
pub const EXAMPLES: [&str; 26] = [
    "get a\r\n",
    "gats 0 a\r\n",
    "mg a v\r\n",
    "mg a v T60\r\n",
    "mg a N30\r\n",
    "me a\r\n",
    "lru_crawler metadump all\r\n",
    "stats\r\n",
    "stats settings\r\n",
    "stats inspect a\r\n",
    "stats inspect\r\n",
    "set a 0 0 1\r\nx\r\n",
    "append a 0 0 1\r\nx\r\n",
    "ms a 1\r\nx\r\n",
    "incr a 1\r\n",
    "touch a 0\r\n",
    "delete a\r\n",
    "md a\r\n",
    "ma a\r\n",
    "flush_all\r\n",
    "stats conns\r\n",
    "stats reset\r\n",
    "stats detail on\r\n",
    "watch\r\n",
    "cache_memlimit 1024\r\n",
    "resize capacity 1073741824\r\n",
];
