//! Names and passwords, as protocols write them. Pure.
//!
//! | form | where |
//! |---|---|
//! | `user:password` in base64 behind `Basic` | HTTP, Flight |
//! | `authorize NUL user NUL password` | memcached's binary protocol: SASL PLAIN ([RFC 4616](https://www.rfc-editor.org/rfc/rfc4616)) |
//! | `user password` | memcached's text protocol, as the value of a `set` |

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use zeroize::Zeroizing;

use crate::password::{PASSWORD_BYTES_MAX, Password, PasswordError};

/// As Basic has it. Clients of Flight in Go leave the padding out.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);
/// A name and a password in any form are not longer.
pub const CREDENTIALS_BYTES_MAX: usize = 2 * (PASSWORD_BYTES_MAX + 256);

/// A name and a password, as somebody gives them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    pub name: String,
    pub password: Password,
}

/// They make no sense; neither name nor password is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoCredentials;

impl From<PasswordError> for NoCredentials {
    fn from(_: PasswordError) -> NoCredentials {
        NoCredentials
    }
}

impl Credentials {
    /// Reads the value of HTTP's `authorization`.
    ///
    /// # Errors
    /// If it is none of Basic's.
    pub fn of_basic(value: &[u8]) -> Result<Credentials, NoCredentials> {
        if value.len() > CREDENTIALS_BYTES_MAX {
            return Err(NoCredentials);
        }
        let (scheme, text) = value.split_at_checked(6).ok_or(NoCredentials)?;
        if !scheme.eq_ignore_ascii_case(b"basic ") {
            return Err(NoCredentials);
        }
        let decoded = Zeroizing::new(BASE64.decode(text.trim_ascii()).map_err(|_| NoCredentials)?);
        Credentials::split(&decoded, b':')
    }

    /// Reads the message of SASL PLAIN.
    ///
    /// # Errors
    /// If it is none, or somebody wants to be another user.
    pub fn of_plain(message: &[u8]) -> Result<Credentials, NoCredentials> {
        let at = message.iter().position(|byte| *byte == 0).ok_or(NoCredentials)?;
        let (authorize, behind) = (&message[..at], &message[at + 1..]);
        let credentials = Credentials::split(behind, 0)?;
        let is_self = authorize.is_empty() || authorize == credentials.name.as_bytes();
        if is_self && !credentials.password.bytes().contains(&0) { Ok(credentials) } else { Err(NoCredentials) }
    }

    /// Reads the value of the text protocol's `set`.
    ///
    /// # Errors
    /// If it is none.
    pub fn of_words(value: &[u8]) -> Result<Credentials, NoCredentials> {
        Credentials::split(value, b' ')
    }

    fn split(text: &[u8], separator: u8) -> Result<Credentials, NoCredentials> {
        let at = text.iter().position(|byte| *byte == separator).ok_or(NoCredentials)?;
        let name = str::from_utf8(&text[..at]).map_err(|_| NoCredentials)?;
        Ok(Credentials { name: name.into(), password: Password::new(&text[at + 1..])? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credentials(name: &str, password: &str) -> Result<Credentials, NoCredentials> {
        Ok(Credentials { name: name.into(), password: Password::new(password.as_bytes()).unwrap() })
    }

    #[test]
    fn each_form_is_read() {
        assert_eq!(Credentials::of_basic(b"Basic YWxpY2U6b3Blbjpzw6lzYW1l"), credentials("alice", "open:s\u{e9}same"));
        assert_eq!(Credentials::of_basic(b"basic  YWxpY2U6eA== "), credentials("alice", "x"));
        assert_eq!(Credentials::of_basic(b"Basic YWxpY2U6eA"), credentials("alice", "x"), "as Go writes it");
        assert_eq!(Credentials::of_plain(b"\0alice\0open sesame"), credentials("alice", "open sesame"));
        assert_eq!(Credentials::of_plain(b"alice\0alice\0x"), credentials("alice", "x"));
        assert_eq!(Credentials::of_words(b"alice open sesame"), credentials("alice", "open sesame"));
    }

    #[test]
    fn what_is_none_of_them_is_refused() {
        for value in
            [&b""[..], b"Basic", b"Basic ", b"Basic !!!", b"Bearer YWxpY2U6eA==", b"Basic YWxpY2U=", b"Basic YWxpY2U6"]
        {
            assert_eq!(Credentials::of_basic(value), Err(NoCredentials), "{value:?}");
        }
        let long = [b"Basic ", &vec![b'A'; 1 << 20][..]].concat();
        assert_eq!(Credentials::of_basic(&long), Err(NoCredentials));
        for message in [&b""[..], b"\0", b"\0alice", b"\0alice\0", b"bob\0alice\0x", b"\0alice\0x\0y", b"\0\xff\0x"] {
            assert_eq!(Credentials::of_plain(message), Err(NoCredentials), "{message:?}");
        }
        for value in [&b"alice"[..], b"alice ", b"", &[b'x'; 2000]] {
            assert_eq!(Credentials::of_words(value), Err(NoCredentials));
        }
    }
}
