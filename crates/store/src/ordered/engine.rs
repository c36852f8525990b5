//! The engine of ordered keyspaces, as the store uses it: a tree and its slots for each keyspace.
//!
//! 1. A store without ordered keyspaces uses no memory for this engine: the state that all trees share is made with the first tree.
//! 2. A tree is made when its keyspace is first named. A tree that was never durable is empty after a crash.
//! 3. The groups of a dropped keyspace are freed when none of its images is in flight to flash.
//!
//! Threads: any.

use super::anchor_checkpoint::{self, AnchorMedia, AnchorRoot, CheckpointKeyspace};
use super::batches::BatchList;
use super::cache::CacheCounts;
use super::job::OrderedJob;
use super::recover::{LogRecords, RecoverOptions, recover};
use super::search::SearchLimits;
use super::session::OrderedSession;
use super::slabs::SlotSpace;
use super::slabs::keyspace_slots::{KeyspaceSlots, SlabOptions};
use super::slabs::manifest_client::OpeningGroups;
use super::slabs::slot_class::PAGE_BYTES;
use super::slabs::tending::tend;
use super::tree::{FoundNode, OrderedLimits, OrderedState, OrderedTree, TreeSource};
use crate::ordered::node_table::NodeHome;
use crate::ordered::slabs::group_table::GroupTable;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use tapetum_base::base::Base;
use tapetum_base::base::client::BaseClient;
use tapetum_base::engine::check_report::{CheckPart, CheckPlace, CheckReport};
use tapetum_base::engine::inspection::Inspection;
use tapetum_base::engine::job::Job;
use tapetum_base::engine::key_place::KeyPlace;
use tapetum_base::engine::{Engine, ImageMarks, ItemCounts};
use tapetum_base::error::{Error, KeyspaceError};
use tapetum_base::installer::Installer;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::keyspace::catalogue::KeyspaceState;
use tapetum_base::keyspace_kind::KeyspaceKind;
use tapetum_base::log::Place;
use tapetum_base::log::client::LogClient;
use tapetum_base::manifest::engine_roots::{EngineRoots, ROOT_BYTES_MAX};
use tapetum_base::manifest::items::FrameItems;
use tapetum_base::media::extents::ExtentOwner;
use tapetum_base::media::io::{Io, Task, lock};
use tapetum_base::session::engine_session::{EngineSession, EngineSlot};
use tapetum_base::stats::Stats;
use tapetum_drive::fail_point;
use tapetum_kernels::record::Record;

/// The most sessions that name ordered keyspaces at once.
const SESSIONS_MAX: usize = 4096;
/// The least limit of data nodes, whatever the capacity, as it may grow.
const NODES_MIN: u64 = 1 << 20;
const NODES_MAX: u64 = 1 << 28;
/// If there are free extents for so many groups, some group's extents are neighbours.
const NEIGHBOURS_FREE: u32 = 16;
/// How often a close looks for slots in vain before it fails. A full group is closed first, and the next change opens it again.
const CLOSE_TRIES: u32 = 8;

pub struct OrderedEngine {
    pub base: Arc<Base>,
    /// The state that all trees share, once there is a tree.
    shared: OnceLock<OrderedShared>,
    /// Slots by keyspace. Locked while a tree is made, so that each is made once.
    pub slots: Mutex<BTreeMap<KeyspaceId, KeyspaceSlots>>,
    /// The batches that need the log.
    pub batches: Arc<BatchList>,
    /// The places of each keyspace's log records, in the order of their stamps, until the keyspace is recovered.
    replayed: Mutex<BTreeMap<KeyspaceId, Vec<Place>>>,
    /// The highest stamp of replayed records.
    stamp_replayed: AtomicU64,
}

pub struct OrderedShared {
    pub state: Arc<OrderedState>,
    pub slabs: SlabOptions,
}

