//! Safe functions around the system calls of the event loop. No state except the descriptors.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, epoll};
use rustix::net::{SendFlags, Shutdown, SocketFlags, sockopt};
use rustix::process::{Resource, Rlimit, Signal};

/// Turns the result of a libc call into its error.
pub(crate) fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Which readiness to report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    pub read: bool,
    pub write: bool,
    /// If several epolls watch one descriptor, wake only a few.
    pub exclusive: bool,
    /// Report becoming ready, not staying ready.
    pub edge: bool,
}

impl Interest {
    pub const READ: Interest = Interest { read: true, write: false, exclusive: false, edge: false };
    pub const NONE: Interest = Interest { read: false, write: false, exclusive: false, edge: false };

    fn flags(self) -> epoll::EventFlags {
        let mut flags = epoll::EventFlags::empty();
        flags.set(epoll::EventFlags::IN, self.read);
        flags.set(epoll::EventFlags::OUT, self.write);
        flags.set(epoll::EventFlags::EXCLUSIVE, self.exclusive);
        flags.set(epoll::EventFlags::ET, self.edge);
        flags
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Ready {
    pub id: u64,
    pub read: bool,
    pub write: bool,
    /// The peer is gone, or the descriptor has an error.
    pub gone: bool,
}

/// The most sockets that one wait reports. Few, so that their requests run on flash, or are answered, while the next sockets are read. With
/// all at once, flash would wait for the sockets, and then the sockets for flash.
pub const EVENTS_MAX: usize = 16;

pub struct Epoll(OwnedFd);

impl Epoll {
    pub fn new() -> io::Result<Epoll> {
        Ok(Epoll(epoll::create(epoll::CreateFlags::CLOEXEC)?))
    }

    pub fn add(&self, fd: RawFd, id: u64, interest: Interest) -> io::Result<()> {
        Ok(epoll::add(&self.0, watched(&fd), epoll::EventData::new_u64(id), interest.flags())?)
    }

    pub fn change(&self, fd: RawFd, id: u64, interest: Interest) -> io::Result<()> {
        Ok(epoll::modify(&self.0, watched(&fd), epoll::EventData::new_u64(id), interest.flags())?)
    }

    pub fn remove(&self, fd: RawFd) -> io::Result<()> {
        Ok(epoll::delete(&self.0, watched(&fd))?)
    }

    /// Waits until something is ready or `timeout_ms` have passed; -1 is for ever.
    pub fn wait(&self, timeout_ms: i32, ready: &mut Vec<Ready>) -> io::Result<()> {
        use epoll::EventFlags;
        ready.clear();
        let timeout = u64::try_from(timeout_ms).ok().map(|ms| timespec(Duration::from_millis(ms)));
        let mut events = [MaybeUninit::uninit(); EVENTS_MAX];
        let events: &[epoll::Event] = match epoll::wait(&self.0, &mut events, timeout.as_ref()) {
            Err(rustix::io::Errno::INTR) => &[],
            waited => waited?.0,
        };
        ready.extend(events.iter().map(|&epoll::Event { flags, data }| Ready {
            id: data.u64(),
            read: flags.intersects(EventFlags::IN | EventFlags::RDHUP),
            write: flags.contains(EventFlags::OUT),
            gone: flags.intersects(EventFlags::HUP | EventFlags::ERR),
        }));
        Ok(())
    }
}

/// Sessions keep the descriptors that they name open.
fn watched(fd: &RawFd) -> BorrowedFd<'_> {
    // SAFETY: borrowed for one call, which refuses a closed descriptor.
    unsafe { BorrowedFd::borrow_raw(*fd) }
}

fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() }
}

pub fn read(fd: impl AsFd, into: &mut [u8]) -> io::Result<usize> {
    Ok(rustix::io::read(fd, into)?)
}

/// Reads into the spare capacity of `into`, and extends it by the bytes read.
pub fn read_more(fd: impl AsFd, into: &mut Vec<u8>) -> io::Result<usize> {
    Ok(rustix::io::read(fd, spare_capacity(into))?)
}

/// Writes several pieces to a socket with one call. Returns how many bytes were written.
pub fn send(socket: impl AsFd, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
    match pieces {
        // Most replies are one piece, for which this call is cheaper.
        [piece] => Ok(rustix::net::send(socket, piece, SendFlags::NOSIGNAL)?),
        pieces => Ok(rustix::io::writev(socket, pieces)?),
    }
}

