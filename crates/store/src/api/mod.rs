//! The store as an application holds it: handles, sessions, blocking calls, iterators, figures. Requests and their outcomes, which are
//! plain data, are the base's (`tapetum_base::request`).
//!
//! A [`Store`](store::Store) and its [`KeyspaceHandle`](blocking::KeyspaceHandle)s are used from any thread, a
//! [`Session`](session::Session) by one at a time. Stores at paths (`opening/`), queries and graphs (`scan/`) and `tools/` stand on this.

pub mod blocking;
mod figures;
pub mod items;
pub mod key_desks;
pub mod key_listing;
mod keyspace_calls;
pub mod session;
pub mod store;
mod warming;
