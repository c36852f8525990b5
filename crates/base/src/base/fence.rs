//! A fence: the moment from which on a store acknowledges no write, unless the fence is moved on before.
//!
//! Whoever makes a standby of the store moves it as long as nobody may have taken the store's place. A thread that was stopped amid its work learns of it
//! by the clock alone: it asks right before it answers. The clock is the time since boot, which goes on while a machine sleeps.
//!
//! Threads: any.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tapetum_drive::Env;

/// See the [module](self).
#[derive(Clone)]
pub struct Fence {
    env: Env,
    ends_ms: Arc<AtomicU64>,
}

impl Fence {
    /// A fence at a moment of [`Env::unix_millis`].
    pub fn at(env: &Env, ends_ms: u64) -> Fence {
        Fence { env: env.clone(), ends_ms: Arc::new(AtomicU64::new(ends_ms)) }
    }

    /// Moves it.
    pub fn move_to(&self, ends_ms: u64) {
        self.ends_ms.store(ends_ms, Ordering::SeqCst);
    }

    pub fn has_passed(&self) -> bool {
        self.env.unix_millis() >= self.ends_ms.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_has_passed_when_its_moment_has_come_and_not_when_it_was_moved_on() {
        let (env, clock) = Env::simulated(1);
        let fence = Fence::at(&env, env.unix_millis() + 5);
        let other = fence.clone();
        clock.advance_us(4_000);
        assert!(!fence.has_passed());
        clock.advance_us(1_000);
        assert!(fence.has_passed() && other.has_passed());
        other.move_to(env.unix_millis() + 1);
        assert!(!fence.has_passed());
    }
}
