//! A UDP socket, and the system calls that receive and send many datagrams at once, behind safe functions. Owned by one worker.

use std::cell::Cell;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::{self, RecvFlags, SocketType, sockopt};

use crate::net::listen;
use crate::os::check;

/// The most datagrams of one system call.
pub const BATCH: usize = 64;
/// More than the longest datagram.
const DATAGRAM_BYTES_MAX: usize = 64 << 10;
/// Rooms are offset a little, so that the short datagrams in them do not compete for the same cache sets.
const ROOM_BYTES: usize = DATAGRAM_BYTES_MAX + 192;
/// The longest run that the kernel splits into datagrams: at most the length of a datagram.
const RUN_BYTES_MAX: usize = 65_000;
/// Room for bursts that arrive while the worker is busy.
const KERNEL_QUEUE_BYTES: usize = 1 << 20;
/// More datagrams than such a queue holds.
const KERNEL_QUEUE_DATAGRAMS: usize = 8192;

/// A socket address in the kernel's form: `sockaddr_in` or `sockaddr_in6`.
///
/// ```text
///  0         2               4           8           24     28
///  AF_INET   | port | address
///  AF_INET6  | port | flow info | address | scope
/// ```
/// The family is in native byte order; port and address are in network byte order.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C, align(4))]
pub struct Name([u8; 28]);

const _: () = assert!(size_of::<Name>() == size_of::<libc::sockaddr_in6>());
const _: () = assert!(size_of::<Name>() >= size_of::<libc::sockaddr_in>());
const _: () = assert!(align_of::<Name>() >= align_of::<libc::sockaddr_in6>());

impl Name {
    const NONE: Name = Name([0; 28]);

    fn family(&self) -> libc::c_int {
        libc::c_int::from(libc::sa_family_t::from_ne_bytes([self.0[0], self.0[1]]))
    }

    fn length(&self) -> libc::socklen_t {
        let bytes = if self.family() == libc::AF_INET { size_of::<libc::sockaddr_in>() } else { size_of::<Name>() };
        bytes as libc::socklen_t
    }

    pub fn port(&self) -> u16 {
        u16::from_be_bytes([self.0[2], self.0[3]])
    }

    pub fn ip(&self) -> IpAddr {
        if self.family() == libc::AF_INET {
            let [_, _, _, _, a, b, c, d, ..] = self.0;
            return Ipv4Addr::new(a, b, c, d).into();
        }
        let mut address = [0; 16];
        address.copy_from_slice(&self.0[8..24]);
        Ipv6Addr::from(address).into()
    }
}

impl From<SocketAddr> for Name {
    fn from(address: SocketAddr) -> Name {
        let mut name = Name::NONE;
        name.0[2..4].copy_from_slice(&address.port().to_be_bytes());
        let family = match address {
            SocketAddr::V4(address) => {
                name.0[4..8].copy_from_slice(&address.ip().octets());
                libc::AF_INET
            }
            SocketAddr::V6(address) => {
                name.0[8..24].copy_from_slice(&address.ip().octets());
                name.0[24..28].copy_from_slice(&address.scope_id().to_ne_bytes());
                libc::AF_INET6
            }
        };
        name.0[..2].copy_from_slice(&(family as libc::sa_family_t).to_ne_bytes());
        name
    }
}

pub struct UdpSocket {
    fd: OwnedFd,
    /// Whether the kernel splits a run into datagrams (all of one length, except the last).
    cuts_runs: Cell<bool>,
}

impl UdpSocket {
    /// Binds several sockets to one address; the kernel spreads the peers over them. An address that another process uses is refused,
    /// though the kernel would share it.
    pub fn bind_many(address: SocketAddr, count: usize) -> io::Result<(SocketAddr, Vec<UdpSocket>)> {
        let alone = listen::socket(address, SocketType::DGRAM)?;
        net::bind(&alone, &address)?;
        let address = listen::address_of(&alone)?;
        drop(alone);
        let sockets = (0..count).map(|_| UdpSocket::bind(address)).collect::<io::Result<_>>()?;
        Ok((address, sockets))
    }

