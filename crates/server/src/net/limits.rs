//! Limits on clients: connections, item size, and memory for input and replies in flight.
//!
//! Every connection charges the bytes that it holds to one shared budget. Charging never fails: a connection *asks* before it takes more
//! than a little, and stops reading while the answer is no. So that many half-sent values cannot wait for each other for ever, one
//! connection at a time may exceed the budget: the holder of the overdraft. The most that clients hold is therefore about the budget, one
//! item, and `FREE_BYTES` for each connection. Commands share it, whose requests are counted twice and whose pictures are long: a value longer than its get was charged with asks for room before it is read
//! (`doors/connection/asked.rs`).

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Bytes that a connection may take without asking.
pub const FREE_BYTES: usize = 16 << 10;

#[derive(Clone, Debug)]
pub struct Limits {
    pub connections: usize,
    pub item_bytes_max: usize,
    /// The most bytes that all connections together may hold.
    pub in_flight_bytes: usize,
    /// The most bytes that one connection may have submitted or unsent. A single larger item is allowed.
    pub connection_in_flight_bytes: usize,
    /// The most submitted requests of one connection.
    pub connection_requests: usize,
    /// A client that neither sends nor receives for so long, while it holds memory that others wait for, is closed.
    pub stall_seconds: u32,
    /// A client without a request for so long is closed; 0 is never.
    pub idle_seconds: u32,
    /// The most connections that wait to be accepted, at each address. The kernel limits it to net.core.somaxconn.
    pub backlog: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: 1024,
            item_bytes_max: 16 << 20,
            in_flight_bytes: 24 << 20,
            connection_in_flight_bytes: 2 << 20,
            connection_requests: 256,
            stall_seconds: 10,
            idle_seconds: 0,
            // As in memcached: the same as the most connections.
            backlog: 1024,
        }
    }
}

/// Shared by all workers. All operations are single atomic ones, so a figure may be slightly stale.
#[derive(Debug)]
pub struct Budget {
    limit_bytes: usize,
    used_bytes: AtomicUsize,
    /// The holder of the overdraft; 0 is nobody.
    overdraft: AtomicU64,
    waiting: AtomicUsize,
}

impl Budget {
    pub fn new(limit_bytes: usize) -> Budget {
        let (used_bytes, waiting) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Budget { limit_bytes, used_bytes, overdraft: AtomicU64::new(0), waiting }
    }

    /// Whether `who`, not 0, may take `bytes` more. If that exceeds the limit, `who` becomes the holder of the overdraft.
    pub fn allows(&self, who: u64, bytes: usize) -> bool {
        assert_ne!(who, 0, "0 is nobody");
        if self.has(bytes) {
            return true;
        }
        match self.overdraft.compare_exchange(0, who, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => true,
            Err(holder) => holder == who,
        }
    }

    /// Whether `bytes` more fit, without the overdraft.
    pub fn has(&self, bytes: usize) -> bool {
        self.used_bytes() + bytes <= self.limit_bytes
    }

    /// How many more bytes fit, without the overdraft.
    pub fn room_bytes(&self) -> usize {
        self.limit_bytes.saturating_sub(self.used_bytes())
    }

    /// Gives the overdraft back, if `who` holds it.
    pub fn release_overdraft(&self, who: u64) {
        let _ = self.overdraft.compare_exchange(who, 0, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Changes a connection's part from `before` to `after`.
    pub fn change(&self, before: usize, after: usize) {
        if after >= before {
            self.used_bytes.fetch_add(after - before, Ordering::Relaxed);
        } else {
            let used = self.used_bytes.fetch_sub(before - after, Ordering::Relaxed);
            assert!(used >= before - after, "more given back than taken");
        }
    }

    /// Counts a connection that begins or ends waiting. Returns whether it is the first one.
    pub fn change_waiting(&self, more: bool) -> bool {
        match more {
            true => self.waiting.fetch_add(1, Ordering::Relaxed) == 0,
            false => {
                self.waiting.fetch_sub(1, Ordering::Relaxed);
                false
            }
        }
    }

    pub fn someone_waits(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    pub fn used_bytes(&self) -> usize {
        self.used_bytes.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_goes_over() {
        let budget = Budget::new(100);
        assert!(budget.allows(1, 100));
        budget.change(0, 100);
        assert!(budget.allows(1, 50), "nobody else has gone over");
        assert!(!budget.allows(2, 1));
        assert!(budget.allows(1, 5000), "the holder goes on");
        budget.release_overdraft(2);
        assert!(!budget.allows(2, 1), "only the holder gives it back");
        budget.release_overdraft(1);
        assert!(budget.allows(2, 1));
        budget.change(100, 20);
        assert!(budget.allows(1, 80));
        assert_eq!(budget.used_bytes(), 20);
    }
}
