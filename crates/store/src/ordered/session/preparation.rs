//! The preparation of a batch before its append: pages must be in the cache, and each value that no node can hold in an extension. An attempt of the
//! batch requests them, and the session's next commands bring them. The caller then submits the batch again.
//!
//! 1. An extension is durable before a record of the log names it.
//! 2. The preparation for a batch that is not submitted again is dropped with the next batch.

use super::TAG_VALUE;
use super::context::{Context, OrderedMeans};
use super::extension_write::{ExtensionWrite, WrittenExtension};
use super::extensions::piece_tag;
use super::page_reads::{PageRead, PageReadEnd, PageReads};
use crate::ordered::slabs::SlotShare;
use crate::ordered::slabs::large_groups::{SlotWant, WantedSlot};
use crate::ordered::tree::OrderedTree;
use std::sync::Arc;
use tapetum_base::error::Error;
use tapetum_base::media::piece_transfer::ReturnedPiece;
use tapetum_base::session::KEPT_BYTES_MAX;
use tapetum_base::session::batch::{BatchStop, Write};
use tapetum_base::session::session_core::SessionCore;
use tapetum_kernels::ordered::extension::{ExtensionClass, ExtensionReference};
use tapetum_kernels::ordered::{NODE_BYTES, NODE_RECORD_BYTES_MAX, node_record_bytes};
use tapetum_kernels::record::Codec;

/// The most bytes of a batch's values in extensions. A copy of them is kept until they are written.
const VALUES_BYTES_MAX: usize = KEPT_BYTES_MAX / 2;

#[derive(Default)]
pub(super) struct Preparation {
    /// Pages to be read.
    pub wanted: Vec<PageRead>,
    /// Values of the batch that was attempted last, each at the index of its write.
    values: Vec<Option<BatchValue>>,
    /// A batch found no place in the cache.
    pub wants_room: bool,
    /// The error of a read or a write.
    pub failed: Option<Error>,
}

/// A value of a batch for an extension.
pub(super) struct BatchValue {
    tree: Arc<OrderedTree>,
    key: Vec<u8>,
    value: Vec<u8>,
    stage: ValueStage,
}

#[derive(Default)]
enum ValueStage {
    #[default]
    Wanted,
    /// It waits for a slot beyond the slabs.
    WaitsForSlot(Arc<SlotWant>),
    /// It has a slot, but no memory to write through.
    HasSlot(SlotShare),
    Writes(Box<ExtensionWrite>),
    Written(WrittenExtension),
}

impl BatchValue {
    fn is_of(&self, write: &Write<'_>) -> bool {
        self.tree.keyspace == write.keyspace().id() && self.key == write.key() && self.value == write.value()
    }

    /// The reference to the extension, once it is durable.
    pub fn reference(&self) -> Option<ExtensionReference> {
        match self.stage {
            ValueStage::Written(WrittenExtension { reference, .. }) => Some(reference),
            _ => None,
        }
    }

    /// Keeps the extension's share, as a record names it.
    pub fn keep(self) {
        if let ValueStage::Written(written) = self.stage {
            let _ = written.share.keep();
        }
    }
}

/// Whether a write's value is too large for a node.
pub fn is_large(write: &Write<'_>) -> bool {
    write.is_put() && node_record_bytes(&write.draft(Codec::Raw, write.value()).header) > NODE_RECORD_BYTES_MAX
}

