//! The segments of the store and their valid records: the manifest's contents, in memory.
//!
//! A record is valid exactly when the index maps its hash key to its segment. Every change comes through
//! [`Catalog::install`], at run time and in recovery alike.

use crate::hashed::index::checkpoint::Checkpoint;
use crate::hashed::segment::{DESCRIPTOR_BYTES, Descriptor, EXTENT_NUMBER_BYTES, LargeEntry};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tapetum_base::manifest::client::Misfit;
use tapetum_base::media::wire::{Reader, Short, Writer};
use tapetum_kernels::prefetch::prefetch;

/// One bit per entry of a segment. Clones share the bits: readers see what the installer clears.
#[derive(Clone, Debug)]
pub struct Bitmap {
    words: Arc<[AtomicU64]>,
    count: u32,
}

impl Bitmap {
    pub fn full(count: u32) -> Bitmap {
        let words = count.div_ceil(64);
        let word = |number: u32| {
            let left = count - number * 64;
            if left < 64 { (1 << left) - 1 } else { u64::MAX }
        };
        Bitmap { words: (0..words).map(|number| AtomicU64::new(word(number))).collect(), count }
    }

    /// As [`Bitmap::to_words`] gave them.
    pub fn of_words(words: &[u64], count: u32) -> Bitmap {
        assert_eq!(words.len(), count.div_ceil(64) as usize);
        Bitmap { words: words.iter().map(|word| AtomicU64::new(*word)).collect(), count }
    }

    /// A copy with bits of its own. Clones share theirs.
    pub fn to_own(&self) -> Bitmap {
        Bitmap::of_words(&self.to_words(), self.count)
    }

    #[cfg(test)]
    pub fn none(count: u32) -> Bitmap {
        Bitmap { words: (0..count.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(), count }
    }

    pub fn get(&self, place: u32) -> bool {
        assert!(place < self.count);
        self.words[place as usize / 64].load(Ordering::SeqCst) >> (place % 64) & 1 == 1
    }

    /// Prefetches the word that [`Bitmap::get`] will read, if there is such a place.
    pub fn prefetch(&self, place: u64) {
        if place < u64::from(self.count) {
            prefetch(&self.words[place as usize / 64]);
        }
    }

    /// Clears a bit; whether it was set.
    pub fn clear(&self, place: u32) -> bool {
        assert!(place < self.count);
        let bit = 1 << (place % 64);
        self.words[place as usize / 64].fetch_and(!bit, Ordering::SeqCst) & bit != 0
    }

    fn words(&self) -> impl Iterator<Item = u64> + '_ {
        self.words.iter().map(|word| word.load(Ordering::SeqCst))
    }

    pub fn to_words(&self) -> Vec<u64> {
        self.words().collect()
    }

    /// As [`Bitmap::to_words`], with all bits set.
    pub fn all_words(&self) -> Vec<u64> {
        Bitmap::full(self.count).to_words()
    }

    pub fn ones(&self) -> u32 {
        self.words().map(u64::count_ones).sum()
    }

    /// How many of the bits that are set in `words` are set here.
    pub fn ones_among(&self, words: &[u64]) -> u32 {
        self.words().zip(words).map(|(own, word)| (own & word).count_ones()).sum()
    }

    /// Whether there are ones behind the last bit.
    fn has_more(&self) -> bool {
        let last = self.words().last().unwrap_or(0);
        !self.count.is_multiple_of(64) && last >> (self.count % 64) != 0
    }

    pub fn bytes(&self) -> usize {
        self.words.len() * 8
    }
}

impl PartialEq for Bitmap {
    fn eq(&self, other: &Bitmap) -> bool {
        self.count == other.count && self.words().eq(other.words())
    }
}

impl Eq for Bitmap {}

/// A segment and the validity of its records.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SegmentState {
    pub descriptor: Descriptor,
    pub valid: Bitmap,
    pub valid_entries: u32,
    /// Bytes of the valid records.
    pub valid_bytes: u64,
}

impl SegmentState {
    pub fn new(descriptor: Descriptor) -> SegmentState {
        let valid = Bitmap::full(descriptor.entries);
        SegmentState { valid_entries: descriptor.entries, valid_bytes: descriptor.record_bytes, valid, descriptor }
    }

    pub fn encode(&self, writer: &mut Writer) {
        self.descriptor.encode(writer);
        writer.u64(self.valid_bytes);
        self.valid.words().for_each(|word| writer.u64(word));
    }

    /// Most bytes that [`SegmentState::encode`] writes.
    pub fn encoded_bytes_max(&self) -> u64 {
        let (extents, entries) = (self.descriptor.extent_count(), self.descriptor.entries);
        encoded_bytes_max(extents.into(), entries.into()) + self.large_bytes_max()
    }

    /// The part of these bytes that describes large values.
    pub fn large_bytes_max(&self) -> u64 {
        self.descriptor.large.iter().map(LargeEntry::encoded_bytes_max).sum()
    }

