//! Logins over HTTP: waits for the gate's verdict, for a bounded time.
//!
//! Threads: the host's; passwords are looked at by the gate's.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tapetum_access::credentials::{Credentials, NoCredentials};
use tapetum_access::gate::{Gate, LoginError, Verdict};
use tokio::sync::oneshot;
use tokio::time;

/// The longest wait for a verdict about a password: 10 s for an address that failed often, and as long again for its turn at the desk.
pub const LOGIN_PATIENCE: Duration = Duration::from_secs(20);

/// The verdict about a name and a password.
pub async fn log_in(gate: &Arc<Gate>, credentials: Result<Credentials, NoCredentials>, address: IpAddr) -> Verdict {
    let (sender, verdict) = oneshot::channel();
    let at_once = gate.log_in(credentials, Some(address), |verdict| {
        // The peer may be gone.
        let _ = sender.send(verdict);
    });
    match at_once {
        Some(verdict) => verdict,
        // The desk drops the sender when the server stops.
        None => time::timeout(LOGIN_PATIENCE, verdict)
            .await
            .map_or(Err(LoginError::Busy), |sent| sent.unwrap_or(Err(LoginError::Busy))),
    }
}
