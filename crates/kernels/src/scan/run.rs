//! Runs a query over batches of records, and writes its results as frames.
//!
//! ```text
//! frame:  0      1      4            8
//!         +------+------+------------+------+
//!         | kind | zero | length u32 | body |
//!         +------+------+------------+------+
//! kind 1  rows, one behind the other ([`super::rows`])
//!      2  a partial of groups ([`super::groups`]) or of the first rows ([`super::top`])
//!      4  a record whose value the run could not reach, as it lies elsewhere:  key length u16 · value length u32 · key · reference
//!      5  keys that were not where they were said to be:  from length u16 · to length u16 · has to u8 · from · to
//!      6  the run stopped before its input's end:  bytes of it that were taken u64 · pieces that are done u32 · place in the next one
//!      7  a frame of kind 4 to 6 that the host has dealt with, where frames stay at the drive
//!      3  the end:  records u64 · kept u64 · misfits u64 · misfit u8 · zero u8 · field u16 · key length u32 · key
//!                   misfit, field and key are the first record's that did not fit; all zero, if each did
//! ```
//! 1. A run writes rows as it goes, partials when it is finished, and one end, last.
//! 2. Runs of parts of the records, in any order, are merged by [`super::result`].

use super::aggregate::AggregateState;
use super::batch::Rows;
use super::fields::Misfit;
use super::groups::{Groups, TooManyGroups};
use super::machine::Machine;
use super::program::Register;
use super::query::{Aggregate, MisfitPolicy, Query, QueryOutput, RowOrder};
use super::rows::write_row;
use super::top::{TopRows, TopTooLarge};
use super::value::Scalar;

pub const FRAME_HEAD_BYTES: usize = 8;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum FrameKind {
    Rows = 1,
    Partial = 2,
    End = 3,
    Deferred = 4,
    Missed = 5,
    Stopped = 6,
    Settled = 7,
}

/// The first record that did not fit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FirstMisfit {
    /// The field's place in the format.
    pub field: u16,
    pub misfit: Misfit,
    pub key: Box<[u8]>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ScanCounts {
    pub records: u64,
    /// The records for which the condition is true.
    pub kept: u64,
    pub misfits: u64,
    pub first_misfit: Option<FirstMisfit>,
}

/// The error that ends a run early.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RunError {
    TooManyGroups,
    /// The first rows in the order that was asked for take too many bytes.
    TopTooLarge,
    /// A record does not fit, and [`MisfitPolicy::Fail`] was asked for.
    Misfit(FirstMisfit),
}

pub struct QueryRun {
    machine: Machine,
    sink: RunSink,
    policy: MisfitPolicy,
    counts: ScanCounts,
    /// Whether each row is a frame.
    is_row_by_row: bool,
    row: Vec<u8>,
}

enum RunSink {
    Rows { columns: Vec<Register>, left: u64 },
    Top { columns: Vec<Register>, order: RowOrder, top: TopRows },
    Groups { keys: Vec<Register>, aggregates: Vec<Aggregate>, groups: Groups },
}

impl RunSink {
    fn of(query: &Query) -> RunSink {
        match query.output().clone() {
            QueryOutput::Rows { columns, order: None, limit } => {
                RunSink::Rows { columns, left: limit.unwrap_or(u64::MAX) }
            }
            QueryOutput::Rows { columns, order: Some(order), limit } => {
                let of = query.register_type(order.by);
                let top = TopRows::new(of, order.is_descending, limit.unwrap_or(0) as usize);
                RunSink::Top { columns, order, top }
            }
            QueryOutput::Groups { keys, aggregates } => {
                let groups = Groups::new(&query.types(&keys), &query.aggregates());
                RunSink::Groups { keys, aggregates, groups }
            }
        }
    }
}

