//! Pure functions over bytes that a drive can run: no I/O, no clock, no threads, no allocation in the hot ones.

pub mod checksum;
pub mod hash;
