//! Betweenness of the graph whose edges a query gives (nKV's BC), at the drive or on the host.
//!
//! ```text
//! drive:  `SCAN → BC`: [`super::graph_drive`]
//! host:   items ─► query ─► frames ─► the same work, on this thread
//! ```

use super::graph_drive::GraphDrive;
use super::moment::refuse_unreadable;
use super::query_scan::{QueryError, QueryReport, QuerySide, check_misfits};
use crate::api::blocking::{Item, KeyspaceHandle};
use tapetum_kernels::graph::{
    Direction, GRAPH_PARTS_MAX, GraphFailure, GraphPlan, GraphResult, GraphStep, GraphSummary, GraphWork,
    Normalization, SLICE_BYTES, SLICES, Sampling,
};
use tapetum_kernels::scan::query::{MisfitPolicy, QueryOutput};
use tapetum_kernels::scan::{Query, QueryResult, QueryRun, RowBatch, RunError, Scalar};

/// Batches of edges read on the host between two looks at whether anybody still waits.
const LOOK_BATCHES: u64 = 16;

/// Options of a graph's betweenness.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct GraphOptions {
    pub direction: Direction,
    pub normalization: Normalization,
    pub sampling: Sampling,
    /// The same seed draws the same sources.
    pub seed: u64,
    /// Nodes that are shown: those with the most.
    pub top: u32,
    /// Most memory that all parts may take together, beside local memory, in whole MiB.
    pub memory_bytes: u64,
    /// Parts of the work at the drive: as many as its program `betweenness` has units. From 1 to [`GRAPH_PARTS_MAX`].
    pub parts: u8,
}

/// How far it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GraphProgress {
    pub slices_done: u64,
    /// About: small graphs have fewer.
    pub slices: u64,
}

#[derive(Clone, PartialEq, Debug)]
pub struct GraphReport {
    pub summary: GraphSummary,
    /// Nodes and their centrality, the greatest first.
    pub top: Vec<(u64, f64)>,
    pub query: QueryReport,
}

impl GraphOptions {
    pub(super) fn plan(&self, step: GraphStep, part: u8, policy: MisfitPolicy) -> GraphPlan {
        let parts = if step == GraphStep::Merge { 1 } else { self.parts };
        GraphPlan {
            step,
            direction: self.direction,
            normalization: self.normalization,
            is_strict: policy == MisfitPolicy::Fail,
            part,
            parts,
            sampling: self.sampling,
            seed: self.seed,
            top: self.top,
            memory_mib: u32::try_from((self.memory_bytes / u64::from(parts)) >> 20).unwrap_or(u32::MAX),
        }
    }

    pub(super) fn slices(&self) -> u64 {
        SLICES as u64 * u64::from(self.parts)
    }
}

