//! How backups go, for `stats`: those that a server makes, or those that a standby follows. Any thread reads.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

#[derive(Debug, Default)]
pub struct BackupProgress {
    pub is_standby: AtomicBool,
    /// 0: no backups are made or followed.
    pub every_seconds: AtomicU64,
    /// The moment of the last backup, in milliseconds since 1970; 0: there is none.
    pub moment_ms: AtomicU64,
    pub made: AtomicU64,
    pub failed: AtomicU64,
}

impl BackupProgress {
    /// Backups are made from here on, or followed. None counts that was there before.
    pub fn begin(&self, is_standby: bool, every: Duration) {
        self.is_standby.store(is_standby, Ordering::Relaxed);
        self.every_seconds.store(every.as_secs(), Ordering::Relaxed);
        self.moment_ms.store(0, Ordering::SeqCst);
    }

    pub fn note_made(&self, moment_ms: u64) {
        self.moment_ms.store(moment_ms, Ordering::SeqCst);
        self.made.fetch_add(1, Ordering::Relaxed);
    }

    pub fn note_failed(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }
}
