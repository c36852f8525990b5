//! Segments of a hashed keyspace, as a snapshot has them: a list has whole segments, or pages of one.

use super::layout::{LayoutError, ListLimits, ScanLayout, ScanList};
use super::snapshot::Snapshot;
use crate::error::Error;
use crate::hashed::segment::view::Segment;
use crate::media::flash_run::FlashRun;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use tapetum_drive::SourceRange;
use tapetum_kernels::reference::Reference;
use tapetum_kernels::scan::access::{PieceOfSegment, ValueHome};
use tapetum_kernels::scan::result::DeferredRecord;

/// Records that start in some pages of a segment.
#[derive(Clone, Debug)]
struct SegmentPiece {
    /// Its place in the snapshot.
    place: usize,
    pages: Range<u32>,
}

pub(super) struct SegmentLists {
    snapshot: Snapshot,
    pending: VecDeque<SegmentPiece>,
    /// Held as long as they are read.
    listed: BTreeMap<u64, Vec<(SegmentPiece, Arc<Segment>)>>,
    /// Pieces of a list, at most.
    pieces_max: usize,
    id_next: u64,
}

impl SegmentLists {
    pub fn new(snapshot: Snapshot) -> SegmentLists {
        let whole = |place: usize, data_pages: u32| SegmentPiece { place, pages: 0..data_pages };
        let pages = snapshot.segments.iter().map(|segment| segment.data_pages);
        let pending = pages.enumerate().map(|(place, data_pages)| whole(place, data_pages)).collect();
        SegmentLists { snapshot, pending, listed: BTreeMap::new(), pieces_max: usize::MAX, id_next: 0 }
    }

    fn encoded(&self, SegmentPiece { place, pages }: &SegmentPiece, segment: &Segment) -> PieceOfSegment {
        PieceOfSegment {
            salt: segment.salt,
            page_size: segment.page_size(),
            first_page: pages.start,
            starts_end: pages.end,
            pages_end: pages_end(segment, pages),
            entry_first: 0,
            entry_count: segment.descriptor.entries,
            valid: self.snapshot.segments[*place].valid.clone(),
        }
    }
}

/// The pages that are read: behind those in which records start, those in which the last of them may end.
fn pages_end(segment: &Segment, pages: &Range<u32>) -> u32 {
    let payload = segment.page_size().payload_bytes() as u32;
    let tail = segment.descriptor.record_bytes_max.div_ceil(payload) + 1;
    pages.end.saturating_add(tail).min(segment.descriptor.data_pages)
}

fn ranges(segment: &Segment, pages: &Range<u32>) -> Vec<SourceRange> {
    let bytes = (pages_end(segment, pages) - pages.start) * segment.page_size().bytes() as u32;
    let range = |run: FlashRun| SourceRange { offset: run.flash, bytes: run.length.into() };
    segment.data_runs(pages.start, bytes).map(range).collect()
}

impl ScanLayout for SegmentLists {
    fn next(&mut self, limits: &ListLimits) -> Result<Option<ScanList>, LayoutError> {
        let (deleted_through, now) = (self.snapshot.deleted_through, self.snapshot.now);
        let mut list = ScanList { id: self.id_next, deleted_through, now, ..ScanList::default() };
        let (mut pieces, mut replaced_bytes, mut read_bytes) = (Vec::new(), 0, 0);
        while let Some(piece) = self.pending.front().filter(|_| pieces.len() < self.pieces_max) {
            let segment = self.snapshot.segment(piece.place).ok_or(LayoutError::TooOld)?;
            let (before, ranges) = (list.pieces.len(), ranges(&segment, &piece.pages));
            self.encoded(piece, &segment).encode(&mut list.pieces);
            let replaced = &self.snapshot.segments[piece.place].replaced;
            replaced_bytes += replaced.iter().map(|key| 2 + key.len()).sum::<usize>();
            let has_room = list.ranges.len() + ranges.len() <= limits.ranges
                && list.pieces.len() + replaced_bytes <= limits.attachment_bytes;
            if !has_room && pieces.is_empty() {
                return Err(LayoutError::TooManyReplaced);
            }
            if !has_room || (read_bytes >= limits.read_bytes && !pieces.is_empty()) {
                list.pieces.truncate(before);
                break;
            }
            read_bytes += ranges.iter().map(|range| range.bytes).sum::<u64>();
            list.ranges.extend(ranges);
            list.replaced.extend(replaced.iter().cloned());
            list.piece_count += 1;
            pieces.extend(self.pending.pop_front().map(|piece| (piece, segment)));
        }
        if pieces.is_empty() {
            return Ok(None);
        }
        self.id_next += 1;
        self.listed.insert(list.id, pieces);
        Ok(Some(list))
    }

    fn again(&mut self, id: u64) -> bool {
        let pieces: Vec<SegmentPiece> = self.listed.remove(&id).into_iter().flatten().map(|(piece, _)| piece).collect();
        let is_one_page = matches!(&pieces[..], [SegmentPiece { pages, .. }] if pages.len() <= 1);
        let again: Vec<SegmentPiece> = match &pieces[..] {
            [SegmentPiece { place, pages }] if !is_one_page => {
                let middle = pages.start + pages.len() as u32 / 2;
                let half = |pages| SegmentPiece { place: *place, pages };
                vec![half(pages.start..middle), half(middle..pages.end)]
            }
            _ => pieces,
        };
        self.pieces_max = (again.len() / 2).max(1);
        again.into_iter().rev().for_each(|piece| self.pending.push_front(piece));
        !is_one_page
    }

    fn release(&mut self, id: u64) {
        let read = self.listed.remove(&id).unwrap_or_default();
        let places: BTreeSet<usize> = read.iter().map(|(piece, _)| piece.place).collect();
        let of_lists = self.listed.values().flatten().map(|(piece, _)| piece);
        let left: BTreeSet<usize> = of_lists.chain(&self.pending).map(|piece| piece.place).collect();
        places.difference(&left).for_each(|place| self.snapshot.release(*place));
    }

    fn check(&self) -> Result<(), LayoutError> {
        self.snapshot.check()
    }

    fn value(&self, record: &DeferredRecord) -> Result<Option<(ValueHome, Vec<SourceRange>)>, LayoutError> {
        let damaged = || Error::Corrupt("a reference to a large value; `check` says where".into());
        let reference = Reference::parse(&record.reference).map_err(|_| damaged())?;
        self.snapshot.check()?;
        let (geometry, mut left) = (self.snapshot.geometry, u64::from(reference.stored_bytes));
        let mut ranges = Vec::new();
        for run in &reference.runs {
            let bytes = left.min(u64::from(run.count) * geometry.extent_bytes);
            ranges.push(SourceRange { offset: geometry.extent_offset(run.first), bytes });
            left -= bytes;
        }
        if left > 0 {
            return Err(damaged().into());
        }
        Ok(Some((ValueHome::Extents(reference), ranges)))
    }
}