    pub fn parse(reader: &mut Reader<'_>) -> Result<SegmentState, Short> {
        let descriptor = Descriptor::parse(reader)?;
        let valid_bytes = reader.u64()?;
        let words = reader.take(descriptor.entries.div_ceil(64) as usize * 8)?;
        let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        let words = words.chunks_exact(8).map(|bytes| AtomicU64::new(word(bytes))).collect();
        let valid = Bitmap { words, count: descriptor.entries };
        if valid.has_more() {
            return Err(Short);
        }
        Ok(SegmentState { valid_entries: valid.ones(), descriptor, valid, valid_bytes })
    }
}

/// Most bytes that the manifest takes for a segment without large values.
pub fn encoded_bytes_max(extents: u64, entries: u64) -> u64 {
    DESCRIPTOR_BYTES + extents * EXTENT_NUMBER_BYTES + 8 + entries.div_ceil(64) * 8
}

/// Entries of one segment that an install makes invalid.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Deaths {
    pub segment: u32,
    /// Bytes of their records.
    pub record_bytes: u64,
    /// Ascending numbers of entries.
    pub entries: Vec<u32>,
}

/// A change of the catalog.
///
/// ```text
///  added: count u32, descriptors · deaths: count u32, each (segment u32, record bytes u64, entries ascending) · dropped: list of u32
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Install {
    pub added: Vec<Descriptor>,
    pub deaths: Vec<Deaths>,
    /// Segments that are gone.
    pub dropped: Vec<u32>,
}

impl Install {
    pub fn encode(&self, writer: &mut Writer) {
        writer.u32(self.added.len() as u32);
        self.added.iter().for_each(|descriptor| descriptor.encode(writer));
        writer.u32(self.deaths.len() as u32);
        for deaths in &self.deaths {
            writer.u32(deaths.segment);
            writer.u64(deaths.record_bytes);
            writer.ascending(&deaths.entries);
        }
        writer.list(&self.dropped);
    }

