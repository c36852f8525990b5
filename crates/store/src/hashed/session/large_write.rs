//! Writes of large values: their bytes first, then the record that names them.
//!
//! ```text
//! room ─► memory ─► writing ─► the record, if the key is still as it was decided on ─► answer
//!   │        └─ wait ┘                         └─ no: drop the extents, start over
//!   └─ wait for a flush or a collection, or refuse
//! ```

use super::attempt::{WriteError, append};
use super::large::{LargeOp, give_slots, tag_of};
use super::{Attempt, HashedMeans, HashedOp, HashedSession};
use crate::hashed::HashedEngine;
use crate::hashed::buffer::{Seen, Shard};
use crate::hashed::large::pieces::pieces_to_write;
use crate::hashed::large::{LargeExtents, LargeWant, is_inline};
use crate::hashed::room::{Admission, LargeRoom};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tapetum_base::error::Error;
use tapetum_base::log::Draft;
use tapetum_base::media::io::lock;
use tapetum_base::media::piece_transfer::{PIECE_BYTES_MAX, PieceTransfer, ReturnedPiece};
use tapetum_base::options::Full;
use tapetum_base::request::decide::Answer;
use tapetum_base::request::item::ItemHead;
use tapetum_drive::fail_point;
use tapetum_kernels::expiry::Expiry;
use tapetum_kernels::mib_sums::MibSums;
use tapetum_kernels::record::{Codec, Header};
use tapetum_kernels::reference::Reference;

pub(super) struct Basis {
    pub seen: Seen,
    /// Stamp and expiry of the item, if there was one.
    pub current: Option<(u64, Expiry)>,
    /// The item counts as read when it is written.
    pub was_read: bool,
}

pub(super) struct LargeWrite {
    header: Header,
    codec: Codec,
    /// Empty for a blind put of a raw value: it is the request's.
    stored: Vec<u8>,
    answer: Answer,
    /// The value to show with the answer.
    shown: Vec<u8>,
    /// `None` for a blind put.
    basis: Option<Basis>,
    extents: Option<LargeExtents>,
    reference: Option<Reference>,
    transfer: Option<PieceTransfer>,
    written: bool,
    /// There was no room: look again when this buffer is the oldest.
    flush_awaited: Option<u64>,
    /// There was no room: maintenance is told.
    want: Option<LargeWant>,
}

enum WriteRoom {
    Taken,
    /// There is room, but the key is no longer as it was decided on.
    Stale,
    Waits,
    Refused(Error),
}

impl LargeWrite {
    fn new(header: Header, codec: Codec, stored: Vec<u8>, answer: Answer) -> LargeWrite {
        LargeWrite {
            header,
            codec,
            stored,
            answer,
            shown: Vec::new(),
            basis: None,
            extents: None,
            reference: None,
            transfer: None,
            written: false,
            flush_awaited: None,
            want: None,
        }
    }

    /// Whether the value is small enough for a log record after all.
    fn is_inline(&self, engine: &HashedEngine) -> bool {
        is_inline(&engine.geometry, self.stored.len(), self.header.raw_bytes as usize)
    }

    fn overwrites(&self, engine: &HashedEngine, op: &HashedOp) -> bool {
        match &self.basis {
            Some(basis) => basis.current.is_some(),
            None => engine.buffers.shard(op.hash).get(op.hash).is_some() || engine.index.lookup(op.hash).is_some(),
        }
    }

    /// Takes extents, if there are any.
    fn take_room(&mut self, engine: &HashedEngine, op: &HashedOp) -> WriteRoom {
        match self.try_to_take_room(engine, op) {
            WriteRoom::Refused(_) if engine.look_at_room_again() => self.try_to_take_room(engine, op),
            room => room,
        }
    }

    fn try_to_take_room(&mut self, engine: &HashedEngine, op: &HashedOp) -> WriteRoom {
        let overwrites = self.overwrites(engine, op);
        match engine.admit(|| overwrites) {
            Admission::Go => {}
            Admission::Wait => return WriteRoom::Waits,
            Admission::Refuse(Error::FullFlash) => return self.flush_or_refuse(engine),
            Admission::Refuse(error) => return WriteRoom::Refused(error),
        }
        let shard = engine.buffers.shard(op.hash);
        let holds = self.still_holds(engine, op, &shard);
        let room = engine.take_large(self.stored.len() as u64, overwrites, holds);
        drop(shard);
        match room {
            LargeRoom::Unneeded => WriteRoom::Stale,
            LargeRoom::Taken(extents) => {
                self.refer(engine, &extents);
                (self.extents, self.want) = (Some(extents), None);
                WriteRoom::Taken
            }
            LargeRoom::Comes => {
                self.want = Some(engine.want_large(engine.extents_of(self.stored.len() as u64)));
                WriteRoom::Waits
            }
            LargeRoom::None => self.flush_or_refuse(engine),
        }
    }

