//! Which records of a segment are known to have expired. They stay so: nothing makes a record live again.

use std::sync::{Arc, Mutex};
use tapetum_base::media::io::lock;

/// One bit an entry.
pub type Entries = Arc<[u64]>;

#[derive(Debug, Default)]
pub struct Lapsed {
    known: Mutex<LapsedState>,
}

#[derive(Debug, Default)]
struct LapsedState {
    /// The unix second at which to look for more. It is whole, so that records that expire within one second are found together; 0 if nobody has
    /// looked yet, `u32::MAX` for never.
    look_at: u32,
    /// `None` if no record has expired.
    entries: Option<Entries>,
}

impl Lapsed {
    /// Starts for a segment that was just written: its first record expires at `expiry_min`, in unix seconds, `u32::MAX` for never.
    pub fn of_new(expiry_min: u32) -> Lapsed {
        Lapsed { known: Mutex::new(LapsedState { look_at: expiry_min, entries: None }) }
    }

    pub fn look_at(&self) -> u32 {
        lock(&self.known).look_at
    }

    pub fn entries(&self) -> Option<Entries> {
        lock(&self.known).entries.clone()
    }

    /// Notes the records that have expired, if any, and when the next one will.
    pub fn note(&self, look_at: u32, entries: Option<Entries>) {
        *lock(&self.known) = LapsedState { look_at, entries };
    }

    /// Host memory.
    pub fn bytes(&self) -> usize {
        lock(&self.known).entries.as_ref().map_or(0, |entries| entries.len() * 8)
    }
}

pub fn is_set(entries: &Entries, entry: u32) -> bool {
    entries[entry as usize / 64] >> (entry % 64) & 1 == 1
}
