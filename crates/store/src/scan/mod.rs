//! Scans.
//!
//! ```text
//! ordered keyspace ─► range of keys ─► items, in the order of the keys              ([`ordered`])
//! hashed keyspace ─► snapshot: segments, their validity, what write buffers say ─┬─► drive: `scan` over segments ─► frames ─┐
//!                                                                                └─► host: the same query over buffers ─────┴─► result
//! ```
//! What a query sees, and why: `docs/decisions/what-a-scan-sees.md`.

mod drive_side;
mod host_side;
mod ordered;
mod query_scan;
mod snapshot;
#[cfg(test)]
mod tests;

pub use ordered::Scan;
pub use query_scan::{QueryError, QueryReport, QuerySide};
