//! Clients of the manifest. A client has a state that frames change and snapshots hold.
//!
//! The manifest does not interpret its items. It gives each item to the client whose id it has, in the order of writing. An id without a client is
//! an error, never passed over.

use super::items::ClientId;
use crate::error::Error;
use crate::media::wire::{Short, Writer};

/// A piece of a snapshot ends with the entry that reaches this size. Most entries take some hundred bytes.
const PIECE_BYTES: usize = 16 << 10;

/// The reason why an edit does not fit: the end of a sentence about the manifest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Misfit(pub String);

impl From<Short> for Misfit {
    fn from(_: Short) -> Misfit {
        Misfit("says what makes no sense".into())
    }
}

impl From<Misfit> for Error {
    fn from(Misfit(what): Misfit) -> Error {
        Error::Corrupt(format!("the manifest {what}"))
    }
}

/// A state that is kept in the manifest. `Default` is the state of an empty store.
pub trait ManifestClient: Send + Sync {
    fn id(&self) -> ClientId;

    /// The state in pieces. Each has at most [`PIECE_BYTES`] and one more entry.
    fn snapshot(&self) -> Box<dyn Iterator<Item = Vec<u8>> + Send + '_>;

    /// The most bytes that all pieces take.
    fn snapshot_bytes_max(&self) -> u64;

    /// Applies a piece of a snapshot. The state was the default one before the first piece.
    fn load(&mut self, piece: &[u8]) -> Result<(), Misfit> {
        self.apply(piece)
    }

    /// Applies an edit. After an error the state is useless.
    fn apply(&mut self, edit: &[u8]) -> Result<(), Misfit>;

    /// Called when another frame follows. Drops the state that is valid only in the last frame of the manifest.
    fn supersede(&mut self) {}

    /// Takes from an edit the numbers that must not be given twice. The edits before it are unknown: the manifest is damaged.
    fn glean(&mut self, _edit: &[u8]) {}
}

/// All clients of a store.
pub trait ManifestClients: Send + Sync {
    fn each(&self) -> Vec<&dyn ManifestClient>;

    fn each_mut(&mut self) -> Vec<&mut dyn ManifestClient>;

    /// The most bytes that a snapshot takes for all clients.
    fn snapshot_bytes_max(&self) -> u64 {
        self.each().iter().map(|client| client.snapshot_bytes_max()).sum()
    }
}

/// Encodes entries one after the other, in pieces.
pub fn pieces<'a, T>(
    things: impl Iterator<Item = T> + Send + 'a,
    encode: impl Fn(T, &mut Writer) + Send + 'a,
) -> Box<dyn Iterator<Item = Vec<u8>> + Send + 'a> {
    let mut things = things.fuse();
    Box::new(std::iter::from_fn(move || {
        let mut writer = Writer::default();
        while writer.len() < PIECE_BYTES
            && let Some(thing) = things.next()
        {
            encode(thing, &mut writer);
        }
        (!writer.is_empty()).then(|| writer.into_bytes())
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn things_are_cut_into_pieces_and_none_is_lost() {
        let cut = |count: usize, bytes: usize| {
            let things = pieces(0..count, |_, writer| writer.raw(&vec![7; bytes]));
            things.map(|piece| piece.len()).collect::<Vec<_>>()
        };
        assert!(cut(0, 9).is_empty());
        assert_eq!(cut(3, 9), [27]);
        assert_eq!(cut(5, PIECE_BYTES / 2), [PIECE_BYTES, PIECE_BYTES, PIECE_BYTES / 2]);
        assert_eq!(cut(3, 3 * PIECE_BYTES), [3 * PIECE_BYTES; 3], "a thing is not cut");
    }
}
