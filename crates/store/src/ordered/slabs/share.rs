//! A share of a slot: while one lives, nobody else is given the slot.

use super::slot_guards::SlotGuards;
use super::space::SlotSpace;
use std::fmt;
use std::sync::Arc;
use tapetum_kernels::ordered::{SlotAddress, SlotSalt};

/// See the [module](super). Clones are shares of the same slot; the slot is free when the last one is dropped.
#[must_use]
pub struct SlotShare {
    /// `None` only while the share is dropped without being given up.
    guards: Option<Arc<SlotGuards>>,
    number: u32,
}

impl SlotShare {
    /// Takes over a share that was already counted.
    pub(super) fn counted(guards: &Arc<SlotGuards>, number: u32) -> SlotShare {
        SlotShare { guards: Some(guards.clone()), number }
    }

    fn guards(&self) -> &Arc<SlotGuards> {
        self.guards.as_ref().expect("keep alone takes them, and the share with them")
    }

    pub fn address(&self) -> SlotAddress {
        self.guards().map.address(self.number)
    }

    /// The slot's number, which is shorter than its address.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The offset of the slot on flash.
    pub fn flash_offset(&self) -> u64 {
        self.guards().map.flash(self.number)
    }

    /// The salt that binds an image to this slot.
    pub fn salt(&self) -> SlotSalt {
        self.guards().salt(self.number).expect("a slot with a share is of a group")
    }

    pub fn pages(&self) -> u32 {
        self.guards().pages(self.number)
    }

    /// The number of shares of the slot, including this one.
    pub fn shares(&self) -> u16 {
        self.guards().shares(self.number)
    }

    /// Whether nobody else holds a share of the slot, and no freeze does.
    pub fn is_only(&self) -> bool {
        self.guards().is_of_one(self.number)
    }

    /// Reports that the holder's writes to the slot are durable (for an extension: written), under this stamp, and that it will write no more. A
    /// share that is dropped without this has no write in flight.
    pub fn settle(&self, stamp: u64) {
        self.guards().settle(self.number, stamp);
    }

    /// Turns the share into a number, which [`SlotSpace::resume`] takes up again. It takes no memory until then.
    #[must_use]
    pub fn keep(mut self) -> u32 {
        self.guards = None;
        self.number
    }

    /// Whether the slot belongs to this space.
    pub fn is_of(&self, space: &SlotSpace) -> bool {
        Arc::ptr_eq(self.guards(), space.guards())
    }
}

impl Clone for SlotShare {
    fn clone(&self) -> SlotShare {
        self.guards().add_share(self.number);
        SlotShare { guards: self.guards.clone(), number: self.number }
    }
}

impl Drop for SlotShare {
    fn drop(&mut self) {
        if let Some(guards) = &self.guards {
            guards.drop_share(self.number);
        }
    }
}

impl fmt::Debug for SlotShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SlotShare({})", self.number)
    }
}
