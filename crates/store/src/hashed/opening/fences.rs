//! The segments that a catalog names, with their fences, which lie behind their key tables.

use crate::hashed::catalog::Catalog;
use crate::hashed::key_tables::key_reader::{KeyReader, PAGES_PER_READ};
use crate::hashed::segment::Descriptor;
use crate::hashed::segment::keyspace_shares::KeyspaceShares;
use crate::hashed::segment::local_index::LocalIndex;
use crate::hashed::segment::view::Segment;
use arc_swap::ArcSwapOption;
use std::sync::Arc;
use tapetum_base::error::Error;
use tapetum_base::keyspace::hasher::KeyHasher;
use tapetum_base::media::geometry::Geometry;
use tapetum_base::media::io::Io;
use tapetum_base::media::superblock::Superblock;
use tapetum_drive::Drive;

/// Room for every segment that the store may come to have.
pub fn segment_table(geometry: &Geometry) -> Vec<ArcSwapOption<Segment>> {
    (0..geometry.segments(geometry.capacity_max_bytes())).map(|_| ArcSwapOption::empty()).collect()
}

/// Opens the segments of the catalog: their fences lie behind their key tables. Many reads are on their way at once.
pub async fn open_segments(
    drive: &Drive,
    io: &Io,
    superblock: &Superblock,
    hasher: &KeyHasher,
    catalog: &Catalog,
    segments: &[ArcSwapOption<Segment>],
) -> Result<(), Error> {
    let mut reader = KeyReader::new(io, drive.local(), hasher.clone());
    // A view without fences serves to read the pages that hold them.
    let blind = |descriptor: &Descriptor| {
        Arc::new(Segment::new(descriptor.clone(), superblock.store_id, superblock.geometry, LocalIndex::empty()))
    };
    let mut reads = catalog.segments.values().map(|state| blind(&state.descriptor)).flat_map(|segment| {
        let pages = segment.fence_pages();
        let starts = pages.clone().step_by(PAGES_PER_READ as usize);
        starts.map(move |start| (segment.clone(), start..pages.end.min(start + PAGES_PER_READ)))
    });
    let mut fences = Vec::new();
    loop {
        while reader.has_room()
            && let Some((segment, pages)) = reads.next()
        {
            let is_last = pages.end == segment.fence_pages().end;
            reader.start(segment, pages, is_last).await?;
        }
        let Some(read) = reader.next().await? else { return Ok(()) };
        for payload in read.fences() {
            fences.extend_from_slice(payload?);
        }
        if read.context {
            let segment = open_segment(superblock, &read.segment.descriptor, &fences)?;
            segment.attach(&catalog.segments[&segment.descriptor.number].valid);
            segments[segment.descriptor.number as usize].store(Some(Arc::new(segment)));
            fences.clear();
        }
        reader.recycle(read);
    }
}

fn open_segment(superblock: &Superblock, descriptor: &Descriptor, fences: &[u8]) -> Result<Segment, Error> {
    let fits = |index: &LocalIndex| index.data.pages() == descriptor.data_pages;
    let mut local_index = LocalIndex::parse(fences, descriptor.key_pages).filter(fits).ok_or_else(|| {
        Error::Corrupt(format!("the fences of segment {} do not fit its description", descriptor.number))
    })?;
    if local_index.shares.total_bytes() != descriptor.record_bytes {
        local_index.shares = KeyspaceShares::default();
    }
    Ok(Segment::new(descriptor.clone(), superblock.store_id, superblock.geometry, local_index))
}
