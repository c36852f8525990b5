//! The format of a keyspace: which fields its keys and values have.
//!
//! ```text
//!  0         1      2             4
//!  +---------+------+-------------+-------+-----
//!  | version | zero | fields u16  | field | ...
//!  +---------+------+-------------+-------+-----
//!  field:
//!  0      1      2       3            4           8            9      16
//!  +------+------+-------+------------+-----------+------------+------+------+------+
//!  | part | kind | flags | name bytes | width u32 | path bytes | zero | name | path |
//!  | u8   | u8   | u8    | u8         |           | u8         | 7    |      |      |
//!  +------+------+-------+------------+-----------+------------+------+------+------+
//!  part: 0 key, 1 value      flags: bit 0 big endian, bit 1 may be missing
//!  kind                                      width
//!   1 unsigned · 2 signed                    bytes of the number, 1 to 8
//!   3 float                                  4, 8
//!   4 bool                                   1
//!   5 seconds · 6 millis · 7 micros          4, 8
//!   8 bytes · 9 string, of one length        the length; a string ends before the zeros that fill it up
//!  10 bytes · 11 string, behind their length bytes of the length: 1, 2, 4
//!  12 bytes · 13 string, to the end          0
//!  14 string · 15 int · 16 float · 17 bool, at a path in JSON    0
//! ```
//! All numbers are little-endian; strings are UTF-8. Names and paths stand as in the text form ([`super::format_text`]).
//!
//! 1. Fields of a part lie one behind the other in the order of the list. Those of kinds 12 to 17 come last and see the same bytes: all
//!    that the others left.
//! 2. Fields that may be missing come last among those that do not see the rest.
//! 3. The key's fields come first. Names are unique. A format has one to [`FIELDS_MAX`] fields.
//! 4. A format is written in one way only.

use super::json_path::{JSON_PATH_BYTES_MAX, JsonPath};
use super::value::ScalarType;
use super::wire::{ScanReader, WireError};

pub const FORMAT_VERSION: u8 = 1;
pub const FIELDS_MAX: usize = 128;
pub const FIELD_NAME_BYTES_MAX: usize = 64;
/// The longest bytes or string of a fixed length.
pub const FIXED_BYTES_MAX: u32 = 64 << 10;
const HEAD_BYTES: usize = 4;
const FIELD_HEAD_BYTES: usize = 16;
const _: () = assert!(FIELD_NAME_BYTES_MAX <= u8::MAX as usize);
const _: () = assert!(JSON_PATH_BYTES_MAX <= u8::MAX as usize);

