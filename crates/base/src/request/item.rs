//! The facts about an item beside its value, and about its use. Plain data.

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

/// The use of an item, as far as memory knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Access {
    /// The item was read since it was written.
    pub was_read: bool,
    /// Seconds since the last read from the DRAM tier, to about a minute. If there was none, seconds since the last write, where a touch counts as
    /// one. For items written before the store was opened, the opening counts as the write.
    pub idle_seconds: u32,
}
