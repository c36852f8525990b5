//! What a repair found: damage that costs nothing, and what is lost. Plain data, for tools.

use std::fmt;
use std::ops::RangeInclusive;

/// What a look at a store found, or a repair did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepairReport {
    /// Damaged parts that nothing depends on, or that other parts say again.
    pub made_anew: Vec<String>,
    pub losses: Vec<Loss>,
    /// Segments that are written anew without what cannot be read of them.
    pub segments_rewritten: Vec<u32>,
}

/// Items or writes that are lost. Every key that a repair takes or sets back is in one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The item of this key is gone.
    Item { key: Vec<u8>, place: String },
    /// Up to `count` items are gone whose keys cannot be read. Their hash keys are in `hashes`.
    Items { count: u64, hashes: RangeInclusive<u128>, place: String },
    /// Writes and deletions with these stamps did not happen: their keys show what they had before.
    Writes { stamps: RangeInclusive<u64>, place: String },
}

impl RepairReport {
    /// Whether there is nothing to repair.
    pub fn is_clean(&self) -> bool {
        self.made_anew.is_empty() && self.losses.is_empty() && self.segments_rewritten.is_empty()
    }

    /// Items that are gone, at most.
    pub fn items_lost(&self) -> u64 {
        let items = |loss: &Loss| match loss {
            Loss::Item { .. } => 1,
            Loss::Items { count, .. } => *count,
            Loss::Writes { .. } => 0,
        };
        self.losses.iter().map(items).sum()
    }

    /// Ranges of stamps whose writes are lost.
    pub fn ranges_lost(&self) -> u64 {
        self.losses.iter().filter(|loss| matches!(loss, Loss::Writes { .. })).count() as u64
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Loss::Item { key, place } => write!(f, "the item of key \"{}\" ({place})", key.escape_ascii()),
            Loss::Items { count: 1, hashes, place } => {
                write!(f, "an item whose key cannot be read, of hash key {:032x} ({place})", hashes.start())
            }
            Loss::Items { count, hashes, place } => {
                let (first, last) = (hashes.start(), hashes.end());
                write!(f, "{count} items whose keys cannot be read, of hash keys {first:032x} to {last:032x} ({place})")
            }
            Loss::Writes { stamps, place } => {
                write!(f, "writes and deletions with stamps {} to {} ({place})", stamps.start(), stamps.end())
            }
        }
    }
}
