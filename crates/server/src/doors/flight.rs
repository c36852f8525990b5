//! The Flight door's sockets: what comes through them the crate `tapetum_flight` answers.

use std::io;
use std::os::fd::AsFd;

use tapetum::Place;
use tapetum_flight::door::{FlightDoor, Listening};
use tapetum_service::serving_store::ServingStore;

use super::options::Access;
use crate::net::listen::{Address, Listener};

/// The default address of `--flight`.
pub const ADDRESS_DEFAULT: &str = "127.0.0.1:8815";

pub struct FlightServer {
    door: FlightDoor,
    /// A Unix socket's file goes with its listener.
    listeners: Vec<Listener>,
}

impl FlightServer {
    /// Answers whoever connects, as `access` says. `backlog` clients may wait at each address.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn start(
        listeners: Vec<Listener>,
        backlog: u32,
        source: Box<dyn ServingStore>,
        place: Place,
        compute_units: Vec<(String, u16)>,
        access: &Access,
    ) -> io::Result<FlightServer> {
        let listening = |listener: &Listener| {
            listener.listen(backlog)?;
            let socket = listener.as_fd().try_clone_to_owned()?;
            Ok(match listener {
                Listener::Tcp(..) | Listener::Plain(..) => {
                    Listening::Tcp(socket.into(), access.tls.clone().filter(|_| listener.may_have_tls()))
                }
                Listener::Unix(..) => Listening::Unix(socket.into()),
            })
        };
        let listening = listeners.iter().map(listening).collect::<io::Result<Vec<_>>>()?;
        let door = FlightDoor::start(listening, source, place, compute_units, access.gate.clone())?;
        Ok(FlightServer { door, listeners })
    }

    /// The addresses in use; port 0 has become a real one.
    pub fn addresses(&self) -> impl Iterator<Item = Address> {
        self.listeners.iter().map(Listener::address)
    }

    pub fn stop(self) {
        self.door.stop();
    }
}
