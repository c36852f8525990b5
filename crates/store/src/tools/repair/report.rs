//! The findings of a repair: damage that costs nothing, and losses. Plain data, for tools.

use std::fmt;
use std::ops::RangeInclusive;

/// The findings of a look at a store, or the work of a repair.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepairReport {
    /// Damaged parts that nothing depends on, or that other parts repeat.
    pub made_anew: Vec<String>,
    pub losses: Vec<Loss>,
    /// Segments that are rewritten without the records that cannot be read.
    pub segments_rewritten: Vec<u32>,
    /// Data nodes of ordered keyspaces that are rewritten, each with its keys.
    pub nodes_rewritten: Vec<String>,
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
    /// All items of an ordered keyspace are gone whose keys are in a range: from `from` on, and below `to` if that is there. Some that the log has
    /// records of may be there.
    Range { keyspace: String, from: Vec<u8>, to: Option<Vec<u8>>, place: String },
    /// The last writes and deletions of keys in a range did not happen: the keys show what they had before, or nothing.
    Older { keyspace: String, from: Vec<u8>, to: Option<Vec<u8>>, place: String },
}

impl Loss {
    /// The keys of a range, in words.
    pub(super) fn keys(&self) -> String {
        let (Loss::Range { keyspace, from, to, .. } | Loss::Older { keyspace, from, to, .. }) = self else {
            return String::new();
        };
        let shown = |key: &[u8]| format!("\"{}\"", key.escape_ascii());
        let from = if from.is_empty() { "the first".into() } else { shown(from) };
        let to = to.as_deref().map_or("the end".into(), shown);
        format!("from {from} to {to} of keyspace \"{keyspace}\"")
    }
}

impl RepairReport {
    /// Whether there is nothing to repair.
    pub fn is_clean(&self) -> bool {
        self.made_anew.is_empty()
            && self.losses.is_empty()
            && self.segments_rewritten.is_empty()
            && self.nodes_rewritten.is_empty()
    }

    /// Items that are gone, at most, beside those in ranges of keys.
    pub fn items_lost(&self) -> u64 {
        let items = |loss: &Loss| match loss {
            Loss::Item { .. } => 1,
            Loss::Items { count, .. } => *count,
            Loss::Writes { .. } | Loss::Range { .. } | Loss::Older { .. } => 0,
        };
        self.losses.iter().map(items).sum()
    }

    /// Ranges of stamps whose writes are lost.
    pub fn ranges_lost(&self) -> u64 {
        self.losses.iter().filter(|loss| matches!(loss, Loss::Writes { .. })).count() as u64
    }

    /// Ranges of keys whose items are gone, and those whose last writes are.
    pub fn key_ranges_lost(&self) -> (u64, u64) {
        let gone = self.losses.iter().filter(|loss| matches!(loss, Loss::Range { .. }));
        let older = self.losses.iter().filter(|loss| matches!(loss, Loss::Older { .. }));
        (gone.count() as u64, older.count() as u64)
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
            Loss::Range { place, .. } => write!(f, "all items with keys {} ({place})", self.keys()),
            Loss::Older { place, .. } => {
                write!(f, "the last writes of keys {}, which show what they had before ({place})", self.keys())
            }
        }
    }
}
