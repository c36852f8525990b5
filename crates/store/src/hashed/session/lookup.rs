//! Gets: gathered as they are submitted, looked up together, so that they wait for memory at the same time.
//!
//! ```text
//! gathered ─ DRAM tier ─ there ──────────────────────────────────► answer, or ask
//!    ▲          └ write buffers ─ there ──────────────────────────────► answer, or ask, or a large value to read
//!    ▲           └─ not there ─ index ─ a segment ─ fences ─ page ─► reading, or ask
//!    │                           │         └─ gone meanwhile ┐ └─ none ► missing
//!    │                           └─ nothing ─ written meanwhile? ─ no ► missing
//!    └───────────────────────────────────────────────────────┴─ yes
//! ```
//! Buffers come before the index, because a flush moves keys from there to here.

use super::large::{LargeOp, LargeRead};
use super::near::{NearItem, NearValue};
use super::{FlashRead, HashedMeans, HashedOp, HashedOpState, HashedSession};
use crate::hashed::HashedEngine;
use crate::hashed::buffer::{Seen, Shard};
use crate::hashed::segment::view::Segment;
use crate::hashed::tier::Copied;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::request::Outcome;
use tapetum_base::request::item::{Access, ItemHead};
use tapetum_base::session::order::Operations;
use tapetum_drive::fail_point;
use tapetum_kernels::block_group::group_hash;
use tapetum_kernels::hash::HashKey;
use tapetum_kernels::record::{Codec, Kind, Record};

/// Gets that are looked up together: enough to hide the memory's latency, few enough for the cache.
const BATCH: usize = 32;

/// Looks at a key in one call, if the segment found keeps vanishing before it can be held.
const LOOKS_MAX: usize = 1024;

/// A get whose key is in no write buffer.
pub(super) struct Miss {
    number: usize,
    op: Box<HashedOp>,
    seen: Seen,
}

impl HashedSession {
    /// Looks up the gathered gets until none is left. A get whose key an install keeps moving is left to the next call.
    pub fn look_up_gathered(&mut self, (core, engine): HashedMeans<'_>) {
        for _ in 0..LOOKS_MAX {
            if self.gathered.is_empty() {
                return;
            }
            let mut gathered = std::mem::take(&mut self.gathered);
            for numbers in gathered.chunks_mut(BATCH) {
                let left = self.answer_from_tier((core, engine), numbers);
                self.look_up((core, engine), &numbers[..left]);
            }
            gathered.clear();
            // Gets that must be looked up again were gathered meanwhile.
            gathered.append(&mut self.gathered);
            self.gathered = gathered;
        }
    }

    /// Answers gets from the DRAM tier. Gives how many it leaves, and puts these first.
    fn answer_from_tier(&mut self, (core, engine): HashedMeans<'_>, numbers: &mut [usize]) -> usize {
        let Some(tier) = &engine.tier else { return numbers.len() };
        let now = engine.access_clock.seconds();
        let hash_of = |ops: &Operations<HashedOpState>, number: usize| ops.get(number).map(|op| op.hash);
        numbers.iter().filter_map(|number| hash_of(&self.ops, *number)).for_each(|hash| tier.prefetch_bucket(hash));
        for hash in numbers.iter().filter_map(|number| hash_of(&self.ops, *number)) {
            tier.prefetch_slot(hash);
        }
        let mut left = 0;
        for at in 0..numbers.len() {
            let number = numbers[at];
            let mut op = self.ops.take(number);
            let values = core.values.current();
            let start = values.len();
            let found = tier.copy(op.hash, now, values).filter(|Copied { item: found, .. }| {
                fail_point!(TierForgetsDeletion) || engine.is_live_now(op.keyspace.id, found.stamp, found.expiry)
            });
            let Some(copied) = found else {
                values.truncate(start);
                self.ops.put(number, op);
                numbers[left] = number;
                left += 1;
                continue;
            };
            if !op.request.judge(Some(copied.item)) {
                values.truncate(start);
                self.begin_write((core, engine), number, op);
                continue;
            }
            if op.must_ask_for(copied.item.value_bytes) {
                values.truncate(start);
                self.ask(core, number, op, copied.item.value_bytes);
                continue;
            }
            if !op.request.is_unnoticed() {
                tier.note_use(op.hash, now, &copied);
            }
            self.note_hit(copied.item.value_bytes);
            if op.kept.near.is_some() {
                let values = core.values.current();
                let value = values.split_off(start);
                self.compute(
                    (core, engine),
                    number,
                    op,
                    NearItem { item: copied.item, shown_by: 0 },
                    NearValue::Host(value),
                );
                continue;
            }
            let value = core.values.range_from(start);
            core.answer(op.token, op.request.found(copied.item, || copied.access, value));
            self.forget(core, number, op);
        }
        left
    }

