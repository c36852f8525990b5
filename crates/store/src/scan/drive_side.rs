//! A query at the drive: pipelines of one program, flash in, frames out.
//!
//! ```text
//! layout ─► list ─► pipeline ─► frames, shown when the layout says so ─► merged ─┬─► values out of line ─► lists
//!   ▲                                                                            ├─► missed keys ─► scans
//!   └───── the rest of a list whose frames had no more room ◄────────────────────┘
//! ```
//! 1. A few pipelines are on their way at a time, and the result of each has bounded room. They are merged in the order of their lists, so
//!    the host is woken for each result once.
//! 2. A pipeline stops when its result is full, and another one goes on where it was: no byte is read twice but those of a page. Only one
//!    batch of records that takes more than all of the room is read again, once, with as much room as it takes.
//! 3. A query that has enough cancels what is on its way, and waits for it.

use super::flight::{Flight, FlightEnd, FlightPlan, ListOf};
use super::query_scan::{QueryError, QueryReport};
use super::record_transfer::{NextFrame, RecordTransfer};
use super::values::ValueLists;
use crate::api::key_desks::{DESK_WORK_BYTES, ScanTools};
use crate::api::session::Application;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tapetum_base::base::Base;
use tapetum_base::engine::scan_layout::{LayoutError, ListLimits, ScanLayout, ScanList};
use tapetum_base::error::Error;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_drive::programs::scan::{SCAN, SCAN_HEAD_BYTES};
use tapetum_drive::{
    Command, Drive, Lease, Operation, PipelineStage, ProgramId, ProgramIdentity, Returned, fail_point,
};
use tapetum_kernels::ordered::NODE_BYTES;
use tapetum_kernels::scan::query::{MisfitPolicy, QueryOutput};
use tapetum_kernels::scan::result::{DeferredRecord, MissedKeys, RowSink, StoppedRun};
use tapetum_kernels::scan::{Query, QueryResult};

/// Pipelines at once: as many as a queue pair's sub-buffers are enough for, so that one reads while another computes.
const FLIGHTS_MAX: usize = 4;
/// Room for a result, at first. A large part of a small local memory would keep others waiting.
const SINK_BYTES: usize = 1 << 20;
const SINK_SHARE: usize = 16 * FLIGHTS_MAX;
/// The most that a sink grows to, for a record of the greatest length.
const SINK_BYTES_MAX: usize = 64 << 20;
/// A result that was full is followed by longer ones, up to this: fewer wake-ups.
const SINK_BYTES_GROWN: usize = 8 << 20;
const SINK_SHARE_GROWN: usize = 8 * FLIGHTS_MAX;
/// Bytes that a pipeline brings from flash at a time.
pub(crate) const PART_BYTES: usize = 256 << 10;
/// Parts take a large share of a small local memory: some dozen at once.
const PART_SHARE: usize = 128;
const PART_BYTES_MIN: usize = 32 << 10;
/// Commands of the flash at once: a few nodes of an ordered keyspace may lie apart, and are read one by one. Reads of others wait behind these.
pub(super) const FLASH_DEPTH: u32 = 64;
/// The result for one key is a few fields. It fits into the buffer of a desk, beside the pipeline's command.
const SINK_BYTES_OF_KEY: usize = DESK_WORK_BYTES * 3 / 4;
/// How long a query waits for the least local memory that it can work with, before it reports that there is too little.
pub(super) const PATIENCE_US: u64 = 10_000_000;
/// A pause before a pipeline is tried again that found no memory for its sub-buffers.
const PAUSE_US: u64 = 1000;
/// Approximate bytes that a pipeline reads. Each pipeline wakes the host once.
const READ_BYTES: u64 = 32 << 20;
/// The first pipeline of a query that may soon have enough; each after it reads twice as much.
const READ_BYTES_FIRST: u64 = 256 << 10;

#[derive(Clone, Copy, Default)]
pub(super) struct ResultOptions {
    /// Room for each result, for tests.
    pub sink_bytes: Option<usize>,
    /// Each row comes by itself.
    pub is_row_by_row: bool,
    /// The results are those of one key.
    pub is_of_key: bool,
    /// Whose pipelines they are.
    pub application: Application,
}

/// The program that copies rows, if they come one by one.
pub(super) const CONCAT: (&str, u16) = ("concat", 1);

