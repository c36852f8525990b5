//! Items as lines of text, for `load`, `list` and `dump`: what one prints, another reads.
//!
//! ```text
//! TSV          key TAB value                 a tab, line end, return or backslash is \t \n \r \\, any byte \xHH
//! JSON lines   {"key":"k","value":"v","flags":0,"expiry":0}     the last two may be left out; key_base64 and
//!                                                               value_base64 for what is no text
//! ```
//! An expiry is in unix seconds, also with a fraction to the millisecond; 0 is never. Pure.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::Value;
use tapetum::Expiry;
use tapetum_service::escapes::{escape, unescape};
use tapetum_service::reply::ItemRow;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// key TAB value, with \t \n \r \\ and \xHH for what cannot stand there
    Tsv,
    /// JSON lines: {"key":"k","value":"v","flags":0,"expiry":0}
    Jsonl,
}

impl Format {
    /// The format that a file's name ends with.
    pub fn of_name(path: &std::path::Path) -> Option<Format> {
        match path.extension()?.to_str()? {
            "tsv" | "txt" => Some(Format::Tsv),
            "jsonl" | "ndjson" | "json" => Some(Format::Jsonl),
            _ => None,
        }
    }
}

/// Reads one line, without its end. The error says what is wrong with it.
pub fn parse(format: Format, line: &[u8]) -> Result<ItemRow, String> {
    let item = match format {
        Format::Tsv => parse_tsv(line)?,
        Format::Jsonl => parse_json(line)?,
    };
    if item.key.is_empty() { Err("the key is empty".into()) } else { Ok(item) }
}

/// Appends one line, with its end. TSV has no place for flags and expiry.
pub fn write(format: Format, item: &ItemRow, out: &mut Vec<u8>) {
    match format {
        Format::Tsv => {
            escape(&item.key, out);
            out.push(b'\t');
            escape(&item.value, out);
        }
        Format::Jsonl => {
            out.push(b'{');
            write_member("key", &item.key, out);
            out.push(b',');
            write_member("value", &item.value, out);
            if item.flags != 0 {
                out.extend_from_slice(format!(",\"flags\":{}", item.flags).as_bytes());
            }
            if !item.expiry.is_none() {
                out.extend_from_slice(format!(",\"expiry\":{}", item.expiry).as_bytes());
            }
            out.push(b'}');
        }
    }
    out.push(b'\n');
}

fn write_member(name: &str, bytes: &[u8], out: &mut Vec<u8>) {
    let member = match std::str::from_utf8(bytes) {
        Ok(text) => format!("\"{name}\":{}", Value::from(text)),
        Err(_) => format!("\"{name}_base64\":\"{}\"", BASE64.encode(bytes)),
    };
    out.extend_from_slice(member.as_bytes());
}

fn parse_tsv(line: &[u8]) -> Result<ItemRow, String> {
    let mut fields = line.split(|&byte| byte == b'\t');
    match (fields.next(), fields.next(), fields.next()) {
        (Some(key), Some(value), None) => {
            Ok(ItemRow { key: unescape(key)?, value: unescape(value)?, ..ItemRow::default() })
        }
        (_, None, _) => Err("there is no tab between key and value".into()),
        _ => Err("there is more than one tab: write a tab in a value as \\t".into()),
    }
}

fn parse_json(line: &[u8]) -> Result<ItemRow, String> {
    let value: Value = serde_json::from_slice(line).map_err(|error| format!("that is no JSON: {error}"))?;
    let Value::Object(members) = value else { return Err("that is no JSON object".into()) };
    let (mut key, mut value) = (None, None);
    let mut item = ItemRow::default();
    for (name, member) in &members {
        match name.as_str() {
            "key" => set_once(&mut key, name, text(name, member)?)?,
            "key_base64" => set_once(&mut key, name, base64(name, member)?)?,
            "value" => set_once(&mut value, name, text(name, member)?)?,
            "value_base64" => set_once(&mut value, name, base64(name, member)?)?,
            "flags" => item.flags = number(name, member)?,
            "expiry" => item.expiry = expiry(name, member)?,
            _ => return Err(format!("there is no member {name:?}: use key, value, flags, expiry, value_base64")),
        }
    }
    item.key = key.ok_or("there is no \"key\"")?;
    item.value = value.ok_or("there is no \"value\"")?;
    Ok(item)
}

fn set_once(place: &mut Option<Vec<u8>>, name: &str, bytes: Vec<u8>) -> Result<(), String> {
    match place.replace(bytes) {
        None => Ok(()),
        Some(_) => Err(format!("{} is given twice", name.trim_end_matches("_base64"))),
    }
}

fn text(name: &str, member: &Value) -> Result<Vec<u8>, String> {
    match member {
        Value::String(text) => Ok(text.as_bytes().to_vec()),
        _ => Err(format!("{name:?} is not a string: put it into quotes")),
    }
}