    /// There is no room. A flush of the write buffers may give some back, and then evicting may.
    fn flush_or_refuse(&mut self, engine: &HashedEngine) -> WriteRoom {
        let flushed = match self.flush_awaited {
            Some(buffer) => engine.is_installed_below(buffer),
            None if engine.log.active_is_empty() || engine.rotate() => {
                let active = engine.buffers.active();
                self.flush_awaited = Some(active);
                engine.is_installed_below(active)
            }
            None => false,
        };
        if !flushed {
            return WriteRoom::Waits;
        }
        match engine.options.full {
            Full::Error => WriteRoom::Refused(Error::FullFlash),
            Full::Evict => {
                self.flush_awaited = None;
                self.want = Some(engine.want_large(2 * engine.extents_of(self.stored.len() as u64)));
                WriteRoom::Waits
            }
        }
    }

    fn refer(&mut self, engine: &HashedEngine, extents: &LargeExtents) {
        let mut reference = Reference {
            version: engine.segments.names.version(),
            sums: MibSums::of(0, b""),
            stored_bytes: self.stored.len() as u32,
            codec: self.codec,
            runs: extents.runs().to_vec(),
        };
        reference.sums = MibSums::of(reference.crc_of_none(engine.store_id), &self.stored);
        self.reference = Some(reference);
    }

    /// Whether the state that was decided on still holds. The caller holds the shard.
    fn still_holds(&self, engine: &HashedEngine, op: &HashedOp, shard: &Shard) -> bool {
        let Some(basis) = &self.basis else { return true };
        let alive = |(stamp, expiry)| engine.is_live_stamp(op.keyspace.id, stamp, expiry, engine.now_ms());
        basis.current.is_none_or(alive) && shard.is_on_flash_as(op.hash, basis.seen)
    }
}

/// Fills a piece of a value that begins at `at`.
fn fill(stored: &[u8], at: u64, to: &mut [u8]) {
    to.copy_from_slice(&stored[at as usize..][..to.len()]);
}

impl HashedSession {
    /// A blind put whose value is large.
    pub(super) fn put_large(&mut self, header: Header, codec: Codec) -> Attempt {
        let stored = if codec == Codec::Raw { Vec::new() } else { self.compressor.take_frame() };
        Attempt::Large(Box::new(LargeOp::Write(LargeWrite::new(header, codec, stored, Answer::Stored))))
    }

    /// A write that was decided on the item as it is; its value is large, or takes long to compress.
    pub(super) fn write_large(&mut self, header: Header, value: Vec<u8>, answer: Answer, basis: Basis) -> Attempt {
        let (codec, _) = self.compressor.compress(&value);
        let header = Header { raw_bytes: value.len() as u32, ..header };
        let shown = if answer.shows_value() { value.clone() } else { Vec::new() };
        let stored = if codec == Codec::Raw { value } else { self.compressor.take_frame() };
        let mut write = LargeWrite::new(header, codec, stored, answer);
        (write.basis, write.shown) = (Some(basis), shown);
        Attempt::Large(Box::new(LargeOp::Write(write)))
    }

    pub(super) fn go_on_writing(
        &mut self,
        (core, engine): HashedMeans<'_>,
        number: usize,
        mut op: Box<HashedOp>,
        mut write: LargeWrite,
    ) {
        if let Err(error) = engine.log.poisoned() {
            return self.refuse(core, number, op, error);
        }
        if write.stored.is_empty() {
            write.stored = op.request.take_value();
        }
        if write.written {
            return self.publish((core, engine), number, op, write);
        }
        if write.is_inline(engine) {
            let overwrites = write.overwrites(engine, &op);
            return match engine.admit(|| overwrites) {
                Admission::Go => self.publish((core, engine), number, op, write),
                Admission::Wait => self.keep_large(number, op, LargeOp::Write(write), true),
                Admission::Refuse(error) => self.refuse(core, number, op, error),
            };
        }
        if write.extents.is_none() {
            match write.take_room(engine, &op) {
                WriteRoom::Taken => {}
                WriteRoom::Stale => return self.attempt_op((core, engine), number, op, None),
                WriteRoom::Waits => return self.keep_large(number, op, LargeOp::Write(write), true),
                WriteRoom::Refused(error) => return self.refuse(core, number, op, error),
            }
        }
        let Some(reference) = &write.reference else { unreachable!("extents that were taken have a reference") };
        let row_bytes = lock(&engine.extents).row_bytes();
        let pieces = pieces_to_write(&engine.geometry, row_bytes, reference, PIECE_BYTES_MAX);
        write.transfer = PieceTransfer::new(pieces, |bytes| core.spare_buffers.take(bytes));
        if let Some(transfer) = &mut write.transfer {
            let fua = !fail_point!(AppendBeforeLarge);
            transfer.write(&mut core.queue, fua, tag_of(number), |at, to| fill(&write.stored, at, to));
        }
        let waits = write.transfer.as_ref().is_none_or(PieceTransfer::is_idle);
        self.keep_large(number, op, LargeOp::Write(write), waits);
    }

