//! The nodes of a frozen keyspace as images on flash, for a backup.

use super::FrozenTree;
use super::copies::PageCopy;
use super::nodes::NodeAt;
use crate::ordered::slabs::group_table::GroupTable;
use crate::ordered::slabs::slot_class::{PAGE_BYTES, SlotClass};
use tapetum_kernels::ordered::extension::{ExtensionReference, front_bytes};
use tapetum_kernels::ordered::{NodePage, SlotSalt};

/// A node as a backup takes it.
pub enum FrozenImage<'a> {
    /// The image in a slot has this stamp.
    Slot { slot: u32, stamp: u64 },
    /// The page differs from the image in the slot that the node had, if it had one.
    Page { page: &'a NodePage, had: Option<u32> },
}

impl FrozenTree {
    /// All nodes, in the order of their keys. The tree is one of a freeze: its copies are in host memory.
    pub fn images(&self) -> impl Iterator<Item = FrozenImage<'_>> {
        (0..self.nodes.len()).map(|place| match self.nodes.at(place) {
            NodeAt::Slot(slot) => FrozenImage::Slot { slot, stamp: self.nodes.stamp(place) },
            NodeAt::Copy(PageCopy::Host(page)) => FrozenImage::Page { page, had: self.nodes.slot_had(place) },
            NodeAt::Copy(PageCopy::Local(_)) | NodeAt::Cached => unreachable!("a freeze copies to host memory"),
        })
    }

    /// Bytes from the beginning of flash to a node's slot.
    pub fn node_flash(&self, slot: u32) -> u64 {
        self.slots.nodes().map().flash(slot)
    }

    /// What the checksum of a node in this slot is salted with, as a table has its group; `None`: it has none there. A group that nobody needs any more
    /// may be gone from the store by now.
    pub fn node_salt(&self, table: &GroupTable, slot: u32) -> Option<SlotSalt> {
        let nodes = self.slots.nodes();
        let group = table.of_extent(nodes.map().extent_of(slot))?;
        Some(SlotSalt { store: nodes.options().store_id, slot: nodes.map().address(slot), version: group.version })
    }

    /// The slots of nodes that groups of a table have, in their order.
    pub fn node_slots(&self, table: &GroupTable) -> impl Iterator<Item = u32> {
        let map = *self.slots.nodes().map();
        let of_nodes = table.of_keyspace(self.keyspace).filter(|group| group.class == SlotClass::Nodes);
        let groups: Vec<_> = of_nodes.map(|group| (map.first_of(group.first), map.pages(group.extents))).collect();
        groups.into_iter().flat_map(|(first, pages)| first..first + pages)
    }

    /// Where an extension lies on flash, and its bytes, in whole pages. `None`: there is no such slot.
    pub fn extension_place(&self, reference: &ExtensionReference, key_bytes: usize) -> Option<(u64, u64)> {
        let space = self.slots.of_class(SlotClass::of_extension(reference.class(key_bytes)?));
        let stored_bytes = reference.stored_bytes as usize;
        let bytes = (front_bytes(key_bytes, stored_bytes) + stored_bytes) as u64;
        Some((space.flash_offset(reference.slot)?, bytes.next_multiple_of(PAGE_BYTES)))
    }
}
