//! The record: one item as it stands in a log group and in a segment.
//!
//! ```text
//!  0        4     5         11
//!  +--------+-----+---------+---------+------------+----------+--------+---------+-----------+--------+-----+--------+
//!  | crc    | tag | stamp   | key len | stored len | raw len? | flags? | expiry? | keyspace? | marks? | key | stored |
//!  | u32    | u8  | 48 bits | varint  | varint     | varint   | u32    | 48 bits | u16       | u8     |     |        |
//!  +--------+-----+---------+---------+------------+----------+--------+---------+-----------+--------+-----+--------+
//!  tag: bits 0-1 kind · bits 2-3 codec (2 is free, and refused) · bit 4 flags · bit 5 expiry · bit 6 keyspace · bit 7 marks
//!  marks: bit 0 stale · bit 1 leased · bit 2 grouped (see [`crate::block_group`]) · bits 3-7 zero
//! ```
//! All numbers are little-endian; an expiry is milliseconds since 1970. A field with `?` is there if its tag bit (for
//! the raw length, the codec) says so. In a segment the crc covers everything behind it, salted with the store, the
//! record's address in the segment's stream and the segment's version. In the log the crc is zero, because the group
//! around the record carries one.
//!
//! Parsing trusts nothing: it checks lengths against the limits before anybody allocates by them. No key of a value or
//! a deletion is empty, so zeros are no record.

use crate::expiry::Expiry;

pub const KEY_BYTES_MAX: usize = 64 * 1024 - 1;
/// The longest value, in bytes, before compression.
pub const VALUE_BYTES_MAX: usize = 16 * 1024 * 1024;
/// The longest header a record can have, in bytes.
pub const HEADER_BYTES_MAX: usize = 11 + 3 + 4 + 4 + 4 + Expiry::BYTES + 2 + 1;
/// Stamps are log sequence numbers of 48 bits.
pub const STAMP_MAX: u64 = (1 << 48) - 1;
const _: () = assert!(KEY_BYTES_MAX == 65_535 && VALUE_BYTES_MAX == 16_777_216 && HEADER_BYTES_MAX == 35);
const _: () = assert!(STAMP_MAX == 0xffff_ffff_ffff);

const TAG_KIND: u8 = 0b11;
const TAG_CODEC_SHIFT: u8 = 2;
const TAG_FLAGS: u8 = 1 << 4;
const TAG_EXPIRY: u8 = 1 << 5;
const TAG_KEYSPACE: u8 = 1 << 6;
const TAG_MARKS: u8 = 1 << 7;
const MARK_GROUPED: u8 = 1 << 2;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// An item.
    Value = 0,
    /// The key was deleted. Only in the log: a flush turns it into a death.
    Tombstone = 1,
    /// A statement about the whole keyspace, such as "delete all up to this stamp". Only in the log.
    Control = 2,
}

/// How the stored bytes of a value are coded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Codec {
    Raw = 0,
    Zstd = 1,
    /// The value lies in extents of its own; what is stored here is a [`crate::reference::Reference`].
    OutOfLine = 3,
}

/// Marks on a value. Storing another value clears them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Marks {
    /// A client declared the value out of date.
    pub stale: bool,
    /// A client was told to make the value anew.
    pub leased: bool,
}

impl Marks {
    pub const NONE: Marks = Marks { stale: false, leased: false };

    pub fn bits(self) -> u8 {
        u8::from(self.stale) | u8::from(self.leased) << 1
    }

    /// Reads the marks, and ignores the other bits.
    pub fn from_bits(bits: u8) -> Marks {
        Marks { stale: bits & 1 != 0, leased: bits & 2 != 0 }
    }
}

/// Everything about a record but its key and its stored bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    pub kind: Kind,
    pub codec: Codec,
    pub stamp: u64,
    pub key_bytes: u32,
    /// Length of the value as stored.
    pub stored_bytes: u32,
    /// Length of the value before compression; equals `stored_bytes` when raw.
    pub raw_bytes: u32,
    /// The client's flags.
    pub flags: u32,
    pub expiry: Expiry,
    pub keyspace: u16,
    pub marks: Marks,
    /// In the log, the record is a block of a group. In a segment, it is a group.
    pub grouped: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecordError {
    /// The bytes end before the header does.
    Short,
    /// No record looks like this.
    Malformed,
}

