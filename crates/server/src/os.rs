//! The system calls of the event loop behind safe functions. No state but the descriptors.

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

pub(crate) fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn check_size(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Which readiness to report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    pub read: bool,
    pub write: bool,
    /// Of several epolls that watch one descriptor, wake few.
    pub exclusive: bool,
    /// Report what becomes ready, not what stays so.
    pub edge: bool,
}

impl Interest {
    pub const READ: Interest = Interest { read: true, write: false, exclusive: false, edge: false };
    pub const NONE: Interest = Interest { read: false, write: false, exclusive: false, edge: false };

    fn bits(self) -> u32 {
        let mut bits = 0;
        for (wanted, bit) in [
            (self.read, libc::EPOLLIN),
            (self.write, libc::EPOLLOUT),
            (self.exclusive, libc::EPOLLEXCLUSIVE),
            (self.edge, libc::EPOLLET),
        ] {
            bits |= if wanted { bit as u32 } else { 0 };
        }
        bits
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Ready {
    pub id: u64,
    pub read: bool,
    pub write: bool,
    /// The peer is gone, or the descriptor is in error.
    pub gone: bool,
}

/// What one wait reports. Few, so that what these ask for is on its way to flash, or answered, while the next are read: with all at
/// once the flash waits for the sockets, and then the sockets for the flash.
pub const EVENTS_MAX: usize = 16;

pub struct Epoll {
    fd: OwnedFd,
    events: Vec<libc::epoll_event>,
}

impl Epoll {
    pub fn new() -> io::Result<Epoll> {
        // SAFETY: no pointers; the descriptor is new and ours alone.
        let fd = unsafe { OwnedFd::from_raw_fd(check(libc::epoll_create1(libc::EPOLL_CLOEXEC))?) };
        Ok(Epoll { fd, events: vec![libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX] })
    }

    fn control(&self, operation: libc::c_int, fd: RawFd, id: u64, interest: Interest) -> io::Result<()> {
        let mut event = libc::epoll_event { events: interest.bits(), u64: id };
        // SAFETY: `event` lives through the call.
        check(unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), operation, fd, &mut event) })?;
        Ok(())
    }

    pub fn add(&self, fd: RawFd, id: u64, interest: Interest) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, id, interest)
    }

    pub fn change(&self, fd: RawFd, id: u64, interest: Interest) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, id, interest)
    }

    pub fn remove(&self, fd: RawFd) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_DEL, fd, 0, Interest::NONE)
    }

    /// Waits until something is ready or `timeout_ms` have passed; -1 is for ever.
    pub fn wait(&mut self, timeout_ms: i32, ready: &mut Vec<Ready>) -> io::Result<()> {
        ready.clear();
        let room = self.events.len() as libc::c_int;
        // SAFETY: the kernel writes at most `room` events into the vector, which holds as many.
        let count = unsafe { libc::epoll_wait(self.fd.as_raw_fd(), self.events.as_mut_ptr(), room, timeout_ms) };
        let count = match check(count) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            other => other? as usize,
        };
        ready.extend(self.events[..count].iter().map(|event| {
            let bits = event.events as i32;
            Ready {
                id: event.u64,
                read: bits & (libc::EPOLLIN | libc::EPOLLRDHUP) != 0,
                write: bits & libc::EPOLLOUT != 0,
                gone: bits & (libc::EPOLLHUP | libc::EPOLLERR) != 0,
            }
        }));
        Ok(())
    }
}

pub fn read(fd: RawFd, into: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the kernel writes at most `into.len()` bytes there.
    check_size(unsafe { libc::read(fd, into.as_mut_ptr().cast(), into.len()) })
}

/// Reads into the spare capacity of `into`, at most `bytes_max`, and makes what came part of it.
pub fn read_more(fd: RawFd, into: &mut Vec<u8>, bytes_max: usize) -> io::Result<usize> {
    let spare = into.spare_capacity_mut();
    let room = spare.len().min(bytes_max);
    // SAFETY: the kernel writes at most `room` bytes into the spare capacity.
    let count = check_size(unsafe { libc::read(fd, spare.as_mut_ptr().cast(), room) })?;
    assert!(count <= room, "the kernel returned more than was asked for");
    // SAFETY: the kernel has written the first `count` spare bytes.
    unsafe { into.set_len(into.len() + count) };
    Ok(count)
}

