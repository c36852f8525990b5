//! Repair: brings a damaged store to where it opens and holds again, and says what that costs.
//!
//! ```text
//! roots (superblock, manifest, log) ─► segments and ordered keyspaces, one after the other ─► report
//!                                       └ to repair: damaged parts of them rewritten ─► log, manifest begun anew ─► the drive
//! ```
//! Invariants:
//! 1. A look writes nothing. It runs on an overlay, and so does all of a repair but the segments that it writes anew, into
//!    extents that are free.
//! 2. What is overwritten was kept first ([`Keeper`]). The new manifest comes last: until it is durable, the old one counts.
//! 3. What is kept of the store has its right value: a record counts by its own checksum, and a group of the log by
//!    what goes back to it.
//! 4. Every item that is taken, and every write that is taken back, is in a [`Loss`].
//!
//! Threads: one, the caller's. No store may be open on the drive.

mod items;
mod log;
mod lost_groups;
mod report;
mod roots;
mod segments;
#[cfg(test)]
mod tests;
mod tree_mend;
mod tree_nodes;
#[cfg(test)]
mod tree_tests;
mod trees;

pub use items::{SalvagedItem, salvage};
pub use report::{Loss, RepairReport};

use crate::hashed::catalog::{Catalog, Install};
use crate::hashed::key_tables::key_mend::records::Records;
use crate::hashed::large::LargeEntries;
use crate::hashed::segment::Descriptor;
use crate::hashed::segment::segment_names::SegmentName;
use crate::hashed::segment::writer::{SegmentStore, SegmentWriter};
use roots::{Roots, read_roots};
use segments::{FoundSegment, key_of, look as look_at_segment};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use tapetum_base::error::Error;
use tapetum_base::maintenance::room::segment_extents;
use tapetum_base::media::extents::{ExtentOwner, ExtentReservation};
use tapetum_base::media::io::{Io, lock, run};
use tapetum_drive::{Drive, OverlayFlash, Purpose};
use tapetum_kernels::hash::HashKey;
use tapetum_kernels::record::Codec;
use tree_mend::trees;
use trees::look_at_tree;

/// Bytes copied at once.
const COPY_BYTES: u64 = 256 << 10;

/// Keeps the bytes that a repair replaces.
pub trait Keeper {
    /// The drive has these bytes at `offset`, and will have others.
    fn keep(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Error>;

    /// All that was kept is durable when this returns.
    fn sync(&mut self) -> Result<(), Error>;

    /// The repair of the store `store_id` writes no more, whether it came to its end or failed. Whoever opens the store to write to it writes to
    /// the first `roots_bytes` of the drive before anything else.
    fn end(&mut self, store_id: u64, roots_bytes: u64) -> Result<(), Error>;
}

/// Reports what a repair would do. Nothing is written.
pub fn look(drive: &Drive) -> Result<RepairReport, Error> {
    let patient = Patient::new(drive)?;
    let mut report = RepairReport::default();
    let looking = async {
        let roots = read_roots(&patient.above, &patient.io, &mut report).await?;
        for state in roots.installer.of::<Catalog>().segments.values() {
            let found = look_at_segment(&patient.io, &roots, state, &mut report).await?;
            if found.is_damaged {
                report.segments_rewritten.push(state.descriptor.number);
            }
        }
        for keyspace in trees(&roots.installer.keyspaces) {
            look_at_tree(&patient.io, &roots, &keyspace, &mut report).await?;
        }
        Ok::<(), Error>(())
    };
    run(&patient.io, looking, || false).ok_or_else(stopped)??;
    Ok(report)
}

/// Repairs the store on a drive, which may be written to; `keeper` gets the bytes that are replaced.
pub fn repair(drive: &Drive, keeper: &mut dyn Keeper) -> Result<RepairReport, Error> {
    let patient = Patient::new(drive)?;
    let below = Io::new(drive.queue_pair(64).map_err(|error| Error::Io(error.to_string()))?).of(Purpose::Recover);
    let repairing = async {
        let mut report = RepairReport::default();
        let roots = read_roots(&patient.above, &patient.io, &mut report).await?;
        roots.superblock.features.check_write()?;
        let (store_id, roots_bytes) = (roots.superblock.store_id, roots.superblock.geometry.manifest_offset(2));
        let mut surgery =
            Surgery { patient: &patient, below: &below, roots, report, keeper, versions: 0, replaced: Vec::new() };
        let done = surgery.run().await;
        // The first error says more.
        let ended = surgery.keeper.end(store_id, roots_bytes);
        done.and(ended).map(|()| surgery.report)
    };
    // Both queues: whoever is polled reaps his own.
    run(&patient.io, async { drive_both(&below, repairing).await }, || false).ok_or_else(stopped)?
}

/// Polls a future that waits for another queue too.
async fn drive_both<T>(other: &Io, future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(|context| {
        other.pump();
        future.as_mut().poll(context)
    })
    .await
}

fn stopped() -> Error {
    Error::Io("the drive stopped answering".into())
}

/// A drive, and the overlay through which it is looked at.
struct Patient {
    overlay: OverlayFlash,
    above: Drive,
    io: Io,
}

impl Patient {
    fn new(drive: &Drive) -> Result<Patient, Error> {
        if drive.flash().rows().is_some() {
            return Err(Error::Unusable(
                "a store on drives with redundancy cannot be repaired in place yet: copy its items into a new one (tapetum dump, tapetum load)"
                    .into(),
            ));
        }
        // The roots and the pages that are made anew: both are small beside a drive.
        let overlay = OverlayFlash::new(drive.flash().clone(), drive.capacity_bytes());
        let above = drive.with_flash(Arc::new(overlay.clone()));
        let io = Io::new(above.queue_pair(64).map_err(|error| Error::Io(error.to_string()))?).of(Purpose::Recover);
        Ok(Patient { overlay, above, io })
    }
}

/// A repair that writes.
struct Surgery<'a> {
    patient: &'a Patient,
    /// The drive itself.
    below: &'a Io,
    roots: Roots,
    report: RepairReport,
    keeper: &'a mut dyn Keeper,
    /// Segments written so far.
    versions: u64,
    /// Those that they replace, which the manifest on the drive may name.
    replaced: Vec<Descriptor>,
}

