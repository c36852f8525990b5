//! Salted CRC-32C: the checksum of every independently read unit.
//!
//! The salt says *which* unit this should be (the store, where the unit lies, and the version of what it belongs to), so
//! that intact bytes in the wrong place, from an older tenant of the same flash or from another store do not pass.

/// The values that a unit's checksum is bound to, besides its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Salt {
    /// The id of the store.
    pub store: u64,
    /// The unit's address on flash.
    pub address: u64,
    /// The version of the segment, node or log that the unit belongs to.
    pub version: u64,
}

/// CRC-32C over the salt (three little-endian words) and then the parts, as if they were one run of bytes.
#[inline]
pub fn checksum(salt: Salt, parts: &[&[u8]]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if let [part] = parts
        && part.len() < SHORT_BYTES_MAX
        && is_x86_feature_detected!("sse4.2")
    {
        // SAFETY: the processor has what it needs.
        return unsafe { checksum_short(salt, part) };
    }
    let mut salted = [0u8; 24];
    salted[..8].copy_from_slice(&salt.store.to_le_bytes());
    salted[8..16].copy_from_slice(&salt.address.to_le_bytes());
    salted[16..].copy_from_slice(&salt.version.to_le_bytes());
    parts.iter().fold(crc32c_append(0, &salted), |crc, part| crc32c_append(crc, part))
}

/// Inputs of fewer bytes take less time in one stream than in the crate's three parallel streams.
const SHORT_BYTES_MAX: usize = 768;

/// Continues `crc`, the CRC-32C of the bytes before, with `bytes`. The CRC-32C of no bytes is 0.
#[inline]
pub fn crc32c_append(crc: u32, bytes: &[u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if bytes.len() < SHORT_BYTES_MAX && is_x86_feature_detected!("sse4.2") {
        // SAFETY: the processor has what it needs.
        return unsafe { append_short(crc, bytes) };
    }
    crc32c::crc32c_append(crc, bytes)
}

/// [`checksum`] of a short unit: its salt is summed as the words that it is.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "sse4.2")]
fn checksum_short(salt: Salt, part: &[u8]) -> u32 {
    use std::arch::x86_64::_mm_crc32_u64;
    let words = [salt.store, salt.address, salt.version];
    let crc = words.iter().fold(u64::from(u32::MAX), |crc, word| _mm_crc32_u64(crc, *word));
    append_short(!(crc as u32), part)
}

/// Sums short inputs, such as records. The crate goes byte by byte before the first aligned address and behind the last
/// one, fourteen bytes at worst.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "sse4.2")]
fn append_short(crc: u32, bytes: &[u8]) -> u32 {
    use std::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u16, _mm_crc32_u32, _mm_crc32_u64};
    let (words, rest) = bytes.as_chunks();
    let crc = words.iter().fold(u64::from(!crc), |crc, word| _mm_crc32_u64(crc, u64::from_le_bytes(*word)));
    let (words, rest) = rest.as_chunks();
    let crc = words.iter().fold(crc as u32, |crc, word| _mm_crc32_u32(crc, u32::from_le_bytes(*word)));
    let (words, rest) = rest.as_chunks();
    let crc = words.iter().fold(crc, |crc, word| _mm_crc32_u16(crc, u16::from_le_bytes(*word)));
    !rest.iter().fold(crc, |crc, byte| _mm_crc32_u8(crc, *byte))
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
    fn of_every_length_at_every_place_it_is_the_crates() {
        let bytes: Vec<u8> = (0..SHORT_BYTES_MAX + 40).map(|number| (number * 7 + number / 256) as u8).collect();
        let lengths = (0..40).chain([100, 118, 255, SHORT_BYTES_MAX - 1, SHORT_BYTES_MAX, SHORT_BYTES_MAX + 1]);
        for length in lengths {
            for from in 0..16 {
                let part = &bytes[from..from + length];
                assert_eq!(crc32c_append(77, part), crc32c::crc32c_append(77, part), "{length} bytes from {from} on");
            }
        }
    }

    #[test]
    fn of_one_part_of_any_length_it_is_that_of_its_bytes_in_two() {
        let bytes: Vec<u8> = (0..SHORT_BYTES_MAX + 9).map(|number| (number * 11) as u8).collect();
        for length in (0..40).chain([100, 255, SHORT_BYTES_MAX - 1, SHORT_BYTES_MAX, SHORT_BYTES_MAX + 9]) {
            let (front, back) = bytes[..length].split_at(length / 3);
            assert_eq!(checksum(SALT, &[&bytes[..length]]), checksum(SALT, &[front, back]), "{length} bytes");
        }
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