impl Header {
    /// A raw value's header, to be filled in further by the caller.
    pub fn value(stamp: u64, key_bytes: usize, value_bytes: usize) -> Header {
        Header {
            kind: Kind::Value,
            codec: Codec::Raw,
            stamp,
            key_bytes: key_bytes as u32,
            stored_bytes: value_bytes as u32,
            raw_bytes: value_bytes as u32,
            flags: 0,
            expiry: Expiry::NONE,
            keyspace: 0,
            marks: Marks::NONE,
            grouped: false,
        }
    }

    /// The byte of the record's marks. It is left out if it is 0.
    fn mark_bits(&self) -> u8 {
        self.marks.bits() | if self.grouped { MARK_GROUPED } else { 0 }
    }

    pub fn tombstone(stamp: u64, key_bytes: usize) -> Header {
        Header { kind: Kind::Tombstone, ..Header::value(stamp, key_bytes, 0) }
    }

    pub fn control(stamp: u64, body_bytes: usize) -> Header {
        Header { kind: Kind::Control, ..Header::value(stamp, 0, body_bytes) }
    }

    pub fn header_bytes(&self) -> usize {
        let mut length = 11 + varint_bytes(self.key_bytes) + varint_bytes(self.stored_bytes);
        if self.codec != Codec::Raw {
            length += varint_bytes(self.raw_bytes);
        }
        length
            + 4 * usize::from(self.flags != 0)
            + Expiry::BYTES * usize::from(!self.expiry.is_none())
            + 2 * usize::from(self.keyspace != 0)
            + usize::from(self.mark_bits() != 0)
    }

    /// Whether the record is an item's and holds the value itself.
    pub fn holds_value(&self) -> bool {
        self.kind == Kind::Value && self.codec != Codec::OutOfLine
    }

    /// Length of the whole record in bytes.
    #[inline]
    pub fn record_bytes(&self) -> usize {
        self.header_bytes() + self.key_bytes as usize + self.stored_bytes as usize
    }

    /// Writes the header with a crc of zero; returns its length. `out` must hold [`Header::header_bytes`].
    pub fn encode(&self, out: &mut [u8]) -> usize {
        assert!(self.stamp <= STAMP_MAX);
        let mut tag = self.kind as u8 | (self.codec as u8) << TAG_CODEC_SHIFT;
        tag |= if self.flags != 0 { TAG_FLAGS } else { 0 };
        tag |= if !self.expiry.is_none() { TAG_EXPIRY } else { 0 };
        tag |= if self.keyspace != 0 { TAG_KEYSPACE } else { 0 };
        tag |= if self.mark_bits() != 0 { TAG_MARKS } else { 0 };
        out[..4].fill(0);
        out[4] = tag;
        out[5..11].copy_from_slice(&self.stamp.to_le_bytes()[..6]);
        let mut at = 11;
        at += varint_encode(self.key_bytes, &mut out[at..]);
        at += varint_encode(self.stored_bytes, &mut out[at..]);
        if self.codec != Codec::Raw {
            at += varint_encode(self.raw_bytes, &mut out[at..]);
        }
        let mut put = |present: bool, bytes: &[u8]| {
            if present {
                out[at..at + bytes.len()].copy_from_slice(bytes);
                at += bytes.len();
            }
        };
        put(self.flags != 0, &self.flags.to_le_bytes());
        put(!self.expiry.is_none(), &self.expiry.to_bytes());
        put(self.keyspace != 0, &self.keyspace.to_le_bytes());
        put(self.mark_bits() != 0, &[self.mark_bits()]);
        at
    }

    /// The length of a header that [`Header::encode`] wrote. It calls `byte` for no place behind the header, where
    /// other data may lie.
    #[inline]
    pub fn length_of(byte: impl Fn(usize) -> u8) -> usize {
        let tag = byte(4);
        let codec = tag >> TAG_CODEC_SHIFT & 3;
        let mut at = 11;
        // The varints are the lengths of key and stored value, and of the raw value if that has its own.
        for _ in 0..if codec == Codec::Raw as u8 { 2 } else { 3 } {
            while byte(at) & 0x80 != 0 {
                at += 1;
            }
            at += 1;
        }
        let field = |bit: u8, bytes: usize| if tag & bit != 0 { bytes } else { 0 };
        at + field(TAG_FLAGS, 4) + field(TAG_EXPIRY, Expiry::BYTES) + field(TAG_KEYSPACE, 2) + field(TAG_MARKS, 1)
    }

