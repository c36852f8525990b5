//! The batches whose changes are in the log, but not yet in images of all their pages: the ordered engine's need of the log.
//!
//! ```text
//! batch: pages taken ─► one group of the log ─► pages changed, batch listed ─► images, each written when the log is durable ─► not needed
//! ```
//! 1. A batch is listed before its writer releases the writers' lock. So the thread that holds all writers sees every batch in the log.
//! 2. A batch stays listed until each page with changes of it has a durable image. The tickets of its pages tell.
//! 3. A batch leaves the list without an append: it needs only images, which is bounded work.
//!
//! Threads: any. Locks: writers → pages → the log's. The list's lock is taken with no other lock held but writers'.

use super::cache::durability_ticket::DurabilityTicket;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock, RwLockReadGuard};
use tapetum_base::media::io::lock;
use tapetum_drive::locks::whole;

struct ListedBatch {
    /// The stamp of the batch's first record.
    stamp: u64,
    tickets: Vec<Arc<DurabilityTicket>>,
}

impl ListedBatch {
    fn is_done(&self) -> bool {
        self.tickets.iter().all(|ticket| ticket.is_done())
    }
}

#[derive(Default)]
pub struct BatchList {
    /// Held for reading by each writer of a batch, from before the append until the batch is listed.
    writers: RwLock<()>,
    /// The batches by stamp.
    listed: Mutex<VecDeque<ListedBatch>>,
    /// A checkpoint was requested: records up to this stamp must not be needed any more.
    wanted: AtomicU64,
    /// The store is being closed.
    is_closed: AtomicBool,
}

pub struct BatchWriter<'a> {
    list: &'a BatchList,
    _held: RwLockReadGuard<'a, ()>,
}

impl BatchWriter<'_> {
    /// Lists the batch with this first stamp, which is in the log and in pages with these tickets.
    pub fn list(&self, stamp: u64, tickets: Vec<Arc<DurabilityTicket>>) {
        let mut listed = lock(&self.list.listed);
        // Two writers may arrive in another order than they appended to the log.
        let place = listed.iter().rposition(|other| other.stamp < stamp).map_or(0, |before| before + 1);
        listed.insert(place, ListedBatch { stamp, tickets });
        drop_done(&mut listed);
    }
}

fn drop_done(listed: &mut VecDeque<ListedBatch>) {
    while listed.front().is_some_and(ListedBatch::is_done) {
        listed.pop_front();
    }
}

impl BatchList {
    /// Begins an append. `None`: no more batches are appended.
    pub fn writer(&self) -> Option<BatchWriter<'_>> {
        let held = whole(self.writers.read());
        (!self.is_closed.load(Ordering::SeqCst)).then_some(BatchWriter { list: self, _held: held })
    }

    /// Refuses all later batches.
    pub fn close(&self) {
        self.hold_writers(|| self.is_closed.store(true, Ordering::SeqCst));
    }

    /// Runs `change` while no batch is between its append and the list.
    pub fn hold_writers(&self, change: impl FnOnce()) {
        let _held = whole(self.writers.write());
        change();
    }

    /// The lowest stamp of a record that is needed; `u64::MAX`: none is needed.
    pub fn stamp_needed(&self) -> u64 {
        let mut listed = lock(&self.listed);
        drop_done(&mut listed);
        listed.front().map_or(u64::MAX, |batch| batch.stamp)
    }

    /// Requests that no record up to `stamp` is needed any more.
    pub fn checkpoint_through(&self, stamp: u64) {
        self.wanted.fetch_max(stamp, Ordering::SeqCst);
    }

    /// Whether pages must be written for a checkpoint.
    pub fn wants_checkpoint(&self) -> bool {
        self.stamp_needed() <= self.wanted.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_batch_that_is_not_in_images_is_needed() {
        let list = BatchList::default();
        let [one, two, three] = [(); 3].map(|()| DurabilityTicket::new());
        list.writer().unwrap().list(20, vec![two.clone(), three.clone()]);
        list.writer().unwrap().list(10, vec![one.clone()]);
        list.writer().unwrap().list(30, vec![three.clone()]);
        assert_eq!((list.stamp_needed(), list.wants_checkpoint()), (10, false));
        list.checkpoint_through(15);
        assert!(list.wants_checkpoint());
        two.image_done();
        one.image_done();
        assert_eq!((list.stamp_needed(), list.wants_checkpoint()), (20, false));
        three.image_done();
        assert_eq!(list.stamp_needed(), u64::MAX);
        list.close();
        assert!(list.writer().is_none());
    }
}
