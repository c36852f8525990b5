//! An index beside a map of what it must hold: for tests and fuzz targets.

use super::{GlobalIndex, IndexChange, IndexGeometry, RebuildError};
use std::collections::{BTreeMap, BTreeSet};
use tapetum_kernels::hash::HashKey;
use tapetum_kernels::random::mix;

/// SplitMix64, twice: hash keys without a hash.
pub fn uniform(seed: u64) -> HashKey {
    let word = |i: u64| mix(seed.wrapping_mul(2).wrapping_add(i).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    HashKey(u128::from(word(0)) << 64 | u128::from(word(1)))
}

/// An index and what it must hold. Payloads are unique, so a payload tells whose entry it is, as a key table does.
pub struct Model {
    pub index: GlobalIndex,
    pub map: BTreeMap<HashKey, u32>,
    pub owners: Vec<HashKey>,
    /// The keys before the merge.
    before: BTreeSet<HashKey>,
}

impl Model {
    pub fn new(geometry: IndexGeometry) -> Model {
        Model {
            index: GlobalIndex::new(geometry).expect("memory"),
            map: BTreeMap::new(),
            owners: Vec::new(),
            before: BTreeSet::new(),
        }
    }

    /// The neighbor as a key check finds it, which has key tables and no payloads to tell entries by.
    fn nearest(&self, hash: HashKey) -> Option<HashKey> {
        let in_cell = self.before.range(self.index.cell(hash)).copied();
        in_cell.max_by_key(|&other| self.index.shared_bits(hash, other))
    }

    fn partition(&self, hash: HashKey) -> usize {
        hash.partition(self.index.geometry().partition_bits)
    }

    /// Merges `batch` (true: put, false: remove) and rebuilds the partitions that get full.
    pub fn merge(&mut self, batch: &BTreeMap<HashKey, bool>) {
        let mut changes: BTreeMap<usize, Vec<IndexChange>> = BTreeMap::new();
        self.before = self.map.keys().copied().collect();
        for (&hash, &put) in batch {
            let candidate = self.index.lookup(hash).map(|payload| self.owners[payload as usize]);
            let neighbor = self.nearest(hash);
            assert_eq!(candidate.is_some(), neighbor.is_some());
            if let (Some(candidate), Some(neighbor)) = (candidate, neighbor) {
                let shared_bits = |other| self.index.shared_bits(hash, other);
                assert_eq!(shared_bits(candidate), shared_bits(neighbor), "the candidate is one of the nearest");
            }
            let is_there = neighbor == Some(hash);
            assert_eq!(is_there, self.map.contains_key(&hash));
            let change = if put {
                let payload = self.owners.len() as u32;
                self.owners.push(hash);
                self.map.insert(hash, payload);
                if is_there {
                    IndexChange::Replace { hash, payload }
                } else {
                    IndexChange::Insert { hash, payload, neighbor }
                }
            } else if is_there {
                self.map.remove(&hash);
                IndexChange::Remove { hash }
            } else {
                continue;
            };
            changes.entry(self.partition(hash)).or_default().push(change);
        }
        for (partition, changes) in changes {
            if self.index.merge(partition, changes).is_err() {
                self.rebuild(partition, 1.02);
            }
        }
    }

    /// Rebuilds with little room to spare, or more where that is not enough.
    pub fn rebuild(&mut self, partition: usize, mut room: f64) {
        let entries: Vec<_> = self.map.iter().map(|(&hash, &payload)| (hash, payload)).collect();
        let entries: Vec<_> = entries.into_iter().filter(|entry| self.partition(entry.0) == partition).collect();
        loop {
            let room_for = (entries.len() as f64 * room) as usize;
            match self.index.rebuild(partition, entries.iter().copied(), room_for) {
                Ok(()) => return,
                Err(RebuildError::PartitionFull) => room = room * 1.25 + 0.1,
                Err(error) => panic!("{error}"),
            }
            assert!(room < 1e4, "no room is enough");
        }
    }

    pub fn check(&self) {
        let hashes: Vec<_> = self.map.keys().copied().collect();
        let mut found = vec![None; hashes.len()];
        self.index.lookup_batch(&hashes, &mut found);
        for ((&hash, &payload), found) in self.map.iter().zip(found) {
            assert_eq!(found, Some(payload), "{hash:?}");
            assert_eq!(self.index.lookup(hash), Some(payload), "{hash:?}");
        }
        assert_eq!(self.index.entries(), self.map.len());
        let partitions = 0..self.index.geometry().partitions();
        assert_eq!(partitions.map(|partition| self.index.partition_entries(partition)).sum::<usize>(), self.map.len());
    }
}
