//! Pure functions over bytes that a drive can run: no I/O, no clock, no threads, no allocation in the hot ones.

pub mod bits;
pub mod block_group;
pub mod checksum;
pub mod codec;
pub mod data_page;
pub mod delta_bucket;
pub mod extent_address;
pub mod fence_page;
pub mod fences;
pub mod graph;
pub mod hash;
pub mod hash_each;
pub mod image_error;
#[cfg(feature = "images")]
pub mod images;
pub mod key_table;
pub mod ordered;
pub mod prefetch;
pub mod range_checksums;
pub mod record;
pub mod reference;
pub mod scan;
pub mod sha256;
pub mod snappy;
pub mod tag_bucket;
pub mod zstd_stream;