    fn look_up(&mut self, (core, engine): HashedMeans<'_>, numbers: &[usize]) {
        let sequence = engine.segments.sequence();
        for &number in numbers {
            if let Some(op) = self.ops.get(number) {
                engine.buffers.prefetch(op.hash);
            }
        }
        let mut hashes = [HashKey::default(); BATCH];
        let mut misses = std::mem::take(&mut self.misses);
        for &number in numbers {
            let op = self.ops.take(number);
            if let Some(miss) = self.look_into_buffers((core, engine), number, op) {
                hashes[misses.len()] = HashedEngine::flash_hash(miss.op.keyspace, miss.op.hash);
                misses.push(miss);
            }
        }
        let count = misses.len();
        let mut candidates = [None; BATCH];
        engine.index.lookup_batch(&hashes[..count], &mut candidates[..count]);
        let mut segments: [Option<Arc<Segment>>; BATCH] = [const { None }; BATCH];
        for place in 0..count {
            segments[place] = candidates[place].and_then(|number| engine.segments.hold(number, sequence));
            if let Some(segment) = &segments[place] {
                segment.prefetch(hashes[place]);
            }
        }
        let mut leader = None;
        for (place, miss) in misses.drain(..).enumerate() {
            let Some(miss) = self.follow(leader, miss) else { continue };
            leader = miss.op.keyspace.is_grouped().then_some(miss.number);
            match (segments[place].take(), candidates[place]) {
                (Some(segment), _) => self.read_candidate((core, engine), miss, segment, sequence),
                (None, None) => self.answer_missing((core, engine), miss),
                (None, Some(_)) => self.gather_again(miss.number, miss.op),
            }
        }
        self.misses = misses;
    }

    /// Lets a get of a block wait for its group, which is being read for `leader`. Gives any other get back.
    fn follow(&mut self, leader: Option<usize>, miss: Miss) -> Option<Miss> {
        let leads = |op: &&mut HashedOp| {
            let is_same = op.keyspace == miss.op.keyspace && group_hash(op.hash) == group_hash(miss.op.hash);
            is_same && op.kept.read.is_some() && miss.op.kept.near.is_none()
        };
        let Some(leading) = leader.and_then(|leader| self.ops.get_mut(leader)).filter(leads) else { return Some(miss) };
        leading.kept.followers.push((miss.number, miss.seen));
        self.ops.put(miss.number, miss.op);
        None
    }

    pub(super) fn gather_again(&mut self, number: usize, op: Box<HashedOp>) {
        self.ops.put(number, op);
        self.gathered.push(number);
    }

    /// A get has found a reason to write: it goes on as a write, before the later operations of its key.
    fn begin_write(&mut self, (core, engine): HashedMeans<'_>, number: usize, op: Box<HashedOp>) {
        if self.is_paced(engine, &op.request.borrow()) {
            engine.counters.writes_paced.fetch_add(1, Ordering::Relaxed);
            return self.ops.wait_again(number, op);
        }
        self.attempt_op((core, engine), number, op, None);
    }

    fn read_candidate(&mut self, (core, engine): HashedMeans<'_>, miss: Miss, segment: Arc<Segment>, sequence: u64) {
        let Miss { number, op, seen } = miss;
        let pages = segment.start_pages(HashedEngine::flash_hash(op.keyspace, op.hash));
        self.begin_read(
            (core, engine),
            number,
            op,
            FlashRead::new(engine.programs.match_record, segment, seen, sequence, pages),
        );
    }

    /// Answers that the key does not exist, unless it was written just now.
    fn answer_missing(&mut self, (core, engine): HashedMeans<'_>, Miss { number, mut op, seen }: Miss) {
        if !engine.buffers.shard(op.hash).is_as(op.hash, seen) {
            return self.gather_again(number, op);
        }
        if !op.request.judge(None) {
            return self.begin_write((core, engine), number, op);
        }
        core.answer_after(op.token, 0, Outcome::Missing);
        self.forget(core, number, op);
    }

