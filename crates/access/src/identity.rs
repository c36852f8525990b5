//! The identity of a client, as its door keeps it: whoever has logged in, and what that allows now.
//!
//! Threads: an identity is one client's.

use std::sync::Arc;

use tapetum_service::request::{Role, Scope};

use crate::current::CurrentUsers;
use crate::rights::Rights;
use crate::users::User;

/// See the [module](self).
#[derive(Clone)]
pub struct Identity {
    current: Arc<CurrentUsers>,
    user: Arc<User>,
    /// The count of users files when `user` was looked up.
    seen: u64,
    /// The proof by which it is known.
    by: By,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    Password,
    Certificate,
}

/// The user is no user any more, or has another password.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakenAway;

impl Identity {
    pub(crate) fn new(current: &Arc<CurrentUsers>, user: &Arc<User>, seen: u64, by: By) -> Identity {
        Identity { current: Arc::clone(current), user: Arc::clone(user), seen, by }
    }

    pub fn name(&self) -> &str {
        &self.user.name
    }

    /// Whether the users file is still the one that it was looked up in.
    pub fn is_new(&self) -> bool {
        self.seen == self.current.generation()
    }

    /// The user's rights now.
    ///
    /// # Errors
    /// If it is no user any more, or has another password: it has to log in again.
    pub fn rights(&mut self) -> Result<&Rights, TakenAway> {
        if !self.is_new() {
            let (users, seen) = self.current.users_now();
            let now = users.find(&self.user.name).ok_or(TakenAway)?;
            if self.by == By::Password && now.hash != self.user.hash {
                return Err(TakenAway);
            }
            (self.user, self.seen) = (Arc::clone(now), seen);
        }
        Ok(&self.user.rights)
    }

    /// Whether the user may do what needs `role` over `scope`.
    pub fn may(&mut self, role: Role, scope: Scope<'_>) -> bool {
        self.rights().is_ok_and(|rights| rights.allow(role, scope))
    }

    pub(crate) fn user(&self) -> &User {
        &self.user
    }
}
