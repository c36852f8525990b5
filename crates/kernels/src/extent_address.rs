//! The address of an extent: which member of the set, and which of its extents.
//!
//! ```text
//!  31    28 27                        0
//!  +-------+--------------------------+
//!  | member| number                   |   u32
//!  +-------+--------------------------+
//! ```
//! Four bytes, as a number alone takes, so that manifests name as many extents as before there were members. 2²⁸ extents of 4 KiB
//! are 1 TiB a member, and those of 64 MiB segments 128 TiB; a set has at most 16 members. Only member 0 exists: an address of
//! another one, in a set of one, is damage.

const NUMBER_BITS: u32 = 28;
/// Extents of a member at most.
pub const EXTENTS_MAX: u32 = 1 << NUMBER_BITS;
pub const MEMBERS_MAX: u16 = 1 << (u32::BITS - NUMBER_BITS);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ExtentAddress(u32);

impl ExtentAddress {
    pub fn new(member: u16, number: u32) -> ExtentAddress {
        assert!(member < MEMBERS_MAX && number < EXTENTS_MAX, "there is no extent {number} of member {member}");
        ExtentAddress(u32::from(member) << NUMBER_BITS | number)
    }

    /// As it stands on flash.
    pub fn from_word(word: u32) -> ExtentAddress {
        ExtentAddress(word)
    }

    pub fn word(self) -> u32 {
        self.0
    }

    pub fn member(self) -> u16 {
        (self.0 >> NUMBER_BITS) as u16
    }

    /// Its number among the member's extents.
    pub fn number(self) -> u32 {
        self.0 % EXTENTS_MAX
    }

    /// The number of an extent of the only member that a set of one has.
    pub fn number_of_only_member(self) -> Option<u32> {
        (self.member() == 0).then_some(self.number())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_member_and_a_number() {
        for (member, number) in [(0, 0), (0, EXTENTS_MAX - 1), (15, 7), (15, EXTENTS_MAX - 1)] {
            let address = ExtentAddress::from_word(ExtentAddress::new(member, number).word());
            assert_eq!((address.member(), address.number()), (member, number));
            assert_eq!(address.number_of_only_member().is_some(), member == 0);
        }
        assert_eq!(ExtentAddress::new(0, 77).word(), 77);
    }

    #[test]
    #[should_panic(expected = "no extent")]
    fn a_number_too_large_is_our_mistake() {
        ExtentAddress::new(0, EXTENTS_MAX);
    }
}
