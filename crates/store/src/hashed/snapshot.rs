//! Hashed keyspaces at one moment: their segments with the validity of their records, and the records of their write buffers.
//!
//! 1. The moment is one at which the installer and every shard are held: each key is in a write buffer or in the one segment where it is valid,
//!    and no write comes between two shards. The shards are let go at once. They note where keys were that are written before their places
//!    have been copied, one shard after the other. The records are copied without them, so that no get waits for that; the installer is held until
//!    then, so no buffer is released.
//! 2. Segments and large values are held until the moment releases them, so their extents are not overwritten meanwhile, whatever flush and
//!    collector do. A moment that keeps too much flash loses all of them ([`SnapshotPins`]).
//! 3. The bitmaps are copies, and so are the records of write buffers, which are few against segments.
//! 4. A key whose latest record is in a buffer is noted with the one segment that may have an older one.
//! 5. Those who waited for the installer when the moment came, for the same keyspace, share it ([`SnapshotDesk`]).

use super::HashedEngine;
use super::buffer::{Place, Shard};
use super::catalog::Catalog;
use super::large::LargeExtents;
use super::own_pages;
use super::segment::Descriptor;
use super::segment::snapshot_pins::SnapshotPins;
use super::segment::view::Segment;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use tapetum_base::engine::scan_layout::LayoutError;
use tapetum_base::error::Error;
use tapetum_base::installer::Installer;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::keyspace::states::KeyspaceRef;
use tapetum_base::log::Sync;
use tapetum_base::media::geometry::Geometry;
use tapetum_base::media::io::{Io, lock};
use tapetum_drive::fail_point;
use tapetum_kernels::codec::Decompressor;
use tapetum_kernels::hash::HashKey;
use tapetum_kernels::own_pages::OwnPages;
use tapetum_kernels::record::{Codec, Header, Kind, Record};
use tapetum_kernels::scan::result::DeferredRecord;

/// A keyspace as a moment has it.
pub struct Snapshot {
    moment: Arc<HashedMoment>,
    id: KeyspaceId,
    keyspace: Arc<KeyspaceAtMoment>,
    /// The pages to read of shared segments, by their places.
    own: HashMap<usize, Vec<OwnPages>>,
}

/// See the [module](self).
pub struct HashedMoment {
    /// The validity of each segment's records, by its place.
    segments: Vec<Vec<u64>>,
    keyspaces: BTreeMap<KeyspaceId, Arc<KeyspaceAtMoment>>,
    /// The last stamp that it shows.
    pub stamp: u64,
    /// Unix milliseconds.
    pub now_ms: u64,
    geometry: Geometry,
    pub pins: Arc<SnapshotPins>,
}

#[derive(Default)]
struct KeyspaceAtMoment {
    /// Records up to this stamp were deleted together.
    deleted_through: u64,
    records: Arc<BufferedRecords>,
    /// Keys whose latest record, deletions too, is in a write buffer, by the place of the segment that may have a record of them.
    replaced: HashMap<usize, Vec<Vec<u8>>>,
}

/// Live records of write buffers.
#[derive(Default)]
pub struct BufferedRecords {
    pub items: Vec<BufferedItem>,
    /// Those whose values lie in extents of their own.
    pub elsewhere: Vec<(Header, DeferredRecord)>,
    /// The blocks that buffers have a word on, deletions too, by key: only of a keyspace whose blocks lie in groups on flash.
    pub blocks: BTreeMap<Vec<u8>, Option<BufferedItem>>,
}

pub struct BufferedItem {
    pub key: Vec<u8>,
    pub header: Header,
    /// The value as the record has it.
    pub stored: Vec<u8>,
}

impl BufferedItem {
    pub fn value(&self, decompressor: &mut Decompressor) -> Result<Vec<u8>, Error> {
        let BufferedItem { key, header, stored } = self;
        let mut value = Vec::new();
        let inflated = decompressor.inflate(&Record { header: *header, key, stored }, &mut value);
        inflated.map_err(|_| Error::Corrupt(format!("the value of the key {key:?}")))?;
        Ok(value)
    }
}

impl BufferedRecords {
    pub fn count(&self) -> usize {
        self.items.len() + self.elsewhere.len()
    }

