//! Queries over a keyspace, for callers that wait.

use super::drive_side::ResultOptions;
use super::host_side;
use super::query_task::QueryTask;
use crate::api::blocking::KeyspaceHandle;
use crate::freeze::FreezeError;
use std::fmt;
use tapetum_base::debug_as_text;
use tapetum_base::error::{Error, KeyspaceError};
use tapetum_base::keyspace_kind::KeyspaceKind;
use tapetum_base::request::key_range::{KeyBound, KeyRange};
use tapetum_kernels::scan::groups::MergeError;
use tapetum_kernels::scan::query::MisfitPolicy;
use tapetum_kernels::scan::result::RowSink;
use tapetum_kernels::scan::run::FirstMisfit;
use tapetum_kernels::scan::{Query, QueryResult, ScanCounts};

/// The side on which a query runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QuerySide {
    /// Beside the records; the result crosses, as much of it at once as there is.
    Drive,
    /// Beside the records; each row crosses by itself, and wakes the host. To compare.
    DriveByRecord,
    /// All records cross, and are looked at by the host.
    Host,
}

/// Figures of a query, beside its rows.
#[derive(Clone, PartialEq, Debug)]
pub struct QueryReport {
    pub side: QuerySide,
    pub counts: ScanCounts,
    /// Pipelines that the drive ran.
    pub commands: u64,
    /// How often the host was woken by the end of one.
    pub wake_ups: u64,
    pub segments: u64,
    /// Records that a write buffer had.
    pub buffered: u64,
    /// Records that the host read by a scan, because they were not at their listed places.
    pub scanned: u64,
    /// Bytes that the pipelines read from flash.
    pub flash_bytes: u64,
    /// Bytes sent to the drive: queries, places of segments and nodes, bitmaps, keys with later records in write buffers.
    pub sent_bytes: u64,
    /// Bytes that the drive returned.
    pub returned_bytes: u64,
}

impl QueryReport {
    pub(super) fn of(side: QuerySide) -> QueryReport {
        QueryReport {
            side,
            counts: ScanCounts::default(),
            commands: 0,
            wake_ups: 0,
            segments: 0,
            buffered: 0,
            scanned: 0,
            flash_bytes: 0,
            sent_bytes: 0,
            returned_bytes: 0,
        }
    }
}

/// Why a query gave no result.
#[derive(Clone, PartialEq)]
pub enum QueryError {
    Store(Error),
    /// A record does not fit the format, at this field.
    Misfit {
        first: FirstMisfit,
        field_name: String,
    },
    TooManyGroups,
    /// The rows of one batch of records are more than local memory has room for.
    ResultTooLarge,
    /// Write buffers have more keys than a command tells the drive of.
    TooManyReplaced,
    /// The moment that it sees is no longer kept: writes needed the flash, or its freeze ended.
    SnapshotTooOld,
    /// The freeze that it was to read has ended.
    Freeze(FreezeError),
    /// The result that the drive gave is inconsistent.
    Result,
    /// A graph's edges are rows of two integers, in no order.
    NotEdges,
    /// A graph takes more memory than it may.
    GraphTooLarge {
        memory_bytes: u64,
    },
    /// The caller gave the query up.
    Cancelled,
}

impl From<Error> for QueryError {
    fn from(error: Error) -> QueryError {
        QueryError::Store(error)
    }
}

impl From<FreezeError> for QueryError {
    fn from(error: FreezeError) -> QueryError {
        match error {
            FreezeError::Store(error) => QueryError::Store(error),
            error => QueryError::Freeze(error),
        }
    }
}

impl From<MergeError> for QueryError {
    fn from(error: MergeError) -> QueryError {
        match error {
            MergeError::Wire(_) => QueryError::Result,
            MergeError::TooMany => QueryError::TooManyGroups,
        }
    }
}

impl fmt::Display for QueryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            QueryError::Store(error) => error.fmt(f),
            QueryError::Misfit { first: FirstMisfit { misfit, key, .. }, field_name } => {
                let (key, why) = (String::from_utf8_lossy(key), misfit.explain());
                write!(f, "the record of the key {key:?} does not fit the format, at the field {field_name}: {why}")
            }
            QueryError::TooManyGroups => {
                f.write_str("there are more than 65536 groups or ordered rows, or 16MiB of them and of values that are counted once: group by less, or narrow the condition")
            }
            QueryError::ResultTooLarge => f.write_str("rows that come together do not fit local memory: select less, or give the store more memory"),
            QueryError::TooManyReplaced => {
                f.write_str("too many keys were written since the last flush to tell the drive of: try again in a moment")
            }
            QueryError::SnapshotTooOld => f.write_str(
                "the snapshot is too old: so much was written meanwhile that the space it kept was needed, or its freeze has ended; run it again, or take its rows faster",
            ),
            QueryError::Freeze(error) => error.fmt(f),
            QueryError::Result => f.write_str("what the drive gave does not hold together"),
            QueryError::NotEdges => f.write_str("edges have two columns of integers: the node that each leads from, and that to which it leads"),
            QueryError::GraphTooLarge { memory_bytes } => {
                let mib = memory_bytes >> 20;
                write!(f, "the graph takes more than the {mib}MiB that it may: narrow the condition, or give it more memory")
            }
            QueryError::Cancelled => f.write_str("it was given up"),
        }
    }
}

