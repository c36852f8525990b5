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
//! [`Options`] says how much flash and memory it may take and when a write is acknowledged.

mod base;
mod blocking;
mod error;
mod figures;
#[cfg(test)]
#[path = "../tests/common/folder.rs"]
mod folder;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod hashed;
#[cfg(feature = "images")]
pub mod images;
mod installer;
mod items;
mod key_listing;
mod keyspace;
mod keyspace_calls;
mod log;
mod maintenance;
mod manifest;
mod media;
mod memory;
mod needs;
mod opening;
// Open until the store has an engine over it.
#[doc(hidden)]
pub mod ordered;
mod phase;
#[cfg(feature = "sql")]
pub mod query;
mod recover;
mod scan;
mod session;
pub mod stats;
mod store;
mod tools;

pub use blocking::{Item, KeyspaceHandle};
pub use error::Error;
pub use hashed::index;
pub use hashed::large::ValueLimits;
pub use hashed::tier::warm::{Warmed, Warming};
pub use hashed::tier::{SlabClass, SlabQueue};
pub use hashed::write_count::KeyspaceWrites;
pub use items::Items;
pub use key_listing::{ListCursor, ListPart, ListedKey};
pub use keyspace::KeyspaceId;
pub use keyspace::block_device::{AbsentBlocks, BLOCK_BYTES, BlockDevice, BlockKey};
pub use keyspace::block_request::{BlockChange, BlockPiece, ChangeStep, Patch};
pub use keyspace::catalogue::{Catalogue, Keyspace, KeyspaceEdit, KeyspaceKind, KeyspaceState};
pub use keyspace::catalogue::{DEFAULT_NAME as DEFAULT_KEYSPACE_NAME, checked_name as checked_keyspace_name};
pub use keyspace::changing::{KeyspaceChange, KeyspaceWish};
#[doc(hidden)]
pub use keyspace::engine::ImageMarks;
pub use keyspace::item::{Access, ItemHead as DramItem};
pub use keyspace::key_range::{KeyBound, KeyRange, ScanPart, ScanReply, ScannedItem};
pub use keyspace::keyspace_error::KeyspaceError;
pub use keyspace::request;
pub use keyspace::request::*;
pub use keyspace::states::KeyspaceRef;
pub use log::Sync;
pub use maintenance::Step;
pub use maintenance::resize::Resizing;
pub use maintenance::under_way::UnderWay;
pub use opening::options::{Full, Slabs, StoreOptions, TierSize};
pub use opening::{NewStore, OpenError, OpenNote, Options, Place, inspect_at, lock, store_bytes};
pub use phase::Phase;
pub use scan::{GraphOptions, GraphProgress, GraphReport, QueryError, QueryReport, QuerySide, QueryTask, Scan};
pub use session::{
    Application, Ask, Busy, ItemPipeline, KEPT_BYTES_MAX, KeyDigest, Limits, OPERATIONS_MAX, Session, Write,
};
pub use stats::{Stats, StoreFigure};
pub use store::Store;
pub use tapetum_kernels::record::Marks;
pub use tools::check::{CheckReport, check};
pub use tools::inspect::{Inspection, inspect_drive};
pub use tools::locate::{ExtensionPlace, ImagePlace, KeyPlace, Location, NodePlace, RecordFacts, SegmentPlace, locate};
pub use tools::scan::{Scanned, scan};
pub use tools::{inspect, inspect::inspect, repair};

/// The program in the README, so that it compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
