//! The mirror cache: pages of data nodes in local memory, and their metadata on the host, slot for slot.
//!
//! ```text
//!            ┌──────── in ─────────┐ take        ┌───── taken ─────┐
//! absent ──► │ buffer, metadata    │ ──────────► │ metadata        │   buffer: with a command, or the taker
//!   install, └─────────────────────┘ ◄────────── └─────────────────┘
//!   reserve     clean ─► evicted       give back         discard ─► absent
//! ```
//! A node's page is in one of the [`WAYS`] places of its set. A thread that works on a page takes its buffer out. Everybody else finds the page
//! *taken* until it is back; nobody queues at a page.
//!
//! 1. A node's page is in the cache once or not at all. A page that differs from the image in the node's home stays until it does not.
//! 2. A page is taken only while commands run that need no flash: the taker gives it back before returning to its caller. So a thread that finds it
//!    taken retries at once.
//! 3. A page that was read is installed if the node was not cached meanwhile and still has the home that was read. So an installed page is the
//!    node's present content.
//! 4. The metadata of a taken page may change too: its image becomes durable.
//! 5. Pages read by long scans are evicted before pages read by key or by short scans: the hand evicts a page that was not used since it passed
//!    last, and long scans do not count as use.
//!
//! Threads: any. A set has a lock, held only briefly. The locks of the node table and the slots are taken under it, no others.

pub mod durability_ticket;
pub mod page_meta;
mod spare_pages;
#[cfg(test)]
mod tests;

use super::node_table::{NodeHome, NodeId, NodeTable};
use page_meta::{PageMeta, PageUse};
use spare_pages::SparePages;
use std::collections::BTreeSet;
use std::sync::Mutex;
use tapetum_base::error::Error;
use tapetum_base::media::io::lock;
use tapetum_drive::{LocalBuffer, LocalMemory};
use tapetum_kernels::ordered::NODE_BYTES;

/// Places of a set.
pub const WAYS: usize = 8;
const NO_NODE: u32 = u32::MAX;

struct CachePlace {
    /// `None` while the page is taken.
    buffer: Option<LocalBuffer>,
    meta: PageMeta,
}

struct CacheSet {
    /// The node in each place.
    nodes: [u32; WAYS],
    places: [CachePlace; WAYS],
    /// The place at which the search for the next page to evict begins.
    hand: usize,
    hits: u64,
    misses: u64,
}

impl CacheSet {
    fn find(&self, node: NodeId) -> Option<usize> {
        self.nodes.iter().position(|other| *other == node.0)
    }

    /// Whether a page may be evicted for another one.
    fn may_go(place: &CachePlace) -> bool {
        place.buffer.is_some() && place.meta.is_clean()
    }

    fn has_room(&self) -> bool {
        self.nodes.contains(&NO_NODE) || self.places.iter().any(CacheSet::may_go)
    }

    /// Finds a place for another node's page: an empty one, or one whose clean page it evicts.
    fn make_room(&mut self) -> Option<usize> {
        if let Some(free) = self.nodes.iter().position(|node| *node == NO_NODE) {
            return Some(free);
        }
        if !self.has_room() {
            return None;
        }
        loop {
            let at = self.hand;
            self.hand = (self.hand + 1) % WAYS;
            let place = &mut self.places[at];
            if CacheSet::may_go(place) && !place.meta.cool() {
                return Some(at);
            }
        }
    }
}

/// The result of a request for a node's page.
pub enum PageLook {
    /// The page, which is the caller's until it is given back.
    Taken(LocalBuffer),
    /// Somebody has the page, for a short time.
    Busy,
    /// The page must be read from this home.
    Absent(NodeHome),
    /// The node does not exist, or belongs to another keyspace.
    Gone,
    /// A change of the page failed half-way, so what it holds is unknown.
    Lost,
}

/// The error of [`PageLook::Lost`].
pub fn lost(node: NodeId) -> Error {
    Error::Poisoned(format!("a change of data node {} failed half-way", node.0))
}