/// One write of several pieces; how many bytes went.
pub fn write_all_at_once(fd: RawFd, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
    // SAFETY: an IoSlice is laid out as an iovec, and the borrowed pieces live through the call.
    check_size(unsafe { libc::writev(fd, pieces.as_ptr().cast(), pieces.len() as libc::c_int) })
}

/// What [`write_all_at_once`] does, to a socket: one piece, which most replies are, goes by the call that costs least.
pub fn send(socket: RawFd, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
    match pieces {
        // SAFETY: the kernel reads the piece, which lives through the call.
        [piece] => check_size(unsafe { libc::send(socket, piece.as_ptr().cast(), piece.len(), libc::MSG_NOSIGNAL) }),
        pieces => write_all_at_once(socket, pieces),
    }
}

/// The next connection waiting at `listener`, not blocking.
pub fn accept(listener: RawFd) -> io::Result<OwnedFd> {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: null says that the peer's address is not wanted; the descriptor is new and ours alone.
    unsafe {
        let fd = check(libc::accept4(listener, std::ptr::null_mut(), std::ptr::null_mut(), flags))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// Sends small replies at once. Sockets that are not TCP have no such delay.
pub fn set_no_delay(fd: RawFd) {
    let on: libc::c_int = 1;
    // SAFETY: the option's value lives through the call and is as long as said. A failure costs latency only.
    let _ = unsafe {
        let size = size_of::<libc::c_int>() as libc::socklen_t;
        libc::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, (&raw const on).cast(), size)
    };
}

/// Says that nothing more will be written.
pub fn shut_down_write(fd: RawFd) {
    // SAFETY: no pointers. A peer that is gone needs no farewell.
    let _ = unsafe { libc::shutdown(fd, libc::SHUT_WR) };
}

/// Blocks the signals that stop a server, in this thread and those it makes, and returns a descriptor that reads them instead. SIGHUP is
/// one of them, as a terminal that closes sends it, unless whoever started the server said that it is to outlive that (`nohup`). SIGQUIT
/// is left to end it at once, with a core dump where those are on: a way out if stopping takes too long.
pub fn termination_signals() -> io::Result<OwnedFd> {
    let mut stopping = vec![libc::SIGTERM, libc::SIGINT, libc::SIGPWR];
    if !is_ignored(libc::SIGHUP)? {
        stopping.push(libc::SIGHUP);
    }
    // Other servers rotate logs or reread a configuration at these, so people send them.
    ignore(&[libc::SIGUSR1, libc::SIGUSR2]);
    // SAFETY: the set is initialised before use and lives through each call; the descriptor is new and ours alone.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in stopping {
            libc::sigaddset(&mut set, signal);
        }
        match libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) {
            0 => {}
            errno => return Err(io::Error::from_raw_os_error(errno)),
        }
        Ok(OwnedFd::from_raw_fd(check(libc::signalfd(-1, &set, libc::SFD_CLOEXEC))?))
    }
}

/// A write beyond the limit on file sizes (`ulimit -f`) is an error from now on, not the end of the process.
pub fn ignore_file_size_signal() {
    ignore(&[libc::SIGXFSZ]);
}

