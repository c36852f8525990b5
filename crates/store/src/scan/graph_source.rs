//! The sources of a graph's edges: the records that the host has, and the layout of those on flash.

use super::flight::{FlightPlan, attachment};
use super::graph_gather::extend_attached;
use super::graph_scan::frames_of;
use super::moment::{MomentLayout, moment_io, refuse_unreadable, take_moment};
use super::query_scan::{QueryError, QueryReport};
use crate::api::blocking::{Item, KeyspaceHandle};
use crate::api::session::Application;
use crate::hashed::large::verify::read_value;
use crate::hashed::snapshot::BufferedRecords;
use crate::ordered::frozen::KeySpan;
use tapetum_base::engine::scan_layout::{ListLimits, ScanLayout};
use tapetum_base::error::Error;
use tapetum_base::media::io::Io;
use tapetum_drive::programs::scan::SCAN_HEAD_BYTES;
use tapetum_drive::{PipelineStage, SourceRange};
use tapetum_kernels::codec::Decompressor;
use tapetum_kernels::expiry::Expiry;
use tapetum_kernels::reference::Reference;
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

/// The layout of a keyspace at one moment, and what write buffers had of it as frames.
pub(super) fn graph_layout(
    keyspace: &KeyspaceHandle,
    query: &Query,
    report: &mut QueryReport,
) -> Result<(MomentLayout, Vec<u8>), QueryError> {
    refuse_unreadable(keyspace)?;
    let io = moment_io(keyspace)?;
    let taking = take_moment(keyspace, KeySpan::default(), io.clone());
    let part = keyspace.store().hashed().run_beside_maintenance(&io, taking)??;
    let laid = MomentLayout::of(part, KeySpan::default())?;
    (report.segments, report.buffered) = (laid.segments as u64, laid.records.count() as u64);
    let frames = buffered_frames(keyspace, &io, query, &laid.records)?;
    Ok((laid, frames))
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
fn buffered_frames(
    keyspace: &KeyspaceHandle,
    io: &Io,
    query: &Query,
    records: &BufferedRecords,
) -> Result<Vec<u8>, QueryError> {
    let mut frames = Vec::new();
    let engine = keyspace.store().hashed();
    let mut decompressor = Decompressor::new().map_err(|error| Error::Io(error.to_string()))?;
    let item = |value: Vec<u8>| Item { value, flags: 0, expiry: Expiry::NONE, stamp: 0 };
    let here =
        records.items.iter().map(|buffered| Ok((buffered.key.clone(), item(buffered.value(&mut decompressor)?))));
    // The moment holds them.
    let there = records.elsewhere.iter().map(|(_, record)| {
        let damaged = |_| Error::Corrupt("a reference to a large value; `check` says where".into());
        let reference = Reference::parse(&record.reference).map_err(damaged)?;
        let reading = read_value(io, &engine.geometry, engine.store_id, &reference, record.raw_bytes);
        Ok((record.key.to_vec(), item(engine.run_beside_maintenance(io, reading)??)))
    });
    frames_of(here.chain(there), query, &mut |more| extend_attached(&mut frames, more))?;
    Ok(frames)
}