const FLAG_BIG: u8 = 1;
const FLAG_OPTIONAL: u8 = 2;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    Key,
    Value,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ByteOrder {
    Little,
    Big,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimeUnit {
    Seconds,
    Millis,
    Micros,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JsonType {
    Text,
    Int,
    Float,
    Bool,
}

/// How a field lies in its part.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FieldKind {
    Unsigned { bytes: u8, order: ByteOrder },
    Signed { bytes: u8, order: ByteOrder },
    Float { bytes: u8, order: ByteOrder },
    Bool,
    Timestamp { unit: TimeUnit, bytes: u8, order: ByteOrder },
    FixedBytes(u32),
    FixedText(u32),
    PrefixedBytes { prefix: u8, order: ByteOrder },
    PrefixedText { prefix: u8, order: ByteOrder },
    RestBytes,
    RestText,
    Json { of: JsonType, path: JsonPath },
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Field {
    pub part: Part,
    pub name: Box<str>,
    pub kind: FieldKind,
    /// Whether the part may end before the field, which is NULL then.
    pub is_optional: bool,
}

/// The reason that a list of fields is no format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FormatError {
    Empty,
    TooManyFields,
    /// This error and the following ones name a field by its place in the list.
    Name(usize),
    NameTwice(usize),
    Width(usize),
    /// The field follows one that takes the rest.
    BehindRest(usize),
    /// The field must be there, but follows one that may be missing.
    BehindOptional(usize),
    /// Only fields of known or said length may be missing.
    OptionalRest(usize),
}

impl FieldKind {
    pub fn scalar_type(&self) -> ScalarType {
        match self {
            FieldKind::Unsigned { bytes: 8, .. } => ScalarType::Unsigned,
            FieldKind::Unsigned { .. } | FieldKind::Signed { .. } => ScalarType::Int,
            FieldKind::Float { .. } => ScalarType::Float,
            FieldKind::Bool => ScalarType::Bool,
            FieldKind::Timestamp { .. } => ScalarType::Timestamp,
            FieldKind::FixedBytes(_) | FieldKind::PrefixedBytes { .. } | FieldKind::RestBytes => ScalarType::Bytes,
            FieldKind::FixedText(_) | FieldKind::PrefixedText { .. } | FieldKind::RestText => ScalarType::Text,
            FieldKind::Json { of: JsonType::Text, .. } => ScalarType::Text,
            FieldKind::Json { of: JsonType::Int, .. } => ScalarType::Int,
            FieldKind::Json { of: JsonType::Float, .. } => ScalarType::Float,
            FieldKind::Json { of: JsonType::Bool, .. } => ScalarType::Bool,
        }
    }

    /// The field's length, if it is the same in all records.
    pub fn fixed_bytes(&self) -> Option<usize> {
        match *self {
            FieldKind::Unsigned { bytes, .. }
            | FieldKind::Signed { bytes, .. }
            | FieldKind::Float { bytes, .. }
            | FieldKind::Timestamp { bytes, .. } => Some(bytes.into()),
            FieldKind::Bool => Some(1),
            FieldKind::FixedBytes(bytes) | FieldKind::FixedText(bytes) => Some(bytes as usize),
            _ => None,
        }
    }

    /// Whether the field sees all bytes that the fields before it left.
    pub fn takes_rest(&self) -> bool {
        matches!(self, FieldKind::RestBytes | FieldKind::RestText | FieldKind::Json { .. })
    }

    fn has_width(&self) -> bool {
        match *self {
            FieldKind::Unsigned { bytes, .. } | FieldKind::Signed { bytes, .. } => (1..=8).contains(&bytes),
            FieldKind::Float { bytes, .. } | FieldKind::Timestamp { bytes, .. } => matches!(bytes, 4 | 8),
            FieldKind::FixedBytes(bytes) | FieldKind::FixedText(bytes) => (1..=FIXED_BYTES_MAX).contains(&bytes),
            FieldKind::PrefixedBytes { prefix, .. } | FieldKind::PrefixedText { prefix, .. } => {
                matches!(prefix, 1 | 2 | 4)
            }
            _ => true,
        }
    }

    /// The codes of kind, byte order and width in the binary form.
    fn codes(&self) -> (u8, ByteOrder, u32) {
        let none = ByteOrder::Little;
        match *self {
            FieldKind::Unsigned { bytes, order } => (1, order, bytes.into()),
            FieldKind::Signed { bytes, order } => (2, order, bytes.into()),
            FieldKind::Float { bytes, order } => (3, order, bytes.into()),
            FieldKind::Bool => (4, none, 1),
            FieldKind::Timestamp { unit, bytes, order } => (5 + unit as u8, order, bytes.into()),
            FieldKind::FixedBytes(bytes) => (8, none, bytes),
            FieldKind::FixedText(bytes) => (9, none, bytes),
            FieldKind::PrefixedBytes { prefix, order } => (10, order, prefix.into()),
            FieldKind::PrefixedText { prefix, order } => (11, order, prefix.into()),
            FieldKind::RestBytes => (12, none, 0),
            FieldKind::RestText => (13, none, 0),
            FieldKind::Json { of, .. } => (14 + of as u8, none, 0),
        }
    }

    fn of_codes(kind: u8, order: ByteOrder, width: u32, path: &str) -> Option<FieldKind> {
        let bytes = width.min(u8::MAX.into()) as u8;
        let json = |of| JsonPath::parse(path).ok().map(|path| FieldKind::Json { of, path });
        let time = |unit| FieldKind::Timestamp { unit, bytes, order };
        Some(match kind {
            1 => FieldKind::Unsigned { bytes, order },
            2 => FieldKind::Signed { bytes, order },
            3 => FieldKind::Float { bytes, order },
            4 => FieldKind::Bool,
            5 => time(TimeUnit::Seconds),
            6 => time(TimeUnit::Millis),
            7 => time(TimeUnit::Micros),
            8 => FieldKind::FixedBytes(width),
            9 => FieldKind::FixedText(width),
            10 => FieldKind::PrefixedBytes { prefix: bytes, order },
            11 => FieldKind::PrefixedText { prefix: bytes, order },
            12 => FieldKind::RestBytes,
            13 => FieldKind::RestText,
            14 => json(JsonType::Text)?,
            15 => json(JsonType::Int)?,
            16 => json(JsonType::Float)?,
            17 => json(JsonType::Bool)?,
            _ => return None,
        })
    }
}

/// A checked list of fields.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Format {
    fields: Vec<Field>,
}

