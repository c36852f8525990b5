//! What every engine of a store stands on: the drive and what lies on it, the commit log, the manifest, extents, keyspaces, options; and
//! the contracts that an engine keeps.
//!
//! It knows no engine: [`engine`] says what one is, and the crate `tapetum` has them.
//!
//! ```text
//! base/ (of an open store) ─► engine/ (contracts) ─► session/ (what the parts of a session share)
//!   ▼ maintenance/ and recover/ work on it
//! installer ─► manifest/ ─► keyspace/ ─► wake/, media/ ─► error/        log/ ─► wake/, media/ ─► error/
//! ```

pub mod base;
pub mod engine;
pub mod error;
pub mod installer;
pub mod keyspace;
pub mod keyspace_kind;
pub mod log;
pub mod maintenance;
pub mod manifest;
pub mod media;
pub mod memory;
pub mod needs;
pub mod options;
pub mod phase;
pub mod recover;
pub mod request;
pub mod session;
pub mod stats;
pub mod wake;
