//! Segments of a hashed keyspace, as a snapshot has them: a list has whole segments, those pages of shared ones that have items of the keyspace, or
//! the rest that a stopped run left. Segments that have no item of the keyspace are in no list.

use crate::hashed::segment::view::Segment;
use crate::hashed::snapshot::Snapshot;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use tapetum_base::engine::scan_layout::{LayoutError, ListLimits, ScanLayout, ScanList};
use tapetum_base::error::Error;
use tapetum_base::media::flash_run::FlashRun;
use tapetum_drive::SourceRange;
use tapetum_kernels::own_pages::OwnPages;
use tapetum_kernels::reference::Reference;
use tapetum_kernels::scan::access::{PieceOfSegment, SegmentPlace, ValueHome};
use tapetum_kernels::scan::result::{DeferredRecord, StoppedRun};

/// Neighbouring records of a segment.
#[derive(Clone, Copy, Debug)]
struct SegmentPiece {
    /// The segment's place in the snapshot.
    place: usize,
    from: SegmentPlace,
    /// The pages that have them, and their numbers, end here.
    pages_end: u32,
    entries_end: u32,
}

impl SegmentPiece {
    fn of(place: usize, OwnPages { pages, entry_first, entry_end, .. }: OwnPages) -> SegmentPiece {
        let from = SegmentPlace { page: pages.start, entry_first, entry_next: entry_first };
        SegmentPiece { place, from, pages_end: pages.end, entries_end: entry_end }
    }
}

pub(super) struct SegmentLists {
    snapshot: Snapshot,
    pending: VecDeque<SegmentPiece>,
    /// Held as long as they are read.
    listed: BTreeMap<u64, Vec<(SegmentPiece, Arc<Segment>)>>,
    id_next: u64,
}

impl SegmentLists {
    pub fn new(snapshot: Snapshot) -> SegmentLists {
        let (read, passed): (Vec<usize>, Vec<usize>) =
            (0..snapshot.segments()).partition(|place| snapshot.may_have(*place));
        passed.into_iter().for_each(|place| snapshot.release(place));
        let of_place = |place| snapshot.pages(place).into_iter().map(move |own| SegmentPiece::of(place, own));
        let pending = read.into_iter().flat_map(of_place).collect();
        SegmentLists { snapshot, pending, listed: BTreeMap::new(), id_next: 0 }
    }

    /// A piece, with the part of the bitmap for its records.
    fn encoded(&self, piece: SegmentPiece, segment: &Segment) -> PieceOfSegment {
        let SegmentPiece { place, from, pages_end, entries_end } = piece;
        let entry_first = from.entry_first & !63;
        let entry_count = entries_end.saturating_sub(entry_first);
        let mut valid = self.snapshot.valid(place)[entry_first as usize / 64..].to_vec();
        valid.truncate(entry_count.div_ceil(64) as usize);
        // Clears the records that were shown, and those that are no part of the piece.
        let behind = entries_end..entries_end.next_multiple_of(64);
        for other in (entry_first..from.entry_next).chain(behind) {
            valid[(other - entry_first) as usize / 64] &= !(1 << (other % 64));
        }
        let alive: u32 = valid.iter().map(|word| word.count_ones()).sum();
        PieceOfSegment {
            salt: segment.salt,
            page_size: segment.page_size(),
            first_page: from.page,
            pages_end,
            entry_first,
            entry_count,
            valid: (alive < entry_count).then_some(valid),
        }
    }

    /// The rest of a piece behind the place where a run stopped.
    fn rest(&self, piece: SegmentPiece, place: &[u8]) -> Result<SegmentPiece, LayoutError> {
        let from = SegmentPlace::decode(place).ok_or(LayoutError::Place)?;
        let is_inside = from.page >= piece.from.page && from.entry_next <= piece.entries_end;
        if is_inside { Ok(SegmentPiece { from, ..piece }) } else { Err(LayoutError::Place) }
    }
}

fn ranges(segment: &Segment, first_page: u32, pages_end: u32) -> Vec<SourceRange> {
    let bytes = pages_end.saturating_sub(first_page) * segment.page_size().bytes() as u32;
    let range = |run: FlashRun| SourceRange { offset: run.flash, bytes: run.length.into() };
    segment.data_runs(first_page, bytes).map(range).collect()
}

impl ScanLayout for SegmentLists {
    fn next(&mut self, limits: &ListLimits) -> Result<Option<ScanList>, LayoutError> {
        let (deleted_through, now_ms) = (self.snapshot.deleted_through(), self.snapshot.now_ms());
        let mut list = ScanList { id: self.id_next, deleted_through, now_ms, ..ScanList::default() };
        let (mut pieces, mut replaced_bytes, mut read_bytes) = (Vec::new(), 0, 0);
        while let Some(piece) = self.pending.front().copied() {
            let segment = self.snapshot.segment(piece.place).ok_or(LayoutError::TooOld)?;
            let (before, ranges) = (list.pieces.len(), ranges(&segment, piece.from.page, piece.pages_end));
            self.encoded(piece, &segment).encode(&mut list.pieces);
            let is_listed = pieces.last().is_some_and(|(last, _): &(SegmentPiece, _)| last.place == piece.place);
            let replaced = if is_listed { &[] } else { self.snapshot.replaced(piece.place) };
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

    fn again(&mut self, id: u64, stopped: Option<&StoppedRun>) -> Result<(), LayoutError> {
        let listed = self.listed.get(&id).map_or(&[][..], |listed| listed);
        let done = stopped.map_or(0, |stopped| stopped.pieces as usize);
        let mut left: Vec<SegmentPiece> = listed.iter().skip(done).map(|(piece, _)| *piece).collect();
        if let (Some(first), Some(StoppedRun { place, .. })) = (left.first_mut(), stopped)
            && !place.is_empty()
        {
            *first = self.rest(*first, place)?;
        }
        left.into_iter().rev().for_each(|piece| self.pending.push_front(piece));
        self.release(id);
        Ok(())
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
        let (geometry, mut left) = (self.snapshot.geometry(), u64::from(reference.stored_bytes));
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

#[cfg(test)]
#[path = "segment_lists_tests.rs"]
mod tests;
