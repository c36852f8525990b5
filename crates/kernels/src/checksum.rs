//! Salted CRC-32C: the checksum of every independently read unit.
//!
//! The salt says *which* unit this should be (the store, where the unit lies, and the version of what it belongs to), so
//! that intact bytes in the wrong place, from an older tenant of the same flash or from another store do not pass.

/// What a unit's checksum is bound to, besides its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Salt {
    /// The id of the store.
    pub store: u64,
    /// Where the unit lies on flash.
    pub address: u64,
    /// The version of the segment, node or log that the unit belongs to.
    pub version: u64,
}

/// CRC-32C over the salt (three little-endian words) and then the parts, as if they were one run of bytes.
#[inline]
pub fn checksum(salt: Salt, parts: &[&[u8]]) -> u32 {
    let mut salted = [0u8; 24];
    salted[..8].copy_from_slice(&salt.store.to_le_bytes());
    salted[8..16].copy_from_slice(&salt.address.to_le_bytes());
    salted[16..].copy_from_slice(&salt.version.to_le_bytes());
    parts.iter().fold(crc32c::crc32c(&salted), |crc, part| crc32c::crc32c_append(crc, part))
}

/// CRC-32C of what `crc` is of, and `bytes` behind it. Of nothing it is 0.
#[inline]
pub fn crc32c_append(crc: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc, bytes)
}

/// [`checksum`] of a unit that lies in one piece.
#[inline]
pub fn crc32c_salted(salt: Salt, bytes: &[u8]) -> u32 {
    checksum(salt, &[bytes])
}

#[cfg(test)]
mod tests {
    use super::*;

    const SALT: Salt = Salt { store: 0x1122334455667788, address: 4096, version: 7 };

    #[test]
    fn is_crc32c_of_the_salt_and_the_bytes() {
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283, "the standard's check value");
        let mut all = Vec::new();
        all.extend_from_slice(&SALT.store.to_le_bytes());
        all.extend_from_slice(&SALT.address.to_le_bytes());
        all.extend_from_slice(&SALT.version.to_le_bytes());
        all.extend_from_slice(b"123456789");
        assert_eq!(crc32c_salted(SALT, b"123456789"), crc32c::crc32c(&all));
    }

    #[test]
    fn where_the_parts_are_cut_does_not_matter() {
        assert_eq!(checksum(SALT, &[b"12345", b"", b"6789"]), crc32c_salted(SALT, b"123456789"));
        assert_eq!(checksum(SALT, &[]), crc32c_salted(SALT, b""));
    }

    #[test]
    fn each_word_of_the_salt_matters() {
        let sum = crc32c_salted(SALT, b"record");
        assert_ne!(sum, crc32c_salted(Salt { store: 1, ..SALT }, b"record"));
        assert_ne!(sum, crc32c_salted(Salt { address: 8192, ..SALT }, b"record"));
        assert_ne!(sum, crc32c_salted(Salt { version: 8, ..SALT }, b"record"));
    }
}
