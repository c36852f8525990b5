//! Operations whose key may be on flash: their reads, from the first command to the answer.

use super::flash_read::{FlashRead, ReadStep, inflated_bytes};
use super::large::{LargeOp, LargeRead, OutOfLine, TAG_LARGE};
use super::near::{NearItem, TAG_NEAR};
use super::{FromFlash, HashedMeans, HashedOp, HashedOpState, HashedSession, end_read};
use crate::hashed::HashedEngine;
use crate::hashed::buffer::Seen;
use crate::hashed::segment::segment_table::SegmentTable;
use std::sync::atomic::Ordering;
use tapetum_base::error::Error;
use tapetum_base::keyspace::states::KeyspaceRef;
use tapetum_base::request::Outcome;
use tapetum_base::request::decide::needs_value;
use tapetum_base::request::item::{Access, ItemHead};
use tapetum_drive::programs::match_record::{Matched, Place};
use tapetum_drive::{Completion, Returned, fail_point};
use tapetum_kernels::block_group::{self, GROUP_KEY_BYTES, Group, GroupBlock, MalformedGroup};
use tapetum_kernels::codec::Decompressor;
use tapetum_kernels::expiry::Expiry;
use tapetum_kernels::hash::HashKey;
use tapetum_kernels::record::{Codec, Marks};

/// Counts of gets since they were last added to the store's counters.
#[derive(Default)]
pub(super) struct GetCount {
    /// Answered with a value from flash.
    from_flash: u64,
    /// Read commands, and the longest.
    flash_reads: u64,
    flash_read_max_bytes: u64,
}

/// The group of a block as it was read, if there is one.
#[derive(Clone, Copy)]
struct GroupFrame<'a> {
    frame: Option<&'a [u8]>,
    /// An answer that shows the group waits until this stamp is durable.
    shown_by: u64,
}

/// Puts an item that was read from flash into the DRAM tier, if it is still the key's item.
fn put_into_tier(engine: &HashedEngine, hash: HashKey, seen: Seen, item: ItemHead, value: &[u8]) {
    let Some(tier) = &engine.tier else { return };
    let item = if fail_point!(TierForgetsMarks) { ItemHead { marks: Marks::NONE, ..item } } else { item };
    let shard = engine.buffers.shard(hash);
    if shard.is_on_flash_as(hash, seen) || fail_point!(TierFillsLate) {
        let access = Access { was_read: true, idle_seconds: 0 };
        tier.put(hash, engine.access_clock.seconds(), item, value, access);
    }
}

fn item_of(found: &Matched) -> ItemHead {
    let Matched { flags, expiry, stamp, marks, raw_bytes, .. } = *found;
    ItemHead { flags, expiry, stamp, value_bytes: raw_bytes as usize, marks }
}

/// The block at a place of a group, inflated into `value`.
pub fn block_of(
    frame: &[u8],
    place: usize,
    decompressor: &mut Decompressor,
    value: &mut Vec<u8>,
) -> Result<Option<ItemHead>, Error> {
    let corrupt = |what: &str| Error::Corrupt(format!("{what} of a block device"));
    let group = Group::parse(frame).map_err(|MalformedGroup| corrupt("a group"))?;
    if place >= group.count() {
        return Err(corrupt("a group with too few blocks"));
    }
    let (stamp, codec, stored) = match group.block(place) {
        GroupBlock::Hole => return Ok(None),
        GroupBlock::Lost => return Err(corrupt("a block that was damaged when its group was moved,")),
        GroupBlock::Stored { stamp, codec, raw_bytes, stored } => {
            value.resize(raw_bytes.into(), 0);
            (stamp, codec, stored)
        }
    };
    match codec {
        Codec::Raw => value.copy_from_slice(stored),
        _ => decompressor.decompress(stored, value).map_err(|_| corrupt("a block"))?,
    }
    Ok(Some(ItemHead { flags: 0, expiry: Expiry::NONE, stamp, value_bytes: value.len(), marks: Marks::NONE }))
}

/// Whether a record that has died may be elsewhere. During an install the index may name the old place of a group. A key that dies this way is found
/// in its buffer first, but the other blocks of the group, which its flush wrote again, are not.
fn is_doubtful(engine: &HashedEngine, keyspace: KeyspaceRef, looked_at: u64) -> bool {
    engine.segments.sequence() != looked_at || keyspace.is_grouped() && SegmentTable::is_of_install(looked_at)
}

