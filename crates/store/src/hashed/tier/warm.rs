//! Warming: items that were hot before the store was opened come from flash into the DRAM tier.
//!
//! ```text
//! hash keys ─ sorted ─► index ─► segment and page, sorted ─► one read a page ─► records with these hash keys ─► tier
//! ```
//! Invariant: an item is put in as flash has it. Its key is seen in its shard, then in the index, and its record is read and found valid; under the
//! shard's lock it is put in if it was not written since, by the rule of every other fill of the tier. So a list may be arbitrarily old or wrong:
//! items that no longer exist are passed over.
//!
//! Few reads are on their way at once, so that a get hardly waits for them. Threads: one at a time; whoever owns a
//! [`Warming`] steps it.

use crate::hashed::HashedEngine;
use crate::hashed::buffer::Seen;
use crate::hashed::segment::view::Segment;
use crate::hashed::session::KeyDigest;
use crate::hashed::tier::{Fit, Tier};
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tapetum_base::error::Error;
use tapetum_base::media::io::{Io, Task, lock, poll_once};
use tapetum_base::media::transfer::Transfer;
use tapetum_base::request::item::ItemHead;
use tapetum_drive::{LocalBuffer, OfProcess, Purpose, fail_point};
use tapetum_kernels::codec::Decompressor;
use tapetum_kernels::data_page::{Corrupt, FoundRecord, PageRun};
use tapetum_kernels::hash::HashKey;
use tapetum_kernels::record::Record;

/// Reads on their way at once.
const READS_MAX: usize = 8;
/// Keys whose pages are looked up together: enough for several in a page, few enough that little changes meanwhile.
const KEYS_PER_PLAN: usize = 16 << 10;
/// How often a key is looked for that flush or collector moved meanwhile.
const PLANS_PER_KEY: usize = 3;

/// Results for the keys so far.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Warmed {
    /// Items that were put into DRAM.
    pub put: u64,
    /// Items that were there already, in the tier or in a write buffer, from which they will come into the tier.
    pub there: u64,
    /// Keys that flash does not have any more, or not as the newest, or not in a form for the tier.
    pub gone: u64,
    /// Items for which others would have had to be evicted.
    pub no_room: u64,
    /// Keys whose page could not be read.
    pub unreadable: u64,
}

impl Warmed {
    /// Keys that were looked at.
    pub fn keys(&self) -> u64 {
        self.put + self.there + self.gone + self.no_room + self.unreadable
    }
}

impl std::ops::Add for Warmed {
    type Output = Warmed;

    fn add(self, other: Warmed) -> Warmed {
        Warmed {
            put: self.put + other.put,
            there: self.there + other.there,
            gone: self.gone + other.gone,
            no_room: self.no_room + other.no_room,
            unreadable: self.unreadable + other.unreadable,
        }
    }
}

/// A warming under way. When it is dropped, it ends where it is.
pub struct Warming {
    // Dropped in this order: reads in flight go to `io`, which waits for the drive.
    task: OfProcess<Option<Task<()>>>,
    io: Io,
    warmed: Arc<Mutex<Warmed>>,
}

impl HashedEngine {
    /// Shows `visit` the items in DRAM that are worth warming it with after a restart: see `Store::hot_keys`.
    pub fn hot_keys(&self, mut visit: impl FnMut(&[KeyDigest]) -> ControlFlow<()>) {
        let Some(tier) = &self.tier else { return };
        let mut digests = Vec::new();
        let mut show = |hashes: &[HashKey]| {
            digests.clear();
            digests.extend(hashes.iter().map(|hash| KeyDigest(hash.0)));
            visit(&digests)
        };
        if self.hot_keys_of_buffers(&mut show).is_continue() {
            tier.hot(show);
        }
    }

    /// The items that the tier will get when the write buffers are on flash.
    fn hot_keys_of_buffers(&self, show: &mut impl FnMut(&[HashKey]) -> ControlFlow<()>) -> ControlFlow<()> {
        let (mut wanted, mut hashes) = (Vec::new(), Vec::new());
        for shard in self.buffers.shards() {
            hashes.clear();
            {
                let shard = lock(shard);
                for buffer in shard.oldest()..=shard.active() {
                    shard.wanted(buffer, &mut wanted);
                    hashes.extend(wanted.iter().map(|(hash, _)| *hash));
                }
            }
            show(&hashes)?;
        }
        ControlFlow::Continue(())
    }
}

impl Warming {
    /// Begins to put the items with these hash keys into DRAM.
    pub(crate) fn begin(engine: &Arc<HashedEngine>, keys: Vec<KeyDigest>) -> Result<Warming, Error> {
        let queue = engine.drive.queue_pair(READS_MAX as u32).map_err(|error| Error::Io(error.to_string()))?;
        let io = Io::new(queue).of(Purpose::Warm);
        let decompressor = Decompressor::new().map_err(|error| Error::Io(error.to_string()))?;
        let warmed = Arc::new(Mutex::new(Warmed::default()));
        let warmer = Warmer {
            engine: engine.clone(),
            decompressor,
            io: io.clone(),
            reads: VecDeque::new(),
            moved: Vec::new(),
            warmed: warmed.clone(),
            key: Vec::new(),
            stored: Vec::new(),
            value: Vec::new(),
        };
        let task: Task<()> = Box::pin(warmer.warm(keys.into_iter().map(|key| HashKey(key.0)).collect()));
        Ok(Warming { task: OfProcess::new(Some(task)), io, warmed })
    }