pub(super) struct DriveRun {
    base: Arc<Base>,
    tools: ScanTools,
    stage: PipelineStage,
    application: Application,
    keyspace: KeyspaceId,
    query: Vec<u8>,
    layout: Box<dyn ScanLayout>,
    is_listed: bool,
    values: ValueLists,
    /// A list that waits for local memory.
    prepared: Option<(ListOf, Box<ScanList>)>,
    flights: VecDeque<Flight>,
    /// The program that copies rows, where they come one by one.
    row_by_row: Option<ProgramId>,
    /// The result that is being copied row by row.
    transfer: Option<RecordTransfer>,
    missed: Vec<MissedKeys>,
    sink_bytes: usize,
    /// The size that it grows to if results are long.
    sink_bytes_grown: usize,
    /// Less room was too little for a batch.
    sink_bytes_min: usize,
    read_bytes: u64,
    /// The first record that does not fit ends the query.
    is_strict: bool,
    /// It works at a desk, and waits for memory beyond that.
    is_of_key: bool,
    /// Since when there has been too little local memory.
    short_since_us: Option<u64>,
    /// The last pipeline found no memory for its sub-buffers: the next one begins after this time.
    pauses_until_us: Option<u64>,
    is_stopping: bool,
    tag_next: u64,
    returned: Vec<Returned>,
}

/// Bytes that a pipeline brings at a time, if local memory is small.
pub(super) fn part_bytes(drive: &Drive) -> u32 {
    (drive.local().bytes_total() / PART_SHARE).clamp(PART_BYTES_MIN, PART_BYTES) as u32
}

/// The tools of a scan of many keys.
pub(super) fn scan_tools(drive: &Drive) -> Result<ScanTools, Error> {
    let pair = drive.queue_pair_of_parts(FLASH_DEPTH, part_bytes(drive));
    pair.map(ScanTools::of).map_err(|error| Error::Io(error.to_string()))
}

impl DriveRun {
    pub fn new(
        base: &Arc<Base>,
        keyspace: KeyspaceId,
        query: &Query,
        mut layout: Box<dyn ScanLayout>,
        ResultOptions { sink_bytes, is_row_by_row, is_of_key, application }: ResultOptions,
        mut tools: ScanTools,
    ) -> Result<DriveRun, QueryError> {
        let drive = &base.drive;
        let local_bytes = drive.local().bytes_total();
        if let Some(copier) = layout.copier() {
            *copier = std::mem::take(&mut tools.copier);
        }
        let identity = drive.identity();
        let program = |(name, version): (&str, u16)| {
            let of = |program: &&ProgramIdentity| (&program.name[..], program.version) == (name, version);
            let found = identity.programs.iter().find(of).map(|program| program.id);
            found.ok_or_else(|| Error::Io(format!("the drive has no program {name} {version}")))
        };
        let row_by_row = if is_row_by_row { Some(program(CONCAT)?) } else { None };
        let Some(stage) = PipelineStage::new(program(SCAN)?, &[]) else { unreachable!("it has no parameters") };
        let mut encoded = Vec::new();
        query.encode(&mut encoded);
        let usual = if is_of_key { SINK_BYTES_OF_KEY } else { SINK_BYTES }.min(local_bytes / SINK_SHARE);
        let grown = SINK_BYTES_GROWN.min(local_bytes / SINK_SHARE_GROWN);
        let may_have_enough = matches!(query.output(), QueryOutput::Rows { order: None, limit: Some(_), .. });
        Ok(DriveRun {
            base: base.clone(),
            tools,
            stage,
            application,
            keyspace,
            query: encoded,
            layout,
            is_listed: false,
            values: ValueLists::default(),
            prepared: None,
            flights: VecDeque::new(),
            row_by_row,
            transfer: None,
            missed: Vec::new(),
            sink_bytes: sink_bytes.unwrap_or(usual),
            sink_bytes_grown: sink_bytes.unwrap_or(grown),
            sink_bytes_min: 0,
            read_bytes: match (is_of_key, may_have_enough) {
                (true, _) => NODE_BYTES as u64,
                (false, true) => READ_BYTES_FIRST,
                (false, false) => READ_BYTES,
            },
            is_strict: query.policy() == MisfitPolicy::Fail,
            is_of_key,
            short_since_us: None,
            pauses_until_us: None,
            is_stopping: false,
            tag_next: 1,
            returned: Vec::new(),
        })
    }

    /// Adds values out of line that are known beside the layout.
    pub fn add_values(&mut self, records: Vec<DeferredRecord>) {
        self.values.add(records);
    }

