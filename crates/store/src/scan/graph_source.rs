//! The sources of a graph's edges: the records that the host has, and the layout of those on flash.

use super::flight::{FlightPlan, attachment};
use super::graph_gather::extend_attached;
use super::graph_scan::frames_of;
use super::query_scan::{QueryError, QueryReport};
use super::segment_lists::SegmentLists;
use crate::api::blocking::{Item, KeyspaceHandle};
use crate::api::session::Application;
use crate::hashed::snapshot::{BufferedRecords, Snapshot};
use tapetum_base::engine::scan_layout::{ListLimits, ScanLayout};
use tapetum_base::error::Error;
use tapetum_base::media::io::Io;
use tapetum_base::request::key_range::KeyRange;
use tapetum_drive::programs::scan::SCAN_HEAD_BYTES;
use tapetum_drive::{PipelineStage, Purpose, SourceRange};
use tapetum_kernels::expiry::Expiry;
use tapetum_kernels::scan::Query;

/// The input of a pipeline over all segments.
pub(super) struct WholeScan {
    /// The number of the list.
    pub id: u64,
    pub ranges: Vec<SourceRange>,
    pub attachment: Vec<u8>,
}

impl WholeScan {
    /// Bytes that are read.
    pub fn bytes(&self) -> u64 {
        self.ranges.iter().map(|range| range.bytes).sum()
    }
}

/// The segments of a hashed keyspace, and the records of its write buffers as frames.
pub(super) fn hashed_layout(
    keyspace: &KeyspaceHandle,
    query: &Query,
    report: &mut QueryReport,
) -> Result<(Box<dyn ScanLayout>, Vec<u8>), QueryError> {
    let engine = keyspace.store().hashed().clone();
    engine.refuse_unservable(keyspace.keyspace())?;
    let mut snapshot = {
        let queue = engine.drive.queue_pair(16).map_err(|error| Error::Io(error.to_string()))?;
        let io = Io::new(queue).of(Purpose::Scan);
        engine.run_beside_maintenance(&io, Snapshot::take(engine.clone(), io.clone(), keyspace.keyspace()))??
    };
    let records = snapshot.take_records();
    (report.segments, report.buffered) = (snapshot.segments().len() as u64, records.count() as u64);
    let frames = buffered_frames(keyspace, query, &records)?;
    Ok((Box::new(SegmentLists::new(snapshot)), frames))
}

/// The nodes of an ordered keyspace.
pub(super) fn ordered_layout(keyspace: &KeyspaceHandle) -> Result<Box<dyn ScanLayout>, QueryError> {
    let (base, of) = (&keyspace.store().hashed().base, keyspace.keyspace());
    base.refuse_dropped(of)?;
    let layout = keyspace.store().engine(of.kind()).map(|engine| engine.scan_layout(of, &KeyRange::default()));
    let layout = layout.transpose()?.flatten();
    Ok(layout.ok_or_else(|| Error::Io("the store has no engine for this keyspace".into()))?)
}

/// The input of one pipeline over all segments; `None` if there are no segments, or more than it takes.
pub(super) fn whole_scan(
    layout: &mut dyn ScanLayout,
    stage: PipelineStage,
    keyspace: u16,
    query: &Query,
) -> Result<Option<WholeScan>, QueryError> {
    let mut encoded = Vec::new();
    query.encode(&mut encoded);
    let limits = ListLimits::beside(SCAN_HEAD_BYTES + encoded.len(), u64::MAX);
    let Some(list) = layout.next(&limits)? else { return Ok(None) };
    if let Some(second) = layout.next(&limits)? {
        layout.again(second.id, None)?;
        layout.again(list.id, None)?;
        return Ok(None);
    }
    let plan = FlightPlan {
        stage,
        application: Application::default(),
        keyspace,
        query: &encoded,
        is_row_by_row: false,
        room: 0,
    };
    let attachment = attachment(&plan, &list);
    Ok(Some(WholeScan { id: list.id, ranges: list.ranges, attachment }))
}

/// The frames of the query over records that write buffers had.
fn buffered_frames(keyspace: &KeyspaceHandle, query: &Query, records: &BufferedRecords) -> Result<Vec<u8>, QueryError> {
    let mut frames = Vec::new();
    let item = |value: Vec<u8>| Item { value, flags: 0, expiry: Expiry::NONE, stamp: 0 };
    let here = records.items.iter().map(|buffered| Ok((buffered.key.clone(), item(buffered.value.clone()))));
    // Deleted since, if it is gone.
    let read = |key: &[u8]| keyspace.get(key).map(|found| found.map(|item| (key.to_vec(), item))).transpose();
    let there = records.elsewhere.iter().filter_map(|(_, record)| read(&record.key));
    frames_of(here.chain(there), query, &mut |more| extend_attached(&mut frames, more))?;
    Ok(frames)
}
