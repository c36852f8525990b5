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
use super::sequence_lock;
use super::{GlobalIndex, Table};
use tapetum_kernels::bits::LINE_WORDS;
use tapetum_kernels::delta_bucket::find::{Candidate, Slot};
use tapetum_kernels::delta_bucket::{Header, Position, slot};
use tapetum_kernels::hash::HashKey;
use tapetum_kernels::prefetch::prefetch;

/// Lookups whose memory is asked for at once.
const BATCH: usize = 32;

/// A lookup whose entries were asked for: where they are, under which header of the bucket.
#[derive(Clone, Copy)]
struct Aim {
    header: Header,
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

    fn look_up_together(&self, table: &Table, hashes: &[HashKey], out: &mut [Option<u32>]) {
        let places: [Option<(&Partition, Position)>; BATCH] = std::array::from_fn(|number| {
            let (partition, position) = self.locate(table, *hashes.get(number)?);
            partition.prefetch_tenancy(position);
            Some((partition, position))
        });
        let mut aims: [Option<Aim>; BATCH] = [None; BATCH];
        for ((partition, position), aim) in places.iter().flatten().zip(&mut aims) {
            *aim = partition.aim(*position);
        }
        let mut again = 0u32;
        for (number, ((partition, position), out)) in places.iter().flatten().zip(&mut *out).enumerate() {
            match aims[number].and_then(|aim| partition.finish(*position, aim)) {
                Some(Candidate::Only(payload)) => *out = Some(payload),
                Some(Candidate::None) => *out = None,
                Some(Candidate::Several) | None => again |= 1 << number,
            }
        }
        while again != 0 {
            let number = again.trailing_zeros() as usize;
            again &= again - 1;
            out[number] = places[number].and_then(|(partition, position)| partition.lookup(position));
        }
    }
}

const _: () = assert!(BATCH <= u32::BITS as usize, "a bit for each lookup");

impl Partition {
    /// Asks for the words that tell where the entries of this position are.
    #[inline(always)]
    fn prefetch_tenancy(&self, position: Position) {
        let words = self.bucket(position.bucket);
        prefetch(&words[0]);
        if slot(position.tail) >= self.slots_near {
            prefetch(&words[LINE_WORDS]);
        }
    }

    /// Finds where the entries are, by those words, and asks for them. `None` if the lookup must be done otherwise: they
    /// are in an extension, or the bucket is being written.
    #[inline(always)]
    fn aim(&self, position: Position) -> Option<Aim> {
        let words = self.bucket(position.bucket);
        let header = sequence_lock::begin(&words[0])?;
        if header.slots_end() <= slot(position.tail) {
            prefetch(&self.extension(header.extension()?)?[0]);
            return None;
        }
        let slot = Slot::find(words, 0, position.tail)?;
        let (first, last) = slot.entry_words(words.len(), self.layout());
        // A hint: any address will do.
        prefetch(words.as_ptr().wrapping_add(first));
        prefetch(words.as_ptr().wrapping_add(last));
        Some(Aim { header, slot })
    }

    /// What the entries say. `None` if the bucket was written meanwhile.
    #[inline(always)]
    fn finish(&self, position: Position, aim: Aim) -> Option<Candidate> {
        let words = self.bucket(position.bucket);
        let candidate = aim.slot.candidate(words, self.layout(), position.tail);
        if candidate == Candidate::Several {
            // To tell them apart takes all entries before them.
            let (_, last) = aim.slot.entry_words(words.len(), self.layout());
            words[last..].iter().step_by(LINE_WORDS).for_each(|word| prefetch(word));
            prefetch(&words[LINE_WORDS]);
        }
        sequence_lock::is_unchanged(&words[0], aim.header).then_some(candidate)
    }
}
