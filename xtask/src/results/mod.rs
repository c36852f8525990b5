//! What rows find (`outcome`), as one JSON each; and what is made of those that are kept in docs/figures (`report`): the tables and the
//! pictures of docs/BENCHMARKS.md.

pub mod bars;
pub mod chart;
mod origin;
pub mod outcome;
pub mod picture;
pub mod report;
pub mod series;
pub mod spread;
mod stalls;
mod tables;
