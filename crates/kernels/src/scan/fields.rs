//! Finds and reads the fields of a record.
//!
//! 1. Whatever a record's bytes are, reading a field gives its value, NULL, or a [`Misfit`]; it never panics.
//! 2. A field is read alone: at most the lengths of the fields before it are read, and nothing behind it.
//! 3. Nothing is allocated.

use super::format::{ByteOrder, FieldKind, Format, JsonType, Part, TimeUnit};
use super::json_path::JsonPath;
use super::json_scanner::{JsonError, JsonToken, check_document, unescape};

/// Why a record does not fit the format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Misfit {
    /// The record ends before the field does.
    Short = 1,
    /// A bool that is neither 0 nor 1.
    Bool = 2,
    /// A string that is not UTF-8.
    Text = 3,
    /// A time that 64 bits of microseconds do not reach.
    Timestamp = 4,
    /// A document that is not JSON.
    Json = 5,
    /// A document that is nested too deep.
    JsonDeep = 6,
    /// JSON has something else at the path.
    JsonType = 7,
    /// The record goes on behind the last field.
    Long = 8,
}

impl Misfit {
    pub const ALL: [Misfit; 8] = [
        Misfit::Short,
        Misfit::Bool,
        Misfit::Text,
        Misfit::Timestamp,
        Misfit::Json,
        Misfit::JsonDeep,
        Misfit::JsonType,
        Misfit::Long,
    ];

    pub fn of_code(code: u8) -> Option<Misfit> {
        Misfit::ALL.into_iter().find(|misfit| *misfit as u8 == code)
    }

    pub fn explain(self) -> &'static str {
        match self {
            Misfit::Short => "the record ends before the field does",
            Misfit::Bool => "a bool is a byte of 0 or 1",
            Misfit::Text => "a string that is not UTF-8",
            Misfit::Timestamp => "a time further from 1970 than 64 bits of microseconds reach",
            Misfit::Json => "the document is not JSON",
            Misfit::JsonDeep => "the document is nested deeper than 64 levels",
            Misfit::JsonType => "the value at the path has another type",
            Misfit::Long => "the record goes on behind its last field",
        }
    }
}

impl From<JsonError> for Misfit {
    fn from(error: JsonError) -> Misfit {
        match error {
            JsonError::Malformed => Misfit::Json,
            JsonError::Deep => Misfit::JsonDeep,
        }
    }
}

