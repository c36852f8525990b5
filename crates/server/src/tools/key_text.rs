//! Keys as people type them on the command line, and as `list` prints them.
//!
//! ```text
//! a keyspace with a format    100 or 20539,0       the values of the key's fields, with commas between them
//! any keyspace                \x00\x00\x00d        the key's bytes, with escapes, as `list` prints them
//! ```
//! 1. Where there is a format, a text without a backslash is fields. With one it is bytes if these fit the format, else fields with escapes in
//!    them, else bytes: a keyspace may have keys that do not fit.
//! 2. A text of `\xHH` alone is these bytes, whatever the format.
//! 3. A key is printed so that it is read back as the same key.

use tapetum_kernels::scan::format::{ByteOrder, Field, FieldKind, Part, TimeUnit};
use tapetum_kernels::scan::record_writer::{push_float, push_integer};
use tapetum_kernels::scan::{FieldReader, Format, Misfit, ScalarType};
use tapetum_service::escapes;

/// How to write a key, at the end of an error.
const HOW: &str = "or write its bytes as `tapetum list` prints them: \\xHH for any byte, \\t \\n \\r \\\\";

/// Reads and prints the keys of one keyspace.
pub struct KeyText {
    /// `None`: keys are bytes.
    format: Option<KeyFormat>,
}

struct KeyFormat {
    /// Those of the key, up to the first that takes the rest: fields of JSON share one document.
    fields: Vec<Field>,
    reader: FieldReader,
}

/// Which part of a key a text stands for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum KeyUse {
    Whole,
    /// The first fields are enough.
    Begun,
}

/// How the bytes of a field are sorted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ByteSort {
    /// They are sorted as its values are.
    AsValues,
    /// They are sorted as its values are, with all negative ones behind the others.
    NegativeLast,
    /// They are sorted in another order, for this reason.
    Otherwise(&'static str),
}

impl KeyText {
    pub fn new(format: Option<&Format>) -> KeyText {
        KeyText { format: format.and_then(KeyFormat::new) }
    }

    /// Reads keys of a keyspace whose format is not known, such as a server's.
    pub fn of_bytes() -> KeyText {
        KeyText { format: None }
    }

    /// The bytes of a whole key.
    ///
    /// # Errors
    /// When the text is no key of the keyspace.
    pub fn key(&self, text: &str) -> Result<Vec<u8>, String> {
        self.read(text, KeyUse::Whole)
    }

    /// The bytes that keys begin with.
    ///
    /// # Errors
    /// When no key of the keyspace begins so.
    pub fn prefix(&self, text: &str) -> Result<Vec<u8>, String> {
        self.read(text, KeyUse::Begun)
    }

    /// The bounds of a range of keys.
    ///
    /// # Errors
    /// When a text is no beginning of a key, or the keys in between are not those whose values are: keys are in the order of their bytes.
    pub fn range(&self, from: Option<&str>, to: Option<&str>) -> Result<(Vec<u8>, Option<Vec<u8>>), String> {
        let bound = |name: &str, text: &str| self.prefix(text).map_err(|why| format!("--{name}: {why}"));
        let bounds =
            (from.map_or(Ok(Vec::new()), |from| bound("from", from))?, to.map(|to| bound("to", to)).transpose()?);
        if let Some(format) = &self.format {
            // Whoever writes bytes means bytes.
            let typed = [from, to].map(|text| text.filter(|text| !text.contains('\\')));
            format.check_bounds(typed).map_err(|why| format!("--from, --to: {why}"))?;
        }
        Ok(bounds)
    }

    fn read(&self, text: &str, used: KeyUse) -> Result<Vec<u8>, String> {
        let is_empty_key = self.format.is_none() || used == KeyUse::Begun;
        if text.is_empty() && is_empty_key {
            return Ok(Vec::new());
        }
        let bytes = || escapes::unescape(text.as_bytes());
        let Some(format) = &self.format else {
            return bytes().map_err(|why| format!("the key \"{text}\": {why}, {HOW}"));
        };
        let fields = || format.encode(text, used);
        if !text.contains('\\') {
            return fields().map_err(|why| format!("{why}; {HOW}"));
        }
        match bytes() {
            Ok(bytes) if is_hex_alone(text) || format.fits(&bytes, used) => Ok(bytes),
            Ok(bytes) => Ok(fields().unwrap_or(bytes)),
            Err(why) => Err(format!("the key \"{text}\": {why}, {HOW}")),
        }
    }

