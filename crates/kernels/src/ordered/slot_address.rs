//! The address of a slot of a slab, which holds a node or the beginning of an extension.
//!
//! ```text
//!  55            24 23         0
//!  +---------------+------------+
//!  | extent u32    | page       |   56 bits
//!  +---------------+------------+
//! ```
//! `extent` is the address of an extent ([`crate::extent_address`]), so it names the member as well; `page` counts pages of 4 KiB from
//! the extent's beginning, and may lie in an extent behind it, of the same group.

use crate::checksum::Salt;
use crate::extent_address::ExtentAddress;

const PAGE_BITS: u32 = 24;
const WORD_BITS: u32 = u32::BITS + PAGE_BITS;

/// These keep nodes and extensions apart from each other and from a segment's parts in the salt's address.
const ADDRESS_NODE: u64 = 1 << 60;
const ADDRESS_EXTENSION: u64 = 1 << 59;
const _: () = assert!(WORD_BITS == 56 && ADDRESS_EXTENSION >> WORD_BITS > 0);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SlotAddress(u64);

impl SlotAddress {
    /// The most pages of a group.
    pub const PAGES_MAX: u32 = 1 << PAGE_BITS;
    /// Bytes of an address on flash.
    pub const BYTES: usize = WORD_BITS as usize / 8;

    /// # Panics
    /// When there is no such page of a group.
    pub fn new(extent: ExtentAddress, page: u32) -> SlotAddress {
        assert!(page < Self::PAGES_MAX, "there is no page {page} of a group");
        SlotAddress(u64::from(extent.word()) << PAGE_BITS | u64::from(page))
    }

    /// Reads an address as it stands on flash. `None` if there is no such address.
    pub fn from_word(word: u64) -> Option<SlotAddress> {
        (word >> WORD_BITS == 0).then_some(SlotAddress(word))
    }

    pub fn word(self) -> u64 {
        self.0
    }

    pub fn extent(self) -> ExtentAddress {
        ExtentAddress::from_word((self.0 >> PAGE_BITS) as u32)
    }

    pub fn page(self) -> u32 {
        self.0 as u32 % Self::PAGES_MAX
    }
}

/// The values that the checksum of a node or an extension is bound to, besides its bytes, which hold its stamp.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotSalt {
    pub store: u64,
    pub slot: SlotAddress,
    /// The version of the group of slots. Older contents of the group's extents have another one and do not pass.
    pub version: u64,
}

impl SlotSalt {
    pub fn of_node(self) -> Salt {
        Salt { store: self.store, address: ADDRESS_NODE | self.slot.word(), version: self.version }
    }

    pub fn of_extension(self) -> Salt {
        Salt { store: self.store, address: ADDRESS_EXTENSION | self.slot.word(), version: self.version }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extent_address::EXTENTS_MAX;

    #[test]
    fn an_address_has_an_extent_and_a_page() {
        for (member, number, page) in [(0, 0, 0), (0, EXTENTS_MAX - 1, 7), (15, 9, SlotAddress::PAGES_MAX - 1)] {
            let extent = ExtentAddress::new(member, number);
            let address = SlotAddress::from_word(SlotAddress::new(extent, page).word()).unwrap();
            assert_eq!((address.extent(), address.page()), (extent, page));
        }
        assert_eq!(SlotAddress::from_word(1 << 56), None);
        assert_eq!(SlotAddress::new(ExtentAddress::new(1, 2), 3).word(), 1 << 52 | 2 << 24 | 3);
    }

    #[test]
    fn a_node_and_an_extension_of_one_slot_have_two_salts() {
        let slot = SlotAddress::new(ExtentAddress::new(0, 2), 3);
        let salt = SlotSalt { store: 4, slot, version: 5 };
        let word = slot.word();
        assert_eq!(salt.of_node(), Salt { store: 4, address: 1 << 60 | word, version: 5 });
        assert_eq!(salt.of_extension(), Salt { store: 4, address: 1 << 59 | word, version: 5 });
    }

    #[test]
    #[should_panic(expected = "no page")]
    fn a_page_too_large_is_our_mistake() {
        SlotAddress::new(ExtentAddress::new(0, 0), SlotAddress::PAGES_MAX);
    }
}