/// The value of a field, as it lies in the record.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum RawField<'a> {
    Bool(bool),
    Int(i64),
    Unsigned(u64),
    Float(f64),
    Timestamp(i64),
    Bytes(&'a [u8]),
    /// UTF-8.
    Text(&'a [u8]),
    /// UTF-8 with JSON's escapes, all of which are characters.
    Escaped(&'a [u8]),
}

/// The places of the fields of a format.
#[derive(Clone, Debug)]
pub struct FieldReader {
    plans: Vec<FieldPlan>,
}

#[derive(Clone, Debug)]
struct FieldPlan {
    part: Part,
    kind: FieldKind,
    is_optional: bool,
    /// The offset in the part at which the walk to the field begins.
    from: usize,
    walk: Vec<WalkStep>,
}

/// A whole number that is in the same place of each record.
#[derive(Clone, Copy)]
pub(super) struct NumberPlace {
    pub part: Part,
    pub at: usize,
    pub bytes: usize,
    pub order: ByteOrder,
    pub is_signed: bool,
}

#[derive(Clone, Copy, Debug)]
struct WalkStep {
    length: StepLength,
    is_optional: bool,
}

#[derive(Clone, Copy, Debug)]
enum StepLength {
    Fixed(usize),
    /// The field follows its length, which has this many bytes.
    Prefixed(u8, ByteOrder),
}

impl FieldReader {
    pub fn new(format: &Format) -> FieldReader {
        let mut plans: Vec<FieldPlan> = Vec::new();
        let (mut from, mut walks) = ([0; 2], [Vec::new(), Vec::new()]);
        for field in format.fields() {
            let (from, walk): (&mut usize, &mut Vec<WalkStep>) =
                (&mut from[field.part as usize], &mut walks[field.part as usize]);
            let (part, kind, is_optional) = (field.part, field.kind.clone(), field.is_optional);
            plans.push(FieldPlan { part, kind, is_optional, from: *from, walk: walk.clone() });
            let length = match field.kind {
                FieldKind::PrefixedBytes { prefix, order } | FieldKind::PrefixedText { prefix, order } => {
                    StepLength::Prefixed(prefix, order)
                }
                ref kind => match kind.fixed_bytes() {
                    Some(bytes) => StepLength::Fixed(bytes),
                    None => continue,
                },
            };
            match length {
                StepLength::Fixed(bytes) if walk.is_empty() && !is_optional => *from += bytes,
                _ => walk.push(WalkStep { length, is_optional }),
            }
        }
        FieldReader { plans }
    }

    /// A field of a record; `None` for NULL.
    #[inline]
    pub fn read<'a>(&self, field: usize, key: &'a [u8], value: &'a [u8]) -> Result<Option<RawField<'a>>, Misfit> {
        let plan = &self.plans[field];
        let bytes = match plan.part {
            Part::Key => key,
            Part::Value => value,
        };
        match plan.find(bytes)? {
            Some(bytes) => read_kind(&plan.kind, bytes),
            None => Ok(None),
        }
    }

    /// Where a field is, if it is a whole number in the same place of each record.
    pub(super) fn number_place(&self, field: usize) -> Option<NumberPlace> {
        let FieldPlan { part, ref kind, is_optional, from, ref walk } = self.plans[field];
        let (order, is_signed) = match *kind {
            FieldKind::Unsigned { order, .. } => (order, false),
            FieldKind::Signed { order, .. } => (order, true),
            _ => return None,
        };
        let is_fixed = walk.is_empty() && !is_optional;
        is_fixed.then_some(NumberPlace { part, at: from, bytes: kind.fixed_bytes()?, order, is_signed })
    }

    /// Checks that a record fits, to its last byte. The error names the field that does not.
    pub fn check(&self, key: &[u8], value: &[u8]) -> Result<(), (usize, Misfit)> {
        for field in 0..self.plans.len() {
            self.read(field, key, value).map_err(|misfit| (field, misfit))?;
        }
        self.check_documents(key, value)?;
        for (part, bytes) in [(Part::Key, key), (Part::Value, value)] {
            let last = self.plans.iter().rposition(|plan| plan.part == part);
            let Some(last) = last else { continue };
            let plan = &self.plans[last];
            let end = match plan.kind.takes_rest() {
                true => bytes.len(),
                false => plan.end(bytes).map_err(|misfit| (last, misfit))?,
            };
            if end < bytes.len() {
                return Err((last, Misfit::Long));
            }
        }
        Ok(())
    }

    /// Fields of JSON in one part share their document.
    fn check_documents(&self, key: &[u8], value: &[u8]) -> Result<(), (usize, Misfit)> {
        for (part, bytes) in [(Part::Key, key), (Part::Value, value)] {
            let is_json = |plan: &FieldPlan| plan.part == part && matches!(plan.kind, FieldKind::Json { .. });
            let Some(field) = self.plans.iter().position(is_json) else { continue };
            let document = self.plans[field].start(bytes).map_err(|misfit| (field, misfit))?;
            check_document(document).map_err(|error| (field, error.into()))?;
            std::str::from_utf8(document).map_err(|_| (field, Misfit::Text))?;
        }
        Ok(())
    }
}

/// A field without its length, and what follows it.
type Split<'a> = (&'a [u8], &'a [u8]);

impl WalkStep {
    /// `None` if the field is missing and may be.
    #[inline]
    fn split<'a>(&self, bytes: &'a [u8]) -> Result<Option<Split<'a>>, Misfit> {
        if self.is_optional && bytes.is_empty() {
            return Ok(None);
        }
        let (length, rest) = match self.length {
            StepLength::Fixed(length) => (length, bytes),
            StepLength::Prefixed(prefix, order) => {
                let (length, rest) = bytes.split_at_checked(prefix.into()).ok_or(Misfit::Short)?;
                (unsigned(length, order) as usize, rest)
            }
        };
        rest.split_at_checked(length).map(Some).ok_or(Misfit::Short)
    }
}

