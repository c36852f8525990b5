//! Operations on large values: their reads and writes, beside the record.
//!
//! ```text
//! read:   memory ─► reading ─► checked, inflated ─► answer, or decide on it
//! write:  room ─► memory ─► writing ─► the record, if the key is still what was decided on ─► answer
//!          │        └─ wait ┘                         └─ no: drop the extents, start over
//!          └─ wait for a flush or a collection, or refuse
//! ```
//! An operation holds the extents that it reads or writes, and nothing else, while commands are on their way. See
//! [`crate::hashed::large`].

use super::attempt::{WriteError, append, poison};
use super::change::Answer;
use super::near::NearValue;
use super::{Attempt, FromFlash, Local, Op};
use crate::error::Error;
use crate::hashed::buffer::Seen;
use crate::hashed::large::transfer::Transfer;
use crate::hashed::large::verify::corrupt;
use crate::hashed::large::{LargeExtents, LargeWant, is_inline};
use crate::hashed::tier::Item;
use crate::log::Draft;
use crate::maintenance::room::{Admission, LargeRoom};
use crate::media::io::lock;
use crate::opening::options::Full;
use crate::planted::Bug;
use crate::shared::Shared;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tapetum_drive::{Purpose, Returned};
use tapetum_kernels::record::{Codec, Header, Record};
use tapetum_kernels::reference::{Reference, crc_append};

/// Set in the tags of commands that move a large value; the slot stands above the operation's number.
pub(super) const TAG_LARGE: u64 = 1 << 63;
const TAG_SLOT_SHIFT: u32 = 48;

/// What an operation does with a large value.
pub(super) enum LargeOp {
    Read(LargeRead),
    Write(LargeWrite),
}

/// A large value where it lies, and what its record says of it.
#[derive(Clone)]
pub(super) struct OutOfLine {
    /// As the record has it.
    pub reference: Vec<u8>,
    pub raw_bytes: u32,
    pub extents: Arc<LargeExtents>,
}

pub(super) struct LargeRead {
    value: OutOfLine,
    reference: Reference,
    item: Item,
    seen: Seen,
    shown_by: u64,
    transfer: Option<Transfer>,
    stored: Vec<u8>,
    crc: u32,
}

impl LargeRead {
    pub(super) fn new(
        shared: &Shared,
        value: OutOfLine,
        item: Item,
        seen: Seen,
        shown_by: u64,
    ) -> Result<LargeRead, Error> {
        let Ok(reference) = Reference::parse(&value.reference) else {
            return Err(Error::Corrupt("a record names a large value that makes no sense".into()));
        };
        let (stored, crc) = (Vec::new(), reference.crc_of_none(shared.store_id));
        Ok(LargeRead { value, reference, item, seen, shown_by, transfer: None, stored, crc })
    }
}

/// What a write was decided on.
pub(super) struct Basis {
    pub seen: Seen,
    /// Stamp and expiry of the item, if there was one.
    pub current: Option<(u64, u32)>,
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
    transfer: Option<Transfer>,
    written: bool,
    /// There was no room: it is looked for again when this buffer is the oldest.
    flush_awaited: Option<u64>,
    /// There was no room: maintenance is told.
    want: Option<LargeWant>,
}

enum Room {
    Taken,
    /// There is some, but the key is not what was decided on any more.
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

    /// Small enough for a log record after all.
    fn is_inline(&self, shared: &Shared) -> bool {
        is_inline(&shared.geometry, self.stored.len(), self.header.raw_bytes as usize)
    }

    fn overwrites(&self, shared: &Shared, op: &Op) -> bool {
        match &self.basis {
            Some(basis) => basis.current.is_some(),
            None => shared.shard(op.hash).get(op.hash).is_some() || shared.index.lookup(op.hash).is_some(),
        }
    }

    /// Takes extents, if there are any.
    fn take_room(&mut self, shared: &Shared, op: &Op) -> Room {
        let overwrites = self.overwrites(shared, op);
        match shared.admit(|| overwrites) {
            Admission::Go => {}
            Admission::Wait => return Room::Waits,
            Admission::Refuse(Error::FullFlash) => return self.flush_or_refuse(shared),
            Admission::Refuse(error) => return Room::Refused(error),
        }
        let shard = shared.shard(op.hash);
        let holds = self.still_holds(shared, op, &shard);
        let room = shared.take_large(self.stored.len() as u64, overwrites, holds);
        drop(shard);
        match room {
            LargeRoom::Unneeded => Room::Stale,
            LargeRoom::Taken(extents) => {
                self.refer(shared, &extents);
                (self.extents, self.want) = (Some(extents), None);
                Room::Taken
            }
            LargeRoom::Comes => {
                self.want = Some(shared.want_large(shared.extents_of(self.stored.len() as u64)));
                Room::Waits
            }
            LargeRoom::None => self.flush_or_refuse(shared),
        }
    }

