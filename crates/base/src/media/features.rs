//! Features of a store that this version may not know.

use crate::error::Error;
use tapetum_kernels::key_table::Routes;

/// Incompatible: key tables have the slots of keys in a cluster ([`Routes::Slots`]). Set at creation or never.
pub const CLUSTER_SLOTS: u64 = 1;

/// The features that this version knows.
const KNOWN_INCOMPATIBLE: u64 = CLUSTER_SLOTS;
const KNOWN_READ_ONLY_COMPATIBLE: u64 = 0;

/// The features, one bit each.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Features {
    /// A version that does not know one of these cannot read the store.
    pub incompatible: u64,
    /// A version that does not know one of these would damage the store by writing.
    pub read_only_compatible: u64,
}

impl Features {
    /// The features of a new store.
    pub fn of_new(cluster_slots: bool) -> Features {
        Features { incompatible: if cluster_slots { CLUSTER_SLOTS } else { 0 }, ..Features::default() }
    }

    /// The routes of the store's key tables.
    pub fn routes(self) -> Routes {
        if self.incompatible & CLUSTER_SLOTS != 0 { Routes::Slots } else { Routes::Keyspaces }
    }

    /// An error if the store cannot be read.
    pub fn check_read(self) -> Result<(), Error> {
        let unknown = self.incompatible & !KNOWN_INCOMPATIBLE;
        if unknown == 0 {
            return Ok(());
        }
        Err(Error::OtherFormat(format!(
            "the store has features that this tapetum does not know (incompatible {}): use the newer tapetum that made it; nothing was \
             written",
            named(unknown)
        )))
    }

    /// An error if the store cannot be written to.
    pub fn check_write(self) -> Result<(), Error> {
        let unknown = self.read_only_compatible & !KNOWN_READ_ONLY_COMPATIBLE;
        if unknown == 0 {
            return Ok(());
        }
        Err(Error::OtherFormat(format!(
            "the store has features that this tapetum would spoil by writing (read-only-compatible {}): open it to read, or use the \
             newer tapetum that made it; nothing was written",
            named(unknown)
        )))
    }
}

fn named(bits: u64) -> String {
    let numbers: Vec<String> = (0..64).filter(|bit| bits >> bit & 1 == 1).map(|bit: u32| bit.to_string()).collect();
    match numbers.split_last() {
        Some((last, [])) => format!("bit {last}"),
        Some((last, others)) => format!("bits {} and {last}", others.join(", ")),
        None => "no bit".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_named_as_people_write_lists() {
        assert_eq!([1, 5, 7 | 1 << 63].map(named), ["bit 0", "bits 0 and 2", "bits 0, 1, 2 and 63"]);
    }
}
