//! The allocator of extents: which are free, who owns the others, and who may take how many. It gives the lowest first, so that a segment's extents
//! tend to be neighbours.
//!
//! ```text
//! free:  │ reserved │ floor of collections │ floor of flushes │ floor of recoveries │ open: for whoever asks │
//! ```
//! An **owner** is the purpose for which extents are taken ([`ExtentOwner`]). Each owner may have a floor: extents that are kept free for it, which
//! nobody else takes. An owner takes open extents first, then those of its floor. Freed extents fill the floors up first, in the order above.
//! Flushes and collections reserve the extents they may need before they begin ([`ExtentReservation`]).
//!
//! 1. Each extent is free or has one owner.
//! 2. The free extents are the reserved ones, those of floors, and the open ones, together.
//! 3. There are open extents only while all floors are full.
//! 4. Of a set of several members, extents are taken from all in turn: in equal parts where many are taken at once, neighbours from one.
//! 5. In a set with redundancy a run for slots takes the extents behind it that its copies need, and they go with its first extent.
//!
//! Threads: any, under the store's lock for extents, which is the last in the lock order.

use crate::media::extent_forms::ExtentForms;
use crate::media::io::lock;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use tapetum_drive::{Rows, fail_point};
use tapetum_kernels::reference::Run;

/// The purpose of an extent. Owners with floors come first, in the order in which their floors are filled.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ExtentOwner {
    /// Segments that collections write.
    Collection,
    /// Segments that flushes write.
    Flush,
    /// The floor of recovery, which makes groups of slots. The groups then belong to [`ExtentOwner::Slots`]; this owner has only the floor.
    Recovery,
    /// Groups of slots.
    Slots,
    /// Large values.
    Large,
    /// Checkpoints. Closing the store writes them, and opening it frees them.
    Checkpoint,
    /// Dead data that freezes still need. It never takes extents: they are handed over when their owners need them no more.
    Freeze,
}

impl ExtentOwner {
    const ALL: [ExtentOwner; 7] = {
        use ExtentOwner::*;
        [Collection, Flush, Recovery, Slots, Large, Checkpoint, Freeze]
    };
}

const OWNERS: usize = ExtentOwner::ALL.len();

/// Extents that are kept free for an owner.
#[derive(Clone, Copy, Default, Debug)]
struct Floor {
    wanted: u32,
    kept: u32,
}

pub struct Extents {
    /// One bit an extent, set when free.
    free: Vec<u64>,
    free_count: u32,
    /// No extent below this one is free.
    low: u32,
    /// The owner of each extent; `None` for a free one.
    owners: Vec<Option<ExtentOwner>>,
    /// Free extents that are promised to reservations.
    reserved: u32,
    floors: [Floor; OWNERS],
    /// Free extents that any owner may take.
    open: u32,
    /// Recovery may use all floors: it cannot do with less, and frees the extents that it replaces.
    is_recovering: bool,
    /// The last refused request of each owner, 0 if a later one succeeded. The collector makes room for it.
    refused: [u32; OWNERS],
    /// The first extent of each member.
    members: Vec<u32>,
    /// The member from which extents are taken next.
    turn: usize,
    forms: ExtentForms,
}

/// The shape of a request for extents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExtentShape {
    Any,
    Neighbours,
}

impl Extents {
    pub fn new(count: u32) -> Extents {
        let mut free = vec![u64::MAX; count.div_ceil(64) as usize];
        if !count.is_multiple_of(64)
            && let Some(last) = free.last_mut()
        {
            *last = (1 << (count % 64)) - 1;
        }
        Extents {
            free,
            free_count: count,
            low: 0,
            owners: vec![None; count as usize],
            reserved: 0,
            floors: Default::default(),
            open: count,
            is_recovering: true,
            refused: [0; OWNERS],
            members: vec![0],
            turn: 0,
            forms: ExtentForms::default(),
        }
    }