impl OrderedEngine {
    pub fn new(base: &Arc<Base>) -> Arc<OrderedEngine> {
        Arc::new(OrderedEngine {
            base: base.clone(),
            shared: OnceLock::new(),
            slots: Mutex::default(),
            batches: Arc::default(),
            replayed: Mutex::default(),
            stamp_replayed: AtomicU64::new(0),
        })
    }

    /// The state that all trees share, if there is a tree.
    pub fn shared(&self) -> Option<&OrderedShared> {
        self.shared.get()
    }

    fn limits(&self) -> OrderedLimits {
        let budget = self.base.options.budget();
        let nodes = (self.base.capacity_bytes() / PAGE_BYTES * 2).clamp(NODES_MIN, NODES_MAX);
        let cache_bytes = budget.cached_nodes_bytes().min(self.base.options.node_cache_bytes_max);
        OrderedLimits {
            cache_pages: (cache_bytes / PAGE_BYTES) as usize,
            nodes_max: nodes as u32,
            in_place: self.in_place(),
            search: SearchLimits {
                bytes_max: self.base.budget().index_bytes_max() as usize,
                handles_max: SESSIONS_MAX,
            },
        }
    }

    /// Whether images of nodes are written in place. This needs a drive that promises atomic writes of a page across a power failure, or an option
    /// that assumes it.
    fn in_place(&self) -> bool {
        let promised = self.base.drive.atomic_write_bytes() >= PAGE_BYTES as u32;
        let is_aligned = self.base.geometry.extents_offset().is_multiple_of(PAGE_BYTES);
        if !promised && self.base.options.assume_atomic_writes {
            tracing::warn!(
                "nodes of ordered keyspaces are written in place, because the options assume atomic writes of 4 KiB, which the drive \
                 does not promise: if they are not atomic, a power failure may lose nodes"
            );
        }
        is_aligned && (promised || self.base.options.assume_atomic_writes)
    }

    fn slabs(&self) -> Result<SlabOptions, Error> {
        SlabOptions::new(&self.base.geometry, self.base.store_id)
    }

    /// Reserves a group's extents for each keyspace: recovery after a crash may have to rewrite some images, in free slots.
    fn set_floor(&self, slots: &BTreeMap<KeyspaceId, KeyspaceSlots>) {
        let mut extents = lock(&self.base.extents);
        let of_group =
            |slots: &KeyspaceSlots| extents.run_extents(ExtentOwner::Slots, slots.nodes().options().group_extents);
        let floor = slots.values().map(of_group).sum();
        extents.set_floor(ExtentOwner::Recovery, floor);
    }

    /// The state that all trees share; makes it if there is none. The caller locks `slots`, so that it is made once.
    pub fn make_shared(&self) -> Result<&OrderedShared, Error> {
        if let Some(shared) = self.shared.get() {
            return Ok(shared);
        }
        let base = &self.base;
        let slabs = self.slabs()?;
        let state = OrderedState::new(base.clone(), self.limits())?;
        Ok(self.shared.get_or_init(|| OrderedShared { state, slabs }))
    }

    /// The tree of an open keyspace; makes it if there is none.
    ///
    /// # Errors
    /// When the keyspace was dropped, or there is no memory for its tree.
    pub fn tree(&self, keyspace: KeyspaceId) -> Result<Arc<OrderedTree>, Error> {
        if let Some(tree) = self.shared.get().and_then(|shared| shared.state.tree(keyspace)) {
            return Ok(tree);
        }
        let mut slots = lock(&self.slots);
        if !self.base.keyspaces.has(keyspace) || slots.contains_key(&keyspace) {
            let made = self.shared.get().and_then(|shared| shared.state.tree(keyspace));
            return made.ok_or(Error::Keyspace(KeyspaceError::Gone));
        }
        let shared = self.make_shared()?;
        // The keyspace has no groups: all groups in the manifest were found when the store was opened.
        let empty = KeyspaceSlots::new(&shared.slabs, keyspace, &Default::default());
        let tree = shared.state.add_empty(empty.clone())?;
        slots.insert(keyspace, empty);
        self.set_floor(&slots);
        drop(slots);
        self.base.wakeup.wake();
        Ok(tree)
    }

