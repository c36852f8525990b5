//! The users as they are now, and how often they were read.
//!
//! Threads: all of a server's.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;

use crate::users::Users;

/// See the [module](self).
pub struct CurrentUsers {
    users: ArcSwap<Users>,
    generation: AtomicU64,
}

impl CurrentUsers {
    pub fn new(users: Users) -> CurrentUsers {
        CurrentUsers { users: ArcSwap::from_pointee(users), generation: AtomicU64::new(1) }
    }

    /// They were read again.
    pub fn replace(&self, users: Users) {
        self.users.store(Arc::new(users));
        // Whoever reads the new number reads the new users.
        self.generation.fetch_add(1, Ordering::Release);
    }

    pub fn users(&self) -> Arc<Users> {
        self.users.load_full()
    }

    /// Changes when they were read again.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The users, and a number that is not newer than they are.
    pub fn users_now(&self) -> (Arc<Users>, u64) {
        let seen = self.generation();
        (self.users(), seen)
    }
}