    /// Goes on as far as that is possible without waiting; whether it is over.
    pub fn step(
        &mut self,
        result: &mut QueryResult,
        rows: &mut dyn RowSink,
        report: &mut QueryReport,
    ) -> Result<bool, QueryError> {
        self.poll(report)?;
        loop {
            let has_merged = self.merge_first(result, rows, report)?;
            let misfits = self.is_strict && result.counts().first_misfit.is_some();
            if (result.is_done() || misfits) && !self.is_stopping {
                self.stop();
            }
            // Rows that come one by one leave no memory for a list that found none before.
            let waits = self.transfer.is_some() && self.prepared.is_some() || self.pauses();
            while !waits && self.flights.len() < FLIGHTS_MAX && self.submit_next(report)? {}
            let is_idle = self.flights.is_empty() && self.prepared.is_none() && self.transfer.is_none();
            if is_idle && self.pauses_until_us.is_none() {
                return Ok(true);
            }
            if !has_merged || is_idle {
                return Ok(false);
            }
        }
    }

    /// Waits until a step would get further, or a moment.
    pub fn wait(&mut self) {
        if self.transfer.is_some() {
            return self.tools.pair().wait(Some(Duration::from_millis(10)));
        }
        // Others give memory back meanwhile: then pipelines go on.
        if self.flights.is_empty() && self.pauses_until_us.is_some() {
            return self.tools.pair().wait(Some(Duration::from_micros(PAUSE_US)));
        }
        match self.flights.front() {
            // It waits for something to be durable.
            Some(Flight { ended: Some(_), .. }) => std::thread::yield_now(),
            None => self.tools.wait_for_memory(),
            Some(_) => self.tools.pair().wait(Some(Duration::from_millis(10))),
        }
    }

    /// Takes the keys that were not at the places in the layout.
    pub fn take_missed(&mut self) -> Vec<MissedKeys> {
        std::mem::take(&mut self.missed)
    }

    fn poll(&mut self, report: &mut QueryReport) -> Result<(), QueryError> {
        let mut returned = std::mem::take(&mut self.returned);
        self.tools.pair().poll(&mut returned);
        for returned in returned.drain(..) {
            // The command of a cancel has no flight.
            let tag = returned.completion.tag;
            if let Some(flight) = self.flights.iter_mut().find(|flight| flight.tag == tag) {
                report.wake_ups += 1;
                report.returned_bytes += flight.end(&self.base.drive, self.tools.pair(), returned);
            } else if let Some(transfer) = self.transfer.as_mut().filter(|transfer| transfer.tag == tag) {
                report.wake_ups += 1;
                transfer.end(&self.base.drive, returned)?;
            }
        }
        self.returned = returned;
        Ok(())
    }

    /// Merges the result of the first pipeline, if it has ended and may be shown; whether it did.
    fn merge_first(
        &mut self,
        result: &mut QueryResult,
        rows: &mut dyn RowSink,
        report: &mut QueryReport,
    ) -> Result<bool, QueryError> {
        if self.transfer.is_some() {
            return self.merge_row(result, rows, report);
        }
        let Some(Flight { ended: Some(ended), of, id, .. }) = self.flights.front() else { return Ok(false) };
        let (of, id) = (*of, *id);
        let is_of_layout = of == ListOf::Layout && !self.is_stopping;
        if is_of_layout && ended.is_ok() && !self.layout.may_show(id)? {
            return Ok(false);
        }
        let Some(mut flight) = self.flights.pop_front() else { unreachable!("it was just looked at") };
        let ended = flight.ended.take();
        if self.is_stopping {
            report.flash_bytes += flight.flash_bytes(u64::MAX);
            self.put_back(flight);
            return Ok(true);
        }
        match ended {
            Some(Ok(FlightEnd::Frames(bytes))) => {
                self.short_since_us = None;
                match self.row_by_row {
                    Some(concat) => {
                        let tag = self.tag_next;
                        self.tag_next += 1;
                        self.transfer = Some(RecordTransfer::new(flight, bytes, concat, tag));
                    }
                    None => {
                        report.returned_bytes += bytes as u64;
                        let merged = result.merge(flight.frames(self.tools.pair(), bytes), rows);
                        let merged =
                            merged.map_err(QueryError::from).and_then(|()| self.merged(&flight, result, report));
                        self.put_back(flight);
                        merged?;
                    }
                }
            }
            Some(Ok(FlightEnd::NoSubBuffers)) => {
                self.put_back(flight);
                if !self.may_wait() {
                    let why = "local memory has no room for another scan: ask for fewer at once, or give the store more memory";
                    return Err(Error::Options(why.into()).into());
                }
                self.pauses_until_us = Some(self.base.drive.env().now_us() + PAUSE_US);
                self.list_again(of, id)?;
            }
            Some(Ok(FlightEnd::TooLong(bytes))) => {
                report.flash_bytes += flight.flash_bytes(u64::MAX);
                let has_room = bytes <= flight.sink_bytes();
                self.put_back(flight);
                if has_room || bytes > SINK_BYTES_MAX {
                    return Err(QueryError::ResultTooLarge);
                }
                self.sink_bytes_min = self.sink_bytes_min.max(bytes);
                self.sink_bytes = self.sink_bytes.max(self.sink_bytes_min);
                self.list_again(of, id)?;
            }
            Some(Err(error)) => {
                self.put_back(flight);
                self.layout.check()?;
                return Err(error);
            }
            None => unreachable!("it has ended"),
        }
        Ok(true)
    }

