//! Typed scans: what the fields of a keyspace's records are, and what is computed of them.
//!
//! ```text
//! format ─► field reader ─┐
//! program ────────────────┴─► machine: batch of records ─► those that are kept, their registers
//!                                                             │
//! query ─► run: a part of the records ─► frames: rows, or a partial ─► result: those of all parts, merged
//! ```
//! 1. Formats and programs are plain data with a binary form, which crosses to the drive. Whatever its bytes are, reading it ends in time
//!    in proportion to their number, and gives a checked value or an error.
//! 2. Whatever a record's bytes are, it has values, or is a [`Misfit`]. Nothing panics.
//! 3. Work on a record is bounded by its length and the program's.
//!
//! Functions of a caller's bytes: threads are the caller's.

pub mod access;
pub mod aggregate;
pub mod batch;
mod distinct;
pub mod fields;
pub mod format;
mod format_text;
pub mod groups;
pub mod json_path;
pub mod json_scanner;
pub mod like;
pub mod machine;
pub mod program;
pub mod query;
pub mod record_writer;
pub mod result;
pub mod rows;
pub mod run;
pub mod top;
pub mod value;
pub mod wire;

pub use batch::{BATCH_BYTES, BATCH_ROWS, LentBatch, RowBatch, Rows};
pub use fields::{FieldReader, Misfit};
pub use format::{Field, FieldKind, Format};
pub use format_text::{FormatProblem, FormatTextError};
pub use machine::Machine;
pub use program::Program;
pub use query::Query;
pub use result::QueryResult;
pub use run::{QueryRun, RunError, ScanCounts};
pub use value::{OwnedScalar, Scalar, ScalarType};

#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod query_tests;
