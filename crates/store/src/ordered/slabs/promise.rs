//! A promise of a slot: while it lives, a free slot is reserved for its holder.

use super::slot_guards::SlotGuards;
use std::sync::Arc;
use tapetum_base::media::io::lock;

/// See the [module](self). A page without a slot holds one until its image takes a slot. So every accepted change has a place on flash, whatever
/// slots others take meanwhile.
#[must_use]
pub struct SlotPromise {
    guards: Arc<SlotGuards>,
}

impl SlotPromise {
    /// Takes over a promise that was already counted.
    pub(super) fn counted(guards: &Arc<SlotGuards>) -> SlotPromise {
        SlotPromise { guards: guards.clone() }
    }
}

impl Drop for SlotPromise {
    fn drop(&mut self) {
        lock(&self.guards.state).slots.promised -= 1;
    }
}
