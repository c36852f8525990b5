//! The attempt of any operation but a get: it finds out what is known of the item, and decides the operation ([`super::change`]).

use super::flash_read::FlashRead;
use super::large::{LargeOp, LargeRead, OutOfLine};
use super::{Attempt, FromFlash, HashedMeans, HashedSession};
use crate::hashed::HashedEngine;
use crate::hashed::buffer::{Place, Seen, Shard};
use crate::hashed::large::is_inline;
use crate::hashed::room::Admission;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use tapetum_base::error::Error;
use tapetum_base::keyspace::block_device::group_bytes_max;
use tapetum_base::keyspace::states::KeyspaceRef;
use tapetum_base::log::{AppendError, Draft};
use tapetum_base::request::decide::{is_counted_as_get, needs_current, needs_value, uses_value};
use tapetum_base::request::item::ItemHead;
use tapetum_base::request::{Outcome, Request};
use tapetum_base::session::order::OpTarget;
use tapetum_base::session::session_core::SessionCore;
use tapetum_drive::fail_point;
use tapetum_kernels::expiry::Expiry;
use tapetum_kernels::hash::HashKey;
use tapetum_kernels::record::{Codec, Header, Kind, Record};

/// Longer values are compressed and inflated with no lock held, and the decision is checked again.
pub(super) const LOCKED_BYTES_MAX: usize = 4 << 10; // bytes; some 10 us of zstd

/// The known state of an item: its head, if it exists (its value is in `scratch`, if needed); the place of its value, if that is elsewhere; and the
/// stamp that must be durable before an answer may show this.
pub(super) type KnownItem<'a> = (Option<ItemHead>, Option<&'a OutOfLine>, u64);

/// The result of a look at a key's record in a write buffer.
enum BufferLook<'a> {
    /// The item's state, as in [`KnownItem`]. The shard is held.
    Known {
        shard: MutexGuard<'a, Shard>,
        current: Option<ItemHead>,
        large: Option<OutOfLine>,
        shown_by: u64,
    },
    Decided(Attempt),
    /// The key was written meanwhile: look at it again.
    Changed,
}

pub(super) enum WriteError {
    NoRoom,
    Refused(Error),
}

/// Appends a record to a keyspace and makes it visible to readers. The caller holds the shard.
pub(super) fn append(
    engine: &HashedEngine,
    shard: &mut Shard,
    keyspace: KeyspaceRef,
    hash: HashKey,
    draft: Draft<'_>,
) -> Result<u64, WriteError> {
    // Checked with the shard held: after a drop, nothing is written.
    engine.refuse_dropped(keyspace).map_err(WriteError::Refused)?;
    let grouped = keyspace.is_grouped();
    let draft = Draft { header: Header { keyspace: keyspace.id.0, grouped, ..draft.header }, ..draft };
    if shard.is_full() {
        // Room comes with a flush, and after a failure there is none.
        return Err(engine.log.poisoned().map_or_else(WriteError::Refused, |()| WriteError::NoRoom));
    }
    let mut given = (0, 0);
    let growth = match grouped {
        true => shard.group_growth(hash, group_bytes_max(keyspace.group_blocks()), draft.header.record_bytes()),
        false => 0,
    };
    let (is_value, key) = (draft.header.kind == Kind::Value, draft.key);
    match engine.log.append_growing(growth, &[draft], |_, stamp, place| given = (stamp, place)) {
        Ok(()) => {
            if grouped {
                shard.note_group(hash);
            }
            if is_value {
                engine.block_maps.note_written(keyspace.id, key);
            }
            engine.insert(shard, hash, given.1);
            Ok(given.0)
        }
        Err(AppendError::BufferFull) => Err(WriteError::NoRoom),
        Err(AppendError::Refused(error)) => Err(WriteError::Refused(error)),
    }
}

/// A put that stores its value whatever the item is.
#[derive(Clone, Copy)]
pub struct PlainPut<'a> {
    pub key: &'a [u8],
    pub value: &'a [u8],
    pub flags: u32,
    pub expiry: Expiry,
}

pub(super) enum Put {
    /// Stored with this stamp; not durable yet.
    Stored(u64),
    Waits,
    Refused(Error),
}

/// Puts a record into the write buffer, over whatever its key had.
pub(super) fn put_record(engine: &HashedEngine, keyspace: KeyspaceRef, hash: HashKey, draft: Draft<'_>) -> Put {
    loop {
        let mut shard = engine.buffers.shard(hash);
        match engine.admit(|| engine.has_probably(&shard, hash, HashedEngine::flash_hash(keyspace, hash))) {
            Admission::Go => {}
            Admission::Wait => return Put::Waits,
            Admission::Refuse(error) => return Put::Refused(error),
        }
        let user_bytes = draft.key.len() as u64 + u64::from(draft.header.raw_bytes);
        match append(engine, &mut shard, keyspace, hash, draft) {
            Ok(stamp) => {
                engine.counters.user_write_bytes.fetch_add(user_bytes, Ordering::Relaxed);
                return Put::Stored(stamp);
            }
            Err(WriteError::Refused(error)) => return Put::Refused(error),
            Err(WriteError::NoRoom) => {}
        }
        drop(shard);
        if !engine.rotate() {
            return Put::Waits;
        }
    }
}