    /// There is no room: what the write buffers hold may give some back when they are flushed, and then evicting may.
    fn flush_or_refuse(&mut self, shared: &Shared) -> Room {
        let flushed = match self.flush_awaited {
            Some(buffer) => shared.is_installed_below(buffer),
            None if shared.log.active_is_empty() || shared.rotate() => {
                let active = lock(&shared.shards[0]).active();
                self.flush_awaited = Some(active);
                shared.is_installed_below(active)
            }
            None => false,
        };
        if !flushed {
            return Room::Waits;
        }
        match shared.options.full {
            Full::Error => Room::Refused(Error::FullFlash),
            Full::Evict => {
                self.flush_awaited = None;
                self.want = Some(shared.want_large(2 * shared.extents_of(self.stored.len() as u64)));
                Room::Waits
            }
        }
    }

    fn refer(&mut self, shared: &Shared, extents: &LargeExtents) {
        let mut reference = Reference {
            version: shared.version_next.fetch_add(1, Ordering::Relaxed),
            crc: 0,
            stored_bytes: self.stored.len() as u32,
            codec: self.codec,
            runs: extents.runs().to_vec(),
        };
        reference.crc = crc_append(reference.crc_of_none(shared.store_id), &self.stored);
        self.reference = Some(reference);
    }

    /// Whether what was decided on is still so. The caller holds the shard.
    fn still_holds(&self, shared: &Shared, op: &Op, shard: &crate::hashed::buffer::Shard) -> bool {
        let Some(basis) = &self.basis else { return true };
        let alive = |(stamp, expiry)| shared.is_live_stamp(op.keyspace.id, stamp, expiry, shared.now());
        basis.current.is_none_or(alive) && shard.is_on_flash_as(op.hash, basis.seen)
    }
}

fn tag_of(number: usize) -> impl Fn(usize) -> u64 {
    move |slot| TAG_LARGE | (slot as u64) << TAG_SLOT_SHIFT | number as u64
}

impl Local {
    /// The large value of a record in a write buffer. The caller holds the shard.
    pub(super) fn out_of_line(record: &Record<'_>, extents: Option<Arc<LargeExtents>>) -> OutOfLine {
        let Some(extents) = extents else { unreachable!("a buffer holds the extents that its records name") };
        OutOfLine { reference: record.stored.to_vec(), raw_bytes: record.header.raw_bytes, extents }
    }

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

    /// Starts an operation on a large value, or goes on with one that waited.
    pub(super) fn go_on_large(&mut self, shared: &Shared, number: usize, op: Box<Op>, large: Box<LargeOp>) {
        match *large {
            LargeOp::Read(read) => self.begin_large_read(shared, number, op, read),
            LargeOp::Write(write) => self.go_on_writing(shared, number, op, write),
        }
    }

    fn keep_large(&mut self, number: usize, mut op: Box<Op>, large: LargeOp, waits: bool) {
        op.large = Some(Box::new(large));
        self.ops[number] = Some(op);
        if waits {
            self.waiting.push_back(number);
        }
    }

    fn transfer(&mut self, shared: &Shared, reference: &Reference) -> Option<Transfer> {
        let allocate = |bytes| self.spare_buffers.take(bytes);
        Transfer::new(&shared.geometry, &reference.runs, reference.stored_bytes, allocate)
    }

    fn begin_large_read(&mut self, shared: &Shared, number: usize, op: Box<Op>, mut read: LargeRead) {
        let raw_bytes = read.value.raw_bytes as usize;
        if op.must_ask_for(raw_bytes) {
            return self.ask(number, op, raw_bytes);
        }
        if let Some(prefix) = op.near.as_ref().and_then(|near| near.prefix_of_large(shared, &read.reference)) {
            let LargeRead { value, reference, item, shown_by, .. } = read;
            let value = NearValue::Large { value, reference, prefix };
            return self.compute(shared, number, op, (item, shown_by), value);
        }
        read.transfer = self.transfer(shared, &read.reference);
        if shared.planted.has(Bug::FreeLargeUnderReader) {
            read.value.extents = Arc::new(shared.large.own(Vec::new()));
        }
        if let Some(transfer) = &mut read.transfer {
            (read.stored, read.crc) = (Vec::new(), read.reference.crc_of_none(shared.store_id));
            read.stored.reserve_exact(read.reference.stored_bytes as usize);
            transfer.read(&mut self.queue, tag_of(number));
        }
        let waits = read.transfer.as_ref().is_none_or(Transfer::is_idle);
        self.keep_large(number, op, LargeOp::Read(read), waits);
    }