    /// A bounded step; whether it was the last.
    pub fn step(&mut self) -> bool {
        if !self.task.is_here() {
            // A forked child does nothing.
            return true;
        }
        self.io.pump();
        if self.task.as_mut().and_then(poll_once).is_some() {
            *self.task = None;
        }
        self.task.is_none()
    }

    /// Waits until a step may get further.
    pub fn wait(&self) {
        if !self.task.is_here() {
            return;
        }
        self.io.wait(Duration::from_millis(10));
    }

    /// Whether it waits for memory, which others give back, rather than for the drive.
    pub fn waits_for_memory(&self) -> bool {
        self.task.is_here() && self.task.is_some() && self.io.in_flight() == 0
    }

    pub fn warmed(&self) -> Warmed {
        *lock(&self.warmed)
    }
}

/// A key that is to be read, and its state in its shard.
struct WarmWanted {
    hash: HashKey,
    seen: Seen,
}

/// The records that start in a page, on their way.
struct WarmRead {
    segment: Arc<Segment>,
    page: u32,
    span_bytes: u32,
    /// In the order of their hash keys.
    wanted: Vec<WarmWanted>,
}

/// The possible place of a hash key's record.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Start {
    segment: u32,
    page: u32,
    hash: HashKey,
}

struct Warmer {
    engine: Arc<HashedEngine>,
    decompressor: Decompressor,
    io: Io,
    /// In the order in which they were sent.
    reads: VecDeque<(WarmRead, Transfer)>,
    /// Keys that were not found at their planned places.
    moved: Vec<HashKey>,
    warmed: Arc<Mutex<Warmed>>,
    key: Vec<u8>,
    stored: Vec<u8>,
    value: Vec<u8>,
}

impl Warmer {
    async fn warm(mut self, mut keys: Vec<HashKey>) {
        keys.sort_unstable();
        keys.dedup();
        let mut looked_at = 0;
        for keys in keys.chunks(KEYS_PER_PLAN) {
            let before = *lock(&self.warmed);
            self.read(keys).await;
            for _ in 1..PLANS_PER_KEY {
                let mut moved = std::mem::take(&mut self.moved);
                moved.sort_unstable();
                moved.dedup();
                self.read(&moved).await;
            }
            self.moved.clear();
            looked_at += keys.len() as u64;
            let mut warmed = lock(&self.warmed);
            warmed.gone += looked_at.saturating_sub(warmed.keys());
            if warmed.put == before.put && warmed.no_room > before.no_room {
                return;
            }
        }
    }

    /// Reads keys from where the index has them now.
    async fn read(&mut self, keys: &[HashKey]) {
        let starts = self.plan(keys);
        for of_page in starts.chunk_by(|a, b| (a.segment, a.page) == (b.segment, b.page)) {
            while !self.has_room() {
                self.take_next().await;
            }
            self.start(of_page).await;
        }
        while !self.reads.is_empty() {
            self.take_next().await;
        }
    }

    fn tier(&self) -> Option<&Tier> {
        self.engine.tier.as_ref()
    }

    /// The places of the keys that are not in the tier yet, in the order of flash. Only a hint: they may change.
    fn plan(&mut self, keys: &[HashKey]) -> Vec<Start> {
        if self.tier().is_none() {
            return Vec::new();
        }
        let mut starts = Vec::with_capacity(keys.len());
        for &hash in keys {
            if self.tier().is_some_and(|tier| tier.has(hash)) || self.wants(hash) {
                lock(&self.warmed).there += 1;
            } else if let Some(found) = self.engine.candidate(hash) {
                let segment = found.descriptor.number;
                starts.extend(found.start_pages(hash).map(|page| Start { segment, page, hash }));
            }
        }
        starts.sort_unstable();
        starts
    }

    /// Whether a key's item is in a write buffer; then the tier is to get it when it is on flash.
    fn wants(&mut self, hash: HashKey) -> bool {
        let engine = self.engine.clone();
        let mut shard = engine.buffers.shard(hash);
        let Some(at) = shard.get(hash) else { return false };
        // SAFETY: the shard names the place, and we hold it.
        let record = unsafe { engine.log.record(at.buffer, at.place) };
        if !record.header.holds_value() {
            return false;
        }
        shard.want(hash);
        // The flush may already have passed this key while giving wanted items to the tier.
        if shard.is_giving(at) && self.decompressor.inflate(&record, &mut self.value).is_ok() {
            self.keep(hash, ItemHead::of(&record.header));
        }
        true
    }

