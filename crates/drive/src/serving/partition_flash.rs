//! The flash of one partition: that of the drive, from its start on, and not beyond its length.

use super::flush_turns::{FlushTurns, TurnedQueue};
use crate::flash::{Flash, FlashError, FlashQueue, Reservation};
use crate::memory::PairMemory;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The flash of a file or device, which its partitions share.
#[derive(Clone)]
pub struct Namespace {
    pub flash: Arc<dyn Flash>,
    pub turns: Arc<FlushTurns>,
}

pub struct PartitionFlash {
    flash: Arc<dyn Flash>,
    turns: Arc<FlushTurns>,
    name: String,
    start: u64,
    length: AtomicU64,
}

impl PartitionFlash {
    pub fn new(namespace: &Namespace, name: &str, start: u64, length: u64) -> PartitionFlash {
        let Namespace { flash, turns } = namespace.clone();
        PartitionFlash { flash, turns, name: name.into(), start, length: AtomicU64::new(length) }
    }

    /// The table has it so.
    pub fn set_length(&self, length: u64) {
        self.length.store(length, Ordering::Relaxed);
    }

    fn queue(&self, below: Box<dyn FlashQueue>) -> io::Result<Box<dyn FlashQueue>> {
        TurnedQueue::open(below, self.start, &self.turns)
    }
}

impl Flash for PartitionFlash {
    fn capacity_bytes(&self) -> u64 {
        self.length.load(Ordering::Relaxed)
    }

    /// Partitions grow by their drive's table.
    fn grow(&self, capacity_bytes: u64) -> Result<(), FlashError> {
        match capacity_bytes.checked_sub(self.capacity_bytes()) {
            None | Some(0) => Ok(()),
            Some(needed_bytes) => Err(FlashError::NoSpace { path: PathBuf::from(self.place()), needed_bytes }),
        }
    }

    fn reserve(&self) -> Result<Reservation, FlashError> {
        self.flash.reserve()
    }

    fn sector_bytes(&self) -> u32 {
        self.flash.sector_bytes()
    }

    fn atomic_write_bytes(&self) -> u32 {
        self.flash.atomic_write_bytes()
    }

    fn describe(&self) -> String {
        format!("partition {} of {}", self.name, self.flash.describe())
    }

    fn place(&self) -> String {
        format!("{}, partition {}", self.flash.place(), self.name)
    }

    fn open_queue(&self, memory: &PairMemory, depth: u32) -> io::Result<Box<dyn FlashQueue>> {
        self.queue(self.flash.open_queue(memory, depth)?)
    }

    fn open_queue_of_one_thread(&self, memory: &PairMemory, depth: u32) -> io::Result<Box<dyn FlashQueue>> {
        self.queue(self.flash.open_queue_of_one_thread(memory, depth)?)
    }
}
