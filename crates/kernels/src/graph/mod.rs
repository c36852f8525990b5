//! Analysis of graphs: from a list of edges to a compact form, and what is computed over it.
//!
//! 1. What a graph takes of memory is known from the number of its edges, before any of it is allocated.
//! 2. Work is parted by source: units work on one graph, each with a state of its own, and states merge.
//! 3. Whoever runs it can end it after some thousand edges.

mod betweenness;
mod csr;
mod plan;
mod work;

pub use betweenness::{Betweenness, Cancelled, Normalization, sampled_sources};
pub use csr::{CsrGraph, Direction, GraphError};
pub use plan::{GRAPH_PARTS_MAX, GraphPlan, GraphStep, PLAN_BYTES, Sampling};
pub use work::{
    EXACT_EDGES_MAX, GraphFailure, GraphResult, GraphSummary, GraphWork, SAMPLES_AUTOMATIC, SLICE_BYTES, SLICES,
};

#[cfg(test)]
mod vectors;
