//! The atomic word under the store's lock-free protocols: the standard library's, or a model of memory.
//!
//! A protocol that is generic over [`Word`] is the same code in the store and under loom, which tries every order of its steps and every value that
//! a load may see.

use std::sync::atomic::{AtomicU64, Ordering, fence};

pub trait Word {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
    /// Stores `new` if the word is `seen`; may fail spuriously. A failure returns the value found. No order with other words.
    fn replace(&self, seen: u64, new: u64) -> Result<u64, u64>;
    fn fence(order: Ordering);
    /// Waits a moment for another thread, for the `spins`th time.
    fn pause(spins: u32);
}

impl Word for AtomicU64 {
    #[inline(always)]
    fn load(&self, order: Ordering) -> u64 {
        AtomicU64::load(self, order)
    }

    #[inline(always)]
    fn store(&self, value: u64, order: Ordering) {
        AtomicU64::store(self, value, order);
    }

    #[inline(always)]
    fn replace(&self, seen: u64, new: u64) -> Result<u64, u64> {
        self.compare_exchange_weak(seen, new, Ordering::Relaxed, Ordering::Relaxed)
    }

    #[inline(always)]
    fn fence(order: Ordering) {
        fence(order);
    }

    #[inline(always)]
    fn pause(spins: u32) {
        if spins.is_multiple_of(64) {
            // The awaited thread may have been preempted: let it run.
            std::thread::yield_now();
        }
        std::hint::spin_loop();
    }
}

#[cfg(any(test, feature = "testing"))]
pub mod model {
    //! loom's word, either sound or with one of its orders weakened, to show that the model detects that.

    use super::{Ordering, Word};
    use loom::sync::atomic::{AtomicU64, fence};

    pub const SOUND: u8 = 0;
    pub const NO_ACQUIRE_FENCE: u8 = 1;
    pub const NO_RELEASE_FENCE: u8 = 2;
    pub const NO_FULL_FENCE: u8 = 3;
    pub const RELAXED_STORE: u8 = 4;
    pub const RELAXED_LOAD: u8 = 5;

    #[derive(Default)]
    pub struct ModelWord<const WEAK: u8>(AtomicU64);

    impl<const WEAK: u8> ModelWord<WEAK> {
        pub fn new(value: u64) -> Self {
            ModelWord(AtomicU64::new(value))
        }
    }

    impl<const WEAK: u8> Word for ModelWord<WEAK> {
        fn load(&self, order: Ordering) -> u64 {
            self.0.load(if WEAK == RELAXED_LOAD { Ordering::Relaxed } else { order })
        }

        fn store(&self, value: u64, order: Ordering) {
            self.0.store(value, if WEAK == RELAXED_STORE { Ordering::Relaxed } else { order });
        }

        fn replace(&self, seen: u64, new: u64) -> Result<u64, u64> {
            self.0.compare_exchange_weak(seen, new, Ordering::Relaxed, Ordering::Relaxed)
        }

        fn fence(order: Ordering) {
            let left_out = match order {
                Ordering::Acquire => NO_ACQUIRE_FENCE,
                Ordering::Release => NO_RELEASE_FENCE,
                _ => NO_FULL_FENCE,
            };
            if WEAK != left_out {
                fence(order);
            }
        }

        fn pause(_: u32) {
            loom::thread::yield_now();
        }
    }
}
