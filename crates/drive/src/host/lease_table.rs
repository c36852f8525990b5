//! The leases of the commands in flight, by slot. A lease is in its command's slot until that command has ended.

use super::{Lease, Returned};
use crate::device::EndedCommand;

#[derive(Default)]
pub(super) struct LeaseTable {
    /// A free slot has no lease.
    slots: Vec<Lease>,
    free: Vec<u32>,
}

impl LeaseTable {
    /// Takes the lease of a command that is submitted next. Returns its slot.
    pub fn begin(&mut self, lease: Lease) -> u32 {
        match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = lease;
                slot
            }
            None => {
                self.slots.push(lease);
                self.slots.len() as u32 - 1
            }
        }
    }

    pub fn lease(&self, slot: u32) -> &Lease {
        &self.slots[slot as usize]
    }

    /// A command has ended: its lease goes back with its completion.
    pub fn end(&mut self, EndedCommand { slot, completion }: EndedCommand) -> Returned {
        self.free.push(slot);
        Returned { completion, lease: std::mem::take(&mut self.slots[slot as usize]) }
    }

    pub fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}
