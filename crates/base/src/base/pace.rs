//! Back-pressure on writers: the active write buffer fills no faster than flush and collector make room for the next one.
//!
//! ```text
//! may be filled ≤ what was when the flush of the sealed one began + an eighth of the rest + the rest × what it has done
//!               ≤ free extents + what the collection on its way has gained so far − the reserve − what is still to be flushed
//! ```
//! Without it writers would run until both buffers are full, then wait for a whole flush or for collections. Maintenance sets the limit at each step
//! and wakes waiting writers; a write checks it before anything else. Work that needs no room is not held back: reads, and a change that has read
//! its key already.
//!
//! The limit is shared out: at each rise a session takes at most its part among the waiting sessions, so that a quick one does not take all. A
//! session that does not come leaves its part to the next rise.
//!
//! Threads: atomics, each with one writer (`limit`: maintenance, or whoever seals a buffer while holding all shards' locks).

use std::sync::atomic::{AtomicU64, Ordering};

/// All of a task's work, in the units of [`Progress`].
const WHOLE: u64 = 1 << 16;

/// How far a task has come, from 0 to `WHOLE`.
#[derive(Default)]
struct Progress(AtomicU64);

impl Progress {
    /// See [`Pace::flushed`].
    fn set(&self, stretch: (f64, f64), done: u64, of: u64) {
        let share = stretch.0 + (stretch.1 - stretch.0) * done as f64 / of.max(1) as f64;
        self.0.store((share * WHOLE as f64) as u64, Ordering::Relaxed);
    }

    fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// The part of `amount` that is done.
    fn of(&self, amount: u64) -> u64 {
        (u128::from(amount) * u128::from(self.0.load(Ordering::Relaxed)) / u128::from(WHOLE)) as u64
    }
}

/// Shares of a flush's time: writing the records, then merging them into the index, then, if there is a DRAM tier, copying requested records into
/// it.
pub const FLUSH_WRITE: (f64, f64) = (0.0, 0.7);
pub const FLUSH_MERGE: (f64, f64) = (0.7, 1.0);
pub const FLUSH_MERGE_TIERED: (f64, f64) = (0.7, 0.9);
pub const FLUSH_KEEP: (f64, f64) = (0.9, 1.0);
/// Shares of a collection's time.
pub const COLLECT_WRITE: (f64, f64) = (0.0, 0.8);
pub const COLLECT_MERGE: (f64, f64) = (0.8, 1.0);

pub struct Pace {
    /// Bytes of the active buffer that may be filled now.
    limit_bytes: AtomicU64,
    /// Counts the rises of the limit.
    rises: AtomicU64,
    /// Sessions with waiting writes.
    sessions: AtomicU64,
    flush: Progress,
    collect: Progress,
    /// Bytes of the active buffer that were filled when the flush of the sealed one began; `u64::MAX` while none runs.
    flush_began_bytes: AtomicU64,
    /// Extents of the segments under collection.
    victim_extents: AtomicU64,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace {
            limit_bytes: AtomicU64::new(u64::MAX),
            rises: AtomicU64::new(0),
            sessions: AtomicU64::new(0),
            flush: Progress::default(),
            flush_began_bytes: AtomicU64::new(u64::MAX),
            collect: Progress::default(),
            victim_extents: AtomicU64::new(0),
        }
    }
}

/// The inputs of the pace. All but the shares are in bytes of records.
pub struct Room {
    pub buffer_bytes: u64,
    pub is_sealed: bool,
    /// Free extents less the reserve. `None`: free room does not limit the pace.
    pub free_bytes: Option<u64>,
}

impl Pace {
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes.load(Ordering::Relaxed)
    }

    /// A buffer was sealed: an eighth of the next one may be filled until maintenance begins the flush.
    pub fn sealed(&self, buffer_bytes: u64) {
        self.limit_bytes.store(buffer_bytes / 8, Ordering::Relaxed);
    }

    pub fn flush_began(&self, filled_bytes: u64) {
        self.flush.reset();
        self.flush_began_bytes.store(filled_bytes, Ordering::Relaxed);
    }

    pub fn flush_ended(&self) {
        self.flush_began_bytes.store(u64::MAX, Ordering::Relaxed);
        self.flush.reset();
    }

    /// Records that `done` of `of` parts are done of the stretch of a flush between two shares of the whole.
    pub fn flushed(&self, stretch: (f64, f64), done: u64, of: u64) {
        self.flush.set(stretch, done, of);
    }

    /// Segments of so many extents are collected.
    pub fn collection_began(&self, victim_extents: u64) {
        self.victim_extents.store(victim_extents, Ordering::Relaxed);
    }

    /// As [`Pace::flushed`], of a collection.
    pub fn collected(&self, stretch: (f64, f64), done: u64, of: u64) {
        self.collect.set(stretch, done, of);
    }

    pub fn collection_ended(&self) {
        self.collect.reset();
    }

    /// The extents that the collection has gained so far.
    pub fn gained_extents(&self) -> u64 {
        self.collect.of(self.victim_extents.load(Ordering::Relaxed))
    }

    /// Sets the limit. Returns whether it rose by enough to wake writers.
    pub fn set(&self, room: &Room) -> bool {
        let by_flush = match self.flush_began_bytes.load(Ordering::Relaxed) {
            u64::MAX => u64::MAX,
            began => {
                let left = room.buffer_bytes.saturating_sub(began);
                began + left / 8 + self.flush.of(left - left / 8)
            }
        };
        // The written part of the flush has taken its extents already.
        let written = (self.flush.of(room.buffer_bytes) as f64 / FLUSH_WRITE.1) as u64;
        let sealed = if room.is_sealed { room.buffer_bytes.saturating_sub(written) } else { 0 };
        let by_space = room.free_bytes.map_or(u64::MAX, |free| free.saturating_sub(sealed));
        let limit = by_flush.min(by_space);
        let before = self.limit_bytes.load(Ordering::Relaxed);
        // Smaller rises are not worth waking a session for.
        if limit > before && limit - before < room.buffer_bytes / 256 && limit < room.buffer_bytes {
            return false;
        }
        self.limit_bytes.store(limit, Ordering::Relaxed);
        if limit > before {
            self.rises.fetch_add(1, Ordering::Relaxed);
        }
        limit > before
    }
}

