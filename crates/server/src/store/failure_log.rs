//! Logs failures that the operator must know of, with advice: that the store is full, and that bytes on flash are damaged. Clients hear of
//! them too, but many take an error for a miss. Each is logged at most once a minute, whatever the number of clients and workers.
//!
//! Threads: any.

use std::sync::atomic::{AtomicU32, Ordering};

use tapetum::{Error, Keyspace};

use crate::store::fullness::{flash_advice, is_device};

const EVERY_SECONDS: u32 = 60;

/// Says what is full, and how to make room.
fn advice(error: &Error, has_devices: bool) -> String {
    match error {
        Error::FullFlash => format!("flash is full; {}", flash_advice(has_devices)),
        Error::FullIndex => {
            "the index is full; give a larger --memory (`tapetum resize` does while the server runs), or delete keys".into()
        }
        Error::FullManifest => "the manifest is full: its size was set when the store was made, and the store has grown since; delete keys, \
                                or make a store with a larger --capacity and fill it by `tapetum dump` and `tapetum load`"
            .into(),
        error => unreachable!("{error} is no lack of room"),
    }
}

/// Whether a request found damage on flash.
pub fn is_damage(error: &Error) -> bool {
    matches!(error, Error::Corrupt(_))
}

#[derive(Debug, Default)]
pub struct FailureLog {
    full: OnceAMinute,
    damaged: OnceAMinute,
}

impl FailureLog {
    /// Logs a request that failed at `now`, if needed. `keyspaces` are those of the store.
    pub fn note(&self, error: &Error, now: u32, keyspaces: impl Fn() -> Vec<(Keyspace, u64)>) {
        if error.is_full() && self.full.is_due(now) {
            let has_devices = keyspaces().iter().any(|(keyspace, _)| is_device(keyspace));
            tracing::warn!("writes are refused: {}", advice(error, has_devices));
        }
        if is_damage(error) && self.damaged.is_due(now) {
            tracing::error!(
                "a request failed: {error}. What is damaged is whole again once it is written over; `tapetum check` names all of it when the \
                 server is stopped"
            );
        }
    }
}

#[derive(Debug, Default)]
struct OnceAMinute {
    /// When it was logged last, unix seconds; 0 is never.
    told_at: AtomicU32,
}

impl OnceAMinute {
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
        let log = OnceAMinute::default();
        assert_eq!(
            [1000, 1000, 1059, 1060, 1061, 1200].map(|now| log.is_due(now)),
            [true, false, false, true, false, true]
        );
    }

    #[test]
    fn every_way_of_being_full_names_its_option() {
        let named = |error: &Error| error.is_full() && advice(error, false).contains("--");
        assert!([Error::FullFlash, Error::FullIndex, Error::FullManifest].iter().all(named));
        assert!(!Error::KeyEmpty.is_full());
    }

    #[test]
    fn a_store_with_block_devices_is_not_told_to_evict() {
        assert!(advice(&Error::FullFlash, false).contains("--full evict"));
        let of_devices = advice(&Error::FullFlash, true);
        assert!(of_devices.contains("fstrim") && of_devices.contains("tapetum resize"), "{of_devices}");
        assert!(!of_devices.contains("--full evict"), "{of_devices}");
    }
}
