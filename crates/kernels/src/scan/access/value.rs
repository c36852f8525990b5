//! A value out of line: stored bytes of a record of a hashed keyspace that lie in extents of their own ([`crate::reference`]), or the
//! extension that a data node's record names ([`crate::ordered::extension`]).
//!
//! Extents of their own are held for who reads them, so what does not fit the reference is damage. Nobody holds an extension: what is in
//! its slot may be another one, and then its key is told to be missed.

use super::plain_entry::PlainEntry;
use super::{AccessError, EntryAccessor, EntrySink, LAYOUT_VALUE};
use crate::mib_sums::MibSums;
use crate::ordered::SlotSalt;
use crate::ordered::extension::{ExtensionHead, ExtensionReference, front_bytes};
use crate::record::{Codec, Header, STAMP_MAX};
use crate::reference::Reference;
use crate::scan::wire::{ScanReader, WireError};

/// Which of the two it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ValueHome {
    Extents(Reference),
    /// With the version of its slot's group.
    Extension(ExtensionReference, u64),
}

/// One value.
///
/// ```text
///  0        1          9          11     12     13    15      19        27        29
///  +--------+----------+----------+------+------+-----+-------+---------+---------+-----+-----------+
///  | layout | store id | keyspace | home | zero | key | raw   | version | refer-  | key | reference |
///  | u8     | u64      | u16      | u8   | u8   | u16 | bytes | u64     | ence    |     |           |
///  |        |          |          |      |      |     | u32   |         | bytes   |     |           |
///  +--------+----------+----------+------+------+-----+-------+---------+---------+-----+-----------+
///  home: 1 extents of its own, whose version is zero here · 2 an extension
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PieceOfValue {
    pub store: u64,
    pub keyspace: u16,
    pub key: Vec<u8>,
    /// The value's length.
    pub raw_bytes: u32,
    pub home: ValueHome,
}

const HOME_EXTENTS: u8 = 1;
const HOME_EXTENSION: u8 = 2;

impl PieceOfValue {
    pub fn encode(&self, out: &mut Vec<u8>) {
        let (home, version, reference) = match &self.home {
            ValueHome::Extents(reference) => (HOME_EXTENTS, 0, reference.encode()),
            ValueHome::Extension(reference, version) => (HOME_EXTENSION, *version, reference.encode().to_vec()),
        };
        out.push(LAYOUT_VALUE);
        out.extend_from_slice(&self.store.to_le_bytes());
        out.extend_from_slice(&self.keyspace.to_le_bytes());
        out.extend_from_slice(&[home, 0]);
        out.extend_from_slice(&(self.key.len() as u16).to_le_bytes());
        out.extend_from_slice(&self.raw_bytes.to_le_bytes());
        out.extend_from_slice(&version.to_le_bytes());
        out.extend_from_slice(&(reference.len() as u16).to_le_bytes());
        out.extend_from_slice(&self.key);
        out.extend_from_slice(&reference);
    }

    /// Reads a piece, behind its layout, from the front of `reader`, which may go on behind it.
    pub fn decode(reader: &mut ScanReader<'_>) -> Result<PieceOfValue, WireError> {
        let (store, keyspace) = (reader.u64()?, reader.u16()?);
        let [home, 0] = reader.array()? else { return Err(WireError::Malformed) };
        let (key_bytes, raw_bytes, version) = (reader.u16()?, reader.u32()?, reader.u64()?);
        let reference_bytes = reader.u16()?;
        let key = reader.take(key_bytes.into())?.to_vec();
        let reference = reader.take(reference_bytes.into())?;
        let home = match (home, version) {
            (HOME_EXTENTS, 0) => Reference::parse(reference).ok().map(ValueHome::Extents),
            (HOME_EXTENSION, version) => {
                ExtensionReference::parse(reference).ok().map(|reference| ValueHome::Extension(reference, version))
            }
            _ => None,
        };
        let home = home.ok_or(WireError::Malformed)?;
        Ok(PieceOfValue { store, keyspace, key, raw_bytes, home })
    }

    /// Bytes that are to be read of it.
    pub fn bytes(&self) -> u64 {
        match &self.home {
            ValueHome::Extents(reference) => reference.stored_bytes.into(),
            ValueHome::Extension(reference, _) => {
                let stored_bytes = reference.stored_bytes as usize;
                (front_bytes(self.key.len(), stored_bytes) + stored_bytes) as u64
            }
        }
    }
}

pub struct ValueAccessor {
    piece: PieceOfValue,
    read: Vec<u8>,
    is_shown: bool,
}

impl ValueAccessor {
    pub fn new(piece: PieceOfValue) -> ValueAccessor {
        ValueAccessor { piece, read: Vec::new(), is_shown: false }
    }

    /// The stored bytes and their codec. `Ok(None)`: there is another extension.
    fn stored(&self) -> Result<Option<(&[u8], Codec)>, AccessError> {
        let PieceOfValue { store, key, raw_bytes, home, .. } = &self.piece;
        match home {
            ValueHome::Extents(reference) => {
                let is_right = MibSums::of(reference.crc_of_none(*store), &self.read) == reference.sums;
                if is_right { Ok(Some((&self.read, reference.codec))) } else { Err(AccessError { page: 0 }) }
            }
            ValueHome::Extension(reference, version) => {
                let salt = SlotSalt { store: *store, slot: reference.slot, version: *version };
                let Ok((head, found)) = ExtensionHead::parse(&self.read, salt) else { return Ok(None) };
                let stored = self.read.get(front_bytes(found.len(), head.stored_bytes as usize)..).unwrap_or_default();
                let is_right = head.check(reference, *raw_bytes).is_ok() && found == key && head.holds(salt, stored);
                Ok(is_right.then_some((stored, head.codec)))
            }
        }
    }
}

impl EntryAccessor for ValueAccessor {
    fn bytes_total(&self) -> u64 {
        self.piece.bytes()
    }

    fn place(&self) -> Option<Vec<u8>> {
        (!self.is_shown).then(Vec::new)
    }

    fn take(&mut self, bytes: &[u8], sink: &mut dyn EntrySink) -> Result<bool, AccessError> {
        self.read.extend_from_slice(bytes);
        if (self.read.len() as u64) < self.piece.bytes() {
            return Ok(true);
        }
        let PieceOfValue { key, raw_bytes, keyspace, .. } = &self.piece;
        let is_wanted = match self.stored()? {
            Some((stored, codec)) => {
                // Its record was looked at before: it is live.
                let header = Header::value(STAMP_MAX, key.len(), stored.len());
                let header = Header { codec, raw_bytes: *raw_bytes, keyspace: *keyspace, ..header };
                sink.entry(&PlainEntry { header, key, stored })
            }
            None => {
                let behind = [&key[..], &[0]].concat();
                sink.missed(key, Some(&behind));
                true
            }
        };
        (self.read, self.is_shown) = (Vec::new(), true);
        Ok(is_wanted)
    }
}

#[cfg(test)]
#[path = "value_tests.rs"]
mod tests;
