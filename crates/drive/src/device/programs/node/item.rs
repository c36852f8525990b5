//! Items: the contents of the output of `node-get` and `node-scan`, one behind the other.
//!
//! ```text
//!  0       8         14      15      16      20    24      28     30      32
//!  +-------+---------+-------+-------+-------+-----+-------+------+-------+-----+-------
//!  | stamp | expiry  | place | marks | flags | raw | value | at   | key   | key | value
//!  | u64   | 48 bits | u8    | u8    | u32   | u32 | bytes | u16  | bytes |     |
//!  |       |         |       |       |       |     | u32   |      | u16   |     |
//!  +-------+---------+-------+-------+-------+-----+-------+------+-------+-----+-------
//! ```
//! `raw` is the value's length, `value bytes` how many bytes of it stand here. For a value in an extension, its reference stands here. For
//! a value that stays in the page, nothing stands here, and `at` is its offset in the page.

use super::super::inflate;
use super::{INVALID, NodeFlags, corrupt};
use crate::device::program::ProgramResult;
use crate::device::programs::OUTPUT_SHORT;
use tapetum_kernels::expiry::Expiry;
use tapetum_kernels::ordered::extension::ExtensionReference;
use tapetum_kernels::ordered::{NODE_BYTES, NodeError, NodeRecord};
use tapetum_kernels::record::{Codec, Marks};

pub const NODE_ITEM_HEAD_BYTES: usize = 32;

const PLACE_MISSING: u8 = 0;
const PLACE_OUTSIDE: u8 = 1;
const PLACE_HERE: u8 = 2;
const PLACE_PAGE: u8 = 3;
const PLACE_EXTENSION: u8 = 4;
const PLACE_NONE: u8 = 5;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ItemPlace<'a> {
    Missing,
    /// The key is not between the node's fences: it belongs in another node.
    OutsideFences,
    Here(&'a [u8]),
    /// In the page, uncompressed, from this byte on.
    Page(usize),
    Extension(ExtensionReference),
    /// The request did not ask for the value.
    NotWanted,
}

/// An item as the host reads it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeItem<'a> {
    pub stamp: u64,
    pub flags: u32,
    pub expiry: Expiry,
    pub marks: Marks,
    /// The value's length.
    pub raw_bytes: u32,
    /// The key of a scan's item; empty otherwise.
    pub key: &'a [u8],
    pub place: ItemPlace<'a>,
}

/// Reads the items that a program wrote.
pub struct ItemReader<'a> {
    rest: &'a [u8],
}

impl<'a> ItemReader<'a> {
    pub fn new(filled: &'a [u8]) -> ItemReader<'a> {
        ItemReader { rest: filled }
    }
}

impl<'a> Iterator for ItemReader<'a> {
    type Item = NodeItem<'a>;

    /// `None` at the end, and if the bytes are not an item.
    fn next(&mut self) -> Option<NodeItem<'a>> {
        let (head, rest) = self.rest.split_first_chunk::<NODE_ITEM_HEAD_BYTES>()?;
        let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let half = |at: usize| usize::from(u16::from_le_bytes([head[at], head[at + 1]]));
        let (key, rest) = rest.split_at_checked(half(30))?;
        let (value, rest) = rest.split_at_checked(word(24) as usize)?;
        let raw_bytes = word(20);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let place = match head[14] {
            PLACE_MISSING => ItemPlace::Missing,
            PLACE_OUTSIDE => ItemPlace::OutsideFences,
            PLACE_HERE => ItemPlace::Here(value),
            PLACE_PAGE if half(28) + raw_bytes as usize <= NODE_BYTES => ItemPlace::Page(half(28)),
            PLACE_EXTENSION => ItemPlace::Extension(ExtensionReference::parse(value).ok()?),
            PLACE_NONE => ItemPlace::NotWanted,
            _ => return None,
        };
        self.rest = rest;
        Some(NodeItem {
            stamp: long(0),
            flags: word(16),
            expiry: Expiry::from_flash(long(8)),
            marks: Marks::from_bits(head[15]),
            raw_bytes,
            key,
            place,
        })
    }
}