    /// As [`Extents::new`], on several members: the first extent of each, the first 0.
    pub fn on_members(count: u32, members: Vec<u32>) -> Extents {
        assert!(members.first() == Some(&0) && members.is_sorted(), "members lie one behind the other");
        Extents { members, ..Extents::new(count) }
    }

    /// As [`Extents::new`], on a set with redundancy.
    pub fn with_rows(self, rows: Option<Arc<Rows>>) -> Extents {
        Extents { forms: ExtentForms::of(rows), ..self }
    }

    /// The bytes of an extent that are written whole, if it is written once: zeros behind what there is, up to the extent's end. 1 where that is
    /// not needed.
    pub fn row_bytes(&self) -> u64 {
        self.forms.row_bytes()
    }

    /// The extents that `count` neighbours take.
    pub fn run_extents(&self, owner: ExtentOwner, count: u32) -> u32 {
        match owner {
            ExtentOwner::Slots => self.forms.run_extents(count),
            _ => count,
        }
    }

    /// Keeps `count` extents free for an owner, as soon as so many are free.
    pub fn set_floor(&mut self, owner: ExtentOwner, count: u32) {
        let is_lost = match owner {
            ExtentOwner::Collection => fail_point!(CollectionWithoutFloor),
            ExtentOwner::Flush => fail_point!(FlushWithoutFloor),
            _ => false,
        };
        let count = if is_lost { 0 } else { count };
        let floor = &mut self.floors[owner as usize];
        let over = floor.kept.saturating_sub(count);
        *floor = Floor { wanted: count, kept: floor.kept - over };
        self.open += over;
        self.fill_floors();
    }

    /// Ends recovery: from now on only its owner may use a floor.
    pub fn end_recovery(&mut self) {
        self.is_recovering = false;
    }

    /// Takes `count` extents at once, as runs. `None` if the owner may not have so many, or there are none of that shape.
    pub fn take(&mut self, owner: ExtentOwner, count: u32, shape: ExtentShape) -> Option<Vec<Run>> {
        let all = match shape {
            ExtentShape::Any => count,
            ExtentShape::Neighbours => self.run_extents(owner, count),
        };
        let taken = match shape {
            _ if self.room_of(owner) < all => None,
            ExtentShape::Any => self.allocate_runs(owner, count),
            ExtentShape::Neighbours => {
                let first = self.neighbours_in_turn(all);
                first.map(|first| vec![self.claim_run(owner, Run { first, count })])
            }
        };
        if taken.is_some() {
            self.draw(owner, all);
        }
        self.refused[owner as usize] = if taken.is_some() { 0 } else { all };
        taken
    }

    /// Whether [`Extents::take`] would succeed.
    pub fn can_take(&self, owner: ExtentOwner, count: u32, shape: ExtentShape) -> bool {
        let all = self.run_extents(owner, count);
        match shape {
            ExtentShape::Any => self.room_of(owner) >= count,
            ExtentShape::Neighbours => self.room_of(owner) >= all && self.find_neighbours(self.low, all).is_some(),
        }
    }

    /// How many runs of `count` neighbours an owner may take now; `runs_max` if there are more.
    pub fn runs_of(&self, owner: ExtentOwner, count: u32, runs_max: u32) -> u32 {
        let count = self.run_extents(owner, count);
        let runs_max = runs_max.min(self.room_of(owner) / count);
        let (mut runs, mut from) = (0, self.low);
        while runs < runs_max
            && let Some(first) = self.find_neighbours(from, count)
        {
            (runs, from) = (runs + 1, first + count);
        }
        runs
    }

    /// Takes the lowest free extent, even from a floor.
    #[cfg(any(test, feature = "testing"))]
    pub fn take_one(&mut self) -> Option<u32> {
        (self.free_count > self.reserved).then(|| {
            let extent = self.lowest();
            self.give_to(ExtentOwner::Large, extent);
            self.draw_any(1);
            extent
        })
    }