    fn go_on_writing(&mut self, shared: &Shared, number: usize, mut op: Box<Op>, mut write: LargeWrite) {
        if shared.log.poisoned().is_err() {
            return self.refuse(number, op, poison(shared));
        }
        if write.stored.is_empty() {
            write.stored = op.request.take_value();
        }
        if write.written {
            return self.publish(shared, number, op, write);
        }
        if write.is_inline(shared) {
            let overwrites = write.overwrites(shared, &op);
            return match shared.admit(|| overwrites) {
                Admission::Go => self.publish(shared, number, op, write),
                Admission::Wait => self.keep_large(number, op, LargeOp::Write(write), true),
                Admission::Refuse(error) => self.refuse(number, op, error),
            };
        }
        if write.extents.is_none() {
            match write.take_room(shared, &op) {
                Room::Taken => {}
                Room::Stale => return self.attempt_op(shared, number, op, None),
                Room::Waits => return self.keep_large(number, op, LargeOp::Write(write), true),
                Room::Refused(error) => return self.refuse(number, op, error),
            }
        }
        let Some(reference) = &write.reference else { unreachable!("extents that were taken have a reference") };
        write.transfer = self.transfer(shared, reference);
        if let Some(transfer) = &mut write.transfer {
            let fua = !shared.planted.has(Bug::AppendBeforeLarge);
            transfer.write(&mut self.queue, &write.stored, fua, tag_of(number));
        }
        let waits = write.transfer.as_ref().is_none_or(Transfer::is_idle);
        self.keep_large(number, op, LargeOp::Write(write), waits);
    }

    /// Takes the completion of a command that moves a large value.
    pub(super) fn large_completed(&mut self, shared: &Shared, returned: Returned) {
        let tag = returned.completion.tag;
        let number = (tag & ((1 << TAG_SLOT_SHIFT) - 1)) as usize;
        let slot = (tag >> TAG_SLOT_SHIFT & 0xff) as usize;
        let Some(mut op) = self.ops[number].take() else { unreachable!("a completion has an operation") };
        let Some(large) = op.large.take() else { unreachable!("a completion has a large value") };
        match *large {
            LargeOp::Read(read) => self.large_read(shared, number, op, read, (slot, returned)),
            LargeOp::Write(write) => self.large_written(shared, number, op, write, (slot, returned)),
        }
    }

    fn large_read(
        &mut self,
        shared: &Shared,
        number: usize,
        op: Box<Op>,
        mut read: LargeRead,
        (slot, returned): (usize, Returned),
    ) {
        let Some(transfer) = &mut read.transfer else { unreachable!("a completion has a transfer") };
        transfer.completed(slot, returned);
        while let Some((buffer, bytes)) = transfer.take() {
            let from = read.stored.len();
            self.queue.copy_to_host(Purpose::Get, buffer, 0..bytes, &mut read.stored);
            read.crc = crc_append(read.crc, &read.stored[from..]);
        }
        transfer.read(&mut self.queue, tag_of(number));
        match transfer.outcome() {
            None => {
                let waits = transfer.is_idle();
                self.keep_large(number, op, LargeOp::Read(read), waits);
            }
            Some(Err(failed)) => {
                self.refuse(number, op, Error::of_command(&shared.drive, "read of a large value", &failed));
            }
            Some(Ok(())) => {
                self.give_slots(&mut read.transfer);
                self.large_read_done(shared, number, op, read);
            }
        }
    }

    fn give_slots(&mut self, transfer: &mut Option<Transfer>) {
        let slots = transfer.take().into_iter().flat_map(Transfer::into_buffers);
        slots.for_each(|buffer| self.spare_buffers.give(buffer));
    }

