//! The text of a format, as it is typed.
//!
//! ```text
//! format: part; part        part:  key: field, field …   or   value: field, field …
//! field:  name type         a ? behind the type: the part may end before it
//!
//! u8 i8 … u64 i64           integers of 8, 16, … 64 bits; le or be behind them, le if neither
//! f32 f64                   floats, likewise
//! bool                      one byte, 0 or 1
//! seconds32 seconds64       time since 1970, likewise; also millis64, micros64
//! bytes[16] string[16]      of one length; a string ends before the zeros that fill it up
//! bytes8 string16 string32  behind their length, of so many bits; le or be
//! bytes string              to the end of the part
//! json $.a.b[0] int         at a path in JSON, which goes to the end of the part: string, int, float or bool
//! ```
//! A part that is not given is one field with the part's name and the type `bytes`. A written format parses back to
//! itself.

use super::format::{ByteOrder, FIELDS_MAX, Field, FieldKind, Format, FormatError, JsonType, Part, TimeUnit};
use super::json_path::JsonPath;
use std::fmt;

/// The problem of a text, and the word that has it.
#[derive(Clone, PartialEq, Eq)]
pub struct FormatTextError {
    /// The place at which the word begins, in characters from 1 on.
    pub column: usize,
    /// Empty if a word is missing.
    pub word: String,
    pub problem: FormatProblem,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FormatProblem {
    /// A part does not begin with `key:` or `value:`.
    Part,
    PartTwice,
    Name,
    NameTwice,
    Type,
    /// A type of other databases, with the type to write instead.
    OtherType(&'static str),
    Path(&'static str),
    JsonType,
    Width,
    BehindRest,
    BehindOptional,
    OptionalRest,
    TooManyFields,
    /// Something stands behind a complete field.
    Surplus,
}

impl fmt::Display for FormatTextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.word.is_empty() {
            write!(f, "column {}: ", self.column)?;
        } else {
            write!(f, "column {}, {:?}: ", self.column, self.word)?;
        }
        self.problem.fmt(f)
    }
}

impl std::error::Error for FormatTextError {}

/// Writes the text, since a `main` that returns an error prints its `Debug` form.
impl fmt::Debug for FormatTextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for FormatProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FormatProblem::Part => "the fields of a part stand behind \"key:\" or \"value:\"",
            FormatProblem::PartTwice => "this part was given before; put all its fields into one list",
            FormatProblem::Name => {
                "a field's name is of letters, digits and _, begins with no digit, and has at most 64 characters"
            }
            FormatProblem::NameTwice => "another field has this name",
            FormatProblem::Type => {
                "no such type: there are u8 to u64 and i8 to i64, f32 and f64 (each with le or be), bool, seconds32, seconds64, millis64, \
                 micros64, bytes[N], string[N], bytes8, bytes16, bytes32, string8, string16, string32, bytes, string, json PATH TYPE"
            }
            FormatProblem::OtherType(instead) => instead,
            FormatProblem::Path(problem) => problem,
            FormatProblem::JsonType => "a path in JSON leads to one of string, int, float, bool",
            FormatProblem::Width => "a length is from 1 to 65536 bytes",
            FormatProblem::BehindRest => "the field before goes to the end of the part; put this one before it",
            FormatProblem::BehindOptional => "a field before may be missing, so this one may be too: put a ? behind its type",
            FormatProblem::OptionalRest => "a field to the end of the part is never missing: leave out the ?",
            FormatProblem::TooManyFields => "a format has at most 128 fields",
            FormatProblem::Surplus => "a comma follows a field, or a semicolon the fields of a part",
        })
    }
}

/// A word, and the byte at which it begins.
#[derive(Clone, Copy)]
struct Word<'a> {
    at: usize,
    text: &'a str,
}

