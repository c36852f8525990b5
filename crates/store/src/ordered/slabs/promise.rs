//! A promise of a slot: while one lives, a free slot is kept for who has it.

use super::slot_guards::SlotGuards;
use std::sync::Arc;
use tapetum_base::media::io::lock;

/// See the [module](self). Kept by a page that has no slot of its own until its image takes one, so that what was taken of a client has a
/// place on flash whoever asks for slots meanwhile.
#[must_use]
pub struct SlotPromise {
    guards: Arc<SlotGuards>,
}

impl SlotPromise {
    /// Takes over a promise that was counted already.
    pub(super) fn counted(guards: &Arc<SlotGuards>) -> SlotPromise {
        SlotPromise { guards: guards.clone() }
    }
}

impl Drop for SlotPromise {
    fn drop(&mut self) {
        lock(&self.guards.state).slots.promised -= 1;
    }
}