    /// Takes the last extents, for checkpoints at the close of the store: nobody needs a floor any more.
    pub fn take_last(&mut self, count: u32) -> Option<Vec<u32>> {
        if self.free_count - self.reserved < count {
            return None;
        }
        let last = |free: &mut Extents| {
            let word = free.free.iter().rposition(|&word| word != 0).expect("there are so many");
            let extent = word as u32 * 64 + 63 - free.free[word].leading_zeros();
            free.give_to(ExtentOwner::Checkpoint, extent);
            extent
        };
        let taken = (0..count).map(|_| last(self)).collect();
        self.draw_any(count);
        Some(taken)
    }

    /// How many extents an owner may take now, reservations aside.
    pub fn room_of(&self, owner: ExtentOwner) -> u32 {
        if self.is_recovering { self.free_count - self.reserved } else { self.open + self.floors[owner as usize].kept }
    }

    /// Whether an owner was refused that would succeed with more free extents.
    pub fn are_wanted(&self) -> bool {
        ExtentOwner::ALL.into_iter().any(|owner| self.refused[owner as usize] > self.room_of(owner))
    }

    /// Notes that an owner lacks extents for which it has not asked: it refuses those who would need them.
    pub fn note_lack(&mut self, owner: ExtentOwner, count: u32) {
        self.refused[owner as usize] = self.refused[owner as usize].max(count);
    }

    /// Forgets who was refused. Whoever still wants extents asks again.
    pub fn forget_refusals(&mut self) {
        self.refused = Default::default();
    }

    /// Adds extents behind the last, all free.
    pub fn grow(&mut self, count: u32) {
        let before = self.count();
        assert!(count >= before, "extents do not go away");
        self.free.resize(count.div_ceil(64) as usize, 0);
        (before..count).for_each(|extent| self.free[extent as usize / 64] |= 1 << (extent % 64));
        self.owners.resize(count as usize, None);
        self.free_count += count - before;
        self.open += count - before;
        self.low = self.low.min(before);
        self.fill_floors();
    }

    pub fn count(&self) -> u32 {
        self.owners.len() as u32
    }

    pub fn free_count(&self) -> u32 {
        self.free_count
    }

    /// Free extents outside of this owner's floor.
    pub fn free_beside(&self, owner: ExtentOwner) -> u32 {
        self.free_count - self.floors[owner as usize].kept
    }

    pub fn is_free(&self, extent: u32) -> bool {
        self.free[extent as usize / 64] >> (extent % 64) & 1 == 1
    }

    /// The owner of an extent. `None`: it is free.
    pub fn owner(&self, extent: u32) -> Option<ExtentOwner> {
        self.owners[extent as usize]
    }

    /// The lowest free extent. There must be one.
    fn lowest(&mut self) -> u32 {
        let words = self.low as usize / 64..self.free.len();
        let word = { words }.find(|&word| self.free[word] != 0).expect("one is free");
        let extent = word as u32 * 64 + self.free[word].trailing_zeros();
        self.low = extent;
        extent
    }

    fn give_to(&mut self, owner: ExtentOwner, extent: u32) {
        self.free[extent as usize / 64] &= !(1 << (extent % 64));
        self.owners[extent as usize] = Some(owner);
        self.free_count -= 1;
        self.forms.take_stripe(extent);
    }

    /// Takes `count` extents at once, as runs of neighbours; `None` if fewer are free.
    fn allocate_runs(&mut self, owner: ExtentOwner, count: u32) -> Option<Vec<Run>> {
        if self.free_count < count {
            return None;
        }
        let mut runs: Vec<Run> = Vec::new();
        let mut give = |extents: &mut Extents, extent: u32| {
            extents.give_to(owner, extent);
            match runs.last_mut() {
                Some(run) if run.first + run.count == extent => run.count += 1,
                _ => runs.push(Run { first: extent, count: 1 }),
            }
        };
        let mut left = count;
        if self.members.len() > 1 {
            let part = count.div_ceil(self.members.len() as u32);
            for _ in 0..self.members.len() {
                if left == 0 {
                    break;
                }
                let own = self.next_member();
                let mut from = own.start;
                for _ in 0..part.min(left) {
                    let Some(extent) = self.next_free(from..own.end) else { break };
                    give(self, extent);
                    (from, left) = (extent + 1, left - 1);
                }
            }
        }
        for _ in 0..left {
            let extent = self.lowest();
            give(self, extent);
        }
        Some(runs)
    }

