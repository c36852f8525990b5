//! Rights of a client of memcached's protocols: all, if there are no users; else its user's, once it has logged in.
//!
//! Owned by one client's door.

use std::sync::Arc;

use tapetum_access::gate::Gate;
use tapetum_access::identity::Identity;
use tapetum_service::request::Role;

use super::needs::{Need, Over};

/// The proof that a listener asks of its clients.
#[derive(Clone, Default)]
pub enum Admission {
    /// They may do everything.
    #[default]
    Everybody,
    /// They log in.
    Users(Arc<Gate>),
    /// They may read.
    Readers,
}

impl std::fmt::Debug for Admission {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Admission::Everybody => "Everybody",
            Admission::Users(_) => "Users",
            Admission::Readers => "Readers",
        })
    }
}

pub enum ClientAccess {
    Everybody,
    Reader,
    /// It has not logged in, or was somebody who is no user any more.
    Nobody,
    User(Box<UserAccess>),
}

pub struct UserAccess {
    identity: Identity,
    keyspace: Option<Role>,
    store: Option<Role>,
}

impl ClientAccess {
    pub fn of(admission: &Admission) -> ClientAccess {
        match admission {
            Admission::Everybody => ClientAccess::Everybody,
            Admission::Users(_) => ClientAccess::Nobody,
            Admission::Readers => ClientAccess::Reader,
        }
    }

    pub fn of_user(identity: Identity, keyspace: &str) -> ClientAccess {
        let user = UserAccess { identity, keyspace: None, store: None };
        user.looked_up(keyspace).map_or(ClientAccess::Nobody, |user| ClientAccess::User(Box::new(user)))
    }

    /// Looks its rights up again if users were read again. `keyspace`: the one that the client sees. Returns whether it did.
    pub fn refresh(&mut self, keyspace: &str) -> bool {
        match self {
            ClientAccess::User(user) if !user.identity.is_new() => {
                *self = ClientAccess::of_user(user.identity.clone(), keyspace);
                true
            }
            _ => false,
        }
    }

    pub fn is_nobody(&self) -> bool {
        matches!(self, ClientAccess::Nobody)
    }

    /// Whether it may do what needs this.
    pub fn allows(&self, need: Need) -> bool {
        let (keyspace, store) = match self {
            ClientAccess::Everybody => return true,
            ClientAccess::Nobody => return false,
            ClientAccess::Reader => (Some(Role::Read), None),
            ClientAccess::User(user) => (user.keyspace, user.store),
        };
        match need {
            Need::Nothing => true,
            Need::Role(role, Over::Keyspace) => keyspace >= Some(role),
            Need::Role(role, Over::Store) => store >= Some(role),
        }
    }

    /// The user's name.
    pub fn name(&self) -> Option<&str> {
        match self {
            ClientAccess::User(user) => Some(user.identity.name()),
            _ => None,
        }
    }
}

impl UserAccess {
    fn looked_up(mut self, keyspace: &str) -> Option<UserAccess> {
        let rights = self.identity.rights().ok()?;
        (self.keyspace, self.store) = (rights.over(keyspace), rights.over_store());
        Some(self)
    }
}
