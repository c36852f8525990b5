//! The slot of a key in a cluster, as Redis Cluster has it: CRC-16 of the key, or of its hash tag, modulo 16,384.
//!
//! The hash tag is the text between the first `{` and the first `}` behind it, if it is not empty. Keys with the same
//! tag are in the same slot.

/// Slots of a cluster.
pub const CLUSTER_SLOTS: u16 = 1 << 14;

/// The slot of a key.
pub fn cluster_slot(key: &[u8]) -> u16 {
    crc16(hash_tag(key).unwrap_or(key)) % CLUSTER_SLOTS
}

fn hash_tag(key: &[u8]) -> Option<&[u8]> {
    let begin = key.iter().position(|byte| *byte == b'{')? + 1;
    let length = key[begin..].iter().position(|byte| *byte == b'}')?;
    (length > 0).then(|| &key[begin..begin + length])
}

/// The polynomial of CRC-16/XMODEM. The most significant bit is first, and nothing is reflected or inverted.
const POLYNOMIAL: u16 = 0x1021;

const TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut crc, mut bit) = ((byte as u16) << 8, 0);
        while bit < 8 {
            crc = if crc & 0x8000 != 0 { crc << 1 ^ POLYNOMIAL } else { crc << 1 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| crc << 8 ^ TABLE[usize::from((crc >> 8) as u8 ^ byte)])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected values are from the specification of Redis Cluster and its command `CLUSTER KEYSLOT`.
    #[test]
    fn sums_and_slots_are_those_that_redis_publishes() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        for (key, slot) in
            [("123456789", 12739), ("somekey", 11058), ("foo", 12182), ("bar", 5061), ("hello", 866), ("", 0)]
        {
            assert_eq!(cluster_slot(key.as_bytes()), slot, "{key}");
        }
        assert_eq!([&b"foo{hash_tag}"[..], b"bar{hash_tag}"].map(cluster_slot), [2515; 2]);
    }

    #[test]
    fn a_tag_is_between_the_first_brace_and_the_first_that_closes_it() {
        let same = |one: &str, other: &str| cluster_slot(one.as_bytes()) == cluster_slot(other.as_bytes());
        assert!(same("{user1000}.following", "{user1000}.followers") && same("{user1000}.following", "user1000"));
        assert!(same("foo{bar}{zap}", "bar") && same("foo{{bar}}zap", "{bar") && same("}{bar}", "bar"));
        // An empty tag does not count, even if another one follows it. Neither does an unclosed one.
        for key in ["foo{}{bar}", "{}bar", "foo{bar", "foo}bar{"] {
            assert_eq!(hash_tag(key.as_bytes()), None, "{key}");
        }
        assert_eq!(cluster_slot(b"foo{}{bar}"), crc16(b"foo{}{bar}") % CLUSTER_SLOTS);
    }
}
