//! How long a request is waited for, and how often it is made again.
//!
//! A holder renews a lease after a third of its time ([`tapetum::backup::lease`]), and needs several requests for it: those for a lease wait for a
//! shorter time than other work. A lease that ends meanwhile is given up.

use std::future::Future;
use std::time::Duration;

use tapetum_drive::Env;
use tokio::time::{Instant, sleep, timeout};

use super::failure::Failure;

/// How long an answer is waited for, how long requests are made again, and how long an object may be that is read.
#[derive(Clone, Copy)]
pub struct Pace {
    answer: Duration,
    patience: Duration,
    pub object_bytes_max: u64,
}

/// With the last attempt: 6 s and a pause.
pub const OF_LEASES: Pace =
    Pace { answer: Duration::from_secs(3), patience: Duration::from_secs(3), object_bytes_max: 1 << 20 };
/// Manifests of large stores are the longest objects.
pub const OF_WORK: Pace =
    Pace { answer: Duration::from_secs(10), patience: Duration::from_secs(5), object_bytes_max: 1 << 30 };

/// Bytes a second that are thought to pass at least: so much longer a request may take, and is made again.
const RATE_LEAST: u64 = 256 << 10;
const PAUSE_FIRST_MS: u64 = 50;
const PAUSE_LONGEST_MS: u64 = 1000;

/// The attempts of one request.
pub struct Attempts {
    pace: Pace,
    begun: Instant,
    /// The time that a request of its size takes at the least rate.
    transfer: Duration,
    pause_ms: u64,
    made: u32,
}

impl Attempts {
    /// The attempts of a request that moves so many bytes.
    pub fn of(bytes: usize, pace: Pace) -> Attempts {
        let transfer = Duration::from_millis(bytes as u64 * 1000 / RATE_LEAST);
        Attempts { pace, begun: Instant::now(), transfer, pause_ms: PAUSE_FIRST_MS, made: 0 }
    }

    /// Waits for an answer, as long as that may take.
    pub async fn answer<T>(&self, request: impl Future<Output = Result<T, object_store::Error>>) -> Result<T, Failure> {
        match timeout(self.pace.answer + self.transfer, request).await {
            Ok(answer) => answer.map_err(|error| Failure::of(&error)),
            Err(_) => Err(Failure::NoAnswer),
        }
    }

    /// Waits before the next attempt. There is a second one however long the first took: its answer may be what was lost.
    ///
    /// # Errors
    /// The failure, if it will not pass, or has lasted too long.
    pub async fn again(&mut self, failure: Failure) -> Result<(), Failure> {
        self.made += 1;
        let has_lasted = self.made > 1 && self.begun.elapsed() > self.pace.patience + self.transfer;
        if !failure.is_passing() || has_lasted {
            return Err(failure);
        }
        // Others who failed at the same moment come back at another.
        let pause_ms = self.pause_ms / 2 + Env::system().random_u64() % self.pause_ms;
        self.pause_ms = (self.pause_ms * 2).min(PAUSE_LONGEST_MS);
        sleep(Duration::from_millis(pause_ms)).await;
        Ok(())
    }
}
