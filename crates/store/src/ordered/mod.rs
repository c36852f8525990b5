//! The ordered engine: a radix tree in host memory over pages at the drive (Retina).
//!
//! ```text
//! data layer: slots of groups of extents (`slabs`): data nodes of 4 KiB, extensions
//! recovery:   the live rule over the heads of all images (`images`), and what reads them (`recover`)
//! ```

pub mod images;
pub mod recover;
pub mod slabs;

#[cfg(test)]
mod testing;
