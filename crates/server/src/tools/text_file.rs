//! How a text file begins: editors and spreadsheets write a byte order mark in front of the text.

use std::io::{BufRead, Read};

const UTF8_MARK: &[u8] = b"\xef\xbb\xbf";
/// The longest first: that of UTF-32 begins like that of UTF-16.
const OTHER_MARKS: [(&[u8], &str); 4] = [
    (b"\xff\xfe\0\0", "UTF-32LE"),
    (b"\0\0\xfe\xff", "UTF-32BE"),
    (b"\xff\xfe", "UTF-16LE"),
    (b"\xfe\xff", "UTF-16BE"),
];
const MARK_BYTES_MAX: usize = 4;

/// The text behind the mark of UTF-8, if there is one.
///
/// # Errors
/// The advice for a text that is in UTF-16 or UTF-32.
pub fn behind_mark(text: &[u8]) -> Result<&[u8], String> {
    match OTHER_MARKS.iter().find(|(mark, _)| text.starts_with(mark)) {
        None => Ok(text.strip_prefix(UTF8_MARK).unwrap_or(text)),
        // Named without its byte order, iconv leaves the mark out.
        Some((_, name)) => Err(format!(
            "the text begins with the byte order mark of {name}: convert it to UTF-8 first, with `iconv -f {} -t UTF-8 FILE`",
            &name[..6]
        )),
    }
}

/// Puts the mark of UTF-8 behind, if the input begins with it; the bytes that were taken so, which are the beginning of the text.
///
/// # Errors
/// As [`behind_mark`], and of the input.
pub fn take_mark(input: &mut impl BufRead) -> Result<Vec<u8>, String> {
    let mut begin = Vec::new();
    input.take(MARK_BYTES_MAX as u64).read_to_end(&mut begin).map_err(|error| error.to_string())?;
    behind_mark(&begin).map(<[u8]>::to_vec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_of_utf_8_is_left_out_and_others_are_named() {
        assert_eq!(behind_mark(b"\xef\xbb\xbfkey\t1"), Ok(&b"key\t1"[..]));
        assert_eq!(behind_mark(b"key\xef\xbb\xbf"), Ok(&b"key\xef\xbb\xbf"[..]));
        assert_eq!(behind_mark(b"\xef\xbb"), Ok(&b"\xef\xbb"[..]), "half of a mark is none");
        for (text, name) in [
            (&b"\xff\xfek\0"[..], "UTF-16LE: convert it to UTF-8 first, with `iconv -f UTF-16 "),
            (b"\xfe\xff\0k", "UTF-16BE"),
            (b"\xff\xfe\0\0k\0\0\0", "UTF-32LE"),
            (b"\0\0\xfe\xff", "UTF-32BE"),
        ] {
            let error = behind_mark(text).unwrap_err();
            assert!(error.contains(name), "{error}");
        }
    }

    #[test]
    fn an_input_goes_on_behind_what_was_taken() {
        for (mut input, begin) in [(&b"\xef\xbb\xbfkey"[..], &b"k"[..]), (b"ke", b"ke"), (b"", b"")] {
            assert_eq!(take_mark(&mut input).unwrap(), begin);
        }
    }
}
