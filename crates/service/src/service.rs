//! A store, open in this process or served by another: what a command asks it is the same.
//!
//! ```text
//! reach ─► a server's socket answers ──► Served
//!       └► else the store is opened ───► Opened
//! ```

use std::path::PathBuf;

use tapetum::{Options, Place, Store};

use crate::asked::Asked;
use crate::caller::{Caller, Gathering};
use crate::execute::{OpenStore, execute};
use crate::failure::Failure;
use crate::opening::{self, OpenError};
use crate::reply::Reply;
use crate::request::Request;
use crate::socket::client::Connection;

/// What a store is opened for, if no server has it open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It stays unchanged.
    Read,
    Write,
}

pub enum Service {
    Opened(Opened),
    Served(Box<dyn Asked>),
}

/// A store that this process has opened.
pub struct Opened {
    store: Store,
    place: Place,
    compute_units: Vec<(String, u16)>,
    access: Access,
}

/// Why no store can be asked.
#[derive(Debug)]
pub enum ReachError {
    /// Another process has it open, and has no socket.
    Unanswered {
        path: PathBuf,
        socket: PathBuf,
    },
    Open(OpenError),
    Server(Failure),
}

impl std::fmt::Display for ReachError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ReachError::Unanswered { path, socket } => write!(
                f,
                "{} is in use, and nobody answers commands at {}: by a program that has the store open itself, or a server that begins \
                 or ends; try again, or end it first",
                path.display(),
                socket.display()
            ),
            ReachError::Open(error) => error.fmt(f),
            ReachError::Server(failure) => failure.fmt(f),
        }
    }
}

impl std::error::Error for ReachError {}

impl Service {
    /// Asks the server that has the store at `place`; if none has, opens it.
    ///
    /// # Errors
    /// If the store cannot be opened, or the server is of another version.
    pub fn reach(place: &Place, options: &Options, access: Access) -> Result<Service, ReachError> {
        if let Some(connection) = Connection::open(&place.socket()).map_err(ReachError::Server)? {
            return Ok(Service::Served(Box::new(connection)));
        }
        let opened = match access {
            Access::Read => options.open_read_only(place.clone()).map_err(OpenError::from),
            Access::Write => opening::open(place, options),
        };
        let compute_units = options.compute_units.clone();
        match opened {
            Ok(store) => Ok(Service::Opened(Opened { store, place: place.clone(), compute_units, access })),
            // It may have begun to serve meanwhile.
            Err(error) => match Connection::open(&place.socket()) {
                Ok(Some(connection)) => Ok(Service::Served(Box::new(connection))),
                _ => Err(match error {
                    OpenError::Store(tapetum::OpenError::InUse { path }) => {
                        ReachError::Unanswered { path, socket: place.socket() }
                    }
                    error => ReachError::Open(error),
                }),
            },
        }
    }

    pub fn is_served(&self) -> bool {
        matches!(self, Service::Served(_))
    }

    /// Asks, and waits until all is done.
    ///
    /// # Errors
    /// What the caller was told before holds.
    pub fn call(&mut self, request: Request, caller: &mut dyn Caller) -> Result<(), Failure> {
        match self {
            Service::Opened(Opened { store, place, compute_units, .. }) => {
                execute(OpenStore { store, place, compute_units, server: None }, request, caller)
            }
            Service::Served(server) => server.call(&request, caller),
        }
    }

    /// Asks for what is told in few replies.
    ///
    /// # Errors
    /// As [`Service::call`].
    pub fn gather(&mut self, request: Request) -> Result<Vec<Reply>, Failure> {
        let mut gathering = Gathering::default();
        self.call(request, &mut gathering)?;
        Ok(gathering.replies)
    }

    /// Closes the store, if it was opened here: what was written is durable then.
    ///
    /// # Errors
    /// If that is not so.
    pub fn close(self) -> Result<(), Failure> {
        match self {
            Service::Opened(Opened { store, place, access: Access::Write, .. }) => {
                store.close().map_err(|error| Failure::of_store(&store, &place, error))
            }
            Service::Opened(_) | Service::Served(_) => Ok(()),
        }
    }
}
