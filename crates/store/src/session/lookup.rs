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
use super::near::NearValue;
use super::{FlashRead, Local, Op, Target};
use crate::hashed::buffer::{Seen, Shard};
use crate::hashed::segment::view::Segment;
use crate::hashed::tier::access::Access;
use crate::hashed::tier::{Copied, Item};
use crate::keyspace::KeyspaceId;
use crate::keyspace::request::{Outcome, Request};
use crate::planted::Bug;
use crate::shared::Shared;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use tapetum_kernels::hash::HashKey;
use tapetum_kernels::record::{Codec, Kind, Record};

/// Gets that are looked up together: enough to hide the memory's latency, few enough for the cache.
const BATCH: usize = 32;

/// Looks at a key in one call, while what is found is gone when it is to be held.
const LOOKS_MAX: usize = 1024;

/// A get whose key is in no write buffer.
pub(super) struct Miss {
    number: usize,
    op: Box<Op>,
    seen: Seen,
}

impl Local {
    pub(super) fn gather(&mut self, target: Target, request: &Request<'_>) {
        let number = self.keep(target, request);
        self.gathered.push(number);
    }

    /// Looks up what was gathered, until nothing is left; what an install keeps changing all the while is left to the next call.
    pub(super) fn look_up_gathered(&mut self, shared: &Shared) {
        for _ in 0..LOOKS_MAX {
            if self.gathered.is_empty() {
                return;
            }
            let mut gathered = std::mem::take(&mut self.gathered);
            for numbers in gathered.chunks_mut(BATCH) {
                let left = self.answer_from_tier(shared, numbers);
                self.look_up(shared, &numbers[..left]);
            }
            gathered.clear();
            // What must be looked up again has been gathered meanwhile.
            gathered.append(&mut self.gathered);
            self.gathered = gathered;
        }
    }

    /// Answers gets from the DRAM tier. Gives how many it leaves, and puts these first.
    fn answer_from_tier(&mut self, shared: &Shared, numbers: &mut [usize]) -> usize {
        let Some(tier) = &shared.tier else { return numbers.len() };
        let now = shared.access_clock.seconds();
        let hash_of = |ops: &[Option<Box<Op>>], number: usize| ops[number].as_ref().map(|op| op.hash);
        numbers.iter().filter_map(|number| hash_of(&self.ops, *number)).for_each(|hash| tier.prefetch_bucket(hash));
        for hash in numbers.iter().filter_map(|number| hash_of(&self.ops, *number)) {
            tier.prefetch_slot(hash);
        }
        let mut left = 0;
        for at in 0..numbers.len() {
            let number = numbers[at];
            let Some(mut op) = self.ops[number].take() else { unreachable!("a gathered operation is kept") };
            let values = &mut self.values[self.values_now];
            let start = values.len();
            let found = tier.copy((op.hash, now), values).filter(|Copied { item: found, .. }| {
                shared.planted.has(Bug::TierForgetsDeletion)
                    || shared.is_live_now(op.keyspace.id, found.stamp, found.expiry)
            });
            let Some(copied) = found else {
                values.truncate(start);
                self.ops[number] = Some(op);
                numbers[left] = number;
                left += 1;
                continue;
            };
            if !op.request.judge(Some(copied.item)) {
                values.truncate(start);
                self.begin_write(shared, number, op);
                continue;
            }
            if op.must_ask_for(copied.item.value_bytes) {
                values.truncate(start);
                self.ask(number, op, copied.item.value_bytes);
                continue;
            }
            if !op.request.is_unnoticed() {
                tier.note_use((op.hash, now), &copied);
            }
            self.note_hit(copied.item.value_bytes);
            if op.near.is_some() {
                let values = &mut self.values[self.values_now];
                let value = values.split_off(start);
                self.compute(shared, number, op, (copied.item, 0), NearValue::Host(value));
                continue;
            }
            let value = self.range_from(start);
            self.answer(op.token, op.request.found(copied.item, || copied.access, value));
            self.forget(number, op);
        }
        left
    }

    fn look_up(&mut self, shared: &Shared, numbers: &[usize]) {
        let sequence = shared.install_sequence.load(Ordering::SeqCst);
        for &number in numbers {
            if let Some(op) = &self.ops[number] {
                shared.prefetch_in_buffers(op.hash);
            }
        }
        let mut hashes = [HashKey::default(); BATCH];
        let mut misses = std::mem::take(&mut self.misses);
        for &number in numbers {
            let Some(op) = self.ops[number].take() else { unreachable!("a gathered operation is kept") };
            if let Some(miss) = self.look_into_buffers(shared, number, op) {
                hashes[misses.len()] = miss.op.hash;
                misses.push(miss);
            }
        }
        let count = misses.len();
        let mut candidates = [None; BATCH];
        shared.index.lookup_batch(&hashes[..count], &mut candidates[..count]);
        let mut segments: [Option<Arc<Segment>>; BATCH] = [const { None }; BATCH];
        for place in 0..count {
            segments[place] = candidates[place].and_then(|number| shared.hold(number, sequence));
            if let Some(segment) = &segments[place] {
                segment.prefetch(hashes[place]);
            }
        }
        for (place, miss) in misses.drain(..).enumerate() {
            match (segments[place].take(), candidates[place]) {
                (Some(segment), _) => self.read_candidate(shared, miss, segment, sequence),
                (None, None) => self.answer_missing(shared, miss),
                (None, Some(_)) => self.gather_again(miss.number, miss.op),
            }
        }
        self.misses = misses;
    }

