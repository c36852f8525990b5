//! A decoded bucket: its entries in order, which can be changed and encoded again. For the one thread that writes.

use super::entries::entry;
use super::{BucketHeader, EntryLayout, SLOTS, TENANCY_START, slot};
use crate::bits::{BitWriter, Words, ones_from, write_bits};

/// No branch before this entry: it is the first of its slot and fingerprint.
const FIRST: u16 = u16::MAX;
/// The entry's tail is not known.
const UNKNOWN: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct EditedEntry {
    slot: u16,
    fingerprint: u16,
    /// Equal bits after the fingerprint with the entry before, if that has the same slot and fingerprint; else [`FIRST`].
    branch: u16,
    payload: u32,
    /// The place of the entry's whole tail in `known`, if the entry was added since the bucket was read; else
    /// [`UNKNOWN`].
    tail: u32,
}

/// The entries of a bucket and of its extensions.
#[derive(Debug)]
pub struct Bucket {
    layout: EntryLayout,
    entries: Vec<EditedEntry>,
    known: Vec<u128>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Encoded {
    /// The next slot and entry to write; all are written at [`SLOTS`].
    pub slots_end: u32,
    pub entries_end: usize,
}

/// One slot has more entries than an empty bucket of this size has room for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotTooLarge;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Inserted {
    New,
    /// The key was there: its payload was replaced.
    Replaced,
}

impl Bucket {
    pub fn new(layout: EntryLayout) -> Bucket {
        Bucket { layout, entries: Vec::new(), known: Vec::new() }
    }

