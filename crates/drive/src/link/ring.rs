//! A ring of fixed entries in memory that two processes share: one thread puts, one takes.
//!
//! ```text
//!  0           64          128                          64-byte lines
//!  +-----------+-----------+---------------------------------+
//!  | put u32   | taken u32 | PLACES entries of WORDS words   |
//!  +-----------+-----------+---------------------------------+
//! ```
//! `put` and `taken` count entries and wrap; an entry's place is its number modulo `PLACES`. Each side keeps its own count for itself, and
//! the other's must be at most `PLACES` away: anything else breaks the ring, for good.

use crate::memory::SharedFile;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Entries of a ring. What does not fit waits at the side that puts.
pub const PLACES: u32 = 1024;
const LINE_BYTES: usize = 64;
const TAKEN_AT: usize = LINE_BYTES;
const ENTRIES_AT: usize = 2 * LINE_BYTES;
const _: () = assert!(PLACES.is_power_of_two());

/// Bytes of a ring.
pub const fn bytes_of(words: usize) -> usize {
    ENTRIES_AT + PLACES as usize * 8 * words
}

/// The other side has put a count there that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingBroken;

pub struct RingPutter<const WORDS: usize> {
    file: Arc<SharedFile>,
    at: usize,
    put: u32,
    /// As last seen.
    taken: u32,
}

impl<const WORDS: usize> RingPutter<WORDS> {
    /// An end of the empty ring at byte `at` of `file`.
    pub fn new(file: Arc<SharedFile>, at: usize) -> RingPutter<WORDS> {
        assert!(at.is_multiple_of(LINE_BYTES) && at + bytes_of(WORDS) <= file.bytes());
        RingPutter { file, at, put: 0, taken: 0 }
    }

    /// Whether it was put: the ring may be full.
    ///
    /// # Errors
    /// [`RingBroken`].
    pub fn put(&mut self, entry: &[u64; WORDS]) -> Result<bool, RingBroken> {
        if self.put.wrapping_sub(self.taken) == PLACES {
            let taken = self.file.word(self.at + TAKEN_AT).load(Ordering::Acquire);
            if self.put.wrapping_sub(taken) > PLACES {
                return Err(RingBroken);
            }
            self.taken = taken;
            if self.put.wrapping_sub(taken) == PLACES {
                return Ok(false);
            }
        }
        let first = self.at + entry_at::<WORDS>(self.put);
        for (place, word) in entry.iter().enumerate() {
            self.file.long_word(first + 8 * place).store(*word, Ordering::Relaxed);
        }
        self.put = self.put.wrapping_add(1);
        self.file.word(self.at).store(self.put, Ordering::Release);
        Ok(true)
    }
}

pub struct RingTaker<const WORDS: usize> {
    file: Arc<SharedFile>,
    at: usize,
    taken: u32,
    /// As last seen.
    put: u32,
}

impl<const WORDS: usize> RingTaker<WORDS> {
    /// An end of the empty ring at byte `at` of `file`.
    pub fn new(file: Arc<SharedFile>, at: usize) -> RingTaker<WORDS> {
        assert!(at.is_multiple_of(LINE_BYTES) && at + bytes_of(WORDS) <= file.bytes());
        RingTaker { file, at, taken: 0, put: 0 }
    }

    /// The next entry, each word of which was read once.
    ///
    /// # Errors
    /// [`RingBroken`].
    pub fn take(&mut self) -> Result<Option<[u64; WORDS]>, RingBroken> {
        if self.is_empty()? {
            return Ok(None);
        }
        let first = self.at + entry_at::<WORDS>(self.taken);
        let entry = std::array::from_fn(|place| self.file.long_word(first + 8 * place).load(Ordering::Relaxed));
        self.taken = self.taken.wrapping_add(1);
        self.file.word(self.at + TAKEN_AT).store(self.taken, Ordering::Release);
        Ok(Some(entry))
    }

    /// # Errors
    /// [`RingBroken`].
    pub fn is_empty(&mut self) -> Result<bool, RingBroken> {
        if self.put == self.taken {
            let put = self.file.word(self.at).load(Ordering::Acquire);
            if put.wrapping_sub(self.taken) > PLACES {
                return Err(RingBroken);
            }
            self.put = put;
        }
        Ok(self.put == self.taken)
    }
}

fn entry_at<const WORDS: usize>(number: u32) -> usize {
    ENTRIES_AT + (number % PLACES) as usize * 8 * WORDS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::Env;

    fn ring() -> (RingPutter<3>, RingTaker<3>, Arc<SharedFile>) {
        let ours = SharedFile::new("test", bytes_of(3)).unwrap();
        let theirs = SharedFile::of_other(ours.file().try_clone_to_owned().unwrap(), bytes_of(3), true).unwrap();
        let (ours, theirs) = (Arc::new(ours), Arc::new(theirs));
        (RingPutter::new(ours.clone(), 0), RingTaker::new(theirs, 0), ours)
    }

    #[test]
    fn entries_come_in_order_and_a_full_ring_takes_none() {
        let (mut putter, mut taker, _) = ring();
        assert_eq!(taker.take(), Ok(None));
        for round in 0..3 {
            for number in 0..u64::from(PLACES) {
                assert_eq!(putter.put(&[number, round, 7]), Ok(true));
            }
            assert_eq!(putter.put(&[0; 3]), Ok(false));
            for number in 0..u64::from(PLACES) {
                assert_eq!(taker.take(), Ok(Some([number, round, 7])));
            }
            assert_eq!(taker.take(), Ok(None));
        }
    }

    #[test]
    fn two_threads_lose_nothing() {
        let (mut putter, mut taker, _) = ring();
        const ENTRIES: u64 = 100_000;
        let putting = Env::system().spawn("putter", move || {
            for number in 0..ENTRIES {
                while !putter.put(&[number, !number, number * 3]).unwrap() {
                    std::thread::yield_now();
                }
            }
        });
        for number in 0..ENTRIES {
            let entry = loop {
                match taker.take().unwrap() {
                    Some(entry) => break entry,
                    None => std::thread::yield_now(),
                }
            };
            assert_eq!(entry, [number, !number, number * 3]);
        }
        putting.unwrap().join().unwrap();
    }

    #[test]
    fn counts_that_cannot_be_break_it() {
        let (_, mut taker, file) = ring();
        file.word(0).store(PLACES + 1, Ordering::Relaxed);
        assert_eq!(taker.take(), Err(RingBroken));
        let (mut putter, _, file) = ring();
        (0..PLACES).for_each(|_| assert_eq!(putter.put(&[0; 3]), Ok(true)));
        file.word(TAKEN_AT).store(PLACES + 1, Ordering::Relaxed);
        assert_eq!(putter.put(&[0; 3]), Err(RingBroken));
    }
}
