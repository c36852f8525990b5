//! The state of each keyspace while the store is open: whether it is open, and which of its records are deleted with everything else.
//!
//! Invariants:
//! 1. A record is live only if its stamp is above its keyspace's *watermark*. A keyspace that is not open has no live record.
//! 2. A [`KeyspaceRef`] names one life of an id of one store. It is open until the id is dropped, and never again.
//!
//! Threads: any. Reads take no lock. Changes of a keyspace are made with every shard held, so that no write slips between.

use super::KeyspaceId;
use super::by_id::ById;
use crate::error::Error;
use crate::keyspace::block_device::{BLOCK_BYTES, BlockDevice};
use crate::keyspace::catalogue::{Catalogue, Keyspace, KeyspaceEdit};
use crate::keyspace::deletion_mark::{DeletionMark, DeletionMarks};
use crate::keyspace_kind::KeyspaceKind;
use crate::media::io::lock;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use tapetum_kernels::scan::Format;

/// A keyspace as requests name it: its store, its id, and the life of that id. Other stores refuse it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct KeyspaceRef {
    pub id: KeyspaceId,
    kind: KeyspaceKind,
    life: u32,
    /// See [`store_tag`]; 0 for [`KeyspaceRef::DEFAULT`].
    store: u32,
    /// The group bits of a block device: see [`Keyspace::block_device`].
    group_bits: u8,
}

impl KeyspaceRef {
    /// The keyspace that every store has. Each store treats it as its own.
    pub const DEFAULT: KeyspaceRef =
        KeyspaceRef { id: KeyspaceId::DEFAULT, kind: KeyspaceKind::Hashed, life: 1, store: 0, group_bits: 0 };

    /// A keyspace that no store has open: requests come to [`KeyspaceError::Gone`](crate::error::KeyspaceError::Gone).
    pub const GONE: KeyspaceRef =
        KeyspaceRef { id: KeyspaceId(u16::MAX), kind: KeyspaceKind::Hashed, life: u32::MAX, store: 0, group_bits: 0 };

    pub fn id(self) -> KeyspaceId {
        self.id
    }

    /// The kind of engine that holds it.
    pub fn kind(self) -> KeyspaceKind {
        self.kind
    }

    /// Whether it is the first keyspace of its id since the store was opened.
    pub fn is_of_opening(self) -> bool {
        self.life == 1
    }

    /// Whether it is a block device with groups of blocks.
    #[inline]
    pub fn is_grouped(self) -> bool {
        self.group_bits > 0
    }

    pub fn group_blocks(self) -> usize {
        1 << self.group_bits
    }
}

impl Default for KeyspaceRef {
    fn default() -> KeyspaceRef {
        KeyspaceRef::DEFAULT
    }
}

/// Distinguishes the handles of different stores: a part of the store's id. It stays the same when the store is reopened, and is never 0.
fn store_tag(store_id: u64) -> u32 {
    (store_id ^ store_id >> 32) as u32 | 1
}

struct KeyspaceCell {
    watermark: AtomicU64,
    /// The initial watermark, which needs no mark: older records belonged to an earlier keyspace with this id, and are deleted.
    born: AtomicU64,
    /// The time at which the watermark rises to the stamp of that moment, in unix seconds; 0 for never.
    planned_at: AtomicU32,
    /// Odd while the keyspace is open. Creating and dropping it each add one.
    life: AtomicU32,
    /// The group bits of a block device, also of a dropped one.
    group_bits: AtomicU8,
    /// Its number of blocks; 0 for other keyspaces.
    blocks: AtomicU64,
}

/// The group bits of a keyspace: 0 if it is no block device, or one that another version made.
fn group_bits_of(keyspace: &Keyspace) -> u8 {
    keyspace.block_device().ok().flatten().map_or(0, BlockDevice::group_bits)
}

/// The state of a keyspace that is not open: none of its records is live.
fn closed_cell(_: KeyspaceId) -> KeyspaceCell {
    KeyspaceCell {
        watermark: AtomicU64::new(u64::MAX),
        born: AtomicU64::new(0),
        planned_at: AtomicU32::new(0),
        life: AtomicU32::new(0),
        group_bits: AtomicU8::new(0),
        blocks: AtomicU64::new(0),
    }
}

