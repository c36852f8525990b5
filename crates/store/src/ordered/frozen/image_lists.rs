//! The data nodes of a moment in the order in which they lie on flash, for queries at the drive that read many of them.
//!
//! ```text
//! nodes that were copied ─► copied again, first ─┐
//! nodes in slots, by slot ─► runs, with gaps ────┴─► list of images, each with its stamp
//! ```
//! 1. The moment holds all slots, so a node is where the moment has it, whatever others do meanwhile, and no key is in two of them.
//! 2. Slots that lie near each other are read together, with what lies between them: that is a fifth of what is wanted, at most.
//! 3. A copy for which local memory has no room is missed: whoever runs the query reads it by a scan.
//!
//! Threads: the query's.

use super::lists::{FrozenLists, GrowingList};
use super::nodes::NodeAt;
use super::{FrozenTree, KeySpan};
use crate::ordered::slabs::SlotSpace;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use tapetum_base::engine::scan_layout::{LayoutError, ListLimits, PageCopier, ScanLayout, ScanList};
use tapetum_base::error::Error;
use tapetum_drive::SourceRange;
use tapetum_kernels::ordered::{NODE_BYTES, NODE_KEY_BYTES_MAX, SlotSalt};
use tapetum_kernels::scan::access::{ImageRun, PieceOfImages, ValueHome};
use tapetum_kernels::scan::result::{DeferredRecord, MissedKeys, StoppedRun};

/// Which pages between two wanted ones are read with them, rather than passed by another command.
#[derive(Clone, Copy)]
pub struct GapRule {
    /// The most of them in one place.
    pub pages_max: u32,
    /// Wanted pages of a list for each of them, at least.
    pub wanted_each: u32,
}

impl GapRule {
    const USUAL: GapRule = GapRule { pages_max: 8, wanted_each: 5 };
}

/// See the [module](self).
pub struct ImageLists {
    /// For what it shares with lists by key.
    by_key: FrozenLists,
    tree: Arc<FrozenTree>,
    span: KeySpan,
    /// The places of nodes that are to be listed: copied ones, then by slot.
    pending: VecDeque<u32>,
    listed: BTreeMap<u64, Vec<u32>>,
    /// Places of nodes that no list has.
    missed: Vec<u32>,
    rule: GapRule,
    id_next: u64,
}

/// The layout of a span of a moment's keys: by slot, if that takes much fewer reads.
pub fn layout_of(tree: &Arc<FrozenTree>, span: KeySpan) -> Result<Box<dyn ScanLayout>, Error> {
    match ImageLists::of(tree, &span, GapRule::USUAL)? {
        Some(by_slot) => Ok(Box::new(by_slot)),
        None => Ok(Box::new(FrozenLists::new(tree.clone(), span)?)),
    }
}

/// The places of the nodes of a span.
fn places(tree: &FrozenTree, span: &KeySpan) -> Range<usize> {
    if span.is_empty() || tree.nodes.len() == 0 {
        return 0..0;
    }
    let is_before = |to: &Vec<u8>, place: usize| tree.nodes.anchor(place) < &to[..];
    let end = span.to.as_ref().map_or(tree.nodes.len(), |to| {
        let last = tree.nodes.floor(to);
        last + usize::from(last == 0 || is_before(to, last))
    });
    tree.nodes.floor(&span.from)..end
}

/// Pages as they are read, one after the other.
struct PageReads {
    rule: GapRule,
    last: Option<u32>,
    wanted: u32,
    /// Pages that are passed over.
    passed: u32,
}

impl PageReads {
    fn new(rule: GapRule) -> PageReads {
        PageReads { rule, last: None, wanted: 0, passed: 0 }
    }

    /// Adds the page of a slot. Gives how many pages between the last one and it are read with them; `None`: another read begins.
    fn add(&mut self, slot: u32) -> Option<u32> {
        let gap = self.last.and_then(|last| slot.checked_sub(last + 1));
        let gap = gap.filter(|gap| {
            let is_few = *gap <= self.rule.pages_max && (self.passed + gap) * self.rule.wanted_each <= self.wanted;
            *gap == 0 || is_few
        });
        self.passed += gap.unwrap_or(0);
        (self.wanted, self.last) = (self.wanted + 1, Some(slot));
        gap
    }

    fn pages(&self) -> u32 {
        self.wanted + self.passed
    }
}

/// How many reads take slots in this order.
fn reads_of(mut reads: PageReads, slots: impl Iterator<Item = u32>) -> usize {
    slots.filter(|slot| reads.add(*slot).is_none()).count()
}

/// A list of images that grows.
struct GrowingImages<'a> {
    nodes: &'a SlotSpace,
    runs: Vec<ImageRun>,
    ranges: Vec<SourceRange>,
    reads: PageReads,
}

