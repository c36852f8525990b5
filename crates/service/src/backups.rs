//! Who may work in a depot: waits for its lease, and keeps it while work goes on.
//!
//! Threads: the caller's.

#![allow(clippy::disallowed_methods)] // A clock that decides how long to wait.

use std::sync::Arc;
use std::time::Duration;

use tapetum::backup::lease::{Lease, Seen, Watch};
use tapetum::backup::{BackupError, Depot};
use tapetum_drive::Env;

/// How long the lease of a command lasts: a command that was killed keeps others waiting for so long.
const LASTS_MS: u64 = 10_000;
/// How often a lease that another holds is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// This process, as others see it who wait for it.
pub fn described(command: &str) -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{command} (process {} on {})", std::process::id(), host.trim())
}

/// A lease that is renewed as work goes on.
pub struct HeldLease {
    lease: Lease,
    env: Env,
    renew_ms: u64,
}

impl HeldLease {
    /// Takes the lease. One whose holder was killed is waited for; one that is renewed meanwhile is another's.
    ///
    /// # Errors
    /// [`BackupError::Held`], [`BackupError::Cancelled`]; if the depot cannot be read or written.
    pub fn take(
        depot: &Arc<dyn Depot>,
        command: &str,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<HeldLease, BackupError> {
        let (env, mut watch) = (Env::system(), Watch::default());
        loop {
            match watch.look(&**depot, &env)? {
                Seen::Free { number, generation } => {
                    let by = described(command);
                    if let Some(lease) = Lease::take(depot, &env, (number, generation), LASTS_MS, &by)? {
                        let renew_ms = env.unix_millis() + LASTS_MS / 3;
                        return Ok(HeldLease { lease, env, renew_ms });
                    }
                }
                Seen::Held { record, was_renewed: true, .. } => {
                    return Err(BackupError::Held { place: depot.place(), by: record.by });
                }
                Seen::Held { .. } => std::thread::sleep(LOOK),
            }
            if !go_on() {
                return Err(BackupError::Cancelled);
            }
        }
    }

    pub fn generation(&self) -> u64 {
        self.lease.generation()
    }

    /// Renews it when it is time.
    ///
    /// # Errors
    /// [`BackupError::LostLease`].
    pub fn keep(&mut self) -> Result<(), BackupError> {
        let now_ms = self.env.unix_millis();
        if now_ms >= self.renew_ms {
            self.lease.renew()?;
            self.renew_ms = now_ms + LASTS_MS / 3;
        }
        Ok(())
    }

    /// Gives it back. It ends by itself, if that does not succeed.
    pub fn release(self) {
        let _ = self.lease.release();
    }
}
