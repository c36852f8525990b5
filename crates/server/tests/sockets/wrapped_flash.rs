//! Flash whose queues a test wraps; all else is as in the flash within.

use std::io;

use tapetum_drive::{Flash, FlashError, FlashQueue, PairMemory};

/// Makes a test's queue of the flash's own.
type WrapQueue = fn(Box<dyn FlashQueue>) -> io::Result<Box<dyn FlashQueue>>;

pub struct WrappedFlash<F>(pub F, pub WrapQueue);

impl<F: Flash> Flash for WrappedFlash<F> {
    fn capacity_bytes(&self) -> u64 {
        self.0.capacity_bytes()
    }

    fn grow(&self, capacity_bytes: u64) -> Result<(), FlashError> {
        self.0.grow(capacity_bytes)
    }

    fn sector_bytes(&self) -> u32 {
        self.0.sector_bytes()
    }

    fn describe(&self) -> String {
        self.0.describe()
    }

    fn open_queue(&self, memory: &PairMemory, depth: u32) -> io::Result<Box<dyn FlashQueue>> {
        (self.1)(self.0.open_queue(memory, depth)?)
    }
}
