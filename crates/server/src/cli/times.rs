//! Moments as people read them.

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// A moment in UTC, to the second.
pub fn unix_time(unix_ms: u64) -> String {
    let seconds = i64::try_from(unix_ms / 1000).unwrap_or(i64::MAX);
    let shown = OffsetDateTime::from_unix_timestamp(seconds).ok().and_then(|moment| moment.format(&Rfc3339).ok());
    shown.unwrap_or_else(|| format!("{seconds} s after 1970"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_shown_in_utc() {
        assert_eq!([0, 951_782_400_999].map(unix_time), ["1970-01-01T00:00:00Z", "2000-02-29T00:00:00Z"]);
        assert_eq!(unix_time(u64::MAX), "18446744073709551 s after 1970");
    }
}
