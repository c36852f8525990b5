//! Values that no node can hold. They are written to an extension before a record names it, and read from there.
//!
//! ```text
//! change ─► value too long ─► slot, stamp ─► written ─► flushed with others ─► attempt again ─► record with the reference
//!                                                                                               ─► the old extension's share goes
//!                                                                                                  with the old images'
//! look ─► record names one ─► page given back ─► read ─┬─ stamp and checksum are right ─► answer, or decide
//!                                                      └─ not ─► look again ─► another reference: read that; the same: damage
//! ```
//! 1. An extension is durable before a page names it.
//! 2. Its slot is freed when all images are durable that replace those which named it. Until a page names it, its writer has the only share.
//! 3. A reader's extension may be replaced meanwhile: the stamp tells.
//! 4. An extension written for a request is used if the request is decided on the same item again: then its value is the same.

use super::changes::{basis, large_value};
use super::context::Context;
use super::extension_read::{ExtensionRead, ExtensionStep, ReadOf};
use super::extension_write::ExtensionWrite;
use super::in_hand::OpInHand;
use super::looks::{deleted_by, is_live};
use super::op_state::{NewExtension, OpStage, OrderedOp, Shown, Step};
use super::through::compute_extension;
use crate::ordered::cache::durability_ticket::DurabilityTicket;
use crate::ordered::slabs::SlotShare;
use crate::ordered::slabs::large_groups::WantedSlot;
use tapetum_base::error::Error;
use tapetum_base::media::piece_transfer::ReturnedPiece;
use tapetum_base::request::item::ItemHead;
use tapetum_base::request::{Outcome, Request};
use tapetum_base::session::session_core::SessionCore;
use tapetum_drive::{Purpose, fail_point};
use tapetum_kernels::ordered::NODE_BYTES;
use tapetum_kernels::ordered::extension::{ExtensionClass, ExtensionReference};

/// The position in a tag of the number of the piece's buffer.
const TAG_PIECE_SHIFT: u32 = 48;
const TAG_PIECE_BITS: u32 = 4;

/// Makes tags for the pieces of the transfer `own`.
pub(super) fn piece_tag(own: u64) -> impl Fn(usize) -> u64 {
    move |piece| own | (piece as u64) << TAG_PIECE_SHIFT
}

/// Splits a tag into the transfer's own tag and the piece.
pub(super) fn of_piece_tag(tag: u64) -> (u64, usize) {
    let piece = tag >> TAG_PIECE_SHIFT & ((1 << TAG_PIECE_BITS) - 1);
    (tag & !(piece << TAG_PIECE_SHIFT), piece as usize)
}

/// Whether an operation waits for its extension to become durable, or for a slot for it.
pub(super) fn waits_for_extension(op: &OrderedOp) -> bool {
    let is_flushed = |extension: &NewExtension| extension.flushed.is_done();
    op.kept.extension.as_ref().is_some_and(|extension| !is_flushed(extension))
        || op.kept.want.as_ref().is_some_and(|want| want.waits())
}

/// Writes an operation's value to an extension.
pub(super) fn write_extension((cx, core): (&Context, &mut SessionCore), op: &mut OpInHand<'_>) -> Step {
    op.kept.extension = None;
    let key_bytes = op.request.key.len();
    let Some(value_bytes) = large_value(op).map(<[u8]>::len) else { return Step::Again };
    let Some(class) = ExtensionClass::of(key_bytes, value_bytes) else {
        let limit_bytes = core.base.value_bytes_max;
        return Step::Fail(Error::ValueTooLarge { limit_bytes });
    };
    let share = match extension_slot(core, op, class) {
        Ok(Some(share)) => share,
        Ok(None) => return Step::AwaitRoom,
        Err(error) => return Step::Fail(error),
    };
    let keyspace = op.keyspace.id().0;
    match ExtensionWrite::new(core, share, keyspace, &op.request.key, large_value(op).unwrap_or_default()) {
        Ok(write) => {
            go_on_writing((cx, core), op, write);
            Step::BeginExtension
        }
        Err(share) => {
            op.kept.slot = Some(share);
            Step::AwaitRoom
        }
    }
}

/// Takes a slot for an extension. `Ok(None)`: it was requested and comes later.
fn extension_slot(core: &SessionCore, op: &mut OrderedOp, class: ExtensionClass) -> Result<Option<SlotShare>, Error> {
    let tree = op.kept.tree.clone().expect("it was attempted");
    let (space, pages) = (tree.extensions(class), (class.bytes() / NODE_BYTES as u64) as u32);
    let fits = |share: &SlotShare| share.is_of(space) && share.pages() >= pages;
    if let Some(kept) = op.kept.slot.take().filter(fits) {
        return Ok(Some(kept));
    }
    let taken = match (class, op.kept.want.take()) {
        (ExtensionClass::Slab(_), _) => space.take(None),
        (ExtensionClass::Large(_), None) => None,
        (ExtensionClass::Large(_), Some(want)) => match want.take() {
            WantedSlot::Given(share) => Some(share).filter(fits),
            WantedSlot::Waits => None,
            WantedSlot::None => return Err(Error::FullFlash),
        },
    };
    if taken.is_some() {
        return Ok(taken);
    }
    match class {
        ExtensionClass::Slab(_) if space.is_full() => return Err(Error::FullFlash),
        ExtensionClass::Slab(_) => {}
        ExtensionClass::Large(_) => op.kept.want = Some(space.want(pages)),
    }
    core.base.wakeup.wake();
    Ok(None)
}

