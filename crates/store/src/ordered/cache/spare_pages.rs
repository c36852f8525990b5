//! Spare pages, which have no place in the cache: nodes are read into them, and new nodes are made in them.
//!
//! An installed page stays in the cache, and its reader continues with the buffer that it replaced. So pages wander all over local memory. If they
//! were freed there, the free memory would be single pages, and maintenance would find none for larger buffers.
//!
//! 1. A page that was taken from local memory never goes back to it while the store is open.
//!
//! Threads: any. The lock is held briefly, and no other lock is taken under it.

use std::sync::Mutex;
use tapetum_base::media::io::lock;
use tapetum_drive::{LocalBuffer, LocalMemory};
use tapetum_kernels::ordered::NODE_BYTES;

/// Pages allocated at the start, so that sessions make progress however short memory is: a merge of two nodes needs two pages at once.
const PAGES_LEAST: usize = 8;

pub struct SparePages {
    pages: Mutex<Vec<LocalBuffer>>,
}

impl SparePages {
    pub fn new(local: &LocalMemory) -> SparePages {
        let pages = (0..PAGES_LEAST).map_while(|_| local.allocate(NODE_BYTES)).collect();
        SparePages { pages: Mutex::new(pages) }
    }

    /// Takes a spare page, or else one from `allocate`.
    pub fn take(&self, allocate: impl FnOnce() -> Option<LocalBuffer>) -> Option<LocalBuffer> {
        let spare = lock(&self.pages).pop();
        spare.or_else(allocate)
    }

    pub fn give(&self, page: LocalBuffer) {
        lock(&self.pages).push(page);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_used_again_and_do_not_go_back_to_local_memory() {
        const PAGES: usize = PAGES_LEAST + 4;
        let local = LocalMemory::new(PAGES * NODE_BYTES).unwrap();
        let spare = SparePages::new(&local);
        let pages: Vec<_> = (0..PAGES).map(|_| spare.take(|| local.allocate(NODE_BYTES)).unwrap()).collect();
        assert!(spare.take(|| local.allocate(NODE_BYTES)).is_none());
        pages.into_iter().for_each(|page| spare.give(page));
        assert_eq!(local.bytes_used(), PAGES * NODE_BYTES);
        assert!(spare.take(|| None).is_some());
    }
}