impl FieldPlan {
    /// All bytes from the field's beginning on.
    #[inline]
    fn start<'a>(&self, bytes: &'a [u8]) -> Result<&'a [u8], Misfit> {
        let mut rest = bytes.get(self.from..).ok_or(Misfit::Short)?;
        for step in &self.walk {
            match step.split(rest)? {
                Some((_, behind)) => rest = behind,
                // Nothing is left for any field behind it.
                None => return Ok(&[]),
            }
        }
        Ok(rest)
    }

    fn step(&self) -> Option<WalkStep> {
        let length = match self.kind {
            FieldKind::PrefixedBytes { prefix, order } | FieldKind::PrefixedText { prefix, order } => {
                StepLength::Prefixed(prefix, order)
            }
            ref kind => StepLength::Fixed(kind.fixed_bytes()?),
        };
        Some(WalkStep { length, is_optional: self.is_optional })
    }

    /// The field's own bytes, without its length.
    #[inline]
    fn find<'a>(&self, bytes: &'a [u8]) -> Result<Option<&'a [u8]>, Misfit> {
        let rest = self.start(bytes)?;
        match self.step() {
            Some(step) => Ok(step.split(rest)?.map(|(own, _)| own)),
            None => Ok(Some(rest)),
        }
    }

    fn end(&self, bytes: &[u8]) -> Result<usize, Misfit> {
        let rest = self.start(bytes)?;
        let behind = self.step().and_then(|step| step.split(rest).transpose()).transpose()?;
        Ok(bytes.len() - behind.map_or(rest, |(_, behind)| behind).len())
    }
}

/// A number of 1 to 8 bytes.
#[inline]
fn unsigned(bytes: &[u8], order: ByteOrder) -> u64 {
    let mut all = [0u8; 8];
    match order {
        ByteOrder::Little => {
            all[..bytes.len()].copy_from_slice(bytes);
            u64::from_le_bytes(all)
        }
        ByteOrder::Big => {
            all[8 - bytes.len()..].copy_from_slice(bytes);
            u64::from_be_bytes(all)
        }
    }
}

#[inline]
fn signed(bytes: &[u8], order: ByteOrder) -> i64 {
    let spare = 64 - 8 * bytes.len() as u32;
    ((unsigned(bytes, order) << spare) as i64) >> spare
}

fn text(bytes: &[u8]) -> Result<Option<RawField<'_>>, Misfit> {
    std::str::from_utf8(bytes).map(|text| Some(RawField::Text(text.as_bytes()))).map_err(|_| Misfit::Text)
}

/// Reads a field from `bytes`, which are all that it has.
#[inline]
fn read_kind<'a>(kind: &FieldKind, bytes: &'a [u8]) -> Result<Option<RawField<'a>>, Misfit> {
    Ok(Some(match *kind {
        FieldKind::Unsigned { bytes: 8, order } => RawField::Unsigned(unsigned(bytes, order)),
        FieldKind::Unsigned { order, .. } => RawField::Int(unsigned(bytes, order) as i64),
        FieldKind::Signed { order, .. } => RawField::Int(signed(bytes, order)),
        FieldKind::Float { order, .. } if bytes.len() == 4 => {
            RawField::Float(f32::from_bits(unsigned(bytes, order) as u32).into())
        }
        FieldKind::Float { order, .. } => RawField::Float(f64::from_bits(unsigned(bytes, order))),
        FieldKind::Bool => match bytes {
            [0] => RawField::Bool(false),
            [1] => RawField::Bool(true),
            _ => return Err(Misfit::Bool),
        },
        FieldKind::Timestamp { unit, order, .. } => {
            let factor = match unit {
                TimeUnit::Seconds => 1_000_000,
                TimeUnit::Millis => 1_000,
                TimeUnit::Micros => 1,
            };
            RawField::Timestamp(signed(bytes, order).checked_mul(factor).ok_or(Misfit::Timestamp)?)
        }
        FieldKind::FixedBytes(_) | FieldKind::PrefixedBytes { .. } | FieldKind::RestBytes => RawField::Bytes(bytes),
        FieldKind::FixedText(_) => {
            let length = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            return text(&bytes[..length]);
        }
        FieldKind::PrefixedText { .. } | FieldKind::RestText => return text(bytes),
        FieldKind::Json { of, ref path } => return read_json(of, path, bytes),
    }))
}

