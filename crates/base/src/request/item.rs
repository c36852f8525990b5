//! What is known of an item beside its value, and of its use. Plain data.

use tapetum_kernels::expiry::Expiry;
use tapetum_kernels::record::{Header, Marks};

/// An item without its value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ItemHead {
    pub flags: u32,
    pub expiry: Expiry,
    pub stamp: u64,
    pub value_bytes: usize,
    pub marks: Marks,
}

impl ItemHead {
    pub fn of(header: &Header) -> ItemHead {
        let Header { flags, expiry, stamp, marks, raw_bytes, .. } = *header;
        ItemHead { flags, expiry, stamp, value_bytes: raw_bytes as usize, marks }
    }
}

/// What memory knows of an item's use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Access {
    /// It was read since it was written.
    pub was_read: bool,
    /// Seconds since it was last read from the DRAM tier, to about a minute, or else since it was written, by a touch too. What
    /// was written before the store was opened counts from there.
    pub idle_seconds: u32,
}
