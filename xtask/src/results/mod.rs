//! The results of rows, one JSON each (`outcome`), and the tables and pictures that docs/BENCHMARKS.md has of those kept in docs/figures
//! (`report`).

pub mod bars;
pub mod chart;
pub mod origin;
pub mod outcome;
pub mod picture;
pub mod report;
pub mod series;
pub mod spread;
mod stalls;
mod tables;