struct FormatLexer<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> FormatLexer<'a> {
    fn skip_spaces(&mut self) {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start().len();
    }

    /// Takes a mark if it is next. Returns whether it was.
    fn mark(&mut self, mark: char) -> bool {
        self.skip_spaces();
        let is_next = self.text[self.at..].starts_with(mark);
        self.at += if is_next { mark.len_utf8() } else { 0 };
        is_next
    }

    fn is_at_end(&mut self) -> bool {
        self.skip_spaces();
        self.at == self.text.len()
    }

    /// The word up to a space or mark; empty if one is next. A quoted name in a path may contain either.
    fn word(&mut self) -> Word<'a> {
        self.skip_spaces();
        let (from, mut in_quotes) = (self.at, false);
        let rest = &self.text[from..];
        let is_end = |c: char| {
            in_quotes ^= c == '"';
            !in_quotes && (c.is_whitespace() || matches!(c, ',' | ';' | ':'))
        };
        let length = rest.find(is_end).unwrap_or(rest.len());
        self.at += length;
        Word { at: from, text: &rest[..length] }
    }

    /// The word with the parentheses that begin in it: `decimal(10, 2)`.
    fn with_parentheses(&self, word: Word<'a>) -> Word<'a> {
        let rest = &self.text[word.at..];
        match (word.text.contains('('), rest.find(')')) {
            (true, Some(end)) => Word { at: word.at, text: &rest[..=end] },
            _ => word,
        }
    }

    /// The error for a word that is no type.
    fn type_error(&self, word: Word<'a>, otherwise: FormatProblem) -> FormatTextError {
        match other_type(word.text) {
            Some(instead) => self.error(self.with_parentheses(word), FormatProblem::OtherType(instead)),
            None => self.error(word, otherwise),
        }
    }

    fn error(&self, word: Word<'_>, problem: FormatProblem) -> FormatTextError {
        let column = self.text[..word.at].chars().count() + 1;
        FormatTextError { column, word: word.text.into(), problem }
    }
}

impl Format {
    /// # Errors
    /// At the word that is wrong.
    pub fn parse(text: &str) -> Result<Format, FormatTextError> {
        let mut lexer = FormatLexer { text, at: 0 };
        let mut fields = Vec::new();
        // The name of each field. An error that only the whole list shows is reported at it.
        let mut names: Vec<Word<'_>> = Vec::new();
        let mut is_given = [false; 2];
        while !lexer.is_at_end() {
            let word = lexer.word();
            let part = match word.text {
                "key" => Part::Key,
                "value" => Part::Value,
                _ => return Err(lexer.error(word, FormatProblem::Part)),
            };
            if !lexer.mark(':') {
                return Err(lexer.error(word, FormatProblem::Part));
            }
            if std::mem::replace(&mut is_given[part as usize], true) {
                return Err(lexer.error(word, FormatProblem::PartTwice));
            }
            loop {
                let (name, field) = parse_field(&mut lexer, part)?;
                names.push(name);
                fields.push(field);
                if !lexer.mark(',') {
                    break;
                }
            }
            if !lexer.mark(';') && !lexer.is_at_end() {
                let word = lexer.word();
                return Err(lexer.error(word, FormatProblem::Surplus));
            }
        }
        let end = Word { at: text.len(), text: "" };
        for (part, name) in [(Part::Key, "key"), (Part::Value, "value")] {
            let is_free = fields.iter().all(|field: &Field| &*field.name != name);
            if !is_given[part as usize] && is_free {
                fields.push(Field { part, name: name.into(), kind: FieldKind::RestBytes, is_optional: false });
                names.push(end);
            }
        }
        Format::new(fields).map_err(|error| {
            let (place, problem) = told(error, names.len());
            lexer.error(names.get(place).copied().unwrap_or(end), problem)
        })
    }
}

/// The field that has the error, and its problem.
fn told(error: FormatError, fields: usize) -> (usize, FormatProblem) {
    match error {
        FormatError::Empty => (fields, FormatProblem::Part),
        FormatError::TooManyFields => (FIELDS_MAX, FormatProblem::TooManyFields),
        FormatError::Name(place) => (place, FormatProblem::Name),
        FormatError::NameTwice(place) => (place, FormatProblem::NameTwice),
        FormatError::Width(place) => (place, FormatProblem::Width),
        FormatError::BehindRest(place) => (place, FormatProblem::BehindRest),
        FormatError::BehindOptional(place) => (place, FormatProblem::BehindOptional),
        FormatError::OptionalRest(place) => (place, FormatProblem::OptionalRest),
    }
}

