//! Digests of objects: SHA-256, so that `sha256sum` of a pack prints its name.

use sha2::{Digest as _, Sha256};
use std::fmt;

pub const DIGEST_BYTES: usize = 32;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; DIGEST_BYTES]);

impl Digest {
    pub fn of(bytes: &[u8]) -> Digest {
        Digest(Sha256::digest(bytes).into())
    }

    /// As `Display` shows it.
    pub fn parse(text: &str) -> Option<Digest> {
        let mut bytes = [0; DIGEST_BYTES];
        let digits = text.as_bytes();
        let is_lower = digits.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
        if digits.len() != 2 * DIGEST_BYTES || !is_lower {
            return None;
        }
        for (byte, digits) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        }
        Some(Digest(bytes))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_sha_256_and_reads_back() {
        let shown = Digest::of(b"abc").to_string();
        assert_eq!(shown, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(Digest::parse(&shown), Some(Digest::of(b"abc")));
        assert_eq!((Digest::parse(&shown[1..]), Digest::parse(&shown.to_uppercase())), (None, None));
    }
}