impl QueryRun {
    pub fn new(query: &Query) -> QueryRun {
        let machine = Machine::new(query.format(), query.program().clone());
        let (policy, counts) = (query.policy(), ScanCounts::default());
        QueryRun { machine, sink: RunSink::of(query), policy, counts, is_row_by_row: false, row: Vec::new() }
    }

    /// Starts over, with the query that it was made for.
    pub fn start_over(&mut self, query: &Query) {
        (self.sink, self.counts) = (RunSink::of(query), ScanCounts::default());
    }

    /// Chooses whether each row is a frame.
    pub fn row_by_row(self, is_row_by_row: bool) -> QueryRun {
        QueryRun { is_row_by_row, ..self }
    }

    /// Runs a batch, and appends its rows to `out` as a frame.
    pub fn run<'a>(&mut self, batch: impl Into<Rows<'a>>, out: &mut Vec<u8>) -> Result<(), RunError> {
        let batch = batch.into();
        self.machine.run(batch);
        self.count(batch)?;
        let (machine, row) = (&self.machine, &mut self.row);
        match &mut self.sink {
            RunSink::Rows { columns, left } => {
                let mut frame = Frame::begin(FrameKind::Rows, out);
                for kept in machine.kept() {
                    if *left == 0 {
                        break;
                    }
                    *left -= 1;
                    write_columns(machine, batch, columns, *kept, out);
                    if self.is_row_by_row {
                        frame.end(out);
                        frame = Frame::begin(FrameKind::Rows, out);
                    }
                }
                frame.end_unless_empty(out);
            }
            RunSink::Top { columns, order, top } => {
                for kept in machine.kept() {
                    row.clear();
                    write_columns(machine, batch, columns, *kept, row);
                    let value = machine.value(batch, order.by, usize::from(*kept)).map(Scalar::to_owned);
                    top.push(value, row).map_err(|TopTooLarge| RunError::TopTooLarge)?;
                }
            }
            RunSink::Groups { keys, aggregates, groups } => {
                for kept in machine.kept() {
                    row.clear();
                    write_columns(machine, batch, keys, *kept, row);
                    let added = groups.update(row, |states| {
                        let pairs = states.iter_mut().zip(aggregates.iter());
                        pairs.map(|(state, aggregate)| add(machine, batch, *kept, aggregate, state)).sum()
                    });
                    added.map_err(|TooManyGroups| RunError::TooManyGroups)?;
                }
            }
        }
        Ok(())
    }

    fn count(&mut self, batch: Rows<'_>) -> Result<(), RunError> {
        let misfits = self.machine.misfits();
        self.counts.records += batch.len() as u64;
        self.counts.kept += self.machine.kept().len() as u64;
        self.counts.misfits += misfits.count as u64;
        if let Some(first) = misfits.first
            && self.counts.first_misfit.is_none()
        {
            let key = batch.key(first.row).into();
            let first = FirstMisfit { field: first.field as u16, misfit: first.misfit, key };
            self.counts.first_misfit = Some(first.clone());
            if self.policy == MisfitPolicy::Fail {
                return Err(RunError::Misfit(first));
            }
        }
        Ok(())
    }

    /// Whether further records would change nothing but counts.
    pub fn is_done(&self) -> bool {
        matches!(self.sink, RunSink::Rows { left: 0, .. })
    }

    /// Bytes of the run's partial, about.
    pub fn held_bytes(&self) -> usize {
        match &self.sink {
            RunSink::Rows { .. } => 0,
            RunSink::Top { top, .. } => top.bytes(),
            RunSink::Groups { groups, .. } => groups.bytes(),
        }
    }

    pub fn counts(&self) -> &ScanCounts {
        &self.counts
    }

    /// Appends the partial, if there is one, and the end.
    pub fn finish(&self, out: &mut Vec<u8>) {
        match &self.sink {
            RunSink::Rows { .. } => {}
            RunSink::Top { top, .. } => {
                let frame = Frame::begin(FrameKind::Partial, out);
                top.encode(out);
                frame.end(out);
            }
            RunSink::Groups { groups, .. } => {
                let frame = Frame::begin(FrameKind::Partial, out);
                groups.encode(out);
                frame.end(out);
            }
        }
        let frame = Frame::begin(FrameKind::End, out);
        let counts = &self.counts;
        for count in [counts.records, counts.kept, counts.misfits] {
            out.extend_from_slice(&count.to_le_bytes());
        }
        let (code, field, key) = match &counts.first_misfit {
            Some(first) => (first.misfit as u8, first.field, &first.key[..]),
            None => (0, 0, &[][..]),
        };
        out.extend_from_slice(&[code, 0]);
        out.extend_from_slice(&field.to_le_bytes());
        out.extend_from_slice(&(key.len() as u32).to_le_bytes());
        out.extend_from_slice(key);
        frame.end(out);
    }
}

