//! Host memory under the store's structures: mappings, atomic words that a model may stand in for, sequence locks.

pub mod budget;
pub mod memory_word;
pub mod region;
pub mod sequence_lock;