pub struct KeyspaceStates {
    store: u32,
    cells: ById<KeyspaceCell>,
    catalogue: Mutex<Catalogue>,
    /// Counts the changes of watermarks.
    changes: AtomicU64,
    /// Counts the edits of the catalogue.
    edits: AtomicU64,
    /// No record with a stamp up to this one is live, in any keyspace.
    floor: AtomicU64,
    /// The time of the next planned deletion; 0 for never.
    planned_next: AtomicU32,
    planned_count: AtomicU32,
    /// The number of keyspaces that were dropped and are not forgotten.
    dropped_count: AtomicU32,
    /// Since the store was opened, there has been a block device with groups of blocks.
    has_groups: AtomicBool,
    /// The marks of the open keyspaces when the last buffer was sealed.
    sealed: Mutex<DeletionMarks>,
}

impl KeyspaceStates {
    /// The keyspaces of a store with their deletion marks. `sealed` are the marks from before the active buffer.
    pub fn new(store_id: u64, catalogue: Catalogue, marks: &DeletionMarks, sealed: DeletionMarks) -> KeyspaceStates {
        let states = KeyspaceStates {
            store: store_tag(store_id),
            cells: ById::new(closed_cell),
            catalogue: Mutex::new(catalogue),
            changes: AtomicU64::new(0),
            edits: AtomicU64::new(0),
            floor: AtomicU64::new(0),
            planned_next: AtomicU32::new(0),
            planned_count: AtomicU32::new(0),
            dropped_count: AtomicU32::new(0),
            has_groups: AtomicBool::new(false),
            sealed: Mutex::new(sealed),
        };
        lock(&states.catalogue).iter().for_each(|keyspace| states.note_device(keyspace));
        for id in states.ids() {
            let cell = states.cell(id);
            let DeletionMark { watermark, planned_at } = marks.get(&id).copied().unwrap_or_default();
            cell.watermark.store(watermark, Ordering::SeqCst);
            cell.planned_at.store(planned_at, Ordering::SeqCst);
            cell.life.store(1, Ordering::SeqCst);
        }
        states.changed();
        states
    }

    fn note_device(&self, keyspace: &Keyspace) {
        let group_bits = group_bits_of(keyspace);
        let device = keyspace.block_device().ok().flatten();
        let blocks = device.map_or(0, |device| device.size_bytes() / BLOCK_BYTES as u64);
        self.cell(keyspace.id).blocks.store(blocks, Ordering::SeqCst);
        self.cell(keyspace.id).group_bits.store(group_bits, Ordering::SeqCst);
        self.has_groups.fetch_or(group_bits > 0, Ordering::SeqCst);
    }

    /// Whether records of groups may exist, or records of blocks that belong to one.
    #[inline]
    pub fn has_groups(&self) -> bool {
        self.has_groups.load(Ordering::SeqCst)
    }

    pub fn group_blocks(&self, id: KeyspaceId) -> usize {
        1 << self.cell(id).group_bits.load(Ordering::SeqCst)
    }

    /// The number of blocks of a block device.
    pub fn device_blocks(&self, id: KeyspaceId) -> u64 {
        self.cell(id).blocks.load(Ordering::SeqCst)
    }

    /// The ids of the open keyspaces.
    fn ids(&self) -> Vec<KeyspaceId> {
        lock(&self.catalogue).live_ids().collect()
    }

    /// The open keyspace of a name.
    pub fn find(&self, name: &str) -> Result<KeyspaceRef, Error> {
        lock(&self.catalogue).find(name).map(|keyspace| self.reference(keyspace)).map_err(Error::Keyspace)
    }

    /// The open keyspaces by name, and how requests name them.
    pub fn list_open(&self) -> Vec<(Keyspace, KeyspaceRef)> {
        let catalogue = lock(&self.catalogue);
        let open = catalogue.live_ids().filter_map(|id| catalogue.get(id));
        open.map(|keyspace| (keyspace.clone(), self.reference(keyspace))).collect()
    }

