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
}

impl OpenKeyspaces {
    pub fn new(open: Vec<(Keyspace, KeyspaceRef)>) -> OpenKeyspaces {
        let plain = open.into_iter().filter(|(keyspace, _)| keyspace.options.is_empty());
        OpenKeyspaces { plain: plain.map(|(keyspace, named)| (keyspace.name, named)).collect() }
    }

    /// The keyspace of a name. Without one, requests come to an error.
    pub fn plain(&self, name: &str) -> KeyspaceRef {
        self.plain.get(name).copied().unwrap_or(KeyspaceRef::GONE)
    }
}