fn base64(name: &str, member: &Value) -> Result<Vec<u8>, String> {
    BASE64.decode(text(name, member)?).map_err(|error| format!("{name:?} is not base64: {error}"))
}

fn number(name: &str, member: &Value) -> Result<u32, String> {
    let number = member.as_u64().and_then(|number| u32::try_from(number).ok());
    number.ok_or_else(|| format!("{name:?} is not a whole number from 0 to 4294967295"))
}

fn expiry(name: &str, member: &Value) -> Result<Expiry, String> {
    let millis = member.as_f64().map(|seconds| (seconds * 1000.0).round());
    let millis = millis.filter(|millis| (0.0..Expiry::NEVER.millis() as f64).contains(millis));
    let seconds_max = Expiry::NEVER.millis() / 1000;
    millis
        .map(|millis| Expiry::from_millis(millis as u64))
        .ok_or_else(|| format!("{name:?} is not a number of unix seconds from 0 to {seconds_max}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_what_people_write() {
        let item = |key: &[u8], value: &[u8]| ItemRow { key: key.into(), value: value.into(), ..ItemRow::default() };
        let tsv = |line: &[u8]| parse(Format::Tsv, line);
        assert_eq!(tsv(b"k\tv"), Ok(item(b"k", b"v")));
        assert_eq!(tsv(b"a key\t"), Ok(item(b"a key", b"")));
        assert_eq!(tsv(b"k\\\\\ta\\tb\\nc\\r\\x00\\xFf"), Ok(item(b"k\\", b"a\tb\nc\r\0\xff")));
        let json = |line: &str| parse(Format::Jsonl, line.as_bytes());
        assert_eq!(json(r#"{"key":"k","value":"ä\n"}"#), Ok(item(b"k", "ä\n".as_bytes())));
        let full = ItemRow { flags: 7, expiry: Expiry::from_secs(1_800_000_000), ..item(b"k", b"\0\xff") };
        let parts = ItemRow { expiry: Expiry::from_millis(1_800_000_000_250), ..full.clone() };
        assert_eq!(json(r#"{"expiry":1800000000.25,"flags":7,"key":"k","value_base64":"AP8="}"#), Ok(parts));
        assert_eq!(json(r#"{"expiry":1800000000,"flags":7,"key":"k","value_base64":"AP8="}"#), Ok(full));
    }

    #[test]
    fn says_what_is_wrong() {
        for (format, line, part) in [
            (Format::Tsv, "key", "no tab"),
            (Format::Tsv, "k\ta\tb", "more than one tab"),
            (Format::Tsv, "\tv", "key is empty"),
            (Format::Tsv, "k\ta\\", "backslash stands alone"),
            (Format::Tsv, "k\t\\xg0", "two hexadecimal digits"),
            (Format::Jsonl, "k\tv", "no JSON"),
            (Format::Jsonl, "[1]", "no JSON object"),
            (Format::Jsonl, r#"{"key":"k"}"#, "no \"value\""),
            (Format::Jsonl, r#"{"key":"k","value":1}"#, "put it into quotes"),
            (Format::Jsonl, r#"{"key":"k","value":"v","flag":1}"#, "no member \"flag\""),
            (Format::Jsonl, r#"{"key":"k","value":"v","value_base64":""}"#, "twice"),
            (Format::Jsonl, r#"{"key":"k","value_base64":"%"}"#, "not base64"),
            (Format::Jsonl, r#"{"key":"k","value":"v","flags":-1}"#, "whole number"),
            (Format::Jsonl, r#"{"key":"k","value":"v","expiry":-1}"#, "unix seconds from 0"),
        ] {
            let error = parse(format, line.as_bytes()).unwrap_err();
            assert!(error.contains(part), "{line}: {error}");
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_is_read_back(
            key in proptest::collection::vec(any::<u8>(), 1..40),
            value in proptest::collection::vec(any::<u8>(), 0..80),
            text in "\\PC*",
            flags: u32,
            expiry: u64,
        ) {
            let expiry = Expiry::from_millis(expiry >> 16);
            for value in [value, text.into_bytes()] {
                let item = ItemRow { key: key.clone(), value, flags, expiry };
                let mut out = Vec::new();
                write(Format::Jsonl, &item, &mut out);
                prop_assert_eq!(parse(Format::Jsonl, &out[..out.len() - 1]), Ok(item.clone()));
                out.clear();
                write(Format::Tsv, &item, &mut out);
                let end = out.len() - 1;
                prop_assert_eq!(out.iter().position(|&byte| byte == b'\n'), Some(end));
                prop_assert_eq!(parse(Format::Tsv, &out[..end]), Ok(ItemRow { flags: 0, expiry: Expiry::NONE, ..item }));
            }
        }
    }
}