    fn large_read_done(&mut self, shared: &Shared, number: usize, op: Box<Op>, read: LargeRead) {
        let LargeRead { value, reference, item, seen, shown_by, stored, crc, .. } = read;
        let raw_bytes = value.raw_bytes as usize;
        let whole = crc == reference.crc && (reference.codec == Codec::Zstd || stored.len() == raw_bytes);
        if !whole && !shared.planted.has(Bug::TrustLarge) {
            return self.refuse(number, op, corrupt(&reference));
        }
        let is_get = op.request.is_get() && op.near.is_none();
        let into = if is_get { &mut self.values[self.values_now] } else { &mut self.scratch };
        if !is_get {
            into.clear();
        }
        let start = into.len();
        if reference.codec == Codec::Zstd {
            into.resize(start + raw_bytes, 0);
            if self.decompressor.decompress(&stored, &mut into[start..]).is_err() {
                into.truncate(start);
                return self.refuse(number, op, corrupt(&reference));
            }
        } else if start == 0 {
            *into = stored;
        } else {
            into.extend_from_slice(&stored);
        }
        shared.counters.large_reads.fetch_add(1, Ordering::Relaxed);
        if is_get {
            let value = self.range_from(start);
            let outcome = op.request.found(item, || shared.access_by_stamp(false, item.stamp), value);
            self.answer_after(shared, op.token, shown_by, outcome);
            return self.forget(number, op);
        }
        if op.near.is_some() {
            let value = std::mem::take(&mut self.scratch);
            return self.compute(shared, number, op, (item, shown_by), NearValue::Host(value));
        }
        let flash = FromFlash { seen, found: Some(item), large: Some(value), shown_by };
        self.attempt_op(shared, number, op, Some(flash));
    }

    fn large_written(
        &mut self,
        shared: &Shared,
        number: usize,
        op: Box<Op>,
        mut write: LargeWrite,
        (slot, returned): (usize, Returned),
    ) {
        let Some(transfer) = &mut write.transfer else { unreachable!("a completion has a transfer") };
        transfer.completed(slot, returned);
        while transfer.take().is_some() {}
        let fua = !shared.planted.has(Bug::AppendBeforeLarge);
        transfer.write(&mut self.queue, &write.stored, fua, tag_of(number));
        match transfer.outcome() {
            None => {
                let waits = transfer.is_idle();
                self.keep_large(number, op, LargeOp::Write(write), waits);
            }
            // It was to be durable at once, and may have failed for what another write left in a cache: as with a flush, the store
            // believes nothing from then on. Nothing names the extents.
            Some(Err(failed)) => {
                let error = Error::of_command(&shared.drive, "write of a large value", &failed);
                shared.log.poison("a large value", error.clone());
                self.refuse(number, op, error);
            }
            Some(Ok(())) => {
                self.give_slots(&mut write.transfer);
                write.written = true;
                self.publish(shared, number, op, write);
            }
        }
    }

    /// Appends the record, if the key is still what was decided on.
    fn publish(&mut self, shared: &Shared, number: usize, op: Box<Op>, mut write: LargeWrite) {
        let encoded = write.reference.as_ref().map(Reference::encode);
        let (codec, stored) = match &encoded {
            Some(reference) => (Codec::OutOfLine, &reference[..]),
            None => (write.codec, &write.stored[..]),
        };
        let header = Header { codec, stored_bytes: stored.len() as u32, ..write.header };
        let key = &op.request.key;
        loop {
            if write.extents.is_some() && shared.names_much() && !shared.rotate() {
                return self.keep_large(number, op, LargeOp::Write(write), true);
            }
            let mut shard = shared.shard(op.hash);
            if !write.still_holds(shared, &op, &shard) {
                drop(shard);
                return self.attempt_op(shared, number, op, None);
            }
            let done = append(shared, &mut shard, (op.keyspace, op.hash), Draft { header, key, stored });
            if done.is_ok()
                && let (Some(extents), Some(place)) = (write.extents.take(), shard.get(op.hash))
            {
                shared.name_large(&mut shard, place, Arc::new(extents));
            }
            if done.is_ok() && write.basis.as_ref().is_some_and(|basis| basis.was_read) {
                shard.note_read(op.hash);
            }
            drop(shard);
            match done {
                Ok(stamp) => return self.answer_large(shared, number, op, write, stamp),
                Err(WriteError::Refused(error)) => return self.refuse(number, op, error),
                Err(WriteError::NoRoom) if shared.rotate() => {}
                Err(WriteError::NoRoom) => return self.keep_large(number, op, LargeOp::Write(write), true),
            }
        }
    }

    fn answer_large(&mut self, shared: &Shared, number: usize, op: Box<Op>, write: LargeWrite, stamp: u64) {
        let bytes = op.request.key.len() as u64 + u64::from(write.header.raw_bytes);
        shared.counters.user_write_bytes.fetch_add(bytes, Ordering::Relaxed);
        let value = self.add_value(&write.shown);
        let outcome = write.answer.outcome(Item { stamp, ..Item::of(&write.header) }, value);
        self.answer_after(shared, op.token, stamp, outcome);
        self.forget(number, op);
    }
}
