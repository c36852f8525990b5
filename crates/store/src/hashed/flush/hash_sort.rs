//! Sorts entries by hash key in short steps. Hash keys are uniform, so they are dealt out by their leading bits to
//! buckets of a few entries each, and what is left is to order those.

use std::ops::RangeInclusive;
use tapetum_base::media::io::Io;
use tapetum_kernels::hash::HashKey;

/// A key and its segment.
pub type Entry = (HashKey, u32);

/// Entries of a bucket, about.
const BUCKET_ENTRIES: usize = 8;
/// Entries dealt or ordered in one step: others get the processor between steps.
pub const STEP_ENTRIES: usize = 4 << 10;

/// Working memory of a sort, kept for the next.
#[derive(Default)]
pub struct HashSort {
    /// The place of each bucket's next entry; after the deal, the bucket's end.
    ends: Vec<u32>,
    sorted: Vec<Entry>,
}

impl HashSort {
    /// The entries, all of them within `bounds`, in ascending order.
    pub async fn sort(&mut self, io: &Io, entries: &[Entry], bounds: &RangeInclusive<HashKey>) -> &[Entry] {
        let low = bounds.start().0;
        let buckets_log2 = (entries.len() / BUCKET_ENTRIES).max(1).ilog2();
        let shift = (u128::BITS - (bounds.end().0 - low).leading_zeros()).saturating_sub(buckets_log2);
        let bucket = |hash: HashKey| (hash.0 - low).checked_shr(shift).unwrap_or(0) as usize;

        // One place more: counts are kept one place further on, so that their sums are the starts of buckets.
        self.ends.clear();
        self.ends.resize((1 << buckets_log2) + 1, 0);
        for step in entries.chunks(STEP_ENTRIES) {
            step.iter().for_each(|entry| self.ends[bucket(entry.0) + 1] += 1);
            io.step().await;
        }
        let mut sum = 0;
        for end in &mut self.ends {
            sum += *end;
            *end = sum;
        }
        self.sorted.resize(entries.len(), (HashKey(0), 0));
        for step in entries.chunks(STEP_ENTRIES) {
            for entry in step {
                let place = &mut self.ends[bucket(entry.0)];
                self.sorted[*place as usize] = *entry;
                *place += 1;
            }
            io.step().await;
        }
        let (mut start, mut stepped) = (0, 0);
        for &end in &self.ends {
            self.sorted[start..end as usize].sort_unstable_by_key(|entry| entry.0);
            start = end as usize;
            if start - stepped >= STEP_ENTRIES {
                stepped = start;
                io.step().await;
            }
        }
        &self.sorted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::Arc;
    use tapetum_base::media::io::run;
    use tapetum_drive::{Drive, Env, LocalMemory, MemoryFlash};

    fn io() -> Io {
        let local = LocalMemory::new(1 << 20).unwrap();
        let drive = Drive::new(Arc::new(MemoryFlash::new(1 << 20)), local, Vec::new(), Env::simulated(1).0);
        Io::new(drive.queue_pair(1).unwrap())
    }

    proptest! {
        #[test]
        fn any_entries_come_out_in_order(
            hashes in proptest::collection::vec(any::<u128>(), 0..3000),
            (shift, offset) in (0u32..128, any::<u128>()),
        ) {
            let hash = |hash: u128| HashKey((hash >> shift).saturating_add(offset));
            let mut entries: Vec<Entry> = hashes.iter().zip(0..).map(|(h, number)| (hash(*h), number)).collect();
            let bounds = hash(0)..=hash(u128::MAX);
            let io = io();
            let mut sort = HashSort::default();
            let sorted = run(&io, async { sort.sort(&io, &entries, &bounds).await.to_vec() }, || false).unwrap();
            let keys = |entries: &[Entry]| entries.iter().map(|entry| entry.0).collect::<Vec<_>>();
            prop_assert!(keys(&sorted).is_sorted());
            entries.sort_unstable();
            let mut sorted = sorted;
            sorted.sort_unstable();
            prop_assert_eq!(sorted, entries);
        }
    }
}
