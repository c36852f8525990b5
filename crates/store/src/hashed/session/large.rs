//! Operations on large values, beside the record: what they keep, and reads. Writes are in [`super::large_write`].
//!
//! ```text
//! memory ─► reading ─► checked, inflated ─► answer, or decide on it
//! ```
//! An operation holds the extents that it reads or writes, and nothing else, while commands are on their way. See
//! [`crate::hashed::large`].

use super::large_write::LargeWrite;
use super::near::{NearItem, NearValue};
use super::{FromFlash, HashedMeans, HashedOp, HashedSession};
use crate::hashed::HashedEngine;
use crate::hashed::buffer::Seen;
use crate::hashed::large::LargeExtents;
use crate::hashed::large::pieces::pieces;
use crate::hashed::large::verify::corrupt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tapetum_base::error::Error;
use tapetum_base::media::piece_transfer::{PIECE_BYTES_MAX, PieceTransfer, ReturnedPiece};
use tapetum_base::request::item::ItemHead;
use tapetum_base::session::engine_session::OWN_TAG_BITS;
use tapetum_base::session::session_core::SessionCore;
use tapetum_drive::{Purpose, Returned, fail_point};
use tapetum_kernels::mib_sums::MibCheck;
use tapetum_kernels::record::{Codec, Record};
use tapetum_kernels::reference::Reference;

/// Set in the tags of commands that move a large value; the slot stands above the operation's number.
pub(super) const TAG_LARGE: u64 = 1 << (OWN_TAG_BITS - 1);
const TAG_SLOT_SHIFT: u32 = 48;

/// The work of an operation on a large value.
pub(super) enum LargeOp {
    Read(LargeRead),
    Write(LargeWrite),
}

/// A large value in its extents, and its record's description of it.
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
    item: ItemHead,
    seen: Seen,
    shown_by: u64,
    transfer: Option<PieceTransfer>,
    stored: Vec<u8>,
    check: MibCheck,
}

impl LargeRead {
    pub(super) fn new(
        engine: &HashedEngine,
        value: OutOfLine,
        item: ItemHead,
        seen: Seen,
        shown_by: u64,
    ) -> Result<LargeRead, Error> {
        let Ok(reference) = Reference::parse(&value.reference) else {
            return Err(Error::Corrupt("a record names a large value that makes no sense".into()));
        };
        let (stored, check) = (Vec::new(), MibCheck::new(reference.crc_of_none(engine.store_id)));
        Ok(LargeRead { value, reference, item, seen, shown_by, transfer: None, stored, check })
    }
}

pub(super) fn tag_of(number: usize) -> impl Fn(usize) -> u64 {
    move |slot| TAG_LARGE | (slot as u64) << TAG_SLOT_SHIFT | number as u64
}

pub(super) fn transfer((core, engine): HashedMeans<'_>, reference: &Reference) -> Option<PieceTransfer> {
    let pieces = pieces(&engine.geometry, &reference.runs, reference.stored_bytes, PIECE_BYTES_MAX);
    PieceTransfer::new(pieces, |bytes| core.spare_buffers.take(bytes))
}

pub(super) fn give_slots(core: &mut SessionCore, transfer: &mut Option<PieceTransfer>) {
    let slots = transfer.take().into_iter().flat_map(PieceTransfer::into_buffers);
    slots.for_each(|buffer| core.spare_buffers.give(buffer));
}

impl HashedSession {
    /// The large value of a record in a write buffer. The caller holds the shard.
    pub(super) fn out_of_line(record: &Record<'_>, extents: Option<Arc<LargeExtents>>) -> OutOfLine {
        let Some(extents) = extents else { unreachable!("a buffer holds the extents that its records name") };
        OutOfLine { reference: record.stored.to_vec(), raw_bytes: record.header.raw_bytes, extents }
    }

    /// Starts an operation on a large value, or goes on with one that waited.
    pub(super) fn go_on_large(
        &mut self,
        (core, engine): HashedMeans<'_>,
        number: usize,
        op: Box<HashedOp>,
        large: Box<LargeOp>,
    ) {
        match *large {
            LargeOp::Read(read) => self.begin_large_read((core, engine), number, op, read),
            LargeOp::Write(write) => self.go_on_writing((core, engine), number, op, write),
        }
    }

    pub(super) fn keep_large(&mut self, number: usize, mut op: Box<HashedOp>, large: LargeOp, waits: bool) {
        op.kept.large = Some(Box::new(large));
        match waits {
            true => self.ops.wait_again(number, op),
            false => self.ops.put(number, op),
        }
    }

