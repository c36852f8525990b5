//! Values that no node takes: written to an extension before the record that names it, and read from there.
//!
//! ```text
//! change ─► value too long ─► slot, stamp ─► forced write ─► attempt again ─► record with the reference ─► the old extension's share
//!                                                                                                        goes with the old images'
//! look ─► record names one ─► page given back ─► read ─┬─ stamp and checksum are right ─► answer, or decide
//!                                                      └─ not ─► look again ─► another reference: read that; the same: damage
//! ```
//! 1. An extension is durable before a page names it.
//! 2. Its slot is free when all images are durable that replace those which named it. Until a page names it, its writer has the only share.
//! 3. Nothing keeps a reader's extension from being replaced meanwhile: the stamp tells.

use super::OrderedSession;
use super::changes::large_value;
use super::looks::{deleted_by, is_live};
use super::op_state::{NewExtension, OpStage, OrderedOp, Shown};
use crate::error::Error;
use crate::keyspace::item::ItemHead;
use crate::keyspace::request::{Outcome, Request};
use crate::ordered::slabs::SlotSpace;
use crate::session::session_core::SessionCore;
use tapetum_drive::{Lease, LocalBuffer, MemoryAddress, Operation, Purpose, QueuePair, Returned};
use tapetum_kernels::ordered::extension::{
    EXTENSION_HEAD_BYTES, ExtensionClass, ExtensionHead, ExtensionReference, stored_crc,
};
use tapetum_kernels::ordered::{NODE_BYTES, SlotSalt};
use tapetum_kernels::record::Codec;

impl OrderedSession {
    /// Writes an operation's value to an extension, durably.
    pub(super) fn write_extension(&mut self, core: &mut SessionCore, (number, mut op): (usize, Box<OrderedOp>)) {
        op.kept.extension = None;
        let Some(value) = large_value(&op).map(<[u8]>::to_vec) else { return self.try_again(number, op) };
        let key_bytes = op.request.key.len();
        let class = match ExtensionClass::of(key_bytes, value.len()) {
            Some(class @ ExtensionClass::Slab(_)) => class,
            _ => {
                let limit_bytes = (64 << 10) - EXTENSION_HEAD_BYTES - key_bytes;
                return self.fail(core, (number, op), Error::ValueTooLarge { limit_bytes });
            }
        };
        let tree = op.kept.tree.clone().expect("it was attempted");
        let bytes = (EXTENSION_HEAD_BYTES + key_bytes + value.len()).next_multiple_of(NODE_BYTES);
        let (share, buffer) = (tree.extensions(class).take(None), core.spare_buffers.take(bytes));
        let (Some(share), Some(mut buffer)) = (share, buffer) else { return self.wait_for_room(number, op) };
        let (slot, stamp) = (share.address(), core.base.log.give_stamp());
        let stored_bytes = value.len() as u32;
        let reference = ExtensionReference { stamp, slot, codec: Codec::Raw, stored_bytes };
        let keyspace = op.keyspace.id().0;
        fill(&core.queue, (&reference, keyspace, &op.request.key, &value), share.salt(), (&mut buffer, bytes));
        let operation = Operation::Write {
            flash: share.flash_offset(),
            from: MemoryAddress::local(buffer.offset()),
            length: bytes as u32,
            fua: true,
        };
        op.kept.stage = OpStage::WritesExtension(Box::new(NewExtension { reference, share, value }));
        self.ops.put(number, op);
        self.submit(core, (number as u64, Purpose::Put), operation, Lease::Buffer(buffer));
    }

    /// An extension is durable, or not.
    pub(super) fn was_written(
        &mut self,
        core: &mut SessionCore,
        (number, mut op): (usize, Box<OrderedOp>),
        extension: Box<NewExtension>,
        Returned { completion, lease }: Returned,
    ) {
        core.spare_buffers.give(lease.into_buffer());
        if !completion.is_success() {
            let error = Error::of_command(core.queue.drive(), "write", &completion);
            core.base.log.poison("an extension", error);
            let error = core.base.log.poisoned().err().unwrap_or(Error::FullFlash);
            return self.fail(core, (number, op), error);
        }
        extension.share.settle();
        op.kept.extension = Some(extension);
        self.try_again(number, op);
    }

    /// Reads the extension that an operation's record names.
    pub(super) fn read_extension(
        &mut self,
        core: &mut SessionCore,
        (number, mut op): (usize, Box<OrderedOp>),
        (head, reference): (ItemHead, ExtensionReference),
    ) {
        let tree = op.kept.tree.clone().expect("it was attempted");
        let Some(read) = ExtensionRead::of(&reference, op.request.key.len(), |class| tree.extensions(class)) else {
            return self.mismatched(core, (number, op), reference);
        };
        let Some(buffer) = core.spare_buffers.take(read.bytes) else { return self.wait_for_room(number, op) };
        let operation = read.operation(&buffer);
        op.kept.stage = OpStage::ReadsExtension(head, reference);
        self.ops.put(number, op);
        self.submit(core, (number as u64, Purpose::Get), operation, Lease::Buffer(buffer));
    }

