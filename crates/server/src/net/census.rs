//! The connected clients, for `stats conns`. Each worker tells of its own when its turn comes; the last one sends all lines to the worker
//! that asked.

use std::mem::ManuallyDrop;
use std::net::TcpStream;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

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

pub fn client_lines(descriptor: RawFd, state: &'static str, idle_seconds: u32) -> (RawFd, ConnectionLines) {
    let lines = vec![
        ("addr", address(descriptor, TcpStream::peer_addr)),
        ("listen_addr", address(descriptor, TcpStream::local_addr)),
        ("state", state.into()),
        ("secs_since_last_cmd", idle_seconds.to_string()),
    ];
    (descriptor, lines)
}

pub fn listener_lines(listener: &Listener, seconds: u32) -> (RawFd, ConnectionLines) {
    let address = match listener.address() {
        Address::Tcp(address) if address.starts_with('[') => format!("tcp6:{address}"),
        Address::Tcp(address) => format!("tcp:{address}"),
        Address::Unix(path) => format!("unix:{}", path.display()),
    };
    let lines =
        vec![("addr", address), ("state", "conn_listening".into()), ("secs_since_last_cmd", seconds.to_string())];
    (listener.as_raw_fd(), lines)
}

/// An end of a connected socket, as memcached writes it.
pub fn address(descriptor: RawFd, end: fn(&TcpStream) -> std::io::Result<std::net::SocketAddr>) -> String {
    // SAFETY: it is not closed here, and whoever names it holds it open meanwhile.
    let stream = ManuallyDrop::new(unsafe { TcpStream::from_raw_fd(descriptor) });
    match end(&stream) {
        Ok(address) if address.is_ipv6() => format!("tcp6:{address}"),
        Ok(address) => format!("tcp:{address}"),
        // Not of the Internet, or gone.
        Err(_) => "unix:".into(),
    }
}
