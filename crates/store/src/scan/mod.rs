//! Scans, and queries over what they see.
//!
//! ```text
//! a moment ([`moment`]) ─┬─ items                                                                                     ([`snapshot_items`])
//!                        ├─ hashed: segments, their validity ─┐
//!                        │          what write buffers say ─► host   ├─► lists ─► drive: `scan` over them ─► frames ─► result
//!                        └─ ordered: nodes of a range of keys ┘                     └─ missed keys ─► their nodes, host ──────┘
//! ```
//! [`fields_get`]: a query over one record; those of ordered keyspaces share [`key_desks`](crate::api::key_desks). [`graph_scan`]: what a scan gives is a graph, which is analysed where it is.
//!
//! What a moment is, and its reasons: `docs/decisions/what-a-scan-sees.md`.

mod drive_side;
mod fields_get;
#[cfg(test)]
mod fields_tests;
mod flight;
#[cfg(test)]
mod freeze_tests;
mod freezes;
mod frozen_blocks;
mod graph_command;
mod graph_drive;
mod graph_gather;
mod graph_scan;
mod graph_source;
#[cfg(test)]
mod graph_tests;
mod host_side;
mod moment;
#[cfg(test)]
mod ordered_tests;
mod query_scan;
mod query_task;
mod record_transfer;
mod segment_lists;
mod snapshot_items;
#[cfg(test)]
mod snapshot_tests;
#[cfg(test)]
mod tests;
mod values;

pub(crate) use drive_side::PART_BYTES;
pub use freezes::{Freeze, FreezeTask, FrozenKeyspace, FrozenView, ReadKeyspace};
pub use frozen_blocks::FrozenBlocks;
pub use graph_scan::{GraphOptions, GraphProgress, GraphReport};
pub use query_scan::{QueryError, QueryReport, QuerySide};
pub use query_task::QueryTask;
pub use snapshot_items::{ItemsTask, SnapshotItems};
