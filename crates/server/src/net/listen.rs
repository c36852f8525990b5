//! Addresses as people write them, and the sockets bound to them: TCP and Unix. A name stands for all of its addresses.
//!
//! Sockets are bound before the store is opened or created, so that an unavailable address changes nothing. They listen once the store is
//! open. Until then clients are refused rather than left waiting for an unknown time: a recovery may take minutes.

use std::fs;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use crate::store::unfinished;

/// `host:port`, or `unix:` and a path. A path that begins with `/` or `./` needs no prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    Tcp(String),
    /// `notls:host:port`: without TLS, though the server has a certificate.
    Plain(String),
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Address, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return match path {
                "" => Err("give a path after unix:".into()),
                path => Ok(Address::Unix(path.into())),
            };
        }
        if text.starts_with('/') || text.starts_with("./") {
            return Ok(Address::Unix(text.into()));
        }
        if let Some(address) = text.strip_prefix("notls:") {
            return match address.parse()? {
                Address::Tcp(address) => Ok(Address::Plain(address)),
                Address::Plain(_) | Address::Unix(_) => Err("give HOST:PORT after notls:".into()),
            };
        }
        let port = text.rsplit_once(':').map_or(text, |(_, port)| port);
        if let Some(why) = why_no_port(port) {
            return Err(why);
        }
        match text.rsplit_once(':') {
            Some((host, _)) if !host.is_empty() && port.parse::<u16>().is_ok() => Ok(Address::Tcp(text.into())),
            None if text.parse::<u16>().is_ok() => Ok(Address::Tcp(format!("127.0.0.1:{text}"))),
            _ => Err("give HOST:PORT, such as 127.0.0.1:11211, a port alone for 127.0.0.1, or unix:PATH".into()),
        }
    }
}

/// Explains why a number that is too large is not a port.
fn why_no_port(text: &str) -> Option<String> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (is_number && text.parse::<u16>().is_err()).then(|| format!("{text} is no port: ports are 0 to 65535"))
}

/// An address for memcached clients, or `none`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listening {
    At(Address),
    Nowhere,
}

impl FromStr for Listening {
    type Err = String;

    fn from_str(text: &str) -> Result<Listening, String> {
        match text {
            "none" => Ok(Listening::Nowhere),
            text => text.parse().map(Listening::At),
        }
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Address::Tcp(text) => f.write_str(text),
            Address::Plain(text) => write!(f, "notls:{text}"),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// `HOST:PORT`, or a port alone, which is on loopback.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoopbackAddress(pub String);

impl FromStr for LoopbackAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<LoopbackAddress, String> {
        if text.parse::<u16>().is_ok() {
            return Ok(LoopbackAddress(format!("127.0.0.1:{text}")));
        }
        match text.rsplit_once(':').map(|(host, port)| (host, port.parse::<u16>())) {
            Some((host, Ok(_))) if !host.is_empty() => Ok(LoopbackAddress(text.into())),
            _ => Err("give HOST:PORT, or a port on loopback".into()),
        }
    }
}

impl std::fmt::Display for LoopbackAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// `HOST:PORT`, or a port on loopback, of TCP alone.
pub fn tcp_address(text: &str) -> Result<Address, String> {
    match text.parse()? {
        Address::Unix(_) => Err("give HOST:PORT, or a port on loopback: it is asked over TCP".into()),
        address => Ok(address),
    }
}

/// A bound socket. Clients are refused until [`Listener::listen`].
pub enum Listener {
    /// With TLS, if the server has a certificate.
    Tcp(OwnedFd, SocketAddr),
    /// Without it.
    Plain(OwnedFd, SocketAddr),
    Unix(OwnedFd, SocketFile),
}

impl Listener {
    /// Binds one listener for every address that the name in `address` stands for.
    pub fn bind(address: &Address) -> io::Result<Vec<Listener>> {
        match address {
            Address::Tcp(name) => {
                let bound = bind_each(name, bind_tcp)?;
                Ok(bound.into_iter().map(|(at, socket)| Listener::Tcp(socket, at)).collect())
            }
            Address::Plain(name) => {
                let bound = bind_each(name, bind_tcp)?;
                Ok(bound.into_iter().map(|(at, socket)| Listener::Plain(socket, at)).collect())
            }
            Address::Unix(path) => {
                // Without the lock, two servers that find the same stale socket could remove each other's new one.
                let _lock = unfinished::lock_folder_of(path)?;
                remove_stale_socket(path)?;
                let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SOCKET_FLAGS, None)?;
                net::bind(&socket, &SocketAddrUnix::new(path)?)?;
                let file = SocketFile::new(path.clone())?;
                // As with memcached, only the owner has access.
                fs::set_permissions(path, fs::Permissions::from_mode(0o700))?;
                Ok(vec![Listener::Unix(socket, file)])
            }
        }
    }

