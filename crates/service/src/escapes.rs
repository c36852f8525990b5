//! Bytes as text that a terminal shows, and back. Pure.

/// Appends `bytes` as text: control characters, backslashes and what is no UTF-8 as escapes.
pub fn escape(bytes: &[u8], out: &mut Vec<u8>) {
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '\t' => out.extend_from_slice(b"\\t"),
                '\n' => out.extend_from_slice(b"\\n"),
                '\r' => out.extend_from_slice(b"\\r"),
                '\\' => out.extend_from_slice(b"\\\\"),
                '\0'..' ' | '\x7f' => out.extend_from_slice(format!("\\x{:02x}", character as u32).as_bytes()),
                other => out.extend_from_slice(other.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        chunk.invalid().iter().for_each(|byte| out.extend_from_slice(format!("\\x{byte:02x}").as_bytes()));
    }
}

/// Bytes as text: see [`escape`].
pub fn escaped(bytes: &[u8]) -> String {
    let mut text = Vec::new();
    escape(bytes, &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

/// The bytes that [`escape`] wrote.
pub fn unescape(text: &[u8]) -> Result<Vec<u8>, String> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.iter().position(|&byte| byte == b'\\') {
        out.extend_from_slice(&rest[..at]);
        let (byte, taken) = match &rest[at + 1..] {
            [b't', ..] => (b'\t', 1),
            [b'n', ..] => (b'\n', 1),
            [b'r', ..] => (b'\r', 1),
            [b'\\', ..] => (b'\\', 1),
            [b'x', high, low, ..] => match (hex(*high), hex(*low)) {
                (Some(high), Some(low)) => (high << 4 | low, 3),
                _ => return Err("\\x needs two hexadecimal digits".into()),
            },
            _ => return Err("a backslash stands alone: write it as \\\\".into()),
        };
        out.push(byte);
        rest = &rest[at + 1 + taken..];
    }
    out.extend_from_slice(rest);
    Ok(out)
}

fn hex(digit: u8) -> Option<u8> {
    (digit as char).to_digit(16).map(|value| value as u8)
}

/// `text` as one word of a line, because clients split lines at spaces. White space, control characters and % are written as %XX, like keys
/// in `lru_crawler metadump`.
pub fn word(text: &str) -> String {
    let mut word = String::with_capacity(text.len());
    for character in text.chars() {
        match character.is_whitespace() || character.is_control() || character == '%' {
            true => character.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| word += &format!("%{byte:02X}")),
            false => word.push(character),
        }
    }
    word
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_word_whatever_is_in_it() {
        for (name, expected) in [
            ("default", "default"),
            ("a/b:c-\u{e9}", "a/b:c-\u{e9}"),
            ("my space", "my%20space"),
            ("100%", "100%25"),
            ("a\tb\u{a0}c\u{3000}d\n", "a%09b%C2%A0c%E3%80%80d%0A"),
        ] {
            assert_eq!(word(name), expected);
        }
    }
}