    fn begin_large_read(
        &mut self,
        (core, engine): HashedMeans<'_>,
        number: usize,
        mut op: Box<HashedOp>,
        mut read: LargeRead,
    ) {
        let raw_bytes = read.value.raw_bytes as usize;
        if op.must_ask_for(raw_bytes) {
            return self.ask(core, number, op, raw_bytes);
        }
        if let Some(prefix) = op.kept.near.as_ref().and_then(|near| near.prefix_of_large(engine, &read.reference)) {
            let LargeRead { value, reference, item, shown_by, .. } = read;
            let value = NearValue::Large { value, reference, prefix };
            return self.compute((core, engine), number, op, NearItem { item, shown_by }, value);
        }
        if !op.request.is_get() {
            if let Some(bytes) = op.must_ask_to_join(raw_bytes) {
                return self.ask(core, number, op, bytes);
            }
            if !core.joined_bytes.grants(&mut op.kept.joined, raw_bytes) {
                return self.keep_large(number, op, LargeOp::Read(read), true);
            }
        }
        read.transfer = transfer((core, engine), &read.reference);
        if fail_point!(FreeLargeUnderReader) {
            read.value.extents = Arc::new(engine.large.own(Vec::new()));
        }
        if let Some(transfer) = &mut read.transfer {
            (read.stored, read.check) = (Vec::new(), MibCheck::new(read.reference.crc_of_none(engine.store_id)));
            read.stored.reserve_exact(read.reference.stored_bytes as usize);
            transfer.read(&mut core.queue, Purpose::Get, tag_of(number));
        }
        let waits = read.transfer.as_ref().is_none_or(PieceTransfer::is_idle);
        self.keep_large(number, op, LargeOp::Read(read), waits);
    }

    /// Takes the completion of a command that moves a large value.
    pub(super) fn large_completed(&mut self, (core, engine): HashedMeans<'_>, returned: Returned) {
        let tag = returned.completion.tag;
        let number = (tag & ((1 << TAG_SLOT_SHIFT) - 1)) as usize;
        let slot = (tag >> TAG_SLOT_SHIFT & 0xff) as usize;
        let mut op = self.ops.take(number);
        let Some(large) = op.kept.large.take() else { unreachable!("a completion has a large value") };
        let piece = ReturnedPiece { slot, returned };
        match *large {
            LargeOp::Read(read) => self.large_read((core, engine), number, op, read, piece),
            LargeOp::Write(write) => self.large_written((core, engine), number, op, write, piece),
        }
    }

    fn large_read(
        &mut self,
        (core, engine): HashedMeans<'_>,
        number: usize,
        op: Box<HashedOp>,
        mut read: LargeRead,
        piece: ReturnedPiece,
    ) {
        let Some(transfer) = &mut read.transfer else { unreachable!("a completion has a transfer") };
        transfer.completed(piece);
        while let Some((buffer, bytes)) = transfer.take() {
            let from = read.stored.len();
            core.queue.copy_to_host(Purpose::Get, buffer, 0..bytes, &mut read.stored);
            read.check.take(&read.reference.sums, &read.stored[from..]);
        }
        transfer.read(&mut core.queue, Purpose::Get, tag_of(number));
        match transfer.outcome() {
            None => {
                let waits = transfer.is_idle();
                self.keep_large(number, op, LargeOp::Read(read), waits);
            }
            Some(Err(failed)) => {
                self.refuse(core, number, op, Error::of_command(&engine.drive, "read of a large value", &failed));
            }
            Some(Ok(())) => {
                give_slots(core, &mut read.transfer);
                self.large_read_done((core, engine), number, op, read);
            }
        }
    }

    fn large_read_done(&mut self, (core, engine): HashedMeans<'_>, number: usize, op: Box<HashedOp>, read: LargeRead) {
        let LargeRead { value, reference, item, seen, shown_by, stored, check, .. } = read;
        let raw_bytes = value.raw_bytes as usize;
        let damaged = check.damaged(&reference.sums);
        let whole = damaged.is_none() && (reference.codec == Codec::Zstd || stored.len() == raw_bytes);
        if !whole && !fail_point!(TrustLarge) {
            return self.refuse(core, number, op, corrupt(&reference, damaged));
        }
        let is_get = op.request.is_get() && op.kept.near.is_none();
        let into = if is_get { core.values.current() } else { &mut self.scratch };
        if !is_get {
            into.clear();
        }
        let start = into.len();
        if reference.codec == Codec::Zstd {
            into.resize(start + raw_bytes, 0);
            if self.decompressor.decompress(&stored, &mut into[start..]).is_err() {
                into.truncate(start);
                return self.refuse(core, number, op, corrupt(&reference, None));
            }
        } else if start == 0 {
            *into = stored;
        } else {
            into.extend_from_slice(&stored);
        }
        engine.counters.large_reads.fetch_add(1, Ordering::Relaxed);
        if is_get {
            let value = core.values.range_from(start);
            let outcome = op.request.found(item, || engine.access_by_stamp(false, item.stamp), value);
            core.answer_shown(op.token, shown_by, outcome, true);
            return self.forget(core, number, op);
        }
        if op.kept.near.is_some() {
            let value = std::mem::take(&mut self.scratch);
            return self.compute((core, engine), number, op, NearItem { item, shown_by }, NearValue::Host(value));
        }
        let flash = FromFlash { seen, found: Some(item), large: Some(value), shown_by };
        self.attempt_op((core, engine), number, op, Some(flash));
    }
}