fn go_on_writing((cx, core): (&Context, &mut SessionCore), op: &mut OpInHand<'_>, mut write: Box<ExtensionWrite>) {
    write.go_on(core, large_value(op).unwrap_or_default(), false, piece_tag(cx.slot.tag(op.number() as u64)));
    op.kept.stage = OpStage::WritesExtension(write);
}

/// Called when a piece of an extension was written, or the write failed.
pub(super) fn was_written(
    (cx, core): (&Context, &mut SessionCore),
    op: &mut OpInHand<'_>,
    write: Box<ExtensionWrite>,
    piece: ReturnedPiece,
) -> Step {
    let written = match write.completed(core, piece) {
        Ok((written, Ok(()))) => written,
        Ok((_, Err(failed))) => {
            let error = Error::of_command(core.queue.drive(), "write", &failed);
            core.base.log.poison("an extension", error);
            return Step::Fail(core.base.log.poisoned().err().unwrap_or(Error::FullFlash));
        }
        Err(write) => {
            go_on_writing((cx, core), op, write);
            return Step::OnItsWay;
        }
    };
    let flushed = cx.state.write_back.flush_written();
    let flushed = if fail_point!(OrderedNameEarly) { DurabilityTicket::done() } else { flushed };
    op.kept.extension = Some(Box::new(NewExtension { written, basis: basis(op), flushed }));
    Step::Again
}

/// Reads the extension that an operation's record names.
pub(super) fn read_extension(
    (cx, core): (&Context, &mut SessionCore),
    op: &mut OpInHand<'_>,
    head: ItemHead,
    reference: ExtensionReference,
) -> Step {
    if let Some(step) = compute_extension((cx, core), op, head, reference) {
        return step;
    }
    let tree = op.kept.tree.clone().expect("it was attempted");
    let Some(mut read) = ExtensionRead::of(&reference, op.request.key.len(), |class| tree.extensions(class)) else {
        return mismatched(op, reference);
    };
    if !op.request.is_get() {
        if let Some(bytes) = op.must_ask_to_join(head.value_bytes) {
            return Step::Ask(bytes);
        }
        if !core.joined_bytes.grants(&mut op.kept.joined, head.value_bytes) {
            return Step::AwaitRoom;
        }
    }
    if !read.begin(core, Purpose::Get, piece_tag(cx.slot.tag(op.number() as u64))) {
        return Step::AwaitRoom;
    }
    op.kept.stage = OpStage::ReadsExtension(head, Box::new(read));
    Step::BeginExtension
}

/// Called when a piece of an extension was read, or another extension was found in its slot.
pub(super) fn was_read_out_of_line(
    (cx, core): (&Context, &mut SessionCore),
    op: &mut OpInHand<'_>,
    head: ItemHead,
    mut read: Box<ExtensionRead>,
    piece: ReturnedPiece,
) -> Step {
    let of = ReadOf { key: &op.request.key, value_bytes: head.value_bytes, purpose: Purpose::Get };
    let value = match read.completed(core, of, piece, piece_tag(cx.slot.tag(op.number() as u64))) {
        ExtensionStep::OnItsWay => {
            op.kept.stage = OpStage::ReadsExtension(head, read);
            return Step::OnItsWay;
        }
        ExtensionStep::Another => return mismatched(op, *read.reference()),
        ExtensionStep::Failed(failed) => return Step::Fail(Error::of_command(core.queue.drive(), "read", &failed)),
        ExtensionStep::Value(value) => value,
    };
    op.kept.mismatched = None;
    if !matches!(op.request.borrow(), Request::Get { .. }) {
        op.kept.read = Some((head.stamp, value));
        return Step::Again;
    }
    let ticket = op.kept.ticket.take();
    let outcome = match is_live(core, op, &head) {
        true => {
            let value = core.values.add_owned(value);
            Outcome::Value { flags: head.flags, stamp: head.stamp, expiry: head.expiry, value }
        }
        false => Outcome::Missing,
    };
    let deleted_by = deleted_by(core, op, &head);
    Step::Answer(Shown { ticket, deleted_by, read_flash: true }, outcome)
}

/// Lets an operation read its record again. If that names the same extension as before, the store is damaged.
pub(super) fn mismatched(op: &mut OrderedOp, reference: ExtensionReference) -> Step {
    match op.kept.mismatched.replace(reference) == Some(reference) {
        true => Step::Fail(damaged_extension(&reference)),
        false => Step::Again,
    }
}

pub(super) fn damaged_extension(reference: &ExtensionReference) -> Error {
    let ExtensionReference { stamp, slot, stored_bytes, .. } = reference;
    let (extent, page) = (slot.extent().number(), slot.page());
    Error::Corrupt(format!("the extension with stamp {stamp} of {stored_bytes} bytes in extent {extent}, page {page}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_says_what_it_was_made_of() {
        for own in [0, 77, super::super::TAG_SCAN | 9] {
            for piece in 0..1 << TAG_PIECE_BITS {
                assert_eq!(of_piece_tag(piece_tag(own)(piece)), (own, piece));
            }
        }
    }
}