fn parse_field<'a>(lexer: &mut FormatLexer<'a>, part: Part) -> Result<(Word<'a>, Field), FormatTextError> {
    let name = lexer.word();
    if !super::format::is_name(name.text) {
        return Err(lexer.error(name, FormatProblem::Name));
    }
    let word = lexer.word();
    let (kind_text, is_optional) = match word.text.strip_suffix('?') {
        Some(text) => (text, true),
        None => (word.text, false),
    };
    let kind = match kind_text {
        "json" => parse_json(lexer)?,
        text => parse_kind(text).ok_or_else(|| lexer.type_error(word, FormatProblem::Type))?,
    };
    Ok((name, Field { part, name: name.text.into(), kind, is_optional }))
}

fn parse_json(lexer: &mut FormatLexer<'_>) -> Result<FieldKind, FormatTextError> {
    let word = lexer.word();
    let path = JsonPath::parse(word.text).map_err(|error| {
        let rest = word.text.get(error.at..).unwrap_or(word.text);
        lexer.error(Word { at: word.at + error.at, text: rest }, FormatProblem::Path(error.problem))
    })?;
    let word = lexer.word();
    let of = match word.text {
        "string" => JsonType::Text,
        "int" => JsonType::Int,
        "float" => JsonType::Float,
        "bool" => JsonType::Bool,
        _ => return Err(lexer.type_error(word, FormatProblem::JsonType)),
    };
    Ok(FieldKind::Json { of, path })
}

/// Says what to write in place of a type that other databases have.
fn other_type(text: &str) -> Option<&'static str> {
    let name = text.split(['(', '?']).next().unwrap_or(text).to_ascii_lowercase();
    Some(match &name[..] {
        "decimal" | "dec" | "numeric" | "money" => {
            "there is no decimal type: write float of a number in JSON, or f64 of one in binary; where amounts are to be exact, keep them \
             as integers, such as cents, with int or i64"
        }
        "int" | "integer" | "smallint" | "bigint" | "long" | "short" | "tinyint" => {
            "an integer is written with its bits: i16, i32, i64, or u8 to u64, and be behind it if it is big-endian; in JSON, int"
        }
        "float" | "double" | "real" => {
            "a float is written with its bits: f32 or f64, and be behind it if it is big-endian; in JSON, float"
        }
        "text" | "varchar" | "char" | "str" => {
            "a text is written as string[N] of N bytes, string8, string16 or string32 behind its length, or string to the end; in JSON, string"
        }
        "blob" | "binary" | "varbinary" | "bytea" => {
            "bytes are written as bytes[N], bytes8, bytes16 or bytes32 behind their length, or bytes to the end; JSON has none"
        }
        "date" | "time" | "datetime" | "timestamp" => {
            "a time is written as seconds32, seconds64, millis64 or micros64 since 1970; in JSON, a string or an int"
        }
        "boolean" => "a boolean is written as bool",
        _ => return None,
    })
}