/// TCP keepalive: the kernel probes a silent peer after [`KEEPALIVE_IDLE`], and then every [`KEEPALIVE_INTERVAL`]. A peer that leaves
/// [`KEEPALIVE_PROBES`] unanswered is gone: after two minutes, instead of Linux' default of two hours and a quarter.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
const KEEPALIVE_PROBES: u32 = 4;

/// Accepts the next connection at `listener`, without blocking; and its peer, if that has an Internet address. A TCP connection ends when
/// the peer's machine is gone (keepalive).
pub fn accept(listener: impl AsFd) -> io::Result<(OwnedFd, Option<SocketAddr>)> {
    let (socket, peer) = rustix::net::acceptfrom_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    keep_alive(&socket);
    Ok((socket, peer.and_then(|peer| SocketAddr::try_from(peer).ok())))
}

fn keep_alive(socket: &OwnedFd) {
    // A peer without keepalive is served anyway. Other sockets than TCP end with their peer.
    let _ = sockopt::set_socket_keepalive(socket, true)
        .and_then(|()| sockopt::set_tcp_keepidle(socket, KEEPALIVE_IDLE))
        .and_then(|()| sockopt::set_tcp_keepintvl(socket, KEEPALIVE_INTERVAL))
        .and_then(|()| sockopt::set_tcp_keepcnt(socket, KEEPALIVE_PROBES));
}

/// Sends small replies at once. Sockets that are not TCP have no such delay.
pub fn set_no_delay(socket: impl AsFd) {
    // A failure costs latency only.
    let _ = sockopt::set_tcp_nodelay(socket, true);
}

/// Whether the process at the other end of a Unix socket is of this one's user, or root's.
pub fn is_owners(socket: impl AsFd) -> bool {
    let ours = rustix::process::geteuid();
    rustix::net::sockopt::socket_peercred(socket).is_ok_and(|peer| peer.uid == ours || peer.uid.is_root())
}

/// Says that nothing more will be written.
pub fn shut_down_write(socket: impl AsFd) {
    // Fails only if the peer is gone.
    let _ = rustix::net::shutdown(socket, Shutdown::Write);
}

/// Blocks the signals that stop a server, in this thread and the threads that it creates, and returns a descriptor that reads them instead.
/// SIGHUP, which a closing terminal sends, is one of them unless it is ignored already (`nohup`); if it `rereads` files, it is one in any case.
/// SIGQUIT still ends the process at once, with a core dump if those are enabled, for a stop that takes too long.
pub fn server_signals(rereads: bool) -> io::Result<OwnedFd> {
    let mut stopping = vec![libc::SIGTERM, libc::SIGINT, libc::SIGPWR];
    if rereads || !is_ignored(libc::SIGHUP)? {
        stopping.push(libc::SIGHUP);
    }
    // People send these to servers that rotate logs or reread their configuration; ignore them.
    ignore(&[libc::SIGUSR1, libc::SIGUSR2]);
    let set = mask(libc::SIG_BLOCK, &stopping)?;
    // SAFETY: the set is initialised and lives through the call; the descriptor is new and ours alone.
    unsafe { Ok(OwnedFd::from_raw_fd(check(libc::signalfd(-1, &set, libc::SFD_CLOEXEC))?)) }
}

/// Blocks signals in this thread, or lets them through again.
fn mask(how: libc::c_int, signals: &[libc::c_int]) -> io::Result<libc::sigset_t> {
    // SAFETY: the set is initialised before use and lives through each call.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for &signal in signals {
            libc::sigaddset(&mut set, signal);
        }
        match libc::pthread_sigmask(how, &set, std::ptr::null_mut()) {
            0 => Ok(set),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }
}

/// [`server_signals`] of a command that reads nothing again.
pub fn termination_signals() -> io::Result<OwnedFd> {
    server_signals(false)
}

/// Lets the signals of [`termination_signals`] end the process again.
pub fn let_termination_signals_through() -> io::Result<()> {
    mask(libc::SIG_UNBLOCK, &[libc::SIGTERM, libc::SIGINT, libc::SIGPWR, libc::SIGHUP]).map(drop)
}

/// Keeps what this process holds out of core dumps, and from other processes of the same user.
pub fn hide_memory() -> io::Result<()> {
    // SAFETY: the call takes numbers alone, and changes a flag of this process.
    check(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) }).map(drop)
}

/// Makes a write beyond the limit on file sizes (`ulimit -f`) an error, rather than the end of the process.
pub fn ignore_file_size_signal() {
    ignore(&[libc::SIGXFSZ]);
}

