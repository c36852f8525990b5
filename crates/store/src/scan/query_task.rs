//! A query at the drive, step by step.
//!
//! ```text
//! freeze ─► write buffers, on the host ─► run ─► keys that were missed, of the same moment ─► done
//! one key of an ordered keyspace: a desk ─► run ─► the key, as it is, if it was missed ─────► done
//! ```
//! A step never waits. Dropping a task gives the query up.
//!
//! Threads: the caller's.

use super::drive_side::{DriveRun, PATIENCE_US, ResultOptions, scan_tools};
use super::host_side::HostRun;
use super::moment::{MissedPart, MissedRead, MomentLayout, moment_io, node_of_key, refuse_unreadable, take_moment};
use super::query_scan::{QueryError, QueryReport, QuerySide, check_misfits, check_range};
use crate::api::blocking::KeyspaceHandle;
use crate::api::session::Session;
use crate::freeze::FrozenPart;
use crate::ordered::frozen::{FrozenTree, KeySpan};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tapetum_base::engine::scan_layout::{LayoutError, ScanLayout};
use tapetum_base::error::Error;
use tapetum_base::keyspace_kind::KeyspaceKind;
use tapetum_base::media::io::{Io, Task, poll_once};
use tapetum_base::request::key_range::{KeyBound, KeyRange, ScanPart};
use tapetum_drive::OfProcess;
use tapetum_kernels::codec::Decompressor;
use tapetum_kernels::ordered::NODE_KEY_BYTES_MAX;
use tapetum_kernels::scan::result::{MissedKeys, RowSink};
use tapetum_kernels::scan::{Query, QueryResult, ScanCounts};

/// Items of a part of a scan, at most.
const PART_ITEMS: usize = 1024;

/// See the [module](self).
pub struct QueryTask {
    keyspace: KeyspaceHandle,
    query: Query,
    span: KeySpan,
    results: ResultOptions,
    /// Only records that were found are shown, not aggregates of none.
    shows_found: bool,
    stage: OfProcess<TaskStage>,
    /// `None` when it is over.
    result: Option<QueryResult>,
    report: QueryReport,
}

enum TaskStage {
    Freezes(Io, Task<Result<FrozenPart, Error>>),
    /// Waits for a desk, since then.
    Queues(Option<Box<dyn ScanLayout>>, Option<Arc<FrozenTree>>, u64),
    /// A run, with the tree of its moment, if that is held.
    Runs(Box<DriveRun>, Option<Arc<FrozenTree>>),
    Reads(Io, Task<Result<(MissedPart, Option<MissedRead>), LayoutError>>),
    Scans(Box<MissedScan>),
}

/// A key that was missed, read as it is.
struct MissedScan {
    session: Session,
    /// The first is on its way, if one is.
    ranges: VecDeque<KeyRange>,
    is_asked: bool,
}

impl QueryTask {
    pub(super) fn begin(
        keyspace: &KeyspaceHandle,
        query: &Query,
        results: ResultOptions,
        range: &KeyRange,
    ) -> Result<QueryTask, QueryError> {
        refuse_unreadable(keyspace)?;
        check_range(keyspace, range)?;
        let results = ResultOptions { is_of_key: range.is_of_key(), application: keyspace.application(), ..results };
        let span = KeySpan::of(range)?;
        let is_ordered = keyspace.keyspace().kind() == KeyspaceKind::Ordered;
        let stage = match results.is_of_key && is_ordered {
            true => {
                let laid = MomentLayout::of(FrozenPart::Ordered(node_of_key(keyspace, &span)?), span.clone())?;
                // Of a key that is read as it is nothing is held: if it is missed, it is read anew.
                let held = laid.tree.filter(|_| keyspace.frozen().is_some());
                TaskStage::Queues(Some(laid.layout), held, keyspace.store().drive().env().now_us())
            }
            false => {
                let io = moment_io(keyspace)?;
                TaskStage::Freezes(io.clone(), take_moment(keyspace, span.clone(), io))
            }
        };
        let side = if results.is_row_by_row { QuerySide::DriveByRecord } else { QuerySide::Drive };
        let stage = OfProcess::new(stage);
        let (result, report) = (Some(QueryResult::new(query)), QueryReport::of(side));
        let (keyspace, query) = (keyspace.clone(), query.clone());
        Ok(QueryTask { keyspace, query, span, results, shows_found: false, stage, result, report })
    }