fn parse_kind(text: &str) -> Option<FieldKind> {
    match text {
        "bool" => return Some(FieldKind::Bool),
        "bytes" => return Some(FieldKind::RestBytes),
        "string" => return Some(FieldKind::RestText),
        _ => {}
    }
    if let Some((stem, length)) = text.strip_suffix(']').and_then(|text| text.split_once('[')) {
        // A length that is too large is an error of the whole format.
        let length = u32::try_from(number(length)?).ok()?;
        return match stem {
            "bytes" => Some(FieldKind::FixedBytes(length)),
            "string" => Some(FieldKind::FixedText(length)),
            _ => None,
        };
    }
    let stem_bytes = text.find(|c: char| c.is_ascii_digit())?;
    let (stem, sized) = text.split_at(stem_bytes);
    let (bits, order) = match (sized.strip_suffix("le"), sized.strip_suffix("be")) {
        (Some(bits), _) => (bits, ByteOrder::Little),
        (_, Some(bits)) => (bits, ByteOrder::Big),
        _ => (sized, ByteOrder::Little),
    };
    let bits = number(bits)?;
    let bytes = u8::try_from(bits / 8).ok().filter(|_| bits.is_multiple_of(8))?;
    // One byte has no order, so it is written in one way.
    let order = if bytes == 1 { ByteOrder::Little } else { order };
    let is_one_of = |sizes: &[u8]| sizes.contains(&bytes);
    match stem {
        "u" if (1..=8).contains(&bytes) => Some(FieldKind::Unsigned { bytes, order }),
        "i" if (1..=8).contains(&bytes) => Some(FieldKind::Signed { bytes, order }),
        "f" if is_one_of(&[4, 8]) => Some(FieldKind::Float { bytes, order }),
        "seconds" if is_one_of(&[4, 8]) => Some(FieldKind::Timestamp { unit: TimeUnit::Seconds, bytes, order }),
        "millis" if is_one_of(&[8]) => Some(FieldKind::Timestamp { unit: TimeUnit::Millis, bytes, order }),
        "micros" if is_one_of(&[8]) => Some(FieldKind::Timestamp { unit: TimeUnit::Micros, bytes, order }),
        "bytes" if is_one_of(&[1, 2, 4]) => Some(FieldKind::PrefixedBytes { prefix: bytes, order }),
        "string" if is_one_of(&[1, 2, 4]) => Some(FieldKind::PrefixedText { prefix: bytes, order }),
        _ => None,
    }
}

fn number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