    fn memory_bytes(&self) -> usize {
        let of_item = |item: &BufferedItem| size_of::<BufferedItem>() + item.key.len() + item.stored.len();
        let of_blocks = self.blocks.values().flatten().map(of_item).sum::<usize>();
        let of_other = |(_, record): &(Header, DeferredRecord)| {
            size_of::<(Header, DeferredRecord)>() + record.key.len() + record.reference.len()
        };
        of_blocks + self.items.iter().map(of_item).sum::<usize>() + self.elsewhere.iter().map(of_other).sum::<usize>()
    }
}

impl HashedMoment {
    /// An error if the flash that it held was needed: nothing is read by it any more.
    pub fn check(&self) -> Result<(), LayoutError> {
        if self.pins.is_too_old() { Err(LayoutError::TooOld) } else { Ok(()) }
    }

    /// Lets its flash go.
    pub fn give_up(&self) {
        self.pins.give_up();
    }

    /// Bytes of flash that moments alone keep from writers, of what this one holds.
    pub fn flash_bytes(&self, engine: &HashedEngine) -> u64 {
        engine.segments.pinned(&self.pins) * self.geometry.extent_bytes
    }

    /// Bytes of it in memory.
    pub fn memory_bytes(&self) -> usize {
        let of_keyspace = |keyspace: &Arc<KeyspaceAtMoment>| {
            let replaced = keyspace.replaced.values().flatten().map(|key| size_of::<Vec<u8>>() + key.len());
            keyspace.records.memory_bytes() + replaced.sum::<usize>()
        };
        let valid: usize = self.segments.iter().map(|valid| size_of_val(&valid[..])).sum();
        valid + self.keyspaces.values().map(of_keyspace).sum::<usize>()
    }
}

impl Snapshot {
    /// Takes a snapshot. If writes are acknowledged when they are durable, everything that it shows is durable.
    pub async fn take(engine: Arc<HashedEngine>, io: Io, keyspace: KeyspaceRef) -> Result<Snapshot, Error> {
        let waiting = Waiting::begin(&engine, keyspace.id());
        let installer = engine.take_installer().await;
        let moment = match waiting.shared() {
            Some(moment) => moment,
            None => {
                // Those who begin to wait from here on wait for a later moment.
                let at = waiting.turn();
                let copy = MomentCopy::begin(&engine, [keyspace.id()], || ());
                let moment = copy.finish(&engine, &installer, None, None);
                waiting.share(at, &moment);
                moment
            }
        };
        drop((installer, waiting));
        if engine.log.sync() == Sync::Always {
            engine.log.make_durable(&io, moment.stamp, || engine.drive.env().now_us()).await?;
        }
        Ok(Snapshot::of(&moment, keyspace.id()))
    }

    /// A keyspace of a moment, which has nothing of a keyspace that it did not copy.
    pub fn of(moment: &Arc<HashedMoment>, id: KeyspaceId) -> Snapshot {
        let keyspace = moment.keyspaces.get(&id).cloned().unwrap_or_default();
        Snapshot { moment: moment.clone(), id, keyspace, own: HashMap::new() }
    }

    /// The number of segments.
    pub fn segments(&self) -> usize {
        self.moment.segments.len()
    }

    /// Whether the segment in a place may have an item of the keyspace. What was released is taken to have some: its reader learns that it is gone.
    pub fn may_have(&self, place: usize) -> bool {
        let may_have = |segment: Arc<Segment>| segment.may_show(self.id, self.deleted_through(), self.now_ms());
        self.own.get(&place).is_none_or(|own| !own.is_empty()) && self.segment(place).is_none_or(may_have)
    }

    /// Looks in the key tables of shared segments for the pages with items of the keyspace. A segment whose key table cannot be read is read whole.
    pub async fn located(mut self, engine: &HashedEngine, io: &Io) -> Snapshot {
        for place in 0..self.segments() {
            let Some(segment) = self.segment(place).filter(|_| self.may_have(place)) else { continue };
            if let Ok(Some(own)) = own_pages::find(engine, io, &segment, self.id, self.valid(place)).await {
                self.own.insert(place, own);
            }
        }
        self
    }