impl HashedSession {
    pub(super) fn delete_all(
        &mut self,
        (core, engine): HashedMeans<'_>,
        OpTarget { token, keyspace, .. }: OpTarget,
        at: u32,
    ) -> Attempt {
        match engine.mark_deletion(keyspace, at) {
            Ok(Some(stamp)) => core.answer_after(token, stamp, Outcome::Done),
            Ok(None) => return Attempt::Waits,
            Err(error) => core.answer(token, Outcome::Failed(error)),
        }
        Attempt::Answered
    }

    /// Decides an operation, which is no get, if that can be done now.
    pub(super) fn attempt(
        &mut self,
        (core, engine): HashedMeans<'_>,
        target: OpTarget,
        request: &Request<'_>,
        flash: Option<FromFlash>,
    ) -> Attempt {
        if let Request::DeleteAll { at } = *request {
            return self.delete_all((core, engine), target, at);
        }
        let OpTarget { keyspace: KeyspaceRef { id: keyspace, .. }, hash, .. } = target;
        loop {
            let sequence = engine.segments.sequence();
            let mut shard = engine.buffers.shard(hash);
            let late = fail_point!(DecideLate);
            let flash = flash.as_ref().filter(|flash| shard.is_on_flash_as(hash, flash.seen) || late);
            if !needs_current(request) {
                let Request::Put { key, value, flags, expiry, .. } = *request else {
                    unreachable!("only a put is blind")
                };
                drop(shard);
                return self.put((core, engine), target, PlainPut { key, value, flags, expiry });
            }
            let in_buffer;
            let (current, large, stamp) = match (flash, shard.get(hash)) {
                (Some(flash), _) => {
                    // Everything may have been deleted since it was read: that is no write of the key.
                    let now = engine.now_ms();
                    let found = flash.found.filter(|item| engine.is_live_stamp(keyspace, item.stamp, item.expiry, now));
                    let deleted = flash.found.map_or(0, |item| engine.deletion_of(keyspace, item.stamp));
                    (found, flash.large.as_ref(), flash.shown_by.max(deleted))
                }
                (None, Some(place)) => match self.look_at_record(core, engine, shard, place, target, request) {
                    BufferLook::Known { shard: held, current, large, shown_by } => {
                        (shard, in_buffer) = (held, large);
                        (current, in_buffer.as_ref(), shown_by)
                    }
                    BufferLook::Decided(attempt) => return attempt,
                    BufferLook::Changed => continue,
                },
                (None, None) => {
                    // The tier has what flash has, as long as the shard is held.
                    let Some(item) = self.copy_from_tier(engine, hash) else {
                        match self.attempt_beyond_memory((core, engine), shard, target, sequence, request) {
                            Some(attempt) => return attempt,
                            None => continue,
                        }
                    };
                    let live = engine.is_live_stamp(keyspace, item.stamp, item.expiry, engine.now_ms());
                    (live.then_some(item), None, engine.deletion_of(keyspace, item.stamp))
                }
            };
            if let Some(ItemHead { value_bytes, .. }) =
                current.filter(|item| target.must_ask_for(request, item.value_bytes))
            {
                return Attempt::Asks { value_bytes };
            }
            if let Some(attempt) = self.decide((core, engine), shard, target, request, (current, large, stamp)) {
                return attempt;
            }
        }
    }

