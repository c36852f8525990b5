//! A key as people type it: the values of its fields, with commas between them.

use tapetum_kernels::scan::Format;
use tapetum_kernels::scan::format::{ByteOrder, Field, FieldKind, Part};

/// The bytes of a key of this format.
///
/// # Errors
/// The first field whose value cannot be read.
pub fn encode(format: &Format, text: &str) -> Result<Vec<u8>, String> {
    let fields: Vec<&Field> = format.fields().iter().filter(|field| field.part == Part::Key).collect();
    // The last field may have commas of its own.
    let values: Vec<&str> = text.splitn(fields.len().max(1), ',').collect();
    if values.len() != fields.len() {
        let names: Vec<&str> = fields.iter().map(|field| &*field.name).collect();
        return Err(format!("a key has the fields {}: give their values, with commas between them", names.join(", ")));
    }
    let mut key = Vec::new();
    for (field, value) in fields.iter().zip(values) {
        encode_field(&field.kind, value, &mut key)
            .map_err(|why| format!("the key's field {}: {value:?} {why}", field.name))?;
    }
    Ok(key)
}

fn encode_field(kind: &FieldKind, value: &str, key: &mut Vec<u8>) -> Result<(), String> {
    let number = value.trim();
    let whole = || number.parse::<i128>().map_err(|_| "is not a whole number".to_owned());
    match *kind {
        FieldKind::Unsigned { bytes, order } => push_number(whole()?, (bytes, false), order, key),
        FieldKind::Signed { bytes, order } | FieldKind::Timestamp { bytes, order, .. } => {
            push_number(whole()?, (bytes, true), order, key)
        }
        FieldKind::Float { bytes, order } => {
            let number: f64 = number.parse().map_err(|_| "is not a number")?;
            let bits = if bytes == 4 { u64::from((number as f32).to_bits()) } else { number.to_bits() };
            push_bytes(bits, bytes, order, key);
            Ok(())
        }
        FieldKind::Bool => {
            key.push(number.parse::<bool>().map_err(|_| "is neither true nor false")?.into());
            Ok(())
        }
        FieldKind::FixedBytes(length) | FieldKind::FixedText(length) => {
            if value.len() > length as usize {
                return Err(format!("has more than {length} bytes"));
            }
            key.extend_from_slice(value.as_bytes());
            key.resize(key.len() + length as usize - value.len(), 0);
            Ok(())
        }
        FieldKind::PrefixedBytes { prefix, order } | FieldKind::PrefixedText { prefix, order } => {
            push_number(value.len() as i128, (prefix, false), order, key).map_err(|_| "is too long".to_owned())?;
            key.extend_from_slice(value.as_bytes());
            Ok(())
        }
        FieldKind::RestBytes | FieldKind::RestText => {
            key.extend_from_slice(value.as_bytes());
            Ok(())
        }
        FieldKind::Json { .. } => Err("is in JSON, and such keys cannot be typed here".into()),
    }
}

fn push_number(
    number: i128,
    (bytes, is_signed): (u8, bool),
    order: ByteOrder,
    key: &mut Vec<u8>,
) -> Result<(), String> {
    let bits = 8 * u32::from(bytes);
    let range = match is_signed {
        true => -(1i128 << (bits - 1))..1i128 << (bits - 1),
        false => 0..1i128 << bits,
    };
    if !range.contains(&number) {
        return Err(format!("is not from {} to {}", range.start, range.end - 1));
    }
    push_bytes(number as u64, bytes, order, key);
    Ok(())
}

fn push_bytes(number: u64, bytes: u8, order: ByteOrder, key: &mut Vec<u8>) {
    let bytes = usize::from(bytes);
    match order {
        ByteOrder::Little => key.extend_from_slice(&number.to_le_bytes()[..bytes]),
        ByteOrder::Big => key.extend_from_slice(&number.to_be_bytes()[8 - bytes..]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tapetum_kernels::scan::FieldReader;

    #[test]
    fn a_key_is_what_its_fields_say() {
        let key = |format: &str, text: &str| encode(&Format::parse(format).unwrap(), text);
        assert_eq!(key("key: id u32be", "258"), Ok(vec![0, 0, 1, 2]));
        assert_eq!(key("key: a i16le, b u24be", "-2, 65536"), Ok(vec![0xfe, 0xff, 1, 0, 0]));
        assert_eq!(key("key: a string8, b string", "ab,c,d"), Ok(b"\x02abc,d".to_vec()));
        assert_eq!(key("key: a string[4], b bool", "ab,true"), Ok(b"ab\0\0\x01".to_vec()));
        assert_eq!(key("value: a u8", "any, key"), Ok(b"any, key".to_vec()));
        assert_eq!(key("key: a f32be", "1.5"), Ok(1.5f32.to_be_bytes().to_vec()));
        let format = Format::parse("key: a seconds64be, b i64, c bytes16be").unwrap();
        let encoded = encode(&format, "7,-9,xyz").unwrap();
        assert_eq!(FieldReader::new(&format).check(&encoded, b""), Ok(()));
        for (format, text, why) in [
            ("key: id u8", "256", "is not from 0 to 255"),
            ("key: id u8", "x", "is not a whole number"),
            ("key: a u8, b u8", "1", "a key has the fields a, b"),
            ("key: a string[2]", "abc", "has more than 2 bytes"),
            ("key: a json $.a int", "1", "is in JSON"),
        ] {
            assert!(key(format, text).unwrap_err().contains(why), "{format} {text}");
        }
    }
}
