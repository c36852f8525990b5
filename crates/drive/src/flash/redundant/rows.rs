//! Which form each extent of a set with redundancy has, and the parity of rows that are being written.
//!
//! Whoever hands extents out says what they become: a stripe when they are taken or found, a run of copies likewise. Nothing of it is on
//! flash: what refers to an extent says what it is.
//!
//! 1. Of an extent that was taken for a stripe, each byte of a row is written once, all of the row or nothing. When a row's last byte is on its way, its
//!    parity is whole, and goes with that write.
//! 2. Rows of an extent are ended in their order. One that has ended has its parity, and so has an extent that was found. Writing there again puts back what
//!    was there before, and leaves the parity as it is.
//!
//! Threads: any. The rows of one extent share a lock with others, held while bytes are added to a sum.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard};

use tapetum_kernels::parity;

use super::shape::{Redundancy, Shape};
use crate::locks::whole;

/// A stripe that was found, or nothing.
const FOUND: u32 = u32::MAX;
/// A stripe that was taken, and is being written.
const TAKEN: u32 = u32::MAX - 1;
/// Open rows are spread over so many locks.
const LOCKS: usize = 16;

/// The form of an extent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    Stripe,
    /// Copies; the run begins with this extent.
    Copies {
        first: u32,
    },
}

/// See the [module](self).
pub struct Rows {
    shape: Shape,
    /// By extent: [`FOUND`], [`TAKEN`], or the first extent of its run of copies.
    forms: Box<[AtomicU32]>,
    /// How many rows of each extent have ended.
    ended: Box<[AtomicU32]>,
    /// Runs of copies, by their first extents: how many have addresses.
    runs: Mutex<BTreeMap<u32, u32>>,
    open: [Mutex<BTreeMap<u64, OpenRow>>; LOCKS],
}

/// The sum of what was written of a row so far.
struct OpenRow {
    sum: Box<[u8]>,
    bytes: u64,
}

impl Rows {
    pub fn new(shape: Shape) -> Rows {
        let forms = (0..shape.extents).map(|_| AtomicU32::new(FOUND)).collect();
        let ended = (0..shape.extents).map(|_| AtomicU32::new(0)).collect();
        Rows { shape, forms, ended, runs: Mutex::default(), open: Default::default() }
    }

    /// The bytes that are written whole, in a stripe; whoever writes fewer writes zeros behind them, up to the end of the extent. 1 where there are
    /// no stripes.
    pub fn row_bytes(&self) -> u64 {
        match self.shape.redundancy {
            Redundancy::Mirror => 1,
            Redundancy::Raid5 => self.shape.row_bytes(),
        }
    }

    /// The extents that a run of `count` takes if it is kept as copies.
    pub fn run_extents(&self, count: u32) -> u32 {
        self.shape.run_extents(count)
    }

    /// An extent becomes a stripe, to be written from now on.
    pub fn take_stripe(&self, extent: u32) {
        self.forget(extent);
        self.form_of(extent).store(TAKEN, Ordering::Release);
    }

    /// A stripe was found that is whole.
    pub fn find_stripe(&self, extent: u32) {
        self.forget(extent);
        self.form_of(extent).store(FOUND, Ordering::Release);
    }

    /// A run of `count` extents, and those behind it that [`Rows::run_extents`] adds, becomes copies.
    pub fn begin_copies(&self, first: u32, count: u32) {
        whole(self.runs.lock()).insert(first, count);
        for extent in first..first + self.run_extents(count) {
            self.forget(extent);
            self.form_of(extent).store(first, Ordering::Release);
        }
    }

    /// A run of copies is needed no more.
    pub fn end_copies(&self, first: u32) {
        whole(self.runs.lock()).remove(&first);
    }

    /// Runs of copies: the first extents, and how many have addresses.
    pub fn runs(&self) -> Vec<(u32, u32)> {
        whole(self.runs.lock()).iter().map(|(first, count)| (*first, *count)).collect()
    }

    pub fn form(&self, extent: u32) -> Form {
        if self.shape.redundancy == Redundancy::Mirror {
            return Form::Copies { first: 0 };
        }
        match self.form_of(extent).load(Ordering::Acquire) {
            FOUND | TAKEN => Form::Stripe,
            first => Form::Copies { first },
        }
    }

