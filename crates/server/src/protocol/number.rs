//! Numbers of the text protocol, read as C reads them: white space before, a sign, digits, then the end, white space or a
//! NUL.
//! What C would cut off silently, an overflow, is refused.

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | 0x0b | 0x0c | b'\r')
}

/// Sign and magnitude.
fn magnitude(token: &[u8]) -> Option<(bool, u64)> {
    let start = token.iter().position(|&byte| !is_space(byte))?;
    let mut rest = &token[start..];
    let negative = rest[0] == b'-';
    if negative || rest[0] == b'+' {
        rest = &rest[1..];
    }
    let digits = rest.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len());
    if digits == 0 || rest.get(digits).is_some_and(|&byte| !is_space(byte) && byte != 0) {
        return None;
    }
    let mut value: u64 = 0;
    for &digit in &rest[..digits] {
        value = value.checked_mul(10)?.checked_add(u64::from(digit - b'0'))?;
    }
    Some((negative, value))
}

pub fn unsigned(token: &[u8]) -> Option<u64> {
    match magnitude(token)? {
        (true, 1..) => None,
        (_, value) => Some(value),
    }
}

pub fn signed(token: &[u8]) -> Option<i64> {
    match magnitude(token)? {
        (false, value) => i64::try_from(value).ok(),
        (true, value) => 0i64.checked_sub_unsigned(value),
    }
}

pub fn flags(token: &[u8]) -> Option<u32> {
    unsigned(token).and_then(|value| u32::try_from(value).ok())
}

/// The length of a value: the largest that memcached takes for one, whose own arithmetic is 32 bits wide.
pub fn length_bytes(token: &[u8]) -> Option<usize> {
    signed(token).filter(|length| (0..=i64::from(i32::MAX) - 2).contains(length)).map(|length| length as usize)
}

/// An expiry or a delay: anything down to the least 32-bit number (the past), up to the last 32-bit unix second but one.
/// The last one is -1: libmemcached holds -1 in 32 bits without a sign, and writes it so.
pub fn seconds(token: &[u8]) -> Option<i64> {
    match signed(token)? {
        LAST_SECOND => Some(-1),
        value => (i64::from(i32::MIN)..LAST_SECOND).contains(&value).then_some(value),
    }
}

const LAST_SECOND: i64 = u32::MAX as i64;

pub fn push_decimal(out: &mut Vec<u8>, value: u64) {
    let mut digits = [0u8; 20];
    let mut start = digits.len();
    let mut rest = value;
    loop {
        start -= 1;
        digits[start] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[start..]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_what_c_reads() {
        assert_eq!(unsigned(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(unsigned(b"18446744073709551616"), None);
        assert_eq!(unsigned(b"+12"), Some(12));
        assert_eq!(unsigned(b"\t12\x0b9"), Some(12));
        assert_eq!(unsigned(b"12\0"), Some(12));
        assert_eq!(unsigned(b"-0"), Some(0));
        assert_eq!(unsigned(b"-1"), None);
        assert_eq!(unsigned(b"12a"), None);
        assert_eq!(unsigned(b"0x10"), None);
        assert_eq!(unsigned(b""), None);
        assert_eq!(unsigned(b"-"), None);
        assert_eq!(unsigned(b"+ 1"), None);
        assert_eq!(signed(b"-9223372036854775808"), Some(i64::MIN));
        assert_eq!(signed(b"-9223372036854775809"), None);
        assert_eq!(flags(b"4294967296"), None);
        assert_eq!(seconds(b"4294967294"), Some(4_294_967_294));
        assert_eq!(seconds(b"4294967295"), Some(-1));
        assert_eq!(seconds(b"4000000000"), Some(4_000_000_000));
        assert_eq!(seconds(b"4294967296"), None);
        assert_eq!(seconds(b"-2147483649"), None);
    }

    proptest! {
        #[test]
        fn decimal_round_trips(value: u64) {
            let mut out = Vec::new();
            push_decimal(&mut out, value);
            prop_assert_eq!(&out, &value.to_string().into_bytes());
            prop_assert_eq!(unsigned(&out), Some(value));
        }

        #[test]
        fn never_panics(token: Vec<u8>) {
            let _ = (unsigned(&token), signed(&token), flags(&token), seconds(&token));
        }
    }
}
