//! A store that a server has open, as those see it who answer requests.

use std::sync::Arc;

use tapetum::{Error, Store};

use crate::failure::Failure;
use crate::reply::PromotedRow;

/// See the [module](self). Used by many threads.
pub trait ServingStore: Send + Sync + 'static {
    /// The store, or why there is none now.
    fn store(&self) -> Result<Arc<Store>, Error>;

    /// Whether nothing may be acknowledged any more, also of what was done.
    fn is_fenced(&self) -> bool;

    /// Lets the store take the place of the one that it follows. Takes long, and holds no store.
    fn promote(&self, force: bool) -> Result<PromotedRow, Failure>;

    /// Changes the memory of store and server together.
    fn resize_memory(&self, store: &Store, memory_bytes: u64) -> Result<(), Error>;

    /// Takes memory for a client; whether there is so much now. One client at a time gets more than there is, so that each gets on.
    fn take_memory(&self, client: u64, bytes: usize) -> bool;

    /// Hears of a client that begins or ends waiting for memory.
    fn wait_for_memory(&self, begins: bool);

    /// Whether anybody waits for memory.
    fn is_memory_wanted(&self) -> bool;

    /// Gives back what a client has taken. `is_all`: it holds nothing any more.
    fn give_memory(&self, client: u64, bytes: usize, is_all: bool);
}