impl HashedSession {
    pub(super) fn begin_read(
        &mut self,
        (core, engine): HashedMeans<'_>,
        number: usize,
        mut op: Box<HashedOp>,
        read: FlashRead,
    ) {
        op.kept.read = Some(read);
        self.read_next((core, engine), number, op);
    }

    /// Reads the next page in which the record may start.
    fn read_next(&mut self, (core, engine): HashedMeans<'_>, number: usize, mut op: Box<HashedOp>) {
        let HashedOp { kept: HashedOpState { read: Some(read), near, .. }, request, keyspace, .. } = &mut *op else {
            unreachable!("the operation reads")
        };
        let asked = near.as_ref().and_then(|near| near.fields_asked(engine));
        let key = if keyspace.is_grouped() { &request.key[..GROUP_KEY_BYTES] } else { &request.key[..] };
        let of_key = (keyspace.id.0, key);
        let step = read.begin(&mut core.queue, &mut core.spare_buffers, number as u64, of_key, asked);
        match step {
            ReadStep::Waits => {
                if request.is_get() {
                    let (commands, bytes_max) = read.sent();
                    self.gets.flash_reads += u64::from(commands);
                    self.gets.flash_read_max_bytes = self.gets.flash_read_max_bytes.max(u64::from(bytes_max));
                }
                self.ops.put(number, op);
            }
            // No page may hold it: the candidate was another key's.
            ReadStep::Missing => self.read_decided((core, engine), number, op, None),
            _ => self.wait_for_room(core, number, op),
        }
    }

    /// Counts a get that the DRAM tier answered.
    #[inline]
    pub(super) fn note_hit(&mut self, value_bytes: usize) {
        if let Some(hits) = &mut self.hits {
            hits.note(value_bytes);
        }
    }

    /// Adds the counts of gets to the store's counters.
    pub fn count_gets(&mut self, engine: &HashedEngine) {
        if let (Some(tier), Some(hits)) = (&engine.tier, &mut self.hits) {
            tier.hits().add(hits);
        }
        let GetCount { from_flash, flash_reads, flash_read_max_bytes } = std::mem::take(&mut self.gets);
        if from_flash > 0 {
            engine.counters.get_from_flash.fetch_add(from_flash, Ordering::Relaxed);
        }
        if flash_reads > 0 {
            engine.counters.get_flash_reads.fetch_add(flash_reads, Ordering::Relaxed);
            engine.counters.get_flash_read_max_bytes.fetch_max(flash_read_max_bytes, Ordering::Relaxed);
        }
    }

    /// Prefetches the validity of the record that a completion found, while other work goes on.
    pub fn prefetch(&self, completion: &Completion) {
        if completion.tag < TAG_NEAR
            && let Some(HashedOp { kept: HashedOpState { read: Some(read), .. }, .. }) =
                self.ops.get(completion.tag as usize)
        {
            read.segment.prefetch_validity(completion.result[1]);
        }
    }

    /// Takes the completion of a command of this engine.
    pub fn complete(&mut self, (core, engine): HashedMeans<'_>, returned: Returned) {
        let tag = returned.completion.tag;
        if tag & TAG_LARGE != 0 {
            return self.large_completed((core, engine), returned);
        }
        if tag & TAG_NEAR != 0 {
            return self.computed((core, engine), returned);
        }
        let number = tag as usize;
        let mut op = self.ops.take(number);
        self.followers = std::mem::take(&mut op.kept.followers);
        self.read_ended((core, engine), number, op, returned);
        // Gets whose block was not decided are looked up again by themselves.
        for (number, _) in std::mem::take(&mut self.followers) {
            let op = self.ops.take(number);
            self.gather_again(number, op);
        }
    }

