//! The ordered engine: a radix tree in host memory over pages at the drive (Retina).
//!
//! ```text
//! search layer: anchor key ─► data node         host memory (`search`)
//! node table:   data node ─► slot, stamp        host memory (`node_table`)
//! mirror cache: pages in local memory, their metadata on the host, slot for slot (`cache`)
//! data layer:   slots of groups of extents (`slabs`): data nodes of 4 KiB, extensions
//! write-back:   changed pages become images, stamped, each in a free slot (`write_back`); the last ones of a quiet keyspace are attested
//!               by a round (`quiet`)
//! freezes:      the nodes of one moment, and a hold of their slots (`frozen`), taken while nobody changes nodes (`gate`)
//! sessions:     get, put, remove, scan, split, merge (`session`)
//! sweeps:       merges that sessions left behind, by maintenance (`sweeps`)
//! recovery:     the live rule over the heads of all images (`images`), and what reads them (`recover`); after a clean stop, a checkpoint
//!               of anchors (`anchor_checkpoint`)
//! ```
//!
//! Each data node holds a range of keys. Its **anchor** is the shortest separator between its smallest key and the keys of the node
//! before it, so anchors are short where keys are long. The leftmost node's anchor is the empty key.
//!
//! Locks, each taken before those behind it: passes of the gate → writers of batches → the write-back's turn → the lists of pages → a set of the cache → node table, slots. The log's
//! locks come after the write-back's turn, and are taken with none of the others held. None is held across a submission. Pages are taken,
//! not locked: whoever finds one taken does something else.

pub mod anchor_checkpoint;
pub mod batches;
pub mod cache;
pub mod check;
pub mod engine;
pub mod frozen;
pub mod gate;
pub mod images;
mod inspect;
#[cfg(test)]
mod inspect_tests;
mod job;
pub mod node_programs;
pub mod node_table;
mod quiet;
pub mod recover;
pub mod search;
pub mod session;
pub mod slabs;
mod sweeps;
pub mod tree;
pub mod write_back;

#[cfg(test)]
mod batch_crash_tests;
#[cfg(test)]
mod checkpoint_tests;
#[cfg(test)]
mod churn_tests;
#[cfg(test)]
mod close_tests;
#[cfg(test)]
mod full_tests;
#[cfg(test)]
pub mod store_bench;
#[cfg(test)]
mod testing;