fn write_columns(machine: &Machine, batch: Rows<'_>, columns: &[Register], row: u16, out: &mut Vec<u8>) {
    let values = columns.iter().map(|column| machine.value(batch, *column, usize::from(row)));
    write_row(columns.len(), values, out);
}

/// Adds a record to a state. Returns how many bytes more the state holds.
fn add(machine: &Machine, batch: Rows<'_>, row: u16, aggregate: &Aggregate, state: &mut AggregateState) -> isize {
    let value = match aggregate.register {
        Some(register) => machine.value(batch, register, usize::from(row)),
        None => Some(Scalar::Bool(true)),
    };
    value.map_or(0, |value| state.add(aggregate.kind, value))
}

/// Writes that the value of a record lies elsewhere. Whoever merges the frames has it read there.
pub fn write_deferred(key: &[u8], raw_bytes: u32, reference: &[u8], out: &mut Vec<u8>) {
    let frame = Frame::begin(FrameKind::Deferred, out);
    out.extend_from_slice(&(key.len() as u16).to_le_bytes());
    out.extend_from_slice(&raw_bytes.to_le_bytes());
    out.extend_from_slice(key);
    out.extend_from_slice(reference);
    frame.end(out);
}

/// Writes that keys are to be read by whoever merges the frames.
pub fn write_missed(from: &[u8], to: Option<&[u8]>, out: &mut Vec<u8>) {
    let frame = Frame::begin(FrameKind::Missed, out);
    let end = to.unwrap_or_default();
    out.extend_from_slice(&(from.len() as u16).to_le_bytes());
    out.extend_from_slice(&(end.len() as u16).to_le_bytes());
    out.push(u8::from(to.is_some()));
    out.extend_from_slice(from);
    out.extend_from_slice(end);
    frame.end(out);
}

/// Writes that a run stopped before the end of its input. Whoever merges the frames has another run go on there.
pub fn write_stopped(taken_bytes: u64, pieces: u32, place: &[u8], out: &mut Vec<u8>) {
    let frame = Frame::begin(FrameKind::Stopped, out);
    out.extend_from_slice(&taken_bytes.to_le_bytes());
    out.extend_from_slice(&pieces.to_le_bytes());
    out.extend_from_slice(place);
    frame.end(out);
}

/// A frame that is being written.
struct Frame {
    at: usize,
}

impl Frame {
    fn begin(kind: FrameKind, out: &mut Vec<u8>) -> Frame {
        let at = out.len();
        out.extend_from_slice(&[kind as u8, 0, 0, 0, 0, 0, 0, 0]);
        Frame { at }
    }

    fn end(self, out: &mut [u8]) {
        let length = (out.len() - self.at - FRAME_HEAD_BYTES) as u32;
        out[self.at + 4..self.at + FRAME_HEAD_BYTES].copy_from_slice(&length.to_le_bytes());
    }

    fn end_unless_empty(self, out: &mut Vec<u8>) {
        if out.len() == self.at + FRAME_HEAD_BYTES { out.truncate(self.at) } else { self.end(out) }
    }
}