    /// How requests name an open keyspace. The caller holds the catalogue.
    fn reference(&self, keyspace: &Keyspace) -> KeyspaceRef {
        let (id, kind, group_bits) = (keyspace.id, keyspace.kind, group_bits_of(keyspace));
        let life = self.cell(id).life.load(Ordering::SeqCst);
        KeyspaceRef { id, kind, life, store: self.store, group_bits }
    }

    /// The number of edits of the catalogue since the store was opened. Whoever sees it changed looks its keyspaces up again.
    #[inline]
    pub fn edits(&self) -> u64 {
        self.edits.load(Ordering::Acquire)
    }

    /// The format of an open keyspace's records, if one was set.
    pub fn format(&self, id: KeyspaceId) -> Result<Option<Format>, Error> {
        lock(&self.catalogue).get(id).map_or(Ok(None), Keyspace::format).map_err(Error::Keyspace)
    }

    /// The ids of keyspaces that were dropped and are not forgotten.
    pub fn dropped(&self) -> Vec<KeyspaceId> {
        let catalogue = lock(&self.catalogue);
        catalogue.iter().map(|keyspace| keyspace.id).filter(|id| !catalogue.is_live(*id)).collect()
    }

    pub fn has_dropped(&self) -> bool {
        self.dropped_count.load(Ordering::Relaxed) > 0
    }

    pub fn list(&self) -> Vec<Keyspace> {
        lock(&self.catalogue).iter().cloned().collect()
    }

    #[inline]
    fn cell(&self, id: KeyspaceId) -> &KeyspaceCell {
        self.cells.get(id, closed_cell)
    }

    /// Records of a keyspace with a stamp up to this one are deleted.
    #[inline]
    pub fn watermark(&self, id: KeyspaceId) -> u64 {
        self.cell(id).watermark.load(Ordering::SeqCst)
    }

    /// Whether the keyspace belongs to this store.
    #[inline]
    pub fn is_of_store(&self, keyspace: KeyspaceRef) -> bool {
        keyspace.store == self.store || keyspace.store == KeyspaceRef::DEFAULT.store
    }

    /// Whether requests may name the keyspace.
    #[inline]
    pub fn is_open(&self, keyspace: KeyspaceRef) -> bool {
        self.is_of_store(keyspace) && self.cell(keyspace.id).life.load(Ordering::SeqCst) == keyspace.life
    }

    /// Whether there is a keyspace with this id, and it is open.
    pub fn has(&self, id: KeyspaceId) -> bool {
        self.cell(id).life.load(Ordering::SeqCst) % 2 == 1
    }

    /// The watermark of a keyspace and its planned deletion.
    pub fn mark(&self, id: KeyspaceId) -> DeletionMark {
        let cell = self.cell(id);
        let (watermark, born) = (cell.watermark.load(Ordering::SeqCst), cell.born.load(Ordering::SeqCst));
        let watermark = if watermark == born { 0 } else { watermark };
        DeletionMark { watermark, planned_at: cell.planned_at.load(Ordering::SeqCst) }
    }

    /// Applies an edit of the catalogue. If it creates a keyspace, records of its id up to `stamp` belonged to an earlier one. The caller holds
    /// every shard.
    pub fn apply(&self, edit: &KeyspaceEdit, stamp: u64) -> Result<(), String> {
        // Held until the cell is updated, so that nobody finds a name whose cell belongs to another keyspace.
        let mut catalogue = lock(&self.catalogue);
        catalogue.apply(edit)?;
        // Early is safe: whoever sees it waits for the catalogue.
        self.edits.fetch_add(1, Ordering::Release);
        self.count_dropped(&catalogue);
        let (id, watermark) = match edit {
            KeyspaceEdit::Create(keyspace) => (keyspace.id, stamp),
            KeyspaceEdit::Drop(id) => (*id, u64::MAX),
            KeyspaceEdit::SetOptions { id, .. } => {
                catalogue.get(*id).into_iter().for_each(|keyspace| self.note_device(keyspace));
                return Ok(());
            }
            KeyspaceEdit::Rename { .. } | KeyspaceEdit::SetFormat { .. } | KeyspaceEdit::Forget(_) => return Ok(()),
        };
        if let KeyspaceEdit::Create(keyspace) = edit {
            self.note_device(keyspace);
        }
        let cell = self.cell(id);
        // This order ensures that a thread that finds the keyspace open also finds its watermark.
        cell.planned_at.store(0, Ordering::SeqCst);
        cell.born.store(stamp, Ordering::SeqCst);
        cell.watermark.store(watermark, Ordering::SeqCst);
        cell.life.fetch_add(1, Ordering::SeqCst);
        self.refresh(&catalogue);
        Ok(())
    }

