//! The ordered engine: a radix tree in host memory over pages at the drive (Retina).
//!
//! ```text
//! search layer: anchor key ─► data node         host memory (`search`)
//! data layer:   slots of groups of extents (`slabs`): data nodes of 4 KiB, extensions
//! recovery:     the live rule over the heads of all images (`images`), and what reads them (`recover`)
//! ```
//!
//! Each data node holds a range of keys. Its **anchor** is the shortest separator between its smallest key and the keys
//! of the node before it, so anchors are short where keys are long. The leftmost node's anchor is the empty key.

pub mod images;
pub mod recover;
pub mod search;
pub mod slabs;

#[cfg(test)]
mod testing;
