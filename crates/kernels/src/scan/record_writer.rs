//! Records from the values of their fields: what [`super::fields::FieldReader`] reads back as the same values.
//!
//! Fields of JSON in one part become one document, in which those that are NULL are left out. Pure.

use super::format::{ByteOrder, Field, FieldKind, JsonType, Part, TimeUnit};
use super::json_path::JsonStep;
use super::{Format, Scalar};
use std::fmt::Write;

/// The reason that a value cannot be written as its field.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unwritable {
    /// The value has another type than the field.
    Type,
    /// The field must be there.
    Null,
    /// A field before it is NULL, and so the record ends there.
    BehindNull,
    /// An integer outside of what the field holds: from, to.
    Range(i128, i128),
    /// A float that becomes infinite, or an integer that no float is.
    Float,
    /// A time between two that the field holds.
    Fraction,
    /// More bytes than the field has, or fewer where zeros would be read back.
    Length(u32),
    /// A text whose last characters are zeros, which are not read back.
    Zeros,
    /// JSON has no such number.
    JsonNumber,
    /// A field of JSON at another one's place, or within it, or in an array.
    JsonPlace,
}

impl Unwritable {
    /// The end of a sentence about the value.
    pub fn explain(&self) -> String {
        match self {
            Unwritable::Type => "has another type than the field".into(),
            Unwritable::Null => "is NULL, and the field must be there (a ? behind its type lets it be missing)".into(),
            Unwritable::BehindNull => "is there, though a field before it is NULL: the record ends there".into(),
            Unwritable::Range(from, to) => format!("is not from {from} to {to}"),
            Unwritable::Float => "is larger than its type holds, or an integer that no float is".into(),
            Unwritable::Fraction => "is a time between two that the field holds".into(),
            Unwritable::Length(bytes) => format!("does not fit the {bytes} bytes of the field"),
            Unwritable::Zeros => "ends with a zero, which would not be read back".into(),
            Unwritable::JsonNumber => "is a number that JSON does not have".into(),
            Unwritable::JsonPlace => "has no place in one document with the others: put keys and values".into(),
        }
    }
}

/// See the [module](self).
pub struct RecordWriter {
    fields: Vec<Field>,
}

impl RecordWriter {
    pub fn new(format: &Format) -> RecordWriter {
        RecordWriter { fields: format.fields().to_vec() }
    }

