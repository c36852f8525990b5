//! What can be asked of a store. Plain data: what a program of another machine could send as well.
//!
//! A request names keys by their bytes and queries by their text. The variants and their members are a format between two processes of one
//! version: see [`crate::socket`].

use serde::{Deserialize, Serialize};
use tapetum::{KeyBound, KeyRange};

use crate::reply::{BlockDeviceSize, ItemRow};

/// What whoever asks must be allowed to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    Read,
    Write,
    Admin,
}

impl Role {
    pub const ALL: [Role; 3] = [Role::Read, Role::Write, Role::Admin];

    pub fn name(self) -> &'static str {
        match self {
            Role::Read => "read",
            Role::Write => "write",
            Role::Admin => "admin",
        }
    }

    /// As in "may not read".
    pub fn verb(self) -> &'static str {
        match self {
            Role::Read => "read",
            Role::Write => "write",
            Role::Admin => "administer",
        }
    }

    pub fn named(name: &str) -> Option<Role> {
        Role::ALL.into_iter().find(|role| role.name() == name)
    }
}

/// The reach of a role that is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope<'a> {
    /// All keyspaces, and what none of them has alone.
    Store,
    Keyspace(&'a str),
    Both(&'a str, &'a str),
    /// Any one: the answer shows only those over which whoever asks has it.
    AnyKeyspace,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Request {
    /// One keyspace and how many items it has; all of them without a name. Answered with [`crate::reply::Reply::Keyspaces`]. Of a freeze nobody
    /// counts the items.
    Keyspaces {
        name: Option<String>,
        freeze: Option<u64>,
    },
    /// The format of a keyspace's records.
    Format {
        keyspace: String,
        freeze: Option<u64>,
    },
    CreateKeyspace(CreateKeyspace),
    DropKeyspace {
        name: String,
    },
    RenameKeyspace {
        from: String,
        to: String,
    },
    /// Without fields, the format is forgotten.
    SetFormat {
        keyspace: String,
        fields: Option<String>,
    },
    /// An error if an item of the keyspace does not fit.
    CheckFormat {
        keyspace: String,
        fields: String,
    },
    GrowBlockDevice {
        name: String,
        size_bytes: u64,
    },
    /// Answered with one item or none.
    Get {
        keyspace: String,
        #[serde(with = "serde_bytes")]
        key: Vec<u8>,
    },
    /// Refuses an item that does not fit the keyspace's format.
    Put {
        keyspace: String,
        #[serde(with = "serde_bytes")]
        key: Vec<u8>,
        #[serde(with = "serde_bytes")]
        value: Vec<u8>,
    },
    /// Many items at once, whatever the keyspace's format. Answered with a verdict of each.
    Store {
        keyspace: String,
        items: Vec<ItemRow>,
        keeps_existing: bool,
    },
    /// Answered with the number of items that were deleted: one or none.
    Delete {
        keyspace: String,
        #[serde(with = "serde_bytes")]
        key: Vec<u8>,
    },
    /// As [`Request::Get`], with the stamp of the item's last write. Answered with [`crate::reply::Reply::Stamped`].
    GetStamped {
        keyspace: String,
        #[serde(with = "serde_bytes")]
        key: Vec<u8>,
    },
    /// Stores an item whose last write has this stamp; without a stamp, one whose key does not exist. Answered with a verdict.
    CompareAndSet {
        keyspace: String,
        item: ItemRow,
        stamp: Option<u64>,
    },
    /// Answered with [`crate::reply::Reply::Counted`].
    Increment(Increment),
    /// As [`Request::Delete`], of many at once.
    DeleteMany {
        keyspace: String,
        keys: Vec<serde_bytes::ByteBuf>,
    },
    /// The items of an ordered keyspace, in their order, at one moment: now, or that of the freeze with this id.
    Scan {
        keyspace: String,
        freeze: Option<u64>,
        range: Range,
        limit: Option<u64>,
        wanted: ScanWanted,
    },
    /// The items of any keyspace whose keys begin so, in no order that means anything if it is hashed, at one moment as a scan's.
    List {
        keyspace: String,
        freeze: Option<u64>,
        #[serde(with = "serde_bytes")]
        prefix: Vec<u8>,
        wanted: ListWanted,
    },
    /// Columns, rows and a report.
    Query(Query),
    /// The same of one record; a report only if there is such a key.
    GetFields(GetFields),
    Betweenness(Betweenness),
    /// An item through a pipeline of the drive's programs. Answered with bytes, if there is such an item, and stages; or
    /// [`crate::reply::Reply::TooLong`].
    RunPipeline {
        keyspace: String,
        #[serde(with = "serde_bytes")]
        key: Vec<u8>,
        pipeline: String,
        application: Option<String>,
    },
    /// Pictures through a pipeline. Answered with a picture, or why there is none, of each.
    RunPictures(RunPictures),
    /// Freezes all keyspaces. Answered with the freeze's report, as a list of one.
    Freeze(Freeze),
    /// The freezes that have not ended, the oldest first. Answered with [`crate::reply::Reply::Freezes`].
    Freezes,
    /// Lets a freeze last so long from now on. Answered with its report.
    RenewFreeze {
        id: u64,
        lasts_ms: u64,
    },
    ReleaseFreeze {
        id: u64,
    },
    /// Makes a backup in a folder of the machine on which the store is open, or in object storage, with what the environment of the process that
    /// has the store open says of it. Answered with [`crate::reply::Reply::Progress`], in bytes, now and
    /// then, and [`crate::reply::Reply::BackedUp`].
    Backup {
        /// As [`tapetum_depot::Destination`] parses it.
        to: String,
        /// Takes nothing over from earlier backups.
        anew: bool,
    },
    /// Lets a standby take the place of the server that it follows. Answered with [`crate::reply::Reply::Promoted`].
    Promote {
        /// Also where nobody knows what is lost.
        force: bool,
    },
    /// The store's figures, and the number of items of each keyspace.
    Figures,
    /// Reads what is on flash and looks at its checksums; of a store that is not served, at all that ties it together as well. Answered with figures,
    /// or the failure that names the damage.
    Check,
    /// What the store holds, as lines of [`crate::inspect_lines`].
    Inspect,
    /// Where a key lives, as such lines.
    Locate {
        keyspace: String,
        #[serde(with = "serde_bytes")]
        key: Vec<u8>,
    },
    Grow {
        capacity_bytes: u64,
    },
    /// What the server that has the store open may use, until it stops.
    ResizeMemory {
        memory_bytes: u64,
    },
}

/// Adds to a value that is a decimal number as text, or subtracts from it: by memcached's rules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Increment {
    pub keyspace: String,
    #[serde(with = "serde_bytes")]
    pub key: Vec<u8>,
    pub delta: u64,
    pub is_decrement: bool,
    /// The number that a key gets that does not exist.
    pub initial: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CreateKeyspace {
    pub name: String,
    pub is_ordered: bool,
    pub block_device: Option<BlockDeviceSize>,
    /// Whether it may be there already, of the same kind.
    pub may_exist: bool,
}

/// A freeze that is asked for: see [`tapetum::FreezeOptions`]. It stays when the client goes, until its time is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Freeze {
    pub owner: String,
    pub lasts_ms: u64,
    pub flash_bytes_max: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunPictures {
    pub keyspace: String,
    /// The picture that it ends with is not in a batch.
    pub pipeline: String,
    /// Imported pictures whose keys begin with one of these.
    pub prefixes: Vec<Vec<u8>>,
    /// The seed of all random choices.
    pub seed: u64,
    /// The most pictures.
    pub most: u64,
    pub application: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ScanWanted {
    Items,
    Count,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ListWanted {
    Keys,
    Items,
}

/// A range of keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    pub from: Bound,
    pub to: Bound,
    pub is_reverse: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Bound {
    #[default]
    Unbounded,
    Included(#[serde(with = "serde_bytes")] Vec<u8>),
    Excluded(#[serde(with = "serde_bytes")] Vec<u8>),
}

/// A query's text: see [`tapetum::query::QueryText`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueryWords {
    /// The format of the records.
    pub fields: String,
    pub condition: Option<String>,
    pub select: String,
    pub group_by: Option<String>,
    pub having: Option<String>,
    pub order_by: Option<String>,
    pub limit: Option<u64>,
    /// Whether records that do not fit are left out and counted; else the first ends the query.
    pub skips_misfits: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Side {
    Drive,
    /// Each row by itself.
    DriveByRecord,
    Host,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Query {
    pub keyspace: String,
    /// The freeze whose moment is queried.
    pub freeze: Option<u64>,
    pub words: QueryWords,
    pub range: Range,
    pub side: Side,
    /// Whose work it is at the drive; without a name, nobody's in particular.
    pub application: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GetFields {
    pub keyspace: String,
    #[serde(with = "serde_bytes")]
    pub key: Vec<u8>,
    pub words: QueryWords,
    pub side: Side,
    pub application: Option<String>,
}

/// Betweenness of the nodes of a graph: see [`tapetum::GraphOptions`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Betweenness {
    pub keyspace: String,
    pub freeze: Option<u64>,
    /// Its rows are edges: the node that each leads from, and that to which it leads.
    pub words: QueryWords,
    pub side: Side,
    pub application: Option<String>,
    pub is_undirected: bool,
    pub is_normalized: bool,
    pub sources: Sources,
    pub seed: u64,
    pub top: u32,
    pub memory_bytes: u64,
    pub parts: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Sources {
    Automatic,
    Exact,
    Samples(u32),
}

impl Request {
    /// The role that is needed, and over what.
    pub fn needs(&self) -> (Role, Scope<'_>) {
        match self {
            Request::Keyspaces { name: None, .. } => (Role::Read, Scope::AnyKeyspace),
            Request::Keyspaces { name: Some(keyspace), .. }
            | Request::Format { keyspace, .. }
            | Request::CheckFormat { keyspace, .. }
            | Request::Get { keyspace, .. }
            | Request::GetStamped { keyspace, .. }
            | Request::RunPipeline { keyspace, .. }
            | Request::RunPictures(RunPictures { keyspace, .. })
            | Request::Locate { keyspace, .. }
            | Request::Scan { keyspace, .. }
            | Request::List { keyspace, .. }
            | Request::Query(Query { keyspace, .. })
            | Request::GetFields(GetFields { keyspace, .. })
            | Request::Betweenness(Betweenness { keyspace, .. }) => (Role::Read, Scope::Keyspace(keyspace)),
            Request::Store { keyspace, .. }
            | Request::Put { keyspace, .. }
            | Request::CompareAndSet { keyspace, .. }
            | Request::Increment(Increment { keyspace, .. })
            | Request::Delete { keyspace, .. }
            | Request::DeleteMany { keyspace, .. } => (Role::Write, Scope::Keyspace(keyspace)),
            Request::CreateKeyspace(CreateKeyspace { name, .. })
            | Request::DropKeyspace { name }
            | Request::SetFormat { keyspace: name, .. }
            | Request::GrowBlockDevice { name, .. } => (Role::Admin, Scope::Keyspace(name)),
            Request::RenameKeyspace { from, to } => (Role::Admin, Scope::Both(from, to)),
            Request::Figures
            | Request::Check
            | Request::Inspect
            | Request::Freeze(_)
            | Request::Freezes
            | Request::RenewFreeze { .. }
            | Request::ReleaseFreeze { .. } => (Role::Read, Scope::Store),
            Request::Grow { .. } | Request::ResizeMemory { .. } | Request::Backup { .. } | Request::Promote { .. } => {
                (Role::Admin, Scope::Store)
            }
        }
    }
}

impl From<KeyRange> for Range {
    fn from(range: KeyRange) -> Range {
        let bound = |bound| match bound {
            KeyBound::Unbounded => Bound::Unbounded,
            KeyBound::Included(key) => Bound::Included(key),
            KeyBound::Excluded(key) => Bound::Excluded(key),
        };
        Range { from: bound(range.from), to: bound(range.to), is_reverse: range.is_reverse }
    }
}

impl From<Range> for KeyRange {
    fn from(range: Range) -> KeyRange {
        let bound = |bound| match bound {
            Bound::Unbounded => KeyBound::Unbounded,
            Bound::Included(key) => KeyBound::Included(key),
            Bound::Excluded(key) => KeyBound::Excluded(key),
        };
        KeyRange { from: bound(range.from), to: bound(range.to), is_reverse: range.is_reverse }
    }
}
