//! Purposes for which bytes are moved.

/// The purpose of a command, or of an access to local memory. Bytes are counted by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Purpose {
    #[default]
    Other = 0,
    /// Reads of items for clients.
    Get = 1,
    /// Values of clients that are written outside the log.
    Put = 2,
    /// Groups of the commit log.
    Log = 3,
    Flush = 4,
    Collect = 5,
    Recover = 6,
    /// Items that are read into DRAM before a client asks for them.
    Warm = 7,
    /// Scans of all items, for a count or a list.
    Scan = 8,
    /// Checks, and commands that show where something lies.
    Check = 9,
    /// Pipelines over compute units.
    Pipeline = 10,
    /// Splits, merges and purges of an ordered keyspace's nodes.
    Structure = 11,
}

impl Purpose {
    pub const COUNT: usize = Self::ALL.len();
    /// Indexed by number.
    pub const ALL: [Purpose; 12] = [
        Purpose::Other,
        Purpose::Get,
        Purpose::Put,
        Purpose::Log,
        Purpose::Flush,
        Purpose::Collect,
        Purpose::Recover,
        Purpose::Warm,
        Purpose::Scan,
        Purpose::Check,
        Purpose::Pipeline,
        Purpose::Structure,
    ];

    /// `None` if the number is unknown.
    pub fn of_number(number: u8) -> Option<Purpose> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// Its index in [`Purpose::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }

    pub fn name(self) -> &'static str {
        match self {
            Purpose::Other => "other",
            Purpose::Get => "get",
            Purpose::Put => "put",
            Purpose::Log => "log",
            Purpose::Flush => "flush",
            Purpose::Collect => "collect",
            Purpose::Recover => "recover",
            Purpose::Warm => "warm",
            Purpose::Scan => "scan",
            Purpose::Check => "check",
            Purpose::Pipeline => "pipeline",
            Purpose::Structure => "structure",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_places_in_their_list() {
        for (place, purpose) in (0..).zip(Purpose::ALL) {
            assert_eq!((purpose as u8, Purpose::of_number(place)), (place, Some(purpose)));
        }
        assert_eq!(Purpose::of_number(Purpose::COUNT as u8), None);
    }
}
