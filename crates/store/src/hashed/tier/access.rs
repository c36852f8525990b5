//! When items were last asked for, as far as memory knows.
//!
//! Flash does not keep it. The slot of an item in the DRAM tier has the time of its last read from there (`hashed/tier/slot.rs`). For any other item,
//! including those in write buffers, only the time of its write is known, because stamps ascend: this clock notes which ones were given when.
//!
//! Threads: maintenance moves the clock on, several times a second; to read it is one load. `written` is locked after a shard,
//! and nothing is locked after it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use tapetum_base::media::io::lock;

/// At this many moments, those that are close together for their age are dropped.
const MOMENTS_MAX: usize = 2048;
/// Moments that are further apart than this part of their age are kept: fewer than `MOMENTS_MAX` in a century.
const AGE_PARTS: u32 = 32;

/// Every stamp up to `stamp` was given by the second `at`, and later ones not before.
#[derive(Clone, Copy)]
struct WriteMoment {
    stamp: u64,
    at: u32,
}

/// Unix seconds, and when stamps were given.
pub struct AccessClock {
    seconds: AtomicU32,
    /// In memory of its own: locking it must not evict `seconds` from the caches of threads that only read the clock.
    written: Box<Mutex<Vec<WriteMoment>>>,
}

impl AccessClock {
    /// Stamps up to `stamp` were given before `now`.
    pub fn new(stamp: u64, now: u32) -> AccessClock {
        AccessClock {
            seconds: AtomicU32::new(now),
            written: Box::new(Mutex::new(vec![WriteMoment { stamp, at: now }])),
        }
    }

    #[inline]
    pub fn seconds(&self) -> u32 {
        self.seconds.load(Ordering::Relaxed)
    }

    /// Moves on to `now`; `stamp_last` gives the last stamp so far.
    pub fn advance(&self, now: u32, stamp_last: impl FnOnce() -> u64) {
        if now == self.seconds() {
            return;
        }
        let stamp = stamp_last();
        self.seconds.store(now, Ordering::Relaxed);
        let mut written = lock(&self.written);
        if written.last().is_some_and(|moment| moment.stamp == stamp) {
            return;
        }
        if written.len() >= MOMENTS_MAX {
            *written = thinned(&written, now);
        }
        written.push(WriteMoment { stamp, at: now });
    }

    /// Unix seconds when a stamp was given.
    fn written_at(&self, stamp: u64) -> u32 {
        let written = lock(&self.written);
        let at = written.partition_point(|moment| moment.stamp < stamp);
        written.get(at).map_or_else(|| self.seconds(), |moment| moment.at)
    }

    /// Seconds since a stamp was given.
    pub fn written_seconds_ago(&self, stamp: u64) -> u32 {
        self.seconds().saturating_sub(self.written_at(stamp))
    }
}

/// The first, the last, and as many between them as are needed to know a moment to a part of its age.
fn thinned(moments: &[WriteMoment], now: u32) -> Vec<WriteMoment> {
    let mut last_at = moments[0].at;
    let mut kept = Vec::with_capacity(MOMENTS_MAX);
    kept.push(moments[0]);
    for (moment, next) in moments.iter().zip(&moments[1..]).skip(1) {
        if next.at.saturating_sub(last_at) > now.saturating_sub(moment.at) / AGE_PARTS {
            kept.push(*moment);
            last_at = moment.at;
        }
    }
    kept.extend(moments.last());
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_as_old_as_the_second_it_was_given_in() {
        let clock = AccessClock::new(7, 1000);
        assert_eq!((clock.written_at(3), clock.written_at(7), clock.written_at(8)), (1000, 1000, 1000));
        clock.advance(1001, || 10);
        // Nothing was written meanwhile.
        clock.advance(1005, || 10);
        clock.advance(1005, || unreachable!("it is this second already"));
        clock.advance(1006, || 11);
        assert_eq!([7, 8, 10, 11, 12].map(|stamp| clock.written_seconds_ago(stamp)), [6, 5, 5, 0, 0]);
    }

    #[test]
    fn what_is_long_past_is_known_less_well_but_in_order() {
        let clock = AccessClock::new(0, 0);
        for second in 1..=100_000 {
            clock.advance(second, || u64::from(second) * 10);
        }
        assert!(lock(&clock.written).len() <= MOMENTS_MAX);
        let ages: Vec<u32> = (1..=100_000).map(|second| clock.written_seconds_ago(second * 10)).collect();
        assert!(ages.is_sorted_by(|older, newer| older >= newer));
        for (age, second) in ages.iter().zip(1..) {
            let truly = 100_000 - second;
            assert!(*age <= truly && truly - age <= 1 + truly / 16, "{age} of {truly}");
        }
    }
}
