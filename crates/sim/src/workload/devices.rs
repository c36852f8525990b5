//! Requests on block devices, as clients of a disk send them, cut into operations on blocks.

use super::{Draw, Workload};
use crate::model::Model;
use crate::model::operation::Kind;
use std::rc::Rc;
use tapetum::{BLOCK_BYTES, BlockPiece, Condition, Expiry};

/// The most blocks that one request covers.
const BLOCKS_MAX: u64 = 5;
/// The most pending requests that cover a block: the model tries them in every order.
const PENDING_MAX: usize = 3;

/// One request on a device.
pub struct DeviceRequest {
    /// Operations on its blocks, with their keys.
    pub parts: Vec<(u64, usize, Kind)>,
    /// It must be durable when it is answered.
    pub is_forced: bool,
}

impl Workload {
    /// A request on one of the existing devices, unless its blocks are busy.
    pub(super) fn device_request(&mut self, model: &Model) -> Option<Draw> {
        let kind = self.random.below(100);
        self.device_request_of(model, kind)
    }

    /// Only writes of whole blocks.
    pub(super) fn device_write(&mut self, model: &Model) -> Option<Draw> {
        self.device_request_of(model, 40)
    }

    fn device_request_of(&mut self, model: &Model, kind: u64) -> Option<Draw> {
        let slot = self.devices[self.random.below(self.devices.len() as u64) as usize];
        let blocks = self.keys_of(slot).count() as u64;
        if !self.open[slot] || blocks == 0 {
            return None;
        }
        let range = self.device_range(blocks, kind);
        let mut parts = Vec::new();
        let (mut left, mut has_held) = (range, false);
        while !left.is_empty() {
            let piece = BlockPiece::first_of(&left);
            left.start += piece.within.len() as u64;
            let key = slot + piece.block as usize * self.open.len();
            has_held |= model.pending(key) >= PENDING_MAX;
            let id = self.operation_id();
            if let Some(kind) = self.part(id, &piece, kind) {
                parts.push((id, key, kind));
            }
        }
        let is_forced = kind >= 25 && self.random.one_in(4);
        (!has_held && !parts.is_empty()).then_some(Draw::Device { slot, request: DeviceRequest { parts, is_forced } })
    }

    /// A range of a device in bytes; whole blocks for kinds that usually are.
    fn device_range(&mut self, blocks: u64, kind: u64) -> std::ops::Range<u64> {
        let block = BLOCK_BYTES as u64;
        let count = 1 + self.random.below(BLOCKS_MAX.min(blocks));
        // A quarter of the device is busier than the rest.
        let among = if self.random.one_in(2) { blocks.div_ceil(4) } else { blocks };
        let first = self.random.below(among).min(blocks - count);
        let (start, end) = (first * block, (first + count) * block);
        match kind {
            60..80 => start + self.random.below(block)..end - self.random.below(block - 1).min(end - start - block),
            _ => start..end,
        }
    }

    /// The operation on one block: read, write, write of a part, trim or zeroing.
    fn part(&mut self, id: u64, piece: &BlockPiece, kind: u64) -> Option<Kind> {
        let BlockPiece { within, .. } = piece.clone();
        let whole = |value| Kind::Put { value, flags: 0, expiry: Expiry::NONE, condition: Condition::Always };
        Some(match kind {
            0..25 => Kind::Get,
            25..70 if piece.is_whole() => whole(self.value_of(id, BLOCK_BYTES as u64)),
            25..70 => Kind::Patch { within: within.clone(), bytes: self.value_of(id, within.len() as u64) },
            // Zeros that must be allocated on flash.
            85..90 if piece.is_whole() => whole(Rc::from(vec![0; BLOCK_BYTES])),
            70..80 | 85..90 if !piece.is_whole() => Kind::Zero { within },
            // A trim does not touch parts of blocks.
            80..85 if !piece.is_whole() => return None,
            _ => Kind::Delete { stamp: None },
        })
    }
}