fn read_json<'a>(of: JsonType, path: &JsonPath, document: &'a [u8]) -> Result<Option<RawField<'a>>, Misfit> {
    let Some(token) = path.find(document)? else { return Ok(None) };
    match (token, of) {
        (JsonToken::Null, _) => Ok(None),
        (JsonToken::Bool(value), JsonType::Bool) => Ok(Some(RawField::Bool(value))),
        (JsonToken::Number(number), JsonType::Int) => {
            number.parse().map(|number| Some(RawField::Int(number))).map_err(|_| Misfit::JsonType)
        }
        (JsonToken::Number(number), JsonType::Float) => {
            number.parse().map(|number| Some(RawField::Float(number))).map_err(|_| Misfit::JsonType)
        }
        (JsonToken::String(content), JsonType::Text) => {
            let text = text(content)?;
            if !content.contains(&b'\\') {
                return Ok(text);
            }
            unescape(content, |_| true)?;
            Ok(Some(RawField::Escaped(content)))
        }
        _ => Err(Misfit::JsonType),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read<'a>(format: &str, name: &str, value: &'a [u8]) -> Result<Option<RawField<'a>>, Misfit> {
        let format = Format::parse(format).unwrap();
        FieldReader::new(&format).read(format.find(name).unwrap(), b"k", value)
    }

    #[test]
    fn numbers_of_every_width_and_order_are_read() {
        let bytes = [0xfe, 2, 3, 4, 5, 6, 7, 8];
        for (kind, expected) in [
            ("u8", RawField::Int(0xfe)),
            ("i8", RawField::Int(-2)),
            ("u16le", RawField::Int(0x2fe)),
            ("u16be", RawField::Int(0xfe02)),
            ("i16be", RawField::Int(-0x1fe)),
            ("i24be", RawField::Int(0xfe0203 - (1 << 24))),
            ("u40le", RawField::Int(0x05_0403_02fe)),
            ("u64le", RawField::Unsigned(0x0807_0605_0403_02fe)),
            ("i64be", RawField::Int(0xfe02_0304_0506_0708u64 as i64)),
            ("f64be", RawField::Float(f64::from_be_bytes(bytes))),
            ("f32le", RawField::Float(f32::from_le_bytes([0xfe, 2, 3, 4]).into())),
            ("seconds32be", RawField::Timestamp(1_000_000 * i64::from(i32::from_be_bytes([0xfe, 2, 3, 4])))),
            ("micros64le", RawField::Timestamp(0x0807_0605_0403_02fe)),
            ("bytes[3]", RawField::Bytes(&[0xfe, 2, 3])),
        ] {
            assert_eq!(read(&format!("value: a {kind}"), "a", &bytes), Ok(Some(expected)), "{kind}");
        }
        assert_eq!(read("value: a seconds64", "a", &[0x7f; 8]), Err(Misfit::Timestamp));
    }

    #[test]
    fn fields_follow_one_another() {
        let format = "value: n u16le, s string8, t bytes16be, f string[4], r string";
        let value = b"\x01\x02\x03abc\x00\x02\xff\xfeab\0\0rest";
        for (name, expected) in [
            ("n", RawField::Int(0x201)),
            ("s", RawField::Text(b"abc")),
            ("t", RawField::Bytes(&[0xff, 0xfe])),
            ("f", RawField::Text(b"ab")),
            ("r", RawField::Text(b"rest")),
            ("key", RawField::Bytes(b"k")),
        ] {
            assert_eq!(read(format, name, value), Ok(Some(expected)), "{name}");
        }
        for length in 0..value.len() - 4 {
            assert_eq!(read(format, "r", &value[..length]), Err(Misfit::Short), "{length} bytes");
        }
        assert_eq!(read(format, "n", &value[..2]), Ok(Some(RawField::Int(0x201))));
        assert_eq!(read("value: s string32", "s", &[0xff; 40]), Err(Misfit::Short));
        assert_eq!(read("value: s string8", "s", b"\x01\xff"), Err(Misfit::Text));
        assert_eq!(read("value: b bool", "b", b"\x02"), Err(Misfit::Bool));
    }

    #[test]
    fn what_may_be_missing_is_null_where_the_record_ends_before_it() {
        let format = "value: a u8, b u16?, c string8?, r bytes";
        let all = |value| ["a", "b", "c", "r"].map(|name| read(format, name, value));
        let (int, rest) = (|number| Ok(Some(RawField::Int(number))), |bytes| Ok(Some(RawField::Bytes(bytes))));
        assert_eq!(all(b"\x01"), [int(1), Ok(None), Ok(None), rest(&[])]);
        assert_eq!(all(b"\x01\x02\x00"), [int(1), int(2), Ok(None), rest(&[])]);
        assert_eq!(all(b"\x01\x02"), [int(1), Err(Misfit::Short), Err(Misfit::Short), Err(Misfit::Short)]);
        let text = Ok(Some(RawField::Text(b"x")));
        assert_eq!(all(b"\x01\x02\x00\x01x?"), [int(1), int(2), text, rest(b"?")]);
        assert_eq!(all(b"")[0], Err(Misfit::Short));
    }

    #[test]
    fn values_of_json_have_the_type_that_is_said() {
        let document =
            r#"{"s":"a","e":"a\nb","i":-7,"f":1.5,"b":true,"n":null,"big":9223372036854775808,"o":{}}"#.as_bytes();
        let at = |path: &str, of: &str| read(&format!("value: a json $.{path} {of}"), "a", document);
        assert_eq!(at("s", "string"), Ok(Some(RawField::Text(b"a"))));
        assert_eq!(at("e", "string"), Ok(Some(RawField::Escaped(br"a\nb"))));
        assert_eq!(at("i", "int"), Ok(Some(RawField::Int(-7))));
        assert_eq!(at("i", "float"), Ok(Some(RawField::Float(-7.0))));
        assert_eq!(at("f", "float"), Ok(Some(RawField::Float(1.5))));
        assert_eq!(at("b", "bool"), Ok(Some(RawField::Bool(true))));
        for of in ["string", "int", "float", "bool"] {
            assert_eq!(at("n", of), Ok(None));
            assert_eq!(at("missing", of), Ok(None));
            assert_eq!(at("o", of), Err(Misfit::JsonType));
        }
        for (path, of) in [("s", "int"), ("f", "int"), ("big", "int"), ("i", "string"), ("b", "float"), ("i", "bool")] {
            assert_eq!(at(path, of), Err(Misfit::JsonType), "{path} as {of}");
        }
        assert_eq!(read("value: a json $.a int", "a", b"{"), Err(Misfit::Json));
        assert_eq!(read("value: a json $.a int", "a", b"hello"), Err(Misfit::Json));
        assert_eq!(read("value: a json $.a int", "a", b"12"), Ok(None));
        assert_eq!(read("value: a json $.a string", "a", b"{\"a\":\"\xff\"}"), Err(Misfit::Text));
        assert_eq!(read("value: a json $.a string", "a", br#"{"a":"\ud800"}"#), Err(Misfit::Json));
    }

    #[test]
    fn a_whole_record_is_checked_to_its_last_byte() {
        let check = |format: &str, key: &[u8], value: &[u8]| {
            FieldReader::new(&Format::parse(format).unwrap()).check(key, value)
        };
        let format = "key: k u16; value: a u8, b string8?";
        assert_eq!(check(format, b"kk", b"\x01"), Ok(()));
        assert_eq!(check(format, b"kk", b"\x01\x01x"), Ok(()));
        assert_eq!(check(format, b"kk", b"\x01\x01xy"), Err((2, Misfit::Long)));
        assert_eq!(check(format, b"kkk", b"\x01"), Err((0, Misfit::Long)));
        assert_eq!(check(format, b"k", b"\x01"), Err((0, Misfit::Short)));
        assert_eq!(check("value: a u8, r bytes", b"anything", b"\x01more"), Ok(()));
        let json = "key: k u16; value: a u8, b json $.b int, c json $.c.d string";
        assert_eq!(check(json, b"kk", br#"0{"b":1,"c":{"d":"x"},"e":[]}"#), Ok(()));
        assert_eq!(check(json, b"kk", b"0[]"), Ok(()));
        for (value, misfit) in [
            (&b"0no json"[..], Misfit::Json),
            (br#"0{"b":1,"c":{"d":"x"},"e":[}"#, Misfit::Json),
            (br#"0{"b":1,"c":{"d":"x"}} behind"#, Misfit::Json),
            (b"0{\"b\":1,\"c\":{\"d\":\"x\"},\"e\":\"\xff\"}", Misfit::Text),
        ] {
            assert_eq!(check(json, b"kk", value), Err((2, misfit)), "{}", String::from_utf8_lossy(value));
        }
    }
}
