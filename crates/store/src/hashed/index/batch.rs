//! Lookups of several hash keys at once, each step for all of them, so that they wait for memory together.
//!
//! ```text
//! step     asks for                                     reads
//! locate   the bucket's first line, or two              the partition
//! aim      the entries of the slot                      the tenancy
//! finish   the entries before them, if several match    the entries
//! again                                                 all of it, for few
//! ```
//! A bucket is seen through one look from `aim` to `finish`, as [`sequence_lock`] has it.

use super::partition::Partition;
use super::{GlobalIndex, IndexTable};
use std::sync::atomic::AtomicU64;
use tapetum_base::memory::sequence_lock;
use tapetum_kernels::bits::LINE_WORDS;
use tapetum_kernels::delta_bucket::find::{Candidate, Slot};
use tapetum_kernels::delta_bucket::{BucketHeader, Position, SLOTS, slot};
use tapetum_kernels::hash::HashKey;
use tapetum_kernels::prefetch::prefetch;

/// Lookups whose memory is prefetched together.
const BATCH: usize = 32;

/// A lookup, the words of its bucket, and what was found in them.
struct Lookup<'a> {
    partition: &'a Partition,
    position: Position,
    words: &'a [AtomicU64],
    aim: Option<Aim>,
}

/// The slot of a lookup's entries, and the bucket's header under which they were found.
#[derive(Clone, Copy)]
struct Aim {
    header: BucketHeader,
    slot: Slot,
}

impl GlobalIndex {
    /// [`lookup`](Self::lookup) of each hash key into the same place of `out`.
    pub fn lookup_batch(&self, hashes: &[HashKey], out: &mut [Option<u32>]) {
        assert_eq!(hashes.len(), out.len(), "a place for each answer");
        let table = self.table.load();
        for (hashes, out) in hashes.chunks(BATCH).zip(out.chunks_mut(BATCH)) {
            self.look_up_together(&table, hashes, out);
        }
    }

    fn look_up_together(&self, table: &IndexTable, hashes: &[HashKey], out: &mut [Option<u32>]) {
        let mut lookups: [Option<Lookup>; BATCH] = [const { None }; BATCH];
        let lookups = &mut lookups[..hashes.len()];
        for (lookup, &hash) in lookups.iter_mut().zip(hashes) {
            let (partition, position) = self.locate(table, hash);
            let located = Lookup { partition, position, words: partition.bucket(position.bucket), aim: None };
            located.prefetch_tenancy();
            *lookup = Some(located);
        }
        let find_slot = Slot::finder();
        for lookup in lookups.iter_mut().flatten() {
            lookup.aim = lookup.aim(find_slot);
        }
        let mut again = 0u32;
        for (number, (lookup, out)) in lookups.iter().zip(&mut *out).enumerate() {
            match lookup.as_ref().and_then(Lookup::finish) {
                Some(Candidate::Only(payload)) => *out = Some(payload),
                Some(Candidate::None) => *out = None,
                Some(Candidate::Several) | None => again |= 1 << number,
            }
        }
        while again != 0 {
            let number = again.trailing_zeros() as usize;
            again &= again - 1;
            out[number] = lookups[number].as_ref().and_then(|lookup| lookup.partition.lookup(lookup.position));
        }
    }
}

const _: () = assert!(BATCH <= u32::BITS as usize, "a bit for each lookup");

impl Lookup<'_> {
    /// Prefetches the words that tell where the entries are.
    #[inline(always)]
    fn prefetch_tenancy(&self) {
        // Fetches the same line twice rather than take a branch that cannot be predicted.
        let is_far = slot(self.position.tail) >= self.partition.slots_near;
        prefetch(&self.words[0]);
        prefetch(&self.words[usize::from(is_far) * LINE_WORDS]);
    }

    /// Finds where the entries are, by those words, and prefetches them. `None` if the lookup must be done otherwise: they are in an extension, or
    /// the bucket is being written.
    #[inline(always)]
    fn aim(&self, find_slot: fn(&[AtomicU64], u32) -> Option<Slot>) -> Option<Aim> {
        let header: BucketHeader = sequence_lock::begin(&self.words[0])?;
        let number = slot(self.position.tail);
        if header.slots_end() <= number {
            prefetch(&self.partition.extension(header.extension()?)?[0]);
            return None;
        }
        let slot = find_slot(self.words, number)?;
        let (first, last) = slot.entry_words(self.words.len(), self.partition.layout);
        // A hint: any address will do.
        prefetch(self.words.as_ptr().wrapping_add(first));
        prefetch(self.words.as_ptr().wrapping_add(last));
        Some(Aim { header, slot })
    }

    /// The candidate among the entries. `None` if they were not found, or the bucket was written meanwhile.
    #[inline(always)]
    fn finish(&self) -> Option<Candidate> {
        let aim = self.aim.as_ref()?;
        let candidate = aim.slot.candidate(self.words, &self.partition.layout, self.position.tail);
        if candidate == Candidate::Several {
            self.prefetch_group(aim.slot);
        }
        sequence_lock::is_unchanged(&self.words[0], aim.header).then_some(candidate)
    }

    /// Prefetches the entries that tell several candidates apart: all entries before them, or all behind, whichever are fewer.
    #[cold]
    fn prefetch_group(&self, found: Slot) {
        let (first, last) = found.entry_words(self.words.len(), self.partition.layout);
        let is_near = slot(self.position.tail) < SLOTS / 2;
        let entries = if is_near { self.words.get(last..) } else { self.words.get(LINE_WORDS..=first) };
        entries.into_iter().flatten().step_by(LINE_WORDS).for_each(|word| prefetch(word));
        prefetch(&self.words[LINE_WORDS]);
    }
}
