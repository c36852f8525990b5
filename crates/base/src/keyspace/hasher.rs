//! Hashes the keys of all keyspaces of a store, each under a secret of its own, which is derived from the store's
//! ([`keyspace_secret`]) once: a hash costs no derivation.

use super::KeyspaceId;
use super::by_id::ById;
use crate::keyspace::states::KeyspaceRef;
use std::fmt;
use std::sync::Arc;
use tapetum_kernels::block_group;
use tapetum_kernels::hash::{HashKey, keyspace_secret};
use tapetum_kernels::key_table::{Entry, Routes};
use tapetum_kernels::record::Header;

/// A handle on the secrets of a store's keyspaces.
#[derive(Clone)]
pub struct KeyHasher {
    secrets: Arc<ById<[u8; 16]>>,
    store_secret: [u8; 16],
    routes: Routes,
}

impl fmt::Debug for KeyHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHasher")
    }
}

impl KeyHasher {
    /// The hasher of a store with this secret, whose key tables have these routes.
    pub fn new(store_secret: [u8; 16], routes: Routes) -> KeyHasher {
        let secrets = ById::new(|KeyspaceId(id)| keyspace_secret(&store_secret, id));
        KeyHasher { secrets: Arc::new(secrets), store_secret, routes }
    }

    /// The hasher of the same store with other routes.
    #[cfg(any(test, feature = "testing"))]
    pub fn with_routes(self, routes: Routes) -> KeyHasher {
        KeyHasher { routes, ..self }
    }

    /// The routes of the store's key tables.
    pub fn routes(&self) -> Routes {
        self.routes
    }

    /// The key table entry of a record.
    pub fn entry_of(&self, header: &Header, key: &[u8]) -> Entry {
        let size_bytes = header.record_bytes() as u32;
        Entry::of_record(self.hash_of(header, key), header, key, size_bytes, self.routes)
    }

    /// The secret under which the keys of a keyspace are hashed.
    #[inline]
    pub fn secret(&self, keyspace: KeyspaceId) -> &[u8; 16] {
        self.secrets.get(keyspace, |KeyspaceId(id)| keyspace_secret(&self.store_secret, id))
    }

    #[inline]
    pub fn hash(&self, keyspace: KeyspaceId, key: &[u8]) -> HashKey {
        HashKey::of(self.secret(keyspace), key)
    }

    /// The hash key of a key of a keyspace as requests name it.
    #[inline]
    pub fn hash_in(&self, keyspace: KeyspaceRef, key: &[u8]) -> HashKey {
        match keyspace.is_grouped() {
            true => block_group::hash_of(self.secret(keyspace.id()), key),
            false => self.hash(keyspace.id(), key),
        }
    }

    #[inline]
    pub fn hash_of(&self, header: &Header, key: &[u8]) -> HashKey {
        match header.grouped {
            true => block_group::hash_of(self.secret(KeyspaceId::of(header)), key),
            false => self.hash(KeyspaceId::of(header), key),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_keyspace_has_the_secret_that_is_derived_for_it() {
        let hasher = KeyHasher::new([7; 16], Routes::Keyspaces);
        for id in [0, 1, 255, 256, 257, 4095, u16::MAX] {
            let secret = keyspace_secret(&[7; 16], id);
            assert_eq!(*hasher.secret(KeyspaceId(id)), secret);
            assert_eq!(hasher.hash(KeyspaceId(id), b"key"), HashKey::of(&secret, b"key"));
        }
    }
}