    /// Shows no rows, not even those of groups, where there is no record.
    pub(super) fn of_what_is_found(self) -> QueryTask {
        QueryTask { shows_found: true, ..self }
    }

    /// Goes on as far as that is possible without waiting; the report, when it is over.
    ///
    /// # Errors
    /// Rows that were handed out before hold.
    ///
    /// # Panics
    /// When it is over.
    pub fn step(&mut self, rows: &mut dyn RowSink) -> Result<Option<QueryReport>, QueryError> {
        let Some(result) = &mut self.result else { panic!("the query is over") };
        self.keyspace.store().refuse_forked()?;
        match &mut *self.stage {
            TaskStage::Freezes(io, task) => {
                io.pump();
                let Some(part) = poll_once(task) else {
                    self.keyspace.store().hashed().refuse_stopped(io)?;
                    return Ok(None);
                };
                let laid = MomentLayout::of(part?, self.span.clone())?;
                let tree = laid.tree.clone();
                let run = frozen(&self.keyspace, &self.query, self.results, laid, result, rows, &mut self.report)?;
                *self.stage = TaskStage::Runs(Box::new(run), tree);
                Ok(None)
            }
            TaskStage::Queues(layout, held, since_us) => {
                let store = self.keyspace.store();
                let base = &store.hashed().base;
                let Some(tools) = store.key_desks().take(&base.drive)? else {
                    let waited_us = base.drive.env().now_us().saturating_sub(*since_us);
                    return if waited_us < PATIENCE_US { Ok(None) } else { Err(no_desk().into()) };
                };
                let Some(layout) = layout.take() else { unreachable!("it is taken once") };
                let run = DriveRun::new(base, self.keyspace.id(), &self.query, layout, self.results, tools)?;
                *self.stage = TaskStage::Runs(Box::new(run), held.take());
                // At once: with nothing on its way a wait would be one for memory.
                self.step(rows)
            }
            TaskStage::Runs(run, tree) => {
                if !run.step(result, rows, &mut self.report)? {
                    return Ok(None);
                }
                let missed = run.take_missed();
                if missed.is_empty() {
                    return self.finish(rows).map(Some);
                }
                if self.keyspace.keyspace().kind() == KeyspaceKind::Hashed {
                    return Err(QueryError::Result);
                }
                if let Some(tree) = tree.take() {
                    let io = moment_io(&self.keyspace)?;
                    *self.stage = TaskStage::Reads(io.clone(), Box::pin(MissedRead::new(tree, io, missed).part()));
                    return Ok(None);
                }
                let ranges = missed.into_iter().map(range_of).collect();
                let session = self.keyspace.store().session()?;
                *self.stage = TaskStage::Scans(Box::new(MissedScan { session, ranges, is_asked: false }));
                Ok(None)
            }
            TaskStage::Reads(io, task) => {
                io.pump();
                let Some(read) = poll_once(task) else {
                    self.keyspace.store().hashed().refuse_stopped(io)?;
                    return Ok(None);
                };
                let (items, rest) = read?;
                let mut host = HostRun::new(&self.query, result, rows);
                for (key, value) in items {
                    self.report.scanned += 1;
                    self.report.returned_bytes += (key.len() + value.len()) as u64;
                    if !host.push(&key, &value)? {
                        break;
                    }
                }
                host.finish()?;
                match rest.filter(|_| !result.is_done() && check_misfits(&self.query, result).is_ok()) {
                    Some(rest) => {
                        *task = Box::pin(rest.part());
                        Ok(None)
                    }
                    None => self.finish(rows).map(Some),
                }
            }
            TaskStage::Scans(scan) => {
                let Some(part) = scan.step(&self.keyspace)? else { return Ok(None) };
                let mut host = HostRun::new(&self.query, result, rows);
                for item in &part.items {
                    self.report.scanned += 1;
                    self.report.returned_bytes += (item.key.len() + item.value.len()) as u64;
                    if !host.push(&item.key, &item.value)? {
                        break;
                    }
                }
                host.finish()?;
                if scan.ranges.is_empty() || result.is_done() || check_misfits(&self.query, result).is_err() {
                    return self.finish(rows).map(Some);
                }
                Ok(None)
            }
        }
    }

