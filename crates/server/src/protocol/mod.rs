//! The memcached protocols, text and binary. A parser takes bytes, and gives one frame, *need more*, or close.
//!
//! Parsers are pure. They allocate nothing, read only the bytes they are given, and check every length before anyone allocates for it. Any
//! split of the input gives the same frames, because a frame is parsed only from its first byte. The first byte of a connection decides its
//! protocol: 0x80 is binary.

pub mod base64;
pub mod binary;
pub mod dump;
pub mod kinds;
pub mod login;
pub mod many_keys;
pub mod meta;
pub mod meta_reply;
pub mod number;
pub mod reply;
pub mod text;

use tapetum::Expiry;

/// The longest key that either protocol carries.
pub const KEY_BYTES_MAX: usize = 250;

/// The answer to `version`. Clients derive a server's features from the number in front: it is the version of memcached that this server
/// behaves like.
pub const VERSION: &str = concat!("1.6.18-tapetum-", env!("CARGO_PKG_VERSION"));

/// The first byte of a binary request.
pub const BINARY_MAGIC: u8 = 0x80;

/// Relative times end here; anything larger is a unix time.
const RELATIVE_SECONDS_MAX: i64 = 60 * 60 * 24 * 30;

/// The result of parsing the start of the input.
#[derive(Debug, PartialEq, Eq)]
pub enum Parsed<C> {
    /// There is no whole frame before the input holds `total_bytes`. The first `scanned_bytes` need not be searched again.
    NeedMore { total_bytes: usize, scanned_bytes: usize },
    /// One command in the first `consumed_bytes`. The next `skip_bytes` of input belong to it and are discarded.
    Command { command: C, consumed_bytes: usize, skip_bytes: usize },
    /// The rest cannot be understood: close without an answer.
    Close,
}

/// A client's expiry as the store takes it, in whole seconds; one before now has passed.
pub fn expiry_from_client(seconds: i64, now: u32) -> Expiry {
    Expiry::from_secs(match seconds {
        0 => 0,
        i64::MIN..0 => 1,
        1..=RELATIVE_SECONDS_MAX => now.saturating_add(seconds as u32),
        _ => u32::try_from(seconds).unwrap_or(u32::MAX),
    })
}

/// A client's flush delay as the store takes it: unix seconds, 0 is now.
pub fn delete_all_at(seconds: i64, now: u32) -> u32 {
    if seconds <= 0 {
        return 0;
    }
    let at = expiry_from_client(seconds, now).secs();
    if at <= now { 0 } else { at }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thirty_days_part_relative_from_absolute() {
        let now = 1_700_000_000;
        let seconds = |seconds| expiry_from_client(seconds, now).secs();
        assert_eq!([0, -1, 1, 2_592_000].map(seconds), [0, 1, now + 1, now + 2_592_000]);
        assert_eq!([2_592_001, 4_294_967_295].map(seconds), [2_592_001, u32::MAX]);
    }

    #[test]
    fn a_flush_in_the_past_is_a_flush_now() {
        let now = 1_700_000_000;
        assert_eq!(delete_all_at(0, now), 0);
        assert_eq!(delete_all_at(-5, now), 0);
        assert_eq!(delete_all_at(7, now), now + 7);
        assert_eq!(delete_all_at(2_592_001, now), 0);
    }
}
