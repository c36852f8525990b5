//! The memory of a session for values that it reads to make others: an append to a long value needs that value and the new one.
//!
//! Threads: the session's. Shares may move to any thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Each session may use one such part of the store's memory.
const MEMORY_PART: u64 = 16;

/// Bytes held for a value of `value_bytes` bytes that is read, and for the new value made of it.
pub fn joined_bytes_of(value_bytes: usize) -> usize {
    2 * value_bytes
}

/// See the [module](self).
pub struct JoinedBytes {
    taken: Arc<AtomicUsize>,
    most: usize,
}

impl JoinedBytes {
    pub fn of_memory(memory_bytes: u64) -> JoinedBytes {
        JoinedBytes { taken: Arc::default(), most: (memory_bytes / MEMORY_PART) as usize }
    }

    /// Whether an operation has its share; takes one if there is room.
    pub fn grants(&self, share: &mut Option<JoinedShare>, value_bytes: usize) -> bool {
        if share.is_none() {
            *share = self.take(value_bytes);
        }
        share.is_some()
    }

    /// A share for a value that is read and the one that is made of it. `None`: others must end first. An operation that is alone always gets its
    /// share.
    fn take(&self, value_bytes: usize) -> Option<JoinedShare> {
        let (bytes, before) = (joined_bytes_of(value_bytes), self.taken.load(Ordering::Relaxed));
        if before > 0 && before + bytes > self.most {
            return None;
        }
        self.taken.fetch_add(bytes, Ordering::Relaxed);
        Some(JoinedShare { taken: self.taken.clone(), bytes })
    }
}

/// A share, given back when it is dropped.
pub struct JoinedShare {
    taken: Arc<AtomicUsize>,
    bytes: usize,
}

impl Drop for JoinedShare {
    fn drop(&mut self) {
        self.taken.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_alone_has_its_share_and_others_wait_for_theirs() {
        let joined = JoinedBytes::of_memory(160);
        let mut share = joined.take(100);
        assert!(joined.grants(&mut share, 100), "it has one");
        assert!(!joined.grants(&mut None, 1));
        drop(share);
        let long = joined.take(100).unwrap();
        assert!(joined.take(1).is_none());
        drop(long);
        let short = [joined.take(2), joined.take(3)];
        assert!(short.iter().all(Option::is_some) && joined.take(1).is_none());
    }
}
