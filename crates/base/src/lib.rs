//! The base that every engine of a store stands on: the drive and its areas, the commit log, the manifest, extents, keyspaces, options; and the
//! contracts of an engine.
//!
//! The base knows no engine: [`engine`] defines the contract, and the crate `tapetum` has the engines.
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
