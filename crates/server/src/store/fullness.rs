//! Warns before the store is full, and when it begins to evict: each once, until there is room again. [`crate::store::failure_log`] reports
//! that it is full. One thread.

use tapetum::{Full, Keyspace, Stats};

use tapetum_service::size;

/// The warning comes with less free room than the first, and is re-armed with more than the second: as parts of all room for items.
const NEAR_PART: u64 = 10;
const FREE_PART: u64 = 6;

pub fn is_device(keyspace: &Keyspace) -> bool {
    keyspace.block_device().is_ok_and(|device| device.is_some())
}

/// Advice on how to make room on flash. With block devices, items are never evicted.
pub fn flash_advice(has_devices: bool) -> &'static str {
    match has_devices {
        false => {
            "give a larger --capacity (`tapetum resize` does while the server runs), serve with --full evict, which drops the coldest items, \
             or delete keys"
        }
        true => {
            "give a larger --capacity (`tapetum resize` does while the server runs), let the file systems on the block devices trim what \
             they do not use (`fstrim`, or their mount option `discard`), or delete keys"
        }
    }
}

#[derive(Debug, Default)]
pub struct FullnessWatch {
    flash: RoomWatch,
    index: RoomWatch,
    has_evicted: bool,
}

impl FullnessWatch {
    /// Checks the current figures. Returns the warnings to log.
    pub fn look(&mut self, stats: &Stats, full: Full, has_devices: bool) -> Vec<String> {
        let mut told = Vec::new();
        if full == Full::Evict {
            if stats.evictions > 0 && !std::mem::replace(&mut self.has_evicted, true) {
                told.push(
                    "the store is full and evicts from now on: the coldest items make room for new ones (--full evict); a larger \
                     --capacity keeps more"
                        .into(),
                );
            }
            return told;
        }
        let flash_bytes = stats.flash_limit_bytes.saturating_sub(stats.flash_reserve_bytes);
        if self.flash.is_near(stats.flash_room_bytes, flash_bytes) {
            let (room, of) = (size::shown(stats.flash_room_bytes), size::shown(flash_bytes));
            told.push(format!(
                "flash is nearly full: {room} of {of} are left, and then new keys are refused; {}",
                flash_advice(has_devices)
            ));
        }
        let entries = stats.index_entries + stats.index_room_entries;
        if self.index.is_near(stats.index_room_entries, entries) {
            told.push(format!(
                "the index is nearly full: there is room for {} more keys, and then new ones are refused; give a larger --memory \
                 (`tapetum resize` does while the server runs), or delete keys",
                size::grouped(stats.index_room_entries)
            ));
        }
        told
    }
}

/// State of the warning for one kind of room.
#[derive(Debug, Default)]
struct RoomWatch {
    was_told: bool,
}

impl RoomWatch {
    /// Whether room has become scarce since there was plenty.
    fn is_near(&mut self, room: u64, of: u64) -> bool {
        if room >= of / FREE_PART {
            self.was_told = false;
        }
        let is_new = room < of / NEAR_PART && !std::mem::replace(&mut self.was_told, true);
        // If it is full already, the refused requests have been logged.
        is_new && room > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(room: u64, index_room: u64, evictions: u64) -> Stats {
        Stats {
            flash_limit_bytes: 110 << 20,
            flash_reserve_bytes: 10 << 20,
            flash_room_bytes: room << 20,
            index_entries: 1000 - index_room,
            index_room_entries: index_room,
            evictions,
            ..Stats::default()
        }
    }

    #[test]
    fn each_kind_of_room_is_told_once_until_there_is_plenty() {
        let mut watch = FullnessWatch::default();
        let mut told = |room, index_room| watch.look(&stats(room, index_room, 0), Full::Error, false).join("\n");
        assert_eq!(told(100, 1000), "");
        let flash = told(9, 500);
        assert!(flash.contains("9 MiB of 100 MiB") && flash.contains("--capacity"), "{flash}");
        assert_eq!(told(5, 500), "");
        // A little free room, such as the collector makes, does not re-arm the warning.
        assert_eq!(told(12, 500), "");
        assert_eq!(told(8, 500), "");
        let index = told(0, 99);
        assert!(index.contains("99 more keys") && index.contains("--memory"), "{index}");
        assert_eq!(told(50, 500), "");
        assert_ne!(told(9, 500), "");
        assert_eq!(told(50, 500), "");
        assert_eq!(told(0, 500), "", "that it is full is told already");
    }

    #[test]
    fn a_store_with_block_devices_is_told_of_trims() {
        let told = FullnessWatch::default().look(&stats(9, 1000, 0), Full::Error, true).join("\n");
        assert!(told.contains("9 MiB of 100 MiB") && told.contains("fstrim") && !told.contains("evict"), "{told}");
    }

    #[test]
    fn a_store_that_evicts_says_so_once_and_is_never_nearly_full() {
        let mut watch = FullnessWatch::default();
        let mut told = |evictions| watch.look(&stats(0, 0, evictions), Full::Evict, false).join("\n");
        assert_eq!(told(0), "");
        assert!(told(7).contains("evicts from now on"));
        assert_eq!(told(8), "");
    }
}