    /// Reads a header; returns it with its length in bytes. `bytes` may go on behind the header.
    pub fn parse(bytes: &[u8]) -> Result<(Header, usize), RecordError> {
        Header::parse_inline(bytes)
    }

    /// As [`Header::parse`], for whoever reads millions of them: a call writes its result field by field and copies it in larger pieces, for which
    /// the processor has to wait each time.
    #[inline(always)]
    pub fn parse_inline(bytes: &[u8]) -> Result<(Header, usize), RecordError> {
        let tag = *bytes.get(4).ok_or(RecordError::Short)?;
        let stamp = bytes.get(5..11).ok_or(RecordError::Short)?;
        let mut stamp_bytes = [0u8; 8];
        stamp_bytes[..6].copy_from_slice(stamp);
        let kind = match tag & TAG_KIND {
            0 => Kind::Value,
            1 => Kind::Tombstone,
            2 => Kind::Control,
            _ => return Err(RecordError::Malformed),
        };
        let codec = match tag >> TAG_CODEC_SHIFT & 3 {
            0 => Codec::Raw,
            1 => Codec::Zstd,
            3 => Codec::OutOfLine,
            _ => return Err(RecordError::Malformed),
        };
        let mut at = 11;
        let key_bytes = varint_parse(bytes, &mut at)?;
        let stored_bytes = varint_parse(bytes, &mut at)?;
        let raw_bytes = if codec == Codec::Raw { stored_bytes } else { varint_parse(bytes, &mut at)? };
        let mut take = |present: bool, length: usize| -> Result<u64, RecordError> {
            if !present {
                return Ok(0);
            }
            let field = bytes.get(at..at + length).ok_or(RecordError::Short)?;
            at += length;
            let mut word = [0u8; 8];
            word[..length].copy_from_slice(field);
            Ok(u64::from_le_bytes(word))
        };
        let flags = take(tag & TAG_FLAGS != 0, 4)? as u32;
        let expiry = Expiry::from_flash(take(tag & TAG_EXPIRY != 0, Expiry::BYTES)?);
        let keyspace = take(tag & TAG_KEYSPACE != 0, 2)? as u16;
        let marked = tag & TAG_MARKS != 0;
        let mark_bits = take(marked, 1)? as u8;
        let (marks, grouped) = (Marks::from_bits(mark_bits), mark_bits & MARK_GROUPED != 0);
        // Marks are written in one way only: at least one bit is set, and only bits that have a meaning.
        let marks_make_sense = mark_bits & !(MARK_GROUPED | 3) == 0 && marked == (mark_bits != 0);
        let limits = key_bytes as usize <= KEY_BYTES_MAX
            && stored_bytes as usize <= VALUE_BYTES_MAX
            && raw_bytes as usize <= VALUE_BYTES_MAX;
        let shape = match kind {
            Kind::Value => key_bytes > 0,
            Kind::Tombstone => key_bytes > 0 && stored_bytes == 0 && codec == Codec::Raw && marks == Marks::NONE,
            Kind::Control => key_bytes == 0 && codec == Codec::Raw && !marked,
        };
        if !limits || !shape || !marks_make_sense {
            return Err(RecordError::Malformed);
        }
        let stamp = u64::from_le_bytes(stamp_bytes);
        let header =
            Header { kind, codec, stamp, key_bytes, stored_bytes, raw_bytes, flags, expiry, keyspace, marks, grouped };
        Ok((header, at))
    }
}

/// A record that lies in one piece.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    pub header: Header,
    pub key: &'a [u8],
    pub stored: &'a [u8],
}

