//! The asker at a door: a user who has logged in, or everybody where the server has no users. Decides what a request may do.
//!
//! Threads: an asker is one request's.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use tapetum_kernels::scan::Scalar;
use tapetum_service::audit;
use tapetum_service::caller::{Caller, CallerLeft};
use tapetum_service::failure::{Failure, FailureKind};
use tapetum_service::reply::Reply;
use tapetum_service::request::{Request, Role, Scope};

use crate::identity::Identity;

/// The other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    Tcp {
        address: SocketAddr,
        /// The user whom the certificate names, which was verified.
        certificate: Option<Arc<str>>,
    },
    /// A process of this machine.
    Unix { uid: Option<u32> },
}

impl Peer {
    /// The address of another machine.
    pub fn ip(&self) -> Option<IpAddr> {
        match self {
            Peer::Tcp { address, .. } => Some(address.ip()),
            Peer::Unix { .. } => None,
        }
    }

    pub fn certificate(&self) -> Option<&str> {
        match self {
            Peer::Tcp { certificate, .. } => certificate.as_deref(),
            Peer::Unix { .. } => None,
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Tcp { address, .. } => address.fmt(f),
            Peer::Unix { uid: Some(uid) } => write!(f, "uid {uid} through a Unix socket"),
            Peer::Unix { uid: None } => f.write_str("a Unix socket"),
        }
    }
}

/// See the [module](self).
#[derive(Clone)]
pub struct Asker {
    who: Who,
    from: Peer,
    /// The door's name, for the audit.
    door: &'static str,
}

#[derive(Clone)]
enum Who {
    /// The server has no users.
    Everybody,
    User(Identity),
}

impl Asker {
    pub fn everybody(from: Peer, door: &'static str) -> Asker {
        Asker { who: Who::Everybody, from, door }
    }

    pub fn user(identity: Identity, from: Peer, door: &'static str) -> Asker {
        Asker { who: Who::User(identity), from, door }
    }

    pub fn identity(&self) -> Option<&Identity> {
        match &self.who {
            Who::Everybody => None,
            Who::User(identity) => Some(identity),
        }
    }

    /// The user's name; `None` of everybody.
    pub fn name(&self) -> Option<&str> {
        self.identity().map(Identity::name)
    }

    /// Whether the asker may do now what needs `role` over `scope`.
    pub fn may(&self, role: Role, scope: Scope<'_>) -> bool {
        match &self.who {
            Who::Everybody => role < Role::Admin,
            Who::User(identity) => identity.clone().may(role, scope),
        }
    }

    /// Whether a request may be done now.
    ///
    /// # Errors
    /// If it may not be. Says who may change that.
    pub fn allow(&self, request: &Request) -> Result<(), Failure> {
        let (role, scope) = request.needs();
        let Who::User(identity) = &self.who else {
            return if role < Role::Admin { Ok(()) } else { Err(Failure::bad(OF_OWNER)) };
        };
        let name = identity.name();
        match identity.clone().rights() {
            Ok(rights) if rights.allow(role, scope) => Ok(()),
            Ok(_) => Err(Failure::new(FailureKind::Forbidden, refusal(name, role, scope))),
            Err(_) => Err(Failure::new(
                FailureKind::Forbidden,
                format!("{name:?} is no user any more, or has another password: log in again"),
            )),
        }
    }

    /// Notes how a request of an admin ended.
    pub fn note(&self, request: &str, ended: &Result<(), Failure>) {
        let (name, from) = (self.name().unwrap_or("everybody"), self.from.to_string());
        audit::note(audit::Asker { name, from: &from, door: self.door }, request, ended);
    }
}

const OF_OWNER: &str = "what changes keyspaces or sizes, and backups, go through the socket of the store's owner: give the command --data or \
                        --drive on the server's machine, or the server users by --users-file";

fn refusal(name: &str, role: Role, scope: Scope<'_>) -> String {
    let verb = role.verb();
    let option = |keyspace: &str| format!(" --{} {keyspace}", role.name());
    let (what, options) = match scope {
        Scope::Store => ("the whole store".into(), option("'*'")),
        Scope::AnyKeyspace => ("any keyspace".into(), option("KEYSPACE")),
        Scope::Keyspace(keyspace) => (format!("the keyspace {keyspace:?}"), option(keyspace)),
        Scope::Both(one, other) => {
            (format!("both of the keyspaces {one:?} and {other:?}"), option(one) + &option(other))
        }
    };
    format!(
        "{name:?} may not {verb} {what}: an admin gives rights by `tapetum user add {name} --replace{options}`, beside those that the user \
         has"
    )
}

/// A caller who is told only of the keyspaces that the asker may read.
pub(crate) struct ReadableKeyspaces<'a> {
    pub asker: &'a Asker,
    pub caller: &'a mut dyn Caller,
}

impl Caller for ReadableKeyspaces<'_> {
    fn take(&mut self, mut reply: Reply) -> Result<(), CallerLeft> {
        if let Reply::Keyspaces(rows) = &mut reply {
            rows.retain(|row| self.asker.may(Role::Read, Scope::Keyspace(&row.name)));
        }
        self.caller.take(reply)
    }

    fn row(&mut self, values: &[Option<Scalar<'_>>]) {
        self.caller.row(values);
    }

    fn has_left(&mut self) -> bool {
        self.caller.has_left()
    }
}

/// The failure of a request for an asker who may not know the names of all keyspaces: without one of a similar name.
pub(crate) fn without_names(asker: &Asker, keyspace: Option<&str>, failure: Failure) -> Failure {
    match (failure.kind, keyspace) {
        (FailureKind::UnknownKeyspace, Some(name)) if !asker.may(Role::Read, Scope::Store) => {
            let told = format!("there is no keyspace {name:?}: `tapetum keyspace list` prints those that you may read");
            Failure::new(FailureKind::UnknownKeyspace, told)
        }
        _ => failure,
    }
}

/// The keyspace that a request names first.
pub(crate) fn keyspace_of(request: &Request) -> Option<&str> {
    match request.needs().1 {
        Scope::Keyspace(name) | Scope::Both(name, _) => Some(name),
        Scope::Store | Scope::AnyKeyspace => None,
    }
}
