//! What a batch needs before it can be appended: pages in the cache, and each value that no node takes in an extension. It is asked for
//! while the batch is attempted and sent with the session's next commands; the batch comes again when it is there.
//!
//! 1. An extension is durable before a record of the log names it.
//! 2. What was made ready for a batch that does not come again goes with the next one that comes.

use super::page_reads::PageRead;
use super::{OrderedSession, TAG_VALUE};
use crate::error::Error;
use crate::ordered::slabs::SlotShare;
use crate::ordered::tree::OrderedTree;
use crate::session::batch::{BatchStop, Write};
use crate::session::session_core::SessionCore;
use std::sync::Arc;
use tapetum_drive::{Lease, MemoryAddress, Operation, Purpose, Returned};
use tapetum_kernels::ordered::extension::{
    EXTENSION_HEAD_BYTES, ExtensionClass, ExtensionHead, ExtensionReference, stored_crc,
};
use tapetum_kernels::ordered::{NODE_BYTES, NODE_RECORD_BYTES_MAX, node_record_bytes};
use tapetum_kernels::record::Codec;

#[derive(Default)]
pub(super) struct Preparation {
    /// Pages that are to be read.
    pub wanted: Vec<PageRead>,
    /// Values of the batch that was attempted last, each in the place of its write.
    values: Vec<Option<BatchValue>>,
    /// A batch found no place in the cache.
    pub wants_room: bool,
    /// Why a read failed, or a write.
    pub failed: Option<Error>,
}

/// A value of a batch that is written to an extension.
pub(super) struct BatchValue {
    tree: Arc<OrderedTree>,
    key: Vec<u8>,
    value: Vec<u8>,
    stage: ValueStage,
}

enum ValueStage {
    Wanted,
    Writes(ExtensionReference, SlotShare),
    Written(ExtensionReference, SlotShare),
}

impl BatchValue {
    fn is_of(&self, write: &Write<'_>) -> bool {
        self.tree.keyspace == write.keyspace().id() && self.key == write.key() && self.value == write.value()
    }

    /// The reference to it, once it is durable.
    pub fn reference(&self) -> Option<ExtensionReference> {
        match self.stage {
            ValueStage::Written(reference, _) => Some(reference),
            ValueStage::Wanted | ValueStage::Writes(..) => None,
        }
    }

    /// A record names it.
    pub fn keep(self) {
        if let ValueStage::Written(_, share) = self.stage {
            let _ = share.keep();
        }
    }
}

/// Whether no node takes a write's value.
fn is_large(write: &Write<'_>) -> bool {
    write.is_put() && node_record_bytes(&write.draft(Codec::Raw, write.value()).header) > NODE_RECORD_BYTES_MAX
}

