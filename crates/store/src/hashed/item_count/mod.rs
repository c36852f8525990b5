//! How many items there are: an upper bound at any time, and the number itself when nothing has been written for a while.
//!
//! The index counts keys, and among them those whose items have expired, and those that the write buffer has written over or deleted.
//! Records and key tables tell them apart. A count goes through these while nothing is written: segments in which something
//! may have expired, each once until its next record expires, and then the keys of the write buffer.
//!
//! Invariants:
//! 1. Only a write makes an item, and every write has a stamp: a count, and one item for each stamp since, is an upper bound.
//! 2. A count holds for the stamp that it began with. It is given up when a write, an install or a sealed buffer comes between.
//! 3. It gives way after each [`STEP_BYTES`], and rests after each [`REST_BYTES`].
//!
//! Threads: maintenance counts, anyone asks.

pub mod by_keyspace;
#[cfg(test)]
mod by_keyspace_tests;

use crate::hashed::HashedEngine;
use crate::hashed::collect::victim::VictimCursor;
use crate::hashed::flush::key_check::{Checked, Relied, check_keys};
use crate::hashed::item_count::by_keyspace::KeyspaceItems;
use crate::hashed::segment::lapsed::{Entries, is_set};
use crate::hashed::segment::view::Segment;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use tapetum_base::error::Error;
use tapetum_base::media::io::{Io, lock};
use tapetum_kernels::hash::HashKey;
use tapetum_kernels::record::Kind;

const QUIET_US: u64 = 5_000_000; // without a write, before a count begins
const LOOK_EVERY_US: u64 = 500_000;
const PAUSE_US_MIN: u64 = 10_000_000; // between counts
const PAUSE_TIMES: u64 = 10; // times as long as the last count took: counting takes at most a tenth of the time
const STEP_BYTES: u64 = 128 << 10;
const REST_BYTES: u64 = 1 << 20;
const REST_US: u64 = 10_000;
/// Keys looked up at once, and what looking one up counts for: keys of a batch share pages of key tables.
const KEYS_AT_ONCE: usize = 256;
const KEY_BYTES: u64 = 512;

#[derive(Default)]
pub struct ItemCount {
    last: Mutex<Option<Counted>>,
    rests: AtomicBool,
    pub by_keyspace: KeyspaceItems,
}

#[derive(Clone, Copy)]
struct Counted {
    items: u64,
    stamp: u64,
    /// When the first of them is gone, in whole unix seconds, so that many that go within one are counted together; `u32::MAX` for never.
    expires_next: u32,
}

impl ItemCount {
    /// Whether a count is under way and pauses.
    pub fn rests(&self) -> bool {
        self.rests.load(Ordering::Relaxed)
    }
}

impl HashedEngine {
    /// Items, at most.
    pub fn items_max(&self, index_entries: u64, buffer_entries: u64) -> u64 {
        let keys = (index_entries + buffer_entries)
            .saturating_sub(self.lapsed_with_their_segments() + self.lapsed_in_buffers());
        let Some(counted) = *lock(&self.item_count.last) else { return keys };
        keys.min(counted.items + self.log.stamp_last().saturating_sub(counted.stamp))
    }

    /// Keys on flash whose items have all expired, or are deleted with everything else, by what their segments say.
    fn lapsed_with_their_segments(&self) -> u64 {
        let segments = self.segments.numbers().filter_map(|number| self.segments.get(number));
        segments
            .filter(|segment| !self.may_hold_live(&segment.descriptor))
            .map(|segment| u64::from(segment.valid_entries()))
            .sum()
    }

    /// Discards the last count, because items went without a stamp.
    pub fn forget_count(&self) {
        *lock(&self.item_count.last) = None;
    }

    fn is_count_due(&self, stamp: u64) -> bool {
        lock(&self.item_count.last).is_none_or(|last| last.stamp != stamp || last.expires_next <= self.now())
    }
}

/// When the next count is due.
#[derive(Default)]
pub struct CountPace {
    look_at_us: u64,
    /// No write since then has a later stamp than this.
    stamp: u64,
    quiet_since_us: u64,
    began_us: u64,
    not_before_us: u64,
}