    /// Waits until a step would get further, or a moment.
    pub fn wait(&mut self) {
        if !self.stage.is_here() {
            return;
        }
        match &mut *self.stage {
            TaskStage::Freezes(io, _) if io.in_flight() > 0 => io.wait(Duration::from_millis(10)),
            // Nothing tells that the installer is free: others go first until it is.
            TaskStage::Freezes(..) => std::thread::yield_now(),
            TaskStage::Queues(..) => self.keyspace.store().key_desks().wait(),
            TaskStage::Reads(io, _) => io.wait(Duration::from_millis(10)),
            TaskStage::Runs(run, _) => run.wait(),
            TaskStage::Scans(scan) => scan.session.wait(Some(Duration::from_millis(10))),
        }
    }

    /// Whether it is beyond the moment that it sees of a hashed keyspace.
    #[cfg(test)]
    pub(super) fn is_frozen(&self) -> bool {
        !matches!(*self.stage, TaskStage::Freezes(..))
    }

    #[cfg(test)]
    pub(super) fn commands(&self) -> u64 {
        self.report.commands
    }

    fn finish(&mut self, rows: &mut dyn RowSink) -> Result<QueryReport, QueryError> {
        let Some(result) = self.result.take() else { unreachable!("it was not over") };
        check_misfits(&self.query, &result)?;
        self.report.counts = match result.counts().records {
            0 if self.shows_found => ScanCounts::default(),
            _ => result.finish(rows),
        };
        Ok(self.report.clone())
    }
}

/// A keyspace is frozen: looks at what write buffers have of it, and begins to run over the rest.
fn frozen(
    keyspace: &KeyspaceHandle,
    query: &Query,
    results: ResultOptions,
    MomentLayout { records, layout, segments, .. }: MomentLayout,
    result: &mut QueryResult,
    rows: &mut dyn RowSink,
    report: &mut QueryReport,
) -> Result<DriveRun, QueryError> {
    (report.segments, report.buffered) = (segments as u64, records.count() as u64);
    let mut host = HostRun::new(query, result, rows);
    let mut decompressor = Decompressor::new().map_err(|error| Error::Io(error.to_string()))?;
    for item in &records.items {
        if !host.push(&item.key, &item.value(&mut decompressor)?)? {
            break;
        }
    }
    host.finish()?;
    let base = keyspace.store().base();
    let tools = scan_tools(&base.drive)?;
    let mut run = DriveRun::new(base, keyspace.id(), query, layout, results, tools)?;
    run.add_values(records.elsewhere.iter().map(|(_, record)| record.clone()).collect());
    Ok(run)
}

fn no_desk() -> Error {
    let why = "local memory has no room for a query of one key: give the store more memory, or ask for fewer at once";
    Error::Options(why.into())
}

impl MissedScan {
    /// The next part, if it is there.
    fn step(&mut self, keyspace: &KeyspaceHandle) -> Result<Option<ScanPart>, Error> {
        let Some(range) = self.ranges.front() else { unreachable!("it is over with the last range") };
        if !self.is_asked {
            self.session.submit_scan(keyspace.keyspace(), 0, range.clone(), PART_ITEMS)?;
            self.is_asked = true;
        }
        let mut scanned = Vec::new();
        self.session.poll(&mut Vec::new());
        self.session.take_scanned(&mut scanned);
        let Some(reply) = scanned.pop() else { return Ok(None) };
        let part = reply.part?;
        self.is_asked = false;
        self.ranges.pop_front();
        self.ranges.extend(part.rest.clone());
        Ok(Some(part))
    }
}

/// As a scan is asked for it. A bound that is longer than a key stands right behind one.
pub(super) fn range_of(missed: MissedKeys) -> KeyRange {
    let MissedKeys { from, to } = missed;
    let before = |key: &[u8]| key[..key.len() - 1].to_vec();
    let from = match from.len() {
        0 => KeyBound::Unbounded,
        length if length > NODE_KEY_BYTES_MAX => KeyBound::Excluded(before(&from)),
        _ => KeyBound::Included(from.into()),
    };
    let to = match to {
        None => KeyBound::Unbounded,
        Some(to) if to.len() > NODE_KEY_BYTES_MAX => KeyBound::Included(before(&to)),
        Some(to) => KeyBound::Excluded(to.into()),
    };
    KeyRange { from, to, is_reverse: false }
}
