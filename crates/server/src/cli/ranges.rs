//! The ranges of the command line's options. A value outside is refused with the range.

use std::time::Duration;

use tapetum_service::{duration, size};

/// A year.
pub const IDLE_SECONDS_MAX: i64 = 365 * 86_400;

/// How long a freeze may last between two renewals.
pub fn freeze_lasts(text: &str) -> Result<Duration, String> {
    duration::within(text, Duration::from_millis(1), tapetum::FREEZE_LASTS_MAX)
}

/// Less holds no segment; more no file system.
pub fn capacity(text: &str) -> Result<u64, String> {
    size::within(text, 2 << 20, 8 << 50)
}

/// How much a store needs: see [`tapetum_service::opening::OpenError::Memory`]. Less than this is a forgotten unit.
pub fn memory(text: &str) -> Result<u64, String> {
    size::within(text, 1 << 20, 1 << 50)
}

pub fn tier(text: &str) -> Result<u64, String> {
    match size::parse(text)? {
        0 => Ok(0),
        _ => size::within(text, 1 << 20, 1 << 50).map_err(|error| format!("{error}, or 0 for none")),
    }
}

pub fn node_cache(text: &str) -> Result<u64, String> {
    size::within(text, 1 << 20, 1 << 50)
}

pub fn slab_factor(text: &str) -> Result<f64, String> {
    let factor = text.parse().ok().filter(|factor| (1.1..=16.0).contains(factor));
    factor.ok_or_else(|| "give 1.1 to 16".into())
}

pub fn slab_size(text: &str) -> Result<u64, String> {
    let bytes = size::within(text, 4 << 10, 1 << 30).ok().filter(|bytes| bytes.is_multiple_of(4 << 10));
    bytes.ok_or_else(|| "give a multiple of 4KiB, at most 1GiB".into())
}

pub fn item_size(text: &str) -> Result<u64, String> {
    size::within(text, 1 << 10, 16 << 20)
}

pub fn write_buffer(text: &str) -> Result<u64, String> {
    let bytes = size::parse(text)?;
    let fits = bytes.is_power_of_two() && (64 << 10..=1 << 30).contains(&bytes);
    fits.then_some(bytes).ok_or_else(|| "give a power of two from 64KiB to 1GiB".into())
}

pub fn udp_rate(text: &str) -> Result<u32, String> {
    let bytes = size::parse(text)?;
    u32::try_from(bytes).map_err(|_| "give less than 4GiB".into())
}