/// See [`MirrorCache::clean_home`].
pub enum CleanHome {
    /// The node is what its image here is.
    Image(NodeHome),
    /// The node's page differs from its image.
    Changed,
    /// The node has no page and no image, or does not exist, or belongs to another keyspace.
    None,
}

/// The result of installing a page that was read. Each variant returns a buffer.
pub enum Installed {
    /// The page is in the cache. The buffer is a replacement for it.
    Done(LocalBuffer),
    /// The page is the node's present content, but all pages in its set must be written first.
    NoRoom(LocalBuffer),
    /// The page is outdated, or the node is cached.
    Stale(LocalBuffer),
}

/// See [`MirrorCache::counts`].
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CacheCounts {
    pub pages: u64,
    /// Pages that differ from flash.
    pub dirty: u64,
    pub hits: u64,
    pub misses: u64,
}

pub struct MirrorCache {
    sets: Box<[Mutex<CacheSet>]>,
    pub table: NodeTable,
    pub spare_pages: SparePages,
}

impl MirrorCache {
    /// A cache of `pages` pages, rounded up to sets, over a table of at most `nodes_max` nodes.
    ///
    /// # Errors
    /// When local memory has no room for them.
    pub fn new(local: &LocalMemory, pages: usize, nodes_max: u32) -> Result<MirrorCache, Error> {
        let place = || {
            let buffer = local.allocate(NODE_BYTES).ok_or_else(|| {
                Error::Options(format!(
                    "the memory for {pages} cached pages is not to be had: give the store more memory"
                ))
            })?;
            Ok(CachePlace { buffer: Some(buffer), meta: PageMeta::default() })
        };
        let mut sets = Vec::new();
        for _ in 0..pages.div_ceil(WAYS).max(1) {
            let places: Vec<CachePlace> = (0..WAYS).map(|_| place()).collect::<Result<_, Error>>()?;
            let Ok(places) = places.try_into() else { unreachable!("there are {WAYS}") };
            sets.push(Mutex::new(CacheSet { nodes: [NO_NODE; WAYS], places, hand: 0, hits: 0, misses: 0 }));
        }
        Ok(MirrorCache { sets: sets.into(), table: NodeTable::new(nodes_max), spare_pages: SparePages::new(local) })
    }

    /// The cache's size, and its hits and misses. Visits each set.
    pub fn counts(&self) -> CacheCounts {
        let mut counts = CacheCounts { pages: self.pages() as u64, ..CacheCounts::default() };
        for set in &self.sets {
            let set = lock(set);
            counts.hits += set.hits;
            counts.misses += set.misses;
            let is_dirty = |at: &usize| set.nodes[*at] != NO_NODE && !set.places[*at].meta.is_clean();
            counts.dirty += (0..WAYS).filter(is_dirty).count() as u64;
        }
        counts
    }

    pub fn pages(&self) -> usize {
        self.sets.len() * WAYS
    }

    /// The number of a node's set.
    pub fn set_of(&self, node: NodeId) -> usize {
        let hash = u64::from(node.0).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        ((hash * self.sets.len() as u64) >> 32) as usize
    }

    fn set(&self, node: NodeId) -> &Mutex<CacheSet> {
        &self.sets[self.set_of(node)]
    }

    /// Whether the pages of two nodes belong to one set.
    pub fn are_of_one_set(&self, one: NodeId, other: NodeId) -> bool {
        self.set_of(one) == self.set_of(other)
    }

