//! Tells the log that the store is full, and which option makes room: the protocol's own errors name no option. Once a minute, whatever the
//! number of clients and workers. Any thread.

use std::sync::atomic::{AtomicU32, Ordering};

use tapetum::Error;

const EVERY_SECONDS: u32 = 60;

/// Whether a write was refused because the store has no room for it.
pub fn is_full(error: &Error) -> bool {
    advice(error).is_some()
}

fn advice(error: &Error) -> Option<&'static str> {
    match error {
        Error::FullFlash => Some(
            "flash is full; serve with a larger --capacity, or with --full evict, which drops the coldest items, or delete keys",
        ),
        Error::FullIndex => Some("the index is full; serve with a larger --memory, or delete keys"),
        Error::FullManifest => Some(
            "the manifest is full: its size was set when the store was made, and the store has grown since; delete keys, or make a \
             store with a larger --capacity and fill it by `tapetum dump` and `tapetum load`",
        ),
        _ => None,
    }
}

#[derive(Debug, Default)]
pub struct FullLog {
    /// When it was told last, unix seconds; 0 is never.
    told_at: AtomicU32,
}

impl FullLog {
    /// Takes note of a request that failed at `now`.
    pub fn note(&self, error: &Error, now: u32) {
        if let Some(advice) = advice(error)
            && self.is_due(now)
        {
            tracing::warn!("writes are refused: {advice}");
        }
    }

    fn is_due(&self, now: u32) -> bool {
        let told_at = self.told_at.load(Ordering::Relaxed);
        let due = told_at == 0 || now.saturating_sub(told_at) >= EVERY_SECONDS;
        due && self.told_at.compare_exchange(told_at, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_told_once_a_minute() {
        let log = FullLog::default();
        assert_eq!(
            [1000, 1000, 1059, 1060, 1061, 1200].map(|now| log.is_due(now)),
            [true, false, false, true, false, true]
        );
    }

    #[test]
    fn every_way_of_being_full_names_its_option() {
        let named = |error| advice(&error).is_some_and(|advice| advice.contains("--"));
        assert!([Error::FullFlash, Error::FullIndex, Error::FullManifest].into_iter().all(named));
        assert!(!is_full(&Error::KeyEmpty));
    }
}