    /// Called after a search for slots. While a keyspace has no free slot and no extents for more, writes that could take slots are refused.
    pub fn tended(&self, slots: &KeyspaceSlots) {
        let nodes = slots.nodes();
        // A group takes neighbouring extents. Among the last few free extents there may be none.
        let enough = NEIGHBOURS_FREE * nodes.options().group_extents;
        let few_left = || lock(&self.base.extents).room_of(ExtentOwner::Slots) < enough;
        let is_full = nodes.has_none() && (few_left() || !nodes.finds_extents(&self.base.extents));
        if is_full {
            // Free slots may all be reserved: then the search asked for no extents.
            lock(&self.base.extents).note_lack(ExtentOwner::Slots, enough);
        }
        if let Some(tree) = self.tree_if_there(slots.keyspace()) {
            tree.is_full.store(is_full, Ordering::Relaxed);
        }
    }

    /// Whether the keyspace had no room in the last search for slots.
    pub fn is_full(&self, slots: &KeyspaceSlots) -> bool {
        self.tree_if_there(slots.keyspace()).is_some_and(|tree| tree.is_full.load(Ordering::Relaxed))
    }

    fn tree_if_there(&self, keyspace: KeyspaceId) -> Option<Arc<OrderedTree>> {
        self.shared.get()?.state.tree(keyspace)
    }

    /// The dropped keyspaces that may still have data.
    pub fn dropped(&self) -> Vec<KeyspaceId> {
        lock(&self.slots).keys().copied().filter(|id| !self.base.keyspaces.has(*id)).collect()
    }

    /// Evicts the pages of a dropped keyspace, except those in use. Returns whether none is left, and no image and no extension is in flight to
    /// flash.
    pub fn forget_pages(&self, keyspace: KeyspaceId) -> bool {
        let is_settled = lock(&self.slots).get(&keyspace).is_none_or(|slots| slots.spaces().all(SlotSpace::is_settled));
        self.shared.get().is_none_or(|shared| shared.state.forget_tree(keyspace)) && is_settled
    }

    /// Forgets a dropped keyspace of which nothing is left on flash.
    pub fn forget(&self, keyspace: KeyspaceId) {
        let mut slots = lock(&self.slots);
        slots.remove(&keyspace);
        self.set_floor(&slots);
    }

    /// The checkpoint of anchors, if it is valid for this opening.
    async fn checkpoint(&self, io: &Io, installer: &Installer) -> Option<BTreeMap<KeyspaceId, CheckpointKeyspace>> {
        let base = &self.base;
        let root = installer.roots.get(KeyspaceKind::Ordered);
        if root.is_empty() {
            return None;
        }
        let Ok(root) = AnchorRoot::parse(root) else {
            tracing::warn!("the root of ordered keyspaces makes no sense: data nodes are read");
            return None;
        };
        // A read-only opening ends no generation.
        let ended = installer.marks.opening.generation - u64::from(base.overlay.is_none());
        if root.generation != ended && !fail_point!(OrderedStaleCheckpoint) {
            return None;
        }
        let found = match self.stamp_replayed.load(Ordering::SeqCst) > root.stamp {
            true => Err("the log has a later batch".into()),
            false => {
                let media = AnchorMedia::of(base);
                anchor_checkpoint::read(&media, io, &root, base.budget().index_bytes_max()).await
            }
        };
        match found {
            Ok(keyspaces) => {
                base.log.go_on_above(root.stamp);
                Some(keyspaces)
            }
            Err(amiss) => {
                tracing::warn!("the checkpoint of anchors is passed over ({amiss}): data nodes are read");
                None
            }
        }
    }

