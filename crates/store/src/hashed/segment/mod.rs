//! The segment: an immutable run of records sorted by hash key, with the table of their keys.
//!
//! Records lie in a *stream* cut into data pages (`kernels::data_page`). The key table has pages of its own (`kernels::key_table`), with the fences
//! behind it. Both are in extents that the manifest lists in order. A GET needs only host memory ([`Segment`]) to find its record: the page fences
//! and the places of extents. A reader holds the `Arc`: the extents are reused only after the last holder released it.

pub mod keyspace_shares;
pub mod lapsed;
pub mod layout;
pub mod local_index;
pub mod segment_names;
pub mod segment_table;
pub mod snapshot_pins;
pub mod unreadable;
pub mod view;
pub mod writer;

use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::media::geometry::EXTENT_BYTES_MAX;
use tapetum_base::media::wire::{Reader, Short, Writer};
use tapetum_kernels::data_page::PageSize;
use tapetum_kernels::expiry::Expiry;
use tapetum_kernels::key_table::ENTRY_BYTES_MIN;
use tapetum_kernels::reference::Run;

/// No more entries than this have their place in an extent of key-table pages, so that a damaged count allocates no more.
const ENTRIES_PER_EXTENT_MAX: u64 = EXTENT_BYTES_MAX / ENTRY_BYTES_MIN as u64;

/// Bytes of a descriptor in the manifest, without its lists.
pub const DESCRIPTOR_BYTES: u64 = 70;
/// Bytes of each extent in these lists.
pub const EXTENT_NUMBER_BYTES: u64 = 4;
/// Bytes of a large value in the manifest, without its runs.
pub const LARGE_HEAD_BYTES: u64 = 24;
/// Most bytes of one of these runs.
pub const LARGE_RUN_BYTES_MAX: u64 = 10;

/// The manifest's description of a segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Descriptor {
    pub number: u32,
    /// Unique in the store's life; salts the checksums.
    pub version: u64,
    pub entries: u32,
    pub data_pages: u32,
    pub data_page_size: PageSize,
    pub key_pages: u32,
    /// Pages of the local index, behind the key table.
    pub fence_pages: u32,
    pub record_bytes_max: u32,
    /// Bytes of all records.
    pub record_bytes: u64,
    /// The latest expiry of any record; [`Expiry::NEVER`] when some never expire, [`Expiry::NONE`] when no record expires.
    pub expiry_max: Expiry,
    pub stamp_max: u64,
    pub data_extents: Vec<u32>,
    pub key_extents: Vec<u32>,
    /// Records whose values lie in extents of their own, by entry, ascending. The catalog drops those that die.
    pub large: Vec<LargeEntry>,
}

/// A record of a segment whose value lies out of line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LargeEntry {
    pub entry: u32,
    pub keyspace: KeyspaceId,
    pub expiry: Expiry,
    pub stamp: u64,
    pub runs: Vec<Run>,
}

impl LargeEntry {
    fn encode(&self, writer: &mut Writer) {
        writer.u32(self.entry);
        writer.u16(self.keyspace.0);
        writer.expiry(self.expiry);
        writer.u64(self.stamp);
        writer.u32(self.runs.len() as u32);
        self.runs.iter().for_each(|run| {
            writer.varint(run.address_word());
            writer.varint(run.count);
        });
    }

    fn parse(reader: &mut Reader<'_>) -> Result<LargeEntry, Short> {
        let (entry, keyspace) = (reader.u32()?, KeyspaceId(reader.u16()?));
        let (expiry, stamp) = (reader.expiry()?, reader.u64()?);
        let count = reader.count(2)?;
        let mut run = || Run::of_words(reader.varint()?, reader.varint()?).ok_or(Short);
        let runs = (0..count).map(|_| run()).collect::<Result<Vec<Run>, Short>>()?;
        if runs.is_empty() { Err(Short) } else { Ok(LargeEntry { entry, keyspace, expiry, stamp, runs }) }
    }

