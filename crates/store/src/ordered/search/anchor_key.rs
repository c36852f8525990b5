//! An anchor's bytes in a buffer of fixed size, so that no query allocates.

use super::KEY_BYTES_MAX;
use std::fmt;
use std::ops::Deref;

/// The bytes of an anchor, 0 to 1,024 of them.
#[derive(Clone)]
pub struct AnchorKey {
    bytes: [u8; KEY_BYTES_MAX],
    len: usize,
}

impl AnchorKey {
    /// The empty key.
    pub const fn new() -> AnchorKey {
        AnchorKey { bytes: [0; KEY_BYTES_MAX], len: 0 }
    }

    /// A copy of `key`, which is no longer than an anchor can be.
    pub fn of(key: &[u8]) -> AnchorKey {
        let mut anchor = AnchorKey::new();
        anchor.set(key);
        anchor
    }

    /// Becomes a copy of `key`, which is no longer than an anchor can be.
    pub fn set(&mut self, key: &[u8]) {
        self.clear();
        self.append(key);
    }

    pub(super) fn clear(&mut self) {
        self.len = 0;
    }

    pub(super) fn append(&mut self, piece: &[u8]) {
        self.bytes[self.len..][..piece.len()].copy_from_slice(piece);
        self.len += piece.len();
    }
}

impl Default for AnchorKey {
    fn default() -> AnchorKey {
        AnchorKey::new()
    }
}

impl Deref for AnchorKey {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl fmt::Debug for AnchorKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.escape_ascii())
    }
}