    /// The first free extent of these.
    fn next_free(&self, among: Range<u32>) -> Option<u32> {
        let mut at = among.start;
        while at < among.end {
            match self.free[at as usize / 64] >> (at % 64) {
                0 => at = (at / 64 + 1) * 64,
                word => return Some(at + word.trailing_zeros()).filter(|extent| *extent < among.end),
            }
        }
        None
    }

    /// The lowest free extent of the member whose turn it is, or of the next that has one. There must be one.
    fn next_in_turn(&mut self) -> u32 {
        if self.members.len() == 1 {
            return self.lowest();
        }
        let of_member = |extents: &mut Extents| {
            let own = extents.next_member();
            extents.next_free(own)
        };
        (0..self.members.len()).find_map(|_| of_member(self)).expect("one is free")
    }

    /// The extents of the member whose turn it is.
    fn next_member(&mut self) -> Range<u32> {
        let (member, count) = (self.turn, self.members.len());
        self.turn = (member + 1) % count;
        self.members[member]..self.members.get(member + 1).copied().unwrap_or(self.count())
    }

    /// The first of `count` neighbours that are free: of the member whose turn it is, or the next that has some.
    fn neighbours_in_turn(&mut self, count: u32) -> Option<u32> {
        if self.members.len() == 1 {
            return self.find_neighbours(self.low, count);
        }
        let from = self.next_member().start;
        self.find_neighbours(from.max(self.low), count).or_else(|| self.find_neighbours(self.low, count))
    }

    /// Takes all of a free run, and what it needs behind it.
    fn claim_run(&mut self, owner: ExtentOwner, run: Run) -> Run {
        let all = self.run_extents(owner, run.count);
        (run.first..run.first + all).for_each(|extent| self.give_to(owner, extent));
        if owner == ExtentOwner::Slots {
            self.forms.begin_copies(run);
        }
        run
    }

    /// The first of `count` neighbours that are free, all on one member, at `from` or behind it.
    fn find_neighbours(&self, from: u32, count: u32) -> Option<u32> {
        let mut first = from;
        for extent in from..self.count() {
            if !self.is_free(extent) {
                first = extent + 1;
                continue;
            }
            if self.members.len() > 1 && self.members.contains(&extent) {
                first = extent;
            }
            if extent + 1 - first == count {
                return Some(first);
            }
        }
        None
    }

    /// Takes an extent that already has data on flash. False if it is taken already or does not exist.
    pub fn claim(&mut self, owner: ExtentOwner, extent: u32) -> bool {
        if extent >= self.count() || !self.is_free(extent) {
            return false;
        }
        self.give_to(owner, extent);
        self.forms.find_stripe(extent);
        self.draw_any(1);
        true
    }

    /// As [`Extents::claim`], of a run for slots, and what it needs behind it.
    pub fn claim_slots(&mut self, run: Run) -> bool {
        let all = self.run_extents(ExtentOwner::Slots, run.count);
        let end = run.first.saturating_add(all);
        if end > self.count() || !(run.first..end).all(|extent| self.is_free(extent)) {
            return false;
        }
        self.claim_run(ExtentOwner::Slots, run);
        self.draw_any(all);
        true
    }

    pub fn release(&mut self, extent: u32) {
        self.release_one(extent);
        for extent in self.forms.end(extent).into_iter().flatten() {
            self.release_one(extent);
        }
    }

