//! The positions of slots: numbers, addresses and bytes on flash. Only arithmetic.
//!
//! A slot has two names. On flash it is a [`SlotAddress`]: the extent and the page in which it begins. In memory, which holds millions of them, it
//! is a number: pages of 4 KiB from the first extent on.

use super::slot_class::PAGE_BYTES;
use tapetum_base::error::Error;
use tapetum_base::media::geometry::Geometry;
use tapetum_kernels::extent_address::ExtentAddress;
use tapetum_kernels::ordered::SlotAddress;

/// The map of a store's slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotMap {
    extents_offset: u64,
    extent_pages: u32,
    extents_max: u32,
}

impl SlotMap {
    /// # Errors
    /// If the store may grow beyond numbers of 32 bits.
    pub fn new(geometry: &Geometry) -> Result<SlotMap, Error> {
        let extent_pages = geometry.pages_per_extent(PAGE_BYTES as usize);
        let extents_max = geometry.extents(geometry.capacity_max_bytes());
        let pages_max = u64::from(extents_max) * u64::from(extent_pages);
        if pages_max > u32::MAX.into() {
            return Err(Error::Options(format!(
                "a store that may grow to {pages_max} pages of 4 KiB is too large for ordered keyspaces: make one of less than 4TiB"
            )));
        }
        Ok(SlotMap { extents_offset: geometry.extents_offset(), extent_pages, extents_max })
    }

    pub fn extents_max(&self) -> u32 {
        self.extents_max
    }

    /// Pages of a group of `extents` extents.
    pub fn pages(&self, extents: u32) -> u32 {
        extents * self.extent_pages
    }

    pub fn extents_of(&self, pages: u32) -> u32 {
        pages.div_ceil(self.extent_pages)
    }

    /// The number of a slot. `None`: it is on another member, or its extent has no such page.
    pub fn number(&self, slot: SlotAddress) -> Option<u32> {
        let extent = slot.extent().number_of_only_member()?;
        let first = extent.checked_mul(self.extent_pages)?;
        if slot.page() < self.extent_pages { first.checked_add(slot.page()) } else { None }
    }

    pub fn address(&self, number: u32) -> SlotAddress {
        let (extent, page) = (number / self.extent_pages, number % self.extent_pages);
        SlotAddress::new(ExtentAddress::new(0, extent), page)
    }

    /// The extent in which a slot begins.
    pub fn extent_of(&self, number: u32) -> u32 {
        number / self.extent_pages
    }

    /// The number of the first page of an extent.
    pub fn first_of(&self, extent: u32) -> u32 {
        extent * self.extent_pages
    }

    /// The offset on flash of the slot with this number.
    pub fn flash(&self, number: u32) -> u64 {
        self.extents_offset + u64::from(number) * PAGE_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_addresses_and_bytes_name_the_same_slot() {
        for (capacity, segment) in [(2 << 20, 64 << 10), (1 << 30, 64 << 20)] {
            let geometry = Geometry::new(capacity, segment, 0, 512).unwrap();
            let map = SlotMap::new(&geometry).unwrap();
            let extents = geometry.extents(capacity);
            for number in [0, 1, 127, 128, map.pages(extents) - 1] {
                let address = map.address(number);
                assert_eq!(map.number(address), Some(number));
                let flash = geometry.extent_offset(address.extent().number()) + u64::from(address.page()) * PAGE_BYTES;
                assert_eq!(map.flash(number), flash);
            }
            assert_eq!(map.flash(map.first_of(3)), geometry.extent_offset(3));
            assert_eq!(map.number(SlotAddress::new(ExtentAddress::new(0, 1), map.pages(1))), None);
            assert_eq!(map.number(SlotAddress::new(ExtentAddress::new(1, 1), 0)), None);
        }
    }

    #[test]
    fn a_store_of_more_pages_than_have_numbers_is_refused() {
        let geometry = Geometry::new(8 << 40, 1 << 30, 0, 512).unwrap();
        assert!(SlotMap::new(&geometry).unwrap_err().to_string().contains("too large for ordered keyspaces"));
    }
}
