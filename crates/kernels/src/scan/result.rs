//! Merges the frames of a query's runs into its result.
//!
//! 1. Frames come from a drive: whatever their bytes are, they are merged or refused.
//! 2. Rows are handed out as they come; ordered rows and groups, once all frames are merged.
//! 3. A limit applies to all runs together.
//! 4. Records and keys that runs could not read are kept for the caller. It has them read and merges the results too.

use super::aggregate::AggregateState;
use super::fields::Misfit;
use super::groups::{Groups, MergeError, TypedAggregate};
use super::query::{Query, QueryOutput};
use super::rows::read_row;
use super::run::{FirstMisfit, FrameKind, ScanCounts};
use super::top::TopRows;
use super::value::{OwnedScalar, Scalar, ScalarType};
use super::wire::{ScanReader, WireError};

/// Takes a result, a row at a time: a value for each column.
pub trait RowSink {
    fn row(&mut self, values: &[Option<Scalar<'_>>]);
}

impl<F: FnMut(&[Option<Scalar<'_>>])> RowSink for F {
    fn row(&mut self, values: &[Option<Scalar<'_>>]) {
        self(values);
    }
}

/// A record whose value lies elsewhere.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeferredRecord {
    pub key: Box<[u8]>,
    /// The value's length.
    pub raw_bytes: u32,
    pub reference: Box<[u8]>,
}

/// Keys from one up to another, or to the last, that are not where their piece says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MissedKeys {
    pub from: Box<[u8]>,
    pub to: Option<Box<[u8]>>,
}

/// The place at which a run stopped before the end of its input.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoppedRun {
    /// Bytes of its input that the run took.
    pub taken_bytes: u64,
    /// The number of pieces that are done.
    pub pieces: u32,
    /// The place in the next piece, as its accessor encodes it.
    pub place: Box<[u8]>,
}

pub struct QueryResult {
    types: Vec<ScalarType>,
    merged: MergedSink,
    counts: ScanCounts,
    deferred: Vec<DeferredRecord>,
    missed: Vec<MissedKeys>,
    stopped: Option<StoppedRun>,
}

enum MergedSink {
    Rows { left: u64 },
    Top(TopRows),
    Groups { keys: Vec<ScalarType>, kinds: Vec<TypedAggregate>, groups: Groups },
}

impl QueryResult {
    pub fn new(query: &Query) -> QueryResult {
        let merged = match query.output() {
            QueryOutput::Rows { order: None, limit, .. } => MergedSink::Rows { left: limit.unwrap_or(u64::MAX) },
            QueryOutput::Rows { order: Some(order), limit, .. } => {
                let of = query.register_type(order.by);
                MergedSink::Top(TopRows::new(of, order.is_descending, limit.unwrap_or(0) as usize))
            }
            QueryOutput::Groups { keys, .. } => {
                let (keys, kinds) = (query.types(keys), query.aggregates());
                let groups = Groups::new(&keys, &kinds);
                MergedSink::Groups { keys, kinds, groups }
            }
        };
        let (types, counts) = (query.result_types(), ScanCounts::default());
        QueryResult { types, merged, counts, deferred: Vec::new(), missed: Vec::new(), stopped: None }
    }

    /// Merges whole frames.
    pub fn merge(&mut self, frames: &[u8], rows: &mut dyn RowSink) -> Result<(), MergeError> {
        let mut reader = ScanReader::new(frames);
        while !reader.is_empty() {
            let [kind, 0, 0, 0] = reader.array()? else { return Err(WireError::Malformed.into()) };
            let length = reader.u32()? as usize;
            let body = reader.take(length)?;
            match kind {
                kind if kind == FrameKind::Rows as u8 => self.merge_rows(body, rows)?,
                kind if kind == FrameKind::Partial as u8 => self.merge_partial(body)?,
                kind if kind == FrameKind::End as u8 => self.merge_end(body)?,
                kind if kind == FrameKind::Deferred as u8 => self.deferred.push(read_deferred(body)?),
                kind if kind == FrameKind::Missed as u8 => self.missed.push(read_missed(body)?),
                kind if kind == FrameKind::Stopped as u8 => self.stopped = Some(read_stopped(body)?),
                _ => return Err(WireError::Malformed.into()),
            }
        }
        Ok(())
    }

    fn merge_rows(&mut self, body: &[u8], rows: &mut dyn RowSink) -> Result<(), WireError> {
        let MergedSink::Rows { left } = &mut self.merged else { return Err(WireError::Malformed) };
        let (mut reader, mut values) = (ScanReader::new(body), Vec::with_capacity(self.types.len()));
        while !reader.is_empty() && *left > 0 {
            values.clear();
            read_row(&self.types, &mut reader, |value| values.push(value))?;
            *left -= 1;
            rows.row(&values);
        }
        Ok(())
    }

