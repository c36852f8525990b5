//! What is answered. Plain data, but for rows of queries, which go through [`crate::caller::Caller::row`].

use serde::{Deserialize, Serialize};
use tapetum::backup::lease::Loss;
use tapetum::{Expiry, FreezeReport};
use tapetum_drive::engine::StageSnapshot;
use tapetum_kernels::scan::ScalarType;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    Keyspaces(Vec<KeyspaceRow>),
    Format(FormatRow),
    Items(Vec<ItemRow>),
    /// An item and the stamp of its last write; `None`, if there is no such key.
    Stamped(Option<(ItemRow, u64)>),
    Keys(Vec<KeyRow>),
    Count(u64),
    Counted(Counted),
    /// One of each item that was to be stored, in their order.
    Verdicts(Vec<Verdict>),
    /// The columns of the rows that follow.
    Columns(Vec<Column>),
    /// How a query went; behind its rows.
    Queried(Queried),
    Graph(Graph),
    Progress {
        done: u64,
        of: u64,
    },
    Figures(Vec<(String, String)>),
    Bytes(#[serde(with = "serde_bytes")] Vec<u8>),
    /// The output of a pipeline is too long for the store's local memory: whoever asked reads the item, and runs it.
    TooLong,
    Picture {
        #[serde(with = "serde_bytes")]
        key: Vec<u8>,
        /// Its pixels: see [`tapetum_kernels::images::Frame`].
        #[serde(with = "serde_bytes")]
        frame: Vec<u8>,
    },
    /// Why there is no picture of a key.
    NoPicture(String),
    /// What the stages of pipelines have done since the store was opened.
    Stages(Vec<StageRow>),
    Freezes(Vec<FreezeRow>),
    BackedUp(BackupRow),
    Promoted(PromotedRow),
}

/// A standby that serves writes from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromotedRow {
    pub generation: u64,
    /// The backup that it began with.
    pub number: u64,
    /// For how long before its end the server before may have acknowledged writes that are lost; `None`: nobody knows.
    pub loss_ms: Option<u64>,
}

impl PromotedRow {
    pub fn new(generation: u64, number: u64, loss: Loss) -> PromotedRow {
        let loss_ms = match loss {
            Loss::Unknown => None,
            Loss::None => Some(0),
            Loss::AtMostMs(loss_ms) => Some(loss_ms),
        };
        PromotedRow { generation, number, loss_ms }
    }
}

/// A backup that was made: see [`tapetum::backup::BackupReport`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupRow {
    pub number: u64,
    pub generation: u64,
    pub keyspaces: u64,
    pub drive_bytes: u64,
    pub copied_bytes: u64,
}

/// What became of an item that was to be stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    Stored,
    /// There was an item of this key, and it was not to be overwritten.
    Kept,
    /// The store takes no such item, for this reason.
    Bad(String),
    /// It was not stored, for a reason that is not its own.
    Failed(String),
}

/// The end of an addition to a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Counted {
    Number(u64),
    /// The value is no decimal number.
    NoNumber,
    NoKey,
}

/// A freeze: see [`tapetum::FreezeReport`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FreezeRow {
    pub id: u64,
    pub owner: String,
    pub stamp: u64,
    pub moment_unix_ms: u64,
    pub age_us: u64,
    pub left_us: u64,
    pub pause_us: u64,
    pub copied_nodes: u64,
    pub keyspaces: u64,
    pub flash_bytes: u64,
    pub memory_bytes: u64,
}

impl From<FreezeReport> for FreezeRow {
    fn from(report: FreezeReport) -> FreezeRow {
        FreezeRow {
            id: report.id,
            owner: report.owner,
            stamp: report.stamp,
            moment_unix_ms: report.moment_unix_ms,
            age_us: report.age_us,
            left_us: report.left_us,
            pause_us: report.pause_us,
            copied_nodes: report.copied_nodes,
            keyspaces: report.keyspaces as u64,
            flash_bytes: report.flash_bytes,
            memory_bytes: report.memory_bytes,
        }
    }
}

/// A stage's counters: see [`tapetum_drive::engine::StageSnapshot`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageRow {
    pub name: String,
    pub tasks: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    pub unit_us: u64,
    pub failures: u64,
    pub waits: u64,
}