impl Preparation {
    /// The values of a batch that are in extensions, each at the index of its write; empty if there are none.
    pub fn take_values(
        &mut self,
        cx: &mut Context,
        writes: &[Write<'_>],
    ) -> Result<Vec<Option<BatchValue>>, BatchStop> {
        let mut pairs = self.values.iter().zip(writes);
        let is_same = self.values.len() == writes.len()
            && pairs.all(|(value, write)| value.as_ref().map_or(!is_large(write), |value| value.is_of(write)));
        if !is_same {
            let mut kept = self.values.iter().flatten();
            if kept.any(|value| matches!(value.stage, ValueStage::Writes(..))) {
                return Err(BatchStop::Busy);
            }
            self.values.clear();
            if !writes.iter().any(is_large) {
                return Ok(Vec::new());
            }
            self.values = values_of(cx, writes).map_err(BatchStop::Refused)?;
        }
        let all = std::mem::take(&mut self.values);
        if all.iter().flatten().all(|value| value.reference().is_some()) {
            return Ok(all);
        }
        self.give_values(all);
        Err(BatchStop::Busy)
    }

    /// Puts the values back for the next attempt, as they were not appended.
    pub fn give_values(&mut self, values: Vec<Option<BatchValue>>) {
        self.values = values;
    }

    /// Called when a requested page was read, or the read failed.
    pub fn page_was_read(&mut self, end: PageReadEnd) {
        match end {
            PageReadEnd::Done | PageReadEnd::Moved => {}
            PageReadEnd::NoRoom => self.wants_room = true,
            PageReadEnd::Failed(error) => self.failed = Some(error),
        }
    }

    /// Sends the requests of batches, as far as there is room.
    pub fn send(&mut self, (cx, core): OrderedMeans<'_>, reads: &mut PageReads) {
        for read in std::mem::take(&mut self.wanted) {
            // The next attempt asks again for what was not begun.
            drop(reads.begin((cx, core), read));
        }
        for place in 0..self.values.len() {
            let Some(value) = &self.values[place] else { continue };
            let is_begun = match &value.stage {
                ValueStage::Written(..) => continue,
                ValueStage::Writes(write) if !write.is_idle() => continue,
                ValueStage::Writes(_) => true,
                _ => false,
            };
            if !cx.has_credit(core) {
                return;
            }
            match is_begun {
                true => self.go_on_with_value((cx, core), place),
                false => self.begin_value((cx, core), place),
            }
        }
    }

    /// Begins to write a value to an extension, if there is a slot and memory.
    fn begin_value(&mut self, (cx, core): (&Context, &mut SessionCore), place: usize) {
        let Some(share) = self.value_slot(core, place) else { return };
        let Some(BatchValue { tree, key, value, stage }) = &mut self.values[place] else { return };
        match ExtensionWrite::new(core, share, tree.keyspace.0, key, value) {
            Ok(write) => {
                *stage = ValueStage::Writes(write);
                self.go_on_with_value((cx, core), place);
            }
            Err(share) => *stage = ValueStage::HasSlot(share),
        }
    }

    /// A slot for a value. `None`: there is none now; or none at all, which fails the batch.
    fn value_slot(&mut self, core: &SessionCore, place: usize) -> Option<SlotShare> {
        let Preparation { values, failed, .. } = self;
        let BatchValue { tree, key, value, stage } = values[place].as_mut()?;
        let class = ExtensionClass::of(key.len(), value.len()).expect("others were refused");
        let space = tree.extensions(class);
        let taken = match std::mem::take(stage) {
            ValueStage::HasSlot(share) => Some(share),
            ValueStage::WaitsForSlot(want) => match want.take() {
                WantedSlot::Given(share) => return Some(share),
                WantedSlot::Waits => {
                    *stage = ValueStage::WaitsForSlot(want);
                    return None;
                }
                WantedSlot::None => None,
            },
            _ => match class {
                ExtensionClass::Slab(_) => space.take(None),
                ExtensionClass::Large(_) => {
                    *stage = ValueStage::WaitsForSlot(space.want((class.bytes() / NODE_BYTES as u64) as u32));
                    core.base.wakeup.wake();
                    return None;
                }
            },
        };
        let is_full = matches!(class, ExtensionClass::Large(_)) || space.is_full();
        if taken.is_none() && is_full {
            failed.get_or_insert(Error::FullFlash);
        }
        taken
    }

    /// Sends pieces of a value. Each is durable when it is written.
    fn go_on_with_value(&mut self, (cx, core): (&Context, &mut SessionCore), place: usize) {
        let tag = piece_tag(cx.slot.tag(TAG_VALUE | place as u64));
        let Some(BatchValue { value, stage: ValueStage::Writes(write), .. }) = &mut self.values[place] else {
            return;
        };
        write.go_on(core, value, true, tag);
    }

    /// Called when a piece of a value was written to its extension, or the write failed.
    pub fn value_was_written(&mut self, (cx, core): (&Context, &mut SessionCore), place: usize, piece: ReturnedPiece) {
        let Some(Some(BatchValue { stage, .. })) = self.values.get_mut(place) else {
            unreachable!("it stays until it is written")
        };
        let ValueStage::Writes(write) = std::mem::take(stage) else { unreachable!("it has a command on its way") };
        match write.completed(core, piece) {
            Ok((written, outcome)) => {
                if let Err(failed) = outcome {
                    let error = Error::of_command(core.queue.drive(), "write", &failed);
                    core.base.log.poison("an extension", error);
                }
                *stage = ValueStage::Written(written);
            }
            Err(write) => {
                *stage = ValueStage::Writes(write);
                self.go_on_with_value((cx, core), place);
            }
        }
    }
}

fn values_of(cx: &mut Context, writes: &[Write<'_>]) -> Result<Vec<Option<BatchValue>>, Error> {
    let bytes: usize = writes.iter().filter(|write| is_large(write)).map(|write| write.value().len()).sum();
    if bytes > VALUES_BYTES_MAX {
        let (limit_bytes, limit_writes) = (VALUES_BYTES_MAX, writes.len());
        return Err(Error::BatchTooLarge { limit_bytes, limit_writes });
    }
    let mut values = Vec::with_capacity(writes.len());
    for write in writes {
        let (key, value) = (write.key(), write.value());
        if !is_large(write) {
            values.push(None);
            continue;
        }
        let tree = cx.tree_of(write.keyspace().id())?;
        let tree = cx.trees[tree].tree.clone();
        let (key, value) = (key.to_vec(), value.to_vec());
        values.push(Some(BatchValue { tree, key, value, stage: ValueStage::Wanted }));
    }
    Ok(values)
}
