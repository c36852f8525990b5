//! Tapetum: an embedded key-value store whose second layer lives with the data.
//!
//! The host keeps a few bytes an item (the index), and decides; the drive keeps pages and records, and computes. See
//! [`Store`] for blocking calls and [`Session`] for many operations on their way at once; `docs/ARCHITECTURE.md` follows
//! one GET and one PUT through both.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let path = std::env::temp_dir().join(format!("tapetum-example-{}", std::process::id()));
//! # let small = tapetum::Options::new().capacity_bytes(64 << 20).memory_bytes(32 << 20);
//! # small.open(&path)?.close()?;
//! let store = tapetum::Store::open(&path)?;
//! store.put(b"greeting", b"hello")?;
//! assert_eq!(store.get(b"greeting")?.map(|item| item.value), Some(b"hello".to_vec()));
//! for item in store.items() {
//!     let (key, item) = item?;
//!     assert_eq!((&key[..], &item.value[..]), (&b"greeting"[..], &b"hello"[..]));
//! }
//! store.close()?;
//! # drop(store);
//! # std::fs::remove_dir_all(&path)?;
//! # Ok(())
//! # }
//! ```
//!
//! [`Options`] says how much flash and memory it may take and when a write is acknowledged. A [`Format`] says what records are made of, and
//! [`KeyspaceHandle::query`] runs a query over them at the drive; with the feature `sql`, the module `query` compiles one from text.

mod api;
pub mod backup;
#[cfg(test)]
mod base_tests;
#[cfg(test)]
mod engine_tests;
mod engines;
#[cfg(test)]
#[path = "../tests/common/folder.rs"]
mod folder;
mod freeze;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod hashed;
#[cfg(feature = "images")]
pub mod images;
mod opening;
// Open until the store has an engine over it.
#[doc(hidden)]
pub mod ordered;
#[cfg(feature = "sql")]
pub mod query;
mod scan;
mod tools;

pub use api::blocking::{Item, KeyspaceHandle};
pub use api::items::Items;
pub use api::key_listing::{ListCursor, ListPart, ListedKey};
pub use api::session::{
    Application, Ask, Busy, ItemPipeline, KEPT_BYTES_MAX, KeyDigest, Limits, OPERATIONS_MAX, PlainPut, Session, Write,
};
pub use api::store::Store;
pub use freeze::list::{FREEZES_MAX, FREEZES_OF_OWNER_MAX, LASTS_MAX as FREEZE_LASTS_MAX};
pub use freeze::{FreezeEnd, FreezeError, FreezeOptions, FreezeReport};
pub use hashed::index;
pub use hashed::large::ValueLimits;
pub use hashed::tier::warm::{Warmed, Warming};
pub use hashed::tier::{SlabClass, SlabQueue};
pub use hashed::write_count::KeyspaceWrites;
pub use opening::{
    MemberError, NewStore, OpenError, OpenNote, Options, Place, RestoreError, inspect_at, lock, restore_at,
    restore_over, store_bytes, when_free,
};
pub use scan::{
    Freeze, FreezeTask, FrozenBlocks, FrozenKeyspace, FrozenView, GraphOptions, GraphProgress, GraphReport, ItemsTask,
    QueryError, QueryReport, QuerySide, QueryTask, ReadKeyspace, SnapshotItems,
};
pub use tapetum_base::base::Resizing;
pub use tapetum_base::base::fence::Fence;
#[doc(hidden)]
pub use tapetum_base::engine::ImageMarks;
pub use tapetum_base::engine::check_report::CheckReport;
pub use tapetum_base::engine::inspection::Inspection;
pub use tapetum_base::engine::key_place::{
    ExtensionPlace, ImagePlace, KeyPlace, Location, NodePlace, RecordFacts, SegmentPlace,
};
pub use tapetum_base::error::{Error, KeyspaceError};
pub use tapetum_base::keyspace::KeyspaceId;
pub use tapetum_base::keyspace::block_device::{AbsentBlocks, BLOCK_BYTES, BlockDevice, BlockKey};
pub use tapetum_base::keyspace::catalogue::{Catalogue, Keyspace, KeyspaceEdit, KeyspaceState};
pub use tapetum_base::keyspace::catalogue::{
    DEFAULT_NAME as DEFAULT_KEYSPACE_NAME, checked_name as checked_keyspace_name,
};
pub use tapetum_base::keyspace::changing::{KeyspaceChange, KeyspaceWish};
pub use tapetum_base::keyspace::states::KeyspaceRef;
pub use tapetum_base::keyspace_kind::KeyspaceKind;
pub use tapetum_base::log::Sync;
pub use tapetum_base::maintenance::Step;
pub use tapetum_base::options::{Full, Slabs, StoreOptions, TierSize};
pub use tapetum_base::phase::Phase;
pub use tapetum_base::request::block_request::{BlockChange, BlockPiece, ChangeStep, Patch};
pub use tapetum_base::request::item::{Access, ItemHead as DramItem};
pub use tapetum_base::request::key_range::{KeyBound, KeyRange, ScanPart, ScanReply, ScannedItem};
pub use tapetum_base::request::{Condition, Initial, Outcome, Reply, Request, Terms, ValueRange};
pub use tapetum_base::stats;
pub use tapetum_base::stats::{Stats, StoreFigure};
pub use tapetum_base::wake::under_way::UnderWay;
pub use tapetum_drive::Redundancy;
pub use tapetum_kernels::expiry::Expiry;
pub use tapetum_kernels::record::Marks;
pub use tapetum_kernels::scan::query::MisfitPolicy;
pub use tapetum_kernels::scan::result::RowSink;
pub use tapetum_kernels::scan::{
    Field, FieldKind, Format, FormatProblem, FormatTextError, Misfit, OwnedScalar, Query, QueryResult, Scalar,
    ScalarType, ScanCounts,
};
pub use tools::check::{CheckInUse, check};
pub use tools::inspect::inspect_drive;
pub use tools::locate::locate;
pub use tools::scan::{Scanned, scan};
pub use tools::{inspect, inspect::inspect, repair};

/// The program in the README, so that it compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// The program in the map for users of RocksDB, so that it compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/COMING-FROM.md")]
struct ComingFrom;