    /// Whether one more read may be on its way: the first always, more while half of local memory is free.
    fn has_room(&self) -> bool {
        let local = self.engine.drive.local();
        let reads = self.reads.len();
        reads == 0 || (reads < READS_MAX && local.bytes_used() < local.bytes_total() / 2)
    }

    /// Reads a page for the keys that still lead there.
    async fn start(&mut self, starts: &[Start]) {
        let mut read: Option<(Arc<Segment>, Vec<WarmWanted>)> = None;
        for start in starts {
            let Some((seen, segment)) = self.look(start) else {
                self.moved.push(start.hash);
                continue;
            };
            let (held, wanted) = read.get_or_insert_with(|| (segment.clone(), Vec::new()));
            if Arc::ptr_eq(held, &segment) {
                wanted.push(WarmWanted { hash: start.hash, seen });
            } else {
                self.moved.push(start.hash);
            }
        }
        let (Some((segment, wanted)), Some(Start { page, .. })) = (read, starts.first()) else { return };
        let span_bytes = segment.span_bytes(*page);
        let Ok(buffer) = self.io.allocate(span_bytes as usize).await else {
            lock(&self.warmed).unreadable += wanted.len() as u64;
            return;
        };
        let transfer = Transfer::read(&self.io, buffer, 0, segment.data_runs(*page, span_bytes));
        self.reads.push_back((WarmRead { segment, page: *page, span_bytes, wanted }, transfer));
    }

    /// The state of a key, if it is on flash and nowhere else, and may still start at its planned place.
    fn look(&self, start: &Start) -> Option<(Seen, Arc<Segment>)> {
        let engine = &*self.engine;
        let sequence = engine.segments.sequence();
        let seen = {
            let shard = engine.buffers.shard(start.hash);
            shard.get(start.hash).is_none().then(|| shard.see_absent())?
        };
        let number = engine.index.lookup(start.hash).filter(|number| *number == start.segment)?;
        let segment = engine.segments.hold(number, sequence)?;
        segment.start_pages(start.hash).contains(&start.page).then_some((seen, segment))
    }

    async fn take_next(&mut self) {
        let Some((read, transfer)) = self.reads.pop_front() else { return };
        let (buffer, result) = transfer.end("read of a page").await;
        let taken = result.is_ok() && self.take(&read, &buffer).is_ok();
        if !taken {
            // A request for the item reports the error; here it is only left out.
            lock(&self.warmed).unreadable += read.wanted.len() as u64;
        }
    }

    /// Puts the wanted records of a page into the tier.
    fn take(&mut self, read: &WarmRead, buffer: &LocalBuffer) -> Result<(), Corrupt> {
        let bytes = self.io.look(buffer, 0..read.span_bytes as usize);
        let run = PageRun { bytes, first_page: read.page, page_size: read.segment.page_size() };
        for record in run.starting(read.segment.salt)?.collect::<Result<Vec<FoundRecord>, Corrupt>>()? {
            self.key.resize(record.header.key_bytes as usize, 0);
            run.copy(record.key_address(), &mut self.key);
            let hash = self.engine.hasher.hash_of(&record.header, &self.key);
            let Ok(at) = read.wanted.binary_search_by_key(&hash, |wanted| wanted.hash) else { continue };
            let has_item = record.header.holds_value() && self.engine.is_live(&record.header, self.engine.now_ms());
            if has_item && read.segment.is_valid(record.entry) {
                self.read_value(run, &record)?;
                self.put(&read.wanted[at], ItemHead::of(&record.header));
            } else if has_item {
                self.moved.push(hash);
            }
        }
        Ok(())
    }

    fn read_value(&mut self, run: PageRun<'_>, found: &FoundRecord) -> Result<(), Corrupt> {
        self.stored.resize(found.header.stored_bytes as usize, 0);
        run.copy(found.stored_address(), &mut self.stored);
        let record = Record { header: found.header, key: &self.key, stored: &self.stored };
        self.decompressor.inflate(&record, &mut self.value).map_err(|_| Corrupt)
    }

    fn put(&mut self, wanted: &WarmWanted, item: ItemHead) {
        let engine = self.engine.clone();
        let shard = engine.buffers.shard(wanted.hash);
        if !shard.is_on_flash_as(wanted.hash, wanted.seen) && !fail_point!(TierWarmsLate) {
            self.moved.push(wanted.hash);
            return;
        }
        let Some(fit) = self.keep(wanted.hash, item) else { return };
        drop(shard);
        let mut warmed = lock(&self.warmed);
        match fit {
            Fit::Put => warmed.put += 1,
            Fit::There => warmed.there += 1,
            Fit::NoRoom => warmed.no_room += 1,
        }
    }

    /// Puts the value that was read into the tier. The caller holds the lock of the key's shard.
    fn keep(&self, hash: HashKey, item: ItemHead) -> Option<Fit> {
        // It is not known any more whether it was read since it was written.
        let (now, access) = (self.engine.access_clock.seconds(), self.engine.access_by_stamp(false, item.stamp));
        Some(self.tier()?.put_back(hash, now, item, &self.value, access))
    }
}
