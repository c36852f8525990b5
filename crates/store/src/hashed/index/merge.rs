//! Bulk changes to a partition, in order of the hash keys: each bucket is read and written once.

use super::PartitionFull;
use super::partition::Partition;
use super::write::{Counts, Scratch};
use tapetum_kernels::hash::HashKey;

/// More changes to one bucket than this are cheaper by taking it apart.
const SPLICES_MAX: usize = 16;

/// A change to the index. One hash key has at most one change in a merge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IndexChange {
    /// A key that is new. `neighbor` is the hash key of the entry that a lookup of `hash` gave as its candidate before the
    /// merge, from that entry's key table, or of one with as many [`shared_bits`](super::GlobalIndex::shared_bits); `None`
    /// if it gave none. (If it is `hash` itself, this is a replacement.) A wrong neighbor costs other keys their entries.
    Insert { hash: HashKey, payload: u32, neighbor: Option<HashKey> },
    /// A new payload for a key that is in the index.
    Replace { hash: HashKey, payload: u32 },
    /// The end of a key that is in the index.
    Remove { hash: HashKey },
}

impl IndexChange {
    pub fn hash(&self) -> HashKey {
        match *self {
            IndexChange::Insert { hash, .. } | IndexChange::Replace { hash, .. } | IndexChange::Remove { hash } => hash,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MergeDone {
    pub inserted: usize,
    pub replaced: usize,
    pub removed: usize,
}

/// Applies `changes`. On an error the buckets before the full one have changed and the others have not.
pub(super) fn merge(
    partition: &Partition,
    scratch: &mut Scratch,
    changes: impl Iterator<Item = IndexChange>,
) -> Result<MergeDone, PartitionFull> {
    let mut done = MergeDone::default();
    scratch.fit(partition.geometry());
    let mut changes = changes.peekable();
    let mut batch = Vec::new();
    let mut last = None;
    while let Some(first) = changes.peek() {
        let number = partition.position(first.hash()).bucket;
        batch.clear();
        while let Some(change) = changes.next_if(|change| partition.position(change.hash()).bucket == number) {
            assert!(last.is_none_or(|last| last < change.hash()), "changes come in ascending order, one a hash key");
            last = Some(change.hash());
            batch.push(change);
        }
        let counts = change(partition, scratch, number, &batch)?;
        partition.set_entries(partition.entries() + counts.inserted - counts.removed);
        done.inserted += counts.inserted;
        done.replaced += counts.replaced;
        done.removed += counts.removed;
    }
    Ok(done)
}

/// Applies the changes to one bucket, or none of them. Removals come last: an entry that goes may be the neighbor of one
/// that comes.
fn change(
    partition: &Partition,
    scratch: &mut Scratch,
    number: usize,
    batch: &[IndexChange],
) -> Result<Counts, PartitionFull> {
    partition.load(number, scratch);
    let spliced = if batch.len() <= SPLICES_MAX { partition.splice(scratch, batch) } else { None };
    let counts = match spliced {
        Some(counts) => counts,
        None => {
            partition.load(number, scratch);
            let counts = partition.edit(scratch, batch);
            partition.encode(scratch)?;
            counts
        }
    };
    partition.publish(number, scratch);
    Ok(counts)
}