impl GrowingImages<'_> {
    /// Adds the image of a slot; whether its group is there.
    fn add(&mut self, slot: u32, stamp: u64) -> bool {
        let map = self.nodes.map();
        let is_of_last = |last: u32| map.extent_of(last) == map.extent_of(slot);
        let goes_on = self.reads.last.is_some_and(is_of_last);
        let gap = self.reads.add(slot);
        let first = map.address(slot);
        let run = match goes_on && gap.is_some() {
            true => None,
            false => match self.nodes.salt(first) {
                Some(SlotSalt { version, .. }) => Some(ImageRun::Slots { first, version, stamps: vec![stamp] }),
                None => {
                    self.reads.last = None;
                    return false;
                }
            },
        };
        match (gap, self.ranges.last_mut(), self.runs.last_mut()) {
            (Some(gap), Some(range), Some(ImageRun::Slots { stamps, .. })) => {
                range.bytes += u64::from(gap + 1) * NODE_BYTES as u64;
                // The run before has the gap, though that may reach into another extent.
                stamps.extend(std::iter::repeat_n(0, gap as usize));
                if run.is_none() {
                    stamps.push(stamp);
                }
            }
            _ => self.ranges.push(SourceRange { offset: map.flash(slot), bytes: NODE_BYTES as u64 }),
        }
        self.runs.extend(run);
        true
    }

    fn is_full(&self, limits: &ListLimits) -> bool {
        let (pages, more) = (self.reads.pages(), 1 + self.reads.rule.pages_max);
        let bytes =
            (pages + more) as usize * PieceOfImages::PAGE_BYTES + (self.runs.len() + 1) * PieceOfImages::RUN_BYTES;
        let room = limits.attachment_bytes.saturating_sub(PieceOfImages::HEAD_BYTES + 2 * (NODE_KEY_BYTES_MAX + 1));
        let is_long = u64::from(pages) * NODE_BYTES as u64 >= limits.read_bytes;
        pages > 0 && (is_long || bytes > room || self.ranges.len() >= limits.ranges)
    }
}

impl ImageLists {
    /// Lists of the nodes of a span. `None`: by key it takes about as few reads, or nothing is held.
    pub fn of(tree: &Arc<FrozenTree>, span: &KeySpan, rule: GapRule) -> Result<Option<ImageLists>, Error> {
        let (mut copied, mut slots) = (Vec::new(), Vec::new());
        for place in places(tree, span) {
            match tree.nodes.at(place) {
                NodeAt::Slot(slot) => slots.push((slot, place as u32)),
                NodeAt::Copy(_) => copied.push(place as u32),
                NodeAt::Cached => return Ok(None),
            }
        }
        let reads = |slots: &[(u32, u32)], rule| reads_of(PageReads::new(rule), slots.iter().map(|(slot, _)| *slot));
        let by_key = reads(&slots, GapRule { pages_max: 0, ..rule });
        slots.sort_unstable();
        if !tree.is_held() || 2 * reads(&slots, rule) > by_key {
            return Ok(None);
        }
        let pending = copied.into_iter().chain(slots.into_iter().map(|(_, place)| place)).collect();
        let (by_key, listed, missed) = (FrozenLists::new(tree.clone(), span.clone())?, BTreeMap::new(), Vec::new());
        let (tree, span) = (tree.clone(), span.clone());
        Ok(Some(ImageLists { by_key, tree, span, pending, listed, missed, rule, id_next: 0 }))
    }

    /// Copies the next nodes that were copied at the moment, as many as a list has room for; those that it has are added to `places`.
    fn copies(&mut self, limits: &ListLimits, places: &mut Vec<u32>) -> Result<GrowingList, Error> {
        let (tree, mut list) = (self.tree.clone(), GrowingList::default());
        let copies_max = FrozenLists::copies_max(limits);
        while list.copied() < copies_max
            && let Some(place) = self.pending.front().copied()
            && let NodeAt::Copy(copy) = tree.nodes.at(place as usize)
        {
            let before = list.copied();
            self.by_key.bring(copy, copies_max, &mut list)?;
            self.pending.pop_front();
            if list.copied() > before { places.push(place) } else { self.missed.push(place) }
        }
        Ok(list)
    }

    /// The keys of a node, as far as they are in the span.
    fn keys_of(&self, place: u32) -> MissedKeys {
        let (nodes, place) = (&self.tree.nodes, place as usize);
        let from = if place == 0 { &[][..] } else { nodes.anchor(place) };
        let end = (place + 1 < nodes.len()).then(|| nodes.anchor(place + 1));
        let to = match (end, self.span.to.as_deref()) {
            (Some(end), Some(to)) => Some(end.min(to)),
            (end, to) => end.or(to),
        };
        MissedKeys { from: from.max(&self.span.from).into(), to: to.map(Box::from) }
    }
}

