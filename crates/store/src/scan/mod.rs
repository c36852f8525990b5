//! Scans, and queries over what they see.
//!
//! ```text
//! ordered keyspace ─► range of keys ─► items, in the order of the keys                                                    ([`ordered`])
//!
//! hashed keyspace ──► snapshot: segments, their validity ─┐
//!                     └─ what write buffers say ─► host   ├─► lists ([`layout`]) ─► drive: `scan` over them ─► frames ─► result
//! ordered keyspace ─► nodes of a range of keys ───────────┘                         └─ missed keys ─► a scan, host ──────┘
//! ```
//! [`fields_get`]: a query over one record; those of ordered keyspaces share [`key_desks`](crate::api::key_desks). [`graph_scan`]: what a scan gives is a graph, which is analysed where it is.
//!
//! Consistency of a query with writes beside it, and its reasons: `docs/decisions/what-a-scan-sees.md`.

mod drive_side;
mod fields_get;
#[cfg(test)]
mod fields_tests;
mod flight;
mod graph_command;
mod graph_drive;
mod graph_gather;
mod graph_scan;
mod graph_source;
#[cfg(test)]
mod graph_tests;
mod host_side;
mod ordered;
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
pub use graph_scan::{GraphOptions, GraphProgress, GraphReport};
pub use ordered::Scan;
pub use query_scan::{QueryError, QueryReport, QuerySide};
pub use query_task::QueryTask;
pub use snapshot_items::SnapshotItems;
