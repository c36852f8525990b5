//! Fuzz targets of what only the store knows, for the crate `tapetum-fuzzing`, which has the others.

mod index;
mod input;
mod log;
mod manifest;
mod superblock;

pub use index::{index, index_image};
pub use input::Input;
pub use log::log;
pub use manifest::{keyspace_edits, manifest_frames, manifest_payload};
pub use superblock::superblock;