impl Surgery<'_> {
    async fn run(&mut self) -> Result<(), Error> {
        let numbers: Vec<u32> = self.roots.installer.of::<Catalog>().segments.keys().copied().collect();
        for number in numbers {
            let state = self.roots.installer.of::<Catalog>().segments[&number].clone();
            let found = look_at_segment(&self.patient.io, &self.roots, &state, &mut self.report).await?;
            if found.is_damaged {
                self.report.segments_rewritten.push(number);
                self.write_anew(number, &found).await?;
            } else if !found.dead.entries.is_empty() {
                self.install(Install { deaths: vec![found.dead], ..Install::default() })?;
            }
        }
        self.mend_trees().await?;
        self.finish().await
    }

    fn install(&mut self, install: Install) -> Result<(), Error> {
        self.roots.is_changed = true;
        Ok(self.roots.installer.of_mut::<Catalog>().install(&install)?)
    }

    fn generation(&self) -> u64 {
        self.roots.log.generation_seen + 1
    }

    /// Rewrites a segment with the records that can be read. If there is no room, the repairs so far are made to count, and the room of the old
    /// segments is taken.
    async fn write_anew(&mut self, number: u32, found: &FoundSegment) -> Result<(), Error> {
        let mut added = self.copy(number, found).await;
        if added == Err(Error::FullFlash) {
            self.finish().await?;
            self.free_replaced().await?;
            added = self.copy(number, found).await;
        }
        let added = added.map_err(|error| match error {
            Error::FullFlash => Error::Options(format!(
                "there is no room to write segment {number} anew: give the store a larger drive and try again"
            )),
            other => other,
        })?;
        self.replaced.push(found.segment.descriptor.clone());
        self.install(Install { added, dropped: vec![number], ..Install::default() })
    }

    /// Gives the extents of replaced segments to others, which the manifest on the drive does not name any more.
    async fn free_replaced(&mut self) -> Result<(), Error> {
        let geometry = self.roots.superblock.geometry;
        for extent in std::mem::take(&mut self.replaced).iter().flat_map(Descriptor::extents) {
            let from = geometry.extent_offset(extent);
            for at in (from..from + geometry.extent_bytes).step_by(COPY_BYTES as usize) {
                self.keep(&(at..(at + COPY_BYTES).min(from + geometry.extent_bytes))).await?;
            }
            lock(&self.roots.space.allocator).release(extent);
        }
        self.keeper.sync()
    }

    async fn copy(&mut self, number: u32, found: &FoundSegment) -> Result<Vec<Descriptor>, Error> {
        if found.readable.is_empty() {
            return Ok(Vec::new());
        }
        let superblock = &self.roots.superblock;
        let geometry = &superblock.geometry;
        let number_new = self.roots.installer.of::<Catalog>().number_free(&[]);
        if number_new >= geometry.segments(superblock.capacity_bytes) {
            return Err(Error::FullFlash);
        }
        self.versions += 1;
        let name = SegmentName { number: number_new, version: self.generation() << 32 | self.versions };
        let size = found.segment.page_size();
        let reserved =
            ExtentReservation::up_to(&self.roots.space.allocator, ExtentOwner::Collection, segment_extents(geometry));
        let store = SegmentStore { id: superblock.store_id, routes: self.roots.hasher.routes() };
        let reserved = Arc::new(Mutex::new(reserved));
        let mut writer = SegmentWriter::new(self.below, geometry, store, reserved, name, size, 0).await?;
        let none = LargeEntries::new();
        let large = self.roots.large.get(&number).unwrap_or(&none);
        let mut records = Records::new(&found.segment, &self.patient.io, self.roots.hasher.clone()).await?;
        let (mut bytes, mut last) = (Vec::new(), None::<HashKey>);
        for &(entry, address) in &found.readable {
            let header = records.copy(address, &mut bytes).await;
            let header = header.ok_or_else(|| Error::Io(format!("segment {number} cannot be read twice")))?;
            let hash = self.roots.hasher.hash_of(&header, key_of(&header, &bytes));
            if last.is_some_and(|last| last >= hash) {
                return Err(Error::Corrupt(format!("record {entry} of segment {number} is out of order")));
            }
            last = Some(hash);
            if let Err(error) = writer.add(hash, &header, &bytes).await {
                writer.give_up().await?;
                return Err(error);
            }
            if header.codec == Codec::OutOfLine
                && let Some(extents) = large.get(&entry)
            {
                writer.own_large(&header, extents.clone());
            }
        }
        let (segment, _) = writer.finish().await?;
        self.roots.large.insert(number_new, LargeEntries::new());
        Ok(vec![segment.descriptor.clone()])
    }

    /// Makes the repairs so far count.
    async fn finish(&mut self) -> Result<(), Error> {
        let (io, generation) = (&self.patient.io, self.generation());
        let Roots { superblock, installer, log, behind, is_changed, .. } = &mut self.roots;
        if let Some(copy) = behind.take() {
            superblock.write(io, &[copy]).await?;
        }
        if std::mem::take(&mut log.is_damaged) {
            log.write(io, &superblock.geometry, superblock.store_id, installer.marks.trim.log_crc).await?;
        }
        let mut area_first = 0;
        if std::mem::take(is_changed) {
            // The rewritten data is durable before anything names it.
            self.below.flush().await?;
            installer.marks.opening.generation = generation;
            area_first = installer.manifest.begin_anew(&installer.clients).await?;
        }
        let geometry = superblock.geometry;
        let areas = [0, 1].map(|area| geometry.manifest_offset(area)..geometry.manifest_offset(area + 1));
        let mut parts = [Vec::new(), Vec::new(), Vec::new()];
        for range in self.changed().await? {
            self.keep(&range).await?;
            // The other area of the manifest has the old one until this one has the new one.
            let part = match areas.iter().position(|area| area.contains(&range.start)) {
                None => 0,
                Some(area) if area == area_first => 1,
                Some(_) => 2,
            };
            parts[part].push(range);
        }
        self.keeper.sync()?;
        for part in parts {
            for range in part {
                self.put(&range).await?;
            }
            self.below.flush().await?;
        }
        Ok(())
    }

    /// Pieces written to the overlay that differ from the drive's bytes.
    async fn changed(&self) -> Result<Vec<Range<u64>>, Error> {
        let mut changed = Vec::new();
        let geometry = self.roots.superblock.geometry;
        let areas_begin = [0, 1, 2].map(|area| geometry.manifest_offset(area));
        for range in self.patient.overlay.written() {
            let mut from = range.start;
            while from < range.end {
                // No piece is of two areas of the manifest.
                let next = areas_begin.into_iter().find(|begin| *begin > from).unwrap_or(u64::MAX);
                let piece = from..range.end.min(from + COPY_BYTES).min(next);
                from = piece.end;
                if self.on_drive(&piece).await? != Some(self.patient.overlay.bytes(piece.clone())) {
                    changed.push(piece);
                }
            }
        }
        Ok(changed)
    }

    /// The drive's bytes in a range; `None` where they cannot be read.
    async fn on_drive(&self, range: &Range<u64>) -> Result<Option<Vec<u8>>, Error> {
        let length = (range.end - range.start) as usize;
        let mut buffer = self.below.allocate(length).await?;
        let read = self.below.read(range.start, &mut buffer, 0, length).await;
        Ok(read.is_ok().then(|| self.below.look(&buffer, 0..length).to_vec()))
    }

    async fn keep(&mut self, range: &Range<u64>) -> Result<(), Error> {
        match self.on_drive(range).await? {
            Some(bytes) => self.keeper.keep(range.start, &bytes),
            None => Ok(()),
        }
    }

    async fn put(&self, range: &Range<u64>) -> Result<(), Error> {
        let bytes = self.patient.overlay.bytes(range.clone());
        let mut buffer = self.below.allocate(bytes.len()).await?;
        self.below.fill(&mut buffer, 0..bytes.len()).copy_from_slice(&bytes);
        self.below.write(range.start, &mut buffer, bytes.len()).await
    }
}