impl std::error::Error for QueryError {}

debug_as_text!(QueryError);

impl KeyspaceHandle {
    /// Runs a query over the items of this keyspace, and hands out its rows.
    ///
    /// It sees the keyspace at one moment, on either side.
    ///
    /// # Errors
    /// Rows that were handed out before hold.
    pub fn query(&self, query: &Query, side: QuerySide, rows: &mut dyn RowSink) -> Result<QueryReport, QueryError> {
        self.query_range(query, side, &KeyRange::default(), rows)
    }

    /// As [`KeyspaceHandle::query`], over a range of the keys of an ordered keyspace. Rows come in no particular order, whichever way the
    /// range goes.
    ///
    /// # Errors
    /// [`KeyspaceError::Unordered`] of a hashed keyspace, unless the range has all keys; else as [`KeyspaceHandle::query`].
    pub fn query_range(
        &self,
        query: &Query,
        side: QuerySide,
        range: &KeyRange,
        rows: &mut dyn RowSink,
    ) -> Result<QueryReport, QueryError> {
        self.query_while(query, side, range, rows, &mut || true)
    }

    /// As [`KeyspaceHandle::query_range`]. `go_on` is asked now and then, and ends the query by `false`.
    ///
    /// # Errors
    /// As [`KeyspaceHandle::query_range`]; [`QueryError::Cancelled`].
    pub fn query_while(
        &self,
        query: &Query,
        side: QuerySide,
        range: &KeyRange,
        rows: &mut dyn RowSink,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<QueryReport, QueryError> {
        match side {
            QuerySide::Drive | QuerySide::DriveByRecord => {
                let is_row_by_row = side == QuerySide::DriveByRecord;
                let results = ResultOptions { is_row_by_row, ..ResultOptions::default() };
                self.run_while(QueryTask::begin(self, query, results, range)?, rows, go_on)
            }
            QuerySide::Host => self.query_on_host(query, range, rows, go_on),
        }
    }

    /// Begins a query at the drive, for callers that do something else while it is on its way.
    ///
    /// # Errors
    /// As [`KeyspaceHandle::query_range`].
    pub fn begin_query(&self, query: &Query, range: &KeyRange) -> Result<QueryTask, QueryError> {
        QueryTask::begin(self, query, ResultOptions::default(), range)
    }

    /// At the drive, with so much room for each result.
    #[cfg(test)]
    pub(super) fn query_within(
        &self,
        query: &Query,
        sink_bytes: usize,
        rows: &mut dyn RowSink,
    ) -> Result<QueryReport, QueryError> {
        let results = ResultOptions { sink_bytes: Some(sink_bytes), ..ResultOptions::default() };
        self.run_to_end(QueryTask::begin(self, query, results, &KeyRange::default())?, rows)
    }

    pub(super) fn run_to_end(&self, task: QueryTask, rows: &mut dyn RowSink) -> Result<QueryReport, QueryError> {
        self.run_while(task, rows, &mut || true)
    }

    fn run_while(
        &self,
        mut task: QueryTask,
        rows: &mut dyn RowSink,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<QueryReport, QueryError> {
        loop {
            if let Some(report) = task.step(rows)? {
                return Ok(report);
            }
            if !go_on() {
                return Err(QueryError::Cancelled);
            }
            task.wait();
        }
    }

    fn query_on_host(
        &self,
        query: &Query,
        range: &KeyRange,
        rows: &mut dyn RowSink,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<QueryReport, QueryError> {
        let (mut report, mut result) = (QueryReport::of(QuerySide::Host), QueryResult::new(query));
        check_range(self, range)?;
        host_side::run_all(self.items_of_range(range)?, query, &mut result, rows, go_on)?;
        check_misfits(query, &result)?;
        report.counts = result.finish(rows);
        Ok(report)
    }
}

/// An error if a hashed keyspace is to give less than all of its keys.
pub(super) fn check_range(keyspace: &KeyspaceHandle, range: &KeyRange) -> Result<(), QueryError> {
    let is_whole = range.from.key().is_empty() && range.to == KeyBound::Unbounded;
    if keyspace.keyspace().kind() == KeyspaceKind::Hashed && !is_whole {
        return Err(Error::Keyspace(KeyspaceError::Unordered).into());
    }
    Ok(())
}

/// An error if a record does not fit, and the query wants all to fit.
pub(super) fn check_misfits(query: &Query, result: &QueryResult) -> Result<(), QueryError> {
    match &result.counts().first_misfit {
        Some(first) if query.policy() == MisfitPolicy::Fail => {
            let field = query.format().fields().get(usize::from(first.field));
            let field_name = field.map_or_else(String::new, |field| field.name.to_string());
            Err(QueryError::Misfit { first: first.clone(), field_name })
        }
        _ => Ok(()),
    }
}
