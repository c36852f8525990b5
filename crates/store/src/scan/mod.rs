//! Scans, and queries over what they see.
//!
//! ```text
//! ordered keyspace ─► range of keys ─► items, in the order of the keys                                                    ([`ordered`])
//!
//! hashed keyspace ──► snapshot: segments, their validity ─┐
//!                     └─ what write buffers say ─► host   ├─► lists ([`layout`]) ─► drive: `scan` over them ─► frames ─► result
//! ordered keyspace ─► nodes of a range of keys ───────────┘                         └─ missed keys ─► a scan, host ──────┘
//! ```
//! What a query sees, and why: `docs/decisions/what-a-scan-sees.md`.

mod drive_side;
mod flight;
mod host_side;
pub mod layout;
mod ordered;
#[cfg(test)]
mod ordered_tests;
mod query_scan;
mod query_task;
mod segment_lists;
mod snapshot;
#[cfg(test)]
mod snapshot_tests;
#[cfg(test)]
mod tests;
mod values;

pub use ordered::Scan;
pub use query_scan::{QueryError, QueryReport, QuerySide};
pub use query_task::QueryTask;
