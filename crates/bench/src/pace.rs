//! When a client's next operation is due: at once, or at a steady rate. At a rate, latency counts from when the operation was due, so that
//! a contender that stalls is charged for everything that would have come meanwhile.

use std::time::{Duration, Instant};

pub struct Pace {
    due: Instant,
    /// `None`: the next one is due when the last one is done.
    interval: Option<Duration>,
}

impl Pace {
    /// The pace of one thread of `threads`, which together make `rate` operations per second.
    pub fn new(rate: Option<f64>, threads: u64, thread: u64) -> Pace {
        let interval = rate.map(|rate| Duration::from_secs_f64(threads as f64 / rate));
        let phase = interval.map_or(Duration::ZERO, |interval| interval.mul_f64(thread as f64 / threads as f64));
        Pace { due: Instant::now() + phase, interval }
    }

    /// The start of the next operation's latency, if it is due.
    pub fn take(&mut self, now: Instant) -> Option<Instant> {
        let Some(interval) = self.interval else { return Some(now) };
        let due = self.due;
        (due <= now).then(|| {
            self.due += interval;
            due
        })
    }

    /// Time until the next operation is due.
    pub fn until(&self, now: Instant) -> Duration {
        match self.interval {
            None => Duration::ZERO,
            Some(_) => self.due.saturating_duration_since(now),
        }
    }
}

/// Makes the kernel end this thread's sleeps on time, rather than up to 50 µs late.
pub fn wake_promptly() {
    // SAFETY: the call takes only numbers. It can fail only if the kernel does not know the option; then sleeps are longer.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1000) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stood_still_is_due_all_at_once_and_late() {
        let mut pace = Pace::new(Some(1000.0), 1, 0);
        let begun = pace.due;
        let now = begun + Duration::from_millis(5);
        let due: Vec<Instant> = std::iter::from_fn(|| pace.take(now)).collect();
        assert_eq!(due.len(), 6);
        assert_eq!(due[1] - due[0], Duration::from_millis(1));
        assert_eq!(pace.until(now), Duration::from_millis(1));
        assert!(Pace::new(None, 4, 3).take(now) == Some(now));
    }
}