    /// Takes a row of the result that comes row by row, if it is there.
    fn merge_row(
        &mut self,
        result: &mut QueryResult,
        rows: &mut dyn RowSink,
        report: &mut QueryReport,
    ) -> Result<bool, QueryError> {
        let Some(transfer) = self.transfer.as_mut().filter(|transfer| !transfer.is_away()) else { return Ok(false) };
        if self.is_stopping {
            self.transfer = None;
            return Ok(true);
        }
        match transfer.next(&self.base.drive, self.tools.pair(), &mut report.returned_bytes)? {
            NextFrame::Here(frame) => result.merge(frame, rows)?,
            NextFrame::Away => {}
            NextFrame::End => {
                let Some(RecordTransfer { flight, .. }) = self.transfer.take() else { unreachable!("it is there") };
                self.merged(&flight, result, report)?;
            }
        }
        Ok(true)
    }

    /// The frames of a pipeline were merged: passes on what they leave to others.
    fn merged(
        &mut self,
        flight: &Flight,
        result: &mut QueryResult,
        report: &mut QueryReport,
    ) -> Result<(), QueryError> {
        self.values.add(result.take_deferred());
        let missed = result.take_missed();
        if !fail_point!(QueryForgetMissed) {
            self.missed.extend(missed);
        }
        let stopped = result.take_stopped();
        let taken_bytes = stopped.as_ref().map_or(u64::MAX, |stopped| stopped.taken_bytes);
        report.flash_bytes += flight.flash_bytes(taken_bytes);
        if stopped.is_some() {
            let grown = (2 * flight.sink_bytes()).min(self.sink_bytes_grown);
            self.sink_bytes = self.sink_bytes.max(grown);
        }
        self.list_rest(flight.of, flight.id, stopped.as_ref())
    }

    /// Lists again all that a pipeline was to look at.
    fn list_again(&mut self, of: ListOf, id: u64) -> Result<(), QueryError> {
        match of {
            ListOf::Layout => self.layout.again(id, None)?,
            ListOf::Values => self.values.again(id, None),
        }
        self.is_listed = false;
        Ok(())
    }

    /// Lists again the part of its list that a pipeline left.
    fn list_rest(&mut self, of: ListOf, id: u64, stopped: Option<&StoppedRun>) -> Result<(), QueryError> {
        match (of, stopped) {
            (ListOf::Layout, None) => self.layout.release(id),
            (ListOf::Values, None) => self.values.release(id),
            (ListOf::Layout, stopped) => {
                self.layout.again(id, stopped)?;
                self.is_listed = false;
            }
            (ListOf::Values, stopped) => self.values.again(id, stopped),
        }
        Ok(())
    }