    /// The pages to read of the segment in a place, in order.
    pub fn pages(&self, place: usize) -> Vec<OwnPages> {
        let whole = |segment: Arc<Segment>| {
            let Descriptor { data_pages, entries, .. } = segment.descriptor;
            vec![OwnPages { pages: 0..data_pages, starts_end: data_pages, entry_first: 0, entry_end: entries }]
        };
        match self.own.get(&place) {
            Some(own) => own.clone(),
            // The reader of what was released learns that it is gone.
            None => self.segment(place).map_or_else(|| vec![OwnPages::none()], whole),
        }
    }

    /// The validity of the records of the segment in a place.
    pub fn valid(&self, place: usize) -> &[u64] {
        &self.moment.segments[place]
    }

    /// Keys of which write buffers have a later word than the segment in a place.
    pub fn replaced(&self, place: usize) -> &[Vec<u8>] {
        self.keyspace.replaced.get(&place).map_or(&[], |keys| keys)
    }

    /// The records of write buffers.
    pub fn records(&self) -> Arc<BufferedRecords> {
        self.keyspace.records.clone()
    }

    /// Records up to this stamp were deleted together.
    pub fn deleted_through(&self) -> u64 {
        self.keyspace.deleted_through
    }

    pub fn now_ms(&self) -> u64 {
        self.moment.now_ms
    }

    pub fn geometry(&self) -> Geometry {
        self.moment.geometry
    }

    /// A segment, held.
    pub fn segment(&self, place: usize) -> Option<Arc<Segment>> {
        self.moment.pins.segment(place)
    }

    /// A segment was read. Where others may still read it, it is held until they end.
    pub fn release(&self, place: usize) {
        if Arc::strong_count(&self.moment) == 1 {
            self.moment.pins.release(place);
        }
    }

    /// An error if the flash that it held was needed: nothing is read by it any more.
    pub fn check(&self) -> Result<(), LayoutError> {
        self.moment.check()
    }
}

/// Where a write buffer has a key at a moment, and the extents of its value, if that is a large one.
struct PlaceAtMoment {
    hash: HashKey,
    place: Place,
    large: Option<Arc<LargeExtents>>,
}

fn places_at_moment(shard: &mut Shard) -> Vec<PlaceAtMoment> {
    let is_tail_missed = fail_point!(FreezeWithoutTail);
    let active = shard.active();
    let places: Vec<_> = shard.at_moment().filter(|(_, place)| !is_tail_missed || place.buffer != active).collect();
    let with_extents = |(hash, place)| PlaceAtMoment { hash, place, large: shard.large(place) };
    places.into_iter().map(with_extents).collect()
}

/// Copies what write buffers have of some keyspaces at a moment.
pub struct MomentCopy {
    now_ms: u64,
    stamp: u64,
    copies: BTreeMap<KeyspaceId, KeyspaceCopy>,
    large: Vec<Arc<LargeExtents>>,
}

#[derive(Default)]
struct KeyspaceCopy {
    /// Its blocks are in groups on flash.
    is_grouped: bool,
    deleted_through: u64,
    records: BufferedRecords,
    /// Keys by the number of the segment that may have an older record.
    replaced: BTreeMap<u32, Vec<Vec<u8>>>,
}

impl MomentCopy {
    /// The moment is now. The caller has the installer, until the copy is finished. `amid` runs while all shards are held.
    pub fn begin(
        engine: &HashedEngine,
        keyspaces: impl IntoIterator<Item = KeyspaceId>,
        amid: impl FnOnce(),
    ) -> MomentCopy {
        let keyspaces: Vec<KeyspaceId> = keyspaces.into_iter().collect();
        // Ascending, as everywhere.
        let mut shards: Vec<_> = engine.buffers.shards().iter().map(lock).collect();
        let copy = |id: KeyspaceId| {
            let (is_grouped, deleted_through) = (engine.keyspaces.group_blocks(id) > 1, engine.keyspaces.watermark(id));
            (id, KeyspaceCopy { is_grouped, deleted_through, ..KeyspaceCopy::default() })
        };
        let (stamp, copies) = (engine.log.stamp_last(), keyspaces.into_iter().map(copy).collect());
        amid();
        shards.iter_mut().for_each(|shard| shard.begin_moment());
        drop(shards);
        MomentCopy { now_ms: engine.now_ms(), stamp, copies, large: Vec::new() }
    }

