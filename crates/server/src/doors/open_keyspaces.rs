//! The keyspaces that there are, for doors to look theirs up again: a listener serves whichever keyspace has its name now.
//!
//! A worker compares one counter of its session a report of the sockets (`worker/care.rs`). When it has changed, the worker takes a list and
//! shows it to the options of its listeners and to its clients' doors. A request costs nothing more.

use std::collections::HashMap;

use tapetum::{Keyspace, KeyspaceRef};

/// The open keyspaces of a worker's store.
pub struct OpenKeyspaces {
    /// Those that memcached's clients may see, by name. Block devices are not for them.
    plain: HashMap<String, KeyspaceRef>,
    all: Vec<(String, KeyspaceRef)>,
    is_of_new_store: bool,
}

impl OpenKeyspaces {
    /// `is_of_new_store`: another store has come into the slot. The doors have seen all changes of the one before.
    pub fn new(open: Vec<(Keyspace, KeyspaceRef)>, is_of_new_store: bool) -> OpenKeyspaces {
        let all = open.iter().map(|(keyspace, named)| (keyspace.name.clone(), *named)).collect();
        let plain = open.into_iter().filter(|(keyspace, _)| keyspace.options.is_empty());
        OpenKeyspaces { plain: plain.map(|(keyspace, named)| (keyspace.name, named)).collect(), all, is_of_new_store }
    }

    /// The keyspace of a name. Without one, requests come to an error.
    pub fn plain(&self, name: &str) -> KeyspaceRef {
        self.plain.get(name).copied().unwrap_or(KeyspaceRef::GONE)
    }

    /// The same keyspace, whatever its name is now. Once it is gone it stays so, even if another one gets its id.
    pub fn again(&self, keyspace: KeyspaceRef) -> KeyspaceRef {
        // A store counts the lives of an id from its opening on.
        let is_same = |open: KeyspaceRef| match self.is_of_new_store {
            true => open.id() == keyspace.id() && open.is_of_opening(),
            false => open == keyspace,
        };
        self.all.iter().map(|(_, open)| *open).find(|open| is_same(*open)).unwrap_or(KeyspaceRef::GONE)
    }

    /// The name of an open keyspace.
    pub fn name_of(&self, keyspace: KeyspaceRef) -> Option<&str> {
        self.all.iter().find(|(_, open)| *open == keyspace).map(|(name, _)| &name[..])
    }
}