    fn bind(address: SocketAddr) -> io::Result<UdpSocket> {
        let fd = listen::socket(address, SocketType::DGRAM)?;
        sockopt::set_socket_reuseport(&fd, true)?;
        // A smaller buffer than asked for is good enough.
        let _ = sockopt::set_socket_recv_buffer_size(&fd, KERNEL_QUEUE_BYTES);
        net::bind(&fd, &address)?;
        Ok(UdpSocket { fd, cuts_runs: Cell::new(true) })
    }

    /// Discards datagrams that came before the server served: their senders have given up.
    pub fn discard(&self) {
        let mut byte = [0; 1];
        // A longer datagram is truncated, and discarded as well.
        let next = || net::recv(&self.fd, &mut byte[..], RecvFlags::DONTWAIT);
        std::iter::repeat_with(next).take(KERNEL_QUEUE_DATAGRAMS).take_while(Result::is_ok).for_each(drop);
    }

    /// The socket's queue in the kernel, for its count of losses.
    pub fn queue(&self) -> io::Result<Queue> {
        Ok(Queue(self.fd.try_clone()?))
    }

    /// Receives at most `count_max` datagrams. Returns how many.
    pub fn receive(&self, inbox: &mut Inbox, count_max: usize) -> io::Result<usize> {
        let count = count_max.min(BATCH);
        // SAFETY: all-zero headers are valid: they point to nothing.
        let mut headers: [libc::mmsghdr; BATCH] = unsafe { std::mem::zeroed() };
        let mut pieces = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; BATCH];
        let rooms = inbox.bytes.chunks_exact_mut(ROOM_BYTES).zip(&mut inbox.names);
        for ((header, piece), (room, name)) in headers.iter_mut().zip(&mut pieces).zip(rooms).take(count) {
            *piece = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: DATAGRAM_BYTES_MAX };
            *name = Name::NONE;
            header.msg_hdr.msg_name = name.0.as_mut_ptr().cast();
            header.msg_hdr.msg_namelen = size_of::<Name>() as libc::socklen_t;
            header.msg_hdr.msg_iov = piece;
            header.msg_hdr.msg_iovlen = 1;
        }
        let (fd, flags) = (self.fd.as_raw_fd(), libc::MSG_DONTWAIT as _);
        // SAFETY: the first `count` headers point to rooms and names of the inbox with their true lengths; both live through the call.
        let received =
            check(unsafe { libc::recvmmsg(fd, headers.as_mut_ptr(), count as _, flags, std::ptr::null_mut()) })?;
        let received = received as usize;
        for (length, header) in inbox.lengths.iter_mut().zip(&headers[..received]) {
            *length = (header.msg_len as usize).min(DATAGRAM_BYTES_MAX);
        }
        Ok(received)
    }

    /// Sends and empties the outbox. Returns the amount that the kernel took.
    pub fn send(&self, outbox: &mut Outbox) -> Sent {
        let (mut sent, mut at) = (Sent::default(), 0);
        while at < outbox.parcels.len() {
            match self.send_some(outbox, at) {
                Ok(count) => {
                    sent.datagrams += count;
                    sent.bytes += outbox.parcels[at + count - 1].end - outbox.parcels[at].start;
                    at += count;
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::Interrupted => {}
                    // The kernel's queue is full. The rest is dropped: it would arrive too late.
                    io::ErrorKind::WouldBlock => break,
                    // The route's device cannot split runs, or cannot send datagrams of this length.
                    _ if self.cuts_runs.get() && outbox.run(at) > 1 && may_be_the_device(&error) => {
                        self.cuts_runs.set(false);
                    }
                    // This peer cannot be reached.
                    _ => at += if self.cuts_runs.get() { outbox.run(at) } else { 1 },
                },
            }
        }
        outbox.bytes.clear();
        outbox.parcels.clear();
        sent
    }

    /// Sends parcels from number `from` on, as many as one system call takes. Returns how many.
    fn send_some(&self, outbox: &mut Outbox, from: usize) -> io::Result<usize> {
        // SAFETY: all-zero headers are valid: they point to nothing.
        let mut headers: [libc::mmsghdr; BATCH] = unsafe { std::mem::zeroed() };
        let mut pieces = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; BATCH];
        let mut controls = [Segment::default(); BATCH];
        let mut runs = [0; BATCH];
        let (mut count, mut at) = (0, from);
        while count < BATCH && at < outbox.parcels.len() {
            let run = if self.cuts_runs.get() { outbox.run(at) } else { 1 };
            let (start, end) = (outbox.parcels[at].start, outbox.parcels[at + run - 1].end);
            let parcel = &mut outbox.parcels[at];
            let header = &mut headers[count].msg_hdr;
            pieces[count] =
                libc::iovec { iov_base: outbox.bytes[start..end].as_mut_ptr().cast(), iov_len: end - start };
            header.msg_name = parcel.to.0.as_mut_ptr().cast();
            header.msg_namelen = parcel.to.length();
            header.msg_iov = &mut pieces[count];
            header.msg_iovlen = 1;
            if run > 1 {
                controls[count] = Segment::of(parcel.end - parcel.start);
                header.msg_control = (&raw mut controls[count]).cast();
                header.msg_controllen = size_of::<Segment>();
            }
            (runs[count], at, count) = (run, at + run, count + 1);
        }
        let (fd, flags) = (self.fd.as_raw_fd(), libc::MSG_DONTWAIT as _);
        // SAFETY: the first `count` headers point to parcels of the outbox and controls with their true lengths; both live through the call
        // and are only read.
        let sent = check(unsafe { libc::sendmmsg(fd, headers.as_mut_ptr(), count as _, flags) })?;
        Ok(runs[..sent as usize].iter().sum())
    }
}