    /// Takes a node's page.
    pub fn take(&self, node: NodeId, keyspace: u16, used: PageUse) -> PageLook {
        let mut set = lock(self.set(node));
        let Some(at) = set.find(node) else {
            let home = self.table.home(node);
            set.misses += u64::from(home.is_some());
            return home.map_or(PageLook::Gone, PageLook::Absent);
        };
        set.hits += u64::from(used != PageUse::Again && set.places[at].buffer.is_some());
        let place = &mut set.places[at];
        if place.meta.keyspace != keyspace {
            return PageLook::Gone;
        }
        if place.meta.is_lost {
            return PageLook::Lost;
        }
        match place.buffer.take() {
            Some(buffer) => {
                place.meta.used(used);
                PageLook::Taken(buffer)
            }
            None => PageLook::Busy,
        }
    }

    /// Takes a page if it is not lost and `may` accepts its metadata.
    pub fn take_if(&self, node: NodeId, may: impl FnOnce(&mut PageMeta) -> bool) -> PageLook {
        let mut set = lock(self.set(node));
        let Some(at) = set.find(node) else { return PageLook::Gone };
        let CachePlace { buffer, meta } = &mut set.places[at];
        if buffer.is_none() {
            return PageLook::Busy;
        }
        match buffer.take_if(|_| !meta.is_lost && may(meta)) {
            Some(buffer) => PageLook::Taken(buffer),
            None => PageLook::Gone,
        }
    }

    /// Gives a page back; `tell` updates its metadata.
    pub fn give_back<T>(&self, node: NodeId, buffer: LocalBuffer, tell: impl FnOnce(&mut PageMeta) -> T) -> T {
        debug_assert_eq!(buffer.len(), NODE_BYTES, "the buffer of a page");
        let mut set = lock(self.set(node));
        let at = set.find(node).expect("a page that is taken stays");
        let place = &mut set.places[at];
        let told = tell(&mut place.meta);
        assert!(place.buffer.replace(buffer).is_none(), "a page is given back once");
        told
    }

    /// Accesses the metadata of a page, taken or not.
    pub fn with<T>(&self, node: NodeId, look: impl FnOnce(&mut PageMeta) -> T) -> Option<T> {
        let mut set = lock(self.set(node));
        let at = set.find(node)?;
        Some(look(&mut set.places[at].meta))
    }

    /// The image of a node with this stamp, in this slot, was written, and nobody waits for its durability: it becomes the node's home.
    pub fn moved(&self, node: NodeId, home: NodeHome) {
        let mut set = lock(self.set(node));
        let at = set.find(node).expect("a page that is being written stays");
        let flying = set.places[at].meta.flying.as_mut().expect("it has an image on its way");
        assert_eq!(flying.stamp, home.stamp, "one image is written at a time");
        flying.is_home = true;
        self.table.set(node, home);
    }

    /// The image of a node with this stamp, in this slot, is durable. If it is the page's newest one, calls `tell`.
    pub fn landed(&self, node: NodeId, home: NodeHome, tell: impl FnOnce(&mut PageMeta)) {
        let mut set = lock(self.set(node));
        // A page whose image was its home already may be evicted, or have another image in flight.
        let Some(at) = set.find(node) else { return };
        let meta = &mut set.places[at].meta;
        let Some(flying) = meta.flying.take_if(|image| image.stamp == home.stamp) else { return };
        if !flying.is_home {
            self.table.set(node, home);
        }
        meta.durable_stamp = home.stamp;
        tell(meta);
    }

    /// Takes a place for the page of a new node. The caller gives it back or discards it. `None`: all pages in its set must be written first.
    pub fn reserve(&self, node: NodeId, keyspace: u16) -> Option<LocalBuffer> {
        let mut set = lock(self.set(node));
        debug_assert!(set.find(node).is_none(), "a new node is not cached");
        let at = set.make_room()?;
        set.nodes[at] = node.0;
        set.places[at].meta = PageMeta::new(keyspace, PageUse::ByKey);
        set.places[at].buffer.take()
    }