    /// The first extent of the run of copies that an extent belongs to, which is a run of its own except in a mirrored set.
    pub fn run_of(&self, extent: u32) -> u32 {
        match self.shape.redundancy {
            Redundancy::Mirror => 0,
            Redundancy::Raid5 => extent,
        }
    }

    /// Where a run of copies begins in what [`Rows::run_of`] names.
    pub fn place_in_run(&self, first: u32) -> u64 {
        u64::from(first - self.run_of(first)) * self.shape.extent_bytes
    }

    /// Adds bytes that go to a row's chunk at `at`. The parity of the row's first bytes, as many as a chunk has, if these were the last.
    pub fn add(&self, row: u64, at: u64, bytes: &[u8]) -> Option<Box<[u8]>> {
        let extent = self.shape.extent_of_row(row);
        if self.form_of(extent).load(Ordering::Acquire) != TAKEN {
            return None;
        }
        let row_bytes = self.shape.chunks_of(row) as u64 * self.shape.chunk_bytes();
        let mut open = self.lock_rows_of(extent);
        let (in_extent, ended) = ((row % self.shape.rows_per_extent()) as u32, &self.ended[extent as usize]);
        if in_extent < ended.load(Ordering::Relaxed) {
            return None;
        }
        let fresh = || OpenRow { sum: vec![0; self.shape.chunk_bytes() as usize].into(), bytes: 0 };
        let sum = open.entry(row).or_insert_with(fresh);
        parity::add(&mut sum.sum[at as usize..][..bytes.len()], bytes);
        sum.bytes += bytes.len() as u64;
        if sum.bytes < row_bytes {
            return None;
        }
        ended.store(in_extent + 1, Ordering::Relaxed);
        open.remove(&row).map(|row| row.sum)
    }

    /// Drops the sums of an extent.
    fn forget(&self, extent: u32) {
        let rows = self.shape.rows_per_extent();
        let first = u64::from(extent) * rows;
        let mut open = self.lock_rows_of(extent);
        let old: Vec<u64> = open.range(first..first + rows).map(|(row, _)| *row).collect();
        old.iter().for_each(|row| drop(open.remove(row)));
        self.ended[extent as usize].store(0, Ordering::Relaxed);
    }

    fn form_of(&self, extent: u32) -> &AtomicU32 {
        &self.forms[extent as usize]
    }

    fn lock_rows_of(&self, extent: u32) -> MutexGuard<'_, BTreeMap<u64, OpenRow>> {
        whole(self.open[extent as usize % LOCKS].lock())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rows_parity_is_there_once_all_of_it_was_written() {
        let rows = Rows::new(Shape::within(Redundancy::Raid5, 3, 0, 16 << 10, 1 << 20));
        assert_eq!(rows.row_bytes(), 16 << 10);
        rows.take_stripe(2);
        assert_eq!(rows.add(2, 0, &[1; 4096]), None);
        assert_eq!(rows.add(2, 4096, &[2; 4096]), None);
        rows.take_stripe(2);
        assert_eq!(rows.add(2, 0, &[4; 8192]), None, "what an earlier tenant began is forgotten");
        let parity = rows.add(2, 0, &[3; 8192]).unwrap();
        assert!(parity.len() == 8192 && parity.iter().all(|byte| *byte == 7));
        assert_eq!(rows.add(2, 0, &[3; 8192]).or(rows.add(2, 0, &[3; 8192])), None, "it has ended");
        rows.find_stripe(2);
        assert_eq!(rows.add(2, 0, &[3; 8192]).or(rows.add(2, 0, &[3; 8192])), None, "it has its parity");
    }

    #[test]
    fn a_run_of_copies_is_known_by_its_first_extent() {
        let rows = Rows::new(Shape::within(Redundancy::Raid5, 3, 0, 16 << 10, 1 << 20));
        rows.begin_copies(3, 3);
        assert_eq!(rows.run_extents(3), 4);
        assert_eq!([2, 3, 6, 7].map(|extent| rows.form(extent)), {
            let copies = Form::Copies { first: 3 };
            [Form::Stripe, copies, copies, Form::Stripe]
        });
        assert_eq!(rows.runs(), [(3, 3)]);
        rows.end_copies(3);
        rows.take_stripe(4);
        assert_eq!((rows.runs(), rows.form(4)), (vec![], Form::Stripe));
    }
}