    fn release_one(&mut self, extent: u32) {
        assert!(extent < self.count() && !self.is_free(extent), "extent {extent} freed twice");
        self.free[extent as usize / 64] |= 1 << (extent % 64);
        self.owners[extent as usize] = None;
        self.free_count += 1;
        self.low = self.low.min(extent);
        self.give_back(1);
    }

    /// Hands extents over to another owner.
    pub fn hand_over(&mut self, extents: impl IntoIterator<Item = u32>, owner: ExtentOwner) {
        for extent in extents {
            assert!(extent < self.count() && !self.is_free(extent), "extent {extent} is free");
            self.owners[extent as usize] = Some(owner);
            for extent in self.forms.behind(extent).into_iter().flatten() {
                self.owners[extent as usize] = Some(owner);
            }
        }
    }

    /// The number of extents that an owner has.
    pub fn owned(&self, owner: ExtentOwner) -> u32 {
        self.owners.iter().filter(|of| **of == Some(owner)).count() as u32
    }

    /// Counts `count` free extents as taken, from the open ones and the owner's floor.
    fn draw(&mut self, owner: ExtentOwner, count: u32) {
        if self.is_recovering {
            return self.draw_any(count);
        }
        let of_floor = count.saturating_sub(self.open);
        self.open -= count - of_floor;
        self.floors[owner as usize].kept -= of_floor;
    }

    /// Counts them as taken from any floor: open ones first, then floors from the last to the first in the order of filling.
    fn draw_any(&mut self, count: u32) {
        let mut left = count - count.min(self.open);
        self.open -= count - left;
        for floor in self.floors.iter_mut().rev() {
            let of_floor = left.min(floor.kept);
            floor.kept -= of_floor;
            left -= of_floor;
        }
        assert_eq!(left, 0, "what is reserved is nobody else's");
    }

    /// Counts `count` taken extents as free.
    fn give_back(&mut self, count: u32) {
        self.open += count;
        self.fill_floors();
    }

    fn fill_floors(&mut self) {
        for floor in &mut self.floors {
            let more = (floor.wanted - floor.kept).min(self.open);
            floor.kept += more;
            self.open -= more;
        }
    }
}

/// Extents guaranteed to a flush or a collection, taken one by one. The drop gives the rest back.
pub struct ExtentReservation {
    extents: Arc<Mutex<Extents>>,
    owner: ExtentOwner,
    left: u32,
}

impl ExtentReservation {
    /// Reserves `count` extents, if the owner may have so many.
    pub fn begin(extents: &Arc<Mutex<Extents>>, owner: ExtentOwner, count: u32) -> Option<ExtentReservation> {
        let mut free = lock(extents);
        (free.room_of(owner) >= count).then(|| ExtentReservation::of(&mut free, extents, owner, count))
    }

    /// Reserves `count` extents, or as many as the owner may have.
    pub fn up_to(extents: &Arc<Mutex<Extents>>, owner: ExtentOwner, count: u32) -> ExtentReservation {
        let mut free = lock(extents);
        let count = count.min(free.room_of(owner));
        ExtentReservation::of(&mut free, extents, owner, count)
    }

    /// Reserves `count` extents, which the owner may have.
    fn of(free: &mut Extents, extents: &Arc<Mutex<Extents>>, owner: ExtentOwner, count: u32) -> ExtentReservation {
        free.draw(owner, count);
        free.reserved += count;
        ExtentReservation { extents: extents.clone(), owner, left: count }
    }

    /// Reserves `count` extents more, if the owner may have so many.
    pub fn reserve_more(&mut self, count: u32) -> bool {
        let mut extents = lock(&self.extents);
        let has_room = extents.room_of(self.owner) >= count;
        if has_room {
            extents.draw(self.owner, count);
            extents.reserved += count;
            self.left += count;
        }
        has_room
    }

