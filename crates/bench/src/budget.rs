//! The DRAM and flash that a cache may take, and what memcached with extstore is told to stay within them.

use std::path::Path;

/// The DRAM part of an item on flash lies in one small class of slabs, and other classes have the slabs at first. So slabs are moved every
/// three seconds rather than every thirty, and extstore looks for items to write every millisecond rather than every second. Otherwise it
/// evicts most items while slabs are moved.
const EXTSTORE_KEEPS_MOST: &str = "ext_item_size=128,ext_wbuf_size=2,ext_max_sleep=1000,slab_automove_window=3";
/// With less it does not start.
const EXTSTORE_MEMORY_BYTES_MIN: u64 = 64 << 20;
/// Beside its memory, extstore gets a page cache of the same size, and this for its hash table, write buffers and threads, which -m does
/// not count.
const EXTSTORE_BESIDE_BYTES: u64 = 128 << 20;

#[derive(Clone, Copy)]
pub struct Budget {
    pub memory_bytes: u64,
    pub flash_bytes: u64,
}

impl Budget {
    /// memcached's options.
    pub fn extstore_options(&self, data: &Path) -> Vec<String> {
        let (memory, flash) = (self.extstore_memory_bytes() >> 20, self.flash_bytes >> 20);
        let path = data.join("ext");
        let ext = format!("ext_path={}:{flash}M,{EXTSTORE_KEEPS_MOST}", path.display());
        let options = ["-t", "1", "-m", &memory.to_string(), "-I", "1m", "-o", &ext];
        options.map(str::to_owned).into()
    }

    fn extstore_memory_bytes(&self) -> u64 {
        self.memory_bytes.max(EXTSTORE_MEMORY_BYTES_MIN)
    }

    /// The limit of extstore's control group, page cache included.
    pub fn extstore_confined_bytes(&self) -> u64 {
        self.extstore_memory_bytes() * 2 + EXTSTORE_BESIDE_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extstore_has_the_budget_and_never_less_than_it_starts_with() {
        let budget = Budget { memory_bytes: 256 << 20, flash_bytes: 6 << 30 };
        let options = budget.extstore_options("/x".as_ref()).join(" ");
        assert!(options.contains("-m 256 ") && options.contains("ext_path=/x/ext:6144M,"), "{options}");
        let small = Budget { memory_bytes: 32 << 20, ..budget };
        assert!(small.extstore_options("/x".as_ref()).join(" ").contains("-m 64 "));
    }
}
