//! The store that a command asks: the one of a running server, or one that it opens itself.

use std::error::Error;
#[cfg(feature = "flight")]
use std::path::PathBuf;

use tapetum::Options;
#[cfg(feature = "flight")]
use tapetum_access::users;
#[cfg(feature = "flight")]
use tapetum_flight::client::{FlightConnection, Login, ServerAddress};
use tapetum_kernels::scan::Format;
use tapetum_service::asked::Asked;
use tapetum_service::caller::Caller;
use tapetum_service::reply::{FormatRow, KeyspaceRow, Reply};
use tapetum_service::request::Request;
use tapetum_service::service::{Access, Service};
use tapetum_service::socket::client::Connection;

use super::commands::{Outcome, check_memory, offline_options, tell};
#[cfg(feature = "flight")]
use super::passwords::{self, Asking};
use crate::cli::arguments::{PlaceArguments, StoreArguments};
use crate::tools::key_text::KeyText;

/// See the [module](self).
pub struct Reached {
    pub service: Service,
    /// The freeze whose keyspaces are asked for, rather than those there are now.
    freeze: Option<u64>,
}

/// The server at `--server`, if one was given.
pub fn remote_of(arguments: &PlaceArguments) -> Result<Option<Box<dyn Asked>>, Box<dyn Error>> {
    #[cfg(feature = "flight")]
    if let Some(address) = &arguments.server {
        return Ok(Some(Box::new(FlightConnection::open(address, &login(address, arguments)?)?)));
    }
    let _ = arguments;
    Ok(None)
}

/// The proofs for the server at `--server`, and those that are wanted of it.
#[cfg(feature = "flight")]
fn login(address: &ServerAddress, arguments: &PlaceArguments) -> Result<Login, Box<dyn Error>> {
    let read = |path: &PathBuf| std::fs::read(path).map_err(|error| format!("--server-ca {}: {error}", path.display()));
    let authority = arguments.server_ca.as_ref().map(read).transpose()?;
    let user = match &arguments.user {
        None => None,
        Some(name) => {
            users::check_name(name)?;
            if matches!(address, ServerAddress::Tcp(_)) {
                tell(&format!("{address} has no TLS: whoever is on the way can read the password"));
            }
            let password = passwords::password(arguments.password_file.as_deref(), Asking::Once)?;
            Some((name.clone(), password))
        }
    };
    Ok(Login { user, authority })
}

/// The server at `--server`, or the one that has the store open, if there is one.
pub fn server_of(arguments: &PlaceArguments) -> Result<Option<Box<dyn Asked>>, Box<dyn Error>> {
    if let Some(server) = remote_of(arguments)? {
        return Ok(Some(server));
    }
    let connection = Connection::open(&arguments.place().socket())?;
    Ok(connection.map(|connection| Box::new(connection) as Box<dyn Asked>))
}

/// An error, if a server was given to a command that asks none.
pub fn refuse_server(arguments: &PlaceArguments, command: &str) -> Result<(), Box<dyn Error>> {
    match arguments.is_remote() {
        true => {
            Err(format!("`tapetum {command}` opens the store itself: give --data or --drive, and no --server").into())
        }
        false => Ok(()),
    }
}

/// How a keyspace's items are found and read.
pub struct KeyspaceShape {
    /// The format of its records, if it is known.
    pub format: Option<Format>,
    pub is_ordered: bool,
}

impl Reached {
    /// For a command that changes nothing.
    pub fn for_reading(arguments: &StoreArguments) -> Result<Reached, Box<dyn Error>> {
        Reached::new(arguments, &offline_options(arguments), Access::Read)
    }

    pub fn new(arguments: &StoreArguments, options: &Options, access: Access) -> Result<Reached, Box<dyn Error>> {
        check_memory(arguments.memory)?;
        let service = match remote_of(&arguments.place)? {
            Some(server) => Service::Served(server),
            None => Service::reach(&arguments.place(), options, access)?,
        };
        if service.is_served() && !options.compute_units.is_empty() {
            tell(
                "the running server computes with the threads that it was started with: it ignores --units and --compute-units",
            );
        }
        Ok(Reached { service, freeze: None })
    }

    /// The same, for keyspaces as a freeze has them.
    pub fn at(self, freeze: Option<u64>) -> Reached {
        Reached { freeze, ..self }
    }

    pub fn ask(&mut self, request: Request, caller: &mut dyn Caller) -> Outcome {
        Ok(self.service.call(request, caller)?)
    }

    /// Asks for what is told at once.
    pub fn gather(&mut self, request: Request) -> Result<Vec<Reply>, Box<dyn Error>> {
        Ok(self.service.gather(request)?)
    }

    /// The format of a keyspace's records, if it is known.
    pub fn format(&mut self, keyspace: &str) -> Result<Option<Format>, Box<dyn Error>> {
        Ok(self.shape(keyspace)?.format)
    }

    /// How a keyspace's items are found and read.
    pub fn shape(&mut self, keyspace: &str) -> Result<KeyspaceShape, Box<dyn Error>> {
        let told = match self.gather(Request::Format { keyspace: keyspace.into(), freeze: self.freeze })?.pop() {
            Some(Reply::Format(told)) => told,
            _ => FormatRow::default(),
        };
        let format = told.fields.as_deref().map(Format::parse).transpose()?;
        Ok(KeyspaceShape { format, is_ordered: told.is_ordered })
    }

    /// The bytes of a key of a keyspace, from its text.
    pub fn key(&mut self, keyspace: &str, text: &str) -> Result<Vec<u8>, Box<dyn Error>> {
        Ok(KeyText::new(self.format(keyspace)?.as_ref()).key(text)?)
    }

    /// The format of a keyspace's records.
    ///
    /// # Errors
    /// If it is not known.
    pub fn kept_format(&mut self, keyspace: &str) -> Result<Format, Box<dyn Error>> {
        let none = || {
            format!(
                "the format of the records of {keyspace} is not known: give --fields, or keep it with \
                 `tapetum keyspace format {keyspace} FIELDS`"
            )
        };
        Ok(self.format(keyspace)?.ok_or_else(none)?)
    }

    /// The keyspaces, or the one of a name.
    pub fn keyspaces(&mut self, name: Option<&str>) -> Result<Vec<KeyspaceRow>, Box<dyn Error>> {
        match self.gather(Request::Keyspaces { name: name.map(str::to_owned), freeze: self.freeze })?.pop() {
            Some(Reply::Keyspaces(rows)) => Ok(rows),
            _ => Ok(Vec::new()),
        }
    }

    /// Ends; what was written to a store that was opened here is durable then. The first error is the more informative one.
    pub fn close<T>(self, done: Result<T, Box<dyn Error>>) -> Result<T, Box<dyn Error>> {
        let closed = self.service.close();
        let done = done?;
        closed?;
        Ok(done)
    }
}
