//! Work that one thread at a time does for all: who asks for it while another is at it leaves it to that one, and waits for
//! nobody.
//!
//! ```text
//!        ask: works                      ask: goes its way
//! idle ─────────────► busy ────────────────────► busy, asked
//!   ▲                  │ ▲                          │
//!   └── none asked ────┘ └────── works once more ───┘
//! ```
//! Invariant: of what was done before an ask, the work that begins last sees everything. Nobody works for others for ever: after
//! [`ROUNDS_MAX`] rounds a thread leaves, and says so, so that somebody asks again.

use crate::media::io::lock;
use crate::memory::memory_word::Word;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

const IDLE: u64 = 0;
const BUSY: u64 = 1;
/// What was asked for meanwhile stands above this bit.
const ASKED_SHIFT: u32 = 1;
/// How often in a row one thread works.
const ROUNDS_MAX: u32 = 16;

/// Who is at it, and what was asked for meanwhile.
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

    /// Asks for work; whether it is the caller's to do.
    fn begin(&self, asks: u64) -> bool {
        // Who does the work sees what was done before this.
        W::fence(Ordering::Release);
        self.change(|seen| if seen == IDLE { BUSY } else { seen | asks << ASKED_SHIFT }) == IDLE
    }

    /// The work is done; what was asked for meanwhile, which is to be done by the same thread.
    fn end(&self) -> Option<u64> {
        let asked = self.change(|seen| if seen == BUSY { IDLE } else { BUSY }) >> ASKED_SHIFT;
        W::fence(Ordering::Acquire);
        (asked != 0).then_some(asked)
    }

    /// The next one who asks works.
    fn leave(&self) {
        self.change(|_| IDLE);
    }
}

/// What the work needs, and who is at it.
pub struct Turns<W: Word, T> {
    desk: Desk<W>,
    tools: Mutex<T>,
}

impl<W: Word + Default, T> Turns<W, T> {
    pub fn new(tools: T) -> Turns<W, T> {
        Turns { desk: Desk::default(), tools: Mutex::new(tools) }
    }

    /// Has the work done, here or by the thread that is at it. `asks` is not zero; what several ask for comes together. Whether this
    /// thread left something to do: all who want it done are to ask again.
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

/// Who has worked enough, or panics, leaves the work to the next one who asks. After a panic that one panics as well, at the tools.
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
                // Another thread would go its way, too.
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

    /// Two threads leave something and ask for it to be taken. `forgetful`: who is done does not look whether more was asked for.
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