    /// Writes the key and the value of a record behind what is there. A value for each field, in the order of the format.
    ///
    /// # Errors
    /// Names the field whose value is wrong.
    ///
    /// # Panics
    /// If there are fewer values than fields.
    pub fn write(
        &self,
        values: &[Option<Scalar<'_>>],
        key: &mut Vec<u8>,
        value: &mut Vec<u8>,
    ) -> Result<(), (usize, Unwritable)> {
        self.write_part(Part::Key, values, key)?;
        self.write_part(Part::Value, values, value)
    }

    fn write_part(
        &self,
        part: Part,
        values: &[Option<Scalar<'_>>],
        out: &mut Vec<u8>,
    ) -> Result<(), (usize, Unwritable)> {
        let (mut document, mut has_ended) = (None, false);
        for (place, field) in self.fields.iter().enumerate().filter(|(_, field)| field.part == part) {
            let at = |why| (place, why);
            match (&field.kind, values[place]) {
                (FieldKind::Json { of, path }, value) => {
                    let root = document.get_or_insert_with(JsonNode::default);
                    if let Some(value) = value {
                        root.put(&path.steps, &json_text(*of, value).map_err(at)?).map_err(at)?;
                    }
                }
                (_, None) if field.is_optional => has_ended = true,
                (_, None) => return Err(at(Unwritable::Null)),
                (_, Some(_)) if has_ended => return Err(at(Unwritable::BehindNull)),
                (kind, Some(value)) => write_field(kind, value, out).map_err(at)?,
            }
        }
        if let Some(document) = document {
            document.write(out);
        }
        Ok(())
    }
}

fn write_field(kind: &FieldKind, value: Scalar<'_>, out: &mut Vec<u8>) -> Result<(), Unwritable> {
    match (kind, value) {
        (&FieldKind::Unsigned { bytes, order }, value) => push_integer(integer(value)?, bytes, false, order, out),
        (&FieldKind::Signed { bytes, order }, value) => push_integer(integer(value)?, bytes, true, order, out),
        (&FieldKind::Float { bytes, order }, value) => push_float(float(value)?, bytes, order, out),
        (FieldKind::Bool, Scalar::Bool(value)) => {
            out.push(value.into());
            Ok(())
        }
        (&FieldKind::Timestamp { unit, bytes, order }, Scalar::Timestamp(micros)) => {
            let factor = match unit {
                TimeUnit::Seconds => 1_000_000,
                TimeUnit::Millis => 1_000,
                TimeUnit::Micros => 1,
            };
            match micros % factor {
                0 => push_integer((micros / factor).into(), bytes, true, order, out),
                _ => Err(Unwritable::Fraction),
            }
        }
        (&FieldKind::FixedBytes(bytes), Scalar::Bytes(value)) => {
            if value.len() != bytes as usize {
                return Err(Unwritable::Length(bytes));
            }
            out.extend_from_slice(value);
            Ok(())
        }
        (&FieldKind::FixedText(bytes), Scalar::Text(value)) => {
            if value.len() > bytes as usize {
                return Err(Unwritable::Length(bytes));
            }
            if value.ends_with('\0') {
                return Err(Unwritable::Zeros);
            }
            out.extend_from_slice(value.as_bytes());
            out.resize(out.len() + bytes as usize - value.len(), 0);
            Ok(())
        }
        (&FieldKind::PrefixedBytes { prefix, order }, Scalar::Bytes(value)) => push_prefixed(value, prefix, order, out),
        (&FieldKind::PrefixedText { prefix, order }, Scalar::Text(value)) => {
            push_prefixed(value.as_bytes(), prefix, order, out)
        }
        (FieldKind::RestBytes, Scalar::Bytes(value)) => {
            out.extend_from_slice(value);
            Ok(())
        }
        (FieldKind::RestText, Scalar::Text(value)) => {
            out.extend_from_slice(value.as_bytes());
            Ok(())
        }
        _ => Err(Unwritable::Type),
    }
}

fn integer(value: Scalar<'_>) -> Result<i128, Unwritable> {
    match value {
        Scalar::Int(value) => Ok(value.into()),
        Scalar::Unsigned(value) => Ok(value.into()),
        _ => Err(Unwritable::Type),
    }
}

fn float(value: Scalar<'_>) -> Result<f64, Unwritable> {
    let exactly = |integer: i128| {
        let float = integer as f64;
        if float as i128 == integer { Ok(float) } else { Err(Unwritable::Float) }
    };
    match value {
        Scalar::Float(value) => Ok(value),
        value => exactly(integer(value)?),
    }
}

fn push_prefixed(value: &[u8], prefix: u8, order: ByteOrder, out: &mut Vec<u8>) -> Result<(), Unwritable> {
    let too_long = |_| Unwritable::Length(u32::MAX >> (32 - 8 * u32::from(prefix)));
    push_integer(value.len() as i128, prefix, false, order, out).map_err(too_long)?;
    out.extend_from_slice(value);
    Ok(())
}

/// Writes an integer of 1 to 8 bytes.
///
/// # Errors
/// If it does not fit.
pub fn push_integer(
    number: i128,
    bytes: u8,
    is_signed: bool,
    order: ByteOrder,
    out: &mut Vec<u8>,
) -> Result<(), Unwritable> {
    let bits = 8 * u32::from(bytes);
    let range = match is_signed {
        true => -(1i128 << (bits - 1))..1i128 << (bits - 1),
        false => 0..1i128 << bits,
    };
    if !range.contains(&number) {
        return Err(Unwritable::Range(range.start, range.end - 1));
    }
    push_bytes(number as u64, bytes, order, out);
    Ok(())
}

/// Writes a float of 4 or 8 bytes.
///
/// # Errors
/// If it becomes infinite.
pub fn push_float(number: f64, bytes: u8, order: ByteOrder, out: &mut Vec<u8>) -> Result<(), Unwritable> {
    if bytes == 4 && number.is_finite() && (number as f32).is_infinite() {
        return Err(Unwritable::Float);
    }
    let bits = if bytes == 4 { u64::from((number as f32).to_bits()) } else { number.to_bits() };
    push_bytes(bits, bytes, order, out);
    Ok(())
}

fn push_bytes(number: u64, bytes: u8, order: ByteOrder, out: &mut Vec<u8>) {
    let bytes = usize::from(bytes);
    match order {
        ByteOrder::Little => out.extend_from_slice(&number.to_le_bytes()[..bytes]),
        ByteOrder::Big => out.extend_from_slice(&number.to_be_bytes()[8 - bytes..]),
    }
}

/// A document that is being made: a value as its text, or members.
#[derive(Default)]
struct JsonNode {
    text: Option<String>,
    members: Vec<(Box<str>, JsonNode)>,
}

impl JsonNode {
    fn put(&mut self, steps: &[JsonStep], text: &str) -> Result<(), Unwritable> {
        let Some((step, rest)) = steps.split_first() else {
            if self.text.is_some() || !self.members.is_empty() {
                return Err(Unwritable::JsonPlace);
            }
            self.text = Some(text.into());
            return Ok(());
        };
        let JsonStep::Member(name) = step else { return Err(Unwritable::JsonPlace) };
        if self.text.is_some() {
            return Err(Unwritable::JsonPlace);
        }
        let found = self.members.iter().position(|(of, _)| of == name);
        let place = found.unwrap_or_else(|| {
            self.members.push((name.clone(), JsonNode::default()));
            self.members.len() - 1
        });
        self.members[place].1.put(rest, text)
    }

    fn write(&self, out: &mut Vec<u8>) {
        if let Some(text) = &self.text {
            out.extend_from_slice(text.as_bytes());
            return;
        }
        out.push(b'{');
        for (place, (name, node)) in self.members.iter().enumerate() {
            if place > 0 {
                out.push(b',');
            }
            out.extend_from_slice(quoted(name).as_bytes());
            out.push(b':');
            node.write(out);
        }
        out.push(b'}');
    }
}

fn json_text(of: JsonType, value: Scalar<'_>) -> Result<String, Unwritable> {
    match of {
        JsonType::Text => match value {
            Scalar::Text(text) => Ok(quoted(text)),
            _ => Err(Unwritable::Type),
        },
        JsonType::Int => {
            let number = integer(value)?;
            let is_right = i64::try_from(number).is_ok();
            if is_right { Ok(number.to_string()) } else { Err(Unwritable::Range(i64::MIN.into(), i64::MAX.into())) }
        }
        JsonType::Float => {
            let number = float(value)?;
            // Rust writes floats so that they are read back as the same.
            if number.is_finite() { Ok(format!("{number:?}")) } else { Err(Unwritable::JsonNumber) }
        }
        JsonType::Bool => match value {
            Scalar::Bool(value) => Ok(value.to_string()),
            _ => Err(Unwritable::Type),
        },
    }
}

fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            character if character < ' ' => {
                write!(quoted, "\\u{:04x}", u32::from(character)).expect("a text takes any text");
            }
            character => quoted.push(character),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scan::FieldReader;
    use crate::scan::fields::RawField;

    const FORMAT: &str = "key: id u32be, part i16le; value: year u16le, big u64be, score f64le, small f32be, open bool, at seconds32le, \
                          at_us micros64le, code bytes[3], name string[8], raw bytes8, title string16be, note string8?, pages u16le?";

    fn record(format: &str, values: &[Option<Scalar<'_>>]) -> Result<(Vec<u8>, Vec<u8>), (usize, Unwritable)> {
        let (mut key, mut value) = (Vec::new(), Vec::new());
        RecordWriter::new(&Format::parse(format).unwrap()).write(values, &mut key, &mut value)?;
        Ok((key, value))
    }

    fn right() -> Vec<Option<Scalar<'static>>> {
        vec![
            Some(Scalar::Int(7)),
            Some(Scalar::Int(-2)),
            Some(Scalar::Unsigned(65_535)),
            Some(Scalar::Unsigned(u64::MAX)),
            Some(Scalar::Float(f64::NAN)),
            Some(Scalar::Int(-3)),
            Some(Scalar::Bool(true)),
            Some(Scalar::Timestamp(-86_400_000_000)),
            Some(Scalar::Timestamp(-1)),
            Some(Scalar::Bytes(&[0, 255, 0])),
            Some(Scalar::Text("ä")),
            Some(Scalar::Bytes(&[])),
            Some(Scalar::Text("title")),
            Some(Scalar::Text("")),
            None,
        ]
    }

    #[test]
    fn a_record_is_read_back_as_its_values() {
        let (key, value) = record(FORMAT, &right()).unwrap();
        let format = Format::parse(FORMAT).unwrap();
        let reader = FieldReader::new(&format);
        reader.check(&key, &value).unwrap();
        let read = |name: &str| reader.read(format.find(name).unwrap(), &key, &value).unwrap();
        assert!(matches!(read("id"), Some(RawField::Int(7))));
        assert!(matches!(read("part"), Some(RawField::Int(-2))));
        assert!(matches!(read("big"), Some(RawField::Unsigned(u64::MAX))));
        assert!(matches!(read("score"), Some(RawField::Float(score)) if score.is_nan()));
        assert!(matches!(read("small"), Some(RawField::Float(-3.0))));
        assert!(matches!(read("at"), Some(RawField::Timestamp(-86_400_000_000))));
        assert!(matches!(read("at_us"), Some(RawField::Timestamp(-1))));
        assert!(matches!(read("code"), Some(RawField::Bytes(&[0, 255, 0]))));
        assert!(matches!(read("name"), Some(RawField::Text(name)) if name == "ä".as_bytes()));
        assert!(matches!(read("note"), Some(RawField::Text(b""))));
        assert!(read("pages").is_none());
    }

    #[test]
    fn a_value_that_would_not_be_read_back_is_refused() {
        for (field, value, why) in [
            (0, Some(Scalar::Int(-1)), Unwritable::Range(0, u32::MAX.into())),
            (1, Some(Scalar::Int(40_000)), Unwritable::Range(-32_768, 32_767)),
            (2, None, Unwritable::Null),
            (4, Some(Scalar::Int((1 << 53) + 1)), Unwritable::Float),
            (5, Some(Scalar::Float(1e300)), Unwritable::Float),
            (6, Some(Scalar::Int(1)), Unwritable::Type),
            (7, Some(Scalar::Timestamp(1)), Unwritable::Fraction),
            (9, Some(Scalar::Bytes(&[1])), Unwritable::Length(3)),
            (10, Some(Scalar::Text("too long a name")), Unwritable::Length(8)),
            (10, Some(Scalar::Text("a\0")), Unwritable::Zeros),
            (11, Some(Scalar::Bytes(&[0; 256])), Unwritable::Length(255)),
        ] {
            let mut values = right();
            values[field] = value;
            assert_eq!(record(FORMAT, &values), Err((field, why)));
        }
        let mut values = right();
        (values[13], values[14]) = (None, Some(Scalar::Int(3)));
        assert_eq!(record(FORMAT, &values), Err((14, Unwritable::BehindNull)));
    }

    #[test]
    fn fields_of_json_become_one_document() {
        let format = "key: id string; value: total json $.total float, city json $.ship.city string, ok json $.ship.ok bool, n json $.n int";
        let values = [
            Some(Scalar::Text("a1")),
            Some(Scalar::Float(120.5)),
            Some(Scalar::Text("L\"yon\n")),
            Some(Scalar::Bool(false)),
            None,
        ];
        let (key, value) = record(format, &values).unwrap();
        assert_eq!(key, b"a1");
        assert_eq!(value, br#"{"total":120.5,"ship":{"city":"L\"yon\u000a","ok":false}}"#);
        FieldReader::new(&Format::parse(format).unwrap()).check(&key, &value).unwrap();
        let nothing = record(format, &[Some(Scalar::Text("a")), None, None, None, None]).unwrap();
        assert_eq!(nothing.1, b"{}");
        let mut values = values;
        values[1] = Some(Scalar::Float(f64::NAN));
        assert_eq!(record(format, &values), Err((1, Unwritable::JsonNumber)));
        let within = "key: id string; value: all json $.a string, part json $.a.b string";
        let values = [Some(Scalar::Text("a")), Some(Scalar::Text("x")), Some(Scalar::Text("y"))];
        assert_eq!(record(within, &values), Err((2, Unwritable::JsonPlace)));
    }
}