impl CountPace {
    pub fn is_due(&mut self, engine: &HashedEngine, now_us: u64) -> bool {
        if now_us < self.look_at_us {
            return false;
        }
        self.look_at_us = now_us + LOOK_EVERY_US;
        let stamp = engine.log.stamp_last();
        if stamp != self.stamp {
            (self.stamp, self.quiet_since_us) = (stamp, now_us);
        }
        let is_quiet = now_us >= self.quiet_since_us + QUIET_US;
        is_quiet && now_us >= self.not_before_us && engine.is_count_due(stamp)
    }

    pub fn begin(&mut self, now_us: u64) {
        self.began_us = now_us;
    }

    pub fn end(&mut self, now_us: u64) {
        let took_us = now_us.saturating_sub(self.began_us);
        self.not_before_us = now_us + (took_us * PAUSE_TIMES).max(PAUSE_US_MIN);
    }
}

pub async fn count(engine: Arc<HashedEngine>, io: Io) {
    let (stamp, sequence) = (engine.log.stamp_last(), engine.segments.sequence());
    let lapsed = BTreeMap::new();
    let mut turn = CountTurn {
        engine,
        io,
        stamp,
        sequence,
        lapsed,
        expires_next: u32::MAX,
        since_step_bytes: 0,
        since_rest_bytes: 0,
    };
    // A count that was overtaken gives no result.
    let _ = turn.run().await;
}

/// Something came between.
struct Overtaken;

/// The expired part of a segment.
enum LapsedPart {
    All,
    Some(Entries),
}

struct CountTurn {
    engine: Arc<HashedEngine>,
    io: Io,
    stamp: u64,
    sequence: u64,
    /// By segment number; those without any are left out.
    lapsed: BTreeMap<u32, LapsedPart>,
    expires_next: u32,
    since_step_bytes: u64,
    since_rest_bytes: u64,
}

impl CountTurn {
    async fn run(&mut self) -> Result<(), Overtaken> {
        let lapsed = self.segments().await?;
        let mut items = (self.engine.index.entries() as u64).saturating_sub(lapsed);
        for number in 0..self.engine.buffers.shards().len() {
            let (live, on_flash) = self.shard(number).await?;
            items = (items + live).saturating_sub(on_flash);
        }
        self.check()?;
        let counted = Counted { items, stamp: self.stamp, expires_next: self.expires_next };
        *lock(&self.engine.item_count.last) = Some(counted);
        Ok(())
    }

    fn check(&self) -> Result<(), Overtaken> {
        if is_overtaken(&self.engine, self.stamp, self.sequence) { Err(Overtaken) } else { Ok(()) }
    }

    /// Yields now and then, after work that counts for `bytes`.
    async fn worked(&mut self, bytes: u64) -> Result<(), Overtaken> {
        self.since_step_bytes += bytes;
        self.since_rest_bytes += bytes;
        if self.since_rest_bytes >= REST_BYTES {
            (self.since_step_bytes, self.since_rest_bytes) = (0, 0);
            self.rest().await;
        } else if self.since_step_bytes >= STEP_BYTES {
            self.since_step_bytes = 0;
            self.io.step().await;
        } else {
            return Ok(());
        }
        self.check()
    }