    /// The command of an operation's read has ended.
    fn read_ended(
        &mut self,
        (core, engine): HashedMeans<'_>,
        number: usize,
        mut op: Box<HashedOp>,
        returned: Returned,
    ) {
        let Some(read) = &mut op.kept.read else { unreachable!("a completion has a read") };
        let completion = read.ended(returned);
        if let Some(bytes) = inflated_bytes(&completion).filter(|bytes| op.must_ask_for(*bytes)) {
            return self.ask(core, number, op, bytes);
        }
        let Some(read) = &mut op.kept.read else { unreachable!("a completion has a read") };
        let step = read.look(completion, &mut core.queue, &mut core.spare_buffers, number as u64);
        match step {
            ReadStep::Waits => self.ops.put(number, op),
            ReadStep::NoRoom => self.wait_for_room(core, number, op),
            ReadStep::Missing if read.has_more_pages() => self.read_next((core, engine), number, op),
            ReadStep::Missing => self.read_decided((core, engine), number, op, None),
            ReadStep::Found(matched) => self.read_decided((core, engine), number, op, Some(matched)),
            ReadStep::NoFields => self.read_without_fields((core, engine), number, op),
            ReadStep::Failed(Error::Io(_)) if fail_point!(MissUnreadable) => {
                self.read_decided((core, engine), number, op, None);
            }
            ReadStep::Failed(error) => self.refuse(core, number, op, error),
        }
    }

    fn read_decided(
        &mut self,
        (core, engine): HashedMeans<'_>,
        number: usize,
        mut op: Box<HashedOp>,
        matched: Option<Matched>,
    ) {
        let Some(read) = &op.kept.read else { unreachable!("the operation reads") };
        let dead = matched.as_ref().is_some_and(|found| !read.segment.is_valid(found.entry));
        if dead && is_doubtful(engine, op.keyspace, read.sequence) {
            if let (true, Err(error)) = (op.keyspace.is_grouped(), engine.log.poisoned()) {
                // The install may never end.
                return self.refuse(core, number, op, error);
            }
            // The record died since the look at the index: look again.
            end_read(core, &mut op);
            return self.attempt_op((core, engine), number, op, None);
        }
        let has_ended = matched
            .as_ref()
            .is_some_and(|found| !dead && !engine.is_live_now(op.keyspace.id, found.stamp, found.expiry));
        if has_ended && engine.buffers.shard(op.hash).get(op.hash).is_some() {
            // The record has expired since the look at the buffers, and another one took its place before that: look again.
            end_read(core, &mut op);
            return self.attempt_op((core, engine), number, op, None);
        }
        if let Some(found) = matched.as_ref().filter(|_| has_ended && op.request.is_counted_as_get()) {
            engine.note_lapsed(op.keyspace.id, found.stamp);
        }
        let shown_by = matched.as_ref().map_or(0, |found| engine.deletion_of(op.keyspace.id, found.stamp));
        // A dead record is not the index's candidate: the index took another key's entry for this key's.
        let matched = matched.filter(|_| !dead && !has_ended);
        if op.keyspace.is_grouped() {
            return self.group_decided((core, engine), number, op, matched, shown_by);
        }
        if let Some(found) = &matched
            && matches!(found.place, Place::OutOfLine(_))
        {
            return self.large_found((core, engine), number, op, *found, shown_by);
        }
        let item = matched.as_ref().map(item_of);
        op.request.judge(item);
        if let Some(item) = item.filter(|item| op.must_ask_for(item.value_bytes)) {
            return self.ask(core, number, op, item.value_bytes);
        }
        if op.request.is_get() {
            let outcome = match (&matched, item) {
                (Some(found), Some(item)) => {
                    let values = core.values.current();
                    let start = values.len();
                    self.gets.from_flash += 1;
                    if op.kept.near.is_some() {
                        return self.compute_found((core, engine), number, op, NearItem { item, shown_by }, found);
                    }
                    let Some(read) = &op.kept.read else { unreachable!("the operation reads") };
                    read.copy_value(found, &core.queue, values);
                    if !op.request.is_unnoticed() {
                        put_into_tier(engine, op.hash, read.seen, item, &values[start..]);
                    }
                    op.request.found(item, || engine.access_by_stamp(false, item.stamp), core.values.range_from(start))
                }
                _ => Outcome::Missing,
            };
            core.answer_shown(op.token, shown_by, outcome, true);
            return self.forget(core, number, op);
        }
        self.scratch.clear();
        if let Some(found) = &matched {
            read.copy_value(found, &core.queue, &mut self.scratch);
        }
        let flash = FromFlash { seen: read.seen, found: item, large: None, shown_by };
        end_read(core, &mut op);
        self.attempt_op((core, engine), number, op, Some(flash));
    }

