//! The text protocol before a client has logged in, as memcached has it with `-Y`: a `set` of any key whose value is `user password`. Every
//! other line is refused. Unlike memcached, `noreply` is heeded: clients that send it by default would take the answer for another one's.
//! Pure: see the module above.

use tapetum_access::credentials::CREDENTIALS_BYTES_MAX;

use super::{number, text};

/// A line is not longer.
const LINE_BYTES_MAX: usize = 2048;

#[derive(Debug, PartialEq, Eq)]
pub enum TextLogin<'a> {
    /// A name and a password.
    Login {
        credentials: &'a [u8],
        noreply: bool,
    },
    /// The value does not end where it should, or is too long.
    Malformed,
    Quit,
    /// Anything else.
    Refused,
}

/// The next frame, and how many bytes it has; `Err` with a number when so many bytes must be there first. `None`: the line is too long.
pub fn parse(input: &[u8]) -> Option<Result<(TextLogin<'_>, usize), usize>> {
    let Some(end) = input.iter().take(LINE_BYTES_MAX).position(|byte| *byte == b'\n') else {
        return (input.len() < LINE_BYTES_MAX).then_some(Err(input.len() + 1));
    };
    let (line, behind) = (input[..end].strip_suffix(b"\r").unwrap_or(&input[..end]), end + 1);
    let words: Vec<&[u8]> = text::split(line).take(7).collect();
    let noreply = words.get(5) == Some(&&b"noreply"[..]);
    let value_bytes = match words[..] {
        [b"quit", ..] => return Some(Ok((TextLogin::Quit, behind))),
        [b"set", _, _, _, bytes, ..] => number::unsigned(bytes).and_then(|bytes| usize::try_from(bytes).ok()),
        _ => None,
    };
    let Some(value_bytes) = value_bytes else { return Some(Ok((TextLogin::Refused, behind))) };
    if value_bytes > CREDENTIALS_BYTES_MAX {
        return Some(Ok((TextLogin::Malformed, behind)));
    }
    let whole = behind + value_bytes + 2;
    if input.len() < whole {
        return Some(Err(whole));
    }
    let login = match input[behind..whole].strip_suffix(b"\r\n") {
        Some(credentials) => TextLogin::Login { credentials, noreply },
        None => TextLogin::Malformed,
    };
    Some(Ok((login, whole)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_a_login_and_all_else_is_refused() {
        let login = b"set auth 0 0 9\r\nalice abc\r\nget a\r\n";
        let whole = login.len() - b"get a\r\n".len();
        assert_eq!(parse(login), Some(Ok((TextLogin::Login { credentials: b"alice abc", noreply: false }, whole))));
        let quiet = TextLogin::Login { credentials: b"a b", noreply: true };
        assert_eq!(parse(b"set x 0 0 3 noreply\r\na b\r\n"), Some(Ok((quiet, 26))));
        for length in 0..whole {
            assert!(
                matches!(parse(&login[..length]), Some(Err(needed)) if needed > length && needed <= whole),
                "{length}"
            );
        }
        for line in [&b"get a\r\n"[..], b"\r\n", b"mn\r\n", b"set a 0 0 x\r\n", b"set a 0 0\r\n", b"stats\n", b"\xff\n"]
        {
            assert_eq!(parse(line), Some(Ok((TextLogin::Refused, line.len()))), "{line:?}");
        }
        assert_eq!(parse(b"quit\r\n"), Some(Ok((TextLogin::Quit, 6))));
        assert_eq!(parse(b"set a 0 0 3\r\nabcdef\r\n"), Some(Ok((TextLogin::Malformed, 18))));
        assert_eq!(parse(b"set a 0 0 1000000\r\n"), Some(Ok((TextLogin::Malformed, 19))));
        assert_eq!(parse(&[b'x'; LINE_BYTES_MAX]), None);
    }
}
