//! Wakes a thread that may be about to sleep: an eventfd that is raised only while somebody listens.
//!
//! ```text
//! sleeper                          bringer
//! arm                              bring
//! fence                            fence
//! look once more ─ nothing:        armed? ─ yes: take it, raise
//!   sleep until it is raised
//! disarm
//! ```
//! At least one of the two threads sees what the other did before its fence: either the sleeper's last look finds what was brought, or the
//! bringer wakes the sleeper. A busy pair of threads makes no system call.

use crate::event::Event;
use crate::fail_point;
use crate::memory::SharedFile;
use std::cell::Cell;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};

/// A flag with a fence: the standard library's, or a model of it.
pub(crate) trait ListenFlag {
    fn set(&self);
    fn is_set(&self) -> bool;
    /// Clears the flag. Returns whether it was set.
    fn take(&self) -> bool;
    fn full_fence();
}

/// A whole word: another process may put any value into one that is shared with it.
impl ListenFlag for AtomicU32 {
    fn set(&self) {
        self.store(1, Ordering::Relaxed);
    }

    fn is_set(&self) -> bool {
        self.load(Ordering::Relaxed) != 0
    }

    fn take(&self) -> bool {
        self.swap(0, Ordering::Relaxed) != 0
    }

    fn full_fence() {
        fence(Ordering::SeqCst);
    }
}

/// The sleeper's side, before its last look.
fn listen<F: ListenFlag>(flag: &F) {
    flag.set();
    F::full_fence();
}

/// The bringer's side, after it has brought something. Returns whether to raise the event.
fn is_listening<F: ListenFlag>(flag: &F) -> bool {
    F::full_fence();
    flag.is_set() && flag.take()
}

struct WakeupState {
    listens: FlagPlace,
    event: Event,
}

enum FlagPlace {
    Here(AtomicU32),
    /// At this byte of memory that the other end, another process, has too.
    Shared(Arc<SharedFile>, usize),
}

impl WakeupState {
    fn listens(&self) -> &AtomicU32 {
        match &self.listens {
            FlagPlace::Here(flag) => flag,
            FlagPlace::Shared(file, at) => file.word(*at),
        }
    }
}

/// The bringers' end. Any number of threads may have it.
#[derive(Clone)]
pub(crate) struct Waker(Arc<WakeupState>);

impl Waker {
    /// The end of a process whose peer sleeps: with the flag at byte `at` of `file`, and an event that both have.
    pub fn of_peer(file: Arc<SharedFile>, at: usize, event: Event) -> Waker {
        Waker(Arc::new(WakeupState { listens: FlagPlace::Shared(file, at), event }))
    }

    /// To be called after something was brought. Whether somebody was about to sleep, and is woken.
    pub fn wake(&self) -> bool {
        let is_to_wake = is_listening(self.0.listens()) && !fail_point!(LostKick);
        if is_to_wake {
            self.0.event.raise();
        }
        is_to_wake
    }

    /// Wakes the sleeper, or its next sleep, even if it is not listening.
    pub fn wake_in_any_case(&self) {
        self.0.event.raise();
    }
}

/// The end of the single thread that sleeps.
pub(crate) struct Sleeper {
    state: Arc<WakeupState>,
    is_armed: Cell<bool>,
    /// How often the event was raised, or is about to be, since the last clearing.
    raises_owed: Cell<u64>,
}

impl Sleeper {
    pub fn new() -> std::io::Result<Sleeper> {
        Ok(Sleeper::over(FlagPlace::Here(AtomicU32::new(0)), Event::new()?))
    }

    /// As [`Sleeper::new`], for a bringer in another process: the flag is at byte `at` of `file`, and both have the event.
    pub fn of_peer(file: Arc<SharedFile>, at: usize, event: Event) -> Sleeper {
        Sleeper::over(FlagPlace::Shared(file, at), event)
    }

    fn over(listens: FlagPlace, event: Event) -> Sleeper {
        let state = Arc::new(WakeupState { listens, event });
        Sleeper { state, is_armed: Cell::new(false), raises_owed: Cell::new(0) }
    }

    pub fn waker(&self) -> Waker {
        Waker(self.state.clone())
    }

    /// From now on, something brought makes the descriptor readable. The caller must look once more for what came before.
    pub fn arm(&self) {
        if !self.is_armed.replace(true) {
            listen(self.state.listens());
        }
    }

    /// Ends listening. A bringer that is just about to raise the event may wake the sleeper once without cause.
    pub fn disarm(&self) {
        if self.is_armed.replace(false) && !self.state.listens().take() {
            self.raises_owed.set(self.raises_owed.get() + 1);
        }
        if self.raises_owed.get() > 0 {
            self.clear();
        }
    }

    /// Makes the descriptor readable until it is disarmed.
    pub fn raise(&self) {
        self.raises_owed.set(self.raises_owed.get() + 1);
        self.state.event.raise();
    }

    /// Clears the descriptor, whoever raised it.
    pub fn clear(&self) {
        let raises = self.state.event.clear();
        self.raises_owed.set(self.raises_owed.get().saturating_sub(raises));
    }

    pub fn fd(&self) -> RawFd {
        self.state.event.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicBool, AtomicU64, fence};
    use loom::thread;

    /// loom's flag. `FENCED = false` leaves the fences out, to show that the model notices.
    struct ModelFlag<const FENCED: bool>(AtomicBool);

    impl<const FENCED: bool> ListenFlag for ModelFlag<FENCED> {
        fn set(&self) {
            self.0.store(true, Ordering::Relaxed);
        }

        fn is_set(&self) -> bool {
            self.0.load(Ordering::Relaxed)
        }

        fn take(&self) -> bool {
            self.0.swap(false, Ordering::Relaxed)
        }

        fn full_fence() {
            if FENCED {
                fence(Ordering::SeqCst);
            }
        }
    }

    /// A sleeper never sleeps through something that was brought.
    fn model<const FENCED: bool>() {
        loom::model(|| {
            let (flag, brought) = (Arc::new(ModelFlag::<FENCED>(AtomicBool::new(false))), Arc::new(AtomicU64::new(0)));
            let (flag_there, brought_there) = (flag.clone(), brought.clone());
            let bringer = thread::spawn(move || {
                brought_there.store(1, Ordering::Release);
                is_listening(&*flag_there)
            });
            listen(&*flag);
            let is_found = brought.load(Ordering::Acquire) == 1;
            let is_raised = bringer.join().unwrap();
            assert!(is_found || is_raised, "it sleeps over what was brought");
        });
    }

    #[test]
    fn nothing_is_slept_over() {
        model::<true>();
    }

    #[test]
    #[should_panic(expected = "sleeps over")]
    fn without_fences_it_is() {
        model::<false>();
    }

    #[test]
    fn a_busy_sleeper_is_not_woken() {
        let sleeper = Sleeper::new().unwrap();
        let waker = sleeper.waker();
        waker.wake();
        assert_eq!(sleeper.state.event.clear(), 0, "nobody listened");
        sleeper.arm();
        waker.wake();
        waker.wake();
        sleeper.disarm();
        assert_eq!(sleeper.state.event.clear(), 0, "disarming cleared it");
        sleeper.arm();
        sleeper.disarm();
        waker.wake();
        assert_eq!(sleeper.state.event.clear(), 0, "nobody listens any more");
    }
}
