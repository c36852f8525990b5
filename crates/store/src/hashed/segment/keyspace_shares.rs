//! How many bytes of records a segment has of each keyspace. A scan passes over segments that have none of its own.
//!
//! On flash the list lies behind the fences:
//! ```text
//!  count u32 · for each keyspace, ascending: id u16, bytes u64
//! ```
//! 1. The list has all keyspaces of the segment, dead records included, or it is empty. It is empty for a segment that more than
//!    [`KEYSPACES_MAX`] keyspaces share, and for one that was written before there were lists. Then zeros follow the fences.
//! 2. Nothing but the records decides what is listed, so a list that is built from the key table is the one that was written.

use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::media::wire::{Reader, Short, Writer};

/// Longer lists are not kept: this one takes 2.5 KiB of memory for each segment.
const KEYSPACES_MAX: usize = 256;
/// Bytes of a keyspace in the list.
const SHARE_BYTES: usize = 10;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyspaceShare {
    pub keyspace: KeyspaceId,
    pub record_bytes: u64,
}

/// See the [module](self).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct KeyspaceShares(Box<[KeyspaceShare]>);

impl KeyspaceShares {
    /// Whether the keyspaces of the segment are known.
    pub fn is_listed(&self) -> bool {
        !self.0.is_empty()
    }

    /// How many keyspaces are listed.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = &KeyspaceShare> {
        self.0.iter()
    }

    /// Bytes of a keyspace's records; `None`: they are not known.
    pub fn record_bytes(&self, keyspace: KeyspaceId) -> Option<u64> {
        let place = self.0.binary_search_by_key(&keyspace, |share| share.keyspace);
        self.is_listed().then(|| place.map_or(0, |place| self.0[place].record_bytes))
    }

    /// Whether the segment may have records of the keyspace.
    pub fn may_have(&self, keyspace: KeyspaceId) -> bool {
        self.record_bytes(keyspace) != Some(0)
    }

    /// Bytes of all records, if they are known.
    pub fn total_bytes(&self) -> u64 {
        self.0.iter().map(|share| share.record_bytes).sum()
    }

    /// Host memory.
    pub fn bytes(&self) -> usize {
        size_of_val(&self.0[..])
    }

    /// Appends the list. An empty one takes no bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        if !self.is_listed() {
            return;
        }
        let mut writer = Writer::default();
        writer.u32(self.0.len() as u32);
        for KeyspaceShare { keyspace, record_bytes } in &self.0 {
            writer.u16(keyspace.0);
            writer.u64(*record_bytes);
        }
        out.extend_from_slice(&writer);
    }

    /// Reads what `encode` wrote; zeros may follow. Bytes that are no list give an empty one.
    pub fn parse(bytes: &[u8]) -> KeyspaceShares {
        let parse = |reader: &mut Reader<'_>| -> Result<Box<[KeyspaceShare]>, Short> {
            let count = reader.count(SHARE_BYTES)?;
            let mut share = || Ok(KeyspaceShare { keyspace: KeyspaceId(reader.u16()?), record_bytes: reader.u64()? });
            (0..count).map(|_| share()).collect()
        };
        let shares = parse(&mut Reader::new(bytes)).unwrap_or_default();
        let ascends = shares.is_sorted_by(|a, b| a.keyspace < b.keyspace);
        let is_list = ascends && shares.len() <= KEYSPACES_MAX && shares.iter().all(|share| share.record_bytes > 0);
        if is_list { KeyspaceShares(shares) } else { KeyspaceShares::default() }
    }
}

/// Gathers the shares of a segment that is being written.
#[derive(Debug, Default)]
pub struct ShareBuilder {
    shares: Vec<KeyspaceShare>,
    /// The place of the last record's keyspace: neighbours often share one.
    last: usize,
    /// There are more keyspaces than are listed.
    is_too_long: bool,
}

impl ShareBuilder {
    pub fn add(&mut self, keyspace: KeyspaceId, record_bytes: u32) {
        let is_last = self.shares.get(self.last).is_some_and(|share| share.keyspace == keyspace);
        if self.is_too_long || !(is_last || self.find(keyspace)) {
            return;
        }
        self.shares[self.last].record_bytes += u64::from(record_bytes);
    }

    /// Makes the keyspace's place the last one; `false`: there is no room for it.
    fn find(&mut self, keyspace: KeyspaceId) -> bool {
        match self.shares.binary_search_by_key(&keyspace, |share| share.keyspace) {
            Ok(place) => self.last = place,
            Err(_) if self.shares.len() == KEYSPACES_MAX => {
                (self.is_too_long, self.shares) = (true, Vec::new());
                return false;
            }
            Err(place) => {
                self.shares.insert(place, KeyspaceShare { keyspace, record_bytes: 0 });
                self.last = place;
            }
        }
        true
    }

    pub fn build(self) -> KeyspaceShares {
        KeyspaceShares(self.shares.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares_of(records: impl IntoIterator<Item = (u16, u32)>) -> KeyspaceShares {
        let mut builder = ShareBuilder::default();
        records.into_iter().for_each(|(keyspace, bytes)| builder.add(KeyspaceId(keyspace), bytes));
        builder.build()
    }

    #[test]
    fn bytes_are_summed_by_keyspace() {
        let shares = shares_of([(7, 10), (0, 5), (7, 1), (3, 2), (3, 2), (0, 5)]);
        assert_eq!([0, 3, 7, 8].map(|id| shares.record_bytes(KeyspaceId(id))), [Some(10), Some(4), Some(11), Some(0)]);
        assert!(shares.may_have(KeyspaceId(7)) && !shares.may_have(KeyspaceId(8)));
        assert_eq!((shares.total_bytes(), shares.bytes()), (25, 3 * 16));
    }

    #[test]
    fn a_list_is_read_as_it_was_written_and_other_bytes_are_none() {
        let shares = shares_of([(7, 10), (0, 5), (300, 1)]);
        let mut bytes = Vec::new();
        shares.encode(&mut bytes);
        bytes.extend_from_slice(&[0; 50]);
        assert_eq!(KeyspaceShares::parse(&bytes), shares);
        // Zeros follow the fences of a segment that was written before there were lists.
        for none in [&[][..], &[0; 3], &[0; 100], &bytes[..20]] {
            assert!(!KeyspaceShares::parse(none).is_listed(), "{none:?}");
        }
        // Two of the same keyspace.
        bytes[14..16].copy_from_slice(&[0, 0]);
        assert!(!KeyspaceShares::parse(&bytes).is_listed());
    }

    #[test]
    fn where_too_many_share_any_keyspace_may_be() {
        let all = KEYSPACES_MAX as u16;
        assert!(!shares_of((0..all).map(|id| (id, 1))).may_have(KeyspaceId(all)));
        let shares = shares_of((0..=all).rev().map(|id| (id, 1)));
        assert!(!shares.is_listed() && shares.may_have(KeyspaceId(all + 1)));
    }
}
