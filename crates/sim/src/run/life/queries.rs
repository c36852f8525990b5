//! Filtered scans at the drive, beside other operations, flush, collector, splits and merges. Their results are checked against the model.

use super::super::{Stop, World, wrong};
use super::{Life, PATIENCE};
use crate::model::operation::{Filter, Told};
use crate::workload::holds;
use std::collections::BTreeMap;
use tapetum::{Error, KeyRange, KeyspaceError, QueryError, QueryTask};
use tapetum_drive::PipelineReason;
use tapetum_kernels::scan::program::{Comparison, Constant, Instruction, Program};
use tapetum_kernels::scan::query::{MisfitPolicy, QueryOutput};
use tapetum_kernels::scan::{Format, OwnedScalar, Query, Scalar, ScalarType};

/// A pending filtered scan.
pub(super) struct QueryAsked {
    id: u64,
    slot: usize,
    range: KeyRange,
    filter: Filter,
    task: QueryTask,
    /// Keys and values that it has shown.
    rows: Vec<(Vec<u8>, Vec<u8>)>,
}

impl std::fmt::Debug for QueryAsked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let QueryAsked { id, slot, range, filter, rows, .. } = self;
        write!(f, "query {id} of slot {slot}, {range:?}, {filter:?}, {} rows", rows.len())
    }
}

/// A query for key and value of the items that a filter keeps.
fn query(filter: &Filter) -> Query {
    let format = Format::parse("key: name bytes; value: body bytes").unwrap_or_else(|error| panic!("{error}"));
    let mut instructions = vec![Instruction::Field(0), Instruction::Field(1)];
    let mut constants = Vec::new();
    if let Some(below) = &filter.below {
        constants.push(Constant::of(OwnedScalar::Bytes(below.to_vec().into())));
        instructions.extend([Instruction::Constant(0), Instruction::Compare(Comparison::Less, 1, 2)]);
        instructions.push(Instruction::Keep(3));
    }
    let program = Program::new(instructions, constants, &[ScalarType::Bytes, ScalarType::Bytes]);
    let program = program.unwrap_or_else(|error| panic!("{error:?}"));
    let output = QueryOutput::Rows { columns: vec![0, 1], order: None, limit: None };
    Query::new(format, program, output, MisfitPolicy::Fail).unwrap_or_else(|error| panic!("{error:?}"))
}

/// A query for key and value of all items.
pub(super) fn everything() -> Query {
    query(&Filter { below: None })
}

/// Key and value of a row of such a query.
pub(super) fn row_of(values: &[Option<Scalar<'_>>]) -> (Vec<u8>, Vec<u8>) {
    let bytes = |place: usize| values[place].and_then(Scalar::bytes).unwrap_or_default().to_vec();
    (bytes(0), bytes(1))
}

impl Life {
    /// Begins a filtered scan, unless one is pending.
    pub(super) fn begin_query(
        &mut self,
        world: &mut World,
        id: u64,
        slot: usize,
        range: KeyRange,
        filter: Filter,
    ) -> Result<(), Stop> {
        if self.query.is_some() || self.damaged || self.poisoned {
            return Ok(());
        }
        let Some(name) = world.slots[slot].name() else { return Ok(()) };
        let begun = self.store.keyspace(name).map_err(QueryError::Store);
        let task = match begun.and_then(|keyspace| keyspace.begin_query(&query(&filter), &range)) {
            Ok(task) => task,
            Err(error) => return self.judge_query_error(&error, "is not begun"),
        };
        let keys = world.workload.keys_of(slot).filter(|key| holds(&range, world.workload.key(*key))).collect();
        world.model.submit_scan(id, keys);
        self.query = Some(Box::new(QueryAsked { id, slot, range, filter, task, rows: Vec::new() }));
        Ok(())
    }

    /// Runs a step of the pending filtered scan, if there is one.
    pub(super) fn step_query(&mut self, world: &mut World) -> Result<(), Stop> {
        let Some(mut asked) = self.query.take() else { return Ok(()) };
        let QueryAsked { task, rows, .. } = &mut *asked;
        let mut take = |values: &[Option<Scalar<'_>>]| rows.push(row_of(values));
        match task.step(&mut take) {
            Ok(None) => {
                self.query = Some(asked);
                Ok(())
            }
            Ok(Some(report)) => {
                world.trace(asked.id ^ report.counts.records);
                let told = told_by(world, &asked).or_else(|why| wrong(format!("{asked:?} {why}")))?;
                world.model.reply_scan(asked.id, &told).map_err(Stop::Wrong)
            }
            Err(error) => {
                // The rows that it has shown before do not count: a client throws them away.
                world.model.reply_scan(asked.id, &BTreeMap::new()).map_err(Stop::Wrong)?;
                self.judge_query_error(&error, &format!("({asked:?}) failed"))
            }
        }
    }

    /// Runs steps until none is pending, and nothing with freezes is.
    pub(super) fn finish_query(&mut self, world: &mut World) -> Result<(), Stop> {
        let mut patience = PATIENCE;
        while self.query.is_some() || self.freezes.is_busy() || self.is_freezing_for_backup() {
            for session in 0..self.sessions.len() {
                self.poll(world, session)?;
            }
            self.maintain(world)?;
            patience -= 1;
            self.pass_time(world, patience);
            if patience == 0 {
                return wrong(format!(
                    "{:?} or {:?} does not end: {:?}",
                    self.query,
                    self.freezes,
                    self.store.phases()
                ));
            }
        }
        Ok(())
    }

    fn judge_query_error(&mut self, error: &QueryError, what: &str) -> Result<(), Stop> {
        let is_right = match error {
            QueryError::SnapshotTooOld => true,
            QueryError::Store(Error::Keyspace(KeyspaceError::Gone | KeyspaceError::Unknown { .. })) => true,
            QueryError::Store(Error::Poisoned(_) | Error::NoSpace { .. }) => {
                self.poisoned = self.faulty;
                self.faulty
            }
            // The drive found no memory for it beside the buffer of a backup.
            QueryError::Store(Error::Pipeline(failure)) if failure.reason == PipelineReason::NoLocalMemory => {
                self.faulty || self.backup.is_some()
            }
            QueryError::Store(Error::Io(_) | Error::Pipeline(_)) => self.faulty,
            _ => false,
        };
        if is_right { Ok(()) } else { wrong(format!("a filtered scan {what}: {error}")) }
    }
}

/// The answer of a filtered scan for each key of its range. An error if the answer contradicts itself.
fn told_by(world: &World, asked: &QueryAsked) -> Result<BTreeMap<usize, Told>, String> {
    let mut shown: BTreeMap<&[u8], &[u8]> = BTreeMap::new();
    for (key, value) in &asked.rows {
        if !asked.filter.keeps(value) {
            return Err(format!("shows {}, whose value the filter does not keep", key.escape_ascii()));
        }
        if shown.insert(key, value).is_some() {
            return Err(format!("shows {} twice", key.escape_ascii()));
        }
    }
    let mut told = BTreeMap::new();
    for key in world.workload.keys_of(asked.slot) {
        let name = world.workload.key(key);
        if holds(&asked.range, name) {
            let hidden = || Told::Hidden(asked.filter.clone());
            told.insert(key, shown.remove(name).map_or_else(hidden, |value| Told::Shown(value.into())));
        }
    }
    match shown.keys().next() {
        Some(key) => Err(format!("shows {}, which it has no business to", key.escape_ascii())),
        None => Ok(told),
    }
}