    /// Whether other machines can reach it.
    pub fn is_open_to_others(&self) -> bool {
        matches!(self, Listener::Tcp(_, at) | Listener::Plain(_, at) if !at.ip().is_loopback())
    }

    /// Whether clients speak TLS there, if the server has a certificate.
    pub fn may_have_tls(&self) -> bool {
        matches!(self, Listener::Tcp(..))
    }

    /// Lets clients in. `backlog` of them may wait to be accepted.
    pub fn listen(&self, backlog: u32) -> io::Result<()> {
        let backlog = i32::try_from(backlog).unwrap_or(i32::MAX);
        match self {
            Listener::Tcp(socket, _) | Listener::Plain(socket, _) => {
                // Accepted connections inherit it, so that after their end they do not keep a later server from the port.
                sockopt::set_socket_reuseaddr(socket, true)?;
                Ok(net::listen(socket, backlog)?)
            }
            Listener::Unix(_, file) if !file.is_ours() => Err(io::ErrorKind::AddrInUse.into()),
            Listener::Unix(socket, _) => Ok(net::listen(socket, backlog)?),
        }
    }

    /// The address in use: port 0 has become a real one.
    pub fn address(&self) -> Address {
        match self {
            Listener::Tcp(_, at) => Address::Tcp(at.to_string()),
            Listener::Plain(_, at) => Address::Plain(at.to_string()),
            Listener::Unix(_, file) => Address::Unix(file.path.clone()),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp(socket, _) | Listener::Plain(socket, _) | Listener::Unix(socket, _) => socket.as_fd(),
        }
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

/// The path of a Unix socket. It is removed with the socket, unless another socket has taken it.
pub struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl SocketFile {
    fn new(path: PathBuf) -> io::Result<SocketFile> {
        let metadata = fs::symlink_metadata(&path)?;
        Ok(SocketFile { path, device: metadata.dev(), inode: metadata.ino() })
    }

    fn is_ours(&self) -> bool {
        let metadata = fs::symlink_metadata(&self.path);
        metadata.is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == (self.device, self.inode))
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // If the lock cannot be had, go on without it: this server stops.
        let _lock = unfinished::lock_folder_of(&self.path);
        if self.is_ours() {
            // Someone else may have removed it already.
            let _ = fs::remove_file(&self.path);
        }
    }
}

const SOCKET_FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);
/// How many ports to try for one that is free at every address of a name.
const PORT_TRIES: usize = 16;

/// A socket for `address`. As in memcached, `[::]` means only IPv6, so that `0.0.0.0` can be bound beside it.
pub fn socket(address: SocketAddr, kind: SocketType) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = net::socket_with(family, kind, SOCKET_FLAGS, None)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    Ok(socket)
}

/// The address to which `socket` is bound.
pub fn address_of(socket: &OwnedFd) -> io::Result<SocketAddr> {
    Ok(net::getsockname(socket)?.try_into()?)
}

/// Binds a socket. That keeps others from the address, even before it listens.
pub fn bind_tcp(address: SocketAddr) -> io::Result<(SocketAddr, OwnedFd)> {
    let socket = socket(address, SocketType::STREAM)?;
    match net::bind(&socket, &address) {
        // Connections that an earlier server closed hold the port for a minute. SO_REUSEADDR shares it with them, but also with another
        // process that is about to listen; then the second one fails in `listen`.
        Err(Errno::ADDRINUSE) => {
            sockopt::set_socket_reuseaddr(&socket, true)?;
            net::bind(&socket, &address)?;
        }
        bound => bound?,
    }
    Ok((address_of(&socket)?, socket))
}