impl ScanLayout for ImageLists {
    fn next(&mut self, limits: &ListLimits) -> Result<Option<ScanList>, LayoutError> {
        self.check()?;
        let (tree, mut places) = (self.tree.clone(), Vec::new());
        let copied = self.copies(limits, &mut places)?;
        let (copies, ranges) = copied.into_copies();
        let (nodes, pages) = (tree.slots.nodes(), places.len() as u32);
        let runs = if pages > 0 { vec![ImageRun::Copies { pages }] } else { Vec::new() };
        let reads = PageReads { wanted: pages, ..PageReads::new(self.rule) };
        let mut growing = GrowingImages { nodes, runs, ranges, reads };
        while !growing.is_full(limits)
            && let Some(place) = self.pending.front().copied()
            && let NodeAt::Slot(slot) = tree.nodes.at(place as usize)
        {
            self.pending.pop_front();
            let is_listed = growing.add(slot, tree.nodes.stamp(place as usize));
            if is_listed { places.push(place) } else { self.missed.push(place) }
        }
        let (deleted_through, now_ms, id) = (tree.moment.deleted_through, tree.moment.now_ms, self.id_next);
        let mut list = ScanList { id, deleted_through, now_ms, copies, ..ScanList::default() };
        if places.is_empty() {
            if self.missed.is_empty() {
                return Ok(None);
            }
            let missed = std::mem::take(&mut self.missed);
            list.missed = missed.into_iter().map(|place| self.keys_of(place)).collect();
        } else {
            let (store, keyspace) = (tree.state.base.store_id, tree.keyspace.0);
            let KeySpan { from, to } = self.span.clone();
            PieceOfImages { store, keyspace, from, to, runs: growing.runs }.encode(&mut list.pieces);
            (list.piece_count, list.ranges) = (1, growing.ranges);
        }
        self.id_next += 1;
        self.listed.insert(id, places);
        Ok(Some(list))
    }

    fn again(&mut self, id: u64, stopped: Option<&StoppedRun>) -> Result<(), LayoutError> {
        let Some(places) = self.listed.remove(&id) else { return Ok(()) };
        let shown = match stopped {
            None => 0,
            Some(StoppedRun { pieces: 0, place, .. }) => {
                let shown = <[u8; 4]>::try_from(&place[..]).map_err(|_| LayoutError::Place)?;
                u32::from_le_bytes(shown) as usize
            }
            Some(_) => places.len(),
        };
        let left = places.get(shown..).ok_or(LayoutError::Place)?;
        left.iter().rev().for_each(|place| self.pending.push_front(*place));
        Ok(())
    }

    fn may_show(&mut self, id: u64) -> Result<bool, LayoutError> {
        self.by_key.may_show(id)
    }

    fn check(&self) -> Result<(), LayoutError> {
        self.tree.check()
    }

    fn release(&mut self, id: u64) {
        self.listed.remove(&id);
    }

    fn copier(&mut self) -> Option<&mut PageCopier> {
        self.by_key.copier()
    }

    fn value(&self, record: &DeferredRecord) -> Result<Option<(ValueHome, Vec<SourceRange>)>, LayoutError> {
        self.by_key.value(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tapetum_drive::SplitMix64;

    #[test]
    fn what_is_passed_over_is_a_fifth_of_what_is_wanted_at_most() {
        let mut random = SplitMix64::new(4);
        for (of_a_thousand, at_most) in [(910, 40), (800, 900), (500, 2400)] {
            let (mut pages, mut count) = (PageReads::new(GapRule::USUAL), 0);
            for slot in (0..10_000).filter(|_| random.next_u64() % 1000 < of_a_thousand) {
                count += usize::from(pages.add(slot).is_none());
                assert!(pages.passed * 5 <= pages.wanted, "{} of {}", pages.passed, pages.wanted);
            }
            assert!((1..at_most).contains(&count), "{count} reads of {} pages", pages.wanted);
        }
    }

    #[test]
    fn a_read_goes_on_up_to_a_long_gap() {
        let mut pages = PageReads::new(GapRule { pages_max: 8, wanted_each: 1 });
        let slots = [250, 251, 253, 256, 257, 100, 101, 102, 112];
        let gaps = [None, Some(0), Some(1), Some(2), Some(0), None, Some(0), Some(0), None];
        assert_eq!(slots.map(|slot| pages.add(slot)), gaps);
        assert_eq!((pages.wanted, pages.passed, pages.pages()), (9, 3, 12));
        assert_eq!(reads_of(PageReads::new(GapRule::USUAL), slots.into_iter()), 5);
    }
}
