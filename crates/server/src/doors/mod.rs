//! Doors: a folder a protocol, what all share, and the sockets of all, bound before there is a store to serve.
//!
//! ```text
//!   worker ─► connection::Stream ─ input ─► connection::Client + door::Door ─ requests ─► context::Context::seat ─► the store
//!        └──► memcached::udp        ◄ net::out::OutQueue ┘            net::limits::Budget, net::gets::Gets
//! ```
//! Invariants:
//! 1. A door is called statically: no allocation, no virtual call on the way of a request.
//! 2. A door belongs to one client, and so to one worker's thread. It never blocks.

pub mod connection;
pub mod context;
pub mod door;
#[cfg(feature = "flight")]
pub mod flight;
pub mod memcached;
pub mod metrics;
pub mod nbd;
pub mod open_keyspaces;
pub mod options;

use std::fmt;
use std::io;
use std::sync::Arc;

use crate::doors::memcached::MemcachedOptions;
use crate::doors::memcached::udp::{Terminal, UdpSocket};
use crate::doors::nbd::NbdOptions;
use crate::doors::options::Options;
use crate::net::listen::{Address, Listener};

/// Clients are refused until `listen`.
pub struct Doors {
    pub memcached: Vec<Listener>,
    /// Options of each memcached listener.
    pub memcached_options: Vec<MemcachedOptions>,
    /// For each listener, the index of its address among those given: a name has several addresses.
    places: Vec<usize>,
    /// Listeners for clients of block devices.
    pub nbd: Vec<Listener>,
    pub nbd_options: Option<NbdOptions>,
    pub metrics: Vec<Listener>,
    pub flight: Vec<Listener>,
    pub udp: Option<UdpDoors>,
}

pub struct UdpDoors {
    pub terminal: Arc<Terminal>,
    /// Sockets by worker.
    pub sockets: Vec<Vec<UdpSocket>>,
}

/// A socket that cannot be opened.
#[derive(Debug)]
pub struct DoorError {
    /// The option that names its address.
    option: &'static str,
    address: String,
    error: io::Error,
}

impl DoorError {
    fn new(option: &'static str, address: impl ToString, error: io::Error) -> DoorError {
        DoorError { option, address: address.to_string(), error }
    }
}

impl fmt::Display for DoorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DoorError { option, address, error } = self;
        let over = if *option == "--udp" { " for UDP" } else { "" };
        write!(f, "cannot listen at {address}{over}: {error}; ")?;
        match (error.kind(), error.raw_os_error()) {
            (io::ErrorKind::AddrInUse, _) => write!(f, "stop what is there, or give another {option} ADDR"),
            (io::ErrorKind::AddrNotAvailable, _) => {
                write!(f, "this machine has no such address: give {option} one that `ip address` shows")
            }
            (io::ErrorKind::PermissionDenied, _) if address.starts_with("unix:") => {
                write!(f, "give {option} a path in a folder that this user may write to")
            }
            (io::ErrorKind::PermissionDenied, _) => {
                write!(
                    f,
                    "give {option} a port from 1024 on, or the server the right to low ones (CAP_NET_BIND_SERVICE)"
                )
            }
            (io::ErrorKind::Unsupported, None) => {
                write!(
                    f,
                    "other machines reach it, and there are no users and no encryption yet: give {option} 127.0.0.1:PORT or unix:PATH"
                )
            }
            (io::ErrorKind::AlreadyExists, _) => write!(f, "move it, or give another {option} ADDR"),
            // Only names are looked up, and the lookup's own errors say why.
            (_, None) => write!(f, "give {option} a name that this machine can look up, or an IP address"),
            _ => write!(f, "give another {option} ADDR"),
        }
    }
}

impl std::error::Error for DoorError {}

impl Doors {
    pub fn bind(options: &Options) -> Result<Doors, DoorError> {
        let (mut memcached, mut places) = (Vec::new(), Vec::new());
        for (place, address) in options.addresses.iter().enumerate() {
            memcached.extend(bind("--memcached", address)?);
            places.resize(memcached.len(), place);
        }
        let memcached_options = vec![MemcachedOptions::default(); memcached.len()];
        let mut nbd = Vec::new();
        for address in &options.nbd {
            nbd.extend(bind("--nbd", address)?);
        }
        let metrics = options.metrics.as_ref().map(|address| bind("--metrics", &Address::Tcp(address.0.clone())));
        let udp = options.udp.as_ref().map(|udp| {
            let bound = Terminal::bind(udp.clone(), options.threads);
            let (terminal, sockets) = bound.map_err(|error| DoorError::new("--udp", &udp.address, error))?;
            Ok(UdpDoors { terminal, sockets })
        });
        let (metrics, udp) = (metrics.transpose()?.unwrap_or_default(), udp.transpose()?);
        let flight = options.flight.as_ref().map(|address| bind("--flight", address)).transpose()?.unwrap_or_default();
        if let Some(open) = flight.iter().find(|listener| listener.is_open_to_others()) {
            return Err(DoorError::new("--flight", open.address(), io::ErrorKind::Unsupported.into()));
        }
        Ok(Doors { memcached, memcached_options, places, nbd, nbd_options: None, metrics, flight, udp })
    }

    /// Sets the options of each address, by index.
    pub fn give(&mut self, options: &[MemcachedOptions]) {
        self.memcached_options = self.places.iter().map(|place| options[*place].clone()).collect();
    }

    /// Accepts clients over TCP and Unix sockets. Up to `backlog` of them may wait at each.
    pub fn listen(&self, backlog: u32) -> Result<(), DoorError> {
        let all = [("--memcached", &self.memcached), ("--nbd", &self.nbd), ("--metrics", &self.metrics)];
        for (option, listeners) in all {
            for listener in listeners {
                let listening = listener.listen(backlog);
                listening.map_err(|error| DoorError::new(option, listener.address(), error))?;
            }
        }
        Ok(())
    }
}

fn bind(option: &'static str, address: &Address) -> Result<Vec<Listener>, DoorError> {
    Listener::bind(address).map_err(|error| DoorError::new(option, address, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_to_do_depends_on_what_is_wrong_and_names_the_option() {
        for (option, address, error, advice) in [
            (
                "--memcached",
                "127.0.0.1:1",
                io::ErrorKind::AddrInUse.into(),
                "stop what is there, or give another --memcached",
            ),
            ("--udp", "192.0.2.1:1", io::Error::from_raw_os_error(libc::EADDRNOTAVAIL), "give --udp one that"),
            (
                "--metrics",
                "127.0.0.1:1",
                io::Error::from_raw_os_error(libc::EACCES),
                "give --metrics a port from 1024 on",
            ),
            ("--memcached", "unix:/x/y", io::Error::from_raw_os_error(libc::EACCES), "give --memcached a path"),
            (
                "--metrics",
                "nowhere:1",
                io::Error::other("failed to lookup address"),
                "a name that this machine can look up",
            ),
            ("--memcached", "unix:/x/y", io::Error::from_raw_os_error(libc::ENOENT), "give another --memcached ADDR"),
        ] {
            let told = DoorError::new(option, address, error).to_string();
            assert!(told.contains(advice) && told.contains(address), "{told}");
        }
    }
}
