//! The requests that a session takes and its replies. Plain data, shared with the front doors: no state, no threading.

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
        /// The new expiry of a number that exists.
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
    /// Marks the value as stale and revokes its lease: the next get with [`Terms::stale`] wins the lease to replace it.
    Invalidate {
        key: &'a [u8],
        stamp: Option<u64>,
        /// The new expiry; `None` keeps the old one.
        expiry: Option<Expiry>,
    },
    Delete {
        key: &'a [u8],
        stamp: Option<u64>,
    },
    /// Deletes everything written before `at` when `at` comes; in unix seconds. 0 or a time in the past means now: everything written before this
    /// request. A keyspace has one such plan, which a later request replaces.
    DeleteAll {
        at: u32,
    },
}

/// The condition for a put to take effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    Always,
    Absent,
    Present,
    Stamp(u64),
    /// Stores the value. If the given stamp is older than the record's, the value is stored as stale, and lease and expiry are kept.
    StampOrOlder(u64),
}

/// The terms on which a get takes the lease on an item: the right to replace its value. One client at a time has it, until another value is stored
/// or the item is invalidated. Expiries are as a put's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// The get takes the lease on a stale item.
    pub stale: bool,
    /// The get takes the lease on an item that expires before this.
    pub recache_before: Option<Expiry>,
    /// An absent item is created, empty and with this expiry, and the get takes its lease.
    pub vivify: Option<Expiry>,
    /// An existing item gets this expiry.
    pub touch: Option<Expiry>,
    /// `recache_before` is compared with the expiry that `touch` sets.
    pub touch_first: bool,
    /// The get does not count as a read of the item.
    pub unnoticed: bool,
}

/// The number that an increment stores if the key is absent. Its flags are 0.
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
    /// The answer of a get needed a flash read, whether the get found a value or not.
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
        /// The expiry before this request; `None` if it created the item.
        expiry_before: Option<Expiry>,
        /// The marks after this request.
        marks: Marks,
        /// This request took the lease.
        won: bool,
        /// The item's use before this request.
        access: Access,
        value: ValueRange,
    },
    /// The key is absent. Also the answer to a put under a stamp, an increment and a touch.
    Missing,
    Stored {
        stamp: u64,
    },
    /// The put's condition did not hold, or there was nothing to append to.
    NotStored,
    /// The record has another stamp than the request.
    Exists,
    Deleted,
    Touched {
        stamp: u64,
    },
    Number {
        number: u64,
        stamp: u64,
        /// The expiry before this request; `None` if it created the number.
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

/// The place of a value in its session. It can be read until the session's next poll.
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
