//! Filtered scans: all items are read, and those with a low enough number are kept. The number is the first eight bytes of the value, or a
//! member of the value's document.

use crate::Failure;
use crate::turn::Turn;
use crate::workload::{Key, number_of_json};

/// The output for a kept item: the length of its key, the key, and its number.
pub const KEPT_BYTES: u64 = 2 + size_of::<Key>() as u64 + 8;

/// Name of a count: items that were kept.
pub const KEPT: &str = "kept";
/// Name of a count: items that were read.
pub const LOOKED_AT: &str = "looked at";
/// Name of a count: bytes that came from the drive, whether for the result or to be filtered.
pub const RETURNED_BYTES: &str = "returned bytes";
/// Name of a count: bytes that were sent to the drive.
pub const SENT_BYTES: &str = "sent bytes";
/// Name of a count: bytes that were read from flash for the scan.
pub const FLASH_BYTES: &str = "flash bytes";
/// Name of a count: how often the host was woken for a part of the result.
pub const WAKE_UPS: &str = "wake-ups";

/// The items that a turn keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Filter {
    /// Numbers below this are kept.
    pub below: u64,
    /// Values are JSON documents.
    pub json: bool,
}

impl Filter {
    /// The filter of a turn with the mix `filter-N` or `filter-json-N`: it keeps N of a thousand of these items.
    pub fn of(turn: &Turn, items: u64) -> Result<Filter, Failure> {
        let rest = turn.mix.strip_prefix("filter-");
        let (json, permille) = match rest.and_then(|rest| rest.strip_prefix("json-")) {
            Some(permille) => (true, Some(permille)),
            None => (false, rest),
        };
        let permille = permille.and_then(|permille| permille.parse::<u64>().ok()).filter(|permille| *permille <= 1000);
        let permille =
            permille.ok_or_else(|| format!("a filter's mix is filter-N or filter-json-N, not {}", turn.mix))?;
        Ok(Filter { below: items * permille / 1000, json })
    }

    /// The number of an item with this value, if it is kept.
    pub fn kept(self, value: &[u8]) -> Option<u64> {
        let number = match self.json {
            true => number_of_json(value),
            false => value.first_chunk().map(|number| u64::from_le_bytes(*number)),
        };
        number.filter(|number| *number < self.below)
    }

    /// An error unless exactly the right number of items was kept.
    pub fn check(self, kept: u64, items: u64) -> Result<(), Failure> {
        let expected = self.below.min(items);
        if kept == expected { Ok(()) } else { Err(format!("{kept} items were kept, and {expected} are to be").into()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_filter_keeps_its_part() {
        let mix = |mix: &str| Turn { mix: mix.into(), ..Turn::zipfian_gets(1, 1, Duration::ZERO, 1) };
        let filter = Filter::of(&mix("filter-10"), 5000).unwrap();
        assert_eq!(filter, Filter { below: 50, json: false });
        assert_eq!([49_u64, 50].map(|number| filter.kept(&number.to_le_bytes())), [Some(49), None]);
        assert_eq!(filter.kept(b"short"), None);
        let documents = Filter::of(&mix("filter-json-10"), 5000).unwrap();
        assert_eq!(documents, Filter { below: 50, json: true });
        assert_eq!(
            [49, 50].map(|number| documents.kept(format!(r#"{{"number":{number}}}"#).as_bytes())),
            [Some(49), None]
        );
        assert!(filter.check(50, 5000).is_ok() && filter.check(49, 5000).is_err());
        assert!(Filter::of(&mix("filter-1001"), 1).is_err() && Filter::of(&mix("c"), 1).is_err());
    }
}