impl KeyspaceHandle {
    /// Computes the betweenness of the nodes of a graph. Its edges are the query's rows, of two integers each; a row with a NULL is none. The
    /// drive sees the keyspace as [`KeyspaceHandle::query`] does. `go_on` hears now and then how far it is, and ends it by `false`.
    ///
    /// # Errors
    /// As [`KeyspaceHandle::query`]; [`QueryError::NotEdges`], [`QueryError::GraphTooLarge`], [`QueryError::Cancelled`].
    pub fn betweenness(
        &self,
        edges: &Query,
        options: &GraphOptions,
        side: QuerySide,
        go_on: &mut dyn FnMut(GraphProgress) -> bool,
    ) -> Result<GraphReport, QueryError> {
        refuse_unreadable(self)?;
        let are_edges = match edges.output() {
            QueryOutput::Rows { order: None, .. } => {
                edges.result_types().len() == 2 && edges.result_types().iter().all(|of| of.is_integer())
            }
            _ => false,
        };
        if !are_edges {
            return Err(QueryError::NotEdges);
        }
        let options = GraphOptions { parts: options.parts.clamp(1, GRAPH_PARTS_MAX), ..*options };
        let mut report = QueryReport::of(side);
        let frames = match side {
            QuerySide::Drive | QuerySide::DriveByRecord => {
                GraphDrive::new(self, edges, &options, &mut report)?.run(go_on)?
            }
            QuerySide::Host => self.betweenness_on_host(edges, &GraphOptions { parts: 1, ..options }, go_on)?,
        };
        let GraphResult { summary, top, ends } = GraphResult::decode(&frames).map_err(|_| QueryError::Result)?;
        let (mut result, mut no_rows) = (QueryResult::new(edges), |_: &[Option<Scalar<'_>>]| ());
        result.merge(&ends, &mut no_rows)?;
        report.counts = result.counts().clone();
        check_misfits(edges, &result)?;
        Ok(GraphReport { summary, top, query: report })
    }

    fn betweenness_on_host(
        &self,
        edges: &Query,
        options: &GraphOptions,
        go_on: &mut dyn FnMut(GraphProgress) -> bool,
    ) -> Result<Vec<u8>, QueryError> {
        let mut work = GraphWork::new(options.plan(GraphStep::Compute, 0, edges.policy()));
        let failed = |failure| failure_error(failure, options);
        let mut batches = 0u64;
        let mut take = |frames: &[u8]| {
            batches += 1;
            if batches.is_multiple_of(LOOK_BATCHES)
                && !go_on(GraphProgress { slices_done: 0, slices: options.slices() })
            {
                return Err(QueryError::Cancelled);
            }
            work.take(frames).map_err(failed)
        };
        frames_of(self.items_of_range(&crate::KeyRange::default())?, edges, &mut take)?;
        let (mut out, mut done) = (Vec::new(), 0);
        work.begin(&mut out).map_err(failed)?;
        while work.slice(&mut out, &mut || false).map_err(failed)? {
            done += 1;
            if !go_on(GraphProgress { slices_done: done, slices: options.slices() }) {
                return Err(QueryError::Cancelled);
            }
        }
        Ok(out)
    }
}

pub(super) fn failure_error(failure: GraphFailure, options: &GraphOptions) -> QueryError {
    match failure {
        GraphFailure::Malformed => QueryError::Result,
        GraphFailure::TooLarge => QueryError::GraphTooLarge { memory_bytes: options.memory_bytes },
        GraphFailure::Elsewhere => QueryError::Result,
        GraphFailure::Cancelled => QueryError::Cancelled,
    }
}

/// Slices that frames of this many bytes report.
pub(super) fn slices_of(bytes: u64) -> u64 {
    bytes / SLICE_BYTES
}

/// The frames of a query over items, as a scan at the drive gives them.
pub(super) fn frames_of(
    items: impl Iterator<Item = Result<(Vec<u8>, Item), QueryError>>,
    query: &Query,
    take: &mut dyn FnMut(&[u8]) -> Result<(), QueryError>,
) -> Result<(), QueryError> {
    let (mut run, mut batch, mut frames) = (QueryRun::new(query), RowBatch::new(), Vec::new());
    let mut run_batch = |run: &mut QueryRun, batch: &mut RowBatch, frames: &mut Vec<u8>| {
        let ran = run.run(&*batch, frames);
        batch.clear();
        take(frames)?;
        frames.clear();
        match ran {
            Ok(()) => Ok(!run.is_done()),
            // It is in the counts.
            Err(RunError::Misfit(_)) => Ok(false),
            Err(RunError::TooManyGroups | RunError::TopTooLarge) => Err(QueryError::TooManyGroups),
        }
    };
    let mut wants_more = true;
    for item in items {
        let (key, item) = item?;
        batch.push(&key, &item.value);
        if batch.is_full() {
            wants_more = run_batch(&mut run, &mut batch, &mut frames)?;
        }
        if !wants_more {
            break;
        }
    }
    if wants_more {
        run_batch(&mut run, &mut batch, &mut frames)?;
    }
    run.finish(&mut frames);
    take(&frames)
}