impl OrderedSession {
    /// The values of a batch that are in extensions, each in the place of its write; empty where there are none.
    pub(super) fn take_values(&mut self, writes: &[Write<'_>]) -> Result<Vec<Option<BatchValue>>, BatchStop> {
        let mut pairs = self.preparation.values.iter().zip(writes);
        let is_same = self.preparation.values.len() == writes.len()
            && pairs.all(|(value, write)| value.as_ref().map_or(!is_large(write), |value| value.is_of(write)));
        if !is_same {
            let mut kept = self.preparation.values.iter().flatten();
            if kept.any(|value| matches!(value.stage, ValueStage::Writes(..))) {
                return Err(BatchStop::Busy);
            }
            self.preparation.values.clear();
            if !writes.iter().any(is_large) {
                return Ok(Vec::new());
            }
            self.preparation.values = self.values_of(writes).map_err(BatchStop::Refused)?;
        }
        let all = std::mem::take(&mut self.preparation.values);
        if all.iter().flatten().all(|value| value.reference().is_some()) {
            return Ok(all);
        }
        self.give_values(all);
        Err(BatchStop::Busy)
    }

    /// The values were not appended: for the next attempt.
    pub(super) fn give_values(&mut self, values: Vec<Option<BatchValue>>) {
        self.preparation.values = values;
    }

    fn values_of(&mut self, writes: &[Write<'_>]) -> Result<Vec<Option<BatchValue>>, Error> {
        let mut values = Vec::with_capacity(writes.len());
        for write in writes {
            let (key, value) = (write.key(), write.value());
            if !is_large(write) {
                values.push(None);
                continue;
            }
            if !matches!(ExtensionClass::of(key.len(), value.len()), Some(ExtensionClass::Slab(_))) {
                let limit_bytes = (64 << 10) - EXTENSION_HEAD_BYTES - key.len();
                return Err(Error::ValueTooLarge { limit_bytes });
            }
            let tree = self.tree_of(write.keyspace().id())?;
            let tree = self.trees[tree].tree.clone();
            let (key, value) = (key.to_vec(), value.to_vec());
            values.push(Some(BatchValue { tree, key, value, stage: ValueStage::Wanted }));
        }
        Ok(values)
    }

    /// Sends what batches asked for, as far as there is room.
    pub fn send(&mut self, core: &mut SessionCore) {
        for read in std::mem::take(&mut self.preparation.wanted) {
            self.read_page(core, read);
        }
        for place in 0..self.preparation.values.len() {
            let Some(value) = &self.preparation.values[place] else { continue };
            if matches!(value.stage, ValueStage::Wanted) && !(self.has_credit(core) && self.write_value(core, place)) {
                return;
            }
        }
    }

    /// Writes a value to an extension, durably; whether there was a slot, and memory.
    fn write_value(&mut self, core: &mut SessionCore, place: usize) -> bool {
        let Some(BatchValue { tree, key, value, stage }) = &mut self.preparation.values[place] else { return true };
        let class = ExtensionClass::of(key.len(), value.len()).expect("others were refused");
        let bytes = (EXTENSION_HEAD_BYTES + key.len() + value.len()).next_multiple_of(NODE_BYTES);
        let Some(share) = tree.extensions(class).take(None) else { return false };
        let Some(mut buffer) = core.spare_buffers.take(bytes) else { return false };
        let (slot, stamp, stored_bytes) = (share.address(), core.base.log.give_stamp(), value.len() as u32);
        let head = ExtensionHead {
            keyspace: tree.keyspace.0,
            stamp,
            codec: Codec::Raw,
            raw_bytes: stored_bytes,
            stored_bytes,
            stored_crc: stored_crc(share.salt(), value),
        };
        let out = core.queue.fill(Purpose::Put, &mut buffer, 0..bytes);
        let at = head.encode(key, share.salt(), out);
        out[at..at + value.len()].copy_from_slice(value);
        out[at + value.len()..].fill(0);
        let (flash, from) = (share.flash_offset(), MemoryAddress::local(buffer.offset()));
        let operation = Operation::Write { flash, from, length: bytes as u32, fua: true };
        *stage = ValueStage::Writes(ExtensionReference { stamp, slot, codec: Codec::Raw, stored_bytes }, share);
        self.submit(core, (TAG_VALUE | place as u64, Purpose::Put), operation, Lease::Buffer(buffer));
        true
    }

    /// A value is in its extension, or not.
    pub(super) fn value_was_written(&mut self, core: &mut SessionCore, place: usize, returned: Returned) {
        core.spare_buffers.give(returned.lease.into_buffer());
        if !returned.completion.is_success() {
            let error = Error::of_command(core.queue.drive(), "write", &returned.completion);
            core.base.log.poison("an extension", error);
        }
        let Some(Some(BatchValue { stage, .. })) = self.preparation.values.get_mut(place) else {
            unreachable!("it stays until it is written")
        };
        *stage = match std::mem::replace(stage, ValueStage::Wanted) {
            ValueStage::Writes(reference, share) => {
                share.settle();
                ValueStage::Written(reference, share)
            }
            other => other,
        };
    }
}
