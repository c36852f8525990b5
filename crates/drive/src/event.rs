//! An eventfd: readable from a raise to the next clear. Any thread may do either.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

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

    /// One that another process made.
    pub(crate) fn of_other(event: OwnedFd) -> Event {
        Event(event.into())
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

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// An entry for [`sleep_on`].
pub(crate) fn readable(fd: RawFd) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
}

/// Sleeps until one of them is readable, or the timeout ends. May return early for no reason.
pub(crate) fn sleep_on(entries: &mut [libc::pollfd], timeout: Option<Duration>) {
    let timeout = timeout.map(|timeout| libc::timespec {
        tv_sec: timeout.as_secs().min(i64::MAX as u64) as libc::time_t,
        tv_nsec: timeout.subsec_nanos().into(),
    });
    let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: live entries, and a live timespec or none. An error is an interruption.
    unsafe { libc::ppoll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, timeout, std::ptr::null()) };
}

/// As [`sleep_on`], with one descriptor; whether it is readable.
pub(crate) fn is_readable_within(fd: RawFd, timeout: Option<Duration>) -> bool {
    let mut entry = readable(fd);
    sleep_on(std::slice::from_mut(&mut entry), timeout);
    entry.revents != 0
}

/// A descriptor that is readable while one of several is.
pub(crate) struct EventSet(OwnedFd);

impl EventSet {
    pub fn new(fds: &[RawFd]) -> io::Result<EventSet> {
        // SAFETY: takes no pointers.
        let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if epoll < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made and nobody else has it.
        let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
        let set = EventSet(epoll);
        fds.iter().try_for_each(|fd| set.add(*fd))?;
        Ok(set)
    }

    pub fn add(&self, fd: RawFd) -> io::Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        // SAFETY: the pointer is to a live event.
        match unsafe { libc::epoll_ctl(self.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) } {
            0.. => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl AsRawFd for EventSet {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
