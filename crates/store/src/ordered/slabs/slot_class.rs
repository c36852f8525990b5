//! The purpose of a group's slots, which gives their size.

use tapetum_kernels::ordered::NODE_BYTES;
use tapetum_kernels::ordered::extension::{EXTENSION_SLABS, ExtensionClass};

/// Slots begin at pages of this size and consist of whole pages.
pub const PAGE_BYTES: u64 = NODE_BYTES as u64;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum SlotClass {
    /// A page each, for data nodes.
    Nodes,
    /// Slots of an extension slab: 4 KiB × 2ⁿ each.
    Extensions(u8),
    /// One slot, as large as its group, for an extension that is too large for slabs.
    Large,
}

const NODES: u8 = 0;
const EXTENSIONS: u8 = 1;
const LARGE: u8 = EXTENSIONS + EXTENSION_SLABS as u8;

impl SlotClass {
    /// The classes with open groups, the nodes' first.
    pub const SLABS: [SlotClass; 1 + EXTENSION_SLABS] = {
        let mut slabs = [SlotClass::Nodes; 1 + EXTENSION_SLABS];
        let mut size = 0;
        while size < EXTENSION_SLABS {
            slabs[1 + size] = SlotClass::Extensions(size as u8);
            size += 1;
        }
        slabs
    };

    pub fn of_extension(class: ExtensionClass) -> SlotClass {
        match class {
            ExtensionClass::Slab(size) => SlotClass::Extensions(size),
            ExtensionClass::Large(_) => SlotClass::Large,
        }
    }

    /// The class for an extension of `pages` pages.
    pub fn of_extension_pages(pages: u32) -> SlotClass {
        match pages.trailing_zeros() as u8 {
            size if pages.is_power_of_two() && usize::from(size) < EXTENSION_SLABS => SlotClass::Extensions(size),
            _ => SlotClass::Large,
        }
    }

    /// The code of the class on flash.
    pub fn code(self) -> u8 {
        match self {
            SlotClass::Nodes => NODES,
            SlotClass::Extensions(size) => EXTENSIONS + size,
            SlotClass::Large => LARGE,
        }
    }

    /// `None` if there is no such class.
    pub fn from_code(code: u8) -> Option<SlotClass> {
        match code {
            NODES => Some(SlotClass::Nodes),
            EXTENSIONS..LARGE => Some(SlotClass::Extensions(code - EXTENSIONS)),
            LARGE => Some(SlotClass::Large),
            _ => None,
        }
    }

    pub fn slot_pages(self, group_pages: u32) -> u32 {
        match self {
            SlotClass::Nodes => 1,
            SlotClass::Extensions(size) => 1 << size,
            SlotClass::Large => group_pages,
        }
    }

    pub fn slots(self, group_pages: u32) -> u32 {
        group_pages / self.slot_pages(group_pages).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_class_has_a_code_and_slots_of_its_size() {
        let all = SlotClass::SLABS.into_iter().chain([SlotClass::Large]);
        let sizes = all.map(|class| {
            assert_eq!(SlotClass::from_code(class.code()), Some(class));
            (class.slot_pages(128), class.slots(128))
        });
        let expected = [(1, 128), (1, 128), (2, 64), (4, 32), (8, 16), (16, 8), (128, 1)];
        assert_eq!(sizes.collect::<Vec<_>>(), expected);
        assert_eq!(SlotClass::from_code(LARGE + 1), None);
    }

    #[test]
    fn an_extension_fits_the_slots_of_its_class() {
        for stored_bytes in [0, 4000, 4096, 9000, 60_000, 1 << 20] {
            let class = ExtensionClass::of(9, stored_bytes).unwrap();
            let pages = (class.bytes() / PAGE_BYTES) as u32;
            assert_eq!(SlotClass::of_extension(class).slot_pages(pages), pages);
            assert_eq!(SlotClass::of_extension_pages(pages), SlotClass::of_extension(class));
        }
    }
}
