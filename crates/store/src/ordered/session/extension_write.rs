//! A write of an extension: a prefix and the value, in pieces through a few buffers of local memory.

use crate::ordered::slabs::SlotShare;
use tapetum_base::media::piece_transfer::{PIECE_BYTES_MAX, PieceTransfer, ReturnedPiece, cut};
use tapetum_base::session::session_core::SessionCore;
use tapetum_drive::Completion;
use tapetum_kernels::mib_sums::MibSums;
use tapetum_kernels::ordered::NODE_BYTES;
use tapetum_kernels::ordered::extension::{ExtensionHead, ExtensionReference, crc_of_none, front_bytes};
use tapetum_kernels::record::Codec;

/// See the [module](self). The caller keeps the value.
pub struct ExtensionWrite {
    pub reference: ExtensionReference,
    pub share: SlotShare,
    /// The bytes in front of the value.
    prefix: Vec<u8>,
    transfer: PieceTransfer,
}

/// An extension that was written to its slot.
pub struct WrittenExtension {
    pub reference: ExtensionReference,
    pub share: SlotShare,
}

impl ExtensionWrite {
    /// A write of a value to this slot. Returns the slot if there is no memory to write through.
    pub fn new(
        core: &mut SessionCore,
        share: SlotShare,
        keyspace: u16,
        key: &[u8],
        value: &[u8],
    ) -> Result<Box<ExtensionWrite>, SlotShare> {
        let bytes = (front_bytes(key.len(), value.len()) + value.len()) as u64;
        let pieces = cut(share.flash_offset(), bytes, PIECE_BYTES_MAX, NODE_BYTES as u64).collect();
        let Some(transfer) = PieceTransfer::new(pieces, |bytes| core.spare_buffers.take(bytes)) else {
            return Err(share);
        };
        let (slot, stamp, stored_bytes) = (share.address(), core.base.log.give_stamp(), value.len() as u32);
        let reference = ExtensionReference { stamp, slot, codec: Codec::Raw, stored_bytes };
        let prefix = prefix(&reference, keyspace, key, value, &share);
        Ok(Box::new(ExtensionWrite { reference, share, prefix, transfer }))
    }

    /// Sends pieces. With `fua`, each is durable when it is written.
    pub fn go_on(&mut self, core: &mut SessionCore, value: &[u8], fua: bool, tag: impl Fn(usize) -> u64) {
        let ExtensionWrite { transfer, prefix, .. } = self;
        transfer.write(&mut core.queue, fua, tag, |at, to| fill(prefix, value, at as usize, to));
    }

    /// Whether no piece is in flight and some are left.
    pub fn is_idle(&self) -> bool {
        self.transfer.is_idle()
    }

    /// Takes a completion. `Ok`: the last piece was written, or one failed; otherwise the write continues.
    pub fn completed(
        mut self: Box<Self>,
        core: &mut SessionCore,
        piece: ReturnedPiece,
    ) -> Result<(WrittenExtension, Result<(), Completion>), Box<ExtensionWrite>> {
        self.transfer.completed(piece);
        while self.transfer.take().is_some() {}
        let Some(outcome) = self.transfer.outcome() else { return Err(self) };
        let ExtensionWrite { reference, share, transfer, .. } = *self;
        transfer.into_buffers().for_each(|buffer| core.spare_buffers.give(buffer));
        share.settle(reference.stamp);
        Ok((WrittenExtension { reference, share }, outcome))
    }
}

/// The bytes in front of an extension's stored bytes.
fn prefix(reference: &ExtensionReference, keyspace: u16, key: &[u8], value: &[u8], share: &SlotShare) -> Vec<u8> {
    let (salt, mut prefix) = (share.salt(), vec![0; front_bytes(key.len(), value.len())]);
    let head = ExtensionHead {
        keyspace,
        stamp: reference.stamp,
        codec: reference.codec,
        raw_bytes: value.len() as u32,
        stored_bytes: reference.stored_bytes,
        sums: MibSums::of(crc_of_none(salt), value),
    };
    head.encode(key, salt, &mut prefix);
    prefix
}

/// Fills a piece that begins at `at` in the prefix and the value behind it.
fn fill(prefix: &[u8], value: &[u8], at: usize, to: &mut [u8]) {
    let of_prefix = prefix.get(at..).unwrap_or_default();
    let of_prefix = &of_prefix[..of_prefix.len().min(to.len())];
    let (front, behind) = to.split_at_mut(of_prefix.len());
    front.copy_from_slice(of_prefix);
    let from = at.saturating_sub(prefix.len());
    behind.copy_from_slice(&value[from..from + behind.len()]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_filled_from_what_is_in_front_and_from_the_value() {
        let (prefix, value): (Vec<u8>, Vec<u8>) = ((0..10).collect(), (10..50).collect());
        for piece_bytes in [1, 3, 10, 11, 50] {
            let mut filled = vec![0; 50];
            for (number, piece) in filled.chunks_mut(piece_bytes).enumerate() {
                fill(&prefix, &value, number * piece_bytes, piece);
            }
            assert!(filled.into_iter().eq(0..50), "{piece_bytes}");
        }
    }
}