    /// Copies. The moment may keep so many extents from writers; `None`: the usual part of all. It also holds the segments that `image` names, where
    /// there is one: whoever opens a copy of them reads all, those of dropped keyspaces and of expired items too.
    pub fn finish(
        mut self,
        engine: &HashedEngine,
        installer: &Installer,
        extents_max: Option<u64>,
        image: Option<&Catalog>,
    ) -> Arc<HashedMoment> {
        for shard in engine.buffers.shards() {
            // Gets wait for the shard: the records are copied when it is let go.
            let places = places_at_moment(&mut lock(shard));
            self.copy_records(engine, places);
        }
        let is_named = |number: u32| image.is_some_and(|image| image.segments.contains_key(&number));
        let (mut segments, mut held) = (Vec::new(), Vec::<Arc<Segment>>::new());
        let mut places = HashMap::new();
        for state in installer.of::<Catalog>().segments.values().filter(|state| state.valid_entries > 0) {
            let segment = engine.segments.get(state.descriptor.number);
            let is_held = |segment: &Arc<Segment>| is_named(segment.descriptor.number) || self.is_of_interest(segment);
            if let Some(segment) = segment.filter(is_held) {
                places.insert(state.descriptor.number, segments.len());
                let forgets_deaths = fail_point!(FreezeForgetDeaths);
                segments.push(if forgets_deaths { state.valid.all_words() } else { state.valid.to_words() });
                self.large.extend(segment.all_large());
                held.push(segment);
            }
        }
        let pins = SnapshotPins::new(held, self.large, extents_max);
        engine.segments.snapshots.add(&pins);
        let of_keyspace = |KeyspaceCopy { deleted_through, records, replaced, .. }: KeyspaceCopy| {
            let at_place = |(number, keys)| Some((*places.get(&number)?, keys));
            let replaced = replaced.into_iter().filter_map(at_place).collect();
            Arc::new(KeyspaceAtMoment { deleted_through, records: Arc::new(records), replaced })
        };
        let keyspaces = self.copies.into_iter().map(|(id, copy)| (id, of_keyspace(copy))).collect();
        let (stamp, now_ms, geometry) = (self.stamp, self.now_ms, engine.geometry);
        Arc::new(HashedMoment { segments, keyspaces, stamp, now_ms, geometry, pins })
    }

    /// Whether a segment may have an item of any of the keyspaces.
    fn is_of_interest(&self, segment: &Segment) -> bool {
        let shows = |id: KeyspaceId, copy: &KeyspaceCopy| segment.may_show(id, copy.deleted_through, self.now_ms);
        let shares = &segment.local_index.shares;
        match shares.is_listed() && shares.count() < self.copies.len() {
            true => {
                let ids = shares.iter().map(|share| share.keyspace);
                ids.filter_map(|id| Some((id, self.copies.get(&id)?))).any(|(id, copy)| shows(id, copy))
            }
            false => self.copies.iter().any(|(id, copy)| shows(*id, copy)),
        }
    }

    /// Copies what is in these places, without the shard that named them.
    fn copy_records(&mut self, engine: &HashedEngine, places: Vec<PlaceAtMoment>) {
        for PlaceAtMoment { hash, place: Place { buffer, place: at }, large } in places {
            // SAFETY: the shard named the place, and no buffer is released as long as the installer is held.
            let record = unsafe { engine.log.record(buffer, at) };
            let header = record.header;
            let Some(copy) = self.copies.get_mut(&KeyspaceId::of(&header)) else { continue };
            let is_live = header.stamp > copy.deleted_through && !header.expiry.has_passed(self.now_ms);
            if copy.is_grouped {
                let (key, stored) = (record.key.to_vec(), record.stored.to_vec());
                let is_there = header.kind == Kind::Value && is_live;
                let block = is_there.then(|| BufferedItem { key: key.clone(), header, stored });
                copy.records.blocks.insert(key, block);
                continue;
            }
            let forgets = fail_point!(QueryForgetReplaced);
            if let Some(segment) = engine.candidate(hash).filter(|_| !forgets) {
                copy.replaced.entry(segment.descriptor.number).or_default().push(record.key.to_vec());
            }
            if header.kind != Kind::Value || !is_live {
                continue;
            }
            if header.codec == Codec::OutOfLine {
                let (key, reference) = (record.key.into(), record.stored.into());
                let record = DeferredRecord { key, raw_bytes: header.raw_bytes, reference };
                copy.records.elsewhere.push((header, record));
                self.large.extend(large);
                continue;
            }
            let (key, stored) = (record.key.to_vec(), record.stored.to_vec());
            copy.records.items.push(BufferedItem { key, header, stored });
        }
    }
}

