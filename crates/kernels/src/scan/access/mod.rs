//! Accessors: how the records of a layout are found in its bytes (nKV, figure 3: layout, block, entry; fields are
//! [`super::fields`]').
//!
//! ```text
//! bytes of a layout, in order ─► accessor ─► entries: header, key, value as it is stored ─► sink
//! ```
//! 1. An accessor takes its layout's bytes in parts of any length, and shows each live record once, in the order in which they lie.
//! 2. What it shows was checked: checksums, lengths, numbers. Whatever the bytes are, nothing panics, and what does not hold is an error
//!    that names the place.
//! 3. It holds no more bytes than the longest record and a page.
//! 4. One that was ended says where it stopped: an accessor that begins there shows all that this one did not.
//!
//! A layout is one file beside this one, and a number in [`decode_piece`]. What an accessor is told of its bytes is a *piece*, which begins
//! with that number.

mod node;
mod plain_entry;
mod segment;
mod value;

pub use node::{NodeAccessor, NodePlace, NodeRun, PieceOfNodes};
pub use segment::{PieceOfSegment, SegmentAccessor, SegmentPlace};
pub use value::{PieceOfValue, ValueAccessor, ValueHome};

use super::wire::{ScanReader, WireError};
use crate::record::Header;

pub const LAYOUT_SEGMENT: u8 = 1;
pub const LAYOUT_NODES: u8 = 2;
pub const LAYOUT_VALUE: u8 = 3;

/// The accessor of the piece at the front of `reader`, which may go on behind it.
pub fn decode_piece(reader: &mut ScanReader<'_>) -> Result<Box<dyn EntryAccessor + Send>, WireError> {
    Ok(match reader.u8()? {
        LAYOUT_SEGMENT => Box::new(SegmentAccessor::new(PieceOfSegment::decode(reader)?)),
        LAYOUT_NODES => Box::new(NodeAccessor::new(PieceOfNodes::decode(reader)?)),
        LAYOUT_VALUE => Box::new(ValueAccessor::new(PieceOfValue::decode(reader)?)),
        unknown => return Err(WireError::Version(unknown)),
    })
}

/// A layout that does not hold together, at a page of it.
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

    /// The keys from one up to another, or to the last, were not where they were said to be: they are to be read another way.
    fn missed(&mut self, from: &[u8], to: Option<&[u8]>);
}

/// Walks one layout.
pub trait EntryAccessor {
    /// Bytes that it takes altogether.
    fn bytes_total(&self) -> u64;

    /// Where another one would go on, in the layout's own words; `None`, if all was shown.
    fn place(&self) -> Option<Vec<u8>>;

    /// Takes the next bytes, no more than are left, and shows what is whole with them; whether the sink wants more.
    fn take(&mut self, bytes: &[u8], sink: &mut dyn EntrySink) -> Result<bool, AccessError>;
}
