//! Fuzz targets of this crate's internals, for the crate `tapetum-fuzzing`, which has the others.

mod index;
mod input;
mod log;
mod manifest;
mod query;
mod statement;
mod superblock;

pub use index::{index, index_image};
pub use input::Input;
pub use log::log;
pub use manifest::{keyspace_edits, manifest_frames, manifest_payload};
pub use query::query_text;
pub use statement::statement;
pub use superblock::superblock;
