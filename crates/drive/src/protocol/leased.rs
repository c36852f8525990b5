//! The memory that a command may name.

use super::command::{LocalRange, MemoryAddress, RegionId};

/// A command's parameters and the pages of a node's split, or of a merge.
pub const LEASED_RANGES_MAX: usize = 4;

/// The ranges, all of one region, that were lent to a command. Empty ranges lend nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeasedRanges {
    pub region: RegionId,
    pub ranges: [LocalRange; LEASED_RANGES_MAX],
}

impl LeasedRanges {
    /// Whether `length` bytes from `from` on lie wholly inside one of them.
    pub fn hold(&self, from: MemoryAddress, length: u32) -> bool {
        from.region == self.region
            && self.ranges.iter().any(|leased| {
                let leased_bytes = u64::from(leased.length);
                let at = from.offset.wrapping_sub(leased.offset);
                at <= leased_bytes && u64::from(length) <= leased_bytes - at
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_must_lie_inside_one_of_them() {
        let range = |offset, length| LocalRange { offset, length };
        let leased = LeasedRanges {
            region: RegionId::LOCAL,
            ranges: [range(4096, 512), range(4608, 512), range(9216, 0), range(9216, 0)],
        };
        let holds =
            |of: RegionId, LocalRange { offset, length }| leased.hold(MemoryAddress { region: of, offset }, length);
        for inside in [range(4096, 512), range(4607, 1), range(4608, 512), range(5000, 0), range(5120, 0)] {
            assert!(holds(RegionId::LOCAL, inside) && !holds(RegionId::HOST, inside), "{inside:?}");
        }
        let max = u32::MAX;
        for outside in
            [range(4095, 2), range(4607, 2), range(5119, 2), range(0, 0), range(u64::MAX, max), range(4096, max)]
        {
            assert!(!holds(RegionId::LOCAL, outside), "{outside:?}");
        }
    }
}
