//! The beginning of a piece that names nodes: their keyspace, the range of keys that is shown of them, and how many runs follow.
//!
//! ```text
//!  0          2       4       6     7        11
//!  +----------+-------+-------+-----+--------+------+----+---------
//!  | keyspace | from  | to    | has | runs   | from | to | run ...
//!  | u16      | bytes | bytes | to  | u32    |      |    |
//!  +----------+-------+-------+-----+--------+------+----+---------
//!  run: slot u64 (all ones: copies) · version u64 · pages u32
//! ```

use crate::scan::wire::{ScanReader, WireError};

pub(super) const RUN_BYTES: usize = 20;
/// The slot of a run of copies.
pub(super) const COPIES: u64 = u64::MAX;

pub(super) struct KeySpanHead {
    pub keyspace: u16,
    pub from: Vec<u8>,
    pub to: Option<Vec<u8>>,
    pub runs: u32,
}

pub(super) fn encode(keyspace: u16, from: &[u8], to: Option<&[u8]>, runs: usize, out: &mut Vec<u8>) {
    let end = to.unwrap_or_default();
    for half in [keyspace, from.len() as u16, end.len() as u16] {
        out.extend_from_slice(&half.to_le_bytes());
    }
    out.push(u8::from(to.is_some()));
    out.extend_from_slice(&(runs as u32).to_le_bytes());
    out.extend_from_slice(from);
    out.extend_from_slice(end);
}

pub(super) fn encode_run((slot, version): (u64, u64), pages: u32, out: &mut Vec<u8>) {
    out.extend_from_slice(&slot.to_le_bytes());
    out.extend_from_slice(&version.to_le_bytes());
    out.extend_from_slice(&pages.to_le_bytes());
}

impl KeySpanHead {
    pub fn decode(reader: &mut ScanReader<'_>) -> Result<KeySpanHead, WireError> {
        let (keyspace, from_bytes, to_bytes) = (reader.u16()?, reader.u16()?, reader.u16()?);
        let (has_to, runs) = (reader.u8()?, reader.u32()?);
        let from = reader.take(from_bytes.into())?.to_vec();
        let to = reader.take(to_bytes.into())?.to_vec();
        let to = match has_to {
            0 if to.is_empty() => None,
            1 => Some(to),
            _ => return Err(WireError::Malformed),
        };
        Ok(KeySpanHead { keyspace, from, to, runs })
    }
}
