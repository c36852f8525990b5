//! Accessors find the records of a layout in its bytes (nKV, figure 3: layout, block, entry; [`super::fields`] finds
//! the fields).
//!
//! ```text
//! bytes of a layout, in order ─► accessor ─► entries: header, key, value as it is stored ─► sink
//! ```
//! 1. An accessor takes its layout's bytes in parts of any length, and shows each live record once, in the order in which they lie.
//! 2. Everything that it shows was checked: checksums, lengths, numbers. No bytes make it panic. An inconsistency is an
//!    error that names the place.
//! 3. It holds no more bytes than the longest record and a page.
//! 4. An accessor that was ended says where it stopped. An accessor that begins there shows all that this one did not.
//!
//! A layout is one file beside this one, and a number in [`decode_piece`]. A *piece* describes an accessor's bytes to
//! it, and begins with that number.

mod images;
mod key_span;
mod node;
mod page_parts;
mod plain_entry;
mod segment;
#[cfg(test)]
mod test_pages;
mod value;

pub use images::{ImageAccessor, ImageRun, PieceOfImages};
pub use node::{NodeAccessor, NodePlace, NodeRun, PieceOfNodes};
pub use plain_entry::PlainEntry;
pub use segment::{PieceOfSegment, SegmentAccessor, SegmentPlace};
pub use value::{PieceOfValue, ValueAccessor, ValueHome};

use super::wire::{ScanReader, WireError};
use crate::record::Header;

pub const LAYOUT_SEGMENT: u8 = 1;
pub const LAYOUT_NODES: u8 = 2;
pub const LAYOUT_VALUE: u8 = 3;
pub const LAYOUT_IMAGES: u8 = 4;

/// The accessor of the piece at the front of `reader`, which may go on behind it.
pub fn decode_piece(reader: &mut ScanReader<'_>) -> Result<Box<dyn EntryAccessor + Send>, WireError> {
    Ok(match reader.u8()? {
        LAYOUT_SEGMENT => Box::new(SegmentAccessor::new(PieceOfSegment::decode(reader)?)),
        LAYOUT_NODES => Box::new(NodeAccessor::new(PieceOfNodes::decode(reader)?)),
        LAYOUT_VALUE => Box::new(ValueAccessor::new(PieceOfValue::decode(reader)?)),
        LAYOUT_IMAGES => Box::new(ImageAccessor::new(PieceOfImages::decode(reader)?)),
        unknown => return Err(WireError::Version(unknown)),
    })
}

/// A layout is inconsistent at one of its pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AccessError {
    pub page: u32,
}

/// A record as it lies in a layout, maybe in several pieces.
pub trait Entry {
    fn header(&self) -> &Header;

    /// Fills `out`, which is as long as the key.
    fn copy_key(&self, out: &mut [u8]);

    /// Fills `out`, which is as long as the value is stored.
    fn copy_stored(&self, out: &mut [u8]);
}

/// Takes entries. `false` ends the walk early; a few more may come.
pub trait EntrySink {
    fn entry(&mut self, entry: &dyn Entry) -> bool;

    /// As [`EntrySink::entry`], of a record that lies in one piece in these bytes. They stay as they are until [`EntrySink::leave`].
    fn plain(&mut self, entry: &PlainEntry<'_>, _bytes: &[u8]) -> bool {
        self.entry(entry)
    }

    /// The bytes in which records were shown go. Whether more are wanted.
    fn leave(&mut self, _bytes: &[u8]) -> bool {
        true
    }

    /// The keys from one up to another, or to the last, are not where the piece says. Another reader must read them.
    fn missed(&mut self, from: &[u8], to: Option<&[u8]>);
}

/// Walks one layout.
pub trait EntryAccessor {
    /// Bytes that the accessor takes altogether.
    fn bytes_total(&self) -> u64;

    /// The place at which another accessor would go on, as the layout encodes it; `None` if all entries were shown.
    fn place(&self) -> Option<Vec<u8>>;

    /// Takes the next bytes, no more than are left, and shows the entries that are whole with them. Returns whether the
    /// sink wants more.
    fn take(&mut self, bytes: &[u8], sink: &mut dyn EntrySink) -> Result<bool, AccessError>;
}
