//! In the place of a member that a set goes on without. It has no bytes; nobody asks it for some.

use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

use crate::flash::{Flash, FlashError, FlashQueue};
use crate::memory::PairMemory;
use crate::protocol::{Command, Completion};

/// See the [module](self).
pub struct AbsentFlash;

struct AbsentQueue {
    done: Vec<Completion>,
}

impl Flash for AbsentFlash {
    fn capacity_bytes(&self) -> u64 {
        0
    }

    fn grow(&self, _capacity_bytes: u64) -> Result<(), FlashError> {
        Err(FlashError::Set { place: self.place() })
    }

    fn sector_bytes(&self) -> u32 {
        512
    }

    fn describe(&self) -> String {
        "absent".into()
    }

    fn open_queue(&self, _memory: &PairMemory, _depth: u32) -> io::Result<Box<dyn FlashQueue>> {
        Ok(Box::new(AbsentQueue { done: Vec::new() }))
    }
}

impl FlashQueue for AbsentQueue {
    unsafe fn submit(&mut self, command: &Command) {
        self.done.push(Completion::failed(command.tag, libc::ENODEV));
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        completions.append(&mut self.done);
    }

    fn wait(&mut self, _timeout: Option<Duration>) {}

    fn event_fd(&self) -> Option<RawFd> {
        None
    }
}
