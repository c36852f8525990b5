//! A query over items that the host has: those of write buffers, values that lie elsewhere, or, to compare, all of a keyspace.

use super::query_scan::QueryError;
use crate::api::blocking::Item;
use tapetum_kernels::scan::result::RowSink;
use tapetum_kernels::scan::{Query, QueryResult, QueryRun, RowBatch, RunError};

/// Bytes of frames that are merged at once.
const FRAMES_BYTES: usize = 1 << 20;

pub(super) struct HostRun<'a> {
    run: QueryRun,
    batch: RowBatch,
    frames: Vec<u8>,
    is_enough: bool,
    result: &'a mut QueryResult,
    rows: &'a mut dyn RowSink,
}

impl<'a> HostRun<'a> {
    pub fn new(query: &Query, result: &'a mut QueryResult, rows: &'a mut dyn RowSink) -> HostRun<'a> {
        let (run, batch) = (QueryRun::new(query), RowBatch::new());
        HostRun { run, batch, frames: Vec::new(), is_enough: false, result, rows }
    }

    /// Takes an item; whether another one is wanted.
    pub fn push(&mut self, key: &[u8], value: &[u8]) -> Result<bool, QueryError> {
        self.batch.push(key, value);
        if self.batch.is_full() {
            self.run_batch()?;
        }
        Ok(!self.is_enough)
    }

    fn run_batch(&mut self) -> Result<(), QueryError> {
        let ran = self.run.run(&self.batch, &mut self.frames);
        self.batch.clear();
        match ran {
            Ok(()) => self.is_enough |= self.run.is_done(),
            // It is in the counts.
            Err(RunError::Misfit(_)) => self.is_enough = true,
            Err(RunError::TooManyGroups | RunError::TopTooLarge) => return Err(QueryError::TooManyGroups),
        }
        if self.frames.len() >= FRAMES_BYTES {
            self.merge()?;
        }
        Ok(())
    }

    fn merge(&mut self) -> Result<(), QueryError> {
        self.result.merge(&self.frames, self.rows)?;
        self.frames.clear();
        Ok(())
    }

    pub fn finish(mut self) -> Result<(), QueryError> {
        if !self.is_enough {
            self.run_batch()?;
        }
        self.run.finish(&mut self.frames);
        self.merge()
    }
}

/// How often it is asked whether to go on, in items.
const GO_ON_ITEMS: usize = 1024;

/// Runs a query over all items, each of which crosses to the host, as long as `go_on` says.
pub(super) fn run_all(
    items: impl Iterator<Item = Result<(Vec<u8>, Item), QueryError>>,
    query: &Query,
    result: &mut QueryResult,
    rows: &mut dyn RowSink,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<(), QueryError> {
    let mut host = HostRun::new(query, result, rows);
    for (number, item) in items.enumerate() {
        if number % GO_ON_ITEMS == GO_ON_ITEMS - 1 && !go_on() {
            return Err(QueryError::Cancelled);
        }
        let (key, item) = item?;
        if !host.push(&key, &item.value)? {
            break;
        }
    }
    host.finish()
}
