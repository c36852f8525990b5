//! A table with one entry for each keyspace id. Chunks of neighbouring entries are made when one of them is first accessed.
//!
//! Threads: any. A chunk is made once, and lookups take no lock.

use super::KeyspaceId;
use std::sync::OnceLock;

const CHUNK: usize = 256; // ids

type Chunk<T> = [T; CHUNK];

/// A table over all possible ids. A store with few keyspaces has one chunk.
pub struct ById<T> {
    first: Box<Chunk<T>>,
    others: Box<[OnceLock<Box<Chunk<T>>>; CHUNK - 1]>,
}

fn chunk<T>(number: usize, make: impl Fn(KeyspaceId) -> T) -> Box<Chunk<T>> {
    Box::new(std::array::from_fn(|low| make(KeyspaceId((number * CHUNK + low) as u16))))
}

impl<T> ById<T> {
    /// `make` gives the first value of each entry in the default keyspace's chunk.
    pub fn new(make: impl Fn(KeyspaceId) -> T) -> ById<T> {
        ById { first: chunk(0, make), others: Box::new([const { OnceLock::new() }; CHUNK - 1]) }
    }

    /// The entry of a keyspace. `make` gives the first values of its chunk, if that does not exist yet.
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