/// The amount that the kernel took.
#[derive(Clone, Copy, Default)]
pub struct Sent {
    pub datagrams: usize,
    pub bytes: usize,
}

/// Whether the error may be about the form of the datagrams, rather than about the peer.
fn may_be_the_device(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EIO | libc::EINVAL | libc::EMSGSIZE | libc::EOPNOTSUPP))
}

/// A control message with the length of the datagrams of a run. The last one may be shorter.
///
/// ```text
///  0        8         12     16       18        24
///  length | SOL_UDP | kind | length | padding
///  (18)   | (17)    | (103)| of one |
/// ```
/// All in native byte order.
#[derive(Clone, Copy, Default)]
#[repr(C, align(8))]
struct Segment {
    length: usize,
    level: libc::c_int,
    kind: libc::c_int,
    datagram_bytes: u16,
    padding: [u8; 6],
}

const _: () = assert!(size_of::<Segment>() == 24 && size_of::<libc::cmsghdr>() == 16);
const _: () = assert!(std::mem::offset_of!(Segment, datagram_bytes) == size_of::<libc::cmsghdr>());

impl Segment {
    fn of(datagram_bytes: usize) -> Segment {
        let length = std::mem::offset_of!(Segment, padding);
        let (level, kind) = (libc::SOL_UDP, libc::UDP_SEGMENT);
        Segment { length, level, kind, datagram_bytes: datagram_bytes as u16, padding: [0; 6] }
    }
}

impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The kernel's queue of datagrams that wait to be received.
pub struct Queue(OwnedFd);

/// Number of the kernel's figures about a socket's memory, and the index of the one that counts drops (`linux/sock_diag.h`).
const MEMORY_FIGURES: usize = 9;
const MEMORY_FIGURE_DROPS: usize = 8;

impl Queue {
    /// Datagrams for which the queue had no room, or that arrived damaged; modulo 2^32.
    pub fn dropped(&self) -> io::Result<u32> {
        let mut figures = [0u32; MEMORY_FIGURES];
        let mut size = size_of_val(&figures) as libc::socklen_t;
        let into = figures.as_mut_ptr().cast();
        // SAFETY: the figures and their size live through the call, and have the length given.
        check(unsafe {
            libc::getsockopt(self.0.as_raw_fd(), libc::SOL_SOCKET, libc::SO_MEMINFO, into, &raw mut size)
        })?;
        Ok(figures[MEMORY_FIGURE_DROPS])
    }
}

/// Received datagrams, a room each.
#[derive(Default)]
pub struct Inbox {
    /// The kernel allocates a page only when a long datagram first touches it.
    bytes: Vec<u8>,
    names: Vec<Name>,
    lengths: Vec<usize>,
}