/// Binds all addresses of `name`, which is `HOST:PORT`, to one port. An address of a family that this machine lacks is left out and logged,
/// if another one can be bound.
pub fn bind_each<T>(
    name: &str,
    bind: impl Fn(SocketAddr) -> io::Result<(SocketAddr, T)>,
) -> io::Result<Vec<(SocketAddr, T)>> {
    let mut addresses: Vec<SocketAddr> = Vec::new();
    for address in name.to_socket_addrs()? {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    let mut tries = 1;
    loop {
        let bound = bind_once(&addresses, &bind);
        let is_free_port = addresses.len() > 1 && addresses[0].port() == 0;
        match bound {
            Err(error) if is_free_port && error.kind() == io::ErrorKind::AddrInUse && tries < PORT_TRIES => tries += 1,
            Err(error) => return Err(error),
            Ok((bound, left_out)) => {
                for (address, error) in left_out {
                    tracing::warn!("{name} is {address} too, where nobody can listen on this machine: {error}");
                }
                return Ok(bound);
            }
        }
    }
}

type Bound<T> = (Vec<(SocketAddr, T)>, Vec<(SocketAddr, io::Error)>);

/// The sockets, and the addresses that this machine lacks.
fn bind_once<T>(
    addresses: &[SocketAddr],
    bind: &impl Fn(SocketAddr) -> io::Result<(SocketAddr, T)>,
) -> io::Result<Bound<T>> {
    let (mut bound, mut left_out) = (Vec::new(), Vec::new());
    let mut port = 0;
    for &address in addresses {
        let mut wanted = address;
        if wanted.port() == 0 {
            wanted.set_port(port);
        }
        match bind(wanted) {
            Ok((at, socket)) => {
                port = at.port();
                bound.push((at, socket));
            }
            Err(error) if is_lacking(&error) => left_out.push((address, error)),
            Err(error) => return Err(error),
        }
    }
    match bound.is_empty() {
        true => Err(left_out.pop().map_or_else(|| io::ErrorKind::AddrNotAvailable.into(), |(_, error)| error)),
        false => Ok((bound, left_out)),
    }
}

/// Whether the machine lacks the address or its family.
fn is_lacking(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EADDRNOTAVAIL | libc::EAFNOSUPPORT | libc::EPROTONOSUPPORT))
}