    /// Restores an open keyspace from the checkpoint. Returns whether that was possible.
    fn take_from(&self, id: KeyspaceId, found: CheckpointKeyspace, installer: &Installer) -> Result<bool, Error> {
        let mut all = lock(&self.slots);
        let OrderedShared { state, slabs } = self.make_shared()?;
        let slots = KeyspaceSlots::new(slabs, id, installer.of::<GroupTable>());
        if let Err(amiss) = anchor_checkpoint::claim(&slots, &found) {
            tracing::warn!("the checkpoint of anchors is passed over for keyspace {} ({amiss})", id.0);
            return Ok(false);
        }
        let nodes = found.nodes.len();
        if nodes == 0 {
            state.add_empty(slots.clone())?;
        } else {
            state.add_found(&slots, found.nodes)?.count_items(found.items);
        }
        tracing::info!("recovered ordered keyspace {}: {nodes} data nodes of the checkpoint of anchors", id.0);
        lock(&self.replayed).remove(&id);
        all.insert(id, slots);
        Ok(true)
    }

    /// Writes a checkpoint of anchors. All pages equal their images.
    async fn leave_checkpoint(&self, io: &Io, state: &OrderedState) -> Result<(), Error> {
        let base = &self.base;
        let Some(mut installer) = base.try_take_installer() else {
            tracing::info!(
                "no checkpoint of anchors: a change of the manifest was given up; opening the store reads data nodes"
            );
            return Ok(());
        };
        let trees: Vec<_> = {
            let slots = lock(&self.slots);
            let is_open = |tree: &Arc<OrderedTree>| base.keyspaces.has(tree.keyspace);
            let trees = state.trees().into_iter().filter(is_open);
            trees.filter_map(|tree| Some((tree.clone(), slots.get(&tree.keyspace)?.clone()))).collect()
        };
        let (generation, stamp) = (installer.marks.opening.generation, base.log.give_stamp());
        let written = anchor_checkpoint::write(base, io, &state.cache, &trees, generation, stamp).await;
        let named = match written {
            Ok(Some(root)) if root.encode().len() <= ROOT_BYTES_MAX => {
                let mut items = FrameItems::default();
                EngineRoots::put(KeyspaceKind::Ordered, &root.encode(), &mut items);
                let appended = installer.append_if_room(&items).await;
                if appended == Ok(true) {
                    installer.roots.set(KeyspaceKind::Ordered, root.encode());
                }
                appended
            }
            other => other.map(|_| false),
        };
        drop(installer);
        if !named? {
            tracing::info!("no checkpoint of anchors: there is no room for it; opening the store reads data nodes");
        }
        Ok(())
    }

    /// Recovers an open keyspace from flash.
    async fn recover_keyspace(&self, io: &Io, id: KeyspaceId, installer: &mut Installer) -> Result<(), Error> {
        let (slabs, state) = {
            let _slots = lock(&self.slots);
            let shared = self.make_shared()?;
            (shared.slabs, shared.state.clone())
        };
        let base = &self.base;
        let keyspace_slots = KeyspaceSlots::new(&slabs, id, installer.of::<GroupTable>());
        let options = RecoverOptions {
            // Zero: images are valid on their own. An opening that failed after its manifest record may have seen others.
            stamp_durable: 0,
            stamp_next: base.log.give_stamp(),
            memory_bytes: base.budget().recovery_bytes_max(base.pools_bytes),
        };
        let mut log = OpeningGroups { io, installer };
        let mut replayed = lock(&self.replayed).remove(&id).unwrap_or_default();
        replayed.retain(|_| !fail_point!(OrderedForgetBatch));
        // SAFETY: the records were replayed from these places, and nothing is released before the store is open.
        let records = replayed.iter().map(|place| unsafe { base.log.record(place.buffer, place.place) });
        let records = LogRecords::of(records);
        let recovering = recover(&base.drive, io, &keyspace_slots, &options, &records, &base.extents, &mut log);
        let recovered = recovering.await?;
        base.log.go_on_above(recovered.stamp_next);
        if recovered.nodes().len() == 0 {
            state.add_empty(keyspace_slots.clone())?;
        } else {
            let found = recovered.nodes().map(|node| FoundNode {
                anchor: node.low.to_vec(),
                home: NodeHome { slot: node.slot, stamp: node.stamp },
                records: node.records,
            });
            state.add_found(&keyspace_slots, found)?;
        }
        tracing::info!("recovered ordered keyspace {}: {}", id.0, recovered.counts);
        lock(&self.slots).insert(id, keyspace_slots);
        Ok(())
    }
}