    /// The marks of all open keyspaces that have any.
    pub fn marks(&self) -> DeletionMarks {
        let marks = self.ids().into_iter().map(|id| (id, self.mark(id)));
        marks.filter(|(_, mark)| *mark != DeletionMark::default()).collect()
    }

    /// Takes note of a written mark with this stamp. The deletion is planned for `at`; 0: it is immediate.
    pub fn note(&self, id: KeyspaceId, stamp: u64, at: u32) {
        let cell = self.cell(id);
        cell.planned_at.store(at, Ordering::SeqCst);
        if at == 0 {
            cell.watermark.fetch_max(stamp, Ordering::SeqCst);
        }
        self.changed();
    }

    /// Deletes everything up to a stamp, whether a mark records that or not.
    pub fn raise(&self, id: KeyspaceId, stamp: u64) {
        self.cell(id).watermark.fetch_max(stamp, Ordering::SeqCst);
        self.changed();
    }

    fn changed(&self) {
        // Held, so that a later change leaves the later figures.
        self.refresh(&lock(&self.catalogue));
    }

    fn count_dropped(&self, catalogue: &Catalogue) {
        let dropped = catalogue.iter().filter(|keyspace| !catalogue.is_live(keyspace.id)).count();
        self.dropped_count.store(dropped as u32, Ordering::Relaxed);
    }

    fn refresh(&self, catalogue: &Catalogue) {
        self.count_dropped(catalogue);
        let floor = catalogue.live_ids().map(|id| self.watermark(id)).min().unwrap_or(0);
        self.floor.store(floor, Ordering::SeqCst);
        let planned = || catalogue.live_ids().map(|id| self.mark(id).planned_at).filter(|at| *at != 0);
        self.planned_next.store(planned().min().unwrap_or(0), Ordering::SeqCst);
        self.planned_count.store(planned().count() as u32, Ordering::SeqCst);
        self.changes.fetch_add(1, Ordering::SeqCst);
    }

    /// The number of changes of watermarks so far.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    /// No record with a stamp up to this one is live, in any keyspace.
    pub fn floor(&self) -> u64 {
        self.floor.load(Ordering::SeqCst)
    }

    /// When the next planned deletion is due; 0 for never.
    #[inline]
    pub fn planned_next(&self) -> u32 {
        self.planned_next.load(Ordering::SeqCst)
    }

    pub fn planned_count(&self) -> u32 {
        self.planned_count.load(Ordering::SeqCst)
    }

    /// The keyspaces whose planned deletion is due.
    pub fn due(&self, now: u32) -> Vec<KeyspaceId> {
        let is_due = |id: &KeyspaceId| (1..=now).contains(&self.mark(*id).planned_at);
        self.ids().into_iter().filter(is_due).collect()
    }

    /// Takes note that the active buffer is sealed.
    pub fn seal(&self) {
        let marks = self.marks();
        *lock(&self.sealed) = marks;
    }

    /// The marks when the last buffer was sealed.
    pub fn sealed(&self) -> DeletionMarks {
        lock(&self.sealed).clone()
    }
}

#[cfg(any(test, feature = "testing"))]
pub mod testing {
    //! Keyspaces with chosen ids.

    use super::*;
    use crate::keyspace::catalogue::KeyspaceState;

    /// Makes a keyspace with this id.
    pub fn create(states: &KeyspaceStates, id: u16, stamp: u64) -> KeyspaceRef {
        create_of(states, KeyspaceKind::Hashed, id, stamp)
    }