impl Format {
    /// Sorts the key's fields before the value's.
    pub fn new(mut fields: Vec<Field>) -> Result<Format, FormatError> {
        if fields.is_empty() {
            return Err(FormatError::Empty);
        }
        if fields.len() > FIELDS_MAX {
            return Err(FormatError::TooManyFields);
        }
        let (mut rests, mut optionals) = ([false; 2], [false; 2]);
        for (place, field) in fields.iter().enumerate() {
            if !is_name(&field.name) {
                return Err(FormatError::Name(place));
            }
            if fields[..place].iter().any(|before| before.name == field.name) {
                return Err(FormatError::NameTwice(place));
            }
            if !field.kind.has_width() {
                return Err(FormatError::Width(place));
            }
            let (rest, optional) = (&mut rests[field.part as usize], &mut optionals[field.part as usize]);
            if field.kind.takes_rest() {
                if field.is_optional {
                    return Err(FormatError::OptionalRest(place));
                }
                *rest = true;
                continue;
            }
            if *rest {
                return Err(FormatError::BehindRest(place));
            }
            if *optional && !field.is_optional {
                return Err(FormatError::BehindOptional(place));
            }
            *optional |= field.is_optional;
        }
        fields.sort_by_key(|field| field.part as u8);
        Ok(Format { fields })
    }

    /// Keys and values as they are: the fields `key` and `value`.
    pub fn plain() -> Format {
        let field =
            |part, name: &str| Field { part, name: name.into(), kind: FieldKind::RestBytes, is_optional: false };
        Format { fields: vec![field(Part::Key, "key"), field(Part::Value, "value")] }
    }

    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// The place of a field in the list.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.fields.iter().position(|field| &*field.name == name)
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[FORMAT_VERSION, 0]);
        out.extend_from_slice(&(self.fields.len() as u16).to_le_bytes());
        for field in &self.fields {
            let (kind, order, width) = field.kind.codes();
            let path = match &field.kind {
                FieldKind::Json { path, .. } => path.to_string(),
                _ => String::new(),
            };
            let big = if order == ByteOrder::Big { FLAG_BIG } else { 0 };
            let flags = big | if field.is_optional { FLAG_OPTIONAL } else { 0 };
            out.extend_from_slice(&[field.part as u8, kind, flags, field.name.len() as u8]);
            out.extend_from_slice(&width.to_le_bytes());
            out.extend_from_slice(&[path.len() as u8, 0, 0, 0, 0, 0, 0, 0]);
            out.extend_from_slice(field.name.as_bytes());
            out.extend_from_slice(path.as_bytes());
        }
    }

    /// Reads a format from the front of `reader`, which may go on behind it.
    pub fn decode(reader: &mut ScanReader<'_>) -> Result<Format, WireError> {
        let before = reader.rest();
        let [version, 0] = reader.array()? else { return Err(WireError::Malformed) };
        if version != FORMAT_VERSION {
            return Err(WireError::Version(version));
        }
        let count = usize::from(reader.u16()?);
        if count > FIELDS_MAX {
            return Err(WireError::Malformed);
        }
        let fields = (0..count).map(|_| decode_field(reader)).collect::<Result<Vec<Field>, WireError>>()?;
        let format = Format::new(fields).map_err(|_| WireError::Malformed)?;
        let mut again = Vec::with_capacity(HEAD_BYTES + count * FIELD_HEAD_BYTES);
        format.encode(&mut again);
        if before.starts_with(&again) { Ok(format) } else { Err(WireError::Malformed) }
    }
}

fn decode_field(reader: &mut ScanReader<'_>) -> Result<Field, WireError> {
    let [part, kind, flags, name_bytes] = reader.array()?;
    let width = reader.u32()?;
    let [path_bytes, ..] = reader.array::<8>()?;
    let name = reader.text(name_bytes.into())?;
    let path = reader.text(path_bytes.into())?;
    let part = match part {
        0 => Part::Key,
        1 => Part::Value,
        _ => return Err(WireError::Malformed),
    };
    let order = if flags & FLAG_BIG != 0 { ByteOrder::Big } else { ByteOrder::Little };
    let kind = FieldKind::of_codes(kind, order, width, path).ok_or(WireError::Malformed)?;
    Ok(Field { part, name: name.into(), kind, is_optional: flags & FLAG_OPTIONAL != 0 })
}