/// Writes the output of a program that gives items.
pub(super) struct ItemWriter<'a> {
    output: &'a mut [u8],
    pub filled: usize,
    pub items: usize,
}

/// Why an item was not written.
pub(super) enum ItemFailure {
    /// The item takes so many bytes.
    Full(usize),
    Failed(ProgramResult),
}

impl<'a> ItemWriter<'a> {
    pub fn new(output: &'a mut [u8]) -> ItemWriter<'a> {
        ItemWriter { output, filled: 0, items: 0 }
    }

    /// The result of a program whose output has no room for an item of `needed` bytes. It is [`OUTPUT_SHORT`] only if the output has no
    /// item at all.
    pub fn end(&self, needed: usize, more: u64) -> ProgramResult {
        match self.items {
            0 => (OUTPUT_SHORT, [needed as u64, 0]),
            items => (crate::protocol::Status::Success, [self.filled as u64, items as u64 | more]),
        }
    }

    pub fn missing(&mut self, is_outside: bool) -> Result<(), ItemFailure> {
        let place = if is_outside { PLACE_OUTSIDE } else { PLACE_MISSING };
        let (head, _) = self.room(NODE_ITEM_HEAD_BYTES)?;
        head.fill(0);
        head[14] = place;
        self.filled += NODE_ITEM_HEAD_BYTES;
        self.items += 1;
        Ok(())
    }

    pub fn write(&mut self, record: &NodeRecord<'_>, with_key: bool, flags: NodeFlags) -> Result<(), ItemFailure> {
        let header = &record.header;
        let (place, value_bytes) = match header.codec {
            _ if flags.has(NodeFlags::KEYS_ONLY) => (PLACE_NONE, 0),
            Codec::OutOfLine => (PLACE_EXTENSION, record.stored.len()),
            Codec::Raw if flags.has(NodeFlags::RAW_IN_PAGE) => (PLACE_PAGE, 0),
            _ => (PLACE_HERE, header.raw_bytes as usize),
        };
        let key = if with_key { record.key } else { &[] };
        let bytes = NODE_ITEM_HEAD_BYTES + key.len() + value_bytes;
        let (head, behind) = self.room(bytes)?;
        head[..8].copy_from_slice(&header.stamp.to_le_bytes());
        head[8..14].copy_from_slice(&header.expiry.to_bytes());
        (head[14], head[15]) = (place, header.marks.bits());
        head[16..20].copy_from_slice(&header.flags.to_le_bytes());
        head[20..24].copy_from_slice(&header.raw_bytes.to_le_bytes());
        head[24..28].copy_from_slice(&(value_bytes as u32).to_le_bytes());
        let at = if place == PLACE_PAGE { record.stored_at() } else { 0 };
        head[28..30].copy_from_slice(&(at as u16).to_le_bytes());
        head[30..].copy_from_slice(&(key.len() as u16).to_le_bytes());
        let (to_key, value) = behind.split_at_mut(key.len());
        to_key.copy_from_slice(key);
        match (place, header.codec) {
            (PLACE_HERE, Codec::Zstd) if inflate(record.stored, value) => {}
            (PLACE_HERE, Codec::Raw) | (PLACE_EXTENSION, _) => value.copy_from_slice(record.stored),
            (PLACE_PAGE | PLACE_NONE, _) => {}
            _ => return Err(ItemFailure::Failed(corrupt(NodeError::Damaged))),
        }
        self.filled += bytes;
        self.items += 1;
        Ok(())
    }

    fn room(&mut self, bytes: usize) -> Result<(&mut [u8; NODE_ITEM_HEAD_BYTES], &mut [u8]), ItemFailure> {
        let room = self.output.get_mut(self.filled..self.filled + bytes).ok_or(ItemFailure::Full(bytes))?;
        room.split_first_chunk_mut().ok_or(ItemFailure::Failed(INVALID))
    }
}
