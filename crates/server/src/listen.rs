//! The listening sockets: TCP and Unix. Made once, before the workers start; every worker accepts from all of them.

use std::fs;
use std::io;
use std::net::{TcpListener, ToSocketAddrs};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// `host:port`, or `unix:` and a path; a path that begins with `/` or `./` needs no word before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    Tcp(String),
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
        match text.rsplit_once(':').map(|(host, port)| (host, port.parse::<u16>())) {
            Some((host, Ok(_))) if !host.is_empty() => Ok(Address::Tcp(text.into())),
            _ => Err("give HOST:PORT, such as 127.0.0.1:11211, or unix:PATH".into()),
        }
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Address::Tcp(text) => f.write_str(text),
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

pub enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

impl Listener {
    pub fn bind(address: &Address) -> io::Result<Listener> {
        let listener = match address {
            Address::Tcp(text) => {
                let addresses: Vec<_> = text.to_socket_addrs()?.collect();
                let listener = TcpListener::bind(addresses.as_slice())?;
                listener.set_nonblocking(true)?;
                Listener::Tcp(listener)
            }
            Address::Unix(path) => {
                remove_stale_socket(path)?;
                let listener = UnixListener::bind(path)?;
                // As memcached's: the owner's alone.
                fs::set_permissions(path, fs::Permissions::from_mode(0o700))?;
                listener.set_nonblocking(true)?;
                Listener::Unix(listener, path.clone())
            }
        };
        Ok(listener)
    }

    /// Where it listens in fact: port 0 has become a real one.
    pub fn address(&self) -> io::Result<Address> {
        match self {
            Listener::Tcp(listener) => Ok(Address::Tcp(listener.local_addr()?.to_string())),
            Listener::Unix(_, path) => Ok(Address::Unix(path.clone())),
        }
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Listener::Tcp(listener) => listener.as_raw_fd(),
            Listener::Unix(listener, _) => listener.as_raw_fd(),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Listener::Unix(_, path) = self {
            // Someone else may have removed it already.
            let _ = fs::remove_file(path);
        }
    }
}

/// A socket that nobody listens at was left by a server that was killed.
fn remove_stale_socket(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            Err(io::Error::new(io::ErrorKind::AlreadyExists, "a file that is no socket is in the way"))
        }
        Ok(_) => match UnixStream::connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
            _ => Err(io::ErrorKind::AddrInUse.into()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read_as_they_print() {
        for text in ["127.0.0.1:11211", "[::1]:0", "localhost:80", "unix:/tmp/x"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        assert_eq!("./x:1".parse(), Ok(Address::Unix("./x:1".into())));
        for text in ["", "11211", ":11211", "host", "host:", "host:70000", "unix:"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let path = std::env::temp_dir().join(format!("tapetum-listen-{}", std::process::id()));
        let address = Address::Unix(path.clone());
        drop(UnixListener::bind(&path).unwrap());
        let listener = Listener::bind(&address).unwrap();
        assert_eq!(Listener::bind(&address).err().unwrap().kind(), io::ErrorKind::AddrInUse);
        drop(listener);
        assert!(!path.exists());
        fs::write(&path, b"").unwrap();
        assert_eq!(Listener::bind(&address).err().unwrap().kind(), io::ErrorKind::AlreadyExists);
        fs::remove_file(&path).unwrap();
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