    pub fn parse(reader: &mut Reader<'_>) -> Result<Install, Short> {
        let added = (0..reader.count(32)?).map(|_| Descriptor::parse(reader)).collect::<Result<_, _>>()?;
        let mut deaths = Vec::new();
        for _ in 0..reader.count(16)? {
            deaths.push(Deaths { segment: reader.u32()?, record_bytes: reader.u64()?, entries: reader.ascending()? });
        }
        Ok(Install { added, deaths, dropped: reader.list()? })
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Catalog {
    pub segments: BTreeMap<u32, SegmentState>,
    /// The checkpoint of the index, if the manifest's last frame names one. Taken when the store is opened.
    pub checkpoint: Option<Checkpoint>,
}

impl Catalog {
    /// Applies a change. On an error (the change does not fit the catalog) nothing that matters has changed.
    pub fn install(&mut self, install: &Install) -> Result<(), Misfit> {
        for descriptor in &install.added {
            self.add(SegmentState::new(descriptor.clone()))?;
        }
        for deaths in &install.deaths {
            let state = self
                .segments
                .get_mut(&deaths.segment)
                .ok_or_else(|| Misfit(format!("kills in segment {}, which is not there", deaths.segment)))?;
            for &entry in &deaths.entries {
                if entry >= state.descriptor.entries || !state.valid.clear(entry) {
                    return Err(Misfit(format!(
                        "kills entry {entry} of segment {}, which is not alive",
                        deaths.segment
                    )));
                }
            }
            state.valid_entries -= deaths.entries.len() as u32;
            state.descriptor.large.retain(|large| deaths.entries.binary_search(&large.entry).is_err());
            state.valid_bytes = state
                .valid_bytes
                .checked_sub(deaths.record_bytes)
                .ok_or_else(|| Misfit(format!("kills more bytes than segment {} has", deaths.segment)))?;
        }
        for number in &install.dropped {
            self.segments
                .remove(number)
                .ok_or_else(|| Misfit(format!("drops segment {number}, which is not there")))?;
        }
        Ok(())
    }

    /// Takes in a segment as it is.
    pub fn add(&mut self, state: SegmentState) -> Result<(), Misfit> {
        let number = state.descriptor.number;
        match self.segments.insert(number, state) {
            None => Ok(()),
            Some(_) => Err(Misfit(format!("adds segment {number} twice"))),
        }
    }

    /// The lowest number that no segment has.
    pub fn number_free(&self, taken: &[u32]) -> u32 {
        (0..)
            .find(|number| !self.segments.contains_key(number) && !taken.contains(number))
            .expect("numbers are endless")
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use tapetum_base::keyspace::KeyspaceId;
    use tapetum_kernels::data_page::PageSize;
    use tapetum_kernels::expiry::Expiry;
    use tapetum_kernels::reference::Run;

    pub fn descriptor(number: u32, entries: u32) -> Descriptor {
        Descriptor {
            number,
            version: u64::from(number) + 10,
            entries,
            data_pages: 1,
            data_page_size: PageSize::Large,
            key_pages: 1,
            fence_pages: 1,
            record_bytes_max: 10,
            record_bytes: u64::from(entries) * 10,
            expiry_max: Expiry::NONE,
            stamp_max: 3,
            data_extents: vec![number],
            key_extents: vec![100 + number],
            large: Vec::new(),
        }
    }

    #[test]
    fn a_bitmap_has_its_bits_and_no_others() {
        let bits = Bitmap::full(70);
        assert_eq!((bits.ones(), bits.bytes()), (70, 16));
        assert!(bits.clear(69), "it was set");
        assert!(!bits.clear(69) && !bits.get(69) && bits.get(68));
        assert_eq!(Bitmap::full(70), Bitmap::full(70));
        assert!(bits != Bitmap::full(70) && Bitmap::none(64) != Bitmap::none(65));
    }

    #[test]
    fn bits_behind_the_last_entry_are_refused() {
        for entries in [63, 64, 65] {
            let mut writer = Writer::default();
            SegmentState::new(descriptor(0, entries)).encode(&mut writer);
            assert!(SegmentState::parse(&mut Reader::new(&writer)).is_ok());
            let mut bytes = writer.into_bytes();
            *bytes.last_mut().unwrap() |= 1 << 7;
            let parsed = SegmentState::parse(&mut Reader::new(&bytes));
            assert_eq!(parsed.is_ok(), entries == 64, "{entries} entries");
        }
    }

    #[test]
    fn a_change_that_does_not_fit_says_what_is_amiss() {
        let refusal = |install: Install| {
            let mut catalog = Catalog::default();
            catalog.install(&Install { added: vec![descriptor(0, 5)], ..Install::default() }).unwrap();
            catalog.install(&install).err().map(|Misfit(what)| what).unwrap_or_default()
        };
        let kills = |segment, record_bytes, entries: &[u32]| Install {
            deaths: vec![Deaths { segment, record_bytes, entries: entries.to_vec() }],
            ..Install::default()
        };
        assert_eq!(refusal(kills(0, 50, &[0, 1, 2, 3, 4])), "");
        assert!(refusal(kills(1, 10, &[0])).contains("not there"));
        assert!(refusal(kills(0, 10, &[5])).contains("not alive"));
        assert!(refusal(kills(0, 20, &[4, 4])).contains("not alive"));
        assert!(refusal(kills(0, 51, &[4])).contains("more bytes"));
        assert!(refusal(Install { added: vec![descriptor(0, 5)], ..Install::default() }).contains("twice"));
        assert!(!refusal(Install { dropped: vec![1], ..Install::default() }).is_empty());
    }

    #[test]
    fn a_large_value_is_written_down_until_its_record_dies() {
        let large = |entry| LargeEntry {
            entry,
            keyspace: KeyspaceId(2),
            expiry: Expiry::from_millis(1),
            stamp: 2,
            runs: vec![Run { first: 500, count: 3 }],
        };
        let added = Descriptor { large: vec![large(1), large(2)], ..descriptor(0, 3) };
        let install = Install {
            added: vec![added],
            deaths: vec![Deaths { segment: 0, record_bytes: 10, entries: vec![1] }],
            ..Install::default()
        };
        let mut writer = Writer::default();
        install.encode(&mut writer);
        assert_eq!(Install::parse(&mut Reader::new(&writer)), Ok(install.clone()));
        let mut catalog = Catalog::default();
        catalog.install(&install).unwrap();
        assert_eq!(catalog.segments[&0].descriptor.large, [large(2)]);
    }

    #[test]
    fn an_install_adds_kills_and_drops() {
        let mut catalog = Catalog::default();
        catalog.install(&Install { added: vec![descriptor(0, 70)], ..Install::default() }).unwrap();
        let second = Install {
            added: vec![descriptor(1, 3)],
            deaths: vec![
                Deaths { segment: 0, record_bytes: 20, entries: vec![3, 69] },
                Deaths { segment: 1, record_bytes: 10, entries: vec![1] },
            ],
            dropped: vec![],
        };
        let mut writer = Writer::default();
        second.encode(&mut writer);
        assert_eq!(Install::parse(&mut Reader::new(&writer)), Ok(second.clone()));
        catalog.install(&second).unwrap();
        let state = &catalog.segments[&0];
        assert_eq!((state.valid_entries, state.valid_bytes), (68, 680));
        assert!(catalog.install(&second).is_err(), "a change that does not fit is refused");
        let mut writer = Writer::default();
        catalog.segments[&0].encode(&mut writer);
        assert_eq!(SegmentState::parse(&mut Reader::new(&writer)), Ok(catalog.segments[&0].clone()));
        assert_eq!(writer.len() as u64, catalog.segments[&0].encoded_bytes_max());
        assert_eq!(catalog.number_free(&[2]), 3);
    }
}
