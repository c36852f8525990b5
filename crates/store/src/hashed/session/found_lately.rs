//! Keys as the stages of a packet pipeline know them, and where DRAM had the latest ones.

/// A key as the stages know it: its hash key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyDigest(pub u128);

/// Counts where DRAM had the items that were asked for lately; it decides where to look first.
#[derive(Default)]
pub struct FoundLately(i8);

impl FoundLately {
    const MOST: i8 = 64;

    pub fn note(&mut self, in_buffers: bool) {
        self.0 = (self.0 + if in_buffers { 1 } else { -1 }).clamp(-FoundLately::MOST, FoundLately::MOST);
    }

    /// Most of them in write buffers, rather than in the tier.
    pub fn in_buffers(&self) -> bool {
        self.0 > 0
    }
}