    /// The group of a block was read, or there is none: its block decides the operation, and its other blocks decide the followers.
    fn group_decided(
        &mut self,
        (core, engine): HashedMeans<'_>,
        number: usize,
        mut op: Box<HashedOp>,
        matched: Option<Matched>,
        shown_by: u64,
    ) {
        let Some(read) = &op.kept.read else { unreachable!("the operation reads") };
        let mut frame = std::mem::take(&mut self.inflated);
        frame.clear();
        if let Some(found) = &matched {
            read.copy_value(found, &core.queue, &mut frame);
        }
        let seen = read.seen;
        let group = GroupFrame { frame: matched.is_some().then_some(&frame[..]), shown_by };
        end_read(core, &mut op);
        self.block_decided((core, engine), number, op, seen, group);
        for (number, seen) in std::mem::take(&mut self.followers) {
            let op = self.ops.take(number);
            self.block_decided((core, engine), number, op, seen, group);
        }
        self.inflated = frame;
    }

    /// Decides an operation by its block in the group.
    fn block_decided(
        &mut self,
        (core, engine): HashedMeans<'_>,
        number: usize,
        op: Box<HashedOp>,
        seen: Seen,
        GroupFrame { frame, shown_by }: GroupFrame<'_>,
    ) {
        self.scratch.clear();
        let place = block_group::place_of(op.hash);
        let block = |frame| block_of(frame, place, &mut self.decompressor, &mut self.scratch);
        let item = match frame.map_or(Ok(None), block) {
            Ok(item) => item,
            Err(error) => return self.refuse(core, number, op, error),
        };
        if !op.request.is_get() {
            let flash = FromFlash { seen, found: item, large: None, shown_by };
            return self.attempt_op((core, engine), number, op, Some(flash));
        }
        let Some(item) = item else {
            core.answer_shown(op.token, shown_by, Outcome::Missing, true);
            return self.forget(core, number, op);
        };
        if op.must_ask_for(item.value_bytes) {
            return self.ask(core, number, op, item.value_bytes);
        }
        let values = core.values.current();
        let start = values.len();
        self.gets.from_flash += 1;
        values.extend_from_slice(&self.scratch);
        put_into_tier(engine, op.hash, seen, item, &self.scratch);
        let value = core.values.range_from(start);
        let outcome = op.request.found(item, || engine.access_by_stamp(false, item.stamp), value);
        core.answer_shown(op.token, shown_by, outcome, true);
        self.forget(core, number, op);
    }

    /// The record is there and names a large value.
    fn large_found(
        &mut self,
        (core, engine): HashedMeans<'_>,
        number: usize,
        mut op: Box<HashedOp>,
        found: Matched,
        shown_by: u64,
    ) {
        let Some(read) = &op.kept.read else { unreachable!("the operation reads") };
        let Some(extents) = read.segment.large(found.entry) else {
            let gone = !read.segment.is_valid(found.entry);
            let descriptor = &read.segment.descriptor;
            let place = format!("record {} of segment {}, whose value is nowhere", found.entry, descriptor.number);
            end_read(core, &mut op);
            if gone {
                return self.attempt_op((core, engine), number, op, None);
            }
            return self.refuse(core, number, op, Error::Corrupt(place));
        };
        let mut reference = Vec::with_capacity(found.value_bytes as usize);
        read.copy_value(&found, &core.queue, &mut reference);
        let value = OutOfLine { reference, raw_bytes: found.raw_bytes, extents };
        let (seen, item) = (read.seen, item_of(&found));
        end_read(core, &mut op);
        op.request.judge(Some(item));
        if !needs_value(&op.request.borrow()) {
            let flash = FromFlash { seen, found: Some(item), large: Some(value), shown_by };
            return self.attempt_op((core, engine), number, op, Some(flash));
        }
        if op.request.is_get() && !op.must_ask_for(value.raw_bytes as usize) {
            self.gets.from_flash += 1;
        }
        match LargeRead::new(engine, value, item, seen, shown_by) {
            Ok(read) => self.go_on_large((core, engine), number, op, Box::new(LargeOp::Read(read))),
            Err(error) => self.refuse(core, number, op, error),
        }
    }

    pub(super) fn attempt_op(
        &mut self,
        (core, engine): HashedMeans<'_>,
        number: usize,
        mut op: Box<HashedOp>,
        flash: Option<FromFlash>,
    ) {
        if let Some(large) = op.kept.large.take() {
            return self.go_on_large((core, engine), number, op, large);
        }
        if op.request.is_get() {
            return self.gather_again(number, op);
        }
        let attempt = self.attempt((core, engine), op.target(), &op.request.borrow(), flash);
        self.go_on((core, engine), number, op, attempt);
    }
}
