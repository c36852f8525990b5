//! An eventfd: readable from a raise to the next clear. Any thread may do either.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};

pub struct Event(File);

impl Event {
    pub fn new() -> io::Result<Event> {
        // SAFETY: takes no pointers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made and nobody else has it.
        Ok(Event(unsafe { File::from_raw_fd(fd) }))
    }

    pub fn raise(&self) {
        // A full counter fails, and is as good as raised.
        let _ = (&self.0).write(&1u64.to_ne_bytes());
    }

    /// How often it was raised since it was last cleared.
    pub fn clear(&self) -> u64 {
        let mut count = [0; 8];
        // Not raised, nothing to clear.
        if (&self.0).read(&mut count).is_ok() { u64::from_ne_bytes(count) } else { 0 }
    }
}

impl AsRawFd for Event {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