    /// Appends a key so that [`KeyText::key`] reads it back.
    pub fn print(&self, key: &[u8], out: &mut Vec<u8>) {
        let begin = out.len();
        escapes::escape(key, out);
        if self.format.is_none() {
            return;
        }
        let printed = std::str::from_utf8(&out[begin..]).map_err(drop);
        if printed.and_then(|text| self.key(text).map_err(drop)).as_deref() != Ok(key) {
            out.truncate(begin);
            key.iter().for_each(|byte| out.extend_from_slice(format!("\\x{byte:02x}").as_bytes()));
        }
    }
}

impl KeyFormat {
    fn new(format: &Format) -> Option<KeyFormat> {
        let of_key: Vec<Field> = format.fields().iter().filter(|field| field.part == Part::Key).cloned().collect();
        let last = of_key.iter().position(|field| field.kind.takes_rest());
        let fields = of_key[..last.map_or(of_key.len(), |last| last + 1)].to_vec();
        // No field: keys are bytes.
        let reader = FieldReader::new(&Format::new(of_key).ok()?);
        Some(KeyFormat { fields, reader })
    }

    /// Whether bytes are a key, or may be the beginning of one.
    fn fits(&self, bytes: &[u8], used: KeyUse) -> bool {
        match self.reader.check(bytes, b"") {
            Ok(()) => true,
            Err((_, misfit)) => used != KeyUse::Whole && misfit == Misfit::Short,
        }
    }

    fn encode(&self, text: &str, used: KeyUse) -> Result<Vec<u8>, String> {
        // The last field may have commas of its own.
        let values: Vec<&str> = text.splitn(self.fields.len(), ',').collect();
        let needed = match used {
            KeyUse::Whole => self.fields.iter().filter(|field| !field.is_optional).count(),
            KeyUse::Begun => 1,
        };
        if values.len() < needed {
            let names: Vec<&str> = self.fields.iter().map(|field| &*field.name).collect();
            let names = names.join(", ");
            return Err(format!("a key has the fields {names}: give their values, with commas between them"));
        }
        let mut key = Vec::new();
        for (place, (field, value)) in self.fields.iter().zip(&values).enumerate() {
            let is_begun = used != KeyUse::Whole && place + 1 == values.len();
            let encoded = encode_field(&field.kind, value, is_begun, &mut key);
            encoded.map_err(|why| format!("the key's field {}: {value:?} {why}", field.name))?;
        }
        Ok(key)
    }

    /// Whether bounds have between them the keys whose values lie between theirs: fields are sorted as their values are, from the first on
    /// in which the bounds differ.
    fn check_bounds(&self, typed: [Option<&str>; 2]) -> Result<(), String> {
        let [from, to] = typed.map(|text| self.values(text.unwrap_or_default()));
        let are_alike = |place: &usize| from.get(*place).is_some() && from.get(*place) == to.get(*place);
        let alike = (0..from.len()).take_while(are_alike).count();
        for (place, field) in self.fields.iter().enumerate().take(from.len().max(to.len())).skip(alike) {
            let is_negative = |value: &&str| value.starts_with('-');
            let are_positive = match (from.get(place), to.get(place)) {
                (Some(from), Some(to)) => ![from, to].into_iter().any(is_negative),
                _ => false,
            };
            let why = match byte_sort(&field.kind) {
                ByteSort::AsValues => continue,
                ByteSort::NegativeLast if place == alike && are_positive => continue,
                ByteSort::NegativeLast => {
                    "keys with negative values of it come behind all others: give two bounds that differ in no field before it, with values of 0 or \
                     more, or take --where"
                }
                ByteSort::Otherwise(why) => why,
            };
            return Err(format!("the key's field {}: {why}", field.name));
        }
        Ok(())
    }

