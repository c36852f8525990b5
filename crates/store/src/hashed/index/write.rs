//! How the writer changes one bucket and its extensions: read, change aside, publish at once.

use super::PartitionFull;
use super::geometry::{EXTENSION_WORDS, IndexGeometry};
use super::merge::IndexChange;
use super::partition::Partition;
use std::sync::atomic::{AtomicU64, Ordering};
use tapetum_base::memory::sequence_lock;
use tapetum_kernels::delta_bucket::edit::{Bucket, Inserted};
use tapetum_kernels::delta_bucket::{BucketHeader, SLOTS, slot, splice};

/// Working memory of the writer, kept from bucket to bucket to save allocations.
pub(super) struct Scratch {
    geometry: IndexGeometry,
    /// A bucket taken apart.
    pub contents: Bucket,
    /// A bucket and its extensions as words.
    main: Vec<u64>,
    extensions: Vec<u64>,
    /// The first slot that is not in the bucket, and that of each of its extensions.
    main_end: u32,
    ends: Vec<u32>,
    /// The extensions that the bucket has, in order, and then those that it is given more.
    chain: Vec<u32>,
    /// Slot and fingerprint of what was spliced in.
    inserted: Vec<(u32, u32)>,
}

impl Scratch {
    pub fn new(geometry: IndexGeometry) -> Scratch {
        Scratch {
            geometry,
            contents: Bucket::new(geometry.layout()),
            main: vec![0; geometry.bucket_words()],
            extensions: Vec::new(),
            main_end: SLOTS,
            ends: Vec::new(),
            chain: Vec::new(),
            inserted: Vec::new(),
        }
    }

    /// Adapts it to a partition of this shape.
    pub fn fit(&mut self, geometry: IndexGeometry) {
        if self.geometry != geometry {
            *self = Scratch::new(geometry);
        }
    }

    /// Forgets a bucket.
    pub fn clear(&mut self) {
        self.contents.clear();
        self.extensions.clear();
        self.ends.clear();
        self.chain.clear();
        self.inserted.clear();
    }

    /// The words that hold the slot, and the first slot that they hold.
    fn holder(&mut self, slot: u32) -> (&mut [u64], u32) {
        if slot < self.main_end {
            return (&mut self.main, 0);
        }
        let place = self.ends.partition_point(|&end| end <= slot);
        let first_slot = if place == 0 { self.main_end } else { self.ends[place - 1] };
        (&mut self.extensions[place * EXTENSION_WORDS..][..EXTENSION_WORDS], first_slot)
    }
}

/// Counts of the changes to a bucket.
#[derive(Clone, Copy, Default)]
pub(super) struct Counts {
    pub inserted: usize,
    pub replaced: usize,
    pub removed: usize,
}

impl Counts {
    fn count(&mut self, done: Inserted) {
        match done {
            Inserted::New => self.inserted += 1,
            Inserted::Replaced => self.replaced += 1,
        }
    }
}

impl Partition {
    /// Copies a bucket and its extensions into `scratch`.
    pub fn load(&self, number: usize, scratch: &mut Scratch) {
        scratch.clear();
        let copy = |to: &mut [u64], from: &[AtomicU64]| {
            to.iter_mut().zip(from).for_each(|(to, from)| *to = from.load(Ordering::Relaxed));
        };
        copy(&mut scratch.main, self.bucket(number));
        let mut header = BucketHeader(scratch.main[0]);
        scratch.main_end = header.slots_end();
        while let Some(extension) = header.extension() {
            let start = scratch.extensions.len();
            scratch.extensions.resize(start + EXTENSION_WORDS, 0);
            copy(&mut scratch.extensions[start..], self.extension(extension).expect("a chain that we wrote"));
            header = BucketHeader(scratch.extensions[start]);
            scratch.chain.push(extension);
            scratch.ends.push(header.slots_end());
        }
    }