    /// An extension was read, or something else was in its place.
    pub(super) fn was_read_out_of_line(
        &mut self,
        core: &mut SessionCore,
        (number, mut op): (usize, Box<OrderedOp>),
        (head, reference): (ItemHead, ExtensionReference),
        Returned { completion, lease }: Returned,
    ) {
        let buffer = lease.into_buffer();
        if !completion.is_success() {
            core.spare_buffers.give(buffer);
            let error = Error::of_command(core.queue.drive(), "read", &completion);
            return self.fail(core, (number, op), error);
        }
        let tree = op.kept.tree.clone().expect("it was attempted");
        let read = ExtensionRead::of(&reference, op.request.key.len(), |class| tree.extensions(class));
        let value = read.and_then(|read| read.value(&core.queue, &buffer, (&op.request.key, head.value_bytes)));
        let value = value.map(<[u8]>::to_vec);
        core.spare_buffers.give(buffer);
        let Some(value) = value else { return self.mismatched(core, (number, op), reference) };
        op.kept.mismatched = None;
        if !matches!(op.request.borrow(), Request::Get { .. }) {
            op.kept.read = Some((head.stamp, value));
            return self.try_again(number, op);
        }
        let ticket = op.kept.ticket.take();
        let outcome = match is_live(core, &op, &head) {
            true => {
                let value = core.values.add(&value);
                Outcome::Value { flags: head.flags, stamp: head.stamp, expiry: head.expiry, value }
            }
            false => Outcome::Missing,
        };
        let deleted_by = deleted_by(core, &op, &head);
        self.answer(core, op.token, Shown { ticket, deleted_by }, outcome);
        self.ops.forget(number, op);
    }

    /// An operation looks at its record again: if that names the same extension as before, the store is damaged.
    fn mismatched(
        &mut self,
        core: &mut SessionCore,
        (number, mut op): (usize, Box<OrderedOp>),
        reference: ExtensionReference,
    ) {
        if op.kept.mismatched.replace(reference) == Some(reference) {
            return self.fail(core, (number, op), damaged_extension(&reference));
        }
        self.try_again(number, op);
    }
}

/// Where an extension is, and how much of it is read.
pub(super) struct ExtensionRead {
    flash: u64,
    pub bytes: usize,
    salt: SlotSalt,
    reference: ExtensionReference,
}

impl ExtensionRead {
    /// `None`: there is no such slot any more.
    pub fn of<'s>(
        reference: &ExtensionReference,
        key_bytes: usize,
        space: impl FnOnce(ExtensionClass) -> &'s SlotSpace,
    ) -> Option<ExtensionRead> {
        let space = space(reference.class(key_bytes)?);
        let (flash, salt) = (space.flash_offset(reference.slot)?, space.salt(reference.slot)?);
        let bytes = EXTENSION_HEAD_BYTES + key_bytes + reference.stored_bytes as usize;
        Some(ExtensionRead { flash, bytes: bytes.next_multiple_of(NODE_BYTES), salt, reference: *reference })
    }

    pub fn operation(&self, buffer: &LocalBuffer) -> Operation {
        Operation::Read { flash: self.flash, local: buffer.offset(), length: self.bytes as u32 }
    }

    /// The value, if this is the extension.
    pub fn value<'a>(
        &self,
        queue: &QueuePair,
        buffer: &'a LocalBuffer,
        (key, value_bytes): (&[u8], usize),
    ) -> Option<&'a [u8]> {
        let bytes = queue.look(Purpose::Get, buffer, 0..self.bytes);
        let (head, its_key) = ExtensionHead::parse(bytes, self.salt).ok()?;
        head.check(&self.reference, value_bytes as u32).ok()?;
        let stored_at = EXTENSION_HEAD_BYTES + its_key.len();
        let stored = bytes.get(stored_at..stored_at + head.stored_bytes as usize)?;
        (its_key == key && head.codec == Codec::Raw && head.holds(self.salt, stored)).then_some(stored)
    }
}

pub(super) fn damaged_extension(reference: &ExtensionReference) -> Error {
    let ExtensionReference { stamp, slot, stored_bytes, .. } = reference;
    let (extent, page) = (slot.extent().number(), slot.page());
    Error::Corrupt(format!("the extension with stamp {stamp} of {stored_bytes} bytes in extent {extent}, page {page}"))
}

/// Writes an extension, as it is to be on flash, to a buffer's first bytes.
fn fill(
    queue: &QueuePair,
    (reference, keyspace, key, value): (&ExtensionReference, u16, &[u8], &[u8]),
    salt: SlotSalt,
    (buffer, bytes): (&mut LocalBuffer, usize),
) {
    let out = queue.fill(Purpose::Put, buffer, 0..bytes);
    let head = ExtensionHead {
        keyspace,
        stamp: reference.stamp,
        codec: reference.codec,
        raw_bytes: value.len() as u32,
        stored_bytes: reference.stored_bytes,
        stored_crc: stored_crc(salt, value),
    };
    let at = head.encode(key, salt, out);
    out[at..at + value.len()].copy_from_slice(value);
    out[at + value.len()..].fill(0);
}