impl fmt::Display for FieldKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sized = |f: &mut fmt::Formatter<'_>, stem: &str, bytes: u8, order: ByteOrder| {
            let order = match order {
                _ if bytes == 1 => "",
                ByteOrder::Little => "le",
                ByteOrder::Big => "be",
            };
            write!(f, "{stem}{}{order}", u32::from(bytes) * 8)
        };
        match self {
            FieldKind::Unsigned { bytes, order } => sized(f, "u", *bytes, *order),
            FieldKind::Signed { bytes, order } => sized(f, "i", *bytes, *order),
            FieldKind::Float { bytes, order } => sized(f, "f", *bytes, *order),
            FieldKind::Bool => f.write_str("bool"),
            FieldKind::Timestamp { unit: TimeUnit::Seconds, bytes, order } => sized(f, "seconds", *bytes, *order),
            FieldKind::Timestamp { unit: TimeUnit::Millis, bytes, order } => sized(f, "millis", *bytes, *order),
            FieldKind::Timestamp { unit: TimeUnit::Micros, bytes, order } => sized(f, "micros", *bytes, *order),
            FieldKind::FixedBytes(bytes) => write!(f, "bytes[{bytes}]"),
            FieldKind::FixedText(bytes) => write!(f, "string[{bytes}]"),
            FieldKind::PrefixedBytes { prefix, order } => sized(f, "bytes", *prefix, *order),
            FieldKind::PrefixedText { prefix, order } => sized(f, "string", *prefix, *order),
            FieldKind::RestBytes => f.write_str("bytes"),
            FieldKind::RestText => f.write_str("string"),
            FieldKind::Json { of, path } => {
                let of = match of {
                    JsonType::Text => "string",
                    JsonType::Int => "int",
                    JsonType::Float => "float",
                    JsonType::Bool => "bool",
                };
                write!(f, "json {path} {of}")
            }
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut is_first = true;
        for (part, name) in [(Part::Key, "key"), (Part::Value, "value")] {
            let mut fields = self.fields().iter().filter(|field| field.part == part).peekable();
            if fields.peek().is_none() {
                continue;
            }
            f.write_str(if std::mem::replace(&mut is_first, false) { name } else { "; value" })?;
            let mut mark = ":";
            for field in fields {
                let optional = if field.is_optional { "?" } else { "" };
                write!(f, "{mark} {} {}{optional}", field.name, field.kind)?;
                mark = ",";
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scan::wire::ScanReader;

    #[test]
    fn a_format_reads_back_from_its_text() {
        for text in [
            "key: id u64be; value: year u16le, venue string16le, title string",
            "key: a u8, b i24be, c f32le, d f64be, e bool; value: f seconds32le, g micros64be?, h bytes[16]?",
            "key: key bytes; value: t json $.title string, n json $.a[\"x, y\"][3] int, f json $ float, b json $.b bool",
            "key: key bytes; value: a string8, b bytes32be, c string[3], doc string, t json $.t string",
        ] {
            let format = Format::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(format.to_string(), text);
            let mut bytes = Vec::new();
            format.encode(&mut bytes);
            assert_eq!(Format::decode(&mut ScanReader::new(&bytes)), Ok(format));
        }
    }

    #[test]
    fn what_is_left_out_is_filled_in() {
        for (text, whole) in [
            ("value: n u16", "key: key bytes; value: n u16le"),
            ("", "key: key bytes; value: value bytes"),
            (" key :a u8;", "key: a u8; value: value bytes"),
            ("key: a string16be;value:b u8be", "key: a string16be; value: b u8"),
            ("key: value u8", "key: value u8"),
        ] {
            assert_eq!(Format::parse(text).unwrap().to_string(), whole, "{text}");
        }
    }

    #[test]
    fn a_type_of_other_databases_is_told_with_what_to_write() {
        for (text, column, word, instead) in [
            ("value: total decimal(10,2), n u8", 14, "decimal(10,2)", "i64"),
            ("value: total NUMERIC( 10, 2 )?", 14, "NUMERIC( 10, 2 )", "no decimal type"),
            ("value: total json $.total decimal(10, 2)", 27, "decimal(10, 2)", "float"),
            ("value: total decimal", 14, "decimal", "f64"),
            ("value: n int", 10, "int", "i64"),
            ("value: n varchar(20)", 10, "varchar(20)", "string8"),
            ("value: n date?", 10, "date?", "seconds32"),
        ] {
            let error = Format::parse(text).unwrap_err();
            assert_eq!((error.column, &error.word[..]), (column, word), "{text}");
            assert!(matches!(error.problem, FormatProblem::OtherType(_)), "{text}");
            assert!(error.to_string().contains(instead), "{error}");
        }
    }

    #[test]
    fn an_error_points_at_the_word() {
        for (text, column, word, problem) in [
            ("id u64", 1, "id", FormatProblem::Part),
            ("key: a u8; key: b u8", 12, "key", FormatProblem::PartTwice),
            ("key: 1a u8", 6, "1a", FormatProblem::Name),
            ("key: ", 6, "", FormatProblem::Name),
            ("key: a u8, a u8", 12, "a", FormatProblem::NameTwice),
            ("key: a u12le", 8, "u12le", FormatProblem::Type),
            ("key: ä u8", 6, "ä", FormatProblem::Name),
            ("key: a", 7, "", FormatProblem::Type),
            ("key: a u72", 8, "u72", FormatProblem::Type),
            ("value: a json $.x[ int", 18, "[", FormatProblem::Path("the number ends with ]")),
            ("value: a json $.x number", 19, "number", FormatProblem::JsonType),
            ("value: a bytes[0]", 8, "a", FormatProblem::Width),
            ("value: a bytes[65537]", 8, "a", FormatProblem::Width),
            ("value: a bytes, b u8", 17, "b", FormatProblem::BehindRest),
            ("value: a u8?, b u8", 15, "b", FormatProblem::BehindOptional),
            ("value: a string?", 8, "a", FormatProblem::OptionalRest),
            ("value: a u8 b u8", 13, "b", FormatProblem::Surplus),
        ] {
            let error = Format::parse(text).unwrap_err();
            assert_eq!((error.column, &error.word[..], error.problem), (column, word, problem), "{text}");
        }
    }
}
