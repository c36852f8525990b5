//! SHA-256 of bytes that come in parts.

use sha2::Digest;

pub const SHA256_BYTES: usize = 32;

#[derive(Clone, Default)]
pub struct Sha256(sha2::Sha256);

impl Sha256 {
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub fn finish(self) -> [u8; SHA256_BYTES] {
        self.0.finalize().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_make_the_published_digest() {
        let mut digest = Sha256::default();
        digest.update(b"a");
        digest.update(b"bc");
        let hex: String = digest.finish().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }
}
