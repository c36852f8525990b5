//! The flush: a sealed write buffer becomes a segment.
//!
//! ```text
//! check keys · write records  →  flush  →  manifest record (segment, deaths)  →  index merge  →  buffer released, log trimmed
//! ```
//! The buffer answers reads until the index does. A crash before the manifest record leaves free extents and the log; a
//! crash after it leaves a segment and a log zone nobody replays. The installer is held from the first key check on, so
//! that nothing moves between a check and the death it finds.

use crate::catalog::{Deaths, Install};
use crate::error::Error;
use crate::install::{Moved, apply};
use crate::io::{Io, lock, step};
use crate::key_check::{Checked, check_keys};
use crate::phase::{Phase, PhaseCell};
use crate::planted::Bug;
use crate::segment::writer::SegmentWriter;
use crate::shared::{Installer, Shared};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tapetum_kernels::record::Kind;

/// Flushes `buffer`, which is sealed, and for which there is room.
pub async fn flush(shared: Arc<Shared>, io: Io, phase: Arc<PhaseCell>, buffer: u64) -> Result<(), Error> {
    phase.set(Phase::Flush);
    while !shared.log.buffer_written(buffer) {
        shared.log.poisoned()?;
        shared.log.advance(true, shared.drive.env().now_us());
        step().await;
    }
    let mut installer = shared.take_installer().await;
    let done = flush_with(&shared, &io, &phase, buffer, &mut installer).await;
    shared.return_installer(installer);
    phase.set(Phase::Idle);
    done?;
    shared.counters.flushes.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// Whether a flush can end and leave the collector's reserve alone: extents, and segment numbers, which buffers of few
/// live records use up first.
pub fn has_room(shared: &Shared) -> bool {
    lock(&shared.extents).free_count() >= 2 * shared.segment_extents() && shared.numbers_left() >= 4
}

async fn flush_with(
    shared: &Arc<Shared>,
    io: &Io,
    phase: &PhaseCell,
    buffer: u64,
    installer: &mut Installer,
) -> Result<(), Error> {
    let name = shared.name_segment(&installer.catalog);
    let done = flush_as(shared, io, phase, buffer, installer, name).await;
    shared.release_number(name.0);
    done
}

async fn flush_as(
    shared: &Arc<Shared>,
    io: &Io,
    phase: &PhaseCell,
    buffer: u64,
    installer: &mut Installer,
    name: (u32, u64),
) -> Result<(), Error> {
    let local = shared.drive.local();
    let mut writer = SegmentWriter::new(io, &shared.geometry, shared.store_id, local, &shared.extents, name)?;
    let mut deaths: BTreeMap<u32, Vec<(u32, u32)>> = BTreeMap::new();
    let mut moved = Vec::with_capacity(shared.shards.len());
    let (mut batch, mut checked) = (Vec::new(), Vec::new());
    for shard in &shared.shards {
        lock(shard).sorted(buffer, &mut batch);
        check_keys(shared, io, &installer.catalog, &batch, &mut checked).await?;
        let mut slice = Vec::with_capacity(batch.len());
        for (&(hash, place), &checked) in batch.iter().zip(&checked) {
            let record = shared.log.record(buffer, place);
            let header = record.header;
            let live = header.kind == Kind::Value && shared.is_live(&header, shared.now());
            if live {
                writer.add(hash, &header, shared.log.arena(buffer, place as usize, header.record_bytes())).await?;
            }
            let forgotten = !live && shared.planted.has(Bug::ForgetTombstone);
            if let Checked::Older { segment, entry, size_bytes } = checked
                && !forgotten
            {
                deaths.entry(segment).or_default().push((entry, size_bytes));
            }
            slice.push(Moved::from_check(live && !forgotten, checked));
        }
        moved.push(slice);
        step().await;
    }
    let segment = if writer.record_bytes() > 0 { Some(Arc::new(writer.finish().await?)) } else { None };
    let (stamp_sealed, log_crc) = shared.log.sealed();
    let watermark = *lock(&shared.watermark_sealed);
    let install = Install {
        buffer_next: buffer + 1,
        marks: shared.marks(watermark, installer.catalog.marks.stamp_max.max(stamp_sealed), log_crc),
        added: segment.iter().map(|segment| segment.descriptor.clone()).collect(),
        deaths: deaths_of(deaths),
        dropped: Vec::new(),
    };
    phase.set(Phase::Install);
    if shared.planted.has(Bug::TrimLogEarly) {
        release(shared, buffer);
    }
    apply(shared, io, phase, installer, &install, segment, |partition| {
        let mut batch = Vec::new();
        lock(&shared.shards[partition]).sorted(buffer, &mut batch);
        batch.iter().zip(&moved[partition]).map(|((hash, _), moved)| (*hash, *moved)).collect()
    })
    .await?;
    if !shared.planted.has(Bug::TrimLogEarly) {
        release(shared, buffer);
    }
    Ok(())
}

/// Readers find the records by the index from here on; the zone and the arena are free.
fn release(shared: &Shared, buffer: u64) {
    for shard in &shared.shards {
        lock(shard).release(buffer);
    }
    shared.log.wake();
}

pub fn deaths_of(by_segment: BTreeMap<u32, Vec<(u32, u32)>>) -> Vec<Deaths> {
    by_segment
        .into_iter()
        .map(|(segment, mut entries)| {
            entries.sort_unstable();
            Deaths {
                segment,
                record_bytes: entries.iter().map(|(_, size_bytes)| u64::from(*size_bytes)).sum(),
                entries: entries.iter().map(|(entry, _)| *entry).collect(),
            }
        })
        .collect()
}