impl From<StageSnapshot> for StageRow {
    fn from(stage: StageSnapshot) -> StageRow {
        let StageSnapshot { name, tasks, bytes_in, bytes_out, unit_us, failures, waits } = stage;
        StageRow { name, tasks, bytes_in, bytes_out, unit_us, failures, waits }
    }
}

impl Reply {
    /// The figures, if it is those.
    pub fn into_figures(self) -> Option<Vec<(String, String)>> {
        if let Reply::Figures(figures) = self { Some(figures) } else { None }
    }
}

/// What a command must know of a keyspace before it asks for its items.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FormatRow {
    /// The format of its records, if it is known.
    pub fields: Option<String>,
    pub is_ordered: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyspaceRow {
    pub id: u32,
    pub name: String,
    /// As people call it.
    pub kind: String,
    pub is_ordered: bool,
    pub is_dropping: bool,
    /// The number of items. Expired ones count until their room is reclaimed. `None` in a freeze.
    pub items: Option<u64>,
    /// The text of a format; of one of another version it says so.
    pub format: Option<String>,
    pub block_device: Option<BlockDeviceSize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockDeviceSize {
    pub size_bytes: u64,
    pub group_blocks: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ItemRow {
    #[serde(with = "serde_bytes")]
    pub key: Vec<u8>,
    #[serde(with = "serde_bytes")]
    pub value: Vec<u8>,
    pub flags: u32,
    #[serde(with = "expiry")]
    pub expiry: Expiry,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyRow {
    #[serde(with = "serde_bytes")]
    pub key: Vec<u8>,
    pub value_bytes: u64,
    pub flags: u32,
    #[serde(with = "expiry")]
    pub expiry: Expiry,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Column {
    pub name: String,
    /// Its place in a row.
    pub place: usize,
    #[serde(with = "scalar_type")]
    pub scalar_type: ScalarType,
}

/// How a query went.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Queried {
    pub is_on_host: bool,
    pub is_row_by_row: bool,
    /// Threads of the drive that computed; `None` is whoever waited.
    pub units: Option<u16>,
    pub records: u64,
    pub kept: u64,
    pub misfits: Option<Misfits>,
    pub commands: u64,
    pub wake_ups: u64,
    pub flash_bytes: u64,
    pub sent_bytes: u64,
    pub returned_bytes: u64,
    pub buffered: u64,
    pub scanned: u64,
    pub are_groups_chosen: bool,
    pub are_groups_ordered: bool,
    pub costs: Costs,
}

/// Records that do not fit their format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Misfits {
    pub count: u64,
    #[serde(with = "serde_bytes")]
    pub first_key: Vec<u8>,
    /// Why the first one does not.
    pub first_why: String,
}

/// What passed while a request was served; of a server, for all its clients.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Costs {
    pub elapsed_us: u64,
    /// Of host and drive together.
    pub cpu_us: u64,
    /// The part of the drive's own threads, or of its process with all of its stores.
    pub drive_cpu_us: u64,
    pub commands: u64,
    /// How often a side that slept was woken by the other.
    pub drive_wakes: u64,
    pub host_wakes: u64,
    pub flash_bytes: u64,
    pub to_drive_bytes: u64,
    pub to_host_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Graph {
    #[serde(with = "scalar_type")]
    pub node_type: ScalarType,
    pub nodes: u64,
    pub edges: u64,
    pub sources: u64,
    /// Rows with a NULL, which are no edges.
    pub nulls: u64,
    /// Nodes and their centrality, the greatest first.
    pub top: Vec<(u64, f64)>,
    pub queried: Queried,
}

mod expiry {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use tapetum::Expiry;

    pub fn serialize<S: Serializer>(expiry: &Expiry, serializer: S) -> Result<S::Ok, S::Error> {
        expiry.millis().serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Expiry, D::Error> {
        u64::deserialize(deserializer).map(Expiry::from_millis)
    }
}

mod scalar_type {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use tapetum_kernels::scan::ScalarType;

    pub fn serialize<S: Serializer>(of: &ScalarType, serializer: S) -> Result<S::Ok, S::Error> {
        (*of as u8).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ScalarType, D::Error> {
        ScalarType::of_code(u8::deserialize(deserializer)?).ok_or_else(|| D::Error::custom("an unknown type of column"))
    }
}
