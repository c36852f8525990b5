//! The time at which an item expires, in milliseconds since 1970, of which 48 bits are on flash. It has a type of its
//! own, so that nobody takes it for seconds.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

/// The time at which an item expires. An earlier expiry is less than a later one, except for [`Expiry::NONE`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Expiry(u64);

impl Expiry {
    /// The item never expires.
    pub const NONE: Expiry = Expiry(0);
    /// Later than any item's expiry. As the latest expiry of many items, it says that some of them never expire.
    pub const NEVER: Expiry = Expiry((1 << 48) - 1);
    /// Bytes of an expiry on flash.
    pub const BYTES: usize = 6;

    /// Expires at a Unix second; 0 is [`Expiry::NONE`].
    pub const fn from_secs(seconds: u32) -> Expiry {
        Expiry(seconds as u64 * 1000)
    }

    /// Expires at a millisecond since 1970; 0 is [`Expiry::NONE`]. The latest expiry is in the year 10889.
    pub const fn from_millis(millis: u64) -> Expiry {
        if millis < Expiry::NEVER.0 { Expiry(millis) } else { Expiry(Expiry::NEVER.0 - 1) }
    }

    pub const fn millis(self) -> u64 {
        self.0
    }

    /// The first Unix second at which the item has expired; 0 for [`Expiry::NONE`].
    pub const fn secs(self) -> u32 {
        let seconds = self.0.div_ceil(1000);
        if seconds < u32::MAX as u64 { seconds as u32 } else { u32::MAX }
    }

    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Whether the item has expired `now_ms` milliseconds after 1970 began.
    pub const fn has_passed(self, now_ms: u64) -> bool {
        self.0 != 0 && self.0 <= now_ms
    }

    pub const fn to_bytes(self) -> [u8; Expiry::BYTES] {
        let [a, b, c, d, e, f, ..] = self.0.to_le_bytes();
        [a, b, c, d, e, f]
    }

    /// An expiry from its 48 bits on flash.
    pub const fn from_flash(bits: u64) -> Expiry {
        Expiry(bits & Expiry::NEVER.0)
    }
}

impl From<SystemTime> for Expiry {
    /// A time before 1970 becomes an expiry that has passed.
    fn from(time: SystemTime) -> Expiry {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        Expiry::from_millis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX).max(1))
    }
}

/// Writes Unix seconds, with a fraction if they are not whole.
impl fmt::Display for Expiry {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0 / 1000, self.0 % 1000) {
            (seconds, 0) => write!(out, "{seconds}"),
            (seconds, millis) => write!(out, "{seconds}.{millis:03}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn an_item_is_there_to_the_last_millisecond() {
        let expiry = Expiry::from_secs(7);
        assert_eq!([6_999, 7_000, 7_001].map(|now| expiry.has_passed(now)), [false, true, true]);
        assert!(!Expiry::NONE.has_passed(u64::MAX) && Expiry::from_millis(1).has_passed(1));
        assert_eq!(Expiry::from_secs(0), Expiry::NONE);
    }

    #[test]
    fn seconds_are_those_at_which_it_is_gone() {
        let seconds = |millis| Expiry::from_millis(millis).secs();
        assert_eq!([0, 1, 1000, 1001].map(seconds), [0, 1, 1, 2]);
        assert_eq!(Expiry::from_secs(u32::MAX).secs(), u32::MAX);
        assert_eq!(Expiry::NEVER.secs(), u32::MAX);
    }

    #[test]
    fn its_text_is_unix_seconds() {
        let text = |millis| Expiry::from_millis(millis).to_string();
        assert_eq!([0, 7, 7000, 7010].map(text), ["0", "0.007", "7", "7.010"]);
    }

    #[test]
    fn its_bytes_are_48_bits() {
        for expiry in [Expiry::NONE, Expiry::from_secs(u32::MAX), Expiry::from_millis(u64::MAX), Expiry::NEVER] {
            assert_eq!(Expiry::from_flash(expiry.millis()), expiry);
        }
        assert_eq!(Expiry::from_millis(0x0605_0403_0201).to_bytes(), [1, 2, 3, 4, 5, 6]);
        assert!(Expiry::from_millis(u64::MAX) < Expiry::NEVER);
    }

    #[test]
    fn times_of_the_system_keep_their_milliseconds() {
        let at = |since| Expiry::from(UNIX_EPOCH + since);
        assert_eq!(at(Duration::from_millis(1_700_000_000_123)).millis(), 1_700_000_000_123);
        assert!(at(Duration::ZERO).has_passed(1) && Expiry::from(UNIX_EPOCH - Duration::from_secs(1)).has_passed(1));
    }
}
