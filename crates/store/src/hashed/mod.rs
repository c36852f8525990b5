//! The hashed engine: an index over a log of segments (XDP).
//!
//! ```text
//! write: buffer ─► flush ─► segment, key table ─► install ─► catalog, index
//! read:  buffer ─► tier ─► index ─► segment
//!        collect merges the segments with the fewest valid bytes
//! ```

pub mod block_map;
pub mod buffer;
pub mod catalog;
pub mod check;
pub mod collect;
pub mod engine;
pub mod flush;
pub mod hashed_engine;
pub mod index;
pub mod install;
pub mod item_count;
pub mod jobs;
pub mod key_tables;
pub mod large;
pub mod locate;
pub mod manifest_client;
pub mod manifest_room;
pub mod opening;
pub mod own_pages;
pub mod placement;
pub mod purge;
pub mod resize;
pub mod room;
pub mod segment;
pub mod session;
pub mod slice;
pub mod snapshot;
pub mod snapshot_walk;
pub mod tier;
pub mod write_count;

pub use hashed_engine::HashedEngine;
