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
//! store.close()?;
//! # drop(store);
//! # std::fs::remove_dir_all(&path)?;
//! # Ok(())
//! # }
//! ```
//!
//! [`Options`] says how much flash and memory it may take and when a write is acknowledged.

mod access;
mod blocking;
mod buffer;
mod catalog;
mod check;
mod checked_keys;
mod checkpoint;
mod collect;
mod deletion;
mod error;
mod extents;
mod flight;
mod flush;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod geometry;
mod hash_sort;
pub mod index;
mod index_recovery;
pub mod inspect;
mod install;
mod io;
mod item_count;
mod key_check;
mod key_mend;
mod key_reader;
mod key_tables;
mod large;
mod locate;
mod log;
mod maintenance;
mod manifest;
mod manifest_room;
mod memory_word;
mod needs;
mod notify;
mod opening;
mod options;
mod pace;
mod partition_load;
mod phase;
pub mod planted;
mod recover;
mod region;
pub mod repair;
pub mod request;
mod resize;
mod room;
mod scan;
mod segment;
mod sequence_lock;
mod session;
mod shared;
pub mod stats;
mod store;
mod superblock;
/// Open to what measures its hit rate.
#[doc(hidden)]
pub mod tier;
mod transfer;
mod unreadable;
mod victim;
mod warm;
mod wire;

pub use access::Access;
pub use blocking::Item;
pub use check::{CheckReport, check};
pub use error::Error;
pub use inspect::{Inspection, inspect, inspect_drive};
pub use large::ValueLimits;
pub use locate::{KeyPlace, Location, RecordFacts, SegmentPlace, locate};
pub use log::Sync;
pub use maintenance::Step;
pub use opening::{OpenError, OpenNote, Options, Place, inspect_at, lock, store_bytes};
pub use options::{Full, Slabs, StoreOptions};
pub use phase::Phase;
pub use request::*;
pub use resize::Resizing;
pub use scan::{Scanned, scan};
pub use session::{Ask, Busy, ItemPipeline, KEPT_BYTES_MAX, KeyDigest, OPERATIONS_MAX, Session, Write};
pub use stats::Stats;
pub use store::Store;
pub use tapetum_kernels::record::Marks;
pub use tier::{Item as DramItem, SlabClass, SlabQueue};
pub use warm::{Warmed, Warming};
