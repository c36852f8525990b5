//! The connected clients, for `stats conns`. Each worker tells of its own when its turn comes; the last one sends all lines to the worker
//! that asked.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::net::{self, SocketAddrUnix};

use super::listen::{Address, Listener};

/// Names and values of a connection's lines.
pub type ConnectionLines = Vec<(&'static str, String)>;

pub struct Census {
    /// The worker that asked, and its request's token.
    pub asker: (usize, u64),
    left: AtomicUsize,
    /// By the descriptor of the connection.
    lines: Mutex<Vec<(RawFd, ConnectionLines)>>,
}

impl Census {
    pub fn new(asker: (usize, u64), workers: usize) -> Census {
        Census { asker, left: AtomicUsize::new(workers), lines: Mutex::default() }
    }

    /// A worker has told of its connections. All lines, if it was the last one.
    pub fn take(&self, told: Vec<(RawFd, ConnectionLines)>) -> Option<Vec<(String, String)>> {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.extend(told);
        if self.left.fetch_sub(1, Ordering::Relaxed) > 1 {
            return None;
        }
        lines.sort_by_key(|(descriptor, _)| *descriptor);
        let all = std::mem::take(&mut *lines).into_iter();
        let named = |(descriptor, lines): (RawFd, ConnectionLines)| {
            lines.into_iter().map(move |(name, value)| (format!("{descriptor}:{name}"), value))
        };
        Some(all.flat_map(named).collect())
    }
}

/// Its state, and for how many seconds it has asked for nothing.
pub fn client_lines(
    socket: BorrowedFd<'_>,
    peer: Option<SocketAddr>,
    state: &'static str,
    idle_seconds: u32,
) -> (RawFd, ConnectionLines) {
    let own = local_address(socket);
    let lines = vec![
        // A client of a Unix socket has no address: memcached, too, names the socket's path.
        ("addr", peer.map_or_else(|| own.clone(), tcp_address)),
        ("listen_addr", own),
        ("state", state.into()),
        ("secs_since_last_cmd", idle_seconds.to_string()),
    ];
    (socket.as_raw_fd(), lines)
}

pub fn listener_lines(listener: &Listener, seconds: u32) -> (RawFd, ConnectionLines) {
    let address = match listener.address() {
        Address::Tcp(address) | Address::Plain(address) if address.starts_with('[') => format!("tcp6:{address}"),
        Address::Tcp(address) | Address::Plain(address) => format!("tcp:{address}"),
        Address::Unix(path) => format!("unix:{}", path.display()),
    };
    let lines =
        vec![("addr", address), ("state", "conn_listening".into()), ("secs_since_last_cmd", seconds.to_string())];
    (listener.as_raw_fd(), lines)
}

/// As memcached has them, its word "UDP" included.
pub fn datagram_lines(socket: BorrowedFd<'_>, seconds: u32) -> (RawFd, ConnectionLines) {
    let address = match net::getsockname(socket).map(SocketAddr::try_from) {
        Ok(Ok(address)) if address.is_ipv6() => format!("udp6:{address}"),
        Ok(Ok(address)) => format!("udp:{address}"),
        _ => "udp:".into(),
    };
    let lines = vec![
        ("UDP", "UDP".into()),
        ("addr", address),
        ("state", "conn_read".into()),
        ("secs_since_last_cmd", seconds.to_string()),
    ];
    (socket.as_raw_fd(), lines)
}

/// The server's end of a connection as memcached writes it.
fn local_address(socket: BorrowedFd<'_>) -> String {
    let Ok(address) = net::getsockname(socket) else { return "unix:".into() };
    if let Ok(address) = SocketAddr::try_from(address.clone()) {
        return tcp_address(address);
    }
    let path = SocketAddrUnix::try_from(address).ok();
    let path = path.as_ref().and_then(SocketAddrUnix::path_bytes).unwrap_or_default();
    format!("unix:{}", String::from_utf8_lossy(path))
}

fn tcp_address(address: SocketAddr) -> String {
    let kind = if address.is_ipv6() { "tcp6" } else { "tcp" };
    format!("{kind}:{address}")
}