/// Removes a socket file that no process uses: a killed server left it. Connecting a datagram socket disturbs nobody, because a server's
/// socket, listening or not, is of another type.
fn remove_stale_socket(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            Err(io::Error::new(io::ErrorKind::AlreadyExists, "a file that is no socket is in the way"))
        }
        Ok(_) => match UnixDatagram::unbound()?.connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
            _ => Err(io::ErrorKind::AddrInUse.into()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
    use std::os::unix::net::{UnixListener, UnixStream};

    fn tcp(text: &str) -> Address {
        Address::Tcp(text.into())
    }

    #[test]
    fn a_port_alone_is_on_loopback_and_what_is_none_is_told() {
        assert_eq!("11311".parse(), Ok(tcp("127.0.0.1:11311")));
        for text in ["99999", "127.0.0.1:99999"] {
            assert_eq!(text.parse::<Address>().unwrap_err(), "99999 is no port: ports are 0 to 65535");
        }
        assert_eq!("none".parse(), Ok(Listening::Nowhere));
        assert_eq!("1".parse(), Ok(Listening::At(tcp("127.0.0.1:1"))));
    }

    #[test]
    fn addresses_read_as_they_print() {
        for text in ["127.0.0.1:11211", "[::1]:0", "localhost:80", "unix:/tmp/x"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        assert_eq!("./x:1".parse(), Ok(Address::Unix("./x:1".into())));
        for text in ["", ":11211", "host", "host:", "host:70000", "unix:"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let path = std::env::temp_dir().join(format!("tapetum-listen-{}", std::process::id()));
        let address = Address::Unix(path.clone());
        drop(UnixListener::bind(&path).unwrap());
        let listener = Listener::bind(&address).unwrap().remove(0);
        assert_eq!(UnixStream::connect(&path).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!(Listener::bind(&address).err().unwrap().kind(), io::ErrorKind::AddrInUse, "it need not listen yet");
        listener.listen(1).unwrap();
        assert_eq!(Listener::bind(&address).err().unwrap().kind(), io::ErrorKind::AddrInUse);
        UnixStream::connect(&path).unwrap();
        drop(listener);
        assert!(!path.exists());
        let first = Listener::bind(&address).unwrap().remove(0);
        fs::remove_file(&path).unwrap();
        let second = Listener::bind(&address).unwrap();
        assert_eq!(first.listen(1).unwrap_err().kind(), io::ErrorKind::AddrInUse, "another has its name");
        drop(first);
        assert!(path.exists(), "the name is the second one's");
        drop(second);
        fs::write(&path, b"").unwrap();
        assert_eq!(Listener::bind(&address).err().unwrap().kind(), io::ErrorKind::AlreadyExists);
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_port_is_kept_from_others_before_anybody_listens() {
        let bound = Listener::bind(&tcp("127.0.0.1:0")).unwrap().remove(0);
        let at = bound.address();
        assert_eq!(TcpStream::connect(at.to_string()).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!(Listener::bind(&at).err().unwrap().kind(), io::ErrorKind::AddrInUse);
        // The standard library's listener shares addresses with others that allow it.
        assert_eq!(TcpListener::bind(at.to_string()).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        bound.listen(1).unwrap();
        TcpStream::connect(at.to_string()).unwrap();
    }

    #[test]
    fn a_port_can_be_had_again_while_closed_connections_linger_there() {
        let first = Listener::bind(&tcp("127.0.0.1:0")).unwrap().remove(0);
        first.listen(1).unwrap();
        let at = first.address();
        let client = TcpStream::connect(at.to_string()).unwrap();
        // The side that closes first keeps the lingering end.
        let (accepted, _) = loop {
            match crate::os::accept(&first) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                accepted => break accepted.unwrap(),
            }
        };
        drop(accepted);
        drop(client);
        drop(first);
        Listener::bind(&at).unwrap().remove(0).listen(1).unwrap();
    }

    #[test]
    fn every_address_of_a_name_gets_one_port_and_what_is_lacking_is_left_out() {
        let (v4, v6) = (SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), SocketAddr::from((Ipv6Addr::LOCALHOST, 0)));
        let (bound, left_out) = bind_once(&[v4, v6], &bind_tcp).unwrap();
        assert_eq!((bound.len(), left_out.len()), (2, 0), "this machine has both");
        assert_eq!(bound[0].0.port(), bound[1].0.port());
        // TEST-NET-1: no machine has it.
        let nowhere = SocketAddr::from((Ipv4Addr::new(192, 0, 2, 1), 0));
        let (bound, left_out) = bind_once(&[nowhere, v6], &bind_tcp).unwrap();
        assert_eq!((bound.len(), left_out[0].0), (1, nowhere));
        assert_eq!(bind_once(&[nowhere], &bind_tcp).err().unwrap().kind(), io::ErrorKind::AddrNotAvailable);
        let taken = bind_tcp(v4).unwrap();
        let error = bind_once(&[v6, taken.0], &bind_tcp).err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "an address that another has is no reason to go without");
    }

    #[test]
    fn all_addresses_of_both_kinds_go_side_by_side() {
        let v4 = Listener::bind(&tcp("0.0.0.0:0")).unwrap().remove(0);
        let Listener::Tcp(_, at) = &v4 else { unreachable!() };
        let v6 = Listener::bind(&tcp(&format!("[::]:{}", at.port()))).unwrap().remove(0);
        [&v4, &v6].iter().for_each(|listener| listener.listen(1).unwrap());
        for host in ["127.0.0.1", "[::1]"] {
            TcpStream::connect(format!("{host}:{}", at.port())).unwrap();
        }
    }

    #[test]
    fn a_port_alone_is_on_loopback() {
        assert_eq!("80".parse(), Ok(LoopbackAddress("127.0.0.1:80".into())));
        assert_eq!("[::1]:80".parse(), Ok(LoopbackAddress("[::1]:80".into())));
        for text in ["", "host", ":80", "host:70000", "70000"] {
            assert!(text.parse::<LoopbackAddress>().is_err(), "{text}");
        }
    }
}