    /// Changes what `load` read bit by bit, if that can be done. Otherwise `scratch` is spoilt: load again.
    pub fn splice(&self, scratch: &mut Scratch, batch: &[IndexChange]) -> Option<Counts> {
        let mut counts = Counts::default();
        let layout = self.layout;
        // A removal may let slots come back out of an extension, or set an extension free.
        if !scratch.chain.is_empty() && batch.iter().any(|change| matches!(change, IndexChange::Remove { .. })) {
            return None;
        }
        // The neighbor of an entry may be one that came in before it, not the one that the caller found. Then both have
        // the same slot and fingerprint.
        for change in batch {
            let tail = self.position(change.hash()).tail;
            let group = (slot(tail), layout.fingerprint(tail));
            if scratch.inserted.contains(&group) {
                return None;
            }
            let (words, first_slot) = scratch.holder(slot(tail));
            match *change {
                IndexChange::Insert { payload, neighbor, .. } => {
                    let neighbor = neighbor.map(|neighbor| self.position(neighbor).tail);
                    counts.count(splice::insert(words, layout, first_slot, tail, payload, neighbor).ok()?);
                    scratch.inserted.push(group);
                }
                IndexChange::Replace { payload, .. } => {
                    splice::replace(words, layout, first_slot, tail, payload);
                    counts.replaced += 1;
                }
                IndexChange::Remove { .. } => {}
            }
        }
        for change in batch.iter().filter(|change| matches!(change, IndexChange::Remove { .. })) {
            let tail = self.position(change.hash()).tail;
            let (words, first_slot) = scratch.holder(slot(tail));
            splice::remove(words, layout, first_slot, tail);
            counts.removed += 1;
        }
        Some(counts)
    }

    /// Takes what `load` read apart and changes its contents; [`encode`](Self::encode) puts it together again.
    pub fn edit(&self, scratch: &mut Scratch, batch: &[IndexChange]) -> Counts {
        let Scratch { contents, main, extensions, main_end, ends, .. } = scratch;
        contents.decode(&main[..], BucketHeader(main[0]), 0);
        let mut first_slot = *main_end;
        for (words, &end) in extensions.chunks_exact(EXTENSION_WORDS).zip(&*ends) {
            contents.decode(words, BucketHeader(words[0]), first_slot);
            first_slot = end;
        }
        let mut counts = Counts::default();
        for change in batch {
            let tail = self.position(change.hash()).tail;
            match *change {
                IndexChange::Insert { payload, neighbor, .. } => {
                    let neighbor = neighbor.map(|neighbor| self.position(neighbor).tail);
                    counts.count(contents.insert(tail, payload, neighbor));
                }
                IndexChange::Replace { payload, .. } => {
                    contents.replace(tail, payload);
                    counts.replaced += 1;
                }
                IndexChange::Remove { .. } => {}
            }
        }
        for change in batch.iter().filter(|change| matches!(change, IndexChange::Remove { .. })) {
            contents.remove(self.position(change.hash()).tail);
            counts.removed += 1;
        }
        counts
    }

    /// Lays the contents out in words and finds the extensions that they need. On an error nothing in the table has changed.
    pub fn encode(&self, scratch: &mut Scratch) -> Result<(), PartitionFull> {
        let Scratch { contents, main, extensions, main_end, ends, chain, .. } = scratch;
        extensions.clear();
        ends.clear();
        let encoded = contents.encode(0, 0, main).map_err(|_| PartitionFull)?;
        *main_end = encoded.slots_end;
        let (mut end, mut entry) = (encoded.slots_end, encoded.entries_end);
        while end < SLOTS {
            let start = extensions.len();
            extensions.resize(start + EXTENSION_WORDS, 0);
            let encoded = contents.encode(end, entry, &mut extensions[start..]).map_err(|_| PartitionFull)?;
            (end, entry) = (encoded.slots_end, encoded.entries_end);
            ends.push(end);
        }
        self.lengthen_chain(chain, ends.len())
    }

    /// Puts the words in `scratch` into the table; a reader sees all of them or none.
    pub fn publish(&self, number: usize, scratch: &mut Scratch) {
        let Scratch { main, extensions, main_end, ends, chain, .. } = scratch;
        let link = |words: &mut [u64], next: usize, end: u32| {
            let extension = chain[..ends.len()].get(next).copied();
            words[0] = BucketHeader(words[0]).with_extension(extension, end % SLOTS).0;
        };
        let copy = |to: &[AtomicU64], from: &[u64]| {
            to.iter().zip(from).for_each(|(to, from)| to.store(*from, Ordering::Relaxed));
        };
        let words = self.bucket(number);
        link(main, 0, *main_end);
        sequence_lock::write(&words[0], BucketHeader(main[0]), || {
            for (place, new) in extensions.chunks_exact_mut(EXTENSION_WORDS).enumerate() {
                link(new, place + 1, ends[place]);
                copy(self.extension(chain[place]).expect("an extension that we own"), new);
            }
            copy(&words[1..], &main[1..]);
        });
        for &extension in &chain[ends.len()..] {
            self.free_extension(extension);
        }
    }
}
