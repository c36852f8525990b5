//! What of local memory a command may name.

use super::command::LocalRange;

/// The ranges that were lent to a command; empty ones lend nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeasedRanges(pub [LocalRange; 2]);

impl LeasedRanges {
    /// Whether a range lies wholly inside one of them.
    pub fn hold(&self, range: LocalRange) -> bool {
        self.0.iter().any(|leased| {
            let length = u64::from(leased.length);
            let at = range.offset.wrapping_sub(leased.offset);
            at <= length && u64::from(range.length) <= length - at
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_must_lie_inside_one_of_them() {
        let range = |offset, length| LocalRange { offset, length };
        let leased = LeasedRanges([range(4096, 512), range(4608, 512)]);
        for inside in [range(4096, 512), range(4607, 1), range(4608, 512), range(5000, 0), range(5120, 0)] {
            assert!(leased.hold(inside), "{inside:?}");
        }
        let max = u32::MAX;
        for outside in
            [range(4095, 2), range(4607, 2), range(5119, 2), range(0, 0), range(u64::MAX, max), range(4096, max)]
        {
            assert!(!leased.hold(outside), "{outside:?}");
        }
    }
}
