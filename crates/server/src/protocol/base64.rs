//! Base64 of keys, as memcached reads and writes it: bytes outside of the alphabet are skipped, padding is required, and bytes behind it
//! are ignored. Pure.

use super::KEY_BYTES_MAX;

/// Bytes that the longest key in base64 decodes to.
pub const DECODED_BYTES_MAX: usize = KEY_BYTES_MAX / 4 * 3;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Marks a byte that is not in the alphabet.
const NONE: u8 = 0x80;

/// The value of each byte; the pad is 0.
const VALUES: [u8; 256] = {
    let mut values = [NONE; 256];
    let mut at = 0;
    while at < ALPHABET.len() {
        values[ALPHABET[at] as usize] = at as u8;
        at += 1;
    }
    values[b'=' as usize] = 0;
    values
};

/// Decodes `text`, of at most [`KEY_BYTES_MAX`], into `out`. `None` if it is not base64, or decodes to nothing.
pub fn decode<'a>(text: &[u8], out: &'a mut [u8; DECODED_BYTES_MAX]) -> Option<&'a [u8]> {
    let letters = || text.iter().filter(|&&byte| VALUES[byte as usize] != NONE);
    let count = letters().count();
    if count == 0 || !count.is_multiple_of(4) {
        return None;
    }
    let mut letters = letters();
    let mut length = 0;
    while let (Some(&a), Some(&b), Some(&c), Some(&d)) =
        (letters.next(), letters.next(), letters.next(), letters.next())
    {
        let quad = [a, b, c, d];
        let bits = quad.iter().fold(0u32, |bits, &letter| bits << 6 | u32::from(VALUES[letter as usize]));
        out.get_mut(length..length + 3)?.copy_from_slice(&bits.to_be_bytes()[1..]);
        length += 3;
        match quad.iter().filter(|&&letter| letter == b'=').count() {
            0 => {}
            pads @ (1 | 2) => {
                length -= pads;
                break;
            }
            _ => return None,
        }
    }
    Some(&out[..length])
}

pub fn push(out: &mut Vec<u8>, bytes: &[u8]) {
    for triple in bytes.chunks(3) {
        let mut bits = [0; 4];
        bits[1..=triple.len()].copy_from_slice(triple);
        let bits = u32::from_be_bytes(bits);
        let letter =
            |at: usize| if at <= triple.len() { ALPHABET[(bits >> (18 - 6 * at) & 63) as usize] } else { b'=' };
        out.extend_from_slice(&[letter(0), letter(1), letter(2), letter(3)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decoded(text: &[u8]) -> Option<Vec<u8>> {
        decode(text, &mut [0; DECODED_BYTES_MAX]).map(<[u8]>::to_vec)
    }

    #[test]
    fn memcacheds_choices() {
        assert_eq!(decoded(b"Zm9v"), Some(b"foo".to_vec()));
        assert_eq!(decoded(b"aaa="), Some(vec![0x69, 0xa6]));
        assert_eq!(decoded(b"aa!a!a"), Some(vec![0x69, 0xa6, 0x9a]));
        assert_eq!(decoded(b"aaa=aaaa"), Some(vec![0x69, 0xa6]));
        assert_eq!(decoded(b"aa=a"), Some(vec![0x69, 0xa0]));
        for refused in [&b""[..], b"a", b"aa", b"aaaaa", b"a===", b"====", b"aaaa====", b"a-_a"] {
            assert_eq!(decoded(refused), None, "{refused:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(bytes in proptest::collection::vec(any::<u8>(), 1..=DECODED_BYTES_MAX)) {
            let mut text = Vec::new();
            push(&mut text, &bytes);
            prop_assert!(text.len() <= KEY_BYTES_MAX);
            prop_assert_eq!(decoded(&text), Some(bytes));
        }
    }
}