    pub fn clear(&mut self) {
        self.entries.clear();
        self.known.clear();
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Appends what a bucket itself holds, from `first_slot` up to its split. Buckets come in order of their slots.
    pub fn decode<W: Words + ?Sized>(&mut self, words: &W, header: BucketHeader, first_slot: u32) {
        let layout = self.layout;
        let fingerprint_shift = layout.payload_bits;
        let payload_mask = (u64::MAX >> (64 - layout.payload_bits)) as u32;
        let begin = self.entries.len();
        let mut bit = TENANCY_START;
        for slot in first_slot..header.slots_end() {
            let tenants = ones_from(words, bit);
            bit += tenants + 1;
            let mut before = None;
            for _ in 0..tenants {
                let value = entry(words, layout, self.entries.len() - begin);
                let fingerprint = (value >> fingerprint_shift) as u16;
                let branch = if before == Some(fingerprint) { 0 } else { FIRST };
                before = Some(fingerprint);
                let payload = value as u32 & payload_mask;
                self.entries.push(EditedEntry { slot: slot as u16, fingerprint, branch, payload, tail: UNKNOWN });
            }
        }
        for entry in self.entries[begin..].iter_mut().filter(|entry| entry.branch != FIRST) {
            let equal_bits = ones_from(words, bit);
            entry.branch = equal_bits as u16;
            bit += equal_bits + 1;
        }
    }

    /// The entries with the slot and fingerprint of `tail`.
    fn group(&self, tail: u128) -> std::ops::Range<usize> {
        let key = |entry: &EditedEntry| (u32::from(entry.slot), u32::from(entry.fingerprint));
        let want = (slot(tail), self.layout.fingerprint(tail));
        let start = self.entries.partition_point(|entry| key(entry) < want);
        let more = self.entries[start..].iter().take_while(|entry| key(entry) == want).count();
        start..start + more
    }

    /// The blind search of a group that is not empty.
    fn leaf(&self, group: &std::ops::Range<usize>, tail: u128) -> usize {
        let mut leaf = group.start;
        let mut skip_above = u16::MAX;
        for i in group.start + 1..group.end {
            let branch = self.entries[i].branch;
            if branch > skip_above {
                continue;
            }
            if self.layout.branch_bit(tail, branch.into()) {
                leaf = i;
                skip_above = u16::MAX;
            } else {
                skip_above = branch;
            }
        }
        leaf
    }

    fn known_entry(&mut self, tail: u128, branch: u16, payload: u32) -> EditedEntry {
        debug_assert!(payload as u64 >> self.layout.payload_bits == 0, "payload {payload} is too large");
        self.known.push(tail);
        EditedEntry {
            slot: slot(tail) as u16,
            fingerprint: self.layout.fingerprint(tail) as u16,
            branch,
            payload,
            tail: self.known.len() as u32 - 1,
        }
    }

    /// Adds an entry, or replaces the payload of the one that the key has. `neighbor` is the tail of the entry that
    /// [`find`](super::find::find) gave for this tail when the bucket was read; it is needed unless find gave none.
    pub fn insert(&mut self, tail: u128, payload: u32, neighbor: Option<u128>) -> Inserted {
        let group = self.group(tail);
        if group.is_empty() {
            let entry = self.known_entry(tail, FIRST, payload);
            self.entries.insert(group.start, entry);
            return Inserted::New;
        }
        // The search ends at an entry that was added since the read, whose tail is known, or else where it ended at the
        // read. A new entry puts one branch into the trie, and that branch leads either to it or on as before.
        let leaf = self.leaf(&group, tail);
        let leaf_tail = match self.entries[leaf].tail {
            UNKNOWN => neighbor.expect("a key that shares its fingerprint comes with its neighbor's hash key"),
            known => self.known[known as usize],
        };
        assert!(
            slot(leaf_tail) == slot(tail) && self.layout.fingerprint(leaf_tail) == self.layout.fingerprint(tail),
            "the neighbor of a key lies in its slot and has its fingerprint"
        );
        if leaf_tail == tail {
            self.entries[leaf].payload = payload;
            return Inserted::Replaced;
        }
        let equal_bits = self.layout.equal_bits(leaf_tail, tail) as u16;
        // Entries that share more than `equal_bits` bits with the leaf stay together, on one side of the new entry.
        if self.layout.branch_bit(tail, equal_bits.into()) {
            let mut after = leaf + 1;
            while after < group.end && self.entries[after].branch > equal_bits {
                after += 1;
            }
            let entry = self.known_entry(tail, equal_bits, payload);
            self.entries.insert(after, entry);
        } else {
            let mut at = leaf;
            while at > group.start && self.entries[at].branch > equal_bits {
                at -= 1;
            }
            let branch = std::mem::replace(&mut self.entries[at].branch, equal_bits);
            let entry = self.known_entry(tail, branch, payload);
            self.entries.insert(at, entry);
        }
        Inserted::New
    }

    /// Replaces the payload of a key that is there, and gives the old one.
    pub fn replace(&mut self, tail: u128, payload: u32) -> u32 {
        let group = self.group(tail);
        assert!(!group.is_empty(), "only a key that is there is replaced");
        let leaf = self.leaf(&group, tail);
        debug_assert!(payload as u64 >> self.layout.payload_bits == 0, "payload {payload} is too large");
        std::mem::replace(&mut self.entries[leaf].payload, payload)
    }

    /// Removes a key that is there, and gives its payload.
    pub fn remove(&mut self, tail: u128) -> u32 {
        let group = self.group(tail);
        assert!(!group.is_empty(), "only a key that is there is removed");
        let leaf = self.leaf(&group, tail);
        let removed = self.entries.remove(leaf);
        // The entry has a branch on each side. The one with fewer equal bits stays, between the two new neighbours.
        if leaf + 1 < group.end {
            let next = &mut self.entries[leaf];
            next.branch = if removed.branch == FIRST { FIRST } else { next.branch.min(removed.branch) };
        }
        removed.payload
    }

    /// Appends an entry whose tail is above all others. The others must have been appended in this way too.
    pub fn push_last(&mut self, tail: u128, payload: u32) {
        let mut branch = FIRST;
        if let Some(last) = self.known.last() {
            assert!(*last < tail, "entries come in ascending order");
            if slot(*last) == slot(tail) && self.layout.fingerprint(*last) == self.layout.fingerprint(tail) {
                branch = self.layout.equal_bits(*last, tail) as u16;
            }
        }
        let entry = self.known_entry(tail, branch, payload);
        self.entries.push(entry);
    }

    /// Writes as many slots from `first_slot` on as `words` has room for. Their first entry is number `first_entry`.
    /// Word 0 becomes the header of a bucket without an extension.
    pub fn encode(&self, first_slot: u32, first_entry: usize, words: &mut [u64]) -> Result<Encoded, SlotTooLarge> {
        words.fill(0);
        let width = self.layout.width() as usize;
        let mut room = words.len() * 64 - TENANCY_START;
        let mut tenancy = BitWriter::new(words, TENANCY_START);
        let mut at = first_entry;
        let mut slots_end = first_slot;
        while slots_end < SLOTS {
            let start = at;
            let mut need = 1;
            while let Some(entry) = self.entries.get(at).filter(|entry| u32::from(entry.slot) == slots_end) {
                need += 1 + width + if entry.branch == FIRST { 0 } else { usize::from(entry.branch) + 1 };
                at += 1;
            }
            if need > room {
                at = start;
                break;
            }
            room -= need;
            tenancy.push_unary(at - start);
            slots_end += 1;
        }
        if slots_end == first_slot {
            return Err(SlotTooLarge);
        }
        let branches_start = tenancy.position();
        let mut branches = BitWriter::new(words, branches_start);
        for entry in self.entries[first_entry..at].iter().filter(|entry| entry.branch != FIRST) {
            branches.push_unary(entry.branch.into());
        }
        let branch_bits = branches.position() - branches_start;
        words[0] = BucketHeader::of_branches(branch_bits).0;
        let mut bit = words.len() * 64;
        for entry in &self.entries[first_entry..at] {
            bit -= width;
            let value = u64::from(entry.fingerprint) << self.layout.payload_bits | u64::from(entry.payload);
            write_bits(words, bit, width as u32, value);
        }
        Ok(Encoded { slots_end, entries_end: at })
    }
}

#[cfg(test)]
mod tests {
    use super::super::find::find;
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[derive(Clone, Debug)]
    enum Step {
        Put(u128),
        Remove(prop::sample::Index),
        Reread,
    }