fn ignore(signals: &[libc::c_int]) {
    for &signal in signals {
        // SAFETY: no handler runs; it fails for no signal that can be ignored.
        let _ = unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

fn is_ignored(signal: libc::c_int) -> io::Result<bool> {
    // SAFETY: an all-zero sigaction is valid and lives through the call, which changes nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        check(libc::sigaction(signal, std::ptr::null(), &mut action))?;
        Ok(action.sa_sigaction == libc::SIG_IGN)
    }
}

/// What people call a signal.
pub fn signal_name(signal: i32) -> String {
    let name = match signal {
        libc::SIGTERM => "SIGTERM",
        libc::SIGINT => "SIGINT",
        libc::SIGHUP => "SIGHUP",
        libc::SIGPWR => "SIGPWR",
        other => return format!("signal {other}"),
    };
    name.into()
}

/// Waits for one of the signals for so long, and says which.
pub fn wait_for_signal_until(signals: BorrowedFd<'_>, timeout: Duration) -> io::Result<Option<i32>> {
    let mut watched = libc::pollfd { fd: signals.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let timeout_ms = timeout.as_millis().min(1 << 20) as libc::c_int;
    // SAFETY: `watched` lives through the call, and is one.
    match check(unsafe { libc::poll(&mut watched, 1, timeout_ms) }) {
        Ok(0) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
        other => other.and_then(|_| wait_for_signal(signals)).map(Some),
    }
}

/// Waits for one of the signals and says which.
pub fn wait_for_signal(signals: BorrowedFd<'_>) -> io::Result<i32> {
    let mut record = [0u8; size_of::<libc::signalfd_siginfo>()];
    loop {
        match read(signals.as_raw_fd(), &mut record) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => {
                let count = other?;
                assert_eq!(count, record.len(), "a signal record is read whole");
                return Ok(i32::from_ne_bytes([record[0], record[1], record[2], record[3]]));
            }
        }
    }
}

/// Asks this process to stop, as a user would.
pub fn terminate_this_process() {
    // SAFETY: no pointers; the process may always signal itself.
    let _ = unsafe { libc::kill(libc::getpid(), libc::SIGTERM) };
}

/// Raises the limit on open files to `files`, as far as this process may.
pub fn allow_open_files(files: u64) -> io::Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` lives through both calls.
    unsafe {
        check(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit))?;
        if limit.rlim_cur < files {
            limit.rlim_cur = files.min(limit.rlim_max);
            check(libc::setrlimit(libc::RLIMIT_NOFILE, &limit))?;
        }
    }
    Ok(limit.rlim_cur)
}

/// Returns large blocks to the system as soon as they are freed: buffers come and go with the clients.
pub fn return_freed_memory() {
    // SAFETY: no pointers; called before other threads allocate.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 128 << 10);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 1 << 20);
        libc::mallopt(libc::M_ARENA_MAX, 4);
    }
}

/// Columns and rows of the terminal at standard output, if that is one.
pub fn terminal_size() -> Option<(usize, usize)> {
    // SAFETY: an all-zero winsize is valid and lives through the call.
    let size = unsafe {
        let mut size: libc::winsize = std::mem::zeroed();
        check(libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &mut size)).ok()?;
        size
    };
    (size.ws_col > 0 && size.ws_row > 0).then_some((usize::from(size.ws_col), usize::from(size.ws_row)))
}

/// User and system time of this process, in microseconds.
pub fn cpu_time_us() -> (u64, u64) {
    // SAFETY: an all-zero rusage is valid and lives through the call, which cannot fail for this process.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let us = |time: libc::timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
    (us(usage.ru_utime), us(usage.ru_stime))
}

/// What of this process is in DRAM.
pub fn resident_memory_bytes() -> io::Result<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    // SAFETY: sysconf takes no pointers.
    let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
    pages.map(|pages| pages * page_bytes).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;
    use tapetum_drive::Event;

    #[test]
    fn an_event_wakes_until_it_is_cleared() {
        let (mut epoll, event, mut ready) = (Epoll::new().unwrap(), Event::new().unwrap(), Vec::new());
        epoll.add(event.as_raw_fd(), 7, Interest::READ).unwrap();
        epoll.wait(0, &mut ready).unwrap();
        assert!(ready.is_empty());
        event.raise();
        event.raise();
        epoll.wait(-1, &mut ready).unwrap();
        assert_eq!((ready.len(), ready[0].id, ready[0].read), (1, 7, true));
        event.clear();
        epoll.wait(0, &mut ready).unwrap();
        assert!(ready.is_empty());
    }

    #[test]
    fn reads_no_more_than_asked_into_spare_capacity() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let pieces = [IoSlice::new(b"abc"), IoSlice::new(b"defgh")];
        assert_eq!(send(theirs.as_raw_fd(), &pieces).unwrap(), 8);
        let mut buffer = Vec::with_capacity(64);
        buffer.push(b'>');
        assert_eq!(read_more(ours.as_raw_fd(), &mut buffer, 5).unwrap(), 5);
        assert_eq!(buffer, b">abcde");
        assert_eq!(read_more(ours.as_raw_fd(), &mut buffer, 100).unwrap(), 3);
        assert_eq!(buffer, b">abcdefgh");
    }

    #[test]
    fn reports_a_peer_that_left() {
        let (mut epoll, mut ready) = (Epoll::new().unwrap(), Vec::new());
        let (ours, theirs) = UnixStream::pair().unwrap();
        epoll.add(ours.as_raw_fd(), 1, Interest::NONE).unwrap();
        drop(theirs);
        epoll.wait(-1, &mut ready).unwrap();
        assert!(ready[0].gone);
    }

    #[test]
    fn knows_free_space_and_cpu_time() {
        assert!(allow_open_files(64).unwrap() >= 64);
        let _ = cpu_time_us();
        assert!(resident_memory_bytes().unwrap() > 100 << 10);
    }
}