/// Whether a field may have this name: the rule is SQL's.
pub fn is_name(name: &str) -> bool {
    let begins = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    begins
        && name.len() <= FIELD_NAME_BYTES_MAX
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(name: &str, kind: FieldKind, is_optional: bool) -> Field {
        Field { part: Part::Value, name: name.into(), kind, is_optional }
    }

    fn u16le() -> FieldKind {
        FieldKind::Unsigned { bytes: 2, order: ByteOrder::Little }
    }

    /// Pins the bytes in the catalogue.
    #[test]
    fn a_format_has_its_bytes() {
        let json = FieldKind::Json { of: JsonType::Int, path: JsonPath::parse("$.a").unwrap() };
        let time = FieldKind::Timestamp { unit: TimeUnit::Micros, bytes: 8, order: ByteOrder::Big };
        let key = Field { part: Part::Key, ..field("id", time, false) };
        let format = Format::new(vec![key, field("n", u16le(), true), field("j", json, false)]).unwrap();
        let mut bytes = Vec::new();
        format.encode(&mut bytes);
        let mut expected = vec![1, 0, 3, 0];
        expected.extend_from_slice(&[0, 7, 1, 2, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, b'i', b'd']);
        expected.extend_from_slice(&[1, 1, 2, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, b'n']);
        expected.extend_from_slice(&[1, 15, 0, 1, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, b'j', b'$', b'.', b'a']);
        assert_eq!(bytes, expected);
        assert_eq!(Format::decode(&mut ScanReader::new(&bytes)), Ok(format));
        for length in 0..bytes.len() {
            assert!(Format::decode(&mut ScanReader::new(&bytes[..length])).is_err(), "{length} bytes");
        }
        bytes[0] = 2;
        assert_eq!(Format::decode(&mut ScanReader::new(&bytes)), Err(WireError::Version(2)));
    }

    #[test]
    fn every_kind_reads_back() {
        let kinds = (1..=17u8).flat_map(|kind| [0u32, 1, 2, 3, 4, 8, 9, 300].map(|width| (kind, width)));
        let mut read = 0;
        for (kind, width) in kinds {
            let path = if kind >= 14 { "$.a" } else { "" };
            let Some(kind) = FieldKind::of_codes(kind, ByteOrder::Little, width, path) else { continue };
            let Ok(format) = Format::new(vec![field("a", kind, false)]) else { continue };
            let mut bytes = Vec::new();
            format.encode(&mut bytes);
            assert_eq!(Format::decode(&mut ScanReader::new(&bytes)), Ok(format));
            read += 1;
        }
        // Each of the 17 kinds was read with its widths, or, if it has none, with all of them.
        assert!(read > 17 * 2, "{read}");
    }

    #[test]
    fn what_is_no_format_is_refused_by_its_field() {
        let rest = || field("r", FieldKind::RestText, false);
        let number = |name: &str| field(name, u16le(), false);
        for (fields, expected) in [
            (vec![], FormatError::Empty),
            (vec![number("1a")], FormatError::Name(0)),
            (vec![number("a"), number("a")], FormatError::NameTwice(1)),
            (vec![field("a", FieldKind::FixedBytes(0), false)], FormatError::Width(0)),
            (vec![rest(), number("a")], FormatError::BehindRest(1)),
            (vec![field("a", u16le(), true), number("b")], FormatError::BehindOptional(1)),
            (vec![field("a", FieldKind::RestBytes, true)], FormatError::OptionalRest(0)),
            (
                (0..=FIELDS_MAX).map(|number| field(&format!("f{number}"), u16le(), false)).collect(),
                FormatError::TooManyFields,
            ),
        ] {
            assert_eq!(Format::new(fields), Err(expected));
        }
        // The rest of one part does not affect the other part.
        let key = Field { part: Part::Key, ..rest() };
        assert!(Format::new(vec![key, number("a"), field("b", FieldKind::RestText, false)]).is_ok());
    }
}