impl Inbox {
    pub fn new() -> Inbox {
        Inbox { bytes: vec![0; BATCH * ROOM_BYTES], names: vec![Name::NONE; BATCH], lengths: vec![0; BATCH] }
    }

    /// Datagram number `at` of the last `receive`, and its sender.
    pub fn datagram(&self, at: usize) -> (Name, &[u8]) {
        (self.names[at], &self.bytes[at * ROOM_BYTES..][..self.lengths[at]])
    }
}

struct Parcel {
    to: Name,
    start: usize,
    end: usize,
}

/// Datagrams to be sent, one behind the other.
#[derive(Default)]
pub struct Outbox {
    bytes: Vec<u8>,
    parcels: Vec<Parcel>,
}

impl Outbox {
    /// Whether it holds as many as one system call sends.
    pub fn is_full(&self) -> bool {
        self.parcels.len() >= BATCH || self.bytes.len() >= 2 * DATAGRAM_BYTES_MAX
    }

    pub fn len(&self) -> usize {
        self.parcels.len()
    }

    pub fn is_empty(&self) -> bool {
        self.parcels.is_empty()
    }

    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Drops all of them.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.parcels.clear();
    }

    /// How many parcels from number `at` on go to the same peer and have the same length; the last one may be shorter.
    fn run(&self, at: usize) -> usize {
        let first = &self.parcels[at];
        let length = first.end - first.start;
        let mut count = 1;
        for parcel in &self.parcels[at + 1..] {
            let fits = count < BATCH && parcel.end - first.start <= RUN_BYTES_MAX;
            if !fits || parcel.to != first.to || parcel.end - parcel.start > length {
                break;
            }
            count += 1;
            if parcel.end - parcel.start < length {
                break;
            }
        }
        count
    }

    /// Begins a datagram. Bytes of later `push` calls belong to it.
    pub fn begin(&mut self, to: Name, header: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(header);
        self.parcels.push(Parcel { to, start, end: self.bytes.len() });
    }

    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.parcels.last_mut().expect("a datagram was begun").end = self.bytes.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

    #[test]
    fn names_are_as_the_kernel_has_them() {
        for text in ["127.0.0.1:11211", "[::1]:9", "[fe80::1%3]:65535"] {
            let address: SocketAddr = text.parse().unwrap();
            let name = Name::from(address);
            assert_eq!((name.ip(), name.port()), (address.ip(), address.port()));
        }
    }

    #[test]
    fn many_datagrams_come_and_go_at_once() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let (at, sockets) = UdpSocket::bind_many(address.parse().unwrap(), 1).unwrap();
            let peers: Vec<_> = (0..3).map(|_| std::net::UdpSocket::bind((at.ip(), 0)).unwrap()).collect();
            // More would not fit into the kernel's queue at its smallest.
            let length = |number: u8| if number == 69 { 60_000 } else { usize::from(number) };
            for number in 0..70u8 {
                let bytes = vec![number; length(number)];
                peers[usize::from(number) % 3].send_to(&bytes, at).unwrap();
            }
            let (mut inbox, mut outbox) = (Inbox::new(), Outbox::default());
            let mut next = 0u8;
            for _ in 0..2 {
                let count = sockets[0].receive(&mut inbox, BATCH).unwrap();
                for datagram in 0..count {
                    let (name, bytes) = inbox.datagram(datagram);
                    assert_eq!(bytes, vec![next; length(next)]);
                    assert_eq!(name.port(), peers[usize::from(next) % 3].local_addr().unwrap().port());
                    outbox.begin(name, &[next]);
                    outbox.push(b"ab");
                    outbox.push(b"c");
                    next += 1;
                }
            }
            assert_eq!((next, outbox.len()), (70, 70));
            assert_eq!(sockets[0].send(&mut outbox).datagrams, 70);
            assert!(outbox.is_empty());
            assert_eq!(sockets[0].receive(&mut inbox, BATCH).unwrap_err().kind(), io::ErrorKind::WouldBlock);
            for number in 0..70u8 {
                let mut buffer = [0; 8];
                let length = peers[usize::from(number) % 3].recv(&mut buffer).unwrap();
                assert_eq!(&buffer[..length], &[number, b'a', b'b', b'c']);
            }
        }
    }

    #[test]
    fn what_the_kernel_had_no_room_for_is_counted() {
        let (at, sockets) = UdpSocket::bind_many(LOOPBACK, 1).unwrap();
        let (queue, peer) = (sockets[0].queue().unwrap(), std::net::UdpSocket::bind((at.ip(), 0)).unwrap());
        assert_eq!(queue.dropped().unwrap(), 0);
        let count = 4 * KERNEL_QUEUE_BYTES / 32_768;
        (0..count).for_each(|_| assert_eq!(peer.send_to(&[0; 32_768], at).unwrap(), 32_768));
        let (mut inbox, mut received) = (Inbox::new(), 0);
        while let Ok(more) = sockets[0].receive(&mut inbox, BATCH) {
            received += more;
        }
        assert!(received < count, "the queue is shorter");
        assert_eq!(received + queue.dropped().unwrap() as usize, count);
    }

    #[test]
    fn runs_of_one_length_come_as_they_were_packed() {
        let (at, sockets) = UdpSocket::bind_many(LOOPBACK, 1).unwrap();
        let peers: Vec<_> = (0..2).map(|_| std::net::UdpSocket::bind((at.ip(), 0)).unwrap()).collect();
        let lengths = [5, 5, 5, 3, 7, 7, 2, 2, 9, 9, 9, 9, 1, 5];
        for cuts_runs in [true, false] {
            sockets[0].cuts_runs.set(cuts_runs);
            let mut outbox = Outbox::default();
            for peer in [0, 1, 0] {
                for length in lengths {
                    outbox.begin(peers[peer].local_addr().unwrap().into(), &vec![length as u8; length]);
                }
            }
            assert_eq!([0, 3, 4, 6, 8, 12, 13].map(|at| outbox.run(at)), [4, 1, 3, 2, 5, 1, 1]);
            assert_eq!(sockets[0].send(&mut outbox).datagrams, 3 * lengths.len());
            assert_eq!(sockets[0].cuts_runs.get(), cuts_runs);
            for peer in [0, 1, 0] {
                for length in lengths {
                    let mut buffer = [0; 16];
                    assert_eq!(peers[peer].recv(&mut buffer).unwrap(), length);
                    assert_eq!(buffer[..length], vec![length as u8; length]);
                }
            }
        }
    }

    #[test]
    fn a_peer_that_cannot_be_reached_keeps_no_other_from_its_reply() {
        let (at, sockets) = UdpSocket::bind_many(LOOPBACK, 1).unwrap();
        let peer = std::net::UdpSocket::bind((at.ip(), 0)).unwrap();
        let mut outbox = Outbox::default();
        let nowhere = Name::from(SocketAddr::new(at.ip(), 0));
        for to in [nowhere, peer.local_addr().unwrap().into(), nowhere] {
            outbox.begin(to, b"x");
        }
        assert_eq!(sockets[0].send(&mut outbox).datagrams, 1);
        assert_eq!(peer.recv(&mut [0; 8]).unwrap(), 1);
    }

    #[test]
    fn what_came_too_early_is_thrown_away() {
        let (at, sockets) = UdpSocket::bind_many(LOOPBACK, 1).unwrap();
        let peer = std::net::UdpSocket::bind((at.ip(), 0)).unwrap();
        for length in [0, 1, 1000] {
            peer.send_to(&vec![7; length], at).unwrap();
        }
        sockets[0].discard();
        assert_eq!(sockets[0].receive(&mut Inbox::new(), BATCH).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        peer.send_to(b"in time", at).unwrap();
        assert_eq!(sockets[0].receive(&mut Inbox::new(), BATCH).unwrap(), 1);
    }

    #[test]
    fn an_address_is_shared_by_our_sockets_and_no_others() {
        let (at, sockets) = UdpSocket::bind_many(LOOPBACK, 3).unwrap();
        assert_eq!(sockets.len(), 3);
        let error = UdpSocket::bind_many(at, 1).err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }
}