    async fn rest(&self) {
        let (engine, stamp, sequence) = (&self.engine, self.stamp, self.sequence);
        let until_us = engine.drive.env().now_us() + REST_US;
        engine.item_count.rests.store(true, Ordering::Relaxed);
        std::future::poll_fn(|_| {
            let over = engine.drive.env().now_us() >= until_us || is_overtaken(engine, stamp, sequence);
            if over { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        engine.item_count.rests.store(false, Ordering::Relaxed);
    }

    /// Valid records on flash that have expired or are deleted with everything else.
    async fn segments(&mut self) -> Result<u64, Overtaken> {
        let mut sum = 0;
        for number in self.engine.segments.numbers() {
            let Some(segment) = self.engine.segments.get(number) else { continue };
            if !self.engine.may_hold_live(&segment.descriptor) {
                sum += u64::from(segment.valid_entries());
                self.lapsed.insert(number, LapsedPart::All);
            } else if segment.descriptor.may_expire() {
                if segment.lapsed.look_at() <= self.engine.now() {
                    self.look(&segment).await?;
                }
                self.expires_next = self.expires_next.min(segment.lapsed.look_at());
                if let Some(entries) = segment.lapsed.entries() {
                    sum += u64::from(segment.valid_among(&entries));
                    self.lapsed.insert(number, LapsedPart::Some(entries));
                }
            }
            self.worked(segment.descriptor.entries.into()).await?;
        }
        Ok(sum)
    }

    /// Reads a segment and notes its expired records with it. A segment that cannot be read counts as live from then on.
    async fn look(&mut self, segment: &Arc<Segment>) -> Result<(), Overtaken> {
        match self.read(segment).await {
            Ok(read) => read,
            Err(_) => {
                segment.lapsed.note(u32::MAX, None);
                Ok(())
            }
        }
    }

    async fn read(&mut self, segment: &Arc<Segment>) -> Result<Result<(), Overtaken>, Error> {
        let Some(valid) = segment.validity() else { return Ok(Ok(())) };
        let now_ms = self.engine.now_ms();
        let (mut look_at, mut any) = (u32::MAX, false);
        let mut words = vec![0; segment.descriptor.entries.div_ceil(64) as usize];
        let (local, hasher) = (self.engine.drive.local().clone(), self.engine.hasher.clone());
        let mut cursor = VictimCursor::new(segment.clone(), &self.io, &local, hasher).await?;
        cursor.advance(&valid).await?;
        while cursor.head().is_some() {
            let header = cursor.header();
            if !self.engine.is_live(&header, now_ms) {
                words[cursor.entry() as usize / 64] |= 1 << (cursor.entry() % 64);
                any = true;
            } else if !header.expiry.is_none() {
                look_at = look_at.min(header.expiry.secs());
            }
            if let Err(overtaken) = self.worked(header.record_bytes() as u64).await {
                return Ok(Err(overtaken));
            }
            cursor.advance(&valid).await?;
        }
        segment.lapsed.note(look_at, any.then(|| words.into()));
        Ok(Ok(()))
    }

    /// Counts a shard's keys in the write buffer: how many are live, and how many have a live record on flash too.
    async fn shard(&mut self, number: usize) -> Result<(u64, u64), Overtaken> {
        let (mut batch, mut checked) = (Vec::new(), Vec::new());
        let buffer = {
            let shard = lock(&self.engine.buffers.shards()[number]);
            shard.sorted(shard.active(), &mut batch);
            shard.active()
        };
        let (mut live, mut on_flash) = (0, 0);
        for keys in batch.chunks(KEYS_AT_ONCE) {
            live += self.live(number, buffer, keys)?;
            let done = check_keys(&self.engine, &self.io, &mut Relied::default(), keys, &mut checked).await;
            if done.is_ok() {
                on_flash += checked.iter().filter(|checked| self.is_live_on_flash(checked)).count() as u64;
            }
            self.worked(keys.len() as u64 * KEY_BYTES).await?;
        }
        Ok((live, on_flash))
    }

    /// How many of these keys of the active buffer are live.
    fn live(&mut self, number: usize, buffer: u64, keys: &[(HashKey, u32)]) -> Result<u64, Overtaken> {
        let (mut live, now_ms) = (0, self.engine.now_ms());
        let shard = lock(&self.engine.buffers.shards()[number]);
        if shard.active() != buffer {
            return Err(Overtaken);
        }
        for &(_, place) in keys {
            // SAFETY: the shard's table gave the place, of a buffer that is active while its lock is held.
            let header = unsafe { self.engine.log.record(buffer, place) }.header;
            if header.kind == Kind::Value && self.engine.is_live(&header, now_ms) {
                live += 1;
                if !header.expiry.is_none() {
                    self.expires_next = self.expires_next.min(header.expiry.secs());
                }
            }
        }
        Ok(live)
    }

    fn is_live_on_flash(&self, checked: &Checked) -> bool {
        let &Checked::Older { segment, entry, .. } = checked else { return false };
        match self.lapsed.get(&segment) {
            None => true,
            Some(LapsedPart::All) => false,
            Some(LapsedPart::Some(entries)) => !is_set(entries, entry),
        }
    }
}

fn is_overtaken(engine: &HashedEngine, stamp: u64, sequence: u64) -> bool {
    engine.log.stamp_last() != stamp || engine.segments.sequence() != sequence || engine.buffers.sealed().is_some()
}

#[cfg(test)]
mod tests;