    fn merge_partial(&mut self, body: &[u8]) -> Result<(), MergeError> {
        let types = &self.types;
        match &mut self.merged {
            MergedSink::Rows { .. } => Err(WireError::Malformed.into()),
            MergedSink::Groups { groups, .. } => groups.merge(body),
            MergedSink::Top(top) => top.merge(body, |row| {
                let mut reader = ScanReader::new(row);
                read_row(types, &mut reader, |_| ())?;
                if reader.is_empty() { Ok(()) } else { Err(WireError::Malformed) }
            }),
        }
    }

    fn merge_end(&mut self, body: &[u8]) -> Result<(), WireError> {
        let mut reader = ScanReader::new(body);
        let [records, kept, misfits] = [reader.u64()?, reader.u64()?, reader.u64()?];
        let [code, 0] = reader.array()? else { return Err(WireError::Malformed) };
        let (field, length) = (reader.u16()?, reader.u32()? as usize);
        let key = reader.take(length)?;
        let first = match code {
            0 => None,
            code => {
                let misfit = Misfit::of_code(code).ok_or(WireError::Malformed)?;
                Some(FirstMisfit { field, misfit, key: key.into() })
            }
        };
        let counts = &mut self.counts;
        counts.records = counts.records.saturating_add(records);
        counts.kept = counts.kept.saturating_add(kept);
        counts.misfits = counts.misfits.saturating_add(misfits);
        if counts.first_misfit.is_none() {
            counts.first_misfit = first;
        }
        if reader.is_empty() { Ok(()) } else { Err(WireError::Malformed) }
    }

    /// Whether the query wants no further rows.
    pub fn is_done(&self) -> bool {
        matches!(self.merged, MergedSink::Rows { left: 0 })
    }

    /// The records whose values runs could not reach.
    pub fn take_deferred(&mut self) -> Vec<DeferredRecord> {
        std::mem::take(&mut self.deferred)
    }

    /// The keys that runs could not read.
    pub fn take_missed(&mut self) -> Vec<MissedKeys> {
        std::mem::take(&mut self.missed)
    }

    /// The place at which the last merged run stopped before its end, if it did.
    pub fn take_stopped(&mut self) -> Option<StoppedRun> {
        self.stopped.take()
    }

    pub fn counts(&self) -> &ScanCounts {
        &self.counts
    }

    /// Hands out the merged rows, and returns the counts of all runs.
    pub fn finish(self, rows: &mut dyn RowSink) -> ScanCounts {
        match self.merged {
            MergedSink::Rows { .. } => {}
            MergedSink::Top(top) => top.into_rows().iter().for_each(|row| {
                let (mut reader, mut values) = (ScanReader::new(row), Vec::with_capacity(self.types.len()));
                let read = read_row(&self.types, &mut reader, |value| values.push(value));
                assert!(read.is_ok(), "it was checked when it was merged");
                rows.row(&values);
            }),
            MergedSink::Groups { keys, kinds, groups } => groups.iter().for_each(|(key, states)| {
                let (mut reader, mut values) = (ScanReader::new(key), Vec::with_capacity(self.types.len()));
                let read = read_row(&keys, &mut reader, |value| values.push(value));
                assert!(read.is_ok(), "it was checked when it was merged");
                let results = states.iter().zip(&kinds).map(|(state, (kind, _))| AggregateState::result(state, *kind));
                let results: Vec<Option<OwnedScalar>> = results.collect();
                values.extend(results.iter().map(|result| result.as_ref().map(OwnedScalar::as_scalar)));
                rows.row(&values);
            }),
        }
        self.counts
    }
}

fn read_deferred(body: &[u8]) -> Result<DeferredRecord, WireError> {
    let mut reader = ScanReader::new(body);
    let (key_bytes, raw_bytes) = (reader.u16()?, reader.u32()?);
    let key = reader.take(key_bytes.into())?.into();
    Ok(DeferredRecord { key, raw_bytes, reference: reader.rest().into() })
}

fn read_missed(body: &[u8]) -> Result<MissedKeys, WireError> {
    let mut reader = ScanReader::new(body);
    let (from, to, has_to) = (reader.u16()?, reader.u16()?, reader.u8()?);
    let from = reader.take(from.into())?.into();
    let to: Box<[u8]> = reader.take(to.into())?.into();
    match (has_to, to.is_empty(), reader.is_empty()) {
        (0, true, true) => Ok(MissedKeys { from, to: None }),
        (1, _, true) => Ok(MissedKeys { from, to: Some(to) }),
        _ => Err(WireError::Malformed),
    }
}

fn read_stopped(body: &[u8]) -> Result<StoppedRun, WireError> {
    let mut reader = ScanReader::new(body);
    let (taken_bytes, pieces) = (reader.u64()?, reader.u32()?);
    Ok(StoppedRun { taken_bytes, pieces, place: reader.rest().into() })
}
