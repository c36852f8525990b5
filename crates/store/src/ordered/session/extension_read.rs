//! A read of an extension: from flash through a few buffers of local memory into host memory.
//!
//! Meanwhile the extension may be replaced, or its slot reused. Its head, key and checksums tell.

use crate::ordered::slabs::SlotSpace;
use tapetum_base::media::piece_transfer::{PIECE_BYTES_MAX, PieceTransfer, ReturnedPiece, cut};
use tapetum_base::session::session_core::SessionCore;
use tapetum_drive::{Completion, LocalBuffer, Purpose};
use tapetum_kernels::mib_sums::MibCheck;
use tapetum_kernels::ordered::extension::{
    EXTENSION_PREFIX_BYTES_MAX, ExtensionClass, ExtensionHead, ExtensionReference, crc_of_none, front_bytes,
};
use tapetum_kernels::ordered::{NODE_BYTES, SlotSalt};
use tapetum_kernels::record::Codec;

const _: () = assert!(EXTENSION_PREFIX_BYTES_MAX as u64 <= PIECE_BYTES_MAX);

/// See the [module](self).
pub struct ExtensionRead {
    flash: u64,
    /// Bytes of head, key and stored bytes.
    bytes: u64,
    salt: SlotSalt,
    reference: ExtensionReference,
    transfer: Option<PieceTransfer>,
    /// The head, once it is known to be the right one.
    head: Option<ExtensionHead>,
    /// The slot holds another extension.
    is_another: bool,
    value: Vec<u8>,
    check: MibCheck,
}

pub enum ExtensionStep {
    OnItsWay,
    Value(Vec<u8>),
    /// The slot does not hold the referenced extension.
    Another,
    Failed(Completion),
}

/// The extension that is expected, and the purpose of the read.
#[derive(Clone, Copy)]
pub struct ReadOf<'k> {
    pub key: &'k [u8],
    pub value_bytes: usize,
    pub purpose: Purpose,
}

impl ExtensionRead {
    /// `None`: the slot does not exist any more.
    pub fn of<'s>(
        reference: &ExtensionReference,
        key_bytes: usize,
        space: impl FnOnce(ExtensionClass) -> &'s SlotSpace,
    ) -> Option<ExtensionRead> {
        let space = space(reference.class(key_bytes)?);
        let (flash, salt) = (space.flash_offset(reference.slot)?, space.salt(reference.slot)?);
        let stored_bytes = reference.stored_bytes as usize;
        let bytes = (front_bytes(key_bytes, stored_bytes) + stored_bytes) as u64;
        let (check, reference) = (MibCheck::new(crc_of_none(salt)), *reference);
        let (transfer, head, is_another, value) = (None, None, false, Vec::new());
        Some(ExtensionRead { flash, bytes, salt, reference, transfer, head, is_another, value, check })
    }

    pub fn reference(&self) -> &ExtensionReference {
        &self.reference
    }

    /// Starts the read. Returns whether there is memory for it. The queue has a place.
    pub fn begin(&mut self, core: &mut SessionCore, purpose: Purpose, tag: impl Fn(usize) -> u64) -> bool {
        let pieces = cut(self.flash, self.bytes, PIECE_BYTES_MAX, NODE_BYTES as u64).collect();
        self.transfer = PieceTransfer::new(pieces, |bytes| core.spare_buffers.take(bytes));
        let Some(transfer) = &mut self.transfer else { return false };
        transfer.read(&mut core.queue, purpose, tag);
        true
    }

    /// Continues with the data of a completed command.
    pub fn completed(
        &mut self,
        core: &mut SessionCore,
        of: ReadOf<'_>,
        piece: ReturnedPiece,
        tag: impl Fn(usize) -> u64,
    ) -> ExtensionStep {
        let Some(mut transfer) = self.transfer.take() else { unreachable!("a completion has a transfer") };
        transfer.completed(piece);
        while let Some((buffer, bytes)) = transfer.take() {
            self.take(core, of, buffer, bytes);
        }
        if self.is_another {
            transfer.stop();
        }
        transfer.read(&mut core.queue, of.purpose, tag);
        let Some(outcome) = transfer.outcome() else {
            self.transfer = Some(transfer);
            return ExtensionStep::OnItsWay;
        };
        transfer.into_buffers().for_each(|buffer| core.spare_buffers.give(buffer));
        match (outcome, self.head) {
            (Err(failed), _) => ExtensionStep::Failed(failed),
            (Ok(()), Some(head))
                if self.check.damaged(&head.sums).is_none() && self.value.len() == head.stored_bytes as usize =>
            {
                ExtensionStep::Value(std::mem::take(&mut self.value))
            }
            (Ok(()), _) => ExtensionStep::Another,
        }
    }

    fn take(&mut self, core: &SessionCore, of: ReadOf<'_>, buffer: &LocalBuffer, bytes: usize) {
        if self.is_another {
            return;
        }
        let mut bytes = core.queue.look(of.purpose, buffer, 0..bytes);
        let head = match self.head {
            Some(head) => head,
            None => {
                let Some((head, stored)) = self.parse(of, bytes) else {
                    self.is_another = true;
                    return;
                };
                self.value.reserve_exact(head.stored_bytes as usize);
                bytes = stored;
                *self.head.insert(head)
            }
        };
        self.check.take(&head.sums, bytes);
        self.value.extend_from_slice(bytes);
    }

    /// Parses the head of the expected extension. Returns it and the first stored bytes.
    fn parse<'b>(&self, of: ReadOf<'_>, bytes: &'b [u8]) -> Option<(ExtensionHead, &'b [u8])> {
        let (head, key) = ExtensionHead::parse(bytes, self.salt).ok()?;
        head.check(&self.reference, of.value_bytes as u32).ok()?;
        let stored = bytes.get(front_bytes(key.len(), head.stored_bytes as usize)..)?;
        (key == of.key && head.codec == Codec::Raw).then_some((head, stored))
    }
}