/// Changes of one node need no log: an image with them is durable before they are acknowledged. Batches need it.
impl LogClient for OrderedEngine {
    fn stamp_needed(&self) -> u64 {
        if fail_point!(OrderedTrimBatch) { u64::MAX } else { self.batches.stamp_needed() }
    }

    fn checkpoint_through(&self, stamp: u64) {
        self.batches.checkpoint_through(stamp);
        self.base.wakeup.wake();
    }

    fn hold_writers(&self, change: &mut dyn FnMut() -> Option<u64>) {
        self.batches.hold_writers(|| {
            change();
        });
    }
}

impl BaseClient for OrderedEngine {
    fn kind(&self) -> KeyspaceKind {
        KeyspaceKind::Ordered
    }

    fn holds(&self, keyspace: KeyspaceId) -> bool {
        lock(&self.slots).contains_key(&keyspace)
    }

    fn index_bytes(&self) -> u64 {
        self.shared.get().map_or(0, |shared| shared.state.index_bytes())
    }

    fn local_bytes(&self) -> u64 {
        self.shared.get().map_or(0, |shared| shared.state.cache.counts().pages * PAGE_BYTES)
    }
}

impl TreeSource for OrderedEngine {
    fn find_tree(&self, keyspace: KeyspaceId) -> Result<Arc<OrderedTree>, Error> {
        self.tree(keyspace)
    }
}

impl Engine for OrderedEngine {
    fn replay(&self, place: Place, record: &Record<'_>) -> Result<(), Error> {
        self.stamp_replayed.fetch_max(record.header.stamp, Ordering::SeqCst);
        lock(&self.replayed).entry(KeyspaceId::of(&record.header)).or_default().push(place);
        Ok(())
    }

    fn recover(self: Arc<Self>, io: Io, mut installer: Box<Installer>) -> Task<Result<Box<Installer>, Error>> {
        Box::pin(async move {
            let ordered = installer.keyspaces.iter().filter(|keyspace| keyspace.kind == KeyspaceKind::Ordered);
            let found: Vec<_> = ordered.map(|keyspace| (keyspace.id, keyspace.state)).collect();
            // Everything is read before anything is written, as a write may hit the checkpoint's extents.
            let mut checkpoint = self.checkpoint(&io, &installer).await.unwrap_or_default();
            for (id, state) in found {
                match state {
                    KeyspaceState::Live => {
                        let is_there = match checkpoint.remove(&id) {
                            Some(found) => self.take_from(id, found, &installer)?,
                            None => false,
                        };
                        if !is_there {
                            self.recover_keyspace(&io, id, &mut installer).await?;
                        }
                    }
                    // The keyspace's groups are to be freed.
                    KeyspaceState::Dropping if installer.of::<GroupTable>().of_keyspace(id).next().is_some() => {
                        let slots = KeyspaceSlots::new(&self.slabs()?, id, installer.of::<GroupTable>());
                        lock(&self.slots).insert(id, slots);
                    }
                    KeyspaceState::Dropping => {}
                }
            }
            self.set_floor(&lock(&self.slots));
            Ok(installer)
        })
    }

    fn open_session(self: Arc<Self>, slot: EngineSlot) -> Result<Box<dyn EngineSession>, Error> {
        let state = {
            let _slots = lock(&self.slots);
            self.make_shared()?.state.clone()
        };
        let batches = self.batches.clone();
        Ok(Box::new(OrderedSession::new(state, self, batches, slot)))
    }

