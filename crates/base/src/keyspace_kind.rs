//! Kinds of keyspaces.

use std::fmt;

/// The engine that holds a keyspace.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[non_exhaustive]
pub enum KeyspaceKind {
    #[default]
    Hashed,
    Ordered,
    /// An engine that this version does not name. A store with keyspaces of one that was not given to its opening does not open.
    Other(u8),
}

impl KeyspaceKind {
    const HASHED: u8 = 1;
    const ORDERED: u8 = 2;

    /// The kind that the manifest writes as this number.
    pub const fn of_code(code: u8) -> KeyspaceKind {
        match code {
            KeyspaceKind::HASHED => KeyspaceKind::Hashed,
            KeyspaceKind::ORDERED => KeyspaceKind::Ordered,
            other => KeyspaceKind::Other(other),
        }
    }

    pub const fn code(self) -> u8 {
        match self {
            KeyspaceKind::Hashed => KeyspaceKind::HASHED,
            KeyspaceKind::Ordered => KeyspaceKind::ORDERED,
            KeyspaceKind::Other(code) => code,
        }
    }
}

impl fmt::Display for KeyspaceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyspaceKind::Hashed => f.write_str("hashed"),
            KeyspaceKind::Ordered => f.write_str("ordered"),
            KeyspaceKind::Other(code) => write!(f, "kind {code}"),
        }
    }
}
