//! Work that one thread at a time does for all. A thread that asks while another one works leaves its request to that one and does not wait.
//!
//! ```text
//!        ask: works                      ask: goes its way
//! idle ─────────────► busy ────────────────────► busy, asked
//!   ▲                  │ ▲                          │
//!   └── none asked ────┘ └────── works once more ───┘
//! ```
//! Invariant: the last round of work to begin sees everything done before an ask. A thread does not work for others for ever: after [`ROUNDS_MAX`]
//! rounds it leaves and reports that, so that another thread asks again.

use crate::media::io::lock;
use crate::memory::memory_word::Word;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

const IDLE: u64 = 0;
const BUSY: u64 = 1;
/// The requests made during the work stand above this bit.
const ASKED_SHIFT: u32 = 1;
/// The most rounds that one thread works in a row.
const ROUNDS_MAX: u32 = 16;

/// Whether a thread works, and the requests made meanwhile.
#[derive(Default)]
struct Desk<W>(W);

impl<W: Word> Desk<W> {
    fn change(&self, to: impl Fn(u64) -> u64) -> u64 {
        let mut seen = self.0.load(Ordering::Relaxed);
        while let Err(other) = self.0.replace(seen, to(seen)) {
            seen = other;
        }
        seen
    }

    /// Asks for work. Returns whether the caller must do it.
    fn begin(&self, asks: u64) -> bool {
        // Makes the caller's earlier writes visible to the thread that works.
        W::fence(Ordering::Release);
        self.change(|seen| if seen == IDLE { BUSY } else { seen | asks << ASKED_SHIFT }) == IDLE
    }

    /// Ends a round. Returns the requests made meanwhile, which the same thread must do.
    fn end(&self) -> Option<u64> {
        let asked = self.change(|seen| if seen == BUSY { IDLE } else { BUSY }) >> ASKED_SHIFT;
        W::fence(Ordering::Acquire);
        (asked != 0).then_some(asked)
    }

    /// Lets the next thread that asks work.
    fn leave(&self) {
        self.change(|_| IDLE);
    }
}

/// The tools of the work, and the state of who works.
pub struct Turns<W: Word, T> {
    desk: Desk<W>,
    tools: Mutex<T>,
}

impl<W: Word + Default, T> Turns<W, T> {
    pub fn new(tools: T) -> Turns<W, T> {
        Turns { desk: Desk::default(), tools: Mutex::new(tools) }
    }

    /// Does the work here, or leaves it to the thread that works. `asks` is not zero; requests of several threads are combined. Returns whether this
    /// thread left work undone: everybody who needs it must ask again.
    #[must_use]
    pub fn run(&self, asks: u64, mut work: impl FnMut(&mut T, u64)) -> bool {
        assert_ne!(asks, 0);
        if !self.desk.begin(asks) {
            return false;
        }
        let leaving = Leaving(&self.desk);
        let mut asked = asks;
        for _ in 0..ROUNDS_MAX {
            work(&mut lock(&self.tools), asked);
            match self.desk.end() {
                Some(more) => asked = more,
                None => {
                    std::mem::forget(leaving);
                    return false;
                }
            }
        }
        true
    }
}

/// Leaves the work to the next thread that asks, after the last round or a panic. After a panic that thread panics as well, at the lock of the
/// tools.
struct Leaving<'a, W: Word>(&'a Desk<W>);

impl<W: Word> Drop for Leaving<'_, W> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::AtomicU64;

    #[test]
    fn what_is_asked_for_during_the_work_is_done_by_the_same_worker() {
        let turns: Turns<AtomicU64, Vec<u64>> = Turns::new(Vec::new());
        let left = turns.run(1, |done, asks| {
            done.push(asks);
            if done.len() < 3 {
                // A request of another thread would be left to this one as well.
                assert!(!turns.run(2, |_, _| panic!("two are at it")));
                assert!(!turns.run(4, |_, _| panic!("two are at it")));
            }
        });
        assert!(!left);
        assert_eq!(*lock(&turns.tools), [1, 6, 6]);
    }

    #[test]
    fn who_is_asked_again_and_again_leaves_and_the_next_one_works() {
        let turns: Turns<AtomicU64, u32> = Turns::new(0);
        let left = turns.run(1, |done, _| {
            *done += 1;
            assert!(!turns.run(1, |_, _| panic!("two are at it")));
        });
        assert!(left);
        assert_eq!(*lock(&turns.tools), ROUNDS_MAX);
        assert!(!turns.run(1, |done, _| *done = 0));
        assert_eq!(*lock(&turns.tools), 0);
    }

    #[test]
    fn nobody_waits_for_who_panicked_or_works_on_with_its_tools() {
        let turns: Turns<AtomicU64, u64> = Turns::new(0);
        assert!(catch_unwind(AssertUnwindSafe(|| turns.run(1, |_, _| panic!("for the test")))).is_err());
        for _ in 0..2 {
            let asks = || turns.run(1, |done, _| *done += 1);
            assert!(catch_unwind(AssertUnwindSafe(asks)).is_err());
        }
        assert!(turns.tools.lock().is_err_and(|poisoned| **poisoned.get_ref() == 0));
    }
}

#[cfg(test)]
mod models {
    use super::*;
    use crate::memory::memory_word::model::*;
    use loom::sync::Arc;

    /// Two threads leave something and ask for it to be taken. `forgetful`: the working thread ends without a check for further requests.
    fn nothing_is_left<const WEAK: u8>(forgetful: bool) {
        loom::model(move || {
            let desk: Arc<Desk<ModelWord<WEAK>>> = Arc::default();
            let left: Arc<[ModelWord<WEAK>; 2]> = Arc::default();
            let leave = |number: usize| {
                let (desk, left) = (desk.clone(), left.clone());
                move || {
                    left[number].store(1, Ordering::Relaxed);
                    if !desk.begin(1) {
                        return [false; 2];
                    }
                    let mut taken = [false; 2];
                    loop {
                        (0..2).for_each(|at| taken[at] |= left[at].load(Ordering::Relaxed) == 1);
                        if desk.end().is_none() || forgetful {
                            return taken;
                        }
                    }
                }
            };
            let other = loom::thread::spawn(leave(1));
            let (here, there) = (leave(0)(), other.join().unwrap());
            assert!((0..2).all(|at| here[at] || there[at]), "something was left and nobody is at it");
        });
    }

    #[test]
    fn what_was_left_before_an_ask_is_taken() {
        nothing_is_left::<SOUND>(false);
    }

    #[test]
    #[should_panic]
    fn when_nobody_looks_again_the_model_fails() {
        nothing_is_left::<SOUND>(true);
    }

    #[test]
    #[should_panic]
    fn without_an_acquire_fence_the_model_fails() {
        nothing_is_left::<NO_ACQUIRE_FENCE>(false);
    }

    #[test]
    #[should_panic]
    fn without_a_release_fence_the_model_fails() {
        nothing_is_left::<NO_RELEASE_FENCE>(false);
    }
}
