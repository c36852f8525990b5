//! The newest requests of memcached's clients that took long.
//!
//! Threads: workers note, anybody reads. A worker never waits: a note is dropped while another thread has the list.

#![allow(clippy::disallowed_methods)] // The server is above the simulator: its clock is the system's.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use tapetum::KeyspaceId;

use super::latencies::TimedRequest;

/// A request is slow from this time on: far above what a drive takes, so that the list is empty while all is well.
pub const SLOW: Duration = Duration::from_millis(10);
/// The requests that are kept.
const KEPT: usize = 50;
/// The bytes of a key that are kept.
const KEY_BYTES: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowRequest {
    /// When it was answered.
    pub at: SystemTime,
    pub took: Duration,
    pub request: TimedRequest,
    pub keyspace: KeyspaceId,
    /// The key, or its beginning.
    pub key: Vec<u8>,
}

#[derive(Debug, Default)]
pub struct SlowRequests(Mutex<VecDeque<SlowRequest>>);

impl SlowRequests {
    /// Notes a request that took so long, if that is long.
    pub fn note(&self, request: TimedRequest, took: Duration, keyspace: KeyspaceId, key: &[u8]) {
        if took >= SLOW {
            self.keep(request, took, keyspace, key);
        }
    }

    #[cold]
    fn keep(&self, request: TimedRequest, took: Duration, keyspace: KeyspaceId, key: &[u8]) {
        let Ok(mut kept) = self.0.try_lock() else { return };
        if kept.len() == KEPT {
            kept.pop_front();
        }
        let key = key[..key.len().min(KEY_BYTES)].to_vec();
        kept.push_back(SlowRequest { at: SystemTime::now(), took, request, keyspace, key });
    }

    /// The newest first.
    pub fn newest(&self) -> Vec<SlowRequest> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().rev().cloned().collect()
    }

    pub fn reset(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_of_the_slow_ones_are_kept_with_the_beginning_of_their_keys() {
        let slow = SlowRequests::default();
        let of = KeyspaceId::DEFAULT;
        slow.note(TimedRequest::Set, SLOW - Duration::from_nanos(1), of, b"quick");
        for number in 0..60u8 {
            slow.note(TimedRequest::GetFromFlash, SLOW, of, &[number; 100]);
        }
        let newest = slow.newest();
        assert_eq!(newest.len(), KEPT);
        assert_eq!((&newest[0].key[..], &newest[KEPT - 1].key[..]), (&[59; KEY_BYTES][..], &[10; KEY_BYTES][..]));
        slow.reset();
        assert!(slow.newest().is_empty());
    }
}
