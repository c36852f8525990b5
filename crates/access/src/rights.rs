//! Rights of a user: a role over keyspaces, or over all of them and the store. Pure.

use std::collections::BTreeMap;

use tapetum_service::request::{Role, Scope};

/// See the [module](self).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// Over every keyspace, and over the store itself.
    store: Option<Role>,
    keyspaces: BTreeMap<String, Role>,
}

impl Rights {
    /// Adds a role over a keyspace; without one, over the store. The higher role stays.
    pub fn add(&mut self, role: Role, keyspace: Option<&str>) {
        match keyspace {
            None => self.store = self.store.max(Some(role)),
            Some(name) => {
                let held = self.keyspaces.entry(name.into()).or_insert(role);
                *held = role.max(*held);
            }
        }
    }

    pub fn over_store(&self) -> Option<Role> {
        self.store
    }

    pub fn over(&self, keyspace: &str) -> Option<Role> {
        self.store.max(self.keyspaces.get(keyspace).copied())
    }

    /// Whether they allow a request that needs `role` over `scope`.
    pub fn allow(&self, role: Role, scope: Scope<'_>) -> bool {
        match scope {
            Scope::Store => self.store >= Some(role),
            Scope::Keyspace(name) => self.over(name) >= Some(role),
            Scope::Both(one, other) => self.over(one) >= Some(role) && self.over(other) >= Some(role),
            Scope::AnyKeyspace => !self.is_empty(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.store.is_none() && self.keyspaces.is_empty()
    }

    /// The role over the store.
    pub fn iter(&self) -> impl Iterator<Item = (Role, Option<&str>)> {
        let of_store = self.store.map(|role| (role, None));
        of_store.into_iter().chain(self.keyspaces.iter().map(|(name, role)| (*role, Some(&name[..]))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_higher_role_holds_the_lower_ones_and_the_store_its_keyspaces() {
        let mut rights = Rights::default();
        assert!(rights.is_empty() && !rights.allow(Role::Read, Scope::AnyKeyspace));
        rights.add(Role::Write, Some("a"));
        rights.add(Role::Read, Some("a"));
        rights.add(Role::Admin, Some("b"));
        assert!(rights.allow(Role::Read, Scope::Keyspace("a")) && rights.allow(Role::Write, Scope::Keyspace("a")));
        assert!(!rights.allow(Role::Admin, Scope::Keyspace("a")) && !rights.allow(Role::Read, Scope::Keyspace("c")));
        assert!(rights.allow(Role::Read, Scope::AnyKeyspace) && !rights.allow(Role::Read, Scope::Store));
        assert!(!rights.allow(Role::Admin, Scope::Both("b", "a")) && rights.allow(Role::Write, Scope::Both("a", "b")));
        rights.add(Role::Read, None);
        assert!(rights.allow(Role::Read, Scope::Keyspace("c")) && rights.allow(Role::Read, Scope::Store));
        assert!(!rights.allow(Role::Write, Scope::Keyspace("c")) && rights.allow(Role::Write, Scope::Keyspace("a")));
        rights.add(Role::Admin, None);
        assert!(rights.allow(Role::Admin, Scope::Store) && rights.allow(Role::Admin, Scope::Keyspace("c")));
    }
}