impl<'a> Record<'a> {
    /// Reads the record at the start of `bytes`.
    pub fn parse(bytes: &'a [u8]) -> Result<Record<'a>, RecordError> {
        let (header, key_at) = Header::parse(bytes)?;
        let stored_at = key_at + header.key_bytes as usize;
        let end = stored_at + header.stored_bytes as usize;
        let key = bytes.get(key_at..stored_at).ok_or(RecordError::Short)?;
        let stored = bytes.get(stored_at..end).ok_or(RecordError::Short)?;
        Ok(Record { header, key, stored })
    }

    /// Writes the record with a crc of zero; returns its length.
    pub fn encode(&self, out: &mut [u8]) -> usize {
        assert_eq!(self.key.len(), self.header.key_bytes as usize);
        assert_eq!(self.stored.len(), self.header.stored_bytes as usize);
        let key_at = self.header.encode(out);
        let stored_at = key_at + self.key.len();
        let end = stored_at + self.stored.len();
        out[key_at..stored_at].copy_from_slice(self.key);
        out[stored_at..end].copy_from_slice(self.stored);
        end
    }
}

fn varint_bytes(number: u32) -> usize {
    match number {
        0..0x80 => 1,
        0x80..0x4000 => 2,
        0x4000..0x20_0000 => 3,
        0x20_0000..0x1000_0000 => 4,
        _ => 5,
    }
}

fn varint_encode(mut number: u32, out: &mut [u8]) -> usize {
    let mut at = 0;
    while number >= 0x80 {
        out[at] = number as u8 | 0x80;
        number >>= 7;
        at += 1;
    }
    out[at] = number as u8;
    at + 1
}

fn varint_parse(bytes: &[u8], at: &mut usize) -> Result<u32, RecordError> {
    let mut number = 0u32;
    for shift in [0, 7, 14, 21] {
        let byte = *bytes.get(*at).ok_or(RecordError::Short)?;
        *at += 1;
        number |= u32::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(RecordError::Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_header() -> impl Strategy<Value = Header> {
        let codec_and_marks = (0..3u8, 0..4u8, any::<bool>());
        (codec_and_marks, 0..=STAMP_MAX, 1..300usize, 0..5000usize, any::<u32>(), any::<u64>(), any::<u16>()).prop_map(
            |((codec, marks, grouped), stamp, key, stored, flags, expiry, keyspace)| {
                let mut header = Header::value(stamp, key, stored);
                header.marks = Marks::from_bits(marks);
                header.grouped = grouped;
                header.codec = [Codec::Raw, Codec::Zstd, Codec::OutOfLine][codec as usize];
                header.flags = flags;
                header.expiry = Expiry::from_millis(expiry >> 16);
                header.keyspace = keyspace;
                if header.codec != Codec::Raw {
                    header.raw_bytes = stored as u32 * 3;
                }
                header
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(header in any_header(), seed in any::<u8>()) {
            let key = vec![seed; header.key_bytes as usize];
            let stored = vec![!seed; header.stored_bytes as usize];
            let record = Record { header, key: &key, stored: &stored };
            let mut bytes = vec![0xaa; header.record_bytes()];
            prop_assert_eq!(record.encode(&mut bytes), header.record_bytes());
            let read = Record::parse(&bytes).unwrap();
            prop_assert_eq!(read.header, header);
            prop_assert_eq!(read.key, &key[..]);
            prop_assert_eq!(read.stored, &stored[..]);
            prop_assert!(Record::parse(&bytes[..bytes.len() - 1]).is_err());
            let head = &bytes[..header.header_bytes()];
            prop_assert_eq!(Header::length_of(|at| head[at]), head.len());
        }

        #[test]
        fn nothing_makes_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = Record::parse(&bytes);
        }
    }

    #[test]
    fn a_small_item_pays_thirteen_bytes() {
        assert_eq!(Header::value(1, 16, 20).header_bytes(), 13);
    }

    #[test]
    fn the_longest_header_is_as_long_as_is_said() {
        let header = Header {
            codec: Codec::Zstd,
            raw_bytes: VALUE_BYTES_MAX as u32,
            flags: 1,
            expiry: Expiry::NEVER,
            keyspace: 1,
            marks: Marks { stale: true, leased: true },
            grouped: true,
            ..Header::value(STAMP_MAX, KEY_BYTES_MAX, VALUE_BYTES_MAX)
        };
        assert_eq!(header.header_bytes(), HEADER_BYTES_MAX);
        assert_eq!(header.encode(&mut [0; HEADER_BYTES_MAX]), HEADER_BYTES_MAX);
    }

    #[test]
    fn deletions_and_statements_are_told_from_values() {
        assert_eq!(Header::tombstone(1, 3).kind, Kind::Tombstone);
        assert_eq!(Header::control(1, 4).kind, Kind::Control);
        let out_of_line = Header { codec: Codec::OutOfLine, ..Header::value(1, 3, 4) };
        let held = [Header::value(1, 3, 4), out_of_line, Header::tombstone(1, 3)].map(|header| header.holds_value());
        assert_eq!(held, [true, false, false]);
        assert_eq!((Header::control(1, 4).key_bytes, Header::control(1, 4).stored_bytes), (0, 4));
    }

    #[test]
    fn values_deletions_and_statements_have_one_shape() {
        let parse = |header: Header| {
            let mut bytes = [0; HEADER_BYTES_MAX];
            let length = header.encode(&mut bytes);
            Header::parse(&bytes[..length]).map(|parsed| assert_eq!(parsed, (header, length)))
        };
        let (deletion, statement) = (Header::tombstone(1, 3), Header::control(1, 4));
        let (zstd, marks) = (Codec::Zstd, Marks { stale: true, leased: false });
        assert_eq!((parse(deletion), parse(statement)), (Ok(()), Ok(())));
        for wrong in [
            Header { key_bytes: 0, ..Header::value(1, 3, 4) },
            Header { key_bytes: 0, ..deletion },
            Header { stored_bytes: 1, raw_bytes: 1, ..deletion },
            Header { codec: zstd, ..deletion },
            Header { marks, ..deletion },
            Header { key_bytes: 1, ..statement },
            Header { codec: zstd, ..statement },
            Header { marks, ..statement },
        ] {
            assert_eq!(parse(wrong), Err(RecordError::Malformed), "{wrong:?}");
        }
    }

    #[test]
    fn a_header_is_as_long_as_it_says_at_every_length() {
        for bits in 0..24 {
            for length in [(1 << bits) - 1, 1 << bits] {
                let header = Header::value(1, length.min(KEY_BYTES_MAX), length);
                assert_eq!(header.encode(&mut [0; HEADER_BYTES_MAX]), header.header_bytes(), "{length}");
            }
        }
    }

    #[test]
    fn marks_that_mean_nothing_are_refused() {
        let header = Header { marks: Marks { stale: true, leased: false }, ..Header::value(1, 1, 0) };
        let mut bytes = [0; HEADER_BYTES_MAX];
        let length = header.encode(&mut bytes);
        assert_eq!(length, 14);
        for (bits, valid) in
            [(0, false), (1, true), (2, true), (3, true), (4, true), (7, true), (8, false), (0x81, false)]
        {
            bytes[length - 1] = bits;
            assert_eq!(Header::parse(&bytes).is_ok(), valid, "{bits}");
        }
    }

    #[test]
    fn the_free_codec_is_refused() {
        let header = Header { codec: Codec::OutOfLine, ..Header::value(1, 1, 20) };
        let mut bytes = [0; HEADER_BYTES_MAX];
        header.encode(&mut bytes);
        assert!(Header::parse(&bytes).is_ok());
        bytes[4] = 2 << TAG_CODEC_SHIFT;
        assert_eq!(Header::parse(&bytes), Err(RecordError::Malformed));
    }

    #[test]
    fn lengths_over_the_limits_are_refused() {
        let header = Header::value(1, 1, VALUE_BYTES_MAX);
        let mut bytes = [0; HEADER_BYTES_MAX];
        header.encode(&mut bytes);
        assert!(Header::parse(&bytes).is_ok());
        let compressed = Header { codec: Codec::Zstd, stored_bytes: 1, ..header };
        for too_long in [
            Header { stored_bytes: VALUE_BYTES_MAX as u32 + 1, ..header },
            Header { key_bytes: KEY_BYTES_MAX as u32 + 1, ..header },
            Header { raw_bytes: VALUE_BYTES_MAX as u32 + 1, ..compressed },
        ] {
            too_long.encode(&mut bytes);
            assert_eq!(Header::parse(&bytes), Err(RecordError::Malformed), "{too_long:?}");
        }
    }
}
