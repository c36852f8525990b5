//! Engines' roots as a client of the manifest. A root holds the bytes with which an engine finds all its data on flash; only the engine reads them.
//!
//! ```text
//!  item: roots, one behind the other, up to its end; so is a piece of a snapshot
//!   root: kind u8 · length u16 · bytes
//! ```
//! A root replaces the previous root of its engine. No root and an empty one mean the same: the engine has nothing on flash. An engine whose state
//! grows by small edits is a client of its own instead, such as the hashed engine.

use super::client::{ManifestClient, Misfit, pieces};
use super::items::{ClientId, FrameItems};
use crate::keyspace_kind::KeyspaceKind;
use crate::media::wire::{Reader, Short, Writer};
use std::collections::BTreeMap;

/// The longest root.
pub const ROOT_BYTES_MAX: usize = 4 << 10;
/// Bytes of a root's head.
const ROOT_HEAD_BYTES: usize = 3;
const _: () = assert!(ROOT_BYTES_MAX <= u16::MAX as usize);

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct EngineRoots {
    roots: BTreeMap<KeyspaceKind, Vec<u8>>,
}

impl EngineRoots {
    /// The root of the engine of a kind; empty if it has none.
    pub fn get(&self, kind: KeyspaceKind) -> &[u8] {
        self.roots.get(&kind).map_or(&[], Vec::as_slice)
    }

    pub fn set(&mut self, kind: KeyspaceKind, root: Vec<u8>) {
        if root.is_empty() {
            self.roots.remove(&kind);
        } else {
            self.roots.insert(kind, root);
        }
    }

    /// The kinds of engines that have a root.
    pub fn kinds(&self) -> impl Iterator<Item = KeyspaceKind> {
        self.roots.keys().copied()
    }

    /// Adds a root to a frame as an item.
    pub fn put(kind: KeyspaceKind, root: &[u8], items: &mut FrameItems) {
        items.put(ClientId::ROOTS, |writer| encode(kind, root, writer));
    }
}

fn encode(kind: KeyspaceKind, root: &[u8], writer: &mut Writer) {
    assert!(root.len() <= ROOT_BYTES_MAX);
    writer.u8(kind.code());
    writer.u16(root.len() as u16);
    writer.raw(root);
}

fn parse<'a>(reader: &mut Reader<'a>) -> Result<(KeyspaceKind, &'a [u8]), Short> {
    let ([kind], length) = (reader.array()?, usize::from(reader.u16()?));
    if kind == 0 || length > ROOT_BYTES_MAX {
        return Err(Short);
    }
    Ok((KeyspaceKind::of_code(kind), reader.take(length)?))
}

impl ManifestClient for EngineRoots {
    fn id(&self) -> ClientId {
        ClientId::ROOTS
    }

    fn snapshot(&self) -> Box<dyn Iterator<Item = Vec<u8>> + Send + '_> {
        pieces(self.roots.iter(), |(kind, root), writer| encode(*kind, root, writer))
    }

    fn snapshot_bytes_max(&self) -> u64 {
        self.roots.values().map(|root| (ROOT_HEAD_BYTES + root.len()) as u64).sum()
    }

    fn apply(&mut self, edit: &[u8]) -> Result<(), Misfit> {
        let mut reader = Reader::new(edit);
        while !reader.is_empty() {
            let (kind, root) = parse(&mut reader)?;
            self.set(kind, root.to_vec());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_root_of_an_engine_counts_and_an_empty_one_is_none() {
        let [one, other] = [200, 201].map(KeyspaceKind::of_code);
        let mut items = FrameItems::default();
        for (kind, root) in [(one, &b"first"[..]), (other, b"other"), (one, b"second"), (other, b"")] {
            EngineRoots::put(kind, root, &mut items);
        }
        let mut roots = EngineRoots::default();
        for (client, edit) in FrameItems::parse(items.payload()).unwrap() {
            assert_eq!(client, ClientId::ROOTS);
            roots.apply(edit).unwrap();
        }
        assert_eq!((roots.get(one), roots.get(other)), (&b"second"[..], &b""[..]));
        assert!(roots.kinds().eq([one]));
        let mut loaded = EngineRoots::default();
        let pieces: Vec<_> = roots.snapshot().collect();
        assert_eq!(pieces.iter().map(Vec::len).sum::<usize>() as u64, roots.snapshot_bytes_max());
        pieces.iter().for_each(|piece| loaded.load(piece).unwrap());
        assert_eq!(loaded, roots);
    }

    #[test]
    fn what_is_cut_or_of_no_kind_is_refused() {
        let mut writer = Writer::default();
        encode(KeyspaceKind::of_code(200), b"root", &mut writer);
        for length in 1..writer.len() {
            assert!(EngineRoots::default().apply(&writer[..length]).is_err());
        }
        assert!(EngineRoots::default().apply(&[0, 0, 0]).is_err());
        let [low, high] = (ROOT_BYTES_MAX as u16 + 1).to_le_bytes();
        let long = [&[200, low, high][..], &[7; ROOT_BYTES_MAX + 1]].concat();
        assert!(EngineRoots::default().apply(&long).is_err());
    }
}