    /// Discards a taken page whose node no longer exists or never existed. Frees the node's id and returns the metadata.
    pub fn discard(&self, node: NodeId, buffer: LocalBuffer) -> PageMeta {
        let mut set = lock(self.set(node));
        let at = set.find(node).expect("a page that is taken stays");
        set.nodes[at] = NO_NODE;
        let place = &mut set.places[at];
        assert!(place.buffer.replace(buffer).is_none(), "a page is given back once");
        self.table.free(node);
        std::mem::take(&mut place.meta)
    }

    /// Frees the id of a removed node, if that is not cached.
    pub fn free_absent(&self, node: NodeId) {
        let set = lock(self.set(node));
        if set.find(node).is_none() && self.table.home(node).is_some() {
            self.table.free(node);
        }
    }

    /// Evicts all pages of a keyspace, dirty ones too, except those that somebody has or that are in flight to flash, whose nodes it returns. `left`
    /// is the result of the last call: it frees the ids of those nodes that were evicted since.
    pub fn forget(&self, keyspace: u16, left: &BTreeSet<NodeId>) -> BTreeSet<NodeId> {
        let mut left_now = BTreeSet::new();
        for (number, set) in self.sets.iter().enumerate() {
            let set = &mut *lock(set);
            let evicted = left.iter().filter(|node| self.set_of(**node) == number && set.find(**node).is_none());
            evicted.for_each(|node| self.table.free(*node));
            let CacheSet { nodes, places, .. } = set;
            for (node, place) in nodes.iter_mut().zip(places) {
                if *node == NO_NODE || place.meta.keyspace != keyspace {
                    continue;
                }
                if place.buffer.is_none() || place.meta.is_being_written() {
                    left_now.insert(NodeId(*node));
                    continue;
                }
                self.table.free(NodeId(*node));
                *node = NO_NODE;
                let meta = std::mem::take(&mut place.meta);
                meta.tickets.iter().for_each(|ticket| ticket.image_done());
            }
        }
        left_now
    }

    /// The home of a node that is not cached, from which its page must be read.
    pub fn absent_home(&self, node: NodeId) -> Option<NodeHome> {
        let set = lock(self.set(node));
        if set.find(node).is_some() { None } else { self.table.home(node) }
    }

    /// Whether a page that was read from this home is the node's present content, and not cached.
    pub fn is_current(&self, node: NodeId, home: NodeHome) -> bool {
        let set = lock(self.set(node));
        set.find(node).is_none() && self.table.home(node) == Some(home)
    }

    /// The home of a node of this keyspace, unless its page differs from the image there.
    pub fn clean_home(&self, node: NodeId, keyspace: u16) -> CleanHome {
        let set = lock(self.set(node));
        match set.find(node).map(|at| &set.places[at].meta) {
            Some(meta) if meta.keyspace != keyspace => CleanHome::None,
            Some(meta) if !meta.is_clean() => CleanHome::Changed,
            _ => self.table.home(node).map_or(CleanHome::None, CleanHome::Image),
        }
    }

    /// Whether a page that was read from this home can be installed now, or need not be installed any more.
    pub fn may_install(&self, node: NodeId, home: NodeHome) -> bool {
        let set = lock(self.set(node));
        set.has_room() || set.find(node).is_some() || self.table.home(node) != Some(home)
    }

    /// Installs a page that was read from this home.
    pub fn install(&self, node: NodeId, home: NodeHome, mut buffer: LocalBuffer, meta: PageMeta) -> Installed {
        debug_assert_eq!(buffer.len(), NODE_BYTES, "the buffer of a page");
        let mut set = lock(self.set(node));
        if set.find(node).is_some() || self.table.home(node) != Some(home) {
            return Installed::Stale(buffer);
        }
        let Some(at) = set.make_room() else { return Installed::NoRoom(buffer) };
        set.nodes[at] = node.0;
        let place = &mut set.places[at];
        place.meta = PageMeta { slot: Some(home.slot), durable_stamp: home.stamp, ..meta };
        let old = place.buffer.as_mut().expect("a page that may go is in its place");
        std::mem::swap(old, &mut buffer);
        Installed::Done(buffer)
    }
}
