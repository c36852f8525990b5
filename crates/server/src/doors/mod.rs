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
pub mod console;
pub mod context;
pub mod door;
#[cfg(feature = "flight")]
pub mod flight;
pub mod http;
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
use crate::doors::options::{Access, Options};
use crate::net::listen::{Address, Listener};

const OPEN_NEEDS: &str = "give TLS and users (--ssl-chain-cert, --ssl-key and --users-file; docs/SECURITY.md has the ten lines), an address on \
    127.0.0.1, or --insecure if something else decides who connects";
const OPEN_UDP_NEEDS: &str = "UDP has neither users nor encryption; give an address on 127.0.0.1, or --insecure if something else decides who sends";
const UDP_NEEDS: &str = "UDP has no logins, and there is a users file; leave --udp out, or give --udp-anonymous KEYSPACE, which everybody may read \
    over it then";
const NBD_NEEDS: &str = "clients of block devices are known by their certificates, and there is a users file; give TLS and --ssl-ca-cert, or \
    --nbd unix:PATH";

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
    pub console: Vec<Listener>,
    pub udp: Option<UdpDoors>,
}

pub struct UdpDoors {
    pub terminal: Arc<Terminal>,
    /// Sockets by worker.
    pub sockets: Vec<Vec<UdpSocket>>,
}

/// A socket that cannot be opened, or may not.
#[derive(Debug)]
pub struct DoorError {
    /// The option that names its address.
    option: &'static str,
    address: String,
    why: Why,
}

#[derive(Debug)]
enum Why {
    System(io::Error),
    /// Other machines would reach it, and this is missing.
    OpenToOthers(&'static str),
    /// Nobody could log in there.
    NoLogin(&'static str),
}

impl DoorError {
    fn new(option: &'static str, address: impl ToString, error: io::Error) -> DoorError {
        DoorError { option, address: address.to_string(), why: Why::System(error) }
    }
}

impl fmt::Display for DoorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DoorError { option, address, why } = self;
        let error = match why {
            Why::System(error) => error,
            Why::OpenToOthers(give) => {
                return write!(
                    f,
                    "other machines reach {option} {address}, where anybody would be let in, or could read along: {give}"
                );
            }
            Why::NoLogin(give) => return write!(f, "nobody could log in at {option} {address}: {give}"),
        };
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
        let udp = options.udp.as_ref().map(|udp| {
            let bound = Terminal::bind(udp.clone(), options.threads);
            let (terminal, sockets) = bound.map_err(|error| DoorError::new("--udp", &udp.address, error))?;
            Ok(UdpDoors { terminal, sockets })
        });
        let udp = udp.transpose()?;
        let bound = |option, address: &Option<Address>| -> Result<Vec<Listener>, DoorError> {
            Ok(address.as_ref().map(|address| bind(option, address)).transpose()?.unwrap_or_default())
        };
        let metrics = bound("--metrics", &options.metrics)?;
        let (flight, console) = (bound("--flight", &options.flight)?, bound("--console", &options.console)?);
        let doors =
            Doors { memcached, memcached_options, places, nbd, nbd_options: None, metrics, flight, console, udp };
        doors.check(&options.access)?;
        Ok(doors)
    }

    /// An error if a door would be open by mistake, or shut for everybody.
    fn check(&self, access: &Access) -> Result<(), DoorError> {
        let refused = |option, address: &dyn ToString, why| DoorError { option, address: address.to_string(), why };
        for (option, listeners) in self.listeners() {
            for listener in listeners {
                let needs_login = access.gate.is_some() && option == "--nbd" && !matches!(listener, Listener::Unix(..));
                let has_tls = listener.may_have_tls() && access.tls.is_some();
                if needs_login && !(has_tls && access.tls.as_ref().is_some_and(|tls| tls.asks_for_certificates())) {
                    return Err(refused(option, &listener.address(), Why::NoLogin(NBD_NEEDS)));
                }
                let is_safe = access.is_insecure || has_tls && access.gate.is_some();
                if listener.is_open_to_others() && !is_safe {
                    return Err(refused(option, &listener.address(), Why::OpenToOthers(OPEN_NEEDS)));
                }
            }
        }
        for address in self.udp.iter().flat_map(|udp| &udp.terminal.addresses) {
            if access.gate.is_some() && access.udp_anonymous.is_none() {
                return Err(refused("--udp", address, Why::NoLogin(UDP_NEEDS)));
            }
            if !address.ip().is_loopback() && !access.is_insecure {
                return Err(refused("--udp", address, Why::OpenToOthers(OPEN_UDP_NEEDS)));
            }
        }
        Ok(())
    }

    fn listeners(&self) -> [(&'static str, &[Listener]); 5] {
        [
            ("--memcached", &self.memcached),
            ("--nbd", &self.nbd),
            ("--metrics", &self.metrics),
            ("--flight", &self.flight),
            ("--console", &self.console),
        ]
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
