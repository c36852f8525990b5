//! What a session takes and what it gives back. Plain data, shared with the front doors: no state, no threading.

pub mod block_request;
pub mod decide;
pub mod item;
pub mod key_range;

use crate::error::Error;
use crate::request::item::Access;
use tapetum_kernels::expiry::Expiry;
use tapetum_kernels::record::Marks;

/// One operation. An expiry that has passed means already expired.
/// A stamp is what memcached calls the CAS unique: it changes with every write of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    Get {
        key: &'a [u8],
    },
    /// A get that may write: see [`Terms`].
    GetAndLease {
        key: &'a [u8],
        terms: Terms,
    },
    Put {
        key: &'a [u8],
        value: &'a [u8],
        flags: u32,
        expiry: Expiry,
        condition: Condition,
    },
    /// Flags and expiry of the record stay as they are.
    Append {
        key: &'a [u8],
        value: &'a [u8],
        stamp: Option<u64>,
    },
    Prepend {
        key: &'a [u8],
        value: &'a [u8],
        stamp: Option<u64>,
    },
    /// The value is a decimal number as text. Adding wraps at 2^64, subtracting stops at 0. A result shorter than the old
    /// value is padded with spaces to the old length.
    Increment {
        key: &'a [u8],
        delta: u64,
        decrement: bool,
        initial: Option<Initial>,
        stamp: Option<u64>,
        /// The expiry that a number which was there gets.
        touch: Option<Expiry>,
    },
    Touch {
        key: &'a [u8],
        expiry: Expiry,
    },
    GetAndTouch {
        key: &'a [u8],
        expiry: Expiry,
    },
    /// Marks the value as stale and takes its lease back: whoever gets it next on such terms is to make it anew.
    Invalidate {
        key: &'a [u8],
        stamp: Option<u64>,
        /// The new expiry; the old one stays without.
        expiry: Option<Expiry>,
    },
    Delete {
        key: &'a [u8],
        stamp: Option<u64>,
    },
    /// Everything written before `at`, in unix seconds, is deleted when `at` comes. 0, and a time that has passed, mean now: all that was
    /// written before this request. A keyspace has one such plan: a later request replaces it.
    DeleteAll {
        at: u32,
    },
}

/// What must hold for a put to take effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    Always,
    Absent,
    Present,
    Stamp(u64),
    /// Under an older stamp than the record's the value is stored as stale; lease and expiry stay as they are then.
    StampOrOlder(u64),
}

/// On which terms a get takes the lease on an item: the right to make its value anew, which one client has at a time,
/// until another value is stored or the item is invalidated. Expiries are as a put's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// It takes the lease on a stale item.
    pub stale: bool,
    /// It takes the lease on an item that expires before.
    pub recache_before: Option<Expiry>,
    /// An absent item is made, without a byte and with this expiry, and its lease taken.
    pub vivify: Option<Expiry>,
    /// An item that was there gets this expiry.
    pub touch: Option<Expiry>,
    /// `recache_before` is held against the expiry that `touch` gives.
    pub touch_first: bool,
    /// It does not count as a read of the item.
    pub unnoticed: bool,
}

/// What an increment stores where the key is absent; its flags are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Initial {
    pub value: u64,
    pub expiry: Expiry,
}

/// The answer to the request that was submitted with `token`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    pub token: u64,
    pub outcome: Outcome,
    /// Flash was read to find what a get shows, or that it shows nothing.
    pub read_flash: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Value {
        flags: u32,
        stamp: u64,
        expiry: Expiry,
        value: ValueRange,
    },
    /// The answer to a [`Request::GetAndLease`] that found or made the item.
    Leased {
        flags: u32,
        stamp: u64,
        /// As it was; `None` if the item was just made.
        expiry_before: Option<Expiry>,
        /// As they are now.
        marks: Marks,
        /// This request took the lease.
        won: bool,
        /// Before this request.
        access: Access,
        value: ValueRange,
    },
    /// The key is absent: also for a put under a stamp, an increment and a touch.
    Missing,
    Stored {
        stamp: u64,
    },
    /// The put's condition did not hold, or there was nothing to append to.
    NotStored,
    /// The stamp is not the record's.
    Exists,
    Deleted,
    Touched {
        stamp: u64,
    },
    Number {
        number: u64,
        stamp: u64,
        /// As it was; `None` if the number was just made.
        expiry_before: Option<Expiry>,
    },
    /// The value to add to is not a number.
    NotNumber,
    /// A request without a result of its own took effect.
    Done,
    Failed(Error),
}

impl Outcome {
    pub fn value(&self) -> Option<ValueRange> {
        match self {
            Outcome::Value { value, .. } | Outcome::Leased { value, .. } => Some(*value),
            _ => None,
        }
    }

    pub fn value_mut(&mut self) -> Option<&mut ValueRange> {
        match self {
            Outcome::Value { value, .. } | Outcome::Leased { value, .. } => Some(value),
            _ => None,
        }
    }
}

/// Where a value lies in its session; readable there until the session's next poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueRange {
    pub start: usize,
    pub end: usize,
}

impl ValueRange {
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }
}
