//! The store's parts on flash, and the I/O of cold work: superblock, geometry, extents, straight-line I/O.

pub mod extent_forms;
pub mod extents;
pub mod features;
pub mod flash_run;
pub mod flight;
pub mod geometry;
pub mod io;
pub mod member_label;
pub mod piece_transfer;
pub mod row_end;
pub mod superblock;
pub mod transfer;
pub mod wire;
