//! Something of each keyspace, by its id, in chunks of neighbours that come into being when one of them is first asked for.
//!
//! Threads: any; a chunk is made once, and looked up without a lock.

use super::KeyspaceId;
use std::sync::OnceLock;

const CHUNK: usize = 256; // ids

type Chunk<T> = [T; CHUNK];

/// A table over all ids there can be. A store of few keyspaces keeps one chunk.
pub struct ById<T> {
    first: Box<Chunk<T>>,
    others: Box<[OnceLock<Box<Chunk<T>>>; CHUNK - 1]>,
}

fn chunk<T>(number: usize, make: impl Fn(KeyspaceId) -> T) -> Box<Chunk<T>> {
    Box::new(std::array::from_fn(|low| make(KeyspaceId((number * CHUNK + low) as u16))))
}

impl<T> ById<T> {
    /// `make` says what there is of ids in the default keyspace's chunk.
    pub fn new(make: impl Fn(KeyspaceId) -> T) -> ById<T> {
        ById { first: chunk(0, make), others: Box::new([const { OnceLock::new() }; CHUNK - 1]) }
    }

    /// What there is of a keyspace; `make` says what there is of its neighbours at first.
    #[inline]
    pub fn get(&self, KeyspaceId(id): KeyspaceId, make: impl Fn(KeyspaceId) -> T) -> &T {
        let [low, high] = id.to_le_bytes().map(usize::from);
        let chunk = match high.checked_sub(1) {
            None => &self.first,
            Some(other) => self.others[other].get_or_init(|| chunk(high, make)),
        };
        &chunk[low]
    }
}