    /// Takes the next extent. If all were taken, one that nobody has reserved.
    pub fn take(&mut self) -> Option<u32> {
        let mut extents = lock(&self.extents);
        if self.left > 0 {
            self.left -= 1;
            extents.reserved -= 1;
        } else if extents.free_count > extents.reserved {
            extents.draw_any(1);
        } else {
            return None;
        }
        let extent = extents.next_in_turn();
        extents.give_to(self.owner, extent);
        Some(extent)
    }

    /// See [`Extents::row_bytes`].
    pub fn row_bytes(&self) -> u64 {
        lock(&self.extents).row_bytes()
    }

    /// Frees an extent that was taken.
    pub fn give_back(&self, extent: u32) {
        lock(&self.extents).release(extent);
    }
}

impl Drop for ExtentReservation {
    fn drop(&mut self) {
        let mut extents = lock(&self.extents);
        extents.reserved -= self.left;
        extents.give_back(self.left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    use ExtentOwner::{Collection, Flush, Large, Recovery, Slots};

    /// All extents are free but the claimed ones.
    fn extents(count: u32, claimed: &[u32]) -> Extents {
        let mut extents = Extents::new(count);
        assert!(claimed.iter().all(|extent| extents.claim(Slots, *extent)));
        extents
    }

    fn runs(runs: &[(u32, u32)]) -> Option<Vec<Run>> {
        Some(runs.iter().map(|&(first, count)| Run { first, count }).collect())
    }

    #[test]
    fn a_floor_is_for_its_owner_alone() {
        let mut extents = Extents::new(20);
        extents.set_floor(Flush, 6);
        extents.set_floor(Recovery, 4);
        assert!(extents.can_take(Large, 20, ExtentShape::Any), "recovery may have all");
        extents.end_recovery();
        let room = |extents: &Extents| [Flush, Recovery, Large].map(|owner| extents.room_of(owner));
        assert_eq!((room(&extents), extents.free_beside(Recovery)), ([16, 14, 10], 16));
        assert_eq!(extents.take(Large, 11, ExtentShape::Any), None);
        assert!(extents.are_wanted());
        assert_eq!(extents.take(Large, 10, ExtentShape::Any), runs(&[(0, 10)]));
        assert!(!extents.are_wanted());
        assert_eq!(extents.take(Flush, 2, ExtentShape::Any), runs(&[(10, 2)]));
        assert_eq!(room(&extents), [4, 4, 0]);
        // A freed extent fills the floor up first.
        (0..3).for_each(|extent| extents.release(extent));
        assert_eq!((room(&extents), extents.owner(0), extents.owner(10)), ([7, 5, 1], None, Some(Flush)));
        extents.hand_over(10..12, ExtentOwner::Freeze);
        assert_eq!([ExtentOwner::Freeze, Flush].map(|owner| extents.owned(owner)), [2, 0]);
        // A floor that was raised waits for freed extents. A lowered one releases extents at once.
        extents.set_floor(Recovery, 8);
        assert_eq!(room(&extents), [6, 5, 0]);
        extents.set_floor(Recovery, 0);
        assert_eq!(room(&extents), [11, 5, 5]);
    }

    #[test]
    fn several_members_are_used_in_turn() {
        let mut extents = Extents::on_members(30, vec![0, 10, 20]);
        extents.end_recovery();
        assert_eq!(extents.take(Large, 6, ExtentShape::Any), runs(&[(0, 2), (10, 2), (20, 2)]));
        assert_eq!(extents.take(Large, 1, ExtentShape::Any), runs(&[(2, 1)]));
        assert_eq!(extents.take(Slots, 4, ExtentShape::Neighbours), runs(&[(12, 4)]));
        assert_eq!(extents.take(Slots, 8, ExtentShape::Neighbours), runs(&[(22, 8)]), "no other has so many");
        assert_eq!(extents.take(Large, 5, ExtentShape::Any), runs(&[(3, 2), (16, 2), (5, 1)]), "the third is full");
        assert_eq!(extents.take(Large, 6, ExtentShape::Any), runs(&[(6, 2), (18, 2), (8, 2)]), "as much as there is");
        assert_eq!(extents.free_count(), 0);
    }

    #[test]
    fn what_is_reserved_comes_from_all_members() {
        let shared = Arc::new(Mutex::new(Extents::on_members(9, vec![0, 3, 6])));
        lock(&shared).end_recovery();
        let mut reserved = ExtentReservation::begin(&shared, Flush, 9).unwrap();
        let taken: Vec<_> = (0..9).filter_map(|_| reserved.take()).collect();
        assert_eq!(taken, [0, 3, 6, 1, 4, 7, 2, 5, 8]);
        [4, 8].iter().for_each(|extent| reserved.give_back(*extent));
        let mut more = ExtentReservation::begin(&shared, Flush, 2).unwrap();
        assert_eq!([more.take(), more.take()], [Some(4), Some(8)], "the first is full");
    }

    #[test]
    fn neighbours_are_of_one_member() {
        let mut extents = Extents::on_members(20, vec![0, 10]);
        assert!((0..20).filter(|extent| !(8..12).contains(extent)).all(|extent| extents.claim(Large, extent)));
        assert!(!extents.can_take(Slots, 3, ExtentShape::Neighbours) && extents.can_take(Slots, 3, ExtentShape::Any));
        assert_eq!(extents.runs_of(Slots, 2, 9), 2);
        assert_eq!(extents.take(Slots, 2, ExtentShape::Neighbours), runs(&[(8, 2)]));
        assert_eq!(extents.take(Slots, 2, ExtentShape::Neighbours), runs(&[(10, 2)]));
    }

    #[test]
    fn what_is_reserved_is_there_whoever_asks() {
        let shared = Arc::new(Mutex::new(Extents::new(20)));
        lock(&shared).set_floor(Collection, 3);
        lock(&shared).set_floor(Flush, 7);
        lock(&shared).end_recovery();
        assert!(ExtentReservation::begin(&shared, Flush, 18).is_none(), "three are the collector's");
        let mut flush = ExtentReservation::begin(&shared, Flush, 12).unwrap();
        let collection = ExtentReservation::up_to(&shared, Collection, 9);
        assert_eq!([Flush, Collection, Large].map(|owner| lock(&shared).room_of(owner)), [5, 0, 0]);
        let taken: Vec<u32> = std::iter::from_fn(|| flush.take()).collect();
        assert_eq!(taken, (0..17).collect::<Vec<_>>(), "what was reserved, and then what nobody else has reserved");
        flush.give_back(16);
        drop((collection, flush));
        assert_eq!([Flush, Collection, Large].map(|owner| lock(&shared).room_of(owner)), [1, 3, 0]);
    }

    #[test]
    fn hands_out_each_extent_once_lowest_first() {
        let mut extents = extents(70, &[1]);
        assert!(!extents.is_free(1) && extents.is_free(2) && extents.is_free(69));
        assert!(!extents.claim(Large, 1) && !extents.claim(Large, 70));
        assert_eq!(extents.take(Large, 69, ExtentShape::Any), runs(&[(0, 1), (2, 68)]));
        extents.release(69);
        extents.release(3);
        assert_eq!([extents.take_one(), extents.take_one(), extents.take_one()], [Some(3), Some(69), None]);
        [7, 68, 5].into_iter().for_each(|extent| extents.release(extent));
        assert_eq!((extents.take_last(4), extents.take_last(2)), (None, Some(vec![68, 7])));
        assert_eq!(extents.free_count(), 1);
    }

    #[test]
    fn more_extents_come_behind_the_last() {
        let mut extents = extents(3, &[0, 1, 2]);
        extents.grow(3);
        assert_eq!(extents.take_one(), None);
        extents.grow(130);
        assert_eq!((extents.count(), extents.free_count()), (130, 127));
        assert_eq!(extents.take(Large, 127, ExtentShape::Any), runs(&[(3, 127)]));
    }

    #[test]
    fn hands_out_runs_of_neighbours_or_nothing() {
        let mut extents = extents(9, &[2]);
        assert_eq!(extents.take(Large, 9, ExtentShape::Any), None);
        assert_eq!((extents.take(Large, 5, ExtentShape::Any), extents.free_count()), (runs(&[(0, 2), (3, 3)]), 3));
        assert_eq!(extents.take(Large, 3, ExtentShape::Any), runs(&[(6, 3)]), "all there are");
    }

    #[test]
    fn hands_out_neighbours_or_nothing() {
        let mut extents = extents(9, &[2, 6]);
        let mut take = |count| extents.take(Slots, count, ExtentShape::Neighbours);
        assert_eq!([take(4), take(3)], [None, runs(&[(3, 3)])]);
        assert_eq!([take(1), take(2), take(1), take(1)], [runs(&[(0, 1)]), runs(&[(7, 2)]), runs(&[(1, 1)]), None]);
        assert_eq!(extents.free_count(), 0);
    }

    #[test]
    fn runs_of_neighbours_are_counted_up_to_what_the_owner_may_take() {
        // Free: two, three, and eleven neighbours.
        let mut extents = extents(18, &[2, 6]);
        let runs = |extents: &Extents, count| extents.runs_of(Slots, count, 9);
        assert_eq!([1, 2, 3, 4, 11, 12].map(|count| runs(&extents, count)), [9, 7, 4, 2, 1, 0]);
        assert_eq!(extents.runs_of(Slots, 3, 2), 2, "no more than are asked for");
        extents.end_recovery();
        extents.set_floor(Flush, 10);
        assert_eq!([2, 3, 4].map(|count| runs(&extents, count)), [3, 2, 1], "six are open");
    }

    proptest! {
        #[test]
        fn each_free_extent_is_reserved_kept_or_open(
            steps in proptest::collection::vec((0..6u8, 0..6usize, 0..12u32), 1..100),
        ) {
            let shared = Arc::new(Mutex::new(Extents::new(40)));
            let (mut taken, mut reservations) = (Vec::new(), Vec::new());
            for (number, (step, owner, count)) in steps.into_iter().enumerate() {
                let owner = ExtentOwner::ALL[owner];
                let room = lock(&shared).room_of(owner);
                match step {
                    0 => lock(&shared).set_floor(owner, count),
                    1 => {
                        let runs = lock(&shared).take(owner, count, ExtentShape::Any);
                        prop_assert_eq!(runs.is_some(), count <= room);
                        let extents = runs.into_iter().flatten().flat_map(|run| run.first..run.first + run.count);
                        taken.extend(extents);
                    }
                    2 => {
                        let given: Vec<u32> = taken.drain(..(count as usize).min(taken.len())).collect();
                        given.into_iter().for_each(|extent| lock(&shared).release(extent));
                    }
                    3 => {
                        let begun = ExtentReservation::begin(&shared, owner, count);
                        prop_assert_eq!(begun.is_some(), count <= room);
                        reservations.extend(begun);
                    }
                    4 => taken.extend(reservations.iter_mut().find_map(ExtentReservation::take)),
                    _ => {
                        reservations.pop();
                        if number == 50 {
                            lock(&shared).end_recovery();
                        }
                    }
                }
                let extents = lock(&shared);
                let kept: u32 = extents.floors.iter().map(|floor| floor.kept).sum();
                prop_assert_eq!(extents.reserved + kept + extents.open, extents.free_count());
                prop_assert!(extents.open == 0 || extents.floors.iter().all(|floor| floor.kept == floor.wanted));
                prop_assert_eq!(extents.owners.iter().flatten().count() as u32, extents.count() - extents.free_count());
                prop_assert!(taken.iter().all(|extent| !extents.is_free(*extent)));
            }
        }
    }

    #[test]
    #[should_panic(expected = "freed twice")]
    fn a_double_free_is_our_mistake() {
        Extents::new(3).release(2);
    }
}