    /// As [`create`], for a keyspace of this kind.
    pub fn create_of(states: &KeyspaceStates, kind: KeyspaceKind, id: u16, stamp: u64) -> KeyspaceRef {
        let (id, name, state) = (KeyspaceId(id), format!("keyspace {id}"), KeyspaceState::Live);
        let keyspace = Keyspace { id, name: name.clone(), kind, options: Vec::new(), state, format: Vec::new() };
        states.apply(&KeyspaceEdit::Create(keyspace), stamp).unwrap();
        states.find(&name).unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::testing::create;
    use super::*;

    fn states() -> KeyspaceStates {
        states_of(7)
    }

    fn states_of(store_id: u64) -> KeyspaceStates {
        KeyspaceStates::new(store_id, Catalogue::default(), &DeletionMarks::new(), DeletionMarks::new())
    }

    #[test]
    fn a_deletion_reaches_its_own_keyspace_and_the_floor_all() {
        let (ids, states) = ([0, 3, 300].map(KeyspaceId), states());
        for id in &ids[1..] {
            create(&states, id.0, 0);
        }
        states.note(ids[1], 9, 0);
        assert_eq!(ids.map(|id| states.watermark(id)), [0, 9, 0]);
        assert_eq!(states.floor(), 0);
        states.note(ids[0], 10, 0);
        states.note(ids[2], 11, 0);
        assert_eq!(states.floor(), 9);
        states.note(ids[2], 12, 50);
        states.note(ids[1], 13, 40);
        assert_eq!((states.planned_next(), states.planned_count(), states.due(40)), (40, 2, vec![ids[1]]));
        states.note(ids[1], 14, 0);
        assert_eq!((states.planned_next(), states.due(49), states.due(50)), (50, vec![], vec![ids[2]]));
        assert_eq!(states.mark(ids[2]), DeletionMark { watermark: 11, planned_at: 50 });
    }

    #[test]
    fn a_name_of_a_dropped_keyspace_does_not_name_the_next_one_with_its_id() {
        let states = states();
        let first = create(&states, 300, 7);
        assert!(states.is_open(first) && states.watermark(first.id()) == 7);
        states.note(first.id(), 8, 9);
        states.apply(&KeyspaceEdit::Drop(first.id()), 0).unwrap();
        assert!(!states.is_open(first) && states.watermark(first.id()) == u64::MAX && states.planned_next() == 0);
        states.apply(&KeyspaceEdit::Forget(first.id()), 0).unwrap();
        let second = create(&states, 300, 10);
        assert!(states.is_open(second) && !states.is_open(first) && first.id() == second.id());
    }

    #[test]
    fn each_edit_is_counted_and_what_is_open_is_listed() {
        let states = states();
        let names =
            || states.list_open().into_iter().map(|(keyspace, named)| (keyspace.name, named)).collect::<Vec<_>>();
        let kept = create(&states, 1, 0);
        let dropped = create(&states, 2, 0);
        assert_eq!(states.edits(), 2);
        states.apply(&KeyspaceEdit::Rename { id: kept.id(), name: "kept".into() }, 0).unwrap();
        states.apply(&KeyspaceEdit::Drop(dropped.id()), 0).unwrap();
        assert_eq!(states.edits(), 4);
        assert_eq!(names(), [("default".into(), states.find("default").unwrap()), ("kept".into(), kept)]);
    }

    #[test]
    fn a_keyspace_of_another_store_is_not_open_and_the_default_is_of_all() {
        let [own, again, other] = [7, 7, 8 << 32 | 2].map(states_of);
        let named = create(&own, 1, 0);
        [&again, &other].iter().for_each(|states| assert_eq!(create(states, 1, 0).id(), named.id()));
        assert!(own.is_open(named) && again.is_open(named), "the store was opened again");
        assert!(!other.is_open(named) && !other.is_open(own.find("default").unwrap()));
        assert!(other.is_open(KeyspaceRef::DEFAULT));
    }

    #[test]
    fn nothing_of_a_keyspace_that_is_not_there_is_live() {
        let states = states();
        assert!(states.is_open(KeyspaceRef::DEFAULT));
        assert!(!states.is_open(KeyspaceRef::GONE));
        let other = KeyspaceRef { id: KeyspaceId(1), ..KeyspaceRef::DEFAULT };
        assert!(!states.is_open(other) && states.watermark(other.id) == u64::MAX);
        assert_eq!(states.marks(), DeletionMarks::new());
    }
}