    pub fn encoded_bytes_max(&self) -> u64 {
        LARGE_HEAD_BYTES + self.runs.len() as u64 * LARGE_RUN_BYTES_MAX
    }

    pub fn extent_count(&self) -> u64 {
        self.runs.iter().map(|run| u64::from(run.count)).sum()
    }
}

impl Descriptor {
    pub fn encode(&self, writer: &mut Writer) {
        writer.u32(self.number);
        writer.u64(self.version);
        writer.u32(self.entries);
        writer.u32(self.data_pages);
        writer.u32(self.data_page_size.bytes() as u32);
        writer.u32(self.key_pages);
        writer.u32(self.fence_pages);
        writer.u32(self.record_bytes_max);
        writer.u64(self.record_bytes);
        writer.expiry(self.expiry_max);
        writer.u64(self.stamp_max);
        writer.extents(&self.data_extents);
        writer.extents(&self.key_extents);
        writer.u32(self.large.len() as u32);
        self.large.iter().for_each(|large| large.encode(writer));
    }

    pub fn parse(reader: &mut Reader<'_>) -> Result<Descriptor, Short> {
        let descriptor = Descriptor {
            number: reader.u32()?,
            version: reader.u64()?,
            entries: reader.u32()?,
            data_pages: reader.u32()?,
            data_page_size: PageSize::of(reader.u32()?).ok_or(Short)?,
            key_pages: reader.u32()?,
            fence_pages: reader.u32()?,
            record_bytes_max: reader.u32()?,
            record_bytes: reader.u64()?,
            expiry_max: reader.expiry()?,
            stamp_max: reader.u64()?,
            data_extents: reader.extents()?,
            key_extents: reader.extents()?,
            large: {
                let count = reader.count(26)?;
                (0..count).map(|_| LargeEntry::parse(reader)).collect::<Result<_, _>>()?
            },
        };
        let entries_max = descriptor.key_extents.len() as u64 * ENTRIES_PER_EXTENT_MAX;
        if u64::from(descriptor.entries) > entries_max { Err(Short) } else { Ok(descriptor) }
    }

    /// Whether a record has an expiry, as far as is known.
    pub fn may_expire(&self) -> bool {
        !self.expiry_max.is_none()
    }

    pub fn extents(&self) -> impl Iterator<Item = u32> + '_ {
        self.data_extents.iter().chain(&self.key_extents).copied()
    }

    pub fn extent_count(&self) -> u32 {
        (self.data_extents.len() + self.key_extents.len()) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hashed::catalog::tests::descriptor;
    use tapetum_kernels::extent_address::EXTENTS_MAX;

    #[test]
    fn a_large_entry_takes_what_is_counted_for_it_at_most() {
        for numbers in [1, EXTENTS_MAX - 1] {
            let run = Run { first: numbers, count: numbers };
            let large = LargeEntry {
                entry: 1,
                keyspace: KeyspaceId(4),
                expiry: Expiry::from_millis(2),
                stamp: 3,
                runs: vec![run; 3],
            };
            assert_eq!(large.extent_count(), 3 * u64::from(numbers));
            let mut writer = Writer::default();
            large.encode(&mut writer);
            let bytes = writer.len() as u64;
            assert!(bytes <= large.encoded_bytes_max());
            // An address of another member would take the fifth byte.
            let counted = large.encoded_bytes_max() - 2 * 3;
            assert!(numbers == 1 || bytes == counted, "{bytes} of {counted}");
        }
    }

    #[test]
    fn more_entries_than_the_key_table_holds_are_refused() {
        let parse = |entries: u64| {
            let key_extents = vec![7, 9];
            let mut writer = Writer::default();
            Descriptor { entries: entries as u32, key_extents, ..descriptor(1, 1) }.encode(&mut writer);
            Descriptor::parse(&mut Reader::new(&writer)).is_ok()
        };
        assert!(parse(2 * ENTRIES_PER_EXTENT_MAX) && !parse(2 * ENTRIES_PER_EXTENT_MAX + 1));
        assert!(parse(1) && !parse(u32::MAX.into()));
    }
}