/// A session's part of the bytes that may be filled.
#[derive(Default)]
pub struct Share {
    rise: u64,
    left_bytes: u64,
    /// The session is counted among the waiting ones.
    is_waiting: bool,
}

impl Share {
    /// Whether a write of `bytes` bytes may be tried now; takes them if so. `filled_bytes` is the fill of the active buffer.
    pub fn take(&mut self, pace: &Pace, filled_bytes: u64, bytes: u64) -> bool {
        let limit = pace.limit_bytes();
        if limit == u64::MAX {
            return true;
        }
        let rise = pace.rises.load(Ordering::Relaxed);
        if self.rise != rise {
            let others = pace.sessions.load(Ordering::Relaxed) - u64::from(self.is_waiting);
            self.rise = rise;
            self.left_bytes = limit.saturating_sub(filled_bytes).div_ceil(others + 1);
        }
        let may = self.left_bytes > 0 && filled_bytes < limit;
        if may {
            self.left_bytes = self.left_bytes.saturating_sub(bytes);
        }
        may
    }

    /// Returns the bytes of a write that was not made.
    pub fn give_back(&mut self, bytes: u64) {
        self.left_bytes = self.left_bytes.saturating_add(bytes);
    }

    /// Counts the session among the waiting ones, or no longer.
    pub fn set_waiting(&mut self, pace: &Pace, is_waiting: bool) {
        match (self.is_waiting, is_waiting) {
            (false, true) => pace.sessions.fetch_add(1, Ordering::Relaxed),
            (true, false) => pace.sessions.fetch_sub(1, Ordering::Relaxed),
            _ => return,
        };
        self.is_waiting = is_waiting;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUFFER: u64 = 1 << 20;

    #[test]
    fn a_write_that_was_not_made_leaves_its_bytes_to_the_next() {
        let (pace, mut share) = (Pace::default(), Share::default());
        pace.sealed(BUFFER);
        pace.rises.fetch_add(1, Ordering::Relaxed);
        assert!(share.take(&pace, 0, BUFFER / 8) && !share.take(&pace, 0, 1));
        share.give_back(BUFFER / 8);
        assert!(share.take(&pace, 0, BUFFER / 8) && !share.take(&pace, 0, 1));
    }

    #[test]
    fn a_buffer_fills_as_the_one_before_it_is_flushed() {
        let pace = Pace::default();
        let room = |is_sealed| Room { buffer_bytes: BUFFER, is_sealed, free_bytes: None };
        pace.sealed(BUFFER);
        assert_eq!(pace.limit_bytes(), BUFFER / 8);
        pace.flush_began(BUFFER / 16);
        let mut last = 0;
        for done in 0..=10 {
            pace.flush.set(FLUSH_WRITE, done, 10);
            pace.set(&room(true));
            assert!(pace.limit_bytes() > last);
            last = pace.limit_bytes();
        }
        pace.flush.set(FLUSH_MERGE_TIERED, 64, 64);
        assert!(pace.set(&room(true)) && pace.limit_bytes() < BUFFER);
        pace.flush.set(FLUSH_KEEP, 64, 64);
        assert!(pace.set(&room(true)));
        assert_eq!(pace.limit_bytes(), BUFFER);
        pace.flush_ended();
        assert!(pace.set(&room(false)));
        assert_eq!(pace.limit_bytes(), u64::MAX);
    }

    #[test]
    fn what_the_collector_has_not_gained_is_not_given_away() {
        let pace = Pace::default();
        let room = |free| Room { buffer_bytes: BUFFER, is_sealed: true, free_bytes: Some(free) };
        pace.set(&room(BUFFER));
        assert_eq!(pace.limit_bytes(), 0, "the sealed buffer needs all of it");
        pace.flush.set(FLUSH_WRITE, 1, 2);
        pace.set(&room(BUFFER));
        let limit = pace.limit_bytes();
        assert!(limit.abs_diff(BUFFER / 2) < 100, "{limit}");
    }

    #[test]
    fn a_quick_session_leaves_the_others_their_parts() {
        let pace = Pace::default();
        let mut shares = [Share::default(), Share::default(), Share::default()];
        assert!(shares[0].take(&pace, 0, BUFFER), "nothing is limited");
        shares.iter_mut().for_each(|share| share.set_waiting(&pace, true));
        pace.sealed(3000);
        pace.set(&Room { buffer_bytes: 100, is_sealed: false, free_bytes: Some(3000) });
        pace.set(&Room { buffer_bytes: 100, is_sealed: false, free_bytes: Some(6000) });
        let mut filled = 0;
        while shares[0].take(&pace, filled, 100) {
            filled += 100;
        }
        assert_eq!(filled, 2000, "a third");
        while shares[1].take(&pace, filled, 100) {
            filled += 100;
        }
        assert!((3300..3500).contains(&filled), "a third of what was left: {filled}");
        pace.set(&Room { buffer_bytes: 100, is_sealed: false, free_bytes: Some(9000) });
        assert!(shares[0].take(&pace, filled, 100));
        shares.iter_mut().for_each(|share| share.set_waiting(&pace, false));
        assert_eq!(pace.sessions.load(Ordering::Relaxed), 0);
    }
}
