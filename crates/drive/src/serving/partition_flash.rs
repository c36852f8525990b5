//! The flash of one partition: that of the drive, from its start on, and not beyond its length.

use crate::flash::{Flash, FlashError, FlashQueue, Reservation};
use crate::memory::PairMemory;
use crate::protocol::{Command, Completion, Operation};
use std::io;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub struct PartitionFlash {
    flash: Arc<dyn Flash>,
    name: String,
    start: u64,
    length: AtomicU64,
}

impl PartitionFlash {
    pub fn new(flash: Arc<dyn Flash>, name: &str, start: u64, length: u64) -> PartitionFlash {
        PartitionFlash { flash, name: name.into(), start, length: AtomicU64::new(length) }
    }

    /// The table has it so.
    pub fn set_length(&self, length: u64) {
        self.length.store(length, Ordering::Relaxed);
    }

    fn queue(&self, below: Box<dyn FlashQueue>) -> Box<dyn FlashQueue> {
        Box::new(PartitionQueue { below, start: self.start })
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
        self.flash.open_queue(memory, depth).map(|below| self.queue(below))
    }

    fn open_queue_of_one_thread(&self, memory: &PairMemory, depth: u32) -> io::Result<Box<dyn FlashQueue>> {
        self.flash.open_queue_of_one_thread(memory, depth).map(|below| self.queue(below))
    }
}

/// A queue to which a controller gives addresses inside the partition.
struct PartitionQueue {
    below: Box<dyn FlashQueue>,
    start: u64,
}

impl FlashQueue for PartitionQueue {
    unsafe fn submit(&mut self, command: &Command) {
        let mut command = *command;
        match &mut command.operation {
            Operation::Read { flash, .. } | Operation::Write { flash, .. } | Operation::Discard { flash, .. } => {
                *flash += self.start;
            }
            _ => {}
        }
        // SAFETY: by our caller's word; the partition lies inside the flash.
        unsafe { self.below.submit(&command) };
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        self.below.poll(completions);
    }

    fn wait(&mut self, timeout: Option<Duration>) {
        self.below.wait(timeout);
    }

    fn event_fd(&self) -> Option<RawFd> {
        self.below.event_fd()
    }

    fn rest(&mut self) {
        self.below.rest();
    }
}
