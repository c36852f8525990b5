//! Bulk changes to a partition, in order of the hash keys: each bucket is read and written once.

use super::PartitionFull;
use super::partition::{Partition, Scratch};
use tapetum_kernels::delta_bucket::edit::Inserted;
use tapetum_kernels::hash::HashKey;

/// A change to the index. One hash key has at most one change in a merge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// A key that is new. `neighbor` is the hash key of the entry that a lookup of `hash` gave as its candidate before the
    /// merge, from that entry's key table; `None` if it gave none. (If it is `hash` itself, this is a replacement.)
    Insert { hash: HashKey, payload: u32, neighbor: Option<HashKey> },
    /// A new payload for a key that is in the index.
    Replace { hash: HashKey, payload: u32 },
    /// The end of a key that is in the index.
    Remove { hash: HashKey },
}

impl Change {
    pub fn hash(&self) -> HashKey {
        match *self {
            Change::Insert { hash, .. } | Change::Replace { hash, .. } | Change::Remove { hash } => hash,
        }
    }
}

/// What a merge did.
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
    changes: impl Iterator<Item = Change>,
) -> Result<MergeDone, PartitionFull> {
    let mut done = MergeDone::default();
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
        partition.load(number, scratch);
        let of_bucket = apply(partition, scratch, &batch);
        partition.store(number, scratch)?;
        partition.set_entries(partition.entries() + of_bucket.inserted - of_bucket.removed);
        done.inserted += of_bucket.inserted;
        done.replaced += of_bucket.replaced;
        done.removed += of_bucket.removed;
    }
    Ok(done)
}

/// Removals come last: an entry that goes may be the neighbor of one that comes.
fn apply(partition: &Partition, scratch: &mut Scratch, batch: &[Change]) -> MergeDone {
    let mut done = MergeDone::default();
    for change in batch {
        match *change {
            Change::Insert { hash, payload, neighbor } => {
                let neighbor = neighbor.map(|neighbor| partition.position(neighbor).tail);
                match scratch.contents.insert(partition.position(hash).tail, payload, neighbor) {
                    Inserted::New => done.inserted += 1,
                    Inserted::Replaced => done.replaced += 1,
                }
            }
            Change::Replace { hash, payload } => {
                scratch.contents.replace(partition.position(hash).tail, payload);
                done.replaced += 1;
            }
            Change::Remove { .. } => {}
        }
    }
    for change in batch {
        if let Change::Remove { hash } = *change {
            scratch.contents.remove(partition.position(hash).tail);
            done.removed += 1;
        }
    }
    done
}