    /// Starts the next pipeline; false: there is nothing to start now.
    fn submit_next(&mut self, report: &mut QueryReport) -> Result<bool, QueryError> {
        let Some((of, list)) = self.next_list()? else { return Ok(false) };
        if list.piece_count == 0 {
            self.missed.extend(list.missed);
            self.layout.release(list.id);
            return Ok(true);
        }
        let (keyspace, query, stage) = (self.keyspace.0, &self.query[..], self.stage);
        let (is_row_by_row, room) = (self.row_by_row.is_some(), self.sink_bytes as u32);
        let application = self.application;
        let plan = FlightPlan { stage, application, keyspace, query, is_row_by_row, room };
        match Flight::submit(&self.base.drive, &mut self.tools, &plan, self.tag_next, of, list) {
            Ok((flight, sent_bytes)) => {
                self.tag_next += 1;
                report.commands += 1;
                report.sent_bytes += sent_bytes;
                self.flights.push_back(flight);
                Ok(true)
            }
            Err(list) if (self.is_of_key || self.is_least()) && self.may_wait() => {
                self.prepared = Some((of, list));
                Ok(false)
            }
            Err(_) if self.is_least() && self.sink_bytes / 2 < self.sink_bytes_min => Err(QueryError::ResultTooLarge),
            Err(list) if self.is_least() => {
                let bytes = list.pieces.len() + self.sink_bytes;
                let why = format!("local memory has no {bytes} bytes for a scan: give the store more memory");
                Err(Error::Options(why).into())
            }
            Err(list) => {
                if self.flights.is_empty() {
                    self.sink_bytes /= 2;
                }
                self.prepared = Some((of, list));
                Ok(self.flights.is_empty())
            }
        }
    }

    /// Whether the query asks for the least local memory that it can do with: no pipeline is under way, and half the room would be too little.
    fn is_least(&self) -> bool {
        self.flights.is_empty() && self.sink_bytes / 2 < self.sink_bytes_min.max(self.query.len()).max(4096)
    }

    /// Whether to wait until others need less local memory.
    fn may_wait(&mut self) -> bool {
        let drive = &self.base.drive;
        let now_us = drive.env().now_us();
        let since_us = *self.short_since_us.get_or_insert(now_us);
        self.sink_bytes < drive.local().bytes_total() && now_us.saturating_sub(since_us) < PATIENCE_US
    }

    /// Whether no pipeline is to begin yet, because there is no memory for its sub-buffers.
    fn pauses(&mut self) -> bool {
        // Those that are under way have some, and the next one takes it over.
        let is_over = |until_us| !self.flights.is_empty() || self.base.drive.env().now_us() >= until_us;
        if self.pauses_until_us.is_some_and(is_over) {
            self.pauses_until_us = None;
        }
        self.pauses_until_us.is_some()
    }

    /// Gives the buffers of an ended pipeline back to the desk.
    fn put_back(&mut self, flight: Flight) {
        [flight.work, flight.copies].into_iter().flatten().for_each(|buffer| self.tools.put_back(buffer));
    }

    fn next_list(&mut self) -> Result<Option<(ListOf, Box<ScanList>)>, QueryError> {
        if self.is_stopping {
            return Ok(None);
        }
        if let Some(prepared) = self.prepared.take() {
            return Ok(Some(prepared));
        }
        let limits = ListLimits::beside(SCAN_HEAD_BYTES + self.query.len(), self.read_bytes);
        if !self.is_listed && !self.values.has_many() {
            if let Some(list) = self.layout.next(&limits)? {
                self.read_bytes = (self.read_bytes * 2).min(READ_BYTES);
                return Ok(Some((ListOf::Layout, Box::new(list))));
            }
            self.is_listed = true;
        }
        let (store, keyspace, layout) = (self.base.store_id, self.keyspace.0, &self.layout);
        let home = |record: &DeferredRecord| layout.value(record);
        let list = self.values.next(&limits, store, keyspace, &mut self.missed, home)?;
        Ok(list.map(|list| (ListOf::Values, Box::new(list))))
    }

    /// Nothing more is wanted.
    fn stop(&mut self) {
        self.is_stopping = true;
        self.prepared = None;
        self.missed.clear();
        for flight in self.flights.iter().filter(|flight| flight.ended.is_none()) {
            let cancel = Operation::Cancel { tag: flight.tag, pipeline: None };
            // It ends by itself if there is no place for that.
            let _ = self.tools.pair().submit(Command::new(0, cancel), Lease::Nothing);
        }
    }
}

impl Drop for DriveRun {
    fn drop(&mut self) {
        if let Some(copier) = self.layout.copier() {
            self.tools.take_copier(copier);
        }
        let copies = self.prepared.take().and_then(|(_, mut list)| list.copies.take());
        copies.into_iter().for_each(|buffer| self.tools.put_back(buffer));
        while let Some(flight) = self.flights.pop_front() {
            self.put_back(flight);
        }
    }
}

impl From<LayoutError> for QueryError {
    fn from(error: LayoutError) -> QueryError {
        match error {
            LayoutError::Store(error) => QueryError::Store(error),
            LayoutError::TooManyReplaced => QueryError::TooManyReplaced,
            LayoutError::TooOld => QueryError::SnapshotTooOld,
            LayoutError::Place => QueryError::Result,
        }
    }
}