    pub(super) fn gather_again(&mut self, number: usize, op: Box<Op>) {
        self.ops[number] = Some(op);
        self.gathered.push(number);
    }

    /// A get has found what makes it write: it goes on as a write, before the later operations of its key.
    fn begin_write(&mut self, shared: &Shared, number: usize, op: Box<Op>) {
        if self.is_paced(shared, &op.request.borrow()) {
            shared.counters.writes_paced.fetch_add(1, Ordering::Relaxed);
            self.ops[number] = Some(op);
            return self.waiting.push_back(number);
        }
        self.attempt_op(shared, number, op, None);
    }

    fn read_candidate(&mut self, shared: &Shared, miss: Miss, segment: Arc<Segment>, sequence: u64) {
        let Miss { number, op, seen } = miss;
        let pages = segment.start_pages(op.hash);
        self.begin_read(
            shared,
            number,
            op,
            FlashRead::new(shared.programs.match_record, segment, (seen, sequence), pages),
        );
    }

    /// Nobody has it, unless somebody wrote it just now.
    fn answer_missing(&mut self, shared: &Shared, Miss { number, mut op, seen }: Miss) {
        if !shared.shard(op.hash).is_as(op.hash, seen) {
            return self.gather_again(number, op);
        }
        if !op.request.judge(None) {
            return self.begin_write(shared, number, op);
        }
        self.answer_after(shared, op.token, 0, Outcome::Missing);
        self.forget(number, op);
    }

    /// An item that a write buffer has and that may be shown now, its value appended to `out` behind what `head` appends.
    pub(super) fn copy_item_from_buffers(
        &mut self,
        shared: &Shared,
        hash: HashKey,
        out: &mut Vec<u8>,
        mut head: impl FnMut(&mut Vec<u8>, &Item, &dyn Fn() -> Access) -> bool,
    ) -> Option<Item> {
        let mut shard = shared.shard(hash);
        let found = shard.find(hash)?;
        let (place, was_read) = (found.place, found.was_read);
        // SAFETY: the shard names the place; the record is not used when the shard is let go of.
        let record = unsafe { shared.log.record(place.buffer, place.place) };
        let header = record.header;
        let live = header.holds_value() && shared.is_live_now(KeyspaceId::of(&header), header.stamp, header.expiry);
        let may_show = shared.log.may_acknowledge(header.stamp) || shared.planted.has(Bug::ReadUndurable);
        if !live || !may_show {
            return None;
        }
        let (start, item) = (out.len(), Item::of(&header));
        if !head(out, &item, &|| shared.access_by_stamp(was_read, header.stamp)) {
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
    fn look_into_buffers(&mut self, shared: &Shared, number: usize, mut op: Box<Op>) -> Option<Miss> {
        let mut shard = shared.shard(op.hash);
        let Some((place, was_read)) = shard.look(op.hash) else {
            let seen = shard.see_absent();
            return Some(Miss { number, op, seen });
        };
        // SAFETY: the shard names the place; the record is not used when the shard is let go of.
        let record = unsafe { shared.log.record(place.buffer, place.place) };
        let header = record.header;
        if header.kind != Kind::Value || !shared.is_live(&header, shared.now()) {
            drop(shard);
            if !op.request.judge(None) {
                self.begin_write(shared, number, op);
                return None;
            }
            if header.kind == Kind::Value {
                shared.note_lapsed(op.keyspace.id, header.stamp);
            }
            let stamp = header.stamp.max(shared.deletion_of(op.keyspace.id, header.stamp));
            self.answer_after(shared, op.token, stamp, Outcome::Missing);
            self.forget(number, op);
            return None;
        }
        let item = Item::of(&header);
        if !op.request.judge(Some(item)) {
            drop(shard);
            self.begin_write(shared, number, op);
            return None;
        }
        if op.must_ask_for(item.value_bytes) {
            drop(shard);
            self.ask(number, op, item.value_bytes);
            return None;
        }
        if !was_read && !op.request.is_unnoticed() {
            shard.note_read(op.hash);
        }
        if header.codec == Codec::OutOfLine {
            let (value, seen) = (Local::out_of_line(&record, shard.large(place)), shard.see(op.hash));
            drop(shard);
            match LargeRead::new(shared, value, item, seen, header.stamp) {
                Ok(read) => self.go_on_large(shared, number, op, Box::new(LargeOp::Read(read))),
                Err(error) => self.refuse(number, op, error),
            }
            return None;
        }
        if op.near.is_some() {
            let mut value = Vec::new();
            self.copy_from_buffer(record, shard, &mut value);
            self.compute(shared, number, op, (item, header.stamp), NearValue::Host(value));
            return None;
        }
        let mut values = std::mem::take(&mut self.values[self.values_now]);
        let start = values.len();
        self.copy_from_buffer(record, shard, &mut values);
        self.values[self.values_now] = values;
        let value = self.range_from(start);
        let outcome = op.request.found(item, || shared.access_by_stamp(was_read, header.stamp), value);
        self.answer_after(shared, op.token, header.stamp, outcome);
        self.forget(number, op);
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