    /// Tails, many of which share long prefixes.
    fn tail() -> impl Strategy<Value = u128> {
        (0u128..6, 0u32..125, any::<u128>()).prop_map(|(stem, shared, rest)| {
            let stem = stem.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
            stem & !(u128::MAX >> shared) | rest & (u128::MAX >> shared)
        })
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => tail().prop_map(Step::Put),
            2 => any::<prop::sample::Index>().prop_map(Step::Remove),
            1 => Just(Step::Reread),
        ]
    }

    /// Encodes the bucket and decodes it again, which forgets the known tails. Returns the words.
    fn reread(bucket: &mut Bucket) -> Vec<u64> {
        let mut words = vec![0; 4096];
        let encoded = bucket.encode(0, 0, &mut words).expect("room");
        assert_eq!((encoded.slots_end, encoded.entries_end), (SLOTS, bucket.len()));
        bucket.clear();
        bucket.decode(&words[..], BucketHeader(words[0]), 0);
        words
    }

    proptest! {
        #[test]
        fn behaves_as_a_map(steps in prop::collection::vec(step(), 1..150), fingerprint_bits in 0u32..9) {
            let layout = EntryLayout::new(fingerprint_bits, 20);
            let mut model = BTreeMap::new();
            let mut bucket = Bucket::new(layout);
            // Payloads are unique, so a payload identifies its entry's tail, as a key table would.
            let mut owners = Vec::new();
            let mut words = reread(&mut bucket);
            for step in steps {
                match step {
                    Step::Put(tail) => {
                        let payload = owners.len() as u32;
                        owners.push(tail);
                        let neighbor = find(&words[..], BucketHeader(words[0]), layout, 0, tail).map(|p| owners[p as usize]);
                        let done = bucket.insert(tail, payload, neighbor);
                        let there = model.insert(tail, payload).is_some();
                        prop_assert_eq!(done == Inserted::Replaced, there);
                        if there {
                            // The words still name the old payload, whose owner is the same.
                            prop_assert_eq!(bucket.replace(tail, payload), payload);
                        }
                    }
                    Step::Remove(index) => {
                        // Entries are removed only between merges: an entry that a later insert names as its neighbor
                        // must still be there.
                        words = reread(&mut bucket);
                        if model.is_empty() { continue }
                        let tail = *model.keys().nth(index.index(model.len())).unwrap();
                        prop_assert_eq!(Some(bucket.remove(tail)), model.remove(&tail));
                        words = reread(&mut bucket);
                    }
                    Step::Reread => words = reread(&mut bucket),
                }
                prop_assert_eq!(bucket.len(), model.len());
            }
            words = reread(&mut bucket);
            for (&tail, &payload) in &model {
                prop_assert_eq!(find(&words[..], BucketHeader(words[0]), layout, 0, tail), Some(payload));
            }
        }

        #[test]
        fn a_full_bucket_is_cut_between_slots(mut tails in prop::collection::vec(any::<u128>(), 1..900)) {
            let layout = EntryLayout::new(6, 10);
            tails.sort_unstable();
            tails.dedup();
            let mut bucket = Bucket::new(layout);
            tails.iter().enumerate().for_each(|(i, &tail)| bucket.push_last(tail, i as u32));
            let (mut slot_at, mut entry_at) = (0, 0);
            let mut again = Bucket::new(layout);
            while slot_at < SLOTS {
                let mut words = [0; 48];
                let encoded = bucket.encode(slot_at, entry_at, &mut words).expect("a slot is small");
                prop_assert!(encoded.slots_end > slot_at);
                let extension = (encoded.slots_end < SLOTS).then_some(0);
                let header = BucketHeader(words[0]).with_extension(extension, encoded.slots_end % SLOTS);
                for (i, &tail) in tails.iter().enumerate() {
                    if (slot_at..encoded.slots_end).contains(&slot(tail)) {
                        prop_assert_eq!(find(&words[..], header, layout, slot_at, tail), Some(i as u32));
                    }
                }
                again.decode(&words[..], header, slot_at);
                (slot_at, entry_at) = (encoded.slots_end, encoded.entries_end);
                prop_assert_eq!(again.len(), entry_at);
            }
            prop_assert_eq!(entry_at, tails.len());
        }
    }

    #[test]
    fn a_slot_that_cannot_fit_is_refused() {
        let mut bucket = Bucket::new(EntryLayout::new(6, 10));
        (0..40).for_each(|i| bucket.push_last(7 << 120 | i, i as u32));
        let mut words = [0; 8];
        // The empty slots before the full one still fit.
        let encoded = bucket.encode(0, 0, &mut words).unwrap();
        assert_eq!(encoded, Encoded { slots_end: 7, entries_end: 0 });
        assert_eq!(bucket.encode(7, 0, &mut words), Err(SlotTooLarge));
    }
}