    fn values<'t>(&self, text: &'t str) -> Vec<&'t str> {
        match text {
            "" => Vec::new(),
            text => text.splitn(self.fields.len(), ',').map(str::trim).collect(),
        }
    }
}

fn is_hex_alone(text: &str) -> bool {
    text.as_bytes().chunks(4).all(|chunk| chunk.len() == 4 && chunk.starts_with(b"\\x"))
}

fn byte_sort(kind: &FieldKind) -> ByteSort {
    match *kind {
        FieldKind::Unsigned { bytes, order }
        | FieldKind::Signed { bytes, order }
        | FieldKind::Float { bytes, order }
        | FieldKind::Timestamp { bytes, order, .. }
            if bytes > 1 && order == ByteOrder::Little =>
        {
            ByteSort::Otherwise("it is little-endian, and keys are not in its order: take --where")
        }
        FieldKind::Signed { .. } | FieldKind::Float { .. } | FieldKind::Timestamp { .. } => ByteSort::NegativeLast,
        FieldKind::PrefixedBytes { .. } | FieldKind::PrefixedText { .. } => {
            ByteSort::Otherwise("its length stands before it, and keys are in the order of that first: take --where")
        }
        _ => ByteSort::AsValues,
    }
}

/// `is_begun`: the value may be the beginning of one, where that has no length of its own.
fn encode_field(kind: &FieldKind, value: &str, is_begun: bool, key: &mut Vec<u8>) -> Result<(), String> {
    let number = value.trim();
    let whole = || number.parse::<i128>().map_err(|_| "is not a whole number".to_owned());
    match *kind {
        FieldKind::Unsigned { bytes, order } => push_whole(whole()?, bytes, false, order, key),
        FieldKind::Signed { bytes, order } => push_whole(whole()?, bytes, true, order, key),
        FieldKind::Timestamp { unit, bytes, order } => {
            let number = whole().map_err(|why| format!("{why} of {} since 1970", unit_name(unit)))?;
            push_whole(number, bytes, true, order, key)
        }
        FieldKind::Float { bytes, order } => {
            let is_infinite = number.trim_start_matches(['+', '-']).to_ascii_lowercase().starts_with("inf");
            let number: f64 = number.parse().map_err(|_| "is not a number")?;
            match number.is_infinite() && !is_infinite {
                true => Err("is larger than its type holds".into()),
                false => push_float(number, bytes, order, key).map_err(|_| "is larger than its type holds".into()),
            }
        }
        FieldKind::Bool => {
            key.push(number.parse::<bool>().map_err(|_| "is neither true nor false")?.into());
            Ok(())
        }
        FieldKind::FixedBytes(length) | FieldKind::FixedText(length) => {
            let (value, length) = (value_bytes(kind, value)?, length as usize);
            if value.len() > length {
                return Err(format!("has more than {length} bytes"));
            }
            key.extend_from_slice(&value);
            if !is_begun {
                key.resize(key.len() + length - value.len(), 0);
            }
            Ok(())
        }
        FieldKind::PrefixedBytes { prefix, order } | FieldKind::PrefixedText { prefix, order } => {
            let value = value_bytes(kind, value)?;
            push_integer(value.len() as i128, prefix, false, order, key).map_err(|_| "is too long".to_owned())?;
            key.extend_from_slice(&value);
            Ok(())
        }
        FieldKind::RestBytes | FieldKind::RestText | FieldKind::Json { .. } => {
            key.extend_from_slice(&value_bytes(kind, value)?);
            Ok(())
        }
    }
}

fn push_whole(number: i128, bytes: u8, is_signed: bool, order: ByteOrder, key: &mut Vec<u8>) -> Result<(), String> {
    push_integer(number, bytes, is_signed, order, key).map_err(|why| why.explain())
}

