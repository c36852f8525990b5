//! Pages that have no place in the cache: what nodes are read into, and what new ones are made in.
//!
//! A page that is installed stays, and its reader goes on with the one whose place it took. So pages wander all over local memory: were they
//! given back to it, the free memory would be single pages, and maintenance would find none for anything larger.
//!
//! 1. A page that was taken from local memory never goes back to it while the store is open.
//!
//! Threads: any. The lock is held for a word, and under no other.

use std::sync::Mutex;
use tapetum_base::media::io::lock;
use tapetum_drive::{LocalBuffer, LocalMemory};
use tapetum_kernels::ordered::NODE_BYTES;

/// There from the beginning, so that sessions go on however short memory is: a merge of two nodes has two pages at once.
const PAGES_LEAST: usize = 8;

pub struct SparePages {
    pages: Mutex<Vec<LocalBuffer>>,
}

impl SparePages {
    pub fn new(local: &LocalMemory) -> SparePages {
        let pages = (0..PAGES_LEAST).map_while(|_| local.allocate(NODE_BYTES)).collect();
        SparePages { pages: Mutex::new(pages) }
    }

    /// A page, or else what `allocate` gives.
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