    pub(super) fn large_written(
        &mut self,
        (core, engine): HashedMeans<'_>,
        number: usize,
        op: Box<HashedOp>,
        mut write: LargeWrite,
        piece: ReturnedPiece,
    ) {
        let Some(transfer) = &mut write.transfer else { unreachable!("a completion has a transfer") };
        transfer.completed(piece);
        while transfer.take().is_some() {}
        let fua = !fail_point!(AppendBeforeLarge);
        transfer.write(&mut core.queue, fua, tag_of(number), |at, to| fill(&write.stored, at, to));
        match transfer.outcome() {
            None => {
                let waits = transfer.is_idle();
                self.keep_large(number, op, LargeOp::Write(write), waits);
            }
            // The write was to be durable at once. It may have failed for data that another write left in a cache: as with a flush, the store
            // believes nothing from then on. Nothing names the extents.
            Some(Err(failed)) => {
                let error = Error::of_command(&engine.drive, "write of a large value", &failed);
                engine.log.poison("a large value", error.clone());
                self.refuse(core, number, op, error);
            }
            Some(Ok(())) => {
                give_slots(core, &mut write.transfer);
                write.written = true;
                self.publish((core, engine), number, op, write);
            }
        }
    }

    /// Appends the record, if the key is still as it was decided on.
    fn publish(&mut self, (core, engine): HashedMeans<'_>, number: usize, op: Box<HashedOp>, mut write: LargeWrite) {
        let encoded = write.reference.as_ref().map(Reference::encode);
        let (codec, stored) = match &encoded {
            Some(reference) => (Codec::OutOfLine, &reference[..]),
            None => (write.codec, &write.stored[..]),
        };
        let header = Header { codec, stored_bytes: stored.len() as u32, ..write.header };
        let key = &op.request.key;
        loop {
            if write.extents.is_some() && engine.names_much() && !engine.rotate() {
                return self.keep_large(number, op, LargeOp::Write(write), true);
            }
            let mut shard = engine.buffers.shard(op.hash);
            if !write.still_holds(engine, &op, &shard) {
                drop(shard);
                return self.attempt_op((core, engine), number, op, None);
            }
            let done = append(engine, &mut shard, op.keyspace, op.hash, Draft { header, key, stored });
            if done.is_ok()
                && let (Some(extents), Some(place)) = (write.extents.take(), shard.get(op.hash))
            {
                engine.name_large(&mut shard, place, Arc::new(extents));
            }
            if done.is_ok() && write.basis.as_ref().is_some_and(|basis| basis.was_read) {
                shard.note_read(op.hash);
            }
            drop(shard);
            match done {
                Ok(stamp) => return self.answer_large((core, engine), number, op, write, stamp),
                Err(WriteError::Refused(error)) => return self.refuse(core, number, op, error),
                Err(WriteError::NoRoom) if engine.rotate() => {}
                Err(WriteError::NoRoom) => return self.keep_large(number, op, LargeOp::Write(write), true),
            }
        }
    }

    fn answer_large(
        &mut self,
        (core, engine): HashedMeans<'_>,
        number: usize,
        op: Box<HashedOp>,
        write: LargeWrite,
        stamp: u64,
    ) {
        let bytes = op.request.key.len() as u64 + u64::from(write.header.raw_bytes);
        engine.counters.user_write_bytes.fetch_add(bytes, Ordering::Relaxed);
        let value = core.values.add(&write.shown);
        let outcome = write.answer.outcome(ItemHead { stamp, ..ItemHead::of(&write.header) }, value);
        core.answer_after(op.token, stamp, outcome);
        self.forget(core, number, op);
    }
}