    /// Copies an item that a write buffer has and that may be shown already: its value is appended to `out` behind what `head` appends.
    pub(super) fn copy_item_from_buffers(
        &mut self,
        engine: &HashedEngine,
        hash: HashKey,
        out: &mut Vec<u8>,
        mut head: impl FnMut(&mut Vec<u8>, &ItemHead, &dyn Fn() -> Access) -> bool,
    ) -> Option<ItemHead> {
        let mut shard = engine.buffers.shard(hash);
        let found = shard.find(hash)?;
        let (place, was_read) = (found.place, found.was_read);
        // SAFETY: the shard names the place, and is locked for as long as the record is used.
        let record = unsafe { engine.log.record(place.buffer, place.place) };
        let header = record.header;
        let live = header.holds_value() && engine.is_live_now(KeyspaceId::of(&header), header.stamp, header.expiry);
        let may_show = engine.log.may_acknowledge(header.stamp) || fail_point!(ReadUndurable);
        if !live || !may_show {
            return None;
        }
        let (start, item) = (out.len(), ItemHead::of(&header));
        if !head(out, &item, &|| engine.access_by_stamp(was_read, header.stamp)) {
            out.truncate(start);
            return None;
        }
        if !was_read {
            shard.note_read_of(&found);
        }
        self.found_lately.note(true);
        self.copy_from_buffer(record, shard, out);
        Some(item)
    }

    /// Answers a get whose key is in a write buffer, or gives it back.
    fn look_into_buffers(
        &mut self,
        (core, engine): HashedMeans<'_>,
        number: usize,
        mut op: Box<HashedOp>,
    ) -> Option<Miss> {
        let mut shard = engine.buffers.shard(op.hash);
        let Some((place, was_read)) = shard.look(op.hash) else {
            let seen = shard.see_absent();
            return Some(Miss { number, op, seen });
        };
        // SAFETY: the shard names the place, and is locked for as long as the record is used.
        let record = unsafe { engine.log.record(place.buffer, place.place) };
        let header = record.header;
        if header.kind != Kind::Value || !engine.is_live(&header, engine.now_ms()) {
            drop(shard);
            if !op.request.judge(None) {
                self.begin_write((core, engine), number, op);
                return None;
            }
            if header.kind == Kind::Value {
                engine.note_lapsed(op.keyspace.id, header.stamp);
            }
            let stamp = header.stamp.max(engine.deletion_of(op.keyspace.id, header.stamp));
            core.answer_after(op.token, stamp, Outcome::Missing);
            self.forget(core, number, op);
            return None;
        }
        let item = ItemHead::of(&header);
        if !op.request.judge(Some(item)) {
            drop(shard);
            self.begin_write((core, engine), number, op);
            return None;
        }
        if op.must_ask_for(item.value_bytes) {
            drop(shard);
            self.ask(core, number, op, item.value_bytes);
            return None;
        }
        if !was_read && !op.request.is_unnoticed() {
            shard.note_read(op.hash);
        }
        if header.codec == Codec::OutOfLine {
            let (value, seen) = (HashedSession::out_of_line(&record, shard.large(place)), shard.see(op.hash));
            drop(shard);
            match LargeRead::new(engine, value, item, seen, header.stamp) {
                Ok(read) => self.go_on_large((core, engine), number, op, Box::new(LargeOp::Read(read))),
                Err(error) => self.refuse(core, number, op, error),
            }
            return None;
        }
        if op.kept.near.is_some() {
            let mut value = Vec::new();
            self.copy_from_buffer(record, shard, &mut value);
            self.compute((core, engine), number, op, NearItem { item, shown_by: header.stamp }, NearValue::Host(value));
            return None;
        }
        let values = core.values.current();
        let start = values.len();
        self.copy_from_buffer(record, shard, values);
        let value = core.values.range_from(start);
        let outcome = op.request.found(item, || engine.access_by_stamp(was_read, header.stamp), value);
        core.answer_after(op.token, header.stamp, outcome);
        self.forget(core, number, op);
        None
    }

    /// Appends the value of a record in a write buffer to `out`. The record stays for as long as the shard is held.
    fn copy_from_buffer(&mut self, record: Record<'_>, shard: MutexGuard<'_, Shard>, out: &mut Vec<u8>) {
        if record.header.codec == Codec::Raw {
            return out.extend_from_slice(record.stored);
        }
        // Inflated outside of the lock: the buffer may be reused as soon as the shard is released.
        self.scratch.clear();
        self.scratch.extend_from_slice(record.stored);
        let (start, raw_bytes) = (out.len(), record.header.raw_bytes as usize);
        drop(shard);
        out.resize(start + raw_bytes, 0);
        let inflated = self.decompressor.decompress(&self.scratch, &mut out[start..]);
        assert!(inflated.is_ok(), "the arena holds what was compressed");
    }
}