    fn jobs(self: Arc<Self>, io: &Io) -> Vec<Box<dyn Job>> {
        vec![Box::new(OrderedJob::new(self, io))]
    }

    fn add_counts(&self, counts: &mut ItemCounts) {
        let Some(OrderedShared { state, .. }) = self.shared.get() else { return };
        counts.extend(state.trees().iter().map(|tree| (tree.keyspace, tree.items())));
    }

    fn add_stats(&self, stats: &mut Stats) {
        let Some(OrderedShared { state, .. }) = self.shared.get() else { return };
        stats.items += state.trees().iter().map(|tree| tree.items()).sum::<u64>();
        stats.index_bytes += state.index_bytes();
        stats.memory_used_bytes += state.index_bytes();
        stats.nodes += u64::from(state.cache.table.count());
        stats.node_sweeps += state.sweeps();
        let CacheCounts { pages, dirty, hits, misses } = state.cache.counts();
        stats.node_cache_bytes += pages * PAGE_BYTES;
        stats.node_cache_dirty_bytes += dirty * PAGE_BYTES;
        stats.node_cache_hits += hits;
        stats.node_cache_misses += misses;
    }

    fn inspect(&self, inspection: &mut Inspection) -> Result<(), Error> {
        super::inspect::inspect(self, inspection)
    }

    fn locate(self: Arc<Self>, io: Io, keyspace: KeyspaceId, key: Vec<u8>) -> Task<Result<KeyPlace, Error>> {
        Box::pin(async move { super::inspect::locate(&self, &io, keyspace, &key).await })
    }

    fn image_marks(&self, keyspace: KeyspaceId) -> Option<ImageMarks> {
        lock(&self.slots).get(&keyspace).map(|slots| slots.nodes().image_marks())
    }

    fn check(self: Arc<Self>, io: Io) -> Task<Result<CheckReport, Error>> {
        Box::pin(async move { super::check::check(&self, &io).await })
    }

    fn check_part(self: Arc<Self>, io: Io, from: CheckPlace) -> Task<Result<CheckPart, Error>> {
        Box::pin(async move { super::check::check_part(&self, &io, from).await })
    }

    fn move_on(&self) {
        if let Some(OrderedShared { state, .. }) = self.shared.get()
            && state.write_back.has_work()
        {
            state.write_back.advance(state, false);
        }
    }

    /// Writes dirty pages, and leaves a checkpoint of anchors. Maintenance has ended, so this also searches for slots.
    fn close(self: Arc<Self>, io: Io) -> Task<Result<(), Error>> {
        Box::pin(async move {
            let Some(OrderedShared { state, .. }) = self.shared.get() else { return Ok(()) };
            self.batches.close();
            // Pages of dropped keyspaces need no slots.
            for keyspace in self.dropped() {
                self.forget_pages(keyspace);
            }
            let (mut tries, mut looks) = (0, 0);
            loop {
                state.write_back.advance(state, true);
                self.base.log.poisoned()?;
                if state.write_back.has_ended() || !state.write_back.has_work() && state.write_back.close(state) {
                    return self.leave_checkpoint(&io, state).await;
                }
                let wanting: Vec<_> = lock(&self.slots).values().filter(|slots| slots.want_change()).cloned().collect();
                for slots in wanting.iter().filter(|slots| self.base.keyspaces.has(slots.keyspace())) {
                    tend(&self.base, &io, slots).await?;
                    self.tended(slots);
                }
                let looks_before = std::mem::replace(&mut looks, state.write_back.looks());
                tries = match state.write_back.is_starved() {
                    true => tries + u32::from(looks > looks_before),
                    false => 0,
                };
                if tries > CLOSE_TRIES {
                    return Err(Error::FullFlash);
                }
                // The images complete in another queue.
                io.pause().await;
            }
        })
    }
}
