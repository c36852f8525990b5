//! Who may work in a depot: waits for its lease, and keeps it while work goes on.
//!
//! Threads: the caller's.

#![allow(clippy::disallowed_methods)] // A clock that decides how long to wait.

use std::sync::Arc;
use std::time::Duration;

use tapetum::backup::lease::{Lease, Loss, Seen, Watch};
use tapetum::backup::{BackupError, Depot, owner};
use tapetum_drive::Env;

/// How long the lease of a command lasts: a command that was killed keeps others waiting for so long.
pub const LASTS_MS: u64 = 10_000;
/// How often a lease that another holds is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// This process, as others see it who wait for it.
pub fn described(command: &str) -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{command} (process {} on {})", std::process::id(), host.trim())
}

/// Takes the lease of a depot. One whose holder was killed is waited for; one that is renewed meanwhile is another's.
///
/// # Errors
/// [`BackupError::Held`], [`BackupError::Cancelled`]; if the depot cannot be read or written, or is none: then nothing is written.
pub fn take_lease(
    depot: &Arc<dyn Depot>,
    command: &str,
    lasts_ms: u64,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<Lease, BackupError> {
    take_lease_of_loss(depot, command, lasts_ms, Loss::Unknown, go_on)
}

/// As [`take_lease`], of one who writes nothing yet: if it is cut short, the next one knows as much of the holder before.
///
/// # Errors
/// As [`take_lease`].
pub fn take_lease_of_loss(
    depot: &Arc<dyn Depot>,
    command: &str,
    lasts_ms: u64,
    loss: Loss,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<Lease, BackupError> {
    let behind_ms = match loss {
        Loss::Unknown => None,
        Loss::None => Some(0),
        Loss::AtMostMs(loss_ms) => Some(loss_ms),
    };
    let (env, mut watch) = (Env::system(), Watch::default());
    owner(&**depot)?;
    loop {
        match watch.look(&**depot, &env)? {
            Seen::Free { number, generation } => {
                if let Some(lease) =
                    Lease::take(depot, &env, (number, generation), (lasts_ms, behind_ms), &described(command))?
                {
                    return Ok(lease);
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

/// Gives a command's lease back. It ends by itself, if that does not succeed.
pub fn release(lease: Lease) {
    let _ = lease.release();
}