    /// Reads an item's state from the record of its key in a write buffer.
    fn look_at_record<'a>(
        &mut self,
        core: &mut SessionCore,
        engine: &'a HashedEngine,
        mut shard: MutexGuard<'a, Shard>,
        place: Place,
        target: OpTarget,
        request: &Request<'_>,
    ) -> BufferLook<'a> {
        let (hash, keyspace) = (target.hash, target.keyspace.id);
        // SAFETY: the shard names the place, and is locked for as long as the record is used.
        let record = unsafe { engine.log.record(place.buffer, place.place) };
        let header = record.header;
        let live = header.kind == Kind::Value && engine.is_live(&header, engine.now_ms());
        if header.kind == Kind::Value && !live && is_counted_as_get(request) {
            engine.note_lapsed(keyspace, header.stamp);
        }
        let shown_by = header.stamp.max(engine.deletion_of(keyspace, header.stamp));
        let value_bytes = header.raw_bytes as usize;
        if live && target.must_ask_for(request, value_bytes) {
            return BufferLook::Decided(Attempt::Asks { value_bytes });
        }
        let current = live.then(|| ItemHead::of(&header));
        if live && header.codec == Codec::OutOfLine {
            let large = HashedSession::out_of_line(&record, shard.large(place));
            if !needs_value(request) {
                return BufferLook::Known { shard, current, large: Some(large), shown_by };
            }
            let seen = shard.see(hash);
            drop(shard);
            return BufferLook::Decided(self.read_large((core, engine), target.token, large, seen, &header));
        }
        if live && uses_value(request) {
            if header.codec == Codec::Raw || value_bytes <= LOCKED_BYTES_MAX {
                self.inflate_into_scratch(&record);
            } else {
                let seen = shard.see(hash);
                self.inflated.clear();
                self.inflated.extend_from_slice(record.stored);
                drop(shard);
                self.inflate_copied(value_bytes);
                shard = engine.buffers.shard(hash);
                if !shard.is_as(hash, seen) || !engine.is_live(&header, engine.now_ms()) {
                    return BufferLook::Changed;
                }
            }
        }
        BufferLook::Known { shard, current, large: None, shown_by }
    }

    /// Begins to read the value of a record in a write buffer from its extents.
    fn read_large(
        &mut self,
        (core, engine): HashedMeans<'_>,
        token: u64,
        value: OutOfLine,
        seen: Seen,
        header: &Header,
    ) -> Attempt {
        match LargeRead::new(engine, value, ItemHead::of(header), seen, header.stamp) {
            Ok(read) => Attempt::Large(Box::new(LargeOp::Read(read))),
            Err(error) => {
                core.answer(token, Outcome::Failed(error));
                Attempt::Answered
            }
        }
    }

    /// Decides an operation on a key that is not in memory, or names what to read; `None` when the key must be looked at again.
    fn attempt_beyond_memory(
        &mut self,
        (core, engine): HashedMeans<'_>,
        shard: MutexGuard<'_, Shard>,
        target: OpTarget,
        sequence: u64,
        request: &Request<'_>,
    ) -> Option<Attempt> {
        let hash = target.hash;
        let seen = shard.see(hash);
        drop(shard);
        let on_flash = HashedEngine::flash_hash(target.keyspace, hash);
        if let Some(segment) = engine.candidate(on_flash) {
            let pages = segment.start_pages(on_flash);
            return Some(Attempt::NeedsFlash {
                read: FlashRead::new(engine.programs.match_record, segment, seen, sequence, pages),
            });
        }
        // The key does not exist: decide on that, unless it was written just now.
        let shard = engine.buffers.shard(hash);
        if !shard.is_as(hash, seen) {
            return None;
        }
        self.decide((core, engine), shard, target, request, (None, None, 0))
    }

    /// Copies a key's item from the DRAM tier, its value to `scratch`.
    fn copy_from_tier(&mut self, engine: &HashedEngine, hash: HashKey) -> Option<ItemHead> {
        self.scratch.clear();
        let copied = engine.tier.as_ref()?.copy(hash, engine.access_clock.seconds(), &mut self.scratch)?;
        Some(copied.item)
    }

    /// Inflates the bytes that were copied out of a record.
    fn inflate_copied(&mut self, raw_bytes: usize) {
        self.scratch.clear();
        self.scratch.resize(raw_bytes, 0);
        let inflated = self.decompressor.decompress(&self.inflated, &mut self.scratch);
        assert!(inflated.is_ok(), "the arena holds what was compressed");
    }

    pub(super) fn inflate_into_scratch(&mut self, record: &Record<'_>) {
        let inflated = self.decompressor.inflate(record, &mut self.scratch);
        assert!(inflated.is_ok(), "the arena holds what was compressed");
    }

    /// A put that needs to know nothing: it is compressed outside of any lock.
    pub(super) fn put(
        &mut self,
        (core, engine): HashedMeans<'_>,
        OpTarget { token, keyspace, hash, .. }: OpTarget,
        put: PlainPut<'_>,
    ) -> Attempt {
        let (header, stored) = self.compress(put);
        if !is_inline(&engine.geometry, stored.len(), put.value.len()) {
            return self.put_large(header, header.codec);
        }
        match put_record(engine, keyspace, hash, Draft { header, key: put.key, stored }) {
            Put::Stored(stamp) => core.answer_after(token, stamp, Outcome::Stored { stamp }),
            Put::Refused(error) => core.answer(token, Outcome::Failed(error)),
            Put::Waits => return Attempt::Waits,
        }
        Attempt::Answered
    }

    /// The header and the stored value of a put, without the key.
    pub(super) fn compress<'a>(
        &'a mut self,
        PlainPut { key, value, flags, expiry }: PlainPut<'a>,
    ) -> (Header, &'a [u8]) {
        let (codec, stored) = self.compressor.compress(value);
        let header = Header::value(0, key.len(), stored.len());
        (Header { codec, flags, expiry, raw_bytes: value.len() as u32, ..header }, stored)
    }
}
