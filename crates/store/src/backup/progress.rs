//! How far a backup or a restore is, and whether it is still wanted. Threads: any.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

#[derive(Default)]
pub struct BackupProgress {
    bytes: AtomicU64,
    is_given_up: AtomicBool,
}

impl BackupProgress {
    /// Bytes that were copied so far.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// It ends before its next pack.
    pub fn give_up(&self) {
        self.is_given_up.store(true, Ordering::SeqCst);
    }

    pub(super) fn count(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn goes_on(&self) -> bool {
        !self.is_given_up.load(Ordering::SeqCst)
    }
}
