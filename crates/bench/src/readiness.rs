//! Which of many connections have something to read: an epoll behind safe functions.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Reported in one go.
const READY_MAX: usize = 256;

pub struct Readiness {
    epoll: OwnedFd,
    events: Vec<libc::epoll_event>,
}

impl Readiness {
    pub fn new() -> io::Result<Readiness> {
        // SAFETY: takes no pointers.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and ours alone.
        let epoll = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Readiness { epoll, events: vec![libc::epoll_event { events: 0, u64: 0 }; READY_MAX] })
    }

    /// Watches `source`, to be reported as `number`, for as long as it is open.
    pub fn watch(&self, source: &impl AsRawFd, number: usize) -> io::Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: number as u64 };
        // SAFETY: the event lives through the call.
        match unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, source.as_raw_fd(), &mut event) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Waits until some are ready, for `timeout_ms` at most; the numbers of those that are.
    pub fn wait(&mut self, timeout_ms: i32) -> io::Result<impl Iterator<Item = usize>> {
        let (events, room) = (self.events.as_mut_ptr(), READY_MAX as libc::c_int);
        // SAFETY: the kernel writes at most as many events as there is room for.
        let count = unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), events, room, timeout_ms) };
        let count = match usize::try_from(count) {
            Ok(count) => count,
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => 0,
                error => return Err(error),
            },
        };
        Ok(self.events[..count].iter().map(|event| event.u64 as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    #[test]
    fn reports_who_has_something_to_read() {
        let mut readiness = Readiness::new().unwrap();
        let mut pairs: Vec<_> = (0..3).map(|_| UnixStream::pair().unwrap()).collect();
        for (number, (ours, _)) in pairs.iter().enumerate() {
            readiness.watch(ours, number).unwrap();
        }
        assert_eq!(readiness.wait(0).unwrap().count(), 0);
        pairs[2].1.write_all(b"x").unwrap();
        assert_eq!(readiness.wait(-1).unwrap().collect::<Vec<_>>(), [2]);
        pairs[2].0.read_exact(&mut [0]).unwrap();
        assert_eq!(readiness.wait(0).unwrap().count(), 0);
    }
}
