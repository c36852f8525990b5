//! Queries over a keyspace, for callers that wait.

use super::drive_side::DriveScan;
use super::host_side::{self, HostRun};
use super::snapshot::Snapshot;
use crate::blocking::KeyspaceHandle;
use crate::error::Error;
use crate::keyspace::catalogue::KeyspaceKind;
use crate::media::io::Io;
use std::fmt;
use tapetum_drive::Purpose;
use tapetum_kernels::scan::groups::MergeError;
use tapetum_kernels::scan::query::MisfitPolicy;
use tapetum_kernels::scan::result::RowSink;
use tapetum_kernels::scan::run::FirstMisfit;
use tapetum_kernels::scan::{Query, QueryResult, ScanCounts};

/// Where a query runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QuerySide {
    /// Beside the records; what comes of it crosses.
    Drive,
    /// All records cross, and are looked at by the host.
    Host,
}

/// What a query came to, beside its rows.
#[derive(Clone, PartialEq, Debug)]
pub struct QueryReport {
    pub side: QuerySide,
    pub counts: ScanCounts,
    /// Pipelines that the drive ran.
    pub commands: u64,
    pub segments: u64,
    /// Records that a write buffer had.
    pub buffered: u64,
    /// Read from flash, by them.
    pub flash_bytes: u64,
    /// To the drive: queries, bitmaps, keys with a later word on them.
    pub sent_bytes: u64,
    /// From it.
    pub returned_bytes: u64,
}

/// Why a query gave no result.
#[derive(Clone, PartialEq, Debug)]
pub enum QueryError {
    Store(Error),
    /// A record does not fit the format.
    Misfit(FirstMisfit),
    TooManyGroups,
    /// The rows of one page are more than local memory has room for.
    ResultTooLarge,
    /// Write buffers have more keys than a command tells the drive of.
    TooManyReplaced,
    /// What the drive gave does not hold together.
    Result,
}

impl From<Error> for QueryError {
    fn from(error: Error) -> QueryError {
        QueryError::Store(error)
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
            QueryError::Misfit(FirstMisfit { misfit, key, .. }) => {
                let key = String::from_utf8_lossy(key).into_owned();
                write!(f, "the record of the key {key:?} does not fit the format: {}", misfit.explain())
            }
            QueryError::TooManyGroups => {
                f.write_str("there are more than 65536 groups or ordered rows, or 16MiB of them: group by less, or narrow the condition")
            }
            QueryError::ResultTooLarge => f.write_str("the rows of one page do not fit local memory: give the store more memory"),
            QueryError::TooManyReplaced => {
                f.write_str("too many keys were written since the last flush to tell the drive of: try again in a moment")
            }
            QueryError::Result => f.write_str("what the drive gave does not hold together"),
        }
    }
}

impl std::error::Error for QueryError {}

impl KeyspaceHandle {
    /// Runs a query over the items of this keyspace, and hands out its rows.
    ///
    /// At the drive, it sees a hashed keyspace at one moment; values in extents of their own are read when the rest is done, and seen as
    /// they are then. The host side, and an ordered keyspace, are seen as [`KeyspaceHandle::items`] and [`KeyspaceHandle::scan`] show them.
    ///
    /// # Errors
    /// Rows that were handed out before hold.
    pub fn query(&self, query: &Query, side: QuerySide, rows: &mut dyn RowSink) -> Result<QueryReport, QueryError> {
        self.query_on(query, (side, None), rows)
    }

    /// At the drive, with so much room for each result.
    #[cfg(test)]
    pub(super) fn query_within(
        &self,
        query: &Query,
        sink_bytes: usize,
        rows: &mut dyn RowSink,
    ) -> Result<QueryReport, QueryError> {
        self.query_on(query, (QuerySide::Drive, Some(sink_bytes)), rows)
    }

    fn query_on(
        &self,
        query: &Query,
        (side, sink_bytes): (QuerySide, Option<usize>),
        rows: &mut dyn RowSink,
    ) -> Result<QueryReport, QueryError> {
        let side = if self.keyspace().kind() == KeyspaceKind::Hashed { side } else { QuerySide::Host };
        let mut report = QueryReport {
            side,
            counts: ScanCounts::default(),
            commands: 0,
            segments: 0,
            buffered: 0,
            flash_bytes: 0,
            sent_bytes: 0,
            returned_bytes: 0,
        };
        let mut result = QueryResult::new(query);
        match (side, self.keyspace().kind()) {
            (QuerySide::Drive, _) => self.run_at_drive((query, sink_bytes), &mut result, rows, &mut report)?,
            (QuerySide::Host, KeyspaceKind::Hashed) => {
                host_side::run_all(self.items(), query, &mut result, rows)?;
            }
            (QuerySide::Host, _) => {
                let all = crate::KeyRange {
                    from: crate::KeyBound::Unbounded,
                    to: crate::KeyBound::Unbounded,
                    is_reverse: false,
                };
                host_side::run_all(self.scan(all)?, query, &mut result, rows)?;
            }
        }
        if let Some(first) = &result.counts().first_misfit
            && query.policy() == MisfitPolicy::Fail
        {
            return Err(QueryError::Misfit(first.clone()));
        }
        report.counts = result.finish(rows);
        Ok(report)
    }

    fn run_at_drive(
        &self,
        (query, sink_bytes): (&Query, Option<usize>),
        result: &mut QueryResult,
        rows: &mut dyn RowSink,
        report: &mut QueryReport,
    ) -> Result<(), QueryError> {
        let shared = self.store().hashed();
        shared.refuse_unservable(self.keyspace())?;
        let snapshot = {
            let queue = shared.drive.queue_pair(16).map_err(|error| Error::Io(error.to_string()))?;
            let io = Io::new(queue).of(Purpose::Scan);
            shared.run_beside_maintenance(&io, Snapshot::take(shared, &io, self.keyspace()))??
        };
        (report.segments, report.buffered) = (snapshot.segments.len() as u64, snapshot.buffered.len() as u64);
        let mut elsewhere: Vec<Box<[u8]>> = Vec::new();
        let mut host = HostRun::new(query, result, rows);
        for item in &snapshot.buffered {
            match &item.value {
                Some(value) if !host.push(&item.key, value)? => break,
                Some(_) => {}
                None => elsewhere.push(item.key[..].into()),
            }
        }
        host.finish()?;
        DriveScan::new(shared, (self.id(), query), &snapshot, sink_bytes)?.run(result, rows, report)?;
        elsewhere.extend(result.take_deferred());
        if elsewhere.is_empty() || result.is_done() {
            return Ok(());
        }
        let mut host = HostRun::new(query, result, rows);
        for key in elsewhere {
            // Deleted since, if it is gone.
            if let Some(item) = self.get(&key)?
                && !host.push(&key, &item.value)?
            {
                break;
            }
        }
        host.finish()
    }
}
