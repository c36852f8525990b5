//! What a session takes and what it gives back. Plain data, shared with the front doors: no state, no threading.

use crate::Error;

/// One operation. Times are unix seconds: 0 is never, and a time that has passed means already expired.
/// A stamp is what memcached calls the CAS unique: it changes with every write of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    Get {
        key: &'a [u8],
    },
    Put {
        key: &'a [u8],
        value: &'a [u8],
        flags: u32,
        expiry: u32,
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
    },
    Touch {
        key: &'a [u8],
        expiry: u32,
    },
    GetAndTouch {
        key: &'a [u8],
        expiry: u32,
    },
    Delete {
        key: &'a [u8],
        stamp: Option<u64>,
    },
    /// Everything written before `at` goes when `at` comes; 0 is now.
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
}

/// What an increment stores where the key is absent; its flags are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Initial {
    pub value: u64,
    pub expiry: u32,
}

/// The answer to the request that was submitted with `token`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    pub token: u64,
    pub outcome: Outcome,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Value {
        flags: u32,
        stamp: u64,
        expiry: u32,
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
    },
    /// The value to add to is not a number.
    NotNumber,
    /// A request without a result of its own took effect.
    Done,
    Failed(Error),
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