/// Where those meet who want a snapshot at the same time.
#[derive(Default)]
pub struct SnapshotDesk(Mutex<DeskState>);

#[derive(Default)]
struct DeskState {
    /// Numbers those who wait, and moments, in one order.
    turn: u64,
    /// Who waits: since when, and for which keyspace.
    waiting: Vec<(u64, KeyspaceId)>,
    /// The last moment, as long as somebody waits who may share it.
    last: Option<(u64, KeyspaceId, Arc<HashedMoment>)>,
}

#[cfg(test)]
impl SnapshotDesk {
    /// How many have waited and how many moments there were, together; and whether one is kept.
    pub fn turns(&self) -> (u64, bool) {
        let desk = lock(&self.0);
        (desk.turn, desk.last.is_some())
    }
}

impl DeskState {
    fn take_turn(&mut self) -> u64 {
        self.turn += 1;
        self.turn
    }
}

/// Somebody who waits for a snapshot.
struct Waiting {
    engine: Arc<HashedEngine>,
    since: u64,
    keyspace: KeyspaceId,
}

impl Waiting {
    fn begin(engine: &Arc<HashedEngine>, keyspace: KeyspaceId) -> Waiting {
        let mut desk = lock(&engine.snapshot_desk.0);
        let since = desk.take_turn();
        desk.waiting.push((since, keyspace));
        drop(desk);
        Waiting { engine: Arc::clone(engine), since, keyspace }
    }

    /// A moment since it waits.
    fn shared(&self) -> Option<Arc<HashedMoment>> {
        let desk = lock(&self.engine.snapshot_desk.0);
        let (at, keyspace, moment) = desk.last.as_ref()?;
        (*at > self.since && *keyspace == self.keyspace).then(|| moment.clone())
    }

    fn turn(&self) -> u64 {
        lock(&self.engine.snapshot_desk.0).take_turn()
    }

    fn share(&self, at: u64, moment: &Arc<HashedMoment>) {
        lock(&self.engine.snapshot_desk.0).last = Some((at, self.keyspace, moment.clone()));
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut desk = lock(&self.engine.snapshot_desk.0);
        desk.waiting.retain(|(since, _)| *since != self.since);
        let DeskState { waiting, last, .. } = &mut *desk;
        let is_wanted =
            |(at, of, _): &(u64, KeyspaceId, Arc<HashedMoment>)| waiting.iter().any(|who| who.0 < *at && who.1 == *of);
        let forgotten = last.take_if(|last| !is_wanted(last));
        drop(desk);
        drop(forgotten);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StoreOptions;
    use crate::hashed::collect::victim::tests::store_in_memory;

    #[test]
    fn records_are_copied_without_their_shards() {
        let capacity_bytes = 24 << 20;
        let options = StoreOptions {
            segment_bytes: 256 << 10,
            partition_bits: 2,
            sync: Sync::No,
            ..StoreOptions::new(capacity_bytes, 64 << 20)
        };
        let (_drive, store) = store_in_memory(capacity_bytes, &options);
        let papers = store.create_keyspace("papers").unwrap();
        for key in 0..100_u32 {
            papers.put(&key.to_be_bytes(), b"value").unwrap();
        }
        let engine = store.hashed();
        let mut copy = MomentCopy::begin(engine, [papers.id()], || ());
        let shards = engine.buffers.shards();
        let places: Vec<_> = shards.iter().flat_map(|shard| places_at_moment(&mut lock(shard))).collect();
        // As gets and writes hold them.
        let held: Vec<_> = shards.iter().map(lock).collect();
        copy.copy_records(engine, places);
        drop(held);
        assert_eq!(copy.copies[&papers.id()].records.count(), 100);
    }
}