fn ignore(signals: &[libc::c_int]) {
    for &signal in signals {
        // SAFETY: no handler runs. The call does not fail for a signal that can be ignored.
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
    let mut polled = [PollFd::new(&signals, PollFlags::IN)];
    match rustix::event::poll(&mut polled, Some(&timespec(timeout))) {
        Ok(0) | Err(rustix::io::Errno::INTR) => Ok(None),
        other => {
            other?;
            wait_for_signal(signals).map(Some)
        }
    }
}

/// Waits until there is something to read, or one of the signals comes; says which signal.
pub fn wait_for_input_or_signal(input: BorrowedFd<'_>, signals: BorrowedFd<'_>) -> io::Result<Option<i32>> {
    let mut polled = [PollFd::new(&input, PollFlags::IN), PollFd::new(&signals, PollFlags::IN)];
    loop {
        match rustix::event::poll(&mut polled, None) {
            Err(rustix::io::Errno::INTR) => {}
            waited => {
                waited?;
                let is_signal = !polled[1].revents().is_empty();
                return if is_signal { wait_for_signal(signals).map(Some) } else { Ok(None) };
            }
        }
    }
}

pub fn wait_for_signal(signals: BorrowedFd<'_>) -> io::Result<i32> {
    let mut record = [0u8; size_of::<libc::signalfd_siginfo>()];
    loop {
        match read(signals, &mut record) {
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
    // The process may always signal itself.
    let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::TERM);
}

/// Raises the limit on open files to `files`, as far as this process may. Returns the new limit.
pub fn allow_open_files(files: u64) -> io::Result<u64> {
    let Rlimit { current, maximum } = rustix::process::getrlimit(Resource::Nofile);
    // `None` means no limit.
    let current = current.unwrap_or(u64::MAX);
    if current >= files {
        return Ok(current);
    }
    let raised = maximum.map_or(files, |maximum| maximum.min(files));
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum })?;
    Ok(raised)
}

/// Makes the allocator return large blocks to the system when they are freed, because buffers come and go with the clients.
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
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
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

/// The resident set of this process.
pub fn resident_memory_bytes() -> io::Result<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    let page_bytes = rustix::param::page_size() as u64;
    pages.map(|pages| pages * page_bytes).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;
    use tapetum_drive::Event;

    #[test]
    fn an_event_wakes_until_it_is_cleared() {
        let (epoll, event, mut ready) = (Epoll::new().unwrap(), Event::new().unwrap(), Vec::new());
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
    fn reads_into_spare_capacity_and_no_further() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let pieces = [IoSlice::new(b"abc"), IoSlice::new(b"defgh")];
        assert_eq!(send(&theirs, &pieces).unwrap(), 8);
        let mut buffer = Vec::with_capacity(6);
        buffer.push(b'>');
        let room = buffer.capacity() - 1;
        assert_eq!(read_more(&ours, &mut buffer).unwrap(), room.min(8));
        assert_eq!(buffer, b">abcdefgh"[..buffer.len()]);
        buffer.reserve_exact(8);
        assert_eq!(read_more(&ours, &mut buffer).unwrap(), 8 - room.min(8));
        assert_eq!(buffer, b">abcdefgh");
    }

    #[test]
    fn reports_a_peer_that_left() {
        let (epoll, mut ready) = (Epoll::new().unwrap(), Vec::new());
        let (ours, theirs) = UnixStream::pair().unwrap();
        epoll.add(ours.as_raw_fd(), 1, Interest::NONE).unwrap();
        drop(theirs);
        epoll.wait(-1, &mut ready).unwrap();
        assert!(ready[0].gone);
    }

    #[test]
    fn an_accepted_tcp_socket_asks_after_a_silent_peer() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (socket, peer) = accept(&listener).unwrap();
        assert_eq!(peer, client.local_addr().ok());
        assert!(sockopt::socket_keepalive(&socket).unwrap());
        let gone_after = sockopt::tcp_keepidle(&socket).unwrap()
            + sockopt::tcp_keepintvl(&socket).unwrap() * sockopt::tcp_keepcnt(&socket).unwrap();
        assert_eq!(gone_after, Duration::from_secs(120));
    }

    #[test]
    fn knows_free_space_and_cpu_time() {
        assert!(allow_open_files(64).unwrap() >= 64);
        let _ = cpu_time_us();
        assert!(resident_memory_bytes().unwrap() > 100 << 10);
    }
}