fn unit_name(unit: TimeUnit) -> &'static str {
    match unit {
        TimeUnit::Seconds => "seconds",
        TimeUnit::Millis => "milliseconds",
        TimeUnit::Micros => "microseconds",
    }
}

/// The bytes of a value of a string or of bytes, in which escapes stand.
fn value_bytes(kind: &FieldKind, value: &str) -> Result<Vec<u8>, String> {
    let bytes = escapes::unescape(value.as_bytes())?;
    match kind.scalar_type() {
        ScalarType::Text if std::str::from_utf8(&bytes).is_err() => Err("is not UTF-8".into()),
        _ => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(format: &str) -> KeyText {
        KeyText::new(Some(&Format::parse(format).unwrap()))
    }

    #[test]
    fn a_key_is_what_its_fields_say() {
        let key = |format: &str, key: &str| text(format).key(key);
        assert_eq!(key("key: id u32be", "258"), Ok(vec![0, 0, 1, 2]));
        assert_eq!(key("key: a i16le, b u24be", "-2, 65536"), Ok(vec![0xfe, 0xff, 1, 0, 0]));
        assert_eq!(key("key: a string8, b string", "ab,c,d"), Ok(b"\x02abc,d".to_vec()));
        assert_eq!(key("key: a string8, b string", "a\\x2cb,c"), Ok(b"\x03a,bc".to_vec()));
        assert_eq!(key("key: a string[4], b bool", "ab,true"), Ok(b"ab\0\0\x01".to_vec()));
        // An empty text is one field's value too.
        assert_eq!(key("key: a string8", ""), Ok(vec![0]));
        assert_eq!(key("key: a string[2]", ""), Ok(vec![0, 0]));
        assert_eq!(key("key: a string", ""), Ok(Vec::new()));
        assert_eq!(key("key: a u8, b u8?", "1"), Ok(vec![1]));
        assert_eq!(key("key: a json $.a int, b json $.b int", r#"{"a":1,"b":2}"#), Ok(br#"{"a":1,"b":2}"#.to_vec()));
        assert_eq!(key("value: a u8", "any, key"), Ok(b"any, key".to_vec()));
        assert_eq!(key("key: a f32be", "1.5"), Ok(1.5f32.to_be_bytes().to_vec()));
        let format = Format::parse("key: a seconds64be, b i64, c bytes16be").unwrap();
        let encoded = KeyText::new(Some(&format)).key("7,-9,xyz").unwrap();
        assert_eq!(FieldReader::new(&format).check(&encoded, b""), Ok(()));
        for (format, typed, why) in [
            ("key: id u8", "256", "is not from 0 to 255"),
            ("key: id u8", "", "the key's field id: \"\" is not a whole number"),
            ("key: x f64be", "1e400", "is larger than its type holds"),
            ("key: t seconds32be", "2000-01-01", "is not a whole number of seconds since 1970"),
            ("key: id u8", "x", "is not a whole number; or write its bytes as `tapetum list` prints them"),
            ("key: a u8, b u8", "1", "a key has the fields a, b"),
            ("key: a string[2]", "abc", "has more than 2 bytes"),
            ("key: a u8, b string", "\\q", "a backslash stands alone"),
        ] {
            assert!(key(format, typed).unwrap_err().contains(why), "{format} {typed}");
        }
    }

    #[test]
    fn a_key_with_escapes_is_the_bytes_that_list_prints() {
        let key = |format: &str, key: &str| text(format).key(key);
        assert_eq!(KeyText::of_bytes().key("a\\tb\\\\\\xff"), Ok(b"a\tb\\\xff".to_vec()));
        assert!(KeyText::of_bytes().key("a\\b").unwrap_err().contains("write it as \\\\"));
        assert_eq!(key("key: id u32be", "\\x00\\x00\\x00d"), Ok(vec![0, 0, 0, b'd']));
        // It does not fit, and may be there all the same.
        assert_eq!(key("key: id u32be", "\\xff"), Ok(vec![0xff]));
        assert_eq!(key("key: a string8", "\\x02ab"), Ok(b"\x02ab".to_vec()));
        assert_eq!(key("key: a string8", "\\x61"), Ok(b"a".to_vec()));
        assert_eq!(key("key: a string8", "a\\tb"), Ok(b"\x03a\tb".to_vec()));
        assert_eq!(key("key: k string", "C:\\\\x"), Ok(b"C:\\x".to_vec()));
    }

    #[test]
    fn a_prefix_and_a_bound_are_the_first_fields() {
        let pair = text("key: a u32be, b string[4]");
        assert_eq!(pair.prefix("7"), Ok(vec![0, 0, 0, 7]));
        assert_eq!(pair.prefix("\\x00\\x00d"), Ok(vec![0, 0, b'd']));
        assert_eq!(pair.prefix(""), Ok(Vec::new()));
        assert!(pair.prefix("7,").is_ok() && pair.prefix("x").is_err());
        let little = text("key: a u32");
        assert_eq!(little.prefix("7"), Ok(vec![7, 0, 0, 0]));
    }

    #[test]
    fn a_range_has_the_keys_whose_values_lie_in_it_or_is_refused() {
        let range = |format: &str, from: Option<&str>, to: Option<&str>| text(format).range(from, to);
        let pair = "key: a u32be, b string[4]";
        assert_eq!(range(pair, Some("7,xy"), None), Ok((b"\0\0\0\x07xy".to_vec(), None)));
        assert_eq!(range(pair, None, Some("7")), Ok((Vec::new(), Some(vec![0, 0, 0, 7]))));
        let signed = [
            ("key: k i32be", Some("0"), Some("5"), true),
            ("key: k i32be", Some("0"), None, false),
            ("key: k i32be", None, Some("5"), false),
            ("key: k i32be", Some("-5"), Some("5"), false),
            ("key: k f64be", Some("0.5"), Some("1e3"), true),
            ("key: t seconds32be", Some("1"), Some("2"), true),
            ("key: a u8, t seconds32be", Some("7,1"), Some("7,2"), true),
            ("key: a u8, t seconds32be", Some("7,1"), Some("8,2"), false),
            ("key: a u8, t seconds32be", Some("7"), Some("8"), true),
            ("key: a u8, t seconds32be", Some("7"), Some("7,2"), false),
            ("key: t seconds32be, a i8", Some("1,1"), Some("2,2"), false),
        ];
        for (format, from, to, is_right) in signed {
            let told = range(format, from, to);
            assert_eq!(told.is_ok(), is_right, "{format} {from:?} {to:?}");
            assert!(told.is_ok() || told.unwrap_err().contains("negative"));
        }
        let city = range("key: city string8", Some("Lyon"), Some("Paris")).unwrap_err();
        assert!(city.contains("its length stands before it") && city.contains("--where"), "{city}");
        assert!(range("key: a string8, b u8", Some("x,1"), Some("x,2")).is_ok(), "of one city");
        assert!(range("key: a u32", Some("7"), None).unwrap_err().contains("little-endian"));
        assert_eq!(range("key: a u32", Some("\\x07"), None), Ok((vec![7], None)));
    }

    #[test]
    fn a_key_is_printed_so_that_it_is_read_back() {
        let formats = [
            "key: id u32be",
            "key: k string",
            "key: a string8, b string",
            "key: a string[2], b bytes",
            "key: a u8, b u8?",
            "key: a json $.a int",
        ];
        let keys: [&[u8]; 9] =
            [b"1234", b"\0\0\0d", b"\x02abc,d", b"\xff", b"a,b", b"1", b"C:\\x", "1,\u{e9}\t".as_bytes(), b"ab\\,c"];
        for format in formats {
            for key in keys {
                let (texts, mut out) = (text(format), Vec::new());
                texts.print(key, &mut out);
                let printed = String::from_utf8(out).unwrap();
                assert_eq!(texts.key(&printed).as_deref(), Ok(key), "{format}: {printed}");
            }
        }
        let mut out = Vec::new();
        text("key: id u32be").print(b"1234", &mut out);
        assert_eq!(out, b"\\x31\\x32\\x33\\x34");
    }
}
